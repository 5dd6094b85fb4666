//! What is said about streams: samples in the order in which they were put, for consumer groups to pull.

use super::Leased;
use crate::{Generation, Key};

/// See [`Request::OpenStream`](super::Request::OpenStream). A stream that nobody has opened is there too,
/// without limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenStream {
    /// Which.
    pub name: String,
    /// What may be in flight, in place of the limits that it had.
    pub limits: Option<StreamLimits>,
    /// The consumer group that the client belongs to, from now on.
    pub attach: Option<Attach>,
}

/// How much of a stream may be in flight: put or about to be, and not consumed by everybody. Zero is no
/// limit.
///
/// At a high mark no more is taken in, until it is at or below the low marks again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamLimits {
    /// Samples.
    pub refs_high: u64,
    /// At most the high mark.
    pub refs_low: u64,
    /// Bytes.
    pub bytes_high: u64,
    /// At most the high mark.
    pub bytes_low: u64,
}

/// A client that consumes a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attach {
    /// Of which group.
    pub group: String,
    /// How many samples it takes before it acknowledges any.
    pub window: u64,
}

/// See [`Request::EndStream`](super::Request::EndStream).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndStream {
    /// Which.
    pub name: String,
    /// What went wrong, if something did.
    pub failure: Option<String>,
    /// Nobody is to consume what is left: it is taken away, and the stream is forgotten.
    pub drop: bool,
    /// See [`Delete::wait_ms`](super::Delete::wait_ms).
    pub wait_ms: u64,
}

/// The end of a stream, as a reader sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamEnd {
    /// What went wrong, if something did.
    pub failure: Option<String>,
    /// Samples that consumers of the same group have and have not acknowledged: they come again if those die.
    pub outstanding: u64,
}

/// See [`Request::Pull`](super::Request::Pull).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pull {
    /// Of which stream.
    pub stream: String,
    /// On behalf of which consumer group.
    pub group: String,
    /// Fewer are given only at the end of the stream or of the time.
    pub items_min: u32,
    /// At most this many.
    pub items_max: u32,
    /// How long to wait for them.
    pub wait_ms: u64,
    /// Only look, at what comes behind this; nothing is leased.
    pub behind: Option<Generation>,
}

/// See [`Request::Pull`](super::Request::Pull).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pulled {
    /// The names of the samples, in the order of the stream.
    pub keys: Vec<Key>,
    /// What they are. A lease of zero is none: they were only looked at.
    pub leased: Leased,
    /// There is no more, or something went wrong.
    pub end: Option<StreamEnd>,
}

/// A stream as it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamStat {
    /// Samples that are there.
    pub refs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Samples that are about to be put.
    pub granted: u64,
    /// Their bytes.
    pub granted_bytes: u64,
    /// What may be in flight.
    pub limits: StreamLimits,
    /// No more is taken in, until it is at or below the low marks.
    pub is_shut: bool,
    /// It has ended.
    pub end: Option<StreamEnd>,
    /// Samples that were put, in this life of the master.
    pub appended: u64,
    /// Samples that were there when this life of the master began.
    pub recovered: u64,
    /// Samples that everybody has consumed, in this life of the master.
    pub consumed: u64,
    /// Who consumes it.
    pub groups: Vec<GroupStat>,
}

/// A consumer group as it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupStat {
    /// Its name.
    pub group: String,
    /// Samples that nobody of the group has.
    pub ready: u64,
    /// Samples that somebody of the group has, and has not acknowledged.
    pub out: u64,
    /// How often a sample was given to one of the group, in this life of the master.
    pub delivered: u64,
    /// Samples that the group has acknowledged, each once, in this life of the master.
    pub acked: u64,
    /// How many clients belong to it.
    pub consumers: u64,
    /// How many samples these take together before they acknowledge any.
    pub window: u64,
}

/// In [`ReserveOutcome::Behind`](super::ReserveOutcome::Behind): what is in flight, and what may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Samples.
    pub refs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The marks.
    pub limits: StreamLimits,
}
