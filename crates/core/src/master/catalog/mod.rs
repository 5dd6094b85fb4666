//! The catalog: which key is which object, and where its replicas are.
//!
//! Objects have indexes, and hash tables map names to indexes. So an object costs one record and one table
//! entry. [`eviction_lists`] keeps the eviction order.
//!
//! With ten million objects, nearly every memory access of a lookup is a cache miss. So names are looked up
//! in batches and in steps. Each step touches what the next one needs, for all names of the batch. The
//! misses overlap, so a name of a batch costs a fraction of a single lookup.
//!
//! **Invariant:** no hash table is ever iterated; pages of objects follow the indexes.

mod eviction_lists;
mod expiries;
mod object;
mod slab;
#[cfg(test)]
mod tests;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

pub(super) use eviction_lists::{Eviction, Scope};
use eviction_lists::{EvictionList, EvictionLists};
use expiries::Expiries;
pub(super) use object::Object;
use object::Replica;
use slab::Slab;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    Generation, Key, SlotRef, Tick,
    attributes::Attributes,
    message::{OWNERS_MAX, OwnerStat},
    mutant::{Mutant, is_mutant},
    names::{NIL, Names},
};

/// The index of a node in the master's table. Reused only after all references to it are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeIndex(pub(super) u16);

/// The index of an object. Reused after the object is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectIndex(u32);

impl ObjectIndex {
    pub(super) const MIN: Self = Self(0);
    pub(super) const MAX: Self = Self(u32::MAX);
}

/// The index of a client's label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LabelIndex(pub(super) u16);

/// The index of a namespace: its position, and which use of that position it is. A position is used again
/// after its namespace was forgotten, by a namespace with another index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NamespaceIndex(u32);

/// The bits of a namespace's position; the bits above count the uses.
const POSITION_BITS: u32 = 20;
/// Positions are used again when so many are free, the longest free first. So it takes millions of namespaces
/// until an index is used again, and nothing remembers one for that long.
const POSITIONS_FREE_MIN: usize = 1 << 10;

impl NamespaceIndex {
    fn position(self) -> usize {
        (self.0 & ((1 << POSITION_BITS) - 1)) as usize
    }

    /// The index as a number, which groups the turns of a queue.
    pub(super) fn number(self) -> u64 {
        u64::from(self.0)
    }

    /// The next use of the same position.
    fn next_use(self) -> Self {
        Self(self.0.wrapping_add(1 << POSITION_BITS))
    }
}

/// Identifies a token that is limited to namespaces, while the master runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenId(pub u64);

/// The objects that take turns together: see [`Namespace::turn_group`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TurnGroup(pub(super) u64);

/// Number of names that are looked up together: the data that they touch fits into the L1 cache.
pub(super) const TOGETHER: usize = 64;
/// Minimum number of names for which the steps pay off.
const FEW: usize = 3;

/// The properties of a new object.
#[derive(Debug)]
pub(super) struct NewObject {
    pub(super) namespace: NamespaceIndex,
    pub(super) key: Key,
    pub(super) generation: Generation,
    pub(super) len: u64,
    pub(super) attributes: Attributes,
    pub(super) writer: LabelIndex,
    /// Zero if it has no soft pin.
    pub(super) soft_until: Tick,
    /// At least one.
    pub(super) replicas: Vec<(NodeIndex, SlotRef)>,
}

/// The objects that one owner pins in one namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pinned {
    objects: u64,
    bytes: u64,
}

type Owners = BTreeMap<(NamespaceIndex, String), Pinned>;

impl Pinned {
    fn add(&mut self, len: u64) {
        (self.objects, self.bytes) = (self.objects + 1, self.bytes + len);
    }
}

/// Subtracts one object from the pins of an owner. An owner without pins is removed.
fn subtract(owners: &mut Owners, owner: (NamespaceIndex, String), len: u64) {
    let Entry::Occupied(mut entry) = owners.entry(owner) else { return };
    let pinned = entry.get_mut();
    (pinned.objects, pinned.bytes) = (pinned.objects - 1, pinned.bytes - len);
    if pinned.objects == 0 {
        entry.remove();
    }
}

impl Namespace {
    /// Those that take turns together: all namespaces that a token has used last, or this one.
    pub(super) fn turn_group(&self, mutant: Mutant) -> TurnGroup {
        let token = self.token.filter(|_| !is_mutant!(mutant, TurnsOfEachNamespace));
        // Namespaces have fewer bits, so that no token has the number of one.
        TurnGroup(token.map_or(self.index.number(), |it| it.0 | 1 << 63))
    }
}

