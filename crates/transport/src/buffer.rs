//! Ranges of memory that bytes are copied from and to.
//!
//! A [`SourceBuf`] or [`TargetBuf`] is a pointer and a length with a lifetime. Unlike a slice it makes no
//! promise that nobody else touches the bytes: a caller's array may be used by other threads of an
//! interpreter, and a segment is written by other processes. So the bytes are touched only by the copy
//! kernel, by the checksum and by system calls, none of which the compiler looks into; a race then gives
//! unspecified bytes, and nothing worse.
//!
//! **Invariant:** the memory is mapped for the whole lifetime of the range.

use std::marker::PhantomData;
use std::ptr::NonNull;

/// Bytes to be read.
#[derive(Clone, Copy, Debug)]
pub struct SourceBuf<'a> {
    start: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'a [u8]>,
}

/// Bytes to be written.
#[derive(Clone, Copy, Debug)]
pub struct TargetBuf<'a> {
    start: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: a range is only an address; using it from another thread is what the contract of `new` allows.
unsafe impl Send for SourceBuf<'_> {}
// SAFETY: as above; there is no interior state.
unsafe impl Sync for SourceBuf<'_> {}
// SAFETY: as above.
unsafe impl Send for TargetBuf<'_> {}
// SAFETY: as above.
unsafe impl Sync for TargetBuf<'_> {}

impl<'a> SourceBuf<'a> {
    /// The `len` bytes at `start`.
    ///
    /// # Safety
    /// For all of `'a` those bytes must be mapped and readable, from any thread. Others may write them
    /// meanwhile, through anything but a Rust reference or plain Rust access; what is read is then
    /// unspecified. `len` must be at most `isize::MAX`.
    #[must_use]
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, memory: PhantomData }
    }

    /// How many bytes.
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Where the first one is.
    #[must_use]
    pub fn as_ptr(self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The first `at` bytes and the rest; all of them and nothing if there are fewer.
    #[must_use]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        let at = at.min(self.len);
        // SAFETY: `at` is at most `len`, so the sum stays inside the range or one behind it.
        let rest = unsafe { self.start.add(at) };
        (Self { len: at, ..self }, Self { start: rest, len: self.len - at, ..self })
    }
}

impl<'a> From<&'a [u8]> for SourceBuf<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { start: NonNull::from(bytes).cast(), len: bytes.len(), memory: PhantomData }
    }
}

impl<'a> TargetBuf<'a> {
    /// The `len` bytes at `start`.
    ///
    /// # Safety
    /// For all of `'a` those bytes must be mapped, readable and writable, from any thread. Others may touch
    /// them meanwhile, through anything but a Rust reference or plain Rust access; what is found there is
    /// then unspecified. `len` must be at most `isize::MAX`.
    #[must_use]
    pub unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, memory: PhantomData }
    }

    /// How many bytes.
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Where the first one is.
    #[must_use]
    pub fn as_mut_ptr(self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The first `at` bytes and the rest; all of them and nothing if there are fewer.
    #[must_use]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        let at = at.min(self.len);
        // SAFETY: `at` is at most `len`, so the sum stays inside the range or one behind it.
        let rest = unsafe { self.start.add(at) };
        (Self { len: at, ..self }, Self { start: rest, len: self.len - at, ..self })
    }

    /// The same bytes, to be read.
    #[must_use]
    pub fn as_source(self) -> SourceBuf<'a> {
        SourceBuf { start: self.start, len: self.len, memory: PhantomData }
    }
}

impl<'a> From<&'a mut [u8]> for TargetBuf<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        let len = bytes.len();
        Self { start: NonNull::from(bytes).cast(), len, memory: PhantomData }
    }
}

/// What [`SourceBuf`] and [`TargetBuf`] have in common, for code that cuts lists of them.
pub(crate) trait Buf: Copy {
    /// How many bytes.
    fn bytes(self) -> usize;
    /// The first `at` bytes and the rest.
    fn cut(self, at: usize) -> (Self, Self);
}

impl Buf for SourceBuf<'_> {
    fn bytes(self) -> usize {
        self.len
    }
    fn cut(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }
}

impl Buf for TargetBuf<'_> {
    fn bytes(self) -> usize {
        self.len
    }
    fn cut(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }
}

/// A list of ranges that is used up from its front.
#[derive(Debug)]
pub(crate) struct Run<B> {
    /// In reverse, so that the front can be popped; none is empty.
    reversed: Vec<B>,
}

impl<B: Buf> Run<B> {
    pub(crate) fn new(list: impl IntoIterator<Item = B, IntoIter: DoubleEndedIterator>) -> Self {
        Self { reversed: list.into_iter().rev().filter(|buf| buf.bytes() > 0).collect() }
    }

    /// The next at most `most` bytes that lie in one piece; `None` when all are used up.
    pub(crate) fn next_piece(&mut self, most: usize) -> Option<B> {
        let front = self.reversed.pop()?;
        let (piece, rest) = front.cut(most);
        if rest.bytes() > 0 {
            self.reversed.push(rest);
        }
        Some(piece)
    }

    /// How many bytes are left.
    pub(crate) fn bytes(&self) -> usize {
        self.reversed.iter().fold(0, |sum, buf| sum.saturating_add(buf.bytes()))
    }

    /// How many bytes the first range has.
    pub(crate) fn front_bytes(&self) -> usize {
        self.reversed.last().map_or(0, |buf| buf.bytes())
    }

    /// Takes the next `bytes` off, as pieces. Fewer where the list ends.
    pub(crate) fn take(&mut self, mut bytes: u64) -> Vec<B> {
        let mut pieces = Vec::new();
        while bytes > 0 {
            let Some(piece) = self.next_piece(usize::try_from(bytes).unwrap_or(usize::MAX)) else { break };
            bytes -= piece.bytes() as u64;
            pieces.push(piece);
        }
        pieces
    }

    /// At most `most` of the next ranges, in order, without taking them.
    pub(crate) fn peek(&self, most: usize) -> impl Iterator<Item = B> {
        self.reversed.iter().rev().take(most).copied()
    }

    /// Nothing is left.
    pub(crate) fn is_done(&self) -> bool {
        self.reversed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_used_up_in_order_and_skips_empty_ranges() {
        let bytes: Vec<u8> = (0..10).collect();
        let list = [&bytes[0..3], &bytes[3..3], &bytes[3..10]].map(SourceBuf::from);
        let mut run = Run::new(list);
        assert_eq!(run.peek(9).map(SourceBuf::len).collect::<Vec<_>>(), [3, 7]);
        assert_eq!((run.front_bytes(), run.bytes()), (3, 10));
        assert_eq!(run.take(5).iter().map(|piece| piece.len()).collect::<Vec<_>>(), [3, 2]);
        assert_eq!(run.next_piece(2).map(|piece| piece.as_ptr()), Some(&raw const bytes[5]));
        assert_eq!(run.take(99).iter().map(|piece| piece.len()).collect::<Vec<_>>(), [3]);
        assert!(run.is_done());
        assert!(run.next_piece(1).is_none());
    }
}
