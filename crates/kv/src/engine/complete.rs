//! The end of operations: their copies are published or dropped, their pins and budgets are released, and
//! waiting requests continue.

use std::collections::BTreeMap;

use super::{
    Config, Effect, Engine, Inventory, Ledger, LiveOp, OpId, OpKind, Outcome, ReqId, State, Tick, Tier,
    mutants,
};
use crate::cell::{CellId, Stored};
use crate::inventory::Settled;
use crate::message::{Ending, Refusal};
use crate::mutant::Mutant;
use crate::ranks::LocalAcks;
use crate::stats::Stats;

/// The completions that this rank received and not all ranks have agreed on. Not part of the replicated
/// state.
#[derive(Clone, Debug, Default)]
pub(super) struct Local(BTreeMap<OpId, Outcome>);

impl Local {
    /// Keeps the completion of an operation until all ranks have agreed; false if this rank has one already.
    pub(super) fn keep(&mut self, ledger: &Ledger, config: &Config, op: OpId, outcome: Outcome) -> bool {
        let op = mutants::acknowledged(ledger, op, config.mutant);
        let has_voted = ledger.find(op).is_none_or(|live| live.votes.has(config.rank));
        if has_voted || self.0.contains_key(&op) {
            return false;
        }
        self.0.insert(op, outcome);
        true
    }

    pub(super) fn acks(&self) -> LocalAcks {
        LocalAcks(self.0.iter().map(|(op, outcome)| (*op, *outcome)).collect())
    }

    fn forget(&mut self, op: OpId) {
        self.0.remove(&op);
    }
}

/// Until when the store is not probed: it failed, or was too slow. Otherwise each request would wait for a
/// timeout of its own.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub(super) struct Cooldown(Tick);

impl Cooldown {
    /// An operation of that kind has failed.
    fn begin(&mut self, kind: OpKind, now: Tick, config: &Config) {
        if matches!(kind, OpKind::Probe | OpKind::Fetch) && config.cooldown > 0 {
            self.0 = self.0.max(now + config.cooldown);
        }
    }

    pub(super) fn is_on(self, now: Tick) -> bool {
        now < self.0
    }
}

impl Engine {
    /// Ends an operation, where there is one rank.
    pub(super) fn complete(&mut self, op: OpId, outcome: Outcome) {
        let op = mutants::acknowledged(&self.ledger, op, self.config.mutant);
        if self.ledger.find(op).is_none() {
            self.stats.stray_acks += 1;
        } else {
            let outcome = self.deferred.pass(op, outcome, self.config.mutant);
            outcome.into_iter().for_each(|it| self.end(op, it));
        }
    }

    /// Applies the completions of all ranks. Operations end in the order of their ids, in whatever order the
    /// completions arrived.
    pub(super) fn agreed(&mut self, acks: &[LocalAcks]) {
        if acks.len() != self.config.ranks as usize {
            return self.refuse(Refusal::Ranks(acks.len(), self.config.ranks));
        }
        let mut touched = std::collections::BTreeSet::new();
        for (rank, LocalAcks(acks)) in (0..).zip(acks) {
            for (op, outcome) in acks {
                let Some(live) = self.ledger.find_mut(*op) else {
                    self.stats.stray_acks += 1;
                    continue;
                };
                if !self.config.mutant.counts_acks(live.kind == OpKind::Backup) {
                    continue;
                }
                if !live.votes.cast(rank, *outcome) {
                    self.stats.stray_acks += 1;
                }
                touched.insert(*op);
            }
        }
        if let Some(LocalAcks(own)) = acks.get(self.config.rank as usize) {
            own.iter().for_each(|(op, _)| self.local.forget(*op));
        }
        for op in touched {
            let result = self
                .ledger
                .find(op)
                .and_then(|live| mutants::agreed_outcome(&live.votes, self.config.mutant));
            if let Some(outcome) = result {
                self.end(op, outcome);
            }
        }
    }

    /// Ends an operation that has ended on every rank. It happens once (L1).
    pub(super) fn end(&mut self, id: OpId, outcome: Outcome) {
        let Some(op) = mutants::take_ended(&mut self.ledger, id, self.config.mutant) else {
            self.stats.stray_acks += 1;
            return;
        };
        self.local.forget(id);
        if op.kind == OpKind::Save && op.is_abandoned && self.ledger.find(id).is_none() {
            self.writes.stuck_save_ended();
        }
        if outcome == Outcome::Failed && !op.is_abandoned {
            self.cooldown.begin(op.kind, self.now, &self.config);
        }
        let count = op.items.len() as u32;
        let leading = match outcome {
            Outcome::Done { leading } if leading > count && op.kind != OpKind::Drop => {
                self.stats.excessive_acks += 1;
                count
            }
            Outcome::Done { leading } => leading,
            Outcome::Failed => self.config.mutant.pages_of_failed(op.kind == OpKind::Save, count),
        };
        let leading = leading.min(op.cut);
        let (inventory, stats, mutant) = (&mut self.inventory, &mut self.stats, self.config.mutant);
        match op.kind {
            OpKind::Probe => self.probed(&op, leading),
            OpKind::Fetch => fetched(inventory, stats, &op, leading, mutant),
            OpKind::Load => loaded(inventory, stats, &op, leading, mutant),
            OpKind::Save => self.saved(&op, leading),
            OpKind::Backup => backed_up(inventory, stats, &op, leading, mutant),
            OpKind::Drop => self.spaces.dropped(&op, outcome != Outcome::Failed, self.now, &self.config),
        }
        for request in op.waiters {
            self.stop_waiting(request, id);
        }
    }

