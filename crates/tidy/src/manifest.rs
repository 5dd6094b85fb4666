//! Rules for manifests: the direction of dependencies, and one version for all crates.

use toml::{Table, Value};

use crate::tree::File;

/// How the source of a test begins.
const TEST_MARKS: [&str; 3] = ["#[test]", "#[tokio::test", "proptest!"];

/// Allowed dependencies of each crate. They only point down: bytes and decisions meet in the shells.
pub const DIRECTION: [(&str, &[&str]); 31] = [
    ("tiffin-mutants", &[]),
    ("tiffin-history", &[]),
    ("tiffin-measure", &[]),
    ("tiffin-sim-runner", &[]),
    ("tiffin-smoke", &[]),
    ("tiffin-throttle", &["tiffin-mutants"]),
    ("tiffin-types", &["tiffin-measure", "tiffin-mutants"]),
    ("tiffin-session", &["tiffin-mutants", "tiffin-types"]),
    ("tiffin-core", &["tiffin-mutants", "tiffin-throttle", "tiffin-types"]),
    ("tiffin-node", &["tiffin-mutants", "tiffin-types"]),
    ("tiffin-gpu", &[]),
    ("tiffin-gpu-standin", &[]),
    ("tiffin-transport", &["tiffin-gpu", "tiffin-measure", "tiffin-tls"]),
    ("tiffin-ssd", &["tiffin-mutants", "tiffin-throttle"]),
    ("tiffin-tidy", &[]),
    ("tiffin-tls", &[]),
    ("tiffin-etcd", &["tiffin-tls"]),
    ("tiffin-kv", &["tiffin-mutants"]),
    ("tiffin-kv-sim", &["tiffin-kv", "tiffin-sim-runner"]),
    ("tiffin-kv-replay", &["tiffin-kv"]),
    ("tiffin-proto", &["tiffin-types"]),
    ("tiffin-trace", &["tiffin-types"]),
    ("tiffin-report", &["tiffin-types", "tiffin-kv-replay"]),
    (
        "tiffin-sim",
        &[
            "tiffin-core",
            "tiffin-node",
            "tiffin-session",
            "tiffin-proto",
            "tiffin-history",
            "tiffin-sim-runner",
            "tiffin-throttle",
            "tiffin-types",
        ],
    ),
    (
        "tiffin-rpc",
        &["tiffin-types", "tiffin-etcd", "tiffin-proto", "tiffin-tls", "tiffin-trace", "tiffin-transport"],
    ),
    (
        "tiffin-server",
        &[
            "tiffin-types",
            "tiffin-core",
            "tiffin-node",
            "tiffin-etcd",
            "tiffin-measure",
            "tiffin-proto",
            "tiffin-tls",
            "tiffin-trace",
            "tiffin-transport",
            "tiffin-rpc",
            "tiffin-ssd",
            "tiffin-throttle",
        ],
    ),
    (
        "tiffin-client",
        &[
            "tiffin-types",
            "tiffin-session",
            "tiffin-measure",
            "tiffin-proto",
            "tiffin-tls",
            "tiffin-trace",
            "tiffin-transport",
            "tiffin-rpc",
        ],
    ),
    ("tiffin-embedded", &["tiffin-client", "tiffin-server"]),
    ("tiffin-kv-exec", &["tiffin-kv", "tiffin-client", "tiffin-transport"]),
    (
        "tiffin-cli",
        &[
            "tiffin-types",
            "tiffin-server",
            "tiffin-client",
            "tiffin-embedded",
            "tiffin-history",
            "tiffin-kv",
            "tiffin-kv-replay",
            "tiffin-report",
            "tiffin-tls",
        ],
    ),
    (
        "tiffin-python",
        &[
            "tiffin-types",
            "tiffin-client",
            "tiffin-server",
            "tiffin-embedded",
            "tiffin-cli",
            "tiffin-kv",
            "tiffin-kv-exec",
            "tiffin-tls",
        ],
    ),
];

