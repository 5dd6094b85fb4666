//! The envelope of every message: a header of 24 bytes, then the payload.
//!
//! ```text
//!  0        4      6     7     8            16       20         24
//!  | "TFN1" | kind | flg | min | request id | length | checksum | payload …
//! ```
//!
//! All numbers are little-endian. `docs/protocol.md` says what they mean.
//!
//! **Invariant:** for any bytes, decoding returns a frame or a [`FrameError`], and allocates no memory for a
//! length that a header only claims.

use tiffin_types::RequestId;
use tiffin_types::message::VERSION_MINOR;
use xxhash_rust::xxh3::Xxh3;

/// The size of the header.
pub const HEADER_BYTES: usize = 24;
/// The greatest size of a payload.
pub const PAYLOAD_BYTES_MAX: usize = 64 << 20;

/// The first four bytes of every frame; the last of them is the major version as a digit.
const MAGIC: [u8; 4] = *b"TFN1";
/// Set on replies.
const FLAG_REPLY: u8 = 1;
/// The bytes of the header that the checksum covers.
const CHECKED_BYTES: usize = 20;

/// The fields of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Which message this is; `docs/protocol.md` lists the numbers.
    pub kind: u16,
    /// It is the reply to the request of the same id.
    pub reply: bool,
    /// The sender's minor version.
    pub minor: u8,
    /// Matches a reply to its request.
    pub id: RequestId,
    /// The size of the payload, at most [`PAYLOAD_BYTES_MAX`].
    pub len: u32,
    /// See [`verify`].
    pub checksum: u32,
}

/// Bytes that are not a frame. The start of the next frame is unknown, so the connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The peer speaks another protocol.
    #[error("{}", foreign(.0))]
    Magic([u8; 4]),
    /// The peer speaks another major version.
    #[error("the peer speaks protocol version `{}`, this side speaks `{}`: upgrade the older one",
        .0.escape_ascii(), MAGIC[3].escape_ascii())]
    Major(u8),
    /// A flag whose meaning this side does not know.
    #[error("the frame has unknown flags {0:#04x}: upgrade this side")]
    Flags(u8),
    /// The payload exceeds [`PAYLOAD_BYTES_MAX`].
    #[error("the frame claims {0} bytes of payload, which exceeds the limit of {PAYLOAD_BYTES_MAX}")]
    TooLong(u32),
    /// The bytes were changed in transit.
    #[error("wrong checksum of a frame: {found:#010x} in its header, {computed:#010x} of its bytes")]
    Checksum {
        /// The checksum in the header.
        found: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
}

