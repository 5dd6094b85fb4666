//! Deliberately broken variants of the log's rules.
//!
//! A test that cannot fail proves nothing. Each variant breaks one rule in the production path; the
//! simulation must catch every one of them. Without the feature `sabotage` the type has a single value and
//! every question about it is answered `false` at compile time.

/// Declares the variants and the list of all of them with the rule that each breaks.
macro_rules! variants {
    ($($(#[doc = $doc:literal])+ $variant:ident: $rule:literal,)*) => {
        /// Which rule is broken, if any.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum Sabotage {
            /// None: production.
            #[default]
            None,
            $($(#[doc = $doc])+ #[cfg(feature = "sabotage")] $variant,)*
        }

        #[cfg(feature = "sabotage")]
        impl Sabotage {
            /// Every broken variant.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The rule that it breaks, in a few words.
            #[must_use]
            pub fn rule(self) -> &'static str {
                match self {
                    Self::None => "none",
                    $(Self::$variant => $rule,)*
                }
            }
        }
    };
}

variants! {
    /// An append is answered when it is written, before it is synced.
    AnswerBeforeSync: "an answered append is durable",
    /// A sync counts for writes that had not ended when it began.
    SyncCoversLater: "a sync covers only what was written before it",
    /// A forget is answered before its tombstone is durable.
    ForgetBeforeDurable: "an answered delete is durable",
    /// Compaction leaves the tombstones of an erased segment behind.
    DropTombstones: "tombstones are carried along",
    /// A segment is erased before what was carried out of it is durable.
    EraseBeforeCarried: "nothing is erased before its copy is durable",
    /// Compaction brings a record back that was forgotten while it was carried.
    CarryForgotten: "a record forgotten while it is carried stays so",
    /// Records of a segment are reported as evicted before the segment is durably erased.
    ReportBeforeErased: "evicted is durable before it is said",
    /// A segment is used again while reads of it are in flight.
    ReuseUnderReaders: "reads in flight keep their segment",
    /// Protected records are evicted too.
    EvictProtected: "protected records are never evicted",
    /// A read's bytes are not held against their checksum.
    ServeCorrupt: "bad bytes are never served",
    /// Recovery believes a record's header without looking at its payload.
    BelieveTail: "a torn record is cut off",
    /// Recovery prefers older generations.
    PreferOlder: "the highest generation wins",
    /// Recovery goes no further than the first bad block.
    StopAtBadBlock: "a bad record costs only that record",
    /// Records are written into a segment before its header is durable.
    WriteBeforeHead: "a segment's header is durable before its records",
    /// A change of marks is answered before it is durable.
    MarkBeforeDurable: "an answered mark is durable",
    /// Compaction leaves changes of marks behind.
    DropMarks: "marks are carried along",
    /// A cancelled append stays if the disk was faster.
    KeepCancelled: "a cancelled append leaves nothing",
    /// A record that replaces another is answered before the other's tombstone is durable.
    AnswerBeforeSuperseded: "a replaced record is gone before its successor is answered",
    /// Record ids start again after a restart.
    ReuseIds: "ids are never used twice",
    /// The log goes on writing after a failed sync.
    IgnoreFailedSync: "a failed disk takes nothing more",
}

/// Whether a rule is broken here: `sabotaged!(self.sabotage, DropMarks)`.
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
