//! The one tokio runtime of a process, and how Python waits for what runs on it.
//!
//! The runtime is made when it is first needed, and once more in a forked child (see [`crate::process`]). It is
//! never shut down: a store that nobody uses any more closes itself, and the rest ends with the process.
//!
//! **Invariant:** no thread of the runtime waits for the interpreter. Whoever waits for the runtime has let go of
//! the interpreter before, and what comes back to an event loop is carried there by a thread of its own.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::mpsc;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::{Builder, Runtime};

use crate::process::PerProcess;

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
}

/// The runtime of this process.
pub(crate) fn runtime() -> PyResult<&'static Runtime> {
    Ok(&engine()?.runtime)
}

/// Waits for some work with the interpreter released. On the main thread signals are heard meanwhile: if a handler
/// raises (as that of Ctrl-C does), the work is dropped where it stands and the exception is passed on.
pub(crate) fn block_on<T: Send>(py: Python<'_>, work: impl AsyncFnOnce() -> T + Send) -> PyResult<T> {
    let runtime = runtime()?;
    let hears_signals = is_main_thread();
    py.detach(|| {
        runtime.block_on(async {
            let mut work = pin!(work());
            if !hears_signals {
                return Ok(work.await);
            }
            loop {
                tokio::select! {
                    biased;
                    result = &mut work => return Ok(result),
                    () = tokio::time::sleep(SIGNALS_EVERY) => Python::attach(|py| py.check_signals())?,
                }
            }
        })
    })
}

/// Has something done with the interpreter attached, soon, on a thread that may wait for it.
pub(crate) fn deliver(parcel: Parcel) {
    if let Ok(engine) = engine()
        && let Err(mpsc::SendError(parcel)) = engine.courier.send(parcel)
    {
        // The courier leaves only when the interpreter does. What the parcel holds cannot be released any more.
        std::mem::forget(parcel);
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
    let (courier, parcels) = mpsc::channel();
    std::thread::Builder::new().name("tiffin-courier".to_owned()).spawn(move || carry(&parcels))?;
    Ok(Engine { runtime, courier })
}

/// Delivers parcels, as many at a time as there are, until the interpreter ends.
fn carry(parcels: &mpsc::Receiver<Parcel>) {
    while let Ok(first) = parcels.recv() {
        let mut load = VecDeque::from([first]);
        load.extend(parcels.try_iter().take(PARCELS_MAX - 1));
        let delivered = Python::try_attach(|py| {
            while let Some(parcel) = load.pop_front() {
                parcel(py);
            }
        });
        if delivered.is_none() {
            std::mem::forget(load);
            return;
        }
    }
}

/// Python runs its signal handlers on the thread that the process began with.
fn is_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}
