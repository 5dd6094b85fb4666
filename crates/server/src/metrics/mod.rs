//! All metrics of the master.
//!
//! Mooncake's names are kept, so that its dashboards work: they begin with `master_` and `segment_`, or are
//! those of its cache counters. Tiffin's own names begin with `tiffin_`. Gauges are read from the core for
//! each page; only events are counted here.

mod page;
mod requests;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use page::reference;
pub(crate) use page::{allocated, held_word, render, shown_namespaces, summary, tier};
pub(crate) use requests::{REQUESTS, RequestKind};
use tiffin_core::master::LimitStat;
use tiffin_measure::{Counts, Histogram, Measures};
use tiffin_types::SegmentId;
use tiffin_types::message::{
    CachedReads, CallPart, ClientToMaster, CommitOutcome, DeleteOutcome, LimitUse, Measured, MemberToMaster,
    Pattern, Presence, Reply, Request, ReserveOutcome, ResolveOutcome, SOCKET_LIMITS, Stat,
};

/// The upper bounds of the histogram of value sizes, in bytes.
const VALUE_SIZES: [u64; 10] =
    [1 << 10, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30];

/// The maximum number of members whose transfers are counted.
const MEMBERS_MAX: usize = 4096;

/// The requests to a master, by Mooncake's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    PutStart,
    PutEnd,
    GetReplicaList,
    ExistKey,
    Remove,
    RemoveByRegex,
    RemoveAll,
    MountSegment,
    Ping,
    List,
    Stat,
}

/// A request that was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    op: Op,
    /// The number of objects in the client's call, if the request names only a part of them.
    items: usize,
    /// The number of leading names that an earlier request of the same call has counted.
    repeats: usize,
}

/// Every [`Op`] with the names of its counters: for single objects, and for batches if there are any.
const OPS: [(Op, &str, Option<&str>); 11] = [
    (Op::PutStart, "master_put_start", Some("master_batch_put_start")),
    (Op::PutEnd, "master_put_end", Some("master_batch_put_end")),
    (Op::GetReplicaList, "master_get_replica_list", Some("master_batch_get_replica_list")),
    (Op::ExistKey, "master_exist_key", Some("master_batch_exist_key")),
    (Op::Remove, "master_remove", Some("master_batch_remove")),
    (Op::RemoveByRegex, "master_remove_by_regex", None),
    (Op::RemoveAll, "master_remove_all", None),
    (Op::MountSegment, "master_mount_segment", None),
    (Op::Ping, "master_ping", None),
    (Op::List, "tiffin_list", None),
    (Op::Stat, "tiffin_stat", None),
];

/// All counters.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    ops: [OpCounters; OPS.len()],
    value_sizes: [AtomicU64; VALUE_SIZES.len() + 1],
    value_bytes: AtomicU64,
    allocation_failures: AtomicU64,
    over_quota: AtomicU64,
    behind: AtomicU64,
    /// Latencies at the master, by kind of request.
    requests: [Histogram; REQUESTS.len()],
    /// What clients have measured, all together.
    clients: Measures,
    /// What members have measured. It is locked for one heartbeat or one page.
    members: Mutex<BTreeMap<SegmentId, Measures>>,
    /// The limits of the sockets of nodes, as last reported. It is locked for one heartbeat or one page.
    limits: Mutex<NodeLimits>,
    slow: AtomicU64,
    gets: AtomicU64,
    hits: AtomicU64,
    hit_bytes: AtomicU64,
    refusals: AtomicU64,
}

#[derive(Debug, Default)]
struct OpCounters {
    requests: AtomicU64,
    failures: AtomicU64,
    batch_requests: AtomicU64,
    batch_failures: AtomicU64,
    batch_partial_successes: AtomicU64,
    batch_items: AtomicU64,
    batch_failed_items: AtomicU64,
}

/// The transfers of one member, by operation and path.
pub(crate) type Transfers = Vec<(String, &'static str, &'static str, Counts)>;

