//! What the client has heard of objects, so that it need not ask again.
//!
//! After the bytes were copied it is made sure that the node is a member and still holds that use: by looking
//! at its memory where that is mapped here, else by the node itself, in the same answer that brings the
//! bytes. That makes the answer of a get that asked nobody as good as any other.
//!
//! What is used in this way is told to the master a moment later, so that eviction knows it, and in any
//! case before this client asks for room. Probes that take a lease are told in the same way, but not as
//! reads.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tiffin_core::message::{CachedReads, ClientToMaster, Exists, Found, ResolveOutcome};
use tiffin_core::sabotage::Sabotage;
use tiffin_core::session::{GetOutcome, GetRequest, Known};
use tiffin_core::{Generation, Key, Keys, Location, SegmentId};

use crate::inner::Inner;
use crate::route::OpenRoute;
use crate::{GetOptions, ResolveOptions};

/// Objects whose place is remembered. Each costs some two hundred bytes.
pub(crate) const KNOWN_MAX: usize = 1 << 17;
/// After so many uses the master is told at once.
const USED_MAX: usize = 512;
/// After that time it is told anyway: a lease is to protect what was just read.
const TELL_AFTER: Duration = Duration::from_millis(10);
/// While nothing is used, the next look is at most so long after the last one.
const TELL_PAUSE_MAX: Duration = Duration::from_millis(80);
/// After so long without a use nobody waits for the next one any more.
const QUIET_TIME_MAX: Duration = Duration::from_secs(1);
/// The most uses that one message tells of.
const TOLD_MAX: usize = 4096;

/// Gets from cached locations that the master was not told of yet.
#[derive(Default)]
struct Reads(CachedReads);

impl Reads {
    fn count(&mut self, outcomes: &[GetOutcome], asked: &[bool]) {
        let (mut items, mut bytes) = (0, 0_u64);
        for (outcome, is_asked) in outcomes.iter().zip(asked) {
            if let (GetOutcome::Read(found), false) = (outcome, is_asked) {
                (items, bytes) = (items + 1, bytes.saturating_add(found.len));
            }
        }
        match items {
            0 => {}
            // The master counts the call: it was asked for a part of it.
            items if asked.contains(&true) => self.0.add_items(items, bytes),
            items => self.0.add(outcomes.len() > 1, items, bytes),
        }
    }
}

/// What a client knows, for all of its handles.
pub(crate) struct Memory {
    state: Mutex<State>,
    /// Somebody tells the master every moment what was used.
    has_teller: AtomicBool,
}

struct State {
    known: Known,
    /// Uses that were never told are told with a lease, if any of them was made with one.
    lease: bool,
    reads: Reads,
}

impl State {
    /// How much there is to report. A get is counted after its key was noted as used, and may be all that is
    /// left.
    fn news_count(&self) -> usize {
        let probed = self.known.probed_count();
        self.known.used_count().max(probed).max(usize::from(!self.reads.0.is_empty()))
    }
}

impl Memory {
    pub(crate) fn new(capacity: usize, seed: u64) -> Self {
        let state = Mutex::new(State {
            known: Known::new(capacity, seed, Sabotage::None),
            lease: false,
            reads: Reads::default(),
        });
        Self { state, has_teller: AtomicBool::new(false) }
    }

    /// What this client has stored is known as well.
    pub(crate) fn learn_put(&self, key: &Key, generation: Generation, len: u64, replicas: &[Location]) {
        self.lock().known.learn_put(key, generation, len, replicas);
    }

    /// What the master has just said of objects.
    pub(crate) fn hear(&self, keys: &[Key], outcomes: &[ResolveOutcome]) {
        let mut state = self.lock();
        keys.iter().zip(outcomes).for_each(|(key, outcome)| state.known.hear(key, outcome));
    }

    pub(crate) fn forget(&self, keys: &[Key]) {
        let mut state = self.lock();
        keys.iter().for_each(|key| state.known.remove(key));
    }

