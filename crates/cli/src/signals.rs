//! Signals that stop a command: Ctrl-C, or `SIGTERM` from a supervisor.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::console::Failure;

/// The signals that ask a process to stop.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Installs signal handlers, also under a Python interpreter with its own.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let advice = "the system is short of open files; `tiffin doctor` shows the limits";
        let fail = |error| Failure::new("system", format!("cannot wait for signals: {error}")).hint(advice);
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).map_err(fail)?,
            terminate: signal(SignalKind::terminate()).map_err(fail)?,
        })
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
