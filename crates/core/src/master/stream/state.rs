//! One stream: its samples, which client has which of them, and whether it accepts more.
//!
//! **Invariant:** for each group, the ready samples and those that are out are disjoint. All of them exist,
//! and the group has acknowledged none of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{
    ClientId, Generation, Key,
    attributes::{Consumption, SampleAttributes},
    master::{OpId, catalog::ObjectIndex},
    message::{Backlog, GroupStat, StreamEnd, StreamLimits, StreamStat},
};

/// Maximum number of names of consumed samples that a stream remembers, so that a repeated put does not
/// bring them back.
const SEEN_MAX: usize = 1 << 16;

/// One stream.
#[derive(Debug, Default)]
pub(super) struct Stream {
    limits: StreamLimits,
    /// The samples, in order: generations are minted when samples are named.
    entries: BTreeMap<Generation, Entry>,
    bytes: u64,
    groups: BTreeMap<String, Group>,
    is_shut: bool,
    end: Option<StreamEnd>,
    appended: u64,
    recovered: u64,
    consumed: u64,
    /// Names that a group has acknowledged, and the order in which that was recorded.
    seen: BTreeMap<Key, Generation>,
    seen_order: VecDeque<Key>,
    /// Pulls that wait, first come first served.
    parked: VecDeque<OpId>,
}

/// One sample in a stream.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) object: ObjectIndex,
    pub(super) key: Key,
    len: u64,
    consumption: Consumption,
    /// The groups that have acknowledged it.
    acked: BTreeSet<String>,
}

/// A consumer group.
#[derive(Debug, Default)]
struct Group {
    /// Samples that no client of the group has.
    ready: BTreeSet<Generation>,
    /// Samples that clients have.
    out: BTreeMap<Generation, ClientId>,
    /// The number of samples that each client takes before it acknowledges any.
    consumers: BTreeMap<ClientId, u64>,
    delivered: u64,
    acked: u64,
}

impl Entry {
    fn is_for(&self, group: &str) -> bool {
        let is_named = match &self.consumption {
            Consumption::Groups(groups) => groups.iter().any(|it| it == group),
            Consumption::Once => !self.is_consumed(),
            Consumption::Retained => false,
        };
        is_named && !self.acked.contains(group)
    }

    /// A sample that one group has acknowledged is consumed for all, even if leases keep it for a while.
    fn is_consumed(&self) -> bool {
        self.consumption == Consumption::Once && !self.acked.is_empty()
    }
}

impl Stream {
    /// Adds a sample: just put, or found on a node.
    pub(super) fn arrive(
        &mut self,
        generation: Generation,
        (object, key, len): (ObjectIndex, Key, u64),
        attributes: &SampleAttributes,
        is_new: bool,
    ) {
        *(if is_new { &mut self.appended } else { &mut self.recovered }) += 1;
        let acked: BTreeSet<_> = attributes.acked.iter().cloned().collect();
        if !acked.is_empty() {
            self.remember(key.clone(), generation);
        }
        let entry = Entry { object, key, len, consumption: attributes.consumption.clone(), acked };
        for (name, group) in &mut self.groups {
            if entry.is_for(name) {
                group.ready.insert(generation);
            }
        }
        self.bytes = self.bytes.saturating_add(len);
        self.entries.insert(generation, entry);
    }

    /// A sample is gone, perhaps because every group has consumed it.
    pub(super) fn leave(&mut self, generation: Generation, is_consumed: bool) {
        let Some(entry) = self.entries.remove(&generation) else { return };
        self.bytes = self.bytes.saturating_sub(entry.len);
        for group in self.groups.values_mut() {
            group.ready.remove(&generation);
            group.out.remove(&generation);
        }
        if is_consumed {
            self.consumed += 1;
            self.remember(entry.key, generation);
        }
    }

    /// A group has acknowledged a sample.
    pub(super) fn acked(&mut self, generation: Generation, group: &str) {
        let Some(entry) = self.entries.get_mut(&generation) else { return };
        if !entry.acked.insert(group.to_owned()) {
            return;
        }
        let key = entry.key.clone();
        if entry.consumption == Consumption::Once {
            self.groups.values_mut().for_each(|group| _ = group.ready.remove(&generation));
        }
        // A group that never pulled may acknowledge a sample that it leased by name. The other samples are
        // still ready for it.
        self.meet(group);
        if let Some(group) = self.groups.get_mut(group) {
            group.acked += 1;
            group.ready.remove(&generation);
            group.out.remove(&generation);
        }
        self.remember(key, generation);
    }

