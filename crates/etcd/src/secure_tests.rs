//! TLS and users, against a stand-in for an etcd that has both. `make test-ha` does the same with real etcd.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use tiffin_tls::{ClientCertificates, TlsFiles, TlsServer, TlsStream, ca};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

/// What the stand-in requires.
struct Users {
    password: &'static str,
    /// It requires certificates, too. Then it says something else about a request without a token.
    has_certs: bool,
    /// The token that it has given last.
    token: Option<String>,
    given: usize,
}

struct StandIn {
    address: String,
    users: Arc<Mutex<Users>>,
}

impl StandIn {
    /// With TLS if there are files; `users` that are required if there is a password.
    async fn start(tls: &TlsFiles, password: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let has_certs = tls.client_ca.is_some();
        let users = Arc::new(Mutex::new(Users { password, has_certs, token: None, given: 0 }));
        let tls = TlsServer::open(tls, ClientCertificates::Required).unwrap();
        let served = Arc::clone(&users);
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (tls, users) = (tls.clone(), Arc::clone(&served));
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, &users).await,
                        Some(tls) => {
                            let mut start = [0];
                            stream.peek(&mut start).await.unwrap();
                            if start == *b"P" {
                                return refuse_plain(stream).await;
                            }
                            let shaken = TlsStream::shake(stream, tls.session().unwrap()).await;
                            if let Ok(stream) = shaken {
                                serve(stream, &users).await;
                            }
                        }
                    }
                });
            }
        });
        Self { address, users }
    }

    fn users(&self) -> std::sync::MutexGuard<'_, Users> {
        self.users.lock().unwrap()
    }
}

/// As a server in Go does that expects TLS.
async fn refuse_plain(stream: tokio::net::TcpStream) {
    refuse(stream, "Client sent an HTTP request to an HTTPS server.\n").await;
}

/// Refuses a request in a text.
async fn refuse(mut stream: tokio::net::TcpStream, why: &str) {
    let text = format!("HTTP/1.0 400 Bad Request\r\n\r\n{why}");
    let _request = stream.read(&mut [0; 1 << 12]).await;
    let _gone = stream.write_all(text.as_bytes()).await;
    let _gone = stream.shutdown().await;
}

