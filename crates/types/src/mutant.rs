//! Mutants: variants of the production code that each break one rule.
//!
//! A test that cannot fail proves nothing, so the simulation must notice every mutant. Without the feature
//! `mutants` the type has a single value, and every check is `false` at compile time.

pub use tiffin_mutants::is_mutant;

tiffin_mutants::variants! {
    /// Mutants that simulated clusters must notice.
    ALL {
        /// The reader checks the stamp only before the copy, not after it.
        CheckBeforeCopyOnly: "stamp check, shared memory";
        /// The node accepts bytes that it sent while their object was removed.
        SendWithoutCheck: "stamp check, sockets";
        /// The node frees the memory of a retired object without changing its stamp.
        ReuseBeforeRetire: "retire before reuse";
        /// The node reuses memory that is in view.
        IgnoreViews: "view count";
        /// The node keeps views that its client does not list after a reconnect.
        KeepAllViews: "a view whose end was lost ends";
        /// The client counts a view that began on a connection that was replaced since.
        CountLostViews: "a view that was not listed does not count";
        /// The node treats a silent writer as dead and reuses its memory.
        SilenceIsDeath: "silence is never death";
        /// The node reuses an offer although the client has claimed it.
        RecallClaimed: "a claimed offer is not recalled";
        /// The node recalls no offer when memory is short.
        NeverRecall: "offers are recalled when memory is short";
        /// A node that is started again on its memory ends the reservations of clients that still write.
        DisownWriters: "a restarted node leaves living writers their memory";
        /// A node that is started again on its memory reuses what clients may view since before.
        ForgetOldViews: "a restarted node waits for the lists of views";
        /// A node that is started again on its memory reuses what was retired and in view.
        ForgetParked: "a restarted node knows what was in view";
        /// The node uses memory again that could not be allocated.
        UseUnrestored: "objects get no memory that is not there";
        /// A node that is started again on its memory shows itself as a member at once.
        AdoptAsMember: "a restarted node applies its retires first";
        /// A node that is started again on its memory does not commit what was published and not read.
        ForgetLedger: "a restarted node reads its ledger";
        /// A node that is started again on its memory uses stamps again.
        ReuseStamps: "stamps are not reused after a restart";
        /// The master takes the memory of an ended process for lost although it outlives the process.
        LoseThePool: "a memory pool outlives its process";
        /// The master takes a memory pool for lost when another node listens on its address.
        ReplaceThePool: "a memory pool stays when its address is used again";
        /// The master accepts members of any cluster.
        JoinAnyCluster: "members of another cluster are refused";
        /// The master does not save the id of its cluster.
        ForgetCluster: "the id of the cluster survives a restart";
        /// The writer does not claim an offer before it writes.
        WriteUnclaimed: "a writer claims an offer first";
        /// The node releases a reservation that the master may have published.
        EndUnasked: "a reservation ends after the master was asked";
        /// The master makes no lost copy again.
        RepairNever: "lost copies are made again";
        /// The master takes a copy on a node's disk for one on another node than its memory.
        CountDisksTwice: "copies count by node";
        /// The master keeps a copy that was made elsewhere before its node returned.
        KeepSurplus: "no more copies than wanted stay";
        /// The master forgets with a restart how many copies an object is to have.
        ForgetCopies: "the number of copies survives a restart";
        /// The master removes no object whose TTL is over.
        ExpireNever: "an object expires";
        /// The master ends TTLs too early.
        ExpireEarly: "an object exists until its TTL is over";
        /// The master removes pinned objects whose TTL is over.
        ExpirePinned: "a pinned object does not expire";
        /// The master forgets TTLs when it restarts.
        ForgetExpiry: "a TTL survives a restart";
        /// The home of an object does not learn the end of its TTL.
        ExpiryUntold: "the home learns the end of a TTL";
        /// Requests find objects whose TTL is over and that are about to be removed.
        FindOverdue: "no request finds an expired object";
        /// The master answers a publish before the message to the node is sent.
        AnswerUnsent: "a put is answered after its node's message is sent";
        /// The master does not resend published objects to a node that returns.
        ForgetPublished: "published objects are sent again";
        /// The master publishes objects in reservations that have ended.
        PublishEnded: "ended reservations are not published";
        /// The node commits a reservation whatever stamp the writer presents.
        CommitWithoutFence: "fence of writers";
        /// The master accepts messages of replaced connections.
        HearOldConnections: "fence of connections, master";
        /// The master answers a delete before the nodes have confirmed it.
        DeleteWithoutConfirmation: "delete waits for the nodes";
        /// The master answers a repeated delete although the object's copies may still be read.
        ForgetPendingRetires: "a repeated delete waits too";
        /// The master removes objects that were put after a drop began.
        DropNewer: "a drop spares newer objects";
        /// The master retires a replaced object before the new one is stored.
        RetireFirst: "a replaced object is retired after the new one is stored";
        /// The master answers a put that replaces an object before the nodes have confirmed the retire of the
        /// old one.
        ReplaceWithoutConfirmation: "replace waits for the nodes";
        /// The master answers a put that replaces an object and has not withdrawn the old one, whose retire
        /// the node has not read.
        AnswerUnwithdrawn: "a replaced object is withdrawn before the answer";
        /// The master answers a node that asks about an object which replaces one of that node, and has not
        /// told it to retire that one.
        AnswerUnretired: "a home node retires what its object replaces before it answers";
        /// A reader does not check whether the master has withdrawn a use.
        IgnoreWithdrawn: "a reader checks for withdrawals";
        /// The master readmits a node without its pending retires.
        ForgetOwedRetires: "pending retires are applied on return";
        /// The master gives up protected objects on a node that has been away for long.
        GiveUpProtected: "time never loses protected objects";
        /// The master sends a returning node only the first page of its pending retires.
        TellOnePage: "a node has all its pending retires before it serves";
        /// The master does not save the pending retires of nodes.
        ForgetOwed: "pending retires survive a restart";
        /// The master answers a delete before it has saved which nodes did not confirm.
        AnswerUnsaved: "an unconfirmed answer waits for the state folder";
        /// The master forgets the pending retires of an absent node.
        ForgetTheAbsent: "absent nodes keep their pending retires";
        /// The master accepts the objects of a node that was declared lost.
        BelieveTheLost: "a lost node returns empty";
        /// The master adds a lost node to its roster before the node has discarded its objects.
        EnrollTheLost: "a lost node is in the roster once it is empty";
        /// The master forgets its roster when it restarts, and answers as an empty store.
        ForgetRoster: "R16: absence is never guessed";
        /// The master answers although a member of its roster has not reported.
        AnswerUnreported: "R16: unknown answers wait for reports";
        /// The master decides about a put although a member with a copy has not reported.
        DecideUnreported: "a put waits for every member that has a copy";
        /// The master accepts an object that is older than one that was removed while a member had not
        /// reported.
        ForgetFloors: "a report brings nothing below the floor";
        /// The master confirms a registration before the roster is saved.
        CountUnsaved: "a member counts once the roster is saved";
        /// The master does not save the policies of namespaces.
        ForgetPolicies: "policies survive a restart";
        /// The master keeps its epoch although a member has served a later one.
        StayBehind: "R15: a master moves past later epochs";
        /// The master keeps its epoch, and its members serve it although they have served a later one.
        ServeAnyEpoch: "R15: a member rejects smaller epochs";
        /// A member discards its objects for another master of the same epoch.
        DiscardForOthers: "R15: nothing is discarded for an equal epoch";
        /// The master publishes a written object again whose copies it has retired.
        NameRetired: "a retired object gets no name again";
        /// The master prefers the objects of a joining node, however old they are.
        PreferOlder: "generation check, joining";
        /// The master applies an acknowledgement to another generation.
        AckAnyGeneration: "generation check, acknowledging";
        /// The master evicts pinned objects too.
        EvictPinned: "pin check";
        /// The master answers a pin before the nodes have recorded it.
        PinWithoutWriting: "pins are recorded before the answer";
        /// The master evicts leased objects too.
        EvictLeased: "a lease protects from eviction";
        /// The master removes leased objects although leases are strict.
        RemoveLeased: "a strict lease protects from removal";
        /// The master evicts samples that are not consumed.
        EvictSamples: "unconsumed samples stay";
        /// The master frees a sample after its time limit although it is leased.
        GiveUpLeased: "a lease protects a sample";
        /// The master keeps a consumed sample after its last lease has ended.
        KeepReleased: "the end of the last lease frees a consumed sample";
        /// The master rejects a lease of a sample that was acknowledged while it was leased.
        RefuseReleased: "a sample is not consumed while it is leased";
        /// The leases of a dead client continue.
        LeasesOutliveClients: "leases end with their client";
        /// The master ends the leases of a live client when its connection breaks.
        LeasesEndWithConnections: "leases outlive a connection";
        /// The master forgets acknowledgements.
        ForgetAcks: "acknowledgements count";
        /// The master answers an acknowledgement before the nodes have recorded it.
        AckWithoutWriting: "acknowledgements are recorded before the answer";
        /// The master lets a namespace exceed its quota.
        IgnoreQuota: "quota";
        /// The master removes the limits that a change of the policy does not name.
        ReplacePolicy: "only named limits change";
        /// The master gives space to a later put although others wait for it.
        OvertakeTheWaiting: "waiting puts are not overtaken";
        /// The master serves the last waiting put first.
        ServeTheLast: "waiting puts are served in order";
        /// The master evicts nothing for an object that lacks a slot.
        KeepSlots: "R19: missing slots cause eviction";
        /// The master evicts nothing for an object that lacks space for its key.
        KeepKeySpace: "R19: missing key space causes eviction";
        /// The master evicts nothing for an object that would need too many extents.
        KeepPieces: "R19: fragmentation causes eviction";
        /// The master evicts objects for a put that cannot succeed.
        EvictInVain: "R19: a put that cannot succeed evicts nothing";
        /// The node reports itself as a member although it no longer receives retires.
        StayMember: "cached-location reads need a member";
        /// A client keeps reading a cached location after the master named a newer object.
        ApplyOnce: "a reader never sees an older object again";
        /// A client waits for one copy until its deadline and uses no other.
        NeverHedge: "a stalled read uses another copy";
        /// A client uses a slow node first although another node has a copy.
        AskTheSlow: "slow nodes are used last";
        /// The master answers a put while its predecessor can still be read.
        ForgetWhatLeaves: "a put waits for the retire of its predecessor";
        /// The master does not know a disk copy before it is written.
        DemoteUnseen: "a delete covers demotions in progress";
        /// A disk confirms a delete before it is durable.
        ForgetLater: "deletes on disks are durable";
        /// A disk reports an object as written before it is durable.
        FreeBeforeDemoted: "T17: memory is freed after the disk copy is durable";
        /// A disk reports attributes as written before they are durable.
        ConfirmAttributesEarly: "attributes on disks are durable";
        /// The master demotes objects of a namespace that forbids it.
        DemoteForbidden: "a namespace may forbid demotion";
        /// The master offers an object again to a disk that has just rejected its size.
        OfferRefused: "a rejected object is not offered again at once";
        /// The master evicts objects without a disk copy although the put could wait for the disk.
        EvictUndemoted: "a put that may wait evicts nothing undemoted";
        /// The master counts memory as free that a disk is still reading.
        EvictDemoting: "memory that a disk reads is not free";
        /// The master does not limit the memory that disks read at a time.
        DemoteAllAtOnce: "disks leave memory for new objects";
        /// The master publishes a copy in memory whose bytes could not be read from the disk.
        PublishUnread: "a promotion publishes only bytes that were read";
        /// The master does not know a promoted copy before the promotion has ended.
        PromoteUnseen: "a delete covers promotions in progress";
        /// The master forgets to end a promotion's token.
        LoseToken: "T1: every promotion ends";
        /// The master does not wake gets that wait for a promotion.
        WakeNobody: "T3: waiting gets are woken";
        /// The master lets a get wait although nothing is being promoted.
        WaitForNothing: "T6: a get waits only for running promotions";
        /// The master promotes keys after a gap.
        PromoteBehindGaps: "T12: only the leading run is promoted";
        /// A probe reports an object as absent that could not be promoted.
        ProbeForgets: "T13: a prefetch does not change a probe's answer";
        /// A probe counts as a use.
        ProbeTouches: "T14: a probe changes nothing";
        /// A promoted object may be evicted at once.
        PromoteUnprotected: "T15: a promoted object stays a while";
        /// A promotion evicts objects in use.
        PromoteOverHot: "T16: promotion yields to hot objects";
        /// Objects that were written and never read do not yield to promotions.
        WrittenIsHot: "T16: promotion displaces unread objects";
        /// A lookup of locations counts as a get.
        LookCounts: "T14: a lookup changes nothing";
        /// A lookup that only takes a lease counts as a read.
        LeaseReads: "T14: a lease alone is not a read";
        /// A promotion that found no memory is not tried again.
        RetryNever: "T20: a promotion without memory is tried again";
        /// The master applies the reply to a cancelled promotion to the next one.
        HearLatePromotions: "T18: late replies affect nothing newer";
        /// A node reuses memory while a disk still writes into it.
        PromoteUnheld: "T19: memory stays reserved while a disk writes it";
        /// A master of several answers about names without asking whether it still leads.
        AnswerUnconfirmed: "answers wait until leadership is confirmed";
        /// A master of several counts a write that was refused, because another one leads, as durable.
        TrustRefused: "a refused write of the state is not durable";
        /// A node gives memory that is guaranteed to one namespace to another, and the master plans it.
        TakeGuaranteed: "a guaranteed minimum stays free for its namespace";
        /// A node that is drained takes new objects.
        FillDrained: "a drained node takes no new objects";
        /// The master does not send a drain job again to a node that returns without it.
        ForgetDrains: "a node that returns is drained again";
        /// The master does not tell a node that reports that its drain job has ended.
        DrainForEver: "an ended drain job ends on every node";
    }
    /// Mutants that the tests of `session` must notice: simulated clients make no pauses.
    OF_CLIENTS {
        /// A client leaves a node alone although the master has registered it again.
        AvoidTheRestarted: "a newer registration ends the pause";
        /// A call fails although its only node is tried again before its deadline.
        FailInPauses: "a call without another way waits for the next attempt";
        /// A client puts an object again that may have been stored, and removed since.
        PutTwice: "a put is stored at most once";
    }
    /// Mutants that the tests of `node` must notice: simulated clients rarely use a replaced connection.
    OF_NODES {
        /// The node accepts messages of replaced connections.
        NodeServesOldConnections: "fence of connections, node";
        /// The node lets one client view all of its memory.
        ViewEverything: "the views of a client leave memory to others";
        /// A node asks about a batch only after it has announced its objects, if one of the batch is stored.
        AskTogether: "a node asks about prepared objects before it announces";
    }
    /// Mutants that the tests of `disk` must notice: simulated clusters meet them in too few seeds.
    OF_DISKS {
        /// A disk announces its copies while it still writes objects of an earlier epoch.
        AnnounceTooSoon: "a disk announces only settled copies";
    }
    /// Mutants that the tests of `master` must notice: simulated clusters meet them in too few
    /// seeds.
    OF_MASTERS {
        /// A confirmation releases also answers that were decided after it began.
        ConfirmLater: "a confirmation covers earlier answers only";
        /// The master answers that an object is absent while its removal is neither confirmed nor saved.
        TellUnsaved: "an absence that a client has seen is final";
        /// The master answers clients before it repeats the decisions of an earlier epoch.
        AnswerUndecided: "decisions are repeated before clients get answers";
        /// A home learns that its object is stored only once the master is confirmed to lead.
        TellWhenConfirmed: "a home learns of its object before clients see it confirmed";
        /// A delete retires an object at the same time as what that had replaced.
        RetireTogether: "a replaced object does not outlive its successor";
        /// The master removes an object and keeps the copies that it had replaced.
        KeepHeldCopies: "a removal includes what its object has replaced";
        /// The master retires an evicted or expired object at the same time as what that had replaced.
        TellEarly: "an evicted object leaves after what it has replaced";
        /// The master requests memory of an evicted object before it has told the node to retire that.
        AllocateFirst: "a put waits for the memory of an evicted object";
        /// The master takes a member for reported although it dropped a question of that member.
        ForgetUnanswered: "a member has reported once its questions are answered";
        /// The master forgets an object whose last copy may be on a node that could not report it.
        ForgetUnheard: "a written copy keeps its object until its node returns";
        /// The master answers after a write of its state that began before it decided.
        AnswerDeposed: "an answer is confirmed after it was decided";
        /// The master lets an object without pins replace one that was pinned meanwhile.
        ReplacePinned: "a put that replaces one generation has its pins";
        /// A delete by pattern does not save the retires of copies on a node that does not confirm.
        DropWithoutOwing: "a delete by pattern is pending for every copy of its names";
        /// A delete by pattern retires what an object that it spares has replaced, before that is stored.
        DropReplaced: "a delete by pattern spares what waits for a spared successor";
        /// The same of an object that was put since the delete began.
        DropReplacedSince: "a delete by pattern spares what was put since, also if it is replaced";
        /// The master answers that a sample is freed while a copy that was one too many is still there.
        FreeWithoutSurplus: "a consumed sample has no copies left";
        /// The master makes a lost copy again and again on a node that has no space for it.
        RepairAtOneNode: "a copy that failed is made on another node";
        /// The master does not make a copy on a node again where one has failed.
        RepairNeverAgain: "a node that failed is tried again if no other has memory";
        /// The master tries the emptiest of the nodes again and again on which a copy has failed.
        RepairOutOfTurn: "nodes on which a copy has failed take turns";
        /// The master lets a home store its copy of an object although a lost copy was made there meanwhile.
        KeepSecondCopy: "a node has one copy of an object";
        /// An object that exceeds the quota of its namespace waits for the share of its client.
        AwaitShareInVain: "a put that can never succeed does not wait for its share";
        /// The master writes an object ahead that the disk has just dropped, again and again.
        WriteAheadAgain: "what a small disk has dropped is not written ahead again at once";
        /// The master evicts on and on, although a restarted node cannot free the memory yet.
        EvictUnlisted: "no eviction while enough memory waits for lists of views";
        /// The late registration of an ended process makes the master lose the process that replaced it.
        ReplaceNewer: "a late registration replaces no newer node";
        /// The master remembers removals of any size.
        RememberAnySize: "the history of removals is bounded in bytes";
        /// The master handles all items of a large batch in one turn.
        HandleAtOnce: "large batches are handled in pieces";
        /// The master explains all keys of a question in one answer.
        ExplainAll: "an answer explains a bounded number of keys";
        /// The master lets any number of requests of one client wait.
        ClientWaitsAnyhow: "the waiting requests of a client are bounded";
        /// The master lets any number of requests of one namespace wait.
        NamespaceWaitsAnyhow: "the waiting requests of a namespace are bounded";
        /// The master lets any number of requests of one token wait.
        TokenWaitsAnyhow: "the waiting requests of a token are bounded";
        /// Requests that wait may have any number of keys.
        WaitWithAnyBytes: "the keys of requests that wait are bounded in bytes";
        /// Requests of one client may take all places of those that wait for members.
        DeferForOne: "requests that wait for members leave places to others";
        /// The master lets clients add any number of namespaces.
        AnyNamespace: "the number of namespaces is bounded";
        /// The master forgets no namespace.
        KeepNamespaces: "unused namespaces are forgotten";
        /// The master lists all namespaces in one answer.
        ListAllNamespaces: "an answer lists a bounded number of namespaces";
        /// The master compares any number of bytes with a regular expression at a time.
        MatchAnyBytes: "a page compares a bounded number of bytes with an expression";
        /// The master compiles regular expressions of any length.
        CompileAnyText: "the length of a regular expression is bounded";
        /// The master lets one client reserve all memory.
        ReserveEverything: "the reservations of a client leave memory to others";
        /// Each client of a token may reserve as much memory as one client may.
        ShareOfEachClient: "the reservations of a token leave memory to others";
        /// Each namespace of a token has its own turns at disks.
        TurnsOfEachNamespace: "the namespaces of a token take turns together";
        /// The master lets a client or namespace have any number of reservations.
        ReserveAnyNumber: "the reservations of a client and of a namespace are bounded";
        /// The master lets a namespace have any number of leases.
        LeaseAnyNumber: "the leases of a client and of a namespace are bounded";
        /// The master lets a namespace have any number of pins.
        PinAnyNumber: "the pins of a namespace are bounded";
        /// The namespaces of a token may each have as many pins as one may.
        PinsOfEachNamespace: "the pins of a token are bounded";
        /// Promotions that wait begin in the order in which they were requested.
        PromoteInOrder: "promotions of namespaces take turns";
        /// Objects are written through in the order in which they were put.
        WriteThroughInOrder: "namespaces take turns when objects are written through";
        /// A put that exceeds its quota waits for the demotions of other namespaces.
        AwaitDemotionsOfOthers: "a put over its quota waits for demotions of its own namespace";
        /// One token may use all namespaces that there may be.
        NamespacesOfOneToken: "a token that is limited to namespaces leaves some to others";
        /// The master evicts guaranteed objects of other namespaces.
        EvictGuaranteed: "objects within a guaranteed minimum are not evicted for others";
        /// The master does not charge removed objects that are in view.
        ViewForFree: "removed objects in view are charged to their namespace";
        /// The master accepts a batch whose keys have any number of bytes.
        AnyKeyBytes: "the keys of a batch are bounded in bytes";
        /// A restarted master ends TTLs before all members have reported.
        ExpireUnreported: "nothing expires before all members have reported";
        /// The master gives the index of a lost member to another one while objects still refer to it.
        ReuseIndex: "an index is used again once nothing refers to it";
        /// Requests find objects of a lost or absent member that are about to be removed.
        FindDeparted: "no request finds what a lost member had";
        /// The master readmits an absent member before it has given up its objects.
        AdmitDeparting: "a member returns once its objects are given up";
        /// The master lets a member join before it has looked at all its copies.
        JoinEarly: "a member joins once all copies that it lacks are withdrawn";
    }
    /// Mutants that the tests of `master::stream` must notice, with pipelines of producers and consumers.
    OF_STREAMS {
        /// The master delivers a sample to a second consumer of a group while the first has it.
        PullTwice: "one consumer of a group has a sample";
        /// The master does not deliver a sample again after its consumer died.
        LosePulled: "unacknowledged samples are delivered again";
        /// The master forgets the acknowledgements of a group in a stream.
        ForgetConsumed: "a name in a stream is used up once acknowledged";
        /// The master accepts more samples than the high mark of a stream.
        OverfillStreams: "a stream stops at its high mark";
        /// The master admits consumers whose windows cannot be filled.
        AnyWindow: "a window that cannot be filled is rejected";
    }
}
