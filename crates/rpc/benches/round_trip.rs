//! How far a call is from the floor: the same number of bytes there and back over a plain socket.
//!
//! `cargo bench -p tiffin-rpc` prints, for Unix and TCP sockets, the median and the 99th percentile of a plain
//! ping-pong between two threads, of a call from a thread, of a call from a task, and of a call from a thread
//! that waits for a task, all taken in turns in one run.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark that cannot go on panics")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tiffin_core::message::{Hello, Reply, Request, Resolve, Resolved, Welcome};
use tiffin_core::{ClientId, Key, RequestId};
use tiffin_proto::{Incoming, encode_reply, encode_request};
use tiffin_rpc::{Address, Connection, Greeting, Inbox, Listener, Outbox};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

const ROUNDS: usize = 15;
const CALLS: usize = 1000;

fn request() -> Request {
    Request::Resolve(Resolve { keys: vec![Key::new(&[7; 64]).unwrap()], ..Resolve::default() })
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
            let greeting = Greeting::receive(stream, Instant::now() + Duration::from_secs(60)).await.unwrap();
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

fn quantiles(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default();
    (at(50), at(99))
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, |time| time.as_secs_f64() * 1e6)
}

fn main() {
    let asked = encode_request(RequestId(1), &request()).unwrap().len();
    let answered = encode_reply(RequestId(1), &reply()).unwrap().len();
    let client = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    for (kind, address) in
        [("unix", format!("unix:@tiffin-bench-{}", std::process::id())), ("tcp", "127.0.0.1:0".to_owned())]
    {
        let (_server, address) = server(&address);
        let hello = Hello { namespace: "default".into(), client: ClientId(1), ..Hello::default() };
        let deadline = Instant::now() + Duration::from_secs(600);
        let (connection, _) = client.block_on(Connection::open(&address, hello, deadline)).unwrap();
        let floor: Box<dyn FnMut()> = if kind == "unix" {
            let (near, far) = UnixStream::pair().unwrap();
            echo(far, asked, answered);
            Box::new(ping(near, asked, answered))
        } else {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let far = listener.accept().unwrap().0;
            near.set_nodelay(true).unwrap();
            far.set_nodelay(true).unwrap();
            echo(far, asked, answered);
            Box::new(ping(near, asked, answered))
        };
        let deadline = || Instant::now() + Duration::from_secs(30);
        let by_thread = connection.clone();
        let waiting = connection.clone();
        let handle = client.handle().clone();
        let mut contenders: Vec<(&str, Box<dyn FnMut()>)> = vec![
            ("plain socket", floor),
            (
                "call from a thread",
                Box::new(move || {
                    by_thread.call_blocking(&request(), deadline()).unwrap();
                }),
            ),
            (
                "thread waits for a task",
                Box::new(move || {
                    handle.block_on(waiting.call(&request(), deadline())).unwrap();
                }),
            ),
        ];
        let mut found: Vec<(Vec<Duration>, Vec<Duration>)> = vec![Default::default(); contenders.len() + 1];
        for _ in 0..ROUNDS {
            for ((_, contender), (medians, tails)) in contenders.iter_mut().zip(&mut found) {
                let times = (0..CALLS).map(|_| {
                    let from = std::time::Instant::now();
                    contender();
                    from.elapsed()
                });
                let (half, tail) = quantiles(times.collect());
                medians.push(half);
                tails.push(tail);
            }
            let connection = connection.clone();
            let times = client.block_on(async {
                client
                    .spawn(async move {
                        let mut times = Vec::new();
                        for _ in 0..CALLS {
                            let from = std::time::Instant::now();
                            connection.call(&request(), deadline()).await.unwrap();
                            times.push(from.elapsed());
                        }
                        times
                    })
                    .await
                    .unwrap()
            });
            let (half, tail) = quantiles(times);
            let (medians, tails) = found.last_mut().unwrap();
            medians.push(half);
            tails.push(tail);
        }
        let names = contenders.iter().map(|it| it.0).chain(["call from a task"]);
        let floor = median(found.first().unwrap().0.clone());
        for (name, (medians, tails)) in names.zip(found) {
            let (half, tail) = (median(medians), median(tails));
            println!(
                "{kind:5} {name:24} p50 {half:7.1} us  p99 {tail:7.1} us  {:5.2} x the floor",
                half / floor
            );
        }
    }
}
