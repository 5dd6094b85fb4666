//! A master and a node in one process.
//!
//! [`Embedded`] is a store inside a program. It listens on Unix sockets, for processes of the same user on
//! this host, and if it has disks on a loopback port for their bytes. [`Up`] is the store that `tiffin up`
//! starts.

use std::sync::Arc;
use std::time::Duration;

use tiffin_rpc::Address;
use tiffin_transport::Counters;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::config::{MasterConfig, NodeConfig, UpConfig};
use crate::{MasterServer, NodeServer, StartError, host};

/// The time limit for a node to register with the master of its own process.
const JOIN_TIME_MAX: Duration = Duration::from_secs(10);

/// A store inside this process. Dropping it stops the store.
#[derive(Debug)]
pub struct Embedded {
    // The node is first: fields are dropped in order, and the node must stop before its master.
    node: NodeServer,
    master: MasterServer,
    _fate: JoinSet<()>,
}

impl Embedded {
    /// Starts a master and a node with `memory` bytes. Both are ready when this returns.
    pub async fn start(memory: u64) -> Result<Self, StartError> {
        Self::start_with(memory, Arc::default()).await
    }

    /// The same, with counters for moved bytes that the caller can read.
    pub async fn start_with(memory: u64, counters: Arc<Counters>) -> Result<Self, StartError> {
        Self::start_node(NodeConfig { memory, ..NodeConfig::default() }, counters).await
    }

    /// The same, with a configured node, including its disks. The master's address and the listening
    /// address are filled in.
    pub async fn start_node(node: NodeConfig, counters: Arc<Counters>) -> Result<Self, StartError> {
        let drawn =
            host::draw().map_err(|source| StartError::System { what: "drawing a random number", source })?;
        let address = Address::Unix { name: format!("tiffin-{drawn:016x}") };
        let trace = node.trace.clone();
        let master = MasterConfig { listen: vec![address], trace, ..MasterConfig::default() };
        let master = MasterServer::start(master).await?;
        let node = NodeConfig { master: master.address().clone().into(), listen: None, ..node };
        let node = NodeServer::start_with(node, counters).await?;
        join(&node).await?;
        let fate = share_fate(&node, &master);
        Ok(Self { node, master, _fate: fate })
    }

    /// The address for clients of this process and of other processes of the same user.
    #[must_use]
    pub fn address(&self) -> &Address {
        self.master.address()
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> &NodeServer {
        &self.node
    }

    /// The master.
    #[must_use]
    pub fn master(&self) -> &MasterServer {
        &self.master
    }

    /// Waits until a part of the store fails, and returns which. Calls return errors after that.
    pub async fn failed(&self) -> Arc<str> {
        self.master.failed().await
    }

    /// Closes everything. Replies that are ready are still sent until the deadline.
    pub async fn shutdown(self, deadline: Instant) {
        self.master.expect_departures();
        self.node.leave(deadline).await;
        self.master.shutdown().await;
    }
}

/// The store of `tiffin up`. Dropping it stops the store.
#[derive(Debug)]
pub struct Up {
    node: NodeServer,
    master: MasterServer,
}

impl Up {
    /// Starts a master and a node. Both are ready when this returns.
    pub async fn start(config: UpConfig) -> Result<Self, StartError> {
        let UpConfig { master, node } = config;
        let master = MasterServer::start(master).await?;
        let node =
            NodeServer::start(NodeConfig { master: reachable(master.address()).into(), ..node }).await?;
        join(&node).await?;
        Ok(Self { node, master })
    }

    /// The node.
    #[must_use]
    pub fn node(&self) -> &NodeServer {
        &self.node
    }

    /// The master.
    #[must_use]
    pub fn master(&self) -> &MasterServer {
        &self.master
    }

    /// Closes everything. Replies that are ready are still sent until the deadline.
    pub async fn shutdown(self, deadline: Instant) {
        self.master.expect_departures();
        self.node.leave(deadline).await;
        self.master.shutdown().await;
    }
}

/// Makes each server fail when the other does. A node alone would wait for its master forever.
fn share_fate(node: &NodeServer, master: &MasterServer) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for (of, to) in [(node.supervisor(), master.supervisor()), (master.supervisor(), node.supervisor())] {
        let (of, to) = (Arc::clone(of), Arc::clone(to));
        tasks.spawn(async move { to.fail_with(&of.failed().await) });
    }
    tasks
}

async fn join(node: &NodeServer) -> Result<(), StartError> {
    node.joined(Instant::now() + JOIN_TIME_MAX).await.map_err(|error| StartError::System {
        what: "registering the node with its own master",
        source: std::io::Error::other(error),
    })
}

/// Replaces a wildcard, which cannot be connected to, by loopback.
fn reachable(address: &Address) -> Address {
    match address {
        Address::Tcp { host, port } if host == "0.0.0.0" => {
            Address::Tcp { host: "127.0.0.1".to_owned(), port: *port }
        }
        Address::Tcp { host, port } if host == "::" => Address::Tcp { host: "::1".to_owned(), port: *port },
        _ => address.clone(),
    }
}
