//! Which way the bytes of a transfer take. The figures behind the limits are in `docs/gpu.md`.

use crate::settings::Load;

/// Up to this number of copies, one call each is quicker than preparing a list.
const FEW_PIECES: usize = 4;
/// From this mean size on, the copy engine is as fast as a kernel.
const LARGE_BYTES: u64 = 256 << 10;
/// From this mean size on, one call per copy is enough.
const HUGE_BYTES: u64 = 1 << 20;
/// Memory for pages pays if it divides the number of copies at least by that.
const STAGED_FACTOR: usize = 4;

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the device to the host.
    Save,
    /// From the host to the device.
    Load,
}

/// The copies of one transfer, adjacent ones merged. The host's side is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The direction.
    pub direction: Direction,
    /// Number of copies.
    pub pieces: usize,
    /// Number of contiguous ranges on the host's side.
    pub host_runs: usize,
    /// Number of bytes.
    pub bytes: u64,
}

/// What driver and device offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// One call for many copies.
    pub batch: bool,
    /// The copy kernel.
    pub kernel: bool,
    /// Device memory for pages.
    pub pages: bool,
}

/// The way of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The copy engine, one call per copy.
    Engine,
    /// The copy engine, one call for all copies.
    Batch,
    /// A kernel with few blocks that accesses host memory.
    Kernel,
    /// By way of device memory in which the pages follow each other: the copy engine between there and the
    /// host, and a kernel on the device.
    Staged,
}

/// The way of a transfer. `load` must not be [`Load::Auto`]: the caller decides that first.
#[must_use]
pub fn choose(shape: Shape, load: Load, can: Abilities) -> Way {
    let mean = shape.bytes / (shape.pieces.max(1) as u64);
    let engine = if can.batch { Way::Batch } else { Way::Engine };
    // A kernel that writes to host memory takes 40 % of the speed of other work, one that reads it 4 to 9 %.
    let may_use_kernel = can.kernel && (shape.direction == Direction::Load || load == Load::Idle);
    if shape.pieces <= FEW_PIECES || (mean >= HUGE_BYTES && !can.batch) {
        return Way::Engine;
    }
    if mean >= LARGE_BYTES && can.batch {
        return Way::Batch;
    }
    let is_few_runs = shape.host_runs.saturating_mul(STAGED_FACTOR) <= shape.pieces;
    if load == Load::Busy && is_few_runs && can.kernel && can.pages {
        return Way::Staged;
    }
    if may_use_kernel { Way::Kernel } else { engine }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Abilities = Abilities { batch: true, kernel: true, pages: true };
    const OLD: Abilities = Abilities { batch: false, ..ALL };
    const BARE: Abilities = Abilities { batch: false, kernel: false, pages: false };

    #[test]
    fn ways_follow_the_measured_figures() {
        use Direction::{Load as In, Save};
        use Load::{Busy, Idle};
        let kib = 1 << 10;
        // Direction, number and size of pieces, contiguous ranges on the host, load, abilities, way.
        for (direction, pieces, size, host_runs, load, can, way) in [
            (Save, 1, 16 << 20, 1, Busy, ALL, Way::Engine),
            (In, 1, 100, 1, Idle, ALL, Way::Engine),
            (Save, 4, 4 * kib, 4, Busy, ALL, Way::Engine),
            (In, 2048, 4 * kib, 1, Busy, ALL, Way::Staged),
            (In, 2048, 4 * kib, 2048, Idle, ALL, Way::Kernel),
            (In, 2048, 64 * kib, 2048, Busy, ALL, Way::Kernel),
            (In, 2048, 64 * kib, 512, Busy, ALL, Way::Staged),
            (In, 2048, 64 * kib, 513, Busy, ALL, Way::Kernel),
            (In, 2048, 64 * kib, 1, Idle, ALL, Way::Kernel),
            (In, 2048, 4 * kib, 1, Busy, Abilities { pages: false, ..ALL }, Way::Kernel),
            (In, 512, 256 * kib, 512, Busy, ALL, Way::Batch),
            (In, 512, 256 * kib, 512, Busy, OLD, Way::Kernel),
            (In, 512, kib * kib, 512, Busy, OLD, Way::Engine),
            (In, 2048, 4 * kib, 1, Busy, BARE, Way::Engine),
            (Save, 2048, 4 * kib, 1, Idle, ALL, Way::Kernel),
            (Save, 2048, 4 * kib, 1, Busy, ALL, Way::Staged),
            (Save, 2048, 64 * kib, 512, Busy, ALL, Way::Staged),
            (Save, 2048, 64 * kib, 513, Busy, ALL, Way::Batch),
            (Save, 2048, 64 * kib, 2048, Busy, ALL, Way::Batch),
            (Save, 2048, 64 * kib, 2048, Busy, OLD, Way::Engine),
            (Save, 2048, 16 * kib, 1, Busy, Abilities { pages: false, ..ALL }, Way::Batch),
            (Save, 512, 256 * kib, 1, Idle, ALL, Way::Batch),
            (Save, 512, kib * kib, 1, Idle, OLD, Way::Engine),
            (Save, 2048, 4 * kib, 1, Busy, BARE, Way::Engine),
        ] {
            let shape = Shape { direction, pieces, host_runs, bytes: pieces as u64 * size };
            assert_eq!(choose(shape, load, can), way, "{shape:?} {load:?} {can:?}");
        }
        let nothing = Shape { direction: Save, pieces: 0, host_runs: 0, bytes: 0 };
        assert_eq!(choose(nothing, Busy, ALL), Way::Engine);
    }
}
