//! Arbitrary bytes, first as a stream of frames, then as the payload of every kind. Nothing may panic, and
//! every decoded message must survive a round trip.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tiffin_types::RequestId;
use tiffin_proto::frame::{self, Decoder};
use tiffin_proto::{Incoming, decode, encode_reply, encode_request, kinds};

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    let Some((choice, payload)) = bytes.split_first() else { return };
    if let Some(kind) = kinds().nth(usize::from(*choice) % kinds().count()) {
        read(&frame::encode(kind.number, kind.reply, RequestId(1), payload));
    }
});

fn read(bytes: &[u8]) {
    let mut decoder = Decoder::new();
    decoder.push(bytes);
    while let Ok(Some((header, payload))) = decoder.pop() {
        if let Ok(message) = decode(&header, payload) {
            say_again(&message);
        }
    }
}

fn say_again(message: &Incoming) {
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
