//! The stamp protocol: the order of loads, stores and fences by which a reader knows, without a lock, that
//! the words of a slot and the bytes they point to belong to the use it asked for.
//!
//! **Invariant (retire before reuse):** every overwrite of a word or a byte of a use comes after [`retire`]'s
//! fence, or after a [`before_bytes`] by a writer that learned of the retire. A reader that has loaded
//! anything newer than its use therefore finds the stamp withdrawn in [`is_current`].
//!
//! **Invariant:** a reader that finds a stamp finds the words of its use: [`publish_use`] stores them first.
//!
//! **Invariant (cached locations are valid on members only):** a node becomes a member again only after it
//! has applied all retires from the time of its absence. A reader that finds a member with [`is_member`], and
//! then the stamp with [`read_checked`], has found an object that no delete has removed.
//!
//! The functions are generic over [`Words`] so that the checkers run this code: shuttle over the real mapping
//! (`schedules.rs`), loom over its own atomics, whose loads may be stale (below).

use std::sync::atomic::Ordering;

use crate::layout::{self, header, slot};
use crate::seams::{Rule, is_broken};

/// Memory as the protocol uses it: 64-bit words at byte offsets, and fences.
pub(crate) trait Words {
    /// Loads a word. Relaxed: a read-only mapping allows nothing stronger.
    fn load(&self, at: u64) -> u64;
    /// Stores a word.
    fn store(&self, at: u64, value: u64, order: Ordering);
    /// A fence between accesses to words and bytes.
    fn fence(&self, order: Ordering);
    /// Replaces a word if it has the old value, atomically; else returns its value.
    fn compare_and_swap(&self, at: u64, old: u64, new: u64) -> Result<(), u64>;
}

/// Writes `stamp` and `state` into the slot at `at`. `fill` stores the other words.
///
/// A different stamp than before is a new use: the old one is retired first and the new one appears last. The
/// same stamp is the next state of the same use: the state appears last.
pub(crate) fn publish_use(words: &impl Words, at: u64, stamp: u64, state: u64, fill: impl FnOnce()) {
    let old_stamp = words.load(at + slot::STAMP);
    let is_new_use = old_stamp != stamp;
    if is_new_use && old_stamp != 0 && !is_broken(Rule::RetireBeforeWords) {
        retire(words, at);
    }
    if is_new_use && is_broken(Rule::StampAfterWords) {
        words.store(at + slot::STAMP, stamp, Ordering::SeqCst);
    }
    fill();
    // The state is stored after the other words, for readers of the segment after a crash.
    words.store(at + slot::STATE, state, Ordering::Release);
    if is_new_use {
        words.store(at + slot::STAMP, stamp, Ordering::SeqCst);
    }
}

/// Withdraws the stamp of the slot at `at`. After this returns, no copy that ends later validates, so the
/// bytes may be reused.
pub(crate) fn retire(words: &impl Words, at: u64) {
    words.store(at + slot::STAMP, 0, Ordering::SeqCst);
    // A sequentially consistent store alone does not order later plain stores after it on every processor.
    if !is_broken(Rule::FenceAfterRetire) {
        words.fence(Ordering::SeqCst);
    }
    words.store(at + slot::STATE, layout::STATE_FREE, Ordering::SeqCst);
}

/// Withdraws the stamp of the slot at `at`, as [`retire`], but leaves the words: they say which memory is
/// still in use, and by which use of the slot. A crash in between leaves a stamp with this state.
pub(crate) fn park(words: &impl Words, at: u64, state: u64) {
    let stamp = words.load(at + slot::STAMP);
    if stamp == 0 {
        return;
    }
    words.store(at + slot::WRITER, stamp, Ordering::Relaxed);
    words.store(at + slot::STATE, state, Ordering::SeqCst);
    words.store(at + slot::STAMP, 0, Ordering::SeqCst);
    words.fence(Ordering::SeqCst);
}

/// The result of `load` on a slot with `stamp`; `None` if the slot does not hold it before or after the load,
/// because `load` may then have read another use.
pub(crate) fn read_checked<T>(
    words: &impl Words,
    at: u64,
    stamp: u64,
    load: impl FnOnce() -> T,
) -> Option<T> {
    if stamp == 0 || words.load(at + slot::STAMP) != stamp {
        return None;
    }
    if !is_broken(Rule::FenceAfterStamp) {
        words.fence(Ordering::Acquire);
    }
    let found = load();
    let is_believed = is_broken(Rule::CheckAfterWords) || is_current(words, at, stamp);
    is_believed.then_some(found)
}

/// Whether the slot holds the stamp now, ordered after all earlier loads and copies.
pub(crate) fn is_current(words: &impl Words, at: u64, stamp: u64) -> bool {
    if !is_broken(Rule::FenceBeforeCheck) {
        words.fence(Ordering::Acquire);
    }
    stamp != 0 && words.load(at + slot::STAMP) == stamp
}

/// A writer calls this between [`read_checked`] and its first byte. The writer did not retire the previous
/// use of these bytes itself: without this fence a reader could see a byte of the new use and still the old
/// stamp, on processors where stores do not become visible everywhere at the same time.
pub(crate) fn before_bytes(words: &impl Words) {
    if !is_broken(Rule::FenceBeforeBytes) {
        words.fence(Ordering::Release);
    }
}

