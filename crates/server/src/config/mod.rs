//! Every setting, declared once.
//!
//! A field is a flag (`--lease-ttl 5s`), an environment variable (`TIFFIN_MASTER_LEASE_TTL=5s`) and a key
//! of the settings file (`lease_ttl = "5s"` under `[master]`). The flag takes precedence over the variable,
//! the variable over the file, and the file over the default. [`page`] generates `docs/settings.md` from
//! these declarations.
//!
//! `…Args` are the settings as given; each may be missing. `…Config` are the same settings after the
//! checks: complete and valid.

mod etcd;
mod file;
mod ha;
pub mod nearest;
pub mod page;
mod secret;
pub(crate) mod storage;
mod tier;
mod tls;
mod trace;
mod values;

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, ValueEnum};
use serde::Deserialize;
use tiffin_rpc::{Address, EtcdAccess, Masters};
use tiffin_tls::TlsFiles;
use tiffin_trace::Endpoint;
use tiffin_transport::layout::DATA_BYTES_MAX;
use tiffin_types::NAMESPACE_DEFAULT;

use crate::events::EventsConfig;

pub use etcd::EtcdArgs;
pub use file::SettingsFile;
pub use ha::{HaArgs, HaConfig};
pub use storage::{PoolEnd, StorageArgs};
pub use tier::{Demotion, Engine, SsdConfig, SsdError, TierArgs, TierConfig};
pub use tls::TlsArgs;
pub use values::{OffOr, ValueError, duration, size};

use values::{check_duration, check_exposure, check_is_tcp, default_state_dir, takes_any_port};

/// The default address of a master.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:7400";
/// The default address of a master's pages.
pub const HTTP_DEFAULT: &str = "127.0.0.1:7401";
/// The default address of a node: any free port.
pub const NODE_LISTEN_DEFAULT: &str = "127.0.0.1:0";
/// The default memory of a node.
pub const MEMORY_DEFAULT: ByteSize = ByteSize::gib(1);
/// The default duration of a lease, which is also Mooncake's.
pub const LEASE_TTL_DEFAULT: Duration = Duration::from_secs(10);
/// See [`MasterArgs::lease_grace`].
pub const LEASE_GRACE_DEFAULT: Duration = Duration::from_secs(10);
/// See [`MasterArgs::soft_pin_ttl`].
pub const SOFT_PIN_TTL_DEFAULT: Duration = Duration::from_secs(30 * 60);
/// See [`MasterArgs::silence`].
pub const SILENCE_DEFAULT: Duration = Duration::from_secs(10);
/// See [`MasterArgs::away`].
pub const AWAY_DEFAULT: Duration = Duration::from_secs(10);
/// See [`MasterArgs::slow`].
pub const SLOW_DEFAULT: Duration = Duration::from_secs(1);
/// See [`ClientArgs::timeout`].
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);

/// The minimum memory of a node.
pub const MEMORY_BYTES_MIN: u64 = 1 << 20;
/// The maximum length of a node's name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// The minimum of [`MasterArgs::silence`]: several heartbeats must fit into it.
const SILENCE_MIN: Duration = Duration::from_millis(100);

/// Settings of every command.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default)]
pub struct CommonArgs {
    /// The settings file, in TOML. Default: none.
    #[arg(long, env = "TIFFIN_CONFIG", value_name = "FILE", global = true)]
    #[serde(skip)]
    pub config: Option<PathBuf>,

    /// The token that this process shows to servers. A server accepts it, with all rights. Servers with a
    /// token reject connections without one; servers without listen on loopback addresses only. As a flag it
    /// is visible in the list of processes: better use the variable or `token_file`. Default: none.
    #[arg(long, env = "TIFFIN_TOKEN", value_name = "SECRET", hide_env_values = true, global = true)]
    pub token: Option<String>,

    /// A file that contains the token, instead of `token`. Default: none.
    #[arg(long, env = "TIFFIN_TOKEN_FILE", value_name = "FILE", global = true)]
    pub token_file: Option<PathBuf>,

    /// The tokens that a server accepts, each with rights, namespaces and expiry, as written by
    /// `tiffin token`. It is read again when it changes. Default: none.
    #[arg(long, env = "TIFFIN_ACCESS_FILE", value_name = "FILE", global = true, hide_short_help = true)]
    pub access_file: Option<PathBuf>,

    /// The TLS files.
    #[command(flatten)]
    #[serde(skip)]
    pub tls: TlsArgs,

