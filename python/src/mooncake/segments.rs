//! Segments that a store mounts besides the one of its `setup`: further storage nodes in this process.
//!
//! All segments of a store have its name, as in Mooncake, so that `preferred_segment` selects all of them.
//!
//! **Invariant:** the nodes belong to the process that mounted them. A forked child has none, and does not
//! touch those of its parent.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tiffin_client::{ConnectOptions, Deadline, Losses};
use tiffin_embedded::drain;
use tiffin_server::{Address, NodeConfig, NodeServer, host};
use tokio::time::Instant;

use super::log::tell;
use crate::process::PerProcess;

/// The size of an allocated segment is a multiple of this, as in Mooncake.
const SEGMENT_ALIGN: u64 = 16 << 20;
/// The maximum number of segments that a store mounts.
pub(super) const SEGMENTS_MAX: usize = 64;
/// The time limit for the registration of a segment.
const JOIN_TIME: Duration = Duration::from_secs(20);
/// The time limit for a segment to leave.
const LEAVE_TIME: Duration = Duration::from_secs(5);

/// The settings of a store's nodes.
#[derive(Clone)]
pub(super) struct Site {
    /// The name of the store.
    pub(super) hostname: String,
    /// The address on which its nodes listen.
    pub(super) ip: IpAddr,
    /// All other settings.
    pub(super) config: NodeConfig,
}

/// The id of a mounted segment: two decimal numbers with a dash between them.
pub(super) type Id = (u64, u64);

/// The segments of one store.
pub(super) struct Segments {
    site: Site,
    mounted: PerProcess<Arc<Mounted>>,
}

#[derive(Default)]
struct Mounted(Mutex<BTreeMap<Id, Segment>>);

enum Segment {
    /// It accepts objects.
    Serving(NodeServer),
    /// It leaves when its grace period ends.
    Leaving(NodeServer),
}

/// The outcome of an unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unmounted {
    Done,
    /// There is no segment with that id.
    Unknown,
    /// It is in its grace period.
    Leaving,
}

impl Mounted {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Id, Segment>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a segment that accepts objects. One in its grace period stays.
    fn take_serving(&self, id: Id) -> Result<NodeServer, Unmounted> {
        let mut segments = self.lock();
        match segments.remove(&id) {
            None => Err(Unmounted::Unknown),
            Some(Segment::Serving(node)) => Ok(node),
            Some(leaving) => {
                segments.insert(id, leaving);
                Err(Unmounted::Leaving)
            }
        }
    }
}

impl Segments {
    pub(super) fn new(site: Site) -> Self {
        Self { site, mounted: PerProcess::new() }
    }

    /// How the nodes of the store are made.
    pub(super) fn site(&self) -> &Site {
        &self.site
    }

    fn mounted(&self) -> &Arc<Mounted> {
        let Ok(mounted) = self.mounted.get_or_try(|| Ok::<_, std::convert::Infallible>(Arc::default()));
        mounted
    }

    /// Mounts memory of at least this many bytes, within `time`. Returns its id and its size.
    pub(super) async fn allocate(
        &self,
        bytes: u64,
        again: &ConnectOptions,
        time: Duration,
    ) -> Result<(Id, u64), String> {
        let deadline = Instant::now() + time.min(JOIN_TIME);
        let memory =
            Some(bytes).filter(|it| *it > 0).and_then(|it| it.checked_next_multiple_of(SEGMENT_ALIGN));
        let memory = memory.ok_or_else(|| match bytes {
            0 => "a segment needs at least one byte".to_owned(),
            _ => format!("a segment of {bytes} bytes is too large"),
        })?;
        let mounted = Arc::clone(self.mounted());
        let too_many = || format!("{SEGMENTS_MAX} segments are already mounted");
        if mounted.lock().len() >= SEGMENTS_MAX {
            return Err(too_many());
        }
        let config = NodeConfig {
            memory,
            name: self.site.hostname.clone(),
            listen: Some(Address::Tcp { host: self.site.ip.to_string(), port: 0 }),
            ..self.site.config.clone()
        };
        let node = NodeServer::start(config).await.map_err(|error| error.to_string())?;
        tokio::spawn(drain::serve(node.drain_duty(), again.clone()));
        let joined = node.joined(deadline).await;
        joined.map_err(|error| error.to_string())?;
        let drawn = host::draw().map_err(|error| format!("cannot get a random number: {error}"))?;
        let id = (node.segment().0, drawn);
        let refused = {
            let mut segments = mounted.lock();
            // Other threads may have mounted segments meanwhile.
            if segments.len() < SEGMENTS_MAX {
                segments.insert(id, Segment::Serving(node));
                None
            } else {
                Some(node)
            }
        };
        match refused {
            None => Ok((id, memory)),
            Some(node) => {
                node.leave(Deadline::after(LEAVE_TIME).instant()).await;
                Err(too_many())
            }
        }
    }

    /// Unmounts a segment: at once, or when the grace period has ended.
    pub(super) async fn unmount(&self, id: Id, grace: Duration) -> Unmounted {
        let mounted = Arc::clone(self.mounted());
        let node = match mounted.take_serving(id) {
            Ok(node) => node,
            Err(outcome) => return outcome,
        };
        if grace.is_zero() {
            node.leave(Deadline::after(LEAVE_TIME).instant()).await;
            return Unmounted::Done;
        }
        node.drain();
        mounted.lock().insert(id, Segment::Leaving(node));
        tokio::spawn(async move {
            tokio::time::sleep(grace).await;
            let segment = mounted.lock().remove(&id);
            if let Some(Segment::Leaving(node)) = segment {
                node.leave(Deadline::after(LEAVE_TIME).instant()).await;
            }
        });
        Unmounted::Done
    }

    /// Reports the objects that are lost, and unmounts all segments of this process.
    pub(super) async fn close(&self, again: &ConnectOptions, deadline: Deadline) {
        let Some(mounted) = self.mounted.here() else { return };
        let segments = std::mem::take(&mut *mounted.lock());
        for (_, Segment::Serving(node) | Segment::Leaving(node)) in segments {
            let records = node.read_inventory(deadline.instant()).await;
            if !records.is_empty() {
                let losses = Losses::of(records, node.segment(), again, deadline).await;
                if !losses.is_empty() {
                    tell(&format!("close: {losses}; they are lost"));
                }
            }
            node.leave(Deadline::after(LEAVE_TIME).instant()).await;
        }
    }
}

/// In the process that mounted them, remaining segments leave in the background.
impl Drop for Segments {
    fn drop(&mut self) {
        let Some(mounted) = self.mounted.take() else { return };
        let segments = std::mem::take(&mut *mounted.lock());
        if let Ok(runtime) = crate::runtime::runtime()
            && !segments.is_empty()
        {
            runtime.spawn(async move {
                for (_, Segment::Serving(node) | Segment::Leaving(node)) in segments {
                    node.leave(Deadline::after(LEAVE_TIME).instant()).await;
                }
            });
        }
    }
}

/// The text of an id.
pub(super) fn text_of((first, second): Id) -> String {
    format!("{first}-{second}")
}

/// Parses the text of an id.
pub(super) fn id_of(text: &str) -> Option<Id> {
    let (first, second) = text.split_once('-')?;
    Some((first.parse().ok()?, second.parse().ok()?))
}

/// Prints one line: a segment could not be mounted.
pub(super) fn tell_failed(call: &str, why: &str) {
    tell(&format!("{call} failed (-1): {why}"));
}
