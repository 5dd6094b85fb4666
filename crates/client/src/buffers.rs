//! Memory for objects that are read, and access to memory that is viewed in place. All `unsafe` of this
//! crate is here.

use std::ops::Range;
use std::ptr::NonNull;
use std::slice;
use std::sync::{Mutex, PoisonError};

use tiffin_transport::{MappedRange, TargetBuf};

use crate::get::{self, Landing};
use crate::inner::Inner;
use crate::{Deadline, Error, GetOptions, Key, Object};

/// Reads objects into new memory, which is filled once and not zeroed first. If an item has a range, only
/// that range is read.
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
        // SAFETY: the block has capacity for `len` bytes. `drive` returns `Ok` only after a transport
        // filled the range that it got last for this item: those bytes of the last block.
        unsafe { bytes.set_len(len) };
        Ok(Object { generation: fetched.generation, bytes })
    });
    objects.collect()
}

/// Memory for objects whose size is known only after they are found. While it is borrowed, blocks are only
/// added, so a range in a block stays valid.
struct Blocks {
    items: Vec<Mutex<Vec<Vec<u8>>>>,
    ranges: Vec<Option<Range<u64>>>,
}

impl<'a> Landing<'a> for &'a Blocks {
    fn land(&self, item: usize, len: u64) -> Option<Vec<TargetBuf<'a>>> {
        let len = usize::try_from(len).ok()?;
        let mut blocks = self.items.get(item)?.lock().unwrap_or_else(PoisonError::into_inner);
        // An object that is read again after a change may have another size.
        if blocks.last().is_none_or(|block| block.capacity() < len) {
            let mut block = Vec::new();
            block.try_reserve_exact(len).ok()?;
            blocks.push(block);
        }
        let start = NonNull::new(blocks.last_mut()?.as_mut_ptr())?;
        // SAFETY: the block has that capacity, and is not moved during the borrow of `self`: the
        // vector's header may move when another block is added, its bytes do not. Nothing else accesses
        // them.
        Some(vec![unsafe { TargetBuf::new(start, len) }])
    }

    fn range(&self, item: usize) -> Option<Range<u64>> {
        self.ranges.get(item)?.clone()
    }
}

/// The bytes of a range that is held at its node; `None` in a forked child.
///
/// The caller must hold a reference to the slot while it uses the bytes. The only caller is a view, which
/// owns one.
pub(crate) fn held_bytes(range: &MappedRange) -> Option<&[u8]> {
    let source = range.source()?;
    // SAFETY: the range is mapped while `range` exists. While it is held at the node, nothing writes
    // there: the node neither reuses the memory nor punches a hole.
    Some(unsafe { slice::from_raw_parts(source.as_ptr(), source.len()) })
}
