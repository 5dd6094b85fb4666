//! The drain job of a node, for the client in its process that moves the objects away. A node has no client
//! of its own.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tiffin_node::Event;
use tiffin_types::message::{DrainJob, DrainReport, NodeInfo, Record};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{LinkStatus, NodeServer, Shared};

/// One page of the objects that a node holds.
#[derive(Debug)]
pub struct HeldPage {
    /// The objects.
    pub records: Vec<Record>,
    /// Where the next page begins, if there is one.
    pub next: Option<usize>,
    /// Whether clients may still store objects in memory that they have reserved.
    pub has_reservations: bool,
}

/// What a process needs to drain its node. It does not keep the node alive.
#[derive(Clone, Debug)]
pub struct DrainDuty {
    pub(super) shared: Weak<Shared>,
    pub(super) info: NodeInfo,
    pub(super) job: watch::Receiver<Option<DrainJob>>,
}

impl DrainDuty {
    /// The node.
    #[must_use]
    pub fn info(&self) -> &NodeInfo {
        &self.info
    }

    /// The drain job of the node, if it has one.
    #[must_use]
    pub fn job(&self) -> Option<DrainJob> {
        self.job.borrow().clone()
    }

    /// Waits until the node has another drain job, or none. `false` when the node has ended.
    pub async fn changed(&mut self) -> bool {
        self.job.changed().await.is_ok()
    }

    /// Reads a page of the objects that the node holds. `None` when the node has ended.
    #[must_use]
    pub fn held(&self, first: usize, count: usize) -> Option<HeldPage> {
        let shared = self.alive()?;
        let state = shared.lock();
        let (records, next) = state.core.inventory_page(first, count);
        let usage = state.core.usage();
        Some(HeldPage { records, next, has_reservations: usage.granted > 0 || usage.offered > 0 })
    }

    /// Reports to the master how far the job is.
    pub fn report(&self, report: DrainReport) {
        if let Some(shared) = self.alive() {
            shared.handle(Event::DrainReport(report));
        }
    }

    fn alive(&self) -> Option<Arc<Shared>> {
        self.shared.upgrade().filter(|it| !it.state.has_failed())
    }
}

/// The time limit for reading the ledger.
const LEDGER_TIME_MAX: Duration = Duration::from_secs(1);

impl NodeServer {
    /// All objects of which it has a copy, also those that the master has just published: without a link to
    /// the master, those that the node knows.
    pub fn read_inventory(&self, deadline: Instant) -> impl Future<Output = Vec<Record>> + Send + use<> {
        let shared = Arc::clone(&self.shared);
        async move {
            if *shared.status.borrow() == LinkStatus::Member {
                shared.ledger_reads.next(deadline.min(Instant::now() + LEDGER_TIME_MAX)).await;
            }
            shared.state.lock_anyway().core.inventory()
        }
    }
}
