//! The pages of a tier, and the state of each.
//!
//! **Invariant (O2):** every page is in exactly one state, and a caller that changes it names the state it
//! was in: a page that is freed twice, or given to two owners, stops the engine.

use crate::cell::CellId;
use crate::message::{OpId, ReqId, Tier};

/// The state of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PageState {
    /// Not used.
    Free,
    /// An operation writes it.
    Staged(OpId),
    /// It holds a copy that can be matched.
    Indexed(CellId),
    /// A request computes in it.
    Private(ReqId),
    /// An abandoned operation may still write it (O3).
    Quarantined(OpId),
}

/// How many pages are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// Not used.
    pub free: u32,
    /// Written by operations.
    pub staged: u32,
    /// With a copy that can be matched.
    pub indexed: u32,
    /// Computed in by a request.
    pub private: u32,
    /// Reserved until an abandoned operation ends.
    pub quarantined: u32,
}

impl PageCounts {
    /// All pages.
    #[must_use]
    pub fn total(self) -> u32 {
        self.free + self.staged + self.indexed + self.private + self.quarantined
    }

    fn of(&mut self, state: PageState) -> &mut u32 {
        match state {
            PageState::Free => &mut self.free,
            PageState::Staged(_) => &mut self.staged,
            PageState::Indexed(_) => &mut self.indexed,
            PageState::Private(_) => &mut self.private,
            PageState::Quarantined(_) => &mut self.quarantined,
        }
    }
}

/// The pages of a tier.
#[derive(Clone, Debug)]
pub(crate) struct Pool {
    tier: Tier,
    states: Vec<PageState>,
    free: Vec<u32>,
    counts: PageCounts,
    /// Number of pages that were ever taken, to check that evictions are needed (O5).
    taken: u64,
}

impl Pool {
    pub(crate) fn new(tier: Tier, pages: u32) -> Self {
        Self {
            tier,
            states: vec![PageState::Free; pages as usize],
            free: (0..pages).rev().collect(),
            counts: PageCounts { free: pages, ..PageCounts::default() },
            taken: 0,
        }
    }

    pub(crate) fn counts(&self) -> PageCounts {
        self.counts
    }

    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    pub(crate) fn states(&self) -> &[PageState] {
        &self.states
    }

    /// Takes a free page. The caller has made sure that there is one.
    #[track_caller]
    pub(crate) fn take(&mut self, state: PageState) -> u32 {
        let page = self.free.pop().expect("a free page exists before one is taken");
        self.taken += 1;
        self.change(page, PageState::Free, state);
        page
    }

    /// Frees a page.
    #[track_caller]
    pub(crate) fn give_back(&mut self, page: u32, was: PageState) {
        self.change(page, was, PageState::Free);
        self.free.push(page);
    }

    /// Changes the state of a page.
    #[track_caller]
    pub(crate) fn change(&mut self, page: u32, was: PageState, state: PageState) {
        let slot = self.states.get_mut(page as usize);
        let slot = slot.unwrap_or_else(|| panic!("{:?} has no page {page}", self.tier));
        assert_eq!(*slot, was, "O2: {:?} page {page}", self.tier);
        *self.counts.of(was) -= 1;
        *self.counts.of(state) += 1;
        *slot = state;
    }

    /// Checks that counters and states agree.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut counted = PageCounts::default();
        self.states.iter().for_each(|state| *counted.of(*state) += 1);
        if counted != self.counts || self.free.len() != counted.free as usize {
            return Err(format!("{:?} has {counted:?}, its counters say {:?}", self.tier, self.counts));
        }
        let mut free = self.free.clone();
        free.sort_unstable();
        free.dedup();
        let state = |page: &u32| self.states.get(*page as usize);
        if free.len() != self.free.len() || !free.iter().all(|page| state(page) == Some(&PageState::Free)) {
            return Err(format!("{:?} lists a page as free twice, or one that is not", self.tier));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn o2_page_has_one_state_and_counters_add_up() {
        let mut pool = Pool::new(Tier::Host, 3);
        let (a, b) = (pool.take(PageState::Staged(OpId(1))), pool.take(PageState::Private(ReqId(2))));
        assert_ne!(a, b);
        pool.change(a, PageState::Staged(OpId(1)), PageState::Quarantined(OpId(1)));
        let counts = PageCounts { free: 1, private: 1, quarantined: 1, ..PageCounts::default() };
        assert_eq!((pool.counts(), pool.counts().total()), (counts, 3));
        pool.give_back(a, PageState::Quarantined(OpId(1)));
        pool.give_back(b, PageState::Private(ReqId(2)));
        assert_eq!((pool.counts().free, pool.check()), (3, Ok(())));
    }

    #[test]
    fn o2_second_free_panics() {
        let twice = std::panic::catch_unwind(|| {
            let mut pool = Pool::new(Tier::Host, 3);
            let page = pool.take(PageState::Staged(OpId(1)));
            pool.give_back(page, PageState::Staged(OpId(1)));
            pool.give_back(page, PageState::Staged(OpId(1)));
        });
        assert!(twice.is_err());
    }
}
