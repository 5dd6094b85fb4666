//! Making room: a segment is emptied of what must stay, its tombstones are written anew, and it is erased.
//!
//! Dead room goes first: a segment of which at most half is in use is compacted, which loses nothing. Else
//! the
//! segment whose bytes were used longest ago is evicted, and only its protected records are carried along.
//! One segment at a time; appends wait for it in their queue, reads do not notice.
//!
//! A part of a record that spans segments is carried by itself. If it is evicted, its whole record is.

use std::sync::Arc;

use super::table::{Location, State};
use super::write::{Batch, Commit, Member};
use super::{Checks, Done, Effect, Health, Into, Io, Log, Part, RESERVE_SEGMENTS, Segment};
use crate::layout::{BLOCK, Body, CHUNK_BYTES, Entry, Note, PartHead, SUM_BYTES, blocks_up, sum_bytes};
use crate::sabotage::sabotaged;
use crate::types::{Event, Left, RecordId, StageId};

/// A segment that is being emptied.
#[derive(Debug)]
pub(super) struct Reclaim {
    victim: u32,
    /// Whether what is not protected goes.
    evict: bool,
    /// What is still to be carried.
    ids: Vec<RecordId>,
    /// The notes that must be durable before the segment is erased, once they are known.
    notes: Option<u64>,
    erasing: bool,
}

/// A record, or a part of one, that is being moved.
#[derive(Debug)]
pub(super) struct Carry {
    id: RecordId,
    /// What it says of itself, if it is a part.
    part: Option<PartHead>,
    /// The sequence number of the copy that is moved: if the record has another by then, it was in vain.
    from: u64,
    from_at: u64,
    segment: u32,
    offset: u64,
    sequence: u64,
    extent: u64,
    header_bytes: u64,
    compact: u64,
    payload_bytes: u64,
    sums: Arc<[u64]>,
    position: u64,
    stage: Option<StageId>,
    #[cfg(feature = "sabotage")]
    record: Option<crate::types::Record>,
}

impl Log {
    pub(super) fn pump_reclaim(&mut self) {
        if self.reclaim.is_none() {
            if !self.wants_room() {
                return;
            }
            self.reclaim = self.choose();
        }
        let Some(reclaim) = &self.reclaim else { return };
        if reclaim.erasing {
            return;
        }
        self.start_carries();
        let done = self.reclaim.as_ref().is_some_and(|reclaim| reclaim.ids.is_empty());
        if done && self.carries.is_empty() {
            self.finish_reclaim();
        }
    }

    /// The records that have not been said to be evicted and that a crash at this moment may take along.
    pub fn leaving(&self) -> Vec<RecordId> {
        let mut ids: Vec<RecordId> = self.going.iter().copied().collect();
        let erasing = |live: &super::Live| {
            let segment = self.segments.get(live.location.segment as usize);
            segment.is_some_and(|segment| segment.state == State::Erasing)
        };
        ids.extend(self.records.iter().filter(|(_, live)| erasing(live)).map(|(id, _)| *id));
        ids
    }

    fn wants_room(&self) -> bool {
        if self.free_segments() > RESERVE_SEGMENTS {
            return false;
        }
        if self.free_segments() < RESERVE_SEGMENTS {
            return true;
        }
        // What the open segment can take needs no other; else what is carried would take its place again and
        // again.
        let waits = self.spanning_waits()
            || self.appends.front().is_some_and(|append| {
                let (extent, _, compact) = Self::extent_of(&append.record);
                !self.spans(&append.record) && !self.open_fits(extent, compact)
            });
        let open = self.open.and_then(|number| self.segments.get(number as usize));
        // A segment is made free ahead of need, so that appends need not wait for it.
        waits || open.is_some_and(|segment| segment.used > self.segment_bytes / 4 * 3)
    }

    /// The room that what is carried can go to.
    fn carry_room(&self) -> u64 {
        if self.free_segments() > 0 {
            return self.segment_bytes / 4 * 3;
        }
        let open = self.open.and_then(|number| self.segments.get(number as usize));
        open.map_or(0, |segment| {
            let footer = 2 * (blocks_up(segment.index_bytes) + BLOCK);
            self.segment_bytes.saturating_sub(segment.used + footer)
        })
    }

