//! Sessions of a client: puts and gets, run by `session`, and single calls.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_session::{
    CallFailure, Get, GetOutcome, Need, NeedId, OfferOrder, Put, PutOutcome, ReadResult, WriteResult,
};
use tiffin_types::{
    Generation, SegmentId, SlotRef,
    message::{
        AckOutcome, ClientToMaster, ClientToNode, DeleteOutcome, PinOutcome, PrefetchOutcome, Reply,
        ReserveOutcome, Reserved, ResolveOutcome, Resource, Store,
    },
};

use super::hedge::WatchedRead;
use super::{Client, ClientEvent, Purpose, Target};
use crate::{
    coverage::Point,
    keyspace::Name,
    memory::ValueId,
    transfer::{Order, TransferId},
    world::{Party, Phase, Time, World},
};

/// Id of a session of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SessionId(pub(crate) u64);

pub(crate) enum Kind {
    Put {
        put: Put,
        values: Vec<ValueId>,
    },
    Get {
        get: Get,
        names: Vec<Name>,
        /// The size of each buffer.
        buffers: Vec<u64>,
        /// For each object, the cached generation, and the newest generation that was acknowledged or that
        /// this client had seen when the get began.
        before: Vec<(Option<Generation>, Generation)>,
        /// The nodes that were slow when it began.
        slow: BTreeSet<SegmentId>,
    },
    /// A call whose answer is only checked.
    Question,
    /// A pull of samples, on behalf of a group.
    Pull(String),
    /// A lookup, followed by a view.
    View(Name),
    /// An order of offers.
    Offers(OfferOrder),
    /// A question about an object that is to be moved.
    Move,
}

/// A session in progress.
pub(crate) struct Session {
    pub(crate) kind: Kind,
    transfers: BTreeSet<TransferId>,
    /// Reads that may stall.
    pub(super) reads: BTreeMap<NeedId, WatchedRead>,
    /// The copies of which a read was started.
    pub(super) tried: BTreeSet<(usize, SegmentId)>,
    pub(super) deadline: Time,
    /// The time of the next check for stalled reads.
    pub(super) stall_check_at: Option<Time>,
    /// Values that are sent inside the commit, instead of being written before.
    carried: BTreeMap<(SegmentId, SlotRef), ValueId>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match &self.kind {
            Kind::Put { .. } => "put",
            Kind::Get { .. } => "get",
            Kind::Question => "question",
            Kind::Pull(_) => "pull",
            Kind::View(_) => "check_view",
            Kind::Offers(_) => "stock",
            Kind::Move => "move",
        };
        write!(out, "{kind} with {} copies under way", self.transfers.len())
    }
}

impl Client {
    /// The client's reservations on a node.
    pub(crate) fn reserved_on(&self, segment: SegmentId) -> Vec<SlotRef> {
        let puts = self.sessions.values().filter_map(|it| match &it.kind {
            Kind::Put { put, .. } => Some(put),
            _ => None,
        });
        let offers = self.preallocation.offers();
        let locations = puts.flat_map(Put::reserved).chain(offers).filter(|it| it.segment == segment);
        locations.map(tiffin_types::Location::slot_ref).collect()
    }
}

impl World {
    /// Starts a session.
    pub(crate) fn begin_session(&mut self, client: usize, kind: Kind) -> Option<SessionId> {
        let timeout_ms = self.rng.delay(900, 3000);
        let timeout_ms = self.client_delay(client, timeout_ms);
        let it = self.clients.get_mut(client)?;
        it.next_session += 1;
        let id = SessionId(it.next_session);
        let session = Session {
            kind,
            transfers: BTreeSet::new(),
            reads: BTreeMap::new(),
            tried: BTreeSet::new(),
            deadline: self.now + timeout_ms.max(30),
            stall_check_at: None,
            carried: BTreeMap::new(),
        };
        it.sessions.insert(id, session);
        self.client_at(timeout_ms.max(30), client, ClientEvent::Deadline(id));
        self.drive(client, id);
        Some(id)
    }

