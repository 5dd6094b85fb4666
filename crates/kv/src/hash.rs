//! The names of pages: a chain of hashes that covers everything that changes the bytes of a page (K3, K4).
//!
//! A [`Namespace`] is hashed into a root; the hash of a page covers the hash before it, its position, its
//! tokens and the media that begin in it. So the hash of a page names the whole prefix up to it, and follows
//! from the root in every tier. Every part is framed by its length, so that no two lists of parts have the
//! same bytes.
//!
//! Tensor-parallel ranks share these hashes, because they must decide alike, but hold different bytes. The
//! name of a rank's page in a shared store is therefore a [`StoreKey`], which covers the rank as well.

use std::fmt;

use crate::mutant::Mutant;

/// The version of this scheme. A change of the scheme changes every name.
const SCHEME: &[u8] = b"tiffin kv 1";

/// The hash of a page and of all pages before it. It names bytes in a shared store, so it is a truncated
/// cryptographic hash; 128 bits make a collision by chance negligible.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainHash(pub [u8; 16]);

impl fmt::Debug for ChainHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl ChainHash {
    /// The hash of an id from outside, such as one of a trace.
    #[must_use]
    pub fn foreign(id: u64) -> Self {
        Hasher::new(b"foreign").part(&id.to_le_bytes()).finish()
    }
}

/// Everything except tokens, media and ranks that changes the bytes of a page (K4).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Namespace {
    /// The model, by name or by the hash of its checkpoint.
    pub model: String,
    /// Its revision.
    pub revision: String,
    /// The version of its weights, which a trainer may change under a running engine.
    pub weight_version: u64,
    /// The element type of a page.
    pub dtype: String,
    /// How a page is packed.
    pub layout: String,
    /// The tenant: tenants never share pages.
    pub tenant: String,
    /// The adapter, or nothing.
    pub lora: String,
    /// Anything else that separates: a salt, a draft model, a quantisation.
    pub salt: String,
}

/// Which part of a page's bytes a rank holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RankPart {
    /// The rank and the number of ranks over which heads are split.
    pub tensor: (u32, u32),
    /// The stage and the number of stages over which layers are split.
    pub pipeline: (u32, u32),
    /// The rank and the number of ranks over which tokens are split.
    pub context: (u32, u32),
}

/// The name of a rank's page in a shared store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoreKey(pub [u8; 32]);

impl StoreKey {
    /// The name of the page `hash` of a namespace with this root, as this rank holds it.
    #[must_use]
    pub fn new(root: ChainHash, rank: &RankPart, hash: ChainHash) -> Self {
        Self::new_with(root, rank, hash, Mutant::None)
    }

    /// The same with a mutant, in tests.
    #[must_use]
    pub fn new_with(root: ChainHash, rank: &RankPart, hash: ChainHash, mutant: Mutant) -> Self {
        let rank = mutant.rank_in_key(*rank);
        let mut hasher = Hasher::new(b"store").part(&root.0);
        for (place, count) in [rank.tensor, rank.pipeline, rank.context] {
            hasher = hasher.part(&place.to_le_bytes()).part(&count.to_le_bytes());
        }
        Self(*hasher.part(&hash.0).0.finalize().as_bytes())
    }
}

impl Namespace {
    /// The hash that the chains of this namespace start with.
    #[must_use]
    pub fn root(&self, page_tokens: u32) -> ChainHash {
        self.root_with(page_tokens, Mutant::None)
    }

    pub(crate) fn root_with(&self, page_tokens: u32, mutant: Mutant) -> ChainHash {
        let weights = mutant.weights_in_root(self.weight_version);
        let words =
            [&self.model, &self.revision, &self.dtype, &self.layout, &self.tenant, &self.lora, &self.salt];
        let parts = mutant.parts_of_root(&words.map(String::as_str));
        let hasher = Hasher::new(b"root").part(SCHEME);
        let hasher = parts.iter().fold(hasher, |hasher, part| hasher.part(part.as_bytes()));
        hasher.part(&weights.to_le_bytes()).part(&page_tokens.to_le_bytes()).finish()
    }
}

/// An input other than tokens that changes the pages after it: an image, a sound.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Media {
    /// The token at which it begins.
    pub at: u32,
    /// Its content: usually the hash of its bytes.
    pub content: Vec<u8>,
}

/// The hashes of the full pages among `tokens`, of which the first page has the position `first` and follows
/// the hash `before`. Tokens that do not fill a page have no hash.
#[must_use]
pub fn chain(
    before: ChainHash,
    first: u32,
    page_tokens: u32,
    tokens: &[u32],
    media: &[Media],
) -> Vec<ChainHash> {
    chain_with(before, first, page_tokens, tokens, media, Mutant::None)
}

