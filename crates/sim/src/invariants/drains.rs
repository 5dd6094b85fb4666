//! Drain jobs: a node with a job takes no new objects. After the faults every job has ended: its nodes are
//! empty, or in use again, and the master knows which.

use tiffin_core::master::Master;
use tiffin_node::{Node, SlotRecord};
use tiffin_types::{SlotId, SlotRef, message::Usage};

use crate::{coverage::Point, node::NodeShell, world::World};

impl World {
    /// A slot of a node is written: not for a new use, if the node is drained.
    pub(crate) fn check_drained(&mut self, node: Option<usize>, slot: SlotId, record: &SlotRecord) {
        let shell = node.and_then(|it| self.nodes.get(it)).filter(|it| it.draining.is_some());
        let Some(shell) = shell else { return };
        self.coverage.hit(Point::CheckedDrained);
        let memory = self.memories.get(&shell.segment);
        let slot_ref = SlotRef { slot, stamp: record.stamp };
        let is_new = memory.is_some_and(|it| it.load(slot_ref).is_none());
        if is_new && record.state.writer().is_some() {
            let segment = shell.segment;
            self.oracle.fail("drain", || format!("{segment} is drained, and reserves {record:?}"));
        }
    }

    /// After the faults, a node has a job exactly if that has succeeded. Then it is empty, and the master
    /// uses it no more. All other nodes are in use.
    pub(crate) fn check_drains_ended(&mut self) {
        if !self.plan.has_drains {
            return;
        }
        self.coverage.hit(Point::CheckedDrainsEnded);
        let Some(master) = &self.master else { return };
        let failed = self.nodes.iter().find_map(|shell| is_amiss(shell, master));
        if let Some(what) = failed {
            self.oracle.fail("drain", || what);
        }
    }
}

fn is_amiss(shell: &NodeShell, master: &Master) -> Option<String> {
    let core = shell.core.as_ref()?;
    let (own, phase) = (core.usage(), master.drain_phase(shell.segment));
    let known = master.stat().nodes.into_iter().find(|it| it.info.segment == shell.segment)?.usage;
    let is_drained = shell.draining.is_some();
    let is_empty = core.inventory().is_empty();
    let has_capacity = own.capacity > 0 || known.capacity > 0;
    let is_used = own.capacity > 0 && known.capacity > 0;
    let is_right = match is_drained {
        true => is_empty && !has_capacity && phase == Some(true),
        false => is_used && phase.is_none(),
    };
    let segment = shell.segment;
    let what = || {
        format!("{segment} is drained: {is_drained}, and shows {own:?}; the master knows {phase:?} {known:?}")
    };
    (!is_right).then(what)
}

/// The usage of a node that is drained says that nothing is free, and has no total.
pub(super) fn is_usage_of_drained(usage: &Usage, capacity: u64) -> bool {
    let used = usage.granted + usage.committed + usage.held + usage.metadata;
    (usage.capacity, usage.free) == (0, 0) && used <= capacity
}

/// Whether nothing is left on a node that was drained.
pub(super) fn is_drained_to_nothing(node: &Node) -> bool {
    let Usage { capacity, granted, committed, held, objects, offered, .. } = node.usage();
    (capacity, granted, committed, held, objects, offered) == (0, 0, 0, 0, 0, 0)
}
