//! The identity of the cluster, by which the master recognises members of another one.
//!
//! The first master draws an id, saves it, and tells it to every member that registers. Members keep it with
//! their objects, so it survives the loss of the master's state. A member that reports another id is refused:
//! it holds objects, and knows of removals, that have nothing to do with the names of this cluster.
//!
//! A master that starts without an id cannot know whether the cluster is new or its state was lost. It draws
//! an id for members that have none, and takes over the first id that a member reports, as long as no object
//! is stored. After that, the operator decides ([`AdmitCluster`](crate::message::AdmitCluster)).
//!
//! **Invariant:** a refused member changes nothing here: neither the epoch, nor the roster, nor the catalog.

use super::Context;
use crate::{
    ClusterId, ConnId, EPOCH_MAX, RequestId,
    master::{Master, MasterConfig, Notice, refuse},
    message::{Reason, Register, Reply},
    mutant::is_mutant,
};

/// Maximum number of ids of one cluster.
pub const CLUSTER_IDS_MAX: usize = 16;

/// See the module.
#[derive(Debug)]
pub(in crate::master) struct Cluster {
    /// The id of the cluster, then the others whose members belong to it.
    ids: Vec<ClusterId>,
    /// The master started without an id, and no object was stored since.
    is_open: bool,
}

impl Default for Cluster {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl Cluster {
    pub(in crate::master) fn new(ids: Vec<ClusterId>) -> Self {
        Self { is_open: ids.is_empty(), ids }
    }

    /// Its id; zero if it has none yet.
    pub(in crate::master) fn id(&self) -> ClusterId {
        self.ids.first().copied().unwrap_or_default()
    }

    /// What is saved.
    pub(in crate::master) fn ids(&self) -> &[ClusterId] {
        &self.ids
    }

    /// An object is stored: members of another cluster would add theirs.
    pub(in crate::master) fn close(&mut self) {
        self.is_open = false;
    }

    /// Whether a member with this id may register. `None` if it may not, else whether the ids have changed.
    fn admit(&mut self, config: &MasterConfig, id: ClusterId) -> Option<bool> {
        let knows_all = is_mutant!(config.mutant, JoinAnyCluster);
        let Some(id) = id.known().filter(|it| !self.ids.contains(it) && !knows_all) else {
            let is_first = self.ids.is_empty();
            if is_first {
                self.ids.push(ClusterId(config.instance.max(1)));
            }
            return Some(is_first);
        };
        if !std::mem::replace(&mut self.is_open, false) {
            return None;
        }
        self.ids.insert(0, id);
        Some(true)
    }
}

impl Context {
    /// Refuses a member that does not belong to this cluster, or whose memory is damaged.
    pub(in crate::master) fn refusal_of(&mut self, register: &Register) -> Option<Reply> {
        let name = &register.info.name;
        if register.epoch >= EPOCH_MAX {
            let message = format!("`{name}` reports epoch {}: its memory is damaged", register.epoch);
            return Some(refuse(Reason::Invalid, &message));
        }
        match self.cluster.admit(&self.config, register.cluster) {
            Some(has_changed) => {
                if has_changed {
                    self.save();
                }
                None
            }
            None => {
                let (own, other) = (self.cluster.id(), register.cluster);
                let message = format!(
                    "`{name}` belongs to cluster {other}, and this is the master of cluster {own}\n\nhint: \
                     name the master of its cluster, or start it with an empty pool and empty disks; if \
                     both were one cluster before its master lost its state, run `tiffin node admit {other}`"
                );
                self.notice(Notice::OtherCluster { node: name.clone(), cluster: other, own });
                Some(refuse(Reason::OtherCluster, &message))
            }
        }
    }
}

impl Master {
    /// The operator says that members of another cluster belong to this one.
    pub(in crate::master) fn admit_cluster(&mut self, conn: ConnId, id: RequestId, cluster: ClusterId) {
        let cx = &mut self.objects.cx;
        let ids = &mut cx.cluster.ids;
        let is_known = cluster.known().is_none() || ids.contains(&cluster);
        if !is_known && ids.len() >= CLUSTER_IDS_MAX {
            let reply = refuse(Reason::Busy, "this cluster has too many ids: no more can be admitted");
            return cx.reply(conn, id, reply);
        }
        if !is_known {
            ids.push(cluster);
            cx.cluster.close();
        }
        cx.reply_when_saved(conn, id, Reply::Done);
    }
}
