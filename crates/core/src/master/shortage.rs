//! Which objects are evicted for a new one on a node: just enough of the one resource that is missing.
//!
//! The master knows the free bytes of a node, and the node reports the maximum length of a further name.
//! The rest is learned by asking: a node that refuses an object names the missing resource and amount. That
//! much is evicted there before the node is asked again.

use super::{
    catalog::{NodeIndex, Object},
    context::Context,
};
use crate::{
    attributes::Attributes,
    message::{Resource, Shortage, Usage},
    mutant::is_mutant,
    space_for,
};

/// Maximum number of eviction rounds for one object on one node. After that the node is skipped.
const ROUNDS_MAX: u32 = 64;
/// Maximum number of refusals without evictions before the node is not asked again.
const REFUSALS_MAX: u32 = 2;
/// From this round on, each round evicts twice as much as the one before.
const EXACT_ROUNDS: u32 = 2;

/// The largest step by which a node's records or names grow.
const GROWTH_BYTES: u64 = 64 << 10;

/// A name is long if it takes more than one part in this many of a node.
const LONG_NAME_SHARE: u64 = 16;

/// How often a node refused an object, and why.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Refused {
    /// Number of refusals since the last eviction for it.
    count: u32,
    /// Number of eviction rounds for it.
    rounds: u32,
    /// The shortage of the last refusal, unless it was freed since.
    shortage: Option<Shortage>,
}

impl Refused {
    /// The node refuses once more.
    pub(super) fn again(&mut self, shortage: Option<Shortage>) {
        self.count += 1;
        self.shortage = shortage;
    }

    /// The shortage is removed, as far as the master can tell.
    pub(super) fn freed(&mut self) {
        (self.count, self.shortage) = (0, None);
        self.rounds += 1;
    }

    /// Whether the node must not be asked any more.
    pub(super) fn is_final(&self) -> bool {
        self.is_for_ever() || self.count >= REFUSALS_MAX || self.rounds >= ROUNDS_MAX
    }

    /// Whether the object would not even fit if the node were empty.
    pub(super) fn is_for_ever(&self) -> bool {
        self.shortage.is_some_and(|it| it.never)
    }
}

/// The resources that an object needs on a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// Bytes of its value, rounded up to the allocation size.
    pub(super) bytes: u64,
    /// Bytes of its name, the namespace's name included.
    pub(super) name_len: u64,
}

/// The amount to free on a node before it is asked again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lack {
    resource: Resource,
    amount: u64,
    /// Freeing this many bytes of values is also sufficient.
    bytes: u64,
}

impl Lack {
    /// The amount to free on a node for an object, in addition to its bytes.
    pub(super) fn on(cx: &Context, node: NodeIndex, refused: Option<&Refused>, need: Demand) -> Self {
        let lack = Self::of(cx.members.get(node).map(|it| it.usage).unwrap_or_default(), refused, need);
        let is_kept = match lack.resource {
            Resource::Bytes | Resource::Share => false,
            Resource::Slots => is_mutant!(cx.config.mutant, KeepSlots),
            Resource::KeySpace => is_mutant!(cx.config.mutant, KeepKeySpace),
            Resource::Contiguous => is_mutant!(cx.config.mutant, KeepPieces),
        };
        if is_kept { Self::default() } else { lack }
    }

    /// The same for a node with that usage.
    fn of(usage: Usage, refused: Option<&Refused>, need: Demand) -> Self {
        if let Some((refused, it)) = refused.and_then(|it| Some((it, it.shortage?))) {
            let doubled = refused.rounds.saturating_sub(EXACT_ROUNDS).min(u64::BITS - 1);
            let times = |amount: u64| amount.saturating_mul(1 << doubled);
            return Self { resource: it.resource, amount: times(it.amount), bytes: times(it.bytes) };
        }
        let name_max = usage.name_max.unwrap_or(u64::MAX);
        let bytes = need.bytes.saturating_add(need.name_len).saturating_add(GROWTH_BYTES);
        match name_max {
            max if need.name_len <= max => Self::default(),
            // The node recalls offers, which have records and name space, before it refuses.
            _ if usage.offered > 0 => Self::default(),
            // The node can tell whether the name would ever fit, so nothing is evicted needlessly.
            _ if need.name_len > usage.capacity / LONG_NAME_SHARE => Self::default(),
            0 => Self { resource: Resource::Slots, amount: 1, bytes },
            _ => Self { resource: Resource::KeySpace, amount: need.name_len, bytes },
        }
    }

    pub(super) fn resource(&self) -> Resource {
        self.resource
    }

    pub(super) fn is_met(&self) -> bool {
        self.amount == 0 || self.bytes == 0
    }

    /// Counts an evicted object.
    pub(super) fn count(&mut self, object: &Object, namespace_len: usize) {
        let space = space_for(object.len()).unwrap_or(0);
        self.bytes = self.bytes.saturating_sub(space);
        let freed = match self.resource {
            Resource::Bytes | Resource::Contiguous | Resource::Share => space,
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
