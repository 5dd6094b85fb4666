//! Transfers through the node's own process: stores from clients, sends to clients, and reads by disks.
//!
//! **Invariant:** a transfer counts as a use of its slot from its begin to its end, so the memory is not
//! reused meanwhile.

use tiffin_types::{ClientId, Extent, SlotRef, mutant::is_mutant};

use super::{Node, SlotState};

impl Node {
    /// Before bytes from a socket are stored: where they go, if the reservation is this client's and valid.
    /// This claims an offer, so there may be effects. Its memory is not reused until [`Self::end_store`].
    pub fn begin_store(
        &mut self,
        client: ClientId,
        slot_ref: SlotRef,
        offset: u64,
        len: u64,
    ) -> Option<Vec<Extent>> {
        if self.slots.state(slot_ref)?.writer() != Some(client) {
            return None;
        }
        let extents = self.slots.cut(slot_ref, offset, len)?;
        self.slots.claim(slot_ref, &mut self.effects);
        if !(client == ClientId::PROMOTER && is_mutant!(self.config.mutant, PromoteUnheld)) {
            self.slots.begin_use(slot_ref);
        }
        Some(extents)
    }

    /// After the bytes are stored, or could not be. There may be effects.
    pub fn end_store(&mut self, slot_ref: SlotRef) {
        let freed = self.slots.freed();
        self.slots.end_use(slot_ref, &mut self.effects);
        self.report_space(freed, false);
    }

    /// The namespace of the object in this use of a slot; `None` if it is not an object, or not yet.
    #[must_use]
    pub fn namespace_of(&self, slot_ref: SlotRef) -> Option<&str> {
        self.slots.namespace(slot_ref)
    }

    /// Whether this use of a slot is not an object yet, but may become one.
    #[must_use]
    pub fn may_become_an_object(&self, slot_ref: SlotRef) -> bool {
        self.slots.state(slot_ref).is_some_and(|it| it != SlotState::Committed)
    }

    /// Before an object's bytes are sent: where they are, if it can be read. Its memory is kept until
    /// [`Self::end_send`]. A client that has resolved it may read it even before this node has received the
    /// commit.
    pub fn begin_send(
        &mut self,
        slot_ref: SlotRef,
        offset: u64,
        len: u64,
        cached_epoch: Option<u64>,
    ) -> Option<Vec<Extent>> {
        if !self.is_valid_for(slot_ref, cached_epoch) {
            return None;
        }
        let extents = self.slots.cut(slot_ref, offset, len)?;
        self.slots.begin_use(slot_ref);
        Some(extents)
    }

    /// After the bytes are sent: whether they are valid, because the object existed all the time. For a
    /// reader with a cached location (`cached_epoch`) the node must also be a member in that epoch:
    /// otherwise it may have missed a retire. There may be effects.
    pub fn end_send(&mut self, slot_ref: SlotRef, cached_epoch: Option<u64>) -> bool {
        let freed = self.slots.freed();
        let valid =
            self.is_valid_for(slot_ref, cached_epoch) || is_mutant!(self.config.mutant, SendWithoutCheck);
        self.slots.end_use(slot_ref, &mut self.effects);
        self.report_space(freed, false);
        valid
    }

    /// Before an object is written to a disk of this node: where its bytes are, if it is committed here.
    /// Otherwise the node might ask a later epoch about an object that its disk has already announced to
    /// that epoch. Its memory is kept until [`Self::end_demotion`].
    pub fn begin_demotion(&mut self, slot_ref: SlotRef, len: u64) -> Option<Vec<Extent>> {
        if self.slots.state(slot_ref) != Some(SlotState::Committed) {
            return None;
        }
        let extents = self.slots.cut(slot_ref, 0, len)?;
        self.slots.begin_use(slot_ref);
        Some(extents)
    }

    /// After its bytes are read: whether the object existed all the time. There may be effects.
    pub fn end_demotion(&mut self, slot_ref: SlotRef) -> bool {
        let freed = self.slots.freed();
        let stands = self.slots.state(slot_ref) == Some(SlotState::Committed);
        self.slots.end_use(slot_ref, &mut self.effects);
        self.report_space(freed, false);
        stands
    }

    /// Whether this use of a slot is valid. For a cached-location read, also whether the master would name
    /// it.
    fn is_valid_for(&self, slot_ref: SlotRef, cached_epoch: Option<u64>) -> bool {
        let Some(state) = self.slots.state(slot_ref) else { return false };
        let is_member = self.link.is_member() || is_mutant!(self.config.mutant, StayMember);
        let is_named = |epoch| is_member && epoch == self.link.epoch() && state == SlotState::Committed;
        cached_epoch.is_none_or(is_named)
    }
}
