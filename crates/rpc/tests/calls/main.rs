//! Real sockets, well-behaved and ill-behaved peers. Nothing here sleeps: where time matters, tokio's clock
//! is paused and jumps to the next deadline as soon as nobody has anything to do.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use tiffin_proto::frame::{self, HEADER_BYTES, PAYLOAD_BYTES_MAX};
use tiffin_proto::{Incoming, decode, encode_reply, encode_request};
use tiffin_rpc::{
    Address, CallError, Connection, Handshake, Inbox, Listener, OUTBOX_BYTES_MAX, Outbox, Peer, Reach,
    SendError, Stream, dial,
};
use tiffin_types::message::{
    Allocate, ClientToMaster, Hello, MasterToMember, Reason, Refusal, Reply, Request, Resolve, Resolved,
    VERSION_MAJOR, Welcome,
};
use tiffin_types::{BATCH_ITEMS_MAX, ClientId, Key, RequestId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

mod threads;
mod tls;

/// Far enough that only a hang reaches it.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn hello() -> Hello {
    Hello { namespace: "default".to_owned(), client: ClientId(7), ..Hello::default() }
}

fn any_port() -> Address {
    "127.0.0.1:0".parse().unwrap()
}

/// A name that no other test of any process uses at the same time.
fn unix_name() -> Address {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("unix:@tiffin-rpc-test-{}-{count}", std::process::id()).parse().unwrap()
}

/// Lets everybody in and hands each connection to `serve`.
async fn server<F>(address: Address, serve: impl Fn(Outbox, Inbox) -> F + Send + 'static) -> Address
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = Listener::bind(&address).await.unwrap();
    let address = listener.local_address().clone();
    tokio::spawn(async move {
        loop {
            let stream = listener.accept().await;
            if let Some(handshake) = Handshake::receive(stream, soon()).await {
                let (outbox, inbox) = handshake.welcome(Welcome { epoch: 5, ..Welcome::default() });
                tokio::spawn(serve(outbox, inbox));
            }
        }
    });
    address
}

/// Answers `Allocate` with as many views as its client's number, everything else with `Done`.
async fn echo(outbox: Outbox, mut inbox: Inbox) {
    while let Some(message) = inbox.next().await {
        match message {
            Incoming::Request(id, Request::MasterToMember(MasterToMember::Allocate(allocate))) => {
                outbox.reply(id, &Reply::ViewsBegun(vec![true; allocate.client.0 as usize]));
            }
            Incoming::Request(id, _) => outbox.reply(id, &Reply::Done),
            Incoming::Reply(..) => {}
        }
    }
}

fn numbered(number: u64) -> Request {
    MasterToMember::Allocate(Allocate { client: ClientId(number), ..Allocate::default() }).into()
}

/// A peer without manners: does what `behave` does with the first stream that comes.
async fn rude<F>(behave: impl FnOnce(TcpStream) -> F + Send + 'static) -> (Address, JoinHandle<()>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let task = tokio::spawn(async move { behave(listener.accept().await.unwrap().0).await });
    (address, task)
}

async fn read_frame(stream: &mut TcpStream) -> io::Result<Incoming> {
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head).await?;
    let header = frame::decode_header(&head).unwrap();
    let mut payload = vec![0; header.len as usize];
    stream.read_exact(&mut payload).await?;
    frame::verify(&header, &payload).unwrap();
    Ok(decode(&header, &payload).unwrap())
}

/// The server's half of the handshake, by hand.
async fn let_in(stream: &mut TcpStream) {
    let Incoming::Request(id, Request::Hello(_)) = read_frame(stream).await.unwrap() else { panic!() };
    let welcome = Welcome { major: VERSION_MAJOR, ..Welcome::default() };
    stream.write_all(&encode_reply(id, &Reply::Welcome(welcome)).unwrap()).await.unwrap();
}

async fn raw(address: &Address) -> TcpStream {
    TcpStream::connect(address.to_string()).await.unwrap()
}

