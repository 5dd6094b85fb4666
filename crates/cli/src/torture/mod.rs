//! `tiffin torture`: verifies a store with real processes, real memory and faults.
//!
//! Readers verify every byte at full speed, through shared memory and through sockets, while writers replace
//! and delete objects and fill the store so that it evicts. All the time, processes are killed, stopped or
//! restarted. At the end the memory in use is compared with the existing objects.

mod cluster;
mod memory_check;
pub(crate) mod pattern;
mod processes;
mod tally;
mod worker;

use std::time::Duration;

use bytesize::ByteSize;
use rustix::process::Signal;
use tiffin_client::{Client, Deadline, DeleteOptions, Put, View};
use tiffin_server::config;
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, interval, sleep_until};

pub(crate) use cluster::Cluster;
pub(crate) use pattern::Rng;
pub(crate) use processes::Program;
pub(crate) use worker::{Worker, run as work};

use crate::Context;
use crate::console::{Console, Failure, STATUS_FAILED, STATUS_OK};
use memory_check::Scope;
use processes::WorkerProcess;
use tally::{Kills, Outcome, Tally};
use worker::{Mutant, Role};

/// Number of nodes of a store of our own.
const NODES: usize = 2;
/// Interval of the progress line.
const SHOW_EVERY: Duration = Duration::from_millis(200);
/// Duration of a stop.
const STALL_TIME: Duration = Duration::from_millis(150);
/// Maximum number of errors that are printed.
const WRONG_SHOWN_MAX: usize = 10;

/// Stress-tests a store: readers that verify every byte, under writers that replace, remove and fill, while
/// readers, writers and nodes are killed.
///
/// Starts a store of its own, a master and two nodes, unless one is named; there it kills no nodes, and uses
/// a namespace of its own. It ends after a number of reads or a time. It exits with 1 if a single byte was
/// wrong, or if memory is missing after all processes have stopped.
#[derive(Debug, clap::Args)]
pub(crate) struct Torture {
    /// End after this many verified reads, once readers, writers and a node have been killed.
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    reads: u64,

    /// End after this many seconds in any case.
    #[arg(long, default_value_t = 60, value_name = "N")]
    seconds: u64,

    /// Number of reading processes; every second one uses sockets.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    readers: u64,

    /// Number of writing processes; every second one uses sockets.
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    writers: u64,

    /// Number of keys.
    #[arg(long, default_value_t = 1024, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    keys: u64,

    /// Memory of each node that is started: too little for all keys, so that it evicts.
    #[arg(long, default_value = "16MiB", value_name = "SIZE", value_parser = config::size)]
    memory: ByteSize,

    /// Interval between kills and stops.
    #[arg(long, default_value = "300ms", value_name = "TIME", value_parser = config::duration)]
    kill_every: Duration,

    /// Seed of the random numbers. The same seed gives the same choices, not the same races.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// For tests of this command: injects an error that must be noticed.
    #[arg(long, hide = true)]
    mutant: Option<Mutant>,

    /// The master of a running store. Default: none, one is started.
    #[arg(long, value_name = "ADDRESS")]
    master: Option<String>,
}

