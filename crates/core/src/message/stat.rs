//! What the master knows of the cluster, of its nodes and of its namespaces.

use super::{Demotion, NodeInfo, TierStat, Usage};

/// What the master knows of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Which life of the master this is.
    pub epoch: u64,
    /// Connected clients.
    pub clients: u64,
    /// The nodes, dead ones that may come back included.
    pub nodes: Vec<NodeStat>,
    /// The namespaces.
    pub namespaces: Vec<NamespaceStat>,
    /// Objects and bytes evicted since the master started.
    pub evicted_objects: u64,
    /// See [`Self::evicted_objects`].
    pub evicted_bytes: u64,
    /// Objects that a soft pin protects.
    pub soft_pinned: u64,
    /// How the disks are doing.
    pub tier: Box<TierStat>,
    /// Members that have not reported since the master started: answers that depend on them wait.
    pub unreported: Vec<String>,
}

/// One node, as the master sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeStat {
    /// How to reach it.
    pub info: NodeInfo,
    /// It answers.
    pub alive: bool,
    /// As it last said.
    pub usage: Usage,
    /// Retires that it must apply before it is readmitted.
    pub owed: u64,
    /// Which clients look at objects that are gone, as it last said: those that hold most of its room first.
    pub holders: Vec<Holder>,
}

/// One namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceStat {
    /// Its name.
    pub name: String,
    /// Objects in it.
    pub objects: u64,
    /// Their bytes, each object once.
    pub bytes: u64,
    /// What it holds of the nodes' memory, reservations included, each copy counted.
    pub used: u64,
    /// Of that, reserved by writers.
    pub granted: u64,
    /// What it may hold; none if it is not limited.
    pub quota: Option<u64>,
    /// Samples that wait to be consumed.
    pub samples: u64,
    /// Of these, how many somebody has leased.
    pub samples_leased: u64,
    /// How long the oldest of them has waited, in milliseconds.
    pub sample_age_ms: u64,
    /// The bytes of all samples, each once.
    pub sample_bytes: u64,
    /// Of these, the bytes of those that somebody has leased.
    pub sample_bytes_leased: u64,
    /// How long the oldest that somebody has leased is there, in milliseconds.
    pub leased_age_ms: u64,
    /// How long a sample that nobody leases may wait, in milliseconds; none if that is not limited.
    pub max_hold_ms: Option<u64>,
    /// What becomes of its objects when memory is short.
    pub demotion: Demotion,
    /// Puts that wait for room.
    pub waiting: u64,
    /// Samples that were freed because they waited longer than `max_hold_ms`, since the master started.
    pub samples_expired: u64,
    /// Their bytes, each once.
    pub sample_bytes_expired: u64,
    /// Who pins most of it, the most bytes first: at most [`OWNERS_MAX`].
    pub owners: Vec<OwnerStat>,
    /// Which clients keep what, the largest first: at most [`HOLDERS_MAX`].
    pub holders: Vec<Holder>,
}

/// The most owners that a [`NamespaceStat`] names.
pub const OWNERS_MAX: usize = 64;

/// What one owner pins in one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerStat {
    /// Who; empty for pins that nobody put a name to.
    pub owner: String,
    /// How many objects.
    pub objects: u64,
    /// Their bytes, each object once.
    pub bytes: u64,
}

/// The most [`NamespaceStat::holders`].
pub const HOLDERS_MAX: usize = 256;

/// A client that keeps a part of a namespace from being freed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// How.
    pub held: Held,
    /// What the client calls itself.
    pub who: String,
    /// How many objects or reservations.
    pub objects: u64,
    /// Their bytes: of objects each once, of reservations each copy; of what is looked at, the room.
    pub bytes: u64,
}

/// How something is kept from being freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Held {
    /// It is reserved, to be written.
    #[default]
    Reserved,
    /// It is a sample, and leased.
    Leased,
    /// It is gone, and still looked at.
    Viewed,
}

/// The most gets of one kind that a single report counts.
pub const CACHED_READS_MAX: u64 = 1 << 20;

/// Gets that were served from cached locations. A master counts at most [`CACHED_READS_MAX`] of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedReads {
    /// Calls for one object.
    pub singles: u64,
    /// Calls for several objects.
    pub batches: u64,
    /// Objects that batches read, also such batches as asked the master for other objects.
    pub items: u64,
    /// Bytes of all these objects.
    pub bytes: u64,
}

impl CachedReads {
    /// Adds a call that asked the master nothing, and read so many objects from cached locations.
    pub fn add(&mut self, is_batch: bool, items: u64, bytes: u64) {
        let calls = if is_batch { &mut self.batches } else { &mut self.singles };
        *calls = calls.saturating_add(1);
        self.items = self.items.saturating_add(if is_batch { items } else { 0 });
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Adds objects that a call for several read from cached locations, if it asked the master for others:
    /// the call itself is counted there.
    pub fn add_items(&mut self, items: u64, bytes: u64) {
        self.items = self.items.saturating_add(items);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// At most as much as one report may count.
    #[must_use]
    pub fn bounded(self) -> Self {
        Self {
            singles: self.singles.min(CACHED_READS_MAX),
            batches: self.batches.min(CACHED_READS_MAX),
            items: self.items.min(CACHED_READS_MAX),
            bytes: self.bytes,
        }
    }

    /// Whether nothing was read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
