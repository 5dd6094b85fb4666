//! All access of the stand-in to memory.

use std::ffi::c_void;
use std::ptr;

use crate::state::{Allocation, ILLEGAL_ADDRESS, INVALID_VALUE, OK, OUT_OF_MEMORY, State, Work};

/// Device memory is given out in multiples of this.
const GRANULE: u64 = 64 << 10;

/// Reserves an address that the process cannot access, and memory that the stand-in accesses elsewhere.
pub(crate) fn allocate(state: &mut State, device: i32, len: u64) -> Result<u64, i32> {
    if len == 0 {
        return Err(INVALID_VALUE);
    }
    let bytes = len.checked_next_multiple_of(GRANULE).ok_or(OUT_OF_MEMORY)? as usize;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: the kernel chooses unused addresses.
    let (start, alias) = unsafe {
        let start = libc::mmap(ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        (start, libc::mmap(ptr::null_mut(), bytes, access, flags, -1, 0))
    };
    if start == libc::MAP_FAILED || alias == libc::MAP_FAILED {
        return Err(OUT_OF_MEMORY);
    }
    let (start, alias) = (start.expose_provenance() as u64, alias.expose_provenance() as u64);
    // What was there before is not zero on a real device either.
    // SAFETY: the memory was mapped just now.
    unsafe { ptr::write_bytes(pointer(alias), 0xcd, bytes.min(1 << 20)) };
    state.allocations.insert(start, Allocation { len, device, alias });
    state.counts.device_bytes += len;
    Ok(start)
}

/// Unmaps both.
pub(crate) fn free(state: &mut State, start: u64) -> i32 {
    let Some(found) = state.allocations.remove(&start) else { return INVALID_VALUE };
    let bytes = found.len.next_multiple_of(GRANULE) as usize;
    // SAFETY: both ranges were mapped by `allocate`, and the table does not name them any more.
    unsafe {
        libc::munmap(pointer(start).cast(), bytes);
        libc::munmap(pointer(found.alias).cast(), bytes);
    }
    state.counts.device_bytes -= found.len;
    OK
}

/// Host memory of whole pages.
pub(crate) fn allocate_host(len: u64) -> Option<u64> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: the kernel chooses an unused address.
    let start = unsafe { libc::mmap(ptr::null_mut(), len as usize, access, flags, -1, 0) };
    (start != libc::MAP_FAILED).then(|| start.expose_provenance() as u64)
}

/// Unmaps host memory from [`allocate_host`].
pub(crate) fn free_host(start: u64, len: u64) {
    // SAFETY: the caller has just removed it from the table of allocated memory.
    unsafe { libc::munmap(pointer(start).cast(), len as usize) };
}

impl State {
    /// Where the bytes of an address are: a device's, or the host's own.
    fn place(&self, address: u64, len: u64) -> Option<*mut u8> {
        match self.allocation(address, len) {
            Some((start, found)) => Some(pointer(found.alias + (address - start))),
            None if self.allocation(address, 1).is_some() => None,
            None => Some(pointer(address)),
        }
    }

    /// Where a kernel finds the bytes of an address. Of host memory it only sees what is pinned.
    fn seen_by_kernel(&self, address: u64, len: u64, is_written: bool) -> Option<*mut u8> {
        if let Some((start, found)) = self.allocation(address, len) {
            return Some(pointer(found.alias + (address - start)));
        }
        let (pinned, host) = self.pinned_for_kernel(address, len)?;
        (!is_written || !pinned.is_read_only).then(|| pointer(host))
    }

    /// Carries out work on memory.
    pub(crate) fn carry_out(&self, work: &Work) -> i32 {
        match *work {
            Work::Copy { target, source, len } => {
                let (Some(to), Some(from)) = (self.place(target, len), self.place(source, len)) else {
                    return ILLEGAL_ADDRESS;
                };
                // SAFETY: device memory is inside its alias; host memory is as the caller of the driver's
                // function promised. Both may overlap if they are the same memory.
                unsafe { ptr::copy(from, to, len as usize) };
                OK
            }
            Work::Fill { target, value, len } => {
                let Some(to) = self.place(target, len) else { return ILLEGAL_ADDRESS };
                // SAFETY: as above.
                unsafe { ptr::write_bytes(to, value, len as usize) };
                OK
            }
            Work::Kernel { units, count } => self.copy_units(units, count),
            Work::Wait(_) => OK,
        }
    }

    /// The copy kernel: a list of source, target and length.
    fn copy_units(&self, units: u64, count: u32) -> i32 {
        let bytes = u64::from(count) * 24;
        let Some(list) = self.seen_by_kernel(units, bytes, false) else { return ILLEGAL_ADDRESS };
        for at in 0..count as usize {
            // SAFETY: the list is inside its allocation; units are 24 bytes and aligned to 8.
            let [source, target, len] = unsafe { list.cast::<[u64; 3]>().add(at).read_unaligned() };
            let (from, to) =
                (self.seen_by_kernel(source, len, false), self.seen_by_kernel(target, len, true));
            let (Some(from), Some(to)) = (from, to) else { return ILLEGAL_ADDRESS };
            // SAFETY: both are device memory or pinned host memory of that length.
            unsafe { ptr::copy(from, to, len as usize) };
        }
        OK
    }
}

/// The pointer at an address.
pub(crate) fn pointer(address: u64) -> *mut u8 {
    ptr::with_exposed_provenance_mut(address as usize)
}

/// Stores a value where the caller wants it; false for a null pointer.
///
/// # Safety
/// The target must be null or valid for a write.
pub(crate) unsafe fn store<T>(target: *mut T, value: T) -> bool {
    if !target.is_null() {
        // SAFETY: the caller's contract.
        unsafe { target.write_unaligned(value) };
    }
    !target.is_null()
}

/// Whether a range is mapped, and writable.
pub(crate) fn protection(start: u64, len: u64) -> Option<bool> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let (mut at, mut is_writable) = (start, true);
    for line in maps.lines() {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let (from, to) = (u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?);
        if from <= at && at < to && rest.starts_with('r') {
            is_writable &= rest.as_bytes().get(1) == Some(&b'w');
            at = to;
            if at >= start + len {
                return Some(is_writable);
            }
        }
    }
    None
}

/// A pointer as a number.
pub(crate) fn number(pointer: *const c_void) -> u64 {
    pointer.expose_provenance() as u64
}
