//! Encodes and decodes the messages of `types`.
//!
//! [`frame`] is the envelope, [`codec`] its payload. Everything here is a function between bytes and values:
//! no I/O, no tasks, no state except that of [`frame::Decoder`].
//!
//! **Invariant:** this is the only crate that changes when the wire format changes. `docs/protocol.md`
//! changes with it; a test compares the two.

#[macro_use]
pub mod codec;
pub mod frame;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod keys;
mod messages;
mod state;
mod trace;

use tiffin_types::RequestId;
use tiffin_types::message::{
    ClientToMaster, ClientToNode, MasterToMember, MemberToMaster, Reply, Request, RequestRef,
};
use tiffin_types::trace::TraceContext;

use crate::codec::{EncodeError, Malformed, Message, Reader, Writer};
use crate::frame::Header;
pub use crate::state::{STATE_BYTES_MAX, StateError, decode_state, encode_state, with_state_header};
pub use crate::trace::trace_of;

/// A message that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// A request, with its id.
    Request(RequestId, Request),
    /// The reply to the request with that id.
    Reply(RequestId, Reply),
}

/// A valid frame whose payload cannot be decoded. The stream remains usable. A request should be refused
/// under the id in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A later minor version may have more kinds than this one.
    #[error("message {id:?} is of kind {kind}, which this side does not know: upgrade it")]
    Kind {
        /// The id in the header.
        id: RequestId,
        /// The kind in the header.
        kind: u16,
    },
    /// The payload does not match its kind.
    #[error("the {kind} message {id:?} is malformed in {source}")]
    Malformed {
        /// The id in the header.
        id: RequestId,
        /// The name of its kind.
        kind: &'static str,
        /// What is wrong.
        source: Malformed,
    },
}

impl DecodeError {
    /// The id in the header.
    #[must_use]
    pub fn id(&self) -> RequestId {
        match self {
            Self::Kind { id, .. } | Self::Malformed { id, .. } => *id,
        }
    }
}

/// One row of the table of kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// The number in the header.
    pub number: u16,
    /// It is a reply.
    pub reply: bool,
    /// The name of the message.
    pub name: &'static str,
    /// Which parties send and receive it; "reply" for replies.
    pub direction: &'static str,
}

impl Kind {
    const fn request(number: u16, name: &'static str, direction: &'static str) -> Self {
        Self { number, reply: false, name, direction }
    }

    const fn reply(number: u16, name: &'static str) -> Self {
        Self { number, reply: true, name, direction: "reply" }
    }
}

/// The frame of a request.
pub fn encode_request<'a>(id: RequestId, request: impl Into<RequestRef<'a>>) -> Result<Vec<u8>, EncodeError> {
    encode_traced_request(id, request, None)
}

/// The same for a request that continues a trace.
pub fn encode_traced_request<'a>(
    id: RequestId,
    request: impl Into<RequestRef<'a>>,
    trace: Option<&TraceContext>,
) -> Result<Vec<u8>, EncodeError> {
    let mut out = Writer::new(frame::begin());
    trace.into_iter().for_each(|it| trace::encode(it, &mut out));
    let kind = encode_request_body(request.into(), &mut out);
    let mut bytes = out.finish()?;
    frame::finish(&mut bytes, kind, false, id);
    Ok(bytes)
}

/// The frame of a reply.
pub fn encode_reply(id: RequestId, reply: &Reply) -> Result<Vec<u8>, EncodeError> {
    let mut out = Writer::new(frame::begin());
    let kind = encode_reply_body(reply, &mut out);
    let mut bytes = out.finish()?;
    frame::finish(&mut bytes, kind, true, id);
    Ok(bytes)
}

/// The message in a frame. The caller has checked the frame with [`frame::verify`].
pub fn decode(header: &Header, payload: &[u8]) -> Result<Incoming, DecodeError> {
    let (id, kind) = (header.id, header.kind);
    let malformed = |kind, source| DecodeError::Malformed { id, kind, source };
    if header.reply {
        let decoded = decode_reply_body(kind, payload).ok_or(DecodeError::Kind { id, kind })?;
        decoded.map(|reply| Incoming::Reply(id, reply)).map_err(|(name, source)| malformed(name, source))
    } else {
        let decoded = decode_request_body(kind, payload).ok_or(DecodeError::Kind { id, kind })?;
        decoded
            .map(|request| Incoming::Request(id, request))
            .map_err(|(name, source)| malformed(name, source))
    }
}

/// Every kind. A number is never reused, not even after its kind was removed.
pub fn kinds() -> impl Iterator<Item = Kind> {
    REQUEST_KINDS.iter().chain(REPLY_KINDS).copied()
}

/// The kind of a request.
#[must_use]
pub fn request_kind<'a>(request: impl Into<RequestRef<'a>>) -> Kind {
    kind_of_request(request.into())
}

/// Decodes a payload as the body of the message with that name.
fn body<M: Message, T>(
    name: &'static str,
    payload: &[u8],
    wrap: impl FnOnce(M) -> T,
) -> Result<T, (&'static str, Malformed)> {
    M::decode(&mut Reader::new(payload)).map(wrap).map_err(|error| (name, error.at(name)))
}

const HELLO_NUMBER: u16 = 1;
const GOODBYE_NUMBER: u16 = 20;
const HELLO: Kind = Kind::request(HELLO_NUMBER, "Hello", "any");
const GOODBYE: Kind = Kind::request(GOODBYE_NUMBER, "Goodbye", "any");

