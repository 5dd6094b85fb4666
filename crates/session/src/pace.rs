//! How fast nodes answer reads: when to read a second copy, and which nodes to use last.
//!
//! A node that hangs keeps its connection, so a reader that waits for an error waits until its deadline. A
//! client therefore measures how long each node takes from a request to its first byte. When nothing has
//! arrived for a small multiple of that, the read is *stalled*: the session reads another copy as well, and
//! the node counts as slow for a pause. Slow nodes are used last. After the pause one get may use the node
//! as usual, as a probe; if its read stalls again, the pause doubles.
//!
//! **Invariant:** at most [`PACES_MAX`] nodes are remembered. Nothing here decides whether bytes are valid:
//! a wrong estimate costs a request, never a wrong result.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_types::{
    SegmentId,
    mutant::{Mutant, is_mutant},
};

/// Maximum number of nodes whose latency is remembered; beyond that the least recently read one is
/// forgotten.
pub const PACES_MAX: usize = 1024;
/// The shortest time without a byte after which a read is stalled: processors are busy for longer than
/// networks.
pub const STALL_US_MIN: u64 = 20_000;
/// The longest such time.
pub const STALL_US_MAX: u64 = 1_000_000;
/// The same for a node that was never read: the client may have to connect first.
const STALL_US_UNKNOWN: u64 = 100_000;
/// A read is stalled after this multiple of the usual latency.
const USUAL_TIMES: u64 = 4;
/// A read is stalled at the latest after the remaining time divided by this.
const DEADLINE_PARTS: u64 = 4;
/// How long a node is used last, at first and at most.
const PAUSE_US_MIN: u64 = 1_000_000;
/// See [`PAUSE_US_MIN`].
const PAUSE_US_MAX: u64 = 30_000_000;

/// The latencies of the nodes, as one client measured them.
#[derive(Debug)]
pub struct Pace {
    nodes: BTreeMap<SegmentId, NodePace>,
    /// Nodes that did not answer in time.
    slow: BTreeMap<SegmentId, Slow>,
    mutant: Mutant,
}

#[derive(Clone, Copy, Debug, Default)]
struct NodePace {
    /// Mean and mean deviation of the time to the first byte, weighted towards recent reads.
    latency: Option<(u64, u64)>,
    /// When it was last read.
    used_us: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slow {
    /// Until then it is used last.
    until_us: u64,
    pause_us: u64,
    /// A read that began after the pause has not been answered yet.
    is_probed: bool,
}

impl Pace {
    /// No node is known yet.
    #[must_use]
    pub fn new(mutant: Mutant) -> Self {
        Self { nodes: BTreeMap::new(), slow: BTreeMap::new(), mutant }
    }

    /// How long a read of that node may go without a byte, if `left_us` are left until its deadline.
    #[must_use]
    pub fn stall_us(&self, segment: SegmentId, left_us: u64) -> u64 {
        if is_mutant!(self.mutant, NeverHedge) {
            return u64::MAX;
        }
        let usual = self.nodes.get(&segment).and_then(|it| it.latency);
        let wait = usual.map_or(STALL_US_UNKNOWN, |(mean, deviation)| {
            mean.saturating_add(2 * deviation).saturating_mul(USUAL_TIMES)
        });
        wait.clamp(STALL_US_MIN, STALL_US_MAX).min(left_us / DEADLINE_PARTS)
    }

    /// A read begins. A read of a slow node after its pause is a probe: other reads avoid the node
    /// meanwhile.
    pub fn begins(&mut self, segment: SegmentId, now_us: u64) {
        if let Some(it) = self.nodes.get_mut(&segment) {
            it.used_us = now_us;
        }
        if let Some(slow) = self.slow.get_mut(&segment).filter(|it| it.until_us <= now_us) {
            (slow.until_us, slow.is_probed) = (now_us.saturating_add(slow.pause_us), true);
        }
    }

    /// The first byte of a read arrived after `took_us`. `is_late`: it was stalled before.
    pub fn answered(&mut self, segment: SegmentId, took_us: u64, is_late: bool, now_us: u64) {
        let took_us = took_us.min(STALL_US_MAX);
        let it = self.node(segment, now_us);
        let (mean, deviation) = it.latency.unwrap_or((took_us, took_us / 2));
        let off = mean.abs_diff(took_us);
        it.latency = Some(((7 * mean + took_us) / 8, (3 * deviation + off) / 4));
        if !is_late {
            self.slow.remove(&segment);
        }
    }

    /// A read of that node is stalled. Returns how long the node is used last, if it was not slow before.
    pub fn stalled(&mut self, segment: SegmentId, now_us: u64) -> Option<u64> {
        self.node(segment, now_us);
        let pause_us = match self.slow.get(&segment) {
            // Reads that began together stall together.
            Some(slow) if now_us < slow.until_us && !slow.is_probed => return None,
            Some(slow) => (2 * slow.pause_us).min(PAUSE_US_MAX),
            None => PAUSE_US_MIN,
        };
        let until_us = now_us.saturating_add(pause_us);
        let before = self.slow.insert(segment, Slow { until_us, pause_us, is_probed: false });
        before.is_none().then_some(pause_us)
    }

