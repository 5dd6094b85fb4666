//! Recovery: rebuilds the tables by reading the log.
//!
//! A sealed segment is read by its index alone, which was written after all its entries were durable. Any
//! other segment is scanned block by block, and payloads are verified: a torn or damaged entry is dropped
//! alone. The newest segment continues after its last entry.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::disk::{Disk, Io};
use super::shape::Shape;
use super::table::{Live, Location, Piece, Segment, State, Table, Tombstone};
use super::{Config, Done, Health, Into, Log, Part};
use crate::layout::{
    BLOCK, Body, CHUNK_BYTES, Decoded, Entry, HEAD_BYTES, Note, PartHead, SegmentHead, Super, Trailer,
    VERSION, blocks_up, sum_bytes, verify,
};
use crate::mutant::is_mutant;
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
    config: Config,
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

/// What follows from the end of a read or write.
pub(super) enum Step {
    /// More of them are in progress.
    Pending,
    /// The log cannot be used.
    Unusable(OpenFault),
    /// All segments have been read.
    Complete,
}

/// The result of the recovery.
pub(super) struct Recovered {
    pub(super) report: Recovery,
    /// Records that are dead, and whose tombstones must be written.
    pub(super) dead: Vec<RecordId>,
}

impl Log {
    pub(super) fn recover_done(&mut self, io: IoId, result: Done) {
        let Some(mut recoverer) = self.recoverer.take() else { return };
        match recoverer.done(&mut self.table, &mut self.disk, io, result) {
            Step::Pending => self.recoverer = Some(recoverer),
            Step::Unusable(fault) => {
                self.health = Health::Unusable(fault.clone());
                self.disk.event(Event::Unusable(fault));
            }
            Step::Complete => {
                self.health = Health::Ready;
                let Recovered { report, dead } = recoverer.finish(&mut self.table);
                dead.into_iter().for_each(|id| self.queue_note(Note::Forget(id), None, None));
                // Tombstones of older generations must be durable before the newer ones are reported.
                self.announce = Some((self.notes.queued(), report));
            }
        }
    }

    /// Reports the recovery once its tombstones are durable.
    pub(super) fn pump_announce(&mut self) {
        if self.announce.as_ref().is_some_and(|(notes, _)| self.notes.are_durable(*notes))
            && let Some((_, report)) = self.announce.take()
        {
            self.disk.event(Event::Recovered(report));
        }
    }
}

impl Recoverer {
    /// Starts the recovery.
    pub(super) fn new(config: Config, disk: &mut Disk) -> Self {
        let mut recoverer = Self {
            config,
            wants: BTreeMap::new(),
            waiting: VecDeque::new(),
            jobs: BTreeMap::new(),
            copies: BTreeMap::new(),
            pieces: BTreeMap::new(),
            tombstones: BTreeMap::new(),
            attributes: BTreeMap::new(),
            report: Recovery::default(),
        };
        recoverer.load(disk, 0, 2 * BLOCK, Want::Supers);
        recoverer
    }

    /// Handles the end of a read, write or sync.
    fn done(&mut self, table: &mut Table, disk: &mut Disk, io: IoId, result: Done) -> Step {
        let Some(want) = self.wants.remove(&io) else { return Step::Pending };
        match (want, result) {
            (Want::Supers, Done::Bytes(bytes)) => match self.supers(table, &bytes) {
                Ok(stale) if stale => self.write_super(table, disk, 0),
                Ok(_) => return self.read_segments(table, disk),
                Err(fault) => return Step::Unusable(fault),
            },
            (Want::SuperWritten(copy), Done::Ok) => {
                let io = disk.sync(Io::Recover);
                self.wants.insert(io, Want::SuperSynced(copy));
            }
            (Want::SuperSynced(0), Done::Ok) => self.write_super(table, disk, 1),
            (Want::SuperSynced(_), Done::Ok) => return self.read_segments(table, disk),
            (Want::Segment(number), result) => return self.segment_loaded(table, disk, number, result),
            (_, Done::Failed(fault)) => return Step::Unusable(OpenFault::Disk(fault)),
            (want, result) => {
                let text = format!("unexpected result of {want:?}: {result:?}");
                let fault = Fault::new(crate::types::FaultKind::Other, text);
                return Step::Unusable(OpenFault::Disk(fault));
            }
        }
        Step::Pending
    }

