//! `tiffin rm`: removes objects.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use serde_json::json;
use tiffin_client::{DeleteOptions, Error};
use tiffin_core::message::Pattern;
use tiffin_server::config::ClientArgs;

use crate::Context;
use crate::console::{Console, Failure, STATUS_OK};
use crate::reach::{Reached, key};

/// Removes objects. When it succeeds nobody can read them any more. Removing what is not there succeeds.
#[derive(Debug, clap::Args)]
pub(crate) struct Rm {
    /// The keys.
    #[arg(required_unless_present_any = ["prefix", "regex"], value_name = "KEY")]
    keys: Vec<OsString>,

    /// All keys that start so; an empty one is all there are.
    #[arg(long, conflicts_with_all = ["keys", "regex"], value_name = "TEXT")]
    prefix: Option<OsString>,

    /// All keys in which this regular expression is found.
    #[arg(long, conflicts_with = "keys", value_name = "REGEX")]
    regex: Option<String>,

    /// Even if leased, where leases refuse removal.
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    client: ClientArgs,
}

/// Removes what is named and says how much it was.
pub(crate) async fn run(rm: Rm, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let keys = rm.keys.iter().map(|text| key(text)).collect::<Result<Vec<_>, _>>()?;
    let options = DeleteOptions { force: rm.force };
    let store = Reached::connect(rm.client, context).await?;
    let pattern = match (rm.prefix, rm.regex) {
        (Some(prefix), _) => Some(Pattern::Prefix(prefix.into_vec())),
        (None, Some(regex)) => Some(Pattern::Regex(regex)),
        (None, None) => None,
    };
    let (removed, absent, failure) = match pattern {
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

fn report(removed: u64, absent: u64, console: &mut Console) -> Result<(), Failure> {
    if console.json {
        return console.value(&json!({ "removed": removed, "absent": absent }));
    }
    let absent = if absent == 0 { String::new() } else { format!(", {absent} were not there") };
    console.text(format!("removed {removed}{absent}"))
}
