//! Drain jobs: an operator starts and cancels them, and clients in the processes of the nodes move the
//! objects away.
//!
//! A move is what `tiffin_client::relocate` does: it asks why the object exists, reads it, and puts it in
//! place of the generation that it read, with the same pins, TTL and number of copies. While the faults last,
//! the operator cancels any job. After that only those whose objects cannot be moved.

use std::collections::BTreeSet;

use tiffin_core::master::DrainRefusal;
use tiffin_node::Event as CoreEvent;
use tiffin_session::{GetOutcome, Put, PutOutcome, PutRequest};
use tiffin_types::{
    Generation, REPLICAS_MAX,
    message::{
        ClientToMaster, DrainJob, DrainReport, DrainState, Explain, JobId, OnExists, PutOptions, Reply,
        SOFT_PIN_DEFAULT, Why,
    },
};

use crate::{
    client::{ClientEvent, Kind, Purpose, SessionId, Target},
    coverage::Point,
    draining::{Draining, Move, Moved},
    keyspace::{self, Name},
    node::{NodeEvent, node_name},
    world::{Event, Phase, World},
};

/// The interval at which the operator looks at the jobs once the faults have stopped.
const OPERATOR_MS: u64 = 50;

impl World {
    /// Whether a client belongs to the processes of nodes, and only moves objects.
    pub(crate) fn is_mover(&self, client: usize) -> bool {
        self.plan.has_drains && client >= self.plan.clients
    }

    /// The namespace of such a client.
    pub(crate) fn mover_namespace(&self, client: usize) -> u8 {
        (client - self.plan.clients) as u8
    }

    /// The operator looks at the jobs, and starts or cancels one.
    pub(crate) fn operate(&mut self) {
        match self.phase {
            Phase::Faults => {
                let pause = self.rng.between(1, 2 * self.plan.drain_gap);
                self.at(self.now + pause, Event::Operate);
                match self.rng.percent(60) {
                    true => self.start_drain(),
                    false => self.cancel_any_drain(),
                }
            }
            Phase::Calm => {
                self.at(self.now + OPERATOR_MS, Event::Operate);
                self.look_at_drains();
            }
            Phase::Leaving => (),
        }
    }

    fn start_drain(&mut self) {
        let count = if self.rng.once_in(6) { 2 } else { 1 };
        let nodes = self.nodes.len() as u64;
        let first = self.rng.below(nodes);
        let name = |it: u64| {
            let node = ((first + it) % nodes) as usize;
            node_name(node, self.nodes.get(node).map_or(0, |it| it.incarnation))
        };
        let sources: Vec<_> = (0..count).map(name).collect();
        let targets = if self.rng.once_in(4) { vec![name(count)] } else { Vec::new() };
        let id = JobId { first: self.drains.jobs.len() as u64, second: self.rng.any() };
        let job = DrainJob { id, created_ms: self.now, sources, targets, concurrency: 1 };
        self.log.line(self.now, "drain", &[id.first, first, count], &[]);
        self.log.note(|| format!("{job:?}"));
        self.handle_timeouts();
        let now = self.read_clock();
        let Some(master) = &mut self.master else { return };
        let started = master.start_drain(now, job);
        self.drain_master(now);
        self.coverage.hit(match started {
            Ok(()) => Point::DrainStarted,
            Err(DrainRefusal::NoSegment) => Point::DrainOfNothing,
            Err(_) => Point::DrainRefused,
        });
        self.drains.jobs.push(id);
    }

    fn cancel_any_drain(&mut self) {
        // A node that is away does not learn of it before it reports again.
        let away = self.nodes.iter().filter(|it| !it.linked).filter_map(|it| it.draining.as_ref());
        let away: Vec<_> = away.map(|it| it.report.job.id).collect();
        let jobs = self.drains.jobs.clone();
        let Some(id) = self.rng.pick(if away.is_empty() { &jobs } else { &away }).copied() else { return };
        if self.cancel_drain(id) {
            self.coverage.hit(Point::DrainCancelled);
        }
    }

