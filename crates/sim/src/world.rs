//! One cluster in one thread: its parties, network, clock, and event queue.
//!
//! The parties are the production state machines; this crate is their shell. **Invariant:** every event goes
//! through the queue, which is processed in order: the same seed gives the same run.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_core::master::{Event as MasterEvent, Master, Saved, SavedPolicy};
use tiffin_sim_runner::Rng;
use tiffin_types::{
    ClientId, ClusterId, ConnId, RequestId, SegmentId, SlotRef, Tick,
    message::{Policy, Reply, Request},
    mutant::Mutant,
};

use crate::{
    answers::Answers,
    client::{Client, ClientEvent},
    coverage::{Coverage, Point},
    draining::{Drains, MOVERS},
    faults::Fault,
    fetch::Fetching,
    foreigner::Foreigner,
    invariants::tier::Probe,
    keyspace,
    memory::Memory,
    network::{Conn, Way},
    node::{NodeEvent, NodeShell},
    oracle::{Oracle, Sender},
    plan::Plan,
    run_log::RunLog,
    standby::{Standby, StandbyEvent},
    store::{Op, Store},
    transfer::{Transfer, TransferId},
};

/// Milliseconds since the start.
pub(crate) type Time = u64;

/// Minimum number of events with faults. Ticks do not count.
const EVENTS_MIN: u64 = 2_000;
/// Maximum number of events after the faults until everything has ended.
pub(crate) const END_EVENTS_MAX: u64 = 40_000;
/// Interval of the master's timer.
const TICK_MS: u64 = 10;

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Party {
    Master,
    Node(usize),
    /// The disk of a node, in the same process.
    Disk(usize),
    Client(usize),
    /// A node of another cluster.
    Foreigner,
    /// One of two masters.
    Standby(usize),
}

/// An event. Events of a party name its incarnation: a dead process does nothing.
#[derive(Debug)]
pub(crate) enum Event {
    /// The next frame of a connection arrives.
    Deliver(ConnId, Way),
    /// A node reads its ledger.
    ReadLedger(ConnId),
    /// The caller notices that a connection is closed.
    CallerCloses(ConnId),
    /// The server notices.
    ServerCloses(ConnId),
    Node(usize, u32, NodeEvent),
    Client(usize, u32, ClientEvent),
    /// A fault occurs.
    Fault,
    /// The master's clock continues.
    ClockResumes,
    Tick,
    MasterStarts,
    /// This process of the master continues its work.
    MasterWorks(u64),
    /// The state of this process of the master is saved.
    MasterSaved(u64),
    NodeStarts(usize),
    /// This process of a node, which did not find its memory, ends.
    StrayEnds(usize, u32),
    /// The kernel tells this incarnation of the master that the process behind a connection has ended.
    NodeEnded(u64, ConnId),
    ClientStarts(usize),
    /// A node of another cluster connects.
    ForeignerLinks,
    /// The operator starts or cancels a drain job.
    Operate,
    /// The operator admits the members of another cluster.
    Admit(ClusterId),
    Standby(usize, u32, StandbyEvent),
    StandbyStarts(usize),
    /// The store applies a request of this process in this term, sent at this time if it is answered.
    StoreApplies((usize, u32), i64, Op, Option<Time>),
    /// A caller has learned that another master leads.
    LeavesMaster(ConnId),
}

/// The phase of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Work and faults.
    Faults,
    /// No faults, no new operations: everything in progress ends.
    Calm,
    /// The clients leave.
    Leaving,
}

/// The master's clock, which may differ from the simulated time.
#[derive(Debug)]
pub(crate) struct Clock {
    pub(crate) ahead: i64,
    pub(crate) stopped_at: Option<u64>,
    /// Start of its current rate, and its reading then.
    since: Time,
    showed: u64,
    percent: u64,
    /// The latest time that the master has seen: for it, time never goes back.
    last_reading: u64,
}

impl Default for Clock {
    fn default() -> Self {
        Self { ahead: 0, stopped_at: None, since: 0, showed: 0, percent: 100, last_reading: 0 }
    }
}

