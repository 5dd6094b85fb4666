//! Statistics: the master's view of the cluster, of its nodes and of its namespaces.

use super::{Demotion, NamedStream, NodeInfo, TierStat, Usage};

/// The master's view of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// The epoch of the master.
    pub epoch: u64,
    /// The number of connected clients.
    pub clients: u64,
    /// The nodes, including those that are away.
    pub nodes: Vec<NodeStat>,
    /// The namespaces.
    pub namespaces: Vec<NamespaceStat>,
    /// Objects and bytes evicted since the master started.
    pub evicted_objects: u64,
    /// See [`Self::evicted_objects`].
    pub evicted_bytes: u64,
    /// The same by cause.
    pub evictions: Evictions,
    /// The number of objects with a soft pin.
    pub soft_pinned: u64,
    /// The counters of the disks.
    pub tier: Box<TierStat>,
    /// Lost copies, and how they are made again.
    pub copies: CopyStat,
    /// Members that have not reported since the master started; replies that depend on them wait.
    pub unreported: Vec<String>,
    /// The first streams, by namespace and name: at most [`STREAMS_LISTED_MAX`].
    pub streams: Vec<NamedStream>,
    /// Commits that wait for members which have not reported: their memory stays reserved.
    pub undecided: u64,
    /// Objects whose TTL ended since the master started.
    pub expired: Evicted,
    /// The number of objects with a TTL that no pin keeps.
    pub expiring: u64,
}

/// The most streams that a [`Stat`] lists.
pub const STREAMS_LISTED_MAX: usize = 256;

/// Objects that left memory in favour of others since the master started, by what needed the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evictions {
    /// A put that needed memory on its node.
    pub memory: Evicted,
    /// A put within the quota of its namespace.
    pub quota: Evicted,
    /// A promotion from a disk.
    pub promotion: Evicted,
    /// Objects that no client had read, and that no disk has.
    pub unread: u64,
}

/// Evicted or expired objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Their number.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Evictions {
    /// Each cause by its name, for pages and tables.
    #[must_use]
    pub fn by_cause(&self) -> [(&'static str, Evicted); 3] {
        [("memory", self.memory), ("quota", self.quota), ("promotion", self.promotion)]
    }

    /// The sum of all causes.
    #[must_use]
    pub fn total(&self) -> Evicted {
        self.by_cause().into_iter().fold(Evicted::default(), |sum, (_, it)| Evicted {
            objects: sum.objects + it.objects,
            bytes: sum.bytes + it.bytes,
        })
    }
}

/// Lost copies, and how they are made again. The counters are since the master started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyStat {
    /// Objects with fewer copies than they should have, as last counted.
    pub short: u64,
    /// Copies under way.
    pub running: u64,
    /// Copies and bytes that were made again.
    pub made: u64,
    /// See [`Self::made`].
    pub made_bytes: u64,
    /// Copies that failed; they are tried again.
    pub failed: u64,
    /// Copies that were dropped because their node returned after they had been made elsewhere.
    pub dropped: u64,
}

impl CopyStat {
    /// Every number with its name and help text, for pages and tables. The first two are gauges, the others
    /// are counters.
    #[must_use]
    pub fn named(&self) -> [(&'static str, &'static str, u64); 6] {
        [
            ("short_objects", "Objects with fewer copies than they should have", self.short),
            ("running", "Copies under way", self.running),
            ("made", "Lost copies that were made again", self.made),
            ("made_bytes", "Bytes of lost copies that were made again", self.made_bytes),
            ("failed", "Copies that failed, and are tried again", self.failed),
            ("dropped", "Copies dropped because they had been made elsewhere", self.dropped),
        ]
    }
}

/// One member, as the master sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeStat {
    /// How to reach it.
    pub info: NodeInfo,
    /// It is connected and not silent.
    pub alive: bool,
    /// Its usage, as last reported.
    pub usage: Usage,
    /// The number of pending retires, which it must apply before it serves again.
    pub owed: u64,
    /// Clients with views of retired objects, as last reported: those that hold most memory first.
    pub holders: Vec<Holder>,
}

