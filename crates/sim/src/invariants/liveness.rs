//! Liveness: after the faults stop, every session, view and reservation ends, and every node is a member.
//! Then catalog and memory agree, and deleting everything leaves nothing.

use std::collections::BTreeSet;

use tiffin_core::master::Master;
use tiffin_node::{Node, SlotState, disk::Disk};
use tiffin_types::{
    SegmentId, SlotRef,
    message::{ClientToMaster, DeleteMatching, NodeStat, Pattern, Reply, Resolve, ResolveOutcome, Usage},
};

use crate::{
    coverage::Point,
    disk::DiskShell,
    invariants::drains::is_drained_to_nothing,
    keyspace::{KEYS, NAMESPACES, Name},
    node::name_in_heap,
    world::{END_EVENTS_MAX, Phase, World},
};

/// Longer than a few messages take, there and back.
const DELIVERY_MS: u64 = 500;

impl World {
    /// Ends the faults, and checks that everything ends.
    pub(crate) fn end_faults_and_check(&mut self) {
        self.end_faults();
        let expires = |it: &Master| it.stat().expiring > 0;
        if !self.wait_for("drain jobs to end", Self::drains_rest)
            || !self.wait_for("every session to end", |it| it.is_calm())
            || !self.wait_for("TTLs to end", |it| !it.master.as_ref().is_some_and(expires))
            || !self.deliver_messages()
            || !self.wait_for("the nodes to confirm", |it| it.no_removal_is_pending())
            // A node may learn only now that a client has died.
            || !self.wait_for("reservations to end", Self::is_nothing_reserved)
            || !self.copies_are_made_again()
        {
            return;
        }
        self.coverage.hit(Point::CheckedLiveness);
        self.check_nothing_leaks("when nothing is under way");
        self.check_drains_ended();
        self.check_agreement();
        self.check_answers();
        self.check_leases_kept();
        self.phase = Phase::Leaving;
        (0..self.clients.len()).for_each(|client| self.leave(client));
        if !self.wait_for("every client to leave", |it| it.clients.iter().all(|it| !it.alive)) {
            return;
        }
        if !self.wait_for("the nodes to forget them", |it| it.nodes.iter().all(has_no_clients))
            || !self.deliver_messages()
            || !self.wait_for("the nodes to confirm", |it| it.no_removal_is_pending())
            || !self.copies_are_made_again()
        {
            return;
        }
        self.check_nothing_leaks("after all clients have left");
        self.check_leases_ended();
        self.check_released_is_freed();
        self.check_agreement();
        for namespace in 0..NAMESPACES.len() as u8 {
            let delete = DeleteMatching { pattern: Pattern::All, force: true, wait_ms: 10_000 };
            self.audit(namespace, ClientToMaster::DeleteMatching(delete));
        }
        if self.wait_for("every byte to be free", |it| it.nodes.iter().all(is_empty)) {
            self.coverage.hit(Point::CheckedRest);
        }
    }

    fn end_faults(&mut self) {
        self.phase = Phase::Calm;
        self.log.line(self.now, "calm", &[], &[]);
        self.clock_resumes();
        self.clock.set_rate(self.now, 100);
        // A clock that was set back stands still for the master until it catches up.
        self.clock.catch_up(self.now);
        self.clients.iter_mut().for_each(|it| it.clock_percent = 100);
        // Some clients are idle from now on, and keep their offers.
        for client in 0..self.clients.len() {
            if self.rng.percent(50) {
                self.return_offers(client);
            }
        }
        for node in 0..self.nodes.len() {
            if self.nodes.get(node).is_some_and(|it| it.left_pool.is_some()) {
                self.crash_node(node, 20);
            }
            let Some(disk) = self.disk(node) else { continue };
            (disk.log.fails_until, disk.log.full_until, disk.log.slow_until, disk.log.lose_completions) =
                (0, 0, 0, 0);
            // Operations whose completions were lost end with their process.
            if disk.log.has_lost {
                self.crash_node(node, 20);
            }
        }
    }

    /// Waits until messages in flight have arrived.
    fn deliver_messages(&mut self) -> bool {
        let until = self.now + DELIVERY_MS;
        // A sample may expire at any time, so there may always be one more message.
        let all_heard = |it: &Self| it.conns.values().all(crate::network::Conn::is_delivered);
        self.wait_for("words to arrive", |it| it.now >= until && all_heard(it))
    }

    fn is_calm(&self) -> bool {
        let quiet = |it: &crate::client::Client| {
            it.sessions.is_empty()
                && it.views.is_empty()
                && !it.calls.values().any(|it| it.has_waiter())
                && it.links.values().all(|it| it.conn.is_none() || it.up)
        };
        let stops = self.nodes.iter().map(|it| it.stopped_until);
        let goes_on = stops.chain(self.clients.iter().map(|it| it.stopped_until)).all(|it| it <= self.now);
        let client = self.clients.iter().filter(|it| it.alive).all(quiet);
        let node = self.nodes.iter().all(|it| it.core.as_ref().is_some_and(Node::is_member));
        // Dead nodes have been declared lost by now, and this epoch of the master knows all the others.
        let is_up = |it: SegmentId| self.node_of(it).is_some() || self.disk_of(it).is_some();
        let lives = |it: &NodeStat| it.alive && is_up(it.info.segment);
        let members = self.nodes.len() + self.disks().count();
        let knows = |nodes: &[NodeStat]| nodes.len() == members && nodes.iter().all(lives);
        let master = |it: &Master| knows(&it.stat().nodes) && it.moving_count() == 0;
        let disk = |it: &DiskShell| it.log.is_idle() && it.core.as_ref().is_some_and(Disk::is_member);
        goes_on
            && self.masters_rest()
            && client
            && node
            && self.disks().all(disk)
            && self.leader().is_some_and(master)
            && self.transfers.is_empty()
            && self.fetching.is_empty()
            && self.is_nothing_reserved()
    }

