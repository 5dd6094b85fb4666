//! `tiffin put`: stores values.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use serde_json::Value;
use tiffin_client::{Put as Item, PutEffect, SpaceWait, Stored};
use tiffin_server::config::{ClientArgs, duration};
use tiffin_types::message::{OnExists, PutOptions};
use tiffin_types::{Key, TTL_MS_MAX};

use crate::Context;
use crate::console::{Console, Failure, STATUS_OK, STATUS_USAGE};
use crate::input::Input;
use crate::show;
use crate::store_client::{StoreClient, key};

/// Stores one value under a key, or several files under their names.
#[derive(Debug, clap::Args)]
pub(crate) struct Put {
    /// The key: any bytes.
    #[arg(required_unless_present = "files")]
    key: Option<OsString>,

    /// The file with the value; `-`, or none, is standard input.
    #[arg(conflicts_with = "value")]
    file: Option<PathBuf>,

    /// Further files, as in `put *.bin`: the command says how to store them.
    #[arg(hide = true)]
    more: Vec<PathBuf>,

    /// Several files, each under its name without the folder, one after the other. The first failure ends
    /// the command.
    #[arg(long, num_args = 1.., value_name = "FILE", conflicts_with = "value")]
    files: Vec<PathBuf>,

    /// With `--files`: what the keys start with, before the names.
    #[arg(long, requires = "files", value_name = "TEXT")]
    prefix: Option<OsString>,

    /// The value itself.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    value: Option<OsString>,

    /// What happens if the key exists.
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    on_exists: IfExists,

    /// Number of copies, on different nodes.
    #[arg(long, default_value_t = 1, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(tiffin_types::REPLICAS_MAX)))]
    replicas: u32,

    /// Never evict it.
    #[arg(long)]
    pin: bool,

    /// The owner of the pin: for example a run, so that all its pins can be dropped at once.
    #[arg(long, requires = "pin", value_name = "NAME")]
    owner: Option<String>,

    /// Remove it this long after the put, unless it is pinned then: for example `30s` or `12h`.
    #[arg(long, value_name = "TIME", value_parser = ttl)]
    ttl: Option<Duration>,

    /// If there is no space, wait for it until `--timeout`.
    #[arg(long)]
    wait: bool,

    #[command(flatten)]
    client: ClientArgs,
}

/// What happens if the key exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum IfExists {
    /// The new value replaces the old one.
    #[default]
    Replace,
    /// The old value stays.
    Keep,
    /// The old value stays, and the command fails.
    Error,
}

/// Stores the values, and reports the results.
pub(crate) async fn run(put: Put, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    if let Some(text) = put.key.as_ref().filter(|_| !put.files.is_empty()) {
        let text = show::key(text.as_bytes());
        let failure = Failure::new("usage", format!("`{text}` is given beside `--files`"));
        let advice = "put the names of all files after `--files`, and what their keys start with after \
                      `--prefix`; `tiffin put KEY FILE` stores one file under a key";
        return Err(Failure { status: STATUS_USAGE, ..failure.hint(advice) });
    }
    if let Some(third) = put.more.first() {
        let failure = Failure::new("usage", format!("`{}` is one file too many", third.display()));
        let advice = "`tiffin put KEY FILE` stores one file under a key; `tiffin put --files FILE...` stores \
                      several under their names";
        return Err(Failure { status: STATUS_USAGE, ..failure.hint(advice) });
    }
    let inputs = match put.key {
        Some(text) => vec![(key(&text)?, Input::choose(put.value, put.file))],
        None => named_files(put.files, put.prefix.unwrap_or_default())?,
    };
    let options = PutOptions {
        replicas: put.replicas,
        on_exists: if put.on_exists == IfExists::Replace { OnExists::Replace } else { OnExists::Keep },
        hard_pin: put.pin,
        owner: put.owner.unwrap_or_default(),
        ttl_ms: put.ttl.map(|it| it.as_millis() as u64),
        ..PutOptions::default()
    };
    let space_wait = if put.wait { SpaceWait::UntilDeadline } else { SpaceWait::Never };
    let store = StoreClient::connect(put.client, context).await?;
    let largest = largest_node(&store).await?;
    for (key, input) in inputs {
        let pieces = input.read(largest, console).await?;
        let parts = pieces.iter().map(|piece| piece.as_slice().into()).collect();
        let item = Item { key: key.clone(), parts, options: options.clone() };
        let stored = match store.client.put_with(&[item], space_wait, store.deadline()).await.pop() {
            Some(stored) => stored.map_err(|error| store.explain(&error))?,
            None => return Err(Failure::new("internal", "the put has no outcome")),
        };
        if stored.effect == PutEffect::Kept && put.on_exists == IfExists::Error {
            let (key, generation) = (show::key(key.as_bytes()), stored.generation);
            let failure = Failure::new("exists", format!("`{key}` exists, as generation {generation}"));
            return Err(failure.hint("use `--on-exists replace` to replace it"));
        }
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
        report(&key, bytes, put.replicas, &stored, console)?;
    }
    store.close().await;
    Ok(STATUS_OK)
}

