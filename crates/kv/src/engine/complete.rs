//! The end of operations: what they brought counts or not, what they held is given back, who waited goes on.

use super::{Effect, Engine, Item, LiveOp, OpId, OpKind, Outcome, ReqId, Residency, State, Tier, sabotaged};
use crate::inventory::{CellId, Settled, Stored};
use crate::message::{Ending, Refusal};
use crate::ranks::{LocalAcks, Votes};

impl Engine {
    /// An operation ended, and this rank is the only one.
    pub(super) fn complete(&mut self, op: OpId, outcome: Outcome) {
        let op = self.confuse_op(op);
        if self.ledger.find(op).is_none() {
            self.stats.stray_acks += 1;
        } else if sabotaged!(self.config.sabotage, NoticeLate) {
            self.unnoticed.push((op, outcome));
        } else {
            self.end(op, outcome);
        }
    }

    /// An operation ended on this rank: that is kept until all have agreed.
    pub(super) fn hear(&mut self, op: OpId, outcome: Outcome) {
        let op = self.confuse_op(op);
        let has_voted = self.ledger.find(op).is_none_or(|live| live.votes.has(self.config.rank));
        if has_voted || self.heard.contains_key(&op) {
            self.stats.stray_acks += 1;
        } else {
            self.heard.insert(op, outcome);
        }
    }

