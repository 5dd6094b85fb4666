//! Recovery: rebuilds the tables by reading the log.
//!
//! A sealed segment is read by its index alone, which was written after all its entries were durable. Any
//! other segment is scanned block by block, and payloads are verified: a torn or damaged entry is dropped
//! alone. The newest segment continues after its last entry.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::span::Piece;
use super::table::{Live, Location, Segment, State, Tombstone};
use super::{Done, Effect, Health, Into, Io, Log, Part};
use crate::layout::{
    BLOCK, Body, CHUNK_BYTES, Decoded, Entry, HEAD_BYTES, Note, PartHead, SegmentHead, Super, Trailer,
    VERSION, blocks_up, sum_bytes, verify,
};
use crate::sabotage::sabotaged;
use crate::types::{Event, Fault, IoId, OpenFault, RecordId, Recovery};

/// Maximum number of segments that are read at a time.
const JOBS_MAX: usize = 16;
/// Maximum bytes of one read.
const LOAD_BYTES: u64 = 1 << 20;

/// The unit that a disk writes atomically. The fields of a segment head are in its first one.
const SECTOR: usize = 512;

/// The state of the recovery.
#[derive(Debug)]
pub(super) struct Recoverer {
    wants: BTreeMap<IoId, Want>,
    waiting: VecDeque<u32>,
    jobs: BTreeMap<u32, Job>,
    copies: BTreeMap<RecordId, Candidate>,
    /// The newest valid copy of each part so far.
    pieces: BTreeMap<RecordId, Piece>,
    tombstones: BTreeMap<RecordId, u32>,
    attributes: BTreeMap<RecordId, AttributesNote>,
    report: Recovery,
}

/// The purpose of a disk operation.
#[derive(Debug)]
enum Want {
    Supers,
    /// A copy of the superblock was written.
    SuperWritten(usize),
    SuperSynced(usize),
    Segment(u32),
}

/// A segment that is being read.
#[derive(Debug)]
struct Job {
    stage: Stage,
    head: SegmentHead,
    trailer: bool,
    indexed: bool,
    /// Where the next entry would go.
    end: u64,
    index: Vec<u8>,
    unreadable: u64,
    /// Where a read of more than a block failed last.
    failed_at: u64,
}

#[derive(Debug)]
enum Stage {
    Head,
    Trailer,
    Index {
        trailer: Trailer,
        bytes: Vec<u8>,
    },
    /// Searches for a header.
    Hunt {
        offset: u64,
        len: u64,
    },
    /// Verifies the payload of an entry.
    Payload {
        decoded: Box<Decoded>,
        chunk: u64,
    },
}

/// The best copy of a record so far.
#[derive(Debug)]
struct Candidate {
    live: Live,
    good: bool,
}

#[derive(Debug)]
struct AttributesNote {
    sequence: u64,
    protected: bool,
    attributes: Vec<u8>,
    segment: u32,
}

impl Log {
    pub(super) fn recover_start(&mut self) {
        self.recoverer = Some(Box::new(Recoverer {
            wants: BTreeMap::new(),
            waiting: VecDeque::new(),
            jobs: BTreeMap::new(),
            copies: BTreeMap::new(),
            pieces: BTreeMap::new(),
            tombstones: BTreeMap::new(),
            attributes: BTreeMap::new(),
            report: Recovery::default(),
        }));
        self.load(0, 2 * BLOCK, Want::Supers);
    }

    fn load(&mut self, at: u64, len: u64, want: Want) {
        let io = self.io(Io::Recover);
        if let Some(recoverer) = &mut self.recoverer {
            recoverer.wants.insert(io, want);
        }
        self.effects.push(Effect::Read { io, at, len, into: Into::Log });
    }

    fn unusable(&mut self, fault: OpenFault) {
        self.recoverer = None;
        self.health = Health::Unusable(fault.clone());
        self.effects.push(Effect::Event(Event::Unusable(fault)));
    }

