//! Which key is which object, and where its replicas lie.
//!
//! Objects are numbered; names are found through a hash table of numbers, so that an object costs one record
//! and one table entry. Each replica hangs in one list of its node, oldest use first: the eviction order is
//! kept, never searched.
//!
//! **Invariant:** every replica is in exactly one list of its node, the one that its object's protection and
//! lease call for.
//! **Invariant:** the hash table is never iterated; pages of objects follow the numbers.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{Generation, Hold, Key, Tick, extent::room_for, marks::Marks};

/// The place of a node in the master's table. Reused only after everything that names it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeIndex(pub(super) u16);

/// The number of an object. Reused after the object is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ObjectIndex(u32);

impl ObjectIndex {
    pub(super) const MIN: Self = Self(0);
    pub(super) const MAX: Self = Self(u32::MAX);
}

/// The number of what a client calls itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LabelIndex(pub(super) u32);

/// The number of a namespace; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NamespaceIndex(u32);

const NIL: u32 = u32::MAX;

/// The lists that a node's replicas hang in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// Nobody has leased them since they were put or last used.
    Idle = 0,
    /// Leased, so in the order in which leases run out.
    Leased = 1,
    /// As `Idle`, with a soft pin.
    SoftIdle = 2,
    /// As `Leased`, with a soft pin.
    SoftLeased = 3,
    /// With a hard pin: nothing is ever evicted from here.
    Pinned = 4,
}

const LINE_COUNT: usize = 5;

/// One copy of an object.
#[derive(Clone, Debug)]
struct Replica {
    hold: Hold,
    node: NodeIndex,
    older: u32,
    newer: u32,
}

/// One object. Kept small: there may be fifty million.
#[derive(Debug)]
pub(super) struct Object {
    key: Key,
    generation: Generation,
    len: u64,
    put: Tick,
    touched: Tick,
    lease_until: Tick,
    /// Zero if it has no soft pin.
    soft_until: Tick,
    first: Replica,
    #[expect(clippy::box_collection, reason = "eight bytes in the many objects that have one copy")]
    more: Option<Box<Vec<Replica>>>,
    /// Nothing in the many objects that have no marks.
    marks: Option<Box<Marks>>,
    namespace: NamespaceIndex,
    writer: LabelIndex,
    reader: Option<LabelIndex>,
    line: Line,
}

/// What a new object is.
#[derive(Debug)]
pub(super) struct NewObject {
    pub(super) namespace: NamespaceIndex,
    pub(super) key: Key,
    pub(super) generation: Generation,
    pub(super) len: u64,
    pub(super) marks: Marks,
    pub(super) writer: LabelIndex,
    /// Zero if it has no soft pin.
    pub(super) soft_until: Tick,
    /// At least one.
    pub(super) replicas: Vec<(NodeIndex, Hold)>,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    oldest: u32,
    newest: u32,
}

/// One namespace's name and sums.
#[derive(Debug, Default)]
pub(super) struct Namespace {
    pub(super) name: String,
    pub(super) objects: u64,
    pub(super) bytes: u64,
    /// Room of its objects on all nodes, each copy counted.
    pub(super) committed: u64,
}

/// The catalog.
#[derive(Debug)]
pub(super) struct Catalog {
    hash_seed: u64,
    names: HashTable<u32>,
    objects: Vec<Option<Object>>,
    unused: Vec<u32>,
    lines: Vec<[Ends; LINE_COUNT]>,
    namespaces: Vec<Namespace>,
    namespace_names: BTreeMap<String, NamespaceIndex>,
    /// Objects with a soft pin, by the time it ends.
    soft: BTreeMap<(Tick, u32), ()>,
    /// Hard pins, by owner.
    pins: BTreeSet<(NamespaceIndex, String, u32)>,
}

