//! Where the masters of a cluster are: one address, several, or an etcd that knows the leader.
//!
//! With one address, an attempt to connect is one attempt. With more, all masters are tried until one of them
//! leads or the time is up: standbys refuse, and a master that is stopped does not answer.
//!
//! The epoch tells an old leader from a new one. Callers never go back to a smaller epoch.

use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tiffin_etcd::leader::{CLUSTER_DEFAULT, Keys};
use tiffin_etcd::{Etcd, EtcdAccess};
use tiffin_types::message::{Hello, Reason};
use tiffin_types::{ClientId, NAMESPACE_DEFAULT};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::{Address, CallError, Via, dial, host};

/// The greatest number of addresses.
pub const MASTERS_MAX: usize = 16;
/// How long one master may take before the next one is tried as well.
const STAGGER: Duration = Duration::from_millis(100);
/// How long one attempt may take where there are several masters.
const TRY_TIME: Duration = Duration::from_secs(2);
/// A master that was silent for this long may have been replaced.
const SILENCE: Duration = Duration::from_millis(750);
/// How long a master may take to say that it leads. The silent one is asked, too, and does not answer.
const PROBE_TIME: Duration = Duration::from_millis(500);
/// The pause before a master is tried again.
const ROUND_PAUSE: Duration = Duration::from_millis(50);
/// What to do if no master leads.
const START_A_MASTER: &str = "check that one of the masters runs and reaches etcd";

/// Text that does not name masters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` does not name a master: {why}\n\nhint: write `host:port`, `[ipv6]:port` or `unix:@name`, \
     several separated by commas, or `etcd://host:2379/CLUSTER`"
)]
pub struct MastersError {
    text: String,
    why: String,
}

/// The masters of one cluster.
#[derive(Clone, Debug)]
pub struct Masters {
    text: String,
    source: Source,
}

#[derive(Clone, Debug)]
enum Source {
    Listed(Vec<Address>),
    Etcd(Arc<Etcd>, Keys),
}

impl Masters {
    /// The address, if there is only one master.
    #[must_use]
    pub fn single(&self) -> Option<&Address> {
        match &self.source {
            Source::Listed(addresses) => addresses.first().filter(|_| addresses.len() == 1),
            Source::Etcd(..) => None,
        }
    }

    /// Reaches etcd with these files, if the masters are found there.
    pub fn with_etcd(self, access: &EtcdAccess) -> Result<Self, MastersError> {
        let Source::Etcd(etcd, keys) = &self.source else { return Ok(self) };
        let etcd = Etcd::open(&etcd.endpoints(), access).map_err(|error| MastersError {
            text: self.text.clone(),
            why: error.to_string().lines().next().unwrap_or_default().to_owned(),
        })?;
        Ok(Self { source: Source::Etcd(Arc::new(etcd), keys.clone()), ..self })
    }

    /// An address of a master or of etcd, to find the way to it.
    #[must_use]
    pub fn nearby(&self) -> Option<Address> {
        match &self.source {
            Source::Listed(addresses) => addresses.first().cloned(),
            Source::Etcd(etcd, _) => etcd.endpoints().split(',').next().and_then(|it| it.parse().ok()),
        }
    }

    /// Opens something at the leader with `try_one`, which gets an address and a deadline. With several
    /// masters it is tried again until the deadline.
    pub async fn open<T, F>(
        &self,
        deadline: Instant,
        try_one: impl Fn(Address, Instant) -> F,
    ) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, CallError>> + Send + 'static,
    {
        if let Some(address) = self.single() {
            return try_one(address.clone(), deadline).await;
        }
        let mut search = Search::new(self);
        let mut attempts = JoinSet::new();
        loop {
            tokio::select! {
                () = sleep_until(deadline) => return Err(search.failure()),
                address = search.next() => {
                    let until = deadline.min(Instant::now() + TRY_TIME);
                    let attempt = try_one(address.clone(), until);
                    attempts.spawn(async move { (address, attempt.await) });
                }
                Some(ended) = attempts.join_next() => {
                    let Ok((address, result)) = ended else { continue };
                    match result {
                        Ok(opened) => return Ok(opened),
                        Err(error) => search.failed(address, error)?,
                    }
                }
            }
        }
    }

