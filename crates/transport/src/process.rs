//! The id of this process without a system call each time.
//!
//! A page holds the process id. The kernel clears that page in forked children, which then ask once.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};

/// The id of this process. A forked child gets its own.
#[must_use]
pub fn id() -> u32 {
    static PAGE: OnceLock<Option<&'static AtomicU32>> = OnceLock::new();
    let Some(page) = PAGE.get_or_init(page) else { return std::process::id() };
    match page.load(Ordering::Relaxed) {
        0 => {
            let process = std::process::id();
            page.store(process, Ordering::Relaxed);
            process
        }
        process => process,
    }
}

/// The page; `None` if the kernel cannot clear pages on fork.
fn page() -> Option<&'static AtomicU32> {
    let (len, protection) = (size_of::<AtomicU32>(), ProtFlags::READ | ProtFlags::WRITE);
    // SAFETY: the kernel chooses an unused address, so no memory of this process is replaced.
    let start = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE) }.ok()?;
    // SAFETY: the page was mapped just now, and is private and anonymous as the advice demands.
    unsafe { madvise(start, len, Advice::LinuxWipeOnFork) }.ok()?;
    // SAFETY: the page is never unmapped, is aligned and zero, and is reached through this reference only.
    Some(unsafe { AtomicU32::from_ptr(start.cast()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_is_that_of_this_process() {
        assert_eq!(id(), std::process::id());
        assert_eq!(id(), std::process::id());
    }
}
