//! What the connections of one credential have in memory at a server.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::sync::Arc;
use std::time::Duration;

use tiffin_proto::Incoming;
use tiffin_rpc::{Address, Budget, BudgetUse, Dialed, Handshake, Inbox, Listener, Outbox, Reach, dial};
use tiffin_types::message::{ClientToMaster, Hello, Reply, RequestRef, Resolve, Welcome};
use tiffin_types::{Key, RequestId};
use tokio::io::AsyncWriteExt;
use tokio::time::Instant;

const MIB: usize = 1 << 20;
/// Far enough that only a hang reaches it.
const MINUTE: Duration = Duration::from_secs(60);

fn soon() -> Instant {
    Instant::now() + MINUTE
}

/// Both ends of a connection whose credential has this budget.
async fn pair(budget: &Arc<Budget>) -> ((Outbox, Inbox), Dialed) {
    let any: Address = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(&any).await.unwrap();
    let address = listener.local_address().clone();
    let accept = async {
        let mut handshake = Handshake::receive(listener.accept().await, soon()).await.unwrap();
        handshake.share(budget);
        handshake.welcome(Welcome::default())
    };
    let (accepted, dialed) = tokio::join!(accept, dial(&address, Reach::Far, Hello::default(), soon()));
    (accepted, dialed.unwrap())
}

fn request(bytes: usize) -> ClientToMaster {
    let lens = (0..bytes).step_by(MIB / 16).map(|at| (bytes - at).min(MIB / 16));
    let keys = lens.map(|len| Key::new(&vec![b'k'; len]).unwrap()).collect();
    ClientToMaster::Resolve(Resolve { keys, ..Resolve::default() })
}

/// A connection that has sent its hello, and half of a large request.
async fn half_request(budget: &Arc<Budget>) -> (tokio::net::TcpStream, tokio::task::JoinHandle<()>) {
    let any: Address = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(&any).await.unwrap();
    let address = listener.local_address().to_string();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let hello = Hello {
        major: tiffin_types::message::VERSION_MAJOR,
        minor: tiffin_types::message::VERSION_MINOR,
        ..Hello::default()
    };
    stream
        .write_all(&tiffin_proto::encode_request(RequestId(0), RequestRef::Hello(&hello)).unwrap())
        .await
        .unwrap();
    let mut handshake = Handshake::receive(listener.accept().await, soon()).await.unwrap();
    handshake.share(budget);
    let (outbox, mut inbox) = handshake.welcome(Welcome::default());
    let receiving = tokio::spawn(async move {
        while inbox.next().await.is_some() {}
        drop(outbox);
    });
    let frame = tiffin_proto::encode_request(RequestId(1), &request(MIB)).unwrap();
    let (first, _) = frame.split_at(frame.len() / 2);
    stream.write_all(first).await.unwrap();
    while budget.received().used < MIB as u64 {
        tokio::task::yield_now().await;
    }
    (stream, receiving)
}

#[tokio::test]
async fn large_messages_of_a_credential_are_bounded_together() {
    // There is space for one of them, and most of another one.
    let budget = Arc::new(Budget::new(2 * MIB, MINUTE));
    let (half, receiving) = half_request(&budget).await;
    let ((_outbox, mut inbox), dialed) = pair(&budget).await;
    // A small one needs no space.
    dialed.outbox.request(RequestId(1), &request(100)).unwrap();
    assert!(matches!(inbox.next().await, Some(Incoming::Request(RequestId(1), _))));
    // At the limit: it has all the space that there is.
    let (first, second) = (budget.received(), request(MIB - 4096));
    assert_eq!((first.max, first.reached), (2 * MIB as u64, 0));
    dialed.outbox.request(RequestId(2), &second).unwrap();
    assert!(matches!(inbox.next().await, Some(Incoming::Request(RequestId(2), _))));
    assert_eq!(budget.received().reached, 0);
    // It is in memory until the next message is awaited. One beyond the limit waits for the half request.
    dialed.outbox.request(RequestId(3), &request(MIB + 4096)).unwrap();
    {
        let mut next = Box::pin(inbox.next());
        while budget.received().reached == 0 {
            let polled = tokio::time::timeout(Duration::ZERO, &mut next).await;
            assert!(polled.is_err(), "it does not wait");
        }
        drop(half);
        receiving.await.unwrap();
        assert!(matches!(next.await, Some(Incoming::Request(RequestId(3), _))));
    }
    drop(inbox);
    assert_eq!(budget.received().used, 0);
}

#[tokio::test]
async fn large_message_without_space_is_refused() {
    // It waits for no time, and the other connection's message never ends.
    let budget = Arc::new(Budget::new(2 * MIB, Duration::ZERO));
    let (half, receiving) = half_request(&budget).await;
    let ((_outbox, mut inbox), mut dialed) = pair(&budget).await;
    // At the limit.
    dialed.outbox.request(RequestId(1), &request(MIB - 4096)).unwrap();
    assert!(matches!(inbox.next().await, Some(Incoming::Request(RequestId(1), _))));
    // One beyond is refused, and the connection goes on with the next request.
    dialed.outbox.request(RequestId(2), &request(MIB + 4096)).unwrap();
    dialed.outbox.request(RequestId(3), &request(100)).unwrap();
    assert!(matches!(inbox.next().await, Some(Incoming::Request(RequestId(3), _))));
    let Some(Incoming::Reply(RequestId(2), Reply::Refused(refusal))) = dialed.inbox.next().await else {
        panic!("it is not refused")
    };
    assert_eq!(refusal.reason, tiffin_types::message::Reason::Busy);
    assert!(refusal.message.contains("hint: "));
    // Its sender may try again.
    drop(half);
    receiving.await.unwrap();
    dialed.outbox.request(RequestId(4), &request(MIB + 4096)).unwrap();
    assert!(matches!(inbox.next().await, Some(Incoming::Request(RequestId(4), _))));
}

#[tokio::test]
async fn peers_of_a_credential_that_do_not_read_lose_connections() {
    let budget = Arc::new(Budget::new(8 * MIB, MINUTE));
    let large = Reply::Refused(tiffin_types::message::Refusal {
        reason: tiffin_types::message::Reason::Invalid,
        message: "x".repeat(6 * MIB),
    });
    let ((first, _first_inbox), _unread) = pair(&budget).await;
    let ((second, _second_inbox), _also_unread) = pair(&budget).await;
    first.reply(RequestId(1), &large);
    let BudgetUse { used, reached, .. } = budget.unsent();
    assert!(used > 0 && reached == 0 && !first.is_closed());
    // What the sockets hold does not count.
    let mut count = 0;
    while !second.is_closed() {
        second.reply(RequestId(1), &large);
        count += 1;
    }
    assert!((1..=2).contains(&count), "{count}");
    assert_eq!((budget.unsent().reached, first.is_closed()), (1, false));
    assert_eq!(budget.unsent().used, used, "it holds nothing any more");
    first.close();
    assert_eq!(budget.unsent().used, 0);
}
