//! Gets objects: resolve, copy from the closest copy, check the stamp. If the stamp changed, resolve again;
//! if a node is unreachable, use another copy. With a cached location the copy comes first, and the master
//! is asked only if that fails.
//!
//! A read through a network is watched. If no byte arrives for a while it is *stalled*, and the next copy
//! is read as well: the first valid read counts. A read that stalls after its first bytes is stopped before
//! another one begins, because both fill the same buffer.
//!
//! **Invariant:** an item has at most one read of each of its copies in progress. Its outcome never
//! changes, and comes from a read of the newest generation that the master has named to this session.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{CallFailure, Need, NeedId, Unreached};
use tiffin_types::{
    Generation, Key, Location, SegmentId,
    message::{CallPart, ClientToMaster, Found, NodeInfo, Refusal, Reply, Resolve, ResolveOutcome},
    mutant::{Mutant, is_mutant},
};

/// How often an object that changes during the read is resolved again. It is large because normally the
/// deadline ends such a get; this limit only ends a get without one.
const TRIES_MAX: u32 = 1024;
/// How often an item's stalled reads are stopped: if every copy is slow, one must be allowed to complete.
const STOPS_MAX: u32 = 2;
/// After a stall the time limit of the item's next reads is multiplied by this. The limit is at most half
/// of the time until the deadline.
const STALLED_WAIT_FACTOR: u64 = 2;
/// Default time that a batch waits for objects that are being promoted.
pub(super) const PROMOTION_WAIT_MS: u64 = 10;

/// One object to get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetRequest {
    /// Its key.
    pub key: Key,
    /// Its cached location, if the shell can read there at once.
    pub known: Option<Found>,
}

/// The outcome of one [`GetRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GetOutcome {
    /// The buffer holds exactly the bytes of that generation.
    Read(Found),
    /// There is no such object.
    Absent,
    /// The buffer is smaller than the object, which has this length; nothing was written.
    TooSmall(u64),
    /// It exists, but no node that holds it can be reached; the names of the nodes.
    Unavailable(Vec<String>),
    /// It was replaced repeatedly while it was read.
    Contended,
    /// It has another generation than the requested one.
    Superseded(Generation),
    /// The master rejected the request.
    Refused(Refusal),
    /// The master could not be reached.
    Unreachable(Unreached),
}

/// How a [`Need::Read`] ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadResult {
    /// The bytes were copied, and the stamp was valid after the copy.
    Valid,
    /// The stamp was not valid.
    Stale,
    /// The item's buffer is too small.
    TooSmall,
    /// The node cannot be reached, or the bytes arrived damaged.
    Unreachable(String),
    /// It was stopped, or left the buffer to another read. This says nothing about the copy.
    Yielded,
}

#[derive(Debug)]
struct Item {
    key: Key,
    tries: u32,
    found: Found,
    /// Copies not tried yet since the last resolve, the closest last.
    untried: Vec<Location>,
    /// Nodes that failed this item.
    failed: BTreeSet<SegmentId>,
    /// The epoch in which the object was named, while only cached locations are tried.
    cached_epoch: Option<u64>,
    /// The master is being asked.
    is_resolving: bool,
    /// The master was asked, and has named the object.
    is_asked: bool,
    is_located: bool,
    /// Number of reads of the found generation in progress.
    reads: u32,
    /// Whether a read stalled, and how many were stopped for it.
    has_stalled: bool,
    stops: u32,
    /// The outcome if the reads in progress fail.
    fallback: Option<GetOutcome>,
    outcome: Option<GetOutcome>,
}

#[derive(Debug)]
enum Pending {
    Resolve(Vec<usize>),
    Read(Read),
}

/// A read in progress.
#[derive(Clone, Debug)]
struct Read {
    item: usize,
    location: Location,
    generation: Generation,
    is_cached: bool,
    watch: Option<Watch>,
}

/// A read that may stall.
#[derive(Clone, Copy, Debug)]
struct Watch {
    /// How long it may go without a byte.
    wait_us: u64,
    due_us: u64,
    has_bytes: bool,
    is_stalled: bool,
}

/// The distance of a node: the closest copy is read first. Zero is closest.
pub type Distance = Box<dyn Fn(&NodeInfo) -> u8 + Send>;

