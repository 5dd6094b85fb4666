//! The memory when nobody does anything any more: every byte belongs to an object that can be listed.

use std::time::Duration;

use tiffin_client::{Client, Deadline, DeleteOptions, Error, Pattern, Stat};
use tiffin_core::extent::room_for;
use tokio::time::{Instant, interval};

use super::tally::Rest;

/// How long what the dead held may take to come back. The kernel tells of a death at once, and a node tells
/// its master within a heartbeat.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(15);
/// How long it may take when it is known already that something is wrong.
const HOPELESS_TIME_MAX: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(50);
const CALL_TIME: Duration = Duration::from_secs(10);

/// Whose memory is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scope<'a> {
    /// All nodes: the store is ours alone.
    Nodes(usize),
    /// One namespace: others use the store too.
    Namespace(&'a str),
}

/// Compares memory with live objects, then removes these and looks again. What is not right at once may
/// become so for a while; what is told is the last that was seen.
pub(crate) async fn look(client: &Client, scope: Scope<'_>) -> Result<Rest, Error> {
    let mut rest = settled(client, scope, SETTLE_TIME_MAX, Rest::is_exact).await?;
    let deadline = || Deadline::after(CALL_TIME);
    client.delete_matching(Pattern::All, DeleteOptions { force: true }, deadline()).await?;
    let left = |it: &Rest| it.in_use + it.reserved + it.in_view;
    let time = if rest.is_exact() { SETTLE_TIME_MAX } else { HOPELESS_TIME_MAX };
    rest.left = left(&settled(client, scope, time, |it| left(it) == 0).await?);
    Ok(rest)
}

async fn settled(
    client: &Client,
    scope: Scope<'_>,
    time: Duration,
    is_good: impl Fn(&Rest) -> bool,
) -> Result<Rest, Error> {
    let end = Instant::now() + time;
    let mut looks = interval(LOOK_EVERY);
    loop {
        looks.tick().await;
        let rest = once(client, scope).await?;
        match rest {
            Some(rest) if is_good(&rest) || Instant::now() >= end => return Ok(rest),
            None if Instant::now() >= end => {
                let what = "a node that was started again is not there".to_owned();
                return Err(Error::Unreachable { what });
            }
            _ => {}
        }
    }
}

/// None while nodes are missing.
async fn once(client: &Client, scope: Scope<'_>) -> Result<Option<Rest>, Error> {
    let deadline = || Deadline::after(CALL_TIME);
    let items = client.list(Pattern::All, deadline()).await?;
    let stat = client.stat(deadline()).await?;
    let live = items.iter().map(|it| room_for(it.len).unwrap_or(u64::MAX).saturating_mul(it.replicas.into()));
    let rest = Rest { objects: items.len() as u64, live: live.sum(), ..Rest::default() };
    Ok(match scope {
        Scope::Nodes(count) => nodes(&stat, count, rest),
        Scope::Namespace(name) => Some(namespace(&stat, name, rest)),
    })
}

fn nodes(stat: &Stat, count: usize, rest: Rest) -> Option<Rest> {
    let is_complete = stat.nodes.len() == count && stat.nodes.iter().all(|node| node.alive && node.owed == 0);
    let sum = |part: fn(&tiffin_client::Usage) -> u64| stat.nodes.iter().map(|node| part(&node.usage)).sum();
    is_complete.then(|| Rest {
        in_use: sum(|usage| usage.committed),
        reserved: sum(|usage| usage.granted),
        in_view: sum(|usage| usage.held),
        ..rest
    })
}

fn namespace(stat: &Stat, name: &str, rest: Rest) -> Rest {
    match stat.namespaces.iter().find(|it| it.name == name) {
        Some(it) => Rest { in_use: it.used.saturating_sub(it.granted), reserved: it.granted, ..rest },
        None => rest,
    }
}
