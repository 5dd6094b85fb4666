//! Admission: the accept loop that master and node share.
//!
//! **Invariant:** at most [`CONNECTIONS_MAX`] connections are served. Further ones get a refusal; while
//! [`REFUSALS_MAX`] refusals are in progress, they are closed without one.
//!
//! **Invariant:** a token that is limited to namespaces leaves a part of them to others, however many client
//! ids its holder uses.
//!
//! **Invariant:** at most [`PENDING_MAX`] connections have not sent a valid hello. One more closes the
//! oldest of them.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tiffin_core::master::LimitStat;
use tiffin_rpc::{Handshake, Listener, Peer, Stream};
use tiffin_transport::{AnswerTime, LimitUse, Pending};
use tiffin_types::ClientId;
use tiffin_types::NAMESPACE_BYTES_MAX;
use tiffin_types::access::{self, Denial};
use tiffin_types::message::{Hello, Reason, Refusal, Role};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::access::{Access, ClientIds, Holder, Source, now_ms};
use crate::supervise::Supervisor;
use crate::supervise::faults::{Point, strike};

/// The maximum number of connections to one server.
pub const CONNECTIONS_MAX: usize = 16 << 10;
/// The parts of them, of which a token that is limited to namespaces gets all but one: the others get in.
const CONNECTION_PARTS: usize = 8;
/// The answer to a token with too many connections.
const TOKEN_IS_FULL: &str = "too many connections of this token\n\nhint: close some, or give other programs \
                             a token of their own (`tiffin token create`)";
/// The maximum number of refusals in progress.
const REFUSALS_MAX: usize = 256;
/// The maximum number of connections that have not sent a valid hello; one more closes the oldest.
const PENDING_MAX: usize = 1024;
/// The time limit for a peer's hello.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(10);
/// The idle time before the first TCP keepalive probe, and the time between probes.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// The refusal of an id that no client may choose: other parts of a server act under it.
const RESERVED_ID: &str = "the client's id is zero or reserved";
/// See [`KEEPALIVE`].
const KEEPALIVE_RETRIES: u32 = 3;
/// The maximum time that sent bytes may stay unacknowledged before the peer's host counts as dead.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(45);

/// A server behind an accept loop.
pub(crate) trait Host: Send + Sync + 'static {
    /// The admission rules.
    fn admission(&self) -> &Admission;

    /// Learns of a connection whose task panics.
    fn supervisor(&self) -> &Arc<Supervisor>;

    /// Welcomes an admitted peer, and serves it until the connection ends. Everything that the peer may
    /// rely on is done before the welcome is sent.
    fn serve_peer(
        self: Arc<Self>,
        handshake: Handshake,
        holder: Arc<Holder>,
    ) -> impl Future<Output = ()> + Send;
}

/// The requirements for a connection, and the number of open ones.
#[derive(Debug)]
pub(crate) struct Admission {
    access: Arc<Access>,
    clients: ClientIds,
    nodes_enter: bool,
    inside: AtomicU64,
    refused: AtomicU64,
    /// The number of connections that exceeded the limit so far.
    surplus: AtomicU64,
    /// The number of connections that a token had too many so far.
    surplus_of_tokens: AtomicU64,
    /// Connections without a valid hello, of each port.
    pending: Mutex<Vec<Arc<Pending>>>,
}

impl Admission {
    /// Requires one of these tokens; accepts nodes as well as clients if `nodes_enter`.
    pub(crate) fn new(access: Arc<Access>, nodes_enter: bool) -> Self {
        let (inside, refused, surplus, surplus_of_tokens, pending) = Default::default();
        let clients = ClientIds::default();
        Self { access, clients, nodes_enter, inside, refused, surplus, surplus_of_tokens, pending }
    }

    /// The accepted tokens.
    pub(crate) fn access(&self) -> &Arc<Access> {
        &self.access
    }

    /// The number of open connections.
    pub(crate) fn inside(&self) -> u64 {
        self.inside.load(Ordering::Relaxed)
    }

