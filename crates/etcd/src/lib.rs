//! The few calls of etcd 3.4 and later that masters, nodes and clients need, over its JSON gateway.
//!
//! The gateway is part of every etcd server and listens on its client port. It makes protoc, HTTP/2 and a
//! generated client unnecessary (`docs/notes/ha.md`). There are transactions and leases, and no watches:
//! callers poll.
//!
//! **Invariant:** every call ends at its deadline. A call that fails on one endpoint is repeated on the next
//! one, so a transaction may be applied twice: its comparisons must make the second time harmless.

mod http;
pub mod leader;
mod messages;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until};

pub use messages::{Get, KeyValue, LeaseId, Op, Outcome, TimeToLive, Txn};

/// How long one endpoint may take for a small request.
const TRY_TIME: Duration = Duration::from_millis(500);
/// How much longer it may take for each byte: 1 MiB/s.
const TRY_TIME_PER_MIB: Duration = Duration::from_secs(1);
/// The pause after all endpoints have failed.
const ROUND_PAUSE: Duration = Duration::from_millis(50);
/// The greatest number of endpoints.
pub const ENDPOINTS_MAX: usize = 16;

/// Why a call has no result.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EtcdError {
    /// Text that does not name endpoints.
    #[error(
        "`{text}` does not name etcd endpoints: {why}\n\nhint: write `host:2379`, several separated by commas"
    )]
    Endpoints {
        /// The text.
        text: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// No endpoint answered in time. The call may or may not have been carried out.
    #[error(
        "etcd at `{endpoints}` did not answer in time: {why}\n\nhint: check that a majority of its members \
         runs and can be reached: `etcdctl endpoint health --cluster`"
    )]
    Unavailable {
        /// All endpoints.
        endpoints: String,
        /// The last failure.
        why: String,
    },
    /// etcd refused the call.
    #[error("etcd refused a call: {message}\n\nhint: look at the log of etcd")]
    Refused {
        /// Its words.
        message: String,
    },
}

/// A failure of one try.
#[derive(Debug)]
enum Failure {
    /// Another endpoint, or another try, may succeed.
    Again(String),
    /// etcd has decided.
    Final(String),
}

/// A client of one etcd cluster.
#[derive(Debug)]
pub struct Etcd {
    endpoints: Vec<http::Endpoint>,
    /// The endpoint that answered last.
    preferred: AtomicUsize,
}

impl Etcd {
    /// A client of the endpoints in `text`: `host:port`, separated by commas or semicolons, with or without
    /// `http://`.
    pub fn new(text: &str) -> Result<Self, EtcdError> {
        let fail = |why| EtcdError::Endpoints { text: text.to_owned(), why };
        let mut endpoints = Vec::new();
        for part in text.split([',', ';']).map(str::trim).filter(|it| !it.is_empty()) {
            if part.starts_with("https://") {
                return Err(fail("TLS is not supported"));
            }
            let part = part.strip_prefix("http://").unwrap_or(part).trim_end_matches('/');
            let (host, port) = part.rsplit_once(':').ok_or_else(|| fail("a port is missing"))?;
            if host.is_empty() || port.parse::<u16>().is_err() || host.contains(['/', ' ', '@']) {
                return Err(fail("a host or a port is invalid"));
            }
            endpoints.push(http::Endpoint::new(part));
        }
        match endpoints.len() {
            0 => Err(fail("there is none")),
            1..=ENDPOINTS_MAX => Ok(Self { endpoints, preferred: AtomicUsize::new(0) }),
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
        loop {
            let first = self.preferred.load(Ordering::Relaxed);
            for index in (0..self.endpoints.len()).map(|it| (first + it) % self.endpoints.len()) {
                let Some(endpoint) = self.endpoints.get(index) else { continue };
                let until = deadline.min(Instant::now() + try_time);
                let why = match endpoint.post(path, body.clone(), until).await {
                    Ok(bytes) => {
                        self.preferred.store(index, Ordering::Relaxed);
                        return serde_json::from_slice(&bytes).map_err(|_| self.garbled(path));
                    }
                    Err(Failure::Final(message)) => return Err(EtcdError::Refused { message }),
                    Err(Failure::Again(why)) => why,
                };
                if Instant::now() >= deadline {
                    return Err(EtcdError::Unavailable { endpoints: self.endpoints(), why });
                }
            }
            sleep_until(deadline.min(Instant::now() + ROUND_PAUSE)).await;
        }
    }

    fn garbled(&self, what: &str) -> EtcdError {
        EtcdError::Refused { message: format!("the answer to {what} is not that of etcd") }
    }
}

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
        for text in ["", ",", "a", "a:x", ":1", "https://a:1", "a/b:1", &format!("{most},a:1")] {
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
}