impl Object {
    pub(super) fn generation(&self) -> Generation {
        self.generation
    }
    pub(super) fn len(&self) -> u64 {
        self.len
    }
    pub(super) fn key(&self) -> &Key {
        &self.key
    }
    pub(super) fn hard_pin(&self) -> bool {
        self.marks.as_ref().is_some_and(|it| !it.pins.is_empty())
    }
    pub(super) fn marks(&self) -> Option<&Marks> {
        self.marks.as_deref()
    }
    pub(super) fn is_sample(&self) -> bool {
        self.marks.as_ref().is_some_and(|it| it.sample.is_some())
    }
    pub(super) fn put(&self) -> Tick {
        self.put
    }
    pub(super) fn writer(&self) -> LabelIndex {
        self.writer
    }
    pub(super) fn reader(&self) -> Option<LabelIndex> {
        self.reader
    }
    pub(super) fn touched(&self) -> Tick {
        self.touched
    }
    pub(super) fn lease_until(&self) -> Tick {
        self.lease_until
    }

    /// What its copies take up together.
    pub(super) fn room(&self) -> u64 {
        room_for(self.len).unwrap_or(0) * self.all().count() as u64
    }
    pub(super) fn soft_pin(&self) -> bool {
        self.soft_until > Tick(0)
    }
    pub(super) fn leased(&self, now: Tick) -> bool {
        self.lease_until > now
    }
    pub(super) fn namespace(&self) -> NamespaceIndex {
        self.namespace
    }

    pub(super) fn replicas(&self) -> impl Iterator<Item = (NodeIndex, Hold)> + '_ {
        self.all().map(|it| (it.node, it.hold))
    }

    fn all(&self) -> impl Iterator<Item = &Replica> {
        std::iter::once(&self.first).chain(self.more.iter().flat_map(|it| it.iter()))
    }

    fn on(&mut self, node: NodeIndex) -> Option<&mut Replica> {
        let more = self.more.iter_mut().flat_map(|it| it.iter_mut());
        std::iter::once(&mut self.first).chain(more).find(|it| it.node == node)
    }

    fn rightful_line(&self) -> Line {
        let protected = self.marks.as_ref().is_some_and(|it| it.protect());
        match (protected, self.soft_until > Tick(0), self.lease_until > Tick(0)) {
            (true, ..) => Line::Pinned,
            (_, false, false) => Line::Idle,
            (_, false, true) => Line::Leased,
            (_, true, false) => Line::SoftIdle,
            (_, true, true) => Line::SoftLeased,
        }
    }
}

impl Catalog {
    pub(super) fn new(hash_seed: u64) -> Self {
        Self {
            hash_seed,
            names: HashTable::new(),
            objects: Vec::new(),
            unused: Vec::new(),
            lines: Vec::new(),
            namespaces: Vec::new(),
            namespace_names: BTreeMap::new(),
            soft: BTreeMap::new(),
            pins: BTreeSet::new(),
        }
    }

    /// The number of a namespace, made if need be.
    pub(super) fn intern(&mut self, name: &str) -> NamespaceIndex {
        if let Some(&index) = self.namespace_names.get(name) {
            return index;
        }
        let index = NamespaceIndex(self.namespaces.len() as u32);
        self.namespaces.push(Namespace { name: name.to_owned(), ..Namespace::default() });
        self.namespace_names.insert(name.to_owned(), index);
        index
    }

    pub(super) fn namespace(&self, index: NamespaceIndex) -> Option<&Namespace> {
        self.namespaces.get(index.0 as usize)
    }

    /// Every namespace.
    pub(super) fn namespace_indexes(&self) -> impl Iterator<Item = NamespaceIndex> + use<> {
        (0..self.namespaces.len() as u32).map(NamespaceIndex)
    }

    pub(super) fn namespace_name(&self, index: NamespaceIndex) -> &str {
        self.namespaces.get(index.0 as usize).map_or("", |it| it.name.as_str())
    }

    pub(super) fn soft_pinned(&self) -> u64 {
        self.soft.len() as u64
    }

    pub(super) fn get(&self, index: ObjectIndex) -> Option<&Object> {
        self.objects.get(index.0 as usize)?.as_ref()
    }

