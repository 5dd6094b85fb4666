//! The eviction order.
//!
//! Each replica is in one eviction list of its node and namespace, least recently used first. So the
//! eviction order is maintained, never searched. The ends of all lists of a node are stored side by side,
//! with the last use and the lease end of their oldest object. So the next victim is found without access
//! to any object.
//!
//! **Invariant:** every replica is in exactly one list, the one that matches its object's protection and
//! lease.
//!
//! **Invariant:** the times stored with a list's ends are those of its oldest object.

use std::collections::BTreeSet;

use super::{Catalog, NIL, NamespaceIndex, NodeIndex, Object, ObjectIndex, Slab};
use crate::Tick;

/// The eviction lists of the replicas of one namespace on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EvictionList {
    /// Read since they were put, and not leased since their last use.
    Idle = 0,
    /// Leased, so in the order in which leases end.
    Leased = 1,
    /// As `Idle`, with a soft pin.
    SoftIdle = 2,
    /// As `Leased`, with a soft pin.
    SoftLeased = 3,
    /// With a hard pin: never evicted.
    Pinned = 4,
    /// As `Idle`, with a disk copy: no object is lost when the copy in memory goes.
    OnDiskIdle = 5,
    /// As `Leased`, with a disk copy.
    OnDiskLeased = 6,
    /// As `SoftIdle`, with a disk copy.
    OnDiskSoftIdle = 7,
    /// As `SoftLeased`, with a disk copy.
    OnDiskSoftLeased = 8,
    /// Copies on disks, which evict on their own, and copies that cannot be read yet.
    Aside = 9,
    /// Copies that a disk is reading, except hard-pinned ones. Their removal frees no memory before the
    /// disk has read them.
    Demoting = 10,
    /// As `Idle`, but never read since they were put.
    Unread = 11,
    /// As `Unread`, with a disk copy.
    OnDiskUnread = 12,
}

const LIST_COUNT: usize = 13;
/// The lists of copies in memory whose objects also have a disk copy.
const ON_DISK: [EvictionList; 5] = [
    EvictionList::OnDiskIdle,
    EvictionList::OnDiskLeased,
    EvictionList::OnDiskSoftIdle,
    EvictionList::OnDiskSoftLeased,
    EvictionList::OnDiskUnread,
];
/// The lists of copies that may have to be demoted, the hard-pinned ones last.
const NOT_ON_DISK: [EvictionList; 6] = [
    EvictionList::Idle,
    EvictionList::Leased,
    EvictionList::Unread,
    EvictionList::SoftIdle,
    EvictionList::SoftLeased,
    EvictionList::Pinned,
];
/// The lists of copies whose objects were read: they become cold after a while.
const READ: [EvictionList; 4] =
    [EvictionList::Idle, EvictionList::Leased, EvictionList::OnDiskIdle, EvictionList::OnDiskLeased];

/// The lists that eviction may use. Below: those of them with leases, and those with soft pins.
const EVICTABLE: [EvictionList; 10] = [
    EvictionList::Idle,
    EvictionList::Unread,
    EvictionList::Leased,
    EvictionList::SoftIdle,
    EvictionList::SoftLeased,
    EvictionList::OnDiskIdle,
    EvictionList::OnDiskUnread,
    EvictionList::OnDiskLeased,
    EvictionList::OnDiskSoftIdle,
    EvictionList::OnDiskSoftLeased,
];
/// See [`EVICTABLE`].
const LEASED: [EvictionList; 4] = [
    EvictionList::Leased,
    EvictionList::SoftLeased,
    EvictionList::OnDiskLeased,
    EvictionList::OnDiskSoftLeased,
];
/// See [`EVICTABLE`].
const SOFT: [EvictionList; 4] = [
    EvictionList::SoftIdle,
    EvictionList::SoftLeased,
    EvictionList::OnDiskSoftIdle,
    EvictionList::OnDiskSoftLeased,
];

/// Maximum number of objects that are scanned behind a leased one.
const HIDDEN_SCAN_MAX: usize = 256;

/// The ends of a list.
#[derive(Clone, Copy, Debug)]
struct Ends {
    oldest: u32,
    newest: u32,
    /// When the oldest was last used.
    touched: Tick,
    /// The end of the oldest one's lease.
    lease_until: Tick,
    /// The memory of all copies in the list.
    bytes: u64,
}

const EMPTY: Ends = Ends { oldest: NIL, newest: NIL, touched: Tick(0), lease_until: Tick(0), bytes: 0 };