/// The crates that decide, without I/O.
const DECIDING_CRATES: [&str; 6] =
    ["tiffin-types", "tiffin-session", "tiffin-core", "tiffin-node", "tiffin-throttle", "tiffin-kv"];

/// Dependencies that would add a clock, randomness, tasks or logs to them.
const DECIDING_FORBIDDEN: [&str; 5] = ["rand", "serde", "tokio", "tracing", "libc"];

/// All problems of the manifest `text` of one crate.
#[must_use]
pub fn check(path: &str, text: &str) -> Vec<String> {
    let manifest: Table = match text.parse() {
        Ok(manifest) => manifest,
        Err(error) => return vec![format!("{path}:1: {error}")],
    };
    let Some(name) = text_at(&manifest, &["package", "name"]) else {
        return Vec::new();
    };
    let mut problems = Vec::new();
    if !matches!(at(&manifest, &["lints", "workspace"]), Some(Value::Boolean(true))) {
        problems.push(format!("{path}:1: `{name}` does not inherit the lints of the workspace"));
    }
    if !matches!(at(&manifest, &["package", "version", "workspace"]), Some(Value::Boolean(true))) {
        problems.push(format!("{path}:1: `{name}` does not inherit the version of the workspace"));
    }
    let Some((_, allowed)) = DIRECTION.iter().find(|(known, _)| *known == name) else {
        problems.push(format!("{path}:1: `{name}` is not in the list of allowed dependencies"));
        return problems;
    };
    for need in needs(&manifest) {
        if need.starts_with("tiffin-") && !allowed.contains(&need.as_str()) {
            problems.push(format!("{path}:1: `{name}` must not depend on `{need}`"));
        }
        if DECIDING_CRATES.contains(&name.as_str()) && DECIDING_FORBIDDEN.contains(&need.as_str()) {
            problems.push(format!("{path}:1: `{name}` decides, and must not depend on `{need}`"));
        }
    }
    problems
}

/// The drop-in wheel must have the same version as the native one.
#[must_use]
pub fn check_versions(workspace: &str, path: &str, pyproject: &str) -> Vec<String> {
    let version =
        workspace.parse().ok().and_then(|w: Table| text_at(&w, &["workspace", "package", "version"]));
    let Some((version, project)) = version.zip(pyproject.parse::<Table>().ok()) else {
        return vec![format!("{path}:1: the version of the workspace or the project cannot be read")];
    };
    let mut problems = Vec::new();
    if text_at(&project, &["project", "version"]).as_deref() != Some(version.as_str()) {
        problems.push(format!("{path}:1: the version is not that of the workspace, {version}"));
    }
    let wanted = Value::String(format!("tiffin=={version}"));
    let needs = at(&project, &["project", "dependencies"]).and_then(Value::as_array);
    if !needs.is_some_and(|needs| needs.contains(&wanted)) {
        problems.push(format!("{path}:1: does not depend on {wanted}"));
    }
    problems
}

/// Tests and examples in the sources that no command runs, because the manifest switches off the tests
/// (`test = false`) or examples (`doctest = false`) of their target. Crates that have none switch them off,
/// so that nothing is compiled for an empty run.
#[must_use]
pub fn hidden_tests(path: &str, text: &str, files: &[File]) -> Vec<String> {
    let manifest: Table = text.parse().unwrap_or_default();
    let folder = path.strip_suffix("Cargo.toml").unwrap_or(path);
    let is_off = |target: &Value, what: &str| target.get(what).and_then(Value::as_bool) == Some(false);
    let mut problems = Vec::new();
    if let Some(library) = manifest.get("lib") {
        let sources = format!("{folder}src/");
        for file in files.iter().filter(|it| it.path.starts_with(&sources)) {
            if is_off(library, "test") && TEST_MARKS.iter().any(|it| file.text.contains(it)) {
                problems.push(format!("{}:1: has tests, which `test = false` in {path} hides", file.path));
            }
            if is_off(library, "doctest") && has_examples(&file.text) {
                problems
                    .push(format!("{}:1: has examples, which `doctest = false` in {path} hides", file.path));
            }
        }
    }
    for program in manifest.get("bin").and_then(Value::as_array).into_iter().flatten() {
        let Some(source) = program.get("path").and_then(Value::as_str) else { continue };
        let file = files.iter().find(|it| it.path.strip_prefix(folder) == Some(source));
        if is_off(program, "test")
            && file.is_some_and(|it| TEST_MARKS.iter().any(|mark| it.text.contains(mark)))
        {
            problems.push(format!("{folder}{source}:1: has tests, which `test = false` in {path} hides"));
        }
    }
    problems
}

