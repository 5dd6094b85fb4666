//! The rules of the master, one test each, with real nodes behind in-memory connections.

mod absent;
mod confirmed;
mod drain;
mod drops;
mod identity;
mod lifetimes;
mod lost_answers;
mod offers;
mod publish;
mod repair;
mod restart;
mod shortage;
mod tenants;
mod tier;
mod tier_refused;
mod tier_space;
mod tier_waiting;

use std::collections::{BTreeSet, VecDeque};

use self::tier::TestDisk;
use tiffin_node::{self as node, Node, NodeConfig, disk};

use super::*;
use crate::{
    Key, Location, Reservation, SlotId, Stamp,
    message::{
        ClientToNode, Commit, CommitItem, CommitOutcome, Delete, DeleteMatching, DeleteOutcome,
        DeletedMatching, Exists, Full, List, NodeInfo, OnExists, Pattern, Presence, PutOptions, Reserve,
        ReserveItem, ReserveOutcome, Resolve, ResolveOutcome,
    },
};

pub(super) const CLIENT: ConnId = ConnId(1);
pub(super) const UNIT: u64 = 64;

/// A master, its nodes, and connections that deliver at once and in order, unless a node is stalled.
pub(super) struct Cluster {
    pub(super) master: Master,
    pub(super) nodes: Vec<Node>,
    pub(super) links: Vec<ConnId>,
    pub(super) held_up: Vec<VecDeque<(RequestId, MasterToMember)>>,
    pub(super) is_held_up: Vec<bool>,
    pub(super) now: Tick,
    pub(super) next_id: u64,
    pub(super) next_conn: u64,
    pub(super) replies: BTreeMap<RequestId, Reply>,
    pub(super) notices: Vec<Notice>,
    /// Messages to a node on the master's host are in its socket buffer at once, even while it is stalled.
    pub(super) takes_at_once: bool,
    /// Nodes that connect from now on are on the master's host.
    pub(super) is_on_same_host: bool,
    /// See [`tier`].
    disks: Vec<TestDisk>,
    /// See [`repair`].
    fetches: repair::TestFetches,
    /// Offers that their client has claimed, by node.
    pub(super) claimed: BTreeSet<(usize, SlotRef)>,
    /// The content of the state folder, and the versions that are not synced yet while syncs are stalled.
    pub(super) state: Saved,
    pub(super) unsynced: Option<Vec<(u64, Saved)>>,
    /// The confirmation that was requested last, and connections that were closed.
    unconfirmed: u64,
    disconnected: Vec<ConnId>,
}

impl Cluster {
    pub(super) fn new(capacities: &[u64]) -> Self {
        Self::with(capacities, |_| ())
    }

    pub(super) fn with(capacities: &[u64], change: impl Fn(&mut MasterConfig)) -> Self {
        let mut config = MasterConfig {
            epoch: 5,
            instance: 1,
            first_counter: 0,
            durable: false,
            confirms: false,
            silence_ms_max: 1_000,
            away_ms_max: 2_000,
            lease_ms: 100,
            strict_leases: false,
            lease_grace_ms: 300,
            owed_page_max: OWED_PAGE_MAX,
            piece_objects_max: PIECE_OBJECTS_MAX,
            soft_pin_ms: 1000,
            evict_soft_pinned: true,
            tenants: false,
            events: false,
            tier: TierConfig::default(),
            hash_seed: 3,
            sabotage: Sabotage::None,
        };
        change(&mut config);
        let mut cluster = Self {
            master: Master::new(config),
            nodes: Vec::new(),
            links: Vec::new(),
            held_up: Vec::new(),
            is_held_up: Vec::new(),
            now: Tick(0),
            next_id: 0,
            next_conn: 100,
            replies: BTreeMap::new(),
            notices: Vec::new(),
            takes_at_once: true,
            is_on_same_host: true,
            disks: Vec::new(),
            fetches: repair::TestFetches::default(),
            claimed: BTreeSet::new(),
            state: Saved::default(),
            unsynced: None,
            unconfirmed: 0,
            disconnected: Vec::new(),
        };
        for &capacity in capacities {
            cluster.add_node(capacity, |_| ());
        }
        cluster.open(CLIENT, 7);
        cluster
    }

