//! The field numbers of every message.
//!
//! **Invariant:** a number that was released keeps its meaning for ever. A field that is no longer used is
//! taken out and its number written into a comment; a new field takes the next number, and its default must
//! mean "as before".

use tiffin_core::message::{
    Allocate, AllocateItem, Allocated, Announce, Commit, CommitItem, CommitOutcome, Decide, DecideItem,
    Delete, DeleteMatching, DeleteOutcome, DeletedMatching, Found, Heartbeat, Hello, List, ListItem, Listed,
    NamespaceStat, NodeInfo, NodeStat, OnExists, Pattern, PutOptions, Reason, Record, Refusal, Register,
    Registered, Reserve, ReserveItem, ReserveOutcome, Reserved, Resolve, ResolveOutcome, Resolved, Retire,
    Role, Settle, Settled, Stat, Usage, Welcome,
};
use tiffin_core::{ClientId, EXTENTS_MAX, Extent, Generation, Hold, Location, REPLICAS_MAX, Reservation};

use crate::codec::{Arm, Fault, Field, Malformed, Message, Reader, Value, Wire, Writer, only_field};

/// The most holds in one list. They are small, and a node that was away may owe many at once.
const HOLDS_MAX: usize = 1 << 20;

choices! {
    Role { Client = 0, Node = 1 }
    OnExists { Replace = 0, Keep = 1 }
    // A no for an unknown reason is still a no.
    Reason {
        Invalid = 0, Unauthenticated = 1, Version = 2, NotForYou = 3, Busy = 4, Unreachable = 5, Closing = 6;
        else Invalid
    }
}

message! {
    Generation { 1 => epoch, 2 => counter }
    Location(REPLICAS_MAX as usize) { 1 => segment, 2 => slot, 3 => stamp }
    Hold(HOLDS_MAX) { 1 => slot, 2 => stamp }
    Extent(EXTENTS_MAX) { 1 => offset, 2 => len }
    Reservation { 1 => location, 2 => extents }

    Hello {
        1 => major, 2 => minor, 3 => token, 4 => namespace, 5 => role, 6 => client, 7 => label, 8 => home,
        9 => host,
    }
    Welcome { 1 => major, 2 => minor, 3 => epoch, 4 => heartbeat_ms, 5 => segment }
    Refusal { 1 => reason, 2 => message }

    PutOptions { 1 => replicas, 2 => on_exists, 3 => hard_pin, 4 => soft_pin_ms, 5 => preferred }
    Reserve { 1 => items, 2 => avoid }
    ReserveItem { 1 => key, 2 => len, 3 => options }
    Reserved { 1 => items, 2 => nodes }
    Usage { 1 => capacity, 2 => free, 3 => granted, 4 => committed, 5 => held, 6 => objects }
    NodeInfo { 1 => segment, 2 => name, 3 => tcp, 4 => data, 5 => unix, 6 => memory, 7 => host }

    Resolve { 1 => keys, 2 => touch, 3 => lease, 4 => locate }
    Resolved { 1 => items, 2 => nodes }
    Found { 1 => generation, 2 => len, 3 => replicas, 4 => hard_pin, 5 => soft_pin, 6 => leased }

    Delete { 1 => keys, 2 => force, 3 => wait_ms }
    DeleteMatching { 1 => pattern, 2 => force, 3 => wait_ms }
    DeletedMatching { 1 => count, 2 => unconfirmed }
    List { 1 => pattern, 2 => cursor, 3 => limit }
    Listed { 1 => items, 2 => cursor }
    ListItem { 1 => key, 2 => generation, 3 => len, 4 => replicas }

    Stat {
        1 => epoch, 2 => clients, 3 => nodes, 4 => namespaces, 5 => evicted_objects, 6 => evicted_bytes,
        7 => soft_pinned,
    }
    NodeStat { 1 => info, 2 => alive, 3 => usage, 4 => owed }
    NamespaceStat { 1 => name, 2 => objects, 3 => bytes }
    Heartbeat { 1 => usage }

    Register { 1 => info, 2 => usage, 3 => epoch }
    Registered { 1 => epoch, 2 => discard, 3 => retire }
    Announce { 1 => items, 2 => last }
    Record { 1 => hold, 2 => namespace, 3 => key, 4 => generation, 5 => len, 6 => hard_pin }

    Commit { 1 => items }
    CommitItem { 1 => hold, 2 => key, 3 => len, 4 => options, 5 => others }
    Decide { 1 => items }
    DecideItem { 1 => namespace, 2 => item }
    Allocate { 1 => client, 2 => items }
    AllocateItem { 1 => len, 2 => name_len }
    Allocated { 1 => items, 2 => usage }
    Settle { 1 => commit, 2 => abort }
    Retire { 1 => holds }
    Settled { 1 => lost, 2 => usage }
}

oneof! {
    ReserveOutcome { 1 => Room, 2 => Exists, 3 => Full, 4 => Invalid; }
    ResolveOutcome { 1 => Found, 3 => Unavailable; 2 => Absent }
    DeleteOutcome { 4 => Unconfirmed; 1 => Deleted, 2 => Absent, 3 => Leased }
    CommitOutcome { 1 => Stored, 2 => Replaced, 3 => Exists; 4 => Stale }
    Pattern { 2 => Prefix, 3 => Regex; 1 => All }
}

/// A client that is a whole message is its field 1.
impl Message for ClientId {
    fn encode(&self, out: &mut Writer) {
        self.put(1, out);
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        only_field(input)
    }
}
