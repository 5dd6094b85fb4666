//! Behaviour suite that every transport must pass. For tests.
//!
//! A test creates a [`Fixture`], a minimal node and a transport that reaches it, for each check, and runs
//! [`all`]. Objects contain a pattern derived from their stamp, so that a byte of another object is noticed.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::os::fd::AsFd;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use crate::control::{ControlWriter, SlotRecord, SlotState};
use crate::layout::Geometry;
use crate::map::{Access, Map};
use crate::segment::NodeMemory;
use crate::tcp::frame::RequestHead;
use crate::tcp::{Grant, SlotAccess};
use crate::{
    CHUNK_BYTES_MAX, Extent, Instant, Outcome, ReadOp, SourceBuf, TargetBuf, TransferError, Transport,
    WriteOp,
};

/// Sizes of the memory of a [`TestNode`].
const DATA_BYTES: u64 = 96 << 20;
const SLOT_COUNT: u32 = 512;
const HEAP_BYTES: u64 = 1 << 20;
/// Maximum number of retries in a fixture with broken connections.
const TRIES_MAX: usize = 1000;
/// Not a valid epoch.
const NO_EPOCH: u64 = 0;
/// Longer than any operation here takes.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// One use of one slot of a [`TestNode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Location {
    /// The slot.
    pub slot: u32,
    /// Its stamp.
    pub stamp: u64,
}

/// A minimal node that can be read from and written to.
pub struct TestNode {
    memory: Arc<NodeMemory>,
    state: Mutex<TestNodeState>,
    /// Retires the object of the next send during the send.
    is_retiring_sends: AtomicBool,
    /// The epoch in which the node is a member; [`NO_EPOCH`] if it is not a member.
    epoch: AtomicU64,
    /// Ends the membership during the next send.
    is_leaving_in_sends: AtomicBool,
    opened: AtomicU64,
    closed: AtomicU64,
}

struct TestNodeState {
    writer: ControlWriter,
    next_slot: u32,
    next_stamp: u64,
    next_byte: u64,
    next_heap: u64,
    records: BTreeMap<u32, SlotRecord>,
    transfers: BTreeMap<Location, usize>,
    /// The number of writes among them.
    stores: BTreeMap<Location, usize>,
}

impl Default for TestNode {
    fn default() -> Self {
        Self::new()
    }
}

impl TestNode {
    /// An empty node.
    ///
    /// # Panics
    /// If the machine has too little memory.
    #[must_use]
    pub fn new() -> Self {
        static NEXT_SEGMENT: AtomicU64 = AtomicU64::new(0x5e90_0000);
        let segment = NEXT_SEGMENT.fetch_add(1, Ordering::Relaxed);
        let geometry =
            Geometry { segment, data_bytes: DATA_BYTES, slot_count: SLOT_COUNT, heap_bytes: HEAP_BYTES };
        let (memory, writer) = NodeMemory::create(geometry).expect("a test has memory for a segment");
        let state = TestNodeState {
            writer,
            next_slot: 0,
            next_stamp: 1000,
            next_byte: 0,
            next_heap: 0,
            records: BTreeMap::new(),
            transfers: BTreeMap::new(),
            stores: BTreeMap::new(),
        };
        let (opened, closed) = (AtomicU64::new(0), AtomicU64::new(0));
        let (epoch, off) = (AtomicU64::new(NO_EPOCH), || AtomicBool::new(false));
        let (is_retiring_sends, is_leaving_in_sends) = (off(), off());
        let state = Mutex::new(state);
        Self { memory, state, is_retiring_sends, epoch, is_leaving_in_sends, opened, closed }
    }

    /// The node's memory.
    #[must_use]
    pub fn memory(&self) -> &Arc<NodeMemory> {
        &self.memory
    }

    /// Reserves extents of these lengths at odd offsets, with gaps between them.
    pub fn reserve(&self, lens: &[u64]) -> Location {
        let mut state = self.state();
        let slot = state.next_slot;
        state.next_slot += 1;
        let mut extents = Vec::new();
        for &len in lens {
            let offset = state.next_byte + 1;
            state.next_byte = offset + len + 7;
            extents.push(Extent { offset, len });
        }
        state.write(slot, extents)
    }

