//! The command `mooncake_master`: Tiffin's master with Mooncake's command line. [`client_flags`] parses the
//! flags of the command `mooncake_client`, which the Python package runs.
//!
//! It has Mooncake's flags, defaults, ports and pages. Flags without a meaning here are accepted, and one
//! warning names them. Like Mooncake's master, it listens on all interfaces even without a token; a warning
//! says so. Settings for which Mooncake has no flag come from the environment, under the names of our own
//! settings: `TIFFIN_TOKEN`, `TIFFIN_MASTER_STATE_DIR`, `TIFFIN_MASTER_LEASE_MODE`, `TIFFIN_LOG_LEVEL`,
//! `TIFFIN_LOG_FORMAT`.

pub mod flags;
pub mod gflags;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Command, FromArgMatches};
use tiffin_rpc::Address;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::config::{
    CommonArgs, ConfigError, Demotion, HaArgs, LogConfig, LogFormat, MasterArgs, MasterConfig, OffOr,
    SettingsFile, TierConfig,
};
use crate::events::EventsConfig;
use crate::supervise::{FAILURE_HINT, end_on_panic};
use crate::{MasterServer, StartError, host};
use gflags::{FlagError, Program, Values, is_true, milliseconds, port};

/// Mooncake's defaults.
const RPC_PORT: u16 = 50051;
/// See [`RPC_PORT`].
const METRICS_PORT: u16 = 9003;
/// See [`RPC_PORT`].
const METADATA_PORT: u16 = 8080;
/// See [`RPC_PORT`].
const CLIENT_PORT: u16 = 50052;
/// See [`RPC_PORT`].
const CLIENT_HTTP_PORT: u16 = 9300;
/// See [`RPC_PORT`].
const ANY_HOST: &str = "0.0.0.0";
/// See [`RPC_PORT`].
const CLIENT_TTL: Duration = Duration::from_secs(10);
/// Mooncake's default for the maximum number of queued events.
const EVENTS_MAX_DEFAULT: usize = 1 << 16;
/// The upper limit of that flag.
const EVENTS_MAX: usize = 1 << 24;
/// The time between two summaries in the log.
const REPORT_PAUSE: Duration = Duration::from_secs(10);

/// The command `mooncake_master`.
pub const MASTER: Program = Program {
    name: "mooncake_master",
    about: "a master with Mooncake's flags.",
    own: flags::MASTER,
    common: flags::COMMON,
    file_aliases: &[("client_live_ttl_sec", "client_ttl")],
};
/// The command `mooncake_client`.
pub const CLIENT: Program = Program {
    name: "mooncake_client",
    about: "a storage node for the programs of this host, with Mooncake's flags.",
    own: flags::CLIENT,
    common: flags::COMMON,
    file_aliases: &[],
};
/// The prefix of the variables that gflags reads on request.
const VARIABLES_PREFIX: &str = "FLAGS_";

/// The name of a cluster whose flags name none; Mooncake has the same.
pub const HA_CLUSTER: &str = "mooncake_cluster";

/// The exit status for an invalid command line, as in gflags.
const STATUS_USAGE: i32 = 1;
/// The exit status of a master that did not start.
const STATUS_FAILED: i32 = 1;

/// The action that a command line requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Run a master.
    Serve(Box<Plan>),
    /// Print the list of flags.
    Help,
    /// Print the version.
    Version,
}

/// The settings of a master with Mooncake's flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The master.
    pub config: MasterConfig,
    /// Warnings for the operator, one line each.
    pub warnings: Vec<String>,
    /// Whether the log gets a summary every few seconds.
    pub report: bool,
    /// The log.
    pub log: LogConfig,
}

/// Why there is no [`Plan`].
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The flags are invalid.
    #[error(transparent)]
    Flags(#[from] FlagError),
    /// The environment is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The environment is invalid, with the parser's message.
    #[error("{0}")]
    Environment(String),
}