    /// Reports the keys that were read from cached locations to the master.
    pub(crate) fn report_uses(&mut self, client: usize) {
        let Some(it) = self.clients.get_mut(client) else { return };
        if let Some(report) = it.locations.report(1, usize::MAX) {
            self.coverage.hit(Point::UsesTold);
            self.call(client, Target::Master, report, Purpose::Nothing);
        }
    }

    /// Sends a single request.
    pub(crate) fn call_once(&mut self, client: usize, kind: Kind, request: ClientToMaster) {
        if let Some(id) = self.begin_session(client, kind) {
            self.call(client, Target::Master, request, Purpose::Simple(id));
        }
    }

    /// Does what the session needs next, and ends it when it is done.
    pub(super) fn drive(&mut self, client: usize, id: SessionId) {
        loop {
            let Some(it) = self.clients.get_mut(client) else { return };
            let Some(session) = it.sessions.get_mut(&id) else { return };
            let need = match &mut session.kind {
                Kind::Put { put, .. } => put.poll(),
                Kind::Get { get, .. } => get.poll(),
                Kind::Question | Kind::Pull(_) | Kind::View(_) | Kind::Offers(_) | Kind::Move => None,
            };
            let Some(need) = need else { break };
            self.carry_out(client, id, need);
        }
        let Some(it) = self.clients.get_mut(client) else { return };
        let done = it.sessions.get(&id).is_some_and(|it| match &it.kind {
            Kind::Put { put, .. } => put.is_done(),
            Kind::Get { get, .. } => get.is_done(),
            Kind::Question | Kind::Pull(_) | Kind::View(_) | Kind::Offers(_) | Kind::Move => false,
        });
        if done && let Some(session) = it.sessions.remove(&id) {
            // Another read of the same object was faster.
            session.transfers.iter().for_each(|&transfer| self.cancel_transfer(transfer));
            self.session_ended(client, id, session);
        } else {
            self.schedule_stall_check(client, id);
        }
    }

    fn carry_out(&mut self, client: usize, session: SessionId, need: Need) {
        match need {
            Need::AskMaster { id, request } => {
                self.call(client, Target::Master, request, Purpose::Session(session, id));
            }
            Need::AskNode { id, segment, request, .. } => {
                let request = self.with_bytes(client, session, segment, request);
                self.call(client, Target::Node(segment), request, Purpose::Session(session, id));
            }
            Need::Write { id, item, reservation, .. } => {
                let value = self.sessions_value(client, session, item);
                let (segment, slot_ref) = (reservation.location.segment, reservation.location.slot_ref());
                self.oracle.will_write(segment, slot_ref, value);
                let len = reservation.extents.iter().map(|it| it.len).sum();
                let write = Some(value);
                let order =
                    Order { client, session, need: id, segment, slot_ref, len, write, cached_epoch: None };
                // A client connects to a node as soon as it has a reservation there.
                self.connect(client, Target::Node(segment));
                if !self.carry(item, &order) {
                    self.start(order);
                }
            }
            Need::Read { id, item, location, len, cached_epoch, .. } => {
                let buffer = match self.clients.get(client).and_then(|it| it.sessions.get(&session)) {
                    Some(Session { kind: Kind::Get { buffers, .. }, .. }) => {
                        buffers.get(item).copied().unwrap_or(0)
                    }
                    _ => 0,
                };
                if buffer < len {
                    let transfer = TransferId(0);
                    return self.session_read(client, session, transfer, id, ReadResult::TooSmall);
                }
                let (segment, slot_ref) = (location.segment, location.slot_ref());
                if let Some(named) = cached_epoch {
                    self.check_presence(client, segment, slot_ref, named);
                }
                if !slot_ref.is_on_disk() {
                    self.connect(client, Target::Node(segment));
                }
                let order =
                    Order { client, session, need: id, segment, slot_ref, len, write: None, cached_epoch };
                if let Some(transfer) = self.start(order) {
                    self.watch_read(&order, item, transfer);
                }
            }
            Need::Stop { id } => self.stop_read(client, session, id),
        }
    }

