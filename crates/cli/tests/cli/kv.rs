//! `tiffin kv replay`, on generated traces and on files.

use tempfile::TempDir;

use crate::{Ran, ran, tiffin};

const SMALL: [&str; 8] =
    ["--generate", "120", "--device-pages", "300", "--host-pages", "300", "--l3", "infinite"];

fn run(args: &[&str]) -> Ran {
    let mut command = tiffin();
    command.args(args);
    ran(command, b"")
}

#[test]
fn policies_are_compared_and_the_report_is_standalone() {
    let folder = TempDir::new().unwrap();
    let page = folder.path().join("report.html");
    let mut args = vec!["kv", "replay"];
    args.extend(SMALL);
    args.extend(["--policy", "eviction=lru", "--policy", "eviction=s3-fifo,index=flat", "--output"]);
    args.push(page.to_str().unwrap());
    let text = run(&args).text();
    for word in ["eviction=lru, no prefetch", "eviction=s3-fifo,index=flat", "infinite device", "TTFT p99"] {
        assert!(text.contains(word), "{word}:\n{text}");
    }
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.starts_with("<!DOCTYPE html>") && html.contains("<svg") && !html.contains("http"));
    let version = format!("<dd>tiffin {}</dd>", env!("CARGO_PKG_VERSION"));
    let command = "<dd>tiffin kv replay --generate 120 --seed 1 --rate 2 --device-pages 300";
    let policies = "--policy eviction=lru --policy eviction=s3-fifo,index=flat</dd>";
    for part in ["generated: 120 requests, 2 a second, seed 1", command, policies, &version, "<dt>When</dt>"]
    {
        assert!(html.contains(part), "{part}:\n{html}");
    }
}

#[test]
fn refused_requests_are_shown_and_missing_values_are_dashes() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("trace.jsonl");
    let short = r#"{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}"#;
    let long = r#"{"timestamp": 9, "input_length": 2560, "output_length": 1, "hash_ids": [1, 2, 3, 4, 5]}"#;
    std::fs::write(&path, format!("{short}\n{long}\n")).unwrap();
    let path = path.to_str().unwrap();
    let page = folder.path().join("report.html");
    let small = ["--device-pages", "3", "--host-pages", "0", "--l3", "none", "--output"];
    let replayed = run(&[&["kv", "replay", path], &small[..], &[page.to_str().unwrap()]].concat());
    let html = std::fs::read_to_string(page).unwrap();
    let counts = "2 in the trace; 1 compared; refused: 1 by eviction=lru; 1 by eviction=lru, no prefetch";
    assert!(html.contains(counts) && html.contains("trace.jsonl`</dd>"), "{html}");
    assert!(
        replayed.stderr.contains("note: hits and times cover the 1 of 2 requests"),
        "{}",
        replayed.stderr
    );
    let text = replayed.text();
    let row = |name: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
        line.split_once(name)
            .unwrap()
            .1
            .split("  ")
            .map(str::trim)
            .filter(|it| !it.is_empty())
            .collect::<Vec<_>>()
    };
    assert_eq!(row("requests"), ["2", "2", "2"]);
    assert_eq!(row("served"), ["1", "1", "2"]);
    assert_eq!(row("refused"), ["1", "1", "0"]);
    assert_eq!(row("compared"), ["1", "1", "1"]);
    for name in ["host ", "store ", "prefetch accuracy", "prefetch in time"] {
        assert_eq!(row(name), ["-", "-", "-"], "{text}");
    }
}

#[test]
fn json_of_a_replay_is_deterministic() {
    let mut args = vec!["kv", "replay", "--json"];
    args.extend(SMALL);
    let replay = || {
        let mut value = run(&args).json();
        for report in ["policy", "no_prefetch", "infinite"] {
            assert!(value["policies"][0][report]["wall_seconds"].take().is_f64());
        }
        value
    };
    let once = replay();
    assert_eq!(once["policies"][0]["policy"]["requests"], 120);
    assert_eq!(once, replay());
}

#[test]
fn invalid_trace_is_reported_with_its_line() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("trace.jsonl");
    let good = r#"{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}"#;
    std::fs::write(&path, format!("{good}\nnonsense\n")).unwrap();
    let path = path.to_str().unwrap();
    let error = run(&["kv", "replay", "--json", path]).error();
    assert!(error["message"].as_str().unwrap().contains("line 2 is not a request"), "{error}");
    assert!(error["hint"].as_str().unwrap().contains("JSON object"), "{error}");
    let error = run(&["kv", "replay", "--json", path, "--device-pages", "0"]).error();
    assert!(error["message"].as_str().unwrap().contains("line 2"), "{error}");
}