    fn choose(&self) -> Option<Reclaim> {
        let newest = self.segments.iter().map(|segment| segment.life).max();
        let room = self.carry_room();
        let chosen = |victim, evict| Reclaim { victim, evict, ids: Vec::new(), notes: None, erasing: false };
        let candidates = || {
            let may = |segment: &Segment| segment.state == State::Sealed && Some(segment.life) != newest;
            (0u32..).zip(&self.segments).filter(move |(_, segment)| may(segment))
        };
        // What could not be read cannot be carried; but it can leave.
        let movable = |segment: &Segment| !segment.stuck || segment.live == 0;
        let emptiest = candidates().filter(|(_, segment)| movable(segment));
        let emptiest = emptiest.min_by_key(|(number, segment)| (segment.live, *number));
        if let Some((victim, segment)) = emptiest
            && segment.live <= self.segment_bytes / 2 - 4 * BLOCK
            && segment.live <= room
        {
            return Some(chosen(victim, false));
        }
        let spare = sabotaged!(self.config.sabotage, EvictProtected);
        let coldest = |may: &dyn Fn(&Segment) -> bool| {
            let evictable = |segment: &Segment| spare || !segment.stuck || segment.protected == 0;
            let candidates = candidates().filter(|(_, segment)| evictable(segment) && may(segment));
            candidates.min_by_key(|(number, segment)| (segment.mean_touch(), *number))
        };
        // What is large and stays would only move from one segment to another. If there is nothing else, at
        // least something must leave.
        let gains = |segment: &Segment| {
            let dead = segment.used - segment.live.min(segment.used);
            segment.live > segment.protected || dead >= self.segment_bytes / 8
        };
        let victim = coldest(&|segment| spare || segment.footprint <= room)
            .or_else(|| coldest(&|segment| segment.protected <= room && gains(segment)));
        victim.map(|(victim, _)| chosen(victim, true))
    }