/// The rules of eviction.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::master) struct Eviction {
    pub(in crate::master) soft_pinned_too: bool,
    /// Only objects that have a disk copy.
    pub(in crate::master) on_disk_only: bool,
    /// If there is nothing else, also copies that a disk is reading. That ends their charge, not their use
    /// of memory.
    pub(in crate::master) demoting_too: bool,
    /// For mutants only.
    pub(in crate::master) even_pinned: bool,
}

/// All lists: by node, by namespace.
#[derive(Debug, Default)]
pub(super) struct EvictionLists {
    nodes: Vec<Vec<[Ends; LIST_COUNT]>>,
    /// By node: memory of copies that may leave at once because the object also has a disk copy.
    readable_on_disks: Vec<u64>,
    /// By node: the part of it that was never read.
    unread: Vec<u64>,
}

/// Where space is needed.
#[derive(Clone, Copy, Debug)]
pub(in crate::master) enum Scope {
    /// In the memory of a node.
    Node(NodeIndex),
    /// In the quota of a namespace.
    Namespace(NamespaceIndex),
    /// In the memory of a node, by one namespace.
    NamespaceOn(NamespaceIndex, NodeIndex),
}

impl EvictionLists {
    fn of_node(&self, node: NodeIndex) -> impl Iterator<Item = &[Ends; LIST_COUNT]> + Clone {
        self.nodes.get(node.0 as usize).into_iter().flatten()
    }

    /// The lists of a node without those of some namespaces.
    fn of_node_without<'a>(
        &'a self,
        node: NodeIndex,
        spared: &'a [NamespaceIndex],
    ) -> impl Iterator<Item = &'a [Ends; LIST_COUNT]> + Clone {
        let is_spared = |at: usize| spared.iter().any(|it| it.position() == at);
        self.of_node(node).enumerate().filter(move |(at, _)| !is_spared(*at)).map(|it| it.1)
    }

    fn of_namespace(
        &self,
        namespace: NamespaceIndex,
    ) -> impl Iterator<Item = (NodeIndex, &[Ends; LIST_COUNT])> + Clone {
        let nodes = self.nodes.iter().zip(0..);
        nodes.filter_map(move |(it, node)| Some((NodeIndex(node), it.get(namespace.position())?)))
    }

    fn ends(&mut self, node: NodeIndex, namespace: NamespaceIndex, list: EvictionList) -> &mut Ends {
        let (node, namespace) = (node.0 as usize, namespace.position());
        if self.nodes.len() <= node {
            self.nodes.resize(node + 1, Vec::new());
        }
        #[expect(clippy::indexing_slicing, reason = "grown above")]
        let of_node = &mut self.nodes[node];
        if of_node.len() <= namespace {
            of_node.resize(namespace + 1, [EMPTY; LIST_COUNT]);
        }
        #[expect(clippy::indexing_slicing, reason = "grown above; a list is one of LIST_COUNT")]
        &mut of_node[namespace][list as usize]
    }

    /// Inserts every replica of an object at the recent end of its list. If the object was unused for
    /// longer than all others there, it goes to the other end: it had left the list for a while, and
    /// returns to its position.
    pub(super) fn enlist(&mut self, objects: &mut Slab<Object>, index: ObjectIndex) {
        let Some(object) = objects.get(index.0) else { return };
        let (namespace, space, touched) = (object.namespace(), object.space_of_one(), object.touched());
        let mut at = 0;
        while let Some(list) = objects.get(index.0).and_then(|it| Some(it.rightful_list(it.replica(at)?))) {
            let Some(replica) = objects.get_mut(index.0).and_then(|it| it.replica_mut(at)) else { return };
            let node = replica.node;
            self.count(node, list, space, u64::wrapping_add);
            let ends = self.ends(node, namespace, list);
            ends.bytes = ends.bytes.wrapping_add(space);
            at += 1;
            if ends.oldest != NIL && touched < ends.touched {
                (replica.older, replica.newer, replica.list) = (NIL, ends.oldest, list);
                if let Some(other) = objects.get_mut(ends.oldest).and_then(|it| it.on_mut(node)) {
                    other.older = index.0;
                }
                ends.set_oldest(objects, index.0);
                continue;
            }
            let newest = std::mem::replace(&mut ends.newest, index.0);
            (replica.older, replica.newer, replica.list) = (newest, NIL, list);
            if newest == NIL {
                ends.set_oldest(objects, index.0);
            } else if let Some(other) = objects.get_mut(newest).and_then(|it| it.on_mut(node)) {
                other.newer = index.0;
            }
        }
    }

    /// Removes every replica of an object from its list.
    pub(super) fn delist(&mut self, objects: &mut Slab<Object>, index: ObjectIndex) {
        let mut at = 0;
        while let Some((object, replica)) = objects.get(index.0).and_then(|it| Some((it, it.replica(at)?))) {
            let (older, newer, node, list) = (replica.older, replica.newer, replica.node, replica.list);
            let (namespace, space) = (object.namespace(), object.space_of_one());
            self.count(node, list, space, u64::wrapping_sub);
            let ends = self.ends(node, namespace, list);
            ends.bytes = ends.bytes.wrapping_sub(space);
            match objects.get_mut(newer).and_then(|it| it.on_mut(node)) {
                Some(other) => other.older = older,
                None => ends.newest = older,
            }
            match objects.get_mut(older).and_then(|it| it.on_mut(node)) {
                Some(other) => other.newer = newer,
                None => ends.set_oldest(objects, newer),
            }
            at += 1;
        }
    }

    /// Whether an object with changed times stays in its position, the recent end of its lists. If it is
    /// also the oldest one, updates the times stored with the ends.
    pub(super) fn stays(&mut self, objects: &Slab<Object>, index: ObjectIndex) -> bool {
        let Some(object) = objects.get(index.0) else { return true };
        if object.all().any(|it| it.newer != NIL || it.list != object.rightful_list(it)) {
            return false;
        }
        for replica in object.all().filter(|it| it.older == NIL) {
            self.ends(replica.node, object.namespace(), replica.list).set_oldest(objects, index.0);
        }
        true
    }

    fn count(&mut self, node: NodeIndex, list: EvictionList, space: u64, change: fn(u64, u64) -> u64) {
        if ON_DISK.contains(&list) {
            let node = node.0 as usize;
            if self.readable_on_disks.len() <= node {
                self.readable_on_disks.resize(node + 1, 0);
                self.unread.resize(node + 1, 0);
            }
            self.readable_on_disks.get_mut(node).into_iter().for_each(|it| *it = change(*it, space));
            let unread = self.unread.get_mut(node).filter(|_| list == EvictionList::OnDiskUnread);
            unread.into_iter().for_each(|it| *it = change(*it, space));
        }
    }
}