    /// The number of connections that were refused so far.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The limits of its connections and their use; of the port with most where there are several.
    pub(crate) fn limits(&self) -> [LimitStat; 6] {
        let pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let pending: Vec<_> = pending.iter().map(|it| it.limit()).collect();
        let connections = LimitUse {
            max: CONNECTIONS_MAX as u64,
            used: self.inside(),
            reached: self.surplus.load(Ordering::Relaxed),
        };
        let unauthenticated = LimitUse {
            max: PENDING_MAX as u64,
            used: pending.iter().map(|it| it.used).max().unwrap_or(0),
            reached: pending.iter().map(|it| it.reached).sum(),
        };
        let per_token = LimitUse {
            max: token_connections_max(CONNECTIONS_MAX) as u64,
            used: self.access.most_connections() as u64,
            reached: self.surplus_of_tokens.load(Ordering::Relaxed),
        };
        let [received, unsent] = self.access.memory_limits();
        [
            limit_stat("request_connections", connections),
            limit_stat("request_unauthenticated", unauthenticated),
            self.access.guesses().stat(),
            limit_stat("request_connections_per_token", per_token),
            limit_stat("request_bytes_per_token", received),
            limit_stat("reply_bytes_per_token", unsent),
        ]
    }

    /// Without tokens, a Unix socket accepts only our own user and root. `Err` is the problem.
    pub(crate) fn admit_user(&self, uid: u32) -> Result<(), &'static str> {
        let is_stranger = uid != rustix::process::getuid().as_raw() && uid != 0;
        match self.access.is_open() && is_stranger {
            true => Err("this socket accepts only the user that started the server"),
            false => Ok(()),
        }
    }

    /// Gives the client id to this holder. `Err` is the problem.
    pub(crate) fn bind(&self, client: ClientId, holder: &Holder) -> Result<(), &'static str> {
        if !client.may_be_chosen() {
            return Err(RESERVED_ID);
        }
        match self.clients.bind(client, holder) {
            true => Ok(()),
            false => Err("the client's id belongs to the holder of another token"),
        }
    }

    /// Admits a peer, or says why not and when it is told.
    fn check(&self, hello: &Hello, peer: Peer) -> Result<Arc<Holder>, (Refusal, AnswerTime)> {
        let holder = self.access.holder(&hello.token).map_err(|problem| {
            let message = problem.text().to_owned();
            let refusal = Refusal { reason: Reason::Unauthenticated, message };
            (refusal, self.access.answer_time(problem, source(peer)))
        })?;
        self.check_rest(hello, peer, &holder).map_err(|it| (it, AnswerTime::Now))?;
        Ok(holder)
    }

    /// What is required beside the token.
    fn check_rest(&self, hello: &Hello, peer: Peer, holder: &Holder) -> Result<(), Refusal> {
        let refuse = |reason, message: &str| Err(Refusal { reason, message: message.to_owned() });
        if let Peer::Unix { uid, .. } = peer
            && let Err(problem) = self.admit_user(uid)
        {
            return refuse(Reason::Unauthenticated, problem);
        }
        self.check_role(hello)?;
        access::admit(holder.credential(), hello.role, &hello.namespace, now_ms()).map_err(forbidden)?;
        if let (Role::Client | Role::Lane, Err(problem)) = (hello.role, self.bind(hello.client, holder)) {
            return refuse(Reason::Forbidden, problem);
        }
        Ok(())
    }

    fn check_role(&self, hello: &Hello) -> Result<(), Refusal> {
        let refuse = |reason, message: &str| Err(Refusal { reason, message: message.to_owned() });
        match hello.role {
            Role::Node | Role::Ledger if !self.nodes_enter => {
                refuse(Reason::NotForYou, "a storage node accepts only clients")
            }
            Role::Node | Role::Ledger => Ok(()),
            Role::Client | Role::Lane if !hello.client.may_be_chosen() => {
                refuse(Reason::Invalid, RESERVED_ID)
            }
            Role::Client | Role::Lane if hello.namespace.is_empty() => refuse(
                Reason::Invalid,
                "the name of the namespace is empty\n\nhint: leave it out for the namespace `default`",
            ),
            Role::Client | Role::Lane if hello.namespace.len() > NAMESPACE_BYTES_MAX => {
                let (len, most) = (hello.namespace.len(), NAMESPACE_BYTES_MAX);
                refuse(
                    Reason::Invalid,
                    &format!("the name of the namespace has {len} bytes, more than {most}"),
                )
            }
            Role::Client | Role::Lane => Ok(()),
        }
    }
}

/// The maximum number of connections of one token.
fn token_connections_max(connections_max: usize) -> usize {
    connections_max / CONNECTION_PARTS * (CONNECTION_PARTS - 1)
}

