//! The page `/metrics`, and the reference page `docs/metrics.md`.
//!
//! A metric is declared where it is rendered, with its kind, labels and help text. The reference page is made
//! from the declarations of an empty page.

use std::fmt::Write as _;
use std::time::Duration;

use bytesize::ByteSize;
use tiffin_core::master::LimitStat;
use tiffin_measure::{BOUNDS_US, Counts};
use tiffin_types::message::{GroupStat, Held, NamedStream, NamespaceStat, NodeStat, Stat, Usage};

use super::{Counters, NodeLimit, OPS, REQUESTS, Snapshot, VALUE_SIZES, get};

/// The maximum number of namespaces on the page: those with puts that wait first, then the largest.
pub(super) const NAMESPACES_MAX: usize = 1000;
/// The maximum number of owners of pins on the page: those with most bytes.
pub(super) const OWNERS_MAX: usize = 1000;

/// A metric of a thing: its name, its help text and its value.
type Row<T> = (&'static str, &'static str, fn(&T) -> u64);
/// The same with its kind after its name.
type KindRow<T, V> = (&'static str, &'static str, &'static str, fn(&T) -> V);

/// The page `/metrics`, in the text format of Prometheus.
pub(crate) fn render(snapshot: &Snapshot<'_>) -> String {
    filled(snapshot).text
}

fn filled(snapshot: &Snapshot<'_>) -> Page {
    let mut page = Page::default();
    page.section("Memory, disks and objects");
    cluster(&mut page, snapshot);
    segments(&mut page, snapshot.stat);
    nodes(&mut page, &snapshot.stat.nodes);
    page.section("Latency and bytes");
    latencies(&mut page, snapshot);
    page.section("Requests");
    operations(&mut page, snapshot.counters);
    page.section("Evictions and lookups");
    lifetimes(&mut page, snapshot);
    cache(&mut page, snapshot.counters);
    page.section("Namespaces");
    namespaces(&mut page, &snapshot.stat.namespaces);
    page.section("Streams");
    streams(&mut page, &snapshot.stat.streams);
    page.section("Disks and copies");
    tiers(&mut page, snapshot.stat);
    page.section("The master");
    own(&mut page, snapshot);
    page.section("Limits");
    limits(&mut page, &snapshot.limits);
    node_limits(&mut page, &snapshot.node_limits);
    page
}

/// The text of `docs/metrics.md`.
#[must_use]
pub fn reference() -> String {
    let (stat, counters) = (Stat::default(), Counters::default());
    let page = filled(&Snapshot::of(&stat, &counters));
    let mut text = String::from(
        "# Metrics\n\n\
         This page is generated from the declarations in `crates/server/src/metrics`; `make docs` writes \
         it.\n\n\
         The master exports all metrics on `/metrics` of its `--http` port. Clients and nodes have no \
         port for metrics: their heartbeats carry what they have measured, and the master adds it up. So \
         latencies are those that clients see, and reads from cached locations, which the master does \
         not serve, are included. A client that is killed takes with it what it measured since its last \
         heartbeat, a few seconds.\n\n\
         - Names that begin with `master_`, `segment_` and those of the cache counters are Mooncake's, \
         so that its dashboards work.\n\
         - A *path* is how bytes moved: `process`, `shared_memory`, `tcp`, `disk`; `master` is a call \
         that moved none. A call with several paths counts for the last of them in this order.\n\
         - The lists are bounded: the 1000 namespaces with puts that wait or with most memory in use, the \
         1000 owners of pins with most bytes, the first 256 streams. `tiffin_namespaces` counts all \
         namespaces.\n\
         - [deploy/grafana](../deploy/grafana/tiffin.json) has a dashboard and \
         [deploy/prometheus](../deploy/prometheus/alerts.yml) alert rules.\n",
    );
    for (title, metrics) in page.declared {
        let _ = writeln!(text, "\n## {title}\n| metric | kind | labels | meaning |\n|---|---|---|---|");
        for Declared { name, kind, labels, help } in metrics {
            let labels: Vec<_> = labels.iter().map(|it| format!("`{it}`")).collect();
            let _ = writeln!(text, "| `{name}` | {kind} | {} | {help} |", labels.join(", "));
        }
    }
    text
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
    page.gauge("master_key_count", "Objects that can be found", keys(stat));
    page.gauge("master_soft_pin_key_count", "Soft-pinned objects", stat.soft_pinned);
    page.gauge("master_active_clients", "Connected clients", stat.clients);
    let disks = sum(stat.nodes.iter().filter(|node| node.alive && node.info.beside.is_some()));
    page.gauge("master_allocated_file_size_bytes", "Bytes in use, on all disks", allocated(&disks));
    page.gauge("master_total_file_capacity_bytes", "Bytes of all disks", disks.capacity);
    let name = "master_value_size_bytes";
    page.head(name, "histogram", &[], "Sizes of values for which space was requested");
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
    let rows: [Row<Usage>; 2] = [
        ("segment_allocated_bytes", "Bytes in use, by node; disks are among them", allocated),
        ("segment_total_capacity_bytes", "Bytes in all, by node; disks are among them", |it| it.capacity),
    ];
    for (name, help, value) in rows {
        page.head(name, "gauge", &["segment"], help);
        for node in &stat.nodes {
            page.sample(name, &[("segment", &node.info.name)], value(&node.usage));
        }
    }
}

/// The word for the tier of a member.
pub(crate) fn tier(node: &NodeStat) -> &'static str {
    if node.info.beside.is_some() { "disk" } else { "memory" }
}

