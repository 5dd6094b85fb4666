//! The operations in flight. They own the pins and the pages that they use; requests do not (O1).
//!
//! **Invariants.** An operation is in the ledger from its issue until its completion is received, whatever
//! happens to its request (O1, O3), and then never again (L1). Its share of the budget is taken when it is
//! issued and returned when it leaves, once (L8).

use std::collections::{BTreeMap, BTreeSet};

use crate::cell::{CellId, RootId};
use crate::config::Budgets;
use crate::hash::ChainHash;
use crate::message::{OpId, OpKind, Operation, PageRecord, ReqId, SpaceId, Tick};
use crate::mutant::Mutant;
use crate::ranks::Votes;

/// A page of an operation, and the cell that it is of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) record: PageRecord,
    /// None for pages of a probe, which have no cell.
    pub(crate) cell: Option<CellId>,
}

/// An operation in flight.
#[derive(Clone, Debug)]
pub(crate) struct LiveOp {
    pub(crate) id: OpId,
    pub(crate) kind: OpKind,
    pub(crate) space: SpaceId,
    pub(crate) root: RootId,
    /// The root as the store knows it.
    pub(crate) root_hash: ChainHash,
    pub(crate) items: Vec<Item>,
    /// Number of leading records that can still succeed.
    pub(crate) cut: u32,
    pub(crate) deadline: Tick,
    /// Requests that wait for its end.
    pub(crate) waiters: BTreeSet<ReqId>,
    /// No request waits for it any more, and the shell was asked to stop it.
    pub(crate) is_abandoned: bool,
    pub(crate) votes: Votes,
    alarm: Tick,
    /// Its share of the budget.
    share: u32,
}

/// A new operation.
pub(crate) struct Order {
    pub(crate) id: OpId,
    pub(crate) kind: OpKind,
    pub(crate) space: SpaceId,
    pub(crate) root: RootId,
    pub(crate) root_hash: ChainHash,
    pub(crate) items: Vec<Item>,
    pub(crate) deadline: Tick,
    pub(crate) waiter: Option<ReqId>,
}

/// All operations in flight.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    ops: BTreeMap<OpId, LiveOp>,
    alarms: BTreeSet<(Tick, OpId)>,
    in_flight: [u32; OpKind::ALL.len()],
    budgets: Budgets,
    issued: u64,
    ranks: u32,
    mutant: Mutant,
}

impl Ledger {
    pub(crate) fn new(budgets: Budgets, ranks: u32, mutant: Mutant) -> Self {
        Self {
            ops: BTreeMap::new(),
            alarms: BTreeSet::new(),
            in_flight: [0; OpKind::ALL.len()],
            budgets,
            issued: 0,
            ranks,
            mutant,
        }
    }

    /// The id of an operation that is about to be issued.
    pub(crate) fn next_id(&mut self) -> OpId {
        self.issued += 1;
        OpId(self.issued)
    }

    pub(crate) fn issue(&mut self, order: Order) -> Operation {
        let Order { id, kind, space, root, root_hash, items, deadline, waiter } = order;
        let records: Vec<_> = items.iter().map(|item| item.record).collect();
        let share = if kind == OpKind::Probe { 1 } else { records.len() as u32 };
        let op = LiveOp {
            id,
            kind,
            space,
            root,
            root_hash,
            cut: records.len() as u32,
            items,
            deadline,
            waiters: waiter.into_iter().collect(),
            is_abandoned: false,
            votes: Votes::new(self.ranks),
            alarm: deadline,
            share,
        };
        *self.lane(kind) += share;
        self.alarms.insert((deadline, id));
        let was = self.ops.insert(id, op);
        assert!(was.is_none(), "L1: {id:?} is issued twice");
        Operation { id, kind, root: root_hash, records, request: waiter, deadline }
    }

