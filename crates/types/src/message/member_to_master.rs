//! Requests of a member (a node's memory or a disk) to the master: registration, its objects, and changes.

use super::{CommitItem, CommitOutcome, DrainReport, Dropped, Measured, NodeInfo, Refusal, Reply, Usage};
use crate::{ClientId, ClusterId, Generation, Key, SlotRef, attributes::Attributes};

/// A request of a node or a disk to the master. All but `Register` require a registration on the same
/// connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberToMaster {
    /// Joins the cluster.
    Register(Box<Register>),
    /// Announces the objects that the joining member holds, a page at a time.
    Announce(Announce),
    /// Shows that the member is alive.
    Heartbeat(Box<Heartbeat>),
    /// A node asks which prepared objects are committed.
    Decide(Decide),
    /// A node reports reservations that end without the master. The node has processed everything that was
    /// published before the reply.
    Released(Released),
    /// A node has proof that a client's process is dead.
    ClientDied(ClientId),
    /// A disk has dropped copies without being asked.
    Dropped(Dropped),
    /// A node reports how far it is with a drain job.
    Drained(Box<DrainReport>),
}

/// A reply that the master may send to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberReply {
    /// To `Register`.
    Registered(Registered),
    /// To `Announce`.
    Announced(Announced),
    /// To `Decide`, in the order of the items.
    Decided(Vec<CommitOutcome>),
    /// To requests without a result.
    Done,
    /// To a request that was refused as a whole.
    Refused(Refusal),
}

impl MemberReply {
    /// `None` if no request of a member has such a reply.
    #[must_use]
    pub fn new(reply: Reply) -> Option<Self> {
        Some(match reply {
            Reply::Registered(registered) => Self::Registered(registered),
            Reply::Announced(announced) => Self::Announced(announced),
            Reply::Decided(outcomes) => Self::Decided(outcomes),
            Reply::Done => Self::Done,
            Reply::Refused(refusal) => Self::Refused(refusal),
            Reply::Welcome(_)
            | Reply::Reserved(_)
            | Reply::Published(_)
            | Reply::Resolved(_)
            | Reply::Present(_)
            | Reply::Deleted(_)
            | Reply::DeletedMatching(_)
            | Reply::Listed(_)
            | Reply::Stat(_)
            | Reply::Allocated(_)
            | Reply::Settled(_)
            | Reply::Inspected(_)
            | Reply::Pinned(_)
            | Reply::Forgotten(_)
            | Reply::Awaited(_)
            | Reply::Why(_)
            | Reply::Leased(_)
            | Reply::Acked(_)
            | Reply::Stream(_)
            | Reply::Pulled(_)
            | Reply::Prefetched(_)
            | Reply::Moved(_)
            | Reply::Committed(_)
            | Reply::ViewsBegun(_) => return None,
        })
    }
}

/// See [`MemberToMaster::Register`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Register {
    /// How to reach it.
    pub info: NodeInfo,
    /// Its usage.
    pub usage: Usage,
    /// The epoch of the master that it last served; zero if none.
    pub epoch: u64,
    /// From a disk: no stamp from this one on was used.
    pub stamps: u64,
    /// The [`Registered::instance`] of the master of that epoch: its instance number.
    pub instance: u64,
    /// The cluster that it belongs to. Zero from a new member, and from members of earlier releases.
    pub cluster: ClusterId,
}

/// The reply to [`MemberToMaster::Register`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    /// The epoch of the master.
    pub epoch: u64,
    /// The master had declared the member lost: it must retire everything it holds before it serves.
    pub discard: bool,
    /// Pending retires, which the member must apply before it serves.
    pub retire: Vec<SlotRef>,
    /// Objects that were published while the member may not have received that. It commits them before it
    /// serves.
    pub commit: Vec<Record>,
    /// A random number that the master drew when it started: two masters of one epoch differ in it.
    pub instance: u64,
    /// The cluster that the member belongs to from now on. Zero from masters of earlier releases.
    pub cluster: ClusterId,
}

/// See [`MemberToMaster::Announce`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announce {
    /// Committed objects.
    pub items: Vec<Record>,
    /// This is the last page: the member serves from now on.
    pub last: bool,
}

/// What a member must do before its next request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announced {
    /// Copies to be retired: a newer object has their name, or they were removed while the member was away.
    pub retire: Vec<SlotRef>,
    /// There are more, although the member has announced everything: it asks for them with an empty page.
    pub more: bool,
}

/// The description of an object that a member holds. It suffices to rebuild the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The copy on the announcing member.
    pub slot_ref: SlotRef,
    /// The namespace.
    pub namespace: String,
    /// The key.
    pub key: Key,
    /// Which put of the key.
    pub generation: Generation,
    /// Its size in bytes.
    pub len: u64,
    /// Its attributes: pins, and how it is consumed.
    pub attributes: Attributes,
}

/// See [`MemberToMaster::Heartbeat`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// The usage of the member.
    pub usage: Usage,
    /// Clients with views of retired objects, those that hold most memory first, at most
    /// [`VIEWERS_MAX`](crate::VIEWERS_MAX).
    pub viewers: Vec<Viewer>,
    /// The growth of each histogram since the last heartbeat. The shells fill it in and read it.
    pub measured: Vec<Measured>,
    /// Who pays for memory of retired objects, those that hold most of it first, at most
    /// [`HELD_NAMESPACES_MAX`](crate::HELD_NAMESPACES_MAX).
    pub held: Vec<HeldBy>,
    /// Views that were not begun since the node started, because their client had its share.
    pub views_refused: u64,
    /// The use of the limits of the node's sockets. The shells fill it in and read it.
    pub limits: Vec<LimitUse>,
}

/// The names of the limits of a node's sockets: [`LimitUse::limit`] is an index. New ones come at the end.
pub const SOCKET_LIMITS: [&str; 10] = [
    "request_connections",
    "request_unauthenticated",
    "failed_credentials_per_peer",
    "data_connections",
    "data_connections_per_client",
    "data_unauthenticated",
    "attach_connections",
    "attach_unauthenticated",
    "request_connections_per_token",
    "data_connections_per_token",
];

/// The use of one limit of a node's sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitUse {
    /// Which of [`SOCKET_LIMITS`]. A master ignores those that it does not know.
    pub limit: u64,
    /// Its value.
    pub max: u64,
    /// The current use.
    pub used: u64,
    /// How often it was reached since the node started.
    pub reached: u64,
}

/// The memory of retired objects of one namespace that clients still view or copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldBy {
    /// Its name.
    pub namespace: String,
    /// That memory.
    pub bytes: u64,
}

/// A client with views of retired objects, whose memory cannot be reclaimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Viewer {
    /// The client.
    pub client: ClientId,
    /// The number of objects.
    pub objects: u64,
    /// The memory that they use.
    pub bytes: u64,
}

/// See [`MemberToMaster::Decide`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decide {
    /// One per prepared object.
    pub items: Vec<DecideItem>,
    /// See [`Commit::wait_ms`](super::Commit::wait_ms).
    pub wait_ms: u64,
}

/// One prepared object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecideItem {
    /// The namespace.
    pub namespace: String,
    /// The client that wrote it.
    pub client: ClientId,
    /// The client's commit.
    pub item: CommitItem,
}

/// See [`MemberToMaster::Released`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// The reservations.
    pub slot_refs: Vec<SlotRef>,
    /// The usage of the node.
    pub usage: Usage,
    /// See [`Heartbeat::held`].
    pub held: Vec<HeldBy>,
}