fn nodes(page: &mut Page, nodes: &[NodeStat]) {
    let rows: [Row<NodeStat>; 4] = [
        ("alive", "Whether the node is connected and answers", |it| u64::from(it.alive)),
        ("owed_retires", "Removals that the node must apply before it is used again", |it| it.owed),
        ("objects", "Objects on the node", |it| it.usage.objects),
        ("offered_bytes", "Free bytes that are preallocated for clients, and recalled on demand", |it| {
            it.usage.offered
        }),
    ];
    for (name, help, value) in rows {
        let name = format!("tiffin_node_{name}");
        page.head(&name, "gauge", &["node", "tier"], help);
        for node in nodes {
            page.sample(&name, &[("node", &node.info.name), ("tier", tier(node))], value(node));
        }
    }
    let name = "tiffin_node_bytes";
    let help = "Bytes of the node by `state`: `free`, `reserved` (by writers), `in_use` (objects), \
                `in_view` (removed, but in view), `metadata` (records and names of objects)";
    page.head(name, "gauge", &["node", "tier", "state"], help);
    for node in nodes {
        let usage = &node.usage;
        let states = [
            ("free", usage.free),
            ("reserved", usage.granted),
            ("in_use", usage.committed),
            ("in_view", usage.held),
            ("metadata", usage.metadata),
        ];
        for (state, bytes) in states {
            page.sample(name, &[("node", &node.info.name), ("tier", tier(node)), ("state", state)], bytes);
        }
    }
}

