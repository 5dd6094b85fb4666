//! A master with real nodes, for tests.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tiffin_node::{self as node, Node, NodeConfig, disk};

use super::{repair, test_disk::TestDisk, *};
use crate::{
    Key, Reservation,
    message::{
        ClientToNode, Commit, CommitItem, CommitOutcome, Delete, DeleteOutcome, NodeInfo, OnExists,
        PutOptions, Reserve, ReserveItem, ReserveOutcome, Resolve, ResolveOutcome,
    },
};

pub(in crate::master) const CLIENT: ConnId = ConnId(1);
pub(in crate::master) const UNIT: u64 = 64;

/// A master, its nodes, and connections that deliver at once and in order, unless a node is stalled.
pub(in crate::master) struct Cluster {
    pub(in crate::master) master: Master,
    pub(in crate::master) nodes: Vec<Node>,
    pub(in crate::master) links: Vec<ConnId>,
    pub(in crate::master) held_up: Vec<VecDeque<(RequestId, MasterToMember)>>,
    /// The answers that a stalled node receives after that.
    pub(in crate::master) held_answers: Vec<VecDeque<(RequestId, Reply)>>,
    pub(in crate::master) is_held_up: Vec<bool>,
    pub(in crate::master) now: Tick,
    pub(in crate::master) next_id: u64,
    pub(in crate::master) next_conn: u64,
    pub(in crate::master) replies: BTreeMap<RequestId, Reply>,
    pub(in crate::master) notices: Vec<Notice>,
    /// Messages to a node on the master's host are in its socket buffer at once, even while it is stalled.
    pub(in crate::master) takes_at_once: bool,
    /// Nodes that connect from now on are on the master's host.
    pub(in crate::master) is_on_same_host: bool,
    /// The master can withdraw copies of nodes that connect from now on; those that it has withdrawn.
    pub(in crate::master) can_withdraw: bool,
    pub(in crate::master) withdrawn: Vec<(ConnId, SlotRef)>,
    /// See [`super::test_disk`].
    pub(super) disks: Vec<TestDisk>,
    /// See [`super::repair`].
    pub(super) fetches: repair::TestFetches,
    /// Offers that their client has claimed, by node.
    pub(in crate::master) claimed: BTreeSet<(usize, SlotRef)>,
    /// The content of the state folder, and the versions that are not synced yet while syncs are stalled.
    pub(in crate::master) state: Saved,
    pub(in crate::master) unsynced: Option<Vec<(u64, Saved)>>,
    /// The confirmation that was requested last, and connections that were closed.
    pub(super) unconfirmed: u64,
    pub(super) disconnected: Vec<ConnId>,
}

impl Cluster {
    pub(in crate::master) fn new(capacities: &[u64]) -> Self {
        Self::with(capacities, |_| ())
    }

