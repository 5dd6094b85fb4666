//! Accepted connections, and those of them that are not authenticated yet.
//!
//! Any process that reaches a port can open connections and send nothing, so their number is limited. Beyond
//! the limit the oldest is closed, of the host that has most of them: a peer that sends its request at once
//! is never rejected because of silent peers, and a slow one only for those of its own host.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A limit, its use, and how often it was reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitUse {
    /// Its value.
    pub max: u64,
    /// The current use.
    pub used: u64,
    /// How often one more was refused, or another one closed for it.
    pub reached: u64,
}

/// The open connections of one port.
#[derive(Debug)]
pub struct Connections {
    max: usize,
    open: AtomicUsize,
    refused: AtomicU64,
}

/// One open connection, until it is dropped.
#[derive(Debug)]
pub struct Connected {
    connections: Arc<Connections>,
    /// There were as many as may be: it is to be refused.
    pub is_surplus: bool,
}

impl Connections {
    /// At most `max` at a time.
    #[must_use]
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, open: AtomicUsize::new(0), refused: AtomicU64::new(0) })
    }

    /// One more has arrived.
    #[must_use]
    pub fn enter(self: &Arc<Self>) -> Connected {
        let is_surplus = self.open.fetch_add(1, Ordering::Relaxed) >= self.max;
        self.refused.fetch_add(u64::from(is_surplus), Ordering::Relaxed);
        Connected { connections: Arc::clone(self), is_surplus }
    }

    /// The limit and its use.
    #[must_use]
    pub fn limit(&self) -> LimitUse {
        let used = self.open.load(Ordering::Relaxed) as u64;
        LimitUse { max: self.max as u64, used, reached: self.refused.load(Ordering::Relaxed) }
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.connections.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Why a peer is not admitted, and when it is told.
pub struct Denied {
    reason: String,
    when: AnswerTime,
}

/// When a peer is told that it is not admitted. Its connection is pending until then.
pub enum AnswerTime {
    /// At once.
    Now,
    /// When the future ends. It may hold what is counted meanwhile.
    After(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// The connection is closed instead.
    Never,
}

impl Denied {
    /// Denied for this reason.
    #[must_use]
    pub fn new(reason: impl Into<String>, when: AnswerTime) -> Self {
        Self { reason: reason.into(), when }
    }

    /// Waits until the peer may be told the reason; `None` if it is not told.
    pub async fn reason_in_time(self) -> Option<String> {
        self.when.comes().await.then_some(self.reason)
    }
}

impl AnswerTime {
    /// Waits for the time; `false` if it never comes.
    pub async fn comes(self) -> bool {
        match self {
            Self::Now => true,
            Self::After(time) => {
                time.await;
                true
            }
            Self::Never => false,
        }
    }
}

impl<T: Into<String>> From<T> for Denied {
    fn from(reason: T) -> Self {
        Self::new(reason, AnswerTime::Now)
    }
}

/// The pending connections of one port.
#[derive(Debug)]
pub struct Pending {
    connections_max: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    /// By order of arrival: the notification that closes each, and where it comes from.
    open: BTreeMap<u64, (Arc<Notify>, Origin)>,
    /// The same by origin. None is empty.
    by_origin: BTreeMap<Origin, BTreeSet<u64>>,
    cut: u64,
}

/// A host, or of IPv6 its network of 64 bits, whose hosts may have any other bits. `None` on Unix sockets.
type Origin = Option<u128>;

fn origin(from: Option<IpAddr>) -> Origin {
    from.map(|ip| match ip.to_canonical() {
        IpAddr::V4(ip) => u128::from(ip.to_bits()),
        IpAddr::V6(ip) => ip.to_bits() | u128::from(u64::MAX),
    })
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

    /// Adds a pending connection from a Unix socket; see [`Self::enter_from`].
    #[must_use]
    pub fn enter(self: &Arc<Self>, cut: &Arc<Notify>) -> Entry {
        self.enter_from(cut, None)
    }

    /// Adds a pending connection. Beyond the limit, the oldest one of the host with most of them is removed
    /// and its `cut` is notified: its task must close it.
    #[must_use]
    pub fn enter_from(self: &Arc<Self>, cut: &Arc<Notify>, from: Option<IpAddr>) -> Entry {
        let mut table = self.lock();
        if table.open.len() >= self.connections_max
            && let Some(surplus) = table.pop_surplus(origin(from))
        {
            surplus.notify_one();
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
        table.open.insert(id, (Arc::clone(cut), origin(from)));
        table.by_origin.entry(origin(from)).or_default().insert(id);
        drop(table);
        Entry { pending: Arc::clone(self), id }
    }

    /// Number of connections closed in favour of newer ones.
    #[must_use]
    pub fn cut(&self) -> u64 {
        self.lock().cut
    }

    /// The limit and its use.
    #[must_use]
    pub fn limit(&self) -> LimitUse {
        let table = self.lock();
        LimitUse { max: self.connections_max as u64, used: table.open.len() as u64, reached: table.cut }
    }

    /// Number of pending connections.
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

impl Table {
    /// Removes the oldest of the origin with most of them, when one more comes from there.
    fn pop_surplus(&mut self, next: Origin) -> Option<Arc<Notify>> {
        let count = |it: &(&Origin, &BTreeSet<u64>)| it.1.len() + usize::from(*it.0 == next);
        let oldest = |it: &(&Origin, &BTreeSet<u64>)| std::cmp::Reverse(it.1.first().copied());
        let most = self.by_origin.iter().max_by_key(|it| (count(it), oldest(it)))?;
        let id = *most.1.first()?;
        self.remove(id)
    }

    fn remove(&mut self, id: u64) -> Option<Arc<Notify>> {
        let (cut, origin) = self.open.remove(&id)?;
        if let Some(ids) = self.by_origin.get_mut(&origin) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_origin.remove(&origin);
            }
        }
        Some(cut)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.pending.lock().remove(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_connection_beyond_the_limit_is_surplus() {
        let connections = Connections::new(2);
        let mut open: Vec<Connected> = (0..2).map(|_| connections.enter()).collect();
        assert!(open.iter().all(|it| !it.is_surplus));
        assert_eq!(connections.limit(), LimitUse { max: 2, used: 2, reached: 0 });
        assert!(connections.enter().is_surplus);
        assert_eq!(connections.limit(), LimitUse { max: 2, used: 2, reached: 1 });
        open.pop();
        assert!(!connections.enter().is_surplus);
    }

    #[tokio::test]
    async fn one_beyond_the_limit_closes_the_oldest() {
        let pending = Pending::new(2);
        let cuts: Vec<Arc<Notify>> = (0..4).map(|_| Arc::default()).collect();
        let mut entries: Vec<Entry> = cuts.iter().take(2).map(|cut| pending.enter(cut)).collect();
        assert_eq!((pending.len(), pending.cut()), (2, 0), "at the limit none is closed");
        assert_eq!(pending.limit(), LimitUse { max: 2, used: 2, reached: 0 });
        entries.push(pending.enter(&cuts[2]));
        assert_eq!(pending.limit(), LimitUse { max: 2, used: 2, reached: 1 });
        cuts[0].notified().await;
        // An authenticated connection leaves space, and none is closed for the next.
        drop(entries.remove(1));
        entries.push(pending.enter(&cuts[3]));
        assert_eq!((pending.len(), pending.cut()), (2, 1));
        // A closed connection leaves no entry.
        drop(entries);
        assert!(pending.is_empty());
    }

    #[tokio::test]
    async fn host_with_most_connections_loses_its_oldest() {
        let [victim, flood] = ["192.0.2.1", "2001:db8::1"].map(|it| it.parse::<IpAddr>().unwrap());
        let pending = Pending::new(3);
        let cuts: Vec<Arc<Notify>> = (0..5).map(|_| Arc::default()).collect();
        let mut entries = vec![pending.enter_from(&cuts[0], Some(victim))];
        // Another address of the same network.
        for (cut, ip) in cuts.iter().skip(1).zip([flood, "2001:db8::2".parse().unwrap(), flood, flood]) {
            entries.push(pending.enter_from(cut, Some(ip)));
        }
        cuts[1].notified().await;
        cuts[2].notified().await;
        assert_eq!((pending.len(), pending.cut()), (3, 2));
        assert!(pending.lock().open.contains_key(&0), "the victim's is the oldest, and stays");
        drop(entries);
        assert!(pending.is_empty() && pending.lock().by_origin.is_empty());
    }
}
