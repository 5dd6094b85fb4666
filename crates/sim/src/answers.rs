//! The answers that clients got in worlds with two masters, and whether some order of the calls explains them
//! (`history`).
//!
//! Nothing is evicted or lost in these worlds, so every object must be found until it is deleted or replaced.

use std::collections::BTreeMap;

use tiffin_history::{Change, Guard, Loss, Operation, Rejection};
use tiffin_session::{GetOutcome, PutOutcome};
use tiffin_types::message::{DeleteOutcome, Found, OnExists};

use crate::{client::SessionId, coverage::Point, keyspace::Name, memory::ValueId, world::World};

/// The calls of all clients.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    clock: u64,
    calls: BTreeMap<Name, Vec<Operation>>,
    /// Where the put of each value is.
    puts: BTreeMap<ValueId, (Name, usize)>,
    /// Where the delete of each session is.
    deletes: BTreeMap<(usize, u32, SessionId), (Name, usize)>,
    /// When each get began.
    gets: BTreeMap<(usize, u32, SessionId), u64>,
    /// Something was evicted, or a node was lost.
    pub(crate) may_lose: bool,
}

impl Answers {
    fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A call begins: without an answer it stays open.
    fn begin(&mut self, name: Name, guard: Guard, change: Change) -> (Name, usize) {
        let begin = self.now();
        let calls = self.calls.entry(name).or_default();
        calls.push(Operation::open(begin, guard, change));
        (name, calls.len() - 1)
    }

    fn end(&mut self, (name, at): (Name, usize), guard: Guard, change: Change, is_confirmed: bool) {
        let end = Some(self.now());
        let call = self.calls.get_mut(&name).and_then(|it| it.get_mut(at));
        call.into_iter().for_each(|it| *it = Operation { begin: it.begin, end, guard, change, is_confirmed });
    }

    /// A put begins.
    pub(crate) fn put(&mut self, value: ValueId, name: Name, on_exists: OnExists) {
        let at = self.begin(name, condition(on_exists), set(value));
        self.puts.insert(value, at);
    }

    /// A put has ended.
    pub(crate) fn put_ended(&mut self, value: ValueId, outcome: &PutOutcome) {
        let Some(&at) = self.puts.get(&value) else { return };
        match outcome {
            PutOutcome::Stored { unconfirmed, .. } => {
                let call = self.calls.get(&at.0).and_then(|it| it.get(at.1));
                let guard = call.map_or(Guard::Any, |it| it.guard);
                self.end(at, guard, set(value), unconfirmed.is_empty());
            }
            PutOutcome::Exists(_) => self.end(at, Guard::Present, Change::Keep, true),
            // The others may have had an effect, or not.
            _ => (),
        }
    }

    /// A delete begins.
    pub(crate) fn delete(&mut self, session: (usize, u32, SessionId), name: Name) {
        let at = self.begin(name, Guard::Any, Change::Clear);
        self.deletes.insert(session, at);
    }

    /// A delete was answered.
    pub(crate) fn deleted(&mut self, session: (usize, u32, SessionId), outcome: &DeleteOutcome) {
        let Some(at) = self.deletes.remove(&session) else { return };
        match outcome {
            DeleteOutcome::Deleted => self.end(at, Guard::Any, Change::Clear, true),
            DeleteOutcome::Absent => self.end(at, Guard::Absent, Change::Clear, true),
            DeleteOutcome::Unconfirmed(_) => self.end(at, Guard::Any, Change::Clear, false),
            DeleteOutcome::Leased => self.end(at, Guard::Any, Change::Keep, true),
        }
    }

    /// A get begins.
    pub(crate) fn get(&mut self, session: (usize, u32, SessionId)) {
        let now = self.now();
        self.gets.insert(session, now);
    }
}

fn condition(on_exists: OnExists) -> Guard {
    match on_exists {
        OnExists::Keep => Guard::Absent,
        // Nothing is pinned in these worlds.
        OnExists::Replace | OnExists::KeepHardPinned | OnExists::KeepPinned => Guard::Any,
    }
}

fn set(value: ValueId) -> Change {
    Change::Set { value: u64::from(value.0), is_fragile: false }
}

impl World {
    /// A get has ended. If the master has named the object, that is what the name means at that moment; one
    /// from a cached location may be an object whose removal is not confirmed.
    pub(crate) fn got_answer(
        &mut self,
        session: (usize, u32, SessionId),
        name: Name,
        outcome: &GetOutcome,
        is_located: bool,
    ) {
        let guard = match outcome {
            GetOutcome::Read(found) => match self.value_of(found) {
                Some(value) if is_located => Guard::Is(value),
                Some(value) => Guard::Read(value),
                None => return,
            },
            GetOutcome::Absent => Guard::Absent,
            _ => return,
        };
        let Some(mut begin) = self.answers.gets.get(&session).copied() else { return };
        // A cached location may be read until the change of its name is answered, also after another client
        // has seen the change: such a read counts as one before it.
        if !is_located && let Some(calls) = self.answers.calls.get(&name) {
            let under_way = |it: &&Operation| it.change != Change::Keep && it.end.is_none_or(|it| it > begin);
            begin = calls.iter().filter(under_way).map(|it| it.begin).fold(begin, u64::min);
        }
        let end = self.answers.now();
        let call = Operation::answered(begin, end, guard, Change::Keep);
        self.answers.calls.entry(name).or_default().push(call);
    }

    /// What a name means when all is calm.
    pub(crate) fn audited(&mut self, name: Name, found: Option<&Found>) {
        let guard = match found.map(|it| self.value_of(it)) {
            Some(Some(value)) => Guard::Is(value),
            Some(None) => return,
            None => Guard::Absent,
        };
        if self.has_standby() {
            let (begin, end) = (self.answers.now(), self.answers.now());
            let call = Operation::answered(begin, end, guard, Change::Keep);
            self.answers.calls.entry(name).or_default().push(call);
        }
    }

    fn value_of(&self, found: &Found) -> Option<u64> {
        let mut places = found.replicas.iter().map(|it| (it.segment, it.slot_ref()));
        places.find_map(|it| self.oracle.written.get(&it)).map(|it| u64::from(it.0))
    }

    /// Whether the answers have an explanation.
    pub(crate) fn check_answers(&mut self) {
        let loss = if self.answers.may_lose { Loss::Anytime } else { Loss::Never };
        let calls = std::mem::take(&mut self.answers.calls);
        for (name, history) in &calls {
            let rejection = match tiffin_history::check(history, loss) {
                Ok(()) => {
                    self.coverage.hit(Point::CheckedHistory);
                    continue;
                }
                // Too many calls have no answer, so that the search does not end.
                Err(Rejection::Undecided) => continue,
                Err(rejection) => rejection,
            };
            self.oracle.fail("history", || format!("{name:?}: {rejection}: {history:?}"));
        }
    }
}
