//! One store, used by one client after the other.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::Stdio;

use expect_test::expect;
use rustix::process::Signal;

use crate::{Ran, Server, send, without_generations, without_ports};

#[test]
fn objects_are_put_listed_read_and_removed() {
    let store = Server::up(&[]);
    let put = store.run(["put", "greeting", "--value", "hello"]).text();
    assert_eq!(without_generations(&put), "created `greeting`: 5 B, generation G.0\n");
    assert_eq!(store.run(["get", "greeting"]).ok(), b"hello");
    let put = store.run(["put", "greeting", "--value", "hello, world", "--pin"]).text();
    assert_eq!(without_generations(&put), "replaced `greeting`: 12 B, generation G.0\n");
    store.run(["put", "other/one", "--value", "1"]).ok();
    let listed = without_generations(&store.run(["ls"]).text());
    let rows: Vec<_> = listed.lines().map(|it| it.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let expected = ["size generation replicas key", "12 B G.0 1 greeting", "1 B G.1 1 other/one"];
    assert_eq!(rows, expected);
    assert!(!store.run(["ls", "other/"]).text().contains("greeting"));
    assert!(!store.run(["ls", "--regex", "e$"]).text().contains("greeting"));
    assert_eq!(store.run(["ls", "--limit", "1"]).text().lines().count(), 2);
    expect![[r#"
        key         greeting
        size        12 B
        generation  G.0
        copies      127.0.0.1:PORT
        kept        pinned: never evicted
    "#]]
    .assert_eq(&without_generations(&without_ports(&store.run(["stat", "greeting"]).text())));
    assert_eq!(store.run(["rm", "--prefix", "other/"]).text(), "removed 1\n");
    assert_eq!(store.run(["rm", "greeting", "nothing"]).text(), "removed 1, 1 was absent\n");
    let empty = store.run(["ls"]);
    assert_eq!(empty.stderr, "nothing in namespace `default` matches\n");
    assert_eq!(empty.text(), "");
}

#[test]
fn everything_is_removed_only_if_asked_for() {
    let store = Server::up(&[]);
    store.run(["put", "a", "--value", "1"]).ok();
    let refused = store.run(["rm", "--all"]);
    assert_eq!(refused.status, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("this would remove every object in namespace `default`: 1 object, 1 B"));
    assert!(refused.stderr.contains("hint: add `--yes`"));
    assert!(store.run(["rm", "--all", "--dry-run"]).text().contains(" a\n"));
    assert_eq!(store.run(["rm", "--all", "--yes"]).text(), "removed 1\n");
    assert_eq!(store.run(["rm", "--all", "a"]).status, Some(2));
}

#[test]
fn object_with_a_ttl_expires() {
    let store = Server::up(&[]);
    store.run(["put", "long", "--value", "1", "--ttl", "2h"]).ok();
    let listed = store.run(["ls"]).text();
    assert!(listed.contains("expires in") && listed.contains("h"), "{listed}");
    assert!(store.run(["stat", "long"]).text().contains("\nexpires     in "));
    assert!(store.run(["why", "long"]).text().contains("\n  ttl      2h, of which "));
    for command in ["get", "stat", "ls", "why"] {
        let text = store.run([command, "long", "--json"]).text();
        assert!(text.contains("\"expires_in_ms\":7"), "{text}");
    }
    store.run(["put", "short", "--value", "1", "--ttl", "1ms", "--pin"]).ok();
    store.run(["put", "shorter", "--value", "1", "--ttl", "1ms"]).ok();
    let is_gone = || store.run(["why", "shorter"]).text().contains("expired: its TTL was over");
    while !is_gone() {}
    let why = store.run(["why", "short"]).text();
    assert!(why.contains("1s, which is over: the object ends with its last pin"), "{why}");
    store.run(["unpin", "short"]).ok();
    while store.run(["ls"]).text().contains("short") {}
    let stat = store.run(["stat"]).text();
    assert!(stat.contains("expired     2 (2 B); 1 more have a TTL"), "{stat}");
    for wrong in ["0s", "-1s", "5x", "20years"] {
        let ran = store.run(["put", "k", "--value", "1", "--ttl", wrong]);
        assert!(ran.status != Some(0) && ran.stderr.contains("hint:"), "{wrong}: {}", ran.stderr);
    }
}

#[test]
fn json_output_of_every_command() {
    let store = Server::up(&["--name", "here"]);
    let run = |args: &[&str]| {
        let ran = store.run(args.iter().chain(&["--json"]));
        let mut text = String::from_utf8(ran.ok()).unwrap();
        if let Some((_, rest)) = text.split_once(r#""segment":""#) {
            let segment = rest.split('"').next().unwrap().to_owned();
            text = text.replace(&segment, "SEGMENT");
        }
        let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
        if let Some(host) = value.pointer_mut("/nodes/0/host") {
            *host = "HOST".into();
        }
        if let Some(epoch) = value.get_mut("epoch") {
            *epoch = "EPOCH".into();
        }
        format!("{}\n", without_generations(&without_ports(&format!("{value:#}"))))
    };
    let mut shown = String::new();
    for args in [
        &["put", "a", "--value", "one"][..],
        &["put", "a", "--value", "two", "--on-exists", "keep"],
        &["get", "a"],
        &["ls"],
        &["stat", "a"],
        &["stat"],
        &["rm", "a", "b"],
    ] {
        shown.push_str(&run(args));
    }
    expect![[r#"
        {
          "bytes": 3,
          "copies": 1,
          "effect": "created",
          "generation": "G.0",
          "key": "a",
          "unconfirmed": []
        }
        {
          "bytes": 3,
          "copies": 0,
          "effect": "kept",
          "generation": "G.0",
          "key": "a",
          "unconfirmed": []
        }
        {
          "bytes": 3,
          "generation": "G.0",
          "key": "a",
          "value": "one"
        }
        {
          "bytes": 3,
          "generation": "G.0",
          "key": "a",
          "replicas": 1
        }
        {
          "bytes": 3,
          "generation": "G.0",
          "key": "a",
          "leased": false,
          "nodes": [
            "here"
          ],
          "pinned": false,
          "soft_pinned": false
        }
        {
          "clients": 1,
          "copies": {
            "dropped": 0,
            "failed": 0,
            "made": 0,
            "made_bytes": 0,
            "running": 0,
            "short_objects": 0
          },
          "epoch": "EPOCH",
          "evicted": {
            "bytes": 0,
            "objects": 0
          },
          "evicted_unread": 0,
          "evictions": {
            "memory": {
              "bytes": 0,
              "objects": 0
            },
            "promotion": {
              "bytes": 0,
              "objects": 0
            },
            "quota": {
              "bytes": 0,
              "objects": 0
            }
          },
          "expired": {
            "bytes": 0,
            "objects": 0
          },
          "expiring": 0,
          "namespaces": [
            {
              "bytes": 3,
              "guaranteed": null,
              "holders": [],
              "max_hold_ms": null,
              "name": "default",
              "objects": 1,
              "owners": [],
              "quota": null,
              "reserved": 0,
              "sample_age_ms": 0,
              "samples": 0,
              "samples_leased": 0,
              "used": 64,
              "waiting": 0
            }
          ],
          "nodes": [
            {
              "alive": true,
              "holders": [],
              "host": "HOST",
              "keeps_memory": false,
              "name": "here",
              "owed": 0,
              "segment": "SEGMENT",
              "tcp": "127.0.0.1:PORT",
              "usage": {
                "capacity": 33554432,
                "free": 33554368,
                "in_use": 64,
                "in_view": 0,
                "metadata": 0,
                "objects": 1,
                "reserved": 0
              },
              "way": "shared memory",
              "why": null
            }
          ],
          "soft_pinned": 0,
          "streams": [],
          "tier": {
            "demoted_bytes": 0,
            "demoted_objects": 0,
            "demotions_failed": 0,
            "demotions_refused": 0,
            "disk_corrupt": 0,
            "disk_evicted": 0,
            "disk_objects": 0,
            "evicted_undemoted": 0,
            "gets_from_disk": 0,
            "gets_from_far_disk": 0,
            "gets_from_memory": 1,
            "gets_late": 0,
            "gets_waited": 0,
            "prefetch_cancelled": 0,
            "prefetch_failed": 0,
            "prefetch_joined": 0,
            "prefetch_redundant": 0,
            "prefetch_skipped": 0,
            "promoted_bytes": 0,
            "promoted_objects": 0,
            "promoted_unused": 0,
            "promoted_used": 0,
            "waited_ms": 0
          },
          "undecided": 0,
          "unreported": []
        }
        {
          "absent": 1,
          "removed": 1
        }
    "#]]
    .assert_eq(&shown);
}

#[test]
fn on_exists_selects_what_happens() {
    let store = Server::up(&[]);
    for (choice, effect, value) in [
        ("error", "created", "error"),
        ("keep", "kept", "error"),
        ("replace", "replaced", "replace"),
        ("keep", "kept", "replace"),
    ] {
        let put = store.run(["put", "k", "--json", "--on-exists", choice, "--value", choice]).json();
        assert_eq!(put["effect"], effect, "{put}");
        assert_eq!(store.run(["get", "k"]).text(), value);
    }
    let refused = store.run(["put", "k", "--json", "--on-exists", "error", "--value", "x"]).error();
    assert_eq!(refused["code"], "exists");
    assert_eq!(store.run(["get", "k"]).text(), "replace");
}

#[test]
fn values_of_any_kind_round_trip() {
    let store = Server::up(&[]);
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("in"), folder.path().join("out"));
    let large: Vec<u8> =
        (0..20_u32 << 20).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for value in [&b""[..], b"text", b"\0\r\n\xff\xfe\n", &large] {
        store.run_with(["put", "piped"], value).ok();
        assert!(store.run(["get", "piped"]).ok() == value, "{} bytes", value.len());
        assert!(store.run(["get", "piped", "-o", "-", "--shared-memory", "off"]).ok() == value);
        store.run_with(["put", "piped", "-", "--shared-memory", "off"], value).ok();
        assert!(store.run(["get", "piped"]).ok() == value, "{} bytes", value.len());
        std::fs::write(&source, value).unwrap();
        store.run([OsStr::new("put"), OsStr::new("filed"), source.as_os_str()]).ok();
        let got = store.run([OsStr::new("get"), OsStr::new("filed"), OsStr::new("-o"), target.as_os_str()]);
        assert!(got.ok().is_empty());
        assert!(std::fs::read(&target).unwrap() == value, "{} bytes", value.len());
    }
    store.run_with(["put", "short"], b"\xff\0").ok();
    assert_eq!(store.run(["get", "short", "--json"]).json()["value_base64"], "/wA=");
}

#[test]
fn keys_are_bytes() {
    let store = Server::up(&[]);
    let long = "k".repeat(10 << 10);
    for (key, json) in [
        (&b"a\xff\x1b[31m"[..], r#""key_base64":"Yf8bWzMxbQ==""#),
        ("küche/☃".as_bytes(), r#""key":"küche/☃""#),
        (b"-", r#""key":"-""#),
        (long.as_bytes(), "kkkk"),
    ] {
        let with = |words: &[&str], more: &[&str]| -> Ran {
            let key = OsString::from_vec(key.to_vec());
            let words = words.iter().map(OsStr::new).chain([key.as_os_str()]);
            store.run(words.chain(more.iter().map(OsStr::new)))
        };
        let value = format!("{}", key.len());
        with(&["put"], &["--value", &value]).ok();
        assert_eq!(with(&["get"], &[]).text(), value);
        let listed = with(&["ls", "--json"], &[]).text();
        assert!(listed.contains(json), "{listed}");
        let shown = with(&["ls"], &[]).ok();
        assert!(!shown.contains(&0x1b), "a key reached the terminal unescaped");
        assert_eq!(with(&["rm"], &[]).text(), "removed 1\n");
    }
    let dashed = store.run(["put", "--value", "-1", "--", "--key"]);
    assert_eq!(dashed.status, Some(0), "{}", dashed.stderr);
    assert_eq!(store.run([OsStr::from_bytes(b"get"), OsStr::new("--"), OsStr::new("--key")]).ok(), b"-1");
}

#[test]
fn namespaces_do_not_see_each_other() {
    let store = Server::up(&[]);
    store.run(["put", "k", "--value", "ours"]).ok();
    store.run(["put", "k", "--value", "theirs", "--namespace", "other"]).ok();
    assert_eq!(store.run(["get", "k"]).text(), "ours");
    let everything = ["rm", "--prefix", "", "--namespace", "other"];
    assert_eq!(store.run(everything.iter().chain(&["--yes"])).text(), "removed 1\n");
    assert_eq!(store.run(["get", "k"]).text(), "ours");
}

#[test]
fn removing_everything_needs_confirmation() {
    let store = Server::up(&[]);
    for key in ["a", "b"] {
        store.run(["put", key, "--value", "1"]).ok();
    }
    // Whether all objects match is counted, not derived from the expression.
    let expressions = [".*", "(?s).*", "k|.*", "(?:)", ".{0,}", "[^x]|x", "^[ab]$", "\\w"];
    let patterns = expressions.map(|it| ["--regex", it]);
    for [flag, pattern] in patterns.iter().chain(&[["--prefix", ""]]) {
        let error = store.run_with(["rm", flag, pattern, "--json"], b"y\n").error();
        assert_eq!(error["code"], "needs_yes", "{pattern}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("every object in namespace `default`: 2 objects, 2 B"), "{message}");
        assert!(error["hint"].as_str().unwrap().contains("--yes"), "{error}");
    }
    assert_eq!(store.run(["ls", "--json"]).text().lines().count(), 2);
    assert_eq!(store.run(["rm", "--regex", "a"]).text(), "removed 1\n", "another object stays");
    assert_eq!(store.run(["rm", "--prefix", "", "--yes"]).text(), "removed 1\n");
}

#[test]
fn removing_from_an_empty_namespace_succeeds() {
    let store = Server::up(&[]);
    for pattern in [["--prefix", ""], ["--regex", "."]] {
        let ran = store.run(["rm", pattern[0], pattern[1]]);
        assert_eq!(ran.stderr, "nothing to remove: no object in namespace `default` matches\n");
        assert_eq!(ran.text(), "removed 0\n");
    }
}

#[test]
fn long_key_does_not_pad_other_rows() {
    let store = Server::up(&[]);
    let long = "k".repeat(300);
    store.run(["put", "a", "--value", "1", "--pin"]).ok();
    store.run(["put", &long, "--value", "1", "--pin"]).ok();
    for command in ["ls", "pins"] {
        let text = store.run([command]).text();
        let row = text.lines().find(|line| !line.contains(&long) && line.contains("1 B")).unwrap();
        assert!(row.len() < 80, "{row}");
    }
}

#[test]
fn closed_output_pipe_is_not_an_error() {
    let store = Server::up(&[]);
    store.run_with(["put", "k"], &vec![7; 1 << 20]).ok();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = store.client(["get", "k"]);
    let output = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[test]
fn client_waiting_for_input_can_be_interrupted() {
    let store = Server::up(&[]);
    let mut command = store.client(["put", "k"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    // Waiting for the child would close its input first.
    let input = child.stdin.take();
    // It is connected when the master counts two clients; it handles signals before that.
    while store.run(["stat", "--json"]).json()["clients"] != 2 {}
    send(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(input);
    assert_eq!(store.run(["get", "k", "--json"]).error()["code"], "not_found");
}
