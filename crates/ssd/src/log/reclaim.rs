//! Reclaims segments: moves the entries that must stay, rewrites tombstones, and erases the segment.
//!
//! A segment that is at most half live is compacted, which loses nothing. If there is none, the segment with
//! the oldest mean use is evicted, and only its protected records are moved. One segment is reclaimed at a
//! time. Appends wait for it in their queue; reads are not affected.
//!
//! A part of a spanning record is moved by itself. If it is evicted, its record is evicted.

use super::carry::CarryRead;
use super::commit::Commit;
use super::shape::Shape;
use super::table::{Live, Segment, State, Table};
use super::{Done, Health, Log, Part, RESERVE_SEGMENTS};
use crate::layout::{BLOCK, Note};
use crate::mutant::is_mutant;
use crate::types::{AppendError, Event, Left, RecordId};

/// A segment that is being reclaimed.
#[derive(Debug)]
pub(super) struct Reclaim {
    victim: u32,
    /// Whether unprotected records are evicted.
    evict: bool,
    /// Records and parts that are still to be moved.
    ids: Vec<RecordId>,
    /// The number of notes that must be durable before the segment is erased, once it is known.
    notes: Option<u64>,
    erasing: bool,
}

impl Reclaim {
    /// Chooses the next segment to reclaim.
    fn choose(table: &Table) -> Option<Self> {
        let newest = table.segments.iter().map(|segment| segment.incarnation).max();
        let space = table.carry_space();
        let chosen = |victim, evict| Self { victim, evict, ids: Vec::new(), notes: None, erasing: false };
        let candidates = || {
            let may =
                |segment: &Segment| segment.state == State::Sealed && Some(segment.incarnation) != newest;
            (0u32..).zip(&table.segments).filter(move |(_, segment)| may(segment))
        };
        // An unreadable record cannot be moved, but it can be evicted.
        let movable = |segment: &Segment| !segment.stuck || segment.live == 0;
        let emptiest = candidates().filter(|(_, segment)| movable(segment));
        let emptiest = emptiest.min_by_key(|(number, segment)| (segment.live, *number));
        if let Some((victim, segment)) = emptiest
            && segment.live <= table.shape.segment_bytes / 2 - 4 * BLOCK
            && segment.live <= space
        {
            return Some(chosen(victim, false));
        }
        let spare = is_mutant!(table.mutant, EvictProtected);
        let coldest = |may: &dyn Fn(&Segment) -> bool| {
            let evictable = |segment: &Segment| spare || !segment.stuck || segment.protected == 0;
            let candidates = candidates().filter(|(_, segment)| evictable(segment) && may(segment));
            candidates.min_by_key(|(number, segment)| (segment.mean_touch(), *number))
        };
        // Large entries that stay would only move from one segment to another. If there is no other choice,
        // at least some bytes must be freed.
        let gains = |segment: &Segment| {
            let dead = segment.used - segment.live.min(segment.used);
            segment.live > segment.protected || dead >= table.shape.segment_bytes / 8
        };
        let victim = coldest(&|segment| spare || segment.footprint <= space)
            .or_else(|| coldest(&|segment| segment.protected <= space && gains(segment)));
        victim.map(|(victim, _)| chosen(victim, true))
    }

