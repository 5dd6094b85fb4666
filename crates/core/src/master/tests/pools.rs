//! Members whose memory outlives their process.

use super::*;

impl Cluster {
    /// A node of this name and address connects.
    fn link_at(&mut self, index: usize, host: &str, outlives: bool) {
        self.next_conn += 1;
        self.links[index] = ConnId(self.next_conn);
        self.event(Event::Opened(self.links[index], Hello { role: Role::Node, ..Hello::default() }));
        let info = NodeInfo {
            segment: SegmentId(index as u64 + 1),
            name: "node".into(),
            tcp: "h:7".into(),
            host: host.into(),
            outlives,
            ..NodeInfo::default()
        };
        self.node_event(index, node::Event::Linked(info));
    }

    /// A node with a pool has two objects and ends, and one of them is deleted.
    fn with_a_pool(change: impl Fn(&mut MasterConfig)) -> Self {
        let mut cluster = Self::durable(&[8 * UNIT, 8 * UNIT]);
        change(&mut cluster.master.objects.cx.config);
        cluster.unlink(0);
        cluster.unlink(1);
        cluster.link_at(0, "h/boot1", true);
        for key in ["kept", "deleted"] {
            cluster.put(key, UNIT, pinned());
        }
        cluster.unlink(0);
        let unconfirmed = DeleteOutcome::Unconfirmed(vec!["node".into()]);
        assert_eq!(cluster.delete("deleted", true), Some(unconfirmed));
        cluster
    }

    /// The node is started again so that it does not find its pool, and then so that it does. Returns which
    /// objects there are.
    fn find_the_pool_later(mut self, restarts: bool) -> [bool; 2] {
        if restarts {
            self.restart_alone(6);
        }
        self.link_at(1, "h/boot1", false);
        self.unlink(1);
        if restarts {
            self.restart_alone(7);
        }
        self.link_at(0, "h/boot1", true);
        self.link_at(1, "h/boot1", false);
        ["kept", "deleted"].map(|it| self.has(it))
    }
}

#[test]
fn pool_stays_when_its_address_is_used_again() {
    for restarts in [false, true] {
        let cluster = Cluster::with_a_pool(|_| ());
        assert_eq!(cluster.find_the_pool_later(restarts), [true, false], "{restarts}");
    }
}

#[test]
fn pool_of_an_earlier_boot_is_lost() {
    let mut cluster = Cluster::with_a_pool(|_| ());
    cluster.link_at(1, "h/boot2", true);
    assert!(!cluster.has("kept"));
    assert_eq!(cluster.master.stat().nodes.len(), 1);
    // It was another machine of that name, and a later master finds the pool.
    cluster.restart_alone(6);
    cluster.link_at(1, "h/boot2", true);
    cluster.unlink(1);
    cluster.link_at(0, "h/boot1", true);
    assert!(!cluster.has("kept") && !cluster.has("deleted"));
    assert_eq!(cluster.nodes[0].usage().objects, 0);
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_pools_is_noticed() {
    for restarts in [false, true] {
        let cluster = Cluster::with_a_pool(|config| config.mutant = Mutant::ReplaceThePool);
        assert_ne!(cluster.find_the_pool_later(restarts), [true, false], "{restarts}");
    }
}

/// A put on a full node of which earlier clients may still view `unlisted` retired bytes: whether it gets
/// space, and how many of the eight objects are left.
fn put_on_a_restarted_node(unlisted: u64, mutant: Mutant) -> (bool, usize) {
    let mut cluster = Cluster::new(&[8 * UNIT]);
    cluster.master.objects.cx.config.mutant = mutant;
    let keys: Vec<_> = (0..8).map(|it| format!("k{it}")).collect();
    for key in &keys {
        cluster.put(key, UNIT, plain());
    }
    cluster.wait(200);
    let members = &mut cluster.master.objects.cx.members;
    let node = members.find(SegmentId(1)).unwrap();
    members.get_mut(node).unwrap().usage.unlisted = unlisted;
    let outcome = cluster.reserve("new", UNIT, plain());
    let left = keys.iter().filter(|key| cluster.has(key)).count();
    (matches!(outcome, ReserveOutcome::Space(_)), left)
}

#[test]
fn nothing_more_is_evicted_while_enough_memory_waits_for_lists_of_views() {
    assert_eq!(put_on_a_restarted_node(0, Mutant::None), (true, 7));
    assert_eq!(put_on_a_restarted_node(UNIT, Mutant::None), (false, 8));
    // What waits is not enough.
    assert_eq!(put_on_a_restarted_node(UNIT - 1, Mutant::None), (true, 7));
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_lists_is_noticed() {
    assert_eq!(put_on_a_restarted_node(UNIT, Mutant::EvictUnlisted), (true, 7));
}
