//! The client processes of a benchmark.
//!
//! **Invariant:** they end with the benchmark, and receive commands only from it.

use std::process::Stdio;
use std::time::Duration;

use clap::ValueEnum;
use tiffin_report::document::{Counts, Times};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::timeout;

use super::plan::{Limit, Shape, Task};
use super::worker::{Worker, WorkerCommand};
use crate::console::Failure;
use crate::torture::Program;

/// Time limit for the start and the end of a worker.
const START_TIME_MAX: Duration = Duration::from_secs(30);
/// Time limit beyond the measurement itself, for preparation and cleanup.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(120);

/// Clients that run the same workload at the same time.
pub(super) struct ClientGroup {
    clients: Vec<ClientProcess>,
}

struct ClientProcess {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl ClientGroup {
    /// Starts `count` clients, and waits until they are ready.
    pub(super) async fn start(
        program: &Program,
        shape: Shape,
        address: &str,
        memory: u64,
        count: u64,
    ) -> Result<Self, Failure> {
        let mut clients = Vec::new();
        for index in 0..count {
            let worker = Worker { shape, address: address.to_owned(), index, memory };
            clients.push(ClientProcess::start(program, &worker)?);
        }
        for client in &mut clients {
            client.receive(START_TIME_MAX).await?;
        }
        Ok(Self { clients })
    }

    /// Runs a task on the first `count` clients at the same time.
    pub(super) async fn run(&mut self, task: Task, limit: Limit, count: usize) -> Result<Times, Failure> {
        let mut times = Times::new();
        for command in [WorkerCommand::Prepare(task), WorkerCommand::Run(limit), WorkerCommand::Clear] {
            let clients = self.clients.get_mut(..count).unwrap_or_default();
            for client in &mut *clients {
                client.send(&command).await?;
            }
            for client in clients {
                let line = client.receive(ANSWER_TIME_MAX + 2 * limit.time()).await?;
                let counts: Counts = serde_json::from_str(&line).map_err(|error| {
                    Failure::new(
                        "internal",
                        format!("invalid answer of a benchmark client `{line}`: {error}"),
                    )
                })?;
                if matches!(command, WorkerCommand::Run(_)) {
                    times.add(&counts);
                }
            }
        }
        Ok(times)
    }

    /// Stops all clients, and waits for their end.
    pub(super) async fn stop(self) {
        for ClientProcess { mut child, input, output } in self.clients {
            drop((input, output));
            if timeout(START_TIME_MAX, child.wait()).await.is_err() {
                let _gone = child.kill().await;
            }
        }
    }
}

impl ClientProcess {
    fn start(program: &Program, worker: &Worker) -> Result<Self, Failure> {
        let shape = worker.shape.to_possible_value().map(|it| it.get_name().to_owned()).unwrap_or_default();
        let mut command = program.command();
        command.args(["bench-worker", "--shape", &shape, "--address", &worker.address]);
        command.args(["--index", &worker.index.to_string(), "--memory", &worker.memory.to_string()]);
        let mut child = program.spawn(command.stdin(Stdio::piped()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::new("internal", "a child process has no pipes"));
        };
        Ok(Self { child, input, output: BufReader::new(output).lines() })
    }

    async fn send(&mut self, command: &WorkerCommand) -> Result<(), Failure> {
        let line = serde_json::to_string(command).map_err(|error| Failure::new("internal", error))?;
        // A client that has ended is noticed by its missing answer.
        let _ended = self.input.write_all(format!("{line}\n").as_bytes()).await;
        Ok(())
    }

    async fn receive(&mut self, time_max: Duration) -> Result<String, Failure> {
        let advice = "see its output above, and run `tiffin doctor`";
        match timeout(time_max, self.output.next_line()).await {
            Ok(Ok(Some(line))) => Ok(line),
            Ok(Ok(None)) => Err(Failure::new("bench", "a benchmark client ended unexpectedly").hint(advice)),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(Failure::new("bench", "a benchmark client does not answer").hint(advice)),
        }
    }
}