/// The refusal of what a token does not permit.
pub(crate) fn forbidden(denial: Denial) -> Refusal {
    Refusal { reason: Reason::Forbidden, message: denial.to_string() }
}

/// Accepts and serves connections. Dropping the future closes all of them.
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
    host.admission().pending.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&pending));
    let mut connections = JoinSet::new();
    loop {
        let stream = listener.accept().await;
        while connections.try_join_next().is_some() {}
        let is_full = connections.len() >= connections_max;
        host.admission().surplus.fetch_add(u64::from(is_full), Ordering::Relaxed);
        if connections.len() >= connections_max + REFUSALS_MAX {
            tracing::warn!(address = %listener.local_address(), "too many connections: closed one");
            continue;
        }
        let places = Places { is_full, of_token_max: token_connections_max(connections_max) };
        let served = admit(stream, Arc::clone(&host), Arc::clone(&pending), places);
        connections.spawn(host.supervisor().watch("the task of a connection", served));
    }
}

/// What a new connection finds.
#[derive(Clone, Copy)]
struct Places {
    /// There are as many connections as may be.
    is_full: bool,
    /// The maximum number of those of its token.
    of_token_max: usize,
}

async fn admit<H: Host>(stream: Stream, host: Arc<H>, pending: Arc<Pending>, places: Places) {
    keep_alive(&stream);
    let deadline = Instant::now() + HANDSHAKE_TIME_MAX;
    let cut = Arc::new(Notify::new());
    let from = match stream.peer() {
        Peer::Tcp(address) => Some(address.ip()),
        Peer::Unix { .. } | Peer::Gone => None,
    };
    let entry = pending.enter_from(&cut, from);
    let admission = host.admission();
    let handshake = tokio::select! {
        biased;
        () = cut.notified() => {
            admission.refused.fetch_add(1, Ordering::Relaxed);
            return;
        }
        handshake = Handshake::receive(stream, deadline) => handshake,
    };
    let Some(mut handshake) = handshake else { return };
    let busy = |message: &str| {
        let refusal = Refusal { reason: Reason::Busy, message: message.to_owned() };
        (refusal, AnswerTime::Now)
    };
    let admitted = match places.is_full {
        true => Err(busy("too many connections")),
        false => admission.check(&handshake.hello, handshake.peer()),
    };
    let connected = admitted.and_then(|holder| {
        let connected = holder.connected(handshake.outbox().clone(), places.of_token_max);
        admission.surplus_of_tokens.fetch_add(u64::from(connected.is_none()), Ordering::Relaxed);
        Ok((connected.ok_or_else(|| busy(TOKEN_IS_FULL))?, holder))
    });
    let (_connected, holder) = match connected {
        Ok(connected) => connected,
        Err((refusal, time)) => {
            admission.refused.fetch_add(1, Ordering::Relaxed);
            // Until it is told, it counts as a connection without a valid hello.
            let is_told = tokio::select! {
                biased;
                () = cut.notified() => false,
                is_told = time.comes() => is_told,
            };
            if is_told {
                handshake.refuse(refusal, deadline).await;
            }
            return;
        }
    };
    drop(entry);
    if let Some(budget) = holder.budget() {
        handshake.share(budget);
    }
    let (label, peer) = (handshake.hello.label.clone(), handshake.peer());
    let _inside = Inside::enter(admission);
    strike(Point::Connection);
    tracing::debug!(%peer, role = ?handshake.hello.role, label, "peer connected");
    Arc::clone(&host).serve_peer(handshake, holder).await;
    tracing::debug!(%peer, label, "peer disconnected");
}

/// The party that wrong tokens of this peer count for.
fn source(peer: Peer) -> Option<Source> {
    match peer {
        Peer::Tcp(address) => Some(Source::from(address.ip())),
        Peer::Unix { uid, .. } => Some(Source::User(uid)),
        Peer::Gone => None,
    }
}

/// A limit with its name.
pub(crate) fn limit_stat(name: &'static str, LimitUse { max, used, reached }: LimitUse) -> LimitStat {
    LimitStat { name, max, used, reached }
}

/// Detects a host that vanished. A process that is only stopped keeps its connection.
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
            tracing::warn!(%error, what, "cannot set a socket option");
        }
    }
}

/// One connection, counted.
struct Inside<'a>(&'a Admission);

