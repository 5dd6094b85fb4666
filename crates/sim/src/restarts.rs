//! What the oracle knows after a restart of the master.

use std::collections::{BTreeMap, BTreeSet};

use tiffin_core::master::{Saved, SavedMember};
use tiffin_node::{SlotRecord, SlotState};
use tiffin_types::{Generation, SegmentId, SlotRef, Tick};

use crate::{
    invariants::p2::Dead,
    oracle::{Memories, Oracle},
};

impl Oracle {
    /// What an earlier epoch knew is lost, except what it saved: copies on a node may be seen again, unless a
    /// client has got the answer that they are gone. A disk may still finish the copies `under_way`.
    pub(crate) fn master_restarts(
        &mut self,
        (epoch, incarnation): (u64, u64),
        memories: &Memories,
        under_way: &[(SegmentId, SlotRef, Generation)],
        state: &Saved,
    ) {
        (self.epoch, self.incarnation) = (epoch, incarnation);
        self.forget_epoch();
        self.has_unknown_evictions = false;
        self.samples_expire = state.policies.iter().any(|it| it.policy.max_hold_ms.is_some());
        self.lost.extend(state.forgotten.iter().map(|it| (*it, true)));
        let owed = |it: &SavedMember| {
            it.owed_slot_refs().into_iter().map(|slot_ref| (it.segment, slot_ref)).collect()
        };
        self.owed = state.members.iter().flat_map(|it| -> Vec<_> { owed(it) }).collect();
        self.retired = self.owed.clone();
        let mut surviving: BTreeMap<Generation, Vec<SegmentId>> = BTreeMap::new();
        // What was published is in the node's ledger, which it may not have read yet.
        let named = |segment, slot_ref, record: &SlotRecord| {
            let named = self.generation_of.get(&(segment, slot_ref)).copied();
            named.filter(|_| record.state != SlotState::Committed).unwrap_or(record.generation)
        };
        let copies = memories.iter().filter(|(_, it)| it.alive).flat_map(|(segment, memory)| {
            memory.slots().map(|(slot_ref, record)| (*segment, slot_ref, named(*segment, slot_ref, record)))
        });
        for (segment, slot_ref, generation) in copies.chain(under_way.iter().copied()) {
            // Copies with a pending retire are gone, whether a client knows it or not.
            if !self.retired.contains(&(segment, slot_ref)) {
                surviving.entry(generation).or_default().push(segment);
            }
        }
        // A disk may find a record again whose write had not ended.
        let on_disks = self.generation_of.iter().filter(|(place, _)| place.1.is_on_disk());
        for (place, generation) in on_disks.filter(|(place, _)| !self.retired.contains(*place)) {
            surviving.entry(*generation).or_default().push(place.0);
        }
        let roster: BTreeSet<_> = state.members.iter().map(|it| it.segment).collect();
        for (generation, history) in &mut self.objects {
            history.lease_until = Tick(0);
            history.pins.clear();
            let Some(on) = surviving.get(generation) else { continue };
            // An answered delete stays, if the members with a copy were known then and still are.
            let stays = |dead: &Dead| on.iter().all(|it| roster.contains(it) && !dead.exempt.contains(it));
            if !history.dead.as_ref().is_some_and(stays) {
                (history.gone, history.deletes, history.dead) = (false, 0, None);
                history.is_deleted_first = false;
            }
        }
    }

    /// Forgets what only the master of the last epoch knew.
    fn forget_epoch(&mut self) {
        self.past.forget_epoch();
        self.asked_names.clear();
        self.setting.clear();
        self.left = None;
        self.newest.clear();
        self.acknowledged.clear();
        self.joined.clear();
        self.lost.clear();
        self.absent.clear();
        self.pending_retires.clear();
        self.deleting.clear();
        self.retired.clear();
        self.recorded.clear();
        self.ledger_commits.clear();
        self.deciding.clear();
        self.pinning.clear();
        self.acking.clear();
        self.leases.clear();
        self.released.clear();
        self.deferred.clear();
        self.pulls.clear();
        self.pulled.clear();
        self.conn_clients.clear();
        self.away.clear();
        self.put_queue.clear();
        self.single_puts.clear();
        self.waiting_puts.clear();
    }
}
