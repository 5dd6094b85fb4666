//! Hooks of the engine that mutants replace. Each is named after what the engine does there; without the
//! feature `sabotage` only that is left. See [`crate::sabotage`].

use super::prefetch::FetchPlan;
use super::{CellId, ChainHash, Engine, Item, LiveOp, OpId, OpKind, Outcome, ReqId, Residency, State, Tier};
use super::{source_tier, target_tier};
use crate::cell::Stored;
use crate::ranks::Votes;
use crate::sabotage::sabotaged;

/// Where operations begin.
impl Engine {
    /// O4: whether space may be made after what a request found is protected, and not before.
    pub(super) fn may_protect(&mut self, pages: u32) -> bool {
        !sabotaged!(self.config.sabotage, EvictOwnAnchor) || self.inventory.free_up(Tier::Device, pages)
    }

    /// V1: a copy that an operation brings cannot be matched before the operation has ended.
    pub(super) fn staged(&mut self, kind: OpKind, cell: CellId, op: OpId) {
        let is_early = match kind {
            OpKind::Load => sabotaged!(self.config.sabotage, PublishLoadEarly),
            OpKind::Save => sabotaged!(self.config.sabotage, PublishSaveEarly),
            _ => false,
        };
        if let Some(tier) = target_tier(kind).filter(|_| is_early) {
            self.inventory.settle(cell, tier, op, true);
        }
    }

    /// K2: a fetched page keeps its hash, whichever hash had its place when the request arrived.
    pub(super) fn name_fetched(&mut self, cell: CellId, at_arrival: Option<&ChainHash>) {
        if sabotaged!(self.config.sabotage, PublishByAdmission)
            && let Some(hash) = at_arrival
        {
            self.inventory.cell_mut(cell).hash = *hash;
        }
    }

    /// L7: whether a request can wait for an operation that brings a page already.
    pub(super) fn can_join(&self, op: OpId) -> bool {
        self.ledger.is_joinable(op) || sabotaged!(self.config.sabotage, FetchTwice)
    }

    /// L7: a page that another operation brings is not fetched again.
    pub(super) fn join(&self, plan: &mut FetchPlan, position: u32, op: OpId) {
        plan.join.push((position, op));
        if sabotaged!(self.config.sabotage, FetchTwice) {
            plan.fetch.push(position);
        }
    }

    /// O1: a backup pins its source.
    pub(super) fn pin_backup(&mut self, cell: CellId) {
        if !sabotaged!(self.config.sabotage, UnpinnedBackup) {
            self.inventory.pin(cell, Tier::Host);
        }
    }

    /// O1: the source of a backup that has ended; it was pinned, so it is there.
    pub(super) fn backup_source(&self, item: &Item) -> Option<CellId> {
        let is_lost = |cell: &CellId| self.inventory.find(*cell).is_none();
        item.cell.filter(|cell| !(sabotaged!(self.config.sabotage, UnpinnedBackup) && is_lost(cell)))
    }

    /// O1: a backup that has ended unpins its source.
    pub(super) fn unpin_backup(&mut self, cell: CellId) {
        if !sabotaged!(self.config.sabotage, UnpinnedBackup) {
            self.inventory.unpin(cell, Tier::Host);
        }
    }

    /// K1: every record of a backup has the hash of its own page.
    pub(super) fn check_hashes(&self, items: &mut [Item]) {
        let mut hashes: Vec<ChainHash> = Vec::new();
        if sabotaged!(self.config.sabotage, ReverseBackupHashes) {
            hashes.extend(items.iter().rev().map(|item| item.record.hash));
        }
        if sabotaged!(self.config.sabotage, SlideHashes) {
            hashes.extend(items.iter().skip(1).map(|item| item.record.hash));
        }
        items.iter_mut().zip(hashes).for_each(|(item, hash)| item.record.hash = hash);
    }

    /// O7: a copy that an operation brings keeps its page, although the same page was computed meanwhile.
    pub(super) fn keep_target(&mut self, cell: CellId) {
        if sabotaged!(self.config.sabotage, FreeLosingTarget)
            && let Residency::Pending(op, _) = self.inventory.cell(cell).residency(Tier::Device)
        {
            self.inventory.hold(cell, Tier::Host);
            self.inventory.settle(cell, Tier::Device, op, false);
            self.inventory.release(cell, Tier::Host);
        }
    }
}

/// Where operations and requests end.
impl Engine {
    /// L5: the operation that an outcome belongs to is the one that it names.
    pub(super) fn acknowledged(&self, op: OpId) -> OpId {
        if !sabotaged!(self.config.sabotage, LatestOutcome) {
            return op;
        }
        let kind = self.ledger.find(op).map(|live| live.kind);
        let same = |live: &&LiveOp| Some(live.kind) == kind;
        self.ledger.iter().filter(same).map(|live| live.id).max().unwrap_or(op)
    }

