//! `ReplicateConfig`, the options of a put, in the older and the newer spelling; and `ExistOptions`, the
//! options of a probe.

use std::time::Duration;

use pyo3::prelude::*;
use tiffin_types::REPLICAS_MAX;
use tiffin_types::message::{OnExists, PutOptions, SOFT_PIN_DEFAULT};

use super::arguments::{Flag, Items, Number, Text, texts};
use super::codes;
use super::enums::{ObjectDataType, SoftPinAction};
use super::log::tell;

/// The maximum duration of a soft pin; Mooncake's default.
const SOFT_PIN_MAX: Duration = Duration::from_secs(24 * 3600);

/// How an object is stored: copies, pins and preferred segments. Every field can be read and set.
#[pyclass(module = "mooncake.store", from_py_object)]
#[derive(Clone, Debug)]
pub(crate) struct ReplicateConfig {
    replica_num: u64,
    nof_replica_num: u64,
    dfs_replica_num: u64,
    soft_pin_action: SoftPinAction,
    soft_pin_ttl_ms: Option<u64>,
    with_hard_pin: bool,
    preferred_segment: String,
    preferred_segments: Vec<String>,
    preferred_nof_segments: Vec<String>,
    prefer_alloc_in_same_node: bool,
    data_type: ObjectDataType,
    group_ids: Option<Vec<String>>,
}

impl Default for ReplicateConfig {
    fn default() -> Self {
        Self {
            replica_num: 1,
            nof_replica_num: 0,
            dfs_replica_num: 0,
            soft_pin_action: SoftPinAction::Preserve,
            soft_pin_ttl_ms: None,
            with_hard_pin: false,
            preferred_segment: String::new(),
            preferred_segments: Vec::new(),
            preferred_nof_segments: Vec::new(),
            prefer_alloc_in_same_node: false,
            data_type: ObjectDataType::Unknown,
            group_ids: None,
        }
    }
}

/// The call for which a config is used: some calls accept options that others reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutForm {
    /// One or many keys, each from one buffer.
    Plain,
    /// Many keys, each from many buffers: the only form that may request a single node.
    MultiBuffer,
}

impl ReplicateConfig {
    /// The options of a put of this many keys, or Mooncake's code for an invalid config.
    pub(crate) fn options(&self, keys: usize, form: PutForm) -> Result<PutOptions, i64> {
        if self.dfs_replica_num > 0 {
            return Err(refuse(
                "dfs_replica_num",
                "distributed file systems",
                codes::DFS_SERVICE_UNAVAILABLE,
            ));
        }
        if self.nof_replica_num > 0 {
            return Err(refuse("nof_replica_num", "NVMe-oF", codes::INVALID_PARAMS));
        }
        let no_copies = self.replica_num == 0;
        let groups_differ = self.group_ids.as_ref().is_some_and(|groups| groups.len() != keys);
        let same_node_refused =
            self.prefer_alloc_in_same_node && (form == PutForm::Plain || self.replica_num != 1);
        if no_copies || groups_differ || same_node_refused {
            return Err(codes::INVALID_PARAMS);
        }
        let preferred = if self.preferred_segment.is_empty() {
            self.preferred_segments.clone()
        } else {
            vec![self.preferred_segment.clone()]
        };
        Ok(PutOptions {
            // More copies than nodes are not an error, so neither is a number above the maximum.
            replicas: u32::try_from(self.replica_num).unwrap_or(REPLICAS_MAX).min(REPLICAS_MAX),
            on_exists: OnExists::Keep,
            hard_pin: self.with_hard_pin,
            soft_pin_ms: self.soft_pin_ms()?,
            preferred,
            ..PutOptions::default()
        })
    }

    /// Whether an object that replaces another keeps the soft pin of that one.
    pub(crate) fn keeps_soft_pin(&self) -> bool {
        self.soft_pin_action == SoftPinAction::Preserve
    }

    fn soft_pin_ms(&self) -> Result<Option<u64>, i64> {
        let max_ms = SOFT_PIN_MAX.as_millis() as u64;
        match (self.soft_pin_action, self.soft_pin_ttl_ms) {
            (SoftPinAction::Enable, None) => Ok(Some(SOFT_PIN_DEFAULT)),
            // A pin without duration is none.
            (SoftPinAction::Enable, Some(0)) => Ok(None),
            (SoftPinAction::Enable, Some(ttl_ms)) if ttl_ms <= max_ms => Ok(Some(ttl_ms)),
            (SoftPinAction::Preserve | SoftPinAction::Disable, None) => Ok(None),
            _ => Err(codes::INVALID_PARAMS),
        }
    }
}

/// Prints one line with the unsupported feature of a config, and returns the code for it.
fn refuse(field: &str, feature: &str, code: i64) -> i64 {
    tell(&format!("put refused ({code}): `{field}`: not supported: {feature}"));
    code
}

/// Options of a probe.
#[pyclass(module = "mooncake.store", from_py_object)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ExistOptions {
    pub(crate) prefetch_to_memory: bool,
}

#[pymethods]
impl ExistOptions {
    #[new]
    #[pyo3(
        signature = (prefetch_to_memory=Flag(false)),
        text_signature = "(prefetch_to_memory=False)"
    )]
    fn new(prefetch_to_memory: Flag) -> Self {
        Self { prefetch_to_memory: prefetch_to_memory.0 }
    }

    /// Whether objects that are only on a disk are prefetched, up to the first key that does not exist.
    #[getter]
    fn prefetch_to_memory(&self) -> bool {
        self.prefetch_to_memory
    }
    #[setter]
    fn set_prefetch_to_memory(&mut self, value: Flag) {
        self.prefetch_to_memory = value.0;
    }

    fn __repr__(&self) -> String {
        let yes = if self.prefetch_to_memory { "True" } else { "False" };
        format!("ExistOptions(prefetch_to_memory={yes})")
    }
}

