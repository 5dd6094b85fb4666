//! One process of a torture: a reader that believes nothing, or a writer that lets nothing rest.
//!
//! It works until its standard input ends, and tells what it saw in lines of JSON. What is wrong it tells at
//! once: it may be killed at any moment.

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
use tiffin_core::Key;

use super::pattern::{self, Dice, HEAD_BYTES};
use super::tally::Tally;
use crate::Context;
use crate::console::{Console, Failure, STATUS_OK};

/// The largest value.
pub(super) const VALUE_BYTES_MAX: usize = 1 << 20;
/// Keys that half of all calls are about, so that they meet.
const HOT_KEYS: u64 = 16;
/// Objects read in one call.
const BATCH: u64 = 4;
/// Views that a reader keeps while it goes on.
const VIEWS_MAX: usize = 6;
/// How often a worker tells what it saw.
const TELL_EVERY: Duration = Duration::from_millis(50);
/// How long a call may take. Far more than it does unless somebody was stopped.
const CALL_TIME: Duration = Duration::from_secs(10);

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    Reader,
    Writer,
}

/// What a worker, or somebody else, does wrong so that the torture must notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sabotage {
    /// Writers store a value that begins as one version and ends as another, as a torn read would look.
    Mix,
    /// A view outlives everything.
    Leak,
}

/// One process of a torture.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Worker {
    #[arg(long)]
    pub(super) role: Role,
    /// Which one of its role.
    #[arg(long)]
    pub(super) index: u64,
    /// How often it was started before.
    #[arg(long)]
    pub(super) life: u64,
    /// How many writers there are: each has keys of its own.
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
    pub(super) sabotage: Option<Sabotage>,
}

/// Works until standard input ends.
pub(crate) async fn run(worker: Worker, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stop);
    // The one who started this process closes its input, or dies; both end the read.
    tokio::task::spawn_blocking(move || {
        let _any = std::io::stdin().read(&mut [0]);
        told.store(true, Ordering::Relaxed);
    });
    let mix = mix_of(&worker);
    let mut hands = Hands {
        client: connect(&worker, context).await?,
        dice: Dice::new(mix),
        stop,
        tally: Tally::default(),
        told: Instant::now(),
        worker,
    };
    match hands.worker.role {
        Role::Reader => hands.read_on(console).await?,
        Role::Writer => hands.write_on(console).await?,
    }
    hands.tell(console)?;
    let _unheard = hands.client.close(deadline()).await;
    Ok(STATUS_OK)
}

fn mix_of(worker: &Worker) -> u64 {
    let role = if worker.role == Role::Reader { 1 } else { 2 };
    worker.seed ^ (role << 60) ^ (worker.index << 40) ^ (worker.life << 20)
}

/// Every second worker of a role goes through sockets, as if it were on another host.
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

/// The name of a key that is a number here.
pub(super) fn key(number: u64) -> Result<Key, Failure> {
    Key::new(format!("torture/{number}").as_bytes()).map_err(|error| Failure::new("internal", error))
}

struct Hands {
    client: Client,
    dice: Dice,
    stop: Arc<AtomicBool>,
    tally: Tally,
    told: Instant,
    worker: Worker,
}

impl Hands {
    /// Whether to go on; tells now and then.
    fn goes_on(&mut self, console: &mut Console) -> Result<bool, Failure> {
        if self.told.elapsed() >= TELL_EVERY || !self.tally.wrong.is_empty() {
            self.tell(console)?;
        }
        Ok(!self.stop.load(Ordering::Relaxed))
    }

    fn tell(&mut self, console: &mut Console) -> Result<(), Failure> {
        self.told = Instant::now();
        console.value(&std::mem::take(&mut self.tally))
    }

    /// Counts a call that did not do what was asked; fails if no torture explains it.
    fn excuse(&mut self, error: &Error) -> Result<(), Failure> {
        match error {
            Error::NotFound { .. } => self.tally.absent += 1,
            Error::Contended { .. } => self.tally.gave_up += 1,
            Error::Full { .. } => self.tally.full += 1,
            Error::NodeDown { .. }
            | Error::NoNode { .. }
            | Error::Unreachable { .. }
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
        let end = if self.dice.chance(1, 2) { HOT_KEYS.min(self.worker.keys) } else { self.worker.keys };
        self.dice.below(end)
    }
}

/// Room for a batch of values, and how often each was asked for: once more than races were lost.
struct Room<'a> {
    items: Vec<(TargetBuf<'a>, AtomicU64)>,
}

impl<'a> Landing<'a> for Room<'a> {
    fn land(&self, item: usize, len: u64) -> Option<Vec<TargetBuf<'a>>> {
        let (target, asked) = self.items.get(item)?;
        asked.fetch_add(1, Ordering::Relaxed);
        let len = usize::try_from(len).ok().filter(|len| *len <= target.len())?;
        Some(vec![target.split_at(len).0])
    }
}

