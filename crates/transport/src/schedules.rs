//! Reads and writes under shuttle: a node, a writer and readers over one real segment. Threads are switched
//! between any two accesses to words and any eight bytes of a copy, in thousands of schedules, half of them
//! random and half by PCT (which finds bugs that need few switches at specific places).
//!
//! Everything but the threads is production code: [`ControlWriter`], [`ControlReader`], [`crate::mapped`]
//! through [`Local`], the copy kernel. Each variant of [`Rule`] that does not concern fences is broken once,
//! to prove that a schedule then fails.
//!
//! Shuttle runs one thread at a time, so every store is visible everywhere at once. Loom checks stale loads
//! and reordering, in [`crate::stamp`]. Processes that break the rules are tested by `tests/hostile.rs`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use shuttle::future::block_on;
use shuttle::rand::Rng;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::{Condvar, Mutex, atomic::AtomicBool};
use shuttle::{Config, FailurePersistence, Runner, thread};

use crate::control::{ControlReader, ControlWriter, SlotRecord, SlotState};
use crate::layout::Geometry;
use crate::local::Local;
use crate::seams::{Rule, break_rule, point, schedule};
use crate::segment::NodeMemory;
use crate::{
    Counters, Extent, Instant, Outcome, ReadOp, SourceBuf, TargetBuf, TransferError, Transport, WriteOp,
};

const GEOMETRY: Geometry = Geometry { segment: 1, data_bytes: 512, slot_count: 2, heap_bytes: 96 };
/// Schedules per scheduler: they take a few seconds.
const SCHEDULES: usize = 1500;
/// Maximum number of schedules until a broken rule must have failed.
const SCHEDULES_BROKEN: usize = 20_000;
/// Maximum number of preemptions that PCT inserts.
const PCT_DEPTH: usize = 4;
/// Maximum number of scheduling points for which the node leaves a use alone: about one read.
const PAUSE_POINTS_MAX: u32 = 40;
const SEED: u64 = 0x7469_6666_696e;

// Failures that occur only when a rule is broken.
const WRONG_BYTES: &str = "bytes of another use were accepted";
const WRONG_WORDS: &str = "words of another use were accepted";
const DAMAGE: &str = "an intact slot was reported as damaged";
const DELETED: &str = "a deleted object was read from a cached location";

/// One use of a slot, its extents, and its content.
#[derive(Debug)]
struct Use {
    slot: u32,
    stamp: u64,
    extents: &'static [(u64, u64)],
}

/// The same memory repeatedly: in the same slot and in another, in one piece and in several, with the list of
/// pieces in the slot and in the heap.
const USES: [Use; 5] = [
    Use { slot: 0, stamp: 11, extents: &[(0, 256)] },
    Use { slot: 1, stamp: 12, extents: &[(128, 128), (0, 128)] },
    Use { slot: 1, stamp: 13, extents: &[(0, 96), (160, 32), (96, 64)] },
    Use { slot: 0, stamp: 14, extents: &[(256, 64), (192, 64), (32, 128)] },
    Use { slot: 0, stamp: 15, extents: &[(128, 64), (0, 64), (300, 100)] },
];

impl Use {
    fn len(&self) -> usize {
        self.extents.iter().map(|(_, len)| *len as usize).sum()
    }

    fn content(&self) -> Vec<u8> {
        vec![self.stamp as u8; self.len()]
    }

    fn extents(&self) -> Vec<Extent> {
        self.extents.iter().map(|&(offset, len)| Extent { offset, len }).collect()
    }

    fn record(&self, state: SlotState) -> SlotRecord {
        let (stamp, len, extents) = (self.stamp, self.len() as u64, self.extents());
        let spill_offset = u64::from(self.slot) * 48;
        SlotRecord { stamp, state, len, extents, spill_offset, ..SlotRecord::default() }
    }
}

