//! The roles of child processes.

use std::io::{self, Read, Write};
use std::time::Duration;

use tiffin_client::{Client, ConnectOptions, Error, GetOptions, Put, PutOptions, SpaceRequest, SpaceWait};
use tiffin_rpc::Connection;
use tiffin_server::{MasterConfig, MasterServer, NodeConfig, NodeServer};
use tiffin_types::message::{ClientToMaster, Hello, Reply, Reserve, ReserveItem, ReserveOutcome};
use tokio::time::Instant;

use crate::support::{LONG, MEMORY, key, only, small, soon};

const SMALL_KEYS: usize = 64;

pub(crate) async fn be_master(address: &str) {
    let config = MasterConfig { listen: vec![address.parse().unwrap()], ..MasterConfig::default() };
    let _master = MasterServer::start(config).await.unwrap();
    ready_until_parent_ends();
}

/// A master with a state folder that never declares a node lost.
pub(crate) async fn be_stateful_master(address: &str, folder: &str) {
    let config = MasterConfig {
        listen: vec![address.parse().unwrap()],
        state_dir: Some(folder.into()),
        away: Duration::from_secs(3600),
        ..MasterConfig::default()
    };
    let _master = MasterServer::start(config).await.unwrap();
    ready_until_parent_ends();
}

pub(crate) async fn be_node(master: &str, name: &str, memory: u64) {
    let config = NodeConfig {
        master: master.parse().unwrap(),
        memory,
        name: name.to_owned(),
        ..NodeConfig::default()
    };
    let node = NodeServer::start(config).await.unwrap();
    node.joined(Instant::now() + LONG).await.unwrap();
    ready_until_parent_ends();
}

/// A node whose memory is small compared to its disk.
pub(crate) async fn be_node_with_disk(master: &str, folder: &str) {
    let config = NodeConfig {
        master: master.parse().unwrap(),
        memory: MEMORY / 4,
        name: "shelf".to_owned(),
        ssd: vec![format!("path={folder},size=128MiB").parse().unwrap()],
        ..NodeConfig::default()
    };
    let node = NodeServer::start(config).await.unwrap();
    node.joined(Instant::now() + LONG).await.unwrap();
    ready_until_parent_ends();
}

/// A node whose memory outlives it.
pub(crate) async fn be_node_with_pool(master: &str, folder: &str) {
    let config = NodeConfig {
        master: master.parse().unwrap(),
        memory: MEMORY,
        name: "pool".to_owned(),
        pool: Some(folder.into()),
        ..NodeConfig::default()
    };
    let node = NodeServer::start(config).await.unwrap();
    node.joined(Instant::now() + LONG).await.unwrap();
    ready_until_parent_ends();
}

/// A client that has reserved memory and mapped it, and neither writes nor commits.
pub(crate) async fn be_reserver(master: &str) {
    let client = Client::connect(ConnectOptions::new(master)).await.unwrap();
    // Connects to the node, and maps its memory.
    only(client.put(&[Put::new(key("of the dead"), b"small")], soon()).await).unwrap();
    // A put would continue at once, so this sends the reserve request of a put itself.
    let hello = Hello { client: client.id(), namespace: "default".to_owned(), ..Hello::default() };
    let (connection, _) =
        Connection::open(&master.parse().unwrap(), hello, Instant::now() + LONG).await.unwrap();
    let options = PutOptions { replicas: 1, ..PutOptions::default() };
    let items = vec![ReserveItem { key: key("never"), len: MEMORY / 2, options }];
    let request = ClientToMaster::Reserve(Reserve { items, ..Reserve::default() });
    let reply = connection.call(&request, Instant::now() + LONG).await.unwrap();
    let Reply::Reserved(reserved) = reply else { panic!("{reply:?}") };
    assert!(matches!(reserved.items[..], [ReserveOutcome::Space(_)]), "{reserved:?}");
    ready_until_parent_ends();
}

/// A client that has reserved all memory, and never writes to it.
pub(crate) async fn be_hoarder(master: &str) {
    let client = Client::connect(ConnectOptions::new(master)).await.unwrap();
    let spaces = [SpaceRequest::new(key("never"), MEMORY)];
    let _reserved = only(client.reserve(&spaces, SpaceWait::Never, soon()).await).unwrap();
    ready_until_parent_ends();
}

pub(crate) async fn be_putter(master: &str) {
    let client = Client::connect(ConnectOptions::new(master)).await.unwrap();
    let bytes = vec![1; 1 << 20];
    for round in 0.. {
        let puts = [Put::new(key("load/a"), &bytes), Put::new(key("load/b"), &bytes)];
        client.put(&puts, soon()).await.into_iter().for_each(|it| assert!(it.is_ok(), "{it:?}"));
        if round == 0 {
            ready();
        }
    }
}

/// A client that puts small objects of one size for ever, so that memory is preallocated for it. It reads
/// back each object, if it still exists.
pub(crate) async fn be_small_putter(master: &str) {
    let client = Client::connect(ConnectOptions::new(master)).await.unwrap();
    for number in 0.. {
        let (name, bytes) = (key(format!("small/{}", number % SMALL_KEYS)), small(number));
        match only(client.put(&[Put::new(name.clone(), &bytes)], soon()).await) {
            Ok(_) => match only(client.get(&[name], GetOptions::default(), soon()).await) {
                Ok(got) => assert!(got.bytes == bytes, "other bytes than were put"),
                Err(error) => assert!(matches!(error, Error::NotFound { .. }), "{error:?}"),
            },
            Err(error) => assert!(matches!(error, Error::Full { .. }), "{error:?}"),
        }
        if number == SMALL_KEYS {
            ready();
        }
    }
}

pub(crate) async fn be_viewer(master: &str, name: &str) {
    let client = Client::connect(ConnectOptions::new(master)).await.unwrap();
    let view = only(client.view(&[key(name)], soon()).await).unwrap();
    assert!(view.is_borrowed());
    ready_until_parent_ends();
}

/// A consumer that has a lease and a view, and never acknowledges.
pub(crate) async fn be_consumer(master: &str, name: &str) {
    let client = Client::connect(ConnectOptions::new(master)).await.unwrap();
    let lease = only(client.lease(&[(key(name), None)], "g", soon()).await).unwrap();
    let view = only(client.view(&[key(name)], soon()).await).unwrap();
    assert!(view.is_borrowed() && !lease.is_released());
    ready_until_parent_ends();
}

fn ready() {
    println!("ready");
    io::stdout().flush().unwrap();
}

pub(crate) fn ready_until_parent_ends() {
    ready();
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
}