fn latencies(page: &mut Page, snapshot: &Snapshot<'_>) {
    let name = "tiffin_request_seconds";
    let help = "Time from a request's arrival at the master to its answer, waits included";
    page.head(name, "histogram", &["operation"], help);
    for (operation, histogram) in REQUESTS.iter().zip(&snapshot.counters.requests) {
        let counts = histogram.counts();
        if !counts.is_empty() {
            page.histogram(name, &[("operation", operation)], &counts);
        }
    }
    let clients = snapshot.counters.clients.series();
    let name = "tiffin_client_call_seconds";
    page.head(name, "histogram", &["operation", "path"], "Time of a call as the client sees it");
    for (operation, path, counts) in &clients {
        page.histogram(name, &[("operation", operation.name()), ("path", path.name())], counts);
    }
    let name = "tiffin_client_bytes_total";
    page.head(name, "counter", &["operation", "path"], "Bytes that calls of clients moved");
    for (operation, path, counts) in &clients {
        page.sample(name, &[("operation", operation.name()), ("path", path.name())], counts.bytes);
    }
    let name = "tiffin_node_transfer_seconds";
    let help = "Time of a transfer at a node: through its data socket, or from and to its disk";
    page.head(name, "histogram", &["node", "operation", "path"], help);
    for (node, operation, path, counts) in &snapshot.transfers {
        page.histogram(name, &[("node", node), ("operation", operation), ("path", path)], counts);
    }
    let name = "tiffin_node_transferred_bytes_total";
    page.head(name, "counter", &["node", "operation", "path"], "Bytes of these transfers");
    for (node, operation, path, counts) in &snapshot.transfers {
        page.sample(name, &[("node", node), ("operation", operation), ("path", path)], counts.bytes);
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
    let counters = snapshot.counters;
    let failures = get(&counters.allocation_failures);
    let evictions = snapshot.stat.evictions.total().objects;
    let help = "Attempts to free memory by eviction";
    page.counter("master_attempted_evictions_total", help, evictions + failures);
    page.counter("master_successful_evictions_total", "Evictions that freed memory", evictions);
    page.counter("master_evicted_key_count", "Evicted objects", snapshot.stat.evicted_objects);
    page.counter("master_evicted_size_bytes", "Evicted bytes", snapshot.stat.evicted_bytes);
    page.counter("master_put_start_alloc_failures_total", "Objects of puts that found no memory", failures);
    let causes = snapshot.stat.evictions.by_cause();
    let name = "tiffin_evicted_objects_total";
    let help = "Objects that left memory by `cause`: `memory` (a put needed memory on the node), `quota` \
                (a put needed it within the quota), `promotion` (an object was promoted from a disk)";
    page.head(name, "counter", &["cause"], help);
    for (cause, evicted) in causes {
        page.sample(name, &[("cause", cause)], evicted.objects);
    }
    let name = "tiffin_evicted_bytes_total";
    page.head(name, "counter", &["cause"], "Their bytes");
    for (cause, evicted) in causes {
        page.sample(name, &[("cause", cause)], evicted.bytes);
    }
    let lost = snapshot.stat.evictions.unread;
    page.counter(
        "tiffin_evicted_unread_total",
        "Objects that were evicted unread, without a disk copy",
        lost,
    );
    let stat = snapshot.stat;
    let help = "Objects that were removed because their TTL was over";
    page.counter("tiffin_expired_objects_total", help, stat.expired.objects);
    page.counter("tiffin_expired_bytes_total", "Their bytes", stat.expired.bytes);
    page.gauge("tiffin_expiring_objects", "Objects with a TTL that no pin keeps", stat.expiring);
    let over = get(&counters.over_quota);
    page.counter("tiffin_puts_over_quota_total", "Objects of puts that exceeded the quota", over);
    let behind = get(&counters.behind);
    page.counter("tiffin_puts_behind_total", "Objects of puts whose stream was at its high mark", behind);
}

fn cache(page: &mut Page, counters: &Counters) {
    let (gets, hits) = (get(&counters.gets), get(&counters.hits));
    page.counter("mem_cache_hit_nums_", "Lookups that found an object", hits);
    page.counter(
        "mem_cache_hit_bytes_total",
        "Bytes of objects that lookups found",
        get(&counters.hit_bytes),
    );
    page.counter("total_get_nums_", "Lookups", gets);
    page.counter("valid_get_nums_", "Lookups that found an object", hits);
    page.head("valid_get_rate", "gauge", &[], "Fraction of lookups that found an object");
    let rate = if gets == 0 { 0.0 } else { hits as f64 / gets as f64 };
    // Writing to a `String` cannot fail.
    let _ = writeln!(page.text, "valid_get_rate {rate}");
}

/// The namespaces to show where there are many: those with puts that wait first, then the largest.
pub(crate) fn shown_namespaces(namespaces: &[NamespaceStat], limit: usize) -> Vec<&NamespaceStat> {
    let mut shown: Vec<_> = namespaces.iter().collect();
    shown.sort_by_key(|it| std::cmp::Reverse((it.waiting, it.used, it.objects)));
    shown.truncate(limit);
    shown
}

fn namespaces(page: &mut Page, all: &[NamespaceStat]) {
    page.gauge("tiffin_namespaces", "Namespaces that a client has used", all.len() as u64);
    let namespaces = shown_namespaces(all, NAMESPACES_MAX);
    let rows: [KindRow<NamespaceStat, Option<u64>>; 14] = [
        ("objects", "gauge", "Objects", |it| Some(it.objects)),
        ("bytes", "gauge", "Bytes of objects, each counted once", |it| Some(it.bytes)),
        ("used_bytes", "gauge", "Memory in use, each copy counted, reservations included", |it| {
            Some(it.used)
        }),
        ("reserved_bytes", "gauge", "The part of it that writers have reserved", |it| Some(it.granted)),
        ("in_view_bytes", "gauge", "The part of it that removed objects take while they are in view", |it| {
            Some(it.held)
        }),
        ("quota_bytes", "gauge", "The limit of it, if there is one", |it| it.quota),
        ("guaranteed_bytes", "gauge", "Memory that other namespaces leave to it", |it| it.guaranteed),
        ("puts_waiting", "gauge", "Puts that wait for memory", |it| Some(it.waiting)),
        ("samples", "gauge", "Samples that are not consumed", |it| Some(it.samples)),
        ("sample_bytes", "gauge", "Their bytes", |it| Some(it.sample_bytes)),
        ("samples_leased", "gauge", "Samples that are leased", |it| Some(it.samples_leased)),
        ("sample_age_seconds", "gauge", "Age of the oldest sample that is not consumed", |it| {
            Some(it.sample_age_ms / 1000)
        }),
        ("samples_expired_total", "counter", "Samples that were freed because no client leased them", |it| {
            Some(it.samples_expired)
        }),
        ("sample_bytes_expired_total", "counter", "Their bytes", |it| Some(it.sample_bytes_expired)),
    ];
    for (name, kind, help, value) in rows {
        let name = format!("tiffin_namespace_{name}");
        page.head(&name, kind, &["namespace"], help);
        for it in &namespaces {
            let value = value(it).into_iter();
            value.for_each(|value| page.sample(&name, &[("namespace", &it.name)], value));
        }
    }
    let help = "Bytes that clients keep from being freed, by `kept`: `reserved`, `leased`";
    page.head("tiffin_namespace_held_bytes", "gauge", &["namespace", "kept"], help);
    for it in &namespaces {
        for held in [Held::Reserved, Held::Leased] {
            let bytes = it.holders.iter().filter(|it| it.held == held).map(|it| it.bytes).sum();
            let labels = [("namespace", it.name.as_str()), ("kept", held_word(held))];
            page.sample("tiffin_namespace_held_bytes", &labels, bytes);
        }
    }
    let mut owners: Vec<_> =
        namespaces.iter().flat_map(|ns| ns.owners.iter().map(move |it| (&ns.name, it))).collect();
    owners.sort_by_key(|it| std::cmp::Reverse(it.1.bytes));
    owners.truncate(OWNERS_MAX);
    page.head("tiffin_pinned_objects", "gauge", &["namespace", "owner"], "Pinned objects, by owner");
    for (namespace, it) in &owners {
        page.sample("tiffin_pinned_objects", &[("namespace", namespace), ("owner", &it.owner)], it.objects);
    }
    page.head("tiffin_pinned_bytes", "gauge", &["namespace", "owner"], "Their bytes, each object once");
    for (namespace, it) in &owners {
        page.sample("tiffin_pinned_bytes", &[("namespace", namespace), ("owner", &it.owner)], it.bytes);
    }
}

/// The word for what keeps memory from being freed.
pub(crate) fn held_word(held: Held) -> &'static str {
    match held {
        Held::Reserved => "reserved",
        Held::Leased => "leased",
        Held::Viewed => "in view",
    }
}

