//! The flags of `mooncake_master`, as gflags reads them, and its settings file.
//!
//! **Invariant:** every flag that the official 0.3.13 release accepts is in [`FLAGS`], so that a command line
//! that works there is understood here; whatever is not in it is refused.

use std::collections::BTreeMap;

use crate::config::nearest::nearest;

/// What a flag's value looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `--x`, `--nox`, `--x=true`.
    Bool,
    /// A whole number.
    Number,
    /// A number with a fraction.
    Decimal,
    /// Anything.
    Text,
    /// `5s`, `30m`, or a number of milliseconds.
    Time,
}

/// What becomes of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It does what it does there.
    Honoured,
    /// It is accepted, and a warning names it.
    Ignored,
}

use Kind::{Bool, Decimal, Number, Text, Time};
use Use::{Honoured, Ignored};

/// Every flag, in the order of the alphabet.
pub const FLAGS: &[(&str, Kind, Use)] = &[
    ("allocation_strategy", Text, Ignored),
    ("allow_evict_soft_pinned_objects", Bool, Honoured),
    ("alsologtoemail", Text, Ignored),
    ("alsologtostderr", Bool, Ignored),
    ("batch_oplog_retry_timeout_sec", Number, Ignored),
    ("client_ttl", Number, Honoured),
    ("cluster_id", Text, Ignored),
    ("colorlogtostderr", Bool, Ignored),
    ("config_path", Text, Honoured),
    ("cxl_path", Text, Ignored),
    ("cxl_size", Number, Ignored),
    ("default_kv_lease_ttl", Time, Honoured),
    ("default_kv_soft_pin_ttl", Time, Honoured),
    ("drop_log_memory", Bool, Ignored),
    ("dynamic_replication_admission_qps_threshold", Decimal, Ignored),
    ("dynamic_replication_heat_window_seconds", Number, Ignored),
    ("dynamic_replication_max_memory_replicas", Number, Ignored),
    ("dynamic_replication_mode", Text, Ignored),
    ("enable_cxl", Bool, Ignored),
    ("enable_disk_eviction", Bool, Ignored),
    ("enable_ha", Bool, Ignored),
    ("enable_http_metadata_server", Bool, Honoured),
    ("enable_kv_events", Bool, Ignored),
    ("enable_metadata_cleanup_on_timeout", Bool, Ignored),
    ("enable_metric_reporting", Bool, Honoured),
    ("enable_multi_tenants", Bool, Ignored),
    ("enable_offload", Bool, Honoured),
    ("enable_oplog", Bool, Ignored),
    ("enable_snapshot", Bool, Ignored),
    ("enable_snapshot_restore", Bool, Ignored),
    ("etcd_endpoints", Text, Ignored),
    ("eviction_high_watermark_ratio", Decimal, Ignored),
    ("eviction_ratio", Decimal, Ignored),
    ("flagfile", Text, Ignored),
    ("fromenv", Text, Ignored),
    ("global_file_segment_size", Number, Ignored),
    ("ha_backend_connstring", Text, Ignored),
    ("ha_backend_type", Text, Ignored),
    ("help", Bool, Honoured),
    ("helpfull", Bool, Honoured),
    ("helpmatch", Text, Ignored),
    ("helpon", Text, Ignored),
    ("helppackage", Bool, Ignored),
    ("helpshort", Bool, Honoured),
    ("helpxml", Bool, Ignored),
    ("http_metadata_server_host", Text, Honoured),
    ("http_metadata_server_port", Number, Honoured),
    ("kv_events_additional_salt", Text, Ignored),
    ("kv_events_backend_id", Text, Ignored),
    ("kv_events_bind_endpoint", Text, Ignored),
    ("kv_events_block_size", Number, Ignored),
    ("kv_events_dp_rank", Number, Ignored),
    ("kv_events_emit_legacy_compat", Bool, Ignored),
    ("kv_events_emit_object_key", Bool, Ignored),
    ("kv_events_lora_name", Text, Ignored),
    ("kv_events_model_name", Text, Ignored),
    ("kv_events_queue_capacity", Number, Ignored),
    ("kv_events_tenant_id", Text, Ignored),
    ("log_backtrace_at", Text, Ignored),
    ("log_dir", Text, Ignored),
    ("log_link", Text, Ignored),
    ("log_prefix", Bool, Ignored),
    ("logbuflevel", Number, Ignored),
    ("logbufsecs", Number, Ignored),
    ("logemaillevel", Number, Ignored),
    ("logfile_mode", Number, Ignored),
    ("logmailer", Text, Ignored),
    ("logtostderr", Bool, Ignored),
    ("max_kv_soft_pin_ttl", Time, Ignored),
    ("max_log_size", Number, Ignored),
    ("max_retry_attempts", Number, Ignored),
    ("max_threads", Number, Ignored),
    ("max_total_finished_tasks", Number, Ignored),
    ("max_total_pending_tasks", Number, Ignored),
    ("max_total_processing_tasks", Number, Ignored),
    ("memory_allocator", Text, Ignored),
    ("metrics_host", Text, Honoured),
    ("metrics_port", Number, Honoured),
    ("minloglevel", Number, Honoured),
    ("mmap_arena_pool_size", Number, Ignored),
    ("nof_eviction_high_watermark_ratio", Decimal, Ignored),
    ("nof_eviction_ratio", Decimal, Ignored),
    ("nof_heartbeat_failures_threshold", Number, Ignored),
    ("nof_heartbeat_interval_sec", Number, Ignored),
    ("nof_heartbeat_probe_timeout_ms", Number, Ignored),
    ("offload_cap_ratio", Decimal, Ignored),
    ("offload_force_evict", Bool, Ignored),
    ("offload_on_evict", Bool, Honoured),
    ("offloading_queue_limit", Number, Ignored),
    ("oplog_batch_max_entries", Number, Ignored),
    ("oplog_poll_interval_ms", Number, Ignored),
    ("pending_task_timeout_sec", Number, Ignored),
    ("pod_name", Text, Ignored),
    ("pod_namespace", Text, Ignored),
    ("port", Number, Honoured),
    ("processing_task_timeout_sec", Number, Ignored),
    ("promotion_admission_threshold", Number, Honoured),
    ("promotion_max_per_heartbeat", Number, Ignored),
    ("promotion_on_hit", Bool, Honoured),
    ("promotion_queue_limit", Number, Ignored),
    ("put_start_discard_timeout_sec", Number, Ignored),
    ("put_start_release_timeout_sec", Number, Ignored),
    ("quota_bytes", Number, Ignored),
    ("root_fs_dir", Text, Ignored),
    ("rpc_address", Text, Honoured),
    ("rpc_conn_timeout_seconds", Number, Ignored),
    ("rpc_enable_tcp_no_delay", Bool, Ignored),
    ("rpc_interface", Text, Ignored),
    ("rpc_port", Number, Honoured),
    ("rpc_thread_num", Number, Ignored),
    ("snapshot_backup_dir", Text, Ignored),
    ("snapshot_catalog_backend_connstring", Text, Ignored),
    ("snapshot_catalog_backend_type", Text, Ignored),
    ("snapshot_catalog_store_connstring", Text, Ignored),
    ("snapshot_catalog_store_type", Text, Ignored),
    ("snapshot_child_timeout_seconds", Number, Ignored),
    ("snapshot_interval_seconds", Number, Ignored),
    ("snapshot_object_store_type", Text, Ignored),
    ("snapshot_payload_backend_type", Text, Ignored),
    ("snapshot_payload_store_type", Text, Ignored),
    ("snapshot_retention_count", Number, Ignored),
    ("stderrthreshold", Number, Ignored),
    ("stop_logging_if_full_disk", Bool, Ignored),
    ("symbolize_stacktrace", Bool, Ignored),
    ("tab_completion_columns", Number, Ignored),
    ("tab_completion_word", Text, Ignored),
    ("tenant_quota_connector_type", Text, Ignored),
    ("tenant_quota_connector_uri", Text, Ignored),
    ("tryfromenv", Text, Ignored),
    ("undefok", Text, Ignored),
    ("use_mmap_arena_allocator", Bool, Ignored),
    ("v", Number, Ignored),
    ("version", Bool, Honoured),
    ("vmodule", Text, Ignored),
];

