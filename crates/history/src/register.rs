//! The state of one key, and what each call does to it.

use crate::{Change, Guard, Loss, Operation};

/// The state of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Register {
    /// The value, and whether it can be lost with one node.
    current: Option<(u64, bool)>,
    /// Earlier values that a reader with a cached location may still see, in increasing order.
    stale: Vec<u64>,
}

impl Register {
    /// The state after the call; `None` if the call cannot have had its outcome in this state.
    pub(crate) fn apply(&self, operation: &Operation, loss: Loss) -> Option<Self> {
        if !self.allows(operation.guard, loss) {
            return None;
        }
        let mut next = self.clone();
        match operation.change {
            Change::Keep => {
                // An object that a call did not find has disappeared by then.
                if operation.guard == Guard::Absent {
                    next.current = None;
                }
                return Some(next);
            }
            Change::Set { value, is_fragile } => next.current = Some((value, is_fragile)),
            Change::Clear => next.current = None,
        }
        if operation.is_confirmed {
            next.stale.clear();
        } else if let Some((old, _)) = self.current
            // Memory that is lost cannot be read.
            && operation.guard != Guard::Fragile
            && let Err(at) = next.stale.binary_search(&old)
        {
            next.stale.insert(at, old);
        }
        Some(next)
    }

    /// Whether a call with this guard can have its outcome now.
    pub(crate) fn allows(&self, guard: Guard, loss: Loss) -> bool {
        let may_be_absent = self.current.is_none() || loss == Loss::Anytime;
        let value = self.current.map(|it| it.0);
        match guard {
            Guard::Any => true,
            Guard::Absent => may_be_absent,
            Guard::Present => self.current.is_some() || !self.stale.is_empty(),
            Guard::Fragile => self.current.is_some_and(|it| it.1),
            Guard::Is(wanted) => value == Some(wanted),
            Guard::IsNot(other) => value != Some(other) || may_be_absent,
            Guard::Read(read) => value == Some(read) || self.stale.binary_search(&read).is_ok(),
        }
    }
}
