//! Invalid input: the message names the thing, and the hint helps.

use std::io::Write;
use std::net::TcpListener;

use serde_json::Value;

use crate::{Server, ran, tiffin};

/// The error of a command without a store, as JSON.
fn refused(args: &[&str]) -> Value {
    let mut command = tiffin();
    command.args(args).args(["--json", "--log-level", "error"]);
    ran(command, b"").error()
}

#[track_caller]
fn expect(error: &Value, code: &str, message: &str, hint: &str) {
    assert_eq!(error["code"], code, "{error}");
    assert!(error["message"].as_str().unwrap().contains(message), "{error}");
    assert!(error["hint"].as_str().unwrap_or_default().contains(hint), "{error}");
}

#[test]
fn invalid_settings_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.toml");
    let config = path.to_str().unwrap();
    for (text, message, hint) in [
        ("[node]\nmemry = '1GiB'\n", "line 2: there is no setting `memry`", "did you mean `memory`?"),
        ("memory = '1GiB'\n", "there is no setting `memory`", "belongs in the table `[node]`"),
        ("[node\n", "line 1", "docs/settings.md"),
        ("[node]\nmemory = '1 elephant'\n", "line 2: invalid size `1 elephant`", "docs/settings.md"),
    ] {
        std::fs::write(&path, text).unwrap();
        let error = refused(&["node", "--config", config]);
        expect(&error, "config", message, hint);
        assert!(error["message"].as_str().unwrap().contains(config), "{error}");
    }
    expect(&refused(&["ls", "--config", "/nowhere/at/all"]), "config", "/nowhere/at/all", "check the path");
    expect(&refused(&["up", "--memory", "7B"]), "config", "memory is 7 B", "typical");
    expect(&refused(&["ls", "--timeout", "0s"]), "config", "timeout is 0s", "typical");
    expect(&refused(&["quota", "--max-hold", "0s"]), "invalid", "--max-hold", "`--no-max-hold`");
    expect(&refused(&["master", "--listen", "0.0.0.0:0"]), "config", "every client could connect", "token");
    expect(&refused(&["node", "--listen", "0.0.0.0:0"]), "config", "every client could connect", "token");
    expect(&refused(&["up", "--http", "0.0.0.0:0"]), "config", "every client could connect", "token");
}

#[test]
fn server_that_cannot_start_reports_the_reason() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let inside = file.join("state");
    let (free, state) = ("127.0.0.1:0", folder.path().to_str().unwrap());
    for command in ["up", "master"] {
        let error = refused(&[command, "--listen", &taken, "--http", "off", "--state-dir", state]);
        expect(&error, "listen", &taken, "");
        let error = refused(&[command, "--listen", free, "--http", &taken, "--state-dir", state]);
        expect(&error, "listen", &taken, "");
        let error =
            refused(&[command, "--listen", free, "--http", "off", "--state-dir", inside.to_str().unwrap()]);
        expect(&error, "state", inside.to_str().unwrap(), "");
    }
    let error = refused(&["node", "--memory", "8TiB", "--master", &taken]);
    expect(&error, "memory", "does not fit", "ask for less");
    let error = refused(&["up", "--memory", "8TiB", "--listen", free, "--http", "off", "--state-dir", state]);
    expect(&error, "memory", "does not fit", "ask for less");
}

#[test]
fn unreachable_master_is_named() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = (silent.local_addr().unwrap().to_string(), silent);
    for command in [&["get", "k"][..], &["put", "k", "--value", "v"], &["ls"], &["stat"], &["rm", "k"]] {
        let error = refused(&[command, &["--master", &closed]].concat());
        expect(&error, "unreachable", &closed, "`tiffin up`");
        let error = refused(&[command, &["--master", &silent.0, "--timeout", "200ms"]].concat());
        expect(&error, "timeout", "accepted the connection but did not answer", "another program may");
    }
    let error = refused(&["node", "--memory", "1MiB", "--master", &closed]);
    expect(&error, "unreachable", &closed, "check that a server listens");
}

/// A server of another kind: it sends these bytes to every client and closes the connection.
fn other_server(greeting: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            stream.unwrap().write_all(greeting).unwrap();
        }
    });
    address
}

