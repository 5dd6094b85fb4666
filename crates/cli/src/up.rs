//! `tiffin up`: a master and a node in one process.

use serde_json::json;
use tiffin_client::ConnectOptions;
use tiffin_server::config::{LISTEN_DEFAULT, UpArgs, UpConfig};

use crate::Context;
use crate::console::{Console, Failure, STATUS_OK};
use crate::serve;
use crate::show;
use crate::signals::Signals;

/// Starts a store in this process: a master and a storage node, on loopback by default.
///
/// When it is up, it prints its address and how to use it; with `--json`, in one line. Ctrl-C stops it, and
/// its objects are lost then, unless `--pool` names a folder for its memory: it prints how many, and names
/// those that were pinned or not consumed yet.
#[derive(Debug, clap::Args)]
pub(crate) struct Up {
    #[command(flatten)]
    args: UpArgs,
}

/// Runs until a signal arrives.
pub(crate) async fn run(
    up: Up,
    context: &Context,
    console: &mut Console,
    mut signals: Signals,
) -> Result<i32, Failure> {
    let config = up.args.resolve(&context.common, &context.file);
    let config: UpConfig = config.map_err(|error| Failure::new("config", error))?;
    tiffin_server::host::raise_file_limit();
    let (token, tls) = (config.node.token.clone(), config.node.tls.clone());
    let starting = async { tiffin_server::Up::start(config).await.map_err(|error| serve::explain(&error)) };
    let Some(server) = serve::start(starting, &mut signals, console).await? else { return Ok(STATUS_OK) };
    let address = server.master().address().to_string();
    let options = ConnectOptions { token: token.clone(), tls, ..ConnectOptions::new(&*address) };
    serve::serve_drains(server.node(), options.clone());
    // An adopted pool keeps its size, whatever was asked for.
    let memory = server.node().memory().geometry().data_bytes;
    let pool = server.node().memory().pool().map(|it| it.folder().display().to_string());
    let http = server.master().http_address().map(ToString::to_string);
    if console.json {
        let info = server.node().info();
        let node =
            json!({ "name": info.name, "tcp": info.tcp, "data": info.data, "memory": memory, "pool": pool });
        console.value(&json!({ "master": address, "http": http, "node": node }))?;
    } else {
        let search = std::env::var_os("PATH");
        let program = serve::program_name(&context.program, search.as_deref());
        let end = match (&pool, server.node().keeps_memory()) {
            (Some(pool), true) => {
                format!("Ctrl-C stops it. Its objects stay in `{pool}` for the next start.")
            }
            _ => "Ctrl-C stops it, and its objects are lost.".to_owned(),
        };
        let scheme = if options.tls.has_server() { "https" } else { "http" };
        let http = http.map(|it| format!("{scheme}://{it}"));
        console.text(welcome(&program, &address, http.as_deref(), memory, !token.is_empty()) + &end)?;
    }
    let losses = async |server: &tiffin_server::Up| serve::losses(server.node(), &options).await;
    let stop = |server: tiffin_server::Up, deadline| server.shutdown(deadline);
    Ok(serve::until_stopped(server, losses, stop, &mut signals, console).await)
}

fn welcome(program: &str, address: &str, http: Option<&str>, memory: u64, has_token: bool) -> String {
    let pages = http.map_or_else(String::new, |http| format!("  pages   {http}/\n"));
    let master = if address == LISTEN_DEFAULT { String::new() } else { format!(" --master {address}") };
    let (shell_token, python_token) = if has_token {
        ("  export TIFFIN_TOKEN=…  # the token of this store\n", ", token=\"…\"")
    } else {
        ("", "")
    };
    format!(
        "\
tiffin is up, with {memory} of memory

  master  {address}
{pages}
In another shell:

{shell_token}  {program} put greeting --value hello{master}
  {program} get greeting{master}
  {program} stat{master}

In Python:

  import tiffin
  store = tiffin.connect(\"{address}\"{python_token})
  store.put(\"greeting\", b\"hello\")
  print(store.get(\"greeting\"))

",
        memory = show::size(memory),
    )
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn shown_commands_can_be_copied() {
        let shown = welcome("tiffin", LISTEN_DEFAULT, Some("http://127.0.0.1:7401"), 1 << 30, false);
        expect![[r#"
            tiffin is up, with 1.0 GiB of memory

              master  127.0.0.1:7400
              pages   http://127.0.0.1:7401/

            In another shell:

              tiffin put greeting --value hello
              tiffin get greeting
              tiffin stat

            In Python:

              import tiffin
              store = tiffin.connect("127.0.0.1:7400")
              store.put("greeting", b"hello")
              print(store.get("greeting"))

        "#]]
        .assert_eq(&shown);
    }

    #[test]
    fn non_default_values_are_shown_in_the_commands() {
        let shown = welcome("target/tiffin", "127.0.0.1:5", None, 1 << 30, true);
        for part in [
            "  target/tiffin get greeting --master 127.0.0.1:5\n",
            "export TIFFIN_TOKEN=…",
            "tiffin.connect(\"127.0.0.1:5\", token=\"…\")",
        ] {
            assert!(shown.contains(part), "{shown}");
        }
        assert!(!shown.contains("pages"), "{shown}");
    }
}
