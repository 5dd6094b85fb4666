//! The tier below memory as a client sees it: `cargo bench -p tiffin-client --bench ssd -- FOLDER [--json]`.
//!
//! - `offload`: puts that wait for room, several times what the memory holds, so at the pace of the disk;
//! - `read`: gets of what only the disk has, in any order, many at a time;
//! - `promote`: explicit prefetch of what only the disk has;
//! - `gap`: a probe, a pause of 50 ms as a scheduler makes it, a get; with nothing done in the pause, with
//!   what is used a second time brought back, and with prefetch on the probe. The three take turns on keys of
//!   their own.
//!
//! What the disk itself can do is told by `ssd-bench` beside it (`make bench-ssd` runs both).

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "a benchmark that cannot go on panics"
)]

use std::path::Path;
use std::time::{Duration, Instant};

use tiffin_client::{
    Ahead, Client, ConnectOptions, Deadline, GetOptions, Key, Patience, PrefetchOutcome, Put, ResolveOptions,
};
use tiffin_server::config::{Engine, SsdConfig, TierConfig};
use tiffin_server::{MasterConfig, MasterServer, NodeConfig, NodeServer};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const MEMORY: u64 = 128 << 20;
const DISK: u64 = 1 << 30;
const OBJECT: usize = 1 << 20;
const OBJECTS: usize = 640;
const DEPTH: usize = 16;
const BATCH: usize = 4;
const BATCHES: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);
/// What was used this long ago may be driven out by what is brought.
const COLD: Duration = Duration::from_millis(5_200);

struct Store {
    master: MasterServer,
    _node: NodeServer,
    _folder: tempfile::TempDir,
}

impl Store {
    async fn start(folder: &Path, promote_on_hit: bool) -> Self {
        let folder = tempfile::tempdir_in(folder).unwrap();
        let tier = TierConfig { promote_on_hit, ..TierConfig::default() };
        let master = MasterServer::start(MasterConfig { tier, ..MasterConfig::default() }).await.unwrap();
        let ssd = vec![SsdConfig { path: folder.path().join("log"), size: DISK, engine: Engine::Auto }];
        let config =
            NodeConfig { master: master.address().clone(), memory: MEMORY, ssd, ..NodeConfig::default() };
        let node = NodeServer::start(config).await.unwrap();
        node.joined(tokio::time::Instant::now() + Duration::from_secs(60)).await.unwrap();
        Self { master, _node: node, _folder: folder }
    }

    async fn client(&self) -> Client {
        Client::connect(ConnectOptions::new(self.master.address().to_string())).await.unwrap()
    }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(120))
}

fn key(at: usize) -> Key {
    Key::new(format!("object-{at:06}").as_bytes()).unwrap()
}

fn rate(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64() / 1e9
}

fn quantile(times: &mut [Duration], share: f64) -> f64 {
    times.sort_unstable();
    let at = ((times.len() - 1) as f64 * share).round() as usize;
    times[at].as_secs_f64() * 1e3
}

async fn offload(client: &Client) -> f64 {
    let bytes = vec![7; OBJECT];
    let from = Instant::now();
    for at in 0..OBJECTS {
        let put = [Put::new(key(at), &bytes)];
        client.put_with(&put, Patience::UntilDeadline, soon()).await.remove(0).unwrap();
    }
    rate(OBJECT * OBJECTS, from.elapsed())
}

/// Reads objects that left memory long ago, in an order that no disk likes.
async fn read(client: &Client, count: usize) -> (f64, f64) {
    let from = Instant::now();
    let mut running = JoinSet::new();
    let mut times = Vec::new();
    for step in 0..count {
        if running.len() >= DEPTH {
            times.push(running.join_next().await.unwrap().unwrap());
        }
        let client = client.clone();
        running.spawn(async move {
            let from = Instant::now();
            let options = GetOptions::default();
            client.get(&[key(step * 97 % (OBJECTS / 2))], options, soon()).await.remove(0).unwrap();
            from.elapsed()
        });
    }
    while let Some(time) = running.join_next().await {
        times.push(time.unwrap());
    }
    (rate(OBJECT * count, from.elapsed()), quantile(&mut times, 0.5))
}