    /// What to tell the master, if there is anything. `enough` is how much makes it worth a message.
    fn used(&self, enough: usize) -> Option<ClientToMaster> {
        let mut state = self.lock();
        if state.news_count() < enough {
            return None;
        }
        if state.known.used_count() == 0 && state.reads.0.is_empty() {
            let keys = state.known.take_probed(TOLD_MAX);
            return Some(ClientToMaster::Exists(Exists {
                keys: keys.iter().collect(),
                lease: true,
                ..Exists::default()
            }));
        }
        let lease = std::mem::take(&mut state.lease);
        let keys = state.known.take_used(TOLD_MAX);
        let reads = std::mem::take(&mut state.reads).0.bounded();
        let keys: Keys = keys.iter().collect();
        Some(ClientToMaster::Exists(Exists { keys, touch: true, lease, reads, ..Exists::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic leaves nothing half done that matters: what is known may be wrong anyway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Routes that are open, looked up once per batch.
#[derive(Default)]
struct Routes(BTreeMap<SegmentId, Option<Arc<OpenRoute>>>);

impl Routes {
    fn open(&mut self, inner: &Inner, segment: SegmentId) -> Option<&Arc<OpenRoute>> {
        self.0.entry(segment).or_insert_with(|| inner.current_route(segment)).as_ref()
    }

    fn mapped(&mut self, inner: &Inner, segment: SegmentId) -> Option<&Arc<OpenRoute>> {
        self.open(inner, segment).filter(|it| it.attachment().is_some())
    }
}

/// What to get, and where each object was last seen, if it can be read there without asking.
pub(crate) fn recall(inner: &Inner, keys: &[Key], options: GetOptions) -> Vec<GetRequest> {
    let mut routes = Routes::default();
    // Where a lease may refuse a removal, it must be taken before the get is answered.
    let is_connected = inner.current_master().is_some();
    let may = is_connected && !(options.lease && inner.has_strict_leases());
    let mut state = inner.known.lock();
    state.lease |= options.lease;
    let recall = |key: &Key| {
        let found = state.known.find(key).filter(|_| may)?;
        // What lies on a disk may be in memory by now, or on its way: only the master knows.
        let is_open =
            |it: &Location| routes.open(inner, it.segment).is_some_and(|route| !route.leads_to_disk());
        let mut open: Vec<_> = found.replicas.iter().copied().filter(is_open).collect();
        // The last is read first.
        if open.len() > 1 {
            open.sort_by_key(|it| routes.mapped(inner, it.segment).is_some());
        }
        let Found { generation, len, hard_pin, soft_pin, leased, sample, .. } = *found;
        let found = Found { generation, len, replicas: open, hard_pin, soft_pin, leased, sample };
        (!found.replicas.is_empty()).then_some(found)
    };
    let known: Vec<_> = keys.iter().map(recall).collect();
    drop(state);
    keys.iter().zip(known).map(|(key, known)| GetRequest { key: key.clone(), known }).collect()
}

/// Where one of the objects asked for was last seen.
struct Use {
    segment: SegmentId,
    /// In which life of the master it was named.
    named: u64,
    index: usize,
    slot: u32,
    stamp: u64,
}

/// Whether objects that are known are certainly there. `false` says nothing.
pub(crate) fn is_there(inner: &Inner, keys: &Keys, options: ResolveOptions) -> Vec<bool> {
    let mut there = vec![false; keys.len()];
    let epoch = inner.current_master().map(|it| it.epoch);
    let Some(epoch) = epoch.filter(|_| !(options.lease && inner.has_strict_leases())) else { return there };
    let mut uses = Vec::with_capacity(keys.len());
    let mut state = inner.known.lock();
    state.lease |= options.touch && options.lease;
    for (index, key) in keys.iter().enumerate() {
        let found = match options {
            ResolveOptions { touch: true, .. } => state.known.find(key),
            ResolveOptions { lease: true, .. } => state.known.probe(key),
            _ => state.known.peek(key),
        };
        let Some(Found { generation, replicas, .. }) = found else { continue };
        for &Location { segment, slot, stamp } in replicas {
            uses.push(Use { segment, named: generation.epoch, index, slot: slot.0, stamp: stamp.0 });
        }
    }
    drop(state);
    uses.sort_unstable_by_key(|it| (it.segment, it.named));
    for uses in uses.chunk_by(|one, other| (one.segment, one.named) == (other.segment, other.named)) {
        let Some(first) = uses.first() else { continue };
        let Some(route) = inner.current_route(first.segment).filter(|it| it.attachment().is_some()) else {
            continue;
        };
        let held = route.holds(uses.iter().map(|it| (it.slot, it.stamp)), first.named, epoch);
        for (it, _) in uses.iter().zip(held).filter(|(_, held)| *held) {
            if let Some(there) = there.get_mut(it.index) {
                *there = true;
            }
        }
    }
    there
}

/// Takes in what a batch of gets has found out. `before` is what was known of each.
pub(crate) fn take_in(inner: &Inner, keys: &[Key], before: &[Option<Generation>], outcomes: &[GetOutcome]) {
    let mut state = inner.known.lock();
    for ((key, before), outcome) in keys.iter().zip(before).zip(outcomes) {
        match (outcome, before) {
            (GetOutcome::Read(_), _) | (_, None) => {}
            (_, Some(before)) => state.known.forget(key, *before),
        }
    }
}

/// Counts the objects of a call that were read at cached locations. The master counts those that it was
/// `asked` for.
pub(crate) fn count(inner: &Inner, outcomes: &[GetOutcome], asked: &[bool]) {
    inner.known.lock().reads.count(outcomes, asked);
}

/// Tells the master what was used: now if there is enough of it, else in a moment. Nobody waits for that.
pub(crate) fn tell_soon(inner: &Inner) {
    tell(inner, USED_MAX);
    if is_telling_due(inner) {
        inner.runtime.spawn(tell_in_moments(inner.weak()));
    }
}

/// Whether something was used and nobody is there yet to tell it. Then the caller must see to it.
fn is_telling_due(inner: &Inner) -> bool {
    inner.known.lock().news_count() > 0 && !inner.known.has_teller.swap(true, Ordering::AcqRel)
}

/// Tells every moment what was used, until nothing was for a while: to wake a thread costs more than a get,
/// so a get does it only after a pause. The longer nothing was, the less often it looks: that takes a
/// processor from somebody, too.
async fn tell_in_moments(client: Weak<Inner>) {
    let (mut pause, mut quiet) = (TELL_AFTER, Duration::ZERO);
    while quiet < QUIET_TIME_MAX {
        tokio::time::sleep(pause).await;
        let Some(inner) = client.upgrade() else { return };
        let is_quiet = inner.known.lock().news_count() == 0;
        (pause, quiet) = match is_quiet {
            true => (TELL_PAUSE_MAX.min(pause * 2), quiet + pause),
            false => (TELL_AFTER, Duration::ZERO),
        };
        tell_all(&inner);
        if quiet >= QUIET_TIME_MAX {
            inner.known.has_teller.store(false, Ordering::Release);
            // Somebody may have relied on this a moment ago.
            if is_telling_due(&inner) {
                (pause, quiet) = (TELL_AFTER, Duration::ZERO);
            }
        }
    }
}

/// Tells the master all that was used. Nobody waits for that.
pub(crate) fn tell_all(inner: &Inner) {
    while tell(inner, 1) {}
}

/// All that was used and that the master was not told yet.
pub(crate) fn untold(inner: &Inner) -> Vec<ClientToMaster> {
    std::iter::from_fn(|| inner.known.used(1)).collect()
}

fn tell(inner: &Inner, enough: usize) -> bool {
    let Some(master) = inner.current_master() else { return false };
    let Some(request) = inner.known.used(enough) else { return false };
    if let Err(error) = master.connection.tell(&request) {
        tracing::debug!(%error, "the master was not told what was used");
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_get_is_counted_after_its_key_was_told() {
        let memory = Memory::new(8, 1);
        let key = Key::new(b"a").unwrap();
        let place = Location::default();
        memory.learn_put(&key, Generation::default(), 1, &[place]);
        assert!(memory.lock().known.find(&key).is_some());
        assert!(memory.used(1).is_some(), "the key is told while the get is still reading");
        assert_eq!(memory.used(1), None);
        memory.lock().reads.count(&[GetOutcome::Read(Found::default())], &[false]);
        let Some(ClientToMaster::Exists(told)) = memory.used(1) else { panic!("the get is told, too") };
        assert_eq!((told.keys.len(), told.reads.singles), (0, 1));
        assert_eq!(memory.used(1), None);
    }

    #[test]
    fn a_probe_is_told_as_a_lease_and_not_as_a_read() {
        let memory = Memory::new(8, 1);
        let keys = [b"a", b"b"].map(|name| Key::new(name).unwrap());
        for key in &keys {
            memory.learn_put(key, Generation::default(), 1, &[Location::default()]);
        }
        assert!(memory.lock().known.find(&keys[0]).is_some());
        assert!(memory.lock().known.probe(&keys[1]).is_some());
        let told = [(); 2].map(|()| match memory.used(1) {
            Some(ClientToMaster::Exists(told)) => (told.keys, told.touch, told.lease),
            other => panic!("{other:?}"),
        });
        let [read, probed] = keys.map(|key| [key].iter().collect());
        assert_eq!(told, [(read, true, false), (probed, false, true)]);
        assert_eq!(memory.used(1), None);
    }

    #[test]
    fn objects_that_the_master_was_asked_for_are_not_counted() {
        let read = || GetOutcome::Read(Found { len: 10, ..Found::default() });
        let counted = |outcomes: &[GetOutcome], asked: &[bool]| {
            let mut reads = Reads::default();
            reads.count(outcomes, asked);
            (reads.0.singles, reads.0.batches, reads.0.items, reads.0.bytes)
        };
        assert_eq!(counted(&[read()], &[false]), (1, 0, 0, 10));
        assert_eq!(counted(&[read()], &[true]), (0, 0, 0, 0), "the cached location was wrong");
        assert_eq!(counted(&[read(), read()], &[false, false]), (0, 1, 2, 20));
        assert_eq!(counted(&[read(), GetOutcome::Absent, read()], &[false, true, true]), (0, 0, 1, 10));
    }
}
