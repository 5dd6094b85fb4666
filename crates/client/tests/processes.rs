//! What needs processes of its own: memory that is really shared, and parties that are really killed.
//!
//! The binary starts itself again with a role as its first argument; a child says one line when it is
//! ready, and ends when its parent does.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "all of it is a test"
)]

use std::collections::BTreeMap;
use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tiffin_client::{
    Acked, Ahead, Client, ConnectOptions, Deadline, DeleteOptions, Dtype, Error, GetOptions, Key, Patience,
    Put, PutOptions, ResolveOptions, Room, SamplePut, TensorRef, Way,
};
use tiffin_core::message::{Hello, Reply, Request, Reserve, ReserveItem, ReserveOutcome};
use tiffin_rpc::Connection;
use tiffin_server::{MasterConfig, MasterServer, NodeConfig, NodeServer};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Longer than anything here takes, on any machine.
const LONG: Duration = Duration::from_secs(60);
/// Short, for those who will not answer.
const SHORT: Duration = Duration::from_millis(300);
/// How often a state is looked at that nobody tells about.
const LOOK: Duration = Duration::from_millis(2);
const MEMORY: u64 = 16 << 20;

type Test = (&'static str, fn(&Runtime));

const TESTS: [Test; 11] = [
    ("processes_of_one_host_share_memory", processes_of_one_host_share_memory),
    ("a_client_killed_between_reserve_and_commit", a_client_killed_between_reserve_and_commit),
    ("a_client_killed_with_room_reserved_ahead", a_client_killed_with_room_reserved_ahead),
    ("clients_killed_under_load", clients_killed_under_load),
    ("a_client_killed_while_it_looks", a_client_killed_while_it_looks),
    ("a_consumer_killed_with_its_lease", a_consumer_killed_with_its_lease),
    ("a_node_killed_under_its_readers", a_node_killed_under_its_readers),
    ("a_node_that_is_stopped", a_node_that_is_stopped),
    ("a_node_killed_with_its_disk", a_node_killed_with_its_disk),
    ("a_node_whose_disk_takes_no_more", a_node_whose_disk_takes_no_more),
    ("a_master_killed_under_puts", a_master_killed_under_puts),
];

fn main() {
    let runtime = Runtime::new().unwrap();
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["master", address] => runtime.block_on(be_master(address)),
        ["node", master, name] => runtime.block_on(be_node(master, name)),
        ["disk", master, folder] => runtime.block_on(be_node_with_disk(master, folder)),
        // Not a role but the long run of a test, by hand.
        ["kill", times] => kill_with_disk(&runtime, times.parse().unwrap()),
        ["reserver", master] => runtime.block_on(be_reserver(master)),
        ["hoarder", master] => runtime.block_on(be_hoarder(master)),
        ["putter", master] => runtime.block_on(be_putter(master)),
        ["viewer", master, name] => runtime.block_on(be_viewer(master, name)),
        ["consumer", master, name] => runtime.block_on(be_consumer(master, name)),
        // What `cargo test` and its relatives may pass: a name to filter by, and flags.
        // None of them is ignored, and whoever asks for the ignored ones must hear so, or takes all for such.
        ref rest if rest.contains(&"--list") && rest.contains(&"--ignored") => {}
        ref rest if rest.contains(&"--list") => list(),
        ref rest => run(rest.iter().find(|it| !it.starts_with('-')).copied().unwrap_or("")),
    }
}

fn list() {
    TESTS.iter().for_each(|(name, _)| println!("{name}: test"));
}

fn run(filter: &str) {
    for (name, test) in TESTS.iter().filter(|(name, _)| name.contains(filter)) {
        // A runtime of its own for each, which takes everything down that the test started.
        let runtime = Runtime::new().unwrap();
        test(&runtime);
        println!("test {name} ... ok");
    }
}

// The roles of children.

async fn be_master(address: &str) {
    let config = MasterConfig { listen: vec![address.parse().unwrap()], ..MasterConfig::default() };
    let _master = MasterServer::start(config).await.unwrap();
    ready_until_parent_ends();
}

async fn be_node(master: &str, name: &str) {
    let config = NodeConfig {
        master: master.parse().unwrap(),
        memory: MEMORY,
        name: name.to_owned(),
        ..NodeConfig::default()
    };
    let node = NodeServer::start(config).await.unwrap();
    node.joined(Instant::now() + LONG).await.unwrap();
    ready_until_parent_ends();
}

