//! Connections: streams, the handshake, frames in and out, and calls with ids and deadlines.
//!
//! A connection begins with a `Hello` and a `Welcome`; after that, both sides may send requests. Bottom up:
//!
//! - [`Address`], [`Stream`] and [`Listener`]: TCP, and Unix sockets with abstract names. Every TCP listener
//!   on loopback also listens on a Unix socket, which clients of the same user prefer ([`Reach`]).
//! - [`Outbox`] and [`Inbox`]: the two ends of one stream. Sending never waits, and uses no other
//!   thread while the socket has space; receiving survives any bytes.
//! - [`dial`] and [`Handshake`]: the handshake, from the side that connects and the side that accepts.
//! - [`Connection`]: many calls at once, each with its deadline. Tasks share one stream; a thread that may
//!   block has one of its own, a *lane*.
//!
//! **Invariant:** every wait has a deadline or ends with the stream. A peer that is dead, stopped or faulty
//! causes an error, never a hang, a panic, or unbounded memory.

mod address;
mod blocking;
mod budget;
mod calls;
mod connection;
mod handshake;
pub mod host;
mod lanes;
mod local;
mod log_limit;
mod mailbox;
mod masters;
mod secure;
mod spin;
mod stream;
mod watch;

use std::io;
use std::sync::Arc;

use subtle::ConstantTimeEq;
use tiffin_proto::codec::EncodeError;
use tiffin_proto::frame::FrameError;
use tiffin_types::message::{Reason, Refusal};

pub use tiffin_etcd::EtcdAccess;
pub use tiffin_tls::{ClientCertificates, TlsClient, TlsError, TlsFileError, TlsFiles, TlsServer};

pub use address::{Address, AddressError};
pub use blocking::{Blocking, blocking, with_blocking};
pub use budget::{Budget, BudgetUse};
pub use connection::{Connection, MASTER_SERVICE, NODE_SERVICE};
pub use handshake::{Dialed, HELLO_BYTES_MAX, Handshake, dial};
pub use lanes::LANES_MAX;
pub use local::{Reach, Via};
pub use mailbox::{Inbox, OUTBOX_BYTES_MAX, Outbox, SendError, Taken};
pub use masters::{LastMessage, MASTERS_MAX, Masters, MastersError, superseded};
pub use stream::{ConnectError, ListenError, Listener, Peer, Stream};

/// Why a call has no reply.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// There is no connection, so nothing was done.
    #[error(
        "cannot connect to `{address}`: {source}\n\nhint: check that a server listens there and that this \
         machine may reach it"
    )]
    Connect {
        /// The peer.
        address: Address,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The host's name has no address, so nothing was done.
    #[error(
        "cannot resolve the host of `{address}`: {source}\n\nhint: check the spelling of the host's name, \
         and that this machine resolves it (DNS, /etc/hosts)"
    )]
    Resolve {
        /// The peer.
        address: Address,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// There is no TLS connection, so nothing was done.
    #[error("cannot connect to `{address}`: {source}\n\nhint: {}", .source.hint())]
    Tls {
        /// The peer.
        address: Address,
        /// Why.
        source: TlsError,
    },
    /// The peer did not reply in time. It may or may not have carried out the request.
    #[error(
        "`{address}` did not answer {what} in time\n\nhint: it is stopped, overloaded or cut off; allow more \
         time or look at its log"
    )]
    Timeout {
        /// The peer.
        address: Address,
        /// What the call waited for.
        what: &'static str,
    },
    /// The connection ended before the reply. The peer may or may not have carried out the request.
    #[error(
        "the connection to `{address}` was lost\n\nhint: the server went away or closed it; its log may say \
         why, and a new call connects again"
    )]
    Lost {
        /// The peer.
        address: Address,
    },
    /// The peer accepted the connection, but did not answer the handshake.
    #[error(
        "`{address}` accepted the connection but {}\n\nhint: another program may listen there: check the \
         address; or the server is stopped, overloaded or shutting down",
        if *is_silent { "did not answer the handshake in time" } else { "closed it before the handshake" }
    )]
    Unanswered {
        /// The peer.
        address: Address,
        /// It sent nothing in time; otherwise it closed the connection.
        is_silent: bool,
    },
    /// The peer refused, and did nothing.
    #[error("{}{}", .0.message, refusal_hint(.0.reason))]
    Refused(Refusal),
    /// The peer does not follow the protocol.
    #[error(
        "`{address}` violates the protocol: {detail}\n\nhint: check the port, and that both sides run \
         compatible versions"
    )]
    Protocol {
        /// The peer.
        address: Address,
        /// What is wrong.
        detail: String,
    },
    /// The port belongs to a server of another kind, such as an HTTP server.
    #[error(
        "`{address}` is not a Tiffin server: {source}\n\nhint: give the address that the master listens on \
         (port 7400 unless it was told otherwise), not that of its HTTP pages (7401)"
    )]
    Foreign {
        /// The peer.
        address: Address,
        /// What it sent.
        source: FrameError,
    },
    /// There are several masters, and none of them leads, so nothing was done.
    #[error("no master of `{masters}` leads: {why}\n\nhint: {hint}")]
    NoLeader {
        /// The masters.
        masters: String,
        /// The last failure.
        why: String,
        /// What to do.
        hint: &'static str,
    },
    /// The request must not be sent, so nothing was done.
    #[error(transparent)]
    TooLarge(#[from] EncodeError),
}

impl CallError {
    /// The kind of the failure in one word, for spans.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Connect { .. } => "connect",
            Self::Resolve { .. } => "resolve",
            Self::Tls { .. } => "tls",
            Self::Timeout { .. } => "timeout",
            Self::Lost { .. } => "lost",
            Self::Unanswered { .. } => "unanswered",
            Self::Refused(_) => "refused",
            Self::Protocol { .. } => "protocol",
            Self::Foreign { .. } => "foreign",
            Self::NoLeader { .. } => "no_leader",
            Self::TooLarge(_) => "too_large",
        }
    }
}

/// Compares two secrets in a time that depends on their lengths only, so that a token cannot be guessed byte
/// by byte.
#[must_use]
pub fn token_matches(expected: &str, given: &str) -> bool {
    expected.as_bytes().ct_eq(given.as_bytes()).into()
}

fn refusal_hint(reason: Reason) -> &'static str {
    match reason {
        // The message has a hint, which names the clusters.
        Reason::Invalid | Reason::OtherCluster => "",
        Reason::Unauthenticated => "\n\nhint: give the token that the server was started with",
        Reason::Forbidden => "\n\nhint: use a token that permits it; see `tiffin token`",
        Reason::Version => "\n\nhint: run the same release on both sides",
        Reason::NotForYou => "\n\nhint: check that the address is that of the right server",
        Reason::Busy => "\n\nhint: try again later, or with less at once",
        Reason::Unreachable => "\n\nhint: see `tiffin stat` for the nodes that do not answer",
        Reason::Closing => "\n\nhint: try again when the server is back",
        Reason::Unavailable => "\n\nhint: try again when the nodes that are waited for are back",
        Reason::Standby => "\n\nhint: give the addresses of all masters, or `etcd://HOST:2379/CLUSTER`",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_token_matches() {
        let cases = [
            ("", "", true),
            ("secret", "secret", true),
            ("secret", "secreT", false),
            ("secret", "secre", false),
            ("secret", "secret\0", false),
            ("secret\0", "secret", false),
            ("", "x", false),
            ("x", "", false),
        ];
        for (expected, given, same) in cases {
            assert_eq!(token_matches(expected, given), same, "{expected:?} and {given:?}");
        }
    }
}
