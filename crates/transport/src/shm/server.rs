//! The node's end of the attach socket.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
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

use super::wire::{Answer, REQUEST_BYTES, Request};
use crate::peer;
use crate::pending::Pending;
use crate::segment::NodeMemory;

/// The most connections to one attach socket.
const CONNECTIONS_MAX: usize = 8192;
/// The most connections at a time that have not proven yet that they may attach; one more ends the oldest.
pub const PENDING_MAX: usize = 256;
/// How long a client may take to say who it is.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(10);
/// How long to rest when no connection can be accepted, which means that descriptors have run out.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// A client that wants the memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attach {
    /// Who it says it is.
    pub client: u64,
    /// What it shows to prove that it may.
    pub token: String,
    /// Its process, as the kernel says.
    pub pid: i32,
    /// Which memory: the node's, or a [stage](Stages).
    pub segment: u64,
}

/// Decides who may attach; the text of a refusal is shown to the client. It is asked last, and before
/// anything is handed over: whoever it lets in is watched, and its death is reported.
pub type Authorise = Box<dyn Fn(&Attach) -> Result<(), String> + Send + Sync>;

/// Finds the memory through which a disk of that name hands its bytes over. Who maps it holds nothing there,
/// so nobody need watch it.
pub type Stages = Box<dyn Fn(u64) -> Option<Arc<NodeMemory>> + Send + Sync>;

/// What becomes of attached clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It has the memory.
    Attached {
        /// Who.
        client: u64,
        /// Its process.
        pid: i32,
    },
    /// It closed its end. A hint: the process may live on, with the memory mapped.
    HungUp {
        /// Who.
        client: u64,
    },
    /// Its process is dead, and nothing it had mapped is mapped any more. Proof. The last event of an
    /// attachment.
    Dead {
        /// Who.
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
    stages: Stages,
    events: mpsc::Sender<Event>,
    watched: Mutex<Watched>,
    pending: Arc<Pending>,
}

#[derive(Default)]
struct Watched {
    next: u64,
    /// By attachment: the client, and what ends the watching when it is dropped.
    attachments: BTreeMap<u64, (u64, oneshot::Sender<()>)>,
}

impl Server {
    /// Hands out this memory. The receiver of the events must keep receiving.
    #[must_use]
    pub fn new(memory: Arc<NodeMemory>, authorise: Authorise, events: mpsc::Sender<Event>) -> Arc<Self> {
        Self::with_stages(memory, authorise, Box::new(|_| None), events)
    }

    /// The same beside disks, each with memory of its own to hand its bytes over.
    #[must_use]
    pub fn with_stages(
        memory: Arc<NodeMemory>,
        authorise: Authorise,
        stages: Stages,
        events: mpsc::Sender<Event>,
    ) -> Arc<Self> {
        let (watched, pending) = (Mutex::default(), Pending::new(PENDING_MAX));
        Arc::new(Self { memory, authorise, stages, events, watched, pending })
    }

    /// Serves until it is dropped; that ends every connection and all watching.
    pub async fn run(self: Arc<Self>, listener: UnixListener) {
        let mut tasks = JoinSet::new();
        loop {
            let accepted = listener.accept().await;
            while let Some(ended) = tasks.try_join_next() {
                if let Err(error) = ended {
                    tracing::error!(%error, "the task of an attach connection broke down");
                }
            }
            match accepted {
                Ok((stream, _)) => {
                    let is_full = tasks.len() >= CONNECTIONS_MAX;
                    tasks.spawn(Arc::clone(&self).serve(stream, is_full));
                }
                Err(error) => {
                    tracing::warn!(%error, "no connection could be accepted on the attach socket");
                    tokio::time::sleep(ACCEPT_REST).await;
                }
            }
        }
    }

