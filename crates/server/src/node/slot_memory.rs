//! Memory of the node that its disk reads or writes: the bytes of slots, and extents of its staging segment.
//!
//! **Invariant:** a slot stays referenced until the disk has finished with its memory. That may be long after
//! the request was given up.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use tiffin_ssd::Pieces;
use tiffin_types::{ClientId, Extent, SlotRef};

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use super::Shared as Node;
use super::staging::StagedExtent;

/// How long a node may take to learn what the master has decided.
const LEARN_TIME_MAX: Duration = Duration::from_secs(30);

/// Why the bytes of a slot must stay in place.
enum Usage {
    /// The disk reads an object.
    Sent,
    /// The disk writes a reservation.
    Stored,
}

/// References a slot until it is dropped.
pub(super) struct SlotUse {
    node: Arc<Node>,
    slot_ref: SlotRef,
    usage: Usage,
}

impl Drop for SlotUse {
    fn drop(&mut self) {
        if self.node.state.has_failed() {
            return;
        }
        self.node.ended(|state| match self.usage {
            Usage::Sent => _ = state.core.end_demotion(self.slot_ref),
            Usage::Stored => state.core.end_store(self.slot_ref),
        });
    }
}

/// What a node knows of a slot.
enum Known<T> {
    Object(T),
    /// The master may have made it an object, and the node has not learned that yet.
    NotYet,
    NoObject,
}

/// The bytes of an object that the disk reads, or `None` if there is no such object. The master may name an
/// object before the node has learned that it was committed: then this waits. `link` changes when the link
/// over which the master asked breaks.
pub(super) async fn source(
    node: &Arc<Node>,
    slot_ref: SlotRef,
    len: u64,
    link: watch::Receiver<u64>,
) -> Option<Pieces> {
    let known = || {
        let core = &mut node.lock().core;
        match core.begin_demotion(slot_ref, len) {
            Some(extents) => Known::Object(extents),
            None if core.may_become_an_object(slot_ref) => Known::NotYet,
            None => Known::NoObject,
        }
    };
    let extents = learn(&node.decided, link, known).await?;
    pieces(node, &extents, SlotUse { node: Arc::clone(node), slot_ref, usage: Usage::Sent })
}

/// Waits until the node knows whether a slot is an object, or the link breaks: then no request waits for the
/// copy, and the disk ends what it was writing before it joins again.
async fn learn<T>(
    decided: &Notify,
    mut link: watch::Receiver<u64>,
    known: impl Fn() -> Known<T>,
) -> Option<T> {
    let deadline = Instant::now() + LEARN_TIME_MAX;
    loop {
        let decided = decided.notified();
        match known() {
            Known::Object(object) => return Some(object),
            Known::NoObject => return None,
            Known::NotYet => {}
        }
        tokio::select! {
            waited = timeout_at(deadline, decided) => waited.ok()?,
            _ = link.changed() => return None,
        }
    }
}

/// The bytes of a reservation that the disk writes, or `None` if the reservation was given up.
pub(super) fn target(node: &Arc<Node>, slot_ref: SlotRef, len: u64) -> Option<Pieces> {
    let extents = node.lock().core.begin_store(ClientId::PROMOTER, slot_ref, 0, len)?;
    pieces(node, &extents, SlotUse { node: Arc::clone(node), slot_ref, usage: Usage::Stored })
}

/// The extents of a reservation that the node fills from another member, or `None` if the reservation was
/// given up. It is referenced until the guard is dropped.
pub(super) fn reservation(
    node: &Arc<Node>,
    slot_ref: SlotRef,
    len: u64,
) -> Option<(Vec<tiffin_transport::Extent>, SlotUse)> {
    let extents = node.lock().core.begin_store(ClientId::PROMOTER, slot_ref, 0, len)?;
    let extents = extents.into_iter().map(super::records::extent).collect();
    Some((extents, SlotUse { node: Arc::clone(node), slot_ref, usage: Usage::Stored }))
}

/// The bytes of an extent of the staging segment, which the disk writes.
pub(super) fn staged(extent: &Arc<StagedExtent>) -> Option<Pieces> {
    let targets = extent.memory().targets(&[extent.extent()])?;
    let runs = targets.iter().filter_map(|it| Some((NonNull::new(it.as_mut_ptr())?, it.len())));
    // SAFETY: the memory is mapped while its staging segment lives, and the extent belongs to this read alone
    // until the guard is dropped. Clients load it only after the read has succeeded.
    Some(unsafe { Pieces::new(runs, Arc::<StagedExtent>::clone(extent)) })
}

fn pieces(node: &Arc<Node>, extents: &[Extent], held: SlotUse) -> Option<Pieces> {
    let extent = |it: &Extent| tiffin_transport::Extent { offset: it.offset, len: it.len };
    let extents: Vec<_> = extents.iter().map(extent).collect();
    let targets = node.memory.targets(&extents)?;
    let runs = targets.iter().filter_map(|it| Some((NonNull::new(it.as_mut_ptr())?, it.len())));
    // SAFETY: the memory is mapped while the node's `Shared` lives, which the guard keeps. The slot is
    // referenced until the guard is dropped: an object's bytes are not overwritten before that, and only the
    // disk that a reservation was made for reads or writes it.
    Some(unsafe { Pieces::new(runs, Arc::new(held)) })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn demotion_waits_until_the_slot_is_an_object() {
        let (decided, link) = (Notify::new(), watch::Sender::new(0));
        let looks = Cell::new(0);
        let known = || {
            looks.set(looks.get() + 1);
            decided.notify_waiters();
            if looks.get() < 3 { Known::NotYet } else { Known::Object(7) }
        };
        assert_eq!(learn(&decided, link.subscribe(), known).await, Some(7));
        assert_eq!(learn(&decided, link.subscribe(), || Known::<u8>::NoObject).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn demotion_ends_with_the_link_and_at_its_deadline() {
        let (decided, link) = (Notify::new(), watch::Sender::new(0));
        let began = Instant::now();
        let learning = learn(&decided, link.subscribe(), || Known::<u8>::NotYet);
        link.send_modify(|it| *it += 1);
        assert_eq!(learning.await, None);
        assert_eq!(began.elapsed(), Duration::ZERO);
        assert_eq!(learn(&decided, link.subscribe(), || Known::<u8>::NotYet).await, None);
        assert_eq!(began.elapsed(), LEARN_TIME_MAX);
    }
}
