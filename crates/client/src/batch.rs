//! Splits a call into messages that fit the limits, and repeats one error for all items.

use std::ops::Range;

use tiffin_types::{BATCH_ITEMS_MAX, BATCH_KEY_BYTES_MAX};

use crate::Error;

/// Maximum number of items per message: replies are larger than requests, and must fit as well. And the
/// master serves others between two messages.
const ITEMS_MAX: usize = 1 << 12;
const _: () = assert!(ITEMS_MAX <= BATCH_ITEMS_MAX / 4);

/// Splits a list of items with these keys into ranges that fit.
pub(crate) fn pieces<'a, K>(keys: impl IntoIterator<Item = &'a K>) -> Vec<Range<usize>>
where
    K: AsRef<[u8]> + ?Sized + 'a,
{
    let mut pieces = Vec::new();
    let (mut start, mut end, mut bytes) = (0, 0, 0);
    for key in keys {
        let more = key.as_ref().len();
        if end > start && (end - start == ITEMS_MAX || bytes + more > BATCH_KEY_BYTES_MAX) {
            pieces.push(start..end);
            (start, bytes) = (end, 0);
        }
        (end, bytes) = (end + 1, bytes + more);
    }
    if end > start {
        pieces.push(start..end);
    }
    pieces
}

/// The same failure for each of `count` items.
pub(crate) fn all<T>(count: usize, error: &Error) -> Vec<Result<T, Error>> {
    (0..count).map(|_| Err(error.clone())).collect()
}

#[cfg(test)]
mod tests {
    use tiffin_types::Key;

    use super::*;

    fn keys(lens: &[usize]) -> Vec<Key> {
        lens.iter().map(|&len| Key::new(&vec![b'k'; len]).unwrap()).collect()
    }

    #[test]
    fn pieces_cover_everything_once_and_fit() {
        const BIG: usize = tiffin_types::KEY_BYTES_MAX;
        for (lens, expected) in [
            (vec![], vec![]),
            (vec![1, 1], vec![(0, 2)]),
            (vec![BIG; 17], vec![(0, 16), (16, 17)]),
            (vec![1; ITEMS_MAX + 1], vec![(0, ITEMS_MAX), (ITEMS_MAX, ITEMS_MAX + 1)]),
        ] {
            let pieces = pieces(&keys(&lens)).into_iter().map(|piece| (piece.start, piece.end));
            assert_eq!(pieces.collect::<Vec<_>>(), expected);
        }
    }
}
