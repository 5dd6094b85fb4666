//! Admission of prefetches, and the results of recent ones.
//!
//! A caller that wants to prefetch a key calls [`Throttle::reserve`]. One caller gets a [`Token`] and does
//! the work; the others get the reason why they need not. Only the token ends the work, exactly once, on
//! every path: [`Throttle::finish`].
//!
//! The rules, by the names that the checks and mutants use:
//!
//! - *one end*: a reserved key reaches exactly one end. Work that its token does not end is ended by its
//!   deadline ([`Throttle::take_late`]), and then the token has no effect any more.
//! - *expiry*: results expire, work in flight does not.
//! - *token*: only the token ends its work; a caller that got "running" cannot.
//! - *failure*: a failure has its own expiry time, and is not a success.
//! - *pressure*: pressure is a state of each pool of memory. All callers see it, and other pools are not
//!   affected.
//! - *bounds*: keys and bytes in flight are bounded, and expiry touches only keys that are due.
//!
//! [`Turns`] is about requests that wait for anything: whose is next.
//!
//! No clock, no random numbers, no I/O, no iteration over a hash map: the same calls give the same answers.

pub mod mutant;
mod turns;

use std::collections::{BTreeMap, BTreeSet};

pub use mutant::Mutant;
use mutant::is_mutant;
pub use turns::Turns;

/// The limits and times of a [`Throttle`]. Times are in ticks of the caller, usually milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Maximum number of keys in flight.
    pub keys_max: usize,
    /// Maximum number of bytes in flight. A single key may be larger.
    pub bytes_max: u64,
    /// How long a key is not prefetched again after it was prefetched or resident.
    pub done_ttl: u64,
    /// How long a key is not prefetched again after a failure.
    pub failed_ttl: u64,
    /// How long a pool counts as under pressure after a wait for its memory failed.
    pub cooldown: u64,
    /// Time limit of a prefetch.
    pub deadline: u64,
    /// The mutant, in tests.
    pub mutant: Mutant,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            keys_max: 1024,
            bytes_max: 256 << 20,
            done_ttl: 30_000,
            failed_ttl: 5_000,
            cooldown: 5_000,
            deadline: 30_000,
            mutant: Mutant::None,
        }
    }
}

/// The permission, and the obligation, to end one prefetch.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(u64);

impl Token {
    /// The number of this token in its throttle, for logs.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.0
    }
}

/// The answer to a reservation.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The caller does the work, and ends it.
    Acquired(Token),
    /// Another caller does the work.
    Running,
    /// The key was prefetched, or resident, a short time ago.
    Done,
    /// The prefetch failed a short time ago.
    Failed,
    /// The limits of keys or bytes in flight are reached.
    Busy,
}

/// How a prefetch ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The key was resident already.
    Resident,
    /// The key was prefetched.
    Done,
    /// The prefetch failed.
    Failed,
    /// It was cancelled before it started; it may be tried again at once.
    Cancelled,
}

#[derive(Debug)]
enum State {
    Running { token: u64, bytes: u64, until: u64 },
    Ended { failed: bool, until: u64 },
}

/// Admission of prefetches; see the crate's documentation.
#[derive(Debug)]
pub struct Throttle<K> {
    config: Config,
    keys: BTreeMap<K, State>,
    /// The key of each token.
    tokens: BTreeMap<u64, K>,
    /// Expiry times of results and deadlines of running work, in order.
    due: BTreeSet<(u64, K)>,
    bytes: u64,
    next_token: u64,
    /// End of each pool's cooldown.
    cool_until: BTreeMap<u32, u64>,
}

