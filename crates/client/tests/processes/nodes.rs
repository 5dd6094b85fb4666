//! Nodes that are killed or stopped.

use std::time::Duration;

use tiffin_client::{
    Client, ConnectOptions, CopyWait, Deadline, DeleteOptions, Dtype, Error, GetInto, GetOptions, Key,
    Pattern, Put, PutOptions, SamplePut, SpaceWait, TensorRef, Why,
};
use tiffin_core::master::OWED_PAGE_MAX;
use tiffin_server::config::TierConfig;
use tiffin_server::{MasterConfig, MasterServer};
use tokio::runtime::Runtime;
use tokio::time::Instant;

use crate::support::{
    LONG, LOOK, Process, connect, content_of, eventually, key, only, pattern, soon, start_master,
};

/// A short limit, for peers that will not reply.
const SHORT: Duration = Duration::from_millis(300);

pub(crate) fn node_killed_under_its_readers(runtime: &Runtime) {
    for shared_memory in [true, false] {
        let master = runtime.block_on(start_master());
        let address = master.address().to_string();
        let mut nodes = ["left", "right"].map(|name| Some(Process::start(&["node", &address, name])));
        runtime.block_on(async {
            let client = connect(&master, shared_memory).await;
            let bytes = pattern(1 << 20);
            let options = PutOptions { replicas: 2, ..PutOptions::default() };
            let keys: Vec<_> = (0..8).map(|it| key(format!("k{it}"))).collect();
            let put = |key: &Key| Put { options: options.clone(), ..Put::new(key.clone(), &bytes) };
            let stored = client.put(&keys.iter().map(put).collect::<Vec<_>>(), soon()).await;
            assert!(stored.into_iter().all(|it| it.unwrap().copies == 2));
            let mut readers = tokio::task::JoinSet::new();
            for _ in 0..4 {
                let (client, keys, bytes) = (client.clone(), keys.clone(), bytes.clone());
                readers.spawn(async move {
                    for _ in 0..40 {
                        let got = client.get(&keys, GetOptions::default(), soon()).await;
                        assert!(got.into_iter().all(|it| it.unwrap().bytes == bytes));
                    }
                });
            }
            nodes[0].take().unwrap().kill();
            while let Some(joined) = readers.join_next().await {
                joined.unwrap();
            }
            // The remaining node accepts puts.
            only(client.put(&[put(&key("new"))], soon()).await).unwrap();
            nodes[1].take().unwrap().kill();
            let got = only(client.get(&[key("k0")], GetOptions::default(), soon()).await);
            // Not found, once the kernel has told the master that the process has ended.
            assert!(matches!(got, Err(Error::NodeDown { .. } | Error::NotFound { .. })), "{got:?}");
        });
    }
}

pub(crate) fn stopped_node_fails_calls_in_time(runtime: &Runtime) {
    let master = runtime.block_on(start_master());
    let node = Process::start(&["node", &master.address().to_string(), "sleepy"]);
    runtime.block_on(async {
        let near = connect(&master, true).await;
        let far = connect(&master, false).await;
        let bytes = pattern(1 << 20);
        for client in [&near, &far] {
            only(client.put(&[Put::new(key("k"), &bytes)], soon()).await).unwrap();
        }
        node.stop();
        // Its memory is still mapped, with the stamps that validate it.
        assert!(only(near.get(&[key("k")], GetOptions::default(), soon()).await).unwrap().bytes == bytes);
        // Calls that need the node fail in time.
        let short = || Deadline::after(SHORT);
        for client in [&near, &far] {
            let error = only(client.put(&[Put::new(key("n"), &bytes)], short()).await).unwrap_err();
            assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
        }
        let error = only(far.get(&[key("k")], GetOptions::default(), short()).await).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
        // The master waits a little for the node; then its reply has all the time it needs.
        let waiting = Deadline::waiting(SHORT, LONG);
        let deleted = only(far.delete(&[key("k")], DeleteOptions::default(), waiting).await);
        assert_eq!(deleted, Err(Error::Unconfirmed { nodes: vec!["sleepy".to_owned()] }));

        node.go_on();
        let usage = || master.stat().nodes[0].usage;
        eventually("memory reserved meanwhile is released", || usage().granted == 0 && usage().objects == 0)
            .await;
        for client in [&near, &far] {
            only(client.put(&[Put::new(key("n"), &bytes)], soon()).await).unwrap();
        }
    });
}

/// Number of gets of objects with a copy on a stopped node. Each would miss its deadline if it waited for
/// that node.
const STOPPED_GETS: usize = 40;

