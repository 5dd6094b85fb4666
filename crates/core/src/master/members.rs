//! The members (nodes and disks), their state, and the retires that they owe.
//!
//! A member is:
//!
//! - *ready* when everything it holds is in the catalog;
//! - *silent* while its connection stands but it sends nothing;
//! - *away* once its connection is closed;
//! - *absent* when it has been away for longer than the policy allows.
//!
//! Time alone never loses a member.
//!
//! **Invariant:** a retire that a member has not confirmed is repeated before the member is used again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::catalog::{NamespaceIndex, NodeIndex, ObjectIndex};
use crate::{
    ConnId, Generation, SegmentId, SlotRef, Tick,
    message::{CommitItem, NodeInfo, NodeStat, Usage, Viewer},
};

/// Maximum number of members that the operator declared lost and the master remembers.
pub(super) const FORGOTTEN_MAX: usize = 1 << 12;

/// The state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is announcing what it holds.
    Joining,
    /// It can be read from and written to.
    Ready,
    /// It is connected and sends nothing.
    Silent,
    /// Its connection has been closed since then.
    Away(Tick),
    /// It has been away for longer than the policy allows.
    Absent,
}

/// One member.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) info: NodeInfo,
    pub(super) standing: Standing,
    pub(super) conn: Option<ConnId>,
    /// The connection on which it registered last, open or closed.
    pub(super) registered_on: Option<ConnId>,
    /// It is on the master's host: messages to it arrive, even if the master ends.
    pub(super) is_on_same_host: bool,
    /// The master can withdraw its copies: see [`Effect::Withdraw`](super::Effect::Withdraw).
    pub(super) can_withdraw: bool,
    pub(super) last_message: Tick,
    pub(super) usage: Usage,
    /// Free memory as the master counts it: the node's last report, less the space requested since. Offers
    /// count as free, because the node recalls them when that space is needed.
    pub(super) free: u64,
    /// The views of retired objects, as last reported.
    pub(super) viewers: Vec<Viewer>,
    /// The memory of retired objects by namespace, as last reported.
    pub(super) held_by: Vec<(NamespaceIndex, u64)>,
    /// Views that it refused since it started, as last reported.
    pub(super) views_refused: u64,
    /// Retires that were sent on this connection and are not confirmed.
    pub(super) retiring: BTreeSet<SlotRef>,
    /// Those of them that the master has withdrawn: no reader validates these copies.
    pub(super) withdrawn: BTreeSet<SlotRef>,
    /// Retires that it must apply before it is used again, and that were not sent on this connection.
    pub(super) owed: BTreeSet<SlotRef>,
    /// Copies that were given up because it was absent for too long: it retires them too. No client removed
    /// these objects, so after a restart of the master they may count again.
    pub(super) given_up: BTreeSet<SlotRef>,
    /// Retires in the replies to its registration and announcements. It has applied them when it sends its
    /// next message.
    pub(super) sent_owed: BTreeSet<SlotRef>,
    /// Publications that it has not confirmed; they are sent again when it registers.
    pub(super) unreceived: BTreeMap<SlotRef, (ObjectIndex, Generation)>,
    /// Bytes in its ledger since it was last asked to read it.
    pub(super) ledger_bytes: usize,
    /// The version of the saved state after which it is told to retire everything that was removed there.
    pub(super) frees_at: u64,
    /// When it may be asked to read the ledger again.
    pub(super) polls_from: Tick,
    /// It was declared lost, so it must retire everything before it is used again.
    pub(super) discard: bool,
    /// While it is joining: it has sent a message since the reply to its registration.
    pub(super) announces: bool,
    /// While it is joining: the copies that it has announced.
    pub(super) announced: BTreeSet<SlotRef>,
    /// While it is joining: the object from which on those are still to be found that it did not announce.
    pub(super) unannounced_from: Option<u64>,
    /// It belonged to an earlier epoch, so it may hold objects that this master does not know.
    pub(super) from_earlier_epoch: bool,
    /// It is in the roster.
    pub(super) is_recorded: bool,
}

/// All members.
#[derive(Debug, Default)]
pub(super) struct Members {
    members: Vec<Option<Member>>,
    by_segment: BTreeMap<SegmentId, NodeIndex>,
    /// The names of members that are gone and whose index is still referred to.
    leaving: BTreeMap<NodeIndex, String>,
    /// Members that the operator declared lost: if they return, they start empty.
    forgotten: VecDeque<SegmentId>,
    has_disks: bool,
    /// A member that was silent speaks again, or one leaves soon.
    has_changed: bool,
}

