//! Coverage: cases that the simulation must reach, because a case that never occurs is not tested.

use std::collections::BTreeMap;

/// The cases that must occur in a thousand seeds.
const CASES: &[&str] = &[
    "ready from device",
    "ready from host",
    "ready from store",
    "ready from nothing",
    "probe",
    "fetch",
    "load",
    "loading",
    "loaded less than expected",
    "save",
    "backup",
    "drop",
    "joined a fetch",
    "stopped prefetch late",
    "must recompute",
    "retracted for space",
    "retracted for loss",
    "retracted for redefinition",
    "refused",
    "grant",
    "finished",
    "aborted",
    "abort in Submitted",
    "abort in Prefetching",
    "abort in Waiting",
    "abort in Loading",
    "abort in Prefilling",
    "abort in Decoding",
    "abort in Draining",
    "abort in WritingBack",
    "retract in Loading",
    "retract in Prefilling",
    "retract in Decoding",
    "cancel hint",
    "ack lost",
    "ack repeated",
    "ack late",
    "partial result",
    "failure on one rank",
    "vanished silently",
    "vanished store",
    "vanished host",
    "vanished device",
    "stuck past its deadline",
    "cleared",
    "defined anew",
    "pressure",
    "restart with a warm store",
    "began with a warm store",
    "evicted device",
    "evicted host",
    "quarantined page",
    "computed what another had",
    "save skipped",
    "written back for room",
    "left unsaved",
    "drop failed",
    "ranks disagreed",
    "generated a full page",
    "media",
    "ended too long",
];

/// How often each case occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage(BTreeMap<&'static str, u64>);

impl Coverage {
    pub(crate) fn hit(&mut self, case: &'static str) {
        *self.0.entry(case).or_default() += 1;
    }

    pub(crate) fn hit_if(&mut self, happened: bool, case: &'static str) {
        if happened {
            self.hit(case);
        }
    }
}

impl tiffin_sim_runner::CoverageCounts for Coverage {
    fn add(&mut self, other: &Self) {
        for (case, count) in &other.0 {
            *self.0.entry(case).or_default() += count;
        }
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        self.0.iter().map(|(case, count)| (*case, *count)).collect()
    }

    fn missing(&self) -> Vec<&'static str> {
        CASES.iter().copied().filter(|case| !self.0.contains_key(case)).collect()
    }
}
