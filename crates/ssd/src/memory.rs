//! Memory for disk work: of the caller, in pieces, or allocated here, aligned.
//!
//! Every disk operation in flight holds a guard that keeps its memory alive. So the kernel never uses freed
//! memory, even if the caller has given up.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use crate::layout::BLOCK;

/// The maximum bytes of free buffers in a pool.
pub(crate) const POOL_BYTES_MAX: usize = 64 << 20;

/// A contiguous run of memory that a guard keeps alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a run is an address; the holders of its guard decide who may use it.
unsafe impl Send for Run {}
// SAFETY: as above.
unsafe impl Sync for Run {}

impl Run {
    pub(crate) fn len(self) -> usize {
        self.len
    }

    pub(crate) fn as_ptr(self) -> *mut u8 {
        self.at.as_ptr()
    }

    /// Whether it is aligned for direct I/O.
    pub(crate) fn is_aligned(self) -> bool {
        (self.at.as_ptr() as usize as u64).is_multiple_of(BLOCK) && (self.len as u64).is_multiple_of(BLOCK)
    }

    /// A part of it, or `None` if it is too short.
    pub(crate) fn part(self, offset: usize, len: usize) -> Option<Self> {
        let end = offset.checked_add(len)?;
        if end > self.len {
            return None;
        }
        // SAFETY: `offset` is inside the run, which is one piece of memory.
        let at = unsafe { self.at.add(offset) };
        Some(Self { at, len })
    }

    /// The bytes.
    ///
    /// # Safety
    /// The memory is alive, and not written while the slice is used.
    pub(crate) unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: the caller guarantees it; the pointer is not null.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }

    /// The bytes, for writing.
    ///
    /// # Safety
    /// The memory is alive, and used only through the slice.
    pub(crate) unsafe fn bytes_mut<'a>(self) -> &'a mut [u8] {
        // SAFETY: the caller guarantees it; the pointer is not null.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

/// The memory of a payload: pieces in order, and a guard that keeps them alive.
#[derive(Clone)]
pub struct Pieces {
    runs: Arc<[Run]>,
    len: u64,
    _guard: Arc<dyn Any + Send + Sync>,
}

impl Pieces {
    /// Memory of the caller.
    ///
    /// # Safety
    /// Each piece is valid for reads (and, as a destination, for writes) of its length by any thread until
    /// `guard` is dropped. Until then a source is not written, and a destination is neither read nor written.
    /// That holds also after the operation has failed, because the disk operation may not have ended.
    pub unsafe fn new(
        pieces: impl IntoIterator<Item = (NonNull<u8>, usize)>,
        guard: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        let runs: Arc<[Run]> =
            pieces.into_iter().filter(|(_, len)| *len > 0).map(|(at, len)| Run { at, len }).collect();
        let len = runs.iter().map(|run| run.len as u64).sum();
        Self { runs, len, _guard: guard }
    }

    /// Aligned memory, zeroed.
    #[must_use]
    pub fn zeroed(len: u64) -> Self {
        let buffer = Arc::new(Buffer::new(len as usize));
        let run = buffer.run().part(0, len as usize);
        let runs: Arc<[Run]> = run.into_iter().filter(|run| run.len > 0).collect();
        Self { runs, len, _guard: buffer }
    }

    /// A copy of these bytes in aligned memory.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let pieces = Self::zeroed(bytes.len() as u64);
        pieces.write(0, bytes);
        pieces
    }

    /// The number of bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A range of this memory with the same guard, as far as it reaches.
    #[must_use]
    pub(crate) fn part(&self, mut offset: u64, len: u64) -> Self {
        let mut left = len;
        let mut runs = Vec::new();
        while left > 0
            && let Some(run) = self.run_at(offset, left).filter(|run| run.len > 0)
        {
            runs.push(run);
            offset += run.len as u64;
            left -= run.len as u64;
        }
        Self { runs: runs.into(), len: len - left, _guard: Arc::clone(&self._guard) }
    }

    /// A copy of the bytes. Read a destination only after its operation has succeeded.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len as usize];
        self.read(0, &mut bytes);
        bytes
    }

    /// The bytes of a destination, after its operation has succeeded. They are not written from then on: the
    /// disk operation has ended, and the caller gives them away here.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        match *self.runs {
            [] => Bytes { run: None, _guard: self._guard },
            [run] => Bytes { run: Some(run), _guard: self._guard },
            _ => Self::copy_of(&self.to_vec()).into_bytes(),
        }
    }

    /// The checksums of the bytes.
    pub(crate) fn sums(&self) -> Arc<[u64]> {
        // SAFETY: the guard keeps the memory alive, and a source is not written.
        crate::layout::sums(self.runs.iter().map(|run| unsafe { run.bytes() }))
    }

    /// The longest run that begins at this byte, of at most so many.
    pub(crate) fn run_at(&self, mut offset: u64, len: u64) -> Option<Run> {
        for run in self.runs.iter() {
            if offset < run.len as u64 {
                let len = len.min(run.len as u64 - offset);
                return run.part(offset as usize, len as usize);
            }
            offset -= run.len as u64;
        }
        None
    }

    /// Copies bytes from this memory, as far as it reaches.
    pub(crate) fn read(&self, mut offset: u64, mut to: &mut [u8]) {
        while let Some(run) = self.run_at(offset, to.len() as u64).filter(|run| run.len > 0) {
            let (now, later) = to.split_at_mut(run.len);
            // SAFETY: the guard keeps the memory alive, and `now` is as long as the run and our own.
            unsafe { std::ptr::copy_nonoverlapping(run.as_ptr().cast_const(), now.as_mut_ptr(), run.len) };
            offset += run.len as u64;
            to = later;
        }
    }

    /// Copies bytes to this memory, as far as it reaches. No disk operation may be using it.
    pub fn write(&self, mut offset: u64, mut from: &[u8]) {
        while let Some(run) = self.run_at(offset, from.len() as u64).filter(|run| run.len > 0) {
            let (now, later) = from.split_at(run.len);
            // SAFETY: the guard keeps the memory alive, the destination is used only here, and `now` is as
            // long.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), run.as_ptr(), run.len) };
            offset += run.len as u64;
            from = later;
        }
    }
}

