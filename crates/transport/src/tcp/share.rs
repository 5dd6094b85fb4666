//! What one party may have in progress at a data socket, so that the others have their share.
//!
//! A party is a client, or all clients of one credential that is limited to namespaces: its holder gets no
//! larger share by inventing clients. Requests beyond a share wait for those before them, over whatever
//! number of connections they come. So a party with many connections has no more large transfers in progress
//! than one with a few, and no more memory for reads of disks. The numbers of transfers and connections are
//! those that our clients keep. While only one party is connected, only the shares of its clients count.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::pool::{DISK_STREAMS_MAX, STREAMS_MAX};
use crate::pending::LimitUse;

/// Maximum number of connections of one client to the memory of a node, or to one of its disks.
pub(super) const CLIENT_CONNECTIONS_MAX: usize = 2 * DISK_STREAMS_MAX;
/// Maximum number of large reads and writes of one party that are served at a time.
const TRANSFERS_MAX: usize = STREAMS_MAX;
/// Maximum bytes of one party's reads of disks that are in memory, in KiB: what a disk reads at a time.
const FETCHED_KIB_MAX: usize = 64 << 10;

/// How long a request waits for others of its party. Then it is refused, and the client may ask again.
const WAIT_TIME_MAX: Duration = Duration::from_secs(60);

/// What may be in progress.
#[derive(Debug)]
struct Share {
    transfers: Arc<Semaphore>,
    fetched_kib: Arc<Semaphore>,
}

/// A transfer, or memory for a read of a disk, until it is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    _client: OwnedSemaphorePermit,
    _party: Option<OwnedSemaphorePermit>,
}

impl Share {
    fn new() -> Arc<Self> {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Arc::new(Self { transfers: semaphore(TRANSFERS_MAX), fetched_kib: semaphore(FETCHED_KIB_MAX) })
    }
}

/// The shares of one connection.
#[derive(Clone, Debug)]
pub(super) struct Part {
    client: Arc<Share>,
    /// That of its credential, if it is shared by clients.
    credential: Option<Arc<Share>>,
    /// The number of parties with connections.
    parties: Arc<AtomicUsize>,
}

impl Part {
    /// Begins a large transfer, if this client may now. It is in progress until the result is dropped.
    pub(super) fn try_transfer(&self) -> Option<Permit> {
        self.try_take(|it| &it.transfers, 1)
    }

    /// The same, after waiting for others; `None` if that takes too long.
    pub(super) async fn transfer(&self) -> Option<Permit> {
        timeout(WAIT_TIME_MAX, self.take(|it| &it.transfers, 1)).await.ok().flatten()
    }

    /// Memory for a read of a disk, if this client may have so much now.
    pub(super) fn try_fetch(&self, bytes: u64) -> Option<Permit> {
        self.try_take(|it| &it.fetched_kib, kib(bytes))
    }

    /// The same, after waiting for others; `None` if that takes too long. The caller must hold none, or it
    /// would wait for itself.
    pub(super) async fn fetch(&self, bytes: u64) -> Option<Permit> {
        timeout(WAIT_TIME_MAX, self.take(|it| &it.fetched_kib, kib(bytes))).await.ok().flatten()
    }

    fn try_take(&self, of: impl Fn(&Share) -> &Arc<Semaphore>, permits: u32) -> Option<Permit> {
        let take = |share: &Share| Arc::clone(of(share)).try_acquire_many_owned(permits).ok();
        let client = take(&self.client)?;
        let party = match self.limiting_credential() {
            Some(credential) => Some(take(credential)?),
            None => None,
        };
        Some(Permit { _client: client, _party: party })
    }

    /// The permits of the client come first, so that two connections never wait for each other.
    async fn take(&self, of: impl Fn(&Share) -> &Arc<Semaphore>, permits: u32) -> Option<Permit> {
        // The semaphores are never closed.
        let take = async |share: &Share| Arc::clone(of(share)).acquire_many_owned(permits).await.ok();
        let client = take(&self.client).await?;
        let party = match self.limiting_credential() {
            Some(credential) => Some(take(credential).await?),
            None => None,
        };
        Some(Permit { _client: client, _party: party })
    }

    /// The share of the credential, if there are others who want theirs.
    fn limiting_credential(&self) -> Option<&Share> {
        self.credential.as_deref().filter(|_| self.parties.load(Ordering::Relaxed) > 1)
    }
}

fn kib(bytes: u64) -> u32 {
    (bytes >> 10).clamp(1, FETCHED_KIB_MAX as u64) as u32
}

/// The two ends of a connection, and the credential that the client has shown, if that has a share of its
/// own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) client: u64,
    pub(super) segment: u64,
    pub(super) credential: Option<u64>,
}

