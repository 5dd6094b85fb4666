//! The trace context that the current thread works for.
//!
//! A future carries its context from thread to thread: [`Scoped`] sets it while the future is polled.

use std::cell::RefCell;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::{Kind, Name, Span, TraceContext, Tracer};

/// Whether this process has met a trace context or a collector. It is never reset.
static ACTIVE: AtomicBool = AtomicBool::new(false);

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

/// The position in a trace, and where the spans below it go.
#[derive(Clone, Debug)]
pub struct Current {
    /// The span that is continued.
    pub context: TraceContext,
    /// `None` if this process exports no spans: the context is only passed on.
    pub tracer: Option<Tracer>,
}

/// Whether a trace context may exist in this process.
#[inline]
#[must_use]
pub fn is_active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// From now on, trace contexts may exist in this process.
pub fn activate() {
    ACTIVE.store(true, Ordering::Relaxed);
}

/// What the thread works for, if that is traced.
#[inline]
#[must_use]
pub fn current() -> Option<Current> {
    if is_active() { CURRENT.with_borrow(Clone::clone) } else { None }
}

/// Begins a span below the current one. `None` if there is none, or if its spans are not exported.
#[inline]
#[must_use]
pub fn start(name: Name, kind: Kind) -> Option<Span> {
    let Current { context, tracer } = current()?;
    tracer?.start(name, kind, context)
}

/// Runs `work` for a position in a trace. With `None`, it keeps that of its surroundings.
pub fn scoped<F>(current: Option<Current>, work: F) -> Scoped<F> {
    if current.is_some() {
        activate();
    }
    Scoped { current, work }
}

pin_project! {
    /// A future that works for a position in a trace.
    #[derive(Debug)]
    pub struct Scoped<F> {
        current: Option<Current>,
        #[pin]
        work: F,
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        if this.current.is_none() {
            return this.work.poll(context);
        }
        let _entered = Entered::new(this.current);
        this.work.poll(context)
    }
}

/// While it exists, the thread has the future's position, and the future has that of the thread.
struct Entered<'a>(&'a mut Option<Current>);

impl<'a> Entered<'a> {
    fn new(current: &'a mut Option<Current>) -> Self {
        CURRENT.with_borrow_mut(|it| mem::swap(it, current));
        Self(current)
    }
}

// In a destructor, so that the thread has its own position again also after a panic.
impl Drop for Entered<'_> {
    fn drop(&mut self) {
        CURRENT.with_borrow_mut(|it| mem::swap(it, self.0));
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;
    use std::task::Waker;

    use super::*;

    fn at(span: u8) -> Option<Current> {
        let context = TraceContext::new([1; 16], [span; 8], 1).unwrap();
        Some(Current { context, tracer: None })
    }

    fn span() -> Option<String> {
        current().map(|it| it.context.span_id())
    }

    #[test]
    fn position_is_set_while_the_future_is_polled() {
        let mut context = Context::from_waker(Waker::noop());
        let inner = poll_fn(|_| Poll::Ready(span()));
        let outer = async {
            let first = span();
            (first, scoped(at(2), inner).await, span(), scoped(None, async { span() }).await)
        };
        let (first, second) = (Some("01".repeat(8)), Some("02".repeat(8)));
        let expected = (first.clone(), second, first.clone(), first);
        assert_eq!(pin!(scoped(at(1), outer)).poll(&mut context), Poll::Ready(expected));
        assert_eq!(span(), None);
        let mut waiting = pin!(scoped(at(3), pending::<()>()));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert_eq!(span(), None, "a future that waits leaves the thread");
    }

    #[test]
    fn position_ends_with_a_panic() {
        let mut context = Context::from_waker(Waker::noop());
        let mut work = Box::pin(scoped(at(1), async { panic!("in the middle") }));
        assert!(catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(&mut context))).is_err());
        assert_eq!(span(), None);
    }
}