impl<'a> Inside<'a> {
    fn enter(admission: &'a Admission) -> Self {
        admission.inside.fetch_add(1, Ordering::Relaxed);
        Self(admission)
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

    use tiffin_rpc::{CallError, Connection, Reach};
    use tiffin_types::access::Right;
    use tiffin_types::message::Welcome;
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::access::{AccessFile, Guesses, NewToken};

    #[test]
    fn only_permitted_peers_are_admitted() {
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
            (Hello { client: ClientId::CHOSEN_MAX, ..good.clone() }, false, Ok(())),
            (Hello { client: ClientId::PROMOTER, ..good.clone() }, false, Err(Reason::Invalid)),
            (Hello { namespace: String::new(), ..good.clone() }, false, Err(Reason::Invalid)),
            (Hello { namespace: long, ..good.clone() }, false, Err(Reason::Invalid)),
            (node.clone(), true, Ok(())),
            (node, false, Err(Reason::NotForYou)),
        ] {
            let found = Admission::new(Access::single("secret"), nodes_enter).check(&hello, tcp);
            assert_eq!(found.map(|_| ()).map_err(|it| it.0.reason), expected, "{hello:?}");
        }
    }

    struct Server(Admission, Arc<Supervisor>);

    impl Host for Server {
        fn admission(&self) -> &Admission {
            &self.0
        }

        fn supervisor(&self) -> &Arc<Supervisor> {
            &self.1
        }

        async fn serve_peer(self: Arc<Self>, handshake: Handshake, _: Arc<Holder>) {
            let (_outbox, mut inbox) = handshake.welcome(Welcome::default());
            while inbox.next().await.is_some() {}
        }
    }

    #[tokio::test]
    async fn connection_beyond_the_limit_is_refused_until_one_ends() {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_address().clone();
        let server = Arc::new(Server(Admission::new(Access::single(""), false), Supervisor::new()));
        let serving = tokio::spawn(serve_at_most(listener, Arc::clone(&server), 1, 8));
        let hello = Hello { namespace: "default".into(), client: ClientId(1), ..Hello::default() };
        let deadline = Instant::now() + Duration::from_secs(60);
        let open = || Connection::open(&address, hello.clone(), deadline);
        let (first, _) = open().await.unwrap();
        let refused = open().await.map(|_| ());
        assert!(matches!(refused, Err(CallError::Refused(refusal)) if refusal.reason == Reason::Busy));
        assert_eq!((server.0.inside(), server.0.refused()), (1, 1));
        let connections = server.0.limits()[0];
        assert_eq!((connections.name, connections.used, connections.reached), ("request_connections", 1, 1));
        drop(first);
        // The server notices the end of a connection with a delay.
        while open().await.is_err() {
            assert!(Instant::now() < deadline, "the limit is never free again");
        }
        serving.abort();
    }