    /// Whether a write into this location is still in progress, possibly of a client that lost its connection
    /// and retried. Until it has ended, a node does not reuse the memory.
    pub fn is_being_stored(&self, location: Location) -> bool {
        self.state().stores.contains_key(&location)
    }

    /// Retires the object and reserves the same bytes, divided otherwise, for another.
    pub fn reuse(&self, location: Location) -> Location {
        let mut state = self.state();
        state.writer.retire(location.slot);
        let old = state.records.remove(&location.slot).unwrap_or_default();
        let extents = match *old.extents.as_slice() {
            [Extent { offset, len }] if len > 1 => {
                let half = len / 2;
                vec![Extent { offset: offset + half, len: len - half }, Extent { offset, len: half }]
            }
            [one, two] => vec![Extent { offset: one.offset.min(two.offset), len: one.len + two.len }],
            _ => old.extents,
        };
        state.write(location.slot, extents)
    }

    /// Makes the object readable.
    pub fn commit(&self, location: Location) {
        let mut state = self.state();
        let Some(mut record) = state.records.remove(&location.slot) else { return };
        record.state = SlotState::Committed;
        state.writer.write_slot(location.slot, &record);
        state.records.insert(location.slot, record);
    }

    /// Retires the object.
    pub fn retire(&self, location: Location) {
        self.state().writer.retire(location.slot);
    }

    /// While on, each object is retired during its send.
    pub fn retire_sends(&self, is_on: bool) {
        self.is_retiring_sends.store(is_on, Ordering::SeqCst);
    }

    /// Makes the node a member in that epoch.
    pub fn join(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::SeqCst);
    }

    /// While on, the node loses its membership during each send.
    pub fn leave_in_sends(&self, is_on: bool) {
        self.is_leaving_in_sends.store(is_on, Ordering::SeqCst);
    }

    fn is_member_in(&self, cached_epoch: Option<u64>) -> bool {
        cached_epoch.is_none_or(|epoch| epoch == self.epoch.load(Ordering::SeqCst))
    }

    /// Number of transfers in progress.
    pub fn transfers(&self) -> usize {
        self.state().transfers.values().sum()
    }

    /// Number of clients that have connected and disconnected, as reported by the data socket.
    pub fn connected_clients(&self) -> (u64, u64) {
        (self.opened.load(Ordering::SeqCst), self.closed.load(Ordering::SeqCst))
    }

    fn state(&self) -> MutexGuard<'_, TestNodeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, location: Location, offset: u64, len: u64, is_store: bool) -> Option<Vec<Extent>> {
        let mut state = self.state();
        let placement = self.memory.reader().load(location.slot, location.stamp).ok()?;
        if is_store && placement.state != SlotState::Reserved {
            return None;
        }
        let extents = placement.range(offset, len).ok()?;
        *state.transfers.entry(location).or_default() += 1;
        if is_store {
            *state.stores.entry(location).or_default() += 1;
        }
        Some(extents)
    }

    fn end(&self, location: Location) -> bool {
        let mut state = self.state();
        let count = state.transfers.get_mut(&location).filter(|count| **count > 0);
        *count.expect("a hold that ends has begun") -= 1;
        self.memory.reader().is_current(location.slot, location.stamp)
    }
}

impl TestNodeState {
    fn write(&mut self, slot: u32, extents: Vec<Extent>) -> Location {
        let (stamp, spill_offset) = (self.next_stamp, self.next_heap);
        self.next_stamp += 1;
        self.next_heap += extents.len() as u64 * crate::layout::SPILLED_EXTENT_BYTES;
        let len = extents.iter().map(|extent| extent.len).sum();
        let state = SlotState::Reserved;
        let record = SlotRecord { stamp, state, len, extents, spill_offset, ..SlotRecord::default() };
        self.writer.write_slot(slot, &record);
        self.records.insert(slot, record);
        Location { slot, stamp }
    }
}

impl SlotAccess for TestNode {
    fn begin_store(&self, _: u64, range: &RequestHead) -> Option<Vec<Extent>> {
        self.begin(location(range), range.offset, range.len, true)
    }

    fn end_store(&self, range: &RequestHead) {
        self.end(location(range));
        let mut state = self.state();
        let stores = &mut state.stores;
        let left = stores.remove(&location(range)).filter(|count| *count > 1);
        left.map(|count| stores.insert(location(range), count - 1));
    }

