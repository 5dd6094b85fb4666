//! Deliberately broken variants of the rules.
//!
//! A test that cannot fail proves nothing. Each variant breaks one rule in the production path; the
//! simulation must catch every one of them. Without the feature `sabotage` the type has a single value and
//! every question about it is answered `false` at compile time.

/// Which rule is broken, if any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sabotage {
    /// None: production.
    #[default]
    None,
    /// The reader checks the stamp before the copy and not after it.
    #[cfg(feature = "sabotage")]
    CheckBeforeCopyOnly,
    /// The node frees a retired object's room without changing its stamp.
    #[cfg(feature = "sabotage")]
    ReuseBeforeRetire,
    /// The node reuses room that somebody still looks at.
    #[cfg(feature = "sabotage")]
    IgnoreViews,
    /// The node takes a silent writer for dead and gives its room away.
    #[cfg(feature = "sabotage")]
    SilenceIsDeath,
    /// The node commits a reservation whatever stamp the writer presents.
    #[cfg(feature = "sabotage")]
    CommitWithoutFence,
    /// The master answers a delete before the nodes have confirmed it.
    #[cfg(feature = "sabotage")]
    DeleteWithoutConfirmation,
    /// The master readmits a node without the retires that it owes.
    #[cfg(feature = "sabotage")]
    ForgetOwedRetires,
    /// The master believes a node that it had declared lost.
    #[cfg(feature = "sabotage")]
    BelieveTheLost,
    /// The master evicts pinned objects too.
    #[cfg(feature = "sabotage")]
    EvictPinned,
    /// The master lets a namespace have more than its quota.
    #[cfg(feature = "sabotage")]
    IgnoreQuota,
    /// The master listens to connections that have been replaced.
    #[cfg(feature = "sabotage")]
    HearOldConnections,
}

impl Sabotage {
    /// Every broken variant.
    #[cfg(feature = "sabotage")]
    pub const ALL: [Self; 11] = [
        Self::IgnoreQuota,
        Self::CheckBeforeCopyOnly,
        Self::ReuseBeforeRetire,
        Self::IgnoreViews,
        Self::SilenceIsDeath,
        Self::CommitWithoutFence,
        Self::DeleteWithoutConfirmation,
        Self::ForgetOwedRetires,
        Self::BelieveTheLost,
        Self::EvictPinned,
        Self::HearOldConnections,
    ];
}

/// Whether a rule is broken here: `sabotaged!(self.sabotage, IgnoreViews)`.
macro_rules! sabotaged {
    ($sabotage:expr, $variant:ident) => {{
        #[cfg(feature = "sabotage")]
        let broken = $sabotage == $crate::sabotage::Sabotage::$variant;
        #[cfg(not(feature = "sabotage"))]
        let broken = $sabotage != $crate::sabotage::Sabotage::None;
        broken
    }};
}

pub(crate) use sabotaged;