    fn cancel_drain(&mut self, id: JobId) -> bool {
        self.log.line(self.now, "cancel drain", &[id.first], &[]);
        self.handle_timeouts();
        let now = self.read_clock();
        let is_cancelled = self.master.as_mut().is_some_and(|it| it.cancel_drain(now, id).is_ok());
        self.drain_master(now);
        is_cancelled
    }

    /// After the faults every job ends, or only objects that cannot be moved are left. Those are cancelled.
    fn look_at_drains(&mut self) {
        self.handle_timeouts();
        let now = self.read_clock();
        let Some(master) = &mut self.master else { return };
        let is_active = |it: &JobId| master.drain_stat(now, *it).is_some_and(|it| it.status.is_active());
        let open: BTreeSet<_> = self.drains.jobs.iter().copied().filter(is_active).collect();
        self.drain_master(now);
        let stuck: Vec<_> = open.iter().copied().filter(|it| self.is_stuck(*it)).collect();
        (self.drains.open, self.drains.has_looked) = (open, true);
        for id in stuck {
            self.coverage.hit(Point::DrainBlocked);
            self.cancel_drain(id);
        }
    }

    /// Whether only objects that cannot be moved are left of a job.
    fn is_stuck(&self, id: JobId) -> bool {
        let mut sources = self.nodes.iter().filter(|it| it.drains(id)).peekable();
        let has_any = |it: &crate::node::NodeShell| {
            let held = it.core.iter().flat_map(tiffin_node::Node::inventory);
            let mut held = held.map(|record| (it.segment, record.slot_ref)).peekable();
            held.peek().is_some() && held.all(|copy| self.drains.stuck.contains(&copy))
        };
        sources.peek().is_some() && sources.any(has_any)
    }

    /// Whether the operator has seen that every job has ended, and every node knows that.
    pub(crate) fn drains_rest(&self) -> bool {
        let rests = |it: &crate::node::NodeShell| {
            it.draining.as_ref().is_none_or(|it| it.report.state == DrainState::Empty)
        };
        let rests = self.nodes.iter().all(rests) && self.drains.open.is_empty() && self.drains.has_looked;
        !self.plan.has_drains || rests
    }

    /// The master has started or ended the job of a node.
    pub(crate) fn drain_job_changed(&mut self, node: usize, job: Option<DrainJob>) {
        let number = job.as_ref().map_or(u64::MAX, |it| it.id.first);
        self.log.line(self.now, "drain job", &[node as u64, number], &[]);
        let Some(shell) = self.nodes.get_mut(node) else { return };
        let Some(job) = job else {
            self.coverage.hit(Point::DrainStopped);
            return shell.draining = None;
        };
        let id = job.id;
        if shell.drains(id) {
            return;
        }
        let report = DrainReport { job, ..DrainReport::default() };
        shell.draining = Some(Draining { report, moved_before: 0 });
        self.node_at(1, node, NodeEvent::DrainRound(id));
    }

    /// A node reports how far its job is.
    pub(crate) fn drain_round(&mut self, node: usize, id: JobId) {
        let pause = self.rng.between(20, 120);
        let Some(shell) = self.nodes.get_mut(node).filter(|it| it.drains(id)) else { return };
        let (Some(core), Some(draining)) = (&shell.core, &mut shell.draining) else { return };
        let usage = core.usage();
        let is_empty = core.inventory().is_empty() && usage.granted == 0 && usage.offered == 0;
        let report = &mut draining.report;
        let has_moved = report.succeeded > draining.moved_before;
        draining.moved_before = report.succeeded;
        report.state = match is_empty {
            true => DrainState::Empty,
            // A node tries more often than that; the master does not see the difference.
            false if report.failed > 0 && report.blocked == 0 && !has_moved => DrainState::Failed,
            false => DrainState::Moving,
        };
        let report = report.clone();
        self.coverage.hit(match report.state {
            DrainState::Moving => Point::DrainMoving,
            DrainState::Empty => Point::DrainEmpty,
            DrainState::Failed => Point::DrainFailed,
        });
        self.node_handles(node, CoreEvent::DrainReport(report));
        if let Some(draining) = self.nodes.get_mut(node).and_then(|it| it.draining.as_mut()) {
            (draining.report.failed, draining.report.blocked) = (0, 0);
        }
        self.node_at(pause, node, NodeEvent::DrainRound(id));
    }

