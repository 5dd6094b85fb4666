//! What the parties say to each other, as plain values.
//!
//! `proto` turns these into bytes and back; nothing else knows how they look on the wire. Every request
//! takes many items, and each item has an outcome of its own: there is no single-object form.
//!
//! Who says what:
//!
//! | from → to       | requests |
//! |-----------------|----------|
//! | client → master | `Reserve`, `Publish`, `Resolve`, `Exists`, `Delete`, `DeleteMatching`, `List`, |
//! | | `Stat`, `Heartbeat`, `Pin`, `DropPins`, `SetPolicy`, `Await`, `Why`, `Lease`, `Release`, |
//! |                 | `KeepLeases`, `Ack`, `Cancel`, `Prefetch`, `OpenStream`, `EndStream`, `Pull`, |
//! |                 | `ForgetNode` |
//! | node → master   | `Register`, `Announce`, `Decide`, `Heartbeat`, `Released`, `ClientDied`, |
//! |                 | `Goodbye` |
//! | master → node   | `Allocate`, `Settle`, `Retire`, `ClientGone`, `Mark`, `Inspect` |
//! | master → disk   | `Demote`, `Promote`, `Retire`, `Mark` |
//! | disk → master   | `Register`, `Announce`, `Heartbeat`, `Dropped`, `Goodbye` |
//! | client → node   | `Commit`, `Store`, `Abort`, `Keep`, `BeginViews`, `EndViews`, `Goodbye` |
//!
//! The bytes themselves travel beside this, in `transport`: through shared memory or a data socket. Only a
//! `Store` has some of its own, because few bytes take no longer than the question does.

mod lifetime;
mod space;
mod stat;
mod stream;
mod tier;

pub use lifetime::{
    Ack, AckItem, AckOutcome, Await, Cause, DropPins, Explain, Gone, Granted, Here, Lease, LeaseItem,
    LeaseOutcome, Leased, MarkItem, OnExists, Pin, PinOutcome, Policy, PolicyChange, PutOptions, Release,
    Released, SOFT_PIN_DEFAULT, Viewer, Views, Why,
};
pub use space::{Allocate, AllocateItem, Allocated, Full, Quota, Resource, Shortage, Usage};
pub use stat::{
    CACHED_READS_MAX, CachedReads, HOLDERS_MAX, Held, Holder, NamespaceStat, NodeStat, OWNERS_MAX, OwnerStat,
    Stat,
};
pub use stream::{
    Attach, Backlog, EndStream, GroupStat, OpenStream, Pull, Pulled, StreamEnd, StreamLimits, StreamStat,
};
pub use tier::{
    Ahead, DemoteItem, Demotion, Dropped, Moved, Prefetch, PrefetchOutcome, PromoteItem, TierStat,
};

use crate::{
    ClientId, Generation, Hold, Key, Keys, Location, RequestId, Reservation, SegmentId, marks::Marks,
};

/// The protocol's major version: parties of different majors refuse each other.
pub const VERSION_MAJOR: u32 = 1;
/// The protocol's minor version: unknown fields are skipped, missing ones have their default.
pub const VERSION_MINOR: u32 = 0;

/// The first thing said on a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// See [`VERSION_MAJOR`].
    pub major: u32,
    /// See [`VERSION_MINOR`].
    pub minor: u32,
    /// The shared secret, empty where none is set.
    pub token: String,
    /// The namespace that every key on this connection belongs to.
    pub namespace: String,
    /// What the speaker is.
    pub role: Role,
    /// The speaker, if it is a client.
    pub client: ClientId,
    /// A name for people: host and process.
    pub label: String,
    /// The storage node that lives in the client's process, if there is one: the best home for its puts.
    /// From a node: itself.
    pub home: Option<SegmentId>,
    /// Which machine this is, so that the master can prefer a node of the same one.
    pub host: String,
}

/// What a party is, as it says itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Puts and gets.
    #[default]
    Client,
    /// Holds memory.
    Node,
    /// A second connection of a node, opened before the first: what the master entrusts to the node is put
    /// there, and wakes nobody. The node looks there before it heeds anything else from the master.
    Ledger,
}

