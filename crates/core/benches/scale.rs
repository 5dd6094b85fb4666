//! How the master's core scales: memory per object, lookups per second, and the cost of a put into a full
//! store, with ten thousand, a million and ten million objects. `make bench-scale` runs it.
//!
//! Everything goes through [`Master::handle`], as in the server. Keys have 64 bytes and are requested in
//! random order, so that with many objects nearly every step of a lookup misses the caches.
//!
//! [`Master::handle`]: tiffin_core::master::Master::handle

#![expect(clippy::print_stdout, clippy::unwrap_used, clippy::indexing_slicing, reason = "a benchmark")]

mod stage;

use std::time::Instant;

use stage::{LEASE_MS, Numbers, Stage, exists, get, key};
use tiffin_types::Key;
use tiffin_types::message::{ClientToMaster, PutOptions, Reply};

const SIZES: [u64; 3] = [10_000, 1_000_000, 10_000_000];
/// Lookups of one measurement, in rounds.
const LOOKUPS: usize = 1 << 18;
const ROUND: usize = 1 << 7;
const PUTS: u64 = 10_000;

fn main() {
    // `cargo bench` passes `--bench`; a number bounds the sizes.
    let bound = std::env::args().skip(1).find_map(|it| it.parse().ok()).unwrap_or(u64::MAX);
    let columns: Vec<_> = SIZES.into_iter().filter(|&size| size <= bound).map(measure).collect();
    let row = |name: &str, value: &dyn Fn(&Column) -> f64, places: usize| {
        print!("{name:<44}");
        for (at, column) in columns.iter().enumerate() {
            let ratio = value(column) / value(&columns[0]);
            let ratio = if at == 0 { String::new() } else { format!("({ratio:.2}x)") };
            print!(" {:>11.places$} {ratio:>8}", value(column));
        }
        println!();
    };
    row("objects", &|it| it.objects as f64, 0);
    row("resident bytes per object", &|it| it.bytes, 1);
    row("ns to name an object, batches of 1024", &|it| it.name_ns, 0);
    row("longest batch of these, ms", &|it| it.name_ms_max, 2);
    row("ns per key, get, batches of 1", &|it| it.get_1_ns, 0);
    row("ns per key, get, batches of 128", &|it| it.get_128_ns, 0);
    row("ns per key, get, batches of 10000", &|it| it.get_10k_ns, 0);
    row("ns per key, exists, batches of 128", &|it| it.exists_ns, 0);
    row("million lookups a second, get of 128", &|it| 1e3 / it.get_128_ns, 2);
    row("ns per put, full store", &|it| it.evict_ns, 0);
    row("ns per put, full, the cold half leased", &|it| it.evict_leased_ns, 0);
    row("ns per put, full, others pinned", &|it| it.evict_pinned_ns, 0);
}

struct Column {
    objects: u64,
    bytes: f64,
    name_ns: f64,
    name_ms_max: f64,
    get_1_ns: f64,
    get_128_ns: f64,
    get_10k_ns: f64,
    exists_ns: f64,
    evict_ns: f64,
    evict_leased_ns: f64,
    evict_pinned_ns: f64,
}

fn measure(objects: u64) -> Column {
    let before = resident();
    let mut stage = Stage::new(objects);
    let plain = PutOptions { replicas: 1, ..PutOptions::default() };
    let mut named = Vec::new();
    for first in (0..objects).step_by(1024) {
        let last = objects.min(first + 1024);
        let keys: Vec<_> = (first..last).map(key).collect();
        let began = Instant::now();
        stage.name(keys.into_iter(), &plain);
        named.push(began.elapsed().as_secs_f64());
        stage.now = stage.now.after(1);
    }
    let bytes = (resident() - before) as f64 / objects as f64;
    let get_1_ns = lookups(&mut stage, objects, 1, get);
    let get_128_ns = lookups(&mut stage, objects, 128, get);
    let get_10k_ns = lookups(&mut stage, objects, 10_000, get);
    let evict_ns = puts(&mut stage, objects, 0, &plain);
    let exists_ns = lookups(&mut stage, objects, 128, exists);
    // Leased objects are older than those put since, and eviction must not search through them.
    for first in (0..objects / 2).step_by(1024) {
        stage.client(exists((first..first + 1024).map(key).collect()));
    }
    let evict_leased_ns = puts(&mut stage, objects, 1, &plain);
    stage.now = stage.now.after(2 * LEASE_MS);
    let pin = PutOptions { hard_pin: true, owner: "run".into(), ..plain.clone() };
    puts(&mut stage, objects, 2, &pin);
    let evict_pinned_ns = puts(&mut stage, objects, 3, &plain);
    let name_ms_max = named.iter().copied().fold(0.0, f64::max) * 1e3;
    let name_ns = median(named) * 1e9 / 1024.0;
    Column {
        objects,
        bytes,
        name_ns,
        name_ms_max,
        get_1_ns,
        get_128_ns,
        get_10k_ns,
        exists_ns,
        evict_ns,
        evict_leased_ns,
        evict_pinned_ns,
    }
}

/// Nanoseconds per key, without the construction of the requests.
fn lookups(stage: &mut Stage, objects: u64, batch: usize, ask: impl Fn(Vec<Key>) -> ClientToMaster) -> f64 {
    let mut numbers = Numbers(batch as u64 + 0x9e37_79b9);
    let mut rounds = Vec::new();
    while rounds.len() * batch.max(ROUND) < LOOKUPS {
        // Few enough that the requests are in the cache, as if they had just been read.
        let requests: Vec<_> = (0..(ROUND / batch).max(1))
            .map(|_| ask((0..batch).map(|_| key(numbers.below(objects))).collect()))
            .collect();
        let asked = batch * requests.len();
        stage.now = stage.now.after(1);
        let began = Instant::now();
        for request in requests {
            let reply = stage.client(request);
            assert!(matches!(reply, Reply::Resolved(_) | Reply::Present(_)), "{reply:?}");
        }
        rounds.push(began.elapsed().as_secs_f64() * 1e9 / asked as f64);
    }
    median(rounds)
}

/// Nanoseconds per put into a full store, one at a time.
fn puts(stage: &mut Stage, objects: u64, round: u64, options: &PutOptions) -> f64 {
    let first = objects + round * PUTS;
    let count = PUTS.min(objects / 10);
    let keys: Vec<_> = (first..first + count).map(key).collect();
    let rounds = keys.chunks(100).map(|keys| {
        stage.now = stage.now.after(1);
        let began = Instant::now();
        for key in keys {
            assert_eq!(stage.put(std::slice::from_ref(key), options), 1, "eviction finds space");
        }
        began.elapsed().as_secs_f64() * 1e9 / keys.len() as f64
    });
    median(rounds.collect())
}

/// The median of short rounds, so that interruptions by other processes have little effect.
fn median(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds[rounds.len() / 2]
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = text.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}