    /// A client of the nodes' processes begins to move an object.
    pub(crate) fn move_next(&mut self, client: usize) {
        if self.phase == Phase::Leaving {
            return;
        }
        let pause = self.rng.between(2, 30);
        self.client_at(pause, client, ClientEvent::Work);
        let Some(it) = self.clients.get(client).filter(|it| !it.leaving && it.sessions.is_empty()) else {
            return;
        };
        let namespace = it.namespace;
        let mut held = Vec::new();
        for (node, shell) in self.nodes.iter().enumerate() {
            let (Some(core), Some(draining)) = (&shell.core, &shell.draining) else { continue };
            let is_own = |it: &str| keyspace::namespace(it.as_bytes()) == Some(namespace);
            let records = core.inventory().into_iter().filter(|it| is_own(&it.namespace));
            let names = records.filter_map(|it| Some((it.slot_ref, Name::of(namespace, &it.key)?)));
            held.extend(
                names.map(|(slot_ref, name)| (node, draining.report.job.id, (shell.segment, slot_ref), name)),
            );
        }
        let Some(&(node, job, copy, name)) = self.rng.pick(&held) else { return };
        let Some(id) = self.begin_move(client, Move { node, job, copy, name, here: None }) else { return };
        self.begin_session(client, Kind::Move);
        let explain = Explain { keys: vec![name.key()], report_wait_ms: 200 };
        self.call(client, Target::Master, ClientToMaster::Why(explain), Purpose::Simple(id));
    }

    /// The next session of a client is a step of a move.
    fn begin_move(&mut self, client: usize, step: Move) -> Option<SessionId> {
        let (_, _, id) = self.next_session(client)?;
        self.drains.moves.insert((client, id.0), step);
        Some(id)
    }

    /// The master has explained the object, or the call has failed: it is read next.
    pub(crate) fn move_explained(&mut self, client: usize, id: SessionId, reply: Option<Reply>) {
        let Some(step) = self.drains.moves.remove(&(client, id.0)) else { return };
        let here = match reply {
            Some(Reply::Why(answers)) => answers.into_iter().next(),
            _ => return self.moved(&step, Moved::Failed),
        };
        let Some(Why::Here(here)) = here else { return self.moved(&step, Moved::Gone) };
        let incarnation = self.nodes.get(step.node).map_or(0, |it| it.incarnation);
        if !here.nodes.contains(&node_name(step.node, incarnation)) {
            return self.moved(&step, Moved::Gone);
        }
        // A client cannot put an object with the pins of others.
        if here.pins.iter().any(|it| !it.is_empty()) {
            return self.moved(&step, Moved::Stuck);
        }
        let name = step.name;
        if self.begin_move(client, Move { here: Some(here), ..step }).is_some() {
            self.begin_get_of(client, vec![name]);
        }
    }

