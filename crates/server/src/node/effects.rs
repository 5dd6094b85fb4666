//! Carries out the effects of a node's core, and passes it the events of the node's sockets.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tiffin_measure::{Measures, Series, growth};
use tiffin_node::{Effect, Event, TableRange};
use tiffin_rpc::{Masters, Outbox, Reach, SendError, Via, token_matches};
use tiffin_transport::tcp::frame::RequestHead;
use tiffin_transport::{self as transport, Denied, shm, tcp};
use tiffin_types::message::{LimitUse, Measured, MemberToMaster, NodeInfo, Refusal, Reply, SOCKET_LIMITS};
use tiffin_types::{ClientId, Extent, RequestId, SlotId, SlotRef, Stamp};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::disk::DiskMember;
use super::link::{self, LedgerReads, LinkEvent, reject};
use super::records::{extent, in_control, written};
use super::{Shared, State, pool};
use crate::access::{Source, TokenProblem};
use crate::listen::limit_stat;
use crate::supervise::faults::{Point, strike};

/// What to do when a memory pool gets no more memory.
const POOL_FULL: &str = "give the memory pool a tmpfs of its own, or enlarge it (`mount -o remount,size=…`)";

/// How long a read waits for the node to learn what the master has published.
const LEDGER_TIME_MAX: Duration = Duration::from_secs(1);

/// A reply to send after the lock is released.
type Answer = (Outbox, RequestId, Reply);

impl Shared {
    /// Lets the core decide, and carries out its effects.
    pub(super) fn handle(&self, event: Event) {
        let mut answers = Vec::new();
        {
            let mut state = self.lock();
            state.core.handle(event);
            state.drain(&mut answers);
        }
        self.decided.notify_waiters();
        for (outbox, id, reply) in answers {
            outbox.reply(id, &reply);
        }
    }
}

impl Shared {
    pub(super) fn disk(&self, segment: u64) -> Option<Arc<DiskMember>> {
        let disks = self.disks.get()?.iter().filter_map(Weak::upgrade);
        disks.into_iter().find(|it| it.segment().0 == segment)
    }

    /// Whether the master has withdrawn this use, and this node has not read the retire yet.
    fn is_withdrawn(&self, range: &RequestHead) -> bool {
        self.memory.is_withdrawn(range.slot, range.stamp)
    }

    /// Ends or begins a copy. An end may free memory, of which the master must learn; a begin may claim an
    /// offer.
    pub(super) fn ended<T>(&self, end: impl FnOnce(&mut State) -> T) -> T {
        let mut answers = Vec::new();
        let mut state = self.lock();
        let result = end(&mut state);
        state.drain(&mut answers);
        drop(state);
        for (outbox, id, reply) in answers {
            outbox.reply(id, &reply);
        }
        result
    }
}

impl State {
    /// Allocates memory of the pool for objects again.
    fn restore(&mut self, extents: Vec<Extent>) {
        let restored = extents.iter().try_for_each(|it| self.memory.restore_pages(extent(*it)));
        if let Err(error) = &restored {
            tracing::warn!(%error, hint = POOL_FULL, "memory is not given back to objects");
        }
        self.core.handle(Event::Restored(extents, restored.is_ok()));
    }

    /// Provides memory for records and names. If there is none, the server fails.
    fn back(&self, range: TableRange) -> bool {
        let backed = self.memory.back(in_control(&self.memory, range));
        if let Err(error) = &backed {
            let why = format!("{error}; its file system is full\n\nhint: {POOL_FULL}");
            self.supervisor.fail("the memory pool", &why);
        }
        backed.is_ok()
    }

    /// Adds what the shell measures to a heartbeat.
    fn fill_in(&mut self, request: &mut MemberToMaster) {
        if let MemberToMaster::Heartbeat(beat) = request
            && self.master.is_some()
        {
            beat.measured = grown(&self.counters.served_times, &mut self.reported);
            beat.limits = self.sockets.get().and_then(Weak::upgrade).map_or_else(Vec::new, limits);
        }
    }

