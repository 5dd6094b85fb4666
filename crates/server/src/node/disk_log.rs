//! The log of a disk as futures. A change that the log is too busy to accept is retried.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tiffin_ssd::{
    AppendError, ChangeError, DiskLogConfig, Drive, Event, FORGET_IDS_MAX, Fault, FaultKind, Limits, OpId,
    OpenError, Pieces, ReadError, Reader, Record, RecordId, Span, Stats,
};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::StartError;
use crate::config::{Engine, SsdConfig};
use crate::supervise::faults::{Point, strike};

/// How long a read may take.
const READ_TIME_MAX: Duration = Duration::from_secs(30);
/// How long a change may take: without limit in effect. While a disk hangs, its changes are not confirmed.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// Pause before a change is retried that the log was too busy for.
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// Payloads up to this size are hashed by the task that appends them, in a few microseconds.
const INLINE_HASH_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of threads that hash larger payloads. Each thread of the runtime keeps memory of its own:
/// one for each append would cost hundreds of MiB.
const HASHING_MAX: usize = 4;

/// The records that a log held when it was opened.
pub(super) type Recovered = Vec<(RecordId, Record)>;

/// A log on a disk whose operations are futures.
pub(super) struct AsyncLog {
    log: Arc<tiffin_ssd::DiskLog>,
    hashing: Arc<Semaphore>,
    engine: String,
}

impl AsyncLog {
    /// Opens the log. Returns also its records, and a receiver of its events.
    pub(super) async fn open(
        config: &SsdConfig,
    ) -> Result<(Self, Recovered, mpsc::UnboundedReceiver<Event>), StartError> {
        let drive = match config.engine {
            Engine::Auto => Drive::Auto,
            Engine::Uring => Drive::Uring,
            Engine::Blocking => Drive::Blocking,
        };
        let path = config.path.clone();
        let limits = Limits::default();
        let config = DiskLogConfig { path, budget_bytes: config.size, segment_bytes: None, limits, drive };
        let (tell, events) = mpsc::unbounded_channel();
        // The receiver is gone while the node stops.
        let listen = move |event| _ = tell.send(event);
        let opened = tokio::task::spawn_blocking(move || tiffin_ssd::DiskLog::open(&config, listen)).await;
        let opened = opened.map_err(StartError::disk)?.map_err(|error| match error {
            OpenError::InUse { .. } => StartError::DiskInUse(error.to_string()),
            error => StartError::disk(error),
        })?;
        let hashing = Arc::new(Semaphore::new(HASHING_MAX));
        let log = Self { log: Arc::new(opened.log), hashing, engine: opened.driven.to_string() };
        Ok((log, opened.records, events))
    }

    /// The I/O engine, and why it was chosen.
    pub(super) fn engine(&self) -> &str {
        &self.engine
    }

    pub(super) fn stats(&self) -> Stats {
        self.log.stats()
    }

    /// Appends a record. A large payload is hashed on another thread, because that takes a while.
    pub(super) fn append(
        &self,
        record: Record,
        payload: Pieces,
    ) -> impl Future<Output = Result<RecordId, AppendError>> + Send + use<> {
        let (log, (done, ended)) = (Arc::clone(&self.log), oneshot::channel());
        let hashing = Arc::clone(&self.hashing);
        async move {
            let is_small = payload.len() <= INLINE_HASH_BYTES_MAX;
            // The receiver is gone if the caller has given up.
            let append = move || {
                _ = log.append(record, payload, CHANGE_TIME_MAX, |result| {
                    strike(Point::DiskThread);
                    _ = done.send(result);
                });
            };
            if is_small {
                append();
            } else {
                // The semaphore is never closed.
                let _permit = hashing.acquire().await;
                if tokio::task::spawn_blocking(append).await.is_err() {
                    return Err(AppendError::Cancelled);
                }
            }
            // Without an answer the log has failed, and may or may not have written the record.
            ended.await.unwrap_or_else(|_| {
                let text = "the log has ended before it answered";
                Err(AppendError::Failed(Fault::new(FaultKind::Other, text)))
            })
        }
    }

