//! A short, repeatable fuzz test of the decoder: random bytes, and valid frames that were truncated,
//! flipped, spliced and given a new checksum. Nothing may panic, and memory must stay in proportion to the
//! bytes. `fuzz/` does the same without an end.

use std::cell::Cell;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tiffin_proto::frame::{self, Decoder, HEADER_BYTES};
use tiffin_proto::{decode, encode_reply, encode_request, kinds};
use tiffin_types::RequestId;

use crate::support;

const SEED: u64 = 0x7401;
const CASES: usize = 200_000;

/// Decodes the bytes as a peer would. Returns whether that gave a message.
fn check(bytes: &[u8]) -> bool {
    let understood = Cell::new(false);
    let read = |bytes: &[u8]| {
        let mut decoder = Decoder::new();
        decoder.push(bytes);
        while let Ok(Some((header, payload))) = decoder.pop() {
            understood.set(understood.get() | decode(&header, payload).is_ok());
        }
    };
    tiffin_smoke::check("frames", read, bytes);
    understood.get()
}

fn true_frames(count: usize) -> Vec<Vec<u8>> {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    (0..count)
        .map(|at| match at % 2 {
            0 => {
                let request = support::request().new_tree(&mut runner).unwrap().current();
                encode_request(RequestId(at as u64), &request).unwrap()
            }
            _ => {
                let reply = support::reply().new_tree(&mut runner).unwrap().current();
                encode_reply(RequestId(at as u64), &reply).unwrap()
            }
        })
        .collect()
}

fn noise(rng: &mut ChaCha8Rng, len_max: usize) -> Vec<u8> {
    let len = rng.random_range(0..=len_max);
    (0..len).map(|_| rng.random()).collect()
}

/// Damages the payload, then computes a new checksum, so that the damage reaches the codec.
fn damage(rng: &mut ChaCha8Rng, frames: &[Vec<u8>]) -> Vec<u8> {
    let frame = frames.choose(rng).unwrap();
    let header = frame::decode_header(frame.first_chunk().unwrap()).unwrap();
    let mut payload = frame[HEADER_BYTES..].to_vec();
    match rng.random_range(0..4) {
        0 => payload.truncate(rng.random_range(0..=payload.len())),
        1 => {
            for _ in 0..rng.random_range(1..4) {
                let at = rng.random_range(0..payload.len().max(1));
                if let Some(byte) = payload.get_mut(at) {
                    *byte ^= 1 << rng.random_range(0..8);
                }
            }
        }
        2 => {
            let other = &frames.choose(rng).unwrap()[HEADER_BYTES..];
            let from = rng.random_range(0..=other.len());
            let at = rng.random_range(0..=payload.len());
            payload.splice(at.., other[from..].iter().copied());
        }
        _ => {
            let at = rng.random_range(0..=payload.len());
            payload.splice(at..at, noise(rng, 12));
        }
    }
    // One in eight has another kind.
    let mut kind = (header.kind, header.reply);
    if rng.random_range(0..8) == 0 {
        let all: Vec<_> = kinds().collect();
        let other = all.choose(rng).unwrap();
        kind = (other.number, other.reply);
    }
    frame::encode(kind.0, kind.1, header.id, &payload)
}

#[test]
fn no_bytes_panic_the_decoder() {
    let frames = true_frames(2000);
    assert!(frames.iter().all(|frame| check(frame)), "a valid frame was not decoded");
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    let mut understood = 0;
    for case in 0..CASES {
        let bytes = match case % 8 {
            0 => noise(&mut rng, 200),
            1 => {
                let kind = kinds().nth(rng.random_range(0..kinds().count())).unwrap();
                frame::encode(kind.number, kind.reply, RequestId(1), &noise(&mut rng, 200))
            }
            2 => {
                let frame = frames.choose(&mut rng).unwrap();
                frame[..rng.random_range(0..frame.len())].to_vec()
            }
            3 => {
                let mut frame = frames.choose(&mut rng).unwrap().clone();
                let at = rng.random_range(0..frame.len());
                frame[at] ^= 1 << rng.random_range(0..8);
                frame
            }
            _ => damage(&mut rng, &frames),
        };
        understood += usize::from(check(&bytes));
    }
    // If nothing was decoded, or everything, the damage would test too little.
    assert!((CASES / 100..CASES / 2).contains(&understood), "seed {SEED}: {understood} of {CASES}");
}

#[test]
fn short_frames_that_claim_long_lists_cost_little() {
    for kind in kinds() {
        for one in [&b"\x0a\x00"[..], b"\x12\x00", b"\x1a\x00", b"\x22\x00", b"\x0a\x02\x0a\x00"] {
            check(&frame::encode(kind.number, kind.reply, RequestId(1), &one.repeat(100_000)));
        }
        // A length of nearly the maximum, with nothing after it.
        for field in 1..8u8 {
            let payload = [field << 3 | 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f];
            assert!(!check(&frame::encode(kind.number, kind.reply, RequestId(1), &payload)) || field > 1);
        }
    }
}
