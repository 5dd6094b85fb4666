//! The client when its peers are slow, wrong, or have ended.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tiffin_client::{
    Client, ConnectOptions, Consumption, DeleteOptions, Dtype, Error, GetOptions, Key, OnExists, Pattern,
    Put, PutEffect, PutOptions, ResolveOptions, SamplePut, SourceBuf, SpaceRequest, SpaceWait, TensorRef,
};
use tiffin_rpc::Connection;
use tiffin_server::{Address, MasterConfig, MasterServer, NodeConfig, NodeServer};
use tiffin_types::ClientId;
use tiffin_types::message::{ClientToMaster, Hello, Lease, LeaseItem, Reply};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::support::{Cluster, LONG, eventually, key, only, pattern, soon};

/// A short limit, for peers that never reply.
const SHORT: Duration = Duration::from_millis(200);

/// A proxy between a client and its master.
struct Proxy {
    address: String,
    /// Whether replies are held back.
    slot_refs: watch::Sender<bool>,
    /// Incremented to close all connections.
    cut: watch::Sender<u64>,
    /// Number of accepted connections.
    accepted: Arc<AtomicU64>,
}

impl Proxy {
    async fn start(master: &Address) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (slot_refs, cut) = (watch::Sender::new(false), watch::Sender::new(0));
        let (held, ended, master) = (slot_refs.subscribe(), cut.subscribe(), master.to_string());
        let accepted = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&accepted);
        tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let far = TcpStream::connect(&master).await.unwrap();
                counter.fetch_add(1, Ordering::SeqCst);
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                let (held, mut ended) = (held.clone(), ended.clone());
                ended.mark_unchanged();
                tokio::spawn(async move {
                    let never = watch::Sender::new(false);
                    tokio::select! {
                        () = carry(near_in, far_out, never.subscribe()) => {}
                        () = carry(far_in, near_out, held) => {}
                        _ = ended.changed() => {}
                    }
                });
            }
        });
        Self { address, slot_refs, cut, accepted }
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut held: watch::Receiver<bool>) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        held.wait_for(|held| !held).await.unwrap();
        to.write_all(&bytes[..count]).await.unwrap();
    }
}

/// Polls a future at most this many times, and then drops it.
async fn drop_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| match left {
        0 => Poll::Ready(None),
        _ => {
            left -= 1;
            match future.as_mut().poll(context) {
                Poll::Ready(value) => Poll::Ready(Some(value)),
                Poll::Pending if left == 0 => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        }
    })
    .await
}