async fn promote(client: &Client) -> (f64, usize) {
    let keys: Vec<_> = (0..64).map(key).collect();
    let from = Instant::now();
    let outcomes = client.prefetch(&keys, Ahead::All, soon()).await;
    let time = from.elapsed();
    let came = outcomes.iter().filter(|it| matches!(it, Ok(PrefetchOutcome::Done))).count();
    (rate(OBJECT * came, time), came)
}

/// One way to use the pause.
struct Way {
    name: &'static str,
    ahead: Ahead,
    store: Store,
    client: Client,
    times: Vec<Duration>,
}

/// Share of gets that found memory, and the times of a batch: median and 99th percentile.
async fn gap(folder: &Path) -> Vec<(&'static str, f64, f64, f64)> {
    let mut ways = Vec::new();
    for (name, ahead, on_hit) in [
        ("nothing", Ahead::Nothing, false),
        ("on hit", Ahead::Nothing, true),
        ("on exist", Ahead::All, false),
    ] {
        let store = Store::start(folder, on_hit).await;
        let client = store.client().await;
        offload(&client).await;
        ways.push(Way { name, ahead, store, client, times: Vec::new() });
    }
    tokio::time::sleep(COLD).await;
    for batch in 0..BATCHES {
        for way in &mut ways {
            let keys: Vec<_> = (0..BATCH).map(|it| key((batch * BATCH + it) * 3 % (OBJECTS / 2))).collect();
            let options = ResolveOptions { ahead: way.ahead, ..ResolveOptions::default() };
            assert!(way.client.exists(&keys, options, soon()).await.into_iter().all(|it| it.unwrap()));
            tokio::time::sleep(PAUSE).await;
            let from = Instant::now();
            let got = way.client.get(&keys, GetOptions::default(), soon()).await;
            way.times.push(from.elapsed());
            assert!(got.into_iter().all(|it| it.unwrap().bytes.len() == OBJECT));
        }
    }
    let mut results = Vec::new();
    for mut way in ways {
        let tier = *way.client.stat(soon()).await.unwrap().tier;
        let share = tier.gets_from_memory as f64 / (tier.gets_from_memory + tier.gets_from_disk) as f64;
        results.push((way.name, share, quantile(&mut way.times, 0.5), quantile(&mut way.times, 0.99)));
        drop(way.store);
    }
    results
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|it| it != "--bench").collect();
    let json = words.iter().any(|it| it == "--json");
    let folder = words.iter().find(|it| !it.starts_with("--")).cloned();
    let folder = folder.unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").to_owned());
    let folder = Path::new(&folder);
    Runtime::new().unwrap().block_on(async {
        let store = Store::start(folder, false).await;
        let client = store.client().await;
        let offload = offload(&client).await;
        let (read, read_ms) = read(&client, 320).await;
        tokio::time::sleep(COLD).await;
        let (promote, promoted) = promote(&client).await;
        drop((client, store));
        let gaps = gap(folder).await;
        if json {
            let gaps = gaps.iter().map(|(name, share, p50, p99)| {
                format!(r#"{{"way":"{name}","from_memory":{share:.3},"p50_ms":{p50:.3},"p99_ms":{p99:.3}}}"#)
            });
            println!(
                r#"{{"offload_gb_s":{offload:.3},"read_gb_s":{read:.3},"read_p50_ms":{read_ms:.3},{}{}]}}"#,
                format_args!(r#""promote_gb_s":{promote:.3},"promoted":{promoted},"gap":["#),
                gaps.collect::<Vec<_>>().join(",")
            );
            return;
        }
        println!("offload   {offload:6.2} GB/s   puts of 1 MiB that wait for room");
        let depth = format_args!("{DEPTH} at a time, median {read_ms:.2} ms");
        println!("read      {read:6.2} GB/s   gets of 1 MiB from disk, {depth}");
        println!("promote   {promote:6.2} GB/s   prefetch of {promoted} objects of 1 MiB");
        println!("\nafter a probe and a pause of 50 ms, a get of {BATCH} objects of 1 MiB:");
        for (name, share, p50, p99) in gaps {
            let share = share * 100.0;
            println!("{name:9} {share:5.1} % from memory   median {p50:6.2} ms   99 % {p99:6.2} ms");
        }
    });
}
