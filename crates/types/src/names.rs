//! Maps the hash of a name to the index of the object that has it.
//!
//! Open addressing with linear probing. An entry has eight bytes, half a hash and an index, so that a
//! lookup costs one cache line; buckets stored apart from their tags would cost two. A table grows without
//! access to any object. There are many small tables instead of a large one, so that growing never stops
//! the master for long: the hash selects the table.
//!
//! **Invariant:** between the position that an entry's hash selects and the entry's position, no position
//! is empty.
//! **Invariant:** the entries are never iterated, so their order has no effect.

/// The index that means none.
pub const NIL: u32 = u32::MAX;

/// Number of tables: with ten million objects each has forty thousand, and grows in a millisecond.
const TABLES: usize = 256;
/// The size of a table when it gets its first entry.
const PLACES_MIN: usize = 16;
/// An empty position: no object has that index.
const EMPTY: u64 = u64::MAX;

/// The map; see the module.
#[derive(Debug)]
pub struct Names {
    tables: Box<[Table]>,
}

#[derive(Clone, Debug, Default)]
struct Table {
    /// Empty, or a power of two, at most three quarters full.
    places: Box<[u64]>,
    taken: usize,
}

/// An empty table.
impl Default for Names {
    fn default() -> Self {
        Self { tables: vec![Table::default(); TABLES].into() }
    }
}

impl Names {
    /// The object among those with that hash for which `is` holds.
    pub fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let table = self.tables.get(table_of(hash))?;
        let place = table.probe(hash, is)?;
        table.places.get(place).map(|&entry| entry as u32)
    }

    /// Reads the cache line where the search for that hash begins, so that it is in the cache afterwards.
    pub fn warm(&self, hash: u64) -> u64 {
        let table = self.tables.get(table_of(hash));
        table.and_then(|it| it.places.get(hash as usize & it.mask())).copied().unwrap_or(0)
    }

    /// Adds an object under a hash.
    pub fn insert(&mut self, hash: u64, index: u32) {
        assert!(index != NIL, "too many objects for 32-bit indices");
        let Some(table) = self.tables.get_mut(table_of(hash)) else { return };
        if (table.taken + 1) * 4 > table.places.len() * 3 {
            table.grow();
        }
        table.place(entry(hash, index));
        table.taken += 1;
    }

    /// Removes an object that was added under that hash.
    pub fn remove(&mut self, hash: u64, index: u32) {
        let Some(table) = self.tables.get_mut(table_of(hash)) else { return };
        if let Some(place) = table.probe(hash, |other| other == index) {
            table.clear(place);
            table.taken -= 1;
        }
    }
}

impl Table {
    fn mask(&self) -> usize {
        self.places.len().wrapping_sub(1)
    }

    /// The position of the entry.
    fn probe(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<usize> {
        let mask = self.mask();
        let mut place = hash as usize & mask;
        loop {
            let found = *self.places.get(place)?;
            if found == EMPTY {
                return None;
            }
            if (found >> 32) as u32 == hash as u32 && is(found as u32) {
                return Some(place);
            }
            place = (place + 1) & mask;
        }
    }

    /// Writes an entry into the first empty position from its own on.
    fn place(&mut self, entry: u64) {
        let mask = self.mask();
        let mut place = home(entry) & mask;
        while self.places.get(place).is_some_and(|&it| it != EMPTY) {
            place = (place + 1) & mask;
        }
        if let Some(empty) = self.places.get_mut(place) {
            *empty = entry;
        }
    }

    /// Empties a position, and moves up entries that could not be found after the gap.
    fn clear(&mut self, mut gap: usize) {
        let mask = self.mask();
        let mut place = gap;
        loop {
            place = (place + 1) & mask;
            let entry = self.places.get(place).copied().unwrap_or(EMPTY);
            if entry == EMPTY {
                break;
            }
            let from_home = place.wrapping_sub(home(entry)) & mask;
            if from_home >= place.wrapping_sub(gap) & mask {
                self.set(gap, entry);
                gap = place;
            }
        }
        self.set(gap, EMPTY);
    }

    fn set(&mut self, place: usize, entry: u64) {
        if let Some(it) = self.places.get_mut(place) {
            *it = entry;
        }
    }

    fn grow(&mut self) {
        let count = (self.places.len() * 2).max(PLACES_MIN);
        let old = std::mem::replace(&mut self.places, vec![EMPTY; count].into());
        old.into_iter().filter(|&entry| entry != EMPTY).for_each(|entry| self.place(entry));
    }
}

/// The high half of a hash selects the table, the low half the position in it.
fn table_of(hash: u64) -> usize {
    (hash >> 32) as usize % TABLES
}

fn entry(hash: u64, index: u32) -> u64 {
    hash << 32 | u64::from(index)
}

fn home(entry: u64) -> usize {
    (entry >> 32) as usize
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Hashes that collide in their position, in their table and completely.
        #[test]
        fn agrees_with_a_map(steps in prop::collection::vec((any::<bool>(), 0u64..48, 0u64..3), 1..400)) {
            let mut names = Names::default();
            let mut model: BTreeMap<(u64, u32), ()> = BTreeMap::new();
            for (index, (insert, low, high)) in (0u32..).zip(steps) {
                let hash = high << 32 | (low % 16) | (low / 16) << 20;
                let same = model.range((hash, 0)..=(hash, NIL)).next().map(|it| it.0.1);
                match same {
                    Some(old) if !insert => {
                        names.remove(hash, old);
                        model.remove(&(hash, old));
                    }
                    _ => {
                        names.insert(hash, index);
                        model.insert((hash, index), ());
                    }
                }
                for &(hash, index) in model.keys() {
                    prop_assert_eq!(names.find(hash, |it| it == index), Some(index));
                }
                let taken: usize = names.tables.iter().map(|it| it.taken).sum();
                prop_assert_eq!(taken, model.len());
            }
            let left: Vec<_> = model.into_keys().collect();
            for (hash, index) in left {
                names.remove(hash, index);
                prop_assert_eq!(names.find(hash, |it| it == index), None);
            }
            prop_assert!(names.tables.iter().flat_map(|it| &it.places).all(|&it| it == EMPTY));
        }
    }
}
