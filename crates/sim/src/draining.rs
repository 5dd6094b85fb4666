//! The state of drain jobs: the operator's jobs, the nodes' work on them, and the moves of objects.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_types::{
    SegmentId, SlotRef,
    message::{DrainReport, Here, JobId},
};

use crate::keyspace::{NAMESPACES, Name};

/// The number of clients that move objects: one in each namespace, after the others.
pub(crate) const MOVERS: usize = NAMESPACES.len();

/// A node's work on its job.
#[derive(Debug)]
pub(crate) struct Draining {
    pub(crate) report: DrainReport,
    pub(crate) moved_before: u64,
}

/// How the move of an object has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    Done,
    /// It is not there any more, or has changed.
    Gone,
    /// It may be possible later.
    Blocked,
    /// It stays, whatever passes by itself.
    Stuck,
    /// There was no answer in time.
    Failed,
}

/// One object that is being moved.
#[derive(Debug)]
pub(crate) struct Move {
    pub(crate) node: usize,
    pub(crate) job: JobId,
    pub(crate) copy: (SegmentId, SlotRef),
    pub(crate) name: Name,
    /// The master's account of it, once it is known.
    pub(crate) here: Option<Box<Here>>,
}

/// The operator's jobs, and the moves that are under way.
#[derive(Debug, Default)]
pub(crate) struct Drains {
    pub(crate) jobs: Vec<JobId>,
    /// By the client, and the session that carries the step out.
    pub(crate) moves: BTreeMap<(usize, u64), Move>,
    /// Copies that cannot be moved, since the faults have stopped.
    pub(crate) stuck: BTreeSet<(SegmentId, SlotRef)>,
    /// Jobs that still ran when the operator looked last, after the faults.
    pub(crate) open: BTreeSet<JobId>,
    /// The operator has looked since the faults have stopped.
    pub(crate) has_looked: bool,
}
