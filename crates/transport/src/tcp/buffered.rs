//! A byte stream with a read-ahead buffer.
//!
//! Headers and small transfers are received together, as many as one system call returns; the bytes of large
//! transfers go directly to their targets.
//!
//! **Invariant:** bytes that were read ahead are returned first, in order.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use super::stream::{ByteStream, WaitMode, send_all};
use crate::buffer::{Run, SourceBuf, TargetBuf};
use crate::checksum::Checksum;
use crate::copy;
use crate::hedge::ReadControl;

/// Read-ahead for small transfers.
pub(super) const AHEAD_BYTES: usize = 64 << 10;
/// Read-ahead after a large transfer: enough for a few headers, because the next transfer is likely large
/// too.
const AFTER_LARGE_BYTES: usize = 2 << 10;
/// Read-ahead from an unauthenticated peer: enough for any hello.
const UNAUTHENTICATED_BYTES: usize = 512;
/// Up to this size a transfer is copied through the buffer, which saves a system call.
pub(super) const SMALL_BYTES_MAX: usize = 16 << 10;
/// Bytes of a large transfer per send or receive: hashed before or after, they are still in the cache.
pub(super) const PIECE_BYTES: usize = 256 << 10;
/// The same for the first piece, so that the peer starts early.
pub(super) const FIRST_PIECE_BYTES: usize = 64 << 10;
/// Maximum number of ranges per call.
const VECTOR_MAX: usize = 255;

/// A byte stream and the bytes that were read ahead from it.
pub(super) struct BufferedStream<W> {
    wire: W,
    ahead: Box<[u8]>,
    start: usize,
    end: usize,
    /// Number of bytes that a receive may read ahead.
    read_ahead_max: usize,
    hash: Box<Checksum>,
    /// Notified of everything that is received.
    watch: Option<Arc<ReadControl>>,
}

impl<W: ByteStream> BufferedStream<W> {
    pub(super) fn new(wire: W) -> Self {
        let mut stream = Self::unauthenticated(wire);
        stream.authenticate();
        stream
    }

    /// A stream with a small buffer, for an unauthenticated peer.
    pub(super) fn unauthenticated(wire: W) -> Self {
        let ahead = vec![0; UNAUTHENTICATED_BYTES].into_boxed_slice();
        Self {
            wire,
            ahead,
            start: 0,
            end: 0,
            read_ahead_max: UNAUTHENTICATED_BYTES,
            hash: Box::default(),
            watch: None,
        }
    }

    /// Enlarges the buffer, once the peer is authenticated.
    pub(super) fn authenticate(&mut self) {
        let mut ahead = vec![0; AHEAD_BYTES];
        let read = self.ahead.get(self.start..self.end).unwrap_or_default();
        for (to, from) in ahead.iter_mut().zip(read) {
            *to = *from;
        }
        (self.start, self.end) = (0, self.end - self.start);
        (self.ahead, self.read_ahead_max) = (ahead.into_boxed_slice(), AHEAD_BYTES);
    }

    /// Size of the buffer.
    #[cfg(test)]
    pub(super) fn buffer_bytes(&self) -> usize {
        self.ahead.len()
    }

    /// Whether no unrequested byte has arrived and the connection is open.
    pub(super) fn is_idle(&self) -> bool {
        self.start == self.end && self.wire.is_idle()
    }

    /// See [`ByteStream::set_wait`].
    pub(super) fn set_wait(&mut self, how: WaitMode) -> bool {
        self.wire.set_wait(how)
    }

    /// Sets the control that is notified of everything that is received.
    pub(super) fn set_control(&mut self, watch: Option<Arc<ReadControl>>) {
        self.watch = watch;
    }

    /// Whether the next bytes may go into the buffers of that operation.
    pub(super) fn may_fill(&self, op: usize) -> bool {
        self.watch.as_ref().is_none_or(|watch| watch.may_fill(op))
    }

    /// Number of bytes that were read ahead.
    pub(super) fn buffered_bytes(&self) -> usize {
        self.end - self.start
    }

    /// The next bytes that were read ahead, without consuming them.
    pub(super) fn peek<const N: usize>(&self) -> Option<&[u8; N]> {
        self.ahead.get(self.start..self.end)?.first_chunk()
    }

    /// Sends all ranges.
    pub(super) async fn send(
        &mut self,
        sources: impl IntoIterator<Item = SourceBuf<'_>, IntoIter: DoubleEndedIterator>,
    ) -> io::Result<()> {
        send_all(&mut self.wire, sources).await
    }

    /// Receives exactly `N` bytes, and reads ahead if `is_greedy`.
    pub(super) async fn array<const N: usize>(&mut self, is_greedy: bool) -> io::Result<[u8; N]> {
        loop {
            if let Some(found) = self.peek() {
                let found = *found;
                self.start += N;
                return Ok(found);
            }
            self.compact();
            let most = N - self.buffered_bytes() + if is_greedy { self.read_ahead_max } else { 0 };
            let free = self.ahead.get_mut(self.end..).unwrap_or_default();
            let (free, _) = TargetBuf::from(free).split_at(most);
            self.end += receive_some(&mut self.wire, &[free]).await?;
            self.arrived();
        }
    }

    /// Receives `len` bytes; the caller has checked the length.
    pub(super) async fn vec(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.fill([TargetBuf::from(&mut bytes[..])]).await?;
        Ok(bytes)
    }

