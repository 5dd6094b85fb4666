//! The link of a member, a node or a disk, to its master: it is made again for ever, with growing pauses.
//!
//! **Invariant:** what the core says to the master leaves on the link that stood when it was said, or not at
//! all: the link is set and cleared under the core's lock.
//!
//! Beside the link there is a ledger, where the master and the node are on one host: a second connection
//! that wakes nobody. The master writes there what was published, and the node looks when it hears
//! anything else, before it gives a sign of life, and every 16 to 128 ms while room is reserved that might be
//! published.
//!
//! **Invariant:** before anything that came through the link is heeded, everything in the ledger is; and
//! all of both is before the link is taken for broken.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tiffin_core::RequestId;
use tiffin_core::message::{
    Hello, MasterToMember, NodeInfo, Reason, Reply, Request, Role, Settle, Welcome, wrong_direction,
};
use tiffin_proto::Incoming;
use tiffin_rpc::{Address, CallError, Dialed, Inbox, Outbox, Peer, Reach, Taken, dial};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};

use super::HELLO_TIME_MAX;
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
/// How long the ledger is left alone after there was something in it, and at most, while there may be.
/// Looking takes processors from who puts, and the master asks for it when somebody gets what lies there, or
/// it is much.
const LOOK_PAUSE: Duration = Duration::from_millis(16);
/// The same while the master cannot put everything there.
const LOOK_PAUSE_BEHIND: Duration = Duration::from_millis(1);
/// Of so many objects is heeded at once what the ledger says, or of those of one message. Then others may
/// have the processor: all of it takes longer than the put that waits meanwhile.
const OBJECTS_AT_ONCE: usize = 16;
/// Where so much was in it, more may wait for room in it.
const WORDS_MANY: usize = 500;
/// See [`LOOK_PAUSE`].
const LOOK_PAUSE_MAX: Duration = Duration::from_millis(128);
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

/// What happens on a link.
pub(super) enum LinkEvent {
    /// It stands, and the member must register.
    Linked,
    /// It is broken.
    Unlinked,
    /// The master asks.
    Request(RequestId, MasterToMember),
    /// The master has entrusted this to the member.
    LedgerRead(Vec<(RequestId, Settle)>),
    /// The master answers.
    Reply(RequestId, Reply),
    /// Time for a sign of life.
    Beat,
}

/// Who is linked to a master.
pub(super) trait Linked: Send + Sync {
    /// Where the master is.
    fn master(&self) -> &Address;
    /// The shared secret.
    fn token(&self) -> &str;
    /// What the master is told of it.
    fn info(&self) -> &NodeInfo;
    /// Whether it may go to its master by a shortcut of this host.
    fn is_near(&self) -> bool;
    /// The link is not made again.
    fn is_leaving(&self) -> bool;
    /// Whether the master has taken it in.
    fn is_member(&self) -> bool;
    /// How the link is doing.
    fn status(&self) -> &watch::Sender<LinkStatus>;
    /// Where what it says to the master goes; gives back where it went before.
    fn redirect(&self, master: Option<Outbox>) -> Option<Outbox>;
    /// Something happened.
    fn hear(&self, said: LinkEvent);
    /// What the master entrusts to it lies in a ledger.
    fn has_ledger(&self) -> bool {
        false
    }
    /// Whether room is reserved that might be published.
    fn has_reservations(&self) -> bool {
        false
    }
}

/// Keeps a member linked to its master until this is dropped.
pub(super) async fn run(shared: Arc<impl Linked>) {
    let mut pause = PAUSE_MIN;
    while !shared.is_leaving() {
        let hello = Hello {
            token: shared.token().to_owned(),
            role: Role::Node,
            label: host::label(),
            home: Some(shared.info().segment),
            host: shared.info().host.clone(),
            ..Hello::default()
        };
        let reach = Reach::near_if(shared.is_near());
        let ledger = Ledger::open(&*shared, reach, hello.clone()).await;
        match dial(shared.master(), reach, hello, Instant::now() + HELLO_TIME_MAX).await {
            Ok(dialed) => {
                let why = serve(&*shared, dialed, ledger).await;
                if shared.is_leaving() {
                    return;
                }
                if *shared.status().borrow() == LinkStatus::Member {
                    pause = PAUSE_MIN;
                }
                set_status(&*shared, LinkStatus::Unreachable(why));
            }
            Err(error) => set_status(&*shared, status_of(&error)),
        }
        sleep(pause.mul_f64(jitter())).await;
        pause = PAUSE_MAX.min(pause * 2);
    }
}

