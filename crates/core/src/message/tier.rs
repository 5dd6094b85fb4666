//! What is said about the tier below memory: copies on disks, and bringing them back in time.

use super::{Record, Usage};
use crate::{Hold, Key};

/// What becomes of objects that memory has no room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Demotion {
    /// They go to the disk of their node before their memory is used again.
    #[default]
    OnPressure,
    /// Every object has a copy there soon after it was put.
    WriteThrough,
    /// Nothing ever goes there.
    Never,
}

/// One object that is to be written to the disk, see [`Request::Demote`](super::Request::Demote).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemoteItem {
    /// Where it lies in the memory beside the disk.
    pub source: Hold,
    /// What it is. The hold is the one that it will have on the disk.
    pub record: Record,
}

/// One object that is to be read from the disk, see [`Request::Promote`](super::Request::Promote).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromoteItem {
    /// Where it lies on the disk.
    pub hold: Hold,
    /// The reservation in the memory beside the disk that it is to be read into.
    pub into: Hold,
}

/// See [`Request::Demote`](super::Request::Demote) and [`Request::Promote`](super::Request::Promote).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// In the order asked: whether it was done.
    pub items: Vec<bool>,
    /// How full the disk is now.
    pub usage: Usage,
    /// In the order asked, empty if nothing was refused: zero, or the most bytes that the disk takes for one
    /// object now, if it refused this one although it works.
    pub bytes_max: Vec<u64>,
}

/// Copies that a disk no longer has, see [`Request::Dropped`](super::Request::Dropped).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Which.
    pub items: Vec<Record>,
    /// They were unreadable; else they made room.
    pub corrupt: bool,
    /// How full the disk is now.
    pub usage: Usage,
}

/// Which of the keys that somebody asks about are to be in memory when they are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ahead {
    /// None. In a [`Prefetch`]: those that this client asked for before, and nobody else wants, are given up
    /// unless they are in memory or all but.
    #[default]
    Nothing,
    /// Those before the first one that does not exist: what lies behind a gap is of no use to a prefix.
    LeadingRun,
    /// All.
    All,
}

/// See [`Request::Prefetch`](super::Request::Prefetch).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefetch {
    /// The names.
    pub keys: Vec<Key>,
    /// Which of them.
    pub ahead: Ahead,
    /// How long the answer may wait for the last of them.
    pub wait_ms: u64,
}

/// What became of one key of a [`Prefetch`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefetchOutcome {
    /// There is no such object.
    #[default]
    Absent,
    /// It was in memory already.
    Resident,
    /// It is in memory now.
    Done,
    /// It is still on its way: the time was up.
    Running,
    /// It could not be read, now or a short while ago.
    Failed,
    /// It was not begun: memory has no room for it, too much is under way, or it lies behind a gap.
    Skipped,
    /// It was on its way, and was given up.
    Cancelled,
}

/// How the tier below memory is doing, since the master started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStat {
    /// Objects that have a copy on a disk.
    pub shelved: u64,
    /// Objects and bytes that were written to disks.
    pub demoted_objects: u64,
    /// See [`Self::demoted_objects`].
    pub demoted_bytes: u64,
    /// Objects that could not be written.
    pub demotions_failed: u64,
    /// Objects that a disk refused, because they are larger than it takes.
    pub demotions_refused: u64,
    /// Objects whose last copy was evicted from memory although they might have gone to a disk: it could not
    /// keep up, and their put would not wait.
    pub evicted_unshelved: u64,
    /// Objects and bytes that were brought back into memory.
    pub promoted_objects: u64,
    /// See [`Self::promoted_objects`].
    pub promoted_bytes: u64,
    /// Of these, how many were read before they left memory again.
    pub promoted_used: u64,
    /// How many left memory before anybody read them.
    pub promoted_unused: u64,
    /// Prefetches of what was in memory already.
    pub prefetch_redundant: u64,
    /// Prefetches that somebody was doing already, or had done a short while ago.
    pub prefetch_joined: u64,
    /// Prefetches that could not be read.
    pub prefetch_failed: u64,
    /// Prefetches that were not begun, because of pressure or because too much was under way.
    pub prefetch_skipped: u64,
    /// Prefetches that were given up before they had come.
    pub prefetch_cancelled: u64,
    /// Gets that were answered with a copy in memory.
    pub gets_from_memory: u64,
    /// Gets that were answered with a copy on a disk.
    pub gets_from_disk: u64,
    /// Of these, how many were of another host than the disk.
    pub gets_from_far_disk: u64,
    /// Gets of what was on its way, and came in time.
    pub gets_waited: u64,
    /// Gets of what was on its way, and came too late.
    pub gets_late: u64,
    /// How long these gets waited together, in milliseconds.
    pub waited_ms: u64,
    /// Copies that disks gave up to make room.
    pub disk_evicted: u64,
    /// Copies on disks that turned out to be unreadable.
    pub disk_corrupt: u64,
}

impl TierStat {
    /// Every number with its name and what it counts, for pages and tables. The first is a level, the others
    /// only grow.
    #[must_use]
    pub fn named(&self) -> [(&'static str, &'static str, u64); 23] {
        [
            ("shelved_objects", "Copies on disks", self.shelved),
            ("demoted_objects", "Objects written to disks", self.demoted_objects),
            ("demoted_bytes", "Bytes written to disks", self.demoted_bytes),
            ("demotions_failed", "Objects that could not be written to a disk", self.demotions_failed),
            ("demotions_refused", "Objects larger than a disk takes", self.demotions_refused),
            ("evicted_unshelved", "Objects evicted before a disk had them", self.evicted_unshelved),
            ("promoted_objects", "Objects brought back into memory", self.promoted_objects),
            ("promoted_bytes", "Bytes brought back into memory", self.promoted_bytes),
            ("promoted_used", "Of these objects, those that were read", self.promoted_used),
            (
                "promoted_unused",
                "Of these objects, those that left before they were read",
                self.promoted_unused,
            ),
            ("prefetch_redundant", "Prefetches of what was in memory", self.prefetch_redundant),
            ("prefetch_joined", "Prefetches of what was on its way or had just come", self.prefetch_joined),
            ("prefetch_failed", "Prefetches that could not be read", self.prefetch_failed),
            ("prefetch_skipped", "Prefetches not begun, for lack of room", self.prefetch_skipped),
            ("prefetch_cancelled", "Prefetches that were given up", self.prefetch_cancelled),
            ("gets_from_memory", "Gets that the master answered with memory", self.gets_from_memory),
            ("gets_from_disk", "Gets that the master answered with a disk", self.gets_from_disk),
            ("gets_from_far_disk", "Of these, gets from other hosts", self.gets_from_far_disk),
            (
                "gets_waited",
                "Batches of gets that waited for a prefetch, and had it in time",
                self.gets_waited,
            ),
            ("gets_late", "Batches of gets that waited for a prefetch in vain", self.gets_late),
            ("waited_ms", "How long these waited, in milliseconds", self.waited_ms),
            ("disk_evicted", "Copies that disks gave up to make room", self.disk_evicted),
            ("disk_corrupt", "Copies on disks that were unreadable", self.disk_corrupt),
        ]
    }
}