    /// The files for etcd.
    #[command(flatten)]
    #[serde(skip)]
    pub etcd: EtcdArgs,

    /// The lowest level that is logged: `error`, `warn`, `info`, `debug`, `trace`, or filters such as
    /// `info,tiffin_server=debug`. Default: `info` for a master or a node, `warn` for
    /// `tiffin up`, `error` for other commands.
    #[arg(long, env = "TIFFIN_LOG_LEVEL", value_name = "LEVEL", global = true)]
    pub log_level: Option<String>,

    /// The format of a log line. Default: `text`.
    #[arg(long, env = "TIFFIN_LOG_FORMAT", value_name = "FORMAT", global = true, hide_short_help = true)]
    pub log_format: Option<LogFormat>,

    /// The collector that receives a server's spans by OTLP over HTTP, such as `http://127.0.0.1:4318`; `off`
    /// for none.
    /// Default: `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` or `OTEL_EXPORTER_OTLP_ENDPOINT`, else none.
    #[arg(long, env = "TIFFIN_TRACE_ENDPOINT", value_name = "URL", global = true, hide_short_help = true)]
    pub trace_endpoint: Option<String>,

    /// Not a setting of Tiffin: the default of `trace_endpoint`.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", hide = true, global = true)]
    #[serde(skip)]
    pub otel_traces_endpoint: Option<String>,

    /// Not a setting of Tiffin: its default, without the path.
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", hide = true, global = true)]
    #[serde(skip)]
    pub otel_endpoint: Option<String>,
}

/// Settings of a master.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default)]
pub struct MasterArgs {
    /// The address on which the master accepts clients and nodes. Default: `127.0.0.1:7400`.
    #[arg(long, env = "TIFFIN_MASTER_LISTEN", value_name = "ADDRESS")]
    #[serde(deserialize_with = "file::text")]
    pub listen: Option<Address>,

    /// The address of `/metrics` and the master's other pages; `off` for none. Default: `127.0.0.1:7401`.
    #[arg(long, env = "TIFFIN_MASTER_HTTP", value_name = "ADDRESS")]
    #[serde(deserialize_with = "file::text")]
    pub http: Option<OffOr<Address>>,

    /// The address of the `/metadata` key-value endpoint for Mooncake's clients; `off` for none. Default:
    /// `off`.
    #[arg(long, env = "TIFFIN_MASTER_METADATA_HTTP", value_name = "ADDRESS")]
    #[serde(deserialize_with = "file::text")]
    pub metadata_http: Option<OffOr<Address>>,

    /// The folder for state that must survive a restart of the master: its epoch, its members and the
    /// policies of namespaces. Default: `tiffin/PORT` in `$XDG_STATE_HOME`, or in `~/.local/state`; none if
    /// the port is 0.
    #[arg(long, env = "TIFFIN_MASTER_STATE_DIR", value_name = "FOLDER")]
    pub state_dir: Option<PathBuf>,

    /// How long a lookup protects an object from eviction. Default: `10s`.
    #[arg(long, env = "TIFFIN_MASTER_LEASE_TTL", value_name = "TIME")]
    #[arg(value_parser = duration)]
    #[serde(deserialize_with = "file::duration")]
    pub lease_ttl: Option<Duration>,

    /// Whether a lease also refuses unforced removal (`strict`), as in Mooncake, or not (`relaxed`).
    /// Default: `relaxed`.
    #[arg(long, env = "TIFFIN_MASTER_LEASE_MODE", value_name = "MODE")]
    pub lease_mode: Option<LeaseMode>,

    /// How long the master keeps the leases of samples for a client whose connection broke, so that it can
    /// reconnect. Leases of a client that is known to be dead, or that says goodbye, end at once. Default:
    /// `10s`.
    #[arg(long, env = "TIFFIN_MASTER_LEASE_GRACE", value_name = "TIME")]
    #[arg(value_parser = duration)]
    #[serde(deserialize_with = "file::duration")]
    pub lease_grace: Option<Duration>,

    /// A connected node that has sent nothing for this long is not used. Default: `10s`.
    #[arg(long, env = "TIFFIN_MASTER_SILENCE", value_name = "TIME", value_parser = duration)]
    #[serde(deserialize_with = "file::duration")]
    pub silence: Option<Duration>,

