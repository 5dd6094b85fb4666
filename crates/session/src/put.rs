//! Puts objects: reserve, write every copy, commit. A plain object on a node of the master's host is
//! published at the master. All others, and those that a publish does not settle, are committed through the
//! home node.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{CallFailure, Need, NeedId, Unreached};
use tiffin_types::{
    Generation, Key, Location, Reservation, SegmentId, SlotRef,
    message::{
        Backlog, ClientToMaster, ClientToNode, Commit, CommitItem, CommitOutcome, Full, Publish, PublishItem,
        PutOptions, Quota, Refusal, Reply, Reserve, ReserveItem, ReserveOutcome,
    },
    mutant::{Mutant, is_mutant},
};

/// How often an object is reserved and written again after its node became unreachable.
const TRIES_MAX: u32 = 4;
/// Default time limit for nodes to confirm the retire of a replaced object.
const CONFIRM_MS: u64 = 2_000;

/// One object to put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PutRequest {
    /// Its key.
    pub key: Key,
    /// Its length.
    pub len: u64,
    /// How it is stored.
    pub options: PutOptions,
    /// Space that was reserved for it before; empty to reserve now.
    pub ready: Vec<Reservation>,
}

/// The outcome of one [`PutRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutOutcome {
    /// It can be read.
    Stored {
        /// Which put of the key.
        generation: Generation,
        /// Where its copies are.
        replicas: Vec<Location>,
        /// It replaced an older object of that name.
        replaced: bool,
        /// Nodes that could not confirm the retire of the older object: a client with a cached location may
        /// still read it there.
        unconfirmed: Vec<String>,
    },
    /// An object of that name exists and was kept.
    Exists(Generation),
    /// No node has space for it, and all that remains is pinned, leased, in view or reserved.
    Full(Full),
    /// No storage node is connected.
    NoNode,
    /// The object would exceed the quota of the namespace.
    OverQuota(Quota),
    /// The stream accepts no more samples until its consumers have caught up.
    Behind(Backlog),
    /// The request is invalid.
    Invalid(String),
    /// The master or every possible node rejected it.
    Refused(Refusal),
    /// The master or every possible node could not be reached; the object may still have been stored.
    Unreachable(Unreached),
}

/// How a [`Need::Write`] ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteResult {
    /// All bytes are written.
    Written,
    /// The reservation is no longer valid.
    Stale,
    /// The node cannot be reached.
    Unreachable(String),
    /// The bytes of the caller cannot be read, whatever the node.
    Unreadable,
}

#[derive(Debug)]
struct Item {
    request: PutRequest,
    tries: u32,
    /// A commit or a publication of it had no reply.
    may_be_stored: bool,
    /// Copies that are being written.
    writing: BTreeMap<NeedId, Reservation>,
    /// Copies that are written, the home first.
    written: Vec<Location>,
    /// Only nodes that failed have space for it: it waits until they are tried again.
    is_last_resort: bool,
    /// Its bytes could not be read.
    is_unreadable: bool,
    outcome: Option<PutOutcome>,
}

#[derive(Debug)]
enum Pending {
    Reserve(Vec<usize>),
    Write(usize),
    Commit(SegmentId, Vec<usize>),
    Publish(Vec<usize>),
    /// The reply does not matter.
    Abort,
}

/// A batch of puts in progress.
#[derive(Debug)]
pub struct Put {
    items: Vec<Item>,
    pending: BTreeMap<NeedId, Pending>,
    needs: VecDeque<Need>,
    next_id: u64,
    avoid: BTreeSet<SegmentId>,
    /// Nodes at which objects can be published.
    same_host: BTreeSet<SegmentId>,
    to_reserve: Vec<usize>,
    /// Items for which the nodes to avoid count, too.
    to_reserve_anywhere: Vec<usize>,
    to_publish: Vec<usize>,
    to_commit: BTreeMap<SegmentId, Vec<usize>>,
    to_abort: BTreeMap<SegmentId, Vec<SlotRef>>,
    wait_ms: u64,
    confirm_ms: u64,
    mutant: Mutant,
}

