//! A client's end of the attach socket.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::fs::{OFlags, SealFlags, fcntl_get_seals, fcntl_getfl, fstat};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::time::timeout_at;

use super::wire::{ANSWER_BYTES, Answer, Request, Wanted};
use crate::claim::{Claims, Withdrawals};
use crate::control::ControlReader;
use crate::forks::{Changing, PrivateFile};
use crate::map::{Access, Map};
use crate::mapped::Writable;
use crate::segment::{CONTROL_SEALS, DATA_SEALS};
use crate::{Instant, MappedRange, TOKEN_BYTES_MAX, TransferError, peer, pool, populate};

/// Why a node's memory could not be mapped. The data socket may still work.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// There is no such socket here: the node is on another host, in another network namespace, or stopped.
    #[error("no node can be reached at the attach socket `{name}`: {source}")]
    Unreachable {
        /// Name of the socket.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// The node refused.
    #[error("the node at the attach socket `{name}` refused: {reason}")]
    Refused {
        /// Name of the socket.
        name: String,
        /// The node's reason.
        reason: String,
    },
    /// The socket belongs to another user, whose memory is not trusted.
    #[error("the attach socket `{name}` belongs to user {uid}, who is neither you nor root")]
    OtherUser {
        /// Name of the socket.
        name: String,
        /// The user.
        uid: u32,
    },
    /// The peer is not a node, or has another version.
    #[error("the attach socket `{name}` gave no usable memory: {what}")]
    Unusable {
        /// Name of the socket.
        name: String,
        /// The problem.
        what: String,
    },
    /// The deadline passed.
    #[error("the attach socket `{name}` did not answer in time")]
    Timeout {
        /// Name of the socket.
        name: String,
    },
}

/// A node's memory, mapped in this process.
#[derive(Debug)]
pub struct Attachment {
    name: String,
    socket: PrivateFile<StdUnixStream>,
    reader: ControlReader,
    data: Arc<Map>,
    data_file: PrivateFile,
    claims_file: PrivateFile,
    is_read_only: bool,
    /// Writable mappings of the data and the claim words, made at the first write.
    writable: OnceLock<(Arc<Map>, Claims)>,
    mapping: Mutex<()>,
}

/// Maps the memory of the node that listens on this abstract socket and owns this segment.
pub async fn attach(
    name: &str,
    segment: u64,
    client: u64,
    token: &str,
    deadline: Instant,
) -> Result<Attachment, AttachError> {
    let attached = timeout_at(deadline, connect(name, segment, client, token)).await;
    attached.map_err(|_| AttachError::Timeout { name: name.to_owned() })?
}

impl Attachment {
    /// Name of the attach socket.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Read access to the node's control segment.
    #[must_use]
    pub fn reader(&self) -> &ControlReader {
        &self.reader
    }

    /// Whether the node still has the connection open: only then are its stamps valid.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        !peer::is_closed(self.socket.as_fd())
    }

    /// Whether the node lets this client read only: then bytes are written through its data socket.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Whether a writable mapping exists.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable.get().is_some()
    }

    /// The bytes of a use in place, if it still exists and is contiguous. The mapping is read-only: a store
    /// through its address ends the process. The caller must hold a view at the node, before this call and
    /// for as long as it reads.
    #[must_use]
    pub fn view(&self, slot: u32, stamp: u64) -> Option<MappedRange> {
        MappedRange::of(&self.reader, &self.data, slot, stamp)
    }

    pub(crate) fn data(&self) -> &Arc<Map> {
        &self.data
    }

    /// The mapping that a device reads: the writable one if there is one, so that only one is registered.
    pub(super) fn data_for_device(&self) -> &Map {
        self.writable.get().map_or(&self.data, |(data, _)| data)
    }

    /// The writable mappings, made at the first write.
    pub(super) fn writable(&self) -> Result<Writable<'_>, TransferError> {
        if !self.data.is_here() {
            return Err(TransferError::Forked);
        }
        if let Some((data, claims)) = self.writable.get() {
            return Ok(Writable { data, claims });
        }
        let _one_at_a_time = self.mapping.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((data, claims)) = self.writable.get() {
            return Ok(Writable { data, claims });
        }
        let map = |file: &PrivateFile, bytes| {
            let mapped = Map::new(file.as_fd(), bytes, Access::ReadWrite);
            let mapped = mapped.and_then(|it| it.for_devices(file.as_fd())).map(Arc::new);
            mapped.map_err(|error| TransferError::Lost {
                peer: self.name.clone(),
                why: format!("its memory cannot be mapped for writing: {error}"),
            })
        };
        let data = map(&self.data_file, self.data.len())?;
        let claims = Claims::new(map(&self.claims_file, self.reader.geometry().claims_bytes())?);
        let (data, claims) = self.writable.get_or_init(|| (data, claims));
        populate::existing(data, &self.data_file);
        Ok(Writable { data, claims })
    }
}