    /// Ends the attachments of a client that has said by other means that it will not touch the memory again.
    /// Its death is then no longer reported.
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
            Ok(Err(refusal)) => {
                tracing::debug!(%refusal, "an attach request was refused");
                // The peer may be gone already; there is nobody else to tell.
                let _ = timeout(REQUEST_TIME_MAX, stream.write_all(&Answer::refused(&refusal))).await;
                return;
            }
            Err(_) => return,
        };
        drop(pending);
        let (attach, memory, process) = admitted;
        if attach.segment != self.memory.geometry().segment {
            return attend(stream, &memory).await;
        }
        let (ended, end) = oneshot::channel();
        let attachment = self.watch(attach.client, ended);
        // Whether it got the memory or not is not always known, so that it is watched in either case.
        if let Err(error) = hand_over(&stream, &memory).await {
            tracing::debug!(%error, client = attach.client, "the memory may not have arrived");
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

    /// Hears the request and decides. `Err` is a reason for the client.
    async fn admit(
        &self,
        stream: &mut UnixStream,
        is_full: bool,
    ) -> Result<(Attach, Arc<NodeMemory>, AsyncFd<OwnedFd>), String> {
        let cut_short = |error: io::Error| format!("the request could not be read: {error}");
        let mut head = [0; REQUEST_BYTES];
        stream.read_exact(&mut head).await.map_err(cut_short)?;
        let request = Request::decode(&head)?;
        let mut token = vec![0; request.token_bytes];
        stream.read_exact(&mut token).await.map_err(cut_short)?;
        let token = String::from_utf8(token).map_err(|_| "the token is not text")?;
        if is_full {
            return Err(format!("{CONNECTIONS_MAX} processes are attached already"));
        }
        let peer = stream.peer_cred().map_err(|error| format!("you cannot be identified: {error}"))?;
        let own = rustix::process::getuid().as_raw();
        if peer.uid() != own {
            return Err(format!("this memory is for user {own} only, and you are user {}", peer.uid()));
        }
        let (here, asked) = (self.memory.geometry().segment, request.segment);
        let memory = if asked == here { Some(Arc::clone(&self.memory)) } else { (self.stages)(asked) };
        let other = || format!("this is segment {here:016x}, and you asked for {asked:016x}");
        let memory = memory.ok_or_else(other)?;
        let pid = peer.pid().ok_or("the kernel does not say which process you are")?;
        let attach = Attach { client: request.client, token, pid, segment: asked };
        (self.authorise)(&attach)?;
        let unwatched = |error: io::Error| format!("your process cannot be watched: {error}");
        let process = peer::process_handle(stream.as_fd(), pid).map_err(unwatched)?;
        Ok((attach, memory, process))
    }

    /// Reports what becomes of an attached client, to the end.
    async fn events_until_dead(
        &self,
        attach: &Attach,
        mut stream: UnixStream,
        process: AsyncFd<OwnedFd>,
        mut end: oneshot::Receiver<()>,
    ) {
        let client = attach.client;
        self.report(Event::Attached { client, pid: attach.pid }).await;
        let mut byte = [0];
        tokio::select! {
            biased;
            // Who was forgotten before it died is not reported, whichever is noticed first.
            _ = &mut end => return,
            _ = process.readable() => return self.report(Event::Dead { client }).await,
            // Nothing is ever said on this socket after the answer: bytes end it as well as silence does.
            _ = stream.read(&mut byte) => {}
        }
        drop(stream);
        self.report(Event::HungUp { client }).await;
        tokio::select! {
            biased;
            _ = &mut end => {}
            _ = process.readable() => self.report(Event::Dead { client }).await,
        }
    }

    async fn report(&self, event: Event) {
        if self.events.send(event).await.is_err() {
            tracing::error!("nobody hears what becomes of attached clients");
        }
    }
}

/// Sends the answer with the descriptors.
async fn hand_over(stream: &UnixStream, memory: &NodeMemory) -> io::Result<()> {
    let geometry = memory.geometry();
    let answer = Answer::accepted(geometry.segment, geometry.control_bytes(), geometry.data_bytes);
    let descriptors = [memory.control_file.as_fd(), memory.data_file.as_fd(), memory.claims_file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let sent = stream.async_io(Interest::WRITABLE, || {
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        Ok(sendmsg(stream, &[IoSlice::new(&answer)], &mut ancillary, flags)?)
    });
    // A fresh socket has room for an answer of this size; one that has not is not worth serving.
    let sent = timeout(REQUEST_TIME_MAX, sent).await??;
    if sent == answer.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

/// Hands a stage over, and stays for as long as both are there: so each sees the other's end.
async fn attend(mut stream: UnixStream, memory: &NodeMemory) {
    if let Err(error) = hand_over(&stream, memory).await {
        return tracing::debug!(%error, "a stage may not have arrived");
    }
    let mut byte = [0];
    // Nothing is ever said on this socket after the answer, and what became of it need not be known.
    let _end = stream.read(&mut byte).await;
}
