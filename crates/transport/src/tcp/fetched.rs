//! Serving bytes that must be fetched first: from a disk beside the node's memory.
//!
//! Requests are answered in the order in which they came, but those that are here already are all begun: a
//! disk is fast only if it has much to do at a time.
//!
//! Who maps the memory that the disk reads into may have the bytes left there, and then only their place
//! crosses the socket.
//!
//! **Invariant:** what is staged for a reader stays where it is until the reader lets go of it or its
//! connection ends, and its stamp is withdrawn before anything else goes there.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;

use tokio::time::timeout;

use super::frame::{REQUEST_BYTES, ReplyHead, ReplyKind, RequestHead, RequestKind, Status};
use super::server::{CHUNK_TIME_MAX, ServeError, Served, Server, next_request};
use super::stream::Wire;
use crate::buffer::SourceBuf;
use crate::checksum::checksum;

/// Requests of one connection that are under way at a time.
const FETCHES_MAX: usize = 32;

/// Bytes that were fetched, private to whoever asked for them.
pub type Bytes = Box<dyn AsRef<[u8]> + Send + Sync>;

/// Bytes that were fetched, and where they are.
pub enum Fetched {
    /// Here.
    Bytes(Bytes),
    /// In memory that the reader maps, if it asked for that.
    Staged(Box<dyn Staged>),
}

/// A place in memory that readers map. It is given to others, under another stamp, after this was dropped.
pub trait Staged: Send + Sync {
    /// The slot and the stamp under which the bytes are found there.
    fn place(&self) -> (u32, u64);
}

/// Why there are no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfetched {
    /// The copy is not there any more.
    Gone,
    /// It is there, and the disk cannot read it.
    Unreadable,
}

/// Bytes on their way. It goes on whether or not anybody waits for it.
pub type Fetch = Pin<Box<dyn Future<Output = Result<Fetched, Unfetched>> + Send>>;

impl Server {
    /// Serves one connection to a disk to its end.
    pub(super) async fn serve_disk<W: Wire>(
        &self,
        served: &mut Served<W>,
        segment: u64,
    ) -> Result<(), ServeError> {
        let mut begun: VecDeque<(RequestHead, Option<Fetch>)> = VecDeque::new();
        // What the reader has not let go of yet. It ends with the connection.
        let mut staged: Vec<Box<dyn Staged>> = Vec::new();
        loop {
            let is_one_here = served.line.ahead_bytes() >= REQUEST_BYTES;
            if begun.is_empty() || (is_one_here && begun.len() < FETCHES_MAX) {
                if begun.is_empty() && !is_one_here {
                    served.flush().await?;
                }
                let Some(head) = next_request(&mut served.line).await? else { return Ok(()) };
                match head.kind {
                    // Nobody writes to a disk but its node.
                    RequestKind::Write => {
                        served.skip(head.len).await?;
                        let (kind, status) = (ReplyKind::Written, Status::Stale);
                        served.answer(&ReplyHead { kind, status, id: head.id, len: 0, checksum: 0 });
                    }
                    RequestKind::Release => staged.retain(|it| it.place() != (head.slot, head.stamp)),
                    RequestKind::Read | RequestKind::Stage => {
                        // Who lets go of nothing gets no more than that.
                        let is_greedy = staged.len() + begun.len() >= FETCHES_MAX;
                        let kind = if is_greedy { RequestKind::Read } else { head.kind };
                        let head = RequestHead { kind, ..head };
                        begun.push_back((head, self.keeper.begin_fetch(segment, &head)));
                    }
                }
                continue;
            }
            let Some((head, fetch)) = begun.pop_front() else { continue };
            staged.extend(self.send_fetched(served, segment, &head, fetch).await?);
        }
    }

    async fn send_fetched<W: Wire>(
        &self,
        served: &mut Served<W>,
        segment: u64,
        head: &RequestHead,
        fetch: Option<Fetch>,
    ) -> Result<Option<Box<dyn Staged>>, ServeError> {
        let reply =
            ReplyHead { kind: ReplyKind::Data, status: Status::Ok, id: head.id, len: head.len, checksum: 0 };
        let fetched = match fetch {
            Some(fetch) => timeout(CHUNK_TIME_MAX, fetch).await?,
            None => Err(Unfetched::Gone),
        };
        let bytes = match fetched {
            Ok(Fetched::Bytes(bytes)) if (*bytes).as_ref().len() as u64 == head.len => bytes,
            Ok(Fetched::Staged(staged)) => {
                let (slot, stamp) = staged.place();
                // They were read before this look at the copy, and nothing changes them until it is let go.
                let status = if self.keeper.end_fetch(segment, head) { Status::Ok } else { Status::Stale };
                let (kind, len) = (ReplyKind::Staged, u64::from(slot));
                served.answer(&ReplyHead { kind, status, len, checksum: stamp, ..reply });
                served.flush().await?;
                return Ok((status == Status::Ok).then_some(staged));
            }
            unfetched => {
                let is_unreadable = matches!(unfetched, Err(Unfetched::Unreadable));
                let status = if is_unreadable { Status::Unreadable } else { Status::Stale };
                served.answer(&ReplyHead { status, len: 0, ..reply });
                return Ok(None);
            }
        };
        let bytes = (*bytes).as_ref();
        served.answer(&reply);
        served.flush().await?;
        timeout(CHUNK_TIME_MAX, served.line.send([SourceBuf::from(bytes)])).await??;
        let status = if self.keeper.end_fetch(segment, head) { Status::Ok } else { Status::Stale };
        let checksum = checksum([SourceBuf::from(bytes)]);
        self.counters.served.add_read(head.len);
        served.answer(&ReplyHead { kind: ReplyKind::Trailer, status, checksum, ..reply });
        Ok(None)
    }
}
