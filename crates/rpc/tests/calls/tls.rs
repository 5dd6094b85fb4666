//! Calls over TLS, and peers that do not agree about it.

use tempfile::TempDir;
use tiffin_rpc::{
    Blocking, ClientCertificates, TlsClient, TlsError, TlsFiles, TlsServer, Via, with_blocking,
};
use tiffin_tls::ca;
use tokio::runtime::Handle;

use super::*;

/// The certificates of a cluster, for loopback.
struct Certificates(TempDir);

impl Certificates {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        ca::create(folder.path(), &["127.0.0.1".to_owned()], Duration::from_secs(3600)).unwrap();
        Self(folder)
    }

    fn file(&self, name: &str) -> Option<std::path::PathBuf> {
        Some(self.0.path().join(name))
    }

    fn server(&self, client_ca: Option<&Self>) -> Option<TlsServer> {
        let client_ca = client_ca.and_then(|it| it.file(ca::CA_CERT));
        let (cert, key) = (self.file(ca::SERVER_CERT), self.file(ca::SERVER_KEY));
        let files = TlsFiles { cert, key, ca: None, client_ca };
        TlsServer::open(&files, ClientCertificates::Required).unwrap()
    }

    fn via(&self, reach: Reach, certificate: Option<&Self>) -> Via {
        let cert = certificate.and_then(|it| it.file(ca::CLIENT_CERT));
        let key = certificate.and_then(|it| it.file(ca::CLIENT_KEY));
        let files = TlsFiles { cert, key, ca: self.file(ca::CA_CERT), client_ca: None };
        Via { reach, tls: TlsClient::open(&files).unwrap() }
    }
}

