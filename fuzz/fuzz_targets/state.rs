//! Arbitrary bytes, first as a whole state file of the master, then as the body of one with a valid header.
//! Nothing may panic, and every decoded state must survive a round trip.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tiffin_proto::{decode_state, encode_state, with_state_header};

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    read(&with_state_header(bytes));
});

fn read(bytes: &[u8]) {
    if let Ok(saved) = decode_state(bytes) {
        let again = encode_state(&saved).expect("a decoded state fits into the file");
        assert_eq!(decode_state(&again), Ok(saved));
    }
}
