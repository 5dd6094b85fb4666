//! The executor: an engine, and the threads that do what it says.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tiffin_kv::{
    Config, ConfigError, Effect, Engine, Input, LocalAcks, OpId, OpKind, Operation, Outcome, RankPart, ReqId,
    Submit, Tick,
};

use crate::device::Device;
use crate::gather::{Gather, GatherError, Word};
use crate::lanes::{Ends, Job, Lanes, Threads};
use crate::pages::Pages;
use crate::store::{Fault, Stop, Store};
use crate::work::Work;

/// The engine's ticks are milliseconds.
const TICKS_PER_SECOND: u64 = 1000;

/// What an executor works with.
pub struct Parts {
    /// Host memory, one page for each that the engine has.
    pub host: Arc<Pages>,
    /// What computes.
    pub device: Box<dyn Device>,
    /// The shared store, if the engine has one.
    pub store: Option<Box<dyn Store>>,
    /// Which part of every page this rank keeps.
    pub rank: RankPart,
    /// The collective, if there are several ranks.
    pub gather: Option<Box<dyn Gather>>,
    /// Threads.
    pub threads: Threads,
    /// Ranks compare what their engines look like in every step of which this is a divisor; 0 for never.
    pub compare_every: u64,
}

/// Why there can be no executor like that.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The engine cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Memory and engine disagree.
    #[error("the host has {pages} pages of memory and the engine {engine}\n\nhint: give one for each")]
    HostPages {
        /// What there is.
        pages: u32,
        /// What there should be.
        engine: u32,
    },
    /// A store that is configured and missing, or the other way round.
    #[error("the engine expects a store: {0}; one is given: {1}\n\nhint: give one, or configure none")]
    Store(bool, bool),
    /// Several ranks that cannot hear of each other.
    #[error("{0} ranks and nothing that gathers\n\nhint: give `gather`, one all-gather of bytes")]
    NoGather(u32),
    /// The store cannot use the memory.
    #[error("the store cannot use the host's memory: {0}\n\nhint: see the store's log")]
    Register(Fault),
    /// No threads.
    #[error("threads could not be started: {0}\n\nhint: see `ulimit -u`")]
    Threads(#[from] io::Error),
}

/// Why a step did nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// The ranks could not be asked. The step may be tried again, by all of them.
    #[error(transparent)]
    Gather(#[from] GatherError),
    /// A rank said something that is no word, or there were more or fewer than ranks.
    #[error("what was gathered is not one word of each rank\n\nhint: gather bytes, in the order of ranks")]
    NoWord,
    /// A rank has taken more steps than another.
    #[error(
        "rank {0} is at step {1}, this one at step {2}\n\nhint: every rank steps as often as every other"
    )]
    OutOfStep(u32, u64, u64),
    /// A rank decided differently before.
    #[error("rank {0} has decided differently\n\nhint: tell all ranks the same in the same order")]
    Diverged(u32),
}

/// What a step came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// What is left for the caller to do, in order: everything but operations.
    pub effects: Vec<Effect>,
    /// Operations that have ended on every rank, in the order of their ids.
    pub ended: Vec<OpEnd>,
}

/// An operation that has ended on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpEnd {
    /// Its name.
    pub id: OpId,
    /// What it did.
    pub kind: OpKind,
    /// The request that it was issued for, if it was for one.
    pub request: Option<ReqId>,
    /// How many pages it had.
    pub pages: u32,
    /// How it ended, rank by rank.
    pub by_rank: Vec<Outcome>,
}

impl OpEnd {
    /// How many pages, counted from the first, every rank has.
    #[must_use]
    pub fn leading(&self) -> u32 {
        let of = |outcome: &Outcome| match outcome {
            Outcome::Done { leading } => *leading,
            Outcome::Failed => 0,
        };
        self.by_rank.iter().map(of).min().unwrap_or(0)
    }
}

