//! Which namespaces there are: at most so many, and those that nothing uses are forgotten.
//!
//! A namespace begins with its first client. If there are many, it is forgotten when its last client is gone,
//! unless it has objects, settings, reservations, streams or removals that nodes have not confirmed. Those
//! that become unused later are found by a sweep: every new namespace looks at a few others.
//!
//! **Invariant:** no module has state of a namespace that is forgotten, other than the history of removals.

use super::{
    Master, Objects, QuotaStat,
    catalog::NamespaceIndex,
    context::{Context, guarantees},
    pending_retires::PendingRetire,
};
use crate::{
    access::Namespaces,
    message::{NamespaceStat, Reason, Refusal},
    mutant::is_mutant,
};

/// Number of other namespaces that a new one looks at.
const SWEEP: usize = 2;
/// The same if there are as many as there may be.
const SWEEP_FULL: usize = 64;
/// The parts of all namespaces, of which a token that is limited to namespaces gets all but one.
const PARTS: usize = 8;
/// Maximum number of namespaces in an answer about the cluster.
pub(super) const NAMESPACES_LISTED_MAX: usize = 1 << 12;
/// Total length of the names of owners and clients in such an answer, in bytes. Beyond it, none are listed.
const NAMES_BYTES_MAX: usize = 16 << 20;

impl Master {
    /// The names of all namespaces that a client has used.
    #[must_use]
    pub fn namespaces(&self) -> Vec<String> {
        let catalog = &self.objects.cx.catalog;
        catalog.namespace_indexes().map(|index| catalog.namespace_name(index).to_owned()).collect()
    }

    /// The namespaces that have a quota or use memory.
    #[must_use]
    pub fn quotas(&self) -> Vec<QuotaStat> {
        let cx = &self.objects.cx;
        let stat = |index| QuotaStat {
            namespace: cx.catalog.namespace_name(index).to_owned(),
            requested: cx.quotas.policy(index).and_then(|it| it.quota),
            effective: cx.quota(index),
            used: cx.used(index),
            objects: cx.catalog.namespace(index).map_or(0, |it| it.objects),
        };
        let is_shown = |it: &QuotaStat| it.requested.is_some() || it.used > 0 || it.objects > 0;
        cx.catalog.namespace_indexes().map(stat).filter(is_shown).collect()
    }

    /// Whether a client of that namespace may connect. The shell asks before it reports
    /// [`Event::Opened`](super::Event::Opened), so that the client learns the reason. Requests of the
    /// operator are not limited: a tenant may get a quota before it connects. A token that is limited to
    /// namespaces leaves some for others.
    pub fn admits(&mut self, namespace: &str, of_token: &Namespaces) -> Result<(), Refusal> {
        let catalog = &self.objects.cx.catalog;
        if catalog.namespace_index(namespace).is_some() || may_add(&self.objects.cx, of_token) {
            return Ok(());
        }
        self.objects.sweep_namespaces(SWEEP_FULL);
        if may_add(&self.objects.cx, of_token) || is_mutant!(self.objects.cx.config.mutant, AnyNamespace) {
            return Ok(());
        }
        self.objects.cx.limits.namespaces += 1;
        let max = self.objects.cx.config.limits.namespaces_max;
        let max = if self.objects.cx.catalog.namespace_count() < max { token_max(max) } else { max };
        let message = format!(
            "namespace `{namespace}` cannot be added: there are {max}, which is the limit. One is forgotten \
             when it has no client, object or setting any more"
        );
        Err(Refusal { reason: Reason::Busy, message })
    }
}

/// Whether one more namespace may be added for a token, which may cover only some.
fn may_add(cx: &Context, of_token: &Namespaces) -> bool {
    let (catalog, max) = (&cx.catalog, cx.config.limits.namespaces_max);
    let count = catalog.namespace_count();
    let is_any = of_token.is_all() || is_mutant!(cx.config.mutant, NamespacesOfOneToken);
    // The token covers at most all, so they are compared only if there are many.
    if is_any || count < token_max(max) {
        return count < max;
    }
    let names = catalog.namespace_indexes().map(|it| catalog.namespace_name(it));
    count < max && names.filter(|it| of_token.covers(it)).count() < token_max(max)
}

/// Maximum number of namespaces of one token.
fn token_max(max: usize) -> usize {
    max - max / PARTS
}

impl Objects {
    /// The index of a client's namespace, which may be new.
    pub(super) fn enter_namespace(&mut self, name: &str) -> NamespaceIndex {
        if self.cx.catalog.namespace_index(name).is_none() {
            self.sweep_namespaces(SWEEP);
        }
        self.cx.catalog.intern(name)
    }

    /// Forgets a namespace that nothing uses, if there are more than a few: with it, the reasons of its
    /// removals are lost.
    pub(super) fn forget_unused(&mut self, index: NamespaceIndex) {
        let are_many = self.cx.catalog.namespace_count() > self.cx.config.limits.namespaces_kept;
        if are_many && self.is_unused(index) && !is_mutant!(self.cx.config.mutant, KeepNamespaces) {
            self.cx.catalog.forget_namespace(index);
            self.cx.quotas.forget_namespace(index);
            self.leases.forget_namespace(index);
        }
    }

    /// Looks at the next namespaces in the order of their names, in turn.
    fn sweep_namespaces(&mut self, count: usize) {
        for _ in 0..count.min(self.cx.catalog.namespace_count()) {
            let Some(index) = self.cx.catalog.namespace_after(&self.swept_namespace) else { return };
            self.cx.catalog.namespace_name(index).clone_into(&mut self.swept_namespace);
            self.forget_unused(index);
        }
    }

    fn is_unused(&self, index: NamespaceIndex) -> bool {
        let is_empty = self.cx.catalog.namespace(index).is_some_and(|it| it.objects == 0);
        // A member that has yet to report may bring objects, and the floors of names refer to namespaces.
        is_empty
            && self.reports.are_over()
            && !self.cx.connections.has_clients_in(index)
            && !self.cx.quotas.knows(index)
            && guarantees::held(&self.cx, index) == 0
            && !self.cx.waiting.has_any_in(index)
            && !self.streams.has_any_in(index)
            && self.cx.pending_retires.after(index, &PendingRetire::default()).next().is_none()
    }

    /// The namespaces of an answer about the cluster. If there are too many, those with waiting puts come
    /// first, then those that use most.
    pub(super) fn namespace_stats(&self) -> Vec<NamespaceStat> {
        let catalog = &self.cx.catalog;
        let mut listed: Vec<_> = catalog.namespace_indexes().collect();
        if listed.len() > NAMESPACES_LISTED_MAX && !is_mutant!(self.cx.config.mutant, ListAllNamespaces) {
            let rank = |index: &NamespaceIndex| (self.cx.quotas.queue_len(*index), self.cx.used(*index));
            listed.sort_by_cached_key(|index| std::cmp::Reverse(rank(index)));
            listed.truncate(NAMESPACES_LISTED_MAX);
        }
        let mut holders = self.holders(None);
        let mut bytes = 0;
        let stat = |index| {
            let mut stat = self.namespace_stat_with(index, holders.remove(&index).unwrap_or_default());
            let owners = stat.owners.iter().map(|it| it.owner.len());
            bytes += owners.chain(stat.holders.iter().map(|it| it.who.len())).sum::<usize>();
            if bytes > NAMES_BYTES_MAX {
                (stat.owners, stat.holders) = (Vec::new(), Vec::new());
            }
            stat
        };
        listed.into_iter().map(stat).collect()
    }
}
