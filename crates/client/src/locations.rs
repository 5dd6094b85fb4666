//! The cached locations of a client, behind a lock. The decisions are in [`LocationCache`].

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tiffin_session::LocationCache;
use tiffin_types::mutant::Mutant;

/// Objects whose locations are cached. Each costs about two hundred bytes.
const CACHED_MAX: usize = 1 << 17;
/// Maximum number of uses in one report.
pub(crate) const REPORTED_MAX: usize = 4096;

/// The cached locations of a client, for all of its handles.
pub(crate) struct Locations {
    cache: Mutex<LocationCache>,
    /// A task reports uses.
    pub(crate) has_reporter: AtomicBool,
}

impl Locations {
    pub(crate) fn new(seed: u64) -> Self {
        let cache = Mutex::new(LocationCache::new(CACHED_MAX, seed, Mutant::None));
        Self { cache, has_reporter: AtomicBool::new(false) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LocationCache> {
        // A panic leaves no harmful state: a cached location may be wrong at any time.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
