//! A digest of a state, to compare it between ranks, runs and interleavings.

use std::hash::{Hash, Hasher};

use xxhash_rust::xxh3::Xxh3;

/// A running digest. Values are added by their derived `Hash`, which covers all their fields.
#[derive(Clone, Default)]
pub(crate) struct Digest(Words);

impl Digest {
    pub(crate) fn add(&mut self, value: &impl Hash) {
        value.hash(&mut self.0);
    }

    pub(crate) fn finish(&self) -> u128 {
        let mut hasher = Xxh3::new();
        hasher.update(&self.0.0);
        hasher.digest128()
    }
}

/// Collects the bytes to hash, so that they are hashed in one piece.
#[derive(Clone, Default)]
struct Words(Vec<u8>);

impl Hasher for Words {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn finish(&self) -> u64 {
        0
    }
}
