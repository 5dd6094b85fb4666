//! Every message is decoded to what was encoded, also between neighbouring minor versions. Messages beyond
//! a limit are rejected on both sides.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tiffin_proto::codec::{EncodeError, Fault};
use tiffin_proto::frame::{self, Decoder, HEADER_BYTES, PAYLOAD_BYTES_MAX};
use tiffin_proto::{
    DecodeError, Incoming, decode, encode_reply, encode_request, encode_traced_request, kinds, trace_of,
};
use tiffin_types::message::*;
use tiffin_types::trace::TraceContext;
use tiffin_types::*;

use crate::support;

fn incoming(bytes: &[u8]) -> Result<Incoming, DecodeError> {
    let mut decoder = Decoder::new();
    decoder.push(bytes);
    let (header, payload) = decoder.pop().unwrap().expect("a whole frame");
    decode(&header, payload)
}

/// The same frame with another payload.
fn reframe(bytes: &[u8], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let header = frame::decode_header(bytes.first_chunk().unwrap()).unwrap();
    let mut payload = bytes[HEADER_BYTES..].to_vec();
    change(&mut payload);
    frame::encode(header.kind, header.reply, header.id, &payload)
}

/// Fields of every wire type that no version has used yet.
fn later_fields() -> Vec<u8> {
    let mut bytes = vec![0xf8, 0x3f, 0x96, 0x01]; // 1023: varint
    bytes.extend([0xf9, 0x3f, 1, 2, 3, 4, 5, 6, 7, 8]); // 1023: fixed64
    bytes.extend([0xfa, 0x3f, 3, b'n', b'e', b'w']); // 1023: bytes
    bytes.extend([0xfd, 0x3f, 1, 2, 3, 4]); // 1023: fixed32
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn requests_decode_to_what_was_encoded(id: u64, request in support::request()) {
        let id = RequestId(id);
        let bytes = encode_request(id, &request).unwrap();
        let sent = Incoming::Request(id, request);
        prop_assert_eq!(&incoming(&bytes).unwrap(), &sent);
        // From a later minor version, with fields that this one does not know.
        for front in [true, false] {
            let later = reframe(&bytes, |payload| {
                let at = if front { 0 } else { payload.len() };
                payload.splice(at..at, later_fields());
            });
            prop_assert_eq!(&incoming(&later).unwrap(), &sent);
        }
        // With a trace context, which is skipped as any other field that a receiver does not know.
        let Incoming::Request(_, request) = &sent else { unreachable!() };
        let trace = TraceContext::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        let traced = encode_traced_request(id, request, trace.as_ref()).unwrap();
        prop_assert_eq!(&incoming(&traced).unwrap(), &sent);
        prop_assert_eq!(trace_of(&traced[HEADER_BYTES..]), trace);
        prop_assert_eq!(trace_of(&bytes[HEADER_BYTES..]), None);
    }

    #[test]
    fn replies_decode_to_what_was_encoded(id: u64, reply in support::reply()) {
        let id = RequestId(id);
        let bytes = encode_reply(id, &reply).unwrap();
        let sent = Incoming::Reply(id, reply);
        prop_assert_eq!(&incoming(&bytes).unwrap(), &sent);
        let later = reframe(&bytes, |payload| payload.extend(later_fields()));
        prop_assert_eq!(&incoming(&later).unwrap(), &sent);
    }
}

