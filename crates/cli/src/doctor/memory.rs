//! Memory: sharing and sealing, available amount, page size.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create, statvfs};

use tiffin_server::node::check_memory;
use tiffin_server::{Fit, NodeConfig, StartError};

use super::Check;
use crate::show;

/// What a torch `DataLoader` with a few workers needs; containers often give 64 MiB.
const SHM_BYTES_ENOUGH: u64 = 1 << 30;

/// Creates a memory file with the seals that a node needs: it can neither shrink nor become writable.
pub(super) fn files() -> Check {
    const NAME: &str = "shared memory";
    match sealed_file() {
        Ok(_) => Check::ok(NAME, "memory files can be created and sealed"),
        Err(error) => Check::missing(
            NAME,
            format!("no memory file can be created and sealed: {error}"),
            "use Linux 5.1 or later, and a seccomp profile that allows memfd_create and fcntl",
        ),
    }
}

/// Whether a node with this configuration has enough memory, by its own check at start: limits of control
/// groups and the needs of disks count.
pub(super) fn available(config: &NodeConfig) -> Check {
    available_of(check_memory(config))
}

/// Whether the kernel uses huge pages for shared memory.
pub(super) fn transparent_huge_pages() -> Check {
    let path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    transparent_huge_pages_of(std::fs::read_to_string(path).ok().as_deref())
}

/// Size of `/dev/shm`. Nodes with a name keep their memory pools there, and workers of a trainer use it.
pub(super) fn shm_folder() -> Check {
    let found = statvfs("/dev/shm").map(|fs| fs.f_frsize.saturating_mul(fs.f_blocks));
    shm_folder_of(found.map_err(io::Error::from))
}

fn sealed_file() -> io::Result<OwnedFd> {
    const BYTES: u64 = 4096;
    let seals = SealFlags::FUTURE_WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    let file = memfd_create("tiffin-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, BYTES)?;
    fcntl_add_seals(&file, seals)?;
    if !fcntl_get_seals(&file)?.contains(seals) {
        return Err(io::Error::other("the seals were not set"));
    }
    Ok(file)
}

fn available_of(checked: Result<Fit, StartError>) -> Check {
    const NAME: &str = "memory";
    match checked {
        Ok(Fit { available: u64::MAX, .. }) => {
            let hint = "mount /proc: `/proc/meminfo` has the available memory";
            Check::limited(NAME, "the available memory is unknown", hint)
        }
        Ok(Fit { wanted, available }) => {
            Check::ok(NAME, format!("{} available, {} wanted", show::size(available), show::size(wanted)))
        }
        Err(error) => {
            let text = error.to_string();
            let usual = "ask for less with `--memory`, or free some";
            let (found, hint) = text.split_once("\n\nhint: ").unwrap_or((&text, usual));
            Check::missing(NAME, found, hint)
        }
    }
}

fn transparent_huge_pages_of(setting: Option<&str>) -> Check {
    const NAME: &str = "huge pages";
    let chosen = setting.and_then(|text| text.split_once('[')).and_then(|(_, rest)| rest.split_once(']'));
    match chosen {
        Some((chosen @ ("always" | "within_size" | "advise" | "force"), _)) => {
            Check::ok(NAME, format!("`{chosen}` for shared memory: a node's memory uses huge pages"))
        }
        Some((chosen, _)) => Check::limited(
            NAME,
            format!("`{chosen}` for shared memory: a node's memory uses small pages"),
            "as root: `echo advise >/sys/kernel/mm/transparent_hugepage/shmem_enabled`",
        ),
        None => Check::limited(
            NAME,
            "this kernel has no huge pages for shared memory",
            "use a kernel built with CONFIG_TRANSPARENT_HUGEPAGE",
        ),
    }
}

fn shm_folder_of(found: io::Result<u64>) -> Check {
    const NAME: &str = "/dev/shm";
    let hint = "for memory pools of nodes, and the workers of a torch DataLoader, mount more, \
                or `docker run --shm-size=8g`";
    match found {
        Ok(bytes) if bytes >= SHM_BYTES_ENOUGH => {
            Check::ok(NAME, format!("{}, for memory pools of nodes", show::size(bytes)))
        }
        Ok(bytes) => Check::limited(NAME, format!("only {}", show::size(bytes)), hint),
        Err(error) => Check::limited(NAME, format!("missing: {error}"), hint),
    }
}

#[cfg(test)]
mod tests {
    use tiffin_server::{Limit, SegmentError};

    use super::super::Verdict;
    use super::*;

    #[test]
    fn kernel_settings_are_interpreted() {
        let enough = Fit { wanted: 1 << 30, available: 2 << 30 };
        let unknown = Fit { wanted: 1, available: u64::MAX };
        let limit = Limit { file: "/sys/fs/cgroup/memory.max".to_owned(), bytes: 400 << 20 };
        let (wanted, disk_bytes, available) = (360 << 20, 192 << 20, 367 << 20);
        let limited = SegmentError::NotEnough { wanted, disk_bytes, available, limit: Some(limit) };
        for (check, verdict, found) in [
            (available_of(Ok(enough)), Verdict::Ok, "2.0 GiB available, 1.0 GiB wanted"),
            (available_of(Err(limited.into())), Verdict::Missing, "limits this process to 400.0 MiB"),
            (available_of(Ok(unknown)), Verdict::Limited, "is unknown"),
            (transparent_huge_pages_of(Some("always within_size [advise] never")), Verdict::Ok, "`advise`"),
            (transparent_huge_pages_of(Some("always advise [never]")), Verdict::Limited, "small pages"),
            (transparent_huge_pages_of(Some("[always] never")), Verdict::Ok, "`always`"),
            (transparent_huge_pages_of(None), Verdict::Limited, "has no huge pages"),
            (transparent_huge_pages_of(Some("nonsense")), Verdict::Limited, "has no huge pages"),
            (shm_folder_of(Ok(2 << 30)), Verdict::Ok, "2.0 GiB"),
            (shm_folder_of(Ok(64 << 20)), Verdict::Limited, "only 64.0 MiB"),
            (shm_folder_of(Err(io::ErrorKind::NotFound.into())), Verdict::Limited, "missing"),
        ] {
            assert_eq!(check.verdict, verdict, "{check:?}");
            assert!(check.found.contains(found), "{check:?}");
            assert_eq!(check.hint.is_none(), verdict == Verdict::Ok, "{check:?}");
        }
    }
}
