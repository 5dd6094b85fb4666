//! The field numbers of every message.
//!
//! **Invariant:** a released number keeps its meaning for ever. A field that is no longer used is removed and
//! its number is noted in a comment. A new field gets the next number, and its default must mean "as before".

use tiffin_types::attributes::{Attributes, Consumption, Expiry, SampleAttributes};
use tiffin_types::message::{
    Ack, AckItem, AckOutcome, AdmitCluster, Ahead, Allocate, AllocateItem, Allocated, Announce, Announced,
    Attach, AttributesItem, Await, Backlog, CachedReads, CallPart, Cause, Commit, CommitItem, CommitOutcome,
    CopyStat, CopyWait, Decide, DecideItem, Delete, DeleteMatching, DeleteOutcome, DeletedMatching,
    DemoteItem, Demotion, Drain, DrainJob, DrainReport, DrainState, DropPins, Dropped, EndStream, Evicted,
    Evictions, Exists, Explain, FetchItem, ForgetNode, Forgotten, Found, Full, Gone, Granted, GroupStat,
    Guarantee, Heartbeat, Held, HeldBy, Hello, Here, Holder, JobId, Lease, LeaseItem, LeaseOutcome, Leased,
    LimitUse, List, ListItem, Listed, Measured, Moved, NamedStream, NamespaceStat, NodeInfo, NodeStat,
    OnExists, OpenStream, OwnerStat, Pattern, Pin, PinOutcome, Ping, Policy, PolicyChange, Prefetch,
    PrefetchOutcome, Presence, PromoteItem, Publish, PublishItem, Pull, Pulled, PutOptions, Quota, Reason,
    Record, Refusal, Register, Registered, Release, Released, Replacement, Reserve, ReserveItem,
    ReserveOutcome, Reserved, Resolve, ResolveOutcome, Resolved, Resource, Retire, Role, Settle, Settled,
    Shortage, Stat, Store, StreamEnd, StreamLimits, StreamStat, TierStat, Usage, Viewer, Views, Welcome, Why,
};
use tiffin_types::saved::{Saved, SavedMember, SavedPolicy};
use tiffin_types::{
    ClientId, EXTENTS_MAX, Extent, Generation, Location, REPLICAS_MAX, RequestId, Reservation, SlotRef,
};

use crate::codec::{Arm, Fault, Field, Malformed, Message, Reader, Value, Wire, Writer, only_field};

/// The greatest number of holds in a list. They are small, and a node may have many pending retires.
const SLOT_REFS_MAX: usize = 1 << 20;

choices! {
    Role { Client = 0, Node = 1, Ledger = 2, Lane = 3 }
    OnExists { Replace = 0, Keep = 1, KeepHardPinned = 2, KeepPinned = 3 }
    // A refusal for an unknown reason is still a refusal.
    Reason {
        Invalid = 0, Unauthenticated = 1, Version = 2, NotForYou = 3, Busy = 4, Unreachable = 5, Closing = 6,
        Unavailable = 7, Standby = 8, OtherCluster = 9, Forbidden = 10;
        else Invalid
    }
    // The node lacks something that this side does not know.
    Resource { Bytes = 0, Slots = 1, KeySpace = 2, Contiguous = 3, Share = 4; else Bytes }
    CopyWait { Nothing = 0, Node = 1, Memory = 2, Quota = 3, Source = 4, Turn = 5; else Turn }
    Presence { Absent = 0, Here = 1, Unavailable = 2 }
    Demotion { OnPressure = 0, WriteThrough = 1, Never = 2 }
    Ahead { Nothing = 0, LeadingRun = 1, All = 2; else Nothing }
    PrefetchOutcome { Absent = 0, Resident = 1, Done = 2, Running = 3, Failed = 4, Skipped = 5,
        Cancelled = 6; else Skipped }
    // A member in an unknown state may still have objects.
    DrainState { Moving = 0, Empty = 1, Failed = 2; else Moving }
    Held { Reserved = 0, Leased = 1, Viewed = 2 }
    Cause { Deleted = 0, Replaced = 1, Evicted = 2, NodeLost = 3, Consumed = 4, HeldTooLong = 5, Expired = 6 }
}