    pub(super) fn find(&self, namespace: NamespaceIndex, key: &Key) -> Option<ObjectIndex> {
        let hash = self.hash(namespace, key);
        self.names.find(hash, |&index| self.is(index, namespace, key)).map(|&index| ObjectIndex(index))
    }

    /// Adds an object under a name that is free.
    pub(super) fn insert(&mut self, now: Tick, new: NewObject) -> Option<ObjectIndex> {
        let mut replicas =
            new.replicas.into_iter().map(|(node, hold)| Replica { hold, node, older: NIL, newer: NIL });
        let first = replicas.next()?;
        let more: Vec<_> = replicas.collect();
        let index = self.unused.pop().unwrap_or(self.objects.len() as u32);
        let hash = self.hash(new.namespace, &new.key);
        if let Some(namespace) = self.namespaces.get_mut(new.namespace.0 as usize) {
            namespace.objects += 1;
            namespace.bytes += new.len;
        }
        if new.soft_until > Tick(0) {
            self.soft.insert((new.soft_until, index), ());
        }
        for owner in &new.marks.pins {
            self.pins.insert((new.namespace, owner.clone(), index));
        }
        let object = Object {
            key: new.key,
            generation: new.generation,
            len: new.len,
            put: now,
            touched: now,
            lease_until: Tick(0),
            soft_until: new.soft_until,
            first,
            more: (!more.is_empty()).then(|| Box::new(more)),
            marks: (new.marks != Marks::default()).then(|| Box::new(new.marks)),
            namespace: new.namespace,
            writer: new.writer,
            reader: None,
            line: Line::Idle,
        };
        self.account(&object, u64::wrapping_add);
        if index as usize == self.objects.len() {
            self.objects.push(None);
        }
        if let Some(place) = self.objects.get_mut(index as usize) {
            *place = Some(object);
        }
        let (objects, seed) = (&self.objects, self.hash_seed);
        self.names.insert_unique(hash, index, |&other| hash_of(objects, seed, other));
        self.enlist(ObjectIndex(index));
        Some(ObjectIndex(index))
    }

    /// Takes an object out, and tells where its replicas lie.
    pub(super) fn remove(&mut self, index: ObjectIndex) -> Option<Object> {
        self.delist(index);
        let object = self.objects.get_mut(index.0 as usize)?.take()?;
        let hash = self.hash(object.namespace, &object.key);
        if let Ok(entry) = self.names.find_entry(hash, |&other| other == index.0) {
            entry.remove();
        }
        self.soft.remove(&(object.soft_until, index.0));
        for owner in object.marks().into_iter().flat_map(|it| &it.pins) {
            self.pins.remove(&(object.namespace, owner.clone(), index.0));
        }
        self.account(&object, u64::wrapping_sub);
        if let Some(namespace) = self.namespaces.get_mut(object.namespace.0 as usize) {
            namespace.objects -= 1;
            namespace.bytes -= object.len;
        }
        self.unused.push(index.0);
        Some(object)
    }

    /// Counts a use: the object moves to the recent end of its line. With a lease, nobody evicts it until
    /// then.
    pub(super) fn touch(&mut self, index: ObjectIndex, now: Tick, lease_until: Option<Tick>) {
        self.delist(index);
        if let Some(object) = self.get_mut(index) {
            object.touched = now;
            let still = if object.lease_until > now { object.lease_until } else { Tick(0) };
            object.lease_until = lease_until.map_or(still, |until| until.max(still));
        }
        self.enlist(index);
    }

    /// Remembers who used an object last.
    pub(super) fn read_by(&mut self, index: ObjectIndex, reader: LabelIndex) {
        if let Some(object) = self.get_mut(index) {
            object.reader = Some(reader);
        }
    }

    /// When the next lease ends that keeps an object from eviction.
    pub(super) fn next_lease_end(&self, now: Tick) -> Option<Tick> {
        let nodes = (0..self.lines.len()).map(|node| NodeIndex(node as u16));
        let lines = nodes.flat_map(|node| [(node, Line::Leased), (node, Line::SoftLeased)]);
        let leased = lines.filter_map(|(node, line)| self.oldest(node, line));
        leased.map(|(_, it)| it.lease_until).filter(|&until| until > now).min()
    }

