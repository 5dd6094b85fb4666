//! In which order objects leave.
//!
//! Each replica hangs in one line of its node and namespace, oldest use first: the eviction order is kept,
//! never searched. The ends of all lines of a node lie side by side and say when their oldest object was
//! used and until when it is leased, so that the next victim is found without a look at any object.
//!
//! **Invariant:** every replica is in exactly one line, the one that its object's protection and lease call
//! for.
//! **Invariant:** what an end says of its oldest object is so.

use super::{Catalog, NIL, NamespaceIndex, NodeIndex, Object, ObjectIndex, Slab};
use crate::Tick;

/// The lines that the replicas of one namespace hang in on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
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
    /// As `Idle`, with a copy on a disk: nothing is lost when the one in memory goes.
    ShelvedIdle = 5,
    /// As `Leased`, with a copy on a disk.
    ShelvedLeased = 6,
    /// As `SoftIdle`, with a copy on a disk.
    ShelvedSoftIdle = 7,
    /// As `SoftLeased`, with a copy on a disk.
    ShelvedSoftLeased = 8,
    /// Copies on disks, which choose themselves what leaves, and those that cannot be read yet.
    Aside = 9,
}

const LINE_COUNT: usize = 10;
/// The lines of copies in memory that are also on a disk.
const SHELVED: [Line; 4] =
    [Line::ShelvedIdle, Line::ShelvedLeased, Line::ShelvedSoftIdle, Line::ShelvedSoftLeased];
/// The lines of copies that may have to go to a disk, the hard-pinned ones last.
const UNSHELVED: [Line; 5] = [Line::Idle, Line::Leased, Line::SoftIdle, Line::SoftLeased, Line::Pinned];

/// The ends of a line.
#[derive(Clone, Copy, Debug)]
struct Ends {
    oldest: u32,
    newest: u32,
    /// When the oldest was last used.
    touched: Tick,
    /// Until when the oldest is leased.
    lease_until: Tick,
}

const NOBODY: Ends = Ends { oldest: NIL, newest: NIL, touched: Tick(0), lease_until: Tick(0) };

/// What eviction may take.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::master) struct Eviction {
    pub(in crate::master) soft_pinned_too: bool,
    /// Only what has a copy on a disk.
    pub(in crate::master) shelved_only: bool,
    /// Only when sabotaged.
    pub(in crate::master) even_pinned: bool,
}

/// All lines: by node, by namespace.
#[derive(Debug, Default)]
pub(super) struct Lines {
    nodes: Vec<Vec<[Ends; LINE_COUNT]>>,
    /// By node, the room of what may leave at once because a disk has it, too.
    shelved: Vec<u64>,
}

impl Lines {
    fn of_node(&self, node: NodeIndex) -> impl Iterator<Item = &[Ends; LINE_COUNT]> + Clone {
        self.nodes.get(node.0 as usize).into_iter().flatten()
    }

    fn of_namespace(&self, namespace: NamespaceIndex) -> impl Iterator<Item = &[Ends; LINE_COUNT]> + Clone {
        self.nodes.iter().filter_map(move |it| it.get(namespace.0 as usize))
    }

    fn ends(&mut self, node: NodeIndex, namespace: NamespaceIndex, line: Line) -> &mut Ends {
        let (node, namespace) = (node.0 as usize, namespace.0 as usize);
        if self.nodes.len() <= node {
            self.nodes.resize(node + 1, Vec::new());
        }
        #[expect(clippy::indexing_slicing, reason = "grown above")]
        let of_node = &mut self.nodes[node];
        if of_node.len() <= namespace {
            of_node.resize(namespace + 1, [NOBODY; LINE_COUNT]);
        }
        #[expect(clippy::indexing_slicing, reason = "grown above; a line is one of LINE_COUNT")]
        &mut of_node[namespace][line as usize]
    }

    /// Hangs every replica of an object at the recent end of its rightful line.
    pub(super) fn enlist(&mut self, objects: &mut Slab<Object>, index: ObjectIndex) {
        let Some(object) = objects.get(index.0) else { return };
        let (namespace, room) = (object.namespace(), object.room_of_one());
        let in_memory = object.line_in_memory();
        let mut at = 0;
        while let Some(replica) = objects.get_mut(index.0).and_then(|it| it.replica_mut(at)) {
            let node = replica.node;
            let line = if replica.is_in_memory() { in_memory } else { Line::Aside };
            self.count(node, line, room, u64::wrapping_add);
            let ends = self.ends(node, namespace, line);
            let newest = std::mem::replace(&mut ends.newest, index.0);
            (replica.older, replica.newer, replica.line) = (newest, NIL, line);
            if newest == NIL {
                ends.set_oldest(objects, index.0);
            } else if let Some(other) = objects.get_mut(newest).and_then(|it| it.on_mut(node)) {
                other.newer = index.0;
            }
            at += 1;
        }
    }

