//! Whether a thread that waits for an answer looks for it before it sleeps.
//!
//! Looking pays where answers come meanwhile. Where many ask at once they do not, and whoever looks takes the
//! processor from those who would answer. So after looks in vain there are calls without: the more, the more
//! often it was so. One alone is chance.

use std::sync::atomic::{AtomicU32, Ordering};

/// There is one look in at most two to this power of calls.
const WITHOUT_BITS_MAX: u32 = 6;

/// What became of the looks on one connection.
///
/// Threads that end a look in the same instant may count one of them only: it is a guess either way.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// How often it was in vain, less how often it was not.
    in_vain: AtomicU32,
    /// So many calls are to come that do not look.
    without: AtomicU32,
}

impl Looks {
    /// Whether to look for the answer of this call.
    pub(crate) fn is_due(&self) -> bool {
        let without = self.without.load(Ordering::Relaxed);
        self.without.store(without.saturating_sub(1), Ordering::Relaxed);
        without == 0
    }

    /// The answer came while it was looked for, or it did not.
    pub(crate) fn ended(&self, was_found: bool) {
        let in_vain = self.in_vain.load(Ordering::Relaxed);
        let in_vain =
            if was_found { in_vain.saturating_sub(1) } else { (WITHOUT_BITS_MAX + 1).min(in_vain + 1) };
        self.in_vain.store(in_vain, Ordering::Relaxed);
        self.without.store((1 << in_vain.saturating_sub(1)) - 1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many calls look, if this is what becomes of each look.
    fn count(looks: &Looks, calls: usize, mut found: impl FnMut(usize) -> bool) -> usize {
        let mut count = 0;
        for _ in 0..calls {
            if looks.is_due() {
                looks.ended(found(count));
                count += 1;
            }
        }
        count
    }

    #[test]
    fn who_finds_answers_goes_on_looking() {
        assert_eq!(count(&Looks::default(), 1000, |_| true), 1000);
    }

    #[test]
    fn who_finds_none_looks_less_and_less_and_never_gives_up() {
        let looks = Looks::default();
        count(&looks, 1000, |_| false);
        assert_eq!(count(&looks, 64 << WITHOUT_BITS_MAX, |_| false), 64);
    }

    #[test]
    fn one_in_vain_now_and_then_is_forgiven() {
        assert_eq!(count(&Looks::default(), 1000, |look| look % 100 != 0), 1000);
    }

    #[test]
    fn the_second_in_vain_in_a_row_costs_a_call_without() {
        assert_eq!(count(&Looks::default(), 1010, |look| look % 100 > 1), 1000);
    }

    #[test]
    fn who_finds_answers_again_soon_looks_as_before() {
        let looks = Looks::default();
        count(&looks, 1000, |_| false);
        count(&looks, 2 << WITHOUT_BITS_MAX, |_| true);
        assert_eq!(count(&looks, 100, |_| true), 100);
    }
}
