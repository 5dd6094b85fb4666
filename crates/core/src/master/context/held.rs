//! Copies of replaced objects that are retired after their successors are stored. If the master dies between
//! both, the old object exists, the new one, or both.

use std::collections::BTreeMap;

use crate::{
    RequestId, SlotRef,
    master::{OpId, catalog::NodeIndex},
};

/// What a home node has been told of the copies that its new objects replace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::master) enum HeldStage {
    /// Nothing yet.
    #[default]
    Held,
    /// The message about the successors retires them as well, behind these.
    Sent,
    /// The same, and no reader validates them.
    Withdrawn,
}

/// Copies of replaced objects that have successors in one message.
#[derive(Debug)]
pub(in crate::master) struct HeldRetire {
    /// The node of the successors.
    pub(in crate::master) home: NodeIndex,
    pub(in crate::master) copies: Vec<(NodeIndex, SlotRef)>,
    /// The operation whose answer waits for the retires.
    pub(in crate::master) op: OpId,
    pub(in crate::master) stage: HeldStage,
}

impl HeldRetire {
    fn slot_refs(&self) -> Vec<SlotRef> {
        self.copies.iter().map(|it| it.1).collect()
    }
}

/// All of them, by the message about the successors.
#[derive(Debug, Default)]
pub(in crate::master) struct HeldRetires(BTreeMap<RequestId, HeldRetire>);

impl HeldRetires {
    pub(in crate::master) fn insert(&mut self, id: RequestId, held: HeldRetire) {
        self.0.insert(id, held);
    }

    pub(in crate::master) fn contains(&self, id: RequestId) -> bool {
        self.0.contains_key(&id)
    }

    /// Whether that message retires them.
    pub(in crate::master) fn is_sent(&self, id: RequestId) -> bool {
        self.0.get(&id).is_some_and(|it| it.stage != HeldStage::Held)
    }

    /// Whether a copy is to be retired, and may be read until then.
    pub(in crate::master) fn has(&self, copy: (NodeIndex, SlotRef)) -> bool {
        self.0.values().any(|it| it.stage != HeldStage::Withdrawn && it.copies.contains(&copy))
    }

    /// Whether a copy is to be retired, and no open message does that. What is sent behind an open message
    /// arrives behind it.
    pub(in crate::master) fn has_unsent(
        &self,
        copy: (NodeIndex, SlotRef),
        is_open: impl Fn(RequestId) -> bool,
    ) -> bool {
        let is_unsent = |(id, it): &(&RequestId, &HeldRetire)| it.stage == HeldStage::Held || !is_open(**id);
        self.0.iter().filter(is_unsent).any(|(_, it)| it.copies.contains(&copy))
    }

    pub(in crate::master) fn take(&mut self, id: RequestId) -> Option<HeldRetire> {
        self.0.remove(&id)
    }

    /// The node has applied that message: takes what it has retired.
    pub(in crate::master) fn take_sent(&mut self, id: RequestId) -> Option<Vec<SlotRef>> {
        if !self.is_sent(id) {
            return None;
        }
        self.take(id).map(|it| it.slot_refs())
    }

    /// That message may be lost: takes what no reader validates any more. The rest stays until the node has
    /// stored the successors.
    pub(in crate::master) fn take_withdrawn(&mut self, id: RequestId) -> Option<Vec<SlotRef>> {
        self.0.get(&id).filter(|it| it.stage == HeldStage::Withdrawn)?;
        self.take_sent(id)
    }

    /// That message is certain to reach the node. Returns what it retires, if that is not withdrawn yet.
    pub(in crate::master) fn withdraw(&mut self, id: RequestId) -> Option<Vec<SlotRef>> {
        let held = self.0.get_mut(&id).filter(|it| it.stage == HeldStage::Sent)?;
        held.stage = HeldStage::Withdrawn;
        Some(held.slot_refs())
    }

    /// Takes those of a home node whose message is not open.
    pub(in crate::master) fn take_closed(
        &mut self,
        home: NodeIndex,
        is_open: impl Fn(RequestId) -> bool,
    ) -> Vec<HeldRetire> {
        let closed = self.0.extract_if(.., |id, it| it.home == home && !is_open(*id));
        closed.map(|(_, it)| it).collect()
    }

    /// A node is lost, and its copies with it. Another member may get its index.
    pub(in crate::master) fn forget(&mut self, node: NodeIndex) {
        self.0.values_mut().for_each(|it| it.copies.retain(|(at, _)| *at != node));
    }

    pub(in crate::master) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
