//! The Unix twin of a TCP listener on loopback: an abstract socket whose name follows from address and port.
//!
//! A round trip through it costs about half of one through loopback TCP. Abstract names belong to a network
//! namespace, as loopback does, and are gone with their socket, so a name never leads elsewhere than the port
//! would have led; but anybody may take one.
//!
//! **Invariant:** a twin is a shortcut and nothing more. Who listens goes on without one if the name is
//! taken. Who connects uses it only if the system says that it is listened to by this user, whom the listener
//! in turn takes for no stranger; in every other case it is as if there were none.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tokio::net::{UnixListener, UnixStream};

use crate::{Peer, Stream};

/// How a server is to be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// At its address and nowhere else, as from another host.
    #[default]
    Far,
    /// On the shortest way: where the address is on loopback, through the twin that a
    /// [`Listener`](crate::Listener) of the same user has there.
    Near,
}

impl Reach {
    /// [`Reach::Near`] for who may use what only processes of one host share, else [`Reach::Far`].
    #[must_use]
    pub fn near_if(may_share: bool) -> Self {
        if may_share { Self::Near } else { Self::Far }
    }
}

/// Listens on the twin of where a TCP listener listens, if that should have one and can.
pub(crate) fn listen(at: SocketAddr) -> Option<UnixListener> {
    let name = name(SocketAddr::new(reached_through(at.ip()), at.port()))?;
    match UnixListener::bind(abstract_path(&name)) {
        Ok(twin) => Some(twin),
        Err(error) => {
            tracing::debug!(%at, name, %error, "there is no Unix twin: local clients use TCP");
            None
        }
    }
}

/// Connects to the twin of an address; nothing if there is none, or if it is not listened to by that user.
pub(crate) async fn connect(to: SocketAddr, user: u32) -> Option<Stream> {
    // If the queue there is full that is an error, too: then TCP is the one to wait in.
    let connected: io::Result<Stream> = match UnixStream::connect(abstract_path(&name(to)?)).await {
        Ok(stream) => Stream::from_unix(stream),
        Err(error) => Err(error),
    };
    connected.ok().filter(|stream| matches!(stream.peer(), Peer::Unix { uid, .. } if uid == user))
}

/// Tokio takes a path that begins with a zero byte for an abstract name.
pub(crate) fn abstract_path(name: &str) -> String {
    format!("\0{name}")
}

/// Where clients of this machine come in: a wildcard listens on more addresses, but this is the usual one.
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
    fn only_loopback_has_a_twin_and_each_address_its_own() {
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
    async fn a_twin_of_another_user_is_left_alone() {
        let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let (at, own) = (at(listener.local_address()), rustix::process::geteuid().as_raw());
        assert!(connect(at, own).await.is_some());
        assert!(connect(at, own + 1).await.is_none());
    }

    #[tokio::test]
    async fn a_name_that_is_taken_is_done_without_and_a_closed_one_is_free_again() {
        let first = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let (at, own) = (at(first.local_address()), rustix::process::geteuid().as_raw());
        assert!(listen(at).is_none());
        // What came in through it does not keep the name.
        let (_theirs, _ours) = tokio::join!(connect(at, own), first.accept());
        drop(first);
        assert!(connect(at, own).await.is_none());
        assert!(listen(at).is_some());
    }
}
