//! A node's memory: a control segment that only it writes, a data segment, and the claim words of its slots.
//!
//! All are memory files. The control segment is sealed so that nobody who gets its descriptor can map it
//! writable, write to it or change its size; the other two so that their size stays.
//!
//! **Invariant:** a segment is never larger than the memory that the machine can give it at the time: the
//! alternative is a process killed under load, long after the mistake.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fstat, ftruncate, memfd_create,
};
use rustix::param::page_size;

use crate::Extent;
use crate::available::{Available, Limit, available_memory};
use crate::buffer::TargetBuf;
use crate::claim::Claims;
use crate::control::{ControlReader, ControlWriter};
use crate::layout::{DATA_BYTES_MAX, Geometry, HEAP_BYTES_MAX, SLOTS_MAX};
use crate::map::{Access, Map};
use crate::populate::{self, Pages};

/// What a control segment may use beside the data segment's memory: a node pays for more with that.
const CONTROL_BYTES_FREE: u64 = 1 << 20;
/// The seals of a control segment.
pub(crate) const CONTROL_SEALS: SealFlags =
    SealFlags::FUTURE_WRITE.union(SealFlags::GROW).union(SealFlags::SHRINK).union(SealFlags::SEAL);
/// The seals of a data segment, and of the file of claims. Without a seal against writing, holes can be
/// punched into them.
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
    #[error("{}", not_enough(*wanted, *other, *available, limit.as_ref()))]
    NotEnough {
        /// How many bytes were asked for, records included.
        wanted: u64,
        /// How many more its process needs for its disks.
        other: u64,
        /// How many there are.
        available: u64,
        /// Which limit says so, if it is not the machine itself.
        limit: Option<Limit>,
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
    pub(crate) claims_file: OwnedFd,
    pub(crate) data: Arc<Map>,
    pub(crate) claims: Claims,
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
        Self::create_beside(geometry, 0)
    }

    /// The same, where the process will need `other` bytes for its disks: they must be available as well.
    pub fn create_beside(geometry: Geometry, other: u64) -> Result<(Arc<Self>, ControlWriter), SegmentError> {
        check_sizes(&geometry)?;
        let mut segments = SEGMENTS.lock().unwrap_or_else(PoisonError::into_inner);
        segments.retain(|memory| memory.strong_count() > 0);
        check_available(memory_bytes(&geometry), other, promised_bytes(&segments), available_memory())?;
        let (control_file, control) = memory_file("tiffin-control", geometry.control_bytes())?;
        seal(&control_file, CONTROL_SEALS)?;
        let (data_file, data) = memory_file("tiffin-data", geometry.data_bytes)?;
        seal(&data_file, DATA_SEALS)?;
        data.prefer_huge_pages();
        control.avoid_huge_pages();
        let (claims_file, claims) = memory_file("tiffin-claims", geometry.claims_bytes())?;
        seal(&claims_file, DATA_SEALS)?;
        let (control, claims, data) = (Arc::new(control), Arc::new(claims), Arc::new(data));
        let writer = ControlWriter::initialise(Arc::clone(&control), Arc::clone(&claims), geometry);
        let (reader, claims) = (ControlReader::new(control, geometry), Claims::new(claims));
        let memory = Arc::new(Self { control_file, data_file, claims_file, data, claims, reader });
        segments.push(Arc::downgrade(&memory));
        Ok((memory, writer))
    }

    /// The bytes of its files that have no page yet.
    fn absent_bytes(&self) -> u64 {
        let present: u64 = [&self.control_file, &self.data_file, &self.claims_file]
            .into_iter()
            .map(|file| fstat(file).map_or(0, |found| found.st_blocks as u64 * 512))
            .sum();
        memory_bytes(&self.geometry()).saturating_sub(present)
    }

    /// Makes the memory for the bytes present, in a thread of its own, so that no put waits for it. Calls
    /// `done` there when all of it is.
    pub fn populate_ahead(&self, pages: Pages, done: impl FnOnce() + Send + 'static) {
        populate::whole(&self.data, pages, done);
    }

    /// Gives the memory of these bytes of the data segment back to the system, as far as they are whole
    /// pages. They must be nobody's; whoever touches them later makes it present again.
    pub fn withhold(&self, extent: Extent) {
        let page = page_size() as u64;
        let start = extent.offset.next_multiple_of(page);
        let end = extent.end().unwrap_or(0) / page * page;
        if start >= end {
            return;
        }
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Err(error) = fallocate(&self.data_file, how, start, end - start) {
            tracing::debug!(%error, "memory is not given back");
        }
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

/// The segments of this process. The kernel counts their pages only once they are touched, so the memory that
/// was promised to one segment is taken into account before another is made.
static SEGMENTS: Mutex<Vec<Weak<NodeMemory>>> = Mutex::new(Vec::new());

/// The memory that these segments may still take.
fn promised_bytes(segments: &[Weak<NodeMemory>]) -> u64 {
    segments.iter().filter_map(Weak::upgrade).map(|memory| memory.absent_bytes()).sum()
}

/// The memory that a new segment needs and finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// How many bytes it needs, with its records and `other`.
    pub wanted: u64,
    /// How many there are.
    pub available: u64,
}

/// Whether [`NodeMemory::create_beside`] would find enough memory now.
pub fn check_memory(geometry: &Geometry, other: u64) -> Result<Fit, SegmentError> {
    check_sizes(geometry)?;
    let segments = SEGMENTS.lock().unwrap_or_else(PoisonError::into_inner);
    check_available(memory_bytes(geometry), other, promised_bytes(&segments), available_memory())
}

