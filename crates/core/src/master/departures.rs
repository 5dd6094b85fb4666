//! Members whose objects are removed: all objects of a member that is lost or has left, and the unprotected
//! objects of one that has been away for too long.
//!
//! A member may hold millions of objects, and other requests must be served meanwhile. So each piece removes
//! a bounded number of objects, and the others follow in [`Master::work`](super::Master::work). No request
//! sees the difference: what it names is removed before it is handled. A lost member is no member from the
//! first piece on; only its index remains.
//!
//! **Invariant:** another member gets the index of a lost one only after nothing refers to that index.
//!
//! **Invariant:** a member returns only after its departure has ended. Its registration waits.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::{
    Effect, Notice, Objects,
    catalog::{NodeIndex, Object, ObjectIndex},
    members::{Member, Standing},
};
use crate::{
    ConnId, RequestId, SegmentId, SlotRef,
    attributes::Attributes,
    message::{Cause, Decide, Forgotten, Reply},
    sabotage::sabotaged,
};

/// Maximum number of objects of other members that one piece scans, per object that it may remove. Such an
/// object costs a few nanoseconds.
pub(super) const SCAN_FACTOR: usize = 64;

/// Why the objects of a member are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// Its process has ended, or the operator declared it lost.
    Lost,
    /// It said goodbye.
    Left,
    /// It has been away for too long. Its protected objects stay.
    Absent,
}

/// A departure in progress.
#[derive(Debug)]
struct Departing {
    how: Departure,
    segment: SegmentId,
    name: String,
    /// The object at which the next piece begins; `None` after the last one.
    next: Option<u64>,
    /// The objects that were removed with their last copy.
    removed: u64,
    /// The protected objects of an absent member.
    kept: u64,
    /// The retires that a lost member owed.
    owed: Vec<BTreeSet<SlotRef>>,
    /// The operator's request, which is answered at the end.
    asked: Option<(ConnId, RequestId)>,
    /// The version of the saved state without the member.
    version: u64,
}

/// All departures in progress.
#[derive(Debug, Default)]
pub(super) struct Departures {
    all: BTreeMap<NodeIndex, Departing>,
    /// The one that had the last piece.
    last: Option<NodeIndex>,
}

impl Departures {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether a member may not return yet.
    pub(super) fn has(&self, segment: SegmentId) -> bool {
        self.all.values().any(|it| it.segment == segment)
    }

    /// Forgets at most `count` retires that a lost member owed, and returns whether these were all.
    fn forget_owed(&mut self, node: NodeIndex, count: usize) -> bool {
        let Some(departing) = self.all.get_mut(&node) else { return true };
        let mut left = count;
        for slot_refs in &mut departing.owed {
            while left > 0 && slot_refs.pop_first().is_some() {
                left -= 1;
            }
        }
        departing.owed.iter().all(BTreeSet::is_empty)
    }

    /// The one whose turn it is.
    fn next(&mut self) -> Option<NodeIndex> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.all.range((after, Bound::Unbounded)).next().or_else(|| self.all.first_key_value());
        self.last = next.map(|(node, _)| *node);
        self.last
    }
}

impl Objects {
    /// A member is lost or has left: nothing waits for it, and its objects are removed. The operator's
    /// request is answered at the end. Returns the version of the saved state without the member.
    pub(super) fn lose_member(
        &mut self,
        node: NodeIndex,
        how: Departure,
        asked: Option<(ConnId, RequestId)>,
    ) -> u64 {
        let Some(mut member) = self.cx.members.leave(node) else { return self.cx.erase(None) };
        if sabotaged!(self.cx.config.sabotage, ReuseIndex) {
            self.cx.members.release(node);
        }
        let (segment, name) = (member.info.segment, member.info.name.clone());
        let owed = [&mut member.owed, &mut member.given_up, &mut member.told, &mut member.told_owed];
        let owed = owed.map(std::mem::take).into();
        // It may have been absent, with objects that are not removed yet.
        let removed = self.departures.all.remove(&node).map_or(0, |it| it.removed);
        self.cx.notice(Notice::Departs(name.clone(), how));
        self.cx.forget_held_retires(node);
        self.cx.release_retires(node);
        let version = self.cx.erase(Some(member));
        self.tier.members_changed(&self.cx);
        self.reported(node);
        let (next, kept) = (Some(0), 0);
        self.begin(node, Departing { how, segment, name, next, removed, kept, owed, asked, version });
        version
    }

    /// A member has been away for too long. Its unprotected objects are removed, and it owes their retires.
    /// If it has not reported since the master started, the master no longer waits for it.
    pub(super) fn give_up_member(&mut self, node: NodeIndex) {
        let Some(member) = self.cx.members.get_mut(node) else { return };
        member.standing = Standing::Absent;
        let (segment, name) = (member.info.segment, member.info.name.clone());
        let how = Departure::Absent;
        self.cx.notice(Notice::Departs(name.clone(), how));
        self.tier.members_changed(&self.cx);
        match self.cx.members.get(node).is_some_and(Member::is_absent_and_unreported) {
            true => self.give_up_report(node),
            false => self.reported(node),
        }
        let (next, removed, kept, owed, version) = (Some(0), 0, 0, Vec::new(), 0);
        self.begin(node, Departing { how, segment, name, next, removed, kept, owed, asked: None, version });
    }

    /// A small departure ends at once, unless others are in progress: one event may begin many.
    fn begin(&mut self, node: NodeIndex, departing: Departing) {
        self.departures.all.insert(node, departing);
        if self.departures.all.len() == 1 {
            self.depart_piece(node);
        }
    }

    /// Does one piece of a departure, if there is any. Departures take turns.
    pub(super) fn depart(&mut self) {
        if let Some(node) = self.departures.next() {
            self.depart_piece(node);
        }
    }

