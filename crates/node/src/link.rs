//! The node's connection to its master: registration, announcing its objects, and commits that wait for a
//! decision.
//!
//! After a broken connection the node registers again. Then it applies its pending retires, commits published
//! objects, and asks again about everything prepared. Last it announces every committed object, page by page.
//! Only then is it a member.

use std::collections::{BTreeMap, VecDeque};

use tiffin_types::{
    ClusterId, ConnId, RequestId, SlotRef,
    message::{
        Announce, CommitOutcome, Decide, DecideItem, Heartbeat, MemberReply, MemberToMaster, NodeInfo,
        Register, Registered, Released, Replacement, Reply,
    },
    mutant::{Mutant, is_mutant},
};

use super::{
    Effect, Node,
    fetch::Fetches,
    slots::{SlotState, Slots},
};

/// Objects per announcement, so that a large node neither sends a huge frame nor stalls the master.
const ANNOUNCE_ITEMS_MAX: usize = 1024;

/// A commit that waits for the master.
#[derive(Debug)]
pub(super) struct Waiting {
    /// The request of the client; no client waits for what an earlier process of the node had prepared.
    request: Option<(ConnId, RequestId)>,
    /// Known outcomes; `None` for each item that was asked.
    outcomes: Vec<Option<CommitOutcome>>,
    asked: Vec<DecideItem>,
    /// See [`Commit::wait_ms`](tiffin_types::message::Commit::wait_ms).
    wait_ms: u64,
    /// The master was asked, on the current connection.
    is_asked: bool,
    /// It repeats a commit that waits, and waits for that one.
    pub(super) is_repeat: bool,
}

impl Waiting {
    /// Items of a request that the master is not asked about yet.
    pub(super) fn new(
        request: Option<(ConnId, RequestId)>,
        outcomes: Vec<Option<CommitOutcome>>,
        asked: Vec<DecideItem>,
        wait_ms: u64,
    ) -> Self {
        Self { request, outcomes, asked, wait_ms, is_asked: false, is_repeat: false }
    }

    /// Answers the client, if one waits.
    fn answer(self, effects: &mut VecDeque<Effect>) {
        let Some((conn, id)) = self.request else { return };
        let reply = Reply::Committed(self.outcomes.into_iter().flatten().collect());
        effects.push_back(Effect::Reply { conn, id, reply });
    }

    /// Another commit of some of its items has these outcomes.
    fn decide(&mut self, decided: &[DecideItem], outcomes: &[CommitOutcome]) {
        let outcome = |item: &DecideItem| {
            let mut all = decided.iter().zip(outcomes);
            all.find(|(it, _)| *it == item).map(|(_, outcome)| outcome.clone())
        };
        let mut known = self.asked.iter().map(outcome);
        for gap in self.outcomes.iter_mut().filter(|it| it.is_none()) {
            *gap = known.next().flatten();
        }
        self.asked.retain(|it| outcome(it).is_none());
    }
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Broken,
    /// The node has sent its registration.
    Registering(RequestId),
    /// The request of the last announced page, and the slot where the next one begins.
    Announcing(RequestId, Option<usize>),
    Member,
}

/// The state of the link.
#[derive(Debug, Default)]
pub(super) struct Link {
    stage: Stage,
    next_id: u64,
    epoch: u64,
    /// The instance number of the master of that epoch, see [`Registered::instance`].
    instance: u64,
    /// The cluster that the memory belongs to.
    cluster: ClusterId,
    waiting: BTreeMap<RequestId, Waiting>,
    /// Some of these may be repeats.
    has_repeats: bool,
    /// Reservations that end when the master has replied.
    ending: BTreeMap<RequestId, Vec<SlotRef>>,
    mutant: Mutant,
}

impl Link {
    pub(super) fn new(mutant: Mutant) -> Self {
        Self { mutant, ..Self::default() }
    }

    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The master and the cluster that an earlier process of the node belonged to.
    pub(super) fn adopt(&mut self, epoch: u64, instance: u64, cluster: ClusterId) {
        (self.epoch, self.instance, self.cluster) = (epoch, instance, cluster);
    }

    pub(super) fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// New memory belongs to the cluster of its node's disks.
    pub(super) fn join_cluster(&mut self, cluster: ClusterId) {
        self.cluster = self.cluster.known().unwrap_or(cluster);
    }

    pub(super) fn is_member(&self) -> bool {
        matches!(self.stage, Stage::Member)
    }

    /// Sends the master a request whose reply does not matter.
    pub(super) fn notify(&mut self, request: MemberToMaster, effects: &mut VecDeque<Effect>) {
        let id = self.next_id();
        effects.push_back(Effect::AskMaster(id, request));
    }

