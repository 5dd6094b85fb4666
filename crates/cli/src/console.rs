//! What a command says: data to standard output, all else to standard error.
//!
//! **Invariant:** an error says what happened to which thing, then an empty line, then `hint:` and what to
//! do. Asked for JSON, data is one JSON value per line, and an error is one too.
//!
//! **Invariant:** nothing is told by colour alone, and there is none where nobody would see it.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use serde_json::{Map, Value, json};

/// The status of a command that did what it should.
pub(crate) const STATUS_OK: i32 = 0;
/// The status of a command that could not do what it should.
pub(crate) const STATUS_FAILED: i32 = 1;
/// The status of a command that was not understood.
pub(crate) const STATUS_USAGE: i32 = 2;
/// The status of a command that was interrupted from the keyboard, as shells have it.
pub(crate) const STATUS_INTERRUPTED: i32 = 130;

/// What stands between a message and the advice, in the messages of all our crates.
const HINT: &str = "\n\nhint: ";

/// Why a command did not do what it should.
#[derive(Debug)]
pub(crate) struct Failure {
    /// For programs: short, stable, one per thing that a caller would handle differently.
    pub(crate) code: &'static str,
    /// For people: what happened to which thing.
    pub(crate) message: String,
    /// For people: what to do.
    pub(crate) hint: Option<String>,
    /// What the process leaves with.
    pub(crate) status: i32,
    /// For programs: what else is known, in the JSON form only.
    pub(crate) facts: Map<String, Value>,
}

impl Failure {
    /// A failure whose text may carry its hint, as the errors of our crates do.
    pub(crate) fn new(code: &'static str, text: impl fmt::Display) -> Self {
        let text = text.to_string();
        // An error that quotes another may carry the hints of both.
        let mut parts = text.split(HINT).map(str::trim_end);
        let message = parts.next().unwrap_or_default().to_owned();
        let hints: Vec<_> = parts.collect();
        let hint = (!hints.is_empty()).then(|| hints.join("; "));
        Self { code, message, hint, status: STATUS_FAILED, facts: Map::new() }
    }

    /// The same, with this advice if it has none.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint.get_or_insert_with(|| hint.into());
        self
    }

    /// A file that could not be read or written.
    pub(crate) fn file(what: &str, path: &std::path::Path, error: &io::Error) -> Self {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => "check the path; folders are not made",
            io::ErrorKind::PermissionDenied => "choose a path that you may use, or change its permissions",
            io::ErrorKind::IsADirectory => "name a file, not a folder",
            io::ErrorKind::StorageFull => "free some space, or choose another disk",
            _ => "check that the path is a file on a disk that works",
        };
        Self::new("file", format!("cannot {what} `{}`: {error}", path.display())).hint(hint)
    }

    /// Whoever read our output has had enough, which is no failure of ours.
    fn is_broken_pipe(&self) -> bool {
        self.code == BROKEN_PIPE
    }
}

const BROKEN_PIPE: &str = "broken_pipe";

impl From<io::Error> for Failure {
    /// For standard input and output, which have no path.
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::new(BROKEN_PIPE, "the reader of the output is gone");
        }
        let advice = "check where standard input and output lead to";
        Self::new("file", format!("cannot read or write: {error}")).hint(advice)
    }
}

/// Where a command writes to.
pub(crate) struct Console {
    /// Wants JSON.
    pub(crate) json: bool,
    colour: bool,
    err_is_terminal: bool,
    out: Box<dyn Write + Send>,
    err: Box<dyn Write + Send>,
}

impl Console {
    /// The standard streams of this process.
    pub(crate) fn standard(json: bool) -> Self {
        let err_is_terminal = io::stderr().is_terminal();
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            json,
            colour: err_is_terminal && !unwanted,
            err_is_terminal,
            out: Box::new(io::stdout()),
            err: Box::new(io::stderr()),
        }
    }

    /// Data, as text.
    pub(crate) fn text(&mut self, text: impl fmt::Display) -> Result<(), Failure> {
        writeln!(self.out, "{text}")?;
        Ok(self.out.flush()?)
    }

    /// Data, as one line of JSON.
    pub(crate) fn value(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let line = serde_json::to_string(value).map_err(|error| Failure::new("internal", error))?;
        self.text(line)
    }

    /// Data, as it is.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.out.write_all(bytes)?)
    }

    /// Nothing is kept back any longer.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        Ok(self.out.flush()?)
    }

    /// Something for people, beside the data.
    pub(crate) fn note(&mut self, text: impl fmt::Display) {
        if !self.json {
            // Nobody can be told that nobody can be told anything.
            let _ = writeln!(self.err, "{text}");
        }
    }

    /// Asks the user on the terminal; `None` if there is no terminal, or no answer is to be expected.
    pub(crate) async fn ask(&mut self, question: &str) -> Result<Option<bool>, Failure> {
        if self.json || !self.err_is_terminal || !io::stdin().is_terminal() {
            return Ok(None);
        }
        // A question that cannot be shown is answered by nobody, and that is a no.
        let _ = write!(self.err, "{question} [y/N] ").and_then(|()| self.err.flush());
        let read = || {
            let mut line = String::new();
            io::stdin().read_line(&mut line).map(|_| line)
        };
        let line =
            tokio::task::spawn_blocking(read).await.map_err(|error| Failure::new("internal", error))?;
        Ok(Some(is_yes(&line?)))
    }

    /// Where progress may be shown, if somebody watches.
    pub(crate) fn watched(&mut self) -> Option<&mut (dyn Write + Send)> {
        (self.err_is_terminal && !self.json).then_some(&mut *self.err)
    }

    /// Tells why the command failed, and returns the status to leave with.
    pub(crate) fn fail(&mut self, failure: &Failure) -> i32 {
        if failure.is_broken_pipe() {
            return STATUS_OK;
        }
        let text = if self.json {
            let Failure { code, message, hint, facts, .. } = failure;
            let mut error = facts.clone();
            error.extend([
                ("code".to_owned(), json!(code)),
                ("message".to_owned(), json!(message)),
                ("hint".to_owned(), json!(hint)),
            ]);
            json!({ "error": error }).to_string()
        } else {
            let (on, off) = if self.colour { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
            let hint = failure.hint.as_ref().map_or_else(String::new, |hint| format!("{HINT}{hint}"));
            format!("{on}error:{off} {}{hint}", failure.message)
        };
        let _ = writeln!(self.err, "{text}");
        failure.status
    }
}

fn is_yes(answer: &str) -> bool {
    ["y", "yes"].contains(&answer.trim().to_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_is_yes() {
        for (answer, expected) in [
            ("y\n", true),
            ("Yes\r\n", true),
            ("", false),
            ("\n", false),
            ("n\n", false),
            ("yesterday\n", false),
        ] {
            assert_eq!(is_yes(answer), expected, "{answer:?}");
        }
    }

    #[test]
    fn a_hint_is_found_in_a_message_and_never_doubled() {
        let failure = Failure::new("x", "it broke\n\nhint: mend it").hint("throw it away");
        assert_eq!((failure.message.as_str(), failure.hint.as_deref()), ("it broke", Some("mend it")));
        let failure = Failure::new("x", "it broke\n\nhint: mend it\n\nhint: buy another");
        assert_eq!(failure.hint.as_deref(), Some("mend it; buy another"));
        let failure = Failure::new("x", "it broke").hint("throw it away");
        assert_eq!(failure.hint.as_deref(), Some("throw it away"));
    }

    #[test]
    fn a_reader_who_has_had_enough_is_no_failure() {
        let mut console = Console::standard(false);
        let gone = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(console.fail(&gone), STATUS_OK);
    }
}