/// Whether a doc comment has a block of code.
fn has_examples(text: &str) -> bool {
    text.lines().map(str::trim_start).any(|line| {
        let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        comment.is_some_and(|it| it.trim_start().starts_with("```"))
    })
}

/// Those of the folders that a plain `cargo build` does not build.
#[must_use]
pub fn missing_default_members<'a>(workspace: &str, folders: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let workspace: Table = workspace.parse().unwrap_or_default();
    let members = at(&workspace, &["workspace", "default-members"]).and_then(Value::as_array);
    let is_member = |folder: &str| members.is_some_and(|it| it.iter().any(|it| it.as_str() == Some(folder)));
    let mut missing: Vec<_> = folders.filter(|it| !is_member(it)).collect();
    missing.sort_unstable();
    missing
}

/// All dependencies except those of tests, which may point anywhere.
fn needs(manifest: &Table) -> Vec<String> {
    let mut tables = vec![manifest];
    if let Some(Value::Table(targets)) = manifest.get("target") {
        tables.extend(targets.values().filter_map(Value::as_table));
    }
    let mut needs = Vec::new();
    for table in tables {
        for section in ["dependencies", "build-dependencies"] {
            let Some(Value::Table(section)) = table.get(section) else { continue };
            needs.extend(section.iter().map(|(name, value)| {
                let renamed = value.get("package").and_then(Value::as_str);
                renamed.unwrap_or(name).to_owned()
            }));
        }
    }
    needs
}

fn at<'a>(table: &'a Table, path: &[&str]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(table.get(*first)?, |value, key| value.get(key))
}

