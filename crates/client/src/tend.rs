//! Background task of a client: releases reservations, ends views, keeps leases, sends heartbeats.
//!
//! **Invariant:** a view is ended at most once. If `EndViews` may have been lost, the client opens a new
//! connection and lists its views there.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tiffin_session::{Backoff, BackoffLimits};
use tiffin_types::message::{ClientToMaster, ClientToNode, Ping, Reply};
use tiffin_types::{Location, SegmentId, SlotRef};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use crate::chores::Chore;
use crate::inner::{Inner, Master, locations};
use crate::link::random;
use crate::{Deadline, Error};

/// Time limit of one attempt.
const TRY_TIME_MAX: Duration = Duration::from_secs(5);
/// Maximum number of attempts.
const TRIES_MAX: u32 = 12;
/// The pauses between attempts.
const CHORE_BACKOFF: BackoffLimits = BackoffLimits { free: 0, first_ms: 100, longest_ms: 10_000 };
/// The heartbeat interval if the master does not set one.
const BEAT: Duration = Duration::from_secs(5);
/// Maximum number of chores in one message.
const CHORES_MAX: usize = 4096;

#[derive(Debug, Default)]
struct PerNode {
    aborts: Vec<SlotRef>,
}

/// Runs until the client is dropped.
pub(crate) async fn run(client: Weak<Inner>, mut chores: mpsc::UnboundedReceiver<Chore>) {
    let master = client.upgrade().and_then(|inner| inner.current_master());
    let heartbeat = master.map(|it| it.heartbeat).unwrap_or_default();
    let period = if heartbeat.is_zero() { BEAT } else { heartbeat };
    let mut beat = tokio::time::interval(period);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut batch = Vec::new();
    loop {
        let master = client.upgrade().and_then(|inner| inner.current_master());
        tokio::select! {
            () = ended(master) => {
                let Some(inner) = client.upgrade() else { return };
                // If that fails, the next heartbeat tries again.
                care_for_leases(&inner);
            }
            received = chores.recv_many(&mut batch, CHORES_MAX) => {
                let Some(inner) = client.upgrade().filter(|_| received > 0) else { return };
                for (epoch, leases) in releases(&batch) {
                    inner.runtime.spawn(release(Weak::clone(&client), epoch, leases));
                }
                for (segment, work) in sort(batch.drain(..), &inner) {
                    inner.runtime.spawn(work_off(Weak::clone(&client), segment, work));
                }
            }
            _ = beat.tick() => {
                let Some(inner) = client.upgrade() else { return };
                inner.nodes.prune();
                care_for_leases(&inner);
                for segment in inner.nodes.unsettled_views().into_iter().filter(|_| !inner.is_closed()) {
                    inner.runtime.spawn(settle_views(Weak::clone(&client), segment));
                }
                inner.report_uses();
                // On a broken connection there is nothing to send; the next call opens a new one.
                if let Some(master) = inner.current_master() {
                    let deadline = Deadline::after(TRY_TIME_MAX);
                    let (measured, reported) = inner.measured.report();
                    let request = ClientToMaster::Ping(Ping { measured });
                    let client = Weak::clone(&client);
                    inner.runtime.spawn(async move {
                        match master.connection.call(&request, deadline.instant()).await {
                            Ok(_) => {
                                if let Some(inner) = client.upgrade() {
                                    inner.measured.arrived(reported);
                                }
                            }
                            Err(error) => tracing::debug!(%error, "heartbeat to the master failed"),
                        }
                    });
                }
            }
        }
    }
}

/// Reconnects if this client has leases: they stay valid only while the master sees the client, or sees it
/// again soon.
fn care_for_leases(inner: &Arc<Inner>) {
    let is_seen = inner.current_master().is_some() && inner.leases.owed().is_none();
    if inner.leases.is_empty() || is_seen || inner.is_closed() {
        return;
    }
    let client = Arc::downgrade(inner);
    inner.runtime.spawn(async move {
        let Some(inner) = client.upgrade() else { return };
        if let Err(error) = inner.keep_leases(Deadline::after(TRY_TIME_MAX)).await {
            tracing::debug!(%error, "cannot report leases to the master; trying again");
        }
    });
}

/// Waits for the end of a connection, if there is one.
async fn ended(master: Option<Arc<Master>>) {
    match master {
        Some(master) => master.connection.closed().await,
        None => std::future::pending().await,
    }
}

