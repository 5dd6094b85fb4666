//! What the master asks of its members: nodes' memories and disks.

use super::{Allocate, DemoteItem, Drain, FetchItem, PromoteItem, Record, Usage};
use crate::{ClientId, RequestId, SlotRef, attributes::Attributes};

/// A request of the master to a node or a disk.
///
/// The master retires copies, changes attributes and asks for views in the same way on both. Each of them
/// refuses the requests that are for the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MasterToMember {
    /// Allocates memory for a client. For nodes.
    Allocate(Allocate),
    /// Ends reservations whose fate was not decided by a request of this node. For nodes.
    Settle(Settle),
    /// Retires copies.
    Retire(Retire),
    /// The master has lost its connection to a client. This does not prove that the client is dead.
    ClientGone(ClientId),
    /// Replaces the attributes of objects.
    SetAttributes(Vec<AttributesItem>),
    /// Asks for the views of objects.
    Inspect(Vec<SlotRef>),
    /// Writes objects in the memory of the same node to the disk. For disks.
    Demote(Vec<DemoteItem>),
    /// Reads objects from the disk into reservations in the memory of the same node. For disks.
    Promote(Vec<PromoteItem>),
    /// Reads objects from other members into reservations in the memory of the node. For nodes.
    Fetch(Vec<FetchItem>),
    /// Starts or stops a drain job. For nodes.
    Drain(Drain),
}

/// See [`MasterToMember::Settle`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settle {
    /// Reservations that are objects now.
    pub commit: Vec<Record>,
    /// Reservations that are returned.
    pub abort: Vec<SlotRef>,
    /// Copies of replaced objects, which the master has withdrawn if the member is on its host. The member
    /// retires them after the commits.
    pub retire: Vec<SlotRef>,
}

/// See [`MasterToMember::Retire`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retire {
    /// The copies. Those whose stamp is already withdrawn are confirmed like the others.
    pub slot_refs: Vec<SlotRef>,
}

/// The reply to [`MasterToMember::Settle`], [`MasterToMember::Retire`] and [`MasterToMember::SetAttributes`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// To `Settle` and `SetAttributes`: copies that the member no longer has.
    pub lost: Vec<SlotRef>,
    /// The usage of the member.
    pub usage: Usage,
    /// Other `Settle` requests that this reply answers as well.
    pub also: Vec<RequestId>,
}

/// New attributes for one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AttributesItem {
    /// The copy.
    pub slot_ref: SlotRef,
    /// The attributes, which replace the previous ones.
    pub attributes: Attributes,
}

/// The users of one object in place; see [`MasterToMember::Inspect`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Views {
    /// The number of views.
    pub count: u64,
    /// The clients that have them, at most [`VIEWERS_MAX`](crate::VIEWERS_MAX).
    pub clients: Vec<ClientId>,
    /// The number of further clients that have some.
    pub more: u64,
    /// The number of copies that are being sent through sockets.
    pub sends: u64,
}