/// The limits of the sockets of each node, by name.
type NodeLimits = BTreeMap<SegmentId, BTreeMap<&'static str, LimitUse>>;

/// The use of a limit of a node's sockets, with the name of the node.
pub(crate) type NodeLimit = (String, LimitStat);

/// The data for the pages.
pub(crate) struct Snapshot<'a> {
    pub(crate) stat: &'a Stat,
    pub(crate) transfers: Transfers,
    /// The number of events by kind.
    pub(crate) events: Vec<(&'static str, u64)>,
    pub(crate) counters: &'a Counters,
    pub(crate) waiting: u64,
    pub(crate) undecided: u64,
    pub(crate) limits: Vec<LimitStat>,
    pub(crate) node_limits: Vec<NodeLimit>,
    /// Spans that were exported, and those that were lost.
    pub(crate) spans: (u64, u64),
    pub(crate) connections: u64,
    pub(crate) refused: u64,
    /// When the certificate ends, in seconds since the Unix epoch; zero without TLS.
    pub(crate) certificate_ends_s: u64,
    pub(crate) uptime: Duration,
    /// Whether this master leads, and how often it won and lost an election.
    pub(crate) leads: (bool, u64, u64),
}

impl<'a> Snapshot<'a> {
    /// The data of a master that has just started and leads.
    pub(crate) fn of(stat: &'a Stat, counters: &'a Counters) -> Self {
        Self {
            stat,
            counters,
            transfers: Vec::new(),
            events: Vec::new(),
            waiting: 0,
            undecided: 0,
            limits: Vec::new(),
            node_limits: Vec::new(),
            spans: (0, 0),
            connections: 0,
            refused: 0,
            certificate_ends_s: 0,
            uptime: Duration::ZERO,
            leads: (true, 0, 0),
        }
    }
}

impl Counters {
    /// Counts a request and classifies it.
    pub(crate) fn asked(&self, request: &Request) -> Option<Asked> {
        match request {
            Request::ClientToMaster(request) => self.client_asked(request),
            Request::MemberToMaster(request) => self.member_asked(request),
            Request::Hello(_) | Request::Goodbye | Request::MasterToMember(_) | Request::ClientToNode(_) => {
                None
            }
        }
    }

    fn client_asked(&self, request: &ClientToMaster) -> Option<Asked> {
        let (op, items) = match request {
            // A report of gets from cached locations.
            ClientToMaster::Exists(exists) if !exists.reads.is_empty() => {
                self.read_cached(exists.reads.bounded());
                return Some(Asked { op: Op::GetReplicaList, items: 0, repeats: 0 });
            }
            ClientToMaster::Resolve(resolve) if resolve.locate => {
                return Some(self.looked_up(resolve.keys.len(), resolve.part));
            }
            ClientToMaster::Reserve(reserve) => {
                reserve.items.iter().for_each(|item| self.value_size(item.len));
                (Op::PutStart, reserve.items.len())
            }
            ClientToMaster::Publish(publish) => (Op::PutEnd, publish.items.len()),
            ClientToMaster::Resolve(resolve) => (Op::ExistKey, resolve.keys.len()),
            ClientToMaster::Exists(exists) => (Op::ExistKey, exists.keys.len()),
            ClientToMaster::Delete(delete) => (Op::Remove, delete.keys.len()),
            ClientToMaster::DeleteMatching(delete) if delete.pattern == Pattern::All => (Op::RemoveAll, 1),
            ClientToMaster::DeleteMatching(_) => (Op::RemoveByRegex, 1),
            ClientToMaster::Ping(_) => (Op::Ping, 1),
            ClientToMaster::List(_) => (Op::List, 1),
            ClientToMaster::Stat => (Op::Stat, 1),
            ClientToMaster::Pin(_)
            | ClientToMaster::DropPins(_)
            | ClientToMaster::ForgetNode(_)
            | ClientToMaster::AdmitCluster(_)
            | ClientToMaster::SetPolicy(_)
            | ClientToMaster::Await(_)
            | ClientToMaster::Why(_)
            | ClientToMaster::Lease(_)
            | ClientToMaster::Release(_)
            | ClientToMaster::KeepLeases(_)
            | ClientToMaster::Ack(_)
            | ClientToMaster::Cancel(_)
            | ClientToMaster::OpenStream(_)
            | ClientToMaster::EndStream(_)
            | ClientToMaster::Pull(_)
            | ClientToMaster::Prefetch(_) => return None,
        };
        Some(self.count(op, items))
    }

