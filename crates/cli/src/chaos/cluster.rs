//! The store of a chaos run: a master, nodes with disks, and the networks between them, in one folder.
//!
//! **Invariant:** only processes that were started here are ended here, each by its own handle; and none
//! outlives its parent.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use super::proxy::{Network, Proxy};
use super::record::NODES;
use crate::console::Failure;
use crate::torture::Program;

/// Time limit for the start of a server.
const START_TIME_MAX: Duration = Duration::from_secs(60);
/// Files larger than this cannot be written while a disk is full. The log of a disk is larger.
const FULL_FILE_BYTES: u64 = 1 << 20;
/// A server with a shifted clock is this far ahead of the others.
const CLOCK_SHIFT_SECONDS: &str = "86400";
/// Ignores the signal of a file that grows beyond the limit, so that the write fails instead.
const SHELL: [&str; 3] = ["sh", "-c", "trap '' XFSZ; exec \"$0\" \"$@\""];

/// How a server is started again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Clock {
    /// With the clock of the machine.
    #[default]
    Normal,
    /// With a monotonic clock that is a day ahead, in a time namespace.
    Ahead,
}

/// A master or a node.
struct Server {
    child: Child,
    ready: Value,
    // Keeps the pipe open; a server that cannot write would end.
    _output: Lines<BufReader<ChildStdout>>,
}

/// One node.
struct Node {
    name: &'static str,
    server: Option<Server>,
    /// Control and data ports, the same after a restart.
    ports: Option<(u16, u16)>,
    /// From the node to the master.
    to_master: Option<Proxy>,
    /// From clients to the node: control and data.
    from_clients: Vec<Proxy>,
}

/// The store under test.
pub(crate) struct Cluster {
    program: Program,
    folder: PathBuf,
    /// Where the memory of nodes outlives their processes, if there is such a place.
    pools: Option<PathBuf>,
    memory: u64,
    away: Duration,
    master: Option<Server>,
    /// Address of the master, the same after a restart.
    pub(crate) address: SocketAddr,
    nodes: Vec<Node>,
    /// From each far client to the master.
    pub(crate) client_networks: Vec<Proxy>,
}

impl Cluster {
    /// Starts all servers.
    pub(crate) async fn start(
        program: Program,
        folder: &Path,
        pools: Option<&Path>,
        (memory, far_clients): (u64, usize),
        away: Duration,
    ) -> Result<Self, Failure> {
        let nodes = NODES.iter().map(|&name| Node {
            name,
            server: None,
            ports: None,
            to_master: None,
            from_clients: Vec::new(),
        });
        let mut cluster = Self {
            program,
            folder: folder.to_owned(),
            pools: pools.map(Path::to_owned),
            memory,
            away,
            master: None,
            address: loopback(1, 0),
            nodes: nodes.collect(),
            client_networks: Vec::new(),
        };
        cluster.start_master(Clock::Normal).await?;
        for _ in 0..far_clients {
            let proxy = Proxy::start(loopback(1, 0), cluster.address).await?;
            cluster.client_networks.push(proxy);
        }
        for index in 0..NODES.len() {
            cluster.start_node(index, Clock::Normal).await?;
        }
        Ok(cluster)
    }

    /// Whether the memory of a node outlives its process: such a node names its pool when it starts.
    pub(crate) fn keeps_memory(&self, node: usize) -> bool {
        let ready = self.nodes.get(node).and_then(|it| it.server.as_ref()).map(|it| &it.ready);
        ready.and_then(|it| it.get("pool")).is_some_and(|it| !it.is_null())
    }