    fn load(&mut self, disk: &mut Disk, at: u64, len: u64, want: Want) {
        let io = disk.read(Io::Recover, at, len, Into::Log);
        self.wants.insert(io, want);
    }

    /// Reads the superblocks; true if they must be written.
    fn supers(&self, table: &mut Table, bytes: &[u8]) -> Result<bool, OpenFault> {
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
        table.log = found.map_or(self.config.log, |found| found.log);
        table.shape = Shape { segment_bytes, segments: count };
        table.segments = (0..count).map(|_| Segment::free()).collect();
        // A log of an older version is converted.
        let wanted = Super { version: VERSION, log: table.log, segment_bytes, segments: count };
        Ok(copies.iter().any(|copy| *copy != Ok(Some(wanted))))
    }

    /// Writes the copies one after the other, so that one is always complete.
    fn write_super(&mut self, table: &Table, disk: &mut Disk, copy: usize) {
        let Shape { segment_bytes, segments } = table.shape;
        let block = Super { version: VERSION, log: table.log, segment_bytes, segments }.encode();
        let io = disk.write_for(Io::Recover, copy as u64 * BLOCK, vec![Part::Bytes(block)]);
        self.wants.insert(io, Want::SuperWritten(copy));
    }

    fn read_segments(&mut self, table: &Table, disk: &mut Disk) -> Step {
        self.waiting = (0..table.segments.len() as u32).collect();
        self.more_jobs(table, disk)
    }

    fn more_jobs(&mut self, table: &Table, disk: &mut Disk) -> Step {
        while self.jobs.len() < JOBS_MAX
            && let Some(number) = self.waiting.pop_front()
        {
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
            self.jobs.insert(number, job);
            self.load(disk, table.shape.at(number, 0), BLOCK, Want::Segment(number));
        }
        if self.jobs.is_empty() { Step::Complete } else { Step::Pending }
    }

    /// Handles the next read of a segment, and starts another or ends the segment.
    fn segment_loaded(&mut self, table: &mut Table, disk: &mut Disk, number: u32, result: Done) -> Step {
        let Some(mut job) = self.jobs.remove(&number) else { return Step::Pending };
        let loaded = match result {
            Done::Bytes(bytes) => Some(bytes),
            _ => None,
        };
        let job_mut = &mut job;
        let more = match std::mem::replace(&mut job_mut.stage, Stage::Head) {
            Stage::Head => self.head_loaded(table, number, job_mut, loaded),
            Stage::Trailer => trailer_loaded(table, job_mut, loaded),
            Stage::Index { trailer, bytes } => {
                self.index_loaded(table, number, job_mut, trailer, bytes, loaded)
            }
            Stage::Hunt { offset, len } => self.hunt_loaded(table, number, job_mut, (offset, len), loaded),
            Stage::Payload { decoded, chunk } => {
                self.payload_loaded(table, number, job_mut, decoded, chunk, loaded)
            }
        };
        match more {
            Some((offset, len)) => {
                self.jobs.insert(number, job);
                self.load(disk, table.shape.at(number, offset), len, Want::Segment(number));
                Step::Pending
            }
            None => {
                self.segment_read(table, number, job);
                self.more_jobs(table, disk)
            }
        }
    }

    /// Each of these handlers returns the next range to read in the segment.
    fn head_loaded(
        &mut self,
        table: &mut Table,
        number: u32,
        job: &mut Job,
        loaded: Option<Vec<u8>>,
    ) -> Option<(u64, u64)> {
        let Some(bytes) = loaded else {
            // A later read may succeed: the segment is neither used nor erased.
            table.segment(number).state = State::Bad;
            table.segments_incomplete += 1;
            self.report.blocks_unreadable += 1;
            return None;
        };
        // An erased head is all zeros. A damaged one does not matter if the segment has an index.
        match SegmentHead::decode(&bytes, table.log, number) {
            Some(head) => job.head = head,
            None if bytes.iter().take(SECTOR).all(|byte| *byte == 0) => return None,
            None => {}
        }
        job.stage = Stage::Trailer;
        Some((table.shape.segment_bytes - BLOCK, BLOCK))
    }

