//! Samples: put as one object, leased, read, consumed.

use std::slice;

use tiffin_client::{
    Acked, Client, Consumption, DeleteOptions, Dtype, Error, Generation, Lease, LeaseRead, Manifest,
    NamespaceStat, OnExists, Put, PutOptions, SamplePut, SampleRef, SpaceWait, TargetBuf, TensorRef,
};
use tiffin_embedded::Embedded;

use crate::support::{Cluster, eventually, key, only, pattern, soon};

fn tensor<'a>(name: &str, bytes: &'a [u8]) -> TensorRef<'a> {
    TensorRef::new(name, Dtype::U8, &[bytes.len() as u64], bytes)
}

fn sample<'a>(id: &str, bytes: &'a [u8]) -> SamplePut<'a> {
    SamplePut::new(key(id), vec![tensor("t", bytes)])
}

fn groups(names: &[&str]) -> Consumption {
    Consumption::Groups(names.iter().map(|it| (*it).to_owned()).collect())
}

async fn put(client: &Client, sample: SamplePut<'_>) -> Result<SampleRef, Error> {
    only(client.put_samples(&[sample], SpaceWait::Never, soon()).await)
}

async fn lease(
    client: &Client,
    id: &str,
    generation: Option<Generation>,
    group: &str,
) -> Result<Lease, Error> {
    only(client.lease(&[(key(id), generation)], group, soon()).await)
}

async fn ack(client: &Client, sample: &SampleRef, group: &str) -> Result<Acked, Error> {
    only(client.ack(&[(sample.id.clone(), sample.generation)], group, soon()).await)
}

fn stat(cluster: &Cluster) -> NamespaceStat {
    cluster.master.stat().namespaces.remove(0)
}

async fn round_trip(client: &Client) {
    let (hidden, mask) = (pattern(1, 3 * 1000 * 1000 * 2), pattern(2, 77));
    let (head, tail) = hidden.split_at(1_000_001);
    let parts = vec![head.into(), tail.into()];
    let hidden_ref = TensorRef { parts, ..TensorRef::new("hidden", Dtype::Bf16, &[3, 1000, 1000], &[]) };
    let mask_ref = TensorRef::new("mask", Dtype::Bool, &[7, 11], &mask);
    let none_ref = TensorRef::new("none", Dtype::F32, &[0, 5], &[]);
    let metadata = b"{\"prompt\": 7}";
    let sample = SamplePut { metadata, ..SamplePut::new(key("s"), vec![mask_ref, none_ref, hidden_ref]) };
    let stored = put(client, sample).await.unwrap();
    assert!(!stored.replaced);

    let held = lease(client, "s", Some(stored.generation), "trainer").await.unwrap();
    assert_eq!((held.id(), held.generation()), (&key("s"), stored.generation));
    assert_eq!((held.manifest().len, held.locations().len()), (stored.len, 1));
    assert_eq!(held.manifest().metadata, metadata);
    let shapes: Vec<_> =
        held.manifest().tensors.iter().map(|it| (it.name.as_str(), it.shape.clone())).collect();
    assert_eq!(shapes, [("mask", vec![7, 11]), ("none", vec![0, 5]), ("hidden", vec![3, 1000, 1000])]);
    // In another order than in the object.
    let read = held.read(&["hidden", "mask", "none"], soon()).await.unwrap();
    assert!(read[0] == hidden && read[1] == mask && read[2].is_empty());

    let mut buffer = vec![0xee; mask.len() + 3];
    let tensors = vec![("mask".to_owned(), vec![TargetBuf::from(buffer.as_mut_slice())])];
    let reads = [LeaseRead { lease: &held, tensors }];
    assert_eq!(client.read_leased(&reads, soon()).await, [Ok(())]);
    assert!(buffer[..mask.len()] == mask && buffer[mask.len()..] == [0xee; 3]);
    // It is one object with its own manifest.
    let whole = only(client.view(&[key("s")], soon()).await).unwrap();
    assert_eq!(Manifest::of(whole.bytes().unwrap()).as_ref(), Ok(held.manifest()));
    drop(whole);

    assert_eq!(ack(client, &stored, "trainer").await, Ok(Acked::Freed));
    assert_eq!(ack(client, &stored, "trainer").await, Ok(Acked::Stale));
    assert_eq!(held.read(&["mask"], soon()).await, Err(Error::NotFound { key: key("s") }));
    assert_eq!(lease(client, "s", None, "trainer").await.unwrap_err(), Error::NotFound { key: key("s") });
}

