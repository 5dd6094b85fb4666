//! Loads that are queued layer by layer, and streams of the caller that wait for layers of them.
//!
//! A thread of the executor queues the copies of a load in groups of layers. A stream that computes waits for
//! a group as soon as that is queued, so that it computes the first layers while the device copies others.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tiffin_transport::gpu::Stream;

use crate::store::Fault;

/// The copies of some layers, which are queued on a device.
pub trait QueuedLayers: Send + Sync {
    /// Lets later work of a stream come after the copies. The caller does not wait.
    fn order(&self, then: Stream) -> Result<(), Fault>;
}

/// How far a load has come.
#[derive(Default)]
pub struct LoadProgress {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The groups that are queued, each with the layer after its last one, in order.
    groups: Vec<(u32, Arc<dyn QueuedLayers>)>,
    has_ended: bool,
}

impl LoadProgress {
    /// The copies of all layers before `end` are queued; these are the last ones.
    pub fn queued(&self, end: u32, copies: Arc<dyn QueuedLayers>) {
        self.lock().groups.push((end, copies));
        self.changed.notify_all();
    }

    /// The load has ended: no stream has to wait for it.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.has_ended = true;
        let groups = std::mem::take(&mut state.groups);
        drop(state);
        drop(groups);
        self.changed.notify_all();
    }

    /// Lets later work of a stream come after a layer. Waits until the copies of the layer are queued, or the
    /// load has ended; false if `until` comes first.
    pub(crate) fn order(&self, layer: u32, then: Stream, until: Instant) -> Result<bool, Fault> {
        let is_missing = |state: &mut State| !state.has_ended && state.group_of(layer).is_none();
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.lock(), left, is_missing);
        let (state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        let copies = state.group_of(layer).cloned();
        drop(state);
        match copies {
            Some(copies) => copies.order(then).map(|()| true),
            None => Ok(!waited.timed_out()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn group_of(&self, layer: u32) -> Option<&Arc<dyn QueuedLayers>> {
        self.groups.iter().find(|(end, _)| layer < *end).map(|(_, copies)| copies)
    }
}

/// The loads of an executor that had not ended at one moment.
pub struct Loads(pub(crate) Vec<Arc<LoadProgress>>);

impl Loads {
    /// Lets later work of a stream come after one layer of all these loads. It waits until the copies of the
    /// layer are queued, but not for the copies, unless the device loads all layers at once. False if
    /// `at_most` passes first: then the stream may not wait for all of them.
    ///
    /// # Errors
    /// If the device refuses the order, as it does for a stream that does not exist.
    pub fn order(&self, layer: u32, then: Stream, at_most: Duration) -> Result<bool, Fault> {
        let until = Instant::now() + at_most;
        for load in &self.0 {
            if !load.order(layer, then, until)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
