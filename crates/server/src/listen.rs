//! Who is let in: the accept loop that the master and the node share.
//!
//! **Invariant:** at most [`CONNECTIONS_MAX`] connections are served; the next ones are told so, and beyond
//! [`REFUSALS_MAX`] of those under way they are only closed.
//!
//! **Invariant:** at most [`PENDING_MAX`] connections have not said a valid hello yet. One more closes the
//! oldest of them.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tiffin_core::ClientId;
use tiffin_core::NAMESPACE_BYTES_MAX;
use tiffin_core::message::{Hello, Reason, Refusal, Role};
use tiffin_rpc::{Greeting, Listener, Peer, Stream, token_matches};
use tiffin_transport::Pending;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::supervise::Supervisor;
use crate::supervise::faults::{Point, strike};

/// The most connections to one address.
pub const CONNECTIONS_MAX: usize = 16 << 10;
/// The most that are told at a time that there are too many.
const REFUSALS_MAX: usize = 256;
/// The most connections at a time that have not said a valid hello yet; one more ends the oldest.
const PENDING_MAX: usize = 1024;
/// How long a peer may take to say hello.
const GREETING_TIME_MAX: Duration = Duration::from_secs(10);
/// When an idle connection is asked whether its host still lives, and how often it is asked again.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// See [`KEEPALIVE`].
const KEEPALIVE_RETRIES: u32 = 3;
/// How long sent bytes may stay unacknowledged before the host is taken for gone.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(45);

/// A server behind an accept loop.
pub(crate) trait Host: Send + Sync + 'static {
    /// Who is let in.
    fn door(&self) -> &Door;

    /// Learns of a connection whose task panics.
    fn supervisor(&self) -> &Arc<Supervisor>;

    /// Welcomes a party that is let in, and serves it to the end of its connection. The host does
    /// whatever the party may rely on before it sends the welcome.
    fn visit(self: Arc<Self>, greeting: Greeting) -> impl Future<Output = ()> + Send;
}

/// What a party must show, and how many are inside.
#[derive(Debug)]
pub(crate) struct Door {
    token: String,
    nodes_enter: bool,
    inside: AtomicU64,
    refused: AtomicU64,
}

impl Door {
    /// A door that opens to this token; nodes may enter as well as clients if `nodes_enter`.
    pub(crate) fn new(token: String, nodes_enter: bool) -> Self {
        Self { token, nodes_enter, inside: AtomicU64::new(0), refused: AtomicU64::new(0) }
    }

    /// How many connections are open.
    pub(crate) fn inside(&self) -> u64 {
        self.inside.load(Ordering::Relaxed)
    }

    /// How many were refused so far.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The token is right; anything is where none is set.
    pub(crate) fn opens_to(&self, token: &str) -> bool {
        self.token.is_empty() || token_matches(&self.token, token)
    }

    fn check(&self, hello: &Hello, peer: Peer) -> Result<(), Refusal> {
        let refuse = |reason, message: &str| Err(Refusal { reason, message: message.to_owned() });
        if !self.opens_to(&hello.token) {
            let what = if hello.token.is_empty() { "no token was given" } else { "the token is wrong" };
            return refuse(Reason::Unauthenticated, what);
        }
        if self.token.is_empty() && is_stranger(peer) {
            return refuse(
                Reason::Unauthenticated,
                "this socket is for the user who started the server only",
            );
        }
        match hello.role {
            Role::Node | Role::Ledger if !self.nodes_enter => {
                refuse(Reason::NotForYou, "this is a storage node, which talks to clients only")
            }
            Role::Node | Role::Ledger => Ok(()),
            Role::Client | Role::Lane if hello.client == ClientId(0) => {
                refuse(Reason::Invalid, "a client must say which one it is")
            }
            Role::Client | Role::Lane if hello.namespace.is_empty() => {
                refuse(Reason::Invalid, "the name of the namespace is empty")
            }
            Role::Client | Role::Lane if hello.namespace.len() > NAMESPACE_BYTES_MAX => {
                let (len, most) = (hello.namespace.len(), NAMESPACE_BYTES_MAX);
                refuse(
                    Reason::Invalid,
                    &format!("the name of the namespace has {len} bytes, more than the {most} allowed"),
                )
            }
            Role::Client | Role::Lane => Ok(()),
        }
    }
}