    fn begin_send(&self, _: &dyn Grant, range: &RequestHead) -> Option<Vec<Extent>> {
        if !self.is_member_in(range.cached_epoch) {
            return None;
        }
        let extents = self.begin(location(range), range.offset, range.len, false);
        if self.is_leaving_in_sends.load(Ordering::SeqCst) {
            self.join(NO_EPOCH);
        }
        if self.is_retiring_sends.load(Ordering::SeqCst) {
            self.retire(location(range));
        }
        extents
    }

    fn end_send(&self, range: &RequestHead) -> bool {
        self.end(location(range)) && self.is_member_in(range.cached_epoch)
    }

    fn opened(&self, _: u64) {
        self.opened.fetch_add(1, Ordering::SeqCst);
    }

    fn closed(&self, _: u64) {
        self.closed.fetch_add(1, Ordering::SeqCst);
    }
}

fn location(range: &RequestHead) -> Location {
    Location { slot: range.slot, stamp: range.stamp }
}

/// A minimal node, and a transport that reaches it.
pub struct Fixture {
    /// The node.
    pub node: Arc<TestNode>,
    /// The transport.
    pub transport: Arc<dyn Transport>,
    /// Connections break, so that lost operations must be retried.
    pub is_lossy: bool,
    /// Whatever must live as long as the fixture.
    pub keep: Box<dyn Send + Sync>,
}

impl Fixture {
    /// Reads, with retries while the operation is lost.
    pub async fn read(&self, location: Location, offset: u64, targets: &mut [&mut [u8]]) -> Outcome {
        for _ in 0..TRIES_MAX {
            let targets = targets.iter_mut().map(|target| TargetBuf::from(&mut **target)).collect();
            let op = ReadOp { slot: location.slot, stamp: location.stamp, offset, targets };
            let outcome = one(self.transport.read(&[op], soon()).await);
            if !(self.is_lossy && is_lost(&outcome)) {
                return outcome;
            }
        }
        panic!("a read was lost {TRIES_MAX} times");
    }

    /// Writes, with retries while the operation is lost.
    pub async fn write(&self, location: Location, offset: u64, sources: &[&[u8]]) -> Outcome {
        for _ in 0..TRIES_MAX {
            let sources = sources.iter().map(|&source| SourceBuf::from(source)).collect();
            let op = WriteOp { slot: location.slot, stamp: location.stamp, offset, sources };
            let outcome = one(self.transport.write(&[op], soon()).await);
            if !(self.is_lossy && is_lost(&outcome)) {
                return outcome;
            }
        }
        panic!("a write was lost {TRIES_MAX} times");
    }

    /// Reserves, writes the pattern and commits.
    pub async fn put(&self, lens: &[u64]) -> Location {
        let location = self.node.reserve(lens);
        let bytes = pattern(location.stamp, lens.iter().sum());
        assert_eq!(self.write(location, 0, &[&bytes]).await, Ok(()), "writing {lens:?}");
        self.node.commit(location);
        location
    }

    /// Reads a range and compares it with the pattern.
    async fn get(&self, location: Location, offset: u64, len: u64) -> Outcome {
        let mut bytes = vec![0xee; len as usize];
        self.read(location, offset, &mut [&mut bytes]).await?;
        assert_pattern(location.stamp, offset, &bytes);
        Ok(())
    }
}

/// Tries to map the memory file at this path for writing, as a malicious process would.
pub fn map_writable(path: &std::path::Path) -> std::io::Result<()> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
    Map::new(file.as_fd(), file.metadata()?.len(), Access::ReadWrite).map(drop)
}

/// A deadline after which the test has failed.
#[must_use]
pub fn soon() -> Instant {
    Instant::now() + TEST_TIMEOUT
}

/// The content of the object with this stamp.
#[must_use]
pub fn pattern(stamp: u64, len: u64) -> Vec<u8> {
    part_of_pattern(stamp, 0, len as usize)
}

/// Panics if these are not the bytes from `offset` on of the object with this stamp.
pub fn assert_pattern(stamp: u64, offset: u64, bytes: &[u8]) {
    if *bytes != part_of_pattern(stamp, offset, bytes.len()) {
        let wrong = (offset..).zip(bytes).find(|&(at, byte)| *byte != byte_at(stamp, at));
        assert_eq!(wrong, None, "(offset, byte) that does not belong to stamp {stamp}");
    }
}

