//! What one client's load costs another: `make bench-fairness`, or
//! `cargo bench -p tiffin-client --bench fairness [-- SECONDS] [-- TEXT…]`. With texts, it measures the rows
//! whose names contain one of them, and the first row of their tables.
//!
//! A client of one namespace asks for one key at a time, from a master and a node in a process of their own
//! threads. Beside it, clients of another namespace do one thing in a loop. Each row is what the first client
//! sees: its calls per second, and how long they take.
//!
//! The second table is about members: nodes with many objects join, return and leave. The third is about
//! the node's data socket: the first client gets one object of 64 KiB at a time, the other reads 4 MiB, or
//! 64 times 16 KiB, at a time over many connections. The fourth is about a disk.
//!
//! The last column compares the 99.9th percentile with that of the first row of its table, beside nothing.

#![expect(clippy::unwrap_used, clippy::print_stdout, clippy::indexing_slicing, reason = "a benchmark")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tiffin_client::{
    Client, ConnectOptions, Deadline, DeleteOptions, Key, ListOptions, Pattern, Put, ResolveOptions,
    Watermark,
};
use tiffin_server::{MasterConfig, MasterServer, NodeConfig, NodeServer};
use tokio::runtime::{Builder, Runtime};

const MEMORY: u64 = 256 << 20;
const OBJECTS: usize = 100_000;
const BATCH: usize = 1 << 16;
const WHY_KEYS: usize = 20_000;
/// Number of loops of one hog, as of a program with many threads.
const LOOPS: usize = 16;

/// What the clients of the other namespace do.
#[derive(Clone, Copy)]
enum Load {
    Nothing,
    OneHog,
    EightHogs,
    LargeBatches,
    Why,
    List,
    Regex,
    DeletePattern,
    Stat,
    Waiting,
}

impl Load {
    const ALL: [(Self, &str); 10] = [
        (Self::Nothing, "nothing"),
        (Self::OneHog, "one client, 16 loops of one key"),
        (Self::EightHogs, "eight clients, 16 loops each"),
        (Self::LargeBatches, "exists of 65,536 keys, 4 loops"),
        (Self::Why, "why of 20,000 unknown keys"),
        (Self::List, "list of 100,000 objects"),
        (Self::Regex, "list by a regular expression"),
        (Self::DeletePattern, "puts of 1,000 objects, delete by prefix"),
        (Self::Stat, "stat, 4 loops"),
        (Self::Waiting, "16 clients with 1,000 requests that wait"),
    ];

    fn clients_and_loops(self) -> (usize, usize) {
        match self {
            Self::Nothing => (0, 0),
            Self::OneHog => (1, LOOPS),
            Self::EightHogs => (8, LOOPS),
            Self::LargeBatches | Self::Stat => (1, 4),
            Self::Waiting => (16, 1000),
            Self::Why | Self::List | Self::Regex | Self::DeletePattern => (1, 1),
        }
    }

    async fn once(self, client: &Client, batches: &Batches) {
        match self {
            Self::Nothing => {}
            Self::OneHog | Self::EightHogs => {
                let _ = client.exists(&batches.one, ResolveOptions::default(), soon()).await;
            }
            Self::LargeBatches => {
                let _ = client.exists(&batches.large, ResolveOptions::default(), soon()).await;
            }
            Self::Why => drop(client.why(&batches.unknown, soon()).await),
            Self::List => drop(client.list(Pattern::All, soon()).await.unwrap()),
            Self::Regex => {
                let pattern = Pattern::Regex("^object-(0|1)*9+(2|3)$".to_owned());
                drop(client.list_with(pattern, &ListOptions::default(), soon()).await.unwrap());
            }
            Self::DeletePattern => {
                let puts: Vec<_> = batches.doomed.iter().map(|key| Put::new(key.clone(), b"x")).collect();
                client.put(&puts, soon()).await;
                let doomed = Pattern::Prefix(b"doomed-".to_vec());
                client.delete_matching(doomed, DeleteOptions::default(), soon()).await.unwrap();
            }
            Self::Stat => drop(client.stat(soon()).await.unwrap()),
            Self::Waiting => {
                let never = Watermark::AtMost(0);
                let _ = client.wait_usage(never, Deadline::after(Duration::from_secs(1))).await;
            }
        }
    }
}

