//! Lost copies that are made again.

use std::collections::VecDeque;

use tiffin_node::{Event as NodeEvent, NodeConfig};

use super::{CLIENT, Cluster, UNIT, generation, key, pinned, plain, twice};
use crate::{
    ClientId, RequestId,
    master::{ClientToMaster, Event, MasterConfig, Mutant, RepairConfig},
    message::{
        CommitItem, CommitOutcome, CopyStat, CopyWait, Decide, DecideItem, FetchItem, ForgetNode, Here,
        MemberToMaster, Policy, PutOptions, ReserveOutcome, ResolveOutcome, Why,
    },
};

const DELAY_MS: u64 = 100;

/// What nodes are to read from others.
#[derive(Debug, Default)]
pub(super) struct TestFetches {
    /// They wait.
    held_up: bool,
    waiting: VecDeque<(usize, FetchItem)>,
}

impl Cluster {
    fn of_copies(units: &[u64], change: impl Fn(&mut MasterConfig)) -> Self {
        let capacities: Vec<_> = units.iter().map(|it| it * UNIT).collect();
        Self::with(&capacities, |config| {
            config.silence_ms_max = 1_000_000_000;
            config.tier.repair = RepairConfig { delay_ms: DELAY_MS, ..RepairConfig::default() };
            change(config);
        })
    }

    pub(super) fn fetch(&mut self, index: usize, item: FetchItem) {
        self.fetches.waiting.push_back((index, item));
        if !self.fetches.held_up {
            self.end_fetches(true);
        }
    }

    fn end_fetches(&mut self, is_whole: bool) {
        while let Some((index, item)) = self.fetches.waiting.pop_front() {
            let has_memory =
                self.nodes[index].begin_store(ClientId::PROMOTER, item.into, 0, item.len).is_some();
            let source = item.source.segment.0 as usize - 1;
            let is_sent = self.nodes[source].begin_send(item.from, 0, item.len, None).is_some();
            let is_sent = is_sent && self.nodes[source].end_send(item.from, None);
            if has_memory {
                self.nodes[index].end_store(item.into);
            }
            self.node_event(index, NodeEvent::Fetched(item.into, has_memory && is_sent && is_whole));
        }
    }

    /// Lets so much time pass, and does all work.
    fn repair_after(&mut self, ms: u64) -> CopyStat {
        self.wait(ms);
        while self.master.has_work() {
            self.master.work(self.now);
            self.carry_out();
        }
        self.master.check().unwrap();
        self.master.stat().copies
    }

    fn lose(&mut self, index: usize) {
        self.unlink(index);
        let name = format!("node{}", index + 1);
        self.ask(ClientToMaster::ForgetNode(ForgetNode { name })).unwrap();
    }

    fn here(&mut self, name: &str) -> Here {
        match self.why(name) {
            Why::Here(here) => *here,
            other => panic!("{other:?}"),
        }
    }

    /// The nodes that have an object, as they say, and how many copies the master counts.
    fn copies(&mut self, name: &str) -> (Vec<usize>, u32) {
        let has = |node: &tiffin_node::Node| node.inventory().iter().any(|it| it.key == key(name));
        let nodes = self.nodes.iter().enumerate().filter(|(_, it)| has(it)).map(|it| it.0).collect();
        (nodes, self.here(name).copies_there)
    }
}

#[test]
fn a_lost_copy_is_made_again_after_a_delay() {
    let mut cluster = Cluster::of_copies(&[8, 8, 8], |_| ());
    cluster.put("a", UNIT, twice());
    let (on, 2) = cluster.copies("a") else { panic!() };
    let other = (0..3).find(|it| !on.contains(it)).unwrap();
    cluster.unlink(on[0]);
    assert_eq!(cluster.repair_after(DELAY_MS - 1), CopyStat::default(), "it may only be restarting");
    assert_eq!(cluster.here("a").copies_there, 2);
    cluster.fetches.held_up = true;
    let stat = cluster.repair_after(1);
    assert_eq!((stat.short, stat.running, stat.made), (1, 1, 0));
    let here = cluster.here("a");
    assert_eq!((here.copies_there, here.copying_to), (1, format!("node{}", other + 1)));
    cluster.end_fetches(true);
    let stat = cluster.repair_after(0);
    assert_eq!((stat.short, stat.running, stat.made, stat.made_bytes), (0, 0, 1, UNIT));
    assert_eq!(cluster.here("a").copies_there, 2);
    // It returns with its copy, which is one too many.
    cluster.link(on[0]);
    assert_eq!(cluster.repair_after(DELAY_MS).dropped, 1);
    let (on, 2) = cluster.copies("a") else { panic!() };
    assert_eq!(on.len(), 2);
}

