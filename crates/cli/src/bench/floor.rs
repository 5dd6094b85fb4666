//! The limits of this machine without a store: one copy of the bytes, one stream of them, one round trip.
//!
//! Uses plain memory and plain sockets, with one thread per stream or client.

use std::hint::black_box;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;
use tiffin_report::document::{Counts, Times};

use super::plan::Limit;

/// Size of a request. It starts with the number of requested bytes.
const REQUEST_BYTES: usize = 64;

/// memcpy between a buffer and `buffers` buffers of the same size, by `threads` at once.
pub(super) fn memcpy(size: u64, buffers: u64, threads: u64, limit: Limit) -> Times {
    let ready = Barrier::new(threads as usize);
    let copy = || {
        let size = size as usize;
        let mut target = vec![1_u8; size];
        let arena = vec![2_u8; size * buffers as usize];
        ready.wait();
        let mut chunks = arena.chunks_exact(size).cycle();
        let mut once = || {
            target.copy_from_slice(black_box(chunks.next().unwrap_or_default()));
            black_box(&mut target);
        };
        repeat(limit.warm_up(), &mut once);
        repeat(limit, &mut once)
    };
    gather(thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(copy)).collect();
        threads.into_iter().filter_map(|it| it.join().ok()).map(|it| it.counts()).collect()
    }))
}

/// A small request and an answer of `size` bytes, through a Unix socket.
pub(super) fn unix_round_trip(size: u64, limit: Limit) -> io::Result<Times> {
    let (near, far) = UnixStream::pair()?;
    exchange(near, far, size, limit)
}

/// The same through TCP on loopback.
pub(super) fn tcp_round_trip(size: u64, limit: Limit) -> io::Result<Times> {
    let (near, far) = tcp_pair()?;
    exchange(near, far, size, limit)
}

/// `size` bytes on request, in as many parts as there are streams.
pub(super) fn stream(size: u64, streams: u64, limit: Limit) -> io::Result<Times> {
    let pairs: Vec<_> = (0..streams).map(|_| tcp_pair()).collect::<io::Result<_>>()?;
    let part = size / streams;
    let (start, done) = (Barrier::new(streams as usize), Barrier::new(streams as usize));
    thread::scope(|scope| {
        let mut nears = Vec::new();
        for (near, far) in pairs {
            scope.spawn(move || serve(far));
            nears.push(near);
        }
        let first = nears.pop();
        let stop = std::sync::atomic::AtomicBool::new(false);
        let command = std::sync::atomic::Ordering::SeqCst;
        thread::scope(|inner| {
            for mut near in nears {
                let (start, done, stop) = (&start, &done, &stop);
                inner.spawn(move || {
                    let mut into = vec![0; part as usize];
                    loop {
                        start.wait();
                        if stop.load(command) {
                            return;
                        }
                        // The peers are in this process, so an error occurs on both sides and ends both.
                        let _cut = request_bytes(&mut near, &mut into);
                        done.wait();
                    }
                });
            }
            let mut into = vec![0; part as usize];
            let mut failed = None;
            let mut near = first;
            let mut once = || {
                start.wait();
                if let Some(near) = &mut near {
                    failed = request_bytes(near, &mut into).err().or(failed.take());
                }
                done.wait();
            };
            repeat(limit.warm_up(), &mut once);
            let times = repeat(limit, &mut once);
            stop.store(true, command);
            start.wait();
            failed.map_or(Ok(times), Err)
        })
    })
}

fn exchange<S: Read + Write + Send>(near: S, far: S, size: u64, limit: Limit) -> io::Result<Times> {
    thread::scope(|scope| {
        scope.spawn(move || serve(far));
        let (mut near, mut into, mut failed) = (near, vec![0; size as usize], None);
        let mut once = || failed = request_bytes(&mut near, &mut into).err().or(failed.take());
        repeat(limit.warm_up(), &mut once);
        let times = repeat(limit, &mut once);
        failed.map_or(Ok(times), Err)
    })
}

fn tcp_pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok((near, far))
}

fn request_bytes(near: &mut (impl Read + Write), into: &mut [u8]) -> io::Result<()> {
    let mut request = [0; REQUEST_BYTES];
    for (place, byte) in request.iter_mut().zip((into.len() as u64).to_le_bytes()) {
        *place = byte;
    }
    near.write_all(&request)?;
    near.read_exact(into)
}

/// Answers requests until the peer closes the connection.
fn serve(mut far: impl Read + Write) {
    let mut request = [0; REQUEST_BYTES];
    let mut bytes = Vec::new();
    while far.read_exact(&mut request).is_ok() {
        let wanted = request.first_chunk::<8>().map_or(0, |it| u64::from_le_bytes(*it)) as usize;
        if bytes.len() < wanted {
            bytes.resize(wanted, 3);
        }
        if far.write_all(bytes.get(..wanted).unwrap_or_default()).is_err() {
            return;
        }
    }
}

fn repeat(limit: Limit, mut call: impl FnMut()) -> Times {
    let mut times = Times::new();
    let end = Instant::now() + limit.time();
    while times.histogram.len() < limit.calls && (Instant::now() < end || times.histogram.is_empty()) {
        let began = Instant::now();
        call();
        times.record(began.elapsed());
    }
    times
}

fn gather(counts: Vec<Counts>) -> Times {
    let mut times = Times::new();
    for counts in &counts {
        times.add(counts);
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_floor_counts_its_calls() {
        let limit = Limit { seconds: 10.0, calls: 20 };
        let calls = |times: Times| times.histogram.len();
        assert_eq!(calls(memcpy(4096, 3, 2, limit)), 40);
        assert_eq!(calls(unix_round_trip(64, limit).unwrap()), 20);
        assert_eq!(calls(tcp_round_trip(64, limit).unwrap()), 20);
        for streams in [1, 3] {
            assert_eq!(calls(stream(300_000, streams, limit).unwrap()), 20);
        }
    }
}
