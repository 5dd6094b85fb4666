//! Self-describing bytes, so that any mixture of two objects is noticed.
//!
//! A value starts with its key, its id and its length. Every following word is derived from these three and
//! its position: a word of another value, of another version, or at another position does not match.

/// Size of the header: key, id and length.
pub(crate) const HEAD_BYTES: usize = 24;

const WORD_BYTES: usize = 8;
/// An odd constant with well-distributed multiples.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A seeded random number generator.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// The generator of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `end`; zero if `end` is zero.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// True with a probability of `times / of`.
    pub(crate) fn chance(&mut self, times: u64, of: u64) -> bool {
        self.below(of) < times
    }

    /// A number from 0 to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A log-uniform length between two bounds.
    pub(crate) fn length(&mut self, least: usize, most: usize) -> usize {
        let (low, high) = ((least as f64).ln(), (most as f64).ln());
        ((low + self.unit() * (high - low)).exp() as usize).clamp(least, most)
    }
}

/// Fills a buffer with one version of a key.
pub(crate) fn fill(bytes: &mut [u8], key: u64, id: u64) {
    let len = bytes.len() as u64;
    let head = [key, id, len].into_iter();
    let body = (0..).map(|position| word(key, id, len, position));
    for (chunk, word) in bytes.chunks_mut(WORD_BYTES).zip(head.chain(body)) {
        for (byte, value) in chunk.iter_mut().zip(word.to_le_bytes()) {
            *byte = value;
        }
    }
}

/// Whether these are the bytes from `start` on of a version of a key with `len` bytes in total.
pub(crate) fn is_part(bytes: &[u8], key: u64, id: u64, len: usize, start: usize) -> bool {
    let len = len as u64;
    let first = start / WORD_BYTES;
    let words = [key, id, len].into_iter().chain((0..).map(|position| word(key, id, len, position)));
    let expected = words.skip(first).flat_map(u64::to_le_bytes).skip(start % WORD_BYTES);
    bytes.iter().copied().eq(expected.take(bytes.len()))
}

/// The id of the version of this key that these bytes are; or the problem.
pub(crate) fn check(bytes: &[u8], key: u64) -> Result<u64, String> {
    let word_at = |start: usize| {
        let word = bytes.get(start..start + WORD_BYTES).and_then(|word| word.try_into().ok());
        word.map_or(0, u64::from_le_bytes)
    };
    let (header_key, id, header_len) = (word_at(0), word_at(WORD_BYTES), word_at(2 * WORD_BYTES));
    let len = bytes.len() as u64;
    if header_key != key || header_len != len {
        return Err(format!("{len} bytes with the header of {header_len} bytes of key {header_key}"));
    }
    let body = bytes.get(HEAD_BYTES..).unwrap_or_default();
    let (words, rest) = body.as_chunks::<WORD_BYTES>();
    let fits = |(position, bytes): (u64, &[u8; WORD_BYTES])| {
        u64::from_le_bytes(*bytes) == word(key, id, len, position)
    };
    let wrong = (0..).zip(words).position(|it| !fits(it));
    let tail = word(key, id, len, words.len() as u64).to_le_bytes();
    let wrong = wrong.or_else(|| (!tail.starts_with(rest)).then_some(words.len()));
    match wrong {
        None => Ok(id),
        Some(position) => Err(format!(
            "version {id:x}, {len} bytes long, has wrong bytes from byte {} on",
            HEAD_BYTES + position * WORD_BYTES
        )),
    }
}

fn word(key: u64, id: u64, len: u64, position: u64) -> u64 {
    (mix(key) ^ mix(id.wrapping_add(STEP)) ^ len).wrapping_add(position.wrapping_mul(STEP))
}

fn mix(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(len: usize, key: u64, id: u64) -> Vec<u8> {
        let mut bytes = vec![0; len];
        fill(&mut bytes, key, id);
        bytes
    }

    #[test]
    fn filled_bytes_are_recognized() {
        for len in [24, 25, 31, 32, 33, 4096, 4099] {
            assert_eq!(check(&value(len, 7, 99), 7), Ok(99), "{len}");
        }
    }

    #[test]
    fn part_is_verified_by_its_position() {
        let whole = value(4099, 7, 99);
        for (start, end) in [(0, 4099), (0, 5), (7, 30), (8, 9), (1000, 2001), (4098, 4099), (9, 9)] {
            assert!(is_part(&whole[start..end], 7, 99, 4099, start), "{start}..{end}");
            let other = is_part(&whole[start..end], 7, 98, 4099, start);
            assert!(!other || end <= 8 || start == end, "{start}..{end} of another version");
        }
        assert!(!is_part(&whole[100..200], 7, 99, 4099, 101));
    }

    #[test]
    fn every_mixture_is_noticed() {
        let (new, old) = (value(4099, 7, 100), value(4099, 7, 99));
        for from in [0, 1, 8, 16, 24, 2048, 4098] {
            for to in [from + 1, 4099] {
                let mut mixed = new.clone();
                mixed[from..to].copy_from_slice(&old[from..to]);
                assert!(mixed == new || mixed == old || check(&mixed, 7).is_err(), "{from}..{to}");
            }
        }
        assert!(check(&new, 8).is_err(), "another key");
        assert!(check(&new[..4098], 7).is_err(), "a byte less");
        assert!(check(&[], 7).is_err(), "nothing");
        let mut moved = new;
        moved.copy_within(64..128, 128);
        assert!(check(&moved, 7).is_err(), "the same bytes at another position");
    }

    #[test]
    fn random_numbers_are_reproducible_and_in_range() {
        let mut rng = Rng::new(1);
        assert_eq!(rng.clone().next(), Rng::new(1).next());
        assert!((0..100).all(|_| (24..=4096).contains(&rng.length(24, 4096))));
        assert_eq!(rng.below(0), 0);
    }
}
