//! The shells of two masters, one of which leads, in worlds with a standby.
//!
//! `core::election` decides when a master campaigns and steps down, and `core::master` which answers wait for
//! a confirmation. A leader that is stopped or cut off from the store is replaced, and goes on as if it led
//! until it learns of that: its messages reach nodes and clients late. The answers that clients get are
//! checked by their history ([`crate::answers`]).

use tiffin_core::{
    election::{Election, ElectionConfig, Wrote, after_write},
    master::{Departure, Effect, Event as MasterEvent, Master, MasterConfig, Notice, Saved},
};
use tiffin_proto::Incoming;
use tiffin_types::{
    ConnId, Tick,
    message::{ClientToMaster, Hello, Reply, Request, VERSION_MAJOR, VERSION_MINOR, Welcome},
};

use crate::{
    coverage::Point,
    master::WALL_MS,
    network::Way,
    store::{Answer, Op},
    world::{Event, Party, Phase, Time, World},
};

/// Number of masters.
pub(crate) const MASTERS: usize = 2;
/// How often a leader prolongs its lease, and a standby looks at it.
const BEAT_MS: u64 = 25;
/// After this time without an answer a request to the store is given up. It may still be applied.
const STORE_TIME_MAX: u64 = 200;
/// So long after the last fault of a master, its leader stays.
const REST_MS: u64 = 1000;

/// A master's own event.
#[derive(Debug)]
pub(crate) enum StandbyEvent {
    Beat,
    Work,
    /// The store answers a request of the term with this token; 0 for a standby.
    Answered(i64, Answer),
    /// A request of that term was not answered in time.
    Unanswered(i64, Op),
}

/// The time in which a master leads.
struct Term {
    token: i64,
    epoch: u64,
    /// The revision of the state that it knows.
    head: i64,
    /// The newest version that is not being written yet.
    unsaved: Option<u64>,
    is_writing: bool,
    /// The newest round that is not being confirmed yet.
    unconfirmed: Option<u64>,
    is_confirming: bool,
    is_working: bool,
}

/// One master.
pub(crate) struct Standby {
    pub(crate) is_alive: bool,
    pub(crate) incarnation: u32,
    pub(crate) stopped_until: Time,
    /// It is stopped for this time as soon as it asks for a confirmation.
    stops_asking_ms: Option<u64>,
    /// The network between it and the store is broken until then.
    cut_until: Time,
    election: Election,
    core: Option<Master>,
    term: Option<Term>,
}

impl Standby {
    fn absent(give_up_ms: u64) -> Self {
        let config = ElectionConfig { silence_s: 1, give_up_ms };
        Self {
            is_alive: false,
            incarnation: 0,
            stopped_until: 0,
            stops_asking_ms: None,
            cut_until: 0,
            election: Election::new(config),
            core: None,
            term: None,
        }
    }

    /// Whether it leads, as far as it knows: otherwise it refuses connections.
    pub(crate) fn leads(&self) -> bool {
        self.is_alive && self.term.is_some()
    }
}

impl World {
    pub(crate) fn has_standby(&self) -> bool {
        self.plan.has_standby
    }

    /// The leader, if there is one: for checks when all is calm.
    pub(crate) fn leader(&self) -> Option<&Master> {
        if !self.has_standby() {
            return self.master.as_ref();
        }
        self.standbys.get(self.leading()?)?.core.as_ref()
    }

    /// The leader's clock.
    pub(crate) fn leader_clock(&self) -> Tick {
        if self.has_standby() { Tick(self.now) } else { self.peek_clock() }
    }

    /// The master whose record is in the store.
    fn leading(&self) -> Option<usize> {
        let is_it =
            |it: &Standby| it.leads() && it.term.as_ref().is_some_and(|it| it.token == self.store.token);
        self.standbys.iter().position(is_it).filter(|it| self.stopped_until(Party::Standby(*it)) <= self.now)
    }