impl Put {
    /// A session of at most [`BATCH_ITEMS_MAX`](tiffin_types::BATCH_ITEMS_MAX) items.
    #[must_use]
    pub fn new(requests: Vec<PutRequest>) -> Self {
        let item = |request| Item {
            request,
            tries: 0,
            may_be_stored: false,
            writing: BTreeMap::new(),
            written: Vec::new(),
            is_last_resort: false,
            is_unreadable: false,
            outcome: None,
        };
        let mut items: Vec<_> = requests.into_iter().map(item).collect();
        let ready: Vec<_> = items.iter_mut().map(|it| std::mem::take(&mut it.request.ready)).collect();
        let mut put = Self {
            to_reserve: Vec::new(),
            to_reserve_anywhere: Vec::new(),
            items,
            pending: BTreeMap::new(),
            needs: VecDeque::new(),
            next_id: 0,
            avoid: BTreeSet::new(),
            same_host: BTreeSet::new(),
            to_publish: Vec::new(),
            to_commit: BTreeMap::new(),
            to_abort: BTreeMap::new(),
            wait_ms: 0,
            confirm_ms: CONFIRM_MS,
            mutant: Mutant::None,
        };
        for (index, ready) in ready.into_iter().enumerate() {
            match ready.is_empty() {
                true => put.to_reserve.push(index),
                false => put.reserved_one(index, ReserveOutcome::Space(ready)),
            }
        }
        put
    }

    /// Breaks one rule.
    #[must_use]
    pub fn breaking(self, mutant: Mutant) -> Self {
        Self { mutant, ..self }
    }

    /// Lets the master wait that long for space, if there is none.
    #[must_use]
    pub fn waiting(self, wait_ms: u64) -> Self {
        Self { wait_ms, ..self }
    }

    /// Lets the master wait that long for the nodes to confirm the retire of replaced objects.
    #[must_use]
    pub fn confirming(self, confirm_ms: u64) -> Self {
        Self { confirm_ms, ..self }
    }

    /// These nodes are known to be on the master's host: see
    /// [`Reserved::same_host`](tiffin_types::message::Reserved::same_host).
    #[must_use]
    pub fn publishing(self, same_host: BTreeSet<SegmentId>) -> Self {
        Self { same_host, ..self }
    }

    /// The next need. `None` while the session waits for results, or when all is done.
    #[must_use]
    pub fn poll(&mut self) -> Option<Need> {
        self.plan();
        self.needs.pop_front()
    }

