//! Generators of the parts of messages.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use tiffin_types::attributes::*;
use tiffin_types::message::*;
use tiffin_types::*;

/// Zero, small and huge numbers alike: they have different lengths on the wire.
pub(super) fn number() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 1..200u64, any::<u64>(), Just(u64::MAX)]
}

pub(super) fn small() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), 1..200u32, any::<u32>(), Just(u32::MAX)]
}

pub(super) fn flag() -> impl Strategy<Value = bool> {
    any::<bool>()
}

pub(super) fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-zé€𝄞]{1,40}", "x{120,140}"]
}

pub(super) fn texts() -> impl Strategy<Value = Vec<String>> {
    vec(text(), 0..4)
}

pub(super) fn key() -> impl Strategy<Value = Key> {
    prop_oneof![vec(any::<u8>(), 1..40), vec(any::<u8>(), 100..300)]
        .prop_map(|bytes| Key::new(&bytes).unwrap())
}

pub(super) fn segment() -> impl Strategy<Value = SegmentId> {
    number().prop_map(SegmentId)
}

pub(super) fn generation() -> impl Strategy<Value = Generation> {
    (number(), number()).prop_map(|(epoch, counter)| Generation { epoch, counter })
}

pub(super) fn slot_ref() -> impl Strategy<Value = SlotRef> {
    (small(), number()).prop_map(|(slot, stamp)| SlotRef { slot: SlotId(slot), stamp: Stamp(stamp) })
}

pub(super) fn slot_refs() -> impl Strategy<Value = Vec<SlotRef>> {
    vec(slot_ref(), 0..30)
}

pub(super) fn location() -> impl Strategy<Value = Location> {
    (segment(), slot_ref()).prop_map(|(segment, slot_ref)| Location {
        segment,
        slot: slot_ref.slot,
        stamp: slot_ref.stamp,
    })
}

pub(super) fn reservation() -> impl Strategy<Value = Reservation> {
    let extent = (number(), number()).prop_map(|(offset, len)| Extent { offset, len });
    (location(), vec(extent, 0..20)).prop_map(|(location, extents)| Reservation { location, extents })
}

pub(super) fn usage() -> impl Strategy<Value = Usage> {
    let counts = (number(), number(), number(), number(), number(), number(), number());
    (counts, number(), option::of(number()), number())
        .prop_map(
            |((capacity, free, granted, committed, held, objects, offered), metadata, name_max, unlisted)| {
                Usage {
                    capacity,
                    free,
                    granted,
                    committed,
                    held,
                    objects,
                    offered,
                    metadata,
                    name_max,
                    unlisted,
                }
            },
        )
        .boxed()
}

pub(super) fn resource() -> impl Strategy<Value = Resource> {
    prop_oneof![
        Just(Resource::Bytes),
        Just(Resource::Slots),
        Just(Resource::KeySpace),
        Just(Resource::Contiguous),
        Just(Resource::Share)
    ]
}

pub(super) fn shortage() -> impl Strategy<Value = Shortage> {
    (resource(), number(), number(), any::<bool>()).prop_map(|(resource, amount, bytes, never)| Shortage {
        resource,
        amount,
        bytes,
        never,
    })
}

pub(super) fn full() -> impl Strategy<Value = Full> {
    (usage(), resource(), any::<bool>()).prop_map(|(usage, lacks, never)| Full { usage, lacks, never })
}

pub(super) fn node_info() -> impl Strategy<Value = NodeInfo> {
    let kind = (option::of(segment()), any::<bool>(), number());
    (segment(), text(), text(), text(), text(), text(), text(), kind)
        .prop_map(|(segment, name, tcp, data, unix, memory, host, (beside, outlives, registration))| {
            NodeInfo { segment, name, tcp, data, unix, memory, host, beside, outlives, registration }
        })
        .boxed()
}

pub(super) fn hello() -> impl Strategy<Value = Hello> {
    let role = select(&[Role::Client, Role::Node, Role::Ledger, Role::Lane][..]);
    let numbers = (small(), small(), number(), option::of(segment()), small(), number());
    (numbers, role, text(), text(), text(), text(), text(), text())
        .prop_map(
            |(
                (major, minor, client, home, lane, journal_id),
                role,
                token,
                namespace,
                label,
                host,
                journal,
                memory,
            )| {
                Hello {
                    major,
                    minor,
                    token,
                    namespace,
                    role,
                    client: ClientId(client),
                    label,
                    home,
                    host,
                    lane,
                    journal,
                    journal_id,
                    memory,
                }
            },
        )
        .boxed()
}

