//! The pages of a tier, and what each of them is used for.
//!
//! **Invariant (O2):** every page is in exactly one state, and who changes it says which state it was in: a
//! page that is freed twice, or given to two owners, stops the engine.

use crate::inventory::CellId;
use crate::message::{OpId, ReqId, Tier};

/// What a page is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum PageState {
    /// For nothing.
    Free,
    /// An operation writes it.
    Staged(OpId),
    /// It holds a page that can be matched.
    Indexed(CellId),
    /// A request computes in it.
    Private(ReqId),
    /// An operation that nobody waits for may still write it (O3).
    Quarantined(OpId),
}

/// How many pages are in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// Used for nothing.
    pub free: u32,
    /// Written by operations.
    pub staged: u32,
    /// Can be matched.
    pub indexed: u32,
    /// Computed in.
    pub private: u32,
    /// Not to be touched before their operations end.
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
    /// Pages that were ever taken, for the rule that room is made only as needed (O5).
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

    /// A free page, which is used for this from now on. Who takes one has made room before.
    #[track_caller]
    pub(crate) fn take(&mut self, state: PageState) -> u32 {
        let page = self.free.pop().expect("room was made before a page is taken");
        self.taken += 1;
        self.change(page, PageState::Free, state);
        page
    }

    /// The page is free again.
    #[track_caller]
    pub(crate) fn give_back(&mut self, page: u32, was: PageState) {
        self.change(page, was, PageState::Free);
        self.free.push(page);
    }

    /// The page is used for something else.
    #[track_caller]
    pub(crate) fn change(&mut self, page: u32, was: PageState, state: PageState) {
        let slot = self.states.get_mut(page as usize);
        let slot = slot.unwrap_or_else(|| panic!("{:?} has no page {page}", self.tier));
        assert_eq!(*slot, was, "O2: {:?} page {page}", self.tier);
        *self.counts.of(was) -= 1;
        *self.counts.of(state) += 1;
        *slot = state;
    }

    /// Whether the books agree with the pages.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut counted = PageCounts::default();
        self.states.iter().for_each(|state| *counted.of(*state) += 1);
        if counted != self.counts || self.free.len() != counted.free as usize {
            return Err(format!("{:?} has {counted:?}, its books say {:?}", self.tier, self.counts));
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
    fn o2_a_page_has_one_use_at_a_time_and_counts_add_up() {
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
    fn o2_a_second_free_is_noticed() {
        let twice = std::panic::catch_unwind(|| {
            let mut pool = Pool::new(Tier::Host, 3);
            let page = pool.take(PageState::Staged(OpId(1)));
            pool.give_back(page, PageState::Staged(OpId(1)));
            pool.give_back(page, PageState::Staged(OpId(1)));
        });
        assert!(twice.is_err());
    }
}
