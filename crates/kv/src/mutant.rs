//! Mutants: rules of the hierarchy, each broken in the production path by one variant.
//!
//! A test that cannot fail proves nothing. Each variant is a fault that a real system shipped or nearly did;
//! the simulation must catch every one of them. Without the feature `mutants` the type has a single value,
//! and the compiler removes every hook.
//!
//! Algorithms contain no mutants. They call hooks, which are named after the rule and carry it out; a mutant
//! is a branch inside of a hook. The hooks here take and return plain values, so that every module can call
//! them. Those that need the state of the engine or the inventory are in `engine::mutants` and
//! `inventory::mutants`.

use std::borrow::Cow;
use std::collections::BTreeSet;

pub(crate) use tiffin_mutants::is_mutant;

tiffin_mutants::variants! {
    /// Every mutant, with the invariant that it breaks and where it was seen.
    ALL {
        /// A backup lists its hashes root to leaf and its pages leaf to root.
        ReverseBackupHashes: "K1", "TokenSpeed #293, finding 1";
        /// An eviction for an operation may take pages that the operation relies on.
        EvictOwnAnchor: "O4", "TokenSpeed #293, finding 2";
        /// Ranks agree that an operation ended and drop how many pages it completed.
        DropCompletedPages: "C2", "TokenSpeed #293, finding 3";
        /// Ranks do not know the end of a backup.
        ForgetBackupAcks: "L1", "TokenSpeed #293, finding 3";
        /// The fetched suffix is inserted from page 0 on.
        InsertAtZero: "K1", "TokenSpeed #293, finding 4; Dynamo #8419";
        /// The source of a backup is not pinned.
        UnpinnedBackup: "O1", "TokenSpeed #293, finding 5; vLLM #52360";
        /// The answer of a probe is cut with the current match, although the probe was made with another.
        StaleSlice: "K2", "TokenSpeed #293, finding 6";
        /// A page that is inserted into the index stays in the list of its operation, which frees it.
        DoubleOwner: "O2", "TokenSpeed #293, finding 7; SGLang #13483";
        /// A request whose prefetch is done stays where it is.
        NoExitFromPrefetch: "L3", "TokenSpeed #293, finding 7";
        /// A split of the tree does not update the positions of the suffix.
        ForgetSplit: "O6", "TokenSpeed #293, 1.6 a";
        /// A page without a hash is left out of the list, and later hashes shift.
        SlideHashes: "K1", "TokenSpeed #293, 1.6 b";
        /// The chain of generated pages starts again at the root.
        RestartChain: "K3", "TokenSpeed #293, 1.6 c";
        /// A fetched page is inserted under the hash that had its place when the request arrived.
        PublishByAdmission: "K2", "TokenSpeed #293, 1.6 d";
        /// A save that failed counts as one that succeeded.
        IgnoreSaveFailure: "V2", "TokenSpeed #293, 1.6 e; Dynamo #15079";
        /// Under write-back a page leaves the device that is not saved yet.
        ReuseUnsaved: "O4", "TokenSpeed #293, 1.3: demoted when written back";
        /// A host copy can be matched before its bytes are there.
        PublishSaveEarly: "V1", "TokenSpeed #293, 1.6 f; SGLang #8901";
        /// A device copy can be matched before its bytes are there.
        PublishLoadEarly: "V1", "TokenSpeed #1587";
        /// An abort removes the pins of operations that are still in flight.
        AbortUnpins: "O1", "TokenSpeed #293, 1.6 g; SGLang #27444";
        /// An abort frees the pages that operations still write.
        AbortFreesTargets: "O3", "TokenSpeed #293, 1.6 g; SGLang #31296";
        /// Pages are evicted although that does not free enough pages.
        EvictInVain: "O5", "TokenSpeed #293, 1.6 h";
        /// Two requests fetch the same missing page.
        FetchTwice: "L7", "TokenSpeed #293, 1.6 i";
        /// Pages are fetched although the store has no more of them than the threshold.
        FetchBelowThreshold: "L10", "TokenSpeed #293, 1.4";
        /// Nothing bounds the pages that prefetches hold.
        UnboundedPrefetch: "L8", "TokenSpeed #293, 1.6 i";
        /// Prefetches and backups share one budget.
        SharedLane: "L8", "TokenSpeed #293, 1.6 j";
        /// Every pin is removed twice, and a count below zero is hidden.
        HideOverUnpin: "O1", "TokenSpeed #293, 1.6 l";
        /// A fully cached prompt leaves no token to compute.
        NoTokenLeft: "K5", "TokenSpeed #293, 1.6 m";
        /// A backup that failed is remembered as stored.
        BelieveFailedBackup: "V2", "TokenSpeed #1125";
        /// When pages are lost, requests that decode are not retracted.
        ForgetDecodingRows: "L4", "TokenSpeed #1587";
        /// An outcome goes to the latest operation of its kind.
        LatestOutcome: "L5", "TokenSpeed #1587";
        /// The weight version is not a part of the key.
        ForgetWeightVersion: "K4", "TokenSpeed #1587";
        /// The rank is not a part of the key in the store.
        ForgetRank: "K4", "TokenSpeed #1587";
        /// The parts of the key run into each other.
        UnframedKey: "K4", "TokenSpeed, 1.2";
        /// The position of media is hashed, its content is not.
        ForgetMedia: "K4", "SGLang, extra keys";
        /// The pages of a cleared namespace are still found.
        KeepCleared: "K4", "Mooncake #2646, T18";
        /// The first rank's outcome counts for all.
        FirstRankDecides: "C2", "SGLang #26923";
        /// An operation counts as ended when one rank reports it.
        CountInsteadOfId: "C2", "SGLang #28429";
        /// A rank decides by its own local state.
        RankLocalRoom: "C3", "SGLang #30760";
        /// Ties are broken differently on every rank.
        RankLocalTies: "C1", "TokenSpeed #248; SGLang #22759";
        /// A late or repeated completion is applied again.
        ApplyTwice: "L1", "SGLang #13483";
        /// An operation past its deadline is forgotten, and its pages are free.
        PurgeLive: "O3", "Mooncake #2646, T2; SGLang #31445";
        /// A request waits for a prefetch without a limit.
        WaitForever: "L3", "SGLang #16747";
        /// A completion is applied only at a later tick.
        NoticeLate: "L9", "SGLang #32725";
        /// Requests that joined a fetch are forgotten when its initiator is aborted.
        ForgetJoiners: "L7", "Mooncake #2646, T1";
        /// Pages after a missing one are used as well.
        KeepBehindGap: "V3", "Mooncake #2646, T12";
        /// A copy that lost against another frees the page that is still written.
        FreeLosingTarget: "O7", "SGLang #35769";
        /// A page may be evicted before its children.
        EvictInnerPages: "V4", "HiCache, leaf-first rule";
        /// A budget is returned twice.
        ReturnBudgetTwice: "L8", "SGLang #9927";
        /// An abort is not handled in the last states.
        NoAbortAtTheEnd: "L2", "TokenSpeed #293, 1.3";
    }
}

