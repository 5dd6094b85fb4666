//! All metrics of the master.
//!
//! Mooncake's names are kept, so that its dashboards work: they begin with `master_` and `segment_`, or are
//! those of its cache counters. Tiffin's own names begin with `tiffin_`. Gauges are read from the core for
//! each page; only events are counted here.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytesize::ByteSize;
use tiffin_types::message::{
    CachedReads, CallPart, ClientToMaster, CommitOutcome, DeleteOutcome, MemberToMaster, NodeStat, Pattern,
    Presence, Reply, Request, ReserveOutcome, ResolveOutcome, Stat, Usage,
};

/// The upper bounds of the histogram of value sizes, in bytes.
const VALUE_SIZES: [u64; 10] =
    [1 << 10, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30];

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
    evictions: AtomicU64,
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

/// The data for the pages.
pub(crate) struct Snapshot<'a> {
    pub(crate) stat: &'a Stat,
    pub(crate) counters: &'a Counters,
    pub(crate) waiting: u64,
    pub(crate) undecided: u64,
    pub(crate) connections: u64,
    pub(crate) refused: u64,
    pub(crate) uptime: Duration,
    /// Whether this master leads, and how often it won and lost an election.
    pub(crate) leads: (bool, u64, u64),
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
            ClientToMaster::Ping => (Op::Ping, 1),
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
    pub(crate) fn answered(&self, asked: Option<Asked>, reply: &Reply) {
        let op = asked.map(|it| it.op);
        match reply {
            Reply::Reserved(reserved) => {
                let failed = |it: &&ReserveOutcome| !matches!(it, ReserveOutcome::Space(_));
                let is_full =
                    |it: &ReserveOutcome| matches!(it, ReserveOutcome::Full(_) | ReserveOutcome::NoNode);
                add(&self.allocation_failures, reserved.items.iter().filter(|it| is_full(it)).count() as u64);
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
        let failed = |it: &&CommitOutcome| matches!(it, CommitOutcome::Exists(_) | CommitOutcome::Stale);
        self.outcome(Op::PutEnd, outcomes.clone().count(), outcomes.filter(failed).count());
    }

    /// Counts an eviction.
    pub(crate) fn evicted(&self) {
        add(&self.evictions, 1);
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

/// The page `/metrics`, in the text format of Prometheus.
pub(crate) fn render(snapshot: &Snapshot<'_>) -> String {
    let mut page = Page::default();
    cluster(&mut page, snapshot);
    segments(&mut page, snapshot.stat);
    operations(&mut page, snapshot.counters);
    lifetimes(&mut page, snapshot);
    cache(&mut page, snapshot.counters);
    own(&mut page, snapshot);
    page.text
}

/// The page `/metrics/summary`: one line for operators.
pub(crate) fn summary(snapshot: &Snapshot<'_>) -> String {
    let total = total(snapshot.stat);
    let shown = |bytes| ByteSize::b(bytes).display().iec().to_string();
    let requests: u64 =
        snapshot.counters.ops.iter().map(|op| get(&op.requests) + get(&op.batch_requests)).sum();
    format!(
        "Mem Storage: {} / {} ({:.1}%) | Keys: {} (soft-pinned: {}) | Clients: {} | Nodes: {} | \
         Requests: {} | Evicted: {} keys, {} | Epoch: {} | Up: {}\n",
        shown(allocated(&total)),
        shown(total.capacity),
        percent(allocated(&total), total.capacity),
        keys(snapshot.stat),
        snapshot.stat.soft_pinned,
        snapshot.stat.clients,
        snapshot.stat.nodes.iter().filter(|node| node.alive).count(),
        requests,
        snapshot.stat.evicted_objects,
        shown(snapshot.stat.evicted_bytes),
        snapshot.stat.epoch,
        humantime::format_duration(Duration::from_secs(snapshot.uptime.as_secs())),
    )
}

/// The bytes that are not free.
pub(crate) fn allocated(usage: &Usage) -> u64 {
    usage.capacity.saturating_sub(usage.free)
}

fn cluster(page: &mut Page, snapshot: &Snapshot<'_>) {
    let (stat, total) = (snapshot.stat, total(snapshot.stat));
    page.gauge("master_allocated_bytes", "Bytes in use, on all nodes that answer", allocated(&total));
    page.gauge("master_total_capacity_bytes", "Bytes of memory, on all nodes that answer", total.capacity);
    page.gauge("master_key_count", "Readable objects", keys(stat));
    page.gauge("master_soft_pin_key_count", "Soft-pinned objects", stat.soft_pinned);
    page.gauge("master_active_clients", "Connected clients", stat.clients);
    let disks = sum(stat.nodes.iter().filter(|node| node.alive && node.info.beside.is_some()));
    page.gauge("master_allocated_file_size_bytes", "Bytes in use, on all disks", allocated(&disks));
    page.gauge("master_total_file_capacity_bytes", "Bytes of all disks", disks.capacity);
    let name = "master_value_size_bytes";
    page.head(name, "histogram", "Sizes of the values in reservations");
    let mut sum = 0;
    for (at, counter) in snapshot.counters.value_sizes.iter().enumerate() {
        sum += get(counter);
        let bound = VALUE_SIZES.get(at).map_or_else(|| "+Inf".to_owned(), ToString::to_string);
        page.sample(&format!("{name}_bucket"), &[("le", &bound)], sum);
    }
    page.sample(&format!("{name}_sum"), &[], get(&snapshot.counters.value_bytes));
    page.sample(&format!("{name}_count"), &[], sum);
}

fn segments(page: &mut Page, stat: &Stat) {
    page.head("segment_allocated_bytes", "gauge", "Bytes in use, by node");
    for node in &stat.nodes {
        page.sample("segment_allocated_bytes", &[("segment", &node.info.name)], allocated(&node.usage));
    }
    page.head("segment_total_capacity_bytes", "gauge", "Bytes of memory, by node");
    for node in &stat.nodes {
        page.sample("segment_total_capacity_bytes", &[("segment", &node.info.name)], node.usage.capacity);
    }
}

fn operations(page: &mut Page, counters: &Counters) {
    for ((_, name, batch), counters) in OPS.iter().zip(&counters.ops) {
        page.counter(&format!("{name}_requests_total"), "Requests", get(&counters.requests));
        page.counter(&format!("{name}_failures_total"), "Failed requests", get(&counters.failures));
        let Some(batch) = batch else { continue };
        for (what, help, counter) in [
            ("requests", "Requests for batches", &counters.batch_requests),
            ("failures", "Batch requests in which all items failed", &counters.batch_failures),
            ("partial_successes", "Batch requests in which some failed", &counters.batch_partial_successes),
            ("items", "Items of batch requests", &counters.batch_items),
            ("failed_items", "Failed items of batch requests", &counters.batch_failed_items),
        ] {
            page.counter(&format!("{batch}_{what}_total"), help, get(counter));
        }
    }
}

fn lifetimes(page: &mut Page, snapshot: &Snapshot<'_>) {
    let (evictions, failures) =
        (get(&snapshot.counters.evictions), get(&snapshot.counters.allocation_failures));
    let objects = snapshot.stat.evicted_objects;
    page.counter(
        "master_attempted_evictions_total",
        "Attempts to free memory by eviction",
        evictions + failures,
    );
    page.counter("master_successful_evictions_total", "Evictions that freed memory", evictions);
    page.counter("master_evicted_key_count", "Evicted objects", objects);
    page.counter("master_evicted_size_bytes", "Evicted bytes", snapshot.stat.evicted_bytes);
    page.counter("master_put_start_alloc_failures_total", "Objects of puts that found no memory", failures);
}

fn cache(page: &mut Page, counters: &Counters) {
    let (gets, hits) = (get(&counters.gets), get(&counters.hits));
    page.counter("mem_cache_hit_nums_", "Lookups that found an object in memory", hits);
    page.counter("mem_cache_hit_bytes_total", "Bytes that lookups found in memory", get(&counters.hit_bytes));
    page.counter("total_get_nums_", "Lookups", gets);
    page.counter("valid_get_nums_", "Lookups that found an object", hits);
    page.head("valid_get_rate", "gauge", "Fraction of lookups that found an object");
    let rate = if gets == 0 { 0.0 } else { hits as f64 / gets as f64 };
    // Writing to a `String` cannot fail.
    let _ = writeln!(page.text, "valid_get_rate {rate}");
}

fn own(page: &mut Page, snapshot: &Snapshot<'_>) {
    let stat = snapshot.stat;
    page.gauge("tiffin_epoch", "Epoch of the master", stat.epoch);
    let (leads, won, lost) = snapshot.leads;
    page.gauge("tiffin_leader", "Whether this master leads", u64::from(leads));
    page.counter("tiffin_elections_won_total", "Times that this master became the leader", won);
    page.counter("tiffin_elections_lost_total", "Times that this master stepped down", lost);
    page.gauge("tiffin_uptime_seconds", "Time since the master started", snapshot.uptime.as_secs());
    page.gauge("tiffin_connections", "Connections of clients and nodes", snapshot.connections);
    page.counter("tiffin_connections_refused_total", "Rejected connections", snapshot.refused);
    page.counter("tiffin_requests_refused_total", "Refused requests", get(&snapshot.counters.refusals));
    page.gauge("tiffin_operations_waiting", "Operations that wait for a node", snapshot.waiting);
    page.gauge(
        "tiffin_commits_undecided",
        "Commits that wait for members which have not reported to the restarted master",
        snapshot.undecided,
    );
    let [(name, help, level), counters @ ..] = stat.tier.named();
    page.gauge(&format!("tiffin_tier_{name}"), help, level);
    for (name, help, count) in counters {
        page.counter(&format!("tiffin_tier_{name}_total"), help, count);
    }
    let [short, running, counters @ ..] = stat.copies.named();
    for (name, help, level) in [short, running] {
        page.gauge(&format!("tiffin_copies_{name}"), help, level);
    }
    for (name, help, count) in counters {
        page.counter(&format!("tiffin_copies_{name}_total"), help, count);
    }
    nodes(page, &stat.nodes);
    page.head("tiffin_namespace_objects", "gauge", "Objects, by namespace");
    for namespace in &stat.namespaces {
        page.sample("tiffin_namespace_objects", &[("namespace", &namespace.name)], namespace.objects);
    }
    page.head("tiffin_namespace_bytes", "gauge", "Bytes of objects, each counted once, by namespace");
    for namespace in &stat.namespaces {
        page.sample("tiffin_namespace_bytes", &[("namespace", &namespace.name)], namespace.bytes);
    }
}

fn nodes(page: &mut Page, nodes: &[NodeStat]) {
    page.head("tiffin_node_alive", "gauge", "Whether the node is connected and answers");
    for node in nodes {
        page.sample("tiffin_node_alive", &[("node", &node.info.name)], u64::from(node.alive));
    }
    page.head(
        "tiffin_node_owed_retires",
        "gauge",
        "Retires that the node must apply before it is used again",
    );
    for node in nodes {
        page.sample("tiffin_node_owed_retires", &[("node", &node.info.name)], node.owed);
    }
    page.head("tiffin_node_objects", "gauge", "Objects on the node");
    for node in nodes {
        page.sample("tiffin_node_objects", &[("node", &node.info.name)], node.usage.objects);
    }
    page.head("tiffin_node_bytes", "gauge", "Bytes of the node, by use");
    for node in nodes {
        let usage = &node.usage;
        let states = [
            ("free", usage.free),
            ("granted", usage.granted),
            ("committed", usage.committed),
            ("held", usage.held),
            ("metadata", usage.metadata),
        ];
        for (state, bytes) in states {
            page.sample("tiffin_node_bytes", &[("node", &node.info.name), ("state", state)], bytes);
        }
    }
    let offered = "Free bytes that are preallocated for clients, and recalled when they are needed";
    page.head("tiffin_node_offered_bytes", "gauge", offered);
    for node in nodes {
        page.sample("tiffin_node_offered_bytes", &[("node", &node.info.name)], node.usage.offered);
    }
}

/// The memory of all nodes.
fn total(stat: &Stat) -> Usage {
    sum(stat.nodes.iter().filter(|node| node.alive && node.info.beside.is_none()))
}

fn sum<'a>(nodes: impl Iterator<Item = &'a NodeStat>) -> Usage {
    let mut total = Usage::default();
    for node in nodes {
        total.capacity += node.usage.capacity;
        total.free += node.usage.free;
    }
    total
}

fn keys(stat: &Stat) -> u64 {
    stat.namespaces.iter().map(|it| it.objects).sum()
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 }
}

fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// A page in the text format of Prometheus.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a `String` cannot fail, here and below.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        let labels: Vec<_> =
            labels.iter().map(|(key, text)| format!("{key}=\"{}\"", escaped(text))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.text, "{name}{labels} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "gauge", help);
        self.sample(name, &[], value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        self.sample(name, &[], value);
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tiffin_types::message::{CACHED_READS_MAX, Exists, NodeInfo, NodeStat, Resolve, Resolved};
    use tiffin_types::{Key, message::Found};

    use super::*;

    fn page_of(stat: &Stat, counters: &Counters) -> String {
        let uptime = Duration::from_secs(5);
        let leads = (true, 4, 5);
        render(&Snapshot {
            stat,
            counters,
            waiting: 1,
            undecided: 0,
            connections: 2,
            refused: 3,
            uptime,
            leads,
        })
    }

    #[test]
    fn every_metric_has_one_name_and_samples_of_its_own() {
        let info = NodeInfo { name: "a \"node\"\\\n".into(), ..NodeInfo::default() };
        let stat = Stat { nodes: vec![NodeStat { info, ..NodeStat::default() }], ..Stat::default() };
        let page = page_of(&stat, &Counters::default());
        let mut names = BTreeSet::new();
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let name = rest.split(' ').next().unwrap().to_owned();
                assert!(names.insert(name), "{line} is declared twice");
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().unwrap();
                let base = ["_bucket", "_sum", "_count"].iter().find_map(|it| name.strip_suffix(it));
                assert!(names.contains(name) || base.is_some_and(|it| names.contains(it)), "{line}");
                assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
            }
        }
        assert!(page.contains(r#"segment_allocated_bytes{segment="a \"node\"\\\n"} 0"#), "{page}");
    }

    /// The names that a text in backquotes stands for: `a_{b,c}` is `a_b` and `a_c`.
    fn expanded(text: &str) -> Vec<String> {
        let Some((head, rest)) = text.split_once('{') else { return vec![text.to_owned()] };
        let (choices, tail) = rest.split_once('}').unwrap();
        let tails = expanded(tail);
        let name = |choice: &str, tail: &String| format!("{head}{choice}{tail}");
        choices.split(',').flat_map(|choice| tails.iter().map(move |tail| name(choice, tail))).collect()
    }

    #[test]
    fn documented_metrics_are_those_that_are_exported() {
        let (_, section) = include_str!("../../../docs/operations.md").split_once("\n## Metrics\n").unwrap();
        let section = section.split("\n## ").next().unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        let cells = rows.filter_map(|row| row.split(" | ").next());
        let quoted = cells.flat_map(|cell| cell.split('`').step_by(2));
        let documented: BTreeSet<String> = quoted.flat_map(expanded).collect();
        let page = page_of(&Stat::default(), &Counters::default());
        let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let exported: BTreeSet<String> =
            types.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
        let missing: Vec<_> = exported.difference(&documented).collect();
        let invented: Vec<_> = documented.difference(&exported).collect();
        assert!(
            missing.is_empty() && invented.is_empty(),
            "missing: {missing:?}, not exported: {invented:?}"
        );
    }

    #[test]
    fn reads_from_cached_locations_are_counted() {
        let counters = Counters::default();
        let report = |reads| {
            let request = ClientToMaster::Exists(Exists { touch: true, reads, ..Exists::default() });
            let op = counters.asked(&request.into());
            counters.answered(op, &Reply::Present(vec![Presence::Absent]));
        };
        let mut reads = CachedReads::default();
        reads.add(false, 1, 10);
        reads.add(true, 3, 60);
        report(reads);
        let page = page_of(&Stat::default(), &counters);
        for expected in [
            "master_get_replica_list_requests_total 1",
            "master_get_replica_list_failures_total 0",
            "master_batch_get_replica_list_requests_total 1",
            "master_batch_get_replica_list_items_total 3",
            "master_batch_get_replica_list_failed_items_total 0",
            "master_exist_key_requests_total 0",
            "master_exist_key_failures_total 0",
            "mem_cache_hit_bytes_total 70",
            "total_get_nums_ 4",
        ] {
            assert!(page.lines().any(|line| line == expected), "{expected}\n{page}");
        }
        // One report counts at most its limit.
        report(CachedReads { singles: u64::MAX, batches: u64::MAX, items: u64::MAX, bytes: 0 });
        let page = page_of(&Stat::default(), &counters);
        let singles = format!("master_get_replica_list_requests_total {}", 1 + CACHED_READS_MAX);
        assert!(page.lines().any(|line| line == singles), "{page}");
    }

    #[test]
    fn requests_of_one_call_are_counted_together() {
        let counters = Counters::default();
        let found = ResolveOutcome::Found(Found { len: 70, ..Found::default() });
        let ask = |part: CallPart, items: Vec<ResolveOutcome>| {
            let keys = vec![Key::new(b"k").unwrap(); items.len()];
            let resolve = Resolve { keys, locate: true, part, ..Resolve::default() };
            let asked = counters.asked(&ClientToMaster::Resolve(resolve).into());
            counters.answered(asked, &Reply::Resolved(Resolved { items, nodes: Vec::new() }));
        };
        // Three of five objects are cached. One is missing, and the location of another changes twice.
        ask(CallPart { items: 5, is_more: false, repeats: 0 }, vec![ResolveOutcome::Absent]);
        ask(CallPart { items: 5, is_more: true, repeats: 0 }, vec![found.clone()]);
        ask(CallPart { items: 5, is_more: true, repeats: 1 }, vec![found.clone()]);
        let mut reads = CachedReads::default();
        reads.add_items(3, 210);
        counters.asked(&ClientToMaster::Exists(Exists { reads, ..Exists::default() }).into());
        // The location of a single object changes.
        ask(CallPart::default(), vec![found.clone()]);
        ask(CallPart { items: 1, is_more: true, repeats: 1 }, vec![found]);
        // More repeats than names.
        ask(CallPart { items: 1, is_more: true, repeats: u64::MAX }, vec![ResolveOutcome::Absent]);
        let page = page_of(&Stat::default(), &counters);
        for expected in [
            "master_get_replica_list_requests_total 1",
            "master_get_replica_list_failures_total 1",
            "master_batch_get_replica_list_requests_total 1",
            "master_batch_get_replica_list_partial_successes_total 1",
            "master_batch_get_replica_list_items_total 5",
            "master_batch_get_replica_list_failed_items_total 1",
            "mem_cache_hit_nums_ 5",
            "mem_cache_hit_bytes_total 350",
            "total_get_nums_ 6",
        ] {
            assert!(page.lines().any(|line| line == expected), "{expected} is not in\n{page}");
        }
    }

    #[test]
    fn single_requests_and_batches_are_counted_separately() {
        let counters = Counters::default();
        let key = Key::new(b"k").unwrap();
        for count in [1, 3] {
            let keys = vec![key.clone(); count];
            let op = counters
                .asked(&ClientToMaster::Resolve(Resolve { keys, locate: true, ..Resolve::default() }).into());
            let mut items = vec![ResolveOutcome::Absent; count];
            if count > 1 {
                items[0] = ResolveOutcome::Found(Found { len: 70, ..Found::default() });
            }
            counters.answered(op, &Reply::Resolved(Resolved { items, nodes: Vec::new() }));
        }
        let page = page_of(&Stat::default(), &counters);
        for expected in [
            "master_get_replica_list_requests_total 1",
            "master_get_replica_list_failures_total 1",
            "master_batch_get_replica_list_requests_total 1",
            "master_batch_get_replica_list_partial_successes_total 1",
            "master_batch_get_replica_list_items_total 3",
            "master_batch_get_replica_list_failed_items_total 2",
            "mem_cache_hit_nums_ 1",
            "mem_cache_hit_bytes_total 70",
            "total_get_nums_ 4",
            "valid_get_rate 0.25",
        ] {
            assert!(page.lines().any(|line| line == expected), "{expected} is not in\n{page}");
        }
    }

    #[test]
    fn sizes_fall_into_their_buckets() {
        let counters = Counters::default();
        for len in [0, 1 << 10, (1 << 10) + 1, u64::MAX / 8] {
            counters.value_size(len);
        }
        let page = page_of(&Stat::default(), &counters);
        for expected in [
            "master_value_size_bytes_bucket{le=\"1024\"} 2",
            "master_value_size_bytes_bucket{le=\"4096\"} 3",
            "master_value_size_bytes_bucket{le=\"1073741824\"} 3",
            "master_value_size_bytes_bucket{le=\"+Inf\"} 4",
            "master_value_size_bytes_count 4",
        ] {
            assert!(page.lines().any(|line| line == expected), "{expected} is not in\n{page}");
        }
    }
}
