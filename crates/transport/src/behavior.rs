//! What every transport must do, as one suite: for tests.
//!
//! A test makes a [`Stage`] — a little node and a transport that reaches it — for each check, and runs
//! [`all`]. Objects carry a pattern made from their stamp, so that a byte of anything else is noticed.

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
use crate::tcp::Keeper;
use crate::tcp::frame::RequestHead;
use crate::{
    CHUNK_BYTES_MAX, Extent, Instant, Outcome, ReadOp, SourceBuf, TargetBuf, TransferError, Transport,
    WriteOp,
};

/// The memory of a [`Shelf`].
const DATA_BYTES: u64 = 96 << 20;
const SLOT_COUNT: u32 = 512;
const HEAP_BYTES: u64 = 1 << 20;
/// How often something is tried again on a stage on which connections break.
const TRIES_MAX: usize = 1000;
/// Not the number of any life of the master.
const NO_EPOCH: u64 = 0;
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// One use of one slot of a [`Shelf`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The slot.
    pub slot: u32,
    /// Its stamp.
    pub stamp: u64,
}

/// A node with just enough sense to be read from and written to.
pub struct Shelf {
    memory: Arc<NodeMemory>,
    state: Mutex<ShelfState>,
    /// Retires the object of the next send while it is under way.
    is_retiring_sends: AtomicBool,
    /// The life of the master in which it is a member; [`NO_EPOCH`] if it is none.
    epoch: AtomicU64,
    /// Is no member any more once the next send is under way.
    is_leaving_in_sends: AtomicBool,
    opened: AtomicU64,
    closed: AtomicU64,
}

struct ShelfState {
    writer: ControlWriter,
    next_slot: u32,
    next_stamp: u64,
    next_byte: u64,
    next_heap: u64,
    records: BTreeMap<u32, SlotRecord>,
    holds: BTreeMap<Place, usize>,
    /// Those of them that are writes.
    stores: BTreeMap<Place, usize>,
}

impl Default for Shelf {
    fn default() -> Self {
        Self::new()
    }
}

impl Shelf {
    /// An empty one.
    ///
    /// # Panics
    /// If the machine has no memory to speak of.
    #[must_use]
    pub fn new() -> Self {
        static NEXT_SEGMENT: AtomicU64 = AtomicU64::new(0x5e90_0000);
        let segment = NEXT_SEGMENT.fetch_add(1, Ordering::Relaxed);
        let geometry =
            Geometry { segment, data_bytes: DATA_BYTES, slot_count: SLOT_COUNT, heap_bytes: HEAP_BYTES };
        let (memory, writer) = NodeMemory::create(geometry).expect("a test has memory for a segment");
        let state = ShelfState {
            writer,
            next_slot: 0,
            next_stamp: 1000,
            next_byte: 0,
            next_heap: 0,
            records: BTreeMap::new(),
            holds: BTreeMap::new(),
            stores: BTreeMap::new(),
        };
        let (opened, closed) = (AtomicU64::new(0), AtomicU64::new(0));
        let (epoch, off) = (AtomicU64::new(NO_EPOCH), || AtomicBool::new(false));
        let (is_retiring_sends, is_leaving_in_sends) = (off(), off());
        let state = Mutex::new(state);
        Self { memory, state, is_retiring_sends, epoch, is_leaving_in_sends, opened, closed }
    }

    /// Its memory.
    #[must_use]
    pub fn memory(&self) -> &Arc<NodeMemory> {
        &self.memory
    }