/// Builds the pattern by words, because objects are large and debug builds slow.
fn part_of_pattern(stamp: u64, offset: u64, len: usize) -> Vec<u8> {
    const WORD_BYTES: usize = 8;
    let skipped = offset as usize % WORD_BYTES;
    let mut bytes = vec![0; (skipped + len).next_multiple_of(WORD_BYTES)];
    let mut at = offset - skipped as u64;
    for word in bytes.as_chunks_mut::<WORD_BYTES>().0 {
        // Only the three lowest bits of the offset differ within a word.
        let same = u64::from(byte_at(stamp, at)).wrapping_mul(0x0101_0101_0101_0101);
        *word = (same ^ 0x0706_0504_0302_0100).to_le_bytes();
        at += WORD_BYTES as u64;
    }
    bytes.truncate(skipped + len);
    bytes.split_off(skipped)
}

fn byte_at(stamp: u64, at: u64) -> u8 {
    (stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 ^ at ^ at >> 8 ^ at >> 16) as u8
}

fn one(outcomes: Vec<Outcome>) -> Outcome {
    let count = outcomes.len();
    outcomes.into_iter().next().filter(|_| count == 1).expect("one outcome for one operation")
}

fn is_lost(outcome: &Outcome) -> bool {
    matches!(outcome, Err(TransferError::Lost { .. }))
}

type Check = fn(Arc<Fixture>) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs every check, each in a fixture of its own.
pub async fn all<F: Future<Output = Fixture>>(make: impl Fn() -> F) {
    let checks: [(&str, Check); 14] = [
        ("bytes come back", |fixture| Box::pin(async move { bytes_come_back(&fixture).await })),
        ("many extents", |fixture| Box::pin(async move { many_extents(&fixture).await })),
        ("ranges", |fixture| Box::pin(async move { ranges(&fixture).await })),
        ("mixed writes", |fixture| Box::pin(async move { mixed_writes(&fixture).await })),
        ("mixed batch", |fixture| Box::pin(async move { mixed_batch(&fixture).await })),
        ("stale before", |fixture| Box::pin(async move { stale_before(&fixture).await })),
        ("retired during the read", |fixture| {
            Box::pin(async move { retired_during_the_read(&fixture).await })
        }),
        ("stale writes", |fixture| Box::pin(async move { stale_writes(&fixture).await })),
        ("zero length", |fixture| Box::pin(async move { zero_length(&fixture).await })),
        ("too large", |fixture| Box::pin(async move { too_large(&fixture).await })),
        ("gather and scatter", |fixture| Box::pin(async move { gather_and_scatter(&fixture).await })),
        ("many at once", |fixture| Box::pin(async move { many_at_once(&fixture).await })),
        ("deadline", |fixture| Box::pin(async move { deadline(&fixture).await })),
        ("reuse under readers", |fixture| Box::pin(reuse_under_readers(fixture))),
    ];
    for (name, check) in checks {
        let fixture = Arc::new(make().await);
        tracing::info!(name, transport = fixture.transport.capability().name);
        check(Arc::clone(&fixture)).await;
    }
}

async fn bytes_come_back(fixture: &Fixture) {
    let mib = 1 << 20;
    for len in [
        1,
        63,
        64,
        65,
        4095,
        4096,
        65_537,
        mib,
        CHUNK_BYTES_MAX - 1,
        CHUNK_BYTES_MAX,
        CHUNK_BYTES_MAX + 1,
        9 * mib + 3,
    ] {
        let location = fixture.put(&[len]).await;
        assert_eq!(fixture.get(location, 0, len).await, Ok(()), "{len}");
    }
}

async fn many_extents(fixture: &Fixture) {
    let cuts: [&[u64]; 5] =
        [&[5, 9], &[1, 1, 1], &[4096, 1, 65_536, 7], &[3_000_000, 3_000_000, 3_000_001], &[13; 300]];
    for lens in cuts {
        let location = fixture.put(lens).await;
        assert_eq!(fixture.get(location, 0, lens.iter().sum()).await, Ok(()), "{lens:?}");
    }
}

