//! Arguments and results of calls.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use tiffin_transport::{SourceBuf, TargetBuf};
use tiffin_types::message::{NodeInfo, PutOptions};
use tiffin_types::units::Count;
use tiffin_types::{Generation, Key, Location, SegmentId};

use crate::Error;

/// One object to put.
#[derive(Clone, Debug)]
pub struct Put<'a> {
    /// Its name.
    pub key: Key,
    /// Its bytes, in order. If they change before the put has ended, the stored bytes are unspecified.
    pub parts: Vec<SourceBuf<'a>>,
    /// Replication, pins and what to do if the name exists. Zero replicas means one.
    pub options: PutOptions,
}

impl<'a> Put<'a> {
    /// One copy of these bytes. It replaces an object of that name if there is one.
    #[must_use]
    pub fn new(key: Key, bytes: &'a [u8]) -> Self {
        Self {
            key,
            parts: vec![SourceBuf::from(bytes)],
            options: PutOptions { replicas: 1, ..Default::default() },
        }
    }

    /// Total number of bytes; `None` if the sum overflows.
    pub(crate) fn len(&self) -> Option<u64> {
        self.parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.len() as u64))
    }
}

/// Whether objects exist, in the order of the request. Failures are stored separately because they are
/// rare.
#[derive(Clone, Debug, Default)]
pub struct Presences {
    /// `false` also if the answer is not known.
    pub there: Vec<bool>,
    /// The failures, by index.
    pub failures: BTreeMap<usize, Error>,
}

impl Presences {
    /// The same failure for all items.
    #[must_use]
    pub fn failed(count: usize, error: &Error) -> Self {
        Self { there: vec![false; count], failures: (0..count).map(|at| (at, error.clone())).collect() }
    }

    pub(crate) fn set(&mut self, place: usize, answer: Result<bool, Error>) {
        match (self.there.get_mut(place), answer) {
            (Some(there), Ok(answer)) => *there = answer,
            (_, Err(error)) => _ = self.failures.insert(place, error),
            (None, Ok(_)) => {}
        }
    }

    /// Inserts answers for some of the indices, in their order.
    pub(crate) fn insert_answers(&mut self, places: &[usize], mut answers: Self) {
        for (at, (&place, &there)) in places.iter().zip(&answers.there).enumerate() {
            self.set(place, answers.failures.remove(&at).map_or(Ok(there), Err));
        }
    }

    /// One result per item.
    #[must_use]
    pub fn into_results(self) -> Vec<Result<bool, Error>> {
        let Self { there, mut failures } = self;
        let results = there.into_iter().enumerate();
        results.map(|(at, there)| failures.remove(&at).map_or(Ok(there), Err)).collect()
    }
}

/// An object that can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Which put of the key it is; if an older object was kept, the generation of that one.
    pub generation: Generation,
    /// Number of copies made: zero if an older object was kept, fewer than requested if fewer nodes have
    /// space.
    pub copies: u32,
    /// What happened to the name.
    pub effect: PutEffect,
    /// Nodes that could not confirm the removal of the older object of that name, replaced by this put or
    /// deleted shortly before. Until they do, a client with a cached location may still read it there.
    /// Lookups find the new one.
    pub unconfirmed: Vec<String>,
}

/// What a put did to the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutEffect {
    /// There was no object of that name.
    Created,
    /// It replaced an older object of that name.
    Replaced,
    /// An object of that name existed and was kept, as asked; nothing was stored.
    Kept,
}

/// An object's bytes, in memory of their own.
#[derive(Clone, PartialEq, Eq)]
pub struct Object {
    /// Which put of the key.
    pub generation: Generation,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Prints the number of bytes, not the bytes.
impl fmt::Debug for Object {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Object({} bytes of {})", self.bytes.len(), self.generation)
    }
}

/// One object to be read into a caller's memory.
#[derive(Clone, Debug)]
pub struct GetInto<'a> {
    /// Its name.
    pub key: Key,
    /// Where the bytes are written, in order. If there is more space than bytes, the rest is not touched.
    pub targets: Vec<TargetBuf<'a>>,
    /// Which bytes of the object; all if `None`. A range that is not inside the object is
    /// [`Error::OutOfRange`].
    pub range: Option<Range<u64>>,
}

impl<'a> GetInto<'a> {
    /// Reads into this buffer.
    #[must_use]
    pub fn new(key: Key, buffer: &'a mut [u8]) -> Self {
        Self { key, targets: vec![TargetBuf::from(buffer)], range: None }
    }

    /// Reads into these buffers, one after the other.
    #[must_use]
    pub fn scattered(key: Key, targets: Vec<TargetBuf<'a>>) -> Self {
        Self { key, targets, range: None }
    }

    /// Reads only these bytes of the object.
    #[must_use]
    pub fn range(self, range: Range<u64>) -> Self {
        Self { range: Some(range), ..self }
    }
}

/// Some bytes of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name.
    pub key: Key,
    /// Which of its bytes; all if `None`. A range that is not inside the object is [`Error::OutOfRange`].
    pub range: Option<Range<u64>>,
}

/// An object that was read into a caller's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// Which put of the key.
    pub generation: Generation,
    /// How many bytes were read.
    pub len: u64,
}

/// The metadata of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Which put of the key.
    pub generation: Generation,
    /// Its bytes.
    pub len: u64,
    /// Never evicted.
    pub hard_pin: bool,
    /// Evicted after all others.
    pub soft_pin: bool,
    /// Protected from eviction by a recent read.
    pub leased: bool,
    /// The time until it expires, if it has a TTL. If that is zero, a pin keeps it.
    pub expires_in: Option<Duration>,
    /// The locations of its copies; empty unless requested. Copies on nodes that do not respond are
    /// omitted.
    pub replicas: Vec<Replica>,
}

/// One copy of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Where it is stored.
    pub location: Location,
    /// The node that holds it.
    pub node: NodeInfo,
}

/// How bytes are moved to and from a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The node is in this process.
    Local,
    /// Its memory is mapped.
    SharedMemory,
    /// Through its data socket.
    Tcp,
}

impl fmt::Display for Way {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Local => "local",
            Self::SharedMemory => "shared memory",
            Self::Tcp => "tcp",
        })
    }
}

/// A node that the client has connected to, or tried to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Its name.
    pub node: String,
    /// Its memory.
    pub segment: SegmentId,
    /// How bytes are moved; `None` while there is no connection.
    pub way: Option<Way>,
    /// Why its memory is not mapped, or why there is no connection.
    pub why: Option<String>,
}

/// A mark for the usage of a namespace: bytes of the nodes' memory, including reservations, each copy
/// counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watermark {
    /// At most this number.
    AtMost(u64),
    /// At least this number.
    AtLeast(u64),
}

impl Watermark {
    pub(crate) fn is_reached(self, used: u64) -> bool {
        match self {
            Self::AtMost(mark) => used <= mark,
            Self::AtLeast(mark) => used >= mark,
        }
    }
}

impl fmt::Display for Watermark {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(mark) => write!(out, "at most {}", Count(*mark, "byte")),
            Self::AtLeast(mark) => write!(out, "at least {}", Count(*mark, "byte")),
        }
    }
}
