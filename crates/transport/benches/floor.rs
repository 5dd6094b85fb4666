//! Compares the transports with the fastest this machine can do: `cargo bench -p tiffin-transport`.
//!
//! - `copy`: the copy kernel against the C library's `memcpy`;
//! - `check`: a read of 1 MiB through a mapping, with its stamp check, against a bare copy of the same bytes;
//! - `tcp`: reads and writes through the data socket against two plain sockets that move as many bytes, and
//!   against the same plus one pass that copies and hashes them, because bytes that leave a host have a
//!   checksum.
//!
//! In each group the contenders alternate in one run, and medians are compared.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    reason = "a benchmark may panic"
)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use tiffin_transport::behavior::{Location, TestNode, soon};
use tiffin_transport::checksum::checksum;
use tiffin_transport::copy::copy;
use tiffin_transport::local::Local;
use tiffin_transport::tcp::{self, Identity, ReadOptions, Tcp};
use tiffin_transport::{Counters, ReadOp, SourceBuf, TargetBuf, Transport, WriteOp};
use tokio::runtime::{Builder, Runtime};

const ROUNDS: usize = 41;
/// How the client reads for a blocked thread.
const BLOCKING: ReadOptions = ReadOptions { cached_epoch: None, may_block: true };
/// More than fits into the caches.
const COLD_BYTES: usize = 64 << 20;

/// Runs the contenders in alternation, each `count` times per round. Returns the median time of each, in
/// seconds.
fn race(count: usize, contenders: &mut [&mut dyn FnMut()]) -> Vec<f64> {
    let mut times = vec![Vec::new(); contenders.len()];
    for round in 0..=ROUNDS {
        for (contender, times) in contenders.iter_mut().zip(&mut times) {
            let from = std::time::Instant::now();
            (0..count).for_each(|_| contender());
            let taken = from.elapsed() / u32::try_from(count).unwrap();
            // The first round warms up.
            if round > 0 {
                times.push(taken);
            }
        }
    }
    times.into_iter().map(median).collect()
}

/// Repetitions per round: small transfers are repeated more often.
fn turn(bytes: usize) -> usize {
    (4_usize << 20).div_ceil(bytes).min(200)
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, Duration::as_secs_f64)
}

fn say(what: &str, bytes: usize, floor: f64, ours: f64) {
    let rate = |time: f64| bytes as f64 / time / 1e9;
    println!(
        "{what:42} floor {:6.2} GB/s  ours {:6.2} GB/s  {:5.1} %",
        rate(floor),
        rate(ours),
        100.0 * floor / ours
    );
}

/// Between different addresses each time, and repeatedly between the same two, which stay in the caches.
fn copies() {
    for (spread, what) in [(COLD_BYTES, "copy"), (0, "hot copy")] {
        for bytes in [4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20] {
            let all = bytes.max(spread);
            // Each contender has its own memory, so that neither finds its bytes cached by the other.
            let [source, second_source] = [vec![7_u8; all], vec![7_u8; all]];
            let (mut one, mut other) = (vec![0_u8; all], vec![0_u8; all]);
            let next = |at: usize| if at + 2 * bytes > all { 0 } else { at + bytes };
            let (mut first, mut second) = (0, 0);
            let found = race(
                turn(bytes),
                &mut [
                    &mut || {
                        let source = std::hint::black_box(&source[first..first + bytes]);
                        one[first..first + bytes].copy_from_slice(source);
                        first = next(first);
                    },
                    &mut || {
                        let locations = second..second + bytes;
                        let target = TargetBuf::from(&mut other[locations.clone()]);
                        copy(SourceBuf::from(&second_source[locations]), target);
                        second = next(second);
                    },
                ],
            );
            let [floor, ours] = found[..] else { return };
            say(&format!("{what} {} KiB", bytes >> 10), bytes, floor, ours);
        }
    }
}

fn check(runtime: &Runtime) {
    const BYTES: usize = 1 << 20;
    let node = TestNode::new();
    let local = Local::new(Arc::clone(node.memory()), Arc::new(Counters::default()));
    let location = node.reserve(&[BYTES as u64]);
    let bytes = vec![7; BYTES];
    put_local(runtime, &local, location, &bytes);
    node.commit(location);
    let view = local.in_place(location.slot, location.stamp).unwrap();
    let mut target = vec![0; BYTES];
    let target = TargetBuf::from(&mut target[..]);
    // Both into the same memory, many times: the difference is small.
    let (mut bare, mut checked) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let found = race(
            1,
            &mut [&mut || copy(view.source().unwrap(), target), &mut || {
                let targets = vec![target];
                let op = ReadOp { slot: location.slot, stamp: location.stamp, offset: 0, targets };
                assert_eq!(runtime.block_on(local.read(&[op], soon())), [Ok(())]);
            }],
        );
        let [one, other] = found[..] else { return };
        bare.push(Duration::from_secs_f64(one));
        checked.push(Duration::from_secs_f64(other));
    }
    let (bare, checked) = (median(bare), median(checked));
    println!(
        "check: bare copy of 1 MiB {:.2} us, read with its check {:.2} us: {:+.2} %",
        bare * 1e6,
        checked * 1e6,
        100.0 * (checked - bare) / bare
    );
}

fn put_local(runtime: &Runtime, local: &Local, location: Location, bytes: &[u8]) {
    let sources = vec![SourceBuf::from(bytes)];
    let op = WriteOp { slot: location.slot, stamp: location.stamp, offset: 0, sources };
    assert_eq!(runtime.block_on(local.write(&[op], soon())), [Ok(())]);
}

