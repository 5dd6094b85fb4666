//! Who leaves a tier first: a line of the copies that may leave, kept in the order of the policy.

use std::collections::{BTreeSet, VecDeque};

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

/// Sooner ones first: the score, then the deeper page, then whoever.
type Turn = (u64, u32, CellId);

/// The copies of a tier that may leave, in the order in which they would.
#[derive(Clone, Debug)]
pub(crate) struct Evictor {
    tier: Tier,
    policy: Eviction,
    capacity: usize,
    /// All of them; under S3-FIFO those that were used while they were new.
    main: BTreeSet<Turn>,
    small: BTreeSet<Turn>,
    /// What left while it was new, as far back as the tier is large.
    ghosts: VecDeque<ChainHash>,
    is_ghost: HashSet<ChainHash, FoldBuilder>,
    floor: u64,
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
            main: BTreeSet::new(),
            small: BTreeSet::new(),
            ghosts: VecDeque::new(),
            is_ghost: HashSet::default(),
            floor: 0,
            turns: 0,
            sabotage,
            rank,
        }
    }

    fn turn(&self, score: u64, cell: &Cell, id: CellId) -> Turn {
        let position =
            if sabotaged!(self.sabotage, RankLocalTies) && self.rank > 0 { 0 } else { cell.position };
        (score, u32::MAX - position, id)
    }

    /// A copy has come: it may have been here before.
    pub(crate) fn came(&mut self, cell: &mut Cell) {
        self.turns += 1;
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
        let turn = self.turn(score, cell, id);
        let line = if copy.is_main { &mut self.main } else { &mut self.small };
        line.insert(turn);
        cell.copy_mut(self.tier).queued = Some(score);
    }

    /// It may not leave any more.
    pub(crate) fn withdraw(&mut self, cell: &mut Cell, id: CellId) {
        let Some(score) = cell.copy_mut(self.tier).queued.take() else { return };
        let turn = self.turn(score, cell, id);
        let was_there = self.main.remove(&turn) || self.small.remove(&turn);
        assert!(was_there, "{id:?} is not in the line of {:?}", self.tier);
    }

    /// Who leaves next, which is not in the line any more.
    pub(crate) fn next(&mut self, cells: &mut Arena<Cell>) -> Option<CellId> {
        loop {
            let from_small = self.small.len() * SMALL_PART > self.capacity || self.main.is_empty();
            let line = if from_small { &mut self.small } else { &mut self.main };
            let (score, _, id) = line.pop_first()?;
            let cell = cells.get_mut(id.0);
            let copy = cell.copy_mut(self.tier);
            copy.queued = None;
            if self.policy == Eviction::S3Fifo && copy.facts.uses > 0 {
                self.turns += 1;
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
        self.small.iter().chain(&self.main).map(|(_, _, id)| *id)
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
        self.main.len() + self.small.len()
    }
}
