//! Memory in pages of one size, borrowed page by page.
//!
//! **Invariants.** The memory is mapped for as long as the [`Pages`] live. A page has at any time either one
//! [`PageWriteGuard`] or any number of [`PageReadGuard`]s. Its bytes are accessed only through [`SourceBuf`]
//! and [`TargetBuf`], so that the owner of borrowed memory may access it, too.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use tiffin_client::{SourceBuf, TargetBuf};

/// Alignment of allocated pages: system pages, which suit disks and network cards best.
const ALIGN: usize = 4096;
/// The use count of a page that is being written.
const WRITTEN: u32 = u32::MAX;

/// Contiguous memory in pages of one size.
pub struct Pages {
    start: NonNull<u8>,
    page_bytes: usize,
    uses: Uses,
    owner: Owner,
}

enum Owner {
    Owned(Layout),
    Borrowed(#[expect(dead_code, reason = "it is kept for its drop")] Box<dyn Send + Sync>),
}

// SAFETY: it is an address, and borrows are counted; the owner is `Send` and `Sync`.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Allocates zeroed memory; `None` if there is not enough.
    #[must_use]
    pub fn allocate(count: u32, page_bytes: usize) -> Option<Self> {
        let bytes = page_bytes.checked_mul(count as usize)?;
        let layout = Layout::from_size_align(bytes.max(1), ALIGN).ok()?;
        // SAFETY: the layout has at least one byte.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, page_bytes, uses: Uses::new(count), owner: Owner::Owned(layout) })
    }

    /// Uses memory of an owner, which keeps it alive and is dropped with these pages.
    ///
    /// # Safety
    /// `count * page_bytes` bytes from `start` on must be mapped, readable and writable, from any thread, for
    /// as long as `owner` lives. Others may access them meanwhile, through anything but a Rust reference or
    /// plain Rust access; the bytes are then unspecified.
    #[must_use]
    pub unsafe fn borrowed(
        start: NonNull<u8>,
        count: u32,
        page_bytes: usize,
        owner: Box<dyn Send + Sync>,
    ) -> Self {
        Self { start, page_bytes, uses: Uses::new(count), owner: Owner::Borrowed(owner) }
    }

    /// Number of pages.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.uses.count()
    }

    /// Bytes of each page.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Address of the memory, for stores that must register it.
    #[must_use]
    pub fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// Borrows a page to read; `None` if there is no such page, or it is being written.
    #[must_use]
    pub fn read(&self, page: u32) -> Option<PageReadGuard<'_>> {
        Some(PageReadGuard { pages: self, page, _use: self.uses.read(page)? })
    }

    /// Borrows a page to write; `None` if there is no such page, or it is in use.
    #[must_use]
    pub fn write(&self, page: u32) -> Option<PageWriteGuard<'_>> {
        Some(PageWriteGuard { pages: self, page, _use: self.uses.write(page)? })
    }

    /// Whether the page is in use.
    #[must_use]
    pub fn is_used(&self, page: u32) -> bool {
        self.uses.0.get(page as usize).is_some_and(|uses| uses.load(Ordering::Acquire) > 0)
    }

    fn source(&self, page: u32) -> SourceBuf<'_> {
        // SAFETY: the page is inside the memory, which is mapped for as long as `self` lives and is accessed
        // by Rust through such ranges only.
        unsafe { SourceBuf::new(self.start.add(page as usize * self.page_bytes), self.page_bytes) }
    }

    fn target(&self, page: u32) -> TargetBuf<'_> {
        // SAFETY: as above, and the memory is writable.
        unsafe { TargetBuf::new(self.start.add(page as usize * self.page_bytes), self.page_bytes) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        if let Owner::Owned(layout) = self.owner {
            // SAFETY: it was allocated with this layout, and every borrow of `self` has ended.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Pages({} of {} bytes)", self.count(), self.page_bytes)
    }
}

