//! Offered slots: which are recalled first, and what a claim changes.

use std::collections::VecDeque;

use tiffin_types::{SlotRef, space_for};

use super::{Effect, SlotState, Slots, record, space_of};

/// Minimum number of offers that are recalled at a time if something other than bytes is missing.
const RECALLS_MIN: usize = 16;

impl Slots {
    /// All offers, the oldest first.
    pub(crate) fn offers(&self) -> Vec<SlotRef> {
        self.offers.values().copied().collect()
    }

    /// The offers to recall next for `len` bytes, a record or a name without space: the oldest, and as many
    /// as are needed.
    pub(crate) fn offers_for(&self, len: u64) -> Vec<SlotRef> {
        let mut short = space_for(len).unwrap_or(u64::MAX).saturating_sub(self.space.free());
        let mut slot_refs = Vec::new();
        for &slot_ref in self.offers.values() {
            if short == 0 && slot_refs.len() >= RECALLS_MIN {
                break;
            }
            short = short.saturating_sub(self.get(slot_ref).map_or(0, |it| space_of(&it.extents)));
            slot_refs.push(slot_ref);
        }
        slot_refs
    }

    /// An offer was claimed: it is an ordinary reservation now.
    pub(crate) fn claim(&mut self, slot_ref: SlotRef, effects: &mut VecDeque<Effect>) {
        let Some(slot) = self.get_mut(slot_ref) else { return };
        let SlotState::Offered(client) = slot.state else { return };
        slot.state = SlotState::Reserved(client);
        effects.push_back(Effect::Slot { slot: slot_ref.slot, record: record(slot) });
        self.count_claim(slot_ref);
    }

    /// An offer is reserved from now on, or has a later state.
    pub(super) fn count_claim(&mut self, slot_ref: SlotRef) {
        let Some(slot) = self.get(slot_ref) else { return };
        let (number, bytes) = (slot.number, space_of(&slot.extents));
        if self.offers.remove(&number).is_some() {
            self.offered -= bytes;
            self.granted += bytes;
        }
    }
}
