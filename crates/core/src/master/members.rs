//! The members (nodes and disks), their state, and the retires that they owe.
//!
//! A member is *ready* when everything it holds is in the catalog; *silent* while its connection stands but
//! it says nothing; *away* once its connection is closed; *absent* when it has been away for longer than the
//! policy allows. Time never loses a member.
//!
//! **Invariant:** a retire that a member has not confirmed is repeated before the member is used again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::catalog::{NodeIndex, ObjectIndex};
use crate::{
    ConnId, Generation, SegmentId, SlotRef, Tick,
    message::{NodeInfo, NodeStat, Usage, Viewer},
};

/// Members that the operator declared lost, and that are remembered as such.
pub(super) const FORGOTTEN_MAX: usize = 1 << 12;

/// How a node is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is telling what it holds.
    Joining,
    /// It can be read from and written to.
    Ready,
    /// It is connected and does not answer.
    Silent,
    /// Its connection is closed, since then.
    Away(Tick),
    /// It has been away for longer than the policy allows.
    Absent,
}

/// One node.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) info: NodeInfo,
    pub(super) standing: Standing,
    pub(super) conn: Option<ConnId>,
    /// The connection on which it registered last, open or closed.
    pub(super) registered_on: Option<ConnId>,
    /// What it is told through that arrives, whatever becomes of the master.
    pub(super) is_on_same_host: bool,
    pub(super) heard: Tick,
    pub(super) usage: Usage,
    /// What is free as far as the master can tell: what the node said last, less what was asked for since.
    /// Offers are free, because the node recalls them where that much is asked for.
    pub(super) free: u64,
    /// Who looks at what is gone, as it last said.
    pub(super) viewers: Vec<Viewer>,
    /// Retires that it was asked for and has not confirmed yet.
    pub(super) retiring: BTreeSet<SlotRef>,
    /// Retires that it must apply before it is used again, and has not been told on this connection.
    pub(super) owed: BTreeSet<SlotRef>,
    /// Copies that were given up because it was absent for long: it retires them too. Nobody removed these
    /// objects, so after a restart of the master they may count again.
    pub(super) given_up: BTreeSet<SlotRef>,
    /// Retires that it was told when it registered or announced: it has applied them when it says more.
    pub(super) told_owed: BTreeSet<SlotRef>,
    /// What was published there, and it has not confirmed: it is told again when it registers.
    pub(super) unheard: BTreeMap<SlotRef, (ObjectIndex, Generation)>,
    /// How much was entrusted to it since it was last asked to look, in bytes.
    pub(super) ledger_bytes: usize,
    /// When it may be asked to look again.
    pub(super) looks_from: Tick,
    /// It had been declared lost, so it must retire everything before it is used again.
    pub(super) discard: bool,
    /// While it is joining: it has said something since it was told that it is registered.
    pub(super) announces: bool,
    /// While it is joining: the objects it told of.
    pub(super) told: BTreeSet<SlotRef>,
    /// While it is joining: it has told of everything.
    pub(super) has_told_all: bool,
    /// It belonged to an earlier life of the master, so what it holds may be news.
    pub(super) from_earlier_life: bool,
    /// It is in the roster.
    pub(super) is_recorded: bool,
}

/// All nodes.
#[derive(Debug, Default)]
pub(super) struct Members {
    members: Vec<Option<Member>>,
    by_segment: BTreeMap<SegmentId, NodeIndex>,
    /// Members that the operator declared lost: if they return, they start empty.
    forgotten: VecDeque<SegmentId>,
    has_disks: bool,
}

impl Member {
    /// A member that is about to tell what it holds.
    pub(super) fn new(info: NodeInfo, usage: Usage, now: Tick) -> Self {
        Self {
            info,
            standing: Standing::Joining,
            conn: None,
            registered_on: None,
            is_on_same_host: false,
            heard: now,
            free: usage.free,
            usage,
            viewers: Vec::new(),
            retiring: BTreeSet::new(),
            owed: BTreeSet::new(),
            given_up: BTreeSet::new(),
            told_owed: BTreeSet::new(),
            unheard: BTreeMap::new(),
            ledger_bytes: 0,
            looks_from: Tick(0),
            discard: false,
            announces: false,
            told: BTreeSet::new(),
            has_told_all: false,
            from_earlier_life: false,
            is_recorded: false,
        }
    }

    /// The next retires to tell it, at most `count`.
    pub(super) fn tell_owed(&mut self, count: usize) -> Vec<SlotRef> {
        let mut page = Vec::new();
        for slot_refs in [&mut self.owed, &mut self.given_up] {
            while page.len() < count
                && let Some(slot_ref) = slot_refs.pop_first()
            {
                page.push(slot_ref);
            }
        }
        self.told_owed.extend(&page);
        page
    }

