//! `tiffin pin`, `tiffin unpin` and `tiffin pins`: protection from eviction, by owner.

use std::ffi::OsString;

use serde_json::{Value, json};
use tiffin_client::{Error, ListItem, ListOptions, Pattern};
use tiffin_server::config::ClientArgs;

use crate::Context;
use crate::console::{Console, Failure, STATUS_OK};
use crate::show::{self, Table};
use crate::store_client::{StoreClient, key};

/// Protects objects from eviction, on behalf of an owner, until they are unpinned or removed.
#[derive(Debug, clap::Args)]
pub(crate) struct Pin {
    /// The keys.
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<OsString>,

    /// The owner of the pins: for example a run, so that all its pins can be dropped at once.
    #[arg(long, default_value = "", value_name = "NAME")]
    owner: String,

    #[command(flatten)]
    client: ClientArgs,
}

/// Ends pins of an owner. The objects stay where they are, and are evicted when space is needed.
#[derive(Debug, clap::Args)]
pub(crate) struct Unpin {
    #[command(flatten)]
    pin: Pin,
}

/// Lists the pinned objects and their owners, or drops all pins of an owner.
#[derive(Debug, clap::Args)]
pub(crate) struct Pins {
    /// Only pins of this owner; the empty name stands for pins without an owner.
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,

    /// Drop them.
    #[arg(long, requires = "owner")]
    drop: bool,

    #[command(flatten)]
    client: ClientArgs,
}

/// Sets pins.
pub(crate) async fn run(pin: Pin, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    change(pin, true, context, console).await
}

/// Ends pins.
pub(crate) async fn run_unpin(
    unpin: Unpin,
    context: &Context,
    console: &mut Console,
) -> Result<i32, Failure> {
    change(unpin.pin, false, context, console).await
}

async fn change(pin: Pin, on: bool, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let keys = pin.keys.iter().map(|text| key(text)).collect::<Result<Vec<_>, _>>()?;
    let store = StoreClient::connect(pin.client, context).await?;
    let (client, deadline) = (&store.client, store.deadline());
    let outcomes: Vec<Result<bool, Error>> = match on {
        true => {
            client.pin(&keys, &pin.owner, deadline).await.into_iter().map(|it| it.map(|()| true)).collect()
        }
        false => client.unpin(&keys, &pin.owner, deadline).await,
    };
    let count = |wanted| outcomes.iter().filter(|it| **it == Ok(wanted)).count();
    let (done, not_pinned) = (count(true), count(false));
    if console.json && on {
        console.value(&json!({ "pinned": done, "owner": pin.owner }))?;
    } else if console.json {
        console.value(&json!({ "unpinned": done, "not_pinned": not_pinned, "owner": pin.owner }))?;
    } else if on {
        console.text(format!("pinned {done}"))?;
    } else {
        console.text(unpinned(done, not_pinned, &pin.owner))?;
    }
    let failure = outcomes.into_iter().find_map(Result::err).map(|error| store.explain(&error));
    store.close().await;
    failure.map_or(Ok(STATUS_OK), Err)
}

/// Number of ended pins, and of keys without a pin of that owner.
fn unpinned(done: usize, not_pinned: usize, owner: &str) -> String {
    let owner = match owner {
        "" => "without an owner's name".to_owned(),
        owner => format!("by owner `{}`", show::key(owner.as_bytes())),
    };
    let were = if not_pinned == 1 { "was" } else { "were" };
    match (done, not_pinned) {
        (done, 0) => format!("unpinned {done}"),
        (0, _) => format!("nothing was unpinned: {not_pinned} {were} not pinned {owner}"),
        _ => format!("unpinned {done}, {not_pinned} {were} not pinned {owner}"),
    }
}

/// Lists pins, or drops them.
pub(crate) async fn run_pins(pins: Pins, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let store = StoreClient::connect(pins.client, context).await?;
    match &pins.owner {
        Some(owner) if pins.drop => drop_all(&store, owner, console).await?,
        Some(owner) => {
            let listed =
                store.client.list_with(Pattern::All, &ListOptions::pinned_by(owner), store.deadline()).await;
            let items = listed.map_err(|error| store.explain(&error))?;
            let by = format!("pinned by owner `{}`", show::key(owner.as_bytes()));
            write(&items, &store, &by, console)?;
        }
        None => {
            let listed = store.client.list(Pattern::All, store.deadline()).await;
            let mut items = listed.map_err(|error| store.explain(&error))?;
            items.retain(|item| !item.pins.is_empty());
            write(&items, &store, "pinned", console)?;
        }
    }
    store.close().await;
    Ok(STATUS_OK)
}

async fn drop_all(store: &StoreClient, owner: &str, console: &mut Console) -> Result<(), Failure> {
    let dropped = store.client.drop_pins(owner, store.deadline()).await;
    let dropped = dropped.map_err(|error| store.explain(&error))?;
    if console.json {
        console.value(&json!({ "unpinned": dropped.count, "owner": owner }))?;
    } else if dropped.count == 0 {
        let owner = show::key(owner.as_bytes());
        console.text(format!(
            "nothing was unpinned: owner `{owner}` has no pin in namespace `{}`",
            store.namespace
        ))?;
    } else {
        console.text(format!("unpinned {}", dropped.count))?;
    }
    let nodes = dropped.unconfirmed;
    if nodes.is_empty() { Ok(()) } else { Err(store.explain(&Error::Unconfirmed { nodes })) }
}

fn write(items: &[ListItem], store: &StoreClient, how: &str, console: &mut Console) -> Result<(), Failure> {
    if console.json {
        for item in items {
            let mut object = show::keyed(item.key.as_bytes());
            object.insert("bytes".into(), item.len.into());
            object.insert("pins".into(), json!(item.pins));
            console.value(&Value::from(object))?;
        }
        return Ok(());
    }
    if items.is_empty() {
        console.note(format!("nothing in namespace `{}` is {how}", store.namespace));
        return Ok(());
    }
    let mut table = Table::new(&["size", "owners", "key"]).last_left();
    for item in items {
        let owner = |name: &String| if name.is_empty() { "-".to_owned() } else { show::key(name.as_bytes()) };
        let owners = item.pins.iter().map(owner).collect::<Vec<_>>().join(", ");
        table.row([show::size(item.len), owners, show::key(item.key.as_bytes())]);
    }
    console.text(table)
}