    fn index_loaded(
        &mut self,
        table: &mut Table,
        number: u32,
        job: &mut Job,
        trailer: Trailer,
        mut bytes: Vec<u8>,
        loaded: Option<Vec<u8>>,
    ) -> Option<(u64, u64)> {
        let Some(loaded) = loaded else { return hunt(table, job, BLOCK, LOAD_BYTES) };
        bytes.extend(loaded);
        if (bytes.len() as u64) < trailer.index_bytes {
            let offset = trailer.index_offset + bytes.len() as u64;
            let len = blocks_up((trailer.index_bytes - bytes.len() as u64).min(LOAD_BYTES));
            job.stage = Stage::Index { trailer, bytes };
            return Some((offset, len));
        }
        bytes.truncate(trailer.index_bytes as usize);
        if xxhash_rust::xxh3::xxh3_64(&bytes) != trailer.index_sum {
            return hunt(table, job, BLOCK, LOAD_BYTES);
        }
        job.indexed = true;
        let mut rest = bytes.as_slice();
        while let Some(decoded) = Entry::decode(rest, table.log) {
            rest = rest.get(decoded.compact_bytes..).unwrap_or_default();
            self.found(table, number, job, decoded, true);
        }
        let segment = table.segment(number);
        segment.state = State::Sealed;
        segment.used = trailer.index_offset;
        None
    }

    /// Searches the loaded bytes for headers, and continues after them.
    fn hunt_loaded(
        &mut self,
        table: &mut Table,
        number: u32,
        job: &mut Job,
        (offset, len): (u64, u64),
        loaded: Option<Vec<u8>>,
    ) -> Option<(u64, u64)> {
        let Some(bytes) = loaded else {
            // After a failed read, blocks are read one by one, so that only bad ones are lost.
            if len > BLOCK {
                job.failed_at = offset;
                return hunt(table, job, offset, BLOCK);
            }
            job.unreadable += 1;
            job.end = job.end.max(offset + BLOCK);
            return hunt(table, job, offset + BLOCK, LOAD_BYTES);
        };
        let mut position = 0;
        while let Some(rest) = bytes.get(position as usize..).filter(|rest| !rest.is_empty()) {
            let here = offset + position;
            let Some(decoded) = entry_at(table, rest, job.head.incarnation, here) else {
                let wanted = Entry::wanted(rest).unwrap_or(0);
                let cut = wanted > rest.len() as u64 && here + wanted < table.shape.segment_bytes;
                if cut && (position > 0 || len < wanted) && job.failed_at != here {
                    return hunt(table, job, here, wanted);
                }
                if is_mutant!(table.mutant, StopAtBadBlock) {
                    return None;
                }
                position += BLOCK;
                continue;
            };
            let Some((payload, sums)) = decoded.entry.body.payload() else {
                position += decoded.extent;
                self.found(table, number, job, decoded, true);
                continue;
            };
            let (begin, payload) = (decoded.header_bytes as usize, payload as usize);
            if let Some(payload) = rest.get(begin..begin + payload) {
                let good =
                    is_good(payload, sums, 0, payload.len() as u64) || is_mutant!(table.mutant, BelieveTail);
                position += decoded.extent;
                self.found(table, number, job, decoded, good);
                continue;
            }
            return payload_range(job, Box::new(decoded), 0);
        }
        hunt(table, job, offset + bytes.len() as u64, LOAD_BYTES)
    }

    fn payload_loaded(
        &mut self,
        table: &mut Table,
        number: u32,
        job: &mut Job,
        decoded: Box<Decoded>,
        chunk: u64,
        loaded: Option<Vec<u8>>,
    ) -> Option<(u64, u64)> {
        let next = decoded.entry.offset + decoded.extent;
        let Some((payload, sums)) = decoded.entry.body.payload() else {
            return hunt(table, job, next, LOAD_BYTES);
        };
        let rest = payload - chunk * CHUNK_BYTES;
        if loaded.is_none() {
            job.unreadable += 1;
        }
        let good = loaded.is_some_and(|bytes| {
            let bytes = bytes.get(..rest.min(CHUNK_BYTES) as usize).unwrap_or_default();
            is_good(bytes, sums, chunk * CHUNK_BYTES, payload)
        });
        let good = good || is_mutant!(table.mutant, BelieveTail);
        if good && rest > CHUNK_BYTES {
            return payload_range(job, decoded, chunk + 1);
        }
        self.found(table, number, job, *decoded, good);
        hunt(table, job, next, LOAD_BYTES)
    }