/// A put whose reservation is granted, and which is dropped because no reply arrives.
async fn reserve_and_give_up(client: &Client, cluster: &Cluster, proxy: &Proxy) {
    let puts = [Put::new(key("lost"), &[7; 1000])];
    proxy.slot_refs.send_replace(true);
    tokio::select! {
        stored = client.put(&puts, soon()) => panic!("{stored:?}"),
        () = eventually("memory is granted", || cluster.nodes[0].usage().granted > 0) => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn late_reply_to_a_reserve_is_released() {
    let cluster = Cluster::one(4 << 20).await;
    let proxy = Proxy::start(cluster.master.address()).await;
    let client = Client::connect(ConnectOptions::new(&proxy.address)).await.unwrap();
    reserve_and_give_up(&client, &cluster, &proxy).await;
    proxy.slot_refs.send_replace(false);
    eventually("the memory is released", || cluster.nodes[0].usage().granted == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_reservation_is_released_before_the_next_one() {
    let cluster = Cluster::one(4 << 20).await;
    let proxy = Proxy::start(cluster.master.address()).await;
    let client = Client::connect(ConnectOptions::new(&proxy.address)).await.unwrap();
    // The node knows the client as one that maps its memory, so that silence frees nothing.
    only(client.put(&[Put::new(key("first"), b"first")], soon()).await).unwrap();
    // The put may be answered before the node has received its reservation.
    let is_first_stored = || cluster.nodes[0].usage().objects == 1 && cluster.nodes[0].usage().granted == 0;
    eventually("the node has learnt of it", is_first_stored).await;
    reserve_and_give_up(&client, &cluster, &proxy).await;
    proxy.cut.send_modify(|count| *count += 1);
    eventually("the master sees it disconnect", || cluster.master.stat().clients == 0).await;
    assert!(cluster.nodes[0].usage().granted > 0);
    proxy.slot_refs.send_replace(false);

    only(client.put(&[Put::new(key("second"), b"second")], soon()).await).unwrap();
    eventually("the node has learnt of it", || cluster.nodes[0].usage().granted == 0).await;
    let keys = [key("first"), key("lost"), key("second")];
    let found = client.resolve(&keys, ResolveOptions::default(), soon()).await;
    let found: Vec<_> = found.into_iter().map(|it| it.unwrap().is_some()).collect();
    assert_eq!(found, [true, false, true]);
}

fn leased(cluster: &Cluster) -> u64 {
    cluster.master.stat().namespaces.first().map_or(0, |it| it.samples_leased)
}

/// Two samples, and a client behind a proxy.
async fn samples_behind_a_proxy() -> (Cluster, Proxy, Client) {
    let cluster = Cluster::one(4 << 20).await;
    let proxy = Proxy::start(cluster.master.address()).await;
    let client = Client::connect(ConnectOptions::new(&proxy.address)).await.unwrap();
    for id in ["s", "t"] {
        let tensors = vec![TensorRef::new("x", Dtype::U8, &[3], b"123")];
        let sample = SamplePut { consumption: Consumption::Retained, ..SamplePut::new(key(id), tensors) };
        only(client.put_samples(&[sample], SpaceWait::Never, soon()).await).unwrap();
    }
    (cluster, proxy, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_survives_a_broken_connection_without_calls() {
    let (cluster, proxy, client) = samples_behind_a_proxy().await;
    let held = only(client.lease(&[(key("s"), None)], "g", soon()).await).unwrap();
    for round in 1..=3 {
        proxy.cut.send_modify(|count| *count += 1);
        eventually("the client reconnects", || proxy.accepted.load(Ordering::SeqCst) > round).await;
        assert_eq!(leased(&cluster), 1);
    }
    // Before another lease is granted, the master has received the list of the client's leases.
    let other = only(client.lease(&[(key("t"), None)], "g", soon()).await).unwrap();
    assert_eq!(leased(&cluster), 2);
    assert_eq!(held.read(&["x"], soon()).await.unwrap(), [b"123"]);
    client.release(&[&held], soon()).await.unwrap();
    assert_eq!(leased(&cluster), 1);
    drop(other);
    eventually("all leases end", || leased(&cluster) == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_lease_ends_before_the_next_one() {
    let (cluster, proxy, client) = samples_behind_a_proxy().await;
    proxy.slot_refs.send_replace(true);
    let wanted = [(key("s"), None)];
    tokio::select! {
        _ = client.lease(&wanted, "g", soon()) => panic!("the reply is held back"),
        () = eventually("it is leased", || leased(&cluster) == 1) => {}
    }
    proxy.cut.send_modify(|count| *count += 1);
    eventually("the master sees it disconnect", || cluster.master.stat().clients == 0).await;
    assert_eq!(leased(&cluster), 1);
    proxy.slot_refs.send_replace(false);
    let other = only(client.lease(&[(key("t"), None)], "g", soon()).await).unwrap();
    assert_eq!(leased(&cluster), 1, "only the lease that the client knows");
    drop(other);
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_ends_after_its_client_was_away_too_long() {
    let config = MasterConfig { lease_grace: Duration::from_millis(1), ..MasterConfig::default() };
    let master = MasterServer::start(config).await.unwrap();
    let mut cluster = Cluster { nodes: Vec::new(), master };
    cluster.add(4 << 20).await;
    let tensors = vec![TensorRef::new("x", Dtype::U8, &[3], b"123")];
    let client = cluster.client().await;
    only(client.put_samples(&[SamplePut::new(key("s"), tensors)], SpaceWait::Never, soon()).await).unwrap();
    // A client that no node ever sees, and that disconnects without a `Goodbye`.
    let hello = Hello { client: ClientId(7), namespace: "default".to_owned(), ..Hello::default() };
    let until = Instant::now() + LONG;
    let (connection, _) = Connection::open(cluster.master.address(), hello, until).await.unwrap();
    let items = vec![LeaseItem { key: key("s"), generation: None }];
    let lease = ClientToMaster::Lease(Lease { items, group: String::new(), report_wait_ms: 0 });
    assert!(matches!(connection.call(&lease, until).await, Ok(Reply::Leased(_))));
    assert_eq!(leased(&cluster), 1);
    connection.close();
    eventually("the lease ends", || leased(&cluster) == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_client_does_not_reconnect_for_its_leases() {
    let (cluster, proxy, client) = samples_behind_a_proxy().await;
    let held = only(client.lease(&[(key("s"), None)], "g", soon()).await).unwrap();
    client.close(soon()).await.unwrap();
    assert_eq!((leased(&cluster), cluster.master.stat().clients), (0, 0));
    drop((held, client));
    assert_eq!(proxy.accepted.load(Ordering::SeqCst), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn reserved_space_survives_a_reconnect_to_the_master() {
    let cluster = Cluster::one(4 << 20).await;
    let proxy = Proxy::start(cluster.master.address()).await;
    for shared_memory in [true, false] {
        let options = ConnectOptions { shared_memory, ..ConnectOptions::new(&proxy.address) };
        let client = Client::connect(options).await.unwrap();
        let spaces = [SpaceRequest::new(key("ahead"), 1000)];
        let reserved = only(client.reserve(&spaces, SpaceWait::Never, soon()).await).unwrap();
        let granted = cluster.nodes[0].usage().granted;
        proxy.cut.send_modify(|count| *count += 1);
        eventually("the master sees it disconnect", || cluster.master.stat().clients == 0).await;
        // This sends the node the list of reservations; it releases those not listed.
        only(client.put(&[Put::new(key("n"), b"n")], soon()).await).unwrap();
        assert!(granted > 0);
        eventually("the node has learnt of it", || cluster.nodes[0].usage().granted == granted).await;
        reserved.put(vec![SourceBuf::from(&[7; 1000][..])], soon()).await.unwrap();
        let got = only(client.get(&[key("ahead")], GetOptions::default(), soon()).await).unwrap();
        assert_eq!(got.bytes, vec![7; 1000]);
        eventually("nothing is left", || cluster.nodes[0].usage().granted == 0).await;
        client.close(soon()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn put_or_get_dropped_at_any_point_leaves_nothing() {
    let (near, far) = (Cluster::one(256 << 20).await, Cluster::far(256 << 20).await);
    let bytes = pattern(3, 9 << 20);
    let clients =
        [(&near, near.client().await), (&near, near.tcp_client().await), (&far, far.client().await)];
    for (cluster, client) in clients {
        let mut finished = 0;
        for polls in 0.. {
            let puts =
                [Put::new(key(format!("a/{polls}")), &bytes), Put::new(key(format!("b/{polls}")), b"small")];
            if let Some(stored) = drop_after(polls, client.put(&puts, soon())).await {
                assert!(stored.iter().all(Result::is_ok), "{stored:?}");
                finished += 1;
            }
            let keys: Vec<_> = puts.iter().map(|put| put.key.clone()).collect();
            let spaces = [SpaceRequest::new(key(format!("c/{polls}")), 3)];
            if let Some(reserved) = drop_after(polls, client.reserve(&spaces, SpaceWait::Never, soon())).await
            {
                let reserved = only(reserved).unwrap();
                drop(drop_after(polls, reserved.put(vec![SourceBuf::from(&b"abc"[..])], soon())).await);
            }
            drop(drop_after(polls, client.view(&keys, soon())).await);
            drop(drop_after(polls, client.get(&keys, GetOptions::default(), soon())).await);
            client.delete(&keys, DeleteOptions::default(), soon()).await.into_iter().for_each(|it| {
                it.unwrap();
            });
            // How often a put is polled depends on the scheduler; by now it was dropped at every kind of
            // point.
            if finished == 5 {
                break;
            }
        }
        // An object that was committed after its put was dropped may appear after the delete above.
        let node = &cluster.nodes[0];
        eventually("everything is decided", || node.usage().granted == 0 && node.usage().held == 0).await;
        client.delete_matching(Pattern::All, DeleteOptions::default(), soon()).await.unwrap();
        eventually("all is free", || node.usage().free == node.usage().capacity).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connect_error_names_the_address() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let error = Client::connect(ConnectOptions::new(&address)).await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable { what } if what.contains(&address)), "{error}");
    assert!(error.is_retryable() && error.hint().is_some());
    for address in ["", "nowhere", "http://localhost:1", "localhost:99999"] {
        let error = Client::connect(ConnectOptions::new(address)).await.unwrap_err();
        assert!(matches!(&error, Error::Invalid { what } if what.contains(address)), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_peer_error_names_the_address() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let silent = tokio::spawn(async move {
        let mut streams = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            streams.push(stream);
        }
    });
    let options = ConnectOptions { connect_time: SHORT, ..ConnectOptions::new(&address) };
    let error = Client::connect(options).await.unwrap_err();
    let is_named = |what: &str| what.contains(&address) && what.contains("accepted the connection");
    assert!(matches!(&error, Error::NoHandshake { what, is_silent: true } if is_named(what)), "{error}");
    silent.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_end_at_their_deadline_if_the_master_is_silent() {
    let cluster = Cluster::one(4 << 20).await;
    let proxy = Proxy::start(cluster.master.address()).await;
    let client = Client::connect(ConnectOptions::new(&proxy.address)).await.unwrap();
    proxy.slot_refs.send_replace(true);
    let short = || tiffin_client::Deadline::after(SHORT);
    let keys = [key("k")];
    let errors = [
        only(client.put(&[Put::new(key("k"), b"v")], short()).await).unwrap_err(),
        only(client.get(&keys, GetOptions::default(), short()).await).unwrap_err(),
        only(client.view(&keys, short()).await).unwrap_err(),
        only(client.resolve(&keys, ResolveOptions::default(), short()).await).unwrap_err(),
        only(client.delete(&keys, DeleteOptions::default(), short()).await).unwrap_err(),
        client.list(Pattern::All, short()).await.unwrap_err(),
        client.stat(short()).await.unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
    }
    client.close(short()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_token_is_rejected_everywhere() {
    let cluster = Cluster::start(&[], "secret").await;
    for token in ["", "Secret", "secret "] {
        let options = ConnectOptions { token: token.to_owned(), ..cluster.options() };
        let error = Client::connect(options).await.unwrap_err();
        assert!(matches!(error, Error::Unauthenticated { .. }), "{error:?}");
        assert!(!error.is_retryable());
    }
    let options = ConnectOptions { token: "secret".to_owned(), ..cluster.options() };
    let client = Client::connect(options).await.unwrap();
    assert!(!format!("{client:?}").contains("secret"));
    let error = only(client.put(&[Put::new(key("k"), b"v")], soon()).await).unwrap_err();
    assert_eq!(error, Error::NoNode { key: key("k") });
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_are_separate() {
    let cluster = Cluster::one(4 << 20).await;
    let here = cluster.client().await;
    let options = ConnectOptions { namespace: "there".to_owned(), ..cluster.options() };
    let there = Client::connect(options).await.unwrap();
    only(here.put(&[Put::new(key("k"), b"here")], soon()).await).unwrap();
    assert_eq!(only(there.resolve(&[key("k")], ResolveOptions::default(), soon()).await), Ok(None));
    let stored = only(there.put(&[Put::new(key("k"), b"there")], soon()).await).unwrap();
    assert_eq!(stored.effect, PutEffect::Created);
    let got = only(here.get(&[key("k")], GetOptions::default(), soon()).await).unwrap();
    assert_eq!(got.bytes, b"here");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_copy_is_read_when_a_node_has_ended() {
    for shared_memory in [true, false] {
        let mut cluster = Cluster::start(&[8 << 20, 8 << 20], "").await;
        let options = ConnectOptions { shared_memory, ..cluster.options() };
        let client = Client::connect(options).await.unwrap();
        let bytes = pattern(1, 1 << 20);
        let options = PutOptions { replicas: 2, ..PutOptions::default() };
        let both = Put { options, ..Put::new(key("both"), &bytes) };
        assert_eq!(only(client.put(&[both], soon()).await).unwrap().copies, 2);
        let on = |name: &str| PutOptions {
            replicas: 1,
            preferred: vec![name.to_owned()],
            ..PutOptions::default()
        };
        let singles: Vec<Put<'_>> = ["node-0", "node-1"]
            .iter()
            .map(|name| Put { options: on(name), ..Put::new(key(name), &bytes) })
            .collect();
        assert!(client.put(&singles, soon()).await.iter().all(Result::is_ok));

        drop(cluster.nodes.remove(0));
        let keys = [key("both"), key("node-0"), key("node-1")];
        let got = client.get(&keys, GetOptions::default(), soon()).await;
        assert!(got[0].as_ref().unwrap().bytes == bytes && got[2].as_ref().unwrap().bytes == bytes);
        let expected = Error::NodeDown { key: key("node-0"), nodes: vec!["node-0".to_owned()] };
        assert_eq!(got[1].as_ref().unwrap_err(), &expected);
        // New objects go to the remaining node.
        only(client.put(&[Put::new(key("new"), &bytes)], soon()).await).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_reconnects_to_a_restarted_master() {
    let address = Address::Unix { name: format!("tiffin-test-{}", std::process::id()) };
    let config = MasterConfig { listen: vec![address.clone()], ..MasterConfig::default() };
    let master = MasterServer::start(config.clone()).await.unwrap();
    let node = NodeConfig { master: address.clone().into(), memory: 4 << 20, ..NodeConfig::default() };
    let node = NodeServer::start(node).await.unwrap();
    node.joined(Instant::now() + LONG).await.unwrap();
    let client = Client::connect(ConnectOptions::new(address.to_string())).await.unwrap();
    let first = only(client.put(&[Put::new(key("k"), b"v")], soon()).await).unwrap();

    master.shutdown().await;
    let error = client.stat(soon()).await.unwrap_err();
    assert!(
        matches!(&error, Error::Unreachable { what } if what.contains(&address.to_string())),
        "{error:?}"
    );
    let master = MasterServer::start(config).await.unwrap();
    eventually("the node joins again", || {
        master.stat().nodes.iter().any(|it| it.alive && it.usage.objects == 1)
    })
    .await;
    let got = only(client.get(&[key("k")], GetOptions::default(), soon()).await).unwrap();
    assert_eq!((got.bytes.as_slice(), got.generation), (&b"v"[..], first.generation));
    let second = only(client.put(&[Put::new(key("k"), b"w")], soon()).await).unwrap();
    assert!(second.generation > first.generation);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_writers_of_one_key_leave_one_object() {
    let cluster = Cluster::one(64 << 20).await;
    let client = cluster.client().await;
    let name: Key = key("k");
    let mut tasks = tokio::task::JoinSet::new();
    for seed in 0..8_usize {
        let (client, name) = (client.clone(), name.clone());
        tasks.spawn(async move {
            let bytes = pattern(seed, 100_000 + seed);
            let keeps = seed.is_multiple_of(4);
            let on_exists = if keeps { OnExists::Keep } else { OnExists::Replace };
            for _ in 0..20 {
                let options = PutOptions { on_exists, ..PutOptions::default() };
                only(client.put(&[Put { options, ..Put::new(name.clone(), &bytes) }], soon()).await).unwrap();
                let view = only(client.view(slice::from_ref(&name), soon()).await).unwrap();
                let seen = view.bytes().unwrap();
                assert!(*seen == pattern(seen.len() - 100_000, seen.len()));
                let got =
                    only(client.get(slice::from_ref(&name), GetOptions::default(), soon()).await).unwrap();
                assert!(got.bytes == pattern(got.bytes.len() - 100_000, got.bytes.len()));
            }
        });
    }
    while let Some(joined) = tasks.join_next().await {
        joined.unwrap();
    }
    let usage = || cluster.nodes[0].usage();
    eventually("one object is left", || usage().objects == 1 && usage().granted == 0 && usage().held == 0)
        .await;
}