    /// Sends small values inside the commit, if they would cross a socket and only the commit is left to do.
    fn carry(&mut self, item: usize, order: &Order) -> bool {
        let is_carried = self.rng.percent(50);
        let Some(it) = self.clients.get_mut(order.client) else { return false };
        let is_mapped = it.attached.contains(&order.segment);
        let Some(session) = it.sessions.get_mut(&order.session) else { return false };
        match (&mut session.kind, order.write) {
            (Kind::Put { put, .. }, Some(value))
                if is_carried && !is_mapped && put.is_asked_next(item, order.segment) =>
            {
                session.carried.insert((order.segment, order.slot_ref), value);
                put.written(order.need, WriteResult::Written);
                true
            }
            _ => false,
        }
    }

    /// A commit together with its values. The values are represented by their ids.
    fn with_bytes(
        &self,
        client: usize,
        session: SessionId,
        segment: SegmentId,
        request: ClientToNode,
    ) -> ClientToNode {
        let session = self.clients.get(client).and_then(|it| it.sessions.get(&session));
        let (Some(Session { carried, .. }), ClientToNode::Commit(commit)) = (session, &request) else {
            return request;
        };
        let value_of = |slot_ref: &SlotRef| {
            carried.get(&(segment, *slot_ref)).map(|it| it.0.to_le_bytes().to_vec()).unwrap_or_default()
        };
        let bytes: Vec<_> = commit.items.iter().map(|it| value_of(&it.slot_ref)).collect();
        match bytes.iter().all(Vec::is_empty) {
            true => request,
            false => ClientToNode::Store(Store { commit: commit.clone(), bytes }),
        }
    }

    /// An existence check on mapped memory is answered from the cached location: the object must not have
    /// been deleted.
    fn check_presence(&mut self, client: usize, segment: SegmentId, slot_ref: SlotRef, named: u64) {
        let Some(it) = self.clients.get(client).filter(|it| it.attached.contains(&segment)) else { return };
        let Some(epoch) = it.epoch() else { return };
        if self.is_valid_cached(epoch, segment, slot_ref, named) {
            self.oracle.found_there(segment, slot_ref, &mut self.coverage);
        }
    }

    fn sessions_value(&self, client: usize, session: SessionId, item: usize) -> ValueId {
        match self.clients.get(client).and_then(|it| it.sessions.get(&session)) {
            Some(Session { kind: Kind::Put { values, .. }, .. }) => {
                values.get(item).copied().unwrap_or_default()
            }
            _ => ValueId::default(),
        }
    }

    fn start(&mut self, order: Order) -> Option<TransferId> {
        let transfer = self.start_transfer(order);
        let it = self.clients.get_mut(order.client);
        if let (Some(transfer), Some(session)) =
            (transfer, it.and_then(|it| it.sessions.get_mut(&order.session)))
        {
            session.transfers.insert(transfer);
        }
        transfer
    }

    pub(crate) fn session_replied(
        &mut self,
        client: usize,
        id: SessionId,
        need: NeedId,
        result: Result<Reply, CallFailure>,
    ) {
        let Some(it) = self.clients.get_mut(client) else { return };
        match it.sessions.get_mut(&id).map(|it| &mut it.kind) {
            Some(Kind::Put { put, .. }) => {
                if let Ok(Reply::Published(outcomes)) = &result {
                    let point =
                        |it: &Option<_>| if it.is_some() { Point::Published } else { Point::NotPublished };
                    outcomes.iter().for_each(|it| self.coverage.hit(point(it)));
                }
                put.replied(need, result);
            }
            Some(Kind::Get { get, .. }) => get.replied(need, result),
            _ => {
                // The session was given up after it had sent `Reserve`.
                if let Ok(Reply::Reserved(reserved)) = result {
                    self.coverage.hit(Point::LateReserved);
                    self.return_reservations(client, reserved);
                }
                return;
            }
        }
        self.drive(client, id);
    }

