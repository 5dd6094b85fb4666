//! The copy kernel: the only code that loads or stores bytes that others may be writing.
//!
//! On x86-64 it is one instruction, `rep movsb`, in inline assembly: the compiler neither assumes the absence
//! of races nor moves anything across, and the processor moves whole cache lines. Elsewhere, and under Miri,
//! it is a loop over atomics. A racing copy gives unspecified bytes; that they were those asked for is proven
//! afterwards, by the stamp.

use xxhash_rust::xxh3::Xxh3;

use crate::buffer::{SourceBuf, TargetBuf};

/// How much is copied at a time into a private buffer to be hashed: it stays in the first-level cache.
const HASH_PIECE_BYTES: usize = 16 << 10;

/// Copies all of `source` over all of `target`.
///
/// # Panics
/// If they differ in length: a broken invariant of the caller.
pub fn copy(source: SourceBuf<'_>, target: TargetBuf<'_>) {
    let len = source.len();
    assert_eq!(len, target.len(), "a copy between ranges of different lengths");
    #[cfg(test)]
    if crate::seams::is_scheduled() {
        return in_turns(source, target);
    }
    // SAFETY: both ranges are mapped for `len` bytes, as the types promise.
    unsafe { kernel(source.as_ptr(), target.as_mut_ptr(), len) }
}

/// Copies into memory that nobody else touches, such as a buffer on the stack.
pub fn copy_out(source: SourceBuf<'_>, target: &mut [u8]) {
    copy(source, TargetBuf::from(target));
}

/// Copies out of memory that nobody else writes.
pub fn copy_in(source: &[u8], target: TargetBuf<'_>) {
    copy(SourceBuf::from(source), target);
}

/// The xxh3-64 of the bytes of the ranges, in order.
#[must_use]
pub fn checksum<'a>(sources: impl IntoIterator<Item = SourceBuf<'a>>) -> u64 {
    let mut hash = Checksum::default();
    sources.into_iter().for_each(|source| hash.update(source));
    hash.finish()
}

/// The xxh3-64 of bytes that come one range after the other.
///
/// It hashes a private copy of each piece, for the bytes may be written by others meanwhile. A caller that has just
/// moved them, or is about to, finds or leaves them in the cache.
pub struct Checksum {
    hash: Xxh3,
    piece: [u8; HASH_PIECE_BYTES],
}

impl Checksum {
    /// Takes in the next bytes.
    pub fn update(&mut self, source: SourceBuf<'_>) {
        let mut rest = source;
        while !rest.is_empty() {
            let (head, tail) = rest.split_at(HASH_PIECE_BYTES);
            let Some(copied) = self.piece.get_mut(..head.len()) else { break };
            copy_out(head, copied);
            self.hash.update(copied);
            rest = tail;
        }
    }

    /// The checksum of all of them.
    #[must_use]
    pub fn finish(&self) -> u64 {
        self.hash.digest()
    }
}

impl Default for Checksum {
    fn default() -> Self {
        Self { hash: Xxh3::new(), piece: [0; HASH_PIECE_BYTES] }
    }
}

/// The same copy, a few bytes at a time, with a chance for others before each: no processor promises more.
#[cfg(test)]
fn in_turns(source: SourceBuf<'_>, target: TargetBuf<'_>) {
    const TURN_BYTES: usize = 8;
    let (mut source, mut target) = (source, target);
    while !source.is_empty() {
        let ((from, more), (to, room)) = (source.split_at(TURN_BYTES), target.split_at(TURN_BYTES));
        crate::seams::point();
        // SAFETY: both pieces are parts of mapped ranges and have the same length.
        unsafe { kernel(from.as_ptr(), to.as_mut_ptr(), from.len()) };
        (source, target) = (more, room);
    }
}

/// Copies `len` bytes.
///
/// # Safety
/// `source` must be readable and `target` writable for `len` bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn kernel(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: the instruction reads `len` bytes at `source` and writes them to `target`, which the caller
    // vouches for; the direction flag is clear by the calling convention.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") source => _,
            inout("rdi") target => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Copies `len` bytes.
///
/// # Safety
/// `source` must be readable and `target` writable for `len` bytes.
#[cfg(any(not(target_arch = "x86_64"), miri))]
unsafe fn kernel(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: the same contract.
    unsafe { atomic_loop(source, target, len) }
}

/// The kernel without assembly: whole words where both sides are aligned alike, bytes elsewhere.
///
/// # Safety
/// `source` must be readable and `target` writable for `len` bytes.
#[cfg(any(not(target_arch = "x86_64"), miri, test))]
unsafe fn atomic_loop(source: *const u8, target: *mut u8, len: usize) {
    use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
    const WORD: usize = size_of::<u64>();
    let aligned = |at: usize| (source as usize + at).is_multiple_of(WORD);
    let alike = (source as usize % WORD) == (target as usize % WORD);
    let mut at = 0;
    while at < len {
        // SAFETY: `at` is below `len`, and a word is taken only where eight bytes are left and both sides are
        // aligned. Loads are relaxed, which is allowed on read-only mappings too; nobody touches these bytes
        // but through atomics, assembly or the kernel.
        unsafe {
            if alike && aligned(at) && len - at >= WORD {
                let word = AtomicU64::from_ptr(source.add(at).cast_mut().cast()).load(Relaxed);
                AtomicU64::from_ptr(target.add(at).cast()).store(word, Relaxed);
                at += WORD;
            } else {
                let byte = AtomicU8::from_ptr(source.add(at).cast_mut()).load(Relaxed);
                AtomicU8::from_ptr(target.add(at)).store(byte, Relaxed);
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 7 + at / 256) as u8).collect()
    }

    #[test]
    fn both_kernels_copy_every_length_and_alignment_and_nothing_beside() {
        let source = pattern(400);
        for from in 0..9 {
            for to in 0..9 {
                for len in (0..40).chain([63, 64, 65, 128, 255, 300]) {
                    let mut expected = vec![0xee; 400];
                    expected[to..to + len].copy_from_slice(&source[from..from + len]);

                    let mut by_kernel = vec![0xee; 400];
                    copy_in(&source[from..from + len], TargetBuf::from(&mut by_kernel[to..to + len]));
                    assert_eq!(by_kernel, expected, "kernel {from} {to} {len}");

                    let mut by_loop = vec![0xee; 400];
                    // SAFETY: both vectors have 400 bytes, more than is touched.
                    unsafe { atomic_loop(source.as_ptr().add(from), by_loop.as_mut_ptr().add(to), len) };
                    assert_eq!(by_loop, expected, "loop {from} {to} {len}");
                }
            }
        }
    }

    #[test]
    fn a_checksum_does_not_depend_on_how_the_bytes_are_cut() {
        let bytes = pattern(HASH_PIECE_BYTES * 2 + 77);
        let whole = xxhash_rust::xxh3::xxh3_64(&bytes);
        for at in [0, 1, 77, HASH_PIECE_BYTES, HASH_PIECE_BYTES + 1, bytes.len()] {
            let (head, tail) = bytes.split_at(at);
            assert_eq!(checksum([SourceBuf::from(head), SourceBuf::from(tail)]), whole, "cut at {at}");
        }
        assert_eq!(checksum([]), xxhash_rust::xxh3::xxh3_64(b""));
    }
}
