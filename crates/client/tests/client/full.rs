//! A store is full when nothing is left to evict, whichever resource a put lacks: bytes, slots, key space
//! or contiguous memory.

use tiffin_client::{
    Client, DeleteOptions, Error, GetOptions, Put, PutOptions, ResolveOptions, Resource, SpaceWait,
};

use crate::support::{Cluster, key, only, pattern, pinned, soon};

const MIB: usize = 1 << 20;

/// Puts values under many keys, a batch at a time.
async fn put_all(client: &Client, keys: &[String], value: &[u8]) {
    for batch in keys.chunks(500) {
        let puts: Vec<_> = batch.iter().map(|name| Put::new(key(name), value)).collect();
        let stored = client.put(&puts, soon()).await;
        let refused = stored.into_iter().find_map(Result::err);
        assert_eq!(refused, None);
    }
}

async fn count(client: &Client, keys: &[String]) -> usize {
    let mut found = 0;
    for batch in keys.chunks(500) {
        let keys: Vec<_> = batch.iter().map(key).collect();
        let there = client.exists(&keys, ResolveOptions::default(), soon()).await;
        found += there.into_iter().filter(|it| matches!(it, Ok(true))).count();
    }
    found
}

async fn assert_balanced(cluster: &Cluster) {
    let usage = cluster.nodes[0].usage();
    let sum = usage.free + usage.granted + usage.committed + usage.held + usage.metadata;
    assert_eq!(sum, usage.capacity, "{usage:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tiny_objects_use_all_memory_and_then_evict() {
    let cluster = Cluster::one(4 << 20).await;
    let client = cluster.client().await;
    // A slot per KiB would be 4,096 of them. Record, key and value take 256 bytes.
    let keys: Vec<_> = (0..20_000).map(|it| format!("{it}")).collect();
    put_all(&client, &keys, b"x").await;
    let found = count(&client, &keys).await;
    assert!((14_000..=17_000).contains(&found), "{found}");
    assert_eq!(count(&client, &keys[19_000..]).await, 1000, "the latest are there");
    assert_balanced(&cluster).await;
    // Replacing and waiting make no difference.
    only(client.put(&[Put::new(key(&keys[19_999]), b"new".as_slice())], soon()).await).unwrap();
    let waiting = [Put::new(key("waits"), b"x".as_slice())];
    only(client.put_with(&waiting, SpaceWait::UntilDeadline, soon()).await).unwrap();
    // The memory of the records becomes free again.
    let large = pattern(3, 3 * MIB);
    only(client.put(&[Put::new(key("large"), large.as_slice())], soon()).await).unwrap();
    let read = only(client.get(&[key("large")], GetOptions::default(), soon()).await).unwrap();
    assert!(read.bytes == large);
    assert_balanced(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn long_keys_use_all_memory_and_then_evict() {
    let cluster = Cluster::one(8 << 20).await;
    let client = cluster.client().await;
    let keys: Vec<_> = (0..3000).map(|it| format!("{it:04000}")).collect();
    put_all(&client, &keys, b"x").await;
    let found = count(&client, &keys).await;
    // All but the client's preallocation; 128 bytes of key space per slot would be 1 MiB.
    assert!((700..=2_000).contains(&found), "{found}");
    assert_eq!(count(&client, &keys[2_900..]).await, 100, "the latest are there");
    let keys: Vec<_> = (0..12).map(|it| format!("{it:02}").repeat(MIB / 2)).collect();
    // One after the other: the reservations of a batch are never evicted.
    for one in keys.chunks(1) {
        put_all(&client, one, b"x").await;
    }
    let found = count(&client, &keys).await;
    assert!((5..=8).contains(&found), "{found}");
    assert_balanced(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_put_finds_space_among_small_objects() {
    let cluster = Cluster::one(24 << 20).await;
    let client = cluster.client().await;
    let page = pattern(1, 1000);
    let keys: Vec<_> = (0..18_000).map(|it| format!("{it}")).collect();
    put_all(&client, &keys, &page).await;
    // Every other page was used since, so the least recently used objects are scattered.
    for batch in keys.chunks(500) {
        let used: Vec<_> = batch.iter().step_by(2).map(key).collect();
        let options = ResolveOptions { touch: true, ..ResolveOptions::default() };
        client.exists(&used, options, soon()).await;
    }
    let large = pattern(2, 9 * MIB);
    only(client.put(&[Put::new(key("large"), large.as_slice())], soon()).await).unwrap();
    let read = only(client.get(&[key("large")], GetOptions::default(), soon()).await).unwrap();
    assert!(read.bytes == large);
    assert!(count(&client, &keys).await > 5_000, "no more than needed is evicted");
    assert_balanced(&cluster).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn full_names_the_missing_resource() {
    let cluster = Cluster::one(1 << 20).await;
    let client = cluster.client().await;
    // Without free bytes, the put lacks a slot or space for its key.
    let (small, half) = (Vec::new(), pattern(2, MIB / 2));
    only(client.put(&[pinned("half", &half)], soon()).await).unwrap();
    let options = PutOptions { hard_pin: true, replicas: 1, ..PutOptions::default() };
    let mut refused = None;
    for number in 0..10_000 {
        let name = format!("{number:0900}");
        let put = Put { options: options.clone(), ..Put::new(key(&name), small.as_slice()) };
        refused = only(client.put(&[put], soon()).await).err();
        if refused.is_some() {
            break;
        }
    }
    let Some(Error::Full { lacks, never: false, usage, .. }) = &refused else { panic!("{refused:?}") };
    assert!(matches!(lacks, Resource::KeySpace | Resource::Slots), "{refused:?}");
    assert!(usage.metadata > 300_000, "{refused:?}");
    assert_eq!(client.delete(&[key("half")], DeleteOptions::default(), soon()).await, [Ok(true)]);
    only(client.put(&[pinned("again", &small)], soon()).await).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn put_that_never_fits_does_not_wait() {
    let cluster = Cluster::one(4 << 20).await;
    let client = cluster.client().await;
    let huge = pattern(1, 5 * MIB);
    let put = [Put::new(key("huge"), huge.as_slice())];
    let error = only(client.put_with(&put, SpaceWait::UntilDeadline, soon()).await).unwrap_err();
    assert!(matches!(error, Error::Full { never: true, .. }) && !error.is_retryable(), "{error}");
    assert!(error.hint().is_some_and(|it| !it.contains("wait")), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn put_without_a_node_fails_with_no_node() {
    let mut cluster = Cluster::start(&[], "").await;
    let client = cluster.client().await;
    let put = [Put::new(key("k"), b"x".as_slice())];
    let error = only(client.put(&put, soon()).await).unwrap_err();
    assert_eq!(error, Error::NoNode { key: key("k") });
    assert!(error.is_retryable() && error.hint().is_some());
    cluster.add(4 << 20).await;
    only(client.put(&put, soon()).await).unwrap();
}
