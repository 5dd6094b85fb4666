//! The torture run passes on a correct store, and notices injected errors.

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use crate::{Ran, Server, ran, send, tiffin};

const WAYS: [&str; 5] = ["shared_memory", "tcp", "ranges", "views", "views_again"];

/// Few processes: other tests run at the same time.
fn torture(more: &[&str]) -> Ran {
    let mut command = tiffin();
    let small =
        ["torture", "--json", "--readers", "2", "--writers", "2", "--keys", "256", "--memory", "8MiB"];
    command.args(small).args(["--kill-every", "100ms", "--seconds", "3600"]).args(more);
    ran(command, b"")
}

fn sum(values: &Value, names: &[&str]) -> u64 {
    names.iter().map(|name| values[name].as_u64().unwrap()).sum()
}

#[test]
fn every_way_of_reading_is_verified_without_errors() {
    let outcome = torture(&["--seed", "7", "--reads", "4000"]).json();
    let reads = &outcome["reads"];
    assert!(sum(reads, &WAYS) >= 4000, "{outcome:#}");
    for way in WAYS {
        assert!(sum(reads, &[way]) > 0, "{way}: {outcome:#}");
    }
    assert_eq!(outcome["wrong"], Value::Array(Vec::new()), "{outcome:#}");
    for kind in ["readers", "writers", "nodes"] {
        assert!(sum(&outcome["kills"], &[kind]) > 0, "{kind}: {outcome:#}");
    }
    let rest = &outcome["rest"];
    assert_eq!(rest["live"], rest["in_use"], "{outcome:#}");
    assert_eq!(sum(rest, &["reserved", "in_view", "left"]), 0, "{outcome:#}");
    assert_eq!(outcome["seed"], 7);
}

#[test]
fn mixture_of_two_versions_is_noticed() {
    let ran = torture(&["--reads", "1000000", "--mutant", "mix"]);
    assert_eq!(ran.status, Some(1), "{}", ran.stderr);
    let outcome: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let wrong = outcome["wrong"].as_array().unwrap();
    assert!(wrong.iter().any(|it| it.as_str().unwrap().contains("has wrong bytes from byte")), "{outcome:#}");
}

#[test]
fn memory_of_an_open_view_is_noticed() {
    let ran = torture(&["--reads", "100", "--mutant", "leak"]);
    assert_eq!(ran.status, Some(1), "{}", ran.stderr);
    let outcome: Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(outcome["wrong"], Value::Array(Vec::new()), "{outcome:#}");
    assert_eq!(sum(&outcome["rest"], &["in_view"]), 4096, "{outcome:#}");
}

#[test]
fn running_store_is_tested_in_its_own_namespace() {
    let store = Server::up(&[]);
    store.run(["put", "theirs", "--value", "v", "--pin"]).ok();
    let outcome = torture(&["--reads", "500", "--master", store.address()]).json();
    assert_eq!(sum(&outcome["kills"], &["nodes"]), 0, "{outcome:#}");
    assert_eq!(outcome["rest"]["live"], outcome["rest"]["in_use"], "{outcome:#}");
    assert_eq!(store.run(["get", "theirs"]).text(), "v");
    let stat = store.run(["stat", "--json"]).json();
    assert_eq!(stat["nodes"][0]["usage"]["objects"], 1, "{stat:#}");
}

#[test]
fn no_process_is_left_after_interrupt_or_kill() {
    let store = Server::up(&[]);
    let clients = || store.run(["stat", "--json"]).json()["clients"].as_u64().unwrap();
    for (signal, status) in [(Signal::INT, Some(130)), (Signal::KILL, None)] {
        let mut command = tiffin();
        command.args(["torture", "--reads", "1000000000", "--master", store.address()]);
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        // Some of its workers are connected, besides itself and the client that asks.
        while clients() < 4 {}
        send(&child, signal);
        assert_eq!(child.wait().unwrap().code(), status);
        while clients() != 1 {}
    }
}
