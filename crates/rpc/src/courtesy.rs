//! Whether a thread lets others run: one that looks for an answer, between two looks, and one that does much
//! for which nobody waits.
//!
//! Whoever is to answer may need this very processor, and then letting it run is the shortest way to the
//! answer. It costs next to nothing where nobody else computes. Where somebody does, each time is a whole
//! slice of theirs, a hundred times as long as the answer takes. That is noticed, and not tried again for a
//! while: the longer, the more often it was so.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Whoever answers a question lets go of the processor sooner, and whoever computes later.
const SLICE_TIME_MIN: Duration = Duration::from_micros(500);
/// How long it is not tried after it took a slice, at first and at most.
const REST_TIME_MIN: Duration = Duration::from_millis(250);
/// See [`REST_TIME_MIN`].
const REST_TIME_MAX: Duration = Duration::from_secs(16);

/// What all threads of this process have seen.
static SEEN: Courtesy = Courtesy::new();
static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Lets others run, and says so; or does nothing, where that took too long lately.
pub fn step_aside() -> bool {
    let now = || BEGIN.elapsed();
    let began = now();
    let is_due = SEEN.is_due(began);
    if is_due {
        std::thread::yield_now();
        SEEN.took(began, now());
    }
    is_due
}

/// What is known of others on this machine. Times are nanoseconds since some moment.
///
/// Threads that find out the same in the same instant may lengthen a rest twice: it is a guess either way.
struct Courtesy {
    rests_until: AtomicU64,
    rest: AtomicU64,
}

impl Courtesy {
    const fn new() -> Self {
        Self { rests_until: AtomicU64::new(0), rest: AtomicU64::new(0) }
    }

    fn is_due(&self, now: Duration) -> bool {
        nanos(now) >= self.rests_until.load(Ordering::Relaxed)
    }

    fn took(&self, began: Duration, ended: Duration) {
        if ended.saturating_sub(began) < SLICE_TIME_MIN {
            return;
        }
        let (last, until) = (self.rest.load(Ordering::Relaxed), self.rests_until.load(Ordering::Relaxed));
        if nanos(began) < until {
            // It met what another thread has met before.
            return;
        }
        // Who computes still, soon after the last rest, will go on.
        let is_again = nanos(began) < until.saturating_add(last);
        let longer = Duration::from_nanos(last.saturating_mul(2)).min(REST_TIME_MAX);
        let rest = if is_again { longer.max(REST_TIME_MIN) } else { REST_TIME_MIN };
        self.rest.store(nanos(rest), Ordering::Relaxed);
        self.rests_until.store(nanos(ended + rest), Ordering::Relaxed);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: Duration = Duration::from_millis(3);

    #[test]
    fn who_lets_go_soon_is_let_run_again() {
        let courtesy = Courtesy::new();
        let now = Duration::from_secs(1);
        for times in 0..100 {
            assert!(courtesy.is_due(now + times * SLICE_TIME_MIN));
            courtesy.took(now, now + SLICE_TIME_MIN - Duration::from_nanos(1));
        }
    }

    #[test]
    fn who_computes_is_left_alone_longer_and_longer() {
        let courtesy = Courtesy::new();
        let mut now = Duration::from_secs(1);
        let mut rest = REST_TIME_MIN;
        for _ in 0..10 {
            courtesy.took(now, now + SLICE);
            now += SLICE;
            assert!(!courtesy.is_due(now) && !courtesy.is_due(now + rest - Duration::from_nanos(1)));
            now += rest;
            assert!(courtesy.is_due(now));
            rest = (rest * 2).min(REST_TIME_MAX);
        }
        assert_eq!(rest, REST_TIME_MAX);
    }

    #[test]
    fn what_several_threads_meet_at_once_counts_once() {
        let courtesy = Courtesy::new();
        let now = Duration::from_secs(1);
        for thread in 0..10 {
            courtesy.took(now + thread * SLICE_TIME_MIN / 10, now + SLICE);
        }
        assert!(courtesy.is_due(now + SLICE + REST_TIME_MIN));
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let courtesy = Courtesy::new();
        let now = Duration::from_secs(1);
        courtesy.took(now, now + SLICE);
        let again = now + SLICE + REST_TIME_MIN;
        courtesy.took(again, again + SLICE);
        let later = again + SLICE + 4 * REST_TIME_MIN;
        courtesy.took(later, later + SLICE);
        assert!(courtesy.is_due(later + SLICE + REST_TIME_MIN));
    }
}