/// Settings that come only from the environment.
#[derive(Clone, Debug, Default, Args)]
pub struct Environment {
    /// Token and log.
    #[command(flatten)]
    pub common: CommonArgs,
    /// State and leases.
    #[command(flatten)]
    pub master: MasterArgs,
    /// The values of flags for `--fromenv`, by the name of the flag.
    #[arg(skip)]
    pub flags: BTreeMap<String, String>,
}

impl Environment {
    /// Reads the environment of this process.
    pub fn read() -> Result<Self, PlanError> {
        let fail = |error: clap::Error| PlanError::Environment(error.to_string().trim().to_owned());
        let command = Self::augment_args(Command::new("mooncake_master"));
        let matches = command.try_get_matches_from(["mooncake_master"]).map_err(fail)?;
        Ok(Self { flags: flag_variables(), ..Self::from_arg_matches(&matches).map_err(fail)? })
    }
}

/// The values of flags in the environment, by the name of the flag.
#[must_use]
pub fn flag_variables() -> BTreeMap<String, String> {
    let named = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.to_str()?.strip_prefix(VARIABLES_PREFIX)?.to_owned();
        Some((name, value.to_str()?.to_owned()))
    });
    named.collect()
}

/// Runs a master until a signal stops it. The arguments do not include the name of the program. Returns the
/// exit status.
#[must_use]
pub fn run(args: impl IntoIterator<Item = OsString>) -> i32 {
    let args: Vec<_> = args.into_iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let asked = Environment::read().and_then(|environment| plan(&args, &environment));
    match asked {
        Ok(Asked::Help) => say(&MASTER.help()),
        Ok(Asked::Version) => say(&format!("mooncake_master of tiffin {}\n", env!("CARGO_PKG_VERSION"))),
        Ok(Asked::Serve(plan)) => serve(*plan),
        Err(error) => complain(&error, STATUS_USAGE),
    }
}

/// Parses the flags of `mooncake_client`, without the name of the program. Returns the values and warnings.
/// Otherwise it prints the requested text or the error, and returns the exit status.
pub fn client_flags(
    args: &[String],
    variables: &BTreeMap<String, String>,
) -> Result<(Values, Vec<String>), i32> {
    let line = CLIENT.parse(args, variables).map_err(|error| complain(&error, STATUS_USAGE))?;
    match asked_of(&line.values) {
        Some(Asked::Help) => return Err(say(&CLIENT.help())),
        Some(_) => return Err(say(&format!("mooncake_client of tiffin {}\n", env!("CARGO_PKG_VERSION")))),
        None => {}
    }
    for (name, default) in [("port", CLIENT_PORT), ("http_port", CLIENT_HTTP_PORT)] {
        port(&line.values, name, default).map_err(|error| complain(&error, STATUS_USAGE))?;
    }
    let warnings = CLIENT.without_effect(&line.values).into_iter().chain(stray_warning(&line.strays));
    Ok((line.values, warnings.collect()))
}

/// The action that the arguments request, without the name of the program.
pub fn plan(args: &[String], environment: &Environment) -> Result<Asked, PlanError> {
    let line = MASTER.parse(args, &environment.flags)?;
    if let Some(asked) = asked_of(&line.values) {
        return Ok(asked);
    }
    // The command line takes precedence over the file.
    let mut values = match line.values.get("config_path").filter(|path| !path.is_empty()) {
        Some(path) => MASTER.read_file(path)?,
        None => Values::new(),
    };
    values.extend(line.values);
    check_timeouts(&values)?;
    let config = master_config(&values, environment)?;
    let mut warnings: Vec<_> = MASTER.without_effect(&values).into_iter().collect();
    warnings.extend(stray_warning(&line.strays));
    warnings.extend(exposure_warning(&config));
    if config.events.is_none() && values.get("enable_kv_events").is_some_and(|value| is_true(value)) {
        let missing =
            "events are not published: --kv_events_bind_endpoint or --kv_events_backend_id is missing";
        warnings.push(missing.to_owned());
    }
    let report = values.get("enable_metric_reporting").is_none_or(|value| is_true(value));
    let log = log_config(&values, &environment.common);
    Ok(Asked::Serve(Box::new(Plan { config, warnings, report, log })))
}

