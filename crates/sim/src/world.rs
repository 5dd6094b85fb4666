//! One cluster in one thread: its parties, its network, its clock, and the queue of what will happen.
//!
//! The parties are the production state machines; this crate is their shell. **Invariant:** whatever happens
//! is in the queue first, and the queue is emptied in order: the same seed gives the same run.

use std::collections::BTreeMap;

use tiffin_core::{
    ClientId, ConnId, RequestId, SegmentId, Tick,
    master::{Master, Saved},
    message::{Reply, Request},
    sabotage::Sabotage,
};
use tiffin_sim_runner::Rng;

use crate::{
    client::{Client, ClientEvent},
    coverage::Coverage,
    faults::Fault,
    invariants::tier::Probe,
    log::Log,
    memory::Memory,
    network::{Conn, Way},
    node::{NodeEvent, NodeShell},
    oracle::{Oracle, Speaker},
    plan::Plan,
    transfer::{Transfer, TransferId},
};

/// Milliseconds since the world began.
pub(crate) type Time = u64;

/// Events of the first part, in which faults happen. Ticks do not count.
const EVENTS_MIN: u64 = 2_000;
/// Events after the faults end, by which everything must have come to rest.
pub(crate) const REST_EVENTS_MAX: u64 = 40_000;
/// How often the master looks at its clock.
const TICK_MS: u64 = 10;

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Party {
    Master,
    Node(usize),
    /// The disk of a node, in the same process.
    Disk(usize),
    Client(usize),
}

/// What will happen. Events of a party name its life: a dead process does nothing.
#[derive(Debug)]
pub(crate) enum Event {
    /// The next frame of a connection arrives.
    Pump(ConnId, Way),
    /// A node looks into its ledger.
    Look(ConnId),
    /// The calling side notices that a connection is closed.
    CallerCloses(ConnId),
    /// The serving side notices.
    ServerCloses(ConnId),
    Node(usize, u32, NodeEvent),
    Client(usize, u32, ClientEvent),
    /// Something goes wrong.
    Fault,
    /// The master's clock stood still, and goes on.
    ClockGoesOn,
    Tick,
    MasterStarts,
    /// This life of the master goes on with what it cannot do in one go.
    MasterWorks(u64),
    /// What this life of the master wanted to save is in its state folder.
    MasterSaved(u64),
    NodeStarts(usize),
    ClientStarts(usize),
}

/// Where the run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Work and faults.
    Storm,
    /// No faults, no new work: everything under way ends.
    Calm,
    /// The clients leave.
    Leaving,
}

/// The master's clock, which need not agree with the world's.
#[derive(Debug)]
pub(crate) struct Clock {
    pub(crate) ahead: i64,
    pub(crate) stands_at: Option<u64>,
    /// Since when it goes at its rate, and what it showed then.
    since: Time,
    showed: u64,
    percent: u64,
    /// The latest time that the master was told: for it, time never goes back.
    told: u64,
}

impl Default for Clock {
    fn default() -> Self {
        Self { ahead: 0, stands_at: None, since: 0, showed: 0, percent: 100, told: 0 }
    }
}

impl Clock {
    /// What it shows, unless it stands.
    fn shows(&self, now: Time) -> u64 {
        self.goes(now).saturating_add_signed(self.ahead)
    }

    /// What it would show if nobody had set it.
    fn goes(&self, now: Time) -> u64 {
        self.showed + (now - self.since) * self.percent / 100
    }

    /// From now on it goes at that rate.
    pub(crate) fn go_at(&mut self, now: Time, percent: u64) {
        (self.showed, self.since, self.percent) = (self.goes(now), now, percent);
    }

    /// It goes on from where it stood.
    pub(crate) fn go_on_from(&mut self, now: Time, stood: u64) {
        self.ahead = stood as i64 - self.goes(now) as i64;
    }

    /// It goes on from what the master was told last, if it shows less.
    pub(crate) fn be_set_right(&mut self, now: Time) {
        if self.shows(now) < self.told {
            self.go_on_from(now, self.told);
        }
    }
}

