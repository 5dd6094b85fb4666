//! Objects that do not fit into memory are written to a disk and read back unchanged.

use std::path::Path;

use tempfile::TempDir;
use tiffin_client::{
    Ahead, Client, ConnectOptions, Demotion, GetInto, GetOptions, PolicyChange, PrefetchOutcome, Put,
    ResolveOptions, SpaceWait, Why,
};
use tiffin_server::config::{Engine, SsdConfig, TierConfig};
use tiffin_server::{MasterConfig, MasterServer, NodeConfig, NodeServer};
use tokio::time::Instant;

use super::support::{LONG, eventually, key, only, pattern, soon};

pub(super) const MIB: u64 = 1 << 20;
pub(super) const OBJECT: usize = 256 << 10;
/// Several times the size of the memory.
pub(super) const OBJECTS: usize = 100;

/// A directory on a real disk: other filesystems reject direct I/O.
pub(super) fn place() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

pub(super) struct Store {
    pub(super) master: MasterServer,
    pub(super) node: Option<NodeServer>,
}

impl Store {
    pub(super) async fn start(folder: &Path, engine: Engine) -> Self {
        Self::sized(folder, engine, 256 * MIB).await
    }

    pub(super) async fn sized(folder: &Path, engine: Engine, size: u64) -> Self {
        let master = MasterServer::start(MasterConfig::default()).await.unwrap();
        let mut store = Self { master, node: None };
        store.start_sized(folder, engine, size).await;
        store
    }

    pub(super) async fn start_node(&mut self, folder: &Path, engine: Engine) {
        self.start_sized(folder, engine, 256 * MIB).await;
    }

    async fn start_sized(&mut self, folder: &Path, engine: Engine, size: u64) {
        let ssd = vec![SsdConfig { path: folder.join("log"), size, engine }];
        let master = self.master.address().clone();
        let config = NodeConfig {
            master: master.into(),
            memory: 8 * MIB,
            name: "node".into(),
            ssd,
            ..NodeConfig::default()
        };
        let node = NodeServer::start(config).await.unwrap();
        node.joined(Instant::now() + LONG).await.unwrap();
        self.node = Some(node);
    }

    pub(super) async fn client(&self) -> Client {
        let options = ConnectOptions::new(self.master.address().to_string());
        Client::connect(options).await.unwrap()
    }

    /// A client that reads the disk without a socket.
    pub(super) async fn near_client(&self) -> Client {
        let node = self.node.as_ref().unwrap();
        let options = ConnectOptions {
            home: Some(node.segment()),
            own_memory: Some(node.memory().clone()),
            own_disks: node.local_disks(),
            ..ConnectOptions::new(self.master.address().to_string())
        };
        Client::connect(options).await.unwrap()
    }

    pub(super) fn on_disk(&self) -> u64 {
        self.node.as_ref().unwrap().disk_usages().iter().map(|it| it.objects).sum()
    }
}

