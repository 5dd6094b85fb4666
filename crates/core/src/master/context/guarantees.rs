//! Guaranteed minimums: memory that other namespaces leave to one that does not use it yet.
//!
//! Every node keeps a part of each minimum, in proportion to its memory. What the namespace does not use of
//! that part stays free: puts, promotions and new copies of other namespaces do not take it, and do not evict
//! its objects for more. So the minimum can be had although other namespaces pin, view or reserve all they
//! have. No memory is taken back: a minimum that is set while others use the memory is reached as their puts
//! evict more than they need. The master plans for that with what it knows; each node has the last word.
//!
//! **Invariant:** without a guaranteed minimum, nothing here costs more than one comparison.

use super::Context;
use crate::{
    master::{
        catalog::{Eviction, NamespaceIndex, NodeIndex, Scope},
        connections::Caller,
        members::Standing,
        refuse,
    },
    message::{Guarantee, PolicyChange, Reason, Reply},
    mutant::is_mutant,
};

/// Maximum number of namespaces with a guaranteed minimum: every put looks at each of them.
pub(in crate::master) const GUARANTEES_MAX: usize = 64;

/// Memory on a node that an object of this namespace must leave free, because others have a right to it.
pub(in crate::master) fn kept_from(cx: &Context, namespace: NamespaceIndex, node: NodeIndex) -> u64 {
    if cx.quotas.guaranteed().is_empty() || is_mutant!(cx.config.mutant, TakeGuaranteed) {
        return 0;
    }
    let others = cx.quotas.guaranteed().keys().filter(|it| **it != namespace);
    let held = |it: NamespaceIndex| cx.members.get(node).map_or(0, |member| member.held(it));
    let used = |it: NamespaceIndex| used_on(cx, it, node).saturating_add(held(it));
    let unused = |it: &NamespaceIndex| part_of(cx, *it, node).saturating_sub(used(*it));
    others.map(unused).fold(0, u64::saturating_add)
}

/// Free memory on a node that an object of this namespace may take.
pub(in crate::master) fn left_on(cx: &Context, node: NodeIndex, namespace: NamespaceIndex) -> Option<u64> {
    Some(cx.members.get(node)?.free.saturating_sub(kept_from(cx, namespace, node)))
}

/// Free memory that there must be on a node before an object of `bytes` bytes goes there. Where too little
/// is kept, an object takes the place of twice as many bytes, and no more: one put must not evict a
/// whole node.
pub(in crate::master) fn free_needed(
    cx: &Context,
    node: NodeIndex,
    namespace: NamespaceIndex,
    bytes: u64,
    free: u64,
) -> u64 {
    let most = bytes.max(free.saturating_add(bytes.saturating_mul(2)));
    bytes.saturating_add(kept_from(cx, namespace, node)).min(most)
}

/// What a node must know to keep its part of every minimum: the namespace that memory is for, if it has a
/// minimum, and the parts.
pub(in crate::master) fn at_node(
    cx: &Context,
    node: NodeIndex,
    namespace: NamespaceIndex,
) -> (String, Vec<Guarantee>) {
    let all = cx.quotas.guaranteed();
    let name = |it: NamespaceIndex| cx.catalog.namespace_name(it).to_owned();
    let of = if all.contains_key(&namespace) { name(namespace) } else { String::new() };
    let part = |it: &NamespaceIndex| Guarantee { namespace: name(*it), bytes: part_of(cx, *it, node) };
    (of, all.keys().map(part).collect())
}

/// Whether a client may reserve that much more. The others must get memory, too, if it stops. Without a
/// guaranteed minimum nothing says that the memory is shared, and one client may reserve all of it.
pub(in crate::master) fn is_within_share(cx: &Context, caller: &Caller, space: u64) -> bool {
    if cx.quotas.guaranteed().is_empty() {
        return true;
    }
    let memory = cx.members.iter().filter(|(_, it)| it.standing == Standing::Ready && !it.is_disk());
    let capacity = memory.map(|(_, it)| it.usage.capacity).fold(0, u64::saturating_add);
    let token = caller.token.filter(|_| !is_mutant!(cx.config.mutant, ShareOfEachClient));
    cx.quotas.is_within_share((caller.client, token), space, capacity)
        || is_mutant!(cx.config.mutant, ReserveEverything)
}

/// Whether objects of other namespaces must not be evicted there for one of this namespace: those that
/// use no more than their part. For each of the others with a minimum: how much may leave.
pub(in crate::master) fn spared_from(cx: &Context, namespace: NamespaceIndex, node: NodeIndex) -> Spared {
    if cx.quotas.guaranteed().is_empty() || is_mutant!(cx.config.mutant, EvictGuaranteed) {
        return Spared::default();
    }
    let others = cx.quotas.guaranteed().keys().filter(|it| **it != namespace);
    let above = |it: &NamespaceIndex| (*it, used_on(cx, *it, node).saturating_sub(part_of(cx, *it, node)));
    Spared(others.map(above).collect())
}

