//! Hooks of the inventory that mutants replace. See [`crate::mutant`].

use super::{CellId, Inventory, PageState, Tier};
use crate::mutant::is_mutant;

impl Inventory {
    /// O2: a page that was published belongs to the index alone.
    pub(super) fn own_published(&mut self, id: CellId, tier: Tier, page: u32) {
        if is_mutant!(self.mutant, DoubleOwner) {
            self.pool_mut(tier).give_back(page, PageState::Indexed(id));
        }
    }
}
