//! The processes of the test: three members of etcd, three masters, two nodes.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, kill_process};
use tempfile::TempDir;
use tiffin_etcd::Etcd;
use tiffin_etcd::leader::Keys;
use tokio::time::{Instant, sleep};

pub(crate) use rustix::process::Signal;

const CLUSTER: &str = "ha-test";
const PATIENCE: Duration = Duration::from_secs(60);

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
    folder: TempDir,
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
    pub(crate) async fn start(program: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let ports: Vec<_> = (0..3).map(|_| (free_port(), free_port())).collect();
        let peers = ports.iter().enumerate();
        let peers = peers.map(|(n, (_, port))| format!("e{n}=http://127.0.0.1:{port}"));
        let peers = peers.collect::<Vec<_>>().join(",");
        let member = |(n, (port, peer)): (usize, &(u16, u16))| {
            let (url, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer}"));
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
            Process::start(
                words(&command),
                format!("127.0.0.1:{port}"),
                folder.path().join(format!("e{n}.log")),
            )
        };
        let etcd: Vec<_> = ports.iter().enumerate().map(member).collect();
        let endpoints = etcd.iter().map(Process::address).collect::<Vec<_>>().join(",");
        let client = Etcd::new(&endpoints).unwrap();
        let deadline = Instant::now() + PATIENCE;
        client.leader(&Keys::new(CLUSTER).unwrap(), deadline).await.expect("etcd is up");
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
            masters.push(Process::start(words(&command), address.clone(), log));
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
                words(&command),
                String::new(),
                folder.path().join(format!("node{n}.log")),
            ));
            nodes.last_mut().unwrap().is_up();
        }
        Self { etcd, masters, _nodes: nodes, client, folder }
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
        let deadline = Instant::now() + PATIENCE;
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
