//! Clients that are killed or stopped.

use tiffin_client::{
    Acked, DeleteOptions, Dtype, Error, GetOptions, Put, PutOptions, ResolveOptions, SamplePut, SpaceWait,
    TensorRef, Way,
};
use tokio::runtime::Runtime;

use crate::support::{
    MEMORY, Process, SMALL, connect, eventually, key, only, pattern, small, soon, start_both, start_master,
};

pub(crate) fn processes_of_one_host_share_memory(runtime: &Runtime) {
    let master = runtime.block_on(start_master());
    let _node = Process::start(&["node", &master.address().to_string(), "far"]);
    runtime.block_on(async {
        let client = connect(&master, true).await;
        let bytes = pattern(3 << 20);
        only(client.put(&[Put::new(key("k"), &bytes)], soon()).await).unwrap();
        assert!(only(client.get(&[key("k")], GetOptions::default(), soon()).await).unwrap().bytes == bytes);
        let view = only(client.view(&[key("k")], soon()).await).unwrap();
        assert!(view.is_borrowed() && view.bytes().unwrap() == bytes);
        let counters = client.counters();
        assert_eq!((counters.shm.written(), counters.shm.read()), (3 << 20, 3 << 20));
        assert_eq!((counters.tcp.written(), counters.tcp.read()), (0, 0));
        let route = only(client.routes());
        assert_eq!((route.node.as_str(), route.way, route.why), ("far", Some(Way::SharedMemory), None));
    });
}

pub(crate) fn client_killed_between_reserve_and_commit(runtime: &Runtime) {
    let (master, node) = runtime.block_on(start_both());
    let reserver = Process::start(&["reserver", &master.address().to_string()]);
    assert_eq!(node.usage().granted, MEMORY / 2);
    reserver.kill();
    runtime.block_on(async {
        eventually("its memory is released", || master.stat().nodes[0].usage.granted == 0).await;
        let client = connect(&master, true).await;
        let bytes = pattern(MEMORY as usize / 2 + 1);
        only(client.put(&[Put::new(key("living"), &bytes)], soon()).await).unwrap();
        eventually("the killed client is forgotten", || node.client_count() == 1).await;
    });
}

pub(crate) fn client_killed_with_reserved_space(runtime: &Runtime) {
    let (master, node) = runtime.block_on(start_both());
    let hoarder = Process::start(&["hoarder", &master.address().to_string()]);
    runtime.block_on(async {
        assert_eq!(node.usage().granted, MEMORY);
        let client = connect(&master, true).await;
        let puts = [Put::new(key("living"), b"bytes")];
        let full = only(client.put(&puts, soon()).await).unwrap_err();
        assert!(matches!(full, Error::Full { .. }), "{full:?}");
        hoarder.kill();
        only(client.put_with(&puts, SpaceWait::UntilDeadline, soon()).await).unwrap();
        eventually("the killed client is forgotten", || node.client_count() == 1).await;
    });
}

pub(crate) fn clients_killed_under_load(runtime: &Runtime) {
    let (master, node) = runtime.block_on(start_both());
    for _ in 0..4 {
        let address = master.address().to_string();
        let putters = [(); 2].map(|()| Process::start(&["putter", &address]));
        putters.into_iter().for_each(Process::kill);
        runtime.block_on(async {
            let settled = || node.client_count() == 0 && node.usage().granted + node.usage().held == 0;
            eventually("only objects are left", settled).await;
            let client = connect(&master, true).await;
            let keys = [key("load/a"), key("load/b")];
            let infos = client.resolve(&keys, ResolveOptions::default(), soon()).await;
            let live: u64 = infos.into_iter().flatten().flatten().map(|it| it.len).sum();
            assert_eq!(node.usage().committed, live);
            client.close(soon()).await.unwrap();
        });
    }
}

