//! Verification of the inventory, and its digest.

use std::collections::BTreeMap;

use super::{Inventory, of};
use crate::cell::{Cell, CellId, Residency, RootId};
use crate::digest::Digest;
use crate::hash::ChainHash;
use crate::index::Index;
use crate::message::{OpId, Tier};
use crate::pool::PageState;

/// The uses of copies by requests and operations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Uses {
    pub(crate) pins: BTreeMap<(CellId, Tier), u32>,
    pub(crate) holds: BTreeMap<(CellId, Tier), u32>,
    /// The copies that operations in flight write.
    pub(crate) pending: BTreeMap<(CellId, Tier), OpId>,
}

impl Inventory {
    /// The first violated invariant: its name, and what was found.
    pub(crate) fn check(&self, uses: &Uses) -> Result<(), (&'static str, String)> {
        for tier in Tier::BOTH {
            self.pool(tier).check().map_err(|what| ("O2", what))?;
        }
        let mut indexed = [0, 0];
        let mut queued = [0, 0];
        let mut idle = [0, 0];
        for (id, cell) in self.cells() {
            self.check_place(id, cell)?;
            for tier in Tier::BOTH {
                self.check_copy(id, cell, tier, uses)?;
                let copy = cell.copy(tier);
                let is_indexed = matches!(copy.residency, Residency::Valid(_) | Residency::Lost(_));
                *super::of_mut(tier, &mut indexed) += u32::from(is_indexed);
                *super::of_mut(tier, &mut queued) += usize::from(copy.queued.is_some());
                *super::of_mut(tier, &mut idle) += u32::from(copy.is_idle);
            }
        }
        for tier in Tier::BOTH {
            if *of(tier, &indexed) != self.counts(tier).indexed {
                return Err((
                    "O2",
                    format!("{tier:?}: {} copies, {:?}", of(tier, &indexed), self.counts(tier)),
                ));
            }
            if *of(tier, &queued) != of(tier, &self.evictors).len() || idle != self.idle {
                return Err(("O4", format!("{tier:?}: the eviction queue is wrong")));
            }
        }
        let gone = |(id, _): &(CellId, Tier)| self.find(*id).is_none();
        match uses.pins.keys().chain(uses.holds.keys()).chain(uses.pending.keys()).find(|key| gone(key)) {
            Some((id, tier)) => Err(("O1", format!("{id:?} is used in {tier:?}, and is gone"))),
            None => Ok(()),
        }
    }

    /// Checks that a cell is where its hash leads to, after its parent.
    fn check_place(&self, id: CellId, cell: &Cell) -> Result<(), (&'static str, String)> {
        if cell.is_empty() && self.index.may_remove(id) {
            return Err(("O2", format!("{id:?} is empty, but not removed")));
        }
        let parent = cell.parent.and_then(|parent| self.find(parent));
        let is_behind = parent.is_none_or(|it| it.position + 1 == cell.position && it.root == cell.root);
        let may_be_alone = cell.position == 0 || !self.index.leaves_first();
        if !is_behind || (parent.is_none() && !may_be_alone) {
            return Err(("O6", format!("{id:?} at {} stands behind {parent:?}", cell.position)));
        }
        match self.path(id).filter(|_| self.is_live(cell.root)) {
            Some((hashes, cells)) if self.walk(cell.root, &hashes) != cells => {
                Err(("O6", format!("{id:?} is not where its path leads to")))
            }
            _ => Ok(()),
        }
    }

    /// The path to a cell from its root, if all cells before it exist.
    fn path(&self, id: CellId) -> Option<(Vec<ChainHash>, Vec<CellId>)> {
        let mut path = (Vec::new(), Vec::new());
        let mut next = id;
        loop {
            let cell = self.find(next)?;
            path.0.push(cell.hash);
            path.1.push(next);
            match cell.parent {
                Some(parent) => next = parent,
                None => break,
            }
        }
        path.0.reverse();
        path.1.reverse();
        Some(path)
    }

    fn check_copy(
        &self,
        id: CellId,
        cell: &Cell,
        tier: Tier,
        uses: &Uses,
    ) -> Result<(), (&'static str, String)> {
        let copy = cell.copy(tier);
        let said = |map: &BTreeMap<(CellId, Tier), u32>| map.get(&(id, tier)).copied().unwrap_or_default();
        if (copy.pins, copy.holds) != (said(&uses.pins), said(&uses.holds)) {
            let known = (said(&uses.pins), said(&uses.holds));
            let found = (copy.pins, copy.holds);
            return Err((
                "O1",
                format!("{id:?} in {tier:?}: pins and holds are {found:?}, should be {known:?}"),
            ));
        }
        let page = copy.page().and_then(|page| self.pool(tier).states().get(page as usize).copied());
        let is_right = match (copy.residency, page) {
            (Residency::Absent, None) => true,
            (Residency::Pending(op, _), Some(PageState::Staged(by) | PageState::Quarantined(by))) => {
                op == by && uses.pending.get(&(id, tier)) == Some(&op)
            }
            (Residency::Valid(_) | Residency::Lost(_), Some(PageState::Indexed(of))) => of == id,
            _ => false,
        };
        if !is_right {
            return Err(("O2", format!("{id:?} is {:?} in {tier:?}, its page is {page:?}", copy.residency)));
        }
        if copy.queued.is_some() && (copy.is_used() || !cell.is_valid(tier)) {
            return Err(("O4", format!("{id:?} may leave {tier:?} while it is used")));
        }
        Ok(())
    }

    pub(crate) fn digest(&self, digest: &mut Digest) {
        for tier in Tier::BOTH {
            for state in self.pool(tier).states() {
                digest.add(state);
            }
        }
        for (id, cell) in self.cells() {
            digest.add(&id);
            digest.add(&cell.root);
            digest.add(&cell.hash);
            digest.add(&cell.hits);
            digest.add(&(cell.stored, cell.written));
            for tier in Tier::BOTH {
                let copy = cell.copy(tier);
                digest.add(&(copy.residency, copy.pins, copy.holds, copy.facts, copy.queued));
            }
        }
        digest.add(&self.roots.ids());
        digest.add(&self.write_back);
    }

    /// The copies that can be matched.
    pub(crate) fn residents(&self) -> impl Iterator<Item = (RootId, &Cell, Tier, u32)> {
        self.cells().filter(|(_, cell)| self.is_live(cell.root)).flat_map(|(_, cell)| {
            Tier::BOTH.into_iter().filter_map(move |tier| match cell.residency(tier) {
                Residency::Valid(page) => Some((cell.root, cell, tier, page)),
                _ => None,
            })
        })
    }
}
