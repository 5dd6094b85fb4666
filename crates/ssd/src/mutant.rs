//! Mutants: variants of the log that each break one rule in the production path.
//!
//! The simulation must detect every one of them. Without the feature `mutants` the type has a single value,
//! and every check is `false` at compile time.

pub(crate) use tiffin_mutants::is_mutant;

tiffin_mutants::variants! {
    /// All mutants.
    ALL {
        /// An append is answered when it is written, before it is synced.
        AnswerBeforeSync: "an answered append is durable";
        /// A sync counts for writes that had not ended when it began.
        SyncCoversLater: "a sync covers only what was written before it";
        /// A forget is answered before its tombstone is durable.
        ForgetBeforeDurable: "an answered delete is durable";
        /// Compaction leaves the tombstones of an erased segment behind.
        DropTombstones: "tombstones are rewritten by compaction";
        /// A segment is erased before the entries that were moved out of it are durable.
        EraseBeforeCarried: "nothing is erased before its copy is durable";
        /// Compaction restores a record that was deleted while it was moved.
        CarryForgotten: "a record deleted while it is moved stays deleted";
        /// Records of a segment are reported as evicted before the segment is durably erased.
        ReportBeforeErased: "an eviction is durable before it is reported";
        /// A segment is used again while reads of it are in flight.
        ReuseUnderReaders: "reads in flight keep their segment";
        /// Protected records are evicted too.
        EvictProtected: "protected records are never evicted";
        /// The bytes of a read are not verified.
        ServeCorrupt: "damaged bytes are never served";
        /// Recovery accepts a record without verifying its payload.
        BelieveTail: "a torn record is dropped";
        /// Recovery prefers older generations.
        PreferOlder: "the highest generation wins";
        /// Recovery stops at the first bad block.
        StopAtBadBlock: "a bad record costs only that record";
        /// Records are written into a segment before its header is durable.
        WriteBeforeHead: "a segment's header is durable before its records";
        /// A change of attributes is answered before it is durable.
        AttributesBeforeDurable: "an answered mark is durable";
        /// Compaction drops changes of attributes.
        DropAttributes: "attributes are carried along";
        /// A cancelled append stays if it was durable already.
        KeepCancelled: "a cancelled append leaves nothing";
        /// A record that replaces another is answered before the other's tombstone is durable.
        AnswerBeforeSuperseded: "a replaced record is removed before its successor is answered";
        /// Record ids start again after a restart.
        ReuseIds: "ids are never used twice";
        /// The head of a record that spans segments is written before its parts are durable.
        HeadBeforeParts: "parts are durable before their record is";
        /// Recovery accepts a record with a missing part.
        AcceptMissingParts: "a record with a missing part is dropped";
        /// A segment is freed although it holds a part of a live record.
        LeavePartsBehind: "parts are moved by compaction";
        /// A part is evicted, and its record stays.
        EvictPartAlone: "a record is evicted with the first of its parts";
        /// Records are not cut at the end of a segment, so that its rest stays unused.
        PadSegments: "a segment is filled before it is sealed";
        /// The log continues to write after a failed sync.
        IgnoreFailedSync: "a failed log writes nothing";
    }
}