impl Ends {
    fn set_oldest(&mut self, objects: &Slab<Object>, index: u32) {
        self.oldest = index;
        if let Some(object) = objects.get(index) {
            (self.touched, self.lease_until) = (object.touched(), object.lease_until());
        }
    }
}

/// The least recently used object. Soft-pinned objects are chosen only if no others are left and the rules
/// allow it. Leased and hard-pinned objects are never chosen.
fn victim<'a>(
    ends: impl Iterator<Item = &'a [Ends; LIST_COUNT]> + Clone,
    now: Tick,
    rules: Eviction,
) -> Option<ObjectIndex> {
    let oldest = |lists: &[EvictionList]| {
        let heads = ends.clone().flat_map(|it| lists.iter().filter_map(|&list| it.get(list as usize)));
        let may_go = heads.filter(|it| it.oldest != NIL && it.lease_until <= now);
        may_go.map(|it| (it.touched, it.oldest)).min()
    };
    let plain = [
        EvictionList::OnDiskIdle,
        EvictionList::OnDiskLeased,
        EvictionList::OnDiskUnread,
        EvictionList::Idle,
        EvictionList::Leased,
        EvictionList::Unread,
    ];
    let soft = [
        EvictionList::OnDiskSoftIdle,
        EvictionList::OnDiskSoftLeased,
        EvictionList::SoftIdle,
        EvictionList::SoftLeased,
    ];
    let some = |lists: &[EvictionList]| {
        let readable_on_disks = lists.get(..lists.len() / 2).unwrap_or(lists);
        oldest(if rules.on_disk_only { readable_on_disks } else { lists })
    };
    some(&plain)
        .or_else(|| some(&soft).filter(|_| rules.soft_pinned_too))
        .or_else(|| oldest(&[EvictionList::Demoting]).filter(|_| rules.demoting_too && !rules.on_disk_only))
        .or_else(|| oldest(&[EvictionList::Pinned]).filter(|_| rules.even_pinned && !rules.on_disk_only))
        .map(|(_, index)| ObjectIndex(index))
}

