//! Nodes whose memory outlives their process.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tiffin_client::{
    Client, ConnectOptions, Deadline, DeleteOptions, Error, GetOptions, OnExists, Put, PutOptions,
};
use tiffin_server::config::PoolEnd;
use tiffin_server::{MasterConfig, MasterServer, NodeConfig, NodeServer};
use tokio::runtime::Runtime;
use tokio::time::Instant;

use crate::support::{
    LONG, LOOK, MEMORY, Process, connect, content_of, eventually, key, only, pattern, soon,
};

/// How long the master waits for a node that is dead.
const SHORT: Duration = Duration::from_millis(300);
/// How often the node is killed under load.
const KILLS: usize = 8;

/// A pool of this test, removed when it is dropped.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let folder = PathBuf::from(format!("/dev/shm/tiffin-test-{}-{name}", std::process::id()));
        let _absent = std::fs::remove_dir_all(&folder);
        Self(folder)
    }

    pub(crate) fn start(&self, master: &MasterServer) -> Process {
        Process::start(&["pool", &master.address().to_string(), self.0.to_str().unwrap()])
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

/// A master that waits for every member, however long it is away.
pub(crate) async fn start_master() -> MasterServer {
    MasterServer::start(MasterConfig { away: LONG, ..MasterConfig::default() }).await.unwrap()
}

fn pinned<'a>(name: &str, bytes: &'a [u8], hard_pin: bool) -> Put<'a> {
    let options = PutOptions { replicas: 1, hard_pin, on_exists: OnExists::Replace, ..PutOptions::default() };
    Put { options, ..Put::new(key(name), bytes) }
}

/// Reads until the node is back. Whatever is read meanwhile is right.
async fn read(client: &Client, name: &str) -> Result<Vec<u8>, Error> {
    let until = Instant::now() + LONG;
    loop {
        match only(client.get(&[key(name)], GetOptions::default(), soon()).await) {
            Ok(got) => return Ok(got.bytes),
            Err(error) if matches!(error, Error::NotFound { .. }) || Instant::now() > until => {
                return Err(error);
            }
            Err(_) => tokio::time::sleep(LOOK).await,
        }
    }
}

pub(crate) fn a_node_killed_with_its_pool(runtime: &Runtime) {
    let folder = Folder::new("killed");
    let master = runtime.block_on(start_master());
    let node = folder.start(&master);
    let objects: Vec<_> = (0..24).map(|it| (format!("k{it}"), content_of(it, 0))).collect();
    let client = runtime.block_on(async {
        let client = connect(&master, true).await;
        for (at, (name, bytes)) in objects.iter().enumerate() {
            only(client.put(&[pinned(name, bytes, at % 2 == 0)], soon()).await).unwrap();
        }
        let small = pattern(100);
        only(client.put(&[pinned("gone", &small, true)], soon()).await).unwrap();
        only(client.put(&[pinned("viewed", &pattern(1 << 20), false)], soon()).await).unwrap();
        client
    });
    runtime.block_on(async {
        let view = only(client.view(&[key("viewed")], soon()).await).unwrap();
        assert!(view.is_borrowed());
        let segment = master.stat().nodes[0].info.segment;
        node.kill();
        // The delete cannot be confirmed, and must be applied before the node serves again.
        let waiting = Deadline::waiting(SHORT, LONG);
        let deleted = only(client.delete(&[key("gone")], DeleteOptions::default(), waiting).await);
        assert_eq!(deleted, Err(Error::Unconfirmed { nodes: vec!["pool".to_owned()] }));
        let _node = folder.start(&master);
        let nodes = master.stat().nodes;
        assert_eq!((nodes.len(), nodes[0].info.segment), (1, segment), "it is the same member");
        let (fresh, far) = (connect(&master, true).await, connect(&master, false).await);
        for client in [&client, &fresh, &far] {
            for (name, bytes) in &objects {
                assert!(read(client, name).await.unwrap() == *bytes, "{name}");
            }
            assert!(matches!(read(client, "gone").await, Err(Error::NotFound { .. })), "it came back");
        }
        // The view began at the process that was killed: its memory must not be reused.
        let deleted = only(client.delete(&[key("viewed")], DeleteOptions::default(), soon()).await);
        assert_eq!(deleted, Ok(true));
        for round in 0..64 {
            only(client.put(&[pinned("churn", &content_of(round, 7).repeat(8), false)], soon()).await)
                .unwrap();
        }
        assert!(view.bytes().unwrap() == pattern(1 << 20), "a viewed object was overwritten");
        let usage = || master.stat().nodes[0].usage;
        eventually("the node reports the view", || usage().held == 1 << 20).await;
        drop(view);
        eventually("the memory returns after the view", || usage().held == 0 && usage().granted == 0).await;
    });
}

