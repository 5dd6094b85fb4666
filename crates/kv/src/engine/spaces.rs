//! The namespaces of the engine, and those that the store is to delete.

use std::collections::BTreeMap;

use super::{ChainHash, LiveOp, OpId, RootId, SpaceId, Tick, policy};
use crate::config::Config;
use crate::inventory::Inventory;

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
    pub(super) fn set(&mut self, id: SpaceId, space: Space) -> Option<Space> {
        self.spaces.insert(id, space)
    }

    /// The namespace of a root, unless it has another one by now.
    pub(super) fn of_root(&self, inventory: &Inventory, root: RootId) -> Option<(SpaceId, ChainHash)> {
        let id = inventory.roots.space_of(root)?;
        self.spaces.get(&id).filter(|it| it.root == root).map(|it| (id, it.root_hash))
    }

    /// The store is to delete a namespace. If it is cleared again before the store has answered, one
    /// operation is enough.
    pub(super) fn clear(&mut self, space: SpaceId, root: ChainHash, now: Tick) {
        let clearing = Clearing { space, at: now, failures: 0, told: None };
        self.clearing.entry(root).or_insert(clearing);
    }

    pub(super) fn is_clearing(&self, root: ChainHash) -> bool {
        self.clearing.contains_key(&root)
    }

    /// The roots whose deletion is to be issued.
    pub(super) fn due(&self, now: Tick) -> Vec<ChainHash> {
        let is_due = |it: &Clearing| it.told.is_none() && it.at <= now;
        self.clearing.iter().filter(|(_, it)| is_due(it)).map(|(root, _)| *root).collect()
    }

    /// The deletion of a root is issued.
    pub(super) fn start_drop(&mut self, root: ChainHash, op: OpId) -> Option<(SpaceId, RootId)> {
        let clearing = self.clearing.get_mut(&root)?;
        clearing.told = Some(op);
        let space = clearing.space;
        self.spaces.get(&space).map(|it| (space, it.root))
    }

    /// The store has deleted a namespace, or is asked again, with exponential backoff. The engine never gives
    /// up: pages that were cleared would be found again.
    pub(super) fn dropped(&mut self, op: &LiveOp, is_done: bool, now: Tick, config: &Config) {
        let (first, most) = (config.hint_interval, config.op_timeout);
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
