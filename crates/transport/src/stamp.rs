//! The protocol of stamps: the order of loads, stores and fences that lets a reader know, without a lock,
//! that the words of a slot and the bytes they lead to belong to the use it asked for.
//!
//! **Invariant (retire before reuse):** whoever overwrites a word or a byte of a use does so after
//! [`retire`]'s fence, or has passed a [`before_bytes`] after learning of it. A reader that has loaded
//! anything newer than its use therefore finds the stamp gone in [`still`].
//!
//! **Invariant:** whoever finds a stamp finds the words of its use: [`enter`] stores them first.
//!
//! **Invariant (only a member's memory is read unasked):** a node says that it is a member again only after
//! it has retired all that it was told to while it was none. A reader that finds a member with
//! [`is_member`], and the stamp with [`look`] after that, has found what no delete has taken away.
//!
//! The functions are generic over [`Words`] so that the checkers run these very lines: shuttle over the real
//! mapping (`schedules.rs`), loom over words that it lets be stale (below).

use std::sync::atomic::Ordering;

use crate::layout::{self, header, slot};
use crate::seams::{Rule, is_broken};

/// Memory as the protocol sees it: 64-bit words at byte offsets, and fences.
pub(crate) trait Words {
    /// Loads a word. Relaxed: nothing stronger is allowed on a read-only mapping.
    fn load(&self, at: u64) -> u64;
    /// Stores a word.
    fn store(&self, at: u64, value: u64, order: Ordering);
    /// A fence between accesses to words and bytes.
    fn fence(&self, order: Ordering);
    /// Replaces a word if it has the old value, in one step; else says which value it has.
    fn compare_and_swap(&self, at: u64, old: u64, new: u64) -> Result<(), u64>;
}

/// Makes the slot at `at` carry `stamp` and `state`. `fill` stores the other words.
///
/// A different stamp than before is a new use: the old one is retired first and the new one appears last. The
/// same stamp is a step in the life of the same use: the state appears last.
pub(crate) fn enter(words: &impl Words, at: u64, stamp: u64, state: u64, fill: impl FnOnce()) {
    let old_stamp = words.load(at + slot::STAMP);
    let is_new_use = old_stamp != stamp;
    if is_new_use && old_stamp != 0 && !is_broken(Rule::RetireBeforeWords) {
        retire(words, at);
    }
    if is_new_use && is_broken(Rule::StampAfterWords) {
        words.store(at + slot::STAMP, stamp, Ordering::SeqCst);
    }
    fill();
    // The state follows the words it speaks about, for whoever reads the segment after a crash.
    words.store(at + slot::STATE, state, Ordering::Release);
    if is_new_use {
        words.store(at + slot::STAMP, stamp, Ordering::SeqCst);
    }
}

/// Takes the stamp of the slot at `at` away. When this returns, no copy that ends later validates, so the
/// bytes may be reused.
pub(crate) fn retire(words: &impl Words, at: u64) {
    words.store(at + slot::STAMP, 0, Ordering::SeqCst);
    // A sequentially consistent store alone does not keep later plain stores behind it on every processor.
    if !is_broken(Rule::FenceAfterRetire) {
        words.fence(Ordering::SeqCst);
    }
    words.store(at + slot::STATE, layout::STATE_FREE, Ordering::SeqCst);
}

/// What `load` finds in a slot that carries `stamp`; `None` if it does not, or no longer does afterwards, for
/// then it may have loaded the words of another use.
pub(crate) fn look<T>(words: &impl Words, at: u64, stamp: u64, load: impl FnOnce() -> T) -> Option<T> {
    if stamp == 0 || words.load(at + slot::STAMP) != stamp {
        return None;
    }
    if !is_broken(Rule::FenceAfterStamp) {
        words.fence(Ordering::Acquire);
    }
    let found = load();
    let is_believed = is_broken(Rule::CheckAfterWords) || still(words, at, stamp);
    is_believed.then_some(found)
}

