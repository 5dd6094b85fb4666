//! One client process of a benchmark: it prepares and runs tasks, and reports the latencies of its calls.
//!
//! A line of JSON is a command, and is answered by a line of JSON. Keys, buffers and arguments are prepared
//! before a call is timed; cleanup between calls is not timed.

use std::io::BufRead;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tiffin_client::{
    Client, ConnectOptions, Deadline, DeleteOptions, Dtype, Error, Generation, GetInto, GetOptions, Put,
    ResolveOptions, SamplePut, SpaceWait, TensorRef,
};
use tiffin_embedded::Embedded;
use tiffin_report::document::Times;
use tiffin_types::Key;

use super::plan::{Limit, PAGES, SAMPLE_AUX, SAMPLE_LAST, SAMPLE_TOKENS, Shape, Task, Workload, ZIPF_KEYS};
use crate::console::{Console, Failure, STATUS_OK};
use crate::store_client::explain;
use crate::torture::Rng;

/// Time limit of a call; far above its usual time.
const CALL_TIME: Duration = Duration::from_secs(30);
/// Exponent of the Zipf distribution, as usual for caches.
const ZIPF_EXPONENT: f64 = 0.99;
const TENSORS: [&str; 3] = ["aux", "last", "ids"];

/// One client process of a benchmark.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Worker {
    #[arg(long)]
    pub(super) shape: Shape,
    /// Address of the master; not used if the store is in this process.
    #[arg(long, default_value = "")]
    pub(super) address: String,
    #[arg(long)]
    pub(super) index: u64,
    /// Memory of a store in this process.
    #[arg(long)]
    pub(super) memory: u64,
}

/// A command to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum WorkerCommand {
    /// Prepare this task.
    Prepare(Task),
    /// Run it, up to this limit.
    Run(Limit),
    /// Delete its objects.
    Clear,
}

/// Handles commands until standard input ends.
pub(crate) async fn run(worker: Worker, console: &mut Console) -> Result<i32, Failure> {
    let mut client = BenchClient::open(&worker).await?;
    console.value(&"ready")?;
    for line in std::io::stdin().lock().lines() {
        let command: WorkerCommand =
            serde_json::from_str(&line?).map_err(|error| Failure::new("internal", error))?;
        let times = client.handle(command).await.map_err(|error| explain(&error))?;
        console.value(&times.counts())?;
    }
    client.close().await;
    Ok(STATUS_OK)
}

/// A client, a second client whose puts the first has not seen, and their buffers.
struct BenchClient {
    client: Client,
    other: Client,
    embedded: Option<Embedded>,
    prefix: String,
    source: Vec<u8>,
    target: Vec<u8>,
    rng: Rng,
    /// Counter for unique keys.
    serial: u64,
    task: Option<Task>,
    /// The keys of each reading call.
    known: Vec<Vec<Key>>,
}

impl BenchClient {
    async fn open(worker: &Worker) -> Result<Self, Failure> {
        let embedded = match worker.shape {
            Shape::Process => {
                let started = Embedded::start(worker.memory).await;
                Some(started.map_err(|error| Failure::new("system", error))?)
            }
            Shape::Host | Shape::Tcp => None,
        };
        let options = embedded.as_ref().map_or_else(
            || ConnectOptions {
                shared_memory: worker.shape == Shape::Host,
                ..ConnectOptions::new(worker.address.clone())
            },
            |it| Embedded::options(&it.server),
        );
        let connect = async || Client::connect(options.clone()).await.map_err(|error| explain(&error));
        Ok(Self {
            client: connect().await?,
            other: connect().await?,
            embedded,
            prefix: format!("bench-{}", worker.index),
            source: Vec::new(),
            target: Vec::new(),
            rng: Rng::new(worker.index),
            serial: 0,
            task: None,
            known: Vec::new(),
        })
    }

    async fn handle(&mut self, command: WorkerCommand) -> Result<Times, Error> {
        let mut times = Times::new();
        match command {
            WorkerCommand::Prepare(task) => self.prepare(task).await?,
            WorkerCommand::Run(limit) => {
                if let Some(task) = self.task {
                    self.run_task(task, limit.warm_up()).await?;
                    times = self.run_task(task, limit).await?;
                }
            }
            WorkerCommand::Clear => {
                let known = std::mem::take(&mut self.known);
                self.delete(&known.concat()).await?;
            }
        }
        Ok(times)
    }

