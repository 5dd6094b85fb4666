//! Calls of threads that may block, beside tasks.

use tiffin_rpc::{Blocking, LANES_MAX, with_blocking};
use tiffin_types::message::{Reserve, Role};
use tokio::runtime::Handle;

use super::*;

/// Waits for a call in this thread, as the Python package does.
fn block_on<T>(runtime: &Handle, call: impl Future<Output = T>) -> T {
    with_blocking(Blocking::Now, || runtime.block_on(call))
}

/// The same in a thread of its own.
fn call_in_thread(
    connection: &Connection,
    request: Request,
    deadline: Instant,
) -> JoinHandle<Result<Reply, CallError>> {
    let (connection, runtime) = (connection.clone(), Handle::current());
    tokio::task::spawn_blocking(move || block_on(&runtime, connection.call(&request, deadline)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_and_tasks_call_and_each_gets_its_own_reply() {
    for address in [any_port(), unix_name()] {
        let address = server(address, echo).await;
        let (connection, _) = Connection::open(&address, hello(), soon()).await.unwrap();
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let (connection, runtime) = (connection.clone(), Handle::current());
                tokio::task::spawn_blocking(move || {
                    for round in 0..200 {
                        let number = (thread * 200 + round) % 97;
                        let reply = block_on(&runtime, connection.call(&numbered(number), soon())).unwrap();
                        assert_eq!(reply, Reply::ViewsBegun(vec![true; number as usize]));
                    }
                })
            })
            .collect();
        let tasks: Vec<_> = (0..4)
            .map(|task| {
                let connection = connection.clone();
                tokio::spawn(async move {
                    for round in 0..200 {
                        let number = (task * 200 + round) % 89;
                        let reply = connection.call(&numbered(number), soon()).await.unwrap();
                        assert_eq!(reply, Reply::ViewsBegun(vec![true; number as usize]));
                    }
                })
            })
            .collect();
        for worker in threads.into_iter().chain(tasks) {
            worker.await.unwrap();
        }
        connection.close();
        connection.closed().await;
        let gone = call_in_thread(&connection, Request::Goodbye, soon());
        assert!(matches!(gone.await.unwrap(), Err(CallError::Lost { .. })));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thread_gives_up_at_its_deadline_and_its_late_reply_is_told() {
    // The first request is answered after the second.
    let address = server(any_port(), |outbox, mut inbox| async move {
        let mut kept = None;
        while let Some(Incoming::Request(id, request)) = inbox.next().await {
            match (request, kept) {
                (Request::Goodbye, None) => kept = Some(id),
                (_, Some(first)) => {
                    outbox.reply(first, &Reply::ViewsBegun(vec![true]));
                    outbox.reply(id, &Reply::Done);
                    kept = None;
                }
                (_, None) => outbox.reply(id, &Reply::Done),
            }
        }
    })
    .await;
    let (connection, _) = Connection::open(&address, hello(), soon()).await.unwrap();
    let (again, runtime) = (connection.clone(), Handle::current());
    let (told, mut tells) = mpsc::channel(1);
    let late = move |reply| told.try_send(reply).unwrap();
    let late = tokio::task::spawn_blocking(move || {
        let soon = Instant::now() + Duration::from_millis(20);
        block_on(&runtime, again.call_or(&Request::Goodbye, soon, late))
    });
    assert!(matches!(late.await.unwrap(), Err(CallError::Timeout { .. })));
    assert_eq!(connection.call(&numbered(0), soon()).await.unwrap(), Reply::Done);
    assert_eq!(tells.recv().await, Some(Reply::ViewsBegun(vec![true])));
}

/// A peer that replies and is gone.
#[tokio::test(flavor = "multi_thread")]
async fn the_end_that_comes_with_a_reply_is_noticed() {
    for address in [any_port(), unix_name()] {
        let address = server(address, |outbox, mut inbox| async move {
            if let Some(Incoming::Request(id, _)) = inbox.next().await {
                outbox.reply(id, &Reply::Done);
            }
        })
        .await;
        for _ in 0..300 {
            let (connection, _) = Connection::open(&address, hello(), soon()).await.unwrap();
            call_in_thread(&connection, Request::Goodbye, soon()).await.unwrap().unwrap();
            let closed = tokio::time::timeout(Duration::from_secs(60), connection.closed()).await;
            closed.expect("its end is noticed");
        }
    }
}

/// What a peer hears.
enum Heard {
    Hello(Hello),
    Request(RequestId, Request, Outbox),
    End(Role),
}

/// A peer that tells all it hears and replies to nothing. It refuses lanes above a number.
async fn listener(address: Address, lanes_max: u32) -> (Address, mpsc::UnboundedReceiver<Heard>) {
    let listener = Listener::bind(&address).await.unwrap();
    let address = listener.local_address().clone();
    let (tell, heard) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let Some(handshake) = Handshake::receive(listener.accept().await, soon()).await else { return };
            let hello = handshake.hello.clone();
            let _gone = tell.send(Heard::Hello(hello.clone()));
            if hello.lane > lanes_max {
                let refusal = Refusal { reason: Reason::Busy, message: "no more".to_owned() };
                handshake.refuse(refusal, soon()).await;
                continue;
            }
            let ((outbox, mut inbox), tell) = (handshake.welcome(Welcome::default()), tell.clone());
            tokio::spawn(async move {
                while let Some(message) = inbox.next().await {
                    let Incoming::Request(id, request) = message else { panic!("nobody was asked") };
                    let _gone = tell.send(Heard::Request(id, request, outbox.clone()));
                }
                let _gone = tell.send(Heard::End(hello.role));
            });
        }
    });
    (address, heard)
}

