//! Streams: samples in the order in which they were put, which consumer groups pull.

use super::Leased;
use crate::{Generation, Key};

/// See [`ClientToMaster::OpenStream`](super::ClientToMaster::OpenStream). A stream that was never opened
/// exists as well, without limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenStream {
    /// The name of the stream.
    pub name: String,
    /// New limits, which replace the previous ones.
    pub limits: Option<StreamLimits>,
    /// The client becomes a consumer of this group.
    pub attach: Option<Attach>,
}

/// How much of a stream may be in flight: put or reserved, and not consumed by all groups. Zero is no limit.
///
/// At a high mark puts wait until the stream is at or below the low marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamLimits {
    /// The number of samples.
    pub refs_high: u64,
    /// At most the high mark.
    pub refs_low: u64,
    /// Their bytes.
    pub bytes_high: u64,
    /// At most the high mark.
    pub bytes_low: u64,
}

/// A client that consumes a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attach {
    /// Its group.
    pub group: String,
    /// The number of samples that it leases before it acknowledges any.
    pub window: u64,
}

/// See [`ClientToMaster::EndStream`](super::ClientToMaster::EndStream).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndStream {
    /// The name of the stream.
    pub name: String,
    /// The error that ended the stream, if it was one.
    pub failure: Option<String>,
    /// Removes the samples that are left, and the stream.
    pub drop: bool,
    /// See [`Delete::wait_ms`](super::Delete::wait_ms).
    pub wait_ms: u64,
}

/// The end of a stream, as a consumer sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamEnd {
    /// The error that ended the stream, if it was one.
    pub failure: Option<String>,
    /// Samples that consumers of the same group lease and have not acknowledged. They are delivered again if
    /// those consumers die.
    pub outstanding: u64,
}

/// See [`ClientToMaster::Pull`](super::ClientToMaster::Pull).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pull {
    /// The stream.
    pub stream: String,
    /// The consumer group.
    pub group: String,
    /// The smallest number of samples. There are fewer only at the end of the stream or when the time is up.
    pub items_min: u32,
    /// The greatest number of samples.
    pub items_max: u32,
    /// How long to wait for them.
    pub wait_ms: u64,
    /// Returns the samples after this one, without leases.
    pub behind: Option<Generation>,
}

/// The reply to [`ClientToMaster::Pull`](super::ClientToMaster::Pull).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pulled {
    /// The keys of the samples, in the order of the stream.
    pub keys: Vec<Key>,
    /// The samples. A lease of zero is none, see [`Pull::behind`].
    pub leased: Leased,
    /// There are no more samples, or the stream ended with an error.
    pub end: Option<StreamEnd>,
}

/// A stream with its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedStream {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its state.
    pub stat: StreamStat,
}

/// The state of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamStat {
    /// The number of samples that are put.
    pub refs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The number of samples that are reserved.
    pub granted: u64,
    /// Their bytes.
    pub granted_bytes: u64,
    /// The limits.
    pub limits: StreamLimits,
    /// Puts wait until it is at or below the low marks.
    pub is_shut: bool,
    /// It has ended.
    pub end: Option<StreamEnd>,
    /// Samples that were put in this epoch of the master.
    pub appended: u64,
    /// Samples that members announced when this epoch began.
    pub recovered: u64,
    /// Samples that all groups have consumed in this epoch.
    pub consumed: u64,
    /// Its consumer groups.
    pub groups: Vec<GroupStat>,
}

/// The state of a consumer group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupStat {
    /// Its name.
    pub group: String,
    /// Samples that no consumer of the group leases.
    pub ready: u64,
    /// Samples that consumers of the group lease and have not acknowledged.
    pub out: u64,
    /// The number of deliveries to the group in this epoch.
    pub delivered: u64,
    /// Samples that the group has acknowledged in this epoch, each once.
    pub acked: u64,
    /// The number of its consumers.
    pub consumers: u64,
    /// The sum of their windows.
    pub window: u64,
}

/// In [`ReserveOutcome::Behind`](super::ReserveOutcome::Behind): what is in flight, and the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// The number of samples.
    pub refs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The limits.
    pub limits: StreamLimits,
}
