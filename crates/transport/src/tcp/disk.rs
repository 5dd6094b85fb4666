//! Serves the bytes of a node's disks.
//!
//! Requests are answered in order, but all that have arrived are started: a disk is fast only with many
//! requests at a time. For a reader that maps the disk's staging segment, the bytes may be left there; only
//! their location is sent.
//!
//! **Invariant:** staged bytes stay in place until the reader releases them or its connection ends. Their
//! stamp is withdrawn before the memory is reused.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;

use tokio::time::timeout;

use super::buffered::SMALL_BYTES_MAX;
use super::frame::{REQUEST_BYTES, ReplyHead, ReplyKind, RequestHead, RequestKind, Status};
use super::grant::FetchReader;
use super::server::{CHUNK_TIME_MAX, ServeError, Served, Server};
use super::share::Permit;
use super::stream::ByteStream;
use crate::buffer::SourceBuf;
use crate::checksum::checksum;

/// Maximum number of requests in progress per connection.
const FETCHES_MAX: usize = 32;

/// Bytes that were read for one request.
pub type Bytes = Box<dyn AsRef<[u8]> + Send + Sync>;

/// The result of a fetch.
pub enum Fetched {
    /// In private memory.
    Bytes(Bytes),
    /// In the staging segment, if the reader asked for that.
    Staged(Box<dyn StagedBytes>),
}

/// A slot of the staging segment. Dropping it frees the slot for another stamp.
pub trait StagedBytes: Send + Sync {
    /// Slot and stamp of the bytes.
    fn location(&self) -> (u32, u64);
}

/// Why a fetch failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchError {
    /// The copy no longer exists.
    Gone,
    /// The copy exists, but the disk cannot read it.
    Unreadable,
}

/// A request that was begun.
struct Begun {
    head: RequestHead,
    fetch: Option<Fetch>,
    _memory: Permit,
}

impl<W: ByteStream> Served<W> {
    /// Memory for a fetch, if its client may have more. Waits for it only if this connection has no fetch in
    /// progress.
    async fn fetch_memory(&mut self, bytes: u64, may_wait: bool) -> Result<Option<Permit>, ServeError> {
        let memory = self.part.try_fetch(bytes);
        if memory.is_some() || !may_wait {
            return Ok(memory);
        }
        self.flush().await?;
        self.part.fetch(bytes).await.map(Some).ok_or(ServeError::Crowded)
    }
}

/// A fetch in progress. It continues even if the future is dropped.
pub type Fetch = Pin<Box<dyn Future<Output = Result<Fetched, FetchError>> + Send>>;

impl Server {
    /// Serves one connection to a disk until it ends.
    pub(super) async fn serve_disk<W: ByteStream>(
        &self,
        served: &mut Served<W>,
        segment: u64,
    ) -> Result<(), ServeError> {
        let mut begun: VecDeque<Begun> = VecDeque::new();
        // A request that must wait for those before it.
        let mut next = None;
        // Slots that the reader has not released yet.
        let mut staged: Vec<Box<dyn StagedBytes>> = Vec::new();
        loop {
            let is_one_here = next.is_some() || served.stream.buffered_bytes() >= REQUEST_BYTES;
            if begun.is_empty() || (is_one_here && begun.len() < FETCHES_MAX) {
                if begun.is_empty() && !is_one_here {
                    served.flush().await?;
                }
                let read = if next.is_some() { next.take() } else { served.next_request().await? };
                let Some(head) = read else { return Ok(()) };
                match head.kind {
                    // Only the node writes to its disk.
                    RequestKind::Write => {
                        served.skip(head.len).await?;
                        let (kind, status) = (ReplyKind::Written, Status::Stale);
                        served.answer(&ReplyHead { kind, status, id: head.id, len: 0, checksum: 0 });
                    }
                    RequestKind::Release => staged.retain(|it| it.location() != (head.slot, head.stamp)),
                    RequestKind::Read | RequestKind::Stage => {
                        // A reader that releases nothing gets no more slots.
                        let is_greedy = staged.len() + begun.len() >= FETCHES_MAX;
                        let kind = if is_greedy { RequestKind::Read } else { head.kind };
                        let head = RequestHead { kind, ..head };
                        let memory = served.fetch_memory(head.len, begun.is_empty()).await?;
                        if let Some(memory) = memory {
                            begun.push_back(self.begin_fetch(served, segment, (head, memory)));
                        } else {
                            next = Some(head);
                        }
                    }
                }
                if next.is_none() {
                    continue;
                }
            }
            let Some(Begun { head, fetch, _memory }) = begun.pop_front() else { continue };
            served.count(&head);
            served.rest().await;
            staged.extend(self.send_fetched(served, segment, &head, fetch).await?);
        }
    }

    fn begin_fetch<W>(
        &self,
        served: &Served<W>,
        segment: u64,
        (head, memory): (RequestHead, Permit),
    ) -> Begun {
        let reader = FetchReader { client: served.client, grant: &*served.grant };
        let fetch = || self.slots.begin_fetch(reader, segment, &head);
        Begun { fetch: reader.grant.may_read().then(fetch).flatten(), head, _memory: memory }
    }

    async fn send_fetched<W: ByteStream>(
        &self,
        served: &mut Served<W>,
        segment: u64,
        head: &RequestHead,
        fetch: Option<Fetch>,
    ) -> Result<Option<Box<dyn StagedBytes>>, ServeError> {
        let reply =
            ReplyHead { kind: ReplyKind::Data, status: Status::Ok, id: head.id, len: head.len, checksum: 0 };
        let fetched = match fetch {
            Some(fetch) => timeout(CHUNK_TIME_MAX, fetch).await?,
            None => Err(FetchError::Gone),
        };
        let bytes = match fetched {
            Ok(Fetched::Bytes(bytes)) if (*bytes).as_ref().len() as u64 == head.len => bytes,
            Ok(Fetched::Staged(staged)) => {
                let (slot, stamp) = staged.location();
                // The bytes were read before this check of the copy, and do not change until they are
                // released.
                let status = if self.slots.end_fetch(segment, head) { Status::Ok } else { Status::Stale };
                let (kind, len) = (ReplyKind::Staged, u64::from(slot));
                served.answer(&ReplyHead { kind, status, len, checksum: stamp, ..reply });
                served.flush().await?;
                return Ok((status == Status::Ok).then_some(staged));
            }
            failed => {
                let is_unreadable = matches!(failed, Err(FetchError::Unreadable));
                let status = if is_unreadable { Status::Unreadable } else { Status::Stale };
                served.answer(&ReplyHead { status, len: 0, ..reply });
                return Ok(None);
            }
        };
        let bytes = (*bytes).as_ref();
        if bytes.len() > SMALL_BYTES_MAX {
            served.begin_turn().await?;
        }
        served.answer(&reply);
        served.flush().await?;
        let sent = timeout(CHUNK_TIME_MAX, served.send_piece(vec![SourceBuf::from(bytes)])).await;
        served.turn = None;
        sent??;
        let status = if self.slots.end_fetch(segment, head) { Status::Ok } else { Status::Stale };
        let checksum = checksum([SourceBuf::from(bytes)]);
        self.counters.served.add_read(head.len);
        served.answer(&ReplyHead { kind: ReplyKind::Trailer, status, checksum, ..reply });
        Ok(None)
    }
}