/// Lets parties in and serves them until this is dropped, which ends every connection.
pub(crate) async fn serve<H: Host>(listener: Listener, host: Arc<H>) {
    serve_at_most(listener, host, CONNECTIONS_MAX, PENDING_MAX).await;
}

async fn serve_at_most<H: Host>(
    listener: Listener,
    host: Arc<H>,
    connections_max: usize,
    pending_max: usize,
) {
    let pending = Pending::new(pending_max);
    let mut visits = JoinSet::new();
    loop {
        let stream = listener.accept().await;
        while visits.try_join_next().is_some() {}
        if visits.len() >= connections_max + REFUSALS_MAX {
            tracing::warn!(address = %listener.local_address(), "too many connections: closed one unheard");
            continue;
        }
        let is_full = visits.len() >= connections_max;
        let greeted = greet(stream, Arc::clone(&host), Arc::clone(&pending), is_full);
        visits.spawn(host.supervisor().watch("the task of a connection", greeted));
    }
}

async fn greet<H: Host>(stream: Stream, host: Arc<H>, pending: Arc<Pending>, is_full: bool) {
    keep_alive(&stream);
    let deadline = Instant::now() + GREETING_TIME_MAX;
    let cut = Arc::new(Notify::new());
    let entry = pending.enter(&cut);
    let door = host.door();
    let greeting = tokio::select! {
        biased;
        () = cut.notified() => {
            door.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        greeting = Greeting::receive(stream, deadline) => greeting,
    };
    let Some(greeting) = greeting else { return };
    let refusal = if is_full {
        Err(Refusal { reason: Reason::Busy, message: "there are too many connections".to_owned() })
    } else {
        door.check(&greeting.hello, greeting.peer())
    };
    if let Err(refusal) = refusal {
        door.refused.fetch_add(1, Ordering::Relaxed);
        return greeting.refuse(refusal, deadline).await;
    }
    drop(entry);
    let (label, peer) = (greeting.hello.label.clone(), greeting.peer());
    let _inside = Inside::enter(door);
    strike(Point::Connection);
    tracing::debug!(%peer, role = ?greeting.hello.role, label, "came in");
    Arc::clone(&host).visit(greeting).await;
    tracing::debug!(%peer, label, "went away");
}

/// Another user than ours, and not the one who may do anything.
fn is_stranger(peer: Peer) -> bool {
    let own = rustix::process::getuid().as_raw();
    matches!(peer, Peer::Unix { uid, .. } if uid != own && uid != 0)
}

/// A host that vanished without a word is to be noticed; a process that is merely stopped keeps its
/// connection.
fn keep_alive(stream: &Stream) {
    if !matches!(stream.peer(), Peer::Tcp(_)) {
        return;
    }
    let socket = SockRef::from(stream);
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE).with_retries(KEEPALIVE_RETRIES);
    for (what, set) in [
        ("keepalive", socket.set_tcp_keepalive(&keepalive)),
        ("user timeout", socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))),
    ] {
        if let Err(error) = set {
            tracing::warn!(%error, what, "a connection could not be set up as wanted");
        }
    }
}

/// One connection, counted.
struct Inside<'a>(&'a Door);

