//! Where the replies to a client go: to its first connection, or to the lane of the request.

use std::collections::BTreeMap;
use std::time::Duration;

use tiffin_proto::Incoming;
use tiffin_rpc::{Handshake, LANES_MAX, Outbox};
use tiffin_trace::TraceContext;
use tiffin_types::access;
use tiffin_types::message::{Hello, Reason, Refusal, Reply, Request, Welcome};
use tiffin_types::{ClientId, ConnId, RequestId};
use tokio::time::Instant;

use crate::access::Holder;
use crate::listen::forbidden;
use crate::turnstile::{self, Turn, Turnstile};

/// The time limit for sending a refusal to a lane.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(1);

/// The connections of one peer.
#[derive(Debug)]
pub(crate) struct ReplyPath {
    first: Outbox,
    /// The client; zero for members, which have no lanes.
    client: ClientId,
    namespace: String,
    lanes: BTreeMap<u32, Outbox>,
}

impl ReplyPath {
    pub(crate) fn new(hello: &Hello, first: Outbox) -> Self {
        let (client, namespace) = (hello.client, hello.namespace.clone());
        Self { first, client, namespace, lanes: BTreeMap::new() }
    }

    /// The first connection.
    pub(crate) fn first(&self) -> &Outbox {
        &self.first
    }

    /// The connection for the reply to a request.
    pub(crate) fn of(&self, id: RequestId) -> &Outbox {
        self.lanes.get(&id.lane()).unwrap_or(&self.first)
    }

    /// Whether this is the client that the lane's hello names.
    fn is_of(&self, lane: &Hello) -> bool {
        self.client != ClientId(0) && (self.client, &self.namespace) == (lane.client, &lane.namespace)
    }

    /// Adds a lane. A lane that has ended is replaced by the next one with its number.
    fn add_lane(&mut self, number: u32, outbox: Outbox) -> Result<(), Refusal> {
        let refuse = |reason, message: String| Err(Refusal { reason, message });
        match self.lanes.get(&number) {
            _ if number == 0 || number > LANES_MAX => {
                refuse(Reason::Invalid, format!("lane {number} is not in 1 to {LANES_MAX}"))
            }
            Some(known) if !known.is_closed() => {
                refuse(Reason::Invalid, format!("lane {number} of this client is already open"))
            }
            _ => {
                self.lanes.insert(number, outbox);
                Ok(())
            }
        }
    }

    /// All connections.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Outbox> {
        std::iter::once(&self.first).chain(self.lanes.values())
    }

    /// Closes all connections.
    pub(crate) fn close(&self) {
        self.all().for_each(Outbox::close);
    }
}

/// The newest connection of each client, so that a lane finds its client without a scan of all connections.
/// An older connection of the same client is about to be closed, and gets no lanes.
#[derive(Debug, Default)]
pub(crate) struct NewestConns(BTreeMap<ClientId, ConnId>);

impl NewestConns {
    /// A client has connected. Members have no lanes.
    pub(crate) fn opened(&mut self, client: ClientId, conn: ConnId) {
        if client != ClientId(0) {
            self.0.insert(client, conn);
        }
    }

    /// A connection has ended, which may not be the newest one of its client.
    pub(crate) fn closed(&mut self, client: ClientId, conn: ConnId) {
        if self.of(client) == Some(conn) {
            self.0.remove(&client);
        }
    }

    /// The newest connection of a client.
    pub(crate) fn of(&self, client: ClientId) -> Option<ConnId> {
        self.0.get(&client).copied()
    }
}

/// Adds a lane to its client, if that is connected. Returns the client's first connection.
pub(crate) fn add_lane(
    client: Option<(ConnId, &mut ReplyPath)>,
    handshake: &Handshake,
) -> Result<ConnId, Refusal> {
    let lane = &handshake.hello;
    let Some((conn, client)) = client.filter(|(_, it)| it.is_of(lane)) else {
        let message = "the client of this lane is not connected".to_owned();
        return Err(Refusal { reason: Reason::NotForYou, message });
    };
    client.add_lane(lane.lane, handshake.outbox().clone())?;
    Ok(conn)
}

/// Serves a lane of a client until it ends. `serve` receives the requests, which count as sent on the
/// client's first connection, when it is their turn.
pub(crate) async fn serve_lane(
    handshake: Handshake,
    welcome: Welcome,
    client: Result<ConnId, Refusal>,
    holder: &Holder,
    turnstile: &Turnstile,
    serve: impl Fn((ConnId, RequestId), Request, Option<TraceContext>, &Outbox, Turn<'_>),
) {
    let conn = match client {
        Ok(conn) => conn,
        Err(refusal) => return handshake.refuse(refusal, Instant::now() + REFUSAL_TIME_MAX).await,
    };
    let lane = handshake.hello.lane;
    let who = (turnstile::group_of(holder, &handshake.hello.namespace), handshake.hello.client.0);
    let (outbox, mut inbox) = handshake.welcome(welcome);
    while let Some(message) = inbox.next().await {
        match message {
            Incoming::Request(id, request) if id.lane() == lane => {
                match access::permits(holder.credential(), &request) {
                    Ok(()) => {
                        let turn = turnstile.enter(who, turnstile::cost(&request)).await;
                        serve((conn, id), request, inbox.trace(), &outbox, turn);
                    }
                    Err(denial) => outbox.reply(id, &Reply::Refused(forbidden(denial))),
                }
            }
            Incoming::Request(id, _) => {
                let message = format!("request {} does not belong to lane {lane}", id.0);
                outbox.reply(id, &Reply::Refused(Refusal { reason: Reason::Invalid, message }));
            }
            // A server sends its clients no requests.
            Incoming::Reply(..) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_connection_of_a_client_is_found() {
        let mut conns = NewestConns::default();
        let (client, other) = (ClientId(1), ClientId(2));
        conns.opened(client, ConnId(1));
        conns.opened(other, ConnId(2));
        conns.opened(client, ConnId(3));
        conns.opened(ClientId(0), ConnId(4));
        assert_eq!(
            [client, other, ClientId(0)].map(|it| conns.of(it)),
            [Some(ConnId(3)), Some(ConnId(2)), None]
        );
        conns.closed(client, ConnId(1));
        assert_eq!(conns.of(client), Some(ConnId(3)), "an older one has ended");
        conns.closed(client, ConnId(3));
        conns.closed(other, ConnId(2));
        assert!(conns.0.is_empty());
    }
}