/// How pages are named.
impl Mutant {
    /// K4: the rank is a part of the key in the store.
    pub(crate) fn rank_in_key<T: Default>(self, rank: T) -> T {
        if is_mutant!(self, ForgetRank) { T::default() } else { rank }
    }

    /// K4: the version of the weights is a part of the root.
    pub(crate) fn weights_in_root(self, version: u64) -> u64 {
        if is_mutant!(self, ForgetWeightVersion) { 0 } else { version }
    }

    /// K4: every word of a namespace is a part of its own in the root.
    pub(crate) fn parts_of_root<'a>(self, words: &[&'a str]) -> Vec<Cow<'a, str>> {
        if is_mutant!(self, UnframedKey) {
            vec![Cow::Owned(words.concat())]
        } else {
            words.iter().map(|word| Cow::Borrowed(*word)).collect()
        }
    }

    /// K4: the content of media is a part of the hash.
    pub(crate) fn media_in_hash(self, content: &[u8]) -> &[u8] {
        if is_mutant!(self, ForgetMedia) { &[] } else { content }
    }

    /// K3: the chain of generated pages continues the last hash of the prompt.
    pub(crate) fn chain_start<T>(self, last: Option<T>, root: T) -> T {
        if is_mutant!(self, RestartChain) { root } else { last.unwrap_or(root) }
    }

    /// K5: the tokens of a prompt that are always computed.
    pub(crate) fn tokens_left_to_compute(self) -> u32 {
        if is_mutant!(self, NoTokenLeft) { 0 } else { 1 }
    }

    /// K4: a cleared namespace is empty.
    pub(crate) fn clears_namespaces(self) -> bool {
        !is_mutant!(self, KeepCleared)
    }
}

/// How pages are fetched.
impl Mutant {
    /// L10: pages are fetched only if the store has enough of them.
    pub(crate) fn is_worth_a_fetch(self, is_enough: bool) -> bool {
        is_enough || is_mutant!(self, FetchBelowThreshold)
    }

    /// L8: a fetch takes no more pages than the budget has left.
    pub(crate) fn pages_in_budget(self, wanted: u32, left: u32) -> u32 {
        if is_mutant!(self, UnboundedPrefetch) { wanted } else { wanted.min(left) }
    }