message! {
    Generation { 1 => epoch, 2 => counter }
    Location(REPLICAS_MAX as usize) { 1 => segment, 2 => slot, 3 => stamp }
    SlotRef(SLOT_REFS_MAX) { 1 => slot, 2 => stamp }
    Extent(EXTENTS_MAX) { 1 => offset, 2 => len }
    Reservation { 1 => location, 2 => extents }

    Hello {
        1 => major, 2 => minor, 3 => token, 4 => namespace, 5 => role, 6 => client, 7 => label, 8 => home,
        9 => host, 10 => lane, 11 => journal, 12 => journal_id, 13 => memory,
    }
    Welcome {
        1 => major, 2 => minor, 3 => epoch, 4 => heartbeat_ms, 5 => segment, 6 => strict_leases, 7 => tenants,
    }
    Refusal { 1 => reason, 2 => message }

    PutOptions {
        1 => replicas, 2 => on_exists, 3 => hard_pin, 4 => soft_pin_ms, 5 => preferred,
        6 => owner, 7 => sample, 8 => stream, 9 => elsewhere, 10 => replaces, 11 => ttl_ms,
    }
    Reserve { 1 => items, 2 => avoid, 3 => wait_ms, 4 => spare, 5 => report_wait_ms }
    Quota { 1 => used, 2 => limit, 3 => need }
    ReserveItem { 1 => key, 2 => len, 3 => options }
    Reserved { 1 => items, 2 => nodes, 3 => same_host }
    Usage {
        1 => capacity, 2 => free, 3 => granted, 4 => committed, 5 => held, 6 => objects, 7 => offered,
        8 => metadata, 9 => name_max, 10 => unlisted,
    }
    Shortage { 1 => resource, 2 => amount, 3 => bytes, 4 => never }
    NodeInfo {
        1 => segment, 2 => name, 3 => tcp, 4 => data, 5 => unix, 6 => memory, 7 => host, 8 => beside,
        9 => outlives, 10 => registration,
    }

    Resolve { 1 => keys, 2 => touch, 3 => lease, 4 => locate, 5 => wait_ms, 6 => report_wait_ms, 7 => part }
    CallPart { 1 => items, 2 => is_more, 3 => repeats }
    Resolved { 1 => items, 2 => nodes }
    Exists { 1 => keys, 2 => touch, 3 => lease, 4 => ahead, 5 => reads, 6 => report_wait_ms }
    CachedReads { 1 => singles, 2 => batches, 3 => items, 4 => bytes }
    Found {
        1 => generation, 2 => len, 3 => replicas, 4 => hard_pin, 5 => soft_pin, 6 => leased, 7 => sample,
        8 => expires_in_ms,
    }

    Delete { 1 => keys, 2 => force, 3 => wait_ms }
    DeleteMatching { 1 => pattern, 2 => force, 3 => wait_ms }
    DeletedMatching { 1 => count, 2 => unconfirmed }
    List { 1 => pattern, 2 => cursor, 3 => limit, 4 => pinned_by, 5 => report_wait_ms }
    Listed { 1 => items, 2 => cursor }
    ListItem { 1 => key, 2 => generation, 3 => len, 4 => replicas, 5 => pins, 6 => expires_in_ms }

    Stat {
        1 => epoch, 2 => clients, 3 => nodes, 4 => namespaces, 5 => evicted_objects, 6 => evicted_bytes,
        7 => soft_pinned, 8 => tier, 9 => unreported, 10 => copies, 11 => evictions, 12 => streams,
        13 => undecided, 14 => expired, 15 => expiring,
    }
    Evictions { 1 => memory, 2 => quota, 3 => promotion, 4 => unread }
    Evicted { 1 => objects, 2 => bytes }
    CopyStat { 1 => short, 2 => running, 3 => made, 4 => made_bytes, 5 => failed, 6 => dropped }
    TierStat {
        1 => disk_objects, 2 => demoted_objects, 3 => demoted_bytes, 4 => demotions_failed,
        5 => evicted_undemoted, 6 => promoted_objects, 7 => promoted_bytes, 8 => promoted_used,
        9 => promoted_unused, 10 => prefetch_redundant, 11 => prefetch_joined, 12 => prefetch_failed,
        13 => prefetch_skipped, 14 => gets_from_memory, 15 => gets_from_disk, 16 => gets_waited,
        17 => gets_late, 18 => waited_ms, 19 => disk_evicted, 20 => disk_corrupt,
        21 => prefetch_cancelled, 22 => gets_from_far_disk, 23 => demotions_refused,
    }
    DemoteItem { 1 => source, 2 => record }
    PromoteItem { 1 => slot_ref, 2 => into }
    FetchItem { 1 => from, 2 => into, 3 => len, 4 => source }
    Moved { 1 => items, 2 => usage, 3 => bytes_max }
    Dropped { 1 => items, 2 => corrupt, 3 => usage }
    Prefetch { 1 => keys, 2 => ahead, 3 => wait_ms }
    NodeStat { 1 => info, 2 => alive, 3 => usage, 4 => owed, 5 => holders }
    NamespaceStat {
        1 => name, 2 => objects, 3 => bytes, 4 => used, 5 => granted, 6 => quota, 7 => samples,
        8 => samples_leased, 9 => sample_age_ms, 10 => waiting, 11 => sample_bytes, 12 => sample_bytes_leased,
        13 => leased_age_ms, 14 => max_hold_ms, 15 => owners, 16 => holders, 17 => demotion,
        18 => samples_expired, 19 => sample_bytes_expired, 20 => held, 21 => guaranteed,
    }
    OwnerStat { 1 => owner, 2 => objects, 3 => bytes }
    Holder { 1 => held, 2 => who, 3 => objects, 4 => bytes }
    AdmitCluster { 1 => cluster }
    ForgetNode { 1 => name }
    Forgotten { 1 => members, 2 => objects }
    Heartbeat { 1 => usage, 2 => viewers, 3 => measured, 4 => held, 5 => views_refused, 6 => limits }
    LimitUse { 1 => limit, 2 => max, 3 => used, 4 => reached }
    HeldBy { 1 => namespace, 2 => bytes }
    Ping { 1 => measured }
    Measured { 1 => operation, 2 => path, 3 => counts, 4 => sum_us, 5 => bytes }
    Viewer { 1 => client, 2 => objects, 3 => bytes }
    Views { 1 => count, 2 => clients, 3 => more, 4 => sends }

    Register { 1 => info, 2 => usage, 3 => epoch, 4 => stamps, 5 => instance, 6 => cluster }
    Registered { 1 => epoch, 2 => discard, 3 => retire, 4 => commit, 5 => instance, 6 => cluster }
    Announce { 1 => items, 2 => last }
    Announced { 1 => retire, 2 => more }
    Record { 1 => slot_ref, 2 => namespace, 3 => key, 4 => generation, 5 => len, 6 => attributes }
    Attributes { 1 => pins, 2 => sample, 3 => copies, 4 => expiry }
    Expiry { 1 => ttl_ms, 2 => ends_ms }
    SampleAttributes { 1 => consumption, 2 => acked, 3 => stream, 4 => elsewhere }
    AttributesItem { 1 => slot_ref, 2 => attributes }
    Released { 1 => slot_refs, 2 => usage, 3 => held }

    Commit { 1 => items, 2 => wait_ms }
    Store { 1 => commit, 2 => bytes }
    CommitItem { 1 => slot_ref, 2 => key, 3 => len, 4 => options, 5 => others }
    Publish { 1 => items, 2 => wait_ms }
    PublishItem { 1 => home, 2 => item }
    Decide { 1 => items, 2 => wait_ms }
    Replacement { 1 => generation, 2 => nodes, 3 => replaced }
    DecideItem { 1 => namespace, 2 => item, 3 => client }
    Allocate { 1 => client, 2 => items, 3 => offered, 4 => namespace, 5 => guarantees, 6 => evicted }
    Guarantee { 1 => namespace, 2 => bytes }
    AllocateItem { 1 => len, 2 => name_len, 3 => attributes_len }
    Allocated { 1 => items, 2 => usage, 3 => short }
    Settle { 1 => commit, 2 => abort, 3 => retire }
    Retire { 1 => slot_refs }
    JobId { 1 => first, 2 => second }
    DrainJob { 1 => id, 2 => created_ms, 3 => sources, 4 => targets, 5 => concurrency }
    Drain { 1 => job, 2 => stop }
    DrainReport {
        1 => job, 2 => state, 3 => succeeded, 4 => failed, 5 => blocked, 6 => active, 7 => bytes,
    }
    Settled { 1 => lost, 2 => usage, 3 => also }

    Pin { 1 => keys, 2 => owner, 3 => on, 4 => wait_ms }
    DropPins { 1 => owner, 2 => wait_ms }
    PolicyChange {
        1 => quota, 2 => max_hold_ms, 3 => demotion, 4 => keep_quota, 5 => keep_max_hold, 6 => keep_demotion,
        7 => guaranteed, 8 => keep_guaranteed,
    }
    Await { 1 => at_most, 2 => at_least, 3 => wait_ms }
    Here {
        1 => found, 2 => nodes, 3 => unreachable, 4 => pins, 5 => sample, 6 => acked, 7 => leases, 8 => views,
        9 => age_ms, 10 => idle_ms, 11 => lease_ms, 12 => writer, 13 => reader, 14 => viewers,
        15 => viewers_more, 16 => sends, 17 => disk_bytes_max, 18 => copies_wanted, 19 => copies_there,
        20 => copying_to, 21 => copy_wait, 22 => ttl_ms,
    }
    Gone {
        1 => generation, 2 => cause, 3 => by, 4 => ago_ms, 5 => node, 6 => for_key, 7 => reader,
        8 => disk_bytes_max,
    }
    Explain { 1 => keys, 2 => report_wait_ms }
    Lease { 1 => items, 2 => group, 3 => report_wait_ms }
    LeaseItem { 1 => key, 2 => generation }
    Leased { 1 => items, 2 => nodes }
    Granted { 1 => lease, 2 => found }
    Release { 1 => leases }
    Ack { 1 => items, 2 => group, 3 => wait_ms, 4 => abort, 5 => unless_leased }
    AckItem { 1 => key, 2 => generation }

    OpenStream { 1 => name, 2 => limits, 3 => attach }
    StreamLimits { 1 => refs_high, 2 => refs_low, 3 => bytes_high, 4 => bytes_low }
    Attach { 1 => group, 2 => window }
    EndStream { 1 => name, 2 => failure, 3 => drop, 4 => wait_ms }
    StreamEnd { 1 => failure, 2 => outstanding }
    Pull { 1 => stream, 2 => group, 3 => items_min, 4 => items_max, 5 => wait_ms, 6 => behind }
    Pulled { 1 => keys, 2 => leased, 3 => end }
    NamedStream { 1 => namespace, 2 => name, 3 => stat }
    StreamStat {
        1 => refs, 2 => bytes, 3 => granted, 4 => granted_bytes, 5 => limits, 6 => is_shut, 7 => end,
        8 => appended, 9 => recovered, 10 => consumed, 11 => groups,
    }
    GroupStat {
        1 => group, 2 => ready, 3 => out, 4 => delivered, 5 => acked, 6 => consumers, 7 => window,
    }
    Backlog { 1 => refs, 2 => bytes, 3 => limits }

    Saved { 1 => epoch, 2 => members, 3 => policies, 4 => forgotten, 5 => clusters }
    SavedMember { 1 => segment, 2 => name, 3 => host, 4 => beside, 5 => tcp, 6 => owed, 7 => outlives }
    SavedPolicy { 1 => namespace, 2 => policy }
    Policy { 1 => quota, 2 => max_hold_ms, 3 => demotion, 4 => guaranteed }
}

