//! Mutants: variants that break one rule each. A test that cannot fail proves nothing.

pub(crate) use tiffin_sabotage::sabotaged;

tiffin_sabotage::variants! {
    /// Every mutant.
    ALL {
        /// A second caller gets a token, too.
        RunTwice: "T4";
        /// Pressure is ignored.
        IgnoreCooldown: "T7";
        /// Pressure of one pool affects all.
        PressEverywhere: "T7: of one pool";
        /// There are no limits.
        NoBounds: "T11";
        /// A failure is recorded as a success.
        FailureIsSuccess: "T5";
        /// Work in flight expires.
        ForgetRunning: "T2";
    }
}
