//! The log of a disk, for tasks: answers are awaited, and what the log is too busy for is asked again.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tiffin_ssd::{
    AppendError, ChangeError, Drive, Event, FORGET_IDS_MAX, Limits, OpId, OpenError, Pieces, ReadError,
    Record, RecordId, ShelfConfig, Span, Stats,
};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::StartError;
use crate::config::{Engine, SsdConfig};

/// How long a read may take, whoever waits for it.
const READ_TIME_MAX: Duration = Duration::from_secs(30);
/// How long what must be done may take: as long as it takes. A disk that hangs is waited for, and what hangs
/// on it is not confirmed meanwhile.
const CHANGE_TIME_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// How long to rest before a log that was too busy is asked again.
const BUSY_REST: Duration = Duration::from_millis(5);

/// Payloads up to this size are hashed by the task that appends them: that takes some microseconds.
const INLINE_HASH_BYTES_MAX: u64 = 64 << 10;
/// Larger payloads are hashed by at most so many threads at a time. Each thread of the runtime keeps memory
/// of its own, so that one for each append would cost hundreds of MiB.
const HASHING_MAX: usize = 4;

/// What a log was found to hold.
pub(super) type Recovered = Vec<(RecordId, Record)>;

/// A log, and how to speak with it.
pub(super) struct Shelf {
    shelf: Arc<tiffin_ssd::Shelf>,
    hashing: Arc<Semaphore>,
    engine: String,
}

impl Shelf {
    /// Opens the log; what it holds, and what it will do by itself.
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
        let config = ShelfConfig { path, budget_bytes: config.size, segment_bytes: None, limits, drive };
        let (tell, events) = mpsc::unbounded_channel();
        // The node may be going away, and then nobody listens.
        let listen = move |event| _ = tell.send(event);
        let opened = tokio::task::spawn_blocking(move || tiffin_ssd::Shelf::open(&config, listen)).await;
        let opened = opened.map_err(StartError::disk)?.map_err(|error| match error {
            OpenError::InUse { .. } => StartError::DiskInUse(error.to_string()),
            error => StartError::disk(error),
        })?;
        let hashing = Arc::new(Semaphore::new(HASHING_MAX));
        let shelf = Self { shelf: Arc::new(opened.shelf), hashing, engine: opened.driven.to_string() };
        Ok((shelf, opened.records, events))
    }

    /// How the disk is read and written, and why so.
    pub(super) fn engine(&self) -> &str {
        &self.engine
    }

    pub(super) fn stats(&self) -> Stats {
        self.shelf.stats()
    }

    /// Keeps a record. Hashing a large payload takes a while, which other tasks need not wait for.
    pub(super) fn append(
        &self,
        record: Record,
        payload: Pieces,
    ) -> impl Future<Output = Result<RecordId, AppendError>> + Send + use<> {
        let (shelf, (done, ended)) = (Arc::clone(&self.shelf), oneshot::channel());
        let hashing = Arc::clone(&self.hashing);
        async move {
            let is_small = payload.len() <= INLINE_HASH_BYTES_MAX;
            // Whoever is not there any more need not hear of it.
            let append = move || {
                _ = shelf.append(record, payload, CHANGE_TIME_MAX, |result| _ = done.send(result));
            };
            if is_small {
                append();
            } else {
                // The semaphore is never closed.
                let _permit = hashing.acquire().await;
                // If the task is not run, its end of the channel is dropped, and that is the answer.
                let _ran = tokio::task::spawn_blocking(append).await;
            }
            ended.await.unwrap_or(Err(AppendError::Cancelled))
        }
    }

    /// Reads bytes of a record. It is begun at once, whether or not anybody waits.
    pub(super) fn read(
        &self,
        id: RecordId,
        span: Span,
        into: Pieces,
    ) -> impl Future<Output = Result<u64, ReadError>> + Send + use<> {
        let (done, ended) = oneshot::channel();
        self.shelf.read(id, span, into, READ_TIME_MAX, |result| _ = done.send(result));
        async { ended.await.unwrap_or(Err(ReadError::Cancelled)) }
    }

    /// The same for what nobody waits for yet: those who wait go first.
    pub(super) fn read_ahead(
        &self,
        id: RecordId,
        span: Span,
        into: Pieces,
    ) -> impl Future<Output = Result<u64, ReadError>> + Send + use<> {
        let (done, ended) = oneshot::channel();
        self.shelf.read_ahead(id, span, into, READ_TIME_MAX, |result| _ = done.send(result));
        async { ended.await.unwrap_or(Err(ReadError::Cancelled)) }
    }

    /// Gives a record other marks.
    pub(super) fn mark(
        &self,
        id: RecordId,
        marks: Vec<u8>,
        protected: bool,
    ) -> impl Future<Output = Result<(), ChangeError>> + Send + use<> {
        let shelf = Arc::clone(&self.shelf);
        persistently(move |done| shelf.mark(id, marks.clone(), protected, CHANGE_TIME_MAX, done))
    }

    /// Lets records go for good.
    pub(super) fn forget(
        &self,
        ids: Vec<RecordId>,
    ) -> impl Future<Output = Result<(), ChangeError>> + Send + use<> {
        let shelf = Arc::clone(&self.shelf);
        async move {
            for ids in ids.chunks(FORGET_IDS_MAX) {
                let shelf = Arc::clone(&shelf);
                let ids = ids.to_vec();
                persistently(move |done: Done<u64>| shelf.forget(ids.clone(), CHANGE_TIME_MAX, done)).await?;
            }
            Ok(())
        }
    }

    /// Ends when all that was asked before has ended.
    pub(super) async fn flush(&self) {
        let (done, ended) = oneshot::channel();
        self.shelf.flush(CHANGE_TIME_MAX, |result: Result<(), ChangeError>| _ = done.send(result));
        // However it ended, nothing more can be done about it.
        let _ended = ended.await;
    }
}

/// Hears how a change ended.
type Done<T> = Box<dyn FnOnce(Result<T, ChangeError>) + Send>;

/// Asks for a change, again while the log is too busy to take it.
async fn persistently<T: Send + 'static>(ask: impl Fn(Done<T>) -> OpId + Send) -> Result<T, ChangeError> {
    loop {
        let (done, ended) = oneshot::channel();
        ask(Box::new(|result| _ = done.send(result)));
        match ended.await.unwrap_or(Err(ChangeError::Cancelled)) {
            Err(ChangeError::Busy) => tokio::time::sleep(BUSY_REST).await,
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
        Record { name, generation, marks: Vec::new(), protected: false, payload_bytes }
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
            let (shelf, ..) = Shelf::open(&config).await.unwrap();
            let appends =
                (0..256).map(|number| tokio::spawn(shelf.append(record(number, 100), Pieces::zeroed(100))));
            for append in appends.collect::<Vec<_>>() {
                append.await.unwrap().unwrap();
            }
        });
        // The worker, and the thread that opened the disk.
        assert_eq!(threads.load(Ordering::Relaxed), 2);
    }
}
