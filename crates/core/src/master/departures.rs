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

use super::{
    Departure, Effect, Notice, Objects,
    catalog::{NodeIndex, Object, ObjectIndex},
    members::{Member, Standing},
    objects::departing::Departing,
};
use crate::{
    ConnId, RequestId,
    attributes::Attributes,
    message::{Cause, Decide, Forgotten, Reply},
    mutant::is_mutant,
};

/// Maximum number of objects of other members that one piece scans, per object that it may remove. Such an
/// object costs a few nanoseconds.
pub(super) const SCAN_FACTOR: usize = 64;

/// A member is lost or has left: nothing waits for it, and its objects are removed. The operator's
/// request is answered at the end. Returns the version of the saved state without the member.
pub(super) fn lose_member(
    o: &mut Objects,
    node: NodeIndex,
    how: Departure,
    asked: Option<(ConnId, RequestId)>,
) -> u64 {
    let Some(mut member) = o.cx.members.leave(node) else { return o.cx.erase(None) };
    if is_mutant!(o.cx.config.mutant, ReuseIndex) {
        o.cx.members.release(node);
    }
    let (segment, name) = (member.info.segment, member.info.name.clone());
    let owed = [&mut member.owed, &mut member.given_up, &mut member.announced, &mut member.sent_owed];
    let owed = owed.map(std::mem::take).into();
    // It may have been absent, with objects that are not removed yet.
    let removed = o.departures.all.remove(&node).map_or(0, |it| it.removed);
    o.cx.notice(Notice::Departs(name.clone(), how));
    o.cx.held_retires.forget(node);
    o.cx.release_retires(node);
    let version = o.cx.erase(Some(member));
    o.tier.repairs.members_changed(&o.cx);
    o.reports.end(&mut o.cx, node);
    let (next, kept) = (Some(0), 0);
    begin(o, node, Departing { how, segment, name, next, removed, kept, owed, asked, version });
    version
}

/// A member has been away for too long. Its unprotected objects are removed, and it owes their retires.
/// If it has not reported since the master started, the master no longer waits for it.
pub(super) fn give_up_member(o: &mut Objects, node: NodeIndex) {
    let Some(member) = o.cx.members.get_mut(node) else { return };
    member.standing = Standing::Absent;
    let (segment, name) = (member.info.segment, member.info.name.clone());
    let how = Departure::Absent;
    o.cx.notice(Notice::Departs(name.clone(), how));
    o.tier.repairs.members_changed(&o.cx);
    match o.cx.members.get(node).is_some_and(Member::is_absent_and_unreported) {
        true => o.reports.give_up(&mut o.cx, node),
        false => o.reports.end(&mut o.cx, node),
    }
    let (next, removed, kept, owed, version) = (Some(0), 0, 0, Vec::new(), 0);
    begin(o, node, Departing { how, segment, name, next, removed, kept, owed, asked: None, version });
}

/// A small departure ends at once, unless others are in progress: one event may begin many.
fn begin(o: &mut Objects, node: NodeIndex, departing: Departing) {
    o.departures.all.insert(node, departing);
    if o.departures.all.len() == 1 {
        depart_piece(o, node);
    }
}

/// Does one piece of a departure, if there is any. Departures take turns.
pub(super) fn depart(o: &mut Objects) {
    if let Some(node) = o.departures.next() {
        depart_piece(o, node);
    }
}

/// Removes what an object has on departing members.
pub(super) fn remove_departed(o: &mut Objects, index: ObjectIndex) {
    if o.departures.is_empty() || is_mutant!(o.cx.config.mutant, FindDeparted) {
        return;
    }
    let object = o.cx.catalog.get(index);
    let homes = object.into_iter().flat_map(|it| it.replicas()).map(|it| it.0);
    let homes: Vec<_> = homes.filter(|it| o.departures.all.contains_key(it)).collect();
    homes.into_iter().for_each(|node| _ = depart_copy(o, index, node));
}

/// The same for the objects that a node's request names.
pub(super) fn remove_decided(o: &mut Objects, decide: &Decide) {
    if o.departures.is_empty() {
        return;
    }
    for it in &decide.items {
        let namespace = o.cx.catalog.namespace_index(&it.namespace);
        let index = namespace.and_then(|namespace| o.cx.catalog.find(namespace, &it.item.key));
        index.into_iter().for_each(|index| remove_departed(o, index));
    }
}

