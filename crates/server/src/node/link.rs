//! The node's end of its link to the master: it is made again for ever, with growing pauses.
//!
//! **Invariant:** what the core says to the master leaves on the link that stood when it was said, or not at
//! all: the link is set and cleared under the core's lock.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tiffin_core::message::{Hello, Reason, Reply, Role};
use tiffin_core::node::Event;
use tiffin_proto::Incoming;
use tiffin_rpc::{CallError, Dialed, Reach, dial};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use super::{HELLO_TIME_MAX, Shared};
use crate::host;

/// The pause before the first new attempt, and the longest one.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// See [`PAUSE_MIN`].
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Heartbeats are at least and at most this far apart, whatever the master says.
const HEARTBEAT_MIN: Duration = Duration::from_millis(20);
/// See [`HEARTBEAT_MIN`].
const HEARTBEAT_MAX: Duration = Duration::from_secs(60);
/// The master may leave so many heartbeats unanswered, and at least [`SILENCE_MIN`] must pass.
const BEATS_UNANSWERED_MAX: u32 = 8;
/// See [`BEATS_UNANSWERED_MAX`].
const SILENCE_MIN: Duration = Duration::from_secs(5);

/// How the link is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LinkStatus {
    /// Nothing was heard of the master yet.
    #[default]
    Starting,
    /// The master is told what the node holds.
    Joining,
    /// Objects can be put and found.
    Member,
    /// The master cannot be reached; it is tried again and again.
    Unreachable(String),
    /// The master says no; it is tried again and again, but somebody must do something.
    Refused(String),
}

impl fmt::Display for LinkStatus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => write!(out, "nothing was heard of it yet"),
            Self::Joining => write!(out, "it is being told what the node holds"),
            Self::Member => write!(out, "the node is a member"),
            Self::Unreachable(why) | Self::Refused(why) => write!(out, "{why}"),
        }
    }
}

/// Keeps the node linked to its master until this is dropped.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut pause = PAUSE_MIN;
    loop {
        let hello = Hello {
            token: shared.token.clone(),
            role: Role::Node,
            label: host::label(),
            host: shared.info.host.clone(),
            ..Hello::default()
        };
        // Where memory is not shared, the node stands for one of another host.
        let reach = Reach::near_if(shared.attachments.is_some());
        match dial(&shared.master, reach, hello, Instant::now() + HELLO_TIME_MAX).await {
            Ok(dialed) => {
                let why = serve(&shared, dialed).await;
                if shared.is_leaving.load(Ordering::Acquire) {
                    return;
                }
                if *shared.status.borrow() == LinkStatus::Member {
                    pause = PAUSE_MIN;
                }
                shared.set_status(LinkStatus::Unreachable(why));
            }
            Err(error) => shared.set_status(status_of(&error)),
        }
        sleep(pause.mul_f64(jitter())).await;
        pause = PAUSE_MAX.min(pause * 2);
    }
}

/// Speaks with the master until the link breaks; why it did.
async fn serve(shared: &Shared, dialed: Dialed) -> String {
    let Dialed { welcome, outbox, mut inbox } = dialed;
    let beat = Duration::from_millis(welcome.heartbeat_ms).clamp(HEARTBEAT_MIN, HEARTBEAT_MAX);
    let silence_max = SILENCE_MIN.max(beat * BEATS_UNANSWERED_MAX);
    let linked = Linked::begin(shared, outbox);
    let mut beats = interval(beat);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard = Instant::now();
    loop {
        tokio::select! {
            message = inbox.next() => {
                heard = Instant::now();
                match message {
                    None => return "it closed the connection".to_owned(),
                    Some(Incoming::Request(id, request)) => shared.handle(Event::MasterRequest(id, request)),
                    Some(Incoming::Reply(_, Reply::Refused(refusal))) if !linked.is_member() => {
                        return refusal.message;
                    }
                    Some(Incoming::Reply(id, reply)) => shared.handle(Event::MasterReply(id, reply)),
                }
                linked.tell();
            }
            _ = beats.tick() => shared.handle(Event::Beat),
            () = sleep_until(heard + silence_max) => {
                return format!("it said nothing for {}", humantime::format_duration(silence_max));
            }
        }
    }
}

/// The link, as long as it stands.
struct Linked<'a>(&'a Shared);

impl<'a> Linked<'a> {
    fn begin(shared: &'a Shared, outbox: tiffin_rpc::Outbox) -> Self {
        shared.lock().master = Some(outbox);
        shared.set_status(LinkStatus::Joining);
        shared.handle(Event::Linked(shared.info.clone()));
        Self(shared)
    }

    fn is_member(&self) -> bool {
        self.0.lock().core.is_member()
    }

    fn tell(&self) {
        if *self.0.status.borrow() != LinkStatus::Member && self.is_member() {
            self.0.set_status(LinkStatus::Member);
        }
    }
}

impl Drop for Linked<'_> {
    fn drop(&mut self) {
        if self.0.state.is_poisoned() {
            return;
        }
        // Before the master notices: then it answers deletes without this node.
        self.0.handle(Event::Unlinked);
        if let Some(outbox) = self.0.lock().master.take() {
            outbox.close();
        }
    }
}

impl Shared {
    /// Says once how the link is doing, however often it is tried.
    fn set_status(&self, new: LinkStatus) {
        let is_news = self.status.send_if_modified(|status| {
            // Attempts in between are no news to who knows that the master is away.
            let is_news = *status != new && !(is_away(status) && new == LinkStatus::Joining);
            if *status != new {
                *status = new.clone();
            }
            is_news
        });
        let (master, node) = (&self.master, &self.info.name);
        match new {
            _ if !is_news => {}
            LinkStatus::Starting | LinkStatus::Joining => {}
            LinkStatus::Member => tracing::info!(%master, node, "the node is a member"),
            LinkStatus::Unreachable(why) => {
                let why = why.lines().next().unwrap_or_default();
                tracing::warn!(%master, node, why, "the master is away; trying again");
            }
            LinkStatus::Refused(why) => {
                let why = why.lines().next().unwrap_or_default();
                tracing::error!(%master, node, why, "the master refuses the node; trying again");
            }
        }
    }
}

fn is_away(status: &LinkStatus) -> bool {
    matches!(status, LinkStatus::Unreachable(_) | LinkStatus::Refused(_))
}

fn status_of(error: &CallError) -> LinkStatus {
    match error {
        CallError::Refused(refusal)
            if refusal.reason != Reason::Busy && refusal.reason != Reason::Closing =>
        {
            LinkStatus::Refused(error.to_string())
        }
        CallError::Protocol { .. } => LinkStatus::Refused(error.to_string()),
        _ => LinkStatus::Unreachable(error.to_string()),
    }
}

/// Between a half and one and a half, so that nodes that lost their master together do not come back
/// together.
fn jitter() -> f64 {
    let drawn = host::draw().unwrap_or(u64::MAX / 2);
    0.5 + (drawn >> 11) as f64 / (1_u64 << 53) as f64
}
