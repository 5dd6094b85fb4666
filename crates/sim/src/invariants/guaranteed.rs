//! Guaranteed minimums: whatever the clients of the other namespace do, they do not use memory that is
//! guaranteed.
//!
//! Every node keeps its part. The minimum is set before the world begins, so that there is no time at which
//! others may use more.

use tiffin_node::SlotState;
use tiffin_types::{ClientId, space_for};

use crate::{coverage::Point, node::name_in_heap, world::World};

/// The namespace with the minimum.
const GUARANTEED: u8 = 1;

impl World {
    /// Objects and reservations of the other namespace leave every node's part of the minimum.
    pub(crate) fn check_guaranteed(&mut self) {
        if self.plan.guaranteed_percent == 0 {
            return;
        }
        if let Some(master) = &self.master {
            let counted = master.stat().nodes.iter().filter(|it| it.alive).count() as u64;
            self.oracle.nodes_counted = self.oracle.nodes_counted.max(counted);
        }
        // A dead node counts until the master knows that it is dead, although another one has taken its
        // place.
        let part = self.plan.guaranteed() / self.oracle.nodes_counted.max(self.plan.nodes as u64);
        let of_client = |id: ClientId| self.clients.iter().find(|it| it.id == id).map(|it| it.namespace);
        for shell in self.nodes.iter().filter(|it| it.core.is_some()) {
            let Some(memory) = self.memories.get(&shell.segment) else { continue };
            self.coverage.hit(Point::CheckedGuaranteed);
            let others = memory.slots().filter(|(_, record)| {
                let namespace = match record.state {
                    SlotState::Reserved(client) => of_client(client),
                    SlotState::Committed | SlotState::Prepared => {
                        name_in_heap(memory, record).map(|it| it.namespace)
                    }
                    // An offer can be recalled, and what ends has no namespace any more.
                    SlotState::Offered(_) | SlotState::Ending => None,
                };
                namespace.is_some_and(|it| it != GUARANTEED)
            });
            let extents = others.flat_map(|(_, record)| &record.extents);
            let used: u64 = extents.filter_map(|it| space_for(it.len)).sum();
            let most = self.plan.capacity.saturating_sub(part);
            if used > most {
                let segment = shell.segment;
                return self.oracle.fail("p5", || {
                    format!("{used} bytes of {segment} are used where {part} are guaranteed to others")
                });
            }
        }
    }
}
