//! Sessions in memory, with certificates of a CA in a folder.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use crate::ca::{self, Authority, CaError, Issued, Purpose};
use crate::files::Identity;
use crate::{ClientCertificates, TlsClient, TlsError, TlsFiles, TlsServer, TlsStream};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn hosts(names: &[&str]) -> Vec<String> {
    names.iter().map(|&it| it.to_owned()).collect()
}

/// A folder with the certificates of a cluster.
fn folder(names: &[&str]) -> TempDir {
    let folder = TempDir::new().unwrap();
    ca::create(folder.path(), &hosts(names), DAY).unwrap();
    folder
}

fn server_files(folder: &Path) -> TlsFiles {
    let path = |name| Some(folder.join(name));
    TlsFiles { cert: path(ca::SERVER_CERT), key: path(ca::SERVER_KEY), ..TlsFiles::default() }
}

fn client_files(folder: &Path) -> TlsFiles {
    TlsFiles { ca: Some(folder.join(ca::CA_CERT)), ..TlsFiles::default() }
}

fn with_certificate(folder: &Path) -> TlsFiles {
    let path = |name| Some(folder.join(name));
    TlsFiles { cert: path(ca::CLIENT_CERT), key: path(ca::CLIENT_KEY), ..client_files(folder) }
}

/// Replaces a file, as `mv` does.
fn replace(from: impl AsRef<Path>, to: impl AsRef<Path>) -> std::io::Result<()> {
    let draft = to.as_ref().with_extension("new");
    fs::copy(from, &draft)?;
    fs::rename(draft, to)
}

type Shaken = std::io::Result<TlsStream<DuplexStream>>;

/// Both ends of a handshake. The client also waits for the first byte of the server.
async fn shake(server: &TlsFiles, client: &TlsFiles, host: &str) -> (Shaken, Shaken) {
    let server = TlsServer::open(server, ClientCertificates::Required).unwrap().unwrap();
    let client = TlsClient::open(client).unwrap().unwrap();
    shake_with(&server, &client, host).await
}

async fn shake_with(server: &TlsServer, client: &TlsClient, host: &str) -> (Shaken, Shaken) {
    let (near, far) = duplex(1000);
    let accepting = async {
        let mut stream = TlsStream::shake(far, server.session()?).await?;
        stream.write_all(b"!").await?;
        stream.flush().await?;
        Ok(stream)
    };
    let dialing = async {
        let mut stream = TlsStream::shake(near, client.session(host)?).await?;
        assert_eq!(stream.read_u8().await?, b'!');
        Ok(stream)
    };
    tokio::join!(accepting, dialing)
}

fn error(shaken: Shaken) -> TlsError {
    let error = shaken.err().unwrap();
    TlsError::of(&error).unwrap_or_else(|| panic!("{error}")).clone()
}

#[tokio::test]
async fn bytes_of_any_number_cross_a_session_in_both_directions() {
    let folder = folder(&["localhost", "127.0.0.1", "::1", "*.example.org"]);
    for host in ["localhost", "127.0.0.1", "::1", "a.example.org"] {
        let (server, client) = shake(&server_files(folder.path()), &client_files(folder.path()), host).await;
        let (mut server, mut client) = (server.unwrap(), client.unwrap());
        for len in [1, 2, 16 << 10, (16 << 10) + 1, 300_001] {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 31 + (at >> 9)) as u8).collect();
            let (near, far) = (&mut client, &mut server);
            let sent = async {
                near.write_all(&bytes).await?;
                near.flush().await
            };
            let echoed = async {
                let mut found = vec![0; len];
                far.read_exact(&mut found).await?;
                assert!(found == bytes, "{len} bytes");
                Ok::<_, std::io::Error>(())
            };
            tokio::try_join!(sent, echoed).unwrap();
        }
        client.shutdown().await.unwrap();
        assert_eq!(server.read(&mut [0]).await.unwrap(), 0, "an end that was announced");
        drop(server);
        assert!(client.read(&mut [0]).await.is_err(), "an end that was not");
    }
}