    /// Whether the faults of masters are so long over that no other one takes over.
    pub(crate) fn masters_rest(&self) -> bool {
        let until = self.standbys.iter().map(|it| it.cut_until.max(it.stopped_until)).max().unwrap_or(0);
        let until = until.max(self.last_store_request);
        !self.has_standby() || until + self.plan.give_up_ms + REST_MS <= self.now
    }

    /// The master that a node or client connects to, if it has served or known this epoch.
    pub(crate) fn choose_master(&mut self, known: u64) -> Party {
        if !self.has_standby() {
            return Party::Master;
        }
        let is_later = |it: &Standby| it.leads() && it.term.as_ref().is_some_and(|it| it.epoch >= known);
        let all = self.standbys.iter().enumerate().filter(|(_, it)| is_later(it)).map(|it| it.0);
        let all: Vec<_> = all.collect();
        // A standby refuses.
        Party::Standby(self.rng.pick(&all).copied().unwrap_or(0))
    }

    pub(crate) fn start_standbys(&mut self) {
        for master in 0..MASTERS {
            self.standbys.push(Standby::absent(self.plan.give_up_ms));
            self.start_standby(master);
        }
    }

    pub(crate) fn start_standby(&mut self, master: usize) {
        let Some(it) = self.standbys.get_mut(master).filter(|it| !it.is_alive) else { return };
        let (incarnation, absent) = (it.incarnation + 1, Standby::absent(self.plan.give_up_ms));
        *it = Standby { is_alive: true, incarnation, cut_until: it.cut_until, ..absent };
        self.log.line(self.now, "standby starts", &[master as u64], &[]);
        self.standby_at(master, 1 + master as u64, StandbyEvent::Beat);
    }

    pub(crate) fn crash_standby(&mut self, master: usize, down_ms: u64) {
        let Some(it) = self.standbys.get_mut(master).filter(|it| it.is_alive) else { return };
        self.log.line(self.now, "standby dies", &[master as u64], &[]);
        (it.is_alive, it.core, it.term) = (false, None, None);
        self.close_all_of(Party::Standby(master));
        self.at(self.now + down_ms, Event::StandbyStarts(master));
    }

    /// A leader is stopped, and continues later. Some are stopped while a confirmation is under way, which
    /// they read when they continue.
    pub(crate) fn stop_standby(&mut self, master: usize) {
        let (stop_ms, is_asking) =
            (self.rng.between(100, self.plan.master_stop_ms_max), self.rng.percent(50));
        let Some(it) = self.standbys.get_mut(master).filter(|it| it.is_alive) else { return };
        self.coverage.hit(Point::FaultMasterStop);
        if is_asking {
            it.stops_asking_ms = Some(stop_ms);
        } else {
            it.stopped_until = it.stopped_until.max(self.now + stop_ms);
        }
    }

    /// A master cannot reach the store for a while.
    pub(crate) fn cut_standby(&mut self, master: usize) {
        let until = self.now + self.rng.between(100, 900);
        let Some(it) = self.standbys.get_mut(master).filter(|it| it.is_alive) else { return };
        it.cut_until = it.cut_until.max(until);
        self.coverage.hit(Point::FaultStoreCut);
    }

    fn standby_at(&mut self, master: usize, delay: u64, event: StandbyEvent) {
        let incarnation = self.incarnation(Party::Standby(master));
        self.at(self.now + delay, Event::Standby(master, incarnation, event));
    }

    /// An event of a master that is alive. A stopped one meets it later.
    pub(crate) fn standby_meets(&mut self, master: usize, incarnation: u32, event: StandbyEvent) {
        let is_it = |it: &&Standby| it.is_alive && it.incarnation == incarnation;
        let Some(it) = self.standbys.get(master).filter(is_it) else { return };
        let until = it.stopped_until;
        if until <= self.now {
            return self.standby_event(master, event);
        }
        // A process that continues reads its sockets in any order.
        let later = if self.rng.percent(50) { self.rng.below(40) } else { 0 };
        self.at(until + later, Event::Standby(master, incarnation, event));
    }