/// The limit that one more connection would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crowded {
    Client,
    Credential,
}

/// Those that have one share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Party {
    Client(u64),
    Credential(u64),
}

/// The clients with connections.
#[derive(Debug)]
pub(super) struct Clients {
    credential_connections_max: usize,
    table: Mutex<Table>,
    party_count: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Table {
    clients: BTreeMap<u64, Connected>,
    /// The connections of each, and its share.
    parties: BTreeMap<Party, (usize, Arc<Share>)>,
    /// How often a client, and a credential, had as many connections as it may have.
    reached: u64,
    credential_reached: u64,
}

#[derive(Debug)]
struct Connected {
    /// The number of connections to each segment.
    connections: BTreeMap<u64, usize>,
    share: Arc<Share>,
}

impl Clients {
    /// A credential that has a share of its own may have so many connections.
    pub(super) fn new(credential_connections_max: usize) -> Self {
        Self { credential_connections_max, table: Mutex::default(), party_count: Arc::default() }
    }

    /// Counts a connection of a client. `first` is called if it is the client's only one.
    pub(super) fn open(&self, owner: Owner, first: impl FnOnce()) -> Result<Part, Crowded> {
        let mut table = self.lock();
        let Table { clients, parties, reached, credential_reached } = &mut *table;
        let party = owner.party();
        let of_party = parties.get(&party).map_or(0, |it| it.0);
        if matches!(party, Party::Credential(_)) && of_party >= self.credential_connections_max {
            *credential_reached += 1;
            return Err(Crowded::Credential);
        }
        let new = || Connected { connections: BTreeMap::new(), share: Share::new() };
        let connected = clients.entry(owner.client).or_insert_with(new);
        // Under the lock, so that the node sees openings and closings in order.
        if connected.connections.is_empty() {
            first();
        }
        let count = connected.connections.entry(owner.segment).or_default();
        if *count >= CLIENT_CONNECTIONS_MAX {
            *reached += 1;
            return Err(Crowded::Client);
        }
        *count += 1;
        let (of_party, share) = parties.entry(party).or_insert_with(|| (0, Share::new()));
        *of_party += 1;
        let credential = owner.credential.map(|_| Arc::clone(share));
        self.party_count.store(parties.len(), Ordering::Relaxed);
        Ok(Part { client: Arc::clone(&connected.share), credential, parties: Arc::clone(&self.party_count) })
    }

