//! Sockets that send from, and receive into, memory that other processes may access.
//!
//! The usual traits take slices, which must not be formed over a segment. A [`ByteStream`] takes ranges and
//! passes them to the kernel: vectored, without an intermediate copy.

use std::future::poll_fn;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::{TcpStream, UnixStream};

use crate::buffer::{Run, SourceBuf, TargetBuf};

/// Maximum number of ranges per system call.
const VECTOR_MAX: usize = 256;
/// Maximum time of a blocking call before the deadline is checked again, in milliseconds.
const TIMEOUT_MS_MAX: u64 = 1 << 16;

/// A stream of bytes, to and from ranges of memory.
pub trait ByteStream: Send + Sync + Unpin {
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

    /// Whether the stream is open and no byte has arrived, as it must be between transfers.
    fn is_idle(&self) -> bool;

    /// Sets how it wait_mode from now on. False if it cannot.
    fn set_wait(&mut self, how: WaitMode) -> bool {
        how == WaitMode::Task
    }
}

/// How a caller wait_mode for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// As a task: the runtime polls again.
    Task,
    /// Blocks the polling thread until this moment, then wait_mode as a task.
    ThreadUntil(Instant),
}

/// A client's connection, used by tasks and threads in turn. The socket is blocking: a task passes
/// `MSG_DONTWAIT` and is woken by the runtime; a thread blocks in the call.
#[derive(Debug)]
pub(super) struct Socket {
    file: Arc<OwnedFd>,
    /// Registration with the runtime, for use by a task. Removed while threads use the socket, because it
    /// would cause needless wake-ups.
    watched: Option<AsyncFd<Arc<OwnedFd>>>,
    wait_mode: WaitMode,
    timeout_ms: u64,
}

impl Socket {
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(Self::of(stream.into()))
    }

    /// The same for a Unix socket.
    pub(super) fn local(stream: UnixStream) -> io::Result<Self> {
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(Self::of(stream.into()))
    }

    fn of(file: OwnedFd) -> Self {
        Self { file: Arc::new(file), watched: None, wait_mode: WaitMode::Task, timeout_ms: 0 }
    }

    fn watched(&mut self) -> io::Result<&AsyncFd<Arc<OwnedFd>>> {
        if self.watched.is_none() {
            let file = Arc::clone(&self.file);
            // SAFETY: the registration holds the descriptor, which cannot be taken out of the `Arc`, so it
            // stays open and unchanged for as long as it is registered.
            let watched = unsafe { AsyncFd::register(file) };
            self.watched = Some(watched.map_err(io::Error::from)?);
        }
        self.watched.as_ref().ok_or_else(|| io::ErrorKind::Other.into())
    }

    /// Moves bytes if this thread may block for them; `None` if the caller must wait as a task.
    fn here(&mut self, try_it: impl FnMut(&OwnedFd) -> io::Result<usize>) -> Option<io::Result<usize>> {
        match self.wait_mode {
            WaitMode::Task => None,
            WaitMode::ThreadUntil(until) => {
                let moved = self.in_thread(until, try_it);
                let is_late = moved.as_ref().is_err_and(|it| it.kind() == io::ErrorKind::TimedOut);
                if is_late {
                    self.wait_mode = WaitMode::Task;
                }
                Some(moved).filter(|_| !is_late)
            }
        }
    }

    /// Blocks this thread until `try_it` has moved bytes.
    fn in_thread(
        &mut self,
        until: Instant,
        mut try_it: impl FnMut(&OwnedFd) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            if left_ms == 0 {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // A power of two of the remaining time, so that most calls need not set it again.
            let timeout_ms = (1 << left_ms.ilog2()).min(TIMEOUT_MS_MAX);
            if self.timeout_ms != timeout_ms {
                let timeout = Some(Duration::from_millis(timeout_ms));
                set_socket_timeout(&*self.file, Timeout::Recv, timeout)?;
                set_socket_timeout(&*self.file, Timeout::Send, timeout)?;
                self.timeout_ms = timeout_ms;
            }
            match try_it(&self.file) {
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                moved => return moved,
            }
        }
    }
}

