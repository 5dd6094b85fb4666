//! Space that is reserved before its bytes exist: its owner, and its release.

use std::time::Duration;

use tiffin_client::{
    Client, Deadline, Error, GetOptions, OnExists, PolicyChange, Put, PutEffect, PutOptions, Reserved,
    SourceBuf, SpaceRequest, SpaceWait,
};
use tiffin_embedded::Embedded;

use crate::support::{Cluster, eventually, key, only, pattern, pinned, soon};

const MIB: u64 = 1 << 20;

async fn reserve(client: &Client, name: &str, len: u64) -> Result<Reserved, Error> {
    only(client.reserve(&[SpaceRequest::new(key(name), len)], SpaceWait::Never, soon()).await)
}

fn parts(bytes: &[u8]) -> Vec<SourceBuf<'_>> {
    vec![SourceBuf::from(bytes)]
}

fn granted(cluster: &Cluster) -> u64 {
    cluster.nodes[0].usage().granted
}

fn waiting(cluster: &Cluster) -> u64 {
    cluster.master.stat().namespaces.iter().map(|it| it.waiting).sum()
}

async fn bytes_of(client: &Client, name: &str) -> Vec<u8> {
    only(client.get(&[key(name)], GetOptions::default(), soon()).await).unwrap().bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn reserved_space_is_exclusive_and_can_be_put() {
    let cluster = Cluster::one(4 * MIB).await;
    for client in [cluster.client().await, cluster.tcp_client().await] {
        let other = cluster.client().await;
        let reserved = reserve(&client, "k", 4 * MIB).await.unwrap();
        assert_eq!((reserved.key(), reserved.len(), reserved.is_held()), (&key("k"), 4 * MIB, true));
        assert_eq!(granted(&cluster), 4 * MIB);
        let full = only(other.put(&[Put::new(key("n"), b"x")], soon()).await);
        assert!(matches!(&full, Err(Error::Full { usage, .. }) if usage.granted == 4 * MIB), "{full:?}");
        let full = reserve(&other, "n", 1).await;
        assert!(matches!(full, Err(Error::Full { len: 1, .. })), "{full:?}");

        let bytes = pattern(1, 4 << 20);
        let (front, back) = bytes.split_at(1000);
        let parts = vec![SourceBuf::from(front), SourceBuf::from(back)];
        reserved.put(parts, soon()).await.unwrap();
        assert!(!reserved.is_held());
        eventually("the node has committed it", || granted(&cluster) == 0).await;
        assert!(bytes_of(&other, "k").await == bytes);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_or_released_space_wakes_waiting_puts() {
    let cluster = Cluster::one(4 * MIB).await;
    let (one, other) = (cluster.client().await, cluster.client().await);
    for is_dropped in [true, false] {
        let reserved = reserve(&one, "k", 3 * MIB).await.unwrap();
        let waiter = other.clone();
        let put = tokio::spawn(async move {
            let bytes = pattern(2, 2 << 20);
            only(waiter.put_with(&[pinned("n", &bytes)], SpaceWait::UntilDeadline, soon()).await).unwrap();
            // Puts and reservations wait in one queue, in order.
            let spaces = [SpaceRequest::new(key("m"), 2 * MIB)];
            only(waiter.reserve(&spaces, SpaceWait::UntilDeadline, soon()).await).unwrap()
        });
        eventually("the put waits", || waiting(&cluster) == 1).await;
        if is_dropped {
            drop(reserved);
        } else {
            reserved.release(soon()).await.unwrap();
            reserved.release(soon()).await.unwrap();
            let used = reserved.put(parts(&[0; 3 << 20]), soon()).await.unwrap_err();
            assert!(matches!(&used, Error::Invalid { what } if what.contains("released")), "{used:?}");
        }
        drop(put.await.unwrap());
        eventually("all of it is released", || granted(&cluster) == 0).await;
        assert_eq!(other.delete(&[key("n")], Default::default(), soon()).await, [Ok(true)]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_length_is_rejected_and_space_is_kept() {
    let cluster = Cluster::one(4 * MIB).await;
    let (client, other) = (cluster.client().await, cluster.client().await);
    let reserved = reserve(&client, "k", 3).await.unwrap();
    for wrong in [&b""[..], b"12", b"1234"] {
        let error = reserved.put(parts(wrong), soon()).await.unwrap_err();
        assert!(matches!(&error, Error::Invalid { what } if what.contains("exactly 3 bytes")), "{error:?}");
    }
    let late = reserved.put(parts(b"123"), Deadline::after(Duration::ZERO)).await;
    assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    let foreign = only(other.put_reserved(&[(&reserved, parts(b"123"))], soon()).await);
    assert!(matches!(foreign, Err(Error::Invalid { .. })), "{foreign:?}");
    assert!(reserved.is_held() && granted(&cluster) > 0);
    reserved.put(parts(b"123"), soon()).await.unwrap();
    assert_eq!(bytes_of(&client, "k").await, b"123");
    let twice = reserved.put(parts(b"456"), soon()).await;
    assert!(matches!(twice, Err(Error::Invalid { .. })), "{twice:?}");
    assert_eq!(bytes_of(&client, "k").await, b"123");
    eventually("nothing is left", || granted(&cluster) == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_of_reservations_has_one_outcome_each() {
    let cluster = Cluster::start(&[4 * MIB, 4 * MIB], "").await;
    let client = cluster.client().await;
    let twice = PutOptions { replicas: 2, ..PutOptions::default() };
    let keep = PutOptions { on_exists: OnExists::Keep, ..PutOptions::default() };
    only(client.put(&[Put::new(key("old"), b"old")], soon()).await).unwrap();
    let spaces = [
        SpaceRequest { options: twice, ..SpaceRequest::new(key("a"), 1) },
        SpaceRequest::new(key("huge"), 64 * MIB),
        SpaceRequest { options: keep.clone(), ..SpaceRequest::new(key("old"), 1) },
        SpaceRequest { options: keep, ..SpaceRequest::new(key("b"), 1) },
        SpaceRequest::new(key("empty"), 0),
    ];
    let mut reserved = client.reserve(&spaces, SpaceWait::Never, soon()).await.into_iter();
    let (a, huge, old) =
        (reserved.next().unwrap().unwrap(), reserved.next().unwrap(), reserved.next().unwrap());
    let (b, empty) = (reserved.next().unwrap().unwrap(), reserved.next().unwrap().unwrap());
    assert!(matches!(huge, Err(Error::Full { .. })), "{huge:?}");
    assert!(matches!(&old, Err(Error::Exists { key: it, .. }) if *it == key("old")), "{old:?}");
    // A reservation claims no name: another put may come first.
    only(client.put(&[Put::new(key("b"), b"first")], soon()).await).unwrap();
    let puts = [(&a, parts(b"1")), (&a, parts(b"2")), (&b, parts(b"3")), (&empty, parts(b""))];
    let stored = client.put_reserved(&puts, soon()).await;
    assert!(matches!(&stored[0], Ok(it) if it.effect == PutEffect::Created), "{stored:?}");
    assert!(matches!(&stored[1], Err(Error::Invalid { .. })), "{stored:?}");
    assert!(matches!(&stored[2], Ok(it) if it.effect == PutEffect::Kept), "{stored:?}");
    assert!(stored[3].is_ok(), "{stored:?}");
    for (name, bytes) in [("a", &b"1"[..]), ("b", b"first"), ("empty", b"")] {
        assert_eq!(bytes_of(&client, name).await, bytes);
    }
    eventually("nothing is left", || cluster.nodes.iter().all(|it| it.usage().granted == 0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reserved_space_counts_against_the_quota() {
    let cluster = Cluster::one(4 * MIB).await;
    let client = cluster.client().await;
    client.set_policy(PolicyChange::NONE.quota(Some(MIB)), soon()).await.unwrap();
    let reserved = reserve(&client, "k", MIB).await.unwrap();
    let over = reserve(&client, "n", 1).await.unwrap_err();
    assert!(matches!(&over, Error::OverQuota { quota, .. } if quota.used == MIB), "{over:?}");
    drop(reserved);
    let spaces = [SpaceRequest::new(key("n"), MIB)];
    only(client.reserve(&spaces, SpaceWait::UntilDeadline, soon()).await).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn reserved_space_ends_with_its_client_despite_a_view() {
    for is_looking in [false, true] {
        let store = Embedded::start(4 * MIB).await.unwrap();
        let options = store.client.options().clone();
        let client = Client::connect(options).await.unwrap();
        only(client.put(&[Put::new(key("seen"), b"seen")], soon()).await).unwrap();
        let view = only(client.view(&[key("seen")], soon()).await).unwrap();
        let view = is_looking.then_some(view);
        let reserved = reserve(&client, "k", MIB).await.unwrap();
        client.close(soon()).await.unwrap();
        assert_eq!(reserved.put(parts(&[0; MIB as usize]), soon()).await, Err(Error::Closed));
        assert_eq!(reserved.release(soon()).await, Err(Error::Closed));
        let none = reserve(&client, "k", 1).await;
        assert!(matches!(none, Err(Error::Closed)), "{none:?}");
        // All of the space can be reserved again, except the viewed object.
        let spaces = [SpaceRequest::new(key("n"), 3 * MIB)];
        let all = only(store.client.reserve(&spaces, SpaceWait::UntilDeadline, soon()).await).unwrap();
        drop((reserved, view, all));
        store.stop(soon()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn puts_of_one_size_have_preallocated_memory() {
    const PUTS_MAX: usize = 4096;
    let cluster = Cluster::one(64 * MIB).await;
    let usage = || cluster.nodes[0].usage();
    let clients = [cluster.client().await, cluster.tcp_client().await];
    for (who, client) in clients.iter().enumerate() {
        let bytes = pattern(who, 4096);
        let name = |number: usize| format!("{who}-{number}");
        let put = |number: usize| Put::new(key(name(number)), &bytes);
        // Memory is preallocated in the background, at some time even on the slowest machine. No name is
        // repeated and nothing is evicted, so a put that leaves the memory outside of offers unchanged used
        // an offer.
        let mut number = 0;
        loop {
            let before = usage();
            only(client.put(&[put(number)], soon()).await).unwrap();
            number += 1;
            let after = usage();
            if after.offered > 0 && after.free - after.offered == before.free - before.offered {
                break;
            }
            assert!(number < PUTS_MAX, "no put ever used preallocated memory");
        }
        let batch: Vec<_> = (number..number + 100).map(put).collect();
        for stored in client.put(&batch, soon()).await {
            stored.unwrap();
        }
        for number in [number - 1, number, number + 57, number + 99] {
            assert_eq!(bytes_of(client, &name(number)).await, bytes);
        }
        client.close(soon()).await.unwrap();
        eventually("all of it is released", || granted(&cluster) + usage().offered == 0).await;
    }
}
