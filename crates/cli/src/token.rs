//! `tiffin token`: the tokens that servers accept.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use tiffin_server::access::{AccessFile, NewToken};
use tiffin_server::config;
use tiffin_types::access::{Credential, Namespaces, Right};

use crate::Context;
use crate::console::{Console, Failure, STATUS_OK};

/// Creates, lists and revokes tokens in the access file of a store (`--access-file`).
///
/// Servers read the file again when it changes, so none of this needs a restart. Masters and nodes need the
/// same file.
#[derive(Debug, Args)]
pub(crate) struct Token {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Creates a token and prints it. It is stored nowhere: only its hash is in the file.
    Create(Create),
    /// Lists the tokens: names, rights, namespaces, expiry.
    List,
    /// Revokes a token. Servers close its connections within a second or two.
    Revoke {
        /// Its name.
        name: String,
    },
}

#[derive(Debug, Args)]
struct Create {
    /// Its name, for `list` and `revoke`.
    name: String,

    /// What it permits; may be given several times.
    #[arg(long = "right", value_name = "RIGHT", value_enum, required = true)]
    rights: Vec<RightArg>,

    /// A namespace that it is for, or the start of names and `*`; may be given several times. Default: all.
    #[arg(long = "namespace", value_name = "NAME")]
    namespaces: Vec<String>,

    /// When it ends, from now, such as `30d`. Default: never.
    #[arg(long, value_name = "TIME", value_parser = config::duration)]
    expires: Option<Duration>,
}

/// See [`Right`].
#[derive(Clone, Copy, Debug, ValueEnum)]
enum RightArg {
    /// Get, list and explain objects.
    Read,
    /// Put, delete, pin and consume objects.
    Write,
    /// Change quotas and policies, forget and drain nodes.
    Admin,
    /// Join as a storage node, which stores the objects of all namespaces.
    Node,
}

impl From<RightArg> for Right {
    fn from(it: RightArg) -> Self {
        match it {
            RightArg::Read => Self::Read,
            RightArg::Write => Self::Write,
            RightArg::Admin => Self::Admin,
            RightArg::Node => Self::Node,
        }
    }
}

/// Carries out the action.
pub(crate) fn run(token: Token, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let Some(path) = &context.common.access_file else {
        let failure = Failure::new("config", "the access file is not named");
        return Err(failure.hint("give it with `--access-file FILE` or TIFFIN_ACCESS_FILE"));
    };
    let failed = |error| Failure::new("access", error);
    match token.action {
        Action::Create(create) => create_token(create, path, console)?,
        Action::List => list(&AccessFile::read(path).map_err(failed)?, console)?,
        Action::Revoke { name } => {
            AccessFile::revoke(path, &name).map_err(failed)?;
            match console.json {
                true => console.value(&json!({"revoked": name}))?,
                false => console.text(format!("token `{name}` is revoked"))?,
            }
        }
    }
    Ok(STATUS_OK)
}

fn create_token(create: Create, path: &Path, console: &mut Console) -> Result<(), Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let milliseconds = |it: Duration| u64::try_from(it.as_millis()).unwrap_or(u64::MAX);
    let new = NewToken {
        name: create.name,
        rights: create.rights.into_iter().map(Right::from).collect(),
        namespaces: create.namespaces,
        expires_ms: create.expires.map(|it| milliseconds(now.saturating_add(it))),
    };
    let secret = AccessFile::create(path, &new).map_err(|error| Failure::new("access", error))?;
    if console.json {
        return console.value(&json!({"name": new.name, "token": secret}));
    }
    console.text(secret)?;
    console.note("keep it: it is not shown again. Give it to a process in TIFFIN_TOKEN or by `--token-file`");
    Ok(())
}

fn list(file: &AccessFile, console: &mut Console) -> Result<(), Failure> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
    for token in &file.tokens {
        let it = &token.credential;
        if console.json {
            console.value(&described(it, now_ms))?;
            continue;
        }
        let names = namespaces(it).map_or_else(|| "all namespaces".to_owned(), |names| names.join(", "));
        let end = match expiry(it) {
            None => "does not expire".to_owned(),
            Some(end) if it.is_expired(now_ms) => format!("expired at {end}"),
            Some(end) => format!("expires at {end}"),
        };
        console.text(format!("{}  {}  {names}  {end}", it.name, it.rights()))?;
    }
    Ok(())
}

fn described(it: &Credential, now_ms: u64) -> Value {
    let rights: Vec<_> = it.rights().iter().map(Right::name).collect();
    json!({
        "name": it.name, "rights": rights, "namespaces": namespaces(it), "expires": expiry(it),
        "expired": it.is_expired(now_ms),
    })
}

/// `None` for all.
fn namespaces(it: &Credential) -> Option<Vec<&str>> {
    match it.namespaces() {
        Namespaces::All => None,
        Namespaces::Some(names) => Some(names.iter().map(|it| it.as_str()).collect()),
    }
}

fn expiry(it: &Credential) -> Option<String> {
    let end = UNIX_EPOCH.checked_add(Duration::from_millis(it.expires_ms()?))?;
    Some(humantime::format_rfc3339_seconds(end).to_string())
}
