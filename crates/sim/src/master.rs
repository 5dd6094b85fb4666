//! The shell of the master: its connections, its clock, and its deaths.

use tiffin_core::{
    ClientId, ConnId, RequestId, SegmentId, Tick,
    master::{Effect, Event as MasterEvent, Master, MasterConfig, Notice, PROMOTER},
    message::{Hello, Reply, Request, Role, VERSION_MAJOR, VERSION_MINOR, Welcome},
};
use tiffin_proto::Incoming;

use crate::{
    coverage::Point,
    names,
    network::Way,
    oracle::Speaker,
    world::{Clock, Event, Party, World},
};

/// Connections from here on are no connections: the simulation itself asks, one per namespace.
const AUDITOR: u64 = u64::MAX / 2;

impl World {
    /// Asks the master without any network; only at rest. The answer, if it is given at once.
    pub(crate) fn audit(&mut self, namespace: u8, request: Request) -> Option<Reply> {
        let conn = ConnId(AUDITOR + u64::from(namespace));
        let hello = Hello {
            client: ClientId(conn.0),
            namespace: names::namespace_name(namespace).to_owned(),
            ..Hello::default()
        };
        self.next_conn += 1;
        let id = RequestId(self.next_conn);
        self.audit = None;
        self.master_handles(MasterEvent::Opened(conn, hello));
        let complete = self.everything_is_known();
        self.oracle.hears(conn, id, &request, Speaker::Client(namespace), complete);
        self.master_handles(MasterEvent::Request(conn, id, request));
        self.oracle.heard();
        self.audit.take()
    }

    /// A new life of the master, which knows only that it is later than all before.
    pub(crate) fn start_master(&mut self) {
        self.epoch += 1;
        self.clock = Clock::default();
        self.working = false;
        self.heard.clear();
        self.registered.clear();
        self.oracle.master_restarts(self.epoch, &self.memories);
        self.oracle.shelving.restart(self.plan.tier.protect_ms);
        self.oracle.rules(self.plan.lease_ms, self.plan.lease_grace_ms, self.plan.strict_leases);
        self.log.line(self.now, "master starts", &[self.epoch], &[]);
        self.master = Some(Master::new(MasterConfig {
            epoch: self.epoch,
            silence_ms_max: self.plan.silence_ms_max,
            away_ms_max: self.plan.away_ms_max,
            lease_ms: self.plan.lease_ms,
            strict_leases: self.plan.strict_leases,
            lease_grace_ms: self.plan.lease_grace_ms,
            soft_pin_ms: 1000,
            evict_soft_pinned: self.plan.evict_soft_pinned,
            piece_objects_max: self.plan.piece_objects_max,
            tier: self.plan.tier,
            hash_seed: self.chance.any(),
            sabotage: self.sabotage,
        }));
    }

    pub(crate) fn crash_master(&mut self, down_ms: u64) {
        self.log.line(self.now, "master dies", &[], &[]);
        self.master = None;
        self.server_dies(Party::Master);
        self.at(self.now + down_ms, Event::MasterStarts);
    }

    /// Every connection to a process that died.
    pub(crate) fn server_dies(&mut self, party: Party) {
        let open = self.conns.iter().filter(|(_, it)| it.server == party && it.server_open);
        let ids: Vec<_> = open.map(|(id, _)| *id).collect();
        for id in ids {
            self.server_hangs_up(id);
        }
    }

