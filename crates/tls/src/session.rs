//! One TLS connection, without I/O: bytes of the peer go in, bytes for the peer come out.
//!
//! **Invariant:** what is sealed is sent in the order in which it was sealed, and what is received is passed
//! in in the order in which it came.

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};

use crate::TlsError;

/// The greatest length of a record on the wire.
pub const RECORD_BYTES_MAX: usize = 5 + (16 << 10) + 256;
/// The greatest length of the handshake's bytes that wait to be processed.
const HANDSHAKE_BYTES_MAX: usize = 96 << 10;
/// The first buffer for the peer's bytes. It grows when the peer sends more.
const RECEIVE_BYTES_MIN: usize = 2 << 10;
/// Bytes that a record adds to its content, and some more.
const OVERHEAD_BYTES: usize = 64;
/// The least content of a full record.
const FRAGMENT_BYTES: usize = 16 << 10;
/// How a record with a handshake message begins: the kind, and the version.
const HANDSHAKE_START: [u8; 2] = [0x16, 0x03];
/// The kinds of records.
const RECORD_KINDS: std::ops::RangeInclusive<u8> = 0x14..=0x18;

/// Whether bytes begin as the handshake of a client does.
#[must_use]
pub fn is_client_hello(bytes: &[u8]) -> bool {
    bytes.starts_with(&HANDSHAKE_START)
}

/// One connection.
pub struct Session {
    side: Side,
    /// Bytes of the peer between `start` and `end`, and space behind.
    incoming: Vec<u8>,
    start: usize,
    end: usize,
    /// Decrypted bytes that came with the end of the handshake.
    early: Vec<u8>,
    /// Protocol messages that are sent before the next bytes.
    pending: Vec<u8>,
    has_received: bool,
    is_ended: bool,
}

pub(crate) enum Side {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// The function that gets decrypted bytes, in pieces.
pub type Plaintext<'a> = &'a mut dyn FnMut(&[u8]);

/// What to send where bytes can be sealed.
#[derive(Clone, Copy)]
enum Write<'a> {
    Nothing,
    Bytes(&'a [u8]),
    Close,
}

/// What to do next.
enum Next {
    Again,
    /// Decrypted bytes were passed on.
    Opened,
    /// The peer's next bytes are needed.
    Blocked,
    /// The same, and bytes can be sealed.
    Ready,
    /// The peer sends no more.
    Ended,
}

impl Session {
    pub(crate) fn new(side: Side) -> Self {
        let (incoming, early, pending) = Default::default();
        let (has_received, is_ended) = (false, false);
        Self { side, incoming, start: 0, end: 0, early, pending, has_received, is_ended }
    }

    /// Where to put the peer's next bytes: at least one byte long. [`Self::received`] says how many came.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start > 0 && (self.start == self.end || self.end == self.incoming.len()) {
            self.incoming.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.incoming.len() {
            self.incoming.resize((2 * self.end).max(RECEIVE_BYTES_MIN), 0);
        }
        self.incoming.get_mut(self.end..).unwrap_or_default()
    }

    /// Makes the space larger, so that fewer system calls fill it.
    pub fn enlarge(&mut self, bytes: usize) {
        if self.incoming.len() < bytes {
            self.incoming.resize(bytes, 0);
        }
    }

    /// So many bytes of the peer were put into the space.
    pub fn received(&mut self, bytes: usize) {
        self.end = self.incoming.len().min(self.end + bytes);
    }

    /// Continues the handshake with what was received, and appends what is to be sent. True when the
    /// handshake is complete. Also with an error there may be something to send: the reason for the peer.
    ///
    /// A server knows then whether it accepts the client. A client learns that with the server's first bytes.
    pub fn shake(&mut self, out: &mut Vec<u8>) -> Result<bool, TlsError> {
        let waiting = self.incoming.get(self.start..self.end).unwrap_or_default();
        if let Some(first) = waiting.first() {
            if !self.has_received && !RECORD_KINDS.contains(first) {
                return Err(TlsError::Plaintext);
            }
            self.has_received = true;
        }
        if waiting.len() > HANDSHAKE_BYTES_MAX {
            return Err(TlsError::TooLong(HANDSHAKE_BYTES_MAX));
        }
        let mut early = std::mem::take(&mut self.early);
        let ended = loop {
            match self.step(out, &mut |plain| early.extend_from_slice(plain)) {
                Ok(Next::Again | Next::Opened) => {}
                Ok(Next::Ready) => break self.check_whole().map(|()| true),
                Ok(Next::Blocked) => break Ok(false),
                Ok(Next::Ended) => break Err(TlsError::Closed),
                Err(error) => break Err(error),
            }
        };
        self.early = early;
        ended
    }