    fn standby_event(&mut self, master: usize, event: StandbyEvent) {
        let token = self.token_of(master);
        match event {
            StandbyEvent::Beat => {
                self.standby_at(master, BEAT_MS, StandbyEvent::Beat);
                let now = Tick(self.now);
                let Some(it) = self.standbys.get_mut(master) else { return };
                if it.election.handle_timeout(now).is_some() {
                    self.coverage.hit(Point::LeaderGaveUp);
                    return self.step_down(master);
                }
                self.ask_store(master, if token == 0 { Op::Observe } else { Op::Keep(token) });
                if token != 0 {
                    self.standby_handles(master, None);
                }
            }
            StandbyEvent::Work => {
                let now = Tick(self.now);
                let Some(it) = self.standbys.get_mut(master) else { return };
                it.term.iter_mut().for_each(|it| it.is_working = false);
                if let Some(core) = &mut it.core {
                    core.work(now);
                    self.drain_standby(master);
                }
            }
            StandbyEvent::Answered(of, answer) if of == token => self.store_answered(master, answer),
            StandbyEvent::Unanswered(of, op) if of == token => self.store_unanswered(master, &op),
            StandbyEvent::Answered(..) | StandbyEvent::Unanswered(..) => (),
        }
    }

    fn token_of(&self, master: usize) -> i64 {
        self.standbys.get(master).and_then(|it| it.term.as_ref()).map_or(0, |it| it.token)
    }

    /// Sends a request to the store. It may be lost, applied late, or its answer may be lost.
    fn ask_store(&mut self, master: usize, op: Op) {
        let (token, delay) = (self.token_of(master), self.rng.delay(2, 20));
        let Some(it) = self.standbys.get(master) else { return };
        let (is_cut, who) = (it.cut_until > self.now, (master, it.incarnation));
        let is_late = self.rng.once_in(30) && self.phase == Phase::Faults;
        if is_cut || is_late {
            self.standby_at(master, STORE_TIME_MAX, StandbyEvent::Unanswered(token, op.clone()));
        }
        if is_late {
            self.coverage.hit(Point::StoreLate);
            let late = self.now + STORE_TIME_MAX + self.rng.below(400);
            self.last_store_request = self.last_store_request.max(late);
            return self.at(late, Event::StoreApplies(who, token, op, None));
        }
        if is_cut && self.rng.percent(50) {
            return;
        }
        let sent = (!is_cut).then_some(self.now);
        self.at(self.now + delay, Event::StoreApplies(who, token, op, sent));
    }

    /// The store applies a request, and answers it if it was sent at a time when the network worked.
    pub(crate) fn store_applies(&mut self, who: (usize, u32), token: i64, op: Op, sent: Option<Time>) {
        self.log.note(|| format!("{who:?} {op:?}"));
        let before = (self.store.token, self.store.epoch);
        let answer = self.store.apply(self.now, who, op, sent.unwrap_or(self.now));
        self.log.line(self.now, "store", &[who.0 as u64, self.store.token as u64, self.store.epoch], &[]);
        if self.store.epoch < before.1 || (self.store.token != before.0 && self.store.epoch == before.1) {
            self.oracle
                .fail("leader", || format!("the epoch went from {} to {}", before.1, self.store.epoch));
        }
        if sent.is_some() {
            let is_slow = self.rng.once_in(15) && self.phase == Phase::Faults;
            let delay = if is_slow { self.rng.below(STORE_TIME_MAX - 40) } else { self.rng.delay(2, 20) };
            let event = StandbyEvent::Answered(token, answer);
            self.at(self.now + delay, Event::Standby(who.0, who.1, event));
        }
    }