/// A client that was refused until it leaves the node alone uses it as soon as it has registered again.
pub(crate) fn a_node_restarted_after_its_clients_gave_up(runtime: &Runtime) {
    for shared_memory in [true, false] {
        let folder = Folder::new("avoided");
        let master = runtime.block_on(start_master());
        let node = folder.start(&master);
        runtime.block_on(async {
            let client = connect(&master, shared_memory).await;
            let bytes = pattern(100);
            only(client.put(&[pinned("k", &bytes, true)], soon()).await).unwrap();
            let infos: Vec<_> = master.stat().nodes.into_iter().map(|it| it.info).collect();
            node.kill();
            let why = || client.routes().into_iter().find_map(|it| it.why).unwrap_or_default();
            let until = Instant::now() + LONG;
            while !why().contains("attempts failed") {
                client.meet(&infos, soon()).await;
                assert!(Instant::now() < until, "it tries on and on: {}", why());
                tokio::time::sleep(LOOK).await;
            }
            let _node = folder.start(&master);
            // One call each, without a retry by the caller.
            let got = only(client.get(&[key("k")], GetOptions::default(), soon()).await);
            assert!(got.unwrap().bytes == bytes);
            only(client.put(&[pinned("k", &bytes, true)], soon()).await).unwrap();
            assert_eq!(client.avoided_nodes(), 0);
        });
    }
}

/// Puts and gets for as long as it may. What it reads is right, and what was acknowledged it remembers.
async fn load(
    client: Client,
    number: usize,
    stop: Arc<AtomicBool>,
    stored: Arc<Mutex<BTreeMap<String, usize>>>,
) {
    for round in 1.. {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let (it, deadline) = (round % 8, Deadline::after(Duration::from_secs(2)));
        let name = format!("{number}/{it}");
        let bytes = content_of(number * 8 + it, round);
        // After an error the put may have happened or not, so the name is not checked any more.
        let expected = stored.lock().unwrap().remove(&name);
        if let Some(put) = expected
            && let Ok(got) = only(client.get(&[key(&name)], GetOptions::default(), deadline).await)
        {
            assert!(got.bytes == content_of(number * 8 + it, put), "{name} is not what was put");
        }
        if only(client.put(&[pinned(&name, &bytes, true)], deadline).await).is_ok() {
            stored.lock().unwrap().insert(name, round);
        }
    }
}

