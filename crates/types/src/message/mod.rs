//! The messages that clients, master and members exchange, as plain values.
//!
//! `proto` encodes and decodes them; no other crate knows the bytes. Every request is a batch, and each item
//! has its own outcome: there is no form for a single object.
//!
//! There is one enum of requests for each direction. A receiver matches the enum of its direction completely,
//! so that a message without a handler does not compile:
//!
//! | direction | requests | receivers |
//! |-----------------|--------------------|-----------|
//! | client → master | [`ClientToMaster`] | master |
//! | member → master | [`MemberToMaster`] | master |
//! | master → member | [`MasterToMember`] | node, disk |
//! | client → node   | [`ClientToNode`]   | node |
//!
//! A connection carries a [`Request`], which is any of them, or [`Hello`] or goodbye, which belong to the
//! connection. The receiver refuses a request of another direction with [`wrong_direction`].
//!
//! User bytes are not sent in messages, but through shared memory or a data socket, see `transport`. The
//! exception is [`Store`]: for a few bytes, a round trip takes longer than their copy.

mod client_to_master;
mod client_to_node;
mod common;
mod drain;
mod lifetime;
mod master_to_member;
mod measured;
mod member_to_master;
mod space;
mod stat;
mod stream;
mod tier;

pub use client_to_master::{
    AdmitCluster, CallPart, ClientToMaster, Delete, DeleteMatching, DeleteOutcome, DeletedMatching, Exists,
    ForgetNode, Forgotten, List, ListItem, Listed, Pattern, Ping, Presence, Publish, PublishItem, Reserve,
    ReserveItem, ReserveOutcome, Reserved, Resolve, ResolveOutcome, Resolved,
};
pub use client_to_node::{ClientToNode, Commit, CommitItem, CommitOutcome, Replacement, Store};
pub use common::{Found, NodeInfo, OnExists, PutOptions, SOFT_PIN_DEFAULT};
pub use drain::{Drain, DrainJob, DrainReport, DrainState, JobId};
pub use lifetime::{
    Ack, AckItem, AckOutcome, Await, Cause, CopyWait, DropPins, Explain, Gone, Granted, Here, Lease,
    LeaseItem, LeaseOutcome, Leased, Pin, PinOutcome, Policy, PolicyChange, Release, Why,
};
pub use master_to_member::{AttributesItem, MasterToMember, Retire, Settle, Settled, Views};
pub use measured::Measured;
pub use member_to_master::{
    Announce, Announced, Decide, DecideItem, Heartbeat, HeldBy, LimitUse, MemberReply, MemberToMaster,
    Record, Register, Registered, Released, SOCKET_LIMITS, Viewer,
};
pub use space::{Allocate, AllocateItem, Allocated, Full, Guarantee, Quota, Resource, Shortage, Usage};
pub use stat::{
    CACHED_READS_MAX, CachedReads, CopyStat, Evicted, Evictions, HOLDERS_MAX, Held, Holder, NamespaceStat,
    NodeStat, OWNERS_MAX, OwnerStat, STREAMS_LISTED_MAX, Stat,
};
pub use stream::{
    Attach, Backlog, EndStream, GroupStat, NamedStream, OpenStream, Pull, Pulled, StreamEnd, StreamLimits,
    StreamStat,
};
pub use tier::{
    Ahead, DemoteItem, Demotion, Dropped, FetchItem, Moved, Prefetch, PrefetchOutcome, PromoteItem, TierStat,
};

use crate::{ClientId, SegmentId};

/// The protocol's major version: parties of different majors refuse each other.
pub const VERSION_MAJOR: u32 = 1;
/// The protocol's minor version: unknown fields are skipped, missing ones have their default.
pub const VERSION_MINOR: u32 = 0;

/// The first message on a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// See [`VERSION_MAJOR`].
    pub major: u32,
    /// See [`VERSION_MINOR`].
    pub minor: u32,
    /// The shared secret; empty if none is set.
    pub token: String,
    /// The namespace of every key on this connection.
    pub namespace: String,
    /// What the sender is.
    pub role: Role,
    /// The sender, if it is a client.
    pub client: ClientId,
    /// Host and process of the sender, for people.
    pub label: String,
    /// From a client: the storage node in its own process, if there is one; the preferred home of its puts.
    /// From a member: itself.
    pub home: Option<SegmentId>,
    /// The host of the sender, so that the master can prefer a node on the same host.
    pub host: String,
    /// From a [`Role::Lane`]: its number, which the ids of its requests contain
    /// ([`RequestId::lane`](crate::RequestId::lane)).
    pub lane: u32,
    /// From a node whose memory outlives its process: the path of the journal of its ledger, see
    /// [`Role::Ledger`]. The master relies on a message only if it has recorded it there.
    pub journal: String,
    /// The random number in that journal.
    pub journal_id: u64,
    /// From a [`Role::Ledger`]: the name of the node's attach socket, where the master gets the claim words.
    pub memory: String,
}

/// The role of the side that connects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It puts and gets.
    #[default]
    Client,
    /// It is a member: a node's memory, or a disk.
    Node,
    /// A second connection of a node, opened before the first. The master sends publications there, which do
    /// not wake the node. The node reads them before it processes any other message of the master.
    Ledger,
    /// A further connection of a client that is connected, for calls of one blocked thread at a time. Its
    /// requests count as requests on the client's first connection.
    Lane,
}