/// The use count of each page: zero, a number of readers, or [`WRITTEN`].
pub(crate) struct Uses(Box<[AtomicU32]>);

impl Uses {
    /// Of so many pages, of which none is in use.
    pub(crate) fn new(count: u32) -> Self {
        Self((0..count).map(|_| AtomicU32::new(0)).collect())
    }

    /// Number of pages.
    pub(crate) fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// Counts a reader of a page; `None` if there is no such page, or it is being written.
    pub(crate) fn read(&self, page: u32) -> Option<ReadUse<'_>> {
        let uses = self.0.get(page as usize)?;
        let more = |readers: u32| readers.checked_add(1).filter(|readers| *readers < WRITTEN);
        uses.try_update(Ordering::Acquire, Ordering::Relaxed, more).ok()?;
        Some(ReadUse(uses))
    }

    /// Marks a page as being written; `None` if there is no such page, or it is in use.
    pub(crate) fn write(&self, page: u32) -> Option<WriteUse<'_>> {
        let uses = self.0.get(page as usize)?;
        uses.compare_exchange(0, WRITTEN, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(WriteUse(uses))
    }
}

/// The use of a page by a reader, until it is dropped.
#[derive(Debug)]
pub(crate) struct ReadUse<'a>(&'a AtomicU32);

impl Drop for ReadUse<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// The use of a page by its only writer, until it is dropped.
#[derive(Debug)]
pub(crate) struct WriteUse<'a>(&'a AtomicU32);

impl Drop for WriteUse<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Read access to a page. It is not written meanwhile.
#[derive(Debug)]
pub struct PageReadGuard<'a> {
    pages: &'a Pages,
    page: u32,
    _use: ReadUse<'a>,
}

impl PageReadGuard<'_> {
    /// The number of the page.
    #[must_use]
    pub fn page(&self) -> u32 {
        self.page
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> SourceBuf<'_> {
        self.pages.source(self.page)
    }
}

/// Exclusive access to a page.
#[derive(Debug)]
pub struct PageWriteGuard<'a> {
    pages: &'a Pages,
    page: u32,
    _use: WriteUse<'a>,
}

impl PageWriteGuard<'_> {
    /// The number of the page.
    #[must_use]
    pub fn page(&self) -> u32 {
        self.page
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> TargetBuf<'_> {
        self.pages.target(self.page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiffin_transport::copy::{copy_in, copy_out};

    #[test]
    fn o2_page_has_one_writer_or_many_readers() {
        let pages = Pages::allocate(2, 8).unwrap();
        let writing = pages.write(0).unwrap();
        assert!(pages.write(0).is_none() && pages.read(0).is_none() && pages.is_used(0));
        copy_in(b"8 bytes.", writing.bytes());
        drop(writing);
        let (one, two) = (pages.read(0).unwrap(), pages.read(0).unwrap());
        assert!(pages.write(0).is_none());
        drop(one);
        assert!(pages.write(0).is_none(), "one reader is left");
        let mut bytes = [0; 8];
        copy_out(two.bytes(), &mut bytes);
        assert_eq!(&bytes, b"8 bytes.");
        drop(two);
        assert!(!pages.is_used(0) && pages.write(0).is_some());
        assert!(pages.write(2).is_none() && pages.read(2).is_none(), "invalid page");
    }

    #[test]
    fn owner_is_dropped_with_the_pages() {
        let owner = std::sync::Arc::new(());
        let memory: &'static mut [u8] = Box::leak(vec![0; 64].into_boxed_slice());
        // SAFETY: the memory is never freed.
        let pages = unsafe {
            Pages::borrowed(NonNull::from(memory).cast(), 4, 16, Box::new(std::sync::Arc::clone(&owner)))
        };
        assert_eq!((pages.count(), pages.page_bytes()), (4, 16));
        assert!(pages.write(3).is_some());
        drop(pages);
        assert_eq!(std::sync::Arc::strong_count(&owner), 1);
    }
}
