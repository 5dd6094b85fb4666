//! Getting objects: resolve, copy from the nearest copy, check the stamp; resolve again if it changed, fall
//! over to another copy if a node is gone. Where a location is known, the copy comes first and the master is
//! asked only if that fails.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{CallFailure, Need, NeedId, Peer};
use crate::{
    Key, Location, SegmentId,
    message::{Found, NodeInfo, Refusal, Reply, Request, Resolve, ResolveOutcome},
};

/// How often an object that changes under the reader is resolved anew. Large, because the deadline is what
/// ends a reader that is always overtaken; this only ends one that has none.
const TRIES_MAX: u32 = 1024;
/// How long a batch waits for objects that are on their way from a disk into memory, unless it is told.
pub(super) const PROMOTION_WAIT_MS: u64 = 10;

/// One object to get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetRequest {
    /// Its name.
    pub key: Key,
    /// Where it was last seen, if the shell can read there at once.
    pub known: Option<Found>,
}

/// What became of one [`GetRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GetOutcome {
    /// The buffer holds exactly the bytes of that generation.
    Read(Found),
    /// There is no such object.
    Absent,
    /// The buffer is smaller than the object, which has so many bytes; nothing was written.
    TooSmall(u64),
    /// It exists, but no node that holds it can be reached; their names.
    Unavailable(Vec<String>),
    /// It was replaced again and again while it was read.
    Contended,
    /// The master refused.
    Refused(Refusal),
    /// The master could not be reached.
    Unreachable(String),
}

/// How a [`Need::Read`] ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadResult {
    /// The bytes were copied, and the stamp stood after the copy.
    Valid,
    /// The stamp did not stand.
    Stale,
    /// The item's buffer cannot hold that many bytes.
    TooSmall,
    /// The node cannot be reached, or the bytes arrived damaged.
    Unreachable(String),
}

#[derive(Debug)]
struct Item {
    key: Key,
    tries: u32,
    found: Found,
    /// Copies not tried yet since the last resolve, the nearest last.
    untried: Vec<Location>,
    /// Nodes that failed this item.
    failed: BTreeSet<SegmentId>,
    /// What is tried is only what was known before, of an object that was named in this life of the master.
    unasked: Option<u64>,
    outcome: Option<GetOutcome>,
}

#[derive(Debug)]
enum Pending {
    Resolve(Vec<usize>),
    Read(usize, Location),
}

/// How far a node is: the nearest copy is read first. Zero is nearest.
pub type Distance = Box<dyn Fn(&NodeInfo) -> u8 + Send>;

/// A batch of gets under way.
pub struct Get {
    items: Vec<Item>,
    lease: bool,
    wait_ms: u64,
    distance: Distance,
    pending: BTreeMap<NeedId, Pending>,
    needs: VecDeque<Need>,
    next_id: u64,
    nodes: BTreeMap<SegmentId, NodeInfo>,
    to_resolve: Vec<usize>,
}

impl Get {
    /// Begins. At most [`BATCH_ITEMS_MAX`](crate::BATCH_ITEMS_MAX) items. `lease` as in [`Resolve::lease`].
    #[must_use]
    pub fn new(requests: Vec<GetRequest>, lease: bool, distance: Distance) -> Self {
        let item = |request: GetRequest| Item {
            key: request.key,
            tries: 0,
            untried: request.known.as_ref().map(|it| it.replicas.clone()).unwrap_or_default(),
            unasked: request.known.as_ref().map(|it| it.generation.epoch),
            found: request.known.unwrap_or_default(),
            failed: BTreeSet::new(),
            outcome: None,
        };
        let items: Vec<_> = requests.into_iter().map(item).collect();
        let mut get = Self {
            to_resolve: Vec::new(),
            items,
            lease,
            wait_ms: PROMOTION_WAIT_MS,
            distance,
            pending: BTreeMap::new(),
            needs: VecDeque::new(),
            next_id: 0,
            nodes: BTreeMap::new(),
        };
        for index in 0..get.items.len() {
            match get.items.get(index).is_some_and(|it| it.untried.is_empty()) {
                true => get.ask(index),
                false => get.try_next(index),
            }
        }
        get
    }

    /// Waits that long for objects that are on their way from a disk into memory.
    #[must_use]
    pub fn wait_for_promotion(self, wait_ms: u64) -> Self {
        Self { wait_ms, ..self }
    }

    /// The next thing to do. `None` while results are awaited, or when all is done.
    #[must_use]
    pub fn poll(&mut self) -> Option<Need> {
        if !self.to_resolve.is_empty() {
            let indexes = std::mem::take(&mut self.to_resolve);
            let keys = indexes.iter().filter_map(|&index| Some(self.items.get(index)?.key.clone()));
            let (keys, lease, wait_ms) = (keys.collect(), self.lease, self.wait_ms);
            let resolve = Resolve { keys, touch: true, lease, locate: true, wait_ms };
            let id = self.next_id();
            self.pending.insert(id, Pending::Resolve(indexes));
            self.needs.push_back(Need::Call { id, peer: Peer::Master, request: Request::Resolve(resolve) });
        }
        self.needs.pop_front()
    }