#[test]
fn servers_of_another_kind_are_distinguished() {
    // The bytes are shorter than one of our headers.
    let error = refused(&["ls", "--master", &other_server(b"SSH-2.0-OpenSSH\r\n")]);
    expect(&error, "wrong_port", "is not a Tiffin server: it speaks SSH", "the master listens on");
    let error = refused(&["ls", "--master", &other_server(b"")]);
    expect(&error, "unreachable", "accepted the connection but closed it", "another program may");
}

#[test]
fn wrong_addresses_are_distinguished() {
    // The label is longer than DNS allows, so that no name server is queried.
    let unknown = format!("{}:7400", "x".repeat(64));
    let store = Server::up(&[]);
    let pages = store.ready["http"].as_str().unwrap();
    for command in [&["get", "k"][..], &["put", "k", "--value", "v"], &["ls"], &["stat"], &["rm", "k"]] {
        let error = refused(&[command, &["--master", &unknown]].concat());
        expect(&error, "unknown_host", "cannot resolve the host of", "DNS");
        let error = refused(&[command, &["--master", pages]].concat());
        expect(&error, "wrong_port", "it speaks HTTP", "not that of its HTTP pages");
    }
    // Its log has the same message, at another level.
    let mut node = tiffin();
    node.args(["node", "--memory", "1MiB", "--master", pages, "--json", "--log-level", "off"]);
    let error = ran(node, b"").error();
    expect(&error, "refused", "it speaks HTTP", "not that of its HTTP pages");
}

#[test]
fn no_hint_is_repeated() {
    for args in [
        &["ls", "--master", "nowhere"][..],
        &["up", "--ssd", "path=/x,size=lots"],
        &["up", "--memory", "lots"],
        &["ls", "--timeout", "soon"],
        &["node", "--memory", "1MiB", "--master", "127.0.0.1:1"],
    ] {
        let mut command = tiffin();
        command.args(args);
        let text = ran(command, b"").stderr;
        assert_eq!(text.matches("hint:").count(), 1, "{text}");
    }
}

#[test]
fn missing_command_shows_the_help() {
    for args in [&[][..], &["kv"]] {
        let mut command = tiffin();
        command.args(args);
        let help = ran(command, b"");
        assert_eq!((help.status, help.stderr.as_str()), (Some(0), ""), "{args:?}");
        let text = String::from_utf8(help.stdout).unwrap();
        assert!(text.contains("Usage: tiffin") && text.contains("Commands:"), "{text}");
    }
}

#[test]
fn absent_keys_and_large_values_are_named() {
    let store = Server::up(&[]);
    let error = |args: &[&str]| store.run(args.iter().chain(&["--json"])).error();
    expect(&error(&["get", "nothing"]), "not_found", "`nothing` does not exist", "`tiffin ls`");
    expect(&error(&["stat", "nothing"]), "not_found", "`nothing` does not exist", "`tiffin ls`");
    expect(&error(&["get", ""]), "invalid", "the key is empty", "one byte");
    expect(&error(&["ls", "--regex", "("]), "invalid", "", "");
    expect(&error(&["put", "k", "/nowhere/at/all"]), "file", "/nowhere/at/all", "check the path");
    expect(&error(&["put", "k", "/"]), "file", "`/`", "a file, not a folder");
    store.run(["put", "k", "--value", "v"]).ok();
    expect(&error(&["get", "k", "-o", "/nowhere/at/all"]), "file", "/nowhere/at/all", "check the path");
    expect(&error(&["put", "k", "/dev/zero"]), "full", "larger than the largest node", "more memory");
    let large = vec![1; 20 << 20];
    store.run_with(["put", "pinned", "--pin"], &large).ok();
    let full = store.run_with(["put", "more", "--json"], &large).error();
    expect(&full, "full", "no space for `more`", "add a node");
    assert_eq!((&full["lacks"], &full["never"]), (&"bytes".into(), &false.into()));
    assert!(store.run(["get", "pinned"]).ok() == large);
}

