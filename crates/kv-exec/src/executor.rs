//! The executor: an engine, and the threads that execute its operations.

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
use crate::gather::{Contribution, Gather, GatherError};
use crate::lanes::{After, Ends, Job, Lanes, Threads};
use crate::load::{LoadProgress, Loads};
use crate::pages::Pages;
use crate::resources::Resources;
use crate::store::{Fault, PageStore, Stop};

/// The engine's ticks are milliseconds.
const TICKS_PER_SECOND: u64 = 1000;

/// The parts of an executor.
pub struct Parts {
    /// Host memory, with as many pages as the engine has.
    pub host: Arc<Pages>,
    /// The device.
    pub device: Box<dyn Device>,
    /// The shared store, if the engine has one.
    pub store: Option<Box<dyn PageStore>>,
    /// Which part of every page this rank holds.
    pub rank: RankPart,
    /// The collective, if there are several ranks.
    pub gather: Option<Box<dyn Gather>>,
    /// Number of threads per lane.
    pub threads: Threads,
    /// Ranks compare the digests of their engines every this many steps; 0 for never.
    pub compare_every: u64,
}

/// Why an executor could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The number of host pages differs between memory and engine.
    #[error(
        "the host has {pages} pages of memory and the engine {engine}\n\nhint: use the same number for both"
    )]
    HostPages {
        /// Pages of memory.
        pages: u32,
        /// Pages of the engine.
        engine: u32,
    },
    /// A store is configured but missing, or present but not configured.
    #[error(
        "store configured: {0}, store present: {1}\n\nhint: pass a store if and only if one is configured"
    )]
    StoreMismatch(bool, bool),
    /// Several ranks without a collective.
    #[error("{0} ranks without a collective\n\nhint: pass `gather`, an all-gather of bytes")]
    NoGather(u32),
    /// The store cannot register the memory.
    #[error("the store cannot register the host's memory: {0}\n\nhint: see the store's log")]
    Register(Fault),
    /// Threads could not be started.
    #[error("threads could not be started: {0}\n\nhint: see `ulimit -u`")]
    Threads(#[from] io::Error),
}

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// The gather failed. All ranks may retry the step.
    #[error(transparent)]
    Gather(#[from] GatherError),
    /// A contribution is invalid, or the number of contributions is not the number of ranks.
    #[error(
        "the gather did not return one contribution of each rank\n\nhint: return all bytes, in rank order"
    )]
    BadContribution,
    /// This rank and another are at different steps.
    #[error("rank {0} is at step {1}, this one at step {2}\n\nhint: step all ranks equally often")]
    OutOfStep(u32, u64, u64),
    /// A rank has made a different decision before.
    #[error("rank {0} has decided differently\n\nhint: give all ranks the same inputs in the same order")]
    Diverged(u32),
}

/// The result of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The effects for the caller, in order: all except operations.
    pub effects: Vec<Effect>,
    /// Operations that have ended on every rank, in the order of their ids.
    pub ended: Vec<OpEnd>,
    /// Operations that this step has started, in order.
    pub begun: Vec<Operation>,
}

/// An operation that has ended on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpEnd {
    /// The id.
    pub id: OpId,
    /// The kind.
    pub kind: OpKind,
    /// The request that it was issued for, if any.
    pub request: Option<ReqId>,
    /// Number of its pages.
    pub pages: u32,
    /// Outcome on each rank.
    pub by_rank: Vec<Outcome>,
}

impl OpEnd {
    /// Number of leading pages that every rank has.
    #[must_use]
    pub fn leading(&self) -> u32 {
        let of = |outcome: &Outcome| match outcome {
            Outcome::Done { leading } => *leading,
            Outcome::Failed => 0,
        };
        self.by_rank.iter().map(of).min().unwrap_or(0)
    }
}