    /// Whether every outcome is known and nothing is in progress.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.pending.is_empty() && self.needs.is_empty() && self.items.iter().all(|it| it.outcome.is_some())
    }

    /// Reservations that are neither committed nor released: those that the client knows to hold.
    pub fn reserved(&self) -> impl Iterator<Item = Location> + '_ {
        self.items
            .iter()
            .flat_map(|item| item.writing.values().map(|it| it.location).chain(item.written.iter().copied()))
    }

    /// Whether the home node receives a commit as soon as this one copy is written. Then the bytes can be
    /// sent inside the commit.
    #[must_use]
    pub fn is_asked_next(&self, item: usize, segment: SegmentId) -> bool {
        self.items.get(item).is_some_and(|it| {
            it.writing.len() == 1
                && it.written.is_empty()
                && !(self.same_host.contains(&segment) && it.request.options.has_no_attributes())
        })
    }

    /// The outcomes, in the order of the requests. An item that the shell gave up is `Unreachable`.
    #[must_use]
    pub fn into_outcomes(self) -> Vec<PutOutcome> {
        let gave_up = || PutOutcome::Unreachable(Unreached::Other("the deadline passed first"));
        self.items.into_iter().map(|it| it.outcome.unwrap_or_else(gave_up)).collect()
    }

    /// A call has a reply, or failed.
    pub fn replied(&mut self, id: NeedId, result: Result<Reply, CallFailure>) {
        match (self.pending.remove(&id), result) {
            (Some(Pending::Reserve(items)), Ok(Reply::Reserved(reserved))) => {
                // The latest reply about a node counts.
                reserved.nodes.iter().for_each(|it| _ = self.same_host.remove(&it.segment));
                self.same_host.extend(reserved.same_host);
                for (index, outcome) in items.into_iter().zip(reserved.items) {
                    self.reserved_one(index, outcome);
                }
            }
            (Some(Pending::Commit(_, items)), Ok(Reply::Committed(outcomes))) => {
                for (index, outcome) in items.into_iter().zip(outcomes) {
                    self.committed_one(index, outcome);
                }
            }
            (Some(Pending::Publish(items)), Ok(Reply::Published(outcomes))) => {
                let mut outcomes = outcomes.into_iter();
                for index in items {
                    match outcomes.next().flatten() {
                        Some(outcome) => self.committed_one(index, outcome),
                        None => self.commit_unpublished(index),
                    }
                }
            }
            // The home node knows the outcome, or asks the master.
            (Some(Pending::Publish(items)), _) => {
                items.into_iter().for_each(|index| self.commit_unpublished(index));
            }
            (Some(Pending::Reserve(items)), failed) => {
                let outcome = failure(id, failed);
                items.into_iter().for_each(|index| self.finish(index, outcome.clone()));
            }
            (Some(Pending::Commit(home, items)), Err(CallFailure::Unwritten)) => {
                // An earlier attempt without a reply may have been stored: only the same commit may follow.
                let is_unknown = |it: &usize| self.items.get(*it).is_some_and(|it| it.may_be_stored);
                let (unknown, new): (Vec<_>, Vec<_>) = items.into_iter().partition(is_unknown);
                if !new.is_empty() {
                    self.avoid.insert(home);
                }
                new.into_iter().for_each(|index| self.unwritten(index));
                self.commit_failed(home, unknown, &failure(id, Err(CallFailure::Unwritten)));
            }
            (Some(Pending::Commit(home, items)), failed) => {
                self.commit_failed(home, items, &failure(id, failed));
            }
            (Some(Pending::Abort | Pending::Write(_)) | None, _) => (),
        }
    }

    /// A write ended.
    pub fn written(&mut self, id: NeedId, result: WriteResult) {
        let Some(Pending::Write(index)) = self.pending.remove(&id) else { return };
        let Some(item) = self.items.get_mut(index) else { return };
        let Some(reservation) = item.writing.remove(&id) else { return };
        let location = reservation.location;
        match result {
            WriteResult::Written => item.written.push(location),
            WriteResult::Stale => (),
            WriteResult::Unreachable(_) => {
                self.avoid.insert(location.segment);
                self.to_abort.entry(location.segment).or_default().push(location.slot_ref());
            }
            WriteResult::Unreadable => {
                item.is_unreadable = true;
                self.to_abort.entry(location.segment).or_default().push(location.slot_ref());
            }
        }
        if !item.writing.is_empty() {
            return;
        }
        match item.written.as_slice() {
            [home] if self.same_host.contains(&home.segment) && item.request.options.has_no_attributes() => {
                self.to_publish.push(index)
            }
            [_, ..] => self.commit(index),
            // It is not tried again: the node is not the reason.
            [] if item.is_unreadable => {
                self.finish(index, PutOutcome::Invalid("its bytes cannot be read".to_owned()));
            }
            [] => self.again(index, "no node with space could be reached"),
        }
    }

    /// Adds the item to the next commit of its home node.
    fn commit(&mut self, index: usize) {
        let home = self.items.get(index).and_then(|it| it.written.first());
        if let Some(home) = home {
            self.to_commit.entry(home.segment).or_default().push(index);
        }
    }

    /// Commits at its home what the master may have published.
    fn commit_unpublished(&mut self, index: usize) {
        self.items.get_mut(index).into_iter().for_each(|it| it.may_be_stored = true);
        self.commit(index);
    }

    fn reserved_one(&mut self, index: usize, outcome: ReserveOutcome) {
        match outcome {
            ReserveOutcome::Full(_) | ReserveOutcome::NoNode if self.can_use_avoided(index) => {
                self.to_reserve_anywhere.push(index);
            }
            ReserveOutcome::Space(reservations) => {
                for reservation in reservations {
                    let id = self.next_id();
                    let Some(item) = self.items.get_mut(index) else { return };
                    item.writing.insert(id, reservation.clone());
                    let waits = item.is_last_resort;
                    self.pending.insert(id, Pending::Write(index));
                    self.needs.push_back(Need::Write { id, item: index, reservation, waits });
                }
            }
            ReserveOutcome::Exists(generation) => self.finish(index, PutOutcome::Exists(generation)),
            ReserveOutcome::Full(full) => self.finish(index, PutOutcome::Full(full)),
            ReserveOutcome::NoNode => self.finish(index, PutOutcome::NoNode),
            ReserveOutcome::OverQuota(quota) => self.finish(index, PutOutcome::OverQuota(quota)),
            ReserveOutcome::Behind(backlog) => self.finish(index, PutOutcome::Behind(backlog)),
            ReserveOutcome::Invalid(why) => self.finish(index, PutOutcome::Invalid(why)),
        }
    }

    /// Whether nodes that failed this put may have space for the item: once, they are used in spite of that.
    fn can_use_avoided(&mut self, index: usize) -> bool {
        if self.avoid.is_empty() || is_mutant!(self.mutant, FailInPauses) {
            return false;
        }
        self.items.get_mut(index).is_some_and(|it| !std::mem::replace(&mut it.is_last_resort, true))
    }

    fn committed_one(&mut self, index: usize, outcome: CommitOutcome) {
        let Some(item) = self.items.get_mut(index) else { return };
        let stored = |written: &mut Vec<Location>, generation, replaced, unconfirmed| PutOutcome::Stored {
            generation,
            replicas: std::mem::take(written),
            replaced,
            unconfirmed,
        };
        let outcome = match outcome {
            CommitOutcome::Stored(generation) => stored(&mut item.written, generation, false, Vec::new()),
            CommitOutcome::Replaced(generation) => stored(&mut item.written, generation, true, Vec::new()),
            CommitOutcome::Unconfirmed(it) => stored(&mut item.written, it.generation, it.replaced, it.nodes),
            CommitOutcome::Exists(generation) => PutOutcome::Exists(generation),
            // A put that starts again would bring its value back.
            CommitOutcome::Stale | CommitOutcome::Removed
                if (item.may_be_stored || outcome == CommitOutcome::Removed)
                    && !is_mutant!(self.mutant, PutTwice) =>
            {
                self.abort_others(index);
                let why = "the object is not there, but may have been stored and removed meanwhile";
                return self.finish(index, PutOutcome::Unreachable(Unreached::Other(why)));
            }
            CommitOutcome::Stale | CommitOutcome::Removed => {
                self.abort_others(index);
                return self.again(index, "the node gave up the reservation");
            }
        };
        item.written.clear();
        item.outcome = Some(outcome);
    }

    /// The home node did not reply. Repeating the commit is safe: the same stamp has the same outcome.
    fn commit_failed(&mut self, home: SegmentId, items: Vec<usize>, outcome: &PutOutcome) {
        for index in items {
            let Some(item) = self.items.get_mut(index) else { continue };
            item.tries += 1;
            item.may_be_stored = true;
            if item.tries < TRIES_MAX && matches!(outcome, PutOutcome::Unreachable(_)) {
                self.to_commit.entry(home).or_default().push(index);
            } else {
                item.written.clear();
                item.outcome = Some(outcome.clone());
            }
        }
    }

    /// The bytes were not written after all: releases the reservations.
    fn unwritten(&mut self, index: usize) {
        let Some(item) = self.items.get_mut(index) else { return };
        for location in item.written.drain(..) {
            self.to_abort.entry(location.segment).or_default().push(location.slot_ref());
        }
        self.again(index, "no node with space could be reached");
    }

    /// Starts an item again, unless it has reached the maximum number of attempts.
    fn again(&mut self, index: usize, why: &'static str) {
        let Some(item) = self.items.get_mut(index) else { return };
        item.tries += 1;
        if item.tries < TRIES_MAX {
            self.to_reserve.push(index);
        } else {
            item.outcome = Some(PutOutcome::Unreachable(Unreached::Other(why)));
        }
    }

    fn abort_others(&mut self, index: usize) {
        let Some(item) = self.items.get_mut(index) else { return };
        for location in item.written.drain(..).skip(1) {
            self.to_abort.entry(location.segment).or_default().push(location.slot_ref());
        }
    }

    fn finish(&mut self, index: usize, outcome: PutOutcome) {
        if let Some(item) = self.items.get_mut(index) {
            item.outcome = Some(outcome);
        }
    }

    /// Turns the collected work into calls, one per peer.
    fn plan(&mut self) {
        for (segment, slot_refs) in std::mem::take(&mut self.to_abort) {
            self.ask_node(segment, ClientToNode::Abort(slot_refs), Pending::Abort, false);
        }
        if !self.to_publish.is_empty() {
            let indexes = std::mem::take(&mut self.to_publish);
            let items = indexes.iter().filter_map(|&index| {
                let home = self.items.get(index)?.written.first()?.segment;
                Some(PublishItem { home, item: self.commit_item(index)? })
            });
            let publish = Publish { items: items.collect(), wait_ms: self.confirm_ms };
            self.ask_master(ClientToMaster::Publish(publish), Pending::Publish(indexes));
        }
        for (segment, indexes) in std::mem::take(&mut self.to_commit) {
            let items = indexes.iter().filter_map(|&index| self.commit_item(index)).collect();
            let commit = Commit { items, wait_ms: self.confirm_ms };
            let waits = !is_mutant!(self.mutant, FailInPauses);
            self.ask_node(segment, ClientToNode::Commit(commit), Pending::Commit(segment, indexes), waits);
        }
        let indexes = std::mem::take(&mut self.to_reserve);
        self.reserve(indexes, self.avoid.iter().copied().collect());
        let indexes = std::mem::take(&mut self.to_reserve_anywhere);
        self.reserve(indexes, Vec::new());
    }

    fn reserve(&mut self, indexes: Vec<usize>, avoid: Vec<SegmentId>) {
        if indexes.is_empty() {
            return;
        }
        let items = indexes.iter().filter_map(|&index| {
            let request = &self.items.get(index)?.request;
            Some(ReserveItem { key: request.key.clone(), len: request.len, options: request.options.clone() })
        });
        let reserve = Reserve {
            items: items.collect(),
            avoid,
            wait_ms: self.wait_ms,
            spare: 0,
            report_wait_ms: self.confirm_ms,
        };
        self.ask_master(ClientToMaster::Reserve(reserve), Pending::Reserve(indexes));
    }

    fn commit_item(&self, index: usize) -> Option<CommitItem> {
        let item = self.items.get(index)?;
        let (home, others) = item.written.split_first()?;
        Some(CommitItem {
            slot_ref: home.slot_ref(),
            key: item.request.key.clone(),
            len: item.request.len,
            options: item.request.options.clone(),
            others: others.to_vec(),
        })
    }

    fn ask_master(&mut self, request: ClientToMaster, pending: Pending) {
        let id = self.next_id();
        self.pending.insert(id, pending);
        self.needs.push_back(Need::AskMaster { id, request });
    }

    fn ask_node(&mut self, segment: SegmentId, request: ClientToNode, pending: Pending, waits: bool) {
        let id = self.next_id();
        self.pending.insert(id, pending);
        self.needs.push_back(Need::AskNode { id, segment, request, waits });
    }

    fn next_id(&mut self) -> NeedId {
        self.next_id += 1;
        NeedId(self.next_id)
    }
}

fn failure(id: NeedId, result: Result<Reply, CallFailure>) -> PutOutcome {
    match result {
        Ok(Reply::Refused(refusal)) | Err(CallFailure::Refused(refusal)) => PutOutcome::Refused(refusal),
        Ok(_) => PutOutcome::Unreachable(Unreached::Other("the reply does not match the request")),
        Err(CallFailure::Unreachable | CallFailure::Unwritten) => {
            PutOutcome::Unreachable(Unreached::Call(id))
        }
    }
}