    /// Reserves extents of these lengths, with gaps between them, at odd offsets.
    pub fn reserve(&self, lens: &[u64]) -> Place {
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

    /// Whether bytes are still written there on behalf of somebody, who may have lost the connection and
    /// tried again. Until that is over a node does not reuse them.
    pub fn is_being_stored(&self, place: Place) -> bool {
        self.state().stores.contains_key(&place)
    }

    /// Takes the object away and reserves the same bytes, cut otherwise, for another.
    pub fn reuse(&self, place: Place) -> Place {
        let mut state = self.state();
        state.writer.retire(place.slot);
        let old = state.records.remove(&place.slot).unwrap_or_default();
        let extents = match *old.extents.as_slice() {
            [Extent { offset, len }] if len > 1 => {
                let half = len / 2;
                vec![Extent { offset: offset + half, len: len - half }, Extent { offset, len: half }]
            }
            [one, two] => vec![Extent { offset: one.offset.min(two.offset), len: one.len + two.len }],
            _ => old.extents,
        };
        state.write(place.slot, extents)
    }

    /// Makes it readable.
    pub fn commit(&self, place: Place) {
        let mut state = self.state();
        let Some(mut record) = state.records.remove(&place.slot) else { return };
        record.state = SlotState::Committed;
        state.writer.write_slot(place.slot, &record);
        state.records.insert(place.slot, record);
    }

    /// Takes it away.
    pub fn retire(&self, place: Place) {
        self.state().writer.retire(place.slot);
    }

    /// From now on, or no more: whatever is sent is retired while it is under way.
    pub fn retire_sends(&self, is_on: bool) {
        self.is_retiring_sends.store(is_on, Ordering::SeqCst);
    }

    /// It is a member in that life of the master from now on.
    pub fn join(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::SeqCst);
    }

    /// From now on, or no more: it stops being a member whenever something is sent.
    pub fn leave_in_sends(&self, is_on: bool) {
        self.is_leaving_in_sends.store(is_on, Ordering::SeqCst);
    }

    fn vouches(&self, unasked: Option<u64>) -> bool {
        unasked.is_none_or(|epoch| epoch == self.epoch.load(Ordering::SeqCst))
    }

    /// Holds that have begun and not ended.
    pub fn holds(&self) -> usize {
        self.state().holds.values().sum()
    }

    /// How many clients have come and gone, as the data socket says.
    pub fn visits(&self) -> (u64, u64) {
        (self.opened.load(Ordering::SeqCst), self.closed.load(Ordering::SeqCst))
    }

    fn state(&self) -> MutexGuard<'_, ShelfState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, place: Place, offset: u64, len: u64, is_store: bool) -> Option<Vec<Extent>> {
        let mut state = self.state();
        let placement = self.memory.reader().load(place.slot, place.stamp).ok()?;
        if is_store && placement.state != SlotState::Reserved {
            return None;
        }
        let extents = placement.range(offset, len).ok()?;
        *state.holds.entry(place).or_default() += 1;
        if is_store {
            *state.stores.entry(place).or_default() += 1;
        }
        Some(extents)
    }

    fn end(&self, place: Place) -> bool {
        let mut state = self.state();
        let count = state.holds.get_mut(&place).filter(|count| **count > 0);
        *count.expect("a hold that ends has begun") -= 1;
        self.memory.reader().still(place.slot, place.stamp)
    }
}

impl ShelfState {
    fn write(&mut self, slot: u32, extents: Vec<Extent>) -> Place {
        let (stamp, spill_offset) = (self.next_stamp, self.next_heap);
        self.next_stamp += 1;
        self.next_heap += extents.len() as u64 * crate::layout::SPILLED_EXTENT_BYTES;
        let len = extents.iter().map(|extent| extent.len).sum();
        let state = SlotState::Reserved;
        let record = SlotRecord { stamp, state, len, extents, spill_offset, ..SlotRecord::default() };
        self.writer.write_slot(slot, &record);
        self.records.insert(slot, record);
        Place { slot, stamp }
    }
}

impl Keeper for Shelf {
    fn begin_store(&self, _: u64, range: &RequestHead) -> Option<Vec<Extent>> {
        self.begin(place(range), range.offset, range.len, true)
    }