pub(crate) fn chain_with(
    before: ChainHash,
    first: u32,
    page_tokens: u32,
    tokens: &[u32],
    media: &[Media],
    mutant: Mutant,
) -> Vec<ChainHash> {
    let mut previous = before;
    let mut bytes = Vec::with_capacity(page_tokens as usize * 4);
    let pages = tokens.chunks_exact(page_tokens.max(1) as usize);
    let hash = |(position, page): (u32, &[u32])| {
        bytes.clear();
        page.iter().for_each(|token| bytes.extend_from_slice(&token.to_le_bytes()));
        let mut hasher = Hasher::new(b"page").part(&previous.0).part(&position.to_le_bytes()).part(&bytes);
        let tokens = position * page_tokens..(position + 1) * page_tokens;
        for item in media.iter().filter(|item| tokens.contains(&item.at)) {
            let content = mutant.media_in_hash(&item.content);
            hasher = hasher.part(&item.at.to_le_bytes()).part(content);
        }
        previous = hasher.finish();
        previous
    };
    (first..).zip(pages).map(hash).collect()
}

/// A hash over framed parts.
struct Hasher(blake3::Hasher);

impl Hasher {
    fn new(purpose: &[u8]) -> Self {
        Self(blake3::Hasher::new()).part(purpose)
    }

    fn part(mut self, bytes: &[u8]) -> Self {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    fn finish(self) -> ChainHash {
        let mut cut = [0; 16];
        self.0.finalize_xof().fill(&mut cut);
        ChainHash(cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace() -> Namespace {
        Namespace { model: "m".to_owned(), weight_version: 7, ..Namespace::default() }
    }

    #[test]
    fn k4_every_part_of_a_namespace_changes_the_root() {
        let word = || "x".to_owned();
        let one = namespace();
        let others = [
            Namespace { model: word(), ..one.clone() },
            Namespace { revision: word(), ..one.clone() },
            Namespace { weight_version: 8, ..one.clone() },
            Namespace { dtype: word(), ..one.clone() },
            Namespace { layout: word(), ..one.clone() },
            Namespace { tenant: word(), ..one.clone() },
            Namespace { lora: word(), ..one.clone() },
            Namespace { salt: word(), ..one.clone() },
            Namespace { model: String::new(), revision: "m".to_owned(), ..one.clone() },
        ];
        let mut roots: Vec<_> = others.iter().map(|it| it.root(64)).collect();
        roots.extend([one.root(64), one.root(32)]);
        let count = roots.len();
        roots.sort_unstable();
        roots.dedup();
        assert_eq!(roots.len(), count);
    }

    #[test]
    fn k3_continued_chain_equals_the_whole_chain() {
        let tokens: Vec<u32> = (0..40).collect();
        let root = namespace().root(4);
        let whole = chain(root, 0, 4, &tokens, &[]);
        let head = chain(root, 0, 4, &tokens[..12], &[]);
        let tail = chain(head[2], 3, 4, &tokens[12..], &[]);
        assert_eq!(whole, [head, tail].concat());
        assert_eq!(chain(root, 0, 4, &tokens[..11], &[]).len(), 2, "the last page is not full");
    }

    #[test]
    fn k4_media_and_position_change_only_later_hashes() {
        let tokens = [5; 16];
        let root = namespace().root(4);
        let plain = chain(root, 0, 4, &tokens, &[]);
        let media = |content: &[u8]| [Media { at: 6, content: content.to_vec() }];
        let (cat, dog) =
            (chain(root, 0, 4, &tokens, &media(b"cat")), chain(root, 0, 4, &tokens, &media(b"dog")));
        assert_eq!(plain[0], cat[0]);
        assert!((1..4).all(|at| plain[at] != cat[at] && cat[at] != dog[at]));
        assert_ne!(chain(root, 0, 4, &tokens[..4], &[]), chain(root, 1, 4, &tokens[..4], &[]));
    }

    #[test]
    fn k4_ranks_have_different_store_keys() {
        let root = namespace().root(4);
        let hash = chain(root, 0, 4, &[1, 2, 3, 4], &[])[0];
        let mut keys: Vec<_> = (0..4)
            .map(|rank| StoreKey::new(root, &RankPart { tensor: (rank, 4), ..RankPart::default() }, hash))
            .collect();
        keys.push(StoreKey::new(root, &RankPart { pipeline: (1, 4), ..RankPart::default() }, hash));
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 5);
    }
}