#[test]
fn the_number_of_copies_survives_a_restart() {
    let mut cluster = Cluster::of_copies(&[8, 8, 8], |_| ());
    cluster.put("a", UNIT, twice());
    cluster.put("one", UNIT, plain());
    cluster.restart_master(6);
    assert_eq!(cluster.here("a").copies_wanted, 2);
    let lost = cluster.copies("a").0[0];
    cluster.lose(lost);
    assert_eq!(cluster.repair_after(DELAY_MS).made, 1);
    assert_eq!(cluster.here("a").copies_there, 2);
}

#[test]
fn a_restarted_master_copies_nothing_before_its_nodes_report() {
    let mut cluster = Cluster::of_copies(&[8, 8, 8], |config| config.durable = true);
    cluster.put("a", UNIT, twice());
    let on = cluster.copies("a").0;
    let config = MasterConfig { epoch: 6, instance: 2, ..cluster.master.objects.cx.config };
    cluster.master = crate::master::Master::recover(config, cluster.state.clone());
    cluster.open(super::CLIENT, 7);
    for index in (0..3).filter(|it| *it != on[0]) {
        cluster.unlink(index);
        cluster.link(index);
    }
    assert_eq!(cluster.repair_after(DELAY_MS), CopyStat::default());
    cluster.unlink(on[0]);
    cluster.link(on[0]);
    assert_eq!(cluster.repair_after(DELAY_MS).made, 0);
    assert_eq!(cluster.copies("a"), (on, 2));
}

#[test]
fn pinned_objects_come_first_and_then_the_last_read() {
    let mut cluster = Cluster::of_copies(&[8, 8], |config| config.tier.repair.copies_max = 1);
    for (name, options) in [("unread", twice()), ("read", twice()), ("last", twice())] {
        cluster.put(name, UNIT, options);
    }
    cluster.put("pinned", UNIT, PutOptions { replicas: 2, ..pinned() });
    for name in ["read", "last"] {
        cluster.wait(1);
        cluster.resolve(name, true);
    }
    cluster.lose(1);
    cluster.add_node(8 * UNIT, |_| ());
    cluster.fetches.held_up = true;
    let mut order = Vec::new();
    for _ in 0..4 {
        let stat = cluster.repair_after(DELAY_MS);
        assert_eq!((stat.running, cluster.fetches.waiting.len()), (1, 1), "one at a time");
        let names = ["unread", "read", "last", "pinned"];
        order.extend(names.into_iter().find(|it| !cluster.here(it).copying_to.is_empty()));
        cluster.end_fetches(true);
    }
    assert_eq!(order, ["pinned", "last", "read", "unread"]);
    assert_eq!(cluster.repair_after(0).made, 4);
}

#[test]
fn what_is_deleted_or_replaced_meanwhile_is_not_copied() {
    for replace in [false, true] {
        let mut cluster = Cluster::of_copies(&[8, 8], |_| ());
        cluster.put("a", UNIT, twice());
        cluster.lose(1);
        cluster.add_node(8 * UNIT, |_| ());
        cluster.fetches.held_up = true;
        assert_eq!(cluster.repair_after(DELAY_MS).running, 1);
        if replace {
            cluster.put("a", UNIT, plain());
        } else {
            cluster.delete("a", true);
        }
        cluster.end_fetches(true);
        cluster.repair_after(DELAY_MS);
        assert_eq!(cluster.has("a"), replace);
        let held: usize = cluster.nodes.iter().map(|it| it.inventory().len()).sum();
        // The lost node has its copy still.
        assert_eq!(held, 1 + usize::from(replace));
        let usage = cluster.nodes[2].usage();
        assert_eq!((usage.granted, usage.held), (0, 0));
    }
}

#[test]
fn a_copy_that_failed_is_tried_again() {
    let mut cluster = Cluster::of_copies(&[8, 8], |_| ());
    cluster.put("a", UNIT, twice());
    cluster.lose(1);
    cluster.add_node(8 * UNIT, |_| ());
    cluster.fetches.held_up = true;
    cluster.repair_after(DELAY_MS);
    cluster.end_fetches(false);
    let stat = cluster.repair_after(0);
    assert_eq!((stat.failed, stat.running, stat.short), (1, 0, 1), "not at once");
    assert_eq!(cluster.nodes[2].usage().granted, 0);
    cluster.fetches.held_up = false;
    assert_eq!(cluster.repair_after(3_000).made, 1);
    assert_eq!(cluster.copies("a").1, 2);
}

#[test]
fn a_disk_is_no_second_node() {
    let mut cluster = Cluster::tiered(&[8, 8], |config| config.tier.repair.delay_ms = DELAY_MS);
    cluster.write_through();
    cluster.put("a", UNIT, twice());
    // The disk asked for it before its node knew that it is an object.
    cluster.wait(1_000);
    assert_eq!(cluster.where_is("a"), (true, true));
    assert_eq!(cluster.here("a").copies_there, 2);
    cluster.lose(1);
    cluster.repair_after(DELAY_MS);
    let here = cluster.here("a");
    assert_eq!((here.copies_there, here.copy_wait), (1, CopyWait::Node));
    cluster.add_node(8 * UNIT, |_| ());
    cluster.repair_after(DELAY_MS);
    assert_eq!(cluster.here("a").copies_there, 2);
}