#[test]
fn invalid_arguments_exit_with_2_and_a_hint() {
    for (args, message, hint) in [
        (&["gett", "k"][..], "gett", "'get'"),
        (&["up", "--memry", "1GiB"], "--memry", "'--memory'"),
        (&["up", "--memory", "lots"], "--memory <SIZE>: invalid size `lots`: it does not begin", "`8GiB`"),
        (
            &["ls", "--timeout", "5x"],
            "--timeout <TIME>: invalid duration `5x`: there is no unit `x`",
            "`10s`",
        ),
        (&["quota", "--set", "1 elephant"], "invalid size `1 elephant`: there is no unit", "`8GiB`"),
        (&["up", "--ssd", "path=/x,size=lots"], "invalid size `lots`", "path=/data"),
        (&["put"], "<KEY>", "usage: tiffin put"),
        (&["put", "a", "b", "c", "d"], "`c` is one file too many", "`tiffin put --files FILE...`"),
        (&["rm"], "<KEY>", "usage: tiffin rm"),
        (&["ls", "--limit", "x"], "--limit <N>: `x` is not a whole number", "--help"),
        (&["rm", "k", "--prefix", "p"], "--prefix", "usage: tiffin rm"),
        (&["why"], "<KEY>", "usage: tiffin why"),
        (&["pins", "--drop"], "--owner", "usage: tiffin pins"),
        (&["quota", "--set", "1GiB", "--none"], "--none", "usage: tiffin quota"),
        (&["torture", "--readers", "0"], "0", "--help"),
        (&["put", "k", "--replicas", "0", "--value", "v"], "0", "--help"),
        (&["put", "k", "--replicas", "-1"], "--replicas: the value `-1` is negative", "not negative"),
        (&["ls", "--timeout", "-1s"], "--timeout: the value `-1s` is negative", "not negative"),
        (&["get", "-1"], "-1", "'-- -1'"),
        (&["ls", "--master", "nowhere"], "`nowhere` is not an address", "write `host:port`"),
    ] {
        let mut command = tiffin();
        command.args(args);
        let text = ran(command, b"");
        assert_eq!(text.status, Some(2), "{}", text.stderr);
        let (message_text, advice) = text.stderr.split_once("\n\nhint: ").expect(&text.stderr);
        assert!(message_text.starts_with("error: ") && message_text.contains(message), "{}", text.stderr);
        assert!(advice.contains(hint) && text.stdout.is_empty(), "{}", text.stderr);
        let mut command = tiffin();
        let json = ran(
            {
                command.args(args).arg("--json");
                command
            },
            b"",
        );
        let error: Value = serde_json::from_str(&json.stderr).unwrap();
        assert_eq!((json.status, &error["error"]["code"]), (Some(2), &"usage".into()));
    }
}

#[test]
fn usage_names_no_flag_because_its_variable_is_set() {
    let mut command = tiffin();
    command.arg("get").env("TIFFIN_MASTER", "127.0.0.1:1");
    let text = ran(command, b"").stderr;
    assert!(text.ends_with("hint: usage: tiffin get [OPTIONS] <KEY>...; see `--help`\n"), "{text}");
}

#[test]
fn pattern_and_namespace_are_refused_with_a_hint() {
    let store = Server::up(&[]);
    for command in [&["ls", "--regex", "("][..], &["rm", "--regex", "(", "--yes"]] {
        let error = store.run([command, &["--json"]].concat()).error();
        expect(&error, "invalid", "`(` is not a regular expression", "prefix");
    }
    let error = store.run(["ls", "--namespace", "", "--json"]).error();
    expect(&error, "invalid", "the name of the namespace is empty", "`default`");
}

#[test]
fn folder_that_cannot_be_made_is_named() {
    let store = Server::up(&[]);
    store.run(["put", "a/b", "--value", "v"]).ok();
    for command in [&["man", "/proc/x"][..], &["get", "a/b", "--output-dir", "/proc/x"]] {
        let error = store.run([command, &["--json"]].concat()).error();
        expect(&error, "file", "cannot create the folder `/proc/x", "check the path");
        assert_eq!(error["hint"], "check the path");
    }
}

#[test]
fn every_command_has_a_help() {
    let servers = ["up", "master", "node"];
    let clients = ["put", "get", "ls", "stat", "rm", "why", "pin", "unpin", "pins", "quota"];
    let others = ["doctor", "settings", "torture", "curve"];
    for command in servers.iter().chain(&clients).chain(&others) {
        let mut help = tiffin();
        help.args([*command, "--help"]);
        let text = ran(help, b"").text();
        assert!(text.contains("--json") && text.contains("Usage: tiffin"), "{text}");
    }
    let mut version = tiffin();
    version.arg("--version");
    assert_eq!(ran(version, b"").text(), format!("tiffin {}\n", env!("CARGO_PKG_VERSION")));
}