    async fn close(self) {
        // The server notices the end of the process.
        let _ignored = self.client.close(soon()).await;
        let _ignored = self.other.close(soon()).await;
        if let Some(embedded) = self.embedded {
            let _ignored = embedded.stop(soon()).await;
        }
    }

    /// Creates buffers, and the objects that are read.
    async fn prepare(&mut self, task: Task) -> Result<(), Error> {
        self.task = Some(task);
        let bytes = (task.size * task.items) as usize;
        self.source = vec![0x5a; bytes];
        self.target = vec![0; bytes];
        let calls = match task.workload {
            Workload::Zipf => ZIPF_KEYS,
            Workload::Exists => 1,
            _ => task.working_calls(),
        };
        let reads = task.reads && task.workload != Workload::Sample && !task.new_keys;
        if !reads {
            return Ok(());
        }
        for _ in 0..calls {
            let keys = self.names(task.items)?;
            // In existence checks, every second key exists.
            let step = if task.workload == Workload::Exists { 2 } else { 1 };
            let existing: Vec<Key> = keys.iter().step_by(step).cloned().collect();
            all(self.client.put(&puts(&existing, &self.source, task.size), soon()).await)?;
            if step == 1 {
                self.get(&existing, task.size).await?;
            }
            self.known.push(keys);
        }
        Ok(())
    }

    async fn run_task(&mut self, task: Task, limit: Limit) -> Result<Times, Error> {
        let mut times = Times::new();
        let end = Instant::now() + limit.time();
        while times.histogram.len() < limit.calls && (Instant::now() < end || times.histogram.is_empty()) {
            let calls = (limit.calls - times.histogram.len()).min(task.working_calls());
            match (task.workload, task.reads) {
                (Workload::Put, _) | (Workload::Kv, false) => self.put_new(task, calls, &mut times).await?,
                (Workload::Get, _) if task.new_keys => self.get_new(task, calls, &mut times).await?,
                (Workload::Sample, reads) => self.sample(reads, &mut times).await?,
                _ => self.read_known(task, calls, &mut times).await?,
            }
        }
        Ok(times)
    }

    /// Puts new objects, then deletes them.
    async fn put_new(&mut self, task: Task, calls: u64, times: &mut Times) -> Result<(), Error> {
        let mut done = Vec::new();
        for _ in 0..calls {
            let keys = self.names(task.items)?;
            let puts = puts(&keys, &self.source, task.size);
            let began = Instant::now();
            let stored = self.client.put(&puts, soon()).await;
            times.record(began.elapsed());
            all(stored)?;
            done.extend(keys);
        }
        self.delete(&done).await
    }

    /// Gets objects that the other client has just put.
    async fn get_new(&mut self, task: Task, calls: u64, times: &mut Times) -> Result<(), Error> {
        let mut unseen = Vec::new();
        for _ in 0..calls {
            let keys = self.names(task.items)?;
            all(self.other.put(&puts(&keys, &self.source, task.size), soon()).await)?;
            unseen.push(keys);
        }
        for keys in &unseen {
            times.record(self.get(keys, task.size).await?);
        }
        self.delete(&unseen.concat()).await
    }

    /// Reads known keys: in turn, with a Zipf distribution, or with puts in between.
    async fn read_known(&mut self, task: Task, calls: u64, times: &mut Times) -> Result<(), Error> {
        for call in 0..calls as usize {
            let at = match task.workload {
                Workload::Zipf => zipf(&mut self.rng, self.known.len()),
                _ => call % self.known.len().max(1),
            };
            let keys = self.known.get(at).cloned().unwrap_or_default();
            let time = match task.workload {
                Workload::Mixed if call % 5 == 4 => {
                    let puts = puts(&keys, &self.source, task.size);
                    let began = Instant::now();
                    let stored = self.client.put(&puts, soon()).await;
                    let time = began.elapsed();
                    all(stored)?;
                    time
                }
                Workload::Exists => {
                    let began = Instant::now();
                    let found = self.client.exists(&keys, ResolveOptions::default(), soon()).await;
                    let time = began.elapsed();
                    let existing = all(found)?.into_iter().filter(|existing| *existing).count();
                    assert_eq!(existing, keys.len().div_ceil(2), "every second key exists");
                    time
                }
                Workload::Kv => {
                    // The requested prefix is twice as long as the existing one.
                    let beyond = self.names(PAGES)?;
                    let prefix = [keys.clone(), beyond].concat();
                    let began = Instant::now();
                    let found = self.client.exists(&prefix, ResolveOptions::default(), soon()).await;
                    let time = began.elapsed();
                    let existing = all(found)?.into_iter().filter(|existing| *existing).count();
                    assert_eq!(existing, keys.len(), "half of the prefix exists");
                    time + self.get(&keys, task.size).await?
                }
                _ => self.get(&keys, task.size).await?,
            };
            times.record(time);
        }
        Ok(())
    }

