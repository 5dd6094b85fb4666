//! What the master keeps in its state folder: its epoch, its members, and the policies of namespaces.
//!
//! The core says what is to be written ([`Effect::Persist`]); the shell writes and syncs it, and answers with
//! [`Event::Persisted`](super::Event::Persisted). A later version contains all earlier ones, so the shell may
//! skip versions.
//!
//! **Invariant:** a node is told that it is registered only after it is in the synced roster, and a client is
//! told that a policy is set only after that is synced. No other answer waits for the master's disk.

use std::collections::VecDeque;

use super::{
    Context, Effect, Master,
    catalog::{NamespaceIndex, NodeIndex},
    members::Member,
    refuse,
};
use crate::{
    ConnId, RequestId, SegmentId,
    message::{NodeInfo, Policy, PolicyChange, Reason, Reply},
    sabotage::sabotaged,
};

/// Namespaces that may have a policy.
pub const POLICIES_MAX: usize = 1 << 16;

/// What survives a restart of the master.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    /// The epoch of the master that wrote it.
    pub epoch: u64,
    /// The roster: every member that may hold objects.
    pub members: Vec<SavedMember>,
    /// The namespaces that have a policy.
    pub policies: Vec<SavedPolicy>,
}

/// The policy of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedPolicy {
    /// Its name.
    pub namespace: String,
    /// What was set for it.
    pub policy: Policy,
}

/// A member of the roster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SavedMember {
    /// Its memory, or its disk.
    pub segment: SegmentId,
    /// Its name, for people.
    pub name: String,
    /// The machine it runs on.
    pub host: String,
    /// It is a disk, in the node with this memory.
    pub beside: Option<SegmentId>,
    /// Where it listens for other hosts; empty if it does not.
    pub tcp: String,
}

impl SavedMember {
    fn of(info: &NodeInfo) -> Self {
        let NodeInfo { segment, name, host, beside, tcp, .. } = info;
        let (name, host, tcp) = (name.clone(), host.clone(), tcp.clone());
        Self { segment: *segment, name, host, beside: *beside, tcp }
    }

    pub(super) fn info(self) -> NodeInfo {
        let Self { segment, name, host, beside, tcp } = self;
        NodeInfo { segment, name, host, beside, tcp, ..NodeInfo::default() }
    }
}

/// An answer that waits until a version is synced.
#[derive(Debug)]
enum Held {
    /// That a node is registered. What it must retire is determined when the answer is sent.
    Registered(NodeIndex, ConnId, RequestId),
    Effect(Effect),
}

/// Which versions were emitted and synced.
#[derive(Debug, Default)]
pub(super) struct Saving {
    version: u64,
    synced: u64,
    held: VecDeque<(u64, Held)>,
}

impl Saving {
    /// A connection is closed: no answer goes there any more. A state folder that cannot be written for long
    /// holds no more answers than there are connections that wait.
    pub(super) fn forget(&mut self, conn: ConnId) {
        self.held.retain(|(_, held)| match held {
            Held::Registered(_, to, _) => *to != conn,
            Held::Effect(Effect::Reply(to, ..) | Effect::Disconnect(to)) => *to != conn,
            Held::Effect(_) => true,
        });
    }

    /// How many answers wait. For tests.
    #[cfg(test)]
    pub(super) fn held_count(&self) -> usize {
        self.held.len()
    }

    /// The state as it should be in the state folder now.
    fn saved(cx: &Context) -> Saved {
        let recorded = cx.members.iter().filter(|(_, it)| it.is_recorded);
        let policies = cx.room.policies().map(|(namespace, policy)| SavedPolicy {
            namespace: cx.catalog.namespace_name(namespace).to_owned(),
            policy: policy.clone(),
        });
        let policies = policies.filter(|_| !sabotaged!(cx.config.sabotage, ForgetPolicies));
        Saved {
            epoch: cx.config.epoch,
            members: recorded.map(|(_, it)| SavedMember::of(&it.info)).collect(),
            policies: policies.collect(),
        }
    }

