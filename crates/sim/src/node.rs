//! The shell of a storage node: it executes effects in order, maintains its link to the master, and serves
//! bytes.

use tiffin_node::{Effect, Event as CoreEvent, Node, NodeConfig, SlotState, StampKey};
use tiffin_proto::Incoming;
use tiffin_types::{
    ClientId, ConnId, Extent, SegmentId, SlotRef,
    message::{
        ClientToNode, Hello, JobId, MasterToMember, NodeInfo, Reply, Request, Role, VERSION_MAJOR,
        VERSION_MINOR, Welcome,
    },
};

use crate::{
    coverage::Point,
    disk::{DiskEvent, DiskShell},
    draining::Draining,
    keyspace,
    memory::Memory,
    network::Way,
    transfer::TransferId,
    world::{Event, Party, Phase, Time, World},
};

/// Heartbeat interval of a node.
const BEAT_MS: u64 = 50;
/// How often the file system of a memory pool is full.
const RESTORE_FAILURE_PERCENT: u64 = 30;

/// A node's own event.
#[derive(Debug)]
pub(crate) enum NodeEvent {
    Beat,
    /// Connects to the master.
    Link,
    /// Bytes, or a request for bytes, arrive on a data connection.
    Chunk(TransferId),
    /// The bytes are copied.
    ChunkDone(TransferId),
    /// A data connection is closed.
    DataClosed(ClientId),
    /// The kernel reports that a client's process is dead.
    Dead(ClientId),
    /// A client maps the memory.
    Attach(usize, u32),
    /// It requests the next piece of another member's copy.
    Fetch(SlotRef),
    /// That piece arrives.
    FetchDone(SlotRef),
    /// The node reports how far this drain job is.
    DrainRound(JobId),
    /// An event of the node's disk.
    Disk(DiskEvent),
}

/// One node.
pub(crate) struct NodeShell {
    pub(crate) core: Option<Node>,
    pub(crate) incarnation: u32,
    pub(crate) segment: SegmentId,
    pub(crate) stopped_until: Time,
    /// The connection to the master, and whether it was welcomed.
    pub(crate) link: Option<ConnId>,
    pub(crate) linked: bool,
    /// The network blocks its link until then.
    pub(crate) barred_until: Time,
    /// The node's disk, which outlives its process.
    pub(crate) disk: Option<Box<DiskShell>>,
    /// The node's memory pool, which the next process adopts.
    pub(crate) keeps_pool: bool,
    /// Its memory pool, while its process runs on other memory because it did not find the pool.
    pub(crate) left_pool: Option<SegmentId>,
    /// Its work on a drain job.
    pub(crate) draining: Option<Draining>,
    /// Its name.
    name: String,
}

impl NodeShell {
    pub(crate) fn absent() -> Self {
        Self {
            core: None,
            incarnation: 0,
            segment: SegmentId(0),
            stopped_until: 0,
            link: None,
            linked: false,
            barred_until: 0,
            disk: None,
            keeps_pool: false,
            left_pool: None,
            draining: None,
            name: String::new(),
        }
    }

    /// Whether it works on this drain job.
    pub(crate) fn drains(&self, job: JobId) -> bool {
        self.draining.as_ref().is_some_and(|it| it.report.job.id == job)
    }

    /// The memory that the next process finds, if there is any.
    fn found(&self) -> Option<SegmentId> {
        self.left_pool.or(self.keeps_pool.then_some(self.segment))
    }
}