    #[tokio::test]
    async fn token_for_some_namespaces_leaves_connections_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("access.toml");
        let [token, other] = ["a", "b"].map(|name| {
            let (rights, namespaces) = ([Right::Read].into_iter().collect(), vec!["team-*".to_owned()]);
            let new = NewToken { name: name.to_owned(), rights, namespaces, expires_ms: None };
            AccessFile::create(&path, &new).unwrap()
        });
        let access = Access::new("secret", Some(&path)).unwrap();
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_address().clone();
        let server = Arc::new(Server(Admission::new(access, false), Supervisor::new()));
        let serving = tokio::spawn(serve_at_most(listener, Arc::clone(&server), 2 * CONNECTION_PARTS, 8));
        let deadline = Instant::now() + Duration::from_secs(60);
        let open = |token: &str, client: usize| {
            let (token, namespace) = (token.to_owned(), format!("team-{client}"));
            let hello = Hello { token, namespace, client: ClientId(client as u64), ..Hello::default() };
            Connection::open(&address, hello, deadline)
        };
        let mut held = Vec::new();
        // Each is another client, in a namespace of its own.
        for client in 1..=token_connections_max(2 * CONNECTION_PARTS) {
            held.push(open(&token, client).await.unwrap());
        }
        let refused = open(&token, 100).await.map(|_| ());
        let is_refused = |it: &Refusal| it.reason == Reason::Busy && it.message.contains("of this token");
        assert!(matches!(&refused, Err(CallError::Refused(it)) if is_refused(it)), "{refused:?}");
        for (token, client) in [(&*other, 101), ("secret", 102)] {
            held.push(open(token, client).await.unwrap());
        }
        let limit = server.0.limits()[3];
        assert_eq!((limit.name, limit.used, limit.reached), ("request_connections_per_token", 14, 1));
        drop(held.swap_remove(0));
        // The server notices the end of a connection with a delay.
        while open(&token, 1).await.is_err() {
            assert!(Instant::now() < deadline, "the limit is never free again");
        }
        serving.abort();
    }

    #[tokio::test]
    async fn silent_connections_end_oldest_first() {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_address().clone();
        let server = Arc::new(Server(Admission::new(Access::single("secret"), false), Supervisor::new()));
        let serving = tokio::spawn(serve_at_most(listener, Arc::clone(&server), 64, 4));
        let mut silent = Vec::new();
        for _ in 0..5 {
            silent.push(tokio::net::TcpStream::connect(address.to_string()).await.unwrap());
        }
        // The fifth exceeds the limit, so that the first is closed. The others stay open.
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
        let unauthenticated = server.0.limits()[1];
        assert_eq!((unauthenticated.name, unauthenticated.reached), ("request_unauthenticated", 2));
        serving.abort();
    }

    /// The answers are held back for ever, so that no clock takes part.
    #[tokio::test]
    async fn guesses_are_held_back_and_lock_no_client_out() {
        const AT_ONCE: u32 = 3;
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_address().clone();
        let access = Access::with_guesses("secret", Guesses::with_limits(AT_ONCE, 2));
        let server = Arc::new(Server(Admission::new(access, false), Supervisor::new()));
        let serving = tokio::spawn(serve(listener, Arc::clone(&server)));
        let deadline = Instant::now() + Duration::from_secs(60);
        let hello = |token: &str| Hello {
            token: token.into(),
            namespace: "default".into(),
            client: ClientId(1),
            ..Hello::default()
        };
        let open = |token| Connection::open_by(&address, Reach::Far, hello(token), deadline);
        for _ in 0..AT_ONCE {
            let refused = open("guess").await.map(|_| ());
            let is_refused =
                |it: &Refusal| it.reason == Reason::Unauthenticated && it.message == "the token is wrong";
            assert!(matches!(&refused, Err(CallError::Refused(it)) if is_refused(it)), "{refused:?}");
        }
        let mut held = JoinSet::new();
        for _ in 0..2 {
            let (address, hello) = (address.clone(), hello("guess"));
            held.spawn(async move {
                Connection::open_by(&address, Reach::Far, hello, deadline).await.map(|_| ())
            });
        }
        while server.0.limits()[2].reached < 2 {
            tokio::task::yield_now().await;
        }
        // One more is closed without an answer.
        let closed = open("guess").await.map(|_| ());
        assert!(matches!(closed, Err(ref it) if !matches!(it, CallError::Refused(_))), "{closed:?}");
        assert!(held.try_join_next().is_none(), "the others are not answered yet");
        // A client of the same host with the token is served at once, and so is another user of it.
        assert!(open("secret").await.is_ok());
        assert_eq!(server.0.limits()[2].reached, 3);
        serving.abort();
    }

    /// The Unix socket beside a loopback port admits only our own user; other users stay with TCP.
    #[tokio::test]
    async fn loopback_port_and_its_unix_socket_admit_the_user() {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_address().clone();
        let server = Arc::new(Server(Admission::new(Access::single(""), false), Supervisor::new()));
        let serving = tokio::spawn(serve(listener, Arc::clone(&server)));
        let hello = Hello { namespace: "default".into(), client: ClientId(1), ..Hello::default() };
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut open = Vec::new();
        for reach in [Reach::Far, Reach::Near] {
            let opened = Connection::open_by(&address, reach, hello.clone(), deadline).await;
            let (connection, _) = opened.unwrap_or_else(|error| panic!("{reach:?}: {error}"));
            assert_eq!(connection.address(), &address, "messages name the port in both cases");
            open.push(connection);
        }
        assert_eq!((server.0.inside(), server.0.refused()), (2, 0));
        serving.abort();
    }

    #[test]
    fn unix_socket_without_token_admits_only_its_user() {
        let own = rustix::process::getuid().as_raw();
        let hello = Hello { namespace: "default".into(), client: ClientId(1), ..Hello::default() };
        for (uid, expected) in [(own, true), (0, true), (own + 1, false)] {
            let found =
                Admission::new(Access::single(""), false).check(&hello, Peer::Unix { uid, pid: None });
            assert_eq!(found.is_ok(), expected, "user {uid}");
        }
    }
}