/// Rejects time limits of puts that Mooncake rejects, although they have no effect here.
fn check_timeouts(values: &Values) -> Result<(), FlagError> {
    let seconds = |name: &str, default| values.get(name).and_then(|it| it.parse().ok()).unwrap_or(default);
    let (name, discard) = ("put_start_release_timeout_sec", seconds("put_start_discard_timeout_sec", 30));
    let release: u64 = seconds(name, 600);
    let hint = "choose a longer time than --put_start_discard_timeout_sec";
    let refused = FlagError::Refused { name, value: release.to_string(), place: String::new(), hint };
    if release > discard { Ok(()) } else { Err(refused) }
}

/// The text that the flags request instead of a server.
fn asked_of(values: &Values) -> Option<Asked> {
    let says = |name: &str| values.get(name).is_some_and(|value| is_true(value));
    let wants = |name: &str| values.get(name).is_some_and(|value| !value.is_empty() && value != "false");
    if flags::COMMON.iter().any(|flag| flag.name.starts_with("help") && wants(flag.name)) {
        return Some(Asked::Help);
    }
    says("version").then_some(Asked::Version)
}

fn log_config(values: &Values, common: &CommonArgs) -> LogConfig {
    let mut log = common.log();
    if let (Some(level), None) = (values.get("minloglevel"), &common.log_level) {
        log.level = match level.as_str() {
            "0" => "info",
            "1" => "warn",
            _ => "error",
        }
        .to_owned();
    }
    log
}

/// In gflags, `--flag false` sets the flag: the word after a boolean flag is not its value.
fn stray_warning(strays: &[String]) -> Option<String> {
    let words = strays.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    (!strays.is_empty()).then(|| format!("these words are ignored: {words}; write --flag=false"))
}

fn master_config(values: &Values, environment: &Environment) -> Result<MasterConfig, PlanError> {
    let text = |name: &str, default: &str| values.get(name).map_or(default, String::as_str).to_owned();
    let rpc_port = port(values, "rpc_port", 0)?;
    let rpc_port = if rpc_port == 0 { port(values, "port", RPC_PORT)? } else { rpc_port };
    let own = MasterArgs { ha: ha_args(values, &environment.master.ha)?, ..environment.master.clone() };
    // A flag that asks for etcd wins over a variable that names a folder.
    let own = MasterArgs { state_dir: own.state_dir.clone().filter(|_| own.ha.etcd.is_none()), ..own };
    // Addresses and times have Mooncake's defaults here. Only the port matters, because it names the
    // default state folder.
    let listen = Some(Address::Tcp { host: "127.0.0.1".to_owned(), port: rpc_port });
    let own = MasterArgs { listen, http: Some(OffOr::Off), metadata_http: None, lease_ttl: None, ..own };
    let own = MasterArgs { silence: None, away: None, soft_pin_ttl: None, evict_soft_pinned: None, ..own };
    let config = own.resolve(&environment.common, &SettingsFile::default())?;
    let listen = Address::Tcp { host: text("rpc_address", ANY_HOST), port: rpc_port };
    let http = Address::Tcp {
        host: text("metrics_host", ANY_HOST),
        port: port(values, "metrics_port", METRICS_PORT)?,
    };
    let metadata = Address::Tcp {
        host: text("http_metadata_server_host", ANY_HOST),
        port: port(values, "http_metadata_server_port", METADATA_PORT)?,
    };
    let wants_metadata = values.get("enable_http_metadata_server").is_some_and(|value| is_true(value));
    let client_ttl = match values.get("client_ttl").and_then(|value| value.parse().ok()) {
        Some(seconds) => Duration::from_secs(seconds),
        None => CLIENT_TTL,
    };
    // Mooncake writes "no lease" as zero; the shortest lease has the same effect.
    let lease = values.get("default_kv_lease_ttl").and_then(|value| milliseconds(value));
    let lease_ttl = lease.map_or(config.lease_ttl, |ms| Duration::from_millis(ms.max(1)));
    let soft_pin = values.get("default_kv_soft_pin_ttl").and_then(|value| milliseconds(value));
    let evict = values.get("allow_evict_soft_pinned_objects").is_none_or(|value| is_true(value));
    let config = MasterConfig {
        listen: vec![listen],
        http: Some(http),
        metadata_http: wants_metadata.then_some(metadata),
        lease_ttl,
        silence: client_ttl,
        away: client_ttl,
        soft_pin_ttl: soft_pin.map_or(config.soft_pin_ttl, Duration::from_millis),
        evict_soft_pinned: evict,
        tier: tier_config(values, config.tier),
        events: events_config(values, !config.token.is_empty() || config.access_file.is_some())?,
        tenant_file: tenant_file(values)?,
        tenants: values.get("enable_multi_tenants").is_some_and(|value| is_true(value)),
        exposed: true,
        ..config
    };
    config.check()?;
    Ok(config)
}