/// The answer to a [`Hello`] that was let in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Welcome {
    /// The answering side's major version.
    pub major: u32,
    /// The answering side's minor version.
    pub minor: u32,
    /// From a master: which life of it this is.
    pub epoch: u64,
    /// From a master: how often a [`Heartbeat`] is expected, in milliseconds.
    pub heartbeat_ms: u64,
    /// From a node: its memory.
    pub segment: SegmentId,
    /// From a master: leases refuse unforced removal, so a get must take its lease before it is answered.
    pub strict_leases: bool,
}

/// Everything that can be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Lets the connection in, or not.
    Hello(Hello),
    /// Finds room for new objects.
    Reserve(Reserve),
    /// A client has written its bytes, and asks the master itself for the names.
    Publish(Publish),
    /// Finds objects.
    Resolve(Resolve),
    /// Asks whether objects are there, and nothing else of them.
    Exists(Exists),
    /// Makes objects invisible and gives their room back.
    Delete(Delete),
    /// The same for all that match.
    DeleteMatching(DeleteMatching),
    /// Names objects, a page at a time.
    List(List),
    /// Describes the cluster.
    Stat,
    /// Says that the sender lives.
    Heartbeat(Heartbeat),
    /// A node joins.
    Register(Register),
    /// A joining node tells what it holds.
    Announce(Announce),
    /// A node asks whether prepared objects are to be committed.
    Decide(Decide),
    /// The master asks for room on behalf of a client.
    Allocate(Allocate),
    /// The master tells a node the fate of a reservation that was not decided through it.
    Settle(Settle),
    /// The master takes objects away.
    Retire(Retire),
    /// The master lost sight of a client. A hint, not proof.
    ClientGone(ClientId),
    /// The master changes what is written beside objects.
    Mark(Vec<MarkItem>),
    /// The master asks who looks at objects.
    Inspect(Vec<Hold>),
    /// A node tells of reservations that end without the master. What was published before the answer is not
    /// among them any more: the node has heard of that first.
    Released(Released),
    /// A node has proof that a client's process is dead.
    ClientDied(ClientId),
    /// Protects objects from eviction, or no longer.
    Pin(Pin),
    /// Ends every pin of an owner.
    DropPins(DropPins),
    /// Changes the limits of a namespace.
    SetPolicy(PolicyChange),
    /// Declares members lost that are not connected.
    ForgetNode(ForgetNode),
    /// Waits until the namespace holds less, or more, than it says.
    Await(Await),
    /// Asks why objects are there, or are not.
    Why(Explain),
    /// Takes leases of samples.
    Lease(Lease),
    /// Ends leases.
    Release(Release),
    /// Tells, first of all on a new connection, which leases the client knows of, so that the rest of its
    /// leases end: the answers that granted them were lost.
    KeepLeases(Vec<u64>),
    /// Says that samples are consumed.
    Ack(Ack),
    /// Says that nobody waits for an earlier request on this connection any more: a put that waits for room,
    /// or a watch, is answered now, as if its time were up.
    Cancel(RequestId),
    /// Opens a stream, or only asks how it stands. A consumer whose window cannot be filled is refused.
    OpenStream(OpenStream),
    /// Ends a stream: nothing is appended any more.
    EndStream(EndStream),
    /// Leases the next samples of a stream that nobody else of the group has, or has acknowledged.
    Pull(Pull),
    /// Brings objects that only a disk has into memory, before they are asked for.
    Prefetch(Prefetch),
    /// The master has a disk write down objects that lie in the memory beside it.
    Demote(Vec<DemoteItem>),
    /// The master has a disk read objects into reservations of the memory beside it.
    Promote(Vec<PromoteItem>),
    /// A disk tells of copies that it no longer has.
    Dropped(Dropped),
    /// A client has written its bytes.
    Commit(Commit),
    /// The same, of bytes that come along. The node's shell writes them, and asks its core a `Commit`.
    Store(Store),
    /// A client lets go of reservations.
    Abort(Vec<Hold>),
    /// A client that lost its master's answers tells all that it has reserved here; the rest is given back.
    Keep(Vec<Hold>),
    /// A client wants objects to stay where they are while it looks.
    BeginViews(Vec<Hold>),
    /// A client looks away.
    EndViews(Vec<Hold>),
    /// A client has nothing reserved and nothing in view any more, and will not come back. Or a node leaves
    /// for good, and what it holds is gone.
    Goodbye,
}

