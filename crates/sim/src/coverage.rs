//! What a run has exercised. A simulation that never reaches a case proves nothing about it.

/// Declares the points, their names, and the list of all of them.
macro_rules! points {
    ($($(#[doc = $doc:literal])* $point:ident,)*) => {
        /// Something that must happen in every larger set of runs.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Point {
            $($(#[doc = $doc])* $point,)*
        }

        impl Point {
            /// Every point.
            pub const ALL: &[Self] = &[$(Self::$point,)*];

            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$point => stringify!($point),)*
                }
            }
        }
    };
}

points! {
    /// A fault: the network breaks a client's connection.
    FaultClientBreak,
    /// A fault: the network breaks a node's link to the master.
    FaultLinkBreak,
    /// A fault: the link stays broken for longer than the master's patience.
    FaultLinkLong,
    /// A fault: a connection for bytes breaks.
    FaultDataBreak,
    /// A fault: a client's process dies.
    FaultClientCrash,
    /// A fault: a client is stopped for a long time, and goes on.
    FaultClientStall,
    /// A fault: a node's process dies, and its memory with it.
    FaultNodeCrash,
    /// A fault: a node is stopped, and goes on.
    FaultNodeStop,
    /// Nothing arrives from a read.
    ReadStalled,
    /// Another copy is read because of that.
    ReadHedged,
    /// And is there first.
    HedgeWon,
    /// A read that stalls in the middle is stopped.
    ReadStopped,
    /// A slow node is read, because it has the only copy or the others failed.
    SlowRead,
    /// A fault: the master dies, and a new life of it begins.
    FaultMasterCrash,
    /// A fault: the master loses its state folder, or finds an old one.
    FaultStateLost,
    /// A member had served a later epoch than the master's.
    MasterSuperseded,
    /// A request waits until members have reported.
    Parked,
    /// Such a request goes on.
    Resumed,
    /// The master's state is written.
    StateSaved,
    /// A restarted master waits for members.
    AwaitedReports,
    /// All of them have reported, or are lost.
    AllReported,
    /// An absence was compared with what members hold that have not reported.
    CheckedUnreported,
    /// What is saved was compared with what clients were told.
    CheckedSaved,
    /// A fault: the master's clock jumps.
    FaultClockJump,
    /// A fault: the master's clock jumps back.
    FaultClockBack,
    /// A fault: the master's clock stands still.
    FaultClockStop,
    /// A fault: the master's clock goes faster or slower than the others.
    FaultClockRate,
    /// A fault: a client's clock goes faster or slower than the others.
    FaultClientClock,
    /// A fault: the network breaks a disk's link to the master.
    FaultDiskLink,
    /// A fault: it stays broken for long.
    FaultDiskLinkLong,
    /// A fault: a device answers with errors for a while.
    FaultDiskFails,
    /// A fault: something else fills a device for a while.
    FaultDiskFills,
    /// A fault: a device is slow for a while.
    FaultDiskSlow,
    /// A fault: a record on a disk is not what it was.
    FaultDiskFlip,
    /// A fault: a device never answers.
    FaultDiskLoses,
    /// A process finds its disk with copies.
    DiskRecovered,
    /// A process dies while its disk is at work.
    DiskCrashUnderWay,
    /// A device's answer is lost.
    DiskLostCompletion,
    /// Marks are on a disk.
    DiskMarked,
    /// Marks could not be written to a disk.
    DiskMarkFailed,
    /// Copies are gone from a disk.
    DiskForgot,
    /// A disk lets go of copies to make room.
    DiskEvicted,
    /// A disk has no room, nor anything to let go of.
    DiskFull,
    /// A copy on a disk is found to be unreadable.
    DiskCorrupt,
    /// A client reads from a disk.
    DiskRead,
    /// A client reads from a disk what leaves meanwhile.
    DiskReadStale,
    /// A client's read from a disk fails.
    DiskReadFailed,
    /// A put fits on no node, however empty.
    PutNeverFits,
    /// A put finds no slot.
    PutLacksSlots,
    /// A put finds no space for its name.
    PutLacksKeySpace,
    /// A put finds free memory in too many pieces.
    PutLacksContiguous,
    /// A put finds no node.
    PutNoNode,
    /// A node withholds bytes from objects, for records or names.
    Withheld,
    /// A promise was checked: `Full` is said only when nothing is left to evict.
    CheckedFull,
    /// An object is on a disk.
    Demoted,
    /// An object could not be written to a disk.
    DemotionFailed,
    /// A disk refused an object because of its size.
    DemotionRefused,
    /// An object is gone before it is written to a disk.
    DemotionUnsourced,
    /// An object leaves memory and stays on a disk.
    LeftMemory,
    /// An object is read from a disk into memory.
    Promoted,
    /// An object could not be read into memory.
    PromotionFailed,
    /// Somebody asked for objects ahead.
    Prefetched,
    /// An outcome of a prefetch.
    PrefetchAbsent,
    /// An outcome of a prefetch.
    PrefetchResident,
    /// An outcome of a prefetch.
    PrefetchDone,
    /// An outcome of a prefetch.
    PrefetchRunning,
    /// An outcome of a prefetch.
    PrefetchFailed,
    /// An outcome of a prefetch.
    PrefetchSkipped,
    /// A prefetch was given up before it had come.
    PrefetchCancelled,
    /// The invariant was checked on something.
    CheckedSurvival,
    /// The invariant was checked on something.
    CheckedLeadingRun,
    /// The invariant was checked on something.
    CheckedCold,
    /// The invariant was checked on something.
    CheckedProbe,
    /// A client closes its handle in good order.
    ClientLeaves,
    /// A frame is lost with its connection.
    FrameLost,
    /// A frame arrives after its sender saw the connection break.
    FrameLate,
    /// The invariant was checked on something.
    CheckedPresence,
    /// Bytes that came with the question for their name were written.
    CarriedWritten,
    /// Such bytes came again, or into room that was gone.
    CarriedInVain,
    /// Bytes that go with a question, and it could not be asked.
    CarriedNowhere,
    /// A node found several things in its ledger, and answered them at once.
    ManyEntrusted,
    /// A frame arrives on a connection that a newer one has replaced.
    FrameFenced,
    /// The kernel proves a death before the sockets close.
    DeadBeforeClosed,
    /// The sockets close before the kernel proves the death.
    ClosedBeforeDead,
    /// A call gets no answer in time.
    CallTimeout,
    /// A put or get is given up at its deadline.
    SessionGivenUp,
    /// Room is found for a request that nobody waits for any more.
    LateReserved,
    /// A client tells a node what it still knows of.
    KeepSent,
    /// A notice of the master.
    NodeReady,
    /// A notice of the master.
    NodeSilent,
    /// A notice of the master.
    NodeAway,
    /// A notice of the master.
    NodeLost,
    /// A notice of the master.
    NodeDiscarded,
    /// A notice of the master.
    Evicted,
    /// An outcome of a put.
    PutStored,
    /// An outcome of a put.
    PutReplaced,
    /// An outcome of a put.
    PutExists,
    /// An outcome of a put.
    PutFull,
    /// An outcome of a put.
    PutInvalid,
    /// An outcome of a put.
    PutUnreachable,
    /// An outcome of a get.
    GetRead,
    /// An outcome of a get.
    GetAbsent,
    /// An outcome of a get.
    GetTooSmall,
    /// An outcome of a get.
    GetUnavailable,
    /// An outcome of a get.
    GetUnreachable,
    /// A copy through shared memory.
    MappedWritten,
    /// A copy through shared memory whose reservation is gone.
    MappedWriteStale,
    /// A writer claims an offer.
    OfferClaimed,
    /// A writer finds that its offer was recalled.
    ClaimFailed,
    /// A node recalls an offer for a put that needs its memory.
    OfferRecalled,
    /// A node finds that an offer was claimed.
    RecallFoundClaim,
    /// A copy through shared memory.
    MappedRead,
    /// A copy through shared memory that lost its race, and knew it.
    MappedReadStale,
    /// A copy through a socket.
    SocketWritten,
    /// A copy through a socket whose reservation is gone.
    SocketWriteStale,
    /// A copy through a socket.
    SocketRead,
    /// A copy through a socket that lost its race, and knew it.
    SocketReadStale,
    /// A put into preallocated memory.
    PutPreallocated,
    /// An object is named without its node.
    Published,
    /// The node must be asked.
    NotPublished,
    /// Who has asked the master looks at what the node has not heard of yet.
    ViewUnheard,
    /// A get that asked nobody, through shared memory.
    KnownRead,
    /// The same, of something of which its node had not heard yet.
    KnownReadEarly,
    /// A get that asked nobody at first, and had to.
    KnownReadStale,
    /// A get that asked nobody, through a socket.
    KnownSocketRead,
    /// A get through a socket that asked nobody at first, and had to.
    KnownSocketReadStale,
    /// The master hears what was used without asking it.
    UsesTold,
    /// A put is answered, and older copies of its name were looked for.
    CheckedSuperseded,
    /// A get is compared with what was acknowledged before it began.
    CheckedNewest,
    /// An object in several pieces.
    SeveralExtents,
    /// An object in so many pieces that their list spills.
    SpilledExtents,
    /// A delete.
    Deleted,
    /// A delete of nothing.
    DeleteAbsent,
    /// A delete that a lease refuses.
    DeleteLeased,
    /// A delete that a node could not confirm.
    DeleteUnconfirmed,
    /// A delete by pattern that took something.
    DeletedMatching,
    /// A drop takes more than one piece.
    WorkedOn,
    /// Something takes the place of what a node could not confirm to be gone.
    ReplaceUnconfirmed,
    /// A delete of what is gone already, which a node has not confirmed.
    RepeatedUnconfirmed,
    /// A client does not wait for an answer any more.
    Cancelled,
    /// A delete by pattern that a node could not confirm.
    MatchingUnconfirmed,
    /// A lookup.
    ResolveFound,
    /// A lookup.
    ResolveAbsent,
    /// A lookup.
    ResolveUnavailable,
    /// A page of objects.
    Listed,
    /// A refusal.
    Refused,
    /// A view begins.
    ViewBegun,
    /// A view of what is gone does not begin.
    ViewRefused,
    /// Somebody looks at what was retired meanwhile.
    ViewOutlives,
    /// An outcome of a put.
    PutOverQuota,
    /// An outcome of a put: consumers are behind.
    PutBehind,
    /// A stream has ended.
    StreamEnded,
    /// Somebody looks at a stream and takes nothing.
    Tailed,
    /// An outcome of a pin.
    Pinned,
    /// An outcome of a pin.
    PinUnconfirmed,
    /// A sample is leased.
    SampleLeased,
    /// A sample is consumed for good.
    SampleFreed,
    /// A sample is consumed by one of several.
    SampleRecorded,
    /// The invariant was checked on something.
    CheckedQuota,
    /// The invariant was checked on something.
    CheckedReleased,
    /// The limits of a namespace were compared with those that clients named last.
    CheckedPolicy,
    /// The invariant was checked on something.
    CheckedRival,
    /// The invariant was checked on something.
    CheckedOrder,
    /// The invariant was checked on something.
    CheckedDemoting,
    /// The invariant was checked on something.
    CheckedRefusal,
    /// The invariant was checked on something.
    CheckedPulled,
    /// The invariant was checked on something.
    CheckedConsumed,
    /// A sample was not leased as consumed, although others had it leased.
    CheckedRefusedLease,
    /// The invariant was checked on something.
    CheckedGivenUp,
    /// The invariant was checked on something.
    CheckedLeases,
    /// The invariant was checked on something.
    CheckedLeasesKept,
    /// The invariant was checked on something.
    CheckedWholeValue,
    /// The invariant was checked on something.
    CheckedView,
    /// The invariant was checked on something.
    CheckedScribble,
    /// The invariant was checked on something.
    CheckedDeletedCopies,
    /// The invariant was checked on something.
    CheckedPublished,
    /// The invariant was checked on something.
    CheckedReplaced,
    /// The invariant was checked on something.
    CheckedResurrection,
    /// The invariant was checked on something.
    CheckedReadmission,
    /// The invariant was checked on something.
    CheckedEviction,
    /// The invariant was checked on something.
    CheckedPinnedAbsence,
    /// The invariant was checked on something.
    CheckedOffers,
    /// The invariant was checked on something.
    CheckedBooks,
    /// The invariant was checked on something.
    CheckedMembership,
    /// The invariant was checked on something.
    CheckedRest,
    /// The invariant was checked on something.
    CheckedLiveness,
}