    /// Takes every replica of an object out of its line.
    pub(super) fn delist(&mut self, objects: &mut Slab<Object>, index: ObjectIndex) {
        let mut at = 0;
        while let Some((object, replica)) = objects.get(index.0).and_then(|it| Some((it, it.replica(at)?))) {
            let (older, newer, node, line) = (replica.older, replica.newer, replica.node, replica.line);
            let (namespace, room) = (object.namespace(), object.room_of_one());
            self.count(node, line, room, u64::wrapping_sub);
            let ends = self.ends(node, namespace, line);
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

    /// Whether an object that has changed its times stays where it is: at the recent end of its lines. Says
    /// so where it is the oldest, too.
    pub(super) fn stays(&mut self, objects: &Slab<Object>, index: ObjectIndex) -> bool {
        let Some(object) = objects.get(index.0) else { return true };
        if object.all().any(|it| it.newer != NIL || it.line != object.rightful_line(it)) {
            return false;
        }
        for replica in object.all().filter(|it| it.older == NIL) {
            self.ends(replica.node, object.namespace(), replica.line).set_oldest(objects, index.0);
        }
        true
    }

    fn count(&mut self, node: NodeIndex, line: Line, room: u64, change: fn(u64, u64) -> u64) {
        if SHELVED.contains(&line) {
            let node = node.0 as usize;
            if self.shelved.len() <= node {
                self.shelved.resize(node + 1, 0);
            }
            self.shelved.get_mut(node).into_iter().for_each(|it| *it = change(*it, room));
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

/// The object that was unused for longest, soft-pinned ones only if all others are gone and it is allowed.
/// Never a leased one, never a hard-pinned one.
fn victim<'a>(
    ends: impl Iterator<Item = &'a [Ends; LINE_COUNT]> + Clone,
    now: Tick,
    rules: Eviction,
) -> Option<ObjectIndex> {
    let oldest = |lines: &[Line]| {
        let heads = ends.clone().flat_map(|it| lines.iter().filter_map(|&line| it.get(line as usize)));
        let may_go = heads.filter(|it| it.oldest != NIL && it.lease_until <= now);
        may_go.map(|it| (it.touched, it.oldest)).min()
    };
    let plain = [Line::ShelvedIdle, Line::ShelvedLeased, Line::Idle, Line::Leased];
    let soft = [Line::ShelvedSoftIdle, Line::ShelvedSoftLeased, Line::SoftIdle, Line::SoftLeased];
    let some = |lines: &[Line; 4]| {
        if rules.shelved_only { oldest(lines.get(..2).unwrap_or(lines)) } else { oldest(lines) }
    };
    some(&plain)
        .or_else(|| some(&soft).filter(|_| rules.soft_pinned_too))
        .or_else(|| oldest(&[Line::Pinned]).filter(|_| rules.even_pinned && !rules.shelved_only))
        .map(|(_, index)| ObjectIndex(index))
}

impl Catalog {
    /// The next object to leave a node.
    pub(in crate::master) fn next_victim(
        &self,
        node: NodeIndex,
        now: Tick,
        rules: Eviction,
    ) -> Option<ObjectIndex> {
        victim(self.lines.of_node(node), now, rules)
    }

    /// The next object of one namespace to leave any node.
    pub(in crate::master) fn next_victim_of(
        &self,
        namespace: NamespaceIndex,
        now: Tick,
        rules: Eviction,
    ) -> Option<ObjectIndex> {
        victim(self.lines.of_namespace(namespace), now, rules)
    }

    /// The room of what could leave a node at once, because a disk has it, too.
    pub(in crate::master) fn shelved_room(&self, node: NodeIndex) -> u64 {
        self.lines.shelved.get(node.0 as usize).copied().unwrap_or(0)
    }

    /// The object on a node that was unused for longest and is not on a disk, of those that are wanted there.
    /// Looks at no more than `scan` objects of a line.
    pub(in crate::master) fn next_to_shelve(
        &self,
        node: NodeIndex,
        scan: usize,
        wanted: impl Fn(NamespaceIndex) -> bool,
        may: impl Fn(&Object) -> bool,
    ) -> Option<ObjectIndex> {
        let mut best: Option<(Tick, u32)> = None;
        let namespaces = self.lines.of_node(node).enumerate();
        for (_, ends) in namespaces.filter(|(index, _)| wanted(NamespaceIndex(*index as u32))) {
            for line in UNSHELVED {
                let mut next = ends.get(line as usize).map_or(NIL, |it| it.oldest);
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

    /// When the next lease ends that keeps an object from eviction.
    pub(in crate::master) fn next_lease_end(&self, now: Tick) -> Option<Tick> {
        let lines = self.lines.nodes.iter().flatten();
        let all = [Line::Leased, Line::SoftLeased, Line::ShelvedLeased, Line::ShelvedSoftLeased];
        let leased = lines.flat_map(|it| all.map(|line| it.get(line as usize)));
        let held = leased.flatten().filter(|it| it.oldest != NIL);
        held.map(|it| it.lease_until).filter(|&until| until > now).min()
    }

    /// Every object with a copy on that node.
    pub(in crate::master) fn on_node(&self, node: NodeIndex) -> Vec<ObjectIndex> {
        let mut found = Vec::new();
        for ends in self.lines.of_node(node).flatten() {
            let mut next = ends.oldest;
            while let Some(object) = self.objects.get(next) {
                found.push(ObjectIndex(next));
                next = object.on(node).map_or(NIL, |it| it.newer);
            }
        }
        found
    }

    /// Something of what these objects' neighbours in their lines are, so that they are near afterwards.
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
    /// Panics if a line is broken, or not what its objects call for.
    pub(super) fn assert_lines(&self) {
        let mut hanging = 0;
        for (node, namespaces) in self.lines.nodes.iter().enumerate() {
            let node = NodeIndex(node as u16);
            for (namespace, ends) in namespaces.iter().enumerate() {
                for (line, ends) in ends.iter().enumerate() {
                    let (mut older, mut next) = (NIL, ends.oldest);
                    while let Some(object) = self.objects.get(next) {
                        let replica = object.on(node).unwrap();
                        assert_eq!((replica.older, replica.line), (older, object.rightful_line(replica)));
                        assert_eq!((replica.line as usize, object.namespace().0 as usize), (line, namespace));
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