/// Counts of operations and pages so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpCounts {
    /// Pages of all operations, in the order of [`OpKind::ALL`].
    pub asked: [u64; OpKind::ALL.len()],
    /// Pages that succeeded.
    pub done: [u64; OpKind::ALL.len()],
    /// Operations that failed without being stopped.
    pub faults: u64,
    /// Operations that were stopped.
    pub stopped: u64,
    /// Operations on pages that were in use: a bug, so always zero.
    pub conflicts: u64,
    /// Operations that panicked: a bug, so always zero.
    pub panics: u64,
    /// The last fault, as text.
    pub last_fault: Option<String>,
}

/// Waits until a step has resources to do. It knows the alarms that were set when it was made.
pub struct Waiter {
    ends: Arc<Ends>,
    alarm: Option<Instant>,
}

impl Waiter {
    /// Waits at most this long. True if there is resources.
    #[must_use]
    pub fn wait(&self, at_most: Duration) -> bool {
        let alarm = self.alarm.map(|alarm| alarm.saturating_duration_since(Instant::now()));
        let until = alarm.map_or(at_most, |alarm| alarm.min(at_most));
        self.ends.wait(until) || alarm.is_some_and(|alarm| alarm <= at_most)
    }
}

/// An operation that has not ended on every rank.
struct OpenOp {
    kind: OpKind,
    request: Option<ReqId>,
    pages: u32,
    /// Stops it; `None` once it has ended here.
    stop: Option<Stop>,
    progress: Arc<LoadProgress>,
    by_rank: Vec<Option<Outcome>>,
}

/// An engine over real memory. Dropping it stops operations in flight without waiting for them; the memory
/// lives until no operation accesses it any more.
pub struct Executor {
    engine: Engine,
    ranks: u32,
    rank: u32,
    resources: Arc<Resources>,
    lanes: Lanes,
    ends: Arc<Ends>,
    gather: Option<Box<dyn Gather>>,
    compare_every: u64,
    open: BTreeMap<OpId, OpenOp>,
    began: Instant,
    /// The last time that all ranks agreed on.
    now: Tick,
    steps: u64,
    moved: OpCounts,
}

