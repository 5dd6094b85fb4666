//! What is said about lifetimes: how objects are kept, pins, limits, samples, and explanations.

use super::{Demotion, Found, NodeInfo, Usage};
use crate::{
    ClientId, Generation, Hold, Key,
    marks::{Consumption, Marks},
};

/// What to do when the key exists already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExists {
    /// The new object takes the old one's place.
    #[default]
    Replace,
    /// The old object stays; the put answers `Exists`.
    Keep,
}

/// In [`PutOptions::soft_pin_ms`]: the master knows how long.
pub const SOFT_PIN_DEFAULT: u64 = u64::MAX;

/// How an object is to be kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// How many copies on different nodes; fewer if there are fewer nodes.
    pub replicas: u32,
    /// What to do when the key exists.
    pub on_exists: OnExists,
    /// Never evicted.
    pub hard_pin: bool,
    /// Evicted after all others, for this many milliseconds; [`SOFT_PIN_DEFAULT`] for as long as the master's
    /// setting says.
    pub soft_pin_ms: Option<u64>,
    /// Names of nodes to try first, in order.
    pub preferred: Vec<String>,
    /// Who owns the hard pin: a run, say, so that all its pins can be dropped in one call.
    pub owner: String,
    /// It is a sample, to be consumed so.
    pub sample: Option<Consumption>,
    /// The stream that the sample is appended to; none if empty.
    pub stream: String,
    /// Bytes of the sample that lie in another store: they count in its stream or, if it is in none, against
    /// the quota of its namespace.
    pub elsewhere: u64,
}

/// New marks for one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MarkItem {
    /// Which.
    pub hold: Hold,
    /// What is to be written beside it.
    pub marks: Marks,
}

/// See [`Request::Released`](super::Request::Released).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// The reservations.
    pub holds: Vec<Hold>,
    /// How full the node is now.
    pub usage: Usage,
}

/// Who uses one object where it lies, see [`Request::Inspect`](super::Request::Inspect).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Views {
    /// How many views there are.
    pub count: u64,
    /// Whose they are, at most [`VIEWERS_MAX`](crate::VIEWERS_MAX) of them.
    pub clients: Vec<ClientId>,
    /// How many more clients have some.
    pub more: u64,
    /// How many copies are being sent through sockets.
    pub sends: u64,
}

/// A client that looks at objects which are gone, so that their room cannot be used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Viewer {
    /// Who.
    pub client: ClientId,
    /// How many objects.
    pub objects: u64,
    /// Their room.
    pub bytes: u64,
}

/// See [`Request::Pin`](super::Request::Pin).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pin {
    /// The names.
    pub keys: Vec<Key>,
    /// Whose pin it is.
    pub owner: String,
    /// Whether it is set or ended.
    pub on: bool,
    /// See [`Delete::wait_ms`](super::Delete::wait_ms).
    pub wait_ms: u64,
}

/// What became of one key of a [`Pin`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PinOutcome {
    /// It is as asked, and the nodes have it in writing.
    Done,
    /// There is no such object.
    Absent,
    /// It is as asked, but these nodes could not confirm.
    Unconfirmed(Vec<String>),
    /// The object has as many pins as it can have.
    TooMany,
    /// There was no pin of this owner to end.
    NotPinned,
}

/// See [`Request::DropPins`](super::Request::DropPins).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropPins {
    /// Whose.
    pub owner: String,
    /// See [`Delete::wait_ms`](super::Delete::wait_ms).
    pub wait_ms: u64,
}

/// The limits of a namespace. What is absent is not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// What the namespace may hold, in bytes.
    pub quota: Option<u64>,
    /// How long a sample that nobody leases may wait, in milliseconds.
    pub max_hold_ms: Option<u64>,
    /// What becomes of its objects when memory is short; absent, as the master's settings say.
    pub demotion: Option<Demotion>,
}

impl Policy {
    /// The limits after the change.
    #[must_use]
    pub fn changed(self, change: &PolicyChange) -> Self {
        Self {
            quota: if change.keep_quota { self.quota } else { change.quota },
            max_hold_ms: if change.keep_max_hold { self.max_hold_ms } else { change.max_hold_ms },
            demotion: if change.keep_demotion { self.demotion } else { change.demotion },
        }
    }
}

/// See [`Request::SetPolicy`](super::Request::SetPolicy): the new value of each limit. Absent removes the
/// limit, unless the flag beside it says that the limit stays as it is. A client that does not know the flags
/// sends none of them, and thereby replaces all limits.
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
    /// The limit of time does not change.
    pub keep_max_hold: bool,
    /// The demotion does not change.
    pub keep_demotion: bool,
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
    };

    /// Sets the quota, or removes it.
    #[must_use]
    pub const fn quota(self, quota: Option<u64>) -> Self {
        Self { quota, keep_quota: false, ..self }
    }

    /// Limits how long a sample without leases may wait, or removes that limit.
    #[must_use]
    pub const fn max_hold_ms(self, max_hold_ms: Option<u64>) -> Self {
        Self { max_hold_ms, keep_max_hold: false, ..self }
    }

    /// Sets the demotion, or returns to that of the master's settings.
    #[must_use]
    pub const fn demotion(self, demotion: Option<Demotion>) -> Self {
        Self { demotion, keep_demotion: false, ..self }
    }
}

impl From<Policy> for PolicyChange {
    /// Replaces all limits.
    fn from(it: Policy) -> Self {
        Self::NONE.quota(it.quota).max_hold_ms(it.max_hold_ms).demotion(it.demotion)
    }
}

