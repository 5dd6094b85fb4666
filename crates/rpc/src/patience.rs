//! Whether the thread that polls a call may wait in the kernel for its answer.
//!
//! A task must not: it would hold up all others of its runtime. A thread that has nothing else to do, because
//! its caller waits for this very answer, should: then the answer takes no detour over a thread of the
//! runtime. Nor should it take one while such a thread has something to do first, and waits then.

use std::cell::Cell;

/// What becomes of the answers to calls that this thread polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The runtime has to watch for them.
    Never,
    /// This thread polls the call again in a moment, in which nobody need watch: with one of the others.
    Soon,
    /// This thread may wait for them, a moment each.
    Now,
}

thread_local! {
    static WAITING: Cell<Waiting> = const { Cell::new(Waiting::Never) };
}

/// Does something in which this thread may wait for the answers to the calls that it polls, or may not.
pub fn while_waiting_is<R>(waiting: Waiting, work: impl FnOnce() -> R) -> R {
    let _before = Before(WAITING.replace(waiting));
    work()
}

/// Whether this thread may wait for the answers to calls that it polls.
#[must_use]
pub fn waiting() -> Waiting {
    WAITING.get()
}

/// Puts things back, also after a panic.
struct Before(Waiting);

impl Drop for Before {
    fn drop(&mut self) {
        WAITING.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allowed_ends_with_what_it_was_allowed_for() {
        assert_eq!(waiting(), Waiting::Never);
        while_waiting_is(Waiting::Now, || {
            assert_eq!(waiting(), Waiting::Now);
            while_waiting_is(Waiting::Soon, || assert_eq!(waiting(), Waiting::Soon));
            let panic = || while_waiting_is(Waiting::Never, || panic!("in the middle"));
            assert!(std::panic::catch_unwind(panic).is_err());
            assert_eq!(waiting(), Waiting::Now);
            let elsewhere = std::thread::spawn(waiting).join().unwrap();
            assert_eq!(elsewhere, Waiting::Never, "in this thread only");
        });
        assert_eq!(waiting(), Waiting::Never);
    }
}