fn check_available(
    wanted: u64,
    other: u64,
    promised: u64,
    available: Available,
) -> Result<Fit, SegmentError> {
    let Available { bytes, limit } = available;
    let available = bytes.saturating_sub(promised);
    match wanted.saturating_add(other) {
        all if all <= available => Ok(Fit { wanted: all, available }),
        _ => Err(SegmentError::NotEnough { wanted, other, available, limit }),
    }
}

fn not_enough(wanted: u64, other: u64, available: u64, limit: Option<&Limit>) -> String {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let (wanted, available) = (mib(wanted), mib(available));
    let subject = match other {
        0 => format!("a segment of {wanted} does not fit"),
        other => format!("a segment of {wanted} and {} for its disks do not fit", mib(other)),
    };
    match limit {
        Some(Limit { file, bytes }) => format!(
            "{subject}: the control group limits this process to {} (`{file}`), of which {available} are \
             available\n\nhint: ask for less memory (`--memory`), or raise that limit",
            mib(*bytes)
        ),
        None => format!(
            "{subject}: {available} of memory are available\n\nhint: ask for less memory, or free some"
        ),
    }
}

/// The most memory of a segment: beyond a little, its control segment grows only as its data segment shrinks.
fn memory_bytes(geometry: &Geometry) -> u64 {
    let records = geometry.control_bytes().saturating_add(geometry.claims_bytes());
    geometry.data_bytes.saturating_add(records.min(CONTROL_BYTES_FREE))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_named_with_a_hint() {
        let limit = Limit { file: "/sys/fs/cgroup/memory.max".to_owned(), bytes: 400 << 20 };
        let (wanted, other, available) = (1 << 30, 0, 350 << 20);
        let error = SegmentError::NotEnough { wanted, other, available, limit: Some(limit) };
        assert_eq!(
            error.to_string(),
            "a segment of 1024.0 MiB does not fit: the control group limits this process to 400.0 MiB \
             (`/sys/fs/cgroup/memory.max`), of which 350.0 MiB are available\n\n\
             hint: ask for less memory (`--memory`), or raise that limit"
        );
    }

    #[test]
    fn memory_of_disks_must_be_available_as_well() {
        const MIB: u64 = 1 << 20;
        let available = || Available {
            bytes: 367 * MIB,
            limit: Some(Limit { file: "/sys/fs/cgroup/memory.max".to_owned(), bytes: 400 * MIB }),
        };
        let fit = Fit { wanted: 361 * MIB, available: 367 * MIB };
        assert_eq!(check_available(361 * MIB, 0, 0, available()).unwrap(), fit);
        assert!(check_available(361 * MIB, 6 * MIB, 0, available()).is_ok());
        assert!(check_available(361 * MIB, 6 * MIB, 1, available()).is_err());
        let text = check_available(361 * MIB, 192 * MIB, 0, available()).unwrap_err().to_string();
        assert!(
            text.starts_with("a segment of 361.0 MiB and 192.0 MiB for its disks do not fit: "),
            "{text}"
        );
        assert!(check_available(u64::MAX, u64::MAX, 0, available()).is_err());
    }

    #[test]
    fn memory_promised_to_a_segment_is_not_promised_again() {
        let geometry = Geometry { segment: 1, data_bytes: 8 << 20, slot_count: 4, heap_bytes: 4096 };
        let (memory, writer) = NodeMemory::create(geometry).unwrap();
        let segments = [Arc::downgrade(&memory), Weak::new()];
        let before = promised_bytes(&segments);
        assert!(before >= 8 << 20, "{before}");
        let half = memory.targets(&[Extent { offset: 0, len: 4 << 20 }]).unwrap();
        crate::copy::copy_in(&vec![1; 4 << 20], half[0]);
        // What is touched counts as used from then on. A huge page may make more present than was asked for.
        assert!(promised_bytes(&segments) <= before - (4 << 20));
        assert!(SEGMENTS.lock().unwrap().iter().any(|known| known.ptr_eq(&segments[0])));
        drop((memory, writer));
        assert_eq!(promised_bytes(&segments), 0);
    }

    #[test]
    fn unused_records_and_withheld_bytes_cost_no_memory() {
        const MIB: u64 = 1 << 20;
        let geometry = Geometry { segment: 1, data_bytes: 4 * MIB, slot_count: 1 << 24, heap_bytes: 1 << 36 };
        let (memory, mut writer) = NodeMemory::create(geometry).unwrap();
        let bytes = |file: &OwnedFd| rustix::fs::fstat(file).unwrap().st_blocks as u64 * 512;
        let record = crate::control::SlotRecord { stamp: 7, ..Default::default() };
        writer.write_slot(1000, &record);
        writer.write_heap(1 << 35, b"far away");
        assert_eq!(memory.reader().scan().unwrap().len(), 1);
        assert!(bytes(&memory.control_file) <= MIB, "{} bytes of records", bytes(&memory.control_file));

        memory.data.populate(Extent { offset: 0, len: 4 * MIB }).unwrap();
        assert_eq!(bytes(&memory.data_file), 4 * MIB);
        memory.withhold(Extent { offset: 3 * MIB - 64, len: MIB + 64 });
        assert_eq!(bytes(&memory.data_file), 3 * MIB, "whole pages only");
        memory.withhold(Extent { offset: 64, len: 4096 });
        assert_eq!(bytes(&memory.data_file), 3 * MIB, "no whole page");
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
