//! How long a peer that could not be reached is left alone.
//!
//! The pause doubles with each failure in a row up to a limit, and a part of it is random, so that clients
//! that lost the same peer do not all return at once. During a pause, calls that have another way use it at
//! once; the others wait for the next attempt, as their [`Need`](super::Need) says.
//!
//! A pause ends early if the master has registered the node again since: it was restarted, or its network is
//! back.

use tiffin_types::mutant::{Mutant, is_mutant};

/// Failures in a row after which a peer counts as down.
pub const DOWN_AFTER: u32 = 3;

/// The pauses for one kind of peer, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffLimits {
    /// Failures in a row that cause no pause.
    pub free: u32,
    /// The first pause.
    pub first_ms: u64,
    /// The longest pause.
    pub longest_ms: u64,
}

/// The attempts to reach one peer.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    limits: BackoffLimits,
    failures: u32,
    /// The newest known registration of the peer, and the one at the last attempt; zero if it has none.
    registration: u64,
    tried: u64,
    mutant: Mutant,
}

impl Backoff {
    /// No attempt was made yet.
    #[must_use]
    pub fn new(limits: BackoffLimits) -> Self {
        Self { limits, failures: 0, registration: 0, tried: 0, mutant: Mutant::None }
    }

    /// Breaks one rule.
    #[must_use]
    pub fn breaking(self, mutant: Mutant) -> Self {
        Self { mutant, ..self }
    }

    /// The master names this registration of the peer. Returns whether it is newer than the one that could
    /// not be reached: then the pause ends. If the next attempt fails too, the next pause is longer all the
    /// same.
    pub fn registered(&mut self, registration: u64) -> bool {
        let is_newer = registration > self.registration;
        self.registration = self.registration.max(registration);
        is_newer && self.failures > 0 && !is_mutant!(self.mutant, AvoidTheRestarted)
    }

    /// Failures in a row.
    #[must_use]
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// An attempt begins.
    pub fn begins(&mut self) {
        self.tried = self.registration;
    }

    /// An attempt failed: how long the next one waits, in milliseconds. Between half of the pause and all of
    /// it, as `random` says. None if the peer has registered since the attempt began.
    pub fn failed(&mut self, random: u64) -> u64 {
        self.failures = self.failures.saturating_add(1);
        let is_outdated = self.tried < self.registration && !is_mutant!(self.mutant, AvoidTheRestarted);
        let Some(doublings) = self.failures.checked_sub(self.limits.free + 1).filter(|_| !is_outdated) else {
            return 0;
        };
        let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
        let pause = self.limits.first_ms.saturating_mul(factor).min(self.limits.longest_ms);
        let half = pause / 2;
        pause - random % (half + 1)
    }

    /// Whether the peer has just become one that counts as down: a reason for one line of the log.
    #[must_use]
    pub fn has_gone_down(&self) -> bool {
        self.failures == self.limits.free + DOWN_AFTER
    }

    /// An attempt succeeded: whether the peer had counted as down.
    pub fn succeeded(&mut self) -> bool {
        std::mem::take(&mut self.failures) >= self.limits.free + DOWN_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: BackoffLimits = BackoffLimits { free: 1, first_ms: 100, longest_ms: 1000 };

    #[test]
    fn pauses_double_up_to_their_limit() {
        let mut backoff = Backoff::new(LIMITS);
        let pauses: Vec<_> = (0..8).map(|_| backoff.failed(0)).collect();
        assert_eq!(pauses, [0, 100, 200, 400, 800, 1000, 1000, 1000]);
        for _ in 0..200 {
            assert_eq!(backoff.failed(0), 1000);
        }
        backoff.failures = u32::MAX;
        assert_eq!(backoff.failed(0), 1000);
    }

    #[test]
    fn half_of_a_pause_is_random() {
        let pause = |random| {
            let mut backoff = Backoff::new(LIMITS);
            backoff.failed(random);
            backoff.failed(random)
        };
        assert_eq!((pause(0), pause(50), pause(51)), (100, 50, 100));
        assert!((0..500).map(pause).all(|it| (50..=100).contains(&it)));
    }

    /// Whether each of these registrations ends the pause of a peer that was reached at registration 5.
    fn ends_of_pauses(mutant: Mutant) -> [bool; 4] {
        let mut backoff = Backoff::new(LIMITS).breaking(mutant);
        assert!(!backoff.registered(5), "there was no pause");
        backoff.begins();
        (0..3).for_each(|_| _ = backoff.failed(0));
        let ends = [5, 4, 7, 7].map(|it| backoff.registered(it));
        assert_eq!(backoff.failures(), 3, "failures of the new registration count on");
        backoff.begins();
        assert_eq!(backoff.failed(0), 400);
        ends
    }

    #[test]
    fn a_newer_registration_ends_the_pause_once() {
        assert_eq!(ends_of_pauses(Mutant::None), [false, false, true, false]);
    }

    /// The pause after an attempt during which the peer registered again.
    fn pause_of_an_outdated_attempt(mutant: Mutant) -> u64 {
        let mut backoff = Backoff::new(LIMITS).breaking(mutant);
        backoff.begins();
        backoff.failed(0);
        backoff.registered(1);
        backoff.failed(0)
    }

    #[test]
    fn an_outdated_attempt_causes_no_pause() {
        assert_eq!(pause_of_an_outdated_attempt(Mutant::None), 0);
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn mutants_of_pauses_are_noticed() {
        assert_ne!(ends_of_pauses(Mutant::AvoidTheRestarted), ends_of_pauses(Mutant::None));
        assert_ne!(pause_of_an_outdated_attempt(Mutant::AvoidTheRestarted), 0);
    }

    #[test]
    fn a_peer_goes_down_once_and_comes_back_once() {
        let mut backoff = Backoff::new(LIMITS);
        assert!(!backoff.succeeded());
        let gone: Vec<_> = (0..6).map(|_| (backoff.failed(0), backoff.has_gone_down()).1).collect();
        assert_eq!(gone, [false, false, false, true, false, false]);
        assert!(backoff.succeeded() && !backoff.succeeded());
        backoff.failed(0);
        assert!(!backoff.succeeded(), "one failure is no outage");
    }
}