/// What was moved so far, in pages, by kind of operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Pages that operations named, in the order of [`OpKind::ALL`].
    pub asked: [u64; OpKind::ALL.len()],
    /// Of these, the ones that were done.
    pub done: [u64; OpKind::ALL.len()],
    /// Operations that came to nothing, other than by being stopped.
    pub faults: u64,
    /// Operations that were stopped.
    pub stopped: u64,
    /// Operations on pages that somebody else used: a bug, and always zero.
    pub conflicts: u64,
    /// Operations that panicked: a bug, and always zero.
    pub panics: u64,
    /// The last fault, in words.
    pub last_fault: Option<String>,
}

/// Waits for something to step for. It knows of the alarms that were set when it was made.
pub struct Waiter {
    ends: Arc<Ends>,
    alarm: Option<Instant>,
}

impl Waiter {
    /// Waits for so long at most, and says whether there is something.
    #[must_use]
    pub fn wait(&self, at_most: Duration) -> bool {
        let alarm = self.alarm.map(|alarm| alarm.saturating_duration_since(Instant::now()));
        let until = alarm.map_or(at_most, |alarm| alarm.min(at_most));
        self.ends.wait(until) || alarm.is_some_and(|alarm| alarm <= at_most)
    }
}

/// An operation that has not ended on every rank.
struct Open {
    kind: OpKind,
    request: Option<ReqId>,
    pages: u32,
    /// To stop it with, until it has ended here.
    stop: Option<Stop>,
    by_rank: Vec<Option<Outcome>>,
}

/// An engine over real memory. Dropping it stops what is under way without waiting for it; memory lives until
/// nothing touches it any more.
pub struct Executor {
    engine: Engine,
    ranks: u32,
    rank: u32,
    work: Arc<Work>,
    lanes: Lanes,
    ends: Arc<Ends>,
    gather: Option<Box<dyn Gather>>,
    compare_every: u64,
    open: BTreeMap<OpId, Open>,
    began: Instant,
    /// The latest moment that all ranks agreed on.
    now: Tick,
    steps: u64,
    moved: Moved,
}

impl Executor {
    /// Starts the threads. Nothing moves yet.
    ///
    /// # Errors
    /// If the parts do not fit together, or the system has no threads.
    pub fn start(config: Config, parts: Parts) -> Result<Self, StartError> {
        let Parts { host, device, store, rank, gather, threads, compare_every } = parts;
        let engine = Engine::new(config)?;
        if host.count() != config.host_pages {
            return Err(StartError::HostPages { pages: host.count(), engine: config.host_pages });
        }
        if store.is_some() != config.store.is_some() {
            return Err(StartError::Store(config.store.is_some(), store.is_some()));
        }
        if config.ranks > 1 && gather.is_none() {
            return Err(StartError::NoGather(config.ranks));
        }
        if let Some(store) = &store {
            let bytes = host.page_bytes() * host.count() as usize;
            store.register(host.address(), bytes).map_err(StartError::Register)?;
        }
        let ends = Arc::<Ends>::default();
        let (asked, moved) = Default::default();
        let work = Arc::new(Work { host, device, store, rank, asked, moved });
        let lanes = Lanes::start(&work, threads, &ends)?;
        Ok(Self {
            engine,
            ranks: config.ranks,
            rank: config.rank,
            work,
            lanes,
            ends,
            gather: gather.filter(|_| config.ranks > 1),
            compare_every,
            open: BTreeMap::new(),
            began: Instant::now(),
            now: 0,
            steps: 0,
            moved: Moved::default(),
        })
    }

