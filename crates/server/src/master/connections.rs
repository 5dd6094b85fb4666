//! The connections of the master: clients and their lanes, members, ledgers.

use std::sync::Arc;
use std::time::Duration;

use tiffin_core::master::{Event, TokenId};
use tiffin_proto::Incoming;
use tiffin_rpc::{Handshake, Outbox, Peer};
use tiffin_types::access;
use tiffin_types::message::{Hello, Reply, Request, Role, Welcome, wrong_direction};
use tiffin_types::{ClientId, ConnId, SegmentId};
use tokio::time::Instant;

use super::ledger::{self, Ledger};
use super::{Conn, Shared};
use crate::access::Holder;
use crate::listen::{Admission, Host, forbidden};
use crate::reply_path::{self, ReplyPath};
use crate::supervise::Supervisor;
use crate::turnstile;

/// How long the refusal of a standby may take.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(2);

impl Host for Shared {
    fn admission(&self) -> &Admission {
        &self.admission
    }

    fn supervisor(&self) -> &Arc<Supervisor> {
        &self.supervisor
    }

    async fn serve_peer(self: Arc<Self>, handshake: Handshake, holder: Arc<Holder>) {
        let hello = handshake.hello.clone();
        let heartbeat_ms = u64::try_from(self.heartbeat.as_millis()).unwrap_or(u64::MAX);
        let (strict_leases, tenants) = (self.strict_leases, self.config.tenants);
        if let Some(refusal) = self.standby_refusal() {
            return handshake.refuse(refusal, Instant::now() + REFUSAL_TIME_MAX).await;
        }
        if hello.role == Role::Client
            && let Err(refusal) = { self.lock().core.admits(&hello.namespace, holder.namespaces()) }
        {
            return handshake.refuse(refusal, Instant::now() + REFUSAL_TIME_MAX).await;
        }
        let epoch = self.epoch();
        let welcome = Welcome { epoch, heartbeat_ms, strict_leases, tenants, ..Welcome::default() };
        if hello.role == Role::Lane {
            let clients = reply_path::add_lane(self.lock().client(hello.client), &handshake);
            return reply_path::serve_lane(
                handshake,
                welcome,
                clients,
                &holder,
                &self.turnstile,
                |(conn, id), request, trace, outbox, turn| match request {
                    Request::ClientToMaster(request) => {
                        self.asked((conn, id), request.into(), trace, Some(turn));
                    }
                    Request::Hello(_)
                    | Request::Goodbye
                    | Request::MemberToMaster(_)
                    | Request::MasterToMember(_)
                    | Request::ClientToNode(_) => outbox.reply(id, &wrong_direction("a lane to the master")),
                },
            )
            .await;
        }
        if hello.role == Role::Ledger {
            return self.serve_ledger(handshake, welcome).await;
        }
        let is_client = hello.role == Role::Client;
        let who = (turnstile::group_of(&holder, &hello.namespace), hello.client.0);
        // The core knows the client before the welcome, because a welcomed client opens lanes.
        let Some(known) =
            KnownConnection::begin(&self, (hello, Arc::clone(&holder)), epoch, handshake.outbox().clone())
        else {
            return;
        };
        let (_, mut inbox) = handshake.welcome(welcome);
        while let Some(message) = inbox.next().await {
            match message {
                Incoming::Request(id, request) => {
                    if let Err(denial) = access::permits(holder.credential(), &request) {
                        known.outbox.reply(id, &Reply::Refused(forbidden(denial)));
                        continue;
                    }
                    self.measured(known.segment, &request);
                    let turn = match is_client {
                        true => Some(self.turnstile.enter(who, turnstile::cost(&request)).await),
                        false => None,
                    };
                    self.asked((known.conn, id), request, inbox.trace(), turn);
                }
                Incoming::Reply(id, reply) => self.handle(Event::Reply(known.conn, id, reply), None),
            }
        }
    }
}