fn streams(page: &mut Page, streams: &[NamedStream]) {
    let rows: [KindRow<NamedStream, u64>; 6] = [
        ("samples", "gauge", "Samples in the stream", |it| it.stat.refs),
        ("bytes", "gauge", "Their bytes", |it| it.stat.bytes),
        ("in_flight_bytes", "gauge", "Bytes of samples that are put or reserved", |it| {
            it.stat.bytes + it.stat.granted_bytes
        }),
        ("blocked", "gauge", "Whether puts wait until the stream is at its low mark", |it| {
            u64::from(it.stat.is_shut)
        }),
        ("appended_total", "counter", "Samples that were put in this epoch", |it| it.stat.appended),
        ("consumed_total", "counter", "Samples that all groups have consumed in this epoch", |it| {
            it.stat.consumed
        }),
    ];
    for (name, kind, help, value) in rows {
        let name = format!("tiffin_stream_{name}");
        page.head(&name, kind, &["namespace", "stream"], help);
        for it in streams {
            page.sample(&name, &[("namespace", &it.namespace), ("stream", &it.name)], value(it));
        }
    }
    let rows: [Row<GroupStat>; 3] = [
        ("lag_samples", "Samples that no consumer of the group has leased", |it| it.ready),
        ("leased_samples", "Samples that consumers of the group lease", |it| it.out),
        ("consumers", "Consumers of the group", |it| it.consumers),
    ];
    for (name, help, value) in rows {
        let name = format!("tiffin_stream_group_{name}");
        page.head(&name, "gauge", &["namespace", "stream", "group"], help);
        for it in streams {
            for group in &it.stat.groups {
                let labels = [
                    ("namespace", it.namespace.as_str()),
                    ("stream", it.name.as_str()),
                    ("group", group.group.as_str()),
                ];
                page.sample(&name, &labels, value(group));
            }
        }
    }
}