    /// A reusable checksum for sending.
    pub(super) fn hash(&mut self) -> &mut Checksum {
        &mut self.hash
    }

    /// Fills all ranges, and reads ahead after them.
    pub(super) async fn fill(
        &mut self,
        targets: impl IntoIterator<Item = TargetBuf<'_>, IntoIter: DoubleEndedIterator>,
    ) -> io::Result<()> {
        self.fill_inner(targets, false).await
    }

    /// The same, and the checksum of the bytes: each piece is hashed soon after it arrived.
    pub(super) async fn fill_hashed(
        &mut self,
        targets: impl IntoIterator<Item = TargetBuf<'_>, IntoIter: DoubleEndedIterator>,
    ) -> io::Result<u64> {
        self.hash.reset();
        self.fill_inner(targets, true).await?;
        Ok(self.hash.finish())
    }

    async fn fill_inner(
        &mut self,
        targets: impl IntoIterator<Item = TargetBuf<'_>, IntoIter: DoubleEndedIterator>,
        is_hashed: bool,
    ) -> io::Result<()> {
        let mut run = Run::new(targets);
        // Only transfers predict the size of the next one.
        if is_hashed {
            self.read_ahead_max = if run.bytes() > SMALL_BYTES_MAX { AFTER_LARGE_BYTES } else { AHEAD_BYTES };
        }
        while self.start < self.end {
            let Some(target) = run.next_piece(self.end - self.start) else { return Ok(()) };
            let from = self.ahead.get(self.start..self.start + target.len()).unwrap_or_default();
            copy::copy_in(from, target);
            if is_hashed {
                self.hash.update(SourceBuf::from(from));
            }
            self.start += target.len();
        }
        (self.start, self.end) = (0, 0);
        let mut left = run.bytes();
        while left > 0 {
            let (mut next, mut wanted) = (Vec::new(), 0);
            for target in run.peek(VECTOR_MAX) {
                let (part, _) = target.split_at(PIECE_BYTES - wanted);
                wanted += part.len();
                next.push(part);
                if wanted == PIECE_BYTES {
                    break;
                }
            }
            // Read-ahead only after the last range: earlier bytes belong to the ranges.
            if wanted == left && next.len() < VECTOR_MAX {
                let (behind, _) = TargetBuf::from(&mut self.ahead[..]).split_at(self.read_ahead_max);
                next.push(behind);
            }
            let received = receive_some(&mut self.wire, &next).await?;
            self.arrived();
            let taken = received.min(wanted);
            let parts = run.take(taken as u64);
            if is_hashed {
                parts.into_iter().for_each(|part| self.hash.update(part.as_source()));
            }
            left -= taken;
            self.end = received - taken;
        }
        Ok(())
    }

    fn arrived(&self) {
        self.watch.iter().for_each(|watch| watch.arrived());
    }

    fn compact(&mut self) {
        if self.start > 0 {
            self.ahead.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }
}

async fn receive_some(wire: &mut (impl ByteStream + ?Sized), targets: &[TargetBuf<'_>]) -> io::Result<usize> {
    let received = poll_fn(|context| Pin::new(&mut *wire).poll_receive(context, targets)).await?;
    if received == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(received) }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use super::*;

    /// A stream on which everything has arrived already.
    struct Arrived(Vec<u8>);

    impl ByteStream for Arrived {
        fn poll_receive(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            targets: &[TargetBuf<'_>],
        ) -> Poll<io::Result<usize>> {
            let mut received = 0;
            for target in targets {
                let (target, _) = target.split_at(self.0.len());
                let bytes: Vec<_> = self.0.drain(..target.len()).collect();
                copy::copy_in(&bytes, target);
                received += bytes.len();
            }
            Poll::Ready(Ok(received))
        }

        fn poll_send(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            _: &[SourceBuf<'_>],
        ) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
        }

        fn is_idle(&self) -> bool {
            self.0.is_empty()
        }
    }

    #[tokio::test]
    async fn read_ahead_bytes_survive_the_larger_buffer() {
        let mut stream =
            BufferedStream::unauthenticated(Arrived([&[7; 40][..], b"token", b"requests"].concat()));
        assert_eq!(stream.buffer_bytes(), UNAUTHENTICATED_BYTES);
        assert_eq!(stream.array::<40>(false).await.unwrap(), [7; 40]);
        assert_eq!(stream.vec(5).await.unwrap(), b"token");
        assert_eq!(stream.buffered_bytes(), 8);
        stream.authenticate();
        assert_eq!(stream.buffer_bytes(), AHEAD_BYTES);
        assert_eq!(&stream.array::<8>(true).await.unwrap(), b"requests");
    }

    #[tokio::test]
    async fn more_ranges_than_one_call_takes_are_filled_in_order() {
        for count in [1, VECTOR_MAX - 1, VECTOR_MAX, VECTOR_MAX + 1, 3 * VECTOR_MAX + 7] {
            let sent: Vec<u8> = (0..count * 13).map(|at| ((at * 31) ^ (at >> 8)) as u8).collect();
            let mut stream = BufferedStream::new(Arrived([&sent[..], b"behind!!"].concat()));
            let mut filled = vec![0; sent.len()];
            stream.fill(filled.chunks_mut(13).map(TargetBuf::from).collect::<Vec<_>>()).await.unwrap();
            assert!(filled == sent, "{count} ranges");
            assert_eq!(&stream.array(true).await.unwrap(), b"behind!!", "{count} ranges");
        }
    }
}
