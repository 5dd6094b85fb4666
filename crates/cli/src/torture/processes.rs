//! The processes of a torture run: master, nodes, readers and writers.
//!
//! **Invariant:** only processes that were started here are ended here, each by its own handle; and none
//! outlives its parent.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::tally::Tally;
use super::worker::{Role, Worker};
use crate::Context;
use crate::console::Failure;

/// Time limit for the start of a server.
const START_TIME_MAX: Duration = Duration::from_secs(30);
/// Time limit for the end of a worker.
const STOP_TIME_MAX: Duration = Duration::from_secs(30);

/// How children are started: this program, without our settings except those passed explicitly.
#[derive(Debug)]
pub(crate) struct Program {
    path: OsString,
    token: String,
}

impl Program {
    /// The running program, for children with this token.
    pub(crate) fn own(context: &Context, token: String) -> Self {
        // In the Python wheel the running program is the interpreter, so the command's own name is used.
        let ours = std::env::current_exe().ok().filter(|it| it.file_stem() == Some(OsStr::new("tiffin")));
        let path = ours.map_or_else(|| context.program.clone(), PathBuf::into_os_string);
        Self { path, token }
    }

    /// The command for a child.
    pub(crate) fn command(&self) -> Command {
        let mut command = self.wrapped(&[]);
        command.args(["--json", "--with-parent", "--log-level", "off"]);
        command
    }

    /// The command for a child without arguments, started by another program.
    pub(crate) fn wrapped(&self, by: &[&str]) -> Command {
        let mut command = match by {
            [] => Command::new(&self.path),
            [program, args @ ..] => {
                let mut command = Command::new(program);
                command.args(args).arg(&self.path);
                command
            }
        };
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"TIFFIN_"))
        {
            command.env_remove(name);
        }
        if !self.token.is_empty() {
            command.env("TIFFIN_TOKEN", &self.token);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        command
    }

    pub(crate) fn spawn(&self, command: &mut Command) -> Result<Child, Failure> {
        let what = self.path.to_string_lossy();
        let fail = |error| Failure::new("system", format!("cannot start `{what}`: {error}"));
        command.spawn().map_err(|error| fail(error).hint("call `tiffin` by the path of its binary"))
    }
}

/// A master or a node.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    args: Vec<OsString>,
    /// The first line of its output.
    pub(crate) ready: Value,
    // Keeps the pipe open; a server that cannot write would end.
    _output: Lines<BufReader<ChildStdout>>,
}

impl Server {
    /// Starts a server, and waits until it is up.
    pub(crate) async fn start(
        program: &Program,
        args: impl IntoIterator<Item = impl Into<OsString>>,
    ) -> Result<Self, Failure> {
        let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
        let mut child = program.spawn(program.command().args(&args))?;
        let stdout = child
            .stdout
            .take()
            .ok_or_else(|| Failure::new("internal", "a child process has no output pipe"))?;
        let mut output = BufReader::new(stdout).lines();
        let first = timeout(START_TIME_MAX, output.next_line()).await;
        let line = first.ok().and_then(Result::ok).flatten().unwrap_or_default();
        let ready = serde_json::from_str(&line).map_err(|_| {
            let name = args.first().map(|it| it.to_string_lossy().into_owned()).unwrap_or_default();
            Failure::new("system", format!("the {name} of the torture run did not start"))
                .hint("run `tiffin doctor`")
        })?;
        Ok(Self { child, args, ready, _output: output })
    }

    /// Kills the server, and starts it again with the same arguments.
    pub(crate) async fn kill_and_restart(&mut self, program: &Program) -> Result<(), Failure> {
        self.child.kill().await?;
        *self = Self::start(program, self.args.clone()).await?;
        Ok(())
    }
}

/// A reader or a writer.
#[derive(Debug)]
pub(crate) struct WorkerProcess {
    pub(crate) worker: Worker,
    child: Child,
    input: Option<ChildStdin>,
}

impl WorkerProcess {
    /// Starts a worker that sends its counts to `tallies`.
    pub(crate) fn start(
        program: &Program,
        worker: Worker,
        tallies: &mpsc::UnboundedSender<Tally>,
    ) -> Result<Self, Failure> {
        let mut command = program.command();
        command.arg("torture-worker").args(arguments(&worker)).stdin(Stdio::piped());
        let mut child = program.spawn(&mut command)?;
        let (input, stdout) = (child.stdin.take(), child.stdout.take());
        let tallies = tallies.clone();
        if let Some(stdout) = stdout {
            tokio::spawn(async move {
                let mut lines = BufReader::new(stdout).lines();
                while let Ok(Some(line)) = lines.next_line().await {
                    // A killed worker may leave an incomplete line.
                    if let Ok(tally) = serde_json::from_str(&line) {
                        let _over = tallies.send(tally);
                    }
                }
            });
        }
        Ok(Self { worker, child, input })
    }

    /// Kills the worker, and starts it again.
    pub(crate) async fn kill_and_restart(
        &mut self,
        program: &Program,
        tallies: &mpsc::UnboundedSender<Tally>,
    ) -> Result<(), Failure> {
        self.child.kill().await?;
        let worker = Worker { restarts: self.worker.restarts + 1, ..self.worker.clone() };
        *self = Self::start(program, worker, tallies)?;
        Ok(())
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // It is our child and not reaped yet, so its pid is not reused.
            let _gone = kill_process(pid, signal);
        }
    }

    /// Fails if the worker has ended.
    pub(crate) fn check(&mut self) -> Result<(), Failure> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(self.ended(&status.to_string())),
        }
    }

    /// Stops the worker, and waits for its end.
    pub(crate) async fn stop(mut self) -> Result<(), Failure> {
        self.input = None;
        match timeout(STOP_TIME_MAX, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(self.ended(&status.to_string())),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(self.ended("no answer to the request to stop")),
        }
    }

    fn ended(&self, how: &str) -> Failure {
        let role = if self.worker.role == Role::Reader { "reader" } else { "writer" };
        let message = format!("{role} {} of the torture run ended unexpectedly: {how}", self.worker.index);
        Failure::new("torture", message).hint("see its output above; run again with the same `--seed`")
    }
}

/// The arguments of a worker process.
fn arguments(worker: &Worker) -> Vec<String> {
    let role = if worker.role == Role::Reader { "reader" } else { "writer" };
    let mut arguments = vec![format!("--role={role}")];
    for (name, number) in [
        ("index", worker.index),
        ("restarts", worker.restarts),
        ("writers", worker.writers),
        ("keys", worker.keys),
        ("seed", worker.seed),
    ] {
        arguments.push(format!("--{name}={number}"));
    }
    arguments.push(format!("--address={}", worker.address));
    arguments.push(format!("--namespace={}", worker.namespace));
    let mutant = worker.mutant.as_ref().and_then(ValueEnum::to_possible_value);
    arguments.extend(mutant.map(|it| format!("--mutant={}", it.get_name())));
    arguments
}
