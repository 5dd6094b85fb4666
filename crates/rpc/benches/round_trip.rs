//! How far a call is from the floor: the same number of bytes there and back over a plain socket.
//!
//! `cargo bench -p tiffin-rpc` prints, for Unix sockets, for TCP, and for the Unix twin of a TCP port, the
//! median and the 99th percentile of a plain ping-pong between two threads, of a call from a thread, of a
//! call from a task, and of a call from a thread that waits for a task, all taken in turns in one run. The
//! twin's floor is that of TCP, in whose place it is.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark that cannot go on panics")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tiffin_proto::{Incoming, encode_reply, encode_request};
use tiffin_rpc::{Address, Blocking, Connection, Handshake, Inbox, Listener, Outbox, Reach, with_blocking};
use tiffin_types::message::{ClientToMaster, Hello, Reply, Resolve, Resolved, Welcome};
use tiffin_types::{ClientId, Key, RequestId};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::Instant;

const ROUNDS: usize = 15;
const CALLS: usize = 1000;

fn request() -> ClientToMaster {
    ClientToMaster::Resolve(Resolve { keys: vec![Key::new(&[7; 64]).unwrap()], ..Resolve::default() })
}

fn reply() -> Reply {
    Reply::Resolved(Resolved::default())
}

async fn serve(outbox: Outbox, mut inbox: Inbox) {
    while let Some(Incoming::Request(id, _)) = inbox.next().await {
        outbox.reply(id, &reply());
    }
}

/// A server with a runtime of its own, as in a process of its own.
fn server(address: &str) -> (Runtime, Address) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let listener = runtime.block_on(Listener::bind(&address.parse().unwrap())).unwrap();
    let address = listener.local_address().clone();
    runtime.spawn(async move {
        loop {
            let stream = listener.accept().await;
            let greeting =
                Handshake::receive(stream, Instant::now() + Duration::from_secs(60)).await.unwrap();
            let (outbox, inbox) = greeting.welcome(Welcome::default());
            tokio::spawn(serve(outbox, inbox));
        }
    });
    (runtime, address)
}

/// Answers as many bytes as the reply has to as many as the request has.
fn echo(mut stream: impl Read + Write + Send + 'static, asked: usize, answered: usize) {
    std::thread::spawn(move || {
        let (mut asked, answered) = (vec![0; asked], vec![0; answered]);
        while stream.read_exact(&mut asked).is_ok() {
            stream.write_all(&answered).unwrap();
        }
    });
}

fn ping(mut stream: impl Read + Write, asked: usize, answered: usize) -> impl FnMut() {
    let (asked, mut answered) = (vec![0; asked], vec![0; answered]);
    move || {
        stream.write_all(&asked).unwrap();
        stream.read_exact(&mut answered).unwrap();
    }
}

fn plain(kind: &str, asked: usize, answered: usize) -> Contender {
    if kind == "unix" {
        let (near, far) = UnixStream::pair().unwrap();
        echo(far, asked, answered);
        let ping = ping(near, asked, answered);
        return timed(ping);
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    echo(far, asked, answered);
    let ping = ping(near, asked, answered);
    timed(ping)
}

/// Calls many times, and tells how long each took.
type Contender = Box<dyn FnMut() -> Vec<Duration>>;

fn timed(mut call: impl FnMut() + 'static) -> Contender {
    Box::new(move || {
        let time = |_| {
            let from = std::time::Instant::now();
            call();
            from.elapsed()
        };
        (0..CALLS).map(time).collect()
    })
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn from_thread(connection: Connection, runtime: Handle) -> Contender {
    timed(move || {
        let request = request();
        let answer = with_blocking(Blocking::Now, || runtime.block_on(connection.call(&request, deadline())));
        drop(answer.unwrap());
    })
}

fn thread_for_task(connection: Connection, runtime: Handle) -> Contender {
    timed(move || drop(runtime.block_on(connection.call(&request(), deadline())).unwrap()))
}

fn from_task(connection: Connection, runtime: Handle) -> Contender {
    Box::new(move || {
        let connection = connection.clone();
        let calls = async move {
            let mut times = Vec::new();
            for _ in 0..CALLS {
                let from = std::time::Instant::now();
                connection.call(&request(), deadline()).await.unwrap();
                times.push(from.elapsed());
            }
            times
        };
        runtime.block_on(runtime.spawn(calls)).unwrap()
    })
}

fn quantile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times.get(times.len() * percent / 100).copied().unwrap_or_default()
}

fn race(kind: &str, contenders: &mut [(&str, Contender)]) {
    let mut found = vec![(Vec::new(), Vec::new()); contenders.len()];
    for _ in 0..ROUNDS {
        for ((_, contender), (halves, tails)) in contenders.iter_mut().zip(&mut found) {
            let mut times = contender();
            halves.push(quantile(&mut times, 50));
            tails.push(quantile(&mut times, 99));
        }
    }
    let micros = |times: &mut [Duration]| quantile(times, 50).as_secs_f64() * 1e6;
    let mut floor = None;
    for ((name, _), (mut halves, mut tails)) in contenders.iter().zip(found) {
        let (half, tail) = (micros(&mut halves), micros(&mut tails));
        let ratio = half / *floor.get_or_insert(half);
        println!("{kind:5} {name:24} p50 {half:7.1} us  p99 {tail:7.1} us  {ratio:5.2} x the floor");
    }
}

fn main() {
    let asked = encode_request(RequestId(1), &request()).unwrap().len();
    let answered = encode_reply(RequestId(1), &reply()).unwrap().len();
    let client = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let unix = format!("unix:@tiffin-bench-{}", std::process::id());
    for (kind, address, reach) in [
        ("unix", unix.as_str(), Reach::Far),
        ("tcp", "127.0.0.1:0", Reach::Far),
        ("twin", "127.0.0.1:0", Reach::Near),
    ] {
        let (_server, address) = server(address);
        let hello = Hello { namespace: "default".into(), client: ClientId(1), ..Hello::default() };
        let (connection, _) =
            client.block_on(Connection::open_by(&address, reach, hello, deadline())).unwrap();
        let handle = client.handle();
        race(
            kind,
            &mut [
                ("plain socket", plain(kind, asked, answered)),
                ("call from a thread", from_thread(connection.clone(), handle.clone())),
                ("thread waits for a task", thread_for_task(connection.clone(), handle.clone())),
                ("call from a task", from_task(connection, handle.clone())),
            ],
        );
    }
}
