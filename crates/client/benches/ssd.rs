//! The tier below memory as a client sees it: `cargo bench -p tiffin-client --bench ssd -- FOLDER [--json]`.
//!
//! - `offload`: puts that wait for space, several times the size of the memory, so at the speed of the
//!   disk;
//! - `read`: gets of objects that are only on the disk, in random order, many at a time, in the node's
//!   process and through its socket;
//! - `promote`: explicit prefetch of objects that are only on the disk;
//! - `gap`: a probe, a pause of 50 ms as of a scheduler, a get; without promotion in the pause, with
//!   promotion on the second use, and with prefetch on the probe. The three variants alternate, each on its
//!   own keys.
//!
//! Each of the first three alternates with the raw disk, as `ssd-bench` does for the log alone.
//! `bench/tier.py` does the last with the official wheel of Mooncake.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "a benchmark that cannot continue panics"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tiffin_client::{
    Ahead, Client, ConnectOptions, Deadline, DeleteOptions, GetInto, GetOptions, Key, PrefetchOutcome, Put,
    ResolveOptions, SpaceWait,
};
use tiffin_server::config::{Engine, SsdConfig, TierConfig};
use tiffin_server::{MasterConfig, MasterServer, NodeConfig, NodeServer};
use tiffin_ssd::Drive;
use tiffin_ssd::bench::{Clock, Floor, Rate, Turns, mix, noise};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 128 * MIB;
const DISK: u64 = 6144 * MIB;
const OBJECT: u64 = MIB;
/// Number of rounds, and the number of objects per round.
const ROUNDS: u64 = 7;
const TURN: u64 = 192;
const OBJECTS: u64 = ROUNDS * TURN;
const DEPTH: usize = 32;
const PUTTERS: usize = DEPTH;
/// Number of rounds and turns of the promotion, of keys per prefetch, and of concurrent prefetches.
const PROMOTE_PASSES: u64 = 4;
const PROMOTE_ROUNDS: u64 = 3;
const PROMOTE_MEMORY: u64 = (OBJECTS + TURN) * OBJECT;
const PROMOTE_KEYS: u64 = 32;
const PROMOTERS: usize = 6;
const BATCH: u64 = 4;
const BATCHES: u64 = 20;
const PAUSE: Duration = Duration::from_millis(50);
/// Longer than the kernel takes to allocate a few gigabytes.
const SETTLE: Duration = Duration::from_secs(5);
/// Objects unused for this long may be evicted by promotions.
const COLD: Duration = Duration::from_millis(5_200);
/// The target, as a share of the floor.
const SHARE: f64 = 0.8;

struct Store {
    master: MasterServer,
    node: NodeServer,
}

impl Store {
    async fn start(folder: &Path, promote_on_hit: bool, memory: u64) -> Self {
        // Promoted objects are soon promoted again.
        let prefetch_dedup_ttl = Duration::from_secs(1);
        let tier = TierConfig { promote_on_hit, prefetch_dedup_ttl, ..TierConfig::default() };
        let master = MasterServer::start(MasterConfig { tier, ..MasterConfig::default() }).await.unwrap();
        let node = Self::node(&master, folder, memory).await;
        Self { master, node }
    }

    async fn node(master: &MasterServer, folder: &Path, memory: u64) -> NodeServer {
        let ssd = vec![SsdConfig { path: folder.join("log"), size: DISK, engine: Engine::Auto }];
        let config =
            NodeConfig { master: master.address().clone().into(), memory, ssd, ..NodeConfig::default() };
        let node = NodeServer::start(config).await.unwrap();
        node.joined(tokio::time::Instant::now() + Duration::from_secs(60)).await.unwrap();
        node
    }

    /// The same disk with other memory, which is empty.
    async fn restart(self, folder: &Path, memory: u64) -> Self {
        let Self { master, node } = self;
        node.leave(tokio::time::Instant::now() + Duration::from_secs(60)).await;
        let node = Self::node(&master, folder, memory).await;
        Self { master, node }
    }

    /// A client in the node's process, or one on any host.
    async fn client(&self, is_near: bool) -> Client {
        let options = ConnectOptions::new(self.master.address().to_string());
        let options = match is_near {
            true => ConnectOptions {
                home: Some(self.node.segment()),
                own_memory: Some(self.node.memory().clone()),
                own_disks: self.node.local_disks(),
                ..options
            },
            false => options,
        };
        Client::connect(options).await.unwrap()
    }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(120))
}

