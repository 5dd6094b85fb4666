//! Generators of every message, for all tests of this crate.

mod values;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use tiffin_types::message::*;
use tiffin_types::*;

use values::*;

/// Any request.
pub(crate) fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        1 => hello().boxed().prop_map(Request::Hello),
        1 => Just(Request::Goodbye),
        23 => client_to_master().boxed().prop_map(Request::from),
        7 => member_to_master().boxed().prop_map(Request::from),
        8 => master_to_member().boxed().prop_map(Request::from),
        6 => client_to_node().boxed().prop_map(Request::from),
    ]
}

fn client_to_master() -> impl Strategy<Value = ClientToMaster> {
    prop_oneof![
        reserve().prop_map(ClientToMaster::Reserve),
        resolve().prop_map(ClientToMaster::Resolve),
        exists().prop_map(ClientToMaster::Exists),
        (vec(key(), 0..4), flag(), number())
            .prop_map(|(keys, force, wait_ms)| ClientToMaster::Delete(Delete { keys, force, wait_ms })),
        (pattern(), flag(), number()).prop_map(|(pattern, force, wait_ms)| ClientToMaster::DeleteMatching(
            DeleteMatching { pattern, force, wait_ms }
        )),
        (pattern(), number(), small(), option::of(text()), number()).prop_map(
            |(pattern, cursor, limit, pinned_by, report_wait_ms)| {
                ClientToMaster::List(List { pattern, pinned_by, cursor, limit, report_wait_ms })
            }
        ),
        Just(ClientToMaster::Stat),
        vec(measured(), 0..4).prop_map(|measured| ClientToMaster::Ping(Ping { measured })),
        (vec((number(), commit_item()), 0..4), number()).prop_map(|(items, wait_ms)| {
            let item = |(home, item)| PublishItem { home: SegmentId(home), item };
            ClientToMaster::Publish(Publish { items: items.into_iter().map(item).collect(), wait_ms })
        }),
        number().prop_map(|id| ClientToMaster::Cancel(RequestId(id))),
        (vec(key(), 0..4), ahead(), number())
            .prop_map(|(keys, ahead, wait_ms)| ClientToMaster::Prefetch(Prefetch { keys, ahead, wait_ms })),
        lifetime_request().boxed(),
        stream_request().boxed(),
    ]
}

fn measured() -> impl Strategy<Value = Measured> {
    (small(), small(), vec(number(), 0..4), number(), number()).prop_map(
        |(operation, path, counts, sum_us, bytes)| Measured { operation, path, counts, sum_us, bytes },
    )
}

fn limit_use() -> impl Strategy<Value = LimitUse> {
    (number(), number(), number(), number()).prop_map(|(limit, max, used, reached)| LimitUse {
        limit,
        max,
        used,
        reached,
    })
}

fn held_by() -> impl Strategy<Value = HeldBy> {
    (text(), number()).prop_map(|(namespace, bytes)| HeldBy { namespace, bytes })
}

fn member_to_master() -> impl Strategy<Value = MemberToMaster> {
    prop_oneof![
        (
            usage(),
            vec(viewer(), 0..4),
            vec(measured(), 0..4),
            vec(held_by(), 0..4),
            number(),
            vec(limit_use(), 0..4)
        )
            .prop_map(|(usage, viewers, measured, held, views_refused, limits)| {
                let beat = Heartbeat { usage, viewers, measured, held, views_refused, limits };
                MemberToMaster::Heartbeat(Box::new(beat))
            }),
        (node_info(), usage(), number(), number(), number(), number()).prop_map(
            |(info, usage, epoch, stamps, instance, cluster)| {
                let cluster = ClusterId(cluster);
                let register = Register { info, usage, epoch, stamps, instance, cluster };
                MemberToMaster::Register(Box::new(register))
            }
        ),
        (vec(record(), 0..4), flag())
            .prop_map(|(items, last)| MemberToMaster::Announce(Announce { items, last })),
        (vec((text(), number(), commit_item()), 0..4), number()).prop_map(|(items, wait_ms)| {
            let item = |(namespace, client, item)| DecideItem { namespace, client: ClientId(client), item };
            MemberToMaster::Decide(Decide { items: items.into_iter().map(item).collect(), wait_ms })
        }),
        (slot_refs(), usage(), vec(held_by(), 0..4)).prop_map(|(slot_refs, usage, held)| {
            MemberToMaster::Released(Released { slot_refs, usage, held })
        }),
        number().prop_map(|client| MemberToMaster::ClientDied(ClientId(client))),
        (vec(record(), 0..4), flag(), usage())
            .prop_map(|(items, corrupt, usage)| MemberToMaster::Dropped(Dropped { items, corrupt, usage })),
        drain_report().prop_map(|report| MemberToMaster::Drained(Box::new(report))),
    ]
}

