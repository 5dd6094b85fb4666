//! One connection that many callers share. It is opened on demand, by one attempt at a time, and opened
//! again after a failure.
//!
//! The attempt is a task with its own time limit. Each caller waits for it until the caller's own deadline.
//! A caller with a short deadline neither cancels the attempt nor starts another one.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::{Deadline, Error};

/// A connection that may have broken.
pub(crate) trait Usable {
    /// Whether it is still open.
    fn is_usable(&self) -> bool;

    /// Whether the next connection can reuse part of its state, so that it is kept until then.
    fn is_worth_keeping(&self) -> bool;
}

/// A connection that may have to be opened first.
pub(crate) struct Link<T> {
    state: Mutex<State<T>>,
    /// The peer's name, for messages.
    who: String,
    /// How long a failure is cached, so that not every call waits for the same dead peer.
    rest: Duration,
}

type Attempt<T> = watch::Receiver<Option<Result<Arc<T>, Error>>>;

enum State<T> {
    Idle,
    Opening(Attempt<T>, Option<Arc<T>>),
    Open(Arc<T>),
    Failed { until: Instant, error: Error, last: Option<Arc<T>> },
}

impl<T: Usable + Send + Sync + 'static> Link<T> {
    pub(crate) fn new(who: String, rest: Duration) -> Self {
        Self { state: Mutex::new(State::Idle), who, rest }
    }

    /// The connection, if it is open.
    pub(crate) fn current(&self) -> Option<Arc<T>> {
        self.current_if(T::is_usable)
    }

    /// The connection, if it was opened and satisfies the condition.
    pub(crate) fn current_if(&self, is_good: impl FnOnce(&T) -> bool) -> Option<Arc<T>> {
        match &*self.lock() {
            State::Open(it) if is_good(it) => Some(Arc::clone(it)),
            _ => None,
        }
    }

    /// The current or last connection, broken or not.
    pub(crate) fn last(&self) -> Option<Arc<T>> {
        match &*self.lock() {
            State::Open(it) => Some(Arc::clone(it)),
            State::Opening(_, last) | State::Failed { last, .. } => last.clone(),
            State::Idle => None,
        }
    }

    /// Why it could not be opened, while the failure is cached.
    pub(crate) fn failure(&self) -> Option<Error> {
        match &*self.lock() {
            State::Failed { error, .. } => Some(error.clone()),
            _ => None,
        }
    }

    /// Drops a broken connection whose state is of no further use.
    pub(crate) fn prune(&self) {
        let mut state = self.lock();
        let useless = |it: &Arc<T>| !it.is_usable() && !it.is_worth_keeping();
        match &mut *state {
            State::Open(it) if useless(it) => *state = State::Idle,
            State::Failed { last, .. } if last.as_ref().is_some_and(useless) => *last = None,
            _ => {}
        }
    }

    /// The connection. If it is not open, `open` opens it and gets the broken one.
    pub(crate) async fn get<F>(
        self: &Arc<Self>,
        runtime: &Handle,
        deadline: Deadline,
        open: impl FnOnce(Option<Arc<T>>) -> F,
    ) -> Result<Arc<T>, Error>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let mut attempt = match self.look(runtime, open) {
            Ok(attempt) => attempt,
            Err(known) => return known,
        };
        let ended = timeout_at(deadline.instant(), attempt.wait_for(Option::is_some)).await;
        match ended {
            Ok(Ok(result)) => result.clone().unwrap_or(Err(Error::Closed)),
            // The task ended without a result: its runtime is shutting down.
            Ok(Err(_)) => Err(Error::Closed),
            Err(_) => Err(Error::timeout(&format!("connecting to {}", self.who))),
        }
    }

    /// The known result, or the attempt in progress.
    fn look<F>(
        self: &Arc<Self>,
        runtime: &Handle,
        open: impl FnOnce(Option<Arc<T>>) -> F,
    ) -> Result<Attempt<T>, Result<Arc<T>, Error>>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let mut state = self.lock();
        let last = match &*state {
            State::Open(it) if it.is_usable() => return Err(Ok(Arc::clone(it))),
            State::Failed { until, error, .. } if Instant::now() < *until => return Err(Err(error.clone())),
            // An attempt whose task has ended without a result will not finish.
            State::Opening(attempt, _) if attempt.has_changed().is_ok() => return Ok(attempt.clone()),
            State::Open(last) => Some(Arc::clone(last)),
            State::Opening(_, last) | State::Failed { last, .. } => last.clone(),
            State::Idle => None,
        };
        let last = last.filter(|it| it.is_worth_keeping());
        let (sender, attempt) = watch::channel(None);
        *state = State::Opening(attempt.clone(), last.clone());
        drop(state);
        let opening = open(last.clone());
        let link = Arc::clone(self);
        runtime.spawn(async move {
            let result = opening.await.map(Arc::new);
            *link.lock() = match &result {
                Ok(it) => State::Open(Arc::clone(it)),
                Err(error) => State::Failed { until: Instant::now() + link.rest, error: error.clone(), last },
            };
            sender.send_replace(Some(result));
        });
        Ok(attempt)
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Each change is one assignment, so a panic leaves no partial state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
