//! Measures requests, and shows the master to operators: metrics, snapshots, events.
//!
//! **Invariant:** at most [`UNANSWERED_MAX`] requests are timed while they wait. Further ones are not
//! measured.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::{Bytes, HttpBody};
use serde_json::{Value, json};
use tiffin_rpc::{MASTER_SERVICE, TlsServer};
use tiffin_trace::{Name, TraceContext};
use tiffin_types::message::{ClientToMaster, MemberToMaster, Reply, Request, Stat};
use tiffin_types::{ConnId, RequestId, SegmentId};
use tokio::time::{Instant, MissedTickBehavior};

use super::{Conn, Shared, State};
use crate::listen::limit_stat;
use crate::metrics::{self, Asked, RequestKind, Shortage};
use crate::turnstile::Turn;
use crate::watch::{self, History, Journal, Kind, Live};
use crate::{http, traced};

/// The maximum number of requests that are timed while they wait for an answer.
const UNANSWERED_MAX: usize = 1 << 16;
/// The maximum number of events in a snapshot.
const EVENTS_MAX: usize = 200;
/// The minimum time between two lines about slow requests, in milliseconds.
const SLOW_LINE_REST_MS: u64 = 100;

/// What operators watch.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    pub(super) journal: Journal,
    // Held for one point or one snapshot, never across an await.
    history: Mutex<History>,
    live: Live,
    /// When the last line about a slow request was written, in milliseconds since the start.
    slow_line_ms: AtomicU64,
}

impl Watched {
    fn history(&self) -> MutexGuard<'_, History> {
        // A panic leaves no partial state.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request whose answer is timed.
pub(super) struct Timed {
    pub(super) conn: ConnId,
    pub(super) id: RequestId,
    asked: Option<Asked>,
    kind: RequestKind,
    may_wait: bool,
    began: Instant,
    trace: Option<Box<RequestTrace>>,
    is_answered: Cell<bool>,
}

/// The trace that a request continues, and the name of its span.
#[derive(Clone, Debug)]
struct RequestTrace {
    context: TraceContext,
    name: Name,
}

/// A request that waits for its answer.
#[derive(Debug)]
struct Waiting {
    kind: RequestKind,
    may_wait: bool,
    began: Instant,
    trace: Option<Box<RequestTrace>>,
}

/// Requests that wait for their answer.
#[derive(Debug, Default)]
pub(super) struct Unanswered(BTreeMap<(ConnId, RequestId), Waiting>);

impl Unanswered {
    /// Begins to time a request that was not answered at once.
    pub(super) fn add(&mut self, timed: &Timed) {
        if !timed.is_answered.get() && self.0.len() < UNANSWERED_MAX {
            let Timed { kind, may_wait, began, .. } = *timed;
            let waiting = Waiting { kind, may_wait, began, trace: timed.trace.clone() };
            self.0.insert((timed.conn, timed.id), waiting);
        }
    }

    /// The connection has ended: its requests get no answer.
    pub(super) fn forget(&mut self, conn: ConnId) {
        let mut later = self.0.split_off(&(conn, RequestId(0)));
        later.retain(|it, _| it.0 != conn);
        self.0.append(&mut later);
    }
}

impl Shared {
    /// Counts a request and passes it to the core. Its turn ends when the core has decided.
    pub(super) fn asked(
        &self,
        (conn, id): (ConnId, RequestId),
        request: Request,
        trace: Option<TraceContext>,
        turn: Option<Turn<'_>>,
    ) {
        if let Request::ClientToMaster(ClientToMaster::Ping(ping)) = &request {
            self.counters.client_measured(&ping.measured);
        }
        let timed = Timed {
            conn,
            id,
            asked: self.counters.asked(&request),
            kind: RequestKind::of(&request),
            may_wait: RequestKind::may_wait(&request),
            began: Instant::now(),
            trace: trace.map(|context| {
                let name = Name::Request(MASTER_SERVICE, tiffin_proto::request_kind(&request).name);
                Box::new(RequestTrace { context, name })
            }),
            is_answered: Cell::new(false),
        };
        self.handle_in_turn(super::Event::Request(conn, id, request), Some(&timed), turn);
    }

