//! The tier below memory: which objects are demoted to disks, which are promoted back, and when.
//!
//! A disk is a member of its own, in the node with the memory. A copy on it has a slot reference, and is
//! recorded in the catalog, retired and announced like any other, attributes included. So a delete, a
//! replacement or the return of a node means the same for disks as for memory.
//!
//! [`Tier`] owns this state. The master calls it for requests and replies that concern disks, and after
//! every event ([`Tier::serve`]). [`demote`] writes copies to disks, and [`promote`] reads them back.
//! [`fetch`] holds the requests that wait for promotions. [`repair`] makes lost copies again.

mod cold;
mod demote;
mod fetch;
mod promote;
mod promoted;
mod refused;
mod repair;
mod shield;
mod sketch;
mod waiting;
mod write_through;

use demote::Demotions;
pub(super) use demote::{DemotionEnd, Leaving, ends};
pub(super) use fetch::Fetched;
use fetch::Fetches;
use promote::Promotions;
pub(super) use promote::{PromotionId, end_copy_at};
use promoted::Promoted;
pub use repair::RepairConfig;
use repair::Repairs;

use super::{
    Notice,
    catalog::{NamespaceIndex, NodeIndex, ObjectIndex},
    context::Context,
    pending_retires::Name,
};
use crate::{
    Generation, Tick,
    message::{Demotion, Dropped, TierStat},
};

/// The operator's settings for disks.
#[derive(Clone, Copy, Debug)]
pub struct TierConfig {
    /// The demotion policy of namespaces without one of their own.
    pub demotion: Demotion,
    /// The percentage of a node's memory that should be free, or also on its disk.
    pub ahead_percent: u8,
    /// Whether objects that are read repeatedly from a disk are promoted.
    pub promote_on_hit: bool,
    /// The number of disk reads after which an object is promoted.
    pub promote_hits: u8,
    /// How long a promotion waits for memory.
    pub memory_wait_ms: u64,
    /// Maximum number of promotions that wait for memory.
    pub waiting_max: usize,
    /// How long a promoted object is protected from eviction, unless it is read before.
    pub protect_ms: u64,
    /// How long a disk may be disconnected before it is absent.
    pub away_ms_max: u64,
    /// Limits of prefetches.
    pub throttle: tiffin_throttle::Config,
    /// How lost copies are made again.
    pub repair: RepairConfig,
}

impl Default for TierConfig {
    fn default() -> Self {
        Self {
            demotion: Demotion::OnPressure,
            ahead_percent: 25,
            promote_on_hit: true,
            promote_hits: 2,
            memory_wait_ms: 10_000,
            waiting_max: 50_000,
            protect_ms: 5_000,
            away_ms_max: 3_600_000,
            throttle: tiffin_throttle::Config::default(),
            repair: RepairConfig::default(),
        }
    }
}

/// The state of the tier.
#[derive(Debug)]
pub(super) struct Tier {
    demotions: Demotions,
    promotions: Promotions,
    /// The requests that wait for promotions.
    pub(super) fetches: Fetches,
    pub(super) promoted: Promoted,
    pub(super) repairs: Repairs,
    stat: TierStat,
}

impl Tier {
    pub(super) fn new(config: TierConfig, epoch: u64) -> Self {
        Self {
            demotions: Demotions::new(epoch),
            promotions: Promotions::new(config.throttle),
            fetches: Fetches::default(),
            promoted: Promoted::default(),
            repairs: Repairs::new(config.repair),
            stat: TierStat::default(),
        }
    }

    /// State has changed that may require demotions.
    pub(super) fn wake(&mut self) {
        self.demotions.wake();
    }

    /// Starts what has become possible: promotions that waited for memory, then demotions.
    pub(super) fn serve(&mut self, cx: &mut Context) {
        self.repairs.notice_lost_copies(cx);
        self.serve_promotions(cx);
        self.demotions.write_ahead(cx, &self.promotions.queue);
    }

    /// Ends promotions that have taken too long, and the pauses of disks that failed.
    pub(super) fn handle_timeout(&mut self, cx: &mut Context) {
        for generation in self.promotions.throttle.take_late(cx.now.0) {
            self.end_promotion(cx, generation, tiffin_throttle::End::Failed);
        }
        self.end_late_repairs(cx);
        self.demotions.end_pauses(cx.now);
    }

    /// When [`Self::handle_timeout`] is due, if no other event occurs first.
    pub(super) fn next_timeout(&self, cx: &Context) -> Option<Tick> {
        let late = self.promotions.throttle.next_late().map(Tick);
        let pause = self.demotions.next_pause_end(cx.now);
        let times = [late, self.promotions.queue.next_try(cx), pause, self.repairs.next(cx)];
        times.into_iter().flatten().min()
    }

    /// Number of objects that are being promoted or demoted.
    pub(super) fn moving_count(&self) -> usize {
        self.promotions.count() + self.demotions.count()
    }

    /// Number of requests that wait for promotions.
    pub(super) fn waiting_count(&self) -> usize {
        self.fetches.len()
    }

    /// An object was committed: its namespace may want a disk copy at once.
    pub(super) fn write_through(&mut self, cx: &Context, index: ObjectIndex) {
        self.demotions.write_through(cx, index);
    }

    /// Whether the disks are about to free that much memory of a node, so that a put should wait for it.
    pub(super) fn frees_memory(&mut self, cx: &mut Context, node: NodeIndex, need: u64) -> bool {
        self.demotions.free_memory(cx, &self.promotions.queue, node, need)
    }

    /// Demotes objects of a namespace that has nearly used up its quota, of at least that much memory.
    /// Returns whether any are being written, so that a put should wait for it.
    pub(super) fn demote_namespace(
        &mut self,
        cx: &mut Context,
        namespace: NamespaceIndex,
        need: u64,
    ) -> bool {
        self.demotions.demote_namespace(cx, namespace, need)
    }