/// Speaks with the master until the link breaks; why it did. Whatever the master had sent by then is
/// heard, before the link is taken for broken: it may have answered somebody who believes that.
async fn serve(shared: &impl Linked, dialed: Dialed, mut ledger: Ledger) -> String {
    let Dialed { welcome, outbox, mut inbox } = dialed;
    let _linked = OpenLink::begin(shared, outbox.clone());
    let why = converse(shared, &welcome, (&mut inbox, &outbox), &mut ledger).await;
    let last = inbox.drain();
    let words = ledger.0.iter_mut().flat_map(Inbox::drain);
    words.chain(last).for_each(|message| heed(shared, &outbox, message));
    why
}

fn heed(shared: &impl Linked, outbox: &Outbox, message: Incoming) {
    match message {
        Incoming::Request(id, Request::MasterToMember(request)) => {
            shared.hear(LinkEvent::Request(id, request))
        }
        Incoming::Request(
            id,
            Request::Hello(_)
            | Request::Goodbye
            | Request::ClientToMaster(_)
            | Request::MemberToMaster(_)
            | Request::ClientToNode(_),
        ) => outbox.reply(id, &wrong_direction("a member")),
        Incoming::Reply(id, reply) => shared.hear(LinkEvent::Reply(id, reply)),
    }
}

/// Where the master puts what it entrusts to this node, if both are on one host.
struct Ledger(Option<Inbox>);

impl Ledger {
    async fn open(shared: &impl Linked, reach: Reach, hello: Hello) -> Self {
        let hello = Hello { role: Role::Ledger, ..hello };
        if reach == Reach::Far || !shared.has_ledger() {
            return Self(None);
        }
        let dialed = dial(shared.master(), reach, hello, Instant::now() + HELLO_TIME_MAX).await.ok();
        let mut local_disks = dialed.map(|it| it.inbox).filter(|it| matches!(it.peer(), Peer::Unix { .. }));
        local_disks.iter_mut().for_each(Inbox::unwatch);
        Self(local_disks)
    }

    /// Heeds all that is there, and says when to look again, if there was anything; an error if there will be
    /// no more.
    fn look(&mut self, shared: &impl Linked, outbox: &Outbox) -> Result<Option<Duration>, String> {
        let Some(inbox) = &mut self.0 else { return Ok(None) };
        outbox.gather();
        let (count, is_end) = heed_all(shared, outbox, inbox);
        outbox.send_gathered();
        let is_behind = count >= WORDS_MANY || inbox.has_part();
        let pause = if is_behind { LOOK_PAUSE_BEHIND } else { LOOK_PAUSE };
        let is_news = is_behind || count > 0;
        if is_end { Err("it closed the ledger".to_owned()) } else { Ok(is_news.then_some(pause)) }
    }
}

/// Heeds all that has come, some at a time; of that, what is entrusted is heeded at once, and answered once.
/// How many messages it was, and whether that was the end.
fn heed_all(shared: &impl Linked, outbox: &Outbox, inbox: &mut Inbox) -> (usize, bool) {
    let mut count = 0;
    loop {
        let (mut entries, mut objects) = (Vec::new(), 0);
        let rest = loop {
            match inbox.take() {
                Taken::Message(Incoming::Request(
                    id,
                    Request::MasterToMember(MasterToMember::Settle(settle)),
                )) => {
                    objects += settle.commit.len() + settle.abort.len();
                    entries.push((id, settle));
                }
                Taken::Message(message) => heed(shared, outbox, message),
                rest => break Some(rest),
            }
            count += 1;
            if objects >= OBJECTS_AT_ONCE {
                break None;
            }
        };
        if !entries.is_empty() {
            shared.hear(LinkEvent::LedgerRead(entries));
        }
        if let Some(rest) = rest {
            return (count, matches!(rest, Taken::End));
        }
    }
}