/// What a reader has seen of each key: it never sees an older version than before.
type Seen = BTreeMap<u64, Version>;

/// One version of a key.
#[derive(Clone, Copy, Debug)]
struct Version {
    generation: Generation,
    id: u64,
    len: usize,
}

impl Hands {
    async fn read_on(&mut self, console: &mut Console) -> Result<(), Failure> {
        let mut seen = Seen::new();
        let mut views = VecDeque::new();
        let mut buffers: Vec<Vec<u8>> = (0..BATCH).map(|_| vec![0; VALUE_BYTES_MAX]).collect();
        while self.goes_on(console)? {
            if has_shared_memory(&self.worker) && self.dice.chance(1, 4) {
                self.look(&mut seen, &mut views).await?;
            } else if self.dice.chance(1, 4) {
                self.copy_part(&seen, &mut buffers).await?;
            } else {
                self.copy(&mut seen, &mut buffers).await?;
            }
        }
        for view in views {
            self.look_again(view)?;
        }
        Ok(())
    }

    async fn copy(&mut self, seen: &mut Seen, buffers: &mut [Vec<u8>]) -> Result<(), Failure> {
        let picked: Vec<u64> = (0..BATCH).map(|_| self.pick()).collect();
        let keys = picked.iter().map(|&number| key(number)).collect::<Result<Vec<_>, _>>()?;
        let items = buffers.iter_mut().map(|it| (TargetBuf::from(it.as_mut_slice()), AtomicU64::new(0)));
        let room = Room { items: items.collect() };
        let fetched = self.client.get_landing(&keys, &room, GetOptions::default(), deadline()).await;
        for (_, asked) in room.items {
            self.tally.retried += asked.into_inner().saturating_sub(1);
        }
        for ((number, fetched), buffer) in picked.into_iter().zip(fetched).zip(buffers) {
            match fetched {
                Ok(it) => {
                    let bytes = usize::try_from(it.len).ok().and_then(|len| buffer.get(..len));
                    if self.is_right(number, it.generation, bytes.unwrap_or_default(), seen) {
                        let way = has_shared_memory(&self.worker);
                        *(if way { &mut self.tally.shared_memory } else { &mut self.tally.tcp }) += 1;
                    }
                }
                Err(error) => self.excuse(&error)?,
            }
        }
        Ok(())
    }

    /// Reads a range of what was seen before. It says nothing of its version, so that only the same
    /// generation can be compared.
    async fn copy_part(&mut self, seen: &Seen, buffers: &mut [Vec<u8>]) -> Result<(), Failure> {
        let number = self.pick();
        let (Some(version), Some(buffer)) = (seen.get(&number), buffers.first_mut()) else { return Ok(()) };
        let start = self.dice.below(version.len as u64) as usize;
        let end = start + 1 + self.dice.below((version.len - start) as u64) as usize;
        let Some(room) = buffer.get_mut(..end - start) else { return Ok(()) };
        let item = GetInto::new(key(number)?, room).range(start as u64..end as u64);
        match self.client.get_into(&[item], GetOptions::default(), deadline()).await.pop() {
            Some(Ok(fetched)) if fetched.generation == version.generation => {
                let bytes = buffer.get(..end - start).unwrap_or_default();
                if pattern::is_part(bytes, number, version.id, version.len, start) {
                    self.tally.ranges += 1;
                } else {
                    let what = format!("bytes {start} to {end} of version {:x} are others", version.id);
                    self.tally.wrong.push(format!("key {number}: {what}"));
                }
            }
            // It was replaced, maybe by a shorter one.
            Some(Ok(_)) | None => {}
            Some(Err(Error::OutOfRange { .. })) => self.tally.absent += 1,
            Some(Err(error)) => self.excuse(&error)?,
        }
        Ok(())
    }

    async fn look(&mut self, seen: &mut Seen, views: &mut VecDeque<(u64, View)>) -> Result<(), Failure> {
        let number = self.pick();
        match self.client.view(&[key(number)?], deadline()).await.pop() {
            Some(Ok(view)) => {
                let bytes = view.bytes().map_err(|error| Failure::new("unexpected", error))?;
                if self.is_right(number, view.generation(), bytes, seen) {
                    *(if view.is_borrowed() {
                        &mut self.tally.views
                    } else {
                        &mut self.tally.shared_memory
                    }) += 1;
                }
                views.push_back((number, view));
            }
            Some(Err(error)) => self.excuse(&error)?,
            None => {}
        }
        if views.len() > VIEWS_MAX
            && let Some(view) = views.pop_front()
        {
            self.look_again(view)?;
        }
        Ok(())
    }

