//! Tests of writes that several threads send together.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::yield_now;

use super::client::Tcp;
use super::frame::{DATA_VERSION, HELLO_BYTES, WelcomeHead};
use super::grant::{Grant, Hello, Unlimited};
use super::pool::{Connect, Connecting, Identity, STREAMS_MAX, TcpConnect};
use super::server::{Server, SlotAccess};
use super::stream::{ByteStream, WaitMode};
use crate::behavior::{Location, TestNode, assert_pattern, pattern, soon};
use crate::buffer::{SourceBuf, TargetBuf};
use crate::{Instant, Outcome, ReadOp, TransferError, WriteOp};

const MIB: u64 = 1 << 20;

/// The number of connections, and what breaks one of them.
#[derive(Default)]
struct Fault {
    opened: AtomicUsize,
    is_on: AtomicBool,
    /// Bytes that the connection has sent since then.
    sent: AtomicUsize,
}

/// Bytes that the connection with the fault sends.
const SENT_MAX: usize = 100_000;

/// Opens connections of which the third has a fault.
struct FaultyThird(Arc<Fault>);

impl Connect for FaultyThird {
    fn connect<'a>(&'a self, address: &'a str) -> Connecting<'a> {
        Box::pin(async move {
            let number = self.0.opened.fetch_add(1, Ordering::SeqCst);
            let inner = TcpConnect::default().connect(address).await?;
            Ok(Box::new(Wire { inner, fault: (number == 2).then(|| Arc::clone(&self.0)) })
                as Box<dyn ByteStream>)
        })
    }
}

struct Wire {
    inner: Box<dyn ByteStream>,
    fault: Option<Arc<Fault>>,
}

