//! Prefetches memory into the CPU caches.
//!
//! The hardware prefetcher of a sequential read stops at the end of a page, so each page starts with a stall.
//! This module prefetches eight pages in parallel, like the [copy kernel](crate::copy), which uses more of
//! the memory's bandwidth. It is used for bytes that the kernel copies sequentially, and for bytes that are
//! [hashed](crate::checksum).
//!
//! A prefetch neither reads nor writes as far as the program can see, so races do not matter.

use crate::buffer::SourceBuf;

/// Bytes that are prefetched in parallel.
pub(crate) const WINDOW_BYTES: usize = WINDOW_PAGES * PAGE_BYTES;
const WINDOW_PAGES: usize = 8;
const PAGE_BYTES: usize = 4 << 10;
/// Size of a cache line.
pub(crate) const LINE_BYTES: usize = 64;
/// Shorter ranges are read before a prefetch would arrive.
const FETCH_BYTES_MIN: usize = 16 << 10;

/// Prefetches bytes that are read next.
pub(crate) fn prefetch(source: SourceBuf<'_>) {
    each_line(source.len(), |at| prefetch_line(source.as_ptr().wrapping_add(at)));
}

/// Offset in a window of the line with this number, in the order of prefetching.
pub(crate) const fn line_offset(number: usize) -> usize {
    number % WINDOW_PAGES * PAGE_BYTES + number / WINDOW_PAGES * LINE_BYTES
}

fn each_line(len: usize, mut call: impl FnMut(usize)) {
    if len < FETCH_BYTES_MIN {
        return;
    }
    for window in (0..len).step_by(WINDOW_BYTES) {
        for number in 0..WINDOW_BYTES / LINE_BYTES {
            let at = window + line_offset(number);
            if at < len {
                call(at);
            }
        }
    }
}

/// Prefetches a line that is read next. The address need not be mapped.
#[inline(always)]
pub(crate) fn prefetch_line(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the instruction is a hint. It has no visible effect and cannot fault.
    unsafe {
        std::arch::asm!("prefetcht0 [{}]", in(reg) line, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = line;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_line_is_prefetched_exactly_once() {
        for len in [FETCH_BYTES_MIN, 20_001, WINDOW_BYTES, WINDOW_BYTES + 1, 3 * WINDOW_BYTES - 64] {
            let mut called = Vec::new();
            each_line(len, |at| called.push(at));
            let lines: BTreeSet<_> = called.iter().copied().collect();
            assert_eq!(called.len(), lines.len(), "{len} bytes");
            assert!(lines.into_iter().eq((0..len).step_by(LINE_BYTES)), "{len} bytes");
        }
        each_line(FETCH_BYTES_MIN - 1, |_| panic!("short ranges are not prefetched"));
    }

    #[test]
    fn prefetched_address_need_not_be_mapped() {
        for nowhere in [0, 64, usize::MAX / 2, usize::MAX] {
            prefetch_line(std::ptr::without_provenance(nowhere));
        }
    }
}