impl Shared {
    /// Keeps the ledger of a node until it is closed.
    async fn serve_ledger(&self, handshake: Handshake, welcome: Welcome) {
        let hello = handshake.hello.clone();
        let (outbox, segment) = (handshake.outbox().clone(), hello.home.unwrap_or_default());
        // A ledger needs a Unix socket: across a network, delivery is not certain.
        if matches!(outbox.peer(), Peer::Unix { .. }) {
            let ledger = Ledger::open(outbox, &hello).await;
            self.lock().ledgers.insert(segment, ledger);
        }
        // A welcomed node opens its first connection, which takes the ledger.
        let (_, mut inbox) = handshake.welcome(welcome);
        // A node sends nothing on a ledger.
        while inbox.next().await.is_some() {}
        let mut state = self.lock();
        if state.ledgers.get(&segment).is_some_and(Ledger::is_closed) {
            state.ledgers.remove(&segment);
        }
    }
}

/// A connection that the core knows, until it is dropped.
struct KnownConnection<'a> {
    shared: &'a Shared,
    conn: ConnId,
    client: ClientId,
    /// The segment of a member.
    segment: Option<SegmentId>,
    outbox: Outbox,
}

impl<'a> KnownConnection<'a> {
    /// `None` if that epoch has ended meanwhile: the connection is closed.
    fn begin(
        shared: &'a Arc<Shared>,
        (hello, holder): (Hello, Arc<Holder>),
        epoch: u64,
        outbox: Outbox,
    ) -> Option<Self> {
        let first = outbox.clone();
        let is_node = hello.role == Role::Node;
        let (peer, segment) = (outbox.peer(), hello.home.filter(|_| is_node));
        // Members have no lanes.
        let client = if is_node { ClientId(0) } else { hello.client };
        let is_near = is_node && matches!(outbox.peer(), Peer::Unix { .. });
        let own = i32::try_from(std::process::id()).ok();
        let is_inside =
            is_node && matches!(outbox.peer(), Peer::Unix { pid, .. } if pid.is_some() && pid == own);
        let (conn, can_withdraw, token) = {
            let mut state = shared.lock();
            if !state.leads || shared.epoch() != epoch {
                outbox.close();
                return None;
            }
            let ledger = segment.and_then(|it| state.ledgers.remove(&it));
            state.next_conn += 1;
            let conn = ConnId(state.next_conn);
            let can_withdraw = ledger.as_ref().is_some_and(Ledger::can_withdraw);
            let needs_journal = is_node && ledger::needs_journal(&hello);
            let replies = ReplyPath::new(&hello, outbox);
            let namespace = hello.namespace.clone();
            let token = holder.own_share().map(TokenId);
            state.conns.insert(conn, Conn { replies, is_node, ledger, needs_journal, namespace, holder });
            state.newest.opened(client, conn);
            (conn, can_withdraw, token)
        };
        if let Some(token) = token {
            shared.handle(Event::Token(conn, token), None);
        }
        shared.handle(Event::Opened(conn, hello), None);
        if is_near {
            shared.handle(Event::SameHost(conn), None);
        }
        if is_near && can_withdraw {
            shared.handle(Event::CanWithdraw(conn), None);
        }
        if is_inside {
            shared.handle(Event::SameProcess(conn), None);
        } else if let (Some(segment), Peer::Unix { pid: Some(pid), .. }) = (segment, peer) {
            shared.watch_process(conn, segment, pid);
        }
        Some(Self { shared, conn, client, segment, outbox: first })
    }
}

impl Drop for KnownConnection<'_> {
    // In a destructor, so that the core learns of the end even when the task is cancelled.
    fn drop(&mut self) {
        if self.shared.state.has_failed() {
            return;
        }
        let conn = {
            let mut state = self.shared.lock();
            state.unanswered.forget(self.conn);
            state.newest.closed(self.client, self.conn);
            state.conns.remove(&self.conn)
        };
        conn.into_iter().for_each(Conn::close);
        self.shared.handle(Event::Closed(self.conn), None);
    }
}