    pub(crate) fn session_written(
        &mut self,
        client: usize,
        id: SessionId,
        transfer: TransferId,
        (segment, need): (SegmentId, NeedId),
        result: WriteResult,
    ) {
        let Some(it) = self.clients.get_mut(client) else { return };
        let Some(session) = it.sessions.get_mut(&id) else { return };
        session.transfers.remove(&transfer);
        let is_stale = result == WriteResult::Stale;
        if let Kind::Put { put, .. } = &mut session.kind {
            put.written(need, result);
        }
        if is_stale {
            self.offers_were_recalled(client, segment);
        }
        self.drive(client, id);
    }

    /// A reservation on this node was stale, so the client returns all offers of the node.
    fn offers_were_recalled(&mut self, client: usize, segment: SegmentId) {
        let now_us = self.now_us();
        let cleared = self.clients.get_mut(client).map(|it| it.preallocation.clear(segment, now_us));
        self.abort(client, cleared.unwrap_or_default());
    }

    pub(crate) fn session_read(
        &mut self,
        client: usize,
        id: SessionId,
        transfer: TransferId,
        need: NeedId,
        result: ReadResult,
    ) {
        self.read_ended(client, id, need, &result);
        let Some(it) = self.clients.get_mut(client) else { return };
        let Some(session) = it.sessions.get_mut(&id) else { return };
        session.transfers.remove(&transfer);
        if let Kind::Get { get, .. } = &mut session.kind {
            get.read(need, result);
        }
        self.drive(client, id);
    }

    /// The deadline passed: copies stop, and reservations are returned.
    pub(crate) fn give_up(&mut self, client: usize, id: SessionId) {
        if self.clients.get(client).is_some_and(|it| it.sessions.contains_key(&id)) {
            self.coverage.hit(Point::SessionGivenUp);
            self.check_hedged(client, id);
            self.drop_session(client, id);
        }
    }

    pub(crate) fn drop_session(&mut self, client: usize, id: SessionId) {
        let Some(session) = self.clients.get_mut(client).and_then(|it| it.sessions.remove(&id)) else {
            return;
        };
        session.transfers.iter().for_each(|&transfer| self.cancel_transfer(transfer));
        self.move_given_up(client, id);
        self.order_ended(client, &session.kind);
        if let Kind::Put { put, .. } = &session.kind {
            self.abort(client, put.reserved().collect());
        }
    }

    fn session_ended(&mut self, client: usize, id: SessionId, session: Session) {
        match session.kind {
            Kind::Put { put, values } => {
                for (value, outcome) in values.into_iter().zip(put.into_outcomes()) {
                    self.answers.put_ended(value, &outcome);
                    self.put_ended(client, value, &outcome);
                    self.move_put(client, id, &outcome);
                }
            }
            Kind::Get { get, names, before, .. } => {
                let asked: Vec<_> = (0..names.len()).map(|item| get.is_asked(item)).collect();
                let located: Vec<_> = (0..names.len()).map(|item| get.is_located(item)).collect();
                let (cached, newest): (Vec<_>, Vec<_>) = before.into_iter().unzip();
                let keys: Vec<_> = names.iter().map(|name| name.key()).collect();
                let outcomes = get.into_outcomes();
                if let Some(it) = self.clients.get_mut(client) {
                    it.locations.finish(&keys, &cached, &outcomes, &asked);
                }
                let incarnation = self.incarnation(Party::Client(client));
                for (((name, newest), outcome), is_located) in
                    names.into_iter().zip(newest).zip(outcomes).zip(located)
                {
                    self.got_answer((client, incarnation, id), name, &outcome, is_located);
                    self.get_ended(client, name, newest, &outcome);
                    self.move_read(client, id, &outcome);
                }
            }
            Kind::Question | Kind::Pull(_) | Kind::View(_) | Kind::Offers(_) | Kind::Move => (),
        }
    }

