//! What a check of the invariants reports.

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{invariant}: {what}")]
pub struct Violation {
    /// Its name.
    pub invariant: &'static str,
    /// What was found.
    pub what: String,
}

pub(super) fn broken(invariant: &'static str, what: impl Into<String>) -> Result<(), Violation> {
    Err(Violation { invariant, what: what.into() })
}
