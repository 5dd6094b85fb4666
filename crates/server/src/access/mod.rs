//! The tokens that a server accepts, and their holders.
//!
//! A server without a token accepts every connection that reaches it, with all rights; it listens on loopback
//! and Unix sockets only. A server with one finds the `Holder` of each connection by the hash of its token.
//! The decisions are those of [`tiffin_types::access`].
//!
//! The *access file* is read again when it changes. A holder whose token was removed, changed or has expired
//! is *ended*: its connections are closed, and its open pages and data connections refuse every further
//! request.
//!
//! **Invariant:** no token is kept or logged, only its hash. Hashes are compared in constant time.
//!
//! **Invariant:** an access file that cannot be read or parsed changes nothing: the tokens of the last good
//! one stay valid.

mod clients;
mod file;
mod guesses;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use blake3::Hash;
use tiffin_rpc::{Budget, BudgetUse, Outbox};
use tiffin_transport::{AnswerTime, LimitUse, tcp};
use tiffin_types::access::{Credential, Namespaces, Right, Rights};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{MissedTickBehavior, interval};

pub(crate) use clients::ClientIds;
pub use file::{AccessError, AccessFile, NewToken, TOKENS_MAX, TokenEntry};
pub(crate) use guesses::{Guesses, Source};

/// How often a server looks whether its access file has changed or a token has expired.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of requests for pages of one token that is limited to namespaces.
const TOKEN_PAGES_MAX: usize = 64;
/// The name of the token that is given by a setting, which has all rights.
const SETTING_NAME: &str = "token of the settings";

/// A party that has shown a token.
#[derive(Debug)]
pub(crate) struct Holder {
    credential: Credential,
    /// Tells holders apart. It is no secret, and cannot be chosen.
    principal: u64,
    is_ended: AtomicBool,
    end: Notify,
    next: AtomicU64,
    // Held for one operation.
    connections: Mutex<BTreeMap<u64, Outbox>>,
    /// Its places among the requests for pages, and how often there was none.
    pages: Arc<Semaphore>,
    pages_crowded: AtomicU64,
    /// What its connections may have in memory.
    budget: Arc<Budget>,
}

/// A token that is limited to namespaces has as many requests for pages as it may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageLimit;

impl Holder {
    fn new(credential: Credential, principal: u64) -> Arc<Self> {
        let (is_ended, end, next, connections, pages_crowded) = Default::default();
        let pages = Arc::new(Semaphore::new(TOKEN_PAGES_MAX));
        Arc::new(Self {
            credential,
            principal,
            is_ended,
            end,
            next,
            connections,
            pages,
            pages_crowded,
            budget: Arc::default(),
        })
    }

    pub(crate) fn credential(&self) -> &Credential {
        &self.credential
    }

    pub(crate) fn rights(&self) -> Rights {
        self.credential.rights()
    }

    pub(crate) fn namespaces(&self) -> &Namespaces {
        self.credential.namespaces()
    }

    pub(crate) fn principal(&self) -> u64 {
        self.principal
    }

    /// The number of a token that is limited to namespaces. It has one share, however many namespaces and
    /// client ids its holder uses. A token for all namespaces may have many users, and has no share.
    pub(crate) fn own_share(&self) -> Option<u64> {
        (!self.namespaces().is_all()).then_some(self.principal)
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Acquire)
    }

    /// Waits until it is ended.
    pub(crate) async fn ended(&self) {
        let mut end = pin!(self.end.notified());
        // From now on no end is missed.
        end.as_mut().enable();
        if !self.is_ended() {
            end.await;
        }
    }

    /// Whether its token is valid at this time.
    pub(crate) fn is_valid(&self, now_ms: u64) -> bool {
        !self.is_ended() && !self.credential.is_expired(now_ms)
    }

    /// Closes this connection when the holder ends, until the result is dropped. `None` if the token is
    /// limited to namespaces and has as many connections as it may have.
    pub(crate) fn connected(self: &Arc<Self>, outbox: Outbox, connections_max: usize) -> Option<Connected> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut connections = self.connections();
        if self.own_share().is_some() && connections.len() >= connections_max {
            return None;
        }
        // Under the lock: an end either finds the connection, or is noticed here.
        if self.is_ended() {
            outbox.close();
        }
        connections.insert(number, outbox);
        Some(Connected { holder: Arc::clone(self), number })
    }

    /// The memory that its connections share, if it is limited to namespaces.
    pub(crate) fn budget(&self) -> Option<&Arc<Budget>> {
        self.own_share().map(|_| &self.budget)
    }

    /// A place for a request for a page, which a token needs if it is limited to namespaces.
    pub(crate) fn page_place(&self) -> Result<Option<OwnedSemaphorePermit>, PageLimit> {
        if self.own_share().is_none() {
            return Ok(None);
        }
        let place = Arc::clone(&self.pages).try_acquire_owned();
        place.map(Some).map_err(|_| {
            self.pages_crowded.fetch_add(1, Ordering::Relaxed);
            PageLimit
        })
    }

    fn end(&self) {
        let connections = self.connections();
        self.is_ended.store(true, Ordering::Release);
        connections.values().for_each(Outbox::close);
        self.end.notify_waiters();
    }

    fn connections(&self) -> MutexGuard<'_, BTreeMap<u64, Outbox>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl tcp::Grant for Holder {
    fn may_read(&self) -> bool {
        self.rights().has(Right::Read)
    }

    fn may_write(&self) -> bool {
        self.rights().has(Right::Write)
    }

    fn covers(&self, namespace: &str) -> bool {
        self.namespaces().covers(namespace)
    }

    fn is_unlimited(&self) -> bool {
        self.namespaces().is_all()
    }

    fn shared(&self) -> Option<u64> {
        self.own_share()
    }

    fn is_ended(&self) -> bool {
        Holder::is_ended(self)
    }

    fn end(&self) -> Option<&Notify> {
        Some(&self.end)
    }
}