    /// A node whose connection has been closed for this long is absent: unprotected objects that only it has
    /// are removed. Default: `10s`.
    #[arg(long, env = "TIFFIN_MASTER_AWAY", value_name = "TIME", value_parser = duration)]
    #[serde(deserialize_with = "file::duration")]
    pub away: Option<Duration>,

    /// The duration of a soft pin if the put names none, as puts of `mooncake.store` may. Default: `30m`.
    #[arg(long, env = "TIFFIN_MASTER_SOFT_PIN_TTL", value_name = "TIME")]
    #[arg(value_parser = duration)]
    #[serde(deserialize_with = "file::duration")]
    pub soft_pin_ttl: Option<Duration>,

    /// Whether soft-pinned objects may be evicted when nothing else can be. Default: `true`.
    #[arg(long, env = "TIFFIN_MASTER_EVICT_SOFT_PINNED", value_name = "BOOL")]
    pub evict_soft_pinned: Option<bool>,

    /// Requests that take longer are logged and counted, unless the client asked the master to wait; `0s`
    /// for none. Default: `1s`.
    #[arg(long, env = "TIFFIN_MASTER_SLOW", value_name = "TIME", value_parser = duration)]
    #[serde(deserialize_with = "file::duration")]
    pub slow: Option<Duration>,

    /// Several masters.
    #[command(flatten)]
    #[serde(skip)]
    pub ha: HaArgs,

    /// The disks.
    #[command(flatten)]
    #[serde(skip)]
    pub tier: TierArgs,

    /// Not a setting of Tiffin: the parent of the default of `state_dir`.
    #[arg(long, env = "XDG_STATE_HOME", hide = true)]
    #[serde(skip)]
    pub xdg_state_home: Option<PathBuf>,
}

/// Settings of a storage node that is a process of its own.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(default)]
pub struct NodeArgs {
    /// The master's address; several separated by commas, or `etcd://HOST:2379/CLUSTER`. Default:
    /// `127.0.0.1:7400`.
    #[arg(long, env = "TIFFIN_MASTER", value_name = "ADDRESS")]
    #[serde(deserialize_with = "file::text")]
    pub master: Option<Masters>,

    /// The address on which the node accepts requests; port 0 is any free one. Default: `127.0.0.1:0`.
    #[arg(long, env = "TIFFIN_NODE_LISTEN", value_name = "ADDRESS")]
    #[serde(deserialize_with = "file::text")]
    pub listen: Option<Address>,

    /// The address of the node's data socket. Default: any free port of the host in `listen`.
    #[arg(long, env = "TIFFIN_NODE_DATA_LISTEN", value_name = "ADDRESS")]
    #[serde(deserialize_with = "file::text")]
    pub data_listen: Option<Address>,

    /// The memory.
    #[command(flatten)]
    #[serde(skip)]
    pub storage: StorageArgs,
}

/// Settings of `tiffin up`: a master and a node in one process. The node listens on the master's host.
#[derive(Clone, Debug, Default, Args)]
pub struct UpArgs {
    /// The master.
    #[command(flatten)]
    pub master: MasterArgs,
    /// The node.
    #[command(flatten)]
    pub storage: StorageArgs,
}

/// Settings of the commands that are clients.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[command(next_help_heading = "Connection")]
#[serde(default)]
pub struct ClientArgs {
    /// The master's address; several separated by commas, or `etcd://HOST:2379/CLUSTER`. Default:
    /// `127.0.0.1:7400`.
    #[arg(long, env = "TIFFIN_MASTER", value_name = "ADDRESS")]
    #[serde(deserialize_with = "file::text")]
    pub master: Option<Masters>,

    /// The namespace of the keys. Default: `default`.
    #[arg(long, env = "TIFFIN_NAMESPACE", value_name = "NAME")]
    pub namespace: Option<String>,

    /// The time limit of one command. Default: `10s`.
    #[arg(long, env = "TIFFIN_TIMEOUT", value_name = "TIME", value_parser = duration)]
    #[serde(deserialize_with = "file::duration")]
    pub timeout: Option<Duration>,

    /// Whether the memory of nodes on this machine is mapped instead of copied through sockets. If `off`, the
    /// client also connects to the master as from another machine. Default: `on`.
    #[arg(long, env = "TIFFIN_CLIENT_SHARED_MEMORY", value_name = "SWITCH")]
    pub shared_memory: Option<Switch>,
}

