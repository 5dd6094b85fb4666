//! How ranks agree: by operation, in one all-gather per step, in which every rank always joins (C2).
//!
//! Every rank carries out every operation on its own part of the pages, and hears of its ends at its own
//! time. What a rank has heard it puts into a [`LocalAcks`]; the lists of all ranks, in the order of ranks,
//! are one input that all of them apply. An operation has ended when every rank has said so, and what counts
//! is what every rank has: the least.

use crate::message::{OpId, Outcome};

/// What a rank has heard of since the last gather, in the order of operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalAcks(pub Vec<(OpId, Outcome)>);

/// What the ranks have said of one operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Votes(Vec<Option<Outcome>>);

impl Votes {
    pub(crate) fn new(ranks: u32) -> Self {
        Self(vec![None; ranks as usize])
    }

    pub(crate) fn has(&self, rank: u32) -> bool {
        self.0.get(rank as usize).is_some_and(Option::is_some)
    }

    /// False if the rank has voted before: a repeated ack changes nothing (L1).
    pub(crate) fn cast(&mut self, rank: u32, outcome: Outcome) -> bool {
        match self.0.get_mut(rank as usize) {
            Some(vote @ None) => {
                *vote = Some(outcome);
                true
            }
            _ => false,
        }
    }

    /// What counts, once all have voted: a failure is a failure of all, else the least.
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

    /// Any one that voted, for variants that are broken.
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
    fn c2_all_must_speak_and_the_least_counts() {
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
