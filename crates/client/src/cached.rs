//! Gets and probes that use cached locations, and the task that reports these uses to the master.
//!
//! Uses are reported a moment later, so that eviction knows of them, and in any case before this client asks
//! for memory.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tiffin_session::{CachedGet, GetRequest, Reach};
use tiffin_types::message::Found;
use tiffin_types::{Key, Keys, Location, SegmentId};

use crate::inner::Inner;
use crate::{GetOptions, ResolveOptions};

/// At this number of uses they are reported at once.
const USED_MAX: usize = 512;
/// Fewer uses are reported after this time: a lease must protect what was just read.
const REPORT_AFTER: Duration = Duration::from_millis(10);
/// While nothing is used, the reporter checks at most this much later.
const REPORT_PAUSE_MAX: Duration = Duration::from_millis(80);
/// The reporter ends after this time without a use.
const QUIET_TIME_MAX: Duration = Duration::from_secs(1);

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
    match inner.nodes.current_route(segment) {
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
        let Some(route) = inner.nodes.current_route(first.segment).filter(|it| it.attachment().is_some())
        else {
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

/// Reports uses to the master: now if there are many, else in a moment. The caller does not wait.
pub(crate) fn report_soon(inner: &Inner) {
    inner.report(USED_MAX);
    if is_reporter_due(inner) {
        inner.runtime.spawn(report_in_moments(inner.weak()));
    }
}

/// Whether there are uses to report and there is no reporter. Then the caller must start one.
fn is_reporter_due(inner: &Inner) -> bool {
    inner.locations.lock().unreported() > 0 && !inner.locations.has_reporter.swap(true, Ordering::AcqRel)
}

/// The reporter: reports uses every few milliseconds, and ends when there were none for a while. Waking a
/// thread costs more than a get, so a get does that only after such a pause. Without uses the reporter
/// checks less and less often, because each check takes processor time from other work.
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
        inner.report_uses();
        if quiet >= QUIET_TIME_MAX {
            inner.locations.has_reporter.store(false, Ordering::Release);
            // A get may have relied on this reporter a moment ago.
            if is_reporter_due(&inner) {
                (pause, quiet) = (REPORT_AFTER, Duration::ZERO);
            }
        }
    }
}
