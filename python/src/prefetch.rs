//! Promoting objects that are only on a disk: starting a prefetch, and waiting for it.
//!
//! A prefetch runs in the background from its request on. Python holds a [`Prefetch`], which it may wait
//! for any number of times, cancel or drop. Dropping does not stop the prefetch.

use std::sync::Arc;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tiffin_client::{Ahead, Client, Deadline, Error, Key, PrefetchOutcome, trace};
use tiffin_types::units::Count;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout_at;

use crate::errors;
use crate::handle::Operation;
use crate::keys::{Keys, UNGIVEN};
use crate::methods::{Any, Caller, methods};
use crate::operations::{Each, gather};

/// The outcomes of all keys, as soon as they are known.
type Told = watch::Receiver<Option<Each<PrefetchOutcome>>>;

/// Which objects a probe promotes, from the argument in Python.
pub(crate) fn ahead(py: Python<'_>, word: &str) -> PyResult<Ahead> {
    match word {
        "none" => Ok(Ahead::Nothing),
        "leading" => Ok(Ahead::LeadingRun),
        "all" => Ok(Ahead::All),
        other => {
            let hint = "give \"none\", \"leading\" or \"all\"";
            Err(errors::invalid(py, format!("prefetch={other:?} is unknown\n\nhint: {hint}")))
        }
    }
}

/// Starts a prefetch.
pub(crate) struct Begin {
    pub(crate) keys: Keys,
    pub(crate) ahead: Ahead,
    pub(crate) caller: Caller,
}

impl Operation for Begin {
    type Outcome = (Told, AbortHandle);

    fn waits(&self) -> bool {
        true
    }

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<Self::Outcome, Error> {
        let (tell, told) = watch::channel(None);
        let work = work(client.clone(), self.keys.list.clone(), self.ahead, deadline, tell);
        // The task continues the trace of the caller.
        let work = trace::scoped(trace::current(), work);
        Ok((told, tokio::spawn(work).abort_handle()))
    }

    fn answer(self, py: Python<'_>, (told, task): Self::Outcome) -> PyResult<Py<PyAny>> {
        let (is_one, keys) = (self.keys.is_one, self.keys.list.into());
        Prefetch { caller: self.caller, is_one, told, task, keys }.into_py_any(py)
    }
}

async fn work(
    client: Client,
    keys: Vec<Key>,
    ahead: Ahead,
    deadline: Deadline,
    tell: watch::Sender<Option<Each<PrefetchOutcome>>>,
) {
    let outcomes = client.prefetch(&keys, ahead, deadline).await;
    tell.send_replace(Some(outcomes));
}

/// A prefetch of objects into memory. Made by `tiffin.Store.prefetch`.
///
/// It runs in the background, even if this object is dropped.
#[pyclass(frozen, module = "tiffin")]
pub(crate) struct Prefetch {
    caller: Caller,
    is_one: bool,
    told: Told,
    task: AbortHandle,
    keys: Arc<[Key]>,
}

methods! {
    class Prefetch, with self and py;

    /// Waits for the end, and returns the outcome of each key, in the order of the keys; for one key, of that
    /// one.
    ///
    /// `"done"`: it is in memory now. `"resident"`: it was already. `"absent"`: there is no such object.
    /// `"skipped"`: memory is short, too many promotions are running, or the key is after a gap. `"failed"`:
    /// it could not be read, now or a short while ago. `"running"`: the times of the prefetch and of this
    /// call were over, and the promotion is still running.
    ///
    /// Raises `tiffin.Timeout` if `timeout` comes first, and the prefetch continues; and
    /// `concurrent.futures.CancelledError` if it was cancelled.
    call result() {
        Wait { told: self.told.clone(), is_one: self.is_one, keys: Arc::clone(&self.keys) }
    }

    /// Cancels it. Promotions that have not started, or that no other client wants, are given up; those that
    /// are almost complete still complete. `result` raises `concurrent.futures.CancelledError` from then on.
    /// Returns whether the prefetch was running; if not, nothing changes.
    call cancel() {
        Cancel { told: self.told.clone(), task: self.task.clone(), keys: Arc::clone(&self.keys) }
    }

    others {
        /// Whether it has ended, or was cancelled.
        #[getter]
        fn is_done(&self) -> bool {
            self.told.borrow().is_some() || self.told.has_changed().is_err()
        }

        fn __repr__(&self) -> String {
            let state = if self.is_done() { "done" } else { "running" };
            match &self.keys[..] {
                [key] => format!("<tiffin.Prefetch of `{key}`, {state}>"),
                keys => format!("<tiffin.Prefetch of {}, {state}>", Count(keys.len() as u64, "key")),
            }
        }
    }
}