fn count_pin(
    namespaces: &mut [Namespace],
    of_tokens: &mut BTreeMap<TokenId, u64>,
    namespace: NamespaceIndex,
    change: i64,
) {
    let found = namespaces.get_mut(namespace.position()).filter(|it| it.index == namespace);
    let Some(found) = found else { return };
    found.pins = found.pins.wrapping_add_signed(change);
    if let Some(token) = found.token {
        count_pins_of(of_tokens, token, change);
    }
}

/// Changes the number of pins of a token. None is zero.
fn count_pins_of(of_tokens: &mut BTreeMap<TokenId, u64>, token: TokenId, change: i64) {
    let pins = of_tokens.entry(token).or_default();
    *pins = pins.wrapping_add_signed(change);
    if *pins == 0 {
        of_tokens.remove(&token);
    }
}

/// One namespace's name and totals.
#[derive(Debug)]
pub(super) struct Namespace {
    index: NamespaceIndex,
    /// Empty if the position is free.
    pub(super) name: String,
    pub(super) objects: u64,
    pub(super) bytes: u64,
    /// Memory of its objects on all nodes, each copy counted.
    pub(super) committed: u64,
    /// Number of its hard pins, of all owners.
    pub(super) pins: u64,
    /// The token that used it last, of those that are limited to namespaces.
    token: Option<TokenId>,
}

/// The results of names that were looked up together, in their order.
pub(super) type Together = [Option<ObjectIndex>; TOGETHER];

/// The catalog.
#[derive(Debug)]
pub(super) struct Catalog {
    hash_seed: u64,
    names: Names,
    objects: Slab<Object>,
    lists: EvictionLists,
    /// By position.
    namespaces: Vec<Namespace>,
    /// Positions whose namespace was forgotten, the longest free first.
    free_positions: VecDeque<usize>,
    namespace_names: BTreeMap<String, NamespaceIndex>,
    /// Objects with a soft pin, by the time it ends.
    soft: BTreeSet<(Tick, u32)>,
    expiries: Expiries,
    /// Hard pins, by owner.
    pins: BTreeSet<(NamespaceIndex, String, u32)>,
    /// The totals of the hard pins, by owner.
    owners: Owners,
    /// The number of hard pins in the namespaces of each token. None is zero.
    pins_of_tokens: BTreeMap<TokenId, u64>,
    /// Objects that are to have more than one copy.
    copied: u64,
    /// An object of these has lost a copy, or began with fewer.
    has_lost_copy: bool,
    /// Tiers that known objects have entered or left since this was last taken; `None` without subscribers.
    tier_changes: Option<Vec<TierChange>>,
}

/// A known object has its first copy in a tier, or no copy there any more.
#[derive(Debug)]
pub(super) struct TierChange {
    pub(super) namespace: NamespaceIndex,
    pub(super) key: Key,
    pub(super) on_disk: bool,
    pub(super) is_stored: bool,
}

impl Catalog {
    /// `wall_ms` is the wall clock at the first tick.
    pub(super) fn new(hash_seed: u64, wall_ms: u64, mutant: Mutant) -> Self {
        Self {
            hash_seed,
            names: Names::default(),
            objects: Slab::new(),
            lists: EvictionLists::default(),
            namespaces: Vec::new(),
            free_positions: VecDeque::new(),
            namespace_names: BTreeMap::new(),
            soft: BTreeSet::new(),
            expiries: Expiries::new(wall_ms, mutant),
            pins: BTreeSet::new(),
            owners: Owners::new(),
            pins_of_tokens: BTreeMap::new(),
            tier_changes: None,
            copied: 0,
            has_lost_copy: false,
        }
    }

    /// How many objects are to have more than one copy.
    pub(super) fn copied(&self) -> u64 {
        self.copied
    }

    /// Whether one of these has lost a copy, or began with fewer, since this was last asked.
    pub(super) fn take_lost_copy(&mut self) -> bool {
        std::mem::take(&mut self.has_lost_copy)
    }

