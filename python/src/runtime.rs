//! The one tokio runtime of a process, and how Python waits for what runs on it.
//!
//! The runtime is made when it is first needed, and once more in a forked child (see [`crate::process`]). It
//! is never shut down: a store that nobody uses any more closes itself, and the rest ends with the process.
//!
//! **Invariant:** no thread of the runtime waits for the interpreter. Whoever waits for the runtime has let
//! go of the interpreter before, and what comes back to an event loop is carried there by a thread of its
//! own.
//!
//! **Invariant:** no thread but the main one asks for an interpreter that is being taken down: CPython would
//! end the thread in the middle of our code. [`leave`] is called before that, and from then on other threads
//! stay outside; only threads that nobody waits for are left by then.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tiffin_client::{Waiting, while_waiting_is};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};

use crate::process::{self, PerProcess, Poller};

/// How many threads carry messages; bytes of a blocking call are copied by the caller's own thread.
const WORKERS_MAX: usize = 4;
/// How often the main thread looks for signals while it waits, so that Ctrl-C is heard.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);
/// How many parcels the courier delivers before it lets others have the interpreter.
const PARCELS_MAX: usize = 256;

static ENGINE: PerProcess<Engine> = PerProcess::new();

/// Something to be done with the interpreter attached.
pub(crate) type Parcel = Box<dyn FnOnce(Python<'_>) + Send>;

struct Engine {
    runtime: Runtime,
    courier: mpsc::Sender<Parcel>,
    is_leaving: AtomicBool,
    /// How many threads are on their way into the interpreter, or are couriers inside.
    entering: AtomicUsize,
    /// Watches all sockets of the runtime.
    poller: Poller,
}

/// A thread's leave to enter the interpreter.
struct Entry<'a>(&'a Engine);

impl Engine {
    /// Leave to enter the interpreter, unless it is about to be taken down.
    fn entry(&self) -> Option<Entry<'_>> {
        // Counted first and looked at then, as `leave` announces first and counts then: one of both sees the
        // other.
        self.entering.fetch_add(1, Ordering::SeqCst);
        let entry = Entry(self);
        (!self.is_leaving.load(Ordering::SeqCst)).then_some(entry)
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.0.entering.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The runtime of this process.
pub(crate) fn runtime() -> PyResult<&'static Runtime> {
    Ok(&engine()?.runtime)
}

/// Waits for some work with the interpreter released. On the main thread signals are heard meanwhile: if a
/// handler raises (as that of Ctrl-C does), the work is dropped where it stands and the exception is passed
/// on.
pub(crate) fn block_on<T: Send>(py: Python<'_>, work: impl AsyncFnOnce() -> T + Send) -> PyResult<T> {
    let engine = engine()?;
    if is_main_thread() {
        return py.detach(|| hearing_signals(engine, work));
    }
    let (result, entry) = py.detach(|| {
        let result = while_waiting_is(Waiting::Now, || engine.runtime.block_on(work()));
        match engine.entry() {
            Some(entry) => (result, entry),
            None => stay_outside(),
        }
    });
    drop(entry);
    Ok(result)
}

/// Does something with the interpreter attached, in the middle of work that runs without; `None` if it is
/// about to be taken down. A thread of the runtime lets others do its tasks meanwhile.
pub(crate) fn enter<R>(work: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    if is_main_thread() {
        return Some(Python::attach(work));
    }
    let _entry = engine().ok()?.entry()?;
    Some(tokio::task::block_in_place(|| Python::attach(work)))
}

/// Has something done with the interpreter attached, soon, on a thread that may wait for it.
pub(crate) fn deliver(parcel: Parcel) {
    if let Ok(engine) = engine()
        && let Err(mpsc::SendError(parcel)) = engine.courier.send(parcel)
    {
        // The courier leaves only when the interpreter does. What the parcel holds cannot be released any
        // more.
        std::mem::forget(parcel);
    }
}

