//! The handshake: `Hello` from the side that connects, `Welcome` or `Refused` from the side that accepts.

use std::io;
use std::sync::Arc;

use tiffin_proto::Incoming;
use tiffin_proto::frame::{FrameError, PAYLOAD_BYTES_MAX};
use tiffin_tls::{TlsError, is_client_hello};
use tiffin_types::RequestId;
use tiffin_types::message::{
    Hello, Reason, Refusal, Reply, Request, RequestRef, VERSION_MAJOR, VERSION_MINOR, Welcome,
};
use tokio::time::{Instant, timeout_at};

use crate::log_limit::permits_line;
use crate::mailbox::{self, Ended, Side};
use crate::{Address, Budget, CallError, ConnectError, Inbox, Outbox, Peer, Stream, Via};

/// The longest payload from a peer that was not welcomed yet.
pub const HELLO_BYTES_MAX: usize = 16 << 10;
/// The id of the first request. Later ones count up.
pub(crate) const HELLO_ID: RequestId = RequestId(0);
/// The refusal of a client without TLS. Clients recognize it.
const TLS_WANTED: &str = "the server accepts only TLS";

/// A connection that this side opened.
#[derive(Debug)]
pub struct Dialed {
    /// The peer's welcome.
    pub welcome: Welcome,
    /// To send through.
    pub outbox: Outbox,
    /// To receive from. Request id 0 is used up.
    pub inbox: Inbox,
}

/// Connects and sends the hello. The versions in `hello` are filled in here.
///
/// A caller of this function handles every message itself. [`crate::Connection`] matches replies with
/// requests.
pub async fn dial(
    address: &Address,
    via: impl Into<Via>,
    hello: Hello,
    deadline: Instant,
) -> Result<Dialed, CallError> {
    let Via { reach, tls } = via.into();
    let timeout = |what| CallError::Timeout { address: address.clone(), what };
    let failed = |source| CallError::Connect { address: address.clone(), source: Arc::new(source) };
    let stream = timeout_at(deadline, Stream::connect(address, reach))
        .await
        .map_err(|_| timeout("the attempt to connect"))?
        .map_err(|error| match error {
            ConnectError::Resolve(source) => {
                CallError::Resolve { address: address.clone(), source: Arc::new(source) }
            }
            ConnectError::Connect(source) => failed(source),
        })?;
    let is_far = !matches!(stream.peer(), Peer::Unix { .. });
    let stream = match (&tls, address) {
        (Some(tls), Address::Tcp { host, .. }) if is_far => {
            let secured = timeout_at(deadline, stream.secure(tls, host)).await;
            let secured = secured.map_err(|_| timeout("the TLS handshake"))?;
            secured.map_err(|error| tls_error(address, &error).unwrap_or_else(|| failed(error)))?
        }
        _ => stream,
    };
    let (outbox, mut inbox) = mailbox::split(stream, Side::Dialing, PAYLOAD_BYTES_MAX);
    let hello = Hello { major: VERSION_MAJOR, minor: VERSION_MINOR, ..hello };
    let frame = tiffin_proto::encode_request(HELLO_ID, RequestRef::Hello(&hello))?;
    // A fresh socket has space for a hello; if not, the deadline below ends this.
    let unanswered = |is_silent| CallError::Unanswered { address: address.clone(), is_silent };
    outbox.send_waiting(frame).await.map_err(|_| unanswered(false))?;
    let answer = timeout_at(deadline, inbox.receive()).await.map_err(|_| unanswered(true))?;
    let protocol = |detail| CallError::Protocol { address: address.clone(), detail };
    match answer {
        Ok(Incoming::Reply(HELLO_ID, Reply::Welcome(welcome))) if welcome.major == VERSION_MAJOR => {
            Ok(Dialed { welcome, outbox, inbox })
        }
        Ok(Incoming::Reply(HELLO_ID, Reply::Welcome(welcome))) => {
            Err(protocol(format!("its version is {}, ours is {VERSION_MAJOR}", welcome.major)))
        }
        Ok(Incoming::Reply(HELLO_ID, Reply::Refused(refusal))) if is_tls_wanted(&refusal) => {
            Err(CallError::Tls { address: address.clone(), source: TlsError::Wanted })
        }
        Ok(Incoming::Reply(HELLO_ID, Reply::Refused(refusal))) => Err(CallError::Refused(refusal)),
        Ok(_) => Err(protocol("it did not answer the hello".to_owned())),
        Err(Ended::Garbage(source @ FrameError::Magic(_))) => {
            Err(CallError::Foreign { address: address.clone(), source })
        }
        Err(Ended::Garbage(error)) => Err(protocol(error.to_string())),
        // Only now the client learns whether the server accepts its certificate.
        Err(Ended::Broken(error)) => Err(tls_error(address, &error).unwrap_or_else(|| unanswered(false))),
        Err(_) => Err(unanswered(false)),
    }
}

fn is_tls_wanted(refusal: &Refusal) -> bool {
    refusal.reason == Reason::Invalid && refusal.message.starts_with(TLS_WANTED)
}

fn tls_error(address: &Address, error: &io::Error) -> Option<CallError> {
    Some(CallError::Tls { address: address.clone(), source: TlsError::of(error)?.clone() })
}

/// A peer that connected and sent its hello, and waits for the reply.
#[derive(Debug)]
pub struct Handshake {
    /// Its hello.
    pub hello: Hello,
    id: RequestId,
    outbox: Outbox,
    inbox: Inbox,
}

