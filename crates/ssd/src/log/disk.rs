//! The effects of a step, and the disk operations in progress.

use std::collections::BTreeMap;

use super::commit::Commit;
use super::{Effect, Into, Part};
use crate::layout::BLOCK;
use crate::types::{Answer, Event, IoId, OpId};

/// The purpose of a disk operation.
#[derive(Debug)]
pub(super) enum Io {
    Write(Commit),
    Sync,
    /// A read of a flight from a segment.
    Read {
        flight: u64,
        segment: u32,
    },
    CarryRead(u64),
    CarryWrite(u64),
    Recover,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Disk {
    last_io: u64,
    ios: BTreeMap<IoId, Io>,
    effects: Vec<Effect>,
    written_bytes: u64,
}

impl Disk {
    fn start(&mut self, purpose: Io) -> IoId {
        self.last_io += 1;
        self.ios.insert(IoId(self.last_io), purpose);
        IoId(self.last_io)
    }

    /// Removes an operation that has ended. `None` if it is unknown.
    pub(super) fn end(&mut self, io: IoId) -> Option<Io> {
        self.ios.remove(&io)
    }

    /// The number of operations in progress.
    pub(super) fn in_flight(&self) -> usize {
        self.ios.len()
    }

    pub(super) fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Writes an entry or a header, whose change of state a sync commits.
    pub(super) fn write(&mut self, at: u64, parts: Vec<Part>, commit: Commit) {
        self.write_for(Io::Write(commit), at, parts);
    }

    pub(super) fn write_for(&mut self, purpose: Io, at: u64, parts: Vec<Part>) -> IoId {
        let len = |part: &Part| match part {
            Part::Bytes(bytes) => bytes.len() as u64,
            Part::Payload { span, .. } => span.len,
            Part::Stage { len, .. } | Part::Zeros(len) => *len,
        };
        let bytes: u64 = parts.iter().map(len).sum();
        assert_eq!(bytes % BLOCK, 0, "a write of {bytes} bytes");
        self.written_bytes += bytes;
        let io = self.start(purpose);
        self.push(Effect::Write { io, at, parts });
        io
    }

    pub(super) fn read(&mut self, purpose: Io, at: u64, len: u64, into: Into) -> IoId {
        let io = self.start(purpose);
        self.push(Effect::Read { io, at, len, into });
        io
    }

    pub(super) fn sync(&mut self, purpose: Io) -> IoId {
        let io = self.start(purpose);
        self.push(Effect::Sync { io });
        io
    }

    pub(super) fn answer(&mut self, op: OpId, answer: Answer) {
        self.push(Effect::Answer { op, answer });
    }

    pub(super) fn event(&mut self, event: Event) {
        self.push(Effect::Event(event));
    }

    pub(super) fn push(&mut self, effect: Effect) {
        self.effects.push(effect);
    }
}