    /// C3: the size of a fetch does not depend on the rank.
    pub(crate) fn pages_on_rank(self, wanted: u32, rank: u32) -> u32 {
        if is_mutant!(self, RankLocalRoom) && rank > 0 { wanted / 2 } else { wanted }
    }

    /// O4: pages that a request relies on are protected from the evictions for it.
    pub(crate) fn protected<T>(self, anchor: &[T]) -> &[T] {
        if is_mutant!(self, EvictOwnAnchor) { &[] } else { anchor }
    }

    /// K1: the cell of a fetched page is the one at its position. The page is number `at` of its operation.
    pub(crate) fn place_of_cell(self, at: usize, position: usize) -> usize {
        if is_mutant!(self, InsertAtZero) { at } else { position }
    }

    /// K2: the hash of a fetched page is the one at its position, wherever the probe began.
    pub(crate) fn place_of_hash(self, at: usize, position: usize, asked_from: usize) -> usize {
        if is_mutant!(self, StaleSlice) { asked_from + at } else { position }
    }

    /// L7: requests that joined an operation still wait for it when its initiator leaves.
    pub(crate) fn keep_joiners<T>(self, waiters: &mut BTreeSet<T>) {
        if is_mutant!(self, ForgetJoiners) {
            waiters.clear();
        }
    }

    /// L3: a request leaves the prefetch when that is done.
    pub(crate) fn leaves_prefetch(self) -> bool {
        !is_mutant!(self, NoExitFromPrefetch)
    }

    /// L3: a request stops waiting at its deadline.
    pub(crate) fn enforces_deadlines(self) -> bool {
        !is_mutant!(self, WaitForever)
    }

    /// V3: pages after a missing one are not used.
    pub(crate) fn usable_pages(self, is_valid: impl Iterator<Item = bool>) -> usize {
        if is_mutant!(self, KeepBehindGap) {
            is_valid.filter(|is_valid| *is_valid).count()
        } else {
            is_valid.take_while(|is_valid| *is_valid).count()
        }
    }

    /// L4: requests that decode learn of lost pages like all others.
    pub(crate) fn learns_of_loss(self, is_decoding: bool) -> bool {
        !(is_mutant!(self, ForgetDecodingRows) && is_decoding)
    }
}

/// How operations end.
impl Mutant {
    /// L1: ranks count the ends of backups like all others.
    pub(crate) fn counts_acks(self, is_backup: bool) -> bool {
        !(is_mutant!(self, ForgetBackupAcks) && is_backup)
    }

    /// V2: nothing counts of an operation that failed.
    pub(crate) fn pages_of_failed(self, is_save: bool, pages: u32) -> u32 {
        if is_mutant!(self, IgnoreSaveFailure) && is_save { pages } else { 0 }
    }

    /// V2: a page is in the store only if its backup succeeded.
    pub(crate) fn is_backed_up(self, succeeded: bool) -> bool {
        succeeded || is_mutant!(self, BelieveFailedBackup)
    }

    /// L8: the use of a budget after an operation has returned its share.
    pub(crate) fn budget_used_after(self, used: u32, share: u32) -> u32 {
        if is_mutant!(self, ReturnBudgetTwice) { used.saturating_sub(2 * share) } else { used - share }
    }

    /// L8: backups have a budget of their own.
    pub(crate) fn lane_of_backups(self, own: usize, fetches: usize) -> usize {
        if is_mutant!(self, SharedLane) { fetches } else { own }
    }
}

/// Which copies leave a tier.
impl Mutant {
    /// O1: the pins that are left after an unpin; nothing if there was none.
    pub(crate) fn pins_after_unpin(self, pins: u32) -> Option<u32> {
        if is_mutant!(self, HideOverUnpin) { Some(pins.saturating_sub(2)) } else { pins.checked_sub(1) }
    }

    /// O5: copies are evicted only if that frees enough pages.
    pub(crate) fn evicts_only_if_enough(self) -> bool {
        !is_mutant!(self, EvictInVain)
    }

    /// O4: under write-back a page is saved before its memory is reused.
    pub(crate) fn saves_before_reuse(self) -> bool {
        !is_mutant!(self, ReuseUnsaved)
    }

    /// V4: a page leaves after its children.
    pub(crate) fn evicts_leaves_first(self) -> bool {
        !is_mutant!(self, EvictInnerPages)
    }

    /// C1: copies of one score leave in an order that is the same on every rank.
    pub(crate) fn tie_break(self, position: u32, rank: u32) -> u32 {
        if is_mutant!(self, RankLocalTies) && rank > 0 { 0 } else { position }
    }

    /// O6: the pages that a split of the tree has moved to another node.
    pub(crate) fn moved_by_split<T>(self, run: Vec<T>) -> Vec<T> {
        if is_mutant!(self, ForgetSplit) { Vec::new() } else { run }
    }
}
