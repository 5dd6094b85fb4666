//! An independent protobuf implementation reads what we write, and writes what we read.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code")]

use prost::Message;
use tiffin_proto::frame::{self, HEADER_BYTES};
use tiffin_proto::{Incoming, decode, encode_reply, encode_request};
use tiffin_types::message::{
    Allocated, ClientToMaster, Pattern, PutOptions, Reply, Reserve, ReserveItem, Usage,
};
use tiffin_types::{Extent, Key, Location, RequestId, Reservation, SegmentId, SlotId, Stamp};

#[derive(Clone, PartialEq, Message)]
struct WireReserve {
    #[prost(message, repeated, tag = "1")]
    items: Vec<WireReserveItem>,
    #[prost(fixed64, repeated, tag = "2")]
    avoid: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct WireReserveItem {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(uint64, tag = "2")]
    len: u64,
    #[prost(message, optional, tag = "3")]
    options: Option<WirePutOptions>,
}

#[derive(Clone, PartialEq, Message)]
struct WirePutOptions {
    #[prost(uint32, tag = "1")]
    replicas: u32,
    #[prost(int32, tag = "2")]
    on_exists: i32,
    #[prost(bool, tag = "3")]
    hard_pin: bool,
    #[prost(uint64, optional, tag = "4")]
    soft_pin_ms: Option<u64>,
    #[prost(string, repeated, tag = "5")]
    preferred: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct WireAllocated {
    #[prost(message, repeated, tag = "1")]
    items: Vec<WireMaybe>,
    #[prost(message, optional, tag = "2")]
    usage: Option<WireUsage>,
}

#[derive(Clone, PartialEq, Message)]
struct WireMaybe {
    #[prost(message, optional, tag = "1")]
    reservation: Option<WireReservation>,
}

#[derive(Clone, PartialEq, Message)]
struct WireReservation {
    #[prost(message, optional, tag = "1")]
    location: Option<WireLocation>,
    #[prost(message, repeated, tag = "2")]
    extents: Vec<WireExtent>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct WireLocation {
    #[prost(fixed64, tag = "1")]
    segment: u64,
    #[prost(uint32, tag = "2")]
    slot: u32,
    #[prost(fixed64, tag = "3")]
    stamp: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct WireExtent {
    #[prost(uint64, tag = "1")]
    offset: u64,
    #[prost(uint64, tag = "2")]
    len: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct WireUsage {
    #[prost(uint64, tag = "1")]
    capacity: u64,
    #[prost(uint64, tag = "2")]
    free: u64,
}

#[derive(Clone, PartialEq, Message)]
struct WireList {
    #[prost(message, optional, tag = "1")]
    pattern: Option<WirePattern>,
    #[prost(uint64, tag = "2")]
    cursor: u64,
    #[prost(uint32, tag = "3")]
    limit: u32,
}

#[derive(Clone, PartialEq, Message)]
struct WirePattern {
    #[prost(oneof = "Which", tags = "1, 2, 3")]
    which: Option<Which>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Which {
    #[prost(message, tag = "1")]
    All(WireEmpty),
    #[prost(bytes, tag = "2")]
    Prefix(Vec<u8>),
    #[prost(string, tag = "3")]
    Regex(String),
}

#[derive(Clone, Copy, PartialEq, Message)]
struct WireEmpty {}

#[derive(Clone, PartialEq, Message)]
struct WireViewsBegun {
    #[prost(bool, repeated, tag = "1")]
    views: Vec<bool>,
}

/// Both ways: prost reads our bytes as `wire`, and we read prost's bytes as `ours`.
fn check<W: Message + Default + PartialEq + std::fmt::Debug>(ours: Incoming, wire: &W) {
    let frame = match &ours {
        Incoming::Request(id, request) => encode_request(*id, request),
        Incoming::Reply(id, reply) => encode_reply(*id, reply),
    }
    .unwrap();
    assert_eq!(&W::decode(&frame[HEADER_BYTES..]).unwrap(), wire);
    let mut header = frame::decode_header(frame.first_chunk().unwrap()).unwrap();
    let payload = wire.encode_to_vec();
    header.len = payload.len() as u32;
    assert_eq!(decode(&header, &payload).unwrap(), ours);
}

#[test]
fn reserve_is_protobuf() {
    let options = PutOptions {
        replicas: 2,
        soft_pin_ms: Some(0),
        preferred: vec!["here".to_owned(), String::new(), "é".repeat(100)],
        hard_pin: true,
        ..PutOptions::default()
    };
    let wire_options = WirePutOptions {
        replicas: 2,
        on_exists: 0,
        hard_pin: true,
        soft_pin_ms: Some(0),
        preferred: options.preferred.clone(),
    };
    let item = ReserveItem { key: Key::new(b"\xff\x00").unwrap(), len: u64::MAX, options };
    let avoid = vec![SegmentId(1), SegmentId(u64::MAX)];
    check(
        Incoming::Request(
            RequestId(1),
            ClientToMaster::Reserve(Reserve { items: vec![item], avoid, ..Reserve::default() }).into(),
        ),
        &WireReserve {
            items: vec![WireReserveItem {
                key: b"\xff\x00".to_vec(),
                len: u64::MAX,
                options: Some(wire_options),
            }],
            avoid: vec![1, u64::MAX],
        },
    );
}

#[test]
fn list_with_gaps_is_protobuf() {
    let location = Location { segment: SegmentId(7), slot: SlotId(3), stamp: Stamp(1 << 40) };
    let extents: Vec<Extent> = (0..50).map(|at| Extent { offset: at * 64, len: 64 }).collect();
    let wire = WireReservation {
        location: Some(WireLocation { segment: 7, slot: 3, stamp: 1 << 40 }),
        extents: extents.iter().map(|found| WireExtent { offset: found.offset, len: found.len }).collect(),
    };
    let items = vec![None, Some(Reservation { location, extents }), None];
    let usage = Usage { capacity: 300, free: 5, ..Usage::default() };
    check(
        Incoming::Reply(RequestId(1), Reply::Allocated(Allocated { items, usage, short: Vec::new() })),
        &WireAllocated {
            items: [None, Some(wire), None].map(|reservation| WireMaybe { reservation }).into(),
            usage: Some(WireUsage { capacity: 300, free: 5 }),
        },
    );
}

#[test]
fn enum_is_a_protobuf_oneof() {
    for (pattern, which) in [
        (Pattern::All, Which::All(WireEmpty {})),
        (Pattern::Prefix(Vec::new()), Which::Prefix(Vec::new())),
        (Pattern::Regex("a+".to_owned()), Which::Regex("a+".to_owned())),
    ] {
        let list = tiffin_types::message::List {
            pattern,
            pinned_by: None,
            cursor: 9,
            limit: 100,
            report_wait_ms: 0,
        };
        let pattern = Some(WirePattern { which: Some(which) });
        check(
            Incoming::Request(RequestId(1), ClientToMaster::List(list).into()),
            &WireList { pattern, cursor: 9, limit: 100 },
        );
    }
}

#[test]
fn list_of_numbers_is_packed_protobuf() {
    let views: Vec<bool> = (0..300).map(|at| at % 3 == 0).collect();
    check(Incoming::Reply(RequestId(1), Reply::ViewsBegun(views.clone())), &WireViewsBegun { views });
}