    fn end_store(&self, range: &RequestHead) {
        self.end(place(range));
        let mut state = self.state();
        let stores = &mut state.stores;
        let left = stores.remove(&place(range)).filter(|count| *count > 1);
        left.map(|count| stores.insert(place(range), count - 1));
    }

    fn begin_send(&self, range: &RequestHead) -> Option<Vec<Extent>> {
        if !self.vouches(range.unasked) {
            return None;
        }
        let extents = self.begin(place(range), range.offset, range.len, false);
        if self.is_leaving_in_sends.load(Ordering::SeqCst) {
            self.join(NO_EPOCH);
        }
        if self.is_retiring_sends.load(Ordering::SeqCst) {
            self.retire(place(range));
        }
        extents
    }

    fn end_send(&self, range: &RequestHead) -> bool {
        self.end(place(range)) && self.vouches(range.unasked)
    }

    fn opened(&self, _: u64) {
        self.opened.fetch_add(1, Ordering::SeqCst);
    }

    fn closed(&self, _: u64) {
        self.closed.fetch_add(1, Ordering::SeqCst);
    }
}

fn place(range: &RequestHead) -> Place {
    Place { slot: range.slot, stamp: range.stamp }
}

/// A little node, and a transport that reaches it.
pub struct Stage {
    /// The node.
    pub shelf: Arc<Shelf>,
    /// Reaches it.
    pub transport: Arc<dyn Transport>,
    /// Connections break, so that what is lost must be tried again.
    pub is_lossy: bool,
    /// Whatever must live as long as the stage does.
    pub keep: Box<dyn Send + Sync>,
}

impl Stage {
    /// Reads, again and again while the stage loses it.
    pub async fn read(&self, place: Place, offset: u64, targets: &mut [&mut [u8]]) -> Outcome {
        for _ in 0..TRIES_MAX {
            let targets = targets.iter_mut().map(|target| TargetBuf::from(&mut **target)).collect();
            let op = ReadOp { slot: place.slot, stamp: place.stamp, offset, targets };
            let outcome = one(self.transport.read(&[op], soon()).await);
            if !(self.is_lossy && is_lost(&outcome)) {
                return outcome;
            }
        }
        panic!("a read was lost {TRIES_MAX} times");
    }

    /// Writes, again and again while the stage loses it.
    pub async fn write(&self, place: Place, offset: u64, sources: &[&[u8]]) -> Outcome {
        for _ in 0..TRIES_MAX {
            let sources = sources.iter().map(|&source| SourceBuf::from(source)).collect();
            let op = WriteOp { slot: place.slot, stamp: place.stamp, offset, sources };
            let outcome = one(self.transport.write(&[op], soon()).await);
            if !(self.is_lossy && is_lost(&outcome)) {
                return outcome;
            }
        }
        panic!("a write was lost {TRIES_MAX} times");
    }

    /// Reserves, writes the pattern and commits.
    pub async fn put(&self, lens: &[u64]) -> Place {
        let place = self.shelf.reserve(lens);
        let bytes = pattern(place.stamp, lens.iter().sum());
        assert_eq!(self.write(place, 0, &[&bytes]).await, Ok(()), "writing {lens:?}");
        self.shelf.commit(place);
        place
    }

    /// Reads a range and compares it with the pattern.
    async fn get(&self, place: Place, offset: u64, len: u64) -> Outcome {
        let mut bytes = vec![0xee; len as usize];
        self.read(place, offset, &mut [&mut bytes]).await?;
        assert_pattern(place.stamp, offset, &bytes);
        Ok(())
    }
}

/// Tries to map the memory file at this path for writing, as a process that means no good would.
pub fn map_writable(path: &std::path::Path) -> std::io::Result<()> {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
    Map::new(file.as_fd(), file.metadata()?.len(), Access::ReadWrite).map(drop)
}

