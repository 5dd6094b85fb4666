//! Tests of the flags and the resulting settings.

use super::gflags::{Kind, Use};
use super::plan as plan_of;
use super::*;

fn environment() -> Environment {
    let master = MasterArgs { state_dir: Some(PathBuf::from("state")), ..MasterArgs::default() };
    Environment { master, ..Environment::default() }
}

fn planned(line: &str) -> Result<Plan, String> {
    let args: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
    match plan(&args, &environment()).map_err(|error| error.to_string())? {
        Asked::Serve(plan) => Ok(*plan),
        other => Err(format!("{other:?}")),
    }
}

#[test]
fn each_port_has_its_own_state_folder() {
    let master = MasterArgs { xdg_state_home: Some(PathBuf::from("/state")), ..MasterArgs::default() };
    let environment = Environment { master, ..Environment::default() };
    for (line, folder) in [("", "/state/tiffin/50051"), ("--rpc_port=7600", "/state/tiffin/7600")] {
        let args: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let Ok(Asked::Serve(plan)) = plan(&args, &environment) else { panic!("{line}") };
        assert_eq!(plan.config.state_dir, Some(PathBuf::from(folder)));
    }
}

#[test]
fn defaults_are_those_of_mooncakes_master() {
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
    assert!(warning.starts_with("every client that reaches this machine can read and write"), "{warning}");
}

