//! What is counted while a store is tortured, and how it is shown.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::show::Table;

/// What a worker has seen since it last told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Objects copied through shared memory and found right.
    pub(crate) shared_memory: u64,
    /// The same through sockets.
    pub(crate) tcp: u64,
    /// Parts of objects, copied either way and found right.
    pub(crate) ranges: u64,
    /// Objects looked at in place and found right.
    pub(crate) views: u64,
    /// Of these, those that were right once more when the view ended, after much else had happened.
    pub(crate) views_again: u64,
    /// Copies that turned out not to be true and were made again.
    pub(crate) retried: u64,
    /// Reads that gave up because the object was replaced again and again.
    pub(crate) gave_up: u64,
    /// Reads of what was not there.
    pub(crate) absent: u64,
    /// Calls that failed because a node was gone.
    pub(crate) unavailable: u64,
    /// Objects stored.
    pub(crate) puts: u64,
    /// Objects that found no room.
    pub(crate) full: u64,
    /// Objects removed by force.
    pub(crate) deletes: u64,
    /// Removals and puts after which the key was read at once and was as it should be.
    pub(crate) confirmed: u64,
    /// What was wrong, for people.
    pub(crate) wrong: Vec<String>,
}

impl Tally {
    /// Reads that were found right.
    pub(crate) fn reads(&self) -> u64 {
        self.shared_memory + self.tcp + self.ranges + self.views + self.views_again
    }

    /// Adds what another one says.
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

/// How often who was killed, and how often somebody was stopped for a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Kills {
    pub(crate) readers: u64,
    pub(crate) writers: u64,
    pub(crate) nodes: u64,
    pub(crate) stalls: u64,
}

/// The memory when nobody does anything any more, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Rest {
    /// Objects that can be listed.
    pub(crate) objects: u64,
    /// What their copies need.
    pub(crate) live: u64,
    /// What the nodes say is in use.
    pub(crate) in_use: u64,
    /// What is still reserved by writers.
    pub(crate) reserved: u64,
    /// What is gone, but still looked at.
    pub(crate) in_view: u64,
    /// What is not free when all objects are removed.
    pub(crate) left: u64,
}

impl Rest {
    /// Whether every byte is accounted for.
    pub(crate) fn is_exact(&self) -> bool {
        self.live == self.in_use && [self.reserved, self.in_view, self.left] == [0; 3]
    }
}

/// All there is to tell at the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) seed: u64,
    pub(crate) seconds: f64,
    pub(crate) tally: Tally,
    pub(crate) kills: Kills,
    pub(crate) evicted: u64,
    pub(crate) rest: Rest,
}

impl Outcome {
    /// Whether the store kept its promises.
    pub(crate) fn is_good(&self) -> bool {
        self.tally.wrong.is_empty() && self.rest.is_exact()
    }

    /// For programs.
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

    /// For people.
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
            ("reads of what was not there", tally.absent),
            ("calls that met a dead node", tally.unavailable),
            ("puts", tally.puts),
            ("puts without room", tally.full),
            ("forced removals", tally.deletes),
            ("puts and removals seen at once", tally.confirmed),
            ("evictions", self.evicted),
            ("readers killed", kills.readers),
            ("writers killed", kills.writers),
            ("nodes killed", kills.nodes),
            ("readers and writers stopped for a while", kills.stalls),
            ("objects at rest", rest.objects),
            ("their bytes", rest.live),
            ("bytes in use at rest", rest.in_use),
            ("bytes reserved at rest", rest.reserved),
            ("bytes in view at rest", rest.in_view),
            ("bytes left when all is removed", rest.left),
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
    fn tallies_travel_and_add_up() {
        let one = Tally { tcp: 1, views: 2, wrong: vec!["x".to_owned()], ..Tally::default() };
        let text = serde_json::to_string(&one).unwrap();
        let mut sum: Tally = serde_json::from_str(&text).unwrap();
        sum.add(one);
        assert_eq!((sum.reads(), sum.wrong.len()), (6, 2));
    }

    #[test]
    fn a_wrong_byte_or_a_lost_one_is_not_good() {
        assert!(Outcome::default().is_good());
        let wrong = Tally { wrong: vec!["x".to_owned()], ..Tally::default() };
        assert!(!Outcome { tally: wrong, ..Outcome::default() }.is_good());
        for rest in [
            Rest { in_use: 64, ..Rest::default() },
            Rest { live: 64, ..Rest::default() },
            Rest { reserved: 64, ..Rest::default() },
            Rest { in_view: 64, ..Rest::default() },
            Rest { left: 64, ..Rest::default() },
        ] {
            assert!(!Outcome { rest, ..Outcome::default() }.is_good(), "{rest:?}");
        }
    }
}