/// A moment after which a test has failed anyway.
#[must_use]
pub fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// The bytes of the object with this stamp.
#[must_use]
pub fn pattern(stamp: u64, len: u64) -> Vec<u8> {
    (0..len).map(|at| byte_at(stamp, at)).collect()
}

/// Fails if these are not the bytes from `offset` on of the object with this stamp.
pub fn assert_pattern(stamp: u64, offset: u64, bytes: &[u8]) {
    let wrong = (offset..).zip(bytes).find(|&(at, byte)| *byte != byte_at(stamp, at));
    assert_eq!(wrong, None, "(offset, byte) that does not belong to stamp {stamp}");
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

type Check = fn(Arc<Stage>) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs every check, each on a stage of its own.
pub async fn all<F: Future<Output = Stage>>(make: impl Fn() -> F) {
    let checks: [(&str, Check); 14] = [
        ("bytes come back", |stage| Box::pin(async move { bytes_come_back(&stage).await })),
        ("many extents", |stage| Box::pin(async move { many_extents(&stage).await })),
        ("ranges", |stage| Box::pin(async move { ranges(&stage).await })),
        ("mixed writes", |stage| Box::pin(async move { mixed_writes(&stage).await })),
        ("mixed batch", |stage| Box::pin(async move { mixed_batch(&stage).await })),
        ("stale before", |stage| Box::pin(async move { stale_before(&stage).await })),
        ("retired during the read", |stage| Box::pin(async move { retired_during_the_read(&stage).await })),
        ("stale writes", |stage| Box::pin(async move { stale_writes(&stage).await })),
        ("zero length", |stage| Box::pin(async move { zero_length(&stage).await })),
        ("too large", |stage| Box::pin(async move { too_large(&stage).await })),
        ("gather and scatter", |stage| Box::pin(async move { gather_and_scatter(&stage).await })),
        ("many at once", |stage| Box::pin(async move { many_at_once(&stage).await })),
        ("deadline", |stage| Box::pin(async move { deadline(&stage).await })),
        ("reuse under readers", |stage| Box::pin(reuse_under_readers(stage))),
    ];
    for (name, check) in checks {
        let stage = Arc::new(make().await);
        tracing::info!(name, transport = stage.transport.capability().name);
        check(Arc::clone(&stage)).await;
    }
}

async fn bytes_come_back(stage: &Stage) {
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
        let place = stage.put(&[len]).await;
        assert_eq!(stage.get(place, 0, len).await, Ok(()), "{len}");
    }
}

async fn many_extents(stage: &Stage) {
    let cuts: [&[u64]; 5] =
        [&[5, 9], &[1, 1, 1], &[4096, 1, 65_536, 7], &[3_000_000, 3_000_000, 3_000_001], &[13; 300]];
    for lens in cuts {
        let place = stage.put(lens).await;
        assert_eq!(stage.get(place, 0, lens.iter().sum()).await, Ok(()), "{lens:?}");
    }
}

async fn ranges(stage: &Stage) {
    let lens = [10, 100, 1000, 5_000_000];
    let total: u64 = lens.iter().sum();
    let place = stage.put(&lens).await;
    for (offset, len) in [
        (0, 1),
        (9, 2),
        (10, 100),
        (105, 1100),
        (total - 1, 1),
        (1, total - 1),
        (total / 2, CHUNK_BYTES_MAX.min(total / 2)),
    ] {
        assert_eq!(stage.get(place, offset, len).await, Ok(()), "{offset}+{len}");
    }
    // Written in parts, out of order, it is the same.
    let place = stage.shelf.reserve(&lens);
    let bytes = pattern(place.stamp, total);
    for (offset, len) in [(500, total - 500), (0, 7), (7, 493)] {
        let part = bytes.get(offset as usize..(offset + len) as usize).unwrap_or_default();
        assert_eq!(stage.write(place, offset, &[part]).await, Ok(()), "{offset}+{len}");
    }
    stage.shelf.commit(place);
    assert_eq!(stage.get(place, 0, total).await, Ok(()));
}