async fn tls_server(tls: Option<TlsServer>) -> Address {
    let listener = Listener::bind_with(&any_port(), tls).await.unwrap();
    let address = listener.local_address().clone();
    tokio::spawn(async move {
        loop {
            let stream = listener.accept().await;
            tokio::spawn(async move {
                if let Some(handshake) = Handshake::receive(stream, soon()).await {
                    let (outbox, inbox) = handshake.welcome(Welcome::default());
                    echo(outbox, inbox).await;
                }
            });
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn threads_and_tasks_call_over_tls() {
    let certificates = Certificates::new();
    let address = tls_server(certificates.server(None)).await;
    let via = certificates.via(Reach::Far, None);
    let (connection, _) = Connection::open_by(&address, via, hello(), soon()).await.unwrap();
    // From empty replies to some of many records.
    let sizes = [0, 1, 97, 5000, 20_000, 60_000];
    let threads = (0..3).map(|_| {
        let (connection, runtime) = (connection.clone(), Handle::current());
        tokio::task::spawn_blocking(move || {
            for number in sizes.repeat(20) {
                let request = numbered(number);
                let call = connection.call(&request, soon());
                let reply = with_blocking(Blocking::Now, || runtime.block_on(call)).unwrap();
                assert_eq!(reply, Reply::ViewsBegun(vec![true; number as usize]));
            }
        })
    });
    let tasks = (0..3).map(|_| {
        let connection = connection.clone();
        tokio::spawn(async move {
            for number in sizes.repeat(20) {
                let reply = connection.call(&numbered(number), soon()).await.unwrap();
                assert_eq!(reply, Reply::ViewsBegun(vec![true; number as usize]));
            }
        })
    });
    for worker in threads.chain(tasks).collect::<Vec<_>>() {
        worker.await.unwrap();
    }
    // A request of many records.
    let keys = (0..BATCH_ITEMS_MAX).map(|it| Key::new(format!("{it:0100}").as_bytes()).unwrap()).collect();
    let resolve = ClientToMaster::Resolve(Resolve { keys, ..Resolve::default() });
    assert_eq!(connection.call(&resolve, soon()).await.unwrap(), Reply::Done);
}

#[tokio::test]
async fn local_socket_stays_without_tls() {
    let certificates = Certificates::new();
    let address = tls_server(certificates.server(None)).await;
    for via in [Via::from(Reach::Near), certificates.via(Reach::Near, None)] {
        let dialed = dial(&address, via, hello(), soon()).await.unwrap();
        assert!(matches!(dialed.inbox.peer(), Peer::Unix { .. }));
    }
}

#[tokio::test]
async fn peers_that_disagree_about_tls_say_so() {
    let (ours, other) = (Certificates::new(), Certificates::new());
    let (plain, tls) = (tls_server(None).await, tls_server(ours.server(None)).await);
    let asking = tls_server(ours.server(Some(&ours))).await;
    let far = |certificate| ours.via(Reach::Far, certificate);
    for (address, via, expected) in [
        (&tls, Via::default(), TlsError::Wanted),
        (&plain, far(None), TlsError::Plaintext),
        (&tls, other.via(Reach::Far, None), TlsError::UnknownCa),
        (&asking, far(None), TlsError::CertificateWanted),
        (&asking, far(Some(&other)), TlsError::Refused("its CA is unknown there".to_owned())),
    ] {
        let error = dial(address, via, hello(), soon()).await.unwrap_err();
        let CallError::Tls { source, .. } = &error else { panic!("{error} instead of {expected}") };
        assert_eq!(*source, expected);
        let text = error.to_string();
        assert!(text.starts_with(&format!("cannot connect to `{address}`: it")), "{text}");
        assert!(text.contains(&format!("\n\nhint: {}", expected.hint())), "{text}");
    }
    assert!(dial(&asking, far(Some(&ours)), hello(), soon()).await.is_ok());
    // The name in the address counts.
    let by_name: Address = tls.to_string().replace("127.0.0.1", "localhost").parse().unwrap();
    let error = dial(&by_name, far(None), hello(), soon()).await.unwrap_err();
    assert!(error.to_string().contains("not for `localhost`, but for "), "{error}");
}

/// A peer that sends half a handshake, or a damaged record, ends without an effect on others.
#[tokio::test]
async fn garbage_in_a_handshake_ends_its_connection_only() {
    let certificates = Certificates::new();
    let address = tls_server(certificates.server(None)).await;
    let hello_of_client = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    let records: [&[u8]; 5] = [
        b"",
        hello_of_client,
        b"\x16\x03\x01\xff\xff",
        b"\x17\x03\x03\x00\x01\x00",
        b"\x15\x03\x03\x00\x02\x02\x28",
    ];
    for bytes in records {
        let mut stream = TcpStream::connect(address.to_string()).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _reset = stream.read_to_end(&mut answer).await;
        assert!(answer.len() < 100, "{answer:?}");
    }
    let via = certificates.via(Reach::Far, None);
    assert!(dial(&address, via, hello(), soon()).await.is_ok());
}

/// One whose bytes are changed on the way ends.
#[tokio::test]
async fn changed_bytes_are_noticed() {
    let certificates = Certificates::new();
    let target = tls_server(certificates.server(None)).await;
    let (address, _task) = rude(move |mut near: TcpStream| async move {
        let mut far = TcpStream::connect(target.to_string()).await.unwrap();
        let (mut near_read, mut near_write) = near.split();
        let (mut far_read, mut far_write) = far.split();
        let damaged = async {
            let (mut passed, mut buffer) = (0, [0; 512]);
            loop {
                let read = near_read.read(&mut buffer).await.unwrap();
                // Behind the handshake.
                if passed > 20_000 {
                    buffer[read / 2] ^= 1;
                }
                passed += read;
                if read == 0 || far_write.write_all(&buffer[..read]).await.is_err() {
                    return;
                }
            }
        };
        tokio::join!(damaged, async { tokio::io::copy(&mut far_read, &mut near_write).await.ok() });
    })
    .await;
    let via = certificates.via(Reach::Far, None);
    let (connection, _) = Connection::open_by(&address, via, hello(), soon()).await.unwrap();
    let keys = (0..1000).map(|it| Key::new(format!("{it:0100}").as_bytes()).unwrap()).collect();
    let resolve = ClientToMaster::Resolve(Resolve { keys, ..Resolve::default() });
    let lost = connection.call(&resolve, soon()).await;
    assert!(matches!(lost, Err(CallError::Lost { .. })), "{lost:?}");
}