    /// The records and parts that must be moved.
    fn must_carry(&self, table: &Table) -> Vec<RecordId> {
        let Some(segment) = table.segments.get(self.victim as usize) else { return Vec::new() };
        let spare = is_mutant!(table.mutant, EvictProtected);
        let must = |id: &RecordId| {
            let live = table.records.get(id).filter(|live| live.location.segment == self.victim);
            live.is_some_and(|live| !self.evict || (live.record.protected && !spare))
        };
        let must_part = |id: &RecordId| {
            let piece = table.pieces.get(id).filter(|piece| piece.location.segment == self.victim);
            piece.is_some_and(|piece| !self.evict || piece.protected)
        };
        let left_behind = is_mutant!(table.mutant, LeavePartsBehind);
        let parts = segment.parts.iter().copied().filter(|id| must_part(id) && !left_behind);
        let mut ids: Vec<RecordId> = segment.ids.iter().copied().filter(must).chain(parts).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

impl Log {
    pub(super) fn pump_reclaim(&mut self) {
        if self.reclaim.is_none() {
            if !self.needs_space() {
                return;
            }
            self.reclaim = Reclaim::choose(&self.table);
        }
        let Some(reclaim) = &self.reclaim else { return };
        if reclaim.erasing {
            return;
        }
        self.start_carries();
        let done = self.reclaim.as_ref().is_some_and(|reclaim| reclaim.ids.is_empty());
        if done && self.carries.len() == 0 {
            self.finish_reclaim();
        }
    }

    /// The records that a crash now may remove although they were not reported as evicted.
    pub fn leaving(&self) -> Vec<RecordId> {
        let mut ids: Vec<RecordId> = self.evicting.iter().copied().collect();
        let erasing = |live: &Live| {
            let segment = self.table.segments.get(live.location.segment as usize);
            segment.is_some_and(|segment| segment.state == State::Erasing)
        };
        ids.extend(self.table.records.iter().filter(|(_, live)| erasing(live)).map(|(id, _)| *id));
        ids
    }

    fn needs_space(&self) -> bool {
        if self.table.free_segments() > RESERVE_SEGMENTS {
            return false;
        }
        if self.table.free_segments() < RESERVE_SEGMENTS {
            return true;
        }
        // An entry that fits into the open segment needs no other. Else moved entries would take its space
        // again and again.
        let waits = self.spans.need_segment(&self.table, self.appends.next())
            || self.appends.next().is_some_and(|append| {
                let (extent, _, compact) = Shape::extent_of(&append.record);
                !self.table.shape.spans(&append.record) && !self.table.open_fits(extent, compact)
            });
        // A segment is reclaimed ahead of need, so that appends need not wait for it.
        waits || self.table.open_is_nearly_full()
    }

    /// Continues after all moves: rewrites notes, then erases the segment.
    fn finish_reclaim(&mut self) {
        let Some(mut reclaim) = self.reclaim.take() else { return };
        let more = reclaim.must_carry(&self.table);
        if !more.is_empty() {
            reclaim.ids = more;
            reclaim.notes = None;
            self.reclaim = Some(reclaim);
            return self.start_carries();
        }
        let victim = reclaim.victim;
        match reclaim.notes {
            None => {
                let Leftovers { notes, evicted } = Leftovers::of(&self.table, victim);
                notes.into_iter().for_each(|note| self.queue_note(note, None, None));
                self.stats.evicted += evicted.len() as u64;
                self.evicting.extend(&evicted);
                evicted.iter().for_each(|id| _ = self.delete(*id, None, Some(Left::Evicted)));
                // Notes that were queued before are included: the tombstone of an older generation must be
                // durable before a newer one is evicted.
                reclaim.notes = Some(self.notes.queued());
                self.reclaim = Some(reclaim);
                self.pump_notes();
                if self.notes.are_durable(self.notes.queued()) {
                    self.finish_reclaim();
                }
            }
            Some(notes) if !self.notes.are_durable(notes) => self.reclaim = Some(reclaim),
            Some(_) => {
                reclaim.erasing = true;
                match reclaim.evict {
                    true => self.stats.segments_evicted += 1,
                    false => self.stats.segments_compacted += 1,
                }
                self.reclaim = Some(reclaim);
                self.table.segment(victim).state = State::Erasing;
                let at = self.table.shape.at(victim, 0);
                self.disk.write(at, vec![Part::Zeros(BLOCK)], Commit::Erase(victim));
                if is_mutant!(self.config.mutant, ReportBeforeErased) {
                    self.report_evicted(victim);
                }
            }
        }
    }

    fn start_carries(&mut self) {
        let Some(reclaim) = &mut self.reclaim else { return };
        while self.carries.len() < self.config.limits.carries_max
            && let Some(id) = reclaim.ids.last()
            && self.carries.start(&mut self.table, &mut self.disk, *id, reclaim.victim)
        {
            reclaim.ids.pop();
        }
    }

    pub(super) fn carry_read_done(&mut self, number: u64, result: &Done) {
        match self.carries.read_done(&mut self.table, &mut self.disk, number, result) {
            CarryRead::Done => {}
            CarryRead::Corrupt(id) => {
                self.corrupt(id);
                if let Some(ticket) = self.spans.ticket_of(id) {
                    self.abort(ticket, AppendError::Busy);
                }
            }
            // The segment stays as it is.
            CarryRead::Failed => {
                if let Some(reclaim) = self.reclaim.take() {
                    self.table.segment(reclaim.victim).stuck = true;
                }
            }
        }
    }

    fn report_evicted(&mut self, victim: u32) {
        let evicted = self.table.evict(victim);
        self.stats.evicted += evicted.len() as u64;
        if !evicted.is_empty() {
            self.disk.event(Event::Left(Left::Evicted, evicted));
        }
    }

    /// Removes the evicted records after the segment was durably erased.
    pub(super) fn erased(&mut self, victim: u32) {
        self.report_evicted(victim);
        self.table.erased(victim);
        self.reclaim = None;
        debug_assert!(matches!(self.health, Health::Ready), "a failed log erases nothing");
    }
}

/// The notes of a segment that are still needed and must be written again, and the records that are evicted
/// with it and have copies elsewhere.
struct Leftovers {
    notes: Vec<Note>,
    evicted: Vec<RecordId>,
}

impl Leftovers {
    fn of(table: &Table, victim: u32) -> Self {
        let (mut notes, mut evicted) = (Vec::new(), Vec::new());
        let Some(segment) = table.segments.get(victim as usize) else { return Self { notes, evicted } };
        let (mut noted, mut ids) = (segment.noted.clone(), segment.ids.clone());
        ids.sort_unstable();
        noted.sort_unstable();
        noted.dedup();
        let sorted = ids.clone();
        let copies_here = |id: RecordId| {
            let first = sorted.partition_point(|other| *other < id);
            (sorted.partition_point(|other| *other <= id) - first) as u32
        };
        for id in noted {
            if let Some(tombstone) = table.tombstones.get(&id) {
                let needed = tombstone.copies > copies_here(id) || table.segments_incomplete > 0;
                let dropped = is_mutant!(table.mutant, DropTombstones);
                if tombstone.at == Some(victim) && needed && !dropped {
                    notes.push(Note::Forget(id));
                }
            } else if let Some(live) = table.records.get(&id)
                && live.attributes_segment == Some(victim)
                && live.location.segment != victim
                && !is_mutant!(table.mutant, DropAttributes)
            {
                let (protected, attributes) = (live.record.protected, live.record.attributes.clone());
                notes.push(Note::Attributes { id, protected, attributes });
            }
        }
        // A record that loses a part is evicted before the part is erased.
        let pieces = segment.parts.iter().filter_map(|id| table.pieces.get(id));
        let pieces = pieces.filter(|piece| piece.location.segment == victim);
        let owners: Vec<RecordId> = pieces.map(|piece| piece.head.of).collect();
        // In two steps: both are `false` in production, and clippy rejects equal operands.
        let left_behind = is_mutant!(table.mutant, LeavePartsBehind);
        let alone = left_behind || is_mutant!(table.mutant, EvictPartAlone);
        ids.extend(owners.iter().filter(|_| !alone));
        ids.sort_unstable();
        ids.dedup();
        let leaves = |id: &RecordId| {
            let has_part_here = !alone && owners.contains(id);
            table.records.get(id).is_some_and(|live| {
                (live.location.segment == victim || has_part_here) && live.copies > copies_here(*id)
            })
        };
        evicted.extend(ids.into_iter().filter(leaves));
        Self { notes, evicted }
    }
}