fn key(at: u64) -> Key {
    Key::new(format!("object-{at:06}").as_bytes()).unwrap()
}

fn quantile(times: &mut [Duration], share: f64) -> f64 {
    times.sort_unstable();
    let at = ((times.len() - 1) as f64 * share).round() as usize;
    times[at].as_secs_f64() * 1e3
}

/// Puts from several tasks, as the ranks of a machine do.
async fn offload(client: &Client, first: u64, count: u64) -> Rate {
    let bytes = Arc::new(noise(7, OBJECT));
    let clock = Clock::start();
    let mut running = JoinSet::new();
    for at in first..first + count {
        if running.len() >= PUTTERS {
            running.join_next().await.unwrap().unwrap();
        }
        let (client, bytes) = (client.clone(), Arc::clone(&bytes));
        running.spawn(async move {
            let put = [Put::new(key(at), &bytes)];
            client.put_with(&put, SpaceWait::UntilDeadline, soon()).await.remove(0).unwrap();
        });
    }
    running.join_all().await;
    clock.stop(OBJECT * count)
}

/// Buffers that gets reuse: fresh memory would cost more than the read.
struct Buffers(Vec<Vec<u8>>);

impl Buffers {
    fn new(count: usize) -> Self {
        Self((0..count).map(|it| noise(it as u64, OBJECT)).collect())
    }
}

/// Reads objects that are only on the disk, in random order.
async fn read(client: &Client, first: u64, buffers: &mut Buffers, times: &mut Vec<Duration>) -> Rate {
    let clock = Clock::start();
    let mut running = JoinSet::new();
    for step in first..first + TURN {
        if buffers.0.is_empty() {
            let (time, buffer) = running.join_next().await.unwrap().unwrap();
            times.push(time);
            buffers.0.push(buffer);
        }
        let (client, mut buffer) = (client.clone(), buffers.0.pop().unwrap());
        running.spawn(async move {
            let (from, key) = (Instant::now(), key(mix(step, OBJECTS)));
            let item = [GetInto::new(key, &mut buffer)];
            let got = client.get_into(&item, GetOptions::default(), soon()).await.remove(0).unwrap();
            assert_eq!(got.len, OBJECT);
            (from.elapsed(), buffer)
        });
    }
    while let Some(done) = running.join_next().await {
        let (time, buffer) = done.unwrap();
        times.push(time);
        buffers.0.push(buffer);
    }
    clock.stop(OBJECT * TURN)
}

/// Runs several prefetches, as many at a time as the master accepts.
async fn promote(client: &Client, first: u64, count: u64) -> Rate {
    let clock = Clock::start();
    let mut running = JoinSet::new();
    let mut done = 0;
    for first in (first..first + count).step_by(PROMOTE_KEYS as usize) {
        if running.len() >= PROMOTERS {
            done += running.join_next().await.unwrap().unwrap();
        }
        let client = client.clone();
        running.spawn(async move {
            let keys: Vec<_> = (first..first + PROMOTE_KEYS).map(|it| key(mix(it, OBJECTS))).collect();
            let outcomes = client.prefetch(&keys, Ahead::All, soon()).await;
            let done = outcomes.iter().filter(|it| matches!(it, Ok(PrefetchOutcome::Done))).count();
            let there = outcomes.iter().filter(|it| matches!(it, Ok(PrefetchOutcome::Resident))).count();
            assert_eq!(done + there, keys.len(), "{outcomes:?}");
            done as u64
        });
    }
    done += running.join_all().await.into_iter().sum::<u64>();
    assert!(done > count / 2, "only {done} of {count} had to be promoted");
    clock.stop(OBJECT * done)
}

/// Evicts everything that can be evicted, and leaves the memory empty.
async fn empty_memory(client: &Client, bytes: u64) {
    let count = bytes / OBJECT;
    tokio::time::sleep(COLD).await;
    offload(client, 10 * OBJECTS, count).await;
    let keys: Vec<_> = (10 * OBJECTS..10 * OBJECTS + count).map(key).collect();
    let deleted = client.delete(&keys, DeleteOptions::default(), soon()).await;
    assert!(deleted.into_iter().all(|it| it.is_ok()));
}

/// One row: its name, its description, both sides, and the median latency, if known.
struct Row {
    name: &'static str,
    what: &'static str,
    turns: Turns,
    median_ms: Option<f64>,
}

