//! The settings of `setup`: its arguments in both forms, and the environment.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyTuple};

use tiffin_client::EtcdAccess;
use tiffin_server::TlsFiles;
use tiffin_server::config::{CommonArgs, Engine};
use tiffin_server::mooncake::HA_CLUSTER;

use super::arguments::{Flag, Number};
use super::disk::DiskSettings;

/// The default sizes of segment and buffer in a dict; Mooncake's default.
const SIZE_DEFAULT: u64 = 16 << 20;
/// The default master in a dict; Mooncake's default.
const MASTER_DEFAULT: &str = "127.0.0.1:50051";
/// The default tenant; Mooncake's default, and our default namespace.
const TENANT_DEFAULT: &str = "default";
/// The minimum size in a dict, except 0.
const SIZE_MIN: u64 = 1024;
/// The maximum local buffer in a dict.
const LOCAL_BUFFER_MAX: u64 = 1 << 40;
/// The default range of ports for clients.
const PORTS_DEFAULT: (u16, u16) = (12_300, 14_300);
/// The default number of attempts.
const PORT_TRIES_DEFAULT: u32 = 20;
/// The default port of a client's pages; Mooncake's default.
const HTTP_PORT_DEFAULT: u16 = 9300;
/// The default directory of the disk; Mooncake's default.
const DISK_PATH_DEFAULT: &str = "/data/file_storage";
/// The default time limit of a call; Mooncake's default.
const CALL_TIME_DEFAULT: Duration = Duration::from_secs(30);

/// The variable for the time that puts wait for space.
const PUT_WAIT_VARIABLE: &str = "TIFFIN_PUT_WAIT";
/// The maximum wait for space, which is practically unlimited.
const PUT_WAIT_MAX: Duration = Duration::from_secs(86_400 * 365);

/// The parameters of `setup`, in order. The first seven are required.
const PARAMETERS: [&str; 16] = [
    "local_hostname",
    "metadata_server",
    "global_segment_size",
    "local_buffer_size",
    "protocol",
    "rdma_devices",
    "master_server_addr",
    "engine",
    "enable_ssd_offload",
    "ssd_offload_path",
    "tenant_id",
    "enable_client_http_server",
    "client_http_port",
    "ssd_prefetch_cooldown_sec",
    "ssd_prefetch_dedup_ttl_sec",
    "ssd_get_wait_ms",
];
const REQUIRED: usize = 7;
/// Alternative spellings that clients use.
const ALIASES: [(&str, &str); 2] =
    [("device_name", "rdma_devices"), ("master_server_address", "master_server_addr")];

/// The settings of `setup`.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// `host` or `host:port`.
    pub(crate) local_hostname: String,
    pub(crate) metadata_server: String,
    /// The memory of the node in this process; 0 for no node.
    pub(crate) segment_bytes: u64,
    /// The maximum size of a value in `put` and `get` of bytes.
    pub(crate) buffer_bytes: u64,
    pub(crate) protocol: String,
    pub(crate) master: String,
    /// The namespace, on a master with tenants.
    pub(crate) tenant: String,
    /// The port of the client's own pages, if it is to have them.
    pub(crate) http_port: Option<u16>,
    /// Settings without an effect, for the log.
    pub(crate) ignored: Vec<&'static str>,
    /// Other warnings for the user.
    pub(crate) warnings: Vec<String>,
    /// The disk of the node in this process, if there is one.
    pub(crate) disk: Option<DiskSettings>,
    /// How long a get waits for a promotion, if that is set.
    pub(crate) ssd_get_wait_ms: Option<u64>,
    /// From the environment.
    pub(crate) environment: Environment,
}