/// Runs until there were enough reads, or the time is over.
pub(crate) async fn run(torture: Torture, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let seed = torture.seed.unwrap_or_else(any_seed);
    let token = context.common.token().map_err(|error| Failure::new("config", error))?;
    let program = Program::own(context, token.clone());
    let namespace = format!("torture-{}", std::process::id());
    let cluster = match &torture.master {
        Some(address) => Cluster::named(address.clone()),
        // A killed node is soon declared lost, so that its keys can be stored again.
        None => Cluster::start(&program, &["--away", "300ms"], NODES, torture.memory.as_u64(), true).await?,
    };
    let client = cluster.client(&namespace, &token).await?;
    console.note(format!("seed {seed}, store at {}", cluster.address));
    let began = Instant::now();
    let mut run = TortureRun::start(&torture, seed, cluster, program, namespace.clone())?;
    run.run(&torture, console).await?;
    let leak = if torture.mutant == Some(Mutant::Leak) { leak(&client).await } else { None };
    let TortureRun { cluster, tally, kills, .. } = run.stop().await?;
    let explain = |error| crate::store_client::explain(&error);
    let evicted = client.stat(soon()).await.map_err(explain)?.evicted_objects;
    let scope = if cluster.nodes.is_empty() { Scope::Namespace(&namespace) } else { Scope::Nodes(NODES) };
    let rest = memory_check::check_memory(&client, scope).await.map_err(explain)?;
    drop(leak);
    let _ignored = client.close(soon()).await;
    for wrong in tally.wrong.iter().take(WRONG_SHOWN_MAX) {
        console.note(format!("wrong: {wrong}"));
    }
    let outcome = Outcome { seed, seconds: began.elapsed().as_secs_f64(), tally, kills, evicted, rest };
    report(&outcome, console)
}

fn report(outcome: &Outcome, console: &mut Console) -> Result<i32, Failure> {
    if console.json {
        console.value(&outcome.json())?;
    } else {
        console.text(outcome.table())?;
    }
    if outcome.is_correct() {
        let bytes = "no byte was wrong, and every byte of memory is accounted for";
        console.note(format!("{} reads in {:.1} s: {bytes}", outcome.tally.reads(), outcome.seconds));
        return Ok(STATUS_OK);
    }
    console.note(format!("error: the store broke its promises; the seed was {}", outcome.seed));
    Ok(STATUS_FAILED)
}

/// All processes of a run.
struct TortureRun {
    cluster: Cluster,
    program: Program,
    workers: Vec<WorkerProcess>,
    rng: Rng,
    tally: Tally,
    kills: Kills,
    tallies: mpsc::UnboundedReceiver<Tally>,
    tally_sender: mpsc::UnboundedSender<Tally>,
}

impl TortureRun {
    fn start(
        torture: &Torture,
        seed: u64,
        cluster: Cluster,
        program: Program,
        namespace: String,
    ) -> Result<Self, Failure> {
        let (tally_sender, tallies) = mpsc::unbounded_channel();
        let roles = (0..torture.readers).map(|index| (Role::Reader, index));
        let roles = roles.chain((0..torture.writers).map(|index| (Role::Writer, index)));
        let workers = roles.map(|(role, index)| {
            let worker = Worker {
                role,
                index,
                restarts: 0,
                writers: torture.writers,
                keys: torture.keys,
                seed,
                address: cluster.address.clone(),
                namespace: namespace.clone(),
                mutant: torture.mutant,
            };
            WorkerProcess::start(&program, worker, &tally_sender)
        });
        let workers = workers.collect::<Result<Vec<_>, _>>()?;
        let (tally, kills) = (Tally::default(), Kills::default());
        Ok(Self { cluster, program, workers, rng: Rng::new(seed), tally, kills, tallies, tally_sender })
    }

    /// Runs the processes and injects faults.
    async fn run(&mut self, torture: &Torture, console: &mut Console) -> Result<(), Failure> {
        let end = Instant::now() + Duration::from_secs(torture.seconds);
        let (mut kills, mut shows) = (interval(torture.kill_every), interval(SHOW_EVERY));
        first_tick(&mut kills).await;
        while !self.has_enough(torture) {
            tokio::select! {
                Some(tally) = self.tallies.recv() => self.tally.add(tally),
                _ = kills.tick() => {
                    self.inject_fault().await?;
                    // After a slow fault the next is not due at once.
                    kills.reset();
                }
                _ = shows.tick() => {
                    for worker in &mut self.workers {
                        worker.check()?;
                    }
                    self.show(torture, console);
                }
                () = sleep_until(end) => break,
            }
        }
        if let Some(terminal) = console.progress_terminal() {
            let _ = write!(terminal, "\r\x1b[K").and_then(|()| terminal.flush());
        }
        Ok(())
    }

