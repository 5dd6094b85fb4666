//! Common parts of the three servers: start errors, and stopping.

use std::ffi::OsStr;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use tiffin_client::{ConnectOptions, Deadline, Losses};
use tiffin_server::supervise::{FAILURE_HINT, end_on_panic};
use tiffin_server::{NodeServer, StartError};
use tokio::time::Instant;

use crate::console::{Console, Failure, STATUS_FAILED, STATUS_INTERRUPTED, STATUS_OK};
use crate::signals::Signals;

/// Time limit for an orderly stop.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);

/// Starts a server, unless a signal arrives first. From then on a panic in any thread ends the process: a
/// server without one of its parts would only seem to work.
pub(crate) async fn start<T>(
    starting: impl Future<Output = Result<T, Failure>>,
    signals: &mut Signals,
    console: &Console,
) -> Result<Option<T>, Failure> {
    let json = console.json;
    end_on_panic(STATUS_FAILED, move |what| {
        Console::standard(json).fail(&Failure::new("failed", what).hint(FAILURE_HINT));
    });
    tokio::select! {
        started = starting => started.map(Some),
        () = signals.next() => Ok(None),
    }
}

/// Time limit for finding the losses.
const LOSSES_TIME_MAX: Duration = Duration::from_secs(2);

/// Objects that are lost when this node leaves.
pub(crate) async fn losses(node: &NodeServer, options: &ConnectOptions) -> Losses {
    if node.keeps_memory() {
        return Losses::default();
    }
    let deadline = Deadline::after(LOSSES_TIME_MAX);
    let records = node.read_inventory(deadline.instant()).await;
    Losses::of(records, node.segment(), options, deadline).await
}

/// Moves the objects of this node away whenever an operator drains it.
pub(crate) fn serve_drains(node: &NodeServer, options: ConnectOptions) {
    tokio::spawn(tiffin_embedded::drain::serve(node.drain_duty(), options));
}

/// Waits for a signal, reports losses, then stops the server. A second signal ends it at once.
pub(crate) async fn until_stopped<T, F: Future<Output = ()>>(
    server: T,
    losses: impl AsyncFnOnce(&T) -> Losses,
    stop: impl FnOnce(T, Instant) -> F,
    signals: &mut Signals,
    console: &mut Console,
) -> i32 {
    signals.next().await;
    console.note("stopping");
    tokio::select! {
        losses = losses(&server) => if !losses.is_empty() {
            console.note(format!("{losses}; they are lost now"));
        },
        () = signals.next() => return STATUS_INTERRUPTED,
    }
    let deadline = Instant::now() + STOP_TIME_MAX;
    tokio::select! {
        _ = tokio::time::timeout_at(deadline, stop(server, deadline)) => STATUS_OK,
        () = signals.next() => STATUS_INTERRUPTED,
    }
}

/// Converts a start error.
pub(crate) fn explain(error: &StartError) -> Failure {
    let (code, hint) = match error {
        StartError::Tls(_) => ("tls", "`tiffin certs create` makes certificates"),
        StartError::Access(_) => ("access", "`tiffin token create` makes an access file"),
        StartError::Config(_) => ("config", "`tiffin settings` lists every setting"),
        StartError::Listen(_) => ("listen", "choose another address; port 0 is any free port"),
        StartError::Memory(_) => ("memory", "run `tiffin doctor` to see the available memory"),
        StartError::Disk(_) | StartError::DiskInUse(_) => {
            ("disk", "check the disks in `--ssd`; without it the node has memory only")
        }
        StartError::State { .. } => (
            "state",
            "name another folder with `--state-dir`, or TIFFIN_MASTER_STATE_DIR for `mooncake_master`",
        ),
        StartError::Etcd(_) => ("etcd", "give the client addresses of etcd with `--etcd`"),
        StartError::Tenants(_) => ("tenants", "correct the file, or start without it"),
        StartError::System { .. } => ("system", "run `tiffin doctor` to see what works on this machine"),
    };
    Failure::new(code, error).hint(hint)
}

/// The name by which the user calls this program: without its folder, if the shell finds it so.
pub(crate) fn program_name(called: &OsStr, search: Option<&OsStr>) -> String {
    let path = Path::new(called);
    let (folder, name) = (path.parent().filter(|it| !it.as_os_str().is_empty()), path.file_name());
    let found =
        search.is_some_and(|search| std::env::split_paths(search).any(|it| Some(it.as_path()) == folder));
    match name {
        Some(name) if found => name.to_string_lossy().into_owned(),
        _ => called.to_string_lossy().into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_name_is_the_one_of_the_user() {
        for (called, expected) in [
            ("tiffin", "tiffin"),
            ("target/release/tiffin", "target/release/tiffin"),
            ("/usr/bin/tiffin", "tiffin"),
            ("/opt/tiffin", "/opt/tiffin"),
        ] {
            assert_eq!(program_name(called.as_ref(), Some("/bin:/usr/bin".as_ref())), expected);
            assert_eq!(program_name(called.as_ref(), None), called);
        }
    }
}
