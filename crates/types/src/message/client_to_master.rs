//! What a client asks of the master: names, lookups, lifetimes and streams.

use super::{
    Ack, Ahead, Await, Backlog, CachedReads, CommitItem, DropPins, EndStream, Explain, Found, Full, Lease,
    Measured, NodeInfo, OpenStream, Pin, PolicyChange, Prefetch, Pull, PutOptions, Quota, Release,
};
use crate::{ClusterId, Generation, Key, Keys, RequestId, Reservation, SegmentId};

/// A request of a client to the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientToMaster {
    /// Reserves memory for new objects.
    Reserve(Reserve),
    /// Names objects that the client has written, without a request to their node.
    Publish(Publish),
    /// Resolves objects.
    Resolve(Resolve),
    /// Asks whether objects exist.
    Exists(Exists),
    /// Removes objects and frees their memory.
    Delete(Delete),
    /// Removes all objects that match a pattern.
    DeleteMatching(DeleteMatching),
    /// Lists objects, a page at a time.
    List(List),
    /// Describes the cluster.
    Stat,
    /// Shows the client that the connection works, and the master what the client has measured.
    Ping(Ping),
    /// Protects objects from eviction, or ends that.
    Pin(Pin),
    /// Ends every pin of an owner.
    DropPins(DropPins),
    /// Changes the limits of a namespace.
    SetPolicy(PolicyChange),
    /// Declares members lost that are not connected.
    ForgetNode(ForgetNode),
    /// Lets the members of another cluster join this one.
    AdmitCluster(AdmitCluster),
    /// Waits until the namespace uses less, or more, than a number of bytes.
    Await(Await),
    /// Asks why objects exist, or what removed them.
    Why(Explain),
    /// Takes leases of samples.
    Lease(Lease),
    /// Ends leases.
    Release(Release),
    /// Lists the leases that the client knows. It is the first request on a new connection. All other leases
    /// of the client end, because the replies that granted them were lost.
    KeepLeases(Vec<u64>),
    /// Acknowledges that samples were consumed.
    Ack(Ack),
    /// The client no longer waits for an earlier request on this connection. A request that still waits is
    /// answered now, as if its time were up.
    Cancel(RequestId),
    /// Opens a stream, or asks for its state. A consumer whose window can never be filled is refused.
    OpenStream(OpenStream),
    /// Ends a stream: no more samples are appended.
    EndStream(EndStream),
    /// Leases the next samples of a stream that no consumer of the group has leased or acknowledged.
    Pull(Pull),
    /// Promotes objects that only a disk holds, before they are read.
    Prefetch(Prefetch),
}

/// See [`ClientToMaster::Ping`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ping {
    /// The growth of each histogram since the last ping that was answered. The core ignores it.
    pub measured: Vec<Measured>,
}

/// See [`ClientToMaster::Reserve`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reserve {
    /// One per object.
    pub items: Vec<ReserveItem>,
    /// Nodes that the client could not reach, and that are not to be used.
    pub avoid: Vec<SegmentId>,
    /// How long to wait for free memory before the outcome is `Full`.
    pub wait_ms: u64,
    /// If not 0, this many offers are preallocated for each item, for later objects: the key only says how
    /// long theirs may be. The client claims an offer before it writes there; until then the node may recall
    /// it. There are fewer where free memory is short or the namespace has a quota.
    pub spare: u32,
    /// See [`Resolve::report_wait_ms`]. A put waits for reports if it must not replace an object, or if it is
    /// for a stream.
    pub report_wait_ms: u64,
}

/// One object that is to be put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReserveItem {
    /// Its key.
    pub key: Key,
    /// Its size in bytes.
    pub len: u64,
    /// How it is stored.
    pub options: PutOptions,
}

/// The reply to [`ClientToMaster::Reserve`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// In the order of the items.
    pub items: Vec<ReserveOutcome>,
    /// Every node that the outcomes name.
    pub nodes: Vec<NodeInfo>,
    /// The nodes among them at which a client may [`Publish`]: what the master sends them arrives even if the
    /// master dies.
    pub same_host: Vec<SegmentId>,
}

/// The outcome of one [`ReserveItem`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReserveOutcome {
    /// Memory is reserved on one or more nodes. The first is the home node, where the client commits.
    Space(Vec<Reservation>),
    /// The key exists, and the put must not replace it.
    Exists(Generation),
    /// No node has space, and everything left is pinned, leased, in view or reserved.
    Full(Full),
    /// The item is invalid.
    Invalid(String),
    /// The object would exceed the quota of the namespace.
    OverQuota(Quota),
    /// The stream is at its high mark: the put must wait for its consumers.
    Behind(Backlog),
    /// No storage node is connected.
    NoNode,
}

/// See [`ClientToMaster::Publish`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Publish {
    /// One per object.
    pub items: Vec<PublishItem>,
    /// See [`Commit::wait_ms`](super::Commit::wait_ms).
    pub wait_ms: u64,
}

/// One object whose bytes are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishItem {
    /// The node that holds it.
    pub home: SegmentId,
    /// What a commit at that node would say.
    pub item: CommitItem,
}