    fn put_ended(&mut self, client: usize, value: ValueId, outcome: &PutOutcome) {
        self.log.note(|| format!("{value:?} {outcome:?}"));
        self.coverage.hit(match outcome {
            PutOutcome::Stored { replaced: false, .. } => Point::PutStored,
            PutOutcome::Stored { replaced: true, .. } => Point::PutReplaced,
            PutOutcome::Exists(_) => Point::PutExists,
            PutOutcome::Full(full) => match full.lacks {
                _ if full.never => Point::PutNeverFits,
                // Simulated clients rarely reserve nearly everything.
                Resource::Bytes | Resource::Share => Point::PutFull,
                Resource::Slots => Point::PutLacksSlots,
                Resource::KeySpace => Point::PutLacksKeySpace,
                Resource::Contiguous => Point::PutLacksContiguous,
            },
            PutOutcome::NoNode => Point::PutNoNode,
            PutOutcome::OverQuota(_) => Point::PutOverQuota,
            PutOutcome::Behind(_) => Point::PutBehind,
            PutOutcome::Invalid(_) => Point::PutInvalid,
            PutOutcome::Refused(_) => Point::Refused,
            PutOutcome::Unreachable(_) => Point::PutUnreachable,
        });
        if let PutOutcome::Stored { generation, replicas, unconfirmed, .. } = outcome {
            if !unconfirmed.is_empty() {
                self.coverage.hit(Point::ReplaceUnconfirmed);
            }
            self.oracle.acknowledged(value, *generation);
            let stored = self.oracle.value(value).copied();
            if let (Some(it), Some(value)) = (self.clients.get_mut(client), stored) {
                it.locations.learn_put(&value.name.key(), *generation, value.len, replicas);
            }
        }
    }

    fn get_ended(&mut self, client: usize, name: Name, newest: Generation, outcome: &GetOutcome) {
        self.log.note(|| format!("{name:?} {outcome:?}"));
        if let (Some(it), GetOutcome::Read(found)) = (self.clients.get_mut(client), outcome) {
            it.seen(&name.key(), found.generation);
        }
        match outcome {
            GetOutcome::Read(found) => {
                self.coverage.hit(Point::GetRead);
                self.oracle.got(name, found);
                self.oracle.got_after(name, found, newest, &mut self.coverage);
            }
            GetOutcome::Absent => self.coverage.hit(Point::GetAbsent),
            GetOutcome::TooSmall(_) => self.coverage.hit(Point::GetTooSmall),
            GetOutcome::Unavailable(_) => self.coverage.hit(Point::GetUnavailable),
            GetOutcome::Unreachable(_) => self.coverage.hit(Point::GetUnreachable),
            GetOutcome::Refused(_) => self.coverage.hit(Point::Refused),
            GetOutcome::Contended | GetOutcome::Superseded(_) => (),
        }
    }

    /// Stores received offers.
    fn offers_received(&mut self, client: usize, order: OfferOrder, mut reserved: Reserved) {
        let (now_us, is_calm) = (self.now_us(), self.phase != Phase::Faults);
        let Some(it) = self.clients.get_mut(client) else { return };
        it.same_host.extend(&reserved.same_host);
        if is_calm {
            self.return_reservations(client, std::mem::take(&mut reserved));
        }
        let offers = reserved.items.into_iter().filter_map(|it| match it {
            ReserveOutcome::Space(offers) => Some(offers),
            _ => None,
        });
        let Some(it) = self.clients.get_mut(client) else { return };
        let (left, _) = it.preallocation.stock(order, offers.flatten().collect(), now_us);
        self.abort(client, left.into_iter().map(|it| it.location).collect());
    }

    /// An order was not fulfilled.
    fn order_ended(&mut self, client: usize, kind: &Kind) {
        let Kind::Offers(order) = kind else { return };
        let now_us = self.now_us();
        if let Some(it) = self.clients.get_mut(client) {
            let _none = it.preallocation.stock(*order, Vec::new(), now_us);
        }
    }

    /// Handles the answer to a lookup.
    fn resolved(&mut self, client: usize, kind: &Kind, outcome: &ResolveOutcome) {
        self.coverage.hit(match outcome {
            ResolveOutcome::Found(_) => Point::ResolveFound,
            ResolveOutcome::Absent => Point::ResolveAbsent,
            ResolveOutcome::Unavailable(_) => Point::ResolveUnavailable,
        });
        if let (Kind::View(name), ResolveOutcome::Found(found)) = (kind, outcome) {
            self.begin_view(client, found);
            // The cached location may still be valid.
            if self.rng.percent(50) {
                self.begin_get_of(client, vec![*name]);
            }
        }
    }

