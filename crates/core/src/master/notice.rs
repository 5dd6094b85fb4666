//! Notices: events that the master reports to its operator.

use crate::{ClusterId, ConnId, Key, RequestId, message::Evicted};

/// Why the objects of a member are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// Its process has ended, or the operator declared it lost.
    Lost,
    /// It said goodbye.
    Left,
    /// It has been away for too long. Its protected objects stay.
    Absent,
}

/// An event for the operator's log and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A node can be used.
    NodeReady(String),
    /// A node is connected, but sends nothing.
    NodeSilent(String),
    /// A node's connection is closed.
    NodeAway(String),
    /// From now on a member is lost, has left, or is absent. Its objects are being removed; the notice of the
    /// end has their number.
    Departs(String, Departure),
    /// A member has been away for too long.
    NodeAbsent {
        /// Its name.
        node: String,
        /// Number of unprotected objects that only it has: they were removed.
        removed: u64,
        /// Number of pinned objects and unconsumed samples there: they are unavailable until it returns.
        kept: u64,
    },
    /// A node is lost: its process has ended, or the operator declared it lost. The number of objects lost
    /// with it.
    NodeLost(String, u64),
    /// A node left for good. The number of objects lost with it.
    NodeLeft(String, u64),
    /// A node that had been declared lost returned and must start empty.
    NodeDiscarded(String),
    /// A member of another cluster was refused.
    OtherCluster {
        /// Its name.
        node: String,
        /// The cluster that it belongs to.
        cluster: ClusterId,
        /// The cluster of this master.
        own: ClusterId,
    },
    /// These members of the roster have not reported since the master started; requests that depend on them
    /// wait.
    AwaitingReports(Vec<String>),
    /// A put gets no name: one of its copies is on a member that was given up before it reported, and may
    /// have a name from an earlier epoch. The member retires it when it returns.
    PutGivenUp {
        /// The node that asked.
        home: String,
        /// That member.
        member: String,
        /// The key.
        key: Key,
    },
    /// Every member has reported, or was declared lost.
    AllReported,
    /// A deferred request continues.
    Resumed(ConnId, RequestId),
    /// A member served a later epoch than this master's: its name, and that epoch.
    Superseded(String, u64),
    /// An object left memory in favour of another one.
    Evicted(Eviction),
    /// The TTL of these objects is over, and they are removed.
    Expired(Evicted),
    /// Objects were requested ahead of a get, by outcome.
    Prefetched {
        /// Number of all requested keys.
        keys: u64,
        /// In memory already.
        resident: u64,
        /// Being promoted from a disk.
        running: u64,
        /// Could not be read a short while ago.
        failed: u64,
        /// Not started.
        skipped: u64,
    },
    /// A get found objects on disks, or waited for promotions.
    Got {
        /// Number of objects in memory.
        memory: u64,
        /// Number of objects that must be read from a disk.
        disk: u64,
        /// How many of these are on a disk of another host.
        far: u64,
        /// How long it waited; `None` if it did not.
        waited_ms: Option<u64>,
        /// The wait ended before all promotions had.
        late: bool,
    },
    /// A working disk refused an object because of its size.
    DemotionRefused {
        /// The disk.
        disk: String,
        /// The object.
        key: Key,
        /// Its bytes.
        bytes: u64,
        /// Maximum size of one object that the disk currently accepts.
        bytes_max: u64,
        /// Number of objects refused so far.
        total: u64,
    },
    /// An object was committed, a member reported one that the master did not know, or a known one has its
    /// first copy in memory or on a disk. Only with
    /// [`MasterConfig::events`](super::MasterConfig::events).
    Stored {
        /// Its namespace.
        namespace: String,
        /// Its key.
        key: Key,
        /// Whether the copy is on a disk.
        on_disk: bool,
    },
    /// An object has no copy in memory, or on disks, any more, and was not replaced there. Only with
    /// [`MasterConfig::events`](super::MasterConfig::events).
    Removed {
        /// Its namespace.
        namespace: String,
        /// Its key.
        key: Key,
        /// Whether the last copy on a disk is gone, and not that in memory.
        on_disk: bool,
    },
    /// A lost copy of an object was made again, or not.
    Copied {
        /// Whether it was.
        done: bool,
        /// The node that was to have it.
        node: String,
        /// The bytes of the object.
        bytes: u64,
        /// How long it took.
        took_ms: u64,
    },
    /// A promotion has ended.
    Promoted {
        /// Whether it succeeded.
        done: bool,
        /// Its bytes.
        bytes: u64,
        /// How long it took.
        took_ms: u64,
    },
}

/// An object that left memory in favour of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// Its bytes.
    pub bytes: u64,
    /// Why.
    pub cause: EvictionCause,
    /// No client has read it since it was put.
    pub is_unread: bool,
    /// It has no copy on a disk, so that it is gone.
    pub is_lost: bool,
}

/// What an object had to leave memory for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionCause {
    /// A put that needed memory on its node.
    Memory,
    /// A put within the quota of its namespace.
    Quota,
    /// A promotion from a disk.
    Promotion,
}
