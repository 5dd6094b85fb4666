//! Which master leads: when a standby campaigns, and when a leader steps down.
//!
//! The election service holds one record, the leader's, with the revision of its last change. Only the
//! winner of a campaign writes it, by a transaction that requires the revision it has seen, so the revision
//! is the leader's *token*: a record with another revision is another leader's. The service allots the epoch
//! in the same transaction. The shell reads and writes; here is decided.
//!
//! **Invariant:** no decision here makes an answer right or wrong. A standby that campaigns too early, and a
//! leader that steps down too late, cost time only: every durable write and every answer about names depends
//! on the token ([`Event::Confirmed`](crate::master::Event::Confirmed)).

use tiffin_types::mutant::{Mutant, is_mutant};

use crate::Tick;

/// The time limits of an election.
#[derive(Clone, Copy, Debug)]
pub struct ElectionConfig {
    /// A leader whose lease was not prolonged for more than this is replaced, in whole seconds: etcd tells no
    /// fractions.
    pub silence_s: i64,
    /// A leader that could not confirm for this long steps down, so that its members look for another one.
    pub give_up_ms: u64,
}

impl Default for ElectionConfig {
    fn default() -> Self {
        Self { silence_s: 1, give_up_ms: 3_000 }
    }
}

/// The leader's record, as a standby reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The revision of the record; 0 if there is none.
    pub token: i64,
    /// What is left of the leader's lease, rounded down, and what was granted; `None` if it has ended.
    pub lease_s: Option<(i64, i64)>,
    /// The record is that of this very process: an answer to its campaign was lost.
    pub is_own: bool,
}

/// Why a leader stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepDown {
    /// Another master leads.
    Superseded,
    /// The election service has not answered for too long.
    Unreachable,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Standby,
    Leader {
        token: i64,
        /// When the last confirmation that succeeded began.
        confirmed: Tick,
    },
}

/// One master's part in the election.
#[derive(Debug)]
pub struct Election {
    config: ElectionConfig,
    role: Role,
}

impl Election {
    /// A standby.
    #[must_use]
    pub fn new(config: ElectionConfig) -> Self {
        Self { config, role: Role::Standby }
    }

    /// Whether this master leads, as far as it knows.
    #[must_use]
    pub fn token(&self) -> Option<i64> {
        match self.role {
            Role::Standby => None,
            Role::Leader { token, .. } => Some(token),
        }
    }

    /// A standby has read the record: whether it campaigns, on the condition that the record has this token.
    /// A read that failed is no observation.
    #[must_use]
    pub fn campaigns(&self, observed: &Observed) -> Option<i64> {
        if self.token().is_some() {
            return None;
        }
        let is_silent = match observed.lease_s {
            None => true,
            // Both are rounded: less than the granted time is left from the first moment on.
            Some((left, granted)) => granted - left > self.config.silence_s,
        };
        (observed.token == 0 || observed.is_own || is_silent).then_some(observed.token)
    }

    /// This master has won: its record has this token. The campaign began at `began`.
    pub fn won(&mut self, began: Tick, token: i64) {
        self.role = Role::Leader { token, confirmed: began };
    }

    /// A confirmation that began at `began` has ended: whether the record still had the token.
    pub fn confirmed(&mut self, began: Tick, has_token: bool) -> Option<StepDown> {
        let Role::Leader { confirmed, .. } = &mut self.role else { return None };
        if !has_token {
            return self.step_down(StepDown::Superseded);
        }
        *confirmed = (*confirmed).max(began);
        None
    }

    /// Time has passed, or a confirmation failed.
    pub fn handle_timeout(&mut self, now: Tick) -> Option<StepDown> {
        let Role::Leader { confirmed, .. } = self.role else { return None };
        if confirmed.after(self.config.give_up_ms) > now {
            return None;
        }
        self.step_down(StepDown::Unreachable)
    }

    fn step_down(&mut self, why: StepDown) -> Option<StepDown> {
        self.role = Role::Standby;
        Some(why)
    }
}

