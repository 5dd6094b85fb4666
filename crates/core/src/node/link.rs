//! The node's link to its master: registration, announcing what it holds, and commits that wait for a
//! decision.
//!
//! After a broken link the node registers again, retires what it owes, commits what was published, asks again
//! about everything prepared, and announces every committed object, page by page. Only then is it a member.

use std::collections::BTreeMap;

use super::{Effect, Node, slots::SlotState};
use crate::{
    ConnId, RequestId, SlotRef,
    message::{
        Announce, CommitOutcome, Decide, DecideItem, Heartbeat, MemberToMaster, NodeInfo, Register,
        Registered, Released, Replacement, Reply,
    },
    sabotage::{Sabotage, sabotaged},
};

/// Objects per announcement, so that a large node neither makes a huge frame nor stalls the master.
const ANNOUNCE_ITEMS_MAX: usize = 8192;

/// A commit that waits for the master.
#[derive(Debug)]
struct Waiting {
    conn: ConnId,
    id: RequestId,
    /// Known outcomes; a gap for each item that was asked.
    outcomes: Vec<Option<CommitOutcome>>,
    asked: Vec<DecideItem>,
    /// How long the client lets the master wait.
    wait_ms: u64,
    /// The master was asked, on the link that stands.
    is_asked: bool,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Broken,
    /// The master was asked to take the node in.
    Registering(RequestId),
    /// The page that was announced last, and the slot where the next one begins.
    Announcing(RequestId, Option<usize>),
    Member,
}

/// The state of the link.
#[derive(Debug, Default)]
pub(super) struct Link {
    stage: Stage,
    next_id: u64,
    epoch: u64,
    /// The number of the master of that epoch, see [`Registered::instance`].
    instance: u64,
    waiting: BTreeMap<RequestId, Waiting>,
    /// Reservations that end when the master has answered.
    ending: BTreeMap<RequestId, Vec<SlotRef>>,
}

impl Link {
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn is_member(&self) -> bool {
        matches!(self.stage, Stage::Member)
    }

    /// Tells the master something that needs no answer.
    pub(super) fn tell(&mut self, request: MemberToMaster, effects: &mut std::collections::VecDeque<Effect>) {
        let id = self.next_id();
        effects.push_back(Effect::AskMaster(id, request));
    }

    /// Tells the master of reservations that are to end, and of the room there is.
    pub(super) fn tell_of_ends(
        &mut self,
        released: Released,
        effects: &mut std::collections::VecDeque<Effect>,
    ) {
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
}

impl Node {
    /// Asks the master about prepared objects: now if it listens, else as soon as it does.
    pub(super) fn ask_about(
        &mut self,
        (conn, id): (ConnId, RequestId),
        outcomes: Vec<Option<CommitOutcome>>,
        asked: Vec<DecideItem>,
        wait_ms: u64,
    ) {
        // Before it is registered the master would not know whose objects these are; they are asked then.
        let may_speak = matches!(self.link.stage, Stage::Announcing(..) | Stage::Member);
        self.present(Waiting { conn, id, outcomes, asked, wait_ms, is_asked: false }, may_speak);
    }

    pub(super) fn linked(&mut self, info: NodeInfo) {
        // Room for clients that never came may have been found for nobody: the answer may be lost with the
        // old link, and so may be the hint that they are gone. Whoever comes after all is told so, and asks
        // anew.
        for client in self.clients.unreachable_ones() {
            self.strip(client);
        }
        self.unlinked();
        let id = self.link.next_id();
        self.link.stage = Stage::Registering(id);
        let (epoch, instance) = (self.link.epoch, self.link.instance);
        let register = Register { info, usage: self.slots.usage(), epoch, instance, stamps: 0 };
        self.effects.push_back(Effect::AskMaster(id, MemberToMaster::Register(Box::new(register))));
    }

