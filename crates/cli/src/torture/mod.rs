//! `tiffin torture`: real processes and real memory, and nobody believes anybody.
//!
//! Readers verify every byte at full speed, through shared memory and through sockets, while writers put anew
//! under them, remove by force and fill the store so that it evicts; and all the time somebody is killed,
//! stopped or started again. In the end the memory is compared with the objects that are there.

mod cluster;
mod crew;
mod pattern;
mod rest;
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
pub(crate) use crew::Program;
pub(crate) use pattern::Dice;
pub(crate) use worker::{Worker, run as work};

use crate::Context;
use crate::console::{Console, Failure, STATUS_FAILED, STATUS_OK};
use crew::Member;
use rest::Scope;
use tally::{Kills, Outcome, Tally};
use worker::{Role, Sabotage};

/// Nodes of a store of our own.
const NODES: usize = 2;
/// How often the line of progress is written.
const SHOW_EVERY: Duration = Duration::from_millis(200);
/// How long somebody who is stopped stays so.
const STALL_TIME: Duration = Duration::from_millis(150);
/// Wrong things that are shown one by one.
const WRONG_SHOWN_MAX: usize = 10;

/// Tortures a store: readers that verify every byte, under writers that replace, remove and fill, while
/// readers, writers and nodes are killed.
///
/// It starts a store of its own, a master and two nodes, unless one is named; there it kills no nodes, and
/// uses a namespace of its own. It ends after so many reads or so much time. It leaves with 1 if a single
/// byte was wrong, or if memory is missing when all have stopped.
#[derive(Debug, clap::Args)]
pub(crate) struct Torture {
    /// End after this many verified reads, when readers, writers and a node have been killed.
    #[arg(long, default_value_t = 100_000, value_name = "N")]
    reads: u64,

    /// End after this many seconds, whatever was done.
    #[arg(long, default_value_t = 60, value_name = "N")]
    seconds: u64,

    /// Processes that read; every second one through sockets.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    readers: u64,

    /// Processes that write; every second one through sockets.
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    writers: u64,

    /// How many keys they share.
    #[arg(long, default_value_t = 1024, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    keys: u64,

    /// Memory of each node that is started: too little for all keys, so that it evicts.
    #[arg(long, default_value = "16MiB", value_name = "SIZE", value_parser = config::size)]
    memory: ByteSize,

    /// How often somebody is killed or stopped.
    #[arg(long, default_value = "300ms", value_name = "TIME", value_parser = config::duration)]
    kill_every: Duration,

    /// Where chance comes from. The same seed makes the same choices, not the same races.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// For the tests of this command: does something wrong that must be noticed.
    #[arg(long, hide = true)]
    sabotage: Option<Sabotage>,

    /// The master of a store that runs already. Default: none, one is started.
    #[arg(long, value_name = "ADDRESS")]
    master: Option<String>,
}

/// Tortures until there were enough reads, or no time is left.
pub(crate) async fn run(torture: Torture, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let seed = torture.seed.unwrap_or_else(any_seed);
    let token = context.common.token().map_err(|error| Failure::new("config", error))?;
    let program = Program::own(context, token.clone());
    let namespace = format!("torture-{}", std::process::id());
    let cluster = match &torture.master {
        Some(address) => Cluster::named(address.clone()),
        // A node that was killed is soon given up, so that its keys are free again.
        None => Cluster::start(&program, &["--away", "300ms"], NODES, torture.memory.as_u64(), true).await?,
    };
    let client = cluster.client(&namespace, &token).await?;
    console.note(format!("seed {seed}, store at {}", cluster.address));
    let began = Instant::now();
    let mut ring = Ring::start(&torture, seed, cluster, program, namespace.clone())?;
    ring.turn(&torture, console).await?;
    let leak = if torture.sabotage == Some(Sabotage::Leak) { leak(&client).await } else { None };
    let Ring { cluster, tally, kills, .. } = ring.stop().await?;
    let explain = |error| crate::reach::explain(&error);
    let evicted = client.stat(soon()).await.map_err(explain)?.evicted_objects;
    let scope = if cluster.nodes.is_empty() { Scope::Namespace(&namespace) } else { Scope::Nodes(NODES) };
    let rest = rest::look(&client, scope).await.map_err(explain)?;
    drop(leak);
    let _unheard = client.close(soon()).await;
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
    if outcome.is_good() {
        let bytes = "no byte was wrong, and every byte of memory is accounted for";
        console.note(format!("{} reads in {:.1} s: {bytes}", outcome.tally.reads(), outcome.seconds));
        return Ok(STATUS_OK);
    }
    console.note(format!("error: the store did not keep its promises; the seed was {}", outcome.seed));
    Ok(STATUS_FAILED)
}

/// Everybody who takes part.
struct Ring {
    cluster: Cluster,
    program: Program,
    members: Vec<Member>,
    dice: Dice,
    tally: Tally,
    kills: Kills,
    tallies: mpsc::UnboundedReceiver<Tally>,
    teller: mpsc::UnboundedSender<Tally>,
}