    /// Whether another master leads with a greater epoch. With one address there is no other.
    pub async fn have_newer(&self, epoch: u64, via: &Via, hello: &Hello, deadline: Instant) -> bool {
        let addresses = match &self.source {
            Source::Listed(addresses) if addresses.len() == 1 => return false,
            Source::Listed(addresses) => addresses,
            Source::Etcd(etcd, keys) => {
                let leader = etcd.leader(keys, deadline).await.ok().flatten();
                return leader.is_some_and(|(leader, _)| leader.epoch > epoch);
            }
        };
        let mut dials = JoinSet::new();
        for address in addresses.clone() {
            let (hello, via) = (hello.clone(), via.clone());
            dials.spawn(async move { dial(&address, via, hello, deadline).await });
        }
        while let Some(dialed) = dials.join_next().await {
            if let Ok(Ok(dialed)) = dialed
                && dialed.welcome.epoch > epoch
            {
                return true;
            }
        }
        false
    }

    async fn candidates(&self, deadline: Instant) -> Result<Vec<Address>, CallError> {
        let none = |why: String, hint| CallError::NoLeader { masters: self.text.clone(), why, hint };
        match &self.source {
            Source::Listed(addresses) => Ok(addresses.clone()),
            Source::Etcd(etcd, keys) => {
                let until = deadline.min(Instant::now() + TRY_TIME);
                let leader = etcd.leader(keys, until).await;
                let leader = leader.map_err(|error| {
                    let why = error.to_string().lines().next().unwrap_or_default().to_owned();
                    none(why, error.hint())
                })?;
                let (leader, _) =
                    leader.ok_or_else(|| none("etcd knows no leader".to_owned(), START_A_MASTER))?;
                let addresses: Vec<_> = leader.addresses.iter().filter_map(|it| it.parse().ok()).collect();
                if addresses.is_empty() {
                    Err(none("its leader has no address".to_owned(), START_A_MASTER))
                } else {
                    Ok(addresses)
                }
            }
        }
    }
}

/// Which masters are to be tried, and when. A master that does not answer keeps no other one waiting.
struct Search<'a> {
    masters: &'a Masters,
    /// When each is tried next.
    queue: Vec<(Instant, Address)>,
    /// Under way.
    tried: BTreeSet<Address>,
    /// When etcd is read next.
    read: Instant,
    error: Option<CallError>,
    /// Masters that refuse for good.
    final_count: usize,
}

impl<'a> Search<'a> {
    fn new(masters: &'a Masters) -> Self {
        let now = Instant::now();
        let mut search = Self {
            masters,
            queue: Vec::new(),
            tried: BTreeSet::new(),
            read: now,
            error: None,
            final_count: 0,
        };
        if let Source::Listed(addresses) = &masters.source {
            let times = (0_u32..).map(|it| now + STAGGER * it);
            search.queue = times.zip(addresses.iter().cloned()).collect();
        }
        search
    }

    /// The next address, when it is due. Nothing is lost if this is dropped.
    async fn next(&mut self) -> Address {
        loop {
            if let Source::Etcd(..) = self.masters.source
                && self.read <= Instant::now()
            {
                self.read_leader().await;
            }
            let first = self.queue.iter().enumerate().min_by_key(|(_, it)| it.0).map(|(at, it)| (at, it.0));
            match (first, &self.masters.source) {
                (Some((at, due)), _) if due <= Instant::now() => {
                    let (_, address) = self.queue.swap_remove(at);
                    self.tried.insert(address.clone());
                    return address;
                }
                (Some((_, due)), Source::Listed(_)) => sleep_until(due).await,
                (Some((_, due)), Source::Etcd(..)) => sleep_until(due.min(self.read)).await,
                (None, Source::Etcd(..)) => sleep_until(self.read).await,
                (None, Source::Listed(_)) => std::future::pending().await,
            }
        }
    }

