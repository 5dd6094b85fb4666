//! Log lines for the notices of the master's core.

use std::sync::atomic::Ordering;

use tiffin_core::master::{Eviction, Notice};

use super::Shared;
use crate::watch::Kind;

impl Shared {
    pub(super) fn notice(&self, notice: &Notice) {
        match notice {
            Notice::Evicted(eviction) => self.evicted(eviction),
            Notice::Expired(expired) => {
                // Objects may expire all the time, so equal texts are one event.
                self.watched.journal.add(Kind::Expired, "", "objects expired: their TTL was over");
                tracing::debug!(objects = expired.objects, bytes = expired.bytes, "objects expired");
            }
            Notice::Prefetched { keys, resident, running, failed, skipped } => {
                tracing::info!(keys, resident, running, failed, skipped, "prefetch requested");
            }
            // One line per get from a disk is for debugging only.
            Notice::Got { memory, disk, far, waited_ms, late } => {
                tracing::debug!(memory, disk, far, waited_ms, late, "get of objects on disks");
            }
            Notice::DemotionRefused { disk, key, bytes, bytes_max, total } => {
                let text = "an object exceeds the size limit of the disk and stays in memory only";
                self.watched.journal.add(Kind::DemotionRefused, disk, text);
                // The lines become rarer when many objects are too large. The metrics count all of them.
                match total.is_power_of_two() {
                    true => tracing::warn!(
                        disk,
                        %key,
                        bytes,
                        bytes_max,
                        total,
                        "object exceeds the size limit of its disk and stays in memory only; hint: use a \
                         larger disk, or split the object"
                    ),
                    false => {
                        tracing::debug!(disk, %key, bytes, bytes_max, "object exceeds its disk's limit")
                    }
                }
            }
            Notice::Promoted { done, bytes, took_ms } => {
                tracing::debug!(done, bytes, took_ms, "promotion ended");
            }
            Notice::Copied { done, node, bytes, took_ms } => {
                tracing::debug!(done, node, bytes, took_ms, "copy of an object that had too few");
            }
            Notice::PutGivenUp { home, member, key } => {
                let text = "a put was given up: a copy of it is on a member that was absent";
                self.watched.journal.add(Kind::PutGivenUp, member, text);
                tracing::warn!(
                    home,
                    member,
                    %key,
                    "a put was given up: a copy of it is on a member that was absent before it reported"
                );
            }
            Notice::Stored { namespace, key, on_disk } => {
                self.events.iter().for_each(|it| it.push(true, namespace, key, *on_disk));
            }
            Notice::Removed { namespace, key, on_disk } => {
                self.events.iter().for_each(|it| it.push(false, namespace, key, *on_disk));
            }
            Notice::Resumed(..) | Notice::Departs(..) => {}
            Notice::NodeReady(_)
            | Notice::NodeSilent(_)
            | Notice::NodeAway(_)
            | Notice::NodeAbsent { .. }
            | Notice::NodeLost(..)
            | Notice::NodeLeft(..)
            | Notice::NodeDiscarded(_)
            | Notice::OtherCluster { .. }
            | Notice::AwaitingReports(_)
            | Notice::AllReported
            | Notice::Superseded(..) => self.member_notice(notice),
        }
    }

    fn evicted(&self, eviction: &Eviction) {
        if eviction.is_unread && eviction.is_lost {
            let text = "an object was evicted before it was read, and no disk has it";
            self.watched.journal.add(Kind::EvictedUnread, "", text);
        }
        tracing::debug!(?eviction, "evicted to free memory");
    }

    /// Adds a notice about a member to the events.
    fn note(&self, notice: &Notice) {
        let (kind, subject, text) = match notice {
            Notice::NodeReady(node) => (Kind::MemberReady, node.as_str(), "is ready".to_owned()),
            Notice::NodeSilent(node) => {
                (Kind::MemberSilent, node.as_str(), "is silent, and not used until it answers".to_owned())
            }
            Notice::NodeAway(node) => (Kind::MemberAway, node.as_str(), "is away".to_owned()),
            Notice::NodeAbsent { node, removed, kept } => {
                let text = format!("is absent: {removed} objects were removed, {kept} are unavailable");
                (Kind::MemberAbsent, node.as_str(), text)
            }
            Notice::NodeLost(node, objects) => {
                (Kind::MemberLost, node.as_str(), format!("is lost, with {objects} objects"))
            }
            Notice::NodeLeft(node, objects) => {
                (Kind::MemberLeft, node.as_str(), format!("left, with {objects} objects"))
            }
            Notice::NodeDiscarded(node) => {
                (Kind::MemberDiscarded, node.as_str(), "was lost, returned, and starts empty".to_owned())
            }
            Notice::AwaitingReports(members) => {
                (Kind::ReportsAwaited, "", format!("waiting for {} to report", members.join(", ")))
            }
            Notice::AllReported => (Kind::AllReported, "", "every member has reported".to_owned()),
            _ => return,
        };
        self.watched.journal.add(kind, subject, &text);
    }

    fn member_notice(&self, notice: &Notice) {
        self.note(notice);
        match notice {
            Notice::NodeReady(node) => tracing::info!(node, "node is ready"),
            Notice::NodeSilent(node) => {
                tracing::warn!(node, "node is silent, and not used until it answers");
            }
            Notice::NodeAway(node) if self.is_stopping.load(Ordering::Acquire) => {
                tracing::info!(node, "node has stopped");
            }
            Notice::NodeAway(node) => tracing::warn!(node, "node is away"),
            Notice::NodeAbsent { node, removed, kept: 0 } => {
                tracing::warn!(node, removed, "node is absent: objects that only it has were removed");
            }
            Notice::NodeAbsent { node, removed, kept } => {
                tracing::error!(
                    node,
                    removed,
                    kept,
                    "node is absent: unprotected objects that only it has were removed, protected ones are \
                     unavailable until it returns; hint: if it will not return, run `tiffin node forget`"
                );
            }
            Notice::NodeLost(node, objects) => {
                tracing::error!(node, objects, "node is lost with its objects");
            }
            Notice::NodeLeft(node, objects) => tracing::info!(node, objects, "node left with its objects"),
            Notice::NodeDiscarded(node) => {
                tracing::warn!(node, "a lost node returned, and starts empty");
            }
            Notice::OtherCluster { node, cluster, own } => {
                tracing::warn!(node, %cluster, %own, "refused a member of another cluster");
            }
            Notice::AwaitingReports(members) => {
                let members = members.join(", ");
                tracing::info!(members, "waiting for members to report; requests that depend on them wait");
            }
            Notice::AllReported => tracing::info!("every member has reported"),
            Notice::Superseded(member, epoch) => {
                let own = self.epoch();
                // A master that keeps no state expects it.
                if let Some(store) = &self.store {
                    let text = "was lost or is an old copy: a member has served this epoch or a later one";
                    tracing::error!(member, epoch, own, "{} {text}; taking a later one", store.name());
                }
            }
            Notice::Evicted(..)
            | Notice::Expired(_)
            | Notice::Prefetched { .. }
            | Notice::Got { .. }
            | Notice::DemotionRefused { .. }
            | Notice::Promoted { .. }
            | Notice::Copied { .. }
            | Notice::PutGivenUp { .. }
            | Notice::Stored { .. }
            | Notice::Removed { .. }
            | Notice::Resumed(..)
            | Notice::Departs(..) => {}
        }
    }
}
