//! A wire that is read a little ahead.
//!
//! Headers and small transfers come in together, as many as one call to the kernel finds; the bytes of
//! large ones go straight to where they belong.
//!
//! **Invariant:** what was read ahead belongs to what is asked for next, in order.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use super::stream::{Waits, Wire, send_all};
use crate::buffer::{Run, SourceBuf, TargetBuf};
use crate::checksum::Checksum;
use crate::copy;
use crate::watch::Watch;

/// How much is read ahead, where what comes is small.
pub(super) const AHEAD_BYTES: usize = 64 << 10;
/// The same behind a transfer that is not: enough for a few headers. The next one is large too, mostly.
const BEHIND_LARGE_BYTES: usize = 2 << 10;
/// How much is read ahead from a peer that has not proven yet who it is: enough for any hello.
const UNPROVEN_BYTES: usize = 512;
/// Transfers up to this size are worth a copy, to save a call.
pub(super) const SMALL_BYTES_MAX: usize = 16 << 10;
/// How much of a large transfer is sent or received at a time: what is hashed before or after that is in the
/// cache, beside what the kernel makes of it.
pub(super) const PIECE_BYTES: usize = 256 << 10;
/// The same for the first piece: the other end is to begin soon.
pub(super) const FIRST_PIECE_BYTES: usize = 64 << 10;
/// How many ranges are handed out at once.
const VECTOR_MAX: usize = 255;

/// A wire and what was read ahead from it.
pub(super) struct Line<W> {
    wire: W,
    ahead: Box<[u8]>,
    start: usize,
    end: usize,
    /// How much more is read than was asked for.
    greed: usize,
    hash: Box<Checksum>,
    /// Is told of everything that is received.
    watch: Option<Arc<Watch>>,
}

impl<W: Wire> Line<W> {
    pub(super) fn new(wire: W) -> Self {
        let mut line = Self::unproven(wire);
        line.proven();
        line
    }

    /// A line with a small buffer, for a peer that has not proven yet who it is.
    pub(super) fn unproven(wire: W) -> Self {
        let ahead = vec![0; UNPROVEN_BYTES].into_boxed_slice();
        Self { wire, ahead, start: 0, end: 0, greed: UNPROVEN_BYTES, hash: Box::default(), watch: None }
    }

    /// Reads far ahead from now on.
    pub(super) fn proven(&mut self) {
        let mut ahead = vec![0; AHEAD_BYTES];
        let read = self.ahead.get(self.start..self.end).unwrap_or_default();
        for (to, from) in ahead.iter_mut().zip(read) {
            *to = *from;
        }
        (self.start, self.end) = (0, self.end - self.start);
        (self.ahead, self.greed) = (ahead.into_boxed_slice(), AHEAD_BYTES);
    }

    /// The bytes of its buffer.
    #[cfg(test)]
    pub(super) fn buffer_bytes(&self) -> usize {
        self.ahead.len()
    }

    /// Nothing has come in that nobody asked for, and the other end is there.
    pub(super) fn is_quiet(&self) -> bool {
        self.start == self.end && self.wire.is_quiet()
    }

    /// See [`Wire::wait`].
    pub(super) fn wait(&mut self, how: Waits) -> bool {
        self.wire.wait(how)
    }

    /// From now on, or no longer, that is told of everything that is received.
    pub(super) fn set_watch(&mut self, watch: Option<Arc<Watch>>) {
        self.watch = watch;
    }

    /// Whether what comes next may go into the buffers of that operation.
    pub(super) fn may_fill(&self, op: usize) -> bool {
        self.watch.as_ref().is_none_or(|watch| watch.may_fill(op))
    }

    /// How many bytes were read ahead.
    pub(super) fn ahead_bytes(&self) -> usize {
        self.end - self.start
    }

    /// The next bytes that were read ahead, without taking them.
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

