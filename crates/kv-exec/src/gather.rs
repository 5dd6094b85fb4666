//! Communication of ranks: one all-gather per step, in which every rank always joins (C2).
//!
//! Each rank contributes the number of its step, its clock, and the completions that it received. All ranks
//! use the latest clock, so that they agree on the time. A user's own collective, such as
//! `torch.distributed.all_gather_object`, moves the contributions as bytes.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tiffin_kv::{LocalAcks, OpId, Outcome, Tick};

/// Version of the encoding of a contribution.
const LAYOUT: u8 = 1;
/// Sizes of the header and of each completion, in bytes.
const HEAD_BYTES: usize = 1 + 8 + 8 + 16 + 4;
const ACK_BYTES: usize = 8 + 4;
/// Marks a failure, in place of a number of pages.
const FAILED: u32 = u32::MAX;

/// The collective of a group of ranks.
pub trait Gather: Send {
    /// Contributes bytes, and returns those of all ranks, in the order of ranks.
    ///
    /// # Errors
    /// If not all ranks joined in time.
    fn all_gather(&mut self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, GatherError>;
}

/// Why a gather failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GatherError {
    /// A rank did not join in time.
    #[error("not all ranks joined the gather in time\n\nhint: step all ranks equally often")]
    Late,
    /// A rank has left.
    #[error("a rank has left\n\nhint: stop the other ranks too; saved pages are in the store")]
    Left,
    /// The collective failed.
    #[error("{0}")]
    Other(String),
}

/// The contribution of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contribution {
    pub(crate) step: u64,
    pub(crate) now: Tick,
    /// The digest of the engine, in steps that compare it; else zero.
    pub(crate) digest: u128,
    pub(crate) acks: LocalAcks,
}

