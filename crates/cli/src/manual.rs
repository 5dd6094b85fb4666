//! `tiffin completions` and `tiffin man`: generated from the declarations of the commands.

use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::Cli;
use crate::console::{Console, Failure, STATUS_OK};

/// Writes a completion script for a shell to standard output.
///
/// For Bash: `tiffin completions bash > ~/.local/share/bash-completion/completions/tiffin`.
#[derive(Debug, clap::Args)]
pub(crate) struct Completions {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Writes the manual pages of all commands into a folder: `tiffin.1`, `tiffin-put.1` and so on.
///
/// To read them with `man tiffin`, write them into `~/.local/share/man/man1`.
#[derive(Debug, clap::Args)]
pub(crate) struct Manual {
    /// The folder; it is made if it does not exist.
    folder: PathBuf,
}

/// Writes the script.
pub(crate) fn run_completions(completions: &Completions, console: &mut Console) -> Result<i32, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut visible(Cli::command()), "tiffin", &mut script);
    console.bytes(&script)?;
    Ok(STATUS_OK)
}

/// Writes the pages, and names the folder.
pub(crate) fn run_manual(manual: &Manual, console: &mut Console) -> Result<i32, Failure> {
    let folder = &manual.folder;
    std::fs::create_dir_all(folder).map_err(|error| Failure::file("create the folder", folder, &error))?;
    let mut command = visible(Cli::command());
    command.build();
    let count = write_pages(&command, "tiffin", folder)?;
    console.note(format!("wrote {count} pages into `{}`", folder.display()));
    Ok(STATUS_OK)
}

/// Writes the page of a command and of those below it. Returns how many.
fn write_pages(command: &clap::Command, name: &str, folder: &Path) -> Result<usize, Failure> {
    let mut page = Vec::new();
    Man::new(command.clone().name(name.to_owned())).render(&mut page)?;
    let path = folder.join(format!("{name}.1"));
    std::fs::write(&path, page).map_err(|error| Failure::file("write", &path, &error))?;
    let mut count = 1;
    for below in command.get_subcommands().filter(|it| it.get_name() != "help") {
        count += write_pages(below, &format!("{name}-{}", below.get_name()), folder)?;
    }
    Ok(count)
}

/// The command without the commands that only this program itself calls.
fn visible(command: clap::Command) -> clap::Command {
    let below: Vec<_> = command.get_subcommands().filter(|it| !it.is_hide_set()).cloned().collect();
    let bare = clap::Command::new("tiffin");
    let about = command.get_about().cloned().unwrap_or_default();
    let version = command.get_version().unwrap_or_default().to_owned();
    let arguments: Vec<_> = command.get_arguments().filter(|it| !it.is_hide_set()).cloned().collect();
    bare.about(about).version(version).args(arguments).subcommands(below).subcommand_required(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_visible_commands_are_described() {
        let command = visible(Cli::command());
        let names: Vec<_> = command.get_subcommands().map(clap::Command::get_name).collect();
        assert!(names.contains(&"put") && names.contains(&"config"), "{names:?}");
        assert!(!names.contains(&"bench-worker"), "{names:?}");
        assert!(command.get_arguments().any(|it| it.get_id() == "json"));
    }
}
