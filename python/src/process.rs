//! Values that belong to one process, in a program that may fork.
//!
//! A forked child has a copy of its parent's memory, but only the thread that forked. State that other
//! threads were using is unreliable: a lock may be held forever, sockets are shared, tasks do not run. A
//! child therefore neither uses nor drops inherited values. It *forgets* them, and makes its own.
//!
//! **Invariant:** the path of a child takes no lock that a thread of its parent may have held: it compares
//! process ids, allocates, and swaps a pointer. (The C library makes allocation safe after a fork.)
//!
//! **Invariant:** a value is never freed while it may be in use: it is dropped only together with its
//! [`PerProcess`], by the process that made it.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

/// The id of the current process. It is not cached, because a fork changes it.
pub(crate) fn current() -> u32 {
    tiffin_client::this_process()
}

/// One value for each process that uses it.
pub(crate) struct PerProcess<T> {
    newest: AtomicPtr<Entry<T>>,
}

struct Entry<T> {
    process: u32,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    /// No process has a value yet.
    pub(crate) const fn new() -> Self {
        Self { newest: AtomicPtr::new(ptr::null_mut()) }
    }

    /// The value of this process, if it has one.
    pub(crate) fn here(&self) -> Option<&T> {
        // SAFETY: an entry that was published is not freed before `self` is dropped.
        let entry = unsafe { self.newest.load(Ordering::Acquire).as_ref() }?;
        (entry.process == current()).then_some(&entry.value)
    }

    /// The inherited value of a forked child that has not made its own.
    pub(crate) fn inherited(&self) -> Option<&T> {
        // SAFETY: an entry that was published is not freed before `self` is dropped.
        let entry = unsafe { self.newest.load(Ordering::Acquire).as_ref() }?;
        (entry.process != current()).then_some(&entry.value)
    }

    /// The value of this process, made now if it has none. Several threads may make one at the same time;
    /// one of them is used, and the others are dropped.
    pub(crate) fn get_or_try<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        if let Some(value) = self.here() {
            return Ok(value);
        }
        let seen = self.newest.load(Ordering::Acquire);
        let entry = Box::into_raw(Box::new(Entry { process: current(), value: make()? }));
        match self.newest.compare_exchange(seen, entry, Ordering::AcqRel, Ordering::Acquire) {
            // A previous entry belongs to the parent: it is forgotten.
            // SAFETY: the entry was published just now, and is not freed before `self` is dropped.
            Ok(_) => Ok(unsafe { &(*entry).value }),
            Err(other) => {
                // SAFETY: this entry was not published, so no other thread knows it.
                drop(unsafe { Box::from_raw(entry) });
                // SAFETY: only a thread of this process can have published an entry meanwhile, and that is
                // not freed before `self` is dropped.
                Ok(unsafe { &(*other).value })
            }
        }
    }
}

impl<T> PerProcess<T> {
    /// A value that this process has already made.
    pub(crate) fn with(value: T) -> Self {
        Self { newest: AtomicPtr::new(Box::into_raw(Box::new(Entry { process: current(), value }))) }
    }

    /// Removes the value, if this process made it.
    pub(crate) fn take(&mut self) -> Option<T> {
        let entry = *self.newest.get_mut();
        // SAFETY: a published entry is valid, and `&mut self` excludes other users.
        let is_ours = unsafe { entry.as_ref() }.is_some_and(|entry| entry.process == current());
        is_ours.then(|| {
            *self.newest.get_mut() = ptr::null_mut();
            // SAFETY: as above, and no thread can find the entry any more.
            unsafe { Box::from_raw(entry) }.value
        })
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// The link target of an epoll instance in `/proc/self/fd`.
const EPOLL: &str = "anon_inode:[eventpoll]";

/// The epoll instance that watches the sockets of a runtime.
///
/// A child has inherited every socket of its parent. While the child has them open, peers do not see the
/// parent end, and so keep what is bound to a connection, such as a lease. A runtime does not list its
/// sockets, but the kernel does.
pub(crate) struct Poller {
    process: u32,
    /// Its descriptor; -1 if it is unknown, or no longer valid in this process.
    number: AtomicI32,
}

impl Poller {
    /// The instance that watches this socket.
    pub(crate) fn of(socket: &impl AsRawFd) -> Self {
        let number = AtomicI32::new(find_poller(socket.as_raw_fd()).unwrap_or(-1));
        Self { process: current(), number }
    }

    /// In a child, closes all sockets that the instance watches.
    pub(crate) fn close_inherited(&self) {
        if self.process == current() {
            return;
        }
        // This happens once: afterwards, and in a child of the child, the descriptors mean something else.
        for socket in watched_by(self.number.swap(-1, Ordering::SeqCst)) {
            // SAFETY: it is a socket of the parent's runtime, which a child neither uses nor drops, so that
            // the child's copy has no other owner.
            drop(unsafe { OwnedFd::from_raw_fd(socket) });
        }
    }
}

/// The sockets that an epoll instance watches. The kernel lists each with its descriptor at registration
/// and its inode; descriptors that now have another inode are skipped.
fn watched_by(poller: RawFd) -> Vec<RawFd> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{poller}")).unwrap_or_default();
    let watched = info.lines().filter_map(|line| {
        let number = line.strip_prefix("tfd:")?.split_whitespace().next()?.parse().ok()?;
        let inode = line.split_whitespace().find_map(|word| word.strip_prefix("ino:"))?;
        let inode = u64::from_str_radix(inode, 16).ok()?;
        (kind(number)? == format!("socket:[{inode}]")).then_some(number)
    });
    watched.collect()
}

fn find_poller(socket: RawFd) -> Option<RawFd> {
    let files = std::fs::read_dir("/proc/self/fd").ok()?;
    let mut numbers = files.filter_map(|it| it.ok()?.file_name().to_str()?.parse::<RawFd>().ok());
    numbers
        .find(|number| kind(*number).is_some_and(|it| it == EPOLL) && watched_by(*number).contains(&socket))
}

/// The link target of a descriptor in this process.
fn kind(number: RawFd) -> Option<String> {
    let target = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
    target.into_os_string().into_string().ok()
}

/// A value that is dropped only in the process that made it, and forgotten in its children.
pub(crate) struct Ours<T> {
    process: u32,
    value: ManuallyDrop<T>,
}

impl<T> Ours<T> {
    /// A value that this process has made.
    pub(crate) fn new(value: T) -> Self {
        Self { process: current(), value: ManuallyDrop::new(value) }
    }

    /// Whether this is the process that made it.
    pub(crate) fn is_here(&self) -> bool {
        self.process == current()
    }
}

impl<T> Deref for Ours<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for Ours<T> {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: it is dropped only here, once.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
