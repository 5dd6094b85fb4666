//! What a span tells.

use std::time::{Duration, SystemTime};

use crate::TraceContext;

/// What a span is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// A call of the client, or a step of one. Spans have `tiffin.` before it.
    Step(&'static str),
    /// A request, by the names of the server and of the message. Client and server use the same.
    Request(&'static str, &'static str),
}

/// The side that a span describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Inside one process.
    Internal,
    /// The side that answers a request.
    Server,
    /// The side that sends a request.
    Client,
}

/// The value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Number(u64),
    Word(&'static str),
}

/// A span that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) name: Name,
    pub(crate) kind: Kind,
    pub(crate) context: TraceContext,
    pub(crate) parent: TraceContext,
    pub(crate) began: SystemTime,
    pub(crate) took: Duration,
    /// Only names and numbers of this code, so that no key and no byte of an object is among them.
    pub(crate) attributes: Vec<(&'static str, Value)>,
    pub(crate) failed: Option<&'static str>,
}
