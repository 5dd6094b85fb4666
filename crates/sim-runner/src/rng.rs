//! Random numbers. Every random choice of a simulation comes from here, from one seed.

use rand::{Rng as _, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A seeded random number generator.
#[derive(Clone, Debug)]
pub struct Rng(ChaCha8Rng);

impl Rng {
    /// The generator of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `end`; zero if `end` is zero.
    pub fn below(&mut self, end: u64) -> u64 {
        // The bias of the remainder is too small for a simulation to notice.
        if end == 0 { 0 } else { self.any() % end }
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True with a probability of one in `count`; never if `count` is zero.
    pub fn once_in(&mut self, count: u64) -> bool {
        count > 0 && self.below(count) == 0
    }

    /// True with a probability of this many percent.
    pub fn percent(&mut self, rng: u64) -> bool {
        self.below(100) < rng
    }

    /// A random element; `None` if there is none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len() as u64) as usize)
    }

    /// A delay: usually up to `usual`, in one of twelve cases up to `seldom`.
    pub fn delay(&mut self, usual: u64, seldom: u64) -> u64 {
        if self.once_in(12) { self.between(usual, seldom) } else { self.below(usual + 1) }
    }
}
