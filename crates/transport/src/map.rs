//! A shared mapping of a memory file.
//!
//! **Invariant:** a [`Map`] is mapped for as long as the value lives, in the process that created it. Forked
//! children do not inherit it, so that a child can neither write into a segment after its parent was declared
//! dead, nor keep it alive; in a child [`Map::is_here`] is false and the value does nothing.
//!
//! Words are accessed as little-endian atomics, ranges as [`SourceBuf`] and [`TargetBuf`]: never as
//! references.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use rustix::param::page_size;

use crate::Extent;
use crate::buffer::{SourceBuf, TargetBuf};
use crate::seams::point;
use crate::stamp::Words;
use crate::{device, process};

/// Size of a huge page, and alignment of its address and file offset.
const HUGE_PAGE_BYTES: usize = 2 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    ReadOnly,
    ReadWrite,
}

/// A mapped file.
#[derive(Debug)]
pub(crate) struct Map {
    start: NonNull<u8>,
    len: usize,
    access: Access,
    process: u32,
    device: device::Access,
}

// SAFETY: the mapping belongs to the process, not to a thread, and all access is atomic or by the copy
// kernel.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the first `len` bytes of the file.
    pub(crate) fn new(file: BorrowedFd<'_>, len: u64, access: Access) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let protection = match access {
            Access::ReadOnly => ProtFlags::READ,
            Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        };
        let start = NonNull::new(map_at_huge_page(file, len, protection)?).ok_or(io::ErrorKind::Other)?;
        let device = device::Access::default();
        let map = Self { start, len, access, process: process::id(), device };
        // SAFETY: the range was mapped just now, and the advice changes nothing for this process.
        unsafe { madvise(map.start.as_ptr().cast(), map.len, Advice::LinuxDontFork)? };
        Ok(map)
    }

    /// Lets devices access the mapping of this file directly.
    pub(crate) fn for_devices(mut self, file: BorrowedFd<'_>) -> io::Result<Self> {
        self.device = device::Access::new(file)?;
        Ok(self)
    }

    /// The address of the first byte.
    pub(crate) fn start_address(&self) -> u64 {
        self.start.as_ptr().expose_provenance() as u64
    }

    /// A device is about to access the mapping.
    pub(crate) fn prepare_for(&self, device: u32) {
        if self.is_here() {
            let start = self.start_address();
            self.device.prepare(start, self.len(), self.access == Access::ReadOnly, device);
        }
    }

    /// Asks for huge pages where the system gives them on request. Failure is harmless.
    pub(crate) fn prefer_huge_pages(&self) {
        // SAFETY: the range is mapped, and the advice changes nothing about what is read or written there.
        let _advised = unsafe { madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxHugepage) };
    }

    /// Asks for small pages, so that only pages in use take memory.
    pub(crate) fn avoid_huge_pages(&self) {
        // SAFETY: the range is mapped, and the advice changes nothing about what is read or written there.
        let _advised = unsafe { madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxNoHugepage) };
    }

    /// Populates the pages of a range, so that the first access does not wait for the kernel. It changes no
    /// byte. The range must start at a page.
    pub(crate) fn populate(&self, extent: Extent) -> io::Result<()> {
        let (start, len) = self.range(extent).ok_or(io::ErrorKind::InvalidInput)?;
        let advice = match self.access {
            Access::ReadOnly => Advice::LinuxPopulateRead,
            Access::ReadWrite => Advice::LinuxPopulateWrite,
        };
        // SAFETY: the range is inside the mapping, and its bytes stay as they are.
        Ok(unsafe { madvise(start.as_ptr().cast(), len, advice) }?)
    }

    /// Moves the bytes of a range into huge pages, as far as the system has any; their content does not
    /// change. The pages must be present.
    pub(crate) fn collapse(&self, extent: Extent) -> io::Result<()> {
        let (start, len) = self.range(extent).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the range is inside the mapping, and its bytes stay as they are.
        match unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_COLLAPSE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether this process created the mapping.
    pub(crate) fn is_here(&self) -> bool {
        self.process == process::id()
    }

    pub(crate) fn len(&self) -> u64 {
        self.len as u64
    }

    /// The bytes of an extent as a source; `None` if they are not inside, or in a forked child.
    pub(crate) fn source(&self, extent: Extent) -> Option<SourceBuf<'_>> {
        let (start, len) = self.range(extent)?;
        // SAFETY: the range is inside the mapping, which lives as long as the borrow.
        Some(unsafe { SourceBuf::new(start, len) })
    }

    /// The bytes of an extent as a target; `None` as above.
    pub(crate) fn target(&self, extent: Extent) -> Option<TargetBuf<'_>> {
        assert_eq!(self.access, Access::ReadWrite, "a store into a read-only mapping");
        let (start, len) = self.range(extent)?;
        // SAFETY: the range is inside the mapping, which is writable and lives as long as the borrow.
        Some(unsafe { TargetBuf::new(start, len) })
    }

    fn range(&self, extent: Extent) -> Option<(NonNull<u8>, usize)> {
        if extent.end()? > self.len() || !self.is_here() {
            return None;
        }
        // SAFETY: the offset is at most the length, so the address is inside the mapping or one past it.
        let start = unsafe { self.start.add(extent.offset as usize) };
        Some((start, extent.len as usize))
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        const WORD: u64 = size_of::<u64>() as u64;
        let inside = at.checked_add(WORD).is_some_and(|end| end <= self.len());
        assert!(inside && at.is_multiple_of(WORD), "word at {at} of a mapping of {} bytes", self.len);
        // SAFETY: the word is inside the mapping and aligned, since mappings start at a page; all parties
        // access words only atomically.
        unsafe { AtomicU64::from_ptr(self.start.add(at as usize).cast().as_ptr()) }
    }
}

