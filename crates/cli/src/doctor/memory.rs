//! Memory: whether it can be shared and sealed, how much there is, and in pages of which size.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create, statvfs};

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

/// Whether the memory that a store is meant to have is there.
pub(super) fn available(wanted: u64) -> Check {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let machine = number(&meminfo, "MemAvailable:").map(|kib| kib.saturating_mul(1024));
    available_of(wanted, machine)
}

/// Whether huge pages are reserved.
pub(super) fn huge_pages() -> Check {
    huge_pages_of(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default())
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

fn available_of(wanted: u64, machine: Option<u64>) -> Check {
    const NAME: &str = "memory";
    let Some(machine) = machine else {
        let hint = "`/proc/meminfo` should say how much is available; mount /proc";
        return Check::limited(NAME, "nobody knows how much is available", hint);
    };
    let (wanted_text, machine_text) = (show::size(wanted), show::size(machine));
    if wanted <= machine {
        return Check::ok(NAME, format!("{machine_text} available, {wanted_text} wanted"));
    }
    let found = format!("{machine_text} available, but {wanted_text} wanted");
    Check::missing(NAME, found, "ask for less with `--memory`, or free some")
}

fn huge_pages_of(meminfo: &str) -> Check {
    const NAME: &str = "huge pages";
    let page = number(meminfo, "Hugepagesize:").unwrap_or_default().saturating_mul(1024);
    match number(meminfo, "HugePages_Total:") {
        Some(total) if total > 0 => {
            let free = number(meminfo, "HugePages_Free:").unwrap_or_default();
            let page = show::size(page);
            Check::ok(
                NAME,
                format!("{free} of {total} free, {page} each (this release makes no use of them)"),
            )
        }
        _ => Check::limited(
            NAME,
            "none reserved (this release makes no use of them)",
            "nothing to do now; `sysctl vm.nr_hugepages=N` reserves some",
        ),
    }
}

fn transparent_huge_pages_of(setting: Option<&str>) -> Check {
    const NAME: &str = "transparent huge pages";
    let chosen = setting.and_then(|text| text.split_once('[')).and_then(|(_, rest)| rest.split_once(']'));
    match chosen {
        Some((chosen @ ("always" | "within_size" | "force"), _)) => {
            Check::ok(NAME, format!("`{chosen}` for shared memory"))
        }
        Some((chosen, _)) => Check::limited(
            NAME,
            format!("`{chosen}` for shared memory: pages are small, and the first touch of each is slow"),
            "as root: `echo within_size >/sys/kernel/mm/transparent_hugepage/shmem_enabled`",
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

/// The number behind a name in `/proc/meminfo`.
fn number(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn the_words_of_the_kernel_are_understood() {
        let none = "HugePages_Total:       0\nHugepagesize:    2048 kB\n";
        let some = "HugePages_Total:  8\nHugePages_Free:  3\nHugepagesize:    2048 kB\n";
        for (check, verdict, found) in [
            (available_of(1 << 30, Some(2 << 30)), Verdict::Ok, "2.0 GiB available"),
            (available_of(2 << 30, Some(1 << 30)), Verdict::Missing, "but 2.0 GiB wanted"),
            (available_of(1, None), Verdict::Limited, "nobody knows"),
            (huge_pages_of(none), Verdict::Limited, "none reserved"),
            (huge_pages_of(some), Verdict::Ok, "3 of 8 free, 2.0 MiB each"),
            (huge_pages_of(""), Verdict::Limited, "none reserved"),
            (
                transparent_huge_pages_of(Some("always within_size [advise] never")),
                Verdict::Limited,
                "`advise`",
            ),
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

    #[test]
    fn the_numbers_of_the_kernel_are_found() {
        let text = "MemTotal:  100 kB\nMemAvailable:    7 kB\nHugePages_Total:       0\n";
        for (name, expected) in
            [("MemAvailable:", Some(7)), ("HugePages_Total:", Some(0)), ("MemFree:", None), ("Mem", None)]
        {
            assert_eq!(number(text, name), expected, "{name}");
        }
    }
}
