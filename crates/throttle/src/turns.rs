//! Whose request is next, so that none of many clients waits for another one's load.
//!
//! Requests wait in one queue per *flow* (a client), and flows belong to *groups* (namespaces). Groups share
//! in equal parts, and so do the flows of a group: start-time fair queueing, on both levels. A group or flow
//! that was served gets a later tag, by the cost of what was served; the one with the smallest tag is next.
//! One that had nothing to do gets the tag of the present: idleness earns nothing, and a burst owes nothing.
//!
//! - *share*: of two flows that always wait, neither is served more than the other, but for one request.
//! - *cost*: a batch counts by its items, so that a large one does not weigh the same as a small one.
//! - *groups*: a group with many flows gets no more than one with a single flow.
//! - *order*: the requests of one flow are served in order.
//! - *memory*: a flow is forgotten when it waits for nothing and owes nothing.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::mutant::{Mutant, is_mutant};

/// Maximum number of flows of a group, and of groups, that are remembered for what they were served.
const RESTING_MAX: usize = 1 << 12;

/// The waiting requests of all flows. `T` identifies a request.
#[derive(Debug)]
pub struct Turns<T> {
    groups: Tags<u64>,
    flows: BTreeMap<u64, Tags<u64>>,
    waiting: BTreeMap<(u64, u64), VecDeque<(u64, T)>>,
    len: usize,
    mutant: Mutant,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self::new(Mutant::None)
    }
}

impl<T> Turns<T> {
    /// Nothing waits.
    #[must_use]
    pub fn new(mutant: Mutant) -> Self {
        Self { groups: Tags::default(), flows: BTreeMap::new(), waiting: BTreeMap::new(), len: 0, mutant }
    }

    /// A request of a flow waits. Its cost is at least 1.
    pub fn push(&mut self, (group, flow): (u64, u64), cost: u64, request: T) {
        let (group, flow) = match is_mutant!(self.mutant, ServeInOrder) {
            true => (0, 0),
            false => (group, flow),
        };
        let group = if is_mutant!(self.mutant, IgnoreGroups) { 0 } else { group };
        self.groups.wake(group);
        self.flows.entry(group).or_default().wake(flow);
        self.waiting.entry((group, flow)).or_default().push_back((cost.max(1), request));
        self.len += 1;
    }

    /// The request whose turn it is.
    pub fn pop(&mut self) -> Option<T> {
        let group = self.groups.first()?;
        let flows = self.flows.get_mut(&group)?;
        let flow = flows.first()?;
        let waiting = self.waiting.get_mut(&(group, flow))?;
        let (cost, request) = waiting.pop_front()?;
        let cost = if is_mutant!(self.mutant, FreeBatches) { 1 } else { cost };
        let is_empty = waiting.is_empty();
        if is_empty {
            self.waiting.remove(&(group, flow));
        }
        flows.charge(flow, cost, !is_empty);
        let has_more = flows.first().is_some();
        if !has_more && flows.rests() == 0 {
            self.flows.remove(&group);
        }
        for forgotten in self.groups.charge(group, cost, has_more) {
            self.flows.remove(&forgotten);
        }
        self.len -= 1;
        Some(request)
    }

    /// Number of requests that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of flows that are remembered.
    #[must_use]
    pub fn flow_count(&self) -> usize {
        self.flows.values().map(|it| it.ready.len() + it.rests()).sum()
    }
}

/// The tags of those that take turns: small ones are served first.
#[derive(Debug)]
struct Tags<K> {
    /// The tag of the one that was served last. No tag of a waiting one is smaller.
    now: u64,
    tags: BTreeMap<K, u64>,
    /// Those that wait.
    ready: BTreeSet<(u64, K)>,
    /// Those that do not wait and have been served more than the others.
    resting: BTreeSet<(u64, K)>,
}

impl<K> Default for Tags<K> {
    fn default() -> Self {
        let (ready, resting) = (BTreeSet::new(), BTreeSet::new());
        Self { now: 0, tags: BTreeMap::new(), ready, resting }
    }
}

impl<K: Ord + Copy> Tags<K> {
    /// It waits from now on.
    fn wake(&mut self, key: K) {
        let tag = *self.tags.entry(key).or_insert(self.now);
        self.resting.remove(&(tag, key));
        self.ready.insert((tag, key));
    }

    /// The one that is next.
    fn first(&self) -> Option<K> {
        self.ready.first().map(|it| it.1)
    }

    /// The first one is served. Returns those that are forgotten.
    fn charge(&mut self, key: K, cost: u64, waits: bool) -> Vec<K> {
        let Some(tag) = self.tags.get_mut(&key) else { return Vec::new() };
        self.ready.remove(&(*tag, key));
        self.now = self.now.max(*tag);
        *tag = tag.saturating_add(cost);
        if waits { &mut self.ready } else { &mut self.resting }.insert((*tag, key));
        let mut forgotten = Vec::new();
        while let Some(&first) = self.resting.first()
            && (first.0 <= self.now || self.resting.len() > RESTING_MAX)
        {
            self.resting.remove(&first);
            self.tags.remove(&first.1);
            forgotten.push(first.1);
        }
        forgotten
    }

    fn rests(&self) -> usize {
        self.resting.len()
    }
}