    /// Ends the soft pins whose time has come.
    pub(super) fn end_soft_pins(&mut self, now: Tick) {
        while let Some((&(until, index), ())) = self.soft.first_key_value() {
            if until > now {
                break;
            }
            self.soft.remove(&(until, index));
            self.delist(ObjectIndex(index));
            if let Some(object) = self.get_mut(ObjectIndex(index)) {
                object.soft_until = Tick(0);
            }
            self.enlist(ObjectIndex(index));
        }
    }

    pub(super) fn next_soft_pin_end(&self) -> Option<Tick> {
        self.soft.first_key_value().map(|(&(until, _), ())| until)
    }

    /// Writes other marks on an object: it moves to the line that they call for.
    pub(super) fn mark(&mut self, index: ObjectIndex, marks: Marks) {
        self.delist(index);
        let Some(object) = self.objects.get_mut(index.0 as usize).and_then(Option::as_mut) else { return };
        let old = object.marks.take();
        for owner in old.iter().flat_map(|it| &it.pins) {
            self.pins.remove(&(object.namespace, owner.clone(), index.0));
        }
        for owner in &marks.pins {
            self.pins.insert((object.namespace, owner.clone(), index.0));
        }
        object.marks = (marks != Marks::default()).then(|| Box::new(marks));
        self.enlist(index);
    }

    /// Everything that an owner pins in a namespace.
    pub(super) fn pinned_by(&self, namespace: NamespaceIndex, owner: &str) -> Vec<ObjectIndex> {
        let first = (namespace, owner.to_owned(), 0);
        let last = (namespace, owner.to_owned(), NIL);
        self.pins.range(first..=last).map(|(_, _, index)| ObjectIndex(*index)).collect()
    }

    /// The next object of one namespace to leave any node, looking at no more than `scan` of each line.
    pub(super) fn next_victim_of(
        &self,
        namespace: NamespaceIndex,
        now: Tick,
        rules: Eviction,
        scan: usize,
    ) -> Option<ObjectIndex> {
        let lines = [Line::Idle, Line::Leased, Line::SoftIdle, Line::SoftLeased];
        let allowed = if rules.soft_pinned_too { &lines[..] } else { &lines[..2] };
        let nodes = (0..self.lines.len()).map(|node| NodeIndex(node as u16));
        let candidates = nodes.flat_map(|node| allowed.iter().map(move |&line| (node, line)));
        let oldest = candidates.filter_map(|(node, line)| {
            let mut line = self.line_of(node, line).take(scan);
            line.find(|(_, it)| it.namespace == namespace && !it.leased(now))
        });
        oldest.min_by_key(|(index, it)| (it.touched, *index)).map(|(index, _)| index)
    }

    /// Adds one more copy of an object that is known.
    pub(super) fn add_replica(&mut self, index: ObjectIndex, node: NodeIndex, hold: Hold) {
        self.delist(index);
        if let Some(object) = self.get_mut(index) {
            let replica = Replica { hold, node, older: NIL, newer: NIL };
            object.more.get_or_insert_default().push(replica);
            let (room, namespace) = (room_for(object.len).unwrap_or(0), object.namespace);
            self.charge(namespace, room, u64::wrapping_add);
        }
        self.enlist(index);
    }

    /// Forgets the copy on one node. The whole object if it was the last one.
    pub(super) fn drop_replica(&mut self, index: ObjectIndex, node: NodeIndex) {
        let Some(object) = self.get(index) else { return };
        if !object.all().any(|it| it.node == node) {
            return;
        }
        if object.more.is_none() {
            self.remove(index);
            return;
        }
        self.delist(index);
        if let Some(object) = self.get_mut(index) {
            let mut more = object.more.take().map_or_else(Vec::new, |it| *it);
            if object.first.node == node {
                object.first = more.remove(0);
            } else {
                more.retain(|it| it.node != node);
            }
            object.more = (!more.is_empty()).then(|| Box::new(more));
            let (room, namespace) = (room_for(object.len).unwrap_or(0), object.namespace);
            self.charge(namespace, room, u64::wrapping_sub);
        }
        self.enlist(index);
    }

