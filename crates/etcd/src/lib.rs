//! The few calls of etcd 3.4 and later that masters, nodes and clients need, over its JSON gateway.
//!
//! The gateway is part of every etcd server and listens on its client port. It makes protoc, HTTP/2 and a
//! generated client unnecessary (`docs/notes/ha.md`). There are transactions and leases, and no watches:
//! callers poll.
//!
//! **Invariant:** every call ends at its deadline. A call that fails on one endpoint is repeated on the next
//! one, so a transaction may be applied twice: its comparisons must make the second time harmless.

mod access;
mod http;
pub mod leader;
mod messages;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hyper::body::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tiffin_tls::{TlsError, TlsFileError};
use tokio::time::{Instant, sleep_until};

use http::{Endpoint, Post};

pub use access::EtcdAccess;
pub use messages::{Get, KeyValue, LeaseId, Op, Outcome, TimeToLive, Txn};

/// How long one endpoint may take for a small request.
const TRY_TIME: Duration = Duration::from_millis(500);
/// How much longer it may take for each byte: 1 MiB/s.
const TRY_TIME_PER_MIB: Duration = Duration::from_secs(1);
/// How long an authentication may take: etcd makes passwords expensive to check (`--bcrypt-cost`).
const AUTHENTICATE_TIME: Duration = Duration::from_secs(2);
/// The pause after all endpoints have failed.
const ROUND_PAUSE: Duration = Duration::from_millis(50);
/// The code of gRPC for a user that may not do this. With `--client-cert-auth`, etcd also gives it to a
/// request that lacks a token.
const PERMISSION_DENIED: i64 = 7;
/// The code for a token that etcd does not know, or no more.
const UNAUTHENTICATED: i64 = 16;
/// The code for arguments that are not valid. etcd also gives it to a request that lacks a token.
const INVALID_ARGUMENT: i64 = 3;
/// The code for a request that does not fit the state, such as authentication that is not enabled.
const FAILED_PRECONDITION: i64 = 9;
/// The greatest number of endpoints.
pub const ENDPOINTS_MAX: usize = 16;

/// Why a call has no result.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EtcdError {
    /// Text that does not name endpoints.
    #[error(
        "`{text}` does not name etcd endpoints: {why}\n\nhint: {}", self.hint()
    )]
    Endpoints {
        /// The text.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// No endpoint answered in time. The call may or may not have been carried out.
    #[error("etcd at `{endpoints}` did not answer in time: {why}\n\nhint: {}", self.hint())]
    Unavailable {
        /// All endpoints.
        endpoints: String,
        /// The last failure.
        why: String,
    },
    /// The files for TLS cannot be used.
    #[error(transparent)]
    Files(#[from] TlsFileError),
    /// No endpoint has a TLS connection with this process, and another attempt would not help.
    #[error("no TLS connection to etcd at `{endpoint}`: {source}\n\nhint: {}", self.hint())]
    Tls {
        /// The endpoint that was tried last.
        endpoint: String,
        /// The problem.
        source: TlsError,
    },
    /// The user or the password cannot be used.
    #[error("the credentials for etcd cannot be used: {what}\n\nhint: {}", self.hint())]
    Credentials {
        /// What is wrong with them.
        what: String,
    },
    /// etcd refused the call.
    #[error("etcd refused a call: {message}\n\nhint: {}", self.hint())]
    Refused {
        /// Its words.
        message: String,
    },
    /// The user may not do this, or etcd has users and was shown none.
    #[error("etcd refused a call: {message}\n\nhint: {}", self.hint())]
    Forbidden {
        /// Its words.
        message: String,
    },
}

impl EtcdError {
    /// What may help.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Endpoints { .. } => "write `host:2379`, several separated by commas",
            Self::Unavailable { .. } => {
                "check that a majority of its members runs and can be reached: `etcdctl endpoint \
                 health --cluster`"
            }
            Self::Files(_) => "check `--etcd-ca`, `--etcd-cert`, `--etcd-key` and `--etcd-credentials-file`",
            Self::Tls { source, .. } => access::hint(source),
            Self::Credentials { .. } => {
                "write `NAME:PASSWORD` of a user of etcd into the file `etcd_credentials_file`; `etcdctl \
                 user list` shows the users"
            }
            Self::Refused { .. } => "look at the log of etcd",
            Self::Forbidden { .. } => {
                "name a user with `--etcd-credentials-file` (TIFFIN_ETCD_CREDENTIALS_FILE) that may access \
                 the keys below `/tiffin/CLUSTER/`: `etcdctl role grant-permission`"
            }
        }
    }
}