    pub(crate) fn master_receives(&mut self, conn: ConnId, incoming: Incoming) {
        match incoming {
            Incoming::Request(id, Request::Hello(hello)) => {
                if let Some(it) = self.conns.get_mut(&conn) {
                    it.greeted = true;
                }
                if hello.role == Role::Client {
                    let now = self.tell_time();
                    self.oracle.client_comes(conn, hello.client, now);
                    if let Some(old) = self.heard.insert(hello.client, conn) {
                        self.oracle.conn_is_gone(old);
                    }
                }
                let welcome = Welcome {
                    major: VERSION_MAJOR,
                    minor: VERSION_MINOR,
                    epoch: self.epoch,
                    heartbeat_ms: 50,
                    ..Welcome::default()
                };
                let is_client = hello.role == Role::Client;
                self.master_handles(MasterEvent::Opened(conn, hello));
                if self.conns.get(&conn).is_some_and(|it| it.near) {
                    self.master_handles(MasterEvent::Near(conn));
                }
                if is_client {
                    self.check_leases_kept();
                }
                self.send_reply(conn, Way::Down, id, &Reply::Welcome(welcome));
            }
            Incoming::Request(id, request) => {
                let speaker = self.speaker(conn, &request);
                if matches!(speaker, Speaker::Nobody) {
                    self.coverage.hit(Point::FrameFenced);
                }
                self.let_time_pass();
                if let (Request::Reserve(reserve), Speaker::Client(namespace)) = (&request, speaker) {
                    let others_wait = self.somebody_waits(namespace);
                    self.oracle.arrives((conn, id), reserve, namespace, others_wait);
                }
                let complete = self.everything_is_known();
                self.oracle.hears(conn, id, &request, speaker, complete);
                if let Speaker::Client(namespace) = speaker {
                    self.begin_probe(namespace, &request);
                    self.is_patient =
                        matches!(&request, Request::Reserve(it) if it.wait_ms > 0 && it.spare == 0);
                }
                self.master_handles(MasterEvent::Request(conn, id, request));
                self.is_patient = false;
                self.end_probe();
                self.oracle.heard();
            }
            Incoming::Reply(id, reply) => {
                self.let_time_pass();
                let now = self.told_time();
                let segment = self.segment_of(conn);
                if segment.is_some_and(|it| self.registered.get(&it) == Some(&conn)) {
                    self.oracle.hears_answer((conn, id), now, &reply);
                }
                self.master_handles(MasterEvent::Reply(conn, id, reply));
            }
        }
    }

    pub(crate) fn master_closed(&mut self, conn: ConnId) {
        let now = self.tell_time();
        let left = self.heard.extract_if(.., |_, it| *it == conn).next();
        if let Some((client, _)) = left {
            self.oracle.client_goes_away(client, now);
        }
        self.oracle.conn_is_gone(conn);
        self.registered.retain(|_, it| *it != conn);
        self.master_handles(MasterEvent::Closed(conn));
    }

    pub(crate) fn master_tick(&mut self) {
        let now = self.tell_time();
        let Some(master) = &mut self.master else { return };
        if master.poll_timeout().is_some_and(|at| at <= now) {
            master.handle_timeout(now);
            self.drain_master(now);
        }
    }

    pub(crate) fn clock_goes_on(&mut self) {
        let Some(stood) = self.clock.stands_at.take() else { return };
        // It either lost the time or catches up.
        if self.chance.percent(50) {
            self.clock.go_on_from(self.now, stood);
        }
    }

    /// The master does a piece of the work that it cannot do in one go.
    pub(crate) fn master_works(&mut self) {
        self.let_time_pass();
        self.working = false;
        let now = self.tell_time();
        let Some(master) = &mut self.master else { return };
        self.coverage.hit(Point::WorkedOn);
        master.work(now);
        self.drain_master(now);
    }

    fn master_handles(&mut self, event: MasterEvent) {
        self.let_time_pass();
        let now = self.tell_time();
        let Some(master) = &mut self.master else { return };
        master.handle(now, event);
        self.drain_master(now);
    }

    /// What time alone brings about happens before the event, so that it is not taken for its consequence.
    fn let_time_pass(&mut self) {
        let now = self.tell_time();
        let Some(master) = &mut self.master else { return };
        master.handle_timeout(now);
        self.drain_master(now);
    }

