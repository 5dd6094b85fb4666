//! A node that is started again on memory that has outlived its process.
//!
//! Committed objects are kept and announced, like those of a disk. Objects that were prepared are stored only
//! if the master has decided so before: it is asked. Everything else depends on clients that still map the
//! memory. Such a client may be writing what it had reserved, and may have views. The dead process took the
//! knowledge of these views with it.
//!
//! **Invariant:** the memory of a reservation returns when its writer does not map the memory any more, or
//! says that it does not write; never because the node was started again.
//!
//! **Invariant:** the memory of a use that began before is reused only when every client that maps the memory
//! since then has listed its views, or does not map it any more.
//!
//! **Invariant:** no cached location counts before the node is a member again.

use std::collections::BTreeSet;

use tiffin_types::{
    BATCH_ITEMS_MAX, ClientId, ClusterId, EPOCH_MAX, Generation, Key, STAMPS_MAX, SlotId, SlotRef,
    attributes::Attributes,
    message::{CommitItem, DecideItem, PutOptions, Record, Settle},
    mutant::is_mutant,
};

use super::{Effect, Node, NodeConfig, SlotRecord, SlotState, Slots, Waiting, slots::Identity};

/// No put has this generation: what replaces only it is stored only if that was decided before.
const NEVER: Generation = Generation { epoch: u64::MAX, counter: u64::MAX };

/// One slot that is in use, as the memory describes it.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its number in the control segment.
    pub slot: SlotId,
    /// What it says. A retired use has the stamp that it had.
    pub record: SlotRecord,
    /// The use was retired, but its memory was still viewed or copied.
    pub is_retired: bool,
    /// The bytes of the namespace's name.
    pub namespace: Vec<u8>,
    /// The bytes of the key.
    pub key: Vec<u8>,
    /// The bytes of the attributes.
    pub attributes: Vec<u8>,
}

/// What memory says that has outlived its node.
#[derive(Clone, Debug, Default)]
pub struct Adopted {
    /// The epoch of the master that the node last belonged to.
    pub epoch: u64,
    /// The number of that master.
    pub instance: u64,
    /// The cluster; zero if it is not known.
    pub cluster: ClusterId,
    /// No stamp with this number or a greater one was used.
    pub stamp_high_water: u64,
    /// Every slot in use, in order.
    pub slots: Vec<Found>,
    /// The clients that map the memory now.
    pub clients: Vec<ClientId>,
    /// What the journal of the ledger says, in order. The node may have applied some of it.
    pub ledger: Vec<Settle>,
}