impl Clock {
    /// Its reading, unless it is stopped.
    fn reading(&self, now: Time) -> u64 {
        self.elapsed(now).saturating_add_signed(self.ahead)
    }

    /// Its reading without jumps.
    fn elapsed(&self, now: Time) -> u64 {
        self.showed + (now - self.since) * self.percent / 100
    }

    /// Changes its rate.
    pub(crate) fn set_rate(&mut self, now: Time, percent: u64) {
        (self.showed, self.since, self.percent) = (self.elapsed(now), now, percent);
    }

    /// Continues from where it stopped.
    pub(crate) fn resume_from(&mut self, now: Time, stood: u64) {
        self.ahead = stood as i64 - self.elapsed(now) as i64;
    }

    /// Continues from the last time that the master has seen, if it is behind.
    pub(crate) fn catch_up(&mut self, now: Time) {
        if self.reading(now) < self.last_reading {
            self.resume_from(now, self.last_reading);
        }
    }
}

/// The whole simulation.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) mutant: Mutant,
    pub(crate) rng: Rng,
    pub(crate) now: Time,
    pub(crate) clock: Clock,
    pub(crate) phase: Phase,
    pub(crate) events: u64,
    queue: BTreeMap<(Time, u64), Event>,
    next_event: u64,
    pub(crate) master: Option<Master>,
    pub(crate) epoch: u64,
    /// Number of starts of the master.
    pub(crate) master_incarnation: u64,
    /// The content of the master's state folder.
    pub(crate) state: Saved,
    /// The newest version that is being written there.
    pub(crate) saving: Option<(u64, Saved)>,
    /// The master must be replaced by one with a greater epoch.
    pub(crate) superseded: Option<u64>,
    /// Requests that wait for reports of members.
    pub(crate) parked: BTreeMap<(ConnId, RequestId), (Request, Sender)>,
    /// The master has work scheduled.
    pub(crate) working: bool,
    /// Departures of members that began at this event of the master.
    pub(crate) departing: usize,
    /// The newest accepted connection of each client.
    pub(crate) newest_conns: BTreeMap<ClientId, ConnId>,
    /// The connection through which each node registered last.
    pub(crate) registered: BTreeMap<SegmentId, ConnId>,
    /// Members that have been away for too long, and have not registered since.
    pub(crate) given_up: BTreeSet<SegmentId>,
    /// The masters and their store, in worlds with a standby.
    pub(crate) standbys: Vec<Standby>,
    pub(crate) store: Store,
    /// When the last late request is applied to the store.
    pub(crate) last_store_request: Time,
    pub(crate) answers: Answers,
    pub(crate) nodes: Vec<NodeShell>,
    pub(crate) memories: BTreeMap<SegmentId, Memory>,
    /// The master's members after the last event, where two may have one name.
    pub(crate) members: BTreeSet<SegmentId>,
    pub(crate) clients: Vec<Client>,
    pub(crate) foreigner: Option<Box<Foreigner>>,
    pub(crate) drains: Drains,
    pub(crate) conns: BTreeMap<ConnId, Conn>,
    pub(crate) next_conn: u64,
    pub(crate) transfers: BTreeMap<TransferId, Transfer>,
    pub(crate) next_transfer: u64,
    /// Copies between members, by the node that reads and its reservation.
    pub(crate) fetching: BTreeMap<(usize, SlotRef), Fetching>,
    pub(crate) next_client: u64,
    pub(crate) oracle: Oracle,
    pub(crate) coverage: Coverage,
    pub(crate) log: RunLog,
    /// The master's answer to the simulation itself.
    pub(crate) audit: Option<Reply>,
    /// The probe that the master is handling.
    pub(crate) probe: Option<Probe>,
    /// The master is handling a put that may wait.
    pub(crate) put_may_wait: bool,
}

