//! One connection that many use: opened when it is needed, by one attempt at a time, and opened again when it
//! has broken.
//!
//! The attempt is a task of its own with its own time limit, and whoever needs the connection waits for it
//! until its own deadline: a caller in a hurry neither cancels the attempt of the others nor starts another
//! one.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::{Deadline, Error};

/// Something that may have broken meanwhile.
pub(crate) trait Usable {
    /// Whether it has not.
    fn is_usable(&self) -> bool;

    /// Whether something of it is of use to the next one, so that it is kept until then.
    fn is_worth_keeping(&self) -> bool;
}

/// A connection that may have to be opened first.
pub(crate) struct Link<T> {
    state: Mutex<State<T>>,
    /// Who is at the other end, for people.
    who: String,
    /// How long a failure is remembered, so that not every call waits for the same dead peer.
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

    /// The connection, if it was opened and is still good for what it is wanted for.
    pub(crate) fn current_if(&self, is_good: impl FnOnce(&T) -> bool) -> Option<Arc<T>> {
        match &*self.lock() {
            State::Open(it) if is_good(it) => Some(Arc::clone(it)),
            _ => None,
        }
    }

    /// The connection as it is or last was, broken or not.
    pub(crate) fn last(&self) -> Option<Arc<T>> {
        match &*self.lock() {
            State::Open(it) => Some(Arc::clone(it)),
            State::Opening(_, last) | State::Failed { last, .. } => last.clone(),
            State::Idle => None,
        }
    }

    /// Why it could not be opened, while that is remembered.
    pub(crate) fn failure(&self) -> Option<Error> {
        match &*self.lock() {
            State::Failed { error, .. } => Some(error.clone()),
            _ => None,
        }
    }

    /// Lets go of a connection that broke and of which nothing is of use any more.
    pub(crate) fn prune(&self) {
        let mut state = self.lock();
        let useless = |it: &Arc<T>| !it.is_usable() && !it.is_worth_keeping();
        match &mut *state {
            State::Open(it) if useless(it) => *state = State::Idle,
            State::Failed { last, .. } if last.as_ref().is_some_and(useless) => *last = None,
            _ => {}
        }
    }

    /// The connection; opened with `open` if it is not, which gets the one that broke.
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

    /// What is known already, or the attempt that will tell.
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
            // An attempt whose task is gone will not end.
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
        // Each change is one assignment, so nothing can be half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
