//! `tiffin kv`: commands for the KV hierarchy. One file per command.

mod policy;
mod replay;

use std::ffi::OsString;

use clap::Parser;

use crate::console::{Console, Failure};

/// Simulates the KV hierarchy: traces of requests, in virtual time.
#[derive(Debug, clap::Args)]
pub(crate) struct Kv {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Replay(replay::Replay),
}

/// Runs the command.
pub(crate) async fn run(kv: Kv, console: &mut Console) -> Result<i32, Failure> {
    match kv.command {
        Command::Replay(replay) => replay::run(replay, console).await,
    }
}

/// `tiffin kv replay` without the rest of the command line, for [`kv_replay`].
#[derive(Debug, Parser)]
#[command(name = "tiffin kv replay", disable_help_flag = true)]
struct ReplayCommand {
    #[command(flatten)]
    replay: replay::Replay,
}

/// The output of `tiffin kv replay --json` for these arguments, without printing it.
///
/// # Errors
/// The error message with its hint.
pub fn kv_replay(arguments: Vec<OsString>) -> Result<String, String> {
    let name = OsString::from("tiffin kv replay");
    let parsed = ReplayCommand::try_parse_from(std::iter::once(name).chain(arguments));
    let replay = parsed.map_err(|error| error.to_string())?.replay;
    replay::json(&replay).map_err(|failure| match failure.hint {
        Some(hint) => format!("{}\n\nhint: {hint}", failure.message),
        None => failure.message,
    })
}