fn sort(chores: impl Iterator<Item = Chore>, inner: &Inner) -> BTreeMap<SegmentId, PerNode> {
    let mut sorted: BTreeMap<SegmentId, PerNode> = BTreeMap::new();
    for chore in chores {
        match chore {
            Chore::Abort(all) => {
                all.into_iter()
                    .for_each(|it| sorted.entry(it.segment).or_default().aborts.push(it.slot_ref()));
            }
            Chore::Late(Reply::Reserved(reserved)) => {
                inner.nodes.learn(&reserved.nodes);
                for location in locations(&reserved) {
                    sorted.entry(location.segment).or_default().aborts.push(location.slot_ref());
                }
            }
            Chore::Late(_) | Chore::Release { .. } => {}
            Chore::EndViews(segment) => _ = sorted.entry(segment).or_default(),
        }
    }
    sorted
}

/// The leases to end, by the epoch of the master that granted them.
fn releases(chores: &[Chore]) -> BTreeMap<u64, Vec<u64>> {
    let mut releases: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for chore in chores {
        if let Chore::Release { epoch, lease } = chore {
            releases.entry(*epoch).or_default().push(*lease);
        }
    }
    releases
}

/// Ends leases, and retries until the master has confirmed it. Ending one twice is harmless.
async fn release(client: Weak<Inner>, epoch: u64, leases: Vec<u64>) {
    let mut backoff = Backoff::new(CHORE_BACKOFF);
    for _ in 0..TRIES_MAX {
        // A client that was dropped or closed has disconnected, and has no leases.
        let Some(inner) = client.upgrade().filter(|it| !it.is_closed()) else { return };
        match inner.end_leases(epoch, leases.clone(), Deadline::after(TRY_TIME_MAX)).await {
            Ok(()) => return,
            Err(error) => tracing::debug!(%error, "cannot end leases; trying again"),
        }
        drop(inner);
        tokio::time::sleep(Duration::from_millis(backoff.failed(random()))).await;
    }
}

/// Reconnects to a node, so that it receives the list of views. After a failure the next heartbeat retries.
async fn settle_views(client: Weak<Inner>, segment: SegmentId) {
    let Some(inner) = client.upgrade() else { return };
    if let Err(error) = try_once(&inner, segment, &mut PerNode::default()).await {
        tracing::debug!(%segment, %error, "cannot send the list of views to the node; trying again");
    }
}

/// Does the chores of one node, and retries until the node has confirmed them or has ended.
async fn work_off(client: Weak<Inner>, segment: SegmentId, mut work: PerNode) {
    let mut backoff = Backoff::new(CHORE_BACKOFF);
    for _ in 0..TRIES_MAX {
        let Some(inner) = client.upgrade() else { return };
        match try_once(&inner, segment, &mut work).await {
            Ok(()) => return,
            Err(error) => tracing::debug!(%segment, %error, "cannot send chores to the node; trying again"),
        }
        let is_gone = inner.nodes.last_route(segment).is_some_and(|route| route.is_node_gone());
        // A closed client has disconnected, and has no reservations there.
        if is_gone || !inner.nodes.knows(segment) {
            break;
        }
        drop(inner);
        tokio::time::sleep(Duration::from_millis(backoff.failed(random()))).await;
    }
    // A node that has ended holds nothing of this client. A node that could not be reached for so long
    // has noticed that the client is unreachable, too.
    if let Some(inner) = client.upgrade() {
        // If its memory outlives it, it may come back with our reservations.
        inner.reservations.owe([segment]);
        forget(&inner, segment, &work.aborts);
    }
}

async fn try_once(inner: &Inner, segment: SegmentId, work: &mut PerNode) -> Result<(), Error> {
    let deadline = Deadline::after(TRY_TIME_MAX);
    let route = inner.nodes.route(segment, deadline).await?;
    let ends = inner.nodes.take_view_ends(segment, &route);
    if !ends.is_empty() {
        route.connection.call(&ClientToNode::EndViews(ends), deadline.instant()).await?;
    }
    if !work.aborts.is_empty() {
        let request = ClientToNode::Abort(work.aborts.clone());
        route.connection.call(&request, deadline.instant()).await?;
        forget(inner, segment, &work.aborts);
        work.aborts.clear();
    }
    Ok(())
}

fn forget(inner: &Inner, segment: SegmentId, slot_refs: &[SlotRef]) {
    for slot_ref in slot_refs {
        inner.reservations.remove(Location { segment, slot: slot_ref.slot, stamp: slot_ref.stamp });
    }
}
