//! Promoted objects that are protected from eviction for a while, so that the client that requested them
//! finds them in memory.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Tick, master::catalog::ObjectIndex};

/// The protected objects, and when their protection ends.
#[derive(Debug, Default)]
pub(super) struct Shields {
    /// The end of each object's earlier lease, and the end of its protection.
    all: BTreeMap<ObjectIndex, (Tick, Tick)>,
    ends: BTreeSet<(Tick, ObjectIndex)>,
}

impl Shields {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn insert(&mut self, now: Tick, index: ObjectIndex, (before, until): (Tick, Tick)) {
        while let Some(&(_, index)) = self.ends.first().filter(|it| it.0 <= now) {
            self.remove(index);
        }
        self.remove(index);
        self.all.insert(index, (before, until));
        self.ends.insert((until, index));
    }

    /// The object was read, has left memory, or is leased. Returns the end of its earlier lease and of its
    /// protection.
    pub(super) fn remove(&mut self, index: ObjectIndex) -> Option<(Tick, Tick)> {
        let times = self.all.remove(&index)?;
        self.ends.remove(&(times.1, index));
        Some(times)
    }

    /// All protected objects without a lease of their own, the oldest protection first. Objects whose
    /// protection has ended are evicted like others, and must not be counted twice.
    pub(super) fn unleased(&self, now: Tick) -> impl Iterator<Item = ObjectIndex> + '_ {
        let is_leased = move |it: &ObjectIndex| self.all.get(it).is_some_and(|(before, _)| *before > now);
        let protected = self.ends.range((now.after(1), ObjectIndex::MIN)..);
        protected.map(|it| it.1).filter(move |it| !is_leased(it))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protection_ends_with_a_read_or_with_time() {
        let mut shields = Shields::default();
        let (one, other) = (ObjectIndex::MIN, ObjectIndex::MAX);
        shields.insert(Tick(0), one, (Tick(0), Tick(10)));
        shields.insert(Tick(5), one, (Tick(7), Tick(15)));
        shields.insert(Tick(6), other, (Tick(0), Tick(16)));
        assert_eq!(shields.unleased(Tick(7)).collect::<Vec<_>>(), [one, other]);
        assert_eq!(shields.unleased(Tick(6)).collect::<Vec<_>>(), [other]);
        assert_eq!(shields.unleased(Tick(14)).collect::<Vec<_>>(), [one, other]);
        assert_eq!(shields.unleased(Tick(15)).collect::<Vec<_>>(), [other]);
        assert_eq!(shields.unleased(Tick(16)).count(), 0);
        assert_eq!((shields.remove(one), shields.remove(one)), (Some((Tick(7), Tick(15))), None));
        shields.insert(Tick(16), one, (Tick(0), Tick(26)));
        assert_eq!(shields.unleased(Tick(16)).collect::<Vec<_>>(), [one]);
    }
}