/// Small and large ones are written in one batch, in whatever order.
async fn mixed_writes(stage: &Stage) {
    for lens in
        [[10, 70_000, 0, 600_000, 5], [100_000, 1, 100_000, 300_000, 100_000], [0, 5_000_000, 9, 8, 7]]
    {
        let places = lens.map(|len| stage.shelf.reserve(&[len]));
        let bytes: Vec<_> = places.iter().zip(lens).map(|(place, len)| pattern(place.stamp, len)).collect();
        let ops: Vec<_> = places
            .iter()
            .zip(&bytes)
            .map(|(place, bytes)| {
                let sources = vec![SourceBuf::from(&bytes[..])];
                WriteOp { slot: place.slot, stamp: place.stamp, offset: 0, sources }
            })
            .collect();
        let mut outcomes = Vec::new();
        for _ in 0..TRIES_MAX {
            outcomes = stage.transport.write(&ops, soon()).await;
            if !(stage.is_lossy && outcomes.iter().any(is_lost)) {
                break;
            }
        }
        assert_eq!(outcomes, vec![Ok(()); lens.len()], "{lens:?}");
        for (place, len) in places.into_iter().zip(lens) {
            stage.shelf.commit(place);
            assert_eq!(stage.get(place, 0, len).await, Ok(()), "{lens:?}");
        }
    }
}

async fn mixed_batch(stage: &Stage) {
    let good = stage.put(&[100_000]).await;
    let gone = stage.put(&[100_000]).await;
    let short = stage.put(&[10]).await;
    stage.shelf.retire(gone);
    let mut buffers = vec![vec![0; 100_000]; 5];
    let places = [good, gone, short, good, gone];
    for _ in 0..TRIES_MAX {
        let ops: Vec<_> = places
            .iter()
            .zip(&mut buffers)
            .map(|(place, buffer)| ReadOp {
                slot: place.slot,
                stamp: place.stamp,
                offset: 0,
                targets: vec![TargetBuf::from(&mut buffer[..])],
            })
            .collect();
        let outcomes = stage.transport.read(&ops, soon()).await;
        if stage.is_lossy && outcomes.iter().any(is_lost) {
            continue;
        }
        let stale = Err(TransferError::Stale);
        let expected = [Ok(()), stale.clone(), Err(TransferError::OutOfRange), Ok(()), stale];
        assert_eq!(outcomes, expected);
        let read = buffers.iter().zip(places).zip(expected);
        for ((buffer, place), _) in read.filter(|(_, expected)| expected.is_ok()) {
            assert_pattern(place.stamp, 0, buffer);
        }
        return;
    }
    panic!("the batch was lost every time");
}

async fn stale_before(stage: &Stage) {
    let place = stage.put(&[5000]).await;
    let gone = stage.put(&[5000]).await;
    stage.shelf.retire(gone);
    for wrong in [
        gone,
        Place { stamp: place.stamp + 77, ..place },
        Place { stamp: 0, ..place },
        Place { slot: SLOT_COUNT - 1, stamp: 0 },
        Place { slot: SLOT_COUNT, ..place },
        Place { slot: u32::MAX, ..place },
    ] {
        assert_eq!(stage.get(wrong, 0, 5000).await, Err(TransferError::Stale), "{wrong:?}");
    }
    assert_eq!(stage.get(place, 0, 5000).await, Ok(()));
}

