//! `tiffin chaos`: faults of real processes, disks and networks under load, and the answers that clients got.
//!
//! A run starts a master, three nodes with disks and several clients on loopback. In each round one fault
//! begins and ends while the clients call. They record every call. After each round the history of every key
//! is checked ([`tiffin_history`]): only the answers of the store decide what is allowed.

mod caller;
mod clients;
mod cluster;
mod fault;
mod outcome;
mod proxy;
mod record;
mod round;
mod worker;

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytesize::ByteSize;
use tiffin_history::{Change, Guard, Operation, Rejection};
use tiffin_server::config;
use tokio::time::Instant;

pub(crate) use worker::{Worker, run as work};

use crate::Context;
use crate::console::{Console, Failure, STATUS_FAILED, STATUS_OK};
use crate::torture::{Program, any_seed};
use cluster::Cluster;
use fault::Fault;
use outcome::Outcome;
use record::{KeyId, Recorded};
use round::{KEPT, Load, Run};

/// The tmpfs of most machines.
const SHARED_MEMORY: &str = "/dev/shm";
/// A month.
const SECONDS_MAX: u64 = 31 * 24 * 3600;
/// Maximum number of violations of one round that are printed.
const SHOWN_MAX: usize = 10;

/// Kills, stops and partitions the processes of a store under load, and checks what clients were told.
///
/// Starts a store of its own on loopback: a master, three nodes with disks, and clients. In each round one
/// fault begins and ends. It exits with 1 if a promise was broken: wrong bytes, a protected object that was
/// lost, a deleted or replaced one that came back, a call that did not end, a store that did not recover.
#[derive(Debug, clap::Args)]
pub(crate) struct Chaos {
    /// Only this fault; repeat it for several. Default: all, in turn.
    #[arg(long, value_name = "FAULT")]
    fault: Vec<Fault>,

    /// Number of rounds. Default: one for each fault.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=KEPT))]
    rounds: Option<u64>,

    /// Begin no further round after this many seconds.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=SECONDS_MAX))]
    seconds: Option<u64>,

    /// Number of calls that end during each fault, and after it.
    #[arg(long, default_value_t = 60, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000))]
    calls: u64,

    /// The master's `--away` and `--disk-away`. If a restarted master stops waiting for its nodes before they
    /// have reported, their objects seem absent.
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = config::duration)]
    away: Duration,

    /// Minimum duration of each fault.
    #[arg(long, default_value = "2s", value_name = "TIME", value_parser = config::duration)]
    hold: Duration,

    /// Number of client processes; every second one is as on another host.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=64))]
    clients: u64,

    /// Memory of each node.
    #[arg(long, default_value = "24MiB", value_name = "SIZE", value_parser = config::size)]
    memory: ByteSize,

    /// Clients also put with the condition that one generation is replaced. A restart of the master in the
    /// middle of such a put is known to lose the object.
    #[arg(long)]
    conditional: bool,

    /// Folder for the state, disks and logs, on a file system with direct I/O. Default: the temporary folder.
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,

    /// Keep that folder. It is kept in any case after a broken promise.
    #[arg(long)]
    keep: bool,

    /// Write the table in Markdown.
    #[arg(long)]
    markdown: bool,

    /// Seed of the random numbers. The same seed gives the same choices, not the same races.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// For tests of this command: clients record answers that no correct store gives.
    #[arg(long, hide = true)]
    mutant: bool,
}

