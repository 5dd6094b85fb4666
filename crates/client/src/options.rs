//! Options of calls and connections.

use std::sync::Arc;
use std::time::Duration;

use tiffin_rpc::EtcdAccess;
use tiffin_tls::TlsFiles;
use tiffin_trace::TracerSettings;
use tiffin_transport::local::LocalDisk;
use tiffin_transport::segment::NodeMemory;
use tiffin_types::NAMESPACE_DEFAULT;
use tiffin_types::message::Ahead;
use tiffin_types::{Key, SegmentId};
use tokio::time::Instant;

/// Default time limit for connecting.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Part of a deadline that is kept for the reply to arrive, if that much is left.
const ANSWER_TIME: Duration = Duration::from_millis(500);
/// The longest timeout, about thirty years. Much later instants cannot be represented everywhere.
const NEVER: Duration = Duration::from_secs(86_400 * 365 * 30);

/// The instant by which a call ends, whatever the peer does.
///
/// A call that waits for events, such as [`Client::pull`](crate::Client::pull), ends its wait earlier and
/// returns what it has. Only a deadline that passes before the reply arrives is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline {
    end: Instant,
    /// When a wait for events ends, if it has a limit of its own.
    wait_end: Option<Instant>,
}

impl Deadline {
    /// The deadline after this time. [`Duration::MAX`] means practically never.
    #[must_use]
    pub fn after(time: Duration) -> Self {
        Self::at(Instant::now() + time.min(NEVER))
    }

    /// The deadline of a call that waits for events or confirmations. The wait ends after `wait_time`, and
    /// its reply may take `answer_time` more. So a short wait on a slow machine ends with a reply, not with
    /// an error.
    #[must_use]
    pub fn waiting(wait_time: Duration, answer_time: Duration) -> Self {
        let wait_end = Instant::now() + wait_time.min(NEVER);
        Self { end: wait_end + answer_time.min(NEVER), wait_end: Some(wait_end) }
    }

    /// The deadline at this instant.
    #[must_use]
    pub fn at(instant: Instant) -> Self {
        Self { end: instant, wait_end: None }
    }

    /// The instant of the deadline.
    #[must_use]
    pub fn instant(self) -> Instant {
        self.end
    }

    /// Whether the deadline has passed.
    #[must_use]
    pub fn has_passed(self) -> bool {
        self.end <= Instant::now()
    }

    /// The time that is left.
    #[must_use]
    pub fn remaining(self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Whether a call that waits for events must return what it has.
    pub(crate) fn wait_is_over(self) -> bool {
        self.wait_end.unwrap_or(self.end) <= Instant::now()
    }

    /// The time left of the wait, if it has a limit of its own.
    pub(crate) fn wait_time(self) -> Option<Duration> {
        Some(self.wait_end?.saturating_duration_since(Instant::now()))
    }

    /// How long the peer may wait for an event so that its reply still arrives in time.
    pub(crate) fn wait_ms(self) -> u64 {
        let wait = self.wait_time().unwrap_or_else(|| {
            let remaining = self.remaining();
            remaining.saturating_sub(ANSWER_TIME.min(remaining / 4))
        });
        u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
    }
}

/// How to connect, and under which identity.
///
/// ```
/// # use tiffin_client::ConnectOptions;
/// let options = ConnectOptions { token: "secret".to_owned(), ..ConnectOptions::new("127.0.0.1:7400") };
/// ```
#[derive(Clone)]
pub struct ConnectOptions {
    /// The master: `host:port`, `[ipv6]:port` or `unix:@name`; several separated by commas, or
    /// `etcd://host:2379/CLUSTER`.
    pub address: String,
    /// The shared secret; empty if none is set.
    pub token: String,
    /// With a CA, TCP connections are encrypted, and lead only to servers whose certificate it has signed.
    /// The certificate is shown to servers that ask. The files are read again when they change.
    pub tls: TlsFiles,
    /// How etcd is reached, if the master is found there.
    pub etcd: EtcdAccess,
    /// The namespace of all keys.
    pub namespace: String,
    /// A readable name, shown in lists of clients.
    pub label: String,
    /// Whether the memory of nodes on this host may be mapped. If not, every byte is sent through TCP, as
    /// if the master and all nodes were on other hosts.
    pub shared_memory: bool,
    /// The node in this process, if there is one: the preferred node for puts.
    pub home: Option<SegmentId>,
    /// The memory of that node, so that it is not mapped a second time.
    pub own_memory: Option<Arc<NodeMemory>>,
    /// The disks of that node, so that they are read without a socket.
    pub own_disks: Vec<Arc<dyn LocalDisk>>,
    /// Time limit for connecting. [`Client::connect`](crate::Client::connect) applies it to the master.
    /// Later calls apply it when they reconnect to the master or to a node, within their own deadline.
    pub connect_time: Duration,
    /// The collector of spans, if there is one. Only calls of callers that trace have spans
    /// ([`trace::scoped`](crate::trace::scoped)).
    pub trace: Option<TracerSettings>,
}

impl ConnectOptions {
    /// Connects to that master, with shared memory where possible and defaults for the rest.
    #[must_use]
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            token: String::new(),
            tls: TlsFiles::default(),
            etcd: EtcdAccess::default(),
            namespace: NAMESPACE_DEFAULT.to_owned(),
            label: format!("process {}", std::process::id()),
            shared_memory: true,
            home: None,
            own_memory: None,
            own_disks: Vec::new(),
            connect_time: CONNECT_TIME,
            trace: None,
        }
    }
}

