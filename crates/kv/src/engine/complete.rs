//! The end of operations: their copies are published or dropped, their pins and budgets are released, and
//! waiting requests continue.

use super::{Effect, Engine, LiveOp, OpId, OpKind, Outcome, ReqId, State, Tier};
use crate::cell::{CellId, Stored};
use crate::inventory::Settled;
use crate::message::{Ending, Refusal};
use crate::ranks::LocalAcks;

impl Engine {
    /// Ends an operation, where there is one rank.
    pub(super) fn complete(&mut self, op: OpId, outcome: Outcome) {
        let op = self.acknowledged(op);
        if self.ledger.find(op).is_none() {
            self.stats.stray_acks += 1;
        } else {
            self.apply_outcome(op, outcome);
        }
    }

    /// Keeps the completion of an operation on this rank until all ranks have agreed.
    pub(super) fn keep_local(&mut self, op: OpId, outcome: Outcome) {
        let op = self.acknowledged(op);
        let has_voted = self.ledger.find(op).is_none_or(|live| live.votes.has(self.config.rank));
        if has_voted || self.local_acks.contains_key(&op) {
            self.stats.stray_acks += 1;
        } else {
            self.local_acks.insert(op, outcome);
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
                if !self.config.sabotage.counts_acks(live.kind == OpKind::Backup) {
                    continue;
                }
                if !live.votes.cast(rank, *outcome) {
                    self.stats.stray_acks += 1;
                }
                touched.insert(*op);
            }
        }
        if let Some(LocalAcks(own)) = acks.get(self.config.rank as usize) {
            for (op, _) in own {
                self.local_acks.remove(op);
            }
        }
        for op in touched {
            let result = self.ledger.find(op).and_then(|live| self.agreed_outcome(&live.votes));
            if let Some(outcome) = result {
                self.end(op, outcome);
            }
        }
    }

    /// Ends an operation that has ended on every rank. It happens once (L1).
    pub(super) fn end(&mut self, id: OpId, outcome: Outcome) {
        let Some(op) = self.take_ended(id) else {
            self.stats.stray_acks += 1;
            return;
        };
        self.local_acks.remove(&id);
        if op.kind == OpKind::Save && op.is_abandoned && self.ledger.find(id).is_none() {
            self.stuck_saves -= 1;
        }
        if outcome == Outcome::Failed && !op.is_abandoned {
            self.cool(op.kind);
        }
        let count = op.items.len() as u32;
        let leading = match outcome {
            Outcome::Done { leading } if leading > count && op.kind != OpKind::Drop => {
                self.stats.excessive_acks += 1;
                count
            }
            Outcome::Done { leading } => leading,
            Outcome::Failed => self.config.sabotage.pages_of_failed(op.kind == OpKind::Save, count),
        };
        let leading = leading.min(op.cut);
        match op.kind {
            OpKind::Probe => self.probed(&op, leading),
            OpKind::Fetch => self.fetched(&op, leading),
            OpKind::Load => self.loaded(&op, leading),
            OpKind::Save => self.saved(&op, leading),
            OpKind::Backup => self.backed_up(&op, leading),
            OpKind::Drop => self.dropped(&op, outcome != Outcome::Failed),
        }
        for request in op.waiters {
            self.stop_waiting(request, id);
        }
    }

    /// A request no longer waits for this operation; without any other it continues.
    pub(super) fn stop_waiting(&mut self, id: ReqId, op: OpId) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.waits.remove(&op);
        if !request.waits.is_empty() {
            return;
        }
        match request.state {
            State::Prefetching if self.config.sabotage.leaves_prefetch() => self.wait(id),
            State::Loading => self.ready(id),
            State::WritingBack => self.end_request(id, Ending::Finished),
            _ => {}
        }
    }

    fn fetched(&mut self, op: &LiveOp, leading: u32) {
        for (at, item) in (0..).zip(&op.items) {
            let Some(cell) = item.cell else { continue };
            if self.settle(op.id, cell, Tier::Host, at < leading) == Some(Settled::Published) {
                self.stats.fetched += 1;
                let cell = self.inventory.cell_mut(cell);
                cell.is_prefetched = true;
                cell.stored = Stored::Yes;
            }
        }
    }

    fn loaded(&mut self, op: &LiveOp, leading: u32) {
        for (at, item) in (0..).zip(&op.items) {
            let Some(cell) = item.cell else { continue };
            let settled = self.settle(op.id, cell, Tier::Device, at < leading);
            self.stats.loaded += u64::from(settled == Some(Settled::Published));
            self.inventory.unpin(cell, Tier::Host);
        }
    }

    fn saved(&mut self, op: &LiveOp, leading: u32) {
        let is_urgent = self.urgent_saves.remove(&op.id);
        for (at, item) in (0..).zip(&op.items) {
            let Some(cell) = item.cell else { continue };
            if at >= leading && is_urgent {
                self.inventory.give_up_saving(cell);
            }
            if self.settle(op.id, cell, Tier::Host, at < leading) == Some(Settled::Published) {
                self.stats.saved += 1;
                self.stats.written_back += u64::from(is_urgent);
                self.queue_backup(cell);
            }
            self.inventory.unpin(cell, Tier::Device);
        }
        self.report_saving();
    }

    fn backed_up(&mut self, op: &LiveOp, leading: u32) {
        for (at, item) in (0..).zip(&op.items) {
            let is_stored = self.config.sabotage.is_backed_up(at < leading);
            self.stats.backed_up += u64::from(is_stored);
            let Some(id) = self.backup_source(item) else { continue };
            let cell = self.inventory.cell_mut(id);
            cell.stored = if is_stored { Stored::Yes } else { Stored::Unknown };
            self.unpin_backup(id);
        }
    }

    /// Publishes or drops the copy of an operation; nothing if a mutant has done that before.
    fn settle(&mut self, op: OpId, cell: CellId, tier: Tier, is_good: bool) -> Option<Settled> {
        if self.is_settled_early(op, cell, tier) {
            return None;
        }
        Some(self.inventory.settle(cell, tier, op, is_good))
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
        self.cool(kind);
        self.abandon(id);
        if kind == OpKind::Save {
            // No request waits for its pages: those that cannot be saved may be lost.
            self.stuck_saves += 1;
            self.urgent_saves.remove(&id);
            self.report_saving();
        }
        for request in waiters {
            if let Some(op) = self.ledger.find_mut(id) {
                op.waiters.remove(&request);
            }
            self.stop_waiting(request, id);
        }
    }

    /// The store failed, or was too slow. Requests do not probe it for a while, so that each does not wait
    /// for a timeout of its own.
    fn cool(&mut self, kind: OpKind) {
        if matches!(kind, OpKind::Probe | OpKind::Fetch) && self.config.cooldown > 0 {
            self.cool_until = self.cool_until.max(self.now + self.config.cooldown);
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
        self.ledger.set_alarm(id, self.now + self.config.hint_patience);
        self.effects.push(Effect::CancelHint(id));
    }
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