    /// The next object to leave a node: the one unused for longest, soft-pinned ones only if all others are
    /// gone and it is allowed. Never a leased one, never a hard-pinned one.
    pub(super) fn next_victim(&self, node: NodeIndex, now: Tick, rules: Eviction) -> Option<ObjectIndex> {
        let oldest = |line: Line| self.oldest(node, line).filter(|(_, it)| !it.leased(now));
        let older = |one: Line, other: Line| {
            oldest(one).into_iter().chain(oldest(other)).min_by_key(|(index, it)| (it.touched, *index))
        };
        older(Line::Idle, Line::Leased)
            .or_else(|| rules.soft_pinned_too.then(|| older(Line::SoftIdle, Line::SoftLeased)).flatten())
            .or_else(|| rules.even_pinned.then(|| oldest(Line::Pinned)).flatten())
            .map(|(index, _)| index)
    }

    /// Every object with a copy on that node.
    pub(super) fn on_node(&self, node: NodeIndex) -> Vec<ObjectIndex> {
        let mut found = Vec::new();
        for ends in self.lines.get(node.0 as usize).into_iter().flatten() {
            let mut next = ends.oldest;
            while let Some(object) = self.get(ObjectIndex(next)) {
                found.push(ObjectIndex(next));
                next = object.all().find(|it| it.node == node).map_or(NIL, |it| it.newer);
            }
        }
        found
    }

    /// At most `count` objects from number `first` on, looking at no more than `scan` numbers, and where to
    /// go on.
    pub(super) fn page(
        &self,
        first: u64,
        scan: usize,
        mut wanted: impl FnMut(ObjectIndex, &Object) -> bool,
    ) -> u64 {
        let start = usize::try_from(first).unwrap_or(usize::MAX).min(self.objects.len());
        let mut place = start;
        for object in self.objects.iter().skip(start).take(scan) {
            if let Some(object) = object
                && !wanted(ObjectIndex(place as u32), object)
            {
                return place as u64;
            }
            place += 1;
        }
        if place == self.objects.len() { 0 } else { place as u64 }
    }

    /// One line, oldest use first.
    fn line_of(&self, node: NodeIndex, line: Line) -> impl Iterator<Item = (ObjectIndex, &Object)> {
        let mut next = self.oldest(node, line);
        std::iter::from_fn(move || {
            let (index, object) = next?;
            let newer = object.all().find(|it| it.node == node).map_or(NIL, |it| it.newer);
            next = self.get(ObjectIndex(newer)).map(|it| (ObjectIndex(newer), it));
            Some((index, object))
        })
    }

    fn account(&mut self, object: &Object, change: fn(u64, u64) -> u64) {
        self.charge(object.namespace, object.room(), change);
    }

    fn charge(&mut self, namespace: NamespaceIndex, room: u64, change: fn(u64, u64) -> u64) {
        if let Some(it) = self.namespaces.get_mut(namespace.0 as usize) {
            it.committed = change(it.committed, room);
        }
    }

    fn oldest(&self, node: NodeIndex, line: Line) -> Option<(ObjectIndex, &Object)> {
        let ends = self.lines.get(node.0 as usize)?.get(line as usize)?;
        let index = ObjectIndex(ends.oldest);
        Some((index, self.get(index)?))
    }

    /// Hangs every replica at the recent end of its node's rightful line.
    fn enlist(&mut self, index: ObjectIndex) {
        let Some(object) = self.get_mut(index) else { return };
        object.line = object.rightful_line();
        let line = object.line as usize;
        let nodes: Vec<_> = object.replicas().map(|(node, _)| node).collect();
        for node in nodes {
            let newest = self.ends(node, line).newest;
            if let Some(replica) = self.replica_mut(newest, node) {
                replica.newer = index.0;
            }
            if let Some(replica) = self.replica_mut(index.0, node) {
                (replica.older, replica.newer) = (newest, NIL);
            }
            let ends = self.ends(node, line);
            ends.newest = index.0;
            if ends.oldest == NIL {
                ends.oldest = index.0;
            }
        }
    }