    /// Why clocks cannot be shifted here; `None` if they can.
    pub(crate) async fn clock_problem() -> Option<String> {
        let mut command = Command::new("unshare");
        command.args(["-T", "--monotonic", CLOCK_SHIFT_SECONDS, "true"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        match command.output().await {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Some(format!("unshare: {error}")),
        }
    }

    pub(crate) async fn start_master(&mut self, clock: Clock) -> Result<(), Failure> {
        let state = self.folder.join("state").to_string_lossy().into_owned();
        let listen = self.address.to_string();
        let away = format!("{}ms", self.away.as_millis());
        let args = ["master", "--listen", &listen, "--http", "off", "--metadata-http", "off", "--state-dir"];
        let times = ["--silence", "1s", "--away", &away, "--disk-away", &away, "--lease-grace", "1s"];
        let args = args.iter().chain([&state.as_str()]).chain(&times).copied().collect::<Vec<_>>();
        let server = self.spawn("master", &args, clock).await?;
        let address = server.ready.get("master").and_then(Value::as_str).and_then(|it| it.parse().ok());
        self.address = address.ok_or_else(|| Failure::new("internal", "the master names no address"))?;
        self.master = Some(server);
        Ok(())
    }

    pub(crate) async fn start_node(&mut self, index: usize, clock: Clock) -> Result<(), Failure> {
        let is_far = index > 0;
        let (memory, address) = (format!("{}B", self.memory), self.address);
        let disk = format!("path={},size=64MiB", self.disk(index).display());
        let pool =
            self.pools.as_ref().map(|it| it.join(format!("node-{index}")).to_string_lossy().into_owned());
        let unknown = || Failure::new("internal", "unknown node");
        let node = self.nodes.get_mut(index).ok_or_else(unknown)?;
        if is_far && node.to_master.is_none() {
            node.to_master = Some(Proxy::start(loopback(1, 0), address).await?);
        }
        let (control, data) = node.ports.unwrap_or_default();
        let (listen, data_listen) = (loopback(1, control).to_string(), loopback(1, data).to_string());
        let master = node.to_master.as_ref().map_or(address, |it| it.address).to_string();
        // Other parties reach the node through proxies with the same ports at another loopback address.
        let advertised = loopback(10 + index as u8, 0).ip().to_string();
        let mut args = vec!["node", "--master", &master, "--name", node.name, "--memory", &memory];
        args.extend([
            "--pool",
            pool.as_deref().unwrap_or("off"),
            "--ssd",
            &disk,
            "--populate",
            "off",
            "--listen",
            &listen,
            "--data-listen",
            &data_listen,
        ]);
        if is_far {
            args.extend(["--shared-memory", "off", "--advertise", &advertised]);
        }
        let name = node.name;
        let server = self.spawn(name, &args, clock).await?;
        let port = |name: &str| {
            let text = server.ready.get(name).and_then(Value::as_str)?;
            text.rsplit_once(':')?.1.parse::<u16>().ok()
        };
        let ports = port("tcp").zip(port("data")).ok_or_else(|| Failure::new("internal", "no ports"))?;
        let node = self.nodes.get_mut(index).ok_or_else(unknown)?;
        if is_far && node.from_clients.is_empty() {
            for port in [ports.0, ports.1] {
                let proxy = Proxy::start(loopback(10 + index as u8, port), loopback(1, port)).await?;
                node.from_clients.push(proxy);
            }
        }
        node.ports = Some(ports);
        node.server = Some(server);
        Ok(())
    }

    /// Starts a server, and waits until it is up.
    async fn spawn(&self, name: &str, args: &[&str], clock: Clock) -> Result<Server, Failure> {
        let shifted = ["unshare", "-T", "--monotonic", CLOCK_SHIFT_SECONDS];
        let shift = if clock == Clock::Ahead { &shifted[..] } else { &[] };
        let wrapper: Vec<&str> = shift.iter().chain(&SHELL).copied().collect();
        let path = self.log(name);
        let log = File::options().create(true).append(true).open(&path);
        let log = log.map_err(|error| Failure::file("write the log", &path, &error))?;
        let mut command = self.program.wrapped(&wrapper);
        command.args(args).args(["--json", "--with-parent", "--log-level", "info"]).stderr(log);
        let mut child = self.program.spawn(&mut command)?;
        let stdout = child.stdout.take().ok_or_else(|| Failure::new("internal", "no output pipe"))?;
        let mut output = BufReader::new(stdout).lines();
        let first = timeout(START_TIME_MAX, output.next_line()).await;
        let line = first.ok().and_then(Result::ok).flatten().unwrap_or_default();
        let ready = serde_json::from_str(&line).map_err(|_| {
            Failure::new("system", format!("`{name}` of the chaos run did not start"))
                .hint(format!("see `{}`, or run `tiffin doctor`", path.display()))
        })?;
        Ok(Server { child, ready, _output: output })
    }

    fn disk(&self, node: usize) -> PathBuf {
        self.folder.join(format!("disk-{node}"))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    /// Kills the master, and waits for its end.
    pub(crate) async fn kill_master(&mut self) -> Result<(), Failure> {
        kill(&mut self.master).await
    }

    /// Kills a node, and waits for its end.
    pub(crate) async fn kill_node(&mut self, node: usize) -> Result<(), Failure> {
        match self.nodes.get_mut(node) {
            Some(node) => kill(&mut node.server).await,
            None => Ok(()),
        }
    }

    /// Deletes the state folder of the master, which must not run.
    pub(crate) fn delete_state(&self) -> Result<(), Failure> {
        remove(&self.folder.join("state"))
    }

    /// Deletes the disk of a node, which must not run.
    pub(crate) fn delete_disk(&self, node: usize) -> Result<(), Failure> {
        remove(&self.disk(node))
    }

    pub(crate) fn signal_master(&self, signal: Signal) {
        send(self.master.as_ref(), signal);
    }

    pub(crate) fn signal_node(&self, node: usize, signal: Signal) {
        send(self.nodes.get(node).and_then(|it| it.server.as_ref()), signal);
    }

    /// Lets writes of the master fail as on a full disk, or not any more.
    pub(crate) fn fill_master(&self, is_full: bool) -> Result<(), Failure> {
        // The state of the master is small.
        limit_files(self.master.as_ref(), is_full.then_some(0))
    }

    /// The same for a node.
    pub(crate) fn fill_node(&self, node: usize, is_full: bool) -> Result<(), Failure> {
        let server = self.nodes.get(node).and_then(|it| it.server.as_ref());
        limit_files(server, is_full.then_some(FULL_FILE_BYTES))
    }

    /// Changes the network between a node and the master.
    pub(crate) fn set_master_network(&self, node: usize, network: Network) {
        if let Some(proxy) = self.nodes.get(node).and_then(|it| it.to_master.as_ref()) {
            proxy.set(network);
        }
    }

    /// Changes the network between a node and all clients.
    pub(crate) fn set_clients_network(&self, node: usize, network: Network) {
        for proxy in self.nodes.get(node).into_iter().flat_map(|it| &it.from_clients) {
            proxy.set(network);
        }
    }
}

/// An address of this machine: 127.0.0.1, or one that proxies use.
fn loopback(host: u8, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, host)), port)
}

fn remove(path: &Path) -> Result<(), Failure> {
    std::fs::remove_dir_all(path).map_err(|error| Failure::file("remove", path, &error))
}

async fn kill(server: &mut Option<Server>) -> Result<(), Failure> {
    if let Some(mut server) = server.take() {
        server.child.kill().await?;
    }
    Ok(())
}

/// The process of a child. It is not reaped yet, so its pid is not reused.
pub(super) fn pid_of(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}

fn send(server: Option<&Server>, signal: Signal) {
    if let Some(pid) = server.and_then(|it| pid_of(&it.child)) {
        let _gone = kill_process(pid, signal);
    }
}

fn limit_files(server: Option<&Server>, bytes: Option<u64>) -> Result<(), Failure> {
    let Some(pid) = server.and_then(|it| pid_of(&it.child)) else { return Ok(()) };
    let limit = Rlimit { current: bytes, maximum: None };
    match prlimit(Some(pid), Resource::Fsize, limit) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::new("system", format!("cannot limit the files of a server: {error}"))
            .hint("run it as a user without a limit of file sizes (`ulimit -f`)")),
    }
}