/// Reads every object separately, then all together, and checks that no read writes to a buffer after its
/// call.
async fn read_around(client: &Client, objects: &[(Key, Vec<u8>)]) {
    let mut buffers: Vec<_> = objects.iter().map(|(_, bytes)| vec![0; bytes.len()]).collect();
    let deadline = || Deadline::after(LONG / 6);
    for turn in 0..STOPPED_GETS {
        let ((key, bytes), buffer) = (&objects[turn % objects.len()], &mut buffers[turn % objects.len()]);
        let into = GetInto::new(key.clone(), buffer);
        let fetched = only(client.get_into(&[into], GetOptions::default(), deadline()).await);
        assert_eq!(fetched.unwrap().len, bytes.len() as u64, "get {turn}");
        assert!(buffer == bytes, "get {turn}");
        buffer.fill(0xee);
    }
    let keys: Vec<_> = objects.iter().map(|(key, _)| key.clone()).collect();
    let got = client.get(&keys, GetOptions::default(), deadline()).await;
    assert!(got.into_iter().zip(objects).all(|(got, (_, bytes))| got.unwrap().bytes == *bytes));
    assert!(buffers.iter().flatten().all(|byte| *byte == 0xee), "a read wrote after its call");
}

/// Leases the sample and reads its tensors, one by one and together.
async fn read_sample(client: &Client, tensors: &[(&str, &[u8])]) {
    let deadline = || Deadline::after(LONG / 6);
    let lease = only(client.lease(&[(key("sample"), None)], "g", deadline()).await).unwrap();
    for (name, bytes) in tensors {
        assert!(only(lease.read(&[name], deadline()).await.unwrap()) == *bytes);
    }
    let names: Vec<_> = tensors.iter().map(|it| it.0).collect();
    let read = lease.read(&names, deadline()).await.unwrap();
    assert!(read.iter().zip(tensors).all(|(read, (_, bytes))| read == bytes));
}

pub(crate) fn reads_of_a_stopped_node_use_the_other_copy(runtime: &Runtime) {
    let master = runtime.block_on(start_master());
    let address = master.address().to_string();
    let nodes = ["left", "right"].map(|name| Process::start(&["node", &address, name]));
    runtime.block_on(async {
        // As from another host: every byte goes through a socket.
        let writer = connect(&master, false).await;
        let reader = connect(&master, false).await;
        let sizes = [100, 20_000, 1 << 20, 5 << 20];
        let object = |(at, len): (usize, &usize)| (key(format!("k{at}")), pattern(*len));
        let objects: Vec<_> = sizes.iter().enumerate().map(object).collect();
        for (key, bytes) in &objects {
            let options = PutOptions { replicas: 2, ..PutOptions::default() };
            let put = Put { options, ..Put::new(key.clone(), bytes) };
            assert_eq!(only(writer.put(&[put], soon()).await).unwrap().copies, 2);
        }
        let tensors: Vec<_> =
            ["a", "b", "c"].into_iter().zip(objects.iter().map(|it| it.1.as_slice())).collect();
        let options = PutOptions { replicas: 2, ..PutOptions::default() };
        let refs = tensors.iter().map(|(name, it)| TensorRef::new(*name, Dtype::U8, &[it.len() as u64], it));
        let sample = SamplePut { options, ..SamplePut::new(key("sample"), refs.collect()) };
        only(writer.put_samples(&[sample], SpaceWait::Never, soon()).await).unwrap();
        for client in [&writer, &reader] {
            read_around(client, &objects).await;
            read_sample(client, &tensors).await;
        }
        for node in &nodes {
            node.stop();
            let late = connect(&master, false).await;
            // One client knows the locations from its puts, one from its gets, one has no connection yet.
            for client in [&writer, &reader, &late] {
                let before = client.hedged_reads();
                read_around(client, &objects).await;
                let hedged = client.hedged_reads() - before;
                assert!(hedged < STOPPED_GETS as u64, "the slow node was used first {hedged} times");
                read_sample(client, &tensors).await;
            }
            node.go_on();
        }
        let hedged = writer.hedged_reads() + reader.hedged_reads();
        assert!(hedged > 0, "one of the two nodes was the first choice");
    });
    // A node that was slow still serves objects that only it holds.
    let [left, right] = nodes;
    left.kill();
    runtime.block_on(async {
        let reader = connect(&master, false).await;
        let got = only(reader.get(&[key("k2")], GetOptions::default(), soon()).await);
        assert!(got.unwrap().bytes == pattern(1 << 20));
    });
    right.kill();
}

/// More pending retires than one message holds.
const OWED: usize = OWED_PAGE_MAX + 2000;
/// Objects per batch of puts.
const BATCH: usize = 4096;

