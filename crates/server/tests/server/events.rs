//! Events of a master, as a ZeroMQ subscriber receives them.

#![expect(clippy::big_endian_bytes, reason = "ZMTP is big-endian")]

use std::cell::Cell;

use crate::support::*;
use serde_json::Value;
use tiffin_rpc::Address;
use tiffin_server::events::EventsConfig;
use tiffin_server::{MasterConfig, MasterServer, NodeConfig, NodeServer};
use tiffin_types::message::CommitOutcome;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn cluster() -> (MasterServer, NodeServer, Raw) {
    let events = EventsConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        backend_id: "here".to_owned(),
        legacy: true,
        object_key: true,
        queue_max: 1000,
    };
    let http = Some("127.0.0.1:0".parse().unwrap());
    let config = MasterConfig { events: Some(events), http, ..MasterConfig::default() };
    let master = start_master(config).await;
    let node = start_node(master.address(), NodeConfig::default()).await;
    let client = Raw::connect(master.address(), hello(1)).await.unwrap();
    (master, node, client)
}

/// Sends the bytes of a libzmq subscriber: its greeting, READY, and a subscription.
async fn subscribe(address: &Address, topic: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address.to_string()).await.unwrap();
    let mut greeting = [0_u8; 64];
    greeting[0] = 0xff;
    greeting[8] = 1;
    greeting[9] = 0x7f;
    greeting[10..12].copy_from_slice(&[3, 1]);
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting).await.unwrap();
    let mut theirs = [0; 64];
    stream.read_exact(&mut theirs).await.unwrap();
    assert_eq!((theirs[0], theirs[9], theirs[10], &theirs[12..17]), (0xff, 0x7f, 3, &b"NULL\0"[..]));
    stream.write_all(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB").await.unwrap();
    let (flags, ready) = frame(&mut stream).await;
    assert_eq!((flags, &ready[..6]), (4, &b"\x05READY"[..]));
    assert!(String::from_utf8_lossy(&ready).contains("PUB"));
    let mut wanted = vec![0, 1 + topic.len() as u8, 1];
    wanted.extend_from_slice(topic);
    stream.write_all(&wanted).await.unwrap();
    stream
}

async fn frame(stream: &mut TcpStream) -> (u8, Vec<u8>) {
    let flags = stream.read_u8().await.unwrap();
    let len = match flags & 2 {
        0 => u64::from(stream.read_u8().await.unwrap()),
        _ => stream.read_u64().await.unwrap(),
    };
    let mut body = vec![0; usize::try_from(len).unwrap()];
    stream.read_exact(&mut body).await.unwrap();
    (flags & 5, body)
}

/// The sequence number and payload of a message.
async fn message(stream: &mut TcpStream) -> (u64, Vec<u8>) {
    assert_eq!(frame(stream).await, (1, Vec::new()), "the topic is empty, and more frames follow");
    let (more, number) = frame(stream).await;
    let (last, payload) = frame(stream).await;
    assert_eq!((more, last), (1, 0));
    (u64::from_be_bytes(number.try_into().unwrap()), payload)
}

fn has(payload: &[u8], text: &str) -> bool {
    payload.windows(text.len()).any(|it| it == text.as_bytes())
}

#[tokio::test(flavor = "multi_thread")]
async fn subscriber_receives_stored_and_removed() {
    let (master, _node, client) = cluster().await;
    let address = master.events_address().unwrap();
    let mut stream = subscribe(address, b"").await;
    // The first message shows that the subscription has arrived. No put is interrupted: it would close its
    // connection, and the node might notice that only after the next reservation.
    let has_arrived = Cell::new(false);
    let puts = async {
        let mut number = 0;
        while !has_arrived.get() {
            number += 1;
            let outcome = client.put(&format!("{number}"), b"value", Way::Tcp).await;
            assert!(matches!(outcome, CommitOutcome::Stored(_)), "{outcome:?}");
            tokio::task::yield_now().await;
        }
    };
    let first = async {
        let first = message(&mut stream).await;
        has_arrived.set(true);
        first
    };
    let ((sequence, payload), ()) = tokio::join!(first, puts);
    assert!(sequence >= 1);
    // An array of three: the time, the events, and the rank.
    assert_eq!((payload[0], payload.last()), (0x93, Some(&0)));
    for text in ["event_id", "stored", "BlockStored", "tenant_id", "default", "backend_id", "here", "cpu"] {
        assert!(has(&payload, text), "{text}");
    }
    client.put("last one", b"value", Way::Tcp).await;
    client.delete("last one").await;
    let mut last = sequence;
    let mut seen = Vec::new();
    while !has(&seen, "BlockRemoved") {
        let (sequence, payload) = message(&mut stream).await;
        assert_eq!(sequence, last + 1, "no message was lost");
        last = sequence;
        seen.extend(payload);
    }
    assert!(has(&seen, "last one"));
    let (_, status) = get(master.http_address().unwrap(), "/kv_events/status").await;
    let status: Value = serde_json::from_str(&status).unwrap();
    assert_eq!((&status["enabled"], &status["dropped_events"]), (&Value::Bool(true), &Value::from(0)));
    assert_eq!(status["skipped_unparsed_keys"], 2, "stored and removed");
    assert!(
        status["published_events"].as_u64() >= Some(3) && status["published_batches"].as_u64() >= Some(2)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_of_another_protocol_are_disconnected() {
    let (master, _node, client) = cluster().await;
    let address = master.events_address().unwrap().to_string();
    let long = [&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0][..], b"NULL", &[0; 48], &[6], &[255; 8]].concat();
    for bytes in
        [b"GET / HTTP/1.1\r\nHost: here\r\nAccept: everything that there is\r\n\r\n\r\n".to_vec(), long]
    {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        let mut rest = Vec::new();
        // The greeting, possibly READY, and then the end.
        let _ended = stream.read_to_end(&mut rest).await;
        assert!(rest.len() >= 64, "{}", rest.len());
    }
    client.put("k", b"value", Way::Tcp).await;
}