/// Two plain sockets: each request of 40 bytes is answered by `bytes`, or `bytes` are answered by 32.
fn plain(bytes: usize, is_read: bool, streams: usize) -> impl FnMut() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pairs: Vec<TcpStream> = (0..streams)
        .map(|_| {
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut far = listener.accept().unwrap().0;
            near.set_nodelay(true).unwrap();
            far.set_nodelay(true).unwrap();
            std::thread::spawn(move || {
                let mut memory = vec![7; bytes / streams];
                let (mut head, tail) = ([0; 40], [0; 32]);
                while far.read_exact(&mut head).is_ok() {
                    if is_read {
                        far.write_all(&memory).unwrap();
                    } else {
                        far.read_exact(&mut memory).unwrap();
                        far.write_all(&tail).unwrap();
                    }
                }
            });
            near
        })
        .collect();
    let mut memory = vec![7; bytes];
    move || {
        let share = |mut near: &TcpStream, memory: &mut [u8]| {
            near.write_all(&[0; 40]).unwrap();
            if is_read {
                near.read_exact(memory).unwrap();
            } else {
                near.write_all(memory).unwrap();
                near.read_exact(&mut [0; 32]).unwrap();
            }
        };
        let mut shares = pairs.iter().zip(memory.chunks_mut(bytes / streams));
        let first = shares.next().unwrap();
        std::thread::scope(|scope| {
            for (near, memory) in shares {
                scope.spawn(move || share(near, memory));
            }
            share(first.0, first.1);
        });
    }
}

/// A test node with its data socket, and a client of it.
fn data_socket(runtime: &Runtime) -> (Arc<TestNode>, Tcp) {
    let node = Arc::new(TestNode::new());
    let slots = Arc::clone(&node) as Arc<dyn tcp::SlotAccess>;
    let server = tcp::Server::new(
        Arc::clone(node.memory()),
        slots,
        Box::new(|_| Ok(Arc::new(tcp::Unlimited))),
        Arc::default(),
    );
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    runtime.spawn(server.run(listener));
    let identity = Identity { client: 1, segment: node.memory().geometry().segment, token: String::new() };
    (node, Tcp::new(address, identity, Arc::default()))
}

fn sockets(runtime: &Runtime, cases: &[(usize, usize)]) {
    let (node, tcp) = data_socket(runtime);
    let client = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let local = Local::new(Arc::clone(node.memory()), Arc::default());

    for &(count, bytes) in cases {
        let mut memory = vec![7; count * bytes];
        let locations: Vec<_> = (0..count).map(|_| node.reserve(&[bytes as u64])).collect();
        let mut write = || {
            let ops: Vec<_> = locations
                .iter()
                .zip(memory.chunks(bytes))
                .map(|(location, memory)| WriteOp {
                    slot: location.slot,
                    stamp: location.stamp,
                    offset: 0,
                    sources: vec![SourceBuf::from(memory)],
                })
                .collect();
            assert!(client.block_on(tcp.write_with(&ops, true, soon())).iter().all(Result::is_ok));
        };
        let mut floor = plain(count * bytes, false, 1);
        let other = vec![7; count * bytes];
        let mut hash = || {
            std::hint::black_box(checksum([SourceBuf::from(&other[..])]));
        };
        let found = race(turn(count * bytes), &mut [&mut floor, &mut write, &mut hash]);
        let [floor, ours, hashed] = found[..] else { return };
        let what = format!("tcp write {count} x {} KiB", bytes >> 10);
        say(&what, count * bytes, floor, ours);
        say(&format!("{what}, one hash"), count * bytes, floor + hashed, ours);

        for location in &locations {
            put_local(runtime, &local, *location, memory.get(..bytes).unwrap());
            node.commit(*location);
        }
        let mut read = || {
            let ops: Vec<_> = locations
                .iter()
                .zip(memory.chunks_mut(bytes))
                .map(|(location, memory)| ReadOp {
                    slot: location.slot,
                    stamp: location.stamp,
                    offset: 0,
                    targets: vec![TargetBuf::from(memory)],
                })
                .collect();
            assert!(client.block_on(tcp.read_with(&ops, BLOCKING, soon())).iter().all(Result::is_ok));
        };
        let mut floor = plain(count * bytes, true, 1);
        let mut more: Vec<_> =
            [2, 4].into_iter().map(|streams| plain(count * bytes, true, streams)).collect();
        let [two, four] = &mut more[..] else { return };
        let found = race(turn(count * bytes), &mut [&mut floor, &mut read, two, four]);
        let [floor, ours, two, four] = found[..] else { return };
        let what = format!("tcp read {count} x {} KiB", bytes >> 10);
        say(&what, count * bytes, floor, ours);
        say(&format!("{what}, one hash"), count * bytes, floor + hashed, ours);
        if count == 1 && bytes >= 1 << 20 {
            let best = floor.min(two).min(four);
            say(&format!("{what}, best of 1, 2, 4 streams"), bytes, best, ours);
        }
    }
}

fn main() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let group = std::env::args().nth(1).unwrap_or_default();
    let is_chosen = |name: &str| group.starts_with('-') || group.is_empty() || group == name;
    if is_chosen("copy") {
        copies();
    }
    if is_chosen("check") {
        check(&runtime);
    }
    if is_chosen("tcp") {
        let cases = [(1, 4 << 10), (32, 4 << 10), (32, 64 << 10), (1, 1 << 20), (1, 16 << 20)];
        let chosen = std::env::args().nth(2).and_then(|number| number.parse::<usize>().ok());
        sockets(&runtime, chosen.and_then(|number| cases.get(number..=number)).unwrap_or(&cases));
    }
}
