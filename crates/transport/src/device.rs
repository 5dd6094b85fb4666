//! Copies between segments and the memory of devices.
//!
//! A device reads and writes the mapped segment itself where that is registered with its driver; other parts
//! go through pinned memory (see [`tiffin_gpu`]). The protocol of stamps is that of every copy: the slot is
//! checked before, the transfer completes, and the slot is checked again.
//!
//! **Invariant:** a future of this module that is dropped waits for the device first. Copies that have begun
//! depend on nothing but the device, so that this takes as long as a copy.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, SeekFrom, flock, fstat, seek};
use rustix::io::Errno;
use tiffin_gpu::{DeviceError, Direction, Piece, Place, Populated, Registration, Stage, Transfer};

use crate::buffer::{Buf, SourceBuf, TargetBuf};
use crate::copy::{copy, copy_raw};
use crate::forks::PrivateFile;
use crate::{Instant, Outcome, TransferError, lock};

/// How long a thread polls a transfer before it lets other tasks run.
const SPIN_TIME: Duration = Duration::from_micros(50);

/// The deadline of copies whose caller has one.
const FOR_EVER: Duration = Duration::from_secs(1 << 20);

/// A copy between ranges of the same length.
pub type Pair<'a> = (SourceBuf<'a>, TargetBuf<'a>);

/// The copies of one direction, device and stream.
struct Group {
    place: Place,
    direction: Direction,
    pieces: Vec<Piece>,
    /// The lists that they are from.
    lists: Vec<usize>,
}