#[test]
fn flags_have_every_form_of_gflags() {
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
fn honoured_flags_become_settings() {
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
fn every_flag_is_sorted_described_and_has_an_effect() {
    let mut line = String::from("--rpc_address 127.0.0.1 --metrics_host=127.0.0.1");
    let mut expected = Vec::new();
    let help = MASTER.help();
    for table in [flags::MASTER, flags::CLIENT, flags::COMMON] {
        for window in table.windows(2) {
            assert!(window[0].name < window[1].name, "{} is not in order", window[1].name);
        }
    }
    for flag in MASTER.flags() {
        let name = flag.name;
        assert!(flag.about.len() > 8, "{name} has no description");
        assert!(help.contains(&format!("  --{name}")), "{name} is not in the help");
        if flag.what == Use::Honoured {
            continue;
        }
        let value = match flag.kind {
            Kind::Bool => "true",
            Kind::Int32 | Kind::Int64 | Kind::Uint32 => "7",
            Kind::Uint64 if name == "put_start_discard_timeout_sec" => "6",
            Kind::Uint64 => "7",
            Kind::Decimal | Kind::Fraction => "0.5",
            Kind::Choice(words) => words[0],
            Kind::Time => "5s",
            Kind::Text => "text",
        };
        line.push_str(&format!(" --{name}={value}"));
        expected.push(format!("--{name}"));
    }
    assert!(help.lines().all(|line| line.len() <= 100), "{help}");
    let warnings = planned(&line).unwrap().warnings;
    assert_eq!(warnings, [format!("these flags have no effect here: {}", expected.join(", "))]);
}

#[test]
fn unknown_flags_and_bad_values_are_rejected() {
    for (line, expected) in [
        ("--rcp_port=1", "unknown command line flag 'rcp_port'\n\nhint: did you mean `--rpc_port`?"),
        ("--colour blue", "unknown command line flag 'colour'\n\nhint: `--help` lists the flags"),
        ("--norpc_port", "unknown command line flag 'norpc_port'"),
        ("--norpc_port=1", "unknown command line flag 'norpc_port'"),
        ("--rpc_port", "flag '--rpc_port' is missing its argument; flag description: the port that"),
        ("--rpc_port=http", "illegal value 'http' specified for int32 flag 'rpc_port'"),
        (
            "--rpc_thread_num=2147483648",
            "illegal value '2147483648' specified for int32 flag 'rpc_thread_num'",
        ),
        ("--client_ttl=9223372036854775808", "specified for int64 flag 'client_ttl'"),
        ("--max_retry_attempts=-1", "illegal value '-1' specified for uint32 flag 'max_retry_attempts'"),
        ("--quota_bytes=-1", "illegal value '-1' specified for uint64 flag 'quota_bytes'"),
        ("--eviction_ratio=1.1", "failed validation of new value '1.1' for flag 'eviction_ratio'"),
        ("--offload_cap_ratio=-0.1", "failed validation of new value '-0.1' for flag 'offload_cap_ratio'"),
        ("--memory_allocator=slab", "failed validation of new value 'slab' for flag 'memory_allocator'"),
        ("--put_start_release_timeout_sec=30", "new value '30' for flag 'put_start_release_timeout_sec'"),
        ("--rpc_port=70000", "failed validation of new value '70000' for flag 'rpc_port'"),
        ("--enable_ha=perhaps", "illegal value 'perhaps' specified for bool flag 'enable_ha'"),
        ("--eviction_ratio=NaN", "illegal value 'NaN' specified for double flag 'eviction_ratio'"),
        ("--default_kv_lease_ttl=5x", "failed validation of new value '5x' for flag 'default_kv_lease_ttl'"),
        ("--client_ttl=99999999", "silence is"),
        ("--config_path /nowhere/master.yaml", "cannot read the settings file `/nowhere/master.yaml`"),
        ("--flagfile=/nowhere/flags", "cannot read the flag file `/nowhere/flags`"),
        ("--fromenv=rpc_port", "FLAGS_rpc_port not found in environment"),
        ("--fromenv=colour", "unknown command line flag 'colour' of --fromenv"),
        ("--undefok=tint --colour=1", "unknown command line flag 'colour'"),
        ("--help", "Help"),
        ("--helpmatch=rpc", "Help"),
        ("--version", "Version"),
    ] {
        let error = planned(line).unwrap_err();
        assert!(error.contains(expected), "{line}: {error}");
    }
}

#[test]
fn values_at_their_limits_are_accepted() {
    for flag in [
        "--rpc_thread_num=2147483647",
        "--max_retry_attempts=4294967295",
        "--quota_bytes=18446744073709551615",
        "--eviction_ratio=0 --eviction_high_watermark_ratio=1",
        "--put_start_discard_timeout_sec=5 --put_start_release_timeout_sec=6",
    ] {
        planned(flag).unwrap();
    }
}

#[test]
fn positional_words_are_ignored_and_named() {
    let warned = |line: &str| planned(&format!("{line} --rpc_address=::1 --metrics_host=::1")).unwrap();
    let plan = warned("--allow_evict_soft_pinned_objects false serve");
    assert!(plan.config.evict_soft_pinned, "as gflags parses it");
    assert_eq!(plan.warnings, ["these words are ignored: `false`, `serve`; write --flag=false"]);
    let plan = planned("--rpc_address=::1 --metrics_host=::1 -- --rpc_port=1").unwrap();
    assert_eq!(plan.config.listen[0].to_string(), "[::1]:50051");
    assert_eq!(plan.warnings, ["these words are ignored: `--rpc_port=1`; write --flag=false"]);
}

#[test]
fn unknown_flags_can_be_permitted() {
    for line in
        ["--undefok=colour --colour=1", "--nocolour -undefok tint,colour", "--undefok=colour --colour"]
    {
        assert_eq!(planned(line).unwrap().config.listen[0].to_string(), "0.0.0.0:50051", "{line}");
    }
}

#[test]
fn flags_of_files_and_variables_apply_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let text = "# ours\n--rpc_port=1111\n\n--colour=blue\n-client_ttl 60\nanother_program\n--rpc_port=3\n\
                mooncake_master\n--noallow_evict_soft_pinned_objects\n";
    std::fs::write(path("flags"), text).unwrap();
    let plan = planned(&format!("--flagfile={}", path("flags"))).unwrap();
    assert_eq!(plan.config.listen[0].to_string(), "0.0.0.0:1111");
    assert_eq!((plan.config.silence, plan.config.evict_soft_pinned), (Duration::from_secs(60), false));
    let after = planned(&format!("--flagfile={} --rpc_port=2222", path("flags"))).unwrap();
    assert_eq!(after.config.listen[0].to_string(), "0.0.0.0:2222");
    let before = planned(&format!("--rpc_port=2222 --flagfile={}", path("flags"))).unwrap();
    assert_eq!(before.config.listen[0].to_string(), "0.0.0.0:1111");

    let variables = BTreeMap::from([("rpc_port".to_owned(), "4444".to_owned())]);
    let environment = Environment { flags: variables, ..environment() };
    let args = ["--tryfromenv=metrics_port,rpc_port".to_owned()];
    let Asked::Serve(plan) = plan_of(&args, &environment).unwrap() else { panic!() };
    assert_eq!(plan.config.listen[0].to_string(), "0.0.0.0:4444");
}

#[test]
fn flag_files_are_bounded_in_size_and_depth() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let chain = |length: usize| {
        std::fs::write(path("0"), "--rpc_port=1111\n").unwrap();
        for number in 1..length {
            let line = format!("--flagfile={}\n", path(&(number - 1).to_string()));
            std::fs::write(path(&number.to_string()), line).unwrap();
        }
        planned(&format!("--flagfile={}", path(&(length - 1).to_string())))
    };
    assert_eq!(chain(8).unwrap().config.listen[0].to_string(), "0.0.0.0:1111");
    assert!(chain(9).unwrap_err().contains("more than 8 flag files name each other"));
    let comment = |bytes: usize| format!("#{}", "x".repeat(bytes - 1));
    std::fs::write(path("long"), comment(1 << 20)).unwrap();
    planned(&format!("--flagfile={}", path("long"))).unwrap();
    std::fs::write(path("long"), comment((1 << 20) + 1)).unwrap();
    let error = planned(&format!("--flagfile={}", path("long"))).unwrap_err();
    assert!(error.contains("it has more than 1048576 bytes"), "{error}");
}