impl Member {
    /// A member that is about to announce what it holds.
    pub(super) fn new(info: NodeInfo, usage: Usage, now: Tick) -> Self {
        Self {
            info,
            standing: Standing::Joining,
            conn: None,
            registered_on: None,
            is_on_same_host: false,
            can_withdraw: false,
            last_message: now,
            free: usage.free,
            usage,
            viewers: Vec::new(),
            held_by: Vec::new(),
            views_refused: 0,
            retiring: BTreeSet::new(),
            withdrawn: BTreeSet::new(),
            owed: BTreeSet::new(),
            given_up: BTreeSet::new(),
            sent_owed: BTreeSet::new(),
            unreceived: BTreeMap::new(),
            ledger_bytes: 0,
            frees_at: 0,
            polls_from: Tick(0),
            discard: false,
            announces: false,
            announced: BTreeSet::new(),
            unannounced_from: None,
            from_earlier_epoch: false,
            is_recorded: false,
        }
    }

    /// The next retires to send to it, at most `count`.
    pub(super) fn next_owed(&mut self, count: usize) -> Vec<SlotRef> {
        let mut page = Vec::new();
        for slot_refs in [&mut self.owed, &mut self.given_up] {
            while page.len() < count
                && let Some(slot_ref) = slot_refs.pop_first()
            {
                page.push(slot_ref);
            }
        }
        self.sent_owed.extend(&page);
        page
    }

    /// Whether it must retire a copy, and was not sent the retire on this connection.
    pub(super) fn owes(&self, slot_ref: SlotRef) -> bool {
        self.owed.contains(&slot_ref) || self.given_up.contains(&slot_ref)
    }

    /// Whether the retire of a copy is part of the saved state.
    pub(super) fn is_saved(&self, slot_ref: SlotRef) -> bool {
        [&self.owed, &self.sent_owed, &self.retiring].iter().any(|it| it.contains(&slot_ref))
    }

    /// Whether more retires must be sent.
    pub(super) fn owes_more(&self) -> bool {
        !self.owed.is_empty() || !self.given_up.is_empty()
    }

    /// Whether it was given up before it had reported to this master.
    pub(super) fn is_absent_and_unreported(&self) -> bool {
        self.standing == Standing::Absent && self.from_earlier_epoch
    }

    /// Whether it is a disk, and not memory.
    pub(super) fn is_disk(&self) -> bool {
        self.info.beside.is_some()
    }

    /// Memory of removed objects of that namespace, as last reported.
    pub(super) fn held(&self, namespace: NamespaceIndex) -> u64 {
        self.held_by.iter().filter(|it| it.0 == namespace).map(|it| it.1).sum()
    }

    /// Whether it leaves soon, and takes no new objects.
    pub(super) fn is_draining(&self) -> bool {
        self.usage.capacity == 0
    }

    pub(super) fn readable(&self) -> bool {
        // The earlier copies of a joining node are valid: only new objects must wait.
        matches!(self.standing, Standing::Ready | Standing::Joining)
    }

    pub(super) fn stat(&self) -> NodeStat {
        NodeStat {
            info: self.info.clone(),
            alive: self.standing == Standing::Ready,
            usage: self.usage,
            owed: (self.owed.len() + self.given_up.len() + self.sent_owed.len()) as u64,
            holders: Vec::new(),
        }
    }

    /// A reservation became an object. The counters are correct without a report of the node.
    pub(super) fn count_commit(&mut self, space: u64) {
        self.usage.granted = self.usage.granted.saturating_sub(space);
        self.usage.committed += space;
        self.usage.objects += 1;
    }

    /// An offer was claimed and written. The node's last report may include that already, so `free` does
    /// not change. If it is too high, the node refuses and reports the actual value.
    pub(super) fn count_claim(&mut self, space: u64) {
        self.usage.offered = self.usage.offered.saturating_sub(space);
        self.usage.free = self.usage.free.saturating_sub(space);
        self.usage.granted += space;
    }

    /// An object was replaced, and its memory is free when the node has read its ledger, which it does before
    /// it allocates. If the memory is still in view, the node refuses and reports the actual value.
    pub(super) fn count_replaced(&mut self, space: u64) {
        self.usage.committed = self.usage.committed.saturating_sub(space);
        self.usage.objects = self.usage.objects.saturating_sub(1);
        self.usage.free += space;
        self.free += space;
    }

    /// Free memory that is not offered.
    pub(super) fn unoffered(&self) -> u64 {
        self.free.min(self.usage.free).saturating_sub(self.usage.offered)
    }

    pub(super) fn report(&mut self, now: Tick, usage: Usage) {
        self.usage = usage;
        if usage.held == 0 {
            self.held_by.clear();
            self.viewers.clear();
        }
        self.free = usage.free;
        self.last_message = now;
    }
}

impl Members {
    /// The operator declares a member lost. Their number is limited, and the oldest entries are dropped: a
    /// process that starts again is a new member.
    pub(super) fn forget(&mut self, segment: SegmentId) {
        self.forgotten.push_back(segment);
        if self.forgotten.len() > FORGOTTEN_MAX {
            self.forgotten.pop_front();
        }
    }

