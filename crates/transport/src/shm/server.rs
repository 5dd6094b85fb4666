//! The node's end of the attach socket.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdUnixListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::wire::{Answer, REQUEST_BYTES, Request, Wanted};
use crate::peer;
use crate::pending::{Connections, Denied, LimitUse, Pending};
use crate::segment::NodeMemory;

/// Maximum number of connections to one attach socket.
const CONNECTIONS_MAX: usize = 8192;
/// Maximum number of unauthenticated connections; one more closes the oldest.
pub const PENDING_MAX: usize = 256;
/// Time limit of a client's request.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);
/// Pause after a failed accept, which means that descriptors have run out.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// A request to attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachRequest {
    /// The client's id.
    pub client: u64,
    /// The client's token.
    pub token: String,
    /// The client's process id, from the kernel.
    pub pid: i32,
    /// The client's user, from the kernel.
    pub uid: u32,
    /// The requested memory: the node's, or a [staging segment](StagingSegments).
    pub segment: u64,
    /// Only its claim words are requested, by the master.
    pub is_master: bool,
}

/// Decides whether a client may attach, and when it learns of a refusal. It is called last and before
/// the memory is handed over: an accepted client is watched, and its death is reported.
pub type Authorise = Box<dyn Fn(&AttachRequest) -> Result<(), Denied> + Send + Sync>;

/// Finds the staging segment of a disk. A client that maps it owns nothing there, so it is not watched.
pub type StagingSegments = Box<dyn Fn(u64) -> Option<Arc<NodeMemory>> + Send + Sync>;

/// Changes of attached clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The client has the memory.
    Attached {
        /// The client.
        client: u64,
        /// Its process id.
        pid: i32,
    },
    /// The client closed its connection. A hint: the process may still have the memory mapped.
    Disconnected {
        /// The client.
        client: u64,
    },
    /// The client's process is dead, and its mappings are gone. Proof. The last event of an attachment.
    Dead {
        /// The client.
        client: u64,
    },
}