    /// Informs the master of reservations that are to end, and of the usage.
    pub(super) fn notify_of_ends(&mut self, released: Released, effects: &mut VecDeque<Effect>) {
        let id = self.next_id();
        if !released.slot_refs.is_empty() {
            self.ending.insert(id, released.slot_refs.clone());
        }
        effects.push_back(Effect::AskMaster(id, MemberToMaster::Released(released)));
    }

    fn next_id(&mut self) -> RequestId {
        self.next_id += 1;
        RequestId(self.next_id)
    }

    /// Asks the master about prepared objects: now if the node is registered, otherwise as soon as it is.
    pub(super) fn ask_about(&mut self, slots: &Slots, waiting: Waiting, effects: &mut VecDeque<Effect>) {
        // Before it has registered, the master would not know this node. The items are asked then.
        let may_speak = matches!(self.stage, Stage::Announcing(..) | Stage::Member);
        self.present(slots, waiting, may_speak, effects);
    }

    /// The master has accepted everything that was announced.
    fn join(&mut self, slots: &Slots, effects: &mut VecDeque<Effect>) {
        self.stage = Stage::Member;
        effects.push_back(Effect::Membership(true));
        self.present_unasked(slots, effects);
    }

    /// Asks about items that the master was not asked about yet, or refused to decide.
    fn present_unasked(&mut self, slots: &Slots, effects: &mut VecDeque<Effect>) {
        let unasked = self.waiting.extract_if(.., |_, it| !it.is_asked).collect();
        self.present_all(slots, unasked, effects);
    }

    /// Asks about prepared items again.
    fn ask_again(&mut self, slots: &Slots, effects: &mut VecDeque<Effect>) {
        let waiting = std::mem::take(&mut self.waiting);
        self.present_all(slots, waiting, effects);
    }

    /// Asks about commits, those that repeat others last.
    fn present_all(
        &mut self,
        slots: &Slots,
        waiting: BTreeMap<RequestId, Waiting>,
        effects: &mut VecDeque<Effect>,
    ) {
        let (repeats, first): (Vec<_>, Vec<_>) = waiting.into_values().partition(|it| it.is_repeat);
        first.into_iter().chain(repeats).for_each(|it| self.present(slots, it, true, effects));
    }

    /// Asks about the items that are still valid. Items that were retired meanwhile are removed. A repeated
    /// commit waits for the first one, and has its outcome: asked twice, the master could take the item for a
    /// new put after this node has given it up.
    fn present(
        &mut self,
        slots: &Slots,
        mut waiting: Waiting,
        may_speak: bool,
        effects: &mut VecDeque<Effect>,
    ) {
        waiting.is_repeat = waiting.is_repeat && waiting.asked.iter().any(|it| self.is_deciding(slots, it));
        if waiting.is_repeat {
            let id = self.next_id();
            self.has_repeats = true;
            self.waiting.insert(id, waiting);
            return;
        }
        if waiting.asked.is_empty() {
            return waiting.answer(effects);
        }
        let stands = |item: &DecideItem| {
            matches!(slots.state(item.item.slot_ref), Some(SlotState::Prepared | SlotState::Committed))
        };
        let mut kept = waiting.asked.iter().map(stands).collect::<Vec<_>>().into_iter();
        for gap in waiting.outcomes.iter_mut().filter(|it| it.is_none()) {
            if !kept.next().unwrap_or(false) {
                *gap = Some(CommitOutcome::Removed);
            }
        }
        waiting.asked.retain(stands);
        if waiting.asked.is_empty() {
            return waiting.answer(effects);
        }
        // A published object is already committed here. Until the master knows all objects of this node, it
        // would take the item for a new put.
        let is_committed = |it: &DecideItem| slots.state(it.item.slot_ref) == Some(SlotState::Committed);
        waiting.is_asked = self.is_member() || (may_speak && !waiting.asked.iter().any(is_committed));
        if !waiting.is_asked && may_speak && !is_mutant!(self.mutant, AskTogether) {
            // The master gives up the other objects of the batch if they are announced before it is asked.
            let prepared: Vec<_> = waiting.asked.iter().filter(|it| !is_committed(it)).cloned().collect();
            if !prepared.is_empty() {
                let apart = Waiting::new(None, vec![None; prepared.len()], prepared, waiting.wait_ms);
                self.present(slots, apart, true, effects);
                waiting.is_repeat = true;
                self.has_repeats = true;
            }
        }
        let id = self.next_id();
        if waiting.is_asked {
            let decide = Decide { items: waiting.asked.clone(), wait_ms: waiting.wait_ms };
            effects.push_back(Effect::AskMaster(id, MemberToMaster::Decide(decide)));
        }
        self.waiting.insert(id, waiting);
    }

