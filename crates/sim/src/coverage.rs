//! Coverage of a run: a case that never occurs is not tested.

/// Declares the points, their names, and the list of all of them.
macro_rules! points {
    ($($(#[doc = $doc:literal])* $point:ident,)*) => {
        /// A case that must occur in every larger set of runs.
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
    /// A fault: one of two masters is stopped, then continued.
    FaultMasterStop,
    /// A fault: one of two masters does not reach the store.
    FaultStoreCut,
    /// A node or client leaves a master for another one.
    MasterLeft,
    /// A master leads.
    MasterLeads,
    /// A leader learns that it was replaced.
    LeaderReplaced,
    /// A leader did not reach the store for too long, and steps down.
    LeaderGaveUp,
    /// A master that was replaced may not answer.
    AnswerNotConfirmed,
    /// A master that was replaced may not write its state.
    WriteRefused,
    /// A request to the store is applied late.
    StoreLate,
    /// A fault: the network breaks a client's connection.
    FaultClientBreak,
    /// A fault: the network breaks a node's link to the master.
    FaultLinkBreak,
    /// A fault: the link stays broken for longer than the master's time limit.
    FaultLinkLong,
    /// A fault: a data connection breaks.
    FaultDataBreak,
    /// A fault: a client's process dies.
    FaultClientCrash,
    /// A fault: a client is stopped for a long time, then continued.
    FaultClientStall,
    /// A fault: a node's process dies, and perhaps its memory with it.
    FaultNodeCrash,
    /// A node adopts memory that no client maps.
    PoolAdopted,
    /// A node adopts memory that clients still map.
    PoolAdoptedWhileMapped,
    /// There are retired objects in it that were in use.
    PoolHasRetired,
    /// There are prepared objects in it.
    PoolHasPrepared,
    /// A node does not find its memory, and begins with other memory.
    PoolNotFound,
    /// A client listed views to a node that adopted its memory.
    PoolViewsListed,
    /// A fault: a node is stopped, then continued.
    FaultNodeStop,
    /// A read makes no progress.
    ReadStalled,
    /// Another copy is read because of that.
    ReadHedged,
    /// The hedged read is faster.
    HedgeWon,
    /// A read that stalls in the middle is stopped.
    ReadStopped,
    /// A slow node is read, because it has the only copy or the others failed.
    SlowRead,
    /// A fault: the master dies and is restarted.
    FaultMasterCrash,
    /// A fault: the master loses its state folder, or finds an old one.
    FaultStateLost,
    /// A member had served a later epoch than the master's.
    MasterSuperseded,
    /// A request waits until members have reported.
    Parked,
    /// Such a request is resumed.
    Resumed,
    /// The master's state is written.
    StateSaved,
    /// A restarted master waits for members.
    AwaitedReports,
    /// All of them have reported, or are lost.
    AllReported,
    /// An absence was compared with the objects of members that have not reported.
    CheckedUnreported,
    /// The saved state was compared with the answers to clients.
    CheckedSaved,
    /// A fault: the master's clock jumps.
    FaultClockJump,
    /// A fault: the master's clock jumps back.
    FaultClockBack,
    /// A fault: the master's clock stops.
    FaultClockStop,
    /// A fault: the master's clock runs at another rate.
    FaultClockRate,
    /// A fault: a client's clock runs at another rate.
    FaultClientClock,
    /// A fault: the network breaks a disk's link to the master.
    FaultDiskLink,
    /// A fault: the link stays broken for long.
    FaultDiskLinkLong,
    /// A fault: a device returns errors for a while.
    FaultDiskFails,
    /// A fault: a device is full for a while.
    FaultDiskFills,
    /// A fault: a device is slow for a while.
    FaultDiskSlow,
    /// A fault: a record on a disk is damaged.
    FaultDiskFlip,
    /// A fault: a device never answers.
    FaultDiskLoses,
    /// A process finds copies on its disk.
    DiskRecovered,
    /// A process dies during disk operations.
    DiskCrashUnderWay,
    /// A device's answer is lost.
    DiskLostCompletion,
    /// Attributes are written to a disk.
    DiskAttributesSet,
    /// Attributes could not be written to a disk.
    DiskAttributesFailed,
    /// Copies are removed from a disk.
    DiskForgot,
    /// A disk evicts copies.
    DiskEvicted,
    /// A disk has no space, and nothing to evict.
    DiskFull,
    /// A copy on a disk is found to be unreadable.
    DiskCorrupt,
    /// A client reads from a disk.
    DiskRead,
    /// A copy is removed from a disk while a client reads it.
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
    /// A node takes bytes of the data segment for records or names.
    Withheld,
    /// Such bytes are given back to objects, in a memory pool.
    Restored,
    /// Such bytes cannot be given back, because there is no memory for them.
    NotRestored,
    /// A promise was checked: memory that is guaranteed to a namespace is not used by another one.
    CheckedGuaranteed,
    /// A client has its share of the memory, and its put waits.
    ShareWaited,
    /// A promise was checked: `Full` is answered only when nothing is left to evict.
    CheckedFull,
    /// An object is written to a disk.
    Demoted,
    /// An object could not be written to a disk.
    DemotionFailed,
    /// A disk refuses an object because of its size.
    DemotionRefused,
    /// An object is removed before it is written to a disk.
    DemotionUnsourced,
    /// An object is evicted from memory and stays on a disk.
    LeftMemory,
    /// An object is read from a disk into memory.
    Promoted,
    /// An object could not be read into memory.
    PromotionFailed,
    /// A put has a copy on a member that was given up before it reported.
    PutGivenUp,
    /// A lost copy is read from another member.
    Fetched,
    /// A lost copy could not be read.
    FetchFailed,
    /// A copy is dropped because it was made elsewhere.
    SurplusDropped,
    /// Lost copies were checked when everything had ended.
    CheckedCopies,
    /// A client prefetches objects.
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
    /// A prefetch is cancelled before it has ended.
    PrefetchCancelled,
    /// The invariant was checked on something.
    CheckedSurvival,
    /// The invariant was checked on something.
    CheckedLeadingRun,
    /// The invariant was checked on something.
    CheckedCold,
    /// The invariant was checked on something.
    CheckedProbe,
    /// A client closes its handle in order.
    ClientLeaves,
    /// A frame is lost with its connection.
    FrameLost,
    /// A frame arrives after its sender saw the connection break.
    FrameLate,
    /// The invariant was checked on something.
    CheckedPresence,
    /// Bytes inside a commit were written.
    CarriedWritten,
    /// Bytes inside a commit arrived again, or for a stale reservation.
    CarriedInVain,
    /// A commit with bytes could not be sent.
    CarriedNowhere,
    /// A node applies several ledger entries at once.
    ManyLedgerEntries,
    /// A frame arrives on a connection that was replaced by a newer one.
    FrameFenced,
    /// The kernel proves a death before the sockets close.
    DeadBeforeClosed,
    /// The sockets close before the kernel proves the death.
    ClosedBeforeDead,
    /// A call gets no answer in time.
    CallTimeout,
    /// A put or get is given up at its deadline.
    SessionGivenUp,
    /// Space is reserved for a request that the client no longer waits for.
    LateReserved,
    /// A client sends `Keep` to a node.
    KeepSent,
    /// A notice of the master.
    NodeReady,
    /// A notice of the master.
    NodeSilent,
    /// A notice of the master.
    NodeAway,
    /// A notice of the master.
    NodeAbsent,
    /// The same, and protected objects wait for the node.
    NodeAbsentWithProtected,
    /// A node that has announced everything owes more retires than one answer contains.
    OwesMore,
    /// A node that announces has received all retires that it owes.
    OwesNoMore,
    /// The kernel says that the process of a node has ended.
    NodeEnded,
    /// A notice of the master.
    NodeLost,
    /// The objects of a lost or absent member were removed in several pieces.
    DepartedInPieces,
    /// A notice of the master.
    NodeDiscarded,
    /// A notice of the master: it has refused a member that reports another cluster.
    OtherCluster,
    /// A node of another cluster is refused.
    ForeignerRefused,
    /// The operator admits members that a master without its state has refused.
    ClusterAdmitted,
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
    /// The master withdraws a replaced object before its node has read the retire.
    Withdrawn,
    /// A reader finds that an object at a cached location is withdrawn.
    ReadOfWithdrawn,
    /// A writer finds that its offer was recalled.
    ClaimFailed,
    /// A node recalls an offer for a put that needs its memory.
    OfferRecalled,
    /// A node finds that an offer was claimed.
    RecallFoundClaim,
    /// A copy through shared memory.
    MappedRead,
    /// A copy through shared memory that was stale, and noticed it.
    MappedReadStale,
    /// A copy through a socket.
    SocketWritten,
    /// A copy through a socket whose reservation is gone.
    SocketWriteStale,
    /// A copy through a socket.
    SocketRead,
    /// A copy through a socket that was stale, and noticed it.
    SocketReadStale,
    /// A put into preallocated memory.
    PutPreallocated,
    /// An object is published.
    Published,
    /// An object must be committed at its node.
    NotPublished,
    /// A view of an object whose settle the node has not received yet.
    ViewUnheard,
    /// A read from a cached location, through shared memory.
    KnownRead,
    /// The same, of an object whose settle the node has not received yet.
    KnownReadEarly,
    /// A read from a cached location that was stale.
    KnownReadStale,
    /// A read from a cached location, through a socket.
    KnownSocketRead,
    /// A read from a cached location through a socket that was stale.
    KnownSocketReadStale,
    /// The master is informed of reads from cached locations.
    UsesTold,
    /// A put is answered, and older copies of its key were searched.
    CheckedSuperseded,
    /// A get is compared with the puts acknowledged before it began.
    CheckedNewest,
    /// An object in several pieces.
    SeveralExtents,
    /// An object with so many extents that their list spills.
    SpilledExtents,
    /// A delete.
    Deleted,
    /// A delete of nothing.
    DeleteAbsent,
    /// A delete that a lease refuses.
    DeleteLeased,
    /// A delete that a node did not confirm.
    DeleteUnconfirmed,
    /// A delete by pattern that removed objects.
    DeletedMatching,
    /// A delete by pattern takes several steps.
    WorkedOn,
    /// An object replaces another whose removal a node did not confirm.
    ReplaceUnconfirmed,
    /// A delete of a removed object that a node has not confirmed.
    RepeatedUnconfirmed,
    /// A client cancels a request.
    Cancelled,
    /// A delete by pattern that a node did not confirm.
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
    /// A second view of a copy by one client.
    ViewedTwice,
    /// A view whose connection was replaced before the client could use it.
    ViewLost,
    /// A view of a removed object is refused.
    ViewRefused,
    /// A view of an object that was retired meanwhile.
    ViewOutlives,
    /// An outcome of a put.
    PutOverQuota,
    /// An outcome of a put: consumers are behind.
    PutBehind,
    /// A stream has ended.
    StreamEnded,
    /// A pull without leases.
    Tailed,
    /// An outcome of a pin.
    Pinned,
    /// An outcome of a pin.
    PinUnconfirmed,
    /// A sample is leased.
    SampleLeased,
    /// A sample is consumed and freed.
    SampleFreed,
    /// A sample is consumed by one of several groups.
    SampleRecorded,
    /// The invariant was checked on something.
    CheckedQuota,
    /// The invariant was checked on something.
    CheckedReleased,
    /// The limits of a namespace were compared with those that clients set last.
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
    /// A lease of a consumed sample was refused while others had it leased.
    CheckedRefusedLease,
    /// The invariant was checked on something.
    CheckedGivenUp,
    /// The invariant was checked on something.
    CheckedLeases,
    /// The invariant was checked on something.
    CheckedLeasesKept,
    /// The invariant was checked on something.
    CheckedHistory,
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
    /// A home node is told what to retire right before the answer.
    AnsweredBehind,
    /// The invariant was checked on something.
    CheckedResurrection,
    /// The invariant was checked on something.
    CheckedSuccessor,
    /// The invariant was checked on something.
    CheckedReadmission,
    /// The invariant was checked on something.
    CheckedEviction,
    /// A world has more than three nodes.
    ManyNodes,
    /// An operator starts a drain job.
    DrainStarted,
    /// No node has that name.
    DrainOfNothing,
    /// A node is drained already.
    DrainRefused,
    /// A drain job is cancelled.
    DrainCancelled,
    /// It is cancelled after the faults, because its objects cannot be moved.
    DrainBlocked,
    /// A node learns that its drain job has ended.
    DrainStopped,
    /// A node reports that it moves objects.
    DrainMoving,
    /// A node reports that it is empty.
    DrainEmpty,
    /// A node reports that its objects cannot be moved.
    DrainFailed,
    /// An object is moved away from a node that is drained.
    ObjectMoved,
    /// The invariant was checked on something.
    CheckedMovedPins,
    /// The invariant was checked on something.
    CheckedDrained,
    /// The invariant was checked on something.
    CheckedDrainsEnded,
    /// An object is removed because its TTL is over.
    Expired,
    /// The check that a found object has not expired.
    CheckedExpiry,
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

/// Counts of all points and kinds of messages.
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
