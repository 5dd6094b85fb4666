//! Fault injection from a seed, for tests.
//!
//! [`Faulty`] wraps a stream of bytes and injects short reads and writes, delays and resets. [`Flaky`] wraps
//! a transport and loses operations. A delay yields to other tasks and never sleeps, so that a test with
//! faults is as fast as one without, and a seed reproduces its faults.

use std::io;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::buffer::{Buf, Run, SourceBuf, TargetBuf};
use crate::tcp::{ByteStream, Connect, Connecting};
use crate::{Capability, Instant, Outcome, Outcomes, ReadOp, TransferError, Transport, WriteOp};

/// Maximum length of a short read or write.
const SHORT_BYTES_MAX: u64 = 100;

/// Probability of each fault, in thousandths of the calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Moves only a few bytes.
    pub short: u32,
    /// Returns `Pending` once.
    pub delay: u32,
    /// Resets the connection permanently.
    pub reset: u32,
}

/// Random numbers from a seed.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates it.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `bound`; zero if `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The generator is splitmix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).checked_rem(bound).unwrap_or(0)
    }

    /// True with a probability of `per_mille` thousandths.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < u64::from(per_mille)
    }
}

/// A stream of bytes with injected faults.
#[derive(Debug)]
pub struct Faulty<S> {
    inner: S,
    plan: Plan,
    rng: Rng,
    is_reset: bool,
}

/// The fault of one call.
enum Fault {
    None,
    Short(usize),
    Delay,
    Reset,
}

impl<S> Faulty<S> {
    /// Creates it.
    pub fn new(inner: S, plan: Plan) -> Self {
        Self { inner, rng: Rng::new(plan.seed), plan, is_reset: false }
    }

    fn fault(&mut self, context: &Context<'_>) -> Fault {
        if self.is_reset || self.rng.chance(self.plan.reset) {
            self.is_reset = true;
            return Fault::Reset;
        }
        if self.rng.chance(self.plan.delay) {
            context.waker().wake_by_ref();
            return Fault::Delay;
        }
        if self.rng.chance(self.plan.short) {
            return Fault::Short(1 + self.rng.below(SHORT_BYTES_MAX) as usize);
        }
        Fault::None
    }
}

fn reset<T>() -> Poll<io::Result<T>> {
    Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
}

fn first_bytes<B: Buf>(bufs: &[B], most: usize) -> Vec<B> {
    Run::new(bufs.iter().copied()).take(most as u64)
}

impl<W: ByteStream> ByteStream for Faulty<W> {
    fn poll_receive(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        targets: &[TargetBuf<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.fault(context) {
            Fault::Reset => reset(),
            Fault::Delay => Poll::Pending,
            Fault::Short(most) => {
                Pin::new(&mut self.inner).poll_receive(context, &first_bytes(targets, most))
            }
            Fault::None => Pin::new(&mut self.inner).poll_receive(context, targets),
        }
    }

    fn poll_send(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        sources: &[SourceBuf<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.fault(context) {
            Fault::Reset => reset(),
            Fault::Delay => Poll::Pending,
            Fault::Short(most) => Pin::new(&mut self.inner).poll_send(context, &first_bytes(sources, most)),
            Fault::None => Pin::new(&mut self.inner).poll_send(context, sources),
        }
    }

    fn is_idle(&self) -> bool {
        !self.is_reset && self.inner.is_idle()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Faulty<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.fault(context) {
            Fault::Reset => reset(),
            Fault::Delay => Poll::Pending,
            Fault::None => Pin::new(&mut self.inner).poll_read(context, buf),
            Fault::Short(most) => {
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
        match self.fault(context) {
            Fault::Reset => reset(),
            Fault::Delay => Poll::Pending,
            Fault::None => Pin::new(&mut self.inner).poll_write(context, bytes),
            Fault::Short(most) => {
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

/// Opens connections with injected faults, each with a seed of its own.
pub struct FaultyConnect<C> {
    inner: C,
    plan: Plan,
    rng: Mutex<Rng>,
}

impl<C> FaultyConnect<C> {
    /// Creates it.
    pub fn new(inner: C, plan: Plan) -> Self {
        Self { inner, plan, rng: Mutex::new(Rng::new(plan.seed)) }
    }
}

impl<C: Connect> Connect for FaultyConnect<C> {
    fn connect<'a>(&'a self, address: &'a str) -> Connecting<'a> {
        Box::pin(async move {
            let seed = roll(&self.rng, u64::MAX);
            let wire = self.inner.connect(address).await?;
            Ok(Box::new(Faulty::new(wire, Plan { seed, ..self.plan })) as Box<dyn ByteStream>)
        })
    }
}

/// A transport that loses operations, before or after they are done.
pub struct Flaky<T> {
    inner: T,
    lose_per_mille: u32,
    rng: Mutex<Rng>,
}

impl<T: Transport> Flaky<T> {
    /// Loses that many of a thousand operations.
    pub fn new(inner: T, seed: u64, lose_per_mille: u32) -> Self {
        Self { inner, lose_per_mille, rng: Mutex::new(Rng::new(seed)) }
    }

    fn is_lost(&self) -> bool {
        roll(&self.rng, 1000) < u64::from(self.lose_per_mille)
    }

    fn lose_some(&self, outcomes: Vec<Outcome>) -> Vec<Outcome> {
        outcomes.into_iter().map(|outcome| if self.is_lost() { Err(lost()) } else { outcome }).collect()
    }
}

fn roll(rng: &Mutex<Rng>, bound: u64) -> u64 {
    rng.lock().unwrap_or_else(std::sync::PoisonError::into_inner).below(bound)
}

fn lost() -> TransferError {
    TransferError::Lost { peer: "flaky".to_owned(), why: "injected fault".to_owned() }
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
