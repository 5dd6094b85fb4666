//! Checks an address that a caller gives before anything is copied from or to it.
//!
//! The kernel does the checking, so that a bad address is an answer and not a signal. An address can be
//! outside every mapping (a device pointer, freed memory), inside a mapping without access rights (address
//! space that a device driver reserved), or read-only. All probes access memory as an ordinary instruction
//! does: memory that a driver mapped, such as pinned host memory, passes.
//!
//! **Invariant:** a probe changes no byte, and takes no lock of this process.
//!
//! **Limits:** holes are found anywhere in the range; access rights are checked at its ends and, by
//! [`Coverage::Sampled`], at intervals. Memory that is unmapped after the probe is not protected.

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::AtomicU32;

use rustix::param::page_size;

/// The intended access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The bytes are read.
    Read,
    /// The bytes are overwritten.
    Write,
}

/// Where access rights are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// At the first and at the last byte.
    Ends,
    /// Also in between, at up to [`SAMPLES_MAX`] addresses: for ranges that are checked once and used often.
    Sampled,
}

/// Maximum number of addresses in between at which access rights are checked.
pub const SAMPLES_MAX: usize = 1024;
/// Minimum distance between them: device memory is reserved in units of that size.
const SAMPLE_DISTANCE_MIN: usize = 2 << 20;

/// Whether every page of `start .. start + len` belongs to a mapping, whatever its access rights.
#[must_use]
pub fn is_mapped(start: usize, len: usize) -> bool {
    if len == 0 {
        return true;
    }
    let Some(last) = start.checked_add(len - 1) else { return false };
    let page_start = start & !(page_size() - 1);
    // The length is counted from the start of the page; the kernel rounds its end up.
    let Some(bytes) = (last - page_start).checked_add(1) else { return false };
    let address = std::ptr::with_exposed_provenance_mut::<c_void>(page_start);
    // SAFETY: this flag writes nothing back and changes nothing; the kernel only walks the list of mappings.
    let status = unsafe { libc::msync(address, bytes, libc::MS_ASYNC) };
    status == 0 || errno() != libc::ENOMEM
}

/// Whether `start .. start + len` is memory of this process with that access right.
#[must_use]
pub fn is_accessible(start: usize, len: usize, access: Access, coverage: Coverage) -> bool {
    if len == 0 {
        return true;
    }
    let Some(last) = start.checked_add(len - 1) else { return false };
    if start == 0 || !is_mapped(start, len) {
        return false;
    }
    let is_allowed = |at: usize| match access {
        Access::Read => is_readable(at),
        Access::Write => is_writable(at),
    };
    let page = |at: usize| at & !(page_size() - 1);
    if !is_allowed(start) || (page(start) != page(last) && !is_allowed(last)) {
        return false;
    }
    let distance = (len / SAMPLES_MAX).max(SAMPLE_DISTANCE_MIN);
    let count = if coverage == Coverage::Sampled { (len - 1) / distance } else { 0 };
    (1..=count.min(SAMPLES_MAX)).all(|number| is_allowed(start + number * distance))
}

/// Whether the byte can be read: the kernel is given the word around it as a signal set, with an invalid
/// operation, and reads the word before it rejects the operation.
fn is_readable(at: usize) -> bool {
    const NO_OPERATION: c_int = -1;
    const WORD_BYTES: usize = 8;
    let word = std::ptr::with_exposed_provenance::<c_void>(at & !(WORD_BYTES - 1));
    let nothing = std::ptr::null_mut::<c_void>();
    // SAFETY: the kernel checks the address itself, and the operation is refused, so nothing changes.
    let status = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, NO_OPERATION, word, nothing, WORD_BYTES) };
    status == 0 || errno() != libc::EFAULT
}

