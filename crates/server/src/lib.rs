//! The shells around the state machines of `core` and `node`: sockets, memory, clocks and tasks.
//!
//! - [`access`]: the tokens that a server accepts, and what their holders may do.
//! - [`config`]: every setting, declared once.
//! - [`master`]: owns a `core::master::Master`, which decides about names.
//! - [`node`]: owns a `tiffin_node::Node` and the memory with the objects' bytes.
//! - [`up`]: both in one process, for `tiffin up` and for a store embedded in a program.
//! - [`http`]: pages for operators and their tools: metrics, health, keys, segments.
//! - [`events`]: messages for routers about stored and removed objects.
//! - `watch`: what operators watch: events, history, snapshots.
//! - [`why`]: why an object exists, or what removed it, as text.
//! - [`supervise`]: ends a server after a panic in one of its parts.
//! - [`mooncake`]: the command `mooncake_master` with Mooncake's flags.
//!
//! A core is behind one mutex. A task with an event locks it, lets the core decide, and carries out the
//! effects that touch memory or must stay in order. Then it unlocks and sends the replies.
//!
//! **Invariant:** no lock is held across an await. **Invariant:** every wait has a deadline, or ends with
//! the connection it waits for. **Invariant:** no input from outside can cause a panic.

pub mod access;
pub mod config;
pub mod events;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod http;
mod listen;
pub mod master;
pub mod metrics;
pub mod mooncake;
pub mod node;
mod reply_path;
pub mod supervise;
mod tenants;
mod traced;
mod turnstile;
pub mod up;
mod watch;
pub mod why;

use std::io;
use std::path::PathBuf;

pub use config::{ConfigError, LeaseMode, MasterConfig, NodeConfig, UpConfig};
pub use http::PENDING_MAX as HTTP_PENDING_MAX;
pub use listen::CONNECTIONS_MAX;
pub use master::MasterServer;
pub use node::NodeServer;
pub use tenants::TenantFileError;
pub use tiffin_rpc::{Address, ListenError, Masters, TlsFileError, TlsFiles, host};
pub use tiffin_transport::Limit;
pub use tiffin_transport::segment::{Fit, SegmentError};
pub use up::{Embedded, Up};
pub use watch::STREAMS_MAX as HTTP_STREAMS_MAX;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The access file cannot be used.
    #[error(transparent)]
    Access(#[from] access::AccessError),
    /// A setting is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsFileError),
    /// The server cannot listen on an address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The memory for the objects cannot be allocated.
    #[error(transparent)]
    Memory(#[from] SegmentError),
    /// The state that must survive a restart cannot be saved.
    #[error("cannot keep the master's state in `{}`: {what}: {source}\n\nhint: {hint}", .path.display())]
    State {
        /// The folder.
        path: PathBuf,
        /// Which step failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// The quotas of tenants cannot be read or set.
    #[error(transparent)]
    Tenants(#[from] TenantFileError),
    /// The settings of etcd make no sense.
    #[error("{0}")]
    Etcd(String),
    /// A disk cannot be used.
    #[error("{0}")]
    Disk(String),
    /// Another node uses the disk.
    #[error("{0}")]
    DiskInUse(String),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// Which step failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl StartError {
    /// An error of a disk's log.
    pub(crate) fn disk(error: impl std::fmt::Display) -> Self {
        Self::Disk(error.to_string())
    }
}
