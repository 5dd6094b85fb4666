//! Work that ends by itself, and that its owners may not ask about: the queued gets of a client.
//!
//! While there is such work, a task polls it, so that what has ended releases what it holds.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

/// The pause between two polls of the task. A caller that waits for its own work polls that more often.
const PAUSE: Duration = Duration::from_millis(10);

/// Work that ends by itself.
pub(crate) trait Work: Send + Sync {
    /// Releases what has ended. True if all has.
    fn poll(&self) -> bool;

    /// Whether all had ended at the last poll.
    fn has_ended(&self) -> bool;
}

/// The work of a client whose owners still exist.
#[derive(Clone, Default)]
pub(crate) struct Unfinished(Arc<Mutex<List>>);

#[derive(Default)]
struct List {
    work: Vec<Weak<dyn Work>>,
    /// Whether a task polls it.
    is_polled: bool,
}

impl Unfinished {
    /// Adds work that has not ended. The same work may be added again.
    pub(crate) fn add(&self, work: Weak<dyn Work>, runtime: &Handle) {
        let mut list = self.lock();
        list.work.push(work);
        if !std::mem::replace(&mut list.is_polled, true) {
            runtime.spawn(poll_until_ended(self.clone()));
        }
    }

    /// Releases what has ended.
    pub(crate) fn poll(&self) {
        let work: Vec<Arc<dyn Work>> = self.lock().work.iter().filter_map(Weak::upgrade).collect();
        work.iter().for_each(|it| _ = it.poll());
        // Dropped after the lock: if these are the last owners, that may take long.
        let mut owned = Vec::with_capacity(work.len());
        self.lock().work.retain(|it| {
            let Some(work) = it.upgrade() else { return false };
            let has_ended = work.has_ended();
            owned.push(work);
            !has_ended
        });
    }

    /// Whether there is nothing to poll. The task stops then, and the next work starts another one.
    fn stop_if_empty(&self) -> bool {
        let mut list = self.lock();
        list.is_polled = !list.work.is_empty();
        !list.is_polled
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn poll_until_ended(unfinished: Unfinished) {
    while !unfinished.stop_if_empty() {
        sleep(PAUSE).await;
        unfinished.poll();
    }
}
