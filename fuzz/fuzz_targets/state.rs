//! Any bytes, first as a whole state file of the master, then as the body of one whose header is right:
//! nothing may panic, and what was understood must survive being written again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tiffin_proto::{decode_state, encode_state, with_state_header};

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    read(&with_state_header(bytes));
});

fn read(bytes: &[u8]) {
    if let Ok(saved) = decode_state(bytes) {
        let again = encode_state(&saved).expect("what fitted into the file fits again");
        assert_eq!(decode_state(&again), Ok(saved));
    }
}
