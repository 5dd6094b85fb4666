//! The behaviour suite over every transport, and over TCP with injected faults.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tiffin_tls::{ClientCertificates, TlsClient, TlsFiles, TlsServer, ca};
use tiffin_transport::behavior::{self, Fixture, TestNode};
use tiffin_transport::faults::{FaultyConnect, Flaky, Plan};
use tiffin_transport::hedge::{BufferOwners, ReadControl};
use tiffin_transport::local::Local;
use tiffin_transport::shm::{self, Shm};
use tiffin_transport::tcp::frame::{DATA_VERSION, HELLO_BYTES, WelcomeHead};
use tiffin_transport::tcp::{self, Connect, DataListener, Identity, ReadOptions, Tcp, TcpConnect};
use tiffin_transport::{
    Capability, Counters, Instant, Outcomes, ReadOp, TargetBuf, TransferError, Transport, WriteOp,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet, block_in_place};

/// Stops a server together with its fixture.
struct Ends(JoinHandle<()>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn local(counters: &Arc<Counters>) -> Fixture {
    let node = Arc::new(TestNode::new());
    let transport = Arc::new(Local::new(Arc::clone(node.memory()), Arc::clone(counters)));
    Fixture { node, transport, is_lossy: false, keep: Box::new(()) }
}

async fn shared_memory(counters: &Arc<Counters>) -> Fixture {
    let node = Arc::new(TestNode::new());
    let segment = node.memory().geometry().segment;
    let name = format!("tiffin-test-{}-{segment}", std::process::id());
    let (events, receiver) = mpsc::channel(16);
    let server = shm::Server::new(Arc::clone(node.memory()), Box::new(|_| Ok(())), events);
    let task = tokio::spawn(server.run(shm::listen(&name).expect("a free name")));
    let attachment = shm::attach(&name, segment, 1, "", behavior::soon()).await.expect("attached");
    let transport = Arc::new(Shm::new(Arc::new(attachment), Arc::clone(counters)));
    Fixture { node, transport, is_lossy: false, keep: Box::new((Ends(task), receiver)) }
}

async fn data_socket(counters: &Arc<Counters>) -> (Arc<TestNode>, String, Ends) {
    data_socket_with(counters, None).await
}

async fn data_socket_with(counters: &Arc<Counters>, tls: Option<TlsServer>) -> (Arc<TestNode>, String, Ends) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound address").to_string();
    let (node, ends) = serve_on(counters, DataListener::Tcp(listener, tls), |_| Ok(()));
    (node, address, ends)
}

/// A test node behind a data socket that requires `admit` of each hello.
fn serve_on(
    counters: &Arc<Counters>,
    listener: DataListener,
    admit: impl Fn(&tcp::Hello) -> Result<(), String> + Send + Sync + 'static,
) -> (Arc<TestNode>, Ends) {
    let node = Arc::new(TestNode::new());
    let slots = Arc::clone(&node) as Arc<dyn tcp::SlotAccess>;
    let authorise = move |hello: &tcp::Hello| {
        admit(hello)?;
        Ok(Arc::new(tcp::Unlimited) as Arc<dyn tcp::Grant>)
    };
    let server =
        tcp::Server::new(Arc::clone(node.memory()), slots, Box::new(authorise), Arc::clone(counters));
    (node, Ends(tokio::spawn(server.run_on(listener))))
}