/// A connection to a listener, and what it heard last.
struct Bench {
    connection: Connection,
    heard: mpsc::UnboundedReceiver<Heard>,
    hellos: Vec<Hello>,
    ends: Vec<Role>,
}

impl Bench {
    async fn new(address: Address, lanes_max: u32) -> Self {
        let (address, heard) = listener(address, lanes_max).await;
        let (connection, _) = Connection::open(&address, hello(), soon()).await.unwrap();
        Self { connection, heard, hellos: Vec::new(), ends: Vec::new() }
    }

    /// The next request; hellos and ends are noted.
    async fn request(&mut self) -> (RequestId, Request, Outbox) {
        loop {
            match self.heard.recv().await.unwrap() {
                Heard::Hello(hello) => self.hellos.push(hello),
                Heard::Request(id, request, outbox) => return (id, request, outbox),
                Heard::End(role) => self.ends.push(role),
            }
        }
    }

    async fn end(&mut self) -> Role {
        while self.ends.is_empty() {
            match self.heard.recv().await.unwrap() {
                Heard::Hello(hello) => self.hellos.push(hello),
                Heard::End(role) => self.ends.push(role),
                Heard::Request(id, ..) => panic!("request {id:?} was not expected"),
            }
        }
        self.ends.remove(0)
    }

    fn lanes(&self) -> Vec<u32> {
        self.hellos.iter().filter(|it| it.role == Role::Lane).map(|it| it.lane).collect()
    }

    /// Calls in threads until a request comes on a lane. That one waits for its reply.
    async fn call_on_lane(&mut self) -> (JoinHandle<Result<Reply, CallError>>, RequestId, Outbox) {
        loop {
            let call = call_in_thread(&self.connection, numbered(1), soon());
            let (id, _, outbox) = self.request().await;
            if id.lane() > 0 {
                return (call, id, outbox);
            }
            outbox.reply(id, &Reply::Done);
            call.await.unwrap().unwrap();
        }
    }