impl<K: Ord + Clone> Throttle<K> {
    /// A throttle with nothing in flight.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            keys: BTreeMap::new(),
            tokens: BTreeMap::new(),
            due: BTreeSet::new(),
            bytes: 0,
            next_token: 0,
            cool_until: BTreeMap::new(),
        }
    }

    /// Reserves the prefetch of a key of this size. The caller has checked that the key is not resident.
    pub fn reserve(&mut self, now: u64, key: &K, bytes: u64) -> Verdict {
        self.forget(now);
        match self.keys.get(key) {
            Some(State::Running { .. }) if !is_mutant!(self.config.mutant, RunTwice) => {
                return Verdict::Running;
            }
            Some(State::Ended { failed: true, .. }) => return Verdict::Failed,
            Some(State::Ended { failed: false, .. }) => return Verdict::Done,
            _ => (),
        }
        if self.is_busy(bytes) && !is_mutant!(self.config.mutant, NoBounds) {
            return Verdict::Busy;
        }
        self.next_token += 1;
        let (token, until) = (self.next_token, now.saturating_add(self.config.deadline));
        self.tokens.insert(token, key.clone());
        self.bytes += bytes;
        self.set(key, State::Running { token, bytes, until });
        Verdict::Acquired(Token(token))
    }

    /// Whether the limits are reached for a key of this size.
    #[must_use]
    pub fn is_busy(&self, bytes: u64) -> bool {
        let fits = self.bytes.saturating_add(bytes) <= self.config.bytes_max || self.tokens.is_empty();
        self.tokens.len() >= self.config.keys_max || !fits
    }

    /// Ends a prefetch; `false` if its deadline has ended it before.
    pub fn finish(&mut self, now: u64, token: Token, end: End) -> bool {
        self.end(now, token.0, end)
    }

    /// Ends all work that is late as failed, and returns its keys.
    pub fn take_late(&mut self, now: u64) -> Vec<K> {
        let mut late = Vec::new();
        loop {
            self.forget(now);
            let next = self.due.first().filter(|(until, _)| *until <= now).map(|(_, key)| key.clone());
            let Some(key) = next else { return late };
            let Some(&State::Running { token, .. }) = self.keys.get(&key) else { return late };
            self.end(now, token, End::Failed);
            late.push(key);
        }
    }

    /// Forgets a successful result before it expires: the key was used, or is requested for another reason.
    pub fn forget_done(&mut self, key: &K) {
        if matches!(self.keys.get(key), Some(State::Ended { failed: false, .. })) {
            self.unset(key);
        }
    }

    /// A wait for memory of this pool failed: no caller waits for it during the cooldown.
    pub fn press(&mut self, now: u64, pool: u32) {
        self.cool_until.retain(|_, until| now < *until);
        self.cool_until.insert(pool, now.saturating_add(self.config.cooldown));
    }

    /// Whether a wait for memory of this pool failed a short time ago.
    #[must_use]
    pub fn is_cooling(&self, now: u64, pool: u32) -> bool {
        if is_mutant!(self.config.mutant, IgnoreCooldown) {
            return false;
        }
        if is_mutant!(self.config.mutant, PressEverywhere) {
            return self.cool_until.values().any(|until| now < *until);
        }
        self.cool_until.get(&pool).is_some_and(|until| now < *until)
    }

    /// Whether the prefetch of this key is in flight.
    #[must_use]
    pub fn is_running(&self, key: &K) -> bool {
        matches!(self.keys.get(key), Some(State::Running { .. }))
    }

    /// Number of keys in flight.
    #[must_use]
    pub fn running(&self) -> usize {
        self.tokens.len()
    }

    /// The first deadline of running work, when [`Self::take_late`] has work to do.
    #[must_use]
    pub fn next_late(&self) -> Option<u64> {
        // All work has the same time limit, so the oldest token has the first deadline.
        let mut running = self.tokens.values().filter_map(|key| match self.keys.get(key) {
            Some(State::Running { until, .. }) => Some(*until),
            _ => None,
        });
        running.next()
    }

    /// Checks the rules. For tests and simulations.
    pub fn check(&self) -> Result<(), String> {
        let mut bytes = 0;
        let mut running = 0;
        for (key, state) in &self.keys {
            let until = match state {
                State::Running { token, bytes: key_bytes, until } => {
                    bytes += key_bytes;
                    running += 1;
                    if self.tokens.get(token) != Some(key) {
                        return Err(format!("token: token {token} belongs to another key"));
                    }
                    *until
                }
                State::Ended { until, .. } => *until,
            };
            if !self.due.contains(&(until, key.clone())) {
                return Err("expiry: a key never expires".to_owned());
            }
        }
        if (running, bytes, self.keys.len()) != (self.tokens.len(), self.bytes, self.due.len()) {
            return Err(format!(
                "one end: {running} keys of {bytes} bytes run, {} tokens of {} bytes exist",
                self.tokens.len(),
                self.bytes
            ));
        }
        if running > self.config.keys_max || (running > 1 && bytes > self.config.bytes_max) {
            return Err(format!("bounds: {running} keys of {bytes} bytes are in flight"));
        }
        Ok(())
    }

    fn end(&mut self, now: u64, token: u64, end: End) -> bool {
        let Some(key) = self.tokens.remove(&token) else { return false };
        let Some(State::Running { bytes, .. }) = self.keys.get(&key) else { return false };
        self.bytes -= bytes;
        let until = |ttl: u64| now.saturating_add(ttl);
        match end {
            End::Cancelled => self.unset(&key),
            End::Failed if !is_mutant!(self.config.mutant, FailureIsSuccess) => {
                let until = until(self.config.failed_ttl);
                self.set(&key, State::Ended { failed: true, until });
            }
            _ => {
                let until = until(self.config.done_ttl);
                self.set(&key, State::Ended { failed: false, until });
            }
        }
        true
    }

    /// Removes expired results. Work in flight never expires.
    fn forget(&mut self, now: u64) {
        while let Some((until, key)) = self.due.first().cloned() {
            let runs = matches!(self.keys.get(&key), Some(State::Running { .. }));
            if until > now || (runs && !is_mutant!(self.config.mutant, ForgetRunning)) {
                return;
            }
            self.unset(&key);
        }
    }

    fn set(&mut self, key: &K, state: State) {
        self.unset(key);
        let until = match &state {
            State::Running { until, .. } | State::Ended { until, .. } => *until,
        };
        self.due.insert((until, key.clone()));
        self.keys.insert(key.clone(), state);
    }

    fn unset(&mut self, key: &K) {
        if let Some(State::Running { until, .. } | State::Ended { until, .. }) = self.keys.remove(key) {
            self.due.remove(&(until, key.clone()));
        }
    }
}