/// A failure of one try.
#[derive(Debug)]
enum Failure {
    /// Another endpoint, or another try, may succeed.
    Again(String),
    /// etcd has decided.
    Final { code: i64, message: String },
    /// This endpoint and this process do not accept each other.
    Tls(String, TlsError),
}

/// A client of one etcd cluster.
#[derive(Debug)]
pub struct Etcd {
    endpoints: Vec<Endpoint>,
    access: EtcdAccess,
    /// The endpoint that answered last.
    preferred: AtomicUsize,
    token: Mutex<Token>,
}

/// What etcd has given for the credentials.
#[derive(Clone, Default)]
enum Token {
    /// It was not asked yet, or its last token is no longer valid.
    #[default]
    None,
    /// It requires none.
    Needless,
    Given(String),
}

/// Without the token.
impl std::fmt::Debug for Token {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Token")
    }
}

impl Etcd {
    /// A client of the endpoints in `text`, without TLS and without a user.
    pub fn new(text: &str) -> Result<Self, EtcdError> {
        Self::open(text, &EtcdAccess::default())
    }

    /// A client of the endpoints in `text`: `host:port`, separated by commas or semicolons, with or without
    /// `http://` or `https://`. With a CA, all of them are reached with TLS, and without one none is.
    pub fn open(text: &str, access: &EtcdAccess) -> Result<Self, EtcdError> {
        let addresses = Self::check(text, access)?;
        let tls = access.tls()?;
        // A file that is not there is noticed now.
        access.credentials()?;
        let endpoints =
            addresses.iter().map(|it| Endpoint::new(it, tls.clone(), access.cert.is_some())).collect();
        let (access, token) = (access.clone(), Mutex::default());
        Ok(Self { endpoints, access, preferred: AtomicUsize::new(0), token })
    }

    /// Refuses what [`Self::open`] would refuse, without reading a file. Returns the addresses.
    pub fn check(text: &str, access: &EtcdAccess) -> Result<Vec<String>, EtcdError> {
        access.check()?;
        let fail = |why| EtcdError::Endpoints { text: text.to_owned(), why };
        let mut addresses = Vec::new();
        for part in text.split([',', ';']).map(str::trim).filter(|it| !it.is_empty()) {
            let (scheme, part) = part.split_once("://").unwrap_or(("", part));
            match (scheme, access.ca.is_some()) {
                ("", _) | ("http", false) | ("https", true) => {}
                ("http", true) => return Err(fail("`http://` is without TLS, and `etcd_ca` is set")),
                ("https", false) => return Err(fail("`https://` needs a CA: set `etcd_ca` (`--etcd-ca`)")),
                _ => return Err(fail("it is neither `http://` nor `https://`")),
            }
            let part = part.trim_end_matches('/');
            let (host, port) = part.rsplit_once(':').ok_or_else(|| fail("a port is missing"))?;
            if host.is_empty() || port.parse::<u16>().is_err() || host.contains(['/', ' ', '@']) {
                return Err(fail("a host or a port is invalid"));
            }
            if access.credentials.is_some() && access.ca.is_none() && !is_loopback(host) {
                return Err(fail("the password would be sent without TLS: set `etcd_ca` (`--etcd-ca`)"));
            }
            addresses.push(part.to_owned());
        }
        match addresses.len() {
            0 => Err(fail("there is none")),
            1..=ENDPOINTS_MAX => Ok(addresses),
            _ => Err(fail("there are more than 16")),
        }
    }

    /// The endpoints, separated by commas.
    #[must_use]
    pub fn endpoints(&self) -> String {
        self.endpoints.iter().map(|it| it.address()).collect::<Vec<_>>().join(",")
    }

    /// Applies a transaction. One without puts and deletes is a linearizable read.
    pub async fn txn(&self, txn: &Txn, deadline: Instant) -> Result<Outcome, EtcdError> {
        let reply: messages::TxnReply = self.call("kv/txn", &messages::TxnBody::of(txn), deadline).await?;
        reply.outcome().ok_or_else(|| self.garbled("a transaction"))
    }