/// On a paused clock, this moment is the deadline, give or take the grain of the timer.
fn assert_paused_at(deadline: Instant) {
    let late = Instant::now().checked_duration_since(deadline).expect("it gave up too early");
    assert!(late < Duration::from_millis(10), "it gave up {late:?} too late");
}

/// Says hello by hand and reads the welcome.
async fn raw_let_in(address: &Address) -> TcpStream {
    let mut stream = raw(address).await;
    let hello = Hello { major: VERSION_MAJOR, ..hello() };
    stream.write_all(&encode_request(RequestId(0), &Request::Hello(hello)).unwrap()).await.unwrap();
    assert!(matches!(read_frame(&mut stream).await, Ok(Incoming::Reply(_, Reply::Welcome(_)))));
    stream
}

/// The peer has hung up: nothing comes, or a reset.
async fn assert_cut_off(mut stream: TcpStream) {
    let mut rest = Vec::new();
    if stream.read_to_end(&mut rest).await.is_ok() {
        assert_eq!(rest, b"");
    }
}

#[tokio::test]
async fn a_call_is_answered_over_tcp_and_over_unix() {
    for address in [any_port(), unix_name(), "[::1]:0".parse().unwrap(), "localhost:0".parse().unwrap()] {
        let address = server(address, echo).await;
        let (connection, welcome) = Connection::open(&address, hello(), soon()).await.unwrap();
        assert_eq!((welcome.epoch, welcome.major), (5, VERSION_MAJOR));
        let reply = connection.call(&numbered(3), soon()).await.unwrap();
        assert_eq!(reply, Reply::ViewsBegun(vec![true; 3]), "{address}");
    }
}

