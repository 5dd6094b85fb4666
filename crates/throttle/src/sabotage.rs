//! Deliberately broken variants of the rules: a test that cannot fail proves nothing.

pub(crate) use tiffin_sabotage::sabotaged;

tiffin_sabotage::variants! {
    /// Every broken variant.
    ALL {
        /// A second asker gets a token, too.
        RunTwice: "T4";
        /// Pressure is not looked at.
        IgnoreCooldown: "T7";
        /// There are no bounds.
        NoBounds: "T11";
        /// What failed is remembered as if it had been brought.
        FailureIsSuccess: "T5";
        /// Work under way is forgotten when its time has come.
        ForgetRunning: "T2";
    }
}
