//! A master and a node in one process.
//!
//! [`Embedded`] is a store inside a program: it is reached over Unix sockets only, by this process, its
//! children and other processes of the same user on this machine. [`Up`] is the store that `tiffin up`
//! starts, for people who want one on their machine at once.

use std::sync::Arc;
use std::time::Duration;

use tiffin_rpc::Address;
use tiffin_transport::Counters;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::config::{MasterConfig, NodeConfig, UpConfig};
use crate::{MasterServer, NodeServer, StartError, host};

/// How long a master and a node of one process may take to find each other.
const JOIN_TIME_MAX: Duration = Duration::from_secs(10);

/// A store inside this process. It ends when this is dropped.
#[derive(Debug)]
pub struct Embedded {
    // The node first: it is to be gone before its master is, and fields are dropped in order.
    node: NodeServer,
    master: MasterServer,
    _fate: JoinSet<()>,
}

impl Embedded {
    /// Starts a master and a node of so many bytes; both can be used when this returns.
    pub async fn start(memory: u64) -> Result<Self, StartError> {
        Self::start_with(memory, Arc::default()).await
    }

    /// The same, counting the bytes that move where the caller can see them.
    pub async fn start_with(memory: u64, counters: Arc<Counters>) -> Result<Self, StartError> {
        Self::start_node(NodeConfig { memory, ..NodeConfig::default() }, counters).await
    }

    /// The same with a node as it is described here, disks and all. Where its master is, and that it listens
    /// for its own host only, goes without saying.
    pub async fn start_node(node: NodeConfig, counters: Arc<Counters>) -> Result<Self, StartError> {
        let drawn =
            host::draw().map_err(|source| StartError::System { what: "drawing a random number", source })?;
        let address = Address::Unix { name: format!("tiffin-{drawn:016x}") };
        let master = MasterConfig { listen: vec![address], ..MasterConfig::default() };
        let master = MasterServer::start(master).await?;
        let node = NodeConfig { master: master.address().clone(), listen: None, ..node };
        let node = NodeServer::start_with(node, counters).await?;
        join(&node).await?;
        let fate = share_fate(&node, &master);
        Ok(Self { node, master, _fate: fate })
    }

    /// Where clients of this process, and of others of the same user, reach it.
    #[must_use]
    pub fn address(&self) -> &Address {
        self.master.address()
    }

    /// Its node.
    #[must_use]
    pub fn node(&self) -> &NodeServer {
        &self.node
    }

    /// Its master.
    #[must_use]
    pub fn master(&self) -> &MasterServer {
        &self.master
    }

    /// Waits until a part of it has failed, and says which. Calls get errors from then on.
    pub async fn failed(&self) -> Arc<str> {
        self.master.failed().await
    }

    /// Closes everything; answers that are ready still go out until the deadline.
    pub async fn shutdown(self, deadline: Instant) {
        self.master.expect_departures();
        self.node.leave(deadline).await;
        self.master.shutdown().await;
    }
}

/// What `tiffin up` starts. It ends when this is dropped.
#[derive(Debug)]
pub struct Up {
    node: NodeServer,
    master: MasterServer,
}

impl Up {
    /// Starts a master and a node; both can be used when this returns.
    pub async fn start(config: UpConfig) -> Result<Self, StartError> {
        let UpConfig { master, node } = config;
        let master = MasterServer::start(master).await?;
        let node = NodeServer::start(NodeConfig { master: reachable(master.address()), ..node }).await?;
        join(&node).await?;
        Ok(Self { node, master })
    }

    /// Its node.
    #[must_use]
    pub fn node(&self) -> &NodeServer {
        &self.node
    }

    /// Its master.
    #[must_use]
    pub fn master(&self) -> &MasterServer {
        &self.master
    }

    /// Closes everything; answers that are ready still go out until the deadline.
    pub async fn shutdown(self, deadline: Instant) {
        self.master.expect_departures();
        self.node.leave(deadline).await;
        self.master.shutdown().await;
    }
}

/// Lets each fail when the other does: alone, a node would wait for its master without end.
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
        what: "bringing the node to its own master",
        source: std::io::Error::other(error),
    })
}

/// A wildcard can be listened on, but not connected to.
fn reachable(address: &Address) -> Address {
    match address {
        Address::Tcp { host, port } if host == "0.0.0.0" => {
            Address::Tcp { host: "127.0.0.1".to_owned(), port: *port }
        }
        Address::Tcp { host, port } if host == "::" => Address::Tcp { host: "::1".to_owned(), port: *port },
        _ => address.clone(),
    }
}
