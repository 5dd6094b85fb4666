//! Tests of the metrics.

use std::collections::BTreeSet;

use tiffin_core::message::{CACHED_READS_MAX, Exists, NodeInfo, NodeStat, Resolve, Resolved};
use tiffin_core::{Key, message::Found};

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