pub(super) fn reason() -> impl Strategy<Value = Reason> {
    use Reason::*;
    select(&[Invalid, Unauthenticated, Version, NotForYou, Busy, Unreachable, Closing, Forbidden][..])
}

pub(super) fn options() -> impl Strategy<Value = PutOptions> {
    use OnExists::*;
    let on_exists = select(&[Replace, Keep, KeepHardPinned, KeepPinned][..]);
    let attributes =
        (text(), option::of(consumption()), text(), number(), option::of(generation()), option::of(number()));
    (small(), on_exists, flag(), option::of(number()), texts(), attributes)
        .prop_map(|(replicas, on_exists, hard_pin, soft_pin_ms, preferred, attributes)| {
            let (owner, sample, stream, elsewhere, replaces, ttl_ms) = attributes;
            PutOptions {
                replicas,
                on_exists,
                hard_pin,
                soft_pin_ms,
                preferred,
                owner,
                sample,
                stream,
                elsewhere,
                replaces,
                ttl_ms,
            }
        })
        .boxed()
}

pub(super) fn reserve() -> impl Strategy<Value = Reserve> {
    let item = (key(), number(), options()).prop_map(|(key, len, options)| ReserveItem { key, len, options });
    (vec(item, 0..4), vec(segment(), 0..20), number(), small(), number()).prop_map(
        |(items, avoid, wait_ms, spare, report_wait_ms)| Reserve {
            items,
            avoid,
            wait_ms,
            spare,
            report_wait_ms,
        },
    )
}

pub(super) fn resolve() -> impl Strategy<Value = Resolve> {
    let part = (number(), flag(), number());
    let part = part.prop_map(|(items, is_more, repeats)| CallPart { items, is_more, repeats });
    (vec(key(), 0..6), flag(), flag(), flag(), number(), number(), part).prop_map(
        |(keys, touch, lease, locate, wait_ms, report_wait_ms, part)| Resolve {
            keys,
            touch,
            lease,
            locate,
            wait_ms,
            report_wait_ms,
            part,
        },
    )
}

pub(super) fn exists() -> impl Strategy<Value = Exists> {
    let reads = (number(), number(), number(), number());
    let reads =
        reads.prop_map(|(singles, batches, items, bytes)| CachedReads { singles, batches, items, bytes });
    (vec(key(), 0..6), flag(), flag(), ahead(), reads, number()).prop_map(
        |(keys, touch, lease, ahead, reads, report_wait_ms)| Exists {
            keys: keys.iter().collect(),
            touch,
            lease,
            ahead,
            reads,
            report_wait_ms,
        },
    )
}

pub(super) fn demotion() -> impl Strategy<Value = Demotion> {
    select(vec![Demotion::OnPressure, Demotion::WriteThrough, Demotion::Never])
}

pub(super) fn tier_stat() -> impl Strategy<Value = TierStat> {
    vec(number(), 23).prop_map(|it| TierStat {
        disk_objects: it[0],
        demoted_objects: it[1],
        demoted_bytes: it[2],
        demotions_failed: it[3],
        evicted_undemoted: it[4],
        promoted_objects: it[5],
        promoted_bytes: it[6],
        promoted_used: it[7],
        promoted_unused: it[8],
        prefetch_redundant: it[9],
        prefetch_joined: it[10],
        prefetch_failed: it[11],
        prefetch_skipped: it[12],
        gets_from_memory: it[13],
        gets_from_disk: it[14],
        gets_waited: it[15],
        gets_late: it[16],
        waited_ms: it[17],
        disk_evicted: it[18],
        disk_corrupt: it[19],
        prefetch_cancelled: it[20],
        gets_from_far_disk: it[21],
        demotions_refused: it[22],
    })
}

pub(super) fn presence() -> impl Strategy<Value = Presence> {
    prop_oneof![Just(Presence::Absent), Just(Presence::Here), Just(Presence::Unavailable)]
}

pub(super) fn pattern() -> impl Strategy<Value = Pattern> {
    prop_oneof![
        Just(Pattern::All),
        vec(any::<u8>(), 0..20).prop_map(Pattern::Prefix),
        text().prop_map(Pattern::Regex),
    ]
}

pub(super) fn record() -> impl Strategy<Value = Record> {
    (slot_ref(), text(), key(), generation(), number(), attributes())
        .prop_map(|(slot_ref, namespace, key, generation, len, attributes)| Record {
            slot_ref,
            namespace,
            key,
            generation,
            len,
            attributes,
        })
        .boxed()
}

