//! The result of a chaos run: one row per fault.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::fault::Fault;
use crate::show::Table;

/// What was seen under one fault, over all its rounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) rounds: u64,
    /// Recorded calls.
    pub(crate) calls: u64,
    /// Calls that ended with a typed error or unconfirmed, inside their deadlines.
    pub(crate) errors: u64,
    /// Calls that ended long after their deadline.
    pub(crate) late: u64,
    /// Reads that returned bytes which were never stored so.
    pub(crate) wrong: u64,
    /// Keys whose object disappeared although it was protected.
    pub(crate) lost: u64,
    /// Keys that returned a value which was deleted or replaced.
    pub(crate) resurrected: u64,
    /// Keys whose history could not be decided.
    pub(crate) undecided: u64,
    /// Time from the end of the fault until every key and every server answered, the longest of all rounds.
    pub(crate) recovery: Duration,
    /// Rounds that did not recover in time.
    pub(crate) stuck: u64,
    /// Why the fault was not tried.
    pub(crate) not_done: Option<String>,
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) seed: u64,
    pub(crate) seconds: f64,
    pub(crate) rows: BTreeMap<Fault, Row>,
    /// Descriptions of what went wrong.
    pub(crate) violations: Vec<String>,
    /// Whether the memory of every node outlives its process.
    pub(crate) keeps_memory: bool,
}

impl Row {
    fn is_correct(&self) -> bool {
        self.late + self.wrong + self.lost + self.resurrected + self.undecided + self.stuck == 0
    }
}

impl Outcome {
    /// Whether every promise was kept.
    pub(crate) fn is_correct(&self) -> bool {
        self.violations.is_empty() && self.rows.values().all(Row::is_correct)
    }

    /// For JSON output.
    pub(crate) fn json(&self) -> Value {
        let rows = self.rows.iter().map(|(fault, row)| {
            json!({
                "fault": fault.name(),
                "rounds": row.rounds,
                "calls": row.calls,
                "errors": row.errors,
                "late": row.late,
                "wrong_bytes": row.wrong,
                "lost": row.lost,
                "resurrected": row.resurrected,
                "undecided": row.undecided,
                "stuck": row.stuck,
                "recovery_ms": row.recovery.as_millis() as u64,
                "not_done": row.not_done,
            })
        });
        json!({
            "seed": self.seed,
            "seconds": self.seconds,
            "keeps_memory": self.keeps_memory,
            "faults": rows.collect::<Vec<_>>(),
            "violations": self.violations,
        })
    }

    const HEAD: [&str; 9] = [
        "fault",
        "rounds",
        "calls",
        "errors in time",
        "late",
        "wrong bytes",
        "lost",
        "resurrected",
        "recovery",
    ];

    fn cells(fault: Fault, row: &Row) -> [String; 9] {
        let recovery = match (&row.not_done, row.stuck) {
            (Some(_), _) => "not done".to_owned(),
            (None, 0) => format!("{:.1} s", row.recovery.as_secs_f64()),
            (None, _) => "never".to_owned(),
        };
        [
            fault.describe().to_owned(),
            row.rounds.to_string(),
            row.calls.to_string(),
            row.errors.to_string(),
            row.late.to_string(),
            row.wrong.to_string(),
            row.lost.to_string(),
            row.resurrected.to_string(),
            recovery,
        ]
    }

    /// For text output.
    pub(crate) fn table(&self) -> String {
        let mut table = Table::new(&Self::HEAD);
        for (fault, row) in &self.rows {
            table.row(Self::cells(*fault, row));
        }
        table.to_string()
    }

    /// For documents.
    pub(crate) fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |", cells.join(" | "));
        let head = line(&Self::HEAD.map(ToOwned::to_owned));
        let rule = line(&Self::HEAD.map(|_| "---".to_owned())).replace(' ', "");
        let rows = self.rows.iter().map(|(fault, row)| line(&Self::cells(*fault, row)));
        let count: u64 = self.rows.values().map(|it| it.rounds).sum();
        let memory = if self.keeps_memory { "keep" } else { "do not keep" };
        let (seconds, seed) = (self.seconds, self.seed);
        let about =
            format!("\n{count} rounds in {seconds:.0} s, seed {seed}; killed nodes {memory} their memory.");
        [head, rule].into_iter().chain(rows).chain([about]).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_broken_promise_is_a_failure() {
        let outcome =
            |row: Row| Outcome { rows: BTreeMap::from([(Fault::MasterKilled, row)]), ..Outcome::default() };
        assert!(outcome(Row { calls: 9, errors: 9, rounds: 1, ..Row::default() }).is_correct());
        assert!(outcome(Row { not_done: Some("no".to_owned()), ..Row::default() }).is_correct());
        for row in [
            Row { late: 1, ..Row::default() },
            Row { wrong: 1, ..Row::default() },
            Row { lost: 1, ..Row::default() },
            Row { resurrected: 1, ..Row::default() },
            Row { undecided: 1, ..Row::default() },
            Row { stuck: 1, ..Row::default() },
        ] {
            assert!(!outcome(row.clone()).is_correct(), "{row:?}");
        }
        let violations = vec!["x".to_owned()];
        assert!(!Outcome { violations, ..Outcome::default() }.is_correct());
    }

    #[test]
    fn table_has_a_row_per_fault() {
        let row = Row { rounds: 2, recovery: Duration::from_millis(1234), ..Row::default() };
        let rows = BTreeMap::from([(Fault::MasterKilled, row)]);
        let outcome = Outcome { rows, ..Outcome::default() };
        let text = outcome.markdown();
        assert!(text.contains("\n|---|---|"), "{text}");
        assert!(
            text.contains("| master killed, restarted | 2 | 0 | 0 | 0 | 0 | 0 | 0 | 1.2 s |\n"),
            "{text}"
        );
        let about = "2 rounds in 0 s, seed 0; killed nodes do not keep their memory.";
        assert_eq!(text.lines().last(), Some(about));
        assert!(outcome.table().contains("master killed, restarted"));
    }
}
