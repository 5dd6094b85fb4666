//! Shared memory between real processes: this test runs itself again as a client.

#![expect(clippy::unwrap_used, reason = "helpers of tests may fail as tests do")]

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;

use tiffin_transport::behavior::{self, Location, TestNode};
use tiffin_transport::shm::{self, AttachError, Event, Shm};
use tiffin_transport::{Counters, ReadOp, SourceBuf, TargetBuf, Transport, WriteOp};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Environment variable with the client's task and its arguments.
const TASK: &str = "TIFFIN_TRANSPORT_TEST_TASK";
const LEN: u64 = 3 << 20;
const NOBODY: u32 = 65_534;

/// A node in this process.
struct Node {
    node: Arc<TestNode>,
    server: Arc<shm::Server>,
    name: String,
    events: mpsc::Receiver<Event>,
    task: JoinHandle<()>,
}

impl Node {
    fn start() -> Self {
        let node = Arc::new(TestNode::new());
        let name = format!("tiffin-test-{}-{}", std::process::id(), node.memory().geometry().segment);
        let (sender, events) = mpsc::channel(16);
        let authorise = |attach: &shm::AttachRequest| match attach.token.as_str() {
            "secret" => Ok(()),
            _ => Err("the token is wrong".into()),
        };
        let server = shm::Server::new(Arc::clone(node.memory()), Box::new(authorise), sender);
        let listener = shm::listen(&name).expect("a free name");
        let task = tokio::spawn(Arc::clone(&server).run(listener));
        Self { node, server, name, events, task }
    }

    fn task(&self, what: &str, location: Location) -> String {
        let segment = self.node.memory().geometry().segment;
        let Location { slot, stamp } = location;
        format!("{what} {} {segment} {slot} {stamp} {}", self.name, std::process::id())
    }

    async fn event(&mut self) -> Event {
        let event = tokio::time::timeout_at(behavior::soon(), self.events.recv()).await;
        event.expect("an event in time").expect("a server that lives")
    }
}

/// This program, run again with a task.
struct Client(Child);

impl Client {
    fn start(task: String, uid: Option<u32>) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("the path of this test"));
        command.args(["--exact", "task", "--nocapture", "--test-threads=1"]).env(TASK, task);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        Self(command.spawn().expect("this test can be started again"))
    }

    /// WaitMode until the client has printed this word.
    fn wait_for_output(&mut self, word: &str) {
        let mut lines = BufReader::new(self.0.stdout.take().expect("a pipe")).lines();
        let output = lines.any(|line| line.is_ok_and(|line| line.contains(word)));
        assert!(output, "the client never printed `{word}`");
    }

    /// WaitMode for its end. Returns its output.
    fn end(mut self) -> (ExitStatus, String) {
        drop(self.0.stdin.take());
        let mut text = String::new();
        if let Some(mut stdout) = self.0.stdout.take() {
            stdout.read_to_string(&mut text).expect("what the client says is text");
        }
        (self.0.wait().expect("the client ends"), text)
    }
}

/// Not a test: the entry point of the client. Does nothing in the process that runs the tests.
#[test]
fn task() {
    let Some(task) = std::env::var_os(TASK) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(run(task));
}

async fn run(task: OsString) {
    let task = task.into_string().unwrap();
    let words: Vec<&str> = task.split(' ').collect();
    let [what, name, segment, slot, stamp, node_pid] = *words.as_slice() else { panic!("{task}") };
    let (segment, slot) = (segment.parse().unwrap(), slot.parse().unwrap());
    let stamp = stamp.parse().unwrap();
    let token = if what == "wrong-token" { "guess" } else { "secret" };
    let attached = shm::attach(name, segment, 42, token, behavior::soon()).await;
    let attachment = match attached {
        Ok(attachment) => Arc::new(attachment),
        Err(error) => return print(&format!("not attached: {error}")),
    };
    let shm = Shm::new(Arc::clone(&attachment), Arc::default());
    match what {
        "read" => {
            let mut bytes = vec![0; LEN as usize];
            let op = ReadOp { slot, stamp, offset: 0, targets: vec![TargetBuf::from(&mut bytes[..])] };
            assert_eq!(shm.read(&[op], behavior::soon()).await, [Ok(())]);
            behavior::assert_pattern(stamp, 0, &bytes);
            assert!(!attachment.is_writable(), "a reader has no writable mapping");
            assert_eq!(shm.attachment().view(slot, stamp).and_then(|view| view.to_vec()), Some(bytes));
            assert_all_mappings_stay_here();
            assert_control_is_closed_to_writers(node_pid);
            print("read");
        }
        "write" => {
            let bytes = behavior::pattern(stamp, LEN);
            let op = WriteOp { slot, stamp, offset: 0, sources: vec![SourceBuf::from(&bytes[..])] };
            assert_eq!(shm.write(&[op], behavior::soon()).await, [Ok(())]);
            assert!(attachment.is_writable());
            assert_all_mappings_stay_here();
            print("written");
        }
        "stay" => {
            print("attached");
            std::io::stdin().read_line(&mut String::new()).unwrap();
        }
        "hang-up" => {
            drop((shm, attachment));
            print("detached");
            std::io::stdin().read_line(&mut String::new()).unwrap();
        }
        _ => panic!("{task}"),
    }
}

fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{text}").unwrap();
    stdout.flush().unwrap();
}

/// The kernel's flag `dc` of a mapping means that a forked child does not get it.
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

/// The node's own user can open its descriptors again; the seals must hold even so.
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
    // The same succeeds on the data segment, so it is the seal that refuses.
    behavior::map_writable(&memory_file("tiffin-data")).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_process_writes_and_reads_mapped_memory() {
    let mut node = Node::start();
    let location = node.node.reserve(&[LEN]);
    let (status, output) = Client::start(node.task("write", location), None).end();
    assert!(status.success() && output.contains("written"), "{output}");
    assert!(matches!(node.event().await, Event::Attached { client: 42, .. }));

    node.node.commit(location);
    let counters = Arc::new(Counters::default());
    let local = tiffin_transport::local::Local::new(Arc::clone(node.node.memory()), counters);
    let written = local.in_place(location.slot, location.stamp).and_then(|view| view.to_vec()).unwrap();
    behavior::assert_pattern(location.stamp, 0, &written);

    let (status, output) = Client::start(node.task("read", location), None).end();
    assert!(status.success() && output.contains("read"), "{output}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnect_is_not_death_and_the_kernel_proves_death() {
    let mut node = Node::start();
    let nowhere = Location { slot: 0, stamp: 0 };

    let mut client = Client::start(node.task("stay", nowhere), None);
    client.wait_for_output("attached");
    let pid = client.0.id() as i32;
    assert_eq!(node.event().await, Event::Attached { client: 42, pid });
    assert!(node.events.try_recv().is_err(), "it lives");
    client.0.kill().unwrap();
    let mut event = node.event().await;
    if event == (Event::Disconnected { client: 42 }) {
        event = node.event().await;
    }
    assert_eq!(event, Event::Dead { client: 42 });
    client.0.wait().unwrap();

    let mut client = Client::start(node.task("hang-up", nowhere), None);
    client.wait_for_output("detached");
    let pid = client.0.id() as i32;
    assert_eq!(node.event().await, Event::Attached { client: 42, pid });
    assert_eq!(node.event().await, Event::Disconnected { client: 42 });
    assert!(node.events.try_recv().is_err(), "it lives");
    client.0.kill().unwrap();
    assert_eq!(node.event().await, Event::Dead { client: 42 });
    client.0.wait().unwrap();

    // A client that detached by other means is no longer watched.
    let mut client = Client::start(node.task("hang-up", nowhere), None);
    client.wait_for_output("detached");
    assert!(matches!(node.event().await, Event::Attached { .. }));
    assert_eq!(node.event().await, Event::Disconnected { client: 42 });
    node.server.forget(42);
    client.0.kill().unwrap();
    client.0.wait().unwrap();
    let last = Client::start(node.task("stay", nowhere), None);
    assert!(matches!(node.event().await, Event::Attached { .. }), "the next event concerns another client");
    assert!(last.end().0.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_users_and_wrong_tokens_get_no_memory() {
    let node = Node::start();
    let nowhere = Location { slot: 0, stamp: 0 };
    let (status, output) = Client::start(node.task("wrong-token", nowhere), None).end();
    assert!(status.success() && output.contains("refused: the token is wrong"), "{output}");

    // Only root can change its user.
    if std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0) {
        let (status, output) = Client::start(node.task("read", nowhere), Some(NOBODY)).end();
        let reason = format!("this memory is for user 0 only, and the peer is user {NOBODY}");
        assert!(status.success() && output.contains(&reason), "{output}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_fail_after_the_node_stopped() {
    let node = Node::start();
    let segment = node.node.memory().geometry().segment;
    let location = node.node.reserve(&[100]);
    node.node.commit(location);
    let attachment = Arc::new(shm::attach(&node.name, segment, 1, "secret", behavior::soon()).await.unwrap());
    let shm = Shm::new(Arc::clone(&attachment), Arc::default());
    let read = async || {
        let mut bytes = [0; 100];
        let targets = vec![TargetBuf::from(&mut bytes[..])];
        let op = ReadOp { slot: location.slot, stamp: location.stamp, offset: 0, targets };
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
