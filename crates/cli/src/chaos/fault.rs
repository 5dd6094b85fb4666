//! The faults of a chaos run: how each begins, how it ends, and what may be lost by it.

use std::time::Duration;

use clap::ValueEnum;
use rustix::process::Signal;

use super::cluster::{Clock, Cluster};
use super::proxy::Network;
use crate::console::Failure;

/// Delay of each piece on a slow network.
const DELAY: Duration = Duration::from_millis(120);
/// The node on the master's host.
const NEAR: usize = 0;

/// A fault. Its description is in [`Fault::describe`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Fault {
    MasterKilled,
    MasterStopped,
    MasterStateDeleted,
    MasterDiskFull,
    MasterClock,
    NearNodeKilled,
    NearNodeStopped,
    NodeKilled,
    NodeStopped,
    NodeDiskDeleted,
    NodeDiskFull,
    NodeClock,
    ClientKilled,
    ClientStopped,
    NodeMasterCut,
    NodeMasterHalfOpen,
    NodeToMasterHeld,
    MasterToNodeHeld,
    NodeMasterSlow,
    NodeClientsCut,
    NodeClientsHalfOpen,
    NodeClientsHeld,
    NodeClientsSlow,
    ClientMasterCut,
    ClientMasterHalfOpen,
    ClientMasterHeld,
}

/// The network that a fault disturbs.
enum Link {
    NodeMaster,
    NodeClients,
    ClientMaster,
}

/// What a fault does to client processes, which the run owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnClient {
    Kill,
    Stop,
}

