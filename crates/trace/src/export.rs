//! The queue of ended spans, and the task that sends them to a collector.
//!
//! **Invariant:** at most [`QUEUE_SPANS_MAX`] spans wait, besides one batch of at most [`BATCH_SPANS_MAX`]
//! that is being sent. Every span is exported, rejected by the collector, or counted as dropped.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::rand::{GetRandomFlags, getrandom};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use crate::endpoint::Refused;
use crate::record::Ended;
use crate::{Endpoint, Kind, Name, Span, TraceContext, activate, otlp};

/// The maximum number of spans that wait for their export.
pub(crate) const QUEUE_SPANS_MAX: usize = 4096;
/// The maximum number of spans in one request to the collector.
const BATCH_SPANS_MAX: usize = 512;
/// The maximum number of callers that wait for the queue to be sent.
const FLUSHES_MAX: usize = 64;
/// How long the first span of a batch waits for others.
const LINGER: Duration = Duration::from_secs(1);
/// The time limit of one request to the collector.
const POST_TIME_MAX: Duration = Duration::from_secs(10);
/// The pause after a failed request, which doubles with each further one.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Tells an operator that the export fails: a message and a hint.
pub type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// How spans are exported.
#[derive(Clone)]
pub struct TracerSettings {
    /// Where they are sent.
    pub endpoint: Endpoint,
    /// The name of the process in traces.
    pub service: String,
    /// Called once each time the collector begins to fail.
    pub tell: Tell,
}

impl TracerSettings {
    /// Exports to that collector, and logs when that fails.
    #[must_use]
    pub fn new(endpoint: Endpoint, service: &str) -> Self {
        let tell: Tell = Arc::new(|message| tracing::warn!("{message}"));
        Self { endpoint, service: service.to_owned(), tell }
    }
}

impl PartialEq for TracerSettings {
    fn eq(&self, other: &Self) -> bool {
        (&self.endpoint, &self.service) == (&other.endpoint, &other.service)
    }
}

impl Eq for TracerSettings {}

impl fmt::Debug for TracerSettings {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, service, tell: _ } = self;
        out.debug_struct("TracerSettings").field("endpoint", endpoint).field("service", service).finish()
    }
}

/// Makes spans, and exports them. Clones share the queue. When the last one is dropped, what waits is sent
/// once, and the task ends.
#[derive(Clone, Debug)]
pub struct Tracer {
    spans: mpsc::Sender<Ended>,
    flushes: mpsc::Sender<oneshot::Sender<()>>,
    counts: Arc<Counts>,
}

#[derive(Debug)]
struct Counts {
    exported: AtomicU64,
    dropped: AtomicU64,
    /// The ids of spans: a random start, and the number of ids so far.
    seed: u64,
    ids: AtomicU64,
}

/// The other side of the queue.
struct Exporter {
    spans: mpsc::Receiver<Ended>,
    flushes: mpsc::Receiver<oneshot::Sender<()>>,
    counts: Arc<Counts>,
    settings: TracerSettings,
    /// Whether the last request failed.
    is_failing: bool,
}

impl Tracer {
    /// Starts the export on the current runtime.
    #[must_use]
    pub fn start_export(settings: TracerSettings) -> Self {
        activate();
        let (tracer, exporter) = queue(settings, QUEUE_SPANS_MAX);
        tokio::spawn(exporter.run());
        tracer
    }

    /// Begins a span. `None` if the trace is not recorded.
    #[must_use]
    pub fn start(&self, name: Name, kind: Kind, parent: TraceContext) -> Option<Span> {
        let ended = self.span(name, kind, parent, SystemTime::now())?;
        Some(Span::new(self.clone(), ended))
    }

    /// Records a span of a server that has just ended. It is not exported if the trace is not recorded.
    pub fn record(&self, name: Name, parent: TraceContext, took: Duration, failed: Option<&'static str>) {
        let now = SystemTime::now();
        let began = now.checked_sub(took).unwrap_or(now);
        if let Some(span) = self.span(name, Kind::Server, parent, began) {
            self.push(Ended { took, failed, ..span });
        }
    }

    /// The number of spans that the collector has accepted.
    #[must_use]
    pub fn exported(&self) -> u64 {
        self.counts.exported.load(Ordering::Relaxed)
    }