/// The settings of the environment. Each also has a flag of `tiffin` or of Mooncake.
#[derive(Clone, Debug)]
pub(crate) struct Environment {
    pub(crate) ports: (u16, u16),
    pub(crate) port_tries: u32,
    pub(crate) token: String,
    /// The tokens that nodes accept, beside that one.
    pub(crate) access_file: Option<PathBuf>,
    /// With a CA, this client connects with TLS. With a certificate, its own segments accept only TLS.
    pub(crate) tls: TlsFiles,
    /// How etcd is reached.
    pub(crate) etcd: EtcdAccess,
    /// The address on which nodes listen, if it is not to follow from the name and the token.
    pub(crate) node_listen: Option<IpAddr>,
    /// The name of the cluster in etcd, if an address of etcd does not name it.
    pub(crate) cluster: String,
    /// Whether this client maps the segments of others, and whether others may map its own.
    pub(crate) shared_memory: bool,
    pub(crate) node_shared_memory: bool,
    /// Whether memory that was not registered is rejected, as with RDMA.
    pub(crate) require_registered: bool,
    /// The time limit of one call.
    pub(crate) call_time: Duration,
    /// How much longer a put may wait for space; zero if it is refused at once, as in Mooncake.
    pub(crate) put_wait: Duration,
    /// How long a get waits for a promotion; overrides the argument of `setup`.
    pub(crate) ssd_get_wait_ms: Option<u64>,
    /// The settings of the disk.
    disk: DiskEnvironment,
}

/// The environment's settings of the disk, as text.
#[derive(Clone, Debug, Default)]
struct DiskEnvironment {
    path: Option<String>,
    /// Sizes; the first one that is set counts.
    sizes: Vec<(&'static str, String)>,
    uses_uring: Option<bool>,
}

/// The arguments of `setup` for the disk.
struct Tier {
    is_on: bool,
    path: String,
    cooldown_sec: Option<u64>,
    dedup_ttl_sec: Option<u64>,
    get_wait_ms: Option<u64>,
}

impl Tier {
    /// The resulting disk, and warnings for the user.
    fn settle(
        &self,
        segment_bytes: u64,
        environment: &Environment,
    ) -> Result<(Option<DiskSettings>, Vec<String>), Problem> {
        let mut warnings = Vec::new();
        let masters = [
            ("ssd_prefetch_cooldown_sec", self.cooldown_sec, 5, "TIFFIN_MASTER_PREFETCH_COOLDOWN"),
            ("ssd_prefetch_dedup_ttl_sec", self.dedup_ttl_sec, 30, "TIFFIN_MASTER_PREFETCH_DEDUP_TTL"),
        ];
        for (name, given, default, variable) in masters {
            if let Some(given) = given.filter(|it| *it != default) {
                warnings.push(format!(
                    "{name}={given} has no effect: all clients share one throttle, that of the master; \
                     set {variable}={given}s in its environment"
                ));
            }
        }
        if !self.is_on {
            return Ok((None, warnings));
        }
        if segment_bytes == 0 {
            let what = "enable_ssd_offload has no effect without a segment: a disk belongs to a segment";
            warnings.push(what.to_owned());
            return Ok((None, warnings));
        }
        let said = &environment.disk;
        let path = Some(self.path.clone()).filter(|it| !it.is_empty()).or_else(|| said.path.clone());
        let mut size = None;
        for (name, given) in &said.sizes {
            match parse_size(given) {
                Some(0) => {}
                Some(bytes) => size = size.or(Some(bytes)),
                None => return Err(Problem::Refuse(format!("{name}: invalid size `{given}`"))),
            }
        }
        let engine = match said.uses_uring {
            None => Engine::Auto,
            Some(true) => Engine::Uring,
            Some(false) => Engine::Blocking,
        };
        let path = path.unwrap_or_else(|| DISK_PATH_DEFAULT.to_owned()).into();
        Ok((Some(DiskSettings { path, size, engine }), warnings))
    }
}

/// Why settings are invalid.
pub(crate) enum Problem {
    /// The call itself is wrong.
    Raise(PyErr),
    /// A value is invalid: -600, and this message for the log.
    Refuse(String),
}

impl From<PyErr> for Problem {
    fn from(error: PyErr) -> Self {
        Self::Raise(error)
    }
}

impl Settings {
    /// Parses the arguments of `setup`: one dict, or seven or more values.
    pub(crate) fn parse(
        args: &Bound<'_, PyTuple>,
        named: Option<&Bound<'_, PyDict>>,
    ) -> Result<Self, Problem> {
        let mut environment = Environment::read(args.py())?;
        let put_wait = environ(args.py(), PUT_WAIT_VARIABLE)?;
        environment.put_wait =
            put_wait.map_or(Ok(Duration::ZERO), |it| put_wait_of(PUT_WAIT_VARIABLE, &it))?;
        let named_config = match named {
            Some(named) if args.is_empty() && named.len() == 1 => named.get_item("config")?,
            _ => None,
        };
        let alone = if args.len() == 1 && named.is_none_or(|it| it.is_empty()) {
            args.get_item(0).ok()
        } else {
            None
        };
        match alone.or(named_config) {
            Some(config) if config.is_instance_of::<PyDict>() => {
                let config = config.cast_into::<PyDict>().map_err(PyErr::from)?;
                Self::from_dict(&config, environment)
            }
            _ => Self::from_values(&bind(args, named)?, environment),
        }
    }

