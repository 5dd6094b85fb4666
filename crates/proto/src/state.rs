//! The file with the state of the master that survives a restart: a header of 24 bytes, then the fields of
//! [`Saved`], encoded like a message.
//!
//! ```text
//!  0            8         12       16         24
//!  | "TFNSTATE" | version | length | checksum | body …
//! ```
//!
//! All numbers are little-endian; the checksum is XXH3-64 of the body. `docs/format.md` describes the fields.
//!
//! **Invariant:** for any bytes, decoding returns a [`Saved`] or a [`StateError`].

use tiffin_types::saved::Saved;
use xxhash_rust::xxh3::xxh3_64;

use crate::codec::{EncodeError, Malformed, Message, Reader, Writer};

/// The greatest size of the file.
pub const STATE_BYTES_MAX: usize = 32 << 20;

/// The first bytes of the file.
const MAGIC: [u8; 8] = *b"TFNSTATE";
/// The version of the format. Fields may be added without a new one: unknown fields are skipped.
const VERSION: u32 = 1;

/// A file that is not the state of a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Its size differs from the one in its header.
    #[error("it has {0} bytes, which is not the size in its header")]
    Length(usize),
    /// It is another kind of file.
    #[error("it does not begin with `TFNSTATE`")]
    Magic,
    /// A later release wrote it.
    #[error("it has format version {0}, and this release reads version {VERSION}")]
    Version(u32),
    /// Its bytes have changed.
    #[error("its checksum does not match")]
    Checksum,
    /// The checksum is right, but the body cannot be decoded.
    #[error("it is malformed in {0}")]
    Malformed(Malformed),
}

/// Encodes the file.
pub fn encode_state(saved: &Saved) -> Result<Vec<u8>, EncodeError> {
    let mut out = Writer::new(Vec::new());
    saved.encode(&mut out);
    let body = out.finish()?;
    if body.len() + MAGIC.len() + 16 > STATE_BYTES_MAX {
        return Err(EncodeError::TooLong);
    }
    Ok(with_state_header(&body))
}

/// A body with a valid header. For fuzzing: without it, damage would only reach the checksum.
#[must_use]
pub fn with_state_header(body: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(xxh3_64(body).to_le_bytes());
    bytes.extend(body);
    bytes
}

/// Decodes the file.
pub fn decode_state(bytes: &[u8]) -> Result<Saved, StateError> {
    let length = StateError::Length(bytes.len());
    let (magic, rest) = bytes.split_first_chunk::<8>().ok_or(length)?;
    if *magic != MAGIC {
        return Err(StateError::Magic);
    }
    let (version, rest) = rest.split_first_chunk::<4>().ok_or(length)?;
    let version = u32::from_le_bytes(*version);
    if version != VERSION {
        return Err(StateError::Version(version));
    }
    let (len, rest) = rest.split_first_chunk::<4>().ok_or(length)?;
    let (checksum, body) = rest.split_first_chunk::<8>().ok_or(length)?;
    if body.len() != u32::from_le_bytes(*len) as usize || bytes.len() > STATE_BYTES_MAX {
        return Err(length);
    }
    if xxh3_64(body) != u64::from_le_bytes(*checksum) {
        return Err(StateError::Checksum);
    }
    Saved::decode(&mut Reader::new(body)).map_err(StateError::Malformed)
}

#[cfg(test)]
mod tests {
    use rand::seq::IndexedRandom;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use tiffin_types::message::{Demotion, Policy};
    use tiffin_types::saved::{SavedMember, SavedPolicy};
    use tiffin_types::{ClusterId, SegmentId};

    fn saved(count: u64) -> Saved {
        let member = |segment| SavedMember {
            segment: SegmentId(segment),
            name: format!("node{segment}"),
            host: "host/1".into(),
            beside: (segment % 2 == 0).then_some(SegmentId(segment + 1)),
            tcp: "host:7402".into(),
            outlives: segment % 3 == 0,
            owed: vec![7; 24],
        };
        let demotion = Some(Demotion::Never);
        let policy = Policy { quota: Some(7), max_hold_ms: None, demotion, guaranteed: Some(5) };
        let policy = |index| SavedPolicy { namespace: format!("n{index}"), policy: policy.clone() };
        Saved {
            epoch: 41,
            members: (1..=count).map(member).collect(),
            policies: (0..count).map(policy).collect(),
            forgotten: (0..count).map(SegmentId).collect(),
            clusters: (1..=count.min(3)).map(ClusterId).collect(),
        }
    }