    /// What all ranks heard of. Operations end in the order of their ids, whatever the order in which they
    /// were heard of.
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
                if sabotaged!(self.config.sabotage, ForgetBackupAcks) && live.kind == OpKind::Backup {
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
                self.heard.remove(op);
            }
        }
        for op in touched {
            let result = self.ledger.find(op).and_then(|live| self.result(&live.votes));
            if let Some(outcome) = result {
                self.end(op, outcome);
            }
        }
    }

    fn result(&self, votes: &Votes) -> Option<Outcome> {
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

    /// The operation has ended everywhere. It happens once (L1).
    pub(super) fn end(&mut self, id: OpId, outcome: Outcome) {
        let kept =
            sabotaged!(self.config.sabotage, ApplyTwice).then(|| self.ledger.find(id).cloned()).flatten();
        let Some(op) = kept.or_else(|| self.ledger.close(id)) else {
            self.stats.stray_acks += 1;
            return;
        };
        self.heard.remove(&id);
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
            Outcome::Failed
                if sabotaged!(self.config.sabotage, IgnoreSaveFailure) && op.kind == OpKind::Save =>
            {
                count
            }
            Outcome::Failed => 0,
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
            self.go_on(request, id);
        }
    }

    /// A request that waited for the operation waits for one less.
    fn go_on(&mut self, id: ReqId, op: OpId) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.waits.remove(&op);
        if !request.waits.is_empty() {
            return;
        }
        match request.state {
            State::Prefetching if sabotaged!(self.config.sabotage, NoExitFromPrefetch) => {}
            State::Prefetching => self.wait(id),
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
        let makes_room = self.room_saves.remove(&op.id);
        for (at, item) in (0..).zip(&op.items) {
            let Some(cell) = item.cell else { continue };
            if at >= leading && makes_room {
                self.inventory.give_up_saving(cell);
            }
            if self.settle(op.id, cell, Tier::Host, at < leading) == Some(Settled::Published) {
                self.stats.saved += 1;
                self.stats.written_back += u64::from(makes_room);
                self.queue_backup(cell);
            }
            self.inventory.unpin(cell, Tier::Device);
        }
        self.tell_saving();
    }

    fn backed_up(&mut self, op: &LiveOp, leading: u32) {
        for (at, item) in (0..).zip(&op.items) {
            let Some(id) = item.cell else { continue };
            let is_stored = at < leading || sabotaged!(self.config.sabotage, BelieveFailedBackup);
            self.stats.backed_up += u64::from(is_stored);
            let is_gone = self.inventory.find(id).is_none();
            if is_gone && sabotaged!(self.config.sabotage, UnpinnedBackup) {
                continue;
            }
            let cell = self.inventory.cell_mut(id);
            cell.stored = if is_stored { Stored::Yes } else { Stored::Unknown };
            if !sabotaged!(self.config.sabotage, UnpinnedBackup) {
                self.inventory.unpin(id, Tier::Host);
            }
        }
    }

    /// What the operation was to bring: nothing, where a broken rule has taken it away before.
    fn settle(&mut self, op: OpId, cell: CellId, tier: Tier, is_good: bool) -> Option<Settled> {
        let sabotage = self.config.sabotage;
        let mut is_taken = sabotaged!(sabotage, PublishSaveEarly);
        is_taken |= sabotaged!(sabotage, PublishLoadEarly);
        is_taken |= sabotaged!(sabotage, FreeLosingTarget);
        let residency = self.inventory.find(cell).map(|cell| cell.residency(tier));
        let is_pending = matches!(residency, Some(Residency::Pending(by, _)) if by == op);
        if is_taken && !is_pending {
            return None;
        }
        Some(self.inventory.settle(cell, tier, op, is_good))
    }

    /// Its time is over: whoever waits goes on without it. It keeps what it uses until its own end (O3).
    pub(super) fn overdue(&mut self, id: OpId) {
        if sabotaged!(self.config.sabotage, PurgeLive) {
            return self.forget_op(id);
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
            // Nobody waits for room behind it: what cannot be saved meanwhile is computed again if need be.
            self.stuck_saves += 1;
            self.room_saves.remove(&id);
            self.tell_saving();
        }
        for request in waiters {
            if let Some(op) = self.ledger.find_mut(id) {
                op.waiters.remove(&request);
            }
            self.go_on(request, id);
        }
    }

    /// The store failed, or was too slow: nobody asks it for a while, so that not every request finds out by
    /// itself how long that takes.
    fn cool(&mut self, kind: OpKind) {
        if matches!(kind, OpKind::Probe | OpKind::Fetch) && self.config.cooldown > 0 {
            self.cool_until = self.cool_until.max(self.now + self.config.cooldown);
        }
    }

    /// Nobody waits for the operation any more: it is asked to stop, and to say (again) how it ended.
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

    // ---- Broken rules.

    /// One result for all: whatever ends, the latest of its kind did.
    fn confuse_op(&self, op: OpId) -> OpId {
        if !sabotaged!(self.config.sabotage, LatestOutcome) {
            return op;
        }
        let kind = self.ledger.find(op).map(|live| live.kind);
        let same = |live: &&LiveOp| Some(live.kind) == kind;
        self.ledger.iter().filter(same).map(|live| live.id).max().unwrap_or(op)
    }

    /// The operation is forgotten and its pages are free, although it still uses them.
    fn forget_op(&mut self, id: OpId) {
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
            self.go_on(request, id);
        }
    }

    pub(super) fn forget_ops_of(&mut self, request: ReqId) {
        let waits: Vec<_> = self.request(request).waits.iter().copied().collect();
        for op in waits {
            let alone = self.ledger.find(op).is_some_and(|live| live.waiters.len() == 1);
            if alone {
                if let Some(live) = self.ledger.find_mut(op) {
                    live.waiters.clear();
                }
                self.forget_op(op);
            }
        }
    }

    pub(super) fn unpin_ops_of(&mut self, request: ReqId) {
        for op in self.request(request).waits.clone() {
            let Some(live) = self.ledger.find(op) else { continue };
            let Some(tier) = source_tier(live.kind) else { continue };
            let cells: Vec<_> = live.items.iter().filter_map(|item| item.cell).collect();
            cells.into_iter().for_each(|cell| self.inventory.unpin(cell, tier));
        }
    }

    /// A copy that is still brought loses against the one that was computed, and its page is free.
    pub(super) fn free_losing_target(&mut self, cell: CellId) {
        if let Residency::Pending(op, _) = self.inventory.cell(cell).residency(Tier::Device) {
            self.inventory.hold(cell, Tier::Host);
            self.inventory.settle(cell, Tier::Device, op, false);
            self.inventory.release(cell, Tier::Host);
        }
    }
}

/// Where an operation brings pages to.
pub(super) fn target_tier(kind: OpKind) -> Option<Tier> {
    match kind {
        OpKind::Fetch | OpKind::Save => Some(Tier::Host),
        OpKind::Load => Some(Tier::Device),
        OpKind::Probe | OpKind::Backup | OpKind::Drop => None,
    }
}

/// Where an operation reads pages that it pins.
pub(super) fn source_tier(kind: OpKind) -> Option<Tier> {
    match kind {
        OpKind::Load | OpKind::Backup => Some(Tier::Host),
        OpKind::Save => Some(Tier::Device),
        OpKind::Probe | OpKind::Fetch | OpKind::Drop => None,
    }
}