/// Parses a TTL.
fn ttl(text: &str) -> Result<Duration, String> {
    let ttl = duration(text).map_err(|error| error.to_string())?;
    if (1..=u128::from(TTL_MS_MAX)).contains(&ttl.as_millis()) {
        return Ok(ttl);
    }
    let days = TTL_MS_MAX / 86_400_000;
    Err(format!("invalid TTL `{text}`\n\nhint: write 1ms to {days} days, such as `--ttl 30s` or `--ttl 12h`"))
}

/// The keys of files: a prefix, and the name. Two files of one name would replace each other.
fn named_files(files: Vec<PathBuf>, prefix: OsString) -> Result<Vec<(Key, Input)>, Failure> {
    let mut names = BTreeSet::new();
    let mut inputs = Vec::with_capacity(files.len());
    for file in files {
        let Some(name) = file.file_name() else {
            let failure = Failure::new("invalid", format!("`{}` has no file name", file.display()));
            return Err(failure.hint("name a file; standard input is read by `tiffin put KEY`"));
        };
        let mut text = prefix.clone();
        text.push(name);
        let key = key(&text)?;
        if !names.insert(key.clone()) {
            let shown = show::key(key.as_bytes());
            let failure = Failure::new("invalid", format!("two of the files have the key `{shown}`"));
            return Err(failure.hint("put them in two commands with different `--prefix`"));
        }
        inputs.push((key, Input::File(file)));
    }
    Ok(inputs)
}

/// Maximum size of a value.
async fn largest_node(store: &StoreClient) -> Result<u64, Failure> {
    let stat = store.client.stat(store.deadline()).await.map_err(|error| store.explain(&error))?;
    Ok(largest(stat.nodes.iter().map(|node| node.usage.capacity)))
}

/// The largest of these capacities. A node that drains or has not reported yet has none, which says nothing
/// about the value: whether the put can wait for it is for the store to say.
fn largest(capacities: impl Iterator<Item = u64>) -> u64 {
    capacities.filter(|it| *it > 0).max().unwrap_or(u64::MAX)
}

fn report(key: &Key, bytes: u64, wanted: u32, stored: &Stored, console: &mut Console) -> Result<(), Failure> {
    let effect = match stored.effect {
        PutEffect::Created => "created",
        PutEffect::Replaced => "replaced",
        PutEffect::Kept => "kept",
    };
    if console.json {
        let mut object = show::keyed(key.as_bytes());
        object.insert("bytes".into(), bytes.into());
        object.insert("generation".into(), stored.generation.to_string().into());
        object.insert("copies".into(), stored.copies.into());
        object.insert("effect".into(), effect.into());
        object.insert("unconfirmed".into(), stored.unconfirmed.clone().into());
        return console.value(&Value::from(object));
    }
    let (key, size, generation) = (show::key(key.as_bytes()), show::size(bytes), stored.generation);
    match stored.effect {
        PutEffect::Kept => console.text(format!("kept `{key}` as it was, generation {generation}"))?,
        _ => console.text(format!("{effect} `{key}`: {size}, generation {generation}"))?,
    }
    if stored.effect != PutEffect::Kept && stored.copies < wanted {
        console
            .note(format!("note: {} of {wanted} copies were made: no other node has space", stored.copies));
    }
    if !stored.unconfirmed.is_empty() {
        let nodes: Vec<_> = stored.unconfirmed.iter().map(|it| show::key(it.as_bytes())).collect();
        console.note(format!(
            "warning: {} could not confirm that the older object of this name is retired: until then, \
            clients that have cached its location may still read it there",
            nodes.join(", ")
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_have_not_reported_limit_no_value() {
        assert_eq!(largest([0, 7, 3].into_iter()), 7);
        assert_eq!((largest([0].into_iter()), largest([].into_iter())), (u64::MAX, u64::MAX));
    }
}
