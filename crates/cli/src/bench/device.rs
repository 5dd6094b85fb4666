//! Puts and gets of device memory, in turns with bare copies between the device and pinned memory.

use std::future::Future;
use std::time::{Duration, Instant};

use tiffin_client::gpu::{self, BareCopy, DeviceError, Direction, Stream};
use tiffin_client::{
    Client, Deadline, DeleteOptions, DeviceMemory, Error, GetInto, GetOptions, Key, Put, SourceBuf, TargetBuf,
};
use tiffin_embedded::Embedded;
use tiffin_report::document::{Document, FLOOR, OURS, Series, Times};

use super::plan::Limit;
use super::{Progress, QUICK_MEMORY};
use crate::console::{Console, Failure};
use crate::show::{self, Table};
use crate::store_client::explain;

/// Sizes of objects.
const SIZES: [u64; 5] = [64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20];
/// The store holds at least this number of objects of a size that is measured.
const OBJECTS_MIN: u64 = 4;
/// Time limit of a call.
const CALL_TIME_MAX: Duration = Duration::from_secs(60);
/// Time limits for the registration of the store's memory: all of it, and without progress.
const REGISTER_TIME_MAX: Duration = Duration::from_secs(30);
const REGISTER_PAUSE_MAX: Duration = Duration::from_secs(2);
const HINT: &str = "`tiffin doctor` checks the CUDA driver and its devices";

/// The number of a device: `cuda:1`, `cuda` or `1`.
pub(super) fn number(text: &str) -> Result<u32, String> {
    let number = match text.split_once(':') {
        Some(("cuda", number)) => number,
        None if text == "cuda" => "0",
        _ => text,
    };
    number.parse().map_err(|_| "it is not `cuda:N`".to_owned())
}

/// Times of one size.
struct Measured {
    size: u64,
    put: Times,
    get: Times,
    save: Times,
    load: Times,
}

/// Measures all sizes that fit into a store of that memory.
pub(super) async fn run(
    device: u32,
    limit: Limit,
    memory: u64,
    console: &mut Console,
) -> Result<(Document, String), Failure> {
    let found = gpu::load().map_err(|error| failed(&error))?;
    let Some((name, _)) = found.devices.get(device as usize) else {
        let what = format!("no device cuda:{device}: the CUDA driver has {}", found.devices.len());
        return Err(Failure::new("device", what).hint(HINT));
    };
    let began = Instant::now();
    let store = Embedded::start(memory).await.map_err(|error| Failure::new("start", error))?;
    let sizes: Vec<_> = SIZES.into_iter().filter(|size| size * OBJECTS_MIN <= memory).collect();
    let mut progress = Progress { steps: sizes.len(), done: 0 };
    let mut measured = Vec::new();
    for size in sizes {
        progress.step(console, &format!("cuda:{device}: {}", show::size(size)));
        match measure(&store.client, device, size, limit, memory).await {
            Ok(times) => measured.push(times),
            Err(error) => {
                progress.clear(console);
                return Err(error);
            }
        }
    }
    progress.clear(console);
    store.stop(soon()).await.map_err(|error| Failure::new("stop", error))?;
    let shape = format!("cuda:{device}");
    let series = measured.iter().flat_map(|it| it.series(&shape)).collect();
    let mut document = Document::new(series, began.elapsed().as_secs_f64());
    document.quick = memory == QUICK_MEMORY;
    document.versions.insert("cuda".to_owned(), found.version.clone());
    document.versions.insert(shape.clone(), name.clone());
    Ok((document, table(&shape, &measured)))
}

fn soon() -> Deadline {
    Deadline::after(CALL_TIME_MAX)
}

fn failed(error: &DeviceError) -> Failure {
    Failure::new("device", error).hint(HINT)
}

/// The objects and memory of one size.
struct Bench<'a> {
    client: &'a Client,
    key: Key,
    new: Key,
    memory: DeviceMemory,
    bare: BareCopy,
}

async fn measure(
    client: &Client,
    device: u32,
    size: u64,
    limit: Limit,
    memory: u64,
) -> Result<Measured, Failure> {
    let key = |name: &[u8]| Key::new(name).map_err(|error| Failure::new("invalid", error));
    let allocate = || DeviceMemory::allocate(device, Stream::Synchronized, size);
    let mut bench = Bench {
        client,
        key: key(b"object")?,
        new: key(b"new")?,
        memory: allocate().map_err(|error| failed(&error))?,
        bare: BareCopy::new(device, size).map_err(|error| failed(&error))?,
    };
    let bytes: Vec<u8> = (0..size).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect();
    bench.put(&bench.key, SourceBuf::from(&bytes[..])).await?;
    bench.register(memory).await?;
    let mut times =
        Measured { size, put: Times::new(), get: Times::new(), save: Times::new(), load: Times::new() };
    bench.rounds(limit.warm_up(), &mut times).await?;
    times =
        Measured { put: Times::new(), get: Times::new(), save: Times::new(), load: Times::new(), ..times };
    bench.rounds(limit, &mut times).await?;
    bench.check(&bytes).await?;
    bench.delete(&bench.key).await?;
    Ok(times)
}

