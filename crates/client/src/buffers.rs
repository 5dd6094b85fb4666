//! The memory that bytes land in, and the memory that is looked at where it lies: all `unsafe` of this crate.

use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::{Mutex, PoisonError};

use tiffin_transport::{MappedRange, TargetBuf};

use crate::get::{self, Landing};
use crate::inner::Inner;
use crate::{Deadline, Error, GetOptions, Key, Object};

/// Gets objects into fresh memory, which is filled once and not cleared before. Where a range is given, that
/// is all that is read.
pub(crate) async fn get_owned(
    inner: &Inner,
    keys: &[Key],
    ranges: Vec<Option<Range<u64>>>,
    options: GetOptions,
    deadline: Deadline,
) -> Vec<Result<Object, Error>> {
    let blocks = Blocks { items: keys.iter().map(|_| Mutex::default()).collect(), ranges };
    let outcomes = get::drive(inner, keys, &&blocks, options, deadline).await;
    let blocks =
        blocks.items.into_iter().map(|item| item.into_inner().unwrap_or_else(PoisonError::into_inner));
    let objects = outcomes.into_iter().zip(blocks).map(|(outcome, mut blocks)| {
        let fetched = outcome?;
        let mut bytes = blocks.pop().unwrap_or_default();
        let len = fetched.len as usize;
        assert!(len <= bytes.capacity(), "{len} bytes were read into {}", bytes.capacity());
        // SAFETY: the block has room for `len` bytes, and `drive` answers `Ok` only after a transport
        // filled the range that it got for this item last, which was those bytes of the last block.
        unsafe { bytes.set_len(len) };
        Ok(Object { generation: fetched.generation, bytes })
    });
    objects.collect()
}

/// Memory for objects whose size is not known before they are found. Blocks are only ever added while it is
/// borrowed, so a range in one stays valid.
struct Blocks {
    items: Vec<Mutex<Vec<Vec<u8>>>>,
    ranges: Vec<Option<Range<u64>>>,
}

impl<'a> Landing<'a> for &'a Blocks {
    fn land(&self, item: usize, len: u64) -> Option<Vec<TargetBuf<'a>>> {
        let len = usize::try_from(len).ok()?;
        let mut blocks = self.items.get(item)?.lock().unwrap_or_else(PoisonError::into_inner);
        // An object that is read again after it changed may have another size now.
        if blocks.last().is_none_or(|block| block.capacity() < len) {
            let mut block = Vec::new();
            block.try_reserve_exact(len).ok()?;
            blocks.push(block);
        }
        let start = NonNull::new(blocks.last_mut()?.as_mut_ptr())?;
        // SAFETY: the block has that much room, and lives unmoved as long as the borrow of `self`: its
        // vector's header may move when another block is added, its bytes do not. Nobody else touches them.
        Some(vec![unsafe { TargetBuf::new(start, len) }])
    }

    fn range(&self, item: usize) -> Option<Range<u64>> {
        self.ranges.get(item)?.clone()
    }
}

/// The bytes of a range that is held at its node; `None` in a forked child.
///
/// The hold is the caller's to keep for as long as the bytes are looked at: this is called only by a view,
/// which owns one.
pub(crate) fn held_bytes(range: &MappedRange) -> Option<&[u8]> {
    let source = range.source()?;
    // SAFETY: the range is mapped for as long as `range` lives, and while it is held at the node nobody
    // writes there: its space is neither given to another writer nor punched out.
    Some(unsafe { slice::from_raw_parts(source.as_ptr(), source.len()) })
}
