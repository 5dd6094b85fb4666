//! The notices of the master's core, as lines of the log.

use std::sync::atomic::Ordering;

use tiffin_core::master::Notice;

use super::Shared;

impl Shared {
    pub(super) fn notice(&self, notice: &Notice) {
        match notice {
            Notice::Evicted(objects, bytes) => {
                self.counters.evicted();
                tracing::debug!(objects, bytes, "evicted to free memory");
            }
            Notice::Prefetched { keys, resident, running, failed, skipped } => {
                tracing::info!(keys, resident, running, failed, skipped, "prefetch requested");
            }
            // One line for each get from a disk, so only for debugging.
            Notice::Got { memory, disk, far, waited_ms, late } => {
                tracing::debug!(memory, disk, far, waited_ms, late, "get of objects on disks");
            }
            Notice::DemotionRefused { disk, key, bytes, bytes_max, total } => {
                // If many objects are too large, the lines become rarer; the metrics count all.
                match total.is_power_of_two() {
                    true => tracing::warn!(
                        disk,
                        %key,
                        bytes,
                        bytes_max,
                        total,
                        "an object is larger than its disk takes, and stays in memory only; hint: use a \
                         larger disk, or split the object"
                    ),
                    false => tracing::debug!(disk, %key, bytes, bytes_max, "larger than its disk takes"),
                }
            }
            Notice::Promoted { done, bytes, took_ms } => {
                tracing::debug!(done, bytes, took_ms, "promotion ended");
            }
            Notice::Stored { namespace, key, on_disk } => {
                self.events.iter().for_each(|it| it.push(true, namespace, key, *on_disk));
            }
            Notice::Removed { namespace, key } => {
                self.events.iter().for_each(|it| it.push(false, namespace, key, false));
            }
            Notice::Resumed(..) => {}
            Notice::NodeReady(_)
            | Notice::NodeSilent(_)
            | Notice::NodeAway(_)
            | Notice::NodeAbsent { .. }
            | Notice::NodeLost(..)
            | Notice::NodeLeft(..)
            | Notice::NodeDiscarded(_)
            | Notice::AwaitingReports(_)
            | Notice::AllReported
            | Notice::Superseded(..) => self.member_notice(notice),
        }
    }

    fn member_notice(&self, notice: &Notice) {
        match notice {
            Notice::NodeReady(node) => tracing::info!(node, "a node is ready"),
            Notice::NodeSilent(node) => {
                tracing::warn!(node, "a node is silent, and not used until it answers");
            }
            Notice::NodeAway(node) if self.is_stopping.load(Ordering::Acquire) => {
                tracing::info!(node, "a node has stopped");
            }
            Notice::NodeAway(node) => tracing::warn!(node, "a node is away"),
            Notice::NodeAbsent { node, removed, kept: 0 } => {
                tracing::warn!(node, removed, "a node is absent: the objects that only it has were removed");
            }
            Notice::NodeAbsent { node, removed, kept } => {
                tracing::error!(
                    node,
                    removed,
                    kept,
                    "a node is absent: unprotected objects that only it has were removed, protected ones are \
                     unavailable until it returns; hint: if it will not return, run `tiffin node forget`"
                );
            }
            Notice::NodeLost(node, objects) => {
                tracing::error!(node, objects, "a node is lost, and its objects with it");
            }
            Notice::NodeLeft(node, objects) => tracing::info!(node, objects, "a node left, with its objects"),
            Notice::NodeDiscarded(node) => {
                tracing::warn!(node, "a node that had been lost came back, and starts empty");
            }
            Notice::AwaitingReports(members) => {
                let members = members.join(", ");
                tracing::info!(members, "waiting for members to report; requests that depend on them wait");
            }
            Notice::AllReported => tracing::info!("every member has reported"),
            Notice::Superseded(member, epoch) => {
                let own = self.epoch();
                tracing::error!(
                    member,
                    epoch,
                    own,
                    "a member has served a later master: the state folder was lost or is old; moving past it"
                );
            }
            _ => {}
        }
    }
}
