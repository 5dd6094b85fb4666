//! Fail-stop: a server ends when one of its parts panics, instead of continuing without that part.
//!
//! A panic is a broken invariant. A server that is its own process exits at once (`end_on_panic`). A server
//! inside another program must not end that program. Its `Supervisor` records the failure, and the server
//! closes its connections. Callers then get errors, and never wait for a part that has ended.
//!
//! **Invariant:** a panic under a `CoreLock`, or in a future that `Supervisor::watch` runs, is a failure
//! of the server, in whichever thread it happens.

use std::any::Any;
use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Records the failure of a part of a server, and wakes the tasks that wait for it.
#[derive(Debug)]
pub(crate) struct Supervisor {
    failure: watch::Sender<Option<Arc<str>>>,
}

impl Supervisor {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { failure: watch::Sender::new(None) })
    }

    /// Records a failure. Only the first one counts, because later ones follow from it.
    pub(crate) fn fail(&self, part: &str, why: &str) {
        self.fail_with(&format!("{part} failed: {why}"));
    }

    /// Records the failure of another server.
    pub(crate) fn fail_with(&self, what: &str) {
        let is_first = self.failure.send_if_modified(|failure| {
            let is_first = failure.is_none();
            if is_first {
                *failure = Some(what.into());
            }
            is_first
        });
        if is_first {
            tracing::error!(what, "a part of the server failed; the server stops");
        }
    }

    /// The recorded failure, if any.
    pub(crate) fn failure(&self) -> Option<Arc<str>> {
        self.failure.borrow().clone()
    }

    /// Waits for a failure.
    pub(crate) async fn failed(&self) -> Arc<str> {
        let mut failure = self.failure.subscribe();
        // The sender has the lifetime of `self`, so that the wait ends only with a failure.
        let failed = failure.wait_for(Option::is_some).await;
        failed.ok().and_then(|failure| failure.clone()).unwrap_or_default()
    }

    /// Runs a future to its end. A panic in it is a failure of the server.
    pub(crate) fn watch(
        self: &Arc<Self>,
        part: &'static str,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let supervisor = Arc::clone(self);
        let mut future = Box::pin(future);
        async move {
            let ended =
                poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
                    Ok(polled) => polled.map(Ok),
                    Err(panic) => Poll::Ready(Err(panic)),
                });
            if let Err(panic) = ended.await {
                supervisor.fail(part, &text_of(&*panic));
            }
        }
    }

    /// Waits for a failure, then aborts the server's tasks and closes its connections.
    pub(crate) async fn end_on_failure(self: Arc<Self>, tasks: Vec<AbortHandle>, close: impl FnOnce()) {
        self.failed().await;
        tasks.iter().for_each(AbortHandle::abort);
        close();
    }
}

/// A lock around a core. After a panic under the lock, the core's state is not trusted.
pub(crate) struct CoreLock<T> {
    mutex: Mutex<T>,
    part: &'static str,
    supervisor: Arc<Supervisor>,
}

impl<T> CoreLock<T> {
    pub(crate) fn new(value: T, part: &'static str, supervisor: &Arc<Supervisor>) -> Self {
        Self { mutex: Mutex::new(value), part, supervisor: Arc::clone(supervisor) }
    }

    /// Locks the core.
    ///
    /// # Panics
    /// After a panic under this lock: every later user must fail too.
    pub(crate) fn lock(&self) -> Locked<'_, T> {
        match self.mutex.lock() {
            Ok(guard) => Locked { guard, lock: self },
            Err(_) => panic!("{} has failed", self.part),
        }
    }

    /// Locks the core even after a failure, to read statistics and to close connections.
    pub(crate) fn lock_anyway(&self) -> MutexGuard<'_, T> {
        self.mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a panic happened under this lock, or this thread is panicking now. Destructors must not lock
    /// then: a second panic would abort the process.
    pub(crate) fn has_failed(&self) -> bool {
        self.mutex.is_poisoned() || std::thread::panicking()
    }
}

