//! Where the log goes: to standard error, as the settings of every command say.

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

/// Starts the log of this process. In a process that has one already, that one stays.
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
        Failure::new("config", format!("log_level is `{level}`, which is no filter: {error}")).hint(advice)
    })?;
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal() && !unwanted);
    let started = match config.format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().try_init(),
    };
    // Only a second log in one process is refused, and there the first one serves as well.
    drop(started);
    Ok(())
}