async fn ranges(fixture: &Fixture) {
    let lens = [10, 100, 1000, 5_000_000];
    let total: u64 = lens.iter().sum();
    let location = fixture.put(&lens).await;
    for (offset, len) in [
        (0, 1),
        (9, 2),
        (10, 100),
        (105, 1100),
        (total - 1, 1),
        (1, total - 1),
        (total / 2, CHUNK_BYTES_MAX.min(total / 2)),
    ] {
        assert_eq!(fixture.get(location, offset, len).await, Ok(()), "{offset}+{len}");
    }
    // Parts that are written out of order give the same object.
    let location = fixture.node.reserve(&lens);
    let bytes = pattern(location.stamp, total);
    for (offset, len) in [(500, total - 500), (0, 7), (7, 493)] {
        let part = bytes.get(offset as usize..(offset + len) as usize).unwrap_or_default();
        assert_eq!(fixture.write(location, offset, &[part]).await, Ok(()), "{offset}+{len}");
    }
    fixture.node.commit(location);
    assert_eq!(fixture.get(location, 0, total).await, Ok(()));
}

/// Small and large objects are written in one batch, in any order.
async fn mixed_writes(fixture: &Fixture) {
    for lens in
        [[10, 70_000, 0, 600_000, 5], [100_000, 1, 100_000, 300_000, 100_000], [0, 5_000_000, 9, 8, 7]]
    {
        let locations = lens.map(|len| fixture.node.reserve(&[len]));
        let bytes: Vec<_> =
            locations.iter().zip(lens).map(|(location, len)| pattern(location.stamp, len)).collect();
        let ops: Vec<_> = locations
            .iter()
            .zip(&bytes)
            .map(|(location, bytes)| {
                let sources = vec![SourceBuf::from(&bytes[..])];
                WriteOp { slot: location.slot, stamp: location.stamp, offset: 0, sources }
            })
            .collect();
        let mut outcomes = Vec::new();
        for _ in 0..TRIES_MAX {
            outcomes = fixture.transport.write(&ops, soon()).await;
            if !(fixture.is_lossy && outcomes.iter().any(is_lost)) {
                break;
            }
        }
        assert_eq!(outcomes, vec![Ok(()); lens.len()], "{lens:?}");
        for (location, len) in locations.into_iter().zip(lens) {
            fixture.node.commit(location);
            assert_eq!(fixture.get(location, 0, len).await, Ok(()), "{lens:?}");
        }
    }
}

async fn mixed_batch(fixture: &Fixture) {
    let good = fixture.put(&[100_000]).await;
    let gone = fixture.put(&[100_000]).await;
    let short = fixture.put(&[10]).await;
    fixture.node.retire(gone);
    let mut buffers = vec![vec![0; 100_000]; 5];
    let locations = [good, gone, short, good, gone];
    for _ in 0..TRIES_MAX {
        let ops: Vec<_> = locations
            .iter()
            .zip(&mut buffers)
            .map(|(location, buffer)| ReadOp {
                slot: location.slot,
                stamp: location.stamp,
                offset: 0,
                targets: vec![TargetBuf::from(&mut buffer[..])],
            })
            .collect();
        let outcomes = fixture.transport.read(&ops, soon()).await;
        if fixture.is_lossy && outcomes.iter().any(is_lost) {
            continue;
        }
        let stale = Err(TransferError::Stale);
        let expected = [Ok(()), stale.clone(), Err(TransferError::OutOfRange), Ok(()), stale];
        assert_eq!(outcomes, expected);
        let read = buffers.iter().zip(locations).zip(expected);
        for ((buffer, location), _) in read.filter(|(_, expected)| expected.is_ok()) {
            assert_pattern(location.stamp, 0, buffer);
        }
        return;
    }
    panic!("the batch was lost every time");
}

async fn stale_before(fixture: &Fixture) {
    let location = fixture.put(&[5000]).await;
    let gone = fixture.put(&[5000]).await;
    fixture.node.retire(gone);
    for wrong in [
        gone,
        Location { stamp: location.stamp + 77, ..location },
        Location { stamp: 0, ..location },
        Location { slot: SLOT_COUNT - 1, stamp: 0 },
        Location { slot: SLOT_COUNT, ..location },
        Location { slot: u32::MAX, ..location },
    ] {
        assert_eq!(fixture.get(wrong, 0, 5000).await, Err(TransferError::Stale), "{wrong:?}");
    }
    assert_eq!(fixture.get(location, 0, 5000).await, Ok(()));
}

