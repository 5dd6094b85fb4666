//! Space: the usage of nodes, what an object needs there, and what is missing if it does not fit.

use crate::{ClientId, Reservation};

/// The bytes that a namespace uses, and its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// What it uses, reservations included, each copy counted.
    pub used: u64,
    /// The limit.
    pub limit: u64,
    /// What one copy of the refused object would use. Zero if the master does not say.
    pub need: u64,
}

impl Quota {
    /// Whether the object would exceed the quota even in an empty namespace, so that waiting does not help.
    #[must_use]
    pub fn is_never_enough(&self) -> bool {
        self.need > self.limit
    }
}

/// The usage of a member, in bytes. `free + granted + committed + held + metadata = capacity`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The total.
    pub capacity: u64,
    /// Not in use; unclaimed offers included.
    pub free: u64,
    /// Reserved by writers.
    pub granted: u64,
    /// Of committed objects.
    pub committed: u64,
    /// Of retired objects that still have views or transfers.
    pub held: u64,
    /// The number of committed objects.
    pub objects: u64,
    /// Of slot records and keys, beyond those that a node has without charge.
    pub metadata: u64,
    /// The longest name (namespace and key) with which one more small object fits. `None` if the node does
    /// not say; then there is no known limit.
    pub name_max: Option<u64>,
    /// The part of `free` that is preallocated for clients. The node recalls it when it needs the memory.
    pub offered: u64,
    /// The part of `held` that may be in view of clients of the node's earlier process. It is freed when
    /// they have listed their views, or do not map the memory any more.
    pub unlisted: u64,
}

/// What an object needs on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// Bytes for its value.
    #[default]
    Bytes,
    /// A slot for its record.
    Slots,
    /// Contiguous bytes for its name, its attributes and a long list of extents.
    KeySpace,
    /// Free runs that are long enough: at most [`EXTENTS_MAX`](crate::EXTENTS_MAX) of them hold the value.
    Contiguous,
    /// What one client may hold in reservations, given what all clients hold: other clients still get memory.
    Share,
}

/// Why a node has no space for an object, and what must be freed there before it is asked again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortage {
    /// What is missing.
    pub resource: Resource,
    /// How much of it: the number of slots where slots are missing, else bytes.
    pub amount: u64,
    /// The number of bytes of values that would do instead, because slots and key space grow into them.
    pub bytes: u64,
    /// The object would not fit even if the node were empty.
    pub never: bool,
}

/// No node has space for an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Full {
    /// The usage of all nodes together.
    pub usage: Usage,
    /// What is missing.
    pub lacks: Resource,
    /// The object would not fit on any known node even if that were empty.
    pub never: bool,
}

/// See [`MasterToMember::Allocate`](super::MasterToMember::Allocate).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocate {
    /// The client that will write.
    pub client: ClientId,
    /// One per copy.
    pub items: Vec<AllocateItem>,
    /// The items are offers, see [`Reserve::spare`](super::Reserve::spare): no other offer is recalled for
    /// them.
    pub offered: bool,
    /// The namespace that this is for, if it has a guaranteed minimum.
    pub namespace: String,
    /// The node's part of every guaranteed minimum.
    pub guarantees: Vec<Guarantee>,
    /// The bytes of the objects that were evicted there for these items.
    pub evicted: u64,
}

/// A node's part of the memory that is guaranteed to a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guarantee {
    /// The namespace.
    pub namespace: String,
    /// The bytes.
    pub bytes: u64,
}

/// The space for one copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocateItem {
    /// The size of the value in bytes.
    pub len: u64,
    /// The size of its name in bytes, namespace included. The node stores it with the object, so that memory
    /// describes itself.
    pub name_len: u64,
    /// The size of its attributes in bytes, which are stored with it.
    pub attributes_len: u64,
}

/// The reply to [`MasterToMember::Allocate`](super::MasterToMember::Allocate).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocated {
    /// In the order of the items; `None` where there was no space.
    pub items: Vec<Option<Reservation>>,
    /// The usage of the node.
    pub usage: Usage,
    /// What was missing, for each item without space, in their order.
    pub short: Vec<Shortage>,
}
