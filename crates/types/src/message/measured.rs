//! What clients and nodes report of their latencies.

/// The growth of one histogram of latency, by the numbers of operation and path. A receiver ignores numbers
/// that it does not know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// The number of the operation.
    pub operation: u32,
    /// The number of the path.
    pub path: u32,
    /// The number of durations in each bucket; buckets after the last are empty.
    pub counts: Vec<u64>,
    /// The sum of the durations, in microseconds.
    pub sum_us: u64,
    /// The bytes that were moved.
    pub bytes: u64,
}

impl From<tiffin_measure::Series> for Measured {
    fn from((operation, path, counts): tiffin_measure::Series) -> Self {
        let used = counts.counts.iter().rposition(|&it| it > 0).map_or(0, |it| it + 1);
        Self {
            operation: operation as u32,
            path: path as u32,
            counts: counts.counts.iter().take(used).copied().collect(),
            sum_us: counts.sum_us,
            bytes: counts.bytes,
        }
    }
}
