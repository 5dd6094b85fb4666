//! A put evicts for whichever resource it lacks, and `Full` names that resource.

use tiffin_node::NodeConfig;

use super::*;
use crate::message::{CommitOutcome, Full, Reserve, ReserveItem, ReserveOutcome, Resource};

const UNIT: u64 = 64;

/// A cluster of one node.
fn cluster(units: u64, change: impl Fn(&mut NodeConfig)) -> Cluster {
    let mut cluster = Cluster::new(&[]);
    cluster.add_node(units * UNIT, change);
    cluster
}

/// Puts objects one after the other, with a pause after each.
fn put_all(cluster: &mut Cluster, names: &[&str], len: u64) {
    for name in names {
        assert!(matches!(cluster.put(name, len, plain()), CommitOutcome::Stored(_)), "{name}");
        cluster.wait(1);
    }
}

fn present(cluster: &mut Cluster, names: &[&str]) -> String {
    names.iter().filter(|name| cluster.has(name)).copied().collect()
}

fn full(outcome: &ReserveOutcome) -> Full {
    let ReserveOutcome::Full(full) = outcome else { panic!("{outcome:?}") };
    *full
}

/// Reserves with a wait time. `None` while it waits.
fn reserve_waiting(cluster: &mut Cluster, name: &str, len: u64) -> Option<ReserveOutcome> {
    let items = vec![ReserveItem { key: key(name), len, options: plain() }];
    match cluster.ask(ClientToMaster::Reserve(Reserve { items, wait_ms: 10_000, ..Reserve::default() }))? {
        Reply::Reserved(mut reserved) => Some(reserved.items.remove(0)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn eviction_frees_slots() {
    let mut cluster = cluster(64, |it| it.slot_count = 3);
    let names = ["a", "b", "c", "d", "e"];
    put_all(&mut cluster, &names, 1);
    assert_eq!(present(&mut cluster, &names), "cde");
    assert!(matches!(cluster.put("e", 1, plain()), CommitOutcome::Replaced(_)));
    assert_eq!(present(&mut cluster, &names), "de", "only the oldest was evicted");
    assert!(matches!(reserve_waiting(&mut cluster, "f", 1), Some(ReserveOutcome::Space(_))));
}

#[test]
fn eviction_frees_key_space() {
    let mut cluster = cluster(64, |it| it.heap_bytes = 1024);
    let names = ["a", "b", "c", "d"].map(|it| it.repeat(400));
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    put_all(&mut cluster, &names, 1);
    assert_eq!(present(&mut cluster, &names).len(), 800, "two names of 400 bytes fit into 1024");
    assert!(cluster.has(names[2]) && cluster.has(names[3]));
    put_all(&mut cluster, &["x", "y"], 1);
    assert_eq!(present(&mut cluster, &names).len(), 800, "a short name still finds space");
}

/// What is left after a put that needs adjacent pieces of memory, if there is space for it.
fn left_by_a_large_put(mutant: Mutant) -> Option<String> {
    let mut cluster = Cluster::with(&[], |config| config.mutant = mutant);
    cluster.add_node(8 * UNIT, |it| it.extents_max = 2);
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    put_all(&mut cluster, &names, UNIT);
    for name in ["b", "d", "f"] {
        cluster.delete(name, true);
    }
    let outcome = cluster.reserve("x", 3 * UNIT, plain());
    matches!(outcome, ReserveOutcome::Space(_)).then(|| present(&mut cluster, &names))
}

#[test]
fn eviction_frees_contiguous_space() {
    let left = left_by_a_large_put(Mutant::None);
    assert_eq!(left.as_deref(), Some("cegh"), "a was evicted, because it is adjacent to b");
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_contiguous_space_is_noticed() {
    assert_eq!(left_by_a_large_put(Mutant::KeepPieces), None);
}

#[test]
fn records_grow_with_small_objects_and_shrink_for_large_ones() {
    let mut cluster = cluster(64, |it| (it.chunk_bytes, it.chunks_free) = (4 * UNIT, 0));
    let names: Vec<_> = (0..100).map(|it| format!("{it}")).collect();
    for name in &names {
        assert!(matches!(cluster.put(name, 1, plain()), CommitOutcome::Stored(_)), "{name}");
    }
    let usage = cluster.nodes[0].usage();
    assert_eq!((usage.free + usage.committed + usage.metadata, usage.granted), (64 * UNIT, 0));
    assert!(usage.objects > 12 && usage.metadata > usage.committed, "{usage:?}");
    // Its own record and name cost a chunk each.
    assert!(matches!(cluster.put("large", 56 * UNIT, plain()), CommitOutcome::Stored(_)));
    let usage = cluster.nodes[0].usage();
    assert_eq!((usage.objects, usage.metadata), (1, 8 * UNIT));
}

#[test]
fn longer_lease_hides_no_evictable_object() {
    let mut cluster = cluster(2, |_| ());
    put_all(&mut cluster, &["a", "b"], UNIT);
    cluster.resolve("a", true);
    cluster.wait(50);
    cluster.resolve("b", true);
    // It is behind b now, but its lease ends first.
    cluster.resolve("a", false);
    cluster.wait(60);
    put_all(&mut cluster, &["c"], UNIT);
    assert_eq!(present(&mut cluster, &["a", "b", "c"]), "bc");
}

#[test]
fn full_names_the_missing_resource() {
    let mut slots = cluster(64, |it| it.slot_count = 2);
    let mut names = cluster(64, |it| it.heap_bytes = 1024);
    let mut pieces = cluster(8, |it| it.extents_max = 1);
    let long = "x".repeat(500);
    for name in ["a", "b"] {
        slots.put(name, 1, pinned());
        names.put(&format!("{name}{}", "x".repeat(400)), 1, pinned());
    }
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        pieces.put(name, UNIT, pinned());
    }
    pieces.delete("b", true);
    pieces.delete("d", true);
    for (outcome, lacks) in [
        (slots.reserve("c", 1, plain()), Resource::Slots),
        (slots.reserve("c", 65 * UNIT - 1, plain()), Resource::Bytes),
        (names.reserve(&long, 1, plain()), Resource::KeySpace),
        (pieces.reserve("x", 2 * UNIT, plain()), Resource::Contiguous),
        (pieces.reserve("x", 3 * UNIT, plain()), Resource::Bytes),
    ] {
        assert_eq!(full(&outcome).lacks, lacks, "{outcome:?}");
    }
    assert!(!full(&slots.reserve("c", 1, plain())).never);
}

#[test]
fn object_that_never_fits_is_refused_at_once() {
    let mut cluster = cluster(64, |it| (it.chunk_bytes, it.chunks_free) = (4 * UNIT, 0));
    put_all(&mut cluster, &["a"], 1);
    for (name, len) in [("large", 65 * UNIT), (&"x".repeat(5000), 1)] {
        let outcome = reserve_waiting(&mut cluster, name, len).unwrap();
        assert!(full(&outcome).never, "{len}");
    }
    assert!(cluster.has("a"), "nothing is evicted needlessly");
    let outcome = reserve_waiting(&mut cluster, "large", 63 * UNIT).unwrap();
    assert!(full(&outcome).never, "its own record and name do not fit as well");
    // A node that is away may return.
    cluster.add_node(128 * UNIT, |_| ());
    cluster.unlink(1);
    assert_eq!(reserve_waiting(&mut cluster, "large", 65 * UNIT), None);
    cluster.link(1);
    let reserved: Vec<_> = cluster.replies.values().collect();
    assert!(matches!(reserved.as_slice(), [Reply::Reserved(_)]), "{reserved:?}");
}

#[test]
fn reservation_without_nodes_is_reported_as_such() {
    let mut cluster = Cluster::new(&[]);
    assert_eq!(cluster.reserve("a", 1, plain()), ReserveOutcome::NoNode);
    assert_eq!(reserve_waiting(&mut cluster, "a", 1), None, "a node may join");
    cluster.add_node(UNIT, |_| ());
    let reserved: Vec<_> = cluster.replies.values().collect();
    assert!(matches!(reserved.as_slice(), [Reply::Reserved(it)]
        if matches!(it.items[0], ReserveOutcome::Space(_))));
}

#[test]
fn put_that_cannot_fit_evicts_nothing() {
    let mut cluster = cluster(8, |_| ());
    for name in ["p", "q", "r", "s"] {
        assert!(matches!(cluster.put(name, UNIT, pinned()), CommitOutcome::Stored(_)));
    }
    put_all(&mut cluster, &["a", "b", "c"], UNIT);
    let outcome = cluster.reserve("large", 5 * UNIT, plain());
    assert_eq!(full(&outcome).lacks, Resource::Bytes);
    assert_eq!(present(&mut cluster, &["a", "b", "c"]), "abc");
    put_all(&mut cluster, &["small"], 2 * UNIT);
    assert_eq!(present(&mut cluster, &["a", "b", "c"]), "bc", "one object and the free memory are enough");
    put_all(&mut cluster, &["exact"], 4 * UNIT);
    assert_eq!(present(&mut cluster, &["a", "b", "c", "small"]), "");
}

#[test]
fn leased_objects_do_not_count_as_evictable() {
    let mut cluster = cluster(4, |_| ());
    put_all(&mut cluster, &["a", "b", "c"], UNIT);
    cluster.resolve("b", true);
    let outcome = cluster.reserve("large", 4 * UNIT, plain());
    assert_eq!(full(&outcome).lacks, Resource::Bytes);
    assert_eq!(present(&mut cluster, &["a", "b", "c"]), "abc");
    cluster.wait(100);
    put_all(&mut cluster, &["large"], 4 * UNIT);
    assert_eq!(present(&mut cluster, &["a", "b", "c"]), "");
}

#[test]
fn tables_grow_into_pieces_between_pinned_objects() {
    let chunk = 8 * UNIT;
    let mut cluster = cluster(1024, |it| {
        (it.chunk_bytes, it.chunks_free) = (chunk, 0);
        (it.slot_count, it.heap_bytes) = (1024, 1 << 16);
    });
    let names: Vec<_> = (0..150).map(|it| format!("{it}")).collect();
    for (at, name) in names.iter().enumerate() {
        let options = if at % 2 == 0 { pinned() } else { plain() };
        assert!(matches!(cluster.put(name, UNIT, options), CommitOutcome::Stored(_)), "{name}");
    }
    let usage = cluster.nodes[0].usage();
    // All free memory and some of the pieces. The list of pieces takes space in a table, too.
    let len = usage.free + 30 * UNIT;
    assert!(matches!(cluster.put("large", len, plain()), CommitOutcome::Stored(_)), "{usage:?}");
    assert!(names.iter().step_by(2).all(|it| cluster.has(it)));
}

#[test]
fn put_beyond_the_quota_evicts_nothing() {
    let mut cluster = Cluster::new(&[16 * UNIT]);
    cluster.policy(Some(4 * UNIT), None);
    cluster.put("pinned", 2 * UNIT, pinned());
    for name in ["a", "b"] {
        cluster.put(name, UNIT, plain());
    }
    assert!(matches!(cluster.reserve("c", 3 * UNIT, plain()), ReserveOutcome::OverQuota(_)));
    assert!(cluster.has("a") && cluster.has("b"));
    assert!(matches!(cluster.reserve("c", 2 * UNIT, plain()), ReserveOutcome::Space(_)));
    assert!(!cluster.has("a") && !cluster.has("b"));
}

#[test]
fn node_whose_connection_breaks_has_not_refused() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    cluster.hold_up(0);
    cluster.hold_up(1);
    let items = vec![ReserveItem { key: key("a"), len: UNIT, options: plain() }];
    let id = cluster.send(ClientToMaster::Reserve(Reserve { items, ..Reserve::default() }));
    for round in 0..6 {
        let asked = cluster.held_up.iter().position(|it| !it.is_empty());
        let asked = asked.unwrap_or_else(|| panic!("round {round}: {:?}", cluster.replies));
        cluster.held_up[asked].clear();
        cluster.unlink(asked);
        cluster.link(asked);
    }
    cluster.let_go(0);
    cluster.let_go(1);
    let Some(Reply::Reserved(reserved)) = cluster.replies.remove(&id) else { panic!("no answer") };
    assert!(matches!(reserved.items[0], ReserveOutcome::Space(_)), "{reserved:?}");
}

#[test]
fn put_may_evict_the_object_that_it_replaces_unless_pinned() {
    let mut cluster = Cluster::new(&[10 * UNIT]);
    cluster.put("a", 6 * UNIT, plain());
    assert!(matches!(cluster.reserve("a", 6 * UNIT, plain()), ReserveOutcome::Space(_)));
    assert!(!cluster.has("a"), "nothing else can be evicted, and the new object is not stored yet");

    let mut cluster = Cluster::new(&[10 * UNIT]);
    cluster.put("a", 6 * UNIT, pinned());
    assert!(matches!(cluster.reserve("a", 6 * UNIT, plain()), ReserveOutcome::Full(_)));
    assert!(cluster.has("a"));
}
