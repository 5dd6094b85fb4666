//! How ranks agree: by operation, in one all-gather per step, in which every rank always joins (C2).
//!
//! Every rank carries out every operation on its own part of the pages, and receives the completion at its
//! own time. A rank puts the completions that it received into a [`LocalAcks`]. The lists of all ranks, in
//! the order of ranks, are one input that all ranks apply. An operation has ended when every rank has
//! reported it, and its result is what every rank has: the minimum.

pub use crate::message::LocalAcks;
use crate::message::Outcome;

/// The outcomes of one operation that ranks have reported.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Votes(Vec<Option<Outcome>>);

impl Votes {
    pub(crate) fn new(ranks: u32) -> Self {
        Self(vec![None; ranks as usize])
    }

    pub(crate) fn has(&self, rank: u32) -> bool {
        self.0.get(rank as usize).is_some_and(Option::is_some)
    }

    /// Adds the outcome of a rank; false if it has voted before: a repeated ack changes nothing (L1).
    pub(crate) fn cast(&mut self, rank: u32, outcome: Outcome) -> bool {
        match self.0.get_mut(rank as usize) {
            Some(vote @ None) => {
                *vote = Some(outcome);
                true
            }
            _ => false,
        }
    }

    /// The result, once all ranks have voted: a failure of one is a failure of all, else the minimum.
    pub(crate) fn result(&self) -> Option<Outcome> {
        self.0.iter().try_fold(Outcome::Done { leading: u32::MAX }, |so_far, vote| {
            Some(match (so_far, (*vote)?) {
                (Outcome::Done { leading: a }, Outcome::Done { leading: b }) => {
                    Outcome::Done { leading: a.min(b) }
                }
                _ => Outcome::Failed,
            })
        })
    }

    /// The outcome of any rank that voted, for mutants.
    pub(crate) fn first(&self) -> Option<Outcome> {
        self.0.iter().flatten().next().copied()
    }

    pub(crate) fn count(&self) -> usize {
        self.0.iter().flatten().count()
    }

    pub(crate) fn ranks(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c2_result_needs_all_votes_and_is_the_minimum() {
        let done = |leading| Outcome::Done { leading };
        for (votes, result) in [
            (vec![(0, done(3)), (1, done(5))], Some(done(3))),
            (vec![(1, done(5))], None),
            (vec![(0, done(3)), (1, Outcome::Failed)], Some(Outcome::Failed)),
            (vec![(0, done(3)), (0, done(1)), (1, done(9))], Some(done(3))),
        ] {
            let mut tally = Votes::new(2);
            for (rank, outcome) in &votes {
                tally.cast(*rank, *outcome);
            }
            assert_eq!(tally.result(), result, "{votes:?}");
        }
        assert!(!Votes::new(1).cast(1, Outcome::Failed), "there is no such rank");
    }
}