/// Answers the requests of a connection.
async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, users: &Mutex<Users>) {
    let mut received = Vec::new();
    loop {
        let Some((head, body)) = request(&mut stream, &mut received).await else { return };
        let (status, answer) = answer(&head, &body, &mut users.lock().unwrap());
        let text = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{answer}", answer.len());
        if stream.write_all(text.as_bytes()).await.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
}

async fn request<S>(stream: &mut S, received: &mut Vec<u8>) -> Option<(String, String)>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    loop {
        let text = String::from_utf8_lossy(received).into_owned();
        if let Some((head, rest)) = text.split_once("\r\n\r\n") {
            let length =
                head.lines().find_map(|it| it.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
            let length: usize = length.unwrap_or(0);
            if rest.len() >= length {
                received.drain(..head.len() + 4 + length);
                return Some((head.to_owned(), rest[..length].to_owned()));
            }
        }
        if stream.read_buf(received).await.ok()? == 0 {
            return None;
        }
        // As servers of HTTP do that receive something else.
        if !received.starts_with(b"POST") {
            let _gone = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n400 Bad Request").await;
            return None;
        }
    }
}

fn answer(head: &str, body: &str, users: &mut Users) -> (&'static str, String) {
    let refuse = |code: i64, message: &str| {
        ("400 Bad Request", format!(r#"{{"error":"{message}","code":{code},"message":"{message}"}}"#))
    };
    if head.starts_with("POST /v3/auth/authenticate ") {
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        return match users.password {
            "" => refuse(FAILED_PRECONDITION, "etcdserver: authentication is not enabled"),
            password if body["name"] == "tiffin" && body["password"] == password => {
                users.given += 1;
                let token = format!("token.{}", users.given);
                users.token = Some(token.clone());
                ("200 OK", format!(r#"{{"token":"{token}"}}"#))
            }
            _ => refuse(INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID or password"),
        };
    }
    let shown = head.lines().find_map(|it| it.strip_prefix("authorization: "));
    match (users.password, shown) {
        ("", _) => {}
        (_, None) if users.has_certs => return refuse(PERMISSION_DENIED, "etcdserver: permission denied"),
        (_, None) => return refuse(INVALID_ARGUMENT, "etcdserver: user name is empty"),
        (_, Some(shown)) if users.token.as_deref() == Some(shown) => {}
        _ => return refuse(UNAUTHENTICATED, "etcdserver: invalid auth token"),
    }
    ("200 OK", r#"{"header":{"revision":"7"},"succeeded":true}"#.to_owned())
}

fn create(folder: &Path, host: &str) -> PathBuf {
    ca::create(folder, &[host.to_owned()], Duration::from_secs(3600)).unwrap();
    folder.to_owned()
}

/// What a server shows with the files in this folder, and whether it requires a certificate.
fn server(folder: &Path, asks: bool) -> TlsFiles {
    TlsFiles {
        cert: Some(folder.join(ca::SERVER_CERT)),
        key: Some(folder.join(ca::SERVER_KEY)),
        ca: None,
        client_ca: asks.then(|| folder.join(ca::CA_CERT)),
    }
}

fn client(folder: &Path, shows: bool) -> EtcdAccess {
    EtcdAccess {
        ca: Some(folder.join(ca::CA_CERT)),
        cert: shows.then(|| folder.join(ca::CLIENT_CERT)),
        key: shows.then(|| folder.join(ca::CLIENT_KEY)),
        credentials: None,
    }
}

/// A call, which has time: no outcome below is one of the deadline.
async fn call(etcd: &Etcd) -> Result<Outcome, EtcdError> {
    etcd.txn(&Txn::default(), Instant::now() + Duration::from_secs(600)).await
}

#[tokio::test]
async fn tls_and_a_password_lead_to_etcd() {
    let folder = tempfile::tempdir().unwrap();
    let certs = create(&folder.path().join("certs"), "127.0.0.1");
    let file = folder.path().join("credentials");
    fs::write(&file, "tiffin:one\n").unwrap();
    let store = StandIn::start(&server(&certs, true), "one").await;
    let access = EtcdAccess { credentials: Some(file.clone()), ..client(&certs, true) };
    let etcd = Etcd::open(&format!("https://{}", store.address), &access).unwrap();
    for _ in 0..2 {
        assert_eq!(call(&etcd).await.unwrap().revision, 7);
    }
    assert_eq!(store.users().given, 1, "a token serves many requests");
    // etcd forgets its tokens when it restarts; the password is replaced meanwhile.
    store.users().token = None;
    store.users().password = "two";
    fs::write(&file, "tiffin:two").unwrap();
    assert_eq!(call(&etcd).await.unwrap().revision, 7);
    assert_eq!(store.users().given, 2);
    // A wrong one is not repeated.
    store.users().token = None;
    fs::write(&file, "tiffin:three").unwrap();
    let error = call(&etcd).await.unwrap_err();
    assert!(matches!(error, EtcdError::Credentials { .. }), "{error}");
    let shown = format!("{error} {error:?} {etcd:?}");
    assert!(!shown.contains("three") && !shown.contains("token."), "{shown}");
    assert!(shown.contains("invalid user ID or password") && shown.contains("hint: "), "{shown}");
}

#[tokio::test]
async fn etcd_without_users_needs_no_password() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("credentials");
    fs::write(&file, "tiffin:one").unwrap();
    let certs = create(&folder.path().join("certs"), "127.0.0.1");
    for (files, access) in
        [(TlsFiles::default(), EtcdAccess::default()), (server(&certs, true), client(&certs, true))]
    {
        let store = StandIn::start(&files, "").await;
        let without = Etcd::open(&store.address, &access).unwrap();
        let access = EtcdAccess { credentials: Some(file.clone()), ..access };
        let etcd = Etcd::open(&store.address, &access).unwrap();
        assert_eq!(call(&etcd).await.unwrap().revision, 7);
        // It gets some later.
        store.users().password = "one";
        assert_eq!(call(&etcd).await.unwrap().revision, 7);
        let error = call(&without).await.unwrap_err();
        if files.client_ca.is_some() {
            assert!(error.to_string().contains("etcd-credentials-file"), "{error}");
        }
    }
}

/// A server that closes every connection, as etcd does where one side has TLS and the other has not.
#[tokio::test(start_paused = true)]
async fn closed_connections_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let certs = create(&folder.path().join("certs"), "127.0.0.1");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _request = stream.read(&mut [0; 1 << 12]).await;
        }
    });
    for (access, expected) in
        [(client(&certs, true), "may listen without TLS"), (EtcdAccess::default(), "may accept only TLS")]
    {
        let etcd = Etcd::open(&address, &access).unwrap();
        let deadline = Instant::now() + Duration::from_secs(1);
        let error = etcd.txn(&Txn::default(), deadline).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[tokio::test]
async fn connections_that_cannot_be_trusted_end_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let certs = create(&folder.path().join("certs"), "127.0.0.1");
    let elsewhere = create(&folder.path().join("elsewhere"), "etcd.example.org");
    let others = create(&folder.path().join("others"), "127.0.0.1");
    let plain = StandIn::start(&TlsFiles::default(), "").await.address;
    let open = StandIn::start(&server(&certs, false), "").await.address;
    let strict = StandIn::start(&server(&certs, true), "").await.address;
    let other_host = StandIn::start(&server(&elsewhere, false), "").await.address;
    for (address, access, expected, hint) in [
        (&open, client(&others, false), "not signed by a CA that this process trusts", "--etcd-ca"),
        (&open, EtcdAccess::default(), "it accepts only TLS", "--etcd-ca"),
        (&plain, client(&certs, false), "it does not speak TLS", "--etcd-ca"),
        (&other_host, client(&elsewhere, false), "its certificate is not for `127.0.0.1`", "host"),
        (&strict, client(&certs, false), "only clients that show a certificate", "--etcd-cert"),
    ] {
        let etcd = Etcd::open(address, &access).unwrap();
        let error = call(&etcd).await.unwrap_err();
        assert!(matches!(error, EtcdError::Tls { .. }), "{error}");
        let text = error.to_string();
        let (what, advice) = text.split_once("\n\nhint: ").unwrap();
        assert!(
            what.contains(address.as_str()) && what.contains(expected) && advice.contains(hint),
            "{text}"
        );
    }
    // Where another endpoint is good, that one is used.
    let etcd = Etcd::open(&format!("{plain},{open}"), &client(&certs, false)).unwrap();
    assert_eq!(call(&etcd).await.unwrap().revision, 7);
}

#[tokio::test]
async fn certificates_with_a_common_name_are_refused_with_the_reason() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let etcd = Etcd::new(&listener.local_addr().unwrap().to_string()).unwrap();
    let why =
        "CommonName of client sending a request against gateway will be ignored and not used as expected\n";
    tokio::spawn(async move { refuse(listener.accept().await.unwrap().0, why).await });
    let error = call(&etcd).await.unwrap_err().to_string();
    assert!(error.contains("no certificate with a CommonName"), "{error}");
}

#[test]
fn files_that_cannot_be_used_are_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let certs = create(&folder.path().join("certs"), "127.0.0.1");
    let file = folder.path().join("credentials");
    fs::write(&file, "tiffin:").unwrap();
    let good = client(&certs, true);
    let named = |path: &str| Some(folder.path().join(path));
    for (text, access, expected) in [
        ("a:1", EtcdAccess { ca: None, ..good.clone() }, "etcd_ca is not"),
        ("a:1", EtcdAccess { key: None, ..good.clone() }, "the other is not"),
        ("a:1", EtcdAccess { ca: named("none"), ..good.clone() }, "cannot read the TLS file"),
        ("http://a:1", good.clone(), "`http://` is without TLS"),
        ("https://a:1", EtcdAccess::default(), "`https://` needs a CA"),
        ("a:1", EtcdAccess { credentials: named("none"), ..good.clone() }, "cannot be read"),
        ("a:1", EtcdAccess { credentials: named("credentials"), ..good }, "is not `NAME:PASSWORD`"),
        (
            "10.0.0.1:1",
            EtcdAccess { credentials: named("credentials"), ..EtcdAccess::default() },
            "would be sent without TLS",
        ),
    ] {
        let error = Etcd::open(text, &access).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("hint: "), "{error}");
    }
}
