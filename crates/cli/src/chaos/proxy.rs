//! A TCP proxy between two parties: a network that can be cut, silent in one or both directions, or slow.
//!
//! It runs in this process and needs no privileges. What it cannot do: lose single packets, or reorder them;
//! TCP would hide both from the parties.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Number of bytes that are forwarded at a time.
const CHUNK_BYTES: usize = 64 << 10;

/// The state of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    /// It forwards everything.
    Open,
    /// It closes all connections, and new ones at once.
    Cut,
    /// It keeps connections open and forwards nothing. What was sent meanwhile is lost, so these connections
    /// are closed when the network is open again.
    HalfOpen,
    /// It holds back what goes from the connecting party to the other, and delivers it late.
    HoldRequests,
    /// The same for the other direction.
    HoldReplies,
    /// It forwards each piece after this time.
    Delayed(Duration),
}

/// A proxy, until it is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    network: watch::Sender<Network>,
    task: JoinHandle<()>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Request,
    Reply,
}

impl Proxy {
    /// Listens at one address and forwards to the other.
    pub(crate) async fn start(listen: SocketAddr, target: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(listen).await?;
        let address = listener.local_addr()?;
        let (network, states) = watch::channel(Network::Open);
        let task = tokio::spawn(async move {
            // Connections end with the task that accepts them.
            let mut connections = tokio::task::JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => if let Ok((client, _)) = accepted {
                        connections.spawn(forward(client, target, states.clone()));
                    },
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Self { address, network, task })
    }

    /// Changes the state of the network.
    pub(crate) fn set(&self, network: Network) {
        self.network.send_replace(network);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn forward(client: TcpStream, target: SocketAddr, mut network: watch::Receiver<Network>) {
    if *network.borrow_and_update() == Network::Cut {
        return;
    }
    // A target that does not listen refuses, as it would without a proxy.
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let pumps = async {
        tokio::join!(
            pump(from_client, to_server, Direction::Request, network.clone()),
            pump(from_server, to_client, Direction::Reply, network.clone()),
        )
    };
    let mut states = network.clone();
    tokio::select! {
        _ = pumps => {}
        // The sender ends with the proxy.
        _ = states.wait_for(|it| *it == Network::Cut) => {}
        () = was_half_open(network.clone()) => {}
    }
}

/// Returns when the network was half open and is not any more.
async fn was_half_open(mut network: watch::Receiver<Network>) {
    if network.wait_for(|it| *it == Network::HalfOpen).await.is_ok() {
        let _ended = network.wait_for(|it| *it != Network::HalfOpen).await;
    }
}

async fn pump(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    direction: Direction,
    mut network: watch::Receiver<Network>,
) {
    let held = match direction {
        Direction::Request => Network::HoldRequests,
        Direction::Reply => Network::HoldReplies,
    };
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let len = from.read(&mut buffer).await.unwrap_or(0);
        if network.wait_for(|it| *it != held && *it != Network::HalfOpen).await.is_err() {
            return;
        }
        let delay = match *network.borrow() {
            Network::Delayed(time) => time,
            _ => Duration::ZERO,
        };
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let chunk = buffer.get(..len).unwrap_or_default();
        if chunk.is_empty() {
            let _closed = to.shutdown().await;
            return;
        }
        if to.write_all(chunk).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.into_split();
                    let _ended = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        address
    }

    async fn start() -> Proxy {
        Proxy::start("127.0.0.1:0".parse().unwrap(), echo().await).await.unwrap()
    }

    async fn echoed(stream: &mut TcpStream, byte: u8) -> Option<u8> {
        stream.write_all(&[byte]).await.ok()?;
        let mut answer = [0];
        stream.read_exact(&mut answer).await.ok()?;
        Some(answer[0])
    }

    #[tokio::test]
    async fn open_and_slow_networks_forward() {
        let proxy = start().await;
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        assert_eq!(echoed(&mut stream, 1).await, Some(1));
        proxy.set(Network::Delayed(Duration::from_millis(1)));
        assert_eq!(echoed(&mut stream, 2).await, Some(2));
    }

    #[tokio::test]
    async fn cut_network_closes_connections() {
        let proxy = start().await;
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        assert_eq!(echoed(&mut stream, 1).await, Some(1));
        proxy.set(Network::Cut);
        assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0);
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0);
        proxy.set(Network::Open);
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        assert_eq!(echoed(&mut stream, 1).await, Some(1));
    }

    #[tokio::test]
    async fn held_bytes_arrive_late_and_in_order() {
        for held in [Network::HoldRequests, Network::HoldReplies] {
            let proxy = start().await;
            let mut stream = TcpStream::connect(proxy.address).await.unwrap();
            assert_eq!(echoed(&mut stream, 1).await, Some(1));
            proxy.set(held);
            stream.write_all(&[2, 3]).await.unwrap();
            let mut answer = [0; 2];
            let waited =
                tokio::time::timeout(Duration::from_millis(20), stream.read_exact(&mut answer)).await;
            assert!(waited.is_err(), "{held:?}");
            proxy.set(Network::Open);
            stream.read_exact(&mut answer).await.unwrap();
            assert_eq!(answer, [2, 3], "{held:?}");
        }
    }

    #[tokio::test]
    async fn half_open_connection_is_silent_and_then_closed() {
        let proxy = start().await;
        let mut stream = TcpStream::connect(proxy.address).await.unwrap();
        assert_eq!(echoed(&mut stream, 1).await, Some(1));
        proxy.set(Network::HalfOpen);
        stream.write_all(&[2]).await.unwrap();
        let waited = tokio::time::timeout(Duration::from_millis(20), stream.read(&mut [0])).await;
        assert!(waited.is_err());
        proxy.set(Network::Open);
        assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0);
    }
}
