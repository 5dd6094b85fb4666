//! Answers that wait until it is certain that this master was still the leader when it decided them.
//!
//! Where standbys may take over at any time, a master that was stopped or cut off does not know whether it
//! still leads. It therefore holds every answer that says something about a name. The core requests a
//! confirmation with [`Effect::Confirm`]; the shell asks the election service, beginning after that effect,
//! and reports [`Event::Confirmed`]. Leadership is never regained in the same epoch,
//! so a master that leads after the decision led when it decided. No clock takes part.
//!
//! **Invariant:** an answer that says something about a name leaves only after a confirmation that began
//! after the answer was decided. An answer that waits for a write of the durable state that begins after the
//! decision needs none: that write is itself conditional on leadership.
//!
//! [`Event::Confirmed`]: crate::master::Event::Confirmed

use std::collections::VecDeque;

use tiffin_types::mutant::is_mutant;

use super::Context;
use crate::{
    ConnId,
    master::Effect,
    message::{Reply, ReserveOutcome},
};

/// Answers that may wait; for the next one the connection is closed, so that its sender does not know the
/// outcome.
pub(in crate::master) const HELD_MAX: usize = 1 << 16;

/// Answers that wait for a confirmation.
#[derive(Debug, Default)]
pub(in crate::master) struct Confirming {
    /// The confirmation that was requested last.
    round: u64,
    held: VecDeque<(u64, Effect)>,
}

impl Confirming {
    /// A connection is closed: no answer goes there any more.
    pub(in crate::master) fn forget(&mut self, conn: ConnId) {
        self.held.retain(|(_, held)| !matches!(held, Effect::Reply(to, ..) if *to == conn));
    }

    /// How many answers wait.
    pub(in crate::master) fn held_count(&self) -> usize {
        self.held.len()
    }
}

impl Context {
    /// Sends an answer, once leadership is confirmed if it depends on that.
    pub(in crate::master) fn reply_confirmed(&mut self, effect: Effect) {
        let is_certain = match &effect {
            Effect::Reply(_, _, reply) => !says_something_of_names(reply),
            _ => true,
        };
        let is_free = !self.config.confirms || is_mutant!(self.config.mutant, AnswerUnconfirmed);
        if is_free || is_certain {
            return self.effects.push_back(effect);
        }
        if self.confirming.held.len() >= HELD_MAX {
            if let Effect::Reply(conn, ..) = effect {
                self.effects.push_back(Effect::Disconnect(conn));
            }
            return;
        }
        self.confirming.round += 1;
        self.confirming.held.push_back((self.confirming.round, effect));
        self.effects.push_back(Effect::Confirm(self.confirming.round));
    }

    /// This master led after that confirmation was requested.
    pub(in crate::master) fn confirmed(&mut self, round: u64) {
        let is_any = is_mutant!(self.config.mutant, ConfirmLater);
        while self.confirming.held.front().is_some_and(|(at, _)| *at <= round || is_any) {
            self.effects.extend(self.confirming.held.pop_front().map(|(_, effect)| effect));
        }
    }
}

/// Whether an answer would be wrong if another master had decided about the same names meanwhile.
fn says_something_of_names(reply: &Reply) -> bool {
    match reply {
        // Memory is the node's to give, and the node serves one master.
        Reply::Reserved(reserved) => {
            reserved.items.iter().any(|it| !matches!(it, ReserveOutcome::Space(_) | ReserveOutcome::Full(_)))
        }
        Reply::Refused(_)
        | Reply::Done
        | Reply::Welcome(_)
        | Reply::Stat(_)
        | Reply::Registered(_)
        | Reply::Announced(_)
        | Reply::Forgotten(_)
        | Reply::Allocated(_)
        | Reply::Settled(_)
        | Reply::Inspected(_)
        | Reply::Moved(_)
        | Reply::Committed(_)
        | Reply::ViewsBegun(_) => false,
        Reply::Published(_)
        | Reply::Resolved(_)
        | Reply::Present(_)
        | Reply::Deleted(_)
        | Reply::DeletedMatching(_)
        | Reply::Listed(_)
        | Reply::Decided(_)
        | Reply::Pinned(_)
        | Reply::Awaited(_)
        | Reply::Why(_)
        | Reply::Leased(_)
        | Reply::Acked(_)
        | Reply::Stream(_)
        | Reply::Pulled(_)
        | Reply::Prefetched(_) => true,
    }
}