async fn retired_during_the_read(fixture: &Fixture) {
    let len = 9 << 20;
    let location = fixture.put(&[len]).await;
    let mut bytes = vec![0; len as usize];
    let mut targets = [&mut bytes[..]];
    let outcome = {
        let mut read = pin!(fixture.read(location, 0, &mut targets));
        let begun = poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await;
        fixture.node.retire(location);
        match begun {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => read.await,
        }
    };
    if fixture.transport.capability().can_view {
        // Through a mapping, 9 MiB are not copied in one step: the stamp was withdrawn before the last byte.
        assert_eq!(outcome, Err(TransferError::Stale));
        return;
    }
    // Through a socket all bytes may have been sent already; otherwise the trailer says that they are stale.
    match outcome {
        Ok(()) => assert_pattern(location.stamp, 0, &bytes),
        Err(error) => assert_eq!(error, TransferError::Stale),
    }
    let location = fixture.put(&[1000]).await;
    fixture.node.retire_sends(true);
    assert_eq!(fixture.get(location, 0, 1000).await, Err(TransferError::Stale));
    fixture.node.retire_sends(false);
}

async fn stale_writes(fixture: &Fixture) {
    let bytes = pattern(0, 4096);
    let gone = fixture.node.reserve(&[4096]);
    fixture.node.retire(gone);
    let reused = fixture.put(&[4096]).await;
    let reserved = fixture.node.reserve(&[4096]);
    let other = Location { stamp: reserved.stamp + 1, ..reserved };
    for location in
        [gone, reused, other, Location { stamp: 0, ..reserved }, Location { slot: u32::MAX, stamp: 1 }]
    {
        assert_eq!(fixture.write(location, 0, &[&bytes]).await, Err(TransferError::Stale), "{location:?}");
    }
    assert_eq!(fixture.get(reused, 0, 4096).await, Ok(()), "the committed object is unchanged");
}

async fn zero_length(fixture: &Fixture) {
    let location = fixture.node.reserve(&[]);
    assert_eq!(fixture.write(location, 0, &[]).await, Ok(()));
    fixture.node.commit(location);
    assert_eq!(fixture.get(location, 0, 0).await, Ok(()));
    assert_eq!(fixture.get(location, 0, 1).await, Err(TransferError::OutOfRange));
    fixture.node.retire(location);
    assert_eq!(fixture.get(location, 0, 0).await, Err(TransferError::Stale));

    let location = fixture.put(&[10]).await;
    for (offset, expected) in [(0, Ok(())), (10, Ok(())), (11, Err(TransferError::OutOfRange))] {
        assert_eq!(fixture.get(location, offset, 0).await, expected, "an empty range at {offset}");
    }
    assert_eq!(fixture.transport.read(&[], soon()).await, []);
    assert_eq!(fixture.transport.write(&[], soon()).await, []);
}

async fn too_large(fixture: &Fixture) {
    let location = fixture.put(&[600, 400]).await;
    let reserved = fixture.node.reserve(&[600, 400]);
    for (offset, len) in [(0, 1001), (1000, 1), (999, 2), (u64::MAX, 1), (u64::MAX - 5, 100), (1 << 40, 5)] {
        let bytes = pattern(0, len);
        let out = Err(TransferError::OutOfRange);
        assert_eq!(fixture.get(location, offset, len).await, out, "read {offset}+{len}");
        assert_eq!(fixture.write(reserved, offset, &[&bytes]).await, out, "write {offset}+{len}");
    }
    let long = pattern(0, CHUNK_BYTES_MAX + 1);
    assert_eq!(fixture.write(reserved, 0, &[&long]).await, Err(TransferError::OutOfRange));
}