    /// Adds a node, which joins.
    pub(super) fn add_node(&mut self, capacity: u64, change: impl Fn(&mut NodeConfig)) {
        let segment = self.nodes.len() as u64 + 1;
        let mut config = NodeConfig {
            segment: SegmentId(segment),
            capacity,
            slot_count: 64,
            heap_bytes: 1 << 16,
            chunk_bytes: 1 << 16,
            chunks_free: 2,
            extents_max: crate::EXTENTS_MAX,
            sabotage: Sabotage::None,
        };
        change(&mut config);
        self.nodes.push(Node::new(config));
        self.links.push(ConnId(0));
        self.held_up.push(VecDeque::new());
        self.is_held_up.push(false);
        self.link(segment as usize - 1);
    }

    pub(super) fn open(&mut self, conn: ConnId, client: u64) {
        let hello = Hello {
            client: ClientId(client),
            namespace: "default".into(),
            label: format!("client {client}"),
            ..Hello::default()
        };
        self.event(Event::Opened(conn, hello));
    }

    pub(super) fn link(&mut self, index: usize) {
        self.next_conn += 1;
        self.links[index] = ConnId(self.next_conn);
        let hello = Hello { role: Role::Node, ..Hello::default() };
        self.event(Event::Opened(self.links[index], hello));
        if self.is_on_same_host {
            self.event(Event::SameHost(self.links[index]));
        }
        let name = format!("node{}", index + 1);
        let info = NodeInfo { segment: SegmentId(index as u64 + 1), name, ..NodeInfo::default() };
        self.node_event(index, node::Event::Linked(info));
    }

    pub(super) fn unlink(&mut self, index: usize) {
        self.nodes[index].handle(node::Event::Unlinked);
        self.event(Event::Closed(self.links[index]));
    }

    /// Starts a master of another epoch, and every node registers with it.
    pub(super) fn restart_master(&mut self, epoch: u64) {
        let config = MasterConfig {
            epoch,
            instance: self.master.objects.cx.config.instance + 1,
            ..self.master.objects.cx.config
        };
        self.master = Master::recover(config, self.state.clone());
        self.open(CLIENT, 7);
        for index in 0..self.nodes.len() {
            self.nodes[index].handle(node::Event::Unlinked);
            self.link(index);
        }
    }

    /// Sends a request to a node, as the client.
    pub(super) fn node_request(&mut self, index: usize, request: ClientToNode) {
        let opened = node::Event::Opened { conn: CLIENT, client: ClientId(7), namespace: "default".into() };
        self.node_event(index, opened);
        self.node_event(index, node::Event::Request { conn: CLIENT, id: RequestId(5), request });
    }

    /// Stalls a node: requests to it wait.
    pub(super) fn hold_up(&mut self, index: usize) {
        self.is_held_up[index] = true;
    }

    pub(super) fn let_go(&mut self, index: usize) {
        self.is_held_up[index] = false;
        while let Some((id, request)) = self.held_up[index].pop_front() {
            self.node_event(index, node::Event::MasterRequest(id, request));
        }
    }

    pub(super) fn event(&mut self, event: Event) {
        self.master.handle(self.now, event);
        self.carry_out();
    }

    pub(super) fn wait(&mut self, ms: u64) {
        self.now = self.now.after(ms);
        self.master.handle_timeout(self.now);
        self.carry_out();
    }

    pub(super) fn carry_out(&mut self) {
        while let Some(effect) = self.master.poll_effect() {
            match effect {
                Effect::Notice(notice) => self.notices.push(notice),
                Effect::Disconnect(conn) => self.disconnected.push(conn),
                Effect::Confirm(round) => self.unconfirmed = round,
                Effect::Persist(version) => {
                    let saved = self.master.saved();
                    self.persist(version, saved);
                }
                Effect::Restart(epoch) => return self.restart_master(epoch + 1),
                Effect::Reply(conn, id, reply) if self.disk_at(conn).is_some() => {
                    let index = self.disk_at(conn).unwrap();
                    self.disk_event(index, disk::Event::MasterReply(id, reply));
                }
                Effect::Ask(conn, id, request) if self.disk_at(conn).is_some() => {
                    let index = self.disk_at(conn).unwrap();
                    self.disk_event(index, disk::Event::MasterRequest(id, request));
                }
                // A node that must register again is disconnected, and reconnects.
                Effect::Reply(conn, _, Reply::Refused(refusal))
                    if refusal.reason == Reason::Unavailable && self.links.contains(&conn) =>
                {
                    let index = self.links.iter().position(|it| *it == conn).unwrap();
                    self.unlink(index);
                    self.link(index);
                }
                Effect::Reply(conn, id, reply) => match self.links.iter().position(|it| *it == conn) {
                    Some(index) => self.node_event(index, node::Event::MasterReply(id, reply)),
                    None => _ = self.replies.insert(id, reply),
                },
                Effect::SendLedger(conn, id, request) => {
                    self.deliver(conn, id, request);
                    if self.takes_at_once {
                        self.master.sent(id);
                    }
                }
                Effect::Ask(conn, id, request) => self.deliver(conn, id, request),
            }
        }
    }

