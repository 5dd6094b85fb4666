//! The leases of this client, so that a broken connection ends no lease that is still in use.
//!
//! After a client's connection broke, the master keeps its leases until it is back, at most for the
//! operator's `lease_grace`. Two rules follow:
//!
//! 1. A client that has leases and lost its connection reconnects at once, even without a call.
//! 2. A reply that was lost with its connection may have granted leases that the client does not know.
//!    After a reconnect, and before it takes another lease, the client sends the list of known leases
//!    ([`KeepLeases`](tiffin_types::message::ClientToMaster::KeepLeases)), and the master ends the rest. No
//!    lease request may be in flight meanwhile: the lock [`Leases::gate`] ensures that.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::RwLock;

/// Every lease that this client knows it has.
#[derive(Default)]
pub(crate) struct Leases {
    /// By the epoch of the master that granted it.
    known: Mutex<BTreeSet<(u64, u64)>>,
    /// Number of times the connection was replaced, and the number covered by the last `KeepLeases`.
    replaced: AtomicU64,
    received: AtomicU64,
    /// Held for reading from before a `Lease` is sent until its reply is in [`Self::known`]; held for
    /// writing during `KeepLeases`. Every wait for it has a deadline.
    pub(crate) gate: RwLock<()>,
}

impl Leases {
    pub(crate) fn add(&self, epoch: u64, lease: u64) {
        self.lock().insert((epoch, lease));
    }

    /// The lease is released, or about to be. If that message is lost, `KeepLeases` ends the lease.
    pub(crate) fn remove(&self, epoch: u64, lease: u64) {
        self.lock().remove(&(epoch, lease));
    }

    /// The leases that an epoch of the master granted.
    pub(crate) fn of(&self, epoch: u64) -> Vec<u64> {
        self.lock().range((epoch, 0)..=(epoch, u64::MAX)).map(|it| it.1).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// The connection was replaced, so the master must receive the list of leases.
    pub(crate) fn owe(&self) {
        self.replaced.fetch_add(1, Ordering::SeqCst);
    }

    /// The number of replacements to report, if the master has not received the list for all of them.
    pub(crate) fn owed(&self) -> Option<u64> {
        let replaced = self.replaced.load(Ordering::SeqCst);
        (self.received.load(Ordering::SeqCst) < replaced).then_some(replaced)
    }

    /// The master received the list, for the number of replacements that [`Self::owed`] returned before.
    pub(crate) fn received(&self, replaced: u64) {
        self.received.fetch_max(replaced, Ordering::SeqCst);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<(u64, u64)>> {
        // Each use is a single change of a set, so a panic leaves no partial state.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_leases_of_the_current_epoch_are_reported() {
        let leases = Leases::default();
        [(1, 7), (2, 7), (2, 9)].into_iter().for_each(|(epoch, lease)| leases.add(epoch, lease));
        leases.remove(2, 7);
        assert_eq!((leases.of(1), leases.of(2), leases.of(3)), (vec![7], vec![9], vec![]));
        leases.remove(1, 7);
        leases.remove(2, 9);
        assert!(leases.is_empty());
    }

    #[test]
    fn connection_replaced_during_report_is_reported_again() {
        let leases = Leases::default();
        assert_eq!(leases.owed(), None);
        leases.owe();
        let owed = leases.owed().unwrap();
        leases.owe();
        leases.received(owed);
        assert_eq!(leases.owed(), Some(owed + 1));
        leases.received(owed + 1);
        assert_eq!(leases.owed(), None);
    }
}
