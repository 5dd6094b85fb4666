//! Disks that cannot be used, or that fail in use: the error messages, and that memory keeps working.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use tiffin_client::{Client, Demotion, Error, GetOptions, Losses, PolicyChange, Put, SpaceWait};
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
    let config =
        NodeConfig { master: master.into(), memory: 8 * MIB, ssd: vec![ssd], ..NodeConfig::default() };
    NodeServer::start(config).await.map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusable_disk_paths_are_rejected_with_a_hint() {
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
        // On this filesystem no user can create a file, not even its owner.
        ("/sys/tiffin".into(), 64 * MIB, ["cannot be created", "hint: check that the path exists"]),
        (at("large"), 1 << 50, ["bytes do not fit", larger]),
        (at("used"), 64 * MIB, ["is in use by pid", "hint: give each node a directory of its own"]),
    ] {
        let error = start(&master, ssd(&path, size)).await.expect_err("the path is unusable");
        assert!(error.contains(path.to_str().unwrap()), "{error}");
        assert!(expected.iter().all(|it| error.contains(it)), "{path:?}: {error}");
        assert_eq!(error.matches("hint:").count(), 1, "{error}");
    }
    // The failed attempt does not take the directory from the node that uses it.
    used.joined(Instant::now() + LONG).await.unwrap();
    let error = start(&master, ssd(&at("used"), 64 * MIB)).await.expect_err("the directory is in use");
    assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
    used.leave(Instant::now() + LONG).await;
    let error = start(&master, ssd(&at("used"), 32 * MIB)).await.expect_err("the size is smaller");
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

