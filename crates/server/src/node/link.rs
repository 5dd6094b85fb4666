//! The link of a member (a node or a disk) to its master. A broken link is retried forever, with growing
//! pauses.
//!
//! **Invariant:** a message of the core to the master leaves on the link that existed when it was decided,
//! or not at all. The link is set and cleared under the core's lock.
//!
//! If master and node are on one host, there is also a ledger: a second connection whose messages wake no
//! task. The master writes published objects to it. The node polls it with every message on the link,
//! before every heartbeat, and every 16 to 128 ms while there are reservations that may be published.
//!
//! **Invariant:** all messages in the ledger are applied before a message of the link, and all messages of
//! both before the link counts as broken.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tiffin_proto::Incoming;
use tiffin_rpc::{
    Address, CallError, Dialed, Inbox, LastMessage, Masters, Outbox, Peer, Reach, Taken, Via, dial,
    superseded,
};
use tiffin_types::RequestId;
use tiffin_types::message::{
    Hello, MasterToMember, NodeInfo, Reason, Refusal, Reply, Request, Role, Settle, Welcome, wrong_direction,
};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout_at};

use super::HELLO_TIME_MAX;
use crate::host;

/// The pause before the first retry, and the longest one.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// See [`PAUSE_MIN`].
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// The same where there are several masters.
const PAUSE_MAX_OF_SEVERAL: Duration = Duration::from_millis(200);
/// The minimum and maximum time between heartbeats, whatever the master requests.
const HEARTBEAT_MIN: Duration = Duration::from_millis(20);
/// See [`HEARTBEAT_MIN`].
const HEARTBEAT_MAX: Duration = Duration::from_secs(60);
/// The link is broken after this many unanswered heartbeats, and after at least [`SILENCE_MIN`].
const BEATS_UNANSWERED_MAX: u32 = 8;
/// The time until the next poll of the ledger, after a poll that found something. It doubles up to
/// [`POLL_PAUSE_MAX`] while the ledger is empty. Polling takes processor time from clients that put. The
/// master requests a poll when a reader waits for an entry, or when there are many.
const POLL_PAUSE: Duration = Duration::from_millis(16);
/// The same while the ledger's socket buffer may be full.
const POLL_PAUSE_BEHIND: Duration = Duration::from_millis(1);
/// Maximum number of ledger entries applied per turn, rounded up to whole messages. Then other tasks may
/// run, because applying all entries takes longer than a put that waits meanwhile.
const OBJECTS_AT_ONCE: usize = 16;
/// After a poll with this many messages, more may wait for space in the socket buffer.
const MESSAGES_MANY: usize = 500;
/// See [`POLL_PAUSE`].
const POLL_PAUSE_MAX: Duration = Duration::from_millis(128);
/// See [`BEATS_UNANSWERED_MAX`].
const SILENCE_MIN: Duration = Duration::from_secs(5);

/// The state of the link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LinkStatus {
    /// The master has not answered yet.
    #[default]
    Starting,
    /// The node is announcing its objects to the master.
    Joining,
    /// The node is a member: objects can be put and read.
    Member,
    /// The master is unreachable; the node keeps retrying.
    Unreachable(String),
    /// The master refuses the node. The node keeps retrying, but the operator must act.
    Refused(String),
}

impl fmt::Display for LinkStatus {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => write!(out, "it has not answered yet"),
            Self::Joining => write!(out, "the node is announcing its objects"),
            Self::Member => write!(out, "the node is a member"),
            Self::Unreachable(why) | Self::Refused(why) => write!(out, "{why}"),
        }
    }
}

/// An event of a link.
pub(super) enum LinkEvent {
    /// The link is up, and the member must register.
    Linked,
    /// The link is broken.
    Unlinked,
    /// A request of the master.
    Request(RequestId, MasterToMember),
    /// Messages from the ledger.
    LedgerRead(Vec<(RequestId, Settle)>),
    /// A reply of the master.
    Reply(RequestId, Reply),
    /// A heartbeat is due.
    Beat,
}

/// Requests to read the ledger now, and the last one that was fulfilled.
#[derive(Debug, Default)]
pub(super) struct LedgerReads {
    wanted: AtomicU64,
    is_wanted: Notify,
    done: watch::Sender<u64>,
}

impl LedgerReads {
    /// Waits until everything is applied that was in the ledger when this was called.
    pub(super) async fn next(&self, deadline: Instant) {
        let mut done = self.done.subscribe();
        let number = self.wanted.fetch_add(1, Ordering::SeqCst) + 1;
        self.is_wanted.notify_one();
        let _late = timeout_at(deadline, done.wait_for(|it| *it >= number)).await;
    }

    async fn wanted(&self) -> u64 {
        self.is_wanted.notified().await;
        self.wanted.load(Ordering::SeqCst)
    }
}