/// What the operator has set before the world begins.
fn first_state(plan: &Plan) -> Saved {
    let guaranteed = Some(plan.guaranteed()).filter(|it| *it > 0);
    let policy = SavedPolicy {
        namespace: keyspace::namespace_name(1).to_owned(),
        policy: Policy { guaranteed, ..Policy::default() },
    };
    Saved { policies: guaranteed.map(|_| policy).into_iter().collect(), ..Saved::default() }
}

impl World {
    pub(crate) fn new(seed: u64, mutant: Mutant, keep_text: bool) -> Self {
        let mut rng = Rng::new(seed);
        let mut plan = Plan::draw(&mut rng);
        // Disks use their own random numbers: worlds without disks keep their runs.
        plan.draw_disks(&mut Rng::new(!seed));
        plan.draw_streams(&mut Rng::new(seed.rotate_left(32)));
        plan.draw_metadata(&mut Rng::new((!seed).rotate_left(32)));
        plan.draw_state(&mut Rng::new(seed.rotate_left(16)));
        plan.draw_copies(&mut Rng::new((!seed).rotate_left(16)));
        plan.draw_pools(&mut Rng::new((!seed).rotate_left(24)));
        plan.draw_strays(&mut Rng::new(seed.rotate_left(8)));
        plan.draw_replaces(&mut Rng::new(seed.rotate_left(40)));
        plan.draw_ttls(&mut Rng::new((!seed).rotate_left(40)));
        plan.draw_foreigner(&mut Rng::new(seed.rotate_left(24)));
        plan.draw_standby(&mut Rng::new((!seed).rotate_left(40)));
        plan.draw_hostility(&mut Rng::new(seed.rotate_left(48)));
        plan.draw_successors(&mut Rng::new((!seed).rotate_left(48)));
        plan.draw_nodes(&mut Rng::new((!seed).rotate_left(56)));
        plan.draw_drains(&mut Rng::new(seed.rotate_left(56)));
        let state = first_state(&plan);
        let mut world = Self {
            mutant,
            now: 0,
            clock: Clock::default(),
            phase: Phase::Faults,
            events: 0,
            queue: BTreeMap::new(),
            next_event: 0,
            master: None,
            epoch: 0,
            master_incarnation: 0,
            state,
            saving: None,
            superseded: None,
            parked: BTreeMap::new(),
            working: false,
            departing: 0,
            newest_conns: BTreeMap::new(),
            registered: BTreeMap::new(),
            given_up: BTreeSet::new(),
            standbys: Vec::new(),
            store: Store::default(),
            last_store_request: 0,
            answers: Answers::default(),
            nodes: Vec::new(),
            memories: BTreeMap::new(),
            members: BTreeSet::new(),
            clients: Vec::new(),
            foreigner: None,
            drains: Drains::default(),
            conns: BTreeMap::new(),
            next_conn: 0,
            transfers: BTreeMap::new(),
            next_transfer: 0,
            fetching: BTreeMap::new(),
            next_client: 0,
            oracle: Oracle::default(),
            coverage: Coverage::default(),
            log: RunLog::new(keep_text),
            audit: None,
            probe: None,
            put_may_wait: false,
            plan,
            rng,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        if self.plan.has_standby {
            self.start_standbys();
        } else {
            self.start_master();
        }
        if self.plan.nodes > 3 {
            self.coverage.hit(Point::ManyNodes);
        }
        for index in 0..self.plan.nodes {
            self.nodes.push(NodeShell::absent());
            self.start_node(index);
        }
        let movers = if self.plan.has_drains { MOVERS } else { 0 };
        for index in 0..self.plan.clients + movers {
            self.clients.push(Client::absent(self.mutant));
            self.start_client(index);
        }
        if self.plan.has_foreigner {
            self.start_foreigner();
        }
        self.at(TICK_MS, Event::Tick);
        self.at(100, Event::Fault);
        if self.plan.has_drains {
            self.at(100, Event::Operate);
        }
    }

    /// The whole run, until the end or the first violation.
    pub(crate) fn run(&mut self) {
        while self.events < EVENTS_MIN && self.step() {}
        self.end_faults_and_check();
    }

    /// Handles the next event. `false` after a violation, or when no event is left.
    pub(crate) fn step(&mut self) -> bool {
        let Some(((time, _), event)) = self.queue.pop_first() else { return false };
        self.now = self.now.max(time);
        if !matches!(event, Event::Tick) {
            self.events += 1;
        }
        self.handle_event(event);
        self.check_books();
        self.check_guaranteed();
        self.note_shares();
        self.check_membership();
        self.check_tier();
        self.check_foreigner();
        self.oracle.violation.is_none()
    }

    /// Queues an event.
    pub(crate) fn at(&mut self, time: Time, event: Event) {
        self.next_event += 1;
        self.queue.insert((time.max(self.now), self.next_event), event);
    }

    pub(crate) fn node_at(&mut self, delay: u64, node: usize, event: NodeEvent) {
        let incarnation = self.incarnation(Party::Node(node));
        self.at(self.now + delay, Event::Node(node, incarnation, event));
    }

    pub(crate) fn client_at(&mut self, delay: u64, client: usize, event: ClientEvent) {
        let incarnation = self.incarnation(Party::Client(client));
        self.at(self.now + delay, Event::Client(client, incarnation, event));
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Deliver(conn, way) => self.deliver_next(conn, way),
            Event::ReadLedger(conn) => self.read_ledger(conn),
            Event::CallerCloses(conn) => self.caller_closes(conn),
            Event::ServerCloses(conn) => self.server_closes(conn),
            Event::Node(node, incarnation, event) => {
                let party = Party::Node(node);
                if !self.is_up(party) || self.incarnation(party) != incarnation {
                    return;
                }
                match self.stopped_until(party) {
                    until if until > self.now => self.at(until, Event::Node(node, incarnation, event)),
                    _ => self.node_event(node, event),
                }
            }
            Event::Client(client, incarnation, event) => {
                let party = Party::Client(client);
                if !self.is_up(party) || self.incarnation(party) != incarnation {
                    return;
                }
                match self.stopped_until(party) {
                    until if until > self.now => self.at(until, Event::Client(client, incarnation, event)),
                    _ => self.client_event(client, event),
                }
            }
            Event::Fault => self.next_fault(),
            Event::Operate => self.operate(),
            Event::ClockResumes => self.clock_resumes(),
            Event::Tick => {
                self.master_tick();
                if self.phase != Phase::Faults {
                    self.forget_the_dead();
                }
                self.at(self.now + TICK_MS, Event::Tick);
            }
            Event::MasterStarts => self.start_master(),
            Event::MasterWorks(incarnation) => {
                if incarnation == self.master_incarnation {
                    self.master_works();
                }
            }
            Event::MasterSaved(incarnation) => {
                if incarnation == self.master_incarnation {
                    self.master_saved();
                }
            }
            Event::NodeStarts(node) => self.start_node(node),
            Event::StrayEnds(node, incarnation) => {
                if incarnation == self.incarnation(Party::Node(node)) && self.phase == Phase::Faults {
                    self.crash_node(node, 20);
                }
            }
            Event::NodeEnded(incarnation, conn) => match self.conns.get(&conn).map(|it| it.server) {
                Some(Party::Standby(master)) => self.standby_learns(master, MasterEvent::Ended(conn)),
                _ if incarnation == self.master_incarnation => self.node_ended(conn),
                _ => (),
            },
            Event::ClientStarts(client) => self.start_client(client),
            Event::ForeignerLinks => self.foreigner_links(),
            Event::Admit(cluster) => self.admit_cluster(cluster),
            Event::Standby(master, incarnation, event) => self.standby_meets(master, incarnation, event),
            Event::StandbyStarts(master) => self.start_standby(master),
            Event::StoreApplies(from, token, op, sent) => self.store_applies(from, token, op, sent),
            Event::LeavesMaster(conn) => self.leave_master(conn),
        }
    }

