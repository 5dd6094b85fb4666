//! Memory of a fixed size that is allocated in blocks. The bytes of a dropped block are kept as long as
//! possible.
//!
//! Callers may pass the address of a block to code that uses it after the block was dropped. That is their
//! mistake, but it must not corrupt data at once: a dropped block is overwritten only when a new block needs
//! its space, oldest drop first. The memory stays mapped until the arena and every block are dropped.
//!
//! **Invariant:** each byte is free, in a dropped block, or in one live block. Free ranges do not touch each
//! other. A live block is never allocated again.
//!
//! **Invariant:** a forked child does not take the lock of its parent, which a thread of the parent may have
//! held at the fork. Blocks that the child inherited stay readable, and are forgotten when they are dropped.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::buffer::TargetBuf;
use crate::process;

/// Alignment of the address and size of a block, in bytes.
pub const BLOCK_ALIGN: u64 = 64;
/// Maximum number of dropped blocks whose bytes are kept; beyond it the oldest are freed.
pub const DROPPED_MAX: usize = 1 << 16;

/// Memory that is allocated in blocks.
#[derive(Debug)]
pub struct Arena {
    start: NonNull<u8>,
    len: usize,
    process: u32,
    state: Mutex<State>,
}

// SAFETY: the mapping belongs to the process, and a byte of it is touched by the owner of its block only.
unsafe impl Send for Arena {}
// SAFETY: as above; what threads share is behind a lock.
unsafe impl Sync for Arena {}

/// A part of an arena with one owner. Its bytes are kept for a while after it was dropped.
#[derive(Debug)]
pub struct Block {
    arena: Arc<Arena>,
    offset: u64,
    len: usize,
}

#[derive(Debug)]
struct State {
    /// Free ranges: offset to length.
    free: BTreeMap<u64, u64>,
    /// The same as (length, offset).
    free_by_len: BTreeSet<(u64, u64)>,
    /// Offset and length of dropped blocks, the oldest first.
    dropped: VecDeque<(u64, u64)>,
}

