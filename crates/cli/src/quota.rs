//! `tiffin quota`: limits of a namespace.

use std::time::Duration;

use bytesize::ByteSize;
use clap::ValueEnum as _;
use serde_json::json;
use tiffin_client::{Demotion, NamespaceStat, PolicyChange};
use tiffin_server::config::{self, ClientArgs};

use crate::Context;
use crate::console::{Console, Failure, STATUS_OK};
use crate::show;
use crate::store_client::StoreClient;

/// Shows the usage and the limits of the namespace, or changes limits.
///
/// Existing objects stay; puts that would exceed the quota fail, or wait. Only the named limits change.
#[derive(Debug, clap::Args)]
pub(crate) struct Quota {
    /// Maximum memory of the namespace, each copy counted.
    #[arg(long, value_name = "SIZE", value_parser = config::size)]
    set: Option<ByteSize>,

    /// Remove the quota.
    #[arg(long, conflicts_with = "set")]
    none: bool,

    /// Memory that other namespaces leave to this one: it can always be had.
    #[arg(long, value_name = "SIZE", value_parser = config::size)]
    guaranteed: Option<ByteSize>,

    /// Remove the guaranteed minimum.
    #[arg(long, conflicts_with = "guaranteed")]
    no_guaranteed: bool,

    /// Drop samples that were not leased for this long.
    #[arg(long, value_name = "TIME", value_parser = config::duration)]
    max_hold: Option<Duration>,

    /// Remove the limit of `--max-hold`.
    #[arg(long, conflicts_with = "max_hold")]
    no_max_hold: bool,

    /// Whether its objects are demoted to disks when memory is short.
    #[arg(long, value_enum)]
    demotion: Option<Demote>,

    #[command(flatten)]
    client: ClientArgs,
}

/// See [`Demotion`].
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Demote {
    /// Objects are written to disk before their memory is reused.
    OnPressure,
    /// Every object is written to disk soon after the put.
    WriteThrough,
    /// Objects are not written to disk.
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

/// Sets the given limits, and shows the current state.
pub(crate) async fn run(quota: Quota, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    if quota.max_hold.is_some_and(|it| it < Duration::from_millis(1)) {
        let failure = Failure::new("invalid", "--max-hold is less than a millisecond");
        return Err(failure.hint("give a longer time, or `--no-max-hold` for no limit"));
    }
    let store = StoreClient::connect(quota.client, context).await?;
    let mut change = PolicyChange::NONE;
    if quota.set.is_some() || quota.none {
        change = change.quota(quota.set.map(|it| it.as_u64()));
    }
    if quota.guaranteed.is_some() || quota.no_guaranteed {
        change = change.guaranteed(quota.guaranteed.map(|it| it.as_u64()));
    }
    if quota.max_hold.is_some() || quota.no_max_hold {
        let milliseconds = |it: Duration| u64::try_from(it.as_millis()).unwrap_or(u64::MAX);
        change = change.max_hold_ms(quota.max_hold.map(milliseconds));
    }
    if let Some(demotion) = quota.demotion {
        change = change.demotion(Some(demotion.into()));
    }
    if change != PolicyChange::NONE {
        store.client.set_policy(change, store.deadline()).await.map_err(|error| store.explain(&error))?;
    }
    let now = current(&store).await?;
    if console.json {
        console.value(&json!({
            "namespace": store.namespace,
            "used": now.used,
            "reserved": now.granted,
            "held": now.held,
            "quota": now.quota,
            "guaranteed": now.guaranteed,
            "max_hold_ms": now.max_hold_ms,
            "demotion": Demote::from(now.demotion).to_possible_value().map(|it| it.get_name().to_owned()),
            "waiting": now.waiting,
        }))?;
    } else {
        let limit = now.quota.map_or_else(|| "no quota".to_owned(), |it| format!("of {}", show::size(it)));
        let namespace = show::key(store.namespace.as_bytes());
        let hold = now.max_hold_ms.map(|ms| humantime::format_duration(Duration::from_millis(ms)));
        let hold =
            hold.map_or_else(String::new, |it| format!("; samples are dropped after {it} without a lease"));
        let guaranteed = now.guaranteed.map(|it| format!(", {} guaranteed", show::size(it)));
        let (used, guaranteed) = (show::size(now.used), guaranteed.unwrap_or_default());
        console.text(format!("namespace `{namespace}` holds {used}, {limit}{guaranteed}{hold}"))?;
    }
    store.close().await;
    Ok(STATUS_OK)
}

/// The state of this client's namespace.
async fn current(store: &StoreClient) -> Result<NamespaceStat, Failure> {
    let stat = store.client.stat(store.deadline()).await.map_err(|error| store.explain(&error))?;
    Ok(stat.namespaces.into_iter().find(|it| it.name == store.namespace).unwrap_or_default())
}
