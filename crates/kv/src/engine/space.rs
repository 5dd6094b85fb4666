//! Namespaces: defined, redefined, cleared; and pages that are lost.
//!
//! Pages under a root that is gone cannot be found from that moment on, however many they are: the root's id
//! is a part of every lookup. They are removed step by step.

use std::collections::BTreeSet;

use super::{
    ChainHash, Engine, LiveOp, Medium, OpId, OpKind, Order, ReqId, RootId, SpaceId, State, Tick, Tier, policy,
};
use crate::cell::{CellId, Stored};
use crate::hash::Namespace;
use crate::message::RetractReason;

/// A namespace that the store is to delete. Until it has, the engine neither probes nor writes under that
/// root, also if the namespace was defined again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Clearing {
    space: SpaceId,
    /// When to issue the operation, once no backup under the root is in flight.
    at: Tick,
    /// Number of failures in a row.
    failures: u32,
    /// The operation in flight.
    told: Option<OpId>,
}

/// A namespace.
#[derive(Clone, Debug, Hash)]
pub(super) struct Space {
    pub(super) root: RootId,
    pub(super) root_hash: ChainHash,
}

impl Engine {
    pub(super) fn define(&mut self, id: SpaceId, namespace: &Namespace) {
        let root_hash = namespace.root_with(self.config.page_tokens, self.config.sabotage);
        if self.spaces.get(&id).is_some_and(|space| space.root_hash == root_hash) {
            return;
        }
        let root = self.inventory.add_root(id);
        if let Some(old) = self.spaces.insert(id, Space { root, root_hash }) {
            self.inventory.retire_root(old.root);
            self.leave_root(id, Some(RetractReason::Redefined));
        }
    }

    pub(super) fn clear(&mut self, id: SpaceId) {
        let Some(old) = self.spaces.get(&id).cloned() else {
            self.stats.ignored += 1;
            return;
        };
        if !self.config.sabotage.clears_namespaces() {
            return;
        }
        self.inventory.retire_root(old.root);
        let root = self.inventory.add_root(id);
        self.spaces.insert(id, Space { root, ..old });
        if self.config.store.is_some() {
            // If it is cleared again before the store has answered, one operation is enough.
            let now = Clearing { space: id, at: self.now, failures: 0, told: None };
            self.clearing.entry(old.root_hash).or_insert(now);
        }
        self.leave_root(id, None);
    }

    /// Requests stop waiting for pages of the old root. Those on the device continue and publish nothing
    /// more; with new weights they are retracted.
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
                _ if state.is_running() && retracts.is_some() => self.take_off_device(id, retracts),
                _ => {}
            }
        }
    }

    pub(super) fn space_of(&self, root: RootId) -> Option<(SpaceId, ChainHash)> {
        let id = self.inventory.space_of(root)?;
        self.spaces.get(&id).filter(|it| it.root == root).map(|it| (id, it.root_hash))
    }

    /// Asks the store to delete cleared namespaces, when no backup of them is in flight any more.
    pub(super) fn pump_clears(&mut self) {
        let is_due = |it: &Clearing| it.told.is_none() && it.at <= self.now;
        let due: Vec<_> = self.clearing.iter().filter(|(_, it)| is_due(it)).map(|(root, _)| *root).collect();
        for root_hash in due {
            let is_written = |op: &LiveOp| op.kind == OpKind::Backup && op.root_hash == root_hash;
            if self.ledger.iter().any(is_written) {
                continue;
            }
            let id = self.ledger.next_id();
            let Some(clearing) = self.clearing.get_mut(&root_hash) else { continue };
            clearing.told = Some(id);
            let space = clearing.space;
            let Some(root) = self.spaces.get(&space).map(|it| it.root) else { continue };
            let deadline = self.now + self.config.op_patience;
            let (kind, items, waiter) = (OpKind::Drop, vec![], None);
            self.issue(Order { id, kind, space, root, root_hash, items, deadline, waiter });
        }
    }

    /// The store has deleted a namespace, or is asked again, with exponential backoff. The engine never gives
    /// up: pages that were cleared would be found again.
    pub(super) fn dropped(&mut self, op: &LiveOp, is_done: bool) {
        let (first, most) = (self.config.hint_patience, self.config.op_patience);
        let Some(clearing) = self.clearing.get_mut(&op.root_hash).filter(|it| it.told == Some(op.id)) else {
            return;
        };
        if is_done {
            self.clearing.remove(&op.root_hash);
            return;
        }
        clearing.failures = clearing.failures.saturating_add(1);
        let pause = policy::pause_after(clearing.failures, first, most);
        (clearing.told, clearing.at) = (None, self.now.saturating_add(pause));
    }

    /// When the store is asked again, if that depends on time.
    pub(super) fn next_drop(&self) -> Option<Tick> {
        let waits = |it: &&Clearing| it.told.is_none() && it.at > self.now;
        self.clearing.values().filter(waits).map(|it| it.at).min()
    }

    /// These copies are lost. Requests that use them are retracted, in every state (L4); operations that read
    /// them no longer count (V2).
    pub(super) fn vanished(&mut self, space: SpaceId, medium: Medium, hashes: &[ChainHash]) {
        let Some(root) = self.spaces.get(&space).map(|it| it.root) else {
            self.stats.ignored += 1;
            return;
        };
        let hashes: BTreeSet<_> = hashes.iter().copied().collect();
        let lost = |hash: &ChainHash| hashes.contains(hash);
        let cells: BTreeSet<_> =
            hashes.iter().filter_map(|hash| self.inventory.find_name(root, *hash)).collect();
        let reads = |kind| match medium {
            Medium::Store => kind == OpKind::Fetch || kind == OpKind::Probe,
            Medium::Tier(tier) => super::source_tier(kind) == Some(tier),
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

    fn retract_holders(&mut self, cells: &BTreeSet<CellId>) {
        let holds = |slot: &super::Slot| matches!(slot, super::Slot::Shared(id, _) if cells.contains(id));
        let holders: Vec<_> = self
            .requests
            .iter()
            .filter(|(_, it)| it.state.is_running() && it.slots.iter().any(holds))
            .filter(|(_, it)| self.config.sabotage.learns_of_loss(it.state == State::Decoding))
            .map(|(id, _)| *id)
            .collect();
        for id in holders {
            self.take_off_device(id, Some(RetractReason::Vanished));
        }
    }
}
