//! How often one peer may show a wrong token.
//!
//! A peer is a host, or a user on this one. Up to a number of wrong tokens it is answered at once. Beyond
//! that the answers come late, and few at a time: while as many are held back as may be, further ones are
//! not given, and the connection is closed.
//!
//! **Invariant:** a valid token is admitted at once, whatever else its peer does: honest clients of a host
//! cannot be locked out by another process there. So this slows a peer down; what keeps it from guessing is
//! the length of the token.
//!
//! **Invariant:** at most [`Settings::peers_max`] peers are remembered, and at most [`Settings::held_max`]
//! answers are held back.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tiffin_core::master::LimitStat;
use tiffin_transport::AnswerTime;
use tokio::time::{Instant, sleep};

/// Part of the address of an IPv6 host that its network has chosen. One host may have all the rest.
const IPV6_NETWORK: Ipv6Addr = Ipv6Addr::new(0xffff, 0xffff, 0xffff, 0xffff, 0, 0, 0, 0);

/// A party that shows tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// A host; of IPv6 its network.
    Host(IpAddr),
    /// A user of this host.
    User(u32),
}

impl From<IpAddr> for Source {
    fn from(ip: IpAddr) -> Self {
        Self::Host(match ip.to_canonical() {
            IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & IPV6_NETWORK.to_bits())),
            ip => ip,
        })
    }
}

impl Source {
    /// The host, if it is one.
    pub(crate) fn host(self) -> Option<IpAddr> {
        match self {
            Self::Host(ip) => Some(ip),
            Self::User(_) => None,
        }
    }
}

/// The numbers of the module's rules.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// Wrong tokens of one peer that are answered at once.
    pub(super) at_once_max: u32,
    /// The time after which a peer may show one more.
    pub(super) refill: Duration,
    /// How late the other answers are.
    pub(super) delay: Duration,
    /// Maximum number of answers to one peer that are held back.
    pub(super) held_peer_max: u32,
    /// The same for all peers.
    pub(super) held_max: u32,
    /// Maximum number of peers that are remembered.
    pub(super) peers_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            at_once_max: 256,
            refill: Duration::from_millis(250),
            delay: Duration::from_secs(1),
            held_peer_max: 16,
            held_max: 128,
            peers_max: 4096,
        }
    }
}

/// The peers that have shown wrong tokens.
#[derive(Debug, Default)]
pub(crate) struct Guesses {
    settings: Settings,
    // Held for one operation.
    table: Arc<Mutex<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    peers: BTreeMap<Source, Peer>,
    held: u32,
    /// How many wrong tokens were not answered at once.
    reached: u64,
}

#[derive(Debug)]
struct Peer {
    /// Wrong tokens, less those that are forgotten.
    count: u32,
    /// Up to when they are forgotten.
    since: Instant,
    held: u32,
}

/// An answer that is held back, until this is dropped.
struct DelayedAnswer {
    table: Arc<Mutex<Table>>,
    source: Source,
}

impl Guesses {
    #[cfg(test)]
    fn new(settings: Settings) -> Self {
        Self { settings, table: Arc::default() }
    }

    /// With these limits for each peer, and answers that are held back for ever.
    #[cfg(test)]
    pub(crate) fn with_limits(at_once_max: u32, held_peer_max: u32) -> Self {
        let ever = Duration::from_secs(1 << 30);
        Self::new(Settings { at_once_max, held_peer_max, refill: ever, delay: ever, ..Settings::default() })
    }

    /// A peer has shown a wrong token. When it is told so.
    pub(crate) fn failed(&self, source: Source) -> AnswerTime {
        let settings = self.settings;
        let mut table = lock(&self.table);
        let now = Instant::now();
        table.make_space(source, settings, now);
        let Table { peers, held, reached } = &mut *table;
        let peer = peers.entry(source).or_insert(Peer { count: 0, since: now, held: 0 });
        peer.forget(settings.refill, now);
        if peer.count < settings.at_once_max {
            peer.count += 1;
            return AnswerTime::Now;
        }
        *reached += 1;
        // At powers of two only: a flood of guesses must not flood the log.
        if reached.is_power_of_two() {
            tracing::warn!(peer = ?source, count = reached, "too many wrong tokens: they are answered late");
        }
        if peer.held >= settings.held_peer_max || *held >= settings.held_max {
            return AnswerTime::Never;
        }
        peer.held += 1;
        *held += 1;
        let guard = DelayedAnswer { table: Arc::clone(&self.table), source };
        AnswerTime::After(Box::pin(async move {
            let _guard = guard;
            sleep(settings.delay).await;
        }))
    }

