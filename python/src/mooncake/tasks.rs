//! Copy and move tasks, which change the placement of an object's copies.
//!
//! In Mooncake, a task runs in the process that owns the source, which polls the master once a second. Here
//! the process that creates a task runs it at once, with [`tiffin_client::relocate`]. If the object changed
//! meanwhile, the task starts again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tiffin_client::relocate;
pub(super) use tiffin_client::relocate::{find, segments_of};
use tiffin_client::{Client, Deadline, Error, Key, NodeStat};
use tiffin_server::host;

use super::codes;
use super::enums::{TaskStatus, TaskType};
use crate::handle::Handle;
use crate::process::PerProcess;

/// The maximum number of waiting or running tasks in one store; Mooncake's default.
pub(super) const TASKS_MAX: usize = 10_000;
/// The maximum number of remembered tasks that have ended, in one store; Mooncake's default.
pub(super) const ENDED_MAX: usize = 10_000;
/// The maximum number of tasks that run at the same time in one store.
const RUNNING_MAX: usize = 4;
/// The maximum number of attempts, after a change of the object or a shortage of memory.
const TRIES_MAX: u32 = 10;
/// The increment of the pause before the next attempt.
const PAUSE: Duration = Duration::from_millis(50);
/// The time limit of one attempt.
const TRY_TIME: Duration = Duration::from_secs(60);

/// The id of a task.
pub(crate) type Id = (u64, u64);

/// A change of an object's copies. Segments have the names that `get_hostname` returns.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// These segments get further copies.
    Copy(Vec<String>),
    /// The copy on the first segment moves to the second.
    Move(String, String),
    /// The copies on this segment are removed.
    Clear(String),
}

impl Change {
    fn places(&self) -> relocate::Change {
        let (remove, add) = match self {
            Self::Copy(targets) => (None, targets.as_slice()),
            Self::Move(source, target) => (Some(source), std::slice::from_ref(target)),
            Self::Clear(source) => (Some(source), [].as_slice()),
        };
        let (remove, add) = (remove.into_iter().cloned().collect(), add.iter().cloned().collect());
        relocate::Change { remove, add, keeps_count: false }
    }
}

/// Makes the change once. `None` if the object changed meanwhile.
pub(super) async fn relocate(
    client: &Client,
    key: &Key,
    change: &Change,
    deadline: Deadline,
) -> Result<Option<()>, Error> {
    relocate::relocate(client, key, &change.places(), deadline).await
}

/// A task, as `query_task` reports it.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) id: Id,
    pub(super) kind: TaskType,
    pub(super) status: TaskStatus,
    pub(super) created_ms: u64,
    pub(super) updated_ms: u64,
    pub(super) client: Id,
    pub(super) message: String,
}

/// The tasks of one store.
#[derive(Default)]
pub(super) struct Tasks(PerProcess<Arc<Table>>);

struct Table {
    state: Mutex<State>,
    running: tokio::sync::Semaphore,
}

#[derive(Default)]
struct State {
    tasks: BTreeMap<Id, Task>,
    /// Tasks that have ended, the oldest first.
    ended: VecDeque<Id>,
}

impl Default for PerProcess<Arc<Table>> {
    fn default() -> Self {
        Self::new()
    }
}

impl Table {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, id: Id, status: TaskStatus, message: String) {
        let mut state = self.lock();
        if let Some(task) = state.tasks.get_mut(&id) {
            (task.status, task.message, task.updated_ms) = (status, message, now_ms());
        }
        if matches!(status, TaskStatus::Success | TaskStatus::Failed) {
            state.ended.push_back(id);
        }
        while state.ended.len() > ENDED_MAX {
            let oldest = state.ended.pop_front();
            oldest.and_then(|id| state.tasks.remove(&id));
        }
    }
}

