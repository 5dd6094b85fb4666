//! One connection that many callers share. It is opened on demand, by one attempt at a time, and opened
//! again after a failure.
//!
//! The attempt is a task with its own time limit. Each caller waits for it until the caller's own deadline.
//! A caller with a short deadline neither cancels the attempt nor starts another one. After several failures
//! the client leaves the peer alone for a while ([`Backoff`]): a call then fails at once and says when the
//! client tries again, or waits for that attempt.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tiffin_session::{Backoff, BackoffLimits};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
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
    backoff: Mutex<Backoff>,
    /// A pause ended before its time.
    renewed: Notify,
}

/// What a call does while the peer is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InPauses {
    /// It has another way, or may fail.
    Fail,
    /// It waits for the next attempt, if that is made before its deadline.
    Wait,
}

impl InPauses {
    pub(crate) fn wait_if(waits: bool) -> Self {
        if waits { Self::Wait } else { Self::Fail }
    }
}

type Attempt<T> = watch::Receiver<Option<Result<Arc<T>, Error>>>;

enum State<T> {
    Idle,
    Opening(Attempt<T>, Option<Arc<T>>),
    Open(Arc<T>),
    Failed { until: Instant, failures: u32, error: Error, last: Option<Arc<T>> },
}

impl<T: Usable + Send + Sync + 'static> Link<T> {
    pub(crate) fn new(who: String, limits: BackoffLimits) -> Self {
        let (state, backoff) = (Mutex::new(State::Idle), Mutex::new(Backoff::new(limits)));
        Self { state, who, backoff, renewed: Notify::new() }
    }

    /// The master names this registration of the peer: a newer one ends a pause.
    pub(crate) fn registered(&self, registration: u64) {
        if !self.lock_backoff().registered(registration) {
            return;
        }
        if let State::Failed { until, .. } = &mut *self.lock() {
            *until = Instant::now();
        }
        self.renewed.notify_waiters();
    }

    /// Waits for the end of the pause, if there is one and it ends before the deadline.
    async fn pause(&self, deadline: Deadline) {
        let renewed = self.renewed.notified();
        let until = match &*self.lock() {
            State::Failed { until, .. } => *until,
            _ => return,
        };
        if until < deadline.instant() {
            _ = timeout_at(until, renewed).await;
        }
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
            State::Failed { error, until, failures, .. } => {
                Some(error.clone().tried_again_in(*failures, until.saturating_duration_since(Instant::now())))
            }
            _ => None,
        }
    }

    /// Whether the peer is being left alone.
    pub(crate) fn is_avoided(&self) -> bool {
        matches!(&*self.lock(), State::Failed { until, .. } if Instant::now() < *until)
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
        in_pauses: InPauses,
        open: impl FnOnce(Option<Arc<T>>) -> F,
    ) -> Result<Arc<T>, Error>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        if in_pauses == InPauses::Wait {
            self.pause(deadline).await;
        }
        let mut attempt = match self.attempt(runtime, open) {
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
    fn attempt<F>(
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
            State::Failed { until, failures, error, .. } if Instant::now() < *until => {
                let pause = until.saturating_duration_since(Instant::now());
                return Err(Err(error.clone().tried_again_in(*failures, pause)));
            }
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
        self.lock_backoff().begins();
        let opening = open(last.clone());
        let link = Arc::clone(self);
        runtime.spawn(async move {
            let result = opening.await.map(Arc::new);
            *link.lock() = match &result {
                Ok(it) => {
                    link.succeeded();
                    State::Open(Arc::clone(it))
                }
                Err(error) => {
                    let (until, failures) = link.failed(error);
                    State::Failed { until, failures, error: error.clone(), last }
                }
            };
            sender.send_replace(Some(result));
        });
        Ok(attempt)
    }

    fn succeeded(&self) {
        if self.lock_backoff().succeeded() {
            tracing::info!(peer = self.who, "the peer is reached again");
        }
    }

    /// An attempt failed: when the next one may begin, and how many have failed in a row.
    fn failed(&self, error: &Error) -> (Instant, u32) {
        let mut backoff = self.lock_backoff();
        let pause_ms = backoff.failed(random());
        let failures = backoff.failures();
        if backoff.has_gone_down() {
            tracing::warn!(
                peer = self.who,
                failures,
                pause_ms,
                %error,
                "the peer cannot be reached and is avoided: it is tried again after a pause, or when the \
                 master has registered it again"
            );
        }
        (Instant::now() + Duration::from_millis(pause_ms), failures)
    }

    fn lock_backoff(&self) -> MutexGuard<'_, Backoff> {
        self.backoff.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Each change is one assignment, so a panic leaves no partial state.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Random enough to spread the attempts of many clients.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    struct Never;

    impl Usable for Never {
        fn is_usable(&self) -> bool {
            true
        }

        fn is_worth_keeping(&self) -> bool {
            false
        }
    }

    /// No pause after three failures, and one that outlasts the test after the fourth.
    const HOUR_MS: u64 = 3_600_000;
    const LIMITS: BackoffLimits = BackoffLimits { free: 3, first_ms: HOUR_MS, longest_ms: HOUR_MS };
    const LONG: Duration = Duration::from_secs(60);

    /// A peer that never accepts, and the number of attempts to reach it.
    struct Dead {
        link: Arc<Link<Never>>,
        attempts: Arc<AtomicU32>,
    }

    impl Dead {
        fn new() -> Self {
            let link = Arc::new(Link::new("node `n`".to_owned(), LIMITS));
            Self { link, attempts: Arc::default() }
        }

        /// The error of a call with this much time.
        async fn call(&self, in_pauses: InPauses, time: Duration) -> String {
            let attempts = Arc::clone(&self.attempts);
            let open = |_| async move {
                attempts.fetch_add(1, Ordering::Relaxed);
                Err(Error::Unreachable { what: "node `n`: connection refused".to_owned() })
            };
            let got = self.link.get(&Handle::current(), Deadline::after(time), in_pauses, open).await;
            got.map(drop).unwrap_err().to_string()
        }

        /// Calls until it is left alone.
        async fn fail(&self) {
            for attempt in 1..=4 {
                assert!(!self.link.is_avoided());
                assert_eq!(self.call(InPauses::Fail, LONG).await, "node `n`: connection refused");
                assert_eq!(self.attempts.load(Ordering::Relaxed), attempt);
            }
        }
    }

    #[tokio::test]
    async fn a_dead_peer_is_left_alone_and_its_error_says_until_when() {
        let dead = Dead::new();
        dead.fail().await;
        let is_told = |it: &str| it.contains("refused; 4 attempts failed, the next is made in ");
        for _ in 0..10 {
            let error = dead.call(InPauses::Fail, LONG).await;
            assert!(is_told(&error), "{error}");
            let error = dead.call(InPauses::Wait, LONG).await;
            assert!(is_told(&error), "it ends before the pause does: {error}");
        }
        assert_eq!(dead.attempts.load(Ordering::Relaxed), 4, "calls during the pause make no attempt");
        assert!(dead.link.is_avoided() && is_told(&dead.link.failure().unwrap().to_string()));
    }

    #[tokio::test]
    async fn a_newer_registration_ends_the_pause_for_waiting_calls() {
        let dead = Dead::new();
        dead.link.registered(1);
        dead.fail().await;
        let day = 24 * Duration::from_millis(HOUR_MS);
        let register = async {
            tokio::task::yield_now().await;
            dead.link.registered(1);
            tokio::task::yield_now().await;
            assert!(dead.link.is_avoided(), "it is no newer one");
            dead.link.registered(2);
        };
        let both = async { tokio::join!(dead.call(InPauses::Wait, day), register) };
        let (error, ()) = tokio::time::timeout(LONG, both).await.expect("the call waits on");
        assert_eq!(error, "node `n`: connection refused");
        assert_eq!(dead.attempts.load(Ordering::Relaxed), 5, "one attempt for the new registration");
        assert!(dead.link.is_avoided(), "it failed too");
        dead.link.registered(3);
        assert_eq!(dead.call(InPauses::Fail, LONG).await, "node `n`: connection refused");
    }

    #[tokio::test]
    async fn a_call_waits_for_the_next_attempt() {
        let limits = BackoffLimits { free: 0, first_ms: 20, longest_ms: 20 };
        let dead = Dead { link: Arc::new(Link::new("node `n`".to_owned(), limits)), ..Dead::new() };
        for attempt in 1..10 {
            assert_eq!(dead.call(InPauses::Wait, LONG).await, "node `n`: connection refused");
            assert_eq!(dead.attempts.load(Ordering::Relaxed), attempt);
        }
    }
}