    /// The settings of a client without a segment, for the master of a node daemon.
    pub(crate) fn of_daemon(py: Python<'_>, buffer_bytes: u64) -> Result<Self, Problem> {
        let mut environment = Environment::read(py)?;
        let put_wait = environ(py, PUT_WAIT_VARIABLE)?;
        environment.put_wait =
            put_wait.map_or(Ok(Duration::ZERO), |it| put_wait_of(PUT_WAIT_VARIABLE, &it))?;
        Ok(Self {
            local_hostname: "localhost".to_owned(),
            metadata_server: String::new(),
            segment_bytes: 0,
            buffer_bytes,
            protocol: "tcp".to_owned(),
            master: String::new(),
            tenant: TENANT_DEFAULT.to_owned(),
            http_port: None,
            ignored: Vec::new(),
            warnings: Vec::new(),
            disk: None,
            ssd_get_wait_ms: environment.ssd_get_wait_ms,
            environment,
        })
    }

    fn from_values(values: &[Option<Bound<'_, PyAny>>], environment: Environment) -> Result<Self, Problem> {
        let value = |index: usize| values.get(index).and_then(Option::as_ref);
        let text = |index: usize| match value(index) {
            Some(given) => given.extract::<String>().map_err(|_| wrong_type(index, "str", given)),
            None => Ok(String::new()),
        };
        let size = |index: usize| match value(index) {
            Some(given) => {
                given.extract::<Number>().map_err(|_| wrong_type(index, "a non-negative int", given))
            }
            None => Ok(Number(0)),
        };
        let flag = |index: usize| match value(index) {
            Some(given) => given.extract::<Flag>().map_err(|_| wrong_type(index, "bool", given)),
            None => Ok(Flag(false)),
        };
        let mut ignored = Vec::new();
        if value(7).is_some_and(|engine| !engine.is_none()) {
            ignored.push("engine");
        }
        // Only its type is checked.
        text(5)?;
        let tenant = value(10).map_or_else(|| Ok(TENANT_DEFAULT.to_owned()), |_| text(10))?;
        let http_port = match value(12) {
            Some(_) => port_of(size(12)?.0),
            None => Ok(HTTP_PORT_DEFAULT),
        };
        let http_port = flag(11)?.0.then_some(http_port).transpose()?;
        let given = |index: usize| value(index).map(|_| size(index).map(|it| it.0)).transpose();
        let tier = Tier {
            is_on: flag(8)?.0,
            path: text(9)?,
            cooldown_sec: given(13)?,
            dedup_ttl_sec: given(14)?,
            get_wait_ms: given(15)?,
        };
        let segment_bytes = size(2)?.0;
        let (disk, warnings) = tier.settle(segment_bytes, &environment)?;
        Ok(Self {
            local_hostname: text(0)?,
            metadata_server: text(1)?,
            segment_bytes,
            buffer_bytes: size(3)?.0,
            protocol: text(4)?,
            master: text(6)?,
            tenant,
            http_port,
            ignored,
            warnings,
            disk,
            ssd_get_wait_ms: environment.ssd_get_wait_ms.or(tier.get_wait_ms),
            environment,
        })
    }

    fn from_dict(config: &Bound<'_, PyDict>, mut environment: Environment) -> Result<Self, Problem> {
        let text = |name: &str| -> PyResult<Option<String>> {
            let alias = ALIASES.iter().find(|(_, real)| *real == name).map(|(alias, _)| *alias);
            let given = match (config.get_item(name)?, alias) {
                (Some(given), _) => Some(given),
                (None, Some(alias)) => config.get_item(alias)?,
                (None, None) => None,
            };
            given.map(|value| Ok(value.str()?.to_string())).transpose()
        };
        let required = |name: &str| {
            text(name)?.ok_or_else(|| Problem::Refuse(format!("the configuration has no `{name}`")))
        };
        let size = |name: &str| match text(name)? {
            None => Ok(SIZE_DEFAULT),
            Some(given) => match parse_size(&given) {
                Some(bytes) if bytes == 0 || bytes >= SIZE_MIN => Ok(bytes),
                _ => Err(Problem::Refuse(format!("{name}: invalid size `{given}`"))),
            },
        };
        let has_pages = text("enable_client_http_server")?.is_some_and(|value| is_true(&value));
        if let Some(value) = config.get_item("require_registered")? {
            environment.require_registered = if value.is_instance_of::<PyBool>() {
                value.is_truthy()?
            } else {
                is_true(&value.str()?.to_string())
            };
        }
        if let Some(given) = text("put_wait")? {
            environment.put_wait = put_wait_of("put_wait", &given)?;
        }
        let buffer_bytes = size("local_buffer_size")?;
        if buffer_bytes > LOCAL_BUFFER_MAX {
            return Err(Problem::Refuse("`local_buffer_size` is larger than 1 TiB".to_owned()));
        }
        let number = |name: &str| match text(name)? {
            None => Ok(None),
            Some(given) => match given.trim().parse() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(Problem::Refuse(format!("{name}: invalid number `{given}`"))),
            },
        };
        let tier = Tier {
            is_on: text("enable_ssd_offload")?.is_some_and(|value| is_true(&value)),
            path: text("ssd_offload_path")?.unwrap_or_default(),
            cooldown_sec: number("ssd_prefetch_cooldown_sec")?,
            dedup_ttl_sec: number("ssd_prefetch_dedup_ttl_sec")?,
            get_wait_ms: number("ssd_get_wait_ms")?,
        };
        let segment_bytes = size("global_segment_size")?;
        let (disk, warnings) = tier.settle(segment_bytes, &environment)?;
        Ok(Self {
            local_hostname: required("local_hostname")?,
            metadata_server: required("metadata_server")?,
            segment_bytes,
            buffer_bytes,
            protocol: text("protocol")?.unwrap_or_else(|| "tcp".to_owned()),
            master: text("master_server_addr")?.unwrap_or_else(|| MASTER_DEFAULT.to_owned()),
            tenant: text("tenant_id")?.unwrap_or_else(|| TENANT_DEFAULT.to_owned()),
            http_port: match number("client_http_port")?.filter(|_| has_pages) {
                Some(port) => Some(port_of(port)?),
                None => has_pages.then_some(HTTP_PORT_DEFAULT),
            },
            ignored: Vec::new(),
            warnings,
            disk,
            ssd_get_wait_ms: environment.ssd_get_wait_ms.or(tier.get_wait_ms),
            environment,
        })
    }
}

fn port_of(number: u64) -> Result<u16, Problem> {
    u16::try_from(number).map_err(|_| Problem::Refuse(format!("client_http_port: invalid port `{number}`")))
}

impl Environment {
    /// Reads the current variables through Python, so that changes of `os.environ` count.
    fn read(py: Python<'_>) -> Result<Self, Problem> {
        let text = |name: &str| environ(py, name);
        let path = |name: &str| Ok::<_, Problem>(text(name)?.filter(|it| !it.is_empty()).map(PathBuf::from));
        let token = text("TIFFIN_TOKEN")?.filter(|it| !it.is_empty());
        let token_file = path("TIFFIN_TOKEN_FILE")?.filter(|_| token.is_none());
        let token = CommonArgs { token, token_file, ..CommonArgs::default() }.token();
        let token = token.map_err(|error| Problem::Refuse(error.to_string()))?;
        let access_file = path("TIFFIN_ACCESS_FILE")?;
        if access_file.is_some() && token.is_empty() {
            let hint = "give this process its own token, in TIFFIN_TOKEN_FILE";
            return Err(Problem::Refuse(format!(
                "TIFFIN_ACCESS_FILE is set without a token\n\nhint: {hint}"
            )));
        }
        let port = |name: &str, default: u16| -> Result<u16, Problem> {
            Ok(text(name)?.and_then(|it| it.trim().parse().ok()).filter(|it| *it > 0).unwrap_or(default))
        };
        let first = port("MC_STORE_CLIENT_MIN_PORT", PORTS_DEFAULT.0)?;
        let last = port("MC_STORE_CLIENT_MAX_PORT", PORTS_DEFAULT.1)?;
        let tries = text("MC_STORE_CLIENT_SETUP_RETRIES")?.and_then(|it| it.trim().parse().ok());
        // One switch for both sides, or one for each.
        let shares = |name: &str| -> Result<bool, Problem> {
            let is_off = |value: Option<String>| value.is_some_and(|it| is_false(&it));
            Ok(!is_off(text("TIFFIN_SHARED_MEMORY")?) && !is_off(text(name)?))
        };
        let call_ms =
            text("MC_RPC_TIMEOUT_MS")?.and_then(|it| it.trim().parse().ok()).filter(|it: &u64| *it > 0);
        Ok(Self {
            ports: if first <= last { (first, last) } else { PORTS_DEFAULT },
            port_tries: tries.unwrap_or(PORT_TRIES_DEFAULT).max(1),
            token,
            access_file,
            tls: TlsFiles {
                cert: path("TIFFIN_TLS_CERT")?,
                key: path("TIFFIN_TLS_KEY")?,
                ca: path("TIFFIN_TLS_CA")?,
                client_ca: path("TIFFIN_TLS_CLIENT_CA")?,
            },
            etcd: EtcdAccess {
                ca: path("TIFFIN_ETCD_CA")?,
                cert: path("TIFFIN_ETCD_CERT")?,
                key: path("TIFFIN_ETCD_KEY")?,
                credentials: path("TIFFIN_ETCD_CREDENTIALS_FILE")?,
            },
            node_listen: text("TIFFIN_NODE_LISTEN")?.and_then(|it| {
                let with_port = it.trim().parse::<SocketAddr>().map(|it| it.ip());
                it.trim().parse().or(with_port).ok()
            }),
            cluster: text("MC_STORE_CLUSTER_ID")?
                .filter(|it| !it.is_empty())
                .unwrap_or_else(|| HA_CLUSTER.to_owned()),
            shared_memory: shares("TIFFIN_CLIENT_SHARED_MEMORY")?,
            node_shared_memory: shares("TIFFIN_NODE_SHARED_MEMORY")?,
            require_registered: text("TIFFIN_REQUIRE_REGISTERED")?.is_some_and(|it| is_true(&it)),
            call_time: call_ms.map_or(CALL_TIME_DEFAULT, Duration::from_millis),
            put_wait: Duration::ZERO,
            ssd_get_wait_ms: text("MOONCAKE_SSD_GET_WAIT_MS")?.and_then(|it| it.trim().parse().ok()),
            disk: DiskEnvironment::read(py)?,
        })
    }
}

impl DiskEnvironment {
    fn read(py: Python<'_>) -> Result<Self, Problem> {
        let text = |name: &str| Ok::<_, Problem>(environ(py, name)?.filter(|it| !it.trim().is_empty()));
        let mut sizes = Vec::new();
        for name in ["MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE"] {
            sizes.extend(text(name)?.map(|given| (name, given)));
        }
        Ok(Self {
            path: text("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH")?,
            sizes,
            uses_uring: text("MOONCAKE_OFFLOAD_USE_URING")?.map(|it| is_true(&it)),
        })
    }
}

fn environ(py: Python<'_>, name: &str) -> Result<Option<String>, Problem> {
    let value = py.import("os")?.getattr("environ")?.call_method1("get", (name,))?;
    // Python shows bytes that are not UTF-8 as text that cannot be encoded.
    let not_text = |_| Problem::Refuse(format!("{name}: the value is not valid UTF-8"));
    value.extract().map_err(not_text)
}

/// The maximum time that a put waits, from the setting of that name.
fn put_wait_of(name: &str, said: &str) -> Result<Duration, Problem> {
    parse_time(said).ok_or_else(|| {
        let hint = "write a number and a unit, such as `30s` or `500ms`, or `off`";
        Problem::Refuse(format!("{name}: invalid duration `{said}`\n\nhint: {hint}"))
    })
}

/// Parses a time: a number of seconds, or one with a unit; `off` and an empty text are zero.
fn parse_time(text: &str) -> Option<Duration> {
    let text = text.trim();
    if text.is_empty() || is_false(text) {
        return Some(Duration::ZERO);
    }
    let unit_at = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let seconds = match unit.trim() {
        "ms" => 1e-3,
        "" | "s" | "sec" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok().map(|it| it.min(PUT_WAIT_MAX))
}

/// Parses a number of bytes, with a suffix such as `KB`, `m` or `GiB` that counts in powers of 1024.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let unit_at = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let unit = unit.trim().to_ascii_lowercase();
    let shift = match unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit) {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return None,
    };
    match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(1 << shift),
        Err(_) => {
            let bytes = number.parse::<f64>().ok()? * (1_u64 << shift) as f64;
            (bytes < u64::MAX as f64).then_some(bytes as u64)
        }
    }
}