    fn store_answered(&mut self, master: usize, answer: Answer) {
        let now = self.now;
        let Some(it) = self.standbys.get_mut(master) else { return };
        match answer {
            Answer::Observed(observed) => {
                if let Some(token) = it.election.campaigns(&observed) {
                    self.ask_store(master, Op::Campaign(token));
                }
            }
            Answer::Won(token, epoch, saved, head) => {
                it.election.won(Tick(now), token);
                self.begin_term(master, (token, epoch, head), Saved { epoch, ..*saved });
            }
            Answer::LostCampaign => (),
            Answer::Kept(sent, leads) => {
                if it.election.confirmed(Tick(sent), leads).is_some() {
                    self.coverage.hit(Point::LeaderReplaced);
                    self.step_down(master);
                }
            }
            Answer::Confirmed(round, leads) => {
                let Some(term) = &mut it.term else { return };
                term.is_confirming = false;
                // Otherwise the answers are never sent: the core is about to be replaced.
                if leads {
                    self.standby_handles(master, Some(MasterEvent::Confirmed(round)));
                } else {
                    self.coverage.hit(Point::AnswerNotConfirmed);
                }
                self.begin_confirm(master);
            }
            Answer::Wrote(version, outcome) => {
                let mutant = self.mutant;
                let Some(term) = &mut it.term else { return };
                match after_write(&outcome, term.token, mutant) {
                    Wrote::Done(head) => {
                        (term.head, term.is_writing) = (head, false);
                        self.standby_handles(master, Some(MasterEvent::Persisted(version)));
                        self.begin_write(master);
                    }
                    Wrote::Again(head) => {
                        (term.head, term.is_writing) = (head, false);
                        term.unsaved = Some(term.unsaved.map_or(version, |it| it.max(version)));
                        self.begin_write(master);
                    }
                    Wrote::Replaced => self.coverage.hit(Point::WriteRefused),
                }
            }
            Answer::Advanced(None) => (),
            Answer::Advanced(Some((token, epoch))) => {
                let saved = it.core.as_ref().map(Master::saved).unwrap_or_default();
                let head = it.term.as_ref().map_or(0, |it| it.head);
                it.election.won(Tick(now), token);
                self.begin_term(master, (token, epoch, head), Saved { epoch, ..saved });
            }
        }
    }

    /// A request was lost, or its answer; it may also be applied later.
    fn store_unanswered(&mut self, master: usize, op: &Op) {
        let Some(term) = self.standbys.get_mut(master).and_then(|it| it.term.as_mut()) else { return };
        match op {
            Op::Confirm(_, round) => {
                term.is_confirming = false;
                term.unconfirmed = Some(term.unconfirmed.map_or(*round, |it| it.max(*round)));
                self.begin_confirm(master);
            }
            Op::Write { version, .. } => {
                term.is_writing = false;
                term.unsaved = Some(term.unsaved.map_or(*version, |it| it.max(*version)));
                self.begin_write(master);
            }
            Op::Advance(_, floor) => self.ask_store(master, Op::Advance(self.token_of(master), *floor)),
            Op::Observe | Op::Campaign(_) | Op::Keep(_) => (),
        }
    }

    /// This master leads, with what the last leader has saved.
    fn begin_term(&mut self, master: usize, (token, epoch, head): (i64, u64, i64), saved: Saved) {
        self.log.line(self.now, "leads", &[master as u64, epoch], &[]);
        self.coverage.hit(Point::MasterLeads);
        self.close_all_of(Party::Standby(master));
        self.master_incarnation += 1;
        let config = self.standby_config(epoch);
        let now = Tick(self.now);
        let Some(it) = self.standbys.get_mut(master) else { return };
        // A process that stood by has an empty core.
        let old = it.core.take().unwrap_or_else(|| Master::recover_at(now, config, Saved::default()));
        it.core = Some(old.succeed(now, config, saved));
        it.term = Some(Term {
            token,
            epoch,
            head,
            unsaved: None,
            is_writing: false,
            unconfirmed: None,
            is_confirming: false,
            is_working: false,
        });
        self.drain_standby(master);
        // Peers of the other master ask whether a greater epoch leads, if that one is silent.
        let other = |it: &crate::network::Conn| {
            matches!(it.server, Party::Standby(at) if at != master) && it.caller_open
        };
        let conns = self.conns.iter().filter(|(_, it)| other(it));
        let conns: Vec<_> = conns.map(|(id, it)| (*id, matches!(it.caller, Party::Node(_)))).collect();
        let within = *self.rng.pick(&[60, 150, 400]).unwrap_or(&400);
        for (conn, is_node) in conns {
            // Some callers stay until their master closes the connection.
            if self.rng.percent(if is_node { 90 } else { self.plan.client_leaves_percent }) {
                let delay = self.rng.below(within);
                self.at(self.now + delay, Event::LeavesMaster(conn));
            }
        }
    }