impl World {
    /// A node starts, on its memory pool or with a new and empty segment.
    pub(crate) fn start_node(&mut self, node: usize) {
        let found = self.nodes.get(node).and_then(NodeShell::found);
        let strays = found.is_some() && self.phase == Phase::Faults && self.plan.stray_percent > 0;
        let left_pool = found.filter(|_| strays && self.rng.percent(self.plan.stray_percent));
        let adopted = found.filter(|_| left_pool.is_none());
        let segment = adopted.unwrap_or_else(|| SegmentId(self.rng.any()));
        let config = NodeConfig {
            segment,
            capacity: self.plan.capacity,
            slot_count: self.plan.slot_count,
            heap_bytes: self.plan.heap_bytes,
            chunk_bytes: self.plan.chunk_bytes,
            chunks_free: self.plan.chunks_free,
            restores: self.plan.has_pool(node),
            extents_max: self.plan.extents_max,
            // It must stay with the memory, and nothing in a simulation guesses.
            stamp_key: StampKey::from_bytes(u128::from(segment.0).to_le_bytes()),
            mutant: self.mutant,
        };
        let mut core = if adopted.is_some() { self.adopt(config) } else { Node::new(config) };
        let Some(shell) = self.nodes.get_mut(node) else { return };
        shell.disk.iter().for_each(|it| core.join_cluster(it.log.cluster));
        let incarnation = shell.incarnation + 1;
        let disk = shell.disk.take();
        // A process that did not find its memory has the name and address of the one before.
        let name = if left_pool.is_some() { shell.name.clone() } else { node_name(node, incarnation) };
        self.oracle.node_starts(segment, &name);
        let core = Some(core);
        *shell = NodeShell { core, incarnation, segment, disk, left_pool, name, ..NodeShell::absent() };
        if adopted.is_none() {
            self.memories.insert(segment, Memory::new(config.capacity, config.heap_bytes));
        }
        if left_pool.is_some() {
            self.coverage.hit(Point::PoolNotFound);
            let ends = self.now + self.rng.delay(100, 900);
            self.at(ends, Event::StrayEnds(node, incarnation));
        }
        self.log.line(self.now, "node starts", &[node as u64, segment.0], &[]);
        self.drain_node(node);
        self.node_at(0, node, NodeEvent::Link);
        self.node_at(BEAT_MS, node, NodeEvent::Beat);
        if self.plan.has_disk(node) {
            self.start_disk(node);
        }
    }

    /// The core of a node that adopts its memory.
    fn adopt(&mut self, config: NodeConfig) -> Node {
        let segment = config.segment;
        let maps = |it: &&crate::client::Client| it.alive && it.attached.contains(&segment);
        let clients: Vec<_> = self.clients.iter().filter(maps).map(|it| it.id).collect();
        self.coverage.hit(if clients.is_empty() {
            Point::PoolAdopted
        } else {
            Point::PoolAdoptedWhileMapped
        });
        let Some(memory) = self.memories.get_mut(&segment) else { return Node::new(config) };
        memory.runs = true;
        memory.restore_all();
        let adopted = memory.adopted(clients);
        if adopted.slots.iter().any(|it| it.is_retired) {
            self.coverage.hit(Point::PoolHasRetired);
        }
        if adopted.slots.iter().any(|it| it.record.state == SlotState::Prepared) {
            self.coverage.hit(Point::PoolHasPrepared);
        }
        Node::adopt(config, adopted).unwrap_or_else(|damage| {
            self.oracle.fail("memory", || format!("{segment} cannot be adopted: {damage}"));
            Node::new(config)
        })
    }

    /// A node's process dies. Its memory stays for clients that mapped it.
    pub(crate) fn crash_node(&mut self, node: usize, down_ms: u64) {
        self.log.line(self.now, "node dies", &[node as u64], &[]);
        let Some(shell) = self.nodes.get_mut(node).filter(|it| it.core.is_some()) else { return };
        shell.core = None;
        let (segment, link) = (shell.segment, shell.link.take());
        shell.keeps_pool = self.plan.has_pool(node)
            && shell.left_pool.is_none()
            && !self.rng.percent(self.plan.pool_loss_percent);
        if let Some(memory) = self.memories.get_mut(&segment) {
            (memory.alive, memory.runs) = (shell.keeps_pool, false);
        }
        self.close_all_of(Party::Node(node));
        if let Some(link) = link {
            self.close_caller(link);
        }
        self.transfers_lose_node(segment);
        self.fetches_lose_node(node);
        self.crash_disk(node);
        if let Some(link) = link.filter(|_| node < self.plan.same_host_nodes) {
            // The kernel of the master's host tells it.
            let delay = self.rng.delay(1, 30);
            self.at(self.now + delay, Event::NodeEnded(self.master_incarnation, link));
        }
        self.at(self.now + down_ms, Event::NodeStarts(node));
    }