    pub(super) fn recover_done(&mut self, io: IoId, result: Done) {
        let Some(want) = self.recoverer.as_mut().and_then(|recoverer| recoverer.wants.remove(&io)) else {
            return;
        };
        match (want, result) {
            (Want::Supers, Done::Bytes(bytes)) => match self.supers(&bytes) {
                Ok(stale) if stale => self.write_super(0),
                Ok(_) => self.read_segments(),
                Err(fault) => self.unusable(fault),
            },
            (Want::SuperWritten(copy), Done::Ok) => {
                let io = self.io(Io::Recover);
                if let Some(recoverer) = &mut self.recoverer {
                    recoverer.wants.insert(io, Want::SuperSynced(copy));
                }
                self.effects.push(Effect::Sync { io });
            }
            (Want::SuperSynced(0), Done::Ok) => self.write_super(1),
            (Want::SuperSynced(_), Done::Ok) => self.read_segments(),
            (Want::Segment(number), result) => self.segment_loaded(number, result),
            (_, Done::Failed(fault)) => self.unusable(OpenFault::Disk(fault)),
            (want, result) => {
                let text = format!("unexpected result of {want:?}: {result:?}");
                self.unusable(OpenFault::Disk(Fault::new(crate::types::FaultKind::Other, text)));
            }
        }
    }

    /// Reads the superblocks; true if they must be written.
    fn supers(&mut self, bytes: &[u8]) -> Result<bool, OpenFault> {
        let copies =
            [0, BLOCK as usize].map(|at| Super::decode(bytes.get(at..at + BLOCK as usize).unwrap_or(&[1])));
        let found = found(&copies)?;
        let asked = self.config.segment_bytes;
        if let (Some(found), Some(asked)) = (found, asked)
            && found.segment_bytes != asked
        {
            return Err(OpenFault::SegmentBytes { found: found.segment_bytes, asked });
        }
        let budget = self.config.budget_bytes;
        let shape = super::shape(budget, found.map(|found| found.segment_bytes).or(asked));
        let (segment_bytes, count) = match (shape, found) {
            (Ok(shape), _) => shape,
            (Err(_), Some(found)) => {
                let found = HEAD_BYTES + found.segments * found.segment_bytes;
                return Err(OpenFault::Shrunk { found, budget });
            }
            (Err(text), None) => {
                return Err(OpenFault::Disk(Fault::new(crate::types::FaultKind::NoSpace, text)));
            }
        };
        if let Some(found) = found.filter(|found| found.segments > count) {
            return Err(OpenFault::Shrunk { found: HEAD_BYTES + found.segments * segment_bytes, budget });
        }
        self.log = found.map_or(self.config.log, |found| found.log);
        self.segment_bytes = segment_bytes;
        self.segments = (0..count).map(|_| Segment::free()).collect();
        // A log of an older version is converted.
        let wanted = Super { version: VERSION, log: self.log, segment_bytes, segments: count };
        Ok(copies.iter().any(|copy| *copy != Ok(Some(wanted))))
    }

    /// Writes the copies one after the other, so that one is always complete.
    fn write_super(&mut self, copy: usize) {
        let count = self.segments.len() as u64;
        let (log, segment_bytes) = (self.log, self.segment_bytes);
        let block = Super { version: VERSION, log, segment_bytes, segments: count }.encode();
        let io = self.io(Io::Recover);
        if let Some(recoverer) = &mut self.recoverer {
            recoverer.wants.insert(io, Want::SuperWritten(copy));
        }
        let parts = vec![Part::Bytes(block)];
        self.count_written(&parts);
        self.effects.push(Effect::Write { io, at: copy as u64 * BLOCK, parts });
    }

    fn read_segments(&mut self) {
        let count = self.segments.len() as u32;
        if let Some(recoverer) = &mut self.recoverer {
            recoverer.waiting = (0..count).collect();
        }
        self.more_jobs();
    }

    fn more_jobs(&mut self) {
        loop {
            let Some(recoverer) = &mut self.recoverer else { return };
            if recoverer.jobs.len() >= JOBS_MAX {
                return;
            }
            let Some(number) = recoverer.waiting.pop_front() else { break };
            let head = SegmentHead { incarnation: 0, floor: 0 };
            let job = Job {
                stage: Stage::Head,
                head,
                trailer: false,
                indexed: false,
                end: 0,
                index: Vec::new(),
                unreadable: 0,
                failed_at: 0,
            };
            recoverer.jobs.insert(number, job);
            self.load(self.at(number, 0), BLOCK, Want::Segment(number));
        }
        if self.recoverer.as_ref().is_some_and(|recoverer| recoverer.jobs.is_empty()) {
            self.recovered();
        }
    }

