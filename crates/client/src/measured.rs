//! What this client measures, and the part of its heartbeat that tells the master.
//!
//! A client has no port for metrics. Its heartbeat carries the growth of its histograms, so that the master
//! shows latencies as clients see them, by path.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tiffin_measure::{Measures, Series, growth};
use tiffin_types::message::Measured;

/// The histograms, and what the master has received of them.
#[derive(Debug, Default)]
pub(crate) struct OwnMeasures {
    pub(crate) measures: Measures,
    // Held for a copy, never across I/O.
    reported: Mutex<Vec<Series>>,
}

impl OwnMeasures {
    /// The growth since the last report that arrived, and the state to pass to [`Self::arrived`] after it.
    pub(crate) fn report(&self) -> (Vec<Measured>, Vec<Series>) {
        let now = self.measures.series();
        let grown = growth(&now, &self.reported());
        (grown.into_iter().map(Measured::from).collect(), now)
    }

    /// The master has received a report.
    pub(crate) fn arrived(&self, reported: Vec<Series>) {
        *self.reported() = reported;
    }

    fn reported(&self) -> MutexGuard<'_, Vec<Series>> {
        // A panic leaves no partial state.
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tiffin_measure::{Operation, Path};

    use super::*;

    #[test]
    fn report_that_did_not_arrive_is_repeated() {
        let own = OwnMeasures::default();
        own.measures.record(Operation::Get, Path::SharedMemory, Duration::from_micros(2), 7);
        let (first, mark) = own.report();
        let get = Measured { operation: 1, path: 2, counts: vec![0, 1], sum_us: 2, bytes: 7 };
        assert_eq!(first, std::slice::from_ref(&get));
        assert_eq!(own.report().0, [get], "it did not arrive");
        own.arrived(mark);
        assert_eq!(own.report().0, []);
    }
}
