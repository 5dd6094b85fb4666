//! Deadlines of waiting operations, the next one first. An event costs only the operations whose deadline
//! has passed, however many wait.
//!
//! **Invariant:** every operation that waits is listed for its deadline, or for an earlier time. An entry
//! of an operation that has ended, or a second entry for an earlier time, costs one lookup without effect.

use std::collections::BTreeSet;

use super::OpId;
use crate::Tick;

/// Maximum number of operations whose deadlines one event ends. The others follow as pieces of work.
const DUE_MAX: usize = 256;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    listed: BTreeSet<(Tick, OpId)>,
}

impl Deadlines {
    /// Lists an operation for that time.
    pub(super) fn list(&mut self, at: Tick, op: OpId) {
        self.listed.insert((at, op));
    }

    /// Removes the entry of an operation that has ended.
    pub(super) fn strike(&mut self, at: Tick, op: OpId) {
        self.listed.remove(&(at, op));
    }

    /// Removes and returns the operations that are due, at most [`DUE_MAX`].
    pub(super) fn take_due(&mut self, now: Tick) -> Vec<OpId> {
        let mut due = Vec::new();
        while due.len() < DUE_MAX
            && let Some((_, op)) = self.listed.first().copied().filter(|(at, _)| *at <= now)
        {
            self.listed.pop_first();
            due.push(op);
        }
        due
    }

    /// Whether an operation is due.
    pub(super) fn has_due(&self, now: Tick) -> bool {
        self.next().is_some_and(|at| at <= now)
    }

    /// When the next operation is due.
    pub(super) fn next(&self) -> Option<Tick> {
        self.listed.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_operations_are_taken_once_and_in_order() {
        let mut deadlines = Deadlines::default();
        assert_eq!((deadlines.next(), deadlines.take_due(Tick(9))), (None, vec![]));
        for (at, op) in [(5, 1), (3, 2), (7, 3), (3, 4), (3, 4), (4, 5)] {
            deadlines.list(Tick(at), OpId(op));
        }
        deadlines.strike(Tick(4), OpId(5));
        deadlines.strike(Tick(4), OpId(1));
        assert_eq!(deadlines.next(), Some(Tick(3)));
        assert_eq!(deadlines.take_due(Tick(2)), []);
        assert_eq!(deadlines.take_due(Tick(5)), [OpId(2), OpId(4), OpId(1)]);
        assert_eq!((deadlines.take_due(Tick(5)), deadlines.next()), (vec![], Some(Tick(7))));
    }

    #[test]
    fn one_event_takes_a_bounded_number_of_operations() {
        let mut deadlines = Deadlines::default();
        (0..=DUE_MAX as u64).for_each(|op| deadlines.list(Tick(1), OpId(op)));
        assert!(deadlines.has_due(Tick(1)) && !deadlines.has_due(Tick(0)));
        assert_eq!(deadlines.take_due(Tick(1)).len(), DUE_MAX);
        assert!(deadlines.has_due(Tick(1)));
        assert_eq!((deadlines.take_due(Tick(1)).len(), deadlines.has_due(Tick(1))), (1, false));
    }
}
