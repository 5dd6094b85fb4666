//! The copy kernel: the only code that loads or stores bytes that other processes may be writing.
//!
//! On x86-64 it is inline assembly: the compiler neither assumes the absence of races nor moves anything
//! across.
//!
//! - Short copies use `rep movsb`, which moves whole cache lines.
//! - Long copies on AVX2 use non-temporal stores, which avoid reading the overwritten lines, followed by the
//!   fence that such stores need. The loop processes several pages in parallel, which uses more of the
//!   memory's bandwidth than a sequential copy such as `memcpy`.
//! - On other processors, and under Miri, it is a loop over atomics.
//!
//! A racing copy gives unspecified bytes; the stamp check afterwards decides whether they count.

use crate::buffer::{SourceBuf, TargetBuf};

/// From this length on, stores bypass the caches. The reader of a put is another process, and a get mostly
/// goes on to a device: the copying processor does not read the bytes next.
const STREAM_BYTES_MIN: usize = 64 << 10;
/// The same for private memory, which is read next: longer copies would not stay in the caches anyway.
const OWN_STREAM_BYTES_MIN: usize = 2 << 20;
/// Alignment of the target of non-temporal stores, and how many bytes they move at a time. The processor
/// combines them into whole lines: an incomplete line costs ten times what a copy does.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const STREAM_ALIGN: usize = 64;
/// See [`STREAM_ALIGN`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
const STREAM_STEP: usize = 128;
/// The pages that are copied in parallel, and the size of eight of them.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const PAGE_BYTES: usize = 4 << 10;
/// See [`PAGE_BYTES`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
const PAGES_BYTES: usize = 8 * PAGE_BYTES;

/// Copies all of `source` over all of `target`.
///
/// # Panics
/// If the lengths differ: a broken invariant of the caller.
pub fn copy(source: SourceBuf<'_>, target: TargetBuf<'_>) {
    copy_with(source, target, STREAM_BYTES_MIN);
}

fn copy_with(source: SourceBuf<'_>, target: TargetBuf<'_>, stream_bytes_min: usize) {
    let len = source.len();
    assert_eq!(len, target.len(), "a copy between ranges of different lengths");
    let is_host = source.place().is_none() && target.place().is_none();
    assert!(is_host, "a copy of device memory by the processor");
    #[cfg(test)]
    if crate::seams::is_scheduled() {
        return in_turns(source, target);
    }
    // SAFETY: both ranges are mapped for `len` bytes, as the types promise.
    unsafe { kernel(source.as_ptr(), target.as_mut_ptr(), len, stream_bytes_min) }
}

/// The same between addresses, for transfers that go through pinned memory.
///
/// # Safety
/// `source` must be readable and `target` writable for `len` bytes.
pub unsafe fn copy_raw(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: the same contract.
    unsafe { kernel(source, target, len, STREAM_BYTES_MIN) }
}

/// Copies into private memory, such as a buffer on the stack, in order to read it there.
pub fn copy_out(source: SourceBuf<'_>, target: &mut [u8]) {
    copy_with(source, TargetBuf::from(target), OWN_STREAM_BYTES_MIN);
}

/// Copies out of private memory.
pub fn copy_in(source: &[u8], target: TargetBuf<'_>) {
    copy(SourceBuf::from(source), target);
}

/// The same copy, a few bytes at a time, with a scheduling point before each: processors promise no more.
#[cfg(test)]
fn in_turns(source: SourceBuf<'_>, target: TargetBuf<'_>) {
    const TURN_BYTES: usize = 8;
    let (mut source, mut target) = (source, target);
    while !source.is_empty() {
        let ((from, more), (to, space)) = (source.split_at(TURN_BYTES), target.split_at(TURN_BYTES));
        crate::seams::point();
        // SAFETY: both pieces are parts of mapped ranges and have the same length.
        unsafe { kernel(from.as_ptr(), to.as_mut_ptr(), from.len(), usize::MAX) };
        (source, target) = (more, space);
    }
}

/// Copies `len` bytes, bypassing the caches from `stream_bytes_min` on.
///
/// # Safety
/// `source` must be readable and `target` writable for `len` bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn kernel(source: *const u8, target: *mut u8, len: usize, stream_bytes_min: usize) {
    if len < stream_bytes_min || !std::is_x86_feature_detected!("avx2") {
        // SAFETY: the same contract.
        return unsafe { move_bytes(source, target, len) };
    }
    let head = target.align_offset(STREAM_ALIGN);
    let pages_end = head + (len - head) / PAGES_BYTES * PAGES_BYTES;
    let steps_end = pages_end + (len - pages_end) / STREAM_STEP * STREAM_STEP;
    // SAFETY: all are adjacent parts of the ranges of the caller's contract; the processor has AVX2, and the
    // streamed parts have an aligned target and a length of whole pages or steps.
    unsafe {
        move_bytes(source, target, head);
        for at in (head..pages_end).step_by(PAGES_BYTES) {
            stream_pages(source.add(at), target.add(at));
        }
        stream_bytes(source.add(pages_end), target.add(pages_end), steps_end - pages_end);
        move_bytes(source.add(steps_end), target.add(steps_end), len - steps_end);
    }
}

/// Copies `len` bytes through the caches.
///
/// # Safety
/// `source` must be readable and `target` writable for `len` bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn move_bytes(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: the instruction reads `len` bytes at `source` and writes them to `target`, as the caller's
    // contract allows; the direction flag is clear by the calling convention.
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

