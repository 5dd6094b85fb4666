//! Memory with disks that are too slow: puts find memory, and requested objects are promoted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tiffin_client::{
    Ahead, Client, ConnectOptions, Demotion, GetOptions, PolicyChange, Put, PutOptions, ResolveOptions,
    SpaceWait,
};
use tiffin_server::config::{Engine, SsdConfig};
use tiffin_server::{MasterConfig, MasterServer, NodeConfig, NodeServer};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::disks::{MIB, OBJECT, Store, place};
use super::support::{LONG, key, only, pattern, soon};

/// Several times the memory of the store.
const MANY: usize = 300;
const AHEAD: ResolveOptions =
    ResolveOptions { touch: false, lease: false, locate: false, ahead: Ahead::LeadingRun };

pub(super) async fn write_through(client: &Client) {
    client.set_policy(PolicyChange::NONE.demotion(Some(Demotion::WriteThrough)), soon()).await.unwrap();
}

/// Puts objects that do not wait for memory, from several concurrent tasks. Returns how many were rejected.
pub(super) async fn put_hurriedly(client: &Client, name: &'static str, count: usize) -> usize {
    let mut running = JoinSet::new();
    let (next, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for _ in 0..4 {
        let (client, next, refused) = (client.clone(), Arc::clone(&next), Arc::clone(&refused));
        running.spawn(async move {
            let bytes = pattern(1, OBJECT);
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= count {
                    return;
                }
                let put = [Put::new(key(format!("{name}{at}")), &bytes)];
                let stored = only(client.put_with(&put, SpaceWait::Never, soon()).await);
                refused.fetch_add(usize::from(stored.is_err()), Ordering::Relaxed);
            }
        });
    }
    running.join_all().await;
    refused.load(Ordering::Relaxed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn puts_faster_than_the_disk_find_memory() {
    for demotion in [Demotion::WriteThrough, Demotion::OnPressure] {
        let folder = place();
        let store = Store::start(folder.path(), Engine::Auto).await;
        let client = store.client().await;
        client.set_policy(PolicyChange::NONE.demotion(Some(demotion)), soon()).await.unwrap();
        assert_eq!(put_hurriedly(&client, "o", MANY).await, 0, "{demotion:?}");
    }
}

async fn wait_until_on_disk_alone(client: &Client, names: &[String]) {
    let keys: Vec<_> = names.iter().map(key).collect();
    let look = ResolveOptions { locate: true, ..ResolveOptions::default() };
    let mut filler = 0;
    loop {
        let infos = client.resolve(&keys, look, soon()).await;
        let is_alone = |info: &tiffin_client::Info| {
            !info.replicas.is_empty() && info.replicas.iter().all(|it| it.node.beside.is_some())
        };
        if infos.iter().all(|it| it.as_ref().unwrap().as_ref().is_some_and(is_alone)) {
            return;
        }
        // New objects evict the least recently used ones.
        let bytes = pattern(2, OBJECT);
        let put = [Put::new(key(format!("filler{filler}")), &bytes)];
        only(client.put_with(&put, SpaceWait::UntilDeadline, soon()).await).unwrap();
        filler += 1;
    }
}

/// Memory is full of objects that are never read, and more arrive all the time. Objects that are probed, or
/// read a few times, are promoted nevertheless.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requested_objects_displace_unread_ones() {
    let folder = place();
    let store = Store::start(folder.path(), Engine::Auto).await;
    let client = store.client().await;
    write_through(&client).await;
    let names: Vec<_> = (0..24).map(|at| format!("wanted{at}")).collect();
    for (at, name) in names.iter().enumerate() {
        let bytes = pattern(at, OBJECT);
        only(client.put_with(&[Put::new(key(name), &bytes)], SpaceWait::UntilDeadline, soon()).await)
            .unwrap();
    }
    wait_until_on_disk_alone(&client, &names).await;
    let (ends, other) = (Arc::new(AtomicBool::new(false)), store.client().await);
    let flood = tokio::spawn({
        let ends = Arc::clone(&ends);
        async move {
            while !ends.load(Ordering::Relaxed) {
                put_hurriedly(&other, "flood", 16).await;
            }
        }
    });
    let brought = async |count: u64| {
        while client.stat(soon()).await.unwrap().tier.promoted_objects < count {
            tokio::task::yield_now().await;
        }
    };
    // Twenty objects of 256 KiB are more than half of the memory.
    let probed: Vec<_> = names[..20].iter().map(key).collect();
    assert!(client.exists(&probed, AHEAD, soon()).await.iter().all(|it| *it.as_ref().unwrap()));
    tokio::time::timeout(LONG, brought(20)).await.expect("all probed objects are promoted");
    for _ in 0..2 {
        for (at, name) in names.iter().enumerate().skip(20) {
            let object = only(client.get(&[key(name)], GetOptions::default(), soon()).await).unwrap();
            assert!(object.bytes == pattern(at, OBJECT), "{name}");
        }
    }
    tokio::time::timeout(LONG, brought(24)).await.expect("all objects read twice are promoted");
    ends.store(true, Ordering::Relaxed);
    flood.await.unwrap();
}

/// Resolving locations moves nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resolving_locations_promotes_nothing() {
    let folder = place();
    let store = Store::start(folder.path(), Engine::Auto).await;
    let client = store.client().await;
    write_through(&client).await;
    let names: Vec<_> = (0..4).map(|at| format!("wanted{at}")).collect();
    for name in &names {
        let bytes = pattern(1, OBJECT);
        only(client.put_with(&[Put::new(key(name), &bytes)], SpaceWait::UntilDeadline, soon()).await)
            .unwrap();
    }
    wait_until_on_disk_alone(&client, &names).await;
    let keys: Vec<_> = names.iter().map(key).collect();
    let before = client.stat(soon()).await.unwrap().tier;
    let look = ResolveOptions { locate: true, ..ResolveOptions::default() };
    for _ in 0..10 {
        assert!(client.resolve(&keys, look, soon()).await.iter().all(Result::is_ok));
        assert!(client.exists(&keys, ResolveOptions::default(), soon()).await.iter().all(Result::is_ok));
    }
    let after = client.stat(soon()).await.unwrap().tier;
    let counted =
        |it: &tiffin_client::TierStat| (it.gets_from_memory, it.gets_from_disk, it.promoted_objects);
    assert_eq!(counted(&after), counted(&before));
}

