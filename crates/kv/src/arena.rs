//! A slot arena: values at stable places, named by ids with a generation.
//!
//! **Invariant:** the id of a removed value finds nothing, also when its slot is used again (T18).

use std::fmt;
use std::marker::PhantomData;

/// Names a value of an [`Arena`].
pub(crate) struct Id<T> {
    index: u32,
    generation: u32,
    of: PhantomData<fn() -> T>,
}

impl<T> Id<T> {
    /// Its slot, for tables that are kept parallel to the arena.
    pub(crate) fn place(self) -> usize {
        self.index as usize
    }

    /// A number that no other value of the arena has or had.
    pub(crate) fn number(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }
}

impl<T> Clone for Id<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Id<T> {}

impl<T> PartialEq for Id<T> {
    fn eq(&self, other: &Self) -> bool {
        self.number() == other.number()
    }
}

impl<T> Eq for Id<T> {}

impl<T> PartialOrd for Id<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Id<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.number().cmp(&other.number())
    }
}

impl<T> std::hash::Hash for Id<T> {
    fn hash<H: std::hash::Hasher>(&self, hasher: &mut H) {
        self.number().hash(hasher);
    }
}

impl<T> fmt::Debug for Id<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}.{}", self.index, self.generation)
    }
}

#[derive(Clone, Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// Values at stable places.
#[derive(Clone, Debug)]
pub(crate) struct Arena<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Arena<T> {
    pub(crate) fn insert(&mut self, value: T) -> Id<T> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, value: None });
            u32::try_from(self.slots.len() - 1).expect("an arena has fewer than 2^32 slots")
        });
        let slot = self.slots.get_mut(index as usize).expect("a free slot is a slot");
        slot.value = Some(value);
        Id { index, generation: slot.generation, of: PhantomData }
    }

    pub(crate) fn remove(&mut self, id: Id<T>) -> Option<T> {
        let slot = self.slots.get_mut(id.place()).filter(|slot| slot.generation == id.generation)?;
        let value = slot.value.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.index);
        Some(value)
    }

    pub(crate) fn find(&self, id: Id<T>) -> Option<&T> {
        let slot = self.slots.get(id.place()).filter(|slot| slot.generation == id.generation)?;
        slot.value.as_ref()
    }

    pub(crate) fn find_mut(&mut self, id: Id<T>) -> Option<&mut T> {
        let slot = self.slots.get_mut(id.place()).filter(|slot| slot.generation == id.generation)?;
        slot.value.as_mut()
    }

    /// A value that exists, or the caller has a bug.
    #[track_caller]
    pub(crate) fn get(&self, id: Id<T>) -> &T {
        self.find(id).unwrap_or_else(|| panic!("{id:?} is gone"))
    }

    /// A value that exists, or the caller has a bug.
    #[track_caller]
    pub(crate) fn get_mut(&mut self, id: Id<T>) -> &mut T {
        self.find_mut(id).unwrap_or_else(|| panic!("{id:?} is gone"))
    }

    /// The ids at `count` slots from a given one on; empty behind the last slot.
    pub(crate) fn at_places(&self, from: usize, count: usize) -> Vec<Option<Id<T>>> {
        let id = |(index, slot): (usize, &Slot<T>)| {
            let id = Id { index: index as u32, generation: slot.generation, of: PhantomData };
            slot.value.as_ref().map(|_| id)
        };
        self.slots.iter().enumerate().skip(from).take(count).map(id).collect()
    }

    /// All values, by slot.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id<T>, &T)> {
        (0..).zip(&self.slots).filter_map(|(index, slot)| {
            let id = Id { index, generation: slot.generation, of: PhantomData };
            slot.value.as_ref().map(|value| (id, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t18_id_of_a_removed_value_finds_nothing() {
        let mut arena = Arena::default();
        let first = arena.insert('a');
        assert_eq!(arena.remove(first), Some('a'));
        let second = arena.insert('b');
        assert_eq!(first.place(), second.place());
        assert_eq!((arena.find(first), arena.find(second)), (None, Some(&'b')));
        assert_eq!(arena.remove(first), None);
        assert_eq!(arena.iter().count(), 1);
    }
}
