//! TTLs: an object exists until its TTL is over, and no lookup finds it after that, unless it is pinned. Its
//! removal before that has no reason, see [`Oracle::retires`].

use tiffin_types::{
    Generation, Tick,
    attributes::Expiry,
    message::{CommitOutcome, Found, Replacement},
};

use crate::{
    coverage::{Coverage, Point},
    keyspace::Name,
    oracle::{ObjectHistory, Oracle},
};

/// The clock of the master, as far as TTLs depend on it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WallClock {
    /// Its wall clock at tick 0.
    pub(crate) wall_ms: u64,
    /// The tick at which this epoch began.
    pub(crate) started: Tick,
    /// The tick of the newest effect.
    pub(crate) now: Tick,
    /// A member has yet to report: nothing expires.
    pub(crate) stands: bool,
}

impl Oracle {
    fn wall_ms(&self) -> u64 {
        self.clock.wall_ms.saturating_add(self.clock.now.0)
    }

    /// Whether the TTL of an object is over, and no pin keeps it. If the clock of this epoch is behind that
    /// of the epoch of its put, its whole TTL may have begun again.
    pub(crate) fn has_expired(&self, generation: Generation, history: &ObjectHistory) -> bool {
        let Some(Expiry { ttl_ms, ends_ms }) = history.expiry.filter(|_| !history.is_protected()) else {
            return false;
        };
        let begins_again = generation.epoch != self.epoch;
        self.wall_ms() >= ends_ms || begins_again && self.clock.now.0 >= self.clock.started.0 + ttl_ms
    }

    /// A put is answered: its TTL began before. The wall clock of an earlier epoch may have been ahead.
    pub(crate) fn put_with_ttl(&mut self, outcome: &CommitOutcome, ttl_ms: Option<u64>) {
        let (CommitOutcome::Stored(generation)
        | CommitOutcome::Replaced(generation)
        | CommitOutcome::Unconfirmed(Replacement { generation, .. })) = outcome
        else {
            return;
        };
        if generation.epoch != self.epoch {
            return;
        }
        let ends_ms = self.wall_ms();
        if let Some((history, ttl_ms)) = self.objects.get_mut(generation).zip(ttl_ms) {
            let latest = history.ends_ms_max.get_or_insert(u64::MAX);
            *latest = (*latest).min(ends_ms + ttl_ms);
        }
    }

    /// A lookup finds an object. The master knows of pins that are not certain here, because a delete of
    /// their object is in progress.
    pub(crate) fn found_in_time(&mut self, name: Name, found: &Found, coverage: &mut Coverage) {
        let generation = found.generation;
        let Some(history) = self.objects.get(&generation).filter(|it| it.ends_ms_max.is_some()) else {
            return;
        };
        coverage.hit(Point::CheckedExpiry);
        let is_late = history.ends_ms_max.is_some_and(|it| it <= self.wall_ms()) && !self.clock.stands;
        if is_late && !found.hard_pin && !history.is_protected() {
            let (history, now) = (history.clone(), self.wall_ms());
            self.fail("ttl", || format!("{name:?} {generation} is found at {now}: {history:?}"));
        }
    }
}