/// The answer to the last transaction of a write of the durable state, which requires the token and the
/// revision of the state that the leader knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOutcome {
    /// Both were as required.
    pub succeeded: bool,
    /// The revision of the transaction.
    pub revision: i64,
    /// If it failed, the revision of the leader's record; 0 if there is none.
    pub leader: i64,
    /// If it failed, the revision of the state; 0 if there is none.
    pub head: i64,
}

/// What became of a write of the durable state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrote {
    /// It is there, and has this revision.
    Done(i64),
    /// An earlier attempt whose answer was lost has changed the state, which has this revision now.
    Again(i64),
    /// Another master leads.
    Replaced,
}

/// Decides by the last transaction of a write.
#[must_use]
pub fn after_write(outcome: &WriteOutcome, token: i64, mutant: Mutant) -> Wrote {
    if outcome.succeeded || is_mutant!(mutant, TrustRefused) {
        return Wrote::Done(outcome.revision);
    }
    if outcome.leader == token { Wrote::Again(outcome.head) } else { Wrote::Replaced }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH: Observed = Observed { token: 7, lease_s: Some((4, 5)), is_own: false };

    #[test]
    fn standby_campaigns_only_without_a_live_leader() {
        let standby = Election::new(ElectionConfig::default());
        for (observed, campaigns) in [
            (FRESH, None),
            // More than granted is left after a change of etcd's own leader.
            (Observed { lease_s: Some((6, 5)), ..FRESH }, None),
            (Observed { lease_s: Some((3, 5)), ..FRESH }, Some(7)),
            (Observed { lease_s: Some((0, 5)), ..FRESH }, Some(7)),
            (Observed { lease_s: None, ..FRESH }, Some(7)),
            (Observed { token: 0, ..FRESH }, Some(0)),
            // The answer to its own campaign was lost: no other process keeps that record.
            (Observed { is_own: true, ..FRESH }, Some(7)),
        ] {
            assert_eq!(standby.campaigns(&observed), campaigns, "{observed:?}");
        }
    }

    #[test]
    fn leader_steps_down_when_superseded_or_cut_off() {
        let mut election = Election::new(ElectionConfig { silence_s: 1, give_up_ms: 100 });
        assert_eq!(election.handle_timeout(Tick(1_000)), None, "a standby has nothing to give up");
        assert_eq!(election.confirmed(Tick(1_000), false), None);
        election.won(Tick(1_000), 9);
        assert_eq!(election.token(), Some(9));
        assert_eq!(election.campaigns(&Observed { lease_s: None, ..FRESH }), None, "it leads already");
        assert_eq!(election.confirmed(Tick(1_050), true), None);
        // A late answer to an earlier question proves less.
        assert_eq!(election.confirmed(Tick(1_020), true), None);
        assert_eq!(election.handle_timeout(Tick(1_149)), None);
        assert_eq!(election.handle_timeout(Tick(1_150)), Some(StepDown::Unreachable));
        assert_eq!((election.token(), election.handle_timeout(Tick(9_999))), (None, None));
        election.won(Tick(2_000), 11);
        assert_eq!(election.confirmed(Tick(2_001), false), Some(StepDown::Superseded));
        assert_eq!(election.token(), None);
    }

    #[test]
    fn late_write_does_not_replace_a_newer_state() {
        let wrote = |succeeded, leader, head| {
            let outcome = WriteOutcome { succeeded, revision: 20, leader, head };
            after_write(&outcome, 9, Mutant::None)
        };
        assert_eq!(wrote(true, 0, 0), Wrote::Done(20));
        // The state has changed although this master leads: its own earlier attempt was applied late.
        assert_eq!(wrote(false, 9, 12), Wrote::Again(12));
        assert_eq!(wrote(false, 10, 12), Wrote::Replaced);
        assert_eq!(wrote(false, 0, 12), Wrote::Replaced);
    }

    #[test]
    fn stopped_leader_that_continues_steps_down_at_once() {
        let mut old = Election::new(ElectionConfig::default());
        old.won(Tick(0), 3);
        // It was stopped for an hour. The clock alone is enough, whatever the service says.
        assert_eq!(old.handle_timeout(Tick(3_600_000)), Some(StepDown::Unreachable));
    }
}