/// The order of the node's steps; half of the variants are wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// A use is retired, then its memory is reused.
    RetireThenReuse,
    /// The memory is reused before the use is retired.
    ReuseThenRetire,
    /// The node leaves its cluster after each use, and is a member again after it has retired that use.
    RetireThenReturn,
    /// The node is a member again before it has retired that use.
    ReturnThenRetire,
    /// The node recalls an offer, and gives the memory to another writer if that succeeds.
    RecallThenReuse,
    /// The node gives the memory to another writer even if the recall fails.
    ReuseOffered,
}

/// What the master would answer: the newest readable use.
#[derive(Default)]
struct Published {
    newest: Mutex<Option<usize>>,
    changed: Condvar,
    /// Number of deleted uses, oldest first.
    deleted: Mutex<usize>,
}

impl Published {
    fn publish(&self, at: usize) {
        *self.newest.lock().unwrap() = Some(at);
        self.changed.notify_all();
    }

    fn delete(&self, at: usize) {
        *self.deleted.lock().unwrap() = at + 1;
    }

    fn is_deleted(&self, at: usize) -> bool {
        *self.deleted.lock().unwrap() > at
    }

    /// The newest use, once it is at least `least`.
    fn newest(&self, least: usize) -> usize {
        let mut newest = self.newest.lock().unwrap();
        loop {
            match *newest {
                Some(at) if at >= least => return at,
                _ => newest = self.changed.wait(newest).unwrap(),
            }
        }
    }
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

async fn write(local: &Local, of: &Use) -> Outcome {
    let content = of.content();
    let op = WriteOp {
        slot: of.slot,
        stamp: of.stamp,
        offset: 0,
        sources: vec![SourceBuf::from(content.as_slice())],
    };
    local.write(&[op], far()).await.remove(0)
}

/// Without this, a fair schedule would rarely let a reader find a use before it is retired.
fn pause() {
    for _ in 0..shuttle::rand::thread_rng().gen_range(0..PAUSE_POINTS_MAX) {
        point();
    }
}

/// The node, and the writer that it waits for: put, publish, unpublish, retire, repeat.
fn node(writer: &mut ControlWriter, local: &Local, published: &Published, order: Order) {
    for (at, of) in USES.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| &USES[before]);
        // A use in the same slot is retired by `write_slot` itself.
        let retired = before.filter(|before| before.slot != of.slot);
        if order == Order::RetireThenReuse {
            retired.inspect(|before| writer.retire(before.slot));
        }
        writer.write_slot(of.slot, &of.record(SlotState::Reserved));
        let written = thread::spawn({
            let local = local.clone();
            move || block_on(write(&local, of))
        });
        written.join().unwrap().expect("the writer has the memory to itself");
        writer.write_slot(of.slot, &of.record(SlotState::Committed));
        if order == Order::ReuseThenRetire {
            retired.inspect(|before| writer.retire(before.slot));
        }
        published.publish(at);
        pause();
    }
}

/// Reads the use that was published last. It may be stale by now; every other failure is a bug.
fn reader(local: &Local, published: &Published) {
    for least in 0..USES.len() {
        let of = &USES[published.newest(least)];
        let mut found = vec![0; of.len()];
        let targets = vec![TargetBuf::from(found.as_mut_slice())];
        let op = ReadOp { slot: of.slot, stamp: of.stamp, offset: 0, targets };
        match block_on(local.read(&[op], far())).remove(0) {
            Ok(()) => {
                let strange = found.iter().find(|byte| !of.content().contains(byte));
                assert_eq!(strange, None, "{WRONG_BYTES}, in a read of {of:?}");
            }
            Err(error) => assert_eq!(error, TransferError::Stale, "{DAMAGE}"),
        }
    }
}

/// Loads uses before they are published: the result must be that use, or stale.
fn scanner(control: &ControlReader) {
    for of in &USES {
        match control.load(of.slot, of.stamp) {
            Ok(placement) => {
                assert_eq!(placement.extents, of.extents(), "{WRONG_WORDS}");
            }
            Err(error) => assert_eq!(error, TransferError::Stale, "{DAMAGE}"),
        }
    }
}

