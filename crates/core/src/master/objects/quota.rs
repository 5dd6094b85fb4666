//! Evictions that keep a namespace within its quota, and the usage of namespaces.

use std::collections::BTreeMap;

use super::Objects;
use crate::{
    Key,
    master::{
        catalog::{Eviction, NamespaceIndex, Scope},
        context::guarantees,
    },
    message::{HOLDERS_MAX, Held, Holder, NamespaceStat, Quota},
    mutant::is_mutant,
};

impl Objects {
    /// Evicts objects of a namespace until it may use `need` more bytes. If that is impossible, evicts
    /// nothing and returns the state of the quota. Objects that also have a disk copy leave first. A put
    /// that may wait waits for a disk, so that no object is lost.
    pub(in crate::master) fn within_quota(
        &mut self,
        namespace: NamespaceIndex,
        need: u64,
        whose: (&str, &Key),
        may_wait: bool,
    ) -> Result<(), Quota> {
        let Some(limit) = self.cx.quota(namespace) else { return Ok(()) };
        if is_mutant!(self.cx.config.mutant, IgnoreQuota) {
            return Ok(());
        }
        let soft_pinned_too = self.cx.config.evict_soft_pinned;
        let rules = Eviction { soft_pinned_too, ..Eviction::default() };
        let lossless = Eviction { on_disk_only: true, ..rules };
        let wanted = self.cx.used(namespace).saturating_add(need);
        let is_possible = wanted <= limit || wanted - limit <= self.evictable_in(namespace);
        if !is_possible && !is_mutant!(self.cx.config.mutant, EvictInVain) {
            return Err(Quota { used: self.cx.used(namespace), limit, need });
        }
        while self.cx.used(namespace).saturating_add(need) > limit {
            let next = |rules| self.cx.catalog.next_victim_of(namespace, self.cx.now, rules);
            let mut victim = next(lossless).filter(|_| need <= limit);
            if victim.is_none() && need <= limit {
                let short = self.cx.used(namespace).saturating_add(need) - limit;
                let waits = may_wait && self.tier.demote_namespace(&mut self.cx, namespace, short);
                let rules = Eviction { demoting_too: true, ..rules };
                victim = self.cx.catalog.next_victim_of(namespace, self.cx.now, rules).filter(|_| !waits);
                victim = victim
                    .or_else(|| self.tier.promoted.next_shielded(&self.cx, |it| it.namespace() == namespace));
            }
            let Some(victim) = victim else {
                return Err(Quota { used: self.cx.used(namespace), limit, need });
            };
            self.evict(victim, None, whose);
        }
        // Demotes ahead of need, so that the next puts find objects to evict.
        if self.cx.used(namespace).saturating_add(need) > limit / 4 * 3 {
            self.tier.demote_namespace(&mut self.cx, namespace, need);
        }
        Ok(())
    }

    /// Upper bound of the bytes that eviction could free in a namespace.
    fn evictable_in(&self, namespace: NamespaceIndex) -> u64 {
        let soft_pinned_too = self.cx.config.evict_soft_pinned;
        let rules = Eviction { soft_pinned_too, demoting_too: true, ..Eviction::default() };
        let unshielded = self.cx.catalog.evictable(Scope::Namespace(namespace), self.cx.now, rules);
        let shielded = self.tier.promoted.shielded_bytes(&self.cx, |it, _| it.namespace() == namespace);
        unshielded.saturating_add(shielded)
    }

    /// The state of the quota, if an object with that charge exceeds it even in an empty namespace.
    pub(in crate::master) fn quota_exceeded_alone(
        &self,
        namespace: NamespaceIndex,
        need: u64,
    ) -> Option<Quota> {
        let limit = self.cx.quota(namespace)?;
        let quota = Quota { used: self.cx.used(namespace), limit, need };
        let is_ignored = is_mutant!(self.cx.config.mutant, IgnoreQuota);
        Some(quota).filter(|it| it.is_never_enough() && !is_ignored)
    }

    pub(in crate::master) fn namespace_stat(&self, index: NamespaceIndex) -> NamespaceStat {
        self.namespace_stat_with(index, self.holders(Some(index)).remove(&index).unwrap_or_default())
    }

    /// The same with the clients that hold its memory.
    pub(in crate::master) fn namespace_stat_with(
        &self,
        index: NamespaceIndex,
        holders: Vec<Holder>,
    ) -> NamespaceStat {
        let Some(namespace) = self.cx.catalog.namespace(index) else { return NamespaceStat::default() };
        let samples = self.leases.stat(&self.cx, index);
        NamespaceStat {
            name: namespace.name.clone(),
            objects: namespace.objects,
            bytes: namespace.bytes,
            used: self.cx.used(index),
            granted: self.cx.quotas.granted(index),
            held: guarantees::held(&self.cx, index),
            quota: self.cx.quotas.policy(index).and_then(|it| it.quota),
            guaranteed: self.cx.quotas.policy(index).and_then(|it| it.guaranteed),
            max_hold_ms: self.cx.quotas.policy(index).and_then(|it| it.max_hold_ms),
            demotion: self.cx.demotion(index),
            samples: samples.count,
            samples_leased: samples.leased,
            sample_age_ms: samples.oldest.map_or(0, |put| self.cx.now.0.saturating_sub(put.0)),
            sample_bytes: samples.bytes,
            sample_bytes_leased: samples.bytes_leased,
            leased_age_ms: samples.oldest_leased.map_or(0, |put| self.cx.now.0.saturating_sub(put.0)),
            samples_expired: samples.expired.0,
            sample_bytes_expired: samples.expired.1,
            waiting: self.cx.quotas.queue_len(index),
            owners: self.cx.catalog.owners(index),
            holders,
        }
    }

    /// The clients that hold memory of one namespace, or of each, so that a leak can be attributed.
    pub(in crate::master) fn holders(
        &self,
        only: Option<NamespaceIndex>,
    ) -> BTreeMap<NamespaceIndex, Vec<Holder>> {
        let mut sums: BTreeMap<_, (u64, u64)> = BTreeMap::new();
        for (namespace, label, sum) in self.leases.held(only) {
            sums.insert((namespace, Held::Leased, label.to_owned()), sum);
        }
        for (namespace, who, (count, bytes)) in self.cx.quotas.held(only) {
            let who = self.cx.connections.label(who);
            let sum = sums.entry((namespace, Held::Reserved, who)).or_default();
            *sum = (sum.0 + count, sum.1.saturating_add(bytes));
        }
        let mut holders: BTreeMap<_, Vec<Holder>> = BTreeMap::new();
        for ((namespace, held, who), (objects, bytes)) in sums {
            holders.entry(namespace).or_default().push(Holder { held, who, objects, bytes });
        }
        for list in holders.values_mut() {
            list.sort_by_key(|it| std::cmp::Reverse(it.bytes));
            list.truncate(HOLDERS_MAX);
        }
        holders
    }
}