oneof! {
    ReserveOutcome {
        1 => Space, 2 => Exists, 3 => Full, 4 => Invalid, 5 => OverQuota, 6 => Behind; 7 => NoNode
    }
    ResolveOutcome { 1 => Found, 3 => Unavailable; 2 => Absent }
    DeleteOutcome { 4 => Unconfirmed; 1 => Deleted, 2 => Absent, 3 => Leased }
    CommitOutcome { 1 => Stored, 2 => Replaced, 3 => Exists, 5 => Unconfirmed; 4 => Stale, 6 => Removed }
    Pattern { 2 => Prefix, 3 => Regex; 1 => All }
    Consumption { 2 => Groups; 1 => Once, 3 => Retained }
    PinOutcome { 3 => Unconfirmed; 1 => Done, 2 => Absent, 4 => TooMany, 5 => NotPinned }
    Why { 1 => Here, 2 => Gone; 3 => Unknown }
    LeaseOutcome {
        1 => Leased, 3 => Superseded; 2 => Absent, 4 => Consumed, 5 => NotASample, 6 => WrongGroup
    }
    AckOutcome { 4 => Unconfirmed; 1 => Freed, 2 => Recorded, 3 => Stale, 5 => WrongGroup }
}

/// A value that is a whole message is field 1 of it.
macro_rules! single {
    ($($name:ident),*) => {$(
        impl Message for $name {
            fn encode(&self, out: &mut Writer) {
                self.put(1, out);
            }

            fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
                only_field(input)
            }
        }
    )*};
}