    /// Decrypts the next record, if it was received completely, and passes on its bytes. False if it was not,
    /// or if the peer has closed the connection: see [`Self::is_ended`].
    pub fn open(&mut self, plain: Plaintext<'_>) -> Result<bool, TlsError> {
        if !self.early.is_empty() {
            plain(&std::mem::take(&mut self.early));
            return Ok(true);
        }
        let mut pending = std::mem::take(&mut self.pending);
        let ended = loop {
            match self.step(&mut pending, plain) {
                Ok(Next::Again) => {}
                Ok(Next::Opened) => break Ok(true),
                Ok(Next::Blocked | Next::Ready) => break self.check_whole().map(|()| false),
                Ok(Next::Ended) => break Ok(false),
                Err(error) => break Err(error),
            }
        };
        self.pending = pending;
        ended
    }

    /// Encrypts these bytes, and appends the result.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), TlsError> {
        self.write(Write::Bytes(plain), out)
    }

    /// Appends the message that tells the peer that no more bytes follow.
    pub fn close(&mut self, out: &mut Vec<u8>) -> Result<(), TlsError> {
        self.write(Write::Close, out)
    }

    /// The peer has said that no more bytes follow.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Nothing was received that was not passed on.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start == self.end && self.early.is_empty() && !self.is_ended
    }

    /// Whether the client has shown a certificate that this server accepts.
    #[must_use]
    pub fn has_peer_certificate(&self) -> bool {
        match &self.side {
            Side::Client(it) => it.peer_certificates().is_some(),
            Side::Server(it) => it.peer_certificates().is_some(),
        }
    }

    fn write(&mut self, write: Write<'_>, out: &mut Vec<u8>) -> Result<(), TlsError> {
        out.append(&mut self.pending);
        loop {
            // Without received bytes, this passes none on.
            let (_, next) = match &mut self.side {
                Side::Client(it) => advance(it.process_tls_records(&mut []), write, out, &mut |_| {}),
                Side::Server(it) => advance(it.process_tls_records(&mut []), write, out, &mut |_| {}),
            };
            match next? {
                Next::Again => {}
                Next::Ready => return Ok(()),
                Next::Opened | Next::Blocked | Next::Ended => return Err(TlsError::Closed),
            }
        }
    }

    /// Processes received bytes until something comes of it.
    fn step(&mut self, out: &mut Vec<u8>, plain: Plaintext<'_>) -> Result<Next, TlsError> {
        let waiting = self.incoming.get_mut(self.start..self.end).unwrap_or_default();
        let (used, next) = match &mut self.side {
            Side::Client(it) => advance(it.process_tls_records(waiting), Write::Nothing, out, plain),
            Side::Server(it) => advance(it.process_tls_records(waiting), Write::Nothing, out, plain),
        };
        self.start = self.end.min(self.start + used);
        match next {
            Ok(Next::Ended) => self.is_ended = true,
            // The reason for the peer.
            Err(_) => while matches!(self.explain(out), Ok(Next::Again)) {},
            Ok(_) => {}
        }
        next
    }

    /// Fails if a received record was processed, but is still needed: it has a part of a handshake message.
    /// After the handshake no peer of ours sends such parts, and nothing could be sealed until the rest came.
    #[expect(clippy::big_endian_bytes, reason = "TLS is big-endian")]
    fn check_whole(&self) -> Result<(), TlsError> {
        let waiting = self.incoming.get(self.start..self.end).unwrap_or_default();
        let &[_, _, _, high, low, ref rest @ ..] = waiting else { return Ok(()) };
        match rest.len() >= usize::from(u16::from_be_bytes([high, low])) {
            true => Err(TlsError::Other("a handshake message came in parts after the handshake".to_owned())),
            false => Ok(()),
        }
    }

    /// The same bytes as before are passed in, because a part of a handshake message may be in them.
    fn explain(&mut self, out: &mut Vec<u8>) -> Result<Next, TlsError> {
        let waiting = self.incoming.get_mut(self.start..self.end).unwrap_or_default();
        match &mut self.side {
            Side::Client(it) => advance(it.process_tls_records(waiting), Write::Nothing, out, &mut |_| {}).1,
            Side::Server(it) => advance(it.process_tls_records(waiting), Write::Nothing, out, &mut |_| {}).1,
        }
    }
}

