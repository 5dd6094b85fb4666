//! The log, on standard error, configured by the settings of every command.

use std::io::IsTerminal;

use tiffin_server::config::{CommonArgs, LogFormat};
use tracing_subscriber::EnvFilter;

use crate::console::Failure;

/// How much a command logs, if the settings do not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Usual {
    /// A server that runs on its own: the default of the settings.
    Daemon,
    /// `tiffin up`, which a person watches: the warnings of its master and node.
    Up,
    /// Any other command. A store in its own process only loses its node at the end, which is no news.
    Quiet,
}

/// Starts the log of this process. If there is one already, it stays.
pub(crate) fn start(common: &CommonArgs, usual: Usual) -> Result<(), Failure> {
    let config = common.log();
    let level = match (&common.log_level, usual) {
        (None, Usual::Up) => "warn",
        (None, Usual::Quiet) => "error,tiffin_server::master=off",
        _ => config.level.as_str(),
    };
    let filter = EnvFilter::try_new(level).map_err(|error| {
        let advice =
            "write `error`, `warn`, `info`, `debug`, `trace`, or filters such as `info,tiffin_server=debug`";
        Failure::new("config", format!("invalid log_level `{level}`: {error}")).hint(advice)
    })?;
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // A line that cannot be written, because the disk is full, would be reported on standard error as
        // well, and `eprintln` panics if that fails.
        .log_internal_errors(false)
        .with_ansi(std::io::stderr().is_terminal() && !unwanted);
    let started = match config.format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().try_init(),
    };
    // A second log in one process is rejected, and the first one stays.
    drop(started);
    Ok(())
}
