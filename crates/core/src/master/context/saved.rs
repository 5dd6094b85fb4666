//! The state in the master's state folder: its epoch, the id of the cluster, its members and the retires that
//! they owe, and the policies of namespaces.
//!
//! The core requests a write with [`Effect::Persist`]. The shell writes and syncs [`Master::saved`], and
//! reports [`Event::Persisted`]. A later version contains all earlier ones, so the
//! shell may skip versions.
//!
//! **Invariant:** only these messages wait for a sync:
//!
//! - a node's registration, until the node is in the synced roster;
//! - a policy change;
//! - the removal of a member from the roster;
//! - a removal of objects that a node has not confirmed, and the retires of objects whose predecessors are
//!   still to be retired, with the requests for their memory;
//! - a lookup that finds nothing because of such a removal.
//!
//! [`Event::Persisted`]: crate::master::Event::Persisted

use std::collections::VecDeque;

use super::{Context, cluster::Cluster, guarantees};
use crate::{
    ConnId, Key, RequestId, SlotRef,
    master::{
        Effect, Master, Saved, SavedMember, SavedPolicy,
        catalog::{NamespaceIndex, NodeIndex},
        members::Member,
        refuse,
    },
    message::{Policy, PolicyChange, Reason, Reply},
    mutant::is_mutant,
};

/// Maximum number of namespaces that have a policy.
pub const POLICIES_MAX: usize = 1 << 16;

/// An answer that waits until a version is synced.
#[derive(Debug)]
enum UnsavedAnswer {
    /// The reply to a registration. Its retires are determined when the reply is sent.
    Registered(NodeIndex, ConnId, RequestId),
    Effect(Effect),
}

/// The versions that were emitted and synced, and the answers that wait for one.
#[derive(Debug, Default)]
pub(in crate::master) struct Saving {
    version: u64,
    synced: u64,
    held: VecDeque<(u64, UnsavedAnswer)>,
}

impl Saving {
    /// The version that was requested last.
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    /// Whether a version is synced.
    pub(super) fn has_synced(&self, version: u64) -> bool {
        version <= self.synced
    }

    /// A connection is closed: its answers are dropped. So while the state folder cannot be written, only
    /// open connections have answers here.
    pub(in crate::master) fn forget(&mut self, conn: ConnId) {
        self.held.retain(|(_, held)| match held {
            UnsavedAnswer::Registered(_, to, _) => *to != conn,
            UnsavedAnswer::Effect(Effect::Reply(to, ..) | Effect::Ask(to, ..) | Effect::Disconnect(to)) => {
                *to != conn
            }
            UnsavedAnswer::Effect(_) => true,
        });
    }

    /// Number of answers that wait. For tests.
    #[cfg(test)]
    pub(in crate::master) fn held_count(&self) -> usize {
        self.held.len()
    }
}

impl Context {
    /// The state that the state folder should contain now.
    fn saved(&self) -> Saved {
        let recorded = self.members.iter().filter(|(_, it)| it.is_recorded);
        let policies = self.quotas.policies().map(|(namespace, policy)| SavedPolicy {
            namespace: self.catalog.namespace_name(namespace).to_owned(),
            policy: policy.clone(),
        });
        let policies = policies.filter(|_| !is_mutant!(self.config.mutant, ForgetPolicies));
        let clusters = self.cluster.ids();
        let clusters = if is_mutant!(self.config.mutant, ForgetCluster) { &[] } else { clusters };
        Saved {
            epoch: self.config.epoch,
            members: recorded.map(|(_, it)| self.saved_member(it)).collect(),
            policies: policies.collect(),
            forgotten: self.members.forgotten().collect(),
            clusters: clusters.to_vec(),
        }
    }

    fn saved_member(&self, member: &Member) -> SavedMember {
        let forgets_owed = is_mutant!(self.config.mutant, ForgetOwed);
        let owed = member.owed.iter().chain(&member.sent_owed).chain(&member.retiring);
        SavedMember::of(&member.info).owing(owed.filter(|_| !forgets_owed))
    }

    /// The members that are in the master's process, and not in the roster.
    pub(in crate::master) fn members_in_same_process(&self) -> Vec<SavedMember> {
        let is_inside = |it: &&Member| it.conn.is_some_and(|it| self.connections.is_in_same_process(it));
        let inside = self.members.iter().map(|it| it.1).filter(is_inside);
        inside.filter(|it| !it.is_recorded).map(|it| self.saved_member(it)).collect()
    }

    /// Requests a write of the current state, if there is a state folder. Returns the version that contains
    /// it.
    pub(in crate::master) fn save(&mut self) -> u64 {
        if self.config.durable {
            self.saving.version += 1;
            self.effects.push_back(Effect::Persist(self.saving.version));
        }
        self.saving.version
    }

    /// A version is synced, and so are all earlier ones.
    pub(in crate::master) fn persisted(&mut self, version: u64) {
        self.saving.synced = self.saving.synced.max(version);
        while self.saving.held.front().is_some_and(|(at, _)| *at <= self.saving.synced) {
            match self.saving.held.pop_front() {
                Some((_, UnsavedAnswer::Effect(effect))) => self.effects.push_back(effect),
                Some((_, UnsavedAnswer::Registered(node, conn, id))) => {
                    self.answer_registered(node, conn, id)
                }
                None => (),
            }
        }
    }