/// A node whose memory is small beside its disk.
async fn be_node_with_disk(master: &str, folder: &str) {
    let config = NodeConfig {
        master: master.parse().unwrap(),
        memory: MEMORY / 4,
        name: "shelf".to_owned(),
        ssd: vec![format!("path={folder},size=128MiB").parse().unwrap()],
        ..NodeConfig::default()
    };
    let node = NodeServer::start(config).await.unwrap();
    node.joined(Instant::now() + LONG).await.unwrap();
    ready_until_parent_ends();
}

/// A client that has reserved and mapped, and neither writes nor commits.
async fn be_reserver(master: &str) {
    let client = Client::connect(ConnectOptions::new(master)).await.unwrap();
    // Introduces itself to the node, and maps its memory.
    only(client.put(&[Put::new(key("of the dead"), b"small")], soon()).await).unwrap();
    // The rest of a put would follow at once, so this asks for room the way that a put does.
    let hello = Hello { client: client.id(), namespace: "default".to_owned(), ..Hello::default() };
    let (connection, _) =
        Connection::open(&master.parse().unwrap(), hello, Instant::now() + LONG).await.unwrap();
    let options = PutOptions { replicas: 1, ..PutOptions::default() };
    let items = vec![ReserveItem { key: key("never"), len: MEMORY / 2, options }];
    let request = Request::Reserve(Reserve { items, ..Reserve::default() });
    let reply = connection.call(&request, Instant::now() + LONG).await.unwrap();
    let Reply::Reserved(reserved) = reply else { panic!("{reply:?}") };
    assert!(matches!(reserved.items[..], [ReserveOutcome::Room(_)]), "{reserved:?}");
    ready_until_parent_ends();
}

/// A client that has all room reserved, and never has anything to put into it.
async fn be_hoarder(master: &str) {
    let client = Client::connect(ConnectOptions::new(master)).await.unwrap();
    let rooms = [Room::new(key("never"), MEMORY)];
    let _reserved = only(client.reserve(&rooms, Patience::Never, soon()).await).unwrap();
    ready_until_parent_ends();
}

async fn be_putter(master: &str) {
    let client = Client::connect(ConnectOptions::new(master)).await.unwrap();
    let bytes = vec![1; 1 << 20];
    for round in 0.. {
        let puts = [Put::new(key("load/a"), &bytes), Put::new(key("load/b"), &bytes)];
        client.put(&puts, soon()).await.into_iter().for_each(|it| assert!(it.is_ok(), "{it:?}"));
        if round == 0 {
            ready();
        }
    }
}

async fn be_viewer(master: &str, name: &str) {
    let client = Client::connect(ConnectOptions::new(master)).await.unwrap();
    let view = only(client.view(&[key(name)], soon()).await).unwrap();
    assert!(view.is_borrowed());
    ready_until_parent_ends();
}

/// A consumer that has leased and looks, and never acknowledges.
async fn be_consumer(master: &str, name: &str) {
    let client = Client::connect(ConnectOptions::new(master)).await.unwrap();
    let lease = only(client.lease(&[(key(name), None)], "g", soon()).await).unwrap();
    let view = only(client.view(&[key(name)], soon()).await).unwrap();
    assert!(view.is_borrowed() && !lease.is_released());
    ready_until_parent_ends();
}

fn ready() {
    println!("ready");
    io::stdout().flush().unwrap();
}