    fn member_asked(&self, request: &MemberToMaster) -> Option<Asked> {
        let (op, items) = match request {
            MemberToMaster::Decide(decide) => (Op::PutEnd, decide.items.len()),
            MemberToMaster::Register(_) => (Op::MountSegment, 1),
            MemberToMaster::Heartbeat(_) => (Op::Ping, 1),
            MemberToMaster::Announce(_)
            | MemberToMaster::Released(_)
            | MemberToMaster::ClientDied(_)
            | MemberToMaster::Dropped(_)
            | MemberToMaster::Drained(_) => return None,
        };
        Some(self.count(op, items))
    }

    fn count(&self, op: Op, items: usize) -> Asked {
        let counters = self.of(op);
        if items > 1 {
            add(&counters.batch_requests, 1);
            add(&counters.batch_items, items as u64);
        } else {
            add(&counters.requests, 1);
        }
        Asked { op, items: 0, repeats: 0 }
    }

    /// Counts a lookup of names, which may be a part of a call. A call counts once, and so does each of its
    /// objects.
    fn looked_up(&self, names: usize, part: CallPart) -> Asked {
        let limited = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let (items, repeats) = (limited(part.items), limited(part.repeats).min(names));
        let counters = self.of(Op::GetReplicaList);
        let calls = u64::from(!part.is_more);
        if names.max(items) > 1 {
            add(&counters.batch_requests, calls);
            add(&counters.batch_items, (names - repeats) as u64);
        } else {
            add(&counters.requests, calls);
        }
        Asked { op: Op::GetReplicaList, items, repeats }
    }

    /// Counts a reply. `asked` is the request, if the reply is immediate.
    pub(crate) fn answered(&self, asked: Option<Asked>, reply: &Reply) -> Shortage {
        let mut shortage = Shortage::default();
        let op = asked.map(|it| it.op);
        match reply {
            Reply::Reserved(reserved) => {
                let failed = |it: &&ReserveOutcome| !matches!(it, ReserveOutcome::Space(_));
                let is_full =
                    |it: &ReserveOutcome| matches!(it, ReserveOutcome::Full(_) | ReserveOutcome::NoNode);
                add(&self.allocation_failures, reserved.items.iter().filter(|it| is_full(it)).count() as u64);
                for it in &reserved.items {
                    match it {
                        ReserveOutcome::OverQuota(_) => {
                            add(&self.over_quota, 1);
                            shortage.over_quota = true;
                        }
                        ReserveOutcome::Behind(_) => {
                            add(&self.behind, 1);
                            shortage.behind = true;
                        }
                        ReserveOutcome::Full(_) | ReserveOutcome::NoNode => shortage.full = true,
                        ReserveOutcome::Space(_) | ReserveOutcome::Exists(_) | ReserveOutcome::Invalid(_) => {
                        }
                    }
                }
                self.outcome(
                    Op::PutStart,
                    reserved.items.len(),
                    reserved.items.iter().filter(failed).count(),
                );
            }
            Reply::Decided(outcomes) => self.decided(outcomes.iter()),
            // Other commits are counted when the node asks for the decision.
            Reply::Published(outcomes) => self.decided(outcomes.iter().flatten()),
            Reply::Resolved(resolved) => self.resolved(asked, &resolved.items),
            Reply::Present(_) if op == Some(Op::GetReplicaList) => {}
            Reply::Present(items) => {
                let missed = items.iter().filter(|&&it| it != Presence::Here).count();
                self.outcome(Op::ExistKey, items.len(), missed);
            }
            Reply::Deleted(outcomes) => {
                let failed = |it: &&DeleteOutcome| **it != DeleteOutcome::Deleted;
                self.outcome(Op::Remove, outcomes.len(), outcomes.iter().filter(failed).count());
            }
            Reply::Refused(_) => {
                add(&self.refusals, 1);
                if let Some(op) = op {
                    add(&self.of(op).failures, 1);
                }
            }
            _ => {}
        }
        shortage
    }