    /// Adds an entry to the candidates.
    fn found(&mut self, table: &mut Table, number: u32, job: &mut Job, decoded: Decoded, good: bool) {
        let Decoded { entry, header_bytes, extent, .. } = decoded;
        // An index lists valid entries only: their payloads are not verified.
        if good && !job.indexed {
            job.index.extend(entry.encode(table.log));
        }
        job.end = job.end.max(entry.offset + extent);
        let ids = is_mutant!(table.mutant, ReuseIds);
        if !ids {
            table.next_sequence = table.next_sequence.max(entry.sequence + 1);
        }
        let (offset, sequence) = (entry.offset, entry.sequence);
        let location = Location { segment: number, offset, header_bytes, extent, sequence, touch: sequence };
        let live = |record, sums, parts| Live::new(record, sums, parts, location);
        match entry.body {
            Body::Record { id, record, sums } => {
                self.take(id, Candidate { live: live(record, sums, Arc::default()), good });
                table.segment(number).ids.push(id);
            }
            Body::Spanning { id, record, parts } => {
                self.take(id, Candidate { live: live(record, Arc::default(), parts), good });
                table.segment(number).ids.push(id);
            }
            Body::Part { id, part, sums } => {
                let piece = Piece { head: part, sums, location, protected: false };
                self.take_part(id, piece, good);
                table.segment(number).parts.push(id);
            }
            Body::Notes(notes) => {
                for note in notes {
                    let id = self.note(note, sequence, number);
                    if let Some(segment) = table.segments.get_mut(number as usize) {
                        segment.noted.push(id);
                    }
                }
            }
        }
    }

