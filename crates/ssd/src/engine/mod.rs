//! Carries raw disk work out: with io_uring, or with a few threads that block.
//!
//! An engine takes raw work with a token and reports each token once. It signals an eventfd when there is
//! something to collect. The memory of raw work must stay alive until it has been collected.

mod blocking;
mod uring;

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::memory::{Buffer, Run};

pub(crate) use blocking::Blocking;
pub(crate) use uring::Uring;

/// Raw work in flight at most.
pub(crate) const RAWS_MAX: usize = 128;

/// Which engine is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Drive {
    /// io_uring where the kernel permits it, else threads that block; which of them, and why, is reported.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// Threads that block.
    Blocking,
}

/// Which engine is used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driven {
    /// Whether it is io_uring.
    pub uring: bool,
    /// Whether its buffers are registered with the kernel.
    pub registered: bool,
    /// Why so.
    pub reason: String,
}

impl fmt::Display for Driven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.uring { "io_uring" } else { "blocking threads" };
        write!(f, "{name} ({})", self.reason)
    }
}

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Raw {
    Read { at: u64, run: Run, buffer: Option<u16> },
    Write { at: u64, run: Run, buffer: Option<u16> },
    Sync,
}

/// How raw work ended: bytes moved, or the system's error number.
pub(crate) type Outcome = Result<usize, i32>;

/// Carries raw work out.
pub(crate) trait Engine: Send {
    /// Takes work; at most [`RAWS_MAX`] at a time.
    fn submit(&mut self, token: u64, raw: Raw);
    /// Hands what was taken to the kernel.
    fn kick(&mut self);
    /// What has ended since.
    fn collect(&mut self, into: &mut VecDeque<(u64, Outcome)>);
}

/// Starts an engine on a file. `wake` is signalled when there is something to collect.
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
        return Ok(blocking("as asked for".to_owned()));
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
