//! The bug zoo: rules of the hierarchy, broken one at a time in the production path.
//!
//! A test that cannot fail proves nothing. Each variant is a fault that a real system shipped or nearly did;
//! the simulation must catch every one of them. Without the feature `sabotage` the type has a single value
//! and every question about it is answered `false` at compile time.

pub(crate) use tiffin_sabotage::sabotaged;

tiffin_sabotage::variants! {
    /// Every broken variant, by the invariant that it breaks and where it was seen.
    ALL {
        /// A backup lists its hashes root to leaf and its pages leaf to root.
        ReverseBackupHashes: "K1", "TokenSpeed #293, finding 1";
        /// Making room for an operation may evict what the operation relies on.
        EvictOwnAnchor: "O4", "TokenSpeed #293, finding 2";
        /// Ranks agree that an operation ended and drop how many pages it completed.
        DropCompletedPages: "C2", "TokenSpeed #293, finding 3";
        /// Ranks do not know the end of a backup.
        ForgetBackupAcks: "L1", "TokenSpeed #293, finding 3";
        /// The fetched suffix is entered from page 0 on.
        InsertAtZero: "K1", "TokenSpeed #293, finding 4; Dynamo #8419";
        /// The source of a backup is not pinned.
        UnpinnedBackup: "O1", "TokenSpeed #293, finding 5; vLLM #52360";
        /// What storage answered is cut with the match of now, although it was asked with another.
        StaleSlice: "K2", "TokenSpeed #293, finding 6";
        /// A page that is entered into the index stays in the list of its operation, which frees it.
        DoubleOwner: "O2", "TokenSpeed #293, finding 7; SGLang #13483";
        /// A request whose prefetch is done stays where it is.
        NoExitFromPrefetch: "L3", "TokenSpeed #293, finding 7";
        /// A split of the tree forgets where the pages of the suffix went.
        ForgetSplit: "O6", "TokenSpeed #293, 1.6 a";
        /// A page without a hash adds nothing to the list, and the hashes behind it slide.
        SlideHashes: "K1", "TokenSpeed #293, 1.6 b";
        /// The chain of generated pages starts again at the root.
        RestartChain: "K3", "TokenSpeed #293, 1.6 c";
        /// A fetched page is entered under the hash that lay at its place when the request came.
        PublishByAdmission: "K2", "TokenSpeed #293, 1.6 d";
        /// A save that failed counts as one that succeeded.
        IgnoreSaveFailure: "V2", "TokenSpeed #293, 1.6 e; Dynamo #15079";
        /// Under write-back a page leaves the device that is not saved yet.
        ReuseUnsaved: "O4", "TokenSpeed #293, 1.3: demoted when written back";
        /// A host copy can be matched before its bytes are there.
        PublishSaveEarly: "V1", "TokenSpeed #293, 1.6 f; SGLang #8901";
        /// A device copy can be matched before its bytes are there.
        PublishLoadEarly: "V1", "TokenSpeed #1587";
        /// An abort takes the pins of operations that are still under way.
        AbortUnpins: "O1", "TokenSpeed #293, 1.6 g; SGLang #27444";
        /// An abort frees the pages that operations still write.
        AbortFreesTargets: "O3", "TokenSpeed #293, 1.6 g; SGLang #31296";
        /// Pages are evicted although that does not make enough room.
        EvictInVain: "O5", "TokenSpeed #293, 1.6 h";
        /// Two requests fetch the same missing page.
        FetchTwice: "L7", "TokenSpeed #293, 1.6 i";
        /// Nothing bounds the pages that prefetches hold.
        UnboundedPrefetch: "L8", "TokenSpeed #293, 1.6 i";
        /// Prefetches and backups share one budget.
        SharedLane: "L8", "TokenSpeed #293, 1.6 j";
        /// Every pin is taken away twice, and what is below zero is hidden.
        HideOverUnpin: "O1", "TokenSpeed #293, 1.6 l";
        /// A prompt that is cached whole leaves nothing to compute.
        NoTokenLeft: "K5", "TokenSpeed #293, 1.6 m";
        /// A backup that failed is remembered as stored.
        BelieveFailedBackup: "V2", "TokenSpeed #1125";
        /// When pages vanish, rows that decode are not told.
        ForgetDecodingRows: "L4", "TokenSpeed #1587";
        /// An outcome goes to the latest operation of its kind.
        LatestOutcome: "L5", "TokenSpeed #1587";
        /// The weight version is not a part of the key.
        ForgetWeightVersion: "K4", "TokenSpeed #1587";
        /// The rank is not a part of the key in the store.
        ForgetRank: "K4", "TokenSpeed #1587";
        /// The parts of the key run into each other.
        UnframedKey: "K4", "TokenSpeed, 1.2";
        /// The position of media is hashed, what it shows is not.
        ForgetMedia: "K4", "SGLang, extra keys";
        /// Clearing a namespace leaves its pages to be found.
        KeepCleared: "K4", "Mooncake #2646, T18";
        /// The first rank's outcome counts for all.
        FirstRankDecides: "C2", "SGLang #26923";
        /// An operation counts as ended when one rank says so.
        CountInsteadOfId: "C2", "SGLang #28429";
        /// A rank decides by what it alone knows.
        RankLocalRoom: "C3", "SGLang #30760";
        /// Ties are broken differently on every rank.
        RankLocalTies: "C1", "TokenSpeed #248; SGLang #22759";
        /// A late or repeated completion is applied again.
        ApplyTwice: "L1", "SGLang #13483";
        /// An operation past its deadline is forgotten, and its pages are free.
        PurgeLive: "O3", "Mooncake #2646, T2; SGLang #31445";
        /// Whoever waits for a prefetch waits for as long as that takes.
        WaitForever: "L3", "SGLang #16747";
        /// A completion is looked at only when the next tick comes round.
        NoticeLate: "L9", "SGLang #32725";
        /// Who joined a fetch is not told when its initiator is aborted.
        ForgetJoiners: "L7", "Mooncake #2646, T1";
        /// Pages behind a miss are taken as well.
        KeepBehindGap: "V3", "Mooncake #2646, T12";
        /// A copy that lost against another frees the page that is still written.
        FreeLosingTarget: "O7", "SGLang #35769";
        /// A copy may be evicted from under those behind it.
        EvictInnerPages: "V4", "HiCache, leaf-first rule";
        /// A budget is given back twice.
        ReturnBudgetTwice: "L8", "SGLang #9927";
        /// An abort is not known in the last states.
        NoAbortAtTheEnd: "L2", "TokenSpeed #293, 1.3";
    }
}
