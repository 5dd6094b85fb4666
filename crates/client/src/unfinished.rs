//! Work that ends by itself, and that its owners may not ask about: the queued gets of a client.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Work that ends by itself.
pub(crate) trait Work: Send + Sync {
    /// Takes note of what has ended. True if all has.
    fn poll(&self) -> bool;
}

/// The work of a client whose owners still exist.
#[derive(Default)]
pub(crate) struct Unfinished(Mutex<Vec<Weak<dyn Work>>>);

impl Unfinished {
    pub(crate) fn add(&self, work: Weak<dyn Work>) {
        let mut all = self.lock();
        all.retain(|it| it.strong_count() > 0);
        all.push(work);
    }

    /// Takes note of what has ended, so that it gives way to other work.
    pub(crate) fn poll(&self) {
        let all: Vec<Arc<dyn Work>> = self.lock().iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|it| _ = it.poll());
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<dyn Work>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
