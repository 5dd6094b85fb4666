//! P8: an acknowledged published object stays on its node until the master retires it, whatever crashes in
//! between. An object that the master has named without its node exists when the node returns.

use tiffin_types::{
    ConnId, Generation, RequestId, SegmentId, SlotRef,
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
        let nameless = |it: &CommitOutcome| {
            matches!(it, CommitOutcome::Exists(_) | CommitOutcome::Stale | CommitOutcome::Removed)
        };
        let places = self.places(to);
        for (place, outcome) in places.iter().zip(outcomes) {
            let Some(name) = self.successors.remove(place) else { continue };
            if *outcome == CommitOutcome::Exists(Generation::default()) {
                self.fail("p8", || format!("{name:?} was retired in favour of {place:?}, which got no name"));
            }
        }
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
                let is_there =
                    |it: &Memory| !it.alive || it.is_current(place.1) || self.retires_sent.contains(&place);
                if !memories.get(&place.0).is_some_and(is_there) {
                    self.fail("p8", || format!("{place:?} is acknowledged as published, but is missing"));
                }
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