fn ready_until_parent_ends() {
    ready();
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

// The tests.

fn processes_of_one_host_share_memory(runtime: &Runtime) {
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

fn a_client_killed_between_reserve_and_commit(runtime: &Runtime) {
    let (master, node) = runtime.block_on(start_both());
    let reserver = Process::start(&["reserver", &master.address().to_string()]);
    assert_eq!(node.usage().granted, MEMORY / 2);
    reserver.kill();
    runtime.block_on(async {
        eventually("its room comes back", || master.stat().nodes[0].usage.granted == 0).await;
        let client = connect(&master, true).await;
        let bytes = pattern(MEMORY as usize / 2 + 1);
        only(client.put(&[Put::new(key("living"), &bytes)], soon()).await).unwrap();
        eventually("the dead one is forgotten", || node.client_count() == 1).await;
    });
}

fn a_client_killed_with_room_reserved_ahead(runtime: &Runtime) {
    let (master, node) = runtime.block_on(start_both());
    let hoarder = Process::start(&["hoarder", &master.address().to_string()]);
    runtime.block_on(async {
        assert_eq!(node.usage().granted, MEMORY);
        let client = connect(&master, true).await;
        let puts = [Put::new(key("living"), b"bytes")];
        let full = only(client.put(&puts, soon()).await).unwrap_err();
        assert!(matches!(full, Error::Full { .. }), "{full:?}");
        hoarder.kill();
        only(client.put_with(&puts, Patience::UntilDeadline, soon()).await).unwrap();
        eventually("the dead one is forgotten", || node.client_count() == 1).await;
    });
}

fn clients_killed_under_load(runtime: &Runtime) {
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

fn a_client_killed_while_it_looks(runtime: &Runtime) {
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

fn a_consumer_killed_with_its_lease(runtime: &Runtime) {
    let (master, node) = runtime.block_on(start_both());
    let bytes = pattern(1 << 20);
    let stat = || master.stat().namespaces.remove(0);
    let (client, stored) = runtime.block_on(async {
        let client = connect(&master, true).await;
        let tensors = vec![TensorRef::new("t", Dtype::U8, &[1 << 20], &bytes)];
        let samples = [SamplePut::new(key("s"), tensors)];
        let stored = only(client.put_samples(&samples, Patience::Never, soon()).await).unwrap();
        (client, stored)
    });
    let consumer = Process::start(&["consumer", &master.address().to_string(), "s"]);
    assert_eq!((stat().samples, stat().samples_leased), (1, 1));
    consumer.kill();
    runtime.block_on(async {
        eventually("its lease comes back", || stat().samples_leased == 0).await;
        let lease = only(client.lease(&[(key("s"), Some(stored.generation))], "g", soon()).await).unwrap();
        assert!(lease.read(&["t"], soon()).await.unwrap()[0] == bytes);
        let acked = client.ack(&[(key("s"), stored.generation)], "g", soon()).await;
        assert_eq!(acked, [Ok(Acked::Freed)]);
        eventually("nothing of the dead one is held", || node.usage().free == MEMORY).await;
    });
}

fn a_node_killed_under_its_readers(runtime: &Runtime) {
    for shared_memory in [true, false] {
        let master = runtime.block_on(start_master());
        let address = master.address().to_string();
        let mut nodes = ["left", "right"].map(|name| Some(Process::start(&["node", &address, name])));
        runtime.block_on(async {
            let client = connect(&master, shared_memory).await;
            let bytes = pattern(1 << 20);
            let options = PutOptions { replicas: 2, ..PutOptions::default() };
            let keys: Vec<_> = (0..8).map(|it| key(&format!("k{it}"))).collect();
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
            // The one that is left takes puts.
            only(client.put(&[put(&key("new"))], soon()).await).unwrap();
            nodes[1].take().unwrap().kill();
            let got = only(client.get(&[key("k0")], GetOptions::default(), soon()).await);
            assert!(matches!(got, Err(Error::NodeDown { .. })), "{got:?}");
        });
    }
}

/// How often a node is killed whenever tests are run. `processes kill 1000` does it more often.
const KILLS: usize = 6;
/// Objects that are put, read, deleted and brought back between two kills.
const STEPS: usize = 150;

fn a_node_killed_with_its_disk(runtime: &Runtime) {
    kill_with_disk(runtime, KILLS);
}

/// Kills a node again and again while objects go to its disk and come back: every key has its bytes
/// afterwards, or is absent; and what was deleted stays so.
fn kill_with_disk(runtime: &Runtime, times: usize) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let folder = folder.path().join("log").to_str().unwrap().to_owned();
    let master = runtime.block_on(start_master());
    let address = master.address().to_string();
    // For each key, which put of it was acknowledged last; nothing if its deletion was.
    let mut model: BTreeMap<usize, Option<usize>> = BTreeMap::new();
    let (mut puts, mut recovered, mut absent) = (0, 0, 0);
    for round in 0..times {
        let node = Process::start(&["disk", &address, &folder]);
        runtime.block_on(async {
            let client = connect(&master, round % 2 == 0).await;
            for (it, state) in &mut model {
                let got = only(client.get(&[key(&format!("k{it}"))], GetOptions::default(), soon()).await);
                match (&state, got) {
                    (Some(put), Ok(object)) => {
                        assert!(object.bytes == shelved(*it, *put), "round {round}, k{it}: other bytes");
                        recovered += 1;
                    }
                    // Its memory died with the process before the disk had it; the master may wait for that.
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
                let name = key(&format!("k{it}"));
                match step % 5 {
                    4 => {
                        let deleted = only(client.delete(&[name], DeleteOptions::default(), soon()).await);
                        assert!(matches!(deleted, Ok(_) | Err(Error::Unconfirmed { .. })), "{deleted:?}");
                        model.insert(it, None);
                    }
                    3 => _ = client.prefetch(&[name], Ahead::All, soon()).await,
                    _ => {
                        puts += 1;
                        let bytes = shelved(it, puts);
                        let put = [Put::new(name, &bytes)];
                        only(client.put_with(&put, Patience::UntilDeadline, soon()).await).unwrap();
                        model.insert(it, Some(puts));
                    }
                }
            }
        });
        node.kill();
    }
    println!("{times} kills: {recovered} objects were there afterwards, {absent} were not");
    assert!(recovered > 0, "no object survived");
}

/// A disk that takes no more, in the middle of what had been set aside for it: it leaves, with a reason in
/// the log, and memory goes on. Where a quota or a limit says no, the kernel says so to the write itself.
fn a_node_whose_disk_takes_no_more(runtime: &Runtime) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let folder = folder.path().join("log").to_str().unwrap().to_owned();
    let master = runtime.block_on(start_master());
    let address = master.address().to_string();
    // The room is set aside without a limit.
    Process::start(&["disk", &address, &folder]).kill();
    // In units of 512 bytes. Who is told by a signal, too, would not hear the error.
    let limited = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", (24 << 20) / 512);
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
            let bytes = shelved(puts, puts);
            let put = [Put::new(key(&format!("p{puts}")), &bytes)];
            only(client.put_with(&put, Patience::UntilDeadline, soon()).await).unwrap();
        }
        assert!(puts * (96 << 10) > 16 << 20, "it took only {puts} objects");
        for more in puts + 1..puts + 200 {
            let (name, bytes) = (key(&format!("p{more}")), shelved(more, more));
            let put = [Put::new(name.clone(), &bytes)];
            only(client.put_with(&put, Patience::UntilDeadline, soon()).await).unwrap();
            let got = only(client.get(&[name], GetOptions::default(), soon()).await).unwrap();
            assert!(got.bytes == bytes);
        }
    });
}

