//! Memory of Python objects, in pages that threads of ours copy from and to.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;

use tiffin_kv_exec::Pages;

use crate::memory::Memory;
use crate::runtime;

/// Gives the memory back on a thread that may wait for the interpreter: the last page may be let go by one
/// that must not.
struct Borrowed(ManuallyDrop<Memory>);

impl Drop for Borrowed {
    fn drop(&mut self) {
        // SAFETY: it is taken out here and nowhere else, and `self` is not used any more.
        let memory = unsafe { ManuallyDrop::take(&mut self.0) };
        runtime::run_attached(Box::new(move |_| drop(memory)));
    }
}

/// The memory as so many pages of one size; `None` if it cannot be divided so.
pub(super) fn pages(memory: Memory, count: u32) -> Option<Pages> {
    let bytes = memory.as_target();
    let (start, len) = (NonNull::new(bytes.as_mut_ptr())?, bytes.len());
    if count == 0 || len == 0 || !len.is_multiple_of(count as usize) {
        return None;
    }
    let owner = Borrowed(ManuallyDrop::new(memory));
    // SAFETY: the memory stays where it is, mapped and writable, for as long as its owner lives, on any
    // thread (see `crate::memory`), and Rust touches it through such ranges only.
    Some(unsafe { Pages::borrowed(start, count, len / count as usize, Box::new(owner)) })
}
