//! A short chaos run passes, and notices answers that no correct store gives.

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use crate::{Ran, ran, send, tiffin};

/// Direct I/O needs a real disk.
const FOLDER: &str = env!("CARGO_TARGET_TMPDIR");

/// Few processes and calls: other tests run at the same time.
fn chaos(more: &[&str]) -> Ran {
    let mut command = tiffin();
    command.args(["chaos", "--json", "--seed", "7", "--calls", "20", "--folder", FOLDER]);
    command.args(["--hold", "0s"]).args(more);
    ran(command, b"")
}

fn outcome(ran: &Ran) -> Value {
    serde_json::from_slice(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {}", ran.stderr))
}

#[track_caller]
fn assert_kept(faults: &[&str], clients: &str) {
    let named = faults.iter().flat_map(|it| ["--fault", it]);
    let ran = chaos(&named.chain(["--clients", clients]).collect::<Vec<_>>());
    let outcome = outcome(&ran);
    assert_eq!(outcome["violations"], Value::Array(Vec::new()), "{outcome:#}");
    assert_eq!(ran.status, Some(0), "{outcome:#}");
    let rows = outcome["faults"].as_array().unwrap();
    assert_eq!(rows.len(), faults.len(), "{outcome:#}");
    for row in rows {
        assert_eq!(row["rounds"], 1, "{row:#}");
        // The calls before, during and after the fault.
        assert!(row["calls"].as_u64().unwrap() > 50, "{row:#}");
        for none in ["late", "wrong_bytes", "lost", "resurrected", "undecided", "stuck"] {
            assert_eq!(row[none], 0, "{none}: {row:#}");
        }
    }
    assert_eq!(outcome["seed"], 7);
}

#[test]
fn every_promise_is_kept_under_faults_of_the_master() {
    // A single client: another one may see an unanswered delete that the death of the master undoes.
    assert_kept(&["master-killed", "master-state-deleted"], "1");
}

#[test]
fn every_promise_is_kept_under_faults_of_nodes() {
    assert_kept(&["near-node-killed", "node-stopped", "node-master-cut"], "2");
}

#[test]
fn answer_that_no_store_gives_is_noticed() {
    let ran = chaos(&["--fault", "client-killed", "--clients", "2", "--mutant"]);
    assert_eq!(ran.status, Some(1), "{}", ran.stderr);
    let outcome = outcome(&ran);
    let violations = outcome["violations"].as_array().unwrap();
    assert!(violations.iter().any(|it| it.as_str().unwrap().contains("lost")), "{outcome:#}");
    assert!(outcome["faults"][0]["lost"].as_u64().unwrap() > 0, "{outcome:#}");
    // The command keeps the history for the reader, so the test removes it.
    let text = violations[0].as_str().unwrap();
    let path = std::path::Path::new(text.rsplit('`').nth(1).unwrap());
    assert!(std::fs::read_to_string(path).unwrap().contains("Get"), "{text}");
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

/// The processes whose arguments contain this text.
fn processes_with(text: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let has_text = |path: std::path::PathBuf| {
        let arguments = std::fs::read(path.join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&arguments).contains(text)
    };
    entries.filter(|it| has_text(it.path())).count()
}

#[test]
fn no_process_or_folder_is_left_after_an_interrupt() {
    for (signal, status) in [(Signal::INT, Some(130)), (Signal::KILL, None)] {
        let mut command = tiffin();
        command.args(["chaos", "--fault", "node-stopped", "--rounds", "1000", "--folder", FOLDER]);
        let mut child = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        let folder = format!("tiffin-chaos-{}", child.id());
        // The nodes are started with paths of disks in the folder.
        while processes_with(&folder) < 3 {}
        send(&child, signal);
        assert_eq!(child.wait().unwrap().code(), status);
        while processes_with(&folder) > 0 {}
        let parents = [FOLDER, "/dev/shm"].map(std::path::Path::new);
        for parent in parents.into_iter().filter(|it| it.is_dir()) {
            let path = parent.join(&folder);
            assert_eq!(path.exists(), signal == Signal::KILL, "{signal:?} {path:?}");
            drop(std::fs::remove_dir_all(path));
        }
    }
}

#[test]
fn run_that_would_try_nothing_is_refused() {
    let nothing = [["--rounds", "0"], ["--rounds", "65536"], ["--seconds", "0"], ["--calls", "0"]];
    for args in nothing.into_iter().chain([["--clients", "0"], ["--seconds", "-1"]]) {
        let ran = chaos(&args);
        assert_eq!(ran.status, Some(2), "{args:?}: {}", ran.stderr);
        assert!(ran.stdout.is_empty() && !ran.stderr.contains("every promise"), "{}", ran.stderr);
    }
}