/// A member that is linked to a master.
pub(super) trait Linked: Send + Sync {
    /// The address of the master.
    fn master(&self) -> &Masters;
    /// The shared secret.
    fn token(&self) -> &str;
    /// The way to the master.
    fn via(&self) -> Via;
    /// The member's description for the master.
    fn info(&self) -> &NodeInfo;
    /// Whether the member is leaving, so that the link is not reopened.
    fn is_leaving(&self) -> bool;
    /// Whether the master has accepted the member.
    fn is_member(&self) -> bool;
    /// The state of the link.
    fn status(&self) -> &watch::Sender<LinkStatus>;
    /// Sets the connection for messages to the master. Returns the previous one.
    fn redirect(&self, master: Option<Outbox>) -> Option<Outbox>;
    /// Why the master has refused the member, if it has since this was last asked.
    fn take_refusal(&self) -> Option<Refusal>;
    /// Passes an event to the core.
    fn apply(&self, event: LinkEvent);
    /// Whether the member has a ledger.
    fn has_ledger(&self) -> bool {
        false
    }
    /// Requests to read the ledger now.
    fn ledger_reads(&self) -> Option<&LedgerReads> {
        None
    }
    /// Makes an empty journal of the ledger, if the member's memory outlives its process. Returns its path
    /// and its id.
    fn make_journal(&self) -> Option<(String, u64)> {
        None
    }
    /// Whether there are reservations that may be published.
    fn has_reservations(&self) -> bool {
        false
    }
}

/// Keeps a member linked to its master until the future is dropped.
pub(super) async fn run(shared: Arc<impl Linked>) {
    let mut pause = PAUSE_MIN;
    while !shared.is_leaving() {
        let (journal, journal_id) = shared.make_journal().unwrap_or_default();
        let hello = Hello {
            journal,
            journal_id,
            token: shared.token().to_owned(),
            role: Role::Node,
            label: host::label(),
            home: Some(shared.info().segment),
            host: shared.info().host.clone(),
            memory: shared.info().memory.clone(),
            ..Hello::default()
        };
        let (via, has_ledger) = (shared.via(), shared.has_ledger());
        let connect = |address: Address, until: Instant| {
            let (hello, via) = (hello.clone(), via.clone());
            async move {
                let ledger = Ledger::open(&address, has_ledger, &via, hello.clone(), until).await;
                Ok((dial(&address, via, hello, until).await?, ledger))
            }
        };
        match shared.master().open(Instant::now() + HELLO_TIME_MAX, connect).await {
            Ok((dialed, ledger)) => {
                let why = serve(&*shared, dialed, ledger).await;
                if shared.is_leaving() {
                    return;
                }
                if *shared.status().borrow() == LinkStatus::Member {
                    pause = PAUSE_MIN;
                }
                let refused = shared.take_refusal().map(|it| status_of(&CallError::Refused(it)));
                set_status(&*shared, refused.unwrap_or(LinkStatus::Unreachable(why)));
            }
            Err(error) => set_status(&*shared, status_of(&error)),
        }
        sleep(pause.mul_f64(jitter())).await;
        // Where another master may lead by now, it is polled_at for soon.
        let pause_max = if shared.master().single().is_some() { PAUSE_MAX } else { PAUSE_MAX_OF_SEVERAL };
        pause = pause_max.min(pause * 2);
    }
}

/// Exchanges messages with the master until the link breaks. Returns the reason. All messages that the
/// master sent are applied before the link counts as broken, because the master may have answered clients
/// because of them.
async fn serve(shared: &impl Linked, dialed: Dialed, mut ledger: Ledger) -> String {
    let Dialed { welcome, outbox, mut inbox } = dialed;
    let _linked = OpenLink::begin(shared, outbox.clone());
    let why = exchange(shared, &welcome, (&mut inbox, &outbox), &mut ledger).await;
    let last = inbox.drain();
    let entries = ledger.0.iter_mut().flat_map(Inbox::drain);
    entries.chain(last).for_each(|message| receive(shared, &outbox, message));
    why
}

fn receive(shared: &impl Linked, outbox: &Outbox, message: Incoming) {
    match message {
        Incoming::Request(id, Request::MasterToMember(request)) => {
            shared.apply(LinkEvent::Request(id, request))
        }
        Incoming::Request(
            id,
            Request::Hello(_)
            | Request::Goodbye
            | Request::ClientToMaster(_)
            | Request::MemberToMaster(_)
            | Request::ClientToNode(_),
        ) => outbox.reply(id, &wrong_direction("a member")),
        Incoming::Reply(id, reply) => shared.apply(LinkEvent::Reply(id, reply)),
    }
}