    /// A disk has replied to the demotion of an object; see [`DemotionEnd`].
    pub(super) fn end_demotion(
        &mut self,
        cx: &mut Context,
        disk: NodeIndex,
        end: (&Leaving, bool, Option<u64>),
    ) -> DemotionEnd {
        self.demotions.end(cx, &mut self.stat, disk, end)
    }

    /// A disk is disconnected. When it returns, it announces which of these objects it has.
    pub(super) fn disk_away(&mut self, cx: &mut Context, disk: NodeIndex, leaving: &[Leaving]) {
        self.demotions.disk_away(cx, disk, leaving);
    }

    /// A member is lost, and its index may be reused.
    pub(super) fn forget_member(&mut self, cx: &mut Context, node: NodeIndex) {
        self.demotions.forget_member(cx, node);
    }

    /// An object was removed from the catalog, with its copies that were being written. Returns the maximum
    /// object size of the disks that had refused it; zero if none did.
    pub(super) fn forget_object(
        &mut self,
        cx: &mut Context,
        index: ObjectIndex,
        generation: Generation,
    ) -> u64 {
        self.stat.promoted_unused += u64::from(self.promoted.leave(index));
        self.end_promotion(cx, generation, tiffin_throttle::End::Cancelled);
        self.end_waiting_promotion(cx, &generation, false);
        self.demotions.evicted.take(generation);
        self.demotions.refusals.take(generation)
    }

    /// Maximum object size of the disks that have refused an object; zero if none did.
    pub(super) fn refused_bytes_max(&self, generation: Generation) -> u64 {
        self.demotions.refusals.bytes_max(generation)
    }

    /// A disk has dropped its copy of an object to make space for others.
    pub(super) fn evicted_on_disk(&mut self, cx: &Context, index: ObjectIndex, disk: NodeIndex) {
        let object = cx.catalog.get(index).filter(|it| it.in_memory().next().is_some());
        object.into_iter().for_each(|it| _ = self.demotions.evicted.note(it.generation(), disk, 0, cx.now));
    }

    /// Counts copies that a disk has dropped on its own.
    pub(super) fn count_dropped(&mut self, dropped: &Dropped) {
        let count = dropped.items.len() as u64;
        *(if dropped.corrupt { &mut self.stat.disk_corrupt } else { &mut self.stat.disk_evicted }) += count;
    }

    /// Counts an object that was evicted without a disk copy.
    pub(super) fn count_evicted(&mut self, cx: &Context, node: Option<NodeIndex>) {
        let has_disk = node.is_some_and(|node| demote::disks_of(cx, node).next().is_some());
        self.stat.evicted_undemoted += u64::from(has_disk);
    }

    /// Removes an object from the memory of one node, or of all. It stays on its disk, even if the disk is
    /// disconnected. `false` if it has no disk copy.
    pub(super) fn leave_memory(
        &mut self,
        cx: &mut Context,
        index: ObjectIndex,
        node: Option<NodeIndex>,
    ) -> bool {
        let Some(object) = cx.catalog.get(index) else { return false };
        if object.readable_on_disks().next().is_none() {
            return false;
        }
        let leaving = object.in_memory().filter(|(on, _)| node.is_none_or(|node| node == *on));
        let leaving: Vec<_> = leaving.collect();
        let name = Name { namespace: object.namespace(), key: object.key().clone() };
        let (name, generation) = (std::sync::Arc::new(name), object.generation());
        for &copy in &leaving {
            cx.catalog.drop_replica(index, copy.0);
            cx.pending_retires.insert(&name, generation, copy);
        }
        self.stat.promoted_unused += u64::from(self.promoted.leave(index));
        cx.retire(leaving, None);
        cx.quotas.note_change();
        true
    }

    /// Counts where gets find their bytes, and promotes objects that are read repeatedly from a disk.
    /// `waited` is how long the get waited for promotions, and whether its deadline passed.
    pub(super) fn count_gets<'a>(
        &mut self,
        cx: &mut Context,
        host: &str,
        found: impl Iterator<Item = &'a ObjectIndex>,
        waited: Option<(u64, bool)>,
    ) {
        if !cx.members.has_disks() {
            self.stat.gets_from_memory += found.count() as u64;
            return;
        }
        let (mut memory, mut disk, mut far) = (0, 0, 0);
        for &index in found {
            let Some(object) = cx.catalog.get(index) else { continue };
            if cx.is_in_memory(object) {
                memory += 1;
                if let Some(generation) = self.promoted.read(index) {
                    self.promotions.throttle.forget_done(&generation);
                    self.stat.promoted_used += 1;
                }
            } else {
                let is_here = |it: NodeIndex| cx.members.get(it).is_some_and(|it| it.info.host == host);
                far += u64::from(!object.readable_on_disks().any(|(disk, _)| is_here(disk)));
                disk += 1;
                self.count_disk_hit(cx, index);
            }
        }
        self.stat.gets_from_memory += memory;
        self.stat.gets_from_disk += disk;
        self.stat.gets_from_far_disk += far;
        if disk > 0 || waited.is_some() {
            let (waited_ms, late) = waited.map_or((None, false), |(ms, late)| (Some(ms), late));
            cx.notice(Notice::Got { memory, disk, far, waited_ms, late });
        }
    }

    /// Checks internal consistency.
    pub(super) fn check(&self, cx: &Context) -> Result<(), String> {
        self.demotions.check(cx)?;
        self.check_promotions(cx)
    }

    /// Statistics since the master started.
    pub(super) fn stat(&self, cx: &Context) -> TierStat {
        TierStat { disk_objects: cx.members.disk_objects(), ..self.stat }
    }
}
