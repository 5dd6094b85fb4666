//! The simulated executor of one rank: memories that contain what was last written to each page, and
//! operations that read and write at any time between their issue and their end.

use std::collections::BTreeMap;

use tiffin_kv::mutant::Mutant;
use tiffin_kv::{ChainHash, Config, OpId, OpKind, Operation, Outcome, PageId, Place, StoreKey, Tick, Tier};

use crate::oracle::{Content, GARBAGE, LOST, part};

/// The store that all ranks share: the root and the content of each key.
pub(crate) type StoreContents = BTreeMap<StoreKey, (ChainHash, Content)>;

/// An operation in flight.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) op: Operation,
    next: usize,
    /// Content that was read and not written yet.
    read: Option<Content>,
    /// The earliest time of its first access.
    pub(crate) stuck_until: Tick,
    /// The record at which it fails, if any.
    pub(crate) fails_at: Option<usize>,
}

/// The memories and operations of one rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Executor {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) mutant: Mutant,
    pub(crate) device: Vec<Content>,
    pub(crate) host: Vec<Content>,
    pub(crate) jobs: BTreeMap<OpId, Job>,
    /// Outcomes of ended operations, for completions that were lost.
    pub(crate) ended: BTreeMap<OpId, Outcome>,
}

impl Executor {
    pub(crate) fn new(rank: u32, config: &Config) -> Self {
        Self {
            rank,
            ranks: config.ranks,
            mutant: config.mutant,
            device: vec![0; config.device_pages as usize],
            host: vec![0; config.host_pages as usize],
            ..Self::default()
        }
    }

    pub(crate) fn begin(&mut self, op: Operation, stuck_until: Tick, fails_at: Option<usize>) {
        self.jobs.insert(op.id, Job { op, next: 0, read: None, stuck_until, fails_at });
    }

    pub(crate) fn memory(&self, page: PageId) -> Content {
        let memory = if page.tier == Tier::Device { &self.device } else { &self.host };
        memory.get(page.index as usize).copied().unwrap_or_default()
    }

    pub(crate) fn write(&mut self, page: PageId, content: Content) {
        let memory = if page.tier == Tier::Device { &mut self.device } else { &mut self.host };
        if let Some(place) = memory.get_mut(page.index as usize) {
            *place = content;
        }
    }

    pub(crate) fn key(&self, op: &Operation, hash: ChainHash) -> StoreKey {
        StoreKey::new_with(op.root, &part(self.rank, self.ranks), hash, self.mutant)
    }

    /// One read or one write of an operation. Returns its outcome if it has ended.
    pub(crate) fn step(&mut self, id: OpId, store: &mut StoreContents) -> Option<Outcome> {
        let mut job = self.jobs.remove(&id)?;
        let outcome = self.advance(&mut job, store);
        match outcome {
            Some(outcome) => drop(self.ended.insert(id, outcome)),
            None => drop(self.jobs.insert(id, job)),
        }
        outcome
    }

    /// Stops the operation.
    pub(crate) fn cancel(&mut self, id: OpId) -> Option<Outcome> {
        let job = self.jobs.remove(&id)?;
        let leading = if job.op.kind == OpKind::Probe { 0 } else { job.next as u32 };
        let outcome = if job.op.kind == OpKind::Drop { Outcome::Failed } else { Outcome::Done { leading } };
        self.ended.insert(id, outcome);
        Some(outcome)
    }

    fn advance(&mut self, job: &mut Job, store: &mut StoreContents) -> Option<Outcome> {
        match job.op.kind {
            OpKind::Probe => {
                let has =
                    |record: &&tiffin_kv::PageRecord| store.contains_key(&self.key(&job.op, record.hash));
                let leading = job.op.records.iter().take_while(has).count() as u32;
                return Some(if job.fails_at.is_some() {
                    Outcome::Failed
                } else {
                    Outcome::Done { leading }
                });
            }
            OpKind::Drop if job.fails_at.is_some() => return Some(Outcome::Failed),
            OpKind::Drop => {
                // One call deletes the pages of all ranks; calls of the other ranks find nothing.
                store.retain(|_, (root, _)| *root != job.op.root);
                return Some(Outcome::Done { leading: 0 });
            }
            OpKind::Fetch | OpKind::Load | OpKind::Save | OpKind::Backup => {}
        }
        let Some(record) = job.op.records.get(job.next).copied() else {
            return Some(Outcome::Done { leading: job.next as u32 });
        };
        let key = self.key(&job.op, record.hash);
        if let Some(content) = job.read.take() {
            let fails = job.fails_at == Some(job.next);
            let written = if fails { GARBAGE } else { content };
            match record.target {
                Place::Page(page) => self.write(page, written),
                Place::Store if !fails => drop(store.insert(key, (job.op.root, written))),
                Place::Store | Place::Nowhere => {}
            }
            if fails {
                return Some(Outcome::Failed);
            }
            job.next += 1;
            return None;
        }
        job.read = match record.source {
            Place::Page(page) => Some(self.memory(page)).filter(|content| *content != LOST),
            Place::Store => store.get(&key).map(|(_, content)| *content),
            Place::Nowhere => None,
        };
        // A page that the store no longer has ends the operation.
        job.read.is_none().then_some(Outcome::Done { leading: job.next as u32 })
    }
}
