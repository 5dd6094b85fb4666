//! The shell of the master: its connections, its clock, and its deaths.

use tiffin_core::{
    ClientId, ConnId, RequestId, SegmentId, Tick,
    extent::room_for,
    master::{Effect, Event as MasterEvent, Master, MasterConfig, Notice, PROMOTER, Saved},
    message::{
        ClientToMaster, Hello, MasterToMember, MemberToMaster, Reply, Request, Role, VERSION_MAJOR,
        VERSION_MINOR, Welcome,
    },
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
    pub(crate) fn audit(&mut self, namespace: u8, request: ClientToMaster) -> Option<Reply> {
        let conn = ConnId(AUDITOR + u64::from(namespace));
        let hello = Hello {
            client: ClientId(conn.0),
            namespace: names::namespace_name(namespace).to_owned(),
            ..Hello::default()
        };
        self.next_conn += 1;
        let (id, request) = (RequestId(self.next_conn), Request::ClientToMaster(request));
        self.audit = None;
        self.master_handles(MasterEvent::Opened(conn, hello));
        let complete = self.everything_is_known();
        self.oracle.hears(conn, id, &request, Speaker::Client(namespace), complete);
        self.master_handles(MasterEvent::Request(conn, id, request));
        self.oracle.heard();
        self.audit.take()
    }

    /// A new life of the master, which knows what is in its state folder.
    pub(crate) fn start_master(&mut self) {
        self.epoch = self.state.epoch + 1;
        self.state.epoch = self.epoch;
        self.master_life += 1;
        self.parked.clear();
        self.clock = Clock::default();
        self.working = false;
        self.heard.clear();
        self.registered.clear();
        self.oracle.master_restarts(self.epoch, &self.memories, &self.state);
        self.oracle.shelving.restart(self.plan.tier.protect_ms, &self.state);
        self.oracle.rules(self.plan.lease_ms, self.plan.lease_grace_ms, self.plan.strict_leases);
        self.log.line(self.now, "master starts", &[self.epoch], &[]);
        let config = MasterConfig {
            epoch: self.epoch,
            life: self.master_life,
            // Generations of two lives differ even if their epochs do not.
            first_counter: self.master_life << 32,
            durable: true,
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
        };
        self.master = Some(Master::recover(config, self.state.clone()));
        let now = self.tell_time();
        self.drain_master(now);
    }

    /// What the master wanted to save is synced.
    pub(crate) fn master_saved(&mut self) {
        let Some((version, saved)) = self.saving.take() else { return };
        self.state = saved;
        self.master_handles(MasterEvent::Persisted(version));
    }

    /// What is being saved may be in the state folder when the master dies, and the folder may be lost.
    fn leave_state(&mut self) {
        if let Some((_, saved)) = self.saving.take()
            && self.chance.percent(50)
        {
            self.state = saved;
        }
        if self.plan.state_loss_percent > 0 && self.chance.percent(self.plan.state_loss_percent) {
            self.coverage.hit(Point::FaultStateLost);
            let regresses = self.chance.percent(self.plan.regress_percent);
            let epoch = if regresses { self.chance.below(self.epoch) } else { self.epoch };
            self.state = Saved { epoch, ..Saved::default() };
            self.oracle.state_is_lost();
        }
    }

    /// A member has served a later epoch: the master goes on behind that.
    fn supersede(&mut self, floor: u64) {
        self.coverage.hit(Point::MasterSuperseded);
        let Some(master) = self.master.take() else { return };
        let saved = master.saved();
        self.saving = None;
        self.state = Saved { epoch: floor.max(saved.epoch), ..saved };
        self.log.line(self.now, "master is superseded", &[floor], &[]);
        self.server_dies(Party::Master);
        let delay = self.chance.delay(2, 20);
        self.at(self.now + delay, Event::MasterStarts);
    }

    pub(crate) fn crash_master(&mut self, down_ms: u64) {
        self.log.line(self.now, "master dies", &[], &[]);
        self.master = None;
        self.leave_state();
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
            Incoming::Request(id, request) => self.master_is_asked(conn, id, request),
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

    fn master_is_asked(&mut self, conn: ConnId, id: RequestId, request: Request) {
        let speaker = self.speaker(conn, &request);
        if matches!(speaker, Speaker::Nobody) {
            self.coverage.hit(Point::FrameFenced);
        }
        self.let_time_pass();
        if self.parks(conn, id, &request, speaker) {
            return self.master_handles(MasterEvent::Request(conn, id, request));
        }
        if let (Request::ClientToMaster(ClientToMaster::Reserve(reserve)), Speaker::Client(namespace)) =
            (&request, speaker)
        {
            let others_wait = self.somebody_waits(namespace);
            self.oracle.arrives((conn, id), reserve, namespace, others_wait);
            self.oracle.asks_for_space(self.told_time(), (conn, id), reserve, others_wait);
        }
        self.note_need(conn, id, &request);
        let complete = self.everything_is_known();
        self.oracle.hears(conn, id, &request, speaker, complete);
        if let (Speaker::Client(namespace), Request::ClientToMaster(request)) = (speaker, &request) {
            self.begin_probe(namespace, request);
            self.is_patient =
                matches!(request, ClientToMaster::Reserve(it) if it.wait_ms > 0 && it.spare == 0);
        }
        self.master_handles(MasterEvent::Request(conn, id, request));
        self.is_patient = false;
        self.check_policy();
        self.oracle.newest_put = None;
        self.end_probe();
        self.oracle.heard();
    }

    /// Whether a request waits for reports; it is heard when it goes on.
    fn parks(&mut self, conn: ConnId, id: RequestId, request: &Request, speaker: Speaker) -> bool {
        let waits = self.master.as_ref().is_some_and(|it| it.waits_for_reports(conn, request));
        if waits {
            self.coverage.hit(Point::Parked);
            self.parked.insert((conn, id), (request.clone(), speaker));
        }
        waits
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
        let mut resumed = false;
        while let Some(effect) = self.master.as_mut().and_then(Master::poll_effect) {
            let segment = match &effect {
                Effect::Reply(conn, ..) | Effect::Ask(conn, ..) | Effect::Entrust(conn, ..) => {
                    self.segment_of(*conn)
                }
                Effect::Disconnect(_) | Effect::Notice(_) | Effect::Persist(..) | Effect::Restart(_) => None,
            };
            // What has no bytes costs nothing.
            if let Effect::Ask(_, _, MasterToMember::Allocate(allocate)) = &effect
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
            self.check_offers(&effect);
            self.watch_probe(&effect, segment);
            self.watch_shields(now, &effect, segment);
            if let Effect::Reply(conn, id, Reply::Reserved(reserved)) = &effect {
                self.check_full((*conn, *id), reserved);
            }
            if self.is_patient {
                self.watch_patience(now, &effect, segment);
            }
            self.oracle.sees(now, &effect, segment, &self.memories, &mut self.coverage);
            self.check_saved(&effect);
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
                Effect::Notice(Notice::Resumed(conn, id)) => {
                    resumed = true;
                    self.resumes(conn, id);
                }
                Effect::Notice(notice) => self.notice(&notice),
                Effect::Persist(version, saved) => self.begin_save(version, *saved),
                Effect::Restart(epoch) => self.superseded = Some(epoch),
            }
        }
        if let Some(floor) = self.superseded.take() {
            return self.supersede(floor);
        }
        if resumed {
            self.oracle.heard();
        }
        self.oracle.seen_all();
        if !self.working && self.master.as_ref().is_some_and(Master::has_work) {
            self.working = true;
            let delay = self.chance.delay(2, 30);
            self.at(self.now + delay, Event::MasterWorks(self.master_life));
        }
        // What was written before the restart is charged when it gets its name, perhaps in the same event.
        rooms.into_iter().filter(|_| !resumed).for_each(|namespace| self.check_quota(namespace));
    }

    /// The master has something to save; of several versions only the newest is written.
    fn begin_save(&mut self, version: u64, saved: Saved) {
        self.coverage.hit(Point::StateSaved);
        if self.saving.replace((version, saved)).is_none() {
            let delay = self.chance.delay(3, 40);
            self.at(self.now + delay, Event::MasterSaved(self.master_life));
        }
    }

    /// A request that waited for reports is handled now.
    fn resumes(&mut self, conn: ConnId, id: RequestId) {
        self.coverage.hit(Point::Resumed);
        let Some((request, speaker)) = self.parked.remove(&(conn, id)) else { return };
        self.oracle.heard();
        let complete = self.everything_is_known();
        self.oracle.hears(conn, id, &request, speaker, complete);
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
            Notice::AwaitingReports(_) => Point::AwaitedReports,
            Notice::AllReported => Point::AllReported,
            Notice::Superseded(..) | Notice::Resumed(..) => return,
            Notice::Got { .. } | Notice::Promoted { .. } | Notice::DemotionRefused { .. } => return,
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
                if matches!(request, Request::MemberToMaster(MemberToMaster::Register(_))) {
                    self.registered.insert(segment, conn);
                }
                match self.registered.get(&segment) == Some(&conn) {
                    true => Speaker::Node(segment),
                    false => Speaker::Nobody,
                }
            }
        }
    }

    /// Notes what a plain put of one object needs, where nothing but memory decides whether it is refused.
    fn note_need(&mut self, conn: ConnId, id: RequestId, request: &Request) {
        let Request::ClientToMaster(ClientToMaster::Reserve(reserve)) = request else { return };
        let [item] = reserve.items.as_slice() else { return };
        let stats = self.master.iter().flat_map(|it| it.stat().namespaces);
        let is_limited = stats.into_iter().any(|it| it.quota.is_some() || it.waiting > 0);
        let is_plain = reserve.spare == 0 && reserve.avoid.is_empty() && item.options.stream.is_empty();
        // One that waits is answered when its time is up, whatever there is then.
        let is_plain = is_plain && reserve.wait_ms == 0;
        let need = room_for(item.len).filter(|need| *need > 0 && is_plain && !is_limited);
        if let Some(need) = need {
            self.oracle.needs.insert((conn, id), need);
            self.oracle.newest_put = Some((conn, id));
        }
    }

    /// Something leaves the memory of a node to make way: what was brought a while ago, and what a disk is
    /// reading, only if nothing else may.
    fn watch_shields(&mut self, now: Tick, effect: &Effect, segment: Option<SegmentId>) {
        let (Effect::Ask(_, _, MasterToMember::Retire(retire)), Some(segment)) = (effect, segment) else {
            return;
        };
        if !self.oracle.is_evicting() || self.oracle.shelving.is_disk(segment) {
            return;
        }
        let Some(master) = &self.master else { return };
        let others = master.available().into_iter().find(|it| it.0 == segment).map_or(0, |it| it.2);
        for hold in &retire.holds {
            if let Some(generation) = self.oracle.generation_of.get(&(segment, *hold)).copied() {
                self.oracle.leaves_shielded(now, generation, others);
                // What lies in several memories may have had to leave another.
                let places = self.oracle.generation_of.iter().filter(|(_, it)| **it == generation);
                let in_memory = places.filter(|((it, _), _)| !self.oracle.shelving.is_disk(*it)).count();
                let is_read = in_memory == 1 && self.is_read_by_a_disk(segment, *hold);
                self.oracle.leaves_demoting(generation, is_read, others, &mut self.coverage);
            }
        }
    }

    /// A put that may wait evicts something.
    fn watch_patience(&mut self, now: Tick, effect: &Effect, segment: Option<SegmentId>) {
        let Effect::Ask(_, _, MasterToMember::Retire(retire)) = effect else { return };
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
