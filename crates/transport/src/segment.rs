//! A node's memory: a control segment that only the node writes, a data segment, and the claim words of its
//! slots.
//!
//! All are memory files. The control segment is sealed: a process that gets its descriptor cannot map it
//! writable, write to it or change its size. The seals of the other two fix their size. The data segment of
//! an *isolated* memory is sealed like the control segment. The files of a [pool](crate::pool) outlive the
//! process, and cannot be sealed.
//!
//! **Invariant:** a segment is never larger than the memory that is available when it is created: otherwise
//! the process would be killed later, under load.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::fs::{
    FallocateFlags, MemfdFlags, OFlags, SealFlags, fallocate, fcntl_add_seals, fstat, ftruncate, memfd_create,
};
use rustix::param::page_size;

use crate::Extent;
use crate::available::{Available, Limit, available_memory};
use crate::buffer::TargetBuf;
use crate::claim::Claims;
use crate::control::{ControlReader, ControlWriter};
use crate::layout::{CLAIM_BYTES, DATA_BYTES_MAX, Geometry, HEADER_BYTES, HEAP_BYTES_MAX, SLOTS_MAX};
use crate::map::{Access, Map};
use crate::pool::{Pool, PoolError};
use crate::populate::{self, Pages};
use crate::{device, lock};

/// Memory of a control segment that is not counted against the data segment; a node counts more than that.
const CONTROL_BYTES_FREE: u64 = 1 << 20;
/// The seals of a control segment.
pub(crate) const CONTROL_SEALS: SealFlags =
    SealFlags::FUTURE_WRITE.union(SealFlags::GROW).union(SealFlags::SHRINK).union(SealFlags::SEAL);
/// The seals of a data segment, and of the file of claim words. Without a write seal, holes can be punched
/// into them.
pub(crate) const DATA_SEALS: SealFlags = SealFlags::GROW.union(SealFlags::SHRINK).union(SealFlags::SEAL);

/// Why a segment could not be created.
#[derive(Debug, thiserror::Error)]
pub enum SegmentError {
    /// Invalid size.
    #[error("invalid segment size: {what}\n\nhint: {hint}")]
    Size {
        /// The problem.
        what: String,
        /// How to correct it.
        hint: String,
    },
    /// Not enough memory.
    #[error("{}", not_enough(*wanted, *disk_bytes, *available, limit.as_ref()))]
    NotEnough {
        /// Requested bytes, including control segment.
        wanted: u64,
        /// Further bytes that the process needs for its disks.
        disk_bytes: u64,
        /// Available bytes.
        available: u64,
        /// The control group's limit, if it is tighter than the machine's memory.
        limit: Option<Limit>,
    },
    /// The memory pool cannot be used.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A system call failed.
    #[error("{what} failed: {source}")]
    System {
        /// The failed step.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// How the memory of a node is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryOptions {
    /// Bytes that the process will need for its disks: they must be available as well.
    pub disk_bytes: u64,
    /// Other processes get the memory for reading only.
    pub is_isolated: bool,
}

/// The memory of a node, mapped in its own process.
#[derive(Debug)]
pub struct NodeMemory {
    pub(crate) control_file: OwnedFd,
    pub(crate) data_file: OwnedFd,
    pub(crate) claims_file: OwnedFd,
    pub(crate) data: Arc<Map>,
    pub(crate) claims: Claims,
    reader: ControlReader,
    is_isolated: bool,
    /// Dropped last: one of the files is locked, too.
    pool: Option<Pool>,
}

impl NodeMemory {
    /// The memory of these extents; `None` if one of them is not inside. The caller decides who may access
    /// it.
    #[must_use]
    pub fn targets(&self, extents: &[Extent]) -> Option<Vec<TargetBuf<'_>>> {
        extents.iter().map(|&extent| self.data.target(extent)).collect()
    }

