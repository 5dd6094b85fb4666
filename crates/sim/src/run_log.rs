//! The log of a run: a hash, and text for debugging.
//!
//! **Invariant:** every input and output of a state machine is part of the hash, so that two runs with the
//! same hash are the same run.

use std::fmt::Write;

use xxhash_rust::xxh3::Xxh3;

/// The log of one run.
pub(crate) struct RunLog {
    hash: Xxh3,
    text: Option<String>,
}

impl RunLog {
    pub(crate) fn new(keep_text: bool) -> Self {
        Self { hash: Xxh3::new(), text: keep_text.then(String::new) }
    }

    /// Adds an event with its numbers and bytes.
    pub(crate) fn line(&mut self, now: u64, what: &str, numbers: &[u64], bytes: &[u8]) {
        self.hash.update(what.as_bytes());
        self.hash.update(&now.to_le_bytes());
        for number in numbers {
            self.hash.update(&number.to_le_bytes());
        }
        self.hash.update(bytes);
        if let Some(text) = &mut self.text {
            _ = writeln!(text, "{now:>7} {what} {numbers:?}");
        }
    }

    /// Adds text that is not part of the hash.
    pub(crate) fn note(&mut self, note: impl FnOnce() -> String) {
        if let Some(text) = &mut self.text {
            _ = writeln!(text, "          {}", note());
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash.digest()
    }

    pub(crate) fn take_text(&mut self) -> String {
        self.text.take().unwrap_or_default()
    }
}
