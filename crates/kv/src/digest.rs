//! A digest of a state, to compare it between ranks, runs and interleavings.

use std::hash::{Hash, Hasher};

use xxhash_rust::xxh3::Xxh3;

/// A running digest. Everything goes in by its derived `Hash`, which leaves out nothing that its type has.
#[derive(Clone, Default)]
pub(crate) struct Digest(Words);

impl Digest {
    pub(crate) fn add(&mut self, thing: &impl Hash) {
        thing.hash(&mut self.0);
    }

    pub(crate) fn finish(&self) -> u128 {
        let mut hasher = Xxh3::new();
        hasher.update(&self.0.0);
        hasher.digest128()
    }
}

/// Collects what is hashed, so that the hash is made over one piece.
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
