//! Memory: the books balance, room is used once, and what is at rest accounts for every byte.

use tiffin_core::{extent::room_for, node::SlotRecord, node::SlotState};

use crate::{
    coverage::Point,
    memory::{Memory, units},
    oracle::Oracle,
    world::World,
};

impl Oracle {
    /// Room is given to a writer: it must be nobody else's.
    pub(crate) fn reserved(&mut self, memory: &Memory, record: &SlotRecord) {
        for unit in record.extents.iter().flat_map(|it| units(*it)) {
            if let Some(other) = memory.covered_by(unit, record.stamp) {
                return self.fail("memory", || format!("unit {unit} of {record:?} is {other:?}'s"));
            }
        }
    }
}

impl World {
    /// What the nodes say of themselves is what their memory shows.
    pub(crate) fn check_books(&mut self) {
        for shell in &self.nodes {
            let Some(core) = &shell.core else { continue };
            let Some(memory) = self.memories.get(&shell.segment) else { continue };
            self.coverage.hit(Point::CheckedBooks);
            let usage = core.usage();
            let (mut committed, mut granted, mut objects) = (0, 0, 0);
            for (_, record) in memory.slots() {
                let room: u64 = record.extents.iter().filter_map(|it| room_for(it.len)).sum();
                match record.state {
                    SlotState::Committed => (committed, objects) = (committed + room, objects + 1),
                    SlotState::Reserved(_) | SlotState::Ending | SlotState::Prepared => granted += room,
                }
            }
            let sum = usage.free + usage.granted + usage.committed + usage.held;
            let same = (committed, granted, objects) == (usage.committed, usage.granted, usage.objects);
            if sum != usage.capacity || !same {
                let segment = shell.segment;
                return self.oracle.fail("memory", || {
                    format!("{segment} says {usage:?}, its slots {committed}, {granted}, {objects}")
                });
            }
        }
    }

    /// At rest nothing is reserved and nothing is held.
    pub(crate) fn check_nothing_leaks(&mut self, when: &str) {
        for shell in &self.nodes {
            let Some(core) = &shell.core else { continue };
            let usage = core.usage();
            if usage.granted > 0 || usage.held > 0 {
                let segment = shell.segment;
                return self.oracle.fail("memory", || format!("{when}: {segment} leaks: {usage:?}"));
            }
        }
    }
}
