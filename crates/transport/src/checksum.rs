//! xxh3-64 of memory that other processes may be writing.
//!
//! A hashing library takes a slice, so the bytes would have to be copied first, which took as long as
//! receiving them. This module hashes whole blocks in place: on x86-64 with AVX2, inline assembly loads them,
//! as in the [copy kernel](crate::copy); elsewhere they are copied one block at a time. A race gives the
//! checksum of unspecified bytes and no undefined behaviour.
//!
//! Input is divided as in xxh3: stripes of 64 bytes, sixteen of them a block. The last stripe is hashed
//! differently, so the end of the input so far is buffered. Short inputs, for which xxh3 has other formulas,
//! are passed to the library.

use twox_hash::XxHash3_64;
use twox_hash::xxhash3_64::{DEFAULT_SECRET_LENGTH, SecretBuffer};

use crate::buffer::SourceBuf;
use crate::copy::copy_out;

const STRIPE_BYTES: usize = 64;
/// Step, in bytes, of the part of the secret that the stripes of a block are mixed with.
const SECRET_STEP: usize = 8;
const BLOCK_BYTES: usize = (DEFAULT_SECRET_LENGTH - STRIPE_BYTES) / SECRET_STEP * STRIPE_BYTES;
/// Start of the other parts of the secret.
const SCRAMBLE_AT: usize = DEFAULT_SECRET_LENGTH - STRIPE_BYTES;
const LAST_STRIPE_AT: usize = SCRAMBLE_AT - 7;
const MERGE_AT: usize = 11;

const PRIME32_1: u64 = 0x9e37_79b1;
const PRIME64_1: u64 = 0x9e37_79b1_85eb_ca87;
const AVALANCHE: u64 = 0x1656_6791_9e37_79f9;
/// Initial values of the lanes.
const LANES: Lanes = [
    0xc2b2_ae3d,
    PRIME64_1,
    0xc2b2_ae3d_27d4_eb4f,
    0x1656_67b1_9e37_79f9,
    0x85eb_ca77_c2b2_ae63,
    0x85eb_ca77,
    0x27d4_eb2f_1656_67c5,
    PRIME32_1,
];

type Secret = [u8; DEFAULT_SECRET_LENGTH];
type Lanes = [u64; 8];

/// Whether the next bytes are expected in the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Locality {
    Cached,
    Uncached,
}

/// The xxh3-64 of the bytes of the ranges, in order.
#[must_use]
pub fn checksum<'a>(sources: impl IntoIterator<Item = SourceBuf<'a>>) -> u64 {
    let mut hash = Checksum::default();
    sources.into_iter().for_each(|source| hash.update(source));
    hash.finish()
}

/// xxh3-64 of bytes that arrive one range after the other.
#[derive(Clone, Debug)]
pub struct Checksum {
    secret: &'static Secret,
    lanes: Lanes,
    total: u64,
    /// Input that is not hashed yet: at most a block, and empty only if there was no input.
    rest: [u8; BLOCK_BYTES],
    rest_len: usize,
    /// The last stripe that was hashed.
    before: [u8; STRIPE_BYTES],
}

impl Default for Checksum {
    fn default() -> Self {
        Self {
            secret: SecretBuffer::default().into_secret(),
            lanes: LANES,
            total: 0,
            rest: [0; BLOCK_BYTES],
            rest_len: 0,
            before: [0; STRIPE_BYTES],
        }
    }
}

impl Checksum {
    /// Starts a new checksum.
    pub fn reset(&mut self) {
        (self.lanes, self.total, self.rest_len) = (LANES, 0, 0);
    }

    /// Hashes the next bytes, which were just used.
    pub fn update(&mut self, source: SourceBuf<'_>) {
        self.hash_input(source, Locality::Cached);
    }

    /// Hashes the next bytes, which may not be in a cache: they are prefetched.
    pub fn update_uncached(&mut self, source: SourceBuf<'_>) {
        self.hash_input(source, Locality::Uncached);
    }

