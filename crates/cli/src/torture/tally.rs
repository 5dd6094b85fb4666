//! The counters of a torture run, and their output.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::show::Table;

/// Counts of a worker since its last report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Objects copied through shared memory and verified.
    pub(crate) shared_memory: u64,
    /// The same through sockets.
    pub(crate) tcp: u64,
    /// Parts of objects, copied either way and verified.
    pub(crate) ranges: u64,
    /// Objects viewed in place and verified.
    pub(crate) views: u64,
    /// Of these, those that were verified again when the view ended.
    pub(crate) views_again: u64,
    /// Copies that were stale and were retried.
    pub(crate) retried: u64,
    /// Reads that gave up because the object was replaced repeatedly.
    pub(crate) gave_up: u64,
    /// Reads of absent keys.
    pub(crate) absent: u64,
    /// Calls that failed because of a dead node.
    pub(crate) unavailable: u64,
    /// Objects stored.
    pub(crate) puts: u64,
    /// Puts that found no space.
    pub(crate) full: u64,
    /// Objects removed by force.
    pub(crate) deletes: u64,
    /// Removals and puts after which the key was read at once with the expected result.
    pub(crate) confirmed: u64,
    /// Descriptions of errors.
    pub(crate) wrong: Vec<String>,
}

impl Tally {
    /// Number of verified reads.
    pub(crate) fn reads(&self) -> u64 {
        self.shared_memory + self.tcp + self.ranges + self.views + self.views_again
    }

    /// Adds the counts of another tally.
    pub(crate) fn add(&mut self, more: Self) {
        for (sum, more) in [
            (&mut self.shared_memory, more.shared_memory),
            (&mut self.tcp, more.tcp),
            (&mut self.ranges, more.ranges),
            (&mut self.views, more.views),
            (&mut self.views_again, more.views_again),
            (&mut self.retried, more.retried),
            (&mut self.gave_up, more.gave_up),
            (&mut self.absent, more.absent),
            (&mut self.unavailable, more.unavailable),
            (&mut self.puts, more.puts),
            (&mut self.full, more.full),
            (&mut self.deletes, more.deletes),
            (&mut self.confirmed, more.confirmed),
        ] {
            *sum += more;
        }
        self.wrong.extend(more.wrong);
    }
}

/// Numbers of killed and stopped processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Kills {
    pub(crate) readers: u64,
    pub(crate) writers: u64,
    pub(crate) nodes: u64,
    pub(crate) stalls: u64,
}

/// The memory after all workers have stopped, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct MemoryCheck {
    /// Objects that can be listed.
    pub(crate) objects: u64,
    /// Memory that their copies need.
    pub(crate) live: u64,
    /// Memory that the nodes report as in use.
    pub(crate) in_use: u64,
    /// Memory still reserved by writers.
    pub(crate) reserved: u64,
    /// Memory of removed objects with open views.
    pub(crate) in_view: u64,
    /// Memory not free after all objects were removed.
    pub(crate) left: u64,
}

impl MemoryCheck {
    /// Whether every byte is accounted for.
    pub(crate) fn is_exact(&self) -> bool {
        self.live == self.in_use && [self.reserved, self.in_view, self.left] == [0; 3]
    }
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) seed: u64,
    pub(crate) seconds: f64,
    pub(crate) tally: Tally,
    pub(crate) kills: Kills,
    pub(crate) evicted: u64,
    pub(crate) rest: MemoryCheck,
}

impl Outcome {
    /// Whether there was no error.
    pub(crate) fn is_correct(&self) -> bool {
        self.tally.wrong.is_empty() && self.rest.is_exact()
    }

    /// For JSON output.
    pub(crate) fn json(&self) -> Value {
        let Self { seed, seconds, tally, kills, evicted, rest } = self;
        json!({
            "seed": seed,
            "seconds": seconds,
            "reads": {
                "shared_memory": tally.shared_memory,
                "tcp": tally.tcp,
                "ranges": tally.ranges,
                "views": tally.views,
                "views_again": tally.views_again,
                "absent": tally.absent,
                "unavailable": tally.unavailable,
            },
            "races": { "retried": tally.retried, "gave_up": tally.gave_up },
            "writes": {
                "puts": tally.puts,
                "full": tally.full,
                "deletes": tally.deletes,
                "confirmed": tally.confirmed,
                "evicted": evicted,
            },
            "wrong": tally.wrong,
            "kills": kills,
            "rest": rest,
        })
    }

    /// For text output.
    pub(crate) fn table(&self) -> String {
        let Self { tally, kills, rest, .. } = self;
        let mut table = Table::new(&["what", "count"]);
        for (what, count) in [
            ("reads through shared memory", tally.shared_memory),
            ("reads through sockets", tally.tcp),
            ("reads of a range, either way", tally.ranges),
            ("views in place", tally.views),
            ("views compared again when they ended", tally.views_again),
            ("races lost and retried", tally.retried),
            ("reads given up after many races", tally.gave_up),
            ("reads of absent keys", tally.absent),
            ("calls that failed because of a dead node", tally.unavailable),
            ("puts", tally.puts),
            ("puts without space", tally.full),
            ("forced removals", tally.deletes),
            ("puts and removals verified at once", tally.confirmed),
            ("evictions", self.evicted),
            ("readers killed", kills.readers),
            ("writers killed", kills.writers),
            ("nodes killed", kills.nodes),
            ("readers and writers stopped and continued", kills.stalls),
            ("objects at rest", rest.objects),
            ("their bytes", rest.live),
            ("bytes in use at rest", rest.in_use),
            ("bytes reserved at rest", rest.reserved),
            ("bytes in view at rest", rest.in_view),
            ("bytes left after removing all", rest.left),
            ("wrong bytes", tally.wrong.len() as u64),
        ] {
            table.row([what.to_owned(), count.to_string()]);
        }
        table.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tallies_round_trip_and_add_up() {
        let one = Tally { tcp: 1, views: 2, wrong: vec!["x".to_owned()], ..Tally::default() };
        let text = serde_json::to_string(&one).unwrap();
        let mut sum: Tally = serde_json::from_str(&text).unwrap();
        sum.add(one);
        assert_eq!((sum.reads(), sum.wrong.len()), (6, 2));
    }

    #[test]
    fn wrong_or_missing_bytes_are_a_failure() {
        assert!(Outcome::default().is_correct());
        let wrong = Tally { wrong: vec!["x".to_owned()], ..Tally::default() };
        assert!(!Outcome { tally: wrong, ..Outcome::default() }.is_correct());
        for rest in [
            MemoryCheck { in_use: 64, ..MemoryCheck::default() },
            MemoryCheck { live: 64, ..MemoryCheck::default() },
            MemoryCheck { reserved: 64, ..MemoryCheck::default() },
            MemoryCheck { in_view: 64, ..MemoryCheck::default() },
            MemoryCheck { left: 64, ..MemoryCheck::default() },
        ] {
            assert!(!Outcome { rest, ..Outcome::default() }.is_correct(), "{rest:?}");
        }
    }
}
