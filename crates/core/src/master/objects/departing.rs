//! The state of departures, see [`super::super::departures`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::master::{Departure, catalog::NodeIndex};
use crate::{ConnId, RequestId, SegmentId, SlotRef};

/// A departure in progress.
#[derive(Debug)]
pub(in crate::master) struct Departing {
    pub(in crate::master) how: Departure,
    pub(in crate::master) segment: SegmentId,
    pub(in crate::master) name: String,
    /// The object at which the next piece begins; `None` after the last one.
    pub(in crate::master) next: Option<u64>,
    /// The objects that were removed with their last copy.
    pub(in crate::master) removed: u64,
    /// The protected objects of an absent member.
    pub(in crate::master) kept: u64,
    /// The retires that a lost member owed.
    pub(in crate::master) owed: Vec<BTreeSet<SlotRef>>,
    /// The operator's request, which is answered at the end.
    pub(in crate::master) asked: Option<(ConnId, RequestId)>,
    /// The version of the saved state without the member.
    pub(in crate::master) version: u64,
}

/// All departures in progress.
#[derive(Debug, Default)]
pub(in crate::master) struct Departures {
    pub(in crate::master) all: BTreeMap<NodeIndex, Departing>,
    /// The one that had the last piece.
    last: Option<NodeIndex>,
}

impl Departures {
    pub(in crate::master) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether a member may not return yet.
    pub(in crate::master) fn has(&self, segment: SegmentId) -> bool {
        self.all.values().any(|it| it.segment == segment)
    }

    /// Forgets at most `count` retires that a lost member owed, and returns whether these were all.
    pub(in crate::master) fn forget_owed(&mut self, node: NodeIndex, count: usize) -> bool {
        let Some(departing) = self.all.get_mut(&node) else { return true };
        let mut left = count;
        for slot_refs in &mut departing.owed {
            while left > 0 && slot_refs.pop_first().is_some() {
                left -= 1;
            }
        }
        departing.owed.iter().all(BTreeSet::is_empty)
    }

    /// The one whose turn it is.
    pub(in crate::master) fn next(&mut self) -> Option<NodeIndex> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.all.range((after, Bound::Unbounded)).next().or_else(|| self.all.first_key_value());
        self.last = next.map(|(node, _)| *node);
        self.last
    }
}