    /// Opens a lane that is idle afterwards.
    async fn open_lane(&mut self) {
        let (call, id, outbox) = self.call_on_lane().await;
        outbox.reply(id, &Reply::Done);
        call.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thread_has_a_lane_and_tasks_do_not() {
    for address in [any_port(), unix_name()] {
        let mut bench = Bench::new(address, LANES_MAX).await;
        bench.open_lane().await;
        for _ in 0..3 {
            let (call, id, outbox) = bench.call_on_lane().await;
            assert_eq!(id.lane(), 1, "the idle one is used again");
            outbox.reply(id, &Reply::Done);
            call.await.unwrap().unwrap();
        }
        let connection = bench.connection.clone();
        let task = tokio::spawn(async move { connection.call(&numbered(2), soon()).await });
        let (id, _, outbox) = bench.request().await;
        assert_eq!(id.lane(), 0);
        outbox.reply(id, &Reply::Done);
        task.await.unwrap().unwrap();
        assert_eq!(bench.lanes(), [1]);
    }
}

/// Threads at the limit, and one beyond.
#[tokio::test(flavor = "multi_thread")]
async fn so_many_threads_have_lanes_and_the_next_shares_the_connection() {
    let mut bench = Bench::new(unix_name(), LANES_MAX + 1).await;
    let mut calls = Vec::new();
    for lane in 1..=LANES_MAX {
        let (call, id, outbox) = bench.call_on_lane().await;
        assert_eq!(id.lane(), lane);
        calls.push((call, id, outbox));
    }
    let beyond = call_in_thread(&bench.connection, numbered(1), soon());
    let (id, _, outbox) = bench.request().await;
    assert_eq!(id.lane(), 0);
    calls.push((beyond, id, outbox));
    for (call, id, outbox) in calls {
        outbox.reply(id, &Reply::Done);
        call.await.unwrap().unwrap();
    }
    assert_eq!(bench.lanes(), (1..=LANES_MAX).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_refuses_lanes_is_not_asked_again() {
    let mut bench = Bench::new(unix_name(), 1).await;
    let (first, first_id, first_outbox) = bench.call_on_lane().await;
    for _ in 0..20 {
        let call = call_in_thread(&bench.connection, numbered(1), soon());
        let (id, _, outbox) = bench.request().await;
        assert_eq!(id.lane(), 0);
        if bench.lanes().len() < 2 {
            // The refusal may still be on its way.
            while !matches!(bench.heard.recv().await, Some(Heard::Hello(it)) if it.lane == 2) {}
            bench.hellos.push(Hello { role: Role::Lane, lane: 2, ..hello() });
        }
        outbox.reply(id, &Reply::Done);
        call.await.unwrap().unwrap();
    }
    first_outbox.reply(first_id, &Reply::Done);
    first.await.unwrap().unwrap();
    bench.open_lane().await;
    assert_eq!(bench.lanes(), [1, 2], "the one that is open stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_breaks_ends_the_connection_and_the_reverse() {
    let mut bench = Bench::new(any_port(), LANES_MAX).await;
    let (call, _, outbox) = bench.call_on_lane().await;
    outbox.close();
    assert!(matches!(call.await.unwrap(), Err(CallError::Lost { .. })));
    bench.connection.closed().await;
    let mut ends = [bench.end().await, bench.end().await];
    ends.sort_by_key(|role| *role == Role::Lane);
    assert_eq!(ends, [Role::Client, Role::Lane]);

    let mut bench = Bench::new(any_port(), LANES_MAX).await;
    bench.open_lane().await;
    bench.connection.close();
    let mut ends = [bench.end().await, bench.end().await];
    ends.sort_by_key(|role| *role == Role::Lane);
    assert_eq!(ends, [Role::Client, Role::Lane]);
    let after = call_in_thread(&bench.connection, numbered(1), soon());
    assert!(matches!(after.await.unwrap(), Err(CallError::Lost { .. })));
}

/// A call that is given up leaves its lane busy until the reply has come, and the reply is told.
#[tokio::test(flavor = "multi_thread")]
async fn the_late_reply_on_a_lane_is_told_and_then_the_lane_is_idle() {
    let mut bench = Bench::new(unix_name(), 1).await;
    bench.open_lane().await;
    let (connection, runtime) = (bench.connection.clone(), Handle::current());
    let (told, mut tells) = mpsc::channel(1);
    let late = move |reply| told.try_send(reply).unwrap();
    let call = tokio::task::spawn_blocking(move || {
        let soon = Instant::now() + Duration::from_millis(20);
        let reserve = ClientToMaster::Reserve(Reserve::default());
        block_on(&runtime, connection.call_or(&reserve, soon, late))
    });
    let (id, _, outbox) = bench.request().await;
    assert_eq!(id.lane(), 1);
    assert!(matches!(call.await.unwrap(), Err(CallError::Timeout { .. })));
    let (cancel, request, _) = bench.request().await;
    assert_eq!((cancel.lane(), request), (1, ClientToMaster::Cancel(id).into()));
    let busy = call_in_thread(&bench.connection, numbered(1), soon());
    let (shared, _, shared_outbox) = bench.request().await;
    assert_eq!(shared.lane(), 0);
    shared_outbox.reply(shared, &Reply::Done);
    busy.await.unwrap().unwrap();
    outbox.reply(id, &Reply::ViewsBegun(vec![true]));
    assert_eq!(tells.recv().await, Some(Reply::ViewsBegun(vec![true])));
    bench.open_lane().await;
    assert_eq!(bench.ends, []);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_told_first_is_heard_first_on_a_lane_and_on_the_connection() {
    let mut bench = Bench::new(unix_name(), 1).await;
    bench.open_lane().await;
    for is_thread in [true, false] {
        let told = [ClientToMaster::Ping(Default::default()), ClientToMaster::Stat];
        let expected = told.clone();
        let (connection, runtime) = (bench.connection.clone(), Handle::current());
        let call = async move {
            let reserve = ClientToMaster::Reserve(Reserve::default());
            connection.call_after(&told, &reserve, soon(), drop).await
        };
        let call = match is_thread {
            true => tokio::task::spawn_blocking(move || block_on(&runtime, call)),
            false => tokio::spawn(call),
        };
        for expected in expected {
            let (id, request, outbox) = bench.request().await;
            assert_eq!((id.lane() > 0, request), (is_thread, expected.into()));
            outbox.reply(id, &Reply::Done);
        }
        let (id, _, outbox) = bench.request().await;
        outbox.reply(id, &Reply::ViewsBegun(Vec::new()));
        assert_eq!(call.await.unwrap().unwrap(), Reply::ViewsBegun(Vec::new()));
    }
}

/// The peer closes one connection of several on which threads and tasks wait.
#[tokio::test(flavor = "multi_thread")]
async fn all_that_wait_hear_of_the_end() {
    for closed in [0, 1] {
        let mut bench = Bench::new(unix_name(), 1).await;
        let (on_lane, _, lane) = bench.call_on_lane().await;
        let beside = call_in_thread(&bench.connection, numbered(1), soon());
        let (id, _, shared) = bench.request().await;
        assert_eq!(id.lane(), 0);
        let connection = bench.connection.clone();
        let task = tokio::spawn(async move { connection.call(&numbered(2), soon()).await });
        bench.request().await;
        [shared, lane][closed].close();
        for call in [on_lane, beside, task] {
            assert!(matches!(call.await.unwrap(), Err(CallError::Lost { .. })));
        }
    }
}

/// A thread that has other work first is not woken for its reply, and reads it when it polls again.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_polled_again_soon_reads_its_reply_then() {
    for then in [Blocking::Now, Blocking::Never] {
        let mut bench = Bench::new(unix_name(), 1).await;
        bench.open_lane().await;
        let (connection, runtime) = (bench.connection.clone(), Handle::current());
        let (replied, mut may_go_on) = mpsc::unbounded_channel::<()>();
        let thread = tokio::task::spawn_blocking(move || {
            let request = numbered(1);
            let mut call = Box::pin(connection.call(&request, soon()));
            runtime.block_on(std::future::poll_fn(|context| {
                assert!(with_blocking(Blocking::Soon, || call.as_mut().poll(context)).is_pending());
                std::task::Poll::Ready(())
            }));
            may_go_on.blocking_recv();
            with_blocking(then, || runtime.block_on(call))
        });
        let (id, _, outbox) = bench.request().await;
        assert_eq!(id.lane(), 1);
        outbox.reply(id, &Reply::ViewsBegun(vec![true]));
        replied.send(()).unwrap();
        assert_eq!(thread.await.unwrap().unwrap(), Reply::ViewsBegun(vec![true]));
    }
}