/// Gives back what Python lent, wherever this is called from. Without an interpreter there is nobody to give
/// it to.
pub(crate) fn give_back(parcel: impl FnOnce(Python<'_>) + Send + 'static) {
    if tokio::runtime::Handle::try_current().is_ok() {
        deliver(Box::new(parcel));
    } else {
        Python::try_attach(parcel);
    }
}

/// Called by Python at its exit, while everything still works: waits until no other thread is on its way into
/// the interpreter, and lets none set out any more.
#[pyfunction]
pub(crate) fn leave(py: Python<'_>) {
    if let Some(engine) = ENGINE.here() {
        engine.is_leaving.store(true, Ordering::SeqCst);
        py.detach(|| {
            while engine.entering.load(Ordering::SeqCst) > 0 {
                std::thread::yield_now();
            }
        });
    }
}

/// Called by Python in a forked child, before anything else runs there: closes the sockets of its parent,
/// which would otherwise outlive the parent with the child.
#[pyfunction]
pub(crate) fn forked() {
    if let Some(engine) = ENGINE.inherited() {
        engine.poller.close_inherited();
    }
}

/// Waits for some work, and runs signal handlers in between. They run outside the runtime, since they may use
/// a store themselves.
fn hearing_signals<T>(engine: &Engine, work: impl AsyncFnOnce() -> T) -> PyResult<T> {
    let process = process::current();
    let mut work = pin!(work());
    loop {
        let turn = async {
            tokio::select! {
                biased;
                result = &mut work => Some(result),
                () = tokio::time::sleep(SIGNALS_EVERY) => None,
            }
        };
        let turn = while_waiting_is(Waiting::Now, || engine.runtime.block_on(turn));
        if let Some(result) = turn {
            return Ok(result);
        }
        Python::attach(|py| py.check_signals())?;
        if process != process::current() {
            let what = "a signal handler has forked this process in the middle of a call";
            return Err(PyRuntimeError::new_err(format!("{what}\n\nhint: the child may call again")));
        }
    }
}

fn stay_outside() -> ! {
    loop {
        std::thread::park();
    }
}

fn engine() -> PyResult<&'static Engine> {
    ENGINE.get_or_try(make).map_err(|error| {
        let hint = "this process may not start any more threads; see `ulimit -u`";
        PyRuntimeError::new_err(format!("the runtime could not be started: {error}\n\nhint: {hint}"))
    })
}

fn make() -> io::Result<Engine> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let runtime = Builder::new_multi_thread()
        .worker_threads(cores.clamp(2, WORKERS_MAX))
        .thread_name("tiffin")
        .enable_all()
        .build()?;
    let poller = {
        // A socket that was registered with the runtime shows who watches its sockets.
        let _inside = runtime.enter();
        let (marker, _other) = UnixStream::pair()?;
        Poller::of(&marker)
    };
    let (courier, parcels) = mpsc::channel();
    std::thread::Builder::new().name("tiffin-courier".to_owned()).spawn(move || carry(&parcels))?;
    let (is_leaving, entering) = (AtomicBool::new(false), AtomicUsize::new(0));
    Ok(Engine { runtime, courier, is_leaving, entering, poller })
}

/// Delivers parcels, as many at a time as there are, until the interpreter ends.
fn carry(parcels: &mpsc::Receiver<Parcel>) {
    while let Ok(first) = parcels.recv() {
        let mut load = VecDeque::from([first]);
        load.extend(parcels.try_iter().take(PARCELS_MAX - 1));
        let Some(entry) = ENGINE.here().and_then(Engine::entry) else {
            std::mem::forget(load);
            return;
        };
        Python::attach(|py| {
            while let Some(parcel) = load.pop_front() {
                parcel(py);
            }
        });
        drop(entry);
    }
}

/// Python runs its signal handlers on the thread that the process began with.
fn is_main_thread() -> bool {
    thread_local! {
        /// The process in which the kernel was asked, and what it said: a fork makes any thread the main one.
        static ASKED: Cell<Option<(u32, bool)>> = const { Cell::new(None) };
    }
    let process = process::current();
    match ASKED.get() {
        Some((asked_in, is_main)) if asked_in == process => is_main,
        _ => {
            let is_main = rustix::thread::gettid() == rustix::process::getpid();
            ASKED.set(Some((process, is_main)));
            is_main
        }
    }
}