/// Maps the claim words of the node that listens on this abstract socket and owns this segment, for the
/// master on its host. The node does not count the master as one of its clients.
pub async fn attach_claims(
    name: &str,
    segment: u64,
    token: &str,
    deadline: Instant,
) -> Result<Withdrawals, AttachError> {
    let unusable = |what: &str| AttachError::Unusable { name: name.to_owned(), what: what.to_owned() };
    let received = timeout_at(deadline, request(name, segment, 0, token, Wanted::Claims)).await;
    let received = received.map_err(|_| AttachError::Timeout { name: name.to_owned() })??;
    let [claims_file] = <[PrivateFile; 1]>::try_from(received.files)
        .map_err(|_| unusable("it did not pass one descriptor"))?;
    let claims = map_claims(&claims_file, received.answer.data_bytes, Access::ReadWrite);
    Ok(Withdrawals::new(claims.map_err(|what| unusable(&what))?))
}

/// What a node has handed over.
struct Received {
    stream: UnixStream,
    answer: Answer,
    files: Vec<PrivateFile>,
}

async fn connect(name: &str, segment: u64, client: u64, token: &str) -> Result<Attachment, AttachError> {
    let unreachable = |source| AttachError::Unreachable { name: name.to_owned(), source };
    let unusable = |what: &str| AttachError::Unusable { name: name.to_owned(), what: what.to_owned() };
    let Received { stream, answer, files } = request(name, segment, client, token, Wanted::Memory).await?;
    let [control_file, data_file, claims_file] =
        <[PrivateFile; 3]>::try_from(files).map_err(|_| unusable("it did not pass three descriptors"))?;
    let (reader, data) = map_both(&control_file, &data_file, &answer).map_err(|what| unusable(&what))?;
    if reader.geometry().segment != segment {
        return Err(unusable("it is another segment than the one asked for"));
    }
    let claims = map_claims(&claims_file, reader.geometry().claims_bytes(), Access::ReadOnly);
    let reader = reader.with_claims(Claims::new(claims.map_err(|what| unusable(&what))?));
    populate::existing(&data, &data_file);
    let is_read_only = fcntl_getfl(&data_file).map_err(|error| unreachable(error.into()))?;
    let is_read_only = is_read_only & OFlags::ACCMODE == OFlags::RDONLY;
    let socket = PrivateFile::new(stream.into_std().map_err(unreachable)?, &Changing::begin());
    let (name, writable, mapping) = (name.to_owned(), OnceLock::new(), Mutex::new(()));
    Ok(Attachment { name, socket, reader, data, data_file, claims_file, is_read_only, writable, mapping })
}

