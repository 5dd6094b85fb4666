//! A cluster over TLS: master, nodes and disks, with clients that share no memory.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tiffin_client::{Client, ConnectOptions, Error, GetOptions, Put, PutOptions};
use tiffin_server::{MasterConfig, MasterServer, NodeConfig, NodeServer, TlsFiles};
use tiffin_tls::ca::{self, Purpose};
use tokio::time::Instant;

use crate::support::{LONG, key, only, pattern, soon};

const MIB: usize = 1 << 20;
const HOUR: Duration = Duration::from_secs(3600);

struct Secured {
    folder: TempDir,
    nodes: Vec<NodeServer>,
    master: MasterServer,
}

impl Secured {
    /// Two nodes, one with a disk. Nobody shares memory.
    async fn start() -> Self {
        let folder = TempDir::new().unwrap();
        ca::create(folder.path(), &["127.0.0.1".to_owned()], HOUR).unwrap();
        let tls = server_files(&folder);
        let master = MasterServer::start(MasterConfig { tls: tls.clone(), ..MasterConfig::default() });
        let master = master.await.unwrap();
        let mut nodes = Vec::new();
        for number in 0..2 {
            let disk = folder.path().join("disk");
            std::fs::create_dir_all(&disk).unwrap();
            let disk = format!("path={},size=64MiB", disk.display()).parse().unwrap();
            let node = NodeServer::start(NodeConfig {
                master: master.address().clone().into(),
                name: format!("node-{number}"),
                memory: 32 << 20,
                ssd: if number == 0 { vec![disk] } else { Vec::new() },
                shared_memory: false,
                tls: tls.clone(),
                ..NodeConfig::default()
            });
            let node = node.await.unwrap();
            node.joined(Instant::now() + LONG).await.unwrap();
            nodes.push(node);
        }
        Self { folder, nodes, master }
    }

    fn file(&self, name: &str) -> Option<PathBuf> {
        Some(self.folder.path().join(name))
    }

    fn options(&self) -> ConnectOptions {
        let (ca, cert, key) = (self.file(ca::CA_CERT), self.file(ca::CLIENT_CERT), self.file(ca::CLIENT_KEY));
        let tls = TlsFiles { ca, cert, key, client_ca: None };
        ConnectOptions { tls, shared_memory: false, ..ConnectOptions::new(self.master.address().to_string()) }
    }
}