fn master_to_member() -> impl Strategy<Value = MasterToMember> {
    let mark =
        (slot_ref(), attributes()).prop_map(|(slot_ref, attributes)| AttributesItem { slot_ref, attributes });
    let demote = (slot_ref(), record()).prop_map(|(source, record)| DemoteItem { source, record });
    let promote = (slot_ref(), slot_ref()).prop_map(|(slot_ref, into)| PromoteItem { slot_ref, into });
    let fetch = (slot_ref(), slot_ref(), any::<u64>(), node_info())
        .prop_map(|(from, into, len, source)| FetchItem { from, into, len, source });
    prop_oneof![
        allocate().prop_map(MasterToMember::Allocate),
        (vec(record(), 0..3), slot_refs(), slot_refs())
            .prop_map(|(commit, abort, retire)| MasterToMember::Settle(Settle { commit, abort, retire })),
        slot_refs().prop_map(|slot_refs| MasterToMember::Retire(Retire { slot_refs })),
        number().prop_map(|id| MasterToMember::ClientGone(ClientId(id))),
        vec(mark, 0..4).prop_map(MasterToMember::SetAttributes),
        slot_refs().prop_map(MasterToMember::Inspect),
        vec(demote, 0..4).prop_map(MasterToMember::Demote),
        vec(promote, 0..4).prop_map(MasterToMember::Promote),
        (drain_job(), flag()).prop_map(|(job, stop)| MasterToMember::Drain(Drain { job, stop })),
        vec(fetch, 0..4).prop_map(MasterToMember::Fetch),
    ]
}

fn drain_job() -> impl Strategy<Value = DrainJob> {
    let id = (number(), number()).prop_map(|(first, second)| JobId { first, second });
    (id, number(), vec(text(), 0..4), vec(text(), 0..4), any::<u32>()).prop_map(
        |(id, created_ms, sources, targets, concurrency)| DrainJob {
            id,
            created_ms,
            sources,
            targets,
            concurrency,
        },
    )
}

fn drain_report() -> impl Strategy<Value = DrainReport> {
    let state = select(vec![DrainState::Moving, DrainState::Empty, DrainState::Failed]);
    let counts = (number(), number(), number(), number(), number());
    (drain_job(), state, counts).prop_map(|(job, state, (succeeded, failed, blocked, active, bytes))| {
        DrainReport { job, state, succeeded, failed, blocked, active, bytes }
    })
}

fn client_to_node() -> impl Strategy<Value = ClientToNode> {
    let commit =
        || (vec(commit_item(), 0..4), number()).prop_map(|(items, wait_ms)| Commit { items, wait_ms });
    prop_oneof![
        commit().prop_map(ClientToNode::Commit),
        (commit(), vec(vec(any::<u8>(), 0..40), 0..4))
            .prop_map(|(commit, bytes)| ClientToNode::Store(Store { commit, bytes })),
        slot_refs().prop_map(ClientToNode::Abort),
        slot_refs().prop_map(ClientToNode::Keep),
        slot_refs().prop_map(ClientToNode::BeginViews),
        slot_refs().prop_map(ClientToNode::EndViews),
        slot_refs().prop_map(ClientToNode::KeepViews),
    ]
}

