//! A store that is set up: its client, its storage node in this process if there is one, and its name.
//!
//! The setup does cheap steps first: it checks the arguments, then the metadata server and the master, and
//! only then allocates memory and sockets. A failure prints one line on standard error.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tiffin_client::arena::Arena;
use tiffin_client::{Client, ConnectOptions, Deadline};
use tiffin_embedded::drain;
use tiffin_server::config::{MEMORY_BYTES_MIN, SsdConfig};
use tiffin_server::http::client::ClientPages;
use tiffin_server::{Address, Masters, NodeConfig, NodeServer, StartError, host};
use tiffin_types::NAMESPACE_BYTES_MAX;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::time::timeout;

use super::codes;
use super::disk::Claim;
use super::log::tell;
use super::pages;
use super::registry::Registry;
use super::segments::{Segments, Site};
use super::session_table::Sessions;
use super::settings::{Environment, Settings};
use super::tasks::Tasks;
use crate::handle::{Handle, Opened, Servers};

/// The time limit for the master's answer to a client in `setup`. Hosts are busy when many ranks start.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// The time limit for the registration of a node.
const JOIN_TIME: Duration = Duration::from_secs(20);
/// The time limit for the metadata server's answer.
const METADATA_TIME: Duration = Duration::from_secs(20);
/// How long to wait for the previous user of a disk.
const DISK_TIME: Duration = Duration::from_secs(2);
/// The pause between two attempts.
const DISK_REST: Duration = Duration::from_millis(20);
/// The time limit of `close`.
const CLOSE_TIME: Duration = Duration::from_secs(5);

/// The time limit for finding the objects that `close` loses.
const LOSSES_TIME: Duration = Duration::from_secs(1);

/// A store between `setup` and `close`.
pub(crate) struct Open {
    pub(crate) handle: Arc<Handle>,
    /// The result of `get_hostname`; the name of the segment, if there is one.
    pub(crate) hostname: String,
    pub(crate) buffer_bytes: u64,
    pub(crate) call_time: Duration,
    /// The maximum time that a put waits for space.
    pub(crate) put_wait: Duration,
    /// Whether memory that was not registered is rejected.
    pub(crate) require_registered: bool,
    pub(crate) registry: Registry,
    /// Segments besides the one of `setup`.
    pub(super) segments: Segments,
    /// Copy and move tasks.
    pub(super) tasks: Tasks,
    /// Objects that are written or read in parts.
    pub(crate) sessions: Sessions,
    /// The local buffer, after its first use.
    arena: Mutex<Option<Arc<Arena>>>,
    /// How many reads found no space in it.
    space_lacks: AtomicU64,
    /// The maximum time that a get waits for a promotion, if it is set.
    pub(crate) promotion_wait_ms: Option<u64>,
    /// The node daemon that set up this store, if one did.
    pub(crate) daemon: Option<String>,
    /// The pages of this client, if it has them.
    pages: Mutex<Option<ClientPages>>,
    /// The lock of the disk's directory.
    claim: Option<Claim>,
    /// The port of a client without a segment. It is reserved so that no other client gets that name.
    _port: Option<TcpSocket>,
}

/// Why a store is not set up.
pub(crate) struct Failure {
    /// The return code of `setup`.
    pub(crate) code: i64,
    /// The message.
    pub(crate) what: String,
    /// A store that works nevertheless, as a client without a segment.
    pub(crate) rest: Option<Box<Open>>,
}

impl Failure {
    fn new(code: i64, what: impl Into<String>) -> Self {
        Self { code, what: what.into(), rest: None }
    }
}

/// The requested name of a client.
struct Name {
    /// The host as given.
    host: String,
    /// The address of the host.
    ip: IpAddr,
    /// The port, if the caller chose one.
    port: Option<u16>,
}

impl Name {
    /// The return code of `setup` if the name is valid and a later step fails.
    fn code(&self) -> i64 {
        if self.port.is_some() { codes::INVALID_PARAMS } else { codes::INTERNAL_ERROR }
    }

    fn with(&self, port: u16) -> String {
        Address::Tcp { host: self.host.clone(), port }.to_string()
    }
}

impl Open {
    /// Sets a store up.
    pub(crate) async fn new(settings: &Settings) -> Result<Self, Failure> {
        let mut open = Self::connect(settings).await?;
        if let Some(port) = settings.http_port {
            let pages = pages::serve(&open.handle, open.call_time, open.segments.site(), port).await;
            open.pages = Mutex::new(pages);
        }
        Ok(open)
    }

