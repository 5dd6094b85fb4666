//! Approximate counts of recent uses, in little memory.

/// Number of rows. The smallest of an item's counters is the best estimate.
const ROWS: usize = 4;
/// Number of counters in a row.
const WIDTH: usize = 1 << 12;
/// Number of uses after which all counters are halved, so that old popularity fades.
const AGE: u32 = (WIDTH as u32) * 8;

/// A count-min sketch that ages.
#[derive(Debug)]
pub(super) struct Sketch {
    counters: Vec<u8>,
    uses: u32,
}

impl Default for Sketch {
    fn default() -> Self {
        Self { counters: vec![0; ROWS * WIDTH], uses: 0 }
    }
}

impl Sketch {
    /// Counts a use of the item with this hash, and returns its recent uses, this one included. Apart from
    /// ageing, the result is never too small.
    pub(super) fn count(&mut self, hash: u64) -> u8 {
        self.uses += 1;
        if self.uses >= AGE {
            self.uses = 0;
            self.counters.iter_mut().for_each(|it| *it /= 2);
        }
        let mut least = u8::MAX;
        for row in 0..ROWS {
            // Each row uses other bits of the hash.
            let place = (hash.rotate_right(row as u32 * 16) as usize) % WIDTH + row * WIDTH;
            if let Some(counter) = self.counters.get_mut(place) {
                *counter = counter.saturating_add(1);
                least = least.min(*counter);
            }
        }
        least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_are_counted_and_age() {
        let mut sketch = Sketch::default();
        let hash = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        assert_eq!((sketch.count(hash(1)), sketch.count(hash(1)), sketch.count(hash(2))), (1, 2, 1));
        (0..500).for_each(|_| _ = sketch.count(hash(3)));
        assert_eq!(sketch.count(hash(3)), u8::MAX);
        let before = sketch.count(hash(1));
        (0..AGE).for_each(|_| _ = sketch.count(hash(4)));
        assert!(sketch.count(hash(1)) < before + 1);
    }
}