/// How often each point and each kind of message was met.
#[derive(Clone, Debug)]
pub struct Coverage {
    points: Vec<u64>,
    kinds: Vec<(u16, u64)>,
}

impl Default for Coverage {
    fn default() -> Self {
        let kinds = tiffin_proto::kinds().map(|it| (it.number, 0)).collect();
        Self { points: vec![0; Point::ALL.len()], kinds }
    }
}

impl Coverage {
    pub(crate) fn hit(&mut self, point: Point) {
        if let Some(count) = self.points.get_mut(point as usize) {
            *count += 1;
        }
    }

    pub(crate) fn sent(&mut self, kind: u16) {
        if let Some((_, count)) = self.kinds.iter_mut().find(|it| it.0 == kind) {
            *count += 1;
        }
    }
}

impl tiffin_sim_runner::CoverageCounts for Coverage {
    fn add(&mut self, other: &Self) {
        self.points.iter_mut().zip(&other.points).for_each(|(mine, its)| *mine += its);
        self.kinds.iter_mut().zip(&other.kinds).for_each(|(mine, its)| mine.1 += its.1);
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let points = Point::ALL.iter().zip(&self.points).map(|(point, count)| (point.name(), *count));
        let kinds = tiffin_proto::kinds().zip(&self.kinds).map(|(kind, (_, count))| (kind.name, *count));
        points.chain(kinds).collect()
    }

    fn missing(&self) -> Vec<&'static str> {
        let missing = self.counts().into_iter().filter(|(_, count)| *count == 0);
        missing.map(|(name, _)| name).collect()
    }
}
