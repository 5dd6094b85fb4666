//! The operations under way. They own the pins and the pages that they use; requests do not (O1).
//!
//! **Invariants.** An operation is in the ledger from its issue until its own end is heard of, whatever
//! happens to whoever wanted it (O1, O3), and then never again (L1). What it holds of its lane's budget is
//! taken when it is issued and given back when it leaves, once (L8).

use std::collections::{BTreeMap, BTreeSet};

use crate::config::Budgets;
use crate::hash::ChainHash;
use crate::index::RootId;
use crate::inventory::CellId;
use crate::message::{OpId, OpKind, Operation, PageRecord, ReqId, SpaceId, Tick};
use crate::ranks::Votes;
use crate::sabotage::{Sabotage, sabotaged};

/// A page of an operation, and the cell that it is of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    pub(crate) record: PageRecord,
    /// None in a question about pages that nothing here stands for.
    pub(crate) cell: Option<CellId>,
}

/// An operation under way.
#[derive(Clone, Debug)]
pub(crate) struct LiveOp {
    pub(crate) id: OpId,
    pub(crate) kind: OpKind,
    pub(crate) space: SpaceId,
    pub(crate) root: RootId,
    /// The same as the store knows it.
    pub(crate) root_hash: ChainHash,
    pub(crate) items: Vec<Item>,
    /// How many of its records, counted from the first, can still count.
    pub(crate) cut: u32,
    pub(crate) deadline: Tick,
    /// Requests that go on when it ends.
    pub(crate) waiters: BTreeSet<ReqId>,
    /// Nobody waits for it any more, and it was told to stop.
    pub(crate) is_abandoned: bool,
    pub(crate) votes: Votes,
    alarm: Tick,
    /// What it has of its lane's budget.
    share: u32,
}

/// What a new operation is.
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

/// All of them.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    ops: BTreeMap<OpId, LiveOp>,
    alarms: BTreeSet<(Tick, OpId)>,
    in_flight: [u32; OpKind::ALL.len()],
    budgets: Budgets,
    issued: u64,
    ranks: u32,
    sabotage: Sabotage,
}

impl Ledger {
    pub(crate) fn new(budgets: Budgets, ranks: u32, sabotage: Sabotage) -> Self {
        Self {
            ops: BTreeMap::new(),
            alarms: BTreeSet::new(),
            in_flight: [0; OpKind::ALL.len()],
            budgets,
            issued: 0,
            ranks,
            sabotage,
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

    /// The operation has ended, and everything that it held is to be given back by whoever asks.
    pub(crate) fn close(&mut self, id: OpId) -> Option<LiveOp> {
        let op = self.ops.remove(&id)?;
        self.alarms.remove(&(op.alarm, id));
        let twice = sabotaged!(self.sabotage, ReturnBudgetTwice);
        let lane = self.lane(op.kind);
        *lane = if twice { lane.saturating_sub(2 * op.share) } else { *lane - op.share };
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

    /// Who may still be waited for.
    pub(crate) fn is_joinable(&self, id: OpId) -> bool {
        self.ops.get(&id).is_some_and(|op| !op.is_abandoned)
    }

    /// How much more of this kind may be issued (L8).
    pub(crate) fn room(&self, kind: OpKind) -> u32 {
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

    /// The operations whose alarm is due; each is asked about again at the time that it is given.
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

    /// The operation is told to stop: the next hint is due then.
    pub(crate) fn set_alarm(&mut self, id: OpId, at: Tick) {
        if let Some(op) = self.ops.get_mut(&id) {
            self.alarms.remove(&(op.alarm, id));
            op.alarm = at;
            self.alarms.insert((at, id));
        }
    }

    fn lane_of(&self, kind: OpKind) -> usize {
        let shared = sabotaged!(self.sabotage, SharedLane) && kind == OpKind::Backup;
        if shared { OpKind::Fetch as usize } else { kind as usize }
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
                return Err(("L8", format!("{kind:?} has {shares} in flight, its books say {lane}")));
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
