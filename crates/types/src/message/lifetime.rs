//! Lifetimes: how objects are stored, pins, policies, samples and their leases, and explanations.

use super::{Demotion, Found, NodeInfo};
use crate::{Generation, Key, attributes::Consumption};

/// See [`ClientToMaster::Pin`](super::ClientToMaster::Pin).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pin {
    /// The objects.
    pub keys: Vec<Key>,
    /// The owner of the pin.
    pub owner: String,
    /// Whether the pin begins or ends.
    pub on: bool,
    /// See [`Delete::wait_ms`](super::Delete::wait_ms).
    pub wait_ms: u64,
}

/// The outcome of one key of a [`Pin`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PinOutcome {
    /// The pin is changed, and the nodes have stored that.
    Done,
    /// There is no such object.
    Absent,
    /// The pin is changed, but these nodes have not confirmed that they stored it.
    Unconfirmed(Vec<String>),
    /// The object has the greatest number of pins.
    TooMany,
    /// The owner had no pin to end.
    NotPinned,
}

/// See [`ClientToMaster::DropPins`](super::ClientToMaster::DropPins).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropPins {
    /// The owner of the pins.
    pub owner: String,
    /// See [`Delete::wait_ms`](super::Delete::wait_ms).
    pub wait_ms: u64,
}

/// The limits of a namespace. `None` is no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// The greatest number of bytes that the namespace may use.
    pub quota: Option<u64>,
    /// How long a sample without leases is kept, in milliseconds.
    pub max_hold_ms: Option<u64>,
    /// What happens to its objects when memory is short; `None` takes the master's setting.
    pub demotion: Option<Demotion>,
    /// The number of bytes of memory that other namespaces leave to this one.
    pub guaranteed: Option<u64>,
}

impl Policy {
    /// The limits after the change.
    #[must_use]
    pub fn changed(self, change: &PolicyChange) -> Self {
        Self {
            quota: if change.keep_quota { self.quota } else { change.quota },
            max_hold_ms: if change.keep_max_hold { self.max_hold_ms } else { change.max_hold_ms },
            demotion: if change.keep_demotion { self.demotion } else { change.demotion },
            guaranteed: if change.keep_guaranteed { self.guaranteed } else { change.guaranteed },
        }
    }
}

/// See [`ClientToMaster::SetPolicy`](super::ClientToMaster::SetPolicy): the new value of each limit. `None`
/// removes the limit, unless its `keep` flag is set: then the limit does not change. Clients that do not know
/// the flags set none of them, and thereby replace all limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyChange {
    /// See [`Policy::quota`].
    pub quota: Option<u64>,
    /// See [`Policy::max_hold_ms`].
    pub max_hold_ms: Option<u64>,
    /// See [`Policy::demotion`].
    pub demotion: Option<Demotion>,
    /// The quota does not change.
    pub keep_quota: bool,
    /// The time limit does not change.
    pub keep_max_hold: bool,
    /// The demotion does not change.
    pub keep_demotion: bool,
    /// See [`Policy::guaranteed`].
    pub guaranteed: Option<u64>,
    /// The guaranteed minimum does not change.
    pub keep_guaranteed: bool,
}

impl Default for PolicyChange {
    fn default() -> Self {
        Self::NONE
    }
}

impl PolicyChange {
    /// Changes nothing. The methods name what changes.
    pub const NONE: Self = Self {
        quota: None,
        max_hold_ms: None,
        demotion: None,
        keep_quota: true,
        keep_max_hold: true,
        keep_demotion: true,
        guaranteed: None,
        keep_guaranteed: true,
    };

    /// Sets the quota, or removes it.
    #[must_use]
    pub const fn quota(self, quota: Option<u64>) -> Self {
        Self { quota, keep_quota: false, ..self }
    }

