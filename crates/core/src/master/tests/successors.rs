//! Objects that replaced others on nodes that are away, and are removed before it is saved what those nodes
//! owe.

use super::*;

const TTL_MS: u64 = 500;

fn on(node: &str) -> PutOptions {
    PutOptions { preferred: vec![node.into()], ..plain() }
}

/// A put has replaced an object on a node that is away. The retire of the older object is not saved yet, and
/// the put is not answered, but clients see the new object.
fn replaced(mutant: Mutant, options: PutOptions) -> (Cluster, RequestId) {
    let mut cluster = Cluster::with(&[4 * UNIT, 2 * UNIT], |config| {
        (config.durable, config.mutant) = (true, mutant);
    });
    cluster.put("a", UNIT, on("node1"));
    cluster.unlink(0);
    cluster.unsynced = Some(Vec::new());
    let ReserveOutcome::Space(space) = cluster.reserve("a", UNIT, options.clone()) else { panic!("full") };
    let id = cluster.send_commit("a", UNIT, options, &space);
    assert!(cluster.has("a") && !cluster.replies.contains_key(&id));
    (cluster, id)
}

/// The generation of the object that is found after the master has died, before it has saved anything.
fn found_after_a_crash(mut cluster: Cluster) -> Option<u64> {
    cluster.unsynced = None;
    cluster.restart_master(6);
    match cluster.resolve("a", false) {
        ResolveOutcome::Found(found) => Some(found.generation.counter),
        ResolveOutcome::Absent => None,
        other => panic!("{other:?}"),
    }
}

/// A put of a large object, for which the new one is evicted.
fn evicting(mutant: Mutant) -> (Cluster, RequestId) {
    let (mut cluster, _) = replaced(mutant, on("node2"));
    let items = vec![ReserveItem { key: key("b"), len: 2 * UNIT, options: plain() }];
    let id = cluster.send(ClientToMaster::Reserve(Reserve { items, ..Reserve::default() }));
    assert_eq!(cluster.resolve_later("a"), None, "its absence may not be final");
    (cluster, id)
}

impl Cluster {
    fn resolve_later(&mut self, name: &str) -> Option<Reply> {
        self.ask(ClientToMaster::Resolve(Resolve { keys: vec![key(name)], ..Resolve::default() }))
    }

    fn has_space(&mut self, id: RequestId) -> Option<bool> {
        match self.replies.remove(&id)? {
            Reply::Reserved(reserved) => Some(matches!(reserved.items[..], [ReserveOutcome::Space(_)])),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn evicted_object_does_not_bring_back_what_it_replaced() {
    let (cluster, _) = evicting(Mutant::None);
    assert_eq!(found_after_a_crash(cluster), Some(2));
}

#[test]
fn put_gets_the_memory_once_the_older_retire_is_saved() {
    let (mut cluster, id) = evicting(Mutant::None);
    assert_eq!(cluster.has_space(id), None);
    cluster.sync();
    assert_eq!(cluster.has_space(id), Some(true));
    assert_eq!(found_after_a_crash(cluster), None);
}

#[test]
fn put_does_not_wait_once_the_older_retire_is_saved() {
    let (mut cluster, put) = replaced(Mutant::None, on("node2"));
    cluster.sync();
    assert!(cluster.replies.contains_key(&put));
    // The owed retire is known to be saved: nothing else must be.
    cluster.unsynced = Some(Vec::new());
    assert!(matches!(cluster.reserve("b", 2 * UNIT, plain()), ReserveOutcome::Space(_)));
}

#[test]
fn objects_of_one_node_are_retired_in_order() {
    let mut cluster = Cluster::with(&[2 * UNIT], |config| config.durable = true);
    cluster.put("a", UNIT, plain());
    let ReserveOutcome::Space(space) = cluster.reserve("a", UNIT, plain()) else { panic!("full") };
    cluster.hold_up(0);
    cluster.unsynced = Some(Vec::new());
    cluster.send_commit("a", UNIT, plain(), &space);
    let items = vec![ReserveItem { key: key("b"), len: UNIT, options: plain() }];
    let id = cluster.send(ClientToMaster::Reserve(Reserve { items, ..Reserve::default() }));
    cluster.let_go(0);
    assert_eq!(cluster.has_space(id), Some(true), "nothing waits for the state folder");
}

#[test]
fn expired_object_goes_after_what_it_replaced() {
    let options = PutOptions { ttl_ms: Some(TTL_MS), ..on("node2") };
    let (mut cluster, _) = replaced(Mutant::None, options);
    cluster.wait(TTL_MS);
    assert_eq!(cluster.nodes[1].inventory().len(), 1, "what it has replaced is not owed in writing");
    let mut lost = cluster;
    lost.unsynced = None;
    lost.restart_alone(6);
    lost.link(0);
    lost.link(1);
    lost.wait(2 * TTL_MS);
    assert!(!lost.has("a"), "neither of them");
}

#[test]
fn dropped_object_does_not_bring_back_what_it_replaced() {
    let (mut cluster, _) = replaced(Mutant::None, on("node2"));
    let drop = DeleteMatching { pattern: Pattern::All, force: true, wait_ms: 500 };
    assert_eq!(cluster.ask(ClientToMaster::DeleteMatching(drop)), None);
    assert_eq!(found_after_a_crash(cluster), Some(2));
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_early_retires_is_noticed() {
    let (cluster, _) = evicting(Mutant::TellEarly);
    assert_eq!(found_after_a_crash(cluster), Some(1));
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_early_allocations_is_noticed() {
    let (mut cluster, id) = evicting(Mutant::AllocateFirst);
    assert_eq!(cluster.has_space(id), Some(false), "the node refuses, and nothing else can be evicted");
}