impl Tasks {
    /// Checks a change, and starts a task for it. Returns Mooncake's code if it is refused.
    pub(super) async fn start(
        &self,
        handle: &Arc<Handle>,
        client: &Client,
        key: Key,
        change: Change,
        deadline: Deadline,
    ) -> Result<Id, i64> {
        check(client, &key, &change, deadline).await?;
        let table = Arc::clone(self.table());
        let (Ok(first), Ok(second)) = (host::draw(), host::draw()) else {
            return Err(codes::INTERNAL_ERROR);
        };
        let id = (first, second);
        let kind = match change {
            Change::Copy(_) => TaskType::ReplicaCopy,
            Change::Move(..) | Change::Clear(_) => TaskType::ReplicaMove,
        };
        let now = now_ms();
        let task = Task {
            id,
            kind,
            status: TaskStatus::Pending,
            created_ms: now,
            updated_ms: now,
            client: (client.id().0, 0),
            message: String::new(),
        };
        {
            let mut state = table.lock();
            if state.tasks.len() - state.ended.len() >= TASKS_MAX {
                return Err(codes::TASK_PENDING_LIMIT_EXCEEDED);
            }
            state.tasks.insert(id, task);
        }
        let handle = Arc::clone(handle);
        tokio::spawn(async move {
            let Ok(_turn) = table.running.acquire().await else { return };
            table.update(id, TaskStatus::Processing, String::new());
            match run(&handle, &key, &change).await {
                Ok(()) => {
                    table.update(id, TaskStatus::Success, "Task completed successfully".to_owned());
                }
                Err(why) => table.update(id, TaskStatus::Failed, why),
            }
        });
        Ok(id)
    }

    /// A task that this store has created.
    pub(super) fn find(&self, id: Id) -> Option<Task> {
        self.table().lock().tasks.get(&id).cloned()
    }

    fn table(&self) -> &Arc<Table> {
        let make = || Table { state: Mutex::default(), running: tokio::sync::Semaphore::new(RUNNING_MAX) };
        let Ok(table) = self.0.get_or_try(|| Ok::<_, std::convert::Infallible>(Arc::new(make())));
        table
    }
}

/// Refuses an impossible change: of a missing object, or with missing segments.
async fn check(client: &Client, key: &Key, change: &Change, deadline: Deadline) -> Result<(), i64> {
    let held = segments_of(&find(client, key, deadline).await.map_err(|error| codes::of(&error))?);
    let stat = client.stat(deadline).await.map_err(|error| codes::of(&error))?;
    let is_memory = |node: &&NodeStat| node.alive && node.info.beside.is_none();
    let there: BTreeSet<_> =
        stat.nodes.iter().filter(is_memory).map(|node| node.info.name.as_str()).collect();
    let is_valid = match change {
        Change::Copy(targets) => {
            !targets.is_empty() && targets.iter().all(|target| there.contains(target.as_str()))
        }
        Change::Move(source, target) => {
            source != target && held.contains(source) && there.contains(target.as_str())
        }
        Change::Clear(source) => held.contains(source),
    };
    if !is_valid {
        return Err(codes::INVALID_PARAMS);
    }
    let targets = match change {
        Change::Copy(targets) => targets.as_slice(),
        Change::Move(_, target) => std::slice::from_ref(target),
        Change::Clear(_) => &[],
    };
    // A draining node reports no capacity.
    let is_open = |it: &&NodeStat| is_memory(it) && it.usage.capacity > 0;
    let open: BTreeSet<_> = stat.nodes.iter().filter(is_open).map(|it| it.info.name.as_str()).collect();
    let takes = |target: &String| open.contains(target.as_str());
    if targets.iter().all(takes) { Ok(()) } else { Err(codes::UNAVAILABLE_IN_CURRENT_STATUS) }
}

async fn run(handle: &Handle, key: &Key, change: &Change) -> Result<(), String> {
    let mut last = String::new();
    for turn in 0..TRIES_MAX {
        let deadline = Deadline::after(TRY_TIME);
        let client = handle.client(deadline).await.map_err(|error| error.to_string())?;
        match relocate(&client, key, change, deadline).await {
            Ok(Some(())) => return Ok(()),
            Ok(None) => last = "OBJECT_REPLICA_BUSY".to_owned(),
            Err(Error::NotFound { .. }) => last = "OBJECT_NOT_FOUND".to_owned(),
            Err(Error::Full { .. } | Error::NoNode { .. } | Error::OverQuota { .. }) => {
                last = "NO_AVAILABLE_HANDLE".to_owned();
                tokio::time::sleep(PAUSE * turn).await;
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    Err(format!("{last} (max retries reached: {TRIES_MAX})"))
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
