//! The objects that have a TTL, the next one to expire first.
//!
//! **Invariant:** exactly the objects with a TTL and without a pin are listed. So a pinned object is not
//! removed, and costs nothing while it waits for the end of its pins.

use std::collections::BTreeSet;

use super::{Object, ObjectIndex};
use crate::{
    Tick,
    mutant::{Mutant, is_mutant},
};

/// See the module.
#[derive(Debug)]
pub(in crate::master) struct Expiries {
    /// The wall clock at the first tick, in milliseconds since the Unix epoch.
    wall_ms: u64,
    mutant: Mutant,
    listed: BTreeSet<(Tick, u32)>,
}

impl Expiries {
    pub(super) fn new(wall_ms: u64, mutant: Mutant) -> Self {
        Self { wall_ms, mutant, listed: BTreeSet::new() }
    }

    pub(super) fn wall_ms(&self) -> u64 {
        self.wall_ms
    }

    /// Lists an object, if it expires.
    pub(super) fn list(&mut self, index: u32, object: &Object) {
        if let Some(at) = self.end_of(object) {
            self.listed.insert((at, index));
        }
    }

    /// The reverse of [`Self::list`], before the object changes.
    pub(super) fn strike(&mut self, index: u32, object: &Object) {
        if let Some(at) = self.end_of(object) {
            self.listed.remove(&(at, index));
        }
    }

    /// Number of listed objects.
    pub(in crate::master) fn len(&self) -> usize {
        self.listed.len()
    }

    /// When the next object expires.
    pub(in crate::master) fn next(&self) -> Option<Tick> {
        self.listed.first().map(|it| it.0)
    }

    /// The objects that have expired, at most `max`.
    pub(in crate::master) fn due(&self, now: Tick, max: usize) -> Vec<ObjectIndex> {
        let due = self.listed.iter().take_while(|it| it.0 <= now);
        due.take(max).map(|it| ObjectIndex(it.1)).collect()
    }

    /// Whether an object has expired.
    pub(in crate::master) fn is_due(&self, object: &Object, now: Tick) -> bool {
        self.end_of(object).is_some_and(|at| at <= now)
    }

    fn end_of(&self, object: &Object) -> Option<Tick> {
        let is_pinned = object.hard_pin() && !is_mutant!(self.mutant, ExpirePinned);
        object.expires(self.wall_ms).filter(|_| !is_pinned)
    }
}