    /// Emits an effect once that version is synced.
    pub(in crate::master) fn when_saved(&mut self, version: u64, effect: Effect) {
        if version <= self.saving.synced || !self.config.durable {
            return self.reply_confirmed(effect);
        }
        self.saving.held.push_back((version, UnsavedAnswer::Effect(effect)));
    }

    /// Answers once the pending retires of members are synced: the answer promises that they are not
    /// forgotten.
    pub(in crate::master) fn reply_when_saved(&mut self, conn: ConnId, id: RequestId, reply: Reply) {
        let version = self.save();
        self.when_saved(version, Effect::Reply(conn, id, reply));
    }

    /// Clients remove these copies. Their retires are part of the next version.
    pub(in crate::master) fn note_removed(&mut self, copies: &[(NodeIndex, SlotRef)]) {
        if self.config.durable {
            self.pending_retires.note_removed(copies, self.saving.version);
        }
    }

    /// Whether a name is absent because of a removal that is neither confirmed nor saved. If the master died
    /// now, the object would return.
    pub(in crate::master) fn may_return(&self, namespace: NamespaceIndex, key: &Key) -> bool {
        let version = self.pending_retires.removed_after(namespace, key);
        version.is_some_and(|it| self.saving.synced <= it) && !is_mutant!(self.config.mutant, TellUnsaved)
    }

    /// Answers once what was to be saved before is synced. With several masters that write may have begun
    /// before this answer was decided, and confirms nothing: another one does.
    pub(in crate::master) fn reply_when_synced(&mut self, conn: ConnId, id: RequestId, reply: Reply) {
        if self.config.confirms && !is_mutant!(self.config.mutant, AnswerDeposed) {
            return self.reply_when_saved(conn, id, reply);
        }
        self.when_saved(self.saving.version, Effect::Reply(conn, id, reply));
    }

    /// Confirms a registration once the roster that contains the node is synced.
    pub(in crate::master) fn registered_when_saved(&mut self, node: NodeIndex, conn: ConnId, id: RequestId) {
        let is_synced = self.saving.synced >= self.saving.version;
        if is_synced || !self.config.durable || is_mutant!(self.config.mutant, CountUnsaved) {
            return self.answer_registered(node, conn, id);
        }
        self.saving.held.push_back((self.saving.version, UnsavedAnswer::Registered(node, conn, id)));
    }

    /// Adds a member to the roster, unless it is there already.
    pub(in crate::master) fn enroll(&mut self, node: NodeIndex, conn: ConnId) {
        let is_in_same_process = self.connections.is_in_same_process(conn);
        let Some(member) = self.members.get_mut(node) else { return };
        // Memory in the master's own process ends with it, unless it is a pool. One of several masters may be
        // replaced while its process goes on.
        let ends_with_master = is_in_same_process && !self.config.confirms;
        let should = member.is_disk() || member.info.outlives || !ends_with_master;
        if should && !std::mem::replace(&mut member.is_recorded, true) {
            self.save();
        }
    }

    /// Removes a lost member from the roster. Returns the version without it.
    pub(in crate::master) fn erase(&mut self, member: Option<Member>) -> u64 {
        match member {
            Some(member) if member.is_recorded => self.save(),
            _ => self.saving.version,
        }
    }
}

impl Master {
    /// The state that the state folder should contain now.
    #[must_use]
    pub fn saved(&self) -> Saved {
        self.objects.cx.saved()
    }

    /// Restores the saved state of an earlier master. Members that are not in the roster must report, too.
    pub(in crate::master) fn restore(&mut self, saved: Saved, unrecorded: Vec<SavedMember>) {
        let o = &mut self.objects;
        o.cx.cluster = Cluster::new(saved.clusters);
        for saved in saved.policies {
            let namespace = o.cx.catalog.intern(&saved.namespace);
            o.cx.quotas.set_policy(namespace, saved.policy);
        }
        saved.forgotten.into_iter().for_each(|it| o.cx.members.forget(it));
        for member in saved.members {
            if !is_mutant!(o.cx.config.mutant, ForgetRoster) {
                let owed = member.owed_slot_refs();
                o.reports.expect(&mut o.cx, member.info(), owed, true);
            }
        }
        for member in unrecorded {
            let owed = member.owed_slot_refs();
            o.reports.expect(&mut o.cx, member.info(), owed, false);
        }
        o.reports.note_awaited(&mut o.cx);
    }

    pub(in crate::master) fn set_policy(
        &mut self,
        conn: ConnId,
        id: RequestId,
        namespace: NamespaceIndex,
        change: &PolicyChange,
    ) {
        if !self.objects.cx.quotas.may_set_policy(namespace, POLICIES_MAX) {
            let reply =
                refuse(Reason::Busy, "too many namespaces have a policy: reset those that are not needed");
            return self.objects.cx.reply(conn, id, reply);
        }
        if let Some(refusal) = guarantees::forbids(&mut self.objects.cx, namespace, change) {
            return self.objects.cx.reply(conn, id, refusal);
        }
        let before = self.objects.cx.quotas.policy(namespace).cloned().unwrap_or_default();
        let before =
            if is_mutant!(self.objects.cx.config.mutant, ReplacePolicy) { Policy::default() } else { before };
        self.objects.cx.quotas.set_policy(namespace, before.changed(change));
        self.objects.cx.quotas.note_change();
        self.objects.tier.wake();
        self.objects.cx.reply_when_saved(conn, id, Reply::Done);
    }
}