/// A node is stopped while most of its objects are deleted, and the master restarts: the node returns with
/// what is protected, and without what was deleted.
pub(crate) fn a_stopped_node_that_owes_many_retires(runtime: &Runtime) {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:@tiffin-client-test-owed-{}", std::process::id());
    let start = || Process::start(&["stateful", &address, folder.path().to_str().unwrap()]);
    let connect = async || Client::connect(ConnectOptions::new(address.clone())).await.unwrap();
    let master = start();
    let node = Process::start(&["large", &address, "sleepy"]);
    let options = PutOptions { replicas: 1, hard_pin: true, ..PutOptions::default() };
    let name =
        |number: usize| if number < OWED { format!("dead/{number}") } else { format!("kept/{number}") };
    let bytes = |number: usize| number.to_le_bytes();
    let all: Vec<(usize, [u8; 8])> = (0..OWED + 100).map(|it| (it, bytes(it))).collect();
    runtime.block_on(async {
        let client = connect().await;
        for batch in all.chunks(BATCH) {
            let puts = batch.iter().map(|(it, bytes)| Put::new(key(name(*it)), bytes));
            let puts: Vec<_> = puts.map(|it| Put { options: options.clone(), ..it }).collect();
            assert!(client.put(&puts, soon()).await.iter().all(Result::is_ok));
        }
        node.stop();
        let waiting = Deadline::waiting(SHORT, LONG);
        let dead = Pattern::Prefix(b"dead/".to_vec());
        let deleted = client.delete_matching(dead, DeleteOptions { force: true }, waiting).await.unwrap();
        assert_eq!((deleted.count, deleted.unconfirmed), (OWED as u64, vec!["sleepy".to_owned()]));
    });
    master.kill();
    let _master = start();
    node.go_on();
    runtime.block_on(async {
        let client = connect().await;
        let listed = client.list(Pattern::All, soon()).await.unwrap();
        assert_eq!(listed.len(), 100, "{:?}", listed.first());
        let keys: Vec<_> = all[OWED..].iter().map(|(it, _)| key(name(*it))).collect();
        let got = client.get(&keys, GetOptions::default(), soon()).await;
        assert!(got.into_iter().zip(&all[OWED..]).all(|(got, (_, bytes))| got.unwrap().bytes == *bytes));
        let dead = [key(name(0)), key(name(OWED - 1))];
        for deleted in client.delete(&dead, DeleteOptions::default(), soon()).await {
            assert_eq!(deleted, Ok(false));
        }
        // The last page is confirmed after the node serves.
        let until = Instant::now() + LONG;
        while client.stat(soon()).await.unwrap().nodes[0].owed > 0 {
            assert!(Instant::now() < until, "a retire is never confirmed");
            tokio::time::sleep(LOOK).await;
        }
    });
}

pub(crate) fn lost_copies_are_made_again(runtime: &Runtime) {
    let tier = TierConfig { repair_delay: Duration::ZERO, ..TierConfig::default() };
    let config = MasterConfig { tier, ..MasterConfig::default() };
    let master = runtime.block_on(MasterServer::start(config)).unwrap();
    let address = master.address().to_string();
    let mut nodes = ["a", "b", "c"].map(|name| Some(Process::start(&["node", &address, name])));
    runtime.block_on(async {
        let client = connect(&master, false).await;
        let bytes: Vec<_> = (0..12).map(|it| content_of(it, 0)).collect();
        let keys: Vec<_> = (0..12).map(|it| key(format!("k{it}"))).collect();
        for (number, (key, bytes)) in keys.iter().zip(&bytes).enumerate() {
            let options = PutOptions { replicas: 2, hard_pin: number % 2 == 0, ..PutOptions::default() };
            let put = Put { options, ..Put::new(key.clone(), bytes) };
            assert_eq!(only(client.put(&[put], soon()).await).unwrap().copies, 2);
        }
        // Each of the nodes is killed in turn but the last, and a read never fails: one copy is left each
        // time, and the other was made again.
        for (killed, node) in nodes.iter_mut().take(2).enumerate() {
            node.take().unwrap().kill();
            let wanted = if killed == 0 { 2 } else { 1 };
            loop {
                let got = client.get(&keys, GetOptions::default(), soon()).await;
                let got: Vec<_> = got.into_iter().map(|it| it.unwrap().bytes).collect();
                assert!(got == bytes, "the bytes of a copy are others");
                let whys = client.why(&keys, soon()).await;
                let copies = |why: &Result<Why, Error>| match why {
                    Ok(Why::Here(here)) => here.copies_there,
                    other => panic!("{other:?}"),
                };
                if whys.iter().all(|it| copies(it) == wanted) && master.stat().nodes.len() == 2 - killed {
                    break;
                }
            }
        }
        let whys = client.why(&keys[..1], soon()).await;
        let Ok(Why::Here(here)) = &whys[0] else { panic!("{whys:?}") };
        assert_eq!(
            (here.copies_wanted, here.copies_there, here.copy_wait),
            (2, 1, CopyWait::Node),
            "{here:?}"
        );
    });
}
