//! The production path of reads and writes under shuttle: a node, a writer and readers over one real segment,
//! switched between any two accesses to words and any eight bytes of a copy, in thousands of schedules drawn
//! at random and by PCT (which finds bugs that need few switches, wherever they are).
//!
//! Everything but the threads themselves is production code: [`ControlWriter`], [`ControlReader`],
//! [`crate::mapped`] by way of [`Local`], the copy kernel. Each rule of [`Rule`] that does not speak of
//! fences is broken once, to prove that a schedule then goes wrong.
//!
//! What this cannot see: shuttle runs one thread at a time, so every store is at once everywhere. Stale loads
//! and reordering, which is what fences are for, are loom's part, in [`crate::stamp`]. Neither sees what
//! another process does that does not follow the rules: `tests/hostile.rs` does that.

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
/// Schedules per way of drawing them: what a few seconds are enough for.
const SCHEDULES: usize = 1500;
/// How many schedules a broken rule may hide in.
const SCHEDULES_BROKEN: usize = 20_000;
/// The most switches at just the wrong moment that PCT looks for.
const PCT_DEPTH: usize = 4;
/// How long the node leaves a use alone: about as long as a read takes.
const LINGER_POINTS_MAX: u32 = 40;
const SEED: u64 = 0x7469_6666_696e;

// What may be seen when a rule is broken, and never otherwise.
const WRONG_BYTES: &str = "bytes of another use were accepted";
const WRONG_WORDS: &str = "words of another use were believed";
const DAMAGE: &str = "a sound slot was called damaged";
const DELETED: &str = "what was deleted was read unasked";

/// One use: which slot it has, where its bytes lie, and what they are.
#[derive(Debug)]
struct Use {
    slot: u32,
    stamp: u64,
    extents: &'static [(u64, u64)],
}

/// The same room again and again: in the same slot and in another, whole and in pieces, with the list of
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

/// What the node may do wrong, beside what [`Rule`] breaks in this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// A use is retired, then its room is given away.
    RetireThenReuse,
    /// The other way round.
    ReuseThenRetire,
    /// The node leaves its cluster after each use, and is a member again once it has retired that use.
    RetireThenReturn,
    /// The other way round.
    ReturnThenRetire,
    /// The node recalls what it has offered, and gives the memory to another writer if that succeeds.
    RecallThenReuse,
    /// It gives the memory away whether that succeeds or not.
    ReuseOffered,
}

/// What the master would answer: the newest use that can be read.
#[derive(Default)]
struct Published {
    newest: Mutex<Option<usize>>,
    changed: Condvar,
    /// How many uses were deleted, the oldest first.
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

    /// The newest use, once it is this one or a later one.
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

/// Else a fair schedule would hardly ever let a reader find a use before it goes.
fn linger() {
    for _ in 0..shuttle::rand::thread_rng().gen_range(0..LINGER_POINTS_MAX) {
        point();
    }
}

/// The node, and the writer whom it waits for: put, publish, unpublish, retire, and again.
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
        written.join().unwrap().expect("the writer has the room to itself");
        writer.write_slot(of.slot, &of.record(SlotState::Committed));
        if order == Order::ReuseThenRetire {
            retired.inspect(|before| writer.retire(before.slot));
        }
        published.publish(at);
        linger();
    }
}

/// Reads whatever was published last. The answer may be that it is gone by now, and never anything else that
/// is wrong.
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

/// Looks for uses that nobody has told it about yet: what it finds must be them.
fn watcher(control: &ControlReader) {
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
    let watcher = thread::spawn({
        let control = memory.reader().clone();
        move || watcher(&control)
    });
    node(&mut writer, &local, &published, order);
    for thread in readers.into_iter().chain([watcher]) {
        thread.join().unwrap();
    }
}

/// A node that is away whenever something is deleted: the delete is answered without it.
fn leaving_node(writer: &mut ControlWriter, local: &Local, published: &Published, order: Order) {
    writer.set_member(true);
    for (at, of) in USES.iter().enumerate() {
        writer.write_slot(of.slot, &of.record(SlotState::Reserved));
        block_on(write(local, of)).expect("the writer has the room to itself");
        writer.write_slot(of.slot, &of.record(SlotState::Committed));
        published.publish(at);
        linger();
        writer.set_member(false);
        published.delete(at);
        if order == Order::ReturnThenRetire {
            writer.set_member(true);
        }
        linger();
        writer.retire(of.slot);
        if order == Order::RetireThenReturn {
            writer.set_member(true);
        }
    }
}

/// Reads what it has known of since it was published, and asks nobody whether it is still there.
fn unasking_reader(local: &Local, published: &Published) {
    for least in 0..USES.len() {
        let at = published.newest(least);
        let of = &USES[at];
        let was_deleted = published.is_deleted(at);
        let mut found = vec![0; of.len()];
        let targets = vec![TargetBuf::from(found.as_mut_slice())];
        let op = ReadOp { slot: of.slot, stamp: of.stamp, offset: 0, targets };
        let outcome = block_on(local.read(&[op], far())).remove(0);
        let control = local.control();
        if outcome.is_ok() && control.is_member() && control.is_committed(of.slot, of.stamp) {
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
            thread::spawn(move || unasking_reader(&local, &published))
        })
        .collect();
    leaving_node(&mut writer, &local, &published, order);
    readers.into_iter().for_each(|it| it.join().unwrap());
}

/// A client writes into what the node has offered to it, while the node recalls that for another writer.
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
        linger();
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
            block_on(local.read(&[op], far())).remove(0).expect("nobody has retired it");
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
    // An access to one of shuttle's own atomics is where it may switch.
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
fn no_schedule_makes_a_read_lie() {
    for order in [Order::RetireThenReuse, Order::RetireThenReturn, Order::RecallThenReuse] {
        run(RandomScheduler::new_from_seed(SEED, SCHEDULES), None, order);
        for depth in 1..=PCT_DEPTH {
            let scheduler = PctScheduler::new_from_seed(SEED, depth, SCHEDULES / PCT_DEPTH);
            run(scheduler, None, order);
        }
    }
}

/// What a reader saw that it must not see; `None` if there was nothing in all these schedules.
fn seen(scheduler: impl Scheduler + 'static, rule: Option<Rule>, order: Order) -> Option<&'static str> {
    let panic = catch_unwind(AssertUnwindSafe(|| run(scheduler, rule, order))).err()?;
    let said = panic.downcast_ref::<String>().cloned().unwrap_or_default();
    let known = [WRONG_BYTES, WRONG_WORDS, DAMAGE, DELETED].into_iter().find(|known| said.contains(known));
    Some(known.unwrap_or_else(|| panic!("{rule:?}, {order:?}: the test itself went wrong: {said}")))
}

#[test]
fn each_broken_rule_is_caught_by_both_ways_of_drawing_schedules() {
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
