//! Output of a command: data to standard output, everything else to standard error.
//!
//! **Invariant:** an error names the thing and the problem, then an empty line, then `hint:` and what to do.
//! With `--json`, data is one JSON value per line, and so is an error.
//!
//! **Invariant:** no information is in the colour alone, and colours are used on terminals only.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;
use serde_json::{Map, Value, json};

/// Exit status: success.
pub(crate) const STATUS_OK: i32 = 0;
/// Exit status: failure.
pub(crate) const STATUS_FAILED: i32 = 1;
/// Exit status: invalid arguments.
pub(crate) const STATUS_USAGE: i32 = 2;
/// Exit status: interrupted from the keyboard, as in shells.
pub(crate) const STATUS_INTERRUPTED: i32 = 130;

/// Separates message and hint, in the errors of all our crates.
const HINT: &str = "\n\nhint: ";

/// Why a command failed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// For programs: short, stable, one per case that a caller would handle differently.
    pub(crate) code: &'static str,
    /// For people: the thing and the problem.
    pub(crate) message: String,
    /// For people: what to do.
    pub(crate) hint: Option<String>,
    /// The exit status.
    pub(crate) status: i32,
    /// For programs: further facts, in the JSON form only.
    pub(crate) facts: Map<String, Value>,
}

impl Failure {
    /// A failure whose text may contain its hint, as the errors of our crates do.
    pub(crate) fn new(code: &'static str, text: impl fmt::Display) -> Self {
        let text = text.to_string();
        // An error that quotes another may contain the hints of both.
        let mut parts = text.split(HINT).map(str::trim_end);
        let message = parts.next().unwrap_or_default().to_owned();
        let hints: Vec<_> = parts.collect();
        let hint = (!hints.is_empty()).then(|| hints.join("; "));
        Self { code, message, hint, status: STATUS_FAILED, facts: Map::new() }
    }

    /// Adds a hint, if it has none.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint.get_or_insert_with(|| hint.into());
        self
    }

    /// A file that could not be read or written.
    pub(crate) fn file(what: &str, path: &std::path::Path, error: &io::Error) -> Self {
        let hint = match error.kind() {
            io::ErrorKind::NotFound if what.starts_with("create") => "check the path",
            io::ErrorKind::NotFound => "check the path; folders are not created",
            io::ErrorKind::PermissionDenied => "choose a path that you may use, or change its permissions",
            io::ErrorKind::IsADirectory => "name a file, not a folder",
            io::ErrorKind::StorageFull => "free some space, or choose another disk",
            _ => "check that the path is a file on a working disk",
        };
        Self::new("file", format!("cannot {what} `{}`: {error}", path.display())).hint(hint)
    }

    /// Whether the same command may succeed a moment later, when the master is back.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(self.code, "unreachable" | "unavailable" | "timeout")
    }

    /// The reader of our output has closed the pipe, which is not a failure.
    fn is_broken_pipe(&self) -> bool {
        self.code == BROKEN_PIPE
    }
}

const BROKEN_PIPE: &str = "broken_pipe";

impl From<io::Error> for Failure {
    /// For standard input and output, which have no path.
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::new(BROKEN_PIPE, "the reader closed the output");
        }
        let advice = "check standard input and output";
        Self::new("file", format!("cannot read or write: {error}")).hint(advice)
    }
}

/// The output of a command.
pub(crate) struct Console {
    /// JSON output.
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

    /// Data, as raw bytes.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.out.write_all(bytes)?)
    }

    /// Flushes the data.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        Ok(self.out.flush()?)
    }

    /// A message for people, in addition to the data.
    pub(crate) fn note(&mut self, text: impl fmt::Display) {
        if !self.json {
            // A failed write to standard error cannot be reported.
            let _ = writeln!(self.err, "{text}");
        }
    }

    /// Asks the user on the terminal; `None` without a terminal.
    pub(crate) async fn ask(&mut self, question: &str) -> Result<Option<bool>, Failure> {
        if self.json || !self.err_is_terminal || !io::stdin().is_terminal() {
            return Ok(None);
        }
        // A question that cannot be shown gets no answer, which counts as no.
        let _ = write!(self.err, "{question} [y/N] ").and_then(|()| self.err.flush());
        let read = || {
            let mut line = String::new();
            io::stdin().read_line(&mut line).map(|_| line)
        };
        let line =
            tokio::task::spawn_blocking(read).await.map_err(|error| Failure::new("internal", error))?;
        Ok(Some(is_yes(&line?)))
    }

    /// The terminal for progress, if there is one.
    pub(crate) fn progress_terminal(&mut self) -> Option<&mut (dyn Write + Send)> {
        (self.err_is_terminal && !self.json).then_some(&mut *self.err)
    }

    /// Reports a failure. Returns the exit status.
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
    fn hint_is_taken_from_the_message_once() {
        let failure = Failure::new("x", "it broke\n\nhint: mend it").hint("throw it away");
        assert_eq!((failure.message.as_str(), failure.hint.as_deref()), ("it broke", Some("mend it")));
        let failure = Failure::new("x", "it broke\n\nhint: mend it\n\nhint: buy another");
        assert_eq!(failure.hint.as_deref(), Some("mend it; buy another"));
        let failure = Failure::new("x", "it broke").hint("throw it away");
        assert_eq!(failure.hint.as_deref(), Some("throw it away"));
    }

    #[test]
    fn closed_pipe_is_not_a_failure() {
        let mut console = Console::standard(false);
        let gone = Failure::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert_eq!(console.fail(&gone), STATUS_OK);
    }
}