    fn caller_closes(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.has_unread() {
            return self.at(self.now + 1, Event::CallerCloses(id));
        }
        if !std::mem::replace(&mut conn.caller_open, false) {
            return;
        }
        let (caller, incarnation) = (conn.caller, conn.caller_incarnation);
        if !self.is_up(caller) || self.incarnation(caller) != incarnation {
            return;
        }
        match caller {
            // A stopped process notices when it continues.
            _ if self.stopped_until(caller) > self.now => {
                if let Some(conn) = self.conns.get_mut(&id) {
                    conn.caller_open = true;
                }
                self.at(self.stopped_until(caller), Event::CallerCloses(id));
            }
            Party::Node(node) => self.link_lost(node, id),
            Party::Disk(node) => self.disk_link_lost(node, id),
            Party::Client(client) => self.conn_lost(client, id),
            Party::Foreigner => self.foreigner_lost_link(id),
            Party::Master | Party::Standby(_) => (),
        }
    }

    fn server_closes(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(&id) else { return };
        let (server, incarnation) = (conn.server, conn.server_incarnation);
        if self.stopped_until(server) > self.now {
            return self.at(self.stopped_until(server), Event::ServerCloses(id));
        }
        let same = self.is_up(server) && self.incarnation(server) == incarnation;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let was_open = std::mem::replace(&mut conn.server_open, false);
        if !(was_open && conn.greeted && same) {
            return;
        }
        match server {
            Party::Master => self.master_closed(id),
            Party::Standby(master) => self.standby_learns(master, MasterEvent::Closed(id)),
            Party::Node(node) => self.node_closed(node, id),
            Party::Client(_) | Party::Disk(_) | Party::Foreigner => (),
        }
    }

