//! Where objects lie, as far as a client has heard: so that a get of a known object asks nobody.
//!
//! What is known may be out of date, and is used all the same: a location names a use of a slot, and the
//! reader finds out by itself that the use has ended. Such a read also requires that the node is a member of
//! its cluster, because a node that the master has given up is not told of deletes any more.
//!
//! Gets that ask nobody would hide from the master what is used. So every use is noted here, once however
//! often it happens, until it is taken away to be told. The same holds for probes that take a lease; the
//! master must not count these as reads, so they are noted apart.
//!
//! **Invariant:** at most as many objects are known as the capacity says. Those that were not used since the
//! hand last passed them are forgotten first.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    Generation, Key, Location,
    message::{Found, ResolveOutcome},
    names::Names,
    sabotage::{Sabotage, sabotaged},
};

/// What one client has heard of objects.
#[derive(Debug)]
pub struct Known {
    places: Names,
    entries: Vec<Entry>,
    /// Where the search for something to forget goes on.
    hand: usize,
    capacity: usize,
    hash_seed: u64,
    sabotage: Sabotage,
    /// Entries that were used and of which nobody was told yet.
    used: Vec<u32>,
    /// Entries that a probe is to lease and that the master was not told of yet.
    probed: Vec<u32>,
    /// The newest generation that was ever known, of any object, and is not any more.
    forgotten: Generation,
}

#[derive(Debug)]
struct Entry {
    key: Key,
    found: Found,
    /// Used since the hand last passed.
    is_recent: bool,
    /// Listed in `used`.
    is_noted: bool,
    /// Listed in `probed`.
    is_probed: bool,
    /// What is known is of no use any more; the place is free.
    is_forgotten: bool,
}

impl Known {
    /// Knows nothing yet, and never more than `capacity` objects. The seed need not be secret: keys come
    /// from the client's own process.
    #[must_use]
    pub fn new(capacity: usize, hash_seed: u64, sabotage: Sabotage) -> Self {
        Self {
            places: Names::new(),
            entries: Vec::new(),
            hand: 0,
            capacity: capacity.min(u32::MAX as usize),
            hash_seed,
            sabotage,
            used: Vec::new(),
            probed: Vec::new(),
            forgotten: Generation::default(),
        }
    }

    /// Remembers where the bytes of one's own put lie: at its home, the first of its copies, which has them
    /// under that generation. Of the others only the master can tell. Another life of it may have given them
    /// an older one, and this life hears of that only when their nodes join it.
    ///
    /// A put may be answered long after the master has told of something newer. While that is known it stays;
    /// once it is forgotten nobody remembers of which object it was, so nothing older is believed.
    pub fn learn_put(&mut self, key: &Key, generation: Generation, len: u64, copies: &[Location]) {
        if generation < self.forgotten {
            return;
        }
        let replicas = copies.iter().copied().take(1).collect();
        self.learn(key, &Found { generation, len, replicas, ..Found::default() });
    }

    /// Remembers where an object lies. Something newer that is known of it stays.
    fn learn(&mut self, key: &Key, found: &Found) {
        if found.replicas.is_empty() || self.capacity == 0 {
            return;
        }
        if let Some(entry) = self.place(key).and_then(|at| self.entries.get_mut(at)) {
            if entry.found.generation <= found.generation {
                entry.found.clone_from(found);
            }
            return;
        }
        let entry = Entry {
            key: key.clone(),
            found: found.clone(),
            is_recent: false,
            is_noted: false,
            is_probed: false,
            is_forgotten: false,
        };
        let at = if self.entries.len() < self.capacity {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            let at = self.make_room();
            if let Some(place) = self.entries.get_mut(at) {
                *place = Entry { is_noted: place.is_noted, is_probed: place.is_probed, ..entry };
            }
            at
        };
        self.places.insert(hash(self.hash_seed, key.as_bytes()), at as u32);
    }

