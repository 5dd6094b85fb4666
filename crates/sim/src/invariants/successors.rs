//! P2 across restarts of the master: an object does not come back after a client has seen its successor and
//! that was removed.
//!
//! A successor is removed together with what it had replaced, or after that. If the node of the older object
//! is away, its retire must be in the state folder before the last copy of the newer one is gone.
//!
//! A successor that was replaced itself is removed before that may be saved: the promise passes on to the
//! object that has replaced it, whether a client has seen that one or not.
//!
//! Exempt: objects of which the epoch that showed the successor did not know every copy, and everything once
//! the state folder is lost.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_types::Generation;

/// What the check remembers.
#[derive(Debug, Default)]
pub(crate) struct Successors {
    /// The objects that this epoch has shown, and the older ones of their names that it knew then.
    shown: BTreeMap<Generation, BTreeSet<Generation>>,
    /// The objects that have replaced such ones, and the older ones that these had replaced.
    inherited: BTreeMap<Generation, BTreeSet<Generation>>,
    /// Objects that must stay away, in any epoch, and the removed successor of each.
    outlived: BTreeMap<Generation, Generation>,
    /// The state folder was lost.
    is_over: bool,
}

impl Successors {
    /// The master restarts.
    pub(crate) fn forget_epoch(&mut self) {
        self.shown.clear();
        self.inherited.clear();
    }

    /// The state folder is lost, and with it the roster and what members owe.
    pub(crate) fn forget(&mut self) {
        *self = Self { is_over: true, ..Self::default() };
    }

    /// The successor that was removed before, if an object must stay away.
    pub(crate) fn removed_before(&self, generation: Generation) -> Option<Generation> {
        self.outlived.get(&generation).copied()
    }

    /// Whether it must still be recorded that this epoch shows an object.
    pub(crate) fn is_new(&self, generation: Generation) -> bool {
        !self.is_over && !self.shown.contains_key(&generation)
    }

    /// This epoch shows an object, and knows every copy of these older ones.
    pub(crate) fn show(&mut self, generation: Generation, known: BTreeSet<Generation>) {
        self.shown.insert(generation, known);
    }

    /// The last copy of an object is removed. If `newer` has replaced it, older ones stay away with that.
    /// True if they must stay away from now on.
    pub(crate) fn remove(&mut self, generation: Generation, newer: Option<Generation>) -> bool {
        let shown = self.shown.get(&generation).into_iter().flatten();
        let inherited = self.inherited.get(&generation).into_iter().flatten();
        let older: BTreeSet<_> = shown.chain(inherited).copied().collect();
        let Some(newer) = newer else {
            self.outlived.extend(older.iter().map(|it| (*it, generation)));
            return !older.is_empty();
        };
        self.inherited.entry(newer).or_default().extend(older);
        false
    }
}