async fn over_tcp(counters: &Arc<Counters>, connect: Box<dyn Connect>, is_lossy: bool) -> Fixture {
    let (node, address, keep) = data_socket(counters).await;
    let identity = Identity { client: 1, segment: node.memory().geometry().segment, token: String::new() };
    let transport = Arc::new(Tcp::with_connect(address, identity, Arc::clone(counters), connect));
    Fixture { node, transport, is_lossy, keep: Box::new(keep) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn inside_one_process() {
    let counters = Arc::new(Counters::default());
    behavior::all(|| async { local(&counters) }).await;
    assert!(counters.local.read() > 0 && counters.local.written() > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn through_shared_memory_no_byte_crosses_a_socket() {
    let counters = Arc::new(Counters::default());
    behavior::all(|| shared_memory(&counters)).await;
    assert!(counters.shm.read() > 0 && counters.shm.written() > 0);
    for other in [&counters.tcp, &counters.served, &counters.local] {
        assert_eq!((other.read(), other.written()), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn through_tcp() {
    let counters = Arc::new(Counters::default());
    behavior::all(|| over_tcp(&counters, Box::new(TcpConnect::default()), false)).await;
    assert!(counters.tcp.read() > 0 && counters.tcp.written() > 0);
    assert!(counters.served.read() >= counters.tcp.read(), "every byte read was served");
    assert_eq!(counters.shm.read() + counters.local.read(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn through_tls() {
    let counters = Arc::new(Counters::default());
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| Some(folder.path().join(name));
    ca::create(folder.path(), &["127.0.0.1".to_owned()], Duration::from_secs(3600)).expect("certificates");
    let files = TlsFiles { cert: path(ca::SERVER_CERT), key: path(ca::SERVER_KEY), ..TlsFiles::default() };
    let server = TlsServer::open(&files, ClientCertificates::Required).expect("a certificate");
    let trusting = TlsFiles { ca: path(ca::CA_CERT), ..TlsFiles::default() };
    let tls = TlsClient::open(&trusting).expect("a CA");
    for may_block in [false, true] {
        behavior::all(|| async {
            let (node, address, keep) = data_socket_with(&counters, server.clone()).await;
            let segment = node.memory().geometry().segment;
            let identity = Identity { client: 1, segment, token: String::new() };
            let tcp = Tcp::new(address, identity, Arc::clone(&counters)).secured(tls.clone());
            let transport: Arc<dyn Transport> =
                if may_block { Arc::new(Blocking(tcp.with_threads(4))) } else { Arc::new(tcp) };
            Fixture { node, transport, is_lossy: false, keep: Box::new(keep) }
        })
        .await;
    }
    assert!(counters.tcp.read() > 0 && counters.tcp.written() > 0);

    // A client without TLS, and one with TLS where the node has none.
    for (server, client, expected) in
        [(server.clone(), None, "it accepts only TLS"), (None, tls.clone(), "it does not speak TLS")]
    {
        let (node, address, _keep) = data_socket_with(&counters, server).await;
        let segment = node.memory().geometry().segment;
        let identity = Identity { client: 1, segment, token: String::new() };
        let tcp = Tcp::new(address, identity, Arc::clone(&counters)).secured(client);
        let error = tcp.probe(behavior::soon()).await.expect_err("no connection").to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// The same transport, used by a thread that may block.
struct Blocking(Tcp);

impl Transport for Blocking {
    fn capability(&self) -> Capability {
        self.0.capability()
    }

    fn read<'a>(&'a self, ops: &'a [ReadOp<'a>], deadline: Instant) -> Outcomes<'a> {
        let options = ReadOptions { may_block: true, ..ReadOptions::default() };
        Box::pin(self.0.read_with(ops, options, deadline))
    }

    fn write<'a>(&'a self, ops: &'a [WriteOp<'a>], deadline: Instant) -> Outcomes<'a> {
        Box::pin(self.0.write_with(ops, true, deadline))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn through_tcp_with_blocking_callers() {
    let counters = Arc::new(Counters::default());
    for threads in [1, 4] {
        let make = || async {
            let (node, address, keep) = data_socket(&counters).await;
            let segment = node.memory().geometry().segment;
            let identity = Identity { client: 1, segment, token: String::new() };
            let tcp = Tcp::new(address, identity, Arc::clone(&counters)).with_threads(threads);
            Fixture { node, transport: Arc::new(Blocking(tcp)), is_lossy: false, keep: Box::new(keep) }
        };
        behavior::all(make).await;
    }
    assert!(counters.tcp.read() > 0 && counters.tcp.written() > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn through_tcp_with_faults_and_threads_that_write_together() {
    let seeds = AtomicU64::new(100);
    let counters = Arc::new(Counters::default());
    for (short, delay, reset) in [(20, 20, 5), (0, 0, 20)] {
        behavior::all(|| async {
            let seed = seeds.fetch_add(1, Ordering::Relaxed);
            let plan = Plan { seed, short, delay, reset };
            let connect = Box::new(FaultyConnect::new(TcpConnect::default(), plan));
            let (node, address, keep) = data_socket(&counters).await;
            let segment = node.memory().geometry().segment;
            let identity = Identity { client: 1, segment, token: String::new() };
            let tcp = Tcp::with_connect(address, identity, Arc::clone(&counters), connect).with_threads(4);
            Fixture { node, transport: Arc::new(Blocking(tcp)), is_lossy: true, keep: Box::new(keep) }
        })
        .await;
    }
}

/// The node learns which user is at the other end.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn through_a_unix_socket() {
    let counters = Arc::new(Counters::default());
    let own = tcp::Peer::Local(rustix::process::geteuid().as_raw());
    for may_block in [false, true] {
        let number = AtomicU64::new(0);
        behavior::all(|| async {
            let number = number.fetch_add(1, Ordering::Relaxed);
            let name = format!("tiffin-test-{}-data-{may_block}-{number}", std::process::id());
            let listener = DataListener::Local(shm::listen(&name).expect("a free name"));
            let admit = move |hello: &tcp::Hello| {
                if hello.peer == Some(own) { Ok(()) } else { Err(format!("{:?}", hello.peer)) }
            };
            let (node, keep) = serve_on(&counters, listener, admit);
            let segment = node.memory().geometry().segment;
            let identity = Identity { client: 1, segment, token: String::new() };
            let tcp = Tcp::new(tcp::local_address(&name), identity, Arc::clone(&counters));
            let transport: Arc<dyn Transport> =
                if may_block { Arc::new(Blocking(tcp)) } else { Arc::new(tcp) };
            Fixture { node, transport, is_lossy: false, keep: Box::new(keep) }
        })
        .await;
    }
    assert!(counters.tcp.read() > 0 && counters.tcp.written() > 0);
}

/// A read from a cached location succeeds only on a member of the same epoch.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn cached_location_is_valid_on_members_only() {
    let counters = Arc::new(Counters::default());
    let (node, address, _server) = data_socket(&counters).await;
    let identity = Identity { client: 1, segment: node.memory().geometry().segment, token: String::new() };
    let tcp = Arc::new(Tcp::new(address, identity, counters));
    let transport = Arc::clone(&tcp) as Arc<dyn Transport>;
    let fixture = Fixture { node: Arc::clone(&node), transport, is_lossy: false, keep: Box::new(()) };
    for (len, may_block) in [(10, true), (10, false), (100_000, true), (5_000_000, false)] {
        let location = fixture.put(&[len]).await;
        let read = async |epoch| {
            let mut bytes = vec![0; len as usize];
            let targets = vec![TargetBuf::from(&mut bytes[..])];
            let op = ReadOp { slot: location.slot, stamp: location.stamp, offset: 0, targets };
            let options = ReadOptions { cached_epoch: Some(epoch), may_block };
            let outcome = tcp.read_with(&[op], options, behavior::soon()).await.remove(0);
            if outcome.is_ok() {
                behavior::assert_pattern(location.stamp, 0, &bytes);
            }
            outcome
        };
        assert_eq!(read(6).await, Err(TransferError::Stale), "not a member");
        node.join(6);
        assert_eq!(read(6).await, Ok(()));
        assert_eq!(read(5).await, Err(TransferError::Stale), "another epoch");
        node.leave_in_sends(true);
        assert_eq!(read(6).await, Err(TransferError::Stale), "it left during the send");
        node.leave_in_sends(false);
        node.join(7);
        node.retire(location);
        assert_eq!(read(7).await, Err(TransferError::Stale), "the object is retired");
        node.join(0);
    }
    assert_eq!(node.transfers(), 0);
}

/// Of reads that share buffers, a stopped or late one writes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn reads_do_not_write_into_buffers_of_other_owners() {
    let counters = Arc::new(Counters::default());
    let (node, address, _server) = data_socket(&counters).await;
    let identity = Identity { client: 1, segment: node.memory().geometry().segment, token: String::new() };
    let tcp = Arc::new(Tcp::new(address, identity, counters));
    let transport = Arc::clone(&tcp) as Arc<dyn Transport>;
    let fixture = Fixture { node: Arc::clone(&node), transport, is_lossy: false, keep: Box::new(()) };
    let lens = [10, 20_000, 5_000_000];
    for may_block in [true, false] {
        let mut locations = Vec::new();
        for len in lens {
            locations.push(fixture.put(&[len]).await);
        }
        let read = async |watch: &Arc<ReadControl>| {
            let mut bytes: Vec<_> = lens.iter().map(|len| vec![0xee; *len as usize]).collect();
            let op = |(location, bytes): (&behavior::Location, _)| ReadOp {
                slot: location.slot,
                stamp: location.stamp,
                offset: 0,
                targets: vec![TargetBuf::from(bytes)],
            };
            let ops: Vec<_> = locations.iter().zip(bytes.iter_mut().map(Vec::as_mut_slice)).map(op).collect();
            let options = ReadOptions { may_block, ..ReadOptions::default() };
            let outcomes = tcp.read_controlled(&ops, options, Some(watch), behavior::soon()).await;
            drop(ops);
            (outcomes, bytes)
        };
        let owners = Arc::new(BufferOwners::new(lens.len()));
        let watch = |first: u64| {
            let ops = (0..lens.len()).map(|item| (item, first + item as u64)).collect();
            Arc::new(ReadControl::new(Arc::clone(&owners), ops))
        };
        let stopped = watch(1);
        stopped.stop();
        let (outcomes, bytes) = read(&stopped).await;
        assert_eq!(outcomes, vec![Err(TransferError::Timeout); lens.len()]);
        assert!(bytes.iter().flatten().all(|byte| *byte == 0xee) && stopped.arrivals() == 0);

        // Another read owns the second buffer.
        assert!(owners.take(1, 99));
        let late = watch(10);
        let (outcomes, bytes) = read(&late).await;
        assert!(matches!(outcomes[1], Err(TransferError::Lost { .. })), "{outcomes:?}");
        assert!(late.has_yielded() && bytes[1].iter().all(|byte| *byte == 0xee));
        if outcomes[0].is_ok() {
            behavior::assert_pattern(locations[0].stamp, 0, &bytes[0]);
        }
        (0..lens.len()).for_each(|item| owners.release(item, 10 + item as u64));
        owners.release(1, 99);
        let whole = watch(20);
        let (outcomes, bytes) = read(&whole).await;
        assert_eq!(outcomes, vec![Ok(()); lens.len()]);
        locations
            .iter()
            .zip(&bytes)
            .for_each(|(location, bytes)| behavior::assert_pattern(location.stamp, 0, bytes));
        assert!(whole.arrivals() >= 3 && whole.first_arrival().is_some() && !whole.has_yielded());
        assert!(!owners.take(2, 1), "a completed read stays the owner");
    }
}

const BLOCKING: ReadOptions = ReadOptions { cached_epoch: None, may_block: true };

/// The same transport, used by threads that block in their sockets.
struct InThread {
    tcp: Tcp,
    runtime: Handle,
}

/// Runs `work` in a thread outside of the runtime.
fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    block_in_place(|| std::thread::scope(|scope| scope.spawn(work).join().expect("it did not panic")))
}

impl Transport for InThread {
    fn capability(&self) -> Capability {
        self.tcp.capability()
    }

    fn read<'a>(&'a self, ops: &'a [ReadOp<'a>], deadline: Instant) -> Outcomes<'a> {
        Box::pin(
            async move { in_thread(|| self.runtime.block_on(self.tcp.read_with(ops, BLOCKING, deadline))) },
        )
    }

    fn write<'a>(&'a self, ops: &'a [WriteOp<'a>], deadline: Instant) -> Outcomes<'a> {
        Box::pin(async move { in_thread(|| self.runtime.block_on(self.tcp.write_with(ops, true, deadline))) })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn through_tcp_from_threads() {
    let counters = Arc::new(Counters::default());
    behavior::all(|| async {
        let (node, address, keep) = data_socket(&counters).await;
        let identity =
            Identity { client: 1, segment: node.memory().geometry().segment, token: String::new() };
        let tcp = Tcp::new(address, identity, Arc::clone(&counters));
        let transport = Arc::new(InThread { tcp, runtime: Handle::current() });
        Fixture { node, transport, is_lossy: false, keep: Box::new(keep) }
    })
    .await;
    assert!(counters.tcp.read() > 0 && counters.tcp.written() > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn blocked_thread_returns_at_its_deadline() {
    // A server that welcomes connections, then sends nothing.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (ended, mut ends) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut hello = [0; HELLO_BYTES];
            // On a busy machine the client may give up before the welcome, and retries.
            if stream.read_exact(&mut hello).await.is_ok()
                && stream.write_all(&WelcomeHead::encode(DATA_VERSION, Ok(()), "")).await.is_ok()
            {
                ended.send(stream.read_to_end(&mut Vec::new()).await.map(|sent| sent > 0)).unwrap();
            }
        }
    });
    let tcp = Tcp::new(address, Identity { client: 1, segment: 1, token: String::new() }, Arc::default());
    let mut bytes = [0; 100];
    let (runtime, mut time) = (Handle::current(), Duration::from_millis(30));
    loop {
        let op = ReadOp { slot: 0, stamp: 1, offset: 0, targets: vec![TargetBuf::from(&mut bytes[..])] };
        let soon = Instant::now() + time;
        let outcomes = in_thread(|| runtime.block_on(tcp.read_with(&[op], BLOCKING, soon)));
        assert_eq!(outcomes, [Err(TransferError::Timeout)]);
        time *= 2;
        // The incomplete stream is closed. Without a request on it, the client was not waiting for an answer.
        if let Ok(Some(Ok(true))) = tokio::time::timeout(time, ends.recv()).await {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn through_tcp_with_faults() {
    let seeds = AtomicU64::new(1);
    let counters = Arc::new(Counters::default());
    for (short, delay, reset) in [(300, 100, 0), (20, 20, 5), (0, 0, 20)] {
        behavior::all(|| {
            let seed = seeds.fetch_add(1, Ordering::Relaxed);
            let plan = Plan { seed, short, delay, reset };
            over_tcp(&counters, Box::new(FaultyConnect::new(TcpConnect::default(), plan)), true)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn inside_one_process_with_operations_lost() {
    let counters = Arc::new(Counters::default());
    behavior::all(|| async {
        let Fixture { node, keep, .. } = local(&counters);
        let local = Local::new(Arc::clone(node.memory()), Arc::clone(&counters));
        Fixture { node, transport: Arc::new(Flaky::new(local, 7, 200)), is_lossy: true, keep }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn transfers_and_clients_end_with_the_connections() {
    let counters = Arc::new(Counters::default());
    let fixture = over_tcp(&counters, Box::new(TcpConnect::default()), false).await;
    let location = fixture.node.reserve(&[9 << 20]);
    let bytes = behavior::pattern(location.stamp, 9 << 20);
    fixture.write(location, 0, &[&bytes]).await.unwrap();
    fixture.node.commit(location);
    assert_eq!(fixture.node.connected_clients(), (1, 0), "several streams are one client");

    // Reads that are dropped half-way end their transfer at the node, at any moment.
    let mut tasks = JoinSet::new();
    for polls in 1..20 {
        let transport = Arc::clone(&fixture.transport);
        tasks.spawn(async move {
            let mut bytes = vec![0; 9 << 20];
            let targets = vec![tiffin_transport::TargetBuf::from(&mut bytes[..])];
            let op =
                tiffin_transport::ReadOp { slot: location.slot, stamp: location.stamp, offset: 0, targets };
            let ops = [op];
            let mut read = std::pin::pin!(transport.read(&ops, behavior::soon()));
            let mut polled = 0;
            std::future::poll_fn(|context| {
                polled += 1;
                match read.as_mut().poll(context) {
                    std::task::Poll::Pending if polled < polls => std::task::Poll::Pending,
                    _ => std::task::Poll::Ready(()),
                }
            })
            .await;
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    let Fixture { node, transport, keep, .. } = fixture;
    assert_eq!(transport.capability().name, "tcp");
    drop(transport);
    // All streams may have been closed in between, so there may be several connects.
    while node.connected_clients().0 != node.connected_clients().1 || node.transfers() > 0 {
        tokio::task::yield_now().await;
    }
    drop(keep);
}