    pub(crate) fn node_event(&mut self, node: usize, event: NodeEvent) {
        match event {
            NodeEvent::Beat => {
                self.node_handles(node, CoreEvent::Beat);
                self.node_at(BEAT_MS, node, NodeEvent::Beat);
            }
            NodeEvent::Link => self.link(node),
            NodeEvent::Chunk(id) => self.chunk(node, id),
            NodeEvent::ChunkDone(id) => self.chunk_done(node, id),
            NodeEvent::DataClosed(client) => self.node_handles(node, CoreEvent::DataClosed(client)),
            NodeEvent::Dead(client) => {
                let open = |it: &crate::network::Conn| it.client == client && it.server_open && it.greeted;
                let first = self.conns.values().any(|it| it.server == Party::Node(node) && open(it));
                self.coverage.hit(if first { Point::DeadBeforeClosed } else { Point::ClosedBeforeDead });
                self.node_handles(node, CoreEvent::Dead(client));
            }
            NodeEvent::Attach(client, incarnation) => self.attach(node, client, incarnation),
            NodeEvent::Fetch(into) => self.fetch_piece(node, into),
            NodeEvent::FetchDone(into) => self.fetch_piece_done(node, into),
            NodeEvent::DrainRound(job) => self.drain_round(node, job),
            NodeEvent::Disk(event) => self.disk_event(node, event),
        }
    }

    pub(crate) fn node_receives(&mut self, node: usize, conn: ConnId, way: Way, incoming: Incoming) {
        if way == Way::Up {
            return self.node_receives_from_client(node, conn, incoming);
        }
        let Some(shell) = self.nodes.get_mut(node).filter(|it| it.link == Some(conn)) else { return };
        match incoming {
            Incoming::Reply(_, Reply::Welcome(_)) => {
                shell.linked = true;
                let (segment, name) = (shell.segment, shell.name.clone());
                let (host, tcp) = (format!("host{node}"), format!("host{node}:7500"));
                let outlives = self.plan.has_pool(node) && shell.left_pool.is_none();
                let info = NodeInfo { segment, name, host, tcp, outlives, ..NodeInfo::default() };
                self.node_handles(node, CoreEvent::Linked(info));
            }
            Incoming::Reply(id, reply) => {
                let segment = shell.segment;
                if matches!(reply, Reply::Decided(_)) {
                    // The home passes the answer on: what it has applied by now counts.
                    self.oracle.decision_arrives((conn, id), &self.memories, &mut self.coverage);
                }
                let is_member = |it: &Self| {
                    it.nodes.get(node).and_then(|it| it.core.as_ref()).is_some_and(Node::is_member)
                };
                let was_member = is_member(self);
                self.node_handles(node, CoreEvent::MasterReply(id, reply));
                if is_member(self) && !was_member {
                    self.oracle.readmitted(conn, segment, &self.memories, &mut self.coverage);
                }
            }
            Incoming::Request(id, Request::MasterToMember(request)) => {
                self.node_handles(node, CoreEvent::MasterRequest(id, request));
            }
            Incoming::Request(
                _,
                Request::Hello(_)
                | Request::Goodbye
                | Request::ClientToMaster(_)
                | Request::MemberToMaster(_)
                | Request::ClientToNode(_),
            ) => panic!("the master sends a request that is not for members"),
        }
    }

    /// A node applies all ledger entries at once, and answers once.
    pub(crate) fn apply_ledger(&mut self, node: usize, conn: ConnId, words: Vec<Incoming>) {
        if self.nodes.get(node).is_none_or(|it| it.link != Some(conn)) {
            return;
        }
        let settle = |it| {
            let Incoming::Request(id, Request::MasterToMember(request)) = it else { return None };
            let MasterToMember::Settle(settle) = request else { return None };
            Some((id, settle))
        };
        let words: Vec<_> = words.into_iter().filter_map(settle).collect();
        if words.len() > 1 {
            self.coverage.hit(Point::ManyLedgerEntries);
        }
        if !words.is_empty() {
            self.node_handles(node, CoreEvent::LedgerRead(words));
        }
    }

