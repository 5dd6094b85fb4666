//! Restarts of the master, with nodes that are late, and without its state folder.

use std::path::Path;
use std::time::Duration;

use tiffin_client::{
    Acked, Client, ConnectOptions, Deadline, DeleteOptions, Demotion, Dtype, Error, GetOptions, OnExists,
    PolicyChange, Put, PutOptions, ResolveOptions, SamplePut, SpaceWait, TensorRef,
};
use tokio::runtime::Runtime;
use tokio::time::Instant;

use crate::support::{LONG, LOOK, Process, content_of, key, only, pattern, soon};

/// A pinned object on a node of that name.
fn pinned_on<'a>(name: &str, node: &str, bytes: &'a [u8]) -> Put<'a> {
    let preferred = vec![node.into()];
    let options = PutOptions { replicas: 1, preferred, hard_pin: true, ..PutOptions::default() };
    Put { options, ..Put::new(key(name), bytes) }
}

/// Asserts that the result is not known yet, and that the message names the unreported node.
fn assert_unavailable<T: std::fmt::Debug>(result: Result<T, Error>, node: &str) {
    match result {
        Err(Error::Unavailable { what }) => assert!(what.ends_with(&format!("waiting for {node}")), "{what}"),
        other => panic!("{other:?}"),
    }
}

pub(crate) fn master_restarted_before_its_nodes(runtime: &Runtime) {
    let folder = tempfile::tempdir().unwrap();
    let address = format!("unix:@tiffin-client-test-late-{}", std::process::id());
    let start = || Process::start(&["stateful", &address, folder.path().to_str().unwrap()]);
    let connect = async || Client::connect(ConnectOptions::new(address.clone())).await.unwrap();
    let master = start();
    let nodes = ["early", "late"].map(|name| Process::start(&["node", &address, name]));
    let bytes = pattern(1 << 10);
    let sample = runtime.block_on(async {
        let client = connect().await;
        for node in ["early", "late"] {
            only(client.put(&[pinned_on(&format!("on {node}"), node, &bytes)], soon()).await).unwrap();
            only(client.put(&[pinned_on(&format!("dead {node}"), node, &bytes)], soon()).await).unwrap();
        }
        let limits = PolicyChange::NONE.quota(Some(8 << 20)).max_hold_ms(Some(3_600_000));
        client.set_policy(limits, soon()).await.unwrap();
        let tensors = vec![TensorRef::new("t", Dtype::U8, &[1 << 10], &bytes)];
        let samples = [SamplePut::new(key("sample"), tensors)];
        only(client.put_samples(&samples, SpaceWait::Never, soon()).await).unwrap()
    });
    nodes[1].stop();
    master.kill();
    let master = start();
    runtime.block_on(async {
        let client = connect().await;
        let unreported = async || client.stat(soon()).await.unwrap().unreported;
        while unreported().await != ["late"] {
            tokio::time::sleep(LOOK).await;
        }
        let short = || Deadline::after(Duration::from_secs(8));
        let keep = PutOptions { replicas: 1, on_exists: OnExists::Keep, ..PutOptions::default() };
        let keep = [Put { options: keep, ..Put::new(key("on late"), &bytes) }];
        let (on_early, on_late) = ([key("on early")], [key("on late")]);
        let acks = [(key("sample"), sample.generation)];
        let (got, known, there, deleted, kept, acked) = tokio::join!(
            client.get(&on_late, GetOptions::default(), short()),
            client.get(&on_early, GetOptions::default(), short()),
            client.exists(&on_late, ResolveOptions::default(), short()),
            client.delete(&on_late, DeleteOptions::default(), short()),
            client.put(&keep, short()),
            client.ack(&acks, "g", short()),
        );
        assert_unavailable(only(got), "late");
        assert_unavailable(only(known), "late");
        assert_unavailable(only(there), "late");
        assert_unavailable(only(deleted), "late");
        assert_unavailable(only(kept), "late");
        assert_unavailable(only(acked), "late");
        // An object put now is the newest of its name, whatever the other node holds.
        only(client.put(&[pinned_on("new", "early", &bytes)], soon()).await).unwrap();
        assert!(only(client.get(&[key("new")], GetOptions::default(), soon()).await).unwrap().bytes == bytes);

        let victims = [key("dead early"), key("dead late")];
        let (deleted, acked, ()) = tokio::join!(
            client.delete(&victims, DeleteOptions::default(), soon()),
            client.ack(&acks, "g", soon()),
            async { nodes[1].go_on() },
        );
        assert_eq!(deleted, [Ok(true), Ok(true)]);
        assert_eq!(acked, [Ok(Acked::Freed)]);
    });
    master.kill();
    let _master = start();
    runtime.block_on(async {
        let client = connect().await;
        for (name, there) in [
            ("on early", true),
            ("on late", true),
            ("new", true),
            ("dead early", false),
            ("dead late", false),
            ("sample", false),
        ] {
            let exists = client.exists(&[key(name)], ResolveOptions::default(), soon()).await;
            assert_eq!(exists, [Ok(there)], "{name}");
        }
        let stat = client.stat(soon()).await.unwrap();
        let limits = stat.namespaces.iter().find(|it| it.name == "default").unwrap();
        assert_eq!((limits.quota, limits.max_hold_ms), (Some(8 << 20), Some(3_600_000)));
    });
}

