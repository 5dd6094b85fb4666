//! Reclaims segments: moves the entries that must stay, rewrites tombstones, and erases the segment.
//!
//! A segment that is at most half live is compacted, which loses nothing. If there is none, the segment with
//! the oldest mean use is evicted, and only its protected records are moved. One segment is reclaimed at a
//! time. Appends wait for it in their queue; reads are not affected.
//!
//! A part of a spanning record is moved by itself. If it is evicted, its record is evicted.

use std::sync::Arc;

use super::table::{Location, State};
use super::write::{Batch, Commit, Member};
use super::{Checks, Done, Effect, Health, Into, Io, Log, Part, RESERVE_SEGMENTS, Segment};
use crate::layout::{BLOCK, Body, CHUNK_BYTES, Entry, Note, PartHead, SUM_BYTES, blocks_up, sum_bytes};
use crate::sabotage::sabotaged;
use crate::types::{Event, Left, RecordId, StageId};

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

/// A record or part that is being moved.
#[derive(Debug)]
pub(super) struct Carry {
    id: RecordId,
    /// The header of a part.
    part: Option<PartHead>,
    /// The sequence number of the copy that is moved. If it has changed at the end, the move is void.
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
            if !self.needs_space() {
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

    /// The records that a crash now may remove although they were not reported as evicted.
    pub fn leaving(&self) -> Vec<RecordId> {
        let mut ids: Vec<RecordId> = self.evicting.iter().copied().collect();
        let erasing = |live: &super::Live| {
            let segment = self.segments.get(live.location.segment as usize);
            segment.is_some_and(|segment| segment.state == State::Erasing)
        };
        ids.extend(self.records.iter().filter(|(_, live)| erasing(live)).map(|(id, _)| *id));
        ids
    }

    fn needs_space(&self) -> bool {
        if self.free_segments() > RESERVE_SEGMENTS {
            return false;
        }
        if self.free_segments() < RESERVE_SEGMENTS {
            return true;
        }
        // An entry that fits into the open segment needs no other. Else moved entries would take its space
        // again and again.
        let waits = self.spanning_waits()
            || self.appends.front().is_some_and(|append| {
                let (extent, _, compact) = Self::extent_of(&append.record);
                !self.spans(&append.record) && !self.open_fits(extent, compact)
            });
        let open = self.open.and_then(|number| self.segments.get(number as usize));
        // A segment is reclaimed ahead of need, so that appends need not wait for it.
        waits || open.is_some_and(|segment| segment.used > self.segment_bytes / 4 * 3)
    }

    /// The space for moved entries.
    fn carry_space(&self) -> u64 {
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
        let newest = self.segments.iter().map(|segment| segment.incarnation).max();
        let room = self.carry_space();
        let chosen = |victim, evict| Reclaim { victim, evict, ids: Vec::new(), notes: None, erasing: false };
        let candidates = || {
            let may =
                |segment: &Segment| segment.state == State::Sealed && Some(segment.incarnation) != newest;
            (0u32..).zip(&self.segments).filter(move |(_, segment)| may(segment))
        };
        // An unreadable record cannot be moved, but it can be evicted.
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
        // Large entries that stay would only move from one segment to another. If there is no other choice,
        // at least some bytes must be freed.
        let gains = |segment: &Segment| {
            let dead = segment.used - segment.live.min(segment.used);
            segment.live > segment.protected || dead >= self.segment_bytes / 8
        };
        let victim = coldest(&|segment| spare || segment.footprint <= room)
            .or_else(|| coldest(&|segment| segment.protected <= room && gains(segment)));
        victim.map(|(victim, _)| chosen(victim, true))
    }

    /// The records and parts that must be moved.
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

    /// Starts to move an entry. False if there is no space yet.
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

    /// The move of a record or part out of the victim. `None` if it is not there any more.
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

    /// Whether the entry is still where it is moved from.
    fn is_carried_from(&self, carry: &Carry) -> bool {
        let live = self.records.get(&carry.id).map(|live| live.location.sequence);
        let piece = self.pieces.get(&carry.id).map(|piece| piece.location.sequence);
        live.or(piece) == Some(carry.from)
    }

    /// Reads the next bytes of a moved entry, or writes its header after the last.
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
                // A later read may succeed: the segment stays as it is.
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

    /// The header of the new copy, if the entry still exists and its size has not changed.
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

    /// Writes the header after the payload. It makes the copy valid, with the current attributes.
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
        } else if let Some(tombstone) = self.tombstones.get_mut(&id) {
            tombstone.copies += 1;
        }
        let log = self.log;
        let segment = self.segment(number);
        let mut header = Entry { incarnation: segment.incarnation, offset, sequence, body }.encode(log);
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

    /// Replaces the old copy by the new one, which is durable.
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
            live.attributes_segment = live.attributes_segment.filter(|_| live.attributes_sequence > sequence);
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
            let copies = self.tombstones.remove(&carry.id).map_or(1, |tombstone| tombstone.copies);
            let Carry { id, segment, offset, header_bytes, extent, sequence, sums, .. } = carry;
            let location = Location { segment, offset, header_bytes, extent, sequence, touch: 0 };
            let parts = Arc::default();
            let (attributes_segment, attributes_sequence) = (None, 0);
            self.insert(
                id,
                super::Live {
                    record,
                    sums,
                    parts,
                    location,
                    copies,
                    attributes_segment,
                    attributes_sequence,
                },
            );
        }
    }

    /// Aborts a move before its header is written; the allocated space stays unused.
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

    /// Continues after all moves: rewrites notes, then erases the segment.
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
                // Notes that were queued before are included: the tombstone of an older generation must be
                // durable before a newer one is evicted.
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

    /// Rewrites the notes of the segment that are still needed, and queues tombstones for evicted records.
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
            if let Some(tombstone) = self.tombstones.get(&id) {
                let needed = tombstone.copies > copies || self.segments_incomplete > 0;
                let dropped = sabotaged!(self.config.sabotage, DropTombstones);
                if tombstone.at == Some(victim) && needed && !dropped {
                    self.queue_note(Note::Forget(id), None);
                }
            } else if let Some(live) = self.records.get(&id)
                && live.attributes_segment == Some(victim)
                && live.location.segment != victim
                && !sabotaged!(self.config.sabotage, DropAttributes)
            {
                let (protected, attributes) = (live.record.protected, live.record.attributes.clone());
                self.queue_note(Note::Attributes { id, protected, attributes }, None);
            }
        }
        let sorted = ids.clone();
        // A record that loses a part is evicted before the part is erased.
        let pieces = self.segment(victim).parts.clone();
        let pieces =
            pieces.iter().filter_map(|id| self.pieces.get(id).filter(|it| it.location.segment == victim));
        let owners: Vec<RecordId> = pieces.map(|piece| piece.head.of).collect();
        // In two steps: both are `false` in production, and clippy rejects equal operands.
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
                self.evicting.insert(id);
                self.tombstones.insert(id, super::Tombstone { copies: live.copies, at: None });
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

    /// Removes the evicted records after the segment was durably erased. It is free when its last read has
    /// ended.
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
