//! Requests that continue the trace of a client, until they are answered.
//!
//! **Invariant:** at most [`TRACED_MAX`] requests are traced while they wait. Further ones have no span.

use std::collections::BTreeMap;
use std::time::Duration;

use tiffin_trace::{Endpoint, Name, TraceContext, Tracer, TracerSettings};
use tiffin_types::message::Reply;
use tiffin_types::{ConnId, RequestId};
use tokio::time::Instant;

/// The maximum number of requests that are traced while they wait for an answer.
const TRACED_MAX: usize = 4096;

/// The time limit for sending the last spans when a server stops.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(2);

/// The requests, and where their spans go.
#[derive(Debug)]
pub(crate) struct TracedRequests {
    /// `None` if this server exports no spans.
    tracer: Option<Tracer>,
    waiting: BTreeMap<(ConnId, RequestId), (Name, TraceContext, Instant)>,
}

/// The export of a server's spans, if a collector is set.
pub(crate) fn tracer(endpoint: Option<&Endpoint>, service: &str) -> Option<Tracer> {
    let endpoint = endpoint?.clone();
    Some(Tracer::start_export(TracerSettings::new(endpoint, service)))
}

/// Sends the last spans when a server stops.
pub(crate) async fn flush(tracer: Option<&Tracer>, deadline: Option<Instant>) {
    if let Some(tracer) = tracer {
        let until = Instant::now() + FLUSH_TIME_MAX;
        tracer.flush(deadline.map_or(until, |it| it.min(until))).await;
    }
}

/// How a request failed, as its span tells it.
pub(crate) fn failure(reply: &Reply) -> Option<&'static str> {
    matches!(reply, Reply::Refused(_)).then_some("refused")
}

impl TracedRequests {
    pub(crate) fn new(tracer: Option<Tracer>) -> Self {
        Self { tracer, waiting: BTreeMap::new() }
    }

    /// Where spans go, if anywhere.
    pub(crate) fn tracer(&self) -> Option<Tracer> {
        self.tracer.clone()
    }

    /// Begins the span of a request.
    pub(crate) fn begin(&mut self, of: (ConnId, RequestId), name: Name, trace: TraceContext) {
        if self.tracer.is_some() && trace.is_sampled() && self.waiting.len() < TRACED_MAX {
            self.waiting.insert(of, (name, trace, Instant::now()));
        }
    }

    /// The request was answered.
    pub(crate) fn end(&mut self, of: (ConnId, RequestId), reply: &Reply) {
        if self.waiting.is_empty() {
            return;
        }
        if let (Some(tracer), Some((name, trace, began))) = (&self.tracer, self.waiting.remove(&of)) {
            tracer.record(name, trace, began.elapsed(), failure(reply));
        }
    }

    /// The connection has ended: its requests get no answer.
    pub(crate) fn forget(&mut self, conn: ConnId) {
        if !self.waiting.is_empty() {
            self.waiting.retain(|it, _| it.0 != conn);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn traced_requests_are_bounded_and_end_with_their_connection() {
        let endpoint = "http://127.0.0.1:1".parse().unwrap();
        let mut requests = TracedRequests::new(tracer(Some(&endpoint), "test"));
        let trace = TraceContext::new([1; 16], [2; 8], 1).unwrap();
        let name = Name::Request("tiffin.Node", "Commit");
        for id in 0..=TRACED_MAX as u64 {
            requests.begin((ConnId(id % 4), RequestId(id)), name, trace);
        }
        assert_eq!(requests.waiting.len(), TRACED_MAX);
        requests.forget(ConnId(1));
        assert_eq!(requests.waiting.len(), TRACED_MAX / 4 * 3);
        requests.end((ConnId(0), RequestId(0)), &Reply::Done);
        assert_eq!(requests.waiting.len(), TRACED_MAX / 4 * 3 - 1);
        let unsampled = TraceContext::new([1; 16], [2; 8], 0).unwrap();
        requests.begin((ConnId(0), RequestId(0)), name, unsampled);
        assert_eq!(requests.waiting.len(), TRACED_MAX / 4 * 3 - 1, "its trace is not recorded");
    }
}
