//! Hooks for the concurrency checkers: points at which a schedule may switch threads, and rules that a test
//! breaks one at a time to prove that it would notice.
//!
//! Both exist only in this crate's unit tests. In every other build [`point`] is empty and [`is_broken`] is a
//! constant `false`.

/// A rule that the correctness of reads depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A reader checks the stamp again after the copy.
    CheckAfterCopy,
    /// A reader checks the stamp again after it has loaded the words of a slot.
    CheckAfterWords,
    /// The old stamp is withdrawn before the words of a new use are stored.
    RetireBeforeWords,
    /// A new stamp is stored after the words of its use.
    StampAfterWords,
    /// A fence orders the withdrawal of a stamp before all later stores.
    FenceAfterRetire,
    /// A fence orders the load of a stamp before loads of its words.
    FenceAfterStamp,
    /// A fence orders the second check of the stamp after the loads before it.
    FenceBeforeCheck,
    /// A fence makes the retire of the previous use visible before a writer's bytes.
    FenceBeforeBytes,
    /// A fence orders the end of membership before all later stores.
    FenceAfterMember,
    /// A fence orders the membership check after the loads before it.
    FenceBeforeMember,
    /// A writer claims an offer before it stores a byte there.
    ClaimBeforeBytes,
    /// A claim compares and swaps atomically.
    ClaimAtOnce,
    /// A recall compares and swaps atomically.
    RecallAtOnce,
    /// A withdrawal compares and swaps atomically.
    WithdrawAtOnce,
    /// A withdrawal changes only the word of its own use.
    WithdrawOwnUse,
    /// A reader loads the claim word before the stamp.
    WordBeforeStamp,
}

/// A schedule may switch to another thread here.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn point() {}

/// Whether a test has broken this rule.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn is_broken(_: Rule) -> bool {
    false
}

#[cfg(test)]
pub(crate) use under_test::{break_rule, is_broken, is_scheduled, point, schedule};

#[cfg(test)]
mod under_test {
    use std::cell::Cell;

    use super::Rule;

    // Both checkers run all threads of a schedule as coroutines on the thread of the test, so they share
    // these values and no other test sees them.
    thread_local! {
        static SWITCH: Cell<Option<fn()>> = const { Cell::new(None) };
        static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    pub(crate) fn point() {
        if let Some(switch) = SWITCH.get() {
            switch();
        }
    }

    pub(crate) fn is_broken(rule: Rule) -> bool {
        BROKEN.get() == Some(rule)
    }

    /// Whether this thread runs under a checker that uses [`point`]s.
    pub(crate) fn is_scheduled() -> bool {
        SWITCH.get().is_some()
    }

    /// Sets the function that every point on this thread calls.
    pub(crate) fn schedule(switch: fn()) {
        SWITCH.set(Some(switch));
    }

    /// Breaks this rule, and no other, on this thread.
    pub(crate) fn break_rule(rule: Option<Rule>) {
        BROKEN.set(rule);
    }
}
