//! The processes of the test: three members of etcd, three masters, two nodes.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, kill_process};
use tempfile::TempDir;
use tiffin_client::{ConnectOptions, EtcdAccess};
use tiffin_etcd::Etcd;
use tiffin_etcd::leader::Keys;
use tiffin_tls::ca;
use tokio::time::{Instant, sleep};

pub(crate) use rustix::process::Signal;

use crate::users;

const CLUSTER: &str = "ha-test";
const TIME_MAX: Duration = Duration::from_secs(60);
/// How long certificates are valid.
const VALID: Duration = Duration::from_secs(86_400);

/// A child that is killed at the end.
pub(crate) struct Process {
    child: Child,
    command: Vec<String>,
    address: String,
    log: PathBuf,
}

pub(crate) struct Cluster {
    pub(crate) etcd: Vec<Process>,
    pub(crate) masters: Vec<Process>,
    _nodes: Vec<Process>,
    client: Etcd,
    access: EtcdAccess,
    folder: TempDir,
}

/// Whether etcd requires TLS, certificates of its clients and users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    None,
    Full,
}

impl Process {
    fn start(command: Vec<String>, address: String, log: PathBuf) -> Self {
        let child = spawn(&command, &log);
        Self { child, command, address, log }
    }

    pub(crate) fn address(&self) -> String {
        self.address.clone()
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        if signal == Signal::KILL || signal == Signal::TERM {
            self.child.wait().unwrap();
        }
    }

    fn restart(&mut self) {
        self.child = spawn(&self.command, &self.log);
    }

    /// Waits for the line that says it is up.
    fn is_up(&mut self) {
        let mut line = String::new();
        BufReader::new(self.child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let log = || std::fs::read_to_string(&self.log).unwrap_or_default();
        assert!(!line.is_empty(), "{:?} did not start: {}", self.command, log());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Only a process that was not waited for is still ours.
        if let Ok(None) = self.child.try_wait() {
            let _gone = self.child.kill();
            let _gone = self.child.wait();
        }
    }
}

impl Cluster {
    pub(crate) async fn start(program: &str, protection: Protection) -> Self {
        let folder = TempDir::new().unwrap();
        let is_open = protection == Protection::None;
        let access = if is_open { EtcdAccess::default() } else { protect(folder.path()) };
        let scheme = if is_open { "http" } else { "https" };
        let ports: Vec<_> = (0..3).map(|_| (free_port(), free_port())).collect();
        let peers = ports.iter().enumerate();
        let peers = peers.map(|(n, (_, port))| format!("e{n}=http://127.0.0.1:{port}"));
        let peers = peers.collect::<Vec<_>>().join(",");
        let member = |(n, (port, peer)): (usize, &(u16, u16))| {
            let (url, peer) = (format!("{scheme}://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer}"));
            let data = folder.path().join(format!("etcd{n}")).to_string_lossy().into_owned();
            let command = [
                ("etcd", ""),
                ("--name", &format!("e{n}")),
                ("--data-dir", &data),
                ("--listen-client-urls", &url),
                ("--advertise-client-urls", &url),
                ("--listen-peer-urls", &peer),
                ("--initial-advertise-peer-urls", &peer),
                ("--initial-cluster", &peers),
                ("--logger", "zap"),
                ("--log-level", "warn"),
            ];
            let mut command = words(&command);
            if !is_open {
                let path = |name: &str| folder.path().join("certs").join(name).to_string_lossy().into_owned();
                command.extend(words(&[
                    ("--cert-file", &path(ca::SERVER_CERT)),
                    ("--key-file", &path(ca::SERVER_KEY)),
                    ("--trusted-ca-file", &path(ca::CA_CERT)),
                    ("--client-cert-auth", ""),
                ]));
            }
            Process::start(command, format!("127.0.0.1:{port}"), folder.path().join(format!("e{n}.log")))
        };
        let etcd: Vec<_> = ports.iter().enumerate().map(member).collect();
        let endpoints = etcd.iter().map(Process::address).collect::<Vec<_>>().join(",");
        let deadline = Instant::now() + TIME_MAX;
        let before = EtcdAccess { credentials: None, ..access.clone() };
        let client = Etcd::open(&endpoints, &before).unwrap();
        client.leader(&Keys::new(CLUSTER).unwrap(), deadline).await.expect("etcd is up");
        if !is_open {
            users::require(&etcd[0].address, &access).await;
        }
        let client = Etcd::open(&endpoints, &access).unwrap();
        client.leader(&Keys::new(CLUSTER).unwrap(), deadline).await.expect("etcd lets its user in");
        let flags = flags(&access);
        let mut masters = Vec::new();
        for n in 0..3 {
            let address = format!("127.0.0.1:{}", free_port());
            let command = [
                (program, "master"),
                ("--json", ""),
                ("--listen", &address),
                ("--http", "off"),
                ("--etcd", &endpoints),
                ("--cluster", CLUSTER),
            ];
            let log = folder.path().join(format!("master{n}.log"));
            let command = [words(&command), flags.clone()].concat();
            masters.push(Process::start(command, address.clone(), log));
            masters.last_mut().unwrap().is_up();
        }
        let list = masters.iter().map(Process::address).collect::<Vec<_>>().join(",");
        let mut nodes = Vec::new();
        for (n, master) in [format!("etcd://{endpoints}/{CLUSTER}"), list].iter().enumerate() {
            let command = [
                (program, "node"),
                ("--json", ""),
                ("--master", master),
                ("--memory", "256MiB"),
                ("--name", &format!("node{n}")),
            ];
            nodes.push(Process::start(
                [words(&command), flags.clone()].concat(),
                String::new(),
                folder.path().join(format!("node{n}.log")),
            ));
            nodes.last_mut().unwrap().is_up();
        }
        Self { etcd, masters, _nodes: nodes, client, access, folder }
    }

