//! What goes in and what comes out.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

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
    /// Its bytes, in order. They must not change until the put has ended, or what is stored is unspecified.
    pub parts: Vec<SourceBuf<'a>>,
    /// How it is to be kept. Zero replicas means one.
    pub options: PutOptions,
}

impl<'a> Put<'a> {
    /// One copy of these bytes, in place of an older object of that name if there is one.
    #[must_use]
    pub fn new(key: Key, bytes: &'a [u8]) -> Self {
        Self {
            key,
            parts: vec![SourceBuf::from(bytes)],
            options: PutOptions { replicas: 1, ..Default::default() },
        }
    }

    /// How many bytes there are; `None` where the sum overflows.
    pub(crate) fn len(&self) -> Option<u64> {
        self.parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.len() as u64))
    }
}

/// Whether objects are there, in the order asked. Failures lie apart, because there are hardly ever any.
#[derive(Clone, Debug, Default)]
pub struct Presences {
    /// `false` also where it is not known.
    pub there: Vec<bool>,
    /// By their places, those of which it is not known.
    pub failures: BTreeMap<usize, Error>,
}

impl Presences {
    /// The same failure for all.
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

    /// Takes in answers for some of the places, in their order.
    pub(crate) fn take_in(&mut self, places: &[usize], mut answers: Self) {
        for (at, (&place, &there)) in places.iter().zip(&answers.there).enumerate() {
            self.set(place, answers.failures.remove(&at).map_or(Ok(there), Err));
        }
    }

    /// One result for each.
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
    /// Which put of the key it is; if an older object was kept, that one's.
    pub generation: Generation,
    /// How many copies were made: none if an older object was kept, and fewer than asked for if there are
    /// fewer nodes with room.
    pub copies: u32,
    /// What became of the name.
    pub effect: PutEffect,
    /// Nodes that could not confirm in time that the older object of that name is gone, be it replaced by
    /// this put or deleted shortly before: until they do, who knows where it lies there may still read it.
    /// Lookups find the new one.
    pub unconfirmed: Vec<String>,
}

/// What a put did to the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutEffect {
    /// It was free.
    Created,
    /// An older object of that name is gone.
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

/// Bytes are shown as a number: there may be many.
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
    /// Where the bytes go, in order. There may be more room than bytes; what is not needed is not touched.
    pub targets: Vec<TargetBuf<'a>>,
    /// Which of the object's bytes; all of them if it does not say. A range that is not inside the object is
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
    /// Which of its bytes; all of them if it does not say. A range that is not inside the object is
    /// [`Error::OutOfRange`].
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

/// What is known of an object.
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
    /// Where its copies lie; empty unless asked for. Copies on nodes that do not answer are left out.
    pub replicas: Vec<Replica>,
}

/// One copy of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Where it lies.
    pub location: Location,
    /// The node that holds it.
    pub node: NodeInfo,
}

/// How bytes go to and from a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The node lives in this process.
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

/// A node that the client has talked to, or tried to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Its name.
    pub node: String,
    /// Its memory.
    pub segment: SegmentId,
    /// How bytes go there; `None` while there is no connection.
    pub way: Option<Way>,
    /// Why its memory is not mapped, where it is not; or why there is no connection, where there is none.
    pub why: Option<String>,
}

/// How full a namespace is to be: bytes of the nodes' memory, reservations included, each copy counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watermark {
    /// So many or fewer.
    AtMost(u64),
    /// So many or more.
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