/// The value of each parameter, or a `TypeError` that names the invalid argument.
fn bind<'py>(
    args: &Bound<'py, PyTuple>,
    named: Option<&Bound<'py, PyDict>>,
) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
    let problem = |what: String| Err(PyTypeError::new_err(format!("setup() {what}")));
    if args.len() > PARAMETERS.len() {
        return problem(format!("takes at most {} arguments, not {}", PARAMETERS.len(), args.len()));
    }
    let mut values: Vec<Option<Bound<'py, PyAny>>> = args.iter().map(Some).collect();
    values.resize(PARAMETERS.len(), None);
    for (name, value) in named.into_iter().flat_map(|named| named.iter()) {
        let name: String = name.extract()?;
        let real = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name.as_str(), |(_, real)| real);
        let place = PARAMETERS.iter().position(|parameter| *parameter == real);
        match place.and_then(|index| values.get_mut(index)) {
            None => return problem(format!("got an unexpected keyword argument '{name}'")),
            Some(Some(_)) => return problem(format!("got multiple values for argument '{name}'")),
            Some(empty) => *empty = Some(value),
        }
    }
    let missing: Vec<_> =
        PARAMETERS.iter().zip(&values).take(REQUIRED).filter(|(_, it)| it.is_none()).collect();
    if !missing.is_empty() {
        let names: Vec<_> = missing.iter().map(|(name, _)| format!("'{name}'")).collect();
        return problem(format!("is missing {} (or takes one dict)", names.join(", ")));
    }
    Ok(values)
}

fn wrong_type(index: usize, wanted: &str, given: &Bound<'_, PyAny>) -> PyErr {
    let name = PARAMETERS.get(index).copied().unwrap_or_default();
    let given = given.repr().map_or_else(|_| "another object".to_owned(), |it| it.to_string());
    PyTypeError::new_err(format!("setup(): argument '{name}' must be {wanted}, not {given}"))
}

fn is_true(text: &str) -> bool {
    matches!(text.trim().to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on")
}

fn is_false(text: &str) -> bool {
    matches!(text.trim().to_ascii_lowercase().as_str(), "0" | "false" | "no" | "off")
}