async fn converse(
    shared: &impl Linked,
    welcome: &Welcome,
    (inbox, outbox): (&mut Inbox, &Outbox),
    ledger: &mut Ledger,
) -> String {
    let beat = Duration::from_millis(welcome.heartbeat_ms).clamp(HEARTBEAT_MIN, HEARTBEAT_MAX);
    let silence_max = SILENCE_MIN.max(beat * BEATS_UNANSWERED_MAX);
    let mut beats = interval(beat);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard = Instant::now();
    let (mut looked, mut pause) = (heard, LOOK_PAUSE);
    loop {
        // Room for objects without bytes cannot be seen here: they are looked for a while after room was
        // asked for, and later when the master says something, or with the next beat.
        let is_reserved = pause < LOOK_PAUSE_MAX || shared.has_reservations();
        let may_have_entries = ledger.0.is_some() && is_reserved;
        tokio::select! {
            message = inbox.next() => {
                heard = Instant::now();
                let Some(message) = message else { return "it closed the connection".to_owned() };
                let found = ledger.look(shared, outbox);
                let is_asked = matches!(
                    message,
                    Incoming::Request(_, Request::MasterToMember(MasterToMember::Allocate(_)))
                );
                let again = found.as_ref().map_or(None, |again| *again);
                if let Some(again) = again.or(is_asked.then_some(LOOK_PAUSE)) {
                    (looked, pause) = (heard, again);
                }
                match message {
                    Incoming::Reply(_, Reply::Refused(refusal)) if !shared.is_member() => {
                        return refusal.message;
                    }
                    message => heed(shared, outbox, message),
                }
                if *shared.status().borrow() != LinkStatus::Member && shared.is_member() {
                    set_status(shared, LinkStatus::Member);
                }
                if let Err(why) = found {
                    return why;
                }
            }
            () = sleep_until(looked + pause), if may_have_entries => {
                let again = match ledger.look(shared, outbox) {
                    Ok(again) => again,
                    Err(why) => return why,
                };
                pause = again.unwrap_or(LOOK_PAUSE_MAX.min(pause * 2));
                looked = Instant::now();
            }
            _ = beats.tick() => {
                // It tells how much is in use, so what has become of reservations comes first.
                match ledger.look(shared, outbox) {
                    Ok(Some(again)) => (looked, pause) = (Instant::now(), again),
                    Ok(None) => {}
                    Err(why) => return why,
                }
                shared.hear(LinkEvent::Beat);
            }
            () = sleep_until(heard + silence_max) => {
                return format!("it said nothing for {}", humantime::format_duration(silence_max));
            }
        }
    }
}

/// The link, as long as it stands.
struct OpenLink<'a, L: Linked>(&'a L);

impl<'a, L: Linked> OpenLink<'a, L> {
    fn begin(shared: &'a L, outbox: Outbox) -> Self {
        shared.redirect(Some(outbox));
        set_status(shared, LinkStatus::Joining);
        shared.hear(LinkEvent::Linked);
        Self(shared)
    }
}

impl<L: Linked> Drop for OpenLink<'_, L> {
    fn drop(&mut self) {
        // Before the master notices: then it answers deletes without this member.
        self.0.hear(LinkEvent::Unlinked);
        if let Some(outbox) = self.0.redirect(None) {
            outbox.close();
        }
    }
}

/// Says once how the link is doing, however often it is tried.
fn set_status(shared: &impl Linked, new: LinkStatus) {
    let is_news = shared.status().send_if_modified(|status| {
        // Attempts in between are no news to who knows that the master is away.
        let is_news = *status != new && !(is_away(status) && new == LinkStatus::Joining);
        if *status != new {
            *status = new.clone();
        }
        is_news
    });
    let (master, node) = (shared.master(), &shared.info().name);
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
        CallError::Protocol { .. } | CallError::Foreign { .. } => LinkStatus::Refused(error.to_string()),
        _ => LinkStatus::Unreachable(error.to_string()),
    }
}

/// Between a half and one and a half, so that nodes that lost their master together do not come back
/// together.
fn jitter() -> f64 {
    let drawn = host::draw().unwrap_or(u64::MAX / 2);
    0.5 + (drawn >> 11) as f64 / (1_u64 << 53) as f64
}
