//! The eviction queue of a tier: copies that may leave, in the order of the policy.

use std::collections::{BTreeMap, VecDeque};

use hashbrown::HashSet;

use crate::arena::Arena;
use crate::cell::{Cell, CellId};
use crate::fold::FoldBuilder;
use crate::hash::ChainHash;
use crate::message::Tier;
use crate::mutant::Mutant;
use crate::policy::{Eviction, score};

/// Under S3-FIFO, the small queue has one part in this many of a tier.
const SMALL_PART: usize = 10;

/// Orders copies of one score: the deeper page first, then by id.
type Tie = (u32, CellId);

/// Copies in the order in which they leave: by score, then by tie.
///
/// Copies that were used together have one score, are inserted one after the other, and are removed from one
/// of the ends. So the cost of a copy does not grow with their number: only the scores are searched, of which
/// there are as many as requests that left copies.
#[derive(Clone, Debug, Default)]
struct Queue {
    scores: BTreeMap<u64, VecDeque<Tie>>,
    count: usize,
}

impl Queue {
    fn insert(&mut self, score: u64, tie: Tie) {
        self.count += 1;
        let ties = self.scores.entry(score).or_default();
        if ties.front().is_none_or(|first| tie < *first) {
            ties.push_front(tie);
        } else {
            let at = ties.binary_search(&tie).unwrap_or_else(|at| at);
            ties.insert(at, tie);
        }
    }

    fn remove(&mut self, score: u64, tie: Tie) -> bool {
        let Some(ties) = self.scores.get_mut(&score) else { return false };
        if ties.back() == Some(&tie) {
            ties.pop_back();
        } else {
            let Ok(at) = ties.binary_search(&tie) else { return false };
            ties.remove(at);
        }
        self.count -= 1;
        if ties.is_empty() {
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

/// The copies of a tier that may leave, in order.
#[derive(Clone, Debug)]
pub(crate) struct Evictor {
    tier: Tier,
    policy: Eviction,
    capacity: usize,
    /// All copies; under S3-FIFO those that were used in the small queue.
    main: Queue,
    small: Queue,
    /// The ghost queue of S3-FIFO: hashes that left from the small queue, as many as the tier has pages.
    ghosts: VecDeque<ChainHash>,
    is_ghost: HashSet<ChainHash, FoldBuilder>,
    floor: u64,
    /// The number of the last use, which orders copies that are inserted.
    turns: u64,
    mutant: Mutant,
    rank: u32,
}

impl Evictor {
    pub(crate) fn new(tier: Tier, policy: Eviction, capacity: u32, mutant: Mutant, rank: u32) -> Self {
        Self {
            tier,
            policy,
            capacity: capacity as usize,
            main: Queue::default(),
            small: Queue::default(),
            ghosts: VecDeque::new(),
            is_ghost: HashSet::default(),
            floor: 0,
            turns: 0,
            mutant,
            rank,
        }
    }

    fn tie(&self, cell: &Cell, id: CellId) -> Tie {
        (u32::MAX - self.mutant.tie_break(cell.position, self.rank), id)
    }

    /// A copy was made. The ghost queue knows whether it was here before.
    pub(crate) fn made(&mut self, cell: &mut Cell, turn: u64) {
        self.turns = turn;
        let is_main = self.policy != Eviction::S3Fifo || self.is_ghost.contains(&cell.hash);
        let position = cell.position;
        let copy = cell.copy_mut(self.tier);
        copy.is_main = is_main;
        copy.facts.came = self.turns;
        copy.facts.uses = 0;
        copy.facts.position = position;
    }

    /// Adds a copy to the queue.
    pub(crate) fn enter(&mut self, cell: &mut Cell, id: CellId) {
        let copy = cell.copy(self.tier);
        let score = score(self.policy, &copy.facts, self.floor);
        let tie = self.tie(cell, id);
        let queue = if copy.is_main { &mut self.main } else { &mut self.small };
        queue.insert(score, tie);
        cell.copy_mut(self.tier).queued = Some(score);
    }

    /// Removes a copy from the queue.
    pub(crate) fn withdraw(&mut self, cell: &mut Cell, id: CellId) {
        let Some(score) = cell.copy_mut(self.tier).queued.take() else { return };
        let tie = self.tie(cell, id);
        let was_there = self.main.remove(score, tie) || self.small.remove(score, tie);
        assert!(was_there, "{id:?} is not in the queue of {:?}", self.tier);
    }

    /// Removes the copy that leaves next from the queue.
    pub(crate) fn next(&mut self, cells: &mut Arena<Cell>) -> Option<CellId> {
        loop {
            let from_small = self.small.count * SMALL_PART > self.capacity || self.main.count == 0;
            let queue = if from_small { &mut self.small } else { &mut self.main };
            let (score, id) = queue.pop()?;
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

    /// The copies in the order in which they would leave.
    pub(crate) fn peek(&self) -> impl Iterator<Item = CellId> {
        self.small.iter().chain(self.main.iter())
    }

    /// A copy was evicted.
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

    /// Number of copies in the queue, for [`crate::Engine::check`].
    pub(crate) fn len(&self) -> usize {
        self.main.count + self.small.count
    }
}
