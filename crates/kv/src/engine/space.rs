//! Namespaces: defined, redefined, cleared; and pages that are lost.
//!
//! Pages under a root that is gone cannot be found from that moment on, however many they are: the root's id
//! is a part of every lookup. They are removed step by step.

use std::collections::{BTreeMap, BTreeSet};

use super::requests::Requests;
use super::{
    ChainHash, Engine, LiveOp, Medium, OpId, OpKind, Order, ReqId, RootId, Slot, SpaceId, State, Tick, Tier,
    policy,
};
use crate::cell::{CellId, Stored};
use crate::config::Config;
use crate::hash::Namespace;
use crate::inventory::Inventory;
use crate::message::RetractReason;
use crate::sabotage::Sabotage;

/// A namespace that the store is to delete. Until it has, the engine neither probes nor writes under that
/// root, also if the namespace was defined again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Clearing {
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

/// The namespaces, and those that are being deleted.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Spaces {
    spaces: BTreeMap<SpaceId, Space>,
    /// Namespaces that the store is to delete, by the root of their keys.
    clearing: BTreeMap<ChainHash, Clearing>,
}

impl Spaces {
    pub(super) fn find(&self, id: SpaceId) -> Option<&Space> {
        self.spaces.get(&id)
    }

    /// Defines a namespace. Returns what it was before.
    fn set(&mut self, id: SpaceId, space: Space) -> Option<Space> {
        self.spaces.insert(id, space)
    }

    /// The namespace of a root, unless it has another one by now.
    pub(super) fn of_root(&self, inventory: &Inventory, root: RootId) -> Option<(SpaceId, ChainHash)> {
        let id = inventory.space_of(root)?;
        self.spaces.get(&id).filter(|it| it.root == root).map(|it| (id, it.root_hash))
    }

    /// The store is to delete a namespace. If it is cleared again before the store has answered, one operation
    /// is enough.
    fn clear(&mut self, space: SpaceId, root: ChainHash, now: Tick) {
        let clearing = Clearing { space, at: now, failures: 0, told: None };
        self.clearing.entry(root).or_insert(clearing);
    }

    pub(super) fn is_clearing(&self, root: ChainHash) -> bool {
        self.clearing.contains_key(&root)
    }

    /// The roots whose deletion is to be issued.
    fn due(&self, now: Tick) -> Vec<ChainHash> {
        let is_due = |it: &Clearing| it.told.is_none() && it.at <= now;
        self.clearing.iter().filter(|(_, it)| is_due(it)).map(|(root, _)| *root).collect()
    }

    /// The deletion of a root is issued.
    fn start_drop(&mut self, root: ChainHash, op: OpId) -> Option<(SpaceId, RootId)> {
        let clearing = self.clearing.get_mut(&root)?;
        clearing.told = Some(op);
        let space = clearing.space;
        self.spaces.get(&space).map(|it| (space, it.root))
    }

    /// The store has deleted a namespace, or is asked again, with exponential backoff. The engine never gives
    /// up: pages that were cleared would be found again.
    pub(super) fn dropped(&mut self, op: &LiveOp, is_done: bool, now: Tick, config: &Config) {
        let (first, most) = (config.hint_patience, config.op_patience);
        let Some(clearing) = self.clearing.get_mut(&op.root_hash).filter(|it| it.told == Some(op.id)) else {
            return;
        };
        if is_done {
            self.clearing.remove(&op.root_hash);
            return;
        }
        clearing.failures = clearing.failures.saturating_add(1);
        let pause = policy::pause_after(clearing.failures, first, most);
        (clearing.told, clearing.at) = (None, now.saturating_add(pause));
    }

    /// When the store is asked again, if that depends on time.
    pub(super) fn next_drop(&self, now: Tick) -> Option<Tick> {
        let waits = |it: &&Clearing| it.told.is_none() && it.at > now;
        self.clearing.values().filter(waits).map(|it| it.at).min()
    }
}

impl Engine {
    pub(super) fn define(&mut self, id: SpaceId, namespace: &Namespace) {
        let root_hash = namespace.root_with(self.config.page_tokens, self.config.sabotage);
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
        if !self.config.sabotage.clears_namespaces() {
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
            let deadline = self.now + self.config.op_patience;
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
                    for id in holders(&self.requests, &cells, self.config.sabotage) {
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
fn holders(requests: &Requests, cells: &BTreeSet<CellId>, sabotage: Sabotage) -> Vec<ReqId> {
    let holds = |slot: &Slot| matches!(slot, Slot::Shared(id, _) if cells.contains(id));
    let holders = requests.iter().filter(|(_, it)| it.state.is_running() && it.slots.iter().any(holds));
    let holders = holders.filter(|(_, it)| sabotage.learns_of_loss(it.state == State::Decoding));
    holders.map(|(id, _)| *id).collect()
}