    async fn connect(settings: &Settings) -> Result<Self, Failure> {
        check_protocol(&settings.protocol)?;
        let name = find_name(&settings.local_hostname).await?;
        let master = find_masters(&settings.master, &settings.environment.cluster)?;
        let master = master.with_etcd(&settings.environment.etcd);
        let master = master.map_err(|error| Failure::new(codes::INVALID_PARAMS, error.to_string()))?;
        check_metadata(&settings.metadata_server).await?;
        let options = ConnectOptions {
            token: settings.environment.token.clone(),
            tls: settings.environment.tls.clone(),
            etcd: settings.environment.etcd.clone(),
            shared_memory: settings.environment.shared_memory,
            connect_time: CONNECT_TIME,
            ..ConnectOptions::new(master.to_string())
        };
        let client = Client::connect(options.clone()).await.map_err(|error| {
            Failure::new(name.code(), format!("cannot use the master at {master}: {error}"))
        })?;
        let (client, options) = as_tenant(client, options, &settings.tenant).await?;
        if settings.segment_bytes < MEMORY_BYTES_MIN {
            let opened = Opened { client, again: options, servers: Servers::None };
            let open = Self::without_segment(settings, &name, &master, opened)?;
            return match settings.segment_bytes {
                0 => Ok(open),
                bytes => Err(Failure {
                    rest: Some(Box::new(open)),
                    ..Failure::new(
                        codes::INVALID_PARAMS,
                        format!("a segment of {bytes} bytes is too small: the minimum is {MEMORY_BYTES_MIN}"),
                    )
                }),
            };
        }
        let made = Self::with_segment(settings, &name, &master, options).await;
        let _ = client.close(Deadline::after(CLOSE_TIME)).await;
        made
    }

    async fn with_segment(
        settings: &Settings,
        name: &Name,
        master: &Masters,
        options: ConnectOptions,
    ) -> Result<Self, Failure> {
        let (claim, ssd) = match &settings.disk {
            Some(disk) => {
                let claimed = disk.claim().map_err(|what| Failure::new(codes::INVALID_PARAMS, what))?;
                let (claim, ssd, warning) = claimed;
                if let Some(warning) = warning {
                    tell(&format!("warning: {warning}"));
                }
                (Some(claim), vec![ssd])
            }
            None => (None, Vec::new()),
        };
        let (node, hostname) = start_node(settings, name, master, ssd).await?;
        tokio::spawn(drain::serve(node.drain_duty(), options.clone()));
        let joined = node.joined(tokio::time::Instant::now() + JOIN_TIME).await;
        joined.map_err(|error| Failure::new(name.code(), error.to_string()))?;
        let here = ConnectOptions {
            home: Some(node.segment()),
            own_memory: Some(Arc::clone(node.memory())),
            own_disks: node.local_disks(),
            label: hostname.clone(),
            ..options.clone()
        };
        let client = Client::connect(here).await.map_err(|error| {
            Failure::new(name.code(), format!("cannot use the master at {master}: {error}"))
        })?;
        node.attach_local(client.id());
        // A forked child has no node: it reconnects as a plain client.
        let opened = Opened { client, again: options, servers: Servers::Node(node) };
        let site = site(settings, name, master, hostname);
        Ok(Self { claim, ..Self::made(settings, site, opened, None) })
    }

    fn without_segment(
        settings: &Settings,
        name: &Name,
        master: &Masters,
        opened: Opened,
    ) -> Result<Self, Failure> {
        let (port, socket) = match name.port {
            Some(port) => (port, None),
            None => {
                let (port, socket) = own_port(name, &settings.environment)?;
                (port, Some(socket))
            }
        };
        Ok(Self::made(settings, site(settings, name, master, name.with(port)), opened, socket))
    }

    fn made(settings: &Settings, site: Site, opened: Opened, port: Option<TcpSocket>) -> Self {
        Self {
            handle: Handle::new(opened),
            hostname: site.hostname.clone(),
            buffer_bytes: settings.buffer_bytes,
            call_time: settings.environment.call_time,
            put_wait: settings.environment.put_wait,
            require_registered: settings.environment.require_registered,
            registry: Registry::default(),
            segments: Segments::new(site),
            tasks: Tasks::default(),
            sessions: Sessions::default(),
            arena: Mutex::new(None),
            space_lacks: AtomicU64::new(0),
            promotion_wait_ms: settings.ssd_get_wait_ms,
            daemon: None,
            pages: Mutex::new(None),
            claim: None,
            _port: port,
        }
    }