/// Everything that can be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To `Hello`.
    Welcome(Welcome),
    /// To anything that cannot be done at all.
    Refused(Refusal),
    /// To requests that only need to be heard.
    Done,
    /// To `Reserve`.
    Reserved(Reserved),
    /// To `Publish`, in the order asked; nothing where the home node is to be asked with a `Commit`.
    Published(Vec<Option<CommitOutcome>>),
    /// To `Resolve`.
    Resolved(Resolved),
    /// To `Exists`, in the order asked.
    Present(Vec<Presence>),
    /// To `Delete`, in the order asked.
    Deleted(Vec<DeleteOutcome>),
    /// To `DeleteMatching` and `DropPins`.
    DeletedMatching(DeletedMatching),
    /// To `List`.
    Listed(Listed),
    /// To `Stat`.
    Stat(Stat),
    /// To `Register`.
    Registered(Registered),
    /// To `Announce`.
    Announced(Announced),
    /// To `Decide`, in the order asked.
    Decided(Vec<CommitOutcome>),
    /// To `Allocate`.
    Allocated(Allocated),
    /// To `Settle`, `Retire` and `Mark`.
    Settled(Settled),
    /// To `Inspect`, in the order asked.
    Inspected(Vec<Views>),
    /// To `Pin`, in the order asked.
    Pinned(Vec<PinOutcome>),
    /// To `ForgetNode`.
    Forgotten(Forgotten),
    /// To `Await`, once it is so or the time is up.
    Awaited(NamespaceStat),
    /// To `Why`, in the order asked.
    Why(Vec<Why>),
    /// To `Lease`, in the order asked.
    Leased(Leased),
    /// To `Ack`, in the order asked.
    Acked(Vec<AckOutcome>),
    /// To `OpenStream` and `EndStream`.
    Stream(StreamStat),
    /// To `Pull`, once there is enough, or no more, or the time is up.
    Pulled(Pulled),
    /// To `Prefetch`, in the order asked.
    Prefetched(Vec<PrefetchOutcome>),
    /// To `Demote` and `Promote`.
    Moved(Moved),
    /// To `Commit`, in the order asked.
    Committed(Vec<CommitOutcome>),
    /// To `BeginViews`, in the order asked: whether the view began.
    ViewsBegun(Vec<bool>),
}

/// Why nothing was done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// What kind of no this is.
    pub reason: Reason,
    /// For people.
    pub message: String,
}

/// The kinds of no.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reason {
    /// The request makes no sense.
    #[default]
    Invalid,
    /// The token is missing or wrong.
    Unauthenticated,
    /// The major versions differ.
    Version,
    /// This party does not answer that kind of request, or not to that kind of speaker.
    NotForYou,
    /// Too many connections or requests.
    Busy,
    /// The answering party cannot reach another one that it needs.
    Unreachable,
    /// The answering party is shutting down.
    Closing,
    /// The answer is not known yet: the master has restarted, and waits for members to report.
    Unavailable,
}

/// See [`Request::Reserve`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reserve {
    /// One per object.
    pub items: Vec<ReserveItem>,
    /// Nodes that the client could not reach: not there.
    pub avoid: Vec<SegmentId>,
    /// How long to wait for room where there is none, before the answer is `Full`.
    pub wait_ms: u64,
    /// If not 0, so many reservations are preallocated for each item, for objects that may come: names only
    /// say how long theirs may be. They are offers: the client claims one before it writes there, and the
    /// node may recall the rest at any time. Where free memory is short or rationed there are fewer.
    pub spare: u32,
    /// See [`Resolve::report_wait_ms`]: a put waits for that if it must not replace, or is for a stream.
    pub report_wait_ms: u64,
}

