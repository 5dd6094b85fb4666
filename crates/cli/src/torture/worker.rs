//! One worker process of a torture run: a reader that verifies everything, or a writer.
//!
//! It works until its standard input ends, and reports its counts in lines of JSON. Errors are reported at
//! once, because it may be killed at any moment.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use tiffin_client::{
    Client, ConnectOptions, Deadline, DeleteOptions, Error, Generation, GetInto, GetOptions, Landing, Put,
    TargetBuf, View,
};
use tiffin_types::Key;

use super::pattern::{self, HEAD_BYTES, Rng};
use super::tally::Tally;
use crate::Context;
use crate::console::{Console, Failure, STATUS_OK};

/// Maximum size of a value.
pub(super) const VALUE_BYTES_MAX: usize = 1 << 20;
/// Number of keys that half of all calls use, so that they collide.
const HOT_KEYS: u64 = 16;
/// Number of objects per read.
const BATCH: u64 = 4;
/// Maximum number of open views of a reader.
const VIEWS_MAX: usize = 6;
/// Interval of reports.
const REPORT_EVERY: Duration = Duration::from_millis(50);
/// Time limit of a call. Far above its usual time unless a process is stopped.
const CALL_TIME: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    Reader,
    Writer,
}

/// An injected error that the run must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mutant {
    /// Writers store a value with the beginning of one version and the end of another, like a torn read.
    Mix,
    /// A view stays open.
    Leak,
}

/// One process of a torture.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Worker {
    #[arg(long)]
    pub(super) role: Role,
    /// Number of the worker within its role.
    #[arg(long)]
    pub(super) index: u64,
    /// Number of restarts.
    #[arg(long)]
    pub(super) restarts: u64,
    /// Number of writers: each has its own keys.
    #[arg(long)]
    pub(super) writers: u64,
    #[arg(long)]
    pub(super) keys: u64,
    #[arg(long)]
    pub(super) seed: u64,
    #[arg(long)]
    pub(super) address: String,
    #[arg(long)]
    pub(super) namespace: String,
    #[arg(long)]
    pub(super) mutant: Option<Mutant>,
}

/// Works until standard input ends.
pub(crate) async fn run(worker: Worker, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let last_report = Arc::clone(&stop);
    // The parent closes our input, or dies; both end the read.
    tokio::task::spawn_blocking(move || {
        let _any = std::io::stdin().read(&mut [0]);
        last_report.store(true, Ordering::Relaxed);
    });
    let mix = mix_of(&worker);
    let mut state = WorkerState {
        client: connect(&worker, context).await?,
        rng: Rng::new(mix),
        stop,
        tally: Tally::default(),
        last_report: Instant::now(),
        worker,
    };
    match state.worker.role {
        Role::Reader => state.read_loop(console).await?,
        Role::Writer => state.write_loop(console).await?,
    }
    state.report(console)?;
    let _ignored = state.client.close(deadline()).await;
    Ok(STATUS_OK)
}

fn mix_of(worker: &Worker) -> u64 {
    let role = if worker.role == Role::Reader { 1 } else { 2 };
    worker.seed ^ (role << 60) ^ (worker.index << 40) ^ (worker.restarts << 20)
}

/// Every second worker of a role uses sockets, as if it were on another host.
fn has_shared_memory(worker: &Worker) -> bool {
    worker.index.is_multiple_of(2)
}

async fn connect(worker: &Worker, context: &Context) -> Result<Client, Failure> {
    let token = context.common.token().map_err(|error| Failure::new("config", error))?;
    let options = ConnectOptions {
        token,
        namespace: worker.namespace.clone(),
        label: format!("{:?} {} of a torture", worker.role, worker.index),
        shared_memory: has_shared_memory(worker),
        ..ConnectOptions::new(worker.address.clone())
    };
    Client::connect(options).await.map_err(|error| Failure::new("unreachable", error))
}

fn deadline() -> Deadline {
    Deadline::after(CALL_TIME)
}