#[pymethods]
impl ReplicateConfig {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// The number of copies on different segments; fewer if there are fewer segments.
    #[getter]
    fn replica_num(&self) -> u64 {
        self.replica_num
    }
    #[setter]
    fn set_replica_num(&mut self, value: Number) {
        self.replica_num = value.0;
    }

    /// Copies on NVMe-oF, which is not supported: a put that requests one returns -600.
    #[getter]
    fn nof_replica_num(&self) -> u64 {
        self.nof_replica_num
    }
    #[setter]
    fn set_nof_replica_num(&mut self, value: Number) {
        self.nof_replica_num = value.0;
    }

    /// Copies on a distributed file system, which is not supported: a put that requests one returns -1601.
    #[getter]
    fn dfs_replica_num(&self) -> u64 {
        self.dfs_replica_num
    }
    #[setter]
    fn set_dfs_replica_num(&mut self, value: Number) {
        self.dfs_replica_num = value.0;
    }

    /// Whether the object is evicted after all others.
    #[getter]
    fn soft_pin_action(&self) -> SoftPinAction {
        self.soft_pin_action
    }
    #[setter]
    fn set_soft_pin_action(&mut self, value: SoftPinAction) {
        self.soft_pin_action = value;
    }

    /// The duration of a soft pin in milliseconds; `None` is half an hour. Only with
    /// `SoftPinAction.ENABLE`.
    #[getter]
    fn soft_pin_ttl_ms(&self) -> Option<u64> {
        self.soft_pin_ttl_ms
    }
    #[setter]
    fn set_soft_pin_ttl_ms(&mut self, value: Option<Number>) {
        self.soft_pin_ttl_ms = value.map(|it| it.0);
    }

    /// The older spelling of `soft_pin_action`: `True` is `ENABLE`, `False` is `PRESERVE`.
    #[getter]
    fn with_soft_pin(&self) -> bool {
        self.soft_pin_action == SoftPinAction::Enable
    }
    #[setter]
    fn set_with_soft_pin(&mut self, value: Flag) {
        self.soft_pin_action = if value.0 { SoftPinAction::Enable } else { SoftPinAction::Preserve };
    }

    /// Whether the object is never evicted.
    #[getter]
    fn with_hard_pin(&self) -> bool {
        self.with_hard_pin
    }
    #[setter]
    fn set_with_hard_pin(&mut self, value: Flag) {
        self.with_hard_pin = value.0;
    }

    /// The segment to try first, by the name that `get_hostname()` returns; it precedes
    /// `preferred_segments`.
    #[getter]
    fn preferred_segment(&self) -> &str {
        &self.preferred_segment
    }
    #[setter]
    fn set_preferred_segment(&mut self, value: Text) {
        self.preferred_segment = value.0;
    }

    /// The segments to try first, in order.
    #[getter]
    fn preferred_segments(&self) -> Vec<String> {
        self.preferred_segments.clone()
    }
    #[setter]
    fn set_preferred_segments(&mut self, value: Items<Text>) {
        self.preferred_segments = texts(value);
    }

    /// Has no effect: NVMe-oF is not supported.
    #[getter]
    fn preferred_nof_segments(&self) -> Vec<String> {
        self.preferred_nof_segments.clone()
    }
    #[setter]
    fn set_preferred_nof_segments(&mut self, value: Items<Text>) {
        self.preferred_nof_segments = texts(value);
    }

    /// Whether the objects of one call are placed on one node; only for `batch_put_from_multi_buffers`.
    #[getter]
    fn prefer_alloc_in_same_node(&self) -> bool {
        self.prefer_alloc_in_same_node
    }
    #[setter]
    fn set_prefer_alloc_in_same_node(&mut self, value: Flag) {
        self.prefer_alloc_in_same_node = value.0;
    }

    /// The type of the object. It has no effect.
    #[getter]
    fn data_type(&self) -> ObjectDataType {
        self.data_type
    }
    #[setter]
    fn set_data_type(&mut self, value: ObjectDataType) {
        self.data_type = value;
    }

    /// One group per key, or `None`.
    #[getter]
    fn group_ids(&self) -> Option<Vec<String>> {
        self.group_ids.clone()
    }
    #[setter]
    fn set_group_ids(&mut self, value: Option<Items<Text>>) {
        self.group_ids = value.map(texts);
    }

    fn __str__(&self) -> String {
        let ttl = self.soft_pin_ttl_ms.map_or_else(|| "default".to_owned(), |ttl_ms| ttl_ms.to_string());
        let groups = self
            .group_ids
            .as_ref()
            .map_or_else(String::new, |it| format!(", group_ids: [{}]", it.join(", ")));
        let segment = if self.preferred_segment.is_empty() {
            String::new()
        } else {
            format!(", preferred_segment: {}", self.preferred_segment)
        };
        format!(
            "ReplicateConfig: {{ replica_num: {}, nof_replica_num: {}, dfs_replica_num: {}, \
             soft_pin_action: {}, soft_pin_ttl_ms: {ttl}, with_hard_pin: {}, \
             preferred_segments: [{}]{segment}, preferred_nof_segments: [{}], \
             prefer_alloc_in_same_node: {}, data_type: {}{groups} }}",
            self.replica_num,
            self.nof_replica_num,
            self.dfs_replica_num,
            self.soft_pin_action.name(),
            u8::from(self.with_hard_pin),
            self.preferred_segments.join(", "),
            self.preferred_nof_segments.join(", "),
            u8::from(self.prefer_alloc_in_same_node),
            self.data_type.name(),
        )
    }
}