/// A name that the settings file has for a flag of another name.
const FILE_ALIASES: [(&str, &str); 1] = [("client_live_ttl_sec", "client_ttl")];
/// The longest line that is shown in a message.
const SHOWN_MAX: usize = 80;

/// What somebody set, by the name of the flag.
pub type Values = BTreeMap<&'static str, String>;

/// A command line or settings file that is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// There is no such flag.
    #[error("unknown flag `--{name}`{place}\n\nhint: {hint}")]
    Unknown {
        /// As it was written.
        name: String,
        /// Where, if not on the command line.
        place: String,
        /// The nearest one that there is.
        hint: String,
    },
    /// It has no value, or not one of its kind.
    #[error("flag `--{name}`{place}: {what}\n\nhint: {hint}")]
    Value {
        /// Which flag.
        name: String,
        /// Where, if not on the command line.
        place: String,
        /// What is wrong.
        what: String,
        /// What would be right.
        hint: &'static str,
    },
    /// Something that is no flag.
    #[error("`{0}` is not a flag\n\nhint: flags begin with one or two dashes; `--help` lists them")]
    Stray(String),
    /// The settings file cannot be read or understood.
    #[error(
        "cannot read the settings file `{path}`: {what}\n\nhint: it is flat YAML (`rpc_port: 50051`) or JSON"
    )]
    File {
        /// Which.
        path: String,
        /// What is wrong.
        what: String,
    },
}

