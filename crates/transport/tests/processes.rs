//! Shared memory between real processes: this test starts itself again as a client.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail as tests do")]

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;

use tiffin_transport::behavior::{self, Place, Shelf};
use tiffin_transport::shm::{self, AttachError, Event, Shm};
use tiffin_transport::{Counters, ReadOp, SourceBuf, TargetBuf, Transport, WriteOp};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Tells this program that it is the client: what to do, and with what.
const ERRAND: &str = "TIFFIN_TRANSPORT_TEST_ERRAND";
const LEN: u64 = 3 << 20;
const NOBODY: u32 = 65_534;

/// A node in this process.
struct Node {
    shelf: Arc<Shelf>,
    server: Arc<shm::Server>,
    name: String,
    events: mpsc::Receiver<Event>,
    task: JoinHandle<()>,
}

impl Node {
    fn start() -> Self {
        let shelf = Arc::new(Shelf::new());
        let name = format!("tiffin-test-{}-{}", std::process::id(), shelf.memory().geometry().segment);
        let (sender, events) = mpsc::channel(16);
        let authorise = |attach: &shm::Attach| match attach.token.as_str() {
            "secret" => Ok(()),
            _ => Err("the token is wrong".to_owned()),
        };
        let server = shm::Server::new(Arc::clone(shelf.memory()), Box::new(authorise), sender);
        let listener = shm::listen(&name).expect("a free name");
        let task = tokio::spawn(Arc::clone(&server).run(listener));
        Self { shelf, server, name, events, task }
    }

    fn errand(&self, what: &str, place: Place) -> String {
        let segment = self.shelf.memory().geometry().segment;
        let Place { slot, stamp } = place;
        format!("{what} {} {segment} {slot} {stamp} {}", self.name, std::process::id())
    }

    async fn event(&mut self) -> Event {
        let event = tokio::time::timeout_at(behavior::soon(), self.events.recv()).await;
        event.expect("an event in time").expect("a server that lives")
    }
}

/// This program, started again to do something else.
struct Client(Child);

impl Client {
    fn start(errand: String, uid: Option<u32>) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("the path of this test"));
        command.args(["--exact", "errand", "--nocapture", "--test-threads=1"]).env(ERRAND, errand);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        Self(command.spawn().expect("this test can be started again"))
    }

    /// Waits until the client has said this word.
    fn hears(&mut self, word: &str) {
        let mut lines = BufReader::new(self.0.stdout.take().expect("a pipe")).lines();
        let said = lines.any(|line| line.is_ok_and(|line| line.contains(word)));
        assert!(said, "the client never said `{word}`");
    }

    /// Lets it end by itself; all it says.
    fn end(mut self) -> (ExitStatus, String) {
        drop(self.0.stdin.take());
        let mut text = String::new();
        if let Some(mut stdout) = self.0.stdout.take() {
            stdout.read_to_string(&mut text).expect("what the client says is text");
        }
        (self.0.wait().expect("the client ends"), text)
    }
}

/// Not a test: what the client does. In the process that runs the tests there is nothing to do.
#[test]
fn errand() {
    let Some(errand) = std::env::var_os(ERRAND) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(run(errand));
}

async fn run(errand: OsString) {
    let errand = errand.into_string().unwrap();
    let words: Vec<&str> = errand.split(' ').collect();
    let [what, name, segment, slot, stamp, node_pid] = *words.as_slice() else { panic!("{errand}") };
    let (segment, slot) = (segment.parse().unwrap(), slot.parse().unwrap());
    let stamp = stamp.parse().unwrap();
    let token = if what == "wrong-token" { "guess" } else { "secret" };
    let attached = shm::attach(name, segment, 42, token, behavior::soon()).await;
    let attachment = match attached {
        Ok(attachment) => Arc::new(attachment),
        Err(error) => return say(&format!("not attached: {error}")),
    };
    let shm = Shm::new(Arc::clone(&attachment), Arc::default());
    match what {
        "read" => {
            let mut bytes = vec![0; LEN as usize];
            let op = ReadOp { slot, stamp, offset: 0, targets: vec![TargetBuf::from(&mut bytes[..])] };
            assert_eq!(shm.read(&[op], behavior::soon()).await, [Ok(())]);
            behavior::assert_pattern(stamp, 0, &bytes);
            assert!(!attachment.is_writable(), "who only reads has no writable mapping");
            assert_eq!(shm.view(slot, stamp).and_then(|view| view.to_vec()), Some(bytes));
            assert_all_mappings_stay_here();
            assert_control_is_closed_to_writers(node_pid);
            say("read");
        }
        "write" => {
            let bytes = behavior::pattern(stamp, LEN);
            let op = WriteOp { slot, stamp, offset: 0, sources: vec![SourceBuf::from(&bytes[..])] };
            assert_eq!(shm.write(&[op], behavior::soon()).await, [Ok(())]);
            assert!(attachment.is_writable());
            assert_all_mappings_stay_here();
            say("written");
        }
        "stay" => {
            say("attached");
            std::io::stdin().read_line(&mut String::new()).unwrap();
        }
        "hang-up" => {
            drop((shm, attachment));
            say("detached");
            std::io::stdin().read_line(&mut String::new()).unwrap();
        }
        _ => panic!("{errand}"),
    }
}

fn say(text: &str) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{text}").unwrap();
    stdout.flush().unwrap();
}

