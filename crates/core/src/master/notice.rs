//! Notices: what the master reports to its operator.

use crate::{ConnId, Key, RequestId};

/// What an operator would like to see in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A node can be used.
    NodeReady(String),
    /// A node is connected, but does not answer.
    NodeSilent(String),
    /// A node's connection is closed.
    NodeAway(String),
    /// A member has been away too long.
    NodeAbsent {
        /// Its name.
        node: String,
        /// Objects that nothing protects and that only it has: they were removed.
        removed: u64,
        /// Pinned objects and unconsumed samples there: they are unavailable until it returns.
        kept: u64,
    },
    /// A node is lost: its process has ended, or the operator said so; so many objects went with it.
    NodeLost(String, u64),
    /// A node left for good, as it said; so many objects went with it.
    NodeLeft(String, u64),
    /// A node that had been declared lost came back and must start empty.
    NodeDiscarded(String),
    /// These members of the roster have not reported since the master started; requests that depend on them
    /// wait.
    AwaitingReports(Vec<String>),
    /// Every member has reported, or was declared lost.
    AllReported,
    /// A request that waited for reports goes on.
    Resumed(ConnId, RequestId),
    /// A member served a later epoch than this master's: its name, and that epoch.
    Superseded(String, u64),
    /// So many objects with so many bytes left to make room.
    Evicted(u64, u64),
    /// Somebody will soon ask for objects: so many, and what that means for how many of them.
    Prefetched {
        /// All that were named.
        keys: u64,
        /// In memory already.
        resident: u64,
        /// On their way from a disk.
        running: u64,
        /// Could not be read a short while ago.
        failed: u64,
        /// Not begun.
        skipped: u64,
    },
    /// A get was told of objects on disks, or waited for some that were on their way into memory.
    Got {
        /// So many are in memory.
        memory: u64,
        /// So many must be read from a disk.
        disk: u64,
        /// Of these, so many from one of another host.
        far: u64,
        /// How long it waited; nothing if it did not.
        waited_ms: Option<u64>,
        /// It waited in vain for some of them.
        late: bool,
    },
    /// A disk works, and does not take an object because of its size.
    DemotionRefused {
        /// The disk.
        disk: String,
        /// The object.
        key: Key,
        /// Its bytes.
        bytes: u64,
        /// The most bytes that the disk takes for one object now.
        bytes_max: u64,
        /// How many objects were refused so far.
        total: u64,
    },
    /// An object was committed, or a member reported one that the master did not know. Only with
    /// [`MasterConfig::events`](super::MasterConfig::events).
    Stored {
        /// Its namespace.
        namespace: String,
        /// Its key.
        key: Key,
        /// Whether the copy is on a disk.
        on_disk: bool,
    },
    /// An object has left the catalog, and was not replaced. Only with
    /// [`MasterConfig::events`](super::MasterConfig::events).
    Removed {
        /// Its namespace.
        namespace: String,
        /// Its key.
        key: Key,
    },
    /// An object that was on its way into memory is there, or will not be.
    Promoted {
        /// Whether it is there.
        done: bool,
        /// Its bytes.
        bytes: u64,
        /// How long it took.
        took_ms: u64,
    },
}
