//! Headers on the data socket, of fixed little-endian fields.
//!
//! ```text
//! hello     magic u32 · version u32 · client u64 · segment u64 · token bytes u32 · zero u32 · token
//! welcome   magic u32 · version u32 · status u32 · reason bytes u32 · reason
//! request   kind u32 · slot u32 · id u64 · stamp u64 · offset u64 · length u64 · epoch u64
//!           WRITE (1) is followed by the bytes and their xxh3 u64; READ (2) and READ_CACHED (3) by nothing.
//!           Only the latter, a read from a cached location, has a nonzero epoch. For disks only: STAGE (4)
//!           and STAGE_CACHED (5) are reads whose bytes may be left in a staging segment that the reader
//!           maps, RELEASE (6) frees them and is not answered
//! reply     kind u32 · status u32 · id u64 · length u64 · xxh3 u64
//!           WRITTEN (1); DATA (2), if its status is ok, is followed by the bytes and a TRAILER (3);
//!           STAGED (4): instead of a length and a checksum, slot and stamp of the staged bytes
//! ```
//! Requests are answered in order. Any other content ends the connection.

use std::ops::RangeInclusive;

use crate::fields::{Builder, Fields, short_reason};
use crate::{CHUNK_BYTES_MAX, REASON_BYTES_MAX, TOKEN_BYTES_MAX};

/// `TFD1`.
pub const DATA_MAGIC: u32 = u32::from_le_bytes(*b"TFD1");
/// The newest version that this side speaks. The hello names it; the welcome names the older one of both
/// sides' newest versions, and both speak that.
pub const DATA_VERSION: u32 = 6;
/// The oldest version that this side speaks. A release that changes the protocol speaks that of the release
/// before it, too.
pub const DATA_VERSION_MIN: u32 = 6;

/// Bytes of a hello before its token.
pub const HELLO_BYTES: usize = 32;
/// Bytes of a welcome before its reason.
pub const WELCOME_BYTES: usize = 16;
/// Bytes of a request's header.
pub const REQUEST_BYTES: usize = 48;
/// Bytes of the checksum after those of a write.
pub const CHECKSUM_BYTES: usize = 8;
/// Bytes of a reply's header.
pub const REPLY_BYTES: usize = 32;

/// Why received bytes are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The peer uses another protocol.
    #[error("the peer is not a data socket")]
    Magic,
    /// The peer has another version of the protocol.
    #[error("the peer has another version of the data protocol")]
    Version,
    /// A token, a reason or a chunk exceeds its limit.
    #[error("a length exceeds its limit")]
    Length,
    /// A kind or status that does not exist.
    #[error("invalid header")]
    Nonsense,
}

/// The first message of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloHead {
    /// The version that both sides speak: the older one of their newest.
    pub version: u32,
    /// The client's id.
    pub client: u64,
    /// The segment it wants.
    pub segment: u64,
    /// Length of the token that follows.
    pub token_bytes: usize,
}

impl HelloHead {
    /// The header and the token.
    #[must_use]
    pub fn encode(client: u64, segment: u64, token: &str) -> Vec<u8> {
        let head = Builder::default().u32(DATA_MAGIC).u32(DATA_VERSION).u64(client).u64(segment);
        head.u32(token.len() as u32).u32(0).bytes(token.as_bytes()).0
    }

    /// Decodes the header.
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, FrameError> {
        let mut fields = Fields(bytes);
        // A newer client learns from the welcome how old this side is.
        let version = check_magic(&mut fields, DATA_VERSION_MIN..=u32::MAX)?.min(DATA_VERSION);
        let head = (|| Some((fields.u64()?, fields.u64()?, fields.u32()?)))();
        let (client, segment, token_bytes) = head.ok_or(FrameError::Nonsense)?;
        let token_bytes = token_bytes as usize;
        if token_bytes > TOKEN_BYTES_MAX {
            return Err(FrameError::Length);
        }
        Ok(Self { version, client, segment, token_bytes })
    }
}

/// Why a hello was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The client is not allowed, or there are too many.
    Refused,
    /// The requested segment is not here.
    OtherSegment,
}

/// The answer to a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WelcomeHead {
    /// Acceptance, or the kind of rejection.
    pub status: Result<(), Rejection>,
    /// Length of the reason that follows.
    pub reason_bytes: usize,
}

impl WelcomeHead {
    /// The header and the reason, in the version of the hello.
    #[must_use]
    pub fn encode(version: u32, status: Result<(), Rejection>, reason: &str) -> Vec<u8> {
        let reason = short_reason(reason);
        let status = match status {
            Ok(()) => 0,
            Err(Rejection::Refused) => 1,
            Err(Rejection::OtherSegment) => 2,
        };
        let head = Builder::default().u32(DATA_MAGIC).u32(version).u32(status);
        head.u32(reason.len() as u32).bytes(reason.as_bytes()).0
    }