    fn node_receives_from_client(&mut self, node: usize, conn: ConnId, incoming: Incoming) {
        let Incoming::Request(id, request) = incoming else { return };
        let Some(it) = self.conns.get_mut(&conn) else { return };
        let client = it.client;
        match request {
            Request::Hello(hello) => {
                it.greeted = true;
                let segment = self.nodes.get(node).map(|it| it.segment).unwrap_or_default();
                self.node_handles(node, CoreEvent::Opened { conn, client, namespace: hello.namespace });
                let welcome =
                    Welcome { major: VERSION_MAJOR, minor: VERSION_MINOR, segment, ..Welcome::default() };
                self.send_reply(conn, Way::Down, id, &Reply::Welcome(welcome));
            }
            Request::Goodbye => self.node_handles(node, CoreEvent::Goodbye { conn, id }),
            Request::ClientToNode(request) => {
                let request = match request {
                    ClientToNode::Store(store) => self.write_inline(node, client, store),
                    ClientToNode::Commit(_)
                    | ClientToNode::Abort(_)
                    | ClientToNode::Keep(_)
                    | ClientToNode::BeginViews(_)
                    | ClientToNode::EndViews(_)
                    | ClientToNode::KeepViews(_) => request,
                };
                self.node_handles(node, CoreEvent::Request { conn, id, request });
            }
            Request::ClientToMaster(_) | Request::MemberToMaster(_) | Request::MasterToMember(_) => {
                panic!("a client sends a request that is not for nodes")
            }
        }
    }

    pub(crate) fn node_closed(&mut self, node: usize, conn: ConnId) {
        self.node_handles(node, CoreEvent::Closed(conn));
    }

    /// The link to the master broke; the node reconnects later.
    pub(crate) fn link_lost(&mut self, node: usize, conn: ConnId) {
        let Some(shell) = self.nodes.get_mut(node).filter(|it| it.link == Some(conn)) else { return };
        shell.link = None;
        if std::mem::replace(&mut shell.linked, false) {
            self.node_handles(node, CoreEvent::Unlinked);
        }
        let delay = self.rng.delay(20, 100);
        self.node_at(delay, node, NodeEvent::Link);
    }

    fn link(&mut self, node: usize) {
        let now = self.now;
        let Some(shell) = self.nodes.get_mut(node).filter(|it| it.link.is_none()) else { return };
        if shell.barred_until > now && self.phase == Phase::Faults {
            let delay = shell.barred_until - now;
            return self.node_at(delay, node, NodeEvent::Link);
        }
        let hello = Hello {
            major: VERSION_MAJOR,
            minor: VERSION_MINOR,
            role: Role::Node,
            host: format!("host{node}"),
            ..Hello::default()
        };
        let server = self.choose_master(0);
        let conn = self.open(Party::Node(node), server, hello);
        if let Some(shell) = self.nodes.get_mut(node) {
            shell.link = Some(conn);
            // The node makes a new journal, so that an earlier master writes into one that it has left.
            let memory = self.memories.get_mut(&shell.segment);
            memory.into_iter().for_each(|it| it.journal = (conn, Vec::new()));
        }
    }

    /// Passes an event in and executes the effects, in order, before anything else.
    pub(crate) fn node_handles(&mut self, node: usize, event: CoreEvent) {
        let Some(core) = self.nodes.get_mut(node).and_then(|it| it.core.as_mut()) else { return };
        core.handle(event);
        self.drain_node(node);
    }