    /// Where the object lies, as far as is known. It counts as used.
    pub fn find(&mut self, key: &(impl AsRef<[u8]> + ?Sized)) -> Option<&Found> {
        let at = self.place(key)?;
        let entry = self.entries.get_mut(at)?;
        entry.is_recent = true;
        if !std::mem::replace(&mut entry.is_noted, true) {
            self.used.push(at as u32);
        }
        Some(&entry.found)
    }

    /// Where the object lies, as far as is known. It counts as probed with a lease, and not as read.
    pub fn probe(&mut self, key: &(impl AsRef<[u8]> + ?Sized)) -> Option<&Found> {
        let at = self.place(key)?;
        let entry = self.entries.get_mut(at)?;
        entry.is_recent = true;
        if !std::mem::replace(&mut entry.is_probed, true) {
            self.probed.push(at as u32);
        }
        Some(&entry.found)
    }

    /// Where the object lies, as far as is known. It does not count as used.
    #[must_use]
    pub fn peek(&self, key: &(impl AsRef<[u8]> + ?Sized)) -> Option<&Found> {
        Some(&self.entries.get(self.place(key)?)?.found)
    }

    /// That generation of the object is not where it was said to be. Something newer that is known stays.
    pub fn forget(&mut self, key: &Key, generation: Generation) {
        let known = self.peek(key).map(|it| it.generation);
        if known.is_some_and(|it| it <= generation) {
            self.remove(key);
        }
    }

    /// Takes in what the master says of an object, for whatever it was asked: to be called in the order of
    /// its answers. What is older is not to be read any more by one who was told of this. A copy that its
    /// node has yet to let go of would still pass for it, and one would see the object go back in time.
    pub fn hear(&mut self, key: &Key, outcome: &ResolveOutcome) {
        match outcome {
            _ if sabotaged!(self.sabotage, HearOnce) && self.peek(key).is_some() => {}
            ResolveOutcome::Found(found) if found.replicas.is_empty() => {
                self.forgotten = self.forgotten.max(found.generation);
                if self.peek(key).is_some_and(|it| it.generation < found.generation) {
                    self.remove(key);
                }
            }
            ResolveOutcome::Found(found) => self.learn(key, found),
            ResolveOutcome::Absent => self.remove(key),
            ResolveOutcome::Unavailable(_) => {}
        }
    }

    /// The object is not where it was said to be, whatever it was.
    pub fn remove(&mut self, key: &Key) {
        let Some(at) = self.place(key) else { return };
        self.places.remove(hash(self.hash_seed, key.as_bytes()), at as u32);
        if let Some(entry) = self.entries.get_mut(at) {
            (entry.is_forgotten, entry.is_recent) = (true, false);
            self.forgotten = self.forgotten.max(entry.found.generation);
        }
    }

    /// How many uses nobody was told of.
    #[must_use]
    pub fn used_count(&self) -> usize {
        self.used.len()
    }

    /// Takes away what was used, oldest first, at most `most` of it.
    pub fn take_used(&mut self, most: usize) -> Vec<Key> {
        let mut keys = Vec::new();
        for at in self.used.drain(..most.min(self.used.len())) {
            if let Some(entry) = self.entries.get_mut(at as usize) {
                entry.is_noted = false;
                if !entry.is_forgotten {
                    keys.push(entry.key.clone());
                }
            }
        }
        keys
    }

    /// How many probes with a lease the master was not told of.
    #[must_use]
    pub fn probed_count(&self) -> usize {
        self.probed.len()
    }

    /// Removes and returns the keys of probes with a lease, oldest first, at most `most` of them.
    pub fn take_probed(&mut self, most: usize) -> Vec<Key> {
        let mut keys = Vec::new();
        for at in self.probed.drain(..most.min(self.probed.len())) {
            if let Some(entry) = self.entries.get_mut(at as usize) {
                entry.is_probed = false;
                if !entry.is_forgotten {
                    keys.push(entry.key.clone());
                }
            }
        }
        keys
    }