    /// Takes every replica out of its node's line.
    fn delist(&mut self, index: ObjectIndex) {
        let Some(object) = self.get(index) else { return };
        let line = object.line as usize;
        let links: Vec<_> = object.all().map(|it| (it.node, it.older, it.newer)).collect();
        for (node, older, newer) in links {
            match self.replica_mut(older, node) {
                Some(replica) => replica.newer = newer,
                None => self.ends(node, line).oldest = newer,
            }
            match self.replica_mut(newer, node) {
                Some(replica) => replica.older = older,
                None => self.ends(node, line).newest = older,
            }
        }
    }

    fn ends(&mut self, node: NodeIndex, line: usize) -> &mut Ends {
        let node = node.0 as usize;
        if self.lines.len() <= node {
            self.lines.resize(node + 1, [Ends { oldest: NIL, newest: NIL }; LINE_COUNT]);
        }
        #[expect(clippy::indexing_slicing, reason = "grown above; a line is one of LINE_COUNT")]
        &mut self.lines[node][line]
    }

    fn replica_mut(&mut self, index: u32, node: NodeIndex) -> Option<&mut Replica> {
        self.objects.get_mut(index as usize)?.as_mut()?.on(node)
    }

    fn get_mut(&mut self, index: ObjectIndex) -> Option<&mut Object> {
        self.objects.get_mut(index.0 as usize)?.as_mut()
    }

    fn is(&self, index: u32, namespace: NamespaceIndex, key: &Key) -> bool {
        self.get(ObjectIndex(index)).is_some_and(|it| it.namespace == namespace && it.key == *key)
    }

    fn hash(&self, namespace: NamespaceIndex, key: &Key) -> u64 {
        hash(self.hash_seed, namespace, key)
    }
}

/// What eviction may take.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Eviction {
    pub(super) soft_pinned_too: bool,
    /// Only when sabotaged.
    pub(super) even_pinned: bool,
}

fn hash(seed: u64, namespace: NamespaceIndex, key: &Key) -> u64 {
    xxh3_64_with_seed(key.as_bytes(), seed ^ u64::from(namespace.0))
}