/// One object to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReserveItem {
    /// Its name.
    pub key: Key,
    /// Its bytes.
    pub len: u64,
    /// How it is to be kept.
    pub options: PutOptions,
}

/// See [`Request::Reserve`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// In the order asked.
    pub items: Vec<ReserveOutcome>,
    /// Every node that the outcomes name.
    pub nodes: Vec<NodeInfo>,
    /// Those of them that a [`Publish`] is for: what the master tells them arrives even if it dies.
    pub near: Vec<SegmentId>,
}

/// What became of one [`ReserveItem`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReserveOutcome {
    /// Room on one or more nodes, the first of them the home: the commit goes there.
    Room(Vec<Reservation>),
    /// The key exists and is to be kept.
    Exists(Generation),
    /// No node has space for it, and all that remains is pinned, leased, in view or reserved.
    Full(Full),
    /// The request makes no sense.
    Invalid(String),
    /// The namespace may not hold that much.
    OverQuota(Quota),
    /// The stream takes in no more until its consumers have caught up.
    Behind(Backlog),
    /// No storage node is connected.
    NoNode,
}

/// How to reach a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// Its memory.
    pub segment: SegmentId,
    /// Its name, as people and `preferred` use it.
    pub name: String,
    /// `host:port` where other hosts send requests; empty if it does not listen there.
    pub tcp: String,
    /// `host:port` where other hosts send and fetch bytes; empty if it does not listen there.
    pub data: String,
    /// The abstract Unix socket where its own host sends requests; empty if it does not listen there.
    pub unix: String,
    /// The abstract Unix socket where its own host fetches the mappings of its memory.
    pub memory: String,
    /// Which machine it is on.
    pub host: String,
    /// It is not memory but a disk, beside this memory.
    pub beside: Option<SegmentId>,
}

/// See [`Request::ForgetNode`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForgetNode {
    /// The name of the node or disk.
    pub name: String,
}

/// The members that were declared lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// How many there were of that name.
    pub members: u64,
    /// Objects that only they had.
    pub objects: u64,
}

/// What a member must do before it says more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announced {
    /// Copies to be retired: something newer has their name, or they were removed while the member was away.
    pub retire: Vec<Hold>,
    /// There are more, although the member has announced everything: it asks for them with an empty page.
    pub more: bool,
}

/// See [`Request::Resolve`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolve {
    /// The names.
    pub keys: Vec<Key>,
    /// Counts as a use: moves the object to the recent end of the eviction order.
    pub touch: bool,
    /// Protects the object from eviction for the lease time (and, in strict mode, from unforced removal).
    pub lease: bool,
    /// Wants locations, not only sizes.
    pub locate: bool,
    /// How long to wait for objects that are on their way from a disk into memory, before the answer names
    /// the disk.
    pub wait_ms: u64,
    /// How long to wait for members that have not reported to a restarted master yet.
    pub report_wait_ms: u64,
    /// Which part of a call of the client this is, for counters only.
    pub part: CallPart,
}

/// Which part of a call a [`Resolve`] is. The default is a request that is the whole call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallPart {
    /// How many objects the call is for, if more than the request names: the client reads the others at
    /// cached locations, and reports these with [`Exists::reads`].
    pub items: u64,
    /// Whether the call has asked before.
    pub is_more: bool,
    /// How many of the names the call has asked for before; they come first.
    pub repeats: u64,
}

/// See [`Request::Resolve`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// In the order asked.
    pub items: Vec<ResolveOutcome>,
    /// Every node that the outcomes name.
    pub nodes: Vec<NodeInfo>,
}

/// What became of one key of a [`Resolve`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolveOutcome {
    /// It can be read.
    Found(Found),
    /// There is no such object.
    Absent,
    /// It exists, but the nodes that hold it cannot be reached now; their names.
    Unavailable(Vec<String>),
}

