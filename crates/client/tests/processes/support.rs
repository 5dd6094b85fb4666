//! Child processes, servers, and shared helpers.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tiffin_client::{Client, ConnectOptions};
use tiffin_server::{MasterConfig, MasterServer, NodeConfig, NodeServer};
use tokio::time::Instant;

pub(crate) use crate::common::{LONG, LOOK, eventually, key, only, soon};

pub(crate) const MEMORY: u64 = 16 << 20;

/// Length of objects for which memory is preallocated.
pub(crate) const SMALL: u64 = 16 << 10;

/// A child process, killed when dropped.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::wrapped(&[], arguments)
    }

    /// The same, started by another program.
    pub(crate) fn wrapped(by: &[&str], arguments: &[&str]) -> Self {
        let own = env::current_exe().unwrap();
        let mut command = match by {
            [] => Command::new(own),
            [program, rest @ ..] => {
                let mut command = Command::new(program);
                command.args(rest).arg(own);
                command
            }
        };
        let child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = Self(child.unwrap());
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "{arguments:?} did not start");
        process
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }

    pub(crate) fn kill(self) {
        drop(self);
    }

    /// Stops all its threads, and returns when they have stopped.
    pub(crate) fn stop(&self) {
        kill_process(Pid::from_child(&self.0), Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(Pid::from_child(&self.0)), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    pub(crate) fn go_on(&self) {
        kill_process(Pid::from_child(&self.0), Signal::CONT).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

pub(crate) async fn start_master() -> MasterServer {
    // Resources of a process end because the kernel proves its death.
    let config = MasterConfig { lease_grace: Duration::from_secs(3600), ..MasterConfig::default() };
    MasterServer::start(config).await.unwrap()
}

pub(crate) async fn start_both() -> (MasterServer, NodeServer) {
    let master = start_master().await;
    let config =
        NodeConfig { master: master.address().clone().into(), memory: MEMORY, ..NodeConfig::default() };
    let node = NodeServer::start(config).await.unwrap();
    node.joined(Instant::now() + LONG).await.unwrap();
    (master, node)
}

pub(crate) async fn connect(master: &MasterServer, shared_memory: bool) -> Client {
    let options = ConnectOptions::new(master.address().to_string());
    Client::connect(ConnectOptions { shared_memory, ..options }).await.unwrap()
}

pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ (at >> 8)) as u8).collect()
}

/// The bytes of one small object.
pub(crate) fn small(number: usize) -> Vec<u8> {
    (0..SMALL as usize).map(|at| (at ^ (at >> 8) ^ number.wrapping_mul(113)) as u8).collect()
}

/// The bytes of one put of one key.
pub(crate) fn content_of(it: usize, put: usize) -> Vec<u8> {
    (0..96 << 10)
        .map(|at: usize| (at.wrapping_mul(31) ^ (at >> 8) ^ it.wrapping_mul(97) ^ put) as u8)
        .collect()
}