impl Arena {
    /// Maps `bytes` of address space. The system provides pages at first touch.
    pub fn new(bytes: u64) -> io::Result<Arc<Self>> {
        let len = usize::try_from(bytes).ok().filter(|len| *len > 0 && *len <= isize::MAX as usize);
        let len = len.ok_or(io::ErrorKind::InvalidInput)?;
        let (flags, protection) =
            (MapFlags::PRIVATE | MapFlags::NORESERVE, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, protection, flags) }?;
        let start: NonNull<u8> = NonNull::new(start.cast()).ok_or(io::ErrorKind::Other)?;
        // Without huge pages the arena works as well.
        // SAFETY: the range was mapped just now, and the advice changes no byte.
        let _advised = unsafe { madvise(start.as_ptr().cast(), len, Advice::LinuxHugepage) };
        let state = Mutex::new(State::new(bytes));
        Ok(Arc::new(Self { start, len, process: process::id(), state }))
    }

    /// Whether this process created the arena. A forked child cannot allocate from it.
    #[must_use]
    pub fn is_here(&self) -> bool {
        self.process == process::id()
    }

    /// Whether the whole range lies in the arena.
    #[must_use]
    pub fn contains(&self, start: u64, len: u64) -> bool {
        let first = self.start.as_ptr().expose_provenance() as u64;
        let offset = start.checked_sub(first);
        offset.and_then(|it| it.checked_add(len)).is_some_and(|end| end <= self.len as u64)
    }

    /// Allocates a block of `len` bytes with unspecified content; `None` if live blocks leave no such space.
    #[must_use]
    pub fn allocate(self: &Arc<Self>, len: u64) -> Option<Block> {
        let arena = Arc::clone(self);
        let block_len = rounded(len)?;
        let offset = if self.is_here() { self.state().take(block_len) } else { None }?;
        Some(Block { arena, offset, len: usize::try_from(len).ok()? })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Changes under the lock cannot fail half way, so a poisoned lock is usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: no block is left, and nothing else refers to the mapping.
        let _unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl Block {
    /// The address of the first byte.
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        // SAFETY: the offset is inside the mapping.
        unsafe { self.arena.start.add(self.offset as usize) }
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes as a target for copies.
    #[must_use]
    pub fn target(&self) -> TargetBuf<'_> {
        // SAFETY: they are mapped for as long as the block lives, and no reference to them is ever made.
        unsafe { TargetBuf::new(self.start(), self.len) }
    }

    /// Frees the space at once: its address was not passed to anyone.
    pub fn discard(self) {
        let block = std::mem::ManuallyDrop::new(self);
        // SAFETY: the value is not used any more, and the arena is taken out once.
        let arena = unsafe { ptr::read(&raw const block.arena) };
        if arena.is_here() {
            arena.state().free(block.offset, rounded(block.len as u64).unwrap_or_default());
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.arena.is_here() {
            self.arena.state().keep(self.offset, rounded(self.len as u64).unwrap_or_default());
        }
    }
}

impl State {
    fn new(bytes: u64) -> Self {
        let mut state =
            Self { free: BTreeMap::new(), free_by_len: BTreeSet::new(), dropped: VecDeque::new() };
        state.add_free(0, bytes);
        state
    }

    /// Takes space: a free range if one is long enough, else the ranges of the oldest dropped blocks.
    fn take(&mut self, len: u64) -> Option<u64> {
        let mut found = self.free_by_len.range((len, 0)..).next().map(|(_, offset)| *offset);
        while found.is_none() {
            let (offset, dropped_len) = self.dropped.pop_front()?;
            let (offset, free_len) = self.free(offset, dropped_len);
            found = (free_len >= len).then_some(offset);
        }
        let offset = found?;
        let free_len = self.remove_free(offset)?;
        self.add_free(offset + len, free_len - len);
        Some(offset)
    }

    /// Remembers a dropped block, and frees the oldest beyond the limit.
    fn keep(&mut self, offset: u64, len: u64) {
        self.dropped.push_back((offset, len));
        if self.dropped.len() > DROPPED_MAX
            && let Some((offset, len)) = self.dropped.pop_front()
        {
            self.free(offset, len);
        }
    }

    /// Frees a range. Returns the free range that contains it after merging.
    fn free(&mut self, offset: u64, len: u64) -> (u64, u64) {
        let (mut start, mut end) = (offset, offset + len);
        let before = self.free.range(..offset).next_back().map(|(at, len)| (*at, *len));
        if let Some((at, len)) = before.filter(|(at, len)| at + len == offset) {
            self.remove_free(at);
            start -= len;
        }
        if let Some(len) = self.remove_free(end) {
            end += len;
        }
        self.add_free(start, end - start);
        (start, end - start)
    }

    fn add_free(&mut self, offset: u64, len: u64) {
        if len > 0 {
            self.free.insert(offset, len);
            self.free_by_len.insert((len, offset));
        }
    }

    fn remove_free(&mut self, offset: u64) -> Option<u64> {
        let len = self.free.remove(&offset)?;
        self.free_by_len.remove(&(len, offset));
        Some(len)
    }
}

/// The space that a block of `len` bytes takes.
fn rounded(len: u64) -> Option<u64> {
    len.max(1).checked_next_multiple_of(BLOCK_ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::{copy_in, copy_out};

    const PAGE: u64 = 4096;

    fn fill(block: &Block, byte: u8) {
        copy_in(&vec![byte; block.len()], block.target());
    }

    fn bytes_at(start: NonNull<u8>, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: the arena that these tests keep has them mapped.
        copy_out(unsafe { crate::SourceBuf::new(start, len) }, &mut bytes);
        bytes
    }

    #[test]
    fn dropped_blocks_are_overwritten_oldest_first() {
        let arena = Arena::new(4 * PAGE).unwrap();
        let blocks: Vec<_> = (0..4).map(|_| arena.allocate(PAGE).unwrap()).collect();
        blocks.iter().zip(1..).for_each(|(block, byte)| fill(block, byte));
        let starts: Vec<_> = blocks.iter().map(Block::start).collect();
        let mut blocks: Vec<_> = blocks.into_iter().map(Some).collect();
        // In another order than they were allocated.
        for at in [2, 0, 3, 1] {
            blocks[at] = None;
        }
        for (at, byte) in [(2, 11), (0, 12), (3, 13), (1, 14)] {
            let before = bytes_at(starts[at], PAGE as usize);
            assert_eq!(before, vec![at as u8 + 1; PAGE as usize], "intact until its turn");
            let block = arena.allocate(PAGE).unwrap();
            assert_eq!(block.start(), starts[at]);
            fill(&block, byte);
            blocks.push(Some(block));
        }
        assert!(arena.allocate(1).is_none(), "live blocks are never reused");
    }

    #[test]
    fn free_space_is_used_before_dropped_blocks() {
        let arena = Arena::new(3 * PAGE).unwrap();
        let first = arena.allocate(PAGE).unwrap();
        let start = first.start();
        fill(&first, 7);
        drop(first);
        let others = [arena.allocate(PAGE).unwrap(), arena.allocate(PAGE).unwrap()];
        others.iter().for_each(|block| fill(block, 9));
        assert_eq!(bytes_at(start, PAGE as usize), vec![7; PAGE as usize]);
        assert_eq!(arena.allocate(PAGE).unwrap().start(), start, "now it is needed");
    }

    #[test]
    fn neighbours_are_joined_for_a_large_block() {
        let arena = Arena::new(8 * PAGE).unwrap();
        let mut small: Vec<_> = (0..8).map(|_| arena.allocate(PAGE).unwrap()).collect();
        let kept = small.swap_remove(7);
        drop(small);
        assert!(arena.allocate(8 * PAGE).is_none(), "one block is live");
        let large = arena.allocate(7 * PAGE).unwrap();
        drop((kept, large));
        assert!(arena.allocate(8 * PAGE).is_some());
        assert!(arena.allocate(8 * PAGE + 1).is_none());
        assert!(arena.allocate(u64::MAX).is_none());
    }

    #[test]
    fn discarded_blocks_are_free_at_once() {
        let arena = Arena::new(2 * PAGE).unwrap();
        let first = arena.allocate(PAGE).unwrap();
        drop(arena.allocate(PAGE).unwrap());
        let start = first.start();
        first.discard();
        assert_eq!(arena.allocate(PAGE).unwrap().start(), start, "the dropped block is still kept");
        assert!(arena.allocate(0).is_some_and(|block| block.is_empty()));
    }

    #[test]
    fn the_number_of_kept_blocks_is_limited() {
        let arena = Arena::new((DROPPED_MAX as u64 + 2) * BLOCK_ALIGN).unwrap();
        let all: Vec<_> = (0..DROPPED_MAX).map(|_| arena.allocate(1).unwrap()).collect();
        drop(all);
        assert_eq!(arena.state().dropped.len(), DROPPED_MAX, "at the limit");
        let extra = arena.allocate(1).unwrap();
        drop(extra);
        assert_eq!(arena.state().dropped.len(), DROPPED_MAX, "beyond the limit");
        let state = arena.state();
        let free: u64 = state.free.values().sum();
        assert_eq!(free, 2 * BLOCK_ALIGN, "the oldest was given up");
        assert_eq!(state.free.len(), state.free_by_len.len());
    }

    #[test]
    fn blocks_outlive_their_arena() {
        let arena = Arena::new(PAGE).unwrap();
        let block = arena.allocate(100).unwrap();
        let start = block.start().as_ptr().expose_provenance() as u64;
        assert!(arena.contains(start, PAGE) && !arena.contains(start, PAGE + 1));
        assert!(!arena.contains(start - 1, 1) && !arena.contains(start, u64::MAX));
        fill(&block, 3);
        drop(arena);
        assert_eq!(bytes_at(block.start(), 100), [3; 100]);
        assert!(Arena::new(0).is_err() && Arena::new(u64::MAX).is_err());
    }

    #[test]
    fn random_use_never_overlaps() {
        let arena = Arena::new(1 << 20).unwrap();
        let mut live: Vec<Block> = Vec::new();
        let mut chance = 12345_u64;
        for _ in 0..20_000 {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let pick = (chance >> 33) as usize;
            if pick.is_multiple_of(2)
                && let Some(block) = arena.allocate((pick % 50_000) as u64)
            {
                let range = |it: &Block| (it.offset, it.offset + rounded(it.len as u64).unwrap());
                let (start, end) = range(&block);
                assert!(live.iter().map(range).all(|it| end <= it.0 || it.1 <= start));
                live.push(block);
            } else if !live.is_empty() {
                let block = live.swap_remove(pick % live.len());
                if pick.is_multiple_of(3) { block.discard() } else { drop(block) }
            }
        }
        drop(live);
        let state = arena.state();
        let sum: u64 = state.free.values().chain(state.dropped.iter().map(|it| &it.1)).sum();
        assert_eq!(sum, 1 << 20, "every byte is accounted for");
    }
}
