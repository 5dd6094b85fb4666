//! The interface to the shared store: four batched calls, each of which ends.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tiffin_kv::{ChainHash, RankPart, StoreKey};
use tokio::sync::Notify;

use crate::pages::{PageReadGuard, PageWriteGuard};

/// A shared store. Several threads make calls at once, which may block; a step makes none.
///
/// **Contract.** After a call has returned or panicked, it no longer accesses the pages that it was given.
/// Results are numbers of leading pages: pages after the first failure are of no use (V3).
pub trait PageStore: Send + Sync + 'static {
    /// Number of leading pages that exist. It may prefetch them, and changes nothing else.
    fn probe(&self, names: &[PageName], stop: &Stop) -> Result<u32, Fault>;

    /// Reads pages. Returns how many are complete: exactly as many bytes as a page has.
    fn fetch(&self, pages: &[(PageName, PageWriteGuard<'_>)], stop: &Stop) -> Result<u32, Fault>;

    /// Stores pages. Returns how many all clients can read now. An existing page of that name counts.
    fn back_up(&self, pages: &[(PageName, PageReadGuard<'_>)], stop: &Stop) -> Result<u32, Fault>;

    /// Deletes all pages whose names start with this prefix.
    fn drop_all(&self, prefix: &str, stop: &Stop) -> Result<(), Fault>;

    /// Registers the memory of the pages; called once, before all other calls.
    ///
    /// # Errors
    /// If the store cannot use the memory.
    fn register(&self, _address: usize, _bytes: usize) -> Result<(), Fault> {
        Ok(())
    }

    /// Unregisters the memory; called once, after all other calls.
    fn unregister(&self, _address: usize) {}
}

/// The name of a rank's page in a shared store: `kv1/`, the root of its namespace, and the hash of the rest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageName(String);

impl PageName {
    /// The name of the page `hash` under this root, as this rank holds it.
    #[must_use]
    pub fn new(root: ChainHash, rank: &RankPart, hash: ChainHash) -> Self {
        let StoreKey(key) = StoreKey::new(root, rank, hash);
        Self(format!("{}{}", Self::prefix(root), Hex(&key)))
    }

    /// The prefix of the names of all pages under this root.
    #[must_use]
    pub fn prefix(root: ChainHash) -> String {
        format!("kv1/{}/", Hex(&root.0))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(out, "{byte:02x}"))
    }
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It was stopped, or its deadline has passed.
    #[error("operation stopped")]
    Stopped,
    /// Engine and memory disagree about a page: a bug. No byte was moved.
    #[error("page {0} is in use, or does not exist")]
    Page(u32),
    /// The store or the device failed.
    #[error("{0}")]
    Other(String),
}

/// Ends a call: at a deadline, or when it is stopped.
#[derive(Clone, Debug)]
pub struct Stop {
    deadline: Instant,
    state: Arc<StopState>,
}

#[derive(Debug, Default)]
struct StopState {
    is_stopped: AtomicBool,
    wake: Notify,
}

impl Stop {
    /// Ends at this deadline at the latest.
    #[must_use]
    pub fn at(deadline: Instant) -> Self {
        Self { deadline, state: Arc::default() }
    }

    /// The deadline.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Stops the call.
    pub fn stop(&self) {
        self.state.is_stopped.store(true, Ordering::Release);
        self.state.wake.notify_one();
    }

    /// Whether it was stopped, or its deadline has passed.
    #[must_use]
    pub fn should_stop(&self) -> bool {
        self.state.is_stopped.load(Ordering::Acquire) || Instant::now() >= self.deadline
    }

    /// Waits until it is stopped; one task may wait at a time.
    pub async fn stopped(&self) {
        while !self.state.is_stopped.load(Ordering::Acquire) {
            self.state.wake.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k4_names_differ_by_rank_and_start_with_their_root() {
        let (root, hash) = (ChainHash([1; 16]), ChainHash([2; 16]));
        let of = |rank| PageName::new(root, &RankPart { tensor: (rank, 2), ..RankPart::default() }, hash);
        assert_ne!(of(0), of(1));
        assert!(of(0).as_str().starts_with(&PageName::prefix(root)));
        assert_eq!(PageName::prefix(root), format!("kv1/{}/", "01".repeat(16)));
        assert_eq!(of(0).as_str().len(), 4 + 32 + 1 + 64);
    }
}
