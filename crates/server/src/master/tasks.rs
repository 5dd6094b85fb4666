//! The tasks of a master: listeners, timer, background work, writes of the state folder, and changes of the
//! epoch.

use std::sync::Arc;
use std::time::Duration;

use tiffin_core::master::{Event, Saved};
use tiffin_rpc::Listener;
use tiffin_types::Tick;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::state::{self, Store};
use super::{Shared, ha, observe};
use crate::supervise::faults::{Point, strike};
use crate::{events, http, listen};

/// The minimum time between two pieces of background work, so that other tasks get the lock.
const WORK_REST: Duration = Duration::from_millis(1);
/// The pause after a failed write of the state folder.
const SAVE_PAUSE: Duration = Duration::from_secs(1);
/// The minimum time between two wake-ups of the core by the timer.
const TIMER_REST: Duration = Duration::from_millis(1);

/// Starts all tasks of a master. When one of them fails, all end.
pub(super) fn spawn(
    shared: &Arc<Shared>,
    listeners: Vec<Listener>,
    publisher: Option<TcpListener>,
    pages: impl IntoIterator<Item = (http::Pages, axum::Router)>,
) -> JoinSet<()> {
    let (mut tasks, mut handles) = (JoinSet::new(), Vec::new());
    let watch = &shared.supervisor;
    for listener in listeners {
        let serving = listen::serve(listener, Arc::clone(shared));
        handles.push(tasks.spawn(watch.watch("the listener", serving)));
    }
    let access = Arc::clone(shared.admission.access());
    handles.push(tasks.spawn(watch.watch("the watch over the access file", access.keep())));
    handles.push(tasks.spawn(watch.watch("the timer", run_timer(Arc::clone(shared)))));
    handles.push(tasks.spawn(watch.watch("the history", observe::run(Arc::clone(shared)))));
    handles.push(tasks.spawn(watch.watch("the background work", run_work(Arc::clone(shared)))));
    handles.push(tasks.spawn(watch.watch("the writer of the state folder", run_saves(Arc::clone(shared)))));
    handles.push(tasks.spawn(watch.watch("the change of epoch", run_restarts(Arc::clone(shared)))));
    if let Some(it) = shared.ha() {
        let election = ha::run(Arc::clone(shared), Arc::clone(it));
        handles.push(tasks.spawn(watch.watch("the election", election)));
        let confirms = ha::run_confirms(Arc::clone(shared), Arc::clone(it));
        handles.push(tasks.spawn(watch.watch("the confirmations", confirms)));
    }
    if let (Some(listener), Some(events)) = (publisher, &shared.events) {
        let publishing = events::publish(Arc::clone(events), listener);
        handles.push(tasks.spawn(watch.watch("the publisher of events", publishing)));
    }
    for (pages, router) in pages {
        handles.push(tasks.spawn(watch.watch("the pages", pages.serve(router, Arc::clone(watch)))));
    }
    let closed = Arc::clone(shared);
    tasks.spawn(Arc::clone(watch).end_on_failure(handles, move || closed.close_all()));
    tasks
}

/// Writes the newest durable state to the state folder, and tells the core.
async fn run_saves(shared: Arc<Shared>) {
    let Some(store) = shared.store.clone() else { return };
    loop {
        shared.unsaved.notified().await;
        let Some((version, saved)) = shared.lock().take_unsaved() else { continue };
        let epoch = saved.epoch;
        // A stale state is not in the file and must not count as saved: the core is being replaced.
        if save(&store, saved).await {
            shared.handle_in(epoch, Event::Persisted(version));
        }
    }
}

/// Writes a version, and retries until it succeeds. Returns `false` if it never will: a later epoch was
/// saved, or the master is stopping.
pub(super) async fn save(store: &Store, saved: Box<Saved>) -> bool {
    let saved = Arc::new(*saved);
    let mut last = None;
    loop {
        match store.write(&saved).await {
            Some(Ok(written)) => {
                if last.is_some() {
                    tracing::info!("{} is written again", store.name());
                }
                return written;
            }
            Some(Err(error)) => {
                // Once for each reason: it is tried every second.
                if last.as_ref() != Some(&error) {
                    tracing::error!(error, hint = store.hint(), "cannot write {}; retrying", store.name());
                }
                last = Some(error);
            }
            None => return false,
        }
        tokio::time::sleep(SAVE_PAUSE).await;
    }
}

/// Replaces the core when a member has served a later epoch. The new epoch is greater, and saved before it
/// is used; members and policies are kept. All peers reconnect, as after a restart of the process.
async fn run_restarts(shared: Arc<Shared>) {
    loop {
        shared.restart.notified().await;
        let (floor, mut saved) = {
            let state = shared.lock();
            let Some(floor) = state.restart else { continue };
            (floor, state.core.saved())
        };
        saved.epoch = match next_epoch(&shared, saved.epoch, floor).await {
            Some(epoch) => epoch,
            None => continue,
        };
        if let Some(store) = &shared.store
            && !save(store, Box::new(saved.clone())).await
        {
            match store {
                Store::Folder(_) => return,
                // Another master leads.
                Store::Etcd(_) => continue,
            }
        }
        shared.replace_core(saved);
    }
}

/// The next epoch after its own and that one; `None` if this master does not lead in its own any more.
async fn next_epoch(shared: &Shared, own: u64, floor: u64) -> Option<u64> {
    let Some(ha) = shared.ha() else { return Some(state::next_epoch(floor.max(own))) };
    loop {
        match ha.advance(own, floor).await {
            Ok(epoch) => return epoch,
            Err(_) => tokio::time::sleep(SAVE_PAUSE).await,
        }
    }
}

/// Lets the core do its background work in pieces. Draining a piece shows whether there is another.
async fn run_work(shared: Arc<Shared>) {
    loop {
        shared.work.notified().await;
        let mut answers = Vec::new();
        {
            let mut state = shared.lock();
            let now = shared.now();
            state.core.work(now);
            shared.drain(&mut state, now, None, &mut answers);
        }
        for (outbox, id, reply) in answers {
            outbox.reply(id, &reply);
        }
        tokio::time::sleep(WORK_REST).await;
    }
}

/// Wakes the core at the times it asks for.
async fn run_timer(shared: Arc<Shared>) {
    loop {
        strike(Point::Timer);
        let wake = {
            let mut answers = Vec::new();
            let mut state = shared.lock();
            let now = shared.now();
            state.core.handle_timeout(now);
            // No time is earlier than 0, so that draining does not wake this task itself.
            state.armed = Some(Tick(0));
            shared.drain(&mut state, now, None, &mut answers);
            state.armed = state.core.poll_timeout();
            let wake = state.armed;
            drop(state);
            for (outbox, id, reply) in answers {
                outbox.reply(id, &reply);
            }
            wake
        };
        let rested = tokio::time::sleep(TIMER_REST);
        match wake.and_then(|at| shared.started.checked_add(Duration::from_millis(at.0))) {
            Some(at) => {
                tokio::select! {
                    () = tokio::time::sleep_until(at) => {}
                    () = shared.earlier.notified() => {}
                }
            }
            None => shared.earlier.notified().await,
        }
        rested.await;
    }
}
