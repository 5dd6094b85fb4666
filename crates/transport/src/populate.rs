//! Populates pages before a transfer needs them.
//!
//! The first access to memory costs several times what a copy does: the kernel finds a page, clears it, and
//! maps it. A node populates its data segment, and a client its mappings of it, each in a thread of its own,
//! one piece at a time.
//!
//! A disk reads into and writes from contiguous runs of physical memory, and its queue takes a limited number
//! of them: 1 MiB is 256 runs in pages of 4 KiB, and one in a huge page. So a node with disks puts its memory
//! into huge pages, which takes about twice as long.
//!
//! **Invariant:** such a thread keeps no memory mapped: between two pieces it checks whether the mapping
//! still exists.

use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};

use rustix::fs::{SeekFrom, seek};

use crate::Extent;
use crate::forks::PrivateFile;
use crate::map::Map;

/// Bytes populated at a time. The kernel locks the process's mappings meanwhile.
const PIECE_BYTES: u64 = 4 << 20;

/// The preferred page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// The system's default.
    Any,
    /// Huge pages where possible.
    Huge,
}

/// Populates all pages of a mapping, then calls `done`.
pub(crate) fn whole(map: &Arc<Map>, pages: Pages, done: impl FnOnce() + Send + 'static) {
    let all = Extent { offset: 0, len: map.len() };
    spawn(Arc::downgrade(map), move |map| {
        let is_whole = pieces(map, all, pages);
        done();
        is_whole
    });
}

/// Populates those pages of a mapping that exist in the file already; only the node creates pages.
pub(crate) fn existing(map: &Arc<Map>, file: &PrivateFile) {
    let Ok(file) = PrivateFile::clone_of(file.as_fd()) else { return };
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

/// The next range of existing pages.
fn next_data(file: &impl AsFd, at: u64) -> Option<Extent> {
    // At the end of the file the seek fails.
    let offset = seek(file, SeekFrom::Data(at)).ok()?;
    let end = seek(file, SeekFrom::Hole(offset)).ok()?;
    (offset < end).then_some(Extent { offset, len: end - offset })
}

/// Populates a range; false if the mapping is gone or the kernel failed.
fn pieces(map: &Weak<Map>, extent: Extent, mut pages: Pages) -> bool {
    let mut done = 0;
    while done < extent.len {
        let Some(map) = map.upgrade() else { return false };
        let len = PIECE_BYTES.min(extent.len - done);
        // If the kernel lacks the advice, or memory has run out, pages are populated on first access.
        let piece = Extent { offset: extent.offset + done, len };
        if let Err(error) = map.populate(piece) {
            tracing::debug!(%error, "memory is not populated ahead");
            return false;
        }
        if pages == Pages::Huge
            && let Err(error) = map.collapse(piece)
        {
            tracing::debug!(%error, "memory is left in small pages");
            // After other errors the next piece may succeed.
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
    fn populating_changes_no_byte_and_clients_add_no_page() {
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
        assert!(!pieces(&gone, found, Pages::Any), "the mapping is gone");
    }
}
