//! Which members have yet to report what they hold, which requests depend on that, and what a report may
//! bring.
//!
//! A key is decided before all members have reported only if its object was put in this epoch: its
//! generation is greater than any of an earlier epoch. A copy from an earlier epoch decides nothing, because
//! the missing member may have a newer one.
//!
//! **Invariant:** a report never brings back an object that is older than one that left the catalog since
//! the master started. The name's *floor* is the least generation that is still accepted. That also holds for
//! members that were given up, up to [`FLOORS_MAX`](super::floors::FLOORS_MAX) names.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::floors::Floors;
use crate::master::{
    Notice,
    catalog::{NamespaceIndex, NodeIndex},
    context::Context,
    members::{Member, Standing},
    pending_retires::Name,
};
use crate::{
    Generation, Key, Location, SlotRef,
    message::{ClientToMaster, CommitItem, Decide, NodeInfo, OnExists, PutOptions, Usage},
    mutant::is_mutant,
};

/// How long a request without a wait time of its own waits for reports.
const REPORT_WAIT_MS: u64 = 5_000;
/// Maximum number of members that a message names.
const NAMED_MAX: usize = 8;

/// See the module.
#[derive(Debug, Default)]
pub(in crate::master) struct Reports {
    /// Members that have not reported yet.
    awaited: BTreeSet<NodeIndex>,
    /// Members that were given up before they had reported. They may still bring older objects.
    unreported: BTreeSet<NodeIndex>,
    /// A member has reported, was given up or is lost, so deferred requests may continue.
    has_change: bool,
    pub(in crate::master) floors: Floors,
}

impl Reports {
    /// Whether all members have reported, or are not waited for any more.
    pub(in crate::master) fn are_complete(&self) -> bool {
        self.awaited.is_empty()
    }

    /// Whether no member may bring an object of an earlier epoch, and no floor is remembered.
    pub(in crate::master) fn are_over(&self) -> bool {
        self.are_complete() && self.unreported.is_empty() && self.floors.is_empty()
    }

    /// Adds a member that must report.
    pub(in crate::master) fn expect(
        &mut self,
        cx: &mut Context,
        info: NodeInfo,
        owed: BTreeSet<SlotRef>,
        is_recorded: bool,
    ) {
        let mut member = Member::new(info, Usage::default(), cx.now);
        member.standing = Standing::Away(cx.now);
        (member.from_earlier_epoch, member.is_recorded, member.owed) = (true, is_recorded, owed);
        self.awaited.extend(cx.members.insert(member));
    }

    /// These members have not reported everything: the master waits for them again.
    pub(in crate::master) fn expect_again(&mut self, nodes: impl IntoIterator<Item = NodeIndex>) {
        self.awaited.extend(nodes);
    }

    /// Emits a notice with the members that the master waits for.
    pub(in crate::master) fn note_awaited(&self, cx: &mut Context) {
        if !self.are_complete() {
            cx.notice(Notice::AwaitingReports(self.names(cx)));
        }
    }

    /// A member has reported, was given up or is lost. Deferred requests continue after this event.
    pub(in crate::master) fn end(&mut self, cx: &mut Context, node: NodeIndex) {
        self.note_change();
        self.unreported.remove(&node);
        if self.awaited.remove(&node) && self.are_complete() {
            cx.notice(Notice::AllReported);
        }
    }

    /// A member is not waited for any more, and has not reported.
    pub(in crate::master) fn give_up(&mut self, cx: &mut Context, node: NodeIndex) {
        self.end(cx, node);
        self.unreported.insert(node);
    }

    /// Deferred requests may continue after this event.
    pub(in crate::master) fn note_change(&mut self) {
        self.has_change = true;
    }

