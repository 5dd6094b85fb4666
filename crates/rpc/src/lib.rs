//! Calls over streams: what lies between the messages of `proto` and the parties that mean something by
//! them.
//!
//! A connection begins with a `Hello` and a `Welcome`; behind that, both sides may ask. From below to above:
//!
//! - [`Address`], [`Stream`] and [`Listener`]: TCP, and Unix sockets with abstract names. Every TCP listener
//!   on loopback has a Unix twin, for who may use it ([`Reach`]).
//! - [`Outbox`] and [`Inbox`]: the two ends of one stream. Sending never waits and takes no hop where the
//!   socket has room; receiving survives any bytes.
//! - [`dial`] and [`Greeting`]: the handshake, from the calling and from the answering side.
//! - [`Connection`]: many calls at once, each with its deadline. Tasks share one stream; a thread that may
//!   block has one of its own, a *lane*.
//!
//! **Invariant:** every wait has a deadline or ends with the stream. A peer that is dead, stalled or insane
//! becomes an error, never a hang, a panic, or memory without bound.

mod address;
mod blocking;
mod calls;
mod connection;
mod greet;
pub mod host;
mod lanes;
mod link;
mod spin;
mod stream;
mod twin;
mod watch;

use std::io;
use std::sync::Arc;

use subtle::ConstantTimeEq;
use tiffin_core::message::{Reason, Refusal};
use tiffin_proto::codec::EncodeError;
use tiffin_proto::frame::FrameError;

pub use address::{Address, AddressError};
pub use blocking::{may_block, with_blocking};
pub use connection::Connection;
pub use greet::{Dialed, Greeting, HELLO_BYTES_MAX, dial};
pub use lanes::LANES_MAX;
pub use link::{Inbox, OUTBOX_BYTES_MAX, Outbox, SendError, Taken};
pub use stream::{ConnectError, ListenError, Listener, Peer, Stream};
pub use twin::Reach;

/// Why a call has no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// There is no connection, so nothing was done.
    #[error(
        "cannot connect to `{address}`: {source}\n\nhint: check that a server listens there and that this \
         machine may reach it"
    )]
    Connect {
        /// Where to.
        address: Address,
        /// What the system says.
        source: Arc<io::Error>,
    },
    /// The host's name has no address, so nothing was done.
    #[error(
        "cannot resolve the host of `{address}`: {source}\n\nhint: check the spelling of the host's name, \
         and that this machine resolves it (DNS, /etc/hosts)"
    )]
    Resolve {
        /// Where to.
        address: Address,
        /// What the system says.
        source: Arc<io::Error>,
    },
    /// The peer did not answer in time. It may or may not have done what was asked.
    #[error(
        "`{address}` did not answer {what} in time\n\nhint: it is stopped, overloaded or cut off; allow more \
         time or look at its log"
    )]
    Timeout {
        /// Who.
        address: Address,
        /// What was waited for.
        what: &'static str,
    },
    /// The connection ended before the answer. The peer may or may not have done what was asked.
    #[error(
        "the connection to `{address}` was lost\n\nhint: the server went away or closed it; its log may say \
         why, and a new call connects again"
    )]
    Lost {
        /// Who.
        address: Address,
    },
    /// The peer accepted the connection, but did not answer the handshake.
    #[error(
        "`{address}` accepted the connection but {}\n\nhint: another program may listen there: check the \
         address; or the server is stopped, overloaded or shutting down",
        if *is_silent { "did not answer the handshake in time" } else { "closed it before the handshake" }
    )]
    Unanswered {
        /// Who.
        address: Address,
        /// It sent nothing in time; else it closed the connection.
        is_silent: bool,
    },
    /// The peer said no, and did nothing.
    #[error("{}{}", .0.message, refusal_hint(.0.reason))]
    Refused(Refusal),
    /// The peer speaks something else.
    #[error(
        "`{address}` does not speak as expected: {detail}\n\nhint: check the port, and that both sides run \
         compatible versions"
    )]
    Protocol {
        /// Who.
        address: Address,
        /// What it said.
        detail: String,
    },
    /// The port belongs to a server of another kind, such as an HTTP server.
    #[error(
        "`{address}` is not a Tiffin server: {source}\n\nhint: give the address that the master listens on \
         (port 7400 unless it was told otherwise), not that of its HTTP pages (7401)"
    )]
    Foreign {
        /// Who.
        address: Address,
        /// What it sent.
        source: FrameError,
    },
    /// The request must not be sent, so nothing was done.
    #[error(transparent)]
    TooLarge(#[from] EncodeError),
}

/// Compares two secrets in a time that depends on their lengths only, so that a token cannot be guessed byte
/// by byte.
#[must_use]
pub fn token_matches(expected: &str, given: &str) -> bool {
    expected.as_bytes().ct_eq(given.as_bytes()).into()
}

fn refusal_hint(reason: Reason) -> &'static str {
    match reason {
        Reason::Invalid => "",
        Reason::Unauthenticated => "\n\nhint: give the token that the server was started with",
        Reason::Version => "\n\nhint: run the same release on both sides",
        Reason::NotForYou => "\n\nhint: check that the address is that of the right server",
        Reason::Busy => "\n\nhint: try again later, or with less at once",
        Reason::Unreachable => "\n\nhint: see `tiffin stat` for the nodes that do not answer",
        Reason::Closing => "\n\nhint: try again when the server is back",
        Reason::Unavailable => "\n\nhint: try again when the nodes that are waited for are back",
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