    /// The connection has ended. `last` is called if it was the client's only one.
    pub(super) fn close(&self, owner: Owner, last: impl FnOnce()) {
        let mut table = self.lock();
        let Table { clients, parties, .. } = &mut *table;
        if let Some((count, _)) = parties.get_mut(&owner.party()) {
            *count -= 1;
            if *count == 0 {
                parties.remove(&owner.party());
                self.party_count.store(parties.len(), Ordering::Relaxed);
            }
        }
        let Some(connected) = clients.get_mut(&owner.client) else { return };
        if let Some(count) = connected.connections.get_mut(&owner.segment) {
            *count -= 1;
            if *count == 0 {
                connected.connections.remove(&owner.segment);
            }
        }
        if connected.connections.is_empty() {
            clients.remove(&owner.client);
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

    /// The number of connections of the credential with most of them.
    pub(super) fn credential_limit(&self) -> LimitUse {
        let table = self.lock();
        let credentials = table.parties.iter().filter(|it| matches!(it.0, Party::Credential(_)));
        let used = credentials.map(|(_, (count, _))| *count).max().unwrap_or(0) as u64;
        let max = self.credential_connections_max as u64;
        LimitUse { max, used, reached: table.credential_reached }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Owner {
    fn party(self) -> Party {
        self.credential.map_or(Party::Client(self.client), Party::Credential)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(client: u64, segment: u64) -> Owner {
        Owner { client, segment, credential: None }
    }

    fn holder(client: u64, credential: u64) -> Owner {
        Owner { client, segment: 7, credential: Some(credential) }
    }

    fn alone() -> Part {
        Clients::new(1).open(owner(1, 7), || ()).unwrap()
    }

    #[test]
    fn client_has_so_many_connections_and_no_more() {
        let clients = Clients::new(1);
        let (mut opened, mut closed) = (0, 0);
        for _ in 0..CLIENT_CONNECTIONS_MAX {
            assert!(clients.open(owner(1, 7), || opened += 1).is_ok());
        }
        let max = CLIENT_CONNECTIONS_MAX as u64;
        assert_eq!(clients.limit(), LimitUse { max, used: max, reached: 0 });
        assert_eq!(clients.open(owner(1, 7), || opened += 1).err(), Some(Crowded::Client));
        assert_eq!(clients.limit(), LimitUse { max, used: max, reached: 1 });
        // Its disks and other clients do not count.
        assert!(clients.open(owner(1, 8), || opened += 1).is_ok());
        assert!(clients.open(owner(2, 7), || opened += 1).is_ok());
        assert_eq!(opened, 2);
        clients.close(owner(1, 7), || closed += 1);
        assert!(clients.open(owner(1, 7), || opened += 1).is_ok());
        (0..CLIENT_CONNECTIONS_MAX).for_each(|_| clients.close(owner(1, 7), || closed += 1));
        assert_eq!(closed, 0);
        clients.close(owner(1, 8), || closed += 1);
        assert_eq!((opened, closed), (2, 1));
        assert!(!clients.lock().clients.contains_key(&1));
        clients.close(owner(2, 7), || ());
        assert!(clients.lock().parties.is_empty());
    }

    #[test]
    fn credential_has_so_many_connections_and_no_more() {
        let clients = Clients::new(3);
        for client in 1..=3 {
            assert!(clients.open(holder(client, 1), || ()).is_ok());
        }
        assert_eq!(clients.credential_limit(), LimitUse { max: 3, used: 3, reached: 0 });
        let beyond = clients.open(holder(4, 1), || panic!("it is refused")).err();
        assert_eq!(beyond, Some(Crowded::Credential));
        assert_eq!(clients.credential_limit(), LimitUse { max: 3, used: 3, reached: 1 });
        assert!(!clients.lock().clients.contains_key(&4));
        // Other credentials, and clients that have none of their own, do not count.
        assert!(clients.open(holder(4, 2), || ()).is_ok());
        assert!((5..=9).all(|client| clients.open(owner(client, 7), || ()).is_ok()));
        clients.close(holder(1, 1), || ());
        assert!(clients.open(holder(4, 1), || ()).is_ok());
    }

    #[tokio::test]
    async fn memory_for_reads_of_disks_is_bounded() {
        let share = alone();
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
        let share = alone();
        let all: Vec<_> = (0..TRANSFERS_MAX).map(|_| share.try_transfer().unwrap()).collect();
        assert!(share.try_transfer().is_none());
        drop(all);
        assert!(share.transfer().await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn no_request_waits_for_its_share_without_limit() {
        let share = alone();
        let most = (FETCHED_KIB_MAX as u64) << 10;
        let all: Vec<_> = (0..TRANSFERS_MAX).map(|_| share.try_transfer().unwrap()).collect();
        let memory = share.try_fetch(most).unwrap();
        let began = tokio::time::Instant::now();
        let (transfer, fetched) = tokio::join!(share.transfer(), share.fetch(1));
        assert!(transfer.is_none() && fetched.is_none());
        assert_eq!(began.elapsed().as_secs(), WAIT_TIME_MAX.as_secs());
        drop((all, memory));
        assert!(share.transfer().await.is_some() && share.fetch(most).await.is_some());
    }

    #[tokio::test]
    async fn clients_of_one_credential_have_one_share() {
        let clients = Clients::new(100);
        let parts: Vec<_> = (1..=8).map(|it| clients.open(holder(it, 1), || ()).unwrap()).collect();
        let all = |parts: &[Part]| -> Vec<_> {
            let tries = parts.iter().flat_map(|it| (0..=TRANSFERS_MAX).map(|_| it.try_transfer()));
            tries.flatten().collect()
        };
        // While there is no other party, nothing is left unused.
        let before = all(&parts);
        assert_eq!(before.len(), 8 * TRANSFERS_MAX);
        drop(before);
        let other = clients.open(holder(9, 2), || ()).unwrap();
        let during = all(&parts);
        assert_eq!(during.len(), TRANSFERS_MAX);
        assert_eq!(all(std::slice::from_ref(&other)).len(), TRANSFERS_MAX, "the other one has its own");
        drop(during);
        let transfer = parts[0].transfer().await.unwrap();
        let most = (FETCHED_KIB_MAX as u64) << 10;
        let fetched = parts[0].fetch(most).await.unwrap();
        assert!(parts[1].try_fetch(1).is_none() && other.try_fetch(most).is_some());
        // The permit of the client was returned when that of the credential was refused.
        drop((fetched, transfer));
        assert_eq!(all(&parts).len(), TRANSFERS_MAX);
        assert!(parts[1].try_fetch(most).is_some());
        clients.close(holder(9, 2), || ());
        assert_eq!(all(&parts).len(), 8 * TRANSFERS_MAX);
    }
}