    /// Receives exactly as many bytes as the array has, and what comes behind them if `is_greedy`.
    pub(super) async fn array<const N: usize>(&mut self, is_greedy: bool) -> io::Result<[u8; N]> {
        loop {
            if let Some(found) = self.peek() {
                let found = *found;
                self.start += N;
                return Ok(found);
            }
            self.make_room();
            let most = N - self.ahead_bytes() + if is_greedy { self.greed } else { 0 };
            let room = self.ahead.get_mut(self.end..).unwrap_or_default();
            let (room, _) = TargetBuf::from(room).split_at(most);
            self.end += receive_some(&mut self.wire, &[room]).await?;
            self.arrived();
        }
    }

    /// Receives `len` bytes; the caller has checked that they are few.
    pub(super) async fn vec(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.fill([TargetBuf::from(&mut bytes[..])]).await?;
        Ok(bytes)
    }

    /// A checksum to be filled while bytes are sent; it is the same each time.
    pub(super) fn hash(&mut self) -> &mut Checksum {
        &mut self.hash
    }

    /// Fills all ranges. What comes behind them is read ahead.
    pub(super) async fn fill(
        &mut self,
        targets: impl IntoIterator<Item = TargetBuf<'_>, IntoIter: DoubleEndedIterator>,
    ) -> io::Result<()> {
        self.fill_inner(targets, false).await
    }

    /// The same, and the checksum of the bytes: each piece is hashed soon after it came in.
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
        // Only what is transferred says something about what comes next.
        if is_hashed {
            self.greed = if run.bytes() > SMALL_BYTES_MAX { BEHIND_LARGE_BYTES } else { AHEAD_BYTES };
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
            // Only behind the last range: what comes before the others is theirs.
            if wanted == left && next.len() < VECTOR_MAX {
                let (behind, _) = TargetBuf::from(&mut self.ahead[..]).split_at(self.greed);
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

    fn make_room(&mut self) {
        if self.start > 0 {
            self.ahead.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
    }
}

async fn receive_some(wire: &mut (impl Wire + ?Sized), targets: &[TargetBuf<'_>]) -> io::Result<usize> {
    let received = poll_fn(|context| Pin::new(&mut *wire).poll_receive(context, targets)).await?;
    if received == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(received) }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use super::*;

    /// A wire on which everything has come in already.
    struct Arrived(Vec<u8>);

    impl Wire for Arrived {
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

        fn is_quiet(&self) -> bool {
            self.0.is_empty()
        }
    }

    #[tokio::test]
    async fn bytes_read_ahead_survive_the_larger_buffer() {
        let mut line = Line::unproven(Arrived([&[7; 40][..], b"token", b"requests"].concat()));
        assert_eq!(line.buffer_bytes(), UNPROVEN_BYTES);
        assert_eq!(line.array::<40>(false).await.unwrap(), [7; 40]);
        assert_eq!(line.vec(5).await.unwrap(), b"token");
        assert_eq!(line.ahead_bytes(), 8);
        line.proven();
        assert_eq!(line.buffer_bytes(), AHEAD_BYTES);
        assert_eq!(&line.array::<8>(true).await.unwrap(), b"requests");
    }

    #[tokio::test]
    async fn more_ranges_than_are_handed_out_at_once_are_filled_in_order() {
        for count in [1, VECTOR_MAX - 1, VECTOR_MAX, VECTOR_MAX + 1, 3 * VECTOR_MAX + 7] {
            let sent: Vec<u8> = (0..count * 13).map(|at| ((at * 31) ^ (at >> 8)) as u8).collect();
            let mut line = Line::new(Arrived([&sent[..], b"behind!!"].concat()));
            let mut filled = vec![0; sent.len()];
            line.fill(filled.chunks_mut(13).map(TargetBuf::from).collect::<Vec<_>>()).await.unwrap();
            assert!(filled == sent, "{count} ranges");
            assert_eq!(&line.array(true).await.unwrap(), b"behind!!", "{count} ranges");
        }
    }
}
