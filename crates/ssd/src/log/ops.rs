//! Operations: how they start, and how they end: with one answer, at the latest at their deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::queue::{Append, Waiter};
use super::table::State;
use super::{FORGET_IDS_MAX, Health, Log};
use crate::layout::{ATTRIBUTES_BYTES_MAX, KEY_BYTES_MAX, NAMESPACE_BYTES_MAX, Note};
use crate::mutant::is_mutant;
use crate::types::{Answer, AppendError, ChangeError, Fault, OpId, ReadError, Record, RecordId, Tick};

/// An operation that has not been answered.
#[derive(Debug)]
struct Op {
    deadline: Tick,
    kind: Kind,
}

/// Its kind and progress.
#[derive(Debug)]
pub(super) enum Kind {
    /// Queued.
    AppendQueued,
    /// Being written, or waiting for its sync.
    AppendWriting {
        /// It was cancelled.
        cancelled: bool,
    },
    /// Durable, and waiting for a tombstone before it is answered.
    AppendSettling(Result<RecordId, AppendError>),
    Read,
    SetAttributes,
    Forget {
        /// Tombstones that are not durable yet.
        waiting: u32,
        found: u64,
    },
    Flush,
}

/// The operations that have not been answered, and their deadlines.
#[derive(Debug, Default)]
pub(super) struct Ops {
    running: BTreeMap<OpId, Op>,
    deadlines: BTreeSet<(Tick, OpId)>,
}

impl Ops {
    pub(super) fn begin(&mut self, op: OpId, deadline: Tick, kind: Kind) {
        let had = self.running.insert(op, Op { deadline, kind });
        assert!(had.is_none(), "{op:?} is used twice at a time");
        self.deadlines.insert((deadline, op));
    }

    /// Removes an operation that is answered now. `None` if it was answered before.
    fn end(&mut self, op: OpId) -> Option<Op> {
        let known = self.running.remove(&op)?;
        self.deadlines.remove(&(known.deadline, op));
        Some(known)
    }

    fn all(&self) -> Vec<OpId> {
        self.running.keys().copied().collect()
    }

    pub(super) fn contains(&self, op: OpId) -> bool {
        self.running.contains_key(&op)
    }

    pub(super) fn kind(&self, op: OpId) -> Option<&Kind> {
        self.running.get(&op).map(|it| &it.kind)
    }

    pub(super) fn kind_mut(&mut self, op: OpId) -> Option<&mut Kind> {
        self.running.get_mut(&op).map(|it| &mut it.kind)
    }

    /// Whether an append is being written, and was not cancelled.
    pub(super) fn is_writing(&self, op: OpId) -> bool {
        matches!(self.kind(op), Some(Kind::AppendWriting { cancelled: false }))
    }

    /// Records how far an operation is.
    pub(super) fn set(&mut self, op: OpId, kind: Kind) {
        if let Some(op) = self.running.get_mut(&op) {
            op.kind = kind;
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Tick> {
        self.deadlines.first().map(|(tick, _)| *tick)
    }

    /// An operation whose deadline has passed.
    fn overdue(&self, now: Tick) -> Option<OpId> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= now).map(|(_, op)| *op)
    }
}

impl Log {
    /// Answers an operation, unless it was answered before.
    pub(super) fn answer(&mut self, op: OpId, answer: Answer) {
        match self.ops.end(op) {
            Some(known) => {
                if matches!(known.kind, Kind::Read) {
                    self.reads.end_one();
                }
                self.disk.answer(op, answer);
            }
            None => self.stats.late += 1,
        }
    }

    pub(super) fn ask_append(&mut self, op: OpId, record: Record, sums: Arc<[u64]>, deadline: Tick) {
        if let Err(error) = self.may_append(&record, &sums) {
            return self.disk.answer(op, Answer::Append(Err(error)));
        }
        self.ops.begin(op, deadline, Kind::AppendQueued);
        let ticket = self.tickets.issue();
        self.appends.push(Append { op, record, sums, ticket }, self.table.shape);
    }

