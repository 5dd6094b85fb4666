//! A slab of indexed entries. Indexes are reused. Entries never move, so an insertion costs the same with a
//! thousand entries as with ten million.

/// Number of entries that are allocated at a time.
const CHUNK: usize = 1 << 13;

/// See the module.
#[derive(Debug)]
pub(super) struct Slab<T> {
    chunks: Vec<Vec<Option<T>>>,
    unused: Vec<u32>,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Self {
        Self { chunks: Vec::new(), unused: Vec::new() }
    }

    /// All indexes that are or were in use are below this.
    pub(super) fn bound(&self) -> usize {
        match self.chunks.last() {
            Some(last) => (self.chunks.len() - 1) * CHUNK + last.len(),
            None => 0,
        }
    }

    pub(super) fn get(&self, index: u32) -> Option<&T> {
        self.chunks.get(index as usize / CHUNK)?.get(index as usize % CHUNK)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.chunks.get_mut(index as usize / CHUNK)?.get_mut(index as usize % CHUNK)?.as_mut()
    }

    /// Adds an entry, and returns its index.
    pub(super) fn insert(&mut self, thing: T) -> u32 {
        if let Some(index) = self.unused.pop() {
            let chunk = self.chunks.get_mut(index as usize / CHUNK);
            if let Some(place) = chunk.and_then(|it| it.get_mut(index as usize % CHUNK)) {
                *place = Some(thing);
            }
            return index;
        }
        let index = self.bound() as u32;
        match self.chunks.last_mut().filter(|it| it.len() < CHUNK) {
            Some(chunk) => chunk.push(Some(thing)),
            None => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(Some(thing));
                self.chunks.push(chunk);
            }
        }
        index
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, index: u32) -> Option<T> {
        let chunk = self.chunks.get_mut(index as usize / CHUNK)?;
        let thing = chunk.get_mut(index as usize % CHUNK)?.take()?;
        self.unused.push(index);
        Some(thing)
    }

    /// The entries with an index in that range, in order.
    pub(super) fn range(&self, numbers: std::ops::Range<usize>) -> impl Iterator<Item = (u32, &T)> {
        numbers.filter_map(|number| Some((number as u32, self.get(number as u32)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_reused_and_entries_do_not_move() {
        let mut slab = Slab::new();
        let count = CHUNK as u32 + 3;
        assert!((0..count).all(|it| slab.insert(it) == it));
        assert_eq!(slab.remove(CHUNK as u32), Some(CHUNK as u32));
        assert_eq!(slab.remove(CHUNK as u32), None);
        assert_eq!(slab.insert(7), CHUNK as u32);
        assert_eq!(slab.bound(), count as usize);
        let last: Vec<_> = slab.range(CHUNK - 1..count as usize).map(|(number, &it)| (number, it)).collect();
        let first = CHUNK as u32;
        assert_eq!(
            last,
            [(first - 1, first - 1), (first, 7), (first + 1, first + 1), (first + 2, first + 2)]
        );
    }
}