/// Everything.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) sabotage: Sabotage,
    pub(crate) rng: Rng,
    pub(crate) now: Time,
    pub(crate) clock: Clock,
    pub(crate) phase: Phase,
    pub(crate) events: u64,
    queue: BTreeMap<(Time, u64), Event>,
    next_event: u64,
    pub(crate) master: Option<Master>,
    pub(crate) epoch: u64,
    /// How many masters there were.
    pub(crate) master_life: u64,
    /// What is in the master's state folder.
    pub(crate) state: Saved,
    /// The newest version that is being written there.
    pub(crate) saving: Option<(u64, Saved)>,
    /// The master must be replaced by one of a greater epoch.
    pub(crate) superseded: Option<u64>,
    /// Requests that wait for reports of members.
    pub(crate) parked: BTreeMap<(ConnId, RequestId), (Request, Speaker)>,
    /// The master will go on with its work.
    pub(crate) working: bool,
    /// The newest connection of each client that the master has let in.
    pub(crate) heard: BTreeMap<ClientId, ConnId>,
    /// The connection through which each node registered last.
    pub(crate) registered: BTreeMap<SegmentId, ConnId>,
    pub(crate) nodes: Vec<NodeShell>,
    pub(crate) memories: BTreeMap<SegmentId, Memory>,
    pub(crate) clients: Vec<Client>,
    pub(crate) conns: BTreeMap<ConnId, Conn>,
    pub(crate) next_conn: u64,
    pub(crate) transfers: BTreeMap<TransferId, Transfer>,
    pub(crate) next_transfer: u64,
    pub(crate) next_client: u64,
    pub(crate) oracle: Oracle,
    pub(crate) coverage: Coverage,
    pub(crate) log: Log,
    /// What the master answered to the simulation itself.
    pub(crate) audit: Option<Reply>,
    /// The question that the master is about to answer.
    pub(crate) probe: Option<Probe>,
    /// It handles a put that may wait.
    pub(crate) is_patient: bool,
}

impl World {
    pub(crate) fn new(seed: u64, sabotage: Sabotage, keep_text: bool) -> Self {
        let mut rng = Rng::new(seed);
        let mut plan = Plan::draw(&mut rng);
        // Disks are drawn from elsewhere: a world without them is what it was before there were any.
        plan.draw_disks(&mut Rng::new(!seed));
        plan.draw_streams(&mut Rng::new(seed.rotate_left(32)));
        plan.draw_metadata(&mut Rng::new((!seed).rotate_left(32)));
        plan.draw_state(&mut Rng::new(seed.rotate_left(16)));
        let mut world = Self {
            sabotage,
            now: 0,
            clock: Clock::default(),
            phase: Phase::Storm,
            events: 0,
            queue: BTreeMap::new(),
            next_event: 0,
            master: None,
            epoch: 0,
            master_life: 0,
            state: Saved::default(),
            saving: None,
            superseded: None,
            parked: BTreeMap::new(),
            working: false,
            heard: BTreeMap::new(),
            registered: BTreeMap::new(),
            nodes: Vec::new(),
            memories: BTreeMap::new(),
            clients: Vec::new(),
            conns: BTreeMap::new(),
            next_conn: 0,
            transfers: BTreeMap::new(),
            next_transfer: 0,
            next_client: 0,
            oracle: Oracle::default(),
            coverage: Coverage::default(),
            log: Log::new(keep_text),
            audit: None,
            probe: None,
            is_patient: false,
            plan,
            rng,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        self.start_master();
        for index in 0..self.plan.nodes {
            self.nodes.push(NodeShell::absent());
            self.start_node(index);
        }
        for index in 0..self.plan.clients {
            self.clients.push(Client::absent(self.sabotage));
            self.start_client(index);
        }
        self.at(TICK_MS, Event::Tick);
        self.at(100, Event::Fault);
    }

    /// The whole run, until the end or the first broken promise.
    pub(crate) fn run(&mut self) {
        while self.events < EVENTS_MIN && self.step() {}
        self.come_to_rest();
    }

    /// Lets the next thing happen. `false` when something is broken, or nothing is left to happen.
    pub(crate) fn step(&mut self) -> bool {
        let Some(((time, _), event)) = self.queue.pop_first() else { return false };
        self.now = self.now.max(time);
        if !matches!(event, Event::Tick) {
            self.events += 1;
        }
        self.happen(event);
        self.check_books();
        self.check_membership();
        self.check_tier();
        self.oracle.violation.is_none()
    }

    /// Queues an event.
    pub(crate) fn at(&mut self, time: Time, event: Event) {
        self.next_event += 1;
        self.queue.insert((time.max(self.now), self.next_event), event);
    }

    pub(crate) fn node_at(&mut self, delay: u64, node: usize, event: NodeEvent) {
        let life = self.life(Party::Node(node));
        self.at(self.now + delay, Event::Node(node, life, event));
    }

    pub(crate) fn client_at(&mut self, delay: u64, client: usize, event: ClientEvent) {
        let life = self.life(Party::Client(client));
        self.at(self.now + delay, Event::Client(client, life, event));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Pump(conn, way) => self.pump(conn, way),
            Event::Look(conn) => self.look_at_ledger(conn),
            Event::CallerCloses(conn) => self.caller_closes(conn),
            Event::ServerCloses(conn) => self.server_closes(conn),
            Event::Node(node, life, event) => {
                let party = Party::Node(node);
                if !self.is_up(party) || self.life(party) != life {
                    return;
                }
                match self.stopped_until(party) {
                    until if until > self.now => self.at(until, Event::Node(node, life, event)),
                    _ => self.node_does(node, event),
                }
            }
            Event::Client(client, life, event) => {
                let party = Party::Client(client);
                if !self.is_up(party) || self.life(party) != life {
                    return;
                }
                match self.stopped_until(party) {
                    until if until > self.now => self.at(until, Event::Client(client, life, event)),
                    _ => self.client_does(client, event),
                }
            }
            Event::Fault => self.fault_happens(),
            Event::ClockGoesOn => self.clock_goes_on(),
            Event::Tick => {
                self.master_tick();
                self.at(self.now + TICK_MS, Event::Tick);
            }
            Event::MasterStarts => self.start_master(),
            Event::MasterWorks(life) => {
                if life == self.master_life {
                    self.master_works();
                }
            }
            Event::MasterSaved(life) => {
                if life == self.master_life {
                    self.master_saved();
                }
            }
            Event::NodeStarts(node) => self.start_node(node),
            Event::ClientStarts(client) => self.start_client(client),
        }
    }