    /// The same store, set up by the daemon at this address. It has no name.
    pub(crate) fn of_daemon(self, address: &str) -> Self {
        Self { hostname: String::new(), daemon: Some(address.to_owned()), ..self }
    }

    /// Counts a read that found no space in the local buffer. Returns whether to print that: ever more
    /// rarely, because a program under this pressure fails in every call.
    pub(super) fn tells_lack_of_space(&self) -> bool {
        let count = self.space_lacks.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        count.is_power_of_two()
    }

    /// The local buffer, mapped at its first use. If that fails, prints the reason and returns `None`.
    pub(crate) fn arena(&self) -> Option<Arc<Arena>> {
        let mut arena = self.lock_arena();
        if let Some(arena) = arena.as_ref().filter(|it| it.is_here()) {
            return Some(Arc::clone(arena));
        }
        match Arena::new(self.buffer_bytes) {
            Ok(made) => {
                // A forked child makes its own buffer, and keeps the inherited one mapped.
                std::mem::forget(arena.replace(Arc::clone(&made)));
                Some(made)
            }
            Err(error) => {
                let bytes = self.buffer_bytes;
                tell(&format!("cannot map the local buffer of {bytes} bytes: {error}"));
                None
            }
        }
    }

    /// Where the pages of this client are, if it has them.
    pub(super) fn pages_address(&self) -> Option<Address> {
        self.lock_pages().as_ref().map(|it| it.address().clone())
    }

    fn lock_pages(&self) -> MutexGuard<'_, Option<ClientPages>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the segment of `setup` has a disk.
    pub(super) fn has_disk(&self) -> bool {
        self.claim.is_some()
    }

    /// Whether these bytes are in registered memory, or in the local buffer.
    pub(crate) fn is_registered(&self, start: u64, len: u64) -> bool {
        let is_local = || self.lock_arena().as_ref().is_some_and(|it| it.contains(start, len));
        self.registry.covers(start, len) || is_local()
    }

    fn lock_arena(&self) -> MutexGuard<'_, Option<Arc<Arena>>> {
        self.arena.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports the objects that are lost, closes the client, and then the node. In a forked child this closes
    /// only the client of that child, and the parent's node keeps serving.
    pub(crate) async fn close(&self) {
        drop(self.lock_pages().take());
        let losses = self.handle.losses(Deadline::after(LOSSES_TIME)).await;
        if !losses.is_empty() {
            tell(&format!("close: {losses}; they are lost"));
        }
        self.segments.close(self.handle.again(), Deadline::after(LOSSES_TIME)).await;
        if let Err(error) = self.handle.close(Deadline::after(CLOSE_TIME)).await {
            tell(&format!("close: {error}"));
        }
    }
}

/// The client in the namespace of its tenant, if the master has tenants. Otherwise the tenant is ignored.
async fn as_tenant(
    client: Client,
    options: ConnectOptions,
    tenant: &str,
) -> Result<(Client, ConnectOptions), Failure> {
    if !client.has_tenants() || tenant == options.namespace {
        return Ok((client, options));
    }
    let _ = client.close(Deadline::after(CLOSE_TIME)).await;
    let is_valid = !tenant.is_empty() && !tenant.starts_with('_') && !tenant.chars().any(char::is_control);
    if !is_valid || tenant.len() > NAMESPACE_BYTES_MAX {
        let what = format!(
            "tenant_id is `{}`: it must have 1 to {NAMESPACE_BYTES_MAX} bytes, no control characters, and \
             not begin with `_`",
            tenant.escape_debug()
        );
        return Err(Failure::new(codes::INVALID_PARAMS, what));
    }
    let options = ConnectOptions { namespace: tenant.to_owned(), ..options };
    let client = Client::connect(options.clone())
        .await
        .map_err(|error| Failure::new(codes::INTERNAL_ERROR, format!("cannot use the master: {error}")))?;
    Ok((client, options))
}

/// Why bytes cannot be moved by a protocol; `None` if they can.
#[pyo3::pyfunction]
pub(crate) fn protocol_problem(protocol: &str) -> Option<String> {
    check_protocol(protocol).err().map(|failure| failure.what)
}