fn prefetch_outcome() -> impl Strategy<Value = PrefetchOutcome> {
    use PrefetchOutcome::{Absent, Cancelled, Done, Failed, Resident, Running, Skipped};
    select(vec![Absent, Resident, Done, Running, Failed, Skipped, Cancelled])
}

fn policy_change() -> impl Strategy<Value = PolicyChange> {
    let sizes = (option::of(number()), option::of(number()), option::of(number()));
    let keeps = (flag(), flag(), flag(), flag());
    (sizes, option::of(demotion()), keeps).prop_map(|((quota, max_hold_ms, guaranteed), demotion, keeps)| {
        let (keep_quota, keep_max_hold, keep_demotion, keep_guaranteed) = keeps;
        let change = PolicyChange { quota, max_hold_ms, demotion, guaranteed, ..PolicyChange::NONE };
        PolicyChange { keep_quota, keep_max_hold, keep_demotion, keep_guaranteed, ..change }
    })
}

/// Any request about pins, quotas, samples and explanations.
fn lifetime_request() -> impl Strategy<Value = ClientToMaster> {
    let keys = || vec(key(), 0..4);
    let lease = (key(), option::of(generation())).prop_map(|(key, generation)| LeaseItem { key, generation });
    let ack = (key(), generation()).prop_map(|(key, generation)| AckItem { key, generation });
    prop_oneof![
        (keys(), text(), flag(), number()).prop_map(|(keys, owner, on, wait_ms)| ClientToMaster::Pin(Pin {
            keys,
            owner,
            on,
            wait_ms
        })),
        (text(), number()).prop_map(|(owner, wait_ms)| ClientToMaster::DropPins(DropPins { owner, wait_ms })),
        policy_change().prop_map(ClientToMaster::SetPolicy),
        text().prop_map(|name| ClientToMaster::ForgetNode(ForgetNode { name })),
        number().prop_map(|it| ClientToMaster::AdmitCluster(AdmitCluster { cluster: ClusterId(it) })),
        (option::of(number()), option::of(number()), number()).prop_map(|(at_most, at_least, wait_ms)| {
            ClientToMaster::Await(Await { at_most, at_least, wait_ms })
        }),
        (keys(), number())
            .prop_map(|(keys, report_wait_ms)| ClientToMaster::Why(Explain { keys, report_wait_ms })),
        (vec(lease, 0..4), text(), number()).prop_map(|(items, group, report_wait_ms)| {
            ClientToMaster::Lease(Lease { items, group, report_wait_ms })
        }),
        vec(number(), 0..9).prop_map(|leases| ClientToMaster::Release(Release { leases })),
        vec(number(), 0..9).prop_map(ClientToMaster::KeepLeases),
        (vec(ack, 0..4), text(), number(), flag(), flag()).prop_map(
            |(items, group, wait_ms, abort, unless_leased)| {
                ClientToMaster::Ack(Ack { items, group, wait_ms, abort, unless_leased })
            }
        ),
    ]
}

/// Any request about streams.
fn stream_request() -> impl Strategy<Value = ClientToMaster> {
    let attach = (text(), number()).prop_map(|(group, window)| Attach { group, window });
    prop_oneof![
        (text(), option::of(limits()), option::of(attach)).prop_map(|(name, limits, attach)| {
            ClientToMaster::OpenStream(OpenStream { name, limits, attach })
        }),
        (text(), option::of(text()), flag(), number()).prop_map(|(name, failure, drop, wait_ms)| {
            ClientToMaster::EndStream(EndStream { name, failure, drop, wait_ms })
        }),
        (text(), text(), small(), small(), number(), option::of(generation())).prop_map(
            |(stream, group, items_min, items_max, wait_ms, behind)| {
                ClientToMaster::Pull(Pull { stream, group, items_min, items_max, wait_ms, behind })
            }
        ),
    ]
}

