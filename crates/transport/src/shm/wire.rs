//! Messages on the attach socket: one request and one answer, of fixed little-endian fields.
//!
//! ```text
//! request   magic u32 · version u32 · client u64 · segment u64 · token bytes u32 · wanted u32 · token
//! answer    magic u32 · version u32 · status u32 · reason bytes u32 · segment u64 · control bytes u64 ·
//!           data bytes u64 · reason
//! ```
//! With status 0 the first byte of the answer carries descriptors. A client wants memory (0) and gets three:
//! of the control segment, of the data segment and of the claim words. The master wants the claim words
//! alone (1); then the data bytes are those of the claim words. With status 1 there are none, and the reason
//! follows.
//!
//! Since version 3 a reader checks the claim words: a client of an older version must not map the memory.

use crate::fields::{Builder, Fields, short_reason};
use crate::layout::Geometry;
use crate::{REASON_BYTES_MAX, TOKEN_BYTES_MAX};

/// `TFA1`.
pub const ATTACH_MAGIC: u32 = u32::from_le_bytes(*b"TFA1");
/// The newest version that this side speaks, as [`DATA_VERSION`](crate::tcp::frame::DATA_VERSION) of the data
/// socket.
pub const ATTACH_VERSION: u32 = 3;
/// The oldest version that this side speaks.
pub(super) const ATTACH_VERSION_MIN: u32 = 3;

pub(super) const REQUEST_BYTES: usize = 32;
pub(super) const ANSWER_BYTES: usize = 40;

const STATUS_OK: u32 = 0;
const STATUS_REFUSED: u32 = 1;

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The memory, for a client.
    Memory = 0,
    /// The claim words, for the master.
    Claims = 1,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    /// The version that both sides speak: the older one of their newest.
    pub(super) version: u32,
    pub(super) client: u64,
    pub(super) segment: u64,
    pub(super) token_bytes: usize,
    pub(super) wanted: Wanted,
}

impl Request {
    pub(super) fn encode(client: u64, segment: u64, token: &str, wanted: Wanted) -> Vec<u8> {
        let head = Builder::default().u32(ATTACH_MAGIC).u32(ATTACH_VERSION).u64(client).u64(segment);
        head.u32(token.len() as u32).u32(wanted as u32).bytes(token.as_bytes()).0
    }

    /// `Err` is the problem.
    pub(super) fn decode(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, &'static str> {
        let mut fields = Fields(bytes);
        if fields.u32() != Some(ATTACH_MAGIC) {
            return Err("not an attach request");
        }
        // A newer client learns from the answer how old this side is.
        let Some(version) = fields.u32().filter(|it| *it >= ATTACH_VERSION_MIN) else {
            return Err("unknown version of the attach protocol");
        };
        let version = version.min(ATTACH_VERSION);
        let request = (|| Some((fields.u64()?, fields.u64()?, fields.u32()?, fields.u32()?)))();
        let (client, segment, token_bytes, wanted) = request.ok_or("the request is incomplete")?;
        let wanted = match wanted {
            0 => Wanted::Memory,
            1 => Wanted::Claims,
            _ => return Err("the request is for something unknown"),
        };
        let token_bytes = usize::try_from(token_bytes).unwrap_or(usize::MAX);
        if token_bytes > TOKEN_BYTES_MAX {
            return Err("the token is too long");
        }
        Ok(Self { version, client, segment, token_bytes, wanted })
    }
}

/// The node's answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) is_ok: bool,
    pub(super) reason_bytes: usize,
    pub(super) segment: u64,
    pub(super) control_bytes: u64,
    pub(super) data_bytes: u64,
}

impl Answer {
    pub(super) fn accepted(version: u32, geometry: &Geometry, wanted: Wanted) -> Vec<u8> {
        let head = Builder::default().u32(ATTACH_MAGIC).u32(version).u32(STATUS_OK).u32(0);
        let (control_bytes, data_bytes) = match wanted {
            Wanted::Memory => (geometry.control_bytes(), geometry.data_bytes),
            Wanted::Claims => (0, geometry.claims_bytes()),
        };
        head.u64(geometry.segment).u64(control_bytes).u64(data_bytes).0
    }

    /// In the oldest version: the request may be in an unknown one.
    pub(super) fn refused(reason: &str) -> Vec<u8> {
        let reason = short_reason(reason);
        let head = Builder::default().u32(ATTACH_MAGIC).u32(ATTACH_VERSION_MIN).u32(STATUS_REFUSED);
        head.u32(reason.len() as u32).u64(0).u64(0).u64(0).bytes(reason.as_bytes()).0
    }

    pub(super) fn decode(bytes: &[u8; ANSWER_BYTES]) -> Result<Self, &'static str> {
        let mut fields = Fields(bytes);
        if fields.u32() != Some(ATTACH_MAGIC) {
            return Err("the answer is not from a node");
        }
        if !fields.u32().is_some_and(|it| (ATTACH_VERSION_MIN..=ATTACH_VERSION).contains(&it)) {
            return Err("the node has another version of the attach protocol");
        }
        let (status, reason_bytes) = (fields.u32(), fields.u32().unwrap_or(u32::MAX) as usize);
        let is_ok = status == Some(STATUS_OK);
        if !is_ok && status != Some(STATUS_REFUSED) || reason_bytes > REASON_BYTES_MAX {
            return Err("the answer is invalid");
        }
        let sizes = (|| Some((fields.u64()?, fields.u64()?, fields.u64()?)))();
        let (segment, control_bytes, data_bytes) = sizes.ok_or("the answer is incomplete")?;
        Ok(Self { is_ok, reason_bytes, segment, control_bytes, data_bytes })
    }
}