#[tokio::test]
async fn every_kind_of_mistake_has_its_error() {
    let (ours, other) = (folder(&["localhost"]), folder(&["localhost"]));
    let (server, client) = (server_files(ours.path()), client_files(ours.path()));

    let (_, failed) = shake(&server, &client, "example.org").await;
    let wrong_name = error(failed);
    assert_eq!(wrong_name.to_string(), "its certificate is not for `example.org`, but for `localhost`");

    let (refused, failed) = shake(&server, &client_files(other.path()), "localhost").await;
    assert_eq!(error(failed), TlsError::UnknownCa);
    assert!(matches!(error(refused), TlsError::Refused(_)), "the server learns of it");

    let asking = TlsFiles { client_ca: Some(ours.path().join(ca::CA_CERT)), ..server.clone() };
    let (refused, failed) = shake(&asking, &client, "localhost").await;
    assert_eq!((error(refused), error(failed)), (TlsError::NoCertificate, TlsError::CertificateWanted));
    let foreign = TlsFiles { ca: client.ca.clone(), ..with_certificate(other.path()) };
    let (refused, failed) = shake(&asking, &foreign, "localhost").await;
    assert_eq!(error(refused), TlsError::UnknownCa);
    assert!(matches!(error(failed), TlsError::Refused(_)));
    let (accepted, connected) = shake(&asking, &with_certificate(ours.path()), "localhost").await;
    assert!(accepted.unwrap().has_peer_certificate() && connected.is_ok());

    // A client's certificate is not for servers.
    let wrong = TlsFiles { ca: None, ..with_certificate(ours.path()) };
    let (_, failed) = shake(&wrong, &client, "localhost").await;
    assert!(matches!(error(failed), TlsError::Purpose(_) | TlsError::WrongName { .. }));

    for error in [wrong_name, TlsError::UnknownCa, TlsError::CertificateWanted, TlsError::Plaintext] {
        assert!(error.is_final() && !error.hint().is_empty());
    }
}

#[tokio::test]
async fn expired_certificate_is_rejected() {
    let folder = folder(&["localhost"]);
    let authority = Authority::read(folder.path()).unwrap();
    let (hosts, ended) = (hosts(&["localhost"]), SystemTime::now() - DAY);
    let Issued { cert, key } = authority.issue_until(&Purpose::Server(&hosts), ended).unwrap();
    fs::write(folder.path().join(ca::SERVER_CERT), cert).unwrap();
    fs::write(folder.path().join(ca::SERVER_KEY), key).unwrap();
    let (refused, failed) =
        shake(&server_files(folder.path()), &client_files(folder.path()), "localhost").await;
    assert_eq!(error(failed), TlsError::Expired);
    assert_eq!(error(refused), TlsError::Refused("it has expired, or is not valid yet".to_owned()));
}

#[tokio::test]
async fn expired_certificate_of_a_client_is_rejected() {
    let folder = folder(&["localhost"]);
    let authority = Authority::read(folder.path()).unwrap();
    let Issued { cert, key } = authority.issue_until(&Purpose::Client, SystemTime::now() - DAY).unwrap();
    fs::write(folder.path().join(ca::CLIENT_CERT), cert).unwrap();
    fs::write(folder.path().join(ca::CLIENT_KEY), key).unwrap();
    let asking = TlsFiles { client_ca: Some(folder.path().join(ca::CA_CERT)), ..server_files(folder.path()) };
    let client = TlsFiles { ca: client_files(folder.path()).ca, ..with_certificate(folder.path()) };
    let (refused, failed) = shake(&asking, &client, "localhost").await;
    assert_eq!(error(refused), TlsError::Expired);
    let failed = error(failed);
    assert_eq!(failed, TlsError::Refused("it has expired, or is not valid yet".to_owned()));
    assert!(failed.is_final() && failed.hint().contains("certs list"));
}