    /// L9: an outcome is applied at once.
    pub(super) fn apply_outcome(&mut self, op: OpId, outcome: Outcome) {
        if sabotaged!(self.config.sabotage, NoticeLate) {
            self.deferred.push((op, outcome));
        } else {
            self.end(op, outcome);
        }
    }

    /// L9: no outcome is left to be applied later.
    pub(super) fn apply_deferred(&mut self) {
        if sabotaged!(self.config.sabotage, NoticeLate) && self.now.is_multiple_of(3) {
            for (op, outcome) in std::mem::take(&mut self.deferred) {
                self.end(op, outcome);
            }
        }
    }

    /// C2: an operation has ended when every rank says so, with the least that every rank has.
    pub(super) fn agreed_outcome(&self, votes: &Votes) -> Option<Outcome> {
        let all = votes.result();
        if sabotaged!(self.config.sabotage, CountInsteadOfId) && votes.count() > 0 {
            return votes.first();
        }
        if sabotaged!(self.config.sabotage, FirstRankDecides) {
            return all.and(votes.first());
        }
        if sabotaged!(self.config.sabotage, DropCompletedPages) && votes.ranks() > 1 {
            return all.map(|_| Outcome::Done { leading: u32::MAX });
        }
        all
    }

    /// L1: an operation that has ended leaves the ledger.
    pub(super) fn take_ended(&mut self, id: OpId) -> Option<LiveOp> {
        let kept =
            sabotaged!(self.config.sabotage, ApplyTwice).then(|| self.ledger.find(id).cloned()).flatten();
        kept.or_else(|| self.ledger.close(id))
    }

    /// V1: whether a copy was published or freed before the operation that brings it has ended.
    pub(super) fn is_settled_early(&self, op: OpId, cell: CellId, tier: Tier) -> bool {
        let sabotage = self.config.sabotage;
        let mut may_be = sabotaged!(sabotage, PublishSaveEarly);
        may_be |= sabotaged!(sabotage, PublishLoadEarly);
        may_be |= sabotaged!(sabotage, FreeLosingTarget);
        let residency = || self.inventory.find(cell).map(|cell| cell.residency(tier));
        may_be && !matches!(residency(), Some(Residency::Pending(by, _)) if by == op)
    }

    /// O3: an operation past its deadline stays in the ledger. Says whether it was removed instead.
    pub(super) fn is_purged(&mut self, id: OpId) -> bool {
        let is_purged = sabotaged!(self.config.sabotage, PurgeLive);
        if is_purged {
            self.purge(id);
        }
        is_purged
    }

    /// L2, O1, O3: an abort is handled in every state, and leaves operations what they use.
    pub(super) fn check_abort(&mut self, id: ReqId, state: State) {
        let is_at_the_end = matches!(state, State::Draining | State::WritingBack);
        assert!(
            !(is_at_the_end && sabotaged!(self.config.sabotage, NoAbortAtTheEnd)),
            "L2: no handler for an abort in {state:?}"
        );
        if sabotaged!(self.config.sabotage, AbortFreesTargets) {
            self.purge_ops_of(id);
        }
        if sabotaged!(self.config.sabotage, AbortUnpins) {
            self.unpin_ops_of(id);
        }
    }
}

/// What mutants do.
impl Engine {
    /// Removes an operation and frees its pages, although it still uses them.
    fn purge(&mut self, id: OpId) {
        let Some(op) = self.ledger.close(id) else { return };
        for Item { cell, .. } in &op.items {
            let Some(cell) = *cell else { continue };
            if let Some(tier) = target_tier(op.kind) {
                self.inventory.settle(cell, tier, id, false);
            }
            if let Some(tier) = source_tier(op.kind) {
                self.inventory.unpin(cell, tier);
            }
            if op.kind == OpKind::Backup {
                self.inventory.cell_mut(cell).stored = Stored::Unknown;
            }
        }
        for request in op.waiters {
            self.stop_waiting(request, id);
        }
    }

    /// Removes the operations that only this request waits for.
    fn purge_ops_of(&mut self, request: ReqId) {
        let waits: Vec<_> = self.request(request).waits.iter().copied().collect();
        for op in waits {
            let is_alone = self.ledger.find(op).is_some_and(|live| live.waiters.len() == 1);
            if is_alone {
                if let Some(live) = self.ledger.find_mut(op) {
                    live.waiters.clear();
                }
                self.purge(op);
            }
        }
    }

    /// Unpins the sources of operations that this request waits for.
    fn unpin_ops_of(&mut self, request: ReqId) {
        for op in self.request(request).waits.clone() {
            let Some(live) = self.ledger.find(op) else { continue };
            let Some(tier) = source_tier(live.kind) else { continue };
            let cells: Vec<_> = live.items.iter().filter_map(|item| item.cell).collect();
            cells.into_iter().for_each(|cell| self.inventory.unpin(cell, tier));
        }
    }
}