pub(crate) fn master_restarted_without_its_state_folder(runtime: &Runtime) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let address = format!("unix:@tiffin-client-test-stateless-{}", std::process::id());
    let connect = async || Client::connect(ConnectOptions::new(address.clone())).await.unwrap();
    let mut master = Process::start(&["stateful", &address, &path("state 0")]);
    let memory = Process::start(&["node", &address, "memory"]);
    let disk = Process::start(&["disk", &address, &path("log")]);
    let names: Vec<_> = (0..100).map(|it| (it, ["memory", "shelf"][it % 2], format!("k{it}"))).collect();
    let put_sample = async |client: &Client| {
        let tensors = vec![TensorRef::new("t", Dtype::U8, &[3], b"abc")];
        let sample = [SamplePut::new(key("s"), tensors)];
        only(client.put_samples(&sample, SpaceWait::Never, soon()).await).unwrap().generation
    };
    let mut generations = runtime.block_on(async {
        let client = connect().await;
        client.set_policy(PolicyChange::NONE.demotion(Some(Demotion::WriteThrough)), soon()).await.unwrap();
        for (it, node, name) in &names {
            let bytes = content_of(*it, 0);
            let put = [pinned_on(name, node, bytes.get(..20 << 10).unwrap())];
            only(client.put_with(&put, SpaceWait::UntilDeadline, soon()).await).unwrap();
        }
        vec![put_sample(&client).await]
    });
    // Twice within a minute, so that the clock gives the epoch that the nodes have served.
    for round in 1..3 {
        master.kill();
        master = Process::start(&["stateful", &address, &path(&format!("state {round}"))]);
        runtime.block_on(async {
            let client = connect().await;
            let mut left: Vec<_> = names.iter().collect();
            let until = Instant::now() + LONG;
            // A master that knows no member replies before the nodes have joined.
            while !left.is_empty() {
                assert!(Instant::now() < until, "{} of 100 pinned objects are lost", left.len());
                tokio::time::sleep(LOOK).await;
                let keys: Vec<_> = left.iter().map(|it| key(&it.2)).collect();
                let got = client.get(&keys, GetOptions::default(), soon()).await;
                let mut got = got.into_iter();
                left.retain(|(it, ..)| match got.next().unwrap() {
                    Ok(object) => {
                        assert!(object.bytes == content_of(*it, 0)[..20 << 10], "k{it}: other bytes");
                        false
                    }
                    Err(_) => true,
                });
            }
            let generation = put_sample(&client).await;
            assert!(generations.iter().all(|it| *it < generation), "{generation} after {generations:?}");
            for old in &generations {
                let leased = only(client.lease(&[(key("s"), Some(*old))], "g", soon()).await);
                assert!(matches!(leased, Err(Error::Superseded { .. })), "an old ref gives {leased:?}");
            }
            generations.push(generation);
        });
    }
    // The disk still has its copies after its process and the master have restarted.
    disk.kill();
    let _disk = Process::start(&["disk", &address, &path("log")]);
    runtime.block_on(async {
        let client = connect().await;
        let (it, _, name) = &names[1];
        let got = only(client.get(&[key(name)], GetOptions::default(), soon()).await).unwrap();
        assert!(got.bytes == content_of(*it, 0)[..20 << 10]);
    });
    drop((master, memory));
}

