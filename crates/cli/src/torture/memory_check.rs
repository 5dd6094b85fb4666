//! Checks the memory after all workers have stopped: every byte belongs to an object that can be listed.

use std::time::Duration;

use tiffin_client::{Client, Deadline, DeleteOptions, Error, Pattern, Stat};
use tiffin_types::space_for;
use tokio::time::{Instant, interval};

use super::tally::MemoryCheck;

/// Time limit for the release of memory of dead processes. The kernel reports a death at once, and a node
/// informs its master within a heartbeat.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(15);
/// The same when an error was found already.
const FAILED_TIME_MAX: Duration = Duration::from_secs(1);
const CHECK_EVERY: Duration = Duration::from_millis(50);
const CALL_TIME: Duration = Duration::from_secs(10);

/// The memory to check.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Scope<'a> {
    /// All nodes: no other clients use the store.
    Nodes(usize),
    /// One namespace: other clients use the store too.
    Namespace(&'a str),
}

/// Compares memory with existing objects, then deletes these and checks again. Waits for a while until the
/// numbers match; returns the last ones.
pub(crate) async fn check_memory(client: &Client, scope: Scope<'_>) -> Result<MemoryCheck, Error> {
    let mut rest = wait_until(client, scope, SETTLE_TIME_MAX, MemoryCheck::is_exact).await?;
    let deadline = || Deadline::after(CALL_TIME);
    client.delete_matching(Pattern::All, DeleteOptions { force: true }, deadline()).await?;
    let left = |it: &MemoryCheck| it.in_use + it.reserved + it.in_view;
    let time = if rest.is_exact() { SETTLE_TIME_MAX } else { FAILED_TIME_MAX };
    rest.left = left(&wait_until(client, scope, time, |it| left(it) == 0).await?);
    Ok(rest)
}

async fn wait_until(
    client: &Client,
    scope: Scope<'_>,
    time: Duration,
    is_correct: impl Fn(&MemoryCheck) -> bool,
) -> Result<MemoryCheck, Error> {
    let end = Instant::now() + time;
    let mut checks = interval(CHECK_EVERY);
    loop {
        checks.tick().await;
        let rest = once(client, scope).await?;
        match rest {
            Some(rest) if is_correct(&rest) || Instant::now() >= end => return Ok(rest),
            None if Instant::now() >= end => {
                let what = "a restarted node is missing".to_owned();
                return Err(Error::Unreachable { what });
            }
            _ => {}
        }
    }
}

/// None while nodes are missing.
async fn once(client: &Client, scope: Scope<'_>) -> Result<Option<MemoryCheck>, Error> {
    let deadline = || Deadline::after(CALL_TIME);
    let items = client.list(Pattern::All, deadline()).await?;
    let stat = client.stat(deadline()).await?;
    let live =
        items.iter().map(|it| space_for(it.len).unwrap_or(u64::MAX).saturating_mul(it.replicas.into()));
    let rest = MemoryCheck { objects: items.len() as u64, live: live.sum(), ..MemoryCheck::default() };
    Ok(match scope {
        Scope::Nodes(count) => nodes(&stat, count, rest),
        Scope::Namespace(name) => Some(namespace(&stat, name, rest)),
    })
}

fn nodes(stat: &Stat, count: usize, rest: MemoryCheck) -> Option<MemoryCheck> {
    let is_complete = stat.nodes.len() == count && stat.nodes.iter().all(|node| node.alive && node.owed == 0);
    let sum = |part: fn(&tiffin_client::Usage) -> u64| stat.nodes.iter().map(|node| part(&node.usage)).sum();
    is_complete.then(|| MemoryCheck {
        in_use: sum(|usage| usage.committed),
        reserved: sum(|usage| usage.granted),
        in_view: sum(|usage| usage.held),
        ..rest
    })
}

fn namespace(stat: &Stat, name: &str, rest: MemoryCheck) -> MemoryCheck {
    match stat.namespaces.iter().find(|it| it.name == name) {
        Some(it) => MemoryCheck { in_use: it.used.saturating_sub(it.granted), reserved: it.granted, ..rest },
        None => rest,
    }
}