    fn deliver(&mut self, conn: ConnId, id: RequestId, request: MasterToMember) {
        let Some(index) = self.links.iter().position(|it| *it == conn) else { return };
        if self.is_held_up[index] {
            self.held_up[index].push_back((id, request));
        } else {
            self.node_event(index, node::Event::MasterRequest(id, request));
        }
    }

    pub(super) fn node_event(&mut self, index: usize, event: node::Event) {
        self.nodes[index].handle(event);
        while let Some(effect) = self.nodes[index].poll_effect() {
            let conn = self.links[index];
            match effect {
                node::Effect::AskMaster(id, request) => self.event(Event::Request(conn, id, request.into())),
                node::Effect::AnswerMaster(id, reply) => self.event(Event::Reply(conn, id, reply)),
                node::Effect::Reply { id, reply, .. } => _ = self.replies.insert(id, reply),
                node::Effect::Fetch(item) => self.fetch(index, item),
                node::Effect::Recall(slot_refs) => {
                    let outcomes = slot_refs.iter().map(|it| (*it, !self.claimed.contains(&(index, *it))));
                    self.nodes[index].handle(node::Event::Recalled(outcomes.collect()));
                }
                _ => (),
            }
        }
    }

    /// Sends a request to the master. Returns the reply if it came at once.
    pub(super) fn ask(&mut self, request: impl Into<Request>) -> Option<Reply> {
        let id = self.send(request);
        self.replies.remove(&id)
    }

    pub(super) fn send(&mut self, request: impl Into<Request>) -> RequestId {
        self.next_id += 1;
        let id = RequestId(1_000_000 + self.next_id);
        self.event(Event::Request(CLIENT, id, request.into()));
        id
    }

