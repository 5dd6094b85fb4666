//! Where a node accepts data connections: at a TCP port, or at a Unix socket of its own host.
//!
//! The kernel says which user is at the other end of a Unix socket. Nodes without an address for other hosts
//! use one, so that other users of the machine do not reach their bytes.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tiffin_tls::TlsServer;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use super::pool::LOCAL_PREFIX;

/// Keepalive interval of idle connections.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Waits for data connections.
#[derive(Debug)]
pub enum DataListener {
    /// At a port. Connections are encrypted if there is a certificate.
    Tcp(TcpListener, Option<TlsServer>),
    /// At an abstract Unix socket, see [`crate::shm::listen`].
    Local(UnixListener),
}

/// An accepted connection.
pub(super) enum Accepted {
    /// From a port.
    Tcp(TcpStream, SocketAddr, Option<TlsServer>),
    /// From a Unix socket, and the user at its other end.
    Local(UnixStream, u32),
}

impl DataListener {
    /// The next connection.
    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener, tls) => {
                let (stream, from) = listener.accept().await?;
                prepare(&stream);
                Ok(Accepted::Tcp(stream, from, tls.clone()))
            }
            Self::Local(listener) => {
                let (stream, _) = listener.accept().await?;
                let uid = stream.peer_cred()?.uid();
                Ok(Accepted::Local(stream, uid))
            }
        }
    }
}

impl Accepted {
    /// The peer, for messages.
    pub(super) fn peer(&self) -> Peer {
        match self {
            Self::Tcp(_, from, _) => Peer::Tcp(*from),
            Self::Local(_, uid) => Peer::Local(*uid),
        }
    }
}

/// The other end of a data connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A user of this host.
    Local(u32),
}

impl fmt::Display for Peer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(out, "{address}"),
            Self::Local(uid) => write!(out, "user {uid}"),
        }
    }
}

/// The text of the address of an abstract Unix socket, as clients are given it.
#[must_use]
pub fn local_address(name: &str) -> String {
    format!("{LOCAL_PREFIX}{name}")
}

/// Small replies must not be delayed, and a vanished host must be detected.
fn prepare(stream: &TcpStream) {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    let socket = SockRef::from(stream);
    for (what, set) in
        [("TCP_NODELAY", stream.set_nodelay(true)), ("keepalive", socket.set_tcp_keepalive(&keepalive))]
    {
        if let Err(error) = set {
            tracing::warn!(%error, what, "a socket option could not be set");
        }
    }
}
