//! What the three servers have in common: how they fail to start, and how they stop.

use std::ffi::OsStr;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use tiffin_client::{ConnectOptions, Deadline, Losses};
use tiffin_server::{NodeServer, StartError};
use tokio::time::Instant;

use crate::console::{Console, Failure, STATUS_INTERRUPTED, STATUS_OK};
use crate::signals::Signals;

/// How long a server may take to stop. What it says to its peers in this time is a courtesy.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);

/// Starts a server, unless a signal comes first.
pub(crate) async fn start<T>(
    starting: impl Future<Output = Result<T, Failure>>,
    signals: &mut Signals,
) -> Result<Option<T>, Failure> {
    tokio::select! {
        started = starting => started.map(Some),
        () = signals.next() => Ok(None),
    }
}

/// How long it may take to find out what is lost.
const LOSSES_TIME_MAX: Duration = Duration::from_secs(2);

/// What is lost when this node leaves.
pub(crate) async fn losses(node: &NodeServer, master: &str, token: &str) -> Losses {
    let options = ConnectOptions { token: token.to_owned(), ..ConnectOptions::new(master) };
    Losses::of(node.inventory(), node.segment(), &options, Deadline::after(LOSSES_TIME_MAX)).await
}

/// Waits for a signal, says what is lost, then stops the server. A second signal does not wait for that.
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
            console.note(format!("{losses}; they are gone now"));
        },
        () = signals.next() => return STATUS_INTERRUPTED,
    }
    let deadline = Instant::now() + STOP_TIME_MAX;
    tokio::select! {
        _ = tokio::time::timeout_at(deadline, stop(server, deadline)) => STATUS_OK,
        () = signals.next() => STATUS_INTERRUPTED,
    }
}

/// Explains why a server did not start.
pub(crate) fn explain(error: &StartError) -> Failure {
    let (code, hint) = match error {
        StartError::Config(_) => ("config", "`tiffin settings` lists every setting"),
        StartError::Listen(_) => ("listen", "choose another address; port 0 is any free one"),
        StartError::Memory(_) => ("memory", "`tiffin doctor` tells what this machine can give"),
        StartError::Disk(_) | StartError::DiskInUse(_) => {
            ("disk", "`--ssd` names the disks; without it the node has memory only")
        }
        StartError::State { .. } => (
            "state",
            "name another folder with `--state-dir`, or TIFFIN_MASTER_STATE_DIR for `mooncake_master`",
        ),
        StartError::System { .. } => ("system", "`tiffin doctor` tells what this machine can do"),
    };
    Failure::new(code, error).hint(hint)
}

/// How the user calls this program: without its folder, if the shell would find it so.
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
    fn a_program_is_called_as_the_user_would_call_it() {
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
