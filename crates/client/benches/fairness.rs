//! What one client's load costs another: `make bench-fairness`, or
//! `cargo bench -p tiffin-client --bench fairness [-- SECONDS]`.
//!
//! A client of one namespace asks for one key at a time, from a master and a node in a process of their own
//! threads. Beside it, clients of another namespace do one thing in a loop. Each row is what the first client
//! sees: its calls per second, and how long they take.

#![expect(clippy::unwrap_used, clippy::print_stdout, clippy::indexing_slicing, reason = "a benchmark")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tiffin_client::{
    Client, ConnectOptions, Deadline, DeleteOptions, Key, ListOptions, Pattern, Put, ResolveOptions,
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
}

impl Load {
    const ALL: [(Self, &str); 9] = [
        (Self::Nothing, "nothing"),
        (Self::OneHog, "one client, 16 loops of one key"),
        (Self::EightHogs, "eight clients, 16 loops each"),
        (Self::LargeBatches, "exists of 65,536 keys, 4 loops"),
        (Self::Why, "why of 20,000 unknown keys"),
        (Self::List, "list of 100,000 objects"),
        (Self::Regex, "list by a regular expression"),
        (Self::DeletePattern, "puts of 1,000 objects, delete by prefix"),
        (Self::Stat, "stat, 4 loops"),
    ];

    fn clients_and_loops(self) -> (usize, usize) {
        match self {
            Self::Nothing => (0, 0),
            Self::OneHog => (1, LOOPS),
            Self::EightHogs => (8, LOOPS),
            Self::LargeBatches | Self::Stat => (1, 4),
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
    let seconds = std::env::args().skip(1).find_map(|it| it.parse().ok()).unwrap_or(3);
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
    println!(
        "{:<42} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "beside", "calls/s", "p50 us", "p99 us", "p99.9 us", "max us"
    );
    let victim = Builder::new_current_thread().enable_all().build().unwrap();
    for (load, name) in Load::ALL {
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
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_micros();
        let rate = times.len() as u64 / seconds;
        println!("{name:<42} {rate:>9} {:>9} {:>9} {:>9} {:>9}", at(0.5), at(0.99), at(0.999), at(1.0));
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
