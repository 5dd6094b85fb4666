//! Memory usage follows the samples in flight, independent of the lease time.

use crate::{ran, tiffin};

#[test]
fn both_curves_are_equal_and_follow_the_samples() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plot.svg");
    let mut command = tiffin();
    let small = ["curve", "--json", "--samples", "60", "--in-flight", "8", "--scale", "256"];
    command.args(small).arg("--output").arg(&file);
    let outcome = ran(command, b"").json();
    assert_eq!((&outcome["same"], &outcome["good"]), (&true.into(), &true.into()), "{outcome:#}");
    for run in outcome["runs"].as_array().unwrap() {
        let bytes = |name: &str| run[name].as_u64().unwrap();
        assert!(bytes("peak") > 0 && bytes("produced") > 2 * bytes("peak"), "{outcome:#}");
    }
    let plot = std::fs::read_to_string(&file).unwrap();
    assert!(plot.starts_with("<svg") && plot.trim_end().ends_with("</svg>"), "{plot}");
}

#[test]
fn unwritable_plot_is_named() {
    let mut command = tiffin();
    command.args(["curve", "--json", "--samples", "1", "--scale", "1024", "--output", "/nowhere/at/all.svg"]);
    let error = ran(command, b"").error();
    assert_eq!(error["code"], "file", "{error}");
    assert!(error["message"].as_str().unwrap().contains("/nowhere/at/all.svg"), "{error}");
}
