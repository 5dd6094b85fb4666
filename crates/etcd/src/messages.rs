//! The messages of etcd's JSON gateway: keys and values in base64, 64-bit numbers as text, and fields with
//! their default value left out.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};

/// The number of a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseId(pub i64);

/// What is left of a lease, in whole seconds, rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeToLive {
    /// The rest.
    pub left_s: i64,
    /// What was granted.
    pub granted_s: i64,
}

/// A key as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyValue {
    /// Its name.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// The revision of the last change.
    pub revision: i64,
    /// The lease with which it ends, if there is one.
    pub lease: LeaseId,
}

/// A read.
pub type Get = Vec<KeyValue>;

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads a key.
    Get(String),
    /// Writes a key, which ends with that lease unless it is 0.
    Put(String, Vec<u8>, LeaseId),
    /// Deletes all keys from the first one up to, and without, the second one.
    DeleteRange(String, String),
}

/// Operations that are applied together, if all comparisons hold; else the others are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// Keys, and the revisions of their last change; 0 for a key that does not exist.
    pub compare: Vec<(String, i64)>,
    /// If they are equal.
    pub success: Vec<Op>,
    /// If not.
    pub failure: Vec<Op>,
}

/// What became of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The comparisons held.
    pub succeeded: bool,
    /// The revision of the store after it. A put of the transaction has this revision.
    pub revision: i64,
    /// What the reads of the applied branch found, in their order.
    pub gets: Vec<Get>,
}

#[derive(Serialize)]
pub(crate) struct TxnBody {
    compare: Vec<Compare>,
    success: Vec<RequestOp>,
    failure: Vec<RequestOp>,
}

#[derive(Serialize)]
struct Compare {
    key: String,
    target: &'static str,
    result: &'static str,
    mod_revision: String,
}

#[derive(Serialize)]
enum RequestOp {
    #[serde(rename = "request_range")]
    Range { key: String },
    #[serde(rename = "request_put")]
    Put { key: String, value: String, lease: String },
    #[serde(rename = "request_delete_range")]
    DeleteRange { key: String, range_end: String },
}

impl TxnBody {
    pub(crate) fn of(txn: &Txn) -> Self {
        let compare = txn.compare.iter().map(|(key, revision)| Compare {
            key: encode(key),
            target: "MOD",
            result: "EQUAL",
            mod_revision: revision.to_string(),
        });
        let ops = |ops: &[Op]| ops.iter().map(RequestOp::of).collect::<Vec<_>>();
        let (mut success, failure) = (ops(&txn.success), ops(&txn.failure));
        // etcd takes a transaction without operations for a serializable read, which a member that is cut off
        // answers from what it knew. A read in it makes it linearizable.
        if let ([], [], Some((key, _))) = (success.as_slice(), failure.as_slice(), txn.compare.first()) {
            success.push(RequestOp::Range { key: encode(key) });
        }
        Self { compare: compare.collect(), success, failure }
    }
}

impl RequestOp {
    fn of(op: &Op) -> Self {
        match op {
            Op::Get(key) => Self::Range { key: encode(key) },
            Op::Put(key, value, lease) => {
                Self::Put { key: encode(key), value: encode(value), lease: lease.0.to_string() }
            }
            Op::DeleteRange(from, to) => Self::DeleteRange { key: encode(from), range_end: encode(to) },
        }
    }
}

#[derive(Deserialize)]
pub(crate) struct TxnReply {
    header: Header,
    #[serde(default)]
    succeeded: bool,
    #[serde(default)]
    responses: Vec<Response>,
}

#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    revision: String,
}

#[derive(Deserialize)]
struct Response {
    response_range: Option<Range>,
}

#[derive(Deserialize)]
struct Range {
    #[serde(default)]
    kvs: Vec<Kv>,
}

#[derive(Deserialize)]
struct Kv {
    key: String,
    #[serde(default)]
    value: String,
    #[serde(default)]
    mod_revision: String,
    #[serde(default)]
    lease: String,
}

impl TxnReply {
    /// `None` if it is not a reply of etcd.
    pub(crate) fn outcome(self) -> Option<Outcome> {
        let revision = self.header.revision.parse().ok()?;
        let gets = self.responses.into_iter().filter_map(|it| it.response_range);
        let gets = gets.map(|it| it.kvs.into_iter().map(Kv::decode).collect::<Option<Get>>());
        Some(Outcome { succeeded: self.succeeded, revision, gets: gets.collect::<Option<Vec<_>>>()? })
    }
}

impl Kv {
    fn decode(self) -> Option<KeyValue> {
        let lease = if self.lease.is_empty() { 0 } else { self.lease.parse().ok()? };
        Some(KeyValue {
            key: BASE64_STANDARD.decode(self.key).ok()?,
            value: BASE64_STANDARD.decode(self.value).ok()?,
            revision: self.mod_revision.parse().ok()?,
            lease: LeaseId(lease),
        })
    }
}