    /// Carries out the core's effects in order, except replies to clients, which are sent last.
    pub(super) fn drain(&mut self, answers: &mut Vec<Answer>) {
        strike(Point::NodeCore);
        if self.supervisor.failure().is_some() {
            return;
        }
        while let Some(effect) = self.core.poll_effect() {
            match effect {
                Effect::Slot { slot, record } => self.writer.write_slot(slot.0, &written(&record)),
                Effect::Withdraw { slot } => self.writer.retire(slot.0),
                Effect::Park { slot } => self.writer.park(slot.0),
                Effect::Reclaim { slot } => self.writer.reclaim(slot.0),
                Effect::Recall(slot_refs) => {
                    let recall = |it: SlotRef| (it, self.writer.recall(it.slot.0, it.stamp.0));
                    let outcomes = slot_refs.into_iter().map(recall).collect();
                    self.core.handle(Event::Recalled(outcomes));
                }
                Effect::Fetch(item) => {
                    if let Err(refused) = self.fetches.try_send(item) {
                        self.core.handle(Event::Fetched(refused.into_inner().into, false));
                    }
                }
                Effect::Heap { offset, bytes } => self.writer.write_heap(offset, &bytes),
                Effect::Withhold(withheld) => self.memory.return_pages(extent(withheld)),
                Effect::Restore(extents) => self.restore(extents),
                // A store into a page that does not exist would kill the process with SIGBUS and no message.
                Effect::Back(range) if !self.back(range) => return,
                Effect::Back(_) => (),
                Effect::StampHighWater(mark) => self.writer.set_stamp_high_water(mark),
                Effect::Epoch { epoch, instance, cluster } => {
                    self.writer.set_epoch(epoch, instance, cluster.0)
                }
                Effect::Refused(refusal) => {
                    self.refusal = Some(refusal);
                    self.master.iter().for_each(Outbox::close);
                }
                Effect::Membership(is_member) => self.writer.set_member(is_member),
                Effect::Reply { conn, id, reply } => {
                    self.traced.end((conn, id), &reply);
                    let replies = self.conns.get(&conn);
                    answers.extend(replies.map(|it| (it.of(id).clone(), id, reply)));
                }
                Effect::AskMaster(id, mut request) => {
                    self.fill_in(&mut request);
                    let sent = self.master.as_ref().map(|master| master.request(id, &request));
                    if let Some(Err(SendError::TooLarge(error))) = sent {
                        tracing::error!(%error, "cannot send a request to the master");
                    }
                }
                Effect::AnswerMaster(id, reply) => {
                    if let Some(master) = &self.master {
                        master.reply(id, &reply);
                    }
                }
                Effect::RejectMaster { served, offered } => {
                    reject(served, offered);
                    self.master.iter().for_each(Outbox::close);
                }
                Effect::Drain(job) => drop(self.drain_job.send_replace(job)),
                Effect::Disconnect(conn) => {
                    if let Some(replies) = self.conns.remove(&conn) {
                        replies.close();
                    }
                }
            }
        }
    }
}

/// The growth of each histogram since the last heartbeat.
pub(super) fn grown(measures: &Measures, reported: &mut Vec<Series>) -> Vec<Measured> {
    let now = measures.series();
    let grown = growth(&now, reported).into_iter().map(Measured::from).collect();
    *reported = now;
    grown
}

impl link::Linked for Shared {
    fn master(&self) -> &Masters {
        &self.master
    }

    fn token(&self) -> &str {
        &self.token
    }

    fn info(&self) -> &NodeInfo {
        &self.info
    }

    // A node that does not share memory behaves like one on another host.
    fn via(&self) -> Via {
        Via { reach: Reach::near_if(self.attachments.is_some()), tls: self.tls.clone() }
    }

    fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Acquire)
    }

    fn is_member(&self) -> bool {
        self.lock().core.is_member()
    }

    fn take_refusal(&self) -> Option<Refusal> {
        self.state.lock_anyway().refusal.take()
    }

    fn status(&self) -> &watch::Sender<link::LinkStatus> {
        &self.status
    }

    fn redirect(&self, master: Option<Outbox>) -> Option<Outbox> {
        if self.state.has_failed() {
            return None;
        }
        std::mem::replace(&mut self.lock().master, master)
    }

    fn has_ledger(&self) -> bool {
        true
    }

    fn ledger_reads(&self) -> Option<&LedgerReads> {
        Some(&self.ledger_reads)
    }

    fn make_journal(&self) -> Option<(String, u64)> {
        pool::make_journal(&self.memory)
    }

    fn has_reservations(&self) -> bool {
        // An offer may have been claimed and published as well.
        let usage = self.lock().core.usage();
        usage.granted > 0 || usage.offered > 0
    }

    fn apply(&self, event: LinkEvent) {
        if self.state.has_failed() {
            return;
        }
        self.handle(match event {
            LinkEvent::Linked => {
                let outlives = self.info.outlives && !self.is_pool_gone.load(Ordering::Acquire);
                Event::Linked(NodeInfo { outlives, ..self.info.clone() })
            }
            LinkEvent::Unlinked => Event::Unlinked,
            LinkEvent::Request(id, request) => Event::MasterRequest(id, request),
            LinkEvent::LedgerRead(words) => Event::LedgerRead(words),
            LinkEvent::Reply(id, reply) => Event::MasterReply(id, reply),
            LinkEvent::Beat => Event::Beat,
        });
    }
}

/// Lets a process map the memory if its token permits access to all namespaces: mapped memory has no walls.
/// The core learns of it before the process gets the memory. From then on, only its goodbye or its death
/// releases what it holds.
pub(super) fn admit(shared: &Weak<Shared>, attach: &shm::AttachRequest) -> Result<(), Denied> {
    let shared = shared.upgrade().ok_or("the node is stopping")?;
    let access = shared.admission.access();
    let denied = |reason: &str, problem| {
        Denied::new(reason, access.answer_time(problem, Some(Source::User(attach.uid))))
    };
    // The master shows the token that the node has sent it.
    if attach.is_master && !access.is_open() {
        return match token_matches(&shared.token, &attach.token) {
            true => Ok(()),
            false => Err(denied("the token is not that of the node", TokenProblem::Wrong)),
        };
    }
    let holder = access.holder(&attach.token).map_err(|problem| denied(problem.text(), problem))?;
    if !holder.credential().may_map() {
        return Err("the token is not for all namespaces, so the memory is not mapped".into());
    }
    if !attach.is_master {
        shared.admission.bind(ClientId(attach.client), &holder)?;
    }
    // A process that maps a staging segment holds nothing there, and neither does the master.
    if attach.segment == shared.info.segment.0 && !attach.is_master {
        // From now on the end of its process is proof that it is gone.
        shared.mapped_by().remove(&ClientId(attach.client));
        shared.handle(Event::Mapped(ClientId(attach.client)));
    }
    Ok(())
}

/// The limits of the node's sockets and their use.
fn limits(shared: Arc<Shared>) -> Vec<LimitUse> {
    let mut found = shared.admission.limits().to_vec();
    if let Some(it) = shared.data_server.get().and_then(Weak::upgrade).map(|it| it.limits()) {
        found.push(limit_stat("data_connections", it.connections));
        found.push(limit_stat("data_connections_per_client", it.per_client));
        found.push(limit_stat("data_connections_per_token", it.per_credential));
        found.push(limit_stat("data_unauthenticated", it.unauthenticated));
    }
    if let Some([connections, unauthenticated]) = shared.attachments.as_ref().map(|it| it.limits()) {
        found.push(limit_stat("attach_connections", connections));
        found.push(limit_stat("attach_unauthenticated", unauthenticated));
    }
    let named = found.into_iter().filter_map(|it| {
        let limit = SOCKET_LIMITS.iter().position(|name| *name == it.name)?;
        Some(LimitUse { limit: limit as u64, max: it.max, used: it.used, reached: it.reached })
    });
    named.collect()
}