impl Fault {
    /// The name for `--fault`.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map(|it| it.get_name().to_owned()).unwrap_or_default()
    }

    /// What happens, for people.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Self::MasterKilled => "master killed, restarted",
            Self::MasterStopped => "master stopped, continued",
            Self::MasterStateDeleted => "master killed, state folder deleted",
            Self::MasterDiskFull => "master's disk full",
            Self::MasterClock => "master restarted, clock a day ahead",
            Self::NearNodeKilled => "node on the master's host killed, restarted",
            Self::NearNodeStopped => "node on the master's host stopped, continued",
            Self::NodeKilled => "node killed, restarted",
            Self::NodeStopped => "node stopped, continued",
            Self::NodeDiskDeleted => "node killed, disk deleted and forgotten",
            Self::NodeDiskFull => "node's disk full, node restarted",
            Self::NodeClock => "node restarted, clock a day ahead",
            Self::ClientKilled => "client killed, restarted",
            Self::ClientStopped => "client stopped, continued",
            Self::NodeMasterCut => "node and master: cut",
            Self::NodeMasterHalfOpen => "node and master: half open",
            Self::NodeToMasterHeld => "node to master: one way lost, late",
            Self::MasterToNodeHeld => "master to node: one way lost, late",
            Self::NodeMasterSlow => "node and master: slow",
            Self::NodeClientsCut => "node and clients: cut",
            Self::NodeClientsHalfOpen => "node and clients: half open",
            Self::NodeClientsHeld => "node to clients: one way lost, late",
            Self::NodeClientsSlow => "node and clients: slow",
            Self::ClientMasterCut => "client and master: cut",
            Self::ClientMasterHalfOpen => "client and master: half open",
            Self::ClientMasterHeld => "master to client: one way lost, late",
        }
    }

    /// Whether it needs clocks of processes that can be shifted.
    pub(crate) fn needs_clock(self) -> bool {
        matches!(self, Self::MasterClock | Self::NodeClock)
    }

    /// The node that it concerns; `far` is one of those on other hosts.
    pub(crate) fn node(self, far: usize) -> usize {
        if matches!(self, Self::NearNodeKilled | Self::NearNodeStopped) { NEAR } else { far }
    }

    /// Whether a node's process ends.
    pub(crate) fn kills_node(self) -> bool {
        matches!(
            self,
            Self::NearNodeKilled
                | Self::NodeKilled
                | Self::NodeDiskDeleted
                | Self::NodeDiskFull
                | Self::NodeClock
        )
    }

    /// Whether the master restarts without its roster, so that it does not know which nodes to wait for.
    pub(crate) fn forgets_roster(self) -> bool {
        self == Self::MasterStateDeleted
    }

    /// What it does to a client process.
    pub(crate) fn on_client(self) -> Option<OnClient> {
        match self {
            Self::ClientKilled => Some(OnClient::Kill),
            Self::ClientStopped => Some(OnClient::Stop),
            _ => None,
        }
    }

    /// The network and its state during the fault.
    fn network(self) -> Option<(Link, Network)> {
        Some(match self {
            Self::NodeMasterCut => (Link::NodeMaster, Network::Cut),
            Self::NodeMasterHalfOpen => (Link::NodeMaster, Network::HalfOpen),
            Self::NodeToMasterHeld => (Link::NodeMaster, Network::HoldRequests),
            Self::MasterToNodeHeld => (Link::NodeMaster, Network::HoldReplies),
            Self::NodeMasterSlow => (Link::NodeMaster, Network::Delayed(DELAY)),
            Self::NodeClientsCut => (Link::NodeClients, Network::Cut),
            Self::NodeClientsHalfOpen => (Link::NodeClients, Network::HalfOpen),
            Self::NodeClientsHeld => (Link::NodeClients, Network::HoldReplies),
            Self::NodeClientsSlow => (Link::NodeClients, Network::Delayed(DELAY)),
            Self::ClientMasterCut => (Link::ClientMaster, Network::Cut),
            Self::ClientMasterHalfOpen => (Link::ClientMaster, Network::HalfOpen),
            Self::ClientMasterHeld => (Link::ClientMaster, Network::HoldReplies),
            _ => return None,
        })
    }

    /// Begins the fault on the cluster.
    pub(crate) async fn begin(self, cluster: &mut Cluster, node: usize) -> Result<(), Failure> {
        if let Some((link, network)) = self.network() {
            set(cluster, node, &link, network);
            return Ok(());
        }
        match self {
            Self::MasterKilled => cluster.kill_master().await,
            Self::MasterStopped => {
                cluster.signal_master(Signal::STOP);
                Ok(())
            }
            Self::MasterStateDeleted => {
                cluster.kill_master().await?;
                cluster.delete_state()
            }
            Self::MasterDiskFull => cluster.fill_master(true),
            Self::MasterClock => {
                cluster.kill_master().await?;
                cluster.start_master(Clock::Ahead).await
            }
            Self::NearNodeKilled | Self::NodeKilled => cluster.kill_node(node).await,
            Self::NearNodeStopped | Self::NodeStopped => {
                cluster.signal_node(node, Signal::STOP);
                Ok(())
            }
            Self::NodeDiskDeleted => {
                cluster.kill_node(node).await?;
                cluster.delete_disk(node)
            }
            Self::NodeDiskFull => cluster.fill_node(node, true),
            Self::NodeClock => {
                cluster.kill_node(node).await?;
                cluster.start_node(node, Clock::Ahead).await
            }
            _ => Ok(()),
        }
    }

    /// Ends the fault.
    pub(crate) async fn end(self, cluster: &mut Cluster, node: usize) -> Result<(), Failure> {
        if let Some((link, _)) = self.network() {
            set(cluster, node, &link, Network::Open);
            return Ok(());
        }
        match self {
            Self::MasterKilled | Self::MasterStateDeleted => cluster.start_master(Clock::Normal).await,
            Self::MasterStopped => {
                cluster.signal_master(Signal::CONT);
                Ok(())
            }
            Self::MasterDiskFull => cluster.fill_master(false),
            Self::MasterClock => {
                cluster.kill_master().await?;
                cluster.start_master(Clock::Normal).await
            }
            Self::NearNodeKilled | Self::NodeKilled | Self::NodeDiskDeleted => {
                cluster.start_node(node, Clock::Normal).await
            }
            Self::NearNodeStopped | Self::NodeStopped => {
                cluster.signal_node(node, Signal::CONT);
                Ok(())
            }
            // A disk that could not be written leaves the cluster until its node restarts.
            Self::NodeDiskFull | Self::NodeClock => {
                cluster.kill_node(node).await?;
                cluster.start_node(node, Clock::Normal).await
            }
            _ => Ok(()),
        }
    }
}

fn set(cluster: &Cluster, node: usize, link: &Link, network: Network) {
    match link {
        Link::NodeMaster => cluster.set_master_network(node, network),
        Link::NodeClients => cluster.set_clients_network(node, network),
        Link::ClientMaster => cluster.client_networks.iter().for_each(|it| it.set(network)),
    }
}