    /// Handles the next read of a segment, and starts another or ends the segment.
    fn segment_loaded(&mut self, number: u32, result: Done) {
        let Some(mut job) = self.recoverer.as_mut().and_then(|recoverer| recoverer.jobs.remove(&number))
        else {
            return;
        };
        let loaded = match result {
            Done::Bytes(bytes) => Some(bytes),
            _ => None,
        };
        let more = match std::mem::replace(&mut job.stage, Stage::Head) {
            Stage::Head => self.head_loaded(number, &mut job, loaded),
            Stage::Trailer => self.trailer_loaded(&mut job, loaded),
            Stage::Index { trailer, bytes } => self.index_loaded(number, &mut job, trailer, bytes, loaded),
            Stage::Hunt { offset, len } => self.hunt_loaded(number, &mut job, offset, len, loaded),
            Stage::Payload { decoded, chunk } => {
                self.payload_loaded(number, &mut job, decoded, chunk, loaded)
            }
        };
        if let Some((offset, len)) = more {
            if let Some(recoverer) = &mut self.recoverer {
                recoverer.jobs.insert(number, job);
            }
            self.load(self.at(number, offset), len, Want::Segment(number));
        } else {
            self.segment_read(number, job);
            self.more_jobs();
        }
    }

    /// Each of these handlers returns the next range to read in the segment.
    fn head_loaded(&mut self, number: u32, job: &mut Job, loaded: Option<Vec<u8>>) -> Option<(u64, u64)> {
        let Some(bytes) = loaded else {
            // A later read may succeed: the segment is neither used nor erased.
            self.segment(number).state = State::Bad;
            self.segments_incomplete += 1;
            if let Some(recoverer) = &mut self.recoverer {
                recoverer.report.blocks_unreadable += 1;
            }
            return None;
        };
        // An erased head is all zeros. A damaged one does not matter if the segment has an index.
        match SegmentHead::decode(&bytes, self.log, number) {
            Some(head) => job.head = head,
            None if bytes.iter().take(SECTOR).all(|byte| *byte == 0) => return None,
            None => {}
        }
        job.stage = Stage::Trailer;
        Some((self.segment_bytes - BLOCK, BLOCK))
    }

    fn trailer_loaded(&mut self, job: &mut Job, loaded: Option<Vec<u8>>) -> Option<(u64, u64)> {
        let trailer = loaded.and_then(|bytes| Trailer::decode(&bytes, self.log));
        let fits = |trailer: &Trailer| {
            (trailer.incarnation == job.head.incarnation || job.head.incarnation == 0)
                && trailer.index_offset.is_multiple_of(BLOCK)
                && trailer.index_offset.checked_add(blocks_up(trailer.index_bytes))
                    == Some(self.segment_bytes - BLOCK)
        };
        match trailer.filter(fits) {
            Some(trailer) => {
                job.trailer = true;
                job.head.incarnation = trailer.incarnation;
                let len = trailer.index_bytes.clamp(1, LOAD_BYTES);
                job.stage = Stage::Index { trailer, bytes: Vec::new() };
                Some((trailer.index_offset.min(self.segment_bytes - BLOCK), blocks_up(len)))
            }
            None if job.head.incarnation == 0 => None,
            None => self.hunt(job, BLOCK, LOAD_BYTES),
        }
    }

    fn index_loaded(
        &mut self,
        number: u32,
        job: &mut Job,
        trailer: Trailer,
        mut bytes: Vec<u8>,
        loaded: Option<Vec<u8>>,
    ) -> Option<(u64, u64)> {
        let Some(loaded) = loaded else { return self.hunt(job, BLOCK, LOAD_BYTES) };
        bytes.extend(loaded);
        if (bytes.len() as u64) < trailer.index_bytes {
            let offset = trailer.index_offset + bytes.len() as u64;
            let len = blocks_up((trailer.index_bytes - bytes.len() as u64).min(LOAD_BYTES));
            job.stage = Stage::Index { trailer, bytes };
            return Some((offset, len));
        }
        bytes.truncate(trailer.index_bytes as usize);
        if xxhash_rust::xxh3::xxh3_64(&bytes) != trailer.index_sum {
            return self.hunt(job, BLOCK, LOAD_BYTES);
        }
        job.indexed = true;
        let mut rest = bytes.as_slice();
        while let Some(decoded) = Entry::decode(rest, self.log) {
            rest = rest.get(decoded.compact_bytes..).unwrap_or_default();
            self.found(number, job, decoded, true);
        }
        let segment = self.segment(number);
        segment.state = State::Sealed;
        segment.used = trailer.index_offset;
        None
    }