/// Runs all rounds.
pub(crate) async fn run(chaos: Chaos, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let seed = chaos.seed.unwrap_or_else(any_seed);
    let token = context.common.token().map_err(|error| Failure::new("config", error))?;
    let mut folder = Folder::new(chaos.folder.as_deref())?;
    folder.is_kept = chaos.keep;
    let program = || Program::own(context, token.clone());
    let far_clients = chaos.clients as usize / 2;
    let sizes = (chaos.memory.as_u64(), far_clients);
    // Memory pools must be on a tmpfs. Their folder is removed in any case: it contains no logs.
    let shared = Path::new(SHARED_MEMORY);
    let pools = shared.is_dir().then(|| Folder::new(Some(shared))).transpose()?;
    let pools = pools.as_ref().map(|it| it.path.as_path());
    let cluster = Cluster::start(program(), &folder.path, pools, sizes, chaos.away).await?;
    console.note(format!("seed {seed}, store at {}", cluster.address));
    let names = ("chaos".to_owned(), token.clone());
    let load = Load {
        clients: chaos.clients,
        calls: chaos.calls,
        hold: chaos.hold,
        conditional: chaos.conditional,
        mutant: chaos.mutant,
    };
    let mut run = Run::new(cluster, program(), names, seed, load).await?;
    let mut outcome = Outcome { seed, ..Outcome::default() };
    outcome.keeps_memory = (0..record::NODES.len()).all(|node| run.cluster.keeps_memory(node));
    let began = Instant::now();
    let done = rounds(&chaos, &mut run, &mut outcome, console, &mut folder).await;
    outcome.seconds = began.elapsed().as_secs_f64();
    if done.is_err() || !outcome.is_correct() {
        folder.is_kept = true;
    }
    if folder.is_kept {
        console.note(format!("logs are in `{}`", folder.path.display()));
    }
    done?;
    report(&chaos, &outcome, console)
}

fn report(chaos: &Chaos, outcome: &Outcome, console: &mut Console) -> Result<i32, Failure> {
    if console.json {
        console.value(&outcome.json())?;
    } else if chaos.markdown {
        console.text(outcome.markdown())?;
    } else {
        console.text(outcome.table())?;
    }
    let rounds: u64 = outcome.rows.values().map(|it| it.rounds).sum();
    if outcome.is_correct() && rounds == 0 {
        console
            .note("error: nothing was tried; the table says why\n\nhint: choose other faults with `--fault`");
        return Ok(STATUS_FAILED);
    }
    if outcome.is_correct() {
        console.note(format!("{rounds} rounds in {:.1} s: every promise was kept", outcome.seconds));
        return Ok(STATUS_OK);
    }
    console.note(format!("error: the store broke its promises; the seed was {}", outcome.seed));
    Ok(STATUS_FAILED)
}

async fn rounds(
    chaos: &Chaos,
    run: &mut Run,
    outcome: &mut Outcome,
    console: &mut Console,
    folder: &mut Folder,
) -> Result<(), Failure> {
    let faults: Vec<Fault> = match &chaos.fault[..] {
        [] => <Fault as clap::ValueEnum>::value_variants().to_vec(),
        some => some.to_vec(),
    };
    let clock_problem = Cluster::clock_problem().await;
    let rounds = chaos.rounds.unwrap_or(faults.len() as u64);
    let end = chaos.seconds.map(|it| Instant::now() + Duration::from_secs(it));
    for (round, &fault) in (0..rounds).zip(faults.iter().cycle()) {
        if end.is_some_and(|it| Instant::now() >= it) {
            break;
        }
        let row = outcome.rows.entry(fault).or_default();
        if let Some(problem) = clock_problem.as_ref().filter(|_| fault.needs_clock()) {
            row.not_done = Some(problem.clone());
            console.note(format!("{}: not done: {problem}", fault.describe()));
            continue;
        }
        let ended = run.round(round, fault).await?;
        row.rounds += 1;
        match ended.recovery {
            Some(time) => row.recovery = row.recovery.max(time),
            None => row.stuck += 1,
        }
        let violations = check(run, row, folder);
        let stuck = ended.recovery.is_none().then(|| "the store did not recover".to_owned());
        let problems = stuck.into_iter().chain(violations);
        let mut problems: Vec<_> = problems.map(|it| format!("{}: {it}", fault.describe())).collect();
        for problem in problems.iter().take(SHOWN_MAX) {
            console.note(format!("broken: {problem}"));
        }
        outcome.violations.append(&mut problems);
        let recovery =
            ended.recovery.map_or_else(|| "never".to_owned(), |it| format!("{:.1} s", it.as_secs_f64()));
        let broken = outcome.violations.len();
        console.note(format!(
            "round {} of {rounds}: {}, recovery {recovery}, {broken} broken",
            round + 1,
            fault.describe()
        ));
        run.records.forget(|key| key.round() == round);
        if ended.recovery.is_none() {
            // Later rounds would only show the same.
            break;
        }
    }
    Ok(())
}

