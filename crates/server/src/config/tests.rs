//! Tests of the settings as text.

use std::fmt::Debug;

use clap::{Command, FromArgMatches};
use expect_test::{Expect, expect, expect_file};

use tiffin_transport::TOKEN_BYTES_MAX;

use super::*;

/// Parses flags like a command line, without the environment.
fn flags<A: Args + FromArgMatches>(line: &str) -> Result<A, String> {
    let command = A::augment_args(Command::new("tiffin")).mut_args(|argument| argument.env(None::<&str>));
    let words = std::iter::once("tiffin").chain(line.split_whitespace());
    let matches = command.try_get_matches_from(words).map_err(|error| error.to_string())?;
    A::from_arg_matches(&matches).map_err(|error| error.to_string())
}

fn shown<T: Debug>(outcome: Result<T, String>) -> String {
    outcome.map_or_else(|error| format!("error: {error}"), |config| format!("{config:#?}"))
}

fn master(line: &str, file: &str) -> Result<MasterConfig, String> {
    let args: MasterArgs = flags(&format!("--state-dir state {line}"))?;
    let file = SettingsFile::parse(file, "tiffin.toml").map_err(|error| error.to_string())?;
    args.resolve(&file.common, &file).map_err(|error| error.to_string())
}

fn node(line: &str, file: &str) -> Result<NodeConfig, String> {
    let args: NodeArgs = flags(line)?;
    let file = SettingsFile::parse(file, "tiffin.toml").map_err(|error| error.to_string())?;
    args.resolve(&file.common, &file).map_err(|error| error.to_string())
}

fn check_master(line: &str, file: &str, expected: &Expect) {
    expected.assert_eq(&shown(master(line, file)));
}

fn check_node(line: &str, file: &str, expected: &Expect) {
    expected.assert_eq(&shown(node(line, file)));
}

