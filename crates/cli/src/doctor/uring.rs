//! Whether this process may use `io_uring`: creates a small ring and closes it at once.

use rustix::io::Errno;
use rustix::io_uring::{io_uring_params, io_uring_setup};

use super::Check;

const NAME: &str = "io_uring";
/// Number of entries of the ring.
const ENTRIES: u32 = 4;

/// Creates a ring. A node uses one for each disk; without it, blocking calls do the same more slowly.
pub(super) fn check() -> Check {
    let mut params = io_uring_params::default();
    // SAFETY: the only requirement is on `wq_fd`, which is used with the flag `ATTACH_WQ`; no flag is set.
    let ring = unsafe { io_uring_setup(ENTRIES, &mut params) };
    explain(ring.map(drop))
}

fn explain(ring: Result<(), Errno>) -> Check {
    let without = "disks (`--ssd`) use blocking calls, which is slower";
    match ring {
        Ok(()) => Check::ok(NAME, "a ring can be created; disks (`--ssd`) use it"),
        Err(Errno::NOSYS) => Check::limited(
            NAME,
            format!("not available in this kernel, or blocked by a filter: {without}"),
            "use Linux 5.1 or later and, in a container, a seccomp profile that allows io_uring_setup",
        ),
        Err(Errno::PERM | Errno::ACCESS) => Check::limited(
            NAME,
            format!("not permitted for this process: {without}"),
            "set `sysctl kernel.io_uring_disabled` to 0; in a container, allow it in the seccomp profile",
        ),
        Err(error) => Check::limited(
            NAME,
            format!("no ring can be created: {error}: {without}"),
            "check the kernel's log with `dmesg`, and `ulimit -l` on kernels before 5.12",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn missing_ring_is_never_a_failure() {
        for outcome in [Ok(()), Err(Errno::NOSYS), Err(Errno::PERM), Err(Errno::NOMEM)] {
            let check = explain(outcome);
            assert_eq!(check.verdict == Verdict::Ok, outcome.is_ok());
            assert_eq!(check.hint.is_none(), outcome.is_ok(), "{check:?}");
            assert!(check.found.contains("disks (`--ssd`) use"), "{check:?}");
        }
        assert_ne!(check().verdict, Verdict::Missing);
    }
}
