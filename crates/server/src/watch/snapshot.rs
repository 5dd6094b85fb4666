//! The snapshot of a cluster as JSON, in the words of `tiffin stat` and the metrics.
//!
//! **Invariant:** every list has a limit. `more` counts what was left out of the lists of members and
//! namespaces.

use std::time::Duration;

use serde_json::{Map, Value, json};
use tiffin_types::SegmentId;
use tiffin_types::message::{Holder, NamedStream, NamespaceStat, NodeStat, Stat};

use super::{Entry, INTERVAL};
use crate::metrics::{Counters, Transfers, allocated, held_word, shown_namespaces, tier};

/// The maximum number of members in a snapshot; those that do not answer first, then the fullest.
pub(super) const NODES_MAX: usize = 512;
/// The maximum number of namespaces in a snapshot; those with puts that wait first, then the largest.
pub(super) const NAMESPACES_MAX: usize = 256;
/// The maximum number of owners, and of clients, that are listed for one namespace.
const HOLDERS_MAX: usize = 16;

/// What a snapshot shows.
pub(crate) struct Seen<'a> {
    pub(crate) stat: &'a Stat,
    pub(crate) counters: &'a Counters,
    pub(crate) transfers: Transfers,
    pub(crate) operations: Vec<Value>,
    pub(crate) events: &'a [Entry],
    /// What answers wait for.
    pub(crate) awaited: Vec<String>,
    pub(crate) uptime: Duration,
    pub(crate) leads: bool,
    pub(crate) connections: u64,
    pub(crate) waiting: u64,
    /// Whether a segment is being drained (`false`) or is drained (`true`).
    pub(crate) drains: Vec<(SegmentId, bool)>,
}

/// The snapshot.
pub(crate) fn render(seen: &Seen<'_>) -> Value {
    let stat = seen.stat;
    let mut nodes: Vec<_> = stat.nodes.iter().collect();
    nodes.sort_by_key(|it| (it.alive, std::cmp::Reverse(fill(it)), it.info.name.clone()));
    let more_nodes = nodes.len().saturating_sub(NODES_MAX);
    nodes.truncate(NODES_MAX);
    nodes.sort_by(|one, other| one.info.name.cmp(&other.info.name));
    let more_namespaces = stat.namespaces.len().saturating_sub(NAMESPACES_MAX);
    let namespaces = shown_namespaces(&stat.namespaces, NAMESPACES_MAX);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "interval_seconds": INTERVAL.as_secs_f64(),
        "epoch": stat.epoch, "uptime_seconds": seen.uptime.as_secs(), "leads": seen.leads,
        "ready": seen.awaited.is_empty(), "awaited": seen.awaited,
        "clients": stat.clients, "connections": seen.connections, "operations_waiting": seen.waiting,
        "tiers": [sum(stat, "memory"), sum(stat, "disk")],
        "nodes": nodes.into_iter().map(|it| node(seen, it)).collect::<Vec<_>>(),
        "namespaces": namespaces.into_iter().map(namespace).collect::<Vec<_>>(),
        "more": {"nodes": more_nodes, "namespaces": more_namespaces},
        "streams": stat.streams.iter().map(stream).collect::<Vec<_>>(),
        "lookups": lookups(seen), "prefetch": prefetch(stat), "evictions": evictions(stat),
        "disks": named(&stat.tier.named()), "copies": named(&stat.copies.named()),
        "operations": seen.operations,
        "events": events(seen.events),
    })
}

/// Events as JSON.
pub(crate) fn events(entries: &[Entry]) -> Vec<Value> {
    let event = |it: &Entry| {
        json!({
            "number": it.number, "at_ms": it.at_ms, "kind": it.kind.name(), "level": it.kind.level(),
            "subject": it.subject, "text": it.text, "count": it.count,
        })
    };
    entries.iter().map(event).collect()
}

/// The used part of a member, in thousandths.
fn fill(node: &NodeStat) -> u64 {
    allocated(&node.usage).saturating_mul(1000) / node.usage.capacity.max(1)
}