    fn may_append(&self, record: &Record, sums: &[u64]) -> Result<(), AppendError> {
        match &self.health {
            Health::Ready => {}
            Health::Failed(fault) => return Err(AppendError::Failed(fault.clone())),
            Health::Recovering | Health::Unusable(_) => return Err(AppendError::Busy),
        }
        let shape = self.table.shape;
        let extent = shape.asked_extent(record);
        let name = &record.name;
        let names_fit = name.namespace.len() <= NAMESPACE_BYTES_MAX && name.key.len() <= KEY_BYTES_MAX;
        if !names_fit || record.attributes.len() > ATTRIBUTES_BYTES_MAX {
            return Err(AppendError::TooLarge { bytes: extent, bytes_max: shape.record_bytes_max() });
        }
        if shape.spans(record) {
            shape.may_span(record)?;
        }
        assert_eq!(
            sums.len() as u64,
            record.payload_bytes.div_ceil(crate::layout::SUM_BYTES),
            "wrong number of checksums"
        );
        if let Some((id, there)) = self.table.newest(name) {
            if there == record.generation {
                return Err(AppendError::Exists(id));
            } else if there > record.generation {
                return Err(AppendError::Stale { newest: there });
            }
        }
        let (protected_bytes, protected_bytes_max) = (self.kept_bytes(), shape.protected_bytes_max());
        if record.protected && protected_bytes + shape.asked_footprint(record) > protected_bytes_max {
            return Err(AppendError::Full { protected_bytes, protected_bytes_max });
        }
        let limits = &self.config.limits;
        let busy = self.appends.len() >= limits.queue_ops_max
            || (self.appends.bytes() > 0 && self.appends.bytes() + extent > limits.queue_bytes_max);
        if busy { Err(AppendError::Busy) } else { Ok(()) }
    }

    pub(super) fn ask_set_attributes(
        &mut self,
        op: OpId,
        id: RecordId,
        attributes: Vec<u8>,
        protected: bool,
        deadline: Tick,
    ) {
        if let Err(error) = self.may_set_attributes(id, &attributes, protected) {
            return self.disk.answer(op, Answer::SetAttributes(Err(error)));
        }
        self.table.protect(id, protected);
        if let Some(live) = self.table.records.get_mut(&id) {
            live.record.attributes.clone_from(&attributes);
        }
        self.ops.begin(op, deadline, Kind::SetAttributes);
        self.queue_note(Note::Attributes { id, protected, attributes }, Some(Waiter(op)), None);
        if is_mutant!(self.config.mutant, AttributesBeforeDurable) {
            self.answer(op, Answer::SetAttributes(Ok(())));
        }
    }

    fn may_set_attributes(
        &self,
        id: RecordId,
        attributes: &[u8],
        protected: bool,
    ) -> Result<(), ChangeError> {
        self.may_change()?;
        let Some(live) = self.table.records.get(&id) else { return Err(ChangeError::Gone) };
        // A record in a segment that is being erased cannot be kept.
        let segment = self.table.segments.get(live.location.segment as usize);
        if segment.is_none_or(|segment| segment.state == State::Erasing) {
            return Err(ChangeError::Gone);
        }
        // Compaction writes the attributes into the header, which must still fit into a segment.
        let mut changed = live.record.clone();
        changed.attributes = attributes.to_vec();
        let (extent, header_bytes, compact) = live.extent_with(&changed);
        let too_large = extent > self.table.shape.whole_bytes_max(compact)
            || header_bytes > crate::layout::HEADER_BYTES_MAX;
        if attributes.len() > ATTRIBUTES_BYTES_MAX || too_large {
            return Err(ChangeError::TooLarge {
                bytes: attributes.len() as u64,
                bytes_max: ATTRIBUTES_BYTES_MAX as u64,
            });
        }
        let (protected_bytes, protected_bytes_max) =
            (self.kept_bytes(), self.table.shape.protected_bytes_max());
        let more = protected && !live.record.protected;
        if more && protected_bytes + self.table.whole_footprint(live) > protected_bytes_max {
            return Err(ChangeError::Full { protected_bytes, protected_bytes_max });
        }
        Ok(())
    }

    /// Whether the log accepts changes.
    fn may_change(&self) -> Result<(), ChangeError> {
        match &self.health {
            Health::Ready if self.notes.len() >= self.config.limits.notes_max => Err(ChangeError::Busy),
            Health::Ready => Ok(()),
            Health::Failed(fault) => Err(ChangeError::Failed(fault.clone())),
            Health::Recovering | Health::Unusable(_) => Err(ChangeError::Busy),
        }
    }