    async fn read_leader(&mut self) {
        let candidates = self.masters.candidates(Instant::now() + TRY_TIME).await;
        self.read = Instant::now() + STAGGER;
        match candidates {
            Ok(addresses) => {
                let is_new = |it: &Address| {
                    !self.tried.contains(it) && !self.queue.iter().any(|(_, queued)| queued == it)
                };
                let new: Vec<_> = addresses.into_iter().filter(is_new).collect();
                self.queue.extend(new.into_iter().map(|it| (Instant::now(), it)));
            }
            Err(error) => self.error = Some(error),
        }
    }

    /// An attempt has failed; an error if no other one can succeed.
    fn failed(&mut self, address: Address, error: CallError) -> Result<(), CallError> {
        self.tried.remove(&address);
        let count = match &self.masters.source {
            Source::Listed(addresses) => addresses.len(),
            Source::Etcd(..) => 1,
        };
        if is_final(&error) {
            self.final_count += 1;
            // Whether the others refuse as well is asked at once.
            let now = Instant::now();
            self.queue.iter_mut().for_each(|it| it.0 = it.0.min(now));
            return if self.final_count >= count { Err(error) } else { Ok(()) };
        }
        if let Source::Listed(_) = self.masters.source {
            self.queue.push((Instant::now() + ROUND_PAUSE, address));
        }
        self.error = Some(error);
        Ok(())
    }

    /// The error at the deadline.
    fn failure(&mut self) -> CallError {
        let masters = self.masters.text.clone();
        match self.error.take() {
            Some(CallError::Refused(refusal)) if refusal.reason == Reason::Standby => {
                CallError::NoLeader { masters, why: refusal.message, hint: START_A_MASTER }
            }
            Some(error) => error,
            None => {
                let why = "none answered in time".to_owned();
                CallError::NoLeader { masters, why, hint: START_A_MASTER }
            }
        }
    }
}

fn is_final(error: &CallError) -> bool {
    match error {
        CallError::Refused(refusal) => {
            matches!(
                refusal.reason,
                Reason::Unauthenticated | Reason::Version | Reason::NotForYou | Reason::Invalid
            )
        }
        CallError::TooLarge(_) => true,
        CallError::Tls { source, .. } => source.is_final(),
        _ => false,
    }
}

impl FromStr for Masters {
    type Err = MastersError;

    fn from_str(text: &str) -> Result<Self, MastersError> {
        let fail = |why: String| MastersError { text: text.to_owned(), why };
        let first_line = |it: String| it.lines().next().unwrap_or_default().to_owned();
        let source = match text.strip_prefix("etcd://") {
            Some(rest) => {
                let (endpoints, cluster) = rest.split_once('/').unwrap_or((rest, ""));
                let cluster = if cluster.is_empty() { CLUSTER_DEFAULT } else { cluster };
                let etcd = Etcd::new(endpoints).map_err(|it| fail(first_line(it.to_string())))?;
                let keys = Keys::new(cluster).map_err(|it| fail(first_line(it.to_string())))?;
                Source::Etcd(Arc::new(etcd), keys)
            }
            None => {
                let parts = text.split([',', ';']).map(str::trim).filter(|it| !it.is_empty());
                let addresses: Result<Vec<Address>, _> = parts.map(str::parse).collect();
                let addresses = addresses.map_err(|it| fail(first_line(it.to_string())))?;
                match addresses.len() {
                    0 => return Err(fail("it is empty".to_owned())),
                    1..=MASTERS_MAX => Source::Listed(addresses),
                    _ => return Err(fail(format!("there are more than {MASTERS_MAX} addresses"))),
                }
            }
        };
        Ok(Self { text: text.to_owned(), source })
    }
}

impl From<Address> for Masters {
    fn from(address: Address) -> Self {
        Self { text: address.to_string(), source: Source::Listed(vec![address]) }
    }
}

impl fmt::Display for Masters {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.text)
    }
}

impl PartialEq for Masters {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Masters {}

/// The time of the last message from a peer.
#[derive(Debug)]
pub struct LastMessage {
    start: Instant,
    after_ms: AtomicU64,
}

impl LastMessage {
    /// A message arrives now.
    #[must_use]
    pub fn now() -> Self {
        Self { start: Instant::now(), after_ms: AtomicU64::new(0) }
    }

