//! Mutations of valid inputs: flipped bits, cut and doubled ranges, parts of other inputs, and large numbers
//! where a length may be.

/// The largest input that mutations make.
const INPUT_BYTES_MAX: usize = 64 << 10;

/// Numbers that decoders tend to mistake.
const NUMBERS: [u64; 10] =
    [0, 1, 0x7f, 0xff, 0xffff, 1 << 31, u32::MAX as u64, 1 << 40, i64::MAX as u64, u64::MAX];

/// Texts that decoders tend to mistake.
const TEXTS: [&[u8]; 16] = [
    b"",
    b"-1",
    b"18446744073709551616",
    b"1e999",
    b"[",
    b"{",
    b"\"",
    b"\0",
    b"\xc3\xa9",
    b"\xff",
    b"%",
    b"%e",
    b"=",
    b"\r\n",
    b"..",
    b"99999999999d",
];

/// Makes inputs from seeds.
pub struct Mutator<'a> {
    seeds: &'a [Vec<u8>],
    random: u64,
}

impl<'a> Mutator<'a> {
    /// For the decoder of this name. There must be a seed.
    #[must_use]
    pub fn new(name: &str, seeds: &'a [Vec<u8>]) -> Self {
        // FNV-1a: each decoder gets its own inputs, the same in every run.
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        Self { seeds, random: name.bytes().fold(0xcbf2_9ce4_8422_2325, mix) }
    }

    /// The next input.
    pub fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.seed().to_vec();
        for _ in 0..1 + self.below(4) {
            self.mutate(&mut input);
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    fn mutate(&mut self, input: &mut Vec<u8>) {
        let (start, end) = self.range(input.len());
        match self.below(9) {
            0 => {
                if let Some(byte) = input.get_mut(start) {
                    *byte ^= 1 << self.below(8);
                }
            }
            1 => {
                let value = self.next();
                if let Some(byte) = input.get_mut(start) {
                    *byte = value as u8;
                }
            }
            2 => input.truncate(start),
            3 => drop(input.drain(start..end)),
            4 => {
                let twice = input.get(start..end).unwrap_or_default().to_vec();
                drop(input.splice(start..start, twice));
            }
            5 => {
                let other = self.seed();
                let (first, last) = self.range(other.len());
                let part = other.get(first..last).unwrap_or_default().to_vec();
                drop(input.splice(start..end, part));
            }
            6 => {
                let text = *self.pick(&TEXTS);
                drop(input.splice(start..end.min(start + 3), text.iter().copied()));
            }
            7 => {
                // A varint of any size, where one may be.
                let mut number = *self.pick(&NUMBERS) ^ self.below(4);
                let mut bytes = Vec::new();
                while number >= 0x80 {
                    bytes.push(number as u8 | 0x80);
                    number >>= 7;
                }
                bytes.push(number as u8);
                drop(input.splice(start..end.min(start + 1), bytes));
            }
            _ => {
                // A number with a fixed size, in either order of bytes, mostly aligned.
                let number = *self.pick(&NUMBERS) ^ self.below(4);
                let size = *self.pick(&[1_usize, 2, 4, 8]);
                let at = if self.below(4) > 0 { start / size * size } else { start };
                let little = number.to_le_bytes();
                let bytes = little.get(..size).unwrap_or_default().iter().copied();
                let bytes: Vec<_> = if self.below(4) > 0 { bytes.collect() } else { bytes.rev().collect() };
                for (place, byte) in input.iter_mut().skip(at).zip(bytes) {
                    *place = byte;
                }
            }
        }
    }

    fn seed(&mut self) -> &'a [u8] {
        let at = self.below(self.seeds.len() as u64) as usize;
        self.seeds.get(at).map_or(&[], Vec::as_slice)
    }

    fn pick<'b, T>(&mut self, list: &'b [T]) -> &'b T {
        let at = self.below(list.len() as u64) as usize;
        list.get(at).unwrap_or_else(|| unreachable!("the list has {} items", list.len()))
    }

    /// A range of `len` bytes, mostly short.
    fn range(&mut self, len: usize) -> (usize, usize) {
        let start = self.below(len as u64 + 1) as usize;
        let most = if self.below(2) == 0 { 8 } else { len };
        (start, (start + self.below(most as u64 + 1) as usize).min(len))
    }

    fn below(&mut self, most: u64) -> u64 {
        self.next() % most.max(1)
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}
