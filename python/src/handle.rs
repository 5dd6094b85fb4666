//! A store as Python holds it: a client that survives a fork, and two ways to wait for it.
//!
//! A [`Handle`] remembers how it was connected. In a forked child it forgets the client that it inherited,
//! with its sockets and tasks and the servers that live in the parent, and connects anew; the first call of
//! the child does that, inside its own deadline. See [`crate::process`] for what a child may touch.
//!
//! **Invariant:** a call never holds the interpreter while it waits, and whatever memory of Python it uses is
//! owned by its [`Operation`]: the memory is released when nothing in Rust can touch it any more, also where
//! the call was cancelled.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use tiffin_client::{Client, ConnectOptions, Deadline, Error, Losses};
use tiffin_embedded::EmbeddedError;
use tiffin_server::{Embedded, NodeServer};
use tokio::sync::OnceCell;
use tokio::time::timeout_at;

use crate::process::{self, PerProcess};
use crate::runtime::{self, block_on};
use crate::{errors, promise};

/// How long the last words of a store that nobody uses any more may take.
const GOODBYE_TIME: Duration = Duration::from_secs(2);

/// One call, with everything that it needs.
pub(crate) trait Operation: Send + Sync + Sized + 'static {
    /// What the store says to it.
    type Outcome: Send + 'static;

    /// Whether its time is that of a wait, for news or for space, which ends with an answer. The call itself
    /// may take longer then, so that a short wait on a slow machine is no error.
    fn waits(&self) -> bool {
        false
    }

    /// Does it. The interpreter is not attached.
    fn run(
        &self,
        client: &Client,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Self::Outcome, Error>> + Send;

    /// Turns the outcome into what Python gets.
    fn answer(self, py: Python<'_>, outcome: Self::Outcome) -> PyResult<Py<PyAny>>;
}

/// How long a call may take.
#[derive(Clone, Copy)]
pub(crate) struct Limit {
    /// The time of the call, or of its wait.
    pub(crate) time: Duration,
    /// How much longer the answer to a wait may take.
    pub(crate) answer_time: Option<Duration>,
}

impl Limit {
    fn deadline(self) -> Deadline {
        match self.answer_time {
            Some(answer_time) => Deadline::waiting(self.time, answer_time),
            None => Deadline::after(self.time),
        }
    }
}

/// What was made by connecting.
pub(crate) struct Opened {
    /// The way in.
    pub(crate) client: Client,
    /// How a forked child, or a process that is handed this store, finds the way in by itself.
    pub(crate) again: ConnectOptions,
    /// What lives in this process for as long as the store does.
    pub(crate) servers: Servers,
}

/// Servers that belong to a store.
pub(crate) enum Servers {
    /// The store is elsewhere.
    None,
    /// All of it is here.
    Embedded(Embedded),
    /// One of its nodes is here.
    Node(NodeServer),
}

impl Servers {
    fn node(&self) -> Option<&NodeServer> {
        match self {
            Self::None => None,
            Self::Embedded(store) => Some(store.node()),
            Self::Node(node) => Some(node),
        }
    }

    async fn shutdown(self, deadline: Deadline) {
        match self {
            Self::None => {}
            Self::Embedded(store) => store.shutdown(deadline.instant()).await,
            Self::Node(node) => node.leave(deadline.instant()).await,
        }
    }
}

/// A store, usable from any thread and in forked children.
pub(crate) struct Handle {
    again: ConnectOptions,
    closed: AtomicBool,
    /// Which process connected first; the servers, if there are any, live there.
    origin: u32,
    state: PerProcess<State>,
}

/// What a process has of a store. Its lock is that of one process: a child has a state of its own.
struct State {
    client: OnceCell<Client>,
    servers: Mutex<Servers>,
}

impl State {
    fn take_servers(&self) -> Servers {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *servers, Servers::None)
    }
}

