//! The flags and what they come to, as text.

use std::path::PathBuf;

use super::*;

fn environment() -> Environment {
    let master = MasterArgs { state_dir: Some(PathBuf::from("state")), ..MasterArgs::default() };
    Environment { master, common: CommonArgs::default() }
}

fn planned(line: &str) -> Result<Plan, String> {
    let args: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
    match plan(&args, &environment()).map_err(|error| error.to_string())? {
        Asked::Serve(plan) => Ok(*plan),
        other => Err(format!("{other:?}")),
    }
}

#[test]
fn every_port_has_a_state_folder_of_its_own() {
    let master = MasterArgs { xdg_state_home: Some(PathBuf::from("/state")), ..MasterArgs::default() };
    let environment = Environment { master, common: CommonArgs::default() };
    for (line, folder) in [("", "/state/tiffin/50051"), ("--rpc_port=7600", "/state/tiffin/7600")] {
        let args: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let Ok(Asked::Serve(plan)) = plan(&args, &environment) else { panic!("{line}") };
        assert_eq!(plan.config.state_dir, Some(PathBuf::from(folder)));
    }
}

#[test]
fn without_flags_it_is_mooncakes_master() {
    let plan = planned("").unwrap();
    let addresses = |config: &MasterConfig| {
        config.listen.iter().chain(&config.http).map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(addresses(&plan.config), "0.0.0.0:50051 0.0.0.0:9003");
    assert_eq!(plan.config.metadata_http, None);
    assert_eq!(plan.config.lease_ttl, Duration::from_secs(10));
    assert_eq!((plan.config.silence, plan.config.away), (CLIENT_TTL, CLIENT_TTL));
    assert_eq!(plan.config.soft_pin_ttl, Duration::from_secs(1800));
    assert!(plan.config.evict_soft_pinned && plan.config.exposed && plan.report);
    let [warning] = plan.warnings.as_slice() else { panic!("{:?}", plan.warnings) };
    assert!(warning.starts_with("anybody who reaches this machine can read and write"), "{warning}");
}

#[test]
fn flags_can_be_written_in_every_way_of_gflags() {
    for (line, expected) in [
        ("--rpc_port=1234", "0.0.0.0:1234"),
        ("-rpc_port=1234", "0.0.0.0:1234"),
        ("--rpc_port 1234", "0.0.0.0:1234"),
        ("-rpc_port 1234", "0.0.0.0:1234"),
        ("--rpc-port 1234", "0.0.0.0:1234"),
        ("--port 1234", "0.0.0.0:1234"),
        ("--port 1 --rpc_port 1234", "0.0.0.0:1234"),
        ("--rpc_port 0 --port 1234", "0.0.0.0:1234"),
        ("--rpc_port 1 --rpc_port 1234", "0.0.0.0:1234"),
        ("--rpc_address ::1 --rpc_port 1234", "[::1]:1234"),
        ("--rpc_port 1234 --", "0.0.0.0:1234"),
    ] {
        assert_eq!(planned(line).unwrap().config.listen[0].to_string(), expected, "{line}");
    }
    for (line, expected_ms) in [
        ("--default_kv_soft_pin_ttl=5000", 5000),
        ("--default_kv_soft_pin_ttl 7", 7),
        ("--default_kv_soft_pin_ttl=0", 0),
    ] {
        let ttl = planned(line).unwrap().config.soft_pin_ttl;
        assert_eq!(ttl, Duration::from_millis(expected_ms), "{line}");
    }
    for (line, expected) in [
        ("--allow_evict_soft_pinned_objects", true),
        ("--noallow_evict_soft_pinned_objects", false),
        ("--allow_evict_soft_pinned_objects=false", false),
        ("--allow_evict_soft_pinned_objects=0", false),
        ("--allow_evict_soft_pinned_objects=Yes", true),
        ("--allow_evict_soft_pinned_objects=t", true),
    ] {
        assert_eq!(planned(line).unwrap().config.evict_soft_pinned, expected, "{line}");
    }
    for (value, expected_ms) in [("5000", 5000), ("5s", 5000), ("2m", 120_000), ("250ms", 250), ("0", 1)] {
        let plan = planned(&format!("--default_kv_lease_ttl={value}")).unwrap();
        assert_eq!(plan.config.lease_ttl, Duration::from_millis(expected_ms), "{value}");
    }
}

#[test]
fn what_is_honoured_arrives() {
    let line = "--metrics_host 127.0.0.1 --metrics_port=1 --rpc_address 127.0.0.1 --client_ttl 30 \
                --enable_http_metadata_server --http_metadata_server_host 127.0.0.1 \
                --http_metadata_server_port 2 --enable_metric_reporting=false --minloglevel 1";
    let plan = planned(line).unwrap();
    assert_eq!(plan.config.http.unwrap().to_string(), "127.0.0.1:1");
    assert_eq!(plan.config.metadata_http.unwrap().to_string(), "127.0.0.1:2");
    assert_eq!((plan.config.silence, plan.config.away), (Duration::from_secs(30), Duration::from_secs(30)));
    assert_eq!((plan.report, plan.log.level.as_str()), (false, "warn"));
    assert_eq!(plan.warnings, Vec::<String>::new());
}

#[test]
fn every_flag_is_known_once_and_one_line_names_those_without_effect() {
    let mut line = String::from("--rpc_address 127.0.0.1 --metrics_host=127.0.0.1");
    let mut expected = Vec::new();
    for window in FLAGS.windows(2) {
        assert!(window[0].0 < window[1].0, "{} is not in order", window[1].0);
    }
    for (name, kind, what) in FLAGS.iter().filter(|(_, _, what)| *what == Use::Ignored) {
        assert_eq!(*what, Use::Ignored);
        let value = match kind {
            flags::Kind::Bool => "true",
            flags::Kind::Number => "7",
            flags::Kind::Decimal => "0.5",
            flags::Kind::Time => "5s",
            flags::Kind::Text => "text",
        };
        line.push_str(&format!(" --{name}={value}"));
        expected.push(format!("--{name}"));
    }
    let warnings = planned(&line).unwrap().warnings;
    assert_eq!(warnings, [format!("these flags have no effect here: {}", expected.join(", "))]);
}

#[test]
fn what_is_not_understood_is_refused_with_a_hint() {
    for (line, expected) in [
        ("--rcp_port=1", "unknown flag `--rcp_port`\n\nhint: did you mean `--rpc_port`?"),
        ("--colour blue", "unknown flag `--colour`\n\nhint: `--help` lists them"),
        ("--norpc_port", "unknown flag `--norpc_port`"),
        ("--rpc_port", "flag `--rpc_port`: its value is missing\n\nhint: write a whole number"),
        ("--rpc_port=http", "flag `--rpc_port`: `http` is not such a value"),
        ("--rpc_port=70000", "flag `--rpc_port`: `70000` is not a port"),
        ("--enable_ha=perhaps", "flag `--enable_ha`: `perhaps` is not such a value"),
        ("--eviction_ratio=NaN", "flag `--eviction_ratio`: `NaN` is not such a value"),
        ("--default_kv_lease_ttl=soon", "flag `--default_kv_lease_ttl`: `soon` is not such a value"),
        ("--client_ttl=99999999", "silence is"),
        ("serve", "`serve` is not a flag"),
        ("-- serve", "`serve` is not a flag"),
        ("--config_path /nowhere/master.yaml", "cannot read the settings file `/nowhere/master.yaml`"),
        ("--help", "Help"),
        ("--version", "Version"),
    ] {
        let error = planned(line).unwrap_err();
        assert!(error.contains(expected), "{line}: {error}");
    }
    assert!(help().contains("--rpc_port") && help().contains("--enable_ha"));
}

#[test]
fn a_settings_file_has_the_same_names_and_yields_to_flags() {
    let folder = tempfile::tempdir().unwrap();
    let yaml = "# as shipped\n---\nrpc_port: 1111\nclient_live_ttl_sec: 60  # seconds\n\
                rpc_address: \"127.0.0.1\"\nroot_fs_dir: ''\neviction_ratio: 0.1\n";
    let json = r#"{"rpc_port": 1111, "client_live_ttl_sec": 60, "rpc_address": "127.0.0.1"}"#;
    for (name, text) in [("master.yaml", yaml), ("master.json", json)] {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        let plan = planned(&format!("--config_path={}", path.display())).unwrap();
        assert_eq!(plan.config.listen[0].to_string(), "127.0.0.1:1111", "{name}");
        assert_eq!(plan.config.silence, Duration::from_secs(60), "{name}");
        let plan = planned(&format!("--rpc_port 2222 --config_path={}", path.display())).unwrap();
        assert_eq!(plan.config.listen[0].to_string(), "127.0.0.1:2222", "{name}");
    }
    for (text, expected) in [
        ("rcp_port: 1", "unknown flag `--rcp_port` in `x`\n\nhint: did you mean `--rpc_port`?"),
        ("rpc_port: many", "flag `--rpc_port` in `x`: `many` is not such a value"),
        ("rpc_port", "line 1 is not of the form `name: value`"),
        ("rpc_port:\n  b: 1", "line 2 is not of the form"),
        ("  rpc_port: 1", "line 1 is not of the form"),
        ("{\"rpc_port\": [1]}", "`rpc_port` is neither text nor number nor truth value"),
        ("{", "EOF while parsing"),
    ] {
        let error = flags::parse_file(text, "x").unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn a_token_from_the_environment_ends_the_warning() {
    let common = CommonArgs { token: Some("secret".to_owned()), ..CommonArgs::default() };
    let Asked::Serve(plan) = plan(&[], &Environment { common, ..environment() }).unwrap() else { panic!() };
    assert_eq!((plan.config.token.as_str(), plan.warnings.len()), ("secret", 0));
}