#[tokio::test(flavor = "multi_thread")]
async fn sample_is_read_unchanged_on_every_data_path() {
    let cluster = Cluster::one(16 << 20).await;
    for client in [cluster.client().await, cluster.tcp_client().await] {
        round_trip(&client).await;
        // The in-place view may end a little later.
        eventually("nothing is left", || cluster.nodes[0].usage().free == 16 << 20).await;
    }
    let store = Embedded::start(16 << 20).await.unwrap();
    round_trip(&store.client).await;
    store.stop(soon()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_sample_is_rejected_without_the_others() {
    let cluster = Cluster::one(4 << 20).await;
    let client = cluster.client().await;
    let short = TensorRef::new("short", Dtype::F32, &[2, 2], &[0; 15]);
    let bad = [
        (SamplePut::new(key("none"), vec![]), "no tensors"),
        (SamplePut::new(key("twice"), vec![tensor("a", b"1"), tensor("a", b"2")]), "`a`"),
        (SamplePut::new(key("short"), vec![short]), "tensor `short` has 15 bytes"),
        (SamplePut { consumption: groups(&[]), ..sample("nobody", b"1") }, "0 consumer groups"),
        (SamplePut { consumption: groups(&["g", "g"]), ..sample("double", b"1") }, "`g` twice"),
    ];
    let mut samples: Vec<_> = bad.iter().map(|it| it.0.clone()).collect();
    samples.insert(2, sample("good", b"bytes"));
    let mut stored = client.put_samples(&samples, SpaceWait::Never, soon()).await;
    assert_eq!(stored.remove(2).unwrap().id, key("good"));
    for (stored, (sample, why)) in stored.into_iter().zip(&bad) {
        let Err(Error::Invalid { what }) = &stored else { panic!("{stored:?}") };
        assert!(what.contains(why) && what.contains(&sample.id.to_string()), "{what}");
    }
    assert_eq!(stat(&cluster).samples, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn refs_of_a_replaced_sample_fail_everywhere() {
    let cluster = Cluster::one(4 << 20).await;
    let (producer, consumer) = (cluster.client().await, cluster.tcp_client().await);
    let old = put(&producer, sample("s", b"old")).await.unwrap();
    let held = lease(&consumer, "s", Some(old.generation), "g").await.unwrap();
    let new = put(&producer, sample("s", b"new")).await.unwrap();
    assert!(new.replaced && new.generation > old.generation);
    let superseded = Error::Superseded { key: key("s"), generation: new.generation };
    assert_eq!(held.read(&["t"], soon()).await, Err(superseded.clone()));
    assert_eq!(lease(&consumer, "s", Some(old.generation), "g").await.unwrap_err(), superseded);
    assert_eq!(ack(&consumer, &old, "g").await, Ok(Acked::Stale));
    let held = lease(&consumer, "s", Some(new.generation), "g").await.unwrap();
    assert_eq!(held.read(&["t"], soon()).await, Ok(vec![b"new".to_vec()]));

    let options = PutOptions { on_exists: OnExists::Keep, ..PutOptions::default() };
    let rejected = put(&producer, SamplePut { options, ..sample("s", b"newer") }).await;
    assert_eq!(rejected, Err(Error::Exists { key: key("s"), generation: new.generation }));
    // A producer's delete frees the sample for every client.
    assert_eq!(producer.delete(&[key("s")], DeleteOptions::default(), soon()).await, [Ok(true)]);
    assert_eq!(held.read(&["t"], soon()).await, Err(Error::NotFound { key: key("s") }));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_group_consumes_a_sample_once() {
    let cluster = Cluster::one(4 << 20).await;
    let client = cluster.client().await;
    let shared = SamplePut { consumption: groups(&["a", "b"]), ..sample("s", b"bytes") };
    let stored = put(&client, shared).await.unwrap();
    let wrong = || Error::WrongGroup { key: key("s"), group: "c".to_owned() };
    assert_eq!(lease(&client, "s", None, "c").await.unwrap_err(), wrong());
    assert_eq!(ack(&client, &stored, "c").await, Err(wrong()));
    // No lease is needed to acknowledge.
    assert_eq!(ack(&client, &stored, "a").await, Ok(Acked::Recorded));
    assert_eq!(ack(&client, &stored, "a").await, Ok(Acked::Recorded));
    let consumed = Error::Consumed { key: key("s"), group: "a".to_owned() };
    assert_eq!(lease(&client, "s", None, "a").await.unwrap_err(), consumed);
    let held = lease(&client, "s", None, "b").await.unwrap();
    assert_eq!(held.read(&["t"], soon()).await, Ok(vec![b"bytes".to_vec()]));
    assert_eq!(ack(&client, &stored, "b").await, Ok(Acked::Freed));
    assert_eq!(cluster.nodes[0].usage().free, 4 << 20);

    let kept = SamplePut { consumption: Consumption::Retained, ..sample("r", b"bytes") };
    let kept = put(&client, kept).await.unwrap();
    for _ in 0..2 {
        assert!(lease(&client, "r", None, "anybody").await.is_ok());
        assert_eq!(ack(&client, &kept, "anybody").await, Ok(Acked::Recorded));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_that_are_not_samples_are_not_leased() {
    let cluster = Cluster::one(4 << 20).await;
    let client = cluster.client().await;
    let options = PutOptions { sample: Some(Consumption::Once), ..PutOptions::default() };
    let bytes = pattern(1, 10_000);
    let puts = [
        Put::new(key("plain"), &bytes),
        Put { options: options.clone(), ..Put::new(key("garbage"), &bytes) },
        Put { options, ..Put::new(key("empty"), b"") },
    ];
    assert!(client.put(&puts, soon()).await.iter().all(Result::is_ok));
    for name in ["plain", "garbage", "empty"] {
        let leased = lease(&client, name, None, "g").await;
        assert!(matches!(&leased, Err(Error::NotASample { .. })), "{name}: {leased:?}");
    }
    assert_eq!(lease(&client, "none", None, "g").await.unwrap_err(), Error::NotFound { key: key("none") });
    eventually("nothing stays leased", || stat(&cluster).samples_leased == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_ends_once_however_often_it_is_released() {
    let cluster = Cluster::one(4 << 20).await;
    let client = cluster.client().await;
    put(&client, sample("s", b"bytes")).await.unwrap();
    let held = lease(&client, "s", None, "g").await.unwrap();
    let other = lease(&client, "s", None, "g").await.unwrap();
    assert_eq!(stat(&cluster).samples_leased, 1);
    for _ in 0..2 {
        assert_eq!(client.release(&[&held], soon()).await, Ok(()));
        assert!(held.is_released());
        assert_eq!(stat(&cluster).samples_leased, 1, "the other lease stands");
    }
    let read = held.read(&["t"], soon()).await;
    assert!(matches!(&read, Err(Error::Invalid { what }) if what.contains("released")), "{read:?}");
    drop(held);
    let read = other.read(&["t", "u"], soon()).await;
    assert!(matches!(&read, Err(Error::Invalid { what }) if what.contains("`u`")), "{read:?}");
    let mut small = [0; 4];
    let tensors = vec![("t".to_owned(), vec![TargetBuf::from(small.as_mut_slice())])];
    assert_eq!(other.read_into(tensors, soon()).await, Err(Error::TooSmall { key: key("s"), len: 5 }));
    drop(other);
    eventually("a dropped lease ends", || stat(&cluster).samples_leased == 0).await;
    // A client that disconnects ends its leases.
    let held = lease(&client, "s", None, "g").await.unwrap();
    client.close(soon()).await.unwrap();
    eventually("its leases end", || stat(&cluster).samples_leased == 0).await;
    assert_eq!(held.read(&["t"], soon()).await, Err(Error::Closed));
}

#[tokio::test(flavor = "multi_thread")]
async fn long_manifests_and_many_samples_are_read_together() {
    let cluster = Cluster::one(16 << 20).await;
    let client = cluster.client().await;
    let metadata = pattern(9, 100_000);
    let bodies: Vec<_> = (0..50).map(|it| pattern(it, 100 * it)).collect();
    let samples: Vec<_> = bodies
        .iter()
        .enumerate()
        .map(|(it, body)| SamplePut {
            metadata: if it % 2 == 0 { &metadata } else { b"short" },
            ..sample(&format!("s{it}"), body)
        })
        .collect();
    let stored: Vec<_> = client.put_samples(&samples, SpaceWait::Never, soon()).await;
    let refs: Vec<_> = stored.into_iter().map(Result::unwrap).collect();
    let wanted: Vec<_> = refs.iter().map(|it| (it.id.clone(), Some(it.generation))).collect();
    let leases: Vec<_> = client.lease(&wanted, "g", soon()).await.into_iter().map(Result::unwrap).collect();
    assert!(leases[0].manifest().metadata == metadata && leases[1].manifest().metadata == b"short");
    let mut buffers: Vec<_> = bodies.iter().map(|body| vec![0; body.len()]).collect();
    let reads: Vec<_> = leases
        .iter()
        .zip(&mut buffers)
        .map(|(lease, buffer)| {
            let targets = vec![TargetBuf::from(buffer.as_mut_slice())];
            LeaseRead { lease, tensors: vec![("t".to_owned(), targets)] }
        })
        .collect();
    assert!(client.read_leased(&reads, soon()).await.iter().all(Result::is_ok));
    drop(reads);
    assert!(buffers == bodies);
    let ids: Vec<_> = refs.iter().map(|it| (it.id.clone(), it.generation)).collect();
    assert!(client.ack(&ids, "g", soon()).await.iter().all(|it| *it == Ok(Acked::Freed)));
    assert!(client.ack(&ids, "g", soon()).await.iter().all(|it| *it == Ok(Acked::Stale)));
    assert_eq!(cluster.nodes[0].usage().free, 16 << 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_is_read_from_another_copy_if_a_node_ended() {
    let mut cluster = Cluster::start(&[4 << 20, 4 << 20], "").await;
    let client = cluster.client().await;
    let options = PutOptions { replicas: 2, ..PutOptions::default() };
    put(&client, SamplePut { options, ..sample("s", b"bytes") }).await.unwrap();
    let held = lease(&client, "s", None, "g").await.unwrap();
    assert_eq!(held.locations().len(), 2);
    for left in [1, 0] {
        let first = held.locations()[left].segment;
        let at = cluster.nodes.iter().position(|it| it.segment() == first).unwrap();
        drop(cluster.nodes.remove(at));
        // Until then its memory is still mapped and valid.
        let open = || client.routes().iter().filter(|it| it.way.is_some()).count();
        eventually("the client notices", || open() == left).await;
        let read = held.read(&["t"], soon()).await;
        match left {
            1 => assert_eq!(read, Ok(vec![b"bytes".to_vec()])),
            _ => assert!(matches!(read, Err(Error::NodeDown { .. })), "{read:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_sample_is_woken_by_an_acknowledgement() {
    let cluster = Cluster::one(4 << 20).await;
    let (producer, consumer) = (cluster.client().await, cluster.client().await);
    let bytes = pattern(1, 3 << 20);
    let first = put(&producer, sample("a", &bytes)).await.unwrap();
    assert!(matches!(put(&producer, sample("b", &bytes)).await, Err(Error::Full { .. })));
    let second = tokio::spawn({
        let (producer, bytes) = (producer.clone(), bytes.clone());
        async move {
            let samples = [sample("b", &bytes)];
            only(producer.put_samples(&samples, SpaceWait::UntilDeadline, soon()).await)
        }
    });
    eventually("the put waits", || stat(&cluster).waiting == 1).await;
    assert!(!second.is_finished());
    assert_eq!(ack(&consumer, &first, "g").await, Ok(Acked::Freed));
    let second = second.await.unwrap().unwrap();
    let held = lease(&consumer, "b", Some(second.generation), "g").await.unwrap();
    assert!(held.read(&["t"], soon()).await.unwrap() == slice::from_ref(&bytes));
}
