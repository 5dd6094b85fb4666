//! The election service of worlds with two masters: the leader's record, the epoch, and the durable state, as
//! etcd holds them. Every operation is one transaction.
//!
//! **Invariant:** only the master whose token is that of the record changes anything, but for the winner of a
//! campaign.

use tiffin_core::{
    election::{Observed, WriteOutcome},
    master::Saved,
};

use crate::world::Time;

/// One unit of the lease, which etcd rounds to seconds.
const LEASE_UNIT_MS: u64 = 100;
/// The lease of a leader, in these units.
const LEASE_UNITS: i64 = 5;

/// A request to the store.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// A standby reads the record.
    Observe,
    /// A standby becomes the leader, if the record has this token.
    Campaign(i64),
    /// The leader prolongs its lease, and asks whether it leads.
    Keep(i64),
    /// The leader asks whether it still leads, for the answers up to this round.
    Confirm(i64, u64),
    /// The leader writes a version of its state.
    Write { token: i64, head: i64, version: u64, saved: Box<Saved> },
    /// The leader takes an epoch greater than this one.
    Advance(i64, u64),
}

/// An answer of the store.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Observed(Observed),
    /// The token and the epoch, with the state and its revision.
    Won(i64, u64, Box<Saved>, i64),
    LostCampaign,
    /// When the request was sent, and whether the record had the token.
    Kept(Time, bool),
    Confirmed(u64, bool),
    Wrote(u64, WriteOutcome),
    /// The new token and epoch, unless another master leads.
    Advanced(Option<(i64, u64)>),
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Store {
    revision: i64,
    /// The revision of the leader's record: its token.
    pub(crate) token: i64,
    /// The master that wrote it, and its incarnation.
    leader: (usize, u32),
    kept_at: Time,
    pub(crate) epoch: u64,
    state: Saved,
    head: i64,
}

impl Store {
    /// Applies a request of a master that was sent at `sent`.
    pub(crate) fn apply(
        &mut self,
        now: Time,
        (master, incarnation): (usize, u32),
        op: Op,
        sent: Time,
    ) -> Answer {
        match op {
            Op::Observe => {
                let left = LEASE_UNITS - (now.saturating_sub(self.kept_at) / LEASE_UNIT_MS) as i64;
                let lease_s = (left >= 0).then_some((left, LEASE_UNITS));
                let is_own = self.token != 0 && self.leader == (master, incarnation);
                Answer::Observed(Observed { token: self.token, lease_s, is_own })
            }
            Op::Campaign(token) if token == self.token => {
                self.lead(now, (master, incarnation), self.epoch);
                Answer::Won(self.token, self.epoch, Box::new(self.state.clone()), self.head)
            }
            Op::Campaign(_) => Answer::LostCampaign,
            Op::Keep(token) => {
                let leads = token == self.token;
                if leads {
                    self.kept_at = now;
                }
                Answer::Kept(sent, leads)
            }
            Op::Confirm(token, round) => Answer::Confirmed(round, token == self.token),
            Op::Write { token, head, version, saved } => {
                let succeeded = (token, head) == (self.token, self.head);
                if succeeded {
                    self.revision += 1;
                    (self.head, self.state) = (self.revision, *saved);
                }
                let (leader, head) = (self.token, self.head);
                Answer::Wrote(version, WriteOutcome { succeeded, revision: self.revision, leader, head })
            }
            Op::Advance(token, floor) => {
                let leads = token == self.token;
                if leads {
                    self.lead(now, self.leader, floor.max(self.epoch));
                }
                Answer::Advanced(leads.then_some((self.token, self.epoch)))
            }
        }
    }

    fn lead(&mut self, now: Time, leader: (usize, u32), floor: u64) {
        self.revision += 1;
        (self.token, self.leader, self.kept_at, self.epoch) = (self.revision, leader, now, floor + 1);
    }
}