/// The format of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Readable text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Which operations a lease refuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LeaseMode {
    /// Eviction.
    #[default]
    Relaxed,
    /// Eviction, and removal that is not forced.
    Strict,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// Enabled.
    On,
    /// Disabled.
    Off,
}

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The settings file cannot be read.
    #[error(
        "cannot read the settings file `{path}`: {source}\n\nhint: check the path, and that this user may \
         read it"
    )]
    Unreadable {
        /// The path of the file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The settings file cannot be parsed.
    #[error("`{path}`, line {line}: {what}\n\nhint: `docs/settings.md` lists every setting with an example")]
    File {
        /// The path of the file.
        path: String,
        /// The line.
        line: usize,
        /// The parser's message.
        what: String,
    },
    /// The settings file contains an unknown key.
    #[error("`{path}`, line {line}: there is no setting `{key}`{}\n\nhint: {hint}", .section)]
    Unknown {
        /// The path of the file.
        path: String,
        /// The line.
        line: usize,
        /// The key.
        key: String,
        /// The table of the key, for the message.
        section: String,
        /// The most similar setting, or the known ones.
        hint: String,
    },
    /// A value is out of range or malformed.
    #[error("{name} is {value}: {why}\n\nhint: {hint}")]
    Value {
        /// The setting.
        name: &'static str,
        /// The value.
        value: String,
        /// What is wrong with it.
        why: String,
        /// What to do.
        hint: String,
    },
    /// The server would be open to every host of the network.
    #[error(
        "{name} is `{address}`, which other machines can reach, and there is no token: every client could \
         connect\n\nhint: set a token (TIFFIN_TOKEN or `--token-file`) here and on every client and node, or \
         listen on 127.0.0.1"
    )]
    Exposed {
        /// The setting.
        name: &'static str,
        /// The address.
        address: Address,
    },
    /// The TLS settings do not fit together.
    #[error(transparent)]
    Tls(#[from] tiffin_tls::TlsFileError),
    /// A required setting is missing.
    #[error("{what}\n\nhint: {hint}")]
    Missing {
        /// What is missing.
        what: &'static str,
        /// What to do.
        hint: &'static str,
    },
}

/// The settings of a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MasterConfig {
    /// The addresses for clients and nodes. The first one is the master's address.
    pub listen: Vec<Address>,
    /// The address of its pages, if it has any.
    pub http: Option<Address>,
    /// The address of the `/metadata` endpoint, if there is one.
    pub metadata_http: Option<Address>,
    /// The folder of its durable state. Without one, each start takes a later epoch from the clock.
    pub state_dir: Option<PathBuf>,
    /// Keeps its state in etcd, and may be a standby.
    pub ha: Option<HaConfig>,
    /// A token with all rights; empty for none.
    pub token: String,
    /// See [`CommonArgs::access_file`].
    pub access_file: Option<PathBuf>,
    /// See [`TlsArgs`].
    pub tls: TlsFiles,
    /// See [`MasterArgs::lease_ttl`].
    pub lease_ttl: Duration,
    /// See [`MasterArgs::lease_mode`].
    pub lease_mode: LeaseMode,
    /// See [`MasterArgs::lease_grace`].
    pub lease_grace: Duration,
    /// See [`MasterArgs::silence`].
    pub silence: Duration,
    /// See [`MasterArgs::away`].
    pub away: Duration,
    /// See [`MasterArgs::slow`].
    pub slow: Duration,
    /// See [`MasterArgs::soft_pin_ttl`].
    pub soft_pin_ttl: Duration,
    /// See [`MasterArgs::evict_soft_pinned`].
    pub evict_soft_pinned: bool,
    /// See [`MasterArgs::tier`].
    pub tier: TierConfig,
    /// Accept any address without a token, as Mooncake's master does. Only `mooncake_master` sets it.
    pub exposed: bool,
    /// A namespace without a quota rejects writes. Only `mooncake_master` sets this and the fields below.
    pub tenants: bool,
    /// The file with the quotas, if they are kept in a file besides the state folder.
    pub tenant_file: Option<PathBuf>,
    /// How events about stored and removed objects are published, if they are.
    pub events: Option<EventsConfig>,
    /// Where spans are sent, if anywhere.
    pub trace: Option<Endpoint>,
}

