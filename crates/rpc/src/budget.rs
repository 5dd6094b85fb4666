//! The memory that all connections of one credential may use: for messages that arrive, and for replies that
//! their peers do not read.
//!
//! Each connection alone is bounded, but there may be thousands. Small messages need no space of a budget. A
//! large one waits for space for all of itself before its bytes are read, so that two never wait for each
//! other; then it must arrive within [`RECEIVE_TIME_MAX`]. The wait has a limit, too: the other connections
//! of the credential may send large messages without end. A request that gets no space is refused, and its
//! bytes are dropped as they arrive. A connection whose replies exceed the budget is closed: its peers do
//! not read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Maximum bytes of the large messages that arrive, and of the replies that wait.
const BYTES_MAX: usize = 256 << 20;
/// A message up to this size needs no space.
pub(crate) const SMALL_BYTES_MAX: usize = 32 << 10;
/// How long a large message waits for space.
const WAIT_TIME_MAX: Duration = Duration::from_secs(20);
/// Time limit of a large message, from the moment at which it has space.
pub(crate) const RECEIVE_TIME_MAX: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug)]
pub struct Budget {
    bytes_max: usize,
    wait_max: Duration,
    /// In KiB.
    receiving: Arc<Semaphore>,
    receiving_waited: AtomicU64,
    sending: AtomicUsize,
    sending_refused: AtomicU64,
}

/// The use of a part of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetUse {
    /// Maximum bytes.
    pub max: u64,
    /// Bytes in use.
    pub used: u64,
    /// How often a message had to wait, or a connection was closed.
    pub reached: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(BYTES_MAX, WAIT_TIME_MAX)
    }
}

impl Budget {
    /// A budget of so many bytes in each direction. A large message waits for that long.
    #[must_use]
    pub fn new(bytes_max: usize, wait_max: Duration) -> Self {
        let receiving = Arc::new(Semaphore::new(bytes_max >> 10));
        let (receiving_waited, sending, sending_refused) = Default::default();
        Self { bytes_max, wait_max, receiving, receiving_waited, sending, sending_refused }
    }

    /// Waits for space for a large message; `None` if there is none in time.
    pub(crate) async fn receive(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        // One that is larger than all of it is received alone.
        let kib = u32::try_from(bytes.min(self.bytes_max) >> 10).unwrap_or(u32::MAX);
        if let Ok(space) = Arc::clone(&self.receiving).try_acquire_many_owned(kib) {
            return Some(space);
        }
        self.receiving_waited.fetch_add(1, Ordering::Relaxed);
        // The semaphore is never closed.
        timeout(self.wait_max, Arc::clone(&self.receiving).acquire_many_owned(kib)).await.ok()?.ok()
    }

    /// A connection has so many bytes to send, after `before`. Returns whether it may.
    pub(crate) fn send(&self, before: usize, now: usize) -> bool {
        if now <= before {
            self.sending.fetch_sub(before - now, Ordering::Relaxed);
            return true;
        }
        let all = self.sending.fetch_add(now - before, Ordering::Relaxed) + (now - before);
        let may = all <= self.bytes_max;
        self.sending_refused.fetch_add(u64::from(!may), Ordering::Relaxed);
        may
    }

    /// The messages that arrive.
    #[must_use]
    pub fn received(&self) -> BudgetUse {
        let kib = (self.bytes_max >> 10).saturating_sub(self.receiving.available_permits());
        self.stat((kib as u64) << 10, &self.receiving_waited)
    }

    /// The replies that wait.
    #[must_use]
    pub fn unsent(&self) -> BudgetUse {
        self.stat(self.sending.load(Ordering::Relaxed) as u64, &self.sending_refused)
    }

    fn stat(&self, used: u64, reached: &AtomicU64) -> BudgetUse {
        BudgetUse { max: self.bytes_max as u64, used, reached: reached.load(Ordering::Relaxed) }
    }
}
