//! Whether this process may use `io_uring`: the kernel is asked for a small ring, which is closed at once.

use rustix::io::Errno;
use rustix::io_uring::{io_uring_params, io_uring_setup};

use super::Check;

const NAME: &str = "io_uring";
/// Entries of the ring that is tried.
const ENTRIES: u32 = 4;

/// Asks for a ring. A node uses one for each disk; without it, blocking calls do the same more slowly.
pub(super) fn check() -> Check {
    let mut params = io_uring_params::default();
    // SAFETY: the only demand is on `wq_fd`, which counts with the flag `ATTACH_WQ`; no flag is set.
    let ring = unsafe { io_uring_setup(ENTRIES, &mut params) };
    explain(ring.map(drop))
}

fn explain(ring: Result<(), Errno>) -> Check {
    let without = "disks (`--ssd`) are used with blocking calls, which is slower";
    match ring {
        Ok(()) => Check::ok(NAME, "a ring can be made; disks (`--ssd`) are used through it"),
        Err(Errno::NOSYS) => Check::limited(
            NAME,
            format!("the kernel has none, or a filter hides it: {without}"),
            "it needs Linux 5.1 or later and, in a container, a seccomp profile that allows io_uring_setup",
        ),
        Err(Errno::PERM | Errno::ACCESS) => Check::limited(
            NAME,
            format!("this process may not use it: {without}"),
            "`sysctl kernel.io_uring_disabled` must be 0; in a container the seccomp profile must allow it",
        ),
        Err(error) => Check::limited(
            NAME,
            format!("no ring can be made: {error}: {without}"),
            "look into the kernel's log with `dmesg`, and at `ulimit -l` on kernels before 5.12",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn a_ring_is_never_needed() {
        for outcome in [Ok(()), Err(Errno::NOSYS), Err(Errno::PERM), Err(Errno::NOMEM)] {
            let check = explain(outcome);
            assert_eq!(check.verdict == Verdict::Ok, outcome.is_ok());
            assert_eq!(check.hint.is_none(), outcome.is_ok(), "{check:?}");
            assert!(check.found.contains("disks (`--ssd`) are used"), "{check:?}");
        }
        assert_ne!(check().verdict, Verdict::Missing);
    }
}