#[test]
fn master_has_defaults() {
    check_master(
        "",
        "",
        &expect![[r#"
            MasterConfig {
                listen: [
                    Tcp {
                        host: "127.0.0.1",
                        port: 7400,
                    },
                ],
                http: Some(
                    Tcp {
                        host: "127.0.0.1",
                        port: 7401,
                    },
                ),
                metadata_http: None,
                state_dir: Some(
                    "state",
                ),
                ha: None,
                token: "",
                access_file: None,
                tls: TlsFiles {
                    cert: None,
                    key: None,
                    ca: None,
                    client_ca: None,
                },
                lease_ttl: 10s,
                lease_mode: Relaxed,
                lease_grace: 10s,
                silence: 10s,
                away: 10s,
                slow: 1s,
                soft_pin_ttl: 1800s,
                evict_soft_pinned: true,
                tier: TierConfig {
                    demotion: OnPressure,
                    promote_on_hit: true,
                    promote_after: 2,
                    prefetch_cooldown: 5s,
                    prefetch_dedup_ttl: 30s,
                    disk_away: 3600s,
                    repair_delay: 10s,
                    repair_copies: 8,
                },
                exposed: false,
                tenants: false,
                tenant_file: None,
                events: None,
                trace: None,
            }"#]],
    );
}

#[test]
fn flags_precede_the_file_and_the_file_precedes_defaults() {
    check_node(
        "--memory 2GiB --shared-memory off --pool off",
        "token = 'secret'\n[node]\nmemory = '3GiB'\nlisten = '0.0.0.0:7500'\nname = 'left'",
        &expect![[r#"
            NodeConfig {
                master: Masters {
                    text: "127.0.0.1:7400",
                    source: Listed(
                        [
                            Tcp {
                                host: "127.0.0.1",
                                port: 7400,
                            },
                        ],
                    ),
                },
                memory: 2147483648,
                name: "left",
                listen: Some(
                    Tcp {
                        host: "0.0.0.0",
                        port: 7500,
                    },
                ),
                data_listen: None,
                advertise: None,
                shared_memory: false,
                isolate: false,
                populate: true,
                ssd: [],
                pool: None,
                is_pool_optional: false,
                pool_on_stop: Keep,
                token: "secret",
                access_file: None,
                tls: TlsFiles {
                    cert: None,
                    key: None,
                    ca: None,
                    client_ca: None,
                },
                exposed: false,
                trace: None,
            }"#]],
    );
}

#[test]
fn only_a_node_process_has_a_pool_by_default() {
    let (common, file) = (CommonArgs::default(), SettingsFile::default());
    let node = |args: &str| flags::<NodeArgs>(args).unwrap().resolve(&common, &file).unwrap();
    assert!(node("--name left").pool.is_some_and(|it| it.ends_with("name-left")));
    assert_eq!(node("").pool, None);
    assert_eq!(node("--name left --pool off").pool, None);
    let config = node("--pool /dev/shm/x --pool-on-stop discard");
    assert_eq!((config.pool, config.pool_on_stop), (Some("/dev/shm/x".into()), PoolEnd::Discard));
    let up = |args: &str| flags::<UpArgs>(args).unwrap().resolve(&common, &file).unwrap().node.pool;
    assert_eq!(up("--state-dir s --name left"), None);
    assert_eq!(up("--state-dir s --pool /dev/shm/x"), Some("/dev/shm/x".into()));
}

#[test]
fn master_on_any_port_keeps_no_state() {
    let state = |line: &str| {
        let args: MasterArgs = flags(line).unwrap();
        let args = MasterArgs { xdg_state_home: Some("/state".into()), ..args };
        args.resolve(&CommonArgs::default(), &SettingsFile::default()).unwrap().state_dir
    };
    assert_eq!(state(""), Some("/state/tiffin/7400".into()));
    assert_eq!(state("--listen 127.0.0.1:1"), Some("/state/tiffin/1".into()));
    assert_eq!(state("--listen unix:@left"), Some("/state/tiffin/@left".into()));
    // The system picks the port: two such masters of one user would share a folder.
    assert_eq!(state("--listen 127.0.0.1:0"), None);
    assert_eq!(state("--listen 127.0.0.1:0 --state-dir s"), Some("s".into()));
}

#[test]
fn up_starts_the_node_on_the_masters_host() {
    let args: UpArgs = flags("--state-dir s --listen 127.0.0.9:7400 --memory 2MiB").unwrap();
    let config = args.resolve(&CommonArgs::default(), &SettingsFile::default()).unwrap();
    assert_eq!(config.node.listen, Some("127.0.0.9:0".parse().unwrap()));
    assert_eq!(config.node.memory, 2 << 20);
}

#[test]
fn unknown_keys_are_rejected_with_name_and_line() {
    check_master(
        "",
        "token = 'x'\n[master]\nlease_tll = '5s'\n",
        &expect![[r#"
            error: `tiffin.toml`, line 3: there is no setting `lease_tll` in `[master]`

            hint: did you mean `lease_ttl`?"#]],
    );
    check_master(
        "",
        "memory = '1GiB'\n",
        &expect![[r#"
            error: `tiffin.toml`, line 1: there is no setting `memory`

            hint: `memory` belongs in the table `[node]`"#]],
    );
    check_master(
        "",
        "[masters]\n",
        &expect![[r#"
            error: `tiffin.toml`, line 1: there is no setting `masters`

            hint: did you mean `master`?"#]],
    );
    check_node(
        "",
        "[client]\ncolour = 'blue'\n",
        &expect![[r#"
            error: `tiffin.toml`, line 2: there is no setting `colour` in `[client]`

            hint: the settings there are master, namespace, timeout, shared_memory"#]],
    );
}

#[test]
fn invalid_values_are_rejected_with_their_line() {
    check_master(
        "",
        "\n[master]\nlease_ttl = 'soon'\n",
        &expect![[r#"
            error: `tiffin.toml`, line 3: invalid duration `soon`: it does not begin with a number

            hint: `docs/settings.md` lists every setting with an example"#]],
    );
    check_master(
        "",
        "[master]\nlisten = 'here'\n",
        &expect![[r#"
            error: `tiffin.toml`, line 2: `here` is not an address

            hint: `docs/settings.md` lists every setting with an example"#]],
    );
    check_master(
        "",
        "[master\n",
        &expect![[r#"
            error: `tiffin.toml`, line 1: unclosed table, expected `]`

            hint: `docs/settings.md` lists every setting with an example"#]],
    );
    check_node(
        "",
        "[node]\nshared_memory = 'maybe'\n",
        &expect![[r#"
            error: `tiffin.toml`, line 2: unknown variant `maybe`, expected `on` or `off`

            hint: `docs/settings.md` lists every setting with an example"#]],
    );
}

#[test]
fn values_out_of_range_are_rejected_with_a_hint() {
    for (line, expected) in [
        (
            "--lease-ttl 0s",
            "lease_ttl is 0s: it must be between 1ms and 7days\n\nhint: a typical value is `10s`",
        ),
        (
            "--silence 1ms",
            "silence is 1ms: it must be between 100ms and 7days\n\nhint: a typical value is `10s`",
        ),
        ("--away 100years", "away is 100years"),
        ("--http unix:@x", "http is `unix:@x`: it must be a host and a port"),
        (
            "--listen 0.0.0.0:1",
            "listen is `0.0.0.0:1`, which other machines can reach, and there is no token",
        ),
        ("--http 0.0.0.0:1", "http is `0.0.0.0:1`, which other machines can reach"),
        ("--metadata-http [::]:1", "metadata_http is `[::]:1`, which other machines can reach"),
    ] {
        let error = master(line, "").unwrap_err();
        assert!(error.contains(expected) && error.contains("\n\nhint: "), "{line}: {error}");
    }
    for (line, expected) in [
        ("--memory 0", "memory is 0 B: it must be between 1.0 MiB and 64.0 TiB"),
        ("--memory 9999PiB", "memory is"),
        ("--listen example.org:1", "listen is `example.org:1`, which other machines can reach"),
        ("--data-listen 10.0.0.1:1", "data_listen is `10.0.0.1:1`"),
    ] {
        let error = node(line, "").unwrap_err();
        assert!(error.contains(expected) && error.contains("\n\nhint: "), "{line}: {error}");
    }
    let long = "x".repeat(NAME_BYTES_MAX + 1);
    let nowhere = NodeConfig { listen: None, shared_memory: false, ..NodeConfig::default() };
    assert!(nowhere.check().is_err() && NodeConfig { name: long, ..NodeConfig::default() }.check().is_err());
    assert!(MasterConfig { listen: Vec::new(), ..MasterConfig::default() }.check().is_err());
}

#[test]
fn token_allows_any_listen_address() {
    let file = "token = 'secret'";
    assert!(master("--listen 0.0.0.0:7400 --http [::]:7401", file).is_ok());
    for bad in ["two words".to_owned(), "x".repeat(TOKEN_BYTES_MAX + 1)] {
        let error = master("", &format!("token = '{bad}'")).unwrap_err();
        assert!(error.starts_with("token is not usable") && !error.contains(&bad), "{error}");
    }
}

#[test]
fn off_disables_the_pages() {
    assert_eq!(master("--http off", "").unwrap().http, None);
    assert_eq!(master("", "[master]\nhttp = 'off'").unwrap().http, None);
}

#[test]
fn documented_defaults_are_the_defaults() {
    let mut file = String::new();
    for (table, command) in [
        ("master", MasterArgs::augment_args(Command::new("x"))),
        ("node", NodeArgs::augment_args(Command::new("x"))),
        ("client", ClientArgs::augment_args(Command::new("x"))),
    ] {
        file.push_str(&format!("[{table}]\n"));
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let (_, default) = page::meaning_and_default(argument);
            assert!(!default.is_empty(), "the help of {} has no default", argument.get_id());
            // A default that is not one value in backquotes is prose.
            let Some(value) = default.strip_prefix('`').and_then(|it| it.strip_suffix('`')) else { continue };
            if value.contains('`') {
                continue;
            }
            let is_plain = value == "true" || value.parse::<u8>().is_ok();
            let value = if is_plain { value.to_owned() } else { format!("'{value}'") };
            file.push_str(&format!("{} = {value}\n", argument.get_id()));
        }
    }
    assert_eq!(master("", &file).unwrap(), master("", "").unwrap());
    assert_eq!(node("", &file).unwrap(), node("", "").unwrap());
    let client = |file: &str| {
        let file = SettingsFile::parse(file, "tiffin.toml").unwrap();
        ClientArgs::default().resolve(&file.common, &file).unwrap()
    };
    assert_eq!(client(&file), client(""));
}

#[test]
fn setting_is_a_flag_a_variable_and_a_key() {
    for command in [
        CommonArgs::augment_args(Command::new("x")),
        UpArgs::augment_args(Command::new("x")),
        NodeArgs::augment_args(Command::new("x")),
        ClientArgs::augment_args(Command::new("x")),
    ] {
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let id = argument.get_id().as_str();
            assert_eq!(argument.get_long(), Some(id.replace('_', "-").as_str()));
            let variable = argument.get_env().unwrap().to_str().unwrap();
            let tail = format!("_{}", id.to_uppercase());
            assert!(variable.starts_with("TIFFIN_") && variable.ends_with(&tail), "{variable}");
        }
    }
}

#[test]
fn missing_file_is_named() {
    let common = CommonArgs { config: Some("/nowhere/tiffin.toml".into()), ..CommonArgs::default() };
    let error = common.load().unwrap_err().to_string();
    assert!(error.contains("/nowhere/tiffin.toml") && error.contains("hint: "), "{error}");
}

#[test]
fn reference_page_of_settings_is_as_committed() {
    expect_file!["../../../../docs/settings.md"].assert_eq(&page::render());
}