    /// Removes what an object has on departing members.
    pub(super) fn remove_departed(&mut self, index: ObjectIndex) {
        if self.departures.is_empty() || sabotaged!(self.cx.config.sabotage, FindDeparted) {
            return;
        }
        let object = self.cx.catalog.get(index);
        let homes = object.into_iter().flat_map(|it| it.replicas()).map(|it| it.0);
        let homes: Vec<_> = homes.filter(|it| self.departures.all.contains_key(it)).collect();
        homes.into_iter().for_each(|node| _ = self.depart_copy(index, node));
    }

    /// The same for the objects that a node's request names.
    pub(super) fn remove_decided(&mut self, decide: &Decide) {
        if self.departures.is_empty() {
            return;
        }
        for it in &decide.items {
            let namespace = self.cx.catalog.namespace_index(&it.namespace);
            let index = namespace.and_then(|namespace| self.cx.catalog.find(namespace, &it.item.key));
            index.into_iter().for_each(|index| self.remove_departed(index));
        }
    }

    /// Whether an object is about to be removed with its departing members.
    pub(super) fn is_departed(&self, object: &Object) -> bool {
        if self.departures.is_empty() {
            return false;
        }
        let protected = object.attributes().is_some_and(Attributes::protect);
        let departs = |node| {
            let departing = self.departures.all.get(&node);
            departing.is_some_and(|it| it.how != Departure::Absent || !protected)
        };
        object.homes().all(departs)
    }

    fn depart_piece(&mut self, node: NodeIndex) {
        let max = self.cx.config.piece_objects_max.max(1);
        let Some(departing) = self.departures.all.get(&node) else { return };
        let how = departing.how;
        if let Some(first) = departing.next {
            let scan = max.saturating_mul(SCAN_FACTOR);
            let (found, next) = self.cx.catalog.page_on(node, first, max, scan);
            let kept = found.into_iter().map(|index| u64::from(!self.depart_copy(index, node))).sum::<u64>();
            let Some(departing) = self.departures.all.get_mut(&node) else { return };
            departing.kept += kept;
            departing.next = Some(next).filter(|next| *next > 0);
            if departing.next.is_some() {
                return;
            }
        }
        let is_over = how == Departure::Absent || {
            let rest = [
                self.cx.quotas.end_grants_on(node, max),
                self.cx.pending_retires.forget(node, max),
                self.departures.forget_owed(node, max),
            ];
            rest == [true; 3]
        };
        if is_over {
            self.end_departure(node);
        }
    }

    /// Removes the copy of an object on a departing member. `false` if it is protected and stays.
    fn depart_copy(&mut self, index: ObjectIndex, node: NodeIndex) -> bool {
        let Some(departing) = self.departures.all.get(&node) else { return false };
        if departing.how != Departure::Absent {
            self.lose_copy(index, node, Cause::NodeLost);
        } else {
            let object = self.cx.catalog.get(index);
            let protected = object.and_then(Object::attributes).is_some_and(Attributes::protect);
            if protected && !sabotaged!(self.cx.config.sabotage, GiveUpProtected) {
                return false;
            }
            let given_up = self.withdraw_copy(index, node);
            self.cx.members.get_mut(node).into_iter().for_each(|it| it.given_up.extend(given_up));
        }
        let is_gone = self.cx.catalog.get(index).is_none();
        let departing = self.departures.all.get_mut(&node);
        departing.into_iter().for_each(|it| it.removed += u64::from(is_gone));
        true
    }

    fn end_departure(&mut self, node: NodeIndex) {
        let Some(departing) = self.departures.all.remove(&node) else { return };
        let Departing { how, name, removed, kept, asked, version, .. } = departing;
        // Its registration may wait.
        self.has_new_report = true;
        let ended = match how {
            Departure::Absent => {
                if sabotaged!(self.cx.config.sabotage, ForgetTheAbsent) {
                    self.cx.pending_retires.forget(node, usize::MAX);
                }
                return self.cx.notice(Notice::NodeAbsent { node: name, removed, kept });
            }
            Departure::Lost => Notice::NodeLost(name, removed),
            Departure::Left => Notice::NodeLeft(name, removed),
        };
        self.cx.forget_held_retires(node);
        self.tier.forget_member(&mut self.cx, node);
        self.cx.members.release(node);
        self.cx.notice(ended);
        self.tier.members_changed(&self.cx);
        if let Some((conn, id)) = asked.filter(|(conn, _)| self.cx.connections.is_open(*conn)) {
            let reply = Reply::Forgotten(Forgotten { members: 1, objects: removed });
            self.cx.when_saved(version, Effect::Reply(conn, id, reply));
        }
    }

    /// Checks that everything refers to members, or to those that are departing.
    pub(super) fn check_departures(&self) -> Result<(), String> {
        let members = &self.cx.members;
        let is_known = |node: NodeIndex| members.get(node).is_some() || members.is_leaving(node);
        let mut unknown = None;
        self.cx.catalog.page(0, usize::MAX, |_, object| {
            unknown = object.replicas().map(|it| it.0).find(|node| !is_known(*node));
            unknown.is_none()
        });
        let others = self.cx.quotas.granting().chain(self.cx.pending_retires.nodes());
        if let Some(node) = unknown.or_else(|| others.into_iter().find(|node| !is_known(*node))) {
            return Err(format!("departures: no member has {node:?}, which is still referred to"));
        }
        for (node, it) in &self.departures.all {
            let standing = members.get(*node).map(|it| it.standing);
            let expected = (it.how == Departure::Absent).then_some(Standing::Absent);
            if standing != expected || members.is_leaving(*node) != expected.is_none() {
                return Err(format!("departures: {it:?} is {standing:?}"));
            }
        }
        Ok(())
    }
}
