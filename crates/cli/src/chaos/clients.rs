//! The client processes of a run, and what all clients have recorded.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::cluster::pid_of;
use super::outcome::Row;
use super::record::{Answer, KeyId, Line, Log, Recorded, Unfinished};
use super::worker::{CALL_TIME, Worker};
use crate::console::Failure;
use crate::torture::Program;

/// Time limit for the end of a client.
const STOP_TIME_MAX: Duration = Duration::from_secs(60);
/// A call that takes this much longer than its deadline is late. Far above what a busy machine adds.
const LATE_TIME: Duration = Duration::from_secs(20);

/// What all clients have recorded.
#[derive(Clone, Default)]
pub(crate) struct Records {
    inner: Arc<Mutex<Recording>>,
    /// Number of calls that have ended, and of clients that are ready.
    ended: Arc<watch::Sender<(u64, u64)>>,
}

#[derive(Default)]
struct Recording {
    log: Log,
    row: Row,
    wrong: Vec<String>,
    /// A client that is stopped, whose calls take as long as that.
    stopped: Option<String>,
}

impl Records {
    fn lock(&self) -> MutexGuard<'_, Recording> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, client: &str, unfinished: &mut Unfinished, line: Line) {
        let mut all = self.lock();
        let all = &mut *all;
        if matches!(line, Line::Ready) {
            self.ended.send_modify(|it| it.1 += 1);
        }
        if matches!(line, Line::Begin { .. }) {
            all.row.calls += 1;
        }
        let Some(recorded) = all.log.add(client, unfinished, line) else { return };
        all.row.errors += u64::from(recorded.is_error());
        let latest = recorded.begin + (CALL_TIME + LATE_TIME).as_nanos() as u64;
        if let Some((end, answer)) = &recorded.end {
            all.row.late += u64::from(*end > latest && all.stopped.as_deref() != Some(client));
            if let Answer::Wrong(what) = answer {
                all.row.wrong += 1;
                all.wrong.push(what.clone());
            }
        }
        self.ended.send_modify(|it| it.0 += 1);
    }

    /// Adds a whole call.
    pub(crate) fn add_call(&self, key: KeyId, recorded: Recorded) {
        let Recorded { client, begin, what, end } = recorded;
        let mut unfinished = Unfinished::default();
        self.add(&client, &mut unfinished, Line::Begin { call: 0, at: begin, key, what });
        if let Some((at, answer)) = end {
            self.add(&client, &mut unfinished, Line::End { call: 0, at, answer });
        }
    }

    /// Waits until this many calls have ended; fails if that takes too long.
    pub(crate) async fn wait_for_calls(&self, count: u64, time: Duration) -> Result<(), Failure> {
        self.wait_for(|it| it.0 >= count, time).await
    }

    /// The same for clients that are ready.
    pub(crate) async fn wait_for_clients(&self, count: u64, time: Duration) -> Result<(), Failure> {
        self.wait_for(|it| it.1 >= count, time).await
    }

    async fn wait_for(&self, is_enough: impl Fn(&(u64, u64)) -> bool, time: Duration) -> Result<(), Failure> {
        let mut ended = self.ended.subscribe();
        match timeout(time, ended.wait_for(is_enough)).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Failure::new("chaos", format!("the clients made no progress for {} s", time.as_secs()))
                .hint("a call did not end at its deadline; see the logs in the folder")),
        }
    }

    /// Number of calls that have ended, and of clients that are ready.
    pub(crate) fn ended(&self) -> (u64, u64) {
        *self.ended.borrow()
    }

    /// Names the client that is stopped.
    pub(crate) fn set_stopped(&self, client: Option<String>) {
        self.lock().stopped = client;
    }

    /// Takes the counts, descriptions of wrong bytes, and a copy of the calls of each key.
    pub(crate) fn take(&self) -> (Row, Vec<String>, BTreeMap<KeyId, Vec<Recorded>>) {
        let mut all = self.lock();
        (std::mem::take(&mut all.row), std::mem::take(&mut all.wrong), all.log.calls.clone())
    }

    /// The keys that were used.
    pub(crate) fn keys(&self) -> Vec<KeyId> {
        self.lock().log.calls.keys().copied().collect()
    }

    /// Forgets the calls of keys that are not used any more. No client may run.
    pub(crate) fn forget(&self, is_over: impl Fn(KeyId) -> bool) {
        self.lock().log.calls.retain(|key, _| !is_over(*key));
    }
}

/// One client process.
pub(crate) struct ClientProcess {
    pub(crate) worker: Worker,
    child: Child,
    input: Option<ChildStdin>,
    reading: JoinHandle<()>,
}

impl ClientProcess {
    /// Starts a client.
    pub(crate) fn start(program: &Program, worker: Worker, records: &Records) -> Result<Self, Failure> {
        let mut command = program.command();
        command.arg("chaos-worker").args(arguments(&worker)).stdin(Stdio::piped());
        let mut child = program.spawn(&mut command)?;
        let stdout = child.stdout.take().ok_or_else(|| Failure::new("internal", "no output pipe"))?;
        let (records, name) = (records.clone(), name(&worker));
        let reading = tokio::spawn(async move {
            let mut unfinished = Unfinished::default();
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                // A killed client may leave an incomplete line.
                if let Ok(line) = serde_json::from_str(&line) {
                    records.add(&name, &mut unfinished, line);
                }
            }
        });
        let input = child.stdin.take();
        Ok(Self { worker, child, input, reading })
    }

    pub(crate) fn name(&self) -> String {
        name(&self.worker)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(pid) = pid_of(&self.child) {
            let _gone = kill_process(pid, signal);
        }
    }

    /// Kills the client, and starts it again.
    pub(crate) async fn kill_and_restart(
        mut self,
        program: &Program,
        records: &Records,
    ) -> Result<Self, Failure> {
        self.child.kill().await?;
        let worker = Worker { restarts: self.worker.restarts + 1, ..self.worker };
        Self::start(program, worker, records)
    }

    /// Lets the client end after its call, and waits for that and for all that it has recorded.
    pub(crate) async fn stop(mut self) -> Result<(), Failure> {
        self.input = None;
        let stopping = async {
            let status = self.child.wait().await?;
            let _ended = self.reading.await;
            Ok::<_, std::io::Error>(status)
        };
        match timeout(STOP_TIME_MAX, stopping).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(ended(&self.worker, &status.to_string())),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(ended(&self.worker, "no answer to the request to stop")),
        }
    }
}

fn name(worker: &Worker) -> String {
    format!("client {}.{}", worker.index, worker.restarts)
}

fn ended(worker: &Worker, how: &str) -> Failure {
    let message = format!("{} of the chaos run ended unexpectedly: {how}", name(worker));
    Failure::new("chaos", message).hint("see its output above; run again with the same `--seed`")
}

/// The arguments of a client process.
fn arguments(worker: &Worker) -> Vec<String> {
    let numbers = [
        ("index", worker.index),
        ("restarts", worker.restarts),
        ("round", worker.round),
        ("keys", worker.keys),
        ("seed", worker.seed),
    ];
    let mut arguments: Vec<_> = numbers.iter().map(|(name, number)| format!("--{name}={number}")).collect();
    arguments.push(format!("--address={}", worker.address));
    arguments.push(format!("--namespace={}", worker.namespace));
    arguments.extend(worker.far.then(|| "--far".to_owned()));
    arguments.extend(worker.conditional.then(|| "--conditional".to_owned()));
    arguments.extend(worker.mutant.then(|| "--mutant".to_owned()));
    arguments
}
