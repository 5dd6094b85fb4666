//! A client's calls: each is answered, fails with its connection, or times out.

use tiffin_session::{CallFailure, NeedId, Preallocation};
use tiffin_types::{
    Key, Location, RequestId, SegmentId, SlotRef,
    message::{ClientToMaster, ClientToNode, Reply, Request, ReserveOutcome, Reserved},
};

use super::{ClientEvent, OFFER_LIMITS, SessionId, Target, ViewKey};
use crate::{coverage::Point, network::Way, world::World};

/// The purpose of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// A need of a put or get.
    Session(SessionId, NeedId),
    /// A session that is a single call.
    Simple(SessionId),
    Keep(SegmentId),
    BeginView(ViewKey),
    EndViews,
    Goodbye(Target),
    /// The answer is ignored.
    Nothing,
}

/// One call.
#[derive(Debug)]
pub(crate) struct Call {
    target: Target,
    /// The request, until it is sent.
    waiting: Option<Request>,
    purpose: Purpose,
    reserves: bool,
    /// The requested keys.
    resolves: Vec<Key>,
}

impl Call {
    /// Whether the master may have queued it.
    fn may_be_queued(&self) -> bool {
        self.reserves && self.waiting.is_none()
    }

    /// Whether a session or view waits for the answer.
    pub(crate) fn has_waiter(&self) -> bool {
        !matches!(self.purpose, Purpose::Nothing | Purpose::Keep(_))
    }

    pub(crate) fn is_goodbye(&self, target: Target) -> bool {
        matches!(self.purpose, Purpose::Goodbye(to) if to == target)
    }
}

impl World {
    /// Sends a request, as soon as there is a connection.
    pub(crate) fn call(
        &mut self,
        client: usize,
        target: Target,
        request: impl Into<Request>,
        purpose: Purpose,
    ) {
        let request = request.into();
        let timeout_ms = self.rng.between(40, 400);
        let timeout_ms = self.client_delay(client, timeout_ms);
        let Some(it) = self.clients.get_mut(client) else { return };
        let id = it.next_request();
        it.last_request = id;
        let reserves = matches!(request, Request::ClientToMaster(ClientToMaster::Reserve(_)));
        let resolves = if let Request::ClientToMaster(ClientToMaster::Resolve(resolve)) = &request {
            resolve.keys.clone()
        } else {
            Vec::new()
        };
        it.calls.insert(id, Call { target, waiting: Some(request), purpose, reserves, resolves });
        if !matches!(purpose, Purpose::Goodbye(_) | Purpose::EndViews) {
            self.client_at(timeout_ms, client, ClientEvent::Timeout(id));
        }
        self.flush(client, target);
    }

    /// Sends the waiting requests of an open connection; connects if there is none.
    pub(crate) fn flush(&mut self, client: usize, target: Target) {
        let Some(it) = self.clients.get_mut(client) else { return };
        let link = it.links.entry(target).or_default();
        let Some(conn) = link.conn.filter(|_| link.up) else {
            let waits = it.calls.values().any(|it| it.target == target && it.waiting.is_some());
            if waits {
                self.connect(client, target);
            }
            return;
        };
        let gate_closed = it.links.values().any(|it| it.up && (it.keep_due || it.keep.is_some()));
        let avoid: Vec<_> =
            it.links.iter().filter(|(_, it)| it.unfenced).map(|(target, _)| *target).collect();
        let mut sent = Vec::new();
        for (id, call) in &mut it.calls {
            if call.target != target || (call.reserves && gate_closed) {
                continue;
            }
            let Some(mut request) = call.waiting.take() else { continue };
            if let Request::ClientToMaster(ClientToMaster::Reserve(reserve)) = &mut request {
                reserve.avoid.extend(avoid.iter().filter_map(|it| match it {
                    Target::Node(segment) => Some(*segment),
                    Target::Master => None,
                }));
            }
            sent.push((*id, request));
        }
        for (id, request) in sent {
            self.send_request(conn, Way::Up, id, &request);
        }
    }

    /// Sends `Keep` with the client's reservations to every node for which it is due, unless a `Reserve` is
    /// in progress.
    pub(crate) fn send_keeps(&mut self, client: usize) {
        let Some(it) = self.clients.get_mut(client).filter(|it| !it.leaving) else { return };
        let looking = it.calls.values().any(|it| it.reserves && it.waiting.is_none());
        if looking {
            return;
        }
        let due = it.links.iter().filter(|(_, it)| it.up && it.keep_due && it.keep.is_none());
        let due: Vec<_> = due.map(|(target, _)| *target).collect();
        for target in due {
            let Target::Node(segment) = target else { continue };
            let Some(it) = self.clients.get_mut(client) else { return };
            let known: Vec<SlotRef> = it.reserved_on(segment);
            let id = it.next_request();
            if let Some(link) = it.links.get_mut(&target) {
                (link.keep_due, link.keep) = (false, Some(id));
            }
            self.coverage.hit(Point::KeepSent);
            self.call(client, target, ClientToNode::Keep(known), Purpose::Keep(segment));
        }
    }