    pub(super) fn ask_forget(&mut self, op: OpId, ids: &[RecordId], deadline: Tick) {
        if ids.len() > FORGET_IDS_MAX {
            return self.disk.answer(op, Answer::Forget(Err(ChangeError::Busy)));
        }
        if let Err(error) = self.may_change() {
            // A log that cannot write the tombstones must not serve the records either.
            if matches!(error, ChangeError::Failed(_)) {
                ids.iter().for_each(|id| drop(self.table.remove(*id)));
            }
            return self.disk.answer(op, Answer::Forget(Err(error)));
        }
        self.ops.begin(op, deadline, Kind::Forget { waiting: 0, found: 0 });
        let (mut waiting, mut found) = (0, 0);
        for id in ids {
            if self.delete(*id, Some(Waiter(op)), None) {
                waiting += 1;
                found += 1;
            } else if self.table.tombstones.get(id).is_some_and(|tombstone| tombstone.at.is_none()) {
                // Its tombstone is queued but not durable: another one reports when it is.
                self.queue_note(Note::Forget(*id), Some(Waiter(op)), None);
                waiting += 1;
            }
        }
        self.stats.forgotten += found;
        self.ops.set(op, Kind::Forget { waiting, found });
        if waiting == 0 || is_mutant!(self.config.mutant, ForgetBeforeDurable) {
            self.answer(op, Answer::Forget(Ok(found)));
        }
    }

    pub(super) fn ask_flush(&mut self, op: OpId, deadline: Tick) {
        match &self.health {
            Health::Ready => {
                self.ops.begin(op, deadline, Kind::Flush);
                self.tickets.add_flush(op);
            }
            Health::Failed(fault) => {
                self.disk.answer(op, Answer::Flush(Err(ChangeError::Failed(fault.clone()))));
            }
            Health::Recovering | Health::Unusable(_) => {
                self.disk.answer(op, Answer::Flush(Err(ChangeError::Busy)))
            }
        }
    }

    pub(super) fn cancel(&mut self, op: OpId) {
        let Some(kind) = self.ops.kind_mut(op) else { return };
        match kind {
            Kind::AppendQueued => {
                self.unqueue(op);
                self.answer(op, Answer::Append(Err(AppendError::Cancelled)));
            }
            // Whether it is durable is unknown: it is answered when its tombstone is.
            Kind::AppendWriting { cancelled } => *cancelled = true,
            // It is durable, and in the index.
            Kind::AppendSettling(_) => {}
            Kind::Read => self.answer(op, Answer::Read(Err(ReadError::Cancelled))),
            Kind::SetAttributes => self.answer(op, Answer::SetAttributes(Err(ChangeError::Cancelled))),
            Kind::Forget { .. } => self.answer(op, Answer::Forget(Err(ChangeError::Cancelled))),
            Kind::Flush => self.answer(op, Answer::Flush(Err(ChangeError::Cancelled))),
        }
    }

    /// Answers operations whose deadline has passed. Their disk work continues.
    pub(super) fn expire(&mut self, now: Tick) {
        while let Some(op) = self.ops.overdue(now) {
            let Some(kind) = self.ops.kind(op) else { return };
            let answer = match *kind {
                Kind::AppendQueued => {
                    self.unqueue(op);
                    Answer::Append(Err(AppendError::TimedOut))
                }
                Kind::AppendWriting { .. } => Answer::Append(Err(AppendError::TimedOut)),
                Kind::AppendSettling(Ok(id)) => {
                    self.delete(id, None, None);
                    Answer::Append(Err(AppendError::TimedOut))
                }
                Kind::AppendSettling(_) => Answer::Append(Err(AppendError::TimedOut)),
                Kind::Read => Answer::Read(Err(ReadError::TimedOut)),
                Kind::SetAttributes => Answer::SetAttributes(Err(ChangeError::TimedOut)),
                Kind::Forget { .. } => Answer::Forget(Err(ChangeError::TimedOut)),
                Kind::Flush => Answer::Flush(Err(ChangeError::TimedOut)),
            };
            self.answer(op, answer);
        }
    }

    /// Answers all operations that wait for a write, because the disk has failed.
    pub(super) fn fail_changes(&mut self, fault: &Fault) {
        for op in self.ops.all() {
            let Some(kind) = self.ops.kind(op) else { continue };
            let answer = match *kind {
                Kind::Read => continue,
                // The caller does not learn its id, so it must not stay.
                Kind::AppendSettling(Ok(id)) => {
                    self.table.remove(id);
                    Answer::Append(Err(AppendError::Failed(fault.clone())))
                }
                Kind::AppendQueued | Kind::AppendWriting { .. } | Kind::AppendSettling(_) => {
                    Answer::Append(Err(AppendError::Failed(fault.clone())))
                }
                Kind::SetAttributes => Answer::SetAttributes(Err(ChangeError::Failed(fault.clone()))),
                Kind::Forget { .. } => Answer::Forget(Err(ChangeError::Failed(fault.clone()))),
                Kind::Flush => Answer::Flush(Err(ChangeError::Failed(fault.clone()))),
            };
            self.answer(op, answer);
        }
    }

    /// Removes a queued append.
    fn unqueue(&mut self, op: OpId) {
        if let Some(append) = self.appends.remove(op, self.table.shape) {
            self.tickets.end(append.ticket);
        }
    }
}