/// Whether an object is about to be removed with its departing members.
pub(super) fn is_departed(o: &Objects, object: &Object) -> bool {
    if o.departures.is_empty() {
        return false;
    }
    let protected = object.attributes().is_some_and(Attributes::protect);
    let departs = |node| {
        let departing = o.departures.all.get(&node);
        departing.is_some_and(|it| it.how != Departure::Absent || !protected)
    };
    object.homes().all(departs)
}

fn depart_piece(o: &mut Objects, node: NodeIndex) {
    let max = o.cx.config.piece_objects_max.max(1);
    let Some(departing) = o.departures.all.get(&node) else { return };
    let how = departing.how;
    if let Some(first) = departing.next {
        let scan = max.saturating_mul(SCAN_FACTOR);
        let (found, next) = o.cx.catalog.page_on(node, first, max, scan);
        let kept = found.into_iter().map(|index| u64::from(!depart_copy(o, index, node))).sum::<u64>();
        let Some(departing) = o.departures.all.get_mut(&node) else { return };
        departing.kept += kept;
        departing.next = Some(next).filter(|next| *next > 0);
        if departing.next.is_some() {
            return;
        }
    }
    let is_over = how == Departure::Absent || {
        let rest = [
            o.cx.quotas.end_grants_on(node, max),
            o.cx.pending_retires.forget(node, max),
            o.departures.forget_owed(node, max),
        ];
        rest == [true; 3]
    };
    if is_over {
        end_departure(o, node);
    }
}

/// Removes the copy of an object on a departing member. `false` if it is protected and stays.
fn depart_copy(o: &mut Objects, index: ObjectIndex, node: NodeIndex) -> bool {
    let Some(departing) = o.departures.all.get(&node) else { return false };
    if departing.how != Departure::Absent {
        o.lose_copy(index, node, Cause::NodeLost);
    } else {
        let object = o.cx.catalog.get(index);
        let protected = object.and_then(Object::attributes).is_some_and(Attributes::protect);
        if protected && !is_mutant!(o.cx.config.mutant, GiveUpProtected) {
            return false;
        }
        let given_up = o.withdraw_copy(index, node);
        o.cx.members.get_mut(node).into_iter().for_each(|it| it.given_up.extend(given_up));
    }
    let is_gone = o.cx.catalog.get(index).is_none();
    let departing = o.departures.all.get_mut(&node);
    departing.into_iter().for_each(|it| it.removed += u64::from(is_gone));
    true
}

fn end_departure(o: &mut Objects, node: NodeIndex) {
    let Some(departing) = o.departures.all.remove(&node) else { return };
    let Departing { how, name, removed, kept, asked, version, .. } = departing;
    // Its registration may wait.
    o.reports.note_change();
    let ended = match how {
        Departure::Absent => {
            if is_mutant!(o.cx.config.mutant, ForgetTheAbsent) {
                o.cx.pending_retires.forget(node, usize::MAX);
            }
            return o.cx.notice(Notice::NodeAbsent { node: name, removed, kept });
        }
        Departure::Lost => Notice::NodeLost(name, removed),
        Departure::Left => Notice::NodeLeft(name, removed),
    };
    o.cx.held_retires.forget(node);
    o.tier.forget_member(&mut o.cx, node);
    o.cx.members.release(node);
    o.cx.notice(ended);
    o.tier.repairs.members_changed(&o.cx);
    if let Some((conn, id)) = asked.filter(|(conn, _)| o.cx.connections.is_open(*conn)) {
        let reply = Reply::Forgotten(Forgotten { members: 1, objects: removed });
        o.cx.when_saved(version, Effect::Reply(conn, id, reply));
    }
}

/// Checks that everything refers to members, or to those that are departing.
pub(super) fn check(o: &Objects) -> Result<(), String> {
    let members = &o.cx.members;
    let is_known = |node: NodeIndex| members.get(node).is_some() || members.is_leaving(node);
    let mut unknown = None;
    o.cx.catalog.page(0, usize::MAX, |_, object| {
        unknown = object.replicas().map(|it| it.0).find(|node| !is_known(*node));
        unknown.is_none()
    });
    let others = o.cx.quotas.granting().chain(o.cx.pending_retires.nodes());
    if let Some(node) = unknown.or_else(|| others.into_iter().find(|node| !is_known(*node))) {
        return Err(format!("departures: no member has {node:?}, which is still referred to"));
    }
    for (node, it) in &o.departures.all {
        let standing = members.get(*node).map(|it| it.standing);
        let expected = (it.how == Departure::Absent).then_some(Standing::Absent);
        if standing != expected || members.is_leaving(*node) != expected.is_none() {
            return Err(format!("departures: {it:?} is {standing:?}"));
        }
    }
    Ok(())
}