    /// One step: what has ended and what the caller says is told to the engine, what it wants done is begun,
    /// and the rest is returned. Does not wait for anything but, where there are several, the other ranks.
    /// The deadline of a request counts from this step, in milliseconds: ranks need no common clock.
    ///
    /// # Errors
    /// If the ranks do not come together. Nothing of `inputs` was told to the engine then.
    pub fn step(&mut self, inputs: impl IntoIterator<Item = Input>) -> Result<Step, StepError> {
        let mut step = Step::default();
        let heard = self.hear();
        let mut effects = Vec::new();
        if self.gather.is_some() {
            for (op, outcome) in heard {
                effects.extend(self.engine.apply(Input::Complete(op, outcome), self.now));
            }
            let words = self.gather()?;
            self.now = words.iter().map(|word| word.now).max().unwrap_or(0).max(self.now);
            let acks: Vec<_> = words.into_iter().map(|word| word.acks).collect();
            for (rank, LocalAcks(acks)) in acks.iter().enumerate() {
                for (op, outcome) in acks {
                    self.vote(*op, rank, *outcome);
                }
            }
            effects.extend(self.engine.apply(Input::Agreed(acks), self.now));
        } else {
            self.now = self.clock();
            effects.extend(self.engine.apply(Input::Tick, self.now));
            for (op, outcome) in heard {
                self.vote(op, 0, outcome);
                effects.extend(self.engine.apply(Input::Complete(op, outcome), self.now));
            }
        }
        self.steps += 1;
        self.close_ended(&mut step);
        for mut input in inputs {
            if let Input::Submit(Submit { deadline: Some(deadline), .. }) = &mut input {
                *deadline = deadline.saturating_add(self.now);
            }
            effects.extend(self.engine.apply(input, self.now));
        }
        for effect in effects {
            match effect {
                Effect::Issue(operation) => self.issue(operation),
                Effect::CancelHint(op) => self.stop(op),
                other => step.effects.push(other),
            }
        }
        Ok(step)
    }

    /// Waits until there is something to step for: an operation has ended here, or time alone brings
    /// something about. Says whether there is, after so long at most.
    #[must_use]
    pub fn wait(&self, at_most: Duration) -> bool {
        self.waiter().wait(at_most)
    }

    /// To wait for the same while others step.
    #[must_use]
    pub fn waiter(&self) -> Waiter {
        let clock = self.clock();
        let alarm = self.engine.next_alarm().map(|at| Duration::from_millis(at.saturating_sub(clock)));
        // What has ended here and not on every rank may have ended there meanwhile: only a step can tell. It
        // waits for the others itself, and they for what they have under way.
        let others = |open: &Open| open.stop.is_none() && open.by_rank.iter().any(Option::is_none);
        let alarm = if self.open.values().any(others) { Some(Duration::ZERO) } else { alarm };
        Waiter { ends: Arc::clone(&self.ends), alarm: alarm.map(|alarm| Instant::now() + alarm) }
    }

    /// The engine, to be asked.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The host's pages.
    #[must_use]
    pub fn host(&self) -> &Arc<Pages> {
        &self.work.host
    }

    /// How many operations have not ended on every rank.
    #[must_use]
    pub fn open_ops(&self) -> usize {
        self.open.len()
    }

    /// What was moved so far.
    #[must_use]
    pub fn moved(&self) -> Moved {
        let mut moved = self.moved.clone();
        let pairs = [(&mut moved.asked, &self.work.asked), (&mut moved.done, &self.work.moved)];
        for (numbers, counters) in pairs {
            for (number, counter) in numbers.iter_mut().zip(counters) {
                *number = counter.load(Ordering::Relaxed);
            }
        }
        moved
    }

    /// Stops what is under way here, and waits for it: after `true` nobody touches any page any more.
    /// Backups are let go on for as long as there is time; all else is told to stop at once.
    pub fn close(&mut self, at_most: Duration) -> bool {
        let until = Instant::now() + at_most;
        let is_backup = |open: &Open| matches!(open.kind, OpKind::Backup | OpKind::Drop);
        self.open.values().filter(|open| !is_backup(open)).for_each(Open::tell);
        loop {
            self.hear();
            let left = until.saturating_duration_since(Instant::now());
            if self.open.values().all(|open| open.stop.is_none()) {
                return true;
            }
            if left.is_zero() {
                self.open.values().for_each(Open::tell);
                return false;
            }
            self.ends.wait(left);
        }
    }