    /// What must not go with the segment.
    fn must_carry(&self, reclaim: &Reclaim) -> Vec<RecordId> {
        let Some(segment) = self.segments.get(reclaim.victim as usize) else { return Vec::new() };
        let spare = sabotaged!(self.config.sabotage, EvictProtected);
        let must = |id: &RecordId| {
            let live = self.records.get(id).filter(|live| live.location.segment == reclaim.victim);
            live.is_some_and(|live| !reclaim.evict || (live.record.protected && !spare))
        };
        let must_part = |id: &RecordId| {
            let piece = self.pieces.get(id).filter(|piece| piece.location.segment == reclaim.victim);
            piece.is_some_and(|piece| !reclaim.evict || piece.protected)
        };
        let left_behind = sabotaged!(self.config.sabotage, LeavePartsBehind);
        let parts = segment.parts.iter().copied().filter(|id| must_part(id) && !left_behind);
        let mut ids: Vec<RecordId> = segment.ids.iter().copied().filter(must).chain(parts).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    fn start_carries(&mut self) {
        while self.carries.len() < self.config.limits.carries_max {
            let Some(id) = self.reclaim.as_mut().and_then(|reclaim| reclaim.ids.last().copied()) else {
                return;
            };
            if !self.start_carry(id) {
                return;
            }
            if let Some(reclaim) = &mut self.reclaim {
                reclaim.ids.pop();
            }
        }
    }

    /// False if there is no place yet.
    fn start_carry(&mut self, id: RecordId) -> bool {
        let Some(victim) = self.reclaim.as_ref().map(|reclaim| reclaim.victim) else { return true };
        let Some(mut carry) = self.carry_of(id, victim) else { return true };
        let Some((segment, offset)) = self.place(carry.extent, carry.compact, true) else { return false };
        (carry.segment, carry.offset) = (segment, offset);
        let name = self.next_stage;
        self.next_stage += 1;
        self.carries.insert(name, carry);
        self.carry_on(name);
        true
    }

    /// What is to be done to move a record or a part out of the victim; nothing if it is not there.
    fn carry_of(&self, id: RecordId, victim: u32) -> Option<Carry> {
        if let Some(piece) = self.pieces.get(&id).filter(|piece| piece.location.segment == victim) {
            return Some(Carry {
                id,
                part: Some(piece.head),
                from: piece.location.sequence,
                from_at: self.payload_at(piece.location),
                segment: 0,
                offset: 0,
                sequence: 0,
                extent: piece.location.extent,
                header_bytes: piece.location.header_bytes,
                compact: Entry::part_bytes(piece.sums.len() as u64),
                payload_bytes: piece.head.bytes,
                sums: Arc::clone(&piece.sums),
                position: 0,
                stage: None,
                #[cfg(feature = "sabotage")]
                record: None,
            });
        }
        let live = self.records.get(&id).filter(|live| live.location.segment == victim)?;
        let (extent, header_bytes, compact) = Self::extent_of_live(live, &live.record);
        let follows = if live.parts.is_empty() { live.record.payload_bytes } else { 0 };
        Some(Carry {
            id,
            part: None,
            from: live.location.sequence,
            from_at: self.payload_at(live.location),
            segment: 0,
            offset: 0,
            sequence: 0,
            extent,
            header_bytes,
            compact,
            payload_bytes: follows,
            sums: Arc::clone(&live.sums),
            position: 0,
            stage: None,
            #[cfg(feature = "sabotage")]
            record: live.parts.is_empty().then(|| live.record.clone()),
        })
    }

    /// Where the payload of an entry begins on the disk.
    fn payload_at(&self, location: Location) -> u64 {
        self.at(location.segment, location.offset + location.header_bytes)
    }

    /// Whether what is carried still lies where it is carried from.
    fn is_carried_from(&self, carry: &Carry) -> bool {
        let live = self.records.get(&carry.id).map(|live| live.location.sequence);
        let piece = self.pieces.get(&carry.id).map(|piece| piece.location.sequence);
        live.or(piece) == Some(carry.from)
    }

    /// Reads the next bytes of a record that is carried, or writes its header after the last.
    fn carry_on(&mut self, name: u64) {
        let Some(carry) = self.carries.get_mut(&name) else { return };
        if carry.position == carry.payload_bytes {
            return self.carry_header(name);
        }
        let stage = StageId(self.next_stage);
        self.next_stage += 1;
        carry.stage = Some(stage);
        let at = carry.from_at + carry.position;
        let len = CHUNK_BYTES.min(carry.payload_bytes - carry.position);
        let sum_bytes = sum_bytes(carry.payload_bytes, carry.sums.len()).unwrap_or(SUM_BYTES);
        let first = (carry.position / sum_bytes) as usize;
        let checks = Checks { sums: Arc::clone(&carry.sums), sum_bytes, first };
        let io = self.io(Io::CarryRead(name));
        self.effects.push(Effect::Read { io, at, len, into: Into::Stage { stage, checks } });
    }

    pub(super) fn carry_read_done(&mut self, name: u64, result: Done) {
        let Some(carry) = self.carries.get(&name) else { return };
        let Some(stage) = carry.stage else { return };
        let id = carry.id;
        match result {
            Done::Ok | Done::Bytes(_) => {}
            Done::Corrupt => {
                let (same, of) = (self.is_carried_from(carry), carry.part.map_or(id, |part| part.of));
                self.carry_end(name);
                if same {
                    self.corrupt(of);
                    self.abort_of(of);
                }
                return;
            }
            Done::Failed(_) => {
                // The record may be readable another time: the segment stays as it is.
                self.carry_end(name);
                if let Some(reclaim) = self.reclaim.take() {
                    self.segment(reclaim.victim).stuck = true;
                }
                return;
            }
        }
        let len = CHUNK_BYTES.min(carry.payload_bytes - carry.position);
        let at = self.at(carry.segment, carry.offset + carry.header_bytes + carry.position);
        let mut parts = vec![Part::Stage { stage, len }];
        if blocks_up(len) > len {
            parts.push(Part::Zeros(blocks_up(len) - len));
        }
        self.count_written(&parts);
        self.stats.carried_bytes += blocks_up(len);
        let io = self.io(Io::CarryWrite(name));
        self.effects.push(Effect::Write { io, at, parts });
    }

    pub(super) fn carry_write_done(&mut self, name: u64, result: Done) {
        if let Done::Failed(fault) = result {
            return self.fail(fault);
        }
        let Some(carry) = self.carries.get_mut(&name) else { return };
        let stage = carry.stage.take();
        carry.position += CHUNK_BYTES.min(carry.payload_bytes - carry.position);
        if let Some(stage) = stage {
            self.effects.push(Effect::Unstage { stage });
        }
        self.carry_on(name);
    }

    /// The entry that a copy begins with, if what is carried is still there and as long as it was.
    fn carried_body(&self, carry: &Carry) -> Option<Body> {
        let (id, sums) = (carry.id, Arc::clone(&carry.sums));
        #[cfg(feature = "sabotage")]
        if let Some(record) = &carry.record
            && sabotaged!(self.config.sabotage, CarryForgotten)
        {
            return Some(Body::Record { id, record: record.clone(), sums });
        }
        if !self.is_carried_from(carry) {
            return None;
        }
        if let Some(part) = carry.part {
            return Some(Body::Part { id, part, sums });
        }
        let live = self.records.get(&id)?;
        let (.., compact) = Self::extent_of_live(live, &live.record);
        let record = live.record.clone();
        let body = match live.parts.is_empty() {
            true => Body::Record { id, record, sums },
            false => Body::Spanning { id, record, parts: Arc::clone(&live.parts) },
        };
        (compact == carry.compact).then_some(body)
    }

    /// The payload is written: the header makes it a copy of the record, with the marks that it has now.
    fn carry_header(&mut self, name: u64) {
        let Some(carry) = self.carries.get(&name) else { return };
        let (id, is_part) = (carry.id, carry.part.is_some());
        let Some(body) = self.carried_body(carry) else { return self.carry_end(name) };
        let sequence = self.sequence();
        let Some(carry) = self.carries.get_mut(&name) else { return };
        carry.sequence = sequence;
        let (number, offset, header_bytes) = (carry.segment, carry.offset, carry.header_bytes);
        if let Some(live) = self.records.get_mut(&id) {
            live.copies += 1;
        } else if let Some(tomb) = self.tombs.get_mut(&id) {
            tomb.copies += 1;
        }
        let log = self.log;
        let segment = self.segment(number);
        let mut header = Entry { life: segment.life, offset, sequence, body }.encode(log);
        segment.index.extend(&header);
        let copies = if is_part { &mut segment.parts } else { &mut segment.ids };
        copies.push(id);
        header.resize(header_bytes as usize, 0);
        self.stats.carried_bytes += header_bytes;
        let batch = Batch { segment: number, bytes: 0, members: vec![Member::Carry { carry: name }] };
        self.write(self.at(number, offset), vec![Part::Bytes(header)], Commit::Batch(batch));
        if sabotaged!(self.config.sabotage, EraseBeforeCarried) {
            self.carry_durable(name);
        }
    }

    /// The copy counts from now on.
    pub(super) fn carry_durable(&mut self, name: u64) {
        let Some(carry) = self.carries.remove(&name) else { return };
        if !self.is_carried_from(&carry) {
            #[cfg(feature = "sabotage")]
            self.resurrect(carry);
            return;
        }
        let Carry { id, segment, offset, sequence, extent, header_bytes, .. } = carry;
        let moved = |from: Location| Location { segment, offset, header_bytes, extent, sequence, ..from };
        let (from, to, protected) = if let Some(piece) = self.pieces.get_mut(&id) {
            let from = piece.location;
            piece.location = moved(from);
            (from, piece.location, piece.protected)
        } else if let Some(live) = self.records.get_mut(&id) {
            let from = live.location;
            live.location = moved(from);
            live.marks_at = live.marks_at.filter(|_| live.marks_sequence > sequence);
            (from, live.location, live.record.protected)
        } else {
            return;
        };
        self.count(from, protected, false);
        self.count(to, protected, true);
    }

    #[cfg(feature = "sabotage")]
    fn resurrect(&mut self, carry: Carry) {
        let Some(record) = carry.record else { return };
        let gone = self.find(&record.name).is_none();
        if sabotaged!(self.config.sabotage, CarryForgotten) && gone {
            let copies = self.tombs.remove(&carry.id).map_or(1, |tomb| tomb.copies);
            let Carry { id, segment, offset, header_bytes, extent, sequence, sums, .. } = carry;
            let location = Location { segment, offset, header_bytes, extent, sequence, touch: 0 };
            let parts = Arc::default();
            let (marks_at, marks_sequence) = (None, 0);
            self.insert(id, super::Live { record, sums, parts, location, copies, marks_at, marks_sequence });
        }
    }

    /// Gives a carry up before its header is written; the room it had stays unused.
    fn carry_end(&mut self, name: u64) {
        let Some(carry) = self.carries.remove(&name) else { return };
        if let Some(stage) = carry.stage {
            self.effects.push(Effect::Unstage { stage });
        }
        let segment = self.segment(carry.segment);
        segment.pending -= 1;
        segment.index_bytes -= carry.compact;
    }

    pub(super) fn unstage_carries(&mut self) {
        for carry in std::mem::take(&mut self.carries).into_values() {
            if let Some(stage) = carry.stage {
                self.effects.push(Effect::Unstage { stage });
            }
        }
    }

    /// Nothing is being carried: whatever must still leave does, and then the segment is erased.
    fn finish_reclaim(&mut self) {
        let Some(mut reclaim) = self.reclaim.take() else { return };
        let more = self.must_carry(&reclaim);
        if !more.is_empty() {
            reclaim.ids = more;
            reclaim.notes = None;
            self.reclaim = Some(reclaim);
            return self.start_carries();
        }
        let victim = reclaim.victim;
        match reclaim.notes {
            None => {
                self.write_notes_anew(victim);
                // Tombstones that others queued count too: an older generation must be buried before a newer
                // leaves.
                reclaim.notes = Some(self.notes_queued);
                self.reclaim = Some(reclaim);
                self.pump_notes();
                if self.notes_committed >= self.notes_queued {
                    self.finish_reclaim();
                }
            }
            Some(notes) if self.notes_committed < notes => self.reclaim = Some(reclaim),
            Some(_) => {
                reclaim.erasing = true;
                match reclaim.evict {
                    true => self.stats.segments_evicted += 1,
                    false => self.stats.segments_compacted += 1,
                }
                self.reclaim = Some(reclaim);
                self.erase(victim);
            }
        }
    }

    /// What the segment says about records elsewhere, and what keeps its evicted records from coming back.
    fn write_notes_anew(&mut self, victim: u32) {
        let segment = self.segment(victim);
        let (mut noted, mut ids) = (segment.noted.clone(), segment.ids.clone());
        ids.sort_unstable();
        noted.sort_unstable();
        noted.dedup();
        let here = |id: RecordId, ids: &[RecordId]| {
            (ids.partition_point(|other| *other <= id) - ids.partition_point(|other| *other < id)) as u32
        };
        for id in noted {
            let copies = here(id, &ids);
            if let Some(tomb) = self.tombs.get(&id) {
                let needed = tomb.copies > copies || self.unsure > 0;
                let dropped = sabotaged!(self.config.sabotage, DropTombstones);
                if tomb.at == Some(victim) && needed && !dropped {
                    self.queue_note(Note::Forget(id), None);
                }
            } else if let Some(live) = self.records.get(&id)
                && live.marks_at == Some(victim)
                && live.location.segment != victim
                && !sabotaged!(self.config.sabotage, DropMarks)
            {
                let (protected, marks) = (live.record.protected, live.record.marks.clone());
                self.queue_note(Note::Mark { id, protected, marks }, None);
            }
        }
        let sorted = ids.clone();
        // What loses a part leaves whole, before the part is erased.
        let pieces = self.segment(victim).parts.clone();
        let pieces =
            pieces.iter().filter_map(|id| self.pieces.get(id).filter(|it| it.location.segment == victim));
        let owners: Vec<RecordId> = pieces.map(|piece| piece.head.of).collect();
        // Both are `false` in production, which clippy would take for one expression.
        let left_behind = sabotaged!(self.config.sabotage, LeavePartsBehind);
        let alone = left_behind || sabotaged!(self.config.sabotage, EvictPartAlone);
        ids.extend(owners.iter().filter(|_| !alone));
        ids.sort_unstable();
        ids.dedup();
        for id in ids {
            let copies = here(id, &sorted);
            let leaves = self.records.get(&id).is_some_and(|live| {
                let has_part_here = !alone && owners.contains(&id);
                (live.location.segment == victim || has_part_here) && live.copies > copies
            });
            if leaves && let Some(live) = self.remove(id) {
                self.stats.evicted += 1;
                self.going.insert(id);
                self.tombs.insert(id, super::Tomb { copies: live.copies, at: None });
                self.queue(Note::Forget(id), None, Some(Left::Evicted));
            }
        }
    }

    fn erase(&mut self, victim: u32) {
        self.segment(victim).state = State::Erasing;
        self.write(self.at(victim, 0), vec![Part::Zeros(BLOCK)], Commit::Erase(victim));
        if sabotaged!(self.config.sabotage, ReportBeforeErased) {
            self.report_evicted(victim);
        }
    }

    fn report_evicted(&mut self, victim: u32) {
        let ids = self.segment(victim).ids.clone();
        let mut gone: Vec<RecordId> = ids
            .into_iter()
            .filter(|id| self.records.get(id).is_some_and(|live| live.location.segment == victim))
            .collect();
        gone.sort_unstable();
        gone.dedup();
        gone.iter().for_each(|id| drop(self.remove(*id)));
        self.stats.evicted += gone.len() as u64;
        if !gone.is_empty() {
            self.effects.push(Effect::Event(Event::Left(Left::Evicted, gone)));
        }
    }

    /// The header is durably gone: so are the records, and the segment is free when nobody reads it any more.
    pub(super) fn erased(&mut self, victim: u32) {
        self.report_evicted(victim);
        let ids = std::mem::take(&mut self.segment(victim).ids);
        self.forget_copies(&ids);
        let reuse = sabotaged!(self.config.sabotage, ReuseUnderReaders);
        let segment = self.segment(victim);
        let readers = segment.readers;
        *segment = Segment::free();
        segment.readers = readers;
        if readers > 0 && !reuse {
            segment.state = State::Draining;
        } else {
            self.free.insert(victim);
        }
        self.reclaim = None;
        debug_assert!(matches!(self.health, Health::Ready), "a failed log erases nothing");
    }
}