    /// How a client connects to these masters.
    pub(crate) fn options(&self, masters: String) -> ConnectOptions {
        ConnectOptions { etcd: self.access.clone(), ..ConnectOptions::new(masters) }
    }

    /// Starts a master that trusts another CA, and waits until its log says so.
    pub(crate) async fn distrust(&self, program: &str) {
        let other = self.folder.path().join("others");
        ca::create(&other, &["127.0.0.1".to_owned()], VALID).unwrap();
        let ca = Some(other.join(ca::CA_CERT));
        let log = self.folder.path().join("stranger.log");
        let endpoints = self.client.endpoints();
        let command = words(&[
            (program, "master"),
            ("--listen", "127.0.0.1:0"),
            ("--http", "off"),
            ("--etcd", &endpoints),
            ("--cluster", CLUSTER),
        ]);
        let command = [command, flags(&EtcdAccess { ca, ..self.access.clone() })].concat();
        let _stranger = Process::start(command, String::new(), log.clone());
        let deadline = Instant::now() + TIME_MAX;
        let expected = "its certificate is not signed by a CA that this process trusts";
        while !std::fs::read_to_string(&log).unwrap().contains(expected) {
            assert!(Instant::now() < deadline, "{}", std::fs::read_to_string(&log).unwrap());
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// All masters, as a client is given them.
    pub(crate) fn list(&self) -> String {
        self.masters.iter().map(Process::address).collect::<Vec<_>>().join(",")
    }

    /// The same through etcd.
    pub(crate) fn url(&self) -> String {
        format!("etcd://{}/{CLUSTER}", self.client.endpoints())
    }

    /// The index of the leader and its epoch.
    pub(crate) async fn leader(&self) -> Option<(usize, u64)> {
        let keys = Keys::new(CLUSTER).unwrap();
        let found = self.client.leader(&keys, Instant::now() + Duration::from_secs(5)).await;
        let (leader, _) = found.ok().flatten()?;
        let index = self.masters.iter().position(|it| leader.addresses.contains(&it.address))?;
        Some((index, leader.epoch))
    }

    pub(crate) async fn await_leader(&self) -> (usize, u64) {
        let deadline = Instant::now() + TIME_MAX;
        loop {
            if let Some(leader) = self.leader().await {
                return leader;
            }
            assert!(Instant::now() < deadline, "no master leads");
            sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn restart_master(&mut self, index: usize) {
        self.masters[index].restart();
        self.masters[index].is_up();
    }

    pub(crate) fn restart_etcd(&mut self, index: usize) {
        self.etcd[index].restart();
    }

    /// Logs of all processes, for a failure.
    pub(crate) fn logs(&self) -> String {
        let entries = std::fs::read_dir(self.folder.path()).unwrap().flatten();
        let logs = entries.filter(|it| it.path().extension().is_some_and(|it| it == "log"));
        let shown = logs.map(|it| {
            format!("--- {}\n{}", it.path().display(), std::fs::read_to_string(it.path()).unwrap_or_default())
        });
        shown.collect()
    }
}

/// Makes certificates and a password.
fn protect(folder: &Path) -> EtcdAccess {
    let certs = folder.join("certs");
    ca::create(&certs, &["127.0.0.1".to_owned()], VALID).unwrap();
    let credentials = folder.join("credentials");
    std::fs::write(&credentials, format!("{}:{}", users::NAME, users::PASSWORD)).unwrap();
    EtcdAccess {
        ca: Some(certs.join(ca::CA_CERT)),
        cert: Some(certs.join(ca::CLIENT_CERT)),
        key: Some(certs.join(ca::CLIENT_KEY)),
        credentials: Some(credentials),
    }
}

/// The flags for these files.
fn flags(access: &EtcdAccess) -> Vec<String> {
    let EtcdAccess { ca, cert, key, credentials } = access;
    let named = [
        ("--etcd-ca", ca),
        ("--etcd-cert", cert),
        ("--etcd-key", key),
        ("--etcd-credentials-file", credentials),
    ];
    let given = named
        .iter()
        .filter_map(|(flag, path)| Some([(*flag).to_owned(), path.as_ref()?.display().to_string()]));
    given.flatten().collect()
}

fn words(pairs: &[(&str, &str)]) -> Vec<String> {
    let words = pairs.iter().flat_map(|(first, second)| [*first, *second]);
    words.filter(|it| !it.is_empty()).map(str::to_owned).collect()
}

fn spawn(command: &[String], log: &PathBuf) -> Child {
    let log = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
    let mut child = Command::new(&command[0]);
    child.args(&command[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    child.spawn().unwrap_or_else(|error| panic!("`{}`: {error}; run `make test-ha`", command[0]))
}

/// A port that is free now. etcd cannot be told to take any and say which.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