/// The keys of the loads.
struct Batches {
    one: Vec<Key>,
    large: Vec<Key>,
    unknown: Vec<Key>,
    doomed: Vec<Key>,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with('-')).collect();
    let seconds = args.iter().find_map(|it| it.parse().ok()).unwrap_or(3);
    let rows = Rows(args.into_iter().filter(|it| it.parse::<u64>().is_err()).collect());
    if rows.have_any(Load::ALL.iter().map(|it| it.1)) {
        calls(seconds, &rows);
    }
    if rows.have_any([members::RETURNS, members::LOSS]) {
        members::main(seconds);
    }
    bytes::main(seconds, &rows);
}

/// The texts that select rows.
struct Rows(Vec<String>);

impl Rows {
    fn has(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|it| name.contains(it.as_str()))
    }

    fn have_any<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> bool {
        names.into_iter().any(|it| self.has(it))
    }
}

fn calls(seconds: u64, rows: &Rows) {
    let server = runtime(2);
    let (master, _node) = server.block_on(start());
    let loads = runtime(2);
    let address = master.address().to_string();
    let keys = |name: &str, count: usize| -> Vec<Key> {
        (0..count).map(|at| Key::new(format!("{name}-{at:06}").as_bytes()).unwrap()).collect()
    };
    let objects = keys("object", OBJECTS);
    let batches = Arc::new(Batches {
        one: keys("object", 1),
        large: keys("object", BATCH),
        unknown: keys("unknown", WHY_KEYS),
        doomed: keys("doomed", 1000),
    });
    loads.block_on(async {
        let client = connect(&address, "hogs").await;
        for keys in objects.chunks(1000) {
            let puts: Vec<_> = keys.iter().map(|key| Put::new(key.clone(), b"x")).collect();
            assert!(client.put(&puts, soon()).await.iter().all(Result::is_ok));
        }
    });
    let mut table = Table::new("exists of one key, beside");
    let victim = Builder::new_current_thread().enable_all().build().unwrap();
    for (load, name) in Load::ALL.into_iter().filter(|it| rows.has(it.1) || it.1 == "nothing") {
        let stop = Arc::new(AtomicBool::new(false));
        let (clients, loops) = load.clients_and_loops();
        let mut tasks = Vec::new();
        for _ in 0..clients {
            let client = Arc::new(loads.block_on(connect(&address, "hogs")));
            for _ in 0..loops {
                let (client, stop) = (Arc::clone(&client), Arc::clone(&stop));
                let batches = Arc::clone(&batches);
                tasks.push(loads.spawn(async move {
                    while !stop.load(Ordering::Relaxed) {
                        load.once(&client, &batches).await;
                    }
                }));
            }
        }
        let mut times = victim.block_on(measure(&address, Duration::from_secs(seconds)));
        stop.store(true, Ordering::Relaxed);
        tasks.into_iter().for_each(|task| loads.block_on(task).unwrap());
        table.row(name, &mut times, seconds);
    }
    drop((master, _node));
}

/// A table whose first row is beside nothing.
struct Table {
    alone_us: Option<u128>,
}

impl Table {
    fn new(what: &str) -> Self {
        let columns = ["calls/s", "p50 us", "p99 us", "p99.9 us", "max us", "p99.9"];
        println!("{what:<42} {}", columns.map(|it| format!("{it:>9}")).join(" "));
        Self { alone_us: None }
    }

    fn row(&mut self, name: &str, times: &mut [Duration], seconds: u64) {
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_micros();
        let rate = times.len() as u64 / seconds;
        let alone = *self.alone_us.get_or_insert(at(0.999).max(1));
        let ratio = at(0.999) as f64 / alone as f64;
        println!(
            "{name:<42} {rate:>9} {:>9} {:>9} {:>9} {:>9} {ratio:>8.1}x",
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0)
        );
    }
}

