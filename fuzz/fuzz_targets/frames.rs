//! See `crates/proto/src/fuzz.rs`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tiffin_fuzz::decode("frames", bytes));
