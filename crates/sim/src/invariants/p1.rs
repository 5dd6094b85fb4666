//! P1: a valid read returns exactly one whole value, the one that was committed under that generation. The
//! bytes of a view never change. No writer writes into memory of another use.

use tiffin_types::{EXTENT_ALIGN, Generation, SegmentId, SlotRef, message::Found};

use crate::{
    coverage::{Coverage, Point},
    keyspace::Name,
    memory::{Memory, Tag, ValueId},
    oracle::Oracle,
};

impl Oracle {
    /// A read was validated.
    pub(crate) fn read(
        &mut self,
        segment: SegmentId,
        slot_ref: SlotRef,
        len: u64,
        tags: &[Tag],
        coverage: &mut Coverage,
    ) {
        coverage.hit(Point::CheckedWholeValue);
        self.whole(segment, slot_ref, len, tags, "a validated read");
        self.read_of_dead(segment, slot_ref);
    }

    /// A client reports from its cache that an object exists.
    pub(crate) fn found_there(&mut self, segment: SegmentId, slot_ref: SlotRef, coverage: &mut Coverage) {
        coverage.hit(Point::CheckedPresence);
        self.read_of_dead(segment, slot_ref);
    }

    /// A client reads a view.
    pub(crate) fn looks(
        &mut self,
        segment: SegmentId,
        slot_ref: SlotRef,
        len: u64,
        tags: &[Tag],
        coverage: &mut Coverage,
    ) {
        coverage.hit(Point::CheckedView);
        self.whole(segment, slot_ref, len, tags, "a view");
    }

    /// A unit is about to be written.
    pub(crate) fn writes(
        &mut self,
        memory: &Memory,
        unit: usize,
        slot_ref: SlotRef,
        coverage: &mut Coverage,
    ) {
        coverage.hit(Point::CheckedScribble);
        if let Some(other) = memory.covered_by(unit, slot_ref.stamp) {
            self.fail("p1", || {
                format!("the writer of {slot_ref:?} writes unit {unit}, which belongs to {other:?}")
            });
        }
    }

    /// A put was acknowledged to its client.
    pub(crate) fn acknowledged(&mut self, value: ValueId, generation: Generation) {
        let stored = self.objects.get(&generation).and_then(|it| it.value);
        if stored.is_some_and(|it| it != value) {
            self.fail("p1", || format!("{generation} was acknowledged to {value:?}, but it is {stored:?}"));
        }
        let name = self.value(value).map(|it| it.name);
        if let Some(name) =
            name.filter(|_| self.is_of_this_master(generation) && !self.shadowed.contains(&generation))
        {
            let newest = self.acknowledged.entry(name).or_default();
            *newest = generation.max(*newest);
        }
    }

    /// A get returned an object to its client.
    pub(crate) fn got(&mut self, name: Name, found: &Found) {
        let history = self.objects.get(&found.generation);
        if let Some(other) = history.map(|it| it.name).filter(|it| *it != name) {
            self.fail("p1", || format!("a get of {name:?} returned {found:?}, which is {other:?}"));
        }
    }

    fn whole(&mut self, segment: SegmentId, slot_ref: SlotRef, len: u64, tags: &[Tag], what: &str) {
        let place = (segment, slot_ref);
        let Some(&id) = self.written.get(&place) else {
            return self.fail("p1", || format!("{what} of {place:?} is valid, but was never written"));
        };
        let units = len.div_ceil(EXTENT_ALIGN) as usize;
        let wrong = (0..).zip(tags).find(|(unit, tag)| **tag != Tag { value: id, unit: *unit });
        if let Some((unit, tag)) = wrong {
            return self.fail("p1", || {
                format!("{what} of {place:?} should be {id:?}, but its unit {unit} is {tag:?}")
            });
        }
        let value = self.value(id).copied();
        if tags.len() != units || value.is_none_or(|it| it.len != len) {
            return self
                .fail("p1", || format!("{what} of {place:?} has {} units of {len} bytes", tags.len()));
        }
        let history = self.generation_of.get(&place).and_then(|it| self.objects.get(it));
        if let (Some(history), Some(value)) = (history, value)
            && (history.name != value.name || history.value.is_some_and(|it| it != id))
        {
            let history = history.clone();
            self.fail("p1", || {
                format!("{what} of {place:?} is {id:?} {value:?}, but it should be {history:?}")
            });
        }
    }
}
