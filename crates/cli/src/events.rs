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
    let mut last = 0;
    loop {
        let answer = pages.get(&format!("/api/tiffin/events?after={last}")).await?;
        for event in answer["events"].as_array().into_iter().flatten() {
            last = event["number"].as_u64().unwrap_or(last);
            if console.json {
                console.value(event)?;
            } else {
                console.text(line(event))?;
            }
        }
        console.flush()?;
        if events.no_follow {
            return Ok(STATUS_OK);
        }
        sleep(PAUSE).await;
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