    pub(crate) fn call_answered(&mut self, client: usize, id: RequestId, reply: Reply) {
        let Some(it) = self.clients.get_mut(client) else { return };
        let Some(call) = it.calls.remove(&id) else {
            if let Reply::Reserved(reserved) = reply {
                self.coverage.hit(Point::LateReserved);
                self.return_reservations(client, reserved);
            }
            return;
        };
        if let Reply::Resolved(resolved) = &reply {
            it.learn(&call.resolves, &resolved.items);
        }
        match call.purpose {
            Purpose::Session(session, need) => self.session_replied(client, session, need, Ok(reply)),
            Purpose::Simple(session) => self.simple_answered(client, session, Some(reply)),
            Purpose::Keep(segment) => {
                if let Some(link) = it.links.get_mut(&Target::Node(segment)) {
                    link.keep = None;
                }
                self.flush(client, Target::Master);
            }
            Purpose::BeginView(key) => self.view_answered(client, key, &reply),
            Purpose::Goodbye(target) => self.goodbye_answered(client, target),
            Purpose::Nothing | Purpose::EndViews => (),
        }
        if call.reserves {
            self.send_keeps(client);
        }
    }

    /// Fails every call to a peer whose connection broke.
    pub(crate) fn fail_calls(&mut self, client: usize, target: Target) {
        let Some(it) = self.clients.get_mut(client) else { return };
        let failed: Vec<_> = it.calls.extract_if(.., |_, call| call.target == target).collect();
        for (_, call) in failed {
            self.call_failed(client, &call);
        }
    }

    pub(crate) fn call_timed_out(&mut self, client: usize, id: RequestId) {
        let Some(it) = self.clients.get_mut(client) else { return };
        let Some(call) = it.calls.remove(&id) else { return };
        self.coverage.hit(Point::CallTimeout);
        if let Purpose::BeginView(key) = call.purpose {
            // Its answer is still waited for, to end the view.
            it.calls.insert(id, call);
            return self.view_given_up(client, key);
        }
        if matches!(call.purpose, Purpose::Keep(_)) {
            // The client must know whether it arrived: a new connection settles that.
            if let Some(conn) = it.links.get(&call.target).and_then(|it| it.conn) {
                self.close_caller(conn);
                self.conn_lost(client, conn);
            }
            return;
        }
        if call.may_be_queued() {
            self.coverage.hit(Point::Cancelled);
            self.call(client, call.target, ClientToMaster::Cancel(id), Purpose::Nothing);
        }
        self.call_failed(client, &call);
        if call.reserves {
            self.send_keeps(client);
        }
    }

    fn call_failed(&mut self, client: usize, call: &Call) {
        match call.purpose {
            Purpose::Session(session, need) => {
                // Bytes of a request that was never sent were not written.
                let mut failure = CallFailure::Unreachable;
                if let Some(Request::ClientToNode(ClientToNode::Store(_))) = &call.waiting {
                    self.coverage.hit(Point::CarriedNowhere);
                    failure = CallFailure::Unwritten;
                }
                self.session_replied(client, session, need, Err(failure));
            }
            Purpose::Simple(session) => self.simple_answered(client, session, None),
            Purpose::BeginView(key) => self.view_lost(client, key),
            Purpose::Goodbye(target) => {
                if self.clients.get(client).is_some_and(|it| it.goodbyes.contains(&target)) {
                    let delay = self.rng.between(5, 40);
                    self.client_at(delay, client, ClientEvent::Connect(target));
                }
            }
            Purpose::Keep(_) | Purpose::Nothing | Purpose::EndViews => (),
        }
    }

    /// Returns all offers.
    pub(crate) fn return_offers(&mut self, client: usize) {
        // A leaving client has returned everything with its goodbye.
        let it = self.clients.get_mut(client).filter(|it| it.alive && !it.leaving);
        let all = it.map(|it| std::mem::replace(&mut it.preallocation, Preallocation::new(OFFER_LIMITS)));
        self.abort(client, all.iter().flat_map(Preallocation::offers).collect());
    }

    /// Returns reservations that the client no longer waits for.
    pub(crate) fn return_reservations(&mut self, client: usize, reserved: Reserved) {
        for outcome in reserved.items {
            let ReserveOutcome::Space(reservations) = outcome else { continue };
            self.abort(client, reservations.into_iter().map(|it| it.location).collect());
        }
    }

    pub(crate) fn abort(&mut self, client: usize, locations: Vec<Location>) {
        for it in locations {
            self.call(
                client,
                Target::Node(it.segment),
                ClientToNode::Abort(vec![it.slot_ref()]),
                Purpose::Nothing,
            );
        }
    }
}
