//! The preallocated memory of a client: offers that its next small puts may use.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tiffin_session::{OfferSize, Preallocation};
use tiffin_types::Reservation;
use tokio::time::Instant;

use crate::Put;

/// The offers of a client.
#[derive(Debug)]
pub(crate) struct Offers {
    state: Mutex<Preallocation>,
    /// The origin of its times.
    start: Instant,
}

impl Offers {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::default(), start: Instant::now() }
    }

    /// Notes a put, and takes an offer for it if there is one.
    pub(crate) fn take(&self, put: &Put<'_>) -> Option<Reservation> {
        let size = size_of(put)?;
        self.lock().take(size, self.now_us())
    }

    pub(crate) fn now_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Preallocation> {
        // Each use is a single change of one size, so a panic leaves no partial state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which offers fit a put.
pub(crate) fn size_of(put: &Put<'_>) -> Option<OfferSize> {
    OfferSize::of(&put.key, put.len()?, &put.options)
}
