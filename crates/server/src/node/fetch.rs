//! Reads objects of other members into reservations of this node, because copies were lost.
//!
//! The core decides and answers; here the bytes move: through the data socket of the other node, or through
//! its shared memory where it has no data socket.
//!
//! **Invariant:** a reservation stays referenced until no byte is written there any more.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tiffin_node::Event;
use tiffin_transport::shm::{Attachment, Shm, attach};
use tiffin_transport::tcp::{Identity, Tcp};
use tiffin_transport::{ReadOp, TransferError, Transport};
use tiffin_types::message::FetchItem;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Shared, slot_memory};

/// Copies that may wait to be started. The master limits those that it asks for; the rest is refused.
pub(super) const WAITING_MAX: usize = 1 << 10;
/// How long one copy may take.
const COPY_TIME_MAX: Duration = Duration::from_secs(600);
/// How long it may take to map the memory of a node on this host.
const ATTACH_TIME_MAX: Duration = Duration::from_secs(5);

/// Starts the copies that the core asks for.
pub(super) async fn run(shared: Arc<Shared>, mut items: mpsc::Receiver<FetchItem>) {
    while let Some(item) = items.recv().await {
        let node = Arc::clone(&shared);
        let copying = async move {
            let read = read(&node, &item).await;
            if let Err(why) = &read {
                let source = &item.source.name;
                tracing::warn!(source, bytes = item.len, why, "an object could not be copied from a node");
            }
            if !node.state.has_failed() {
                node.handle(Event::Fetched(item.into, read.is_ok()));
            }
        };
        tokio::spawn(shared.supervisor.watch("a copy from another node", copying));
    }
}

async fn read(node: &Arc<Shared>, item: &FetchItem) -> Result<(), String> {
    let deadline = Instant::now() + COPY_TIME_MAX;
    let Some((extents, _held)) = slot_memory::reservation(node, item.into, item.len) else {
        return Err("the memory for it was given up".to_owned());
    };
    if item.len == 0 {
        return Ok(());
    }
    let Some(targets) = node.memory.targets(&extents) else {
        return Err("the memory for it is outside of the segment".to_owned());
    };
    let op = ReadOp { slot: item.from.slot.0, stamp: item.from.stamp.0, offset: 0, targets };
    let ops = [op];
    let mut outcomes = match transport(node, item, deadline).await? {
        Source::Socket(tcp) => tcp.read(&ops, deadline).await,
        Source::Memory(shm) => shm.read(&ops, deadline).await,
    };
    match outcomes.pop() {
        Some(Ok(())) => Ok(()),
        Some(Err(TransferError::Stale)) => Err("it was removed meanwhile".to_owned()),
        Some(Err(error)) => Err(error.to_string()),
        None => Err("nothing was read".to_owned()),
    }
}

enum Source {
    Socket(Tcp),
    Memory(Shm),
}

/// The way to the member that has the object.
async fn transport(node: &Shared, item: &FetchItem, deadline: Instant) -> Result<Source, String> {
    let source = &item.source;
    // Each node reads under the name of its own segment, which is as random as a client's id. Ids of clients
    // have 63 bits.
    let (client, counters) = (node.info.segment.0 >> 1, Arc::clone(&node.counters));
    let identity = Identity { client, segment: source.segment.0, token: node.token.clone() };
    if !source.data.is_empty() {
        let address = source.data.clone();
        return Ok(Source::Socket(match source.beside {
            Some(_) => Tcp::to_disk(address, identity, counters, None).secured(node.tls.clone()),
            None => Tcp::new(address, identity, counters).secured(node.tls.clone()),
        }));
    }
    let attached = match node.sources.get(source.segment.0) {
        Some(attached) => attached,
        None => {
            let deadline = deadline.min(Instant::now() + ATTACH_TIME_MAX);
            let attached = attach(&source.memory, source.segment.0, client, &node.token, deadline).await;
            let attached = attached.map_err(|error| {
                format!("it has no data socket, and its memory cannot be mapped: {error}; give it `--listen`")
            })?;
            node.sources.keep(source.segment.0, attached)
        }
    };
    Ok(Source::Memory(Shm::new(attached, counters)))
}

/// The memory of other nodes that this one maps. The other node keeps an attachment until the process of this
/// one ends, so there is one of each.
#[derive(Default)]
pub(super) struct Sources(Mutex<BTreeMap<u64, Arc<Attachment>>>);

impl Sources {
    fn get(&self, segment: u64) -> Option<Arc<Attachment>> {
        let mut mapped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        mapped.retain(|_, it| it.is_connected());
        mapped.get(&segment).map(Arc::clone)
    }

    /// The first one stays, if several copies have attached at once.
    fn keep(&self, segment: u64, attached: Attachment) -> Arc<Attachment> {
        let mut mapped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(mapped.entry(segment).or_insert_with(|| Arc::new(attached)))
    }
}
