//! Several jobs at once, inside one task.
//!
//! A put or get has at most a few calls and one batch of copies per node under way. They run inside the
//! caller's own task, so that nothing of them is left when it is dropped: no copy goes on in a buffer that
//! the caller already uses for something else.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::stream::{FuturesUnordered, Stream};
use tiffin_rpc::{may_block, with_blocking};

type Job<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The jobs under way.
pub(crate) struct Running<'a, T>(FuturesUnordered<Job<'a, T>>);

impl<'a, T> Running<'a, T> {
    pub(crate) fn new() -> Self {
        Self(FuturesUnordered::new())
    }

    pub(crate) fn push(&mut self, job: impl Future<Output = T> + Send + 'a) {
        self.0.push(Box::pin(job));
    }

    /// The next result, as soon as there is one; `None` when nothing is under way. Dropping this future loses
    /// nothing.
    pub(crate) async fn next(&mut self) -> Option<T> {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        // A job that blocks keeps the others from going on, so only one that is alone may.
        let may_block = may_block() && self.0.len() == 1;
        with_blocking(may_block, || Pin::new(&mut self.0).poll_next(context))
    }

    /// All results, in the order in which they come.
    pub(crate) async fn all(mut self) -> Vec<T> {
        let mut results = Vec::with_capacity(self.0.len());
        while let Some(result) = self.next().await {
            results.push(result);
        }
        results
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Whether each of several jobs may block, where this thread may.
    fn allowed(count: usize) -> Vec<bool> {
        let allowed = Mutex::new(Vec::new());
        let mut running = Running::<()>::new();
        for _ in 0..count {
            running.push(poll_fn(|_| {
                allowed.lock().unwrap().push(may_block());
                Poll::Pending
            }));
        }
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(with_blocking(true, || running.poll(&mut context)).is_pending());
        assert!(!may_block());
        assert!(running.poll(&mut context).is_pending());
        drop(running);
        allowed.into_inner().unwrap()
    }

    #[test]
    fn a_job_may_block_if_it_is_alone() {
        assert_eq!(allowed(1), [true]);
        assert_eq!(allowed(3), [false; 3]);
    }
}