async fn measure(address: &str, time: Duration) -> Vec<Duration> {
    let client = connect(address, "victim").await;
    let key = [Key::new(b"mine").unwrap()];
    let mut times = Vec::new();
    let end = Instant::now() + time;
    while Instant::now() < end {
        let began = Instant::now();
        let _ = client.exists(&key, ResolveOptions::default(), soon()).await;
        times.push(began.elapsed());
    }
    times
}

async fn start() -> (MasterServer, NodeServer) {
    let master = MasterServer::start(MasterConfig::default()).await.unwrap();
    let config =
        NodeConfig { master: master.address().clone().into(), memory: MEMORY, ..NodeConfig::default() };
    let node = NodeServer::start(config).await.unwrap();
    node.joined(tokio::time::Instant::now() + Duration::from_secs(60)).await.unwrap();
    (master, node)
}

async fn connect(address: &str, namespace: &str) -> Client {
    let options = ConnectOptions { namespace: namespace.to_owned(), ..ConnectOptions::new(address) };
    Client::connect(options).await.unwrap()
}

fn runtime(threads: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap()
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// The table about members.
mod members {
    use super::*;

    /// The nodes that leave during a row, and the objects of all.
    const LEAVING: usize = 4;

    pub(super) const RETURNS: &str = "returns of a node with 100,000 objects";
    pub(super) const LOSS: &str = "the loss of four nodes with 100,000 objects";

    pub(super) fn main(seconds: u64) {
        let victim = Builder::new_current_thread().enable_all().build().unwrap();
        let server = runtime(2);
        let mut table = Table::new("exists of one key, beside");
        let time = Duration::from_secs(seconds);
        let master = server.block_on(MasterServer::start(MasterConfig::default())).unwrap();
        let address = master.address().to_string();
        let mut alone = victim.block_on(measure(&address, time));
        table.row("nothing", &mut alone, seconds);
        // A pool outlives its node: the next one announces what is in it.
        let pool = tempfile::tempdir_in("/dev/shm").unwrap();
        let pool = Some(pool.path().join("pool"));
        let node = server.block_on(join(&master, pool.clone()));
        server.block_on(fill(&address));
        let stop = Arc::new(AtomicBool::new(false));
        let joining = {
            let (stop, address) = (Arc::clone(&stop), address.clone());
            let mut node = node;
            server.spawn(async move {
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    node.leave(late()).await;
                    node = join_at(&address, pool.clone()).await;
                    count += 1;
                }
                (node, count)
            })
        };
        let mut times = victim.block_on(measure(&address, time));
        stop.store(true, Ordering::Relaxed);
        let (node, count) = server.block_on(joining).unwrap();
        let name = format!("{count} {RETURNS}");
        table.row(&name, &mut times, seconds);
        drop((node, master));
        let master = server.block_on(MasterServer::start(MasterConfig::default())).unwrap();
        let address = master.address().to_string();
        let nodes: Vec<_> = (0..LEAVING).map(|_| server.block_on(join(&master, None))).collect();
        server.block_on(fill(&address));
        let leaving = server.spawn(async move {
            for node in nodes {
                tokio::time::sleep(time / (LEAVING as u32 + 1)).await;
                node.leave(late()).await;
            }
        });
        let mut times = victim.block_on(measure(&address, time));
        server.block_on(leaving).unwrap();
        table.row(LOSS, &mut times, seconds);
    }

    async fn join(master: &MasterServer, pool: Option<PathBuf>) -> NodeServer {
        join_at(&master.address().to_string(), pool).await
    }

    async fn join_at(address: &str, pool: Option<PathBuf>) -> NodeServer {
        let config =
            NodeConfig { master: address.parse().unwrap(), memory: MEMORY, pool, ..NodeConfig::default() };
        let node = NodeServer::start(config).await.unwrap();
        node.joined(late()).await.unwrap();
        node
    }

    fn late() -> tokio::time::Instant {
        tokio::time::Instant::now() + Duration::from_secs(60)
    }

    async fn fill(address: &str) {
        let client = connect(address, "hogs").await;
        let keys: Vec<_> =
            (0..OBJECTS).map(|at| Key::new(format!("object-{at:06}").as_bytes()).unwrap()).collect();
        for keys in keys.chunks(1000) {
            let puts: Vec<_> = keys.iter().map(|key| Put::new(key.clone(), b"x")).collect();
            assert!(client.put(&puts, soon()).await.iter().all(Result::is_ok));
        }
    }
}