/// Omits the token, so that it does not appear in logs.
impl std::fmt::Debug for ConnectOptions {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("ConnectOptions")
            .field("address", &self.address)
            .field("namespace", &self.namespace)
            .field("label", &self.label)
            .field("shared_memory", &self.shared_memory)
            .field("home", &self.home)
            .field("connect_time", &self.connect_time)
            .finish_non_exhaustive()
    }
}

/// Options of a get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetOptions {
    /// Protects the objects from eviction for the master's lease time.
    pub lease: bool,
    /// How many milliseconds a batch waits for objects that are being promoted, before it reads them from
    /// the disk. It does not wait if none is being promoted. The default is 10.
    pub promotion_wait_ms: Option<u64>,
}

/// Options of a resolve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResolveOptions {
    /// Counts as a use: moves the objects to the recent end of the eviction list.
    pub touch: bool,
    /// Protects the objects from eviction for the master's lease time.
    pub lease: bool,
    /// Requests the locations of the copies: fills [`Info::replicas`](crate::Info::replicas).
    pub locate: bool,
    /// For existence checks: which objects that are only on a disk are prefetched. The reply is the same.
    pub ahead: Ahead,
}

/// What a put does if there is no space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpaceWait {
    /// It fails at once.
    #[default]
    Never,
    /// It waits in a queue that is first in, first out within its namespace, until space is freed. At the
    /// deadline it fails in the same way, with the usage of the store or the namespace.
    UntilDeadline,
    /// The same for at most this time, and not beyond the deadline.
    For(Duration),
}

impl SpaceWait {
    /// How long the master may let a put wait so that its reply still arrives in time.
    pub(crate) fn wait_ms(self, deadline: Deadline) -> u64 {
        match self {
            Self::Never => 0,
            Self::UntilDeadline => deadline.wait_ms(),
            Self::For(time) => deadline.wait_ms().min(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

/// Options of a delete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Deletes leased objects, too, if the master's leases protect from deletion.
    pub force: bool,
}

/// Which objects a list has, besides a pattern.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions {
    /// Only objects that this owner pins.
    pub pinned_by: Option<String>,
    /// Only objects whose key is greater than this one: the last key of the previous list.
    pub after: Option<Key>,
    /// The greatest number of objects.
    pub limit: Option<usize>,
}

impl ListOptions {
    /// All objects that this owner pins.
    #[must_use]
    pub fn pinned_by(owner: &str) -> Self {
        Self { pinned_by: Some(owner.to_owned()), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_ends_before_the_deadline_of_its_call() {
        let minute = Duration::from_secs(60);
        let now = Instant::now();
        // Without a time of its own, a wait leaves half a second of the deadline for the answer.
        let plain = Deadline::at(now + minute);
        assert!(plain.wait_ms() <= 59_500 && !plain.wait_is_over() && plain.wait_time().is_none());
        let waiting = Deadline::waiting(minute, minute);
        assert!(waiting.wait_ms() <= 60_000 && waiting.remaining() > minute && !waiting.wait_is_over());
        let poll = Deadline::waiting(Duration::ZERO, minute);
        assert_eq!((poll.wait_ms(), poll.wait_is_over(), poll.has_passed()), (0, true, false));
        let past = Deadline::at(now);
        assert_eq!((past.wait_ms(), past.wait_is_over(), past.has_passed()), (0, true, true));
        // Neither part overflows.
        assert!(!Deadline::waiting(Duration::MAX, Duration::MAX).wait_is_over());
    }
}