    /// Handles the answer to a single call; `None` if it failed.
    pub(crate) fn simple_answered(&mut self, client: usize, id: SessionId, reply: Option<Reply>) {
        let Some(it) = self.clients.get_mut(client) else { return };
        let Some(session) = it.sessions.remove(&id) else {
            let Some(Reply::Reserved(reserved)) = reply else { return };
            return self.return_reservations(client, reserved);
        };
        let incarnation = it.incarnation;
        if matches!(session.kind, Kind::Move) {
            return self.move_explained(client, id, reply);
        }
        match reply {
            Some(Reply::Reserved(reserved)) => {
                let Kind::Offers(order) = session.kind else { return };
                self.offers_received(client, order, reserved);
            }
            other if matches!(session.kind, Kind::Offers(_)) => {
                drop(other);
                self.order_ended(client, &session.kind);
            }
            Some(Reply::Deleted(outcomes)) => outcomes.iter().for_each(|it| {
                self.answers.deleted((client, incarnation, id), it);
                self.coverage.hit(match it {
                    DeleteOutcome::Deleted => Point::Deleted,
                    DeleteOutcome::Absent => Point::DeleteAbsent,
                    DeleteOutcome::Leased => Point::DeleteLeased,
                    DeleteOutcome::Unconfirmed(_) => Point::DeleteUnconfirmed,
                });
            }),
            Some(Reply::DeletedMatching(it)) => self.coverage.hit(match it.unconfirmed.is_empty() {
                true => Point::DeletedMatching,
                false => Point::MatchingUnconfirmed,
            }),
            Some(Reply::Resolved(resolved)) => {
                resolved.items.iter().for_each(|it| self.resolved(client, &session.kind, it));
            }
            Some(Reply::Leased(leased)) => self.leased(client, leased, None),
            Some(Reply::Pulled(pulled)) => {
                if pulled.end.is_some() {
                    self.coverage.hit(Point::StreamEnded);
                }
                let Kind::Pull(group) = session.kind else { return };
                self.leased(client, pulled.leased, Some(group));
            }
            Some(Reply::Pinned(outcomes)) => outcomes.iter().for_each(|it| match it {
                PinOutcome::Done => self.coverage.hit(Point::Pinned),
                PinOutcome::Unconfirmed(_) => self.coverage.hit(Point::PinUnconfirmed),
                PinOutcome::Absent | PinOutcome::TooMany | PinOutcome::NotPinned => (),
            }),
            Some(Reply::Acked(outcomes)) => outcomes.iter().for_each(|it| match it {
                AckOutcome::Freed => self.coverage.hit(Point::SampleFreed),
                AckOutcome::Recorded => self.coverage.hit(Point::SampleRecorded),
                AckOutcome::Stale | AckOutcome::Unconfirmed(_) | AckOutcome::WrongGroup => (),
            }),
            Some(Reply::Prefetched(outcomes)) => outcomes.iter().for_each(|it| {
                self.coverage.hit(match it {
                    PrefetchOutcome::Absent => Point::PrefetchAbsent,
                    PrefetchOutcome::Resident => Point::PrefetchResident,
                    PrefetchOutcome::Done => Point::PrefetchDone,
                    PrefetchOutcome::Running => Point::PrefetchRunning,
                    PrefetchOutcome::Failed => Point::PrefetchFailed,
                    PrefetchOutcome::Skipped => Point::PrefetchSkipped,
                    PrefetchOutcome::Cancelled => Point::PrefetchCancelled,
                });
            }),
            Some(Reply::Listed(_)) => self.coverage.hit(Point::Listed),
            Some(Reply::Refused(_)) => self.coverage.hit(Point::Refused),
            _ => (),
        }
    }
}