    pub(super) fn reserve(&mut self, name: &str, len: u64, options: PutOptions) -> ReserveOutcome {
        let items = vec![ReserveItem { key: key(name), len, options }];
        match self.ask(ClientToMaster::Reserve(Reserve { items, ..Reserve::default() })) {
            Some(Reply::Reserved(mut reserved)) => reserved.items.remove(0),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn commit(
        &mut self,
        name: &str,
        len: u64,
        options: PutOptions,
        space: &[Reservation],
    ) -> CommitOutcome {
        let id = self.send_commit(name, len, options, space);
        match self.replies.remove(&id) {
            Some(Reply::Committed(mut outcomes)) => outcomes.remove(0),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn send_commit(
        &mut self,
        name: &str,
        len: u64,
        options: PutOptions,
        space: &[Reservation],
    ) -> RequestId {
        let home = space[0].location;
        let index = home.segment.0 as usize - 1;
        let others = space[1..].iter().map(|it| it.location).collect();
        let items = vec![CommitItem { slot_ref: home.slot_ref(), key: key(name), len, options, others }];
        self.next_id += 1;
        let id = RequestId(1_000_000 + self.next_id);
        let opened = node::Event::Opened { conn: CLIENT, client: ClientId(7), namespace: "default".into() };
        self.node_event(index, opened);
        self.node_event(
            index,
            node::Event::Request {
                conn: CLIENT,
                id,
                request: ClientToNode::Commit(Commit { items, wait_ms: 500 }),
            },
        );
        id
    }

    pub(super) fn put(&mut self, name: &str, len: u64, options: PutOptions) -> CommitOutcome {
        match self.reserve(name, len, options.clone()) {
            ReserveOutcome::Space(space) => self.commit(name, len, options, &space),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn resolve(&mut self, name: &str, lease: bool) -> ResolveOutcome {
        let resolve =
            Resolve { keys: vec![key(name)], touch: lease, lease, locate: true, ..Resolve::default() };
        match self.ask(ClientToMaster::Resolve(resolve)) {
            Some(Reply::Resolved(mut resolved)) => resolved.items.remove(0),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn has(&mut self, name: &str) -> bool {
        matches!(self.resolve(name, false), ResolveOutcome::Found(_))
    }

    pub(super) fn delete(&mut self, name: &str, force: bool) -> Option<DeleteOutcome> {
        match self.ask(ClientToMaster::Delete(Delete { keys: vec![key(name)], force, wait_ms: 500 })) {
            Some(Reply::Deleted(mut outcomes)) => Some(outcomes.remove(0)),
            None => None,
            other => panic!("{other:?}"),
        }
    }
}

pub(super) fn key(name: &str) -> Key {
    Key::new(name.as_bytes()).unwrap()
}

pub(super) fn plain() -> PutOptions {
    PutOptions { replicas: 1, ..PutOptions::default() }
}

pub(super) fn keep() -> PutOptions {
    PutOptions { on_exists: OnExists::Keep, ..plain() }
}

pub(super) fn pinned() -> PutOptions {
    PutOptions { hard_pin: true, ..plain() }
}

pub(super) fn twice() -> PutOptions {
    PutOptions { replicas: 2, ..plain() }
}

pub(super) fn generation(counter: u64) -> Generation {
    Generation { epoch: 5, counter }
}

#[test]
fn put_object_is_found_and_deleted_once() {
    let mut cluster = Cluster::new(&[10 * UNIT]);
    assert_eq!(cluster.put("a", 100, plain()), CommitOutcome::Stored(generation(1)));
    assert!(cluster.has("a"));
    assert_eq!(cluster.delete("a", false), Some(DeleteOutcome::Deleted));
    assert_eq!(cluster.delete("a", false), Some(DeleteOutcome::Absent));
    assert!(!cluster.has("a"));
    assert_eq!(cluster.nodes[0].usage().free, 10 * UNIT);
}

#[test]
fn first_commit_wins() {
    let mut cluster = Cluster::new(&[10 * UNIT]);
    let ReserveOutcome::Space(first) = cluster.reserve("a", 10, keep()) else { panic!() };
    let ReserveOutcome::Space(second) = cluster.reserve("a", 10, keep()) else { panic!() };
    assert_eq!(cluster.commit("a", 10, keep(), &second), CommitOutcome::Stored(generation(1)));
    assert_eq!(cluster.commit("a", 10, keep(), &first), CommitOutcome::Exists(generation(1)));
    assert_eq!(cluster.reserve("a", 10, keep()), ReserveOutcome::Exists(generation(1)));
    assert_eq!(cluster.nodes[0].usage().granted, 0);
}

#[test]
fn replacement_retires_the_old_object() {
    let mut cluster = Cluster::new(&[10 * UNIT, 10 * UNIT]);
    assert_eq!(cluster.put("a", 10, plain()), CommitOutcome::Stored(generation(1)));
    assert_eq!(cluster.put("a", 20, plain()), CommitOutcome::Replaced(generation(2)));
    let ResolveOutcome::Found(found) = cluster.resolve("a", false) else { panic!() };
    assert_eq!((found.generation, found.len), (generation(2), 20));
    let committed: u64 = cluster.nodes.iter().map(|it| it.usage().committed).sum();
    assert_eq!(committed, UNIT);
}

#[test]
fn conditional_replacement_spares_newer_objects() {
    let mut cluster = Cluster::new(&[10 * UNIT]);
    let only = |counter| PutOptions { replaces: Some(generation(counter)), ..plain() };
    // There is no object to replace.
    assert_eq!(cluster.reserve("a", 10, only(1)), ReserveOutcome::Exists(Generation::default()));
    assert_eq!(cluster.put("a", 10, plain()), CommitOutcome::Stored(generation(1)));
    let ReserveOutcome::Space(early) = cluster.reserve("a", 10, only(1)) else { panic!() };
    let ReserveOutcome::Space(late) = cluster.reserve("a", 10, only(1)) else { panic!() };
    assert_eq!(cluster.commit("a", 10, only(1), &early), CommitOutcome::Replaced(generation(2)));
    // The other writer saw the first object, and must not overwrite the second.
    assert_eq!(cluster.commit("a", 10, only(1), &late), CommitOutcome::Exists(generation(2)));
    assert_eq!(cluster.reserve("a", 10, only(1)), ReserveOutcome::Exists(generation(2)));
    // Nor may it bring back a deleted object.
    let ReserveOutcome::Space(space) = cluster.reserve("a", 10, only(2)) else { panic!() };
    assert_eq!(cluster.delete("a", false), Some(DeleteOutcome::Deleted));
    assert_eq!(cluster.commit("a", 10, only(2), &space), CommitOutcome::Exists(Generation::default()));
    assert!(!cluster.has("a"));
    assert_eq!(cluster.nodes[0].usage().free, 10 * UNIT);
}

#[test]
fn draining_node_is_readable_and_gets_no_objects() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    let there = PutOptions { preferred: vec!["node1".into()], ..plain() };
    cluster.put("old", UNIT, there.clone());
    cluster.node_event(0, node::Event::Drain);
    assert_eq!(cluster.master.stat().nodes[0].usage.capacity, 0, "the master learns of it at once");
    for name in ["a", "b", "c", "d"] {
        assert!(matches!(cluster.put(name, UNIT, there.clone()), CommitOutcome::Stored(_)));
    }
    assert_eq!(cluster.nodes[0].inventory().len(), 1);
    assert!(cluster.has("old"), "nothing was evicted for space that a draining node would not give");
    let mut alone = Cluster::new(&[4 * UNIT]);
    alone.put("old", UNIT, plain());
    alone.node_event(0, node::Event::Drain);
    assert!(matches!(alone.reserve("a", UNIT, plain()), ReserveOutcome::Full(_)));
    assert!(alone.has("old"));
}

#[test]
fn conditional_replacement_refuses_samples() {
    let mut cluster = Cluster::new(&[10 * UNIT]);
    let sample = PutOptions { sample: Some(crate::attributes::Consumption::Once), ..plain() };
    assert_eq!(cluster.put("a", 10, sample), CommitOutcome::Stored(generation(1)));
    let only = PutOptions { replaces: Some(generation(1)), ..plain() };
    assert_eq!(cluster.reserve("a", 10, only), ReserveOutcome::Exists(generation(1)));
}

#[test]
fn full_store_evicts_the_oldest_unpinned_object() {
    let mut cluster = Cluster::new(&[3 * UNIT]);
    cluster.put("pinned", UNIT, pinned());
    cluster.wait(1);
    cluster.put("old", UNIT, plain());
    cluster.wait(1);
    cluster.put("young", UNIT, plain());
    cluster.wait(1);
    assert_eq!(cluster.put("new", UNIT, plain()), CommitOutcome::Stored(generation(4)));
    assert!(cluster.has("pinned") && cluster.has("young") && cluster.has("new") && !cluster.has("old"));
    assert!(cluster.notices.contains(&Notice::Evicted(1, UNIT)));
}

#[test]
fn store_full_of_pins_reports_its_usage() {
    let mut cluster = Cluster::new(&[2 * UNIT]);
    cluster.put("a", UNIT, pinned());
    cluster.put("b", UNIT, pinned());
    let ReserveOutcome::Full(Full { usage, .. }) = cluster.reserve("c", 1, plain()) else { panic!() };
    assert_eq!((usage.capacity, usage.committed, usage.free), (2 * UNIT, 2 * UNIT, 0));
    assert!(cluster.has("a") && cluster.has("b"));
}

#[test]
fn object_larger_than_every_node_evicts_nothing() {
    let mut cluster = Cluster::new(&[2 * UNIT]);
    cluster.put("a", UNIT, plain());
    assert!(matches!(cluster.reserve("big", 3 * UNIT, plain()), ReserveOutcome::Full(_)));
    assert!(matches!(cluster.reserve("huge", u64::MAX, plain()), ReserveOutcome::Full(_)));
    assert!(cluster.has("a"));
}

#[test]
fn lease_protects_from_eviction_until_it_ends() {
    let mut cluster = Cluster::new(&[UNIT]);
    cluster.put("a", UNIT, plain());
    cluster.resolve("a", true);
    assert!(matches!(cluster.reserve("b", 1, plain()), ReserveOutcome::Full(_)));
    cluster.wait(100);
    assert!(matches!(cluster.reserve("b", 1, plain()), ReserveOutcome::Space(_)));
}

#[test]
fn lease_refuses_unforced_removal_in_strict_mode_only() {
    for strict in [false, true] {
        let mut cluster = Cluster::with(&[4 * UNIT], |config| config.strict_leases = strict);
        cluster.put("a", UNIT, plain());
        cluster.resolve("a", true);
        let refused = if strict { DeleteOutcome::Leased } else { DeleteOutcome::Deleted };
        assert_eq!(cluster.delete("a", false), Some(refused));
        cluster.put("b", UNIT, plain());
        cluster.resolve("b", true);
        assert_eq!(cluster.delete("b", true), Some(DeleteOutcome::Deleted));
    }
}

#[test]
fn replicas_are_on_different_nodes() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    cluster.put("a", UNIT, twice());
    let ResolveOutcome::Found(found) = cluster.resolve("a", false) else { panic!() };
    assert_eq!(found.replicas.len(), 2);
    assert_ne!(found.replicas[0].segment, found.replicas[1].segment);
    cluster.unlink(0);
    let ResolveOutcome::Found(found) = cluster.resolve("a", false) else { panic!() };
    assert_eq!(found.replicas.iter().map(|it| it.segment.0).collect::<Vec<_>>(), [2]);
    cluster.unlink(1);
    let ResolveOutcome::Unavailable(names) = cluster.resolve("a", false) else { panic!() };
    assert_eq!(names, ["node1", "node2"]);
}

#[test]
fn replicas_are_limited_by_the_number_of_nodes() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    let ReserveOutcome::Space(space) = cluster.reserve("a", 1, twice()) else { panic!() };
    assert_eq!(space.len(), 1);
    let none = PutOptions { replicas: 0, ..plain() };
    assert!(matches!(cluster.reserve("a", 1, none), ReserveOutcome::Invalid(_)));
}

#[test]
fn refused_commit_returns_the_other_replicas() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    let options = PutOptions { on_exists: OnExists::Keep, ..twice() };
    let ReserveOutcome::Space(space) = cluster.reserve("a", 1, options.clone()) else { panic!() };
    cluster.put("a", 1, plain());
    assert_eq!(cluster.commit("a", 1, options, &space), CommitOutcome::Exists(generation(1)));
    assert!(cluster.nodes.iter().all(|it| it.usage().granted == 0));
}

#[test]
fn delete_waits_for_its_node_until_the_deadline() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("a", UNIT, plain());
    cluster.put("b", UNIT, plain());
    cluster.hold_up(0);
    let id =
        cluster.send(ClientToMaster::Delete(Delete { keys: vec![key("a")], force: false, wait_ms: 500 }));
    assert_eq!(cluster.replies.get(&id), None);
    assert!(!cluster.has("a"));
    cluster.wait(500);
    let unconfirmed = DeleteOutcome::Unconfirmed(vec!["node1".into()]);
    assert_eq!(cluster.replies.remove(&id), Some(Reply::Deleted(vec![unconfirmed])));
    let id =
        cluster.send(ClientToMaster::Delete(Delete { keys: vec![key("b")], force: false, wait_ms: 500 }));
    cluster.let_go(0);
    assert_eq!(cluster.replies.remove(&id), Some(Reply::Deleted(vec![DeleteOutcome::Deleted])));
    assert_eq!(cluster.nodes[0].usage().free, 4 * UNIT);
}

#[test]
fn returning_node_applies_its_pending_retires_first() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("a", UNIT, plain());
    cluster.put("b", UNIT, plain());
    cluster.unlink(0);
    assert_eq!(cluster.delete("a", false), Some(DeleteOutcome::Unconfirmed(vec!["node1".into()])));
    assert_eq!(cluster.master.stat().nodes[0].owed, 1);
    cluster.link(0);
    assert!(!cluster.has("a") && cluster.has("b"));
    assert_eq!(cluster.nodes[0].usage().objects, 1);
    assert_eq!(cluster.master.stat().nodes[0].owed, 0);
}

#[test]
fn node_that_left_is_not_waited_for() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    cluster.put("both", UNIT, twice());
    cluster.put("there", UNIT, PutOptions { preferred: vec!["node1".into()], ..keep() });
    cluster.event(Event::Request(cluster.links[0], RequestId(9), Request::Goodbye));
    assert_eq!(cluster.resolve("there", false), ResolveOutcome::Absent);
    assert!(cluster.has("both"));
    assert_eq!(cluster.master.stat().nodes.len(), 1);
    assert!(matches!(cluster.put("there", UNIT, keep()), CommitOutcome::Stored(_)));
    // Further messages on that connection are ignored, and its end has no effect.
    cluster.event(Event::Request(cluster.links[0], RequestId(10), Request::Goodbye));
    cluster.unlink(0);
    assert!(cluster.has("both") && cluster.has("there"));
}

#[test]
fn silent_node_is_skipped_but_never_lost() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("a", UNIT, plain());
    cluster.wait(1_000);
    assert!(matches!(cluster.resolve("a", false), ResolveOutcome::Unavailable(_)));
    assert!(matches!(cluster.reserve("b", 1, plain()), ReserveOutcome::NoNode));
    cluster.wait(1_000_000);
    assert!(matches!(cluster.resolve("a", false), ResolveOutcome::Unavailable(_)));
    cluster.node_event(0, node::Event::Beat);
    assert!(cluster.has("a"));
}

