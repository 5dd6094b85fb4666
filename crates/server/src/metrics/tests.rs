//! Tests of the metrics.

use std::collections::BTreeSet;

use tiffin_types::message::{
    CACHED_READS_MAX, Evicted, Evictions, Exists, NamespaceStat, NodeInfo, NodeStat, OwnerStat, Resolve,
    Resolved,
};
use tiffin_types::{Key, message::Found};

use super::*;

fn page_of(stat: &Stat, counters: &Counters) -> String {
    render(&Snapshot { waiting: 1, connections: 2, refused: 3, ..Snapshot::of(stat, counters) })
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

#[test]
fn reference_page_of_metrics_is_as_committed() {
    expect_test::expect_file!["../../../../docs/metrics.md"].assert_eq(&page::reference());
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

/// The names of metrics in a file: words that begin as ours do.
fn names_in(text: &str) -> BTreeSet<&str> {
    let is_name = |it: &&str| {
        ["tiffin_", "master_", "segment_", "mem_cache_", "valid_get_", "total_get_"]
            .iter()
            .any(|prefix| it.starts_with(prefix))
    };
    text.split(|it: char| !(it.is_ascii_alphanumeric() || it == '_')).filter(is_name).collect()
}

#[test]
fn dashboard_and_alerts_name_only_metrics_that_exist() {
    let reference = page::reference();
    let exported = names_in(&reference);
    for (file, text) in [
        ("tiffin.json", include_str!("../../../../deploy/grafana/tiffin.json")),
        ("alerts.yml", include_str!("../../../../deploy/prometheus/alerts.yml")),
    ] {
        let named = names_in(text);
        assert!(named.len() > 5, "{file}");
        for name in named {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|it| name.strip_suffix(it));
            assert!(
                exported.contains(name) || base.is_some_and(|it| exported.contains(it)),
                "{file}: {name}"
            );
        }
    }
    let dashboard: serde_json::Value =
        serde_json::from_str(include_str!("../../../../deploy/grafana/tiffin.json")).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().iter().all(|it| it["targets"][0]["expr"].is_string()));
}

#[test]
fn latencies_are_exported_by_operation_and_path() {
    let counters = Counters::default();
    counters.took(RequestKind::of(&ClientToMaster::Stat.into()), Duration::from_micros(150));
    let get = Measured { operation: 1, path: 2, counts: vec![0, 3], sum_us: 6, bytes: 99 };
    counters.client_measured(&[get]);
    let read = Measured { operation: 10, path: 4, counts: vec![1], sum_us: 1, bytes: 5 };
    counters.member_measured(SegmentId(7), std::slice::from_ref(&read));
    counters.member_measured(SegmentId(8), &[read]);
    let info = NodeInfo { name: "n disk 1".into(), segment: SegmentId(7), ..NodeInfo::default() };
    let stat = Stat { nodes: vec![NodeStat { info, ..NodeStat::default() }], ..Stat::default() };
    let transfers = counters.transfers(&stat);
    let page = render(&Snapshot { transfers, ..Snapshot::of(&stat, &counters) });
    for expected in [
        "tiffin_request_seconds_bucket{operation=\"stat\",le=\"0.0001\"} 0",
        "tiffin_request_seconds_bucket{operation=\"stat\",le=\"0.0002\"} 1",
        "tiffin_request_seconds_bucket{operation=\"stat\",le=\"+Inf\"} 1",
        "tiffin_request_seconds_sum{operation=\"stat\"} 0.00015",
        "tiffin_client_call_seconds_bucket{operation=\"get\",path=\"shared_memory\",le=\"0.000001\"} 0",
        "tiffin_client_call_seconds_count{operation=\"get\",path=\"shared_memory\"} 3",
        "tiffin_client_bytes_total{operation=\"get\",path=\"shared_memory\"} 99",
        "tiffin_node_transfer_seconds_count{node=\"n disk 1\",operation=\"read\",path=\"disk\"} 1",
        "tiffin_node_transferred_bytes_total{node=\"n disk 1\",operation=\"read\",path=\"disk\"} 5",
    ] {
        assert!(page.lines().any(|line| line == expected), "{expected} is not in\n{page}");
    }
    assert_eq!(counters.members().len(), 1, "the other is not a member any more");
}