    /// A view still shows what it showed when it began, whatever became of the object.
    fn look_again(&mut self, (number, view): (u64, View)) -> Result<(), Failure> {
        let bytes = view.bytes().map_err(|error| Failure::new("unexpected", error))?;
        match pattern::check(bytes, number) {
            Ok(_) => self.tally.views_again += 1,
            Err(what) => self.tally.wrong.push(format!("a view of key {number} changed: {what}")),
        }
        Ok(())
    }

    fn is_right(&mut self, number: u64, generation: Generation, bytes: &[u8], seen: &mut Seen) -> bool {
        let before = seen.get(&number).copied();
        let wrong = match (pattern::check(bytes, number), before) {
            (Err(what), _) => Some(what),
            (Ok(id), Some(before)) if before.generation == generation && before.id != id => {
                Some(format!("generation {generation} is version {id:x} now, and was {:x}", before.id))
            }
            (Ok(_), Some(before)) if before.generation > generation => {
                Some(format!("generation {generation}, although {} was there before", before.generation))
            }
            (Ok(id), _) => {
                seen.insert(number, Version { generation, id, len: bytes.len() });
                None
            }
        };
        let is_right = wrong.is_none();
        self.tally.wrong.extend(wrong.map(|what| format!("key {number}: {what}")));
        is_right
    }
}

impl Hands {
    async fn write_on(&mut self, console: &mut Console) -> Result<(), Failure> {
        let mut count = 0;
        // The newest version of each key that this process has stored for certain.
        let mut stored = BTreeMap::new();
        // Versions that may yet appear: the answer to their put got lost.
        let mut doubtful = BTreeSet::new();
        let mut buffer = vec![0; VALUE_BYTES_MAX];
        while self.goes_on(console)? {
            let picked = self.pick();
            // Nobody else writes this key, so that what is seen of it says something.
            let number = picked - picked % self.worker.writers + self.worker.index;
            let keys = [key(number)?];
            let newest = if self.dice.chance(1, 4) {
                match self.client.delete(&keys, DeleteOptions { force: true }, deadline()).await.pop() {
                    Some(Ok(_)) => self.tally.deletes += 1,
                    Some(Err(error)) => {
                        self.excuse(&error)?;
                        continue;
                    }
                    None => {}
                }
                stored.remove(&number).map(|id| (id + 1, "removed"))
            } else {
                count += 1;
                let id = self.worker.index << 48 | (self.worker.life & 0xffff) << 32 | count;
                if !self.store(number, id, &mut buffer).await? {
                    doubtful.insert(id);
                    continue;
                }
                stored.insert(number, id);
                Some((id, "replaced"))
            };
            if let Some((least, what)) = newest
                && self.dice.chance(1, 4)
            {
                self.confirm(number, least, what, &doubtful).await?;
            }
        }
        Ok(())
    }

    /// Stores one version; whether that is certain.
    async fn store(&mut self, number: u64, id: u64, buffer: &mut [u8]) -> Result<bool, Failure> {
        let len = self.dice.length(HEAD_BYTES, VALUE_BYTES_MAX);
        let bytes = buffer.get_mut(..len).unwrap_or_default();
        pattern::fill(bytes, number, id);
        if self.worker.sabotage == Some(Sabotage::Mix) && self.dice.chance(1, 8) {
            let mut other = vec![0; len];
            pattern::fill(&mut other, number, id + 1);
            let half = HEAD_BYTES + (len - HEAD_BYTES) / 2;
            let tail = bytes.iter_mut().zip(other).skip(half);
            tail.for_each(|(byte, other)| *byte = other);
        }
        let mut put = Put::new(key(number)?, bytes);
        put.options.replicas = if self.dice.chance(1, 4) { 2 } else { 1 };
        match self.client.put(&[put], deadline()).await.pop() {
            Some(Ok(_)) => self.tally.puts += 1,
            Some(Err(error)) => {
                self.excuse(&error)?;
                return Ok(false);
            }
            None => {}
        }
        Ok(true)
    }

    /// Reads a key that was just changed: no older version of this life may be there.
    async fn confirm(
        &mut self,
        number: u64,
        least: u64,
        what: &str,
        doubtful: &BTreeSet<u64>,
    ) -> Result<(), Failure> {
        let object = match self.client.get(&[key(number)?], GetOptions::default(), deadline()).await.pop() {
            Some(Ok(object)) => object,
            // It may have been evicted, or its node killed.
            Some(Err(error)) => return self.excuse(&error),
            None => return Ok(()),
        };
        match pattern::check(&object.bytes, number) {
            // What an earlier life had under way when it was killed may still come.
            Ok(id) if id >> 32 == least >> 32 && id < least && !doubtful.contains(&id) => {
                self.tally.wrong.push(format!("key {number}: version {id:x} was {what}, and is there"));
            }
            Ok(_) => self.tally.confirmed += 1,
            Err(what) => self.tally.wrong.push(format!("key {number}: {what}")),
        }
        Ok(())
    }
}