    fn has_enough(&self, torture: &Torture) -> bool {
        let Kills { readers, writers, nodes, .. } = self.kills;
        let killed = readers > 0 && writers > 0 && (nodes > 0 || self.cluster.nodes.is_empty());
        !self.tally.wrong.is_empty() || self.tally.reads() >= torture.reads && killed
    }

    /// Kills or stops a process.
    async fn inject_fault(&mut self) -> Result<(), Failure> {
        let Kills { readers, writers, nodes, .. } = self.kills;
        // The first faults include one of each kind.
        let choice = match (readers, writers, nodes) {
            (0, ..) => 0,
            (_, 0, _) => 4,
            (_, _, 0) => 7,
            _ => self.rng.below(10),
        };
        match choice {
            0..=3 => self.kill(Role::Reader).await,
            4..=6 => self.kill(Role::Writer).await,
            7 if !self.cluster.nodes.is_empty() => {
                let index = self.rng.below(self.cluster.nodes.len() as u64) as usize;
                self.kills.nodes += 1;
                match self.cluster.nodes.get_mut(index) {
                    Some(node) => node.kill_and_restart(&self.program).await,
                    None => Ok(()),
                }
            }
            _ => {
                self.stall().await;
                Ok(())
            }
        }
    }

    async fn kill(&mut self, role: Role) -> Result<(), Failure> {
        let these: Vec<usize> = (0..self.workers.len())
            .filter(|at| self.workers.get(*at).is_some_and(|it| it.worker.role == role))
            .collect();
        let chosen = these.get(self.rng.below(these.len() as u64) as usize);
        match chosen.and_then(|at| self.workers.get_mut(*at)) {
            Some(worker) => {
                *(if role == Role::Reader { &mut self.kills.readers } else { &mut self.kills.writers }) += 1;
                worker.kill_and_restart(&self.program, &self.tally_sender).await
            }
            None => Ok(()),
        }
    }

    /// Stops a worker at an arbitrary point, and continues it after a while.
    async fn stall(&mut self) {
        let at = self.rng.below(self.workers.len() as u64) as usize;
        if let Some(worker) = self.workers.get(at) {
            self.kills.stalls += 1;
            worker.signal(Signal::STOP);
            tokio::time::sleep(STALL_TIME).await;
            worker.signal(Signal::CONT);
        }
    }

    fn show(&self, torture: &Torture, console: &mut Console) {
        let Self { tally, kills, .. } = self;
        if let Some(terminal) = console.progress_terminal() {
            let killed = kills.readers + kills.writers + kills.nodes;
            let _ = write!(
                terminal,
                "\r\x1b[K{} of {} reads, {} races lost and retried, {killed} killed, {} wrong",
                tally.reads(),
                torture.reads,
                tally.retried,
                tally.wrong.len()
            )
            .and_then(|()| terminal.flush());
        }
    }

    /// Stops all workers, and adds their last counts.
    async fn stop(mut self) -> Result<Self, Failure> {
        for worker in std::mem::take(&mut self.workers) {
            worker.stop().await?;
        }
        let (closed, _) = mpsc::unbounded_channel();
        // The queue ends with the last task that reads a child's output.
        drop(std::mem::replace(&mut self.tally_sender, closed));
        while let Some(tally) = self.tallies.recv().await {
            self.tally.add(tally);
        }
        Ok(self)
    }
}

async fn first_tick(interval: &mut Interval) {
    // The first tick is immediate, before any process has started.
    interval.tick().await;
}

/// A view of a deleted object that is kept open.
async fn leak(client: &Client) -> Option<View> {
    let key = worker::key(u64::MAX).ok()?;
    let keys = [key.clone()];
    client.put(&[Put::new(key, &[1; 4096])], soon()).await.pop()?.ok()?;
    let view = client.view(&keys, soon()).await.pop()?.ok()?;
    client.delete(&keys, DeleteOptions { force: true }, soon()).await.pop()?.ok()?;
    Some(view)
}

/// A seed from the clock: it only has to differ from run to run.
pub(crate) fn any_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| Rng::new(now.as_nanos() as u64).next() >> 32)
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}