/// Copies lists of pairs, of which some concern devices: one outcome for each list. Host memory is copied by
/// the processor. A pair of two devices is an error: segments are host memory.
pub async fn copy_lists(lists: &[Vec<Pair<'_>>], deadline: Instant) -> Vec<Outcome> {
    let mut outcomes = vec![Ok(()); lists.len()];
    for group in grouped(lists, &mut outcomes) {
        let Group { place, direction, pieces, lists } = group;
        // SAFETY: the ranges are mapped or allocated, as their types promise, for longer than this call.
        let begun = unsafe { Transfer::new(&place, direction, pieces, copy_raw) };
        let ended = match begun {
            Ok(transfer) => run(transfer, deadline).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = ended {
            lists.iter().for_each(|list| set_error(&mut outcomes, *list, &error));
        }
    }
    outcomes
}

/// The copies of devices, together where one transfer can do them. Those of host memory are done here.
fn grouped(lists: &[Vec<Pair<'_>>], outcomes: &mut [Outcome]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (number, list) in lists.iter().enumerate() {
        for (source, target) in list {
            let (place, direction) = match (source.place(), target.place()) {
                (None, None) => {
                    copy(*source, *target);
                    continue;
                }
                (Some(place), None) => (place, Direction::Save),
                (None, Some(place)) => (place, Direction::Load),
                (Some(first), Some(second)) => {
                    let error = DeviceError::TwoDevices { first: first.device(), second: second.device() };
                    set_error(outcomes, number, &error.into());
                    continue;
                }
            };
            let from = source.as_ptr().expose_provenance() as u64;
            let to = target.as_mut_ptr().expose_provenance() as u64;
            let (device, host) = if direction == Direction::Save { (from, to) } else { (to, from) };
            let piece = Piece { device, host, len: source.len() as u64 };
            let fits = |it: &&mut Group| it.place == *place && it.direction == direction;
            match groups.iter_mut().rev().find(fits) {
                Some(group) => {
                    group.pieces.push(piece);
                    if group.lists.last() != Some(&number) {
                        group.lists.push(number);
                    }
                }
                None => {
                    groups.push(Group { place: *place, direction, pieces: vec![piece], lists: vec![number] });
                }
            }
        }
    }
    groups
}

fn set_error(outcomes: &mut [Outcome], number: usize, error: &TransferError) {
    if let Some(outcome) = outcomes.get_mut(number).filter(|it| it.is_ok()) {
        *outcome = Err(error.clone());
    }
}

/// Runs a transfer to its end, or until the deadline.
async fn run(mut transfer: Transfer, deadline: Instant) -> Outcome {
    loop {
        if transfer.poll_for(SPIN_TIME)? {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(TransferError::Timeout);
        }
        tokio::task::yield_now().await;
    }
}

/// Whether some of the ranges are on a device.
pub(crate) fn has_device<B: Buf>(bufs: &[B]) -> bool {
    bufs.iter().any(|it| it.device().is_some())
}

/// A chunk of pinned memory for bytes that cross a socket. It waits for a free one; the caller has a
/// deadline.
pub(crate) async fn take_stage(device: u32) -> Result<Stage, TransferError> {
    loop {
        if let Some(stage) = Stage::take(device)? {
            return Ok(stage);
        }
        tokio::task::yield_now().await;
    }
}

/// The first `len` bytes of a chunk, to be filled.
///
/// # Panics
/// If the chunk is shorter: chunks of the data socket are never longer than those of pinned memory.
pub(crate) fn staged_target<'a>(stage: &Stage, len: u64) -> TargetBuf<'a> {
    assert!(len <= stage.bytes(), "{len} bytes in a chunk of {}", stage.bytes());
    let start = std::ptr::with_exposed_provenance_mut(stage.start() as usize);
    let Some(start) = NonNull::new(start) else { return TargetBuf::from(&mut [] as &mut [u8]) };
    // SAFETY: pinned memory stays mapped until the process ends, and others access it only by opaque copies.
    unsafe { TargetBuf::new(start, len as usize) }
}

/// Copies ranges, of which some are on a device, into one range of host memory. The caller has a deadline.
pub(crate) async fn gather(sources: &[SourceBuf<'_>], target: TargetBuf<'_>) -> Outcome {
    let (mut left, mut pairs) = (target, Vec::with_capacity(sources.len()));
    for source in sources {
        let (now, later) = left.split_at(source.len());
        left = later;
        pairs.push((source.split_at(now.len()).0, now));
    }
    copy_list(pairs).await
}

/// Copies a range of host memory into ranges, of which some are on a device. The caller has a deadline.
pub async fn scatter(source: SourceBuf<'_>, targets: &[TargetBuf<'_>]) -> Outcome {
    let (mut left, mut pairs) = (source, Vec::with_capacity(targets.len()));
    for target in targets {
        let (now, later) = left.split_at(target.len());
        left = later;
        pairs.push((now, target.split_at(now.len()).0));
    }
    copy_list(pairs).await
}

pub(crate) async fn copy_list(pairs: Vec<Pair<'_>>) -> Outcome {
    let deadline = Instant::now() + FOR_EVER;
    copy_lists(&[pairs], deadline).await.pop().unwrap_or(Ok(()))
}

/// A mapping's registration with the driver, made at the first transfer of a device.
#[derive(Debug, Default)]
pub(crate) struct Access {
    /// The mapped file.
    file: Option<PrivateFile>,
    registration: OnceLock<Registration>,
}

impl Access {
    /// For a mapping of this file.
    pub(crate) fn new(file: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self { file: Some(PrivateFile::clone_of(file)?), registration: OnceLock::new() })
    }

    /// A device is about to access the mapping: registers what is not registered yet, in the background.
    pub(crate) fn prepare(&self, start: u64, len: u64, is_read_only: bool, device: u32) {
        let Some(file) = &self.file else { return };
        let registration = self.registration.get_or_init(|| {
            let reopened = lock::reopen(file.as_fd(), OFlags::RDONLY);
            if let Err(error) = &reopened {
                tracing::warn!(%error, "devices cannot access the segment directly: opening it again failed");
            }
            let pages = Box::new(Pages { file: reopened.ok() });
            Registration::new(start, len, is_read_only, pages)
        });
        if registration.bytes() < len {
            registration.extend(device);
        }
    }

    /// Unregisters the mapping: called before it is unmapped.
    pub(crate) fn end(&mut self) {
        drop(self.registration.take());
    }
}

/// The pages of a memory file that exist.
///
/// A device would keep using a page that the node returns to the system and later allocates anew. So the
/// owner of a registration holds a shared lock of the file, and the node returns pages only while there is
/// no such lock.
struct Pages {
    /// An open file description of its own, which owns the lock.
    file: Option<OwnedFd>,
}

impl Populated for Pages {
    fn next(&self, offset: u64) -> Option<(u64, u64)> {
        let file = self.file.as_ref()?;
        // Where a kernel has no such locks, the node has none either, and returns no pages.
        if flock(file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK) {
            return None;
        }
        let (start, end) = match seek(file, SeekFrom::Data(offset)) {
            Ok(start) => (start, seek(file, SeekFrom::Hole(start)).ok()?),
            // There is no page after the offset.
            Err(Errno::NXIO) => return None,
            // The kernel cannot tell (gVisor): registering creates pages that do not exist.
            Err(_) => (offset, u64::try_from(fstat(file).ok()?.st_size).ok()?),
        };
        (start < end).then(|| (start, end - start))
    }
}

/// Runs `punch`, unless a process has registered pages of the file with a device.
pub(crate) fn unless_registered(file: BorrowedFd<'_>, punch: impl FnOnce()) {
    if flock(file, FlockOperation::NonBlockingLockExclusive).is_ok() {
        punch();
        let _unlocked = flock(file, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Extent;
    use crate::layout::Geometry;
    use crate::segment::NodeMemory;

    const MIB: u64 = 1 << 20;

    #[test]
    fn registered_pages_are_not_returned() {
        let geometry = Geometry { segment: 1, data_bytes: 4 * MIB, slot_count: 4, heap_bytes: 0 };
        let (memory, _writer) = NodeMemory::create(geometry).unwrap();
        let all = Extent { offset: 0, len: 4 * MIB };
        let present = || fstat(&memory.data_file).unwrap().st_blocks as u64 * 512;
        memory.data.populate(all).unwrap();
        assert_eq!(present(), 4 * MIB);

        // Two processes may register the same file.
        let registered = [(); 2].map(|()| {
            let pages = Pages { file: Some(lock::reopen(memory.data_file.as_fd(), OFlags::RDONLY).unwrap()) };
            assert_eq!(pages.next(0), Some((0, 4 * MIB)));
            assert_eq!(pages.next(4 * MIB), None);
            pages
        });
        memory.return_pages(all);
        assert_eq!(present(), 4 * MIB, "a device would keep the old page");
        drop(registered);
        memory.return_pages(Extent { offset: MIB, len: MIB });
        assert_eq!(present(), 3 * MIB);
        let pages = Pages { file: Some(lock::reopen(memory.data_file.as_fd(), OFlags::RDONLY).unwrap()) };
        assert_eq!((pages.next(0), pages.next(MIB)), (Some((0, MIB)), Some((2 * MIB, 2 * MIB))));
    }

    #[tokio::test]
    async fn device_memory_without_a_driver_is_an_error() {
        let (place, mut bytes) = (Place::new(0, tiffin_gpu::Stream::Legacy), [0; 8]);
        let start = NonNull::from(&mut bytes).cast();
        // SAFETY: nothing accesses the memory, because there is no driver.
        let source = unsafe { SourceBuf::on_device(start, 8, &place) };
        let mut target = [7; 8];
        let pairs = vec![(source, TargetBuf::from(&mut target[..]))];
        let outcomes = copy_lists(&[pairs, Vec::new()], Instant::now() + FOR_EVER).await;
        assert_eq!(outcomes, [Err(TransferError::Device(DeviceError::NoDriver)), Ok(())]);
    }
}
