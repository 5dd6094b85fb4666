//! Runs several jobs at once inside one task.
//!
//! A put or get has a few calls and one batch of copies per node in progress. They run inside the caller's
//! own task, so that dropping it ends them all: no copy continues in a buffer that the caller already
//! reuses.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use tiffin_rpc::{Blocking, blocking, with_blocking};

type Job<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The jobs in progress, in the order in which they started.
pub(crate) struct Running<'a, T>(Vec<Job<'a, T>>);

impl<'a, T> Running<'a, T> {
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn push(&mut self, job: impl Future<Output = T> + Send + 'a) {
        self.0.push(Box::pin(job));
    }

    /// The next result, as soon as there is one; `None` if no job is left. Dropping this future loses no
    /// result.
    pub(crate) async fn next(&mut self) -> Option<T> {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        if self.0.is_empty() {
            return Poll::Ready(None);
        }
        // A job that blocks stops the others, so only a job that is alone may block.
        let mut ready = match blocking() {
            Blocking::Now if self.0.len() > 1 => self.poll_all(context, Blocking::Soon),
            whole => self.poll_all(context, whole),
        };
        if ready.is_none() && blocking() == Blocking::Now && self.0.len() > 1 {
            // All jobs wait, so this thread sleeps until the runtime wakes it.
            ready = self.poll_all(context, Blocking::Never);
        }
        ready.map_or(Poll::Pending, |result| Poll::Ready(Some(result)))
    }

    /// Polls the jobs until one is ready. There are at most as many as nodes involved, so that is cheap.
    fn poll_all(&mut self, context: &mut Context<'_>, blocking: Blocking) -> Option<T> {
        let found = self.0.iter_mut().enumerate().find_map(|(index, job)| {
            match with_blocking(blocking, || job.as_mut().poll(context)) {
                Poll::Ready(result) => Some((index, result)),
                Poll::Pending => None,
            }
        });
        let (index, result) = found?;
        drop(self.0.remove(index));
        Some(result)
    }

    /// All results, in the order of completion.
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

    /// How several jobs are polled by a thread with this blocking mode.
    fn polled(count: usize, whole: Blocking) -> Vec<(usize, Blocking)> {
        let polled = Mutex::new(Vec::new());
        let mut running = Running::<()>::new();
        for index in 0..count {
            let polled = &polled;
            running.push(poll_fn(move |_| {
                polled.lock().unwrap().push((index, blocking()));
                Poll::Pending
            }));
        }
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(with_blocking(whole, || running.poll(&mut context)).is_pending());
        assert_eq!(blocking(), Blocking::Never);
        drop(running);
        polled.into_inner().unwrap()
    }

    #[test]
    fn job_blocks_if_it_is_alone() {
        use Blocking::{Never, Now, Soon};
        assert_eq!(polled(1, Now), [(0, Now)]);
        assert_eq!(polled(2, Now), [(0, Soon), (1, Soon), (0, Never), (1, Never)]);
        assert_eq!(polled(2, Never), [(0, Never), (1, Never)]);
        assert_eq!(polled(2, Soon), [(0, Soon), (1, Soon)]);
    }

    #[test]
    fn last_remaining_job_may_block() {
        let how = Mutex::new(Vec::new());
        let mut running = Running::new();
        running.push(poll_fn(|_| {
            how.lock().unwrap().push(blocking());
            if blocking() == Blocking::Now { Poll::Ready(1) } else { Poll::Pending }
        }));
        running.push(async { 2 });
        let mut context = Context::from_waker(std::task::Waker::noop());
        with_blocking(Blocking::Now, || {
            assert_eq!(running.poll(&mut context), Poll::Ready(Some(2)));
            assert_eq!(running.poll(&mut context), Poll::Ready(Some(1)));
            assert_eq!(running.poll(&mut context), Poll::Ready(None));
        });
        drop(running);
        assert_eq!(how.into_inner().unwrap(), [Blocking::Soon, Blocking::Now]);
    }
}