    /// Removes an operation that has ended. The caller releases what it held.
    pub(crate) fn close(&mut self, id: OpId) -> Option<LiveOp> {
        let op = self.ops.remove(&id)?;
        self.alarms.remove(&(op.alarm, id));
        let mutant = self.mutant;
        let used = self.lane(op.kind);
        *used = mutant.budget_used_after(*used, op.share);
        Some(op)
    }

    pub(crate) fn find(&self, id: OpId) -> Option<&LiveOp> {
        self.ops.get(&id)
    }

    pub(crate) fn find_mut(&mut self, id: OpId) -> Option<&mut LiveOp> {
        self.ops.get_mut(&id)
    }

    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LiveOp> {
        self.ops.values()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut LiveOp> {
        self.ops.values_mut()
    }

    /// Whether a request may wait for this operation.
    pub(crate) fn is_joinable(&self, id: OpId) -> bool {
        self.ops.get(&id).is_some_and(|op| !op.is_abandoned)
    }

    /// Number of pages, or probes, of this kind that may still be issued (L8).
    pub(crate) fn budget_left(&self, kind: OpKind) -> u32 {
        let used = self.in_flight(kind);
        self.budget(kind).map_or(u32::MAX, |budget| budget.saturating_sub(used))
    }

    pub(crate) fn in_flight(&self, kind: OpKind) -> u32 {
        self.in_flight.get(self.lane_of(kind)).copied().unwrap_or_default()
    }

    pub(crate) fn budget(&self, kind: OpKind) -> Option<u32> {
        match kind {
            OpKind::Probe => Some(self.budgets.probes),
            OpKind::Fetch => Some(self.budgets.fetch_pages),
            OpKind::Save => Some(self.budgets.save_pages),
            OpKind::Backup => Some(self.budgets.backup_pages),
            OpKind::Load | OpKind::Drop => None,
        }
    }

    /// The operations whose alarm is due. Their next alarm is at `again`.
    pub(crate) fn due(&mut self, now: Tick, again: Tick) -> Vec<OpId> {
        let mut due = Vec::new();
        while let Some(&(at, id)) = self.alarms.first()
            && at <= now
        {
            self.alarms.pop_first();
            self.alarms.insert((again, id));
            if let Some(op) = self.ops.get_mut(&id) {
                op.alarm = again;
            }
            due.push(id);
        }
        due
    }

    pub(crate) fn next_alarm(&self) -> Option<Tick> {
        self.alarms.first().map(|(at, _)| *at)
    }

    /// Sets when the next hint to stop this operation is due.
    pub(crate) fn set_alarm(&mut self, id: OpId, at: Tick) {
        if let Some(op) = self.ops.get_mut(&id) {
            self.alarms.remove(&(op.alarm, id));
            op.alarm = at;
            self.alarms.insert((at, id));
        }
    }

    fn lane_of(&self, kind: OpKind) -> usize {
        match kind {
            OpKind::Backup => self.mutant.lane_of_backups(kind as usize, OpKind::Fetch as usize),
            _ => kind as usize,
        }
    }

    fn lane(&mut self, kind: OpKind) -> &mut u32 {
        let lane = self.lane_of(kind);
        self.in_flight.get_mut(lane).expect("every kind has a lane")
    }

    /// Whether the budgets agree with the operations, and none is exceeded (L8).
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        for kind in OpKind::ALL {
            let shares: u32 = self.ops.values().filter(|op| op.kind == kind).map(|op| op.share).sum();
            let lane = self.in_flight(kind);
            if lane != shares {
                return Err(("L8", format!("{kind:?} has {shares} in flight, its counter says {lane}")));
            }
            if self.budget(kind).is_some_and(|budget| budget < lane) {
                return Err(("L8", format!("{kind:?} has {lane} of {:?} in flight", self.budget(kind))));
            }
        }
        let alarms: BTreeSet<_> = self.ops.values().map(|op| (op.alarm, op.id)).collect();
        if alarms != self.alarms {
            return Err(("L1", "an operation has no alarm, or an alarm no operation".to_owned()));
        }
        Ok(())
    }
}
