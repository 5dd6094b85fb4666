//! Pages move down and back up, through memory of the process and through a real cluster.

use std::sync::atomic::Ordering;

use tiffin_client::{ConnectOptions, Deadline, GetOptions, Key, Pattern};
use tiffin_embedded::Embedded;
use tiffin_kv::{CachedTokens, Config, Input, OpKind, Tier};
use tokio::runtime::Runtime;

use super::support::{LONG, MemoryStore, SPACE, Toy, config, prompt};
use crate::ClusterStore;

fn found(device: u32, host: u32, store: u32) -> CachedTokens {
    CachedTokens { device, host, store }
}

#[test]
fn pages_come_back_from_every_tier() {
    let store = MemoryStore::new();
    let mut toy = Toy::new(config(), std::sync::Arc::clone(&store), None);
    let long = prompt(1, 21);
    assert_eq!(toy.serve(&long), found(0, 0, 0));
    // Copies down are asynchronous, and a page that is being copied cannot be evicted. The tiers are certain
    // only after the copies have ended.
    toy.settle();
    assert_eq!(toy.serve(&long), found(20, 0, 0), "one token is left to compute (K5)");
    toy.serve(&prompt(2, 29));
    toy.settle();
    assert_eq!(toy.serve(&long), found(0, 20, 0), "evicted from the device, it is in the host");
    for seed in 3..7 {
        toy.serve(&prompt(seed, 29));
        toy.settle();
    }
    assert_eq!(toy.serve(&long), found(0, 0, 20), "evicted from the host, it is in the store");
    let moved = toy.executor.moved();
    assert_eq!((moved.faults, moved.panics, moved.conflicts), (0, 0, 0), "{:?}", moved.last_fault);
    assert_eq!(moved.asked[OpKind::Fetch as usize], 5);

    // Another engine with the same store finds the pages of this one.
    let mut other = Toy::new(config(), std::sync::Arc::clone(&store), None);
    assert_eq!(other.serve(&[long.clone(), vec![7; 8]].concat()), found(0, 0, 20));
    let ended = other.ended.iter().find(|ended| ended.kind == OpKind::Fetch).unwrap();
    assert_eq!((ended.pages, ended.leading()), (5, 5));
}

#[test]
fn lost_or_resized_pages_are_computed_again() {
    let store = MemoryStore::new();
    Toy::new(config(), std::sync::Arc::clone(&store), None).serve(&prompt(1, 21));
    let until_stored = || {
        let began = std::time::Instant::now();
        while store.len() < 5 {
            assert!(began.elapsed() < LONG, "backups continue after the engine is dropped");
            std::thread::yield_now();
        }
    };
    // The engine was dropped with its backup in flight, which may have been stopped: another engine completes
    // it.
    let mut toy = Toy::new(config(), std::sync::Arc::clone(&store), None);
    toy.serve(&prompt(1, 21));
    toy.settle();
    until_stored();
    store.damage();
    let mut other = Toy::new(config(), std::sync::Arc::clone(&store), None);
    assert_eq!(other.serve(&prompt(1, 21)), found(0, 0, 0));
    assert_eq!(other.recomputed.len(), 1, "it expected pages that did not arrive");
    // Its pages are being written to the store.
    other.settle();
    store.forget(5);
    let mut third = Toy::new(config(), std::sync::Arc::clone(&store), None);
    assert_eq!(third.serve(&prompt(1, 21)), found(0, 0, 0));
    assert_eq!(third.recomputed.len(), 0, "it expected no pages");
}

#[test]
fn cleared_namespace_is_deleted_in_the_store() {
    let store = MemoryStore::new();
    let mut toy = Toy::new(config(), std::sync::Arc::clone(&store), None);
    toy.serve(&prompt(1, 21));
    toy.settle();
    assert_eq!(store.len(), 5);
    toy.step([Input::Clear(SPACE)]);
    toy.settle();
    assert_eq!(store.len(), 0);
    assert_eq!(toy.serve(&prompt(1, 21)), found(0, 0, 0));
}

#[test]
fn cluster_stores_the_pages() {
    let runtime = Runtime::new().unwrap();
    let soon = || Deadline::after(LONG);
    let cluster = runtime.block_on(Embedded::start(16 << 20)).unwrap();
    let client = |options: &ConnectOptions| {
        let connecting = tiffin_client::Client::connect(options.clone());
        Box::new(ClusterStore::new(runtime.block_on(connecting).unwrap(), runtime.handle().clone()))
    };
    let options = cluster.client.options().clone();
    let mut toy = Toy::over(config(), client(&options), None);
    toy.serve(&prompt(1, 21));
    toy.settle();
    let mut other = Toy::over(config(), client(&options), None);
    assert_eq!(other.serve(&prompt(1, 21)), found(0, 0, 20));
    // A probe counts up to the first missing page: pages after it are of no use (V3).
    let mut keys: Vec<Key> = runtime
        .block_on(cluster.client.list(Pattern::Prefix(b"kv1/".to_vec()), soon()))
        .unwrap()
        .into_iter()
        .map(|item| item.key)
        .collect();
    assert_eq!(keys.len(), 5);
    let gone = keys.remove(2);
    runtime.block_on(cluster.client.delete(&[gone], tiffin_client::DeleteOptions::default(), soon()));
    let mut third = Toy::over(config(), client(&options), None);
    assert!(third.serve(&prompt(1, 21)).store < 20);
    third.settle();
    let objects = runtime.block_on(cluster.client.get(&keys, GetOptions::default(), soon()));
    assert!(objects.iter().all(Result::is_ok));
    third.step([Input::Clear(SPACE)]);
    third.settle();
    let left = runtime.block_on(cluster.client.list(Pattern::All, soon())).unwrap();
    assert!(left.is_empty(), "{left:?}");
    // Calls to a stopped store fail, and no request waits forever.
    runtime.block_on(cluster.stop(soon())).unwrap();
    let short = Config { op_timeout: 200, hint_interval: 50, ..config() };
    let mut fourth = Toy::over(short, client_of(&runtime, &options), None);
    assert_eq!(fourth.serve(&prompt(1, 21)), found(0, 0, 0));
    fourth.settle();
    assert!(fourth.executor.moved().faults > 0);
}

/// A client of a cluster that is stopped.
fn client_of(runtime: &Runtime, _gone: &ConnectOptions) -> Box<ClusterStore> {
    let cluster = runtime.block_on(Embedded::start(16 << 20)).unwrap();
    let client = runtime.block_on(tiffin_client::Client::connect(cluster.client.options().clone())).unwrap();
    runtime.block_on(cluster.stop(Deadline::after(LONG))).unwrap();
    Box::new(ClusterStore::new(client, runtime.handle().clone()))
}

#[test]
fn engine_works_without_a_host() {
    let store = MemoryStore::new();
    let alone = Config { host_pages: 0, store: None, ..config() };
    let mut toy = Toy::new(alone, std::sync::Arc::clone(&store), None);
    toy.serve(&prompt(1, 21));
    assert_eq!(toy.serve(&prompt(1, 21)), found(20, 0, 0));
    assert_eq!((store.len(), store.reads.load(Ordering::SeqCst)), (0, 0));
    assert_eq!(toy.executor.engine().pages(Tier::Host).free, 0);
}