impl Catalog {
    /// The next victim on a node, of any but these namespaces.
    pub(in crate::master) fn next_victim(
        &self,
        node: NodeIndex,
        now: Tick,
        rules: Eviction,
        spared: &[NamespaceIndex],
    ) -> Option<ObjectIndex> {
        let ends = || self.lists.of_node_without(node, spared);
        victim(ends(), now, rules).or_else(|| self.hidden_victim(ends().map(|it| (node, it)), now, rules))
    }

    /// The next victim if the oldest object of every list is leased. Objects that were used later without a
    /// lease are behind those with a longer one, so the first objects of each list are scanned.
    fn hidden_victim<'a>(
        &self,
        ends: impl Iterator<Item = (NodeIndex, &'a [Ends; LIST_COUNT])>,
        now: Tick,
        rules: Eviction,
    ) -> Option<ObjectIndex> {
        let lists = LEASED.into_iter().chain([EvictionList::Demoting]);
        let is_allowed = |list: &EvictionList| {
            (rules.soft_pinned_too || !SOFT.contains(list))
                && (rules.demoting_too || *list != EvictionList::Demoting)
                && (!rules.on_disk_only || ON_DISK.contains(list))
        };
        let mut best: Option<(Tick, u32)> = None;
        for (node, ends) in ends {
            for list in lists.clone().filter(is_allowed) {
                let mut next = ends.get(list as usize).map_or(NIL, |it| it.oldest);
                let mut left = HIDDEN_SCAN_MAX;
                while let Some(object) = self.objects.get(next).filter(|_| left > 0) {
                    let found = (object.touched(), next);
                    if object.lease_until() <= now && best.is_none_or(|best| found < best) {
                        best = Some(found);
                    }
                    next = object.on(node).map_or(NIL, |it| it.newer);
                    left -= 1;
                }
            }
        }
        best.map(|(_, index)| ObjectIndex(index))
    }

    /// Upper bound of the bytes that eviction could free.
    pub(in crate::master) fn evictable(&self, scope: Scope, now: Tick, rules: Eviction) -> u64 {
        let is_allowed = |list: &&EvictionList| {
            (rules.soft_pinned_too || !SOFT.contains(list)) && (!rules.on_disk_only || ON_DISK.contains(list))
        };
        let demoting = Some(&EvictionList::Demoting).filter(|_| rules.demoting_too && !rules.on_disk_only);
        let lists = || EVICTABLE.iter().filter(is_allowed).chain(demoting);
        let of_node = |node: NodeIndex, ends: &[Ends; LIST_COUNT]| {
            let bytes = lists().filter_map(|&list| {
                let ends = ends.get(list as usize)?;
                let has_leases = LEASED.contains(&list) || list == EvictionList::Demoting;
                Some(if has_leases { self.unleased_bytes(node, ends, now) } else { ends.bytes })
            });
            bytes.fold(0, u64::saturating_add)
        };
        match scope {
            Scope::Node(node) => {
                self.lists.of_node(node).map(|ends| of_node(node, ends)).fold(0, u64::saturating_add)
            }
            Scope::Namespace(namespace) => {
                let ends = self.lists.of_namespace(namespace);
                ends.map(|(node, ends)| of_node(node, ends)).fold(0, u64::saturating_add)
            }
            Scope::NamespaceOn(namespace, node) => {
                let mut ends = self.lists.of_node(node).skip(namespace.position());
                ends.next().map_or(0, |ends| of_node(node, ends))
            }
        }
    }

    /// Memory of a namespace's objects on a node.
    pub(in crate::master) fn space_on(&self, namespace: NamespaceIndex, node: NodeIndex) -> u64 {
        let ends = self.lists.of_node(node).nth(namespace.position());
        ends.map_or(0, |ends| ends.iter().map(|it| it.bytes).fold(0, u64::wrapping_add))
    }

    /// The bytes of a list's objects whose leases have ended. Leases end in the order of the list, except
    /// for a few objects near its front. So no more objects are scanned behind a leased one than eviction
    /// would scan.
    fn unleased_bytes(&self, node: NodeIndex, ends: &Ends, now: Tick) -> u64 {
        let (mut sum, mut rest, mut next) = (0_u64, ends.bytes, ends.oldest);
        let mut is_leased = false;
        for _ in 0..HIDDEN_SCAN_MAX {
            let Some(object) = self.objects.get(next) else { return sum };
            let bytes = object.space_of_one();
            rest = rest.saturating_sub(bytes);
            is_leased = object.lease_until() > now;
            sum = sum.saturating_add(if is_leased { 0 } else { bytes });
            next = object.on(node).map_or(NIL, |it| it.newer);
        }
        if is_leased { sum } else { sum.saturating_add(rest) }
    }

