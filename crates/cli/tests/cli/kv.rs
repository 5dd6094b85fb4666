//! `tiffin kv replay`, on made traces and on files.

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
fn two_policies_stand_side_by_side_and_the_report_needs_nothing() {
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
}

#[test]
fn a_replay_in_json_is_the_same_every_time() {
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
fn a_trace_that_does_not_parse_is_named_by_its_line() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("trace.jsonl");
    let good = r#"{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}"#;
    std::fs::write(&path, format!("{good}\nnonsense\n")).unwrap();
    let path = path.to_str().unwrap();
    let error = run(&["kv", "replay", "--json", path]).error();
    assert!(error["message"].as_str().unwrap().contains("line 2 is no request"), "{error}");
    assert!(error["hint"].as_str().unwrap().contains("JSON object"), "{error}");
    let error = run(&["kv", "replay", "--json", path, "--device-pages", "0"]).error();
    assert!(error["message"].as_str().unwrap().contains("line 2"), "{error}");
}