impl ByteStream for Socket {
    fn poll_receive(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        targets: &[TargetBuf<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Some(received) = self.here(|file| receive(file, targets, 0)) {
            return Poll::Ready(received);
        }
        let watched = self.watched()?;
        loop {
            let mut ready = ready!(watched.poll_read_ready(context))?;
            if let Ok(received) = ready.try_io(|file| receive(&**file.get_ref(), targets, libc::MSG_DONTWAIT))
            {
                return Poll::Ready(received);
            }
        }
    }

    fn poll_send(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        sources: &[SourceBuf<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Some(sent) = self.here(|file| send(file, sources, 0)) {
            return Poll::Ready(sent);
        }
        let watched = self.watched()?;
        loop {
            let mut ready = ready!(watched.poll_write_ready(context))?;
            if let Ok(sent) = ready.try_io(|file| send(&**file.get_ref(), sources, libc::MSG_DONTWAIT)) {
                return Poll::Ready(sent);
            }
        }
    }

    fn is_idle(&self) -> bool {
        is_idle(&*self.file)
    }

    fn set_wait(&mut self, how: WaitMode) -> bool {
        self.wait_mode = how;
        if how != WaitMode::Task {
            self.watched = None;
        }
        true
    }
}

/// Implements [`ByteStream`] for a stream of the runtime.
macro_rules! byte_stream {
    ($stream:ty) => {
        impl ByteStream for $stream {
            fn poll_receive(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                targets: &[TargetBuf<'_>],
            ) -> Poll<io::Result<usize>> {
                loop {
                    ready!(self.poll_read_ready(context))?;
                    match self.try_io(Interest::READABLE, || receive(&*self, targets, libc::MSG_DONTWAIT)) {
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
                    match self.try_io(Interest::WRITABLE, || send(&*self, sources, libc::MSG_DONTWAIT)) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        sent => return Poll::Ready(sent),
                    }
                }
            }

            fn is_idle(&self) -> bool {
                is_idle(self)
            }
        }
    };
}

byte_stream!(TcpStream);
byte_stream!(UnixStream);

impl<W: ByteStream + ?Sized> ByteStream for Box<W> {
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

    fn is_idle(&self) -> bool {
        (**self).is_idle()
    }

    fn set_wait(&mut self, how: WaitMode) -> bool {
        (**self).set_wait(how)
    }
}

/// Sends all ranges.
pub(super) async fn send_all(
    wire: &mut (impl ByteStream + ?Sized),
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

fn is_idle(socket: &impl AsRawFd) -> bool {
    let mut byte = [0];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let peeked = receive(socket, &[TargetBuf::from(&mut byte[..])], flags);
    peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

fn receive(socket: &impl AsRawFd, targets: &[TargetBuf<'_>], flags: libc::c_int) -> io::Result<usize> {
    let vector =
        |target: &TargetBuf<'_>| libc::iovec { iov_base: target.as_mut_ptr().cast(), iov_len: target.len() };
    let mut vectors: Vec<_> = targets.iter().take(VECTOR_MAX).map(vector).collect();
    let mut message = message(&mut vectors);
    // SAFETY: the message points at `vectors`, which lives through the call, and each of them at memory that
    // is mapped and writable, as the type promises.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

fn send(socket: &impl AsRawFd, sources: &[SourceBuf<'_>], flags: libc::c_int) -> io::Result<usize> {
    let vector = |source: &SourceBuf<'_>| libc::iovec {
        iov_base: source.as_ptr().cast_mut().cast(),
        iov_len: source.len(),
    };
    let mut vectors: Vec<_> = sources.iter().take(VECTOR_MAX).map(vector).collect();
    let message = message(&mut vectors);
    let flags = flags | libc::MSG_NOSIGNAL;
    // SAFETY: the message points at `vectors`, which lives through the call, and each of them at memory that
    // is mapped and readable, as the type promises; the kernel only reads it.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

fn message(vectors: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: all fields are integers or pointers, for which zero means "none".
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    // The field's type differs between C libraries.
    message.msg_iovlen = vectors.len() as _;
    message
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    /// Bytes that arrive after the thread's time limit are received as a task.
    #[tokio::test]
    async fn thread_past_its_limit_waits_as_a_task() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        let mut near = Socket::new(near).unwrap();
        for wait_mode in [WaitMode::ThreadUntil(Instant::now()), WaitMode::Task] {
            assert!(near.set_wait(wait_mode));
            let mut found = [0; 4];
            let targets = [TargetBuf::from(&mut found[..])];
            let mut receiving = poll_fn(|context| Pin::new(&mut near).poll_receive(context, &targets));
            let early = poll_fn(|context| Poll::Ready(Pin::new(&mut receiving).poll(context).is_pending()));
            assert!(early.await, "nothing was sent yet");
            far.write_all(b"late").await.unwrap();
            assert_eq!(receiving.await.unwrap(), 4);
            assert_eq!(&found, b"late");
        }
    }
}
