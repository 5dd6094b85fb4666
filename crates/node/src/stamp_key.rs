//! Stamps that no client can guess: a keyed permutation of the numbers 1, 2, 3, …
//!
//! A client that names a location on a socket gets bytes only if the stamp is right, so a stamp must not
//! follow from others. A permutation keeps what a counter promises: no stamp is ever used twice. The node
//! that adopts memory continues with the key and the number of its predecessor.
//!
//! The permutation is a Feistel network of 62 bits, the size of a stamp. Its round function is SipHash-1-3.
//! Four rounds suffice in theory, for a perfect round function and few known stamps; there are six.
//!
//! **Invariant:** `number(stamp(n)) == n` for every number from 1 to [`STAMPS_MAX`] - 1. No stamp is zero.
//! **Invariant:** the key is in no memory that clients map, and in no message.

use std::fmt;

use tiffin_types::{STAMPS_MAX, Stamp};

const ROUNDS: u64 = 6;
/// Bits of each half of a stamp.
const HALF_BITS: u32 = STAMPS_MAX.ilog2() / 2;
const HALF_MASK: u64 = (1 << HALF_BITS) - 1;

/// The secret from which the stamps of one segment follow. The shell draws it from the system.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct StampKey([u64; 2]);

impl StampKey {
    /// Bytes of a key.
    pub const BYTES: usize = 16;

    /// The key with these bytes, which must be random.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let key = u128::from_le_bytes(bytes);
        Self([key as u64, (key >> 64) as u64])
    }

    /// The stamp with this number: at least 1, and less than [`STAMPS_MAX`].
    #[must_use]
    pub fn stamp(self, number: u64) -> Stamp {
        assert!((1..STAMPS_MAX).contains(&number), "there is no stamp {number}");
        // Exactly one number becomes zero, which is no stamp. It gets the one that zero would become.
        match self.permute(number) {
            0 => Stamp(self.permute(0)),
            stamp => Stamp(stamp),
        }
    }

    /// The number of a stamp. `u64::MAX` for what is not one.
    #[must_use]
    pub fn number(self, stamp: Stamp) -> u64 {
        if !(1..STAMPS_MAX).contains(&stamp.0) {
            return u64::MAX;
        }
        match self.reverse(stamp.0) {
            0 => self.reverse(0),
            number => number,
        }
    }

    fn permute(self, number: u64) -> u64 {
        let halves = (number >> HALF_BITS, number & HALF_MASK);
        let (left, right) = (0..ROUNDS).fold(halves, |(left, right), round| {
            let mixed = left ^ (self.mix(round, right) & HALF_MASK);
            (right, mixed)
        });
        left << HALF_BITS | right
    }

    fn reverse(self, stamp: u64) -> u64 {
        let halves = (stamp >> HALF_BITS, stamp & HALF_MASK);
        let (left, right) = (0..ROUNDS).rev().fold(halves, |(left, right), round| {
            let mixed = right ^ (self.mix(round, left) & HALF_MASK);
            (mixed, left)
        });
        left << HALF_BITS | right
    }

    /// SipHash-1-3 of five bytes: a half, and the round.
    fn mix(self, round: u64, half: u64) -> u64 {
        self.sip(5 << 56 | round << 32 | half)
    }

    /// SipHash-1-3 of less than eight bytes. The last byte of the block is their number.
    fn sip(self, block: u64) -> u64 {
        let [first, second] = self.0;
        let mut state = [
            first ^ 0x736f_6d65_7073_6575,
            second ^ 0x646f_7261_6e64_6f6d,
            first ^ 0x6c79_6765_6e65_7261,
            second ^ 0x7465_6462_7974_6573 ^ block,
        ];
        state = sip_round(state);
        state[0] ^= block;
        state[2] ^= 0xff;
        state = sip_round(sip_round(sip_round(state)));
        let [a, b, c, d] = state;
        a ^ b ^ c ^ d
    }
}

/// It is a secret.
impl fmt::Debug for StampKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("StampKey(..)")
    }
}

fn sip_round([mut a, mut b, mut c, mut d]: [u64; 4]) -> [u64; 4] {
    a = a.wrapping_add(b);
    b = b.rotate_left(13) ^ a;
    a = a.rotate_left(32);
    c = c.wrapping_add(d);
    d = d.rotate_left(16) ^ c;
    a = a.wrapping_add(d);
    d = d.rotate_left(21) ^ a;
    c = c.wrapping_add(b);
    b = b.rotate_left(17) ^ c;
    c = c.rotate_left(32);
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, hash_map::DefaultHasher};
    use std::hash::Hasher;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn round_function_is_siphash_1_3() {
        // The published vector of the empty message, for the key 0, 1, 2, …, 15.
        let key = StampKey::from_bytes(std::array::from_fn(|at| at as u8));
        assert_eq!(key.sip(0).to_le_bytes(), [0xdc, 0xc4, 0x0f, 0x05, 0x58, 0x01, 0xac, 0xab]);
        let zero = StampKey::from_bytes([0; StampKey::BYTES]);
        for (round, half) in [(0, 0), (1, 2), (5, HALF_MASK)] {
            let mut hasher = DefaultHasher::new();
            hasher.write(&(half as u32).to_le_bytes());
            hasher.write(&[round as u8]);
            assert_eq!(zero.mix(round, half), hasher.finish(), "{round} {half}");
        }
    }

    proptest! {
        #[test]
        fn stamps_and_numbers_correspond(key: [u8; StampKey::BYTES], number in 1..STAMPS_MAX) {
            let key = StampKey::from_bytes(key);
            let stamp = key.stamp(number);
            prop_assert!((1..STAMPS_MAX).contains(&stamp.0));
            prop_assert_eq!(key.number(stamp), number);
        }
    }

    #[test]
    fn stamps_are_distinct_and_show_no_order() {
        const COUNT: u64 = 10_000;
        let key = StampKey::from_bytes([7; StampKey::BYTES]);
        let stamps: Vec<_> = (1..=COUNT).map(|it| key.stamp(it).0).collect();
        assert_eq!(stamps.iter().collect::<BTreeSet<_>>().len() as u64, COUNT);
        let rises = stamps.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert!((4_700..5_300).contains(&rises), "{rises} of {COUNT}");
        // Every bit changes in about half of the steps.
        for bit in 0..STAMPS_MAX.ilog2() {
            let flips = stamps.windows(2).filter(|pair| (pair[0] ^ pair[1]) >> bit & 1 == 1).count();
            assert!((4_700..5_300).contains(&flips), "bit {bit}: {flips} of {COUNT}");
        }
        let other = StampKey::from_bytes([8; StampKey::BYTES]);
        assert!((1..=COUNT).all(|it| !stamps.contains(&other.stamp(it).0)));
    }

    #[test]
    fn zero_is_no_stamp_and_no_number() {
        let key = StampKey::from_bytes([3; StampKey::BYTES]);
        let hidden = key.reverse(0);
        assert_eq!(key.stamp(hidden), Stamp(key.permute(0)));
        assert_eq!(key.number(key.stamp(hidden)), hidden);
        for stamp in [0, STAMPS_MAX, u64::MAX] {
            assert_eq!(key.number(Stamp(stamp)), u64::MAX);
        }
        assert_eq!(format!("{key:?}"), "StampKey(..)");
    }
}
