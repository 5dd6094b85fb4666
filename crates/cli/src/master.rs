//! `tiffin master`: the process that decides about names.

use serde_json::json;
use tiffin_client::Losses;
use tiffin_server::MasterServer;
use tiffin_server::config::MasterArgs;

use crate::Context;
use crate::console::{Console, Failure, STATUS_OK};
use crate::serve;
use crate::signals::Signals;

/// Starts a master: the process that decides about names. Nodes and clients connect to it.
///
/// When it is up, it prints its address; with `--json`, in one line. Ctrl-C stops it.
#[derive(Debug, clap::Args)]
pub(crate) struct Master {
    #[command(flatten)]
    args: MasterArgs,
}

/// Runs until a signal arrives.
pub(crate) async fn run(
    master: Master,
    context: &Context,
    console: &mut Console,
    mut signals: Signals,
) -> Result<i32, Failure> {
    let config = master.args.resolve(&context.common, &context.file);
    let config = config.map_err(|error| Failure::new("config", error))?;
    tiffin_server::host::raise_file_limit();
    let scheme = if config.tls.has_server() { "https" } else { "http" };
    let starting = async { MasterServer::start(config).await.map_err(|error| serve::explain(&error)) };
    let Some(server) = serve::start(starting, &mut signals, console).await? else { return Ok(STATUS_OK) };
    let address = server.address().to_string();
    let http = server.http_address().map(ToString::to_string);
    if console.json {
        console.value(&json!({ "master": address, "http": http, "epoch": server.epoch() }))?;
    } else {
        let pages = http.map_or_else(String::new, |http| format!(", pages at {scheme}://{http}/"));
        console.text(format!("master is up at {address}{pages}"))?;
    }
    Ok(serve::until_stopped(
        server,
        async |_| Losses::default(),
        |server, _| server.shutdown(),
        &mut signals,
        console,
    )
    .await)
}