/// The key with this number.
pub(super) fn key(number: u64) -> Result<Key, Failure> {
    Key::new(format!("torture/{number}").as_bytes()).map_err(|error| Failure::new("internal", error))
}

struct WorkerState {
    client: Client,
    rng: Rng,
    stop: Arc<AtomicBool>,
    tally: Tally,
    last_report: Instant,
    worker: Worker,
}

impl WorkerState {
    /// Whether to continue. Reports from time to time.
    fn should_continue(&mut self, console: &mut Console) -> Result<bool, Failure> {
        if self.last_report.elapsed() >= REPORT_EVERY || !self.tally.wrong.is_empty() {
            self.report(console)?;
        }
        Ok(!self.stop.load(Ordering::Relaxed))
    }

    fn report(&mut self, console: &mut Console) -> Result<(), Failure> {
        self.last_report = Instant::now();
        console.value(&std::mem::take(&mut self.tally))
    }

    /// Counts a failed call; fails if the injected faults do not explain it.
    fn count_error(&mut self, error: &Error) -> Result<(), Failure> {
        match error {
            Error::NotFound { .. } => self.tally.absent += 1,
            Error::Contended { .. } => self.tally.gave_up += 1,
            Error::Full { .. } => self.tally.full += 1,
            Error::NodeDown { .. }
            | Error::NoNode { .. }
            | Error::Unreachable { .. }
            | Error::NoLeader { .. }
            | Error::Unavailable { .. }
            | Error::Timeout { .. }
            | Error::NoHandshake { .. }
            | Error::Unconfirmed { .. }
            | Error::Refused { .. } => self.tally.unavailable += 1,
            error => return Err(Failure::new("unexpected", error)),
        }
        Ok(())
    }

    fn pick(&mut self) -> u64 {
        let end = if self.rng.chance(1, 2) { HOT_KEYS.min(self.worker.keys) } else { self.worker.keys };
        self.rng.below(end)
    }
}

/// Buffers for a batch of values, and the number of attempts of each.
struct BatchBuffers<'a> {
    items: Vec<(TargetBuf<'a>, AtomicU64)>,
}

impl<'a> Landing<'a> for BatchBuffers<'a> {
    fn land(&self, item: usize, len: u64) -> Option<Vec<TargetBuf<'a>>> {
        let (target, asked) = self.items.get(item)?;
        asked.fetch_add(1, Ordering::Relaxed);
        let len = usize::try_from(len).ok().filter(|len| *len <= target.len())?;
        Some(vec![target.split_at(len).0])
    }
}

/// The last version that a reader has seen of each key: it must never see an older one.
type SeenVersions = BTreeMap<u64, Version>;

#[derive(Clone, Copy, Debug)]
struct Version {
    generation: Generation,
    id: u64,
    len: usize,
}

impl WorkerState {
    async fn read_loop(&mut self, console: &mut Console) -> Result<(), Failure> {
        let mut seen = SeenVersions::new();
        let mut views = VecDeque::new();
        let mut buffers: Vec<Vec<u8>> = (0..BATCH).map(|_| vec![0; VALUE_BYTES_MAX]).collect();
        while self.should_continue(console)? {
            if has_shared_memory(&self.worker) && self.rng.chance(1, 4) {
                self.check_view(&mut seen, &mut views).await?;
            } else if self.rng.chance(1, 4) {
                self.copy_part(&seen, &mut buffers).await?;
            } else {
                self.copy(&mut seen, &mut buffers).await?;
            }
        }
        for view in views {
            self.recheck_view(view)?;
        }
        Ok(())
    }

