//! A node's memory: a control segment that only it writes, and a data segment.
//!
//! Both are memory files. The control segment is sealed so that nobody who gets its descriptor can map it
//! writable, write to it or change its size; the data segment so that its size stays.
//!
//! **Invariant:** a segment is never larger than the memory that the machine can give it at the time: the
//! alternative is a process killed under load, long after the mistake.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::Extent;
use crate::buffer::TargetBuf;
use crate::control::{ControlReader, ControlWriter};
use crate::layout::{DATA_BYTES_MAX, Geometry, HEAP_BYTES_MAX, SLOTS_MAX};
use crate::map::{Access, Map};
use crate::populate::{self, Pages};

/// The seals of a control segment.
pub(crate) const CONTROL_SEALS: SealFlags =
    SealFlags::FUTURE_WRITE.union(SealFlags::GROW).union(SealFlags::SHRINK).union(SealFlags::SEAL);
/// The seals of a data segment. Without a seal against writing, holes can be punched into it.
pub(crate) const DATA_SEALS: SealFlags = SealFlags::GROW.union(SealFlags::SHRINK).union(SealFlags::SEAL);

/// Why there is no segment.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// A size that makes no sense.
    #[error("a segment cannot have {what}\n\nhint: {hint}")]
    Size {
        /// The size.
        what: String,
        /// What would make sense.
        hint: String,
    },
    /// The machine cannot give that much.
    #[error(
        "a segment of {wanted} bytes does not fit: {available} bytes of memory are available{limit}\n\n\
         hint: ask for less memory, or free some"
    )]
    NotEnough {
        /// How many bytes were asked for, records included.
        wanted: u64,
        /// How many there are.
        available: u64,
        /// Which limit says so, if it is not the machine itself.
        limit: String,
    },
    /// The system refused.
    #[error("{what} failed: {source}")]
    System {
        /// Which step.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}

/// The memory of a node, mapped in its own process. Lives as long as somebody holds it.
#[derive(Debug)]
pub struct NodeMemory {
    pub(crate) control_file: OwnedFd,
    pub(crate) data_file: OwnedFd,
    pub(crate) data: Arc<Map>,
    reader: ControlReader,
}

impl NodeMemory {
    /// The memory of these extents; nothing if one of them is not inside. Who may touch it is for the
    /// keeper of the slots to say.
    #[must_use]
    pub fn targets(&self, extents: &[Extent]) -> Option<Vec<TargetBuf<'_>>> {
        extents.iter().map(|&extent| self.data.target(extent)).collect()
    }

    /// Makes a new segment, and the one hand that may write its records.
    pub fn create(geometry: Geometry) -> Result<(Arc<Self>, ControlWriter), SegmentError> {
        check_sizes(&geometry)?;
        let wanted = geometry.data_bytes.saturating_add(geometry.control_bytes());
        let (available, limit) = available_memory();
        if wanted > available {
            return Err(SegmentError::NotEnough { wanted, available, limit });
        }
        let (control_file, control) = memory_file("tiffin-control", geometry.control_bytes())?;
        seal(&control_file, CONTROL_SEALS)?;
        let (data_file, data) = memory_file("tiffin-data", geometry.data_bytes)?;
        seal(&data_file, DATA_SEALS)?;
        data.prefer_huge_pages();
        let control = Arc::new(control);
        let writer = ControlWriter::initialise(Arc::clone(&control), geometry);
        let reader = ControlReader::new(control, geometry);
        Ok((Arc::new(Self { control_file, data_file, data: Arc::new(data), reader }), writer))
    }

    /// Makes the memory for the bytes present, in a thread of its own, so that no put waits for it.
    pub fn populate_ahead(&self, pages: Pages) {
        populate::whole(&self.data, pages);
    }

    /// Its sizes and its name.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.reader.geometry()
    }

    /// Looks at the records.
    #[must_use]
    pub fn reader(&self) -> &ControlReader {
        &self.reader
    }
}

/// How many bytes the machine, or a limit on this process, can still give; and which limit that is.
#[must_use]
pub fn available_memory() -> (u64, String) {
    let machine = small_file("/proc/meminfo").and_then(|text| meminfo_available(&text)).unwrap_or(u64::MAX);
    let group = small_file("/proc/self/cgroup").and_then(|text| group_available(&text, small_file));
    match group {
        Some(group) if group < machine => (group, " inside this control group".to_owned()),
        _ => (machine, String::new()),
    }
}

