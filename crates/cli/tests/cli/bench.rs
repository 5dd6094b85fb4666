//! The benchmark measures every workload, and its report is self-contained.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{ran, tiffin};

/// Elements without an end tag.
const VOID: [&str; 1] = ["meta"];

#[test]
fn quick_run_measures_everything_and_plots_it() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let mut command = tiffin();
    command.args(["bench", "--quick", "--json", "--report"]).arg(&page);
    let found = ran(command, b"").json();
    assert_eq!(found["schema"], "tiffin-bench/1");
    let series = found["series"].as_array().unwrap();
    let text = |one: &Value, name: &str| one[name].as_str().unwrap_or_default().to_owned();
    let mut seen = BTreeSet::new();
    for one in series {
        let micros = |name: &str| one["micros"][name].as_f64().unwrap();
        assert!(one["calls"].as_u64().unwrap() > 0, "{one:#}");
        assert!(0.0 < micros("p50") && micros("p50") <= micros("p99"), "{one:#}");
        assert!(micros("p99") <= micros("p999") && micros("p999") <= micros("max"), "{one:#}");
        seen.insert((text(one, "source"), text(one, "shape"), text(one, "workload"), text(one, "keys")));
    }
    for shape in ["same process", "same host", "tcp"] {
        for (workload, keys) in [
            ("put_from", ""),
            ("get_into", "known"),
            ("get_into", "new"),
            ("batch_put_from", ""),
            ("batch_get_into", "known"),
            ("batch_get_into", "new"),
            ("batch_is_exist", ""),
            ("mixed, 4 gets a put", ""),
            ("get_into, Zipf keys", "known"),
            ("sample put", ""),
            ("sample take", ""),
            ("pages put", ""),
            ("pages get", "known"),
        ] {
            let wanted = ("tiffin".to_owned(), shape.to_owned(), workload.to_owned(), keys.to_owned());
            assert!(seen.contains(&wanted), "{wanted:?} is missing in {seen:#?}");
        }
    }
    assert!(series.iter().any(|one| one["source"] == "tiffin" && one["clients"] == 2), "{found:#}");
    check_page(&std::fs::read_to_string(&page).unwrap());
}

#[test]
fn report_merges_files_and_escapes_their_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let micros = r#"{"mean": 2, "p50": 2, "p90": 2, "p99": 3, "p999": 4, "max": 5}"#;
    let series = |source: &str, size: u64| {
        format!(
            r#"{{"source": "{source}", "shape": "same host", "workload": "get_into", "keys": "known",
            "size": {size}, "items": 1, "clients": 1, "calls": 9, "seconds": 1, "bytes_per_second": 1e9,
            "calls_per_second": 1e3, "micros": {micros}}}"#
        )
    };
    let target = r#"{"row": "<script>", "column": "a", "unit": "GB/s", "target": null, "faster": 2,
        "faster_low": 1, "faster_high": 3, "of_floor": 0.9, "p99_faster": 1, "met": true,
        "met_by_floor": true, "p99_met": false, "tiffin": 2, "mooncake": 1}"#;
    for (name, source, targets) in [("a.json", "tiffin", ""), ("b.json", "mooncake", target)] {
        let text = format!(
            r#"{{"schema": "tiffin-bench/1", "kind": "comparison", "made": "now", "later": [1],
            "machine": {{"cpu": "<b>x</b>", "cores": 2, "memory": 3, "kernel": "6"}},
            "targets": [{targets}], "series": [{}, {}]}}"#,
            series(source, 4096),
            series(source, 65536)
        );
        std::fs::write(path(name), text).unwrap();
    }
    let mut command = tiffin();
    command.args(["bench", "report"]).args([path("a.json"), path("b.json")]);
    command.arg("--output").arg(path("page.html"));
    ran(command, b"").ok();
    let page = std::fs::read_to_string(path("page.html")).unwrap();
    check_page(&page);
    for part in ["✓ met", "✗ missed", "&lt;script&gt;", "&lt;b&gt;x", "class=\"peer\"", "90 % of the floor"]
    {
        assert!(page.contains(part), "`{part}` is missing");
    }
}

