//! The types and messages that all parties share, and no I/O.
//!
//! - [`message`] is what clients, members and the master say to each other.
//! - [`access`] decides what a credential permits.
//! - [`attributes`] is what is stored with an object's name.
//! - [`mutant`] lists the mutants of the rules.
//!
//! **Invariant:** no byte of user data and no pointer is in these types, only extents and lengths.

pub mod access;
pub mod attributes;
mod keys;
pub mod message;
pub mod mutant;
pub mod names;
pub mod saved;
pub mod trace;
pub mod units;

use std::fmt;
use std::sync::Arc;

pub use keys::Keys;

/// Maximum length of a key, in bytes.
pub const KEY_BYTES_MAX: usize = 1 << 20;
/// Maximum length of a namespace name, in bytes.
pub const NAMESPACE_BYTES_MAX: usize = 128;
/// Maximum number of items in one batch.
pub const BATCH_ITEMS_MAX: usize = 1 << 16;
/// Maximum number of bytes of all keys in one batch.
pub const BATCH_KEY_BYTES_MAX: usize = 16 << 20;
/// Maximum number of keys that one answer to a [`Why`](message::ClientToMaster::Why) explains.
pub const WHY_KEYS_MAX: usize = 1 << 9;
/// Maximum number of copies of one object.
pub const REPLICAS_MAX: u32 = 16;
/// Maximum TTL of an object: ten years.
pub const TTL_MS_MAX: u64 = 10 * 365 * 86_400_000;
/// Maximum number of extents of one object on one node.
pub const EXTENTS_MAX: usize = 1 << 16;
/// Maximum number of extents in one reply of a node, over all of its objects: messages are bounded.
pub const ANSWER_EXTENTS_MAX: usize = 1 << 20;
/// Objects start at multiples of this, so that copies are aligned.
pub const EXTENT_ALIGN: u64 = 64;
/// Maximum length of the name of a pin's owner or a consumer group, in bytes.
pub const OWNER_BYTES_MAX: usize = 256;
/// Maximum number of consumer groups of a sample, and of pins of an object.
pub const ATTRIBUTES_MAX: usize = 64;
/// Maximum number of clients that a reply names as viewers.
pub const VIEWERS_MAX: usize = 16;

/// One client may hold this many times the memory that nothing holds.
pub const SHARE_PARTS: u64 = 15;

/// Whether a client that holds `own` bytes may hold `more`, if all clients then hold `all` of `capacity`
/// bytes.
///
/// The bound is a dynamic threshold: one client gets at most 15 of 16 parts, each further one 15 of 16 parts
/// of the rest, so that none gets nothing, without a setting. A client that holds nothing may hold one
/// object of any size, because otherwise that object could not be stored at all.
#[must_use]
pub const fn is_within_share(own: u64, more: u64, all: u64, capacity: u64) -> bool {
    own == 0 || own.saturating_add(more) <= SHARE_PARTS.saturating_mul(capacity.saturating_sub(all))
}

/// The maximum number of namespaces in one report about memory of retired objects.
pub const HELD_NAMESPACES_MAX: usize = 256;
/// The namespace of a client that does not name one.
pub const NAMESPACE_DEFAULT: &str = "default";

/// Milliseconds since the shell started. Only differences are meaningful.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tick(pub u64);

impl Tick {
    /// This time plus `ms` milliseconds.
    #[must_use]
    pub fn after(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }
}

/// Identifies a node's memory. It is random, so that a location cannot be mistaken for one in another
/// segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u64);

impl fmt::Display for SegmentId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}", self.0)
    }
}

/// Maximum epoch of a master, and maximum number of stamps of a segment. Greater ones come from damaged
/// memory.
pub const EPOCH_MAX: u64 = 1 << 62;
/// See [`EPOCH_MAX`].
pub const STAMPS_MAX: u64 = 1 << 62;

/// Identifies a cluster: its master's state and all its members have the same number. Drawn at random when
/// the first member registers. Zero where no cluster is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterId(pub u64);

impl ClusterId {
    /// This number, unless it is zero.
    #[must_use]
    pub fn known(self) -> Option<Self> {
        (self.0 != 0).then_some(self)
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:016x}", self.0)
    }
}

/// Identifies one client handle, across reconnects. The client draws it at random.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

impl ClientId {
    /// The client that reserves memory for promotions.
    pub const PROMOTER: Self = Self(u64::MAX);
    /// The greatest id that a client may choose. The one above is reserved, and 0 is none.
    pub const CHOSEN_MAX: Self = Self(Self::PROMOTER.0 - 1);

    /// Whether a client may choose this id.
    #[must_use]
    pub fn may_be_chosen(self) -> bool {
        (1..=Self::CHOSEN_MAX.0).contains(&self.0)
    }
}

impl std::fmt::Display for ClientId {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:016x}", self.0)
    }
}

/// Identifies one connection of one shell; never reused by that shell. A party that reconnects gets a new
/// one, and messages that still arrive through the old one are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// Matches a reply to its request on one connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

impl RequestId {
    /// The bits of the counter; the bits above are the lane.
    const COUNTER_BITS: u32 = 48;

    /// The id of a request on a lane of a client. The client's first connection is lane 0.
    #[must_use]
    pub fn on_lane(lane: u32, counter: u64) -> Self {
        let counter = counter & ((1 << Self::COUNTER_BITS) - 1);
        Self((u64::from(lane) << Self::COUNTER_BITS) | counter)
    }

    /// The lane on which it was sent, and on which its reply is expected.
    #[must_use]
    pub fn lane(self) -> u32 {
        (self.0 >> Self::COUNTER_BITS) as u32
    }
}

