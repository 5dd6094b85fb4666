//! Generators of every message, for all tests of this crate.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use tiffin_core::message::*;
use tiffin_core::*;

/// Any request.
pub(crate) fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        hello().prop_map(Request::Hello),
        reserve().prop_map(Request::Reserve),
        resolve().prop_map(Request::Resolve),
        (vec(key(), 0..4), flag(), number()).prop_map(|(keys, force, wait_ms)| Request::Delete(Delete {
            keys,
            force,
            wait_ms
        })),
        (pattern(), flag(), number()).prop_map(|(pattern, force, wait_ms)| {
            Request::DeleteMatching(DeleteMatching { pattern, force, wait_ms })
        }),
        (pattern(), number(), small()).prop_map(|(pattern, cursor, limit)| Request::List(List {
            pattern,
            cursor,
            limit
        })),
        Just(Request::Stat),
        option::of(usage()).prop_map(|usage| Request::Heartbeat(Heartbeat { usage })),
        (node_info(), usage(), number()).prop_map(|(info, usage, epoch)| Request::Register(Register {
            info,
            usage,
            epoch
        })),
        (vec(record(), 0..4), flag()).prop_map(|(items, last)| Request::Announce(Announce { items, last })),
        vec((text(), commit_item()), 0..4).prop_map(|items| {
            let items = items.into_iter().map(|(namespace, item)| DecideItem { namespace, item }).collect();
            Request::Decide(Decide { items })
        }),
        allocate().prop_map(Request::Allocate),
        (vec(record(), 0..3), holds()).prop_map(|(commit, abort)| Request::Settle(Settle { commit, abort })),
        holds().prop_map(|holds| Request::Retire(Retire { holds })),
        number().prop_map(|id| Request::ClientGone(ClientId(id))),
        vec(commit_item(), 0..4).prop_map(|items| Request::Commit(Commit { items })),
        holds().prop_map(Request::Abort),
        holds().prop_map(Request::Keep),
        holds().prop_map(Request::BeginViews),
        holds().prop_map(Request::EndViews),
        Just(Request::Goodbye),
    ]
}

/// Any reply.
pub(crate) fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        (small(), small(), number(), number(), segment()).prop_map(
            |(major, minor, epoch, heartbeat_ms, segment)| {
                Reply::Welcome(Welcome { major, minor, epoch, heartbeat_ms, segment })
            }
        ),
        (reason(), text()).prop_map(|(reason, message)| Reply::Refused(Refusal { reason, message })),
        Just(Reply::Done),
        (vec(reserve_outcome(), 0..4), vec(node_info(), 0..3))
            .prop_map(|(items, nodes)| Reply::Reserved(Reserved { items, nodes })),
        (vec(resolve_outcome(), 0..4), vec(node_info(), 0..3))
            .prop_map(|(items, nodes)| Reply::Resolved(Resolved { items, nodes })),
        vec(delete_outcome(), 0..5).prop_map(Reply::Deleted),
        (number(), texts()).prop_map(|(count, unconfirmed)| {
            Reply::DeletedMatching(DeletedMatching { count, unconfirmed })
        }),
        (vec(list_item(), 0..4), number())
            .prop_map(|(items, cursor)| Reply::Listed(Listed { items, cursor })),
        stat().prop_map(Reply::Stat),
        (number(), flag(), holds()).prop_map(|(epoch, discard, retire)| Reply::Registered(Registered {
            epoch,
            discard,
            retire
        })),
        holds().prop_map(Reply::Announced),
        vec(commit_outcome(), 0..5).prop_map(Reply::Decided),
        (vec(option::of(reservation()), 0..5), usage())
            .prop_map(|(items, usage)| Reply::Allocated(Allocated { items, usage })),
        (holds(), usage()).prop_map(|(lost, usage)| Reply::Settled(Settled { lost, usage })),
        vec(commit_outcome(), 0..5).prop_map(Reply::Committed),
        vec(flag(), 0..200).prop_map(Reply::ViewsBegun),
    ]
}

/// Zero, small and huge numbers alike: they have different lengths on the wire.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 1..200u64, any::<u64>(), Just(u64::MAX)]
}

fn small() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), 1..200u32, any::<u32>(), Just(u32::MAX)]
}

fn flag() -> impl Strategy<Value = bool> {
    any::<bool>()
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-zé€𝄞]{1,40}", "x{120,140}"]
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    vec(text(), 0..4)
}

fn key() -> impl Strategy<Value = Key> {
    prop_oneof![vec(any::<u8>(), 1..40), vec(any::<u8>(), 100..300)]
        .prop_map(|bytes| Key::new(&bytes).unwrap())
}

fn segment() -> impl Strategy<Value = SegmentId> {
    number().prop_map(SegmentId)
}

fn generation() -> impl Strategy<Value = Generation> {
    (number(), number()).prop_map(|(epoch, counter)| Generation { epoch, counter })
}

fn hold() -> impl Strategy<Value = Hold> {
    (small(), number()).prop_map(|(slot, stamp)| Hold { slot: SlotId(slot), stamp: Stamp(stamp) })
}

fn holds() -> impl Strategy<Value = Vec<Hold>> {
    vec(hold(), 0..30)
}

fn location() -> impl Strategy<Value = Location> {
    (segment(), hold()).prop_map(|(segment, hold)| Location { segment, slot: hold.slot, stamp: hold.stamp })
}

fn reservation() -> impl Strategy<Value = Reservation> {
    let extent = (number(), number()).prop_map(|(offset, len)| Extent { offset, len });
    (location(), vec(extent, 0..20)).prop_map(|(location, extents)| Reservation { location, extents })
}

