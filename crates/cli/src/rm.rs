//! `tiffin rm`: removes objects.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use serde_json::json;
use tiffin_client::{DeleteOptions, Error, Key, ListItem, ListOptions, ResolveOptions};
use tiffin_server::config::ClientArgs;
use tiffin_types::message::Pattern;
use tiffin_types::units::{Count, Size};

use crate::Context;
use crate::console::{Console, Failure, STATUS_FAILED, STATUS_OK};
use crate::store_client::{StoreClient, key};
use crate::{ls, show};

/// Removes objects. After it succeeds, they can no longer be read. Absent keys are not an error.
#[derive(Debug, clap::Args)]
pub(crate) struct Rm {
    /// The keys.
    #[arg(required_unless_present_any = ["prefix", "regex", "all"], value_name = "KEY")]
    keys: Vec<OsString>,

    /// All keys with this prefix. If these are all objects of the namespace, the command asks first.
    #[arg(long, conflicts_with_all = ["keys", "regex"], value_name = "TEXT")]
    prefix: Option<OsString>,

    /// All keys that match this regular expression. If these are all objects of the namespace, the command
    /// asks first.
    #[arg(long, conflicts_with = "keys", value_name = "REGEX")]
    regex: Option<String>,

    /// All objects of the namespace. The command asks first.
    #[arg(long, conflicts_with_all = ["keys", "prefix", "regex"])]
    all: bool,

    /// Remove leased objects too, where leases refuse removal.
    #[arg(long)]
    force: bool,

    /// Do not ask, even if all objects of the namespace match.
    #[arg(short, long)]
    yes: bool,

    /// Remove nothing: list the objects that would be removed.
    #[arg(short = 'n', long, conflicts_with = "yes")]
    dry_run: bool,

    #[command(flatten)]
    client: ClientArgs,
}

/// Removes the named objects, and reports their number.
pub(crate) async fn run(rm: Rm, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let keys = rm.keys.iter().map(|text| key(text)).collect::<Result<Vec<_>, _>>()?;
    let options = DeleteOptions { force: rm.force };
    let store = StoreClient::connect(rm.client, context).await?;
    let pattern = match (rm.prefix, rm.regex) {
        (Some(prefix), _) => Some(Pattern::Prefix(prefix.into_vec())),
        (None, Some(regex)) => Some(Pattern::Regex(regex)),
        (None, None) => rm.all.then_some(Pattern::All),
    };
    if rm.dry_run {
        dry_run(&keys, pattern, &store, console).await?;
        store.close().await;
        return Ok(STATUS_OK);
    }
    let (removed, absent, failure) = match pattern {
        Some(pattern) if !rm.yes && !may_remove(&store, pattern.clone(), console).await? => {
            console.note("nothing was removed");
            store.close().await;
            return Ok(STATUS_FAILED);
        }
        Some(pattern) => {
            let deleted = store.client.delete_matching(pattern, options, store.deadline()).await;
            let deleted = deleted.map_err(|error| store.explain(&error))?;
            let nodes = deleted.unconfirmed;
            let failure = (!nodes.is_empty()).then(|| store.explain(&Error::Unconfirmed { nodes }));
            (deleted.count, 0, failure)
        }
        None => {
            let outcomes = store.client.delete(&keys, options, store.deadline()).await;
            let count = |wanted| outcomes.iter().filter(|it| **it == Ok(wanted)).count() as u64;
            let failed = outcomes.iter().find_map(|it| it.as_ref().err());
            let absent = keys.iter().zip(&outcomes).filter(|(_, it)| **it == Ok(false));
            if let [(key, _)] = absent.collect::<Vec<_>>()[..] {
                note_prefix(key, &store, console).await;
            }
            (count(true), count(false), failed.map(|error| store.explain(error)))
        }
    };
    report(removed, absent, console)?;
    store.close().await;
    match failure {
        Some(failure) => Err(failure),
        None => Ok(STATUS_OK),
    }
}