    /// Grants a lease of `ttl_s` seconds.
    pub async fn grant(&self, ttl_s: u64, deadline: Instant) -> Result<LeaseId, EtcdError> {
        let body = messages::Grant { ttl: ttl_s.to_string() };
        let reply: messages::LeaseReply = self.call("lease/grant", &body, deadline).await?;
        reply.id().ok_or_else(|| self.garbled("a grant"))
    }

    /// Prolongs a lease; `false` if there is no such lease any more.
    pub async fn keep_alive(&self, lease: LeaseId, deadline: Instant) -> Result<bool, EtcdError> {
        let body = messages::LeaseBody { id: lease.0.to_string() };
        let reply: messages::KeepAliveReply = self.call("lease/keepalive", &body, deadline).await?;
        Ok(reply.is_alive())
    }

    /// What is left of a lease; `None` if there is no such lease any more.
    pub async fn time_to_live(
        &self,
        lease: LeaseId,
        deadline: Instant,
    ) -> Result<Option<TimeToLive>, EtcdError> {
        let body = messages::LeaseBody { id: lease.0.to_string() };
        let reply: messages::TimeToLiveReply = self.call("lease/timetolive", &body, deadline).await?;
        Ok(reply.time_to_live())
    }

    /// Ends a lease, and deletes the keys that depend on it.
    pub async fn revoke(&self, lease: LeaseId, deadline: Instant) -> Result<(), EtcdError> {
        let body = messages::LeaseBody { id: lease.0.to_string() };
        let _reply: serde_json::Value = self.call("lease/revoke", &body, deadline).await?;
        Ok(())
    }

    async fn call<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        deadline: Instant,
    ) -> Result<T, EtcdError> {
        let body = serde_json::to_vec(body).map_err(|it| EtcdError::Refused { message: it.to_string() })?;
        let try_time = TRY_TIME + TRY_TIME_PER_MIB.mul_f64(body.len() as f64 / f64::from(1 << 20));
        let body = Bytes::from(body);
        // Of the last try that was not cut short by the deadline, if there was one.
        let mut reason = None;
        loop {
            let first = self.preferred.load(Ordering::Relaxed);
            let (mut untrusted, mut may_come_back) = (None, false);
            for index in (0..self.endpoints.len()).map(|it| (first + it) % self.endpoints.len()) {
                let Some(endpoint) = self.endpoints.get(index) else { continue };
                let is_last = Instant::now() + try_time >= deadline;
                let why = match self.post(endpoint, path, body.clone(), (try_time, deadline)).await? {
                    Ok(bytes) => {
                        self.preferred.store(index, Ordering::Relaxed);
                        return serde_json::from_slice(&bytes).map_err(|_| self.garbled(path));
                    }
                    Err(Failure::Final { code: PERMISSION_DENIED, message }) => {
                        return Err(EtcdError::Forbidden { message });
                    }
                    Err(Failure::Final { message, .. }) => return Err(EtcdError::Refused { message }),
                    Err(Failure::Again(why)) => {
                        may_come_back = true;
                        why
                    }
                    Err(Failure::Tls(endpoint, source)) => {
                        let why = format!("`{endpoint}`: {source}");
                        untrusted = Some((endpoint, source));
                        why
                    }
                };
                let is_over = Instant::now() >= deadline;
                let why = reason.take().filter(|_| is_over && is_last).unwrap_or(why);
                if is_over {
                    return Err(EtcdError::Unavailable { endpoints: self.endpoints(), why });
                }
                reason = Some(why);
            }
            // Where every endpoint has refused for good, there is nothing to wait for.
            if let Some((endpoint, source)) = untrusted.filter(|_| !may_come_back) {
                return Err(EtcdError::Tls { endpoint, source });
            }
            sleep_until(deadline.min(Instant::now() + ROUND_PAUSE)).await;
        }
    }

    /// Posts with the token of the user, if there is one, which is asked for first and when it is no longer
    /// valid.
    async fn post(
        &self,
        endpoint: &Endpoint,
        path: &str,
        body: Bytes,
        (try_time, deadline): (Duration, Instant),
    ) -> Result<Result<Bytes, Failure>, EtcdError> {
        let mut is_renewed = false;
        loop {
            let known = self.token().clone();
            let has_none = matches!(known, Token::Needless);
            let token = match known {
                Token::Given(token) => token,
                Token::Needless => String::new(),
                Token::None => match self.authenticate(endpoint, deadline).await? {
                    Ok(token) => {
                        is_renewed = true;
                        token
                    }
                    Err(failure) => return Ok(Err(failure)),
                },
            };
            let until = deadline.min(Instant::now() + try_time);
            let posted = endpoint.post(Post { path, token: &token, body: body.clone() }, until).await;
            let is_unknown = |it: &Failure| match it {
                Failure::Final { code: UNAUTHENTICATED, .. } => true,
                // etcd has users since this process learned that it has none.
                Failure::Final { code: PERMISSION_DENIED, .. } => has_none,
                Failure::Final { code: INVALID_ARGUMENT, message } => {
                    message.contains("user name is empty") || message.contains("auth store is old")
                }
                _ => false,
            };
            match posted {
                Err(failure) if is_unknown(&failure) && !is_renewed && self.access.credentials.is_some() => {
                    *self.token() = Token::None;
                }
                posted => return Ok(posted),
            }
        }
    }

    /// Asks for a token; an empty one if none is needed.
    async fn authenticate(
        &self,
        endpoint: &Endpoint,
        deadline: Instant,
    ) -> Result<Result<String, Failure>, EtcdError> {
        let Some(credentials) = self.access.credentials()? else {
            *self.token() = Token::Needless;
            return Ok(Ok(String::new()));
        };
        let body = serde_json::to_vec(&credentials);
        let body = body.map_err(|_| EtcdError::Credentials { what: "they are not text".to_owned() })?;
        let post = Post { path: "auth/authenticate", token: "", body: Bytes::from(body) };
        let until = deadline.min(Instant::now() + AUTHENTICATE_TIME);
        let token = match endpoint.post(post, until).await {
            Ok(answer) => {
                let answer: Result<access::Authenticated, _> = serde_json::from_slice(&answer);
                Token::Given(answer.map_err(|_| self.garbled("an authentication"))?.token)
            }
            // Where etcd has no users, its token is not required.
            Err(Failure::Final { code: FAILED_PRECONDITION, .. }) => Token::Needless,
            Err(Failure::Final { message, .. }) => return Err(EtcdError::Credentials { what: message }),
            Err(failure) => return Ok(Err(failure)),
        };
        *self.token() = token.clone();
        Ok(Ok(match token {
            Token::Given(token) => token,
            Token::None | Token::Needless => String::new(),
        }))
    }

    fn token(&self) -> std::sync::MutexGuard<'_, Token> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn garbled(&self, what: &str) -> EtcdError {
        EtcdError::Refused { message: format!("the answer to {what} is not that of etcd") }
    }
}

