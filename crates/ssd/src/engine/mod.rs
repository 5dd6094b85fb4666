//! Engines that carry out disk operations: io_uring, or a few blocking threads.
//!
//! An engine takes operations with a token and reports each token once. It signals an eventfd when there are
//! results to collect. The memory of an operation must stay alive until its result has been collected.

mod blocking;
mod uring;

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::memory::{Buffer, Run};

pub(crate) use blocking::Blocking;
pub(crate) use uring::Uring;

/// The maximum number of operations in flight.
pub(crate) const RAWS_MAX: usize = 128;

/// The requested engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Drive {
    /// io_uring where the kernel permits it, else blocking threads.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// Blocking threads.
    Blocking,
}

/// The engine in use, and why it was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driven {
    /// Whether it is io_uring.
    pub uring: bool,
    /// Whether its buffers are registered with the kernel.
    pub registered: bool,
    /// Why it was chosen.
    pub reason: String,
}

impl fmt::Display for Driven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.uring { "io_uring" } else { "blocking threads" };
        write!(f, "{name} ({})", self.reason)
    }
}

/// A disk operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Raw {
    Read { at: u64, run: Run, buffer: Option<u16> },
    Write { at: u64, run: Run, buffer: Option<u16> },
    Sync,
}

/// The result of an operation: bytes moved, or the error number.
pub(crate) type Outcome = Result<usize, i32>;

/// Carries out operations.
pub(crate) trait Engine: Send {
    /// Queues an operation; at most [`RAWS_MAX`] may be in flight.
    fn submit(&mut self, token: u64, raw: Raw);
    /// Submits queued operations to the kernel.
    fn kick(&mut self);
    /// Collects results.
    fn collect(&mut self, into: &mut VecDeque<(u64, Outcome)>);
}

/// Starts an engine on a file. `wake` is signalled when there are results to collect.
pub(crate) fn start(
    drive: Drive,
    file: &Arc<OwnedFd>,
    wake: &Arc<OwnedFd>,
    buffers: &[Buffer],
) -> Result<(Box<dyn Engine>, Driven), String> {
    let blocking = |reason: String| -> (Box<dyn Engine>, Driven) {
        let engine = Blocking::start(Arc::clone(file), Arc::clone(wake));
        (Box::new(engine), Driven { uring: false, registered: false, reason })
    };
    if drive == Drive::Blocking {
        return Ok(blocking("as requested".to_owned()));
    }
    match Uring::start(Arc::clone(file), wake, buffers) {
        Ok((engine, registered)) => {
            let (registered, words) = match registered {
                Ok(()) => (true, "with registered buffers".to_owned()),
                Err(error) => (false, format!("buffers are not registered: {error}")),
            };
            Ok((Box::new(engine), Driven { uring: true, registered, reason: words }))
        }
        Err(error) if drive == Drive::Auto => Ok(blocking(format!("io_uring is not available: {error}"))),
        Err(error) => Err(format!("io_uring is not available: {error}")),
    }
}
