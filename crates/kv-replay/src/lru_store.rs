//! The simulated store: an LRU set of pages.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use tiffin_kv::ChainHash;
use xxhash_rust::xxh3::Xxh3DefaultBuilder;

/// Pages by name, in the order of their last use.
#[derive(Debug, Default)]
pub(crate) struct LruStore {
    uses: HashMap<ChainHash, u64, Xxh3DefaultBuilder>,
    order: BTreeMap<u64, ChainHash>,
    count: u64,
    /// None for no limit.
    pages_max: Option<u64>,
}

impl LruStore {
    pub(crate) fn new(pages_max: Option<u64>) -> Self {
        Self { pages_max, ..Self::default() }
    }

    pub(crate) fn contains(&self, hash: ChainHash) -> bool {
        self.uses.contains_key(&hash)
    }

    /// Uses a page: it was stored or read.
    pub(crate) fn record_use(&mut self, hash: ChainHash) {
        self.count += 1;
        if let Some(before) = self.uses.insert(hash, self.count) {
            self.order.remove(&before);
        }
        self.order.insert(self.count, hash);
        while self.pages_max.is_some_and(|most| self.order.len() as u64 > most) {
            if let Some((_, oldest)) = self.order.pop_first() {
                self.uses.remove(&oldest);
            }
        }
    }
}
