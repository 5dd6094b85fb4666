//! Gives an etcd users, with its own calls: those of the store need a user already.

use tiffin_client::EtcdAccess;
use tiffin_tls::{TlsClient, TlsFiles};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// The user of the masters, nodes and clients.
pub(crate) const NAME: &str = "tiffin";
/// The keys of all clusters, `/tiffin/` up to `/tiffin0`, in base64.
const KEYS: [&str; 2] = ["L3RpZmZpbi8=", "L3RpZmZpbjA="];
/// Its password.
pub(crate) const PASSWORD: &str = "a-password";

/// From now on etcd requires a user, and one may use the keys of the store.
pub(crate) async fn require(address: &str, access: &EtcdAccess) {
    let EtcdAccess { ca, cert, key, .. } = access.clone();
    let tls = TlsClient::open(&TlsFiles { ca, cert, key, client_ca: None }).unwrap();
    let post = |path: &'static str, body: String| post(address, tls.clone(), path, body);
    for (name, password) in [("root", "of-all"), (NAME, PASSWORD)] {
        post("auth/user/add", format!(r#"{{"name":"{name}","password":"{password}"}}"#)).await;
        post("auth/role/add", format!(r#"{{"name":"{name}"}}"#)).await;
        post("auth/user/grant", format!(r#"{{"user":"{name}","role":"{name}"}}"#)).await;
    }
    let [first, end] = KEYS;
    let keys = format!(r#"{{"permType":"READWRITE","key":"{first}","range_end":"{end}"}}"#);
    post("auth/role/grant", format!(r#"{{"name":"{NAME}","perm":{keys}}}"#)).await;
    post("auth/enable", "{}".to_owned()).await;
}

async fn post(address: &str, tls: Option<TlsClient>, path: &str, body: String) {
    let mut stream = tiffin_tls::connect(address, tls.as_ref()).await.unwrap();
    let length = body.len();
    let head = format!("Host: {address}\r\nConnection: close\r\nContent-Length: {length}");
    let request = format!("POST /v3/{path} HTTP/1.1\r\n{head}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let mut answer = Vec::new();
    let _end = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
}