    /// The nodes to use last now.
    #[must_use]
    pub fn avoided(&self, now_us: u64) -> BTreeSet<SegmentId> {
        if is_mutant!(self.mutant, AskTheSlow) {
            return BTreeSet::new();
        }
        self.slow(now_us)
    }

    /// The nodes that are slow now.
    #[must_use]
    pub fn slow(&self, now_us: u64) -> BTreeSet<SegmentId> {
        let is_slow = |it: &Slow| now_us < it.until_us;
        self.slow.iter().filter(|(_, it)| is_slow(it)).map(|(segment, _)| *segment).collect()
    }

    /// Whether any node has not answered in time, and has not answered in time since.
    #[must_use]
    pub fn has_slow(&self) -> bool {
        !self.slow.is_empty()
    }

    fn node(&mut self, segment: SegmentId, now_us: u64) -> &mut NodePace {
        if self.nodes.len() >= PACES_MAX && !self.nodes.contains_key(&segment) {
            let oldest = self.nodes.iter().min_by_key(|(_, it)| it.used_us).map(|(segment, _)| *segment);
            if let Some(oldest) = oldest {
                self.nodes.remove(&oldest);
                self.slow.remove(&oldest);
            }
        }
        let it = self.nodes.entry(segment).or_default();
        it.used_us = now_us;
        it
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SegmentId = SegmentId(1);
    const B: SegmentId = SegmentId(2);
    const LONG: u64 = u64::MAX;

    fn pace() -> Pace {
        Pace::new(Mutant::None)
    }

    #[test]
    fn stall_time_follows_the_usual_latency() {
        let mut pace = pace();
        assert_eq!(pace.stall_us(A, LONG), STALL_US_UNKNOWN);
        (0..100).for_each(|at| pace.answered(A, 100, false, at));
        assert_eq!(pace.stall_us(A, LONG), STALL_US_MIN, "fast nodes get time for a busy processor");
        (0..100).for_each(|at| pace.answered(A, 50_000, false, at));
        let far = pace.stall_us(A, LONG);
        assert!((200_000..250_000).contains(&far), "{far}");
        (0..100).for_each(|at| pace.answered(A, 10_000_000, true, at));
        assert_eq!(pace.stall_us(A, LONG), STALL_US_MAX);
        assert_eq!(pace.stall_us(B, LONG), STALL_US_UNKNOWN, "another node is unknown");
    }

    #[test]
    fn stall_time_is_a_part_of_the_deadline() {
        let pace = pace();
        assert_eq!(pace.stall_us(A, 8_000), 2_000);
        assert_eq!(pace.stall_us(A, 0), 0);
    }

    #[test]
    fn slow_node_is_avoided_for_a_pause_that_doubles() {
        let mut pace = pace();
        assert_eq!(pace.stalled(A, 0), Some(PAUSE_US_MIN));
        assert_eq!(pace.stalled(A, 10), None, "reads that began together");
        assert_eq!(pace.avoided(PAUSE_US_MIN - 1), BTreeSet::from([A]));
        assert!(pace.avoided(PAUSE_US_MIN).is_empty(), "a probe may use it");
        let mut now = PAUSE_US_MIN;
        for pause in [2, 4, 8, 16, 30, 30] {
            pace.begins(A, now);
            assert_eq!(pace.avoided(now), BTreeSet::from([A]), "one probe at a time");
            now += STALL_US_UNKNOWN;
            assert_eq!(pace.stalled(A, now), None, "it was slow before");
            assert_eq!(pace.stalled(A, now + 1), None, "reads that began together");
            assert_eq!(pace.avoided(now + pause * 1_000_000 - 1), BTreeSet::from([A]));
            assert!(pace.avoided(now + pause * 1_000_000).is_empty());
            now += pause * 1_000_000;
        }
    }

    #[test]
    fn only_an_answer_in_time_ends_the_pause() {
        let mut pace = pace();
        pace.stalled(A, 0);
        pace.answered(A, 500_000, true, 500_000);
        assert_eq!(pace.avoided(600_000), BTreeSet::from([A]), "a late answer");
        pace.answered(A, 300, false, 600_000);
        assert!(pace.avoided(600_000).is_empty());
        assert_eq!(pace.stalled(A, 700_000), Some(PAUSE_US_MIN), "the pause starts from the minimum");
    }

    #[test]
    fn number_of_remembered_nodes_is_limited() {
        let mut pace = pace();
        for number in 0..=PACES_MAX as u64 {
            pace.answered(SegmentId(number), 50_000, false, number);
            assert_eq!(pace.nodes.len(), PACES_MAX.min(number as usize + 1));
        }
        assert_eq!(pace.stall_us(SegmentId(0), LONG), STALL_US_UNKNOWN, "the oldest was forgotten");
        assert!(pace.stall_us(SegmentId(1), LONG) > STALL_US_UNKNOWN);
    }
}
