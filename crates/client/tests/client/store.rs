//! Puts, gets, views and deletes, on every data path.

use tiffin_client::{
    Client, Deadline, DeleteOptions, Error, GetInto, GetOptions, Key, ListOptions, OnExists, Pattern, Put,
    PutEffect, PutOptions, ResolveOptions, SourceBuf, TargetBuf, Way,
};
use tiffin_embedded::Embedded;
use tiffin_server::NodeConfig;

use crate::support::{Cluster, eventually, key, only, pattern, pinned, soon};

const MIB: usize = 1 << 20;

/// Puts, gets, views and deletes objects of many sizes, one batch per operation.
async fn round_trips(client: &Client, expected: Way) {
    let sizes = [0, 1, 63, 64, 65, 4096, MIB + 1, 9 * MIB];
    let objects: Vec<_> =
        sizes.iter().map(|&len| (key(format!("object-{len}")), pattern(len, len))).collect();
    let keys: Vec<_> = objects.iter().map(|(key, _)| key.clone()).collect();

    // In two parts each, so that parts are joined.
    let puts = objects.iter().map(|(key, bytes)| {
        let (head, tail) = bytes.split_at(bytes.len() / 3);
        Put { parts: vec![SourceBuf::from(head), SourceBuf::from(tail)], ..Put::new(key.clone(), &[]) }
    });
    let stored = client.put(&puts.collect::<Vec<_>>(), soon()).await;
    let stored: Vec<_> = stored.into_iter().map(Result::unwrap).collect();
    assert!(stored.iter().all(|it| it.copies == 1 && it.effect == PutEffect::Created), "{stored:?}");

    for (got, (stored, (key, bytes))) in
        client.get(&keys, GetOptions::default(), soon()).await.into_iter().zip(stored.iter().zip(&objects))
    {
        let got = got.unwrap();
        assert!(got.bytes == *bytes, "{key}");
        assert_eq!(got.generation, stored.generation);
    }
    get_into_larger_buffers(client, &objects).await;
    for (view, (key, bytes)) in client.view(&keys, soon()).await.into_iter().zip(&objects) {
        let view = view.unwrap();
        assert_eq!(view.is_borrowed(), expected != Way::Tcp, "{key}");
        assert!(view.bytes().unwrap() == bytes, "{key}");
    }
    let there = client.exists(&keys, ResolveOptions::default(), soon()).await;
    assert!(there.iter().all(|it| *it == Ok(true)), "{there:?}");
    let options = ResolveOptions { locate: true, ..ResolveOptions::default() };
    for (info, (_, bytes)) in client.resolve(&keys, options, soon()).await.into_iter().zip(&objects) {
        let info = info.unwrap().unwrap();
        assert_eq!(info.len, bytes.len() as u64);
        assert_eq!(info.replicas.len(), 1);
        assert!(!info.replicas[0].node.name.is_empty());
    }

    let deleted = client.delete(&keys, DeleteOptions::default(), soon()).await;
    assert!(deleted.iter().all(|it| *it == Ok(true)), "{deleted:?}");
    let deleted = client.delete(&keys, DeleteOptions::default(), soon()).await;
    assert!(deleted.iter().all(|it| *it == Ok(false)), "{deleted:?}");
    for (key, got) in keys.iter().zip(client.get(&keys, GetOptions::default(), soon()).await) {
        assert_eq!(got.map(|_| ()), Err(Error::NotFound { key: key.clone() }));
    }
    for info in client.resolve(&keys, ResolveOptions::default(), soon()).await {
        assert_eq!(info, Ok(None));
    }
    let there = client.exists(&keys, ResolveOptions::default(), soon()).await;
    assert!(there.iter().all(|it| *it == Ok(false)), "{there:?}");
    assert_eq!(client.routes().into_iter().map(|it| it.way).collect::<Vec<_>>(), [Some(expected)]);
}

