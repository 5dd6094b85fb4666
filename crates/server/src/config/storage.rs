//! Settings of the memory that a node gives, and of the pool in which it outlives the process.

use std::path::PathBuf;

use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use serde::Deserialize;
use tiffin_rpc::Address;

use super::{
    CommonArgs, ConfigError, MEMORY_DEFAULT, NodeConfig, OffOr, SettingsFile, SsdConfig, Switch, file, fill,
    size, tier,
};

/// Settings of a node's memory.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default)]
pub struct StorageArgs {
    /// Memory for objects, such as `8GiB`. Default: `1GiB`.
    #[arg(long, env = "TIFFIN_NODE_MEMORY", value_name = "SIZE", value_parser = size)]
    #[serde(deserialize_with = "file::size")]
    pub memory: Option<ByteSize>,

    /// The node's name in messages, and for puts that prefer a node. Default: its host and port.
    #[arg(long, env = "TIFFIN_NODE_NAME", value_name = "NAME")]
    pub name: Option<String>,

    /// The host at which other processes reach the node, if it is not the one it listens on. Default: the
    /// listening host; if that is a wildcard, this machine's address on the way to the master.
    #[arg(long, env = "TIFFIN_NODE_ADVERTISE", value_name = "HOST")]
    pub advertise: Option<String>,

    /// Whether processes of this machine may map the memory instead of copying through sockets. If `off`, the
    /// node also connects to its master as from another machine. Default: `on`.
    #[arg(long, env = "TIFFIN_NODE_SHARED_MEMORY", value_name = "SWITCH")]
    pub shared_memory: Option<Switch>,

    /// Whether the node allocates all pages of its memory soon after it starts, so that no put waits for
    /// that. Default: `on`.
    #[arg(long, env = "TIFFIN_NODE_POPULATE", value_name = "SWITCH")]
    pub populate: Option<Switch>,

    /// Disks for objects that do not fit into memory, such as `path=/data/tiffin,size=100GiB`. Separate
    /// several by `;`, or repeat the flag. Default: none.
    #[arg(long, env = "TIFFIN_NODE_SSD", value_name = "path=DIR,size=SIZE", value_delimiter = ';')]
    #[serde(deserialize_with = "tier::disks")]
    pub ssd: Vec<SsdConfig>,

    /// The folder on a tmpfs in which the memory outlives the process: a node that is started again adopts
    /// it. `off` for memory that ends with the process. Default: `/dev/shm/tiffin-UID/MASTER/NAME` for a
    /// `tiffin node` that has a name or a fixed port, else `off`.
    #[arg(long, env = "TIFFIN_NODE_POOL", value_name = "FOLDER")]
    #[serde(deserialize_with = "file::text")]
    pub pool: Option<OffOr<PathBuf>>,

    /// What becomes of the memory in `pool` when the node is stopped in an orderly way: `keep` for the next
    /// start, or `discard`. Default: `keep`.
    #[arg(long, env = "TIFFIN_NODE_POOL_ON_STOP", value_name = "ACTION")]
    pub pool_on_stop: Option<PoolEnd>,
}

/// What becomes of a memory pool when its node is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PoolEnd {
    /// The next start adopts it.
    #[default]
    Keep,
    /// It is removed, and the node leaves its cluster.
    Discard,
}

impl StorageArgs {
    pub(super) fn over(self, file: &SettingsFile) -> Self {
        let (mut args, said) = (self, file.storage.clone());
        fill!(args from said: memory, name, advertise, shared_memory, populate, pool, pool_on_stop);
        if args.ssd.is_empty() {
            args.ssd = said.ssd;
        }
        args
    }

    pub(super) fn node(self, common: &CommonArgs) -> Result<NodeConfig, ConfigError> {
        Ok(NodeConfig {
            memory: self.memory.unwrap_or(MEMORY_DEFAULT).as_u64(),
            name: self.name.unwrap_or_default(),
            advertise: self.advertise,
            shared_memory: self.shared_memory.unwrap_or(Switch::On) == Switch::On,
            populate: self.populate.unwrap_or(Switch::On) == Switch::On,
            ssd: self.ssd,
            pool: self.pool.and_then(OffOr::into_option),
            pool_on_stop: self.pool_on_stop.unwrap_or_default(),
            token: common.token()?,
            ..NodeConfig::default()
        })
    }
}

/// The pool of a node for which none was named. It is found again by the master and the name of the node, so
/// a node that has neither a name nor a fixed port has none.
pub(super) fn default_pool(config: &NodeConfig) -> Option<PathBuf> {
    let fixed_port = |it: &&Address| matches!(it, Address::Tcp { port, .. } if *port != 0);
    let listen = config.listen.as_ref().filter(fixed_port).map(ToString::to_string);
    let name = if config.name.is_empty() { listen? } else { config.name.clone() };
    let part = |text: &str| text.replace('/', "_").replace("..", "__");
    let user = rustix::process::getuid().as_raw();
    let folder = PathBuf::from(format!("/dev/shm/tiffin-{user}"));
    Some(folder.join(part(&config.master.to_string())).join(part(&name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_node_that_can_be_recognised_has_a_pool() {
        let pool = |name: &str, listen: &str| {
            let (name, listen) = (name.to_owned(), Some(listen.parse().unwrap()));
            default_pool(&NodeConfig { name, listen, ..NodeConfig::default() })
        };
        let user = rustix::process::getuid().as_raw();
        let folder =
            |name: &str| Some(PathBuf::from(format!("/dev/shm/tiffin-{user}/127.0.0.1:7400/{name}")));
        assert_eq!(pool("", "127.0.0.1:0"), None);
        assert_eq!(pool("", "127.0.0.1:7500"), folder("127.0.0.1:7500"));
        assert_eq!(pool("left", "127.0.0.1:0"), folder("left"));
        assert_eq!(pool("../../etc", "127.0.0.1:0"), folder("______etc"));
    }
}
