//! Moves the objects of a node away when an operator drains it.
//!
//! The process of a node runs [`serve`] beside it. Every round of a drain job lists all objects that the
//! node still holds, and moves each with the client's [`relocate`]: a reader finds the value at any time, and
//! a value that changes meanwhile is left to the next round. Objects that cannot be moved stay and are
//! reported as blocked: samples that are not consumed, objects with pins of other owners, and objects for
//! which no segment has memory.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tiffin_client::relocate::{Change, find, relocate, segments_of};
use tiffin_client::{Client, ConnectOptions, Deadline, Error, Key, NodeStat};
use tiffin_server::node::{DrainDuty, DrainJob, DrainReport, DrainState, Record};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

/// The number of objects that one page of a round has.
const PAGE_OBJECTS: usize = 256;
/// The number of objects that are moved at a time, whatever the job asks for.
const CONCURRENCY_MAX: u32 = 64;
/// The number of namespaces for which a connection is kept.
const CLIENTS_MAX: usize = 16;
/// The number of segments that are tried for one object in a round.
const TARGETS_MAX: usize = 3;
/// The number of rounds without success after which the job fails, if nothing may become possible by itself.
const FAILED_ROUNDS_MAX: u32 = 3;
/// How long one object may take.
const MOVE_TIME: Duration = Duration::from_secs(60);
/// The pause after a round, and after one that found nothing.
const ROUND_PAUSE: Duration = Duration::from_millis(250);
const EMPTY_PAUSE: Duration = Duration::from_secs(1);
/// The least time between two reports.
const REPORT_PAUSE: Duration = Duration::from_millis(200);

/// What became of one object in one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It was moved; its bytes.
    Moved(u64),
    /// It is not here any more.
    Gone,
    /// It stays for now.
    Blocked,
    /// It could not be read or written.
    Failed,
}

/// One job, while it runs.
struct Run<'a> {
    duty: &'a DrainDuty,
    options: &'a ConnectOptions,
    report: DrainReport,
    reported: Instant,
    clients: BTreeMap<String, Client>,
    failed_rounds: u32,
}

/// Serves the drain jobs of a node until the node ends. `options` say how to reach the master.
pub async fn serve(mut duty: DrainDuty, options: ConnectOptions) {
    let options = ConnectOptions { label: duty.info().name.clone(), home: None, own_memory: None, ..options };
    let options = ConnectOptions { own_disks: Vec::new(), ..options };
    loop {
        if let Some(job) = duty.job() {
            let watched = duty.clone();
            let mut run = Run::new(&watched, &options, job);
            while run.is_current() {
                let Some(pause) = run.round().await else { return };
                // A new job, or the end of this one, ends the pause.
                if timeout(pause, duty.changed()).await == Ok(false) {
                    return;
                }
            }
        } else if !duty.changed().await {
            return;
        }
    }
}

impl<'a> Run<'a> {
    fn new(duty: &'a DrainDuty, options: &'a ConnectOptions, job: DrainJob) -> Self {
        let report = DrainReport { job, ..DrainReport::default() };
        let clients = BTreeMap::new();
        Self { duty, options, report, reported: Instant::now(), clients, failed_rounds: 0 }
    }

    fn is_current(&self) -> bool {
        self.duty.job().is_some_and(|it| it.id == self.report.job.id)
    }

    /// Looks at every object once, and reports. Returns how long to wait before the next round; `None` when
    /// the node has ended.
    async fn round(&mut self) -> Option<Duration> {
        let moved_before = self.report.succeeded;
        let (mut blocked, mut failed) = (0, 0);
        let mut is_empty = true;
        let mut next = Some(0);
        let mut moving = JoinSet::new();
        while let Some(first) = next {
            let page = self.duty.held(first, PAGE_OBJECTS)?;
            is_empty &= page.records.is_empty() && !page.has_reservations;
            next = page.next;
            for record in page.records {
                while moving.len() >= self.report.job.concurrency.clamp(1, CONCURRENCY_MAX) as usize {
                    self.count(moving.join_next().await, &mut blocked, &mut failed);
                    self.report_progress(moving.len());
                }
                if !self.is_current() {
                    break;
                }
                match self.client(&record.namespace).await {
                    Ok(client) => {
                        let (job, name) = (self.report.job.clone(), self.duty.info().name.clone());
                        moving.spawn(async move { move_object(&client, &record, &job, &name).await });
                    }
                    Err(_) => blocked += 1,
                }
            }
        }
        while let Some(outcome) = moving.join_next().await {
            self.count(Some(outcome), &mut blocked, &mut failed);
            self.report_progress(moving.len());
        }
        let is_stuck = failed > 0 && blocked == 0 && self.report.succeeded == moved_before;
        self.failed_rounds = if is_stuck { self.failed_rounds + 1 } else { 0 };
        self.report.state = match is_empty {
            true => DrainState::Empty,
            false if self.failed_rounds >= FAILED_ROUNDS_MAX => DrainState::Failed,
            false => DrainState::Moving,
        };
        (self.report.blocked, self.report.failed, self.report.active) = (blocked, failed, 0);
        self.duty.report(self.report.clone());
        self.reported = Instant::now();
        Some(if is_empty { EMPTY_PAUSE } else { ROUND_PAUSE })
    }

