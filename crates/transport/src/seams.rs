//! Where the checkers of concurrency take hold of this crate: points between which a schedule may switch, and
//! rules that a test may break, one at a time, to prove that it would notice.
//!
//! Both exist only in this crate's own unit tests. In every other build [`point`] is nothing and
//! [`is_broken`] is `false`, both known when the crate is compiled.

/// A rule that the correctness of reads rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A reader looks at the stamp again after the copy.
    CheckAfterCopy,
    /// A reader looks at the stamp again after it has loaded the words of a slot.
    CheckAfterWords,
    /// The old stamp goes before the words of a new use come.
    RetireBeforeWords,
    /// A new stamp comes after the words it speaks for.
    StampAfterWords,
    /// Taking a stamp away is fenced off from whatever comes then.
    FenceAfterRetire,
    /// Finding a stamp is fenced off from loading what it speaks for.
    FenceAfterStamp,
    /// Looking at the stamp again is fenced off from what was loaded before.
    FenceBeforeCheck,
    /// A writer passes on that the use before its own was retired.
    FenceBeforeBytes,
    /// Saying that the node has left is fenced off from whatever comes then.
    FenceAfterMember,
    /// Asking whether the node is a member is fenced off from what was loaded before.
    FenceBeforeMember,
    /// A writer claims an offer before it stores a byte there.
    ClaimBeforeBytes,
    /// A claim compares and swaps in one step.
    ClaimAtOnce,
    /// A recall compares and swaps in one step.
    RecallAtOnce,
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

    // Both checkers run all threads of a schedule as coroutines on the thread of the test, so these are
    // theirs in common and nobody else's.
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

    /// Whether this thread runs under a checker that wants [`point`]s.
    pub(crate) fn is_scheduled() -> bool {
        SWITCH.get().is_some()
    }

    /// From now on, on this thread, every point does this.
    pub(crate) fn schedule(switch: fn()) {
        SWITCH.set(Some(switch));
    }

    /// From now on, on this thread, this rule alone is broken.
    pub(crate) fn break_rule(rule: Option<Rule>) {
        BROKEN.set(rule);
    }
}