    fn hunt(&mut self, job: &mut Job, offset: u64, len: u64) -> Option<(u64, u64)> {
        let end = self.segment_bytes - BLOCK;
        if offset >= end {
            return None;
        }
        let len = len.min(end - offset);
        job.stage = Stage::Hunt { offset, len };
        Some((offset, len))
    }

    /// Searches the loaded bytes for headers, and continues after them.
    fn hunt_loaded(
        &mut self,
        number: u32,
        job: &mut Job,
        offset: u64,
        len: u64,
        loaded: Option<Vec<u8>>,
    ) -> Option<(u64, u64)> {
        let Some(bytes) = loaded else {
            // After a failed read, blocks are read one by one, so that only bad ones are lost.
            if len > BLOCK {
                job.failed_at = offset;
                return self.hunt(job, offset, BLOCK);
            }
            job.unreadable += 1;
            job.end = job.end.max(offset + BLOCK);
            return self.hunt(job, offset + BLOCK, LOAD_BYTES);
        };
        let mut position = 0;
        while let Some(rest) = bytes.get(position as usize..).filter(|rest| !rest.is_empty()) {
            let here = offset + position;
            let Some(decoded) = self.entry_at(rest, job.head.incarnation, here) else {
                let wanted = Entry::wanted(rest).unwrap_or(0);
                let cut = wanted > rest.len() as u64 && here + wanted < self.segment_bytes;
                if cut && (position > 0 || len < wanted) && job.failed_at != here {
                    return self.hunt(job, here, wanted);
                }
                if sabotaged!(self.config.sabotage, StopAtBadBlock) {
                    return None;
                }
                position += BLOCK;
                continue;
            };
            let Some((payload, sums)) = decoded.entry.body.payload() else {
                position += decoded.extent;
                self.found(number, job, decoded, true);
                continue;
            };
            let (begin, payload) = (decoded.header_bytes as usize, payload as usize);
            if let Some(payload) = rest.get(begin..begin + payload) {
                let good = is_good(payload, sums, 0, payload.len() as u64)
                    || sabotaged!(self.config.sabotage, BelieveTail);
                position += decoded.extent;
                self.found(number, job, decoded, good);
                continue;
            }
            return Self::payload(job, Box::new(decoded), 0);
        }
        self.hunt(job, offset + bytes.len() as u64, LOAD_BYTES)
    }

    /// A valid header that belongs to this position, of an entry that fits into the segment.
    fn entry_at(&self, bytes: &[u8], incarnation: u64, offset: u64) -> Option<Decoded> {
        let decoded = Entry::decode(bytes, self.log)?;
        let ours = decoded.entry.incarnation == incarnation && decoded.entry.offset == offset;
        (ours && offset + decoded.extent < self.segment_bytes).then_some(decoded)
    }

    fn payload(job: &mut Job, decoded: Box<Decoded>, chunk: u64) -> Option<(u64, u64)> {
        let offset = decoded.entry.offset + decoded.header_bytes + chunk * CHUNK_BYTES;
        let end = decoded.entry.offset + decoded.extent;
        job.stage = Stage::Payload { decoded, chunk };
        Some((offset, (end - offset).min(CHUNK_BYTES)))
    }

    fn payload_loaded(
        &mut self,
        number: u32,
        job: &mut Job,
        decoded: Box<Decoded>,
        chunk: u64,
        loaded: Option<Vec<u8>>,
    ) -> Option<(u64, u64)> {
        let next = decoded.entry.offset + decoded.extent;
        let Some((payload, sums)) = decoded.entry.body.payload() else {
            return self.hunt(job, next, LOAD_BYTES);
        };
        let rest = payload - chunk * CHUNK_BYTES;
        if loaded.is_none() {
            job.unreadable += 1;
        }
        let good = loaded.is_some_and(|bytes| {
            let bytes = bytes.get(..rest.min(CHUNK_BYTES) as usize).unwrap_or_default();
            is_good(bytes, sums, chunk * CHUNK_BYTES, payload)
        });
        let good = good || sabotaged!(self.config.sabotage, BelieveTail);
        if good && rest > CHUNK_BYTES {
            return Self::payload(job, decoded, chunk + 1);
        }
        self.found(number, job, *decoded, good);
        self.hunt(job, next, LOAD_BYTES)
    }

