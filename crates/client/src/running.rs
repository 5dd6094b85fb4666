//! Several things at once, inside one task.
//!
//! A put or get has at most a few calls and one batch of copies per node under way. They run inside the
//! caller's own task, so that nothing of them is left when it is dropped: no copy goes on in a buffer that
//! the caller already uses for something else.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use tiffin_rpc::{Waiting, waiting, while_waiting_is};

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
        let whole = waiting();
        let are_calls = self.jobs.iter().take(last).all(|(kind, _)| *kind == Kind::Call);
        let (of_last, of_others) = match whole {
            Waiting::Now if are_calls => (Waiting::Now, Waiting::Soon),
            Waiting::Now => (Waiting::Never, Waiting::Soon),
            whole => (whole, whole),
        };
        // All are polled at every wake. They are as many as nodes are involved, so that is cheap.
        let how = |index| if index == last { of_last } else { of_others };
        let mut ready = self.poll_each(context, self.jobs.len(), how);
        if ready.is_none() && of_others != whole {
            // This thread does something else now, so the runtime has to watch.
            ready = self.poll_each(context, last, |_| Waiting::Never);
        }
        match ready {
            Some((index, result)) => {
                drop(self.jobs.remove(index));
                Poll::Ready(Some(result))
            }
            None if self.jobs.is_empty() => Poll::Ready(None),
            None => Poll::Pending,
        }
    }

    /// Polls the first `count` of them until one is ready.
    fn poll_each(
        &mut self,
        context: &mut Context<'_>,
        count: usize,
        how: impl Fn(usize) -> Waiting,
    ) -> Option<(usize, T)> {
        self.jobs.iter_mut().take(count).enumerate().find_map(|(index, (_, job))| {
            match while_waiting_is(how(index), || job.as_mut().poll(context)) {
                Poll::Ready(result) => Some((index, result)),
                Poll::Pending => None,
            }
        })
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

    /// How several things are polled, each time, when this thread may wait for them.
    fn polled(calls: &[bool]) -> Vec<(usize, Waiting)> {
        let polled = Mutex::new(Vec::new());
        let mut running = Running::<()>::new();
        for (index, is_call) in calls.iter().enumerate() {
            let polled = &polled;
            let job = poll_fn(move |_| {
                polled.lock().unwrap().push((index, waiting()));
                Poll::Pending
            });
            if *is_call { running.push_call(job) } else { running.push(job) }
        }
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(while_waiting_is(Waiting::Now, || running.poll(&mut context)).is_pending());
        drop(running);
        polled.into_inner().unwrap()
    }

    fn who_waits(calls: &[bool]) -> Vec<usize> {
        polled(calls).into_iter().filter(|(_, how)| *how == Waiting::Now).map(|(index, _)| index).collect()
    }

    #[test]
    fn one_waits_where_nothing_else_has_to_go_on() {
        assert_eq!(who_waits(&[true]), [0]);
        assert_eq!(who_waits(&[false]), [0]);
        assert_eq!(who_waits(&[true, true, false]), [2]);
        assert!(who_waits(&[true, false, true]).is_empty(), "the second would stand still");
        assert!(who_waits(&[false, false]).is_empty());
    }

    #[test]
    fn nobody_watches_for_an_answer_that_this_thread_comes_back_for() {
        use Waiting::{Never, Now, Soon};
        assert_eq!(polled(&[true, false]), [(0, Soon), (1, Now), (0, Never)]);
        assert_eq!(polled(&[false, true]), [(0, Soon), (1, Never), (0, Never)], "it comes back for none");
    }

    #[test]
    fn what_may_not_wait_is_polled_once() {
        let mut count = 0;
        let mut running = Running::<()>::new();
        running.push_call(std::future::pending());
        running.push(poll_fn(|_| {
            count += 1;
            assert_eq!(waiting(), Waiting::Never);
            Poll::Pending
        }));
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(running.poll(&mut context).is_pending());
        drop(running);
        assert_eq!(count, 1);
    }
}
