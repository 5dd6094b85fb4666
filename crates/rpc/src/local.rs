//! The local socket of a TCP listener on loopback: an abstract Unix socket named after address and port.
//!
//! A round trip through it costs about half of one through loopback TCP. Abstract names belong to a network
//! namespace, as loopback does, and are free when their socket is closed, so a name never leads to another
//! server than the port would; but any process may bind it.
//!
//! **Invariant:** a local socket is an optimization only. A listener goes on without one if the name is
//! taken. A client uses it only if the system says that its owner is the client's own user; in every other
//! case it connects through TCP.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tiffin_tls::TlsClient;
use tokio::net::{UnixListener, UnixStream};

use crate::{Peer, Stream};

/// How a client reaches a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// At its address only, as from another host.
    #[default]
    Far,
    /// If the address is on loopback, through the local socket that a [`Listener`](crate::Listener) of the
    /// same user has there.
    Near,
}

impl Reach {
    /// [`Reach::Near`] for processes that may share memory and sockets of one host, else [`Reach::Far`].
    #[must_use]
    pub fn near_if(may_share: bool) -> Self {
        if may_share { Self::Near } else { Self::Far }
    }
}

/// The way to a server.
#[derive(Clone, Debug, Default)]
pub struct Via {
    /// Whether through a local socket.
    pub reach: Reach,
    /// Encrypts TCP connections, and checks whom they lead to.
    pub tls: Option<TlsClient>,
}

impl From<Reach> for Via {
    fn from(reach: Reach) -> Self {
        Self { reach, tls: None }
    }
}

impl From<&Self> for Via {
    fn from(via: &Self) -> Self {
        via.clone()
    }
}

/// Listens on the local socket of a TCP listener's address, if it has one.
pub(crate) fn listen(at: SocketAddr) -> Option<UnixListener> {
    let name = name(SocketAddr::new(reached_through(at.ip()), at.port()))?;
    match UnixListener::bind(abstract_path(&name)) {
        Ok(listener) => Some(listener),
        Err(error) => {
            tracing::debug!(%at, name, %error, "there is no local socket: clients on this host use TCP");
            None
        }
    }
}

/// Connects to the local socket of an address; `None` if there is none, or if its owner is another user.
pub(crate) async fn connect(to: SocketAddr, user: u32) -> Option<Stream> {
    // A full queue is an error as well: then the client waits in that of TCP.
    let connected: io::Result<Stream> = match UnixStream::connect(abstract_path(&name(to)?)).await {
        Ok(stream) => Stream::from_unix(stream),
        Err(error) => Err(error),
    };
    connected.ok().filter(|stream| matches!(stream.peer(), Peer::Unix { uid, .. } if uid == user))
}

/// For tokio, a path that begins with a zero byte is an abstract name.
pub(crate) fn abstract_path(name: &str) -> String {
    format!("\0{name}")
}

/// The address that clients of this host use: a wildcard listens on more, but this is the usual one.
fn reached_through(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

fn name(at: SocketAddr) -> Option<String> {
    at.ip().is_loopback().then(|| format!("tiffin-rpc-{at}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Address, Listener};

    fn at(address: &Address) -> SocketAddr {
        address.to_string().parse().unwrap()
    }

    #[test]
    fn only_loopback_has_a_local_socket_and_each_address_its_own() {
        for (at, expected) in [
            ("127.0.0.1:7400", Some("tiffin-rpc-127.0.0.1:7400")),
            ("127.0.0.2:7400", Some("tiffin-rpc-127.0.0.2:7400")),
            ("0.0.0.0:7400", Some("tiffin-rpc-127.0.0.1:7400")),
            ("[::1]:7400", Some("tiffin-rpc-[::1]:7400")),
            ("[::]:7400", Some("tiffin-rpc-[::1]:7400")),
            ("192.0.2.1:7400", None),
            ("[2001:db8::1]:7400", None),
        ] {
            let at: SocketAddr = at.parse().unwrap();
            let found = name(SocketAddr::new(reached_through(at.ip()), at.port()));
            assert_eq!(found.as_deref(), expected, "{at}");
        }
    }

    #[tokio::test]
    async fn the_local_socket_of_another_user_is_not_used() {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let (at, own) = (at(listener.local_address()), rustix::process::geteuid().as_raw());
        assert!(connect(at, own).await.is_some());
        assert!(connect(at, own + 1).await.is_none());
    }

    #[tokio::test]
    async fn a_listener_does_without_a_name_that_is_taken_and_a_closed_one_is_free() {
        let first = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let (at, own) = (at(first.local_address()), rustix::process::geteuid().as_raw());
        assert!(listen(at).is_none());
        // A connection through it does not keep the name.
        let (_theirs, _ours) = tokio::join!(connect(at, own), first.accept());
        drop(first);
        assert!(connect(at, own).await.is_none());
        assert!(listen(at).is_some());
    }
}