    /// Creates a segment and its only writer.
    pub fn create(geometry: Geometry) -> Result<(Arc<Self>, ControlWriter), SegmentError> {
        Self::create_with(geometry, MemoryOptions::default())
    }

    /// The same with options.
    pub fn create_with(
        geometry: Geometry,
        MemoryOptions { disk_bytes, is_isolated }: MemoryOptions,
    ) -> Result<(Arc<Self>, ControlWriter), SegmentError> {
        check_sizes(&geometry)?;
        let mut segments = SEGMENTS.lock().unwrap_or_else(PoisonError::into_inner);
        segments.retain(|memory| memory.strong_count() > 0);
        check_available(memory_bytes(&geometry), disk_bytes, promised_bytes(&segments), available_memory())?;
        let (control_file, control) = memory_file("tiffin-control", geometry.control_bytes())?;
        seal(&control_file, CONTROL_SEALS)?;
        let (data_file, data) = memory_file("tiffin-data", geometry.data_bytes)?;
        seal(&data_file, if is_isolated { CONTROL_SEALS } else { DATA_SEALS })?;
        data.prefer_huge_pages();
        control.avoid_huge_pages();
        let (claims_file, claims) = memory_file("tiffin-claims", geometry.claims_bytes())?;
        seal(&claims_file, DATA_SEALS)?;
        let (control, claims, data) = (Arc::new(control), Arc::new(claims), Arc::new(data));
        let writer = ControlWriter::initialise(Arc::clone(&control), Arc::clone(&claims), geometry);
        let claims = Claims::new(claims);
        let reader = ControlReader::new(control, geometry).with_claims(claims.clone());
        let pool = None;
        let memory = Self { control_file, data_file, claims_file, data, claims, reader, is_isolated, pool };
        let memory = Arc::new(memory);
        segments.push(Arc::downgrade(&memory));
        Ok((memory, writer))
    }

    /// The memory of a pool: what an earlier process left there, or a new segment of these sizes.
    ///
    /// An earlier segment keeps its id and sizes. Nothing is written to it.
    pub fn open_pool(
        pool: Pool,
        geometry: Geometry,
        MemoryOptions { disk_bytes, is_isolated }: MemoryOptions,
    ) -> Result<(Arc<Self>, ControlWriter), SegmentError> {
        check_sizes(&geometry)?;
        let found = pool.find()?;
        let geometry = found.unwrap_or(geometry);
        let mut segments = SEGMENTS.lock().unwrap_or_else(PoisonError::into_inner);
        segments.retain(|memory| memory.strong_count() > 0);
        let absent = memory_bytes(&geometry).saturating_sub(pool.present_bytes());
        check_available(absent, disk_bytes, promised_bytes(&segments), available_memory())?;
        if found.is_none() {
            pool.check_space(absent)?;
        }
        let [control_file, data_file, claims_file] = pool.files(&geometry)?;
        let map = |file: &OwnedFd, bytes| {
            let map = Map::new(file.as_fd(), bytes, Access::ReadWrite);
            let map = map.and_then(|it| it.for_devices(file.as_fd())).map(Arc::new);
            map.map_err(|source| SegmentError::System { what: "mapping a memory pool", source })
        };
        let control = map(&control_file, geometry.control_bytes())?;
        let (data, claims) =
            (map(&data_file, geometry.data_bytes)?, map(&claims_file, geometry.claims_bytes())?);
        data.prefer_huge_pages();
        control.avoid_huge_pages();
        let (words, claim_words) = (Arc::clone(&control), Arc::clone(&claims));
        let writer = match found {
            Some(_) => ControlWriter::resume(words, claim_words, geometry),
            None => ControlWriter::initialise(words, claim_words, geometry),
        };
        let claims = Claims::new(claims);
        let reader = ControlReader::new(control, geometry).with_claims(claims.clone());
        let pool = Some(pool);
        let memory = Self { control_file, data_file, claims_file, data, claims, reader, is_isolated, pool };
        let memory = Arc::new(memory);
        segments.push(Arc::downgrade(&memory));
        Ok((memory, writer))
    }

