//! Clusters for tests: real servers in this process, on free ports.

use tiffin_client::{Client, ConnectOptions, Put, PutOptions};
use tiffin_server::{MasterConfig, MasterServer, NodeConfig, NodeServer};
use tokio::time::Instant;

pub(crate) use crate::common::{LONG, eventually, key, only, soon};

pub(crate) struct Cluster {
    pub(crate) nodes: Vec<NodeServer>,
    pub(crate) master: MasterServer,
}

impl Cluster {
    /// One node of `memory` bytes.
    pub(crate) async fn one(memory: u64) -> Self {
        Self::start(&[memory], "").await
    }

    /// The same with a node that shares no memory, like one on another host.
    pub(crate) async fn far(memory: u64) -> Self {
        let mut cluster = Self::start(&[], "").await;
        cluster.add_with(NodeConfig { memory, shared_memory: false, ..NodeConfig::default() }).await;
        cluster
    }

    /// One node for each size, named `node-0` and so on.
    pub(crate) async fn start(memories: &[u64], token: &str) -> Self {
        let token = token.to_owned();
        let master = MasterServer::start(MasterConfig { token, ..MasterConfig::default() }).await.unwrap();
        let mut cluster = Self { nodes: Vec::new(), master };
        for &memory in memories {
            cluster.add(memory).await;
        }
        cluster
    }

    pub(crate) async fn add(&mut self, memory: u64) {
        self.add_with(NodeConfig { memory, ..NodeConfig::default() }).await;
    }

    pub(crate) async fn add_with(&mut self, config: NodeConfig) {
        let (master, name) = (self.master.address().clone(), format!("node-{}", self.nodes.len()));
        let config = NodeConfig { master: master.into(), name, ..config };
        let node = NodeServer::start(config).await.unwrap();
        node.joined(Instant::now() + LONG).await.unwrap();
        self.nodes.push(node);
    }

    pub(crate) fn options(&self) -> ConnectOptions {
        ConnectOptions::new(self.master.address().to_string())
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.options()).await.unwrap()
    }

    /// A client that sends every byte through sockets.
    pub(crate) async fn tcp_client(&self) -> Client {
        Client::connect(ConnectOptions { shared_memory: false, ..self.options() }).await.unwrap()
    }
}

/// The bytes of `pattern` repeat after so many.
const PERIOD_BYTES: usize = 1 << 16;

/// Bytes that identify their object and offset.
pub(crate) fn pattern(seed: usize, len: usize) -> Vec<u8> {
    let byte = |at: usize| (at.wrapping_mul(31) ^ (at >> 8) ^ seed.wrapping_mul(97)) as u8;
    let mut bytes: Vec<u8> = (0..len.min(PERIOD_BYTES)).map(byte).collect();
    // One by one, megabytes would take most of the time of these tests.
    while bytes.len() < len {
        bytes.extend_from_within(..bytes.len().min(len - bytes.len()));
    }
    bytes
}

/// A put that is never evicted.
pub(crate) fn pinned<'a>(name: &str, bytes: &'a [u8]) -> Put<'a> {
    let options = PutOptions { replicas: 1, hard_pin: true, ..PutOptions::default() };
    Put { options, ..Put::new(key(name), bytes) }
}
