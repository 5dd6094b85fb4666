//! Whether the default ports are free, or used by a store that runs on this machine.

use std::io;
use std::net::TcpListener;
use std::time::Duration;

use tiffin_client::{Client, ConnectOptions, Deadline, Error};
use tiffin_server::config::{HTTP_DEFAULT, LISTEN_DEFAULT};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Check;

/// Time limit for identifying a program on one of our ports.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum number of bytes read from a page.
const PAGE_BYTES_MAX: u64 = 16 << 10;
/// Part of a master's page `/health`, in every state.
const HEALTH_WORD: &str = "\"ha_state\"";

/// The program that listens on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listener {
    Store,
    /// A master with another token.
    StoreWithOtherToken,
    /// Another program.
    OtherProgram,
}

/// Checks the default ports of a master.
pub(super) async fn check(token: Option<&str>) -> [Check; 2] {
    [
        port("port of the master", LISTEN_DEFAULT, "--listen", async |it: &str| master_at(it, token).await)
            .await,
        port("port of the pages", HTTP_DEFAULT, "--http", pages_at).await,
    ]
}

async fn port(
    name: &'static str,
    address: &str,
    flag: &str,
    identify: impl AsyncFnOnce(&str) -> Listener,
) -> Check {
    match TcpListener::bind(address).map(drop) {
        Ok(()) => Check::ok(name, format!("{address} is free")),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            taken(name, address, flag, identify(address).await)
        }
        Err(error) => Check::limited(
            name,
            format!("cannot listen on {address}: {error}"),
            format!("choose an address of this machine with `{flag}`"),
        ),
    }
}

/// A port that a running store uses is fine; a second store needs another one.
fn taken(name: &'static str, address: &str, flag: &str, identify: Listener) -> Check {
    match identify {
        Listener::Store => Check::ok(name, format!("{address} is used by a running store")),
        Listener::StoreWithOtherToken => {
            Check::ok(name, format!("{address} is used by a running store, which has another token, or TLS"))
        }
        Listener::OtherProgram => Check::limited(
            name,
            format!("{address} is used by another program"),
            format!("choose another address with `{flag}`; port 0 is any free port"),
        ),
    }
}

/// Connects as a client.
async fn master_at(address: &str, token: Option<&str>) -> Listener {
    let options = ConnectOptions {
        token: token.unwrap_or_default().to_owned(),
        connect_time: ANSWER_TIME_MAX,
        ..ConnectOptions::new(address)
    };
    match Client::connect(options).await {
        Ok(client) => {
            // The master notices the end of this process.
            let _ignored = client.close(Deadline::after(ANSWER_TIME_MAX)).await;
            Listener::Store
        }
        Err(Error::Unauthenticated { .. } | Error::Refused { .. } | Error::Tls { .. }) => {
            Listener::StoreWithOtherToken
        }
        Err(_) => Listener::OtherProgram,
    }
}

/// Requests the page that needs no token.
async fn pages_at(address: &str) -> Listener {
    let page = timeout(ANSWER_TIME_MAX, health_page(address)).await;
    match page {
        Ok(Ok(page)) if page.starts_with("HTTP/1.1 ") && page.contains(HEALTH_WORD) => Listener::Store,
        _ => Listener::OtherProgram,
    }
}

async fn health_page(address: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut page = Vec::new();
    stream.take(PAGE_BYTES_MAX).read_to_end(&mut page).await?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

#[cfg(test)]
mod tests {
    use tiffin_server::{MasterConfig, MasterServer};

    use super::super::Verdict;
    use super::*;

    #[tokio::test]
    async fn port_in_use_is_reported_with_its_address() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap().to_string();
        let check = port("port", &address, "--listen", async |_: &str| Listener::OtherProgram).await;
        assert_eq!(check.verdict, Verdict::Limited);
        assert!(check.found.contains(&address) && check.hint.unwrap().contains("`--listen`"));
        drop(taken);
        let check = port("port", "192.0.2.1:1", "--http", async |_: &str| Listener::OtherProgram).await;
        assert_eq!(check.verdict, Verdict::Limited);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn ports_of_a_running_store_are_recognized() {
        let config = MasterConfig {
            http: Some("127.0.0.1:0".parse().unwrap()),
            token: "secret".to_owned(),
            ..MasterConfig::default()
        };
        let server = MasterServer::start(config).await.unwrap();
        let (master, pages) = (server.address().to_string(), server.http_address().unwrap().to_string());
        assert_eq!(master_at(&master, Some("secret")).await, Listener::Store);
        assert_eq!(master_at(&master, None).await, Listener::StoreWithOtherToken);
        assert_eq!(master_at(&pages, Some("secret")).await, Listener::OtherProgram);
        assert_eq!(pages_at(&pages).await, Listener::Store);
        assert_eq!(pages_at(&master).await, Listener::OtherProgram);
        let check =
            port("port", &master, "--listen", async |it: &str| master_at(it, Some("secret")).await).await;
        assert_eq!((check.verdict, check.hint), (Verdict::Ok, None));
        server.shutdown().await;
    }
}
