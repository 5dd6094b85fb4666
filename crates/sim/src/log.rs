//! What happened, as one number, and as text for whoever looks for the reason of a failure.
//!
//! **Invariant:** everything that leaves a state machine or reaches one is in the number, so that two runs
//! with the same number are the same run.

use std::fmt::Write;

use xxhash_rust::xxh3::Xxh3;

/// The log of one run.
pub(crate) struct Log {
    hash: Xxh3,
    text: Option<String>,
}

impl Log {
    pub(crate) fn new(keep_text: bool) -> Self {
        Self { hash: Xxh3::new(), text: keep_text.then(String::new) }
    }

    /// Writes one line: what, with which numbers, and with which bytes.
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

    /// Adds what only a reader of the text wants to know.
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
