//! Sockets that send from, and receive into, memory that others may touch.
//!
//! The usual traits want slices, which must not be formed over a segment. A [`Wire`] takes ranges and hands
//! them to the kernel: vectored, without a staging copy.

use std::future::poll_fn;
use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::buffer::{Run, SourceBuf, TargetBuf};

/// How many ranges are handed to the kernel at once.
const VECTOR_MAX: usize = 64;

/// A stream of bytes, to and from ranges of memory.
pub trait Wire: Send + Sync + Unpin {
    /// Receives at least one byte into the ranges, in order; zero is the end of the stream. The ranges hold
    /// at least one byte.
    fn poll_receive(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        targets: &[TargetBuf<'_>],
    ) -> Poll<io::Result<usize>>;

    /// Sends at least one byte of the ranges, in order. The ranges hold at least one byte.
    fn poll_send(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        sources: &[SourceBuf<'_>],
    ) -> Poll<io::Result<usize>>;

    /// Whether the stream is open and nothing has come in, as it must be between transfers.
    fn is_quiet(&self) -> bool;
}

impl Wire for TcpStream {
    fn poll_receive(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        targets: &[TargetBuf<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_read_ready(context))?;
            match self.try_io(Interest::READABLE, || receive(&*self, targets, 0)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                received => return Poll::Ready(received),
            }
        }
    }

    fn poll_send(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        sources: &[SourceBuf<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_write_ready(context))?;
            match self.try_io(Interest::WRITABLE, || send(&*self, sources)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
        }
    }

    fn is_quiet(&self) -> bool {
        let mut byte = [0];
        let peeked = receive(self, &[TargetBuf::from(&mut byte[..])], libc::MSG_PEEK);
        peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

impl<W: Wire + ?Sized> Wire for Box<W> {
    fn poll_receive(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        targets: &[TargetBuf<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut **self).poll_receive(context, targets)
    }

    fn poll_send(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        sources: &[SourceBuf<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut **self).poll_send(context, sources)
    }

    fn is_quiet(&self) -> bool {
        (**self).is_quiet()
    }
}

/// Fills all ranges.
pub(super) async fn receive_all(
    wire: &mut (impl Wire + ?Sized),
    targets: impl IntoIterator<Item = TargetBuf<'_>, IntoIter: DoubleEndedIterator>,
) -> io::Result<()> {
    let mut run = Run::new(targets);
    while !run.is_done() {
        let next: Vec<_> = run.peek(VECTOR_MAX).collect();
        let received = poll_fn(|context| Pin::new(&mut *wire).poll_receive(context, &next)).await?;
        if received == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        run.take(received as u64);
    }
    Ok(())
}

/// Receives exactly as many bytes as the array has.
pub(super) async fn receive_array<const N: usize>(wire: &mut (impl Wire + ?Sized)) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    receive_all(wire, [TargetBuf::from(&mut bytes[..])]).await?;
    Ok(bytes)
}

/// Receives `len` bytes; the caller has checked that they are few.
pub(super) async fn receive_vec(wire: &mut (impl Wire + ?Sized), len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    receive_all(wire, [TargetBuf::from(&mut bytes[..])]).await?;
    Ok(bytes)
}

/// Sends all ranges.
pub(super) async fn send_all(
    wire: &mut (impl Wire + ?Sized),
    sources: impl IntoIterator<Item = SourceBuf<'_>, IntoIter: DoubleEndedIterator>,
) -> io::Result<()> {
    let mut run = Run::new(sources);
    while !run.is_done() {
        let next: Vec<_> = run.peek(VECTOR_MAX).collect();
        let sent = poll_fn(|context| Pin::new(&mut *wire).poll_send(context, &next)).await?;
        if sent == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        run.take(sent as u64);
    }
    Ok(())
}

fn receive(socket: &impl AsRawFd, targets: &[TargetBuf<'_>], flags: libc::c_int) -> io::Result<usize> {
    let vector =
        |target: &TargetBuf<'_>| libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: target.len() };
    let mut vectors: Vec<_> = targets.iter().take(VECTOR_MAX).map(vector).collect();
    let mut message = message(&mut vectors);
    // SAFETY: the message points at `vectors`, which lives through the call, and each of them at memory that
    // is mapped and writable, as the type promises.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags | libc::MSG_DONTWAIT) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

fn send(socket: &impl AsRawFd, sources: &[SourceBuf<'_>]) -> io::Result<usize> {
    let vector = |source: &SourceBuf<'_>| libc::iovec {
        iov_base: source.as_ptr().cast_mut().cast(),
        iov_len: source.len(),
    };
    let mut vectors: Vec<_> = sources.iter().take(VECTOR_MAX).map(vector).collect();
    let message = message(&mut vectors);
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the message points at `vectors`, which lives through the call, and each of them at memory that
    // is mapped and readable, as the type promises; the kernel only reads it.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

fn message(vectors: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: all fields are integers or pointers, for which zero means "none".
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    // The field's type differs between C libraries; there are at most 64.
    message.msg_iovlen = vectors.len() as _;
    message
}