fn check_protocol(protocol: &str) -> Result<(), Failure> {
    let what = match protocol {
        "tcp" | "rpc_only" => return Ok(()),
        "rdma" if has_rdma_device() => {
            "protocol `rdma`: this release moves bytes through shared memory and TCP only; use `tcp`"
        }
        "rdma" => "protocol `rdma`: there is no RDMA device here (/sys/class/infiniband is empty); use `tcp`",
        "cxl" | "ascend" | "efa" | "ub" | "ubshmem" | "nvlink" | "nvlink_intra" | "hip" | "barex" => {
            let what = format!("not supported: protocol `{protocol}`; use `tcp`");
            return Err(Failure::new(codes::INTERNAL_ERROR, what));
        }
        _ => {
            let what = format!("unknown protocol `{protocol}`; use `tcp`");
            return Err(Failure::new(codes::INTERNAL_ERROR, what));
        }
    };
    Err(Failure::new(codes::INTERNAL_ERROR, what))
}

fn has_rdma_device() -> bool {
    std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some())
}

/// The masters behind `master_server_addr`. Mooncake's addresses of etcd do not name the cluster.
fn find_masters(text: &str, cluster: &str) -> Result<Masters, Failure> {
    let problem =
        |why: &str| Failure::new(codes::INVALID_PARAMS, format!("the master's address is `{text}`: {why}"));
    if let Some(rest) = text.strip_prefix("etcd://") {
        let names_cluster = rest.split_once('/').is_some_and(|(_, cluster)| !cluster.is_empty());
        let separator = if rest.ends_with('/') { "" } else { "/" };
        let named = if names_cluster { text.to_owned() } else { format!("{text}{separator}{cluster}") };
        return named.parse().map_err(|error| problem(&format!("{error}")));
    }
    if text.contains("://") {
        return Err(problem(
            "not supported: high availability through Redis or Kubernetes; use `host:port` or \
             `etcd://host:2379`",
        ));
    }
    match text.parse() {
        Ok(address @ Address::Tcp { port: 1.., .. }) => Ok(address.into()),
        _ => Err(problem("it must be `host:port` or `etcd://host:2379`")),
    }
}

async fn find_name(text: &str) -> Result<Name, Failure> {
    let problem =
        |why: String| Failure::new(codes::INVALID_PARAMS, format!("local_hostname is `{text}`: {why}"));
    let (host, port) = match text.parse() {
        Ok(Address::Tcp { host, port }) => (host, Some(port).filter(|it| *it > 0)),
        _ => (text.trim_matches(['[', ']']).to_owned(), None),
    };
    let found = match host.as_str() {
        "" => return Err(problem("it is empty".to_owned())),
        // Both address families reach it, whichever the resolver returns first.
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        name => match timeout(CONNECT_TIME, lookup_host((name, 0))).await {
            Ok(Ok(mut found)) => match found.next() {
                Some(found) => found.ip(),
                None => return Err(problem("that host has no address".to_owned())),
            },
            Ok(Err(error)) => return Err(problem(error.to_string())),
            Err(_) => return Err(problem("the resolver does not answer".to_owned())),
        },
    };
    Ok(Name { host, ip: found, port })
}

/// Checks that an HTTP metadata server answers. Nothing is stored there, so other addresses are not checked.
async fn check_metadata(server: &str) -> Result<(), Failure> {
    let Some(rest) = server.strip_prefix("http://") else { return Ok(()) };
    let (authority, path) = match rest.split_once('/') {
        Some((authority, path)) => (authority, path),
        None => (rest, ""),
    };
    let address = if authority.contains(':') { authority.to_owned() } else { format!("{authority}:80") };
    let answer = timeout(METADATA_TIME, ask_metadata(&address, authority, path)).await;
    let why = match answer {
        Ok(Ok(true)) => return Ok(()),
        Ok(Ok(false)) => "it is not an HTTP server".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "it does not answer".to_owned(),
    };
    let hint = "start `mooncake_http_metadata_server`, or name `P2PHANDSHAKE`, which needs no server";
    let what = format!("cannot use the metadata server at {address}: {why}\n\nhint: {hint}");
    Err(Failure::new(codes::INTERNAL_ERROR, what))
}

