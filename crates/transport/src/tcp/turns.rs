//! Tests of what a client costs others at a data socket, without sockets: its peers read all at once.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::yield_now;

use super::frame::{HelloHead, RequestHead, RequestKind};
use super::grant::{Grant, Hello, Unlimited};
use super::server::{CHUNK_TIME_MAX, Server, SlotAccess};
use super::share::CLIENT_CONNECTIONS_MAX;
use super::stream::ByteStream;
use crate::behavior::TestNode;
use crate::buffer::{SourceBuf, TargetBuf};
use crate::copy;

const SMALL: u64 = 16 << 10;

/// A peer that has sent everything already, and reads whatever it is sent.
struct Wire {
    unread: Mutex<VecDeque<u8>>,
    sent: Arc<AtomicUsize>,
    /// It reads no more bytes than these.
    reads_max: usize,
}

impl ByteStream for Wire {
    fn poll_receive(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        targets: &[TargetBuf<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut unread = self.unread.lock().unwrap();
        let target = targets[0];
        let bytes: Vec<u8> = (0..target.len()).map_while(|_| unread.pop_front()).collect();
        if bytes.is_empty() {
            // The connection stays open, and nothing more comes.
            return Poll::Pending;
        }
        copy::copy_in(&bytes, target.split_at(bytes.len()).0);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_send(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        sources: &[SourceBuf<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.sent.load(Ordering::Relaxed) >= self.reads_max {
            return Poll::Pending;
        }
        let bytes = sources.iter().map(|it| it.len()).sum();
        self.sent.fetch_add(bytes, Ordering::Relaxed);
        Poll::Ready(Ok(bytes))
    }

    fn is_idle(&self) -> bool {
        false
    }
}

/// The grant of a token that is limited to a namespace: that of the node's objects.
struct Limited(u64);

impl Grant for Limited {
    fn may_read(&self) -> bool {
        true
    }

    fn may_write(&self) -> bool {
        true
    }

    fn is_unlimited(&self) -> bool {
        false
    }

    fn covers(&self, _: &str) -> bool {
        true
    }

    fn shared(&self) -> Option<u64> {
        Some(self.0)
    }

    fn is_ended(&self) -> bool {
        false
    }

    fn end(&self) -> Option<&Notify> {
        None
    }
}

/// The id of the client that reads once.
const MODEST: u64 = 1000;

/// Who has the greedy connections.
#[derive(Clone, Copy)]
enum Greedy {
    OneClient,
    /// A client for each connection, all with the same token.
    OneToken,
}

/// Bytes that a greedy party has been sent over its connections, each with so many reads of that size, when
/// another one has the answer to its first read.
async fn bytes_before_another(party: Greedy, connections: u64, reads: u64, len: u64) -> usize {
    let node = Arc::new(TestNode::new());
    let location = node.reserve(&[len]);
    node.commit(location);
    let segment = node.memory().geometry().segment;
    let slots = Arc::clone(&node) as Arc<dyn SlotAccess>;
    let grant = move |hello: &Hello| -> Arc<dyn Grant> {
        match party {
            Greedy::OneClient => Arc::new(Unlimited),
            Greedy::OneToken => Arc::new(Limited(u64::from(hello.client == MODEST))),
        }
    };
    let authorise = Box::new(move |hello: &Hello| Ok(grant(hello)));
    let server = Server::new(Arc::clone(node.memory()), slots, authorise, Arc::default());
    let connect = |client: u64, reads: u64, len: u64| {
        let mut unread: VecDeque<u8> = HelloHead::encode(client, segment, "").into();
        for id in 0..reads {
            let (slot, stamp) = (location.slot, location.stamp);
            let (kind, offset, cached_epoch) = (RequestKind::Read, 0, None);
            unread.extend(RequestHead { kind, slot, id, stamp, offset, len, cached_epoch }.encode());
        }
        let sent = Arc::new(AtomicUsize::new(0));
        let wire = Wire { unread: Mutex::new(unread), sent: Arc::clone(&sent), reads_max: usize::MAX };
        let server = Arc::clone(&server);
        tokio::spawn(async move { server.serve(wire, false).await });
        sent
    };
    // The other one is known, and idle. A party that is alone may use everything.
    let idle = connect(MODEST, 0, SMALL);
    while idle.load(Ordering::Relaxed) == 0 {
        yield_now().await;
    }
    let client = |at| match party {
        Greedy::OneClient => 1,
        Greedy::OneToken => 1 + at,
    };
    let greedy: Vec<_> = (0..connections).map(|at| connect(client(at), reads, len)).collect();
    let modest = connect(MODEST, 1, SMALL);
    while modest.load(Ordering::Relaxed) < SMALL as usize {
        yield_now().await;
    }
    greedy.iter().map(|it| it.load(Ordering::Relaxed)).sum()
}

/// One thread serves all: whatever a client asks for, over however many connections, or a token with however
/// many clients, another one waits for a few turns of it.
#[tokio::test]
async fn client_that_reads_all_the_time_leaves_others_a_share() {
    const MIB: usize = 1 << 20;
    for (connections, reads, len) in
        [(1, 1024, SMALL), (64, 128, SMALL), (64, 48, SMALL), (64, 8, 100_000), (16, 8, 1 << 20)]
    {
        for party in [Greedy::OneClient, Greedy::OneToken] {
            let served = bytes_before_another(party, connections, reads, len).await;
            assert!((1..=9 * MIB).contains(&served), "{connections} connections: {served} bytes were first");
        }
    }
}

/// A client whose connections read nothing keeps the others of that client waiting for a moment only.
#[tokio::test(start_paused = true)]
async fn slow_peers_leave_their_share_to_others() {
    const LEN: u64 = 1 << 20;
    let node = Arc::new(TestNode::new());
    let location = node.reserve(&[LEN]);
    node.commit(location);
    let segment = node.memory().geometry().segment;
    let slots = Arc::clone(&node) as Arc<dyn SlotAccess>;
    let authorise = Box::new(|_: &Hello| Ok(Arc::new(Unlimited) as Arc<dyn Grant>));
    let server = Server::new(Arc::clone(node.memory()), slots, authorise, Arc::default());
    let connect = |reads_max: usize| {
        let mut unread: VecDeque<u8> = HelloHead::encode(1, segment, "").into();
        let (slot, stamp) = (location.slot, location.stamp);
        let (kind, id, offset, len, cached_epoch) = (RequestKind::Read, 1, 0, LEN, None);
        unread.extend(RequestHead { kind, slot, id, stamp, offset, len, cached_epoch }.encode());
        let sent = Arc::new(AtomicUsize::new(0));
        let wire = Wire { unread: Mutex::new(unread), sent: Arc::clone(&sent), reads_max };
        let server = Arc::clone(&server);
        tokio::spawn(async move { server.serve(wire, false).await });
        sent
    };
    let began = tokio::time::Instant::now();
    // Each reads the welcome, and at least the beginning of the object.
    let slow: Vec<_> = (0..CLIENT_CONNECTIONS_MAX - 1).map(|_| connect(1 << 10)).collect();
    let other = connect(usize::MAX);
    while other.load(Ordering::Relaxed) < LEN as usize {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(slow.iter().all(|it| it.load(Ordering::Relaxed) < LEN as usize));
    // They wait for each other, but none waits until one of them is given up.
    assert!(began.elapsed() < CHUNK_TIME_MAX, "{:?}", began.elapsed());
}