    /// Whether no removal is pending. Samples that have waited too long are removed at any time: none is
    /// about to be.
    fn no_removal_is_pending(&self) -> bool {
        let now = self.leader_clock();
        let rests = |it: &Master| {
            let moves = it.unconfirmed_count() + it.moving_count();
            moves == 0 && it.poll_timeout().is_none_or(|at| at > now)
        };
        self.leader().is_some_and(rests) && self.disks().all(|it| it.log.is_idle())
    }

    pub(super) fn is_nothing_reserved(&self) -> bool {
        let free = |it: &Node| it.usage().granted == 0 && it.usage().held == 0;
        self.nodes.iter().filter_map(|it| it.core.as_ref()).all(free)
    }

    /// Runs until a condition holds; fails if that takes too long.
    pub(super) fn wait_for(&mut self, what: &str, holds: impl Fn(&Self) -> bool) -> bool {
        let until = self.events + END_EVENTS_MAX;
        while !holds(self) {
            if self.events > until {
                let state = self.describe_state();
                self.oracle.fail("liveness", || format!("timed out while waiting for {what}: {state}"));
            }
            if !self.step() {
                return false;
            }
        }
        true
    }

    fn describe_state(&self) -> String {
        let clients = self.clients.iter().filter(|it| it.alive);
        let clients: Vec<_> =
            clients.map(|it| (it.id, &it.sessions, &it.views, &it.calls, it.leaving, &it.goodbyes)).collect();
        let nodes: Vec<_> = self.nodes.iter().filter_map(|it| it.core.as_ref()).collect();
        let nodes: Vec<_> = nodes.iter().map(|it| (it.is_member(), it.client_count(), it.usage())).collect();
        let disks: Vec<_> = self.disks().map(|it| (it, it.core.as_ref().map(Disk::is_member))).collect();
        let master = self.leader().map(|it| (it.moving_count(), it.stat().nodes));
        let disks = format!("{disks:?} {master:?}");
        let copies = self.short_of_copies();
        format!("{copies:?} {clients:?} {nodes:?} {disks} and {} transfers", self.transfers.len())
    }

    /// Every copy in the catalog exists, and every existing copy is in the catalog.
    fn check_agreement(&mut self) {
        let mut known: BTreeSet<(SegmentId, SlotRef)> = BTreeSet::new();
        for namespace in 0..NAMESPACES.len() as u8 {
            for key in 0..KEYS.len() as u8 {
                let name = Name { namespace, key };
                let resolve = Resolve {
                    keys: vec![name.key()],
                    touch: false,
                    lease: false,
                    locate: true,
                    ..Resolve::default()
                };
                match self.audit(namespace, ClientToMaster::Resolve(resolve)) {
                    Some(Reply::Resolved(resolved)) => match resolved.items.into_iter().next() {
                        Some(ResolveOutcome::Found(found)) => {
                            self.audited(name, Some(&found));
                            known.extend(found.replicas.iter().map(|it| (it.segment, it.slot_ref())));
                        }
                        Some(ResolveOutcome::Absent) => self.audited(name, None),
                        other => self
                            .oracle
                            .fail("liveness", || format!("after all has ended, {name:?} is {other:?}")),
                    },
                    other => self.oracle.fail("liveness", || format!("the master answers {other:?}")),
                }
            }
        }
        let mut there = BTreeSet::new();
        for shell in &self.nodes {
            let Some(memory) = self.memories.get(&shell.segment) else { continue };
            let readable = memory.slots().filter(|(_, it)| it.state == SlotState::Committed);
            there.extend(readable.map(|(slot_ref, _)| (shell.segment, slot_ref)));
            let Some(disk) = &shell.disk else { continue };
            there.extend(disk.log.copies.keys().map(|stamp| (disk.segment, SlotRef::on_disk(*stamp))));
        }
        if known != there {
            let missing: Vec<_> = known.difference(&there).map(|it| (it, self.describe_copy(*it))).collect();
            let leaks: Vec<_> = there.difference(&known).map(|it| (it, self.describe_copy(*it))).collect();
            self.oracle.fail("memory", || {
                format!("in the catalog but missing: {missing:?}; not in the catalog: {leaks:?}")
            });
        }
    }

    fn disks(&self) -> impl Iterator<Item = &DiskShell> {
        self.nodes.iter().filter_map(|it| it.disk.as_deref())
    }

    fn describe_copy(&self, place: (SegmentId, SlotRef)) -> String {
        let record = self.memories.get(&place.0).and_then(|it| Some((it, it.load(place.1)?)));
        let name = record.and_then(|(memory, record)| name_in_heap(memory, record));
        let generation = self.oracle.generation_of.get(&place);
        let history = generation.and_then(|it| self.oracle.objects.get(it));
        format!("{name:?} {generation:?} {history:?}")
    }
}

fn is_empty(node: &crate::node::NodeShell) -> bool {
    let has_none = node.disk.as_ref().is_none_or(|it| it.log.copies.is_empty() && it.log.is_idle());
    let is_free = |it: &Node| {
        let Usage { capacity, free, offered, metadata, .. } = it.usage();
        // A pool keeps some memory for records, and what could not be allocated again.
        let kept = if it.restores() { metadata } else { 0 };
        free + kept == capacity && offered == 0
    };
    has_none && node.core.as_ref().is_none_or(|it| is_free(it) || is_drained_to_nothing(it))
}

fn has_no_clients(node: &crate::node::NodeShell) -> bool {
    node.core.as_ref().is_none_or(|it| it.client_count() == 0)
}
