//! Progress on standard error: one line that is rewritten on a terminal, occasional lines elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

const BAR_WIDTH: u64 = 30;
/// Update interval on a terminal.
const REDRAW: Duration = Duration::from_millis(100);
/// Update interval in a log.
const LOG: Duration = Duration::from_secs(10);

/// The state of the progress line.
#[derive(Debug)]
pub(crate) struct Progress {
    what: &'static str,
    total: u64,
    began: Instant,
    shown: Instant,
    on_terminal: bool,
}

impl Progress {
    pub(crate) fn new(what: &'static str, total: u64) -> Self {
        let now = Instant::now();
        Self { what, total, began: now, shown: now, on_terminal: std::io::stderr().is_terminal() }
    }

    /// Prints the progress, unless it was printed recently.
    pub(crate) fn show(&mut self, done: u64, failed: u64) {
        let pause = if self.on_terminal { REDRAW } else { LOG };
        if self.shown.elapsed() < pause {
            return;
        }
        self.shown = Instant::now();
        let seconds = self.began.elapsed().as_secs_f64();
        let rate = done as f64 / seconds.max(f64::EPSILON);
        let left = (self.total.saturating_sub(done) as f64 / rate.max(f64::EPSILON)) as u64;
        let (what, total) = (self.what, self.total);
        let text =
            format!("{done} of {total} {what}, {rate:.0} a second, {failed} failed, {} left", time(left));
        let mut err = std::io::stderr().lock();
        // A failed write to standard error is ignored.
        _ = match self.on_terminal {
            true => {
                let full = (done * BAR_WIDTH).checked_div(total).unwrap_or(BAR_WIDTH).min(BAR_WIDTH);
                let bar: String = (0..BAR_WIDTH).map(|at| if at < full { '#' } else { '.' }).collect();
                write!(err, "\r\x1b[K[{bar}] {text}")
            }
            false => writeln!(err, "{text}"),
        };
        _ = err.flush();
    }

    /// Erases the line before other output.
    pub(crate) fn clear(&self) {
        if self.on_terminal {
            _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn time(seconds: u64) -> String {
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    match hours {
        0 => format!("{minutes}:{:02}", seconds % 60),
        _ => format!("{hours}:{minutes:02}:{:02}", seconds % 60),
    }
}
