//! `tiffin ls`: lists objects.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use serde_json::Value;
use tiffin_server::config::ClientArgs;
use tiffin_types::message::{ListItem, Pattern};

use crate::Context;
use crate::console::{Console, Failure, STATUS_OK};
use crate::show::{self, Table};
use crate::store_client::StoreClient;

/// Lists objects in the order of their keys.
///
/// With `--json`, it writes one line for each object.
#[derive(Debug, clap::Args)]
pub(crate) struct Ls {
    /// Only keys with this prefix.
    prefix: Option<OsString>,

    /// Only keys that match this regular expression.
    #[arg(long, conflicts_with = "prefix", value_name = "REGEX")]
    regex: Option<String>,

    /// Maximum number of keys.
    #[arg(long, value_name = "N")]
    limit: Option<usize>,

    #[command(flatten)]
    client: ClientArgs,
}

/// Requests all pages, and writes them in order.
pub(crate) async fn run(ls: Ls, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let pattern = match (ls.prefix, ls.regex) {
        (_, Some(regex)) => Pattern::Regex(regex),
        (Some(prefix), None) => Pattern::Prefix(prefix.into_vec()),
        (None, None) => Pattern::All,
    };
    let store = StoreClient::connect(ls.client, context).await?;
    let listed = store.client.list(pattern, store.deadline()).await;
    let mut items = listed.map_err(|error| store.explain(&error))?;
    items.truncate(ls.limit.unwrap_or(usize::MAX));
    write(&items, console)?;
    if items.is_empty() {
        console.note(format!("nothing in namespace `{}` matches", store.namespace));
    }
    store.close().await;
    Ok(STATUS_OK)
}

fn write(items: &[ListItem], console: &mut Console) -> Result<(), Failure> {
    if console.json {
        for item in items {
            let mut object = show::keyed(item.key.as_bytes());
            object.insert("bytes".into(), item.len.into());
            object.insert("generation".into(), item.generation.to_string().into());
            object.insert("replicas".into(), item.replicas.into());
            console.value(&Value::from(object))?;
        }
        return Ok(());
    }
    if items.is_empty() {
        return Ok(());
    }
    // The key is last, so that a long key does not move the numbers.
    let mut table = Table::new(&["size", "generation", "replicas", "key"]).last_left();
    for item in items {
        let (size, generation) = (show::size(item.len), item.generation.to_string());
        table.row([size, generation, item.replicas.to_string(), show::key(item.key.as_bytes())]);
    }
    console.text(table)
}