    /// Adds what a member has measured.
    pub(super) fn measured(&self, segment: Option<SegmentId>, request: &Request) {
        if let (Some(segment), Request::MemberToMaster(MemberToMaster::Heartbeat(beat))) = (segment, request)
        {
            self.counters.member_measured(segment, &beat.measured);
            self.counters.member_limits(segment, &beat.limits);
        }
    }

    /// Counts an answer. `timed` is the request that is being handled.
    pub(super) fn answered(
        &self,
        state: &mut State,
        conn: ConnId,
        id: RequestId,
        reply: &Reply,
        timed: Option<&Timed>,
    ) {
        let timed = timed.filter(|it| (it.conn, it.id) == (conn, id));
        let shortage = self.counters.answered(timed.and_then(|it| it.asked), reply);
        if shortage != Shortage::default() {
            self.note_shortage(state.conns.get(&conn).map_or("", |it| &it.namespace), shortage);
        }
        match timed {
            Some(it) if !it.is_answered.replace(true) => {
                self.took(
                    (it.kind, it.may_wait),
                    it.began,
                    it.trace.as_deref(),
                    state.conns.get(&conn),
                    reply,
                );
            }
            Some(_) => {}
            None => {
                if let Some(it) = state.unanswered.0.remove(&(conn, id)) {
                    self.took(
                        (it.kind, it.may_wait),
                        it.began,
                        it.trace.as_deref(),
                        state.conns.get(&conn),
                        reply,
                    );
                }
            }
        }
    }

    fn took(
        &self,
        (kind, may_wait): (RequestKind, bool),
        began: Instant,
        trace: Option<&RequestTrace>,
        conn: Option<&Conn>,
        reply: &Reply,
    ) {
        let took = began.elapsed();
        self.counters.took(kind, took);
        if let (Some(trace), Some(tracer)) = (trace, &self.tracer) {
            tracer.record(trace.name, trace.context, took, traced::failure(reply));
        }
        if self.slow.is_zero() || took < self.slow || may_wait {
            return;
        }
        self.counters.was_slow();
        let limit = humantime::format_duration(self.slow);
        let text = format!("an answer took longer than {limit}");
        self.watched.journal.add(Kind::SlowRequest, kind.name(), &text);
        let (now, last) = (self.now().0, self.watched.slow_line_ms.load(Ordering::Relaxed));
        if now.saturating_sub(last) >= SLOW_LINE_REST_MS || last == 0 {
            self.watched.slow_line_ms.store(now.max(1), Ordering::Relaxed);
            let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            let namespace = conn.map_or("", |it| &it.namespace);
            let trace = trace.map(|it| it.context.trace_id()).unwrap_or_default();
            tracing::warn!(operation = kind.name(), namespace, ms, trace, "slow request");
        }
    }

    fn note_shortage(&self, namespace: &str, shortage: Shortage) {
        for (is_short, kind, text) in [
            (shortage.over_quota, Kind::QuotaReached, "a put exceeds the quota of the namespace"),
            (shortage.full, Kind::StoreFull, "a put found no memory: what is left is protected or in use"),
            (shortage.behind, Kind::StreamFull, "a put waits for the consumers of its stream"),
        ] {
            if is_short {
                self.watched.journal.add(kind, namespace, text);
            }
        }
    }

    /// The page `/metrics`.
    pub(crate) fn metrics(&self) -> String {
        let (stat, waiting, undecided, limits) = {
            let state = self.lock();
            let core = &state.core;
            (core.stat(), core.waiting_count(), core.undecided_count(), core.limits())
        };
        let snapshot = metrics::Snapshot {
            transfers: self.counters.transfers(&stat),
            waiting: waiting as u64,
            undecided: undecided as u64,
            limits: limits
                .into_iter()
                .chain([self.turnstile.stat()])
                .chain(self.admission.limits())
                .chain(http::limits(&self.gates))
                .chain([limit_stat("page_requests_per_token", self.admission.access().page_limit())])
                .collect(),
            node_limits: self.counters.node_limits(&stat),
            events: self.watched.journal.counts(),
            spans: self.tracer.as_ref().map_or((0, 0), |it| (it.exported(), it.dropped())),
            ..self.snapshot(&stat)
        };
        metrics::render(&snapshot)
    }