    /// A sample from its producer to its consumer; one of the two halves is timed.
    async fn sample(&mut self, reads: bool, times: &mut Times) -> Result<(), Error> {
        let id = self.names(1)?.remove(0);
        let (aux, rest) = self.source.split_at((SAMPLE_TOKENS * SAMPLE_AUX * 2) as usize);
        let (last, ids) = rest.split_at((SAMPLE_TOKENS * SAMPLE_LAST * 2) as usize);
        let tensors = vec![
            TensorRef::new("aux", Dtype::Bf16, &[SAMPLE_TOKENS, SAMPLE_AUX], aux),
            TensorRef::new("last", Dtype::Bf16, &[SAMPLE_TOKENS, SAMPLE_LAST], last),
            TensorRef::new("ids", Dtype::I64, &[SAMPLE_TOKENS], ids),
        ];
        let samples = [SamplePut::new(id.clone(), tensors)];
        let began = Instant::now();
        let stored = self.other.put_samples(&samples, SpaceWait::UntilDeadline, soon()).await;
        let time = began.elapsed();
        let generation = all(stored)?.into_iter().next().map_or(Generation::default(), |it| it.generation);
        if !reads {
            times.record(time);
        }
        let began = Instant::now();
        for lease in all(self.client.lease(&[(id.clone(), Some(generation))], "", soon()).await)? {
            lease.read(&TENSORS, soon()).await?;
        }
        all(self.client.ack(&[(id, generation)], "", soon()).await)?;
        if reads {
            times.record(began.elapsed());
        }
        Ok(())
    }

    /// Gets into the buffer. Returns the time.
    async fn get(&mut self, keys: &[Key], size: u64) -> Result<Duration, Error> {
        let parts = self.target.chunks_mut(size.max(1) as usize);
        let items: Vec<GetInto<'_>> =
            keys.iter().zip(parts).map(|(key, part)| GetInto::new(key.clone(), part)).collect();
        let began = Instant::now();
        let got = self.client.get_into(&items, GetOptions::default(), soon()).await;
        let time = began.elapsed();
        for fetched in all(got)? {
            assert_eq!(fetched.len, size, "an object keeps its size");
        }
        Ok(time)
    }

    async fn delete(&self, keys: &[Key]) -> Result<(), Error> {
        all(self.client.delete(keys, DeleteOptions { force: true }, soon()).await).map(|_| ())
    }

    /// New unique keys.
    fn names(&mut self, count: u64) -> Result<Vec<Key>, Error> {
        let first = self.serial;
        self.serial += count;
        let name = |number| Key::new(format!("{}-{number}", self.prefix).as_bytes()).map_err(Error::from);
        (first..self.serial).map(name).collect()
    }
}

/// A put for each key, of consecutive parts of a buffer.
fn puts<'a>(keys: &[Key], source: &'a [u8], size: u64) -> Vec<Put<'a>> {
    let parts = source.chunks(size.max(1) as usize);
    keys.iter().zip(parts).map(|(key, part)| Put::new(key.clone(), part)).collect()
}

fn all<T>(results: Vec<Result<T, Error>>) -> Result<Vec<T>, Error> {
    results.into_iter().collect()
}

/// An index below `count` with a Zipf distribution, by the usual continuous approximation.
fn zipf(rng: &mut Rng, count: usize) -> usize {
    let power = 1.0 - ZIPF_EXPONENT;
    let most = ((count + 1) as f64).powf(power) - 1.0;
    let index = (rng.unit() * most + 1.0).powf(1.0 / power) - 1.0;
    (index as usize).min(count.saturating_sub(1))
}

fn soon() -> Deadline {
    Deadline::after(CALL_TIME)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_prefers_a_few_keys_and_reaches_all() {
        let mut rng = Rng::new(7);
        let mut counts = vec![0_u32; 100];
        for _ in 0..100_000 {
            counts[zipf(&mut rng, 100)] += 1;
        }
        assert!(counts.iter().all(|it| *it > 0), "{counts:?}");
        assert!(counts[0] > 8 * counts[20] && counts[0] > 30 * counts[99], "{counts:?}");
    }
}
