//! A hasher for keys that are hashes already, and for small numbers with them.
//!
//! It has no seed, so that every run is the same; and no code iterates over its tables (C1). Keys come from a
//! cryptographic hash or from the shell, which is trusted, so collisions are not an attack.

use std::hash::{BuildHasherDefault, Hasher};

/// Makes [`Fold`]s.
pub(crate) type FoldBuilder = BuildHasherDefault<Fold>;

/// Folds its input into one word, eight bytes at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fold(u64);

impl Fold {
    fn add(&mut self, word: u64) {
        // Both halves of the product: every bit of the sum moves every bit of the word.
        let product = u128::from(self.0 ^ word ^ 0x9E37_79B9_7F4A_7C15) * 0xD6E8_FEB8_6659_FD93_u128;
        self.0 = (product as u64) ^ (product >> 64) as u64;
    }
}

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
            self.add(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.add(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.add(number);
    }

    fn write_usize(&mut self, number: usize) {
        self.add(number as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::hash::Hash;

    use super::*;
    use crate::hash::ChainHash;

    #[test]
    fn similar_keys_are_spread_over_all_bits() {
        let hash = |thing: &dyn Fn(&mut Fold)| {
            let mut fold = Fold::default();
            thing(&mut fold);
            fold.finish()
        };
        let all: Vec<u64> = (0..4096_u32)
            .map(|at| {
                let mut name = [0; 16];
                name[..4].copy_from_slice(&at.to_le_bytes());
                hash(&|fold| (7_u32, ChainHash(name)).hash(fold))
            })
            .collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        for bit in 0..64 {
            let set = all.iter().filter(|hash| *hash >> bit & 1 == 1).count();
            assert!((1500..2600).contains(&set), "bit {bit} is set in {set} of {}", all.len());
        }
    }
}