/// See [`ClientToMaster::Resolve`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolve {
    /// The objects.
    pub keys: Vec<Key>,
    /// Counts as a use: moves the objects to the recent end of the eviction order.
    pub touch: bool,
    /// Protects the objects from eviction for the lease time (and, in strict mode, from unforced removal).
    pub lease: bool,
    /// Asks for locations, not only for sizes.
    pub locate: bool,
    /// How long to wait for promotions that have begun, before the reply names the copy on the disk.
    pub wait_ms: u64,
    /// How long to wait for members that have not reported to a restarted master.
    pub report_wait_ms: u64,
    /// Which part of a client's call this request is, for counters only.
    pub part: CallPart,
}

/// Which part of a client's call a [`Resolve`] is. The default is a request that is the whole call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallPart {
    /// The number of objects of the call, if it is greater than that of the request: the client reads the
    /// others at cached locations, and reports them with [`Exists::reads`].
    pub items: u64,
    /// Whether the call has sent an earlier request.
    pub is_more: bool,
    /// How many of the keys an earlier request of the call contained; they are first in the list.
    pub repeats: u64,
}

/// The reply to [`ClientToMaster::Resolve`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// In the order of the keys.
    pub items: Vec<ResolveOutcome>,
    /// Every node that the outcomes name.
    pub nodes: Vec<NodeInfo>,
}

/// The outcome of one key of a [`Resolve`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolveOutcome {
    /// The object can be read.
    Found(Found),
    /// There is no such object.
    Absent,
    /// The object exists, but these nodes, which hold it, cannot be reached.
    Unavailable(Vec<String>),
}

/// See [`ClientToMaster::Exists`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exists {
    /// The objects.
    pub keys: Keys,
    /// See [`Resolve::touch`].
    pub touch: bool,
    /// See [`Resolve::lease`].
    pub lease: bool,
    /// Which objects to promote if only a disk holds them. The reply is the same, and does not wait.
    pub ahead: Ahead,
    /// Gets that the client has served from cached locations since its last report, for counters only.
    pub reads: CachedReads,
    /// See [`Resolve::report_wait_ms`].
    pub report_wait_ms: u64,
}

/// The outcome of one key of an [`Exists`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// There is no such object.
    #[default]
    Absent,
    /// It can be read.
    Here,
    /// It exists, but the nodes that hold it cannot be reached; a [`Resolve`] names them.
    Unavailable,
}

/// See [`ClientToMaster::Delete`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delete {
    /// The objects.
    pub keys: Vec<Key>,
    /// Removes leased objects even in strict mode.
    pub force: bool,
    /// How long to wait for the nodes to confirm, before the outcome is `Unconfirmed`.
    pub wait_ms: u64,
}

/// The outcome of one key of a [`Delete`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeleteOutcome {
    /// It is removed: every stamp of its copies is withdrawn.
    Deleted,
    /// There was no such object.
    Absent,
    /// A lease protects it (only in strict mode, and not if forced).
    Leased,
    /// The name is removed, but these nodes have not confirmed the retire. They must before they serve again.
    Unconfirmed(Vec<String>),
}

/// A set of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Every key of the namespace.
    All,
    /// Keys with this prefix.
    Prefix(Vec<u8>),
    /// Keys in which this regular expression matches.
    Regex(String),
}

/// See [`ClientToMaster::DeleteMatching`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteMatching {
    /// The objects.
    pub pattern: Pattern,
    /// See [`Delete::force`].
    pub force: bool,
    /// See [`Delete::wait_ms`].
    pub wait_ms: u64,
}

/// The reply to [`ClientToMaster::DeleteMatching`] and [`ClientToMaster::DropPins`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletedMatching {
    /// The number of objects that matched.
    pub count: u64,
    /// Nodes that have not confirmed.
    pub unconfirmed: Vec<String>,
}

/// See [`ClientToMaster::List`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// The objects.
    pub pattern: Pattern,
    /// Only objects that this owner pins.
    pub pinned_by: Option<String>,
    /// The cursor of the previous page; zero for the first.
    pub cursor: u64,
    /// The greatest number of objects on the page.
    pub limit: u32,
    /// See [`Resolve::report_wait_ms`].
    pub report_wait_ms: u64,
}

/// A page of objects. Their order is arbitrary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// The objects.
    pub items: Vec<ListItem>,
    /// The cursor of the next page; zero if this is the last.
    pub cursor: u64,
}

/// One object of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListItem {
    /// Its key.
    pub key: Key,
    /// Which put of the key.
    pub generation: Generation,
    /// Its size in bytes.
    pub len: u64,
    /// The number of copies.
    pub replicas: u32,
    /// The owners of its pins.
    pub pins: Vec<String>,
    /// See [`Found::expires_in_ms`](super::Found::expires_in_ms).
    pub expires_in_ms: Option<u64>,
}

/// See [`ClientToMaster::AdmitCluster`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdmitCluster {
    /// The other cluster.
    pub cluster: ClusterId,
}

/// See [`ClientToMaster::ForgetNode`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForgetNode {
    /// The name of the node or disk, or its segment id in hexadecimal.
    pub name: String,
}

/// The members that were declared lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// How many had that name.
    pub members: u64,
    /// Objects that only they had.
    pub objects: u64,
}