pub(super) fn commit_item() -> impl Strategy<Value = CommitItem> {
    (slot_ref(), key(), number(), options(), vec(location(), 0..4))
        .prop_map(|(slot_ref, key, len, options, others)| CommitItem { slot_ref, key, len, options, others })
        .boxed()
}

pub(super) fn allocate() -> impl Strategy<Value = Allocate> {
    let item = (number(), number(), number()).prop_map(|(len, name_len, attributes_len)| AllocateItem {
        len,
        name_len,
        attributes_len,
    });
    let guarantee = (text(), number()).prop_map(|(namespace, bytes)| Guarantee { namespace, bytes });
    let whose = (text(), vec(guarantee, 0..4), number());
    (number(), vec(item, 0..20), any::<bool>(), whose).prop_map(
        |(client, items, offered, (namespace, guarantees, evicted))| Allocate {
            client: ClientId(client),
            items,
            offered,
            namespace,
            guarantees,
            evicted,
        },
    )
}

pub(super) fn reserve_outcome() -> impl Strategy<Value = ReserveOutcome> {
    prop_oneof![
        vec(reservation(), 0..4).prop_map(ReserveOutcome::Space),
        generation().prop_map(ReserveOutcome::Exists),
        full().prop_map(ReserveOutcome::Full),
        Just(ReserveOutcome::NoNode),
        text().prop_map(ReserveOutcome::Invalid),
        (number(), number(), number()).prop_map(|(used, limit, need)| ReserveOutcome::OverQuota(Quota {
            used,
            limit,
            need
        })),
        (number(), number(), limits()).prop_map(|(refs, bytes, limits)| ReserveOutcome::Behind(Backlog {
            refs,
            bytes,
            limits
        })),
    ]
}

pub(super) fn found() -> impl Strategy<Value = Found> {
    let flags = (flag(), flag(), flag(), flag());
    (generation(), number(), vec(location(), 0..4), flags, option::of(number())).prop_map(
        |(generation, len, replicas, (hard_pin, soft_pin, leased, sample), expires_in_ms)| Found {
            generation,
            len,
            replicas,
            hard_pin,
            soft_pin,
            leased,
            sample,
            expires_in_ms,
        },
    )
}

pub(super) fn resolve_outcome() -> impl Strategy<Value = ResolveOutcome> {
    prop_oneof![
        found().prop_map(ResolveOutcome::Found),
        Just(ResolveOutcome::Absent),
        texts().prop_map(ResolveOutcome::Unavailable),
    ]
}

pub(super) fn delete_outcome() -> impl Strategy<Value = DeleteOutcome> {
    prop_oneof![
        Just(DeleteOutcome::Deleted),
        Just(DeleteOutcome::Absent),
        Just(DeleteOutcome::Leased),
        texts().prop_map(DeleteOutcome::Unconfirmed),
    ]
}

pub(super) fn commit_outcome() -> impl Strategy<Value = CommitOutcome> {
    prop_oneof![
        generation().prop_map(CommitOutcome::Stored),
        generation().prop_map(CommitOutcome::Replaced),
        generation().prop_map(CommitOutcome::Exists),
        (generation(), any::<bool>(), texts()).prop_map(|(generation, replaced, nodes)| {
            CommitOutcome::Unconfirmed(Replacement { generation, replaced, nodes })
        }),
        Just(CommitOutcome::Stale),
        Just(CommitOutcome::Removed),
    ]
}

pub(super) fn list_item() -> impl Strategy<Value = ListItem> {
    (key(), generation(), number(), small(), texts(), option::of(number())).prop_map(
        |(key, generation, len, replicas, pins, expires_in_ms)| ListItem {
            key,
            generation,
            len,
            replicas,
            pins,
            expires_in_ms,
        },
    )
}

pub(super) fn namespace_stat() -> impl Strategy<Value = NamespaceStat> {
    let numbers = (number(), number(), number(), number(), number());
    let limits = (option::of(number()), option::of(number()), demotion(), option::of(number()), number());
    let ages = (number(), number(), number(), number(), number());
    let owner = (text(), number(), number());
    let owner = owner.prop_map(|(owner, objects, bytes)| OwnerStat { owner, objects, bytes });
    let lists = (vec(owner, 0..3), vec(holder(), 0..3));
    (text(), numbers, limits, (number(), number(), number()), (ages, lists)).prop_map(
        |(
            name,
            (objects, bytes, used, granted, samples),
            (quota, max_hold_ms, demotion, guaranteed, held),
            (samples_leased, sample_age_ms, waiting),
            (
                (sample_bytes, sample_bytes_leased, leased_age_ms, samples_expired, sample_bytes_expired),
                (owners, holders),
            ),
        )| NamespaceStat {
            name,
            objects,
            bytes,
            used,
            granted,
            held,
            quota,
            guaranteed,
            demotion,
            samples,
            samples_leased,
            sample_age_ms,
            sample_bytes,
            sample_bytes_leased,
            leased_age_ms,
            max_hold_ms,
            waiting,
            samples_expired,
            sample_bytes_expired,
            owners,
            holders,
        },
    )
}