    /// Decodes the header.
    pub fn decode(bytes: &[u8; WELCOME_BYTES]) -> Result<Self, FrameError> {
        let mut fields = Fields(bytes);
        check_magic(&mut fields, DATA_VERSION_MIN..=DATA_VERSION)?;
        let status = match fields.u32() {
            Some(0) => Ok(()),
            Some(1) => Err(Rejection::Refused),
            Some(2) => Err(Rejection::OtherSegment),
            _ => return Err(FrameError::Nonsense),
        };
        let reason_bytes = fields.u32().ok_or(FrameError::Nonsense)? as usize;
        if reason_bytes > REASON_BYTES_MAX {
            return Err(FrameError::Length);
        }
        Ok(Self { status, reason_bytes })
    }
}

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Writes the bytes that follow.
    Write,
    /// Reads bytes.
    Read,
    /// Reads bytes of a disk, through the socket or into the staging segment.
    Stage,
    /// The reader is done with a staged read: slot and stamp are those of the staging segment.
    Release,
}

/// A request for one range of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Kind of the request.
    pub kind: RequestKind,
    /// The slot in the control segment.
    pub slot: u32,
    /// Returned in the reply.
    pub id: u64,
    /// The use of the slot.
    pub stamp: u64,
    /// Start of the range within the object's bytes.
    pub offset: u64,
    /// Length of the range.
    pub len: u64,
    /// The epoch of a cached location; `None` if the master has just resolved it.
    pub cached_epoch: Option<u64>,
}

impl RequestHead {
    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let kind = match (self.kind, self.cached_epoch) {
            (RequestKind::Write, _) => 1,
            (RequestKind::Read, None) => 2,
            (RequestKind::Read, Some(_)) => 3,
            (RequestKind::Stage, None) => 4,
            (RequestKind::Stage, Some(_)) => 5,
            (RequestKind::Release, _) => 6,
        };
        let head = Builder::default().u32(kind).u32(self.slot).u64(self.id).u64(self.stamp);
        head.u64(self.offset).u64(self.len).u64(self.cached_epoch.unwrap_or(0)).0
    }

    /// Decodes the header.
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, FrameError> {
        let mut fields = Fields(bytes);
        let kind = match fields.u32() {
            Some(1) => (RequestKind::Write, false),
            Some(2) => (RequestKind::Read, false),
            Some(3) => (RequestKind::Read, true),
            Some(4) => (RequestKind::Stage, false),
            Some(5) => (RequestKind::Stage, true),
            Some(6) => (RequestKind::Release, false),
            _ => return Err(FrameError::Nonsense),
        };
        let (kind, is_cached) = kind;
        let head = (|| {
            let (slot, id, stamp) = (fields.u32()?, fields.u64()?, fields.u64()?);
            let (offset, len, epoch) = (fields.u64()?, fields.u64()?, fields.u64()?);
            let cached_epoch = is_cached.then_some(epoch);
            (is_cached || epoch == 0).then_some(Self { kind, slot, id, stamp, offset, len, cached_epoch })
        })();
        let head = head.ok_or(FrameError::Nonsense)?;
        if head.len > CHUNK_BYTES_MAX {
            return Err(FrameError::Length);
        }
        Ok(head)
    }
}

/// Kind of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyKind {
    /// A write.
    Written,
    /// A read; with status ok, the bytes and a trailer follow.
    Data,
    /// The same read, after its bytes: whether they are valid.
    Trailer,
    /// A read whose bytes are in the staging segment, until the reader releases them.
    Staged,
}

/// Result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Success.
    Ok,
    /// The slot does not hold the stamp, or is no longer writable.
    Stale,
    /// The bytes arrived damaged; the write has no effect.
    BadChecksum,
    /// The range is not inside the slot's bytes.
    OutOfRange,
    /// The disk cannot read the bytes now.
    Unreadable,
}

/// A reply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyHead {
    /// Kind of the reply.
    pub kind: ReplyKind,
    /// Result of the request.
    pub status: Status,
    /// The id of the request.
    pub id: u64,
    /// For data: number of bytes that follow. For staged bytes: the slot.
    pub len: u64,
    /// For a trailer: the xxh3-64 of the bytes. For staged bytes: the stamp.
    pub checksum: u64,
}

impl ReplyHead {
    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let kind = match self.kind {
            ReplyKind::Written => 1,
            ReplyKind::Data => 2,
            ReplyKind::Trailer => 3,
            ReplyKind::Staged => 4,
        };
        let status = match self.status {
            Status::Ok => 0,
            Status::Stale => 1,
            Status::BadChecksum => 2,
            Status::OutOfRange => 3,
            Status::Unreadable => 4,
        };
        Builder::default().u32(kind).u32(status).u64(self.id).u64(self.len).u64(self.checksum).0
    }

    /// Decodes the header.
    pub fn decode(bytes: &[u8; REPLY_BYTES]) -> Result<Self, FrameError> {
        let mut fields = Fields(bytes);
        let kind = match fields.u32() {
            Some(1) => ReplyKind::Written,
            Some(2) => ReplyKind::Data,
            Some(3) => ReplyKind::Trailer,
            Some(4) => ReplyKind::Staged,
            _ => return Err(FrameError::Nonsense),
        };
        let status = match fields.u32() {
            Some(0) => Status::Ok,
            Some(1) => Status::Stale,
            Some(2) => Status::BadChecksum,
            Some(3) => Status::OutOfRange,
            Some(4) => Status::Unreadable,
            _ => return Err(FrameError::Nonsense),
        };
        let head = (|| Some((fields.u64()?, fields.u64()?, fields.u64()?)))();
        let (id, len, checksum) = head.ok_or(FrameError::Nonsense)?;
        Ok(Self { kind, status, id, len, checksum })
    }
}

