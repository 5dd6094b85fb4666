//! The shell of the master: its connections, its clock, and its restarts.

use std::collections::BTreeSet;

use tiffin_core::master::{
    Departure, Effect, Event as MasterEvent, LimitsConfig, Master, MasterConfig, Notice, Saved,
    absent_members,
};
use tiffin_proto::Incoming;
use tiffin_types::{
    ClientId, ConnId, RequestId, SegmentId, SlotRef, Tick,
    message::{
        ClientToMaster, ForgetNode, Hello, MasterToMember, MemberToMaster, Reply, Request, Role,
        VERSION_MAJOR, VERSION_MINOR, Welcome,
    },
    space_for,
};

use crate::{
    coverage::Point,
    invariants::expiry::WallClock,
    keyspace,
    network::Way,
    oracle::Sender,
    world::{Clock, Event, Party, World},
};

/// Connection ids from here on belong to the simulation itself, one per namespace.
pub(crate) const AUDITOR: u64 = u64::MAX / 2;

/// The wall clock at the beginning of a world, and how far that of a master may be ahead.
pub(crate) const WALL_MS: u64 = 1_000_000;
const WALL_AHEAD_MS_MAX: u64 = 50;

impl World {
    /// Sends a request to the master without a network; only at the end. Returns an immediate answer.
    pub(crate) fn audit(&mut self, namespace: u8, request: ClientToMaster) -> Option<Reply> {
        let conn = ConnId(AUDITOR + u64::from(namespace));
        let hello = Hello {
            client: ClientId(conn.0),
            namespace: keyspace::namespace_name(namespace).to_owned(),
            ..Hello::default()
        };
        if self.has_standby() {
            return self.audit_leader(conn, hello, request);
        }
        self.next_conn += 1;
        let (id, request) = (RequestId(self.next_conn), Request::ClientToMaster(request));
        self.audit = None;
        self.master_handles(MasterEvent::Opened(conn, hello));
        let complete = self.all_copies_are_known();
        self.oracle.on_request(conn, id, &request, Sender::Client(namespace), complete);
        self.master_handles(MasterEvent::Request(conn, id, request));
        self.oracle.request_done();
        self.audit.take()
    }

    /// The process of a node near the master has ended.
    pub(crate) fn node_ended(&mut self, conn: ConnId) {
        self.coverage.hit(Point::NodeEnded);
        self.master_learns_of_an_end(MasterEvent::Ended(conn));
    }

    /// The master learns that a process has ended. Its memory is not lost if it outlives the process.
    fn master_learns_of_an_end(&mut self, event: MasterEvent) {
        let lost = |it: &Self, segment: &SegmentId| it.oracle.lost.contains_key(segment);
        let pools = self.memories.iter().filter(|(segment, it)| it.alive && !lost(self, segment));
        let pools: Vec<_> = pools.map(|(segment, _)| *segment).collect();
        self.master_handles(event);
        if let Some(segment) = pools.into_iter().find(|it| lost(self, it)) {
            self.oracle.fail("p8", || format!("{segment} outlives its process, and is taken for lost"));
        }
    }

    /// When all is calm, the operator declares the members lost that will not come back.
    pub(crate) fn forget_the_dead(&mut self) {
        if self.has_standby() {
            return;
        }
        let is_up = |it: SegmentId| self.node_of(it).is_some() || self.disk_of(it).is_some();
        let nodes = self.master.as_ref().map(|it| it.stat().nodes).unwrap_or_default();
        let dead = nodes.into_iter().filter(|it| !it.alive && !is_up(it.info.segment));
        // Several of them may have the same name.
        for name in dead.map(|it| it.info.segment.to_string()).collect::<Vec<_>>() {
            self.audit(0, ClientToMaster::ForgetNode(ForgetNode { name }));
        }
    }