fn scenario(order: Order) {
    let (memory, mut writer) = NodeMemory::create(GEOMETRY).unwrap();
    let local = Local::new(Arc::clone(&memory), Arc::new(Counters::default()));
    let published = Arc::new(Published::default());
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (local, published) = (local.clone(), Arc::clone(&published));
            thread::spawn(move || reader(&local, &published))
        })
        .collect();
    let scanner = thread::spawn({
        let control = memory.reader().clone();
        move || scanner(&control)
    });
    node(&mut writer, &local, &published, order);
    for thread in readers.into_iter().chain([scanner]) {
        thread.join().unwrap();
    }
}

/// A node that is away during every delete: the delete is answered without it.
fn leaving_node(writer: &mut ControlWriter, local: &Local, published: &Published, order: Order) {
    writer.set_member(true);
    for (at, of) in USES.iter().enumerate() {
        writer.write_slot(of.slot, &of.record(SlotState::Reserved));
        block_on(write(local, of)).expect("the writer has the memory to itself");
        writer.write_slot(of.slot, &of.record(SlotState::Committed));
        published.publish(at);
        pause();
        writer.set_member(false);
        published.delete(at);
        if order == Order::ReturnThenRetire {
            writer.set_member(true);
        }
        pause();
        writer.retire(of.slot);
        if order == Order::RetireThenReturn {
            writer.set_member(true);
        }
    }
}

/// Reads from cached locations, without asking the master whether the objects still exist.
fn cached_location_reader(local: &Local, published: &Published) {
    for least in 0..USES.len() {
        let at = published.newest(least);
        let of = &USES[at];
        let was_deleted = published.is_deleted(at);
        let mut found = vec![0; of.len()];
        let targets = vec![TargetBuf::from(found.as_mut_slice())];
        let op = ReadOp { slot: of.slot, stamp: of.stamp, offset: 0, targets };
        let outcome = block_on(local.read(&[op], far())).remove(0);
        let control = local.control();
        if outcome.is_ok()
            && control.is_member()
            && control.state_of(of.slot, of.stamp) == Some(SlotState::Committed)
        {
            assert_eq!(found, of.content(), "{WRONG_BYTES}, in a read of {of:?}");
            assert!(!was_deleted, "{DELETED}: {of:?}");
        }
    }
}

fn scenario_of_leaving(order: Order) {
    let (memory, mut writer) = NodeMemory::create(GEOMETRY).unwrap();
    let local = Local::new(memory, Arc::new(Counters::default()));
    let published = Arc::new(Published::default());
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (local, published) = (local.clone(), Arc::clone(&published));
            thread::spawn(move || cached_location_reader(&local, &published))
        })
        .collect();
    leaving_node(&mut writer, &local, &published, order);
    readers.into_iter().for_each(|it| it.join().unwrap());
}

/// A client writes into an offer while the node recalls it for another writer.
fn scenario_of_offers(order: Order) {
    let (memory, mut writer) = NodeMemory::create(GEOMETRY).unwrap();
    let local = Local::new(memory, Arc::new(Counters::default()));
    for pair in USES.chunks_exact(2) {
        let [offered, other] = pair else { continue };
        writer.write_slot(offered.slot, &offered.record(SlotState::Offered));
        let client = thread::spawn({
            let local = local.clone();
            move || block_on(write(&local, offered))
        });
        pause();
        let is_recalled = writer.recall(offered.slot, offered.stamp);
        if is_recalled || order == Order::ReuseOffered {
            writer.retire(offered.slot);
            writer.write_slot(other.slot, &other.record(SlotState::Reserved));
            block_on(write(&local, other)).expect("the other writer has the memory to itself");
            writer.write_slot(other.slot, &other.record(SlotState::Committed));
        }
        let outcome = client.join().unwrap();
        if is_recalled || order == Order::ReuseOffered {
            let mut found = vec![0; other.len()];
            let targets = vec![TargetBuf::from(found.as_mut_slice())];
            let op = ReadOp { slot: other.slot, stamp: other.stamp, offset: 0, targets };
            block_on(local.read(&[op], far())).remove(0).expect("the use was not retired");
            assert_eq!(found, other.content(), "{WRONG_BYTES}, in a read of {other:?}");
            assert_eq!(outcome, Err(TransferError::Stale), "{WRONG_BYTES}, in a write of {offered:?}");
            writer.retire(other.slot);
        } else {
            assert_eq!(outcome, Ok(()), "{WRONG_BYTES}, in a write of {offered:?}");
            writer.retire(offered.slot);
        }
    }
}

