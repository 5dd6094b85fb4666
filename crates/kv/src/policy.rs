//! Policies, as pure functions without state.

use crate::message::{Pressure, Tick};

/// When pages are fetched from the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrefetchStart {
    /// If the store has more pages than the threshold, counted from the first one that is missing here.
    #[default]
    Hits,
    /// If at least as many pages as the threshold are missing here, whatever the store has.
    Missing,
}

/// When a request stops waiting for the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefetchStop {
    /// As soon as it could run without them.
    BestEffort,
    /// When all pages have arrived, or its own deadline or that of the operations has passed.
    WaitComplete,
    /// After `base + per_page × pages`, and `most` at the latest.
    Timeout {
        /// For the probe.
        base: u64,
        /// For each page that is missing.
        per_page: u64,
        /// The maximum.
        most: u64,
    },
}

/// The kind of a [`PrefetchStop`], without its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopKind {
    /// [`PrefetchStop::Timeout`].
    Timeout,
    /// [`PrefetchStop::BestEffort`].
    BestEffort,
    /// [`PrefetchStop::WaitComplete`].
    Wait,
}

/// Which pages go down the hierarchy, and when.
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

/// Which copy leaves a tier first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// The least recently used one.
    Lru,
    /// S3-FIFO: new copies pass a small queue, and stay longer if they are used in it.
    S3Fifo,
    /// The cheapest one to compute again, aged by use: deep pages cost more.
    CostAware {
        /// The cost of every page.
        base: u64,
        /// The cost that each page before it adds.
        per_position: u64,
    },
}

impl Eviction {
    /// Cost-aware, with the usual ratio of the cost of a page to that of its position.
    pub const BY_COST: Self = Self::CostAware { base: 1_000, per_position: 10 };
}

/// What an eviction policy knows of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CopyFacts {
    /// When it was last used, as a number that only increases.
    pub last_use: u64,
    /// When it was made, as the same number.
    pub came: u64,
    /// How often it was used since then, at most [`USES_MAX`].
    pub uses: u8,
    /// Its position in its prefix.
    pub position: u32,
}

/// More uses make no difference.
pub const USES_MAX: u8 = 3;

/// Whether to probe the store for this number of missing pages.
#[must_use]
pub fn starts_prefetch(
    start: PrefetchStart,
    missing_pages: u32,
    threshold_pages: u32,
    host: Pressure,
    store: Pressure,
) -> bool {
    let is_worth_asking = match start {
        // The store cannot have more hits than pages are missing.
        PrefetchStart::Hits => missing_pages > threshold_pages,
        PrefetchStart::Missing => missing_pages >= threshold_pages.max(1),
    };
    is_worth_asking && host < Pressure::Full && store < Pressure::Full
}

/// Whether to fetch this number of pages that the store has.
#[must_use]
pub fn fetches_hits(start: PrefetchStart, hits: u32, threshold_pages: u32) -> bool {
    match start {
        PrefetchStart::Hits => hits > threshold_pages,
        PrefetchStart::Missing => true,
    }
}

/// When a request that starts to wait now stops waiting.
#[must_use]
pub fn stops_prefetch_at(stop: PrefetchStop, pages: u32, now: Tick, deadline: Option<Tick>) -> Tick {
    let until = match stop {
        PrefetchStop::BestEffort | PrefetchStop::WaitComplete => Tick::MAX,
        PrefetchStop::Timeout { base, per_page, most } => {
            let limit = base.saturating_add(per_page.saturating_mul(u64::from(pages))).min(most);
            now.saturating_add(limit)
        }
    };
    until.min(deadline.unwrap_or(Tick::MAX))
}

/// Whether to save a page that was used again this number of times.
#[must_use]
pub fn saves(policy: WritePolicy, hits: u32) -> bool {
    match policy {
        WritePolicy::Through => true,
        WritePolicy::Selective { hits: wanted } => hits >= wanted,
        WritePolicy::Back => false,
    }
}

/// Whether backups may start. Prefetches have priority, so backups stop first.
#[must_use]
pub fn backs_up(store: Pressure) -> bool {
    store == Pressure::Calm
}

/// Under [`WritePolicy::Back`]: whether to save the pages that will leave next.
#[must_use]
pub fn saves_ahead(policy: WritePolicy, free_pages: u32, capacity: u32) -> bool {
    policy == WritePolicy::Back && free_pages <= capacity / 8
}

/// Exponential backoff: how long to wait after this number of failures in a row, up to a maximum.
#[must_use]
pub fn pause_after(failures: u32, first: u64, most: u64) -> u64 {
    let doubled = first.saturating_mul(1_u64.checked_shl(failures.saturating_sub(1)).unwrap_or(u64::MAX));
    doubled.min(most.max(first))
}

/// The copy with the lowest score leaves first. `floor` is the score of the last one that left, so that
/// unused copies leave eventually, whatever they cost.
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
    fn wait_ends_at_the_limit_or_the_deadline() {
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
    fn store_is_probed_for_enough_pages_without_pressure() {
        for (missing, host, store, asks) in [
            (4, Pressure::Calm, Pressure::Calm, true),
            (3, Pressure::Calm, Pressure::Calm, false),
            (4, Pressure::Tight, Pressure::Tight, true),
            (4, Pressure::Full, Pressure::Calm, false),
            (4, Pressure::Calm, Pressure::Full, false),
        ] {
            assert_eq!(starts_prefetch(PrefetchStart::Missing, missing, 4, host, store), asks);
            assert_eq!(starts_prefetch(PrefetchStart::Hits, missing, 3, host, store), asks);
        }
        for start in [PrefetchStart::Hits, PrefetchStart::Missing] {
            assert!(!starts_prefetch(start, 0, 0, Pressure::Calm, Pressure::Calm), "nothing is missing");
        }
    }

    #[test]
    fn hits_are_fetched_if_they_exceed_the_threshold() {
        for (hits, fetches) in [(0, false), (4, false), (5, true)] {
            assert_eq!(fetches_hits(PrefetchStart::Hits, hits, 4), fetches);
            assert!(fetches_hits(PrefetchStart::Missing, hits, 4));
        }
    }

    #[test]
    fn write_policies_differ_in_the_uses_they_need() {
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
    fn backoff_doubles_up_to_a_maximum() {
        let pauses = [1, 2, 3, 4, 5, 64, u32::MAX].map(|failures| pause_after(failures, 10, 65));
        assert_eq!(pauses, [10, 20, 40, 65, 65, 65, 65]);
        assert_eq!(pause_after(1, 10, 5), 10, "never shorter than the first");
    }

    #[test]
    fn deep_and_used_pages_have_higher_scores() {
        let policy = Eviction::CostAware { base: 10, per_position: 1 };
        let at = |position, uses| score(policy, &CopyFacts { position, uses, ..CopyFacts::default() }, 100);
        assert!(at(0, 0) < at(5, 0) && at(5, 0) < at(5, 1));
        assert_eq!(at(0, 0), 110);
    }
}
