//! Policies, as plain functions: they are asked, they know nothing, and they keep nothing.

use crate::message::{Pressure, Tick};

/// When a request stops waiting for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefetchStop {
    /// As soon as it could run without.
    BestEffort,
    /// When all has come, or its own deadline or that of the operations has passed.
    WaitComplete,
    /// After `base + per_page × pages`, and `most` at the latest.
    Timeout {
        /// For the question.
        base: u64,
        /// For each page that is missing.
        per_page: u64,
        /// At most.
        most: u64,
    },
}

impl Default for PrefetchStop {
    fn default() -> Self {
        Self::Timeout { base: 2_000, per_page: 10, most: 30_000 }
    }
}

/// What goes down the hierarchy, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WritePolicy {
    /// Every page, as soon as it is computed: to the host, and from there to the store.
    Through,
    /// A page that was used again so many times.
    Selective {
        /// How many times.
        hits: u32,
    },
    /// A page that is about to leave the device.
    Back,
}

/// What leaves a tier first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// What was not used for longest.
    Lru,
    /// Three queues: what comes stays for a short while, and for longer if it is used meanwhile.
    S3Fifo,
    /// What is cheapest to compute again, per byte, and was not used for long: deep pages cost more.
    CostAware {
        /// What a page costs beside what its position costs.
        base: u64,
        /// What each page before it adds.
        per_position: u64,
    },
}

/// What an eviction policy may know of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CopyFacts {
    /// When it was last used, as a number that only grows.
    pub last_use: u64,
    /// When it came, as the same number.
    pub came: u64,
    /// How often it was used since, at most [`USES_MAX`].
    pub uses: u8,
    /// Where it stands in its prefix.
    pub position: u32,
}

/// Uses beyond these make no difference.
pub const USES_MAX: u8 = 3;

/// Ask the store about so many pages, counted from the first that is not here?
#[must_use]
pub fn starts_prefetch(missing_pages: u32, threshold_pages: u32, host: Pressure, store: Pressure) -> bool {
    missing_pages >= threshold_pages.max(1) && host < Pressure::Full && store < Pressure::Full
}

/// When a request that begins to wait now stops waiting.
#[must_use]
pub fn stops_prefetch_at(stop: PrefetchStop, pages: u32, now: Tick, deadline: Option<Tick>) -> Tick {
    let until = match stop {
        PrefetchStop::BestEffort | PrefetchStop::WaitComplete => Tick::MAX,
        PrefetchStop::Timeout { base, per_page, most } => {
            let patience = base.saturating_add(per_page.saturating_mul(u64::from(pages))).min(most);
            now.saturating_add(patience)
        }
    };
    until.min(deadline.unwrap_or(Tick::MAX))
}

/// Save a page to the host that was used again so many times?
#[must_use]
pub fn saves(policy: WritePolicy, hits: u32) -> bool {
    match policy {
        WritePolicy::Through => true,
        WritePolicy::Selective { hits: wanted } => hits >= wanted,
        WritePolicy::Back => false,
    }
}

/// Let backups go now? Prefetches come first, so this is the first to stop.
#[must_use]
pub fn backs_up(store: Pressure) -> bool {
    store == Pressure::Calm
}

/// Under [`WritePolicy::Back`]: is it time to save what will leave next?
#[must_use]
pub fn saves_ahead(policy: WritePolicy, free_pages: u32, capacity: u32) -> bool {
    policy == WritePolicy::Back && free_pages <= capacity / 8
}

/// How long to wait after so many failures in a row before trying again: twice as long each time, up to a
/// bound.
#[must_use]
pub fn pause_after(failures: u32, first: u64, most: u64) -> u64 {
    let doubled = first.saturating_mul(1_u64.checked_shl(failures.saturating_sub(1)).unwrap_or(u64::MAX));
    doubled.min(most.max(first))
}

/// The lower the sooner it leaves. `floor` is what the last one that left had, so that what is not used for
/// long leaves in the end, whatever it costs.
#[must_use]
pub fn score(policy: Eviction, facts: &CopyFacts, floor: u64) -> u64 {
    match policy {
        Eviction::Lru => facts.last_use,
        Eviction::S3Fifo => facts.came,
        Eviction::CostAware { base, per_position } => {
            let cost = base.saturating_add(per_position.saturating_mul(u64::from(facts.position)));
            floor.saturating_add(cost.saturating_mul(u64::from(facts.uses) + 1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_by_the_policy_or_by_the_deadline() {
        let timeout = PrefetchStop::Timeout { base: 10, per_page: 2, most: 50 };
        for (stop, pages, deadline, until) in [
            (timeout, 5, None, 120),
            (timeout, 500, None, 150),
            (timeout, 5, Some(105), 105),
            (PrefetchStop::WaitComplete, 5, None, Tick::MAX),
            (PrefetchStop::BestEffort, 5, Some(7), 7),
        ] {
            assert_eq!(stops_prefetch_at(stop, pages, 100, deadline), until, "{stop:?}");
        }
    }

    #[test]
    fn the_store_is_asked_about_enough_pages_unless_somebody_is_full() {
        for (missing, host, store, asks) in [
            (4, Pressure::Calm, Pressure::Calm, true),
            (3, Pressure::Calm, Pressure::Calm, false),
            (4, Pressure::Tight, Pressure::Tight, true),
            (4, Pressure::Full, Pressure::Calm, false),
            (4, Pressure::Calm, Pressure::Full, false),
        ] {
            assert_eq!(starts_prefetch(missing, 4, host, store), asks);
        }
        assert!(!starts_prefetch(0, 0, Pressure::Calm, Pressure::Calm), "nothing is missing");
    }

    #[test]
    fn write_policies_differ_in_what_they_wait_for() {
        let selective = WritePolicy::Selective { hits: 2 };
        for (policy, hits, says) in [
            (WritePolicy::Through, 0, true),
            (selective, 1, false),
            (selective, 2, true),
            (WritePolicy::Back, 9, false),
        ] {
            assert_eq!(saves(policy, hits), says, "{policy:?}");
        }
        assert!(saves_ahead(WritePolicy::Back, 1, 8) && !saves_ahead(WritePolicy::Back, 2, 8));
        assert!(!saves_ahead(WritePolicy::Through, 0, 8));
    }

    #[test]
    fn pauses_double_up_to_a_bound() {
        let pauses = [1, 2, 3, 4, 5, 64, u32::MAX].map(|failures| pause_after(failures, 10, 65));
        assert_eq!(pauses, [10, 20, 40, 65, 65, 65, 65]);
        assert_eq!(pause_after(1, 10, 5), 10, "never shorter than the first");
    }

    #[test]
    fn deep_pages_cost_more_and_use_counts() {
        let policy = Eviction::CostAware { base: 10, per_position: 1 };
        let at = |position, uses| score(policy, &CopyFacts { position, uses, ..CopyFacts::default() }, 100);
        assert!(at(0, 0) < at(5, 0) && at(5, 0) < at(5, 1));
        assert_eq!(at(0, 0), 110);
    }
}