    fn resolved(&self, asked: Option<Asked>, items: &[ResolveOutcome]) {
        let asked = asked.unwrap_or(Asked { op: Op::GetReplicaList, items: 0, repeats: 0 });
        let len = |it: &ResolveOutcome| match it {
            ResolveOutcome::Found(found) => Some(found.len),
            ResolveOutcome::Absent | ResolveOutcome::Unavailable(_) => None,
        };
        if asked.op == Op::GetReplicaList {
            let first = items.get(asked.repeats..).unwrap_or_default();
            let hits = first.iter().filter_map(len);
            let (found, bytes) =
                hits.fold((0, 0_u64), |(count, sum), len| (count + 1, sum.saturating_add(len)));
            add(&self.gets, first.len() as u64);
            add(&self.hits, found);
            add(&self.hit_bytes, bytes);
        }
        let failed = items.iter().filter(|it| len(it).is_none()).count();
        self.outcome(asked.op, items.len().max(asked.items), failed);
    }

    /// Counts reads of cached locations. All of them succeeded.
    fn read_cached(&self, reads: CachedReads) {
        let counters = self.of(Op::GetReplicaList);
        add(&counters.requests, reads.singles);
        add(&counters.batch_requests, reads.batches);
        add(&counters.batch_items, reads.items);
        add(&self.gets, reads.singles + reads.items);
        add(&self.hits, reads.singles + reads.items);
        add(&self.hit_bytes, reads.bytes);
    }