fn stream_end() -> impl Strategy<Value = StreamEnd> {
    (option::of(text()), number()).prop_map(|(failure, outstanding)| StreamEnd { failure, outstanding })
}

fn stream_stat() -> impl Strategy<Value = StreamStat> {
    let group = (text(), (number(), number(), number()), (number(), number(), number())).prop_map(
        |(group, (ready, out, delivered), (acked, consumers, window))| GroupStat {
            group,
            ready,
            out,
            delivered,
            acked,
            consumers,
            window,
        },
    );
    let numbers = (number(), number(), number(), number());
    let counts = (number(), number(), number());
    (numbers, limits(), flag(), option::of(stream_end()), counts, vec(group, 0..4)).prop_map(
        |((refs, bytes, granted, granted_bytes), limits, is_shut, end, counts, groups)| {
            let (appended, recovered, consumed) = counts;
            let stat = StreamStat {
                refs,
                bytes,
                granted,
                granted_bytes,
                limits,
                is_shut,
                end,
                ..Default::default()
            };
            StreamStat { appended, recovered, consumed, groups, ..stat }
        },
    )
}

/// Any reply about pins, quotas, samples and explanations.
fn lifetime_reply() -> impl Strategy<Value = Reply> {
    use AckOutcome as A;
    use LeaseOutcome as L;
    let pinned = prop_oneof![
        Just(PinOutcome::Done),
        Just(PinOutcome::Absent),
        Just(PinOutcome::TooMany),
        Just(PinOutcome::NotPinned),
        texts().prop_map(PinOutcome::Unconfirmed),
    ];
    let acked = prop_oneof![
        select(&[A::Freed, A::Recorded, A::Stale, A::WrongGroup][..]),
        texts().prop_map(A::Unconfirmed),
    ];
    let leased = prop_oneof![
        select(&[L::Absent, L::Consumed, L::NotASample, L::WrongGroup][..]),
        generation().prop_map(L::Superseded),
        (number(), found()).prop_map(|(lease, found)| L::Leased(Granted { lease, found })),
    ];
    prop_oneof![
        vec(views(), 0..9).prop_map(Reply::Inspected),
        vec(pinned, 0..5).prop_map(Reply::Pinned),
        namespace_stat().prop_map(|stat| Reply::Awaited(Box::new(stat))),
        vec(why(), 0..4).prop_map(Reply::Why),
        (vec(leased, 0..4), vec(node_info(), 0..3))
            .prop_map(|(items, nodes)| Reply::Leased(Leased { items, nodes })),
        vec(acked, 0..5).prop_map(Reply::Acked),
        stream_stat().prop_map(Reply::Stream),
        (vec((key(), number(), found()), 0..4), vec(node_info(), 0..3), option::of(stream_end())).prop_map(
            |(pulled, nodes, end)| {
                let lease = |(_, lease, found): &(Key, u64, Found)| {
                    L::Leased(Granted { lease: *lease, found: found.clone() })
                };
                let items = pulled.iter().map(lease).collect();
                let keys = pulled.into_iter().map(|it| it.0).collect();
                Reply::Pulled(Pulled { keys, leased: Leased { items, nodes }, end })
            }
        ),
    ]
}