fn check_sizes(geometry: &Geometry) -> Result<(), SegmentError> {
    let refuse = |what: String, hint: &str| Err(SegmentError::Size { what, hint: hint.to_owned() });
    let Geometry { data_bytes, slot_count, heap_bytes, .. } = *geometry;
    if !(1..=DATA_BYTES_MAX).contains(&data_bytes) {
        return refuse(format!("{data_bytes} bytes of data"), "a typical size is `1GiB`");
    }
    if !(1..=SLOTS_MAX).contains(&slot_count) {
        return refuse(format!("{slot_count} slots"), "one slot is needed for each object");
    }
    if heap_bytes > HEAP_BYTES_MAX {
        return refuse(format!("{heap_bytes} bytes for keys"), "about 256 bytes are needed for each object");
    }
    Ok(())
}

fn memory_file(name: &'static str, bytes: u64) -> Result<(OwnedFd, Map), SegmentError> {
    let fail = |what| move |source: io::Error| SegmentError::System { what, source };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create(name, flags).map_err(io::Error::from).map_err(fail("making a memory file"))?;
    ftruncate(&file, bytes).map_err(io::Error::from).map_err(fail("sizing a memory file"))?;
    let map = Map::new(file.as_fd(), bytes, Access::ReadWrite).map_err(fail("mapping a memory file"))?;
    Ok((file, map))
}

fn seal(file: &OwnedFd, seals: SealFlags) -> Result<(), SegmentError> {
    let sealed = fcntl_add_seals(file, seals);
    sealed.map_err(|error| SegmentError::System { what: "sealing a memory file", source: error.into() })
}

/// The text of a small file of the kernel; `None` if it cannot be read.
fn small_file(path: &str) -> Option<String> {
    const SMALL_FILE_BYTES_MAX: u64 = 64 << 10;
    let mut text = String::new();
    File::open(path).ok()?.take(SMALL_FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

fn meminfo_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// What the control group of this process, and those above it, still allow.
fn group_available(cgroup: &str, read: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let mut path = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?.trim_end_matches('/');
    let mut least: Option<u64> = None;
    loop {
        let number = |file: &str| -> Option<u64> {
            read(&format!("/sys/fs/cgroup{path}/{file}"))?.trim().parse().ok()
        };
        // Without a limit the file says `max`, which is no number.
        if let (Some(limit), Some(current)) = (number("memory.max"), number("memory.current")) {
            let left = limit.saturating_sub(current);
            least = Some(least.map_or(left, |least| least.min(left)));
        }
        match path.rsplit_once('/') {
            Some((above, _)) => path = above,
            None => return least,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_from_what_the_kernel_says() {
        assert_eq!(meminfo_available("MemTotal: 9 kB\nMemAvailable:      512 kB\n"), Some(512 << 10));
        for text in ["", "MemTotal: 1 kB\n", "MemAvailable: lots kB\n", "MemAvailable: 12\n"] {
            assert_eq!(meminfo_available(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_tightest_control_group_counts() {
        let files = |path: &str| {
            let text = match path {
                "/sys/fs/cgroup/a/b/memory.max" => "max\n",
                "/sys/fs/cgroup/a/b/memory.current" => "10\n",
                "/sys/fs/cgroup/a/memory.max" => "1000\n",
                "/sys/fs/cgroup/a/memory.current" => "400\n",
                _ => return None,
            };
            Some(text.to_owned())
        };
        assert_eq!(group_available("0::/a/b\n", files), Some(600));
        assert_eq!(group_available("0::/a\n", files), Some(600));
        assert_eq!(group_available("0::/\n", files), None);
        assert_eq!(group_available("1:memory:/a\n", files), None);
    }

    #[test]
    fn sizes_that_cannot_be_are_refused_with_a_hint() {
        let good = Geometry { segment: 1, data_bytes: 4096, slot_count: 4, heap_bytes: 4096 };
        assert!(NodeMemory::create(good).is_ok());
        for (bad, expected) in [
            (Geometry { data_bytes: 0, ..good }, "0 bytes of data"),
            (Geometry { data_bytes: u64::MAX, ..good }, "18446744073709551615 bytes of data"),
            (Geometry { slot_count: 0, ..good }, "0 slots"),
            (Geometry { slot_count: u32::MAX, ..good }, "4294967295 slots"),
            (Geometry { heap_bytes: u64::MAX, ..good }, "18446744073709551615 bytes for keys"),
            (Geometry { data_bytes: DATA_BYTES_MAX, ..good }, "does not fit"),
        ] {
            let message = NodeMemory::create(bad).map(|_| ()).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("\n\nhint: "), "{message}");
        }
    }
}