/// Lets a client use the data socket, as far as its token permits. Without tokens, a Unix socket accepts only
/// the user of the node.
pub(super) fn admit_data(shared: &Weak<Shared>, hello: &tcp::Hello) -> Result<Arc<dyn tcp::Grant>, Denied> {
    let shared = shared.upgrade().ok_or("the node is stopping")?;
    let access = shared.admission.access();
    let holder = access.holder(&hello.token).map_err(|problem| {
        let source = hello.peer.map(|peer| match peer {
            tcp::Peer::Tcp(address) => Source::from(address.ip()),
            tcp::Peer::Local(uid) => Source::User(uid),
        });
        Denied::new(problem.text(), access.answer_time(problem, source))
    })?;
    if let Some(tcp::Peer::Local(uid)) = hello.peer {
        shared.admission.admit_user(uid)?;
    }
    shared.admission.bind(ClientId(hello.client), &holder)?;
    Ok(holder)
}

/// Passes the events of processes that map the memory to the core.
pub(super) async fn receive_events(shared: Arc<Shared>, mut events: mpsc::Receiver<shm::Event>) {
    while let Some(event) = events.recv().await {
        match event {
            // The core learned of it before the memory was handed over.
            shm::Event::Attached { client, pid } => tracing::debug!(client, pid, "process maps the memory"),
            // A closed socket proves nothing: the process may still have the memory mapped.
            shm::Event::Disconnected { client } => tracing::debug!(client, "attach socket was closed"),
            shm::Event::Dead { client } => {
                tracing::debug!(client, "process with a mapping is dead");
                shared.handle(Event::Dead(ClientId(client)));
            }
        }
    }
}

impl tcp::SlotAccess for Shared {
    fn begin_store(&self, client: u64, range: &RequestHead) -> Option<Vec<transport::Extent>> {
        let store = |state: &mut State| {
            state.core.begin_store(ClientId(client), slot_ref(range), range.offset, range.len)
        };
        let extents = self.ended(store)?;
        Some(extents.into_iter().map(extent).collect())
    }

    fn end_store(&self, range: &RequestHead) {
        self.ended(|state| state.core.end_store(slot_ref(range)));
    }

    fn begin_send(&self, reader: &dyn tcp::Grant, range: &RequestHead) -> Option<Vec<transport::Extent>> {
        if self.is_withdrawn(range) {
            return None;
        }
        let core = &mut self.lock().core;
        // Memory that is only reserved has no namespace: it may hold the bytes of an earlier object.
        let namespace = core.namespace_of(slot_ref(range))?;
        if !reader.is_unlimited() && !reader.covers(namespace) {
            return None;
        }
        let extents = core.begin_send(slot_ref(range), range.offset, range.len, range.cached_epoch)?;
        Some(extents.into_iter().map(extent).collect())
    }

    fn apply_published(&self, range: &RequestHead) -> Option<tcp::Applied> {
        let may_become_one = self.lock().core.may_become_an_object(slot_ref(range));
        if !may_become_one || *self.status.borrow() != link::LinkStatus::Member {
            return None;
        }
        let reads = Arc::clone(&self.ledger_reads);
        Some(Box::pin(async move { reads.next(Instant::now() + LEDGER_TIME_MAX).await }))
    }

    fn end_send(&self, range: &RequestHead) -> bool {
        // Before the stamp: the slot may get another use between the two.
        let is_withdrawn = self.is_withdrawn(range);
        self.ended(|state| state.core.end_send(slot_ref(range), range.cached_epoch)) && !is_withdrawn
    }

    fn has_disk(&self, segment: u64) -> bool {
        self.disk(segment).is_some()
    }

    fn begin_fetch(
        &self,
        reader: tcp::FetchReader<'_>,
        segment: u64,
        range: &RequestHead,
    ) -> Option<tcp::Fetch> {
        self.disk(segment)?.fetch(reader, range)
    }

    fn end_fetch(&self, segment: u64, range: &RequestHead) -> bool {
        self.disk(segment).is_some_and(|it| it.counts(Stamp(range.stamp), range.cached_epoch))
    }

    fn opened(&self, client: u64) {
        self.handle(Event::DataOpened(ClientId(client)));
    }

    fn closed(&self, client: u64) {
        self.handle(Event::DataClosed(ClientId(client)));
    }
}

fn slot_ref(range: &RequestHead) -> SlotRef {
    SlotRef { slot: SlotId(range.slot), stamp: Stamp(range.stamp) }
}