/// The state folder is restored from an old copy while the only node with the old value of a key is stopped:
/// the epoch does not go back, and the old value does not replace the newer one.
pub(crate) fn a_master_with_an_old_state_folder(runtime: &Runtime) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| folder.path().join(name);
    let address = format!("unix:@tiffin-client-test-old-{}", std::process::id());
    let start = || Process::start(&["stateful", &address, path("state").to_str().unwrap()]);
    let connect = async || Client::connect(ConnectOptions::new(address.clone())).await.unwrap();
    let (older, newer) = (pattern(1 << 10), pattern(1 << 11));
    let mut master = start();
    let nodes = ["late", "early"].map(|name| Process::start(&["node", &address, name]));
    let put = async |client: &Client, node: &str, bytes: &[u8], deadline| {
        only(client.put(&[pinned_on("k", node, bytes)], deadline).await).unwrap()
    };
    let first = runtime.block_on(async { put(&connect().await, "late", &older, soon()).await });
    copy_folder(&path("state"), &path("copy"));
    for _ in 0..2 {
        master.kill();
        master = start();
        // A lookup is answered when both nodes have reported.
        let got = async {
            let client = connect().await;
            only(client.get(&[key("k")], GetOptions::default(), soon()).await)
        };
        assert!(runtime.block_on(got).unwrap().bytes == older);
    }
    nodes[0].stop();
    let (second, epoch) = runtime.block_on(async {
        let client = connect().await;
        // The master waits a little for the node, and then its answer has all the time it needs.
        let waiting = Deadline::waiting(Duration::from_millis(300), LONG);
        (put(&client, "early", &newer, waiting).await, client.stat(soon()).await.unwrap().epoch)
    });
    // The master withdraws the old copy itself, in the memory of its host.
    assert!(second.unconfirmed.is_empty(), "{:?}", second.unconfirmed);
    assert!(second.generation > first.generation);
    master.kill();
    std::fs::remove_dir_all(path("state")).unwrap();
    copy_folder(&path("copy"), &path("state"));
    let _master = start();
    runtime.block_on(async {
        let client = connect().await;
        // A master with an old epoch is not served, so it continues with a later one.
        let until = Instant::now() + LONG;
        while client.stat(soon()).await.map_or(0, |it| it.epoch) <= epoch {
            assert!(Instant::now() < until, "the epoch went back");
            tokio::time::sleep(LOOK).await;
        }
        nodes[0].go_on();
        let far = ConnectOptions { shared_memory: false, ..ConnectOptions::new(address.clone()) };
        let clients = [connect().await, Client::connect(far).await.unwrap()];
        loop {
            assert!(Instant::now() < until, "the nodes did not return");
            let stat = client.stat(soon()).await.unwrap();
            if stat.unreported.is_empty() && stat.nodes.iter().filter(|it| it.alive).count() == 2 {
                break;
            }
            tokio::time::sleep(LOOK).await;
        }
        for client in &clients {
            let got = only(client.get(&[key("k")], GetOptions::default(), soon()).await).unwrap();
            assert!(got.bytes == newer && got.generation == second.generation, "{got:?}");
        }
    });
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}