fn sum(stat: &Stat, name: &str) -> Value {
    let nodes = stat.nodes.iter().filter(|it| it.alive && tier(it) == name);
    let (capacity, used, objects) = nodes.fold((0, 0, 0), |(capacity, used, objects), it| {
        (capacity + it.usage.capacity, used + allocated(&it.usage), objects + it.usage.objects)
    });
    json!({"tier": name, "capacity": capacity, "used": used, "objects": objects})
}

fn node(seen: &Seen<'_>, node: &NodeStat) -> Value {
    let usage = &node.usage;
    let drain = seen.drains.iter().find(|it| it.0 == node.info.segment).map(|it| it.1);
    let state = match drain {
        _ if seen.stat.unreported.contains(&node.info.name) => "unreported",
        _ if !node.alive => "not reachable",
        Some(false) => "draining",
        Some(true) => "drained",
        None => "ok",
    };
    let transfers = seen.transfers.iter().filter(|it| it.0 == node.info.name);
    let transfers = transfers.map(|(_, operation, path, counts)| {
        json!({
            "operation": operation, "path": path, "count": counts.count(), "bytes": counts.bytes,
            "p50_us": counts.quantile_us(0.5), "p99_us": counts.quantile_us(0.99),
        })
    });
    json!({
        "name": node.info.name, "tier": tier(node), "state": state, "alive": node.alive,
        "host": node.info.host, "address": node.info.tcp, "owed": node.owed,
        "capacity": usage.capacity, "free": usage.free, "reserved": usage.granted,
        "in_use": usage.committed, "in_view": usage.held, "metadata": usage.metadata,
        "objects": usage.objects, "used": allocated(usage),
        "transfers": transfers.collect::<Vec<_>>(), "holders": holders(&node.holders),
    })
}

fn namespace(it: &NamespaceStat) -> Value {
    let owners = it.owners.iter().take(HOLDERS_MAX);
    let owners = owners.map(|it| json!({"owner": it.owner, "objects": it.objects, "bytes": it.bytes}));
    json!({
        "name": it.name, "objects": it.objects, "bytes": it.bytes, "used": it.used, "reserved": it.granted,
        "held": it.held, "quota": it.quota, "guaranteed": it.guaranteed, "waiting": it.waiting,
        "samples": it.samples, "samples_leased": it.samples_leased, "sample_bytes": it.sample_bytes,
        "sample_age_ms": it.sample_age_ms, "samples_expired": it.samples_expired,
        "pinned_objects": it.owners.iter().map(|it| it.objects).sum::<u64>(),
        "pinned_bytes": it.owners.iter().map(|it| it.bytes).sum::<u64>(),
        "owners": owners.collect::<Vec<_>>(), "holders": holders(&it.holders),
    })
}

fn holders(holders: &[Holder]) -> Vec<Value> {
    let holders = holders.iter().take(HOLDERS_MAX);
    let holder = |it: &Holder| {
        let kept = held_word(it.held);
        json!({"kept": kept, "by": it.who, "objects": it.objects, "bytes": it.bytes})
    };
    holders.map(holder).collect()
}

fn stream(it: &NamedStream) -> Value {
    let groups = it.stat.groups.iter().map(|it| {
        json!({
            "group": it.group, "lag": it.ready, "leased": it.out, "consumers": it.consumers,
            "acked": it.acked, "window": it.window,
        })
    });
    let limits = it.stat.limits;
    json!({
        "namespace": it.namespace, "name": it.name, "samples": it.stat.refs, "bytes": it.stat.bytes,
        "reserved_samples": it.stat.granted, "reserved_bytes": it.stat.granted_bytes,
        "in_flight_bytes": it.stat.bytes + it.stat.granted_bytes,
        "samples_high": limits.refs_high, "bytes_high": limits.bytes_high,
        "blocked": it.stat.is_shut, "ended": it.stat.end.is_some(),
        "failure": it.stat.end.as_ref().and_then(|it| it.failure.clone()),
        "appended": it.stat.appended, "consumed": it.stat.consumed,
        "groups": groups.collect::<Vec<_>>(),
    })
}