/// A batch of gets in progress.
pub struct Get {
    items: Vec<Item>,
    lease: bool,
    wait_ms: u64,
    report_wait_ms: u64,
    distance: Distance,
    /// Nodes that are used last.
    avoided: BTreeSet<SegmentId>,
    /// Only the known generation is requested, and its locations are from the master.
    is_exact: bool,
    has_begun: bool,
    pending: BTreeMap<NeedId, Pending>,
    needs: VecDeque<Need>,
    next_id: u64,
    nodes: BTreeMap<SegmentId, NodeInfo>,
    to_resolve: Vec<usize>,
    /// Number of items without an outcome.
    open: usize,
    mutant: Mutant,
}

impl Get {
    /// A session of at most [`BATCH_ITEMS_MAX`](tiffin_types::BATCH_ITEMS_MAX) items. `lease` as in
    /// [`Resolve::lease`].
    #[must_use]
    pub fn new(requests: Vec<GetRequest>, lease: bool, distance: Distance) -> Self {
        let item = |request: GetRequest| Item {
            key: request.key,
            tries: 0,
            untried: request.known.as_ref().map(|it| it.replicas.clone()).unwrap_or_default(),
            cached_epoch: request.known.as_ref().map(|it| it.generation.epoch),
            found: request.known.unwrap_or_default(),
            failed: BTreeSet::new(),
            is_resolving: false,
            is_asked: false,
            is_located: false,
            reads: 0,
            has_stalled: false,
            stops: 0,
            fallback: None,
            outcome: None,
        };
        let items: Vec<_> = requests.into_iter().map(item).collect();
        Self {
            open: items.len(),
            to_resolve: Vec::new(),
            items,
            lease,
            wait_ms: PROMOTION_WAIT_MS,
            report_wait_ms: 0,
            distance,
            avoided: BTreeSet::new(),
            is_exact: false,
            has_begun: false,
            pending: BTreeMap::new(),
            needs: VecDeque::new(),
            next_id: 0,
            nodes: BTreeMap::new(),
            mutant: Mutant::None,
        }
    }

    /// Breaks one rule.
    #[must_use]
    pub fn breaking(self, mutant: Mutant) -> Self {
        Self { mutant, ..self }
    }

    /// Uses these nodes last. If only they are cached, the master is asked first.
    #[must_use]
    pub fn avoiding(self, avoided: BTreeSet<SegmentId>) -> Self {
        Self { avoided, ..self }
    }

    /// Reads exactly the known generations. Their locations are from the master, which keeps them for this
    /// client, so resolving one again does not count as a use.
    #[must_use]
    pub fn of_generation(mut self) -> Self {
        self.items.iter_mut().for_each(|it| it.cached_epoch = None);
        Self { is_exact: true, wait_ms: 0, ..self }
    }

    /// Waits that long for objects that are being promoted.
    #[must_use]
    pub fn wait_for_promotion(self, wait_ms: u64) -> Self {
        Self { wait_ms, ..self }
    }

    /// Lets a restarted master wait that long for members that have not reported.
    #[must_use]
    pub fn wait_for_reports(self, report_wait_ms: u64) -> Self {
        Self { report_wait_ms, ..self }
    }

    /// The next need. `None` while the session waits for results, or when all is done.
    #[must_use]
    pub fn poll(&mut self) -> Option<Need> {
        if !std::mem::replace(&mut self.has_begun, true) {
            (0..self.items.len()).for_each(|index| self.begin(index));
        }
        if !self.to_resolve.is_empty() {
            let mut indexes = std::mem::take(&mut self.to_resolve);
            let part = self.part(&mut indexes);
            let keys = indexes.iter().filter_map(|&index| Some(self.items.get(index)?.key.clone()));
            let (keys, lease, wait_ms) = (keys.collect(), self.lease, self.wait_ms);
            let (touch, report_wait_ms) = (!self.is_exact, self.report_wait_ms);
            let resolve = Resolve { keys, touch, lease, locate: true, wait_ms, report_wait_ms, part };
            let id = self.next_id();
            self.pending.insert(id, Pending::Resolve(indexes));
            self.needs.push_back(Need::AskMaster { id, request: ClientToMaster::Resolve(resolve) });
        }
        while let Some(need) = self.needs.pop_front() {
            match need {
                // Another read completed meanwhile.
                Need::Read { id, item, .. } if self.is_item_done(item) => drop(self.pending.remove(&id)),
                Need::Stop { id } if !self.pending.contains_key(&id) => {}
                need => return Some(need),
            }
        }
        None
    }