    /// Another message arrives.
    pub fn again(&self) {
        let after_ms = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.after_ms.store(after_ms, Ordering::Relaxed);
    }

    /// When that was.
    #[must_use]
    pub fn last(&self) -> Instant {
        self.start + Duration::from_millis(self.after_ms.load(Ordering::Relaxed))
    }
}

/// Ends when a master of that epoch is silent and another one leads. Never ends with one address.
pub async fn superseded(masters: &Masters, epoch: u64, via: &Via, token: &str, last_message: &LastMessage) {
    if masters.single().is_some() {
        return std::future::pending().await;
    }
    let client = ClientId((host::draw().unwrap_or(1) >> 1).max(1));
    let namespace = NAMESPACE_DEFAULT.to_owned();
    let label = "looks for the leader".to_owned();
    let hello = Hello { token: token.to_owned(), client, namespace, label, ..Hello::default() };
    loop {
        let due = last_message.last() + SILENCE;
        if due > Instant::now() {
            sleep_until(due).await;
            continue;
        }
        let until = Instant::now() + PROBE_TIME;
        if timeout_at(until, masters.have_newer(epoch, via, &hello, until)).await == Ok(true) {
            return;
        }
        sleep(ROUND_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tiffin_types::message::Refusal;

    use super::*;

    #[test]
    fn masters_read_as_they_are_written() {
        for text in ["h:1", "h:1,i:2", "unix:@a;h:1", "etcd://a:2379,b:2379/prod", "etcd://a:2379"] {
            let masters: Masters = text.parse().unwrap();
            assert_eq!(masters.to_string(), text);
            assert_eq!(masters.single().is_some(), text == "h:1");
        }
        let most = vec!["h:1"; MASTERS_MAX].join(",");
        assert!(most.parse::<Masters>().is_ok());
        for text in ["", "h", "h:1,,x", "etcd://", "etcd://a", "etcd://a:1/b/c", &format!("{most},h:1")] {
            let message = text.parse::<Masters>().unwrap_err().to_string();
            assert!(message.contains("hint: write `host:port`"), "{message}");
        }
    }

    fn refused(reason: Reason) -> CallError {
        CallError::Refused(Refusal { reason, message: "no".to_owned() })
    }

    #[tokio::test(start_paused = true)]
    async fn silent_and_standing_by_masters_are_passed_over() {
        let masters: Masters = "silent:1,standby:1,leader:1".parse().unwrap();
        let opened = masters.open(Instant::now() + Duration::from_secs(9), |address, _| async move {
            match address.to_string().as_str() {
                "silent:1" => std::future::pending().await,
                "standby:1" => Err(refused(Reason::Standby)),
                other => Ok(other.to_owned()),
            }
        });
        assert_eq!(opened.await.unwrap(), "leader:1");
    }

    #[tokio::test(start_paused = true)]
    async fn attempts_are_repeated_until_one_leads_or_time_is_up() {
        let masters: Masters = "a:1,b:1".parse().unwrap();
        let tried = Arc::new(AtomicUsize::new(0));
        let attempt = |needed: usize| {
            let tried = Arc::clone(&tried);
            move |_: Address, _: Instant| {
                let count = tried.fetch_add(1, Ordering::Relaxed);
                async move { if count >= needed { Ok(count) } else { Err(refused(Reason::Standby)) } }
            }
        };
        let opened = masters.open(Instant::now() + Duration::from_secs(9), attempt(7)).await;
        assert_eq!(opened.unwrap(), 7);
        let failed = masters.open(Instant::now() + Duration::from_secs(9), attempt(usize::MAX)).await;
        assert!(failed.unwrap_err().to_string().contains("no master of `a:1,b:1` leads"));
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_for_good_are_not_repeated() {
        let masters: Masters = "a:1,b:1".parse().unwrap();
        let began = Instant::now();
        let failed: Result<(), _> = masters
            .open(began + Duration::from_secs(9), |_, _| async { Err(refused(Reason::Unauthenticated)) })
            .await;
        assert!(matches!(failed, Err(CallError::Refused(it)) if it.reason == Reason::Unauthenticated));
        assert!(began.elapsed() < STAGGER);
    }
}