    /// The client's lease ended without an acknowledgement: the sample is ready for the group again.
    pub(super) fn put_back(&mut self, generation: Generation, group: &str) {
        let is_for_it = self.entries.get(&generation).is_some_and(|it| it.is_for(group));
        if let Some(group) = self.groups.get_mut(group)
            && group.out.remove(&generation).is_some()
            && is_for_it
        {
            group.ready.insert(generation);
        }
    }

    /// A client of the group has it.
    pub(super) fn give(&mut self, generation: Generation, group: &str, client: ClientId) {
        if let Some(group) = self.groups.get_mut(group) {
            group.ready.remove(&generation);
            group.out.insert(generation, client);
            group.delivered += 1;
        }
    }

    /// Adds a group, if it is new. All existing samples that are meant for it are ready.
    pub(super) fn meet(&mut self, name: &str) {
        if !self.groups.contains_key(name) {
            let ready = self.entries.iter().filter(|(_, it)| it.is_for(name)).map(|it| *it.0).collect();
            self.groups.insert(name.to_owned(), Group { ready, ..Group::default() });
        }
    }

    /// The next samples that no client of the group has.
    pub(super) fn ready(&self, group: &str) -> impl Iterator<Item = Generation> + '_ {
        self.groups.get(group).into_iter().flat_map(|it| it.ready.iter().copied())
    }

    /// The samples after that position, whether clients have them or not.
    pub(super) fn behind(&self, place: Generation) -> impl Iterator<Item = Generation> + '_ {
        use std::ops::Bound::{Excluded, Unbounded};
        self.entries.range((Excluded(place), Unbounded)).map(|it| *it.0)
    }

    pub(super) fn entry(&self, generation: Generation) -> Option<&Entry> {
        self.entries.get(&generation)
    }

    pub(super) fn objects(&self) -> Vec<ObjectIndex> {
        self.entries.values().map(|it| it.object).collect()
    }

    /// Number of samples that a client of the group has, and that the others have.
    pub(super) fn out(&self, group: &str, client: ClientId) -> (u64, u64) {
        let Some(group) = self.groups.get(group) else { return (0, 0) };
        let own = group.out.values().filter(|it| **it == client).count() as u64;
        (own, group.out.len() as u64 - own)
    }

    /// The put of that name that a group has acknowledged, if any: the name is used up.
    pub(super) fn seen(&self, key: &Key) -> Option<Generation> {
        self.seen.get(key).copied()
    }

    fn remember(&mut self, key: Key, generation: Generation) {
        if self.seen.insert(key.clone(), generation).is_none() {
            self.seen_order.push_back(key);
        }
        while self.seen_order.len() > SEEN_MAX {
            self.seen_order.pop_front().into_iter().for_each(|it| _ = self.seen.remove(&it));
        }
    }

    /// Whether it accepts one more sample, given those that are about to be put; otherwise its backlog.
    pub(super) fn admits(&mut self, granted: (u64, u64)) -> Result<(), Backlog> {
        let (refs, bytes) = (self.entries.len() as u64 + granted.0, self.bytes.saturating_add(granted.1));
        let limits = self.limits;
        // The limit in bytes does not apply before the consumers can fill a window. Otherwise they would
        // never acknowledge a sample.
        let widest = self.groups.values().map(Group::window).max().unwrap_or(0);
        let (counts_refs, counts_bytes) = (limits.refs_high > 0, limits.bytes_high > 0 && refs >= widest);
        self.is_shut = if self.is_shut {
            counts_refs && refs > limits.refs_low || counts_bytes && bytes > limits.bytes_low
        } else {
            counts_refs && refs >= limits.refs_high || counts_bytes && bytes >= limits.bytes_high
        };
        if self.is_shut { Err(Backlog { refs, bytes, limits }) } else { Ok(()) }
    }

    /// Checks whether the windows of the groups can be filled under these limits, and explains the problem.
    pub(super) fn problem(&self, limits: StreamLimits) -> Option<String> {
        if limits.refs_low > limits.refs_high || limits.bytes_low > limits.bytes_high {
            return Some("a low mark is above its high mark".to_owned());
        }
        let most = most_in_flight(limits);
        let (name, group) = self.groups.iter().find(|(_, group)| group.window() > most)?;
        let windows: Vec<_> = group.consumers.values().map(u64::to_string).collect();
        Some(format!(
            "{} consumers of group `{name}` take {} = {} samples before they acknowledge any, but only \
             {most} are guaranteed to be in flight: the high mark is {} and, once it was reached, \
             the low mark {} plus one",
            group.consumers.len(),
            windows.join(" + "),
            group.window(),
            limits.refs_high,
            limits.refs_low,
        ))
    }

    pub(super) fn limits(&self) -> StreamLimits {
        self.limits
    }

    /// Sets the limits. After its end, an empty stream starts again from the beginning.
    pub(super) fn open(&mut self, limits: StreamLimits) {
        self.limits = limits;
        if self.end.is_some() && self.entries.is_empty() {
            self.end = None;
            self.seen.clear();
            self.seen_order.clear();
        }
    }

    /// Adds a client to a group. Returns its previous window.
    pub(super) fn attach(&mut self, group: &str, client: ClientId, window: u64) -> Option<u64> {
        self.meet(group);
        self.groups.get_mut(group).and_then(|it| it.consumers.insert(client, window))
    }

    /// Undoes the last [`Self::attach`].
    pub(super) fn unattach(&mut self, group: &str, client: ClientId, before: Option<u64>) {
        if let Some(group) = self.groups.get_mut(group) {
            match before {
                Some(window) => _ = group.consumers.insert(client, window),
                None => _ = group.consumers.remove(&client),
            }
        }
    }

    /// A client is gone, and consumes no more samples.
    pub(super) fn detach(&mut self, client: ClientId) {
        for group in self.groups.values_mut() {
            group.consumers.remove(&client);
        }
    }

    /// Whether it has ended and is empty.
    pub(super) fn is_over(&self) -> bool {
        self.entries.is_empty() && self.parked.is_empty() && self.end.is_some()
    }

    /// Adds a pulling client to the group, if it has not attached.
    pub(super) fn pulls(&mut self, group: &str, client: ClientId) {
        self.meet(group);
        if let Some(group) = self.groups.get_mut(group) {
            group.consumers.entry(client).or_insert(0);
        }
    }

    /// Ends the stream. The first failure is the one that clients receive.
    pub(super) fn finish(&mut self, failure: Option<String>) {
        let end = self.end.get_or_insert_default();
        if end.failure.is_none() {
            end.failure = failure;
        }
    }

    pub(super) fn end(&self) -> Option<&StreamEnd> {
        self.end.as_ref()
    }

    pub(super) fn park(&mut self, op: OpId) {
        self.parked.push_back(op);
    }

    pub(super) fn unpark(&mut self, op: OpId) {
        self.parked.retain(|it| *it != op);
    }

    pub(super) fn parked(&self) -> Vec<OpId> {
        self.parked.iter().copied().collect()
    }

    pub(super) fn stat(&self, (granted, granted_bytes): (u64, u64)) -> StreamStat {
        let groups = self.groups.iter().map(|(name, it)| GroupStat {
            group: name.clone(),
            ready: it.ready.len() as u64,
            out: it.out.len() as u64,
            delivered: it.delivered,
            acked: it.acked,
            consumers: it.consumers.len() as u64,
            window: it.window(),
        });
        StreamStat {
            refs: self.entries.len() as u64,
            bytes: self.bytes,
            granted,
            granted_bytes,
            limits: self.limits,
            is_shut: self.is_shut,
            end: self.end.clone(),
            appended: self.appended,
            recovered: self.recovered,
            consumed: self.consumed,
            groups: groups.collect(),
        }
    }

    /// Checks internal consistency.
    pub(super) fn check(&self, is_there: impl Fn(ObjectIndex, Generation) -> bool) -> Result<(), String> {
        let sum: u64 = self.entries.values().map(|it| it.len).sum();
        if sum != self.bytes {
            return Err(format!("stream counts {} bytes and has {sum}", self.bytes));
        }
        for (generation, entry) in &self.entries {
            if !is_there(entry.object, *generation) {
                return Err(format!(
                    "sample `{}` of generation {generation} is in its stream, but not in the catalog",
                    entry.key
                ));
            }
            for (name, group) in &self.groups {
                let (is_ready, is_out) =
                    (group.ready.contains(generation), group.out.contains_key(generation));
                // Other clients may still have a sample that one has consumed.
                let is_awaited = if entry.is_consumed() { is_out } else { entry.is_for(name) };
                if (is_ready && is_out) || (is_ready || is_out) != is_awaited {
                    return Err(format!(
                        "sample `{}` is missing in group `{name}`, or listed twice",
                        entry.key
                    ));
                }
            }
        }
        for group in self.groups.values() {
            if group.ready.iter().chain(group.out.keys()).any(|it| !self.entries.contains_key(it)) {
                return Err("a group lists a sample that is gone".to_owned());
            }
        }
        Ok(())
    }
}

/// Number of samples that are guaranteed to be available before any is acknowledged: a stream that was full
/// accepts more only at its low mark.
pub(super) fn most_in_flight(limits: StreamLimits) -> u64 {
    match limits.refs_high {
        0 => u64::MAX,
        high => high.min(limits.refs_low.saturating_add(1)),
    }
}

impl Group {
    fn window(&self) -> u64 {
        self.consumers.values().fold(0, |sum, it| sum.saturating_add(*it))
    }
}