fn tiers(page: &mut Page, stat: &Stat) {
    let [(name, help, level), counters @ ..] = stat.tier.named();
    page.gauge(&format!("tiffin_tier_{name}"), help, level);
    for (name, help, count) in counters {
        match name {
            "waited_ms" => page.seconds_counter(
                "tiffin_tier_waited_seconds_total",
                "Time that batches waited for promotions",
                count,
            ),
            _ => page.counter(&format!("tiffin_tier_{name}_total"), help, count),
        }
    }
    let [short, running, counters @ ..] = stat.copies.named();
    for (name, help, level) in [short, running] {
        page.gauge(&format!("tiffin_copies_{name}"), help, level);
    }
    for (name, help, count) in counters {
        page.counter(&format!("tiffin_copies_{name}_total"), help, count);
    }
}

fn own(page: &mut Page, snapshot: &Snapshot<'_>) {
    page.gauge("tiffin_epoch", "Epoch of the master", snapshot.stat.epoch);
    let (leads, won, lost) = snapshot.leads;
    page.gauge("tiffin_leader", "1 if this master leads, 0 if it stands by", u64::from(leads));
    page.counter("tiffin_elections_won_total", "Times that this master became the leader", won);
    page.counter("tiffin_elections_lost_total", "Times that this master stepped down", lost);
    page.gauge("tiffin_uptime_seconds", "Time since the master started", snapshot.uptime.as_secs());
    page.gauge("tiffin_connections", "Connections of clients and nodes", snapshot.connections);
    page.counter("tiffin_connections_refused_total", "Rejected connections", snapshot.refused);
    page.gauge(
        "tiffin_tls_certificate_expires_timestamp_seconds",
        "When the master's certificate ends, in seconds since the Unix epoch; 0 without TLS",
        snapshot.certificate_ends_s,
    );
    let refusals = get(&snapshot.counters.refusals);
    page.counter("tiffin_requests_refused_total", "Requests that were rejected as a whole", refusals);
    page.gauge("tiffin_operations_waiting", "Operations that wait for a node", snapshot.waiting);
    let unreported = snapshot.stat.unreported.len() as u64;
    let help = "Members that have not reported since the master started; answers that depend on them wait";
    page.gauge("tiffin_members_unreported", help, unreported);
    let help = "Commits that wait for members which have not reported to the restarted master";
    page.gauge("tiffin_commits_undecided", help, snapshot.undecided);
    let slow = get(&snapshot.counters.slow);
    page.counter("tiffin_slow_requests_total", "Requests that took longer than `--slow`", slow);
    let (exported, dropped) = snapshot.spans;
    page.counter(
        "tiffin_spans_exported_total",
        "Spans of requests that the collector has accepted",
        exported,
    );
    let help = "Spans of requests that were lost, because the collector was away or rejected them";
    page.counter("tiffin_spans_dropped_total", help, dropped);
    page.head("tiffin_events_total", "counter", &["kind"], "Events in `tiffin events`, by kind");
    for (kind, count) in &snapshot.events {
        page.sample("tiffin_events_total", &[("kind", kind)], *count);
    }
}