    /// Whether every outcome is known. Reads still in progress are not needed.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.open == 0
    }

    /// Whether the outcome of that item is known.
    #[must_use]
    pub fn is_item_done(&self, item: usize) -> bool {
        self.items.get(item).is_none_or(|it| it.outcome.is_some())
    }

    /// The copies of an item of which no read was started.
    #[must_use]
    pub fn untried(&self, item: usize) -> &[Location] {
        self.items.get(item).map_or(&[], |it| &it.untried)
    }

    /// Number of reads of an item in progress, if its outcome is not known.
    #[must_use]
    pub fn reads(&self, item: usize) -> u32 {
        self.items.get(item).filter(|it| it.outcome.is_none()).map_or(0, |it| it.reads)
    }

    /// Whether the master was asked for that item.
    #[must_use]
    pub fn is_asked(&self, item: usize) -> bool {
        self.items.get(item).is_some_and(|it| it.is_asked)
    }

    /// Whether the master has named the object of that item. Otherwise what was read is from a cached
    /// location, also if the master was asked meanwhile.
    #[must_use]
    pub fn is_located(&self, item: usize) -> bool {
        self.items.get(item).is_some_and(|it| it.is_located)
    }

    /// The outcomes, in the order of the requests. An item that the shell gave up is `Unreachable`.
    #[must_use]
    pub fn into_outcomes(self) -> Vec<GetOutcome> {
        let gave_up = || GetOutcome::Unreachable(Unreached::Other("the deadline passed first"));
        self.items.into_iter().map(|it| it.outcome.unwrap_or_else(gave_up)).collect()
    }

    /// A call has a reply, or failed.
    pub fn replied(&mut self, id: NeedId, result: Result<Reply, CallFailure>) {
        let Some(Pending::Resolve(indexes)) = self.pending.remove(&id) else { return };
        match result {
            Ok(Reply::Resolved(resolved)) => {
                self.nodes.extend(resolved.nodes.into_iter().map(|it| (it.segment, it)));
                for (index, outcome) in indexes.into_iter().zip(resolved.items) {
                    self.resolved_one(index, outcome);
                }
            }
            failed => {
                let outcome = failure(id, failed);
                indexes.into_iter().for_each(|index| self.not_resolved(index, outcome.clone()));
            }
        }
    }

    /// A read ended.
    pub fn read(&mut self, id: NeedId, result: ReadResult) {
        let Some(Pending::Read(read)) = self.pending.remove(&id) else { return };
        let index = read.item;
        let Some(item) = self.items.get_mut(index).filter(|it| it.outcome.is_none()) else { return };
        let is_current = read.generation == item.found.generation;
        item.reads -= u32::from(is_current);
        match result {
            ReadResult::Valid if is_current => {
                let found = item.found.clone();
                self.finish(index, GetOutcome::Read(found));
            }
            ReadResult::Yielded => {
                if is_current {
                    item.untried.insert(0, read.location);
                }
                self.go_on(index);
            }
            // The master has named another generation since.
            _ if !is_current => self.go_on(index),
            // If a cached location fails in any way, the master is asked.
            _ if read.is_cached => self.ask(index),
            ReadResult::TooSmall => {
                let len = item.found.len;
                self.finish(index, GetOutcome::TooSmall(len));
            }
            ReadResult::Stale => {
                item.tries += u32::from(!item.is_resolving);
                match item.tries < TRIES_MAX {
                    true => self.ask(index),
                    false => self.finish(index, GetOutcome::Contended),
                }
            }
            ReadResult::Unreachable(_) => {
                item.failed.insert(read.location.segment);
                self.go_on(index);
            }
            ReadResult::Valid => {}
        }
    }

    /// Watches a read through a network: it is stalled when no byte has arrived for `wait_us`, or longer if
    /// reads of the same item stalled before.
    pub fn watch(&mut self, id: NeedId, now_us: u64, wait_us: u64) {
        let Some(Pending::Read(read)) = self.pending.get_mut(&id) else { return };
        let has_stalled = self.items.get(read.item).is_some_and(|it| it.has_stalled);
        let wait_us = wait_us.saturating_mul(if has_stalled { STALLED_WAIT_FACTOR } else { 1 });
        let due_us = now_us.saturating_add(wait_us);
        read.watch = Some(Watch { wait_us, due_us, has_bytes: false, is_stalled: false });
    }

    /// Bytes arrived. Returns whether the read was stalled before.
    pub fn progressed(&mut self, id: NeedId, now_us: u64) -> bool {
        let Some(Pending::Read(Read { watch: Some(watch), .. })) = self.pending.get_mut(&id) else {
            return false;
        };
        (watch.has_bytes, watch.due_us) = (true, now_us.saturating_add(watch.wait_us));
        std::mem::replace(&mut watch.is_stalled, false)
    }

    /// Whether a read in progress can still give its item an outcome.
    #[must_use]
    pub fn is_awaited(&self, id: NeedId) -> bool {
        let Some(Pending::Read(read)) = self.pending.get(&id) else { return false };
        let item = self.items.get(read.item).filter(|it| it.outcome.is_none());
        item.is_some_and(|it| it.found.generation == read.generation)
    }

    /// Whether a read in progress is stalled.
    #[must_use]
    pub fn is_stalled(&self, id: NeedId) -> bool {
        let pending = self.pending.get(&id);
        matches!(pending, Some(Pending::Read(Read { watch: Some(watch), .. })) if watch.is_stalled)
    }

    /// When the next read becomes stalled, if nothing arrives until then.
    #[must_use]
    pub fn due_us(&self) -> Option<u64> {
        let watches = self.pending.values().filter_map(|it| match it {
            Pending::Read(Read { watch: Some(watch), .. }) if !watch.is_stalled => Some(watch.due_us),
            _ => None,
        });
        watches.min()
    }

    /// Time passed. Returns the nodes whose reads are stalled, and starts reads of other copies.
    pub fn tick(&mut self, now_us: u64) -> BTreeSet<SegmentId> {
        let mut stalled = Vec::new();
        for (id, pending) in &mut self.pending {
            let Pending::Read(Read { watch: Some(watch), .. }) = pending else { continue };
            if !watch.is_stalled && watch.due_us <= now_us {
                watch.is_stalled = true;
                stalled.push(*id);
            }
        }
        stalled.into_iter().filter_map(|id| self.stall(id)).collect()
    }

    /// The part of this call that a resolve of these items is. Items that were resolved before are moved to
    /// the front.
    fn part(&mut self, indexes: &mut [usize]) -> CallPart {
        indexes.sort_by_key(|&index| !self.is_asked(index));
        let repeats = indexes.iter().filter(|&&index| self.is_asked(index)).count();
        let is_more = self.items.iter().any(|it| it.is_asked);
        for &index in indexes.iter() {
            if let Some(item) = self.items.get_mut(index) {
                item.is_asked = true;
            }
        }
        // Cached-location reads of a call with locations from the master are not counted.
        match !self.is_exact && (is_more || indexes.len() < self.items.len()) {
            true => CallPart { items: self.items.len() as u64, is_more, repeats: repeats as u64 },
            false => CallPart::default(),
        }
    }

    fn begin(&mut self, index: usize) {
        let Some(item) = self.items.get_mut(index) else { return };
        // The last one is read first.
        item.untried.sort_by_key(|it| !self.avoided.contains(&it.segment));
        let is_good = |it: &Location| self.is_exact || !self.avoided.contains(&it.segment);
        match item.untried.last().is_some_and(is_good) {
            true => self.try_next(index),
            false => self.ask(index),
        }
    }

    /// A read is stalled.
    fn stall(&mut self, id: NeedId) -> Option<SegmentId> {
        let Some(Pending::Read(read)) = self.pending.get(&id) else { return None };
        let (index, segment, is_cached) = (read.item, read.location.segment, read.is_cached);
        let has_bytes = read.watch.is_some_and(|it| it.has_bytes);
        let item = self.items.get_mut(index).filter(|it| it.outcome.is_none())?;
        item.has_stalled = true;
        let may_ask = is_cached && !item.is_resolving;
        match item.untried.is_empty() {
            _ if has_bytes => {
                if item.stops < STOPS_MAX && (may_ask || !item.untried.is_empty()) {
                    item.stops += 1;
                    self.needs.push_back(Need::Stop { id });
                }
            }
            false => self.try_next(index),
            true if may_ask => self.ask(index),
            // There is no other copy to read.
            true => {}
        }
        Some(segment)
    }

    fn resolved_one(&mut self, index: usize, outcome: ResolveOutcome) {
        match outcome {
            ResolveOutcome::Absent => self.finish(index, GetOutcome::Absent),
            ResolveOutcome::Unavailable(names) => self.not_resolved(index, GetOutcome::Unavailable(names)),
            ResolveOutcome::Found(found)
                if self.is_exact
                    && self.items.get(index).is_some_and(|it| it.found.generation != found.generation) =>
            {
                self.finish(index, GetOutcome::Superseded(found.generation));
            }
            ResolveOutcome::Found(found) => {
                // Any memory is closer than any disk.
                let distance = |it: &Location| {
                    let node = self.nodes.get(&it.segment);
                    let is_avoided = self.avoided.contains(&it.segment);
                    (is_avoided, it.slot_ref().is_on_disk(), node.map_or(u8::MAX, &self.distance))
                };
                let mut untried = found.replicas.clone();
                untried.sort_by_key(|it| std::cmp::Reverse(distance(it)));
                let Some(item) = self.items.get_mut(index) else { return };
                (item.is_resolving, item.is_located) = (false, true);
                untried.retain(|it| !item.failed.contains(&it.segment));
                if item.found.generation != found.generation {
                    item.reads = 0;
                }
                if item.reads > 0 {
                    let is_read = |it: &Location| {
                        let same = |read: &Read| read.item == index && read.location == *it;
                        self.pending.values().any(|it| matches!(it, Pending::Read(read) if same(read)))
                    };
                    untried.retain(|it| !is_read(it));
                }
                (item.found, item.untried) = (found, untried);
                self.try_next(index);
            }
        }
    }

    /// The master does not name a location. A read in progress may still succeed.
    fn not_resolved(&mut self, index: usize, outcome: GetOutcome) {
        let Some(item) = self.items.get_mut(index) else { return };
        item.is_resolving = false;
        match item.reads {
            0 => self.finish(index, outcome),
            _ => item.fallback = Some(outcome),
        }
    }

    /// After a failed read: tries the next copy, unless another read or resolve in progress may succeed. If
    /// a read has begun to fill the buffer, another one could only yield to it.
    fn go_on(&mut self, index: usize) {
        let Some(item) = self.items.get(index).filter(|it| !it.is_resolving) else { return };
        let generation = item.found.generation;
        let is_alive = |pending: &Pending| {
            let Pending::Read(read) = pending else { return false };
            let is_stalled = read.watch.is_some_and(|it| it.is_stalled && !it.has_bytes);
            read.item == index && read.generation == generation && !is_stalled
        };
        if item.reads == 0 || !self.pending.values().any(is_alive) {
            self.try_next(index);
        }
    }

    fn try_next(&mut self, index: usize) {
        let Some(item) = self.items.get_mut(index).filter(|it| it.outcome.is_none()) else { return };
        let Some(location) = item.untried.pop() else {
            if item.reads > 0 {
                return;
            }
            let name = |segment: &SegmentId| match self.nodes.get(segment) {
                Some(node) => node.name.clone(),
                None => segment.to_string(),
            };
            let failed = || GetOutcome::Unavailable(item.failed.iter().map(name).collect());
            let outcome = item.fallback.take().unwrap_or_else(failed);
            return self.finish(index, outcome);
        };
        let is_last = item.untried.is_empty() && item.reads == 0 && item.cached_epoch.is_none();
        let waits = is_last && !is_mutant!(self.mutant, FailInPauses);
        item.reads += 1;
        let (len, cached_epoch, generation) = (item.found.len, item.cached_epoch, item.found.generation);
        let id = self.next_id();
        let read = Read { item: index, location, generation, is_cached: cached_epoch.is_some(), watch: None };
        self.pending.insert(id, Pending::Read(read));
        self.needs.push_back(Need::Read { id, item: index, location, len, cached_epoch, waits });
    }

    fn ask(&mut self, index: usize) {
        if let Some(item) = self.items.get_mut(index).filter(|it| !it.is_resolving) {
            (item.cached_epoch, item.is_resolving) = (None, true);
            self.to_resolve.push(index);
        }
    }

    fn finish(&mut self, index: usize, outcome: GetOutcome) {
        if let Some(item) = self.items.get_mut(index).filter(|it| it.outcome.is_none()) {
            item.outcome = Some(outcome);
            self.open -= 1;
        }
    }

    fn next_id(&mut self) -> NeedId {
        self.next_id += 1;
        NeedId(self.next_id)
    }
}

fn failure(id: NeedId, result: Result<Reply, CallFailure>) -> GetOutcome {
    match result {
        Ok(Reply::Refused(refusal)) | Err(CallFailure::Refused(refusal)) => GetOutcome::Refused(refusal),
        Ok(_) => GetOutcome::Unreachable(Unreached::Other("the reply does not match the request")),
        Err(CallFailure::Unreachable | CallFailure::Unwritten) => {
            GetOutcome::Unreachable(Unreached::Call(id))
        }
    }
}