/// The bytes of one put of one key.
fn shelved(it: usize, put: usize) -> Vec<u8> {
    (0..96 << 10)
        .map(|at: usize| (at.wrapping_mul(31) ^ (at >> 8) ^ it.wrapping_mul(97) ^ put) as u8)
        .collect()
}

fn a_node_that_is_stopped(runtime: &Runtime) {
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
        // Its memory is still there, and so are the stamps that prove what is in it.
        assert!(only(near.get(&[key("k")], GetOptions::default(), soon()).await).unwrap().bytes == bytes);
        // Who needs its help gets an error in time.
        let short = || Deadline::after(SHORT);
        for client in [&near, &far] {
            let error = only(client.put(&[Put::new(key("n"), &bytes)], short()).await).unwrap_err();
            assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
        }
        let error = only(far.get(&[key("k")], GetOptions::default(), short()).await).unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
        let deleted = only(far.delete(&[key("k")], DeleteOptions::default(), short()).await);
        assert_eq!(deleted, Err(Error::Unconfirmed { nodes: vec!["sleepy".to_owned()] }));

        node.go_on();
        let usage = || master.stat().nodes[0].usage;
        eventually("what was reserved meanwhile comes back", || usage().granted == 0 && usage().objects == 0)
            .await;
        for client in [&near, &far] {
            only(client.put(&[Put::new(key("n"), &bytes)], soon()).await).unwrap();
        }
    });
}

// Helpers.

/// Puts, one after the other, until one fails, and tells of each that was acknowledged.
async fn put_until_it_fails(client: Client, prefix: String, acknowledged: mpsc::UnboundedSender<Key>) {
    for number in 0.. {
        let key = key(&format!("{prefix}/{number}"));
        let deadline = Deadline::after(SHORT);
        if only(client.put(&[Put::new(key.clone(), prefix.as_bytes())], deadline).await).is_err() {
            return;
        }
        let _nobody_counts = acknowledged.send(key);
    }
}

