//! Types that messages of several directions contain: members, objects that can be read, and the options of
//! a put.

use crate::{Generation, Location, SegmentId, attributes::Consumption};

/// How to reach a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// Its segment, or the number that names the disk.
    pub segment: SegmentId,
    /// Its name, for people and for `preferred`.
    pub name: String,
    /// `host:port` of its control socket for other hosts; empty if there is none.
    pub tcp: String,
    /// `host:port` of its data socket for other hosts, or `unix:@name` if it is for its own host only; empty
    /// if there is none.
    pub data: String,
    /// The abstract Unix socket for control connections of its own host; empty if there is none.
    pub unix: String,
    /// The abstract Unix socket through which clients of its host map its memory.
    pub memory: String,
    /// Its host.
    pub host: String,
    /// If it is a disk: the memory of its node.
    pub beside: Option<SegmentId>,
    /// It is memory that outlives its process: a process that is started again adopts it.
    pub outlives: bool,
    /// Set by the master: grows with each registration of the member, also from one epoch to the next. Zero
    /// from masters of earlier releases.
    pub registration: u64,
}

/// An object that can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Which put of the key.
    pub generation: Generation,
    /// Its size in bytes.
    pub len: u64,
    /// Its copies; empty unless the request asks for them.
    pub replicas: Vec<Location>,
    /// It is never evicted.
    pub hard_pin: bool,
    /// It is evicted after all others.
    pub soft_pin: bool,
    /// A recent read protects it from eviction.
    pub leased: bool,
    /// It is a sample.
    pub sample: bool,
    /// The time until it expires, in milliseconds, if it has a TTL. If that is zero, a pin keeps it.
    pub expires_in_ms: Option<u64>,
}

/// What a put does when the key exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExists {
    /// The new object replaces the old one.
    #[default]
    Replace,
    /// The old object is kept; the outcome of the put is `Exists`.
    Keep,
    /// The old object is kept if it has a hard pin, and replaced otherwise.
    KeepHardPinned,
    /// The old object is kept if it has a hard or a soft pin, and replaced otherwise.
    KeepPinned,
}

/// In [`PutOptions::soft_pin_ms`]: the duration of the master's setting.
pub const SOFT_PIN_DEFAULT: u64 = u64::MAX;

/// How an object is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PutOptions {
    /// The number of copies on different nodes; fewer if there are fewer nodes.
    pub replicas: u32,
    /// What to do when the key exists.
    pub on_exists: OnExists,
    /// It is never evicted.
    pub hard_pin: bool,
    /// It is evicted after all others, for this many milliseconds. [`SOFT_PIN_DEFAULT`] takes the master's
    /// setting.
    pub soft_pin_ms: Option<u64>,
    /// Names of nodes to try first, in order.
    pub preferred: Vec<String>,
    /// The owner of the hard pin, for example a run, so that all its pins can be dropped in one call.
    pub owner: String,
    /// It is a sample, and how it is consumed.
    pub sample: Option<Consumption>,
    /// The stream to which the sample is appended; empty for none.
    pub stream: String,
    /// Bytes of the sample in another store. They count in its stream or, if it has none, against the quota
    /// of its namespace.
    pub elsewhere: u64,
    /// Only the object of this generation is replaced, and only if it has the same pins as this put. If the
    /// key has another object, a sample or none, nothing is stored, and the outcome is `Exists` with the
    /// generation of that object, or zero.
    pub replaces: Option<Generation>,
    /// It expires this many milliseconds after its commit, unless it is pinned then.
    pub ttl_ms: Option<u64>,
}

impl PutOptions {
    /// Whether the object will have no [`Attributes`](crate::attributes::Attributes).
    #[must_use]
    pub fn has_no_attributes(&self) -> bool {
        !self.hard_pin && self.sample.is_none() && self.replicas <= 1 && self.ttl_ms.is_none()
    }
}