    /// The index of a namespace; created if necessary.
    pub(super) fn intern(&mut self, name: &str) -> NamespaceIndex {
        if let Some(&index) = self.namespace_names.get(name) {
            return index;
        }
        let reused = match self.free_positions.len() > POSITIONS_FREE_MIN {
            true => self.free_positions.pop_front().and_then(|it| self.namespaces.get_mut(it)),
            false => None,
        };
        let index = match reused {
            Some(namespace) => {
                namespace.index = namespace.index.next_use();
                name.clone_into(&mut namespace.name);
                namespace.index
            }
            None => {
                assert!(self.namespaces.len() < 1 << POSITION_BITS, "too many namespaces");
                let index = NamespaceIndex(self.namespaces.len() as u32);
                let (objects, bytes, committed, pins, token) = Default::default();
                let name = name.to_owned();
                self.namespaces.push(Namespace { index, name, objects, bytes, committed, pins, token });
                index
            }
        };
        self.namespace_names.insert(name.to_owned(), index);
        index
    }

    /// Forgets a namespace that has no objects.
    pub(super) fn forget_namespace(&mut self, index: NamespaceIndex) {
        let namespace = self.namespaces.get_mut(index.position()).filter(|it| it.index == index);
        if let Some(namespace) = namespace.filter(|it| it.objects == 0 && !it.name.is_empty()) {
            namespace.token = None;
            self.namespace_names.remove(&std::mem::take(&mut namespace.name));
            self.free_positions.push_back(index.position());
        }
    }

    /// Number of namespaces.
    pub(super) fn namespace_count(&self) -> usize {
        self.namespace_names.len()
    }

    /// The first namespace after that name, or the first of all.
    pub(super) fn namespace_after(&self, name: &str) -> Option<NamespaceIndex> {
        let after = (Bound::Excluded(name), Bound::Unbounded);
        let next = self.namespace_names.range::<str, _>(after).next();
        next.or_else(|| self.namespace_names.first_key_value()).map(|it| *it.1)
    }

    /// The index of a namespace, if it is known.
    pub(super) fn namespace_index(&self, name: &str) -> Option<NamespaceIndex> {
        self.namespace_names.get(name).copied()
    }

    pub(super) fn namespace(&self, index: NamespaceIndex) -> Option<&Namespace> {
        self.namespaces.get(index.position()).filter(|it| it.index == index)
    }

    /// Every namespace.
    pub(super) fn namespace_indexes(&self) -> impl Iterator<Item = NamespaceIndex> {
        self.namespaces.iter().filter(|it| !it.name.is_empty()).map(|it| it.index)
    }

    pub(super) fn namespace_name(&self, index: NamespaceIndex) -> &str {
        self.namespace(index).map_or("", |it| it.name.as_str())
    }

    /// A client of a token that is limited to namespaces uses a namespace. From now on its pins are those of
    /// that token.
    pub(super) fn set_token(&mut self, index: NamespaceIndex, token: TokenId) {
        let namespace = self.namespaces.get_mut(index.position()).filter(|it| it.index == index);
        let Some(namespace) = namespace.filter(|it| it.token != Some(token)) else { return };
        let (before, pins) = (namespace.token.replace(token), namespace.pins.cast_signed());
        before.into_iter().for_each(|it| count_pins_of(&mut self.pins_of_tokens, it, -pins));
        count_pins_of(&mut self.pins_of_tokens, token, pins);
    }

    /// The number of hard pins in the namespaces that each token has used last. None is zero.
    pub(super) fn pins_of_tokens(&self) -> &BTreeMap<TokenId, u64> {
        &self.pins_of_tokens
    }

    pub(super) fn soft_pinned(&self) -> u64 {
        self.soft.len() as u64
    }

    pub(super) fn get(&self, index: ObjectIndex) -> Option<&Object> {
        self.objects.get(index.0)
    }

    pub(super) fn find(&self, namespace: NamespaceIndex, key: &Key) -> Option<ObjectIndex> {
        self.find_bytes(namespace, key.as_bytes())
    }

    /// The same for bytes that may not be a valid key.
    pub(super) fn find_bytes(&self, namespace: NamespaceIndex, key: &[u8]) -> Option<ObjectIndex> {
        self.find_hashed(self.hash(namespace, key), namespace, key)
    }

    /// Finds at most [`TOGETHER`] names at a time.
    pub(super) fn find_all(&self, namespace: NamespaceIndex, keys: &[impl AsRef<[u8]>]) -> Together {
        let mut hashes = [0; TOGETHER];
        let mut found = [None; TOGETHER];
        for (hash, key) in hashes.iter_mut().zip(keys) {
            *hash = self.hash(namespace, key.as_ref());
        }
        let hashes = hashes.get(..keys.len()).unwrap_or(&hashes);
        if keys.len() >= FEW {
            let mut sum = 0;
            hashes.iter().for_each(|&hash| sum ^= self.names.warm(hash));
            let likely = |hash| self.objects.get(self.names.find(hash, |_| true)?);
            hashes.iter().for_each(|&hash| sum ^= likely(hash).map_or(0, Object::warm));
            hashes.iter().for_each(|&hash| sum ^= likely(hash).map_or(0, Object::warm_key));
            std::hint::black_box(sum);
        }
        for ((found, key), &hash) in found.iter_mut().zip(keys).zip(hashes) {
            *found = self.find_hashed(hash, namespace, key.as_ref());
        }
        found
    }