impl Contribution {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let LocalAcks(acks) = &self.acks;
        let mut bytes = Vec::with_capacity(HEAD_BYTES + acks.len() * ACK_BYTES);
        bytes.push(LAYOUT);
        bytes.extend_from_slice(&self.step.to_le_bytes());
        bytes.extend_from_slice(&self.now.to_le_bytes());
        bytes.extend_from_slice(&self.digest.to_le_bytes());
        bytes.extend_from_slice(&(acks.len() as u32).to_le_bytes());
        for (OpId(op), outcome) in acks {
            let leading = match outcome {
                Outcome::Done { leading } => (*leading).min(FAILED - 1),
                Outcome::Failed => FAILED,
            };
            bytes.extend_from_slice(&op.to_le_bytes());
            bytes.extend_from_slice(&leading.to_le_bytes());
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let [LAYOUT] = take::<1>(&mut rest)? else { return None };
        let step = u64::from_le_bytes(take(&mut rest)?);
        let now = u64::from_le_bytes(take(&mut rest)?);
        let digest = u128::from_le_bytes(take(&mut rest)?);
        let count = u32::from_le_bytes(take(&mut rest)?) as usize;
        if rest.len() != count.checked_mul(ACK_BYTES)? {
            return None;
        }
        let mut acks = Vec::with_capacity(count);
        while !rest.is_empty() {
            let op = OpId(u64::from_le_bytes(take(&mut rest)?));
            let leading = u32::from_le_bytes(take(&mut rest)?);
            acks.push((op, if leading == FAILED { Outcome::Failed } else { Outcome::Done { leading } }));
        }
        Some(Self { step, now, digest, acks: LocalAcks(acks) })
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

/// The gathers of ranks that are threads of this process; each waits at most `timeout` for the others.
#[must_use]
pub fn in_process(ranks: u32, timeout: Duration) -> Vec<InProcessGather> {
    let table = Table {
        contributions: vec![None; ranks as usize],
        result: Arc::default(),
        round: 0,
        has_left: false,
    };
    let rendezvous = Arc::new(Rendezvous { table: Mutex::new(table), wake: Condvar::new() });
    (0..ranks).map(|rank| InProcessGather { rendezvous: Arc::clone(&rendezvous), rank, timeout }).collect()
}

/// One rank of a group in this process.
pub struct InProcessGather {
    rendezvous: Arc<Rendezvous>,
    rank: u32,
    timeout: Duration,
}

struct Rendezvous {
    table: Mutex<Table>,
    wake: Condvar,
}

struct Table {
    contributions: Vec<Option<Vec<u8>>>,
    result: Arc<Vec<Vec<u8>>>,
    round: u64,
    has_left: bool,
}

impl Rendezvous {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Gather for InProcessGather {
    fn all_gather(&mut self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>, GatherError> {
        let mut table = self.rendezvous.table();
        if table.has_left {
            return Err(GatherError::Left);
        }
        let round = table.round;
        if let Some(place) = table.contributions.get_mut(self.rank as usize) {
            *place = Some(mine);
        }
        if table.contributions.iter().all(Option::is_some) {
            let contributions = table.contributions.iter_mut().filter_map(Option::take).collect();
            table.result = Arc::new(contributions);
            table.round += 1;
            self.rendezvous.wake.notify_all();
        }
        let waits = |table: &mut Table| table.round == round && !table.has_left;
        let (mut table, _) = self
            .rendezvous
            .wake
            .wait_timeout_while(table, self.timeout, waits)
            .unwrap_or_else(PoisonError::into_inner);
        if table.round > round {
            // The next round does not start before this rank joins it, so the result is still that of this
            // round.
            return Ok(table.result.to_vec());
        }
        if let Some(place) = table.contributions.get_mut(self.rank as usize) {
            *place = None;
        }
        Err(if table.has_left { GatherError::Left } else { GatherError::Late })
    }
}

/// Informs the other ranks that this one has left, so that they do not wait.
impl Drop for InProcessGather {
    fn drop(&mut self) {
        self.rendezvous.table().has_left = true;
        self.rendezvous.wake.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contribution_round_trips_and_damage_is_rejected() {
        let acks = vec![(OpId(7), Outcome::Done { leading: 3 }), (OpId(u64::MAX), Outcome::Failed)];
        let contribution = Contribution { step: 5, now: 9, digest: 11, acks: LocalAcks(acks) };
        let bytes = contribution.encode();
        assert_eq!(Contribution::decode(&bytes), Some(contribution));
        for cut in 0..bytes.len() {
            assert_eq!(Contribution::decode(&bytes[..cut]), None, "cut at {cut}");
        }
        let mut other = bytes.clone();
        other[0] = 2;
        assert_eq!(Contribution::decode(&other), None, "another layout");
        assert_eq!(Contribution::decode(&[bytes, vec![0]].concat()), None, "too long");
    }

    #[test]
    fn c2_ranks_get_the_same_and_notice_a_rank_that_leaves() {
        let mut members = in_process(3, Duration::from_secs(60)).into_iter();
        let rounds = |mut member: InProcessGather| {
            std::thread::spawn(move || {
                let rank = member.rank as u8;
                let contributions: Vec<_> =
                    (0..50).map(|round| member.all_gather(vec![rank, round])).collect();
                drop(member);
                contributions
            })
        };
        let threads: Vec<_> = members.by_ref().take(2).map(rounds).collect();
        let mut last = members.next().unwrap();
        for round in 0..30 {
            let all: Vec<_> = (0..3).map(|rank| vec![rank, round]).collect();
            assert_eq!(last.all_gather(vec![2, round]), Ok(all));
        }
        drop(last);
        for thread in threads {
            let contributions = thread.join().unwrap();
            assert!(contributions[..30].iter().all(Result::is_ok));
            assert_eq!(contributions[30], Err(GatherError::Left));
        }
    }

    #[test]
    fn late_rank_is_a_timeout() {
        let mut members = in_process(2, Duration::from_millis(1));
        assert_eq!(members[0].all_gather(vec![1]), Err(GatherError::Late));
        assert_eq!(members[1].all_gather(vec![2]), Err(GatherError::Late), "the other rank has given up");
    }
}
