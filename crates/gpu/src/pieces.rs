//! Lists of copies between device and host memory: merged where both sides are adjacent.

/// One copy between device and host memory. Its direction is that of the transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Address in device memory.
    pub device: u64,
    /// Address in host memory.
    pub host: u64,
    /// Number of bytes.
    pub len: u64,
}

impl Piece {
    /// The first `len` bytes and the rest; all of them and nothing if there are fewer.
    #[must_use]
    pub fn split_at(self, len: u64) -> (Self, Self) {
        let len = len.min(self.len);
        let rest = Self { device: self.device + len, host: self.host + len, len: self.len - len };
        (Self { len, ..self }, rest)
    }
}

/// Sorts by host address, merges copies that are adjacent on both sides, and removes empty ones. Copies of
/// one transfer do not overlap, so that their order is free.
#[must_use]
pub fn merged(mut pieces: Vec<Piece>) -> Vec<Piece> {
    pieces.retain(|it| it.len > 0);
    if !pieces.is_sorted_by_key(|it| it.host) {
        pieces.sort_by_key(|it| it.host);
    }
    pieces.dedup_by(|next, last| {
        let is_adjacent = last.host + last.len == next.host && last.device + last.len == next.device;
        if is_adjacent {
            last.len += next.len;
        }
        is_adjacent
    });
    pieces
}

/// Number of contiguous ranges on the host's side of a sorted list.
#[must_use]
pub fn host_runs(pieces: &[Piece]) -> usize {
    let breaks = pieces.iter().zip(pieces.iter().skip(1)).filter(|(a, b)| a.host + a.len != b.host).count();
    if pieces.is_empty() { 0 } else { breaks + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(list: &[(u64, u64, u64)]) -> Vec<Piece> {
        list.iter().map(|&(device, host, len)| Piece { device, host, len }).collect()
    }

    #[test]
    fn adjacent_copies_are_merged_and_sorted() {
        let list = pieces(&[(1000, 50, 10), (0, 0, 10), (10, 10, 5), (99, 15, 0), (40, 15, 5), (45, 20, 5)]);
        let merged = merged(list);
        assert_eq!(merged, pieces(&[(0, 0, 15), (40, 15, 10), (1000, 50, 10)]));
        assert_eq!(host_runs(&merged), 2);
        assert_eq!(host_runs(&[]), 0);
    }
}