#[test]
fn late_allocation_of_a_silent_node_is_returned() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    cluster.hold_up(0);
    cluster.hold_up(1);
    let items = vec![ReserveItem { key: key("a"), len: UNIT, options: plain() }];
    let id = cluster.send(ClientToMaster::Reserve(Reserve { items, ..Reserve::default() }));
    cluster.wait(1_000);
    let Some(Reply::Reserved(reserved)) = cluster.replies.remove(&id) else { panic!() };
    assert!(matches!(reserved.items[0], ReserveOutcome::NoNode));
    cluster.let_go(0);
    cluster.let_go(1);
    assert!(cluster.nodes.iter().all(|it| it.usage().free == 4 * UNIT));
}

#[test]
fn restarted_master_learns_from_its_nodes() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("a", UNIT, pinned());
    cluster.put("b", UNIT, plain());
    cluster.delete("b", false);
    cluster.restart_master(6);
    let ResolveOutcome::Found(found) = cluster.resolve("a", false) else { panic!() };
    assert_eq!((found.generation, found.hard_pin), (generation(1), true));
    assert!(!cluster.has("b"));
    let new = Generation { epoch: 6, counter: 1 };
    assert_eq!(cluster.put("a", UNIT, plain()), CommitOutcome::Replaced(new));
}