    pub(super) fn beat(&mut self) {
        if self.link.is_member() {
            let viewers = self.clients.viewers_of(self.slots.retired());
            let beat = Heartbeat { usage: self.slots.usage(), viewers };
            self.link.tell(MemberToMaster::Heartbeat(beat), &mut self.effects);
            self.present_unasked();
        }
    }

    pub(super) fn master_reply(&mut self, id: RequestId, reply: Reply) {
        match (&self.link.stage, reply) {
            (Stage::Registering(asked), Reply::Registered(registered)) if *asked == id => {
                self.registered(registered);
            }
            (Stage::Announcing(asked, next), Reply::Announced(announced)) if *asked == id => {
                // If there is more to retire, the next page is empty.
                let next = next.or(announced.more.then_some(usize::MAX));
                self.retire_all(announced.retire);
                match next {
                    Some(first) => self.announce(first),
                    None => self.taken_in(),
                }
            }
            (_, Reply::Decided(outcomes)) => self.decided(id, outcomes),
            // The master has too much to do: it is asked again at the next beat.
            (_, Reply::Refused(_)) => {
                if let Some(waiting) = self.link.waiting.get_mut(&id) {
                    waiting.is_asked = false;
                }
            }
            (_, Reply::Done) => {
                let slot_refs = self.link.ending.remove(&id).unwrap_or_default();
                self.ended(&slot_refs);
            }
            _ => (),
        }
    }

    /// Nobody tells it of deletes any more.
    pub(super) fn unlinked(&mut self) {
        if self.link.is_member() && !sabotaged!(self.config.sabotage, StayMember) {
            self.effects.push_back(Effect::Membership(false));
        }
        self.link.stage = Stage::Broken;
        // These answers are lost.
        self.released.extend(std::mem::take(&mut self.link.ending).into_values().flatten());
    }

    fn taken_in(&mut self) {
        self.link.stage = Stage::Member;
        self.effects.push_back(Effect::Membership(true));
        self.present_unasked();
    }

    /// Asks about what the master was not asked yet, or refused to decide.
    fn present_unasked(&mut self) {
        let unasked = self.link.waiting.extract_if(.., |_, it| !it.is_asked);
        for (_, waiting) in unasked.collect::<Vec<_>>() {
            self.present(waiting, true);
        }
    }

    fn registered(&mut self, registered: Registered) {
        if !serves(self.config.sabotage, (self.link.epoch, self.link.instance), &registered) {
            self.link.stage = Stage::Broken;
            let (served, offered) = (self.link.epoch, registered.epoch);
            return self.effects.push_back(Effect::RejectMaster { served, offered });
        }
        if self.link.epoch != registered.epoch {
            // What the last life of the master had to say about them was heard before its link broke, and
            // this one does not know of them.
            let slot_refs = std::mem::take(&mut self.released);
            self.ended(&slot_refs);
        }
        (self.link.epoch, self.link.instance) = (registered.epoch, registered.instance);
        self.effects.push_back(Effect::Epoch(registered.epoch));
        self.retire_all(registered.retire);
        self.commit_all(registered.commit);
        if registered.discard {
            let (records, _) = self.slots.inventory(0, usize::MAX);
            self.retire_all(records.into_iter().map(|it| it.slot_ref).collect());
            // Some may have been named before this node was given up, which nobody knows any more.
            self.slots.hide_reserved(&mut self.effects);
            let offers = self.slots.offers();
            if !offers.is_empty() {
                self.hides_claimed = true;
                self.effects.push_back(Effect::Recall(offers));
            }
        }
        self.ask_again();
        self.announce(0);
    }

    /// Presents what is prepared once more.
    fn ask_again(&mut self) {
        for (_, waiting) in std::mem::take(&mut self.link.waiting) {
            self.present(waiting, true);
        }
    }