    /// Whether it must retire a copy, and was not told so on this connection.
    pub(super) fn owes(&self, slot_ref: SlotRef) -> bool {
        self.owed.contains(&slot_ref) || self.given_up.contains(&slot_ref)
    }

    /// Whether there is more to tell.
    pub(super) fn owes_more(&self) -> bool {
        !self.owed.is_empty() || !self.given_up.is_empty()
    }

    /// Whether it was given up before it had told this master what it holds.
    pub(super) fn is_absent_and_unreported(&self) -> bool {
        self.standing == Standing::Absent && self.from_earlier_life
    }

    /// Whether it is not memory.
    pub(super) fn is_disk(&self) -> bool {
        self.info.beside.is_some()
    }

    pub(super) fn readable(&self) -> bool {
        // What a joining node holds from before is as good as ever: only new objects must wait.
        matches!(self.standing, Standing::Ready | Standing::Joining)
    }

    pub(super) fn stat(&self) -> NodeStat {
        NodeStat {
            info: self.info.clone(),
            alive: self.standing == Standing::Ready,
            usage: self.usage,
            owed: (self.owed.len() + self.given_up.len() + self.told_owed.len()) as u64,
            holders: Vec::new(),
        }
    }

    /// A reservation became an object: the node need not say so for the books to be right.
    pub(super) fn count_commit(&mut self, space: u64) {
        self.usage.granted = self.usage.granted.saturating_sub(space);
        self.usage.committed += space;
        self.usage.objects += 1;
    }

    /// An offer was claimed and written. What the node said last may know that already, so `free` stays as
    /// it is: where it is too much, the node refuses and says how much there is.
    pub(super) fn count_claim(&mut self, space: u64) {
        self.usage.offered = self.usage.offered.saturating_sub(space);
        self.usage.free = self.usage.free.saturating_sub(space);
        self.usage.granted += space;
    }

    /// What is free and offered to nobody.
    pub(super) fn unoffered(&self) -> u64 {
        self.free.min(self.usage.free).saturating_sub(self.usage.offered)
    }

    pub(super) fn report(&mut self, now: Tick, usage: Usage) {
        self.usage = usage;
        if usage.held == 0 {
            self.viewers.clear();
        }
        self.free = usage.free;
        self.heard = now;
    }
}

impl Members {
    /// The operator declares a member lost. Only so many are remembered: a process that starts again is a new
    /// member.
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

    /// A member that had been declared lost has discarded what it held.
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

    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeIndex, &Member)> {
        let numbered = self.members.iter().enumerate();
        numbered.filter_map(|(index, member)| Some((NodeIndex(index as u16), member.as_ref()?)))
    }

    /// Every disk whose memory is known, and that memory.
    pub(super) fn disks(&self) -> impl Iterator<Item = (NodeIndex, NodeIndex)> + '_ {
        let beside = |(disk, it): (NodeIndex, &Member)| Some((disk, self.find(it.info.beside?)?));
        self.iter().filter_map(beside)
    }

    /// Whether there is anything but memory.
    pub(super) fn has_disks(&self) -> bool {
        self.has_disks
    }

    /// To be called when a member may have become something else.
    pub(super) fn note_kinds(&mut self) {
        self.has_disks = self.members.iter().flatten().any(Member::is_disk);
    }

    /// The memory beside a disk.
    pub(super) fn beside(&self, disk: NodeIndex) -> Option<NodeIndex> {
        self.find(self.get(disk)?.info.beside?)
    }

    /// How many copies the disks have, as they last said.
    pub(super) fn disk_objects(&self) -> u64 {
        self.iter().filter(|(_, it)| it.is_disk()).map(|(_, it)| it.usage.objects).sum()
    }

    pub(super) fn name(&self, node: NodeIndex) -> String {
        self.get(node).map_or_else(|| "a lost node".to_owned(), |it| it.info.name.clone())
    }

    /// Adds a node. `None` if there are as many as there can be.
    pub(super) fn insert(&mut self, member: Member) -> Option<NodeIndex> {
        let free = self.members.iter().position(Option::is_none).unwrap_or(self.members.len());
        let index = NodeIndex(u16::try_from(free).ok()?);
        self.by_segment.insert(member.info.segment, index);
        if free == self.members.len() {
            self.members.push(None);
        }
        *self.members.get_mut(free)? = Some(member);
        self.note_kinds();
        Some(index)
    }

    /// Forgets a node. The catalog must have forgotten its replicas before.
    pub(super) fn remove(&mut self, node: NodeIndex) -> Option<Member> {
        let member = self.members.get_mut(node.0 as usize).and_then(Option::take)?;
        self.by_segment.remove(&member.info.segment);
        self.note_kinds();
        Some(member)
    }
}
