//! The last removals, so that the master can say why an object is gone.
//!
//! **Invariant:** the index lists the newest removal of each name, and no other. A question costs one lookup,
//! however many removals are remembered.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::{
    Generation, Key, Tick,
    master::{
        catalog::{LabelIndex, NamespaceIndex},
        context::Context,
        pending_retires::Name,
    },
    message::{Cause, Gone, Why},
    mutant::{Mutant, is_mutant},
    names::Names,
};

/// Maximum number of removals that are remembered. A power of two.
pub(in crate::master) const HISTORY_MAX: usize = 1 << 16;
/// Maximum size of the removals that are remembered, names included, in bytes.
pub(in crate::master) const HISTORY_BYTES_MAX: usize = 32 << 20;

/// The last removals, newest last.
#[derive(Debug, Default)]
pub(in crate::master) struct History {
    past: VecDeque<Past>,
    /// The number of the oldest one. The position of a removal in the index is its number modulo
    /// [`HISTORY_MAX`].
    first: usize,
    newest: Names,
    bytes: usize,
    /// Number of removals that were forgotten because there were too many, or because they were too long.
    forgotten: (u64, u64),
    mutant: Mutant,
}

#[derive(Debug)]
struct Past {
    name: Arc<Name>,
    hash: u64,
    generation: Generation,
    cause: Cause,
    by: String,
    at: Tick,
    node: String,
    for_key: Option<Key>,
    reader: LabelIndex,
    disk_bytes_max: u64,
}

impl Past {
    fn bytes(&self) -> usize {
        let key = |key: &Key| key.as_bytes().len();
        let strings = self.by.len() + self.node.len();
        size_of::<Self>() + key(&self.name.key) + self.for_key.as_ref().map_or(0, key) + strings
    }
}

impl History {
    pub(in crate::master) fn new(mutant: Mutant) -> Self {
        Self { mutant, ..Self::default() }
    }

    /// Records a removal. `hash` is the catalog's hash of the name.
    pub(in crate::master) fn note(
        &mut self,
        at: Tick,
        (name, hash): (Arc<Name>, u64),
        generation: Generation,
        (cause, by): (Cause, &str),
        reader: LabelIndex,
    ) {
        if self.past.len() == HISTORY_MAX {
            self.forget_oldest();
            self.forgotten.0 += 1;
        }
        if let Some(before) = self.find(&name, hash) {
            self.newest.remove(hash, before);
        }
        self.newest.insert(hash, position(self.first + self.past.len()));
        self.past.push_back(Past {
            name,
            hash,
            generation,
            cause,
            by: by.to_owned(),
            at,
            node: String::new(),
            for_key: None,
            reader,
            disk_bytes_max: 0,
        });
        self.bytes += self.past.back().map_or(0, Past::bytes);
        self.limit_bytes();
    }

    /// Number of removals that are remembered.
    pub(in crate::master) fn len(&self) -> usize {
        self.past.len()
    }

    /// Size of the removals that are remembered, in bytes.
    pub(in crate::master) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of removals that were forgotten because there were too many.
    pub(in crate::master) fn forgotten(&self) -> u64 {
        self.forgotten.0
    }

    /// Number of removals that were forgotten because their names were too long together.
    pub(in crate::master) fn forgotten_for_bytes(&self) -> u64 {
        self.forgotten.1
    }

    /// Records where the last removal freed space, and for which key.
    pub(in crate::master) fn freed_space(&mut self, node: String, key: &Key) {
        self.change_last(|past| (past.node, past.for_key) = (node, Some(key.clone())));
    }

    /// Records the maximum object size of its disk, if that disk had refused the object of the last
    /// removal.
    pub(in crate::master) fn had_been_refused(&mut self, disk_bytes_max: u64) {
        if let Some(past) = self.past.back_mut() {
            past.disk_bytes_max = disk_bytes_max;
        }
    }

    /// Records the node that caused the last removal.
    pub(in crate::master) fn went_with(&mut self, node: String) {
        self.change_last(|past| past.node = node);
    }

    /// Why an object of that name is gone, as far as it is remembered.
    pub(in crate::master) fn why_gone(&self, cx: &Context, namespace: NamespaceIndex, key: &Key) -> Why {
        let name = Name { namespace, key: key.clone() };
        let position = self.find(&name, cx.catalog.hash(namespace, key.as_bytes()));
        let Some(past) = position.and_then(|it| self.at(it)) else { return Why::Unknown };
        Why::Gone(Gone {
            generation: past.generation,
            cause: past.cause,
            by: past.by.clone(),
            ago_ms: cx.now.0.saturating_sub(past.at.0),
            node: past.node.clone(),
            for_key: past.for_key.clone(),
            reader: cx.connections.label(past.reader),
            disk_bytes_max: past.disk_bytes_max,
        })
    }