    pub(crate) fn drain_node(&mut self, node: usize) {
        while let Some(shell) = self.nodes.get_mut(node) {
            let Some(effect) = shell.core.as_mut().and_then(Node::poll_effect) else { return };
            let (segment, link) = (shell.segment, shell.link.filter(|_| shell.linked));
            match effect {
                Effect::Reply { conn, id, reply } => self.send_reply(conn, Way::Down, id, &reply),
                Effect::AskMaster(id, request) => {
                    if let Some(link) = link {
                        self.send_request(link, Way::Up, id, &request);
                    }
                }
                Effect::AnswerMaster(id, reply) => {
                    if let Some(link) = link {
                        self.send_reply(link, Way::Up, id, &reply);
                    }
                }
                Effect::Disconnect(conn) => self.disconnect(conn),
                Effect::Drain(job) => self.drain_job_changed(node, job),
                Effect::Slot { .. }
                | Effect::Withdraw { .. }
                | Effect::Park { .. }
                | Effect::Reclaim { .. }
                | Effect::Heap { .. }
                | Effect::Withhold(_) => self.store(segment, effect),
                Effect::Restore(extents) => self.restore(node, extents),
                // The simulated tables always have memory.
                Effect::Back(_) => (),
                Effect::Recall(slot_refs) => self.recall(node, &slot_refs),
                Effect::Fetch(item) => self.begin_fetch(node, item),
                Effect::StampHighWater(mark) => {
                    self.log.line(self.now, "mark", &[segment.0, mark], &[]);
                    if let Some(memory) = self.memories.get_mut(&segment) {
                        memory.stamp_high_water = mark;
                    }
                }
                Effect::Membership(member) => {
                    if let Some(memory) = self.memories.get_mut(&segment) {
                        memory.member = member;
                    }
                }
                Effect::Epoch { epoch, instance, cluster } => {
                    self.log.line(self.now, "epoch", &[segment.0, epoch], &[]);
                    if let Some(memory) = self.memories.get_mut(&segment) {
                        (memory.epoch, memory.instance, memory.cluster) = (epoch, instance, cluster);
                    }
                }
                Effect::RejectMaster { .. } | Effect::Refused(_) => {
                    if let Some(link) = link {
                        self.break_conn(link);
                    }
                }
            }
        }
    }

    /// Recalls offers, unless their clients have claimed them.
    fn recall(&mut self, node: usize, slot_refs: &[SlotRef]) {
        let Some(shell) = self.nodes.get_mut(node) else { return };
        let Some(memory) = self.memories.get_mut(&shell.segment) else { return };
        let outcomes: Vec<_> =
            slot_refs.iter().map(|&slot_ref| (slot_ref, memory.recall(slot_ref))).collect();
        for (slot_ref, is_recalled) in &outcomes {
            let numbers = [shell.segment.0, slot_ref.stamp.0, u64::from(*is_recalled)];
            self.log.line(self.now, "recall", &numbers, &[]);
            self.coverage.hit(if *is_recalled { Point::OfferRecalled } else { Point::RecallFoundClaim });
        }
        if let Some(core) = shell.core.as_mut() {
            core.handle(CoreEvent::Recalled(outcomes));
        }
    }

    /// Allocates memory of a pool again, unless other programs have filled its file system.
    fn restore(&mut self, node: usize, extents: Vec<Extent>) {
        let is_allocated = !self.rng.percent(RESTORE_FAILURE_PERCENT);
        let Some(shell) = self.nodes.get_mut(node) else { return };
        self.log.line(self.now, "restore", &[shell.segment.0, u64::from(is_allocated)], &[]);
        self.coverage.hit(if is_allocated { Point::Restored } else { Point::NotRestored });
        if let Some(memory) = self.memories.get_mut(&shell.segment).filter(|_| is_allocated) {
            extents.iter().for_each(|it| memory.restore(*it));
        }
        if let Some(core) = shell.core.as_mut() {
            core.handle(CoreEvent::Restored(extents, is_allocated));
        }
    }

