//! Serving bytes that must be fetched first: from a disk beside the node's memory.
//!
//! Requests are answered in the order in which they came, but those that are here already are all begun: a
//! disk is fast only if it has much to do at a time.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;

use tokio::time::timeout;

use super::frame::{REQUEST_BYTES, ReplyHead, ReplyKind, RequestHead, RequestKind, Status};
use super::server::{CHUNK_TIME_MAX, ServeError, Served, Server, next_request};
use super::stream::Wire;
use crate::buffer::SourceBuf;
use crate::copy;

/// Requests of one connection that are under way at a time.
const FETCHES_MAX: usize = 32;

/// Bytes that were fetched, private to whoever asked for them.
pub type Bytes = Box<dyn AsRef<[u8]> + Send + Sync>;

/// Why there are no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfetched {
    /// The copy is not there any more.
    Gone,
    /// It is there, and the disk cannot read it.
    Unreadable,
}

/// Bytes on their way. It goes on whether or not anybody waits for it.
pub type Fetch = Pin<Box<dyn Future<Output = Result<Bytes, Unfetched>> + Send>>;

impl Server {
    /// Serves one connection to a disk to its end.
    pub(super) async fn serve_disk<W: Wire>(
        &self,
        served: &mut Served<W>,
        segment: u64,
    ) -> Result<(), ServeError> {
        let mut begun: VecDeque<(RequestHead, Option<Fetch>)> = VecDeque::new();
        loop {
            let is_one_here = served.line.ahead_bytes() >= REQUEST_BYTES;
            if begun.is_empty() || (is_one_here && begun.len() < FETCHES_MAX) {
                if begun.is_empty() && !is_one_here {
                    served.flush().await?;
                }
                let Some(head) = next_request(&mut served.line).await? else { return Ok(()) };
                if head.kind == RequestKind::Write {
                    // Nobody writes to a disk but its node.
                    served.skip(head.len).await?;
                    let kind = ReplyKind::Written;
                    served.answer(&ReplyHead {
                        kind,
                        status: Status::Stale,
                        id: head.id,
                        len: 0,
                        checksum: 0,
                    });
                    continue;
                }
                begun.push_back((head, self.keeper.begin_fetch(segment, &head)));
                continue;
            }
            let Some((head, fetch)) = begun.pop_front() else { continue };
            self.send_fetched(served, segment, &head, fetch).await?;
        }
    }

    async fn send_fetched<W: Wire>(
        &self,
        served: &mut Served<W>,
        segment: u64,
        head: &RequestHead,
        fetch: Option<Fetch>,
    ) -> Result<(), ServeError> {
        let reply =
            ReplyHead { kind: ReplyKind::Data, status: Status::Ok, id: head.id, len: head.len, checksum: 0 };
        let bytes = match fetch {
            Some(fetch) => timeout(CHUNK_TIME_MAX, fetch).await?,
            None => Err(Unfetched::Gone),
        };
        let status = match &bytes {
            Ok(bytes) if (**bytes).as_ref().len() as u64 == head.len => Status::Ok,
            Ok(_) | Err(Unfetched::Gone) => Status::Stale,
            Err(Unfetched::Unreadable) => Status::Unreadable,
        };
        let Some(bytes) = bytes.ok().filter(|_| status == Status::Ok) else {
            served.answer(&ReplyHead { status, len: 0, ..reply });
            return Ok(());
        };
        let bytes = (*bytes).as_ref();
        served.answer(&reply);
        served.flush().await?;
        timeout(CHUNK_TIME_MAX, served.line.send([SourceBuf::from(bytes)])).await??;
        let status = if self.keeper.end_fetch(segment, head) { Status::Ok } else { Status::Stale };
        let checksum = copy::checksum_private(bytes);
        self.counters.served.add_read(head.len);
        served.answer(&ReplyHead { kind: ReplyKind::Trailer, status, checksum, ..reply });
        Ok(())
    }
}
