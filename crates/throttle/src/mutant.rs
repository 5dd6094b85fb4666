//! Mutants: variants that break one rule each. A test that cannot fail proves nothing.

pub(crate) use tiffin_mutants::is_mutant;

tiffin_mutants::variants! {
    /// Every mutant.
    ALL {
        /// A second caller gets a token, too.
        RunTwice: "token: only the token ends its work";
        /// Pressure is ignored.
        IgnoreCooldown: "pressure: all callers see it";
        /// Pressure of one pool affects all.
        PressEverywhere: "pressure: other pools are not affected";
        /// There are no limits.
        NoBounds: "bounds: work in flight is bounded";
        /// A failure is recorded as a success.
        FailureIsSuccess: "failure: a failure is not a success";
        /// Work in flight expires.
        ForgetRunning: "expiry: work in flight does not expire";
    }
    /// Mutants of [`Turns`](crate::Turns).
    OF_TURNS {
        /// Requests are served in the order in which they came.
        ServeInOrder: "share: flows that wait take turns";
        /// A batch counts as one request.
        FreeBatches: "cost: a batch counts by its items";
        /// All flows are in one group.
        IgnoreGroups: "groups: a group with many flows gets no more than one with a single flow";
    }
}
