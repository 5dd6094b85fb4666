//! Memory: whether it can be shared and sealed, how much there is, and in pages of which size.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create, statvfs};

use tiffin_server::node::check_memory;
use tiffin_server::{Fit, NodeConfig, StartError};

use super::Check;
use crate::show;

/// What a torch `DataLoader` with a few workers wants; containers often give 64 MiB.
const SHM_BYTES_ENOUGH: u64 = 1 << 30;

/// Makes a memory file with the seals that a node needs: nobody may shrink it or make it writable.
pub(super) fn files() -> Check {
    const NAME: &str = "shared memory";
    match sealed_file() {
        Ok(_) => Check::ok(NAME, "memory files can be made and sealed"),
        Err(error) => Check::missing(
            NAME,
            format!("no memory file can be made and sealed: {error}"),
            "it needs Linux 5.1 or later and a seccomp profile that allows memfd_create and fcntl",
        ),
    }
}

/// Whether such a node finds the memory that it needs, by the check that it makes itself when it starts:
/// limits of control groups and the needs of disks count.
pub(super) fn available(config: &NodeConfig) -> Check {
    available_of(check_memory(config))
}

/// Whether the kernel gives huge pages to shared memory by itself.
pub(super) fn transparent_huge_pages() -> Check {
    let path = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    transparent_huge_pages_of(std::fs::read_to_string(path).ok().as_deref())
}

/// How large `/dev/shm` is. A store does not use it, but the workers of a trainer do.
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
        return Err(io::Error::other("the seals did not take"));
    }
    Ok(file)
}

fn available_of(checked: Result<Fit, StartError>) -> Check {
    const NAME: &str = "memory";
    match checked {
        Ok(Fit { available: u64::MAX, .. }) => {
            let hint = "`/proc/meminfo` should say how much is available; mount /proc";
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
            Check::ok(NAME, format!("`{chosen}` for shared memory: a node's memory is put into huge pages"))
        }
        Some((chosen, _)) => Check::limited(
            NAME,
            format!("`{chosen}` for shared memory: a node's memory stays in small pages"),
            "as root: `echo advise >/sys/kernel/mm/transparent_hugepage/shmem_enabled`; a node asks for them",
        ),
        None => Check::limited(
            NAME,
            "this kernel has none for shared memory",
            "a kernel built with CONFIG_TRANSPARENT_HUGEPAGE has them",
        ),
    }
}

fn shm_folder_of(found: io::Result<u64>) -> Check {
    const NAME: &str = "/dev/shm";
    let hint = "a store does not use it, but the workers of a torch DataLoader do: mount more, \
                or `docker run --shm-size=8g`";
    match found {
        Ok(bytes) if bytes >= SHM_BYTES_ENOUGH => {
            Check::ok(NAME, format!("{} (a store does not use it)", show::size(bytes)))
        }
        Ok(bytes) => Check::limited(NAME, format!("only {}", show::size(bytes)), hint),
        Err(error) => Check::limited(NAME, format!("not there: {error}"), hint),
    }
}

#[cfg(test)]
mod tests {
    use tiffin_server::{Limit, SegmentError};

    use super::super::Verdict;
    use super::*;

    #[test]
    fn the_words_of_the_kernel_are_understood() {
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
            (transparent_huge_pages_of(None), Verdict::Limited, "has none"),
            (transparent_huge_pages_of(Some("nonsense")), Verdict::Limited, "has none"),
            (shm_folder_of(Ok(2 << 30)), Verdict::Ok, "2.0 GiB"),
            (shm_folder_of(Ok(64 << 20)), Verdict::Limited, "only 64.0 MiB"),
            (shm_folder_of(Err(io::ErrorKind::NotFound.into())), Verdict::Limited, "not there"),
        ] {
            assert_eq!(check.verdict, verdict, "{check:?}");
            assert!(check.found.contains(found), "{check:?}");
            assert_eq!(check.hint.is_none(), verdict == Verdict::Ok, "{check:?}");
        }
    }
}