    /// Whether it outlives this process.
    #[must_use]
    pub fn pool(&self) -> Option<&Pool> {
        self.pool.as_ref()
    }

    /// The clients whose processes map the memory of a pool, from whichever process of the node they got it.
    pub fn mapping_clients(&self) -> io::Result<Vec<u64>> {
        lock::holders(self.data_file.as_fd())
    }

    /// Whether a client's process maps the memory of a pool.
    pub fn is_mapped_by(&self, client: u64) -> io::Result<bool> {
        lock::is_held(self.data_file.as_fd(), client)
    }

    /// Descriptors for a client: those of isolated memory are for reading only. Those of a pool tell the
    /// kernel that this client maps the memory: until the last mapping and the last descriptor are gone, its
    /// lock exists, whatever becomes of this process.
    pub(crate) fn descriptors(&self, client: u64) -> io::Result<[OwnedFd; 3]> {
        let files = [&self.control_file, &self.data_file, &self.claims_file];
        if self.pool.is_none() && !self.is_isolated {
            let [control, data, claims] = files.map(OwnedFd::try_clone);
            return Ok([control?, data?, claims?]);
        }
        let access = if self.is_isolated { OFlags::RDONLY } else { OFlags::RDWR };
        let [control, data, claims] = files.map(OwnedFd::as_fd);
        let control = lock::reopen(control, OFlags::RDONLY)?;
        let (data, claims) = (lock::reopen(data, access)?, lock::reopen(claims, access)?);
        if self.pool.is_some() {
            lock::hold(data.as_fd(), client)?;
        }
        Ok([control, data, claims])
    }

    /// Whether the master has withdrawn this use, and the node has not retired it yet.
    #[must_use]
    pub fn is_withdrawn(&self, slot: u32, stamp: u64) -> bool {
        self.claims.is_withdrawn(slot, stamp)
    }

    /// The descriptor of the claim words, for the master.
    pub(crate) fn claims_descriptor(&self) -> io::Result<OwnedFd> {
        match &self.pool {
            Some(_) => lock::reopen(self.claims_file.as_fd(), OFlags::RDWR),
            None => self.claims_file.try_clone(),
        }
    }

    /// Bytes of its files that have no page yet.
    fn absent_bytes(&self) -> u64 {
        let present: u64 = [&self.control_file, &self.data_file, &self.claims_file]
            .into_iter()
            .map(|file| fstat(file).map_or(0, |found| found.st_blocks as u64 * 512))
            .sum();
        memory_bytes(&self.geometry()).saturating_sub(present)
    }

    /// Populates the data segment in a thread of its own, so that no put waits for pages. Calls `done` there
    /// when finished.
    pub fn populate_ahead(&self, pages: Pages, done: impl FnOnce() + Send + 'static) {
        populate::whole(&self.data, pages, done);
    }

    /// Returns the whole pages of this range of the data segment to the system. The range must be unused; a
    /// later access allocates the pages again. Pages stay while a process has registered some with a device,
    /// and if the memory is sealed against writers.
    pub fn return_pages(&self, extent: Extent) {
        if self.is_isolated && self.pool.is_none() {
            return;
        }
        device::unless_registered(self.data_file.as_fd(), || punch(&self.data_file, extent));
    }

    /// Allocates the pages of this range of the data segment, which [`Self::return_pages`] has returned.
    pub fn restore_pages(&self, extent: Extent) -> io::Result<()> {
        allocate(&self.data_file, extent)
    }

    /// Allocates the pages of a range of the control segment, and of the claim words of its slots. Only those
    /// of a pool can be missing: a memory file takes them from the system when they are written.
    pub fn back(&self, extent: Extent) -> io::Result<()> {
        if self.pool.is_none() {
            return Ok(());
        }
        allocate(&self.control_file, extent)?;
        let end = extent.end().unwrap_or(u64::MAX);
        let [first, last] = [extent.offset, end].map(|it| self.geometry().slots_before(it) * CLAIM_BYTES);
        if first == last {
            return Ok(());
        }
        allocate(&self.claims_file, Extent { offset: first, len: last - first })
    }