/// An object that can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Which put of the key.
    pub generation: Generation,
    /// Its bytes.
    pub len: u64,
    /// Where it lies; empty unless asked for.
    pub replicas: Vec<Location>,
    /// Never evicted.
    pub hard_pin: bool,
    /// Evicted after all others.
    pub soft_pin: bool,
    /// Protected from eviction by a recent read.
    pub leased: bool,
    /// It is a sample.
    pub sample: bool,
}

/// See [`Request::Exists`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exists {
    /// The names.
    pub keys: Keys,
    /// See [`Resolve::touch`].
    pub touch: bool,
    /// See [`Resolve::lease`].
    pub lease: bool,
    /// What only a disk has is to be in memory soon. The answer is the same, and does not wait for it.
    pub ahead: Ahead,
    /// Gets that the client has served from cached locations since its last report, for counters only.
    pub reads: CachedReads,
    /// See [`Resolve::report_wait_ms`].
    pub report_wait_ms: u64,
}

/// What became of one key of an [`Exists`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// There is no such object.
    #[default]
    Absent,
    /// It can be read.
    Here,
    /// It exists, but the nodes that hold it cannot be reached now; a [`Resolve`] tells which.
    Unavailable,
}

/// See [`Request::Delete`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delete {
    /// The names.
    pub keys: Vec<Key>,
    /// Even if leased, where leases refuse removal.
    pub force: bool,
    /// How long to wait for the nodes to confirm, before the answer is `Unconfirmed`.
    pub wait_ms: u64,
}

/// What became of one key of a [`Delete`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeleteOutcome {
    /// Gone: no copy of it validates any more.
    Deleted,
    /// There was none.
    Absent,
    /// A lease refuses (only in strict mode, and not if forced).
    Leased,
    /// Lookups miss, but these nodes could not confirm; they must before they are readmitted.
    Unconfirmed(Vec<String>),
}

/// Which objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Every one of the namespace.
    All,
    /// Those whose key starts so.
    Prefix(Vec<u8>),
    /// Those in whose key this regular expression is found.
    Regex(String),
}

/// See [`Request::DeleteMatching`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteMatching {
    /// Which.
    pub pattern: Pattern,
    /// Even if leased.
    pub force: bool,
    /// See [`Delete::wait_ms`].
    pub wait_ms: u64,
}

/// See [`Request::DeleteMatching`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeletedMatching {
    /// How many.
    pub count: u64,
    /// Nodes that could not confirm.
    pub unconfirmed: Vec<String>,
}

/// See [`Request::List`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// Which.
    pub pattern: Pattern,
    /// Only objects that this owner pins.
    pub pinned_by: Option<String>,
    /// Where the last page ended; zero to begin.
    pub cursor: u64,
    /// At most this many objects.
    pub limit: u32,
    /// See [`Resolve::report_wait_ms`].
    pub report_wait_ms: u64,
}

/// A page of objects, in no useful order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// The objects.
    pub items: Vec<ListItem>,
    /// Where the next page begins; zero when this was the last.
    pub cursor: u64,
}

/// One object of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListItem {
    /// Its name.
    pub key: Key,
    /// Which put of the key.
    pub generation: Generation,
    /// Its bytes.
    pub len: u64,
    /// How many copies.
    pub replicas: u32,
    /// Who pins it.
    pub pins: Vec<String>,
}

/// See [`Request::Heartbeat`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heartbeat {
    /// From a node.
    pub usage: Option<Usage>,
    /// From a node: the clients that look at objects which are gone, those that hold most first, at most
    /// [`VIEWERS_MAX`](crate::VIEWERS_MAX).
    pub viewers: Vec<Viewer>,
}

/// See [`Request::Register`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Register {
    /// How to reach it.
    pub info: NodeInfo,
    /// How full it is.
    pub usage: Usage,
    /// The life of the master that it last belonged to; zero if none.
    pub epoch: u64,
    /// Of a disk: no stamp from here on was used.
    pub stamps: u64,
    /// The number that the master of that epoch had drawn when it started.
    pub life: u64,
}

