//! Whether this thread may block while it polls a call.
//!
//! A task must not block: it would hold up all other tasks of its runtime. A thread whose caller waits for
//! this very result should: then the reply reaches it without a detour through a thread of the runtime.

use std::cell::Cell;

thread_local! {
    static MAY_BLOCK: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, in which this thread may block, or may not.
pub fn with_blocking<R>(may_block: bool, work: impl FnOnce() -> R) -> R {
    let _restore = Restore(MAY_BLOCK.replace(may_block));
    work()
}

/// Whether this thread may block for a moment.
#[must_use]
pub fn may_block() -> bool {
    MAY_BLOCK.get()
}

/// Restores the permission, also after a panic.
struct Restore(bool);

impl Drop for Restore {
    fn drop(&mut self) {
        MAY_BLOCK.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_permission_ends_with_the_work_it_was_given_for() {
        assert!(!may_block());
        with_blocking(true, || {
            assert!(may_block());
            let panic = || with_blocking(false, || panic!("in the middle"));
            assert!(std::panic::catch_unwind(panic).is_err());
            assert!(may_block());
            assert!(!std::thread::spawn(may_block).join().unwrap(), "in this thread only");
        });
        assert!(!may_block());
    }
}