async fn retired_during_the_read(stage: &Stage) {
    let len = 9 << 20;
    let place = stage.put(&[len]).await;
    let mut bytes = vec![0; len as usize];
    let mut targets = [&mut bytes[..]];
    let outcome = {
        let mut read = pin!(stage.read(place, 0, &mut targets));
        let begun = poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await;
        stage.shelf.retire(place);
        match begun {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => read.await,
        }
    };
    if stage.transport.capability().can_view {
        // Through a mapping, so much is not copied in one step: the stamp was gone before the last byte.
        assert_eq!(outcome, Err(TransferError::Stale));
        return;
    }
    // Through a socket everything may have been sent already; if not, the node says that it does not count.
    match outcome {
        Ok(()) => assert_pattern(place.stamp, 0, &bytes),
        Err(error) => assert_eq!(error, TransferError::Stale),
    }
    let place = stage.put(&[1000]).await;
    stage.shelf.retire_sends(true);
    assert_eq!(stage.get(place, 0, 1000).await, Err(TransferError::Stale));
    stage.shelf.retire_sends(false);
}

async fn stale_writes(stage: &Stage) {
    let bytes = pattern(0, 4096);
    let gone = stage.shelf.reserve(&[4096]);
    stage.shelf.retire(gone);
    let reused = stage.put(&[4096]).await;
    let reserved = stage.shelf.reserve(&[4096]);
    let other = Place { stamp: reserved.stamp + 1, ..reserved };
    for place in [gone, reused, other, Place { stamp: 0, ..reserved }, Place { slot: u32::MAX, stamp: 1 }] {
        assert_eq!(stage.write(place, 0, &[&bytes]).await, Err(TransferError::Stale), "{place:?}");
    }
    assert_eq!(stage.get(reused, 0, 4096).await, Ok(()), "what was committed is unharmed");
}

async fn zero_length(stage: &Stage) {
    let place = stage.shelf.reserve(&[]);
    assert_eq!(stage.write(place, 0, &[]).await, Ok(()));
    stage.shelf.commit(place);
    assert_eq!(stage.get(place, 0, 0).await, Ok(()));
    assert_eq!(stage.get(place, 0, 1).await, Err(TransferError::OutOfRange));
    stage.shelf.retire(place);
    assert_eq!(stage.get(place, 0, 0).await, Err(TransferError::Stale));

    let place = stage.put(&[10]).await;
    for (offset, expected) in [(0, Ok(())), (10, Ok(())), (11, Err(TransferError::OutOfRange))] {
        assert_eq!(stage.get(place, offset, 0).await, expected, "nothing at {offset}");
    }
    assert_eq!(stage.transport.read(&[], soon()).await, []);
    assert_eq!(stage.transport.write(&[], soon()).await, []);
}

async fn too_large(stage: &Stage) {
    let place = stage.put(&[600, 400]).await;
    let reserved = stage.shelf.reserve(&[600, 400]);
    for (offset, len) in [(0, 1001), (1000, 1), (999, 2), (u64::MAX, 1), (u64::MAX - 5, 100), (1 << 40, 5)] {
        let bytes = pattern(0, len);
        let out = Err(TransferError::OutOfRange);
        assert_eq!(stage.get(place, offset, len).await, out, "read {offset}+{len}");
        assert_eq!(stage.write(reserved, offset, &[&bytes]).await, out, "write {offset}+{len}");
    }
    let long = pattern(0, CHUNK_BYTES_MAX + 1);
    assert_eq!(stage.write(reserved, 0, &[&long]).await, Err(TransferError::OutOfRange));
}