impl<'a> Inside<'a> {
    fn enter(door: &'a Door) -> Self {
        door.inside.fetch_add(1, Ordering::Relaxed);
        Self(door)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use tiffin_core::message::Welcome;
    use tiffin_rpc::{CallError, Connection, Reach};
    use tokio::io::AsyncReadExt;

    use super::*;

    #[test]
    fn the_door_opens_to_the_right_parties() {
        let tcp = Peer::Tcp(([127, 0, 0, 1], 1).into());
        let good = Hello {
            token: "secret".into(),
            namespace: "default".into(),
            client: ClientId(1),
            ..Hello::default()
        };
        let long = "x".repeat(NAMESPACE_BYTES_MAX + 1);
        let node = Hello { role: Role::Node, namespace: String::new(), client: ClientId(0), ..good.clone() };
        for (hello, nodes_enter, expected) in [
            (good.clone(), false, Ok(())),
            (Hello { token: String::new(), ..good.clone() }, false, Err(Reason::Unauthenticated)),
            (Hello { token: "Secret".into(), ..good.clone() }, false, Err(Reason::Unauthenticated)),
            (Hello { client: ClientId(0), ..good.clone() }, false, Err(Reason::Invalid)),
            (Hello { namespace: String::new(), ..good.clone() }, false, Err(Reason::Invalid)),
            (Hello { namespace: long, ..good.clone() }, false, Err(Reason::Invalid)),
            (node.clone(), true, Ok(())),
            (node, false, Err(Reason::NotForYou)),
        ] {
            let found = Door::new("secret".into(), nodes_enter).check(&hello, tcp);
            assert_eq!(found.map_err(|refusal| refusal.reason), expected, "{hello:?}");
        }
    }

    struct Server(Door, Arc<Supervisor>);

    impl Host for Server {
        fn door(&self) -> &Door {
            &self.0
        }

        fn supervisor(&self) -> &Arc<Supervisor> {
            &self.1
        }

        async fn visit(self: Arc<Self>, greeting: Greeting) {
            let (_outbox, mut inbox) = greeting.welcome(Welcome::default());
            while inbox.next().await.is_some() {}
        }
    }

    #[tokio::test]
    async fn one_too_many_is_told_so_and_finds_room_when_another_leaves() {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_address().clone();
        let server = Arc::new(Server(Door::new(String::new(), false), Supervisor::new()));
        let serving = tokio::spawn(serve_at_most(listener, Arc::clone(&server), 1, 8));
        let hello = Hello { namespace: "default".into(), client: ClientId(1), ..Hello::default() };
        let deadline = Instant::now() + Duration::from_secs(60);
        let open = || Connection::open(&address, hello.clone(), deadline);
        let (first, _) = open().await.unwrap();
        let refused = open().await.map(|_| ());
        assert!(matches!(refused, Err(CallError::Refused(refusal)) if refusal.reason == Reason::Busy));
        assert_eq!((server.0.inside(), server.0.refused()), (1, 1));
        drop(first);
        // The server may take a moment to see it go.
        while open().await.is_err() {
            assert!(Instant::now() < deadline, "the place never became free");
        }
        serving.abort();
    }

    #[tokio::test]
    async fn silent_connections_end_oldest_first_and_keep_nobody_out() {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_address().clone();
        let server = Arc::new(Server(Door::new("secret".into(), false), Supervisor::new()));
        let serving = tokio::spawn(serve_at_most(listener, Arc::clone(&server), 64, 4));
        let mut silent = Vec::new();
        for _ in 0..5 {
            silent.push(tokio::net::TcpStream::connect(address.to_string()).await.unwrap());
        }
        // The fifth is one too many, so that the first is closed; the others stay.
        assert_eq!(silent[0].read(&mut [0; 1]).await.unwrap_or(0), 0);
        assert!(silent[1].try_read(&mut [0; 1]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
        let hello = Hello {
            token: "secret".into(),
            namespace: "default".into(),
            client: ClientId(1),
            ..Hello::default()
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        let (connection, _) = Connection::open(&address, hello, deadline).await.unwrap();
        assert!(!connection.is_closed());
        assert_eq!(server.0.inside(), 1);
        serving.abort();
    }

    /// The twin lets in whom the port lets in: who uses it is of our own user, and all others stay with TCP.
    #[tokio::test]
    async fn without_a_token_both_ways_of_a_loopback_port_lead_in() {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_address().clone();
        let server = Arc::new(Server(Door::new(String::new(), false), Supervisor::new()));
        let serving = tokio::spawn(serve(listener, Arc::clone(&server)));
        let hello = Hello { namespace: "default".into(), client: ClientId(1), ..Hello::default() };
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut open = Vec::new();
        for reach in [Reach::Far, Reach::Near] {
            let opened = Connection::open_by(&address, reach, hello.clone(), deadline).await;
            let (connection, _) = opened.unwrap_or_else(|error| panic!("{reach:?}: {error}"));
            assert_eq!(connection.address(), &address, "people are told the port, whichever way it was");
            open.push(connection);
        }
        assert_eq!((server.0.inside(), server.0.refused()), (2, 0));
        serving.abort();
    }

    #[test]
    fn without_a_token_a_unix_socket_is_for_its_own_user() {
        let own = rustix::process::getuid().as_raw();
        let hello = Hello { namespace: "default".into(), client: ClientId(1), ..Hello::default() };
        for (uid, expected) in [(own, true), (0, true), (own + 1, false)] {
            let found = Door::new(String::new(), false).check(&hello, Peer::Unix { uid, pid: None });
            assert_eq!(found.is_ok(), expected, "user {uid}");
        }
    }
}