/// A connection that closes when its holder ends.
#[derive(Debug)]
pub(crate) struct Connected {
    holder: Arc<Holder>,
    number: u64,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.holder.connections().remove(&self.number);
    }
}

/// Why a token is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenProblem {
    Missing,
    Wrong,
    Expired,
}

impl TokenProblem {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Missing => "the token is missing",
            Self::Wrong => "the token is wrong",
            Self::Expired => "the token has expired",
        }
    }
}

/// The accepted tokens.
#[derive(Debug)]
pub(crate) struct Access {
    file: Option<PathBuf>,
    /// Every connection has this holder, if no token is set.
    anyone: Option<Arc<Holder>>,
    /// The token of the settings, if there is one.
    setting: Option<(Hash, Arc<Holder>)>,
    // Held for one operation.
    listed: Mutex<Listed>,
    guesses: Guesses,
}

/// The tokens of the access file.
#[derive(Debug, Default)]
struct Listed {
    version: Option<file::Version>,
    tokens: Vec<(TokenEntry, Arc<Holder>)>,
}

impl Access {
    /// Accepts this token, if it is not empty, and those of the access file, if there is one.
    pub(crate) fn new(token: &str, file: Option<&Path>) -> Result<Arc<Self>, AccessError> {
        let access = Self { file: file.map(Path::to_owned), ..Self::of_setting(token, file.is_none()) };
        access.reload(now_ms())?;
        Ok(Arc::new(access))
    }

    /// Accepts this token only; every connection if it is empty.
    pub(crate) fn single(token: &str) -> Arc<Self> {
        Arc::new(Self::of_setting(token, true))
    }

    /// The token of the settings, and no file. If the token is empty and the only one, every connection is
    /// accepted.
    fn of_setting(token: &str, is_only: bool) -> Self {
        let setting = (!token.is_empty()).then(|| {
            let hash = blake3::hash(token.as_bytes());
            (hash, Holder::new(Credential::unlimited(SETTING_NAME), principal(&hash)))
        });
        let is_open = token.is_empty() && is_only;
        let anyone = is_open.then(|| Holder::new(Credential::unlimited("any client"), 0));
        Self { file: None, anyone, setting, listed: Mutex::default(), guesses: Guesses::default() }
    }

    /// The peers that have shown wrong tokens.
    pub(crate) fn guesses(&self) -> &Guesses {
        &self.guesses
    }

    /// The same with other limits of wrong tokens.
    #[cfg(test)]
    pub(crate) fn with_guesses(token: &str, guesses: Guesses) -> Arc<Self> {
        Arc::new(Self { guesses, ..Self::of_setting(token, true) })
    }

    /// Whether every connection is accepted.
    pub(crate) fn is_open(&self) -> bool {
        self.anyone.is_some()
    }

    /// The holder of this token. The token may have expired: [`tiffin_types::access::admit`] says so.
    pub(crate) fn find(&self, token: &str) -> Option<Arc<Holder>> {
        if let Some(anyone) = &self.anyone {
            return Some(Arc::clone(anyone));
        }
        // The comparison of hashes takes constant time, and each token is compared with all.
        let hash = blake3::hash(token.as_bytes());
        let setting = self.setting.as_ref().filter(|(it, _)| *it == hash).map(|(_, holder)| holder);
        let listed = self.listed();
        let mut found = setting;
        for (entry, holder) in &listed.tokens {
            if entry.hash == hash {
                found = Some(holder);
            }
        }
        found.map(Arc::clone)
    }