fn hash_of(objects: &[Option<Object>], seed: u64, index: u32) -> u64 {
    let object = objects.get(index as usize).and_then(Option::as_ref);
    object.map_or(0, |it| hash(seed, it.namespace, &it.key))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{SlotId, Stamp};

    const NODE: NodeIndex = NodeIndex(0);
    const OTHER: NodeIndex = NodeIndex(1);

    fn hold(stamp: u64) -> Hold {
        Hold { slot: SlotId(stamp as u32), stamp: Stamp(stamp) }
    }

    fn put(catalog: &mut Catalog, now: u64, name: &str, hard_pin: bool, soft_until: u64) -> ObjectIndex {
        let namespace = catalog.intern("default");
        let pins = if hard_pin { vec!["me".to_owned()] } else { vec![] };
        let new = NewObject {
            namespace,
            key: Key::new(name.as_bytes()).unwrap(),
            generation: Generation { epoch: 1, counter: now },
            len: 10,
            marks: Marks { pins, sample: None },
            writer: LabelIndex::default(),
            soft_until: Tick(soft_until),
            replicas: vec![(NODE, hold(now)), (OTHER, hold(now))],
        };
        catalog.insert(Tick(now), new).unwrap()
    }

    fn victims(catalog: &mut Catalog, now: u64, rules: Eviction) -> Vec<String> {
        let mut names = Vec::new();
        while let Some(index) = catalog.next_victim(NODE, Tick(now), rules) {
            names.push(catalog.remove(index).unwrap().key.to_string());
        }
        names
    }

    #[test]
    fn the_one_unused_for_longest_leaves_first() {
        let mut catalog = Catalog::new(0);
        for (name, now) in [("a", 1), ("b", 2), ("c", 3)] {
            put(&mut catalog, now, name, false, 0);
        }
        let a = catalog.find(catalog.namespace_names["default"], &Key::new(b"a").unwrap()).unwrap();
        catalog.touch(a, Tick(9), None);
        assert_eq!(victims(&mut catalog, 10, Eviction::default()), ["b", "c", "a"]);
    }

    #[test]
    fn leased_and_hard_pinned_objects_stay_and_soft_pinned_ones_leave_last() {
        let mut catalog = Catalog::new(0);
        let leased = put(&mut catalog, 1, "leased", false, 0);
        put(&mut catalog, 2, "pinned", true, 0);
        put(&mut catalog, 3, "soft", false, 1_000);
        put(&mut catalog, 4, "plain", false, 0);
        catalog.touch(leased, Tick(5), Some(Tick(50)));
        assert_eq!(victims(&mut catalog, 10, Eviction::default()), ["plain"]);
        let rules = Eviction { soft_pinned_too: true, even_pinned: false };
        assert_eq!(victims(&mut catalog, 10, rules), ["soft"]);
        assert_eq!(victims(&mut catalog, 51, rules), ["leased"]);
        assert_eq!(victims(&mut catalog, 51, rules), Vec::<String>::new());
    }

    #[test]
    fn a_soft_pin_ends() {
        let mut catalog = Catalog::new(0);
        put(&mut catalog, 1, "soft", false, 100);
        catalog.end_soft_pins(Tick(99));
        assert_eq!(catalog.soft_pinned(), 1);
        catalog.end_soft_pins(Tick(100));
        assert_eq!(victims(&mut catalog, 100, Eviction::default()), ["soft"]);
    }

    #[test]
    fn an_object_goes_with_its_last_replica() {
        let mut catalog = Catalog::new(0);
        let index = put(&mut catalog, 1, "a", false, 0);
        catalog.drop_replica(index, NODE);
        assert_eq!(catalog.get(index).unwrap().replicas().collect::<Vec<_>>(), [(OTHER, hold(1))]);
        assert_eq!((catalog.on_node(NODE), catalog.on_node(OTHER)), (vec![], vec![index]));
        catalog.drop_replica(index, OTHER);
        assert!(catalog.get(index).is_none());
        assert_eq!(catalog.namespaces[0].objects, 0);
    }

    #[test]
    fn an_object_is_small() {
        assert!(size_of::<Option<Object>>() <= 160, "{}", size_of::<Option<Object>>());
    }

    proptest! {
        /// Against a sorted list of (touched, name).
        #[test]
        fn eviction_follows_the_order_of_use(steps in prop::collection::vec((0u8..4, 0u8..12), 1..120)) {
            let mut catalog = Catalog::new(7);
            let mut model: Vec<(u64, u8)> = Vec::new();
            for (now, (what, name)) in (1u64..).zip(steps) {
                let namespace = catalog.intern("default");
                let key = Key::new(&[b'a' + name]).unwrap();
                let found = catalog.find(namespace, &key);
                prop_assert_eq!(found.is_some(), model.iter().any(|it| it.1 == name));
                match (what, found) {
                    (0 | 1, None) => {
                        put(&mut catalog, now, key.to_string().as_str(), false, 0);
                        model.push((now, name));
                    }
                    (2, Some(index)) => {
                        catalog.touch(index, Tick(now), None);
                        model.iter_mut().filter(|it| it.1 == name).for_each(|it| it.0 = now);
                    }
                    (3, Some(index)) => {
                        catalog.remove(index);
                        model.retain(|it| it.1 != name);
                    }
                    _ => (),
                }
            }
            model.sort_unstable();
            let expected: Vec<_> = model.iter().map(|it| char::from(b'a' + it.1).to_string()).collect();
            prop_assert_eq!(victims(&mut catalog, u64::MAX, Eviction::default()), expected);
        }
    }
}