    /// Its use, for operators: by the peer with most wrong tokens.
    pub(crate) fn stat(&self) -> LimitStat {
        let now = Instant::now();
        let mut table = lock(&self.table);
        table.peers.values_mut().for_each(|it| it.forget(self.settings.refill, now));
        let used = table.peers.values().map(|it| it.count).max().unwrap_or(0).into();
        let (name, max) = ("failed_credentials_per_peer", self.settings.at_once_max.into());
        LimitStat { name, max, used, reached: table.reached }
    }
}

impl Table {
    /// Forgets peers, so that there is space for this one: first those without wrong tokens, then the one
    /// with fewest. A peer whose answers are held back stays.
    fn make_space(&mut self, source: Source, settings: Settings, now: Instant) {
        if self.peers.len() < settings.peers_max || self.peers.contains_key(&source) {
            return;
        }
        self.peers.values_mut().for_each(|it| it.forget(settings.refill, now));
        self.peers.retain(|_, it| it.count > 0 || it.held > 0);
        if self.peers.len() >= settings.peers_max {
            let least = self.peers.iter().filter(|(_, it)| it.held == 0).min_by_key(|(_, it)| it.count);
            if let Some(least) = least.map(|(source, _)| *source) {
                self.peers.remove(&least);
            }
        }
    }
}

impl Peer {
    fn forget(&mut self, refill: Duration, now: Instant) {
        let passed = now.saturating_duration_since(self.since).as_nanos() / refill.as_nanos().max(1);
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        self.since = if passed >= self.count { now } else { self.since + refill * passed };
        self.count = self.count.saturating_sub(passed);
    }
}

impl Drop for DelayedAnswer {
    fn drop(&mut self) {
        let mut table = lock(&self.table);
        table.held -= 1;
        if let Some(peer) = table.peers.get_mut(&self.source) {
            peer.held -= 1;
        }
    }
}

fn lock(table: &Mutex<Table>) -> MutexGuard<'_, Table> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: Settings = Settings {
        at_once_max: 3,
        refill: Duration::from_secs(10),
        delay: Duration::from_secs(1),
        held_peer_max: 2,
        held_max: 3,
        peers_max: 4,
    };

    fn host(last: u8) -> Source {
        Source::from(IpAddr::from([192, 0, 2, last]))
    }

    fn word(time: &AnswerTime) -> &'static str {
        match time {
            AnswerTime::Now => "now",
            AnswerTime::After(_) => "late",
            AnswerTime::Never => "never",
        }
    }

    #[tokio::test(start_paused = true)]
    async fn wrong_tokens_beyond_the_limit_are_answered_late() {
        let guesses = Guesses::new(SETTINGS);
        let times: Vec<_> = (0..6).map(|_| guesses.failed(host(1))).collect();
        assert_eq!(
            times.iter().map(word).collect::<Vec<_>>(),
            ["now", "now", "now", "late", "late", "never"]
        );
        assert_eq!((guesses.stat().used, guesses.stat().reached), (3, 3));
        // Another peer is not concerned, until too many answers are held back.
        let other: Vec<_> = (0..5).map(|_| guesses.failed(host(2))).collect();
        assert_eq!(other.iter().map(word).collect::<Vec<_>>(), ["now", "now", "now", "late", "never"]);
        let began = Instant::now();
        for time in times.into_iter().chain(other) {
            if let AnswerTime::After(time) = time {
                time.await;
            }
        }
        assert_eq!(began.elapsed(), SETTINGS.delay * 3, "each future waits when it is first polled");
        assert_eq!(lock(&guesses.table).held, 0);
        // Time makes up for them, one by one.
        tokio::time::advance(SETTINGS.refill).await;
        assert_eq!([word(&guesses.failed(host(1))), word(&guesses.failed(host(1)))], ["now", "late"]);
    }

    #[tokio::test(start_paused = true)]
    async fn peers_with_few_wrong_tokens_are_forgotten_first() {
        let guesses = Guesses::new(SETTINGS);
        for _ in 0..4 {
            let _time = guesses.failed(host(1));
        }
        for last in 2..20 {
            let _time = guesses.failed(host(last));
            assert!(lock(&guesses.table).peers.len() <= SETTINGS.peers_max);
        }
        assert_eq!(word(&guesses.failed(host(1))), "late");
    }

    #[test]
    fn networks_of_ipv6_and_mapped_addresses_are_one_peer() {
        let source = |text: &str| Source::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(source("2001:db8:1:2::3"), source("2001:db8:1:2:ffff::1"));
        assert_ne!(source("2001:db8:1:2::3"), source("2001:db8:1:3::3"));
        assert_eq!(source("::ffff:192.0.2.1"), host(1));
        assert_ne!(host(1), host(2));
    }
}
