//! The search for an order of the calls that explains the answers (Wing and Gong, 1993), with memory of the
//! states that lead nowhere (Lowe, 2017).
//!
//! **Invariant:** an open call is placed only directly before a call that has another outcome or another
//! effect without it. Elsewhere it could be left out, or placed later. So open calls, of which faults leave
//! many, cost little until an answer needs one.

use std::collections::BTreeSet;

use crate::register::Register;
use crate::{Change, Guard, Loss, Operation, Rejection};

/// Maximum number of calls in one history.
pub const OPERATIONS_MAX: usize = 20_000;
/// Maximum number of steps of one search: about a second.
pub const STEPS_MAX: usize = 1_000_000;

/// Maximum number of open calls for which every order of two of them is tried. Beyond it, one is placed
/// before another only where the second could have no effect otherwise. That misses orders in which a read
/// returns a value that one open call has stored and another has replaced, if no earlier read has returned
/// it.
const OPEN_EXACT_MAX: usize = 12;

/// A point of the search.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    register: Register,
    /// All answered calls before this one, in the order of their begins, are placed.
    first: usize,
    /// The answered calls behind `first` that are placed, in increasing order.
    beyond: Vec<usize>,
    /// The open calls that are placed, in increasing order.
    opened: Vec<usize>,
    /// If the last call was an open one: the state before it. The next call must need it.
    before_open: Option<Register>,
}

/// The calls that can be next at a point, and which of them were tried.
struct Frame {
    point: Point,
    candidates: Vec<Candidate>,
}

#[derive(Clone, Copy)]
enum Candidate {
    Answered(usize),
    Open(usize),
}

struct Search<'a> {
    /// Answered calls with their positions in the history, in the order of their begins.
    answered: Vec<(usize, &'a Operation)>,
    open: Vec<&'a Operation>,
    /// For each open call, the first one that could take its place everywhere.
    alike: Vec<usize>,
    loss: Loss,
}

pub(crate) fn search(history: &[Operation], loss: Loss, steps_max: usize) -> Result<(), Rejection> {
    if history.len() > OPERATIONS_MAX {
        return Err(Rejection::TooLong { operations: history.len() });
    }
    let mut answered: Vec<_> = history.iter().enumerate().filter(|(_, it)| it.end.is_some()).collect();
    answered.sort_by_key(|(_, it)| it.begin);
    let mut open: Vec<_> = history.iter().filter(|it| it.end.is_none()).collect();
    open.sort_by_key(|it| it.begin);
    let alike = alike(history, &open);
    Search { answered, open, alike, loss }.run(steps_max)
}

/// Groups open calls: two with the same guard and the same effect are alike, also if they store different
/// values that no call names. The earliest of them can be placed first.
fn alike(history: &[Operation], open: &[&Operation]) -> Vec<usize> {
    let named = |it: &Operation| match it.guard {
        Guard::Is(value) | Guard::IsNot(value) | Guard::Read(value) => Some(value),
        Guard::Any | Guard::Absent | Guard::Present | Guard::Fragile => None,
    };
    let named: BTreeSet<u64> = history.iter().filter_map(named).collect();
    let shape = |it: &Operation| match it.change {
        Change::Set { value, is_fragile } if !named.contains(&value) => (it.guard, None, is_fragile),
        change => (it.guard, Some(change), false),
    };
    let first = |at: usize| {
        let this = open.get(at).map(|it| shape(it));
        open.iter().position(|it| Some(shape(it)) == this).unwrap_or(at)
    };
    (0..open.len()).map(first).collect()
}