    /// The object is read: it is put in place of the generation that was read.
    pub(crate) fn move_read(&mut self, client: usize, id: SessionId, outcome: &GetOutcome) {
        let Some(step) = self.drains.moves.remove(&(client, id.0)) else { return };
        let Some(here) = &step.here else { return };
        match outcome {
            GetOutcome::Read(found) if found.generation == here.found.generation => (),
            GetOutcome::Read(_) | GetOutcome::Absent => return self.moved(&step, Moved::Gone),
            _ => return self.moved(&step, Moved::Blocked),
        }
        let replicas = here.copies_wanted.clamp(1, REPLICAS_MAX);
        let options = PutOptions {
            replicas,
            on_exists: OnExists::Replace,
            hard_pin: !here.pins.is_empty(),
            soft_pin_ms: here.found.soft_pin.then_some(SOFT_PIN_DEFAULT),
            replaces: Some(here.found.generation),
            ttl_ms: here.found.expires_in_ms.map(|it| it.max(1)),
            ..PutOptions::default()
        };
        let (name, len) = (step.name, here.found.len);
        let value = self.oracle.new_value(name, len);
        self.oracle.wants_copies(value, replicas);
        let requests = vec![PutRequest { key: name.key(), len, options, ready: Vec::new() }];
        let (wait_ms, confirm_ms) = (self.rng.between(0, 200), self.rng.between(0, 300));
        let same_host = self.clients.get(client).map(|it| it.same_host.clone()).unwrap_or_default();
        let put = Put::new(requests).waiting(wait_ms).confirming(confirm_ms).publishing(same_host);
        if self.begin_move(client, step).is_some() {
            self.begin_session(client, Kind::Put { put, values: vec![value] });
        }
    }

    /// The put has ended.
    pub(crate) fn move_put(&mut self, client: usize, id: SessionId, outcome: &PutOutcome) {
        let Some(step) = self.drains.moves.remove(&(client, id.0)) else { return };
        let old = step.here.as_ref().map(|it| it.found.generation).unwrap_or_default();
        let moved = match outcome {
            PutOutcome::Stored { generation, .. } => {
                self.coverage.hit(Point::ObjectMoved);
                self.check_moved_pins(old, *generation);
                Moved::Done
            }
            // Another value has the name, or none; or it is a sample, or its pins have changed.
            PutOutcome::Exists(generation) if *generation == old => Moved::Stuck,
            PutOutcome::Exists(_) => Moved::Gone,
            PutOutcome::Full(_) | PutOutcome::NoNode | PutOutcome::OverQuota(_) => Moved::Stuck,
            PutOutcome::Refused(_) => Moved::Failed,
            PutOutcome::Behind(_) | PutOutcome::Invalid(_) | PutOutcome::Unreachable(_) => Moved::Blocked,
        };
        self.moved(&step, moved);
    }

    /// A step of a move was given up.
    pub(crate) fn move_given_up(&mut self, client: usize, id: SessionId) {
        if let Some(step) = self.drains.moves.remove(&(client, id.0)) {
            self.moved(&step, Moved::Failed);
        }
    }

    /// A client that moves objects has died.
    pub(crate) fn moves_end(&mut self, client: usize) {
        self.drains.moves.retain(|(of, _), _| *of != client);
    }

    fn moved(&mut self, step: &Move, moved: Moved) {
        self.log.note(|| format!("{moved:?} {step:?}"));
        if moved == Moved::Stuck && self.phase == Phase::Calm {
            self.drains.stuck.insert(step.copy);
        }
        let len = step.here.as_ref().map_or(0, |it| it.found.len);
        let shell = self.nodes.get_mut(step.node).filter(|it| it.drains(step.job));
        let Some(draining) = shell.and_then(|it| it.draining.as_mut()) else { return };
        match moved {
            Moved::Done => {
                draining.report.succeeded += 1;
                draining.report.bytes += len;
            }
            Moved::Gone => (),
            Moved::Blocked | Moved::Stuck => draining.report.blocked += 1,
            Moved::Failed => draining.report.failed += 1,
        }
    }

    /// A moved object has the pins that were recorded on the old one, as long as those hold.
    fn check_moved_pins(&mut self, old: Generation, new: Generation) {
        let history = self.oracle.objects.get(&old);
        if history.is_none_or(|it| it.written_pins.is_empty()) {
            return;
        }
        self.coverage.hit(Point::CheckedMovedPins);
        let memories = self.memories.iter().filter(|(_, it)| it.alive);
        let mut copies = memories.flat_map(|(_, it)| it.slots());
        let lacks_pin = copies.any(|(_, it)| it.generation == new && !it.hard_pin);
        if lacks_pin {
            let history = history.cloned();
            self.oracle.fail("p4", || format!("{new} was moved without the pins of {old}: {history:?}"));
        }
    }
}
