//! `tiffin config`: checks a settings file before a server is started with it.

use std::path::PathBuf;

use serde_json::json;
use tiffin_server::config::{ClientArgs, CommonArgs, MasterArgs, NodeArgs};

use crate::Context;
use crate::console::{Console, Failure, STATUS_OK};
use crate::show;

/// Works with settings files.
#[derive(Debug, clap::Args)]
pub(crate) struct Config {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Check(Check),
}

/// Checks a settings file: its syntax, its keys, and the values of all its tables. Shows what a master, a
/// node and a client would use.
///
/// Flags and environment variables of every command count, such as `TIFFIN_TOKEN`; those of a master, a node
/// or a client do not.
#[derive(Debug, clap::Args)]
struct Check {
    /// The settings file, in TOML.
    file: PathBuf,
}

/// Runs the command.
pub(crate) fn run(config: &Config, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let Command::Check(Check { file }) = &config.command;
    let invalid = |error| Failure::new("config", error);
    let given = CommonArgs { config: Some(file.clone()), ..context.given.clone() };
    let (common, settings) = given.load().map_err(invalid)?;
    // The default folder depends on the user that runs the master, who may have none here.
    let state = MasterArgs { xdg_state_home: Some(PathBuf::from("/")), ..MasterArgs::default() };
    let master = state.resolve(&common, &settings).map_err(invalid)?;
    let node = NodeArgs::default().resolve(&common, &settings).map_err(invalid)?;
    let client = ClientArgs::default().resolve(&common, &settings).map_err(invalid)?;
    let path = file.display().to_string();
    let listen = master.listen.first().map(ToString::to_string).unwrap_or_default();
    let http = master.http.as_ref().map(ToString::to_string);
    let state = settings.master.state_dir.as_ref().map(|it| it.display().to_string());
    let unnamed = match master.state_dir {
        Some(_) => "in the folder of its user",
        None if master.ha.is_some() => "in etcd",
        None => "not kept, because the port is 0",
    };
    let at = node.listen.as_ref().map(ToString::to_string);
    let (home, seconds) = (client.master.to_string(), client.timeout.as_secs_f64());
    let has_token = !master.token.is_empty() || master.access_file.is_some();
    if console.json {
        console.value(&json!({
            "file": path,
            "token": has_token,
            "master": { "listen": listen, "http": http, "state_dir": state },
            "node": {
                "master": node.master.to_string(),
                "listen": at,
                "memory": node.memory,
                "disks": node.ssd.len(),
            },
            "client": { "master": home, "namespace": client.namespace, "timeout": seconds },
        }))?;
        return Ok(STATUS_OK);
    }
    let or_none = |it: Option<String>| it.unwrap_or_else(|| "none".to_owned());
    console.text(format!(
        "`{path}` is valid\n  token   {}\n  master  listens on {listen}, pages {}, state {}\n  node    {} of \
         memory, {} disks, listens on {}, master {}\n  client  master {home}, namespace `{}`, time limit \
         {seconds} s",
        if has_token { "set" } else { "none: servers listen on loopback only" },
        or_none(http),
        state.unwrap_or_else(|| unnamed.to_owned()),
        show::size(node.memory),
        node.ssd.len(),
        or_none(at),
        node.master,
        show::key(client.namespace.as_bytes()),
    ))?;
    Ok(STATUS_OK)
}