/// The beginnings of HTTP responses and requests.
const HTTP_STARTS: [&[u8; 4]; 7] = [b"HTTP", b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI"];
/// The first two bytes of a TLS record: an alert or a handshake of major version 3.
const TLS_STARTS: [[u8; 2]; 2] = [[0x15, 3], [0x16, 3]];

/// Names the protocol of a peer that does not speak ours, as far as its first bytes show it.
fn foreign(magic: &[u8; 4]) -> String {
    if HTTP_STARTS.contains(&magic) {
        return "it speaks HTTP, not the Tiffin protocol".to_owned();
    }
    if magic == b"SSH-" {
        return "it speaks SSH, not the Tiffin protocol".to_owned();
    }
    if TLS_STARTS.iter().any(|start| magic.starts_with(start)) {
        return "it speaks TLS, not the Tiffin protocol".to_owned();
    }
    format!("it does not speak the Tiffin protocol: its first bytes are `{}`", magic.escape_ascii())
}

/// Checks the first bytes of a stream, even if there are fewer than a header: a peer that speaks another
/// protocol may send less and then wait.
pub fn check_start(bytes: &[u8]) -> Result<(), FrameError> {
    let Some(magic) = bytes.first_chunk::<4>().copied().filter(|it| *it != MAGIC) else { return Ok(()) };
    let [a, b, c, major] = magic;
    Err(match MAGIC.starts_with(&[a, b, c]) && major.is_ascii_digit() {
        true => FrameError::Major(major),
        false => FrameError::Magic(magic),
    })
}

/// Decodes a header, and rejects one that no frame may have.
pub fn decode_header(bytes: &[u8; HEADER_BYTES]) -> Result<Header, FrameError> {
    check_start(bytes)?;
    let [kind_low, kind_high, flags, minor] = four(bytes, 4);
    if flags & !FLAG_REPLY != 0 {
        return Err(FrameError::Flags(flags));
    }
    let id_low = u64::from(u32::from_le_bytes(four(bytes, 8)));
    let id_high = u64::from(u32::from_le_bytes(four(bytes, 12)));
    let len = u32::from_le_bytes(four(bytes, 16));
    if len as usize > PAYLOAD_BYTES_MAX {
        return Err(FrameError::TooLong(len));
    }
    Ok(Header {
        kind: u16::from_le_bytes([kind_low, kind_high]),
        reply: flags & FLAG_REPLY != 0,
        minor,
        id: RequestId(id_high << 32 | id_low),
        len,
        checksum: u32::from_le_bytes(four(bytes, 20)),
    })
}

/// Checks the checksum and the length of a payload.
pub fn verify(header: &Header, payload: &[u8]) -> Result<(), FrameError> {
    let computed = checksum(&checked_part(header), payload);
    match computed == header.checksum && payload.len() == header.len as usize {
        true => Ok(()),
        false => Err(FrameError::Checksum { found: header.checksum, computed }),
    }
}

/// The frame of a payload.
///
/// # Panics
///
/// If the payload is longer than [`PAYLOAD_BYTES_MAX`].
#[must_use]
pub fn encode(kind: u16, reply: bool, id: RequestId, payload: &[u8]) -> Vec<u8> {
    let mut frame = begin();
    frame.extend_from_slice(payload);
    finish(&mut frame, kind, reply, id);
    frame
}

/// Splits a stream of bytes into frames. The bytes may arrive in any portions.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    // The number of bytes at the front that belong to frames that were returned.
    taken: usize,
}

impl Decoder {
    /// A decoder without bytes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete frame, if there is one. After an error the stream is unusable.
    pub fn pop(&mut self) -> Result<Option<(Header, &[u8])>, FrameError> {
        let rest = self.bytes.get(self.taken..).unwrap_or_default();
        let Some((header, rest)) = rest.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = decode_header(header)?;
        let Some(payload) = rest.get(..header.len as usize) else { return Ok(None) };
        verify(&header, payload)?;
        self.taken += HEADER_BYTES + payload.len();
        Ok(Some((header, payload)))
    }

    /// The number of bytes of a frame that is not complete yet.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.bytes.len() - self.taken
    }
}

/// An empty frame: space for the header, which [`finish`] fills in when the payload follows it.
pub(crate) fn begin() -> Vec<u8> {
    let mut frame = Vec::with_capacity(256);
    frame.resize(HEADER_BYTES, 0);
    frame
}

/// Fills in the header of a frame that [`begin`] returned.
pub(crate) fn finish(frame: &mut [u8], kind: u16, reply: bool, id: RequestId) {
    let (head, payload) = frame.split_first_chunk_mut::<HEADER_BYTES>().expect("`begin` made space");
    assert!(payload.len() <= PAYLOAD_BYTES_MAX, "a payload of {} bytes", payload.len());
    let minor = VERSION_MINOR as u8;
    let mut header = Header { kind, reply, minor, id, len: payload.len() as u32, checksum: 0 };
    let checked = checked_part(&header);
    header.checksum = checksum(&checked, payload);
    let (front, back) = head.split_at_mut(CHECKED_BYTES);
    front.copy_from_slice(&checked);
    back.copy_from_slice(&header.checksum.to_le_bytes());
}

/// The bytes of the header before the checksum.
fn checked_part(header: &Header) -> [u8; CHECKED_BYTES] {
    let mut bytes = [0; CHECKED_BYTES];
    let fields: [&[u8]; 5] = [
        &MAGIC,
        &header.kind.to_le_bytes(),
        &[if header.reply { FLAG_REPLY } else { 0 }, header.minor],
        &header.id.0.to_le_bytes(),
        &header.len.to_le_bytes(),
    ];
    for (to, from) in bytes.iter_mut().zip(fields.into_iter().flatten()) {
        *to = *from;
    }
    bytes
}

