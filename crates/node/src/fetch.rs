//! Copies of other members' objects that the node reads into reservations of its own memory.
//!
//! The master asks for them when an object has fewer copies than it should. The shell reads the bytes; the
//! answer goes out when all items of a request have ended. Whether a copy becomes an object is decided by a
//! `Settle` of the master, as for any reservation.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_types::{
    BATCH_ITEMS_MAX, ClientId, RequestId, SlotRef,
    message::{FetchItem, Moved, Reason, Reply},
};

use super::{Effect, Node, SlotState, refuse};

/// Requests that the node has not answered yet. They end with the link that they came through.
#[derive(Debug, Default)]
pub(super) struct Fetches(BTreeMap<RequestId, Fetching>);

#[derive(Debug)]
struct Fetching {
    order: Vec<SlotRef>,
    left: BTreeSet<SlotRef>,
    done: BTreeSet<SlotRef>,
}

impl Node {
    /// Begins to read copies into reservations; one that does not stand any more has failed.
    pub(super) fn fetch(&mut self, id: RequestId, items: Vec<FetchItem>) {
        if items.len() > BATCH_ITEMS_MAX {
            let reply = refuse(Reason::Invalid, "the batch is too large");
            return self.effects.push_back(Effect::AnswerMaster(id, reply));
        }
        let order: Vec<_> = items.iter().map(|it| it.into).collect();
        let mut fetching = Fetching { order, left: BTreeSet::new(), done: BTreeSet::new() };
        for item in items {
            if self.slots.state(item.into) == Some(SlotState::Reserved(ClientId::PROMOTER)) {
                fetching.left.insert(item.into);
                self.effects.push_back(Effect::Fetch(item));
            }
        }
        self.fetches.0.insert(id, fetching);
        self.end_fetch(id);
    }

    /// One copy has ended.
    pub(super) fn fetched(&mut self, into: SlotRef, is_whole: bool) {
        let found = self.fetches.0.iter_mut().find(|(_, it)| it.left.contains(&into));
        let Some((&id, fetching)) = found else { return };
        fetching.left.remove(&into);
        if is_whole {
            fetching.done.insert(into);
        }
        self.end_fetch(id);
    }

    /// Answers a request whose copies have all ended.
    fn end_fetch(&mut self, id: RequestId) {
        if self.fetches.0.get(&id).is_some_and(|it| it.left.is_empty())
            && let Some(Fetching { order, done, .. }) = self.fetches.0.remove(&id)
        {
            let items = order.iter().map(|slot_ref| done.contains(slot_ref)).collect();
            let moved = Moved { items, usage: self.slots.usage(), bytes_max: Vec::new() };
            self.effects.push_back(Effect::AnswerMaster(id, Reply::Moved(moved)));
        }
    }
}