impl Executor {
    /// Starts the threads.
    ///
    /// # Errors
    /// If the parts do not match, or threads cannot be started.
    pub fn start(config: Config, parts: Parts) -> Result<Self, StartError> {
        let Parts { host, device, store, rank, gather, threads, compare_every } = parts;
        let engine = Engine::new(config)?;
        if host.count() != config.host_pages {
            return Err(StartError::HostPages { pages: host.count(), engine: config.host_pages });
        }
        if store.is_some() != config.store.is_some() {
            return Err(StartError::StoreMismatch(config.store.is_some(), store.is_some()));
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
        let resources = Arc::new(Resources { host, device, store, rank, asked, moved });
        let lanes = Lanes::start(&resources, threads, &ends)?;
        Ok(Self {
            engine,
            ranks: config.ranks,
            rank: config.rank,
            resources,
            lanes,
            ends,
            gather: gather.filter(|_| config.ranks > 1),
            compare_every,
            open: BTreeMap::new(),
            began: Instant::now(),
            now: 0,
            steps: 0,
            moved: OpCounts::default(),
        })
    }

    /// One step: gives completions and the caller's inputs to the engine, starts its operations, and returns
    /// its other effects. It waits for the other ranks, if there are any, and for nothing else. The deadline
    /// of a request counts from this step, in milliseconds: ranks need no common clock.
    ///
    /// # Errors
    /// If the gather fails. The engine has received none of `inputs` then.
    pub fn step(&mut self, inputs: impl IntoIterator<Item = Input>) -> Result<Step, StepError> {
        let mut step = Step::default();
        let completions = self.take_completions();
        let mut effects = Vec::new();
        if self.gather.is_some() {
            for (op, outcome) in completions {
                effects.extend(self.engine.apply(Input::Complete(op, outcome), self.now));
            }
            let contributions = self.gather()?;
            self.now =
                contributions.iter().map(|contribution| contribution.now).max().unwrap_or(0).max(self.now);
            let acks: Vec<_> = contributions.into_iter().map(|contribution| contribution.acks).collect();
            for (rank, LocalAcks(acks)) in acks.iter().enumerate() {
                for (op, outcome) in acks {
                    self.vote(*op, rank, *outcome);
                }
            }
            effects.extend(self.engine.apply(Input::Agreed(acks), self.now));
        } else {
            self.now = self.clock();
            effects.extend(self.engine.apply(Input::Tick, self.now));
            for (op, outcome) in completions {
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
        let mut fence = None;
        for effect in effects {
            match effect {
                Effect::Issue(operation) => {
                    step.begun.push(operation.clone());
                    let after = self.fence(operation.kind, &mut fence);
                    self.issue(operation, after);
                }
                Effect::CancelHint(op) => self.stop(op),
                other => step.effects.push(other),
            }
        }
        Ok(step)
    }

    /// Waits until a step has resources to do: an operation has ended here, or an alarm is due. Waits at most
    /// this long. True if there is resources.
    #[must_use]
    pub fn wait(&self, at_most: Duration) -> bool {
        self.waiter().wait(at_most)
    }

    /// A waiter that works while other threads step.
    #[must_use]
    pub fn waiter(&self) -> Waiter {
        let clock = self.clock();
        let alarm = self.engine.next_alarm().map(|at| Duration::from_millis(at.saturating_sub(clock)));
        // An operation that has ended here may have ended on the other ranks meanwhile, which only a step
        // finds out. The step waits for the other ranks itself.
        let others = |open: &OpenOp| open.stop.is_none() && open.by_rank.iter().any(Option::is_none);
        let alarm = if self.open.values().any(others) { Some(Duration::ZERO) } else { alarm };
        Waiter { ends: Arc::clone(&self.ends), alarm: alarm.map(|alarm| Instant::now() + alarm) }
    }

    /// The loads that steps have started and that have not ended here, for streams that wait for layers of
    /// them.
    #[must_use]
    pub fn loads(&self) -> Loads {
        let is_load = |open: &&OpenOp| open.kind == OpKind::Load && open.stop.is_some();
        Loads(self.open.values().filter(is_load).map(|open| Arc::clone(&open.progress)).collect())
    }

    /// The engine, for queries.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The host's pages.
    #[must_use]
    pub fn host(&self) -> &Arc<Pages> {
        &self.resources.host
    }

    /// Number of operations that have not ended on every rank.
    #[must_use]
    pub fn open_ops(&self) -> usize {
        self.open.len()
    }

    /// Counts of operations and pages so far.
    #[must_use]
    pub fn moved(&self) -> OpCounts {
        let mut moved = self.moved.clone();
        let pairs = [(&mut moved.asked, &self.resources.asked), (&mut moved.done, &self.resources.moved)];
        for (numbers, counters) in pairs {
            for (number, counter) in numbers.iter_mut().zip(counters) {
                *number = counter.load(Ordering::Relaxed);
            }
        }
        moved
    }

    /// Stops operations in flight here, and waits for them: after `true` no operation accesses a page any
    /// more. Backups may continue until the time is over; all others are stopped at once.
    pub fn close(&mut self, at_most: Duration) -> bool {
        let until = Instant::now() + at_most;
        let is_backup = |open: &OpenOp| matches!(open.kind, OpKind::Backup | OpKind::Drop);
        self.open.values().filter(|open| !is_backup(open)).for_each(OpenOp::stop);
        loop {
            self.take_completions();
            let left = until.saturating_duration_since(Instant::now());
            if self.open.values().all(|open| open.stop.is_none()) {
                return true;
            }
            if left.is_zero() {
                self.open.values().for_each(OpenOp::stop);
                return false;
            }
            self.ends.wait(left);
        }
    }

    fn clock(&self) -> Tick {
        let elapsed = self.began.elapsed();
        elapsed.as_secs() * TICKS_PER_SECOND + u64::from(elapsed.subsec_millis())
    }

    /// Completions on this rank since the last call.
    fn take_completions(&mut self) -> Vec<(OpId, Outcome)> {
        let mut completions = Vec::new();
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
            completions.push((ended.id, ended.outcome));
        }
        completions
    }

    fn gather(&mut self) -> Result<Vec<Contribution>, StepError> {
        let (step, now, acks) = (self.steps, self.clock(), self.engine.agree());
        let compares = self.compare_every > 0 && step.is_multiple_of(self.compare_every);
        let digest = if compares { self.engine.digest() } else { 0 };
        let Some(gather) = &mut self.gather else { return Ok(Vec::new()) };
        let gathered = gather.all_gather(Contribution { step, now, digest, acks }.encode())?;
        let contributions: Option<Vec<_>> =
            gathered.iter().map(|bytes| Contribution::decode(bytes)).collect();
        let contributions = contributions
            .filter(|contributions| contributions.len() == self.ranks as usize)
            .ok_or(StepError::BadContribution)?;
        for (rank, contribution) in (0..).zip(&contributions) {
            if contribution.step != step {
                return Err(StepError::OutOfStep(rank, contribution.step, step));
            }
            if contribution.digest != digest {
                return Err(StepError::Diverged(rank));
            }
        }
        Ok(contributions)
    }

    fn vote(&mut self, op: OpId, rank: usize, outcome: Outcome) {
        if let Some(vote) = self.open.get_mut(&op).and_then(|open| open.by_rank.get_mut(rank)) {
            vote.get_or_insert(outcome);
        }
    }

    /// Reports the operations that have ended on every rank.
    fn close_ended(&mut self, step: &mut Step) {
        let has_ended = |open: &OpenOp| open.by_rank.iter().all(Option::is_some);
        let ended: Vec<_> = self.open.iter().filter(|(_, open)| has_ended(open)).map(|(id, _)| *id).collect();
        for id in ended {
            let Some(OpenOp { kind, request, pages, by_rank, .. }) = self.open.remove(&id) else { continue };
            let by_rank = by_rank.into_iter().flatten().collect();
            step.ended.push(OpEnd { id, kind, request, pages, by_rank });
        }
    }

    /// What comes before an operation of this step on the device. The caller has begun it before the step.
    fn fence(&self, kind: OpKind, of_step: &mut Option<After>) -> After {
        match kind {
            OpKind::Load | OpKind::Save => {
                of_step.get_or_insert_with(|| self.resources.device.fence()).clone()
            }
            OpKind::Probe | OpKind::Fetch | OpKind::Backup | OpKind::Drop => Ok(None),
        }
    }

    fn issue(&mut self, operation: Operation, after: After) {
        let timeout_ms = operation.deadline.saturating_sub(self.now);
        let stop = Stop::at(Instant::now() + Duration::from_millis(timeout_ms));
        let progress = Arc::<LoadProgress>::default();
        let open = OpenOp {
            kind: operation.kind,
            request: operation.request,
            pages: operation.records.len() as u32,
            stop: Some(stop.clone()),
            progress: Arc::clone(&progress),
            by_rank: vec![None; self.ranks as usize],
        };
        self.open.insert(operation.id, open);
        self.lanes.start_job(Job { operation, stop, after, progress });
    }

    /// Stops an operation that the engine abandoned. If it has ended here, its completion is in the next
    /// step, or was in an earlier one.
    fn stop(&self, op: OpId) {
        if let Some(open) = self.open.get(&op) {
            open.stop();
        }
    }

    /// The rank of this executor.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }
}

impl OpenOp {
    fn stop(&self) {
        if let Some(stop) = &self.stop {
            stop.stop();
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.open.values().for_each(OpenOp::stop);
    }
}