/// A process whose own certificate is not valid says so; its peers refuse it.
#[test]
fn certificate_of_a_process_is_valid_for_a_time() {
    let folder = folder(&["localhost"]);
    let paths = [ca::SERVER_CERT, ca::SERVER_KEY].map(|it| folder.path().join(it));
    let identity = Identity::read(&paths[0], &paths[1]).unwrap();
    let info = identity.info().unwrap();
    let at = |seconds: u64| identity.untimely(UNIX_EPOCH + Duration::from_secs(seconds));
    assert!(at(info.begins_s - 1).is_some_and(|it| it.contains("not valid yet")));
    assert_eq!([at(info.begins_s), at(info.ends_s)], [None, None]);
    assert!(at(info.ends_s + 1).is_some_and(|it| it.contains("expired")));
}

#[tokio::test]
async fn peers_without_tls_are_recognized() {
    let folder = folder(&["localhost"]);
    let server = TlsServer::open(&server_files(folder.path()), ClientCertificates::Required);
    let server = server.unwrap().unwrap();
    let client = TlsClient::open(&client_files(folder.path())).unwrap().unwrap();
    for text in ["GET / HTTP/1.1\r\n\r\n", "TFN1", "\0"] {
        for session in [server.session().unwrap(), client.session("localhost").unwrap()] {
            let (near, mut far) = duplex(1000);
            far.write_all(text.as_bytes()).await.unwrap();
            far.shutdown().await.unwrap();
            let failed = error(TlsStream::shake(near, session).await);
            assert_eq!(failed, TlsError::Plaintext, "{text:?}");
        }
    }
    let (near, far) = duplex(1000);
    drop(far);
    let failed = TlsStream::shake(near, server.session().unwrap()).await;
    assert_eq!(error(failed), TlsError::Closed);
}

#[tokio::test]
async fn replaced_files_count_for_the_next_session() {
    let folder = folder(&["localhost"]);
    let server = TlsServer::open(&server_files(folder.path()), ClientCertificates::Required);
    let server = server.unwrap().unwrap();
    let client = TlsClient::open(&client_files(folder.path())).unwrap().unwrap();
    let first = server.certificate().unwrap();
    let (mut old, mut new) = match shake_with(&server, &client, "localhost").await {
        (Ok(server), Ok(client)) => (server, client),
        failed => panic!("{failed:?}"),
    };

    ca::renew(folder.path(), &hosts(&["more"]), 2 * DAY).unwrap();
    let (accepted, connected) = shake_with(&server, &client, "more").await;
    assert!(accepted.is_ok() && connected.is_ok());
    let second = server.certificate().unwrap();
    assert!(second.ends_s > first.ends_s && second.hosts == ["localhost", "more"]);

    // The key does not belong to the certificate: the last good pair stays.
    let other = self::folder(&["other"]);
    replace(other.path().join(ca::SERVER_KEY), folder.path().join(ca::SERVER_KEY)).unwrap();
    let (accepted, connected) = shake_with(&server, &client, "more").await;
    assert!(accepted.is_ok() && connected.is_ok());
    // The client's CA changes, too.
    replace(other.path().join(ca::CA_CERT), folder.path().join(ca::CA_CERT)).unwrap();
    let (_, failed) = shake_with(&server, &client, "more").await;
    assert_eq!(error(failed), TlsError::UnknownCa);
    replace(other.path().join(ca::SERVER_CERT), folder.path().join(ca::SERVER_CERT)).unwrap();
    let (accepted, connected) = shake_with(&server, &client, "other").await;
    assert!(accepted.is_ok() && connected.is_ok());

    // Connections that were open go on.
    new.write_all(b"still").await.unwrap();
    new.flush().await.unwrap();
    let mut found = [0; 5];
    old.read_exact(&mut found).await.unwrap();
    assert_eq!(&found, b"still");
}

