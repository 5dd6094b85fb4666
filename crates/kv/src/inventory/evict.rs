//! Who leaves a tier first: a line of the copies that may leave, kept in the order of the policy.

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashSet;

use super::cell::{Cell, CellId};
use crate::arena::Arena;
use crate::fold::FoldBuilder;
use crate::hash::ChainHash;
use crate::message::Tier;
use crate::policy::{Eviction, score};
use crate::sabotage::{Sabotage, sabotaged};

/// Under S3-FIFO, new copies may have this part of a tier.
const SMALL_PART: usize = 10;

/// Among copies of one score: the deeper page first, then whoever.
type Place = (u32, CellId);

/// Copies in the order in which they leave: by score, then by place.
///
/// What was used together has one score, comes one page after the other, and is taken out again from one of
/// the ends. So what a copy costs here does not grow with their number: only that of scores, which is the
/// number of requests that left something, is searched.
#[derive(Clone, Debug, Default)]
struct Line {
    scores: BTreeMap<u64, VecDeque<Place>>,
    count: usize,
}

impl Line {
    fn insert(&mut self, score: u64, place: Place) {
        self.count += 1;
        let places = self.scores.entry(score).or_default();
        if places.front().is_none_or(|first| place < *first) {
            places.push_front(place);
        } else {
            let at = places.binary_search(&place).unwrap_or_else(|at| at);
            places.insert(at, place);
        }
    }

    fn remove(&mut self, score: u64, place: Place) -> bool {
        let Some(places) = self.scores.get_mut(&score) else { return false };
        if places.back() == Some(&place) {
            places.pop_back();
        } else {
            let Ok(at) = places.binary_search(&place) else { return false };
            places.remove(at);
        }
        self.count -= 1;
        if places.is_empty() {
            self.scores.remove(&score);
        }
        true
    }

    fn pop(&mut self) -> Option<(u64, CellId)> {
        let mut first = self.scores.first_entry()?;
        let score = *first.key();
        let (_, id) = first.get_mut().pop_front()?;
        self.count -= 1;
        if first.get().is_empty() {
            first.remove();
        }
        Some((score, id))
    }

    fn iter(&self) -> impl Iterator<Item = CellId> {
        self.scores.values().flatten().map(|(_, id)| *id)
    }
}

/// The copies of a tier that may leave, in the order in which they would.
#[derive(Clone, Debug)]
pub(crate) struct Evictor {
    tier: Tier,
    policy: Eviction,
    capacity: usize,
    /// All of them; under S3-FIFO those that were used while they were new.
    main: Line,
    small: Line,
    /// What left while it was new, as far back as the tier is large.
    ghosts: VecDeque<ChainHash>,
    is_ghost: HashSet<ChainHash, FoldBuilder>,
    floor: u64,
    /// Counts uses: what comes or stays from now on comes behind what was there before.
    turns: u64,
    sabotage: Sabotage,
    rank: u32,
}

impl Evictor {
    pub(crate) fn new(tier: Tier, policy: Eviction, capacity: u32, sabotage: Sabotage, rank: u32) -> Self {
        Self {
            tier,
            policy,
            capacity: capacity as usize,
            main: Line::default(),
            small: Line::default(),
            ghosts: VecDeque::new(),
            is_ghost: HashSet::default(),
            floor: 0,
            turns: 0,
            sabotage,
            rank,
        }
    }

    fn place(&self, cell: &Cell, id: CellId) -> Place {
        let position =
            if sabotaged!(self.sabotage, RankLocalTies) && self.rank > 0 { 0 } else { cell.position };
        (u32::MAX - position, id)
    }

    /// A copy has come: it may have been here before.
    pub(crate) fn came(&mut self, cell: &mut Cell, turn: u64) {
        self.turns = turn;
        let is_main = self.policy != Eviction::S3Fifo || self.is_ghost.contains(&cell.hash);
        let position = cell.position;
        let copy = cell.copy_mut(self.tier);
        copy.is_main = is_main;
        copy.facts.came = self.turns;
        copy.facts.uses = 0;
        copy.facts.position = position;
    }

    /// It may leave from now on.
    pub(crate) fn enter(&mut self, cell: &mut Cell, id: CellId) {
        let copy = cell.copy(self.tier);
        let score = score(self.policy, &copy.facts, self.floor);
        let place = self.place(cell, id);
        let line = if copy.is_main { &mut self.main } else { &mut self.small };
        line.insert(score, place);
        cell.copy_mut(self.tier).queued = Some(score);
    }

    /// It may not leave any more.
    pub(crate) fn withdraw(&mut self, cell: &mut Cell, id: CellId) {
        let Some(score) = cell.copy_mut(self.tier).queued.take() else { return };
        let place = self.place(cell, id);
        let was_there = self.main.remove(score, place) || self.small.remove(score, place);
        assert!(was_there, "{id:?} is not in the line of {:?}", self.tier);
    }

    /// Who leaves next, which is not in the line any more.
    pub(crate) fn next(&mut self, cells: &mut Arena<Cell>) -> Option<CellId> {
        loop {
            let from_small = self.small.count * SMALL_PART > self.capacity || self.main.count == 0;
            let line = if from_small { &mut self.small } else { &mut self.main };
            let (score, id) = line.pop()?;
            let cell = cells.get_mut(id.0);
            let copy = cell.copy_mut(self.tier);
            copy.queued = None;
            if self.policy == Eviction::S3Fifo && copy.facts.uses > 0 {
                copy.facts.uses = if copy.is_main { copy.facts.uses - 1 } else { 0 };
                copy.facts.came = self.turns;
                copy.is_main = true;
                self.enter(cell, id);
                continue;
            }
            self.floor = self.floor.max(if self.policy == Eviction::Lru { 0 } else { score });
            return Some(id);
        }
    }

    /// Those that would leave next, without a change.
    pub(crate) fn peek(&self) -> impl Iterator<Item = CellId> {
        self.small.iter().chain(self.main.iter())
    }

    /// A copy has left.
    pub(crate) fn left(&mut self, cell: &Cell) {
        if self.policy != Eviction::S3Fifo || cell.copy(self.tier).is_main {
            return;
        }
        if self.is_ghost.insert(cell.hash) {
            self.ghosts.push_back(cell.hash);
        }
        if self.ghosts.len() > self.capacity
            && let Some(old) = self.ghosts.pop_front()
        {
            self.is_ghost.remove(&old);
        }
    }

    /// For [`crate::Engine::check`]: everyone in the line.
    pub(crate) fn len(&self) -> usize {
        self.main.count + self.small.count
    }
}
