//! Copies of other members' objects that the node reads into reservations of its own memory.
//!
//! The master asks for them when an object has fewer copies than it should. The shell reads the bytes; the
//! answer goes out when all items of a request have ended. Whether a copy becomes an object is decided by a
//! `Settle` of the master, as for any reservation.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tiffin_types::{
    BATCH_ITEMS_MAX, ClientId, RequestId, SlotRef,
    message::{FetchItem, Moved, Reason, Reply},
};

use super::{Effect, SlotState, Slots, refuse};

/// Requests that the node has not answered yet. They end with the link that they came through.
#[derive(Debug, Default)]
pub(super) struct Fetches(BTreeMap<RequestId, Fetching>);

#[derive(Debug)]
struct Fetching {
    order: Vec<SlotRef>,
    left: BTreeSet<SlotRef>,
    done: BTreeSet<SlotRef>,
}

impl Fetches {
    /// Begins to read copies into reservations; one that does not stand any more has failed.
    pub(super) fn begin(
        &mut self,
        slots: &Slots,
        id: RequestId,
        items: Vec<FetchItem>,
        effects: &mut VecDeque<Effect>,
    ) {
        if items.len() > BATCH_ITEMS_MAX {
            let reply = refuse(Reason::Invalid, "the batch is too large");
            return effects.push_back(Effect::AnswerMaster(id, reply));
        }
        let order: Vec<_> = items.iter().map(|it| it.into).collect();
        let mut fetching = Fetching { order, left: BTreeSet::new(), done: BTreeSet::new() };
        for item in items {
            if slots.state(item.into) == Some(SlotState::Reserved(ClientId::PROMOTER)) {
                fetching.left.insert(item.into);
                effects.push_back(Effect::Fetch(item));
            }
        }
        self.0.insert(id, fetching);
        self.answer(slots, id, effects);
    }

    /// One copy has ended.
    pub(super) fn end(
        &mut self,
        slots: &Slots,
        into: SlotRef,
        is_whole: bool,
        effects: &mut VecDeque<Effect>,
    ) {
        let found = self.0.iter_mut().find(|(_, it)| it.left.contains(&into));
        let Some((&id, fetching)) = found else { return };
        fetching.left.remove(&into);
        if is_whole {
            fetching.done.insert(into);
        }
        self.answer(slots, id, effects);
    }

    /// Answers a request whose copies have all ended.
    fn answer(&mut self, slots: &Slots, id: RequestId, effects: &mut VecDeque<Effect>) {
        if self.0.get(&id).is_some_and(|it| it.left.is_empty())
            && let Some(Fetching { order, done, .. }) = self.0.remove(&id)
        {
            let items = order.iter().map(|slot_ref| done.contains(slot_ref)).collect();
            let moved = Moved { items, usage: slots.usage(), bytes_max: Vec::new() };
            effects.push_back(Effect::AnswerMaster(id, Reply::Moved(moved)));
        }
    }
}