/// Reads a command line, without the program's own name. The last of several values counts.
pub fn parse(args: &[String]) -> Result<Values, FlagError> {
    let mut values = Values::new();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let Some(flag) = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')) else {
            return Err(FlagError::Stray(shown(arg)));
        };
        if flag.is_empty() {
            match rest.next() {
                None => break,
                Some(stray) => return Err(FlagError::Stray(shown(stray))),
            }
        }
        let (name, given) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (flag, None),
        };
        let (name, kind, value) = match (find(name), given) {
            (Some((name, kind)), Some(value)) => (name, kind, value),
            (Some((name, Bool)), None) => (name, Bool, "true".to_owned()),
            (Some((name, kind)), None) => match rest.next() {
                Some(value) => (name, kind, value.clone()),
                None => return Err(value_error(name, "", "its value is missing", kind)),
            },
            (None, None) => match name.strip_prefix("no").and_then(find) {
                Some((name, Bool)) => (name, Bool, "false".to_owned()),
                _ => return Err(unknown(name, "")),
            },
            (None, Some(_)) => return Err(unknown(name, "")),
        };
        values.insert(name, checked(name, kind, &value, "")?);
    }
    Ok(values)
}

/// Reads a settings file: JSON if it begins like it, else flat YAML.
pub fn parse_file(text: &str, path: &str) -> Result<Values, FlagError> {
    let fail = |what: String| FlagError::File { path: path.to_owned(), what };
    let pairs = if text.trim_start().starts_with('{') { json_pairs(text) } else { yaml_pairs(text) };
    let place = format!(" in `{path}`");
    let mut values = Values::new();
    for (name, value) in pairs.map_err(fail)? {
        let alias = FILE_ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, flag)| *flag);
        let Some((name, kind)) = find(alias.unwrap_or(&name)) else { return Err(unknown(&name, &place)) };
        values.insert(name, checked(name, kind, &value, &place)?);
    }
    Ok(values)
}

