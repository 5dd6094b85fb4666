//! `tiffin events`: follows what happens to a store.

use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use crate::Context;
use crate::console::{Console, Failure, STATUS_OK};
use crate::master_pages::{MasterPages, PagesArgs};
use crate::show;

/// The time between two questions.
const PAUSE: Duration = Duration::from_secs(1);

/// Follows what happens to a store: members that come and go, quotas that are reached, objects that are
/// evicted unread. The master remembers the last events.
#[derive(Debug, clap::Args)]
pub(crate) struct Events {
    /// Writes the events that the master remembers, and ends.
    #[arg(long)]
    no_follow: bool,

    #[command(flatten)]
    pages: PagesArgs,
}

/// Writes events until it is interrupted.
pub(crate) async fn run(events: Events, context: &Context, console: &mut Console) -> Result<i32, Failure> {
    let pages = MasterPages::new(events.pages, context)?;
    let (mut reader, mut is_lost) = (Reader::default(), false);
    loop {
        match pages.get(&reader.path()).await {
            Ok(answer) => {
                if std::mem::take(&mut is_lost) {
                    console.note("the master answers again");
                }
                reader.write(&answer, console)?;
                console.flush()?;
                if answer.get("more").and_then(Value::as_bool).unwrap_or_default() {
                    continue;
                }
            }
            // A master that restarts comes back.
            Err(failure) if reader.has_begun() && failure.may_pass() => {
                if !std::mem::replace(&mut is_lost, true) {
                    console.note(format!("{}; waiting for the master", failure.message));
                }
            }
            Err(failure) => return Err(failure),
        }
        if events.no_follow {
            return Ok(STATUS_OK);
        }
        sleep(PAUSE).await;
    }
}

/// How far the events have been read.
#[derive(Default)]
struct Reader {
    /// The journal of the master's process; its numbers begin at 1.
    journal: String,
    last: u64,
}

impl Reader {
    fn has_begun(&self) -> bool {
        !self.journal.is_empty()
    }

    fn path(&self) -> String {
        match self.has_begun() {
            true => format!("/api/tiffin/events?after={}&journal={}", self.last, self.journal),
            false => "/api/tiffin/events".to_owned(),
        }
    }

    /// Writes the events of a page.
    fn write(&mut self, answer: &Value, console: &mut Console) -> Result<(), Failure> {
        // It becomes a part of an address.
        let journal = answer["journal"].as_str().unwrap_or_default();
        let journal: String = journal.chars().filter(char::is_ascii_alphanumeric).collect();
        if journal != self.journal {
            (self.journal, self.last) = (journal, 0);
        }
        for event in answer["events"].as_array().into_iter().flatten() {
            let number = event["number"].as_u64().unwrap_or(self.last);
            let missed = number.saturating_sub(self.last + 1);
            if self.last > 0 && missed > 0 {
                console.note(format!("{missed} events were overwritten before they were read"));
            }
            self.last = number;
            if console.json {
                console.value(event)?;
            } else {
                console.text(line(event))?;
            }
        }
        Ok(())
    }
}

/// An event on one line.
pub(crate) fn line(event: &Value) -> String {
    let text = |name: &str| show::key(event[name].as_str().unwrap_or_default().as_bytes());
    let at = Duration::from_millis(event["at_ms"].as_u64().unwrap_or_default());
    let at = humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + at.min(Duration::from_secs(1 << 37)));
    let times = match event["count"].as_u64() {
        Some(count) if count > 1 => format!(" ({count} times)"),
        _ => String::new(),
    };
    let subject = text("subject");
    let subject = if subject.is_empty() { subject } else { format!("{subject}: ") };
    format!("{at}  {:<7}  {:<16}  {subject}{}{times}", text("level"), text("kind"), text("text"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn event_is_one_line_without_control_characters() {
        let event = json!({
            "at_ms": 1_700_000_000_000_u64, "level": "error", "kind": "member_lost", "subject": "le\x1bft",
            "text": "is lost,\nwith 3 objects", "count": 2,
        });
        assert_eq!(
            line(&event),
            "2023-11-14T22:13:20Z  error    member_lost       le\\u{1b}ft: is lost,\\nwith 3 objects \
             (2 times)"
        );
        assert_eq!(line(&json!({})), "1970-01-01T00:00:00Z                             ");
    }
}
