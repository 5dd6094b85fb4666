//! The content oracle: the expected content of every page, independent of the engine.
//!
//! The true content of a page is a number derived from everything that changes its bytes: the namespace, all
//! tokens up to its end, and the media among them. It is computed from the whole prefix each time, by another
//! function than the engine's hashes. So a chain that restarts, a key that omits a part, or two parts that
//! are not separated give one hash for two contents, or a hash that should not exist.

use std::collections::BTreeMap;

use tiffin_kv::hash::chain;
use tiffin_kv::{ChainHash, Media, Namespace, RankPart, StoreKey};
use xxhash_rust::xxh3::xxh3_64;

/// The content of a page. Zero is a page that was never written.
pub(crate) type Content = u64;

/// The content of a page in which an operation failed.
pub(crate) const GARBAGE: Content = 1;

/// The content of a lost page, which cannot be read.
pub(crate) const LOST: Content = 3;

/// The content of each name.
#[derive(Clone, Debug, Default)]
pub(crate) struct ContentOracle {
    by_hash: BTreeMap<ChainHash, Content>,
    by_key: BTreeMap<StoreKey, Content>,
    keys: BTreeMap<(u32, ChainHash, ChainHash), StoreKey>,
}

/// The part of a page that a rank has.
pub(crate) fn part(rank: u32, ranks: u32) -> RankPart {
    RankPart { tensor: (rank, ranks), pipeline: (0, 1), context: (0, 1) }
}

/// The content of a rank's part of a page.
pub(crate) fn of_rank(content: Content, rank: u32) -> Content {
    content.rotate_left(rank)
}

/// The content of the last page of a prefix.
pub(crate) fn content(
    namespace: &Namespace,
    page_tokens: u32,
    tokens: &[u32],
    media: &[Media],
    pages: u32,
) -> Content {
    let end = pages * page_tokens;
    let before = media.iter().filter(|item| item.at < end).collect::<Vec<_>>();
    let prefix = tokens.get(..end as usize).unwrap_or_default();
    let all = format!("{namespace:?} {page_tokens} {prefix:?} {before:?}");
    // Never one of the special contents.
    xxh3_64(all.as_bytes()) | 1 << 60
}

impl ContentOracle {
    /// Adds pages that may exist. An error if a name has two contents.
    pub(crate) fn add_prompt(
        &mut self,
        namespace: &Namespace,
        page_tokens: u32,
        tokens: &[u32],
        media: &[Media],
        ranks: u32,
    ) -> Result<(), String> {
        let root = namespace.root(page_tokens);
        for (count, hash) in (1..).zip(chain(root, 0, page_tokens, tokens, media)) {
            let content = content(namespace, page_tokens, tokens, media, count);
            if *self.by_hash.entry(hash).or_insert(content) != content {
                return Err(format!("{hash:?} names two contents"));
            }
            for rank in 0..ranks {
                let key = || StoreKey::new(root, &part(rank, ranks), hash);
                let key = *self.keys.entry((rank, root, hash)).or_insert_with(key);
                if *self.by_key.entry(key).or_insert(of_rank(content, rank)) != of_rank(content, rank) {
                    return Err(format!("{key:?} names two contents"));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn of_hash(&self, hash: ChainHash) -> Option<Content> {
        self.by_hash.get(&hash).copied()
    }

    /// The key of a rank's page, if it may exist.
    pub(crate) fn key(&self, rank: u32, root: ChainHash, hash: ChainHash) -> Option<StoreKey> {
        self.keys.get(&(rank, root, hash)).copied()
    }

    /// Every key, with its content.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (StoreKey, Content)> {
        self.by_key.iter().map(|(key, content)| (*key, *content))
    }

    pub(crate) fn of_key(&self, key: StoreKey) -> Option<Content> {
        self.by_key.get(&key).copied()
    }
}