impl Handle {
    /// Connects, and waits for it.
    pub(crate) fn open<F>(py: Python<'_>, opening: F) -> PyResult<Arc<Self>>
    where
        F: Future<Output = Result<Opened, EmbeddedError>> + Send,
    {
        let opened = block_on(py, async move || opening.await)?;
        opened.map(Self::new).map_err(|error| errors::raise_start(py, &error))
    }

    /// Takes over what was connected already.
    pub(crate) fn new(opened: Opened) -> Arc<Self> {
        let Opened { client, again, servers } = opened;
        let state = State { client: OnceCell::new_with(Some(client)), servers: Mutex::new(servers) };
        Arc::new(Self {
            again,
            closed: AtomicBool::new(false),
            origin: process::current(),
            state: PerProcess::with(state),
        })
    }

    /// How another process finds the way in.
    pub(crate) fn again(&self) -> &ConnectOptions {
        &self.again
    }

    /// Whether it was closed, in this process or before it was forked.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether this process was forked from the one that connected.
    pub(crate) fn is_forked(&self) -> bool {
        self.origin != process::current()
    }

    /// The client of this process: the one there is, or a new connection in a forked child.
    pub(crate) async fn client(&self, deadline: Deadline) -> Result<Client, Error> {
        if self.is_closed() {
            return Err(Error::Closed);
        }
        let fresh = || Ok::<_, Error>(State { client: OnceCell::new(), servers: Mutex::new(Servers::None) });
        let state = self.state.get_or_try(fresh)?;
        let connect = || async {
            let options = ConnectOptions { label: ConnectOptions::new("").label, ..self.again.clone() };
            let what = format!("connecting to `{}` did not end before its deadline", options.address);
            let connected = timeout_at(deadline.instant(), Client::connect(options)).await;
            connected.unwrap_or(Err(Error::Timeout { what }))
        };
        state.client.get_or_try_init(connect).await.cloned()
    }

    /// Does something with the client, and waits for it with the interpreter released. The outer error is
    /// that of a signal handler, as on Ctrl-C; the work is then dropped where it stands.
    pub(crate) fn call<T: Send>(
        &self,
        py: Python<'_>,
        deadline: Deadline,
        work: impl AsyncFnOnce(&Client) -> Result<T, Error> + Send,
    ) -> PyResult<Result<T, Error>> {
        block_on(py, async move || {
            let client = self.client(deadline).await?;
            work(&client).await
        })
    }

    /// Does an operation, and waits for its answer.
    pub(crate) fn run<O: Operation>(
        &self,
        py: Python<'_>,
        limit: Limit,
        operation: O,
    ) -> PyResult<Py<PyAny>> {
        let deadline = limit.deadline();
        let outcome = self.call(py, deadline, async |client| operation.run(client, deadline).await)?;
        operation.answer(py, outcome.map_err(|error| errors::raise(py, &error))?)
    }

    /// Starts an operation, and gives the asyncio future that its answer will be set on.
    pub(crate) fn start<O: Operation>(
        self: &Arc<Self>,
        py: Python<'_>,
        limit: Limit,
        operation: O,
    ) -> PyResult<Py<PyAny>> {
        let handle = Arc::clone(self);
        let work = async move {
            let deadline = limit.deadline();
            let outcome = match handle.client(deadline).await {
                Ok(client) => operation.run(&client, deadline).await,
                Err(error) => Err(error),
            };
            (operation, outcome)
        };
        promise::start(py, work, |py, (operation, outcome)| {
            operation.answer(py, outcome.map_err(|error| errors::raise(py, &error))?)
        })
    }

    /// What is lost if the store is closed now: nothing, unless a node lives in this process.
    pub(crate) async fn losses(&self, deadline: Deadline) -> Losses {
        let held = self.state.here().and_then(|state| {
            let servers = state.servers.lock().unwrap_or_else(PoisonError::into_inner);
            let node = servers.node()?;
            Some((node.inventory(), node.segment()))
        });
        match held {
            Some((records, _)) if records.is_empty() => Losses::default(),
            Some((records, segment)) => Losses::of(records, segment, &self.again, deadline).await,
            None => Losses::default(),
        }
    }

    /// Ends the store in this process: what is under way is waited for until the deadline, later calls fail,
    /// and servers that belong to it stop. Closing twice is harmless. In a forked child this ends the child's
    /// own connection and nothing of its parent's.
    pub(crate) async fn close(&self, deadline: Deadline) -> Result<(), Error> {
        if self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        match self.state.here() {
            Some(state) => end(state.client.get().cloned(), state.take_servers(), deadline).await,
            None => Ok(()),
        }
    }
}

/// In the process that connected, the other sides are told; that takes a moment, and nobody waits for it. A
/// forked child leaves alone what it inherited.
impl Drop for Handle {
    fn drop(&mut self) {
        let Some(State { client, servers }) = self.state.take() else { return };
        if let Ok(runtime) = runtime::runtime() {
            let servers = servers.into_inner().unwrap_or_else(PoisonError::into_inner);
            runtime.spawn(async move {
                // Nobody is left who could be told how it went.
                let _ended = end(client.into_inner(), servers, Deadline::after(GOODBYE_TIME)).await;
            });
        }
    }
}

async fn end(client: Option<Client>, servers: Servers, deadline: Deadline) -> Result<(), Error> {
    let closed = match client {
        Some(client) => client.close(deadline).await,
        None => Ok(()),
    };
    servers.shutdown(deadline).await;
    closed
}