#[test]
fn flags_precede_the_settings_file() {
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
        ("rcp_port: 1", "unknown command line flag 'rcp_port' in `x`\n\nhint: did you mean `--rpc_port`?"),
        ("rpc_port: many", "illegal value 'many' specified for int32 flag 'rpc_port' in `x`"),
        ("rpc_port", "line 1 is not of the form `name: value`"),
        ("rpc_port:\n  b: 1", "line 2 is not of the form"),
        ("  rpc_port: 1", "line 1 is not of the form"),
        ("{\"rpc_port\": [1]}", "the value of `rpc_port` is not a string, a number or a boolean"),
        ("{", "EOF while parsing"),
    ] {
        let error = MASTER.parse_file(text, "x").unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn token_in_the_environment_removes_the_warning() {
    let common = CommonArgs { token: Some("secret".to_owned()), ..CommonArgs::default() };
    let Asked::Serve(plan) = plan(&[], &Environment { common, ..environment() }).unwrap() else { panic!() };
    assert_eq!((plan.config.token.as_str(), plan.warnings.len()), ("secret", 0));
}

#[test]
fn node_daemon_has_its_own_flags() {
    let read = |line: &str| {
        let args: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        client_flags(&args, &BTreeMap::new())
    };
    let (values, warnings) = read("--port=1 -global_segment_size 4GB --enable_offload --threads=8").unwrap();
    let shown: Vec<_> = values.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(shown, ["enable_offload=true", "global_segment_size=4GB", "port=1", "threads=8"]);
    assert_eq!(warnings, ["these flags have no effect here: --threads"]);
    for (line, status) in
        [("--help", 0), ("--version", 0), ("--rpc_port=1", 1), ("--port=99999", 1), ("--http_port=x", 1)]
    {
        assert_eq!(read(line).unwrap_err(), status, "{line}");
    }
    for flag in CLIENT.flags() {
        assert!(CLIENT.help().contains(&format!("  --{}", flag.name)), "{}", flag.name);
    }
}

#[test]
fn events_need_an_endpoint_and_a_name() {
    let on = "--rpc_address=::1 --metrics_host=::1 --enable_kv_events";
    for line in ["", "--kv_events_backend_id=b", "--kv_events_bind_endpoint=tcp://*:5557"] {
        let plan = planned(&format!("{on} {line}")).unwrap();
        assert_eq!(plan.config.events, None, "{line}");
        assert!(plan.warnings[0].starts_with("events are not published"), "{:?}", plan.warnings);
    }
    let named = format!("{on} --kv_events_backend_id=b");
    let full = format!("{named} --kv_events_bind_endpoint=tcp://*:5557 --nokv_events_emit_legacy_compat");
    let plan = planned(&format!("{full} --kv_events_queue_capacity=0")).unwrap();
    let events = plan.config.events.unwrap();
    assert_eq!((events.listen.to_string().as_str(), events.backend_id.as_str()), ("0.0.0.0:5557", "b"));
    assert_eq!((events.legacy, events.object_key, events.queue_max), (false, true, 1));
    assert!(plan.warnings[0].contains("0.0.0.0:5557"), "{:?}", plan.warnings);
    let queue = |flag: &str| planned(&format!("{full} {flag}")).unwrap().config.events.unwrap().queue_max;
    assert_eq!((queue(""), queue("--kv_events_queue_capacity=4294967295")), (65_536, 1 << 24));
    for endpoint in ["ipc:///tmp/x", "tcp://nowhere", "5557"] {
        let error = planned(&format!("{named} --kv_events_bind_endpoint={endpoint}")).unwrap_err();
        assert!(error.contains("flag 'kv_events_bind_endpoint'"), "{error}");
    }
    // A token protects every other port, but cannot protect this one.
    let common = CommonArgs { token: Some("secret".to_owned()), ..CommonArgs::default() };
    let environment = Environment { common, ..environment() };
    let args: Vec<_> = full.split_whitespace().map(str::to_owned).collect();
    assert!(plan_of(&args, &environment).unwrap_err().to_string().contains("TIFFIN_TOKEN"));
    let local: Vec<_> = args.iter().map(|it| it.replace('*', "127.0.0.1")).collect();
    assert!(plan_of(&local, &environment).is_ok());
}

#[test]
fn quotas_of_tenants_can_be_in_a_file() {
    let file = |line: &str| planned(line).map(|plan| plan.config.tenant_file);
    assert_eq!(
        file("--tenant_quota_connector_type=file --tenant_quota_connector_uri=/q").unwrap(),
        Some("/q".into())
    );
    assert_eq!(file("").unwrap(), None);
    assert!(file("--tenant_quota_connector_type=file").unwrap_err().contains("name the file"));
    assert!(file("--tenant_quota_connector_type=etcd").unwrap_err().contains("only `file` is supported"));
}

#[test]
fn several_masters_are_asked_for_as_in_mooncake() {
    let ha = |line: &str| planned(line).map(|plan| plan.config.ha);
    let full = "--enable_ha=true --etcd_endpoints=a:2379;b:2379 --rpc_address=10.0.0.1";
    let config = ha(&format!("{full} --cluster_id=prod")).unwrap().unwrap();
    assert_eq!((config.etcd.as_str(), config.cluster.as_str()), ("a:2379;b:2379", "prod"));
    assert_eq!(ha(full).unwrap().unwrap().cluster, HA_CLUSTER);
    let backend = "--enable_ha=true --ha_backend_type=etcd --ha_backend_connstring=c:2379";
    let config = ha(&format!("{backend} --etcd_endpoints=a:2379 --rpc_address=10.0.0.1")).unwrap().unwrap();
    assert_eq!(config.etcd, "c:2379");
    for kind in ["redis", "k8s"] {
        let refused = ha(&format!("{full} --ha_backend_type={kind}")).unwrap_err();
        assert!(refused.contains("only `etcd` is supported"), "{refused}");
    }
    // The addresses alone ask for nothing.
    assert_eq!(ha("--etcd_endpoints=a:2379 --cluster_id=prod").unwrap(), None);
    assert!(ha("--enable_ha=true").unwrap_err().contains("needs the addresses of etcd"));
    assert!(ha("--enable_ha=true --etcd_endpoints=a").unwrap_err().contains("a port is missing"));
    // Others could not reach it on all addresses.
    assert!(ha("--enable_ha=true --etcd_endpoints=a:2379").unwrap_err().contains("--master-advertise"));
}