    /// Announces one page of the committed objects.
    fn announce(&mut self, slots: &Slots, first: usize, effects: &mut VecDeque<Effect>) {
        let (items, next) = slots.inventory(first, ANNOUNCE_ITEMS_MAX);
        let id = self.next_id();
        self.stage = Stage::Announcing(id, next);
        let announce = Announce { items, last: next.is_none() };
        effects.push_back(Effect::AskMaster(id, MemberToMaster::Announce(announce)));
    }

    /// Removes a commit that the master has decided, and what it was asked about.
    fn take(&mut self, id: RequestId) -> Option<(Vec<DecideItem>, Waiting)> {
        let mut waiting = self.waiting.remove(&id)?;
        Some((std::mem::take(&mut waiting.asked), waiting))
    }

    /// The slots are as the master has decided: answers that commit, and those that repeat it.
    fn decided(
        &mut self,
        slots: &Slots,
        (mut waiting, asked): (Waiting, &[DecideItem]),
        decided: &[CommitOutcome],
        effects: &mut VecDeque<Effect>,
    ) {
        let mut outcomes = decided.iter().cloned();
        for gap in waiting.outcomes.iter_mut().filter(|it| it.is_none()) {
            *gap = Some(outcomes.next().unwrap_or(CommitOutcome::Stale));
        }
        waiting.answer(effects);
        if std::mem::take(&mut self.has_repeats) {
            let repeats = self.waiting.extract_if(.., |_, it| it.is_repeat);
            for (_, mut waiting) in repeats.collect::<Vec<_>>() {
                waiting.decide(asked, decided);
                self.present(slots, waiting, true, effects);
            }
        }
    }

    /// Whether the same commit of that client waits for the master.
    pub(super) fn is_deciding(&self, slots: &Slots, item: &DecideItem) -> bool {
        if slots.state(item.item.slot_ref).and_then(SlotState::writer).is_some() {
            // The first commit prepares it.
            return false;
        }
        let mut first = self.waiting.values().filter(|it| !it.is_repeat).flat_map(|it| &it.asked);
        first.any(|it| it == item)
    }
}

impl Node {
    pub(super) fn linked(&mut self, info: NodeInfo) {
        // Memory may be reserved for clients that never connected: the reply, and the hint that they have
        // ended, may have been lost with the old connection. A client that connects later finds its
        // reservation stale, and reserves again.
        for client in self.clients.unreachable_ones() {
            self.release_all(client);
        }
        self.unlinked();
        let id = self.link.next_id();
        self.link.stage = Stage::Registering(id);
        let Link { epoch, instance, cluster, .. } = self.link;
        let register = Register { info, usage: self.slots.usage(), epoch, instance, stamps: 0, cluster };
        self.effects.push_back(Effect::AskMaster(id, MemberToMaster::Register(Box::new(register))));
    }

    pub(super) fn beat(&mut self) {
        if self.link.is_member() {
            let viewers = self.clients.viewers_of(self.slots.held().iter());
            let beat = Heartbeat {
                usage: self.slots.usage(),
                viewers,
                measured: Vec::new(),
                held: self.slots.held().by_namespace(),
                views_refused: self.views_refused,
                limits: Vec::new(),
            };
            self.link.notify(MemberToMaster::Heartbeat(Box::new(beat)), &mut self.effects);
            self.link.present_unasked(&self.slots, &mut self.effects);
        }
    }

    pub(super) fn master_reply(&mut self, id: RequestId, reply: Reply) {
        let Some(reply) = MemberReply::new(reply) else { return };
        match (&self.link.stage, reply) {
            (Stage::Registering(asked), MemberReply::Registered(registered)) if *asked == id => {
                self.registered(registered);
            }
            // It keeps everything it holds.
            (Stage::Registering(asked), MemberReply::Refused(refusal)) if *asked == id => {
                self.link.stage = Stage::Broken;
                self.effects.push_back(Effect::Refused(refusal));
            }
            (Stage::Announcing(asked, next), MemberReply::Announced(announced)) if *asked == id => {
                // If there are more retires, the next page is empty.
                let next = next.or(announced.more.then_some(usize::MAX));
                self.retire_all(announced.retire);
                match next {
                    Some(first) => self.link.announce(&self.slots, first, &mut self.effects),
                    None => self.link.join(&self.slots, &mut self.effects),
                }
            }
            (_, MemberReply::Decided(outcomes)) => self.decided(id, &outcomes),
            // The master is busy: ask again at the next heartbeat. A master that refuses an announcement
            // also closes the connection.
            (_, MemberReply::Refused(_)) => {
                if let Some(waiting) = self.link.waiting.get_mut(&id) {
                    waiting.is_asked = false;
                }
            }
            (_, MemberReply::Done) => {
                let slot_refs = self.link.ending.remove(&id).unwrap_or_default();
                self.ended(&slot_refs);
            }
            // The reply of a request that the node has forgotten since.
            (_, MemberReply::Registered(_) | MemberReply::Announced(_)) => (),
        }
    }

