//! The one tokio runtime of a process, and how Python waits for its work.
//!
//! The runtime is made at its first use, and again in a forked child (see [`crate::process`]). It is never
//! shut down: a store without users closes itself, and the rest ends with the process.
//!
//! **Invariant:** no thread of the runtime waits for the interpreter. A thread that waits for the runtime
//! has released the interpreter before, and a separate thread sets answers on event loops.
//!
//! **Invariant:** only the main thread attaches to an interpreter that is shutting down. CPython would end
//! any other thread in the middle of our code. [`leave`] is called before that, and from then on other
//! threads do not attach. Shutdown does not wait for the threads that are left.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tiffin_client::trace::scoped;
use tiffin_client::{Blocking, with_blocking};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};

use crate::process::{self, PerProcess, Poller};
use crate::trace;

/// The number of threads for messages. The caller's own thread copies the bytes of a blocking call.
const WORKERS_MAX: usize = 4;
/// How often the main thread checks for signals while it waits, so that Ctrl-C works.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);
/// The number of jobs that run before other threads get the interpreter.
const JOBS_MAX: usize = 256;

static ENGINE: PerProcess<Engine> = PerProcess::new();

/// Work that needs the interpreter.
pub(crate) type Job = Box<dyn FnOnce(Python<'_>) + Send>;

struct Engine {
    runtime: Runtime,
    jobs: mpsc::Sender<Job>,
    is_leaving: AtomicBool,
    /// The number of threads that are about to attach to the interpreter, or run jobs in it.
    entering: AtomicUsize,
    /// Watches all sockets of the runtime.
    poller: Poller,
}

/// A thread's permission to attach to the interpreter.
struct Entry<'a>(&'a Engine);

impl Engine {
    /// Permission to attach to the interpreter, unless it is about to shut down.
    fn entry(&self) -> Option<Entry<'_>> {
        // This increments the count before it checks the flag; `leave` sets the flag before it checks the
        // count. So at least one of them sees the other.
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

/// Waits for work with the interpreter released. On the main thread, signal handlers run meanwhile. If one
/// raises, as that of Ctrl-C does, the work is dropped and the exception is passed on.
pub(crate) fn block_on<T: Send>(py: Python<'_>, work: impl AsyncFnOnce() -> T + Send) -> PyResult<T> {
    let engine = engine()?;
    let traced = trace::current(py);
    if is_main_thread() {
        return py.detach(|| block_on_with_signals(engine, async || scoped(traced, work()).await));
    }
    let (result, entry) = py.detach(|| {
        let result = with_blocking(Blocking::Now, || engine.runtime.block_on(scoped(traced, work())));
        match engine.entry() {
            Some(entry) => (result, entry),
            None => stay_outside(),
        }
    });
    drop(entry);
    Ok(result)
}

/// Attaches to the interpreter in the middle of work that runs without it; `None` if it is about to shut
/// down. Other threads of the runtime take over its tasks meanwhile.
pub(crate) fn enter<R>(work: impl FnOnce(Python<'_>) -> R) -> Option<R> {
    if is_main_thread() {
        return Some(Python::attach(work));
    }
    let _entry = engine().ok()?.entry()?;
    Some(tokio::task::block_in_place(|| Python::attach(work)))
}

/// Runs a job soon with the interpreter attached, on a thread that may wait for it.
pub(crate) fn run_attached(job: Job) {
    if let Ok(engine) = engine()
        && let Err(mpsc::SendError(job)) = engine.jobs.send(job)
    {
        // The thread for jobs ends only with the interpreter. The references of the job cannot be released.
        std::mem::forget(job);
    }
}

/// Releases Python references, from any thread. After the end of the interpreter there is nothing to
/// release.
pub(crate) fn give_back(job: impl FnOnce(Python<'_>) + Send + 'static) {
    if tokio::runtime::Handle::try_current().is_ok() {
        run_attached(Box::new(job));
    } else {
        Python::try_attach(job);
    }
}

/// Called by Python at its exit, before the shutdown. Waits until no other thread is about to attach to the
/// interpreter, and prevents new ones.
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

/// Called by Python in a forked child, before any other code runs there. Closes the inherited sockets,
/// which would otherwise stay open after the end of the parent.
#[pyfunction]
pub(crate) fn forked() {
    if let Some(engine) = ENGINE.inherited() {
        engine.poller.close_inherited();
    }
}

/// Waits for work, and runs signal handlers in between. They run outside the runtime, because they may use
/// a store themselves.
fn block_on_with_signals<T>(engine: &Engine, work: impl AsyncFnOnce() -> T) -> PyResult<T> {
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
        let turn = with_blocking(Blocking::Now, || engine.runtime.block_on(turn));
        if let Some(result) = turn {
            return Ok(result);
        }
        Python::attach(|py| py.check_signals())?;
        if process != process::current() {
            let what = "a signal handler forked this process in the middle of a call";
            return Err(PyRuntimeError::new_err(format!("{what}\n\nhint: repeat the call in the child")));
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
        let hint = "raise the limit of processes and threads, see `ulimit -u`";
        PyRuntimeError::new_err(format!("cannot start the runtime: {error}\n\nhint: {hint}"))
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
        // A socket that is registered with the runtime reveals the epoll instance of the runtime.
        let _inside = runtime.enter();
        let (marker, _other) = UnixStream::pair()?;
        Poller::of(&marker)
    };
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new().name("tiffin-jobs".to_owned()).spawn(move || run_jobs(&receiver))?;
    let (is_leaving, entering) = (AtomicBool::new(false), AtomicUsize::new(0));
    Ok(Engine { runtime, jobs: sender, is_leaving, entering, poller })
}

/// Runs jobs in batches, until the interpreter ends.
fn run_jobs(jobs: &mpsc::Receiver<Job>) {
    while let Ok(first) = jobs.recv() {
        let mut load = VecDeque::from([first]);
        load.extend(jobs.try_iter().take(JOBS_MAX - 1));
        let Some(entry) = ENGINE.here().and_then(Engine::entry) else {
            std::mem::forget(load);
            return;
        };
        Python::attach(|py| {
            while let Some(job) = load.pop_front() {
                job(py);
            }
        });
        drop(entry);
    }
}

/// Python runs its signal handlers on the first thread of the process.
fn is_main_thread() -> bool {
    thread_local! {
        /// The process that asked the kernel, and the answer. A fork makes any thread the main one.
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