#[test]
fn folder_of_a_ca_is_never_overwritten_and_keys_are_private() {
    let folder = folder(&["localhost"]);
    for name in [ca::CA_KEY, ca::SERVER_KEY, ca::CLIENT_KEY] {
        let mode = fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let again = ca::create(folder.path(), &[], DAY);
    assert!(matches!(again, Err(CaError::Exists(path)) if path.ends_with(ca::CA_CERT)));
    for name in [ca::CA_CERT, ca::CA_KEY, ca::SERVER_CERT, ca::SERVER_KEY, ca::CLIENT_CERT] {
        fs::remove_file(folder.path().join(name)).unwrap();
        assert!(matches!(ca::create(folder.path(), &[], DAY), Err(CaError::Exists(_))), "{name}");
    }

    let folder = self::folder(&["a", "10.0.0.1"]);
    let listed = ca::list(folder.path()).unwrap();
    assert_eq!(listed.iter().map(|it| it.info.hosts.len()).collect::<Vec<_>>(), [0, 2, 0]);
    let before = fs::read(folder.path().join(ca::CLIENT_KEY)).unwrap();
    ca::renew(folder.path(), &hosts(&["a", "b"]), 40 * 365 * DAY).unwrap();
    assert_ne!(fs::read(folder.path().join(ca::CLIENT_KEY)).unwrap(), before);
    let renewed = ca::list(folder.path()).unwrap();
    assert_eq!(renewed[1].info.hosts, ["a", "10.0.0.1", "b"]);
    assert_eq!(renewed[1].info.ends_s, renewed[0].info.ends_s, "not longer than the CA");

    let other = self::folder(&[]);
    replace(other.path().join(ca::CA_KEY), folder.path().join(ca::CA_KEY)).unwrap();
    assert!(matches!(ca::renew(folder.path(), &[], DAY), Err(CaError::Foreign { .. })));
}

#[test]
fn hosts_are_limited_and_checked() {
    let authority = Authority::create().unwrap();
    let issue = |hosts: &[String]| authority.issue(&Purpose::Server(hosts), DAY).map(drop);
    let many: Vec<_> = (0..=ca::HOSTS_MAX).map(|it| format!("host-{it}")).collect();
    assert!(issue(&many[1..]).is_ok());
    assert!(matches!(issue(&many), Err(CaError::Hosts(count)) if count == ca::HOSTS_MAX + 1));
    for host in ["", "a b", "a:1", "http://a", "*", "a.*"] {
        assert!(matches!(issue(&hosts(&[host])), Err(CaError::Host(_))), "{host:?}");
    }
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let folder = folder(&["localhost"]);
    let open = |files: &TlsFiles| {
        let server = TlsServer::open(files, ClientCertificates::Required).map(drop);
        let text = server.and(TlsClient::open(files).map(drop)).err().map(|it| it.to_string());
        let text = text.unwrap_or_default();
        assert!(text.is_empty() || text.contains("\n\nhint: "), "{text}");
        text
    };
    let good = TlsFiles { ca: Some(folder.path().join(ca::CA_CERT)), ..server_files(folder.path()) };
    assert_eq!(open(&good), "");
    assert!(open(&TlsFiles { key: None, ..good.clone() }).starts_with("tls_cert is set and tls_key is not"));
    assert!(open(&TlsFiles { cert: None, ..good.clone() }).starts_with("tls_key is set and tls_cert is not"));
    let lone = TlsFiles { client_ca: good.ca.clone(), ..TlsFiles::default() };
    assert!(open(&lone).starts_with("tls_client_ca is set and tls_cert is not"));
    let missing = TlsFiles { key: Some("/nonexistent".into()), ..good.clone() };
    assert!(open(&missing).starts_with("cannot read the TLS file `/nonexistent`"));
    let swapped = TlsFiles { cert: good.key.clone(), ..good.clone() };
    assert!(open(&swapped).contains("contains no certificate"), "{}", open(&swapped));
    let swapped = TlsFiles { key: good.cert.clone(), ..good.clone() };
    assert!(open(&swapped).contains("contains no private key"), "{}", open(&swapped));
    let foreign = TlsFiles { key: Some(folder.path().join(ca::CLIENT_KEY)), ..good };
    assert!(open(&foreign).contains("is not the key of"), "{}", open(&foreign));
}