/// The settings of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// The address of the master.
    pub master: Masters,
    /// The bytes of memory for objects.
    pub memory: u64,
    /// The node's name; empty for its host and port.
    pub name: String,
    /// The TCP address for requests; `None` if only processes of this host connect.
    pub listen: Option<Address>,
    /// The TCP address of the data socket. Default: any free port of the host of `listen`.
    pub data_listen: Option<Address>,
    /// See [`StorageArgs::advertise`].
    pub advertise: Option<String>,
    /// See [`StorageArgs::shared_memory`].
    pub shared_memory: bool,
    /// See [`StorageArgs::isolate`].
    pub isolate: bool,
    /// See [`StorageArgs::populate`].
    pub populate: bool,
    /// See [`StorageArgs::ssd`].
    pub ssd: Vec<SsdConfig>,
    /// The folder in which its memory outlives its process, if any.
    pub pool: Option<PathBuf>,
    /// No setting names a pool: where it cannot be made, the node starts without one.
    pub is_pool_optional: bool,
    /// See [`StorageArgs::pool_on_stop`].
    pub pool_on_stop: PoolEnd,
    /// The token that it shows to the master and to other nodes, and accepts; empty for none.
    pub token: String,
    /// See [`CommonArgs::access_file`].
    pub access_file: Option<PathBuf>,
    /// See [`TlsArgs`].
    pub tls: TlsFiles,
    /// Accept a non-loopback address without a token. Only stores that replace Mooncake's set it.
    pub exposed: bool,
    /// Where spans are sent, if anywhere.
    pub trace: Option<Endpoint>,
}

/// The settings of `tiffin up`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpConfig {
    /// The master.
    pub master: MasterConfig,
    /// The node. The address of its master is filled in when the master listens.
    pub node: NodeConfig,
}

/// The settings of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConfig {
    /// The address of the master.
    pub master: Masters,
    /// The namespace of the keys.
    pub namespace: String,
    /// The time limit of one command.
    pub timeout: Duration,
    /// See [`ClientArgs::shared_memory`].
    pub shared_memory: bool,
    /// The shared secret; empty for none.
    pub token: String,
    /// See [`TlsArgs`].
    pub tls: TlsFiles,
    /// See [`EtcdArgs`].
    pub etcd: EtcdAccess,
}

/// The settings of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Filters, in the syntax of `tracing-subscriber`.
    pub level: String,
    /// The format of a line.
    pub format: LogFormat,
}

/// Fills missing settings from the file.
macro_rules! fill {
    ($given:ident from $said:ident: $($field:ident),+) => {
        $($given.$field = $given.$field.or($said.$field);)+
    };
}
use fill;

impl CommonArgs {
    /// Reads the settings file, if one is named, and fills in settings that neither a flag nor a variable
    /// gives.
    pub fn load(self) -> Result<(Self, SettingsFile), ConfigError> {
        let file = match &self.config {
            Some(path) => SettingsFile::read(path)?,
            None => SettingsFile::default(),
        };
        let (mut args, said) = (self, file.common.clone());
        fill!(args from said: access_file, log_level, log_format, trace_endpoint);
        if args.token.is_none() && args.token_file.is_none() {
            (args.token, args.token_file) = (said.token, said.token_file);
        }
        args.tls = args.tls.over(file.tls.clone());
        args.etcd = args.etcd.over(file.etcd.clone());
        Ok((args, file))
    }

    /// The settings of the log.
    #[must_use]
    pub fn log(&self) -> LogConfig {
        LogConfig {
            level: self.log_level.clone().unwrap_or_else(|| "info".to_owned()),
            format: self.log_format.unwrap_or_default(),
        }
    }
}