/// Checks the history of every key. Adds to the row, and returns descriptions of what is wrong.
fn check(run: &Run, row: &mut outcome::Row, folder: &mut Folder) -> Vec<String> {
    let (counts, wrong, calls) = run.records.take();
    row.calls += counts.calls;
    row.errors += counts.errors;
    row.late += counts.late;
    row.wrong += counts.wrong;
    let mut violations: Vec<String> = wrong.into_iter().map(|it| format!("wrong bytes: {it}")).collect();
    if counts.late > 0 {
        violations.push(format!("{} calls did not end in time", counts.late));
    }
    for (key, calls) in &calls {
        let (positions, history) = history(run, *key, calls);
        let Err(rejection) = tiffin_history::check(&history, key.loss()) else { continue };
        let path = folder.path.join(format!("history-{}.txt", key.to_string().replace('/', "-")));
        let what = match rejection {
            Rejection::Violation { operation, .. } => {
                let call = positions.get(operation).and_then(|at| calls.get(*at));
                let guard = history.get(operation).map(|it| it.guard);
                let is_lost = matches!(guard, Some(Guard::Absent | Guard::IsNot(_)));
                *(if is_lost { &mut row.lost } else { &mut row.resurrected }) += 1;
                let what = if is_lost { "lost" } else { "resurrected" };
                let call = call.map_or_else(String::new, |it| describe(it, 0));
                format!("`{key}` {what}: no order of the calls explains {call}")
            }
            other => {
                row.undecided += 1;
                format!("`{key}`: {other}")
            }
        };
        write_history(&path, calls, run);
        folder.is_kept = true;
        violations.push(format!("{what}; see `{}`", path.display()));
    }
    violations
}

/// The history of a key, and for each of its operations the position of its call.
fn history(run: &Run, key: KeyId, calls: &[Recorded]) -> (Vec<usize>, Vec<Operation>) {
    let operation = |(at, call): (usize, &Recorded)| Some((at, call.operation(key, &run.guesses)?));
    let calls_made = calls.iter().enumerate().filter_map(operation);
    let losses = run.losses.iter().filter(|it| it.concerns(key));
    let losses = losses.map(|it| (usize::MAX, Operation::open(it.at, Guard::Fragile, Change::Clear)));
    calls_made.chain(losses).unzip()
}

/// A call on one line, with times in microseconds since `start`.
fn describe(call: &Recorded, start: u64) -> String {
    let Recorded { client, begin, what, end } = call;
    let at = |time: u64| time.saturating_sub(start) / 1000;
    match end {
        Some((end, answer)) => format!("{} to {} {client} {what:x?}: {answer:x?}", at(*begin), at(*end)),
        None => format!("{} {client} {what:x?}: no answer", at(*begin)),
    }
}

fn write_history(path: &Path, calls: &[Recorded], run: &Run) {
    let mut sorted: Vec<&Recorded> = calls.iter().collect();
    sorted.sort_by_key(|it| it.begin);
    let start = sorted.first().map_or(0, |it| it.begin);
    let lines = sorted.iter().map(|it| (it.begin, describe(it, start)));
    let losses =
        run.losses.iter().map(|it| (it.at, format!("{} {it:?}", it.at.saturating_sub(start) / 1000)));
    let mut lines: Vec<_> = lines.chain(losses).collect();
    lines.sort_by_key(|it| it.0);
    let text: Vec<String> = lines.into_iter().map(|it| it.1).collect();
    // The violation itself is reported in any case.
    let _unwritten = std::fs::write(path, text.join("\n") + "\n");
}

/// The folder of a run, removed when dropped unless it is kept.
struct Folder {
    path: PathBuf,
    is_kept: bool,
}

impl Folder {
    fn new(parent: Option<&Path>) -> Result<Self, Failure> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        let path = parent.join(format!("tiffin-chaos-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|error| Failure::file("create the folder", &path, &error))?;
        Ok(Self { path, is_kept: false })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.is_kept {
            // Errors are ignored: what stays is small and in the system's temporary folder.
            let _stays = std::fs::remove_dir_all(&self.path);
        }
    }
}