    /// The holder of a token that is valid now.
    pub(crate) fn holder(&self, token: &str) -> Result<Arc<Holder>, TokenProblem> {
        match self.find(token) {
            Some(holder) if !holder.is_valid(now_ms()) => Err(TokenProblem::Expired),
            Some(holder) => Ok(holder),
            None if token.is_empty() => Err(TokenProblem::Missing),
            None => Err(TokenProblem::Wrong),
        }
    }

    /// The number of connections of the token with most of them, among those that are limited to namespaces.
    pub(crate) fn most_connections(&self) -> usize {
        let listed = self.listed();
        let limited = listed.tokens.iter().filter(|(_, it)| it.own_share().is_some());
        limited.map(|(_, it)| it.connections().len()).max().unwrap_or(0)
    }

    /// The memory of the connections of the tokens with most, among those that are limited to namespaces: for
    /// messages that arrive, and for replies that wait.
    pub(crate) fn memory_limits(&self) -> [LimitUse; 2] {
        let listed = self.listed();
        let most = |of: fn(&Budget) -> BudgetUse| {
            let start = of(&Budget::default());
            let all = listed.tokens.iter().map(|(_, it)| of(&it.budget));
            let BudgetUse { max, used, reached } = all.fold(start, |most, it| BudgetUse {
                used: most.used.max(it.used),
                reached: most.reached + it.reached,
                ..most
            });
            LimitUse { max, used, reached }
        };
        [most(Budget::received), most(Budget::unsent)]
    }

    /// The requests for pages of the token with most of them, among those that are limited to namespaces.
    pub(crate) fn page_limit(&self) -> LimitUse {
        let listed = self.listed();
        let used = listed.tokens.iter().map(|(_, it)| TOKEN_PAGES_MAX - it.pages.available_permits());
        let reached = listed.tokens.iter().map(|(_, it)| it.pages_crowded.load(Ordering::Relaxed)).sum();
        LimitUse { max: TOKEN_PAGES_MAX as u64, used: used.max().unwrap_or(0) as u64, reached }
    }

    /// When a peer is told of the problem of its token.
    pub(crate) fn answer_time(&self, problem: TokenProblem, source: Option<Source>) -> AnswerTime {
        match (problem, source) {
            (TokenProblem::Wrong, Some(source)) => self.guesses.failed(source),
            _ => AnswerTime::Now,
        }
    }

    /// Ends holders whose tokens have expired, and reads the access file if it has changed.
    fn reload(&self, now_ms: u64) -> Result<(), AccessError> {
        self.listed().tokens.iter().filter(|it| it.1.credential.is_expired(now_ms)).for_each(|it| it.1.end());
        let Some(path) = &self.file else { return Ok(()) };
        let version = file::Version::of(path)?;
        if self.listed().version.as_ref() == Some(&version) {
            return Ok(());
        }
        let found = AccessFile::read(path)?;
        let mut listed = self.listed();
        let mut old = std::mem::take(&mut listed.tokens);
        for entry in found.tokens {
            // A token that did not change keeps its connections.
            let same = old.iter().position(|(it, holder)| *it == entry && !holder.is_ended());
            let holder = match same {
                Some(at) => old.swap_remove(at).1,
                None => Holder::new(entry.credential.clone(), principal(&entry.hash)),
            };
            listed.tokens.push((entry, holder));
        }
        listed.version = Some(version);
        let count = listed.tokens.len();
        drop(listed);
        old.iter().for_each(|(_, holder)| holder.end());
        tracing::info!(tokens = count, ended = old.len(), "the access file was read");
        Ok(())
    }

    /// Keeps the tokens up to date until the future is dropped.
    pub(crate) async fn keep(self: Arc<Self>) {
        if self.file.is_none() {
            return std::future::pending().await;
        }
        let mut ticks = interval(RELOAD_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_problem = String::new();
        loop {
            ticks.tick().await;
            // The file is small, and local: it is read without a thread of its own.
            let problem = self.reload(now_ms()).err().map(|it| it.to_string()).unwrap_or_default();
            if !problem.is_empty() && problem != last_problem {
                tracing::error!(problem, "the access file is not used; its last good tokens stay valid");
            }
            last_problem = problem;
        }
    }

    fn listed(&self) -> MutexGuard<'_, Listed> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A number for the holder of a token with this hash.
fn principal(hash: &Hash) -> u64 {
    hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