#[test]
fn namespaces_and_owners_beyond_the_limit_are_left_out() {
    let owner = |bytes: u64| OwnerStat { owner: format!("o{bytes}"), objects: 1, bytes };
    let namespace = |used: usize| NamespaceStat {
        name: format!("n{used}"),
        used: used as u64,
        owners: vec![owner(2 * used as u64), owner(2 * used as u64 + 1)],
        ..NamespaceStat::default()
    };
    let mut stat = Stat { namespaces: (0..page::NAMESPACES_MAX).map(namespace).collect(), ..Stat::default() };
    let lines = |stat: &Stat, start: &str| {
        let page = page_of(stat, &Counters::default());
        page.lines().filter(|it| it.starts_with(start)).map(str::to_owned).collect::<Vec<_>>()
    };
    let used = "tiffin_namespace_used_bytes{";
    assert_eq!(lines(&stat, used).len(), page::NAMESPACES_MAX);
    // One more, whose puts wait: the smallest is left out.
    stat.namespaces.push(NamespaceStat { name: "waits".into(), waiting: 1, ..NamespaceStat::default() });
    let shown = lines(&stat, used);
    assert_eq!(shown.len(), page::NAMESPACES_MAX);
    assert!(shown[0].contains("\"waits\"") && !shown.iter().any(|it| it.contains("\"n0\"")), "{shown:?}");
    assert_eq!(lines(&stat, "tiffin_namespaces "), ["tiffin_namespaces 1001"]);
    // Two owners in each: those with most bytes.
    let owners = lines(&stat, "tiffin_pinned_bytes{");
    assert_eq!(owners.len(), page::OWNERS_MAX);
    assert!(owners[0].ends_with(" 1999") && owners.iter().all(|it| !it.ends_with(" 999")), "{owners:?}");
}

#[test]
fn members_beyond_the_limit_are_not_counted() {
    let counters = Counters::default();
    let read = [Measured { operation: 10, path: 3, counts: vec![1], sum_us: 1, bytes: 5 }];
    for segment in 0..=MEMBERS_MAX as u64 {
        counters.member_measured(SegmentId(segment), &read);
    }
    assert_eq!(counters.members().len(), MEMBERS_MAX);
    counters.member_measured(SegmentId(0), &read);
    let (.., counts) = &counters.members()[&SegmentId(0)].series()[0];
    assert_eq!(counts.count(), 2, "a known one is");
}

#[test]
fn limits_of_nodes_are_shown_while_they_are_members() {
    let counters = Counters::default();
    let limit = |limit, used| LimitUse { limit, max: 9, used, reached: 1 };
    // One is unknown to this master, and one is there twice.
    let reported = [limit(5, 2), limit(SOCKET_LIMITS.len() as u64, 7), limit(u64::MAX, 7), limit(5, 3)];
    for segment in 0..=MEMBERS_MAX as u64 {
        counters.member_limits(SegmentId(segment), &reported);
    }
    assert_eq!(counters.limits().len(), MEMBERS_MAX);
    let info = NodeInfo { name: "n".into(), segment: SegmentId(1), ..NodeInfo::default() };
    let stat = Stat { nodes: vec![NodeStat { info, ..NodeStat::default() }], ..Stat::default() };
    let node_limits = counters.node_limits(&stat);
    let expected = LimitStat { name: "data_unauthenticated", max: 9, used: 3, reached: 1 };
    assert_eq!(node_limits, [("n".to_owned(), expected)]);
    let page = render(&Snapshot { node_limits, ..Snapshot::of(&stat, &counters) });
    let shown = r#"tiffin_node_limit_used{node="n",limit="data_unauthenticated"} 3"#;
    assert!(page.lines().any(|line| line == shown), "{page}");
    assert_eq!(counters.node_limits(&Stat::default()), [], "it is not a member any more");
}

#[test]
fn evictions_and_shortages_are_counted_by_cause() {
    let counters = Counters::default();
    let (memory, quota) = (Evicted { objects: 2, bytes: 20 }, Evicted { objects: 1, bytes: 10 });
    let evictions = Evictions { memory, quota, promotion: Evicted::default(), unread: 1 };
    let page = page_of(&Stat { evictions, ..Stat::default() }, &counters);
    for expected in [
        "tiffin_evicted_objects_total{cause=\"memory\"} 2",
        "tiffin_evicted_bytes_total{cause=\"quota\"} 10",
        "tiffin_evicted_objects_total{cause=\"promotion\"} 0",
        "tiffin_evicted_unread_total 1",
        "master_successful_evictions_total 3",
    ] {
        assert!(page.lines().any(|line| line == expected), "{expected} is not in\n{page}");
    }
    let items = vec![ReserveOutcome::OverQuota(Default::default()), ReserveOutcome::NoNode];
    let reply = Reply::Reserved(tiffin_types::message::Reserved { items, ..Default::default() });
    let shortage = counters.answered(None, &reply);
    assert_eq!(shortage, Shortage { over_quota: true, full: true, behind: false });
    assert_eq!(get(&counters.over_quota), 1);
}
