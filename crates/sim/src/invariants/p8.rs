//! P8: an acknowledged published object stays on its node until the master retires it, whatever crashes in
//! between. Exempt is what a node with a pool had not read when its process ended, if the master ends, too,
//! before the node returns. An object that the master has named without its node exists when the node
//! returns.

use tiffin_node::SlotState;
use tiffin_types::{
    ConnId, RequestId, SegmentId, SlotRef,
    message::{CommitOutcome, Replacement},
};

use crate::{
    coverage::{Coverage, Point},
    memory::Memory,
    oracle::{Memories, Oracle},
};

impl Oracle {
    /// The master sends retires to a node.
    pub(crate) fn on_retires(&mut self, segment: Option<SegmentId>, slot_refs: &[SlotRef]) {
        let segment = segment.unwrap_or_default();
        self.retires_sent.extend(slot_refs.iter().map(|slot_ref| (segment, *slot_ref)));
    }

    /// The master answers a node's decide: objects without a name are dropped.
    pub(crate) fn decide_answered(&mut self, to: (ConnId, RequestId), outcomes: &[CommitOutcome]) {
        let nameless = |it: &CommitOutcome| matches!(it, CommitOutcome::Exists(_) | CommitOutcome::Stale);
        let places = self.places(to);
        let nameless = places.into_iter().zip(outcomes).filter(|(_, outcome)| nameless(outcome));
        self.retires_sent.extend(nameless.map(|(place, _)| place));
    }

    /// A publish is answered to its writer.
    pub(crate) fn publish_answered(
        &mut self,
        to: (ConnId, RequestId),
        outcomes: &[Option<CommitOutcome>],
        memories: &Memories,
    ) {
        let places = self.places(to);
        for (place, outcome) in places.into_iter().zip(outcomes) {
            if let Some(
                CommitOutcome::Stored(generation)
                | CommitOutcome::Replaced(generation)
                | CommitOutcome::Unconfirmed(Replacement { generation, .. }),
            ) = outcome
            {
                // An answer long after the decision may concern a removed object.
                let is_current = self.objects.get(generation).is_some_and(|it| !it.is_gone());
                if !is_current {
                    continue;
                }
                self.published.insert(place);
                let is_left = |it: &Memory| it.alive && !it.runs && !is_committed(it, place.1);
                if memories.get(&place.0).is_some_and(is_left) {
                    self.unread.insert(place);
                }
                let is_there =
                    |it: &Memory| !it.alive || it.is_current(place.1) || self.retires_sent.contains(&place);
                if !memories.get(&place.0).is_some_and(is_there) {
                    self.fail("p8", || format!("{place:?} is acknowledged as published, but is missing"));
                }
            }
        }
    }

    /// The process of a node ends, and its memory outlives it. Unread ledger entries are lost with its
    /// socket; the master that wrote them sends them again.
    pub(crate) fn pool_is_left(&mut self, segment: SegmentId, memory: &Memory, has_master: bool) {
        let on_node = self.published.iter().filter(|it| it.0 == segment);
        let unread: Vec<_> = on_node.filter(|it| !is_committed(memory, it.1)).copied().collect();
        for place in unread {
            let is_known = self.generation_of.get(&place).is_some_and(|it| it.epoch == self.epoch);
            match has_master && is_known {
                true => _ = self.unread.insert(place),
                false => _ = self.published.remove(&place),
            }
        }
    }

    /// The master ends, too, before it has sent these objects again: nothing knows their names.
    pub(crate) fn unread_are_lost(&mut self, memories: &Memories) {
        for place in std::mem::take(&mut self.unread) {
            if !memories.get(&place.0).is_some_and(|it| is_committed(it, place.1)) {
                self.published.remove(&place);
            }
        }
    }

    /// A node withdraws a stamp.
    pub(crate) fn withdrawn(&mut self, segment: SegmentId, slot_ref: SlotRef, coverage: &mut Coverage) {
        let place = (segment, slot_ref);
        if !self.published.remove(&place) {
            return;
        }
        coverage.hit(Point::CheckedPublished);
        if !self.retires_sent.contains(&place) {
            let generation = self.generation_of.get(&place).copied();
            self.fail("p8", || {
                format!(
                    "{segment} dropped {slot_ref:?}, which was published as {generation:?}, without a request"
                )
            });
        }
    }

    /// A copy is missing in a node's complete announcement: it must not be published.
    pub(crate) fn unannounced_published(&mut self, segment: SegmentId, slot_ref: SlotRef) {
        if self.ledger_commits.contains(&(segment, slot_ref)) {
            self.fail("p8", || format!("{segment} does not know of {slot_ref:?}, which was published there"));
        }
    }
}

fn is_committed(memory: &Memory, slot_ref: SlotRef) -> bool {
    memory.load(slot_ref).is_some_and(|it| it.state == SlotState::Committed)
}