/// See [`Request::Register`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registered {
    /// Which life of the master this is.
    pub epoch: u64,
    /// The master had declared it lost: everything it holds must be retired before it is used.
    pub discard: bool,
    /// What it must retire before it is used: deleted while it was away.
    pub retire: Vec<Hold>,
    /// What it must commit before that: published, and perhaps never heard of.
    pub commit: Vec<Record>,
    /// The number that this master has drawn when it started: two masters of one epoch differ in it.
    pub life: u64,
}

/// See [`Request::Announce`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announce {
    /// Committed objects.
    pub items: Vec<Record>,
    /// This is the last page: the node may be used from now on.
    pub last: bool,
}

/// What a slot says of its object, enough to rebuild the catalog from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where, on the announcing node.
    pub hold: Hold,
    /// Whose.
    pub namespace: String,
    /// Its name.
    pub key: Key,
    /// Which put of the key.
    pub generation: Generation,
    /// Its bytes.
    pub len: u64,
    /// Who pins it, and how it is consumed.
    pub marks: Marks,
}

/// See [`Request::Commit`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// One per object.
    pub items: Vec<CommitItem>,
    /// How long to wait for the nodes to confirm that a replaced object is gone, before the answer is
    /// `Unconfirmed`.
    pub wait_ms: u64,
}

/// One object whose bytes are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommitItem {
    /// The reservation on the node that is asked.
    pub hold: Hold,
    /// Its name.
    pub key: Key,
    /// Its bytes.
    pub len: u64,
    /// How it is to be kept.
    pub options: PutOptions,
    /// The other copies.
    pub others: Vec<Location>,
}

/// See [`Request::Store`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Store {
    /// What is asked once the bytes are written.
    pub commit: Commit,
    /// Those of each item, all or none: then they were written before.
    pub bytes: Vec<Vec<u8>>,
}

/// What became of one [`CommitItem`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommitOutcome {
    /// It can be read, under a new name.
    Stored(Generation),
    /// It can be read; an older object of that name is gone.
    Replaced(Generation),
    /// The same, but some nodes could not confirm that the older object is gone.
    Unconfirmed(Replacement),
    /// An object of that name exists and was kept.
    Exists(Generation),
    /// The reservation no longer stands.
    Stale,
}

/// An object has a name whose earlier object may still be read: not all copies of that are gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replacement {
    /// Which put of the key is there now.
    pub generation: Generation,
    /// It took the earlier one's place; else that was taken away before.
    pub replaced: bool,
    /// Nodes that could not confirm; they must before they are readmitted.
    pub nodes: Vec<String>,
}

/// See [`Request::Publish`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Publish {
    /// One per object.
    pub items: Vec<PublishItem>,
    /// See [`Commit::wait_ms`].
    pub wait_ms: u64,
}

/// One object whose bytes are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublishItem {
    /// The node that has it.
    pub home: SegmentId,
    /// What that would be told.
    pub item: CommitItem,
}

/// See [`Request::Decide`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decide {
    /// One per prepared object.
    pub items: Vec<DecideItem>,
    /// See [`Commit::wait_ms`].
    pub wait_ms: u64,
}

/// One prepared object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecideItem {
    /// Whose.
    pub namespace: String,
    /// Who wrote it.
    pub client: ClientId,
    /// What the client said.
    pub item: CommitItem,
}

/// See [`Request::Settle`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settle {
    /// Reservations that became objects.
    pub commit: Vec<Record>,
    /// Reservations that did not.
    pub abort: Vec<Hold>,
}

/// See [`Request::Retire`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retire {
    /// What goes. Holds that are stale already are gone already.
    pub holds: Vec<Hold>,
}

/// See [`Request::Settle`] and [`Request::Retire`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Of a `Settle`: what could not be committed, because the reservation no longer stands.
    pub lost: Vec<Hold>,
    /// How full the node is now.
    pub usage: Usage,
    /// Other requests to which this is the answer, too: a `Settle` each.
    pub also: Vec<RequestId>,
}
