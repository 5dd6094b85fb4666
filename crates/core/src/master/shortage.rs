//! Which objects are evicted for a new one on a node: as many as it lacks of one resource, and no more.
//!
//! The master knows how many bytes a node has free, and the node reports how long a name it can still take.
//! The rest is learned by asking: a node that refuses an object says what was missing, and that much is
//! evicted there before it is asked again.

use super::{
    Objects,
    catalog::{NodeIndex, Object},
};
use crate::{
    attributes::Attributes,
    extent::space_for,
    message::{Resource, Shortage},
    sabotage::sabotaged,
};

/// A node that goes on to refuse an object after this many evictions for it is passed over.
const ROUNDS_MAX: u32 = 64;
/// How often a node may refuse an object for which nothing was evicted before it is not asked again.
const REFUSALS_MAX: u32 = 2;
/// From this round on, each evicts twice as much as the one before.
const EXACT_ROUNDS: u32 = 2;

/// The longest step by which a node's records or names grow.
const GROWTH_BYTES: u64 = 64 << 10;

/// A name is long that takes more than this part of a node.
const LONG_NAME_SHARE: u64 = 16;

/// How often a node refused an object, and why.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Refused {
    /// Since something was evicted there for it.
    count: u32,
    /// How often something was.
    rounds: u32,
    /// What was missing the last time, unless it was freed since.
    shortage: Option<Shortage>,
}

impl Refused {
    /// The node refuses once more.
    pub(super) fn again(&mut self, shortage: Option<Shortage>) {
        self.count += 1;
        self.shortage = shortage;
    }

    /// What was missing is freed, as far as can be told.
    pub(super) fn freed(&mut self) {
        (self.count, self.shortage) = (0, None);
        self.rounds += 1;
    }

    /// Whether it is not to be asked any more.
    pub(super) fn is_final(&self) -> bool {
        self.is_for_ever() || self.count >= REFUSALS_MAX || self.rounds >= ROUNDS_MAX
    }

    /// Whether the object would not even fit if the node were empty.
    pub(super) fn is_for_ever(&self) -> bool {
        self.shortage.is_some_and(|it| it.never)
    }
}

/// What an object needs on a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Bytes of its value, rounded as they are allocated.
    pub(super) bytes: u64,
    /// Bytes of its name, that of the namespace included.
    pub(super) name_len: u64,
}

/// What must still be freed on a node before it is asked for space for an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lack {
    resource: Resource,
    amount: u64,
    /// So many bytes of values do as well.
    bytes: u64,
}

impl Lack {
    pub(super) fn resource(&self) -> Resource {
        self.resource
    }

    pub(super) fn is_met(&self) -> bool {
        self.amount == 0 || self.bytes == 0
    }

    /// An object is evicted.
    pub(super) fn count(&mut self, object: &Object, namespace_len: usize) {
        let space = space_for(object.len()).unwrap_or(0);
        self.bytes = self.bytes.saturating_sub(space);
        let freed = match self.resource {
            Resource::Bytes | Resource::Contiguous => space,
            Resource::Slots => 1,
            Resource::KeySpace => {
                let attributes = object.attributes().map_or(0, |it: &Attributes| it.to_bytes().len());
                let name = namespace_len + object.key().as_bytes().len();
                [name, attributes].iter().filter_map(|it| space_for(*it as u64)).sum()
            }
        };
        self.amount = self.amount.saturating_sub(freed);
    }
}

impl Objects {
    /// What must be freed on a node for an object, beside what its bytes call for.
    pub(super) fn lack(&self, node: NodeIndex, refused: Option<&Refused>, need: Demand) -> Lack {
        let lack = self.lack_of(node, refused, need);
        let is_kept = match lack.resource {
            Resource::Bytes => false,
            Resource::Slots => sabotaged!(self.cx.config.sabotage, KeepSlots),
            Resource::KeySpace => sabotaged!(self.cx.config.sabotage, KeepKeySpace),
            Resource::Contiguous => sabotaged!(self.cx.config.sabotage, KeepPieces),
        };
        if is_kept { Lack::default() } else { lack }
    }

    fn lack_of(&self, node: NodeIndex, refused: Option<&Refused>, need: Demand) -> Lack {
        if let Some((refused, it)) = refused.and_then(|it| Some((it, it.shortage?))) {
            let doubled = refused.rounds.saturating_sub(EXACT_ROUNDS).min(u64::BITS - 1);
            let times = |amount: u64| amount.saturating_mul(1 << doubled);
            return Lack { resource: it.resource, amount: times(it.amount), bytes: times(it.bytes) };
        }
        let usage = self.cx.members.get(node).map(|it| it.usage).unwrap_or_default();
        let name_max = usage.name_max.unwrap_or(u64::MAX);
        let bytes = need.bytes.saturating_add(need.name_len).saturating_add(GROWTH_BYTES);
        match name_max {
            max if need.name_len <= max => Lack::default(),
            // The node recalls offers, which have records and space for names, before it refuses.
            _ if usage.offered > 0 => Lack::default(),
            // The node can tell whether it would ever fit; then nothing is evicted in vain.
            _ if need.name_len > usage.capacity / LONG_NAME_SHARE => Lack::default(),
            0 => Lack { resource: Resource::Slots, amount: 1, bytes },
            _ => Lack { resource: Resource::KeySpace, amount: need.name_len, bytes },
        }
    }
}