/// The floor's turn and ours, in alternating order.
macro_rules! turn {
    ($turns:ident, $round:ident, $raw:expr, $ours:expr) => {
        if $round % 2 == 0 {
            let raw = $raw.unwrap();
            $turns.push(raw, $ours.await);
        } else {
            let ours = $ours.await;
            $turns.push($raw.unwrap(), ours);
        }
    };
}

async fn rates(folder: &Path) -> Vec<Row> {
    let mut floor = Floor::make(&folder.join("raw"), DISK / 2, Drive::Auto, DEPTH).unwrap();
    // Unused space costs the filesystem more, so the log gets space that was written before.
    Floor::make(&folder.join("log"), DISK, Drive::Auto, DEPTH).unwrap().wipe().unwrap();
    let store = Store::start(folder, false, MEMORY).await;
    let client = store.client(true).await;
    // The first puts, as many as fit into memory, wait for nothing.
    offload(&client, OBJECTS, 2 * MEMORY / OBJECT).await;
    let mut turns = Turns::default();
    for round in 0..ROUNDS {
        turn!(turns, round, floor.write(round * TURN, TURN), offload(&client, round * TURN, TURN));
    }
    let mut rows = vec![Row { name: "offload", what: "puts that wait for space", turns, median_ms: None }];
    // Waits until the disk has the last of them, too.
    offload(&client, OBJECTS + 1000, 2 * MEMORY / OBJECT).await;
    drop(client);
    let store = store.restart(folder, PROMOTE_MEMORY).await;
    // A node allocates its memory soon after the start; that is not measured.
    tokio::time::sleep(SETTLE).await;
    // The floor reads where the log has written.
    let written = OBJECTS * OBJECT + 4 * MEMORY;
    let records = folder.join("log").join("records.tiffin");
    let mut floor = Floor::open(&records, Drive::Auto, DEPTH).unwrap().within(written);
    for (name, what, is_near) in
        [("read", "gets in the process of the node", true), ("read", "gets through its socket", false)]
    {
        let (client, mut times) = (store.client(is_near).await, Vec::new());
        let mut buffers = Buffers::new(DEPTH);
        // The first call connects to the cluster; that is not measured.
        read(&client, 0, &mut buffers, &mut Vec::new()).await;
        let mut turns = Turns::default();
        for round in 0..ROUNDS {
            let first = round * TURN;
            let ours = read(&client, first, &mut buffers, &mut times);
            turn!(turns, round, floor.read_mixed(first, TURN), ours);
        }
        rows.push(Row { name, what, turns, median_ms: Some(quantile(&mut times, 0.5)) });
    }
    let (client, mut turns) = (store.client(true).await, Turns::default());
    let count = OBJECTS / PROMOTE_ROUNDS;
    let mut floor = Floor::open_spread(&records, Drive::Auto, DEPTH, count as usize).unwrap().within(written);
    // On a virtual machine the first read into a page costs its host more than the read. Both sides have
    // done that before the measurement.
    floor.read_mixed(0, count).unwrap();
    promote(&client, 0, OBJECTS).await;
    for pass in 0..PROMOTE_PASSES {
        empty_memory(&client, PROMOTE_MEMORY).await;
        for round in 0..PROMOTE_ROUNDS {
            let (order, first) = (pass + round, round * count);
            turn!(turns, order, floor.read_mixed(first, count), promote(&client, first, count));
        }
    }
    rows.push(Row {
        name: "promote",
        what: "prefetch, 192 in progress; the raw reader spreads its reads as well",
        turns,
        median_ms: None,
    });
    rows
}

/// One way to use the pause.
struct Way {
    name: &'static str,
    ahead: Ahead,
    _store: Store,
    client: Client,
    times: Vec<Duration>,
}