/// Whether the byte can be written: the kernel is asked to OR zero into the word around it, an atomic part of
/// a futex operation that wakes no thread.
fn is_writable(at: usize) -> bool {
    const OR_ZERO: c_long = 2 << 28;
    const WORD_BYTES: usize = size_of::<u32>();
    let here = AtomicU32::new(0);
    let word = std::ptr::with_exposed_provenance_mut::<u32>(at & !(WORD_BYTES - 1));
    let wake_op = libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG;
    let (wake_here, wake_word): (c_long, c_long) = (0, 0);
    // SAFETY: the kernel checks the address itself, and an atomic OR with zero does not change the word. No
    // thread waits at `here`, and waiters at `word` must tolerate spurious wake-ups.
    let status = unsafe {
        libc::syscall(libc::SYS_futex, here.as_ptr(), wake_op, wake_here, wake_word, word, OR_ZERO)
    };
    status >= 0 || errno() != libc::EFAULT
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    use super::*;

    const BIG: usize = 64 << 20;

    /// Pages with different access rights.
    struct Pages {
        start: usize,
        len: usize,
    }

    impl Pages {
        fn new(len: usize) -> Self {
            let flags = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a new mapping, at an address that the kernel chooses.
            let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, flags, MapFlags::PRIVATE) };
            Self { start: start.unwrap().expose_provenance(), len }
        }

        fn protect(&self, page: usize, flags: MprotectFlags) {
            let at = std::ptr::with_exposed_provenance_mut(self.start + page * page_size());
            // SAFETY: the page is one of this mapping, which nothing else uses.
            unsafe { mprotect(at, page_size(), flags) }.unwrap();
        }

        fn unmap(&self, page: usize) {
            let at = std::ptr::with_exposed_provenance_mut(self.start + page * page_size());
            // SAFETY: as above.
            unsafe { munmap(at, page_size()) }.unwrap();
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            let at = std::ptr::with_exposed_provenance_mut(self.start);
            // SAFETY: nothing uses the mapping, and holes in it are not an error.
            unsafe { munmap(at, self.len) }.unwrap();
        }
    }

    fn is_ok(start: usize, len: usize, access: Access) -> bool {
        is_accessible(start, len, access, Coverage::Ends)
    }

    #[test]
    fn ordinary_memory_is_accessible_and_unchanged() {
        let mut bytes: Vec<u8> = (0..100_000).map(|at| at as u8).collect();
        let start = bytes.as_mut_ptr().expose_provenance();
        for (offset, len) in [(0, 1), (1, 7), (3, 99_997), (99_999, 1), (5, 0)] {
            assert!(is_ok(start + offset, len, Access::Read));
            assert!(is_ok(start + offset, len, Access::Write));
        }
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8));
    }

    #[test]
    fn unmapped_and_partly_mapped_ranges_are_rejected() {
        let (pages, size) = (Pages::new(4 * page_size()), page_size());
        let start = pages.start;
        assert!(is_ok(start, 4 * size, Access::Write));
        pages.unmap(2);
        for access in [Access::Read, Access::Write] {
            assert!(is_ok(start, 2 * size, access) && is_ok(start + 3 * size, size, access));
            assert!(!is_ok(start, 2 * size + 1, access), "one byte too far");
            assert!(!is_ok(start, 4 * size, access), "a hole between mapped ends");
            assert!(!is_ok(start + 2 * size, 1, access));
            assert!(!is_ok(0, 1, access), "null");
            assert!(!is_ok(usize::MAX - 3, 8, access), "the end wraps around");
            assert!(!is_ok(start, usize::MAX - start, access), "the end is outside the address space");
        }
    }

    #[test]
    fn access_rights_are_checked_at_both_ends() {
        let (pages, size) = (Pages::new(3 * page_size()), page_size());
        let start = pages.start;
        pages.protect(2, MprotectFlags::empty());
        assert!(is_mapped(start, 3 * size), "reserved address space is mapped");
        for access in [Access::Read, Access::Write] {
            assert!(is_ok(start, 2 * size, access));
            assert!(!is_ok(start, 2 * size + 1, access) && !is_ok(start + 2 * size, 1, access));
        }
        pages.protect(2, MprotectFlags::READ);
        assert!(is_ok(start, 3 * size, Access::Read));
        assert!(!is_ok(start, 3 * size, Access::Write) && !is_ok(start + 2 * size, 1, Access::Write));
    }

    #[test]
    fn samples_find_inaccessible_pages_in_between() {
        let pages = Pages::new(BIG);
        let hidden = SAMPLE_DISTANCE_MIN / page_size();
        assert!(is_accessible(pages.start, BIG, Access::Write, Coverage::Sampled));
        pages.protect(3 * hidden, MprotectFlags::empty());
        assert!(is_accessible(pages.start, BIG, Access::Read, Coverage::Ends));
        assert!(!is_accessible(pages.start, BIG, Access::Read, Coverage::Sampled));
    }
}