    /// The position of the newest removal of a name.
    fn find(&self, name: &Name, hash: u64) -> Option<u32> {
        self.newest.find(hash, |it| self.at(it).is_some_and(|it| *it.name == *name))
    }

    fn at(&self, position: u32) -> Option<&Past> {
        self.past.get((position as usize).wrapping_sub(self.first) % HISTORY_MAX)
    }

    fn change_last(&mut self, change: impl FnOnce(&mut Past)) {
        let Some(past) = self.past.back_mut() else { return };
        self.bytes -= past.bytes();
        change(past);
        self.bytes += past.bytes();
        self.limit_bytes();
    }

    /// Forgets the oldest removals until the others fit. The last one always stays: it is below the limit.
    fn limit_bytes(&mut self) {
        while self.bytes > HISTORY_BYTES_MAX
            && self.past.len() > 1
            && !is_mutant!(self.mutant, RememberAnySize)
        {
            self.forget_oldest();
            self.forgotten.1 += 1;
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(past) = self.past.pop_front() {
            self.bytes -= past.bytes();
            self.newest.remove(past.hash, position(self.first));
            self.first += 1;
        }
    }
}

fn position(number: usize) -> u32 {
    (number % HISTORY_MAX) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KEY_BYTES_MAX;
    use crate::master::catalog::Catalog;

    struct Bench {
        history: History,
        namespace: NamespaceIndex,
    }

    impl Bench {
        fn new(mutant: Mutant) -> Self {
            let namespace = Catalog::new(0, 0, mutant).intern("default");
            Self { history: History::new(mutant), namespace }
        }

        /// Names differ by their number; all hashes collide.
        fn name(&self, number: usize, len: usize) -> Arc<Name> {
            let mut bytes = vec![b'k'; len];
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            Arc::new(Name { namespace: self.namespace, key: Key::new(&bytes).unwrap() })
        }

        fn note(&mut self, number: usize, len: usize, at: u64) {
            let name = self.name(number, len);
            let (generation, hash) = (Generation::default(), number as u64 % 64);
            self.history.note(Tick(at), (name, hash), generation, (Cause::Deleted, ""), LabelIndex(0));
        }

        /// The time of the newest removal of a name.
        fn at(&self, number: usize, len: usize) -> Option<u64> {
            let found = self.history.find(&self.name(number, len), number as u64 % 64)?;
            Some(self.history.at(found)?.at.0)
        }
    }

    #[test]
    fn history_finds_the_newest_removal_of_a_name() {
        let mut bench = Bench::new(Mutant::None);
        (0..3 * HISTORY_MAX as u64).for_each(|at| bench.note(at as usize % 1000, 8, at));
        assert_eq!((bench.history.len(), bench.history.forgotten()), (HISTORY_MAX, 2 * HISTORY_MAX as u64));
        let last = 3 * HISTORY_MAX as u64 - 1;
        for number in 0..1000 {
            assert!(bench.at(number, 8).is_some_and(|at| at + 1000 > last && at as usize % 1000 == number));
        }
        assert_eq!(bench.at(1000, 8), None);
    }

    #[test]
    fn history_has_as_many_removals_as_fit() {
        let mut bench = Bench::new(Mutant::None);
        let each = size_of::<Past>() + KEY_BYTES_MAX;
        let count = HISTORY_BYTES_MAX / each;
        (0..count).for_each(|it| bench.note(it, KEY_BYTES_MAX, 7));
        assert_eq!((bench.history.bytes(), bench.history.forgotten_for_bytes()), (count * each, 0));
        assert_eq!(bench.at(0, KEY_BYTES_MAX), Some(7));
        // One beyond the limit: the oldest is forgotten.
        bench.note(count, KEY_BYTES_MAX, 8);
        assert_eq!((bench.history.bytes(), bench.history.forgotten_for_bytes()), (count * each, 1));
        assert_eq!((bench.at(0, KEY_BYTES_MAX), bench.at(count, KEY_BYTES_MAX)), (None, Some(8)));
        // What is recorded later about a removal counts too.
        let key = bench.name(0, KEY_BYTES_MAX).key.clone();
        bench.history.freed_space(String::new(), &key);
        assert_eq!((bench.at(1, KEY_BYTES_MAX), bench.at(count, KEY_BYTES_MAX)), (None, Some(8)));
        assert!(bench.history.bytes() <= HISTORY_BYTES_MAX);
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn mutant_remembers_removals_of_any_size() {
        let mut bench = Bench::new(Mutant::RememberAnySize);
        (0..33).for_each(|it| bench.note(it, KEY_BYTES_MAX, 7));
        assert!(bench.history.bytes() > HISTORY_BYTES_MAX);
    }
}