    pub(super) fn forgotten(&self) -> impl Iterator<Item = SegmentId> + '_ {
        self.forgotten.iter().copied()
    }

    pub(super) fn was_forgotten(&self, segment: SegmentId) -> bool {
        self.forgotten.contains(&segment)
    }

    /// A member that had been declared lost has discarded its objects.
    pub(super) fn has_discarded(&mut self, segment: SegmentId) {
        self.forgotten.retain(|it| *it != segment);
    }

    pub(super) fn get(&self, node: NodeIndex) -> Option<&Member> {
        self.members.get(node.0 as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, node: NodeIndex) -> Option<&mut Member> {
        self.members.get_mut(node.0 as usize)?.as_mut()
    }

    pub(super) fn find(&self, segment: SegmentId) -> Option<NodeIndex> {
        self.by_segment.get(&segment).copied()
    }

    /// The locations of a written object's copies, the home first. Copies on unknown nodes are left out. So
    /// are copies on a node that was lost and has yet to discard everything. It may learn of this copy
    /// before it learns that it must discard, and would then discard this copy too.
    #[inline]
    pub(super) fn copies(&self, home: NodeIndex, item: &CommitItem) -> Vec<(NodeIndex, SlotRef)> {
        let discards = |node| self.get(node).is_some_and(|it| it.discard);
        let mut replicas = vec![(home, item.slot_ref)];
        for location in &item.others {
            if let Some(node) = self.find(location.segment).filter(|it| !discards(*it))
                && !replicas.iter().any(|(has, _)| *has == node)
            {
                replicas.push((node, location.slot_ref()));
            }
        }
        replicas
    }

    /// A joining node may announce before it learns that it has this copy.
    #[inline]
    pub(super) fn expect(&mut self, node: NodeIndex, slot_ref: SlotRef) {
        if let Some(member) = self.get_mut(node).filter(|it| it.standing == Standing::Joining) {
            member.announced.insert(slot_ref);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeIndex, &Member)> {
        let numbered = self.members.iter().enumerate();
        numbered.filter_map(|(index, member)| Some((NodeIndex(index as u16), member.as_ref()?)))
    }

    /// Every disk whose memory is known, and that memory.
    pub(super) fn disks(&self) -> impl Iterator<Item = (NodeIndex, NodeIndex)> + '_ {
        let beside = |(disk, it): (NodeIndex, &Member)| Some((disk, self.find(it.info.beside?)?));
        self.iter().filter_map(beside)
    }

    /// A member that was silent speaks again, or one leaves soon.
    pub(super) fn note_change(&mut self) {
        self.has_changed = true;
    }

    /// Whether that happened since this was last asked.
    pub(super) fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }

    /// Whether there is a disk.
    pub(super) fn has_disks(&self) -> bool {
        self.has_disks
    }

    /// Must be called when the kind of a member may have changed.
    pub(super) fn note_kinds(&mut self) {
        self.has_disks = self.members.iter().flatten().any(Member::is_disk);
    }

    /// The memory of a disk's node.
    pub(super) fn beside(&self, disk: NodeIndex) -> Option<NodeIndex> {
        self.find(self.get(disk)?.info.beside?)
    }

    /// Number of copies on disks, as last reported.
    pub(super) fn disk_objects(&self) -> u64 {
        self.iter().filter(|(_, it)| it.is_disk()).map(|(_, it)| it.usage.objects).sum()
    }

    pub(super) fn name(&self, node: NodeIndex) -> String {
        let name = self.get(node).map(|it| &it.info.name).or_else(|| self.leaving.get(&node));
        name.map_or_else(|| "a lost node".to_owned(), String::clone)
    }

    /// Adds a member. `None` if the maximum number is reached.
    pub(super) fn insert(&mut self, member: Member) -> Option<NodeIndex> {
        let indexes = self.members.iter().enumerate();
        let mut free = indexes.filter(|(_, it)| it.is_none()).map(|(index, _)| index);
        let free = free.find(|index| !self.is_leaving(NodeIndex(*index as u16)));
        let free = free.unwrap_or(self.members.len());
        let index = NodeIndex(u16::try_from(free).ok()?);
        self.by_segment.insert(member.info.segment, index);
        if free == self.members.len() {
            self.members.push(None);
        }
        *self.members.get_mut(free)? = Some(member);
        self.note_kinds();
        Some(index)
    }

    /// Removes a member. Its index stays in use until [`Self::release`].
    pub(super) fn leave(&mut self, node: NodeIndex) -> Option<Member> {
        let member = self.members.get_mut(node.0 as usize).and_then(Option::take)?;
        self.by_segment.remove(&member.info.segment);
        self.leaving.insert(node, member.info.name.clone());
        self.note_kinds();
        Some(member)
    }

    /// Whether a member is gone, and its index still referred to.
    pub(super) fn is_leaving(&self, node: NodeIndex) -> bool {
        self.leaving.contains_key(&node)
    }

    /// Nothing refers to the index of a removed member any more.
    pub(super) fn release(&mut self, node: NodeIndex) {
        self.leaving.remove(&node);
    }
}
