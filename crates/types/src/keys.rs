//! Many names in one buffer.
//!
//! A request about many objects needs their names once, and they are not kept. A separate [`Key`] for each
//! would cost one allocation on both sides, which is most of the cost of such a request.
//!
//! **Invariant:** every name is valid as a [`Key`]: neither empty nor longer than
//! [`KEY_BYTES_MAX`](crate::KEY_BYTES_MAX).

use std::fmt;

use crate::{Key, KeyError};

/// Names in order, in one buffer.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Keys {
    bytes: Vec<u8>,
    /// The end of each name.
    ends: Vec<usize>,
}

impl Keys {
    /// An empty list with capacity for `keys` names of `bytes` bytes in total.
    #[must_use]
    pub fn with_capacity(keys: usize, bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), ends: Vec::with_capacity(keys) }
    }

    /// Appends a name; fails if it is not a valid key.
    pub fn push(&mut self, name: &[u8]) -> Result<(), KeyError> {
        Key::check(name)?;
        self.add(name);
        Ok(())
    }

    /// Number of names.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no names.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Total length of the names.
    #[must_use]
    pub fn bytes_len(&self) -> usize {
        self.bytes.len()
    }

    /// The name at an index.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = index.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.bytes.get(start..end)
    }

    /// The names at these indices, in that order.
    #[must_use]
    pub fn pick(&self, places: &[usize]) -> Self {
        let names = || places.iter().filter_map(|&place| self.get(place));
        let mut picked = Self::with_capacity(places.len(), names().map(<[u8]>::len).sum());
        names().for_each(|name| picked.add(name));
        picked
    }

    /// All names, in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> + Clone {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let name = self.bytes.get(start..end).unwrap_or_default();
            start = end;
            name
        })
    }

    fn add(&mut self, name: &[u8]) {
        self.bytes.extend_from_slice(name);
        self.ends.push(self.bytes.len());
    }
}

impl<'a> FromIterator<&'a Key> for Keys {
    fn from_iter<T: IntoIterator<Item = &'a Key>>(keys: T) -> Self {
        let keys = keys.into_iter();
        let mut all = Self::with_capacity(keys.size_hint().0, 0);
        keys.for_each(|key| all.add(key.as_bytes()));
        all
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_list().entries(self.iter().map(|name| name.escape_ascii().to_string())).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KEY_BYTES_MAX;

    #[test]
    fn names_are_returned_in_order() {
        let mut keys = Keys::default();
        for name in [&b"a"[..], b"bcd", b"ef"] {
            keys.push(name).unwrap();
        }
        assert_eq!(keys.push(b""), Err(KeyError::Empty));
        assert_eq!(keys.push(&[7; KEY_BYTES_MAX + 1]), Err(KeyError::TooLong(KEY_BYTES_MAX + 1)));
        assert_eq!((keys.len(), keys.bytes_len(), keys.is_empty()), (3, 6, false));
        assert_eq!(keys.iter().collect::<Vec<_>>(), [&b"a"[..], b"bcd", b"ef"]);
        assert_eq!(keys.get(0), Some(&b"a"[..]));
        assert_eq!(keys.get(2), Some(&b"ef"[..]));
        assert_eq!(keys.get(3), None);
        assert_eq!(keys.pick(&[2, 0, 9]).iter().collect::<Vec<_>>(), [&b"ef"[..], b"a"]);
        let owned: Vec<_> = keys.iter().map(|name| Key::new(name).unwrap()).collect();
        assert_eq!(owned.iter().collect::<Keys>(), keys);
    }
}
