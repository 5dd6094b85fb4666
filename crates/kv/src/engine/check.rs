//! Verification of the invariants, and a digest of the replicated state.

use std::collections::BTreeMap;

use super::requests::Requests;
use super::violation::{Violation, broken};
use super::{Engine, Inventory, Ledger, ReqId, Slot, source_tier, target_tier};
use crate::cell::Stored;
use crate::digest::Digest;
use crate::hash::ChainHash;
use crate::inventory::Uses;
use crate::message::{PageId, SpaceId, Tier};
use crate::pool::PageState;

/// A copy that can be matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// The namespace.
    pub space: SpaceId,
    /// Which page of which prefix.
    pub hash: ChainHash,
    /// Its position in its prefix.
    pub position: u32,
    /// Where its bytes are.
    pub page: PageId,
    /// Whether the store is believed to have it.
    pub is_stored: bool,
}

impl Engine {
    /// Verifies the invariants. It reads the whole state, so it is for tests.
    ///
    /// # Errors
    /// The first invariant that is violated.
    pub fn check(&self) -> Result<(), Violation> {
        let uses = uses(&self.ledger, &self.requests)?;
        let name = |(invariant, what)| Violation { invariant, what };
        self.inventory.check(&uses).map_err(name)?;
        self.ledger.check().map_err(name)?;
        check_private(&self.inventory, &self.requests)?;
        check_waits(&self.ledger, &self.requests)?;
        self.requests.check(self.now, self.config.page_tokens)
    }

    /// A digest of the replicated state: equal inputs give equal digests.
    #[must_use]
    pub fn digest(&self) -> u128 {
        let mut digest = Digest::default();
        self.inventory.digest(&mut digest);
        for op in self.ledger.iter() {
            digest.add(&(op.id, op.kind, op.space, op.root, op.cut, op.deadline, op.is_abandoned));
            digest.add(&(&op.waiters, &op.votes));
            for item in &op.items {
                digest.add(&item.record);
            }
        }
        self.requests.digest(&mut digest);
        digest.add(&(&self.spaces, &self.writes, &self.pressures, self.cooldown));
        digest.finish()
    }

    /// Every copy that can be matched.
    pub fn residents(&self) -> impl Iterator<Item = Resident> {
        self.inventory.residents().filter_map(|(root, cell, tier, index)| {
            let (space, _) = self.spaces.of_root(&self.inventory, root)?;
            let page = PageId { tier, index };
            let is_stored = cell.stored == Stored::Yes;
            Some(Resident { space, hash: cell.hash, position: cell.position, page, is_stored })
        })
    }
}

/// The uses of copies by operations and requests.
fn uses(ledger: &Ledger, requests: &Requests) -> Result<Uses, Violation> {
    let mut uses = Uses::default();
    for op in ledger.iter() {
        for cell in op.items.iter().filter_map(|item| item.cell) {
            if let Some(tier) = source_tier(op.kind) {
                *uses.pins.entry((cell, tier)).or_default() += 1;
            }
            if let Some(tier) = target_tier(op.kind)
                && let Some(other) = uses.pending.insert((cell, tier), op.id)
            {
                broken("L7", format!("{other:?} and {:?} both bring {cell:?} to {tier:?}", op.id))?;
            }
        }
    }
    for slot in requests.values().flat_map(|request| &request.slots) {
        if let Slot::Shared(cell, _) = slot {
            *uses.holds.entry((*cell, Tier::Device)).or_default() += 1;
        }
    }
    Ok(uses)
}

/// Checks that every private page belongs to one request.
fn check_private(inventory: &Inventory, requests: &Requests) -> Result<(), Violation> {
    let mut owners = BTreeMap::new();
    for (id, request) in requests.iter() {
        for slot in &request.slots {
            if let Slot::Private(page) = slot
                && let Some(other) = owners.insert(*page, *id)
            {
                broken("O2", format!("page {page} belongs to {other:?} and {id:?}"))?;
            }
        }
    }
    for (page, state) in (0..).zip(inventory.pool(Tier::Device).states()) {
        let owner = match state {
            PageState::Private(owner) => Some(owner),
            _ => None,
        };
        if owner != owners.get(&page) {
            broken("O2", format!("page {page} is {state:?}, {:?} has it", owners.get(&page)))?;
        }
    }
    Ok(())
}

/// Checks that requests and the operations they wait for know each other (L7).
fn check_waits(ledger: &Ledger, requests: &Requests) -> Result<(), Violation> {
    for (id, request) in requests.iter() {
        for op in &request.waits {
            if !ledger.find(*op).is_some_and(|live| live.waiters.contains(id)) {
                broken("L7", format!("{id:?} waits for {op:?}, which does not know of it"))?;
            }
        }
    }
    for op in ledger.iter() {
        let knows = |id: &ReqId| requests.find(*id).is_some_and(|it| it.waits.contains(&op.id));
        if !op.waiters.iter().all(knows) {
            broken("L7", format!("{:?} has waiters that do not know of it", op.id))?;
        }
    }
    Ok(())
}
