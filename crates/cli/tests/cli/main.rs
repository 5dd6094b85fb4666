//! Tests of the real binary: its output, its exit status, and its effects on the store.
//!
//! Every server listens on ports that the system chooses and prints them when it is up; nothing sleeps.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail in any line")]

mod bench;
mod certs;
mod chaos;
mod cluster;
mod curve;
mod doctor;
mod files;
mod kv;
mod lifetimes;
mod mistakes;
mod servers;
mod store;
mod tokens;
mod torture;
mod watch;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// The result of a command.
struct Ran {
    status: Option<i32>,
    stdout: Vec<u8>,
    stderr: String,
}

impl Ran {
    /// Its output, if it succeeded.
    #[track_caller]
    fn ok(self) -> Vec<u8> {
        assert_eq!(self.status, Some(0), "{}", self.stderr);
        self.stdout
    }

    /// The same as text.
    #[track_caller]
    fn text(self) -> String {
        String::from_utf8(self.ok()).unwrap()
    }

    /// The same as a JSON value.
    #[track_caller]
    fn json(self) -> Value {
        serde_json::from_slice(&self.ok()).unwrap()
    }

    /// Its error as JSON, if it failed.
    #[track_caller]
    fn error(&self) -> Value {
        assert_eq!(self.status, Some(1), "{}", self.stderr);
        assert!(self.stdout.is_empty(), "{}", self.stderr);
        let error: Value = serde_json::from_str(&self.stderr).expect(&self.stderr);
        error["error"].clone()
    }
}

/// The binary, isolated from the machine's settings.
fn tiffin() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiffin"));
    command.env_clear().env("HOME", env!("CARGO_TARGET_TMPDIR")).stdin(Stdio::null());
    // Named nodes would leave their memory behind, for a next start that never comes.
    command.env("TIFFIN_NODE_POOL", "off");
    command
}

fn ran(mut command: Command, input: &[u8]) -> Ran {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        // A command that does not read its input closes it early.
        scope.spawn(move || drop(stdin.write_all(input)));
        child.wait_with_output().unwrap()
    });
    let stderr = String::from_utf8(output.stderr).unwrap();
    Ran { status: output.status.code(), stdout: output.stdout, stderr }
}

/// A server that runs until it is stopped or dropped.
struct Server {
    child: Child,
    /// The first line of its output.
    ready: Value,
    _folder: TempDir,
}

impl Server {
    /// A store of 32 MiB in one process.
    fn up(more: &[&str]) -> Self {
        let free_ports = ["up", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--memory", "32MiB"];
        Self::start(&[&free_ports, more].concat())
    }

    fn master(more: &[&str]) -> Self {
        Self::start(&[&["master", "--listen", "127.0.0.1:0", "--http", "off"], more].concat())
    }

    fn node(master: &Self, more: &[&str]) -> Self {
        Self::start(&[&["node", "--memory", "32MiB", "--master", master.address()], more].concat())
    }

    fn start(args: &[&str]) -> Self {
        Self::try_start(args).unwrap_or_else(|error| panic!("{args:?}: {error}"))
    }

    fn try_start(args: &[&str]) -> Result<Self, String> {
        let folder = tempfile::tempdir().unwrap();
        let mut command = tiffin();
        command.args(args).args(["--json", "--log-level", "error"]).env("XDG_STATE_HOME", folder.path());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).map_err(|error| format!("{error}: {line}"));
        let mut server = Self { child, ready: Value::Null, _folder: folder };
        server.ready = ready?;
        Ok(server)
    }

    /// Starts a store with the addresses of this one, which has stopped.
    fn again(&self, more: &[&str]) -> Self {
        let addresses = ["--listen", self.address(), "--http", self.ready["http"].as_str().unwrap()];
        let args = [&["up", "--memory", "32MiB"], &addresses[..], more].concat();
        // Another process may use a port for a moment.
        std::iter::repeat_with(|| Self::try_start(&args)).find_map(Result::ok).unwrap()
    }

    /// Address of its master.
    fn address(&self) -> &str {
        self.ready["master"].as_str().unwrap()
    }

    /// Runs a client of this store.
    fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        self.run_with(args, b"")
    }

    /// The same with standard input.
    fn run_with<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>, input: &[u8]) -> Ran {
        ran(self.client(args), input)
    }

    /// The command of a client of this store.
    fn client<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = tiffin();
        command.args(args).env("TIFFIN_MASTER", self.address());
        command
    }

    /// Sends a signal, and waits for the end.
    fn stop(&mut self, signal: Signal) -> ExitStatus {
        send(&self.child, signal);
        self.child.wait().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A server that has stopped already cannot be killed, which is fine.
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

fn send(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().try_into().unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// The text with `G.N` for the N-th generation of a new master, whose first one is random.
fn without_generations(text: &str) -> String {
    let is_part = |it: char| it.is_ascii_digit() || it == '.';
    let (mut masked, mut rest, mut first) = (String::new(), text, None);
    while let Some(at) = rest.find(|it: char| it.is_ascii_digit()) {
        let (before, from) = rest.split_at(at);
        let (word, after) = from.split_at(from.find(|it| !is_part(it)).unwrap_or(from.len()));
        masked.push_str(before);
        match word.split_once('.').and_then(|(epoch, count)| Some((epoch, count.parse::<u64>().ok()?))) {
            Some((epoch, count)) if epoch.len() > 4 => {
                let first = *first.get_or_insert(count);
                masked.push_str(&format!("G.{}", count.wrapping_sub(first) as i64));
            }
            _ => masked.push_str(word),
        }
        rest = after;
    }
    masked + rest
}

fn without_ports(text: &str) -> String {
    let mut parts = text.split("127.0.0.1:");
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        masked.push_str("127.0.0.1:PORT");
        masked.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    masked
}
