//! `tiffin why`: why an object exists, or what removed it.

use std::ffi::OsString;

use serde_json::{Map, Value, json};
use tiffin_client::{Cause, Consumption, CopyWait, Here, Why as Answer};
use tiffin_server::config::ClientArgs;
use tiffin_server::why::as_text;
use tiffin_types::Key;

use crate::Context;
use crate::console::{Console, Failure, STATUS_OK};
use crate::show;
use crate::store_client::{StoreClient, key};

/// Shows why objects exist, or what removed them.
///
/// For an existing object: its last writer and reader, and what keeps it: pins by owner, leases, views. For a
/// removed one: which rule removed it, by which client, and when.
#[derive(Debug, clap::Args)]
pub(crate) struct Why {
    /// The keys.
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<OsString>,

    #[command(flatten)]
    client: ClientArgs,
}

/// Asks the master, and writes one answer for each key.
pub(crate) async fn run(why: Why, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let keys = why.keys.iter().map(|text| key(text)).collect::<Result<Vec<_>, _>>()?;
    let store = StoreClient::connect(why.client, context).await?;
    let answers = store.client.why(&keys, store.deadline()).await;
    for (key, answer) in keys.iter().zip(answers) {
        let answer = answer.map_err(|error| store.explain(&error))?;
        if console.json {
            console.value(&as_json(key, &answer))?;
        } else {
            console.text(as_text(key, &answer))?;
        }
    }
    store.close().await;
    Ok(STATUS_OK)
}

/// What a missing copy waits for.
fn copy_wait_word(wait: CopyWait) -> Option<&'static str> {
    match wait {
        CopyWait::Nothing => None,
        CopyWait::Node => Some("node"),
        CopyWait::Memory => Some("memory"),
        CopyWait::Quota => Some("quota"),
        CopyWait::Source => Some("source"),
        CopyWait::Turn => Some("turn"),
    }
}

fn as_json(key: &Key, answer: &Answer) -> Value {
    let mut object = show::keyed(key.as_bytes());
    let fields: Map<String, Value> = match answer {
        Answer::Here(here) => here_json(here),
        Answer::Gone(gone) => fields(json!({
            "state": "gone",
            "generation": gone.generation.to_string(),
            "cause": cause_word(gone.cause),
            "by": gone.by,
            "node": gone.node,
            "for": gone.for_key.as_ref().map(|key| show::key(key.as_bytes())),
            "reader": gone.reader,
            "ago_ms": gone.ago_ms,
            "disk_bytes_max": (gone.disk_bytes_max > 0).then_some(gone.disk_bytes_max),
        })),
        Answer::Unknown => fields(json!({ "state": "unknown" })),
    };
    object.extend(fields);
    object.into()
}

fn here_json(here: &Here) -> Map<String, Value> {
    let (consumption, groups) = match &here.sample {
        None => (None, None),
        Some(Consumption::Once) => (Some("once"), None),
        Some(Consumption::Retained) => (Some("retained"), None),
        Some(Consumption::Groups(groups)) => (Some("groups"), Some(groups)),
    };
    fields(json!({
        "state": "here",
        "generation": here.found.generation.to_string(),
        "bytes": here.found.len,
        "nodes": here.nodes,
        "unreachable": here.unreachable,
        "pins": here.pins,
        "soft_pinned": here.found.soft_pin,
        "leases": here.leases,
        "views": here.views,
        "viewers": here.viewers,
        "viewers_more": here.viewers_more,
        "sends": here.sends,
        "sample": consumption,
        "groups": groups,
        "acked": here.acked,
        "age_ms": here.age_ms,
        "idle_ms": here.idle_ms,
        "lease_ms": here.lease_ms,
        "ttl_ms": here.ttl_ms,
        "expires_in_ms": here.found.expires_in_ms,
        "writer": here.writer,
        "reader": here.reader,
        "disk_bytes_max": (here.disk_bytes_max > 0).then_some(here.disk_bytes_max),
        "copies_wanted": here.copies_wanted,
        "copies": here.copies_there,
        "copying_to": (!here.copying_to.is_empty()).then_some(&here.copying_to),
        "copy_waits_for": copy_wait_word(here.copy_wait),
    }))
}

fn fields(value: Value) -> Map<String, Value> {
    if let Value::Object(map) = value { map } else { Map::new() }
}

fn cause_word(cause: Cause) -> &'static str {
    match cause {
        Cause::Deleted => "deleted",
        Cause::Replaced => "replaced",
        Cause::Evicted => "evicted",
        Cause::NodeLost => "node_lost",
        Cause::Consumed => "consumed",
        Cause::HeldTooLong => "held_too_long",
        Cause::Expired => "expired",
    }
}
