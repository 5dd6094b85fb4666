//! Memory of the node that is lent to its disk: the bytes of slots that are held meanwhile, and room on its
//! stage.
//!
//! **Invariant:** the hold on a slot ends when the disk has let go of its memory, which may be long after
//! whoever asked has given up.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use tiffin_core::{Extent, Hold};
use tiffin_ssd::Pieces;

use tokio::time::{Instant, timeout_at};

use super::Shared as Node;
use super::stage::Room;

/// How long a node may take to hear what the master has decided.
const HEARD_TIME_MAX: Duration = Duration::from_secs(30);

/// What keeps the bytes of a slot where they are.
enum Kept {
    /// They are read: an object.
    Sent,
    /// They are written: a reservation.
    Stored,
}

/// A hold on a slot, until it is dropped.
struct Held {
    node: Arc<Node>,
    hold: Hold,
    kept: Kept,
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.node.state.is_poisoned() {
            return;
        }
        self.node.ended(|state| match self.kept {
            Kept::Sent => _ = state.core.end_demotion(self.hold),
            Kept::Stored => state.core.end_store(self.hold),
        });
    }
}

/// The bytes of an object, to be read; nothing if it is not there. The master may speak of an object before
/// the node has heard that it is one: that is waited for.
pub(super) async fn source(node: &Arc<Node>, hold: Hold, len: u64) -> Option<Pieces> {
    let deadline = Instant::now() + HEARD_TIME_MAX;
    let extents = loop {
        let decided = node.decided.notified();
        {
            let core = &mut node.lock().core;
            match core.begin_demotion(hold, len) {
                Some(extents) => break extents,
                None if core.may_become_an_object(hold) => {}
                None => return None,
            }
        }
        timeout_at(deadline, decided).await.ok()?;
    };
    pieces(node, &extents, Held { node: Arc::clone(node), hold, kept: Kept::Sent })
}

/// The bytes of a reservation for what comes from a disk, to be written; nothing if it does not stand.
pub(super) fn target(node: &Arc<Node>, hold: Hold, len: u64) -> Option<Pieces> {
    let extents = node.lock().core.begin_store(tiffin_core::master::PROMOTER, hold, 0, len)?;
    pieces(node, &extents, Held { node: Arc::clone(node), hold, kept: Kept::Stored })
}

/// Room on a stage, to be written.
pub(super) fn staged(room: &Arc<Room>) -> Option<Pieces> {
    let targets = room.memory().targets(&[room.extent()])?;
    let runs = targets.iter().filter_map(|it| Some((NonNull::new(it.as_mut_ptr())?, it.len())));
    // SAFETY: the memory is mapped for as long as the room's stage lives, and the room is nobody else's,
    // until the guard is dropped. Readers look at it only after the read was answered with success.
    Some(unsafe { Pieces::new(runs, Arc::<Room>::clone(room)) })
}

fn pieces(node: &Arc<Node>, extents: &[Extent], held: Held) -> Option<Pieces> {
    let extent = |it: &Extent| tiffin_transport::Extent { offset: it.offset, len: it.len };
    let extents: Vec<_> = extents.iter().map(extent).collect();
    let targets = node.memory.targets(&extents)?;
    let runs = targets.iter().filter_map(|it| Some((NonNull::new(it.as_mut_ptr())?, it.len())));
    // SAFETY: the memory is mapped for as long as the node's `Shared` lives, which the guard keeps. The slot
    // is held until the guard is dropped: an object's bytes are not written again before that, and nobody
    // reads or writes a reservation but the disk that it was made for.
    Some(unsafe { Pieces::new(runs, Arc::new(held)) })
}