    async fn copy(&mut self, seen: &mut SeenVersions, buffers: &mut [Vec<u8>]) -> Result<(), Failure> {
        let picked: Vec<u64> = (0..BATCH).map(|_| self.pick()).collect();
        let keys = picked.iter().map(|&number| key(number)).collect::<Result<Vec<_>, _>>()?;
        let items = buffers.iter_mut().map(|it| (TargetBuf::from(it.as_mut_slice()), AtomicU64::new(0)));
        let target = BatchBuffers { items: items.collect() };
        let fetched = self.client.get_landing(&keys, &target, GetOptions::default(), deadline()).await;
        for (_, asked) in target.items {
            self.tally.retried += asked.into_inner().saturating_sub(1);
        }
        for ((number, fetched), buffer) in picked.into_iter().zip(fetched).zip(buffers) {
            match fetched {
                Ok(it) => {
                    let bytes = usize::try_from(it.len).ok().and_then(|len| buffer.get(..len));
                    if self.verify(number, it.generation, bytes.unwrap_or_default(), seen) {
                        let way = has_shared_memory(&self.worker);
                        *(if way { &mut self.tally.shared_memory } else { &mut self.tally.tcp }) += 1;
                    }
                }
                Err(error) => self.count_error(&error)?,
            }
        }
        Ok(())
    }

    /// Reads a range of an object that was read before. The range does not identify its version, so only the
    /// same generation can be compared.
    async fn copy_part(&mut self, seen: &SeenVersions, buffers: &mut [Vec<u8>]) -> Result<(), Failure> {
        let number = self.pick();
        let (Some(version), Some(buffer)) = (seen.get(&number), buffers.first_mut()) else { return Ok(()) };
        let start = self.rng.below(version.len as u64) as usize;
        let end = start + 1 + self.rng.below((version.len - start) as u64) as usize;
        let Some(target) = buffer.get_mut(..end - start) else { return Ok(()) };
        let item = GetInto::new(key(number)?, target).range(start as u64..end as u64);
        match self.client.get_into(&[item], GetOptions::default(), deadline()).await.pop() {
            Some(Ok(fetched)) if fetched.generation == version.generation => {
                let bytes = buffer.get(..end - start).unwrap_or_default();
                if pattern::is_part(bytes, number, version.id, version.len, start) {
                    self.tally.ranges += 1;
                } else {
                    let what = format!("wrong bytes {start} to {end} of version {:x}", version.id);
                    self.tally.wrong.push(format!("key {number}: {what}"));
                }
            }
            // The object was replaced, possibly by a shorter one.
            Some(Ok(_)) | None => {}
            Some(Err(Error::OutOfRange { .. })) => self.tally.absent += 1,
            Some(Err(error)) => self.count_error(&error)?,
        }
        Ok(())
    }

    async fn check_view(
        &mut self,
        seen: &mut SeenVersions,
        views: &mut VecDeque<(u64, View)>,
    ) -> Result<(), Failure> {
        let number = self.pick();
        match self.client.view(&[key(number)?], deadline()).await.pop() {
            Some(Ok(view)) => {
                let bytes = view.bytes().map_err(|error| Failure::new("unexpected", error))?;
                if self.verify(number, view.generation(), bytes, seen) {
                    *(if view.is_borrowed() {
                        &mut self.tally.views
                    } else {
                        &mut self.tally.shared_memory
                    }) += 1;
                }
                views.push_back((number, view));
            }
            Some(Err(error)) => self.count_error(&error)?,
            None => {}
        }
        if views.len() > VIEWS_MAX
            && let Some(view) = views.pop_front()
        {
            self.recheck_view(view)?;
        }
        Ok(())
    }

    /// A view must not change while it is open, whatever happens to the object.
    fn recheck_view(&mut self, (number, view): (u64, View)) -> Result<(), Failure> {
        let bytes = view.bytes().map_err(|error| Failure::new("unexpected", error))?;
        match pattern::check(bytes, number) {
            Ok(_) => self.tally.views_again += 1,
            Err(what) => self.tally.wrong.push(format!("a view of key {number} changed: {what}")),
        }
        Ok(())
    }

    fn verify(&mut self, number: u64, generation: Generation, bytes: &[u8], seen: &mut SeenVersions) -> bool {
        let before = seen.get(&number).copied();
        let wrong = match (pattern::check(bytes, number), before) {
            (Err(what), _) => Some(what),
            (Ok(id), Some(before)) if before.generation == generation && before.id != id => {
                Some(format!("generation {generation} is version {id:x} now and was {:x} before", before.id))
            }
            (Ok(_), Some(before)) if before.generation > generation => {
                Some(format!("generation {generation} after the newer {}", before.generation))
            }
            (Ok(id), _) => {
                seen.insert(number, Version { generation, id, len: bytes.len() });
                None
            }
        };
        let verify = wrong.is_none();
        self.tally.wrong.extend(wrong.map(|what| format!("key {number}: {what}")));
        verify
    }
}

