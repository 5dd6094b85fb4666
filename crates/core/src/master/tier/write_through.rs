//! The objects that must be written through to a disk.
//!
//! Namespaces take turns by bytes, those of one token together, and so do the clients of a namespace: one
//! that puts more than the disk can write delays the objects of others by its share only. A disk may be slow,
//! or away, for any time. So each memory lists at most [`WRITE_THROUGH_MAX`] objects, and a namespace leaves
//! a part of them to others. The rest of a namespace is found in the catalog, in turns with what is listed.
//!
//! **Invariant:** a namespace with an object that is not listed has one entry that says so.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_throttle::Turns;

use crate::{
    Generation,
    master::catalog::{LabelIndex, NamespaceIndex, ObjectIndex, TurnGroup},
};

/// Maximum number of objects that are listed for one memory.
const WRITE_THROUGH_MAX: usize = 1 << 12;
/// A namespace may have this many times the objects that may still be listed.
const SHARE_OF_FREE: usize = 15;
/// The flow of a namespace's objects that are not listed. Clients have 16 bits.
const UNLISTED_FLOW: u64 = u64::MAX;
/// What an object costs beside its bytes.
const OBJECT_COST_BYTES: u64 = 4 << 10;

/// An entry of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// This object, if it still is this one.
    Object(ObjectIndex, Generation),
    /// The next object that is not listed.
    Unlisted,
}

/// The namespace and the client that put an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    pub(super) namespace: NamespaceIndex,
    /// See [`Namespace::turn_group`](crate::master::catalog::Namespace::turn_group).
    pub(super) group: TurnGroup,
    pub(super) client: LabelIndex,
    /// All owners have one turn: a mutant.
    pub(super) is_anyone: bool,
}

/// The namespace of an entry, and the group with which it takes turns.
type Place = (NamespaceIndex, TurnGroup);

/// The objects of one memory that must be written through.
#[derive(Debug, Default)]
pub(super) struct WriteThrough {
    turns: Turns<(Place, Entry)>,
    /// The entry whose turn it is.
    first: Option<(Place, Entry)>,
    /// Number of listed objects of each group. None is zero.
    listed: BTreeMap<TurnGroup, usize>,
    /// The sum of these numbers.
    len: usize,
    /// The namespaces with objects that are only in the catalog.
    unlisted: BTreeSet<NamespaceIndex>,
}

impl WriteThrough {
    pub(super) fn push(&mut self, owner: Owner, bytes: u64, (index, generation): (ObjectIndex, Generation)) {
        let Owner { namespace, group, client, is_anyone } = owner;
        let place = (namespace, group);
        if self.unlisted.contains(&namespace) {
            return;
        }
        let free = WRITE_THROUGH_MAX - self.len;
        let own = self.listed.get(&group).copied().unwrap_or(0);
        let is_greedy = own > free.saturating_mul(SHARE_OF_FREE) && !is_anyone;
        if free == 0 || is_greedy {
            self.unlisted.insert(namespace);
            return self.push_unlisted(place, bytes);
        }
        self.len += 1;
        *self.listed.entry(group).or_default() += 1;
        let flow = if is_anyone { (0, 0) } else { (group.0, u64::from(client.0)) };
        self.turns.push(flow, cost(bytes), (place, Entry::Object(index, generation)));
    }

    fn push_unlisted(&mut self, place: Place, bytes: u64) {
        self.turns.push((place.1.0, UNLISTED_FLOW), cost(bytes), (place, Entry::Unlisted));
    }

    /// The entry whose turn it is, until [`Self::pop`].
    pub(super) fn first(&mut self) -> Option<(NamespaceIndex, Entry)> {
        self.first = self.first.or_else(|| self.turns.pop());
        self.first.map(|((namespace, _), entry)| (namespace, entry))
    }

