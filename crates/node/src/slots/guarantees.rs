//! Guaranteed minimums at a node: its part of each namespace's minimum stays free for that namespace, as far
//! as the namespace does not use it.
//!
//! The node decides, because only it knows what its memory is used for at the moment: what the master has
//! removed may be freed already, or still be in view.
//!
//! A minimum that is set, or raised, while others use the memory is missing there. Nothing is taken back:
//! until it is reached, an object of another namespace takes the place of objects that were evicted for it.
//! So it is reached as the master evicts more than it requests.

use std::collections::BTreeMap;

use tiffin_types::{
    message::{AllocateItem, Guarantee, Resource, Shortage},
    mutant::is_mutant,
    space_for,
};

use super::{Slot, Slots, space_of};

/// For which namespace memory is requested.
#[derive(Debug)]
pub(crate) struct Whose<'a> {
    /// Its name, if it has a guaranteed minimum.
    pub(crate) namespace: &'a str,
    /// The part of every guaranteed minimum.
    pub(crate) guarantees: &'a [Guarantee],
    /// The bytes of the objects that were evicted for it, and whose place nothing has taken yet.
    pub(crate) evicted: &'a mut u64,
}

/// How many namespaces without a minimum are counted beside those with one.
const COUNTED_SPARE: usize = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct Guarantees {
    /// The memory of each namespace that had a minimum when it was last looked at. Offers and retired uses
    /// are not included.
    used: BTreeMap<Box<str>, u64>,
    /// The memory that was in use beyond what was guaranteed, when memory was last requested. Objects may
    /// take the place of evicted ones up to this amount only: others may have taken that place already.
    last: u64,
}

impl Default for Guarantees {
    fn default() -> Self {
        Self { used: BTreeMap::new(), last: u64::MAX }
    }
}

impl Guarantees {
    /// Whether the memory of any namespace is counted.
    pub(super) fn counts_any(&self) -> bool {
        !self.used.is_empty()
    }

    pub(super) fn add(&mut self, namespace: Option<&str>, space: u64) {
        if let Some(used) = namespace.and_then(|it| self.used.get_mut(it)) {
            *used += space;
        }
    }

    pub(super) fn subtract(&mut self, namespace: Option<&str>, space: u64) {
        if let Some(used) = namespace.and_then(|it| self.used.get_mut(it)) {
            *used -= space;
        }
    }
}

impl Slots {
    /// Whether an object leaves every minimum that is guaranteed to another namespace. `evicted` bytes left
    /// for it, and for others that are requested with it.
    pub(super) fn check_guarantees(
        &self,
        Whose { namespace, guarantees, evicted }: &mut Whose<'_>,
        item: AllocateItem,
    ) -> Result<(), Shortage> {
        let space = space_for(item.len).unwrap_or(u64::MAX);
        let standing = self.granted.saturating_add(self.committed).saturating_add(self.retired.bytes());
        // For all namespaces: the part of its minimum that each uses, and that it does not use yet.
        let (mut used_sum, mut unused_sum) = (0_u64, 0_u64);
        for guarantee in guarantees.iter() {
            let mut used = self.used_by(&guarantee.namespace);
            if guarantee.namespace == *namespace {
                used = used.saturating_add(space);
            }
            used_sum = used_sum.saturating_add(used.min(guarantee.bytes));
            unused_sum = unused_sum.saturating_add(guarantee.bytes.saturating_sub(used));
        }
        let beyond = standing.saturating_add(space).saturating_sub(used_sum);
        let missing = space.saturating_add(unused_sum).saturating_sub(self.free());
        let replaces = space.min(**evicted);
        let grows = beyond.saturating_sub(self.guarantees.last).max(space - replaces);
        **evicted -= replaces;
        match missing.min(grows) {
            0 => Ok(()),
            _ if is_mutant!(self.config.mutant, TakeGuaranteed) => Ok(()),
            amount => Err(self.short_of(Resource::Bytes, amount, item)),
        }
    }

    /// Memory was requested: notes what is in use beyond what is guaranteed.
    pub(crate) fn note_guarantees(&mut self, guarantees: &[Guarantee]) {
        let standing = self.granted.saturating_add(self.committed).saturating_add(self.retired.bytes());
        let within = |it: &Guarantee| self.used_by(&it.namespace).min(it.bytes);
        let used_sum = guarantees.iter().map(within).fold(0, u64::saturating_add);
        self.guarantees.last = standing.saturating_sub(used_sum);
    }

    /// Counts the memory of these namespaces from now on.
    pub(crate) fn count_guaranteed(&mut self, guarantees: &[Guarantee]) {
        let counted = &mut self.guarantees.used;
        if counted.len() > guarantees.len().saturating_add(COUNTED_SPARE) {
            counted.retain(|namespace, _| guarantees.iter().any(|it| *it.namespace == **namespace));
        }
        let is_new = |it: &&Guarantee| !self.guarantees.used.contains_key(it.namespace.as_str());
        let new: Vec<Box<str>> =
            guarantees.iter().filter(is_new).map(|it| it.namespace.as_str().into()).collect();
        if new.is_empty() {
            return;
        }
        self.guarantees.used.extend(new.iter().map(|it| (it.clone(), 0)));
        for slot in self.slots.iter().flatten() {
            let namespace = slot.namespace().filter(|namespace| new.iter().any(|it| **it == **namespace));
            self.guarantees.add(namespace, space_of(&slot.extents));
        }
    }

    /// Memory of a namespace: what stands, and what is retired and still in view.
    fn used_by(&self, namespace: &str) -> u64 {
        let used = self.guarantees.used.get(namespace).copied().unwrap_or(0);
        used.saturating_add(self.retired.of(namespace))
    }
}

#[cfg(test)]
impl Slots {
    pub(crate) fn counted_namespaces(&self) -> usize {
        self.guarantees.used.len()
    }

    #[cfg(feature = "mutants")]
    pub(crate) fn mutant(&mut self, rule: tiffin_types::mutant::Mutant) {
        self.config.mutant = rule;
    }
}

impl Slot {
    /// The namespace that its memory counts for, if it is known.
    pub(super) fn namespace(&self) -> Option<&str> {
        self.identity.as_ref().map(|it| it.namespace.as_str()).or(self.owner.as_deref())
    }
}
