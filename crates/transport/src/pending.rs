//! Connections that were accepted and have not proven yet that they may be served.
//!
//! Anybody who reaches a port can open such connections and say nothing on them, so their number is bounded.
//! One more than the limit closes the oldest: a peer that speaks at once is never kept out by peers that are
//! silent, however many there are.

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
    /// In the order in which they came: what ends each of them.
    open: BTreeMap<u64, Arc<Notify>>,
    cut: u64,
}

/// One pending connection; it stops to be one when this is dropped.
#[derive(Debug)]
pub struct Entry {
    pending: Arc<Pending>,
    id: u64,
}

impl Pending {
    /// At most so many at a time.
    #[must_use]
    pub fn new(connections_max: usize) -> Arc<Self> {
        Arc::new(Self { connections_max, table: Mutex::default() })
    }

    /// Counts a connection as pending. If that is one too many, the oldest one is told to end: its `cut` is
    /// notified, and it no longer counts.
    #[must_use]
    pub fn enter(self: &Arc<Self>, cut: &Arc<Notify>) -> Entry {
        let mut table = self.lock();
        if table.open.len() >= self.connections_max
            && let Some((_, oldest)) = table.open.pop_first()
        {
            oldest.notify_one();
            table.cut += 1;
            // A flood would flood the log as well: its lines get rarer the longer it lasts.
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

    /// How many connections were closed to make place for newer ones.
    #[must_use]
    pub fn cut(&self) -> u64 {
        self.lock().cut
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lock().open.len()
    }

    /// There are none.
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
    async fn one_beyond_the_limit_ends_the_oldest() {
        let pending = Pending::new(2);
        let cuts: Vec<Arc<Notify>> = (0..4).map(|_| Arc::default()).collect();
        let mut entries: Vec<Entry> = cuts.iter().take(2).map(|cut| pending.enter(cut)).collect();
        assert_eq!((pending.len(), pending.cut()), (2, 0), "at the limit nothing ends");
        entries.push(pending.enter(&cuts[2]));
        assert_eq!((pending.len(), pending.cut()), (2, 1));
        cuts[0].notified().await;
        // One that proved itself makes place, and nothing ends for the next.
        drop(entries.remove(1));
        entries.push(pending.enter(&cuts[3]));
        assert_eq!((pending.len(), pending.cut()), (2, 1));
        // The one that was cut off leaves no gap when it goes.
        drop(entries);
        assert!(pending.is_empty());
    }
}
