//! What a caller may choose.

use std::sync::Arc;
use std::time::Duration;

use tiffin_transport::local::LocalDisk;
use tiffin_transport::segment::NodeMemory;
use tiffin_types::NAMESPACE_DEFAULT;
use tiffin_types::SegmentId;
use tiffin_types::message::Ahead;
use tokio::time::Instant;

/// How long connecting may take, unless told otherwise.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// What is left of a deadline for an answer to arrive in, if there is that much.
const ANSWER_TIME: Duration = Duration::from_millis(500);
/// What stands for "never": about thirty years. An instant much further on cannot be represented everywhere.
const NEVER: Duration = Duration::from_secs(86_400 * 365 * 30);

/// The moment by which a call has ended, whatever the other side does.
///
/// A call that waits for news, such as [`Client::pull`](crate::Client::pull), ends its wait earlier and gives
/// what there is: that is an answer. Only a deadline that comes before the answer is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline {
    end: Instant,
    /// When a wait for news ends, if that was said apart.
    wait_end: Option<Instant>,
}

impl Deadline {
    /// So long from now. [`Duration::MAX`] is as good as never.
    #[must_use]
    pub fn after(time: Duration) -> Self {
        Self::at(Instant::now() + time.min(NEVER))
    }

    /// For a call that waits for news, or for nodes to confirm: the wait ends after `wait_time`, and its
    /// answer may take `answer_time` more. So a short wait on a slow machine ends with an answer, not with an
    /// error.
    #[must_use]
    pub fn waiting(wait_time: Duration, answer_time: Duration) -> Self {
        let wait_end = Instant::now() + wait_time.min(NEVER);
        Self { end: wait_end + answer_time.min(NEVER), wait_end: Some(wait_end) }
    }

    /// At that moment.
    #[must_use]
    pub fn at(instant: Instant) -> Self {
        Self { end: instant, wait_end: None }
    }

    /// That moment.
    #[must_use]
    pub fn instant(self) -> Instant {
        self.end
    }

    /// Whether it has come.
    #[must_use]
    pub fn has_passed(self) -> bool {
        self.end <= Instant::now()
    }

    /// How much time is left.
    #[must_use]
    pub fn remaining(self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Whether a call that waits for news must answer with what there is.
    pub(crate) fn wait_is_over(self) -> bool {
        self.wait_end.unwrap_or(self.end) <= Instant::now()
    }

    /// What is left of the wait, if its time was said apart.
    pub(crate) fn wait_time(self) -> Option<Duration> {
        Some(self.wait_end?.saturating_duration_since(Instant::now()))
    }

    /// How long the other side may wait for something to happen, so that its answer still comes in time.
    pub(crate) fn wait_ms(self) -> u64 {
        let wait = self.wait_time().unwrap_or_else(|| {
            let remaining = self.remaining();
            remaining.saturating_sub(ANSWER_TIME.min(remaining / 4))
        });
        u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Where to connect to, and as whom.
///
/// ```
/// # use tiffin_client::ConnectOptions;
/// let options = ConnectOptions { token: "secret".to_owned(), ..ConnectOptions::new("127.0.0.1:7400") };
/// ```
#[derive(Clone)]
pub struct ConnectOptions {
    /// The master: `host:port`, `[ipv6]:port` or `unix:@name`.
    pub address: String,
    /// The shared secret; empty where none is set.
    pub token: String,
    /// The namespace of all keys.
    pub namespace: String,
    /// A name for people, shown in lists of clients.
    pub label: String,
    /// Whether the memory of nodes on this host may be mapped. Switching it off sends every byte through TCP,
    /// as if the master and all nodes were on other hosts.
    pub shared_memory: bool,
    /// The node that lives in this process, if one does: the best home for puts.
    pub home: Option<SegmentId>,
    /// The memory of that node, so that it can be reached without mapping it once more.
    pub home_memory: Option<Arc<NodeMemory>>,
    /// The disks of that node, so that they can be read without a socket.
    pub home_disks: Vec<Arc<dyn LocalDisk>>,
    /// How long connecting may take: to the master in [`Client::connect`](crate::Client::connect), and
    /// later to it or to a node, inside the deadline of the call that needs it.
    pub connect_time: Duration,
}

impl ConnectOptions {
    /// Connects to that master, with shared memory where possible, and with all else as usual.
    #[must_use]
    pub fn new(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            token: String::new(),
            namespace: NAMESPACE_DEFAULT.to_owned(),
            label: format!("process {}", std::process::id()),
            shared_memory: true,
            home: None,
            home_memory: None,
            home_disks: Vec::new(),
            connect_time: CONNECT_TIME,
        }
    }
}

/// Leaves the token out, so that it does not end up in a log.
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

/// How to get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GetOptions {
    /// Protects the objects from eviction for the master's lease time.
    pub lease: bool,
    /// How many milliseconds a batch waits for objects that are on their way from a disk into memory, before
    /// it reads them from the disk. Never waits when nothing is on its way. Ten if not said.
    pub promotion_wait_ms: Option<u64>,
}

/// How to look objects up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResolveOptions {
    /// Counts as a use: moves the objects to the recent end of the eviction order.
    pub touch: bool,
    /// Protects the objects from eviction for the master's lease time.
    pub lease: bool,
    /// Wants to know where the copies lie: fills [`Info::replicas`](crate::Info::replicas).
    pub locate: bool,
    /// Where only presence is asked for: which objects are to be in memory soon, that only a disk has. The
    /// answer is the same.
    pub ahead: Ahead,
}

/// What a put does that finds no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patience {
    /// It fails at once.
    #[default]
    Never,
    /// It waits in line, first come first served within its namespace, and is woken by what makes room. At
    /// the deadline it fails in the same way: with how full the store or the namespace is.
    UntilDeadline,
    /// The same, but for so long at most, and not beyond the deadline.
    For(Duration),
}

impl Patience {
    /// How long the master may let a put wait, so that its answer still comes in time.
    pub(crate) fn wait_ms(self, deadline: Deadline) -> u64 {
        match self {
            Self::Never => 0,
            Self::UntilDeadline => deadline.wait_ms(),
            Self::For(time) => deadline.wait_ms().min(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        }
    }
}

/// How to delete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Even if leased, where leases refuse removal.
    pub force: bool,
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
