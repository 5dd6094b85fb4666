//! P8: what a writer was told to be published stays on its node until the master has it taken away,
//! whoever dies in between: the node lets go of it at the master's word and at no other. And what the
//! master has named without its node is there when the node is back.

use tiffin_core::{
    ConnId, Hold, RequestId, SegmentId,
    message::{CommitOutcome, Replacement},
};

use crate::{
    coverage::{Coverage, Point},
    memory::Memory,
    oracle::{Memories, Oracle},
};

impl Oracle {
    /// The master tells a node to let go of something.
    pub(crate) fn orders(&mut self, segment: Option<SegmentId>, holds: &[Hold]) {
        let segment = segment.unwrap_or_default();
        self.ordered.extend(holds.iter().map(|hold| (segment, *hold)));
    }

    /// The master answers a node that asked: it lets go of what gets no name.
    pub(crate) fn retires_undecided(&mut self, to: (ConnId, RequestId), outcomes: &[CommitOutcome]) {
        let nameless = |it: &CommitOutcome| matches!(it, CommitOutcome::Exists(_) | CommitOutcome::Stale);
        let places = self.places(to);
        let nameless = places.into_iter().zip(outcomes).filter(|(_, outcome)| nameless(outcome));
        self.ordered.extend(nameless.map(|(place, _)| place));
    }

    /// A writer is told what became of what it has published.
    pub(crate) fn told_of_published(
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
                // What is answered long after it was decided may be gone by then.
                let stands = self.lives.get(generation).is_some_and(|it| !it.is_gone());
                if !stands {
                    continue;
                }
                self.published.insert(place);
                let is_there = |it: &Memory| !it.alive || it.stands(place.1) || self.ordered.contains(&place);
                if !memories.get(&place.0).is_some_and(is_there) {
                    self.fail("p8", || format!("{place:?} is said to be published, but it is not there"));
                }
            }
        }
    }

    /// A node lets go of something.
    pub(crate) fn withdrawn(&mut self, segment: SegmentId, hold: Hold, coverage: &mut Coverage) {
        let place = (segment, hold);
        if !self.published.remove(&place) {
            return;
        }
        coverage.hit(Point::CheckedPublished);
        if !self.ordered.contains(&place) {
            let generation = self.generation_of.get(&place).copied();
            self.fail("p8", || {
                format!("{segment} lets go of {hold:?}, which was published as {generation:?}, unasked")
            });
        }
    }

    /// A node that has told everything did not tell of a copy: not one that was published.
    pub(crate) fn untold_published(&mut self, segment: SegmentId, hold: Hold) {
        if self.entrusted.contains(&(segment, hold)) {
            self.fail("p8", || format!("{segment} does not know of {hold:?}, which was published there"));
        }
    }
}