async fn get_into_larger_buffers(client: &Client, objects: &[(tiffin_client::Key, Vec<u8>)]) {
    const SPARE: usize = 7;
    let mut buffers: Vec<_> = objects.iter().map(|(_, bytes)| vec![0xee; bytes.len() + SPARE]).collect();
    let items: Vec<_> = objects
        .iter()
        .zip(&mut buffers)
        .map(|((key, bytes), buffer)| {
            let (head, tail) = buffer.split_at_mut(bytes.len() / 2);
            GetInto::scattered(key.clone(), vec![TargetBuf::from(head), TargetBuf::from(tail)])
        })
        .collect();
    let fetched = client.get_into(&items, GetOptions::default(), soon()).await;
    drop(items);
    for ((fetched, buffer), (key, bytes)) in fetched.into_iter().zip(&buffers).zip(objects) {
        assert_eq!(fetched.unwrap().len, bytes.len() as u64);
        let (filled, spare) = buffer.split_at(bytes.len());
        assert!(filled == bytes, "{key}");
        assert_eq!(spare, [0xee; SPARE], "{key}: more was touched than the object has");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_memory_sends_no_byte_through_a_socket() {
    let cluster = Cluster::one(64 << 20).await;
    let client = cluster.client().await;
    round_trips(&client, Way::SharedMemory).await;
    let counters = client.counters();
    assert!(counters.shm.read() > 0 && counters.shm.written() > 0);
    assert_eq!((counters.tcp.read(), counters.tcp.written()), (0, 0));
    let served = &cluster.nodes[0].counters().served;
    assert_eq!((served.read(), served.written()), (0, 0));
    assert_eq!(client.routes()[0].why, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn isolated_memory_is_read_in_place_and_written_by_a_socket() {
    let mut cluster = Cluster::start(&[], "").await;
    cluster.add_with(NodeConfig { memory: 64 << 20, isolate: true, ..NodeConfig::default() }).await;
    let client = cluster.client().await;
    round_trips(&client, Way::SharedMemory).await;
    let counters = client.counters();
    assert!(counters.shm.read() > 0 && counters.tcp.written() > 0);
    assert_eq!((counters.tcp.read(), counters.shm.written()), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_shared_memory_all_bytes_use_a_socket() {
    let cluster = Cluster::one(64 << 20).await;
    let client = cluster.tcp_client().await;
    round_trips(&client, Way::Tcp).await;
    let counters = client.counters();
    assert!(counters.tcp.read() > 0 && counters.tcp.written() > 0);
    assert_eq!((counters.shm.read(), counters.shm.written()), (0, 0));
    assert_eq!(client.routes()[0].why.as_deref(), Some("switched off"));
}

#[tokio::test(flavor = "multi_thread")]
async fn small_objects_travel_inside_the_commit() {
    let cluster = Cluster::far(64 << 20).await;
    let client = cluster.client().await;
    round_trips(&client, Way::Tcp).await;
    let served = || cluster.nodes[0].counters().served.written();
    assert_eq!(client.counters().tcp.written(), served());
    // Batches in several parts: few bytes inside the commit, more before it, and small objects with large
    // ones.
    let batches = [
        vec![0, 1, 700],
        vec![5000, 5000, 5000],
        vec![9000, 9000],
        vec![3, 40_000],
        vec![3, 70_000, 5],
        vec![2_000_000, 1, 3_000_000],
    ];
    for (batch, lens) in batches.into_iter().enumerate() {
        let bytes: Vec<_> = lens.iter().map(|len| pattern(*len + batch, *len)).collect();
        let puts: Vec<_> = bytes
            .iter()
            .enumerate()
            .map(|(at, bytes)| Put {
                parts: bytes.chunks(bytes.len() / 3 + 1).map(SourceBuf::from).collect(),
                ..Put::new(key(format!("few/{batch}/{at}")), b"")
            })
            .collect();
        let before = served();
        client.put(&puts, soon()).await.into_iter().for_each(|it| drop(it.unwrap()));
        assert_eq!(served() - before, lens.iter().sum::<usize>() as u64);
        let keys: Vec<_> = puts.iter().map(|put| put.key.clone()).collect();
        for (got, bytes) in client.get(&keys, GetOptions::default(), soon()).await.into_iter().zip(&bytes) {
            assert_eq!(&got.unwrap().bytes, bytes);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commit_with_very_long_keys_is_sent() {
    const COUNT: usize = 5000;
    let cluster = Cluster::far(64 << 20).await;
    let client = cluster.client().await;
    // From now on the route to the node is open.
    only(client.put(&[Put::new(key("first"), b"")], soon()).await).unwrap();
    let name = |number: usize| key(format!("{number:01000}"));
    let bytes: Vec<_> = (0..COUNT).map(|number| number.to_le_bytes()).collect();
    let puts: Vec<_> = bytes.iter().enumerate().map(|(at, bytes)| Put::new(name(at), bytes)).collect();
    client.put(&puts, soon()).await.into_iter().for_each(|it| drop(it.unwrap()));
    let keys: Vec<_> = (0..COUNT).map(name).collect();
    for (got, bytes) in client.get(&keys, GetOptions::default(), soon()).await.into_iter().zip(&bytes) {
        assert_eq!(got.unwrap().bytes, bytes);
    }
}

/// Number of requests that the master has received so far, from all peers.
fn asked(cluster: &Cluster) -> u64 {
    let summary = cluster.master.summary();
    let count = summary.split("Requests: ").nth(1).and_then(|it| it.split(' ').next());
    count.and_then(|it| it.parse().ok()).expect("the summary counts requests")
}

#[tokio::test(flavor = "multi_thread")]
async fn cached_location_gets_do_not_ask_the_master() {
    const GETS: u64 = 500;
    let cluster = Cluster::one(64 << 20).await;
    let other = cluster.client().await;
    for client in [cluster.client().await, cluster.tcp_client().await] {
        let (name, bytes) = (key("known"), pattern(7, 5000));
        only(other.put(&[Put::new(name.clone(), &bytes)], soon()).await).unwrap();
        let get = async || only(client.get(std::slice::from_ref(&name), GetOptions::default(), soon()).await);
        assert!(get().await.unwrap().bytes == bytes);
        let resolved = || cluster.master.stat().tier.gets_from_memory;
        let before = resolved();
        for _ in 0..GETS {
            assert!(get().await.unwrap().bytes == bytes);
        }
        let more = resolved() - before;
        assert!(more < GETS / 2, "the master resolved {more} of {GETS} gets");
        // A client with the cached location notices the delete, and finds the new object.
        only(other.delete(std::slice::from_ref(&name), DeleteOptions::default(), soon()).await).unwrap();
        assert_eq!(get().await.map(|_| ()), Err(Error::NotFound { key: name.clone() }));
        let newer = pattern(8, 5000);
        only(other.put(&[Put::new(name.clone(), &newer)], soon()).await).unwrap();
        assert!(get().await.unwrap().bytes == newer);
        only(other.delete(std::slice::from_ref(&name), DeleteOptions::default(), soon()).await).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn own_puts_are_probed_and_read_without_the_master() {
    const PUTS: u64 = 200;
    let cluster = Cluster::one(64 << 20).await;
    let (client, other) = (cluster.client().await, cluster.client().await);
    let is_there = async |name: &Key| {
        only(client.exists(std::slice::from_ref(name), ResolveOptions::default(), soon()).await)
    };
    let get = async |name: &Key| {
        only(client.get(std::slice::from_ref(name), GetOptions::default(), soon()).await).map(|it| it.bytes)
    };
    let mut questions = 0;
    for number in 0..PUTS {
        let (name, bytes) = (key(format!("own/{number}")), pattern(number as usize, 4096));
        only(client.put(&[Put::new(name.clone(), &bytes)], soon()).await).unwrap();
        // Its node may not have learnt of it yet.
        let before = asked(&cluster);
        assert_eq!(is_there(&name).await, Ok(true));
        assert!(get(&name).await.unwrap() == bytes);
        questions += asked(&cluster) - before;
        if number % 10 == 0 {
            only(other.delete(std::slice::from_ref(&name), DeleteOptions::default(), soon()).await).unwrap();
            assert_eq!(is_there(&name).await, Ok(false));
            assert_eq!(get(&name).await, Err(Error::NotFound { key: name }));
        }
    }
    assert!(questions < PUTS / 2, "{questions} requests, including heartbeats");
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_store_is_accessed_directly() {
    let store = Embedded::start(64 << 20).await.unwrap();
    round_trips(&store.client, Way::Local).await;
    let counters = store.client.counters();
    assert!(counters.local.read() > 0 && counters.local.written() > 0);
    assert_eq!((counters.shm.written(), counters.tcp.written()), (0, 0));
    store.stop(soon()).await.unwrap();
}

/// The permissions of this process for the memory at an address.
fn permissions_at(address: usize) -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let permissions = |line: &str| {
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        (number(start)..number(end)).contains(&address).then(|| rest[..4].to_owned())
    };
    maps.lines().find_map(permissions).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn views_cannot_be_written() {
    let store = Embedded::start(64 << 20).await.unwrap();
    let cluster = Cluster::one(64 << 20).await;
    let keys = [key("k")];
    for client in [&store.client, &cluster.client().await] {
        only(client.put(&[Put::new(keys[0].clone(), b"committed")], soon()).await).unwrap();
        let view = only(client.view(&keys, soon()).await).unwrap();
        assert!(view.is_borrowed());
        assert_eq!(permissions_at(view.bytes().unwrap().as_ptr().addr()), "r--s");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_any_bytes_and_lists_are_sorted() {
    let cluster = Cluster::one(4 << 20).await;
    let client = cluster.client().await;
    let keys = [key([b'k'; 10_000]), key([0xff, 0x00, 0xfe]), key("plain"), key("plain/2"), key("ключ")];
    let puts: Vec<_> = keys.iter().map(|key| Put::new(key.clone(), key.as_bytes())).collect();
    assert!(client.put(&puts, soon()).await.iter().all(Result::is_ok));
    for (key, got) in keys.iter().zip(client.get(&keys, GetOptions::default(), soon()).await) {
        assert_eq!(got.unwrap().bytes, key.as_bytes());
    }

    let names = |items: Vec<tiffin_client::ListItem>| items.into_iter().map(|it| it.key).collect::<Vec<_>>();
    let mut sorted = keys.to_vec();
    sorted.sort();
    assert_eq!(names(client.list(Pattern::All, soon()).await.unwrap()), sorted);
    let prefix = Pattern::Prefix(b"plain".to_vec());
    assert_eq!(names(client.list(prefix, soon()).await.unwrap()), [key("plain"), key("plain/2")]);
    let regex = Pattern::Regex("^plain$".to_owned());
    assert_eq!(names(client.list(regex, soon()).await.unwrap()), [key("plain")]);
    let broken = client.list(Pattern::Regex("(".to_owned()), soon()).await;
    assert!(
        matches!(&broken, Err(Error::Invalid { what }) if what.contains("regular expression")),
        "{broken:?}"
    );

    let deleted = client
        .delete_matching(Pattern::Prefix(b"plain".to_vec()), DeleteOptions::default(), soon())
        .await
        .unwrap();
    assert_eq!((deleted.count, deleted.unconfirmed), (2, vec![]));
    assert_eq!(client.list(Pattern::All, soon()).await.unwrap().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_have_limits_and_pages() {
    let cluster = Cluster::one(16 << 20).await;
    let client = cluster.client().await;
    // More objects than a page of the complete list, so that a short list is cut between two pages.
    let count = 20_000;
    let puts: Vec<_> = (0..count).map(|n: u32| Put::new(key(format!("k{n:05}")), b"v".as_slice())).collect();
    assert!(client.put(&puts, soon()).await.iter().all(Result::is_ok));

    let names = |items: Vec<tiffin_client::ListItem>| items.into_iter().map(|it| it.key).collect::<Vec<_>>();
    let first = ListOptions { limit: Some(3), ..ListOptions::default() };
    let found = names(client.list_with(Pattern::All, &first, soon()).await.unwrap());
    assert_eq!(found, [key("k00000"), key("k00001"), key("k00002")]);
    let next = ListOptions { after: found.last().cloned(), ..first.clone() };
    let found = names(client.list_with(Pattern::All, &next, soon()).await.unwrap());
    assert_eq!(found, [key("k00003"), key("k00004"), key("k00005")]);
    let last = ListOptions { after: Some(key("k19998")), ..first.clone() };
    assert_eq!(names(client.list_with(Pattern::All, &last, soon()).await.unwrap()), [key("k19999")]);
    let none = ListOptions { limit: Some(0), ..first };
    assert!(client.list_with(Pattern::All, &none, soon()).await.unwrap().is_empty());

    let mut walked = Vec::new();
    let mut cursor = 0;
    loop {
        let page = client.list_page(&Pattern::All, None, (cursor, 1000), soon()).await.unwrap();
        assert!(page.items.len() <= 1000);
        walked.extend(names(page.items));
        cursor = page.cursor;
        if cursor == 0 {
            break;
        }
    }
    walked.sort();
    assert_eq!(walked, puts.into_iter().map(|put| put.key).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn existing_name_is_replaced_or_kept_as_requested() {
    let cluster = Cluster::one(4 << 20).await;
    let client = cluster.client().await;
    let first = only(client.put(&[Put::new(key("k"), b"first")], soon()).await).unwrap();
    let second = only(client.put(&[Put::new(key("k"), b"second")], soon()).await).unwrap();
    assert_eq!((first.effect, second.effect), (PutEffect::Created, PutEffect::Replaced));
    assert!(second.generation > first.generation);

    let options = PutOptions { on_exists: OnExists::Keep, ..PutOptions::default() };
    let third = only(client.put(&[Put { options, ..Put::new(key("k"), b"third") }], soon()).await).unwrap();
    assert_eq!((third.effect, third.copies, third.generation), (PutEffect::Kept, 0, second.generation));
    let got = only(client.get(&[key("k")], GetOptions::default(), soon()).await).unwrap();
    assert_eq!(got.bytes, b"second");
}

#[tokio::test(flavor = "multi_thread")]
async fn too_small_buffer_is_not_touched() {
    let cluster = Cluster::one(4 << 20).await;
    for client in [cluster.client().await, cluster.tcp_client().await] {
        only(client.put(&[Put::new(key("k"), &[1; 100])], soon()).await).unwrap();
        let mut buffer = vec![0xee; 99];
        let items = [GetInto::new(key("k"), &mut buffer)];
        let fetched = only(client.get_into(&items, GetOptions::default(), soon()).await);
        assert_eq!(fetched, Err(Error::TooSmall { key: key("k"), len: 100 }));
        assert_eq!(buffer, [0xee; 99]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn full_store_rejects_puts_until_space_is_freed() {
    let cluster = Cluster::one(4 << 20).await;
    let client = cluster.client().await;
    let bytes = pattern(1, 3 * MIB);
    only(client.put(&[pinned("a", &bytes)], soon()).await).unwrap();
    let error = only(client.put(&[pinned("b", &bytes)], soon()).await).unwrap_err();
    let Error::Full { usage, len, .. } = &error else { panic!("{error}") };
    assert_eq!((usage.capacity, usage.committed, *len), (4 << 20, 3 << 20, 3 << 20));
    assert!(error.is_retryable() && error.hint().is_some());
    assert_eq!(client.delete(&[key("a")], DeleteOptions::default(), soon()).await, [Ok(true)]);
    only(client.put(&[pinned("b", &bytes)], soon()).await).unwrap();
    let huge = pattern(1, 5 * MIB);
    let error = only(client.put(&[pinned("c", &huge)], soon()).await).unwrap_err();
    assert!(matches!(error, Error::Full { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn view_outlives_its_object_and_then_frees_its_memory() {
    let cluster = Cluster::one(4 << 20).await;
    let client = cluster.client().await;
    let (old, new) = (pattern(1, 3 * MIB), pattern(2, 3 * MIB));
    only(client.put(&[pinned("a", &old)], soon()).await).unwrap();
    let view = only(client.view(&[key("a")], soon()).await).unwrap();
    assert!(view.is_borrowed());
    assert_eq!(client.delete(&[key("a")], DeleteOptions::default(), soon()).await, [Ok(true)]);

    let refused = only(client.put(&[pinned("b", &new)], soon()).await).unwrap_err();
    assert!(matches!(&refused, Error::Full { usage, .. } if usage.held == 3 << 20), "{refused}");
    // A view keeps its client connected, and its bytes in place.
    client.close(soon()).await.unwrap();
    drop(client);
    assert!(view.bytes().unwrap() == old);

    drop(view);
    // The node informs the master at once, not with the next heartbeat.
    eventually("the memory is free", || cluster.master.stat().nodes[0].usage.held == 0).await;
    let client = cluster.client().await;
    only(client.put(&[pinned("b", &new)], soon()).await).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_tasks_share_one_client() {
    let cluster = Cluster::one(64 << 20).await;
    for client in [cluster.client().await, cluster.tcp_client().await] {
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..16_usize {
            let client = client.clone();
            tasks.spawn(async move {
                for round in 0..20_usize {
                    let objects: Vec<_> = (0..8)
                        .map(|it| (key(format!("{task}/{it}")), pattern(task + round, 1000 * it)))
                        .collect();
                    let puts: Vec<_> =
                        objects.iter().map(|(key, bytes)| Put::new(key.clone(), bytes)).collect();
                    assert!(client.put(&puts, soon()).await.iter().all(Result::is_ok));
                    let keys: Vec<_> = objects.iter().map(|(key, _)| key.clone()).collect();
                    let got = client.get(&keys, GetOptions::default(), soon()).await;
                    assert!(got.into_iter().zip(&objects).all(|(got, it)| got.unwrap().bytes == it.1));
                }
            });
        }
        while let Some(joined) = tasks.join_next().await {
            joined.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_deadline_does_nothing() {
    let cluster = Cluster::one(4 << 20).await;
    let client = cluster.client().await;
    only(client.put(&[Put::new(key("old"), b"old")], soon()).await).unwrap();
    let past = Deadline::at(tokio::time::Instant::now());
    let is_timeout = |error: &Error| matches!(error, Error::Timeout { .. });
    assert!(only(client.put(&[Put::new(key("k"), b"v")], past).await).is_err_and(|it| is_timeout(&it)));
    let got = client.get(&[key("old")], GetOptions::default(), past).await;
    assert!(only(got).is_err_and(|it| is_timeout(&it)));
    let deleted = client.delete(&[key("old")], DeleteOptions::default(), past).await;
    assert!(only(deleted).is_err_and(|it| is_timeout(&it)));
    assert!(only(client.view(&[key("old")], past).await).is_err_and(|it| is_timeout(&it)));
    assert!(client.stat(past).await.is_err_and(|it| is_timeout(&it)));
    let names: Vec<_> =
        client.list(Pattern::All, soon()).await.unwrap().into_iter().map(|it| it.key).collect();
    assert_eq!(names, [key("old")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn closed_client_rejects_calls_and_has_disconnected() {
    let cluster = Cluster::one(4 << 20).await;
    let client = cluster.client().await;
    only(client.put(&[Put::new(key("k"), b"v")], soon()).await).unwrap();
    assert_eq!(cluster.nodes[0].client_count(), 1);
    client.close(soon()).await.unwrap();
    client.close(soon()).await.unwrap();
    assert_eq!(only(client.put(&[Put::new(key("k"), b"v")], soon()).await), Err(Error::Closed));
    assert_eq!(only(client.get(&[key("k")], GetOptions::default(), soon()).await), Err(Error::Closed));
    assert_eq!(client.stat(soon()).await.map(|_| ()), Err(Error::Closed));
    eventually("the node forgets the client", || cluster.nodes[0].client_count() == 0).await;
    eventually("the master forgets the client", || cluster.master.stat().clients == 0).await;

    // A dropped client disconnects, too.
    let client = cluster.client().await;
    only(client.put(&[Put::new(key("k"), b"v")], soon()).await).unwrap();
    drop(client);
    eventually("the node forgets the client", || cluster.nodes[0].client_count() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_batch_has_no_outcomes() {
    let cluster = Cluster::one(4 << 20).await;
    let client = cluster.client().await;
    assert!(client.put(&[], soon()).await.is_empty());
    assert!(client.get(&[], GetOptions::default(), soon()).await.is_empty());
    assert!(client.view(&[], soon()).await.is_empty());
    assert!(client.delete(&[], DeleteOptions::default(), soon()).await.is_empty());
}