    fn clock(&self) -> Tick {
        let elapsed = self.began.elapsed();
        elapsed.as_secs() * TICKS_PER_SECOND + u64::from(elapsed.subsec_millis())
    }

    /// What has ended here since the last time.
    fn hear(&mut self) -> Vec<(OpId, Outcome)> {
        let mut heard = Vec::new();
        for ended in self.ends.take() {
            if let Some(open) = self.open.get_mut(&ended.id) {
                open.stop = None;
            }
            self.moved.panics += u64::from(ended.has_panicked);
            match ended.fault {
                None => {}
                Some(Fault::Stopped) => self.moved.stopped += 1,
                Some(fault) => {
                    self.moved.conflicts += u64::from(matches!(fault, Fault::Page(_)));
                    self.moved.faults += 1;
                    self.moved.last_fault = Some(fault.to_string());
                }
            }
            heard.push((ended.id, ended.outcome));
        }
        heard
    }

    fn gather(&mut self) -> Result<Vec<Word>, StepError> {
        let (step, now, acks) = (self.steps, self.clock(), self.engine.agree());
        let compares = self.compare_every > 0 && step.is_multiple_of(self.compare_every);
        let digest = if compares { self.engine.digest() } else { 0 };
        let Some(gather) = &mut self.gather else { return Ok(Vec::new()) };
        let gathered = gather.all_gather(Word { step, now, digest, acks }.encode())?;
        let words: Option<Vec<_>> = gathered.iter().map(|bytes| Word::decode(bytes)).collect();
        let words = words.filter(|words| words.len() == self.ranks as usize).ok_or(StepError::NoWord)?;
        for (rank, word) in (0..).zip(&words) {
            if word.step != step {
                return Err(StepError::OutOfStep(rank, word.step, step));
            }
            if word.digest != digest {
                return Err(StepError::Diverged(rank));
            }
        }
        Ok(words)
    }

    fn vote(&mut self, op: OpId, rank: usize, outcome: Outcome) {
        if let Some(vote) = self.open.get_mut(&op).and_then(|open| open.by_rank.get_mut(rank)) {
            vote.get_or_insert(outcome);
        }
    }

    /// Tells of the operations that have ended on every rank.
    fn close_ended(&mut self, step: &mut Step) {
        let has_ended = |open: &Open| open.by_rank.iter().all(Option::is_some);
        let ended: Vec<_> = self.open.iter().filter(|(_, open)| has_ended(open)).map(|(id, _)| *id).collect();
        for id in ended {
            let Some(Open { kind, request, pages, by_rank, .. }) = self.open.remove(&id) else { continue };
            let by_rank = by_rank.into_iter().flatten().collect();
            step.ended.push(OpEnd { id, kind, request, pages, by_rank });
        }
    }

    fn issue(&mut self, operation: Operation) {
        let patience = operation.deadline.saturating_sub(self.now);
        let stop = Stop::at(Instant::now() + Duration::from_millis(patience));
        let open = Open {
            kind: operation.kind,
            request: operation.request,
            pages: operation.records.len() as u32,
            stop: Some(stop.clone()),
            by_rank: vec![None; self.ranks as usize],
        };
        self.open.insert(operation.id, open);
        self.lanes.start_job(Job { operation, stop });
    }

    /// Nobody waits for it any more. One that has ended here is heard of with the next step, or was already.
    fn stop(&self, op: OpId) {
        if let Some(open) = self.open.get(&op) {
            open.tell();
        }
    }

    /// Which rank this is.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }
}

impl Open {
    fn tell(&self) {
        if let Some(stop) = &self.stop {
            stop.now();
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.open.values().for_each(Open::tell);
    }
}