    /// Adds an entry to the candidates.
    fn found(&mut self, number: u32, job: &mut Job, decoded: Decoded, good: bool) {
        let Decoded { entry, header_bytes, extent, .. } = decoded;
        // An index lists valid entries only: their payloads are not verified.
        if good && !job.indexed {
            job.index.extend(entry.encode(self.log));
        }
        job.end = job.end.max(entry.offset + extent);
        let ids = sabotaged!(self.config.sabotage, ReuseIds);
        if !ids {
            self.next_sequence = self.next_sequence.max(entry.sequence + 1);
        }
        let Some(recoverer) = &mut self.recoverer else { return };
        let (offset, sequence) = (entry.offset, entry.sequence);
        let location = Location { segment: number, offset, header_bytes, extent, sequence, touch: sequence };
        let live = |record, sums, parts| Live {
            record,
            sums,
            parts,
            location,
            copies: 1,
            attributes_segment: None,
            attributes_sequence: 0,
        };
        match entry.body {
            Body::Record { id, record, sums } => {
                recoverer.take(id, Candidate { live: live(record, sums, Arc::default()), good });
                self.segment(number).ids.push(id);
            }
            Body::Spanning { id, record, parts } => {
                recoverer.take(id, Candidate { live: live(record, Arc::default(), parts), good });
                self.segment(number).ids.push(id);
            }
            Body::Part { id, part, sums } => {
                let piece = Piece { head: part, sums, location, protected: false };
                recoverer.take_part(id, piece, good);
                self.segment(number).parts.push(id);
            }
            Body::Notes(notes) => {
                for note in notes {
                    let id = recoverer.note(note, sequence, number);
                    if let Some(segment) = self.segments.get_mut(number as usize) {
                        segment.noted.push(id);
                    }
                }
            }
        }
    }

    /// Ends the recovery of a segment.
    fn segment_read(&mut self, number: u32, job: Job) {
        let sabotage = sabotaged!(self.config.sabotage, ReuseIds);
        let segment = self.segment(number);
        segment.incarnation = job.head.incarnation;
        if job.head.incarnation == 0 {
            return;
        }
        let sealed = segment.state == State::Sealed;
        if !sealed {
            segment.state = State::Sealing { writing: false };
            segment.used = job.end.max(BLOCK);
            segment.index_bytes = job.index.len() as u64;
            segment.index = job.index;
            segment.is_incomplete = job.unreadable > 0;
            if segment.is_incomplete {
                self.segments_incomplete += 1;
            }
            // A segment with a trailer was sealed, and must not grow.
            if !job.trailer {
                let newer = self.open.filter(|open| self.segment(*open).incarnation > job.head.incarnation);
                self.open = newer.or(Some(number));
            }
        }
        self.next_incarnation = self.next_incarnation.max(job.head.incarnation + 1);
        if !sabotage {
            self.next_sequence = self.next_sequence.max(job.head.floor);
        }
        if let Some(recoverer) = &mut self.recoverer {
            recoverer.report.segments += 1;
            recoverer.report.segments_scanned += u64::from(!sealed);
            recoverer.report.blocks_unreadable += job.unreadable;
        }
    }