/// Whether the slot carries the stamp now, after everything that was loaded or copied before.
pub(crate) fn still(words: &impl Words, at: u64, stamp: u64) -> bool {
    if !is_broken(Rule::FenceBeforeCheck) {
        words.fence(Ordering::Acquire);
    }
    stamp != 0 && words.load(at + slot::STAMP) == stamp
}

/// Comes between [`look`] and the first byte that a writer stores. The writer is not who retired the use that
/// had these bytes before: without this, a reader could see a byte of the new use and not yet see the old
/// stamp gone, wherever stores do not reach all processors at the same time.
pub(crate) fn before_bytes(words: &impl Words) {
    if !is_broken(Rule::FenceBeforeBytes) {
        words.fence(Ordering::Release);
    }
}

/// Says whether the node is a member of its cluster. When this returns, no read that ends later counts as one
/// of a member's memory, or does.
pub(crate) fn set_member(words: &impl Words, is_member: bool) {
    words.store(header::MEMBER, u64::from(is_member), Ordering::SeqCst);
    // What comes then is not seen before it.
    if !is_broken(Rule::FenceAfterMember) {
        words.fence(Ordering::SeqCst);
    }
}

/// Whether the node is a member now, after everything that was loaded or copied before.
pub(crate) fn is_member(words: &impl Words) -> bool {
    if !is_broken(Rule::FenceBeforeMember) {
        words.fence(Ordering::Acquire);
    }
    words.load(header::MEMBER) == 1
}

#[cfg(test)]
mod tests {
    //! All executions of two or three threads that the memory model of the language allows, stale loads
    //! included, up to loom's bound: it takes `SeqCst` accesses for `AcqRel`, so it allows more than happens.

    use std::panic::{AssertUnwindSafe, catch_unwind};

    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    use super::*;
    use crate::model::Model;
    use crate::seams::break_rule;

    /// The words of a slot that matter here: its length is the one word beside stamp and state, and the byte
    /// that belongs to it is a word too.
    struct Slot {
        member: AtomicU64,
        stamp: AtomicU64,
        state: AtomicU64,
        len: AtomicU64,
        byte: AtomicU64,
    }

    const BYTE: u64 = slot::MARKS + 8;
    const OLD: u64 = 7;
    const NEW: u64 = 8;

    impl Slot {
        fn new() -> Arc<Self> {
            let word = AtomicU64::new;
            let member = word(1);
            Arc::new(Self { member, stamp: word(OLD), state: word(3), len: word(OLD), byte: word(OLD) })
        }
    }

    impl Model for Slot {
        fn word(&self, at: u64) -> &AtomicU64 {
            match at {
                header::MEMBER => &self.member,
                slot::STAMP => &self.stamp,
                slot::STATE => &self.state,
                slot::LEN => &self.len,
                BYTE => &self.byte,
                _ => panic!("no word at {at}"),
            }
        }
    }

    /// The node gives the slot to a new use.
    fn give(words: &Slot) {
        enter(words, 0, NEW, 1, || words.store(slot::LEN, NEW, Ordering::Relaxed));
    }

    /// Whoever reads: what it accepts must be of the use it asked for.
    fn read(words: &Slot, stamp: u64) {
        let Some(len) = look(words, 0, stamp, || words.load(slot::LEN)) else { return };
        assert_eq!(len, stamp, "the words of another use were believed");
        let byte = words.load(BYTE);
        if still(words, 0, stamp) && stamp == OLD {
            assert_eq!(byte, OLD, "the byte of another use was accepted");
        }
    }

    fn node_and_reader() {
        let words = Slot::new();
        let reader = loom::thread::spawn({
            let words = Arc::clone(&words);
            move || read(&words, OLD)
        });
        give(&words);
        words.store(BYTE, NEW, Ordering::Relaxed);
        reader.join().unwrap();
    }

    /// The reader asks for the use that is just being entered.
    fn node_and_early_reader() {
        let words = Slot::new();
        let reader = loom::thread::spawn({
            let words = Arc::clone(&words);
            move || read(&words, NEW)
        });
        give(&words);
        reader.join().unwrap();
    }