    /// Asks about what stands of it. What was retired in between needs no answer but that.
    fn present(&mut self, mut waiting: Waiting, may_speak: bool) {
        let stands = |slots: &super::Slots, item: &DecideItem| {
            matches!(slots.state(item.item.slot_ref), Some(SlotState::Prepared | SlotState::Committed))
        };
        let mut kept =
            waiting.asked.iter().map(|item| stands(&self.slots, item)).collect::<Vec<_>>().into_iter();
        for gap in waiting.outcomes.iter_mut().filter(|it| it.is_none()) {
            if !kept.next().unwrap_or(false) {
                *gap = Some(CommitOutcome::Stale);
            }
        }
        waiting.asked.retain(|item| stands(&self.slots, item));
        if waiting.asked.is_empty() {
            return self.answer(waiting);
        }
        // What is committed already, because it was published, the master would take for new, before it
        // knows of everything that is.
        let is_committed = |it: &DecideItem| self.slots.state(it.item.slot_ref) == Some(SlotState::Committed);
        waiting.is_asked = self.link.is_member() || (may_speak && !waiting.asked.iter().any(is_committed));
        let id = self.link.next_id();
        if waiting.is_asked {
            let decide = Decide { items: waiting.asked.clone(), wait_ms: waiting.wait_ms };
            self.effects.push_back(Effect::AskMaster(id, MemberToMaster::Decide(decide)));
        }
        self.link.waiting.insert(id, waiting);
    }

    fn announce(&mut self, first: usize) {
        let (items, next) = self.slots.inventory(first, ANNOUNCE_ITEMS_MAX);
        let id = self.link.next_id();
        self.link.stage = Stage::Announcing(id, next);
        let announce = Announce { items, last: next.is_none() };
        self.effects.push_back(Effect::AskMaster(id, MemberToMaster::Announce(announce)));
    }

    fn decided(&mut self, id: RequestId, decided: Vec<CommitOutcome>) {
        let Some(mut waiting) = self.link.waiting.remove(&id) else { return };
        for (item, outcome) in waiting.asked.drain(..).zip(&decided) {
            let slot_ref = item.item.slot_ref;
            match outcome {
                CommitOutcome::Stored(generation)
                | CommitOutcome::Replaced(generation)
                | CommitOutcome::Unconfirmed(Replacement { generation, .. }) => {
                    // It may have been deleted since; then it was stored, and is gone.
                    self.slots.commit(slot_ref, *generation, &mut self.effects);
                }
                CommitOutcome::Exists(_) | CommitOutcome::Stale => {
                    self.slots.retire(slot_ref, &mut self.effects);
                }
            }
        }
        let mut decided = decided.into_iter();
        for gap in waiting.outcomes.iter_mut().filter(|it| it.is_none()) {
            *gap = Some(decided.next().unwrap_or(CommitOutcome::Stale));
        }
        self.answer(waiting);
    }

    fn answer(&mut self, waiting: Waiting) {
        let reply = Reply::Committed(waiting.outcomes.into_iter().flatten().collect());
        self.effects.push_back(Effect::Reply { conn: waiting.conn, id: waiting.id, reply });
    }

    /// Takes objects away, however far they have come.
    pub(super) fn retire_all(&mut self, slot_refs: Vec<SlotRef>) {
        for slot_ref in slot_refs {
            if let Some(client) = self.slots.state(slot_ref).and_then(SlotState::writer) {
                self.clients.unreserved(client, slot_ref);
            }
            self.slots.retire(slot_ref, &mut self.effects);
        }
    }
}

/// Whether a member that served a master of that epoch, which had drawn that number, may serve this one: the
/// same master again, or one of a greater epoch. Any other one has lost its state, and knows less than the
/// member.
pub(crate) fn serves(sabotage: Sabotage, (epoch, instance): (u64, u64), registered: &Registered) -> bool {
    let is_same = (epoch, instance) == (registered.epoch, registered.instance);
    let any = sabotaged!(sabotage, ServeAnyEpoch) || sabotaged!(sabotage, DiscardForOthers);
    is_same || registered.epoch > epoch || any
}