    /// The number of spans that were lost: the queue was full, or the collector rejected them.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.counts.dropped.load(Ordering::Relaxed)
    }

    /// Waits until the spans that have ended were sent, or could not be, but not beyond the deadline.
    pub async fn flush(&self, deadline: Instant) {
        let (done, sent) = oneshot::channel();
        if self.flushes.try_send(done).is_ok() {
            // An error means that the task has ended with its runtime.
            let _ended = timeout_at(deadline, sent).await;
        }
    }

    pub(crate) fn push(&self, span: Ended) {
        if self.spans.try_send(span).is_err() {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn span(&self, name: Name, kind: Kind, parent: TraceContext, began: SystemTime) -> Option<Ended> {
        if !parent.is_sampled() {
            return None;
        }
        let context = parent.at(self.counts.next_id())?;
        let (took, attributes, failed) = (Duration::ZERO, Vec::new(), None);
        Some(Ended { name, kind, context, parent, began, took, attributes, failed })
    }
}

impl Counts {
    fn new() -> Self {
        let mut seed = [0; 8];
        // Ids need not be secret. If the kernel has no random numbers yet, the address of this stack differs.
        let drawn = getrandom(&mut seed, GetRandomFlags::empty()).is_ok();
        let seed = if drawn { u64::from_le_bytes(seed) } else { (&raw const seed).addr() as u64 };
        Self { exported: AtomicU64::new(0), dropped: AtomicU64::new(0), seed, ids: AtomicU64::new(0) }
    }

    /// A different id each time: the mixing function of SplitMix64 is a bijection.
    fn next_id(&self) -> [u8; 8] {
        loop {
            let count = self.ids.fetch_add(1, Ordering::Relaxed);
            let mut it = self.seed.wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            it = (it ^ (it >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            it = (it ^ (it >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            it ^= it >> 31;
            if it != 0 {
                return it.to_le_bytes();
            }
        }
    }
}

fn queue(settings: TracerSettings, spans_max: usize) -> (Tracer, Exporter) {
    let counts = Arc::new(Counts::new());
    let (spans, ended) = mpsc::channel(spans_max);
    let (flushes, asked) = mpsc::channel(FLUSHES_MAX);
    let tracer = Tracer { spans, flushes, counts: Arc::clone(&counts) };
    (tracer, Exporter { spans: ended, flushes: asked, counts, settings, is_failing: false })
}

impl Exporter {
    /// Sends spans until no tracer is left.
    async fn run(mut self) {
        let mut waiting = Vec::new();
        let mut pause = PAUSE;
        loop {
            let (batch, is_last) = self.next_batch(&mut waiting).await;
            let is_urgent = is_last || !waiting.is_empty();
            self.export(batch, is_urgent, &mut waiting, &mut pause).await;
            if self.spans.is_empty() {
                waiting.drain(..).for_each(|done| _ = done.send(()));
            }
            if is_last {
                return;
            }
        }
    }

    /// The next spans, and whether they are the last ones. Waits until there are many, or until the first
    /// has waited for [`LINGER`], or until a caller waits for them.
    async fn next_batch(&mut self, waiting: &mut Vec<oneshot::Sender<()>>) -> (Vec<Ended>, bool) {
        let mut batch = Vec::new();
        let mut until = None;
        while batch.len() < BATCH_SPANS_MAX {
            let space = BATCH_SPANS_MAX - batch.len();
            if !waiting.is_empty() {
                let more = std::iter::from_fn(|| self.spans.try_recv().ok());
                batch.extend(more.take(space));
                break;
            }
            let linger = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Some(done) = self.flushes.recv() => waiting.push(done),
                count = self.spans.recv_many(&mut batch, space) => match count {
                    0 => return (batch, true),
                    _ => until = until.or(Some(Instant::now() + LINGER)),
                },
                () = linger => break,
            }
        }
        (batch, false)
    }

    /// Sends a batch, again and again while the collector is away. If a caller waits for it, it is sent once.
    async fn export(
        &mut self,
        batch: Vec<Ended>,
        is_urgent: bool,
        waiting: &mut Vec<oneshot::Sender<()>>,
        pause: &mut Duration,
    ) {
        let count = batch.len() as u64;
        if count == 0 {
            return;
        }
        // A caller that closes does not wait for a collector that is known to fail.
        if self.is_failing && is_urgent {
            self.counts.dropped.fetch_add(count, Ordering::Relaxed);
            return;
        }
        let body = otlp::encode(&self.settings.service, &batch);
        drop(batch);
        loop {
            let late = || Refused::Again(format!("no answer within {} s", POST_TIME_MAX.as_secs()));
            let posted = timeout(POST_TIME_MAX, self.settings.endpoint.post(body.clone())).await;
            match posted.unwrap_or_else(|_| Err(late())) {
                Ok(answer) => {
                    let rejected = otlp::rejected(&answer).min(count);
                    self.counts.dropped.fetch_add(rejected, Ordering::Relaxed);
                    self.counts.exported.fetch_add(count - rejected, Ordering::Relaxed);
                    (self.is_failing, *pause) = (false, PAUSE);
                    return;
                }
                Err(Refused::Final(why)) => {
                    self.tell_once(&why);
                    self.counts.dropped.fetch_add(count, Ordering::Relaxed);
                    return;
                }
                Err(Refused::Again(why)) => self.tell_once(&why),
            }
            if waiting.is_empty() {
                match timeout(*pause, self.flushes.recv()).await {
                    Err(_) => {
                        *pause = (*pause * 2).min(PAUSE_MAX);
                        continue;
                    }
                    Ok(Some(done)) => waiting.push(done),
                    // No tracer is left.
                    Ok(None) => {}
                }
            }
            self.counts.dropped.fetch_add(count, Ordering::Relaxed);
            return;
        }
    }

    fn tell_once(&mut self, why: &str) {
        if std::mem::replace(&mut self.is_failing, true) {
            return;
        }
        let endpoint = &self.settings.endpoint;
        let hint = "start a collector that accepts OTLP over HTTP there (its port is usually 4318), or \
                    switch tracing off with TIFFIN_TRACE_ENDPOINT=off";
        (self.settings.tell)(&format!("cannot export spans to {endpoint}: {why}\n\nhint: {hint}"));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn settings() -> TracerSettings {
        TracerSettings::new("http://127.0.0.1:1".parse().unwrap(), "test")
    }

    fn parent(flags: u8) -> TraceContext {
        TraceContext::new([1; 16], [2; 8], flags).unwrap()
    }

    #[test]
    fn span_beyond_the_limit_is_dropped_and_counted() {
        let (tracer, mut exporter) = queue(settings(), 3);
        let record = || tracer.record(Name::Step("step"), parent(1), Duration::ZERO, None);
        (0..3).for_each(|_| record());
        assert_eq!((tracer.dropped(), exporter.spans.len()), (0, 3));
        record();
        assert_eq!((tracer.dropped(), exporter.spans.len()), (1, 3));
        exporter.spans.try_recv().unwrap();
        record();
        assert_eq!((tracer.dropped(), exporter.spans.len()), (1, 3), "one has left");
    }

    #[test]
    fn trace_that_is_not_recorded_has_no_spans() {
        let (tracer, exporter) = queue(settings(), 3);
        assert!(tracer.start(Name::Step("step"), Kind::Internal, parent(0)).is_none());
        tracer.record(Name::Step("step"), parent(0), Duration::ZERO, None);
        assert_eq!((tracer.dropped(), exporter.spans.len()), (0, 0));
    }

    #[test]
    fn ids_of_spans_differ() {
        let counts = Counts::new();
        let ids: BTreeSet<_> = (0..10_000).map(|_| counts.next_id()).collect();
        assert_eq!(ids.len(), 10_000);
        assert!(!ids.contains(&[0; 8]));
    }

    #[test]
    fn span_ends_when_it_is_dropped() {
        let (tracer, mut exporter) = queue(settings(), 3);
        let mut span = tracer.start(Name::Step("outer"), Kind::Internal, parent(1)).unwrap();
        span.number("n", 7);
        span.fail("first");
        span.fail("second");
        let inner = span.current().unwrap();
        assert!(exporter.spans.is_empty());
        drop(span);
        let ended = exporter.spans.try_recv().unwrap();
        assert_eq!((ended.parent, ended.context), (parent(1), inner.context));
        assert_eq!(ended.failed, Some("first"));
        assert_eq!(ended.attributes.len(), 1);
    }
}