    /// Starts the master with the content of its state folder.
    pub(crate) fn start_master(&mut self) {
        self.epoch = self.state.epoch + 1;
        self.state.epoch = self.epoch;
        self.master_incarnation += 1;
        self.parked.clear();
        self.clock = Clock::default();
        self.working = false;
        self.newest_conns.clear();
        self.registered.clear();
        self.given_up.clear();
        let starts = (self.epoch, self.master_incarnation);
        self.oracle.master_restarts(starts, &self.memories, &self.copies_under_way(), &self.state);
        self.oracle.tier.restart(self.plan.tier.protect_ms, &self.state);
        self.oracle.rules(self.plan.lease_ms, self.plan.lease_grace_ms, self.plan.strict_leases);
        self.log.line(self.now, "master starts", &[self.epoch], &[]);
        let ahead_ms = if self.plan.ttl_percent > 0 { self.rng.below(WALL_AHEAD_MS_MAX) } else { 0 };
        let (wall_ms, started) = (WALL_MS + ahead_ms, self.peek_clock());
        self.oracle.clock = WallClock { wall_ms, started, now: started, stands: false };
        let config = self.master_config(self.epoch, wall_ms);
        self.master = Some(Master::recover(config, self.state.clone()));
        let now = self.read_clock();
        self.drain_master(now);
    }

    /// The settings of a master that starts now.
    pub(crate) fn master_config(&mut self, epoch: u64, wall_ms: u64) -> MasterConfig {
        MasterConfig {
            epoch,
            instance: self.master_incarnation,
            first_counter: keyspace::first_counter(self.master_incarnation),
            durable: true,
            confirms: false,
            silence_ms_max: self.plan.silence_ms_max,
            away_ms_max: self.plan.away_ms_max,
            lease_ms: self.plan.lease_ms,
            strict_leases: self.plan.strict_leases,
            lease_grace_ms: self.plan.lease_grace_ms,
            soft_pin_ms: 1000,
            evict_soft_pinned: self.plan.evict_soft_pinned,
            tenants: false,
            events: false,
            owed_page_max: self.plan.owed_page_max,
            piece_objects_max: self.plan.piece_objects_max,
            limits: LimitsConfig::default(),
            tier: self.plan.tier,
            wall_ms,
            hash_seed: self.rng.any(),
            mutant: self.mutant,
        }
    }

    /// The master's state is durable.
    pub(crate) fn master_saved(&mut self) {
        let Some((version, saved)) = self.saving.take() else { return };
        self.state = saved;
        self.master_handles_late(MasterEvent::Persisted(version));
    }

    /// A state that is being saved may be durable when the master dies, and the folder may be lost.
    fn leave_state(&mut self) {
        if let Some((_, saved)) = self.saving.take()
            && self.rng.percent(50)
        {
            self.state = saved;
        }
        if self.plan.state_loss_percent > 0 && self.rng.percent(self.plan.state_loss_percent) {
            self.coverage.hit(Point::FaultStateLost);
            let regresses = self.rng.percent(self.plan.regress_percent);
            let epoch = if regresses { self.rng.below(self.epoch) } else { self.epoch };
            self.state = Saved { epoch, ..Saved::default() };
            self.oracle.state_is_lost();
        }
    }

    /// A member has served a later epoch: the master restarts with a greater one.
    fn supersede(&mut self, floor: u64) {
        self.coverage.hit(Point::MasterSuperseded);
        let Some(master) = self.master.take() else { return };
        let saved = master.saved();
        self.saving = None;
        self.state = Saved { epoch: floor.max(saved.epoch), ..saved };
        self.log.line(self.now, "master is superseded", &[floor], &[]);
        self.close_all_of(Party::Master);
        let delay = self.rng.delay(2, 20);
        self.at(self.now + delay, Event::MasterStarts);
    }

    pub(crate) fn crash_master(&mut self, down_ms: u64) {
        self.log.line(self.now, "master dies", &[], &[]);
        self.master = None;
        self.leave_state();
        self.close_all_of(Party::Master);
        self.at(self.now + down_ms, Event::MasterStarts);
    }

    /// Closes every connection to a dead process.
    pub(crate) fn close_all_of(&mut self, party: Party) {
        let open = self.conns.iter().filter(|(_, it)| it.server == party && it.server_open);
        let ids: Vec<_> = open.map(|(id, _)| *id).collect();
        for id in ids {
            self.close_server(id);
        }
    }