/// One namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceStat {
    /// Its name.
    pub name: String,
    /// The number of its objects.
    pub objects: u64,
    /// Their bytes, each object once.
    pub bytes: u64,
    /// The memory of nodes that it uses, reservations included, each copy counted.
    pub used: u64,
    /// The part of it that is reserved by writers.
    pub granted: u64,
    /// The part of it that removed objects still take, because clients view or copy them.
    pub held: u64,
    /// The limit of `used`; `None` if there is none.
    pub quota: Option<u64>,
    /// The memory that other namespaces leave to it; `None` if there is no such minimum.
    pub guaranteed: Option<u64>,
    /// The number of samples that are not consumed yet.
    pub samples: u64,
    /// How many of these are leased.
    pub samples_leased: u64,
    /// The age of the oldest of them, in milliseconds.
    pub sample_age_ms: u64,
    /// The bytes of all samples, each once.
    pub sample_bytes: u64,
    /// The bytes of the leased ones, each once.
    pub sample_bytes_leased: u64,
    /// The age of the oldest leased one, in milliseconds.
    pub leased_age_ms: u64,
    /// How long a sample without leases is kept, in milliseconds; `None` if there is no limit.
    pub max_hold_ms: Option<u64>,
    /// What happens to its objects when memory is short.
    pub demotion: Demotion,
    /// The number of puts that wait for memory.
    pub waiting: u64,
    /// Samples that were freed after `max_hold_ms`, since the master started.
    pub samples_expired: u64,
    /// Their bytes, each once.
    pub sample_bytes_expired: u64,
    /// The owners of pins, those with most bytes first: at most [`OWNERS_MAX`].
    pub owners: Vec<OwnerStat>,
    /// The clients that keep memory from being freed, the largest first: at most [`HOLDERS_MAX`].
    pub holders: Vec<Holder>,
}

/// The most owners that a [`NamespaceStat`] names.
pub const OWNERS_MAX: usize = 64;

/// The pins of one owner in one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerStat {
    /// The owner; empty for pins without one.
    pub owner: String,
    /// The number of objects.
    pub objects: u64,
    /// Their bytes, each object once.
    pub bytes: u64,
}

/// The most [`NamespaceStat::holders`].
pub const HOLDERS_MAX: usize = 256;

/// A client that keeps memory from being freed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// In which way.
    pub held: Held,
    /// The label of the client.
    pub who: String,
    /// The number of objects or reservations.
    pub objects: u64,
    /// Their bytes: of leased objects each once, of reservations each copy, of views the memory in use.
    pub bytes: u64,
}

/// What keeps memory from being freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Held {
    /// A reservation.
    #[default]
    Reserved,
    /// The lease of a sample.
    Leased,
    /// A view of a retired object.
    Viewed,
}

/// The greatest number of gets of one kind in a single report.
pub const CACHED_READS_MAX: u64 = 1 << 20;

/// Gets that were served from cached locations. A master counts at most [`CACHED_READS_MAX`] of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedReads {
    /// Calls for one object.
    pub singles: u64,
    /// Calls for several objects.
    pub batches: u64,
    /// Objects that batches read there, including batches that asked the master for other objects.
    pub items: u64,
    /// Bytes of all these objects.
    pub bytes: u64,
}

impl CachedReads {
    /// Adds a call that read all its objects from cached locations.
    pub fn add(&mut self, is_batch: bool, items: u64, bytes: u64) {
        let calls = if is_batch { &mut self.batches } else { &mut self.singles };
        *calls = calls.saturating_add(1);
        self.items = self.items.saturating_add(if is_batch { items } else { 0 });
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Adds objects that a batch read from cached locations, if it asked the master for others: the master
    /// counts the call itself.
    pub fn add_items(&mut self, items: u64, bytes: u64) {
        self.items = self.items.saturating_add(items);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Limited to what one report may count.
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
