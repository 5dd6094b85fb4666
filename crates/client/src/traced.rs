//! The spans of calls: one for each call of a client that continues a trace, with what became of its items.
//!
//! A span tells how many items a call had and how they ended. It never tells a key or a byte of an object.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;
use tiffin_trace::{Scoped, Span};

use crate::inner::Busy;
use crate::{Error, Presences};

/// The result of a call, as its span tells it.
pub(crate) trait Outcome {
    /// The number of items, and the errors of those that failed.
    fn items(&self) -> (usize, impl Iterator<Item = &Error>);
}

impl<T> Outcome for Vec<Result<T, Error>> {
    fn items(&self) -> (usize, impl Iterator<Item = &Error>) {
        (self.len(), self.iter().filter_map(|it| it.as_ref().err()))
    }
}

impl<T> Outcome for Result<T, Error> {
    fn items(&self) -> (usize, impl Iterator<Item = &Error>) {
        (1, self.as_ref().err().into_iter())
    }
}

impl Outcome for Presences {
    fn items(&self) -> (usize, impl Iterator<Item = &Error>) {
        (self.there.len(), self.failures.values())
    }
}

pin_project! {
    /// The work of a call, inside its span if it is traced.
    pub(crate) struct Traced<'a, F> {
        busy: Busy<'a>,
        #[pin]
        work: Scoped<F>,
    }
}

impl<'a, F> Traced<'a, F> {
    pub(crate) fn new(busy: Busy<'a>, work: F) -> Self {
        let current = busy.span.as_ref().and_then(Span::current);
        Self { busy, work: tiffin_trace::scoped(current, work) }
    }
}

impl<F: Future<Output: Outcome>> Future for Traced<'_, F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let outcome = ready!(this.work.poll(context));
        if let Some(span) = &mut this.busy.span {
            describe(span, &outcome);
        }
        Poll::Ready(outcome)
    }
}

/// An absent object is an answer, not a failure.
fn describe(span: &mut Span, outcome: &impl Outcome) {
    let (items, errors) = outcome.items();
    let (mut missing, mut failed) = (0, 0);
    for error in errors {
        if let Error::NotFound { .. } = error {
            missing += 1;
        } else {
            failed += 1;
            span.fail(error.code());
        }
    }
    span.number("tiffin.items", items as u64);
    for (name, count) in [("tiffin.missing", missing), ("tiffin.failed", failed)] {
        if count > 0 {
            span.number(name, count);
        }
    }
}