    fn caller_closes(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if conn.is_still_heard() {
            return self.at(self.now + 1, Event::CallerCloses(id));
        }
        if !std::mem::replace(&mut conn.caller_open, false) {
            return;
        }
        let (caller, life) = (conn.caller, conn.caller_life);
        if !self.is_up(caller) || self.life(caller) != life {
            return;
        }
        match caller {
            // A stopped process finds out when it goes on.
            _ if self.stopped_until(caller) > self.now => {
                if let Some(conn) = self.conns.get_mut(&id) {
                    conn.caller_open = true;
                }
                self.at(self.stopped_until(caller), Event::CallerCloses(id));
            }
            Party::Node(node) => self.link_lost(node, id),
            Party::Disk(node) => self.disk_link_lost(node, id),
            Party::Client(client) => self.conn_lost(client, id),
            Party::Master => (),
        }
    }

    fn server_closes(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get(&id) else { return };
        let (server, life) = (conn.server, conn.server_life);
        if self.stopped_until(server) > self.now {
            return self.at(self.stopped_until(server), Event::ServerCloses(id));
        }
        let same = self.is_up(server) && self.life(server) == life;
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let was_open = std::mem::replace(&mut conn.server_open, false);
        if !(was_open && conn.greeted && same) {
            return;
        }
        match server {
            Party::Master => self.master_closed(id),
            Party::Node(node) => self.node_closed(node, id),
            Party::Client(_) | Party::Disk(_) => (),
        }
    }

    pub(crate) fn is_up(&self, party: Party) -> bool {
        match party {
            Party::Master => self.master.is_some(),
            Party::Node(node) | Party::Disk(node) => self.nodes.get(node).is_some_and(|it| it.core.is_some()),
            Party::Client(client) => self.clients.get(client).is_some_and(|it| it.alive),
        }
    }

    pub(crate) fn life(&self, party: Party) -> u32 {
        match party {
            Party::Master => self.master_life as u32,
            Party::Node(node) | Party::Disk(node) => self.nodes.get(node).map_or(0, |it| it.life),
            Party::Client(client) => self.clients.get(client).map_or(0, |it| it.life),
        }
    }

    pub(crate) fn stopped_until(&self, party: Party) -> Time {
        match party {
            Party::Master => 0,
            Party::Node(node) | Party::Disk(node) => self.nodes.get(node).map_or(0, |it| it.stopped_until),
            Party::Client(client) => self.clients.get(client).map_or(0, |it| it.stopped_until),
        }
    }

    /// What the master's clock shows, as the master sees it.
    pub(crate) fn tell_time(&mut self) -> Tick {
        self.clock.told = self.told_time().0;
        Tick(self.clock.told)
    }

    /// What it would be told now.
    pub(crate) fn told_time(&self) -> Tick {
        Tick(self.clock.told.max(self.master_now().0))
    }

    /// What the master's clock shows.
    pub(crate) fn master_now(&self) -> Tick {
        Tick(self.clock.stands_at.unwrap_or_else(|| self.clock.shows(self.now)))
    }

    /// The node that lives in a segment now.
    pub(crate) fn node_of(&self, segment: SegmentId) -> Option<usize> {
        self.nodes.iter().position(|it| it.segment == segment && it.core.is_some())
    }

    pub(crate) fn fault_rate(&self, fault: Fault) -> u64 {
        self.plan.faults.get(fault as usize).copied().unwrap_or(0)
    }
}
