//! `tiffin settings`: every setting, generated from its declaration.

use clap::Args;
use serde_json::{Value, json};
use tiffin_server::config::{ClientArgs, CommonArgs, MasterArgs, NodeArgs, page};

use crate::console::{Console, Failure, STATUS_OK};

/// Lists every setting with its flag, its environment variable, its key in the settings file and its default.
#[derive(Debug, clap::Args)]
pub(crate) struct Settings {}

/// Writes the reference page; with `--json`, one line for each setting.
pub(crate) fn run(_: &Settings, console: &mut Console) -> Result<i32, Failure> {
    if !console.json {
        console.text(page::render().trim_end())?;
        return Ok(STATUS_OK);
    }
    let tables = [
        list::<CommonArgs>(None),
        list::<MasterArgs>(Some("master")),
        list::<NodeArgs>(Some("node")),
        list::<ClientArgs>(Some("client")),
    ];
    for setting in tables.iter().flatten() {
        console.value(setting)?;
    }
    Ok(STATUS_OK)
}

/// The settings of one table of the settings file; none is the top level.
fn list<A: Args>(table: Option<&str>) -> Vec<Value> {
    let command = A::augment_args(clap::Command::new("settings"));
    let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
    shown
        .map(|argument| {
            let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string);
            json!({
                "table": table,
                "key": argument.get_id().as_str(),
                "flag": argument.get_long().map(|flag| format!("--{flag}")),
                "variable": argument.get_env().map(|name| name.to_string_lossy()),
                "help": help,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use expect_test::expect_file;

    use super::*;

    /// `make docs` regenerates the page.
    #[test]
    fn settings_page_matches_the_declarations() {
        expect_file!["../../../docs/settings.md"].assert_eq(&page::render());
    }

    #[test]
    fn every_client_command_is_named_on_the_page() {
        let page = page::render();
        let (_, clients) = page.split_once("\n## Clients\n").unwrap();
        let named = clients.lines().next().unwrap();
        let cli = crate::Cli::command();
        let is_client = |it: &&clap::Command| {
            !it.is_hide_set()
                && ["master", "namespace"].iter().all(|id| it.get_arguments().any(|arg| arg.get_id() == id))
        };
        let names: Vec<_> = cli.get_subcommands().filter(is_client).map(clap::Command::get_name).collect();
        assert!(names.contains(&"put") && !names.contains(&"up"), "{names:?}");
        for name in names {
            assert!(
                named.contains(&format!("`{name}`")) || named.contains(&format!("`tiffin {name}`")),
                "{name}"
            );
        }
    }

    #[test]
    fn every_setting_can_be_given_in_three_ways() {
        let settings = list::<NodeArgs>(Some("node"));
        let memory = settings.iter().find(|it| it["key"] == "memory").unwrap();
        assert_eq!(
            (&memory["flag"], &memory["variable"]),
            (&json!("--memory"), &json!("TIFFIN_NODE_MEMORY"))
        );
        for setting in settings {
            assert!(setting["flag"].is_string() && setting["variable"].is_string(), "{setting}");
        }
    }
}
