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

/// The things under way, in the order in which they began.
pub(crate) struct Running<'a, T> {
    jobs: Vec<(Kind, Job<'a, T>)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Polled once, it has sent its question, unless there is no connection yet; nobody need look at it for
    /// the few milliseconds that another waits in a socket.
    Call,
    /// It has to be polled to get anywhere.
    Work,
}

impl<'a, T> Running<'a, T> {
    pub(crate) fn new() -> Self {
        Self { jobs: Vec::new() }
    }

    pub(crate) fn push(&mut self, job: impl Future<Output = T> + Send + 'a) {
        self.jobs.push((Kind::Work, Box::pin(job)));
    }

    /// The same for what is one question to one peer: whatever begins after it may wait in a socket.
    pub(crate) fn push_call(&mut self, job: impl Future<Output = T> + Send + 'a) {
        self.jobs.push((Kind::Call, Box::pin(job)));
    }

    /// The next result, as soon as there is one; `None` when nothing is under way. Dropping this future loses
    /// nothing.
    pub(crate) async fn next(&mut self) -> Option<T> {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        // One that waits in the socket keeps the others from going on: so only the last does, if those before
        // it are calls, which have begun.
        let last = self.jobs.len().saturating_sub(1);
        let may_last_wait = may_wait() && self.jobs.iter().take(last).all(|(kind, _)| *kind == Kind::Call);
        // All are polled at every wake. They are as many as nodes are involved, so that is cheap.
        let ready = self.jobs.iter_mut().enumerate().find_map(|(index, (_, job))| {
            let may_wait = index == last && may_last_wait;
            match while_waiting_is(may_wait, || job.as_mut().poll(context)) {
                Poll::Ready(result) => Some((index, result)),
                Poll::Pending => None,
            }
        });
        match ready {
            Some((index, result)) => {
                drop(self.jobs.remove(index));
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Which of several things may wait, when this thread may.
    fn who_waits(calls: &[bool]) -> Vec<usize> {
        let waited = Mutex::new(Vec::new());
        let mut running = Running::<()>::new();
        for (index, is_call) in calls.iter().enumerate() {
            let waited = &waited;
            let job = poll_fn(move |_| {
                waited.lock().unwrap().extend(may_wait().then_some(index));
                Poll::Pending
            });
            if *is_call { running.push_call(job) } else { running.push(job) }
        }
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(while_waiting_is(true, || running.poll(&mut context)).is_pending());
        drop(running);
        waited.into_inner().unwrap()
    }

    #[test]
    fn one_waits_where_nothing_else_has_to_go_on() {
        assert_eq!(who_waits(&[true]), [0]);
        assert_eq!(who_waits(&[false]), [0]);
        assert_eq!(who_waits(&[true, true, false]), [2]);
        assert!(who_waits(&[true, false, true]).is_empty(), "the second would stand still");
        assert!(who_waits(&[false, false]).is_empty());
    }
}