impl WorkerState {
    async fn write_loop(&mut self, console: &mut Console) -> Result<(), Failure> {
        let mut count = 0;
        // The newest version of each key that this process has certainly stored.
        let mut stored = BTreeMap::new();
        // Versions that may appear later: the answer to their put was lost.
        let mut uncertain = BTreeSet::new();
        let mut buffer = vec![0; VALUE_BYTES_MAX];
        while self.should_continue(console)? {
            let picked = self.pick();
            // Only this writer writes this key, so its reads can be checked.
            let number = picked - picked % self.worker.writers + self.worker.index;
            let keys = [key(number)?];
            let newest = if self.rng.chance(1, 4) {
                match self.client.delete(&keys, DeleteOptions { force: true }, deadline()).await.pop() {
                    Some(Ok(_)) => self.tally.deletes += 1,
                    Some(Err(error)) => {
                        self.count_error(&error)?;
                        continue;
                    }
                    None => {}
                }
                stored.remove(&number).map(|id| (id + 1, "removed"))
            } else {
                count += 1;
                let id = self.worker.index << 48 | (self.worker.restarts & 0xffff) << 32 | count;
                if !self.store(number, id, &mut buffer).await? {
                    uncertain.insert(id);
                    continue;
                }
                stored.insert(number, id);
                Some((id, "replaced"))
            };
            if let Some((least, what)) = newest
                && self.rng.chance(1, 4)
            {
                self.confirm(number, least, what, &uncertain).await?;
            }
        }
        Ok(())
    }

    /// Stores one version. True if the put certainly succeeded.
    async fn store(&mut self, number: u64, id: u64, buffer: &mut [u8]) -> Result<bool, Failure> {
        let len = self.rng.length(HEAD_BYTES, VALUE_BYTES_MAX);
        let bytes = buffer.get_mut(..len).unwrap_or_default();
        pattern::fill(bytes, number, id);
        if self.worker.mutant == Some(Mutant::Mix) && self.rng.chance(1, 8) {
            let mut other = vec![0; len];
            pattern::fill(&mut other, number, id + 1);
            let half = HEAD_BYTES + (len - HEAD_BYTES) / 2;
            let tail = bytes.iter_mut().zip(other).skip(half);
            tail.for_each(|(byte, other)| *byte = other);
        }
        let mut put = Put::new(key(number)?, bytes);
        put.options.replicas = if self.rng.chance(1, 4) { 2 } else { 1 };
        match self.client.put(&[put], deadline()).await.pop() {
            Some(Ok(_)) => self.tally.puts += 1,
            Some(Err(error)) => {
                self.count_error(&error)?;
                return Ok(false);
            }
            None => {}
        }
        Ok(true)
    }

    /// Reads a key that was just changed: no older version of this process may exist.
    async fn confirm(
        &mut self,
        number: u64,
        least: u64,
        what: &str,
        uncertain: &BTreeSet<u64>,
    ) -> Result<(), Failure> {
        let object = match self.client.get(&[key(number)?], GetOptions::default(), deadline()).await.pop() {
            Some(Ok(object)) => object,
            // The object may have been evicted, or its node killed.
            Some(Err(error)) => return self.count_error(&error),
            None => return Ok(()),
        };
        match pattern::check(&object.bytes, number) {
            // A put of the previous process may still take effect after the process was killed.
            Ok(id) if id >> 32 == least >> 32 && id < least && !uncertain.contains(&id) => {
                self.tally.wrong.push(format!("key {number}: version {id:x} was {what}, but exists"));
            }
            Ok(_) => self.tally.confirmed += 1,
            Err(what) => self.tally.wrong.push(format!("key {number}: {what}")),
        }
        Ok(())
    }
}
