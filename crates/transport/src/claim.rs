//! Offers: reservations that a node has preallocated for a client, and may recall until they are claimed.
//!
//! Each slot has a *claim word* in a memory file of its own, which the node and all attached clients map
//! writable. When a use of the slot [begins](begin), the node stores its stamp there: as an offer, or as one
//! that is claimed already, because it was reserved for a writer at once. Before the first byte of an offer a
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
//!
//! The master of a node on its host uses the words, too: it [withdraws](withdraw) the use of a replaced
//! object after it has sent the retire, and before it answers. From then on no reader validates that use,
//! whenever the node applies the retire.
//!
//! **Invariant:** a withdrawal never changes the word of another use. Stamps have no order, so the word of
//! every use is stored before its stamp appears; a word with another stamp is that of a later use. A reader
//! loads the word before the stamp ([`is_valid`]): if the word is that of a later use already, the stamp has
//! changed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::layout::CLAIM_BYTES;
use crate::map::Map;
use crate::seams::{Rule, is_broken};
use crate::stamp::{self, Words};

/// The bit of a claim word that says that the use is claimed. Stamps start at one and stay below.
const CLAIMED: u64 = 1 << 63;
/// The bit of a claim word that says that the use is withdrawn. Stamps stay below.
const WITHDRAWN: u64 = 1 << 62;
/// The claim word after a recall.
const RECALLED: u64 = 0;

/// Begins the use with this stamp: offers it, or reserves it for a writer that need not claim it. The node
/// calls it before it writes the stamp into the slot.
pub(crate) fn begin(words: &impl Words, at: u64, stamp: u64, is_offered: bool) {
    assert!(stamp != RECALLED && stamp < WITHDRAWN, "stamp {stamp} is out of range");
    let word = if is_offered { stamp } else { stamp | CLAIMED };
    // An exchange: a withdrawal of the last use comes before it, or finds the new stamp.
    let mut found = words.load(at);
    while let Err(other) = words.compare_and_swap(at, found, word) {
        found = other;
    }
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

/// Withdraws the use with this stamp: no read that begins later validates it. The node has been told to
/// retire it, and may have given the slot to a later use meanwhile; then nothing changes.
pub(crate) fn withdraw(words: &impl Words, at: u64, stamp: u64) {
    let mut found = words.load(at);
    while found & !(CLAIMED | WITHDRAWN) == stamp || is_broken(Rule::WithdrawOwnUse) {
        if is_broken(Rule::WithdrawAtOnce) {
            return words.store(at, stamp | WITHDRAWN, Ordering::SeqCst);
        }
        match words.compare_and_swap(at, found, stamp | WITHDRAWN) {
            Ok(()) => return,
            Err(other) => found = other,
        }
    }
}

/// Whether the use with this stamp is withdrawn, as far as its word says so. A check of the stamp follows.
fn is_withdrawn(words: &impl Words, at: u64, stamp: u64) -> bool {
    words.load(at) == stamp | WITHDRAWN
}

/// Whether the slot at `slot` of the control segment holds the stamp now, and the claim word at `word` does
/// not withdraw it. Ordered after all earlier loads and copies.
pub(crate) fn is_valid(control: &impl Words, slot: u64, claims: &impl Words, word: u64, stamp: u64) -> bool {
    if is_broken(Rule::WordBeforeStamp) {
        let is_current = stamp::is_current(control, slot, stamp);
        claims.fence(Ordering::Acquire);
        return is_current && !is_withdrawn(claims, word, stamp);
    }
    !is_withdrawn(claims, word, stamp) && stamp::is_current(control, slot, stamp)
}

/// The claim words of a segment, as writers and readers use them.
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

    /// See [`withdraw`]. Nothing happens to a slot that has no word.
    pub(crate) fn withdraw(&self, slot: u32, stamp: u64) {
        let at = u64::from(slot) * CLAIM_BYTES;
        if at + CLAIM_BYTES <= self.0.len() && self.0.is_here() && stamp < WITHDRAWN {
            withdraw(&*self.0, at, stamp);
        }
    }

    /// See [`is_withdrawn`].
    pub(crate) fn is_withdrawn(&self, slot: u32, stamp: u64) -> bool {
        let word = u64::from(slot) * CLAIM_BYTES;
        word + CLAIM_BYTES <= self.0.len() && is_withdrawn(&*self.0, word, stamp)
    }

    /// See [`is_valid`]. `at` is the offset of the slot in the control segment.
    pub(crate) fn is_valid(&self, control: &Map, (slot, at): (u32, u64), stamp: u64) -> bool {
        let word = u64::from(slot) * CLAIM_BYTES;
        word + CLAIM_BYTES <= self.0.len() && is_valid(control, at, &*self.0, word, stamp)
    }
}

