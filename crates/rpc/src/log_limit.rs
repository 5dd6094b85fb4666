//! Limits the lines that peers cause in the log: a peer without a token can connect as often as it likes, and
//! must not fill a disk.
//!
//! **Invariant:** at most [`LINES_MAX`] of these lines are written per second, in the whole process. The next
//! second begins with the number of those that were left out.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The maximum number of lines per second.
const LINES_MAX: u32 = 20;

static LINES: LogLimit = LogLimit(Mutex::new(None));

/// Whether one more line about a peer may be written now.
pub(crate) fn permits_line() -> bool {
    let (is_permitted, left_out) = LINES.permit(Instant::now());
    if left_out > 0 {
        tracing::warn!(left_out, "lines about refused peers are missing here, because there were too many");
    }
    is_permitted
}

/// The second that began last.
#[derive(Debug)]
struct Second {
    began: Instant,
    lines: u32,
    left_out: u64,
}

#[derive(Debug)]
struct LogLimit(Mutex<Option<Second>>);

impl LogLimit {
    /// Whether a line may be written, and how many were left out in the second that has just ended.
    fn permit(&self, now: Instant) -> (bool, u64) {
        let mut guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = Second { began: now, lines: 0, left_out: 0 };
        let mut left_out = 0;
        let second = guard.get_or_insert(begun);
        if now.saturating_duration_since(second.began) >= Duration::from_secs(1) {
            left_out = second.left_out;
            *second = Second { began: now, lines: 0, left_out: 0 };
        }
        let is_permitted = second.lines < LINES_MAX;
        if is_permitted {
            second.lines += 1;
        } else {
            second.left_out += 1;
        }
        (is_permitted, left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_limited_per_second_and_missing_ones_counted() {
        let (limit, began) = (LogLimit(Mutex::new(None)), Instant::now());
        for _ in 0..LINES_MAX {
            assert_eq!(limit.permit(began), (true, 0), "at the limit");
        }
        let later = began + Duration::from_millis(999);
        assert_eq!([limit.permit(began), limit.permit(later)], [(false, 0), (false, 0)], "beyond it");
        let next = began + Duration::from_secs(1);
        assert_eq!(limit.permit(next), (true, 2));
        assert_eq!(limit.permit(next), (true, 0));
    }
}