/// See [`Request::Await`](super::Request::Await).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Await {
    /// Until it holds at most this many bytes.
    pub at_most: Option<u64>,
    /// Until it holds at least this many bytes.
    pub at_least: Option<u64>,
    /// How long to wait.
    pub wait_ms: u64,
}

/// Why an object is there, or is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It is there.
    Here(Here),
    /// It was there; what took it away.
    Gone(Gone),
    /// Nothing is known of it: it never was, or that was long ago.
    Unknown,
}

/// An object that is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Here {
    /// As a resolve would find it.
    pub found: Found,
    /// The nodes that hold it.
    pub nodes: Vec<String>,
    /// Those of them that cannot be reached now.
    pub unreachable: Vec<String>,
    /// Who pins it.
    pub pins: Vec<String>,
    /// How it is consumed, if it is a sample.
    pub sample: Option<Consumption>,
    /// The groups that have consumed it.
    pub acked: Vec<String>,
    /// The clients that have it leased, as they call themselves.
    pub leases: Vec<String>,
    /// How many look at it in place.
    pub views: u64,
    /// The clients that do, as they call themselves, each once, and at most
    /// [`VIEWERS_MAX`](crate::VIEWERS_MAX) for each node.
    pub viewers: Vec<String>,
    /// How many more clients do.
    pub viewers_more: u64,
    /// How many copies of it are being sent through sockets.
    pub sends: u64,
    /// Since when it is there, in milliseconds ago.
    pub age_ms: u64,
    /// When it was last used, in milliseconds ago.
    pub idle_ms: u64,
    /// For how long its lease keeps it from eviction yet.
    pub lease_ms: u64,
    /// Who put it, as it called itself.
    pub writer: String,
    /// Who used it last.
    pub reader: String,
    /// The most bytes that its disk takes for one object, if the disk refused this one; else zero.
    pub disk_bytes_max: u64,
}

/// An object that was there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// Which put of the key.
    pub generation: Generation,
    /// What took it away.
    pub cause: Cause,
    /// Who, as it called itself: for what was evicted, whose put needed the room.
    pub by: String,
    /// When, in milliseconds ago.
    pub ago_ms: u64,
    /// The node that was lost with it, or on which it made room; empty where it was in the way of a quota.
    pub node: String,
    /// What it made room for.
    pub for_key: Option<Key>,
    /// Who used it last.
    pub reader: String,
    /// The most bytes that its disk takes for one object, if the disk had refused this one; else zero.
    pub disk_bytes_max: u64,
}

/// What takes objects away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// A client deleted it.
    #[default]
    Deleted,
    /// A newer put of the same key took its place.
    Replaced,
    /// It made room for another.
    Evicted,
    /// Its last node was lost.
    NodeLost,
    /// Everyone who was to consume it did.
    Consumed,
    /// Nobody leased it for longer than the namespace's policy allows.
    HeldTooLong,
}

/// See [`Request::Why`](super::Request::Why).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explain {
    /// The objects.
    pub keys: Vec<Key>,
    /// See [`Resolve::report_wait_ms`](super::Resolve::report_wait_ms). Zero leaves it to the master.
    pub report_wait_ms: u64,
}

/// See [`Request::Lease`](super::Request::Lease).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// The samples.
    pub items: Vec<LeaseItem>,
    /// On behalf of which consumer group.
    pub group: String,
    /// See [`Resolve::report_wait_ms`](super::Resolve::report_wait_ms).
    pub report_wait_ms: u64,
}

/// One sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseItem {
    /// Its name.
    pub key: Key,
    /// Which put of the key; any if none.
    pub generation: Option<Generation>,
}

/// See [`Request::Lease`](super::Request::Lease).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leased {
    /// In the order asked.
    pub items: Vec<LeaseOutcome>,
    /// Every node that the outcomes name.
    pub nodes: Vec<NodeInfo>,
}

/// What became of one [`LeaseItem`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseOutcome {
    /// It is leased, until it is released or the client is dead, or has been away for too long.
    Leased(Granted),
    /// There is no such sample.
    Absent,
    /// There is one of another generation.
    Superseded(Generation),
    /// The group has consumed it.
    Consumed,
    /// The object is no sample.
    NotASample,
    /// The group is none of those that the sample is for.
    WrongGroup,
}

/// A lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// Names it.
    pub lease: u64,
    /// What was leased, with its locations.
    pub found: Found,
}

/// See [`Request::Release`](super::Request::Release). Leases that have ended already are none the worse.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Release {
    /// Which.
    pub leases: Vec<u64>,
}

/// See [`Request::Ack`](super::Request::Ack).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ack {
    /// The samples.
    pub items: Vec<AckItem>,
    /// On behalf of which consumer group.
    pub group: String,
    /// See [`Delete::wait_ms`](super::Delete::wait_ms).
    pub wait_ms: u64,
    /// Nobody is to consume them any more, whatever their groups are: they are gone at once.
    pub abort: bool,
    /// Where clients have the sample leased, the answer is `Recorded`, and the sample stays until the last of
    /// these leases ends; for an `abort`, nothing is done.
    pub unless_leased: bool,
}

/// One sample that was consumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckItem {
    /// Its name.
    pub key: Key,
    /// Which put of the key.
    pub generation: Generation,
}

/// What became of one [`AckItem`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AckOutcome {
    /// It was the last one that was waited for: the sample is gone and its room free.
    Freed,
    /// It is in writing; others have yet to consume it, or it is retained.
    Recorded,
    /// There is no sample of that generation any more.
    Stale,
    /// As asked, but these nodes could not confirm.
    Unconfirmed(Vec<String>),
    /// The group is none of those that the sample is for.
    WrongGroup,
}