/// Whether a checked value of kind [`Kind::Bool`] is true.
#[must_use]
pub fn is_true(value: &str) -> bool {
    value == "true"
}

/// A checked value of kind [`Kind::Time`] in milliseconds.
#[must_use]
pub fn milliseconds(value: &str) -> Option<u64> {
    if let Ok(number) = value.parse() {
        return Some(number);
    }
    u64::try_from(humantime::parse_duration(value).ok()?.as_millis()).ok()
}

fn find(name: &str) -> Option<(&'static str, Kind)> {
    let name = name.replace('-', "_");
    FLAGS.iter().find(|(known, ..)| *known == name).map(|(name, kind, _)| (*name, *kind))
}

/// The value as the rest of the program expects it.
fn checked(name: &str, kind: Kind, value: &str, place: &str) -> Result<String, FlagError> {
    let is_right = match kind {
        Bool => match value.to_ascii_lowercase().as_str() {
            "true" | "t" | "yes" | "y" | "1" => return Ok("true".to_owned()),
            "false" | "f" | "no" | "n" | "0" => return Ok("false".to_owned()),
            _ => false,
        },
        Number => value.parse::<i64>().is_ok() || value.parse::<u64>().is_ok(),
        Decimal => value.parse::<f64>().is_ok_and(f64::is_finite),
        Time => milliseconds(value).is_some(),
        Text => true,
    };
    if is_right {
        return Ok(value.to_owned());
    }
    Err(value_error(name, place, &format!("`{}` is not such a value", shown(value)), kind))
}

fn value_error(name: &str, place: &str, what: &str, kind: Kind) -> FlagError {
    let hint = match kind {
        Bool => "write `true` or `false`",
        Number => "write a whole number",
        Decimal => "write a number such as `0.9`",
        Time => "write a time such as `5s` or `30m`, or a number of milliseconds",
        Text => "write it behind the flag or an equals sign",
    };
    FlagError::Value { name: name.to_owned(), place: place.to_owned(), what: what.to_owned(), hint }
}

fn unknown(name: &str, place: &str) -> FlagError {
    let hint = match nearest(name, FLAGS.iter().map(|(known, ..)| *known)) {
        Some(near) => format!("did you mean `--{near}`?"),
        None => "`--help` lists them".to_owned(),
    };
    FlagError::Unknown { name: shown(name), place: place.to_owned(), hint }
}

fn json_pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(text).map_err(|error| error.to_string())?;
    let pairs = object.into_iter().map(|(name, value)| match value {
        serde_json::Value::String(text) => Ok((name, text)),
        serde_json::Value::Bool(_) | serde_json::Value::Number(_) => Ok((name, value.to_string())),
        _ => Err(format!("`{name}` is neither text nor number nor truth value")),
    });
    pairs.collect()
}

/// Lines of `name: value`; what YAML can do beyond that is not needed for flags.
fn yaml_pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut pairs = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let is_comment = line.trim_start().starts_with('#');
        if line.trim().is_empty() || is_comment || line.trim_end() == "---" {
            continue;
        }
        let odd = || format!("line {number} is not of the form `name: value`: {}", shown(line));
        let (name, value) = line.split_once(':').ok_or_else(odd)?;
        if name.starts_with([' ', '\t', '-']) {
            return Err(odd());
        }
        let value = value.trim();
        let quoted = ['"', '\''].iter().find_map(|&quote| {
            let (inner, behind) = value.strip_prefix(quote)?.split_once(quote)?;
            let behind = behind.trim();
            (behind.is_empty() || behind.starts_with('#')).then_some(inner)
        });
        let plain = || value.split(" #").next().unwrap_or_default().trim();
        let value = match quoted {
            Some(inner) => inner,
            None if value.starts_with('#') => "",
            None => plain(),
        };
        pairs.push((name.trim().to_owned(), value.to_owned()));
    }
    Ok(pairs)
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_MAX).collect::<String>().escape_debug().to_string()
}