/// The kind numbers of the requests of each direction: those with a body, then those without.
macro_rules! requests {
    ($($direction:ident, $name:literal {
        $($number:literal => $case:ident),* ;
        $($unit_number:literal => $unit:ident),* $(,)?
    })*) => {
        const REQUEST_KINDS: &[Kind] = &[
            HELLO,
            GOODBYE,
            $($(Kind::request($number, stringify!($case), $name),)*
            $(Kind::request($unit_number, stringify!($unit), $name),)*)*
        ];

        fn kind_of_request(request: RequestRef<'_>) -> Kind {
            match request {
                RequestRef::Hello(_) => HELLO,
                RequestRef::Goodbye => GOODBYE,
                $(RequestRef::$direction(request) => match request {
                    $($direction::$case(_) => Kind::request($number, stringify!($case), $name),)*
                    $($direction::$unit => Kind::request($unit_number, stringify!($unit), $name),)*
                },)*
            }
        }

        /// Writes the payload, and returns the kind number.
        fn encode_request_body(request: RequestRef<'_>, out: &mut Writer) -> u16 {
            match request {
                RequestRef::Hello(hello) => hello.encode(out),
                RequestRef::Goodbye => {}
                $(RequestRef::$direction(request) => match request {
                    $($direction::$case(body) => body.encode(out),)*
                    $($direction::$unit => {})*
                },)*
            }
            kind_of_request(request).number
        }

        /// `None` if there is no such kind.
        fn decode_request_body(
            kind: u16,
            payload: &[u8],
        ) -> Option<Result<Request, (&'static str, Malformed)>> {
            Some(match kind {
                HELLO_NUMBER => body("Hello", payload, Request::Hello),
                GOODBYE_NUMBER => body("Goodbye", payload, |()| Request::Goodbye),
                $($($number => body(stringify!($case), payload, |it| {
                    Request::$direction($direction::$case(it))
                }),)*
                $($unit_number => body(stringify!($unit), payload, |()| {
                    Request::$direction($direction::$unit)
                }),)*)*
                _ => return None,
            })
        }
    };
}

requests! {
    ClientToMaster, "client → master" {
        2 => Reserve, 3 => Resolve, 4 => Delete, 5 => DeleteMatching, 6 => List, 25 => Pin, 26 => DropPins,
        27 => SetPolicy, 28 => Await, 29 => Why, 30 => Lease, 31 => Release, 32 => Ack, 33 => Exists,
        34 => Cancel, 35 => KeepLeases, 37 => Prefetch, 41 => Publish, 42 => OpenStream, 43 => EndStream,
        44 => Pull, 46 => Ping, 47 => ForgetNode, 52 => AdmitCluster;
        7 => Stat,
    }
    MemberToMaster, "member → master" {
        8 => Heartbeat, 9 => Register, 10 => Announce, 11 => Decide, 24 => Released, 36 => ClientDied,
        40 => Dropped, 51 => Drained;
    }
    MasterToMember, "master → member" {
        12 => Allocate, 13 => Settle, 14 => Retire, 15 => ClientGone, 22 => SetAttributes, 23 => Inspect,
        38 => Demote, 39 => Promote, 49 => Fetch, 50 => Drain;
    }
    ClientToNode, "client → node" {
        16 => Commit, 17 => Abort, 18 => BeginViews, 19 => EndViews, 21 => Keep, 45 => Store,
        48 => KeepViews;
    }
}

/// The kind numbers of replies: those with a body, then those without.
macro_rules! replies {
    ($($number:literal => $case:ident),* ; $($unit_number:literal => $unit:ident),* $(,)?) => {
        const REPLY_KINDS: &[Kind] = &[
            $(Kind::reply($number, stringify!($case)),)*
            $(Kind::reply($unit_number, stringify!($unit)),)*
        ];

        /// The kind of a reply.
        #[must_use]
        pub fn reply_kind(reply: &Reply) -> Kind {
            match reply {
                $(Reply::$case(_) => Kind::reply($number, stringify!($case)),)*
                $(Reply::$unit => Kind::reply($unit_number, stringify!($unit)),)*
            }
        }

        /// Writes the payload, and returns the kind number.
        fn encode_reply_body(reply: &Reply, out: &mut Writer) -> u16 {
            match reply {
                $(Reply::$case(body) => body.encode(out),)*
                $(Reply::$unit => {})*
            }
            reply_kind(reply).number
        }

        /// `None` if there is no such kind.
        fn decode_reply_body(kind: u16, payload: &[u8]) -> Option<Result<Reply, (&'static str, Malformed)>> {
            Some(match kind {
                $($number => body(stringify!($case), payload, Reply::$case),)*
                $($unit_number => body(stringify!($unit), payload, |()| Reply::$unit),)*
                _ => return None,
            })
        }
    };
}

replies! {
    257 => Welcome, 258 => Refused, 260 => Reserved, 261 => Resolved, 262 => Deleted,
    263 => DeletedMatching, 264 => Listed, 265 => Stat, 266 => Registered, 267 => Announced,
    268 => Decided, 269 => Allocated, 270 => Settled, 271 => Committed, 272 => ViewsBegun,
    273 => Inspected, 274 => Pinned, 275 => Awaited, 276 => Why, 277 => Leased, 278 => Acked,
    279 => Present, 280 => Prefetched, 281 => Moved, 282 => Published, 283 => Stream, 284 => Pulled,
    285 => Forgotten;
    259 => Done,
}