fn limits(page: &mut Page, limits: &[LimitStat]) {
    let rows: [KindRow<LimitStat, u64>; 3] = [
        ("tiffin_limit", "gauge", "Value of the limit", |it| it.max),
        (
            "tiffin_limit_used",
            "gauge",
            "Use of the limit: by the whole master, or by the client, namespace, peer or port that uses most",
            |it| it.used,
        ),
        ("tiffin_limit_reached_total", "counter", "Times that a request reached the limit", |it| it.reached),
    ];
    for (name, kind, help, value) in rows {
        page.head(name, kind, &["limit"], help);
        for limit in limits {
            page.sample(name, &[("limit", limit.name)], value(limit));
        }
    }
}

fn node_limits(page: &mut Page, limits: &[NodeLimit]) {
    let rows: [KindRow<LimitStat, u64>; 3] = [
        ("tiffin_node_limit", "gauge", "Value of a limit of the node's sockets", |it| it.max),
        (
            "tiffin_node_limit_used",
            "gauge",
            "Use of the limit: by all peers, or by the client or peer that uses most",
            |it| it.used,
        ),
        (
            "tiffin_node_limit_reached_total",
            "counter",
            "Times that a connection was refused or closed for the limit, or an answer held back",
            |it| it.reached,
        ),
    ];
    for (name, kind, help, value) in rows {
        page.head(name, kind, &["node", "limit"], help);
        for (node, limit) in limits {
            page.sample(name, &[("node", node), ("limit", limit.name)], value(limit));
        }
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

/// A metric, as it is documented.
#[derive(Debug)]
struct Declared {
    name: String,
    kind: &'static str,
    labels: Vec<&'static str>,
    help: String,
}

/// A page in the text format of Prometheus.
#[derive(Debug, Default)]
struct Page {
    text: String,
    /// The metrics by section.
    declared: Vec<(&'static str, Vec<Declared>)>,
}

impl Page {
    fn section(&mut self, title: &'static str) {
        self.declared.push((title, Vec::new()));
    }

    fn head(&mut self, name: &str, kind: &'static str, labels: &[&'static str], help: &str) {
        // Writing to a `String` cannot fail, here and below.
        let _ = writeln!(self.text, "# HELP {name} {}\n# TYPE {name} {kind}", help.replace('`', ""));
        if let Some((_, metrics)) = self.declared.last_mut() {
            let (name, help) = (name.to_owned(), help.to_owned());
            metrics.push(Declared { name, kind, labels: labels.to_vec(), help });
        }
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        let _ = writeln!(self.text, "{name}{} {value}", shown(labels));
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "gauge", &[], help);
        self.sample(name, &[], value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", &[], help);
        self.sample(name, &[], value);
    }

    /// A counter of milliseconds, in seconds.
    fn seconds_counter(&mut self, name: &str, help: &str, ms: u64) {
        self.head(name, "counter", &[], help);
        let _ = writeln!(self.text, "{name} {}.{:03}", ms / 1000, ms % 1000);
    }

    /// The samples of a histogram of durations, in seconds.
    fn histogram(&mut self, name: &str, labels: &[(&str, &str)], counts: &Counts) {
        let seconds = |us: u64| us as f64 / 1e6;
        let mut sum = 0;
        for (at, count) in counts.counts.iter().enumerate() {
            sum += count;
            let bound = BOUNDS_US.get(at).map_or_else(|| "+Inf".to_owned(), |us| seconds(*us).to_string());
            let labels: Vec<_> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            self.sample(&format!("{name}_bucket"), &labels, sum);
        }
        let _ = writeln!(self.text, "{name}_sum{} {}", shown(labels), seconds(counts.sum_us));
        self.sample(&format!("{name}_count"), labels, sum);
    }
}

fn shown(labels: &[(&str, &str)]) -> String {
    let labels: Vec<_> = labels.iter().map(|(key, text)| format!("{key}=\"{}\"", escaped(text))).collect();
    if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
