//! `tiffin ls`: lists objects.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use serde_json::Value;
use tiffin_client::ListOptions;
use tiffin_server::config::ClientArgs;
use tiffin_types::message::{ListItem, Pattern};

use crate::Context;
use crate::console::{Console, Failure, STATUS_OK};
use crate::show::{self, Table};
use crate::store_client::{StoreClient, key};

/// Lists objects in the order of their keys.
///
/// With `--json`, it writes one line for each object.
#[derive(Debug, clap::Args)]
pub(crate) struct Ls {
    /// Only keys with this prefix.
    #[arg(value_name = "PREFIX")]
    start: Option<OsString>,

    /// The same as PREFIX, as `tiffin rm` and `tiffin put` name it.
    #[arg(long, conflicts_with = "start", value_name = "TEXT")]
    prefix: Option<OsString>,

    /// Only keys that match this regular expression.
    #[arg(long, conflicts_with_all = ["start", "prefix"], value_name = "REGEX")]
    regex: Option<String>,

    /// Maximum number of keys. If there are more, a note names the key to go on with.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,

    /// Only keys greater than this one: the last key of the list before.
    #[arg(long, value_name = "KEY")]
    after: Option<OsString>,

    #[command(flatten)]
    client: ClientArgs,
}

/// Requests all pages, and writes them in order.
pub(crate) async fn run(ls: Ls, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let pattern = match (ls.start.or(ls.prefix), ls.regex) {
        (_, Some(regex)) => Pattern::Regex(regex),
        (Some(prefix), None) => Pattern::Prefix(prefix.into_vec()),
        (None, None) => Pattern::All,
    };
    let after = ls.after.map(|text| key(&text)).transpose()?;
    let store = StoreClient::connect(ls.client, context).await?;
    // One more than is shown, to learn whether there are more.
    let limit = ls.limit.map(|it| it.saturating_add(1));
    let options = ListOptions { after, limit, ..ListOptions::default() };
    let listed = store.client.list_with(pattern, &options, store.deadline()).await;
    let mut items = listed.map_err(|error| store.explain(&error))?;
    let has_more = ls.limit.is_some_and(|limit| items.len() > limit);
    items.truncate(ls.limit.unwrap_or(usize::MAX));
    write(&items, console)?;
    match items.last() {
        None if !has_more => {
            console.note(format!("nothing in namespace `{}` matches", show::key(store.namespace.as_bytes())));
        }
        Some(last) if has_more => {
            console.note(format!("there are more, from `--after '{}'` on", show::key(last.key.as_bytes())));
        }
        _ => {}
    }
    store.close().await;
    Ok(STATUS_OK)
}

/// Writes a table of objects; with `--json`, one line for each.
pub(crate) fn write(items: &[ListItem], console: &mut Console) -> Result<(), Failure> {
    if console.json {
        for item in items {
            let mut object = show::keyed(item.key.as_bytes());
            object.insert("bytes".into(), item.len.into());
            object.insert("generation".into(), item.generation.to_string().into());
            object.insert("replicas".into(), item.replicas.into());
            if let Some(left) = item.expires_in_ms {
                object.insert("expires_in_ms".into(), left.into());
            }
            console.value(&Value::from(object))?;
        }
        return Ok(());
    }
    if items.is_empty() {
        return Ok(());
    }
    // The key is last, so that a long key does not move the numbers. Few namespaces have TTLs.
    let has_ttls = items.iter().any(|it| it.expires_in_ms.is_some());
    let head: &[_] = match has_ttls {
        true => &["size", "generation", "replicas", "expires in", "key"],
        false => &["size", "generation", "replicas", "key"],
    };
    let mut table = Table::new(head).last_left();
    for item in items {
        let (size, generation) = (show::size(item.len), item.generation.to_string());
        let mut row = vec![size, generation, item.replicas.to_string()];
        let left = item.expires_in_ms.map_or_else(|| "-".to_owned(), tiffin_server::why::time);
        row.extend(has_ttls.then_some(left));
        row.push(show::key(item.key.as_bytes()));
        table.row(row);
    }
    console.text(table)
}
