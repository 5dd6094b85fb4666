//! Pins, quotas, waiting puts, and the reasons of removals.

use expect_test::expect;

use crate::{Server, without_generations};

/// The output of `why`, with variable parts masked.
fn why(store: &Server, key: &str) -> String {
    let text = store.run(["why", key]).text();
    let mut shown = String::new();
    for line in text.lines() {
        let mut parts = line.split("process ");
        let first = parts.next().unwrap_or_default().to_owned();
        let digits = |part: &str| part.trim_start_matches(|c: char| c.is_ascii_digit()).to_owned();
        let masked = parts.fold(first, |line, part| format!("{line}process N{}", digits(part)));
        shown.push_str(&format!("{masked}\n"));
    }
    without_generations(&shown)
}

#[test]
fn why_shows_what_keeps_and_what_removed_an_object() {
    let store = Server::up(&["--name", "here"]);
    assert!(why(&store, "k").starts_with("`k` is unknown"), "{}", why(&store, "k"));
    store.run(["put", "k", "--value", "one", "--pin", "--owner", "run-7"]).ok();
    store.run(["get", "k"]).ok();
    expect![[r#"
        `k` exists: generation G.0, 3 B
          kept     until it is unpinned or removed: pinned objects are never evicted
          nodes    `here`
          pins     `run-7`
          put      just now by `tiffin, process N`
          used     just now by `tiffin, process N`
    "#]]
    .assert_eq(&why(&store, "k"));
    store.run(["rm", "k"]).ok();
    expect![[r#"
        `k` is gone: generation G.0 was removed by `tiffin, process N`, just now
          used     last by `tiffin, process N`
    "#]]
    .assert_eq(&why(&store, "k"));
    let json = store.run(["why", "k", "never", "--json"]).text();
    let lines: Vec<serde_json::Value> =
        json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["state"], &lines[0]["cause"]), (&"gone".into(), &"deleted".into()), "{json}");
    assert_eq!((&lines[1]["state"], &lines[1]["key"]), (&"unknown".into(), &"never".into()), "{json}");
}

#[test]
fn evicted_object_is_explained() {
    let store = Server::up(&[]);
    let large = vec![1; 20 << 20];
    store.run_with(["put", "old"], &large).ok();
    store.run_with(["put", "new"], &large).ok();
    let gone = why(&store, "old");
    assert!(gone.contains("was evicted to free space on `127.0.0.1"), "{gone}");
    assert!(gone.contains("for a put of `new` by `tiffin, process N`"), "{gone}");
    let json = store.run(["why", "old", "--json"]).json();
    assert_eq!((&json["cause"], &json["for"]), (&"evicted".into(), &"new".into()), "{json}");
    assert!(why(&store, "new").contains("until space is needed"), "{}", why(&store, "new"));
}

#[test]
fn pins_of_an_owner_are_dropped_together() {
    let store = Server::up(&[]);
    for key in ["a", "b", "c"] {
        store.run(["put", key, "--value", key]).ok();
    }
    assert_eq!(store.run(["pin", "a", "b", "--owner", "run-1"]).text(), "pinned 2\n");
    assert_eq!(store.run(["pin", "b"]).text(), "pinned 1\n");
    expect![[r#"
        size    owners  key
         1 B     run-1  a
         1 B  run-1, -  b
    "#]]
    .assert_eq(&store.run(["pins"]).text());
    assert_eq!(store.run(["pins", "--owner", "", "--json"]).json()["key"], "b");
    let nothing = "nothing was unpinned: 2 were not pinned by owner `nobody`\n";
    assert_eq!(store.run(["unpin", "a", "b", "--owner", "nobody"]).text(), nothing);
    let json = store.run(["unpin", "a", "--owner", "nobody", "--json"]).json();
    assert_eq!((&json["unpinned"], &json["not_pinned"]), (&0.into(), &1.into()));
    let nothing = "nothing was unpinned: owner `nobody` has no pin in namespace `default`\n";
    assert_eq!(store.run(["pins", "--owner", "nobody", "--drop"]).text(), nothing);
    assert_eq!(
        store.run(["unpin", "a", "c", "--owner", "run-1"]).text(),
        "unpinned 1, 1 was not pinned by owner `run-1`\n"
    );
    assert_eq!(store.run(["pins", "--owner", "run-1", "--drop", "--json"]).json()["unpinned"], 1);
    let none = store.run(["pins", "--owner", "run-1"]);
    assert_eq!(none.stderr, "nothing in namespace `default` is pinned by owner `run-1`\n");
    assert_eq!(none.text(), "");
    assert_eq!(store.run(["pins", "--json"]).json()["pins"], serde_json::json!([""]));
    let absent = store.run(["pin", "nothing", "--json"]);
    assert!(absent.stderr.contains("not_found"), "{}", absent.stderr);
    assert_eq!(absent.status, Some(1));
}

#[test]
fn pinned_object_is_not_evicted_until_unpinned() {
    let store = Server::up(&[]);
    let large = vec![1; 20 << 20];
    store.run_with(["put", "kept"], &large).ok();
    store.run(["pin", "kept", "--owner", "run"]).ok();
    assert_eq!(store.run_with(["put", "more", "--json"], &large).error()["code"], "full");
    store.run(["unpin", "kept", "--owner", "run"]).ok();
    store.run_with(["put", "more"], &large).ok();
    assert_eq!(store.run(["get", "kept", "--json"]).error()["code"], "not_found");
}

#[test]
fn namespace_respects_its_quota() {
    let store = Server::up(&[]);
    let run = |args: &[&str]| store.run(args.iter().chain(&["--namespace", "small"]));
    assert_eq!(run(&["quota"]).text(), "namespace `small` holds 0 B, no quota\n");
    assert_eq!(run(&["quota", "--set", "1KiB"]).text(), "namespace `small` holds 0 B, of 1.0 KiB\n");
    run(&["put", "a", "--value", &"x".repeat(1000), "--pin"]).ok();
    let error = run(&["put", "b", "--value", "y", "--json"]).error();
    assert_eq!(error["code"], "over_quota", "{error}");
    assert_eq!(run(&["quota", "--json", "--max-hold", "1h"]).json()["quota"], 1024);
    store.run(["put", "b", "--value", "others may", "--pin"]).ok();
    let stat = store.run(["stat"]).text();
    let row = stat.lines().find(|line| line.starts_with("small")).unwrap_or_default();
    let words: Vec<_> = row.split_whitespace().collect();
    assert_eq!(words.join(" "), "small 1 1000 B 1.0 KiB 0 B 1.0 KiB - 0 0 - 0", "{stat}");
    run(&["quota", "--none"]).ok();
    run(&["put", "b", "--value", "y"]).ok();
    let guaranteed = run(&["quota", "--guaranteed", "1KiB"]).text();
    assert!(guaranteed.contains("no quota, 1.0 KiB guaranteed"), "{guaranteed}");
    assert_eq!(run(&["quota", "--no-guaranteed", "--json"]).json()["guaranteed"], serde_json::json!(null));
}

#[test]
fn quota_changes_only_the_named_limits() {
    let store = Server::up(&[]);
    let limits = |args: &[&str]| {
        let json = store.run(["quota", "--json"].iter().chain(args)).json();
        (json["quota"].as_u64(), json["max_hold_ms"].as_u64(), json["demotion"].as_str().map(str::to_owned))
    };
    let never = Some("never".to_owned());
    limits(&["--set", "1KiB", "--demotion", "never"]);
    assert_eq!(limits(&["--max-hold", "1m"]), (Some(1024), Some(60_000), never.clone()));
    assert_eq!(limits(&["--set", "2KiB"]), (Some(2048), Some(60_000), never.clone()));
    assert_eq!(limits(&["--none"]), (None, Some(60_000), never.clone()));
    assert_eq!(limits(&["--no-max-hold"]), (None, None, never));
}

#[test]
fn put_waits_for_space_and_continues() {
    let store = Server::up(&[]);
    let large = vec![1; 20 << 20];
    store.run_with(["put", "first", "--pin"], &large).ok();
    let late = store.run_with(["put", "late", "--wait", "--timeout", "300ms", "--json"], &large).error();
    // On a busy machine the answer may come too late.
    assert!(late["code"] == "full" || late["code"] == "timeout", "{late}");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| store.run_with(["put", "second", "--wait", "--timeout", "60s"], &large));
        let waits = || store.run(["stat", "--json"]).json()["namespaces"][0]["waiting"].clone();
        while waits() != 1 {}
        store.run(["rm", "first"]).ok();
        assert!(waiting.join().unwrap().text().starts_with("created `second`"));
    });
    assert!(store.run(["get", "second"]).ok() == large);
}