    /// The page `/metrics/summary`.
    pub(crate) fn summary(&self) -> String {
        let stat = self.stat();
        metrics::summary(&self.snapshot(&stat))
    }

    fn snapshot<'a>(&'a self, stat: &'a Stat) -> metrics::Snapshot<'a> {
        metrics::Snapshot {
            connections: self.admission.inside(),
            refused: self.admission.refused(),
            certificate_ends_s: self.tls.as_ref().and_then(TlsServer::certificate).map_or(0, |it| it.ends_s),
            uptime: self.started.elapsed(),
            leads: self.ha_stat().map_or((true, 0, 0), |(leads, it)| (leads, it.won, it.lost)),
            ..metrics::Snapshot::of(stat, &self.counters)
        }
    }

    /// The snapshot for the page and `tiffin top`.
    pub(crate) fn view(&self) -> Value {
        let (stat, waiting, drains) = {
            let state = self.lock();
            let stat = state.core.stat();
            let drains = stat.nodes.iter().map(|it| it.info.segment);
            let drains = drains.filter_map(|it| Some((it, state.core.drain_phase(it)?))).collect();
            (stat, state.core.waiting_count(), drains)
        };
        watch::render(&watch::Seen {
            stat: &stat,
            counters: &self.counters,
            transfers: self.counters.transfers(&stat),
            operations: self.watched.history().operations(),
            events: &self.watched.journal.newest(EVENTS_MAX),
            awaited: self.awaited(),
            uptime: self.started.elapsed(),
            leads: self.ha_stat().is_none_or(|it| it.0),
            connections: self.admission.inside(),
            waiting: waiting as u64,
            drains,
        })
    }

    /// The events with a greater number, oldest first. The numbers are those of the named journal: after a
    /// restart of the master, a reader begins again.
    pub(crate) fn events_after(&self, number: u64, journal: Option<&str>) -> Value {
        let own = self.config.instance.to_string();
        let number = if journal.is_none_or(|it| it == own) { number } else { 0 };
        let events = self.watched.journal.after(number, EVENTS_MAX);
        json!({"journal": own, "events": watch::events(&events), "more": events.len() == EVENTS_MAX})
    }

    /// A stream of snapshots. `None` if there are too many.
    pub(crate) fn open_stream(
        &self,
    ) -> Option<impl HttpBody<Data = Bytes, Error = axum::Error> + Send + Unpin + 'static + use<>> {
        self.watched.live.open(&self.view().to_string())
    }

    /// Takes a point of the history, and sends a snapshot to the watching connections.
    fn observe(&self) {
        let series = self.counters.series();
        self.watched.history().push(series);
        if self.watched.live.is_watched() {
            self.watched.live.send(&self.view().to_string());
        }
    }
}

/// Takes points of the history until the future is dropped.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut ticks = tokio::time::interval(watch::INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shared.observe();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(conn: u64, id: u64) -> Timed {
        Timed {
            conn: ConnId(conn),
            id: RequestId(id),
            asked: None,
            kind: RequestKind::of(&Request::Goodbye),
            may_wait: false,
            began: Instant::now(),
            trace: None,
            is_answered: Cell::new(false),
        }
    }

    #[test]
    fn unanswered_requests_are_bounded_and_end_with_their_connection() {
        let mut unanswered = Unanswered::default();
        for id in 0..UNANSWERED_MAX as u64 {
            unanswered.add(&timed(id % 4, id));
        }
        assert_eq!(unanswered.0.len(), UNANSWERED_MAX);
        unanswered.add(&timed(9, 0));
        assert_eq!(unanswered.0.len(), UNANSWERED_MAX, "one more is not measured");
        unanswered.forget(ConnId(1));
        assert_eq!(unanswered.0.len(), UNANSWERED_MAX / 4 * 3);
        assert!(unanswered.0.keys().all(|it| it.0 != ConnId(1)));
        let answered = timed(9, 0);
        answered.is_answered.set(true);
        unanswered.add(&answered);
        assert_eq!(unanswered.0.len(), UNANSWERED_MAX / 4 * 3, "it was answered at once");
    }
}
