//! What memory has no room for goes to a disk and comes back, whole.

use std::path::Path;

use tempfile::TempDir;
use tiffin_client::{
    Ahead, Client, Demotion, GetOptions, Patience, Policy, PrefetchOutcome, Put, ResolveOptions,
};
use tiffin_server::config::{Engine, SsdConfig};
use tiffin_server::{MasterConfig, MasterServer, NodeConfig, NodeServer};
use tokio::time::Instant;

use super::support::{LONG, eventually, key, only, pattern, soon};

const MIB: u64 = 1 << 20;
const OBJECT: usize = 256 << 10;
/// Several times what the memory holds.
const OBJECTS: usize = 100;

/// A place on a real disk: direct I/O is refused elsewhere.
fn place() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

struct Store {
    master: MasterServer,
    node: Option<NodeServer>,
}

impl Store {
    async fn start(folder: &Path, engine: Engine) -> Self {
        let master = MasterServer::start(MasterConfig::default()).await.unwrap();
        let mut store = Self { master, node: None };
        store.start_node(folder, engine).await;
        store
    }

    async fn start_node(&mut self, folder: &Path, engine: Engine) {
        let ssd = vec![SsdConfig { path: folder.join("log"), size: 256 * MIB, engine }];
        let master = self.master.address().clone();
        let config =
            NodeConfig { master, memory: 8 * MIB, name: "node".into(), ssd, ..NodeConfig::default() };
        let node = NodeServer::start(config).await.unwrap();
        node.joined(Instant::now() + LONG).await.unwrap();
        self.node = Some(node);
    }

    async fn client(&self) -> Client {
        let options = tiffin_client::ConnectOptions::new(self.master.address().to_string());
        Client::connect(options).await.unwrap()
    }

    fn on_disk(&self) -> u64 {
        self.node.as_ref().unwrap().disk_usages().iter().map(|it| it.objects).sum()
    }
}

async fn fill(client: &Client) {
    for at in 0..OBJECTS {
        let bytes = pattern(at, OBJECT);
        let put = Put::new(key(format!("o{at}")), &bytes);
        only(client.put_with(&[put], Patience::UntilDeadline, soon()).await).unwrap();
    }
}

async fn check_all(client: &Client) {
    for at in 0..OBJECTS {
        let object = only(client.get(&[key(format!("o{at}"))], GetOptions::default(), soon()).await);
        let Ok(object) = object else {
            panic!("o{at}: {object:?}, {:?}", client.stat(soon()).await.unwrap().tier);
        };
        assert!(object.bytes == pattern(at, OBJECT), "o{at}");
    }
}

async fn what_does_not_fit_is_on_disk_and_can_be_read(engine: Engine) {
    let folder = place();
    let store = Store::start(folder.path(), engine).await;
    let client = store.client().await;
    fill(&client).await;
    check_all(&client).await;
    let stat = client.stat(soon()).await.unwrap();
    assert_eq!(stat.tier.evicted_unshelved, 0, "{stat:?}");
    assert!(stat.tier.gets_from_disk > 0, "{stat:?}");
    assert!(store.on_disk() >= (OBJECTS - 32) as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_fit_is_on_disk_with_whatever_the_kernel_has() {
    what_does_not_fit_is_on_disk_and_can_be_read(Engine::Auto).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_fit_is_on_disk_with_blocking_calls() {
    what_does_not_fit_is_on_disk_and_can_be_read(Engine::Blocking).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_deleted_stays_so_and_the_rest_is_there_after_a_restart_of_the_node() {
    let folder = place();
    let mut store = Store::start(folder.path(), Engine::Auto).await;
    let client = store.client().await;
    client
        .set_policy(Policy { demotion: Some(Demotion::WriteThrough), ..Policy::default() }, soon())
        .await
        .unwrap();
    fill(&client).await;
    eventually("all are on disk", || store.on_disk() == OBJECTS as u64).await;
    for at in (0..OBJECTS).step_by(3) {
        assert!(only(client.delete(&[key(format!("o{at}"))], Default::default(), soon()).await).unwrap());
    }
    store.node.take().unwrap().leave(Instant::now() + LONG).await;
    store.start_node(folder.path(), Engine::Auto).await;
    for at in 0..OBJECTS {
        let object = only(client.get(&[key(format!("o{at}"))], GetOptions::default(), soon()).await);
        match at % 3 {
            0 => assert!(object.is_err(), "o{at} was deleted"),
            _ => assert!(object.unwrap().bytes == pattern(at, OBJECT), "o{at}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_asked_about_is_in_memory_when_it_is_asked_for() {
    let folder = place();
    let store = Store::start(folder.path(), Engine::Auto).await;
    let client = store.client().await;
    fill(&client).await;
    let keys: Vec<_> = (0..4).map(|at| key(format!("o{at}"))).collect();
    let options = ResolveOptions { ahead: Ahead::LeadingRun, ..ResolveOptions::default() };
    // What is in memory was used a moment ago; it is not driven out for what may be used.
    let outcomes = client.prefetch(&keys, Ahead::All, soon()).await;
    assert!(outcomes.iter().all(|it| it.is_ok()), "{outcomes:?}");
    for key in &keys {
        only(
            client
                .delete(&[super::support::key(format!("o{}", OBJECTS - 1))], Default::default(), soon())
                .await,
        )
        .ok();
        assert!(only(client.exists(std::slice::from_ref(key), options, soon()).await).unwrap());
    }
    // With room there is no question.
    for at in OBJECTS / 2..OBJECTS {
        only(client.delete(&[super::support::key(format!("o{at}"))], Default::default(), soon()).await).ok();
    }
    let outcomes = client.prefetch(&keys, Ahead::All, soon()).await;
    let came = |it: &Result<PrefetchOutcome, _>| {
        matches!(it, Ok(PrefetchOutcome::Done | PrefetchOutcome::Resident | PrefetchOutcome::Skipped))
    };
    assert!(outcomes.iter().all(came), "{outcomes:?}");
    for (at, key) in keys.iter().enumerate() {
        let object = only(client.get(std::slice::from_ref(key), GetOptions::default(), soon()).await);
        assert!(object.unwrap().bytes == pattern(at, OBJECT));
    }
}