    pub(in crate::master) fn with(capacities: &[u64], change: impl Fn(&mut MasterConfig)) -> Self {
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
            limits: LimitsConfig::default(),
            tier: TierConfig::default(),
            wall_ms: 1_000_000,
            hash_seed: 3,
            mutant: Mutant::None,
        };
        change(&mut config);
        let mut cluster = Self {
            master: Master::new(config),
            nodes: Vec::new(),
            links: Vec::new(),
            held_up: Vec::new(),
            held_answers: Vec::new(),
            is_held_up: Vec::new(),
            now: Tick(0),
            next_id: 0,
            next_conn: 100,
            replies: BTreeMap::new(),
            notices: Vec::new(),
            takes_at_once: true,
            is_on_same_host: true,
            can_withdraw: false,
            withdrawn: Vec::new(),
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
    pub(in crate::master) fn add_node(&mut self, capacity: u64, change: impl Fn(&mut NodeConfig)) {
        let segment = self.nodes.len() as u64 + 1;
        let mut config = node_config(segment, capacity);
        change(&mut config);
        self.nodes.push(Node::new(config));
        self.links.push(ConnId(0));
        self.held_up.push(VecDeque::new());
        self.held_answers.push(VecDeque::new());
        self.is_held_up.push(false);
        self.link(segment as usize - 1);
    }

    pub(in crate::master) fn open(&mut self, conn: ConnId, client: u64) {
        let hello = Hello {
            client: ClientId(client),
            namespace: "default".into(),
            label: format!("client {client}"),
            ..Hello::default()
        };
        self.event(Event::Opened(conn, hello));
    }

    pub(in crate::master) fn link(&mut self, index: usize) {
        self.next_conn += 1;
        self.links[index] = ConnId(self.next_conn);
        let hello = Hello { role: Role::Node, ..Hello::default() };
        self.event(Event::Opened(self.links[index], hello));
        if self.is_on_same_host {
            self.event(Event::SameHost(self.links[index]));
        }
        if self.can_withdraw {
            self.event(Event::CanWithdraw(self.links[index]));
        }
        let name = format!("node{}", index + 1);
        let info = NodeInfo { segment: SegmentId(index as u64 + 1), name, ..NodeInfo::default() };
        self.node_event(index, node::Event::Linked(info));
    }

    pub(in crate::master) fn unlink(&mut self, index: usize) {
        self.nodes[index].handle(node::Event::Unlinked);
        self.event(Event::Closed(self.links[index]));
    }

    /// Starts a master of another epoch, and every node registers with it.
    pub(in crate::master) fn restart_master(&mut self, epoch: u64) {
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
    pub(in crate::master) fn node_request(&mut self, index: usize, request: ClientToNode) {
        let opened = node::Event::Opened { conn: CLIENT, client: ClientId(7), namespace: "default".into() };
        self.node_event(index, opened);
        self.node_event(index, node::Event::Request { conn: CLIENT, id: RequestId(5), request });
    }

    /// Stalls a node: requests to it wait, and decisions behind them.
    pub(in crate::master) fn hold_up(&mut self, index: usize) {
        self.is_held_up[index] = true;
    }

    pub(in crate::master) fn let_go(&mut self, index: usize) {
        self.is_held_up[index] = false;
        while let Some((id, request)) = self.held_up[index].pop_front() {
            self.node_event(index, node::Event::MasterRequest(id, request));
        }
        while let Some((id, reply)) = self.held_answers[index].pop_front() {
            self.node_event(index, node::Event::MasterReply(id, reply));
        }
    }

    pub(in crate::master) fn event(&mut self, event: Event) {
        self.master.handle(self.now, event);
        self.carry_out();
    }

    pub(in crate::master) fn wait(&mut self, ms: u64) {
        self.now = self.now.after(ms);
        self.master.handle_timeout(self.now);
        self.carry_out();
    }

    pub(in crate::master) fn carry_out(&mut self) {
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
                    Some(index) if self.is_held_up[index] && matches!(reply, Reply::Decided(_)) => {
                        self.held_answers[index].push_back((id, reply));
                    }
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
                Effect::Withdraw(conn, slot_refs) => {
                    self.withdrawn.extend(slot_refs.into_iter().map(|it| (conn, it)));
                }
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

    pub(in crate::master) fn node_event(&mut self, index: usize, event: node::Event) {
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
    pub(in crate::master) fn ask(&mut self, request: impl Into<Request>) -> Option<Reply> {
        let id = self.send(request);
        self.replies.remove(&id)
    }

    pub(in crate::master) fn send(&mut self, request: impl Into<Request>) -> RequestId {
        self.next_id += 1;
        let id = RequestId(1_000_000 + self.next_id);
        self.event(Event::Request(CLIENT, id, request.into()));
        id
    }

    pub(in crate::master) fn reserve(&mut self, name: &str, len: u64, options: PutOptions) -> ReserveOutcome {
        let items = vec![ReserveItem { key: key(name), len, options }];
        match self.ask(ClientToMaster::Reserve(Reserve { items, ..Reserve::default() })) {
            Some(Reply::Reserved(mut reserved)) => reserved.items.remove(0),
            other => panic!("{other:?}"),
        }
    }

    pub(in crate::master) fn commit(
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

    pub(in crate::master) fn send_commit(
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

    pub(in crate::master) fn put(&mut self, name: &str, len: u64, options: PutOptions) -> CommitOutcome {
        match self.reserve(name, len, options.clone()) {
            ReserveOutcome::Space(space) => self.commit(name, len, options, &space),
            other => panic!("{other:?}"),
        }
    }

    pub(in crate::master) fn resolve(&mut self, name: &str, lease: bool) -> ResolveOutcome {
        let resolve =
            Resolve { keys: vec![key(name)], touch: lease, lease, locate: true, ..Resolve::default() };
        match self.ask(ClientToMaster::Resolve(resolve)) {
            Some(Reply::Resolved(mut resolved)) => resolved.items.remove(0),
            other => panic!("{other:?}"),
        }
    }

    pub(in crate::master) fn has(&mut self, name: &str) -> bool {
        matches!(self.resolve(name, false), ResolveOutcome::Found(_))
    }

    pub(in crate::master) fn delete(&mut self, name: &str, force: bool) -> Option<DeleteOutcome> {
        match self.ask(ClientToMaster::Delete(Delete { keys: vec![key(name)], force, wait_ms: 500 })) {
            Some(Reply::Deleted(mut outcomes)) => Some(outcomes.remove(0)),
            None => None,
            other => panic!("{other:?}"),
        }
    }
}

pub(in crate::master) fn key(name: &str) -> Key {
    Key::new(name.as_bytes()).unwrap()
}

pub(in crate::master) fn plain() -> PutOptions {
    PutOptions { replicas: 1, ..PutOptions::default() }
}

pub(in crate::master) fn keep() -> PutOptions {
    PutOptions { on_exists: OnExists::Keep, ..plain() }
}

pub(in crate::master) fn pinned() -> PutOptions {
    PutOptions { hard_pin: true, ..plain() }
}

pub(in crate::master) fn twice() -> PutOptions {
    PutOptions { replicas: 2, ..plain() }
}

pub(in crate::master) fn generation(counter: u64) -> Generation {
    Generation { epoch: 5, counter }
}

/// The key of the stamps of all nodes.
pub(super) fn stamp_key() -> node::StampKey {
    node::StampKey::from_bytes([5; 16])
}

/// The sizes of a node of the tests.
pub(super) fn node_config(segment: u64, capacity: u64) -> NodeConfig {
    NodeConfig {
        segment: SegmentId(segment),
        capacity,
        slot_count: 64,
        heap_bytes: 1 << 16,
        chunk_bytes: 1 << 16,
        chunks_free: 2,
        restores: false,
        extents_max: crate::EXTENTS_MAX,
        stamp_key: stamp_key(),
        mutant: Mutant::None,
    }
}