    /// From now on the node does not receive retires.
    pub(super) fn unlinked(&mut self) {
        if self.link.is_member() && !is_mutant!(self.config.mutant, StayMember) {
            self.effects.push_back(Effect::Membership(false));
        }
        self.link.stage = Stage::Broken;
        self.fetches = Fetches::default();
        // These replies are lost.
        self.released.extend(std::mem::take(&mut self.link.ending).into_values().flatten());
    }

    fn registered(&mut self, registered: Registered) {
        if !serves(self.config.mutant, (self.link.epoch, self.link.instance), &registered) {
            self.link.stage = Stage::Broken;
            let (served, offered) = (self.link.epoch, registered.epoch);
            return self.effects.push_back(Effect::RejectMaster { served, offered });
        }
        if self.link.epoch != registered.epoch {
            // Every message of the last epoch about them was received before its connection broke, and this
            // epoch does not know them.
            let slot_refs = std::mem::take(&mut self.released);
            self.ended(&slot_refs);
        }
        (self.link.epoch, self.link.instance) = (registered.epoch, registered.instance);
        self.link.cluster = registered.cluster.known().unwrap_or(self.link.cluster);
        let Link { epoch, instance, cluster, .. } = self.link;
        self.effects.push_back(Effect::Epoch { epoch, instance, cluster });
        self.retire_all(registered.retire);
        self.commit_all(registered.commit);
        if registered.discard {
            let (records, _) = self.slots.inventory(0, usize::MAX);
            self.retire_all(records.into_iter().map(|it| it.slot_ref).collect());
            // Some may have been published before this node was declared lost; no party knows that any
            // more.
            self.slots.hide_reserved(&mut self.effects);
            let offers = self.slots.offers();
            if !offers.is_empty() {
                self.hides_claimed = true;
                self.effects.push_back(Effect::Recall(offers));
            }
        }
        self.link.ask_again(&self.slots, &mut self.effects);
        self.link.announce(&self.slots, 0, &mut self.effects);
    }

    fn decided(&mut self, id: RequestId, decided: &[CommitOutcome]) {
        let Some((asked, waiting)) = self.link.take(id) else { return };
        for (item, outcome) in asked.iter().zip(decided) {
            let slot_ref = item.item.slot_ref;
            match outcome {
                CommitOutcome::Stored(generation)
                | CommitOutcome::Replaced(generation)
                | CommitOutcome::Unconfirmed(Replacement { generation, .. }) => {
                    // It may have been deleted since; then it was stored, and is retired.
                    self.slots.commit(slot_ref, *generation, &mut self.effects);
                }
                CommitOutcome::Exists(_) | CommitOutcome::Stale | CommitOutcome::Removed => {
                    self.slots.retire(slot_ref, &mut self.effects);
                }
            }
        }
        self.link.decided(&self.slots, (waiting, &asked), decided, &mut self.effects);
    }

    /// Retires objects, in whatever state.
    pub(super) fn retire_all(&mut self, slot_refs: Vec<SlotRef>) {
        for slot_ref in slot_refs {
            if let Some(client) = self.slots.state(slot_ref).and_then(SlotState::writer) {
                self.clients.unreserved(client, slot_ref);
            }
            self.slots.retire(slot_ref, &mut self.effects);
        }
    }
}

/// Whether a member that served a master of that epoch and instance may serve this one: the same master
/// again, or one of a greater epoch. Any other master has lost its state, and knows less than the member.
pub(crate) fn serves(mutant: Mutant, (epoch, instance): (u64, u64), registered: &Registered) -> bool {
    let is_same = (epoch, instance) == (registered.epoch, registered.instance);
    let any = is_mutant!(mutant, ServeAnyEpoch) || is_mutant!(mutant, DiscardForOthers);
    is_same || registered.epoch > epoch || any
}