#[test]
fn a_copy_waits_for_memory_and_quota() {
    let mut cluster = Cluster::of_copies(&[8, 8], |_| ());
    cluster.put("a", 2 * UNIT, twice());
    cluster.lose(1);
    cluster.add_node(2 * UNIT, |_| ());
    let other = PutOptions { preferred: vec!["node3".into()], ..plain() };
    cluster.put("other", UNIT, other);
    cluster.repair_after(DELAY_MS);
    assert_eq!(cluster.here("a").copy_wait, CopyWait::Memory, "nothing is evicted for a copy");
    cluster.delete("other", true);
    let quota = |bytes| Policy { quota: Some(bytes), ..Policy::default() };
    cluster.ask(ClientToMaster::SetPolicy(quota(3 * UNIT).into()));
    cluster.repair_after(2_000);
    assert_eq!(cluster.here("a").copy_wait, CopyWait::Quota);
    cluster.ask(ClientToMaster::SetPolicy(quota(4 * UNIT).into()));
    cluster.repair_after(2_000);
    assert_eq!(cluster.copies("a").1, 2);
}

#[test]
fn a_draining_node_gets_no_copies_and_its_own_do_not_count() {
    let mut cluster = Cluster::of_copies(&[8, 8, 8], |_| ());
    cluster.put("a", UNIT, twice());
    let on = cluster.copies("a").0;
    cluster.node_event(on[0], NodeEvent::Drain);
    assert_eq!(cluster.repair_after(DELAY_MS).made, 1);
    assert_eq!(cluster.copies("a"), (vec![0, 1, 2], 2), "also there until it leaves");
    cluster.lose(on[1]);
    cluster.repair_after(DELAY_MS);
    let here = cluster.here("a");
    assert_eq!((here.copies_there, here.copy_wait), (1, CopyWait::Node));
}

#[test]
fn no_copies_are_made_where_the_operator_wants_none() {
    let mut cluster = Cluster::of_copies(&[8, 8], |config| config.tier.repair.copies_max = 0);
    cluster.put("a", UNIT, twice());
    cluster.lose(1);
    cluster.add_node(8 * UNIT, |config: &mut NodeConfig| config.mutant = Mutant::None);
    assert_eq!(cluster.repair_after(DELAY_MS), CopyStat::default());
    assert!(!cluster.master.has_work());
}

/// The number of copies that are made within some seconds, if the emptiest node has no space for names.
fn made_beside_a_node_without_heap(mutant: Mutant) -> u64 {
    let mut cluster = Cluster::of_copies(&[8, 8], |config| config.mutant = mutant);
    cluster.put("a", UNIT, twice());
    cluster.put("filler", UNIT, PutOptions { preferred: vec!["node1".into()], ..plain() });
    let no_heap = |config: &mut NodeConfig| config.heap_bytes = 0;
    cluster.add_node(4 * UNIT, |_| ());
    cluster.add_node(9 * UNIT, no_heap);
    cluster.lose(1);
    (0..10).map(|_| cluster.repair_after(1_100).made).max().unwrap()
}