/// One record of a node's control segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId(pub u32);

impl SlotId {
    /// The slot of every copy on a disk. A disk has no control segment: the stamp alone identifies the
    /// copy.
    pub const DISK: Self = Self(u32::MAX);
}

/// Identifies one use of one slot. Only the node writes stamps, and it never uses one twice; zero is not a
/// stamp. A reader uses it to check that the bytes are still those it asked for; for a writer it is the
/// fencing token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stamp(pub u64);

impl Stamp {
    /// The stamp of a slot that holds nothing.
    pub const NONE: Self = Self(0);
}

/// Which put of a key this is. Later puts have larger generations; none is ever used twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation {
    /// The epoch of the master that assigned it.
    pub epoch: u64,
    /// The counter within that epoch.
    pub counter: u64,
}

impl fmt::Display for Generation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{}", self.epoch, self.counter)
    }
}

/// Where one replica is stored: valid while the slot has this stamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The node's memory.
    pub segment: SegmentId,
    /// The record in its control segment.
    pub slot: SlotId,
    /// The use of that record.
    pub stamp: Stamp,
}

impl Location {
    /// The location without the segment, as the node itself knows it.
    #[must_use]
    pub fn slot_ref(self) -> SlotRef {
        SlotRef { slot: self.slot, stamp: self.stamp }
    }
}

/// One use of one slot, inside one segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotRef {
    /// The record in the control segment.
    pub slot: SlotId,
    /// The use of that record.
    pub stamp: Stamp,
}

impl SlotRef {
    /// A copy on a disk.
    #[must_use]
    pub fn on_disk(stamp: Stamp) -> Self {
        Self { slot: SlotId::DISK, stamp }
    }

    /// Whether it is a copy on a disk.
    #[must_use]
    pub fn is_on_disk(self) -> bool {
        self.slot == SlotId::DISK
    }
}

/// A contiguous range of bytes in a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Distance from the start of the segment.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Extent {
    /// The first offset after the range.
    #[must_use]
    pub fn end(self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

/// The space that `len` bytes take in a segment, with alignment. `None` if it overflows.
#[must_use]
pub fn space_for(len: u64) -> Option<u64> {
    len.checked_next_multiple_of(EXTENT_ALIGN)
}

/// Space for one replica, until it is committed or released.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// Where it is; the stamp is the writer's token.
    pub location: Location,
    /// The extents, in order. Their total length is exactly the requested one.
    pub extents: Vec<Extent>,
}

/// The name of an object within its namespace: any bytes, at least one, at most [`KEY_BYTES_MAX`]. Clones
/// share the bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<[u8]>);

/// A key that is empty or longer than [`KEY_BYTES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A key has at least one byte.
    #[error("the key is empty")]
    Empty,
    /// A key has at most [`KEY_BYTES_MAX`] bytes.
    #[error("the key has {0} bytes, more than the {KEY_BYTES_MAX} allowed")]
    TooLong(usize),
}

impl Key {
    /// Checks and copies the bytes.
    pub fn new(bytes: &[u8]) -> Result<Self, KeyError> {
        Self::check(bytes)?;
        Ok(Self(bytes.into()))
    }

    /// The first of all keys in order: one zero byte.
    #[must_use]
    pub fn first() -> Self {
        Self([0].into())
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn check(bytes: &[u8]) -> Result<(), KeyError> {
        match bytes.len() {
            0 => Err(KeyError::Empty),
            len if len > KEY_BYTES_MAX => Err(KeyError::TooLong(len)),
            _ => Ok(()),
        }
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

/// Prints text as text, other bytes escaped, and truncates long keys.
impl fmt::Display for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_MAX: usize = 120;
        let shown = self.0.get(..SHOWN_MAX).unwrap_or(&self.0);
        for chunk in shown.utf8_chunks() {
            for c in chunk.valid().chars() {
                match u8::try_from(c) {
                    Ok(byte) if c.is_ascii_control() => write!(out, "{}", std::ascii::escape_default(byte))?,
                    _ if c.is_control() => write!(out, "{}", c.escape_unicode())?,
                    _ => write!(out, "{c}")?,
                }
            }
            write!(out, "{}", chunk.invalid().escape_ascii())?;
        }
        if shown.len() < self.0.len() {
            write!(out, "… ({} bytes)", self.0.len())?;
        }
        Ok(())
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "`{self}`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_length_is_limited() {
        assert_eq!(Key::new(b""), Err(KeyError::Empty));
        assert!(Key::new(&vec![7; KEY_BYTES_MAX]).is_ok());
        assert_eq!(Key::new(&vec![7; KEY_BYTES_MAX + 1]), Err(KeyError::TooLong(KEY_BYTES_MAX + 1)));
    }

    #[test]
    fn key_is_printed_without_control_characters() {
        for (key, shown) in
            [(&b"a\xff\x00b"[..], "a\\xff\\x00b"), ("é\n\u{1b}[31m\u{85}".as_bytes(), "é\\n\\x1b[31m\\u{85}")]
        {
            assert_eq!(Key::new(key).unwrap().to_string(), shown);
        }
        assert!(Key::new(&vec![b'x'; 500]).unwrap().to_string().ends_with("… (500 bytes)"));
    }

    #[test]
    fn generations_order_by_epoch_then_by_counter() {
        let old = Generation { epoch: 1, counter: 9 };
        assert!(old < Generation { epoch: 2, counter: 0 });
        assert!(old < Generation { epoch: 1, counter: 10 });
    }
}