    /// Whether every outcome is known and nothing is under way.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.pending.is_empty() && self.needs.is_empty() && self.items.iter().all(|it| it.outcome.is_some())
    }

    /// How to reach a node that a [`Need`] names.
    #[must_use]
    pub fn node(&self, segment: SegmentId) -> Option<&NodeInfo> {
        self.nodes.get(&segment)
    }

    /// The outcomes, in the order asked. An item that the shell gave up on is `Unreachable`.
    #[must_use]
    pub fn into_outcomes(self) -> Vec<GetOutcome> {
        let gave_up = || GetOutcome::Unreachable("the deadline passed first".to_owned());
        self.items.into_iter().map(|it| it.outcome.unwrap_or_else(gave_up)).collect()
    }

    /// A call was answered, or not.
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
                let outcome = failure(failed);
                indexes.into_iter().for_each(|index| self.finish(index, outcome.clone()));
            }
        }
    }

    /// A read ended.
    pub fn read(&mut self, id: NeedId, result: ReadResult) {
        let Some(Pending::Read(index, location)) = self.pending.remove(&id) else { return };
        let Some(item) = self.items.get_mut(index) else { return };
        match result {
            // Whatever is wrong with what was known, the master knows better.
            result if item.unasked.is_some() && result != ReadResult::Valid => self.ask(index),
            ReadResult::Valid => item.outcome = Some(GetOutcome::Read(item.found.clone())),
            ReadResult::TooSmall => item.outcome = Some(GetOutcome::TooSmall(item.found.len)),
            ReadResult::Stale => {
                item.tries += 1;
                if item.tries < TRIES_MAX {
                    self.to_resolve.push(index);
                } else {
                    item.outcome = Some(GetOutcome::Contended);
                }
            }
            ReadResult::Unreachable(_) => {
                item.failed.insert(location.segment);
                self.try_next(index);
            }
        }
    }

    fn resolved_one(&mut self, index: usize, outcome: ResolveOutcome) {
        match outcome {
            ResolveOutcome::Absent => self.finish(index, GetOutcome::Absent),
            ResolveOutcome::Unavailable(names) => self.finish(index, GetOutcome::Unavailable(names)),
            ResolveOutcome::Found(found) => {
                // Any memory is nearer than any disk.
                let distance = |it: &Location| {
                    let node = self.nodes.get(&it.segment);
                    (it.hold().is_on_disk(), node.map_or(u8::MAX, &self.distance))
                };
                let mut untried = found.replicas.clone();
                untried.sort_by_key(|it| std::cmp::Reverse(distance(it)));
                if let Some(item) = self.items.get_mut(index) {
                    untried.retain(|it| !item.failed.contains(&it.segment));
                    (item.found, item.untried) = (found, untried);
                }
                self.try_next(index);
            }
        }
    }

    fn try_next(&mut self, index: usize) {
        let Some(item) = self.items.get_mut(index) else { return };
        let Some(location) = item.untried.pop() else {
            let name = |segment: &SegmentId| match self.nodes.get(segment) {
                Some(node) => node.name.clone(),
                None => segment.to_string(),
            };
            item.outcome = Some(GetOutcome::Unavailable(item.failed.iter().map(name).collect()));
            return;
        };
        let (len, unasked) = (item.found.len, item.unasked);
        let id = self.next_id();
        self.pending.insert(id, Pending::Read(index, location));
        self.needs.push_back(Need::Read { id, item: index, location, len, unasked });
    }

    fn ask(&mut self, index: usize) {
        if let Some(item) = self.items.get_mut(index) {
            item.unasked = None;
            self.to_resolve.push(index);
        }
    }

    fn finish(&mut self, index: usize, outcome: GetOutcome) {
        if let Some(item) = self.items.get_mut(index) {
            item.outcome = Some(outcome);
        }
    }

    fn next_id(&mut self) -> NeedId {
        self.next_id += 1;
        NeedId(self.next_id)
    }
}

fn failure(result: Result<Reply, CallFailure>) -> GetOutcome {
    match result {
        Ok(Reply::Refused(refusal)) | Err(CallFailure::Refused(refusal)) => GetOutcome::Refused(refusal),
        Ok(_) => GetOutcome::Unreachable("the answer does not fit the question".to_owned()),
        Err(CallFailure::Unreachable(why) | CallFailure::Unwritten(why)) => GetOutcome::Unreachable(why),
    }
}
