//! The cached locations of a client, and how the master learns which of them are used.
//!
//! The decisions are in [`LocationCache`]. Uses are reported to the master a moment later, so that eviction
//! knows of them, and in any case before this client asks for memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tiffin_core::message::{ClientToMaster, Found};
use tiffin_core::sabotage::Sabotage;
use tiffin_core::session::{CachedGet, GetRequest, LocationCache, Reach};
use tiffin_core::{Key, Keys, Location, SegmentId};

use crate::inner::Inner;
use crate::{GetOptions, ResolveOptions};

/// Objects whose locations are cached. Each costs about two hundred bytes.
const CACHED_MAX: usize = 1 << 17;
/// So many uses are reported at once.
const USED_MAX: usize = 512;
/// Fewer uses are reported after this time: a lease must protect what was just read.
const REPORT_AFTER: Duration = Duration::from_millis(10);
/// While nothing is used, the reporter checks at most this much later.
const REPORT_PAUSE_MAX: Duration = Duration::from_millis(80);
/// After so long without a use the reporter ends.
const QUIET_TIME_MAX: Duration = Duration::from_secs(1);
/// The most uses in one message.
const REPORTED_MAX: usize = 4096;

/// The cached locations of a client, for all of its handles.
pub(crate) struct Locations {
    cache: Mutex<LocationCache>,
    /// A task reports uses.
    has_reporter: AtomicBool,
}

impl Locations {
    pub(crate) fn new(seed: u64) -> Self {
        let cache = Mutex::new(LocationCache::new(CACHED_MAX, seed, Sabotage::None));
        Self { cache, has_reporter: AtomicBool::new(false) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LocationCache> {
        // A panic leaves nothing half done that matters: cached locations may be wrong anyway.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The requests of gets, with the cached locations that may be read without asking the master.
pub(crate) fn recall(inner: &Inner, keys: &[Key], options: GetOptions) -> Vec<GetRequest> {
    let get = CachedGet {
        is_connected: inner.current_master().is_some(),
        lease: options.lease,
        strict_leases: inner.has_strict_leases(),
    };
    let mut reaches = BTreeMap::new();
    let mut reach = |segment| *reaches.entry(segment).or_insert_with(|| reach(inner, segment));
    let mut cache = inner.locations.lock();
    keys.iter().map(|key| cache.recall(key, get, &mut reach)).collect()
}

fn reach(inner: &Inner, segment: SegmentId) -> Reach {
    match inner.current_route(segment) {
        None => Reach::None,
        Some(route) if route.leads_to_disk() => Reach::Disk,
        Some(route) if route.attachment().is_some() => Reach::Mapped,
        Some(_) => Reach::Socket,
    }
}

/// A cached location of one of several objects.
struct Use {
    segment: SegmentId,
    /// The epoch in which the object was named.
    named: u64,
    index: usize,
    slot: u32,
    stamp: u64,
}

/// Whether objects certainly exist, according to cached locations. `false` says nothing.
pub(crate) fn is_there(inner: &Inner, keys: &Keys, options: ResolveOptions) -> Vec<bool> {
    let mut there = vec![false; keys.len()];
    let epoch = inner.current_master().map(|it| it.epoch);
    let Some(epoch) = epoch.filter(|_| !(options.lease && inner.has_strict_leases())) else { return there };
    let mut uses = Vec::with_capacity(keys.len());
    let mut cache = inner.locations.lock();
    for (index, key) in keys.iter().enumerate() {
        let found = cache.probe(key, options.touch, options.lease);
        let Some(Found { generation, replicas, .. }) = found else { continue };
        for &Location { segment, slot, stamp } in replicas {
            uses.push(Use { segment, named: generation.epoch, index, slot: slot.0, stamp: stamp.0 });
        }
    }
    drop(cache);
    uses.sort_unstable_by_key(|it| (it.segment, it.named));
    for uses in uses.chunk_by(|one, other| (one.segment, one.named) == (other.segment, other.named)) {
        let Some(first) = uses.first() else { continue };
        let Some(route) = inner.current_route(first.segment).filter(|it| it.attachment().is_some()) else {
            continue;
        };
        let valid = route.are_valid(uses.iter().map(|it| (it.slot, it.stamp)), first.named, epoch);
        for (it, _) in uses.iter().zip(valid).filter(|(_, valid)| *valid) {
            if let Some(there) = there.get_mut(it.index) {
                *there = true;
            }
        }
    }
    there
}

/// Reports uses to the master: now if there are many, else in a moment. Nobody waits for that.
pub(crate) fn report_soon(inner: &Inner) {
    report(inner, USED_MAX);
    if is_reporter_due(inner) {
        inner.runtime.spawn(report_in_moments(inner.weak()));
    }
}

/// Whether there are uses to report and there is no reporter. Then the caller must start one.
fn is_reporter_due(inner: &Inner) -> bool {
    inner.locations.lock().unreported() > 0 && !inner.locations.has_reporter.swap(true, Ordering::AcqRel)
}

/// The reporter: reports uses every few milliseconds, and ends when there were none for a while. To wake a
/// thread costs more than a get, so a get does that only after such a pause. While nothing is used, the
/// reporter checks less and less often, because that takes a processor from others, too.
async fn report_in_moments(client: Weak<Inner>) {
    let (mut pause, mut quiet) = (REPORT_AFTER, Duration::ZERO);
    while quiet < QUIET_TIME_MAX {
        tokio::time::sleep(pause).await;
        let Some(inner) = client.upgrade() else { return };
        let is_quiet = inner.locations.lock().unreported() == 0;
        (pause, quiet) = match is_quiet {
            true => (REPORT_PAUSE_MAX.min(pause * 2), quiet + pause),
            false => (REPORT_AFTER, Duration::ZERO),
        };
        report_all(&inner);
        if quiet >= QUIET_TIME_MAX {
            inner.locations.has_reporter.store(false, Ordering::Release);
            // A get may have relied on this reporter a moment ago.
            if is_reporter_due(&inner) {
                (pause, quiet) = (REPORT_AFTER, Duration::ZERO);
            }
        }
    }
}

/// Reports all uses to the master. Nobody waits for that.
pub(crate) fn report_all(inner: &Inner) {
    while report(inner, 1) {}
}

/// Reports of all uses, for the caller to send.
pub(crate) fn reports(inner: &Inner) -> Vec<ClientToMaster> {
    std::iter::from_fn(|| inner.locations.lock().report(1, REPORTED_MAX)).collect()
}

fn report(inner: &Inner, enough: usize) -> bool {
    let Some(master) = inner.current_master() else { return false };
    let Some(request) = inner.locations.lock().report(enough, REPORTED_MAX) else { return false };
    if let Err(error) = master.connection.tell(&request) {
        tracing::debug!(%error, "uses could not be reported");
    }
    true
}