/// The connection for published objects, if master and node are on one host.
struct Ledger(Option<Inbox>);

impl Ledger {
    async fn open(master: &Address, is_wanted: bool, via: &Via, hello: Hello, until: Instant) -> Self {
        let hello = Hello { role: Role::Ledger, ..hello };
        if via.reach == Reach::Far || !is_wanted {
            return Self(None);
        }
        let dialed = dial(master, via, hello, until).await.ok();
        let mut inbox = dialed.map(|it| it.inbox).filter(|it| matches!(it.peer(), Peer::Unix { .. }));
        inbox.iter_mut().for_each(Inbox::unwatch);
        Self(inbox)
    }

    /// Applies all messages. Returns the time until the next poll if there were any, or an error if the
    /// ledger has ended.
    fn poll(&mut self, shared: &impl Linked, outbox: &Outbox) -> Result<Option<Duration>, String> {
        let Some(inbox) = &mut self.0 else { return Ok(None) };
        outbox.gather();
        let (count, is_end) = receive_all(shared, outbox, inbox);
        outbox.send_gathered();
        let is_behind = count >= MESSAGES_MANY || inbox.has_part();
        let pause = if is_behind { POLL_PAUSE_BEHIND } else { POLL_PAUSE };
        let is_changed = is_behind || count > 0;
        if is_end { Err("the master closed the ledger".to_owned()) } else { Ok(is_changed.then_some(pause)) }
    }
}

impl Ledger {
    /// Applies all messages for a request to read them.
    fn read_for(
        &mut self,
        (reads, number): (&LedgerReads, u64),
        shared: &impl Linked,
        outbox: &Outbox,
    ) -> Result<(), String> {
        self.poll(shared, outbox)?;
        reads.done.send_replace(number);
        Ok(())
    }
}

/// Applies all received messages in turns; the ledger entries of one turn are applied together and answered
/// once. Returns the number of messages, and whether the connection has ended.
fn receive_all(shared: &impl Linked, outbox: &Outbox, inbox: &mut Inbox) -> (usize, bool) {
    let mut count = 0;
    loop {
        let (mut entries, mut objects) = (Vec::new(), 0);
        let rest = loop {
            match inbox.take() {
                Taken::Message(Incoming::Request(
                    id,
                    Request::MasterToMember(MasterToMember::Settle(settle)),
                )) => {
                    objects += settle.commit.len() + settle.abort.len() + settle.retire.len();
                    entries.push((id, settle));
                }
                Taken::Message(message) => receive(shared, outbox, message),
                rest => break Some(rest),
            }
            count += 1;
            if objects >= OBJECTS_AT_ONCE {
                break None;
            }
        };
        if !entries.is_empty() {
            shared.apply(LinkEvent::LedgerRead(entries));
        }
        if let Some(rest) = rest {
            return (count, matches!(rest, Taken::End));
        }
    }
}

async fn exchange(
    shared: &impl Linked,
    welcome: &Welcome,
    (inbox, outbox): (&mut Inbox, &Outbox),
    ledger: &mut Ledger,
) -> String {
    let beat = Duration::from_millis(welcome.heartbeat_ms).clamp(HEARTBEAT_MIN, HEARTBEAT_MAX);
    let silence_max = SILENCE_MIN.max(beat * BEATS_UNANSWERED_MAX);
    let mut beats = interval(beat);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let last_message = LastMessage::now();
    let (mut polled_at, mut pause) = (last_message.last(), POLL_PAUSE);
    let (masters, via) = (shared.master(), shared.via());
    let superseded = superseded(masters, welcome.epoch, &via, shared.token(), &last_message);
    tokio::pin!(superseded);
    loop {
        // Reservations of empty objects are not visible here. They are polled for a while after an
        // allocation, and later with a message of the master or the next heartbeat.
        let may_have_entries = ledger.0.is_some() && (pause < POLL_PAUSE_MAX || shared.has_reservations());
        tokio::select! {
            message = inbox.next() => {
                last_message.again();
                let Some(message) = message else { return "the master closed the connection".to_owned() };
                let found = ledger.poll(shared, outbox);
                let is_asked = matches!(
                    message,
                    Incoming::Request(_, Request::MasterToMember(MasterToMember::Allocate(_)))
                );
                let again = found.as_ref().map_or(None, |again| *again);
                if let Some(again) = again.or(is_asked.then_some(POLL_PAUSE)) {
                    (polled_at, pause) = (last_message.last(), again);
                }
                match message {
                    Incoming::Reply(id, Reply::Refused(refusal)) if !shared.is_member() => {
                        return refused(shared, id, refusal);
                    }
                    message => receive(shared, outbox, message),
                }
                if *shared.status().borrow() != LinkStatus::Member && shared.is_member() {
                    set_status(shared, LinkStatus::Member);
                }
                if let Err(why) = found {
                    return why;
                }
            }
            () = sleep_until(polled_at + pause), if may_have_entries => {
                let again = match ledger.poll(shared, outbox) {
                    Ok(again) => again,
                    Err(why) => return why,
                };
                pause = again.unwrap_or(POLL_PAUSE_MAX.min(pause * 2));
                polled_at = Instant::now();
            }
            it = wanted_read(shared) => if let Err(why) = ledger.read_for(it, shared, outbox) { return why },
            _ = beats.tick() => {
                // The heartbeat reports usage, so that ledger entries are applied first.
                match ledger.poll(shared, outbox) {
                    Ok(Some(again)) => (polled_at, pause) = (Instant::now(), again),
                    Ok(None) => {}
                    Err(why) => return why,
                }
                shared.apply(LinkEvent::Beat);
            }
            () = &mut superseded => return "it was silent, and another master leads".to_owned(),
            () = sleep_until(last_message.last() + silence_max) => {
                return format!("the master sent nothing for {}", humantime::format_duration(silence_max));
            }
        }
    }
}