    fn drain_master(&mut self, now: Tick) {
        let mut rooms = Vec::new();
        while let Some(effect) = self.master.as_mut().and_then(Master::poll_effect) {
            let segment = match &effect {
                Effect::Reply(conn, ..) | Effect::Ask(conn, ..) | Effect::Entrust(conn, ..) => {
                    self.segment_of(*conn)
                }
                Effect::Disconnect(_) | Effect::Notice(_) => None,
            };
            // What has no bytes costs nothing.
            if let Effect::Ask(_, _, Request::Allocate(allocate)) = &effect
                && allocate.items.iter().any(|it| it.len > 0)
            {
                let conn = self.conns.values().find(|it| it.client == allocate.client);
                rooms.extend(conn.map(|it| it.namespace));
                // For what comes back from a disk, the length of the name tells whose it is.
                let is_of =
                    |it: &u8, len: u64| (names::namespace_name(*it).len() + names::KEY_BYTES) as u64 == len;
                let items = allocate.items.iter().filter(|_| allocate.client == PROMOTER);
                rooms.extend(items.flat_map(|item| (0..2u8).filter(|it| is_of(it, item.name_len))));
            }
            self.watch_probe(&effect, segment);
            if self.is_patient {
                self.watch_patience(now, &effect, segment);
            }
            self.oracle.sees(now, &effect, segment, &self.memories, &mut self.coverage);
            match effect {
                Effect::Reply(conn, _, reply) if conn.0 >= AUDITOR => self.audit = Some(reply),
                Effect::Reply(conn, id, reply) => self.send_reply(conn, Way::Down, id, &reply),
                Effect::Ask(conn, id, request) => self.send_request(conn, Way::Down, id, &request),
                Effect::Entrust(conn, id, request) => {
                    let taken = self.takes(conn);
                    self.entrust(conn, id, &request);
                    if let Some(master) = self.master.as_mut().filter(|_| taken) {
                        master.sent(id);
                    }
                }
                Effect::Disconnect(conn) => self.disconnect(conn),
                Effect::Notice(notice) => self.notice(&notice),
            }
        }
        self.oracle.seen_all();
        if !self.working && self.master.as_ref().is_some_and(Master::has_work) {
            self.working = true;
            let delay = self.chance.delay(2, 30);
            self.at(self.now + delay, Event::MasterWorks(self.epoch));
        }
        rooms.into_iter().for_each(|namespace| self.check_quota(namespace));
    }

    fn notice(&mut self, notice: &Notice) {
        self.log.note(|| format!("{notice:?}"));
        self.coverage.hit(match notice {
            Notice::NodeReady(_) => Point::NodeReady,
            Notice::NodeSilent(_) => Point::NodeSilent,
            Notice::NodeAway(_) => Point::NodeAway,
            Notice::NodeLost(..) | Notice::NodeLeft(..) => Point::NodeLost,
            Notice::NodeDiscarded(_) => Point::NodeDiscarded,
            Notice::Evicted(..) => Point::Evicted,
            Notice::Prefetched { .. } => Point::Prefetched,
            Notice::Got { .. } | Notice::Promoted { .. } => return,
        });
    }

    /// Who speaks on a connection, as the promise sees it: nobody, if a newer connection of the same party
    /// has been let in. A dead process's last words count as long as no other connection replaced it.
    fn speaker(&mut self, conn: ConnId, request: &Request) -> Speaker {
        let Some(it) = self.conns.get(&conn).filter(|it| it.greeted) else { return Speaker::Nobody };
        match it.segment {
            None if self.heard.get(&it.client) == Some(&conn) => Speaker::Client(it.namespace),
            None => Speaker::Nobody,
            Some(segment) => {
                if matches!(request, Request::Register(_)) {
                    self.registered.insert(segment, conn);
                }
                match self.registered.get(&segment) == Some(&conn) {
                    true => Speaker::Node(segment),
                    false => Speaker::Nobody,
                }
            }
        }
    }

    /// A put that may wait evicts something.
    fn watch_patience(&mut self, now: Tick, effect: &Effect, segment: Option<SegmentId>) {
        let Effect::Ask(_, _, Request::Retire(retire)) = effect else { return };
        let Some(memory) = segment.filter(|it| !self.oracle.shelving.is_disk(*it)) else { return };
        if !self.oracle.is_evicting() {
            return;
        }
        let disks = self.ready_disks();
        for hold in &retire.holds {
            let Some(generation) = self.oracle.generation_of.get(&(memory, *hold)).copied() else { continue };
            // Where it lies in several memories it may have had to leave another, also one whose node has yet
            // to hear what it has there, or that it is to be told.
            let places = self.oracle.generation_of.iter().filter(|(_, it)| **it == generation);
            let memories = places.map(|((it, _), _)| *it).filter(|it| !self.oracle.shelving.is_disk(*it));
            let joined: Vec<_> = memories.filter(|it| self.oracle.joined.contains(it)).collect();
            let is_one = joined == [memory] && !self.oracle.is_being_decided(memory, *hold);
            if is_one && !self.oracle.shelving.is_shelved(generation) {
                self.oracle.evicted_for_a_patient_put(now, generation, &disks, memory);
            }
        }
    }

    fn segment_of(&self, conn: ConnId) -> Option<SegmentId> {
        self.conns.get(&conn)?.segment
    }
}