    /// Limits how long a sample without leases is kept, or removes that limit.
    #[must_use]
    pub const fn max_hold_ms(self, max_hold_ms: Option<u64>) -> Self {
        Self { max_hold_ms, keep_max_hold: false, ..self }
    }

    /// Sets the demotion, or returns to the master's setting.
    #[must_use]
    pub const fn demotion(self, demotion: Option<Demotion>) -> Self {
        Self { demotion, keep_demotion: false, ..self }
    }

    /// Guarantees a minimum of memory, or no longer does.
    #[must_use]
    pub const fn guaranteed(self, guaranteed: Option<u64>) -> Self {
        Self { guaranteed, keep_guaranteed: false, ..self }
    }
}

impl From<Policy> for PolicyChange {
    /// Replaces all limits.
    fn from(it: Policy) -> Self {
        let limits = Self::NONE.quota(it.quota).max_hold_ms(it.max_hold_ms);
        limits.demotion(it.demotion).guaranteed(it.guaranteed)
    }
}

/// See [`ClientToMaster::Await`](super::ClientToMaster::Await).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Await {
    /// Until the namespace uses at most this many bytes.
    pub at_most: Option<u64>,
    /// Until the namespace uses at least this many bytes.
    pub at_least: Option<u64>,
    /// How long to wait.
    pub wait_ms: u64,
}

/// See [`ClientToMaster::Why`](super::ClientToMaster::Why).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explain {
    /// The objects. An answer explains the first of them, at least one, as many as the master's limits allow.
    /// The client asks again for the others.
    pub keys: Vec<Key>,
    /// See [`Resolve::report_wait_ms`](super::Resolve::report_wait_ms). Zero leaves it to the master.
    pub report_wait_ms: u64,
}

/// Why an object exists, or does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It exists.
    Here(Box<Here>),
    /// It existed; what removed it.
    Gone(Gone),
    /// It never existed, or its removal is no longer remembered.
    Unknown,
}

/// An object that exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Here {
    /// What a resolve would answer.
    pub found: Found,
    /// The nodes that hold it.
    pub nodes: Vec<String>,
    /// Those of them that cannot be reached.
    pub unreachable: Vec<String>,
    /// The owners of its pins.
    pub pins: Vec<String>,
    /// How it is consumed, if it is a sample.
    pub sample: Option<Consumption>,
    /// The groups that have consumed it.
    pub acked: Vec<String>,
    /// The labels of the clients that lease it.
    pub leases: Vec<String>,
    /// The number of views.
    pub views: u64,
    /// The labels of the clients that have views, each once, and at most
    /// [`VIEWERS_MAX`](crate::VIEWERS_MAX) for each node.
    pub viewers: Vec<String>,
    /// The number of further clients that have views.
    pub viewers_more: u64,
    /// The number of copies that are being sent through sockets.
    pub sends: u64,
    /// Time since it was put, in milliseconds.
    pub age_ms: u64,
    /// Time since its last use, in milliseconds.
    pub idle_ms: u64,
    /// How much longer its lease protects it from eviction, in milliseconds.
    pub lease_ms: u64,
    /// The label of the client that put it.
    pub writer: String,
    /// The label of the client that used it last.
    pub reader: String,
    /// If the disk refused this object: the size of the largest object that the disk takes. Else zero.
    pub disk_bytes_max: u64,
    /// On how many nodes it is to have a copy.
    pub copies_wanted: u32,
    /// On how many nodes it has one. A node that has been gone for long does not count.
    pub copies_there: u32,
    /// The node that it is being copied to; empty if there is none.
    pub copying_to: String,
    /// What the next copy waits for.
    pub copy_wait: CopyWait,
    /// The TTL of its put, in milliseconds, if it has one.
    pub ttl_ms: Option<u64>,
}

/// What a missing copy waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyWait {
    /// Nothing: none is missing, or it is under way.
    #[default]
    Nothing,
    /// A node that has no copy of the object and takes new objects.
    Node,
    /// Free memory on such a node.
    Memory,
    /// The quota of its namespace.
    Quota,
    /// A member with a copy, which cannot be reached.
    Source,
    /// Its turn, or the time that a node may be gone.
    Turn,
}