    /// Adds an object under a name that is free.
    pub(super) fn insert(&mut self, now: Tick, new: NewObject) -> Option<ObjectIndex> {
        let hash = self.hash(new.namespace, new.key.as_bytes());
        let object = Object::new(now, new)?;
        let (namespace, len, soft_until) = (object.namespace(), object.len(), object.soft_until());
        if let Some(namespace) = self.namespaces.get_mut(namespace.position()) {
            namespace.objects += 1;
            namespace.bytes += len;
            namespace.committed = namespace.committed.wrapping_add(object.space());
        }
        if object.copies_wanted() > 1 {
            self.copied += 1;
            self.has_lost_copy |= object.replica_count() < object.copies_wanted();
        }
        let index = self.objects.insert(object);
        if soft_until > Tick(0) {
            self.soft.insert((soft_until, index));
        }
        if let Some((object, attributes)) =
            self.objects.get(index).and_then(|it| Some((it, it.attributes()?)))
        {
            self.expiries.list(index, object);
            for owner in &attributes.pins {
                self.pins.insert((namespace, owner.clone(), index));
                self.owners.entry((namespace, owner.clone())).or_default().add(len);
                count_pin(&mut self.namespaces, &mut self.pins_of_tokens, namespace, 1);
            }
        }
        self.names.insert(hash, index);
        self.lists.enlist(&mut self.objects, ObjectIndex(index));
        Some(ObjectIndex(index))
    }

    /// Removes an object, and returns it with its replicas.
    pub(super) fn remove(&mut self, index: ObjectIndex) -> Option<Object> {
        self.lists.delist(&mut self.objects, index);
        let object = self.objects.remove(index.0)?;
        self.copied -= u64::from(object.copies_wanted() > 1);
        self.names.remove(self.hash(object.namespace(), object.key().as_bytes()), index.0);
        if object.soft_pin() {
            self.soft.remove(&(object.soft_until(), index.0));
        }
        if let Some(attributes) = object.attributes() {
            self.expiries.strike(index.0, &object);
            for owner in &attributes.pins {
                self.pins.remove(&(object.namespace(), owner.clone(), index.0));
                subtract(&mut self.owners, (object.namespace(), owner.clone()), object.len());
                count_pin(&mut self.namespaces, &mut self.pins_of_tokens, object.namespace(), -1);
            }
        }
        if let Some(namespace) = self.namespaces.get_mut(object.namespace().position()) {
            namespace.objects -= 1;
            namespace.bytes -= object.len();
            namespace.committed = namespace.committed.wrapping_sub(object.space());
        }
        Some(object)
    }

    /// Counts a use: the object moves to the recent end of its eviction list. With a lease, it is not
    /// evicted before the lease ends.
    pub(super) fn touch(&mut self, index: ObjectIndex, now: Tick, lease_until: Option<Tick>) {
        if let Some(object) = self.objects.get_mut(index.0) {
            object.touch(now, lease_until);
        }
        if !self.lists.stays(&self.objects, index) {
            self.relist(index);
        }
    }

    /// Counts one use of each object that was found. `reader` is the client that reads them, if they are
    /// used for a read.
    pub(super) fn touch_all(
        &mut self,
        found: &[Option<ObjectIndex>],
        now: Tick,
        lease_until: Option<Tick>,
        reader: Option<LabelIndex>,
    ) {
        if found.len() >= FEW {
            std::hint::black_box(self.warm_neighbours(found.iter().flatten().copied()));
        }
        for &index in found.iter().flatten() {
            if let Some((object, reader)) = self.objects.get_mut(index.0).zip(reader) {
                object.read_by(reader);
            }
            self.touch(index, now, lease_until);
        }
    }

    /// Ends the protection of an object that lasts until `until`, and restores its lease of before.
    pub(super) fn end_protection(&mut self, index: ObjectIndex, before: Tick, until: Tick) {
        let object = self.objects.get_mut(index.0).filter(|it| it.lease_until() <= until);
        if object.map(|it| it.lease_again(before)).is_some() {
            self.relist(index);
        }
    }