/// Asks for descriptors, and receives the answer.
async fn request(
    name: &str,
    segment: u64,
    client: u64,
    token: &str,
    wanted: Wanted,
) -> Result<Received, AttachError> {
    let unreachable = |source| AttachError::Unreachable { name: name.to_owned(), source };
    let unusable = |what: &str| AttachError::Unusable { name: name.to_owned(), what: what.to_owned() };
    if token.len() > TOKEN_BYTES_MAX {
        return Err(unusable("the token is too long"));
    }
    let mut stream = UnixStream::connect(format!("\0{name}")).await.map_err(unreachable)?;
    let uid = stream.peer_cred().map_err(unreachable)?.uid();
    if uid != 0 && uid != rustix::process::getuid().as_raw() {
        return Err(AttachError::OtherUser { name: name.to_owned(), uid });
    }
    stream.write_all(&Request::encode(client, segment, token, wanted)).await.map_err(unreachable)?;
    let (head, files) = receive(&mut stream).await.map_err(unreachable)?;
    let answer = Answer::decode(&head).map_err(unusable)?;
    if !answer.is_ok {
        let mut reason = vec![0; answer.reason_bytes];
        stream.read_exact(&mut reason).await.map_err(unreachable)?;
        let reason = String::from_utf8_lossy(&reason).into_owned();
        return Err(AttachError::Refused { name: name.to_owned(), reason });
    }
    Ok(Received { stream, answer, files })
}

/// Receives the fixed part of the answer, and the descriptors that came with it.
async fn receive(stream: &mut UnixStream) -> io::Result<([u8; ANSWER_BYTES], Vec<PrivateFile>)> {
    let mut head = [0; ANSWER_BYTES];
    let mut files = Vec::new();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let received = stream
        .async_io(Interest::READABLE, || {
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let change = Changing::begin();
            let message = recvmsg(&*stream, &mut [IoSliceMut::new(&mut head)], &mut ancillary, flags)?;
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    files.extend(descriptors.map(|it| PrivateFile::new(it, &change)));
                }
            }
            Ok(message.bytes)
        })
        .await?;
    if received == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if let Some(rest) = head.get_mut(received..) {
        stream.read_exact(rest).await?;
    }
    Ok((head, files))
}

/// Maps both segments for reading, after checking that they match the answer and are sealed.
fn map_both(
    control_file: &PrivateFile,
    data_file: &PrivateFile,
    answer: &Answer,
) -> Result<(ControlReader, Arc<Map>), String> {
    check_file(control_file, answer.control_bytes, CONTROL_SEALS, "control")?;
    check_file(data_file, answer.data_bytes, DATA_SEALS, "data")?;
    let map = |file: &PrivateFile, bytes| {
        let mapped = Map::new(file.as_fd(), bytes, Access::ReadOnly);
        let mapped = mapped.and_then(|it| it.for_devices(file.as_fd()));
        mapped.map(Arc::new).map_err(|error| format!("mapping it failed: {error}"))
    };
    let control = map(control_file, answer.control_bytes)?;
    let reader = ControlReader::open(control).ok_or("its control segment has no valid header")?;
    if reader.geometry().data_bytes != answer.data_bytes {
        return Err("its header and its answer differ".to_owned());
    }
    Ok((reader, map(data_file, answer.data_bytes)?))
}

/// Maps claim words, after checking that they are sealed.
fn map_claims(file: &PrivateFile, bytes: u64, access: Access) -> Result<Arc<Map>, String> {
    check_file(file, bytes, DATA_SEALS, "claim")?;
    let mapped = Map::new(file.as_fd(), bytes, access);
    mapped.map(Arc::new).map_err(|error| format!("mapping its claim words failed: {error}"))
}

/// A file that could shrink would crash its readers; a control segment that other processes could write would
/// prove nothing. The files of a pool cannot be sealed: they must be private to this user, or to root.
fn check_file(file: &impl AsFd, bytes: u64, seals: SealFlags, what: &str) -> Result<(), String> {
    let found = fcntl_get_seals(file).map_err(|_| format!("its {what} segment is not a memory file"))?;
    let is_pool = found == SealFlags::SEAL && pool::is_private(file);
    if !found.contains(seals) && !is_pool {
        return Err(format!("its {what} segment is not sealed"));
    }
    let size = fstat(file).map(|stat| stat.st_size).ok().and_then(|size| u64::try_from(size).ok());
    if size != Some(bytes) {
        return Err(format!("its {what} segment does not have the announced size"));
    }
    Ok(())
}
