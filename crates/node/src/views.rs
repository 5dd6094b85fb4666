//! Views: which memory clients keep in use.

use tiffin_types::{ClientId, SlotRef, mutant::is_mutant};

use crate::Node;

impl Node {
    pub(super) fn begin_view(&mut self, client: ClientId, slot_ref: SlotRef) -> bool {
        // A view concerns mapped memory; a client that copies through a socket needs none. The client has
        // the location from the master, which may have published the object before this node received the
        // settle.
        if !self.clients.maps(client) || self.slots.state(slot_ref).is_none() {
            return false;
        }
        // A client beyond its share copies the object instead.
        let (space, usage) = (self.slots.space(slot_ref), self.slots.usage());
        let capacity = self.slots.capacity().saturating_sub(usage.granted);
        let begins = self.clients.may_view(client, slot_ref, (space, capacity))
            || is_mutant!(self.config.mutant, ViewEverything);
        if begins {
            self.clients.begin_view(client, slot_ref, space);
            self.slots.begin_use(slot_ref);
        }
        self.views_refused += u64::from(!begins);
        begins
    }

    pub(super) fn end_view(&mut self, client: ClientId, slot_ref: SlotRef) {
        // A view that ended with its client may be ended again by a late message.
        if self.clients.end_view(client, slot_ref) {
            self.slots.end_use(slot_ref, &mut self.effects);
        }
    }
}