impl<T> fmt::Debug for CoreLock<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("CoreLock").field("part", &self.part).finish_non_exhaustive()
    }
}

/// The guard of [`CoreLock::lock`].
pub(crate) struct Locked<'a, T> {
    guard: MutexGuard<'a, T>,
    lock: &'a CoreLock<T>,
}

impl<T> Deref for Locked<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Locked<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

impl<T> Drop for Locked<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.lock.supervisor.fail(self.lock.part, "a panic under its lock");
        }
    }
}

/// Makes the process exit with `status` when any thread panics, after `report` has printed the reason. For
/// processes that are only servers.
pub fn end_on_panic(status: i32, report: impl Fn(&str) + Send + Sync + 'static) {
    static IS_ENDING: AtomicBool = AtomicBool::new(false);
    std::panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
        // If several threads panic at once, only the first one reports.
        if IS_ENDING.swap(true, Ordering::AcqRel) {
            return;
        }
        let at = info.location().map_or_else(String::new, |it| format!(" at {}:{}", it.file(), it.line()));
        report(&format!("the server failed{at}: {}", text_of(info.payload())));
        std::process::exit(status);
    }));
}

/// The hint for a failed server.
pub const FAILURE_HINT: &str = "this is a bug in Tiffin; report this line and restart the server";

/// The message of a panic.
fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("panic without a message").to_owned()
}

/// Panics on request, for tests of supervision. Only builds with debug assertions contain this code, so that
/// these tests use the same compiled crates as all others.
pub mod faults {
    /// A place where a server can be made to panic.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(u8)]
    pub enum Point {
        /// The master's core, under its lock.
        MasterCore = 1,
        /// The node's core, under its lock.
        NodeCore,
        /// The task of a connection, while no lock is held.
        Connection,
        /// The task that wakes the master's core.
        Timer,
        /// The thread of a disk's log.
        DiskThread,
    }

    /// The point at which the next caller of [`strike`] panics; 0 for none.
    #[cfg(debug_assertions)]
    static ARMED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

    /// Makes the next thread that passes the point panic.
    #[cfg(debug_assertions)]
    pub fn arm(point: Point) {
        ARMED.store(point as u8, std::sync::atomic::Ordering::SeqCst);
    }

    /// Panics if the point is armed.
    #[inline]
    pub(crate) fn strike(point: Point) {
        #[cfg(debug_assertions)]
        {
            use std::sync::atomic::Ordering::SeqCst;
            if ARMED.compare_exchange(point as u8, 0, SeqCst, SeqCst).is_ok() {
                panic!("fault injected at {point:?}");
            }
        }
        #[cfg(not(debug_assertions))]
        let _ = point;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn panic_in_a_watched_task_is_a_failure() {
        let supervisor = Supervisor::new();
        tokio::spawn(supervisor.watch("a quiet task", async {})).await.unwrap();
        assert_eq!(supervisor.failure(), None);
        tokio::spawn(supervisor.watch("the timer", async { panic!("{} broke", "it") })).await.unwrap();
        assert_eq!(&*supervisor.failed().await, "the timer failed: it broke");
        supervisor.fail("the other", "too late");
        assert_eq!(supervisor.failure().as_deref(), Some("the timer failed: it broke"));
    }

    #[test]
    fn panic_under_the_lock_is_a_failure_in_any_thread() {
        let supervisor = Supervisor::new();
        let lock = CoreLock::new(7, "the core", &supervisor);
        *lock.lock() += 1;
        assert!(!lock.has_failed() && supervisor.failure().is_none());
        let broken = std::thread::scope(|scope| {
            let broken = scope.spawn(|| {
                let _locked = lock.lock();
                panic!("broken");
            });
            broken.join().is_err()
        });
        assert!(broken && lock.has_failed());
        assert_eq!(supervisor.failure().as_deref(), Some("the core failed: a panic under its lock"));
        assert_eq!(*lock.lock_anyway(), 8);
        assert!(catch_unwind(AssertUnwindSafe(|| *lock.lock())).is_err(), "later users fail too");
    }
}