/// New objects can be put and read, whatever the state of the disk.
async fn memory_serves(client: &Client, name: &str) {
    for at in 0..OBJECTS {
        let (name, bytes) = (key(format!("{name}{at}")), pattern(at, OBJECT));
        let put = [Put::new(name.clone(), &bytes)];
        only(client.put_with(&put, SpaceWait::UntilDeadline, soon()).await).unwrap();
        let object = only(client.get(&[name], GetOptions::default(), soon()).await).unwrap();
        assert!(object.bytes == bytes);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_with_removed_directory_leaves_and_memory_works() {
    for engine in [Engine::Auto, Engine::Blocking] {
        let folder = place();
        let store = Store::start(folder.path(), engine).await;
        let client = store.client().await;
        write_through(&client).await;
        fill(&client).await;
        assert!(is_disk_there(&client).await);
        fs::remove_dir_all(folder.path().join("log")).unwrap();
        // Bytes written now would be lost when the process ends, so they are not reported as stored.
        memory_serves(&client, "during").await;
        while is_disk_there(&client).await {
            tokio::task::yield_now().await;
        }
        memory_serves(&client, "after").await;
        let error = only(client.get(&[key("o0")], GetOptions::default(), soon()).await).unwrap_err();
        assert!(matches!(&error, Error::NodeDown { nodes, .. } if *nodes == ["node disk 1"]), "{error}");
    }
}

/// A filesystem in a file. Only root may mount one.
struct Mounted {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Mounted {
    /// `None`, and a message, if it cannot be mounted.
    fn new() -> Option<Self> {
        let folder = place();
        let (image, path) = (folder.path().join("image"), folder.path().join("mounted"));
        File::create(&image).unwrap().set_len(512 * MIB).unwrap();
        fs::create_dir(&path).unwrap();
        let is_made = run(Command::new("mkfs.ext4").arg("-qF").arg(&image))
            && run(Command::new("mount").args(["-o", "loop,errors=remount-ro"]).arg(&image).arg(&path));
        if !is_made {
            eprintln!("skipped: only root can mount a filesystem");
            return None;
        }
        Some(Self { path, _folder: folder })
    }

    /// Does what the kernel does when it finds the filesystem damaged.
    fn become_read_only(&self) {
        assert!(run(Command::new("mount").args(["-o", "remount,abort"]).arg(&self.path)));
        File::create(self.path.join("another")).expect_err("the filesystem is read-only");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Processes that still use it may continue; the path is free.
        run(Command::new("umount").arg("-l").arg(&self.path));
    }
}

fn run(command: &mut Command) -> bool {
    command.output().is_ok_and(|it| it.status.success())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_that_becomes_read_only_leaves_and_memory_works() {
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
        // A node cannot be started there either; the error says why.
        drop(client);
        let Store { master, node } = store;
        node.unwrap().leave(Instant::now() + LONG).await;
        let error = start(&master, ssd(&folder.join("log"), 128 * MIB))
            .await
            .expect_err("the filesystem is read-only");
        assert!(error.contains("Read-only file system") && error.contains("hint:"), "{error}");
    }
}

/// A filesystem on which no write completes until this is dropped.
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

/// A disk that completes no write holds the memory of its sources. Meanwhile puts that do not wait evict
/// other objects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_disk_fails_no_put() {
    let Some(mounted) = Mounted::new() else { return };
    let store = Store::sized(&mounted.path, Engine::Blocking, 128 * MIB).await;
    let client = store.client().await;
    write_through(&client).await;
    fill(&client).await;
    eventually("some are on disk", || store.on_disk() >= OBJECTS as u64 / 2).await;
    let frozen = Frozen::new(&mounted);
    let before = store.on_disk();
    assert_eq!(put_hurriedly(&client, "stalled", 200).await, 0, "{:?}", client.stat(soon()).await);
    assert!(store.on_disk() < before + 100, "the disk was not stalled");
    drop(frozen);
    eventually("the disk continues", || store.on_disk() > before + 8).await;
    memory_serves(&client, "after").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_disk_is_named_and_memory_works() {
    let folder = place();
    let store = Store::start(folder.path(), Engine::Auto).await;
    let clients = [store.client().await, store.near_client().await];
    write_through(&clients[0]).await;
    fill(&clients[0]).await;
    let newest = key(format!("o{}", OBJECTS - 1));
    // A later write would extend the file again.
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
    // The file can be read again, with other bytes: none of them is served.
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
async fn objects_on_a_disk_are_not_lost_with_their_node() {
    let folder = place();
    let mut store = Store::start(folder.path(), Engine::Auto).await;
    let client = store.client().await;
    let node = || store.node.as_ref().unwrap();
    for at in 0..4 {
        let bytes = pattern(at, OBJECT);
        only(client.put(&[Put::new(key(format!("m{at}")), &bytes)], soon()).await).unwrap();
    }
    // The node learns of a put after the writer has its reply: it reads its ledger first.
    let records = node().read_inventory(soon().instant()).await;
    let losses = Losses::of(records, node().segment(), client.options(), soon()).await;
    assert_eq!((losses.objects, losses.elsewhere), (4, 0), "they are in memory only");
    write_through(&client).await;
    for at in 4..8 {
        let bytes = pattern(at, OBJECT);
        only(client.put(&[Put::new(key(format!("m{at}")), &bytes)], soon()).await).unwrap();
    }
    eventually("the disk has them", || store.on_disk() == 4).await;
    let losses = Losses::of(node().inventory(), node().segment(), client.options(), soon()).await;
    assert_eq!((losses.objects, losses.elsewhere), (4, 4), "{losses:?}");
    // A node that has left has released its disk, whatever operations were in progress.
    for round in 0..8 {
        let client = store.client().await;
        for at in 0..16 {
            let bytes = pattern(at, OBJECT);
            let put = Put::new(key(format!("r{round}-{at}")), &bytes);
            only(client.put_with(&[put], SpaceWait::UntilDeadline, soon()).await).unwrap();
        }
        store.node.take().unwrap().leave(Instant::now() + LONG).await;
        store.start_node(folder.path(), Engine::Auto).await;
    }
}
