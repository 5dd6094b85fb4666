//! The suite, over every transport, and over TCP on which things go wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tiffin_transport::Counters;
use tiffin_transport::behavior::{self, Shelf, Stage};
use tiffin_transport::faults::{FaultyConnect, Flaky, Plan};
use tiffin_transport::local::Local;
use tiffin_transport::shm::{self, Shm};
use tiffin_transport::tcp::{self, Connect, Identity, Tcp, TcpConnect};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

/// Ends a server with its stage.
struct Ends(JoinHandle<()>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn local(counters: &Arc<Counters>) -> Stage {
    let shelf = Arc::new(Shelf::new());
    let transport = Arc::new(Local::new(Arc::clone(shelf.memory()), Arc::clone(counters)));
    Stage { shelf, transport, is_lossy: false, keep: Box::new(()) }
}

async fn shared_memory(counters: &Arc<Counters>) -> Stage {
    let shelf = Arc::new(Shelf::new());
    let segment = shelf.memory().geometry().segment;
    let name = format!("tiffin-test-{}-{segment}", std::process::id());
    let (events, receiver) = mpsc::channel(16);
    let server = shm::Server::new(Arc::clone(shelf.memory()), Box::new(|_| Ok(())), events);
    let task = tokio::spawn(server.run(shm::listen(&name).expect("a free name")));
    let attachment = shm::attach(&name, segment, 1, "", behavior::soon()).await.expect("attached");
    let transport = Arc::new(Shm::new(Arc::new(attachment), Arc::clone(counters)));
    Stage { shelf, transport, is_lossy: false, keep: Box::new((Ends(task), receiver)) }
}

async fn over_tcp(counters: &Arc<Counters>, connect: Box<dyn Connect>, is_lossy: bool) -> Stage {
    let shelf = Arc::new(Shelf::new());
    let segment = shelf.memory().geometry().segment;
    let keeper = Arc::clone(&shelf) as Arc<dyn tcp::Keeper>;
    let server =
        tcp::Server::new(Arc::clone(shelf.memory()), keeper, Box::new(|_| Ok(())), Arc::clone(counters));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("a bound address").to_string();
    let task = tokio::spawn(server.run(listener));
    let identity = Identity { client: 1, segment, token: String::new() };
    let transport = Arc::new(Tcp::with_connect(address, identity, Arc::clone(counters), connect));
    Stage { shelf, transport, is_lossy, keep: Box::new(Ends(task)) }
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
    behavior::all(|| over_tcp(&counters, Box::new(TcpConnect), false)).await;
    assert!(counters.tcp.read() > 0 && counters.tcp.written() > 0);
    assert!(counters.served.read() >= counters.tcp.read(), "what was read was sent");
    assert_eq!(counters.shm.read() + counters.local.read(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn through_tcp_on_which_things_go_wrong() {
    let seeds = AtomicU64::new(1);
    let counters = Arc::new(Counters::default());
    for (short, delay, reset) in [(300, 100, 0), (20, 20, 5), (0, 0, 20)] {
        behavior::all(|| {
            let seed = seeds.fetch_add(1, Ordering::Relaxed);
            let plan = Plan { seed, short, delay, reset };
            over_tcp(&counters, Box::new(FaultyConnect::new(TcpConnect, plan)), true)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn inside_one_process_with_operations_lost() {
    let counters = Arc::new(Counters::default());
    behavior::all(|| async {
        let Stage { shelf, keep, .. } = local(&counters);
        let local = Local::new(Arc::clone(shelf.memory()), Arc::clone(&counters));
        Stage { shelf, transport: Arc::new(Flaky::new(local, 7, 200)), is_lossy: true, keep }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn holds_and_visits_end_with_the_connections() {
    let counters = Arc::new(Counters::default());
    let stage = over_tcp(&counters, Box::new(TcpConnect), false).await;
    let place = stage.shelf.reserve(&[9 << 20]);
    let bytes = behavior::pattern(place.stamp, 9 << 20);
    stage.write(place, 0, &[&bytes]).await.unwrap();
    stage.shelf.commit(place);
    assert_eq!(stage.shelf.visits(), (1, 0), "several streams of one client are one visit");

    // Reads that are dropped half-way leave no hold, whatever the moment.
    let mut tasks = JoinSet::new();
    for polls in 1..20 {
        let transport = Arc::clone(&stage.transport);
        tasks.spawn(async move {
            let mut bytes = vec![0; 9 << 20];
            let targets = vec![tiffin_transport::TargetBuf::from(&mut bytes[..])];
            let op = tiffin_transport::ReadOp { slot: place.slot, stamp: place.stamp, offset: 0, targets };
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
    let Stage { shelf, transport, keep, .. } = stage;
    assert_eq!(transport.capability().name, "tcp");
    drop(transport);
    // All streams may have been closed in between, so that there was more than one visit.
    while shelf.visits().0 != shelf.visits().1 || shelf.holds() > 0 {
        tokio::task::yield_now().await;
    }
    drop(keep);
}
