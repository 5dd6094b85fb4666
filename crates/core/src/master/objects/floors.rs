//! The floors of names: see [`reports`](super::reports).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{Generation, master::pending_retires::Name};

/// Maximum number of names whose floor is remembered. Beyond it, nothing is evicted until all members have
/// reported.
pub(in crate::master) const FLOORS_MAX: usize = 1 << 18;

/// The least generation of each name that a report may bring.
#[derive(Debug, Default)]
pub(in crate::master) struct Floors {
    least: BTreeMap<Arc<Name>, Generation>,
}

impl Floors {
    /// Whether no floor is remembered.
    pub(in crate::master) fn is_empty(&self) -> bool {
        self.least.is_empty()
    }

    /// Whether more objects may leave the catalog.
    pub(in crate::master) fn has_space(&self) -> bool {
        self.least.len() < FLOORS_MAX
    }

    /// Whether more objects may leave the catalog after one more has.
    pub(in crate::master) fn has_space_for_two(&self) -> bool {
        self.least.len() + 1 < FLOORS_MAX
    }

    /// Removes a floor if there are as many as there may be.
    pub(in crate::master) fn make_space(&mut self) {
        if !self.has_space() {
            self.least.pop_last();
        }
    }

    /// Whether a report may bring that object.
    pub(in crate::master) fn accepts(&self, name: &Name, generation: Generation) -> bool {
        self.least.get(name).is_none_or(|least| generation >= *least)
    }

    pub(in crate::master) fn raise(&mut self, name: &Arc<Name>, least: Generation) {
        let floor = self.least.entry(Arc::clone(name)).or_default();
        *floor = (*floor).max(least);
    }
}