/// The reply to a [`Hello`] that was accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Welcome {
    /// The replying side's major version.
    pub major: u32,
    /// The replying side's minor version.
    pub minor: u32,
    /// From a master: its epoch.
    pub epoch: u64,
    /// From a master: the interval at which it expects a [`Heartbeat`] or a ping, in milliseconds.
    pub heartbeat_ms: u64,
    /// From a node: its memory.
    pub segment: SegmentId,
    /// From a master: a lease refuses unforced removal, so a get must take its lease before it is answered.
    pub strict_leases: bool,
    /// From a master: only namespaces with a quota may be written to.
    pub tenants: bool,
}

/// Declares the requests of a connection: [`Request`] for receivers and [`RequestRef`] for senders.
macro_rules! requests {
    ($($(#[$doc:meta])* $direction:ident),*) => {
        /// Any request, as its receiver has it.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Request {
            /// Opens a connection.
            Hello(Hello),
            /// From a client: it has no reservation and no view any more, and does not return. From a member:
            /// it leaves the cluster for good, and its objects are lost.
            Goodbye,
            $($(#[$doc])* $direction($direction),)*
        }

        /// Any request, as its sender has it.
        #[derive(Clone, Copy, Debug)]
        pub enum RequestRef<'a> {
            /// See [`Request::Hello`].
            Hello(&'a Hello),
            /// See [`Request::Goodbye`].
            Goodbye,
            $($(#[$doc])* $direction(&'a $direction),)*
        }

        impl<'a> From<&'a Request> for RequestRef<'a> {
            fn from(request: &'a Request) -> Self {
                match request {
                    Request::Hello(hello) => Self::Hello(hello),
                    Request::Goodbye => Self::Goodbye,
                    $(Request::$direction(request) => Self::$direction(request),)*
                }
            }
        }

        $(
            impl From<$direction> for Request {
                fn from(request: $direction) -> Self {
                    Self::$direction(request)
                }
            }

            impl<'a> From<&'a $direction> for RequestRef<'a> {
                fn from(request: &'a $direction) -> Self {
                    Self::$direction(request)
                }
            }
        )*
    };
}

requests! {
    /// From a client to the master.
    ClientToMaster,
    /// From a node or a disk to the master.
    MemberToMaster,
    /// From the master to a node or a disk.
    MasterToMember,
    /// From a client to a storage node.
    ClientToNode
}

/// Any reply.
///
/// Replies have one enum for all directions: a sender expects the reply of its request, and treats every
/// other one as a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To `Hello`.
    Welcome(Welcome),
    /// To a request that was refused as a whole.
    Refused(Refusal),
    /// To requests without a result.
    Done,
    /// To `Reserve`.
    Reserved(Reserved),
    /// To `Publish`, in the order of the items; `None` where the client must `Commit` at the home node.
    Published(Vec<Option<CommitOutcome>>),
    /// To `Resolve`.
    Resolved(Resolved),
    /// To `Exists`, in the order of the keys.
    Present(Vec<Presence>),
    /// To `Delete`, in the order of the keys.
    Deleted(Vec<DeleteOutcome>),
    /// To `DeleteMatching` and `DropPins`.
    DeletedMatching(DeletedMatching),
    /// To `List`.
    Listed(Listed),
    /// To `Stat`.
    Stat(Box<Stat>),
    /// To `Register`.
    Registered(Registered),
    /// To `Announce`.
    Announced(Announced),
    /// To `Decide`, in the order of the items.
    Decided(Vec<CommitOutcome>),
    /// To `Allocate`.
    Allocated(Allocated),
    /// To `Settle`, `Retire` and `SetAttributes`.
    Settled(Settled),
    /// To `Inspect`, in the order of the copies.
    Inspected(Vec<Views>),
    /// To `Pin`, in the order of the keys.
    Pinned(Vec<PinOutcome>),
    /// To `ForgetNode`.
    Forgotten(Forgotten),
    /// To `Await`, when the condition holds or the time is up.
    Awaited(Box<NamespaceStat>),
    /// To `Why`, in the order of the keys.
    Why(Vec<Why>),
    /// To `Lease`, in the order of the items.
    Leased(Leased),
    /// To `Ack`, in the order of the items.
    Acked(Vec<AckOutcome>),
    /// To `OpenStream` and `EndStream`.
    Stream(StreamStat),
    /// To `Pull`, when there are enough samples, the stream has ended, or the time is up.
    Pulled(Pulled),
    /// To `Prefetch`, in the order of the keys.
    Prefetched(Vec<PrefetchOutcome>),
    /// To `Demote` and `Promote`.
    Moved(Moved),
    /// To `Commit` and `Store`, in the order of the items.
    Committed(Vec<CommitOutcome>),
    /// To `BeginViews`, in the order of the copies: whether the view exists.
    ViewsBegun(Vec<bool>),
}

/// Why a request was refused as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// For programs.
    pub reason: Reason,
    /// For people.
    pub message: String,
}

/// The kinds of refusals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reason {
    /// The request is invalid.
    #[default]
    Invalid,
    /// The token is missing or wrong.
    Unauthenticated,
    /// The major versions differ.
    Version,
    /// The receiver does not serve this request, or not to a sender of that role.
    NotForYou,
    /// There are too many connections or requests.
    Busy,
    /// The receiver cannot reach another party that it needs.
    Unreachable,
    /// The receiver is shutting down.
    Closing,
    /// The result is not known yet: the master has restarted, and waits for members to report.
    Unavailable,
    /// The receiver is a standby: another master leads.
    Standby,
    /// The sender is a member of another cluster.
    OtherCluster,
    /// The token does not permit this.
    Forbidden,
}

/// The refusal of a request that the receiver does not serve to this sender.
#[must_use]
pub fn wrong_direction(receiver: &str) -> Reply {
    let message = format!("{receiver} does not serve this request to a sender of this role");
    Reply::Refused(Refusal { reason: Reason::NotForYou, message })
}