    /// Ends the soft pins that have expired.
    pub(super) fn end_soft_pins(&mut self, now: Tick) {
        while let Some(&(until, index)) = self.soft.first().filter(|it| it.0 <= now) {
            self.soft.remove(&(until, index));
            if let Some(object) = self.objects.get_mut(index) {
                object.end_soft_pin();
            }
            self.relist(ObjectIndex(index));
        }
    }

    pub(super) fn next_soft_pin_end(&self) -> Option<Tick> {
        self.soft.first().map(|it| it.0)
    }

    /// The objects that expire.
    pub(super) fn expiries(&self) -> &Expiries {
        &self.expiries
    }

    /// The time until an object expires, if it has a TTL; zero if only a pin keeps it.
    pub(super) fn expires_in_ms(&self, object: &Object, now: Tick) -> Option<u64> {
        Some(object.expires(self.expiries.wall_ms())?.0.saturating_sub(now.0))
    }

    /// Replaces the attributes of an object, and moves it to the matching eviction list.
    pub(super) fn set_attributes(&mut self, index: ObjectIndex, attributes: Attributes) {
        let Some(object) = self.objects.get_mut(index.0) else { return };
        let (namespace, len, before) = (object.namespace(), object.len(), object.space());
        self.expiries.strike(index.0, object);
        self.copied = self.copied + u64::from(attributes.copies > 1) - u64::from(object.copies_wanted() > 1);
        for owner in &attributes.pins {
            if self.pins.insert((namespace, owner.clone(), index.0)) {
                self.owners.entry((namespace, owner.clone())).or_default().add(len);
                count_pin(&mut self.namespaces, &mut self.pins_of_tokens, namespace, 1);
            }
        }
        let pins = attributes.pins.clone();
        for owner in object.set_attributes(attributes).pins.into_iter().filter(|it| !pins.contains(it)) {
            if self.pins.remove(&(namespace, owner.clone(), index.0)) {
                subtract(&mut self.owners, (namespace, owner), len);
                count_pin(&mut self.namespaces, &mut self.pins_of_tokens, namespace, -1);
            }
        }
        self.objects.get(index.0).into_iter().for_each(|it| self.expiries.list(index.0, it));
        let now = self.objects.get(index.0).map_or(before, Object::space);
        self.charge(namespace, now.wrapping_sub(before), u64::wrapping_add);
        self.relist(index);
    }

    /// The pins of the owners in a namespace, those with the most bytes first.
    pub(super) fn owners(&self, namespace: NamespaceIndex) -> Vec<OwnerStat> {
        let all = self.owners.range((namespace, String::new())..).take_while(|it| it.0.0 == namespace);
        let stat = |((_, owner), pinned): (&(NamespaceIndex, String), &Pinned)| OwnerStat {
            owner: owner.clone(),
            objects: pinned.objects,
            bytes: pinned.bytes,
        };
        let mut owners: Vec<_> = all.map(stat).collect();
        owners.sort_by_key(|it| std::cmp::Reverse(it.bytes));
        owners.truncate(OWNERS_MAX);
        owners
    }

    /// What an owner pins in a namespace.
    pub(super) fn pinned_by(&self, namespace: NamespaceIndex, owner: &str) -> Vec<ObjectIndex> {
        let first = (namespace, owner.to_owned(), 0);
        let last = (namespace, owner.to_owned(), NIL);
        self.pins.range(first..=last).map(|(_, _, index)| ObjectIndex(*index)).collect()
    }

    /// Notes from now on which tiers objects enter and leave.
    pub(super) fn note_tiers(&mut self) {
        self.tier_changes = Some(Vec::new());
    }

