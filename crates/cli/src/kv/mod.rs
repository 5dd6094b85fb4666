//! `tiffin kv`: what the KV hierarchy would do. One file per command.

mod html;
mod policy;
mod replay;

use crate::console::{Console, Failure};

/// Tries the KV hierarchy out: traces of requests, in virtual time.
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