/// Maps a file at an address where a huge page can start; otherwise it could have none.
fn map_at_huge_page(file: BorrowedFd<'_>, len: usize, protection: ProtFlags) -> io::Result<*mut u8> {
    if len < HUGE_PAGE_BYTES {
        // SAFETY: the kernel chooses an unused address, so no memory of this process is replaced.
        let start = unsafe { mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0)? };
        return Ok(start.cast());
    }
    let len = len.checked_next_multiple_of(page_size()).ok_or(io::ErrorKind::InvalidInput)?;
    let space_len = len.checked_add(HUGE_PAGE_BYTES).ok_or(io::ErrorKind::InvalidInput)?;
    let (no_access, nothing) = (ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: as above.
    let space = unsafe { mmap_anonymous(ptr::null_mut(), space_len, no_access, nothing)? };
    let before = space.align_offset(HUGE_PAGE_BYTES);
    let start = space.wrapping_byte_add(before);
    // SAFETY: this replaces a part of the address space reserved above, which nothing else uses.
    let mapped = unsafe { mmap(start, len, protection, MapFlags::SHARED | MapFlags::FIXED, file, 0) };
    let unused = match mapped {
        Ok(_) => [(space, before), (start.wrapping_byte_add(len), HUGE_PAGE_BYTES - before)],
        Err(_) => [(space, space_len), (space, 0)],
    };
    for (start, len) in unused.into_iter().filter(|(_, len)| *len > 0) {
        // SAFETY: a part of the address space reserved above, outside of the mapping.
        unsafe { munmap(start, len)? };
    }
    Ok(mapped?.cast())
}

impl Words for Map {
    fn load(&self, at: u64) -> u64 {
        point();
        u64::from_le(self.word(at).load(Ordering::Relaxed))
    }

    fn store(&self, at: u64, value: u64, order: Ordering) {
        assert_eq!(self.access, Access::ReadWrite, "a store into a read-only mapping");
        point();
        self.word(at).store(value.to_le(), order);
    }

    fn fence(&self, order: Ordering) {
        fence(order);
    }

    fn compare_and_swap(&self, at: u64, old: u64, new: u64) -> Result<(), u64> {
        assert_eq!(self.access, Access::ReadWrite, "a store into a read-only mapping");
        point();
        let (old, new) = (old.to_le(), new.to_le());
        let swapped = self.word(at).compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst);
        swapped.map(|_| ()).map_err(u64::from_le)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // In a forked child the range is not ours: another mapping may be there.
        if self.is_here() {
            self.device.end();
            // SAFETY: the range was mapped by `new`, and every borrow of it has ended.
            let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
            debug_assert!(unmapped.is_ok(), "unmapping failed: {unmapped:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::control::ControlReader;
    use crate::layout::Geometry;
    use crate::segment::NodeMemory;
    use crate::{MappedRange, TransferError};

    const GEOMETRY: Geometry = Geometry { segment: 1, data_bytes: 8192, slot_count: 4, heap_bytes: 0 };

    #[test]
    fn ranges_outside_the_mapping_are_rejected() {
        let (memory, _writer) = NodeMemory::create(GEOMETRY).unwrap();
        let map = &memory.data;
        for (offset, len, is_inside) in [
            (0, 0, true),
            (0, 8192, true),
            (8192, 0, true),
            (8191, 1, true),
            (8191, 2, false),
            (8193, 0, false),
            (u64::MAX, 1, false),
            (1, u64::MAX, false),
        ] {
            let extent = Extent { offset, len };
            assert_eq!(map.source(extent).is_some(), is_inside, "{extent:?}");
            assert_eq!(map.target(extent).is_some(), is_inside, "{extent:?}");
        }
    }

    #[test]
    fn forked_child_does_not_access_the_mapping() {
        let (memory, _writer) = NodeMemory::create(GEOMETRY).unwrap();
        let bytes = GEOMETRY.control_bytes();
        let mut map =
            Map::new(std::os::fd::AsFd::as_fd(&memory.control_file), bytes, Access::ReadOnly).unwrap();
        let start = format!("{:x}-", map.start.as_ptr() as usize);
        let is_mapped = || std::fs::read_to_string("/proc/self/maps").unwrap().contains(&start);
        assert!(map.is_here() && is_mapped());

        // Simulates a forked child.
        map.process += 1;
        assert!(map.source(Extent { offset: 0, len: 1 }).is_none());
        let map = Arc::new(map);
        let reader = ControlReader::new(Arc::clone(&map), GEOMETRY);
        assert_eq!(reader.load(0, 1), Err(TransferError::Forked));
        assert!(MappedRange::of(&reader, &map, 0, 1).is_none());
        drop((reader, map));
        assert!(is_mapped(), "a child must not unmap the range");
    }
}