    /// Ends the recovery of a segment.
    fn segment_read(&mut self, table: &mut Table, number: u32, job: Job) {
        let mutant = is_mutant!(table.mutant, ReuseIds);
        let segment = table.segment(number);
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
                table.segments_incomplete += 1;
            }
            // A segment with a trailer was sealed, and must not grow.
            if !job.trailer {
                let newer = table.open.filter(|open| table.segment(*open).incarnation > job.head.incarnation);
                table.open = newer.or(Some(number));
            }
        }
        table.next_incarnation = table.next_incarnation.max(job.head.incarnation + 1);
        if !mutant {
            table.next_sequence = table.next_sequence.max(job.head.floor);
        }
        self.report.segments += 1;
        self.report.segments_scanned += u64::from(!sealed);
        self.report.blocks_unreadable += job.unreadable;
    }

    /// Ends the recovery: decides which entries are live.
    fn finish(self, table: &mut Table) -> Recovered {
        // Entries of a segment without an index may be unrecognisable, and their sequence numbers must not be
        // reused. Each takes at least a block; a spanning record has one number more.
        if !is_mutant!(table.mutant, ReuseIds) {
            table.next_sequence += self.report.segments_scanned * 2 * (table.shape.segment_bytes / BLOCK);
        }
        let Self { mut copies, mut pieces, tombstones, attributes, report, .. } = self;
        let mut recovered = Recovered { report, dead: Vec::new() };
        table.continue_segments();
        for (id, number) in tombstones {
            let dead = copies.remove(&id);
            recovered.report.records_forgotten += u64::from(dead.is_some());
            let copies = dead.map_or(0, |dead| dead.live.copies);
            if copies > 0 || table.segments_incomplete > 0 {
                table.tombstones.insert(id, Tombstone { copies, at: Some(number) });
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
            candidate.good &= settle_parts(table, id, &candidate.live, &mut pieces);
            recovered.settle(table, id, candidate);
        }
        // Parts without a record are dead: their append was cut off, or their record was removed.
        recovered.report.records = table.records.len() as u64;
        recovered.report.payload_bytes = table.payload_bytes();
        recovered
    }

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

impl Recovered {
    /// Inserts a record, unless it is damaged or there is a newer one of the same key.
    fn settle(&mut self, table: &mut Table, id: RecordId, candidate: Candidate) {
        let Candidate { live, good } = candidate;
        if !good {
            self.report.records_bad += 1;
            return self.kill(table, id, live.copies);
        }
        let Some((other, there)) = table.newest(&live.record.name) else { return table.insert(id, live) };
        self.report.records_superseded += 1;
        let newer = (live.record.generation, id) > (there, other);
        if newer != is_mutant!(table.mutant, PreferOlder) {
            let copies = table.remove(other).map_or(0, |other| other.copies);
            self.kill(table, other, copies);
            table.insert(id, live);
        } else {
            table.remove_parts(&live.parts);
            self.kill(table, id, live.copies);
        }
    }

    fn kill(&mut self, table: &mut Table, id: RecordId, copies: u32) {
        table.tombstones.insert(id, Tombstone { copies, at: None });
        self.dead.push(id);
    }
}

fn trailer_loaded(table: &Table, job: &mut Job, loaded: Option<Vec<u8>>) -> Option<(u64, u64)> {
    let trailer = loaded.and_then(|bytes| Trailer::decode(&bytes, table.log));
    let fits = |trailer: &Trailer| {
        (trailer.incarnation == job.head.incarnation || job.head.incarnation == 0)
            && trailer.index_offset.is_multiple_of(BLOCK)
            && trailer.index_offset.checked_add(blocks_up(trailer.index_bytes))
                == Some(table.shape.segment_bytes - BLOCK)
    };
    match trailer.filter(fits) {
        Some(trailer) => {
            job.trailer = true;
            job.head.incarnation = trailer.incarnation;
            let len = trailer.index_bytes.clamp(1, LOAD_BYTES);
            job.stage = Stage::Index { trailer, bytes: Vec::new() };
            Some((trailer.index_offset.min(table.shape.segment_bytes - BLOCK), blocks_up(len)))
        }
        None if job.head.incarnation == 0 => None,
        None => hunt(table, job, BLOCK, LOAD_BYTES),
    }
}

fn hunt(table: &Table, job: &mut Job, offset: u64, len: u64) -> Option<(u64, u64)> {
    let end = table.shape.segment_bytes - BLOCK;
    if offset >= end {
        return None;
    }
    let len = len.min(end - offset);
    job.stage = Stage::Hunt { offset, len };
    Some((offset, len))
}

/// A valid header that belongs to this position, of an entry that fits into the segment.
fn entry_at(table: &Table, bytes: &[u8], incarnation: u64, offset: u64) -> Option<Decoded> {
    let decoded = Entry::decode(bytes, table.log)?;
    let ours = decoded.entry.incarnation == incarnation && decoded.entry.offset == offset;
    (ours && offset + decoded.extent < table.shape.segment_bytes).then_some(decoded)
}

fn payload_range(job: &mut Job, decoded: Box<Decoded>, chunk: u64) -> Option<(u64, u64)> {
    let offset = decoded.entry.offset + decoded.header_bytes + chunk * CHUNK_BYTES;
    let end = decoded.entry.offset + decoded.extent;
    job.stage = Stage::Payload { decoded, chunk };
    Some((offset, (end - offset).min(CHUNK_BYTES)))
}

/// Inserts the parts of a record, if all of them are valid. An unreadable part counts as missing.
fn settle_parts(
    table: &mut Table,
    id: RecordId,
    live: &Live,
    pieces: &mut BTreeMap<RecordId, Piece>,
) -> bool {
    let mut start = 0;
    for part in live.parts.iter() {
        let expected = PartHead { of: id, start, bytes: part.bytes };
        let is_there = pieces.get(&part.id).is_some_and(|piece| piece.head == expected);
        if !is_there && !is_mutant!(table.mutant, AcceptMissingParts) {
            return false;
        }
        start += part.bytes;
    }
    for part in live.parts.iter() {
        if let Some(piece) = pieces.remove(&part.id) {
            table.insert_part(part.id, piece);
        }
    }
    true
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
    use crate::log::{Effect, Input};

    /// Opens a log whose superblocks were changed.
    fn opened(change: impl Fn(&mut [u8], &mut [u8])) -> Health {
        let block = Super { version: VERSION, log: 3, segment_bytes: 1 << 20, segments: 5 }.encode();
        let (mut first, mut second) = (block.clone(), block);
        change(&mut first, &mut second);
        let (segment_bytes, limits, mutant) = Default::default();
        let config = Config { log: 3, budget_bytes: 64 << 20, segment_bytes, limits, mutant };
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