    /// The first entry was served. For one that is not listed: how many bytes were found, if any.
    pub(super) fn pop(&mut self, found: Option<u64>) {
        match self.first.take() {
            Some(((_, group), Entry::Object(..))) => {
                self.len -= 1;
                if let Some(own) = self.listed.get_mut(&group) {
                    *own -= 1;
                    if *own == 0 {
                        self.listed.remove(&group);
                    }
                }
            }
            Some((place, Entry::Unlisted)) => match found {
                Some(bytes) => self.push_unlisted(place, bytes),
                None => _ = self.unlisted.remove(&place.0),
            },
            None => {}
        }
    }
}

fn cost(bytes: u64) -> u64 {
    bytes.saturating_add(OBJECT_COST_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::master::catalog::Catalog;
    use crate::mutant::Mutant;

    fn namespaces() -> [NamespaceIndex; 2] {
        let mut catalog = Catalog::new(0, 0, Mutant::default());
        ["hog", "other"].map(|name| catalog.intern(name))
    }

    fn push(queue: &mut WriteThrough, namespace: NamespaceIndex, client: u16, counter: usize) {
        let (group, client) = (TurnGroup(namespace.number()), LabelIndex(client));
        let owner = Owner { namespace, group, client, is_anyone: false };
        let generation = Generation { epoch: 1, counter: counter as u64 };
        queue.push(owner, 1 << 20, (ObjectIndex::MIN, generation));
    }

    fn next(queue: &mut WriteThrough, found: Option<u64>) -> Option<(NamespaceIndex, Entry)> {
        let first = queue.first();
        assert_eq!(queue.first(), first, "it stays until it is served");
        queue.pop(found);
        first
    }

    #[test]
    fn list_is_bounded_and_no_namespace_fills_it() {
        let [hog, other] = namespaces();
        let mut queue = WriteThrough::default();
        // Fifteen sixteenths, and one.
        let most = WRITE_THROUGH_MAX / 16 * 15 + 1;
        (0..=most).for_each(|at| push(&mut queue, hog, 1, at));
        assert_eq!((queue.len, queue.unlisted.contains(&hog)), (most, true));
        push(&mut queue, hog, 1, most + 1);
        assert_eq!((queue.len, queue.turns.len()), (most, most + 1), "one entry is for all others");
        for at in 0..WRITE_THROUGH_MAX {
            push(&mut queue, other, 1, at);
        }
        assert!(queue.len <= WRITE_THROUGH_MAX && queue.unlisted.contains(&other));
        // As long as the catalog has further ones, they have their turns.
        let mut unlisted = 0;
        while queue.len > 0 {
            unlisted +=
                usize::from(next(&mut queue, Some(1 << 20)).is_some_and(|it| it.1 == Entry::Unlisted));
        }
        assert!(unlisted > WRITE_THROUGH_MAX / 2, "{unlisted}");
        assert_eq!(next(&mut queue, None).map(|it| it.1), Some(Entry::Unlisted));
        assert_eq!(next(&mut queue, None).map(|it| it.1), Some(Entry::Unlisted));
        assert_eq!((next(&mut queue, None), queue.unlisted.len(), queue.listed.len()), (None, 0, 0));
        push(&mut queue, hog, 1, 1);
        assert_eq!((queue.len, queue.unlisted.len()), (1, 0), "it is listed again");
    }

    #[test]
    fn namespaces_and_their_clients_take_turns() {
        let [hog, other] = namespaces();
        let mut queue = WriteThrough::default();
        (0..100).for_each(|at| push(&mut queue, hog, 1, at));
        push(&mut queue, hog, 2, 200);
        (300..303).for_each(|at| push(&mut queue, other, 3, at));
        let mut served = Vec::new();
        while let Some((_, Entry::Object(_, generation))) = next(&mut queue, None) {
            served.push(generation.counter);
        }
        let turn = |of: u64| served.iter().position(|it| *it == of).unwrap();
        assert!(turn(302) < 8, "{served:?}");
        assert!(turn(200) < 8, "{served:?}");
        assert!(turn(1) < turn(2) && turn(98) < turn(99), "each client's in order");
        assert_eq!(served.len(), 104);
    }
}