/// Where etcd is, if there is to be an election. Our variables serve where the flags say nothing.
fn ha_args(values: &Values, own: &HaArgs) -> Result<HaArgs, FlagError> {
    if !values.get("enable_ha").is_some_and(|value| is_true(value)) {
        return Ok(own.clone());
    }
    let given = |name: &str| values.get(name).filter(|it| !it.is_empty()).cloned();
    let refuse = |name, value, hint| Err(FlagError::Refused { name, value, place: String::new(), hint });
    if let Some(kind) = given("ha_backend_type").filter(|it| it != "etcd") {
        return refuse("ha_backend_type", kind, "only `etcd` is supported");
    }
    let backend = given("ha_backend_connstring").or_else(|| given("etcd_endpoints"));
    let etcd = backend.or_else(|| own.etcd.clone());
    if etcd.is_none() {
        return refuse("etcd_endpoints", String::new(), "--enable_ha needs the addresses of etcd");
    }
    let cluster = given("cluster_id").or_else(|| own.cluster.clone());
    let cluster = Some(cluster.unwrap_or_else(|| HA_CLUSTER.to_owned()));
    Ok(HaArgs { etcd, cluster, master_advertise: own.master_advertise.clone() })
}

/// The file with the quotas of tenants, if there is one.
fn tenant_file(values: &Values) -> Result<Option<PathBuf>, FlagError> {
    let text = |name: &str| values.get(name).cloned().unwrap_or_default();
    let (kind, uri) = (text("tenant_quota_connector_type"), text("tenant_quota_connector_uri"));
    let refuse = |name, value, hint| Err(FlagError::Refused { name, value, place: String::new(), hint });
    match kind.as_str() {
        "" => Ok(None),
        "file" if !uri.is_empty() => Ok(Some(PathBuf::from(uri))),
        "file" => refuse("tenant_quota_connector_uri", uri, "name the file"),
        _ => refuse("tenant_quota_connector_type", kind, "only `file` is supported"),
    }
}

/// How events are published. As in Mooncake, the master runs without them if a flag is missing.
fn events_config(values: &Values, has_token: bool) -> Result<Option<EventsConfig>, FlagError> {
    let text = |name: &str| values.get(name).map(String::as_str).unwrap_or_default();
    let says = |name: &str| values.get(name).is_none_or(|value| is_true(value));
    let (endpoint, backend_id) = (text("kv_events_bind_endpoint"), text("kv_events_backend_id"));
    if !is_true(text("enable_kv_events")) || endpoint.is_empty() || backend_id.is_empty() {
        return Ok(None);
    }
    let refuse = |hint| FlagError::Refused {
        name: "kv_events_bind_endpoint",
        value: endpoint.to_owned(),
        place: String::new(),
        hint,
    };
    let address = endpoint.strip_prefix("tcp://").map(|it| it.replacen('*', ANY_HOST, 1));
    let address = address.and_then(|it| it.parse::<Address>().ok());
    let Some(listen @ Address::Tcp { .. }) = address else {
        return Err(refuse("write it as `tcp://*:5557`"));
    };
    if has_token && !listen.is_local() {
        return Err(refuse("publish events on 127.0.0.1: TIFFIN_TOKEN cannot protect them"));
    }
    let queue_max = text("kv_events_queue_capacity").parse().unwrap_or(EVENTS_MAX_DEFAULT);
    Ok(Some(EventsConfig {
        listen,
        backend_id: backend_id.to_owned(),
        legacy: says("kv_events_emit_legacy_compat"),
        object_key: says("kv_events_emit_object_key"),
        queue_max: queue_max.clamp(1, EVENTS_MAX),
    }))
}