    fn hash_input(&mut self, source: SourceBuf<'_>, locality: Locality) {
        self.total += source.len() as u64;
        let mut source = source;
        if self.rest_len > 0 {
            source = self.buffer_rest(source);
            if source.is_empty() {
                return;
            }
            let rest = SourceBuf::from(&self.rest[..]);
            accumulate_whole(&mut self.lanes, &mut self.before, rest, self.secret, Locality::Cached);
            self.rest_len = 0;
        }
        let (blocks, rest) = source.split_at(source.len().saturating_sub(1) / BLOCK_BYTES * BLOCK_BYTES);
        if !blocks.is_empty() {
            accumulate_whole(&mut self.lanes, &mut self.before, blocks, self.secret, locality);
        }
        self.buffer_rest(rest);
    }

    /// The checksum of all input.
    #[must_use]
    pub fn finish(&self) -> u64 {
        let rest = self.rest.get(..self.rest_len).unwrap_or_default();
        if self.total == self.rest_len as u64 {
            return XxHash3_64::oneshot(rest);
        }
        let mut lanes = self.lanes;
        let (whole, _) = rest.as_chunks::<STRIPE_BYTES>();
        for (number, stripe) in whole.iter().enumerate().take(rest.len().saturating_sub(1) / STRIPE_BYTES) {
            accumulate(&mut lanes, stripe, self.secret, number * SECRET_STEP);
        }
        let ends = self.before.iter().chain(rest);
        let mut last = [0; STRIPE_BYTES];
        last.iter_mut().zip(ends.skip(rest.len())).for_each(|(to, from)| *to = *from);
        accumulate(&mut lanes, &last, self.secret, LAST_STRIPE_AT);
        merge(&lanes, self.secret, self.total)
    }

    /// Buffers as much as fits. Returns the rest.
    fn buffer_rest<'a>(&mut self, source: SourceBuf<'a>) -> SourceBuf<'a> {
        let (head, tail) = source.split_at(BLOCK_BYTES - self.rest_len);
        if let Some(kept) = self.rest.get_mut(self.rest_len..self.rest_len + head.len()) {
            copy_out(head, kept);
        }
        self.rest_len += head.len();
        tail
    }
}

/// Hashes one or more whole blocks, and stores their last stripe.
fn accumulate_whole(
    lanes: &mut Lanes,
    before: &mut [u8; STRIPE_BYTES],
    blocks: SourceBuf<'_>,
    secret: &Secret,
    locality: Locality,
) {
    debug_assert!(!blocks.is_empty() && blocks.len().is_multiple_of(BLOCK_BYTES));
    accumulate_blocks(lanes, blocks, secret, locality);
    let (_, last) = blocks.split_at(blocks.len() - STRIPE_BYTES);
    copy_out(last, before);
}

fn accumulate_blocks(lanes: &mut Lanes, blocks: SourceBuf<'_>, secret: &Secret, locality: Locality) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor knows AVX2, and the range is mapped for all of its bytes.
        return unsafe { wide::accumulate_blocks(lanes, blocks.as_ptr(), blocks.len(), secret, locality) };
    }
    let _ = locality;
    accumulate_copied(lanes, blocks, secret);
}

/// The same without special instructions, from a private copy.
fn accumulate_copied(lanes: &mut Lanes, blocks: SourceBuf<'_>, secret: &Secret) {
    let mut left = blocks;
    while !left.is_empty() {
        let mut block = [0; BLOCK_BYTES];
        let (head, tail) = left.split_at(BLOCK_BYTES);
        copy_out(head, &mut block);
        let (stripes, _) = block.as_chunks::<STRIPE_BYTES>();
        for (number, stripe) in stripes.iter().enumerate() {
            accumulate(lanes, stripe, secret, number * SECRET_STEP);
        }
        scramble(lanes, secret);
        left = tail;
    }
}

fn accumulate(lanes: &mut Lanes, stripe: &[u8; STRIPE_BYTES], secret: &Secret, at: usize) {
    let (words, _) = stripe.as_chunks::<8>();
    for (lane, word) in words.iter().enumerate() {
        let value = u64::from_le_bytes(*word);
        let mixed = value ^ word_of(secret, at + 8 * lane);
        let product = (mixed & 0xffff_ffff).wrapping_mul(mixed >> 32);
        for (lane, more) in [(lane, product), (lane ^ 1, value)] {
            if let Some(it) = lanes.get_mut(lane) {
                *it = it.wrapping_add(more);
            }
        }
    }
}