fn lookups(seen: &Seen<'_>) -> Value {
    let (gets, hits) = seen.counters.lookups();
    let tier = &seen.stat.tier;
    // Gets are counted by tier once there are disks; before that, all hits are in memory.
    let disk = tier.gets_from_disk;
    json!({
        "total": gets, "found": hits, "memory": hits.saturating_sub(disk), "disk": disk,
        "far_disk": tier.gets_from_far_disk, "missed": gets.saturating_sub(hits),
    })
}

fn prefetch(stat: &Stat) -> Value {
    let tier = &stat.tier;
    json!({
        "promoted": tier.promoted_objects, "used": tier.promoted_used, "unused": tier.promoted_unused,
        "late": tier.gets_late, "waited": tier.gets_waited, "failed": tier.prefetch_failed,
        "skipped": tier.prefetch_skipped, "redundant": tier.prefetch_redundant,
        "cancelled": tier.prefetch_cancelled,
    })
}

fn evictions(stat: &Stat) -> Value {
    let causes = stat.evictions.by_cause();
    let causes = causes.map(|(cause, it)| json!({"cause": cause, "objects": it.objects, "bytes": it.bytes}));
    json!({"causes": causes, "unread": stat.evictions.unread})
}

fn named(rows: &[(&'static str, &'static str, u64)]) -> Map<String, Value> {
    rows.iter().map(|(name, _, value)| ((*name).to_owned(), (*value).into())).collect()
}

#[cfg(test)]
mod tests {
    use tiffin_types::message::{NodeInfo, Usage};

    use super::*;

    fn seen<'a>(stat: &'a Stat, counters: &'a Counters) -> Seen<'a> {
        Seen {
            stat,
            counters,
            transfers: Vec::new(),
            operations: Vec::new(),
            events: &[],
            awaited: Vec::new(),
            uptime: Duration::ZERO,
            leads: true,
            connections: 0,
            waiting: 0,
            drains: Vec::new(),
        }
    }

    fn member(number: usize, alive: bool, free: u64) -> NodeStat {
        let info = NodeInfo { name: format!("n{number:04}"), ..NodeInfo::default() };
        let usage = Usage { capacity: 1000, free, ..Usage::default() };
        NodeStat { info, alive, usage, ..NodeStat::default() }
    }

    #[test]
    fn lists_are_cut_at_their_limits() {
        let counters = Counters::default();
        let nodes: Vec<_> = (0..NODES_MAX).map(|it| member(it, true, 1000)).collect();
        let namespace = |it: usize| NamespaceStat { name: it.to_string(), ..NamespaceStat::default() };
        let namespaces: Vec<_> = (0..NAMESPACES_MAX).map(namespace).collect();
        let mut stat = Stat { nodes, namespaces, ..Stat::default() };
        let whole = render(&seen(&stat, &counters));
        assert_eq!(whole["more"], json!({"nodes": 0, "namespaces": 0}));
        // Beyond the limit, a member that does not answer and one that is full are shown first.
        stat.nodes.push(member(8000, false, 1000));
        stat.nodes.push(member(9000, true, 0));
        stat.namespaces.push(NamespaceStat { name: "waits".into(), waiting: 1, ..NamespaceStat::default() });
        let cut = render(&seen(&stat, &counters));
        assert_eq!(cut["more"], json!({"nodes": 2, "namespaces": 1}));
        let nodes = cut["nodes"].as_array().unwrap();
        assert_eq!(nodes.len(), NODES_MAX);
        assert_eq!(
            (&nodes[NODES_MAX - 2]["state"], &nodes[NODES_MAX - 1]["used"]),
            (&json!("not reachable"), &json!(1000))
        );
        let namespaces = cut["namespaces"].as_array().unwrap();
        assert_eq!((namespaces.len(), &namespaces[0]["name"]), (NAMESPACES_MAX, &json!("waits")));
    }
}