impl MasterArgs {
    /// Applies flags and variables, then the file, then the defaults, and checks the result.
    pub fn resolve(self, common: &CommonArgs, file: &SettingsFile) -> Result<MasterConfig, ConfigError> {
        let (mut args, said) = (self, file.master.clone());
        fill!(args from said: listen, http, metadata_http, state_dir);
        fill!(args from said: lease_ttl, lease_mode, lease_grace, silence, away);
        fill!(args from said: soft_pin_ttl, evict_soft_pinned, slow);
        let listen = args.listen.unwrap_or_else(|| fixed(LISTEN_DEFAULT));
        let ha = args.ha.over(file.ha.clone(), common.etcd.access());
        let state_dir = match args.state_dir {
            Some(folder) => Some(folder),
            None if ha.is_some() || takes_any_port(&listen) => None,
            None => Some(default_state_dir(args.xdg_state_home, &listen)?),
        };
        let http = args.http.unwrap_or(OffOr::Value(fixed(HTTP_DEFAULT)));
        let config = MasterConfig {
            listen: vec![listen],
            http: http.into_option(),
            metadata_http: args.metadata_http.and_then(OffOr::into_option),
            state_dir,
            ha,
            token: common.token()?,
            access_file: common.access_file.clone(),
            tls: common.tls.files()?,
            lease_ttl: args.lease_ttl.unwrap_or(LEASE_TTL_DEFAULT),
            lease_mode: args.lease_mode.unwrap_or_default(),
            lease_grace: args.lease_grace.unwrap_or(LEASE_GRACE_DEFAULT),
            silence: args.silence.unwrap_or(SILENCE_DEFAULT),
            away: args.away.unwrap_or(AWAY_DEFAULT),
            soft_pin_ttl: args.soft_pin_ttl.unwrap_or(SOFT_PIN_TTL_DEFAULT),
            evict_soft_pinned: args.evict_soft_pinned.unwrap_or(true),
            slow: args.slow.unwrap_or(SLOW_DEFAULT),
            tier: args.tier.over(file.tier.clone()),
            exposed: false,
            tenants: false,
            tenant_file: None,
            events: None,
            trace: common.trace()?,
        };
        config.check()?;
        Ok(config)
    }
}

impl NodeArgs {
    /// Applies flags and variables, then the file, then the defaults, and checks the result.
    pub fn resolve(self, common: &CommonArgs, file: &SettingsFile) -> Result<NodeConfig, ConfigError> {
        let storage = self.storage.clone().over(file);
        let (mut args, said) = (self, file.node.clone());
        fill!(args from said: master, listen, data_listen);
        let is_pool_said = storage.pool.is_some();
        let mut config = NodeConfig {
            master: common.etcd.masters(args.master)?,
            listen: Some(args.listen.unwrap_or_else(|| fixed(NODE_LISTEN_DEFAULT))),
            data_listen: args.data_listen,
            ..storage.node(common)?
        };
        if !is_pool_said {
            (config.pool, config.is_pool_optional) = (storage::default_pool(&config), true);
        }
        config.check()?;
        Ok(config)
    }
}

impl UpArgs {
    /// Applies flags and variables, then the file, then the defaults, and checks the result.
    pub fn resolve(self, common: &CommonArgs, file: &SettingsFile) -> Result<UpConfig, ConfigError> {
        let master = self.master.resolve(common, file)?;
        if master.ha.is_some() {
            let what = "`tiffin up` has its node in the master's process, which must not fail together";
            let hint = "run `tiffin master --etcd …` and `tiffin node` as processes of their own";
            return Err(ConfigError::Missing { what, hint });
        }
        let mut node = self.storage.over(file).node(common)?;
        if let Some(Address::Tcp { host, .. }) = master.listen.first() {
            node.listen = Some(Address::Tcp { host: host.clone(), port: 0 });
        }
        node.check()?;
        let mut up = UpConfig { master, node };
        up.know_each_other()?;
        Ok(up)
    }
}

impl ClientArgs {
    /// Applies flags and variables, then the file, then the defaults, and checks the result.
    pub fn resolve(self, common: &CommonArgs, file: &SettingsFile) -> Result<ClientConfig, ConfigError> {
        let (mut args, said) = (self, file.client.clone());
        fill!(args from said: master, namespace, timeout, shared_memory);
        let config = ClientConfig {
            master: common.etcd.masters(args.master)?,
            namespace: args.namespace.unwrap_or_else(|| NAMESPACE_DEFAULT.to_owned()),
            timeout: args.timeout.unwrap_or(TIMEOUT_DEFAULT),
            shared_memory: args.shared_memory.unwrap_or(Switch::On) == Switch::On,
            token: common.token()?,
            tls: common.tls.files()?,
            etcd: common.etcd.access(),
        };
        check_duration("timeout", config.timeout, Duration::from_millis(1), "10s")?;
        Ok(config)
    }
}

impl Default for MasterConfig {
    /// On loopback, on any free ports, without durable state.
    fn default() -> Self {
        Self {
            listen: vec![fixed(NODE_LISTEN_DEFAULT)],
            http: None,
            metadata_http: None,
            state_dir: None,
            ha: None,
            token: String::new(),
            access_file: None,
            tls: TlsFiles::default(),
            lease_ttl: LEASE_TTL_DEFAULT,
            lease_mode: LeaseMode::default(),
            lease_grace: LEASE_GRACE_DEFAULT,
            silence: SILENCE_DEFAULT,
            away: AWAY_DEFAULT,
            soft_pin_ttl: SOFT_PIN_TTL_DEFAULT,
            evict_soft_pinned: true,
            slow: SLOW_DEFAULT,
            tier: TierConfig::default(),
            exposed: false,
            tenants: false,
            tenant_file: None,
            events: None,
            trace: None,
        }
    }
}