/// Why memory cannot be adopted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// A slot makes no sense.
    #[error("slot {slot}: {what}", slot = slot.0)]
    Slot {
        /// Its number in the control segment.
        slot: SlotId,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A number that is stored once for all slots makes no sense.
    #[error("header: {0}")]
    Header(&'static str),
    /// The tables need more memory than is left.
    #[error("the objects and their records need more memory than there is")]
    Space,
}

impl Node {
    /// A node whose memory an earlier process has used.
    ///
    /// # Errors
    /// If the memory contradicts itself. Nothing is written to it then.
    pub fn adopt(config: NodeConfig, adopted: Adopted) -> Result<Self, Damage> {
        if adopted.epoch >= EPOCH_MAX {
            return Err(Damage::Header("its epoch is out of range"));
        }
        if adopted.stamp_high_water >= STAMPS_MAX {
            return Err(Damage::Header("its stamp high-water mark is out of range"));
        }
        let mut node = Self::new(config);
        if !is_mutant!(config.mutant, AdoptAsMember) {
            node.effects.push_back(Effect::Membership(false));
        }
        node.link.adopt(adopted.epoch, adopted.instance, adopted.cluster);
        node.slots.adopt_stamps(adopted.stamp_high_water);
        let clients = adopted.clients.into_iter();
        for client in clients.filter(|_| !is_mutant!(config.mutant, DisownWriters)) {
            node.clients.adopt(client);
            if is_mutant!(config.mutant, ForgetOldViews) {
                node.clients.list(client);
            }
        }
        let mut stamps = BTreeSet::new();
        for found in adopted.slots {
            let stamp = found.record.stamp;
            let is_used = config.stamp_key.number(stamp) < adopted.stamp_high_water;
            if !is_used || !stamps.insert(stamp) {
                let what = "its stamp belongs to another use";
                return Err(Damage::Slot { slot: found.slot, what });
            }
            node.adopt_slot(found)?;
        }
        if !node.slots.pay_for_adopted(&mut node.effects) {
            return Err(Damage::Space);
        }
        for settle in adopted.ledger {
            node.commit_unread(settle);
        }
        for client in node.clients.unreachable_ones() {
            node.release_all(client);
        }
        let offers = node.slots.offers();
        if !offers.is_empty() {
            node.effects.push_back(Effect::Recall(offers));
        }
        node.end_of_listing();
        node.ask_about_prepared();
        node.slots.assert_balance();
        Ok(node)
    }

    fn adopt_slot(&mut self, found: Found) -> Result<(), Damage> {
        let Found { slot, record, is_retired, .. } = &found;
        let slot = *slot;
        if *is_retired && is_mutant!(self.config.mutant, ForgetParked) {
            return Ok(());
        }
        let damaged = |what| Damage::Slot { slot, what };
        let slot_ref = SlotRef { slot, stamp: record.stamp };
        let state = match record.state {
            _ if *is_retired => None,
            // It was hidden while its client went on writing.
            SlotState::Ending => Some(match record.writer {
                Some(writer) if self.clients.maps(writer) => SlotState::Reserved(writer),
                _ => SlotState::Ending,
            }),
            state => Some(state),
        };
        let has_name = matches!(state, Some(SlotState::Prepared | SlotState::Committed));
        let identity =
            if has_name { Some(identity(&found).ok_or(damaged("its name is invalid"))?) } else { None };
        if !self.slots.adopt(slot, record, state, identity, &mut self.effects) {
            return Err(damaged("its memory is in use by another slot, or lies outside"));
        }
        match state {
            Some(SlotState::Reserved(client) | SlotState::Offered(client)) => {
                self.clients.reserved(client, slot_ref)
            }
            Some(SlotState::Ending) => self.released.push(slot_ref),
            Some(SlotState::Prepared | SlotState::Committed) | None => (),
        }
        Ok(())
    }

    /// Commits what the master has published, and the earlier process has not read, and retires what that
    /// has replaced. What it has read may have got another generation since, and stays. Reservations that the
    /// master has ended are left to their writers and to the master.
    fn commit_unread(&mut self, settle: Settle) {
        if is_mutant!(self.config.mutant, ForgetLedger) {
            return;
        }
        let is_unread = |slots: &Slots, it: &Record| {
            slots.state(it.slot_ref).is_some_and(|it| it != SlotState::Committed)
        };
        let unread = settle.commit.into_iter().filter(|it| is_unread(&self.slots, it)).collect();
        self.commit_all(unread);
        self.retire_all(settle.retire);
    }

    /// Asks the master which prepared objects it has stored. It stores none that it does not know: the pool
    /// does not contain the options of their puts, and no writer has got an acknowledgement.
    fn ask_about_prepared(&mut self) {
        let options = PutOptions { replaces: Some(NEVER), ..PutOptions::default() };
        let decide = |(slot_ref, identity, len)| {
            let Identity { namespace, key, .. } = identity;
            let item = CommitItem { slot_ref, key, len, options: options.clone(), others: Vec::new() };
            DecideItem { namespace, client: ClientId(0), item }
        };
        let items: Vec<_> = self.slots.prepared().into_iter().map(decide).collect();
        for items in items.chunks(BATCH_ITEMS_MAX) {
            let waiting = Waiting::new(None, vec![None; items.len()], items.to_vec(), 0);
            self.link.ask_about(&self.slots, waiting, &mut self.effects);
        }
    }

    /// A client has listed its views. Those that began at an earlier process count from now on.
    pub(super) fn list_views(&mut self, client: ClientId, slot_refs: Vec<SlotRef>) {
        if !self.clients.list(client) {
            return;
        }
        for slot_ref in slot_refs {
            if self.slots.keeps(slot_ref) {
                self.clients.begin_view(client, slot_ref, self.slots.space(slot_ref));
                self.slots.begin_use(slot_ref);
            }
        }
        self.end_of_listing();
    }

    fn end_of_listing(&mut self) {
        if self.clients.all_are_listed() {
            self.slots.all_views_are_listed(&mut self.effects);
        }
    }
}

fn identity(found: &Found) -> Option<Identity> {
    let namespace = String::from_utf8(found.namespace.clone()).ok()?;
    let key = Key::new(&found.key).ok()?;
    Some(Identity { namespace, key, attributes: Attributes::from_bytes(&found.attributes)? })
}
