//! Pages made present before somebody waits for them.
//!
//! Touching memory for the first time costs several times what a copy does: the kernel finds a page,
//! clears it, and enters it into the tables of the process. A node does that for its data segment, and a
//! client for its mappings of it, each in a thread of its own, a piece at a time, while nobody waits.
//!
//! A disk reads into memory, and writes from it, one contiguous run of it at a time, and its queue takes only
//! so many of them: 1 MiB is 256 runs in pages of 4 KiB, and one in a huge page. So the memory beside a disk
//! is put into huge pages, which takes about twice as long.
//!
//! **Invariant:** such a thread keeps no memory mapped: between two pieces it looks whether the mapping is
//! still wanted.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::fs::{SeekFrom, seek};

use crate::Extent;
use crate::map::Map;

/// How much is populated at a time. The lock on a process's mappings is held for as long as that takes.
const PIECE_BYTES: u64 = 4 << 20;

/// What pages memory is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Whatever the system gives.
    Any,
    /// Huge ones, where it can give them.
    Huge,
}

/// Makes all pages of a mapping present, and says so.
pub(crate) fn whole(map: &Arc<Map>, pages: Pages, done: impl FnOnce() + Send + 'static) {
    let all = Extent { offset: 0, len: map.len() };
    spawn(Arc::downgrade(map), move |map| {
        let is_whole = pieces(map, all, pages);
        done();
        is_whole
    });
}

/// Makes those pages of a mapping of this file present that exist already: others are not for us to make.
pub(crate) fn existing(map: &Arc<Map>, file: &OwnedFd) {
    let Ok(file) = file.try_clone() else { return };
    spawn(Arc::downgrade(map), move |map| {
        let mut at = 0;
        while let Some(extent) = next_data(&file, at) {
            if !pieces(map, extent, Pages::Any) {
                return false;
            }
            at = extent.offset + extent.len;
        }
        true
    });
}

/// The next run of pages that exist.
fn next_data(file: &impl AsFd, at: u64) -> Option<Extent> {
    // At the end, and in a file without holes in it behind the last, there is an error or the end.
    let offset = seek(file, SeekFrom::Data(at)).ok()?;
    let end = seek(file, SeekFrom::Hole(offset)).ok()?;
    (offset < end).then_some(Extent { offset, len: end - offset })
}

/// Populates a range; false if that is not wanted, or not possible, any more.
fn pieces(map: &Weak<Map>, extent: Extent, mut pages: Pages) -> bool {
    let mut done = 0;
    while done < extent.len {
        let Some(map) = map.upgrade() else { return false };
        let len = PIECE_BYTES.min(extent.len - done);
        // A kernel without that advice, or memory that has run out: then it is done when somebody needs it.
        let piece = Extent { offset: extent.offset + done, len };
        if let Err(error) = map.populate(piece) {
            tracing::debug!(%error, "memory is not populated ahead");
            return false;
        }
        if pages == Pages::Huge
            && let Err(error) = map.collapse(piece)
        {
            tracing::debug!(%error, "memory is left in small pages");
            // Of other errors the next piece knows nothing.
            pages = if error.kind() == io::ErrorKind::InvalidInput { Pages::Any } else { pages };
        }
        done += len;
    }
    true
}

fn spawn(map: Weak<Map>, work: impl FnOnce(&Weak<Map>) -> bool + Send + 'static) {
    let thread = std::thread::Builder::new().name("tiffin-populate".to_owned());
    let spawned = thread.spawn(move || {
        work(&map);
    });
    if let Err(error) = spawned {
        tracing::debug!(%error, "memory is not populated ahead");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Geometry;
    use crate::map::Access;
    use crate::segment::NodeMemory;

    #[test]
    fn populating_touches_no_byte_and_a_client_makes_no_page() {
        let data_bytes = 4 * PIECE_BYTES;
        let geometry = Geometry { segment: 1, data_bytes, slot_count: 4, heap_bytes: 0 };
        let (memory, _writer) = NodeMemory::create(geometry).unwrap();
        let pages = || -> u64 {
            let mut at = 0;
            std::iter::from_fn(|| {
                let found = next_data(&memory.data_file, at)?;
                at = found.offset + found.len;
                Some(found.len)
            })
            .sum()
        };
        assert_eq!(pages(), 0);
        let written = memory.data.target(Extent { offset: PIECE_BYTES + 5, len: 3 }).unwrap();
        crate::copy::copy_in(b"abc", written);
        let before = pages();
        assert!(0 < before && before < PIECE_BYTES);

        let client = Arc::new(Map::new(memory.data_file.as_fd(), data_bytes, Access::ReadOnly).unwrap());
        let found = next_data(&memory.data_file, 0).unwrap();
        assert!(pieces(&Arc::downgrade(&client), found, Pages::Any));
        assert_eq!(pages(), before);

        assert!(pieces(&Arc::downgrade(&memory.data), Extent { offset: 0, len: data_bytes }, Pages::Huge));
        assert_eq!(pages(), data_bytes);
        let mut bytes = [0; 5];
        crate::copy::copy_out(client.source(Extent { offset: PIECE_BYTES + 4, len: 5 }).unwrap(), &mut bytes);
        assert_eq!(&bytes, b"\0abc\0");

        let gone = Arc::downgrade(&client);
        drop(client);
        assert!(!pieces(&gone, found, Pages::Any), "nobody wants it any more");
    }
}