/// A client with preallocated memory is stopped at any moment. Others get all of that memory, except what
/// it is just writing, before anything is evicted. When it continues it writes nowhere else.
pub(crate) fn stopped_client_keeps_no_preallocated_memory(runtime: &Runtime) {
    const ROUNDS: usize = 5;
    let (master, node) = runtime.block_on(start_both());
    let mut child = Process::start(&["small-putter", &master.address().to_string()]);
    let client = runtime.block_on(connect(&master, true));
    let options = PutOptions { hard_pin: true, ..PutOptions::default() };
    let put = async |number: usize| {
        let bytes = small(number);
        let put = Put { options: options.clone(), ..Put::new(key(format!("pinned/{number}")), &bytes) };
        only(client.put(&[put], soon()).await)
    };
    for round in 0..ROUNDS {
        loop {
            runtime.block_on(eventually("memory is preallocated", || node.usage().offered > 0));
            child.stop();
            // Its last messages have been received.
            runtime.block_on(async { assert!(client.stat(soon()).await.is_ok()) });
            if node.usage().offered > 8 * SMALL {
                break;
            }
            child.go_on();
        }
        runtime.block_on(async {
            let before = node.usage();
            // Few offers are claimed: those that were written when it was stopped. Records and keys use
            // memory.
            let metadata_max = 16 * SMALL;
            let without_eviction =
                (before.free.saturating_sub(metadata_max) / SMALL).saturating_sub(4) as usize;
            let mut count = 0;
            while count < without_eviction {
                put(count).await.unwrap();
                count += 1;
            }
            let usage = node.usage();
            assert!(usage.objects >= before.objects + count as u64, "{round}: {before:?} {usage:?}");
            let full = loop {
                match put(count).await {
                    Ok(_) => count += 1,
                    Err(error) => break error,
                }
            };
            assert!(matches!(full, Error::Full { .. }), "{full:?}");
            let usage = node.usage();
            assert!(usage.offered == 0 && usage.free < SMALL && usage.granted <= 2 * SMALL, "{usage:?}");
            let sum = count as u64 * SMALL + usage.granted + usage.metadata + usage.free;
            assert_eq!(sum, MEMORY, "{usage:?}");
            child.go_on();
            for number in (0..count).chain(0..count) {
                let name = [key(format!("pinned/{number}"))];
                let got = only(client.get(&name, GetOptions::default(), soon()).await).unwrap();
                assert!(got.bytes == small(number), "round {round}: other bytes than were put");
            }
            let names: Vec<_> = (0..count).map(|it| key(format!("pinned/{it}"))).collect();
            let deleted = client.delete(&names, DeleteOptions { force: true }, soon()).await;
            assert!(deleted.iter().all(|it| *it == Ok(true)), "{deleted:?}");
        });
    }
    assert!(!child.has_ended(), "the stopped client has failed");
}

pub(crate) fn client_killed_with_a_view(runtime: &Runtime) {
    let (master, node) = runtime.block_on(start_both());
    let bytes = pattern(1 << 20);
    let client = runtime.block_on(async {
        let client = connect(&master, true).await;
        only(client.put(&[Put::new(key("seen"), &bytes)], soon()).await).unwrap();
        client
    });
    let viewer = Process::start(&["viewer", &master.address().to_string(), "seen"]);
    runtime.block_on(async {
        let deleted = client.delete(&[key("seen")], DeleteOptions::default(), soon()).await;
        assert_eq!(deleted, [Ok(true)]);
        assert_eq!(node.usage().held, 1 << 20);
        viewer.kill();
        eventually("its view ends", || node.usage().held == 0).await;
    });
}

pub(crate) fn consumer_killed_with_its_lease(runtime: &Runtime) {
    let (master, node) = runtime.block_on(start_both());
    let bytes = pattern(1 << 20);
    let stat = || master.stat().namespaces.remove(0);
    let (client, stored) = runtime.block_on(async {
        let client = connect(&master, true).await;
        let tensors = vec![TensorRef::new("t", Dtype::U8, &[1 << 20], &bytes)];
        let samples = [SamplePut::new(key("s"), tensors)];
        let stored = only(client.put_samples(&samples, SpaceWait::Never, soon()).await).unwrap();
        (client, stored)
    });
    let consumer = Process::start(&["consumer", &master.address().to_string(), "s"]);
    assert_eq!((stat().samples, stat().samples_leased), (1, 1));
    consumer.kill();
    runtime.block_on(async {
        eventually("its lease ends", || stat().samples_leased == 0).await;
        let lease = only(client.lease(&[(key("s"), Some(stored.generation))], "g", soon()).await).unwrap();
        assert!(lease.read(&["t"], soon()).await.unwrap()[0] == bytes);
        let acked = client.ack(&[(key("s"), stored.generation)], "g", soon()).await;
        assert_eq!(acked, [Ok(Acked::Freed)]);
        eventually("nothing of the killed client is held", || node.usage().free == MEMORY).await;
    });
}
