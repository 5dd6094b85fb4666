//! How long a restarted master takes until it answers for a million objects. `make bench-restart` runs it.
//!
//! Master and nodes are in this process and talk through sockets, as in processes of their own. The nodes are
//! connected again a few milliseconds after the master listens, so this is the time that reports take.

#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

use std::time::{Duration, Instant};

use tiffin_client::{Client, ConnectOptions, Deadline, GetOptions, Key, Put};
use tiffin_server::{MasterConfig, MasterServer, NodeConfig, NodeServer};
use tokio::runtime::Runtime;

const OBJECTS: u64 = 1_000_000;
const NODES: u64 = 2;
/// Objects per batch of puts.
const BATCH: u64 = 8192;
/// Bytes of a node per object: value, key and record.
const OBJECT_BYTES: u64 = 512;
const ROUNDS: usize = 3;
/// Interval between two checks of the number of objects.
const LOOK: Duration = Duration::from_millis(2);
/// Longer than any step takes.
const LONG: Duration = Duration::from_secs(600);

fn soon() -> Deadline {
    Deadline::after(LONG)
}

fn key(number: u64) -> Key {
    Key::new(format!("object/{number:058}").as_bytes()).unwrap()
}

fn main() {
    // `cargo bench` passes `--bench`; a number is that of the objects.
    let objects = std::env::args().skip(1).find_map(|it| it.parse().ok()).unwrap_or(OBJECTS);
    Runtime::new().unwrap().block_on(measure(objects));
}

async fn measure(objects: u64) {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:@tiffin-bench-restart-{}", std::process::id());
    let config = || MasterConfig {
        listen: vec![address.parse().unwrap()],
        state_dir: Some(folder.path().into()),
        away: LONG,
        ..MasterConfig::default()
    };
    let mut master = MasterServer::start(config()).await.unwrap();
    let mut nodes = Vec::new();
    for number in 0..NODES {
        let config = NodeConfig {
            master: address.parse().unwrap(),
            memory: (64 << 20) + objects * OBJECT_BYTES / NODES * 2,
            name: format!("node-{number}"),
            ..NodeConfig::default()
        };
        let node = NodeServer::start(config).await.unwrap();
        node.joined(tokio::time::Instant::now() + LONG).await.unwrap();
        nodes.push(node);
    }
    let client = Client::connect(ConnectOptions::new(address.clone())).await.unwrap();
    let began = Instant::now();
    for first in (0..objects).step_by(BATCH as usize) {
        let puts = first..objects.min(first + BATCH);
        let puts: Vec<_> = puts.map(|it| Put::new(key(it), b"12345678")).collect();
        assert!(client.put(&puts, soon()).await.iter().all(Result::is_ok));
    }
    println!("{objects} objects on {NODES} nodes, put in {:.1} s", began.elapsed().as_secs_f64());
    for _ in 0..ROUNDS {
        master.shutdown().await;
        let began = Instant::now();
        master = MasterServer::start(config()).await.unwrap();
        let started = began.elapsed();
        let client = Client::connect(ConnectOptions::new(address.clone())).await.unwrap();
        // The master does not wait for nodes of its own process, so it is asked until it knows all objects.
        while master.stat().namespaces.iter().map(|it| it.objects).sum::<u64>() < objects {
            tokio::time::sleep(LOOK).await;
        }
        let known = began.elapsed();
        let last = client.get(&[key(objects - 1)], GetOptions::default(), soon()).await;
        assert!(last.into_iter().all(|it| it.unwrap().bytes == b"12345678"));
        println!(
            "listens after {:.2} s, answers for all objects after {:.2} s",
            started.as_secs_f64(),
            known.as_secs_f64()
        );
    }
}
