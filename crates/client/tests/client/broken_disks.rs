//! Disks that cannot be used, or fail while they are: what is said of them, and that memory goes on.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use tiffin_client::{Client, Demotion, Error, GetOptions, Losses, Patience, PolicyChange, Put};
use tiffin_server::config::{Engine, SsdConfig};
use tiffin_server::{MasterConfig, MasterServer, NodeConfig, NodeServer};
use tokio::time::Instant;

use super::disks::{MIB, OBJECT, OBJECTS, Store, fill, place};
use super::support::{LONG, eventually, key, only, pattern, soon};
use super::tiers::put_hurriedly;

fn ssd(path: &Path, size: u64) -> SsdConfig {
    SsdConfig { path: path.to_owned(), size, engine: Engine::Auto }
}

async fn start(master: &MasterServer, ssd: SsdConfig) -> Result<NodeServer, String> {
    let master = master.address().clone();
    let config = NodeConfig { master, memory: 8 * MIB, ssd: vec![ssd], ..NodeConfig::default() };
    NodeServer::start(config).await.map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_that_cannot_be_used_is_refused_in_words() {
    let folder = place();
    let at = |name: &str| folder.path().join(name);
    File::create(at("file")).unwrap();
    let master = MasterServer::start(MasterConfig::default()).await.unwrap();
    let used = start(&master, ssd(&at("used"), 64 * MIB)).await.unwrap();
    let larger = "hint: give at most";
    for (path, size, expected) in [
        (at("file"), 64 * MIB, ["is a file", "hint: give a directory"]),
        (at("file/below"), 64 * MIB, ["cannot be", "hint: check that the path exists"]),
        (at("no/parent"), 64 * MIB, ["cannot be created: No such file", "hint: check that the path exists"]),
        // A filesystem where nobody may make anything, not even its owner.
        ("/sys/tiffin".into(), 64 * MIB, ["cannot be created", "hint: check that the path exists"]),
        (at("large"), 1 << 50, ["bytes do not fit", larger]),
        (at("used"), 64 * MIB, ["is in use by pid", "hint: give each node a directory of its own"]),
    ] {
        let error = start(&master, ssd(&path, size)).await.expect_err("it cannot be used");
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        assert!(expected.iter().all(|it| error.contains(it)), "{path:?}: {error}");
        assert_eq!(error.matches("hint:").count(), 1, "{error}");
    }
    // That somebody else tried it does not take it from who has it.
    used.joined(Instant::now() + LONG).await.unwrap();
    let error = start(&master, ssd(&at("used"), 64 * MIB)).await.expect_err("it is still used");
    assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
    used.leave(Instant::now() + LONG).await;
    let error = start(&master, ssd(&at("used"), 32 * MIB)).await.expect_err("it is smaller");
    assert!(error.contains("the size given is") && error.contains("hint:"), "{error}");
    drop(start(&master, ssd(&at("used"), 64 * MIB)).await.unwrap());
}

async fn is_disk_there(client: &Client) -> bool {
    let stat = client.stat(soon()).await.unwrap();
    stat.nodes.iter().any(|it| it.info.beside.is_some() && it.alive)
}

async fn write_through(client: &Client) {
    let demotion = Some(Demotion::WriteThrough);
    client.set_policy(PolicyChange::NONE.demotion(demotion), soon()).await.unwrap();
}

/// New objects can be put and read, whatever became of the disk.
async fn memory_serves(client: &Client, name: &str) {
    for at in 0..OBJECTS {
        let (name, bytes) = (key(format!("{name}{at}")), pattern(at, OBJECT));
        let put = [Put::new(name.clone(), &bytes)];
        only(client.put_with(&put, Patience::UntilDeadline, soon()).await).unwrap();
        let object = only(client.get(&[name], GetOptions::default(), soon()).await).unwrap();
        assert!(object.bytes == bytes);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_whose_directory_is_removed_leaves_and_memory_goes_on() {
    for engine in [Engine::Auto, Engine::Blocking] {
        let folder = place();
        let store = Store::start(folder.path(), engine).await;
        let client = store.client().await;
        write_through(&client).await;
        fill(&client).await;
        assert!(is_disk_there(&client).await);
        fs::remove_dir_all(folder.path().join("log")).unwrap();
        // What would be written now would be gone with the process: it is not said to be there.
        memory_serves(&client, "during").await;
        while is_disk_there(&client).await {
            tokio::task::yield_now().await;
        }
        memory_serves(&client, "after").await;
        let error = only(client.get(&[key("o0")], GetOptions::default(), soon()).await).unwrap_err();
        assert!(matches!(&error, Error::NodeDown { nodes, .. } if *nodes == ["node disk 1"]), "{error}");
    }
}

/// A filesystem of its own, in a file. Only root may mount one.
struct Mounted {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Mounted {
    /// Nothing, and a word about it, where it cannot be had.
    fn new() -> Option<Self> {
        let folder = place();
        let (image, path) = (folder.path().join("image"), folder.path().join("mounted"));
        File::create(&image).unwrap().set_len(512 * MIB).unwrap();
        fs::create_dir(&path).unwrap();
        let is_made = run(Command::new("mkfs.ext4").arg("-qF").arg(&image))
            && run(Command::new("mount").args(["-o", "loop,errors=remount-ro"]).arg(&image).arg(&path));
        if !is_made {
            eprintln!("skipped: no filesystem can be mounted here, which only root may");
            return None;
        }
        Some(Self { path, _folder: folder })
    }

    /// What the kernel does by itself when it finds the filesystem damaged.
    fn become_read_only(&self) {
        assert!(run(Command::new("mount").args(["-o", "remount,abort"]).arg(&self.path)));
        File::create(self.path.join("another")).expect_err("it is read-only");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Whoever still uses it may go on; the name is free.
        run(Command::new("umount").arg("-l").arg(&self.path));
    }
}

fn run(command: &mut Command) -> bool {
    command.output().is_ok_and(|it| it.status.success())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_becomes_read_only_leaves_and_memory_goes_on() {
    let Some(mounted) = Mounted::new() else { return };
    for engine in [Engine::Auto, Engine::Blocking] {
        let folder = mounted.path.join(format!("{engine:?}"));
        fs::create_dir(&folder).unwrap();
        let store = Store::sized(&folder, engine, 128 * MIB).await;
        let client = store.client().await;
        write_through(&client).await;
        fill(&client).await;
        eventually("some are on disk", || store.on_disk() >= OBJECTS as u64 / 2).await;
        if engine == Engine::Auto {
            store.node.unwrap().leave(Instant::now() + LONG).await;
            continue;
        }
        mounted.become_read_only();
        memory_serves(&client, "during").await;
        while is_disk_there(&client).await {
            tokio::task::yield_now().await;
        }
        memory_serves(&client, "after").await;
        let error = only(client.get(&[key("o0")], GetOptions::default(), soon()).await).unwrap_err();
        assert!(matches!(&error, Error::NodeDown { nodes, .. } if *nodes == ["node disk 1"]), "{error}");
        // Nor can a node be started there, and it says why.
        drop(client);
        let Store { master, node } = store;
        node.unwrap().leave(Instant::now() + LONG).await;
        let error = start(&master, ssd(&folder.join("log"), 128 * MIB)).await.expect_err("it is read-only");
        assert!(error.contains("Read-only file system") && error.contains("hint:"), "{error}");
    }
}

/// A filesystem on which no write ends until it is let go.
struct Frozen<'a>(&'a Mounted);

impl<'a> Frozen<'a> {
    fn new(mounted: &'a Mounted) -> Self {
        assert!(run(Command::new("fsfreeze").arg("-f").arg(&mounted.path)));
        Self(mounted)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        run(Command::new("fsfreeze").arg("-u").arg(&self.0.path));
    }
}

/// A disk that ends nothing holds the memory that it reads. Puts that do not wait take that of others for as
/// long as it lasts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_stalls_costs_no_put() {
    let Some(mounted) = Mounted::new() else { return };
    let store = Store::sized(&mounted.path, Engine::Blocking, 128 * MIB).await;
    let client = store.client().await;
    write_through(&client).await;
    fill(&client).await;
    eventually("some are on disk", || store.on_disk() >= OBJECTS as u64 / 2).await;
    let frozen = Frozen::new(&mounted);
    let before = store.on_disk();
    assert_eq!(put_hurriedly(&client, "stalled", 200).await, 0, "{:?}", client.stat(soon()).await);
    assert!(store.on_disk() < before + 100, "the disk has written all the time");
    drop(frozen);
    eventually("the disk goes on", || store.on_disk() > before + 8).await;
    memory_serves(&client, "after").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_cannot_be_read_is_named_and_memory_goes_on() {
    let folder = place();
    let store = Store::start(folder.path(), Engine::Auto).await;
    let clients = [store.client().await, store.near_client().await];
    write_through(&clients[0]).await;
    fill(&clients[0]).await;
    let newest = key(format!("o{}", OBJECTS - 1));
    // What is written later would make the file long again.
    let written = || store.node.as_ref().unwrap().disk_stats()[0].written_bytes;
    let (mut last, mut looks) = (0, 0);
    eventually("all is written", || {
        let before = std::mem::replace(&mut last, written());
        looks = if before == last { looks + 1 } else { 0 };
        store.on_disk() == OBJECTS as u64 && looks > 50
    })
    .await;
    let file = File::options().write(true).open(folder.path().join("log/records.tiffin")).unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(MIB).unwrap();
    for client in &clients {
        let error = only(client.get(&[key("o0")], GetOptions::default(), soon()).await).unwrap_err();
        assert!(matches!(&error, Error::NodeDown { nodes, .. } if *nodes == ["node disk 1"]), "{error}");
        let object = only(client.get(std::slice::from_ref(&newest), GetOptions::default(), soon()).await);
        assert!(object.unwrap().bytes == pattern(OBJECTS - 1, OBJECT));
    }
    // Now it can be read again, and has other bytes: none of them is served.
    file.set_len(len).unwrap();
    for client in &clients {
        for at in 0..8 {
            let got = only(client.get(&[key(format!("o{at}"))], GetOptions::default(), soon()).await);
            assert!(matches!(got, Err(Error::NotFound { .. })), "{at}: {got:?}");
        }
    }
    let tier = *clients[0].stat(soon()).await.unwrap().tier;
    assert_eq!(tier.disk_corrupt, 8, "{tier:?}");
    memory_serves(&clients[1], "after").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_disk_has_is_not_lost_with_its_node() {
    let folder = place();
    let mut store = Store::start(folder.path(), Engine::Auto).await;
    let client = store.client().await;
    let node = || store.node.as_ref().unwrap();
    for at in 0..4 {
        let bytes = pattern(at, OBJECT);
        only(client.put(&[Put::new(key(format!("m{at}")), &bytes)], soon()).await).unwrap();
    }
    // A node hears of a put behind the writer's back.
    eventually("the node knows of them", || node().inventory().len() == 4).await;
    let losses = Losses::of(node().inventory(), node().segment(), client.options(), soon()).await;
    assert_eq!((losses.objects, losses.elsewhere), (4, 0), "they are in memory only");
    write_through(&client).await;
    for at in 4..8 {
        let bytes = pattern(at, OBJECT);
        only(client.put(&[Put::new(key(format!("m{at}")), &bytes)], soon()).await).unwrap();
    }
    eventually("the disk has them", || store.on_disk() == 4).await;
    let losses = Losses::of(node().inventory(), node().segment(), client.options(), soon()).await;
    assert_eq!((losses.objects, losses.elsewhere), (4, 4), "{losses:?}");
    // A node that has left has let go of its disk, whatever was under way.
    for round in 0..8 {
        let client = store.client().await;
        for at in 0..16 {
            let bytes = pattern(at, OBJECT);
            let put = Put::new(key(format!("r{round}-{at}")), &bytes);
            only(client.put_with(&[put], Patience::UntilDeadline, soon()).await).unwrap();
        }
        store.node.take().unwrap().leave(Instant::now() + LONG).await;
        store.start_node(folder.path(), Engine::Auto).await;
    }
}
