//! A stream with TLS.
//!
//! Bytes are encrypted from, and decrypted into, private memory, and copied from and to the ranges: a cipher
//! needs slices, which must not be formed over a segment.
//!
//! **Invariant:** bytes count as sent when all of their encrypted form has been handed on, so nothing has to
//! be flushed later.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tiffin_tls::{Session, TlsClient, TlsError, TlsServer, TlsStream, host_of, is_client_hello};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::frame::{DATA_VERSION_MIN, Rejection, WelcomeHead};
use super::stream::{ByteStream, Socket, WaitMode};
use crate::buffer::{SourceBuf, TargetBuf};
use crate::copy;

/// How many bytes are encrypted and sent together at most.
const SEAL_BYTES: usize = 64 << 10;
/// The greatest buffer for received bytes. It grows while a peer fills it.
const RECEIVE_BYTES_MAX: usize = 256 << 10;
/// The greatest part of the hello that is read from a peer without TLS.
const PLAINTEXT_BYTES: usize = 1 << 10;

/// An encrypted stream.
pub(super) struct SecureStream<W> {
    wire: W,
    session: Session,
    /// The rest of a record; the first `taken` bytes were received by the caller.
    plain: Vec<u8>,
    taken: usize,
    /// What is encrypted next.
    staged: Box<[u8]>,
    /// Encrypted bytes; the first `sent` were sent.
    sealed: Vec<u8>,
    sent: usize,
    /// How many bytes of the caller these are.
    accepted: usize,
}

impl<W> SecureStream<W> {
    fn new(wire: W, session: Session) -> Self {
        let (plain, sealed) = Default::default();
        let staged = vec![0; SEAL_BYTES].into_boxed_slice();
        Self { wire, session, plain, taken: 0, staged, sealed, sent: 0, accepted: 0 }
    }
}

/// Carries out the handshake of a client with `host:port`.
pub(super) async fn connect(
    stream: TcpStream,
    tls: &TlsClient,
    address: &str,
) -> io::Result<SecureStream<Socket>> {
    let session = tls.session(host_of(address))?;
    let (stream, session) = TlsStream::shake(stream, session).await?.into_parts();
    Ok(SecureStream::new(Socket::new(stream)?, session))
}

/// Carries out the handshake of a server. A client without TLS is told why it is not accepted.
pub(super) async fn accept(mut stream: TcpStream, tls: &TlsServer) -> io::Result<SecureStream<TcpStream>> {
    let mut start = [0; 2];
    let len = stream.peek(&mut start).await?;
    let is_tls = start.get(..len).is_some_and(|it| len < start.len() || is_client_hello(it));
    if !is_tls {
        let _hello = stream.read(&mut [0; PLAINTEXT_BYTES]).await?;
        let reason = TlsError::Wanted.to_string();
        stream.write_all(&WelcomeHead::encode(DATA_VERSION_MIN, Err(Rejection::Refused), &reason)).await?;
        return Err(TlsError::Plaintext.into());
    }
    let (stream, session) = TlsStream::shake(stream, tls.session()?).await?.into_parts();
    Ok(SecureStream::new(stream, session))
}

impl<W: ByteStream> ByteStream for SecureStream<W> {
    fn poll_receive(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        targets: &[TargetBuf<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self { wire, session, plain, taken, .. } = &mut *self;
        let mut filled = Filled { targets, first: 0, at: 0, bytes: 0 };
        loop {
            *taken += filled.put(plain.get(*taken..).unwrap_or_default());
            if *taken == plain.len() {
                plain.clear();
                *taken = 0;
            }
            while !filled.is_full() {
                let is_opened = session.open(&mut |bytes| {
                    let put = filled.put(bytes);
                    plain.extend_from_slice(bytes.get(put..).unwrap_or_default());
                })?;
                if !is_opened {
                    break;
                }
            }
            if filled.bytes > 0 || session.is_ended() {
                return Poll::Ready(Ok(filled.bytes));
            }
            let space = session.space();
            let wanted = space.len();
            let received = ready!(Pin::new(&mut *wire).poll_receive(context, &[TargetBuf::from(space)]))?;
            session.received(received);
            match received {
                0 => return Poll::Ready(Ok(0)),
                all if all == wanted => session.enlarge(RECEIVE_BYTES_MAX.min(4 * wanted)),
                _ => {}
            }
        }
    }

    fn poll_send(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        sources: &[SourceBuf<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self { wire, session, staged, sealed, sent, accepted, .. } = &mut *self;
        if *accepted == 0 {
            for source in sources {
                let free = staged.get_mut(*accepted..).unwrap_or_default();
                let (source, _) = source.split_at(free.len());
                copy::copy_out(source, free.get_mut(..source.len()).unwrap_or_default());
                *accepted += source.len();
            }
            session.seal(staged.get(..*accepted).unwrap_or_default(), sealed)?;
        }
        // After `Pending` the caller passes the same ranges again.
        while let Some(rest) = sealed.get(*sent..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut *wire).poll_send(context, &[SourceBuf::from(rest)]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                more => *sent += more,
            }
        }
        sealed.clear();
        *sent = 0;
        Poll::Ready(Ok(std::mem::take(accepted)))
    }

    fn is_idle(&self) -> bool {
        self.plain.is_empty() && self.session.is_empty() && self.wire.is_idle()
    }

    fn set_wait(&mut self, how: WaitMode) -> bool {
        self.wire.set_wait(how)
    }
}

/// Ranges, and how much of them is filled.
struct Filled<'a, 'b> {
    targets: &'a [TargetBuf<'b>],
    first: usize,
    at: usize,
    bytes: usize,
}

impl Filled<'_, '_> {
    /// Copies as many bytes as there is space for. Returns their number.
    fn put(&mut self, mut bytes: &[u8]) -> usize {
        let before = bytes.len();
        while let Some(target) = self.targets.get(self.first).filter(|_| !bytes.is_empty()) {
            let (_, free) = target.split_at(self.at);
            let (free, _) = free.split_at(bytes.len());
            let (now, later) = bytes.split_at(free.len());
            copy::copy_in(now, free);
            (bytes, self.at) = (later, self.at + now.len());
            if self.at == target.len() {
                (self.first, self.at) = (self.first + 1, 0);
            }
        }
        self.bytes += before - bytes.len();
        before - bytes.len()
    }

    fn is_full(&self) -> bool {
        self.first == self.targets.len()
    }
}
