//! What this client has leased, so that a broken connection ends nothing that is still wanted.
//!
//! The master keeps the leases of a client whose connection broke until it is back, for as long as the
//! operator allows (`lease_grace`). Two things follow:
//!
//! 1. A client that has leases and lost its connection opens a new one at once, also if nobody calls.
//! 2. An answer that was lost with its connection may have granted leases that nobody knows of. So after the
//!    connection was replaced, and before anything else is leased, the master is told which are known
//!    ([`KeepLeases`](tiffin_types::message::ClientToMaster::KeepLeases)), and ends the rest. No lease may
//!    be on its way meanwhile: the lock [`Leases::gate`] sees to that.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::RwLock;

/// Every lease that this client has, as far as it knows.
#[derive(Default)]
pub(crate) struct Leases {
    /// By the life of the master that gave it.
    known: Mutex<BTreeSet<(u64, u64)>>,
    /// How often a connection was replaced, and for how many of these the master was told.
    replaced: AtomicU64,
    told: AtomicU64,
    /// Held for reading from before a `Lease` is sent until its answer is in [`Self::known`], for writing
    /// while `KeepLeases` is said. Every wait for it has a deadline.
    pub(crate) gate: RwLock<()>,
}

impl Leases {
    pub(crate) fn add(&self, epoch: u64, lease: u64) {
        self.lock().insert((epoch, lease));
    }

    /// It is released, or about to be: if the word is lost, so is the lease.
    pub(crate) fn remove(&self, epoch: u64, lease: u64) {
        self.lock().remove(&(epoch, lease));
    }

    /// Those that a life of the master gave.
    pub(crate) fn of(&self, epoch: u64) -> Vec<u64> {
        self.lock().range((epoch, 0)..=(epoch, u64::MAX)).map(|it| it.1).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// The connection was replaced, so the master must be told.
    pub(crate) fn owe(&self) {
        self.replaced.fetch_add(1, Ordering::SeqCst);
    }

    /// What the master has not been told for yet, if anything.
    pub(crate) fn owed(&self) -> Option<u64> {
        let replaced = self.replaced.load(Ordering::SeqCst);
        (self.told.load(Ordering::SeqCst) < replaced).then_some(replaced)
    }

    /// It was told, for as many replacements as [`Self::owed`] said before.
    pub(crate) fn told(&self, replaced: u64) {
        self.told.fetch_max(replaced, Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<(u64, u64)>> {
        // Each use is one change of a set, so nothing can be half done.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_this_life_of_the_master_gave_is_told() {
        let leases = Leases::default();
        [(1, 7), (2, 7), (2, 9)].into_iter().for_each(|(epoch, lease)| leases.add(epoch, lease));
        leases.remove(2, 7);
        assert_eq!((leases.of(1), leases.of(2), leases.of(3)), (vec![7], vec![9], vec![]));
        leases.remove(1, 7);
        leases.remove(2, 9);
        assert!(leases.is_empty());
    }

    #[test]
    fn a_connection_that_is_replaced_while_the_master_is_told_must_be_told_for_too() {
        let leases = Leases::default();
        assert_eq!(leases.owed(), None);
        leases.owe();
        let owed = leases.owed().unwrap();
        leases.owe();
        leases.told(owed);
        assert_eq!(leases.owed(), Some(owed + 1));
        leases.told(owed + 1);
        assert_eq!(leases.owed(), None);
    }
}
