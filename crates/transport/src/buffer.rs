//! Ranges of memory that bytes are copied from and to.
//!
//! A [`SourceBuf`] or [`TargetBuf`] is a pointer and a length with a lifetime. Unlike a slice it does not
//! promise exclusive or immutable bytes: other threads of an interpreter may use a caller's array, and other
//! processes write into a segment. So the bytes are accessed only by the copy kernel, by the checksum and by
//! system calls, which are opaque to the compiler; a race gives unspecified bytes and no undefined behaviour.
//!
//! A range may also be memory of a device. Then it has a [`Place`], and only `device` accesses it.
//!
//! **Invariant:** the memory is mapped, or allocated on its device, for the whole lifetime of the range.

use std::marker::PhantomData;
use std::ptr::NonNull;

use tiffin_gpu::Place;

/// A range to read from.
#[derive(Clone, Copy, Debug)]
pub struct SourceBuf<'a> {
    start: NonNull<u8>,
    len: usize,
    place: Option<&'a Place>,
    memory: PhantomData<&'a [u8]>,
}

/// A range to write to.
#[derive(Clone, Copy, Debug)]
pub struct TargetBuf<'a> {
    start: NonNull<u8>,
    len: usize,
    place: Option<&'a Place>,
    memory: PhantomData<&'a mut [u8]>,
}

// SAFETY: a range is only an address; the contract of `new` allows its use from any thread.
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
        Self { start, len, place: None, memory: PhantomData }
    }

    /// The `len` bytes at `start` on a device.
    ///
    /// # Safety
    /// For all of `'a` those bytes must be allocated there, and free to use after the work that the place's
    /// stream has when a transfer begins.
    #[must_use]
    pub unsafe fn on_device(start: NonNull<u8>, len: usize, place: &'a Place) -> Self {
        Self { start, len, place: Some(place), memory: PhantomData }
    }

    /// The device that has the bytes; `None` for host memory.
    #[must_use]
    pub fn place(self) -> Option<&'a Place> {
        self.place
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    #[must_use]
    pub fn as_ptr(self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The first `at` bytes and the rest; all of them and nothing if there are fewer.
    #[must_use]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        let at = at.min(self.len);
        // SAFETY: `at` is at most `len`, so the sum stays inside the range or one past it.
        let rest = unsafe { self.start.add(at) };
        (Self { len: at, ..self }, Self { start: rest, len: self.len - at, ..self })
    }
}

impl<'a> From<&'a [u8]> for SourceBuf<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { start: NonNull::from(bytes).cast(), len: bytes.len(), place: None, memory: PhantomData }
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
        Self { start, len, place: None, memory: PhantomData }
    }

    /// The `len` bytes at `start` on a device.
    ///
    /// # Safety
    /// For all of `'a` those bytes must be allocated there, and free to use after the work that the place's
    /// stream has when a transfer begins.
    #[must_use]
    pub unsafe fn on_device(start: NonNull<u8>, len: usize, place: &'a Place) -> Self {
        Self { start, len, place: Some(place), memory: PhantomData }
    }

    /// The device that has the bytes; `None` for host memory.
    #[must_use]
    pub fn place(self) -> Option<&'a Place> {
        self.place
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Address of the first byte.
    #[must_use]
    pub fn as_mut_ptr(self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The first `at` bytes and the rest; all of them and nothing if there are fewer.
    #[must_use]
    pub fn split_at(self, at: usize) -> (Self, Self) {
        let at = at.min(self.len);
        // SAFETY: `at` is at most `len`, so the sum stays inside the range or one past it.
        let rest = unsafe { self.start.add(at) };
        (Self { len: at, ..self }, Self { start: rest, len: self.len - at, ..self })
    }

    /// The same bytes as a source.
    #[must_use]
    pub fn as_source(self) -> SourceBuf<'a> {
        SourceBuf { start: self.start, len: self.len, place: self.place, memory: PhantomData }
    }
}

impl<'a> From<&'a mut [u8]> for TargetBuf<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        let len = bytes.len();
        Self { start: NonNull::from(bytes).cast(), len, place: None, memory: PhantomData }
    }
}

/// Common interface of [`SourceBuf`] and [`TargetBuf`], for code that divides lists of them.
pub(crate) trait Buf: Copy {
    fn bytes(self) -> usize;
    /// The device that has the bytes.
    fn device(self) -> Option<u32>;
    /// The first `at` bytes and the rest.
    fn cut(self, at: usize) -> (Self, Self);
}

impl Buf for SourceBuf<'_> {
    fn bytes(self) -> usize {
        self.len
    }
    fn device(self) -> Option<u32> {
        self.place.map(Place::device)
    }
    fn cut(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }
}

impl Buf for TargetBuf<'_> {
    fn bytes(self) -> usize {
        self.len
    }
    fn device(self) -> Option<u32> {
        self.place.map(Place::device)
    }
    fn cut(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }
}

/// A list of ranges that is consumed from its front.
#[derive(Debug)]
pub(crate) struct Run<B> {
    /// In reverse order, so that the front can be popped; none is empty.
    reversed: Vec<B>,
}

impl<B: Buf> Run<B> {
    pub(crate) fn new(list: impl IntoIterator<Item = B, IntoIter: DoubleEndedIterator>) -> Self {
        Self { reversed: list.into_iter().rev().filter(|buf| buf.bytes() > 0).collect() }
    }

    /// The next contiguous piece of at most `most` bytes; `None` when all are consumed.
    pub(crate) fn next_piece(&mut self, most: usize) -> Option<B> {
        let front = self.reversed.pop()?;
        let (piece, rest) = front.cut(most);
        if rest.bytes() > 0 {
            self.reversed.push(rest);
        }
        Some(piece)
    }

    /// Number of bytes left.
    pub(crate) fn bytes(&self) -> usize {
        self.reversed.iter().fold(0, |sum, buf| sum.saturating_add(buf.bytes()))
    }

    /// Number of bytes of the first range.
    pub(crate) fn front_bytes(&self) -> usize {
        self.reversed.last().map_or(0, |buf| buf.bytes())
    }

    /// Consumes the next `bytes` as pieces; fewer if the list ends.
    pub(crate) fn take(&mut self, mut bytes: u64) -> Vec<B> {
        let mut pieces = Vec::new();
        while bytes > 0 {
            let Some(piece) = self.next_piece(usize::try_from(bytes).unwrap_or(usize::MAX)) else { break };
            bytes -= piece.bytes() as u64;
            pieces.push(piece);
        }
        pieces
    }

    /// At most `most` of the next ranges, in order, without consuming them.
    pub(crate) fn peek(&self, most: usize) -> impl Iterator<Item = B> {
        self.reversed.iter().rev().take(most).copied()
    }

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
