//! Offers: reservations that a node has preallocated for a client, and may recall until they are claimed.
//!
//! Each slot has a *claim word* in a memory file of its own, which the node and all attached clients map
//! writable. The node [offers](offer) a use of a slot by storing its stamp there. Before the first byte a
//! writer [claims](claim) the offer; a node that lacks memory [recalls](recall) it. Both are one
//! compare-and-swap of the same word, so exactly one of them succeeds, without a message or a clock: a
//! stopped client holds only what it has claimed, and one that continues finds the offer gone before it
//! writes.
//!
//! **Invariant:** a writer stores no byte of an offered use before its claim has succeeded.
//!
//! **Invariant:** the node reuses memory that was offered only if its recall has succeeded. Any other value
//! of the word, garbage included, counts as a claim: a misbehaving client keeps memory that it was given, and
//! gains none.
//!
//! Stamps are never reused, so a word never holds the same offer twice. The functions are generic over
//! [`Words`] for the checkers, like those of [`crate::stamp`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::layout::CLAIM_BYTES;
use crate::map::Map;
use crate::seams::{Rule, is_broken};
use crate::stamp::Words;

/// The bit of a claim word that attributes a claim. Stamps start at one and stay below.
const CLAIMED: u64 = 1 << 63;
/// The claim word after a recall.
const RECALLED: u64 = 0;

/// Offers the use with this stamp. The node calls it before it writes the stamp into the slot.
pub(crate) fn offer(words: &impl Words, at: u64, stamp: u64) {
    assert!(stamp != RECALLED && stamp < CLAIMED, "stamp {stamp} cannot be offered");
    words.store(at, stamp, Ordering::SeqCst);
}

/// Claims the use for writing. False if the node has recalled it. A second claim is harmless.
pub(crate) fn claim(words: &impl Words, at: u64, stamp: u64) -> bool {
    let claimed = stamp | CLAIMED;
    if is_broken(Rule::ClaimAtOnce) {
        let is_offered = words.load(at) == stamp;
        words.store(at, claimed, Ordering::SeqCst);
        return is_offered;
    }
    let swapped = words.compare_and_swap(at, stamp, claimed);
    swapped.map_or_else(|found| found == claimed, |()| true)
}

/// Recalls an offer. False if it was claimed: its writer may write at any time.
pub(crate) fn recall(words: &impl Words, at: u64, stamp: u64) -> bool {
    if is_broken(Rule::RecallAtOnce) {
        let is_offered = words.load(at) == stamp;
        words.store(at, RECALLED, Ordering::SeqCst);
        return is_offered;
    }
    words.compare_and_swap(at, stamp, RECALLED).is_ok()
}

/// The claim words of a segment, as a writer uses them.
#[derive(Clone, Debug)]
pub(crate) struct Claims(Arc<Map>);

impl Claims {
    pub(crate) fn new(map: Arc<Map>) -> Self {
        Self(map)
    }

    /// See [`claim`]. False for a slot that has no word.
    pub(crate) fn claim(&self, slot: u32, stamp: u64) -> bool {
        let at = u64::from(slot) * CLAIM_BYTES;
        let is_inside = at + CLAIM_BYTES <= self.0.len() && self.0.is_here();
        is_inside && (is_broken(Rule::ClaimBeforeBytes) || claim(&*self.0, at, stamp))
    }
}

#[cfg(test)]
mod tests {
    //! All executions that the memory model of the language allows, up to loom's bound.

    use std::panic::{AssertUnwindSafe, catch_unwind};

    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    use super::*;
    use crate::model::Model;
    use crate::seams::break_rule;

    const WORD: u64 = 0;
    const BYTE: u64 = 8;
    const STAMP: u64 = 7;
    const WRITER: u64 = 1;
    const OTHER: u64 = 2;

    /// A claim word, and a byte of the memory that is offered.
    struct Offer([AtomicU64; 2]);

    impl Offer {
        fn offered() -> Arc<Self> {
            Arc::new(Self([AtomicU64::new(STAMP), AtomicU64::new(0)]))
        }
    }

    impl Model for Offer {
        fn word(&self, at: u64) -> &AtomicU64 {
            &self.0[(at / 8) as usize]
        }
    }

    /// The client claims and writes while the node recalls and gives the memory to another writer.
    fn claim_and_recall() {
        let words = Offer::offered();
        let writer = loom::thread::spawn({
            let words = Arc::clone(&words);
            move || {
                let is_claimed = claim(&*words, WORD, STAMP);
                if is_claimed {
                    words.store(BYTE, WRITER, Ordering::Relaxed);
                }
                is_claimed
            }
        });
        let is_recalled = recall(&*words, WORD, STAMP);
        if is_recalled {
            words.store(BYTE, OTHER, Ordering::Relaxed);
        }
        let is_claimed = writer.join().unwrap();
        assert!(is_claimed != is_recalled, "claimed: {is_claimed}, recalled: {is_recalled}");
        assert_eq!(words.load(BYTE), if is_claimed { WRITER } else { OTHER });
    }

    #[test]
    fn exactly_one_of_claim_and_recall_succeeds() {
        loom::model(claim_and_recall);
    }

    #[test]
    fn claim_and_recall_must_be_atomic() {
        for rule in [Rule::ClaimAtOnce, Rule::RecallAtOnce] {
            break_rule(Some(rule));
            let found = catch_unwind(AssertUnwindSafe(|| loom::model(claim_and_recall)));
            break_rule(None);
            assert!(found.is_err(), "{rule:?}");
        }
    }

    #[test]
    fn claim_word_shows_one_offer_once() {
        loom::model(|| {
            let words = Offer::offered();
            assert!(claim(&*words, WORD, STAMP) && claim(&*words, WORD, STAMP), "claiming is idempotent");
            assert!(!recall(&*words, WORD, STAMP), "a claimed offer stays");
            offer(&*words, WORD, STAMP + 1);
            assert!(!claim(&*words, WORD, STAMP), "the old stamp claims nothing of the next use");
            assert!(recall(&*words, WORD, STAMP + 1) && !claim(&*words, WORD, STAMP + 1));
            for garbage in [1, u64::MAX, CLAIMED] {
                words.store(WORD, garbage, Ordering::SeqCst);
                assert!(!recall(&*words, WORD, STAMP + 2), "{garbage:x} counts as a claim");
            }
        });
    }
}
