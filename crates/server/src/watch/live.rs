//! Open streams of server-sent events.
//!
//! **Invariant:** at most [`STREAMS_MAX`] streams are open. A reader that does not read [`QUEUE_MAX`]
//! snapshots loses its stream, and its browser opens another one.

use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Bytes, HttpBody};
use hyper::body::Frame;
use tokio::sync::mpsc;

/// The maximum number of open streams.
pub const STREAMS_MAX: usize = 32;
/// The maximum number of snapshots that wait for one reader.
const QUEUE_MAX: usize = 4;

/// The open streams.
#[derive(Debug, Default)]
pub(crate) struct Live {
    // Held for one pass over the list, never across an await.
    streams: Mutex<Vec<mpsc::Sender<Bytes>>>,
}

/// The body of a stream.
#[derive(Debug)]
pub(crate) struct LiveBody(mpsc::Receiver<Bytes>);

impl Live {
    /// Opens a stream that begins with this snapshot. `None` if there are too many.
    pub(crate) fn open(&self, first: &str) -> Option<LiveBody> {
        let mut streams = self.lock();
        streams.retain(|it| !it.is_closed());
        if streams.len() >= STREAMS_MAX {
            return None;
        }
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        // The queue is empty and open.
        let _sent = sender.try_send(event(first));
        streams.push(sender);
        Some(LiveBody(receiver))
    }

    /// Whether any stream is open.
    pub(crate) fn is_watched(&self) -> bool {
        let mut streams = self.lock();
        streams.retain(|it| !it.is_closed());
        !streams.is_empty()
    }

    /// Sends a snapshot to all streams. Streams whose reader is behind are closed.
    pub(crate) fn send(&self, snapshot: &str) {
        let bytes = event(snapshot);
        self.lock().retain(|it| it.try_send(bytes.clone()).is_ok());
    }

    fn lock(&self) -> MutexGuard<'_, Vec<mpsc::Sender<Bytes>>> {
        // A panic leaves no partial state.
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A server-sent event. JSON has no line breaks outside of strings, and inside they are escaped.
fn event(data: &str) -> Bytes {
    format!("data: {data}\n\n").into()
}

impl HttpBody for LiveBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stream_beyond_the_limit_is_refused_until_one_ends() {
        let live = Live::default();
        assert!(!live.is_watched());
        let mut open: Vec<_> = (0..STREAMS_MAX).map(|_| live.open("first").unwrap()).collect();
        assert!(live.is_watched() && live.open("one more").is_none());
        live.send("second");
        for expected in ["data: first\n\n", "data: second\n\n"] {
            assert_eq!(open[0].0.recv().await.unwrap(), expected);
        }
        open.pop();
        assert!(live.open("again").is_some());
    }

    #[tokio::test]
    async fn reader_that_is_behind_loses_its_stream() {
        let live = Live::default();
        let mut body = live.open("0").unwrap();
        for number in 1..QUEUE_MAX {
            live.send(&number.to_string());
        }
        assert!(live.is_watched(), "its queue is full, but nothing is lost");
        live.send("beyond");
        assert!(!live.is_watched());
        let mut seen = 0;
        while body.0.recv().await.is_some() {
            seen += 1;
        }
        assert_eq!(seen, QUEUE_MAX);
    }
}