    /// Ends the recovery: decides which entries are live.
    fn recovered(&mut self) {
        let Some(recoverer) = self.recoverer.take() else { return };
        // Entries of a segment without an index may be unrecognisable, and their sequence numbers must not be
        // reused. Each takes at least a block; a spanning record has one number more.
        if !sabotaged!(self.config.sabotage, ReuseIds) {
            self.next_sequence += recoverer.report.segments_scanned * 2 * (self.segment_bytes / BLOCK);
        }
        let Recoverer { mut copies, mut pieces, tombstones, attributes, mut report, .. } = *recoverer;
        self.health = Health::Ready;
        self.touch = self.next_sequence;
        self.settle_segments();
        for (id, number) in tombstones {
            let dead = copies.remove(&id);
            report.records_forgotten += u64::from(dead.is_some());
            let copies = dead.map_or(0, |dead| dead.live.copies);
            if copies > 0 || self.segments_incomplete > 0 {
                self.tombstones.insert(id, Tombstone { copies, at: Some(number) });
            }
        }
        for (id, attributes_note) in attributes {
            let Some(candidate) = copies.get_mut(&id) else { continue };
            if attributes_note.sequence > candidate.live.location.sequence {
                candidate.live.attributes_segment = Some(attributes_note.segment);
                candidate.live.attributes_sequence = attributes_note.sequence;
                candidate.live.record.protected = attributes_note.protected;
                candidate.live.record.attributes = attributes_note.attributes;
            }
        }
        for (id, mut candidate) in copies {
            candidate.good &= self.settle_parts(id, &candidate.live, &mut pieces);
            self.settle_record(id, candidate, &mut report);
        }
        // Parts without a record are dead: their append was cut off, or their record was removed.
        report.records = self.records.len() as u64;
        report.payload_bytes = self.stats.payload_bytes;
        // Tombstones of older generations must be durable before the newer ones are reported.
        self.announce = Some((self.notes_queued, report));
    }

    /// Reports the recovery once its tombstones are durable.
    pub(super) fn pump_announce(&mut self) {
        let ready = self.announce.is_some_and(|(notes, _)| self.notes_committed >= notes);
        if ready && let Some((_, report)) = self.announce.take() {
            self.effects.push(Effect::Event(Event::Recovered(report)));
        }
    }

    /// Continues the newest segment if it was not sealed; seals others.
    fn settle_segments(&mut self) {
        let newest = self.segments.iter().map(|segment| segment.incarnation).max().unwrap_or(0);
        let free = self.segments.iter().filter(|segment| segment.state == State::Free).count() as u64;
        // A segment with unreadable blocks is sealed, so that its index leaves them out; but free space comes
        // first.
        let goes_on = |segment: &Segment| {
            segment.incarnation == newest && (!segment.is_incomplete || free <= super::RESERVE_SEGMENTS)
        };
        self.open = self.open.filter(|open| self.segments.get(*open as usize).is_some_and(goes_on));
        for number in 0..self.segments.len() as u32 {
            let open = self.open == Some(number);
            let segment = self.segment(number);
            match segment.state {
                State::Free => drop(self.free.insert(number)),
                State::Sealing { .. } if open => segment.state = State::Open,
                State::Sealing { .. } => drop(self.sealing.insert(number)),
                _ => {}
            }
        }
    }

    /// Inserts the parts of a record, if all of them are valid. An unreadable part counts as missing.
    fn settle_parts(&mut self, id: RecordId, live: &Live, pieces: &mut BTreeMap<RecordId, Piece>) -> bool {
        let mut start = 0;
        for part in live.parts.iter() {
            let expected = PartHead { of: id, start, bytes: part.bytes };
            let is_there = pieces.get(&part.id).is_some_and(|piece| piece.head == expected);
            if !is_there && !sabotaged!(self.config.sabotage, AcceptMissingParts) {
                return false;
            }
            start += part.bytes;
        }
        for part in live.parts.iter() {
            if let Some(piece) = pieces.remove(&part.id) {
                self.insert_part(part.id, piece);
            }
        }
        true
    }

    fn settle_record(&mut self, id: RecordId, candidate: Candidate, report: &mut Recovery) {
        let Candidate { live, good } = candidate;
        let delete = |log: &mut Self, id, copies| {
            log.tombstones.insert(id, Tombstone { copies, at: None });
            log.queue_note(Note::Forget(id), None);
        };
        if !good {
            report.records_bad += 1;
            return delete(self, id, live.copies);
        }
        let there =
            self.find(&live.record.name).and_then(|other| Some((other, self.record(other)?.generation)));
        let Some((other, there)) = there else { return self.insert(id, live) };
        report.records_superseded += 1;
        let newer = (live.record.generation, id) > (there, other);
        if newer != sabotaged!(self.config.sabotage, PreferOlder) {
            let copies = self.remove(other).map_or(0, |other| other.copies);
            delete(self, other, copies);
            self.insert(id, live);
        } else {
            self.remove_parts(&live.parts);
            delete(self, id, live.copies);
        }
    }
}

