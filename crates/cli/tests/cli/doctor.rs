//! The doctor, on the machine of the test.

use crate::{ran, tiffin};

#[test]
fn doctor_checks_everything_and_gives_hints() {
    let mut command = tiffin();
    command.args(["doctor", "--memory", "1MiB", "--json"]);
    let found = ran(command, b"");
    let report: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    for name in
        ["shared memory", "descriptors", "process handles", "io_uring", "locked memory", "memory", "a store"]
    {
        assert!(checks.iter().any(|check| check["name"] == name), "{name}: {report}");
    }
    let stale = ["makes no use of", "will need", "a store on disk will"];
    for check in checks {
        let text = format!("{} {}", check["found"], check["hint"]);
        assert!(!stale.iter().any(|word| text.contains(word)), "{check}");
        let is_ok = check["verdict"] == "ok";
        assert!(is_ok || ["limited", "missing"].map(Into::into).contains(&check["verdict"]), "{check}");
        assert_eq!(check["hint"].is_null(), is_ok, "{check}");
    }
    let works = checks.iter().all(|check| check["verdict"] != "missing");
    assert_eq!(report["works"], works);
    assert_eq!(found.status, Some(i32::from(!works)));
}

#[test]
fn missing_requirement_is_a_failure() {
    let mut command = tiffin();
    command.args(["doctor", "--memory", "32TiB"]);
    let found = ran(command, b"");
    let text = String::from_utf8(found.stdout).unwrap();
    assert_eq!(found.status, Some(1), "{text}");
    assert!(text.contains("MISSING  memory") && text.contains("hint: ask for less"), "{text}");
}
