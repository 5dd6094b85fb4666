//! Pins and acknowledgements of many objects, a piece at a time.
//!
//! Such a request may name tens of thousands of objects, and other clients must be served meanwhile. So a
//! large one is a job, as a delete by pattern is ([`delete_matching`](super::delete_matching)): each piece
//! handles a bounded number of items, and the others follow in [`Master::work`](super::Master::work). Its
//! answer waits for the nodes like that of a small one, and for the items that are not handled yet.
//!
//! Deletes of keys and ends of pins are not among them: they would apply to objects that were put, and pins
//! that were set, since the request arrived. Acknowledgements name generations.
//!
//! **Invariant:** each item is handled once, in the order of the request, also if the client is gone or the
//! deadline has passed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::{
    Caller, Objects, OpId,
    changed::{Changed, send_changes},
    delete::{Answer, Confirming, Retires, ack_items},
    limits::waiting_bytes,
    pin::pin_items,
};
use crate::{
    BATCH_ITEMS_MAX, ConnId, Key, OWNER_BYTES_MAX, RequestId,
    message::{Ack, AckItem, ClientToMaster, Pin},
    mutant::is_mutant,
};

/// The items of a batch that are not handled yet.
#[derive(Debug)]
pub(super) struct Rest {
    caller: Arc<Caller>,
    items: Items,
}

/// The items, and the request without them.
#[derive(Debug)]
enum Items {
    Pin(VecDeque<Key>, Pin),
    Ack(VecDeque<AckItem>, Ack),
}

/// Whether a request is a large batch, and not one that is refused as a whole.
pub(super) fn is_large(o: &Objects, request: &ClientToMaster) -> bool {
    let count = match request {
        ClientToMaster::Pin(it) if it.on && it.owner.len() <= OWNER_BYTES_MAX => it.keys.len(),
        ClientToMaster::Ack(it) => it.items.len(),
        _ => return false,
    };
    let config = &o.cx.config;
    count > config.piece_objects_max && count <= BATCH_ITEMS_MAX && !is_mutant!(config.mutant, HandleAtOnce)
}

impl Items {
    /// `None` if it is another request.
    fn of(request: ClientToMaster) -> Option<Self> {
        match request {
            ClientToMaster::Pin(mut it) => Some(Self::Pin(std::mem::take(&mut it.keys).into(), it)),
            ClientToMaster::Ack(mut it) => Some(Self::Ack(std::mem::take(&mut it.items).into(), it)),
            _ => None,
        }
    }

    /// About the bytes of what is left.
    fn bytes(&self) -> usize {
        match self {
            Self::Pin(keys, _) => waiting_bytes(keys.iter()),
            Self::Ack(items, _) => waiting_bytes(items.iter().map(|it| &it.key)),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Pin(keys, _) => keys.len(),
            Self::Ack(items, _) => items.len(),
        }
    }

    fn wait_ms(&self) -> u64 {
        match self {
            Self::Pin(_, it) => it.wait_ms,
            Self::Ack(_, it) => it.wait_ms,
        }
    }

    /// An answer without outcomes.
    fn answer(&self) -> Answer {
        match self {
            Self::Pin(keys, _) => Answer::Pin(Vec::with_capacity(keys.len()), Vec::new()),
            Self::Ack(items, _) => Answer::Ack(Vec::with_capacity(items.len())),
        }
    }

    /// Handles the next items, at most so many.
    fn piece(&mut self, o: &mut Objects, caller: &Caller, max: usize, answer: &mut Answer) -> Changed {
        match (self, answer) {
            (Self::Pin(keys, pin), Answer::Pin(outcomes, pinned)) => {
                pin.keys = next_of(keys, max);
                o.remove_overdue(caller.namespace, pin.keys.iter().map(Key::as_bytes));
                pin_items(o, caller, pin, outcomes, pinned)
            }
            (Self::Ack(items, ack), Answer::Ack(outcomes)) => {
                ack.items = next_of(items, max);
                o.remove_overdue(caller.namespace, ack.items.iter().map(|it| it.key.as_bytes()));
                ack_items(o, caller, ack, outcomes)
            }
            (Self::Pin(..) | Self::Ack(..), _) => Changed::default(),
        }
    }
}

fn next_of<T>(items: &mut VecDeque<T>, max: usize) -> Vec<T> {
    items.drain(..max.min(items.len())).collect()
}

impl Retires {
    /// Begins a large batch of pins or acknowledgements: see [`is_large`].
    pub(super) fn begin_batch(
        &mut self,
        o: &mut Objects,
        (conn, id): (ConnId, RequestId),
        caller: &Arc<Caller>,
        request: ClientToMaster,
    ) {
        let Some(items) = Items::of(request) else { return };
        let op = o.cx.next_op();
        if let Err(refusal) = o.cx.wait(op, (conn, id), caller, items.bytes()) {
            return o.cx.reply(conn, id, *refusal);
        }
        let deadline = o.cx.now.after(items.wait_ms());
        o.cx.deadlines.list(deadline, op);
        let confirming = Confirming {
            conn,
            id,
            answer: items.answer(),
            outstanding: BTreeSet::new(),
            items: BTreeMap::new(),
            asked: BTreeMap::new(),
            awaited_beyond_deadline: BTreeSet::new(),
            deadline: Some(deadline),
            rest: Some(Box::new(Rest { caller: Arc::clone(caller), items })),
        };
        self.confirms.insert(op, confirming);
        self.jobs.push_back(op);
        self.batch_piece(o, op);
    }

    /// Handles the next items of a batch.
    pub(super) fn batch_piece(&mut self, o: &mut Objects, op: OpId) {
        let Some(confirming) = self.confirms.get_mut(&op) else { return };
        let Some(mut rest) = confirming.rest.take() else { return };
        let max = o.cx.config.piece_objects_max.max(1);
        let changed = rest.items.piece(o, &rest.caller, max, &mut confirming.answer);
        let (items, asked) = send_changes(o, op, changed);
        // Then the answer waits for no node any more.
        let is_late = confirming.deadline.is_none();
        for (node, items) in items {
            if is_late || !asked.values().any(|it| *it == node) {
                confirming.answer.unconfirmed(&o.cx.members.name(node), &items);
            }
            confirming.items.entry(node).or_default().extend(items);
        }
        if !is_late && !is_mutant!(o.cx.config.mutant, DeleteWithoutConfirmation) {
            confirming.outstanding.extend(asked.keys());
            confirming.asked.extend(asked);
        }
        if rest.items.len() > 0 {
            confirming.rest = Some(rest);
            return;
        }
        self.jobs.retain(|job| *job != op);
        o.cx.waiting.leave(op);
        self.maybe_end_confirm(o, op);
    }
}