    /// The tiers that known objects have entered or left, in order.
    pub(super) fn take_tier_changes(&mut self) -> Vec<TierChange> {
        self.tier_changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Adds one more copy of a known object.
    pub(super) fn add_replica(&mut self, index: ObjectIndex, node: NodeIndex, slot_ref: SlotRef) {
        self.change_replicas(index, |object| object.add(Replica::new((node, slot_ref))));
    }

    /// Adds a copy that is being written: it cannot be read, but it is retired with the others.
    pub(super) fn add_pending(&mut self, index: ObjectIndex, node: NodeIndex, slot_ref: SlotRef) {
        self.change_replicas(index, |object| object.add(Replica::pending((node, slot_ref))));
    }

    /// A disk begins to read the copy in the memory of that node, or has finished.
    pub(super) fn set_demoting(&mut self, index: ObjectIndex, node: NodeIndex, demoting: bool) {
        if self.get(index).is_some_and(|it| it.is_demoting(node) != demoting) {
            self.change_replicas(index, |object| object.set_demoting(node, demoting));
        }
    }

    /// Makes a copy readable that was being written. `false` if there is no such copy.
    pub(super) fn complete(&mut self, index: ObjectIndex, node: NodeIndex, slot_ref: SlotRef) -> bool {
        let mut completed = false;
        self.change_replicas(index, |object| completed = object.complete(node, slot_ref));
        completed
    }

    /// The node of a copy that was being written is disconnected. It may have the copy, which keeps the
    /// object.
    pub(super) fn set_unconfirmed(&mut self, index: ObjectIndex, node: NodeIndex) {
        self.change_replicas(index, |object| object.set_unconfirmed(node));
    }

    /// Removes the copy on one node, and the object with its last copy.
    pub(super) fn drop_replica(&mut self, index: ObjectIndex, node: NodeIndex) {
        let Some(object) = self.get(index).filter(|it| it.on(node).is_some()) else { return };
        if object.all().count() == 1 {
            self.remove(index);
            return;
        }
        self.has_lost_copy |= object.copies_wanted() > 1;
        self.change_replicas(index, |object| object.forget(node));
    }

    /// Changes the copies of an object, and updates the totals.
    fn change_replicas(&mut self, index: ObjectIndex, change: impl FnOnce(&mut Object)) {
        self.lists.delist(&mut self.objects, index);
        if let Some(object) = self.objects.get_mut(index.0) {
            let (namespace, before) = (object.namespace(), object.space());
            let tiers = object.tiers();
            change(object);
            let now = object.space();
            for (on_disk, was, is) in [(false, tiers.0, object.tiers().0), (true, tiers.1, object.tiers().1)]
            {
                if let Some(changes) = self.tier_changes.as_mut().filter(|_| was != is) {
                    let key = object.key().clone();
                    changes.push(TierChange { namespace, key, on_disk, is_stored: is });
                }
            }
            self.charge(namespace, now.wrapping_sub(before), u64::wrapping_add);
        }
        self.lists.enlist(&mut self.objects, index);
    }

    /// Visits objects from index `first` on until `wanted` returns `false`, and scans at most `scan`
    /// indexes. Returns the index to continue from, or 0 at the end.
    pub(super) fn page(
        &self,
        first: u64,
        scan: usize,
        mut wanted: impl FnMut(ObjectIndex, &Object) -> bool,
    ) -> u64 {
        let bound = self.objects.bound();
        let start = usize::try_from(first).unwrap_or(usize::MAX).min(bound);
        let end = start.saturating_add(scan).min(bound);
        for (index, object) in self.objects.range(start..end) {
            if !wanted(ObjectIndex(index), object) {
                return u64::from(index);
            }
        }
        if end == bound { 0 } else { end as u64 }
    }

    /// The objects with a copy on a node, from index `first` on: at most `count`, among at most `scan`
    /// indexes. Also returns the index to continue from, or 0 at the end.
    pub(super) fn page_on(
        &self,
        node: NodeIndex,
        first: u64,
        count: usize,
        scan: usize,
    ) -> (Vec<ObjectIndex>, u64) {
        let mut found = Vec::new();
        let next = self.page(first, scan, |index, object| {
            let is_there = object.is_on(node);
            if is_there && found.len() == count {
                return false;
            }
            found.extend(is_there.then_some(index));
            true
        });
        (found, next)
    }

    fn relist(&mut self, index: ObjectIndex) {
        self.lists.delist(&mut self.objects, index);
        self.lists.enlist(&mut self.objects, index);
    }

    fn charge(&mut self, namespace: NamespaceIndex, space: u64, change: fn(u64, u64) -> u64) {
        if let Some(it) = self.namespaces.get_mut(namespace.position()) {
            it.committed = change(it.committed, space);
        }
    }

    fn find_hashed(&self, hash: u64, namespace: NamespaceIndex, key: &[u8]) -> Option<ObjectIndex> {
        let is = |it: &Object| it.namespace() == namespace && it.key().as_bytes() == key;
        self.names.find(hash, |index| self.objects.get(index).is_some_and(is)).map(ObjectIndex)
    }

    /// The hash under which names are listed.
    pub(super) fn hash(&self, namespace: NamespaceIndex, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.hash_seed ^ u64::from(namespace.0))
    }
}