    /// Whether deferred requests may continue since this was last asked.
    pub(in crate::master) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.has_change)
    }

    /// An object is removed: a report must bring back neither it nor an older one.
    pub(in crate::master) fn raise_floor_above(
        &mut self,
        cx: &Context,
        name: &Arc<Name>,
        removed: Generation,
    ) {
        self.raise_floor(cx, name, Generation { counter: removed.counter + 1, ..removed });
    }

    /// The last known copy of an object is lost. A report may bring back another copy of it, but no older
    /// object.
    pub(in crate::master) fn raise_floor(&mut self, cx: &Context, name: &Arc<Name>, least: Generation) {
        if is_mutant!(cx.config.mutant, ForgetFloors) {
            return;
        }
        if !self.are_complete() {
            self.floors.raise(name, least);
        } else if !self.unreported.is_empty() && self.floors.has_space_for_two() {
            // A member that may never return must not stop evictions, so some floors may be missing then.
            self.floors.raise(name, least);
        }
    }

    /// Forgets the floors that no report can be compared with any more.
    pub(in crate::master) fn forget_floors(&mut self) {
        if self.are_complete() && self.unreported.is_empty() {
            self.floors = Floors::default();
        } else if self.are_complete() {
            self.floors.make_space();
        }
    }

    /// How long a client's request waits for reports, if it depends on any.
    pub(in crate::master) fn wait_ms(
        &self,
        cx: &Context,
        namespace: NamespaceIndex,
        request: &ClientToMaster,
    ) -> Option<u64> {
        if self.are_complete() || is_answered(cx) {
            return None;
        }
        let undecided = |key: &Key| is_undecided(cx, namespace, key);
        let any = |mut keys: &mut dyn Iterator<Item = &Key>| Iterator::any(&mut keys, undecided);
        let (depends, wait_ms) = match request {
            ClientToMaster::Resolve(it) => (any(&mut it.keys.iter()), it.report_wait_ms),
            ClientToMaster::Exists(it) => {
                let keys = it.keys.iter().filter_map(|key| Key::new(key).ok());
                (keys.into_iter().any(|key| undecided(&key)), it.report_wait_ms)
            }
            ClientToMaster::Lease(it) => (any(&mut it.items.iter().map(|it| &it.key)), it.report_wait_ms),
            ClientToMaster::Ack(it) => (any(&mut it.items.iter().map(|it| &it.key)), it.wait_ms),
            ClientToMaster::Pin(it) => (any(&mut it.keys.iter()), it.wait_ms),
            ClientToMaster::Prefetch(it) => (any(&mut it.keys.iter()), it.wait_ms),
            ClientToMaster::Why(it) => {
                let wait_ms = if it.report_wait_ms == 0 { REPORT_WAIT_MS } else { it.report_wait_ms };
                (any(&mut it.keys.iter()), wait_ms)
            }
            ClientToMaster::Reserve(it) => {
                let items = it.items.iter().filter(|it| depends_on_others(cx, &it.options));
                (it.spare == 0 && any(&mut items.map(|it| &it.key)), it.report_wait_ms)
            }
            ClientToMaster::Publish(it) => {
                let items = it.items.iter().map(|it| &it.item);
                let items = items.filter(|it| depends_on_others(cx, &it.options));
                (any(&mut items.map(|it| &it.key)), it.wait_ms)
            }
            ClientToMaster::List(it) => (true, it.report_wait_ms),
            ClientToMaster::Delete(it) => (true, it.wait_ms),
            ClientToMaster::DeleteMatching(it) => (true, it.wait_ms),
            ClientToMaster::DropPins(it) => (true, it.wait_ms),
            ClientToMaster::Await(it) => (true, it.wait_ms),
            ClientToMaster::Pull(it) => (true, it.wait_ms),
            ClientToMaster::EndStream(it) => (true, it.wait_ms),
            ClientToMaster::OpenStream(_) => (true, REPORT_WAIT_MS),
            ClientToMaster::Stat
            | ClientToMaster::Ping(_)
            | ClientToMaster::SetPolicy(_)
            | ClientToMaster::ForgetNode(_)
            | ClientToMaster::AdmitCluster(_)
            | ClientToMaster::Release(_)
            | ClientToMaster::KeepLeases(_)
            | ClientToMaster::Cancel(_) => (false, 0),
        };
        depends.then_some(wait_ms)
    }

    /// Whether any object of a node's request cannot be decided yet.
    pub(in crate::master) fn are_needed_for(&self, cx: &Context, home: NodeIndex, decide: &Decide) -> bool {
        let is_undecidable =
            decide.items.iter().any(|it| self.is_undecidable(cx, home, &it.namespace, &it.item));
        is_undecidable && !is_answered(cx)
    }

    /// Whether the name of a written object cannot be decided yet. An earlier epoch may have named a copy
    /// on an unreported member, and its reply may have been lost.
    fn is_undecidable(&self, cx: &Context, home: NodeIndex, namespace: &str, item: &CommitItem) -> bool {
        // A home that is joining may have the object in writing, and has yet to tell so.
        let is_joining = cx.members.get(home).is_some_and(|it| it.standing == Standing::Joining);
        let has_not_reported = |it: &Location| {
            let member = cx.members.find(it.segment);
            member.is_some_and(|it| self.awaited.contains(&it) || is_joining && self.may_bring_more(cx, it))
        };
        let namespace = cx.catalog.namespace_index(namespace);
        let is_undecided =
            || !self.are_complete() && namespace.is_none_or(|it| is_undecided(cx, it, &item.key));
        item.others.iter().any(has_not_reported) || depends_on_others(cx, &item.options) && is_undecided()
    }

    /// Whether a member may hold objects of an earlier epoch that this master does not know.
    pub(in crate::master) fn may_bring_more(&self, cx: &Context, node: NodeIndex) -> bool {
        let member = cx.members.get(node);
        self.awaited.contains(&node) || member.is_some_and(Member::is_absent_and_unreported)
    }

    /// The names of the members that have not reported.
    pub(in crate::master) fn names(&self, cx: &Context) -> Vec<String> {
        self.awaited.iter().map(|node| cx.members.name(*node)).collect()
    }

    /// A message for users: the members that the master waits for.
    pub(in crate::master) fn message(&self, cx: &Context) -> String {
        let names = self.names(cx);
        let shown = names.get(..NAMED_MAX).unwrap_or(&names).join(", ");
        let more = match names.len().saturating_sub(NAMED_MAX) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("not all members have reported to the restarted master: waiting for {shown}{more}")
    }
}

/// Whether requests are answered before the reports that they depend on: a mutant.
fn is_answered(cx: &Context) -> bool {
    is_mutant!(cx.config.mutant, AnswerUnreported)
}

/// Whether the outcome of a put depends on the previous object of that name. With several masters that
/// is so for every put: a member that still serves the previous master shows the old object to readers.
fn depends_on_others(cx: &Context, options: &PutOptions) -> bool {
    let is_conditional =
        options.on_exists != OnExists::Replace || !options.stream.is_empty() || options.replaces.is_some();
    is_conditional || cx.config.confirms
}

/// Whether a member that has not reported may hold the newest object of that name.
fn is_undecided(cx: &Context, namespace: NamespaceIndex, key: &Key) -> bool {
    let object = cx.catalog.find(namespace, key).and_then(|it| cx.catalog.get(it));
    object.is_none_or(|it| it.generation().epoch != cx.config.epoch)
}