fn usage() -> impl Strategy<Value = Usage> {
    (number(), number(), number(), number(), number(), number()).prop_map(
        |(capacity, free, granted, committed, held, objects)| Usage {
            capacity,
            free,
            granted,
            committed,
            held,
            objects,
        },
    )
}

fn node_info() -> impl Strategy<Value = NodeInfo> {
    (segment(), text(), text(), text(), text(), text(), text()).prop_map(
        |(segment, name, tcp, data, unix, memory, host)| NodeInfo {
            segment,
            name,
            tcp,
            data,
            unix,
            memory,
            host,
        },
    )
}

fn hello() -> impl Strategy<Value = Hello> {
    let role = select(&[Role::Client, Role::Node][..]);
    let numbers = (small(), small(), number(), option::of(segment()));
    (numbers, role, text(), text(), text(), text()).prop_map(
        |((major, minor, client, home), role, token, namespace, label, host)| Hello {
            major,
            minor,
            token,
            namespace,
            role,
            client: ClientId(client),
            label,
            home,
            host,
        },
    )
}

fn reason() -> impl Strategy<Value = Reason> {
    use Reason::*;
    select(&[Invalid, Unauthenticated, Version, NotForYou, Busy, Unreachable, Closing][..])
}

fn options() -> impl Strategy<Value = PutOptions> {
    let on_exists = select(&[OnExists::Replace, OnExists::Keep][..]);
    (small(), on_exists, flag(), option::of(number()), texts()).prop_map(
        |(replicas, on_exists, hard_pin, soft_pin_ms, preferred)| PutOptions {
            replicas,
            on_exists,
            hard_pin,
            soft_pin_ms,
            preferred,
        },
    )
}

fn reserve() -> impl Strategy<Value = Reserve> {
    let item = (key(), number(), options()).prop_map(|(key, len, options)| ReserveItem { key, len, options });
    (vec(item, 0..4), vec(segment(), 0..20)).prop_map(|(items, avoid)| Reserve { items, avoid })
}

fn resolve() -> impl Strategy<Value = Resolve> {
    (vec(key(), 0..6), flag(), flag(), flag()).prop_map(|(keys, touch, lease, locate)| Resolve {
        keys,
        touch,
        lease,
        locate,
    })
}

fn pattern() -> impl Strategy<Value = Pattern> {
    prop_oneof![
        Just(Pattern::All),
        vec(any::<u8>(), 0..20).prop_map(Pattern::Prefix),
        text().prop_map(Pattern::Regex),
    ]
}

fn record() -> impl Strategy<Value = Record> {
    (hold(), text(), key(), generation(), number(), flag()).prop_map(
        |(hold, namespace, key, generation, len, hard_pin)| Record {
            hold,
            namespace,
            key,
            generation,
            len,
            hard_pin,
        },
    )
}

fn commit_item() -> impl Strategy<Value = CommitItem> {
    (hold(), key(), number(), options(), vec(location(), 0..4))
        .prop_map(|(hold, key, len, options, others)| CommitItem { hold, key, len, options, others })
}

fn allocate() -> impl Strategy<Value = Allocate> {
    let item = (number(), number()).prop_map(|(len, name_len)| AllocateItem { len, name_len });
    (number(), vec(item, 0..20)).prop_map(|(client, items)| Allocate { client: ClientId(client), items })
}

fn reserve_outcome() -> impl Strategy<Value = ReserveOutcome> {
    prop_oneof![
        vec(reservation(), 0..4).prop_map(ReserveOutcome::Room),
        generation().prop_map(ReserveOutcome::Exists),
        usage().prop_map(ReserveOutcome::Full),
        text().prop_map(ReserveOutcome::Invalid),
    ]
}

fn resolve_outcome() -> impl Strategy<Value = ResolveOutcome> {
    let found = (generation(), number(), vec(location(), 0..4), flag(), flag(), flag()).prop_map(
        |(generation, len, replicas, hard_pin, soft_pin, leased)| Found {
            generation,
            len,
            replicas,
            hard_pin,
            soft_pin,
            leased,
        },
    );
    prop_oneof![
        found.prop_map(ResolveOutcome::Found),
        Just(ResolveOutcome::Absent),
        texts().prop_map(ResolveOutcome::Unavailable),
    ]
}

fn delete_outcome() -> impl Strategy<Value = DeleteOutcome> {
    prop_oneof![
        Just(DeleteOutcome::Deleted),
        Just(DeleteOutcome::Absent),
        Just(DeleteOutcome::Leased),
        texts().prop_map(DeleteOutcome::Unconfirmed),
    ]
}

fn commit_outcome() -> impl Strategy<Value = CommitOutcome> {
    prop_oneof![
        generation().prop_map(CommitOutcome::Stored),
        generation().prop_map(CommitOutcome::Replaced),
        generation().prop_map(CommitOutcome::Exists),
        Just(CommitOutcome::Stale),
    ]
}

fn list_item() -> impl Strategy<Value = ListItem> {
    (key(), generation(), number(), small()).prop_map(|(key, generation, len, replicas)| ListItem {
        key,
        generation,
        len,
        replicas,
    })
}

fn stat() -> impl Strategy<Value = Stat> {
    let node = (node_info(), flag(), usage(), number()).prop_map(|(info, alive, usage, owed)| NodeStat {
        info,
        alive,
        usage,
        owed,
    });
    let namespace = (text(), number(), number()).prop_map(|(name, objects, bytes)| NamespaceStat {
        name,
        objects,
        bytes,
    });
    (vec(node, 0..3), vec(namespace, 0..3), (number(), number(), number(), number(), number())).prop_map(
        |(nodes, namespaces, (epoch, clients, evicted_objects, evicted_bytes, soft_pinned))| Stat {
            epoch,
            clients,
            nodes,
            namespaces,
            evicted_objects,
            evicted_bytes,
            soft_pinned,
        },
    )
}