fn a_master_killed_under_puts(runtime: &Runtime) {
    let address = format!("unix:@tiffin-client-test-{}", std::process::id());
    let mut master = Process::start(&["master", &address]);
    let config = NodeConfig { master: address.parse().unwrap(), memory: MEMORY, ..NodeConfig::default() };
    let node = runtime.block_on(NodeServer::start(config)).unwrap();
    let mut all = Vec::new();
    for round in 0..4 {
        let joined = async { node.joined(Instant::now() + LONG).await.unwrap() };
        runtime.block_on(joined);
        let (sender, mut acknowledged) = mpsc::unbounded_channel();
        let writers = [0, 1].map(|writer| {
            let (address, sender, prefix) = (address.clone(), sender.clone(), format!("{round}/{writer}"));
            runtime.spawn(async move {
                let client = Client::connect(ConnectOptions::new(address)).await.unwrap();
                put_until_it_fails(client, prefix, sender).await;
            })
        });
        drop(sender);
        runtime.block_on(async {
            for _ in 0..100 {
                all.push(acknowledged.recv().await.unwrap());
            }
        });
        master.kill();
        runtime.block_on(async {
            while let Some(key) = acknowledged.recv().await {
                all.push(key);
            }
            for writer in writers {
                writer.await.unwrap();
            }
        });
        master = Process::start(&["master", &address]);
        runtime.block_on(async {
            let client = Client::connect(ConnectOptions::new(address.clone())).await.unwrap();
            // The node comes back in its own time.
            let (mut lost, mut look) = (all.clone(), tokio::time::interval(LOOK));
            let until = Instant::now() + LONG;
            while !lost.is_empty() {
                assert!(
                    Instant::now() < until,
                    "they were acknowledged before the master was killed: {lost:?}"
                );
                look.tick().await;
                let infos = client.resolve(&lost, ResolveOptions::default(), soon()).await;
                let mut found = infos.into_iter().map(|it| it.unwrap().is_some());
                lost.retain(|_| !found.next().unwrap());
            }
            client.close(soon()).await.unwrap();
        });
    }
    drop(master);
}

/// A child, killed when it is dropped.
struct Process(Child);

impl Process {
    fn start(arguments: &[&str]) -> Self {
        Self::wrapped(&[], arguments)
    }

    /// The same, started by another program.
    fn wrapped(by: &[&str], arguments: &[&str]) -> Self {
        let own = env::current_exe().unwrap();
        let mut command = match by {
            [] => Command::new(own),
            [program, rest @ ..] => {
                let mut command = Command::new(program);
                command.args(rest).arg(own);
                command
            }
        };
        let child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = Self(child.unwrap());
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "{arguments:?} did not start");
        process
    }

    fn kill(self) {
        drop(self);
    }

    /// Stops all its threads, and returns when they have stopped.
    fn stop(&self) {
        kill_process(Pid::from_child(&self.0), Signal::STOP).unwrap();
        let (_, status) = waitpid(Some(Pid::from_child(&self.0)), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    fn go_on(&self) {
        kill_process(Pid::from_child(&self.0), Signal::CONT).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

async fn start_master() -> MasterServer {
    // What ends with a process ends because somebody has proof of its death.
    let config = MasterConfig { lease_grace: Duration::from_secs(3600), ..MasterConfig::default() };
    MasterServer::start(config).await.unwrap()
}

async fn start_both() -> (MasterServer, NodeServer) {
    let master = start_master().await;
    let config = NodeConfig { master: master.address().clone(), memory: MEMORY, ..NodeConfig::default() };
    let node = NodeServer::start(config).await.unwrap();
    node.joined(Instant::now() + LONG).await.unwrap();
    (master, node)
}

async fn connect(master: &MasterServer, shared_memory: bool) -> Client {
    let options = ConnectOptions::new(master.address().to_string());
    Client::connect(ConnectOptions { shared_memory, ..options }).await.unwrap()
}

fn soon() -> Deadline {
    Deadline::after(LONG)
}

fn key(name: &str) -> Key {
    Key::new(name.as_bytes()).unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ (at >> 8)) as u8).collect()
}

fn only<T>(mut results: Vec<T>) -> T {
    assert_eq!(results.len(), 1);
    results.remove(0)
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        let mut look = tokio::time::interval(LOOK);
        while !holds() {
            look.tick().await;
        }
    };
    assert!(tokio::time::timeout(LONG, waiting).await.is_ok(), "never: {what}");
}