impl Search<'_> {
    fn run(&self, steps_max: usize) -> Result<(), Rejection> {
        let start = Point {
            register: Register::default(),
            first: 0,
            beyond: Vec::new(),
            opened: Vec::new(),
            before_open: None,
        };
        let mut deepest = (0, self.blocking(&start));
        let mut seen = BTreeSet::from([start.clone()]);
        let mut frames = vec![self.frame(start)];
        let mut steps = 0;
        while let Some(frame) = frames.last_mut() {
            if frame.point.first == self.answered.len() {
                return Ok(());
            }
            let Some(candidate) = frame.candidates.pop() else {
                frames.pop();
                continue;
            };
            steps += 1;
            if steps > steps_max {
                return Err(Rejection::Undecided);
            }
            let Some(next) = self.step(&frame.point, candidate) else { continue };
            if !seen.insert(next.clone()) {
                continue;
            }
            let placed = next.first + next.beyond.len();
            if placed > deepest.0 {
                deepest = (placed, self.blocking(&next));
            }
            frames.push(self.frame(next));
        }
        let (explained, operation) = deepest;
        Err(Rejection::Violation { operation, explained })
    }

    /// The call, by its position in the history, that must be explained next.
    fn blocking(&self, point: &Point) -> usize {
        let rest = self.rest(point);
        rest.min_by_key(|(_, it)| it.end).and_then(|(at, _)| self.answered.get(at)).map_or(0, |it| it.0)
    }

    /// The answered calls that are not placed, in the order of their begins.
    fn rest(&self, point: &Point) -> impl Iterator<Item = (usize, &Operation)> {
        let behind = self.answered.iter().enumerate().skip(point.first);
        behind
            .filter(|(at, _)| point.beyond.binary_search(at).is_err())
            .map(|(at, (_, operation))| (at, *operation))
    }

    /// The calls that can be next: those that began before the earliest end of all that are not placed.
    fn frame(&self, point: Point) -> Frame {
        let mut horizon = u64::MAX;
        let mut candidates = Vec::new();
        for (at, operation) in self.rest(&point) {
            if operation.begin > horizon {
                break;
            }
            horizon = horizon.min(operation.end.unwrap_or(u64::MAX));
            candidates.push((operation.end, Candidate::Answered(at)));
        }
        // A call that began before it may have ended before the last ones.
        candidates.retain(|(_, it)| match it {
            Candidate::Answered(at) => self.answered.get(*at).is_some_and(|it| it.1.begin <= horizon),
            Candidate::Open(_) => true,
        });
        // Tried from the end: answered calls first, in the order of their ends.
        candidates.sort_by_key(|it| std::cmp::Reverse(it.0));
        let began = self.open.iter().enumerate().take_while(|(_, it)| it.begin <= horizon);
        let mut groups = BTreeSet::new();
        let open = began.map(|(at, _)| at).filter(|at| point.opened.binary_search(at).is_err());
        let open = open.filter(|at| groups.insert(self.alike.get(*at)));
        let candidates = open.map(Candidate::Open).chain(candidates.into_iter().map(|it| it.1));
        let mut candidates: Vec<_> = candidates.filter(|it| self.needs_open(&point, *it)).collect();
        // An answered read that is right now can be placed at once: all others can follow it as before.
        let is_right = |it: &Candidate| {
            let read = self.operation(*it).filter(|it| it.change == Change::Keep);
            let next = read.and_then(|it| point.register.apply(it, self.loss));
            matches!(it, Candidate::Answered(_)) && next.as_ref() == Some(&point.register)
        };
        if let Some(read) = candidates.iter().copied().find(is_right) {
            candidates = vec![read];
        }
        Frame { point, candidates }
    }

    fn operation(&self, candidate: Candidate) -> Option<&Operation> {
        match candidate {
            Candidate::Answered(at) => self.answered.get(at).map(|it| it.1),
            Candidate::Open(at) => self.open.get(at).copied(),
        }
    }

    /// Whether the call needs the open call before it, if there is one.
    fn needs_open(&self, point: &Point, candidate: Candidate) -> bool {
        let (Some(before), Some(call)) = (&point.before_open, self.operation(candidate)) else { return true };
        let Some(without) = before.apply(call, self.loss) else { return true };
        if matches!(candidate, Candidate::Open(_)) && self.open.len() > OPEN_EXACT_MAX {
            return false;
        }
        // A call that changes nothing, with the open one or without it, can come before it.
        let with = point.register.apply(call, self.loss);
        with.is_some_and(|with| with != without && (with != point.register || without != *before))
    }

    /// The point after a call; `None` if the call cannot be next.
    fn step(&self, point: &Point, candidate: Candidate) -> Option<Point> {
        let register = point.register.apply(self.operation(candidate)?, self.loss)?;
        let mut next = Point { register, before_open: None, ..point.clone() };
        match candidate {
            Candidate::Answered(at) => {
                insert(&mut next.beyond, at);
                let placed = (next.first..).zip(&next.beyond).take_while(|(at, it)| at == *it).count();
                next.beyond.drain(..placed);
                next.first += placed;
            }
            Candidate::Open(at) => {
                insert(&mut next.opened, at);
                next.before_open = Some(point.register.clone());
            }
        }
        Some(next)
    }
}

fn insert(sorted: &mut Vec<usize>, item: usize) {
    if let Err(at) = sorted.binary_search(&item) {
        sorted.insert(at, item);
    }
}

#[cfg(test)]
mod tests;
