//! Deliberately broken variants of the log's rules.
//!
//! A test that cannot fail proves nothing. Each variant breaks one rule in the production path; the
//! simulation must catch every one of them. Without the feature `sabotage` the type has a single value and
//! every question about it is answered `false` at compile time.

pub(crate) use tiffin_sabotage::sabotaged;

tiffin_sabotage::variants! {
    /// Every broken variant.
    ALL {
        /// An append is answered when it is written, before it is synced.
        AnswerBeforeSync: "an answered append is durable";
        /// A sync counts for writes that had not ended when it began.
        SyncCoversLater: "a sync covers only what was written before it";
        /// A forget is answered before its tombstone is durable.
        ForgetBeforeDurable: "an answered delete is durable";
        /// Compaction leaves the tombstones of an erased segment behind.
        DropTombstones: "tombstones are carried along";
        /// A segment is erased before what was carried out of it is durable.
        EraseBeforeCarried: "nothing is erased before its copy is durable";
        /// Compaction brings a record back that was forgotten while it was carried.
        CarryForgotten: "a record forgotten while it is carried stays so";
        /// Records of a segment are reported as evicted before the segment is durably erased.
        ReportBeforeErased: "evicted is durable before it is said";
        /// A segment is used again while reads of it are in flight.
        ReuseUnderReaders: "reads in flight keep their segment";
        /// Protected records are evicted too.
        EvictProtected: "protected records are never evicted";
        /// A read's bytes are not held against their checksum.
        ServeCorrupt: "bad bytes are never served";
        /// Recovery believes a record's header without looking at its payload.
        BelieveTail: "a torn record is cut off";
        /// Recovery prefers older generations.
        PreferOlder: "the highest generation wins";
        /// Recovery goes no further than the first bad block.
        StopAtBadBlock: "a bad record costs only that record";
        /// Records are written into a segment before its header is durable.
        WriteBeforeHead: "a segment's header is durable before its records";
        /// A change of marks is answered before it is durable.
        MarkBeforeDurable: "an answered mark is durable";
        /// Compaction leaves changes of marks behind.
        DropMarks: "marks are carried along";
        /// A cancelled append stays if the disk was faster.
        KeepCancelled: "a cancelled append leaves nothing";
        /// A record that replaces another is answered before the other's tombstone is durable.
        AnswerBeforeSuperseded: "a replaced record is gone before its successor is answered";
        /// Record ids start again after a restart.
        ReuseIds: "ids are never used twice";
        /// The head of a record that spans segments is written before its parts are durable.
        HeadBeforeParts: "parts are durable before their record is";
        /// Recovery accepts a record although a part of it is missing.
        AcceptMissingParts: "a record without all its parts is cut off";
        /// A segment is freed although it holds a part of a record that stays.
        LeavePartsBehind: "parts are carried along";
        /// A part is evicted, and its record stays.
        EvictPartAlone: "a record leaves with the first of its parts";
        /// Records are not cut at the end of a segment: its rest stays unused.
        PadSegments: "a segment is filled before it is sealed";
        /// The log goes on writing after a failed sync.
        IgnoreFailedSync: "a failed disk takes nothing more";
    }
}
