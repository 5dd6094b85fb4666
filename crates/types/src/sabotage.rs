//! Deliberately broken variants of the rules.
//!
//! A test that cannot fail proves nothing. Each variant breaks one rule in the production path; the
//! simulation must catch every one of them. Without the feature `sabotage` the type has a single value and
//! every question about it is answered `false` at compile time.

pub use tiffin_sabotage::sabotaged;

tiffin_sabotage::variants! {
    /// Every broken variant that simulated clusters must notice.
    ALL {
        /// The reader checks the stamp before the copy and not after it.
        CheckBeforeCopyOnly: "stamp check, shared memory";
        /// The node counts bytes that it sent while their object was taken away.
        SendWithoutCheck: "stamp check, sockets";
        /// The node frees a retired object's room without changing its stamp.
        ReuseBeforeRetire: "retire before reuse";
        /// The node reuses room that somebody still looks at.
        IgnoreViews: "view count";
        /// The node ends no view that its client does not list after its connection broke.
        KeepAllViews: "a view whose end was lost ends";
        /// The client counts a view that began on a connection which has been replaced since.
        CountLostViews: "a view that was not listed does not count";
        /// The node takes a silent writer for dead and gives its room away.
        SilenceIsDeath: "silence is never death";
        /// The node reuses what it has offered although the client has claimed it.
        RecallClaimed: "a claimed offer is not recalled";
        /// The node recalls no offer when memory is short.
        NeverRecall: "offers are recalled when memory is short";
        /// The writer does not claim an offer before it writes.
        WriteUnclaimed: "a writer claims an offer first";
        /// The node gives the room of a reservation back that the master may have named.
        EndUnasked: "a reservation ends after the master was asked";
        /// The master answers who has published before its node is sure to hear of it.
        AnswerUnsent: "a put is answered when its node will hear of it";
        /// The master does not tell a node again what it has named there, when it returns.
        ForgetPublished: "what was published is told again";
        /// The master names what is published in room that was given back.
        PublishEnded: "what has ended is not published";
        /// The node commits a reservation whatever stamp the writer presents.
        CommitWithoutFence: "fence of writers";
        /// The master listens to connections that have been replaced.
        HearOldConnections: "fence of connections, master";
        /// The node listens to connections that have been replaced.
        NodeHearsOldConnections: "fence of connections, node";
        /// The master answers a delete before the nodes have confirmed it.
        DeleteWithoutConfirmation: "delete waits for the nodes";
        /// The master answers a delete of what is gone although its copies may still be read.
        ForgetPendingRetires: "a repeated delete waits too";
        /// The master takes objects away that were put after a drop began.
        DropNewer: "a drop spares what was put since";
        /// The master answers a replacement before the nodes have confirmed that the old object is gone.
        ReplaceWithoutConfirmation: "replace waits for the nodes";
        /// The master readmits a node without the retires that it owes.
        ForgetOwedRetires: "owed retires are applied on return";
        /// The master gives up pinned objects and samples on a node that has been away for long.
        GiveUpProtected: "time never loses what is protected";
        /// The master tells a returning node only the first page of the retires that it owes.
        TellOnePage: "a node knows all its retires before it serves";
        /// The master does not save the retires that nodes owe.
        ForgetOwed: "owed retires survive a restart";
        /// The master answers that an object is gone before it has saved which nodes did not confirm that.
        AnswerUnsaved: "an unconfirmed answer waits for the state folder";
        /// The master forgets what a node that has been away for long still owes.
        ForgetTheAbsent: "absent nodes still owe their retires";
        /// The master believes a node that it had declared lost.
        BelieveTheLost: "a lost node returns empty";
        /// The master writes a lost node into its roster before the node has discarded what it held.
        EnrollTheLost: "a lost node is in the roster once it is empty";
        /// The master forgets its roster when it restarts, and answers for an empty store.
        ForgetRoster: "R16: absent is never guessed";
        /// The master answers although a member of its roster has not reported.
        AnswerUnreported: "R16: what is not known yet is waited for";
        /// The master decides about a put of which a member has a copy that was given up before it reported.
        DecideUnreported: "a put waits for every member that has a copy";
        /// The master accepts an older object than one that left while a member had not reported.
        ForgetFloors: "a report brings nothing older than what left";
        /// The master tells a node that it is registered before the roster is saved.
        CountUnsaved: "a member counts once the roster is saved";
        /// The master does not save the policies of namespaces.
        ForgetPolicies: "policies survive a restart";
        /// The master keeps its epoch although a member has served a later one.
        StayBehind: "R15: a master moves past later epochs";
        /// The master keeps its epoch, and its members serve it although they have served a later one.
        ServeAnyEpoch: "R15: a member refuses smaller epochs";
        /// A member discards what it holds for another master of the same epoch.
        DiscardForOthers: "R15: nothing is discarded for an equal epoch";
        /// The master names a written object again whose copies it has had taken away.
        NameRetired: "what was taken away gets no name again";
        /// The master prefers what a joining node tells of, however old it is.
        PreferOlder: "generation check, joining";
        /// The master takes an acknowledgement of one generation for one of another.
        AckAnyGeneration: "generation check, acknowledging";
        /// The master evicts pinned objects too.
        EvictPinned: "pin check";
        /// The master answers a pin before the nodes have it in writing.
        PinWithoutWriting: "pins are in writing";
        /// The master evicts leased objects too.
        EvictLeased: "a lease keeps from eviction";
        /// The master lets a lease refuse nothing where it is to refuse removal.
        RemoveLeased: "a strict lease refuses removal";
        /// The master evicts samples that nobody has consumed.
        EvictSamples: "unconsumed samples stay";
        /// The master frees a sample that has waited too long although somebody has leased it.
        GiveUpLeased: "a lease keeps a sample";
        /// The master keeps a sample that was consumed while others had it leased.
        KeepReleased: "the last lease that ends frees what was consumed";
        /// The master refuses a lease of a sample that was acknowledged while others had it leased.
        RefuseReleased: "a sample is not consumed while it is leased";
        /// The leases of a client that is gone go on.
        LeasesOutliveClients: "leases end with their client";
        /// The master ends the leases of a client whose connection broke, although it lives.
        LeasesEndWithConnections: "leases outlive a connection";
        /// The master forgets who has consumed a sample.
        ForgetAcks: "acknowledgements count";
        /// The master answers an acknowledgement before the nodes have it in writing.
        AckWithoutWriting: "acknowledgements are in writing";
        /// The master lets a namespace have more than its quota.
        IgnoreQuota: "quota";
        /// The master removes the limits that a change of the policy does not name.
        ReplacePolicy: "only named limits change";
        /// The master lets a put that comes later have room that others wait for.
        OvertakeTheWaiting: "waiting puts are not overtaken";
        /// The master serves the last in the line first.
        ServeTheLast: "waiting puts are served in order";
        /// The master evicts nothing for an object that lacks a slot.
        KeepSlots: "R19: slots are evicted for";
        /// The master evicts nothing for an object whose key finds no space.
        KeepKeySpace: "R19: key space is evicted for";
        /// The master evicts nothing for an object that free memory would hold only in too many pieces.
        KeepPieces: "R19: contiguous space is evicted for";
        /// The master evicts what it can for an object, although that will not do.
        EvictInVain: "R19: a put that cannot succeed evicts nothing";
        /// The node goes on to say that it is a member when nobody tells it of deletes any more.
        StayMember: "only a member's memory is read unasked";
        /// A client goes on to read unasked what it knows of, although it was told of something newer.
        HearOnce: "a reader never sees an older object again";
        /// A client waits for one copy until its deadline and asks no other.
        NeverHedge: "a read that stalls asks another copy";
        /// A client asks a slow node first although another has a copy.
        AskTheSlow: "slow nodes are asked last";
        /// The master answers a put while what had that name before can still be read.
        ForgetWhatLeaves: "a put waits for what it follows";
        /// The master does not know of a copy on a disk before it is written.
        DemoteUnseen: "a delete meets demotions under way";
        /// A disk confirms that a copy is gone before that is so for good.
        ForgetLater: "deletes on disks are for good";
        /// A disk says that an object is written before it is so for good.
        FreeBeforeDemoted: "T17: memory leaves after the disk has it";
        /// A disk says that marks are written before it is so for good.
        ConfirmAttributesEarly: "marks on disks are for good";
        /// The master writes objects to disks that are never to go there.
        DemoteForbidden: "a namespace may keep off disks";
        /// The master offers an object to a disk again that has just refused it because of its size.
        OfferRefused: "a refused object is not offered again at once";
        /// The master evicts what no disk has although the put could wait for the disk.
        EvictUndemoted: "a put that may wait evicts nothing undemoted";
        /// The master counts on the memory of objects that a disk is still reading.
        EvictDemoting: "memory that a disk reads is not counted on";
        /// The master lets disks read as much memory at a time as they like.
        DemoteAllAtOnce: "disks leave memory for new objects";
        /// The master names a copy in memory whose bytes could not be read from the disk.
        PublishUnread: "promotion publishes what was read";
        /// The master does not know of a copy that comes into memory before it is there.
        PromoteUnseen: "a delete meets promotions under way";
        /// The master forgets to end a promotion's token.
        LoseToken: "T1: every promotion ends";
        /// Nobody wakes those who wait for what is on its way.
        WakeNobody: "T3: waiting gets are woken";
        /// The master lets a get wait although nothing is on its way.
        WaitForNothing: "T6: only what is on its way is waited for";
        /// The master brings keys that lie behind a gap.
        PromoteBehindGaps: "T12: only the leading run is brought";
        /// A probe says that what could not be brought is not there.
        ProbeForgets: "T13: a probe's answer is unchanged";
        /// A probe counts as a use.
        ProbeTouches: "T14: a probe changes nothing";
        /// What was brought back may be evicted at once.
        PromoteUnprotected: "T15: what was brought stays a while";
        /// What comes back drives out what is in use.
        PromoteOverHot: "T16: promotion yields to what is hot";
        /// What was only written, and never read, does not make way for what comes back.
        WrittenIsHot: "T16: promotion displaces unread objects";
        /// A look at where objects lie counts as a get of them.
        LookCounts: "T14: a look changes nothing";
        /// A lookup that only takes a lease counts as a read.
        LeaseReads: "T14: a lease alone is not a read";
        /// A promotion that found no memory is not tried again.
        RetryNever: "T20: what found no memory is tried again";
        /// The master takes the answer to a promotion that it gave up for one to the next.
        HearLatePromotions: "T18: what comes late touches nothing newer";
        /// A node gives room away while a disk still reads into it.
        PromoteUnheld: "T19: room stays aside while it is written";
    }
    /// Those that the tests of `disk` must notice: simulated clusters meet them in too few seeds.
    OF_DISKS {
        /// A disk tells what it holds while it is still writing what an earlier life of the master sent it.
        AnnounceTooSoon: "a disk joins when it knows what it has";
    }
    /// Those that pipelines of producers and consumers must notice, which `master::stream` plays.
    OF_STREAMS {
        /// The master gives a sample to a second consumer of a group while the first has it.
        PullTwice: "a sample is with one consumer of a group";
        /// The master does not give a sample to anybody again whose consumer died.
        LosePulled: "what a consumer leaves undone comes again";
        /// The master forgets what a group has acknowledged in a stream.
        ForgetConsumed: "a name in a stream is used up once acknowledged";
        /// The master takes in more than the high mark of a stream.
        OverfillStreams: "a stream stops at its high mark";
        /// The master lets consumers in whose windows cannot be filled.
        AnyWindow: "a window that cannot be filled is refused";
    }
}
