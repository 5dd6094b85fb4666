//! The command line: one binary `tiffin`, one file per command.
//!
//! The binary and the console script of the Python wheel call [`run`] with their arguments and exit with the
//! status that it returns. Nothing in this crate ends the process, but a panic in a server.
//!
//! Conventions of all commands are in `console`: data to standard output, everything else to standard error,
//! errors with a hint, JSON with `--json`. Settings are those of `tiffin_server::config`; a command adds only
//! its own arguments.

mod bench;
mod certs;
mod chaos;
mod config;
mod console;
mod curve;
mod doctor;
mod events;
mod get;
mod input;
mod kv;
mod log;
mod ls;
mod manual;
mod master;
mod master_pages;
mod node;
mod pin;
mod progress;
mod put;
mod quota;
mod rm;
mod serve;
mod settings;
mod show;
mod signals;
mod stat;
mod store_client;
mod token;
mod top;
mod torture;
mod up;
mod why;

use std::ffi::OsString;
use std::num::{IntErrorKind, ParseIntError};

use clap::error::{ContextKind, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use rustix::process::{Signal, set_parent_process_death_signal};
use tiffin_server::config::{CommonArgs, SettingsFile};

pub use kv::kv_replay;

use console::{Console, Failure, STATUS_INTERRUPTED, STATUS_OK, STATUS_USAGE};
use signals::Signals;

/// The heading of options that every command has.
const GLOBAL: &str = "Options of every command";

/// An object store for data that one process produces and another consumes: in one process, on one host, or
/// on many.
#[derive(Debug, Parser)]
#[command(name = "tiffin", version, max_term_width = 110)]
struct Cli {
    #[command(flatten, next_help_heading = GLOBAL)]
    common: CommonArgs,

    /// Write data and errors as JSON, one value per line.
    #[arg(long, global = true, help_heading = GLOBAL)]
    json: bool,

    /// Exit when the parent process does.
    #[arg(long, global = true, hide = true)]
    with_parent: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(up::Up),
    Master(master::Master),
    Node(node::Node),
    Put(put::Put),
    Get(get::Get),
    Ls(ls::Ls),
    Stat(stat::Stat),
    Top(top::Top),
    Events(events::Events),
    Rm(rm::Rm),
    Why(why::Why),
    Pin(pin::Pin),
    Unpin(pin::Unpin),
    Pins(pin::Pins),
    Quota(quota::Quota),
    Token(token::Token),
    Certs(certs::Certs),
    Doctor(doctor::Doctor),
    Settings(settings::Settings),
    Config(config::Config),
    Completions(manual::Completions),
    #[command(name = "man")]
    Manual(manual::Manual),
    Torture(torture::Torture),
    Chaos(chaos::Chaos),
    Curve(curve::Curve),
    Bench(bench::Bench),
    Kv(kv::Kv),
    #[command(hide = true)]
    TortureWorker(torture::Worker),
    #[command(hide = true)]
    ChaosWorker(chaos::Worker),
    #[command(hide = true)]
    BenchWorker(bench::Worker),
}

/// Input of a command besides its own arguments.
struct Context {
    /// The name by which this program was called.
    program: OsString,
    /// From flags and environment.
    given: CommonArgs,
    /// The same, then from the file.
    common: CommonArgs,
    /// The settings file.
    file: SettingsFile,
}

/// Runs the command named by the arguments after the first. Returns the exit status: 0 for success, 1 for
/// failure, 2 for invalid arguments, 130 if it was interrupted.
#[must_use]
pub fn run(args: impl IntoIterator<Item = OsString>) -> i32 {
    let args: Vec<OsString> = args.into_iter().collect();
    // Errors in the arguments are written as JSON too, so this must be known before they are parsed.
    let wants_json = args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--json");
    let mut console = Console::standard(wants_json);
    let program = args.first().cloned().unwrap_or_else(|| "tiffin".into());
    let done = match Cli::try_parse_from(&args) {
        Ok(cli) => {
            if shows_token(&args) {
                console.note(
                    "warning: other users of this machine can see `--token` in the list of processes; use \
                     TIFFIN_TOKEN or `--token-file`",
                );
            }
            start(cli, program, &mut console)
        }
        Err(error) => explain(&error, &args, &mut console),
    };
    let flushed = |status, console: &mut Console| console.flush().map(|()| status);
    match done.and_then(|status| flushed(status, &mut console)) {
        Ok(status) => status,
        Err(failure) => console.fail(&failure),
    }
}

/// Whether a token is on the command line.
fn shows_token(args: &[OsString]) -> bool {
    let mut args = args.iter().take_while(|arg| *arg != "--").filter_map(|arg| arg.to_str());
    args.any(|arg| arg == "--token" || arg.starts_with("--token="))
}

fn start(cli: Cli, program: OsString, console: &mut Console) -> Result<i32, Failure> {
    console.json = cli.json;
    if cli.with_parent {
        let set = set_parent_process_death_signal(Some(Signal::KILL));
        set.map_err(|error| Failure::new("system", format!("cannot set the parent death signal: {error}")))?;
    }
    let given = cli.common.clone();
    let (common, file) = cli.common.load().map_err(|error| Failure::new("config", error))?;
    let context = Context { program, given, common, file };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let advice = "the system is short of threads or open files; `tiffin doctor` shows the limits";
    let runtime = runtime.map_err(|error| Failure::new("system", error).hint(advice))?;
    let done = runtime.block_on(dispatch(cli.command, &context, console));
    // A thread that waits for standard input must not keep the process alive.
    runtime.shutdown_background();
    done
}

async fn dispatch(command: Command, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let usual = match command {
        Command::Master(_) | Command::Node(_) => log::Usual::Daemon,
        Command::Up(_) => log::Usual::Up,
        _ => log::Usual::Quiet,
    };
    log::start(&context.common, usual)?;
    let signals = Signals::listen()?;
    match command {
        Command::Up(up) => up::run(up, context, console, signals).await,
        Command::Master(master) => master::run(master, context, console, signals).await,
        Command::Node(node) => node::run(node, context, console, signals).await,
        Command::Put(put) => unless_interrupted(put::run(put, context, console), signals).await,
        Command::Get(get) => unless_interrupted(get::run(get, context, console), signals).await,
        Command::Ls(ls) => unless_interrupted(ls::run(ls, context, console), signals).await,
        Command::Stat(stat) => unless_interrupted(stat::run(stat, context, console), signals).await,
        Command::Top(top) => top::run(top, context, console, signals).await,
        Command::Events(events) => unless_interrupted(events::run(events, context, console), signals).await,
        Command::Rm(rm) => unless_interrupted(rm::run(rm, context, console), signals).await,
        Command::Why(why) => unless_interrupted(why::run(why, context, console), signals).await,
        Command::Pin(pin) => unless_interrupted(pin::run(pin, context, console), signals).await,
        Command::Unpin(unpin) => unless_interrupted(pin::run_unpin(unpin, context, console), signals).await,
        Command::Pins(pins) => unless_interrupted(pin::run_pins(pins, context, console), signals).await,
        Command::Quota(quota) => unless_interrupted(quota::run(quota, context, console), signals).await,
        Command::Doctor(doctor) => unless_interrupted(doctor::run(&doctor, context, console), signals).await,
        Command::Token(token) => token::run(token, context, console),
        Command::Certs(certs) => certs::run(certs, console),
        Command::Settings(settings) => settings::run(&settings, console),
        Command::Config(config) => config::run(&config, context, console),
        Command::Completions(completions) => manual::run_completions(&completions, console),
        Command::Manual(manual) => manual::run_manual(&manual, console),
        Command::Torture(torture) => {
            unless_interrupted(torture::run(torture, context, console), signals).await
        }
        Command::Chaos(chaos) => unless_interrupted(chaos::run(chaos, context, console), signals).await,
        Command::Curve(curve) => unless_interrupted(curve::run(curve, context, console), signals).await,
        Command::Bench(bench) => unless_interrupted(bench::run(bench, context, console), signals).await,
        Command::Kv(kv) => unless_interrupted(kv::run(kv, console), signals).await,
        Command::BenchWorker(worker) => bench::work(worker, console).await,
        Command::ChaosWorker(worker) => chaos::work(worker, context, console).await,
        Command::TortureWorker(worker) => torture::work(worker, context, console).await,
    }
}

/// The server cleans up after a client whose process ends.
async fn unless_interrupted(
    work: impl Future<Output = Result<i32, Failure>>,
    mut signals: Signals,
) -> Result<i32, Failure> {
    tokio::select! {
        done = work => done,
        () = signals.next() => Ok(STATUS_INTERRUPTED),
    }
}

/// Reports errors in the arguments, or prints the requested help.
fn explain(error: &clap::Error, args: &[OsString], console: &mut Console) -> Result<i32, Failure> {
    let text = error.render().to_string();
    // A command that needs a subcommand and was given none shows its help.
    let is_help = matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    if is_help {
        console.text(text.trim_end())?;
        return Ok(STATUS_OK);
    }
    if let Some(failure) = negative_value(error, args) {
        return Err(failure);
    }
    let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
    let (message, advice) = text.split_once("\n\n").unwrap_or((text, ""));
    // Advice of clap comes in paragraphs, of which the last is always the same. A hint of our own value
    // parsers is one of them.
    let advice = advice.replace("For more information, try '--help'.", "").replace("  tip: ", "");
    let parts = advice.split("\n\n").map(|part| part.trim().trim_start_matches("hint: "));
    let parts = parts.filter(|part| !part.is_empty());
    let parts = parts.map(|part| if part.starts_with("Usage:") { usage_line(args) } else { part.to_owned() });
    let hint = parts.chain(["see `--help`".to_owned()]).collect::<Vec<_>>().join("; ");
    let message = own_message(error).unwrap_or_else(|| message.to_owned());
    Err(usage(message, hint))
}

/// The usage of the command that the arguments name. That of clap's errors lists every flag whose environment
/// variable is set.
fn usage_line(args: &[OsString]) -> String {
    let mut command = Cli::command();
    command.build();
    let mut found = &command;
    for name in args.iter().skip(1).filter_map(|arg| arg.to_str()) {
        found = found.find_subcommand(name).unwrap_or(found);
    }
    found.clone().render_usage().to_string().replace("Usage:", "usage:")
}

fn usage(message: String, hint: String) -> Failure {
    Failure { status: STATUS_USAGE, hint: Some(hint), ..Failure::new("usage", message) }
}

/// Detects a negative number after a flag that takes a value, which clap parses as a flag.
fn negative_value(error: &clap::Error, args: &[OsString]) -> Option<Failure> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let is_negative =
        |it: &str| it.strip_prefix('-').is_some_and(|it| it.starts_with(|c: char| c.is_ascii_digit()));
    let mut pairs = args.windows(2).take_while(|it| it.iter().all(|arg| arg != "--"));
    let (flag, value) = pairs.find_map(|pair| {
        let [flag, value] = pair else { return None };
        let (flag, value) = (flag.to_str()?, value.to_str().filter(|it| is_negative(it))?);
        Some((flag.strip_prefix("--")?, value)).filter(|(flag, _)| takes_value(&Cli::command(), flag))
    })?;
    let message = format!("--{flag}: the value `{value}` is negative");
    Some(usage(message, "give a value that is not negative; see `--help`".to_owned()))
}

/// Whether the command, or one of its subcommands, has a flag of that name with a value.
fn takes_value(command: &clap::Command, flag: &str) -> bool {
    let is_it = |arg: &clap::Arg| arg.get_long() == Some(flag) && arg.get_action().takes_values();
    command.get_arguments().any(is_it) || command.get_subcommands().any(|it| takes_value(it, flag))
}

/// The message of our own value parsers, which names the value, with the flag before it. That of the standard
/// library for a number does not say what is wanted.
fn own_message(error: &clap::Error) -> Option<String> {
    let source = std::error::Error::source(error)?;
    let flag = error.get(ContextKind::InvalidArg)?.to_string();
    let not_a_number = source.downcast_ref::<ParseIntError>().map(ParseIntError::kind);
    if let Some(IntErrorKind::InvalidDigit | IntErrorKind::Empty) = not_a_number {
        let value = error.get(ContextKind::InvalidValue)?;
        return Some(format!("{flag}: `{value}` is not a whole number"));
    }
    let source = source.to_string();
    let (message, _) = source.split_once("\n\nhint: ")?;
    Some(format!("{flag}: {message}"))
}