/// Waits for a request to read the ledger.
async fn wanted_read(shared: &impl Linked) -> (&LedgerReads, u64) {
    match shared.ledger_reads() {
        Some(reads) => (reads, reads.wanted().await),
        None => std::future::pending().await,
    }
}

/// Passes a refusal to the core, which keeps it if it ends the registration. Returns the reason.
fn refused(shared: &impl Linked, id: RequestId, refusal: Refusal) -> String {
    let why = refusal.message.clone();
    shared.apply(LinkEvent::Reply(id, Reply::Refused(refusal)));
    why
}

/// A link that is up, until it is dropped.
struct OpenLink<'a, L: Linked>(&'a L);

impl<'a, L: Linked> OpenLink<'a, L> {
    fn begin(shared: &'a L, outbox: Outbox) -> Self {
        shared.redirect(Some(outbox));
        set_status(shared, LinkStatus::Joining);
        shared.apply(LinkEvent::Linked);
        Self(shared)
    }
}

impl<L: Linked> Drop for OpenLink<'_, L> {
    fn drop(&mut self) {
        // The member unlinks before the master notices, because the master then answers deletes without it.
        self.0.apply(LinkEvent::Unlinked);
        if let Some(outbox) = self.0.redirect(None) {
            outbox.close();
        }
    }
}

/// Sets the state of the link, and logs it once per change.
fn set_status(shared: &impl Linked, new: LinkStatus) {
    let is_changed = shared.status().send_if_modified(|status| {
        // Attempts in between do not count as changes while the master is unreachable.
        let is_changed = *status != new && !(is_disconnected(status) && new == LinkStatus::Joining);
        if *status != new {
            *status = new.clone();
        }
        is_changed
    });
    let (master, node) = (shared.master(), &shared.info().name);
    match new {
        _ if !is_changed => {}
        LinkStatus::Starting | LinkStatus::Joining => {}
        LinkStatus::Member => tracing::info!(%master, node, "node is a member"),
        LinkStatus::Unreachable(why) => {
            let why = why.lines().next().unwrap_or_default();
            tracing::warn!(%master, node, why, "master is unreachable; retrying");
        }
        LinkStatus::Refused(why) => {
            let why = why.lines().next().unwrap_or_default();
            tracing::error!(%master, node, why, "master refuses the node; retrying");
        }
    }
}

fn is_disconnected(status: &LinkStatus) -> bool {
    matches!(status, LinkStatus::Unreachable(_) | LinkStatus::Refused(_))
}

fn status_of(error: &CallError) -> LinkStatus {
    match error {
        CallError::Refused(refusal)
            if !matches!(refusal.reason, Reason::Busy | Reason::Closing | Reason::Standby) =>
        {
            LinkStatus::Refused(error.to_string())
        }
        CallError::Protocol { .. } | CallError::Foreign { .. } => LinkStatus::Refused(error.to_string()),
        CallError::Tls { source, .. } if source.is_final() => LinkStatus::Refused(error.to_string()),
        _ => LinkStatus::Unreachable(error.to_string()),
    }
}

/// Between 0.5 and 1.5, so that nodes that lost their master at the same time do not reconnect at the same
/// time.
fn jitter() -> f64 {
    let drawn = host::draw().unwrap_or(u64::MAX / 2);
    0.5 + (drawn >> 11) as f64 / (1_u64 << 53) as f64
}

/// Logs that a master was rejected.
pub(super) fn reject(served: u64, offered: u64) {
    tracing::error!(
        served,
        offered,
        hint = "start the master with its own state folder; the node discarded nothing",
        "rejected a master with a smaller epoch than the one served before"
    );
}
