//! What waits to be written: appends and notes. Flushes wait for both, by their tickets.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::shape::Shape;
use crate::layout::Note;
use crate::types::{Left, OpId, Record};

/// A queued append.
#[derive(Debug)]
pub(super) struct Append {
    pub(super) op: OpId,
    pub(super) record: Record,
    pub(super) sums: Arc<[u64]>,
    pub(super) ticket: u64,
}

/// The queued appends, in order.
#[derive(Debug, Default)]
pub(super) struct Appends {
    queue: VecDeque<Append>,
    /// The sum of their extents.
    bytes: u64,
    /// The footprints of protected records that are queued, or being written in one piece.
    protected_asked: u64,
}

impl Appends {
    pub(super) fn push(&mut self, append: Append, shape: Shape) {
        if append.record.protected {
            self.protected_asked += shape.asked_footprint(&append.record);
        }
        self.bytes += shape.asked_extent(&append.record);
        self.queue.push_back(append);
    }

    pub(super) fn next(&self) -> Option<&Append> {
        self.queue.front()
    }

    /// Takes the next append to write it in one piece. Its footprint counts until [`Self::is_written`].
    pub(super) fn take_whole(&mut self) -> Option<Append> {
        let append = self.queue.pop_front()?;
        self.bytes -= Shape::extent_of(&append.record).0;
        Some(append)
    }

    /// A protected record that was taken in one piece is durable.
    pub(super) fn is_written(&mut self, footprint: u64) {
        self.protected_asked -= footprint;
    }

    /// Takes the next append to write it in parts. Its footprint counts there from now on.
    pub(super) fn take_cut(&mut self, shape: Shape) -> Option<Append> {
        let append = self.queue.pop_front()?;
        self.bytes -= shape.asked_extent(&append.record);
        if append.record.protected {
            self.protected_asked -= shape.held_footprint(append.record.payload_bytes);
        }
        Some(append)
    }

    /// Removes the append of an operation.
    pub(super) fn remove(&mut self, op: OpId, shape: Shape) -> Option<Append> {
        let at = self.queue.iter().position(|append| append.op == op)?;
        let append = self.queue.remove(at)?;
        self.bytes -= shape.asked_extent(&append.record);
        if append.record.protected {
            self.protected_asked -= shape.asked_footprint(&append.record);
        }
        Some(append)
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.bytes = 0;
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn protected_asked(&self) -> u64 {
        self.protected_asked
    }
}

/// The operation that waits for a note to be durable.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter(pub(super) OpId);

/// A queued note.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) note: Note,
    pub(super) waiter: Option<Waiter>,
    pub(super) ticket: u64,
    /// Why its record was removed, to be reported once the note is durable.
    pub(super) left: Option<Left>,
}

/// The queued notes. They are written one group at a time, so that they become durable in their order.
#[derive(Debug, Default)]
pub(super) struct Notes {
    queue: VecDeque<Queued>,
    is_writing: bool,
    queued: u64,
    committed: u64,
}

impl Notes {
    pub(super) fn push(&mut self, queued: Queued) {
        self.queued += 1;
        self.queue.push_back(queued);
    }

    /// The notes of the next group; none if a group is being written.
    pub(super) fn next_group(&self, bytes_max: usize) -> Vec<Note> {
        let mut bytes = 0;
        let fits = |(at, queued): &(usize, &Queued)| {
            bytes += queued.note.bytes();
            *at == 0 || bytes <= bytes_max
        };
        let notes = self.queue.iter().filter(|_| !self.is_writing).enumerate().take_while(fits);
        notes.map(|(_, queued)| queued.note.clone()).collect()
    }

    /// Takes a group of this many notes, to write it.
    pub(super) fn take(&mut self, count: usize) -> Vec<Queued> {
        self.is_writing = true;
        self.queue.drain(..count).collect()
    }

    /// The group that was taken is durable.
    pub(super) fn is_durable(&mut self, count: usize) {
        self.is_writing = false;
        self.committed += count as u64;
    }

    /// The number of notes that were ever queued.
    pub(super) fn queued(&self) -> u64 {
        self.queued
    }

    /// Whether this many notes are durable.
    pub(super) fn are_durable(&self, count: u64) -> bool {
        self.committed >= count
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }
}

/// Numbers the changes in progress. A flush ends when all changes before it have.
#[derive(Debug, Default)]
pub(super) struct Tickets {
    last: u64,
    outstanding: BTreeSet<u64>,
    flushes: BTreeSet<(u64, OpId)>,
}

impl Tickets {
    pub(super) fn issue(&mut self) -> u64 {
        self.last += 1;
        self.outstanding.insert(self.last);
        self.last
    }

    pub(super) fn end(&mut self, ticket: u64) {
        self.outstanding.remove(&ticket);
    }

    pub(super) fn add_flush(&mut self, op: OpId) {
        self.flushes.insert((self.last, op));
    }

    /// A flush that has ended.
    pub(super) fn take_flushed(&mut self) -> Option<OpId> {
        let oldest = self.outstanding.first().copied();
        let &(last, op) = self.flushes.first().filter(|it| oldest.is_none_or(|oldest| it.0 < oldest))?;
        self.flushes.remove(&(last, op));
        Some(op)
    }

    pub(super) fn clear(&mut self) {
        self.outstanding.clear();
        self.flushes.clear();
    }
}
