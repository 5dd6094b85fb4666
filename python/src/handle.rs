//! A store in Python: a client that survives a fork, with blocking and asynchronous calls.
//!
//! A [`Handle`] remembers how it was connected. In a forked child it forgets the inherited client with its
//! sockets and tasks, and the servers of the parent. The first call of the child connects again, within its
//! own deadline. [`crate::process`] says what a child may use.
//!
//! **Invariant:** a call never holds the interpreter while it waits. Its [`Operation`] owns the Python
//! memory that it uses. The memory is released when no Rust code can use it any more, also after a
//! cancellation.

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

/// The time limit for closing a store without users.
const GOODBYE_TIME: Duration = Duration::from_secs(2);

/// One call, with everything that it needs.
pub(crate) trait Operation: Send + Sync + Sized + 'static {
    /// The answer of the store.
    type Outcome: Send + 'static;

    /// Whether the time limit is that of a wait, which ends with an answer. The call itself may take
    /// longer, so that a short wait on a slow machine is not an error.
    fn waits(&self) -> bool {
        false
    }

    /// Runs it. The interpreter is not attached.
    fn run(
        &self,
        client: &Client,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Self::Outcome, Error>> + Send;

    /// Converts the outcome into the result in Python.
    fn answer(self, py: Python<'_>, outcome: Self::Outcome) -> PyResult<Py<PyAny>>;
}

/// The time limits of a call.
#[derive(Clone, Copy)]
pub(crate) struct Limit {
    /// The time limit of the call, or of its wait.
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

/// The result of connecting.
pub(crate) struct Opened {
    /// The client.
    pub(crate) client: Client,
    /// How a forked child, or a process that unpickles this store, connects.
    pub(crate) again: ConnectOptions,
    /// The servers in this process, which end with the store.
    pub(crate) servers: Servers,
}

/// Servers that belong to a store.
pub(crate) enum Servers {
    /// The store is in another process.
    None,
    /// The whole store is in this process.
    Embedded(Embedded),
    /// One node of the store is in this process.
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
    /// The process that connected first; it has the servers, if there are any.
    origin: u32,
    state: PerProcess<State>,
}

/// The state of a store in one process. A child has a state, and a lock, of its own.
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
    /// Connects, and waits until that is done.
    pub(crate) fn open<F>(py: Python<'_>, opening: F) -> PyResult<Arc<Self>>
    where
        F: Future<Output = Result<Opened, EmbeddedError>> + Send,
    {
        let opened = block_on(py, async move || opening.await)?;
        opened.map(Self::new).map_err(|error| errors::raise_start(py, &error))
    }

    /// Uses an existing connection.
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

    /// How another process connects.
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

    /// Where the store is, in words.
    pub(crate) fn state(&self, is_embedded: bool) -> &'static str {
        match (is_embedded, self.is_forked(), self.is_closed()) {
            (.., true) => "closed",
            (true, false, _) => "in this process",
            (true, true, _) => "in the parent process",
            (false, ..) => "connected",
        }
    }

    /// The client of this process: the existing one, or a new connection in a forked child.
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

    /// Calls the client, and waits with the interpreter released. The outer error is that of a signal
    /// handler, as on Ctrl-C; the work is then dropped.
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

    /// Runs an operation, and waits for its answer.
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

    /// Starts an operation, and returns the asyncio future of its answer.
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

    /// The objects that are lost if the store is closed now: none, unless a node is in this process.
    pub(crate) async fn losses(&self, deadline: Deadline) -> Losses {
        let held = self.state.here().and_then(|state| {
            let servers = state.servers.lock().unwrap_or_else(PoisonError::into_inner);
            let node = servers.node()?;
            Some((node.read_inventory(deadline.instant()), node.segment()))
        });
        let Some((records, segment)) = held else { return Losses::default() };
        let records = records.await;
        if records.is_empty() {
            return Losses::default();
        }
        Losses::of(records, segment, &self.again, deadline).await
    }

    /// Closes the store in this process: waits for calls in progress until the deadline, fails later calls,
    /// and stops its servers. Closing twice is harmless. In a forked child this closes only the child's own
    /// connection.
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

/// In the process that connected, the connection is closed in the background. A forked child does not touch
/// the inherited one.
impl Drop for Handle {
    fn drop(&mut self) {
        let Some(State { client, servers }) = self.state.take() else { return };
        if let Ok(runtime) = runtime::runtime() {
            let servers = servers.into_inner().unwrap_or_else(PoisonError::into_inner);
            runtime.spawn(async move {
                // No caller can receive an error.
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