impl Bench<'_> {
    /// Transfers until the memory of the store is registered: from then on a call is as fast as it gets.
    async fn register(&self, memory: u64) -> Result<(), Failure> {
        let began = Instant::now();
        let (mut last, mut since) = (0, began);
        while last < memory && began.elapsed() < REGISTER_TIME_MAX && since.elapsed() < REGISTER_PAUSE_MAX {
            self.get(&self.key, self.memory.as_target()).await?;
            self.put_once().await?;
            let registered = gpu::registered_bytes();
            if registered != last {
                (last, since) = (registered, Instant::now());
            }
        }
        Ok(())
    }

    /// Measures all four in turns, so that what disturbs one disturbs the others.
    async fn rounds(&mut self, limit: Limit, times: &mut Measured) -> Result<(), Failure> {
        let until = Instant::now() + limit.time();
        while times.put.histogram.len() < limit.calls.max(1)
            && (Instant::now() < until || times.put.histogram.is_empty())
        {
            for (direction, times) in [(Direction::Save, &mut times.save), (Direction::Load, &mut times.load)]
            {
                let began = Instant::now();
                self.bare.run(direction).map_err(|error| failed(&error))?;
                times.record(began.elapsed());
            }
            times.put.record(self.put_once().await?);
            let began = Instant::now();
            self.get(&self.key, self.memory.as_target()).await?;
            times.get.record(began.elapsed());
        }
        Ok(())
    }

    /// Puts a new object, and deletes it again. Returns how long the put took.
    async fn put_once(&self) -> Result<Duration, Failure> {
        let began = Instant::now();
        self.put(&self.new, self.memory.as_source()).await?;
        let took = began.elapsed();
        self.delete(&self.new).await?;
        Ok(took)
    }

    /// The bytes arrive: a fast copy of wrong bytes is no result.
    async fn check(&self, bytes: &[u8]) -> Result<(), Failure> {
        self.get(&self.key, self.memory.as_target()).await?;
        self.put(&self.new, self.memory.as_source()).await?;
        let mut back = vec![0; bytes.len()];
        self.get(&self.new, TargetBuf::from(&mut back[..])).await?;
        self.delete(&self.new).await?;
        match back == bytes {
            true => Ok(()),
            false => Err(Failure::new("device", "the device copied wrong bytes").hint(HINT)),
        }
    }

    async fn put(&self, key: &Key, source: SourceBuf<'_>) -> Result<(), Failure> {
        let put = Put { parts: vec![source], ..Put::new(key.clone(), &[]) };
        one(self.client.put(&[put], soon())).await.map(drop)
    }

    async fn get(&self, key: &Key, target: TargetBuf<'_>) -> Result<(), Failure> {
        let get = GetInto { key: key.clone(), targets: vec![target], range: None };
        one(self.client.get_into(&[get], GetOptions::default(), soon())).await.map(drop)
    }

    async fn delete(&self, key: &Key) -> Result<(), Failure> {
        let options = DeleteOptions::default();
        one(self.client.delete(std::slice::from_ref(key), options, soon())).await.map(drop)
    }
}

/// The outcome of a call with one item.
async fn one<T>(call: impl Future<Output = Vec<Result<T, Error>>>) -> Result<T, Failure> {
    let lost = || Err(Failure::new("device", "the store gave no answer"));
    call.await.pop().map_or_else(lost, |outcome| outcome.map_err(|error| explain(&error)))
}

impl Measured {
    fn series(&self, shape: &str) -> [Series; 4] {
        let series =
            |source, workload, times| Series::new((source, shape, workload), (self.size, 1, 1), times);
        [
            series(OURS, "put", &self.put),
            series(FLOOR, "save", &self.save),
            series(OURS, "get", &self.get),
            series(FLOOR, "load", &self.load),
        ]
    }
}

/// Medians, and which part of the floor's speed they are.
fn table(shape: &str, measured: &[Measured]) -> String {
    let mut table = Table::new(&[shape, "size", "p50 µs", "GB/s", "floor µs", "floor GB/s", "of floor"]);
    for it in measured {
        for (name, ours, floor) in [("put", &it.put, &it.save), ("get", &it.get, &it.load)] {
            let median = |times: &Times| times.histogram.value_at_quantile(0.5).max(1) as f64;
            let (ours, floor) = (median(ours), median(floor));
            let number = tiffin_report::number;
            let rate = |nanos: f64| number(it.size as f64 / nanos);
            table.row([
                name.to_owned(),
                show::size(it.size),
                number(ours / 1e3),
                rate(ours),
                number(floor / 1e3),
                rate(floor),
                format!("{:.0} %", floor / ours * 100.0),
            ]);
        }
    }
    table.to_string()
}
