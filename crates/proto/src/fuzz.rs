//! The decoders of messages, durable state and attributes, for `tiffin-smoke` and cargo-fuzz.

use tiffin_types::attributes::{Attributes, Consumption, Expiry, SampleAttributes};
use tiffin_types::message::{
    ClientToMaster, ClientToNode, Commit, CommitItem, Delete, Hello, PutOptions, Reply, Request, Reserve,
    ReserveItem,
};
use tiffin_types::saved::{Saved, SavedMember};
use tiffin_types::{Key, RequestId, SegmentId, SlotId, SlotRef, Stamp};

use crate::frame::{self, Decoder};
use crate::{
    Incoming, decode, decode_state, encode_reply, encode_request, encode_state, kinds, with_state_header,
};

/// Name, decoder and valid inputs.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// All of them.
pub const TARGETS: [Target; 4] = [
    ("frames", frames, frame_seeds),
    ("messages", message, message_seeds),
    ("state", state, state_seeds),
    ("attributes", attributes, attribute_seeds),
];

/// A stream of frames. Every decoded message must survive a round trip.
fn frames(bytes: &[u8]) {
    let mut decoder = Decoder::new();
    decoder.push(bytes);
    while let Ok(Some((header, payload))) = decoder.pop() {
        if let Ok(message) = decode(&header, payload) {
            assert_round_trip(&message);
        }
    }
}

/// The payload of a message, of the kind that the first byte chooses.
fn message(bytes: &[u8]) {
    let Some((choice, payload)) = bytes.split_first() else { return };
    if let Some(kind) = kinds().nth(usize::from(*choice) % kinds().count()) {
        frames(&frame::encode(kind.number, kind.reply, RequestId(1), payload));
    }
}

fn assert_round_trip(message: &Incoming) {
    let bytes = match message {
        Incoming::Request(id, request) => encode_request(*id, request),
        Incoming::Reply(id, reply) => encode_reply(*id, reply),
    }
    .expect("a decoded message fits into a frame");
    let mut decoder = Decoder::new();
    decoder.push(&bytes);
    let (header, payload) = decoder.pop().expect("a valid frame").expect("a complete frame");
    assert_eq!(decode(&header, payload).as_ref(), Ok(message));
}

fn frame_seeds() -> Vec<Vec<u8>> {
    let key = |name: &[u8]| Key::new(name).expect("a valid key");
    let item = ReserveItem { key: key(b"k"), len: 4096, options: PutOptions::default() };
    let commit = CommitItem {
        slot_ref: SlotRef { slot: SlotId(3), stamp: Stamp(1 << 60) },
        key: key(b"k"),
        len: 4096,
        options: PutOptions::default(),
        others: Vec::new(),
    };
    let hello = Hello { token: "secret".into(), namespace: "default".into(), ..Hello::default() };
    let requests = [
        Request::Hello(hello),
        ClientToMaster::Reserve(Reserve { items: vec![item.clone(), item], ..Reserve::default() }).into(),
        ClientToMaster::Delete(Delete { keys: vec![key(b"a"), key(b"b")], force: true, wait_ms: 9 }).into(),
        ClientToNode::Commit(Commit { items: vec![commit], wait_ms: 5 }).into(),
        ClientToNode::KeepViews(vec![SlotRef::default(); 3]).into(),
    ];
    let replies = [Reply::Done, Reply::Stat(Box::default()), Reply::ViewsBegun(vec![true, false])];
    let requests = requests.iter().filter_map(|it| encode_request(RequestId(1), it).ok());
    requests.chain(replies.iter().filter_map(|it| encode_reply(RequestId(2), it).ok())).collect()
}

/// The payloads of the frames, each with the byte that chooses its kind.
fn message_seeds() -> Vec<Vec<u8>> {
    let seed = |bytes: &Vec<u8>| {
        let mut decoder = Decoder::new();
        decoder.push(bytes);
        let (header, payload) = decoder.pop().ok()??;
        let choice = kinds().position(|it| (it.number, it.reply) == (header.kind, header.reply))?;
        Some([&[u8::try_from(choice).ok()?], payload].concat())
    };
    frame_seeds().iter().filter_map(seed).collect()
}

/// A state file of the master, first as it is, then with a valid header.
fn state(bytes: &[u8]) {
    for bytes in [bytes.to_vec(), with_state_header(bytes)] {
        if let Ok(saved) = decode_state(&bytes) {
            let again = encode_state(&saved).expect("a decoded state fits into the file");
            assert_eq!(decode_state(&again), Ok(saved));
        }
    }
}

fn state_seeds() -> Vec<Vec<u8>> {
    let member =
        SavedMember { segment: SegmentId(7), name: "n".into(), owed: vec![3; 24], ..SavedMember::default() };
    let saved = Saved { epoch: 41, members: vec![member], forgotten: vec![SegmentId(9)], ..Saved::default() };
    let whole = encode_state(&saved).expect("a small state");
    let header_bytes = with_state_header(&[]).len();
    vec![whole.get(header_bytes..).unwrap_or_default().to_vec(), whole]
}

/// The attributes of an object, as its slot or its record on a disk has them.
fn attributes(bytes: &[u8]) {
    if let Some(attributes) = Attributes::from_bytes(bytes) {
        assert_eq!(Attributes::from_bytes(&attributes.to_bytes()), Some(attributes));
    }
}

fn attribute_seeds() -> Vec<Vec<u8>> {
    let pins = ["run-1".to_owned(), String::new()].into();
    let expiry = Some(Box::new(Expiry { ttl_ms: 30_000, ends_ms: 1 << 40 }));
    let consumption = Consumption::Groups(vec!["a".to_owned(), "b".to_owned()]);
    let (acked, stream) = (vec!["a".to_owned()], "s".to_owned());
    let sample = Some(Box::new(SampleAttributes { consumption, acked, stream, elsewhere: 7 }));
    let all = Attributes { pins, sample, copies: 2, expiry };
    vec![Attributes::default().to_bytes(), all.to_bytes()]
}

#[cfg(test)]
mod tests {
    #[test]
    fn mutated_input_harms_no_decoder() {
        tiffin_smoke::run(&super::TARGETS);
    }
}
