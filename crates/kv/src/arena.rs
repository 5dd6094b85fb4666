//! Things at stable places, named by ids that are never used for two of them.
//!
//! **Invariant:** an id that outlives its thing finds nothing, also when its place is taken again (T18).

use std::fmt;
use std::marker::PhantomData;

/// Names a thing of an [`Arena`].
pub(crate) struct Id<T> {
    index: u32,
    generation: u32,
    of: PhantomData<fn() -> T>,
}

impl<T> Id<T> {
    /// Its place, for lists that are kept beside the arena.
    pub(crate) fn place(self) -> usize {
        self.index as usize
    }

    /// A number that no other thing of the arena has, or ever had.
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
    thing: Option<T>,
}

/// Things at stable places.
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
    pub(crate) fn insert(&mut self, thing: T) -> Id<T> {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, thing: None });
            u32::try_from(self.slots.len() - 1).expect("an arena has fewer than 2^32 places")
        });
        let slot = self.slots.get_mut(index as usize).expect("a free place is a place");
        slot.thing = Some(thing);
        Id { index, generation: slot.generation, of: PhantomData }
    }

    pub(crate) fn remove(&mut self, id: Id<T>) -> Option<T> {
        let slot = self.slots.get_mut(id.place()).filter(|slot| slot.generation == id.generation)?;
        let thing = slot.thing.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.index);
        Some(thing)
    }

    pub(crate) fn find(&self, id: Id<T>) -> Option<&T> {
        let slot = self.slots.get(id.place()).filter(|slot| slot.generation == id.generation)?;
        slot.thing.as_ref()
    }

    pub(crate) fn find_mut(&mut self, id: Id<T>) -> Option<&mut T> {
        let slot = self.slots.get_mut(id.place()).filter(|slot| slot.generation == id.generation)?;
        slot.thing.as_mut()
    }

    /// Whom its holder knows to be there.
    #[track_caller]
    pub(crate) fn get(&self, id: Id<T>) -> &T {
        self.find(id).unwrap_or_else(|| panic!("{id:?} is gone"))
    }

    /// Whom its holder knows to be there.
    #[track_caller]
    pub(crate) fn get_mut(&mut self, id: Id<T>) -> &mut T {
        self.find_mut(id).unwrap_or_else(|| panic!("{id:?} is gone"))
    }

    /// What is at so many places, from the given one on; nothing at all behind the last place.
    pub(crate) fn at_places(&self, from: usize, count: usize) -> Vec<Option<Id<T>>> {
        let id = |(index, slot): (usize, &Slot<T>)| {
            let id = Id { index: index as u32, generation: slot.generation, of: PhantomData };
            slot.thing.as_ref().map(|_| id)
        };
        self.slots.iter().enumerate().skip(from).take(count).map(id).collect()
    }

    /// All of them, by place.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Id<T>, &T)> {
        (0..).zip(&self.slots).filter_map(|(index, slot)| {
            let id = Id { index, generation: slot.generation, of: PhantomData };
            slot.thing.as_ref().map(|thing| (id, thing))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t18_an_id_that_outlives_its_thing_finds_nothing() {
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