/// Share of gets that were read from memory, and the times of a batch: median and 99th percentile.
async fn gap(folder: &Path) -> Vec<(&'static str, f64, f64, f64)> {
    let mut ways = Vec::new();
    for (name, ahead, on_hit) in [
        ("nothing", Ahead::Nothing, false),
        ("on hit", Ahead::Nothing, true),
        ("on exist", Ahead::All, false),
    ] {
        let folder = folder.join(name);
        std::fs::create_dir(&folder).unwrap();
        let store = Store::start(&folder, on_hit, MEMORY).await;
        let client = store.client(true).await;
        offload(&client, 0, 4 * MEMORY / OBJECT).await;
        ways.push(Way { name, ahead, _store: store, client, times: Vec::new() });
    }
    let mut buffers = Buffers::new(BATCH as usize);
    tokio::time::sleep(COLD).await;
    for batch in 0..BATCHES {
        for way in &mut ways {
            let keys: Vec<_> =
                (0..BATCH).map(|it| key((batch * BATCH + it) * 3 % (2 * MEMORY / OBJECT))).collect();
            let options = ResolveOptions { ahead: way.ahead, ..ResolveOptions::default() };
            assert!(way.client.exists(&keys, options, soon()).await.into_iter().all(|it| it.unwrap()));
            tokio::time::sleep(PAUSE).await;
            let items = keys.iter().zip(&mut buffers.0).map(|(key, it)| GetInto::new(key.clone(), it));
            let items: Vec<_> = items.collect();
            let from = Instant::now();
            let got = way.client.get_into(&items, GetOptions::default(), soon()).await;
            way.times.push(from.elapsed());
            assert!(got.into_iter().all(|it| it.unwrap().len == OBJECT));
        }
    }
    let mut results = Vec::new();
    for mut way in ways {
        let tier = *way.client.stat(soon()).await.unwrap().tier;
        let share = tier.gets_from_memory as f64 / (tier.gets_from_memory + tier.gets_from_disk) as f64;
        results.push((way.name, share, quantile(&mut way.times, 0.5), quantile(&mut way.times, 0.99)));
    }
    results
}

fn print(rows: &[Row], gaps: &[(&str, f64, f64, f64)]) {
    println!("the store: objects of 1 MiB, {DEPTH} at a time, medians of {ROUNDS} rounds in turns");
    for Row { name, what, turns, median_ms } in rows {
        let (share, (cpu, _)) = (turns.share(), turns.cpu_s_per_gb());
        let verdict = if share >= SHARE { "met" } else { "missed" };
        let each = median_ms.map_or(String::new(), |ms| format!(", {ms:.2} ms each"));
        println!(
            "{name:<8}{:6.2} GB/s, raw {:5.2}: {:3.0} % of raw, aim 80 %: {verdict}; {cpu:.3} cpu s/GB{each} \
             ({what})",
            turns.gb_per_s(),
            turns.raw_gb_per_s(),
            share * 100.0,
        );
    }
    println!(
        "after a probe and a pause of 50 ms, a get of {BATCH} objects of 1 MiB that no client has read:"
    );
    for (name, share, p50, p99) in gaps {
        let share = share * 100.0;
        println!("  {name:9} {share:5.1} % from memory   median {p50:6.2} ms   99 % {p99:6.2} ms");
    }
}

fn print_json(rows: &[Row], gaps: &[(&str, f64, f64, f64)]) {
    let rows = rows.iter().map(|Row { name, what, turns, median_ms }| {
        let (gb, raw, share) = (turns.gb_per_s(), turns.raw_gb_per_s(), turns.share());
        let (cpu, ms) = (turns.cpu_s_per_gb().0, median_ms.unwrap_or(0.0));
        format!(
            r#"{{"name":"{name}","what":"{what}","gb_s":{gb:.3},"raw_gb_s":{raw:.3},"share":{share:.3},{}}}"#,
            format_args!(r#""cpu_s_per_gb":{cpu:.3},"median_ms":{ms:.3}"#)
        )
    });
    let gaps = gaps.iter().map(|(name, share, p50, p99)| {
        format!(r#"{{"way":"{name}","from_memory":{share:.3},"p50_ms":{p50:.3},"p99_ms":{p99:.3}}}"#)
    });
    let (rows, gaps) = (rows.collect::<Vec<_>>().join(","), gaps.collect::<Vec<_>>().join(","));
    println!(r#"{{"rates":[{rows}],"gap":[{gaps}]}}"#);
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|it| it != "--bench").collect();
    let json = words.iter().any(|it| it == "--json");
    let folder = words.iter().find(|it| !it.starts_with("--")).cloned();
    let folder = folder.unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").to_owned());
    Runtime::new().unwrap().block_on(async {
        let place = tempfile::tempdir_in(&folder).unwrap();
        let rows = rates(place.path()).await;
        drop(place);
        let place = tempfile::tempdir_in(&folder).unwrap();
        let gaps = gap(place.path()).await;
        if json { print_json(&rows, &gaps) } else { print(&rows, &gaps) }
    });
}