fn scramble(lanes: &mut Lanes, secret: &Secret) {
    for (number, lane) in lanes.iter_mut().enumerate() {
        let mixed = *lane ^ (*lane >> 47) ^ word_of(secret, SCRAMBLE_AT + 8 * number);
        *lane = mixed.wrapping_mul(PRIME32_1);
    }
}

fn merge(lanes: &Lanes, secret: &Secret, total: u64) -> u64 {
    let (pairs, _) = lanes.as_chunks::<2>();
    let mut sum = total.wrapping_mul(PRIME64_1);
    for (number, [one, other]) in pairs.iter().enumerate() {
        let at = MERGE_AT + 16 * number;
        let product = u128::from(one ^ word_of(secret, at)) * u128::from(other ^ word_of(secret, at + 8));
        sum = sum.wrapping_add(product as u64 ^ (product >> 64) as u64);
    }
    sum ^= sum >> 37;
    sum = sum.wrapping_mul(AVALANCHE);
    sum ^ (sum >> 32)
}

fn word_of(secret: &Secret, at: usize) -> u64 {
    let word = secret.get(at..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u64::from_le_bytes(*word))
}

/// Four lanes at a time.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod wide {
    use std::arch::asm;
    use std::arch::x86_64::{
        __m256i, _mm256_add_epi64, _mm256_loadu_si256, _mm256_mul_epu32, _mm256_set1_epi64x,
        _mm256_shuffle_epi32, _mm256_slli_epi64, _mm256_srli_epi64, _mm256_storeu_si256, _mm256_xor_si256,
    };

    use super::{BLOCK_BYTES, Lanes, Locality, PRIME32_1, SCRAMBLE_AT, SECRET_STEP, STRIPE_BYTES, Secret};
    use crate::cache_prefetch::{LINE_BYTES, WINDOW_BYTES, line_offset, prefetch_line};

    /// Prefetch distance where less than a window is left.
    const AHEAD_BYTES: usize = 1024;

    /// # Safety
    /// The processor must know AVX2; `len` bytes at `source` must be readable, and whole blocks.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn accumulate_blocks(
        lanes: &mut Lanes,
        source: *const u8,
        len: usize,
        secret: &Secret,
        locality: Locality,
    ) {
        // SAFETY: both halves are inside the lanes, all parts of the secret inside the secret, and the
        // stripes inside the blocks of the caller's contract.
        unsafe {
            let halves: *mut __m256i = lanes.as_mut_ptr().cast();
            let key = |at: usize| _mm256_loadu_si256(secret.as_ptr().add(at).cast());
            let (mut low, mut high) = (_mm256_loadu_si256(halves), _mm256_loadu_si256(halves.add(1)));
            for at in (0..len).step_by(BLOCK_BYTES) {
                // While one window is hashed the next is prefetched, if at least half of it is input.
                let window = at / WINDOW_BYTES * WINDOW_BYTES;
                let next = window + WINDOW_BYTES;
                let has_next = locality == Locality::Uncached && next + WINDOW_BYTES / 2 <= len;
                for number in 0..BLOCK_BYTES / STRIPE_BYTES {
                    let stripe = at + number * STRIPE_BYTES;
                    let ahead = match has_next {
                        true => next + line_offset((stripe - window) / LINE_BYTES),
                        false => stripe + AHEAD_BYTES,
                    };
                    prefetch_line(source.wrapping_add(ahead));
                    let (one, other) = load(source.add(stripe));
                    low = accumulate(low, one, key(number * SECRET_STEP));
                    high = accumulate(high, other, key(number * SECRET_STEP + 32));
                }
                low = scramble(low, key(SCRAMBLE_AT));
                high = scramble(high, key(SCRAMBLE_AT + 32));
            }
            _mm256_storeu_si256(halves, low);
            _mm256_storeu_si256(halves.add(1), high);
        }
    }

    /// The halves of a stripe. Assembly, because other processes may write the bytes during the load.
    ///
    /// # Safety
    /// As above, for one stripe.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn load(stripe: *const u8) -> (__m256i, __m256i) {
        let (one, other);
        // SAFETY: both loads are inside the stripe.
        unsafe {
            asm!(
                "vmovdqu {one}, [{stripe}]",
                "vmovdqu {other}, [{stripe} + 32]",
                stripe = in(reg) stripe,
                one = out(ymm_reg) one,
                other = out(ymm_reg) other,
                options(nostack, preserves_flags, readonly)
            );
        }
        (one, other)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn accumulate(lanes: __m256i, values: __m256i, key: __m256i) -> __m256i {
        let mixed = _mm256_xor_si256(values, key);
        let product = _mm256_mul_epu32(mixed, _mm256_srli_epi64::<32>(mixed));
        // Each value goes to the neighbouring lane.
        let swapped = _mm256_shuffle_epi32::<0b01_00_11_10>(values);
        _mm256_add_epi64(product, _mm256_add_epi64(lanes, swapped))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn scramble(lanes: __m256i, key: __m256i) -> __m256i {
        let prime = _mm256_set1_epi64x(PRIME32_1.cast_signed());
        let mixed = _mm256_xor_si256(_mm256_xor_si256(lanes, _mm256_srli_epi64::<47>(lanes)), key);
        let upper = _mm256_mul_epu32(_mm256_srli_epi64::<32>(mixed), prime);
        _mm256_add_epi64(_mm256_mul_epu32(mixed, prime), _mm256_slli_epi64::<32>(upper))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 7 + at / 256 + at / 5000) as u8).collect()
    }

    #[test]
    fn checksum_is_xxh3_for_every_length() {
        let bytes = pattern(9 * BLOCK_BYTES);
        assert_eq!(checksum([]), 0x2d06_8005_38d3_94c2, "the xxh3-64 of nothing");
        let long = [63, 64, 65, 127, 512].into_iter().flat_map(|more| (2..8).map(move |it| it * 1024 + more));
        for len in (0..2 * BLOCK_BYTES + 130).chain(long) {
            let bytes = &bytes[..len];
            assert_eq!(checksum([SourceBuf::from(bytes)]), XxHash3_64::oneshot(bytes), "{len} bytes");
        }
    }

    #[test]
    fn division_into_ranges_does_not_matter() {
        let bytes = pattern(5 * BLOCK_BYTES + 77);
        let whole = XxHash3_64::oneshot(&bytes);
        let mut hash = Checksum::default();
        for step in [1, 3, 64, 100, 1000, 1023, 1024, 1025, 2048, 3000, bytes.len()] {
            hash.reset();
            bytes.chunks(step).for_each(|piece| hash.update(SourceBuf::from(piece)));
            assert_eq!(hash.finish(), whole, "in steps of {step}");
            assert_eq!(hash.finish(), whole, "once more");
        }
        for at in 0..bytes.len() {
            let (head, tail) = bytes.split_at(at);
            assert_eq!(checksum([SourceBuf::from(head), SourceBuf::from(tail)]), whole, "cut at {at}");
        }
    }

    #[test]
    fn cache_hint_does_not_change_the_checksum() {
        let bytes = pattern(300_000);
        let mut hash = Checksum::default();
        for len in [1024, 20_000, 49_153, 65_536, 98_304, 100_001, 300_000] {
            hash.reset();
            hash.update_uncached(SourceBuf::from(&bytes[..len]));
            assert_eq!(hash.finish(), XxHash3_64::oneshot(&bytes[..len]), "{len} bytes");
        }
    }

    #[test]
    fn portable_version_gives_the_same_checksum() {
        let bytes = pattern(3 * BLOCK_BYTES);
        let secret = SecretBuffer::default().into_secret();
        let (mut fast, mut plain) = (LANES, LANES);
        accumulate_blocks(&mut fast, SourceBuf::from(&bytes[..]), secret, Locality::Cached);
        accumulate_copied(&mut plain, SourceBuf::from(&bytes[..]), secret);
        assert_eq!(fast, plain);
    }
}