pub(super) async fn fill(client: &Client) {
    for at in 0..OBJECTS {
        let bytes = pattern(at, OBJECT);
        let put = Put::new(key(format!("o{at}")), &bytes);
        only(client.put_with(&[put], SpaceWait::UntilDeadline, soon()).await).unwrap();
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

async fn fill_and_read_back(engine: Engine) {
    let folder = place();
    let store = Store::start(folder.path(), engine).await;
    let client = store.client().await;
    fill(&client).await;
    check_all(&client).await;
    let stat = client.stat(soon()).await.unwrap();
    assert_eq!(stat.tier.evicted_undemoted, 0, "{stat:?}");
    assert!(stat.tier.gets_from_disk > 0, "{stat:?}");
    assert!(store.on_disk() >= (OBJECTS - 32) as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_spill_to_disk_with_the_default_engine() {
    fill_and_read_back(Engine::Auto).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_spill_to_disk_with_blocking_calls() {
    fill_and_read_back(Engine::Blocking).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_restart_keeps_objects_and_deletes() {
    let folder = place();
    let mut store = Store::start(folder.path(), Engine::Auto).await;
    let client = store.client().await;
    client.set_policy(PolicyChange::NONE.demotion(Some(Demotion::WriteThrough)), soon()).await.unwrap();
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
async fn prefetched_objects_are_in_memory() {
    let folder = place();
    let store = Store::start(folder.path(), Engine::Auto).await;
    let client = store.client().await;
    fill(&client).await;
    let keys: Vec<_> = (0..4).map(|at| key(format!("o{at}"))).collect();
    let options = ResolveOptions { ahead: Ahead::LeadingRun, ..ResolveOptions::default() };
    // Recently used objects in memory are not evicted for a prefetch.
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
    // With free memory every prefetch succeeds.
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

/// Objects of more than half a segment of the log also use the ends of segments. Neither puts nor reads
/// evict any while they fit on the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_objects_that_fit_on_the_disk_are_all_kept() {
    let folder = place();
    let store = Store::sized(folder.path(), Engine::Auto, 64 * MIB).await;
    let client = store.client().await;
    let (len, count) = (MIB as usize, 50);
    for at in 0..count {
        let bytes = pattern(at, len);
        let put = Put::new(key(format!("m{at}")), &bytes);
        only(client.put_with(&[put], SpaceWait::UntilDeadline, soon()).await).unwrap();
    }
    for at in 0..count {
        let object = only(client.get(&[key(format!("m{at}"))], GetOptions::default(), soon()).await);
        assert!(object.unwrap().bytes == pattern(at, len), "m{at}");
    }
    let stat = client.stat(soon()).await.unwrap();
    assert_eq!((stat.tier.disk_evicted, stat.tier.evicted_undemoted), (0, 0), "{stat:?}");
}

/// A client in the node's process reads its disk without a socket: whole objects and ranges, of every size,
/// into any number of buffers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_in_same_process_is_read_without_a_socket() {
    let folder = place();
    let mut store = Store::start(folder.path(), Engine::Auto).await;
    let client = store.client().await;
    let demotion = Some(Demotion::WriteThrough);
    client.set_policy(PolicyChange::NONE.demotion(demotion), soon()).await.unwrap();
    let lens = [0, 1, 4096, 70_001, 4 << 20, (5 << 20) + 13];
    for (at, len) in lens.into_iter().enumerate() {
        let bytes = pattern(at, len);
        let put = [Put::new(key(format!("s{at}")), &bytes)];
        only(client.put_with(&put, SpaceWait::UntilDeadline, soon()).await).unwrap();
    }
    eventually("all are on disk", || store.on_disk() == lens.len() as u64).await;
    store.node.take().unwrap().leave(Instant::now() + LONG).await;
    store.start_node(folder.path(), Engine::Auto).await;
    let near = store.near_client().await;
    let keys: Vec<_> = (0..lens.len()).map(|at| key(format!("s{at}"))).collect();
    let objects = near.get(&keys, GetOptions::default(), soon()).await;
    for (at, (object, len)) in objects.into_iter().zip(lens).enumerate() {
        let (bytes, wanted) = (object.unwrap().bytes, pattern(at, len));
        let differs = bytes.iter().zip(&wanted).position(|(a, b)| a != b);
        assert_eq!((bytes.len(), differs), (len, None));
    }
    let (last, whole) = (lens.len() - 1, pattern(lens.len() - 1, lens[lens.len() - 1]));
    for range in [0..1, 4095..4097, (4 << 20) - 7..(4 << 20) + 9, 100..whole.len() as u64, 9..9] {
        let mut parts = [vec![0; 5], vec![], vec![0; whole.len()]];
        let targets = parts.iter_mut().map(|it| it.as_mut_slice().into()).collect();
        let item = GetInto { key: keys[last].clone(), targets, range: Some(range.clone()) };
        let got = only(near.get_into(&[item], GetOptions::default(), soon()).await).unwrap();
        assert_eq!(got.len, range.end - range.start);
        let wanted = &whole[range.start as usize..range.end as usize];
        assert!(parts.concat()[..wanted.len()] == *wanted, "{range:?}");
    }
    assert_eq!(near.counters().tcp.read(), 0);
    assert!(near.counters().local.read() > 9 << 20 && near.disk_reads() > 6);
    // When its node stops, reads return an error.
    store.node.take().unwrap().leave(Instant::now() + LONG).await;
    assert!(only(near.get(&keys[..1], GetOptions::default(), soon()).await).is_err());
}

/// A client of this host copies the bytes of a disk from shared memory. A client that shares no memory gets
/// the same bytes through the socket: whole objects and ranges.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_of_same_host_is_read_through_shared_memory() {
    let folder = place();
    // Objects that are read often stay on the disk.
    let tier = TierConfig { promote_on_hit: false, ..TierConfig::default() };
    let master = MasterServer::start(MasterConfig { tier, ..MasterConfig::default() }).await.unwrap();
    let mut store = Store { master, node: None };
    store.start_node(folder.path(), Engine::Auto).await;
    let lens = [1, 4096, (64 << 10) - 1, 64 << 10, 70_001, 1 << 20, (5 << 20) + 13];
    let client = store.client().await;
    let demotion = Some(Demotion::WriteThrough);
    client.set_policy(PolicyChange::NONE.demotion(demotion), soon()).await.unwrap();
    for (at, len) in lens.into_iter().enumerate() {
        let bytes = pattern(at, len);
        let put = [Put::new(key(format!("s{at}")), &bytes)];
        only(client.put_with(&put, SpaceWait::UntilDeadline, soon()).await).unwrap();
    }
    eventually("all are on disk", || store.on_disk() == lens.len() as u64).await;
    store.node.take().unwrap().leave(Instant::now() + LONG).await;
    store.start_node(folder.path(), Engine::Auto).await;
    let keys: Vec<_> = (0..lens.len()).map(|at| key(format!("s{at}"))).collect();
    for shares in [true, false] {
        let options = ConnectOptions {
            shared_memory: shares,
            ..ConnectOptions::new(store.master.address().to_string())
        };
        let client = Client::connect(options).await.unwrap();
        // Repeated reads: the staging memory is released.
        for _ in 0..20 {
            let objects = client.get(&keys, GetOptions::default(), soon()).await;
            for (at, (object, len)) in objects.into_iter().zip(lens).enumerate() {
                assert!(object.unwrap().bytes == pattern(at, len), "s{at}, shares memory: {shares}");
            }
        }
        let last = lens.len() - 1;
        let whole = pattern(last, lens[last]);
        for range in [0..100_000, 4095..300_001, (4 << 20) - 7..(5 << 20) + 13] {
            let mut parts = [vec![0; 5], vec![], vec![0; whole.len()]];
            let targets = parts.iter_mut().map(|it| it.as_mut_slice().into()).collect();
            let item = GetInto { key: keys[last].clone(), targets, range: Some(range.clone()) };
            only(client.get_into(&[item], GetOptions::default(), soon()).await).unwrap();
            let wanted = &whole[range.start as usize..range.end as usize];
            assert!(parts.concat()[..wanted.len()] == *wanted, "{range:?}, shares memory: {shares}");
        }
        let (small, all) = (lens.iter().filter(|it| **it < 64 << 10), lens.iter().sum::<usize>());
        let small = 20 * small.sum::<usize>() as u64;
        let (tcp, shm) = (client.counters().tcp.read(), client.counters().shm.read());
        match shares {
            // Small objects, which would need one more message, and the small ends of large ones.
            true => assert!(tcp < small + 21 * (64 << 10) && shm > 19 * all as u64, "{tcp} {shm}"),
            false => assert_eq!((shm, tcp > 20 * all as u64), (0, true)),
        }
    }
}

/// A client that requests more than the shared memory holds gets the rest through the socket, without
/// waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_beyond_the_shared_memory_are_served() {
    let folder = place();
    let store = Store::start(folder.path(), Engine::Auto).await;
    let filler = store.client().await;
    let large = 2 << 20;
    for at in 0..12 {
        let bytes = pattern(at, large);
        let put = Put::new(key(format!("l{at}")), &bytes);
        only(filler.put_with(&[put], SpaceWait::UntilDeadline, soon()).await).unwrap();
    }
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(store.client().await);
    }
    let mut running = tokio::task::JoinSet::new();
    for at in 0..96 {
        let client = clients[at % clients.len()].clone();
        running.spawn(async move {
            let which = at * 7 % 12;
            let object = only(client.get(&[key(format!("l{which}"))], GetOptions::default(), soon()).await);
            assert!(object.unwrap().bytes == pattern(which, large), "l{which}");
        });
    }
    running.join_all().await;
    // A client that ends during a read leaves nothing behind.
    for at in 0..64 {
        let client = clients[0].clone();
        let reading = tokio::spawn(async move {
            client.get(&[key(format!("l{}", at % 12))], GetOptions::default(), soon()).await.len()
        });
        for _ in 0..at % 7 {
            tokio::task::yield_now().await;
        }
        reading.abort();
        let _ended = reading.await;
    }
    for at in 0..12 {
        let object = only(clients[1].get(&[key(format!("l{at}"))], GetOptions::default(), soon()).await);
        assert!(object.unwrap().bytes == pattern(at, large), "l{at}");
    }
}

/// Concurrent reads of an object cost the disk one read; `ssd/tests/log/shared_reads.rs` counts exactly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_reads_of_one_object_share_a_disk_read() {
    let folder = place();
    // Objects that are read often stay on the disk.
    let tier = TierConfig { promote_on_hit: false, ..TierConfig::default() };
    let master = MasterServer::start(MasterConfig { tier, ..MasterConfig::default() }).await.unwrap();
    let mut store = Store { master, node: None };
    store.start_node(folder.path(), Engine::Auto).await;
    let near = store.near_client().await;
    fill(&near).await;
    let keys: Vec<_> = (0..64).map(|at| key(format!("o{}", at % 2))).collect();
    let before = store.node.as_ref().unwrap().disk_stats()[0];
    for (at, object) in near.get(&keys, GetOptions::default(), soon()).await.into_iter().enumerate() {
        assert!(object.unwrap().bytes == pattern(at % 2, OBJECT));
    }
    let after = store.node.as_ref().unwrap().disk_stats()[0];
    assert_eq!(after.reads - before.reads, 64);
    // How many reads are shared depends on the speed of the disk.
    assert!(after.reads_shared > before.reads_shared, "{before:?} {after:?}");
}

/// 14 objects of 34 MiB on a disk of 1 GiB, scaled down by eight.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_larger_than_a_log_segment_reach_the_disk() {
    let folder = place();
    let store = Store::sized(folder.path(), Engine::Auto, 128 * MIB).await;
    let client = store.client().await;
    let len = (17 * MIB / 4) as usize;
    for at in 0..14 {
        let bytes = pattern(at, len);
        let put = Put::new(key(format!("o{at}")), &bytes);
        only(client.put_with(&[put], SpaceWait::UntilDeadline, soon()).await).unwrap();
    }
    for at in 0..14 {
        let object = only(client.get(&[key(format!("o{at}"))], GetOptions::default(), soon()).await);
        assert!(object.unwrap().bytes == pattern(at, len), "o{at}");
    }
    let tier = client.stat(soon()).await.unwrap().tier;
    assert_eq!(
        (tier.evicted_undemoted, tier.demotions_refused, tier.demotions_failed),
        (0, 0, 0),
        "{tier:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_rejected_by_the_disk_affects_no_other() {
    const SMALL: usize = 32 << 10;
    let folder = place();
    let store = Store::sized(folder.path(), Engine::Auto, 16 * MIB).await;
    let client = store.client().await;
    let put = async |name: String, bytes: &[u8]| {
        let put = Put::new(key(name), bytes);
        only(client.put_with(&[put], SpaceWait::UntilDeadline, soon()).await).unwrap();
    };
    for at in 0..300 {
        if at == 20 {
            put("large".into(), &vec![7; 5 * MIB as usize]).await;
        }
        put(format!("o{at}"), &pattern(at, SMALL)).await;
    }
    for at in 0..300 {
        let object = only(client.get(&[key(format!("o{at}"))], GetOptions::default(), soon()).await);
        let Ok(object) = object else {
            panic!("o{at}: {object:?}, {:?}", client.stat(soon()).await.unwrap().tier);
        };
        assert!(object.bytes == pattern(at, SMALL), "o{at}");
    }
    let tier = client.stat(soon()).await.unwrap().tier;
    assert_eq!((tier.demotions_refused, tier.demotions_failed), (1, 0), "{tier:?}");
    let why = only(client.why(&[key("large")], soon()).await).unwrap();
    let disk_bytes_max = match &why {
        Why::Here(here) => here.disk_bytes_max,
        Why::Gone(gone) => gone.disk_bytes_max,
        Why::Unknown => 0,
    };
    assert!((1..5 * MIB).contains(&disk_bytes_max), "{why:?}");
}