    fn count(
        &mut self,
        outcome: Option<Result<Outcome, tokio::task::JoinError>>,
        blocked: &mut u64,
        failed: &mut u64,
    ) {
        match outcome {
            Some(Ok(Outcome::Moved(bytes))) => {
                self.report.succeeded += 1;
                self.report.bytes += bytes;
            }
            Some(Ok(Outcome::Blocked)) => *blocked += 1,
            Some(Ok(Outcome::Failed) | Err(_)) => *failed += 1,
            Some(Ok(Outcome::Gone)) | None => (),
        }
    }

    fn report_progress(&mut self, active: usize) {
        self.report.active = active as u64;
        if self.reported.elapsed() >= REPORT_PAUSE {
            self.reported = Instant::now();
            self.duty.report(self.report.clone());
        }
    }

    /// A client in a namespace.
    async fn client(&mut self, namespace: &str) -> Result<Client, Error> {
        if let Some(client) = self.clients.get(namespace) {
            return Ok(client.clone());
        }
        if self.clients.len() >= CLIENTS_MAX {
            // Those in use end with the moves that use them.
            self.clients.clear();
        }
        let options = ConnectOptions { namespace: namespace.to_owned(), ..self.options.clone() };
        let client = Client::connect(options).await?;
        self.clients.insert(namespace.to_owned(), client.clone());
        Ok(client)
    }
}

async fn move_object(client: &Client, record: &Record, job: &DrainJob, name: &str) -> Outcome {
    let deadline = Deadline::after(MOVE_TIME);
    match try_to_move(client, &record.key, job, name, deadline).await {
        Ok(outcome) => outcome,
        Err(Error::NotFound { .. }) => Outcome::Gone,
        Err(error) => class_of(&error),
    }
}

/// Moves an object to segments that are not drained, as many as it loses copies, if there are that many.
async fn try_to_move(
    client: &Client,
    key: &Key,
    job: &DrainJob,
    name: &str,
    deadline: Deadline,
) -> Result<Outcome, Error> {
    let info = find(client, key, deadline).await?;
    let held = segments_of(&info);
    if !held.contains(name) {
        // The master has retired this copy, and the node has not yet.
        return Ok(Outcome::Gone);
    }
    let remove: BTreeSet<_> = held.iter().filter(|it| job.sources.contains(it)).cloned().collect();
    let kept = held.len() - remove.len();
    let candidates = candidates(&client.stat(deadline).await?.nodes, &held, job, info.len);
    let mut tries: Vec<BTreeSet<String>> = Vec::new();
    for count in (1..=remove.len().min(candidates.len())).rev() {
        let windows = candidates.windows(count).take(TARGETS_MAX);
        tries.extend(windows.map(|it| it.iter().cloned().collect()));
    }
    // A copy elsewhere is enough where there is no memory for another.
    if kept > 0 {
        tries.push(BTreeSet::new());
    }
    for add in tries {
        let change = Change { remove: remove.clone(), add, keeps_count: true };
        match relocate(client, key, &change, deadline).await {
            Ok(Some(())) => return Ok(Outcome::Moved(info.len)),
            Ok(None) => return Ok(Outcome::Blocked),
            Err(Error::Full { .. } | Error::NoNode { .. } | Error::OverQuota { .. }) => (),
            Err(error) => return Err(error),
        }
    }
    Ok(Outcome::Blocked)
}

/// The names of the segments that may receive an object: those with enough free memory first.
fn candidates(nodes: &[NodeStat], held: &BTreeSet<String>, job: &DrainJob, len: u64) -> Vec<String> {
    let mut free: BTreeMap<&String, u64> = BTreeMap::new();
    for node in nodes {
        let name = &node.info.name;
        let is_memory = node.alive && node.info.beside.is_none() && node.usage.capacity > 0;
        let is_target = job.targets.is_empty() || job.targets.contains(name);
        if is_memory && is_target && !held.contains(name) && !job.sources.contains(name) {
            let most = free.entry(name).or_default();
            *most = (*most).max(node.usage.free);
        }
    }
    let mut names: Vec<_> = free.into_iter().collect();
    names.sort_by_key(|(_, free)| (*free < len, std::cmp::Reverse(*free)));
    names.into_iter().map(|(name, _)| name.clone()).collect()
}

/// Errors that may pass by themselves block an object. The others are failures.
fn class_of(error: &Error) -> Outcome {
    match error {
        Error::Refused { .. } | Error::Unauthenticated { .. } | Error::Timeout { .. } => Outcome::Failed,
        _ => Outcome::Blocked,
    }
}
