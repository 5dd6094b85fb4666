//! Puts of clients that have their share of the memory: each of these clients has a queue of its own.

use super::{Item, OpId, Reservations, Reserving};
use crate::{
    ConnId, RequestId,
    master::context::quotas::Quotas,
    message::{ReserveOutcome, Resource},
};

/// The name of the queue of a client that has its share, without the client. No stream has such a name.
const SHARE_QUEUE: &str = "\0share of client ";

/// A put waits in its queue. One whose client has its share waits in a queue of that client: it must not hold
/// up the others.
pub(super) fn enter_queue(quotas: &mut Quotas, op: OpId, reserving: &mut Reserving) {
    let (namespace, client) = (reserving.caller.namespace, reserving.caller.client);
    let queue_key = match reserving.items.iter().any(lacks_share) {
        true => (namespace, format!("{SHARE_QUEUE}{}", client.0)),
        false => reserving.queue_key.clone(),
    };
    let is_there = reserving.queued && queue_key == reserving.queue_key;
    if is_there {
        return;
    }
    if std::mem::replace(&mut reserving.queued, true) {
        quotas.leave_queue(&reserving.queue_key, op);
    }
    quotas.queue(queue_key.clone(), op);
    reserving.queue_key = queue_key;
}

/// Whether its client has its share, so that an item gets nothing.
pub(super) fn lacks_share(item: &Item) -> bool {
    matches!(&item.done, Some(ReserveOutcome::Full(full)) if full.lacks == Resource::Share)
}

/// The puts that wait in such a queue.
pub(in crate::master) fn waits_for_share(
    all: &Reservations,
) -> impl Iterator<Item = (ConnId, RequestId)> + '_ {
    let waiting = all.all.values().chain(all.parked.values()).filter(|it| it.queued);
    waiting.filter(|it| it.queue_key.1.starts_with(SHARE_QUEUE)).map(|it| (it.conn, it.id))
}
