//! What was sent before a connection ended is received after it, on one host.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::time::Duration;

use tiffin_proto::Incoming;
use tiffin_rpc::{Address, Dialed, Handshake, Inbox, Listener, Outbox, Reach, SendError, dial};
use tiffin_types::message::{Hello, MasterToMember, Reply, Request, Welcome};
use tiffin_types::{ClientId, RequestId};
use tokio::time::Instant;

/// Far enough that only a hang reaches it.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Both ends of a connection: of who accepted it, and of who connected.
async fn pair(reach: Reach) -> ((Outbox, Inbox), Dialed) {
    let any: Address = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::bind(&any).await.unwrap();
    let address = listener.local_address().clone();
    let accept = async {
        let handshake = Handshake::receive(listener.accept().await, soon()).await.unwrap();
        handshake.welcome(Welcome::default())
    };
    let (accepted, dialed) = tokio::join!(accept, dial(&address, reach, Hello::default(), soon()));
    (accepted, dialed.unwrap())
}

fn word(number: u64) -> MasterToMember {
    MasterToMember::ClientGone(ClientId(number))
}

fn heard(messages: Vec<Incoming>) -> Vec<u64> {
    let number = |message| match message {
        Incoming::Request(_, Request::MasterToMember(MasterToMember::ClientGone(client))) => client.0,
        other => panic!("{other:?}"),
    };
    messages.into_iter().map(number).collect()
}

#[tokio::test]
async fn what_is_certain_to_arrive_arrives_though_its_sender_is_gone() {
    let ((outbox, inbox), mut dialed) = pair(Reach::Near).await;
    for number in 1..=3 {
        assert_eq!(outbox.send_if_buffered(RequestId(number), &word(number)), Ok(true));
    }
    drop((outbox, inbox));
    // This notices that there is nobody any more, before anything was heard.
    dialed.outbox.reply(RequestId(9), &Reply::Done);
    assert!(dialed.outbox.is_closed());
    assert_eq!(heard(dialed.inbox.drain()), [1, 2, 3]);
    assert_eq!(heard(dialed.inbox.drain()), [0; 0], "once");
}

#[tokio::test]
async fn nothing_is_certain_after_the_inbox_was_drained() {
    let ((outbox, _inbox), mut dialed) = pair(Reach::Near).await;
    assert_eq!(outbox.send_if_buffered(RequestId(1), &word(1)), Ok(true));
    assert_eq!(heard(dialed.inbox.drain()), [1]);
    assert_eq!(outbox.send_if_buffered(RequestId(2), &word(2)), Err(SendError::Closed));
}

#[tokio::test]
async fn what_must_cross_a_network_or_waits_for_a_slow_peer_is_not_there_yet() {
    let ((outbox, _inbox), _dialed) = pair(Reach::Far).await;
    assert_eq!(outbox.send_if_buffered(RequestId(1), &word(1)), Ok(false));
    let ((outbox, _inbox), mut dialed) = pair(Reach::Near).await;
    let mut sent = 0;
    while outbox.send_if_buffered(RequestId(sent), &word(sent)).unwrap() {
        sent += 1;
    }
    let heard = heard(dialed.inbox.drain());
    assert_eq!(heard, (0..heard.len() as u64).collect::<Vec<_>>());
    assert!(heard.len() as u64 >= sent, "what was there is heard: {} of {sent}", heard.len());
}