struct Wait {
    told: Told,
    is_one: bool,
    keys: Arc<[Key]>,
}

impl Wait {
    /// Waits for promotions that still run after the time limit of the prefetch, until that of this call.
    async fn wait_on(&self, client: &Client, outcomes: &mut Each<PrefetchOutcome>, deadline: Deadline) {
        let places = self.keys.iter().zip(outcomes.iter_mut());
        let places = places.filter(|(_, it)| matches!(it, Ok(PrefetchOutcome::Running)));
        let (keys, places): (Vec<_>, Vec<_>) = places.map(|(key, place)| (key.clone(), place)).unzip();
        if keys.is_empty() || deadline.has_passed() {
            return;
        }
        let again = client.prefetch(&keys, Ahead::All, deadline).await;
        for (place, outcome) in places.into_iter().zip(again) {
            *place = match outcome {
                Ok(PrefetchOutcome::Resident) => Ok(PrefetchOutcome::Done),
                outcome => outcome,
            };
        }
    }
}

impl Operation for Wait {
    /// `None` if it was cancelled.
    type Outcome = Option<Each<PrefetchOutcome>>;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<Self::Outcome, Error> {
        let mut told = self.told.clone();
        let ended = timeout_at(deadline.instant(), told.wait_for(Option::is_some)).await;
        let ended = ended.map(|it| it.map(|outcomes| outcomes.clone()));
        match ended {
            Ok(Ok(Some(mut outcomes))) => {
                self.wait_on(client, &mut outcomes, deadline).await;
                Ok(Some(outcomes))
            }
            Ok(Ok(None) | Err(_)) => Ok(None),
            Err(_) => Err(Error::Timeout { what: "the prefetch has not ended yet".to_owned() }),
        }
    }

    fn answer(self, py: Python<'_>, outcome: Self::Outcome) -> PyResult<Py<PyAny>> {
        static CANCELLED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let Some(outcomes) = outcome else {
            let class = CANCELLED.import(py, "concurrent.futures", "CancelledError")?;
            return Err(PyErr::from_value(class.call1(("the prefetch was cancelled",))?));
        };
        gather(py, self.is_one, &UNGIVEN, outcomes, |outcome| word(outcome).into_py_any(py))
    }
}

struct Cancel {
    told: Told,
    task: AbortHandle,
    keys: Arc<[Key]>,
}

impl Operation for Cancel {
    type Outcome = bool;

    async fn run(&self, client: &Client, deadline: Deadline) -> Result<bool, Error> {
        let is_under_way = self.told.borrow().is_none() && self.told.has_changed().is_ok();
        self.task.abort();
        if is_under_way {
            // The master does not cancel a promotion that a request waits for, so the wait ends first.
            let mut told = self.told.clone();
            while told.changed().await.is_ok() {}
            client.cancel_prefetch(&self.keys, deadline).await.into_iter().collect::<Result<Vec<_>, _>>()?;
        }
        Ok(is_under_way)
    }

    fn answer(self, py: Python<'_>, outcome: bool) -> PyResult<Py<PyAny>> {
        outcome.into_py_any(py)
    }
}

fn word(outcome: PrefetchOutcome) -> &'static str {
    match outcome {
        PrefetchOutcome::Absent => "absent",
        PrefetchOutcome::Resident => "resident",
        PrefetchOutcome::Done => "done",
        PrefetchOutcome::Running => "running",
        PrefetchOutcome::Failed => "failed",
        PrefetchOutcome::Skipped => "skipped",
        PrefetchOutcome::Cancelled => "cancelled",
    }
}