/// The version, if it is one of these.
fn check_magic(fields: &mut Fields<'_>, versions: RangeInclusive<u32>) -> Result<u32, FrameError> {
    if fields.u32() != Some(DATA_MAGIC) {
        return Err(FrameError::Magic);
    }
    fields.u32().filter(|it| versions.contains(it)).ok_or(FrameError::Version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip() {
        let bytes = HelloHead::encode(7, 9, "secret");
        let (head, token) = bytes.split_first_chunk().unwrap();
        assert_eq!(
            HelloHead::decode(head),
            Ok(HelloHead { version: DATA_VERSION, client: 7, segment: 9, token_bytes: 6 })
        );
        assert_eq!(token, b"secret");

        for status in [Ok(()), Err(Rejection::Refused), Err(Rejection::OtherSegment)] {
            let bytes = WelcomeHead::encode(DATA_VERSION, status, "no");
            let (head, reason) = bytes.split_first_chunk().unwrap();
            assert_eq!(WelcomeHead::decode(head), Ok(WelcomeHead { status, reason_bytes: 2 }));
            assert_eq!(reason, b"no");
        }
        for (kind, cached_epoch) in [
            (RequestKind::Write, None),
            (RequestKind::Read, None),
            (RequestKind::Read, Some(0)),
            (RequestKind::Read, Some(u64::MAX)),
            (RequestKind::Stage, None),
            (RequestKind::Stage, Some(7)),
            (RequestKind::Release, None),
        ] {
            let len = CHUNK_BYTES_MAX;
            let head = RequestHead { kind, slot: 1, id: 2, stamp: 3, offset: 4, len, cached_epoch };
            assert_eq!(RequestHead::decode(head.encode().first_chunk().unwrap()), Ok(head));
        }
        for kind in [ReplyKind::Written, ReplyKind::Data, ReplyKind::Trailer, ReplyKind::Staged] {
            for status in
                [Status::Ok, Status::Stale, Status::BadChecksum, Status::OutOfRange, Status::Unreadable]
            {
                let head = ReplyHead { kind, status, id: 1, len: 2, checksum: 3 };
                assert_eq!(ReplyHead::decode(head.encode().first_chunk().unwrap()), Ok(head));
            }
        }
    }

    #[test]
    fn neighbouring_versions_speak_the_older_one() {
        // The hello of the next release is accepted, and the welcome tells it what to speak.
        let mut hello: [u8; HELLO_BYTES] = *HelloHead::encode(7, 9, "").first_chunk().unwrap();
        hello[4..8].copy_from_slice(&(DATA_VERSION + 1).to_le_bytes());
        let head = HelloHead { version: DATA_VERSION, client: 7, segment: 9, token_bytes: 0 };
        assert_eq!(HelloHead::decode(&hello), Ok(head));
        let welcome = WelcomeHead::encode(head.version, Ok(()), "");
        let mut welcome: [u8; WELCOME_BYTES] = *welcome.first_chunk().unwrap();
        assert_eq!(welcome[4..8], DATA_VERSION.to_le_bytes());
        // A node of the next release answers with our version. Any other one we do not speak.
        assert!(WelcomeHead::decode(&welcome).is_ok());
        for version in [DATA_VERSION_MIN - 1, DATA_VERSION + 1] {
            welcome[4..8].copy_from_slice(&version.to_le_bytes());
            assert_eq!(WelcomeHead::decode(&welcome), Err(FrameError::Version));
        }
    }

    #[test]
    fn invalid_headers_are_rejected() {
        let mut hello: [u8; HELLO_BYTES] = *HelloHead::encode(7, 9, "").first_chunk().unwrap();
        for (at, value, expected) in [
            (0, 0, FrameError::Magic),
            (4, DATA_VERSION_MIN as u8 - 1, FrameError::Version),
            (26, 1, FrameError::Length),
        ] {
            let old = std::mem::replace(&mut hello[at], value);
            assert_eq!(HelloHead::decode(&hello), Err(expected));
            hello[at] = old;
        }
        assert_eq!(WelcomeHead::decode(&[0; WELCOME_BYTES]), Err(FrameError::Magic));
        assert_eq!(RequestHead::decode(&[0; REQUEST_BYTES]), Err(FrameError::Nonsense));
        assert_eq!(ReplyHead::decode(&[9; REPLY_BYTES]), Err(FrameError::Nonsense));
        let kind = RequestKind::Read;
        let len = CHUNK_BYTES_MAX + 1;
        let too_long = RequestHead { kind, slot: 0, id: 0, stamp: 1, offset: 0, len, cached_epoch: None };
        assert_eq!(RequestHead::decode(too_long.encode().first_chunk().unwrap()), Err(FrameError::Length));
    }
}
