//! Objects that a working disk refused because they are larger than it accepts. Also, in a list of their own,
//! those that it has dropped to make space for others, although they are in memory.
//!
//! **Invariant:** a refused object is not sent to that disk again for [`REFUSED_MS`], and delays no other
//! object. A dropped one is sent within that time only if a put needs its memory.

use std::collections::BTreeMap;

use crate::master::catalog::NodeIndex;
use crate::{Generation, Tick};

/// Maximum number of refusals that are remembered.
pub(super) const REFUSED_MAX: usize = 1 << 14;
/// How long an object is not sent again. Its disk may have more space by then.
pub(super) const REFUSED_MS: u64 = 60_000;

/// The refusals of disks. Each disk refuses an object independently.
#[derive(Debug, Default)]
pub(super) struct Refusals(BTreeMap<(Generation, NodeIndex), Refusal>);

#[derive(Debug)]
struct Refusal {
    /// Maximum size of one object that the disk accepts.
    bytes_max: u64,
    until: Tick,
}

impl Refusals {
    /// Records a refusal. Returns whether it is the first one of this object.
    pub(super) fn note(&mut self, object: Generation, disk: NodeIndex, bytes_max: u64, now: Tick) -> bool {
        let is_first = self.of(object).next().is_none();
        if self.0.len() >= REFUSED_MAX && !self.0.contains_key(&(object, disk)) {
            self.0.pop_first();
        }
        self.0.insert((object, disk), Refusal { bytes_max, until: now.after(REFUSED_MS) });
        is_first
    }

    /// Whether an object must not be sent to that disk now.
    pub(super) fn forbid(&self, object: Generation, disk: NodeIndex, now: Tick) -> bool {
        self.0.get(&(object, disk)).is_some_and(|it| it.until > now)
    }

    /// Maximum object size of the disks that refused this object; zero if none did.
    pub(super) fn bytes_max(&self, object: Generation) -> u64 {
        self.of(object).map(|(_, it)| it.bytes_max).max().unwrap_or(0)
    }

    /// The object is gone, or on a disk. Returns the same as [`Self::bytes_max`].
    pub(super) fn take(&mut self, object: Generation) -> u64 {
        let bytes_max = self.bytes_max(object);
        let disks: Vec<_> = self.of(object).map(|(key, _)| *key).collect();
        disks.iter().for_each(|key| _ = self.0.remove(key));
        bytes_max
    }

    /// A disk is lost, and its index may be reused.
    pub(super) fn forget_disk(&mut self, disk: NodeIndex) {
        self.0.retain(|(_, on), _| *on != disk);
    }

    fn of(&self, object: Generation) -> impl Iterator<Item = (&(Generation, NodeIndex), &Refusal)> {
        self.0.range((object, NodeIndex(0))..=(object, NodeIndex(u16::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(counter: u64) -> Generation {
        Generation { epoch: 1, counter }
    }

    #[test]
    fn refused_object_is_sent_again_after_a_while() {
        let (disk, other) = (NodeIndex(1), NodeIndex(2));
        let mut refusals = Refusals::default();
        assert!(refusals.note(object(1), disk, 70, Tick(5)));
        assert!(refusals.forbid(object(1), disk, Tick(4 + REFUSED_MS)));
        assert!(!refusals.forbid(object(1), disk, Tick(5 + REFUSED_MS)));
        assert!(!refusals.forbid(object(1), other, Tick(5)) && !refusals.forbid(object(2), disk, Tick(5)));
        assert!(!refusals.note(object(1), disk, 80, Tick(5 + REFUSED_MS)), "it counts once");
        assert_eq!((refusals.bytes_max(object(1)), refusals.bytes_max(object(2))), (80, 0));
        refusals.forget_disk(other);
        assert_eq!(refusals.bytes_max(object(1)), 80);
        refusals.forget_disk(disk);
        assert_eq!(refusals.bytes_max(object(1)), 0);
    }

    #[test]
    fn each_disk_refuses_independently() {
        let (disk, other) = (NodeIndex(1), NodeIndex(2));
        let mut refusals = Refusals::default();
        assert!(refusals.note(object(1), disk, 70, Tick(0)));
        assert!(!refusals.note(object(1), other, 90, Tick(1)), "the object is reported once");
        assert!(refusals.forbid(object(1), disk, Tick(2)) && refusals.forbid(object(1), other, Tick(2)));
        assert_eq!(refusals.bytes_max(object(1)), 90);
        assert_eq!(refusals.take(object(1)), 90);
        assert!(!refusals.forbid(object(1), disk, Tick(2)) && !refusals.forbid(object(1), other, Tick(2)));
    }

    #[test]
    fn number_of_refusals_is_bounded() {
        let mut refusals = Refusals::default();
        for counter in 0..=REFUSED_MAX as u64 {
            refusals.note(object(counter), NodeIndex(1), 70, Tick(0));
        }
        assert_eq!(refusals.0.len(), REFUSED_MAX);
        assert_eq!((refusals.bytes_max(object(0)), refusals.bytes_max(object(1))), (0, 70));
    }
}
