//! Descriptors that a forked child does not keep.
//!
//! A child inherits every descriptor, and with those of a node's memory the lock by which the kernel says
//! that the memory is in use ([`lock`](crate::lock)). A child cannot use them: its mappings are gone, and its
//! client fails. Without this module the memory would stay in use after the end of the parent, for as long as
//! the child runs.
//!
//! In the child each of them is replaced by `/dev/null`, so that its number is not used for another file
//! which an inherited owner would close.
//!
//! **Invariants:** a fork waits while a descriptor is opened or closed ([`Changing`]), so that every open one
//! is in the list. The handler in the child allocates nothing and takes no other lock: another thread of the
//! parent may have held it.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

/// A descriptor that forked children do not keep. Every descriptor of a client for a node's memory is one.
#[derive(Debug)]
pub(crate) struct PrivateFile<T = OwnedFd> {
    entry: InUse,
    file: ManuallyDrop<T>,
}

/// No process is forked while this exists: for a system call that opens or closes such a descriptor.
#[derive(Debug)]
pub(crate) struct Changing(());

static IS_CHANGING: AtomicBool = AtomicBool::new(false);

impl Changing {
    pub(crate) fn begin() -> Self {
        static HANDLERS: Once = Once::new();
        HANDLERS.call_once(|| {
            // SAFETY: the handlers are functions of this library, which is never unloaded. That of the child
            // calls only functions that are safe there.
            let error = unsafe {
                libc::pthread_atfork(Some(wait_for_changes), Some(end_change), Some(replace_inherited))
            };
            if error != 0 {
                tracing::warn!(error, "forked children will keep the memory of nodes in use");
            }
        });
        wait_for_changes();
        Self(())
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        end_change();
    }
}

/// Also runs before a fork.
extern "C" fn wait_for_changes() {
    while IS_CHANGING.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
}

/// Also runs in the parent after a fork.
extern "C" fn end_change() {
    IS_CHANGING.store(false, Ordering::Release);
}

/// An entry of the list, in use.
#[derive(Debug)]
struct InUse(&'static Entry);

/// Entries are never freed, but used again: there are as many as there were descriptors at a time.
#[derive(Debug)]
struct Entry {
    is_used: AtomicBool,
    /// The descriptor; -1 if there is none.
    file: AtomicI32,
    next: AtomicPtr<Entry>,
}

static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(ptr::null_mut());

impl<T: AsFd> PrivateFile<T> {
    /// A descriptor that was opened during the change.
    pub(crate) fn new(file: T, _change: &Changing) -> Self {
        let entry = entries().find(|it| !it.is_used.swap(true, Ordering::AcqRel)).unwrap_or_else(add_entry);
        entry.file.store(file.as_fd().as_raw_fd(), Ordering::Release);
        Self { entry: InUse(entry), file: ManuallyDrop::new(file) }
    }
}

impl PrivateFile {
    /// Another descriptor of the same open file.
    pub(crate) fn clone_of(file: BorrowedFd<'_>) -> io::Result<Self> {
        let change = Changing::begin();
        Ok(Self::new(file.try_clone_to_owned()?, &change))
    }
}

impl<T> Drop for PrivateFile<T> {
    fn drop(&mut self) {
        let _change = Changing::begin();
        self.entry.0.file.store(-1, Ordering::Release);
        // SAFETY: the file is not used any more, and dropped nowhere else.
        unsafe { ManuallyDrop::drop(&mut self.file) };
    }
}

impl<T: AsFd> AsFd for PrivateFile<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.is_used.store(false, Ordering::Release);
    }
}

/// A new entry, in use.
fn add_entry() -> &'static Entry {
    let file = AtomicI32::new(-1);
    let entry: &'static mut Entry =
        Box::leak(Box::new(Entry { is_used: AtomicBool::new(true), file, next: AtomicPtr::default() }));
    let pushed: *mut Entry = entry;
    let push = |head| {
        // SAFETY: the entry is never freed, and its fields are atomic.
        unsafe { &*pushed }.next.store(head, Ordering::Release);
        Some(pushed)
    };
    let _head = ENTRIES.fetch_update(Ordering::AcqRel, Ordering::Acquire, push);
    // SAFETY: as above.
    unsafe { &*pushed }
}

fn entries() -> impl Iterator<Item = &'static Entry> {
    // SAFETY: a pointer in the list is null, or to an entry that is never freed.
    let entry = |it: &AtomicPtr<Entry>| unsafe { it.load(Ordering::Acquire).as_ref() };
    std::iter::successors(entry(&ENTRIES), move |it| entry(&it.next))
}

/// Runs in a forked child, before any other code there.
extern "C" fn replace_inherited() {
    end_change();
    // SAFETY: the path is a valid string.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if null < 0 {
        return;
    }
    for entry in entries() {
        replace(null, entry.file.swap(-1, Ordering::AcqRel));
    }
    // SAFETY: it was opened above, and has no other owner.
    unsafe { libc::close(null) };
}

fn replace(null: RawFd, file: RawFd) {
    if file >= 0 {
        // SAFETY: the descriptor belongs to an attachment of the parent, which the child cannot use. Its
        // number stays open, so that the child's copy of the owner closes nothing else.
        unsafe { libc::dup3(null, file, libc::O_CLOEXEC) };
    }
}
