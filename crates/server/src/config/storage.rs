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

    /// Whether other processes may map the memory for reading only: they write through the data socket, so
    /// that none can change the objects of another. Default: `off`.
    #[arg(
        long,
        env = "TIFFIN_NODE_ISOLATE",
        value_name = "SWITCH",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "on"
    )]
    pub isolate: Option<Switch>,

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
    /// it. `off` for memory that ends with the process. Default: `/dev/shm/tiffin-UID/name-NAME` for a
    /// `tiffin node` that has a name, `/dev/shm/tiffin-UID/port-PORT` for one with a fixed port, else `off`.
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
        fill!(args from said: memory, name, advertise, shared_memory, isolate, populate, pool, pool_on_stop);
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
            isolate: self.isolate == Some(Switch::On),
            populate: self.populate.unwrap_or(Switch::On) == Switch::On,
            ssd: self.ssd,
            pool: self.pool.and_then(OffOr::into_option),
            pool_on_stop: self.pool_on_stop.unwrap_or_default(),
            token: common.token()?,
            tls: common.tls.files()?,
            access_file: common.access_file.clone(),
            trace: common.trace()?,
            ..NodeConfig::default()
        })
    }
}

/// The pool of a node for which none was named. It is found again by the name of the node or by its port, and
/// does not depend on the way in which the master is named. A node that has neither has none.
pub(super) fn default_pool(config: &NodeConfig) -> Option<PathBuf> {
    let port = match &config.listen {
        Some(Address::Tcp { port, .. }) if *port != 0 => Some(*port),
        _ => None,
    };
    let folder = match config.name.as_str() {
        "" => format!("port-{}", port?),
        name => format!("name-{}", escaped(name)),
    };
    Some(of_user().join(folder))
}

/// Where earlier releases had the same pool.
pub(crate) fn old_default_pool(config: &NodeConfig) -> Option<PathBuf> {
    let fixed_port = |it: &&Address| matches!(it, Address::Tcp { port, .. } if *port != 0);
    let listen = config.listen.as_ref().filter(fixed_port).map(ToString::to_string);
    let name = if config.name.is_empty() { listen? } else { config.name.clone() };
    let part = |text: &str| text.replace('/', "_").replace("..", "__");
    Some(of_user().join(part(&config.master.to_string())).join(part(&name)))
}

fn of_user() -> PathBuf {
    PathBuf::from(format!("/dev/shm/tiffin-{}", rustix::process::getuid().as_raw()))
}

/// A name as a part of a path. Different names give different parts: all bytes but letters, digits, `-` and
/// `_` are written as `%` and two hexadecimal digits, and so is a point at the start.
fn escaped(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        match byte {
            b'.' if !text.is_empty() => text.push('.'),
            b'-' | b'_' => text.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() => text.push(char::from(byte)),
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
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
        let folder = |name: &str| Some(of_user().join(name));
        assert_eq!(pool("", "127.0.0.1:0"), None);
        assert_eq!(pool("", "127.0.0.1:7500"), folder("port-7500"));
        assert_eq!(pool("", "localhost:7500"), folder("port-7500"));
        assert_eq!(pool("left", "127.0.0.1:0"), folder("name-left"));
        assert_eq!(pool("left", "127.0.0.1:7500"), folder("name-left"));
        assert_eq!(pool("../../etc", "127.0.0.1:0"), folder("name-%2E.%2F..%2Fetc"));
    }

    #[test]
    fn pool_does_not_depend_on_the_spelling_of_the_master() {
        let pool = |master: &str| {
            let (name, master) = ("left".to_owned(), master.parse().unwrap());
            default_pool(&NodeConfig { name, master, ..NodeConfig::default() })
        };
        let first = pool("127.0.0.1:7400");
        assert!(first.is_some());
        for other in ["localhost:7400", "127.0.0.1:7400,127.0.0.1:7401"] {
            assert_eq!(pool(other), first);
        }
    }

    #[test]
    fn different_names_have_different_folders() {
        let names =
            ["a/b", "a_b", "a%2Fb", ".", "..", "%2E", "a.b", ".a", "a", "A", "é", "port-7500", "a~2", "a 2"];
        let folders: std::collections::BTreeSet<_> = names.iter().map(|it| escaped(it)).collect();
        assert_eq!(folders.len(), names.len(), "{folders:?}");
        for folder in folders {
            assert!(!folder.contains(['/', '~', ':']) && !folder.starts_with('.'), "{folder}");
        }
    }
}