impl Handshake {
    /// Waits for the hello. A peer that is silent, or speaks another protocol or major version, is
    /// disconnected here, with a line in the log; then there is nothing to do.
    pub async fn receive(stream: Stream, deadline: Instant) -> Option<Self> {
        let peer = stream.peer();
        let stream = shake(stream, deadline).await?;
        let (outbox, mut inbox) = mailbox::split(stream, Side::Accepting, HELLO_BYTES_MAX);
        let refuse = |reason, message| Refusal { reason, message };
        let refusal = match timeout_at(deadline, inbox.receive()).await {
            Ok(Ok(Incoming::Request(id, Request::Hello(hello)))) if hello.major == VERSION_MAJOR => {
                return Some(Self { hello, id, outbox, inbox });
            }
            Ok(Ok(Incoming::Request(id, Request::Hello(hello)))) => {
                let (theirs, ours) = (hello.major, VERSION_MAJOR);
                (id, refuse(Reason::Version, format!("the server speaks version {ours}, not {theirs}")))
            }
            Ok(Ok(Incoming::Request(
                id,
                Request::Goodbye
                | Request::ClientToMaster(_)
                | Request::MemberToMaster(_)
                | Request::MasterToMember(_)
                | Request::ClientToNode(_),
            ))) => (id, refuse(Reason::Invalid, "a connection begins with a hello".to_owned())),
            Ok(Ok(Incoming::Reply(..))) => {
                if permits_line() {
                    tracing::warn!(%peer, "disconnected: it replied before there was a request");
                }
                return None;
            }
            Ok(Err(Ended::Garbage(FrameError::Magic(start)))) if is_client_hello(&start) => {
                // The client's TLS reports bytes that are not TLS.
                (HELLO_ID, refuse(Reason::Invalid, "this server does not speak TLS".to_owned()))
            }
            // A probe of the port is not worth a log line.
            Ok(Err(Ended::Closed)) => return None,
            Ok(Err(Ended::Nonsense(id, error))) => (id, refuse(Reason::Invalid, error.to_string())),
            Ok(Err(Ended::Garbage(FrameError::Major(_)))) => {
                // Such a release cannot read a refusal, as this one cannot read its hello.
                if permits_line() {
                    tracing::warn!(%peer, "disconnected: it speaks another major version");
                }
                return None;
            }
            Ok(Err(ended)) => {
                if permits_line() {
                    tracing::warn!(%peer, %ended, "disconnected before its hello");
                }
                return None;
            }
            Err(_) => {
                if permits_line() {
                    tracing::warn!(%peer, "disconnected: it sent no hello in time");
                }
                return None;
            }
        };
        let (id, refusal) = refusal;
        send_refusal(&outbox, id, refusal, deadline).await;
        None
    }

    /// Charges what arrives and what waits to be sent to this budget.
    pub fn share(&mut self, budget: &Arc<Budget>) {
        self.inbox.share(budget);
    }

    /// Welcomes the peer. The versions in `welcome` are filled in here.
    #[must_use]
    pub fn welcome(mut self, welcome: Welcome) -> (Outbox, Inbox) {
        let welcome = Welcome { major: VERSION_MAJOR, minor: VERSION_MINOR, ..welcome };
        self.inbox.allow(PAYLOAD_BYTES_MAX);
        self.outbox.reply(self.id, &Reply::Welcome(welcome));
        (self.outbox, self.inbox)
    }

    /// Refuses the peer, with a reason. Waits until the refusal is written, or the deadline has passed.
    pub async fn refuse(self, refusal: Refusal, deadline: Instant) {
        send_refusal(&self.outbox, self.id, refusal, deadline).await;
    }

    /// Sends to the peer, which expects a welcome or a refusal first.
    #[must_use]
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// The peer.
    #[must_use]
    pub fn peer(&self) -> Peer {
        self.inbox.peer()
    }
}

/// Completes the TLS handshake, if there is one. If it fails, the reason is in the log, and the peer is told
/// if it can understand.
async fn shake(mut stream: Stream, deadline: Instant) -> Option<Stream> {
    let peer = stream.peer();
    match timeout_at(deadline, stream.welcome()).await {
        Ok(Ok(())) => return Some(stream),
        Ok(Err(error)) if TlsError::of(&error) == Some(&TlsError::Plaintext) => {
            refuse_plaintext(stream, deadline).await;
        }
        Ok(Err(error)) => log_failed(peer, &error),
        Err(_) if permits_line() => {
            tracing::warn!(%peer, "disconnected: it did not complete the TLS handshake in time");
        }
        Err(_) => {}
    }
    None
}

/// Tells a client without TLS why it is not accepted.
async fn refuse_plaintext(stream: Stream, deadline: Instant) {
    // The client's hello was not read. All clients use this id.
    let (outbox, mut inbox) = mailbox::split(stream, Side::Accepting, HELLO_BYTES_MAX);
    let message = format!("{TLS_WANTED}\n\nhint: {}", TlsError::Wanted.hint());
    send_refusal(&outbox, HELLO_ID, Refusal { reason: Reason::Invalid, message }, deadline).await;
    inbox.linger().await;
}

/// A probe of the port is not worth a log line.
fn log_failed(peer: Peer, error: &io::Error) {
    match TlsError::of(error) {
        Some(TlsError::Closed) | None => tracing::debug!(%peer, %error, "the TLS handshake was cut off"),
        Some(error) => tracing::warn!(%peer, %error, "the TLS handshake failed"),
    }
}

async fn send_refusal(outbox: &Outbox, id: RequestId, refusal: Refusal, deadline: Instant) {
    // Clients that have a list of masters try standbys all the time.
    if refusal.reason == Reason::Standby {
        tracing::debug!(peer = %outbox.peer(), "refused: {}", refusal.message);
    } else if permits_line() {
        tracing::warn!(peer = %outbox.peer(), reason = ?refusal.reason, "refused: {}", refusal.message);
    }
    outbox.reply(id, &Reply::Refused(refusal));
    outbox.flush(deadline).await;
}
