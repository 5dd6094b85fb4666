//! How full nodes are, what an object needs there, and what is missing if it does not fit.

use crate::{ClientId, Reservation};

/// What a namespace holds and may hold, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// What it holds, reservations included, each copy counted.
    pub used: u64,
    /// What it may hold.
    pub limit: u64,
    /// What one copy of the object that was refused counts. Zero if the master does not say.
    pub need: u64,
}

impl Quota {
    /// Whether the object would exceed the quota in an empty namespace, too. Then waiting does not help.
    #[must_use]
    pub fn is_never_enough(&self) -> bool {
        self.need > self.limit
    }
}

/// How full something is, in bytes. `free + granted + committed + held + metadata = capacity`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All of it.
    pub capacity: u64,
    /// In nobody's use; offers that no client has claimed included.
    pub free: u64,
    /// Reserved by writers.
    pub granted: u64,
    /// Of objects that can be read.
    pub committed: u64,
    /// Of objects that are gone, but that somebody still looks at.
    pub held: u64,
    /// Objects that can be read.
    pub objects: u64,
    /// Of slot records and names, beyond the few that a node has for free.
    pub metadata: u64,
    /// The longest name (namespace and key) with which one more small object fits as it is. `None` if the
    /// node does not say, and then it may be any.
    pub name_max: Option<u64>,
    /// The part of `free` that is preallocated for clients. The node recalls it when anything else needs it.
    pub offered: u64,
}

/// What an object needs on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// Bytes for its value.
    #[default]
    Bytes,
    /// A slot for its record.
    Slots,
    /// Bytes for its name, its attributes and a long list of extents, in one piece.
    KeySpace,
    /// Free runs that are long enough: at most [`EXTENTS_MAX`](crate::EXTENTS_MAX) of them hold the value.
    Contiguous,
}

/// Why a node has no space for an object, and what must be freed there before it is asked again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortage {
    /// What is missing.
    pub resource: Resource,
    /// How much of it: bytes, but slots where those are missing.
    pub amount: u64,
    /// So many bytes of values would do instead, because slots and key space grow into them.
    pub bytes: u64,
    /// The object would not fit if the node were empty.
    pub never: bool,
}

/// No node has space for an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Full {
    /// How full all nodes are together.
    pub usage: Usage,
    /// What is missing.
    pub lacks: Resource,
    /// The object would not fit on any node that is known if that were empty.
    pub never: bool,
}

/// See [`Request::Allocate`](super::Request::Allocate).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocate {
    /// Who will write.
    pub client: ClientId,
    /// One per replica.
    pub items: Vec<AllocateItem>,
    /// They are offers, see [`Reserve::spare`](super::Reserve::spare): no other offer is recalled for them.
    pub offered: bool,
}

/// Room for one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocateItem {
    /// Its bytes.
    pub len: u64,
    /// The bytes of its name, namespace included: they are kept beside it, so that memory describes itself.
    pub name_len: u64,
    /// The bytes of its marks, kept there too.
    pub marks_len: u64,
}

/// See [`Request::Allocate`](super::Request::Allocate).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocated {
    /// In the order asked; none where there was no space.
    pub items: Vec<Option<Reservation>>,
    /// How full the node is now.
    pub usage: Usage,
    /// What was missing for those items that have no space, in the order asked.
    pub short: Vec<Shortage>,
}