async fn gather_and_scatter(fixture: &Fixture) {
    let lens = [1001, 3, 70_000];
    let total: u64 = lens.iter().sum();
    let location = fixture.node.reserve(&lens);
    let bytes = pattern(location.stamp, total);
    let mut sources = Vec::new();
    let mut rest = &bytes[..];
    for len in [1, 0, 2, 1000, 17].into_iter().chain(std::iter::repeat_n(997, 80)) {
        let (head, tail) = rest.split_at(rest.len().min(len));
        sources.push(head);
        rest = tail;
    }
    assert!(rest.is_empty(), "the sources hold everything");
    assert_eq!(fixture.write(location, 0, &sources).await, Ok(()));
    fixture.node.commit(location);

    for misalignment in 0..4 {
        let mut memory = vec![0xee; total as usize + 300];
        let (_, mut tail) = memory.split_at_mut(misalignment);
        let (mut targets, mut guards) = (Vec::new(), Vec::new());
        // Every target is followed by a guard byte that must not change.
        for len in [3, 0, 500].into_iter().chain(std::iter::repeat_n(1237, 55)) {
            let (target, after) = tail.split_at_mut(len);
            let (guard, after) = after.split_at_mut(1);
            targets.push(target);
            guards.push(guard);
            tail = after;
        }
        assert_eq!(fixture.read(location, 11, &mut targets).await, Ok(()));
        let joined: Vec<u8> = targets.iter().flat_map(|target| target.iter().copied()).collect();
        assert_pattern(location.stamp, 11, &joined);
        assert!(guards.iter().all(|guard| **guard == [0xee]), "a byte outside the targets was overwritten");
    }
}

async fn many_at_once(fixture: &Fixture) {
    let mut locations = Vec::new();
    for number in 0..24 {
        locations.push(fixture.put(&[1 + number * 12_345]).await);
    }
    let mut reads: Vec<Pin<Box<dyn Future<Output = Outcome> + Send + '_>>> = Vec::new();
    for round in 0..3 {
        for (number, location) in (0..).zip(&locations) {
            let len = 1 + number * 12_345;
            reads.push(Box::pin(fixture.get(*location, round.min(len), len - round.min(len))));
        }
    }
    let mut done = 0;
    let count = reads.len();
    poll_fn(|context| {
        reads.retain_mut(|read| match read.as_mut().poll(context) {
            Poll::Ready(outcome) => {
                assert_eq!(outcome, Ok(()));
                done += 1;
                false
            }
            Poll::Pending => true,
        });
        if reads.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    assert_eq!(done, count);
}

async fn deadline(fixture: &Fixture) {
    let location = fixture.put(&[1000]).await;
    let mut bytes = vec![0; 1000];
    let past = Instant::now();
    let targets = vec![TargetBuf::from(&mut bytes[..])];
    let op = ReadOp { slot: location.slot, stamp: location.stamp, offset: 0, targets };
    assert_eq!(fixture.transport.read(&[op], past).await, [Err(TransferError::Timeout)]);
    // A read that timed out does not disturb the next.
    assert_eq!(fixture.get(location, 0, 1000).await, Ok(()));
}

/// The same memory is used for one object after the other while others are being read.
async fn reuse_under_readers(fixture: Arc<Fixture>) {
    const LEN: u64 = 200_000;
    const ROUNDS: usize = 40;
    const READERS: usize = 2;
    let first = fixture.put(&[LEN]).await;
    let (current, watch) = tokio::sync::watch::channel(Some(first));
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..READERS {
        let (fixture, watch) = (Arc::clone(&fixture), watch.clone());
        readers.spawn(async move {
            let mut last = first;
            loop {
                let now = *watch.borrow();
                match fixture.get(now.unwrap_or(last), 0, LEN).await {
                    Ok(()) | Err(TransferError::Stale) => {}
                    Err(error) => panic!("{error}"),
                }
                let Some(now) = now else { return fixture.get(last, 0, LEN).await };
                last = now;
                tokio::task::yield_now().await;
            }
        });
    }
    let mut location = first;
    for _ in 0..ROUNDS {
        while fixture.node.is_being_stored(location) {
            tokio::task::yield_now().await;
        }
        location = fixture.node.reuse(location);
        let bytes = pattern(location.stamp, LEN);
        // One half at a time, so that readers see a half-written object.
        let (head, tail) = bytes.split_at(bytes.len() / 2);
        assert_eq!(fixture.write(location, 0, &[head]).await, Ok(()));
        tokio::task::yield_now().await;
        assert_eq!(fixture.write(location, head.len() as u64, &[tail]).await, Ok(()));
        fixture.node.commit(location);
        current.send_replace(Some(location));
        tokio::task::yield_now().await;
    }
    current.send_replace(None);
    while let Some(ended) = readers.join_next().await {
        let ended = ended.expect("no reader saw a byte of another object");
        assert!(matches!(ended, Ok(()) | Err(TransferError::Stale)), "{ended:?}");
    }
    assert_eq!(fixture.get(location, 0, LEN).await, Ok(()), "the last object stays");
}