impl Default for NodeConfig {
    /// For a master at its default address on loopback.
    fn default() -> Self {
        Self {
            master: fixed(LISTEN_DEFAULT).into(),
            memory: MEMORY_DEFAULT.as_u64(),
            name: String::new(),
            listen: Some(fixed(NODE_LISTEN_DEFAULT)),
            data_listen: None,
            advertise: None,
            shared_memory: true,
            isolate: false,
            populate: true,
            ssd: Vec::new(),
            pool: None,
            is_pool_optional: false,
            pool_on_stop: PoolEnd::Keep,
            token: String::new(),
            access_file: None,
            tls: TlsFiles::default(),
            exposed: false,
            trace: None,
        }
    }
}

impl MasterConfig {
    /// Rejects invalid settings. A server calls it when it starts; other callers may do so earlier.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.listen.is_empty() {
            let hint = "set `listen`";
            return Err(ConfigError::Missing { what: "the master has no address to listen on", hint });
        }
        let has_token = !self.token.is_empty() || self.access_file.is_some();
        for (name, addresses) in [
            ("listen", self.listen.as_slice()),
            ("http", self.http.as_slice()),
            ("metadata_http", self.metadata_http.as_slice()),
        ] {
            for address in addresses {
                check_exposure(name, address, has_token || self.exposed)?;
                check_is_tcp(name, address, name != "listen")?;
            }
        }
        if let Some(ha) = &self.ha {
            ha.check(self)?;
            if self.state_dir.is_some() {
                let what = "the master's state would be both in etcd and in a folder";
                return Err(ConfigError::Missing { what, hint: "give `--etcd` or `--state-dir`, not both" });
            }
        }
        self.tls.check()?;
        self.tier.check()?;
        check_duration("lease_ttl", self.lease_ttl, Duration::from_millis(1), "10s")?;
        check_duration("lease_grace", self.lease_grace, Duration::from_millis(1), "10s")?;
        check_duration("silence", self.silence, SILENCE_MIN, "10s")?;
        check_duration("away", self.away, Duration::from_millis(1), "10s")
    }
}

impl NodeConfig {
    /// Rejects invalid settings. A server calls it when it starts; other callers may do so earlier.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.listen.is_none() && !self.shared_memory {
            let what = "the node is unreachable: it has no `listen` address and shared_memory is off";
            return Err(ConfigError::Missing { what, hint: "set `listen` or switch shared_memory on" });
        }
        let has_token = !self.token.is_empty() || self.access_file.is_some();
        for (name, address) in [("listen", &self.listen), ("data_listen", &self.data_listen)] {
            if let Some(address) = address {
                check_exposure(name, address, has_token || self.exposed)?;
                check_is_tcp(name, address, true)?;
            }
        }
        // Settings of a node whose connections are of both kinds are a mistake.
        tls::check_node(&self.tls, self.listen.is_some() || !self.ssd.is_empty())?;
        let shown = |bytes| ByteSize::b(bytes).display().iec().to_string();
        if self.memory < MEMORY_BYTES_MIN || self.memory > DATA_BYTES_MAX {
            let (least, most) = (shown(MEMORY_BYTES_MIN), shown(DATA_BYTES_MAX));
            return Err(ConfigError::Value {
                name: "memory",
                value: shown(self.memory),
                why: format!("it must be between {least} and {most}"),
                hint: "a typical value is `8GiB`".to_owned(),
            });
        }
        if self.name.len() > NAME_BYTES_MAX || self.name.chars().any(char::is_control) {
            return Err(ConfigError::Value {
                name: "name",
                value: self.name.escape_debug().to_string(),
                why: format!("it must be plain text of at most {NAME_BYTES_MAX} bytes"),
                hint: "leave it out to use the host and port".to_owned(),
            });
        }
        Ok(())
    }
}

/// A constant of this file, parsed as an address.
fn fixed(text: &str) -> Address {
    match text.parse() {
        Ok(address) => address,
        Err(error) => panic!("a default address is invalid: {error}"),
    }
}

#[cfg(test)]
mod tests;
