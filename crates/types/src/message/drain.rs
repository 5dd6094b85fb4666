//! Drain jobs: an operator empties segments before their processes stop.
//!
//! The master sends a job to the members that it concerns. Each of them takes no new objects from then on.
//! Its process moves the objects away and reports how far it is, at short intervals and also after it is
//! empty. So a restarted master learns of running jobs from the members.

/// The name of a drain job: two random numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobId {
    /// The first number.
    pub first: u64,
    /// The second number.
    pub second: u64,
}

/// A drain job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainJob {
    /// Its name.
    pub id: JobId,
    /// When it was created, in milliseconds since 1970.
    pub created_ms: u64,
    /// The names of the segments that it empties.
    pub sources: Vec<String>,
    /// The names of the segments that receive the objects; empty if any segment may.
    pub targets: Vec<String>,
    /// The number of objects that each segment moves at a time.
    pub concurrency: u32,
}

/// See [`MasterToMember::Drain`](super::MasterToMember::Drain).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drain {
    /// The job.
    pub job: DrainJob,
    /// The job was cancelled or has failed: the member takes new objects again.
    pub stop: bool,
}

/// How far a member is with a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DrainState {
    /// It moves objects, or waits until it can.
    #[default]
    Moving,
    /// It has no objects and no reservations.
    Empty,
    /// Only objects remain that cannot be moved.
    Failed,
}

/// See [`MemberToMaster::Drained`](super::MemberToMaster::Drained).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DrainReport {
    /// The job.
    pub job: DrainJob,
    /// How far it is.
    pub state: DrainState,
    /// Objects that were moved.
    pub succeeded: u64,
    /// Objects that could not be read or written in the last round.
    pub failed: u64,
    /// Objects that had to stay in the last round: there is no space, or they cannot be moved while they are
    /// in use.
    pub blocked: u64,
    /// Objects that are being moved.
    pub active: u64,
    /// The bytes of the moved objects.
    pub bytes: u64,
}
