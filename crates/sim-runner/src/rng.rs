//! All chance comes from here, and from one seed.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A stream of random choices.
#[derive(Clone, Debug)]
pub struct Chance(ChaCha8Rng);

impl Chance {
    /// The stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    /// Any number.
    pub fn any(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `end`; zero if that is zero.
    pub fn below(&mut self, end: u64) -> u64 {
        // The bias of the remainder is far below what a simulation could notice.
        if end == 0 { 0 } else { self.any() % end }
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// True about once in `count` times; never if that is zero.
    pub fn once_in(&mut self, count: u64) -> bool {
        count > 0 && self.below(count) == 0
    }

    /// True in so many of a hundred cases.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// One of them; nothing if there is none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len() as u64) as usize)
    }

    /// Mostly short, sometimes long: how waiting is distributed in the world.
    pub fn delay(&mut self, usual: u64, seldom: u64) -> u64 {
        if self.once_in(12) { self.between(usual, seldom) } else { self.below(usual + 1) }
    }
}
