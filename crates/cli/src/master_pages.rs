//! Reads the pages of a master, for commands that watch it.
//!
//! **Invariant:** a page has at most [`PAGE_BYTES_MAX`] bytes, and arrives within the time limit of the
//! command.

use std::time::Duration;

use serde_json::Value;
use tiffin_server::Address;
use tiffin_server::config::{ClientArgs, HTTP_DEFAULT};
use tiffin_tls::TlsClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::Context;
use crate::console::Failure;

/// The maximum length of a page, in bytes.
const PAGE_BYTES_MAX: u64 = 64 << 20;

/// Which pages to read.
#[derive(Debug, clap::Args)]
pub(crate) struct PagesArgs {
    /// The address of the master's pages. Default: port 7401 on the host of `--master`.
    #[arg(long, value_name = "ADDRESS")]
    http: Option<Address>,

    #[command(flatten)]
    client: ClientArgs,
}

/// The pages of one master.
#[derive(Debug)]
pub(crate) struct MasterPages {
    address: String,
    token: String,
    tls: Option<TlsClient>,
    time_max: Duration,
}

impl MasterPages {
    /// The pages that the settings name.
    pub(crate) fn new(args: PagesArgs, context: &Context) -> Result<Self, Failure> {
        let config = args.client.resolve(&context.common, &context.file);
        let config = config.map_err(|error| Failure::new("config", error))?;
        let address = match args.http {
            Some(address) => address.to_string(),
            None => beside(&config.master.to_string())?,
        };
        let tls = TlsClient::open(&config.tls).map_err(|error| Failure::new("config", error))?;
        Ok(Self { address, token: config.token, tls, time_max: config.timeout })
    }

    /// Reads a page as JSON.
    pub(crate) async fn get(&self, path: &str) -> Result<Value, Failure> {
        let advice = format!(
            "nothing answers at {}: name the master's pages with `--http`, if the master has any",
            self.address
        );
        let unreachable = |what: String| Failure::new("unreachable", what).hint(advice.clone());
        let read = timeout(self.time_max, self.read(path)).await;
        let bytes = read
            .map_err(|_| unreachable(format!("`{}` did not answer in time", self.address)))?
            .map_err(|error| unreachable(format!("cannot read the pages of `{}`: {error}", self.address)))?;
        let (status, body) = parsed(&bytes)
            .ok_or_else(|| unreachable(format!("`{}` does not answer with HTTP", self.address)))?;
        match status {
            200 => serde_json::from_slice(body)
                .map_err(|_| unreachable(format!("`{}` is not a master of this version", self.address))),
            401 => {
                let what = format!("`{}` rejects the token", self.address);
                Err(Failure::new("unauthenticated", what)
                    .hint("give the token of the store, as with `--token`"))
            }
            404 => Err(unreachable(format!("`{}` is not a master of this version", self.address))),
            _ => {
                let text = String::from_utf8_lossy(body);
                let what =
                    format!("`{}` answers {status}: {}", self.address, crate::show::key(text.as_bytes()));
                Err(Failure::new("unavailable", what).hint("try again in a moment"))
            }
        }
    }

    async fn read(&self, path: &str) -> std::io::Result<Vec<u8>> {
        let token = match self.token.is_empty() {
            true => String::new(),
            false => format!("Authorization: Bearer {}\r\n", self.token),
        };
        let head =
            format!("GET {path} HTTP/1.1\r\nHost: {}\r\n{token}Connection: close\r\n\r\n", self.address);
        let mut stream = tiffin_tls::connect(&self.address, self.tls.as_ref()).await?;
        stream.write_all(head.as_bytes()).await?;
        stream.flush().await?;
        let mut bytes = Vec::new();
        stream.take(PAGE_BYTES_MAX).read_to_end(&mut bytes).await?;
        Ok(bytes)
    }
}

/// The address of the pages beside a master's own, with the default port.
fn beside(master: &str) -> Result<String, Failure> {
    let port = HTTP_DEFAULT.rsplit(':').next().unwrap_or_default();
    let first = master.split(',').next().unwrap_or_default();
    match first.parse() {
        Ok(Address::Tcp { host, .. }) if !first.starts_with("etcd://") => {
            Ok(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
        }
        _ => Err(Failure::new("config", format!("the address of the pages of `{master}` is not known"))
            .hint("name it with `--http`")),
    }
}

/// The status and body of a response that ended with its connection.
fn parsed(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let end = bytes.windows(4).position(|it| it == b"\r\n\r\n")?;
    let head = str::from_utf8(bytes.get(..end)?).ok()?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some((status, bytes.get(end + 4..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_beside_the_master() {
        for (master, expected) in [
            ("127.0.0.1:7400", Some("127.0.0.1:7401")),
            ("a:1,b:2", Some("a:7401")),
            ("[::1]:7400", Some("[::1]:7401")),
            ("unix:@x", None),
            ("etcd://a:1/prod", None),
        ] {
            assert_eq!(beside(master).ok().as_deref(), expected, "{master}");
        }
    }

    #[test]
    fn response_is_parsed_or_rejected() {
        let found = parsed(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n{}");
        assert_eq!(found, Some((200, &b"{}"[..])));
        for bytes in [&b""[..], b"SSH-2.0\r\n\r\n", b"HTTP/1.1 20", b"HTTP/1.1 \xff\xff\xff\r\n\r\n"] {
            assert_eq!(parsed(bytes), None);
        }
    }
}
