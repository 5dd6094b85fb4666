//! Which prefetches may run, and what became of them.
//!
//! Whoever wants to bring a key closer asks [`Throttle::reserve`]. One asker gets a [`Token`] and does the
//! work; everybody else is told why there is nothing for them to do. Only the token ends the work, exactly
//! once, on every path: [`Throttle::finish`].
//!
//! The rules, by the names they have in the field:
//!
//! - T1: a reserved key reaches exactly one end. Work that is not ended by its token is ended by its
//!   deadline ([`Throttle::take_late`]), and then the token means nothing any more.
//! - T2: time forgets ends, never work that is under way.
//! - T4: only the token ends its work; an asker that was told "running" cannot.
//! - T5: what failed is remembered for a time of its own, and is no success.
//! - T7: pressure is one state that all askers see.
//! - T11: keys and bytes under way are bounded, and forgetting touches only what is due.
//!
//! No clock, no chance, no I/O, no order of a hash map: the same calls give the same answers.

pub mod sabotage;

use std::collections::{BTreeMap, BTreeSet};

pub use sabotage::Sabotage;
use sabotage::sabotaged;

/// The limits and times of a [`Throttle`]. Times are in the caller's ticks, milliseconds for all we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Keys under way at a time.
    pub keys_max: usize,
    /// Their bytes. One key alone may be larger.
    pub bytes_max: u64,
    /// How long a key that was brought, or was there already, is not brought again.
    pub done_ttl: u64,
    /// How long a key that failed is not tried again.
    pub failed_ttl: u64,
    /// How long nothing is begun after somebody found no room.
    pub cooldown: u64,
    /// How long work may take.
    pub deadline: u64,
    /// For tests only.
    pub sabotage: Sabotage,
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
            sabotage: Sabotage::None,
        }
    }
}

/// The right, and the duty, to end one piece of work.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Token(u64);

impl Token {
    /// A number that no other token of the same throttle has, to be logged.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.0
    }
}

/// What an asker is told.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is yours to do and to end.
    Acquired(Token),
    /// Somebody does it.
    Running,
    /// It was brought, or was there already, a short while ago.
    Done,
    /// It failed a short while ago.
    Failed,
    /// There was no room a short while ago.
    Cooldown,
    /// As much is under way as may be.
    Busy,
}

/// How work ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was there already.
    Resident,
    /// It was brought.
    Done,
    /// It could not be brought.
    Failed,
    /// It was given up before anything was tried: nothing speaks against trying again.
    Cancelled,
}

#[derive(Debug)]
enum State {
    Running { token: u64, bytes: u64, until: u64 },
    Ended { failed: bool, until: u64 },
}

/// See the crate.
#[derive(Debug)]
pub struct Throttle<K> {
    config: Config,
    keys: BTreeMap<K, State>,
    /// Who holds which token.
    tokens: BTreeMap<u64, K>,
    /// When ends are forgotten and work is late, the next first.
    due: BTreeSet<(u64, K)>,
    bytes: u64,
    next_token: u64,
    cool_until: u64,
}

impl<K: Ord + Clone> Throttle<K> {
    /// Nothing is under way.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            keys: BTreeMap::new(),
            tokens: BTreeMap::new(),
            due: BTreeSet::new(),
            bytes: 0,
            next_token: 0,
            cool_until: 0,
        }
    }

    /// Asks to bring one key of that many bytes. The caller has looked before whether it is there already.
    pub fn reserve(&mut self, now: u64, key: &K, bytes: u64) -> Verdict {
        self.forget(now);
        match self.keys.get(key) {
            Some(State::Running { .. }) if !sabotaged!(self.config.sabotage, RunTwice) => {
                return Verdict::Running;
            }
            Some(State::Ended { failed: true, .. }) => return Verdict::Failed,
            Some(State::Ended { failed: false, .. }) => return Verdict::Done,
            _ => (),
        }
        if self.is_cooling(now) && !sabotaged!(self.config.sabotage, IgnoreCooldown) {
            return Verdict::Cooldown;
        }
        let fits = self.bytes.saturating_add(bytes) <= self.config.bytes_max || self.tokens.is_empty();
        if (self.tokens.len() >= self.config.keys_max || !fits) && !sabotaged!(self.config.sabotage, NoBounds)
        {
            return Verdict::Busy;
        }
        self.next_token += 1;
        let (token, until) = (self.next_token, now.saturating_add(self.config.deadline));
        self.tokens.insert(token, key.clone());
        self.bytes += bytes;
        self.set(key, State::Running { token, bytes, until });
        Verdict::Acquired(Token(token))
    }

    /// Ends work. `false` if its deadline has ended it before.
    pub fn finish(&mut self, now: u64, token: Token, end: End) -> bool {
        self.end(now, token.0, end)
    }

    /// Ends the work that is late, and tells which: it failed.
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

    /// There was no room: nobody begins anything for a while.
    pub fn press(&mut self, now: u64) {
        self.cool_until = self.cool_until.max(now.saturating_add(self.config.cooldown));
    }

    /// Whether there was no room a short while ago.
    #[must_use]
    pub fn is_cooling(&self, now: u64) -> bool {
        now < self.cool_until
    }

    /// Whether somebody brings that key.
    #[must_use]
    pub fn is_running(&self, key: &K) -> bool {
        matches!(self.keys.get(key), Some(State::Running { .. }))
    }

    /// How many keys are under way.
    #[must_use]
    pub fn running(&self) -> usize {
        self.tokens.len()
    }

    /// When [`Self::take_late`] has something to do: when the first work is late.
    #[must_use]
    pub fn next_late(&self) -> Option<u64> {
        // Tokens are given out in the order of time, and all work may take as long: the first is late first.
        let mut running = self.tokens.values().filter_map(|key| match self.keys.get(key) {
            Some(State::Running { until, .. }) => Some(*until),
            _ => None,
        });
        running.next()
    }

    /// What is wrong with the books, if anything is. For tests and simulations.
    pub fn check(&self) -> Result<(), String> {
        let mut bytes = 0;
        let mut running = 0;
        for (key, state) in &self.keys {
            let until = match state {
                State::Running { token, bytes: of_it, until } => {
                    bytes += of_it;
                    running += 1;
                    if self.tokens.get(token) != Some(key) {
                        return Err(format!("T4: the token {token} is of another key"));
                    }
                    *until
                }
                State::Ended { until, .. } => *until,
            };
            if !self.due.contains(&(until, key.clone())) {
                return Err("T2: something is never forgotten".to_owned());
            }
        }
        if (running, bytes, self.keys.len()) != (self.tokens.len(), self.bytes, self.due.len()) {
            return Err(format!(
                "T1: {running} keys of {bytes} bytes run, {} tokens of {} bytes are out",
                self.tokens.len(),
                self.bytes
            ));
        }
        if running > self.config.keys_max || (running > 1 && bytes > self.config.bytes_max) {
            return Err(format!("T11: {running} keys of {bytes} bytes are under way"));
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
            End::Failed if !sabotaged!(self.config.sabotage, FailureIsSuccess) => {
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

    /// Forgets ends whose time has come. Work under way is never forgotten.
    fn forget(&mut self, now: u64) {
        while let Some((until, key)) = self.due.first().cloned() {
            let runs = matches!(self.keys.get(&key), Some(State::Running { .. }));
            if until > now || (runs && !sabotaged!(self.config.sabotage, ForgetRunning)) {
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
