//! The open sessions of a store: see [`sessions`](super::sessions).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tiffin_client::{Key, Reserved};

use super::arguments::KeyArg;
use super::codes;
use crate::process::PerProcess;

/// The maximum number of open sessions of each kind in one store.
pub(super) const SESSIONS_MAX: usize = 1 << 16;
/// The maximum number of separate ranges that one put session has written.
const RANGES_MAX: usize = 1 << 16;
/// The maximum number of zeros per write.
pub(super) const ZEROS_MAX: u64 = 1 << 20;

/// The sessions of one store.
pub(crate) struct Sessions(PerProcess<Here>);

#[derive(Default)]
pub(super) struct Here {
    pub(super) reading: Mutex<BTreeMap<Key, Reading>>,
    pub(super) writing: Mutex<BTreeMap<Key, Arc<Writing>>>,
    /// The number of entries in `writing`, so that other calls need no lock.
    pub(super) writing_count: AtomicUsize,
}

/// The object of a get session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) len: u64,
    pub(super) generation: tiffin_client::Generation,
}

/// The reserved space of a put session, and its written ranges: start to end.
pub(super) struct Writing {
    pub(super) reserved: Reserved,
    pub(super) written: Mutex<BTreeMap<u64, u64>>,
    /// An upsert of this store has stored another object under the key: this one has no effect any more.
    is_preempted: AtomicBool,
}

impl Default for Sessions {
    fn default() -> Self {
        Self(PerProcess::new())
    }
}

impl Sessions {
    pub(super) fn here(&self) -> &Here {
        let made = self.0.get_or_try(|| Ok::<_, Infallible>(Here::default()));
        made.unwrap_or_else(|never| match never {})
    }

    /// Whether a put session of this store will store the key.
    pub(super) fn is_writing(&self, key: &Key) -> bool {
        self.0.here().is_some_and(|here| {
            here.writing_count.load(Ordering::Relaxed) > 0 && has_live(&lock(&here.writing), key)
        })
    }

    /// An upsert has stored the key.
    pub(super) fn preempt(&self, key: &Key) {
        if let Some(here) = self.0.here()
            && let Some(session) = lock(&here.writing).get(key)
        {
            session.is_preempted.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a put session of this store is open.
    pub(super) fn has_writing(&self) -> bool {
        self.0.here().is_some_and(|here| here.writing_count.load(Ordering::Relaxed) > 0)
    }

    /// The codes with "not ready" in place of "not found" for keys of open put sessions.
    pub(super) fn refine(&self, keys: &[KeyArg], mut codes: Vec<i64>) -> Vec<i64> {
        let Some(here) = self.0.here() else { return codes };
        if here.writing_count.load(Ordering::Relaxed) > 0 {
            let writing = lock(&here.writing);
            for (key, code) in keys.iter().zip(&mut codes) {
                let is_open = |key: Key| has_live(&writing, &key);
                if *code == codes::OBJECT_NOT_FOUND && key.key().is_some_and(is_open) {
                    *code = codes::REPLICA_IS_NOT_READY;
                }
            }
        }
        codes
    }
}

impl Here {
    pub(super) fn take_writing(&self, key: &Key) -> Option<Arc<Writing>> {
        let mut writing = lock(&self.writing);
        let taken = writing.remove(key);
        self.writing_count.store(writing.len(), Ordering::Relaxed);
        taken
    }

    /// Opens a session. Another thread may have opened a session, or reached the limit, during the
    /// reservation.
    pub(super) fn add_writing(&self, reserved: Reserved) -> i64 {
        let mut writing = lock(&self.writing);
        if writing.contains_key(reserved.key()) {
            return codes::INVALID_PARAMS;
        }
        if writing.len() >= SESSIONS_MAX {
            return codes::NO_AVAILABLE_HANDLE;
        }
        let key = reserved.key().clone();
        writing.insert(key, Arc::new(Writing::new(reserved)));
        self.writing_count.store(writing.len(), Ordering::Relaxed);
        codes::OK
    }
}

fn has_live(writing: &BTreeMap<Key, Arc<Writing>>, key: &Key) -> bool {
    writing.get(key).is_some_and(|it| !it.is_preempted())
}

impl Writing {
    fn new(reserved: Reserved) -> Self {
        Self { reserved, written: Mutex::default(), is_preempted: AtomicBool::new(false) }
    }

    /// Whether an upsert of this store has taken the key over.
    pub(super) fn is_preempted(&self) -> bool {
        self.is_preempted.load(Ordering::Relaxed)
    }

    /// Whether these ranges can be added.
    pub(super) fn has_space(&self, count: usize) -> bool {
        lock(&self.written).len().saturating_add(count) <= RANGES_MAX
    }

    /// Adds a range, and merges it with those that it touches.
    pub(super) fn add(&self, mut start: u64, mut end: u64) {
        let mut written = lock(&self.written);
        while let Some((at, until)) = written.range(..=end).next_back().map(|(at, until)| (*at, *until)) {
            if until < start {
                break;
            }
            written.remove(&at);
            (start, end) = (start.min(at), end.max(until));
        }
        if start < end {
            written.insert(start, end);
        }
    }

    /// The ranges that were not written, in steps.
    pub(super) fn gaps(&self) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut at = 0;
        let written = lock(&self.written).clone();
        for (start, end) in written.into_iter().chain([(self.reserved.len(), 0)]) {
            while at < start {
                let step = (start - at).min(ZEROS_MAX);
                gaps.push((at, step));
                at += step;
            }
            at = at.max(end);
        }
        gaps
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each use makes one change, so that a poisoned lock is usable.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
