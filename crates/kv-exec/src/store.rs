//! The shared store, as an executor sees it: four batched calls, each of which ends.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tiffin_kv::{ChainHash, RankPart, StoreKey};
use tokio::sync::Notify;

use crate::pages::{Reading, Writing};

/// A shared store. Calls come from several threads at once, and may block; none is made by a step.
///
/// **Contract.** When a call has returned or panicked, nobody touches the pages that it was given. Results
/// count pages from the first: those behind the first that failed are of no use (V3).
pub trait Store: Send + Sync + 'static {
    /// How many of these pages are there. It may begin to bring them closer, and changes nothing else.
    fn probe(&self, names: &[PageName], stop: &Stop) -> Result<u32, Fault>;

    /// Reads pages, and says how many are whole: as many bytes as a page has, no fewer and no more.
    fn fetch(&self, pages: &[(PageName, Writing<'_>)], stop: &Stop) -> Result<u32, Fault>;

    /// Stores pages, and says how many are there now for everybody. A page of that name that is there already
    /// is as good.
    fn back_up(&self, pages: &[(PageName, Reading<'_>)], stop: &Stop) -> Result<u32, Fault>;

    /// Takes away all pages whose names begin like this.
    fn drop_all(&self, prefix: &str, stop: &Stop) -> Result<(), Fault>;

    /// The pages will lie here: said once, before any of the above.
    ///
    /// # Errors
    /// If the store cannot use that memory.
    fn register(&self, _address: usize, _bytes: usize) -> Result<(), Fault> {
        Ok(())
    }

    /// The memory is about to go: said once, after all of the above.
    fn unregister(&self, _address: usize) {}
}

/// The name of a rank's page in a shared store: `kv1/`, the root of its namespace, and the hash of the rest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageName(String);

impl PageName {
    /// The name of the page `hash` under this root, as this rank keeps it.
    #[must_use]
    pub fn new(root: ChainHash, rank: &RankPart, hash: ChainHash) -> Self {
        let StoreKey(key) = StoreKey::new(root, rank, hash);
        Self(format!("{}{}", Self::prefix(root), Hex(&key)))
    }

    /// What the names of all pages under this root begin with.
    #[must_use]
    pub fn prefix(root: ChainHash) -> String {
        format!("kv1/{}/", Hex(&root.0))
    }

    /// The name.
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

/// Why a call did nothing that counts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It was told to stop, or its time was over.
    #[error("it was stopped")]
    Stopped,
    /// Engine and memory disagree about a page: a bug, which moved no byte.
    #[error("page {0} is used by somebody else, or does not exist")]
    Page(u32),
    /// The other side could not.
    #[error("{0}")]
    Other(String),
}

/// When a call is to end: at a moment, or when it is told.
#[derive(Clone, Debug)]
pub struct Stop {
    deadline: Instant,
    told: Arc<Told>,
}

#[derive(Debug, Default)]
struct Told {
    is_told: AtomicBool,
    wake: Notify,
}

impl Stop {
    /// Ends at that moment at the latest.
    #[must_use]
    pub fn at(deadline: Instant) -> Self {
        Self { deadline, told: Arc::default() }
    }

    /// The moment.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Tells it.
    pub fn now(&self) {
        self.told.is_told.store(true, Ordering::Release);
        self.told.wake.notify_one();
    }

    /// Whether it was told, or its time is over.
    #[must_use]
    pub fn has_come(&self) -> bool {
        self.told.is_told.load(Ordering::Acquire) || Instant::now() >= self.deadline
    }

    /// Waits until it is told; one may wait at a time.
    pub async fn told(&self) {
        while !self.told.is_told.load(Ordering::Acquire) {
            self.told.wake.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k4_names_differ_by_rank_and_begin_with_their_root() {
        let (root, hash) = (ChainHash([1; 16]), ChainHash([2; 16]));
        let of = |rank| PageName::new(root, &RankPart { tensor: (rank, 2), ..RankPart::default() }, hash);
        assert_ne!(of(0), of(1));
        assert!(of(0).as_str().starts_with(&PageName::prefix(root)));
        assert_eq!(PageName::prefix(root), format!("kv1/{}/", "01".repeat(16)));
        assert_eq!(of(0).as_str().len(), 4 + 32 + 1 + 64);
    }
}
