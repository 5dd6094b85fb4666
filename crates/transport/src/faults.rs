//! Things that go wrong, from a seed: for tests.
//!
//! [`Faulty`] wraps a stream of bytes and gives short reads and writes, delays and resets. [`Flaky`] wraps a
//! transport and loses operations. A delay gives others their turn and never sleeps, so that a test with
//! faults is as fast as one without, and its seed finds the same faults again.

use std::io;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::buffer::{Buf, Run, SourceBuf, TargetBuf};
use crate::tcp::{Connect, Connecting, Wire};
use crate::{Capability, Instant, Outcome, Outcomes, ReadOp, TransferError, Transport, WriteOp};

/// The most bytes of a short read or write.
const SHORT_BYTES_MAX: u64 = 100;

/// How often what goes wrong, in thousandths of the calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// Where the dice start.
    pub seed: u64,
    /// Moves a few bytes only.
    pub short: u32,
    /// Is not ready yet.
    pub delay: u32,
    /// Breaks the connection, for good.
    pub reset: u32,
}

/// Dice that fall the same way for the same seed.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Dice with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `bound`; zero if the bound is.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The generator is splitmix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).checked_rem(bound).unwrap_or(0)
    }

    /// True `per_mille` times out of a thousand.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }
}

/// A stream of bytes on which things go wrong.
#[derive(Debug)]
pub struct Faulty<S> {
    inner: S,
    plan: Plan,
    dice: Dice,
    is_reset: bool,
}

/// What happens to one call.
enum Fate {
    Whole,
    Short(usize),
    Later,
    Reset,
}

impl<S> Faulty<S> {
    /// Wraps a stream.
    pub fn new(inner: S, plan: Plan) -> Self {
        Self { inner, dice: Dice::new(plan.seed), plan, is_reset: false }
    }

    fn fate(&mut self, context: &Context<'_>) -> Fate {
        if self.is_reset || self.dice.chance(self.plan.reset) {
            self.is_reset = true;
            return Fate::Reset;
        }
        if self.dice.chance(self.plan.delay) {
            context.waker().wake_by_ref();
            return Fate::Later;
        }
        if self.dice.chance(self.plan.short) {
            return Fate::Short(1 + self.dice.below(SHORT_BYTES_MAX) as usize);
        }
        Fate::Whole
    }
}

fn reset<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
}

fn first_bytes<B: Buf>(bufs: &[B], most: usize) -> Vec<B> {
    Run::new(bufs.iter().copied()).take(most as u64)
}

impl<W: Wire> Wire for Faulty<W> {
    fn poll_receive(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        targets: &[TargetBuf<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.fate(context) {
            Fate::Reset => reset(),
            Fate::Later => Poll::Pending,
            Fate::Short(most) => Pin::new(&mut self.inner).poll_receive(context, &first_bytes(targets, most)),
            Fate::Whole => Pin::new(&mut self.inner).poll_receive(context, targets),
        }
    }

    fn poll_send(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        sources: &[SourceBuf<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.fate(context) {
            Fate::Reset => reset(),
            Fate::Later => Poll::Pending,
            Fate::Short(most) => Pin::new(&mut self.inner).poll_send(context, &first_bytes(sources, most)),
            Fate::Whole => Pin::new(&mut self.inner).poll_send(context, sources),
        }
    }

    fn is_quiet(&self) -> bool {
        !self.is_reset && self.inner.is_quiet()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Faulty<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.fate(context) {
            Fate::Reset => reset(),
            Fate::Later => Poll::Pending,
            Fate::Whole => Pin::new(&mut self.inner).poll_read(context, buf),
            Fate::Short(most) => {
                let mut few = vec![0; most.min(buf.remaining())];
                let mut short = ReadBuf::new(&mut few);
                let polled = Pin::new(&mut self.inner).poll_read(context, &mut short);
                buf.put_slice(short.filled());
                polled
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Faulty<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.fate(context) {
            Fate::Reset => reset(),
            Fate::Later => Poll::Pending,
            Fate::Whole => Pin::new(&mut self.inner).poll_write(context, bytes),
            Fate::Short(most) => {
                let few = bytes.get(..most).unwrap_or(bytes);
                Pin::new(&mut self.inner).poll_write(context, few)
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_reset { reset() } else { Pin::new(&mut self.inner).poll_flush(context) }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_reset { reset() } else { Pin::new(&mut self.inner).poll_shutdown(context) }
    }
}

/// Opens connections on which things go wrong, each in its own way.
pub struct FaultyConnect<C> {
    inner: C,
    plan: Plan,
    dice: Mutex<Dice>,
}

impl<C> FaultyConnect<C> {
    /// Wraps what opens connections.
    pub fn new(inner: C, plan: Plan) -> Self {
        Self { inner, plan, dice: Mutex::new(Dice::new(plan.seed)) }
    }
}

impl<C: Connect> Connect for FaultyConnect<C> {
    fn connect<'a>(&'a self, address: &'a str) -> Connecting<'a> {
        Box::pin(async move {
            let seed = roll(&self.dice, u64::MAX);
            let wire = self.inner.connect(address).await?;
            Ok(Box::new(Faulty::new(wire, Plan { seed, ..self.plan })) as Box<dyn Wire>)
        })
    }
}

/// A transport that loses operations: before they are done, or after, so that nobody knows.
pub struct Flaky<T> {
    inner: T,
    lose_per_mille: u32,
    dice: Mutex<Dice>,
}

impl<T: Transport> Flaky<T> {
    /// Loses that many of a thousand operations.
    pub fn new(inner: T, seed: u64, lose_per_mille: u32) -> Self {
        Self { inner, lose_per_mille, dice: Mutex::new(Dice::new(seed)) }
    }

    fn is_lost(&self) -> bool {
        roll(&self.dice, 1000) < u64::from(self.lose_per_mille)
    }

    fn lose_some(&self, outcomes: Vec<Outcome>) -> Vec<Outcome> {
        outcomes.into_iter().map(|outcome| if self.is_lost() { Err(lost()) } else { outcome }).collect()
    }
}

fn roll(dice: &Mutex<Dice>, bound: u64) -> u64 {
    dice.lock().unwrap_or_else(std::sync::PoisonError::into_inner).below(bound)
}

fn lost() -> TransferError {
    TransferError::Lost { peer: "flaky".to_owned(), why: "the dice said so".to_owned() }
}

impl<T: Transport> Transport for Flaky<T> {
    fn capability(&self) -> Capability {
        self.inner.capability()
    }

    fn read<'a>(&'a self, ops: &'a [ReadOp<'a>], deadline: Instant) -> Outcomes<'a> {
        Box::pin(async move {
            if self.is_lost() {
                return vec![Err(lost()); ops.len()];
            }
            self.lose_some(self.inner.read(ops, deadline).await)
        })
    }

    fn write<'a>(&'a self, ops: &'a [WriteOp<'a>], deadline: Instant) -> Outcomes<'a> {
        Box::pin(async move {
            if self.is_lost() {
                return vec![Err(lost()); ops.len()];
            }
            self.lose_some(self.inner.write(ops, deadline).await)
        })
    }
}