impl fmt::Debug for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes in {} pieces", self.len, self.runs.len())
    }
}

/// Bytes that were read, and are not written any more.
#[derive(Debug)]
pub struct Bytes {
    run: Option<Run>,
    _guard: Arc<dyn Any + Send + Sync>,
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the guard keeps the memory alive, and the disk work that wrote it has ended.
        self.run.map_or(&[], |run| unsafe { run.bytes() })
    }
}

/// Aligned buffers that are reused, because the first use of fresh memory costs more than a read.
#[derive(Debug, Default)]
pub struct Pool {
    free: Mutex<Vec<Buffer>>,
}

/// A buffer that goes back to its pool.
struct Lent {
    buffer: Option<Buffer>,
    pool: Arc<Pool>,
}

impl Pool {
    /// A buffer to read into. It contains old bytes until a read has filled it.
    #[must_use]
    pub fn take(self: &Arc<Self>, len: u64) -> Pieces {
        let found = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let fits =
                |it: &Buffer| (len as usize..=(len as usize).saturating_mul(2)).contains(&it.run().len);
            free.iter().position(fits).map(|at| free.swap_remove(at))
        };
        let buffer = found.unwrap_or_else(|| Buffer::new(len as usize));
        let run = buffer.run().part(0, len as usize);
        let runs: Arc<[Run]> = run.into_iter().filter(|run| run.len > 0).collect();
        Pieces { runs, len, _guard: Arc::new(Lent { buffer: Some(buffer), pool: Arc::clone(self) }) }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        let mut free = self.pool.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held = buffer.run().len;
        if held > POOL_BYTES_MAX {
            return;
        }
        held += free.iter().map(|it| it.run().len).sum::<usize>();
        // The oldest are dropped: else buffers of sizes that are not requested any more would stay.
        while held > POOL_BYTES_MAX && !free.is_empty() {
            held -= free.remove(0).run().len;
        }
        free.push(buffer);
    }
}

