//! `tiffin put`: stores one value.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ValueEnum;
use serde_json::Value;
use tiffin_client::{Patience, Put as Item, PutEffect, Stored};
use tiffin_server::config::ClientArgs;
use tiffin_types::Key;
use tiffin_types::message::{OnExists, PutOptions};

use crate::Context;
use crate::console::{Console, Failure, STATUS_OK};
use crate::input::Input;
use crate::show;
use crate::store_client::{StoreClient, key};

/// Stores one value under a key.
#[derive(Debug, clap::Args)]
pub(crate) struct Put {
    /// The key: any bytes.
    key: OsString,

    /// The file with the value; `-`, or none, is standard input.
    #[arg(conflicts_with = "value")]
    file: Option<PathBuf>,

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

/// Stores the value, and reports the result.
pub(crate) async fn run(put: Put, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let key = key(&put.key)?;
    let input = Input::choose(put.value, put.file);
    let store = StoreClient::connect(put.client, context).await?;
    let largest = largest_node(&store).await?;
    let pieces = input.read(largest, console).await?;
    let options = PutOptions {
        replicas: put.replicas,
        on_exists: if put.on_exists == IfExists::Replace { OnExists::Replace } else { OnExists::Keep },
        hard_pin: put.pin,
        owner: put.owner.unwrap_or_default(),
        ..PutOptions::default()
    };
    let parts = pieces.iter().map(|piece| piece.as_slice().into()).collect();
    let item = Item { key: key.clone(), parts, options };
    let patience = if put.wait { Patience::UntilDeadline } else { Patience::Never };
    let outcome = store.client.put_with(&[item], patience, store.deadline()).await.pop();
    let stored = match outcome {
        Some(stored) => stored.map_err(|error| store.explain(&error))?,
        None => return Err(Failure::new("internal", "the put has no outcome")),
    };
    if stored.effect == PutEffect::Kept && put.on_exists == IfExists::Error {
        let message = format!("`{}` exists, as generation {}", show::key(key.as_bytes()), stored.generation);
        return Err(Failure::new("exists", message).hint("use `--on-exists replace` to replace it"));
    }
    let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
    report(&key, bytes, put.replicas, &stored, console)?;
    store.close().await;
    Ok(STATUS_OK)
}

/// Maximum size of a value.
async fn largest_node(store: &StoreClient) -> Result<u64, Failure> {
    let stat = store.client.stat(store.deadline()).await.map_err(|error| store.explain(&error))?;
    Ok(stat.nodes.iter().map(|node| node.usage.capacity).max().unwrap_or(u64::MAX))
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