    /// Another thread than the one that retired writes the bytes of the new use.
    fn node_writer_and_reader() {
        let words = Slot::new();
        let reader = loom::thread::spawn({
            let words = Arc::clone(&words);
            move || {
                let byte = words.load(BYTE);
                if still(&*words, 0, OLD) {
                    assert_eq!(byte, OLD, "the byte of another use was accepted");
                }
            }
        });
        let writer = loom::thread::spawn({
            let words = Arc::clone(&words);
            move || {
                if look(&*words, 0, NEW, || ()).is_some() {
                    before_bytes(&*words);
                    words.store(BYTE, NEW, Ordering::Relaxed);
                }
            }
        });
        give(&words);
        reader.join().unwrap();
        writer.join().unwrap();
    }

    /// The node was away, and does both of these. The reader has known the use from before that, and asks
    /// nobody.
    fn returning(steps: [fn(&Slot); 2]) {
        let words = Slot::new();
        set_member(&*words, false);
        let reader = loom::thread::spawn({
            let words = Arc::clone(&words);
            move || {
                let is_held = is_member(&*words) && look(&*words, 0, OLD, || ()).is_some();
                assert!(!is_held, "what the node had to retire was read");
            }
        });
        steps.into_iter().for_each(|step| step(&words));
        reader.join().unwrap();
    }

    const RETIRE: fn(&Slot) = |words| retire(words, 0);
    const JOIN: fn(&Slot) = |words| set_member(words, true);

    fn returning_node_and_reader() {
        returning([RETIRE, JOIN]);
    }

    fn hasty_node_and_reader() {
        returning([JOIN, RETIRE]);
    }

    /// The node leaves, and then something becomes known that a member would have heard of.
    fn leaving_node_and_reader() {
        let words = Slot::new();
        let reader = loom::thread::spawn({
            let words = Arc::clone(&words);
            move || {
                let news = words.load(BYTE);
                assert!(!is_member(&*words) || news == OLD, "a node that has left was taken for a member");
            }
        });
        set_member(&*words, false);
        words.store(BYTE, NEW, Ordering::Relaxed);
        reader.join().unwrap();
    }

    const MODELS: [(&str, fn()); 5] = [
        ("node_and_reader", node_and_reader),
        ("node_and_early_reader", node_and_early_reader),
        ("node_writer_and_reader", node_writer_and_reader),
        ("returning_node_and_reader", returning_node_and_reader),
        ("leaving_node_and_reader", leaving_node_and_reader),
    ];

    /// The first model in which a read goes wrong.
    fn failing(rule: Option<Rule>) -> Option<&'static str> {
        break_rule(rule);
        let fails = |model: fn()| catch_unwind(AssertUnwindSafe(|| loom::model(model))).is_err();
        let found = MODELS.iter().find(|(_, model)| fails(*model));
        break_rule(None);
        found.map(|(name, _)| *name)
    }

    #[test]
    fn no_reordering_that_the_language_allows_makes_a_read_lie() {
        for (_, model) in MODELS {
            loom::model(model);
        }
    }

    #[test]
    fn each_missing_fence_and_each_wrong_order_is_caught() {
        for (rule, expected) in [
            (Rule::FenceAfterRetire, "node_and_reader"),
            (Rule::FenceBeforeCheck, "node_and_reader"),
            (Rule::CheckAfterWords, "node_and_reader"),
            (Rule::RetireBeforeWords, "node_and_reader"),
            (Rule::FenceAfterStamp, "node_and_early_reader"),
            (Rule::StampAfterWords, "node_and_early_reader"),
            (Rule::FenceBeforeBytes, "node_writer_and_reader"),
            (Rule::FenceBeforeMember, "leaving_node_and_reader"),
            (Rule::FenceAfterMember, "leaving_node_and_reader"),
        ] {
            assert_eq!(failing(Some(rule)), Some(expected), "{rule:?}");
        }
        assert_eq!(failing(None), None);
        let hasty = catch_unwind(AssertUnwindSafe(|| loom::model(hasty_node_and_reader)));
        assert!(hasty.is_err(), "the node is a member before it has retired what it owes");
    }
}