/// For the decoders in `fuzz`.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz {
    use super::*;

    pub(crate) fn decode(bytes: &[u8]) {
        if let Some(Ok(request)) = bytes.first_chunk().map(Request::decode) {
            assert!(request.token_bytes <= TOKEN_BYTES_MAX);
        }
        if let Some(Ok(answer)) = bytes.first_chunk().map(Answer::decode) {
            assert!(answer.reason_bytes <= REASON_BYTES_MAX);
        }
    }

    pub(crate) fn seeds() -> Vec<Vec<u8>> {
        let geometry = Geometry { segment: 1, data_bytes: 4096, slot_count: 1, heap_bytes: 64 };
        vec![
            Request::encode(7, 9, "secret", Wanted::Memory),
            Request::encode(7, 9, "", Wanted::Claims),
            Answer::accepted(ATTACH_VERSION, &geometry, Wanted::Memory),
            Answer::refused("no"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry { segment: 1, data_bytes: 3, slot_count: 1, heap_bytes: 0 };

    #[test]
    fn requests_and_answers_round_trip() {
        let bytes = Request::encode(7, 9, "secret", Wanted::Claims);
        let (head, token) = bytes.split_first_chunk().unwrap();
        assert_eq!(
            Request::decode(head),
            Ok(Request {
                version: ATTACH_VERSION,
                client: 7,
                segment: 9,
                token_bytes: 6,
                wanted: Wanted::Claims
            })
        );
        assert_eq!(token, b"secret");

        let bytes = Answer::accepted(ATTACH_VERSION, &GEOMETRY, Wanted::Memory);
        let answer = Answer::decode(bytes.first_chunk().unwrap()).unwrap();
        let expected = Answer {
            is_ok: true,
            reason_bytes: 0,
            segment: 1,
            control_bytes: GEOMETRY.control_bytes(),
            data_bytes: 3,
        };
        assert_eq!(answer, expected);

        let long = "é".repeat(REASON_BYTES_MAX);
        let bytes = Answer::refused(&long);
        let (head, reason) = bytes.split_first_chunk().unwrap();
        let answer = Answer::decode(head).unwrap();
        assert_eq!((answer.is_ok, answer.reason_bytes), (false, REASON_BYTES_MAX));
        assert_eq!(std::str::from_utf8(reason).unwrap(), "é".repeat(REASON_BYTES_MAX / 2));
    }

    #[test]
    fn neighbouring_versions_speak_the_older_one() {
        let mut request: [u8; REQUEST_BYTES] =
            *Request::encode(7, 9, "", Wanted::Memory).first_chunk().unwrap();
        request[4..8].copy_from_slice(&(ATTACH_VERSION + 1).to_le_bytes());
        assert_eq!(
            Request::decode(&request),
            Ok(Request {
                version: ATTACH_VERSION,
                client: 7,
                segment: 9,
                token_bytes: 0,
                wanted: Wanted::Memory
            })
        );
        let mut answer: [u8; ANSWER_BYTES] =
            *Answer::accepted(ATTACH_VERSION, &GEOMETRY, Wanted::Memory).first_chunk().unwrap();
        assert_eq!(answer[4..8], ATTACH_VERSION.to_le_bytes());
        assert!(Answer::decode(&answer).is_ok());
        for version in [ATTACH_VERSION_MIN - 1, ATTACH_VERSION + 1] {
            answer[4..8].copy_from_slice(&version.to_le_bytes());
            assert_eq!(Answer::decode(&answer), Err("the node has another version of the attach protocol"));
        }
    }

    #[test]
    fn invalid_messages_are_rejected_with_the_problem() {
        let good = Request::encode(7, 9, "", Wanted::Memory);
        for (at, value, expected) in [
            (0, 0xff, "not an attach request"),
            (4, 1, "unknown version of the attach protocol"),
            (27, 0x7f, "the token is too long"),
            (28, 2, "the request is for something unknown"),
        ] {
            let mut bytes: [u8; REQUEST_BYTES] = *good.first_chunk().unwrap();
            bytes[at] = value;
            assert_eq!(Request::decode(&bytes), Err(expected));
        }
        let good = Answer::accepted(ATTACH_VERSION, &GEOMETRY, Wanted::Memory);
        for (at, value, expected) in [
            (0, 0xff, "the answer is not from a node"),
            (4, 9, "the node has another version of the attach protocol"),
            (8, 9, "the answer is invalid"),
            (15, 9, "the answer is invalid"),
        ] {
            let mut bytes: [u8; ANSWER_BYTES] = *good.first_chunk().unwrap();
            bytes[at] = value;
            assert_eq!(Answer::decode(&bytes), Err(expected));
        }
    }
}