    /// The next victim of one namespace, on any node.
    pub(in crate::master) fn next_victim_of(
        &self,
        namespace: NamespaceIndex,
        now: Tick,
        rules: Eviction,
    ) -> Option<ObjectIndex> {
        let ends = self.lists.of_namespace(namespace);
        victim(self.lists.of_namespace(namespace).map(|it| it.1), now, rules)
            .or_else(|| self.hidden_victim(ends, now, rules))
    }

    /// The memory of copies that could leave a node at once, because the object also has a disk copy.
    pub(in crate::master) fn on_disk_space(&self, node: NodeIndex) -> u64 {
        self.lists.readable_on_disks.get(node.0 as usize).copied().unwrap_or(0)
    }

    /// The part of [`Self::on_disk_space`] that was never read.
    pub(in crate::master) fn on_disk_unread_space(&self, node: NodeIndex) -> u64 {
        self.lists.unread.get(node.0 as usize).copied().unwrap_or(0)
    }

    /// Objects with a disk copy whose memory, `need` bytes or more, is better used for promoted objects.
    ///
    /// - First come objects that were never read and never leased, then those that were not used for a
    ///   while; in each, the least recently used first.
    /// - Leased and soft-pinned objects stay, and so does an object that was read or promoted after
    ///   `since`.
    /// - An ended lease alone protects nothing.
    ///
    /// Objects of `spared` namespaces stay. `is_promoted` says which objects were promoted and not read
    /// since. `None` if the objects are not enough.
    pub(in crate::master) fn cold_victims(
        &self,
        scope: Scope,
        (since, now): (Tick, Tick),
        (unread_ms, read_ms): (u64, u64),
        need: u64,
        is_promoted: impl Fn(ObjectIndex) -> bool,
        spared: &[NamespaceIndex],
    ) -> Option<Vec<ObjectIndex>> {
        let (mut found, mut seen, mut sum) = (Vec::new(), BTreeSet::new(), 0);
        for lists in
            [&[EvictionList::OnDiskUnread][..], &[EvictionList::OnDiskIdle, EvictionList::OnDiskLeased]]
        {
            let mut next = self.heads(scope, lists);
            // All objects of a list are of one namespace.
            let is_spared =
                |index: u32| self.objects.get(index).is_some_and(|it| spared.contains(&it.namespace()));
            next.retain(|it| !is_spared(it.1));
            while sum < need {
                let touched = |at: &(NodeIndex, u32)| self.objects.get(at.1).map(Object::touched);
                let oldest = next.iter().enumerate().filter_map(|(at, it)| Some((touched(it)?, at))).min();
                let Some((_, at)) = oldest else { break };
                let (node, index) = next.swap_remove(at);
                let Some(object) = self.objects.get(index) else { continue };
                // A promotion protects by a lease, so the first lists have no promoted objects.
                let is_promoted = lists != [EvictionList::OnDiskUnread] && is_promoted(ObjectIndex(index));
                let (warm_ms, last) = match object.was_read() || is_promoted {
                    true => (read_ms, since),
                    false => (unread_ms, Tick(u64::MAX)),
                };
                // The objects that follow in the same list were used later.
                let is_warm = warm_ms > 0 && object.touched().after(warm_ms) > now;
                if object.leased(now) || is_warm || object.touched() > last {
                    continue;
                }
                let is_spared = object.touched() == last && is_promoted;
                if !is_spared && seen.insert(index) {
                    sum += object.space_of_one();
                    found.push(ObjectIndex(index));
                }
                next.extend(object.on(node).map(|it| (node, it.newer)).filter(|it| it.1 != NIL));
            }
        }
        (sum >= need).then_some(found)
    }

    /// The least recently used object of each of these lists.
    fn heads(&self, scope: Scope, lists: &[EvictionList]) -> Vec<(NodeIndex, u32)> {
        let nodes = self.lists.nodes.iter().enumerate().map(|(at, it)| (NodeIndex(at as u16), it));
        let mut heads = Vec::new();
        for (node, namespaces) in nodes {
            for (at, ends) in namespaces.iter().enumerate() {
                let is_wanted = match scope {
                    Scope::Node(wanted) => wanted == node,
                    Scope::Namespace(wanted) => wanted.position() == at,
                    Scope::NamespaceOn(wanted, on) => wanted.position() == at && on == node,
                };
                let of = lists.iter().filter_map(|list| ends.get(*list as usize)).filter(|_| is_wanted);
                heads.extend(of.filter(|it| it.oldest != NIL).map(|it| (node, it.oldest)));
            }
        }
        heads
    }

