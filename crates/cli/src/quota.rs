//! `tiffin quota`: what a namespace may hold, and for how long.

use std::time::Duration;

use bytesize::ByteSize;
use clap::ValueEnum as _;
use serde_json::json;
use tiffin_client::{Demotion, NamespaceStat, Policy};
use tiffin_server::config::ClientArgs;

use crate::Context;
use crate::console::{Console, Failure, STATUS_OK};
use crate::reach::Reached;
use crate::show;

/// Shows what the namespace holds and may hold, or limits it.
///
/// What the namespace holds already stays; puts that would exceed its quota fail, or wait. A new quota ends
/// the limit of time, unless that is given again.
#[derive(Debug, clap::Args)]
pub(crate) struct Quota {
    /// The most memory that the namespace may hold, each copy counted.
    #[arg(long, value_name = "SIZE")]
    set: Option<ByteSize>,

    /// No quota any more.
    #[arg(long, conflicts_with = "set")]
    none: bool,

    /// Drop samples that nobody has leased for this long.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    max_hold: Option<Duration>,

    /// What becomes of its objects when memory is short and their nodes have disks.
    #[arg(long, value_enum)]
    demotion: Option<Demote>,

    #[command(flatten)]
    client: ClientArgs,
}

/// See [`Demotion`].
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Demote {
    /// They go to disk before their memory is used again.
    OnPressure,
    /// Every object has a copy on disk soon after it was put.
    WriteThrough,
    /// Nothing goes to disk.
    Never,
}

impl From<Demote> for Demotion {
    fn from(it: Demote) -> Self {
        match it {
            Demote::OnPressure => Self::OnPressure,
            Demote::WriteThrough => Self::WriteThrough,
            Demote::Never => Self::Never,
        }
    }
}

impl From<Demotion> for Demote {
    fn from(it: Demotion) -> Self {
        match it {
            Demotion::OnPressure => Self::OnPressure,
            Demotion::WriteThrough => Self::WriteThrough,
            Demotion::Never => Self::Never,
        }
    }
}

/// Sets limits where some are given, and shows how things stand.
pub(crate) async fn run(quota: Quota, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let store = Reached::connect(quota.client, context).await?;
    let changes = quota.set.is_some() || quota.none || quota.max_hold.is_some();
    if changes || quota.demotion.is_some() {
        let max_hold_ms = quota.max_hold.map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX));
        let before = current(&store).await?;
        let kept = if quota.set.is_none() && !quota.none { before.quota } else { None };
        let max_hold_ms = max_hold_ms.or(before.max_hold_ms.filter(|_| !changes));
        let demotion = Some(quota.demotion.map_or(before.demotion, Demotion::from));
        let policy = Policy { quota: quota.set.map(|it| it.as_u64()).or(kept), max_hold_ms, demotion };
        store.client.set_policy(policy, store.deadline()).await.map_err(|error| store.explain(&error))?;
    }
    let now = current(&store).await?;
    if console.json {
        console.value(&json!({
            "namespace": store.namespace,
            "used": now.used,
            "reserved": now.granted,
            "quota": now.quota,
            "max_hold_ms": now.max_hold_ms,
            "demotion": Demote::from(now.demotion).to_possible_value().map(|it| it.get_name().to_owned()),
            "waiting": now.waiting,
        }))?;
    } else {
        let limit = now.quota.map_or_else(|| "no quota".to_owned(), |it| format!("of {}", show::size(it)));
        let namespace = show::key(store.namespace.as_bytes());
        let hold = now.max_hold_ms.map(|ms| humantime::format_duration(Duration::from_millis(ms)));
        let hold =
            hold.map_or_else(String::new, |it| format!("; samples that nobody leases wait {it} at most"));
        console.text(format!("namespace `{namespace}` holds {}, {limit}{hold}", show::size(now.used)))?;
    }
    store.close().await;
    Ok(STATUS_OK)
}

/// How this client's namespace is now.
async fn current(store: &Reached) -> Result<NamespaceStat, Failure> {
    let stat = store.client.stat(store.deadline()).await.map_err(|error| store.explain(&error))?;
    Ok(stat.namespaces.into_iter().find(|it| it.name == store.namespace).unwrap_or_default())
}
