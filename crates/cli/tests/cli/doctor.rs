//! The doctor looks at whatever machine this is.

use crate::{ran, tiffin};

#[test]
fn the_doctor_gives_a_verdict_on_everything_and_a_hint_where_it_is_needed() {
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
        let said = format!("{} {}", check["found"], check["hint"]);
        assert!(!stale.iter().any(|word| said.contains(word)), "{check}");
        let is_ok = check["verdict"] == "ok";
        assert!(is_ok || ["limited", "missing"].map(Into::into).contains(&check["verdict"]), "{check}");
        assert_eq!(check["hint"].is_null(), is_ok, "{check}");
    }
    let works = checks.iter().all(|check| check["verdict"] != "missing");
    assert_eq!(report["works"], works);
    assert_eq!(found.status, Some(i32::from(!works)));
}

#[test]
fn what_a_store_cannot_do_without_is_a_failure() {
    let mut command = tiffin();
    command.args(["doctor", "--memory", "32TiB"]);
    let found = ran(command, b"");
    let text = String::from_utf8(found.stdout).unwrap();
    assert_eq!(found.status, Some(1), "{text}");
    assert!(text.contains("MISSING  memory") && text.contains("hint: ask for less"), "{text}");
}
