//! Polls several futures at once, each on a thread of its own.
//!
//! One thread that hashes and sends bytes is slower than the sockets of a machine with many processors. So
//! the streams of a large write are polled on several threads: the caller's, and some for blocking work that
//! the runtime keeps. All of that happens inside one poll of the caller's future.
//!
//! **Invariant:** when [`poll`] returns or unwinds, no other thread polls one of the futures, nor will one
//! begin to. So their buffers are not accessed after the caller has dropped them.
//!
//! A thread that starts late finds nothing to do. The caller does not wait for it: it polls that future
//! itself.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use tokio::runtime::Handle;

/// A future that is polled.
pub(super) type Worker<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A future, and whether it has ended.
struct Entry<'a> {
    worker: Worker<'a>,
    is_ready: bool,
}

/// The futures of one call of [`poll`].
#[derive(Default)]
struct Round {
    state: Mutex<State>,
    /// Notified when no future is being polled.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Those that no thread has taken. Empty when the call has returned.
    left: Vec<&'static mut Entry<'static>>,
    /// Number of those that other threads poll.
    running: usize,
    /// The payload of a panic.
    panic: Option<Box<dyn Any + Send>>,
}

/// Polls each future once, all at the same time, and removes those that have ended.
pub(super) fn poll(workers: &mut Vec<Worker<'_>>, context: &Context<'_>) {
    let entry = |worker| Entry { worker, is_ready: false };
    let mut entries: Vec<Entry<'_>> = workers.drain(..).map(entry).collect();
    let round = Arc::new(Round::default());
    // Dropped before the futures, also when one of them panics.
    let ending = Ending(&round);
    let mut each = entries.iter_mut();
    let first = each.next();
    round.state().left.extend(each.map(erased));
    round.call_helpers(context.waker());
    if let Some(first) = first {
        first.poll(context.waker());
    }
    round.help(context.waker());
    drop(ending);
    if let Some(panic) = round.state().panic.take() {
        resume_unwind(panic);
    }
    workers.extend(entries.into_iter().filter(|it| !it.is_ready).map(|it| it.worker));
}

/// The same entry with a lifetime that threads of the runtime accept.
fn erased(entry: &mut Entry<'_>) -> &'static mut Entry<'static> {
    let entry: *mut Entry<'_> = &raw mut *entry;
    // SAFETY: only lifetimes differ. `poll` gives the result to its `Round` alone, whose `Ending` removes it
    // or waits for its last use before the entry is used or dropped again.
    unsafe { &mut *entry.cast::<Entry<'static>>() }
}

impl Entry<'_> {
    fn poll(&mut self, waker: &Waker) {
        self.is_ready = self.worker.as_mut().poll(&mut Context::from_waker(waker)).is_ready();
    }
}

impl Round {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a thread help for each future that is left. Outside of a runtime there is none.
    fn call_helpers(self: &Arc<Self>, waker: &Waker) {
        let Ok(runtime) = Handle::try_current() else { return };
        for _ in 0..self.state().left.len() {
            let (round, waker) = (Arc::clone(self), waker.clone());
            runtime.spawn_blocking(move || round.help(&waker));
        }
    }

    /// Polls futures until none is left.
    fn help(&self, waker: &Waker) {
        loop {
            let mut state = self.state();
            let Some(entry) = state.left.pop() else { return };
            state.running += 1;
            drop(state);
            let polled = catch_unwind(AssertUnwindSafe(|| entry.poll(waker)));
            let mut state = self.state();
            state.running -= 1;
            if let Err(panic) = polled {
                state.panic.get_or_insert(panic);
            }
            if state.running == 0 {
                self.ended.notify_all();
            }
        }
    }
}

/// Ends a call of [`poll`]: waits until no thread polls a future, and leaves none.
struct Ending<'a>(&'a Round);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.left.clear();
        while state.running > 0 {
            state = self.0.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::task::Poll;
    use std::thread::{ThreadId, current};

    use super::*;

    fn poll_now(workers: &mut Vec<Worker<'_>>) {
        poll(workers, &Context::from_waker(Waker::noop()));
    }

    #[tokio::test]
    async fn each_future_is_polled_on_a_thread_of_its_own() {
        let threads = Mutex::new(Vec::<ThreadId>::new());
        // Each waits inside its poll until all are being polled.
        let barrier = std::sync::Barrier::new(3);
        let meet = |is_ready: bool| {
            let (threads, barrier) = (&threads, &barrier);
            Box::pin(poll_fn(move |_| {
                threads.lock().unwrap().push(current().id());
                barrier.wait();
                if is_ready { Poll::Ready(()) } else { Poll::Pending }
            })) as Worker<'_>
        };
        let mut workers = vec![meet(true), meet(false), meet(true)];
        poll_now(&mut workers);
        assert_eq!(workers.len(), 1, "those that ended are removed");
        drop(workers);
        let mut threads = threads.into_inner().unwrap();
        assert!(threads.contains(&current().id()));
        threads.sort_unstable_by_key(|it| format!("{it:?}"));
        threads.dedup();
        assert_eq!(threads.len(), 3);
    }

    #[test]
    fn without_a_runtime_the_caller_polls_all() {
        let count = AtomicUsize::new(0);
        let add = || {
            Box::pin(poll_fn(|_| {
                count.fetch_add(1, Ordering::Relaxed);
                Poll::Pending
            })) as Worker<'_>
        };
        let mut workers = vec![add(), add(), add()];
        poll_now(&mut workers);
        assert_eq!((workers.len(), count.load(Ordering::Relaxed)), (3, 3));
        poll_now(&mut Vec::new());
    }

    /// A future that borrows from the caller is not polled after the call, even if one panics.
    #[tokio::test]
    async fn panic_is_passed_on_when_all_polls_have_ended() {
        for panics_first in [true, false] {
            let (begun, begins) = mpsc::channel();
            let ended = AtomicUsize::new(0);
            let slow = {
                let ended = &ended;
                Box::pin(poll_fn(move |_| {
                    begun.send(()).unwrap();
                    // The other one panics meanwhile.
                    (0..1000).for_each(|_| std::thread::yield_now());
                    ended.fetch_add(1, Ordering::SeqCst);
                    Poll::Pending
                })) as Worker<'_>
            };
            let begins = Mutex::new(begins);
            let panics = Box::pin(poll_fn(|_| -> Poll<()> {
                begins.lock().unwrap().recv().unwrap();
                panic!("in the middle");
            })) as Worker<'_>;
            let mut workers = if panics_first { vec![panics, slow] } else { vec![slow, panics] };
            let caught = catch_unwind(AssertUnwindSafe(|| poll_now(&mut workers)));
            assert_eq!(ended.load(Ordering::SeqCst), 1, "its poll has ended");
            assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"in the middle"));
        }
    }
}
