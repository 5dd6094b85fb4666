//! Memory that is called into the caches before it is used.
//!
//! A processor that reads one byte after the other looks ahead by itself, but not past the end of a page, and
//! so it waits at each. Here eight pages are called for side by side, as the [copy kernel](crate::copy) walks
//! through them: more of the memory is at work at the same time. It is for what goes through the operating
//! system, which copies one byte after the other, and for what is [hashed](crate::checksum).
//!
//! Nothing is read or written by it, so it does not matter who else does.

use crate::buffer::SourceBuf;

/// What is called for side by side.
pub(crate) const WINDOW_BYTES: usize = WINDOW_PAGES * PAGE_BYTES;
const WINDOW_PAGES: usize = 8;
const PAGE_BYTES: usize = 4 << 10;
/// What a cache takes in at a time.
pub(crate) const LINE_BYTES: usize = 64;
/// Less than this is there before it has been called for.
const FETCH_BYTES_MIN: usize = 16 << 10;

/// Calls for bytes that are read next.
pub(crate) fn to_read(source: SourceBuf<'_>) {
    each_line(source.len(), |at| read_line(source.as_ptr().wrapping_add(at)));
}

/// Where in a window the line with this number is, in the order in which they are called for.
pub(crate) const fn place_of(number: usize) -> usize {
    number % WINDOW_PAGES * PAGE_BYTES + number / WINDOW_PAGES * LINE_BYTES
}

fn each_line(len: usize, mut call: impl FnMut(usize)) {
    if len < FETCH_BYTES_MIN {
        return;
    }
    for window in (0..len).step_by(WINDOW_BYTES) {
        for number in 0..WINDOW_BYTES / LINE_BYTES {
            let at = window + place_of(number);
            if at < len {
                call(at);
            }
        }
    }
}

/// Calls for a line that is read next. It may be anywhere, mapped or not.
#[inline(always)]
pub(crate) fn read_line(line: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the instruction is a hint. It reads nothing that the program sees, and faults nowhere.
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
    fn every_line_is_called_for_once_and_none_beside() {
        for len in [FETCH_BYTES_MIN, 20_001, WINDOW_BYTES, WINDOW_BYTES + 1, 3 * WINDOW_BYTES - 64] {
            let mut called = Vec::new();
            each_line(len, |at| called.push(at));
            let lines: BTreeSet<_> = called.iter().copied().collect();
            assert_eq!(called.len(), lines.len(), "{len} bytes");
            assert!(lines.into_iter().eq((0..len).step_by(LINE_BYTES)), "{len} bytes");
        }
        each_line(FETCH_BYTES_MIN - 1, |_| panic!("so few bytes are not worth it"));
    }

    #[test]
    fn what_is_called_for_need_not_be_there() {
        for nowhere in [0, 64, usize::MAX / 2, usize::MAX] {
            read_line(std::ptr::without_provenance(nowhere));
        }
    }
}