    /// When the next lease on a node ends, or the next object that was read becomes cold. Only the least
    /// recently used object of each list is considered.
    pub(in crate::master) fn next_cold(&self, node: NodeIndex, now: Tick, warm_ms: u64) -> Option<Tick> {
        let heads = self.lists.of_node(node).flat_map(|it| READ.map(|list| it.get(list as usize)));
        let held = heads.flatten().filter(|it| it.oldest != NIL);
        let times = held.flat_map(|it| [it.lease_until, it.touched.after(warm_ms).max(it.lease_until)]);
        times.filter(|at| *at > now).min()
    }

    /// The least recently used object on a node that has no disk copy and is wanted. Scans at most `scan`
    /// objects of a list.
    pub(in crate::master) fn next_to_demote(
        &self,
        node: NodeIndex,
        scan: usize,
        wanted: impl Fn(NamespaceIndex) -> bool,
        may: impl Fn(&Object) -> bool,
    ) -> Option<ObjectIndex> {
        let mut best: Option<(Tick, u32)> = None;
        let is_wanted = |at: usize| self.namespaces.get(at).is_some_and(|it| wanted(it.index));
        let namespaces = self.lists.of_node(node).enumerate();
        for (_, ends) in namespaces.filter(|(at, _)| is_wanted(*at)) {
            for list in NOT_ON_DISK {
                let mut next = ends.get(list as usize).map_or(NIL, |it| it.oldest);
                let mut left = scan;
                while let Some(object) = self.objects.get(next).filter(|_| left > 0) {
                    if best.is_some_and(|(touched, _)| touched <= object.touched()) {
                        break;
                    }
                    if may(object) {
                        best = Some((object.touched(), next));
                        break;
                    }
                    next = object.on(node).map_or(NIL, |it| it.newer);
                    left -= 1;
                }
            }
        }
        best.map(|(_, index)| ObjectIndex(index))
    }

    /// When the next lease ends that protects an object from eviction.
    pub(in crate::master) fn next_lease_end(&self, now: Tick) -> Option<Tick> {
        let lists = self.lists.nodes.iter().flatten();
        let all = [
            EvictionList::Leased,
            EvictionList::SoftLeased,
            EvictionList::OnDiskLeased,
            EvictionList::OnDiskSoftLeased,
        ];
        let leased = lists.flat_map(|it| all.map(|list| it.get(list as usize)));
        let held = leased.flatten().filter(|it| it.oldest != NIL);
        held.map(|it| it.lease_until).filter(|&until| until > now).min()
    }

    /// Reads the neighbours of these objects in their lists, so that they are cached afterwards.
    pub(super) fn warm_neighbours(&self, indexes: impl Iterator<Item = ObjectIndex>) -> u64 {
        let mut sum = 0;
        for replica in indexes.filter_map(|index| self.objects.get(index.0)?.replica(0)) {
            sum ^= self.objects.get(replica.older).map_or(0, Object::warm);
            sum ^= self.objects.get(replica.newer).map_or(0, Object::warm);
        }
        sum
    }
}

#[cfg(test)]
impl Catalog {
    /// Panics if a list is broken, or does not match its objects.
    pub(super) fn assert_lists(&self) {
        let mut hanging = 0;
        for (node, namespaces) in self.lists.nodes.iter().enumerate() {
            let node = NodeIndex(node as u16);
            for (namespace, ends) in namespaces.iter().enumerate() {
                for (list, ends) in ends.iter().enumerate() {
                    let (mut older, mut next) = (NIL, ends.oldest);
                    while let Some(object) = self.objects.get(next) {
                        let replica = object.on(node).unwrap();
                        assert_eq!((replica.older, replica.list), (older, object.rightful_list(replica)));
                        assert_eq!((replica.list as usize, object.namespace().position()), (list, namespace));
                        if older == NIL {
                            let said = (ends.touched, ends.lease_until);
                            assert_eq!(said, (object.touched(), object.lease_until()));
                        }
                        hanging += 1;
                        (older, next) = (next, replica.newer);
                    }
                    assert_eq!((next, older), (NIL, ends.newest));
                }
            }
        }
        let replicas = self.objects.range(0..self.objects.bound()).map(|it| it.1.all().count());
        assert_eq!(hanging, replicas.sum::<usize>());
    }
}
