//! A session over a stream of the runtime.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::{Session, TlsClient, TlsError};

/// How many bytes one write encrypts at most.
const WRITE_BYTES_MAX: usize = 64 << 10;
/// How long a peer that is refused may take to read the reason.
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);
/// How many bytes of such a peer are read and dropped.
const LINGER_BYTES_MAX: usize = 64 << 10;

/// An encrypted stream.
#[derive(Debug)]
pub struct TlsStream<S> {
    stream: S,
    session: Session,
    /// Decrypted bytes; the first `taken` were read.
    plain: Vec<u8>,
    taken: usize,
    /// Encrypted bytes; the first `sent` were sent.
    sealed: Vec<u8>,
    sent: usize,
    is_closing: bool,
}

/// A stream of bytes, encrypted or not.
pub trait AnyStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> AnyStream for S {}

/// Connects to `host:port`; with TLS, if there is a CA to trust. There is no deadline here.
pub async fn connect(address: &str, tls: Option<&TlsClient>) -> io::Result<Box<dyn AnyStream>> {
    let stream = TcpStream::connect(address).await?;
    Ok(match tls {
        None => Box::new(stream),
        Some(tls) => Box::new(TlsStream::shake(stream, tls.session(host_of(address))?).await?),
    })
}

/// The host in `host:port`, without brackets.
#[must_use]
pub fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream<S> {
    /// Carries out the handshake. It has no deadline: the caller drops the future at its own.
    pub async fn shake(mut stream: S, mut session: Session) -> io::Result<Self> {
        let mut out = Vec::new();
        loop {
            let shaken = session.shake(&mut out);
            if !out.is_empty() {
                let sent = stream.write_all(&out).await;
                out.clear();
                if shaken.is_ok() {
                    sent?;
                }
            }
            match shaken {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) => {
                    linger(&mut stream).await;
                    return Err(error.into());
                }
            }
            match stream.read(session.space()).await? {
                0 => return Err(TlsError::Closed.into()),
                read => session.received(read),
            }
        }
        let (plain, sealed) = Default::default();
        Ok(Self { stream, session, plain, taken: 0, sealed, sent: 0, is_closing: false })
    }

    /// The session and the stream below it. Nothing was read or written since the handshake.
    #[must_use]
    pub fn into_parts(self) -> (S, Session) {
        (self.stream, self.session)
    }

    /// See [`Session::has_peer_certificate`].
    #[must_use]
    pub fn has_peer_certificate(&self) -> bool {
        self.session.has_peer_certificate()
    }

    fn poll_drained(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.sealed.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match ready!(Pin::new(&mut self.stream).poll_write(context, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
        self.sealed.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }
}

/// Reads and drops what a refused peer still sends: a socket that is closed with unread bytes would reset the
/// connection, and the peer might not read why.
async fn linger<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S) {
    let lingered = async {
        let _gone = poll_fn(|context| Pin::new(&mut *stream).poll_shutdown(context)).await;
        let (mut dropped, mut buffer) = (0, [0; 1 << 10]);
        while dropped < LINGER_BYTES_MAX {
            match stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return,
                Ok(read) => dropped += read,
            }
        }
    };
    let _late = timeout(LINGER_TIME_MAX, lingered).await;
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for TlsStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { stream, session, plain, taken, .. } = &mut *self;
        while *taken == plain.len() {
            plain.clear();
            *taken = 0;
            if session.open(&mut |bytes| plain.extend_from_slice(bytes))? {
                continue;
            }
            if session.is_ended() {
                return Poll::Ready(Ok(()));
            }
            let mut space = ReadBuf::new(session.space());
            ready!(Pin::new(&mut *stream).poll_read(context, &mut space))?;
            match space.filled().len() {
                // Without the message that says so, it may have been cut off.
                0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                read => session.received(read),
            }
        }
        let rest = plain.get(*taken..).unwrap_or_default();
        let len = rest.len().min(buffer.remaining());
        buffer.put_slice(rest.get(..len).unwrap_or_default());
        *taken += len;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for TlsStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_drained(context))?;
        let len = bytes.len().min(WRITE_BYTES_MAX);
        let Self { session, sealed, .. } = &mut *self;
        session.seal(bytes.get(..len).unwrap_or_default(), sealed)?;
        // What the stream below does not accept now is sent by the next write or flush.
        match self.poll_drained(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(len)),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drained(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !std::mem::replace(&mut self.is_closing, true) {
            let Self { session, sealed, .. } = &mut *self;
            session.close(sealed)?;
        }
        ready!(self.poll_drained(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
