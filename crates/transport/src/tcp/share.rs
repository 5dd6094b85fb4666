//! What one client may have in progress at a data socket: the others want their share.
//!
//! Requests beyond it wait for those before them, over whatever number of connections they come. So a client
//! with many connections has no more large transfers in progress than one with a few, and no more
//! memory for reads of disks. The numbers of transfers and connections are those that our clients keep.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::pool::{DISK_STREAMS_MAX, STREAMS_MAX};
use crate::pending::LimitUse;

/// Maximum number of connections of one client to the memory of a node, or to one of its disks.
pub(super) const CLIENT_CONNECTIONS_MAX: usize = 2 * DISK_STREAMS_MAX;
/// Maximum number of large reads and writes of one client that are served at a time.
const TRANSFERS_MAX: usize = STREAMS_MAX;
/// Maximum bytes of one client's reads of disks that are in memory, in KiB: what a disk reads at a time.
const FETCHED_KIB_MAX: usize = 64 << 10;

/// The part of one client.
#[derive(Debug)]
pub(super) struct Share {
    transfers: Arc<Semaphore>,
    fetched_kib: Arc<Semaphore>,
}

impl Share {
    fn new() -> Arc<Self> {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Arc::new(Self { transfers: semaphore(TRANSFERS_MAX), fetched_kib: semaphore(FETCHED_KIB_MAX) })
    }

    /// Begins a large transfer, if this client may now. It is in progress until the result is dropped.
    pub(super) fn try_transfer(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.transfers).try_acquire_owned().ok()
    }

    /// The same, after waiting for others.
    pub(super) async fn transfer(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.transfers).acquire_owned().await.ok()
    }

    /// Memory for a read of a disk, if this client may have so much now.
    pub(super) fn try_fetch(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.fetched_kib).try_acquire_many_owned(kib(bytes)).ok()
    }

    /// The same, after waiting for others. The caller must hold none, or it would wait for itself.
    pub(super) async fn fetch(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.fetched_kib).acquire_many_owned(kib(bytes)).await.ok()
    }
}

fn kib(bytes: u64) -> u32 {
    (bytes >> 10).clamp(1, FETCHED_KIB_MAX as u64) as u32
}

/// The clients with connections.
#[derive(Debug, Default)]
pub(super) struct Clients(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    clients: BTreeMap<u64, Connected>,
    /// How often a client had as many connections as it may have.
    reached: u64,
}

#[derive(Debug)]
struct Connected {
    /// The number of connections to each segment.
    connections: BTreeMap<u64, usize>,
    share: Arc<Share>,
}

impl Clients {
    /// Counts a connection of a client. `first` is called if it is the client's only one; `None` if it has as
    /// many as it may have.
    pub(super) fn open(&self, client: u64, segment: u64, first: impl FnOnce()) -> Option<Arc<Share>> {
        let mut table = self.lock();
        let Table { clients, reached } = &mut *table;
        let new = || Connected { connections: BTreeMap::new(), share: Share::new() };
        let connected = clients.entry(client).or_insert_with(new);
        // Under the lock, so that the node sees openings and closings in order.
        if connected.connections.is_empty() {
            first();
        }
        let count = connected.connections.entry(segment).or_default();
        if *count >= CLIENT_CONNECTIONS_MAX {
            *reached += 1;
            return None;
        }
        *count += 1;
        Some(Arc::clone(&connected.share))
    }

    /// The connection has ended. `last` is called if it was the client's only one.
    pub(super) fn close(&self, client: u64, segment: u64, last: impl FnOnce()) {
        let clients = &mut self.lock().clients;
        let Some(connected) = clients.get_mut(&client) else { return };
        if let Some(count) = connected.connections.get_mut(&segment) {
            *count -= 1;
            if *count == 0 {
                connected.connections.remove(&segment);
            }
        }
        if connected.connections.is_empty() {
            clients.remove(&client);
            last();
        }
    }

    /// The number of connections that the client with most of them has to one segment.
    pub(super) fn limit(&self) -> LimitUse {
        let table = self.lock();
        let counts = table.clients.values().flat_map(|it| it.connections.values());
        let used = counts.max().copied().unwrap_or(0) as u64;
        LimitUse { max: CLIENT_CONNECTIONS_MAX as u64, used, reached: table.reached }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_has_so_many_connections_and_no_more() {
        let clients = Clients::default();
        let (mut opened, mut closed) = (0, 0);
        for _ in 0..CLIENT_CONNECTIONS_MAX {
            assert!(clients.open(1, 7, || opened += 1).is_some());
        }
        let max = CLIENT_CONNECTIONS_MAX as u64;
        assert_eq!(clients.limit(), LimitUse { max, used: max, reached: 0 });
        assert!(clients.open(1, 7, || opened += 1).is_none());
        assert_eq!(clients.limit(), LimitUse { max, used: max, reached: 1 });
        // Its disks and other clients do not count.
        assert!(clients.open(1, 8, || opened += 1).is_some());
        assert!(clients.open(2, 7, || opened += 1).is_some());
        assert_eq!(opened, 2);
        clients.close(1, 7, || closed += 1);
        assert!(clients.open(1, 7, || opened += 1).is_some());
        (0..CLIENT_CONNECTIONS_MAX).for_each(|_| clients.close(1, 7, || closed += 1));
        assert_eq!(closed, 0);
        clients.close(1, 8, || closed += 1);
        assert_eq!((opened, closed), (2, 1));
        assert!(!clients.lock().clients.contains_key(&1));
    }

    #[tokio::test]
    async fn memory_for_reads_of_disks_is_bounded() {
        let share = Share::new();
        let most = (FETCHED_KIB_MAX as u64) << 10;
        let half = share.fetch(most / 2).await.unwrap();
        let rest = share.try_fetch(most / 2).unwrap();
        assert!(share.try_fetch(1).is_none());
        drop(half);
        let small = share.try_fetch(0).unwrap();
        assert!(share.try_fetch(most / 2).is_none());
        drop((rest, small));
        // One that is larger than all of it is read alone.
        let large = share.fetch(u64::MAX).await;
        assert!(large.is_some() && share.try_fetch(1).is_none());
    }

    #[tokio::test]
    async fn client_has_so_many_transfers_and_no_more() {
        let share = Share::new();
        let all: Vec<_> = (0..TRANSFERS_MAX).map(|_| share.try_transfer().unwrap()).collect();
        assert!(share.try_transfer().is_none());
        drop(all);
        assert!(share.transfer().await.is_some());
    }
}
