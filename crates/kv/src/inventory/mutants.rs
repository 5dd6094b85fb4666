//! Hooks of the inventory that mutants replace. See [`crate::sabotage`].

use super::{CellId, Inventory, PageState, Tier};
use crate::sabotage::sabotaged;

impl Inventory {
    /// O2: a page that was published belongs to the index alone.
    pub(super) fn own_published(&mut self, id: CellId, tier: Tier, page: u32) {
        if sabotaged!(self.sabotage, DoubleOwner) {
            self.pool_mut(tier).give_back(page, PageState::Indexed(id));
        }
    }
}
