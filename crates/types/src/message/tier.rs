//! The tier below memory: copies on disks, and their promotion.

use super::{NodeInfo, Record, Usage};
use crate::{Key, SlotRef};

/// What happens to objects when memory is short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Demotion {
    /// They are written to a disk of their node before their memory is reused.
    #[default]
    OnPressure,
    /// Every object is written to the disk soon after its put.
    WriteThrough,
    /// They are never written to a disk.
    Never,
}

/// One object that is written to the disk, see [`MasterToMember::Demote`](super::MasterToMember::Demote).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DemoteItem {
    /// The copy in the node's memory.
    pub source: SlotRef,
    /// Its description, with the copy that it will be on the disk.
    pub record: Record,
}

/// One object that is read from the disk, see [`MasterToMember::Promote`](super::MasterToMember::Promote).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromoteItem {
    /// The copy on the disk.
    pub slot_ref: SlotRef,
    /// The reservation in the node's memory into which it is read.
    pub into: SlotRef,
}

/// One object that is read from another member, see [`MasterToMember::Fetch`](super::MasterToMember::Fetch).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FetchItem {
    /// The copy there.
    pub from: SlotRef,
    /// The reservation in the node's memory into which it is read.
    pub into: SlotRef,
    /// Its bytes.
    pub len: u64,
    /// The member that has the copy.
    pub source: NodeInfo,
}

/// The reply to [`MasterToMember::Demote`](super::MasterToMember::Demote),
/// [`MasterToMember::Promote`](super::MasterToMember::Promote) and
/// [`MasterToMember::Fetch`](super::MasterToMember::Fetch).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// In the order of the items: whether it succeeded.
    pub items: Vec<bool>,
    /// The usage of the member.
    pub usage: Usage,
    /// In the order of the items, empty if no object was refused for its size. For a refused object: the size
    /// of the largest object that the disk takes now. Else zero.
    pub bytes_max: Vec<u64>,
}

/// Copies that a disk has dropped, see [`MemberToMaster::Dropped`](super::MemberToMaster::Dropped).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// The copies.
    pub items: Vec<Record>,
    /// They were unreadable; else they were evicted.
    pub corrupt: bool,
    /// The usage of the disk.
    pub usage: Usage,
}

/// Which keys of a request are promoted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ahead {
    /// None. A [`Prefetch`] then cancels the promotions that this client has requested, unless another client
    /// wants them too or their bytes are already read.
    #[default]
    Nothing,
    /// The leading run: those before the first key that does not exist.
    LeadingRun,
    /// All.
    All,
}

/// See [`ClientToMaster::Prefetch`](super::ClientToMaster::Prefetch).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefetch {
    /// The objects.
    pub keys: Vec<Key>,
    /// Which of them are promoted.
    pub ahead: Ahead,
    /// How long the reply may wait for the last of them.
    pub wait_ms: u64,
}

/// The outcome of one key of a [`Prefetch`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefetchOutcome {
    /// There is no such object.
    #[default]
    Absent,
    /// It was in memory already.
    Resident,
    /// It is in memory now.
    Done,
    /// The time is up, and the promotion goes on.
    Running,
    /// The disk could not read it, now or a short while ago.
    Failed,
    /// The promotion was not begun: memory is short, the throttle refused it, or the key is after the leading
    /// run.
    Skipped,
    /// The promotion was cancelled.
    Cancelled,
}

/// Counters of the tier below memory, since the master started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStat {
    /// The number of objects with a copy on a disk.
    pub disk_objects: u64,
    /// Objects and bytes that were written to disks.
    pub demoted_objects: u64,
    /// See [`Self::demoted_objects`].
    pub demoted_bytes: u64,
    /// Objects that could not be written.
    pub demotions_failed: u64,
    /// Objects that a disk refused for their size.
    pub demotions_refused: u64,
    /// Objects whose last copy was evicted before a disk had written it, because the put that needed the
    /// memory did not wait.
    pub evicted_undemoted: u64,
    /// Objects and bytes that were promoted.
    pub promoted_objects: u64,
    /// See [`Self::promoted_objects`].
    pub promoted_bytes: u64,
    /// How many of these objects were read before they left memory.
    pub promoted_used: u64,
    /// How many of these objects left memory unread.
    pub promoted_unused: u64,
    /// Prefetches of objects that were in memory.
    pub prefetch_redundant: u64,
    /// Prefetches that joined a promotion which was running or had just ended.
    pub prefetch_joined: u64,
    /// Prefetches that the disk could not read.
    pub prefetch_failed: u64,
    /// Prefetches that were not begun, for lack of memory or because of the throttle.
    pub prefetch_skipped: u64,
    /// Prefetches that were cancelled.
    pub prefetch_cancelled: u64,
    /// Gets that the master answered with a copy in memory.
    pub gets_from_memory: u64,
    /// Gets that the master answered with a copy on a disk.
    pub gets_from_disk: u64,
    /// How many of these came from another host.
    pub gets_from_far_disk: u64,
    /// Gets that waited for a promotion which ended in time.
    pub gets_waited: u64,
    /// Gets that waited for a promotion and timed out.
    pub gets_late: u64,
    /// The time that these gets have waited together, in milliseconds.
    pub waited_ms: u64,
    /// Copies that disks have evicted.
    pub disk_evicted: u64,
    /// Copies on disks that were unreadable.
    pub disk_corrupt: u64,
}

impl TierStat {
    /// Every number with its name and help text, for pages and tables. The first is a gauge, the others are
    /// counters.
    #[must_use]
    pub fn named(&self) -> [(&'static str, &'static str, u64); 23] {
        [
            ("disk_objects", "Copies on disks", self.disk_objects),
            ("demoted_objects", "Objects written to disks", self.demoted_objects),
            ("demoted_bytes", "Bytes written to disks", self.demoted_bytes),
            ("demotions_failed", "Objects that a disk could not write", self.demotions_failed),
            ("demotions_refused", "Objects that a disk refused for their size", self.demotions_refused),
            ("evicted_undemoted", "Objects evicted before a disk had written them", self.evicted_undemoted),
            ("promoted_objects", "Objects promoted to memory", self.promoted_objects),
            ("promoted_bytes", "Bytes promoted to memory", self.promoted_bytes),
            ("promoted_used", "Promoted objects that were read", self.promoted_used),
            ("promoted_unused", "Promoted objects that left memory unread", self.promoted_unused),
            ("prefetch_redundant", "Prefetches of objects in memory", self.prefetch_redundant),
            ("prefetch_joined", "Prefetches that joined a promotion", self.prefetch_joined),
            ("prefetch_failed", "Prefetches that a disk could not read", self.prefetch_failed),
            (
                "prefetch_skipped",
                "Prefetches not begun, for lack of memory or throttled",
                self.prefetch_skipped,
            ),
            ("prefetch_cancelled", "Prefetches that were cancelled", self.prefetch_cancelled),
            ("gets_from_memory", "Gets answered with a copy in memory", self.gets_from_memory),
            ("gets_from_disk", "Gets answered with a copy on a disk", self.gets_from_disk),
            ("gets_from_far_disk", "Gets answered with a disk of another host", self.gets_from_far_disk),
            ("gets_waited", "Batches of gets whose promotion ended in time", self.gets_waited),
            ("gets_late", "Batches of gets whose promotion was too late", self.gets_late),
            ("waited_ms", "Time that batches waited for promotions, in milliseconds", self.waited_ms),
            ("disk_evicted", "Copies that disks evicted", self.disk_evicted),
            ("disk_corrupt", "Unreadable copies on disks", self.disk_corrupt),
        ]
    }
}