/// Listens on an abstract Unix socket of this name.
pub fn listen(name: &str) -> io::Result<UnixListener> {
    let listener = StdUnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Hands a node's memory to processes of its own user, and watches them.
pub struct Server {
    memory: Arc<NodeMemory>,
    authorise: Authorise,
    staging_segments: StagingSegments,
    events: mpsc::Sender<Event>,
    watched: Mutex<Watched>,
    pending: Arc<Pending>,
    connections: Arc<Connections>,
}

/// A request that was accepted.
struct Admitted {
    version: u32,
    attach: AttachRequest,
    memory: Arc<NodeMemory>,
    process: AsyncFd<OwnedFd>,
}

#[derive(Default)]
struct Watched {
    next: u64,
    /// By attachment: the client, and the sender whose drop ends the watching.
    attachments: BTreeMap<u64, (u64, oneshot::Sender<()>)>,
}

impl Server {
    /// Serves this memory. The receiver of the events must keep receiving.
    #[must_use]
    pub fn new(memory: Arc<NodeMemory>, authorise: Authorise, events: mpsc::Sender<Event>) -> Arc<Self> {
        Self::with_staging(memory, authorise, Box::new(|_| None), events)
    }

    /// The same with disks, each with a staging segment.
    #[must_use]
    pub fn with_staging(
        memory: Arc<NodeMemory>,
        authorise: Authorise,
        staging_segments: StagingSegments,
        events: mpsc::Sender<Event>,
    ) -> Arc<Self> {
        let (watched, pending) = (Mutex::default(), Pending::new(PENDING_MAX));
        let connections = Connections::new(CONNECTIONS_MAX);
        Arc::new(Self { memory, authorise, staging_segments, events, watched, pending, connections })
    }

    /// The limits of connections, and of those without a valid request.
    #[must_use]
    pub fn limits(&self) -> [LimitUse; 2] {
        [self.connections.limit(), self.pending.limit()]
    }

    /// Serves until the future is dropped, which ends every connection and all watching.
    pub async fn run(self: Arc<Self>, listener: UnixListener) {
        let mut tasks = JoinSet::new();
        loop {
            let accepted = listener.accept().await;
            while let Some(ended) = tasks.try_join_next() {
                if let Err(error) = ended {
                    tracing::error!(%error, "the task of an attach connection panicked");
                }
            }
            match accepted {
                Ok((stream, _)) => {
                    let (server, connected) = (Arc::clone(&self), self.connections.enter());
                    tasks.spawn(async move {
                        server.serve(stream, connected.is_surplus).await;
                        drop(connected);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "accept failed on the attach socket");
                    tokio::time::sleep(ACCEPT_REST).await;
                }
            }
        }
    }

    /// Ends the attachments of a client that has promised by other means not to access the memory again. Its
    /// death is no longer reported.
    pub fn forget(&self, client: u64) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.attachments.retain(|_, (watched_client, _)| *watched_client != client);
    }

    async fn serve(self: Arc<Self>, mut stream: UnixStream, is_full: bool) {
        let cut = Arc::new(Notify::new());
        let pending = self.pending.enter(&cut);
        let admitted = tokio::select! {
            biased;
            () = cut.notified() => return,
            admitted = timeout(REQUEST_TIME_MAX, self.admit(&mut stream, is_full)) => admitted,
        };
        let admitted = match admitted {
            Ok(Ok(admitted)) => admitted,
            Ok(Err(denied)) => {
                let reason = tokio::select! {
                    biased;
                    () = cut.notified() => return,
                    reason = denied.reason_in_time() => reason,
                };
                let Some(refusal) = reason else { return };
                tracing::debug!(%refusal, "attach request refused");
                // The peer may have closed the connection already.
                let _ = timeout(REQUEST_TIME_MAX, stream.write_all(&Answer::refused(&refusal))).await;
                return;
            }
            Err(_) => return,
        };
        drop(pending);
        let Admitted { version, attach, memory, process } = admitted;
        if attach.is_master {
            return hand_over_claims(&stream, version, &memory).await;
        }
        if attach.segment != self.memory.geometry().segment {
            return serve_staging(stream, version, &memory, attach.client).await;
        }
        let (ended, end) = oneshot::channel();
        let attachment = self.watch(attach.client, ended);
        // Whether the client received the memory is not always known, so it is watched in either case.
        if let Err(error) = hand_over(&stream, version, &memory, attach.client).await {
            tracing::debug!(%error, client = attach.client, "the memory may not have been received");
        }
        self.events_until_dead(&attach, stream, process, end).await;
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.attachments.remove(&attachment);
    }

    fn watch(&self, client: u64, ended: oneshot::Sender<()>) -> u64 {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.next += 1;
        let attachment = watched.next;
        watched.attachments.insert(attachment, (client, ended));
        attachment
    }

    /// Receives and checks a request.
    async fn admit(&self, stream: &mut UnixStream, is_full: bool) -> Result<Admitted, Denied> {
        let cut_short = |error: io::Error| format!("the request could not be read: {error}");
        let mut head = [0; REQUEST_BYTES];
        stream.read_exact(&mut head).await.map_err(cut_short)?;
        let request = Request::decode(&head)?;
        let mut token = vec![0; request.token_bytes];
        stream.read_exact(&mut token).await.map_err(cut_short)?;
        let token = String::from_utf8(token).map_err(|_| "the token is not text")?;
        if is_full {
            return Err(format!("{CONNECTIONS_MAX} processes are already attached").into());
        }
        let peer = stream.peer_cred().map_err(|error| format!("the peer cannot be identified: {error}"))?;
        let own = rustix::process::getuid().as_raw();
        let uid = peer.uid();
        if uid != own {
            return Err(format!("this memory is for user {own} only, and the peer is user {uid}").into());
        }
        let (here, asked) = (self.memory.geometry().segment, request.segment);
        let memory =
            if asked == here { Some(Arc::clone(&self.memory)) } else { (self.staging_segments)(asked) };
        let other = || format!("this is segment {here:016x}, not {asked:016x}");
        let memory = memory.ok_or_else(other)?;
        let pid = peer.pid().ok_or("the kernel does not know the peer's process")?;
        let is_master = request.wanted == Wanted::Claims;
        let attach = AttachRequest { client: request.client, token, pid, uid, segment: asked, is_master };
        (self.authorise)(&attach)?;
        let unwatched = |error: io::Error| format!("the peer's process cannot be watched: {error}");
        let process = peer::process_handle(stream.as_fd(), pid).map_err(unwatched)?;
        Ok(Admitted { version: request.version, attach, memory, process })
    }

    /// Reports the events of an attached client until its death.
    async fn events_until_dead(
        &self,
        attach: &AttachRequest,
        mut stream: UnixStream,
        process: AsyncFd<OwnedFd>,
        mut end: oneshot::Receiver<()>,
    ) {
        let client = attach.client;
        self.report(Event::Attached { client, pid: attach.pid }).await;
        let mut byte = [0];
        tokio::select! {
            biased;
            // A client that was forgotten before it died is not reported, whichever is noticed first.
            _ = &mut end => return,
            _ = process.readable() => return self.report(Event::Dead { client }).await,
            // The client sends nothing after its request: bytes end the connection as well as a close.
            _ = stream.read(&mut byte) => {}
        }
        drop(stream);
        self.report(Event::Disconnected { client }).await;
        tokio::select! {
            biased;
            _ = &mut end => {}
            _ = process.readable() => self.report(Event::Dead { client }).await,
        }
    }

    async fn report(&self, event: Event) {
        if self.events.send(event).await.is_err() {
            tracing::error!("the receiver of attach events is gone");
        }
    }
}

/// Sends the answer with the descriptors.
async fn hand_over(stream: &UnixStream, version: u32, memory: &NodeMemory, client: u64) -> io::Result<()> {
    let geometry = memory.geometry();
    let answer = Answer::accepted(version, &geometry, Wanted::Memory);
    let owned = memory.descriptors(client)?;
    send(stream, &answer, &[owned[0].as_fd(), owned[1].as_fd(), owned[2].as_fd()]).await
}

/// Sends the master the descriptor of the claim words. It holds no memory, so it is not watched.
async fn hand_over_claims(stream: &UnixStream, version: u32, memory: &NodeMemory) {
    let answer = Answer::accepted(version, &memory.geometry(), Wanted::Claims);
    let sent = match memory.claims_descriptor() {
        Ok(owned) => send(stream, &answer, &[owned.as_fd()]).await,
        Err(error) => Err(error),
    };
    if let Err(error) = sent {
        tracing::debug!(%error, "the claim words may not have been received");
    }
}

async fn send(stream: &UnixStream, answer: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let sent = stream.async_io(Interest::WRITABLE, || {
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        Ok(sendmsg(stream, &[IoSlice::new(answer)], &mut ancillary, flags)?)
    });
    // A new socket has buffer space for an answer of this size.
    let sent = timeout(REQUEST_TIME_MAX, sent).await??;
    if sent == answer.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Hands over a staging segment, and keeps the connection open so that each side sees the other's end.
async fn serve_staging(mut stream: UnixStream, version: u32, memory: &NodeMemory, client: u64) {
    if let Err(error) = hand_over(&stream, version, memory, client).await {
        return tracing::debug!(%error, "a staging segment may not have been received");
    }
    let mut byte = [0];
    // The client sends nothing after its request.
    let _end = stream.read(&mut byte).await;
}