fn is_loopback(host: &str) -> bool {
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|it| it.is_loopback())
}

#[cfg(test)]
mod secure_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read_and_refused_with_a_hint() {
        for (text, shown) in [
            ("a:2379", "a:2379"),
            ("http://a:2379/, b:1;[::1]:2379", "a:2379,b:1,[::1]:2379"),
            ("127.0.0.1:2379", "127.0.0.1:2379"),
        ] {
            assert_eq!(Etcd::new(text).unwrap().endpoints(), shown);
        }
        let most = vec!["a:1"; ENDPOINTS_MAX].join(",");
        assert!(Etcd::new(&most).is_ok());
        for text in ["", ",", "a", "a:x", ":1", "https://a:1", "ftp://a:1", "a/b:1", &format!("{most},a:1")] {
            let message = Etcd::new(text).unwrap_err().to_string();
            assert!(message.contains("hint: write `host:2379`"), "{message}");
        }
    }

    #[tokio::test]
    async fn unreachable_endpoints_end_at_the_deadline() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        // The first refuses, the second accepts and never answers.
        let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let etcd = Etcd::new(&format!("{dead},{}", listener.local_addr().unwrap())).unwrap();
        let deadline = Instant::now() + Duration::from_millis(50);
        let error = etcd.txn(&Txn::default(), deadline).await.unwrap_err().to_string();
        assert!(error.contains("did not answer in time") && error.contains("hint: "), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn deadline_does_not_hide_the_reason() {
        let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let etcd = Etcd::new(&dead.to_string()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(2);
        let error = etcd.txn(&Txn::default(), deadline).await.unwrap_err().to_string();
        assert!(error.contains("Connection refused"), "{error}");
    }
}