async fn gather_and_scatter(stage: &Stage) {
    let lens = [1001, 3, 70_000];
    let total: u64 = lens.iter().sum();
    let place = stage.shelf.reserve(&lens);
    let bytes = pattern(place.stamp, total);
    let mut sources = Vec::new();
    let mut rest = &bytes[..];
    for len in [1, 0, 2, 1000, 17].into_iter().chain(std::iter::repeat_n(997, 80)) {
        let (head, tail) = rest.split_at(rest.len().min(len));
        sources.push(head);
        rest = tail;
    }
    assert!(rest.is_empty(), "the sources hold everything");
    assert_eq!(stage.write(place, 0, &sources).await, Ok(()));
    stage.shelf.commit(place);

    for misalignment in 0..4 {
        let mut memory = vec![0xee; total as usize + 300];
        let (_, mut tail) = memory.split_at_mut(misalignment);
        let (mut targets, mut guards) = (Vec::new(), Vec::new());
        // Every target is followed by a byte that is none of the transport's business.
        for len in [3, 0, 500].into_iter().chain(std::iter::repeat_n(1237, 55)) {
            let (target, after) = tail.split_at_mut(len);
            let (guard, after) = after.split_at_mut(1);
            targets.push(target);
            guards.push(guard);
            tail = after;
        }
        assert_eq!(stage.read(place, 11, &mut targets).await, Ok(()));
        let joined: Vec<u8> = targets.iter().flat_map(|target| target.iter().copied()).collect();
        assert_pattern(place.stamp, 11, &joined);
        assert!(guards.iter().all(|guard| **guard == [0xee]), "a byte beside a target was overwritten");
    }
}

async fn many_at_once(stage: &Stage) {
    let mut places = Vec::new();
    for number in 0..24 {
        places.push(stage.put(&[1 + number * 12_345]).await);
    }
    let mut reads: Vec<Pin<Box<dyn Future<Output = Outcome> + Send + '_>>> = Vec::new();
    for round in 0..3 {
        for (number, place) in (0..).zip(&places) {
            let len = 1 + number * 12_345;
            reads.push(Box::pin(stage.get(*place, round.min(len), len - round.min(len))));
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

async fn deadline(stage: &Stage) {
    let place = stage.put(&[1000]).await;
    let mut bytes = vec![0; 1000];
    let past = Instant::now();
    let targets = vec![TargetBuf::from(&mut bytes[..])];
    let op = ReadOp { slot: place.slot, stamp: place.stamp, offset: 0, targets };
    assert_eq!(stage.transport.read(&[op], past).await, [Err(TransferError::Timeout)]);
    // What timed out leaves nothing behind that disturbs the next.
    assert_eq!(stage.get(place, 0, 1000).await, Ok(()));
}

/// The same bytes are used for one object after the other while others read them.
async fn reuse_under_readers(stage: Arc<Stage>) {
    const LEN: u64 = 200_000;
    const ROUNDS: usize = 40;
    const READERS: usize = 2;
    let first = stage.put(&[LEN]).await;
    let (current, watch) = tokio::sync::watch::channel(Some(first));
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..READERS {
        let (stage, watch) = (Arc::clone(&stage), watch.clone());
        readers.spawn(async move {
            let mut last = first;
            loop {
                let now = *watch.borrow();
                match stage.get(now.unwrap_or(last), 0, LEN).await {
                    Ok(()) | Err(TransferError::Stale) => {}
                    Err(error) => panic!("{error}"),
                }
                let Some(now) = now else { return stage.get(last, 0, LEN).await };
                last = now;
                tokio::task::yield_now().await;
            }
        });
    }
    let mut place = first;
    for _ in 0..ROUNDS {
        while stage.shelf.is_being_stored(place) {
            tokio::task::yield_now().await;
        }
        place = stage.shelf.reuse(place);
        let bytes = pattern(place.stamp, LEN);
        // One half at a time, so that readers meet the object half written.
        let (head, tail) = bytes.split_at(bytes.len() / 2);
        assert_eq!(stage.write(place, 0, &[head]).await, Ok(()));
        tokio::task::yield_now().await;
        assert_eq!(stage.write(place, head.len() as u64, &[tail]).await, Ok(()));
        stage.shelf.commit(place);
        current.send_replace(Some(place));
        tokio::task::yield_now().await;
    }
    current.send_replace(None);
    while let Some(ended) = readers.join_next().await {
        let ended = ended.expect("no reader saw a byte of another object");
        assert!(matches!(ended, Ok(()) | Err(TransferError::Stale)), "{ended:?}");
    }
    assert_eq!(stage.get(place, 0, LEN).await, Ok(()), "the last one is there to stay");
}
