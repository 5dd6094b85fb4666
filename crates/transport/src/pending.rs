//! Accepted connections that are not authenticated yet.
//!
//! Any process that reaches a port can open connections and send nothing, so their number is limited. Beyond
//! the limit the oldest is closed: a peer that sends its request at once is never rejected because of silent
//! peers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The pending connections of one port.
#[derive(Debug)]
pub struct Pending {
    connections_max: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// By order of arrival: the notification that closes each.
    open: BTreeMap<u64, Arc<Notify>>,
    cut: u64,
}

/// One pending connection; dropping it ends the pending state.
#[derive(Debug)]
pub struct Entry {
    pending: Arc<Pending>,
    id: u64,
}

impl Pending {
    /// At most `connections_max` at a time.
    #[must_use]
    pub fn new(connections_max: usize) -> Arc<Self> {
        Arc::new(Self { connections_max, table: Mutex::default() })
    }

    /// Adds a pending connection. Beyond the limit, the oldest one is removed and its `cut` is notified: its
    /// task must close it.
    #[must_use]
    pub fn enter(self: &Arc<Self>, cut: &Arc<Notify>) -> Entry {
        let mut table = self.lock();
        if table.open.len() >= self.connections_max
            && let Some((_, oldest)) = table.open.pop_first()
        {
            oldest.notify_one();
            table.cut += 1;
            // Logs at powers of two only: a flood of connections must not flood the log.
            if table.cut.is_power_of_two() {
                let (cut, most) = (table.cut, self.connections_max);
                tracing::warn!(
                    cut,
                    most,
                    "too many connections without a valid request: the oldest are closed"
                );
            }
        }
        let id = table.next;
        table.next += 1;
        table.open.insert(id, Arc::clone(cut));
        drop(table);
        Entry { pending: Arc::clone(self), id }
    }

    /// Number of connections closed in favour of newer ones.
    #[must_use]
    pub fn cut(&self) -> u64 {
        self.lock().cut
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().open.len()
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.pending.lock().open.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_beyond_the_limit_closes_the_oldest() {
        let pending = Pending::new(2);
        let cuts: Vec<Arc<Notify>> = (0..4).map(|_| Arc::default()).collect();
        let mut entries: Vec<Entry> = cuts.iter().take(2).map(|cut| pending.enter(cut)).collect();
        assert_eq!((pending.len(), pending.cut()), (2, 0), "at the limit none is closed");
        entries.push(pending.enter(&cuts[2]));
        assert_eq!((pending.len(), pending.cut()), (2, 1));
        cuts[0].notified().await;
        // An authenticated connection leaves space, and none is closed for the next.
        drop(entries.remove(1));
        entries.push(pending.enter(&cuts[3]));
        assert_eq!((pending.len(), pending.cut()), (2, 1));
        // A closed connection leaves no entry.
        drop(entries);
        assert!(pending.is_empty());
    }
}