/// Copies [`PAGES_BYTES`] past the caches. They are visible to others after the fence of [`stream_bytes`].
///
/// # Safety
/// As above, for [`PAGES_BYTES`]; the processor must have AVX2, and `target` must be aligned to
/// [`STREAM_ALIGN`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx2")]
// `vzeroupper` clears the upper halves of registers, so this must not be inlined into AVX code.
#[inline(never)]
unsafe fn stream_pages(source: *const u8, target: *mut u8) {
    // SAFETY: each iteration moves 128 bytes of each of eight pages, inside the ranges of the caller's
    // contract; a prefetch may point anywhere.
    unsafe {
        std::arch::asm!(
            "2:",
            ".irp page, 0, 4096, 8192, 12288, 16384, 20480, 24576, 28672",
            "prefetcht0 [{source} + \\page + 256]",
            "prefetcht0 [{source} + \\page + 320]",
            "vmovdqu {a}, [{source} + \\page]",
            "vmovdqu {b}, [{source} + \\page + 32]",
            "vmovdqu {c}, [{source} + \\page + 64]",
            "vmovdqu {d}, [{source} + \\page + 96]",
            "vmovntdq [{target} + \\page], {a}",
            "vmovntdq [{target} + \\page + 32], {b}",
            "vmovntdq [{target} + \\page + 64], {c}",
            "vmovntdq [{target} + \\page + 96], {d}",
            ".endr",
            "add {source}, 128",
            "add {target}, 128",
            "sub {len}, 128",
            "jnz 2b",
            "vzeroupper",
            source = inout(reg) source => _,
            target = inout(reg) target => _,
            len = inout(reg) PAGE_BYTES => _,
            a = out(ymm_reg) _,
            b = out(ymm_reg) _,
            c = out(ymm_reg) _,
            d = out(ymm_reg) _,
            options(nostack)
        );
    }
}

/// Copies `len` bytes past the caches, and waits until they are visible to others.
///
/// # Safety
/// As above; the processor must have AVX2, `target` must be aligned to [`STREAM_ALIGN`] and `len` a multiple
/// of [`STREAM_STEP`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx2")]
// `vzeroupper` clears the upper halves of registers, so this must not be inlined into AVX code.
#[inline(never)]
unsafe fn stream_bytes(source: *const u8, target: *mut u8, len: usize) {
    // SAFETY: the loop reads and writes 128 bytes at a time until `len` are done, inside the ranges of the
    // caller's contract; a prefetch may point anywhere. It ends with a fence, because such stores are not
    // ordered with others.
    unsafe {
        std::arch::asm!(
            "test {len}, {len}",
            "jz 3f",
            "2:",
            "prefetcht0 [{source} + 1024]",
            "prefetcht0 [{source} + 1088]",
            "vmovdqu {a}, [{source}]",
            "vmovdqu {b}, [{source} + 32]",
            "vmovdqu {c}, [{source} + 64]",
            "vmovdqu {d}, [{source} + 96]",
            "vmovntdq [{target}], {a}",
            "vmovntdq [{target} + 32], {b}",
            "vmovntdq [{target} + 64], {c}",
            "vmovntdq [{target} + 96], {d}",
            "add {source}, 128",
            "add {target}, 128",
            "sub {len}, 128",
            "jnz 2b",
            "3:",
            "sfence",
            "vzeroupper",
            source = inout(reg) source => _,
            target = inout(reg) target => _,
            len = inout(reg) len => _,
            a = out(ymm_reg) _,
            b = out(ymm_reg) _,
            c = out(ymm_reg) _,
            d = out(ymm_reg) _,
            options(nostack)
        );
    }
}

/// Copies `len` bytes.
///
/// # Safety
/// `source` must be readable and `target` writable for `len` bytes.
#[cfg(any(not(target_arch = "x86_64"), miri))]
unsafe fn kernel(source: *const u8, target: *mut u8, len: usize, _stream_bytes_min: usize) {
    // SAFETY: the same contract.
    unsafe { atomic_loop(source, target, len) }
}

/// The kernel without assembly: words where both sides have the same alignment, bytes elsewhere.
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
        // SAFETY: `at` is below `len`, and a word is used only where eight bytes are left and both sides are
        // aligned. Loads are relaxed, which is allowed on read-only mappings too; these bytes are accessed
        // only through atomics, assembly or the kernel.
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
    fn both_kernels_copy_every_length_and_alignment() {
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
                    // SAFETY: both vectors have 400 bytes, more than is accessed.
                    unsafe { atomic_loop(source.as_ptr().add(from), by_loop.as_mut_ptr().add(to), len) };
                    assert_eq!(by_loop, expected, "loop {from} {to} {len}");
                }
            }
        }
    }

    #[test]
    fn non_temporal_copy_is_complete_and_exact() {
        let source = pattern(STREAM_BYTES_MIN + 40_000);
        let lens = [(0, 0, 0), (0, 1, 0), (3, 31, 1), (7, 32, 127), (1, 65, 128), (9, 5, 600)];
        for (from, to, more) in lens.into_iter().chain([(4, 8, 32_767), (0, 32, 32_768), (2, 40, 39_000)]) {
            let len = STREAM_BYTES_MIN + more;
            let mut found = vec![0xee; source.len()];
            copy_in(&source[from..from + len], TargetBuf::from(&mut found[to..to + len]));
            assert!(found[to..to + len] == source[from..from + len], "{from} {to} {more}");
            let outside = found[..to].iter().chain(&found[to + len..]);
            assert!(outside.copied().all(|byte| byte == 0xee), "{from} {to} {more}");
        }
    }
}
