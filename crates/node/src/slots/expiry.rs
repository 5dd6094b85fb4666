//! The end of an object's TTL, which its home learns from the master after the object is prepared.

use std::collections::VecDeque;

use tiffin_types::SlotRef;
use tiffin_types::attributes::{Attributes, Expiry};

use super::{Effect, SlotState, Slots};

impl Slots {
    /// Records when an object expires. The master is asked about an object that is prepared after a crash,
    /// so its bytes may be overwritten in place; their length is the same.
    fn overwrite_expiry(
        &mut self,
        slot_ref: SlotRef,
        attributes: Attributes,
        effects: &mut VecDeque<Effect>,
    ) {
        let Some(slot) = self.get_mut(slot_ref) else { return };
        let bytes = attributes.to_bytes();
        slot.identity.iter_mut().for_each(|it| it.attributes = attributes.clone());
        effects.push_back(Effect::Heap { offset: slot.attributes.offset, bytes });
    }

    /// Records when an object expires, unless it has no TTL.
    pub(crate) fn set_expiry(
        &mut self,
        slot_ref: SlotRef,
        expiry: Box<Expiry>,
        effects: &mut VecDeque<Effect>,
    ) {
        let Some(slot) = self.get(slot_ref) else { return };
        let has_other = |it: &&Attributes| it.expiry.as_ref().is_some_and(|it| *it != expiry);
        let Some(old) = slot.identity.as_ref().map(|it| &it.attributes).filter(has_other) else { return };
        let attributes = Attributes { expiry: Some(expiry), ..old.clone() };
        if slot.state == SlotState::Prepared {
            return self.overwrite_expiry(slot_ref, attributes, effects);
        }
        // Without space for them, the node is told again when it announces the object.
        self.set_attributes(slot_ref, &attributes, effects);
    }
}