/// The kernel says of each mapping whether a forked child gets it; `dc` is "do not copy".
fn assert_all_mappings_stay_here() {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_ours = false;
    let mut seen = 0;
    for line in smaps.lines() {
        is_ours |= line.contains("/memfd:tiffin-");
        if let Some(flags) = line.strip_prefix("VmFlags:")
            && std::mem::take(&mut is_ours)
        {
            assert!(flags.split(' ').any(|flag| flag == "dc"), "a fork would copy a mapping: {flags}");
            seen += 1;
        }
    }
    assert!(seen >= 2, "both segments are mapped");
}

/// The descriptors of the node can be opened again by its own user; the seals must hold even so.
fn assert_control_is_closed_to_writers(node_pid: &str) {
    let memory_file = |name: &str| -> PathBuf {
        let mut files = std::fs::read_dir(Path::new("/proc").join(node_pid).join("fd")).unwrap();
        let is_it =
            |path: &PathBuf| std::fs::read_link(path).is_ok_and(|link| link.to_string_lossy().contains(name));
        files.find_map(|entry| entry.ok().map(|entry| entry.path()).filter(is_it)).unwrap()
    };
    let control = memory_file("tiffin-control");
    let refused = behavior::map_writable(&control).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    let file = std::fs::OpenOptions::new().write(true).open(&control).unwrap();
    assert_eq!((&file).write(b"x").unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    assert_eq!(file.set_len(1).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    // The same would succeed on the data segment: it is the seal that refuses.
    behavior::map_writable(&memory_file("tiffin-data")).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_process_writes_and_reads_what_it_has_mapped() {
    let mut node = Node::start();
    let place = node.shelf.reserve(&[LEN]);
    let (status, said) = Client::start(node.errand("write", place), None).end();
    assert!(status.success() && said.contains("written"), "{said}");
    assert!(matches!(node.event().await, Event::Attached { client: 42, .. }));

    node.shelf.commit(place);
    let counters = Arc::new(Counters::default());
    let local = tiffin_transport::local::Local::new(Arc::clone(node.shelf.memory()), counters);
    let written = local.view(place.slot, place.stamp).and_then(|view| view.to_vec()).unwrap();
    behavior::assert_pattern(place.stamp, 0, &written);

    let (status, said) = Client::start(node.errand("read", place), None).end();
    assert!(status.success() && said.contains("read"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn death_is_proven_by_the_kernel_and_hanging_up_is_not_death() {
    let mut node = Node::start();
    let nowhere = Place { slot: 0, stamp: 0 };

    let mut client = Client::start(node.errand("stay", nowhere), None);
    client.hears("attached");
    let pid = client.0.id() as i32;
    assert_eq!(node.event().await, Event::Attached { client: 42, pid });
    assert!(node.events.try_recv().is_err(), "it lives");
    client.0.kill().unwrap();
    let mut event = node.event().await;
    if event == (Event::HungUp { client: 42 }) {
        event = node.event().await;
    }
    assert_eq!(event, Event::Dead { client: 42 });
    client.0.wait().unwrap();

    let mut client = Client::start(node.errand("hang-up", nowhere), None);
    client.hears("detached");
    let pid = client.0.id() as i32;
    assert_eq!(node.event().await, Event::Attached { client: 42, pid });
    assert_eq!(node.event().await, Event::HungUp { client: 42 });
    assert!(node.events.try_recv().is_err(), "it lives");
    client.0.kill().unwrap();
    assert_eq!(node.event().await, Event::Dead { client: 42 });
    client.0.wait().unwrap();

    // A client that took its leave by other means is no longer watched.
    let mut client = Client::start(node.errand("hang-up", nowhere), None);
    client.hears("detached");
    assert!(matches!(node.event().await, Event::Attached { .. }));
    assert_eq!(node.event().await, Event::HungUp { client: 42 });
    node.server.forget(42);
    client.0.kill().unwrap();
    client.0.wait().unwrap();
    let last = Client::start(node.errand("stay", nowhere), None);
    assert!(matches!(node.event().await, Event::Attached { .. }), "the next event is about somebody else");
    assert!(last.end().0.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_get_no_memory() {
    let node = Node::start();
    let nowhere = Place { slot: 0, stamp: 0 };
    let (status, said) = Client::start(node.errand("wrong-token", nowhere), None).end();
    assert!(status.success() && said.contains("refused: the token is wrong"), "{said}");

    // Only root can become somebody else; without that the kernel's word cannot be put to the test.
    if std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
        let (status, said) = Client::start(node.errand("read", nowhere), Some(NOBODY)).end();
        let reason = format!("this memory is for user 0 only, and you are user {NOBODY}");
        assert!(status.success() && said.contains(&reason), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_gone_proves_nothing() {
    let node = Node::start();
    let segment = node.shelf.memory().geometry().segment;
    let place = node.shelf.reserve(&[100]);
    node.shelf.commit(place);
    let attachment = Arc::new(shm::attach(&node.name, segment, 1, "secret", behavior::soon()).await.unwrap());
    let shm = Shm::new(Arc::clone(&attachment), Arc::default());
    let read = async || {
        let mut bytes = [0; 100];
        let targets = vec![TargetBuf::from(&mut bytes[..])];
        let op = ReadOp { slot: place.slot, stamp: place.stamp, offset: 0, targets };
        shm.read(&[op], behavior::soon()).await
    };
    assert_eq!(read().await, [Ok(())]);
    node.task.abort();
    assert!(node.task.await.unwrap_err().is_cancelled());
    while attachment.is_connected() {
        tokio::task::yield_now().await;
    }
    let outcome = read().await;
    assert!(matches!(outcome[..], [Err(tiffin_transport::TransferError::Lost { .. })]), "{outcome:?}");
    let again = shm::attach(&node.name, segment, 1, "secret", behavior::soon()).await;
    assert!(matches!(again, Err(AttachError::Unreachable { .. })), "{again:?}");
}