    /// Applies an effect to the control memory.
    fn store(&mut self, segment: SegmentId, effect: Effect) {
        self.log.note(|| format!("{segment} {effect:?}"));
        let node = self.nodes.iter().position(|it| it.segment == segment);
        let has_pool = node.is_some_and(|it| self.plan.has_pool(it));
        if let Effect::Slot { slot, record } = &effect {
            self.check_drained(node, *slot, record);
        }
        let Some(memory) = self.memories.get_mut(&segment) else { return };
        match effect {
            Effect::Slot { slot, record } => {
                let numbers = [segment.0, u64::from(slot.0), record.stamp.0, record.generation.counter];
                self.log.line(self.now, "slot", &numbers, &[]);
                match record.extents.len() {
                    0 | 1 => (),
                    2 => self.coverage.hit(Point::SeveralExtents),
                    _ => self.coverage.hit(Point::SpilledExtents),
                }
                if record.state.writer().is_some() {
                    self.oracle.reserved(memory, &record);
                }
                memory.write_slot(slot, record.clone());
                if record.state == SlotState::Committed {
                    self.oracle.committed(segment, memory, slot, &record);
                }
            }
            Effect::Withdraw { slot } | Effect::Park { slot } => {
                self.log.line(self.now, "withdraw", &[segment.0, u64::from(slot.0)], &[]);
                let slot_ref = memory.current(slot);
                slot_ref.into_iter().for_each(|it| self.oracle.withdrawn(segment, it, &mut self.coverage));
                let was_committed = slot_ref.filter(|it| memory.is_committed(*it));
                if matches!(effect, Effect::Park { .. }) {
                    memory.park(slot)
                } else {
                    memory.withdraw(slot)
                }
                if let Some(slot_ref) = was_committed {
                    self.oracle.copy_removed((segment, slot_ref), &self.memories, &mut self.coverage);
                }
            }
            Effect::Reclaim { slot } => {
                self.log.line(self.now, "reclaim", &[segment.0, u64::from(slot.0)], &[]);
                memory.reclaim(slot);
            }
            Effect::Heap { offset, bytes } => {
                self.log.line(self.now, "heap", &[segment.0, offset], &bytes);
                if !memory.write_heap(offset, &bytes) {
                    self.oracle.fail("memory", || format!("{segment} writes outside of its heap"));
                }
            }
            Effect::Withhold(extent) => {
                self.log.line(self.now, "withhold", &[segment.0, extent.offset, extent.len], &[]);
                self.coverage.hit(Point::Withheld);
                self.oracle.withheld(memory, extent);
                if has_pool {
                    memory.withhold(extent);
                }
            }
            _ => (),
        }
    }

    fn attach(&mut self, node: usize, client: usize, incarnation: u32) {
        let Some(segment) = self.nodes.get(node).map(|it| it.segment) else { return };
        let Some(it) = self.clients.get_mut(client) else { return };
        if !it.alive || it.incarnation != incarnation || it.leaving {
            return;
        }
        it.attached.insert(segment);
        it.watched_by.insert(segment);
        let id = it.id;
        self.log.line(self.now, "attach", &[id.0, segment.0], &[]);
        self.node_handles(node, CoreEvent::Mapped(id));
    }

    /// Whether the master knows every copy that live nodes hold or are about to hold, or has declared it
    /// lost.
    pub(crate) fn all_copies_are_known(&self) -> bool {
        // Even a reservation may become an object through messages that a dead master had sent.
        let used = |it: &Memory| it.slots().next().is_some();
        let is_used = |segment| self.memories.get(&segment).is_some_and(used);
        // A disk's copies exist whether its process is alive or not.
        let mut disks = self.nodes.iter().filter_map(|it| it.disk.as_ref());
        let of_disks = disks.all(|it| {
            let has_any = is_used(it.segment) || !it.log.appending.is_empty();
            self.oracle.knows(it.segment) || !has_any
        });
        let nodes = self.nodes.iter().filter(|it| it.core.is_some() || it.keeps_pool);
        let left = self.nodes.iter().filter_map(|it| it.left_pool);
        let mut nodes = nodes.map(|it| it.segment).chain(left);
        of_disks && nodes.all(|it| self.oracle.knows(it) || !is_used(it))
    }
}

/// Unique for each process of each node, so that the master's notices can be distinguished. One that does not
/// find its memory has the name of the process before.
pub(crate) fn node_name(node: usize, incarnation: u32) -> String {
    format!("n{node}.{incarnation}")
}

/// The name of a record's object, from the heap.
pub(crate) fn name_in_heap(memory: &Memory, record: &tiffin_node::SlotRecord) -> Option<keyspace::Name> {
    if let Some(name) = memory.name_on_disk(record) {
        return Some(name);
    }
    let (namespace, key) = memory.name(record)?;
    let namespace = keyspace::namespace(namespace)?;
    keyspace::Name::of(namespace, &tiffin_types::Key::new(key).ok()?)
}