fn text_at(table: &Table, path: &[&str]) -> Option<String> {
    at(table, path).and_then(Value::as_str).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn expect(name: &str, dependencies: &str, problems: &[&str]) {
        let head = format!("[package]\nname = '{name}'\nversion.workspace = true");
        let manifest = format!("{head}\n[lints]\nworkspace = true\n{dependencies}\n");
        assert_eq!(check("Cargo.toml", &manifest), problems, "{manifest}");
    }

    #[test]
    fn dependencies_only_point_down() {
        expect("tiffin-proto", "[dependencies]\ntiffin-types.workspace = true", &[]);
        expect(
            "tiffin-core",
            "[dependencies]\ntiffin-proto.workspace = true",
            &["Cargo.toml:1: `tiffin-core` must not depend on `tiffin-proto`"],
        );
        expect(
            "tiffin-transport",
            "[dependencies]\ncore = { package = 'tiffin-core', path = '.' }",
            &["Cargo.toml:1: `tiffin-transport` must not depend on `tiffin-core`"],
        );
        expect(
            "tiffin-node",
            "[dependencies]\ntiffin-core.workspace = true",
            &["Cargo.toml:1: `tiffin-node` must not depend on `tiffin-core`"],
        );
        expect(
            "tiffin-core",
            "[dependencies]\ntiffin-node.workspace = true",
            &["Cargo.toml:1: `tiffin-core` must not depend on `tiffin-node`"],
        );
        expect(
            "tiffin-sim",
            "[target.'cfg(unix)'.dependencies]\ntiffin-server = '1'",
            &["Cargo.toml:1: `tiffin-sim` must not depend on `tiffin-server`"],
        );
        expect("tiffin-core", "[dev-dependencies]\ntiffin-proto.workspace = true\nrand = '1'", &[]);
    }

    #[test]
    fn decisions_have_no_clock_randomness_or_tasks() {
        for (name, forbidden) in DECIDING_CRATES.iter().flat_map(|it| DECIDING_FORBIDDEN.map(|bad| (it, bad)))
        {
            let problem = format!("Cargo.toml:1: `{name}` decides, and must not depend on `{forbidden}`");
            expect(name, &format!("[dependencies]\n{forbidden}.workspace = true"), &[&problem]);
        }
    }

    #[test]
    fn new_crate_must_be_listed() {
        expect("tiffin-x", "", &["Cargo.toml:1: `tiffin-x` is not in the list of allowed dependencies"]);
    }

    #[test]
    fn lints_and_version_come_from_the_workspace() {
        assert_eq!(
            check("Cargo.toml", "[package]\nname = 'tiffin-core'\nversion = '1'\n"),
            [
                "Cargo.toml:1: `tiffin-core` does not inherit the lints of the workspace",
                "Cargo.toml:1: `tiffin-core` does not inherit the version of the workspace",
            ]
        );
    }

    #[test]
    fn tests_that_a_manifest_hides_are_found() {
        let file = |path: &str, text: &str| File { path: path.to_owned(), text: text.to_owned() };
        let files = [
            file("crates/a/src/lib.rs", "/// ```\n/// a();\n/// ```\npub fn a() {}\n"),
            file("crates/a/src/b.rs", "#[test]\nfn c() {}\n"),
            file("crates/a/src/main.rs", "#[tokio::test]\nasync fn d() {}\n"),
            file("crates/b/src/lib.rs", "#[test]\nfn e() {}\n"),
        ];
        let hidden = |manifest: &str| hidden_tests("crates/a/Cargo.toml", manifest, &files);
        assert_eq!(hidden("[lib]\ntest = true\n[[bin]]\nname = 'a'\npath = 'src/main.rs'\n"), [""; 0]);
        let tests = "has tests, which `test = false` in crates/a/Cargo.toml hides";
        assert_eq!(
            hidden("[lib]\ntest = false\n"),
            [format!("crates/a/src/b.rs:1: {tests}"), format!("crates/a/src/main.rs:1: {tests}")]
        );
        assert_eq!(
            hidden("[[bin]]\npath = 'src/main.rs'\ntest = false\n"),
            [format!("crates/a/src/main.rs:1: {tests}")]
        );
        assert_eq!(
            hidden("[lib]\ndoctest = false\n"),
            ["crates/a/src/lib.rs:1: has examples, which `doctest = false` in crates/a/Cargo.toml hides"]
        );
    }

    #[test]
    fn folders_outside_the_default_members_are_found() {
        let workspace = "[workspace]\ndefault-members = ['crates/a']\n";
        let folders = ["crates/c", "crates/a", "crates/b"];
        assert_eq!(missing_default_members(workspace, folders.into_iter()), ["crates/b", "crates/c"]);
    }

    #[test]
    fn drop_in_wheel_has_the_same_version() {
        let workspace = "[workspace.package]\nversion = '1.2.3'\n";
        let project =
            |version| format!("[project]\nversion = '{version}'\ndependencies = ['tiffin=={version}']\n");
        assert_eq!(check_versions(workspace, "p", &project("1.2.3")), Vec::<String>::new());
        assert_eq!(
            check_versions(workspace, "p", &project("1.2.2")),
            [
                "p:1: the version is not that of the workspace, 1.2.3",
                "p:1: does not depend on \"tiffin==1.2.3\"",
            ]
        );
    }
}