#[test]
fn generators_cover_every_kind() {
    let mut runner =
        TestRunner::new_with_rng(Config::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let (mut seen, all) = (BTreeSet::new(), kinds().map(|kind| kind.number).collect());
    for _ in 0..30_000 {
        if seen == all {
            break;
        }
        let request = support::request().new_tree(&mut runner).unwrap().current();
        let reply = support::reply().new_tree(&mut runner).unwrap().current();
        seen.insert(tiffin_proto::request_kind(&request).number);
        seen.insert(tiffin_proto::reply_kind(&reply).number);
    }
    assert_eq!(seen, all);
}

#[test]
fn damaged_trace_context_is_ignored() {
    let trace = TraceContext::new([1; 16], [2; 8], 1).unwrap();
    let bytes = encode_traced_request(RequestId(1), RequestRef::Goodbye, Some(&trace)).unwrap();
    let payload = &bytes[HEADER_BYTES..];
    assert_eq!(trace_of(payload), Some(trace));
    for cut in 0..payload.len() {
        assert_eq!(trace_of(&payload[..cut]), None, "cut at {cut}");
    }
    let zero = [&payload[..3], &[0; TraceContext::BYTES]].concat();
    assert_eq!(trace_of(&zero), None, "its ids are zero");
    let longer = [&[0xc2, 0x3e, 26], &payload[3..], &[0]].concat();
    assert_eq!(trace_of(&longer), None, "it has another length");
}

#[test]
fn missing_fields_have_their_default() {
    let empty = |kind, reply| incoming(&frame::encode(kind, reply, RequestId(1), b""));
    let asked = |request: Request| Ok(Incoming::Request(RequestId(1), request));
    let answered = |reply| Ok(Incoming::Reply(RequestId(1), reply));
    assert_eq!(empty(1, false), asked(Request::Hello(Hello::default())));
    assert_eq!(empty(2, false), asked(ClientToMaster::Reserve(Reserve::default()).into()));
    assert_eq!(empty(8, false), asked(MemberToMaster::Heartbeat(Box::default()).into()));
    assert_eq!(empty(9, false), asked(MemberToMaster::Register(Box::default()).into()));
    assert_eq!(empty(257, true), answered(Reply::Welcome(Welcome::default())));
    assert_eq!(empty(258, true), answered(Reply::Refused(Refusal::default())));
    assert_eq!(empty(265, true), answered(Reply::Stat(Box::default())));
    // A nested message that lacks most of its fields: an item with a key of one byte.
    let short = frame::encode(2, false, RequestId(1), b"\x0a\x03\x0a\x01k");
    let item = ReserveItem { key: Key::new(b"k").unwrap(), len: 0, options: PutOptions::default() };
    assert_eq!(
        incoming(&short),
        asked(ClientToMaster::Reserve(Reserve { items: vec![item], ..Reserve::default() }).into())
    );
}

#[test]
fn invalid_fields_are_named() {
    let check = |kind, reply, payload: &[u8], field, fault| {
        let error = incoming(&frame::encode(kind, reply, RequestId(3), payload)).unwrap_err();
        assert_eq!(error.id(), RequestId(3));
        let DecodeError::Malformed { source, .. } = error else { panic!("{error}") };
        assert_eq!((source.field, source.fault), (field, fault), "{error}");
    };
    check(2, false, b"\x0a\x00", "ReserveItem.key", Fault::Missing);
    check(2, false, b"\x0a\x02\x0a\x00", "ReserveItem.key", Fault::Key(KeyError::Empty));
    check(5, false, b"", "Pattern", Fault::Missing);
    check(260, true, b"\x0a\x00", "ReserveOutcome", Fault::Missing);
    check(1, false, b"\x28\x7f", "Hello.role", Fault::Choice(127));
    check(1, false, b"\x1a\x01\xff", "Hello.token", Fault::Text);
    check(1, false, b"\x1a\x05ab", "Hello.token", Fault::Truncated);
    check(1, false, b"\x08\xff\xff\xff\xff\x10", "Hello.major", Fault::Range);
    check(1, false, b"\x0a\x01a", "Hello.major", Fault::Tag(2));
    check(7, false, b"\x0b", "Stat", Fault::Tag(0x0b));
    check(7, false, b"\x00", "Stat", Fault::Tag(0));
    check(7, false, &[0xff; 11], "Stat", Fault::Range);
    check(16, false, &[0x0a, 0x80], "Commit.items", Fault::Truncated);
    check(3, false, b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "Resolve.keys", Fault::Truncated);
}

#[test]
fn refusal_for_an_unknown_reason_is_a_refusal() {
    let bytes = frame::encode(258, true, RequestId(1), b"\x08\x63\x12\x02no");
    let refusal = Refusal { reason: Reason::Invalid, message: "no".to_owned() };
    assert_eq!(incoming(&bytes), Ok(Incoming::Reply(RequestId(1), Reply::Refused(refusal))));
}

#[test]
fn unknown_kind_is_an_error_with_its_id() {
    // A reply's number in a request, and the reverse, are unknown, too.
    for (kind, reply) in [(0, false), (999, false), (999, true), (1, true), (257, false)] {
        let error = incoming(&frame::encode(kind, reply, RequestId(8), b"")).unwrap_err();
        assert_eq!(error, DecodeError::Kind { id: RequestId(8), kind });
    }
}

#[test]
fn gaps_in_a_list_are_kept() {
    let some = Reservation { extents: vec![Extent { offset: 64, len: 1 }], ..Reservation::default() };
    let items = vec![None, Some(some), None, Some(Reservation::default()), None];
    let reply = Reply::Allocated(Allocated { items, ..Allocated::default() });
    let bytes = encode_reply(RequestId(1), &reply).unwrap();
    assert_eq!(incoming(&bytes), Ok(Incoming::Reply(RequestId(1), reply)));
}

#[test]
fn numbers_may_be_packed_or_not() {
    let expected = Ok(Incoming::Reply(RequestId(1), Reply::ViewsBegun(vec![true, false, true])));
    assert_eq!(incoming(&frame::encode(272, true, RequestId(1), b"\x0a\x03\x01\x00\x01")), expected);
    assert_eq!(incoming(&frame::encode(272, true, RequestId(1), b"\x08\x01\x08\x00\x08\x01")), expected);
}

#[test]
fn batch_limit_applies_on_both_sides() {
    let full = Reply::ViewsBegun(vec![true; BATCH_ITEMS_MAX]);
    let bytes = encode_reply(RequestId(1), &full).unwrap();
    assert_eq!(incoming(&bytes), Ok(Incoming::Reply(RequestId(1), full)));
    let over = Reply::ViewsBegun(vec![true; BATCH_ITEMS_MAX + 1]);
    let error = EncodeError::TooMany { items: BATCH_ITEMS_MAX + 1, max: BATCH_ITEMS_MAX };
    assert_eq!(encode_reply(RequestId(1), &over), Err(error));

    let too_many = |kind, reply, one: &[u8], count: usize, max| {
        let bytes = frame::encode(kind, reply, RequestId(1), &one.repeat(count));
        let Err(DecodeError::Malformed { source, .. }) = incoming(&bytes) else { panic!("kind {kind}") };
        assert_eq!(source.fault, Fault::TooMany(max));
    };
    too_many(272, true, b"\x08\x01", BATCH_ITEMS_MAX + 1, BATCH_ITEMS_MAX);
    too_many(262, true, b"\x0a\x02\x0a\x00", BATCH_ITEMS_MAX + 1, BATCH_ITEMS_MAX);
    too_many(3, false, b"\x0a\x01k", BATCH_ITEMS_MAX + 1, BATCH_ITEMS_MAX);
}

#[test]
fn message_size_is_limited() {
    let key = Key::new(&vec![1; KEY_BYTES_MAX]).unwrap();
    let resolve =
        |keys| ClientToMaster::Resolve(Resolve { keys: vec![key.clone(); keys], ..Resolve::default() });
    let fits = PAYLOAD_BYTES_MAX / KEY_BYTES_MAX - 1;
    assert!(encode_request(RequestId(1), &resolve(fits)).is_ok());
    assert_eq!(encode_request(RequestId(1), &resolve(fits + 1)), Err(EncodeError::TooLong));
    assert_eq!(encode_request(RequestId(1), &resolve(fits * 3)), Err(EncodeError::TooLong));
}
