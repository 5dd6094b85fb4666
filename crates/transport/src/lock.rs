//! Locks by which the kernel says that a process still maps the memory of a pool.
//!
//! A lock of an *open file description* lasts until the last descriptor and the last mapping of that
//! description are gone. The node opens the data file anew for each client, takes a shared lock on the byte
//! whose number is the client's id, and passes the descriptor on. The client does nothing: the lock ends with
//! its process, or when it has unmapped the memory, and cannot be mistaken for that of another process. A
//! node that is started again asks the kernel which locks exist.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};

/// Maximum number of locks that are listed: more clients than can be attached.
const HOLDERS_MAX: usize = 1 << 16;

/// Opens the same file once more, as another open file description.
pub(crate) fn reopen(file: BorrowedFd<'_>, flags: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(open(path, flags | OFlags::CLOEXEC, Mode::empty())?)
}

/// Takes a client's lock, for as long as this open file description exists.
pub(crate) fn hold(file: BorrowedFd<'_>, client: u64) -> io::Result<()> {
    let at = i64::try_from(client).ok().filter(|at| *at < i64::MAX);
    let at = at.ok_or_else(|| io::Error::other("the client's id is too large for a memory pool"))?;
    let mut lock = range(libc::F_RDLCK, at, 1);
    call(file, libc::F_OFD_SETLK, &mut lock)
}

/// Whether another open file description has this client's lock.
pub(crate) fn is_held(file: BorrowedFd<'_>, client: u64) -> io::Result<bool> {
    let Ok(at) = i64::try_from(client) else { return Ok(false) };
    Ok(find(file, at, 1)?.is_some())
}

/// The clients whose locks other open file descriptions have.
pub(crate) fn holders(file: BorrowedFd<'_>) -> io::Result<Vec<u64>> {
    let (mut ranges, mut found) = (vec![(0, i64::MAX)], Vec::new());
    // The kernel names one lock of a range, not necessarily the first: the rest lies before and after it.
    while let Some((start, end)) = ranges.pop().filter(|_| found.len() < HOLDERS_MAX) {
        if let Some(at) = find(file, start, end - start)? {
            found.push(at.cast_unsigned());
            ranges.extend([(start, at), (at + 1, end)].into_iter().filter(|(start, end)| start < end));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// The first byte of one lock in a range.
fn find(file: BorrowedFd<'_>, start: i64, len: i64) -> io::Result<Option<i64>> {
    let mut lock = range(libc::F_WRLCK, start, len);
    call(file, libc::F_OFD_GETLK, &mut lock)?;
    let is_free = libc::c_int::from(lock.l_type) == libc::F_UNLCK;
    Ok((!is_free).then_some(lock.l_start))
}

fn range(kind: libc::c_int, start: i64, len: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

fn call(file: BorrowedFd<'_>, command: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: both commands take a pointer to one lock, which they read and write.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(lock)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::Extent;
    use crate::map::{Access, Map};

    fn file() -> OwnedFd {
        let file = memfd_create("locks", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4096).unwrap();
        file
    }

    #[test]
    fn every_lock_is_listed_once() {
        let file = file();
        assert!(holders(file.as_fd()).unwrap().is_empty());
        let clients = [0, 1, 2, 3, 77, 1 << 40, (1 << 63) - 2];
        let held = clients.iter().chain(&[77]).map(|&client| {
            let description = reopen(file.as_fd(), OFlags::RDWR).unwrap();
            hold(description.as_fd(), client).unwrap();
            description
        });
        let held: Vec<_> = held.collect();
        assert_eq!(holders(file.as_fd()).unwrap(), clients);
        assert!(is_held(file.as_fd(), 77).unwrap() && !is_held(file.as_fd(), 78).unwrap());
        assert!(!is_held(file.as_fd(), u64::MAX).unwrap());
        drop(held);
        assert!(holders(file.as_fd()).unwrap().is_empty());
        let description = reopen(file.as_fd(), OFlags::RDWR).unwrap();
        for client in [(1 << 63) - 1, 1 << 63, u64::MAX] {
            assert!(hold(description.as_fd(), client).is_err(), "{client}");
        }
    }

    #[test]
    fn lock_lasts_as_long_as_a_mapping() {
        let file = file();
        let description = reopen(file.as_fd(), OFlags::RDWR).unwrap();
        hold(description.as_fd(), 5).unwrap();
        let map = Map::new(description.as_fd(), 4096, Access::ReadWrite).unwrap();
        drop(description);
        assert_eq!(holders(file.as_fd()).unwrap(), [5], "the memory is still mapped");
        assert!(map.source(Extent { offset: 0, len: 1 }).is_some());
        drop(map);
        assert!(holders(file.as_fd()).unwrap().is_empty());
    }
}
