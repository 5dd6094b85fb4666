//! Threads that execute operations, in lanes that do not delay each other (L8).
//!
//! A backup, for which no request waits, never delays a fetch, for which a request waits; a probe never waits
//! for the pages of another operation. Each lane has threads and a bounded queue of its own.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tiffin_kv::{OpId, OpKind, Operation, Outcome};

use crate::device::Fence;
use crate::load::LoadProgress;
use crate::resources::Resources;
use crate::store::{Fault, Stop};

/// Maximum number of queued operations of a lane. The engine's budgets stay far below.
const LANE_JOBS_MAX: usize = 1 << 16;

/// Number of threads of each lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threads {
    /// For probes of the store.
    pub probe: usize,
    /// From the store to the host.
    pub fetch: usize,
    /// From the host to the device.
    pub load: usize,
    /// From the device to the host.
    pub save: usize,
    /// From the host to the store, and drops.
    pub backup: usize,
}

impl Default for Threads {
    fn default() -> Self {
        Self { probe: 1, fetch: 2, load: 1, save: 1, backup: 1 }
    }
}

/// An operation to execute.
pub(crate) struct Job {
    pub(crate) operation: Operation,
    pub(crate) stop: Stop,
    /// What comes before it on the device.
    pub(crate) after: After,
    /// How far a load has come.
    pub(crate) progress: Arc<LoadProgress>,
}

/// The fence of a step, if it needs one, or why there is none.
pub(crate) type After = Result<Option<Arc<dyn Fence>>, Fault>;

/// The end of an operation on this rank.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) id: OpId,
    pub(crate) outcome: Outcome,
    pub(crate) fault: Option<Fault>,
    pub(crate) has_panicked: bool,
}

/// Completions that no step has processed yet.
#[derive(Default)]
pub(crate) struct Ends {
    list: Mutex<Vec<Ended>>,
    wake: Condvar,
}

impl Ends {
    fn push(&self, ended: Ended) {
        lock(&self.list).push(ended);
        self.wake.notify_all();
    }

    /// Removes and returns all of them.
    pub(crate) fn take(&self) -> Vec<Ended> {
        std::mem::take(&mut *lock(&self.list))
    }

    /// Waits until there is one, at most this long.
    pub(crate) fn wait(&self, at_most: Duration) -> bool {
        let list = lock(&self.list);
        let (list, _) = self
            .wake
            .wait_timeout_while(list, at_most, |list| list.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        !list.is_empty()
    }
}

/// All lanes. When they are dropped, each thread ends after its current operation.
pub(crate) struct Lanes {
    lanes: [Arc<Lane>; 5],
    ends: Arc<Ends>,
}

#[derive(Default)]
struct Lane {
    queue: Mutex<LaneQueue>,
    wake: Condvar,
}

#[derive(Default)]
struct LaneQueue {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

impl Lanes {
    /// Starts the threads.
    pub(crate) fn start(resources: &Arc<Resources>, threads: Threads, ends: &Arc<Ends>) -> io::Result<Self> {
        let lanes = Self { lanes: Default::default(), ends: Arc::clone(ends) };
        let Threads { probe, fetch, load, save, backup } = threads;
        let names = ["probe", "fetch", "load", "save", "backup"];
        for ((lane, count), name) in lanes.lanes.iter().zip([probe, fetch, load, save, backup]).zip(names) {
            for _ in 0..count.max(1) {
                let (lane, resources, ends) = (Arc::clone(lane), Arc::clone(resources), Arc::clone(ends));
                let body = move || {
                    while let Some(job) = lane.next() {
                        ends.push(execute(&resources, &job));
                    }
                };
                thread::Builder::new().name(format!("tiffin-kv-{name}")).spawn(body)?;
            }
        }
        Ok(lanes)
    }

    /// Queues an operation. It fails at once if its lane is full.
    pub(crate) fn start_job(&self, job: Job) {
        let [probe, fetch, load, save, backup] = &self.lanes;
        let lane = match job.operation.kind {
            OpKind::Probe => probe,
            OpKind::Fetch => fetch,
            OpKind::Load => load,
            OpKind::Save => save,
            OpKind::Backup | OpKind::Drop => backup,
        };
        let mut queue = lock(&lane.queue);
        if queue.jobs.len() < LANE_JOBS_MAX {
            queue.jobs.push_back(job);
            drop(queue);
            lane.wake.notify_one();
        } else {
            drop(queue);
            job.progress.end();
            let fault = Some(Fault::Other(format!("more than {LANE_JOBS_MAX} operations are queued")));
            let (id, outcome) = (job.operation.id, Outcome::Failed);
            self.ends.push(Ended { id, outcome, fault, has_panicked: false });
        }
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        for lane in &self.lanes {
            lock(&lane.queue).is_closed = true;
            lane.wake.notify_all();
        }
    }
}

impl Lane {
    /// The next job; `None` when the lane is closed. Queued jobs were stopped before that.
    fn next(&self) -> Option<Job> {
        let queue = lock(&self.queue);
        let idle = |queue: &mut LaneQueue| queue.jobs.is_empty() && !queue.is_closed;
        let mut queue = self.wake.wait_while(queue, idle).unwrap_or_else(PoisonError::into_inner);
        queue.jobs.pop_front()
    }
}

/// Runs an operation so that it ends exactly once, even if it panics.
fn execute(resources: &Resources, job: &Job) -> Ended {
    let id = job.operation.id;
    let done = catch_unwind(AssertUnwindSafe(|| resources.execute(job)));
    job.progress.end();
    let (outcome, fault, has_panicked) = match done {
        Ok(Ok(leading)) => (Outcome::Done { leading }, None, false),
        Ok(Err(fault)) => (Outcome::Failed, Some(fault), false),
        Err(_) => (Outcome::Failed, Some(Fault::Other("the operation panicked".to_owned())), true),
    };
    Ended { id, outcome, fault, has_panicked }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