/// The tables about bytes.
mod bytes {
    use tiffin_client::{GetInto, GetOptions, SpaceWait};
    use tiffin_server::config::{Engine, SsdConfig, TierConfig};
    use tiffin_transport::tcp::{Identity, Tcp};
    use tiffin_transport::{ReadOp, TargetBuf, Transport as _};
    use tiffin_types::Location;
    use tiffin_types::message::{Demotion, Policy};

    use super::*;

    const KIB: usize = 1 << 10;
    const SMALL: usize = 64 * KIB;
    const LARGE: usize = 4096 * KIB;
    /// The greatest read that is answered together with others.
    const SMALL_READ: usize = 16 * KIB;
    /// Small reads of one call.
    const READS_MAX: usize = 64;
    /// The objects of the other client: more than the memory.
    const LARGE_COUNT: usize = 96;

    pub(super) fn main(seconds: u64, rows: &Rows) {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let server = runtime(2);
        let (master, node) = server.block_on(start(folder.path()));
        let address = master.address().to_string();
        let loads = runtime(2);
        let (memory, disk) = loads.block_on(put_all(&address));
        let data = node.info().data.clone();
        let victim = Builder::new_current_thread().enable_all().build().unwrap();
        for (is_on_disk, what) in
            [(false, "get of 64 KiB, beside"), (true, "get of 64 KiB from a disk, beside")]
        {
            let mut table = Table::new(what);
            let objects = Arc::new(if is_on_disk { disk.clone() } else { memory.clone() });
            let name = if is_on_disk { "cold" } else { "mine" };
            let all = [(0, LARGE), (4, LARGE), (64, LARGE), (4, SMALL_READ), (64, SMALL_READ)];
            let load = |(count, len): (usize, usize)| format!("{} KiB on {count} connections", len / KIB);
            let is_wanted = |it: &(usize, usize)| rows.has(what) || (it.0 > 0 && rows.has(&load(*it)));
            if !all.iter().any(is_wanted) {
                continue;
            }
            for (connections, len) in all.into_iter().filter(|it| it.0 == 0 || is_wanted(it)) {
                let stop = Arc::new(AtomicBool::new(false));
                let hogs: Vec<_> = (0..connections)
                    .map(|at| {
                        let (data, objects, stop) = (data.clone(), Arc::clone(&objects), Arc::clone(&stop));
                        loads.spawn(hog(data, objects, at, len, stop))
                    })
                    .collect();
                let time = Duration::from_secs(seconds);
                let mut times = victim.block_on(measure(&address, name, time));
                stop.store(true, Ordering::Relaxed);
                let bytes: usize = hogs.into_iter().map(|it| loads.block_on(it).unwrap()).sum();
                let rate = (bytes >> 20) / seconds as usize;
                let name = format!("{}, {rate} MiB/s", load((connections, len)));
                table.row(&name, &mut times, seconds);
            }
        }
        drop((master, node));
    }

    /// Reads all objects in turn on one connection, `len` bytes per request; all are those of one client.
    /// Returns the bytes.
    async fn hog(
        data: String,
        objects: Arc<Vec<Location>>,
        at: usize,
        len: usize,
        stop: Arc<AtomicBool>,
    ) -> usize {
        let identity = Identity { client: 77, segment: objects[0].segment.0, token: String::new() };
        let tcp = match objects[0].slot_ref().is_on_disk() {
            true => Tcp::to_disk(data, identity, Arc::default(), None),
            false => Tcp::new(data, identity, Arc::default()),
        };
        let (mut buffer, mut bytes) = (vec![0; LARGE], 0);
        for location in objects.iter().cycle().skip(at) {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let (slot, stamp) = (location.slot.0, location.stamp.0);
            let pieces = buffer.chunks_mut(len).take(READS_MAX).enumerate();
            let op = |(number, piece)| {
                let (offset, targets) = ((number * len) as u64, vec![TargetBuf::from(piece)]);
                ReadOp { slot, stamp, offset, targets }
            };
            let ops: Vec<_> = pieces.map(op).collect();
            let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
            let outcomes = tcp.read(&ops, deadline).await;
            bytes += outcomes.iter().filter(|it| it.is_ok()).count() * len;
        }
        bytes
    }

