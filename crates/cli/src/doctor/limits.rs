//! Resource limits of this process.

use rustix::process::{Resource, getrlimit};

use super::Check;
use crate::show;

/// Each connection is an open file; this is enough for a few hundred clients.
const OPEN_FILES_ENOUGH: u64 = 4096;
/// Enough for the buffers that a node registers with `io_uring`: 32 MiB for each of two disks.
const LOCKED_BYTES_ENOUGH: u64 = 64 << 20;

/// Maximum number of open files. Servers raise the soft limit to the hard one themselves.
pub(super) fn open_files() -> Check {
    open_files_of(getrlimit(Resource::Nofile).maximum)
}

/// Maximum amount of locked memory.
pub(super) fn locked_memory() -> Check {
    locked_memory_of(getrlimit(Resource::Memlock).current)
}

fn open_files_of(most: Option<u64>) -> Check {
    const NAME: &str = "open files";
    match most {
        None => Check::ok(NAME, "no limit"),
        Some(most) if most >= OPEN_FILES_ENOUGH => Check::ok(NAME, format!("up to {most}")),
        Some(most) => Check::limited(
            NAME,
            format!("up to {most}, and every connection needs one"),
            "raise the hard limit: `ulimit -Hn`, or `LimitNOFILE=` in a systemd unit",
        ),
    }
}

fn locked_memory_of(most: Option<u64>) -> Check {
    const NAME: &str = "locked memory";
    match most {
        None => Check::ok(NAME, "no limit"),
        Some(most) if most >= LOCKED_BYTES_ENOUGH => Check::ok(NAME, format!("up to {}", show::size(most))),
        Some(most) => Check::limited(
            NAME,
            format!(
                "up to {}: buffers of disks (`--ssd`) may not be registered with io_uring",
                show::size(most)
            ),
            "disks work without, a little slower; `ulimit -l unlimited`, or `LimitMEMLOCK=infinity` in a \
             systemd unit, allows it",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn low_limits_are_reported() {
        for (check, expected) in [
            (open_files_of(None), Verdict::Ok),
            (open_files_of(Some(OPEN_FILES_ENOUGH)), Verdict::Ok),
            (open_files_of(Some(256)), Verdict::Limited),
            (locked_memory_of(None), Verdict::Ok),
            (locked_memory_of(Some(LOCKED_BYTES_ENOUGH)), Verdict::Ok),
            (locked_memory_of(Some(64 << 10)), Verdict::Limited),
        ] {
            assert_eq!(check.verdict, expected, "{check:?}");
        }
    }
}