/// Upper bound of the bytes that eviction for a namespace could free on a node.
pub(in crate::master) fn evictable_for(
    cx: &Context,
    node: NodeIndex,
    rules: Eviction,
    spared: &Spared,
) -> u64 {
    let all = cx.catalog.evictable(Scope::Node(node), cx.now, rules);
    let excess = spared.0.iter().map(|(namespace, above)| {
        let scope = Scope::NamespaceOn(*namespace, node);
        cx.catalog.evictable(scope, cx.now, rules).saturating_sub(*above)
    });
    all.saturating_sub(excess.fold(0, u64::saturating_add))
}

/// The part of a namespace's minimum that a node keeps. Minimums that exceed all memory shrink. A node that
/// is away gives no memory, so the others keep its part.
fn part_of(cx: &Context, namespace: NamespaceIndex, node: NodeIndex) -> u64 {
    let Some(guaranteed) = cx.quotas.guaranteed().get(&namespace) else { return 0 };
    let ready = cx.members.iter().filter(|(node, it)| cx.is_ready(*node) && !it.is_disk());
    let capacity: u128 = ready.map(|(_, it)| u128::from(it.usage.capacity)).sum();
    let asked: u128 = cx.quotas.guaranteed().values().map(|it| u128::from(*it)).sum();
    let own = cx.members.get(node).map_or(0, |it| it.usage.capacity);
    // The product of two 64-bit sizes fits.
    let part = u128::from(*guaranteed) * u128::from(own) / capacity.max(asked).max(1);
    u64::try_from(part).unwrap_or(u64::MAX)
}

/// Memory of a node that a namespace uses: objects and reservations. Removed objects in view do not count.
fn used_on(cx: &Context, namespace: NamespaceIndex, node: NodeIndex) -> u64 {
    cx.catalog.space_on(namespace, node).saturating_add(cx.quotas.granted_on(namespace, node))
}

/// Memory of removed objects of a namespace that is still viewed or copied, on all nodes.
pub(in crate::master) fn held(cx: &Context, namespace: NamespaceIndex) -> u64 {
    cx.members.iter().map(|(_, it)| it.held(namespace)).fold(0, u64::saturating_add)
}

/// Why a policy may not change like this, if it may not.
pub(in crate::master) fn forbids(
    cx: &mut Context,
    namespace: NamespaceIndex,
    change: &PolicyChange,
) -> Option<Reply> {
    let before = cx.quotas.policy(namespace).cloned().unwrap_or_default();
    let after = before.changed(change);
    let guaranteed = after.guaranteed.filter(|it| *it > 0)?;
    if after.quota.is_some_and(|quota| guaranteed > quota) {
        let problem = "the guaranteed minimum of a namespace exceeds its quota";
        return Some(refuse(Reason::Invalid, problem));
    }
    let others = cx.quotas.guaranteed().iter().filter(|it| *it.0 != namespace);
    if others.clone().count() >= GUARANTEES_MAX {
        cx.limits.guarantees += 1;
        let problem = format!("{GUARANTEES_MAX} namespaces have a guaranteed minimum, which is the limit");
        return Some(refuse(Reason::Busy, &problem));
    }
    let sum = others.map(|it| *it.1).fold(guaranteed, u64::saturating_add);
    let memory = cx.members.iter().filter(|(_, it)| !it.is_disk());
    let capacity = memory.map(|(_, it)| it.usage.capacity).fold(0, u64::saturating_add);
    let is_new = change.guaranteed.is_some() && !change.keep_guaranteed;
    (is_new && sum > capacity).then(|| {
        let problem = format!(
            "the guaranteed minimums of all namespaces would have {sum} bytes together, but the nodes have \
             {capacity}"
        );
        refuse(Reason::Invalid, &problem)
    })
}

/// Namespaces whose objects stay on a node when another namespace needs memory there.
#[derive(Clone, Debug, Default)]
pub(in crate::master) struct Spared(Vec<(NamespaceIndex, u64)>);

impl Spared {
    /// The namespaces none of whose objects may leave.
    pub(in crate::master) fn namespaces(&self) -> impl Iterator<Item = NamespaceIndex> + Clone + '_ {
        self.0.iter().filter(|it| it.1 == 0).map(|it| it.0)
    }

    /// The other namespaces that have a minimum.
    pub(in crate::master) fn all(&self) -> impl Iterator<Item = NamespaceIndex> + '_ {
        self.0.iter().map(|it| it.0)
    }

    /// Whether none of its objects may leave.
    pub(in crate::master) fn has(&self, namespace: NamespaceIndex) -> bool {
        self.namespaces().any(|it| it == namespace)
    }

    /// Whether an object of that size may leave. If not, no other object of its namespace may leave, either.
    pub(in crate::master) fn allows(&mut self, namespace: NamespaceIndex, space: u64) -> bool {
        match self.0.iter_mut().find(|it| it.0 == namespace) {
            Some((_, above)) if *above < space => {
                *above = 0;
                false
            }
            Some(_) | None => true,
        }
    }

    /// An object leaves.
    pub(in crate::master) fn count(&mut self, namespace: NamespaceIndex, space: u64) {
        let found = self.0.iter_mut().find(|it| it.0 == namespace);
        found.into_iter().for_each(|it| it.1 = it.1.saturating_sub(space));
    }
}
