//! Whether the thread that polls a call may wait in the kernel for its answer.
//!
//! A task must not: it would hold up all others of its runtime. A thread that has nothing else to do, because
//! its caller waits for this very answer, should: then the answer takes no detour over a thread of the
//! runtime.

use std::cell::Cell;

thread_local! {
    static MAY_WAIT: Cell<bool> = const { Cell::new(false) };
}

/// Does something in which calls that are polled by this thread may wait in it, a moment each, or may not.
pub fn while_waiting_is<R>(allowed: bool, work: impl FnOnce() -> R) -> R {
    let _before = Before(MAY_WAIT.replace(allowed));
    work()
}

/// Whether calls that this thread polls may wait in it.
#[must_use]
pub fn may_wait() -> bool {
    MAY_WAIT.get()
}

/// Puts things back, also after a panic.
struct Before(bool);

impl Drop for Before {
    fn drop(&mut self) {
        MAY_WAIT.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allowed_ends_with_what_it_was_allowed_for() {
        assert!(!may_wait());
        while_waiting_is(true, || {
            assert!(may_wait());
            while_waiting_is(false, || assert!(!may_wait()));
            let panicked = std::panic::catch_unwind(|| while_waiting_is(false, || panic!("in the middle")));
            assert!(panicked.is_err() && may_wait());
            assert!(!std::thread::spawn(may_wait).join().unwrap(), "in this thread only");
        });
        assert!(!may_wait());
    }
}