    /// A request no longer waits for this operation; without any other it continues.
    pub(super) fn stop_waiting(&mut self, id: ReqId, op: OpId) {
        let Some(request) = self.requests.find_mut(id) else { return };
        request.waits.remove(&op);
        if !request.waits.is_empty() {
            return;
        }
        match request.state {
            State::Prefetching if self.config.mutant.leaves_prefetch() => self.requests.wait(id),
            State::Loading => self.ready(id),
            State::WritingBack => self.end_request(id, Ending::Finished),
            _ => {}
        }
    }

    fn saved(&mut self, op: &LiveOp, leading: u32) {
        let mutant = self.config.mutant;
        let is_urgent = self.writes.take_urgent(op.id);
        for (at, item) in (0..).zip(&op.items) {
            let Some(cell) = item.cell else { continue };
            if at >= leading && is_urgent {
                self.inventory.give_up_saving(cell);
            }
            if settle(&mut self.inventory, op.id, cell, Tier::Host, at < leading, mutant)
                == Some(Settled::Published)
            {
                self.stats.saved += 1;
                self.stats.written_back += u64::from(is_urgent);
                if self.config.store.is_some() && self.inventory.cell(cell).stored == Stored::Unknown {
                    self.stats.backups_skipped += u64::from(!self.writes.queue_backup(cell));
                }
            }
            self.inventory.unpin(cell, Tier::Device);
        }
        self.writes.report(&mut self.inventory);
    }

    /// The operation is past its deadline: waiting requests continue without it. It keeps its pages and pins
    /// until its own end (O3).
    pub(super) fn overdue(&mut self, id: OpId) {
        if self.is_purged(id) {
            return;
        }
        let Some(op) = self.ledger.find(id) else { return };
        if op.is_abandoned {
            self.effects.push(Effect::CancelHint(id));
            return;
        }
        let (waiters, kind) = (op.waiters.clone(), op.kind);
        self.cooldown.begin(kind, self.now, &self.config);
        self.abandon(id);
        if kind == OpKind::Save {
            self.writes.save_is_stuck(id);
            self.writes.report(&mut self.inventory);
        }
        for request in waiters {
            if let Some(op) = self.ledger.find_mut(id) {
                op.waiters.remove(&request);
            }
            self.stop_waiting(request, id);
        }
    }

    /// Abandons an operation that no request waits for: the shell is asked to stop it, and to report its end.
    pub(super) fn abandon(&mut self, id: OpId) {
        let Some(op) = self.ledger.find_mut(id) else { return };
        if std::mem::replace(&mut op.is_abandoned, true) {
            return;
        }
        self.stats.abandoned += 1;
        let targets = target_tier(op.kind);
        let cells: Vec<_> = op.items.iter().filter_map(|item| item.cell).collect();
        for cell in cells.into_iter().filter(|_| targets.is_some()) {
            self.inventory.quarantine(cell, targets.unwrap_or(Tier::Host), id);
        }
        self.ledger.set_alarm(id, self.now + self.config.hint_interval);
        self.effects.push(Effect::CancelHint(id));
    }
}

/// Publishes fetched pages.
fn fetched(inventory: &mut Inventory, stats: &mut Stats, op: &LiveOp, leading: u32, mutant: Mutant) {
    for (at, item) in (0..).zip(&op.items) {
        let Some(cell) = item.cell else { continue };
        if settle(inventory, op.id, cell, Tier::Host, at < leading, mutant) == Some(Settled::Published) {
            stats.fetched += 1;
            let cell = inventory.cell_mut(cell);
            cell.is_prefetched = true;
            cell.stored = Stored::Yes;
        }
    }
}

/// Publishes loaded pages, and unpins their sources.
fn loaded(inventory: &mut Inventory, stats: &mut Stats, op: &LiveOp, leading: u32, mutant: Mutant) {
    for (at, item) in (0..).zip(&op.items) {
        let Some(cell) = item.cell else { continue };
        let settled = settle(inventory, op.id, cell, Tier::Device, at < leading, mutant);
        stats.loaded += u64::from(settled == Some(Settled::Published));
        inventory.unpin(cell, Tier::Host);
    }
}

/// Records what the store has, and unpins the sources.
fn backed_up(inventory: &mut Inventory, stats: &mut Stats, op: &LiveOp, leading: u32, mutant: Mutant) {
    for (at, item) in (0..).zip(&op.items) {
        let is_stored = mutant.is_backed_up(at < leading);
        stats.backed_up += u64::from(is_stored);
        let Some(id) = mutants::backup_source(inventory, item, mutant) else {
            continue;
        };
        let cell = inventory.cell_mut(id);
        cell.stored = if is_stored { Stored::Yes } else { Stored::Unknown };
        mutants::unpin_backup(inventory, id, mutant);
    }
}

/// Publishes or drops the copy of an operation; nothing if a mutant has done that before.
fn settle(
    inventory: &mut Inventory,
    op: OpId,
    cell: CellId,
    tier: Tier,
    is_good: bool,
    mutant: Mutant,
) -> Option<Settled> {
    let is_early = mutants::is_settled_early(inventory, op, cell, tier, mutant);
    (!is_early).then(|| inventory.settle(cell, tier, op, is_good))
}

/// The tier that an operation writes.
pub(super) fn target_tier(kind: OpKind) -> Option<Tier> {
    match kind {
        OpKind::Fetch | OpKind::Save => Some(Tier::Host),
        OpKind::Load => Some(Tier::Device),
        OpKind::Probe | OpKind::Backup | OpKind::Drop => None,
    }
}

/// The tier that an operation reads, and where it pins its pages.
pub(super) fn source_tier(kind: OpKind) -> Option<Tier> {
    match kind {
        OpKind::Load | OpKind::Backup => Some(Tier::Host),
        OpKind::Save => Some(Tier::Device),
        OpKind::Probe | OpKind::Fetch | OpKind::Drop => None,
    }
}
