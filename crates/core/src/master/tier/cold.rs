//! Cold objects: those with a disk copy that may leave memory for promoted ones.

use super::Tier;
use crate::master::{
    EvictionCause,
    catalog::{NamespaceIndex, NodeIndex, ObjectIndex, Scope},
    context::{Context, guarantees},
};
use crate::{Tick, mutant::is_mutant, space_for};

impl Tier {
    /// Frees memory for a promotion. Evicts only objects that have a disk copy and were never read, or not
    /// for a while: a promotion never evicts an object in use. It also spares objects that were promoted
    /// after its own request, so that the promotions of one burst do not evict each other.
    pub(super) fn free_cold_memory(
        &mut self,
        cx: &mut Context,
        node: NodeIndex,
        (namespace, bytes): (NamespaceIndex, u64),
        requested: Tick,
    ) -> bool {
        let mut free = cx.members.get(node).map_or(0, |it| it.free);
        let need = bytes.saturating_add(guarantees::kept_from(cx, namespace, node));
        if free >= need {
            return true;
        }
        // Promotions are a convenience: objects of other namespaces with a minimum never make way for them.
        let spared: Vec<_> = guarantees::spared_from(cx, namespace, node).all().collect();
        let possible = free.saturating_add(cx.catalog.on_disk_space(node)) >= need;
        if !possible {
            return false;
        }
        let times = (requested, cx.now);
        let is_promoted = |it| self.promoted.is_unread(it);
        let scope = Scope::Node(node);
        let (warm_ms, need) = (warm_ms(cx), need - free);
        let victims = cx.catalog.cold_victims(scope, times, warm_ms, need, is_promoted, &spared);
        let Some(victims) = victims else { return false };
        for victim in victims {
            let memory = cx.catalog.get(victim).and_then(|it| space_for(it.len())).unwrap_or(0);
            free += memory;
            self.evict_cold(cx, victim, Some(node));
            self.demotions.spend(node, memory);
        }
        if let Some(member) = cx.members.get_mut(node) {
            member.free = free;
        }
        true
    }

    /// The same for the quota of a namespace.
    pub(super) fn free_cold_quota(
        &mut self,
        cx: &mut Context,
        namespace: NamespaceIndex,
        need: u64,
        requested: Tick,
    ) -> bool {
        let left = cx.quota_left(namespace);
        if left >= need {
            return true;
        }
        let limit = cx.quotas.policy(namespace).and_then(|it| it.quota).unwrap_or(u64::MAX);
        let scope = Scope::Namespace(namespace);
        let (times, is_promoted) = ((requested, cx.now), |it| self.promoted.is_unread(it));
        let (warm_ms, short) = (warm_ms(cx), need - left);
        let victims = cx.catalog.cold_victims(scope, times, warm_ms, short, is_promoted, &[]);
        let Some(victims) = victims.filter(|_| need <= limit) else { return false };
        victims.into_iter().for_each(|victim| self.evict_cold(cx, victim, None));
        cx.quota_left(namespace) >= need
    }

    fn evict_cold(&mut self, cx: &mut Context, victim: ObjectIndex, node: Option<NodeIndex>) {
        cx.count_eviction(victim, EvictionCause::Promotion);
        let is_on_disk = self.leave_memory(cx, victim, node);
        assert!(is_on_disk, "{victim:?} is cold, but has no disk copy");
    }

    /// Whether a promotion need not wait: there is memory, or unread objects can leave it, and no other
    /// limit applies.
    pub(super) fn could_begin(&self, cx: &Context, index: ObjectIndex, node: NodeIndex, need: u64) -> bool {
        let Some(object) = cx.catalog.get(index) else { return false };
        let free = guarantees::left_on(cx, node, object.namespace()).unwrap_or(0);
        let unread = cx.catalog.on_disk_unread_space(node);
        let has_path = super::promote::path(cx, index).is_some_and(|it| it.1 == node);
        has_path
            && !self.promotions.throttle.is_busy(object.len())
            && cx.quota_left(object.namespace()) >= need
            && free.saturating_add(unread) >= need
    }
}

/// How long after it was written, and after it was read, an object is not evicted for a promotion.
fn warm_ms(cx: &Context) -> (u64, u64) {
    let protect_ms = cx.config.tier.protect_ms;
    let written_ms = if is_mutant!(cx.config.mutant, WrittenIsHot) { protect_ms } else { 0 };
    (written_ms, if is_mutant!(cx.config.mutant, PromoteOverHot) { 0 } else { protect_ms })
}
