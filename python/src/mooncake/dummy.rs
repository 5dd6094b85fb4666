//! The standalone mode: a store without a segment of its own, set up by the node daemon `mooncake_client`.
//!
//! The daemon only tells the store the address of its master. After that the store is an ordinary client.
//! On the same host it maps the daemon's memory, so that neither bytes nor calls go through the daemon.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use tiffin_tls::{TlsClient, TlsFiles};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::codes;
use super::log::tell;
use super::open::Open;
use super::settings::{Problem, Settings};
use crate::runtime::block_on;

/// The time limit for the daemon's answer.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// The maximum length of the answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 16 << 10;
/// The first line of its answer.
const GREETING: &str = "mooncake_client 1";

/// The daemon's description of its cluster.
struct Daemon {
    master: String,
    tenant: String,
}

/// Sets a store up through the daemon at `host:port`. If that fails, prints the reason and returns `None`.
pub(crate) fn set_up(py: Python<'_>, buffer_bytes: u64, address: &str) -> PyResult<Option<Arc<Open>>> {
    let made = match Settings::of_daemon(py, buffer_bytes) {
        Ok(settings) => block_on(py, async || open(settings, address).await)?,
        Err(Problem::Raise(error)) => return Err(error),
        Err(Problem::Refuse(what)) => Err(what),
    };
    match made {
        Ok(open) => Ok(Some(Arc::new(open))),
        Err(what) => {
            tell(&format!("setup_dummy failed ({}): {what}", codes::INTERNAL_ERROR));
            Ok(None)
        }
    }
}

async fn open(settings: Settings, address: &str) -> Result<Open, String> {
    let Daemon { master, tenant } =
        ask(address, &settings.environment.token, &settings.environment.tls).await?;
    let settings = Settings { master, tenant, ..settings };
    Ok(Open::new(&settings).await.map_err(|failure| failure.what)?.of_daemon(address))
}

/// Whether the daemon that set up the store no longer answers.
pub(crate) fn is_orphan(py: Python<'_>, open: &Open) -> PyResult<bool> {
    let Some(address) = &open.daemon else { return Ok(false) };
    let again = open.handle.again();
    Ok(block_on(py, async || ask(address, &again.token, &again.tls).await)?.is_err())
}

/// Asks the daemon at `host:port`. The error is a message for the user.
async fn ask(address: &str, token: &str, tls: &TlsFiles) -> Result<Daemon, String> {
    let answer = match timeout(ANSWER_TIME, fetch(address, token, tls)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Err(format!("no mooncake_client answers at `{address}`: {error}")),
        Err(_) => return Err(format!("the mooncake_client at `{address}` does not answer")),
    };
    parse(&answer).map_err(|what| format!("`{address}` is not a mooncake_client: {what}"))
}

async fn fetch(address: &str, token: &str, tls: &TlsFiles) -> io::Result<String> {
    let tls = TlsClient::open(tls).map_err(io::Error::other)?;
    let mut stream = tiffin_tls::connect(address, tls.as_ref()).await?;
    let shown = if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
    let request = format!("GET /standalone HTTP/1.1\r\nHost: {address}\r\n{shown}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn parse(answer: &str) -> Result<Daemon, &'static str> {
    let (head, body) = answer.split_once("\r\n\r\n").ok_or("it does not speak HTTP")?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    if status == "401" {
        return Err("it requires another TIFFIN_TOKEN");
    }
    if status != "200" || body.lines().next() != Some(GREETING) {
        return Err("its answer has another format");
    }
    let line = |name: &str| body.lines().find_map(|line| Some(line.strip_prefix(name)?.to_owned()));
    let (master, tenant) = (line("master ").ok_or("its answer has no master")?, line("tenant "));
    Ok(Daemon { master, tenant: tenant.ok_or("its answer has no tenant")? })
}