#[test]
fn file_of_another_format_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.json");
    for text in ["{}", "no json", r#"{"schema": "tiffin-bench/9"}"#] {
        std::fs::write(&path, text).unwrap();
        for arguments in [vec!["bench", "report"], vec!["bench", "--peer"]] {
            let mut command = tiffin();
            command.arg("--json").args(arguments).arg(&path);
            let error = ran(command, b"").error();
            assert_eq!(error["code"], "invalid", "{error}");
            assert!(error["message"].as_str().unwrap().contains("other.json"), "{error}");
        }
    }
}

/// Every element is closed, in order; the page loads and runs nothing.
#[track_caller]
fn check_page(page: &str) {
    assert!(page.starts_with("<!DOCTYPE html>"), "{page}");
    for word in ["http:", "https:", "src=", "href=", "@import", "url(", "<script", "NaN", "inf\""] {
        assert!(!page.contains(word), "`{word}` in the page");
    }
    assert!(page.contains("<svg class=\"plot\"") && page.contains("prefers-color-scheme: dark"));
    let mut open: Vec<&str> = Vec::new();
    for part in page.split('<').skip(1) {
        let (tag, _) = part.split_once('>').unwrap_or_else(|| panic!("`<{part}` does not end"));
        let name = tag.trim_start_matches('/').split([' ', '/', '\n']).next().unwrap();
        if let Some(ended) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(ended), "`</{ended}>` closes another element");
        } else if !tag.starts_with('!') && !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?} are not closed");
}

#[test]
fn measurement_of_nothing_is_refused() {
    let nothing = [["--seconds", "0"], ["--seconds", "-1"], ["--seconds", "nan"], ["--seconds", "1e9"]];
    for args in nothing.into_iter().chain([["--calls", "0"], ["--clients", "0"]]) {
        let mut command = tiffin();
        command.arg("bench").args(args);
        let ran = ran(command, b"");
        assert_eq!(ran.status, Some(2), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(args[0]), "{}", ran.stderr);
    }
}

/// The command that measures a device, with this file as the driver.
fn on_device(device: &str, driver: &str) -> std::process::Command {
    let library = std::env::current_exe().unwrap().with_file_name(driver);
    let mut command = tiffin();
    command.args(["bench", "--quick", "--device", device]).env("TIFFIN_CUDA_LIBRARY", library);
    command
}

#[test]
fn device_is_measured_beside_bare_copies() {
    let mut command = on_device("cuda:1", "libtiffin_gpu_standin.so");
    command.arg("--json");
    let found = ran(command, b"").json();
    assert_eq!(
        (&found["schema"], &found["versions"]["cuda:1"]),
        (&"tiffin-bench/1".into(), &"stand-in".into())
    );
    let text = |one: &Value, name: &str| one[name].as_str().unwrap_or_default().to_owned();
    let series = found["series"].as_array().unwrap();
    let seen: BTreeSet<_> = series
        .iter()
        .map(|one| {
            assert!(one["calls"].as_u64().unwrap() > 0 && one["shape"] == "cuda:1", "{one:#}");
            (text(one, "source"), text(one, "workload"), one["size"].as_u64().unwrap())
        })
        .collect();
    for size in [64 << 10, 1 << 20, 16 << 20, 64 << 20] {
        for (source, workload) in [("tiffin", "put"), ("tiffin", "get"), ("floor", "save"), ("floor", "load")]
        {
            assert!(seen.contains(&(source.to_owned(), workload.to_owned(), size)), "{workload} of {size}");
        }
    }
    let table = ran(on_device("cuda", "libtiffin_gpu_standin.so"), b"").text();
    assert!(table.starts_with("cuda:0 ") && table.contains("of floor") && table.contains(" %"), "{table}");
}

#[test]
fn missing_driver_or_device_is_an_error_with_a_hint() {
    for (device, driver, what) in [
        ("cuda:0", "no-such-driver.so", "cannot be used"),
        ("cuda:7", "libtiffin_gpu_standin.so", "no device cuda:7: the CUDA driver has 2"),
    ] {
        let mut command = on_device(device, driver);
        command.arg("--json");
        let error = ran(command, b"").error();
        let text = error["message"].as_str().unwrap();
        assert!(text.contains(what), "{error:#}");
        assert!(error["hint"].as_str().unwrap().contains("tiffin doctor"), "{error:#}");
    }
    for (device, more) in [("gpu", vec![]), ("cuda:x", vec![]), ("cuda:0", vec!["--shape", "tcp"])] {
        let mut command = on_device(device, "libtiffin_gpu_standin.so");
        command.args(more);
        assert_eq!(ran(command, b"").status, Some(2), "{device}");
    }
}