/// Whether the matching objects may be removed. If they are all objects of the namespace, the user is asked;
/// without a terminal the command fails.
async fn may_remove(store: &StoreClient, pattern: Pattern, console: &mut Console) -> Result<bool, Failure> {
    let listed = store.client.list(pattern, store.deadline()).await;
    let matching = listed.map_err(|error| store.explain(&error))?;
    let namespace = show::key(store.namespace.as_bytes());
    if matching.is_empty() {
        console.note(format!("nothing to remove: no object in namespace `{namespace}` matches"));
        return Ok(true);
    }
    let stat = store.client.stat(store.deadline()).await.map_err(|error| store.explain(&error))?;
    let of_namespace = stat.namespaces.iter().find(|it| it.name == store.namespace);
    let (count, bytes) = (matching.len() as u64, matching.iter().map(|it| it.len).sum());
    if of_namespace.is_some_and(|it| count < it.objects) {
        return Ok(true);
    }
    let all = format!("every object in namespace `{namespace}`: {}, {}", Count(count, "object"), Size(bytes));
    match console.ask(&format!("Remove {all}?")).await? {
        Some(answer) => Ok(answer),
        None => {
            let failure = Failure::new("needs_yes", format!("this would remove {all}"));
            Err(failure.hint("add `--yes` to remove them all, or use a narrower pattern"))
        }
    }
}

/// A single absent key may be meant as a prefix, which `ls` takes by position.
async fn note_prefix(key: &Key, store: &StoreClient, console: &mut Console) {
    if console.json {
        return;
    }
    let options = ListOptions { limit: Some(1), ..ListOptions::default() };
    let pattern = Pattern::Prefix(key.as_bytes().to_vec());
    // The command has succeeded; a failed list does not change that.
    let listed = store.client.list_with(pattern, &options, store.deadline()).await.unwrap_or_default();
    if !listed.is_empty() {
        let key = show::key(key.as_bytes());
        console.note(format!(
            "`{key}` is not an object, but keys begin with it: `--prefix '{key}'` removes these"
        ));
    }
}

/// Lists the objects that would be removed. Nothing keeps others from being put or removed meanwhile.
async fn dry_run(
    keys: &[Key],
    pattern: Option<Pattern>,
    store: &StoreClient,
    console: &mut Console,
) -> Result<(), Failure> {
    let items = match pattern {
        Some(pattern) => {
            let listed = store.client.list(pattern, store.deadline()).await;
            listed.map_err(|error| store.explain(&error))?
        }
        None => {
            let options = ResolveOptions { locate: true, ..ResolveOptions::default() };
            let found = store.client.resolve(keys, options, store.deadline()).await;
            let mut items = Vec::new();
            for (key, info) in keys.iter().zip(found) {
                if let Some(info) = info.map_err(|error| store.explain(&error))? {
                    let (key, replicas) = (key.clone(), info.replicas.len() as u32);
                    let (len, generation) = (info.len, info.generation);
                    let (pins, expires_in) = (Vec::new(), info.expires_in);
                    let expires_in_ms = expires_in.map(|it| it.as_millis() as u64);
                    items.push(ListItem { key, generation, len, replicas, pins, expires_in_ms });
                }
            }
            items
        }
    };
    ls::write(&items, console)?;
    if let ([], [key]) = (&items[..], keys) {
        note_prefix(key, store, console).await;
    }
    let (count, bytes) = (items.len() as u64, items.iter().map(|it| it.len).sum());
    console.note(format!("would remove {}, {}; nothing was removed", Count(count, "object"), Size(bytes)));
    Ok(())
}

fn report(removed: u64, absent: u64, console: &mut Console) -> Result<(), Failure> {
    if console.json {
        return console.value(&json!({ "removed": removed, "absent": absent }));
    }
    let absent = match absent {
        0 => String::new(),
        1 => ", 1 was absent".to_owned(),
        _ => format!(", {absent} were absent"),
    };
    console.text(format!("removed {removed}{absent}"))
}
