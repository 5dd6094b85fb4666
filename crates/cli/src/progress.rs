//! The progress of a long copy, on a terminal.

use crate::console::Console;
use crate::show;

/// Shorter copies end before a bar could be read.
const SHOWN_FROM_BYTES: u64 = 64 << 20;
/// The width of the bar, in characters.
const BAR_CHARS: u64 = 30;

/// A bar on standard error, redrawn only when it changes.
#[derive(Debug)]
pub(crate) struct Progress {
    total: u64,
    done: u64,
    drawn_percent: Option<u64>,
}

impl Progress {
    /// A bar for this many bytes.
    pub(crate) fn of(total: u64) -> Self {
        Self { total, done: 0, drawn_percent: None }
    }

    /// Adds processed bytes.
    pub(crate) fn advance(&mut self, console: &mut Console, bytes: u64) {
        self.done = self.done.saturating_add(bytes).min(self.total);
        if self.total < SHOWN_FROM_BYTES {
            return;
        }
        let percent = self.percent();
        if self.drawn_percent == Some(percent) {
            return;
        }
        if let Some(terminal) = console.progress_terminal() {
            // A failed write of the bar is ignored.
            let _ = write!(terminal, "\r{}", self.bar()).and_then(|()| terminal.flush());
            self.drawn_percent = Some(percent);
        }
    }

    /// Erases the bar.
    pub(crate) fn finish(self, console: &mut Console) {
        if self.drawn_percent.is_some()
            && let Some(terminal) = console.progress_terminal()
        {
            let _ = write!(terminal, "\r\x1b[K").and_then(|()| terminal.flush());
        }
    }

    fn percent(&self) -> u64 {
        let percent = u128::from(self.done) * 100 / u128::from(self.total.max(1));
        u64::try_from(percent).unwrap_or(100)
    }

    fn bar(&self) -> String {
        let percent = self.percent();
        let full = percent * BAR_CHARS / 100;
        let (full, rest) = ("#".repeat(full as usize), ".".repeat((BAR_CHARS - full) as usize));
        format!("[{full}{rest}] {percent:>3}%  {} of {}", show::size(self.done), show::size(self.total))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_shows_the_progress() {
        let mut console = Console::standard(true);
        let mut progress = Progress::of(4 << 30);
        assert_eq!(progress.bar(), "[..............................]   0%  0 B of 4.0 GiB");
        progress.advance(&mut console, 2 << 30);
        assert_eq!(progress.bar(), "[###############...............]  50%  2.0 GiB of 4.0 GiB");
        progress.advance(&mut console, u64::MAX);
        assert_eq!(progress.bar(), "[##############################] 100%  4.0 GiB of 4.0 GiB");
        assert_eq!(Progress::of(0).percent(), 0);
    }
}