    /// Allocates all pages of a pool that was adopted, except for these ranges of the data segment. If no
    /// client maps it, the pages of the control segment outside of the ranges in use are returned before.
    pub fn settle_pool(&self, withheld: &[Extent], in_use: &[Extent]) -> Result<(), SegmentError> {
        let Some(pool) = &self.pool else { return Ok(()) };
        if self.mapping_clients().is_ok_and(|it| it.is_empty()) {
            let tables = Extent { offset: HEADER_BYTES, len: self.geometry().control_bytes() - HEADER_BYTES };
            gaps(tables, in_use).for_each(|it| punch(&self.control_file, it));
        }
        let all = Extent { offset: 0, len: self.geometry().data_bytes };
        for absent in gaps(all, withheld) {
            pool.allocate(self.data_file.as_fd(), absent)?;
        }
        Ok(())
    }

    /// The sizes and the id.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.reader.geometry()
    }

    /// Read access to the control segment.
    #[must_use]
    pub fn reader(&self) -> &ControlReader {
        &self.reader
    }
}

/// Returns the whole pages of a range.
fn punch(file: &OwnedFd, extent: Extent) {
    let page = page_size() as u64;
    let start = extent.offset.next_multiple_of(page);
    let end = extent.end().unwrap_or(0) / page * page;
    if start >= end {
        return;
    }
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if let Err(error) = fallocate(file, how, start, end - start) {
        tracing::debug!(%error, "memory is not given back");
    }
}

/// Allocates every page that has a byte of a range. Those that exist keep their content.
fn allocate(file: &OwnedFd, extent: Extent) -> io::Result<()> {
    loop {
        match fallocate(file, FallocateFlags::KEEP_SIZE, extent.offset, extent.len) {
            Err(rustix::io::Errno::INTR) => {}
            allocated => return allocated.map_err(io::Error::from),
        }
    }
}

/// The ranges of `all` between these, which are in any order.
fn gaps(all: Extent, taken: &[Extent]) -> impl Iterator<Item = Extent> {
    let mut taken = taken.to_vec();
    taken.sort_unstable_by_key(|it| it.offset);
    let end = all.end().unwrap_or(u64::MAX);
    taken.push(Extent { offset: end, len: 0 });
    let mut at = all.offset;
    taken.into_iter().filter_map(move |it| {
        let gap = Extent { offset: at, len: it.offset.saturating_sub(at) };
        at = at.max(it.end().unwrap_or(u64::MAX));
        (gap.len > 0).then_some(gap)
    })
}

/// The segments of this process. The kernel counts pages only once they are touched, so memory that is
/// promised to one segment is subtracted before another is created.
static SEGMENTS: Mutex<Vec<Weak<NodeMemory>>> = Mutex::new(Vec::new());

/// Memory that these segments may still take.
fn promised_bytes(segments: &[Weak<NodeMemory>]) -> u64 {
    segments.iter().filter_map(Weak::upgrade).map(|memory| memory.absent_bytes()).sum()
}

/// Memory that a new segment needs, and memory available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Bytes it needs, with control segment and disks.
    pub wanted: u64,
    /// Available bytes.
    pub available: u64,
}

/// Whether [`NodeMemory::create_with`] would find enough memory now.
pub fn check_memory(geometry: &Geometry, disk_bytes: u64) -> Result<Fit, SegmentError> {
    check_sizes(geometry)?;
    let segments = SEGMENTS.lock().unwrap_or_else(PoisonError::into_inner);
    check_available(memory_bytes(geometry), disk_bytes, promised_bytes(&segments), available_memory())
}

