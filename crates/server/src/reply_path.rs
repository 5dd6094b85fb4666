//! Where the replies to a client go: to its first connection, or to the lane of the request.

use std::collections::BTreeMap;
use std::time::Duration;

use tiffin_proto::Incoming;
use tiffin_rpc::{Greeting, LANES_MAX, Outbox};
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

/// Adds a lane to its client. Returns the client's first connection.
pub(crate) fn add_lane<'a>(
    clients: impl DoubleEndedIterator<Item = (ConnId, &'a mut ReplyPath)>,
    greeting: &Greeting,
) -> Result<ConnId, Refusal> {
    let lane = &greeting.hello;
    // The newest connection is searched first: an older one of the same client is about to be closed.
    let Some((conn, client)) = clients.rev().find(|(_, it)| it.is_of(lane)) else {
        let message = "the client of this lane is not connected".to_owned();
        return Err(Refusal { reason: Reason::NotForYou, message });
    };
    client.add_lane(lane.lane, greeting.outbox().clone())?;
    Ok(conn)
}

/// Serves a lane of a client until it ends. `serve` receives the requests, which count as sent on the
/// client's first connection, when it is their turn.
pub(crate) async fn serve_lane(
    greeting: Greeting,
    welcome: Welcome,
    client: Result<ConnId, Refusal>,
    holder: &Holder,
    turnstile: &Turnstile,
    serve: impl Fn((ConnId, RequestId), Request, Option<TraceContext>, &Outbox, Turn<'_>),
) {
    let conn = match client {
        Ok(conn) => conn,
        Err(refusal) => return greeting.refuse(refusal, Instant::now() + REFUSAL_TIME_MAX).await,
    };
    let lane = greeting.hello.lane;
    let who = (turnstile::group_of(holder, &greeting.hello.namespace), greeting.hello.client.0);
    let (outbox, mut inbox) = greeting.welcome(welcome);
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
