//! Several things at once, inside one task.
//!
//! A put or get has at most a few calls and one batch of copies per node under way. They run inside the
//! caller's own task, so that nothing of them is left when it is dropped: no copy goes on in a buffer that
//! the caller already uses for something else.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use tiffin_rpc::{may_wait, while_waiting_is};

/// One of the things.
pub(crate) type Job<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The things under way.
pub(crate) struct Running<'a, T> {
    jobs: Vec<Job<'a, T>>,
}

impl<'a, T> Running<'a, T> {
    pub(crate) fn new() -> Self {
        Self { jobs: Vec::new() }
    }

    pub(crate) fn push(&mut self, job: impl Future<Output = T> + Send + 'a) {
        self.jobs.push(Box::pin(job));
    }

    /// The next result, as soon as there is one; `None` when nothing is under way. Dropping this future loses
    /// nothing.
    pub(crate) async fn next(&mut self) -> Option<T> {
        // One that waits in the socket would keep the others from beginning.
        let alone = self.jobs.len() == 1;
        poll_fn(|context| while_waiting_is(alone && may_wait(), || self.poll(context))).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        // All are polled at every wake. They are as many as nodes are involved, so that is cheap.
        let ready =
            self.jobs.iter_mut().enumerate().find_map(|(index, job)| match job.as_mut().poll(context) {
                Poll::Ready(result) => Some((index, result)),
                Poll::Pending => None,
            });
        match ready {
            Some((index, result)) => {
                drop(self.jobs.swap_remove(index));
                Poll::Ready(Some(result))
            }
            None if self.jobs.is_empty() => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    /// All results, in the order in which they come.
    pub(crate) async fn all(mut self) -> Vec<T> {
        let mut results = Vec::with_capacity(self.jobs.len());
        while let Some(result) = self.next().await {
            results.push(result);
        }
        results
    }
}