fn check_available(
    wanted: u64,
    disk_bytes: u64,
    promised: u64,
    available: Available,
) -> Result<Fit, SegmentError> {
    let Available { bytes, limit } = available;
    let available = bytes.saturating_sub(promised);
    match wanted.saturating_add(disk_bytes) {
        all if all <= available => Ok(Fit { wanted: all, available }),
        _ => Err(SegmentError::NotEnough { wanted, disk_bytes, available, limit }),
    }
}

fn not_enough(wanted: u64, disk_bytes: u64, available: u64, limit: Option<&Limit>) -> String {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let (wanted, available) = (mib(wanted), mib(available));
    let subject = match disk_bytes {
        0 => format!("a segment of {wanted} does not fit"),
        disk_bytes => format!("a segment of {wanted} and {} for its disks do not fit", mib(disk_bytes)),
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

/// Maximum memory of a segment: beyond [`CONTROL_BYTES_FREE`], the control segment grows only as the data
/// segment shrinks.
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
    let map = Map::new(file.as_fd(), bytes, Access::ReadWrite);
    let map = map.and_then(|it| it.for_devices(file.as_fd())).map_err(fail("mapping a memory file"))?;
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
    fn limit_is_named_with_a_hint() {
        let limit = Limit { file: "/sys/fs/cgroup/memory.max".to_owned(), bytes: 400 << 20 };
        let (wanted, disk_bytes, available) = (1 << 30, 0, 350 << 20);
        let error = SegmentError::NotEnough { wanted, disk_bytes, available, limit: Some(limit) };
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
        // Touched pages count as used. A huge page may populate more than was touched.
        assert!(promised_bytes(&segments) <= before - (4 << 20));
        assert!(SEGMENTS.lock().unwrap().iter().any(|known| known.ptr_eq(&segments[0])));
        drop((memory, writer));
        assert_eq!(promised_bytes(&segments), 0);
    }

    #[test]
    fn unused_slots_and_returned_pages_take_no_memory() {
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
        memory.return_pages(Extent { offset: 3 * MIB - 64, len: MIB + 64 });
        assert_eq!(bytes(&memory.data_file), 3 * MIB, "whole pages only");
        memory.return_pages(Extent { offset: 64, len: 4096 });
        assert_eq!(bytes(&memory.data_file), 3 * MIB, "no whole page");
    }

    /// Whether a process that has this descriptor can map the file for writing, by any of its ways.
    fn can_write(file: &OwnedFd) -> bool {
        let again = lock::reopen(file.as_fd(), OFlags::RDWR);
        let files = [Some(file), again.as_ref().ok()];
        let mut maps = files.into_iter().flatten().map(|it| Map::new(it.as_fd(), 4096, Access::ReadWrite));
        maps.any(|it| it.is_ok())
    }

    #[test]
    fn isolated_memory_cannot_be_mapped_for_writing() {
        let geometry = Geometry { segment: 1, data_bytes: 1 << 20, slot_count: 4, heap_bytes: 4096 };
        for is_isolated in [false, true] {
            let options = MemoryOptions { is_isolated, ..MemoryOptions::default() };
            let (memory, _writer) = NodeMemory::create_with(geometry, options).unwrap();
            let [control, data, claims] = memory.descriptors(7).unwrap();
            assert_eq!((can_write(&control), can_write(&data)), (false, !is_isolated));
            assert_eq!(Map::new(claims.as_fd(), 32, Access::ReadWrite).is_ok(), !is_isolated);
            let extent = Extent { offset: 4096, len: 5 };
            crate::copy::copy_in(b"bytes", memory.targets(&[extent]).unwrap()[0]);
            let seen = Map::new(data.as_fd(), 1 << 20, Access::ReadOnly).unwrap();
            let mut bytes = [0; 5];
            crate::copy::copy_out(seen.source(extent).unwrap(), &mut bytes);
            assert_eq!(&bytes, b"bytes", "the node itself writes");
        }
    }

    #[test]
    fn invalid_sizes_are_rejected_with_a_hint() {
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
