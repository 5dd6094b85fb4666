//! The two ways to a listener on loopback: its port, and the Unix twin beside it.

use std::time::Duration;

use tiffin_rpc::{Address, CallError, Connection, Listener, Peer, Reach, Stream};
use tiffin_types::message::Hello;
use tokio::net::TcpListener;
use tokio::time::Instant;

#[tokio::test]
async fn who_is_near_comes_in_through_the_twin_and_who_is_not_through_the_port() {
    for (address, reach, through_twin) in [
        ("127.0.0.1:0", Reach::Near, true),
        ("127.0.0.1:0", Reach::Far, false),
        ("127.0.0.2:0", Reach::Near, true),
        ("[::1]:0", Reach::Near, true),
        ("localhost:0", Reach::Near, true),
        ("localhost:0", Reach::Far, false),
    ] {
        let listener = Listener::bind(&address.parse().unwrap()).await.unwrap();
        let address = listener.local_address();
        let (ours, theirs) = tokio::join!(listener.accept(), Stream::connect(address, reach));
        let is_unix = |peer| matches!(peer, Peer::Unix { .. });
        let found = (is_unix(ours.peer()), is_unix(theirs.unwrap().peer()));
        assert_eq!(found, (through_twin, through_twin), "{address}, {reach:?}");
    }
}

/// What others listen on has no twin: a proxy, a tunnel, or a server where the name was taken.
#[tokio::test]
async fn who_is_near_finds_a_port_without_a_twin_too() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string().parse().unwrap();
    let (accepted, stream) = tokio::join!(listener.accept(), Stream::connect(&address, Reach::Near));
    assert!(accepted.is_ok() && matches!(stream.unwrap().peer(), Peer::Tcp(_)));
    drop(listener);
    let deadline = Instant::now() + Duration::from_secs(60);
    let error = Connection::open_by(&address, Reach::Near, Hello::default(), deadline).await.unwrap_err();
    assert!(matches!(&error, CallError::Connect { .. }), "{error}");
    assert!(error.to_string().contains(&format!("cannot connect to `{address}`")), "{error}");
}

/// A wildcard is reached at any address of the machine, through the twin at the usual one.
#[tokio::test]
async fn a_wildcard_has_the_twin_of_localhost() {
    for (wildcard, near, other) in [("0.0.0.0", "127.0.0.1", "127.0.0.2"), ("::", "::1", "127.0.0.1")] {
        let any = Address::Tcp { host: wildcard.to_owned(), port: 0 };
        let listener = Listener::bind(&any).await.unwrap();
        let Address::Tcp { port, .. } = *listener.local_address() else { panic!() };
        for (host, through_twin) in [(near, true), (other, false)] {
            let address = Address::Tcp { host: host.to_owned(), port };
            let (ours, theirs) = tokio::join!(listener.accept(), Stream::connect(&address, Reach::Near));
            assert_eq!(matches!(ours.peer(), Peer::Unix { .. }), through_twin, "{address}");
            assert_eq!(matches!(theirs.unwrap().peer(), Peer::Unix { .. }), through_twin, "{address}");
        }
    }
}

/// Many wait at both doors at once: all are let in.
#[tokio::test]
async fn both_ways_in_are_served() {
    const EACH: usize = 20;
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
    let mut waiting = Vec::new();
    for reach in [Reach::Far, Reach::Near] {
        for _ in 0..EACH {
            waiting.push(Stream::connect(listener.local_address(), reach).await.unwrap());
        }
    }
    let mut through_twin = 0;
    for _ in 0..2 * EACH {
        through_twin += usize::from(matches!(listener.accept().await.peer(), Peer::Unix { .. }));
    }
    assert_eq!(through_twin, EACH);
}
