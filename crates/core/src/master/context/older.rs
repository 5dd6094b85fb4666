//! The order of an object and what it has replaced, across restarts of the master.
//!
//! An object that is evicted, expires or is consumed may have replaced one on a node that has not confirmed
//! the retire. If the master died, and only the newer object was gone, the older one would return.
//!
//! **Invariant:** no node is told to retire a removed object before it is saved that other nodes owe the
//! retires of the older ones of its name. A put that needs the memory of such an object waits as long.

use super::Context;
use crate::{SlotRef, master::catalog::NodeIndex, message::MasterToMember, mutant::is_mutant};

impl Context {
    /// The copies of an object are removed, and are retired once it is saved that other nodes owe the retires
    /// of these older copies of its name.
    pub(in crate::master) fn retire_after(
        &mut self,
        older: &[(NodeIndex, SlotRef)],
        copies: &[(NodeIndex, SlotRef)],
    ) {
        // A node applies its retires in the order in which they were sent.
        let waits = copies.iter().any(|(node, _)| older.iter().any(|it| it.0 != *node));
        let Some(version) = waits.then(|| self.owe_older(older)).flatten() else { return };
        self.pending_retires.retire_after(copies, version);
        for (node, _) in copies {
            let member = self.members.get_mut(*node);
            member.into_iter().for_each(|it| it.frees_at = it.frees_at.max(version));
        }
    }

    /// The version of the state that contains the retires of these copies, if it is not synced yet.
    fn owe_older(&mut self, older: &[(NodeIndex, SlotRef)]) -> Option<u64> {
        if !self.config.durable {
            return None;
        }
        for &(node, slot_ref) in older {
            // Until a client has seen a successor, its return would have been harmless.
            if self.members.get(node).is_some_and(|it| it.given_up.contains(&slot_ref)) {
                self.owe(node, &[slot_ref]);
            }
        }
        self.note_removed(older);
        let version = self.pending_retires.removed_before(older)?;
        if version > self.saving.version() {
            self.save();
        }
        Some(version).filter(|it| !self.saving.has_synced(*it))
    }

    /// The version of the state that must be synced before a node gets a request.
    pub(super) fn sent_after(&self, node: NodeIndex, request: &MasterToMember) -> Option<u64> {
        let mutant = self.config.mutant;
        let version = match request {
            MasterToMember::Retire(it) if !is_mutant!(mutant, TellEarly) => {
                self.pending_retires.retired_after(node, &it.slot_refs)?
            }
            // The memory of what is not retired yet is not free yet.
            MasterToMember::Allocate(_) if !is_mutant!(mutant, AllocateFirst) => {
                self.members.get(node)?.frees_at
            }
            _ => return None,
        };
        Some(version).filter(|it| !self.saving.has_synced(*it))
    }
}
