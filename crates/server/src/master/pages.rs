//! Requests of the master's own pages, which the core answers like those of a client.
//!
//! A page opens a connection without a socket, sends one request, and closes it. So removals and limits
//! have one path through the core, for pages and clients.

use std::time::Duration;

use tiffin_core::master::{DrainRefusal, DrainStat, QuotaStat};
use tiffin_types::message::{
    ClientToMaster, DrainJob, Hello, JobId, PolicyChange, Reason, Refusal, Reply, Request,
};
use tiffin_types::{ClientId, ConnId, RequestId, SegmentId, Tick};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{Event, Master, Shared};
use crate::events::Counts;
use crate::host;
use crate::tenants::{self, Quotas, TenantFileError};

/// The only request of such a connection.
const REQUEST: RequestId = RequestId(1);
/// See [`REQUEST`].
const GOODBYE: RequestId = RequestId(2);
/// The time limit for setting one quota at the start: it is synced to the state folder.
const SET_TIME_MAX: Duration = Duration::from_secs(30);

/// A connection without a socket. Dropping it closes it, also when the page's reader disconnects.
struct PageConn<'a> {
    shared: &'a Shared,
    conn: ConnId,
}

impl Drop for PageConn<'_> {
    fn drop(&mut self) {
        if self.shared.state.has_failed() {
            return;
        }
        {
            let mut state = self.shared.lock();
            state.pages.remove(&self.conn);
            state.unanswered.forget(self.conn);
        }
        self.shared.handle(Event::Request(self.conn, GOODBYE, Request::Goodbye), None);
        self.shared.handle(Event::Closed(self.conn), None);
    }
}

impl Shared {
    /// All namespaces that any client has used.
    pub(crate) fn namespaces(&self) -> Vec<String> {
        self.lock().core.namespaces()
    }

    /// Whether writes need a quota.
    pub(crate) fn has_tenants(&self) -> bool {
        self.config.tenants
    }

    /// Counts of events; `None` if they are not published.
    pub(crate) fn event_counts(&self) -> Option<Counts> {
        self.events.as_ref().map(|it| it.counts())
    }

    /// The namespaces that have a quota or use memory.
    pub(crate) fn quotas(&self) -> Vec<QuotaStat> {
        self.lock().core.quotas()
    }

    /// Starts a drain job.
    pub(crate) fn start_drain(&self, job: DrainJob) -> Result<(), DrainRefusal> {
        self.decide(|core, now| core.start_drain(now, job))
    }

    /// Cancels a drain job.
    pub(crate) fn cancel_drain(&self, id: JobId) -> Result<(), DrainRefusal> {
        self.decide(|core, now| core.cancel_drain(now, id))
    }

    /// How far a drain job is, and how many milliseconds ago that changed.
    pub(crate) fn drain_stat(&self, id: JobId) -> Option<(DrainStat, u64)> {
        self.decide(|core, now| {
            let stat = core.drain_stat(now, id)?;
            let ago_ms = now.0.saturating_sub(stat.updated.0);
            Some((stat, ago_ms))
        })
    }

    /// Whether a segment is being drained (`false`) or is drained (`true`).
    pub(crate) fn drain_phase(&self, segment: SegmentId) -> Option<bool> {
        self.lock().core.drain_phase(segment)
    }

    /// Lets the core decide about a page's request, and carries the effects out.
    fn decide<T>(&self, decide: impl FnOnce(&mut Master, Tick) -> T) -> T {
        let mut answers = Vec::new();
        let decided = {
            let mut state = self.lock();
            let now = self.now();
            let decided = decide(&mut state.core, now);
            self.drain(&mut state, now, None, &mut answers);
            decided
        };
        for (outbox, id, reply) in answers {
            outbox.reply(id, &reply);
        }
        decided
    }

    /// Sets the quotas of the file, and removes all others.
    pub(super) async fn load_quotas(&self) -> Result<(), TenantFileError> {
        let file = self.tenant_file.lock().await;
        let Some(path) = file.as_deref() else { return Ok(()) };
        let wanted = tenants::read(path)?;
        let ended = self.quotas().into_iter().map(|it| it.namespace).filter(|it| !wanted.contains_key(it));
        let changes: Vec<_> = ended.map(|name| (name, None)).collect();
        let changes = changes.into_iter().chain(wanted.into_iter().map(|(name, bytes)| (name, Some(bytes))));
        for (name, quota) in changes {
            let change = ClientToMaster::SetPolicy(PolicyChange::NONE.quota(quota));
            let reply = timeout(SET_TIME_MAX, self.ask(&name, change)).await;
            if reply != Ok(Reply::Done) {
                let why = match reply {
                    Err(_) => "the state folder is not writable",
                    Ok(_) => "too many tenants",
                };
                let what = format!("cannot set the quota of `{name}`: {why}");
                return Err(TenantFileError { path: path.to_owned(), what });
            }
        }
        Ok(())
    }

    /// Writes the quotas to the file, if there is one.
    pub(crate) async fn save_quotas(&self) -> Result<(), TenantFileError> {
        let file = self.tenant_file.lock().await;
        let Some(path) = file.clone() else { return Ok(()) };
        let shown = path.clone();
        let set = self.quotas().into_iter().filter_map(|it| Some((it.namespace, it.requested?)));
        let quotas: Quotas = set.collect();
        // The lock is held meanwhile, so that an older version does not replace a newer one.
        let written = tokio::task::spawn_blocking(move || tenants::write(&path, &quotas)).await;
        written.unwrap_or_else(|error| Err(TenantFileError { path: shown, what: error.to_string() }))
    }

    /// Sends a request to the core as a client of that namespace. The caller bounds the time.
    pub(crate) async fn ask(&self, namespace: &str, request: ClientToMaster) -> Reply {
        if let Some(refusal) = self.standby_refusal() {
            return Reply::Refused(refusal);
        }
        let Ok(client) = host::draw().map(ClientId) else {
            return unavailable("cannot get random numbers from the system");
        };
        let (sender, receiver) = oneshot::channel();
        let conn = {
            let mut state = self.lock();
            state.next_conn += 1;
            let conn = ConnId(state.next_conn);
            state.pages.insert(conn, sender);
            conn
        };
        let _open = PageConn { shared: self, conn };
        let hello =
            Hello { client, namespace: namespace.to_owned(), label: "pages".to_owned(), ..Hello::default() };
        self.handle(Event::Opened(conn, hello), None);
        self.asked((conn, REQUEST), Request::ClientToMaster(request), None, None);
        receiver.await.unwrap_or_else(|_| unavailable("the master was restarted meanwhile; retry"))
    }
}

fn unavailable(what: &str) -> Reply {
    Reply::Refused(Refusal { reason: Reason::Unavailable, message: what.to_owned() })
}