fn why() -> impl Strategy<Value = Why> {
    use Cause::*;
    let cause = select(&[Deleted, Replaced, Evicted, NodeLost, Consumed, HeldTooLong, Expired][..]);
    let due = (text(), option::of(key()), text(), number());
    let gone = (generation(), cause, text(), number(), due).prop_map(
        |(generation, cause, by, ago_ms, (node, for_key, reader, disk_bytes_max))| Gone {
            generation,
            cause,
            by,
            ago_ms,
            node,
            for_key,
            reader,
            disk_bytes_max,
        },
    );
    let lists = (texts(), texts(), texts(), texts(), texts());
    let numbers = (number(), number(), number(), number());
    let seen = (texts(), number(), number());
    let here = (found(), lists, option::of(consumption()), (numbers, seen), text(), text()).prop_map(
        |(found, (nodes, unreachable, pins, acked, leases), sample, (numbers, seen), writer, reader)| {
            let (views, age_ms, idle_ms, lease_ms) = numbers;
            let (viewers, viewers_more, sends) = seen;
            let here = Here { found, nodes, unreachable, pins, sample, acked, leases, ..Here::default() };
            let here = Here { viewers, viewers_more, sends, ..here };
            Here { views, age_ms, idle_ms, lease_ms, writer, reader, ..here }
        },
    );
    prop_oneof![here.prop_map(|it| Why::Here(Box::new(it))), gone.prop_map(Why::Gone), Just(Why::Unknown)]
}

/// Any reply.
pub(crate) fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![
        (small(), small(), number(), number(), segment(), any::<(bool, bool)>()).prop_map(
            |(major, minor, epoch, heartbeat_ms, segment, (strict_leases, tenants))| {
                Reply::Welcome(Welcome { major, minor, epoch, heartbeat_ms, segment, strict_leases, tenants })
            }
        ),
        (reason(), text()).prop_map(|(reason, message)| Reply::Refused(Refusal { reason, message })),
        Just(Reply::Done),
        (vec(reserve_outcome(), 0..4), vec(node_info(), 0..3), vec(number().prop_map(SegmentId), 0..3))
            .prop_map(|(items, nodes, same_host)| Reply::Reserved(Reserved { items, nodes, same_host })),
        (vec(resolve_outcome(), 0..4), vec(node_info(), 0..3))
            .prop_map(|(items, nodes)| Reply::Resolved(Resolved { items, nodes })),
        vec(presence(), 0..200).prop_map(Reply::Present),
        vec(delete_outcome(), 0..5).prop_map(Reply::Deleted),
        (number(), texts()).prop_map(|(count, unconfirmed)| {
            Reply::DeletedMatching(DeletedMatching { count, unconfirmed })
        }),
        (vec(list_item(), 0..4), number())
            .prop_map(|(items, cursor)| Reply::Listed(Listed { items, cursor })),
        stat().prop_map(|stat| Reply::Stat(Box::new(stat))),
        (number(), flag(), slot_refs(), vec(record(), 0..3), number(), number()).prop_map(
            |(epoch, discard, retire, commit, instance, cluster)| {
                let cluster = ClusterId(cluster);
                Reply::Registered(Registered { epoch, discard, retire, commit, instance, cluster })
            }
        ),
        (slot_refs(), flag()).prop_map(|(retire, more)| Reply::Announced(Announced { retire, more })),
        (number(), number()).prop_map(|(members, objects)| Reply::Forgotten(Forgotten { members, objects })),
        vec(commit_outcome(), 0..5).prop_map(Reply::Decided),
        vec(option::of(commit_outcome()), 0..5).prop_map(Reply::Published),
        (vec(option::of(reservation()), 0..5), usage(), vec(shortage(), 0..5))
            .prop_map(|(items, usage, short)| Reply::Allocated(Allocated { items, usage, short })),
        (slot_refs(), usage(), vec(number().prop_map(RequestId), 0..4))
            .prop_map(|(lost, usage, also)| Reply::Settled(Settled { lost, usage, also })),
        vec(commit_outcome(), 0..5).prop_map(Reply::Committed),
        vec(flag(), 0..200).prop_map(Reply::ViewsBegun),
        vec(prefetch_outcome(), 0..20).prop_map(Reply::Prefetched),
        (vec(flag(), 0..20), usage(), vec(number(), 0..20))
            .prop_map(|(items, usage, bytes_max)| { Reply::Moved(Moved { items, usage, bytes_max }) }),
        lifetime_reply(),
    ]
}