    fn standby_config(&mut self, epoch: u64) -> MasterConfig {
        MasterConfig { confirms: true, events: false, ..self.master_config(epoch, WALL_MS) }
    }

    /// A node or client leaves a master, because another one leads.
    pub(crate) fn leave_master(&mut self, conn: ConnId) {
        let leading = self.leading().map(Party::Standby);
        if self.conns.get(&conn).is_some_and(|it| it.caller_open && Some(it.server) != leading) {
            self.coverage.hit(Point::MasterLeft);
            self.break_conn(conn);
        }
    }

    /// This master stands by: it forgets everything, and closes every connection.
    fn step_down(&mut self, master: usize) {
        let Some(it) = self.standbys.get_mut(master) else { return };
        (it.core, it.term) = (None, None);
        self.log.line(self.now, "steps down", &[master as u64], &[]);
        self.close_all_of(Party::Standby(master));
    }

    pub(crate) fn standby_receives(&mut self, master: usize, conn: ConnId, incoming: Incoming) {
        match incoming {
            Incoming::Request(id, Request::Hello(hello)) => {
                let Some(it) = self.conns.get_mut(&conn) else { return };
                it.greeted = true;
                let same_host = it.same_host;
                let Some(term) = self.standbys.get(master).and_then(|it| it.term.as_ref()) else { return };
                let welcome = Welcome {
                    major: VERSION_MAJOR,
                    minor: VERSION_MINOR,
                    epoch: term.epoch,
                    heartbeat_ms: 50,
                    ..Welcome::default()
                };
                self.standby_handles(master, Some(MasterEvent::Opened(conn, hello)));
                if same_host {
                    self.standby_handles(master, Some(MasterEvent::SameHost(conn)));
                    if self.segment_of(conn).is_some_and(|it| it.0 % 4 != 0) {
                        self.standby_handles(master, Some(MasterEvent::CanWithdraw(conn)));
                    }
                }
                self.send_reply(conn, Way::Down, id, &Reply::Welcome(welcome));
            }
            Incoming::Request(id, request) => {
                self.standby_handles(master, Some(MasterEvent::Request(conn, id, request)));
            }
            Incoming::Reply(id, reply) => {
                self.standby_handles(master, Some(MasterEvent::Reply(conn, id, reply)));
            }
        }
    }

    /// A connection to a master is closed, or the process behind it has ended.
    pub(crate) fn standby_learns(&mut self, master: usize, event: MasterEvent) {
        self.standby_handles(master, Some(event));
    }

    /// Sends a request to the leader without a network; only at the end.
    pub(crate) fn audit_leader(
        &mut self,
        conn: ConnId,
        hello: Hello,
        request: ClientToMaster,
    ) -> Option<Reply> {
        let master = self.leading()?;
        self.next_conn += 1;
        let id = tiffin_types::RequestId(self.next_conn);
        self.audit = None;
        self.standby_handles(master, Some(MasterEvent::Opened(conn, hello)));
        self.standby_handles(master, Some(MasterEvent::Request(conn, id, Request::ClientToMaster(request))));
        // It leads, as the store says, so a confirmation would succeed.
        self.standby_handles(master, Some(MasterEvent::Confirmed(u64::MAX)));
        self.audit.take()
    }