pub(crate) fn a_node_killed_with_its_pool_under_load(runtime: &Runtime) {
    let folder = Folder::new("load");
    let master = runtime.block_on(start_master());
    let mut node = folder.start(&master);
    let (stop, stored) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(BTreeMap::new())));
    let observer = runtime.block_on(connect(&master, true));
    runtime.block_on(async {
        only(observer.put(&[pinned("kept", &content_of(0, 0), true)], soon()).await).unwrap();
    });
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..3 {
        let client = runtime.block_on(connect(&master, number < 2));
        tasks.spawn_on(load(client, number, Arc::clone(&stop), Arc::clone(&stored)), runtime.handle());
    }
    for _ in 0..KILLS {
        let before = stored.lock().unwrap().values().copied().max().unwrap_or(0);
        let grows = || stored.lock().unwrap().values().any(|it| *it > before + 2);
        runtime.block_on(eventually("puts succeed", grows));
        node.kill();
        node = folder.start(&master);
    }
    stop.store(true, Ordering::Release);
    runtime.block_on(async {
        while let Some(joined) = tasks.join_next().await {
            joined.unwrap();
        }
        assert!(read(&observer, "kept").await.unwrap() == content_of(0, 0));
        // If every put has failed since the last kill, nothing else is certain.
        let stored = stored.lock().unwrap().clone();
        for (name, put) in stored {
            let (number, it) = name.split_once('/').unwrap();
            let at = number.parse::<usize>().unwrap() * 8 + it.parse::<usize>().unwrap();
            assert!(read(&observer, &name).await.unwrap() == content_of(at, put), "{name}");
        }
        let usage = || master.stat().nodes[0].usage;
        eventually("nothing is reserved or in view", || usage().held == 0 && usage().granted == 0).await;
    });
    drop(node);
}

pub(crate) fn a_node_stopped_with_its_pool(runtime: &Runtime) {
    let folder = Folder::new("stopped");
    runtime.block_on(async {
        let master = start_master().await;
        let start = async |pool_on_stop| {
            let config = NodeConfig {
                master: master.address().clone().into(),
                memory: MEMORY,
                name: "pool".to_owned(),
                pool: Some(folder.0.clone()),
                pool_on_stop,
                ..NodeConfig::default()
            };
            let node = NodeServer::start(config).await.unwrap();
            node.joined(Instant::now() + LONG).await.unwrap();
            node
        };
        let node = start(PoolEnd::Keep).await;
        let bytes = pattern(1 << 20);
        let client = connect(&master, true).await;
        only(client.put(&[pinned("k", &bytes, true)], soon()).await).unwrap();
        let segment = node.segment();
        node.leave(Instant::now() + LONG).await;
        let node = start(PoolEnd::Discard).await;
        assert_eq!(node.segment(), segment);
        assert!(read(&client, "k").await.unwrap() == bytes);
        node.leave(Instant::now() + LONG).await;
        assert!(!folder.0.exists());
        assert!(matches!(read(&client, "k").await, Err(Error::NotFound { .. })));
        let node = start(PoolEnd::Discard).await;
        assert!(node.segment() != segment && node.inventory().is_empty());
    });
}

pub(crate) fn a_node_and_its_master_killed_before_the_ledger_is_read(runtime: &Runtime) {
    let (folder, state) = (Folder::new("unread"), tempfile::tempdir().unwrap());
    let address = format!("unix:@tiffin-client-test-unread-{}", std::process::id());
    let start = || Process::start(&["stateful", &address, state.path().to_str().unwrap()]);
    let start_node = || Process::start(&["pool", &address, folder.0.to_str().unwrap()]);
    let connect = async || Client::connect(ConnectOptions::new(address.clone())).await.unwrap();
    let (master, node) = (start(), start_node());
    let name = |number: usize| format!("k{number}");
    let acknowledged = runtime.block_on(async {
        let client = connect().await;
        for number in 0..16 {
            only(client.put(&[Put::new(key(name(number)), &content_of(number, 0))], soon()).await).unwrap();
        }
        // From now on the node reads nothing. The client has memory for some more puts.
        node.stop();
        let mut acknowledged = 16;
        let short = || Deadline::after(SHORT);
        while only(
            client.put(&[Put::new(key(name(acknowledged)), &content_of(acknowledged, 0))], short()).await,
        )
        .is_ok()
        {
            acknowledged += 1;
        }
        acknowledged
    });
    assert!(acknowledged > 16, "the node was asked, although its message is recorded");
    node.kill();
    master.kill();
    let _both = (start(), start_node());
    runtime.block_on(async {
        let client = connect().await;
        for number in 0..acknowledged {
            assert!(read(&client, &name(number)).await.unwrap() == content_of(number, 0), "{number}");
        }
    });
}