#[test]
fn a_copy_that_failed_is_made_on_another_node() {
    assert_eq!(made_beside_a_node_without_heap(Mutant::None), 1);
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_failed_copies_is_noticed() {
    assert_eq!(made_beside_a_node_without_heap(Mutant::RepairAtOneNode), 0);
}

/// The number of copies that are made within some seconds, if a copy fails on the only node with memory.
fn made_on_the_node_that_failed(mutant: Mutant) -> u64 {
    let mut cluster = Cluster::of_copies(&[8, 8], |config| config.mutant = mutant);
    cluster.put("a", 2 * UNIT, twice());
    cluster.lose(1);
    cluster.add_node(8 * UNIT, |_| ());
    cluster.add_node(UNIT, |_| ());
    cluster.fetches.held_up = true;
    cluster.repair_after(DELAY_MS);
    cluster.end_fetches(false);
    cluster.fetches.held_up = false;
    (0..10).map(|_| cluster.repair_after(1_100).made).max().unwrap()
}

#[test]
fn a_node_that_failed_is_tried_again_if_no_other_has_memory() {
    assert_eq!(made_on_the_node_that_failed(Mutant::None), 1);
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_a_node_that_failed_is_noticed() {
    assert_eq!(made_on_the_node_that_failed(Mutant::RepairNeverAgain), 0);
}

/// Whether an object is known whose last copy is on a node that could not report it: before the node returns,
/// and afterwards.
fn is_known_on_a_silent_node(mutant: Mutant) -> [bool; 2] {
    let mut cluster = Cluster::of_copies(&[8, 8, 8], |config| config.mutant = mutant);
    cluster.put("a", UNIT, twice());
    let (on, 2) = cluster.copies("a") else { panic!() };
    let other = (0..3).find(|it| !on.contains(it)).unwrap();
    cluster.lose(on[0]);
    cluster.fetches.held_up = true;
    assert_eq!(cluster.repair_after(DELAY_MS).running, 1);
    cluster.hold_up(other);
    cluster.end_fetches(true);
    // The node commits the copy, and is disconnected before its answer.
    cluster.unlink(other);
    cluster.lose(on[1]);
    let is_known = |cluster: &mut Cluster| !matches!(cluster.resolve("a", false), ResolveOutcome::Absent);
    let before = is_known(&mut cluster);
    cluster.let_go(other);
    cluster.link(other);
    cluster.master.check().unwrap();
    [before, is_known(&mut cluster)]
}

#[test]
fn written_copy_keeps_its_object_until_its_node_returns() {
    assert_eq!(is_known_on_a_silent_node(Mutant::None), [true, true]);
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_written_copies_is_noticed() {
    assert_eq!(is_known_on_a_silent_node(Mutant::ForgetUnheard), [false, false]);
}

/// An object that an earlier master has stored, and whose home has not learned that: its client commits when
/// a lost copy was made at that home, or is being made. Returns the copies that the home has, and the master.
fn copies_after_a_late_commit(is_made: bool, mutant: Mutant) -> (usize, u32) {
    let mut cluster = Cluster::of_copies(&[8, 8], |config| config.mutant = mutant);
    let ReserveOutcome::Space(space) = cluster.reserve("a", UNIT, twice()) else { panic!("full") };
    let (home, other) = (space[0].location, space[1].location);
    let at = home.segment.0 as usize - 1;
    let opened = NodeEvent::Opened { conn: CLIENT, client: ClientId(7), namespace: "default".into() };
    cluster.node_event(at, opened);
    let item = CommitItem {
        slot_ref: home.slot_ref(),
        key: key("a"),
        len: UNIT,
        options: twice(),
        others: vec![other],
    };
    let item = DecideItem { namespace: "default".to_owned(), client: ClientId(7), item };
    let decide = MemberToMaster::Decide(Decide { items: vec![item], wait_ms: 500 });
    cluster.event(Event::Request(cluster.links[at], RequestId(91), decide.into()));
    cluster.restart_master(6);
    cluster.fetches.held_up = !is_made;
    assert_eq!(cluster.repair_after(DELAY_MS).made, u64::from(is_made));
    let outcome = cluster.commit("a", UNIT, twice(), &space);
    assert_eq!(outcome, CommitOutcome::Stored(generation(1)));
    cluster.end_fetches(true);
    cluster.repair_after(3_000);
    assert_eq!((cluster.nodes[at].usage().granted, cluster.master.unconfirmed_count()), (0, 0));
    (cluster.nodes[at].inventory().len(), cluster.here("a").copies_there)
}

#[test]
fn home_that_got_a_copy_meanwhile_keeps_one() {
    for is_made in [true, false] {
        assert_eq!(copies_after_a_late_commit(is_made, Mutant::None), (1, 2), "{is_made}");
    }
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_second_copies_is_noticed() {
    assert_eq!(copies_after_a_late_commit(true, Mutant::KeepSecondCopy).0, 2);
}

/// The number of copies that are made within some seconds, after a copy has failed on every node. The
/// emptiest one never has space for the name.
fn made_after_all_have_failed(mutant: Mutant) -> u64 {
    let mut cluster = Cluster::of_copies(&[8, 8], |config| config.mutant = mutant);
    cluster.put("a", UNIT, twice());
    cluster.lose(1);
    cluster.add_node(4 * UNIT, |_| ());
    cluster.add_node(9 * UNIT, |config: &mut NodeConfig| config.heap_bytes = 0);
    assert_eq!(cluster.repair_after(DELAY_MS).failed, 1);
    cluster.fetches.held_up = true;
    assert_eq!(cluster.repair_after(1_100).running, 1);
    cluster.end_fetches(false);
    cluster.fetches.held_up = false;
    (0..10).map(|_| cluster.repair_after(1_100).made).max().unwrap()
}

#[test]
fn nodes_that_failed_take_turns() {
    assert_eq!(made_after_all_have_failed(Mutant::None), 1);
}

#[cfg(feature = "mutants")]
#[test]
fn mutant_of_turns_of_failed_nodes_is_noticed() {
    assert_eq!(made_after_all_have_failed(Mutant::RepairOutOfTurn), 0);
}