impl Recoverer {
    /// Keeps the better of two copies: the valid one, then the newer.
    fn take(&mut self, id: RecordId, candidate: Candidate) {
        let Some(known) = self.copies.get_mut(&id) else {
            self.copies.insert(id, candidate);
            return;
        };
        let copies = known.live.copies + 1;
        let rank = |it: &Candidate| (it.good, it.live.location.sequence);
        if rank(&candidate) > rank(known) {
            *known = candidate;
        }
        known.live.copies = copies;
    }

    /// The same for parts; invalid ones are ignored.
    fn take_part(&mut self, id: RecordId, piece: Piece, good: bool) {
        let is_later =
            self.pieces.get(&id).is_none_or(|known| known.location.sequence < piece.location.sequence);
        if good && is_later {
            self.pieces.insert(id, piece);
        }
    }

    fn note(&mut self, note: Note, sequence: u64, segment: u32) -> RecordId {
        match note {
            Note::Forget(id) => {
                self.tombstones.insert(id, segment);
                id
            }
            Note::Attributes { id, protected, attributes } => {
                let attributes_note = AttributesNote { sequence, protected, attributes, segment };
                // Notes of one entry have the same sequence number, and are in order.
                if self.attributes.get(&id).is_none_or(|known| known.sequence <= sequence) {
                    self.attributes.insert(id, attributes_note);
                }
                id
            }
        }
    }
}

/// Whether the bytes at `position` of a payload, with whole blocks of the checksum before them, match.
fn is_good(bytes: &[u8], sums: &[u64], position: u64, payload_bytes: u64) -> bool {
    sum_bytes(payload_bytes, sums.len())
        .is_some_and(|sum_bytes| verify(bytes, sums, (position / sum_bytes) as usize, sum_bytes))
}

/// The superblock, by its first valid copy.
///
/// The copies are checked one after the other: one `match` on both was miscompiled when optimised (rustc
/// 1.95; see rust-lang/rust#159035).
fn found(copies: &[Result<Option<Super>, OpenFault>]) -> Result<Option<Super>, OpenFault> {
    if let Some(whole) = copies.iter().find_map(|it| it.as_ref().ok().copied().flatten()) {
        return Ok(Some(whole));
    }
    copies.iter().find_map(|it| it.as_ref().err()).map_or(Ok(None), |error| Err(error.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{Config, Input};

    /// Opens a log whose superblocks were changed.
    fn opened(change: impl Fn(&mut [u8], &mut [u8])) -> Health {
        let block = Super { version: VERSION, log: 3, segment_bytes: 1 << 20, segments: 5 }.encode();
        let (mut first, mut second) = (block.clone(), block);
        change(&mut first, &mut second);
        let (segment_bytes, limits, sabotage) = Default::default();
        let config = Config { log: 3, budget_bytes: 64 << 20, segment_bytes, limits, sabotage };
        let (mut log, effects) = Log::open(config);
        let Some(Effect::Read { io, .. }) = effects.first() else { panic!("{effects:?}") };
        let result = Done::Bytes([first, second].concat());
        drop(log.apply(Input::Done { io: *io, result }, 0));
        log.health().clone()
    }

    #[test]
    fn one_valid_superblock_suffices() {
        let recovers = |health: Health| assert!(matches!(health, Health::Recovering), "{health:?}");
        recovers(opened(|_, _| ()));
        recovers(opened(|first, _| first.fill(7)));
        recovers(opened(|_, second| second[8] = 7));
        recovers(opened(|first, second| (first[8], second[8]) = (1, 1)));
        recovers(opened(|first, second| (first.fill(0), second.fill(0)).1));
        let other = OpenFault::Version { found: 7, known: crate::layout::VERSION };
        assert_eq!(opened(|first, second| (first[8], second[8]) = (7, 7)), Health::Unusable(other));
        assert_eq!(
            opened(|first, second| (first[0], second[0]) = (7, 7)),
            Health::Unusable(OpenFault::NotOurs)
        );
        assert_eq!(
            opened(|first, second| (first[30], second[30]) = (7, 7)),
            Health::Unusable(OpenFault::NotOurs)
        );
    }
}