#[derive(Serialize)]
pub(crate) struct Grant {
    #[serde(rename = "TTL")]
    pub(crate) ttl: String,
}

#[derive(Serialize)]
pub(crate) struct LeaseBody {
    #[serde(rename = "ID")]
    pub(crate) id: String,
}

#[derive(Deserialize)]
pub(crate) struct LeaseReply {
    #[serde(rename = "ID", default)]
    id: String,
    #[serde(rename = "TTL", default)]
    ttl: String,
}

impl LeaseReply {
    pub(crate) fn id(&self) -> Option<LeaseId> {
        self.id.parse().ok().map(LeaseId)
    }
}

#[derive(Deserialize)]
pub(crate) struct KeepAliveReply {
    result: LeaseReply,
}

impl KeepAliveReply {
    pub(crate) fn is_alive(&self) -> bool {
        self.result.ttl.parse().is_ok_and(|ttl: i64| ttl > 0)
    }
}

#[derive(Deserialize)]
pub(crate) struct TimeToLiveReply {
    #[serde(rename = "TTL", default)]
    ttl: String,
    #[serde(rename = "grantedTTL", default)]
    granted: String,
}

impl TimeToLiveReply {
    /// A lease whose last second runs has no rest in the message, one that has ended has -1.
    pub(crate) fn time_to_live(&self) -> Option<TimeToLive> {
        let granted_s = self.granted.parse().ok()?;
        let left_s = if self.ttl.is_empty() { 0 } else { self.ttl.parse().ok()? };
        (left_s >= 0).then_some(TimeToLive { left_s, granted_s })
    }
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    BASE64_STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_are_encoded_as_etcd_reads_them() {
        let txn = Txn {
            compare: vec![("k".into(), 7)],
            success: vec![
                Op::Put("k".into(), b"v".to_vec(), LeaseId(3)),
                Op::DeleteRange("s/".into(), "s0".into()),
            ],
            failure: vec![Op::Get("k".into())],
        };
        let text = serde_json::to_string(&TxnBody::of(&txn)).unwrap();
        assert_eq!(
            text,
            "{\"compare\":[{\"key\":\"aw==\",\"target\":\"MOD\",\"result\":\"EQUAL\",\
             \"mod_revision\":\"7\"}],\
             \"success\":[{\"request_put\":{\"key\":\"aw==\",\"value\":\"dg==\",\"lease\":\"3\"}},\
             {\"request_delete_range\":{\"key\":\"cy8=\",\"range_end\":\"czA=\"}}],\
             \"failure\":[{\"request_range\":{\"key\":\"aw==\"}}]}"
        );
    }

    #[test]
    fn comparison_alone_is_a_linearizable_read() {
        let txn = Txn { compare: vec![("k".into(), 7)], ..Txn::default() };
        let body = TxnBody::of(&txn);
        assert!(matches!(body.success.as_slice(), [RequestOp::Range { key }] if key == "aw=="));
        assert!(body.failure.is_empty());
    }

    #[test]
    fn replies_are_decoded_and_nonsense_is_refused() {
        let kv = r#"{"key":"aw==","mod_revision":"4","lease":"5"}"#;
        let text = format!(
            r#"{{"header":{{"revision":"9"}},"succeeded":true,
                "responses":[{{"response_put":{{}}}},{{"response_range":{{"kvs":[{kv}]}}}}]}}"#
        );
        let text = text.as_str();
        let outcome = serde_json::from_str::<TxnReply>(text).unwrap().outcome().unwrap();
        let found = KeyValue { key: b"k".to_vec(), value: Vec::new(), revision: 4, lease: LeaseId(5) };
        assert_eq!(outcome, Outcome { succeeded: true, revision: 9, gets: vec![vec![found]] });
        for text in [
            "{\"header\":{}}",
            "{\"header\":{\"revision\":\"x\"}}",
            r#"{"header":{"revision":"1"},"responses":[{"response_range":{"kvs":[{"key":"?"}]}}]}"#,
        ] {
            assert_eq!(serde_json::from_str::<TxnReply>(text).unwrap().outcome(), None, "{text}");
        }
        let left = |text| serde_json::from_str::<TimeToLiveReply>(text).unwrap().time_to_live();
        let granted_s = 5;
        assert_eq!(left("{\"grantedTTL\":\"5\",\"TTL\":\"4\"}"), Some(TimeToLive { left_s: 4, granted_s }));
        assert_eq!(left("{\"grantedTTL\":\"5\"}"), Some(TimeToLive { left_s: 0, granted_s }));
        assert_eq!((left("{\"TTL\":\"-1\"}"), left("{\"grantedTTL\":\"5\",\"TTL\":\"-1\"}")), (None, None));
        let alive = |text| serde_json::from_str::<KeepAliveReply>(text).unwrap().is_alive();
        assert!(alive("{\"result\":{\"ID\":\"1\",\"TTL\":\"5\"}}") && !alive("{\"result\":{\"ID\":\"1\"}}"));
    }
}