fn checksum(checked: &[u8; CHECKED_BYTES], payload: &[u8]) -> u32 {
    let mut hash = Xxh3::new();
    hash.update(checked);
    hash.update(payload);
    hash.digest() as u32
}

/// The four bytes at `at`, which is a constant within the header.
fn four(bytes: &[u8; HEADER_BYTES], at: usize) -> [u8; 4] {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header_of(frame: &[u8]) -> Result<Header, FrameError> {
        decode_header(frame.first_chunk().unwrap())
    }

    #[test]
    fn frame_layout_is_as_documented() {
        let frame = encode(0x0203, true, RequestId(0x1122_3344_5566_7788), b"abc");
        assert_eq!(&frame[..8], b"TFN1\x03\x02\x01\x00");
        assert_eq!(&frame[8..16], &[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        assert_eq!(&frame[16..20], &[3, 0, 0, 0]);
        let covered = [&frame[..20], b"abc"].concat();
        let sum = xxhash_rust::xxh3::xxh3_64(&covered) as u32;
        assert_eq!(&frame[20..24], &sum.to_le_bytes());
        assert_eq!(&frame[24..], b"abc");
        let header = header_of(&frame).unwrap();
        assert_eq!((header.kind, header.reply, header.id), (0x0203, true, RequestId(0x1122_3344_5566_7788)));
        assert_eq!(verify(&header, b"abc"), Ok(()));
    }

    #[test]
    fn foreign_protocols_are_named() {
        for (bytes, expected) in [
            (b"HTTP", "it speaks HTTP, not the Tiffin protocol"),
            (b"GET ", "it speaks HTTP, not the Tiffin protocol"),
            (b"\x15\x03\x01\x00", "it speaks TLS, not the Tiffin protocol"),
            (b"SSH-", "it speaks SSH, not the Tiffin protocol"),
            (b"220 ", "it does not speak the Tiffin protocol: its first bytes are `220 `"),
            (b"\x00\xff\r\n", r"it does not speak the Tiffin protocol: its first bytes are `\x00\xff\r\n`"),
        ] {
            assert_eq!(FrameError::Magic(*bytes).to_string(), expected);
        }
    }

    #[test]
    fn every_changed_bit_is_detected() {
        let good = encode(7, false, RequestId(9), b"the payload");
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let mut decoder = Decoder::new();
            decoder.push(&bad);
            // A longer length only waits for bytes that never come; everything else is an error.
            assert!(!matches!(decoder.pop(), Ok(Some(_))), "bit {bit} was flipped unnoticed");
        }
    }

    #[test]
    fn invalid_headers_are_rejected() {
        let with = |at: usize, bytes: &[u8]| {
            let mut frame = encode(1, false, RequestId(1), b"");
            frame[at..at + bytes.len()].copy_from_slice(bytes);
            header_of(&frame)
        };
        assert_eq!(with(0, b"GET "), Err(FrameError::Magic(*b"GET ")));
        assert_eq!(with(3, b"2"), Err(FrameError::Major(b'2')));
        assert_eq!(with(6, &[3]), Err(FrameError::Flags(3)));
        let long = PAYLOAD_BYTES_MAX as u32 + 1;
        assert_eq!(with(16, &long.to_le_bytes()), Err(FrameError::TooLong(long)));
        assert!(with(16, &(long - 1).to_le_bytes()).is_ok());
    }

    #[test]
    fn frames_are_decoded_from_any_portions() {
        let stream: Vec<u8> = (0..20u64)
            .flat_map(|at| encode(at as u16, false, RequestId(at), &vec![at as u8; at as usize * 7]))
            .collect();
        for step in [1, 2, 23, 24, 25, 100, stream.len()] {
            let mut decoder = Decoder::new();
            let mut seen = Vec::new();
            for bytes in stream.chunks(step) {
                decoder.push(bytes);
                while let Some((header, payload)) = decoder.pop().unwrap() {
                    assert!(payload.iter().all(|byte| u64::from(*byte) == header.id.0));
                    seen.push((header.id.0, payload.len()));
                }
            }
            assert_eq!(seen, (0..20).map(|at| (at, at as usize * 7)).collect::<Vec<_>>());
            assert_eq!(decoder.waiting(), 0);
        }
    }
}