    /// Starts to read bytes of a record for a client, also if the future is never polled.
    pub(super) fn read(
        &self,
        reader: Reader,
        id: RecordId,
        span: Span,
        into: Pieces,
    ) -> impl Future<Output = Result<u64, ReadError>> + Send + use<> {
        let (done, ended) = oneshot::channel();
        self.log.read_for(reader, id, span, into, READ_TIME_MAX, |result| _ = done.send(result));
        async { ended.await.unwrap_or(Err(ReadError::Cancelled)) }
    }

    /// Sets the attributes of a record.
    pub(super) fn set_attributes(
        &self,
        id: RecordId,
        attributes: Vec<u8>,
        protected: bool,
    ) -> impl Future<Output = Result<(), ChangeError>> + Send + use<> {
        let log = Arc::clone(&self.log);
        retry_while_busy(move |done| {
            log.set_attributes(id, attributes.clone(), protected, CHANGE_TIME_MAX, done)
        })
    }

    /// Deletes records durably.
    pub(super) fn forget(
        &self,
        ids: Vec<RecordId>,
    ) -> impl Future<Output = Result<(), ChangeError>> + Send + use<> {
        let log = Arc::clone(&self.log);
        async move {
            for ids in ids.chunks(FORGET_IDS_MAX) {
                let log = Arc::clone(&log);
                let ids = ids.to_vec();
                retry_while_busy(move |done: Done<u64>| log.forget(ids.clone(), CHANGE_TIME_MAX, done))
                    .await?;
            }
            Ok(())
        }
    }

    /// Waits until all earlier operations have ended.
    pub(super) async fn flush(&self) {
        let (done, ended) = oneshot::channel();
        self.log.flush(CHANGE_TIME_MAX, |result: Result<(), ChangeError>| _ = done.send(result));
        // A failed flush needs no handling: the log reports its failure as an event.
        let _ended = ended.await;
    }
}

/// Receives the result of a change.
type Done<T> = Box<dyn FnOnce(Result<T, ChangeError>) + Send>;

/// Requests a change, and retries it while the log is too busy.
async fn retry_while_busy<T: Send + 'static>(ask: impl Fn(Done<T>) -> OpId + Send) -> Result<T, ChangeError> {
    loop {
        let (done, ended) = oneshot::channel();
        ask(Box::new(|result| _ = done.send(result)));
        match ended.await.unwrap_or(Err(ChangeError::Cancelled)) {
            Err(ChangeError::Busy) => tokio::time::sleep(BUSY_PAUSE).await,
            ended => return ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tiffin_ssd::{Generation, Name};

    use super::*;

    fn record(number: usize, payload_bytes: u64) -> Record {
        let name = Arc::new(Name { namespace: "n".to_owned(), key: number.to_string().into_bytes() });
        let generation = Generation { epoch: 1, counter: number as u64 };
        Record { name, generation, attributes: Vec::new(), protected: false, payload_bytes }
    }

    #[test]
    fn small_appends_start_no_threads() {
        let threads = Arc::new(AtomicUsize::new(0));
        let started = Arc::clone(&threads);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .on_thread_start(move || _ = started.fetch_add(1, Ordering::Relaxed))
            .build()
            .unwrap();
        let folder = tempfile::tempdir().unwrap();
        let config =
            SsdConfig { path: folder.path().join("disk"), size: 256 << 20, engine: Engine::Blocking };
        runtime.block_on(async {
            let (log, ..) = AsyncLog::open(&config).await.unwrap();
            let appends =
                (0..256).map(|number| tokio::spawn(log.append(record(number, 100), Pieces::zeroed(100))));
            for append in appends.collect::<Vec<_>>() {
                append.await.unwrap().unwrap();
            }
        });
        // The worker, and the thread that opened the disk.
        assert_eq!(threads.load(Ordering::Relaxed), 2);
    }
}
