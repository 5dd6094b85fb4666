//! The invariants that are checked after every event, in addition to the engine's own checks.

use std::collections::BTreeSet;

use tiffin_kv::{ChainHash, Effect, Engine, Input, Medium, OpId, PageId, SpaceId, Tier, WritePolicy};

use crate::oracle::of_rank;
use crate::world::{Checked, Violation, World};

/// State of an engine before an input: pages are evicted only as needed (O5), and under write-back only after
/// they are saved.
pub(crate) struct Before {
    pages: [(u64, u64, u64); 2],
    lost_unsaved: u64,
    /// The copies that can be matched, for write-back.
    residents: BTreeSet<(Tier, SpaceId, ChainHash)>,
}

impl Before {
    pub(crate) fn of(engine: &Engine, write: WritePolicy) -> Self {
        let pages = Tier::BOTH.map(|tier| {
            let (taken, evicted) = engine.allocation_counts(tier);
            (taken, evicted, u64::from(engine.pages(tier).free))
        });
        let lost_unsaved = engine.stats().lost_unsaved;
        Self { pages, lost_unsaved, residents: residents(engine, write) }
    }

    pub(crate) fn check(&self, engine: &Engine) -> Checked {
        for (tier, (taken, evicted, free)) in Tier::BOTH.into_iter().zip(self.pages) {
            let (taken_now, evicted_now) = engine.allocation_counts(tier);
            let (more, gone) = (taken_now - taken, evicted_now - evicted);
            if gone > more.saturating_sub(free) {
                let what =
                    format!("{gone} copies were evicted from {tier:?} for {more} pages, with {free} free");
                return Err(Violation::new("O5", what));
            }
        }
        Ok(())
    }
}

fn residents(engine: &Engine, write: WritePolicy) -> BTreeSet<(Tier, SpaceId, ChainHash)> {
    let copies = engine.residents().filter(|_| write == WritePolicy::Back);
    copies.map(|copy| (copy.page.tier, copy.space, copy.hash)).collect()
}

impl World {
    /// Under write-back, a page that has left the device is in the host, or was there, or could not be saved
    /// and was counted.
    pub(crate) fn check_written_back(&self, before: &Before, input: &Input, effects: &[Effect]) -> Checked {
        let write = self.plan.config.write;
        let Some(rank) = self.ranks.first() else { return Ok(()) };
        if write != WritePolicy::Back || matches!(input, Input::Clear(_) | Input::Define(..)) {
            return Ok(());
        }
        let after = residents(&rank.engine, write);
        let was_lost = |space, hash| match input {
            Input::Vanished(of, Medium::Tier(Tier::Device), hashes) => *of == space && hashes.contains(&hash),
            _ => false,
        };
        let is_kept = |space, hash| {
            let key = self.roots.get(space as usize).and_then(|root| self.oracle.key(0, *root, hash));
            self.was_saved.contains(&(SpaceId(space), hash))
                || effects.contains(&Effect::Stored(Tier::Host, SpaceId(space), hash))
                || key.is_some_and(|key| self.was_stored.contains(&key))
        };
        let has_left = |(tier, space, hash): &&(Tier, SpaceId, ChainHash)| {
            *tier == Tier::Device
                && !after.contains(&(*tier, *space, *hash))
                && !was_lost(*space, *hash)
                && !is_kept(space.0, *hash)
        };
        let gone: Vec<_> = before.residents.iter().filter(has_left).collect();
        let counted = rank.engine.stats().lost_unsaved - before.lost_unsaved;
        if gone.len() as u64 > counted {
            let what = format!("{gone:?} left the device, {counted} of them counted as lost");
            return Err(Violation::new("O4", what));
        }
        Ok(())
    }

    /// Checks all invariants, on every rank.
    pub(crate) fn check(&mut self) -> Checked {
        for rank in &self.ranks {
            rank.engine.check().map_err(|violation| Violation::new(violation.invariant, violation.what))?;
        }
        let digests: Vec<_> = self.ranks.iter().map(|rank| rank.engine.digest()).collect();
        if digests.windows(2).any(|pair| pair.first() != pair.last()) {
            return Err(Violation::new("C1", "the digests of the ranks differ"));
        }
        self.check_residents()?;
        self.check_tables()?;
        self.check_store()
    }

    /// Every copy that can be matched has the content of its name (V1, V2, O1, O3), and pages that the engine
    /// records as stored were stored.
    fn check_residents(&self) -> Checked {
        for rank in &self.ranks {
            for copy in rank.engine.residents() {
                let Some(content) = self.oracle.of_hash(copy.hash) else {
                    return Err(Violation::new("K3", format!("no prompt has the page {:?}", copy.hash)));
                };
                let found = rank.executor.memory(copy.page);
                if found != of_rank(content, rank.executor.rank) {
                    return Err(Violation::new("content", format!("{copy:?} contains {found:x}")));
                }
                let root = self.roots.get(copy.space.0 as usize).copied().unwrap_or_default();
                let key = || self.oracle.key(rank.executor.rank, root, copy.hash);
                if copy.is_stored && !key().is_some_and(|key| self.was_stored.contains(&key)) {
                    return Err(Violation::new("V2", format!("{copy:?} was never stored")));
                }
            }
        }
        Ok(())
    }

    /// Every page that a request computes with has the right content: an error here would be wrong output.
    pub(crate) fn check_tables(&self) -> Checked {
        let page_tokens = self.plan.config.page_tokens;
        for (id, client) in &self.clients {
            let Some(table) = &client.table else { continue };
            let computed = (client.computed / page_tokens) as usize;
            for (position, (index, content)) in table.iter().zip(&client.contents).enumerate().take(computed)
            {
                for rank in &self.ranks {
                    let found = rank.executor.memory(PageId { tier: Tier::Device, index: *index });
                    if found != of_rank(*content, rank.executor.rank) {
                        let what = format!(
                            "{id:?} computes on page {index} at {position}, which contains {found:x}"
                        );
                        return Err(Violation::new("content", what));
                    }
                }
            }
        }
        Ok(())
    }

    fn check_store(&self) -> Checked {
        for (key, (_, found)) in &self.store {
            if self.oracle.of_key(*key) != Some(*found) {
                return Err(Violation::new(
                    "K1",
                    format!("the store has {found:x} under a key of another page"),
                ));
            }
        }
        Ok(())
    }

    /// An operation whose completion all ranks have received has ended (L9).
    pub(crate) fn check_ended(&self, ops: &[OpId]) -> Checked {
        let is_live = |op: &&OpId| self.ranks.iter().any(|rank| rank.engine.is_live(**op));
        match ops.iter().find(is_live) {
            Some(op) => {
                Err(Violation::new("L9", format!("{op:?} has ended on every rank, but not in the engine")))
            }
            None => Ok(()),
        }
    }

    /// After the last fault everything ends: no request, operation or used page is left.
    pub(crate) fn check_finished(&self) -> Checked {
        for rank in &self.ranks {
            let engine = &rank.engine;
            let (requests, ops) = (engine.request_count(), engine.op_count());
            if requests > 0 || ops > 0 {
                return Err(Violation::new(
                    "liveness",
                    format!("{requests} requests and {ops} operations are left"),
                ));
            }
            for tier in Tier::BOTH {
                let pages = engine.pages(tier);
                if pages.free + pages.indexed != pages.total() {
                    return Err(Violation::new("liveness", format!("{tier:?} is at rest with {pages:?}")));
                }
            }
        }
        Ok(())
    }
}