    /// Handles an event, or due timeouts only.
    fn standby_handles(&mut self, master: usize, event: Option<MasterEvent>) {
        let now = Tick(self.now);
        let Some(core) = self.standbys.get_mut(master).and_then(|it| it.core.as_mut()) else { return };
        match event {
            Some(event) => core.handle(now, event),
            None => core.handle_timeout(now),
        }
        self.drain_standby(master);
    }

    fn drain_standby(&mut self, master: usize) {
        while let Some(it) = self.standbys.get_mut(master) {
            let (Some(core), Some(term)) = (&mut it.core, &mut it.term) else { return };
            let Some(effect) = core.poll_effect() else { break };
            match effect {
                Effect::Reply(conn, _, reply) if conn.0 >= crate::master::AUDITOR => self.audit = Some(reply),
                Effect::Reply(conn, id, reply) => self.send_reply(conn, Way::Down, id, &reply),
                Effect::Ask(conn, id, request) => self.send_request(conn, Way::Down, id, &request),
                Effect::SendLedger(conn, id, request) => {
                    let taken = self.accepts_now(conn);
                    self.append_to_ledger(conn, id, &request);
                    let core = self.standbys.get_mut(master).and_then(|it| it.core.as_mut());
                    core.filter(|_| taken).into_iter().for_each(|it| it.sent(id));
                }
                Effect::Withdraw(conn, slot_refs) => self.withdraw(self.segment_of(conn), &slot_refs),
                Effect::Disconnect(conn) => self.disconnect(conn),
                Effect::Notice(notice) => {
                    self.log.note(|| format!("{notice:?}"));
                    if matches!(
                        notice,
                        Notice::Evicted(..) | Notice::Departs(_, Departure::Lost | Departure::Left)
                    ) {
                        self.answers.may_lose = true;
                    }
                }
                Effect::Persist(version) => {
                    term.unsaved = Some(version);
                    self.begin_write(master);
                }
                Effect::Confirm(round) => {
                    term.unconfirmed = Some(round);
                    self.begin_confirm(master);
                }
                Effect::Restart(floor) => {
                    let token = term.token;
                    self.ask_store(master, Op::Advance(token, floor));
                }
            }
        }
        let Some(it) = self.standbys.get_mut(master) else { return };
        let (Some(core), Some(term)) = (&it.core, &mut it.term) else { return };
        if core.has_work() && !std::mem::replace(&mut term.is_working, true) {
            let delay = self.rng.delay(2, 30);
            self.standby_at(master, delay, StandbyEvent::Work);
        }
    }

    /// Writes the newest state, unless a write is under way.
    fn begin_write(&mut self, master: usize) {
        let Some(it) = self.standbys.get_mut(master) else { return };
        let (Some(core), Some(term)) = (&it.core, &mut it.term) else { return };
        let Some(version) = term.unsaved.take_if(|_| !term.is_writing) else { return };
        term.is_writing = true;
        let op = Op::Write { token: term.token, head: term.head, version, saved: Box::new(core.saved()) };
        self.ask_store(master, op);
    }

    /// Asks whether this master leads, unless a confirmation is under way: that one began too early.
    fn begin_confirm(&mut self, master: usize) {
        let Some(term) = self.standbys.get_mut(master).and_then(|it| it.term.as_mut()) else { return };
        let Some(round) = term.unconfirmed.take_if(|_| !term.is_confirming) else { return };
        term.is_confirming = true;
        let op = Op::Confirm(term.token, round);
        self.ask_store(master, op);
        let now = self.now;
        if let Some(it) = self.standbys.get_mut(master)
            && let Some(stop_ms) = it.stops_asking_ms.take_if(|_| self.phase == Phase::Faults)
        {
            it.stopped_until = it.stopped_until.max(now + stop_ms);
        }
    }
}