/// Aligned memory: whole blocks, at least one.
#[derive(Debug)]
pub struct Buffer {
    at: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the value owns the memory.
unsafe impl Send for Buffer {}
// SAFETY: a shared reference gives only the address.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub(crate) fn new(len: usize) -> Self {
        let block = BLOCK as usize;
        let size = len.div_ceil(block).max(1) * block;
        let layout = match Layout::from_size_align(size, block) {
            Ok(layout) => layout,
            Err(error) => panic!("invalid buffer of {len} bytes: {error}"),
        };
        // SAFETY: the size is not zero.
        let at = unsafe { alloc_zeroed(layout) };
        match NonNull::new(at) {
            Some(at) => Self { at, layout },
            None => handle_alloc_error(layout),
        }
    }

    pub(crate) fn run(&self) -> Run {
        Run { at: self.at, len: self.layout.size() }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and the address is used only with a guard on this value.
        unsafe { dealloc(self.at.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_follow_one_another() {
        let (mut a, mut b) = ([1u8; 5], [2u8; 7]);
        let at = |bytes: &mut [u8]| (NonNull::new(bytes.as_mut_ptr()).unwrap(), bytes.len());
        // SAFETY: both arrays live until the end of this function, and only the pieces use them.
        let pieces = unsafe { Pieces::new([at(&mut a), at(&mut b)], Arc::new(())) };
        assert_eq!(pieces.to_vec(), [1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2]);
        pieces.write(3, &[9; 4]);
        assert_eq!(pieces.to_vec(), [1, 1, 1, 9, 9, 9, 9, 2, 2, 2, 2, 2]);
        assert_eq!(pieces.run_at(5, 100).unwrap().len(), 7);
        assert_eq!(pieces.run_at(4, 100).unwrap().len(), 1);
        assert!(pieces.run_at(12, 1).is_none());
        assert_eq!(pieces.part(2, 5).to_vec(), [1, 9, 9, 9, 9]);
        assert_eq!(pieces.part(10, 9).to_vec(), [2, 2]);
        assert!(pieces.part(12, 1).is_empty());
        assert_eq!(pieces.sums(), crate::layout::sums([pieces.to_vec().as_slice()]));
    }

    #[test]
    fn dropped_buffers_are_reused() {
        let pool = Arc::new(Pool::default());
        let first = pool.take(5000);
        first.write(0, &[7; 5000]);
        let (bytes, at) = (first.into_bytes(), |it: &Pieces| it.run_at(0, 1).map(Run::as_ptr));
        let second = pool.take(5000);
        assert_ne!(at(&second), bytes.run.map(Run::as_ptr), "it is still in use");
        assert_eq!(bytes.as_ref(), [7; 5000]);
        let freed = bytes.run.map(Run::as_ptr);
        drop(bytes);
        assert_ne!(at(&pool.take(100_000)), freed, "it is too small for that");
        assert_eq!(at(&pool.take(4097)), freed);
        for _ in 0..3 {
            drop([pool.take(40 << 20), pool.take(40 << 20)]);
            assert!(pool.free.lock().unwrap().iter().map(|it| it.run().len).sum::<usize>() <= POOL_BYTES_MAX);
        }
        assert!(pool.take(0).into_bytes().as_ref().is_empty());
    }

    #[test]
    fn allocated_memory_is_aligned() {
        for len in [0u64, 1, 4096, 4097] {
            let pieces = Pieces::zeroed(len);
            assert_eq!(pieces.len(), len);
            assert!(pieces.run_at(0, 4096).is_none_or(|run| run.len() < 4096 || run.is_aligned()));
        }
    }
}
