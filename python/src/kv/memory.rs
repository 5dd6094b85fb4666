//! Memory of Python objects, as pages that our threads copy from and to.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use tiffin_kv_exec::Pages;

use crate::memory::Memory;
use crate::runtime;

/// Releases the memory on a thread that may wait for the interpreter. The last page may be dropped by a
/// thread that must not wait.
struct Borrowed(ManuallyDrop<Memory>);

impl Drop for Borrowed {
    fn drop(&mut self) {
        // SAFETY: it is taken out only here, and `self` is not used afterwards.
        let memory = unsafe { ManuallyDrop::take(&mut self.0) };
        runtime::run_attached(Box::new(move |_| drop(memory)));
    }
}

/// Divides the memory into `count` pages of one size; `None` if that is not possible.
pub(super) fn pages(memory: Memory, count: u32) -> Option<Pages> {
    let bytes = memory.as_target();
    let (start, len) = (NonNull::new(bytes.as_mut_ptr())?, bytes.len());
    if count == 0 || len == 0 || !len.is_multiple_of(count as usize) {
        return None;
    }
    let owner = Borrowed(ManuallyDrop::new(memory));
    // SAFETY: the memory stays mapped and writable at its address while its owner lives, on any thread (see
    // `crate::memory`). Rust accesses it only through such ranges.
    Some(unsafe { Pages::borrowed(start, count, len / count as usize, Box::new(owner)) })
}
