//! Nodes with disks that are killed, or whose disk fails.

use std::collections::BTreeMap;

use tiffin_client::{Ahead, DeleteOptions, Error, GetOptions, Put, SpaceWait};
use tokio::runtime::Runtime;

use crate::support::{Process, connect, content_of, key, only, soon, start_master};

/// How often a node is killed in a normal test run. `processes kill 1000` does it more often.
const KILLS: usize = 6;
/// Objects that are put, read, deleted and promoted between two kills.
const STEPS: usize = 150;

pub(crate) fn node_killed_with_its_disk(runtime: &Runtime) {
    kill_with_disk(runtime, KILLS);
}

/// Kills a node repeatedly while objects are demoted and promoted. Afterwards every key has its bytes or is
/// absent, and deleted objects stay deleted.
pub(crate) fn kill_with_disk(runtime: &Runtime, times: usize) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let folder = folder.path().join("log").to_str().unwrap().to_owned();
    let master = runtime.block_on(start_master());
    let address = master.address().to_string();
    // For each key, its last acknowledged put; none if its deletion was acknowledged.
    let mut model: BTreeMap<usize, Option<usize>> = BTreeMap::new();
    let (mut puts, mut recovered, mut absent) = (0, 0, 0);
    for round in 0..times {
        let node = Process::start(&["disk", &address, &folder]);
        runtime.block_on(async {
            let client = connect(&master, round % 2 == 0).await;
            for (it, state) in &mut model {
                let got = only(client.get(&[key(format!("k{it}"))], GetOptions::default(), soon()).await);
                match (&state, got) {
                    (Some(put), Ok(object)) => {
                        assert!(object.bytes == content_of(*it, *put), "round {round}, k{it}: other bytes");
                        recovered += 1;
                    }
                    // The process ended before the disk had the object; the master may wait for the node.
                    (Some(_), Err(Error::NotFound { .. } | Error::NodeDown { .. })) => {
                        (*state, absent) = (None, absent + 1);
                    }
                    (None, Err(Error::NotFound { .. } | Error::NodeDown { .. })) => {}
                    (state, got) => {
                        panic!("round {round}, k{it}: {state:?} {:?}", got.map(|it| it.bytes.len()))
                    }
                }
            }
            for step in 0..STEPS {
                let it = (step * 7 + round * 13) % 60;
                let name = key(format!("k{it}"));
                match step % 5 {
                    4 => {
                        let deleted = only(client.delete(&[name], DeleteOptions::default(), soon()).await);
                        assert!(matches!(deleted, Ok(_) | Err(Error::Unconfirmed { .. })), "{deleted:?}");
                        model.insert(it, None);
                    }
                    3 => _ = client.prefetch(&[name], Ahead::All, soon()).await,
                    _ => {
                        puts += 1;
                        let bytes = content_of(it, puts);
                        let put = [Put::new(name, &bytes)];
                        only(client.put_with(&put, SpaceWait::UntilDeadline, soon()).await).unwrap();
                        model.insert(it, Some(puts));
                    }
                }
            }
        });
        node.kill();
    }
    println!("{times} kills: {recovered} objects were found afterwards, {absent} were not");
    assert!(recovered > 0, "no object survived");
}

/// A disk that rejects writes, within the space allocated for it: it leaves, with a reason in the log, and
/// memory keeps working. With a quota or a limit, the kernel returns the error to the write itself.
pub(crate) fn disk_that_rejects_writes_leaves(runtime: &Runtime) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let folder = folder.path().join("log").to_str().unwrap().to_owned();
    let master = runtime.block_on(start_master());
    let address = master.address().to_string();
    // Without a limit, the space is allocated.
    Process::start(&["disk", &address, &folder]).kill();
    // In units of 512 bytes. The signal is ignored, because it would hide the error.
    let limited = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", (30 << 20) / 512);
    let _node = Process::wrapped(&["sh", "-c", &limited], &["disk", &address, &folder]);
    runtime.block_on(async {
        let client = connect(&master, false).await;
        let is_disk_there = async || {
            let stat = client.stat(soon()).await.unwrap();
            stat.nodes.iter().any(|it| it.info.beside.is_some() && it.alive)
        };
        assert!(is_disk_there().await);
        let mut puts = 0;
        while is_disk_there().await {
            puts += 1;
            let bytes = content_of(puts, puts);
            let put = [Put::new(key(format!("p{puts}")), &bytes)];
            only(client.put_with(&put, SpaceWait::UntilDeadline, soon()).await).unwrap();
        }
        assert!(puts * (96 << 10) > 16 << 20, "it stored only {puts} objects");
        for more in puts + 1..puts + 200 {
            let (name, bytes) = (key(format!("p{more}")), content_of(more, more));
            let put = [Put::new(name.clone(), &bytes)];
            only(client.put_with(&put, SpaceWait::UntilDeadline, soon()).await).unwrap();
            let got = only(client.get(&[name], GetOptions::default(), soon()).await).unwrap();
            assert!(got.bytes == bytes);
        }
    });
}