    #[test]
    fn state_survives_encoding() {
        for count in [0, 1, 100] {
            let bytes = encode_state(&saved(count)).unwrap();
            assert_eq!(decode_state(&bytes), Ok(saved(count)));
        }
    }

    /// `tests/data/state-1.txt` is the file that an earlier build wrote for `saved(3)`, in hex. A change of
    /// the format keeps this test, and adds a file.
    #[test]
    fn file_of_an_earlier_build_is_read() {
        let text = include_str!("../tests/data/state-1.txt");
        let digits: Vec<_> = text.chars().filter_map(|it| it.to_digit(16)).collect();
        let bytes: Vec<_> = digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect();
        assert_eq!(decode_state(&bytes), Ok(saved(3)));
    }

    #[test]
    fn damaged_files_are_rejected() {
        let bytes = encode_state(&saved(3)).unwrap();
        for end in 0..bytes.len() {
            assert!(decode_state(&bytes[..end]).is_err(), "{end}");
        }
        for index in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[index / 8] ^= 1 << (index % 8);
            assert!(decode_state(&damaged).is_err(), "bit {index}");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert_eq!(decode_state(&longer), Err(StateError::Length(longer.len())));
        let mut later = bytes.clone();
        later[8] = 2;
        assert_eq!(decode_state(&later), Err(StateError::Version(2)));
        assert_eq!(decode_state(b"12\n345678"), Err(StateError::Magic));
    }

    #[test]
    fn garbage_with_a_valid_checksum_never_panics() {
        let mut seed = 1_u64;
        for _ in 0..20_000 {
            let mut body = Vec::new();
            for _ in 0..seed >> 58 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                body.push((seed >> 56) as u8);
            }
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            check_again(&with_state_header(&body));
        }
    }

    /// A file that decodes is encoded to the same state again. Returns whether it decoded.
    fn check_again(bytes: &[u8]) -> bool {
        let Ok(saved) = decode_state(bytes) else { return false };
        assert_eq!(decode_state(&encode_state(&saved).unwrap()), Ok(saved));
        true
    }

    /// A valid file that is truncated, overwritten, or joined with a part of another one is rejected. With a
    /// new checksum, decoding never panics.
    #[test]
    fn seeded_damage_never_loads_another_state() {
        let mut rng = ChaCha8Rng::seed_from_u64(0x57a7e);
        let files: Vec<_> = [0, 1, 5, 40].map(|count| encode_state(&saved(count)).unwrap()).into();
        let mut understood = 0;
        for _ in 0..20_000 {
            let (file, other) = (files.choose(&mut rng).unwrap(), files.choose(&mut rng).unwrap());
            let mut damaged = file.clone();
            let at = rng.random_range(0..damaged.len());
            match rng.random_range(0..4) {
                0 => damaged.truncate(at),
                1 => damaged.extend_from_slice(&other[rng.random_range(0..other.len())..]),
                2 => {
                    let end = (at + rng.random_range(1..16)).min(damaged.len());
                    rng.fill(&mut damaged[at..end]);
                }
                _ => {
                    damaged.truncate(at);
                    damaged.extend_from_slice(&other[at.min(other.len())..]);
                }
            }
            let is_true = files.contains(&damaged);
            assert_eq!(decode_state(&damaged).is_ok(), is_true, "{damaged:?}");
            let body = damaged.get(MAGIC.len() + 16..).unwrap_or_default();
            understood += usize::from(check_again(&with_state_header(body)));
        }
        assert!(understood > 100, "only {understood} damaged bodies were decoded");
    }

    #[test]
    fn file_beyond_the_limit_is_not_encoded() {
        let mut large = saved(1);
        large.members[0].name = "n".repeat(STATE_BYTES_MAX);
        assert_eq!(encode_state(&large), Err(EncodeError::TooLong));
        large.members[0].name = "n".repeat(STATE_BYTES_MAX / 2);
        assert_eq!(decode_state(&encode_state(&large).unwrap()), Ok(large));
    }
}