    pub(crate) fn master_receives(&mut self, conn: ConnId, incoming: Incoming) {
        match incoming {
            Incoming::Request(id, Request::Hello(hello)) => {
                if let Some(it) = self.conns.get_mut(&conn) {
                    it.greeted = true;
                }
                if hello.role == Role::Client {
                    let now = self.read_clock();
                    self.oracle.client_comes(conn, hello.client, now);
                    if let Some(old) = self.newest_conns.insert(hello.client, conn) {
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
                if self.conns.get(&conn).is_some_and(|it| it.same_host) {
                    self.master_handles(MasterEvent::SameHost(conn));
                    // Some nodes run as another user, who does not hand over the claim words.
                    if self.segment_of(conn).is_some_and(|it| it.0 % 4 != 0) {
                        self.master_handles(MasterEvent::CanWithdraw(conn));
                    }
                }
                if is_client {
                    self.check_leases_kept();
                }
                self.send_reply(conn, Way::Down, id, &Reply::Welcome(welcome));
            }
            Incoming::Request(id, request) => self.on_request_to_master(conn, id, request),
            Incoming::Reply(id, reply) => {
                self.handle_timeouts();
                let now = self.peek_clock();
                let segment = self.segment_of(conn);
                if segment.is_some_and(|it| self.registered.get(&it) == Some(&conn)) {
                    self.oracle.on_answer((conn, id), now, &reply);
                }
                self.master_handles(MasterEvent::Reply(conn, id, reply));
            }
        }
    }

    fn on_request_to_master(&mut self, conn: ConnId, id: RequestId, request: Request) {
        let sender = self.sender_of(conn, &request);
        if matches!(sender, Sender::Stale) {
            self.coverage.hit(Point::FrameFenced);
        }
        self.handle_timeouts();
        if self.parks(conn, id, &request, sender) {
            return self.master_handles(MasterEvent::Request(conn, id, request));
        }
        if let (Request::ClientToMaster(ClientToMaster::Reserve(reserve)), Sender::Client(namespace)) =
            (&request, sender)
        {
            let others_wait = self.puts_wait(namespace);
            self.oracle.arrives((conn, id), reserve, namespace, others_wait);
            self.oracle.record_single_put(self.peek_clock(), (conn, id), reserve, others_wait);
        }
        self.note_need(conn, id, &request);
        let complete = self.all_copies_are_known();
        self.oracle.on_request(conn, id, &request, sender, complete);
        if let (Sender::Client(namespace), Request::ClientToMaster(request)) = (sender, &request) {
            self.begin_probe(namespace, request);
            self.put_may_wait =
                matches!(request, ClientToMaster::Reserve(it) if it.wait_ms > 0 && it.spare == 0);
        }
        match &request {
            // Its predecessor on this address has ended.
            Request::MemberToMaster(MemberToMaster::Register(_)) => {
                self.master_learns_of_an_end(MasterEvent::Request(conn, id, request));
            }
            _ => self.master_handles(MasterEvent::Request(conn, id, request)),
        }
        self.put_may_wait = false;
        self.check_policy();
        self.oracle.newest_put = None;
        self.end_probe();
        self.oracle.request_done();
    }

    /// Whether a request waits for reports; the oracle learns of it when it is resumed.
    fn parks(&mut self, conn: ConnId, id: RequestId, request: &Request, sender: Sender) -> bool {
        let waits = self.master.as_ref().is_some_and(|it| it.waits_for_reports(conn, request));
        if waits {
            self.coverage.hit(Point::Parked);
            self.parked.insert((conn, id), (request.clone(), sender));
        }
        waits
    }

    pub(crate) fn master_closed(&mut self, conn: ConnId) {
        let now = self.read_clock();
        let left = self.newest_conns.extract_if(.., |_, it| *it == conn).next();
        if let Some((client, _)) = left {
            self.oracle.client_goes_away(client, now);
        }
        self.oracle.conn_is_gone(conn);
        self.registered.retain(|_, it| *it != conn);
        self.master_handles(MasterEvent::Closed(conn));
    }

    pub(crate) fn master_tick(&mut self) {
        let now = self.read_clock();
        let Some(master) = &mut self.master else { return };
        if master.poll_timeout().is_some_and(|at| at <= now) {
            master.handle_timeout(now);
            self.drain_master(now);
        }
    }

    pub(crate) fn clock_resumes(&mut self) {
        let Some(stood) = self.clock.stopped_at.take() else { return };
        // The clock either lost the time or catches up.
        if self.rng.percent(50) {
            self.clock.resume_from(self.now, stood);
        }
    }

    /// The master does the next step of work that takes several.
    pub(crate) fn master_works(&mut self) {
        self.handle_timeouts();
        self.working = false;
        let now = self.read_clock();
        let Some(master) = &mut self.master else { return };
        self.coverage.hit(Point::WorkedOn);
        master.work(now);
        self.drain_master(now);
    }

    fn master_handles(&mut self, event: MasterEvent) {
        self.handle_timeouts();
        let now = self.read_clock();
        let Some(master) = &mut self.master else { return };
        master.handle(now, event);
        self.drain_master(now);
    }

    /// Handles due timeouts before the event, so that their effects are not attributed to it.
    pub(crate) fn handle_timeouts(&mut self) {
        let now = self.read_clock();
        let Some(master) = &mut self.master else { return };
        master.handle_timeout(now);
        self.drain_master(now);
    }

    pub(crate) fn drain_master(&mut self, now: Tick) {
        let charged = self.carry_out_master(now);
        charged.into_iter().for_each(|namespace| self.check_quota(namespace));
    }

    /// An event after which nodes are asked for memory that was planned before. Since then, limits may have
    /// changed, and nodes may have reported what is in view.
    fn master_handles_late(&mut self, event: MasterEvent) {
        self.handle_timeouts();
        let now = self.read_clock();
        let Some(master) = &mut self.master else { return };
        master.handle(now, event);
        self.carry_out_master(now);
    }

    /// Carries the effects of the master out. Returns the namespaces to whose quotas memory is charged.
    fn carry_out_master(&mut self, now: Tick) -> Vec<u8> {
        let mut charged = Vec::new();
        let mut resumed = false;
        self.departing = 0;
        while let Some(effect) = self.master.as_mut().and_then(Master::poll_effect) {
            let segment = match &effect {
                Effect::Reply(conn, ..)
                | Effect::Ask(conn, ..)
                | Effect::SendLedger(conn, ..)
                | Effect::Withdraw(conn, _) => self.segment_of(*conn),
                Effect::Notice(notice) => self.segment_in(notice),
                Effect::Disconnect(_) | Effect::Persist(_) | Effect::Confirm(_) | Effect::Restart(_) => None,
            };
            charged.extend(self.charged_namespaces(&effect));
            self.check_offers(&effect);
            self.check_walls(&effect);
            self.record_probe(&effect, segment);
            self.check_evicted(now, &effect, segment);
            if let Effect::Reply(conn, id, Reply::Reserved(reserved)) = &effect {
                self.check_full((*conn, *id), reserved);
            }
            if self.put_may_wait {
                self.check_waiting_put(now, &effect, segment);
            }
            if self.plan.ttl_percent > 0 {
                self.oracle.clock.stands = self.master.as_ref().is_some_and(|it| !it.unreported().is_empty());
            }
            self.oracle.on_effect(now, &effect, segment, &self.memories, &mut self.coverage);
            self.check_saved(&effect);
            match effect {
                Effect::Reply(conn, _, reply) if conn.0 >= AUDITOR => self.audit = Some(reply),
                Effect::Reply(conn, id, reply) => self.send_reply(conn, Way::Down, id, &reply),
                Effect::Ask(conn, id, request) => self.send_request(conn, Way::Down, id, &request),
                Effect::SendLedger(conn, id, request) => self.send_ledger(conn, id, &request),
                Effect::Withdraw(_, slot_refs) => self.withdraw(segment, &slot_refs),
                Effect::Disconnect(conn) => self.disconnect(conn),
                Effect::Notice(Notice::Resumed(conn, id)) => {
                    resumed = true;
                    self.resumes(conn, id);
                }
                Effect::Notice(notice) => self.notice(&notice, segment),
                Effect::Persist(version) => {
                    let saved = self.master.as_ref().map(Master::saved).unwrap_or_default();
                    self.begin_save(version, saved);
                }
                // There is one master.
                Effect::Confirm(_) => (),
                Effect::Restart(epoch) => self.superseded = Some(epoch),
            }
        }
        self.note_members();
        if let Some(floor) = self.superseded.take() {
            self.supersede(floor);
            return Vec::new();
        }
        self.oracle.effects_done();
        if resumed {
            self.oracle.request_done();
        }
        if !self.working && self.master.as_ref().is_some_and(Master::has_work) {
            self.working = true;
            let delay = self.rng.delay(2, 30);
            self.at(self.now + delay, Event::MasterWorks(self.master_incarnation));
        }
        // Objects written before the restart are charged when they get their name, possibly in the same
        // event.
        charged.into_iter().filter(|_| !resumed).collect()
    }

    fn note_members(&mut self) {
        if self.plan.stray_percent > 0 {
            let nodes = self.master.as_ref().map(|it| it.stat().nodes).unwrap_or_default();
            self.members = nodes.into_iter().map(|it| it.info.segment).collect();
        }
    }

    fn send_ledger(&mut self, conn: ConnId, id: RequestId, request: &MasterToMember) {
        let is_taken = self.accepts_now(conn);
        self.append_to_ledger(conn, id, request);
        if let Some(master) = self.master.as_mut().filter(|_| is_taken) {
            master.sent(id);
        }
    }

    /// The master withdraws uses in the memory of a node on its host.
    pub(crate) fn withdraw(&mut self, segment: Option<SegmentId>, slot_refs: &[SlotRef]) {
        self.coverage.hit(Point::Withdrawn);
        let memory = segment.and_then(|it| self.memories.get_mut(&it));
        memory.into_iter().for_each(|it| slot_refs.iter().for_each(|at| it.withdraw_use(*at)));
    }

    /// The namespaces whose quota an allocation is charged to. Objects without bytes are not charged.
    fn charged_namespaces(&self, effect: &Effect) -> Vec<u8> {
        let Effect::Ask(_, _, MasterToMember::Allocate(allocate)) = effect else { return Vec::new() };
        if allocate.items.iter().all(|it| it.len == 0) {
            return Vec::new();
        }
        let conn = self.conns.values().find(|it| it.client == allocate.client);
        let mut charged: Vec<_> = conn.map(|it| it.namespace).into_iter().collect();
        // For promotions, the length of the name identifies the namespace.
        let is_of =
            |it: &u8, len: u64| (keyspace::namespace_name(*it).len() + keyspace::KEY_BYTES) as u64 == len;
        let items = allocate.items.iter().filter(|_| allocate.client == ClientId::PROMOTER);
        charged.extend(items.flat_map(|item| (0..2u8).filter(|it| is_of(it, item.name_len))));
        charged
    }

    /// The master saves its state; of several pending versions only the newest is written.
    fn begin_save(&mut self, version: u64, saved: Saved) {
        self.coverage.hit(Point::StateSaved);
        if self.saving.replace((version, saved)).is_none() {
            let delay = self.rng.delay(3, self.plan.save_ms_max);
            self.at(self.now + delay, Event::MasterSaved(self.master_incarnation));
        }
    }

    /// A request that waited for reports is handled now.
    fn resumes(&mut self, conn: ConnId, id: RequestId) {
        self.coverage.hit(Point::Resumed);
        let Some((request, sender)) = self.parked.remove(&(conn, id)) else { return };
        self.oracle.effects_done();
        self.oracle.request_done();
        let complete = self.all_copies_are_known();
        self.oracle.on_request(conn, id, &request, sender, complete);
    }

    /// The member that a notice is about. A process that did not find its memory has the name of the one
    /// before it.
    fn segment_in(&self, notice: &Notice) -> Option<SegmentId> {
        let (Notice::NodeReady(name) | Notice::Departs(name, _)) = notice else {
            return None;
        };
        let named = self.oracle.segments_of(name);
        if named.len() <= 1 {
            return named.first().copied();
        }
        let nodes = self.master.as_ref().map(|it| it.stat().nodes).unwrap_or_default();
        let known = |it: &SegmentId| nodes.iter().find(|node| node.info.segment == *it);
        let absent: BTreeSet<_> = self.master.iter().flat_map(absent_members).collect();
        let is_lost = |it: &&SegmentId| {
            self.members.contains(it) && known(it).is_none() && !self.oracle.lost.contains_key(it)
        };
        match notice {
            // Those before have ended, but a message of one may arrive late.
            Notice::NodeReady(_) => {
                let is_ready = |it: &&SegmentId| known(it).is_some_and(|it| it.alive);
                let is_new = |it: &&SegmentId| is_ready(it) && !self.oracle.joined.contains(it);
                named.iter().find(is_new).or_else(|| named.last())
            }
            Notice::Departs(_, Departure::Absent) => {
                let is_new = |it: &&SegmentId| absent.contains(it) && !self.given_up.contains(it);
                named.iter().find(is_new).or_else(|| named.iter().find(|it| absent.contains(it)))
            }
            _ => named.iter().find(is_lost),
        }
        .copied()
    }

    fn notice(&mut self, notice: &Notice, segment: Option<SegmentId>) {
        self.log.note(|| format!("{notice:?}"));
        if let Notice::OtherCluster { cluster, .. } = notice {
            self.member_is_refused(*cluster);
        }
        match (notice, segment) {
            (Notice::Departs(_, Departure::Lost | Departure::Left), Some(segment)) => {
                self.leases_end_with(segment);
            }
            (Notice::Departs(_, Departure::Absent), Some(segment)) => _ = self.given_up.insert(segment),
            _ => (),
        }
        match notice {
            Notice::Departs(..) => self.departing += 1,
            Notice::NodeAbsent { .. } | Notice::NodeLost(..) | Notice::NodeLeft(..)
                if self.departing == 0 =>
            {
                self.coverage.hit(Point::DepartedInPieces);
            }
            _ => (),
        }
        self.coverage.hit(match notice {
            Notice::NodeReady(_) => Point::NodeReady,
            Notice::NodeSilent(_) => Point::NodeSilent,
            Notice::NodeAway(_) => Point::NodeAway,
            Notice::Departs(..) => return,
            Notice::NodeAbsent { kept: 0, .. } => Point::NodeAbsent,
            Notice::NodeAbsent { .. } => Point::NodeAbsentWithProtected,
            Notice::NodeLost(..) | Notice::NodeLeft(..) => Point::NodeLost,
            Notice::NodeDiscarded(_) => Point::NodeDiscarded,
            Notice::OtherCluster { .. } => Point::OtherCluster,
            Notice::Evicted(..) => Point::Evicted,
            Notice::Expired(_) => Point::Expired,
            Notice::Prefetched { .. } => Point::Prefetched,
            Notice::AwaitingReports(_) => Point::AwaitedReports,
            Notice::AllReported => Point::AllReported,
            Notice::Superseded(..) | Notice::Resumed(..) => return,
            Notice::Copied { .. } => return,
            Notice::PutGivenUp { .. } => Point::PutGivenUp,
            Notice::Got { .. } | Notice::Promoted { .. } | Notice::DemotionRefused { .. } => return,
            Notice::Stored { .. } | Notice::Removed { .. } => return,
        });
    }

    /// The sender on a connection: stale, if a newer connection of the same party was accepted. Messages of a
    /// dead process count until another connection replaces it.
    fn sender_of(&mut self, conn: ConnId, request: &Request) -> Sender {
        let Some(it) = self.conns.get(&conn).filter(|it| it.greeted) else { return Sender::Stale };
        match it.segment {
            None if self.newest_conns.get(&it.client) == Some(&conn) => Sender::Client(it.namespace),
            None => Sender::Stale,
            Some(segment) => {
                if matches!(request, Request::MemberToMaster(MemberToMaster::Register(_))) {
                    self.registered.insert(segment, conn);
                    self.given_up.remove(&segment);
                }
                match self.registered.get(&segment) == Some(&conn) {
                    true => Sender::Node(segment),
                    false => Sender::Stale,
                }
            }
        }
    }

    /// Records the memory that a single plain put needs, if only memory limits it.
    fn note_need(&mut self, conn: ConnId, id: RequestId, request: &Request) {
        let Request::ClientToMaster(ClientToMaster::Reserve(reserve)) = request else { return };
        let [item] = reserve.items.as_slice() else { return };
        let stats = self.master.iter().flat_map(|it| it.stat().namespaces);
        let is_limited = stats.into_iter().any(|it| it.quota.is_some() || it.waiting > 0);
        let is_plain = reserve.spare == 0 && reserve.avoid.is_empty() && item.options.stream.is_empty();
        // A waiting put is answered at its deadline, from the state at that time.
        let is_plain = is_plain && reserve.wait_ms == 0;
        let need = space_for(item.len).filter(|need| *need > 0 && is_plain && !is_limited);
        if let Some(need) = need {
            self.oracle.needs.insert((conn, id), need);
            self.oracle.newest_put = Some((conn, id));
        }
    }

    /// An object is evicted from a node's memory: recently promoted ones, and those a disk is reading, only
    /// if nothing else may be evicted.
    fn check_evicted(&mut self, now: Tick, effect: &Effect, segment: Option<SegmentId>) {
        let (Effect::Ask(_, _, MasterToMember::Retire(retire)), Some(segment)) = (effect, segment) else {
            return;
        };
        if !self.oracle.is_evicting() || self.oracle.tier.is_disk(segment) {
            return;
        }
        let Some(master) = &self.master else { return };
        let others = master.available().into_iter().find(|it| it.0 == segment).map_or(0, |it| it.2);
        for slot_ref in &retire.slot_refs {
            let generation = self.oracle.generation_of.get(&(segment, *slot_ref)).copied();
            if let Some(generation) = generation.filter(|it| !self.oracle.was_replaced(*it)) {
                self.oracle.evicted_protected(now, generation, others);
                // An object in several memories may have been evicted for another node.
                let places = self.oracle.generation_of.iter().filter(|(_, it)| **it == generation);
                let in_memory = places.filter(|((it, _), _)| !self.oracle.tier.is_disk(*it)).count();
                let is_read = in_memory == 1 && self.is_read_by_a_disk(segment, *slot_ref);
                self.oracle.evicted_demoting(generation, is_read, others, &mut self.coverage);
            }
        }
    }

    /// A put that may wait evicts an object.
    fn check_waiting_put(&mut self, now: Tick, effect: &Effect, segment: Option<SegmentId>) {
        let Effect::Ask(_, _, MasterToMember::Retire(retire)) = effect else { return };
        let Some(memory) = segment.filter(|it| !self.oracle.tier.is_disk(*it)) else { return };
        if !self.oracle.is_evicting() {
            return;
        }
        let disks = self.ready_disks();
        for slot_ref in &retire.slot_refs {
            let generation = self.oracle.generation_of.get(&(memory, *slot_ref)).copied();
            let Some(generation) = generation.filter(|it| !self.oracle.was_replaced(*it)) else { continue };
            // An object in several memories may have been evicted for another node, also one that does not
            // know yet what it holds or must remove.
            let places = self.oracle.generation_of.iter().filter(|(_, it)| **it == generation);
            let memories = places.map(|((it, _), _)| *it).filter(|it| !self.oracle.tier.is_disk(*it));
            let joined: Vec<_> = memories.filter(|it| self.oracle.joined.contains(it)).collect();
            let is_one = joined == [memory] && !self.oracle.is_being_decided(memory, *slot_ref);
            if is_one && !self.oracle.tier.has_disk_copy(generation) {
                self.oracle.evicted_for_waiting_put(now, generation, &disks, memory);
            }
        }
    }

    pub(crate) fn segment_of(&self, conn: ConnId) -> Option<SegmentId> {
        self.conns.get(&conn)?.segment
    }
}
