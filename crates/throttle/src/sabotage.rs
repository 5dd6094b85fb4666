//! Mutants: variants that break one rule each. A test that cannot fail proves nothing.

pub(crate) use tiffin_sabotage::sabotaged;

tiffin_sabotage::variants! {
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
}