/// Records whether the node is a member of its cluster. Reads that end after this returns see the new value.
pub(crate) fn set_member(words: &impl Words, is_member: bool) {
    words.store(header::MEMBER, u64::from(is_member), Ordering::SeqCst);
    // Later stores must not be visible before it.
    if !is_broken(Rule::FenceAfterMember) {
        words.fence(Ordering::SeqCst);
    }
}

/// Whether the node is a member now, ordered after all earlier loads and copies.
pub(crate) fn is_member(words: &impl Words) -> bool {
    if !is_broken(Rule::FenceBeforeMember) {
        words.fence(Ordering::Acquire);
    }
    words.load(header::MEMBER) == 1
}

#[cfg(test)]
mod tests {
    //! All executions of two or three threads that the language's memory model allows, stale loads included,
    //! up to loom's bound. Loom treats `SeqCst` accesses as `AcqRel`, which allows more than can happen.

    use std::panic::{AssertUnwindSafe, catch_unwind};

    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    use super::*;
    use crate::model::Model;
    use crate::seams::break_rule;

    /// The relevant words of a slot: stamp, state, its length for all other words, and one word for its
    /// bytes.
    struct Slot {
        member: AtomicU64,
        stamp: AtomicU64,
        state: AtomicU64,
        len: AtomicU64,
        byte: AtomicU64,
    }

    const BYTE: u64 = slot::ATTRIBUTES + 8;
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
    fn reuse_slot(words: &Slot) {
        publish_use(words, 0, NEW, 1, || words.store(slot::LEN, NEW, Ordering::Relaxed));
    }

    /// A reader: what it accepts must belong to the use it asked for.
    fn read(words: &Slot, stamp: u64) {
        let Some(len) = read_checked(words, 0, stamp, || words.load(slot::LEN)) else { return };
        assert_eq!(len, stamp, "words of another use were accepted");
        let byte = words.load(BYTE);
        if is_current(words, 0, stamp) && stamp == OLD {
            assert_eq!(byte, OLD, "a byte of another use was accepted");
        }
    }

    fn node_and_reader() {
        let words = Slot::new();
        let reader = loom::thread::spawn({
            let words = Arc::clone(&words);
            move || read(&words, OLD)
        });
        reuse_slot(&words);
        words.store(BYTE, NEW, Ordering::Relaxed);
        reader.join().unwrap();
    }

    /// The reader asks for the use that is just being written.
    fn node_and_early_reader() {
        let words = Slot::new();
        let reader = loom::thread::spawn({
            let words = Arc::clone(&words);
            move || read(&words, NEW)
        });
        reuse_slot(&words);
        reader.join().unwrap();
    }

    /// The writer of the new use is another thread than the one that retired the old one.
    fn node_writer_and_reader() {
        let words = Slot::new();
        let reader = loom::thread::spawn({
            let words = Arc::clone(&words);
            move || {
                let byte = words.load(BYTE);
                if is_current(&*words, 0, OLD) {
                    assert_eq!(byte, OLD, "a byte of another use was accepted");
                }
            }
        });
        let writer = loom::thread::spawn({
            let words = Arc::clone(&words);
            move || {
                if read_checked(&*words, 0, NEW, || ()).is_some() {
                    before_bytes(&*words);
                    words.store(BYTE, NEW, Ordering::Relaxed);
                }
            }
        });
        reuse_slot(&words);
        reader.join().unwrap();
        writer.join().unwrap();
    }

    /// The node was away, and takes these steps. The reader has a cached location from before.
    fn returning(steps: [fn(&Slot); 2]) {
        let words = Slot::new();
        set_member(&*words, false);
        let reader = loom::thread::spawn({
            let words = Arc::clone(&words);
            move || {
                let is_read = is_member(&*words) && read_checked(&*words, 0, OLD, || ()).is_some();
                assert!(!is_read, "a use with a pending retire was read");
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

    fn early_member_and_reader() {
        returning([JOIN, RETIRE]);
    }

    /// The node leaves, and then a delete is answered without it.
    fn leaving_node_and_reader() {
        let words = Slot::new();
        let reader = loom::thread::spawn({
            let words = Arc::clone(&words);
            move || {
                let deleted = words.load(BYTE);
                assert!(!is_member(&*words) || deleted == OLD, "a node that has left was still a member");
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

    /// The first model in which a read fails.
    fn failing(rule: Option<Rule>) -> Option<&'static str> {
        break_rule(rule);
        let fails = |model: fn()| catch_unwind(AssertUnwindSafe(|| loom::model(model))).is_err();
        let found = MODELS.iter().find(|(_, model)| fails(*model));
        break_rule(None);
        found.map(|(name, _)| *name)
    }

    #[test]
    fn no_allowed_reordering_gives_a_wrong_read() {
        for (_, model) in MODELS {
            loom::model(model);
        }
    }

    #[test]
    fn missing_fences_and_wrong_orders_are_caught() {
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
        let early = catch_unwind(AssertUnwindSafe(|| loom::model(early_member_and_reader)));
        assert!(early.is_err(), "the node is a member before it has applied its retires");
    }
}