/// Carries out the state of a connection. Returns how many received bytes were used, and what is next.
fn advance<D>(
    status: UnbufferedStatus<'_, '_, D>,
    write: Write<'_>,
    out: &mut Vec<u8>,
    plain: Plaintext<'_>,
) -> (usize, Result<Next, TlsError>) {
    let mut used = status.discard;
    let next = match status.state {
        Err(error) => Err(error.into()),
        Ok(ConnectionState::EncodeTlsData(mut message)) => {
            append(out, OVERHEAD_BYTES, |space| match message.encode(space) {
                Ok(len) => Ok(Ok(len)),
                Err(EncodeError::InsufficientSize(needed)) => Err(needed.required_size),
                Err(error) => Ok(Err(TlsError::Other(error.to_string()))),
            })
            .map(|()| Next::Again)
        }
        Ok(ConnectionState::TransmitTlsData(sent)) => {
            // The caller sends all that was appended before anything that is appended later.
            sent.done();
            Ok(Next::Again)
        }
        Ok(ConnectionState::ReadTraffic(mut records)) => loop {
            match records.next_record() {
                Some(Ok(record)) => {
                    used += record.discard;
                    plain(record.payload);
                }
                Some(Err(error)) => break Err(error.into()),
                None => break Ok(Next::Opened),
            }
        },
        Ok(ConnectionState::WriteTraffic(mut writer)) => {
            let written = |written| match written {
                Ok(len) => Ok(Ok(len)),
                Err(EncryptError::InsufficientSize(needed)) => Err(needed.required_size),
                Err(error) => Ok(Err(TlsError::Other(error.to_string()))),
            };
            let appended = match write {
                Write::Nothing => Ok(()),
                Write::Close => {
                    append(out, OVERHEAD_BYTES, |space| written(writer.queue_close_notify(space)))
                }
                Write::Bytes(bytes) => {
                    let most = bytes.len() + (bytes.len() / FRAGMENT_BYTES + 1) * OVERHEAD_BYTES;
                    append(out, most, |space| written(writer.encrypt(bytes, space)))
                }
            };
            appended.map(|()| Next::Ready)
        }
        Ok(ConnectionState::BlockedHandshake) => Ok(Next::Blocked),
        Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Next::Ended),
        // Early data is not accepted.
        Ok(_) => Err(TlsError::Other("an unexpected state".to_owned())),
    };
    (used, next)
}

/// Lets `encode` write behind `out`. It is called again if it says that it needs more space.
fn append(
    out: &mut Vec<u8>,
    space: usize,
    mut encode: impl FnMut(&mut [u8]) -> Result<Result<usize, TlsError>, usize>,
) -> Result<(), TlsError> {
    let from = out.len();
    let mut wanted = space;
    loop {
        out.resize(from + wanted, 0);
        match encode(out.get_mut(from..).unwrap_or_default()) {
            Ok(Ok(len)) => {
                out.truncate(from + len);
                return Ok(());
            }
            Ok(Err(error)) => {
                out.truncate(from);
                return Err(error);
            }
            Err(needed) => wanted = needed.max(wanted + 1),
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let side = match &self.side {
            Side::Client(_) => "client",
            Side::Server(_) => "server",
        };
        out.debug_struct("Session").field("side", &side).finish_non_exhaustive()
    }
}