    async fn measure(address: &str, name: &str, time: Duration) -> Vec<Duration> {
        let namespace = "victim".to_owned();
        let options = ConnectOptions { namespace, shared_memory: false, ..ConnectOptions::new(address) };
        let client = Client::connect(options).await.unwrap();
        let key = Key::new(name.as_bytes()).unwrap();
        let (mut times, mut buffer) = (Vec::new(), vec![0; SMALL]);
        let end = Instant::now() + time;
        while Instant::now() < end {
            let began = Instant::now();
            let item = [GetInto::new(key.clone(), &mut buffer)];
            let got = client.get_into(&item, GetOptions::default(), soon()).await.remove(0).unwrap();
            assert_eq!(got.len, SMALL as u64);
            times.push(began.elapsed());
        }
        times
    }

    async fn start(folder: &std::path::Path) -> (MasterServer, NodeServer) {
        let tier = TierConfig { promote_on_hit: false, ..TierConfig::default() };
        let master = MasterServer::start(MasterConfig { tier, ..MasterConfig::default() }).await.unwrap();
        let ssd = vec![SsdConfig { path: folder.join("log"), size: 4 * MEMORY, engine: Engine::Auto }];
        let address = master.address().clone().into();
        let config = NodeConfig { master: address, memory: MEMORY, ssd, ..NodeConfig::default() };
        let node = NodeServer::start(config).await.unwrap();
        node.joined(tokio::time::Instant::now() + Duration::from_secs(60)).await.unwrap();
        (master, node)
    }

    /// Puts the objects of both clients. Returns those of the other one that are in memory, and those that
    /// are only on the disk.
    async fn put_all(address: &str) -> (Vec<Location>, Vec<Location>) {
        let policy = Policy { demotion: Some(Demotion::WriteThrough), ..Policy::default() };
        let victim = connect(address, "victim").await;
        victim.set_policy(policy.clone().into(), soon()).await.unwrap();
        put(&victim, "cold", SMALL).await;
        let hog = connect(address, "hogs").await;
        hog.set_policy(policy.into(), soon()).await.unwrap();
        let keys: Vec<_> =
            (0..LARGE_COUNT).map(|at| Key::new(format!("large-{at}").as_bytes()).unwrap()).collect();
        for at in 0..LARGE_COUNT {
            put(&hog, &format!("large-{at}"), LARGE).await;
        }
        put(&victim, "mine", SMALL).await;
        let options = ResolveOptions { locate: true, ..ResolveOptions::default() };
        let infos = hog.resolve(&keys, options, soon()).await;
        let locations = |it: tiffin_client::Info| it.replicas.into_iter().map(|it| it.location).collect();
        let replicas = infos.into_iter().map(|it| -> Vec<Location> { locations(it.unwrap().unwrap()) });
        let (mut memory, mut disk) = (Vec::new(), Vec::new());
        for replicas in replicas {
            match replicas.iter().find(|it| !it.slot_ref().is_on_disk()) {
                Some(it) => memory.push(*it),
                None => disk.extend(replicas),
            }
        }
        assert!(!memory.is_empty() && !disk.is_empty(), "the memory is smaller than the objects");
        let cold = victim.resolve(&[Key::new(b"cold").unwrap()], options, soon()).await.remove(0);
        assert!(cold.unwrap().unwrap().replicas.iter().all(|it| it.location.slot_ref().is_on_disk()));
        (memory, disk)
    }

    async fn put(client: &Client, name: &str, len: usize) {
        let bytes: Vec<_> = (0..len).map(|at| (at / 7) as u8).collect();
        let put = [Put::new(Key::new(name.as_bytes()).unwrap(), &bytes)];
        client.put_with(&put, SpaceWait::UntilDeadline, soon()).await.remove(0).unwrap();
    }
}
