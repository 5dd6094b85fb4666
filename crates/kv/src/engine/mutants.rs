//! Hooks of the engine that mutants replace. Each is named after what the engine does there; without the
//! feature `mutants` only that is left. See [`crate::mutant`].

use super::prefetch::FetchPlan;
use super::{
    CellId, ChainHash, Engine, Inventory, Item, Ledger, LiveOp, OpId, OpKind, Outcome, ReqId, Request,
    Residency, State, Tick, Tier,
};
use super::{source_tier, target_tier};
use crate::cell::Stored;
use crate::mutant::{Mutant, is_mutant};
use crate::ranks::Votes;

/// O4: whether space may be made after what a request found is protected, and not before.
pub(super) fn may_protect(inventory: &mut Inventory, pages: u32, mutant: Mutant) -> bool {
    !is_mutant!(mutant, EvictOwnAnchor) || inventory.free_up(Tier::Device, pages)
}

/// V1: a copy that an operation brings cannot be matched before the operation has ended.
pub(super) fn staged(inventory: &mut Inventory, kind: OpKind, cell: CellId, op: OpId, mutant: Mutant) {
    let is_early = match kind {
        OpKind::Load => is_mutant!(mutant, PublishLoadEarly),
        OpKind::Save => is_mutant!(mutant, PublishSaveEarly),
        _ => false,
    };
    if let Some(tier) = target_tier(kind).filter(|_| is_early) {
        inventory.settle(cell, tier, op, true);
    }
}

/// K2: a fetched page keeps its hash, whichever hash had its place when the request arrived.
pub(super) fn name_fetched(
    inventory: &mut Inventory,
    cell: CellId,
    at_arrival: Option<&ChainHash>,
    mutant: Mutant,
) {
    if is_mutant!(mutant, PublishByAdmission)
        && let Some(hash) = at_arrival
    {
        inventory.cell_mut(cell).hash = *hash;
    }
}

/// L7: whether a request can wait for an operation that brings a page already.
pub(super) fn can_join(ledger: &Ledger, op: OpId, mutant: Mutant) -> bool {
    ledger.is_joinable(op) || is_mutant!(mutant, FetchTwice)
}

/// L7: a page that another operation brings is not fetched again.
pub(super) fn join(plan: &mut FetchPlan, position: u32, op: OpId, mutant: Mutant) {
    plan.join.push((position, op));
    if is_mutant!(mutant, FetchTwice) {
        plan.fetch.push(position);
    }
}

/// O1: a backup pins its source.
pub(super) fn pin_backup(inventory: &mut Inventory, cell: CellId, mutant: Mutant) {
    if !is_mutant!(mutant, UnpinnedBackup) {
        inventory.pin(cell, Tier::Host);
    }
}

/// O1: the source of a backup that has ended; it was pinned, so it is there.
pub(super) fn backup_source(inventory: &Inventory, item: &Item, mutant: Mutant) -> Option<CellId> {
    let is_lost = |cell: &CellId| inventory.find(*cell).is_none();
    item.cell.filter(|cell| !(is_mutant!(mutant, UnpinnedBackup) && is_lost(cell)))
}

/// O1: a backup that has ended unpins its source.
pub(super) fn unpin_backup(inventory: &mut Inventory, cell: CellId, mutant: Mutant) {
    if !is_mutant!(mutant, UnpinnedBackup) {
        inventory.unpin(cell, Tier::Host);
    }
}

/// K1: every record of a backup has the hash of its own page.
pub(super) fn check_hashes(items: &mut [Item], mutant: Mutant) {
    let mut hashes: Vec<ChainHash> = Vec::new();
    if is_mutant!(mutant, ReverseBackupHashes) {
        hashes.extend(items.iter().rev().map(|item| item.record.hash));
    }
    if is_mutant!(mutant, SlideHashes) {
        hashes.extend(items.iter().skip(1).map(|item| item.record.hash));
    }
    items.iter_mut().zip(hashes).for_each(|(item, hash)| item.record.hash = hash);
}

/// O7: a copy that an operation brings keeps its page, although the same page was computed meanwhile.
pub(super) fn keep_target(inventory: &mut Inventory, cell: CellId, mutant: Mutant) {
    if is_mutant!(mutant, FreeLosingTarget)
        && let Residency::Pending(op, _) = inventory.cell(cell).residency(Tier::Device)
    {
        inventory.hold(cell, Tier::Host);
        inventory.settle(cell, Tier::Device, op, false);
        inventory.release(cell, Tier::Host);
    }
}

/// L5: the operation that an outcome belongs to is the one that it names.
pub(super) fn acknowledged(ledger: &Ledger, op: OpId, mutant: Mutant) -> OpId {
    if !is_mutant!(mutant, LatestOutcome) {
        return op;
    }
    let kind = ledger.find(op).map(|live| live.kind);
    let same = |live: &&LiveOp| Some(live.kind) == kind;
    ledger.iter().filter(same).map(|live| live.id).max().unwrap_or(op)
}