    fn decided<'a>(&self, outcomes: impl Iterator<Item = &'a CommitOutcome> + Clone) {
        let failed = |it: &&CommitOutcome| {
            matches!(it, CommitOutcome::Exists(_) | CommitOutcome::Stale | CommitOutcome::Removed)
        };
        self.outcome(Op::PutEnd, outcomes.clone().count(), outcomes.filter(failed).count());
    }

    /// Lookups, and those that found an object.
    pub(crate) fn lookups(&self) -> (u64, u64) {
        (get(&self.gets), get(&self.hits))
    }

    /// Records how long the answer to a request took.
    pub(crate) fn took(&self, kind: RequestKind, took: Duration) {
        if let Some(histogram) = self.requests.get(kind.index()) {
            histogram.record(took, 0);
        }
    }

    /// Counts a request that took longer than the limit.
    pub(crate) fn was_slow(&self) {
        add(&self.slow, 1);
    }

    /// Adds what a client has measured.
    pub(crate) fn client_measured(&self, measured: &[Measured]) {
        add_measured(&self.clients, measured);
    }

    /// Adds what a member has measured, unless there are too many. [`Self::transfers`] removes entries of
    /// those that are not members any more.
    pub(crate) fn member_measured(&self, segment: SegmentId, measured: &[Measured]) {
        let mut members = self.members();
        if !measured.is_empty() && (members.len() < MEMBERS_MAX || members.contains_key(&segment)) {
            add_measured(members.entry(segment).or_default(), measured);
        }
    }

    /// What the members have measured, by name. Those that are not members any more are removed.
    pub(crate) fn transfers(&self, stat: &Stat) -> Transfers {
        let mut members = self.members();
        members.retain(|segment, _| stat.nodes.iter().any(|it| it.info.segment == *segment));
        let mut transfers = Vec::new();
        for (segment, measures) in members.iter() {
            let node = stat.nodes.iter().find(|it| it.info.segment == *segment);
            let name = node.map_or_else(String::new, |it| it.info.name.clone());
            let series = measures.series().into_iter();
            transfers.extend(series.map(|(op, path, counts)| (name.clone(), op.name(), path.name(), counts)));
        }
        transfers
    }

    /// Keeps the limits of a member's sockets. Those that this master does not know are dropped.
    pub(crate) fn member_limits(&self, segment: SegmentId, limits: &[LimitUse]) {
        let mut members = self.limits();
        if !limits.is_empty() && (members.len() < MEMBERS_MAX || members.contains_key(&segment)) {
            members.insert(segment, limits.iter().filter_map(|it| Some((name_of(it)?, *it))).collect());
        }
    }

    /// The limits of the sockets of members, by name. Those that are not members any more are removed.
    pub(crate) fn node_limits(&self, stat: &Stat) -> Vec<NodeLimit> {
        let mut members = self.limits();
        members.retain(|segment, _| stat.nodes.iter().any(|it| it.info.segment == *segment));
        let mut found = Vec::new();
        for node in &stat.nodes {
            let limits = members.get(&node.info.segment).into_iter().flatten();
            found.extend(limits.map(|(name, &LimitUse { max, used, reached, .. })| {
                (node.info.name.clone(), LimitStat { name, max, used, reached })
            }));
        }
        found
    }

    fn limits(&self) -> MutexGuard<'_, NodeLimits> {
        // A panic leaves no partial state.
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All histograms that are not empty: whose they are, operation, path.
    pub(crate) fn series(&self) -> Vec<(Side, &'static str, &'static str, Counts)> {
        let requests = REQUESTS.iter().zip(&self.requests);
        let requests = requests.map(|(name, it)| (Side::Master, *name, "", it.counts()));
        let mut series: Vec<_> = requests.filter(|it| !it.3.is_empty()).collect();
        let clients = self.clients.series().into_iter();
        series.extend(clients.map(|(op, path, counts)| (Side::Client, op.name(), path.name(), counts)));
        let mut nodes: BTreeMap<_, Counts> = BTreeMap::new();
        for (op, path, counts) in self.members().values().flat_map(Measures::series) {
            nodes.entry((op, path)).or_default().merge(&counts);
        }
        let nodes = nodes.into_iter();
        series.extend(nodes.map(|((op, path), counts)| (Side::Node, op.name(), path.name(), counts)));
        series
    }

    fn members(&self) -> MutexGuard<'_, BTreeMap<SegmentId, Measures>> {
        // A panic leaves no partial state.
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outcome(&self, op: Op, items: usize, failed: usize) {
        let counters = self.of(op);
        if items <= 1 {
            return add(&counters.failures, failed as u64);
        }
        add(&counters.batch_failed_items, failed as u64);
        if failed == items {
            add(&counters.batch_failures, 1);
        } else if failed > 0 {
            add(&counters.batch_partial_successes, 1);
        }
    }

    fn value_size(&self, len: u64) {
        add(&self.value_bytes, len);
        let bucket = VALUE_SIZES.partition_point(|&bound| bound < len);
        if let Some(counter) = self.value_sizes.get(bucket) {
            add(counter, 1);
        }
    }

    fn of(&self, op: Op) -> &OpCounters {
        let at = OPS.iter().position(|(known, ..)| *known == op);
        match at.and_then(|at| self.ops.get(at)) {
            Some(counters) => counters,
            None => unreachable!("{op:?} is in the table"),
        }
    }
}

/// What the puts of one answer lacked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) over_quota: bool,
    pub(crate) full: bool,
    pub(crate) behind: bool,
}

/// The party that has measured a latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Client,
    Node,
    Master,
}

impl Side {
    /// Its name on pages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Node => "node",
            Self::Master => "master",
        }
    }
}

/// The name of a limit, if this master knows it.
fn name_of(limit: &LimitUse) -> Option<&'static str> {
    SOCKET_LIMITS.get(usize::try_from(limit.limit).ok()?).copied()
}

fn add_measured(measures: &Measures, measured: &[Measured]) {
    for it in measured {
        measures.add(it.operation, it.path, &it.counts, it.sum_us, it.bytes);
    }
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