/// Servers that want certificates of clients.
fn server_files(folder: &TempDir) -> TlsFiles {
    let path = |name| Some(folder.path().join(name));
    TlsFiles {
        cert: path(ca::SERVER_CERT),
        key: path(ca::SERVER_KEY),
        ca: path(ca::CA_CERT),
        client_ca: path(ca::CA_CERT),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_every_size_cross_tls_unchanged() {
    let cluster = Secured::start().await;
    let client = Client::connect(cluster.options()).await.unwrap();
    // More than the memory of the nodes, so that some are read from the disk.
    let sizes = [0, 1, 4096, 17 << 10, MIB + 1, 9 * MIB];
    let objects: Vec<_> = (0..30).map(|it| (key(format!("k-{it}")), pattern(it, sizes[it % 6]))).collect();
    for (number, (key, bytes)) in objects.iter().enumerate() {
        let options = PutOptions { replicas: 1 + number as u32 % 2, ..PutOptions::default() };
        only(client.put(&[Put { options, ..Put::new(key.clone(), bytes) }], soon()).await).unwrap();
    }
    let keys: Vec<_> = objects.iter().map(|it| it.0.clone()).collect();
    let again = Client::connect(cluster.options()).await.unwrap();
    for client in [&client, &again] {
        let found = client.get(&keys, GetOptions::default(), soon()).await;
        let mut whole = 0;
        for (found, (key, bytes)) in found.into_iter().zip(&objects) {
            match found {
                Ok(found) => {
                    assert!(found.bytes == *bytes, "{key}");
                    whole += 1;
                }
                Err(Error::NotFound { .. }) => {}
                Err(error) => panic!("{key}: {error}"),
            }
        }
        assert!(whole > 20, "{whole} objects");
    }
    assert_eq!(cluster.nodes.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_without_what_the_cluster_wants_are_told() {
    let cluster = Secured::start().await;
    let options = cluster.options();
    let tls = options.tls.clone();
    let other = TempDir::new().unwrap();
    ca::create(other.path(), &[], HOUR).unwrap();
    for (tls, expected) in [
        (TlsFiles::default(), "it accepts only TLS"),
        (
            TlsFiles { cert: None, key: None, ..tls.clone() },
            "it accepts only clients that show a certificate",
        ),
        (TlsFiles { ca: Some(other.path().join(ca::CA_CERT)), ..tls.clone() }, "is not signed by a CA"),
    ] {
        let failed = Client::connect(ConnectOptions { tls, ..options.clone() }).await;
        let error = failed.err().unwrap();
        assert!(matches!(&error, Error::Tls { .. }), "{error}");
        assert!(error.to_string().contains(expected) && error.hint().is_some(), "{error}");
        assert!(!error.is_retryable());
    }
    // One that is open goes on when the certificates are replaced; a new one uses the new certificates.
    let client = Client::connect(options.clone()).await.unwrap();
    only(client.put(&[Put::new(key("k"), b"value")], soon()).await).unwrap();
    let ends = |folder: &TempDir| ca::list(folder.path()).unwrap()[1].info.ends_s;
    let before = ends(&cluster.folder);
    ca::renew(cluster.folder.path(), &["localhost".to_owned()], 2 * HOUR).unwrap();
    assert!(ends(&cluster.folder) > before);
    only(client.get(&[key("k")], GetOptions::default(), soon()).await).unwrap();
    let by_name = options.address.replace("127.0.0.1", "localhost");
    let new = Client::connect(ConnectOptions { address: by_name, ..options }).await.unwrap();
    only(new.get(&[key("k")], GetOptions::default(), soon()).await).unwrap();
}

/// Replaces the certificate and the key of a folder by a pair that ends then.
fn issue(folder: &TempDir, purpose: &Purpose<'_>, ends: SystemTime) {
    let (cert, key) = match purpose {
        Purpose::Server(_) => (ca::SERVER_CERT, ca::SERVER_KEY),
        Purpose::Client => (ca::CLIENT_CERT, ca::CLIENT_KEY),
    };
    let issued = ca::Authority::read(folder.path()).unwrap().issue_until(purpose, ends).unwrap();
    // Files that are used appear whole.
    for (name, content) in [(key, issued.key), (cert, issued.cert)] {
        let new = folder.path().join("new");
        std::fs::write(&new, content).unwrap();
        std::fs::rename(new, folder.path().join(name)).unwrap();
    }
}

/// Certificates expire and are replaced while everything runs.
#[tokio::test(flavor = "multi_thread")]
async fn expired_certificates_are_named_until_they_are_replaced() {
    let cluster = Secured::start().await;
    let hosts = ["127.0.0.1".to_owned()];
    let (server, ended) = (Purpose::Server(&hosts), SystemTime::now() - HOUR);
    for (purpose, expected) in [
        (&server, "its certificate has expired"),
        (&Purpose::Client, "it does not accept the certificate of this process: it has expired"),
    ] {
        issue(&cluster.folder, purpose, ended);
        let error = Client::connect(cluster.options()).await.err().unwrap();
        assert!(matches!(&error, Error::Tls { .. }) && !error.is_retryable(), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        assert!(error.hint().is_some_and(|it| it.contains("tiffin certs")), "{error}");
        issue(&cluster.folder, purpose, SystemTime::now() + HOUR);
        let client = Client::connect(cluster.options()).await.unwrap();
        only(client.put(&[Put::new(key("k"), b"value")], soon()).await).unwrap();
        only(client.get(&[key("k")], GetOptions::default(), soon()).await).unwrap();
    }
}

#[test]
fn settings_of_a_node_with_connections_of_both_kinds_are_refused() {
    let tls = TlsFiles { cert: Some("c".into()), key: Some("k".into()), ..TlsFiles::default() };
    let check = |tls: TlsFiles, listens: bool| {
        let listen = listens.then(|| "127.0.0.1:0".parse().unwrap());
        NodeConfig { tls, listen, ..NodeConfig::default() }.check().map_err(|it| it.to_string())
    };
    let error = check(tls.clone(), true).unwrap_err();
    assert!(error.starts_with("tls_cert is set and tls_ca is not"), "{error}");
    let trusting = TlsFiles { ca: Some("a".into()), ..TlsFiles::default() };
    let error = check(trusting.clone(), true).unwrap_err();
    assert!(error.starts_with("tls_ca is set and tls_cert is not"), "{error}");
    assert_eq!(check(trusting, false), Ok(()), "it has no TCP socket");
    assert_eq!(check(TlsFiles { ca: Some("a".into()), ..tls }, true), Ok(()));
}