impl Ring {
    fn start(
        torture: &Torture,
        seed: u64,
        cluster: Cluster,
        program: Program,
        namespace: String,
    ) -> Result<Self, Failure> {
        let (teller, tallies) = mpsc::unbounded_channel();
        let roles = (0..torture.readers).map(|index| (Role::Reader, index));
        let roles = roles.chain((0..torture.writers).map(|index| (Role::Writer, index)));
        let members = roles.map(|(role, index)| {
            let worker = Worker {
                role,
                index,
                life: 0,
                writers: torture.writers,
                keys: torture.keys,
                seed,
                address: cluster.address.clone(),
                namespace: namespace.clone(),
                sabotage: torture.sabotage,
            };
            Member::start(&program, worker, &teller)
        });
        let members = members.collect::<Result<Vec<_>, _>>()?;
        let (tally, kills) = (Tally::default(), Kills::default());
        Ok(Self { cluster, program, members, dice: Dice::new(seed), tally, kills, tallies, teller })
    }

    /// Lets them fight.
    async fn turn(&mut self, torture: &Torture, console: &mut Console) -> Result<(), Failure> {
        let end = Instant::now() + Duration::from_secs(torture.seconds);
        let (mut kills, mut shows) = (interval(torture.kill_every), interval(SHOW_EVERY));
        first_tick(&mut kills).await;
        while !self.has_enough(torture) {
            tokio::select! {
                Some(tally) = self.tallies.recv() => self.tally.add(tally),
                _ = kills.tick() => {
                    self.strike().await?;
                    // After a slow one the next is not due at once.
                    kills.reset();
                }
                _ = shows.tick() => {
                    for member in &mut self.members {
                        member.check()?;
                    }
                    self.show(torture, console);
                }
                () = sleep_until(end) => break,
            }
        }
        if let Some(terminal) = console.watched() {
            let _ = write!(terminal, "\r\x1b[K").and_then(|()| terminal.flush());
        }
        Ok(())
    }

    fn has_enough(&self, torture: &Torture) -> bool {
        let Kills { readers, writers, nodes, .. } = self.kills;
        let killed = readers > 0 && writers > 0 && (nodes > 0 || self.cluster.nodes.is_empty());
        !self.tally.wrong.is_empty() || self.tally.reads() >= torture.reads && killed
    }

    /// Kills or stops somebody.
    async fn strike(&mut self) -> Result<(), Failure> {
        let Kills { readers, writers, nodes, .. } = self.kills;
        // Nobody is spared for long: of the first few, one is of each kind.
        let choice = match (readers, writers, nodes) {
            (0, ..) => 0,
            (_, 0, _) => 4,
            (_, _, 0) => 7,
            _ => self.dice.below(10),
        };
        match choice {
            0..=3 => self.kill(Role::Reader).await,
            4..=6 => self.kill(Role::Writer).await,
            7 if !self.cluster.nodes.is_empty() => {
                let index = self.dice.below(self.cluster.nodes.len() as u64) as usize;
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
        let these: Vec<usize> = (0..self.members.len())
            .filter(|at| self.members.get(*at).is_some_and(|it| it.worker.role == role))
            .collect();
        let chosen = these.get(self.dice.below(these.len() as u64) as usize);
        match chosen.and_then(|at| self.members.get_mut(*at)) {
            Some(member) => {
                *(if role == Role::Reader { &mut self.kills.readers } else { &mut self.kills.writers }) += 1;
                member.kill_and_restart(&self.program, &self.teller).await
            }
            None => Ok(()),
        }
    }

    /// Stops somebody in the middle of whatever it does, lets all others go on, and then lets it go on too.
    async fn stall(&mut self) {
        let at = self.dice.below(self.members.len() as u64) as usize;
        if let Some(member) = self.members.get(at) {
            self.kills.stalls += 1;
            member.signal(Signal::STOP);
            tokio::time::sleep(STALL_TIME).await;
            member.signal(Signal::CONT);
        }
    }

    fn show(&self, torture: &Torture, console: &mut Console) {
        let Self { tally, kills, .. } = self;
        if let Some(terminal) = console.watched() {
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

    /// Tells everybody to end, and hears their last words.
    async fn stop(mut self) -> Result<Self, Failure> {
        for member in std::mem::take(&mut self.members) {
            member.stop().await?;
        }
        let (closed, _) = mpsc::unbounded_channel();
        // When the last of those who listened to a child has ended, so does the queue.
        drop(std::mem::replace(&mut self.teller, closed));
        while let Some(tally) = self.tallies.recv().await {
            self.tally.add(tally);
        }
        Ok(self)
    }
}

async fn first_tick(interval: &mut Interval) {
    // The first one comes at once, and nobody has begun then.
    interval.tick().await;
}

/// A view that nobody ends, of an object that is gone.
async fn leak(client: &Client) -> Option<View> {
    let key = worker::key(u64::MAX).ok()?;
    let keys = [key.clone()];
    client.put(&[Put::new(key, &[1; 4096])], soon()).await.pop()?.ok()?;
    let view = client.view(&keys, soon()).await.pop()?.ok()?;
    client.delete(&keys, DeleteOptions { force: true }, soon()).await.pop()?.ok()?;
    Some(view)
}

/// The clock will do: it only has to differ from run to run.
fn any_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| Dice::new(now.as_nanos() as u64).next() >> 32)
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(10))
}
