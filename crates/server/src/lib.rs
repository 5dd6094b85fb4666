//! The shells around the decisions of `core`: sockets, memory, clocks and tasks.
//!
//! - [`config`]: every setting, declared once.
//! - [`master`]: owns a `core::master::Master`; names.
//! - [`node`]: owns a `core::node::Node` and its memory; bytes.
//! - [`up`]: both in one process, for `tiffin up` and for a store embedded in a program.
//! - [`http`]: what people and their tools look at: metrics, health, keys, segments.
//! - [`events`]: what is stored and removed, published for routers.
//! - [`supervise`]: a server that has panicked somewhere ends.
//! - [`mooncake`]: the command `mooncake_master`, flag by flag.
//!
//! A core is behind one mutex. Whoever brings an event locks, lets the core decide, carries out what touches
//! memory or must stay in order, unlocks, and then sends the answers.
//!
//! **Invariant:** no lock is held across an await. **Invariant:** everything that waits has a deadline or
//! ends with the connection it waits for. **Invariant:** nothing that arrives from outside can panic.

pub mod config;
pub mod events;
pub mod http;
mod listen;
pub mod master;
pub mod metrics;
pub mod mooncake;
pub mod node;
mod reply_path;
pub mod supervise;
mod tenants;
pub mod up;

use std::io;
use std::path::PathBuf;

pub use config::{ConfigError, LeaseMode, MasterConfig, NodeConfig, UpConfig};
pub use http::PENDING_MAX as HTTP_PENDING_MAX;
pub use listen::CONNECTIONS_MAX;
pub use master::MasterServer;
pub use node::NodeServer;
pub use tenants::TenantFileError;
pub use tiffin_rpc::{Address, ListenError, host};
pub use tiffin_transport::Limit;
pub use tiffin_transport::segment::{Fit, SegmentError};
pub use up::{Embedded, Up};

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// An address cannot be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// There is no memory for the objects.
    #[error(transparent)]
    Memory(#[from] SegmentError),
    /// What must survive a restart cannot be kept.
    #[error("cannot keep the master's state in `{}`: {what}: {source}\n\nhint: {hint}", .path.display())]
    State {
        /// The folder.
        path: PathBuf,
        /// Which step failed.
        what: &'static str,
        /// What the system says.
        source: io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// The quotas of tenants cannot be read or set.
    #[error(transparent)]
    Tenants(#[from] TenantFileError),
    /// A disk cannot be used.
    #[error("{0}")]
    Disk(String),
    /// A disk is used by another node.
    #[error("{0}")]
    DiskInUse(String),
    /// The system gave something else than it should.
    #[error("{what}: {source}")]
    System {
        /// Which step failed.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
}

impl StartError {
    /// A disk cannot be used, as its log says it.
    pub(crate) fn disk(error: impl std::fmt::Display) -> Self {
        Self::Disk(error.to_string())
    }
}