async fn ask_metadata(address: &str, authority: &str, path: &str) -> io::Result<bool> {
    let mut stream = TcpStream::connect(address).await?;
    let query = if path.contains('?') { "" } else { "?key=tiffin" };
    let request = format!("GET /{path}{query} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut start = [0; 5];
    stream.read_exact(&mut start).await?;
    Ok(&start == b"HTTP/")
}

/// The settings that all nodes of a store share: everything but names, ports and memory.
fn site(settings: &Settings, name: &Name, master: &Masters, hostname: String) -> Site {
    let environment = &settings.environment;
    let config = NodeConfig {
        master: master.clone(),
        shared_memory: environment.node_shared_memory,
        token: environment.token.clone(),
        access_file: environment.access_file.clone(),
        tls: environment.tls.clone(),
        exposed: environment.node_listen.is_some(),
        advertise: environment.node_listen.map(|_| name.ip.to_string()).filter(|_| !name.ip.is_unspecified()),
        ..NodeConfig::default()
    };
    Site { hostname, ip: listen_ip(name, environment), config }
}

/// The address on which the nodes and pages of this process listen: without a token the loopback address,
/// unless the environment names another.
fn listen_ip(name: &Name, environment: &Environment) -> IpAddr {
    match environment.node_listen {
        Some(ip) => ip,
        None if !environment.token.is_empty() || name.ip.is_loopback() => name.ip,
        None if name.ip.is_ipv4() => Ipv4Addr::LOCALHOST.into(),
        None => Ipv6Addr::LOCALHOST.into(),
    }
}

async fn start_node(
    settings: &Settings,
    name: &Name,
    master: &Masters,
    ssd: Vec<SsdConfig>,
) -> Result<(NodeServer, String), Failure> {
    let environment = &settings.environment;
    let ip = listen_ip(name, environment);
    if ip != name.ip && ip.is_loopback() {
        tell(&format!(
            "warning: the segment listens on {ip}, not on {0}, because TIFFIN_TOKEN is not set: clients on \
             other machines cannot reach it; hint: set TIFFIN_TOKEN for every client and the master, or \
             TIFFIN_NODE_LISTEN={0} to let any process use it",
            name.ip
        ));
    } else if !ip.is_loopback() && environment.token.is_empty() {
        tell(&format!(
            "warning: {ip} can be reached from other machines, and without TIFFIN_TOKEN any process may use \
             it"
        ));
    }
    let mut last = None;
    for port in ports(name, environment)? {
        let config = NodeConfig {
            memory: settings.segment_bytes,
            name: name.with(port),
            listen: Some(Address::Tcp { host: ip.to_string(), port }),
            ssd: ssd.clone(),
            ..site(settings, name, master, String::new()).config
        };
        match start_when_free(config).await {
            Ok(node) => return Ok((node, name.with(port))),
            Err(error @ StartError::Listen(_)) => last = Some(error),
            Err(error) => return Err(Failure::new(codes::INVALID_PARAMS, error.to_string())),
        }
    }
    let why = last.map_or_else(|| "no port was tried".to_owned(), |error| error.to_string());
    Err(Failure::new(name.code(), why))
}

/// Starts a node. A store of this process that was just closed may still use the directory of its disk.
async fn start_when_free(config: NodeConfig) -> Result<NodeServer, StartError> {
    let deadline = tokio::time::Instant::now() + DISK_TIME;
    loop {
        match NodeServer::start(config.clone()).await {
            Err(StartError::DiskInUse(_)) if tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(DISK_REST).await;
            }
            other => return other,
        }
    }
}

/// A port for this client, bound but not listening.
fn own_port(name: &Name, environment: &Environment) -> Result<(u16, TcpSocket), Failure> {
    for port in ports(name, environment)? {
        let socket = if name.ip.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
        if let Ok(socket) = socket
            && socket.bind(SocketAddr::new(name.ip, port)).is_ok()
        {
            return Ok((port, socket));
        }
    }
    let (first, last) = environment.ports;
    let what = format!("no port between {first} and {last} is free on {}", name.ip);
    Err(Failure::new(codes::INTERNAL_ERROR, what))
}

/// The ports to try: the requested one, or some of the range, from a random start.
fn ports(name: &Name, environment: &Environment) -> Result<Vec<u16>, Failure> {
    if let Some(port) = name.port {
        return Ok(vec![port]);
    }
    let drawn = host::draw();
    let drawn = drawn.map_err(|error| {
        Failure::new(codes::INTERNAL_ERROR, format!("cannot get a random number: {error}"))
    })?;
    let (first, last) = environment.ports;
    let count = u64::from(last - first) + 1;
    let tries = u64::from(environment.port_tries).min(count);
    // A stride that visits every port of the range spreads clients that start at the same moment.
    let port = |step: u64| first + ((drawn % count + step * 7919) % count) as u16;
    Ok((0..tries).map(port).collect())
}
