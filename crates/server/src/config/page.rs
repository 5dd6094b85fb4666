//! The reference page of all settings, written from their declarations.

use std::fmt::Write as _;

use clap::{Arg, Args, Command};

use super::{ClientArgs, CommonArgs, MasterArgs, NodeArgs, UpArgs};

/// One table of the page.
struct Section {
    title: &'static str,
    about: &'static str,
    /// The table of the settings file; empty for the top of the file.
    table: &'static str,
    command: Command,
}

/// The text of `docs/settings.md`.
#[must_use]
pub fn render() -> String {
    let mut page = String::from(
        "# Settings\n\n\
         This page is generated from the declarations in `crates/server/src/config`; `make docs` writes \
         it.\n\n\
         A setting is a flag, an environment variable and a key of the settings file. A flag takes \
         precedence over the variable, the variable over the file, the file over the default. The file is \
         TOML, and `--config` names it; one file may serve every process of a site. Unknown keys are \
         rejected.\n\n\
         Sizes are written like `8GiB` or `500MB`, times like `500ms`, `10s` or `5m`, addresses like \
         `host:port` or `[ipv6]:port`.\n\n\
         ```toml\n\
         token = \"a-long-random-secret\"\n\n\
         [master]\n\
         listen = \"10.0.0.1:7400\"\n\
         lease_ttl = \"10s\"\n\n\
         [node]\n\
         master = \"10.0.0.1:7400\"\n\
         memory = \"64GiB\"\n\
         ```\n",
    );
    for section in sections() {
        // Writing to a `String` cannot fail.
        let _ = write_section(&mut page, &section);
    }
    page
}

fn sections() -> Vec<Section> {
    fn of<A: Args>() -> Command {
        A::augment_args(Command::new("settings"))
    }
    vec![
        Section { title: "Every command", about: "", table: "", command: of::<CommonArgs>() },
        Section {
            title: "`tiffin master`",
            about: "The one process that decides about names.",
            table: "master",
            command: of::<MasterArgs>(),
        },
        Section {
            title: "`tiffin node`",
            about: "A storage node. Start one on each host that provides memory.",
            table: "node",
            command: of::<NodeArgs>(),
        },
        Section {
            title: "`tiffin up`",
            about: "A master and a node in one process; in the file, it reads `[master]` and `[node]`. The \
                    node listens on the master's host.",
            table: "",
            command: of::<UpArgs>(),
        },
        Section {
            title: "Clients",
            about: "`tiffin put`, `get`, `ls`, `stat`, `rm`, `why`, `pin`, `unpin`, `pins`, `quota`, \
                    `top` and `events`. \
                    In Python, `tiffin.connect` uses the same variables except `TIFFIN_MASTER` for \
                    arguments that are not given; those of the drop-in for `mooncake.store` are in \
                    [mooncake-compat.md](mooncake-compat.md).",
            table: "client",
            command: of::<ClientArgs>(),
        },
    ]
}

fn write_section(page: &mut String, section: &Section) -> std::fmt::Result {
    write!(page, "\n## {}\n", section.title)?;
    if !section.about.is_empty() {
        writeln!(page, "{}", section.about)?;
    }
    if section.title == "`tiffin up`" {
        return write_names(page, section);
    }
    match section.table {
        "" => write!(page, "\n| flag | variable | key | default | meaning |\n|---|---|---|---|---|\n")?,
        table => {
            write!(
                page,
                "\n| flag | variable | key in `[{table}]` | default | meaning |\n|---|---|---|---|---|\n"
            )?;
        }
    }
    for argument in shown(&section.command) {
        let (meaning, default) = meaning_and_default(argument);
        let flag = argument.get_long().unwrap_or_default();
        let value = argument.get_value_names().unwrap_or_default().join(" ");
        let variable = argument.get_env().unwrap_or_default().to_string_lossy();
        let id = argument.get_id().as_str();
        let key = if id == "config" { String::new() } else { format!("`{id}`") };
        writeln!(
            page,
            "| `--{flag} {value}` | `{variable}` | {key} | {default} | {meaning}{} |",
            words(argument)
        )?;
    }
    Ok(())
}

/// Lists the names only, for a command without settings of its own.
fn write_names(page: &mut String, section: &Section) -> std::fmt::Result {
    let flags: Vec<_> =
        shown(&section.command).map(|it| format!("`--{}`", it.get_long().unwrap_or_default())).collect();
    writeln!(page, "\nIts flags, with the meanings above: {}.", flags.join(", "))
}

fn shown(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|argument| !argument.is_hide_set())
}

/// Splits the help of a setting, which ends with its default.
pub(super) fn meaning_and_default(argument: &Arg) -> (String, String) {
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    match help.rsplit_once("Default: ") {
        Some((meaning, default)) => {
            let default = default.strip_suffix('.').unwrap_or(default);
            (meaning.trim().to_owned(), default.to_owned())
        }
        None => (help, String::new()),
    }
}

/// The accepted words, for a setting that accepts only some.
fn words(argument: &Arg) -> String {
    let values = argument.get_possible_values();
    let names: Vec<_> = values.iter().map(|value| format!("`{}`", value.get_name())).collect();
    if names.is_empty() { String::new() } else { format!(" One of {}.", names.join(", ")) }
}