#[test]
fn messages_of_a_replaced_connection_are_ignored() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("a", UNIT, plain());
    cluster.open(ConnId(2), 7);
    cluster.delete("a", true);
    cluster.open(CLIENT, 7);
    assert!(cluster.has("a"));
}

#[test]
fn pattern_deletes_all_matches_and_is_validated() {
    let mut cluster = Cluster::new(&[64 * UNIT]);
    for name in ["rx_1", "rx_2", "other_rx_1", "x"] {
        cluster.put(name, 1, plain());
    }
    let mut matching = |pattern| {
        let request = DeleteMatching { pattern, force: false, wait_ms: 500 };
        match cluster.ask(ClientToMaster::DeleteMatching(request)) {
            Some(Reply::DeletedMatching(DeletedMatching { count, .. })) => Ok(count),
            Some(Reply::Refused(refusal)) => Err(refusal.reason),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(matching(Pattern::Regex("rx_[12]$".into())), Ok(3));
    assert_eq!(matching(Pattern::Regex("(".into())), Err(Reason::Invalid));
    assert_eq!(matching(Pattern::Regex("(a{1000}){1000}".into())), Err(Reason::Invalid));
    assert_eq!(matching(Pattern::Prefix(b"y".to_vec())), Ok(0));
    assert_eq!(matching(Pattern::All), Ok(1));
}

#[test]
fn listing_is_paged_and_lists_each_object_once() {
    let mut cluster = Cluster::new(&[64 * UNIT]);
    for number in 0..10 {
        cluster.put(&format!("k{number}"), number + 1, plain());
    }
    let (mut names, mut cursor) = (Vec::new(), 0);
    loop {
        let list = List {
            pattern: Pattern::Prefix(b"k".to_vec()),
            pinned_by: None,
            cursor,
            limit: 3,
            report_wait_ms: 0,
        };
        let Some(Reply::Listed(page)) = cluster.ask(ClientToMaster::List(list)) else { panic!() };
        assert!(page.items.len() <= 3);
        names.extend(page.items.into_iter().map(|it| it.key.to_string()));
        cursor = page.cursor;
        if cursor == 0 {
            break;
        }
    }
    names.sort();
    assert_eq!(names, (0..10).map(|it| format!("k{it}")).collect::<Vec<_>>());
}

#[test]
fn namespaces_are_isolated() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.put("a", 1, plain());
    let hello = Hello { client: ClientId(7), namespace: "other".into(), ..Hello::default() };
    cluster.event(Event::Opened(CLIENT, hello));
    assert!(!cluster.has("a"));
    assert_eq!(cluster.delete("a", true), Some(DeleteOutcome::Absent));
}

#[test]
fn reservation_of_a_lost_client_is_returned() {
    let mut cluster = Cluster::new(&[4 * UNIT]);
    cluster.hold_up(0);
    let items = vec![ReserveItem { key: key("a"), len: UNIT, options: plain() }];
    cluster.send(ClientToMaster::Reserve(Reserve { items, ..Reserve::default() }));
    cluster.event(Event::Closed(CLIENT));
    cluster.let_go(0);
    assert_eq!(cluster.nodes[0].usage().free, 4 * UNIT);
    assert_eq!(cluster.master.waiting_count(), 0);
}

#[test]
fn replica_that_its_node_lost_leaves_the_catalog() {
    let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
    let ReserveOutcome::Space(mut space) = cluster.reserve("a", 1, twice()) else { panic!() };
    let segment = space[1].location.segment;
    space[1].location = Location { segment, slot: SlotId(0), stamp: Stamp(999) };
    assert_eq!(cluster.commit("a", 1, twice(), &space), CommitOutcome::Stored(generation(1)));
    let ResolveOutcome::Found(found) = cluster.resolve("a", false) else { panic!() };
    assert_eq!(found.replicas, [space[0].location]);
}

/// A writer that has its answer may exit at once, and copies that no node has recorded are lost with it.
#[test]
fn put_is_answered_when_every_copy_is_recorded() {
    let endings: [fn(&mut Cluster, usize); 3] =
        [Cluster::let_go, Cluster::unlink, |cluster, _| cluster.wait(1_000)];
    for ending in endings {
        let mut cluster = Cluster::new(&[4 * UNIT, 4 * UNIT]);
        let ReserveOutcome::Space(space) = cluster.reserve("a", UNIT, twice()) else {
            panic!("there is space")
        };
        let other = space[1].location.segment.0 as usize - 1;
        cluster.hold_up(other);
        let id = cluster.send_commit("a", UNIT, twice(), &space);
        assert!(!cluster.replies.contains_key(&id), "the other node has not recorded its copy");
        ending(&mut cluster, other);
        assert!(matches!(cluster.replies.get(&id), Some(Reply::Committed(_))), "{:?}", cluster.replies);
    }
}

#[test]
fn exists_distinguishes_absent_from_unavailable() {
    let mut cluster = Cluster::new(&[64 * UNIT, 64 * UNIT]);
    cluster.put("here", 10, PutOptions { replicas: 1, ..PutOptions::default() });
    let keys = ["here", "nowhere"].map(key).to_vec();
    let exists = |cluster: &mut Cluster| {
        let exists = Exists { keys: keys.iter().collect(), touch: true, lease: true, ..Exists::default() };
        cluster.ask(ClientToMaster::Exists(exists)).unwrap()
    };
    assert_eq!(exists(&mut cluster), Reply::Present(vec![Presence::Here, Presence::Absent]));
    cluster.unlink(0);
    cluster.unlink(1);
    assert_eq!(exists(&mut cluster), Reply::Present(vec![Presence::Unavailable, Presence::Absent]));
}

#[test]
fn requests_of_the_wrong_direction_are_refused() {
    let client = || Request::from(ClientToMaster::Stat);
    let member = || Request::from(MemberToMaster::ClientDied(ClientId(9)));
    let neither = || [MasterToMember::Inspect(vec![]).into(), ClientToNode::Abort(vec![]).into()];
    let mut cluster = Cluster::new(&[8 * UNIT]);
    let node = cluster.links[0];
    let hello = || Request::Hello(Hello::default());
    for (conn, requests) in [(CLIENT, [member(), hello()]), (node, [client(), hello()])] {
        for request in requests.into_iter().chain(neither()) {
            cluster.master.handle(cluster.now, Event::Request(conn, RequestId(9), request.clone()));
            let effects: Vec<_> = std::iter::from_fn(|| cluster.master.poll_effect()).collect();
            let [Effect::Reply(to, RequestId(9), Reply::Refused(refusal))] = &effects[..] else {
                panic!("{request:?}: {effects:?}")
            };
            assert_eq!((*to, refusal.reason), (conn, Reason::NotForYou), "{request:?}");
        }
    }
}

#[test]
fn unregistered_members_may_only_register() {
    let mut cluster = Cluster::new(&[]);
    let conn = ConnId(99);
    cluster.event(Event::Opened(conn, Hello { role: Role::Node, ..Hello::default() }));
    for request in [MemberToMaster::ClientDied(ClientId(9)).into(), Request::Goodbye] {
        cluster.master.handle(cluster.now, Event::Request(conn, RequestId(9), request));
        let Some(Effect::Reply(_, _, Reply::Refused(refusal))) = cluster.master.poll_effect() else {
            panic!()
        };
        assert_eq!(refusal.reason, Reason::Invalid);
    }
}
