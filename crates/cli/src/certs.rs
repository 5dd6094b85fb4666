//! `tiffin certs`: a private CA, and certificates for servers and clients.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use serde_json::json;
use tiffin_server::config;
use tiffin_tls::ca::{self, CaError, LIFETIME_DEFAULT};

use crate::console::{Console, Failure, STATUS_OK};

/// Hosts that every certificate of servers names, so that clients on the same host need no other.
const LOOPBACK: [&str; 3] = ["localhost", "127.0.0.1", "::1"];

/// Makes and renews the certificates of a cluster, with a CA of its own.
///
/// `create` writes `ca.pem`, `server.pem` and `client.pem` with their keys. Every server gets `server.pem`
/// and `server.key`, every client `ca.pem`; keep `ca.key` elsewhere. Processes read the files again when they
/// change, so renewal needs no restart.
#[derive(Debug, Args)]
pub(crate) struct Certs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Makes a CA, a certificate for all servers, and one for clients. Existing files are not overwritten.
    Create(Issue),
    /// Makes new certificates of servers and clients with the CA of a folder. The hosts stay the same.
    Renew(Issue),
    /// Shows the certificates of a folder: their hosts, and when they end.
    List {
        /// The folder.
        folder: PathBuf,
    },
}

#[derive(Debug, Args)]
struct Issue {
    /// The folder.
    folder: PathBuf,

    /// A host at which clients and nodes reach a server, as they write it: a name, a wildcard such as
    /// `*.example.org`, or an IP address; may be given several times. Loopback is always included.
    #[arg(long = "host", value_name = "HOST")]
    hosts: Vec<String>,

    /// How long the certificates are valid. Default: a year. The CA is valid for ten years.
    #[arg(long, value_name = "TIME", value_parser = config::duration)]
    lifetime: Option<Duration>,
}

/// Carries out the action.
pub(crate) fn run(certs: Certs, console: &mut Console) -> Result<i32, Failure> {
    match certs.action {
        Action::Create(issue) => {
            let mut hosts: Vec<_> = LOOPBACK.map(str::to_owned).to_vec();
            hosts.extend(issue.hosts);
            let lifetime = issue.lifetime.unwrap_or(LIFETIME_DEFAULT);
            let written = ca::create(&issue.folder, &hosts, lifetime).map_err(failed)?;
            written_to(&written, console)?;
            console.note("keep `ca.key` apart: whoever has it can pretend to be any server of this cluster");
        }
        Action::Renew(issue) => {
            let lifetime = issue.lifetime.unwrap_or(LIFETIME_DEFAULT);
            let written = ca::renew(&issue.folder, &issue.hosts, lifetime).map_err(failed)?;
            written_to(&written, console)?;
        }
        Action::List { folder } => list(&folder, console)?,
    }
    Ok(STATUS_OK)
}

fn failed(error: CaError) -> Failure {
    Failure::new("certs", error)
}

fn written_to(paths: &[PathBuf], console: &mut Console) -> Result<(), Failure> {
    let paths: Vec<_> = paths.iter().map(|it| it.display().to_string()).collect();
    match console.json {
        true => console.value(&json!({ "written": paths })),
        false => console.text(paths.join("\n")),
    }
}

fn list(folder: &Path, console: &mut Console) -> Result<(), Failure> {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    for it in ca::list(folder).map_err(failed)? {
        let is_expired = it.info.ends_s <= now_s;
        let at = UNIX_EPOCH.checked_add(Duration::from_secs(it.info.ends_s)).unwrap_or(UNIX_EPOCH);
        let end = humantime::format_rfc3339_seconds(at).to_string();
        let path = it.path.display().to_string();
        if console.json {
            let hosts = &it.info.hosts;
            console.value(&json!({ "path": path, "hosts": hosts, "expires": end, "expired": is_expired }))?;
            continue;
        }
        let word = if is_expired { "expired at" } else { "expires at" };
        let hosts = if it.info.hosts.is_empty() { String::new() } else { it.info.hosts.join(", ") + "  " };
        console.text(format!("{path}  {hosts}{word} {end}"))?;
    }
    Ok(())
}