/// The settings of the tier. By default disks are used where there are some, because a client that provides
/// a disk wants that.
fn tier_config(values: &Values, otherwise: TierConfig) -> TierConfig {
    let said = |name: &str| values.get(name).map(|value| is_true(value));
    let demotion = match (said("enable_offload"), said("offload_on_evict")) {
        (_, Some(true)) => Demotion::OnPressure,
        (Some(true), _) => Demotion::WriteThrough,
        (Some(false), _) => Demotion::Never,
        (None, _) => otherwise.demotion,
    };
    let promote_on_hit = said("promotion_on_hit").unwrap_or(otherwise.promote_on_hit);
    // As in Mooncake, a value out of range is replaced by the nearest valid one.
    let threshold = values.get("promotion_admission_threshold").and_then(|it| it.parse::<u64>().ok());
    let threshold = threshold.map(|it| it.clamp(1, u64::from(u8::MAX)) as u8);
    let promote_after = threshold.unwrap_or(otherwise.promote_after);
    TierConfig { demotion, promote_on_hit, promote_after, ..otherwise }
}

fn exposure_warning(config: &MasterConfig) -> Option<String> {
    let events = config.events.as_ref().map(|it| &it.listen);
    let addresses = config.listen.iter().chain(&config.http).chain(&config.metadata_http).chain(events);
    let open: Vec<_> = addresses.filter(|it| !it.is_local()).map(ToString::to_string).collect();
    (config.token.is_empty() && config.access_file.is_none() && !open.is_empty()).then(|| {
        format!(
            "every client that reaches this machine can read and write everything through {}: \
             set TIFFIN_TOKEN here and on every client, or bind to 127.0.0.1 with --rpc_address and \
             --metrics_host",
            open.join(", ")
        )
    })
}

fn serve(plan: Plan) -> i32 {
    start_log(&plan.log);
    end_on_panic(STATUS_FAILED, |what| {
        let _closed = writeln!(io::stderr(), "error: {what}\n\nhint: {FAILURE_HINT}");
    });
    host::raise_file_limit();
    for warning in &plan.warnings {
        tracing::warn!("{warning}");
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(source) => {
            return complain(&StartError::System { what: "starting threads", source }, STATUS_FAILED);
        }
    };
    match runtime.block_on(serve_until_told(plan)) {
        Ok(()) => 0,
        Err(error) => complain(&error, STATUS_FAILED),
    }
}

async fn serve_until_told(plan: Plan) -> Result<(), StartError> {
    let fail = |source| StartError::System { what: "listening for signals", source };
    let mut interrupt = signal(SignalKind::interrupt()).map_err(fail)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(fail)?;
    let master = MasterServer::start(plan.config).await?;
    let mut reports = tokio::time::interval(REPORT_PAUSE);
    reports.tick().await;
    loop {
        tokio::select! {
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            _ = reports.tick() => if plan.report {
                tracing::info!("{}", master.summary().trim_end());
            },
        }
    }
    master.shutdown().await;
    Ok(())
}

fn start_log(log: &LogConfig) {
    let filter = EnvFilter::try_new(&log.level).unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(false);
    // A line that cannot be written is lost. To report that on standard error as well would panic.
    let builder = builder.log_internal_errors(false);
    // A program that embeds this may have a log already, and keeps it.
    let _kept = match log.format {
        LogFormat::Text => builder.try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
}

fn say(text: &str) -> i32 {
    // A closed pipe needs no error.
    let _closed = io::stdout().write_all(text.as_bytes());
    0
}

fn complain(error: &dyn std::error::Error, status: i32) -> i32 {
    let _closed = writeln!(io::stderr(), "ERROR: {error}");
    status
}

#[cfg(test)]
mod tests;
