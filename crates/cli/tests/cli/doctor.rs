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

/// The check of GPUs with this file as the driver.
fn gpu_checks(driver: &str) -> Vec<serde_json::Value> {
    let library = std::env::current_exe().unwrap().with_file_name(driver);
    let mut command = tiffin();
    command.args(["doctor", "--memory", "1MiB", "--json"]).env("TIFFIN_CUDA_LIBRARY", library);
    let report: serde_json::Value = serde_json::from_slice(&ran(command, b"").stdout).unwrap();
    let checks = report["checks"].as_array().unwrap().iter();
    checks.filter(|check| check["name"] == "gpu").cloned().collect()
}

#[test]
fn gpus_are_checked_and_measured() {
    let checks = gpu_checks("libtiffin_gpu_standin.so");
    assert_eq!(checks.len(), 2, "the devices of the stand-in");
    for (number, check) in checks.iter().enumerate() {
        let found = check["found"].as_str().unwrap();
        assert!(found.starts_with(&format!("cuda:{number}, stand-in, 1.0 GiB, CUDA 13.0: ")), "{found}");
        assert!(found.contains("segments are accessed directly, save "), "{found}");
    }
    let checks = gpu_checks("no-such-driver.so");
    assert_eq!(checks[0]["verdict"], "limited", "{checks:?}");
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
