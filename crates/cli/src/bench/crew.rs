//! The client processes of a benchmark.
//!
//! **Invariant:** they end with the benchmark, and are told what to do by nobody else.

use std::process::Stdio;
use std::time::Duration;

use clap::ValueEnum;
use tiffin_report::document::{Counts, Times};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::timeout;

use super::plan::{Limit, Shape, Task};
use super::worker::{Order, Worker};
use crate::console::Failure;
use crate::torture::Program;

/// How long a worker may take to begin or to end.
const START_TIME_MAX: Duration = Duration::from_secs(30);
/// How long it may take beyond what it was told to: for what it must prepare and tidy up.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(120);

/// Clients that do the same at the same time.
pub(super) struct Crew {
    members: Vec<Member>,
}

struct Member {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Crew {
    /// So many of them, ready.
    pub(super) async fn start(
        program: &Program,
        shape: Shape,
        address: &str,
        memory: u64,
        count: u64,
    ) -> Result<Self, Failure> {
        let mut members = Vec::new();
        for index in 0..count {
            let worker = Worker { shape, address: address.to_owned(), index, memory };
            members.push(Member::start(program, &worker)?);
        }
        for member in &mut members {
            member.hear(START_TIME_MAX).await?;
        }
        Ok(Self { members })
    }

    /// Lets the first `count` of them do that at the same time.
    pub(super) async fn run(&mut self, task: Task, limit: Limit, count: usize) -> Result<Times, Failure> {
        let mut times = Times::new();
        for order in [Order::Prepare(task), Order::Go(limit), Order::Clear] {
            let members = self.members.get_mut(..count).unwrap_or_default();
            for member in &mut *members {
                member.tell(&order).await?;
            }
            for member in members {
                let line = member.hear(ANSWER_TIME_MAX + 2 * limit.time()).await?;
                let counts: Counts = serde_json::from_str(&line).map_err(|error| {
                    Failure::new("internal", format!("a client of the benchmark said `{line}`: {error}"))
                })?;
                if matches!(order, Order::Go(_)) {
                    times.add(&counts);
                }
            }
        }
        Ok(times)
    }

    /// Tells all of them to end, and waits for that.
    pub(super) async fn stop(self) {
        for Member { mut child, input, output } in self.members {
            drop((input, output));
            if timeout(START_TIME_MAX, child.wait()).await.is_err() {
                let _gone = child.kill().await;
            }
        }
    }
}

impl Member {
    fn start(program: &Program, worker: &Worker) -> Result<Self, Failure> {
        let shape = worker.shape.to_possible_value().map(|it| it.get_name().to_owned()).unwrap_or_default();
        let mut command = program.command();
        command.args(["bench-worker", "--shape", &shape, "--address", &worker.address]);
        command.args(["--index", &worker.index.to_string(), "--memory", &worker.memory.to_string()]);
        let mut child = program.spawn(command.stdin(Stdio::piped()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::new("internal", "a child has neither input nor output"));
        };
        Ok(Self { child, input, output: BufReader::new(output).lines() })
    }

    async fn tell(&mut self, order: &Order) -> Result<(), Failure> {
        let line = serde_json::to_string(order).map_err(|error| Failure::new("internal", error))?;
        // One that has ended is noticed when it does not answer.
        let _ended = self.input.write_all(format!("{line}\n").as_bytes()).await;
        Ok(())
    }

    async fn hear(&mut self, patience: Duration) -> Result<String, Failure> {
        let advice = "what it said stands above; `tiffin doctor` tells more";
        match timeout(patience, self.output.next_line()).await {
            Ok(Ok(Some(line))) => Ok(line),
            Ok(Ok(None)) => {
                Err(Failure::new("bench", "a client of the benchmark ended by itself").hint(advice))
            }
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(Failure::new("bench", "a client of the benchmark does not answer").hint(advice)),
        }
    }
}