    /// Emits the current state, unless nothing is kept; the version that contains it.
    pub(super) fn save(&mut self, cx: &mut Context) -> u64 {
        if cx.config.durable {
            self.version += 1;
            let saved = Box::new(Self::saved(cx));
            cx.effects.push_back(Effect::Persist(self.version, saved));
        }
        self.version
    }

    /// A version is synced, and so are all before it.
    pub(super) fn persisted(&mut self, cx: &mut Context, version: u64) {
        self.synced = self.synced.max(version);
        while self.held.front().is_some_and(|(at, _)| *at <= self.synced) {
            match self.held.pop_front() {
                Some((_, Held::Effect(effect))) => cx.effects.push_back(effect),
                Some((_, Held::Registered(node, conn, id))) => cx.answer_registered(node, conn, id),
                None => (),
            }
        }
    }

    /// Emits an effect once that version is synced.
    pub(super) fn when_saved(&mut self, cx: &mut Context, version: u64, effect: Effect) {
        if version <= self.synced || !cx.config.durable {
            return cx.effects.push_back(effect);
        }
        self.held.push_back((version, Held::Effect(effect)));
    }

    /// Tells a node that it is registered, once the roster that contains it is synced.
    pub(super) fn registered_when_saved(
        &mut self,
        cx: &mut Context,
        node: NodeIndex,
        conn: ConnId,
        id: RequestId,
    ) {
        let is_synced = self.synced >= self.version;
        if is_synced || !cx.config.durable || sabotaged!(cx.config.sabotage, CountUnsaved) {
            return cx.answer_registered(node, conn, id);
        }
        self.held.push_back((self.version, Held::Registered(node, conn, id)));
    }

    /// Writes a member into the roster, unless it is there already.
    pub(super) fn enroll(&mut self, cx: &mut Context, node: NodeIndex, conn: ConnId) {
        let is_inside = cx.connections.is_inside(conn);
        let Some(member) = cx.members.get_mut(node) else { return };
        // Memory in the master's own process ends with it.
        let should = member.is_disk() || !is_inside;
        if should && !std::mem::replace(&mut member.is_recorded, true) {
            self.save(cx);
        }
    }

    /// Takes a member that is gone for good out of the roster; the version without it.
    pub(super) fn erase(&mut self, cx: &mut Context, member: Option<Member>) -> u64 {
        match member {
            Some(member) if member.is_recorded => self.save(cx),
            _ => self.version,
        }
    }
}

impl Master {
    /// The state as it should be in the state folder now.
    #[must_use]
    pub fn saved(&self) -> Saved {
        Saving::saved(&self.objects.cx)
    }

    /// Restores what an earlier master has saved.
    pub(super) fn restore(&mut self, saved: Saved) {
        for saved in saved.policies {
            let namespace = self.objects.cx.catalog.intern(&saved.namespace);
            self.objects.cx.room.set_policy(namespace, saved.policy);
        }
        for member in saved.members {
            if !sabotaged!(self.objects.cx.config.sabotage, ForgetRoster) {
                self.objects.expect_report(member.info());
            }
        }
        self.objects.tell_unreported();
    }

    pub(super) fn set_policy(
        &mut self,
        conn: ConnId,
        id: RequestId,
        namespace: NamespaceIndex,
        change: &PolicyChange,
    ) {
        if !self.objects.cx.room.may_set_policy(namespace, POLICIES_MAX) {
            let reply = refuse(Reason::Busy, "too many namespaces have a policy");
            return self.objects.cx.reply(conn, id, reply);
        }
        let before = self.objects.cx.room.policy(namespace).cloned().unwrap_or_default();
        let before = if sabotaged!(self.objects.cx.config.sabotage, ReplacePolicy) {
            Policy::default()
        } else {
            before
        };
        self.objects.cx.room.set_policy(namespace, before.changed(change));
        self.objects.cx.room.note_change();
        self.objects.tier.wake();
        let version = self.membership.saving.save(&mut self.objects.cx);
        self.membership.saving.when_saved(
            &mut self.objects.cx,
            version,
            Effect::Reply(conn, id, Reply::Done),
        );
    }
}