/// The claim words of a node on the master's host, as the master uses them.
#[derive(Debug)]
pub struct Withdrawals(Claims);

impl Withdrawals {
    pub(crate) fn new(map: Arc<Map>) -> Self {
        Self(Claims::new(map))
    }

    /// Withdraws the use with this stamp: no read that begins later validates it. The caller has sent the
    /// retire to the node.
    pub fn withdraw(&self, slot: u32, stamp: u64) {
        self.0.withdraw(slot, stamp);
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

    /// The stamp of a slot, its claim word, and whether the master has answered.
    struct Use([AtomicU64; 3]);

    const SLOT_STAMP: u64 = crate::layout::slot::STAMP;
    const ANSWERED: u64 = 1 << 20;
    const CLAIM: u64 = 1 << 21;
    /// Stamps have no order.
    const NEXT: u64 = STAMP - 1;

    impl Model for Use {
        fn word(&self, at: u64) -> &AtomicU64 {
            match at {
                SLOT_STAMP => &self.0[0],
                CLAIM => &self.0[1],
                ANSWERED => &self.0[2],
                _ => panic!("no word at {at}"),
            }
        }
    }

    /// The master withdraws a use and answers, while the node retires it and offers the slot again. A reader
    /// that has seen the answer does not read the old use, and the next writer can claim its offer.
    fn withdraw_and_reuse(is_offered: bool) {
        let words = Arc::new(Use([STAMP, STAMP | CLAIMED, 0].map(AtomicU64::new)));
        let master = loom::thread::spawn({
            let words = Arc::clone(&words);
            move || {
                withdraw(&*words, CLAIM, STAMP);
                words.store(ANSWERED, 1, Ordering::SeqCst);
            }
        });
        let reader = loom::thread::spawn({
            let words = Arc::clone(&words);
            move || {
                let is_answered = words.0[2].load(Ordering::SeqCst) == 1;
                let is_read = is_valid(&*words, 0, &*words, CLAIM, STAMP);
                assert!(!(is_answered && is_read), "a withdrawn use was read");
            }
        });
        words.store(SLOT_STAMP, 0, Ordering::SeqCst);
        words.fence(Ordering::SeqCst);
        begin(&*words, CLAIM, NEXT, is_offered);
        words.store(SLOT_STAMP, NEXT, Ordering::SeqCst);
        master.join().unwrap();
        reader.join().unwrap();
        assert!(claim(&*words, CLAIM, NEXT), "the withdrawal changed the word of the next use");
        assert!(is_valid(&*words, 0, &*words, CLAIM, NEXT), "the next use was withdrawn");
    }

    #[test]
    fn withdrawn_use_is_not_read_after_the_answer() {
        loom::model(|| withdraw_and_reuse(true));
        loom::model(|| withdraw_and_reuse(false));
    }

    #[test]
    fn withdrawal_must_be_atomic_and_checked_first() {
        for rule in [Rule::WithdrawAtOnce, Rule::WordBeforeStamp, Rule::WithdrawOwnUse] {
            break_rule(Some(rule));
            let found = catch_unwind(AssertUnwindSafe(|| loom::model(|| withdraw_and_reuse(true))));
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
            begin(&*words, WORD, STAMP + 1, true);
            assert!(!claim(&*words, WORD, STAMP), "the old stamp claims nothing of the next use");
            assert!(recall(&*words, WORD, STAMP + 1) && !claim(&*words, WORD, STAMP + 1));
            for garbage in [1, u64::MAX, CLAIMED] {
                words.store(WORD, garbage, Ordering::SeqCst);
                assert!(!recall(&*words, WORD, STAMP + 2), "{garbage:x} counts as a claim");
            }
        });
    }
}
