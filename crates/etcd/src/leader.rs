//! What masters keep in etcd, and how others find the leader there.
//!
//! | key below `/tiffin/CLUSTER/` | content | changed by |
//! |---|---|---|
//! | `leader` | the record of the leader, with its lease | the winner of a campaign |
//! | `epoch` | the last epoch, as text | the same transaction |
//! | `head` | which chunks are the durable state | the leader |
//! | `state/GENERATION/CHUNK` | parts of the durable state | the leader |

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::{Etcd, EtcdError, KeyValue, Op, Txn};

/// The longest name of a cluster, in bytes.
pub const CLUSTER_BYTES_MAX: usize = 64;
/// The name of a cluster that has none.
pub const CLUSTER_DEFAULT: &str = "tiffin";

/// The names of the keys of one cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    cluster: String,
}

/// The record of the leader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leader {
    /// Its epoch.
    pub epoch: u64,
    /// Drawn at random for each campaign.
    pub id: String,
    /// Where it listens.
    pub addresses: Vec<String>,
}

impl Keys {
    /// The keys of that cluster.
    pub fn new(cluster: &str) -> Result<Self, EtcdError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if cluster.is_empty() || cluster.len() > CLUSTER_BYTES_MAX || !cluster.chars().all(is_plain) {
            let why = "the name of a cluster has 1 to 64 letters, digits, dots, dashes and underscores";
            return Err(EtcdError::Endpoints { text: cluster.to_owned(), why });
        }
        Ok(Self { cluster: cluster.to_owned() })
    }

    /// The cluster's name.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// See the module.
    #[must_use]
    pub fn leader(&self) -> String {
        self.key("leader")
    }

    /// See the module.
    #[must_use]
    pub fn epoch(&self) -> String {
        self.key("epoch")
    }

    /// See the module.
    #[must_use]
    pub fn head(&self) -> String {
        self.key("head")
    }

    /// What all chunks begin with.
    #[must_use]
    pub fn states(&self) -> String {
        self.key("state/")
    }

    /// What all chunks of a generation begin with. Those of earlier generations sort before it.
    #[must_use]
    pub fn chunks(&self, generation: u64) -> String {
        self.key(&format!("state/{generation:020}/"))
    }

    /// See the module.
    #[must_use]
    pub fn chunk(&self, generation: u64, index: usize) -> String {
        format!("{}{index:08}", self.chunks(generation))
    }

    fn key(&self, name: &str) -> String {
        format!("/tiffin/{}/{name}", self.cluster)
    }
}

impl Leader {
    /// As it is stored.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// What is stored; `None` for anything else.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }
}

impl Etcd {
    /// The leader, and its key as it is; `None` if there is none.
    pub async fn leader(
        &self,
        keys: &Keys,
        deadline: Instant,
    ) -> Result<Option<(Leader, KeyValue)>, EtcdError> {
        let txn = Txn { success: vec![Op::Get(keys.leader())], ..Txn::default() };
        let found = self.txn(&txn, deadline).await?.gets.into_iter().flatten().next();
        Ok(found.and_then(|it| Some((Leader::decode(&it.value)?, it))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_clusters_are_plain() {
        let keys = Keys::new("prod-1.a_b").unwrap();
        assert_eq!(keys.leader(), "/tiffin/prod-1.a_b/leader");
        assert!(keys.chunk(3, 4).starts_with(&keys.chunks(3)) && keys.chunks(3).starts_with(&keys.states()));
        assert!(keys.states() < keys.chunk(9, 1) && keys.chunk(9, 1) < keys.chunks(10));
        assert!(Keys::new(&"a".repeat(CLUSTER_BYTES_MAX)).is_ok());
        for name in ["", "a/b", "a b", "é", &"a".repeat(CLUSTER_BYTES_MAX + 1)] {
            assert!(Keys::new(name).is_err(), "{name}");
        }
    }

    #[test]
    fn records_survive_and_nonsense_is_ignored() {
        let leader = Leader { epoch: 7, id: "x".into(), addresses: vec!["h:1".into()] };
        assert_eq!(Leader::decode(&leader.encode()), Some(leader));
        assert_eq!(Leader::decode(b"nonsense"), None);
    }
}