#[tokio::test]
async fn a_unix_peer_is_known_by_its_process() {
    let address = unix_name();
    let listener = Listener::bind(&address).await.unwrap();
    let (ours, theirs) = tokio::join!(listener.accept(), Stream::connect(&address, Reach::Near));
    let pid = i32::try_from(std::process::id()).unwrap();
    assert!(matches!(ours.peer(), Peer::Unix { pid: Some(found), .. } if found == pid));
    assert!(matches!(theirs.unwrap().peer(), Peer::Unix { .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_find_their_callers_in_any_order() {
    const CALLS: u64 = 200;
    // Holds all requests back, then answers them from the last to the first.
    let address = server(any_port(), async |outbox, mut inbox| {
        let mut held = Vec::new();
        while let Some(Incoming::Request(id, Request::MasterToMember(MasterToMember::Allocate(allocate)))) =
            inbox.next().await
        {
            held.push((id, allocate.client.0));
            if held.len() as u64 == CALLS {
                for (id, number) in held.drain(..).rev() {
                    outbox.reply(id, &Reply::ViewsBegun(vec![false; number as usize]));
                }
            }
        }
    })
    .await;
    let (connection, _) = Connection::open(&address, hello(), soon()).await.unwrap();
    let calls: Vec<_> = (0..CALLS)
        .map(|number| {
            let connection = connection.clone();
            tokio::spawn(async move { (number, connection.call(&numbered(number), soon()).await) })
        })
        .collect();
    for call in calls {
        let (number, reply) = call.await.unwrap();
        assert_eq!(reply.unwrap(), Reply::ViewsBegun(vec![false; number as usize]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_asks_faster_than_it_reads_is_slowed_down() {
    // More than may wait for a peer, both ways at once.
    const CALLS: usize = OUTBOX_BYTES_MAX / 6_000_000 + 2;
    let address = server(any_port(), async |outbox, mut inbox| {
        while let Some(Incoming::Request(id, Request::ClientToMaster(ClientToMaster::Resolve(resolve)))) =
            inbox.next().await
        {
            let names = resolve.keys.iter().map(|key| key.to_string()).collect();
            let item = tiffin_types::message::ResolveOutcome::Unavailable(names);
            outbox.reply(id, &Reply::Resolved(Resolved { items: vec![item], nodes: Vec::new() }));
        }
    })
    .await;
    let (connection, _) = Connection::open(&address, hello(), soon()).await.unwrap();
    let keys: Vec<Key> = (0..60_000).map(|n| Key::new(format!("{n:0100}").as_bytes()).unwrap()).collect();
    let request = ClientToMaster::Resolve(Resolve { keys, ..Resolve::default() });
    let calls = (0..CALLS).map(|_| {
        let (connection, request) = (connection.clone(), request.clone());
        tokio::spawn(async move { connection.call(&request, soon()).await })
    });
    for call in calls.collect::<Vec<_>>() {
        let Reply::Resolved(resolved) = call.await.unwrap().unwrap() else { panic!() };
        let tiffin_types::message::ResolveOutcome::Unavailable(names) = &resolved.items[0] else { panic!() };
        assert_eq!((names.len(), names[59_999].as_str()), (60_000, format!("{:0100}", 59_999).as_str()));
    }
}

#[tokio::test]
async fn a_side_that_answers_nothing_says_so() {
    let (heard, mut hears) = mpsc::channel(1);
    let address = server(any_port(), move |outbox, mut inbox| {
        let heard = heard.clone();
        async move {
            outbox.request(RequestId(1), &Request::Goodbye).unwrap();
            heard.send(inbox.next().await).await.unwrap();
        }
    })
    .await;
    let _connection = Connection::open(&address, hello(), soon()).await.unwrap();
    let Some(Some(Incoming::Reply(_, Reply::Refused(refusal)))) = hears.recv().await else { panic!() };
    assert_eq!(refusal.reason, Reason::NotForYou);
}

#[tokio::test]
async fn a_refusal_is_an_error_with_its_reason() {
    let listener = Listener::bind(&any_port()).await.unwrap();
    let address = listener.local_address().clone();
    tokio::spawn(async move {
        let handshake = Handshake::receive(listener.accept().await, soon()).await.unwrap();
        assert_eq!(handshake.hello.client, ClientId(7));
        let message = "the token is wrong".to_owned();
        handshake.refuse(Refusal { reason: Reason::Unauthenticated, message }, soon()).await;
    });
    let error = Connection::open(&address, hello(), soon()).await.unwrap_err();
    let CallError::Refused(refusal) = &error else { panic!("{error}") };
    assert_eq!(refusal.reason, Reason::Unauthenticated);
    assert!(error.to_string().contains("hint: give the token"), "{error}");
}

#[tokio::test]
async fn nobody_there_is_an_error_that_names_the_address() {
    let listener = Listener::bind(&any_port()).await.unwrap();
    let closed = listener.local_address().clone();
    drop(listener);
    for address in [closed, unix_name()] {
        let error = Connection::open(&address, hello(), soon()).await.unwrap_err();
        assert!(matches!(error, CallError::Connect { .. }), "{error}");
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    }
}

#[tokio::test]
async fn unresolvable_host_is_named_as_such() {
    // The top-level domain `invalid` is reserved and never has an address.
    for reach in [Reach::Near, Reach::Far] {
        let address: Address = "host.invalid:7400".parse().unwrap();
        let error = dial(&address, reach, hello(), soon()).await.unwrap_err();
        assert!(matches!(error, CallError::Resolve { .. }), "{error}");
        assert!(error.to_string().starts_with("cannot resolve the host of `host.invalid:7400`"), "{error}");
    }
}

#[tokio::test]
async fn an_address_in_use_is_refused_with_a_hint() {
    for address in [any_port(), unix_name()] {
        let first = Listener::bind(&address).await.unwrap();
        let error = Listener::bind(first.local_address()).await.unwrap_err().to_string();
        assert!(error.contains(&first.local_address().to_string()), "{error}");
        assert!(error.contains("in use") && error.contains("hint: another process"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_never_answers_is_a_timeout() {
    // Silent from the start: the hello waits.
    let (silent, _task) = rude(async |_stream| std::future::pending().await).await;
    let deadline = Instant::now() + Duration::from_secs(3);
    let error = Connection::open(&silent, hello(), deadline).await.unwrap_err();
    assert!(matches!(error, CallError::Unanswered { is_silent: true, .. }), "{error}");
    assert_paused_at(deadline);
}

#[tokio::test]
async fn a_late_answer_is_ignored_and_the_connection_lives_on() {
    let (release, released) = tokio::sync::oneshot::channel::<()>();
    let (address, _task) = rude(async |mut stream| {
        let_in(&mut stream).await;
        let Incoming::Request(first, _) = read_frame(&mut stream).await.unwrap() else { panic!() };
        released.await.unwrap();
        let Incoming::Request(second, _) = read_frame(&mut stream).await.unwrap() else { panic!() };
        stream.write_all(&encode_reply(first, &Reply::ViewsBegun(vec![true])).unwrap()).await.unwrap();
        stream.write_all(&encode_reply(second, &Reply::Done).unwrap()).await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    let (connection, _) = Connection::open(&address, hello(), soon()).await.unwrap();
    let error = connection.call(&ClientToMaster::Stat, Instant::now()).await.unwrap_err();
    assert!(matches!(error, CallError::Timeout { what: "Stat", .. }), "{error}");
    assert!(!connection.is_closed());
    release.send(()).unwrap();
    assert_eq!(connection.call(&Request::Goodbye, soon()).await.unwrap(), Reply::Done);
}

#[tokio::test]
async fn a_late_answer_goes_to_whoever_was_named_for_it() {
    let (go, wait) = tokio::sync::watch::channel(false);
    let address = server(any_port(), move |outbox, mut inbox| {
        let mut wait = wait.clone();
        async move {
            while let Some(Incoming::Request(id, _)) = inbox.next().await {
                wait.wait_for(|go| *go).await.unwrap();
                outbox.reply(id, &Reply::ViewsBegun(vec![true]));
            }
        }
    })
    .await;
    let (connection, _) = Connection::open(&address, hello(), soon()).await.unwrap();
    let (late, mut heard) = mpsc::unbounded_channel();
    let hears = |name: &'static str| {
        let late = late.clone();
        move |reply: Reply| late.send((name, reply)).unwrap()
    };
    // One whose deadline has come, and one that is dropped while it waits.
    let past = connection.call_or(&numbered(0), Instant::now(), hears("late")).await;
    assert!(matches!(past, Err(CallError::Timeout { .. })), "{past:?}");
    let request = numbered(0);
    let dropped = connection.call_or(&request, soon(), hears("dropped"));
    assert!(tokio::time::timeout(Duration::ZERO, dropped).await.is_err());
    go.send_replace(true);
    for name in ["late", "dropped"] {
        assert_eq!(heard.recv().await, Some((name, Reply::ViewsBegun(vec![true]))));
    }
    // One that is answered in time is nobody else's business.
    let reply = connection.call_or(&numbered(0), soon(), hears("in time")).await.unwrap();
    assert_eq!(reply, Reply::ViewsBegun(vec![true]));
    assert!(heard.try_recv().is_err());
}

#[tokio::test]
async fn a_stalled_peer_ends_the_connection_at_the_deadline() {
    let (address, _task) = rude(async |mut stream| {
        let_in(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let (connection, _) = Connection::open(&address, hello(), soon()).await.unwrap();
    // More than any socket buffer takes, so that the frame is cut in the middle.
    let keys = (0..50u32).map(|n| Key::new(&vec![n as u8 + 1; 1 << 20]).unwrap()).collect();
    let request = ClientToMaster::Resolve(Resolve { keys, ..Resolve::default() });
    tokio::time::pause();
    let deadline = Instant::now() + Duration::from_secs(5);
    let error = connection.call(&request, deadline).await.unwrap_err();
    assert!(matches!(error, CallError::Timeout { what: "Resolve", .. }), "{error}");
    assert_paused_at(deadline);
    connection.closed().await;
    let error = connection.call(&ClientToMaster::Stat, soon()).await.unwrap_err();
    assert!(matches!(error, CallError::Lost { .. }), "{error}");
}

#[tokio::test]
async fn a_peer_that_does_not_read_is_cut_off() {
    let (done, mut is_done) = mpsc::channel(1);
    let address = server(any_port(), move |outbox, inbox| {
        let done = done.clone();
        async move {
            let keys = (0..8).map(|_| Key::new(&vec![1; 1 << 20]).unwrap()).collect();
            let large = ClientToMaster::Resolve(Resolve { keys, ..Resolve::default() });
            let most = OUTBOX_BYTES_MAX / (8 << 20) + 16;
            let sent =
                (0..most as u64).take_while(|id| outbox.request(RequestId(*id), &large).is_ok()).count();
            assert!(sent < most, "{sent} messages were queued for a peer that does not read");
            assert_eq!(outbox.request(RequestId(99), &ClientToMaster::Stat), Err(SendError::Closed));
            drop(inbox);
            done.send(()).await.unwrap();
        }
    })
    .await;
    let _stream = raw_let_in(&address).await;
    is_done.recv().await.unwrap();
}

#[tokio::test]
async fn all_calls_fail_when_the_stream_dies() {
    // (what the peer does after two requests, and whether the stream is reset instead of closed)
    let torn = encode_reply(RequestId(1), &Reply::Listed(Default::default())).unwrap();
    let garbage = vec![b'x'; 100];
    for (farewell, reset) in
        [(&torn[..0], false), (&torn[..30.min(torn.len() - 1)], false), (&garbage, false), (&[], true)]
    {
        let farewell = farewell.to_vec();
        let (address, _task) = rude(async move |mut stream| {
            let_in(&mut stream).await;
            read_frame(&mut stream).await.unwrap();
            if reset {
                // Closing with unread bytes resets.
                let mut one = [0];
                stream.peek(&mut one).await.unwrap();
                return;
            }
            read_frame(&mut stream).await.unwrap();
            stream.write_all(&farewell).await.unwrap();
        })
        .await;
        let (connection, _) = Connection::open(&address, hello(), soon()).await.unwrap();
        let (first, second) = tokio::join!(
            connection.call(&ClientToMaster::Stat, soon()),
            connection.call(&Request::Goodbye, soon())
        );
        for error in [first.unwrap_err(), second.unwrap_err()] {
            assert!(matches!(&error, CallError::Lost { address: at } if *at == address), "{error}");
        }
        connection.closed().await;
    }
}

#[tokio::test]
async fn dropping_the_connection_closes_it() {
    let (ended, mut has_ended) = mpsc::channel(1);
    let address = server(any_port(), move |_outbox, mut inbox| {
        let ended = ended.clone();
        async move {
            assert_eq!(inbox.next().await, None);
            ended.send(()).await.unwrap();
        }
    })
    .await;
    let (connection, _) = Connection::open(&address, hello(), soon()).await.unwrap();
    let clone = connection.clone();
    drop(connection);
    assert!(!clone.is_closed());
    drop(clone);
    has_ended.recv().await.unwrap();
}

#[tokio::test]
async fn dropping_the_inbox_closes_it_too() {
    let address = server(any_port(), async |_outbox, inbox| drop(inbox)).await;
    let (connection, _) = Connection::open(&address, hello(), soon()).await.unwrap();
    connection.closed().await;
}

#[tokio::test]
async fn who_does_not_say_hello_is_sent_away() {
    let address = server(any_port(), echo).await;

    // A wrong first request is answered, then the stream ends.
    let mut stream = raw(&address).await;
    stream.write_all(&encode_request(RequestId(3), &ClientToMaster::Stat).unwrap()).await.unwrap();
    let Incoming::Reply(RequestId(3), Reply::Refused(refusal)) = read_frame(&mut stream).await.unwrap()
    else {
        panic!()
    };
    assert_eq!(refusal.reason, Reason::Invalid);
    assert_cut_off(stream).await;

    // Another version is answered too.
    let mut stream = raw(&address).await;
    let other = Hello { major: VERSION_MAJOR + 1, ..hello() };
    stream.write_all(&encode_request(RequestId(4), &Request::Hello(other)).unwrap()).await.unwrap();
    let Incoming::Reply(RequestId(4), Reply::Refused(refusal)) = read_frame(&mut stream).await.unwrap()
    else {
        panic!()
    };
    assert_eq!(refusal.reason, Reason::Version);
    assert_cut_off(stream).await;

    // A hello of absurd size, another protocol, and a frame of another major are not.
    let absurd = Hello { major: VERSION_MAJOR, label: "x".repeat(1 << 20), ..hello() };
    let mut newer = encode_request(RequestId(0), &ClientToMaster::Stat).unwrap();
    newer[3] = b'2';
    for bytes in [
        encode_request(RequestId(0), &Request::Hello(absurd)).unwrap(),
        b"GET / HTTP/1.1\r\nHost: tiffin\r\n\r\n".to_vec(),
        newer,
        encode_reply(RequestId(0), &Reply::Done).unwrap(),
    ] {
        let mut stream = raw(&address).await;
        // The server may hang up before it has all of it.
        let _sent = stream.write_all(&bytes).await;
        assert_cut_off(stream).await;
    }

    // Others are still served.
    let (connection, _) = Connection::open(&address, hello(), soon()).await.unwrap();
    assert_eq!(connection.call(&ClientToMaster::Stat, soon()).await.unwrap(), Reply::Done);
}

#[tokio::test(start_paused = true)]
async fn who_stays_silent_is_sent_away_at_the_deadline() {
    let listener = Listener::bind(&any_port()).await.unwrap();
    let _silent = raw(listener.local_address()).await;
    let deadline = Instant::now() + Duration::from_secs(2);
    let stream = listener.accept().await;
    assert!(Handshake::receive(stream, deadline).await.is_none());
    assert_paused_at(deadline);
}

#[tokio::test]
async fn what_a_server_does_not_know_it_refuses_and_reads_on() {
    let address = server(any_port(), echo).await;
    let mut stream = raw_let_in(&address).await;
    let unknown = frame::encode(9999, false, RequestId(10), b"");
    let malformed = frame::encode(2, false, RequestId(11), b"\x0a\x7f");
    let known = encode_request(RequestId(12), &ClientToMaster::Stat).unwrap();
    stream.write_all(&[unknown, malformed, known].concat()).await.unwrap();
    for id in [10, 11] {
        let Incoming::Reply(found, Reply::Refused(refusal)) = read_frame(&mut stream).await.unwrap() else {
            panic!()
        };
        assert_eq!((found, refusal.reason), (RequestId(id), Reason::Invalid));
    }
    assert_eq!(read_frame(&mut stream).await.unwrap(), Incoming::Reply(RequestId(12), Reply::Done));
}

#[tokio::test]
async fn an_answer_that_nobody_understands_is_a_refusal() {
    let (address, _task) = rude(async |mut stream| {
        let_in(&mut stream).await;
        let Incoming::Request(id, _) = read_frame(&mut stream).await.unwrap() else { panic!() };
        stream.write_all(&frame::encode(9999, true, id, b"")).await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    let (connection, _) = Connection::open(&address, hello(), soon()).await.unwrap();
    let error = connection.call(&ClientToMaster::Stat, soon()).await.unwrap_err();
    assert!(matches!(&error, CallError::Refused(refusal) if refusal.message.contains("9999")), "{error}");
}

#[tokio::test]
async fn a_server_survives_any_bytes() {
    let address = server(any_port(), echo).await;
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
    let mut huge = encode_request(RequestId(1), &ClientToMaster::Stat).unwrap();
    huge[16..20].copy_from_slice(&(PAYLOAD_BYTES_MAX as u32 + 1).to_le_bytes());
    let mut flipped = encode_request(RequestId(1), &numbered(5)).unwrap();
    *flipped.last_mut().unwrap() ^= 1;
    let mut cases = vec![huge, flipped];
    for len in [1, 23, 24, 25, 1000, 100_000] {
        cases.push((0..len).map(|_| rng.random()).collect());
    }
    for bytes in &cases {
        for let_in_first in [false, true] {
            let mut stream = if let_in_first { raw_let_in(&address).await } else { raw(&address).await };
            // The server may hang up before it has all of it.
            let _sent = stream.write_all(bytes).await;
            let _sent = stream.shutdown().await;
            assert_cut_off(stream).await;
        }
    }
    let (connection, _) = Connection::open(&address, hello(), soon()).await.unwrap();
    assert_eq!(connection.call(&ClientToMaster::Stat, soon()).await.unwrap(), Reply::Done);
}

#[tokio::test]
async fn a_client_survives_any_bytes() {
    for (bytes, says) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], "is not a Tiffin server: it speaks HTTP"),
        (b"TFN2........................", "protocol version `2`"),
    ] {
        let (address, _task) = rude(async move |mut stream| {
            read_frame(&mut stream).await.unwrap();
            stream.write_all(bytes).await.unwrap();
            std::future::pending::<()>().await;
        })
        .await;
        let error = dial(&address, Reach::Far, hello(), soon()).await.unwrap_err();
        assert!(matches!(error, CallError::Protocol { .. } | CallError::Foreign { .. }), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[tokio::test]
async fn a_welcome_of_another_major_is_not_accepted() {
    let (address, _task) = rude(async |mut stream| {
        read_frame(&mut stream).await.unwrap();
        let welcome = Welcome { major: VERSION_MAJOR + 1, ..Welcome::default() };
        stream.write_all(&encode_reply(RequestId(0), &Reply::Welcome(welcome)).unwrap()).await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    let error = dial(&address, Reach::Far, hello(), soon()).await.unwrap_err();
    assert!(matches!(error, CallError::Protocol { .. }), "{error}");
}

#[tokio::test]
async fn what_is_too_large_to_send_is_never_sent() {
    let address = server(any_port(), async |outbox, mut inbox| {
        while let Some(Incoming::Request(id, _)) = inbox.next().await {
            outbox.reply(id, &Reply::ViewsBegun(vec![true; BATCH_ITEMS_MAX + 1]));
        }
    })
    .await;
    let (connection, _) = Connection::open(&address, hello(), soon()).await.unwrap();
    let key = Key::new(b"k").unwrap();
    let keys = vec![key; BATCH_ITEMS_MAX + 1];
    let error =
        connection.call(&ClientToMaster::Resolve(Resolve { keys, ..Resolve::default() }), soon()).await;
    assert!(matches!(error, Err(CallError::TooLarge(_))), "{error:?}");
    // A reply that is too large becomes a refusal.
    let error = connection.call(&ClientToMaster::Stat, soon()).await;
    assert!(matches!(&error, Err(CallError::Refused(found)) if found.message.contains("reply")), "{error:?}");
}

#[tokio::test]
async fn the_answers_to_requests_that_came_together_leave_together() {
    let address = server(any_port(), echo).await;
    let mut stream = raw_let_in(&address).await;
    let asked: Vec<u8> =
        (1..=100).flat_map(|id| encode_request(RequestId(id), &Request::Goodbye).unwrap()).collect();
    stream.write_all(&asked).await.unwrap();
    for id in 1..=100 {
        let Incoming::Reply(found, Reply::Done) = read_frame(&mut stream).await.unwrap() else { panic!() };
        assert_eq!(found, RequestId(id));
    }
}