impl ByteStream for Wire {
    fn poll_receive(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        targets: &[TargetBuf<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_receive(context, targets)
    }

    fn poll_send(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        sources: &[SourceBuf<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self { inner, fault } = &mut *self;
        let Some(fault) = fault.as_ref().filter(|it| it.is_on.load(Ordering::SeqCst)) else {
            return Pin::new(inner).poll_send(context, sources);
        };
        if fault.sent.load(Ordering::SeqCst) >= SENT_MAX {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let sent = Pin::new(inner).poll_send(context, sources);
        if let Poll::Ready(Ok(bytes)) = &sent {
            fault.sent.fetch_add(*bytes, Ordering::SeqCst);
        }
        sent
    }

    fn is_idle(&self) -> bool {
        self.inner.is_idle()
    }

    fn set_wait(&mut self, how: WaitMode) -> bool {
        self.inner.set_wait(how)
    }
}

/// A write in pieces of odd lengths.
fn op(location: Location, bytes: &[u8]) -> WriteOp<'_> {
    let sources = bytes.chunks(77_777).map(SourceBuf::from).collect();
    WriteOp { slot: location.slot, stamp: location.stamp, offset: 0, sources }
}

/// A client whose writes are sent by four threads, and its node.
struct Pair {
    node: Arc<TestNode>,
    tcp: Tcp,
    fault: Arc<Fault>,
}

impl Pair {
    async fn new(grant: impl Grant + Copy + 'static) -> Self {
        let node = Arc::new(TestNode::new());
        let slots = Arc::clone(&node) as Arc<dyn SlotAccess>;
        let authorise = Box::new(move |_: &Hello| Ok(Arc::new(grant) as Arc<dyn Grant>));
        let server = Server::new(Arc::clone(node.memory()), slots, authorise, Arc::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(server.run(listener));
        let segment = node.memory().geometry().segment;
        let identity = Identity { client: 1, segment, token: String::new() };
        let fault = Arc::new(Fault::default());
        let connect = Box::new(FaultyThird(Arc::clone(&fault)));
        let tcp = Tcp::with_connect(address, identity, Arc::default(), connect).with_threads(STREAMS_MAX);
        tcp.open_now().await;
        Self { node, tcp, fault }
    }

    /// Writes the pattern of each object.
    async fn write(&self, locations: &[(Location, u64)]) -> Vec<Outcome> {
        let bytes: Vec<_> = locations.iter().map(|(it, len)| pattern(it.stamp, *len)).collect();
        let ops: Vec<_> = locations.iter().zip(&bytes).map(|(it, bytes)| op(it.0, bytes)).collect();
        let all = locations.iter().map(|it| it.1).sum();
        assert_eq!(self.tcp.threads_for(all), STREAMS_MAX, "{all} bytes");
        self.tcp.write_with(&ops, true, soon()).await
    }

    async fn assert_stored(&self, location: Location, len: u64) {
        self.node.commit(location);
        let mut bytes = vec![0xee; len as usize];
        let targets = vec![TargetBuf::from(&mut bytes[..])];
        let op = ReadOp { slot: location.slot, stamp: location.stamp, offset: 0, targets };
        assert_eq!(self.tcp.read_with(&[op], Default::default(), soon()).await, [Ok(())]);
        assert_pattern(location.stamp, 0, &bytes);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn parts_of_divided_writes_are_in_their_places() {
    let pair = Pair::new(Unlimited).await;
    for len in [MIB, MIB + 1, 3 * MIB + 77, 9 * MIB] {
        let lens = [len / 3, len - len / 3];
        for count in [1, 2] {
            let locations: Vec<_> = (0..count).map(|_| (pair.node.reserve(&lens), len)).collect();
            assert_eq!(pair.write(&locations).await, vec![Ok(()); count]);
            for (location, len) in locations {
                pair.assert_stored(location, len).await;
            }
        }
    }
    let small: Vec<_> = (0..32).map(|_| (pair.node.reserve(&[64 << 10]), 64 << 10)).collect();
    assert_eq!(pair.write(&small).await, vec![Ok(()); 32]);
    for (location, len) in small {
        pair.assert_stored(location, len).await;
    }
}

/// A connection that breaks in the middle fails the whole write, and the next one uses a new connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn lost_connection_fails_the_divided_write() {
    let pair = Pair::new(Unlimited).await;
    let len = 8 * MIB;
    loop {
        pair.fault.sent.store(0, Ordering::SeqCst);
        pair.fault.is_on.store(true, Ordering::SeqCst);
        let location = pair.node.reserve(&[len]);
        let outcome = pair.write(&[(location, len)]).await.remove(0);
        // On a busy machine the other threads may send everything before that one starts.
        if pair.fault.sent.load(Ordering::SeqCst) < SENT_MAX {
            assert_eq!(outcome, Ok(()));
            continue;
        }
        assert!(matches!(outcome, Err(TransferError::Lost { .. })), "{outcome:?}");
        break;
    }
    // The node ends the incomplete part, and the other streams are between transfers.
    while pair.node.transfers() > 0 {
        yield_now().await;
    }
    pair.tcp.open_now().await;
    let location = pair.node.reserve(&[len]);
    assert_eq!(pair.write(&[(location, len)]).await, [Ok(())]);
    pair.assert_stored(location, len).await;
    assert_eq!(pair.fault.opened.load(Ordering::SeqCst), STREAMS_MAX + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn refused_object_of_a_divided_write_harms_no_other() {
    let pair = Pair::new(Unlimited).await;
    let len = 2 * MIB + 5;
    let locations: Vec<_> = (0..3).map(|_| (pair.node.reserve(&[len]), len)).collect();
    pair.node.retire(locations[1].0);
    let outcomes = pair.write(&locations).await;
    assert_eq!(outcomes, [Ok(()), Err(TransferError::Stale), Ok(())]);
    for (location, len) in [locations[0], locations[2]] {
        pair.assert_stored(location, len).await;
    }
    assert_eq!(pair.fault.opened.load(Ordering::SeqCst), STREAMS_MAX, "no stream was closed");
}

/// A grant that may not write.
#[derive(Clone, Copy)]
struct ReadOnly;

impl Grant for ReadOnly {
    fn may_read(&self) -> bool {
        true
    }

    fn may_write(&self) -> bool {
        false
    }

    fn is_unlimited(&self) -> bool {
        true
    }

    fn covers(&self, _: &str) -> bool {
        true
    }

    fn shared(&self) -> Option<u64> {
        None
    }

    fn is_ended(&self) -> bool {
        false
    }

    fn end(&self) -> Option<&tokio::sync::Notify> {
        None
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn divided_write_without_the_right_is_refused() {
    let pair = Pair::new(ReadOnly).await;
    let location = pair.node.reserve(&[4 * MIB]);
    assert_eq!(pair.write(&[(location, 4 * MIB)]).await, [Err(TransferError::Stale)]);
    assert_eq!(pair.fault.opened.load(Ordering::SeqCst), STREAMS_MAX, "no stream was closed");
}

/// Every thread returns at the deadline, and its stream is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn divided_write_ends_at_its_deadline() {
    // A server that welcomes connections, then receives nothing until the client has given up.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (opened, mut streams) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_exact(&mut [0; HELLO_BYTES]).await.unwrap();
            stream.write_all(&WelcomeHead::encode(DATA_VERSION, Ok(()), "")).await.unwrap();
            opened.send(stream).unwrap();
        }
    });
    let identity = Identity { client: 1, segment: 1, token: String::new() };
    let tcp = Tcp::new(address, identity, Arc::default()).with_threads(STREAMS_MAX);
    tcp.open_now().await;
    let bytes = vec![7; 64 << 20];
    let op = WriteOp { slot: 0, stamp: 1, offset: 0, sources: vec![SourceBuf::from(&bytes[..])] };
    assert_eq!(tcp.threads_for(bytes.len() as u64), STREAMS_MAX);
    let (runtime, deadline) = (Handle::current(), Instant::now() + Duration::from_millis(30));
    let write = || runtime.block_on(tcp.write_with(&[op], true, deadline));
    let outcomes = tokio::task::block_in_place(|| {
        std::thread::scope(|scope| scope.spawn(write).join().expect("it did not panic"))
    });
    assert_eq!(outcomes, [Err(TransferError::Timeout)]);
    assert!(Instant::now() >= deadline);
    for _ in 0..STREAMS_MAX {
        let mut stream = streams.recv().await.unwrap();
        // The end, or a reset: bytes were not received.
        let sent = stream.read_to_end(&mut Vec::new()).await;
        assert!(sent.is_err() || sent.is_ok_and(|sent| sent < bytes.len()));
    }
}
