//! Namespaces: defined, defined anew, cleared; and pages that turn out to be lost.
//!
//! What is under a root that is gone cannot be found any more, from one moment to the next, however much it
//! is (the root's id is a part of every lookup). Its pages leave step by step.

use super::{
    ChainHash, Engine, LiveOp, Medium, OpKind, Order, ReqId, RootId, SpaceId, State, Tier, sabotaged,
};
use crate::hash::Namespace;
use crate::inventory::Stored;
use crate::message::RetractReason;

/// How far the store has forgotten what was cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Clearing {
    /// It has.
    No,
    /// It is to be told, once nothing of the old is on its way to it.
    Due,
    /// It was told.
    Told,
}

/// A namespace.
#[derive(Clone, Debug, Hash)]
pub(super) struct Space {
    pub(super) root: RootId,
    pub(super) root_hash: ChainHash,
    clearing: Clearing,
}

impl Space {
    /// Until the store has dropped what it had, nothing is asked of it or sent to it.
    pub(super) fn is_clearing(&self) -> bool {
        self.clearing != Clearing::No
    }
}

impl Engine {
    pub(super) fn define(&mut self, id: SpaceId, namespace: &Namespace) {
        let root_hash = namespace.root_with(self.config.page_tokens, self.config.sabotage);
        if self.spaces.get(&id).is_some_and(|space| space.root_hash == root_hash) {
            return;
        }
        let root = self.inventory.add_root(id);
        let clearing = Clearing::No;
        if let Some(old) = self.spaces.insert(id, Space { root, root_hash, clearing }) {
            self.inventory.retire_root(old.root);
            self.leave_root(id, Some(RetractReason::Redefined));
        }
    }

    pub(super) fn clear(&mut self, id: SpaceId) {
        let Some(old) = self.spaces.get(&id).map(|space| space.root) else {
            self.stats.ignored += 1;
            return;
        };
        if sabotaged!(self.config.sabotage, KeepCleared) {
            return;
        }
        self.inventory.retire_root(old);
        let root = self.inventory.add_root(id);
        let has_store = self.config.store.is_some();
        if let Some(space) = self.spaces.get_mut(&id) {
            space.root = root;
            space.clearing = if has_store { Clearing::Due } else { Clearing::No };
        }
        self.leave_root(id, None);
    }

    /// Whoever waits for something of the old root need not. Who computes goes on, and publishes nothing
    /// more; with other weights there is no going on.
    fn leave_root(&mut self, space: SpaceId, retracts: Option<RetractReason>) {
        let of: Vec<(ReqId, State)> = self
            .requests
            .iter()
            .filter(|(_, it)| it.space == space)
            .map(|(id, it)| (*id, it.state))
            .collect();
        for (id, state) in of {
            match state {
                State::Submitted | State::Prefetching => self.stop_prefetch(id, false),
                _ if state.is_running() && retracts.is_some() => self.unseat(id, retracts),
                _ => {}
            }
        }
    }

    pub(super) fn space_of(&self, root: RootId) -> Option<(SpaceId, ChainHash)> {
        self.spaces.iter().find(|(_, it)| it.root == root).map(|(id, it)| (*id, it.root_hash))
    }

    /// Tells the store to drop what was cleared, when no backup of it is under way any more.
    pub(super) fn pump_clears(&mut self) {
        let due: Vec<_> =
            self.spaces.iter().filter(|(_, it)| it.clearing == Clearing::Due).map(|(id, _)| *id).collect();
        for id in due {
            if self.ledger.iter().any(|op| op.kind == OpKind::Backup && op.space == id) {
                continue;
            }
            let Some(space) = self.spaces.get_mut(&id) else { continue };
            space.clearing = Clearing::Told;
            let (root, root_hash) = (space.root, space.root_hash);
            let op = self.ledger.next_id();
            let deadline = self.now + self.config.op_patience;
            let kind = OpKind::Drop;
            self.issue(Order {
                id: op,
                kind,
                space: id,
                root,
                root_hash,
                items: vec![],
                deadline,
                waiter: None,
            });
        }
    }

    /// The store has dropped it, or is to be told again. Cleared again meanwhile, it is told again as well.
    pub(super) fn dropped(&mut self, op: &LiveOp, is_done: bool) {
        if let Some(space) = self.spaces.get_mut(&op.space)
            && space.root == op.root
        {
            space.clearing = if is_done { Clearing::No } else { Clearing::Due };
        }
    }

    /// These copies are lost. Whoever counts on them is told, in whatever state (L4); what reads them brings
    /// nothing of them any more (V2).
    pub(super) fn vanished(&mut self, space: SpaceId, medium: Medium, hashes: &[ChainHash]) {
        let Some(root) = self.spaces.get(&space).map(|it| it.root) else {
            self.stats.ignored += 1;
            return;
        };
        let lost = |hash: &ChainHash| hashes.contains(hash);
        let cells: Vec<_> = self
            .inventory
            .cells()
            .filter(|(_, it)| it.root == root && lost(&it.hash))
            .map(|(id, _)| id)
            .collect();
        let reads = |kind| match medium {
            Medium::Store => kind == OpKind::Fetch || kind == OpKind::Probe,
            Medium::Tier(tier) => super::complete::source_tier(kind) == Some(tier),
        };
        for op in self.ledger.iter_mut().filter(|op| op.root == root && reads(op.kind)) {
            let first = (0..).zip(&op.items).find(|(_, item)| lost(&item.record.hash)).map(|(at, _)| at);
            op.cut = op.cut.min(first.unwrap_or(u32::MAX));
        }
        match medium {
            Medium::Store => {
                for id in &cells {
                    let cell = self.inventory.cell_mut(*id);
                    if cell.stored == Stored::Yes {
                        cell.stored = Stored::Unknown;
                    }
                }
            }
            Medium::Tier(tier) => {
                if tier == Tier::Device {
                    self.retract_holders(&cells);
                }
                cells
                    .iter()
                    .filter(|id| self.inventory.find(**id).is_some())
                    .copied()
                    .collect::<Vec<_>>()
                    .into_iter()
                    .for_each(|id| self.inventory.lose(id, tier));
            }
        }
    }

    fn retract_holders(&mut self, cells: &[crate::inventory::CellId]) {
        let holds = |slot: &super::Slot| matches!(slot, super::Slot::Shared(id, _) if cells.contains(id));
        let holders: Vec<_> = self
            .requests
            .iter()
            .filter(|(_, it)| it.state.is_running() && it.slots.iter().any(holds))
            .filter(|(_, it)| {
                !(sabotaged!(self.config.sabotage, ForgetDecodingRows) && it.state == State::Decoding)
            })
            .map(|(id, _)| *id)
            .collect();
        for id in holders {
            self.unseat(id, Some(RetractReason::Vanished));
        }
    }
}