    pub(crate) fn is_up(&self, party: Party) -> bool {
        match party {
            Party::Master => self.master.is_some(),
            Party::Standby(master) => self.standbys.get(master).is_some_and(Standby::leads),
            Party::Foreigner => self.foreigner.is_some(),
            Party::Node(node) | Party::Disk(node) => self.nodes.get(node).is_some_and(|it| it.core.is_some()),
            Party::Client(client) => self.clients.get(client).is_some_and(|it| it.alive),
        }
    }

    pub(crate) fn incarnation(&self, party: Party) -> u32 {
        match party {
            Party::Master => self.master_incarnation as u32,
            Party::Standby(master) => self.standbys.get(master).map_or(0, |it| it.incarnation),
            Party::Foreigner => 0,
            Party::Node(node) | Party::Disk(node) => self.nodes.get(node).map_or(0, |it| it.incarnation),
            Party::Client(client) => self.clients.get(client).map_or(0, |it| it.incarnation),
        }
    }

    pub(crate) fn stopped_until(&self, party: Party) -> Time {
        match party {
            Party::Master | Party::Foreigner => 0,
            Party::Standby(master) => self.standbys.get(master).map_or(0, |it| it.stopped_until),
            Party::Node(node) | Party::Disk(node) => self.nodes.get(node).map_or(0, |it| it.stopped_until),
            Party::Client(client) => self.clients.get(client).map_or(0, |it| it.stopped_until),
        }
    }

    /// The time that the master sees now; recorded as its latest.
    pub(crate) fn read_clock(&mut self) -> Tick {
        self.clock.last_reading = self.peek_clock().0;
        Tick(self.clock.last_reading)
    }

    /// The time that the master would see now.
    pub(crate) fn peek_clock(&self) -> Tick {
        Tick(self.clock.last_reading.max(self.master_now().0))
    }

    /// The reading of the master's clock.
    pub(crate) fn master_now(&self) -> Tick {
        Tick(self.clock.stopped_at.unwrap_or_else(|| self.clock.reading(self.now)))
    }

    /// The live node with that segment.
    pub(crate) fn node_of(&self, segment: SegmentId) -> Option<usize> {
        self.nodes.iter().position(|it| it.segment == segment && it.core.is_some())
    }

    pub(crate) fn fault_rate(&self, fault: Fault) -> u64 {
        self.plan.faults.get(fault as usize).copied().unwrap_or(0)
    }
}