single! { ClientId, RequestId }

/// The fields of a usage, followed by those of the object. Readers that only know the former skip the latter.
impl Message for Full {
    fn encode(&self, out: &mut Writer) {
        self.usage.encode(out);
        self.lacks.put(FULL_LACKS, out);
        self.never.put(FULL_NEVER, out);
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        let usage = Usage::decode(&mut { *input })?;
        let (mut lacks, mut never) = (None, None);
        while let Some((number, wire)) = input.tag()? {
            match number {
                FULL_LACKS => Field::merge(&mut lacks, wire, input)?,
                FULL_NEVER => Field::merge(&mut never, wire, input)?,
                _ => input.skip(wire)?,
            }
        }
        Ok(Self { usage, lacks: Field::finish(lacks)?, never: Field::finish(never)? })
    }
}

/// The fields of [`Full`]; a usage will not need these numbers.
const FULL_LACKS: u32 = 32;
const FULL_NEVER: u32 = 33;

nested!(Full);

/// A box is encoded as its contents.
impl<T: Message> Message for Box<T> {
    fn encode(&self, out: &mut Writer) {
        T::encode(self, out);
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        T::decode(input).map(Self::new)
    }
}

impl<T: Value> Value for Box<T> {
    const WIRE: Wire = T::WIRE;
    const ITEMS_MAX: usize = T::ITEMS_MAX;

    fn write(&self, out: &mut Writer) {
        T::write(self, out);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self, Malformed> {
        T::read(input).map(Self::new)
    }

    fn is_default(&self) -> bool {
        T::is_default(self)
    }

    fn absent() -> Result<Self, Malformed> {
        T::absent().map(Self::new)
    }
}