/// C2: an operation has ended when every rank says so, with the least that every rank has.
pub(super) fn agreed_outcome(votes: &Votes, mutant: Mutant) -> Option<Outcome> {
    let all = votes.result();
    if is_mutant!(mutant, CountInsteadOfId) && votes.count() > 0 {
        return votes.first();
    }
    if is_mutant!(mutant, FirstRankDecides) {
        return all.and(votes.first());
    }
    if is_mutant!(mutant, DropCompletedPages) && votes.ranks() > 1 {
        return all.map(|_| Outcome::Done { leading: u32::MAX });
    }
    all
}

/// L1: an operation that has ended leaves the ledger.
pub(super) fn take_ended(ledger: &mut Ledger, id: OpId, mutant: Mutant) -> Option<LiveOp> {
    let kept = is_mutant!(mutant, ApplyTwice).then(|| ledger.find(id).cloned()).flatten();
    kept.or_else(|| ledger.close(id))
}

/// V1: whether a copy was published or freed before the operation that brings it has ended.
pub(super) fn is_settled_early(
    inventory: &Inventory,
    op: OpId,
    cell: CellId,
    tier: Tier,
    mutant: Mutant,
) -> bool {
    let mut may_be = is_mutant!(mutant, PublishSaveEarly);
    may_be |= is_mutant!(mutant, PublishLoadEarly);
    may_be |= is_mutant!(mutant, FreeLosingTarget);
    let residency = || inventory.find(cell).map(|cell| cell.residency(tier));
    may_be && !matches!(residency(), Some(Residency::Pending(by, _)) if by == op)
}

/// Unpins the sources of operations that this request waits for.
fn unpin_ops_of(inventory: &mut Inventory, ledger: &Ledger, request: &Request) {
    for op in request.waits.clone() {
        let Some(live) = ledger.find(op) else { continue };
        let Some(tier) = source_tier(live.kind) else { continue };
        let cells: Vec<_> = live.items.iter().filter_map(|item| item.cell).collect();
        cells.into_iter().for_each(|cell| inventory.unpin(cell, tier));
    }
}

/// Outcomes that a mutant applies later.
#[derive(Clone, Debug, Default)]
pub(super) struct Deferred(Vec<(OpId, Outcome)>);

impl Deferred {
    /// L9: an outcome is applied at once.
    pub(super) fn pass(&mut self, op: OpId, outcome: Outcome, mutant: Mutant) -> Option<Outcome> {
        let is_late = is_mutant!(mutant, NoticeLate);
        self.0.extend(is_late.then_some((op, outcome)));
        (!is_late).then_some(outcome)
    }

    /// L9: no outcome is left to be applied later.
    #[inline]
    pub(super) fn take_due(&mut self, now: Tick, mutant: Mutant) -> Vec<(OpId, Outcome)> {
        let is_due = is_mutant!(mutant, NoticeLate) && now.is_multiple_of(3);
        if is_due { std::mem::take(&mut self.0) } else { Vec::new() }
    }
}

/// Where operations and requests end.
impl Engine {
    /// O3: an operation past its deadline stays in the ledger. Says whether it was removed instead.
    pub(super) fn is_purged(&mut self, id: OpId) -> bool {
        let is_purged = is_mutant!(self.config.mutant, PurgeLive);
        if is_purged {
            self.purge(id);
        }
        is_purged
    }

    /// L2, O1, O3: an abort is handled in every state, and leaves operations what they use.
    pub(super) fn check_abort(&mut self, id: ReqId, state: State) {
        let is_at_the_end = matches!(state, State::Draining | State::WritingBack);
        assert!(
            !(is_at_the_end && is_mutant!(self.config.mutant, NoAbortAtTheEnd)),
            "L2: no handler for an abort in {state:?}"
        );
        if is_mutant!(self.config.mutant, AbortFreesTargets) {
            for op in lone_ops(&self.ledger, self.requests.get(id)) {
                if let Some(live) = self.ledger.find_mut(op) {
                    live.waiters.clear();
                }
                self.purge(op);
            }
        }
        if is_mutant!(self.config.mutant, AbortUnpins) {
            unpin_ops_of(&mut self.inventory, &self.ledger, self.requests.get(id));
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
}

/// The operations that only this request waits for.
fn lone_ops(ledger: &Ledger, request: &Request) -> Vec<OpId> {
    let is_alone = |op: &&OpId| ledger.find(**op).is_some_and(|live| live.waiters.len() == 1);
    request.waits.iter().filter(is_alone).copied().collect()
}