/// An object that was removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// Which put of the key.
    pub generation: Generation,
    /// What removed it.
    pub cause: Cause,
    /// The label of the client that removed it; for an eviction, the client whose put needed the memory.
    pub by: String,
    /// Time since then, in milliseconds.
    pub ago_ms: u64,
    /// The node that was lost, or on which it was evicted; empty if it was evicted for a quota.
    pub node: String,
    /// The object for which it was evicted.
    pub for_key: Option<Key>,
    /// The label of the client that used it last.
    pub reader: String,
    /// If the disk had refused this object: the size of the largest object that the disk takes. Else zero.
    pub disk_bytes_max: u64,
}

/// What removes objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// A client deleted it.
    #[default]
    Deleted,
    /// A newer put of the same key replaced it.
    Replaced,
    /// It was evicted.
    Evicted,
    /// Its last node was lost.
    NodeLost,
    /// All its consumers have acknowledged it.
    Consumed,
    /// It was without a lease for longer than the namespace's policy allows.
    HeldTooLong,
    /// Its TTL was over.
    Expired,
}

/// See [`ClientToMaster::Lease`](super::ClientToMaster::Lease).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// The samples.
    pub items: Vec<LeaseItem>,
    /// The consumer group.
    pub group: String,
    /// See [`Resolve::report_wait_ms`](super::Resolve::report_wait_ms).
    pub report_wait_ms: u64,
}

/// One sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseItem {
    /// Its key.
    pub key: Key,
    /// Which put of the key; `None` for any.
    pub generation: Option<Generation>,
}

/// The reply to [`ClientToMaster::Lease`](super::ClientToMaster::Lease).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leased {
    /// In the order of the items.
    pub items: Vec<LeaseOutcome>,
    /// Every node that the outcomes name.
    pub nodes: Vec<NodeInfo>,
}

/// The outcome of one [`LeaseItem`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseOutcome {
    /// It is leased until the client releases it, dies, or is disconnected for too long.
    Leased(Granted),
    /// There is no such sample.
    Absent,
    /// The sample has another generation.
    Superseded(Generation),
    /// The group has consumed it.
    Consumed,
    /// The object is not a sample.
    NotASample,
    /// The sample is not for this group.
    WrongGroup,
}

/// A lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// Its number.
    pub lease: u64,
    /// The sample, with its locations.
    pub found: Found,
}

/// See [`ClientToMaster::Release`](super::ClientToMaster::Release). Leases that have ended are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Release {
    /// The numbers of the leases.
    pub leases: Vec<u64>,
}

/// See [`ClientToMaster::Ack`](super::ClientToMaster::Ack).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// The samples.
    pub items: Vec<AckItem>,
    /// The consumer group.
    pub group: String,
    /// See [`Delete::wait_ms`](super::Delete::wait_ms).
    pub wait_ms: u64,
    /// Removes the samples at once, whichever groups they are for.
    pub abort: bool,
    /// If clients lease the sample, the outcome is `Recorded`, and the sample is kept until the last of these
    /// leases ends. An `abort` then changes nothing.
    pub unless_leased: bool,
}

/// One sample that was consumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckItem {
    /// Its key.
    pub key: Key,
    /// Which put of the key.
    pub generation: Generation,
}

/// The outcome of one [`AckItem`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AckOutcome {
    /// It was the last acknowledgement: the sample is removed and its memory free.
    Freed,
    /// It is stored; other groups have yet to consume the sample, or the sample is retained.
    Recorded,
    /// No sample of that generation exists.
    Stale,
    /// The acknowledgement is applied, but these nodes have not confirmed it.
    Unconfirmed(Vec<String>),
    /// The sample is not for this group.
    WrongGroup,
}
