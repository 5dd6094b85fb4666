//! Whether this thread may block while it polls a call.
//!
//! A task must not block: it would hold up all other tasks of its runtime. A thread whose caller waits for
//! this very result should: then the reply reaches it without a detour through a thread of the runtime.

use std::cell::Cell;

/// How a call that is polled waits for its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocking {
    /// The runtime wakes the call.
    Never,
    /// This thread may block, but has other work first: it runs several calls at once. It polls the call
    /// again when that is done, so it needs no wake-up.
    Soon,
    /// This thread may block now.
    Now,
}

thread_local! {
    static BLOCKING: Cell<Blocking> = const { Cell::new(Blocking::Never) };
}

/// Runs `work`, in which calls wait like that.
pub fn with_blocking<R>(blocking: Blocking, work: impl FnOnce() -> R) -> R {
    let _restore = Restore(BLOCKING.replace(blocking));
    work()
}

/// How calls of this thread wait.
#[must_use]
pub fn blocking() -> Blocking {
    BLOCKING.get()
}

/// Restores the permission, also after a panic.
struct Restore(Blocking);

impl Drop for Restore {
    fn drop(&mut self) {
        BLOCKING.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_permission_ends_with_the_work_it_was_given_for() {
        assert_eq!(blocking(), Blocking::Never);
        with_blocking(Blocking::Now, || {
            assert_eq!(blocking(), Blocking::Now);
            let panic = || with_blocking(Blocking::Soon, || panic!("in the middle"));
            assert!(std::panic::catch_unwind(panic).is_err());
            assert_eq!(blocking(), Blocking::Now);
            let elsewhere = std::thread::spawn(blocking).join().unwrap();
            assert_eq!(elsewhere, Blocking::Never, "in this thread only");
        });
        assert_eq!(blocking(), Blocking::Never);
    }
}
