//! The messages of `core` as bytes, and back.
//!
//! [`frame`] is the envelope, [`codec`] what is inside it. Everything here is a function from bytes to
//! values or the reverse: no I/O, no tasks, no state but that of [`frame::Decoder`].
//!
//! **Invariant:** this is the only crate that changes when the wire changes, and `docs/protocol.md` changes
//! with it (a test compares the two).

#[macro_use]
pub mod codec;
pub mod frame;
mod keys;
mod messages;
mod state;

use tiffin_core::RequestId;
use tiffin_core::message::{Reply, Request};

use crate::codec::{EncodeError, Malformed, Message, Reader, Writer};
use crate::frame::Header;
pub use crate::state::{STATE_BYTES_MAX, StateError, decode_state, encode_state, with_state_header};

/// One message, as it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// Somebody asks.
    Request(RequestId, Request),
    /// Somebody answers.
    Reply(RequestId, Reply),
}

/// A whole frame whose contents cannot be understood. The stream can be read on; the sender of a request
/// deserves a refusal under the id of the frame's header.
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
    /// The payload is not what its kind says.
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
    /// The name in [`Request`] or [`Reply`].
    pub name: &'static str,
}

/// The frame of a request.
pub fn encode_request(id: RequestId, request: &Request) -> Result<Vec<u8>, EncodeError> {
    let mut out = Writer::new(frame::begin());
    encode_request_body(request, &mut out);
    let mut bytes = out.finish()?;
    frame::finish(&mut bytes, request_kind(request).number, false, id);
    Ok(bytes)
}

/// The frame of a reply.
pub fn encode_reply(id: RequestId, reply: &Reply) -> Result<Vec<u8>, EncodeError> {
    let mut out = Writer::new(frame::begin());
    encode_reply_body(reply, &mut out);
    let mut bytes = out.finish()?;
    frame::finish(&mut bytes, reply_kind(reply).number, true, id);
    Ok(bytes)
}

/// What is in a frame. The caller has checked it with [`frame::verify`].
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

/// Decodes a payload as the body of a message that the name describes.
fn body<M: Message, T>(
    name: &'static str,
    payload: &[u8],
    wrap: impl FnOnce(M) -> T,
) -> Result<T, (&'static str, Malformed)> {
    M::decode(&mut Reader::new(payload)).map(wrap).map_err(|error| (name, error.at(name)))
}

/// Ties the cases of an enum to their kind numbers: those with a body, then those without.
macro_rules! kinds {
    (
        $enum:ident, reply = $reply:literal, $table:ident, $kind_of:ident, $encode:ident, $decode:ident;
        $($number:literal => $case:ident),* ;
        $($unit_number:literal => $unit:ident),* $(,)?
    ) => {
        /// The kinds of this direction.
        const $table: &[Kind] = &[
            $(Kind { number: $number, reply: $reply, name: stringify!($case) },)*
            $(Kind { number: $unit_number, reply: $reply, name: stringify!($unit) },)*
        ];

        /// The number and the name of a message's kind.
        #[must_use]
        pub fn $kind_of(message: &$enum) -> Kind {
            match message {
                $($enum::$case(_) => Kind { number: $number, reply: $reply, name: stringify!($case) },)*
                $($enum::$unit => Kind { number: $unit_number, reply: $reply, name: stringify!($unit) },)*
            }
        }

        fn $encode(message: &$enum, out: &mut Writer) {
            match message {
                $($enum::$case(body) => body.encode(out),)*
                $($enum::$unit => {})*
            }
        }

        /// Nothing if there is no such kind.
        fn $decode(kind: u16, payload: &[u8]) -> Option<Result<$enum, (&'static str, Malformed)>> {
            Some(match kind {
                $($number => body(stringify!($case), payload, $enum::$case),)*
                $($unit_number => body(stringify!($unit), payload, |()| $enum::$unit),)*
                _ => return None,
            })
        }
    };
}

kinds! {
    Request, reply = false, REQUEST_KINDS, request_kind, encode_request_body, decode_request_body;
    1 => Hello, 2 => Reserve, 3 => Resolve, 4 => Delete, 5 => DeleteMatching, 6 => List, 8 => Heartbeat,
    9 => Register, 10 => Announce, 11 => Decide, 12 => Allocate, 13 => Settle, 14 => Retire,
    15 => ClientGone, 16 => Commit, 17 => Abort, 18 => BeginViews, 19 => EndViews, 21 => Keep,
    22 => Mark, 23 => Inspect, 24 => Released, 25 => Pin, 26 => DropPins, 27 => SetPolicy, 28 => Await,
    29 => Why, 30 => Lease, 31 => Release, 32 => Ack, 33 => Exists, 34 => Cancel,
    35 => KeepLeases, 36 => ClientDied, 37 => Prefetch, 38 => Demote, 39 => Promote, 40 => Dropped,
    41 => Publish, 42 => OpenStream, 43 => EndStream, 44 => Pull, 45 => Store,
    46 => ForgetNode;
    7 => Stat, 20 => Goodbye,
}

kinds! {
    Reply, reply = true, REPLY_KINDS, reply_kind, encode_reply_body, decode_reply_body;
    257 => Welcome, 258 => Refused, 260 => Reserved, 261 => Resolved, 262 => Deleted,
    263 => DeletedMatching, 264 => Listed, 265 => Stat, 266 => Registered, 267 => Announced,
    268 => Decided, 269 => Allocated, 270 => Settled, 271 => Committed, 272 => ViewsBegun,
    273 => Inspected, 274 => Pinned, 275 => Awaited, 276 => Why, 277 => Leased, 278 => Acked,
    279 => Present, 280 => Prefetched, 281 => Moved, 282 => Published, 283 => Stream, 284 => Pulled,
    285 => Forgotten;
    259 => Done,
}

/// Every kind there is: a number is never used twice, not even after its kind is gone.
pub fn kinds() -> impl Iterator<Item = Kind> {
    REQUEST_KINDS.iter().chain(REPLY_KINDS).copied()
}