/// A node whose memory is full of pinned objects does not prevent the use of another node's memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_node_does_not_block_promotions_elsewhere() {
    let folder = place();
    let master = MasterServer::start(MasterConfig::default()).await.unwrap();
    let mut nodes = Vec::new();
    for name in ["a", "b"] {
        let ssd = vec![SsdConfig { path: folder.path().join(name), size: 128 * MIB, engine: Engine::Auto }];
        let (master, name) = (master.address().clone(), name.to_owned());
        let config =
            NodeConfig { master: master.into(), memory: 8 * MIB, name, ssd, ..NodeConfig::default() };
        let node = NodeServer::start(config).await.unwrap();
        node.joined(Instant::now() + LONG).await.unwrap();
        nodes.push(node);
    }
    let client = Client::connect(ConnectOptions::new(master.address().to_string())).await.unwrap();
    write_through(&client).await;
    let put = async |node: &str, name: String, hard_pin: bool| {
        let bytes = pattern(1, OBJECT);
        let options = PutOptions { preferred: vec![node.to_owned()], hard_pin, ..PutOptions::default() };
        let put = Put { options, ..Put::new(key(name), &bytes) };
        only(client.put_with(&[put], SpaceWait::UntilDeadline, soon()).await).unwrap();
    };
    for at in 0..8 {
        put("a", format!("a{at}"), false).await;
        put("b", format!("b{at}"), false).await;
    }
    // Both memories are filled: one with pinned objects, the other with objects that are never read.
    for at in 0..64 {
        put("b", format!("filler{at}"), false).await;
    }
    for at in 0..31 {
        put("a", format!("pinned{at}"), true).await;
    }
    let keys = |node: &str| (0..8).map(|at| key(format!("{node}{at}"))).collect::<Vec<_>>();
    let there = |it: &Result<bool, _>| *it.as_ref().unwrap();
    assert!(client.exists(&keys("a"), AHEAD, soon()).await.iter().all(there));
    let outcomes = client.prefetch(&keys("b"), Ahead::All, soon()).await;
    let came = |it: &Result<tiffin_client::PrefetchOutcome, _>| {
        use tiffin_client::PrefetchOutcome::{Done, Resident};
        matches!(it, Ok(Done | Resident))
    };
    assert!(outcomes.iter().all(came), "{outcomes:?}");
}
