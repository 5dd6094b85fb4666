//! Namespaces: defined, redefined, cleared; and pages that are lost.
//!
//! Pages under a root that is gone cannot be found from that moment on, however many they are: the root's id
//! is a part of every lookup. They are removed step by step.

use std::collections::BTreeSet;

use super::requests::Requests;
use super::spaces::Space;
use super::{ChainHash, Engine, LiveOp, Medium, OpKind, Order, ReqId, Slot, SpaceId, State, Tier};
use crate::cell::{CellId, Stored};
use crate::hash::Namespace;
use crate::message::RetractReason;
use crate::mutant::Mutant;

impl Engine {
    pub(super) fn define(&mut self, id: SpaceId, namespace: &Namespace) {
        let root_hash = namespace.root_with(self.config.page_tokens, self.config.mutant);
        if self.spaces.find(id).is_some_and(|space| space.root_hash == root_hash) {
            return;
        }
        let root = self.inventory.add_root(id);
        if let Some(old) = self.spaces.set(id, Space { root, root_hash }) {
            self.inventory.retire_root(old.root);
            self.leave_root(id, Some(RetractReason::Redefined));
        }
    }

    pub(super) fn clear(&mut self, id: SpaceId) {
        let Some(old) = self.spaces.find(id).cloned() else {
            self.stats.ignored += 1;
            return;
        };
        if !self.config.mutant.clears_namespaces() {
            return;
        }
        self.inventory.retire_root(old.root);
        let root = self.inventory.add_root(id);
        let root_hash = old.root_hash;
        self.spaces.set(id, Space { root, ..old });
        if self.config.store.is_some() {
            self.spaces.clear(id, root_hash, self.now);
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

    /// Asks the store to delete cleared namespaces, when no backup of them is in flight any more.
    pub(super) fn pump_clears(&mut self) {
        for root_hash in self.spaces.due(self.now) {
            let is_written = |op: &LiveOp| op.kind == OpKind::Backup && op.root_hash == root_hash;
            if self.ledger.iter().any(is_written) {
                continue;
            }
            let id = self.ledger.next_id();
            let Some((space, root)) = self.spaces.start_drop(root_hash, id) else { continue };
            let deadline = self.now + self.config.op_timeout;
            let (kind, items, waiter) = (OpKind::Drop, vec![], None);
            self.issue(Order { id, kind, space, root, root_hash, items, deadline, waiter });
        }
    }

    /// These copies are lost. Requests that use them are retracted, in every state (L4); operations that read
    /// them no longer count (V2).
    pub(super) fn vanished(&mut self, space: SpaceId, medium: Medium, hashes: &[ChainHash]) {
        let Some(root) = self.spaces.find(space).map(|it| it.root) else {
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
                    for id in holders(&self.requests, &cells, self.config.mutant) {
                        self.take_off_device(id, Some(RetractReason::Vanished));
                    }
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
}

/// The requests on the device that use some of these pages.
fn holders(requests: &Requests, cells: &BTreeSet<CellId>, mutant: Mutant) -> Vec<ReqId> {
    let holds = |slot: &Slot| matches!(slot, Slot::Shared(id, _) if cells.contains(id));
    let holders = requests.iter().filter(|(_, it)| it.state.is_running() && it.slots.iter().any(holds));
    let holders = holders.filter(|(_, it)| mutant.learns_of_loss(it.state == State::Decoding));
    holders.map(|(id, _)| *id).collect()
}
