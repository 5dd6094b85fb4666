//! Whether a thread that waits for a reply spins for a moment before it sleeps.
//!
//! To be woken takes about as long as most replies do, so spinning pays where replies come meanwhile. It does
//! not where many call at once or other programs compute: the thread then takes the processor from the
//! process that would reply. So spins without a reply make later calls sleep at once. A single one is
//! ignored; each further one doubles the calls that do not spin, up to 63 of 64.

use std::time::Duration;

/// How long a thread spins for a reply before it sleeps.
pub(crate) const SPIN_TIME_MAX: Duration = Duration::from_micros(50);

/// At least one in two to this power of calls spins.
const SKIPPED_BITS_MAX: u32 = 6;

/// What became of the spins on one connection.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    /// Spins that ended without a reply, less those that ended with one.
    failures: u32,
    /// The number of calls to come that do not spin.
    skipped: u32,
}

impl Spin {
    /// Whether to spin for the reply of this call.
    pub(crate) fn is_due(&mut self) -> bool {
        let is_due = self.skipped == 0;
        self.skipped = self.skipped.saturating_sub(1);
        is_due
    }

    /// The reply came while the thread was spinning, or it did not.
    pub(crate) fn ended(&mut self, was_found: bool) {
        self.failures = match was_found {
            true => self.failures.saturating_sub(1),
            false => (SKIPPED_BITS_MAX + 1).min(self.failures + 1),
        };
        self.skipped = (1 << self.failures.saturating_sub(1)) - 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many calls spin, if this is what becomes of each spin.
    fn count(spin: &mut Spin, calls: usize, mut found: impl FnMut(usize) -> bool) -> usize {
        let mut count = 0;
        for _ in 0..calls {
            if spin.is_due() {
                spin.ended(found(count));
                count += 1;
            }
        }
        count
    }

    #[test]
    fn spins_that_find_replies_go_on() {
        assert_eq!(count(&mut Spin::default(), 1000, |_| true), 1000);
    }

    #[test]
    fn spins_that_find_none_become_rare_and_never_end() {
        let mut spin = Spin::default();
        count(&mut spin, 1000, |_| false);
        assert_eq!(count(&mut spin, 64 << SKIPPED_BITS_MAX, |_| false), 64);
    }

    #[test]
    fn one_failure_now_and_then_changes_nothing() {
        assert_eq!(count(&mut Spin::default(), 1000, |poll| poll % 100 != 0), 1000);
    }

    #[test]
    fn the_second_failure_in_a_row_skips_a_call() {
        assert_eq!(count(&mut Spin::default(), 1010, |poll| poll % 100 > 1), 1000);
    }

    #[test]
    fn spins_that_find_replies_again_soon_go_on_as_before() {
        let mut spin = Spin::default();
        count(&mut spin, 1000, |_| false);
        count(&mut spin, 2 << SKIPPED_BITS_MAX, |_| true);
        assert_eq!(count(&mut spin, 100, |_| true), 100);
    }
}