fn run(scheduler: impl Scheduler + 'static, rule: Option<Rule>, order: Order) {
    // Shuttle switches threads at accesses to its own atomics.
    schedule(|| {
        AtomicBool::new(false).load(std::sync::atomic::Ordering::SeqCst);
    });
    break_rule(rule);
    let mut config = Config::new();
    config.failure_persistence = FailurePersistence::None;
    Runner::new(scheduler, config).run(move || match order {
        Order::RetireThenReuse | Order::ReuseThenRetire => scenario(order),
        Order::RetireThenReturn | Order::ReturnThenRetire => scenario_of_leaving(order),
        Order::RecallThenReuse | Order::ReuseOffered => scenario_of_offers(order),
    });
}

#[test]
fn no_schedule_gives_a_wrong_read() {
    for order in [Order::RetireThenReuse, Order::RetireThenReturn, Order::RecallThenReuse] {
        run(RandomScheduler::new_from_seed(SEED, SCHEDULES), None, order);
        for depth in 1..=PCT_DEPTH {
            let scheduler = PctScheduler::new_from_seed(SEED, depth, SCHEDULES / PCT_DEPTH);
            run(scheduler, None, order);
        }
    }
}

/// The failure that a reader saw; `None` if no schedule failed.
fn seen(scheduler: impl Scheduler + 'static, rule: Option<Rule>, order: Order) -> Option<&'static str> {
    let panic = catch_unwind(AssertUnwindSafe(|| run(scheduler, rule, order))).err()?;
    let message = panic.downcast_ref::<String>().cloned().unwrap_or_default();
    let known = [WRONG_BYTES, WRONG_WORDS, DAMAGE, DELETED].into_iter().find(|known| message.contains(known));
    Some(known.unwrap_or_else(|| panic!("{rule:?}, {order:?}: unexpected failure: {message}")))
}

#[test]
fn broken_rules_are_caught_by_both_schedulers() {
    let (sound, reuse_first) = (Order::RetireThenReuse, Order::ReuseThenRetire);
    for (rule, order, expected) in [
        (Some(Rule::CheckAfterCopy), sound, &[WRONG_BYTES][..]),
        (Some(Rule::CheckAfterWords), sound, &[WRONG_WORDS, DAMAGE]),
        (Some(Rule::RetireBeforeWords), sound, &[WRONG_BYTES, WRONG_WORDS, DAMAGE]),
        (Some(Rule::StampAfterWords), sound, &[WRONG_WORDS, DAMAGE]),
        (None, reuse_first, &[WRONG_BYTES]),
        (None, Order::ReturnThenRetire, &[DELETED]),
        (Some(Rule::ClaimBeforeBytes), Order::RecallThenReuse, &[WRONG_BYTES]),
        (Some(Rule::ClaimAtOnce), Order::RecallThenReuse, &[WRONG_BYTES]),
        (Some(Rule::RecallAtOnce), Order::RecallThenReuse, &[WRONG_BYTES]),
        (None, Order::ReuseOffered, &[WRONG_BYTES]),
    ] {
        let random = RandomScheduler::new_from_seed(SEED, SCHEDULES_BROKEN);
        let pct = PctScheduler::new_from_seed(SEED, PCT_DEPTH, SCHEDULES_BROKEN);
        for (way, found) in [("random", seen(random, rule, order)), ("PCT", seen(pct, rule, order))] {
            let is_caught = found.is_some_and(|found| expected.contains(&found));
            assert!(is_caught, "{way}, {rule:?}, {order:?}: {found:?}");
        }
    }
}