pub(super) fn holder() -> impl Strategy<Value = Holder> {
    let held = select(&[Held::Leased, Held::Reserved, Held::Viewed][..]);
    (held, text(), number(), number()).prop_map(|(held, who, objects, bytes)| Holder {
        held,
        who,
        objects,
        bytes,
    })
}

pub(super) fn viewer() -> impl Strategy<Value = Viewer> {
    (number(), number(), number()).prop_map(|(client, objects, bytes)| Viewer {
        client: ClientId(client),
        objects,
        bytes,
    })
}

pub(super) fn views() -> impl Strategy<Value = Views> {
    (number(), vec(number().prop_map(ClientId), 0..4), number(), number())
        .prop_map(|(count, clients, more, sends)| Views { count, clients, more, sends })
}

pub(super) fn copy_stat() -> impl Strategy<Value = CopyStat> {
    [(); 6].map(|()| number()).prop_map(|[short, running, made, made_bytes, failed, dropped]| CopyStat {
        short,
        running,
        made,
        made_bytes,
        failed,
        dropped,
    })
}

pub(super) fn stat() -> impl Strategy<Value = Stat> {
    let node = (node_info(), flag(), usage(), number(), vec(holder(), 0..3));
    let node =
        node.prop_map(|(info, alive, usage, owed, holders)| NodeStat { info, alive, usage, owed, holders });
    let numbers = (number(), number(), number(), number(), number(), number());
    let more = (copy_stat(), evictions(), vec(named_stream(), 0..3), evicted(), number());
    (vec(node, 0..3), vec(namespace_stat(), 0..3), numbers, tier_stat(), texts(), more).prop_map(
        |(nodes, namespaces, numbers, tier, unreported, (copies, evictions, streams, expired, expiring))| {
            Stat {
                epoch: numbers.0,
                clients: numbers.1,
                nodes,
                namespaces,
                evicted_objects: numbers.2,
                evicted_bytes: numbers.3,
                evictions,
                soft_pinned: numbers.4,
                tier: Box::new(tier),
                copies,
                unreported,
                streams,
                undecided: numbers.5,
                expired,
                expiring,
            }
        },
    )
}

fn named_stream() -> impl Strategy<Value = NamedStream> {
    (text(), text(), super::stream_stat()).prop_map(|(namespace, name, stat)| NamedStream {
        namespace,
        name,
        stat,
    })
}

fn evicted() -> impl Strategy<Value = Evicted> {
    (number(), number()).prop_map(|(objects, bytes)| Evicted { objects, bytes })
}

fn evictions() -> impl Strategy<Value = Evictions> {
    (evicted(), evicted(), evicted(), number()).prop_map(|(memory, quota, promotion, unread)| Evictions {
        memory,
        quota,
        promotion,
        unread,
    })
}

pub(super) fn consumption() -> impl Strategy<Value = Consumption> {
    prop_oneof![Just(Consumption::Once), Just(Consumption::Retained), texts().prop_map(Consumption::Groups),]
}

pub(super) fn attributes() -> impl Strategy<Value = Attributes> {
    let sample =
        (consumption(), texts(), text(), number()).prop_map(|(consumption, acked, stream, elsewhere)| {
            Box::new(SampleAttributes { consumption, acked, stream, elsewhere })
        });
    let expiry = (number(), number()).prop_map(|(ttl_ms, ends_ms)| Box::new(Expiry { ttl_ms, ends_ms }));
    (texts(), option::of(sample), 0u32..9, option::of(expiry))
        .prop_map(|(pins, sample, copies, expiry)| Attributes { pins, sample, copies, expiry })
}

pub(super) fn ahead() -> impl Strategy<Value = Ahead> {
    select(vec![Ahead::Nothing, Ahead::LeadingRun, Ahead::All])
}

pub(super) fn limits() -> impl Strategy<Value = StreamLimits> {
    (number(), number(), number(), number()).prop_map(|(refs_high, refs_low, bytes_high, bytes_low)| {
        StreamLimits { refs_high, refs_low, bytes_high, bytes_low }
    })
}