    fn place(&self, key: &(impl AsRef<[u8]> + ?Sized)) -> Option<usize> {
        let key = key.as_ref();
        let is_it = |at: u32| self.entries.get(at as usize).is_some_and(|it| it.key.as_bytes() == key);
        self.places.find(hash(self.hash_seed, key), is_it).map(|at| at as usize)
    }

    /// A place that may be used again, empty. The hand passes everything at most twice.
    fn make_room(&mut self) -> usize {
        loop {
            let at = self.hand;
            self.hand = (at + 1) % self.entries.len().max(1);
            let Some(entry) = self.entries.get_mut(at) else { return at };
            if entry.is_forgotten {
                return at;
            }
            if !std::mem::take(&mut entry.is_recent) {
                let key = entry.key.clone();
                self.remove(&key);
                return at;
            }
        }
    }
}

fn hash(seed: u64, key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SegmentId, SlotId, Stamp};

    fn key(number: u64) -> Key {
        Key::new(format!("key {number}").as_bytes()).unwrap()
    }

    fn found(counter: u64) -> Found {
        let location = Location { segment: SegmentId(1), slot: SlotId(0), stamp: Stamp(counter) };
        let generation = Generation { epoch: 1, counter };
        Found { generation, len: 10, replicas: vec![location], ..Found::default() }
    }

    #[test]
    fn the_newest_is_known_whatever_the_order() {
        let mut known = Known::new(8, 0, Sabotage::None);
        assert_eq!(known.find(&key(1)), None);
        for (counter, newest) in [(5, 5), (3, 5), (7, 7), (6, 7)] {
            known.learn(&key(1), &found(counter));
            assert_eq!(known.find(&key(1)), Some(&found(newest)));
        }
        known.forget(&key(1), found(6).generation);
        assert!(known.peek(&key(1)).is_some(), "an older one is gone, which says nothing of this one");
        known.forget(&key(1), found(7).generation);
        assert_eq!(known.peek(&key(1)), None);
        known.learn(&key(1), &Found::default());
        assert_eq!(known.peek(&key(1)), None, "without a place there is nothing to know");
    }

    #[test]
    fn what_the_master_says_outdates_what_was_known() {
        let mut known = Known::new(8, 0, Sabotage::None);
        known.learn(&key(1), &found(5));
        for (outcome, left) in [
            (ResolveOutcome::Unavailable(vec!["n".into()]), true),
            (ResolveOutcome::Found(found(4)), true),
            (ResolveOutcome::Found(Found { replicas: vec![], ..found(5) }), true),
            (ResolveOutcome::Found(Found { replicas: vec![], ..found(6) }), false),
            (ResolveOutcome::Absent, false),
        ] {
            known.learn(&key(1), &found(5));
            known.hear(&key(1), &outcome);
            assert_eq!(known.peek(&key(1)).is_some(), left, "{outcome:?}");
        }
        known.learn(&key(1), &found(5));
        known.hear(&key(1), &ResolveOutcome::Found(found(7)));
        known.hear(&key(1), &ResolveOutcome::Found(found(6)));
        assert_eq!(known.peek(&key(1)), Some(&found(7)));
    }

    #[test]
    fn a_late_answer_does_not_lead_back_behind_what_was_known() {
        let place = &found(5).replicas;
        let newer: [fn(&mut Known); 3] = [
            |known| {
                known.hear(&key(1), &ResolveOutcome::Found(found(6)));
                known.forget(&key(1), found(6).generation);
            },
            |known| {
                known.hear(&key(1), &ResolveOutcome::Found(found(6)));
                known.hear(&key(1), &ResolveOutcome::Absent);
            },
            |known| known.hear(&key(1), &ResolveOutcome::Found(Found { replicas: vec![], ..found(6) })),
        ];
        for hear_and_forget in newer {
            let mut known = Known::new(8, 0, Sabotage::None);
            hear_and_forget(&mut known);
            known.learn_put(&key(1), found(5).generation, 10, place);
            assert_eq!(known.peek(&key(1)), None, "older than what was known");
            known.learn_put(&key(1), found(7).generation, 10, &found(7).replicas);
            assert_eq!(known.peek(&key(1)), Some(&found(7)));
            known.hear(&key(2), &ResolveOutcome::Found(found(4)));
            assert_eq!(known.peek(&key(2)), Some(&found(4)), "the master is believed, whatever it says");
        }
    }

    #[test]
    fn of_ones_own_put_only_the_home_is_known() {
        let mut known = Known::new(8, 0, Sabotage::None);
        let copies: Vec<_> = [5, 6].into_iter().flat_map(|counter| found(counter).replicas).collect();
        known.learn_put(&key(1), found(5).generation, 10, &copies);
        assert_eq!(known.peek(&key(1)), Some(&found(5)), "the first copy, and no other");
        let both = Found { replicas: copies.clone(), ..found(5) };
        known.learn(&key(1), &both);
        assert_eq!(known.peek(&key(1)), Some(&both), "the master knows");
    }

    #[test]
    fn what_is_not_used_is_forgotten_first() {
        let mut known = Known::new(4, 0, Sabotage::None);
        (0..4).for_each(|number| known.learn(&key(number), &found(number)));
        for new in 4..1000 {
            // The one that is used again and again stays.
            assert!(known.find(&key(0)).is_some(), "before {new}");
            known.learn(&key(new), &found(new));
            assert!(known.peek(&key(new)).is_some());
            assert_eq!((0..=new).filter(|it| known.peek(&key(*it)).is_some()).count(), 4);
        }
    }

    #[test]
    fn uses_are_told_once_each_in_order() {
        let mut known = Known::new(4, 0, Sabotage::None);
        (0..3).for_each(|number| known.learn(&key(number), &found(number)));
        for number in [2, 0, 2, 1, 0] {
            known.find(&key(number));
        }
        known.remove(&key(0));
        assert_eq!((known.used_count(), known.take_used(1)), (3, vec![key(2)]));
        assert_eq!(known.take_used(9), [key(1)], "what is gone was not used");
        known.find(&key(2));
        assert_eq!(known.take_used(9), [key(2)], "used again");
        assert!(known.peek(&key(1)).is_some());
        assert_eq!(known.used_count(), 0, "looking is no use");
    }

    #[test]
    fn probes_are_told_apart_from_reads() {
        let mut known = Known::new(4, 0, Sabotage::None);
        (0..3).for_each(|number| known.learn(&key(number), &found(number)));
        for number in [2, 0, 2, 1] {
            assert_eq!(known.probe(&key(number)), Some(&found(number)));
        }
        known.find(&key(1));
        known.remove(&key(0));
        assert_eq!((known.used_count(), known.take_used(9)), (1, vec![key(1)]));
        assert_eq!((known.probed_count(), known.take_probed(1)), (3, vec![key(2)]));
        assert_eq!(known.take_probed(9), [key(1)], "a deleted object takes no lease");
        known.probe(&key(2));
        assert_eq!((known.take_probed(9), known.probed_count()), (vec![key(2)], 0), "probed again");
    }

    #[test]
    fn places_are_used_again() {
        let mut known = Known::new(2, 0, Sabotage::None);
        for number in 0..100 {
            known.learn(&key(number), &found(number));
            known.find(&key(number));
            known.probe(&key(number));
            known.remove(&key(number));
        }
        assert!(known.entries.len() <= 2 && known.used.len() <= 2 && known.probed.len() <= 2);
        assert!((0..100).all(|number| known.peek(&key(number)).is_none()));
        let mut nothing = Known::new(0, 0, Sabotage::None);
        nothing.learn(&key(1), &found(1));
        assert_eq!(nothing.peek(&key(1)), None);
    }
}
