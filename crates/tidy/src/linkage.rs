//! Rules for what is linked into a build, from the output of `cargo tree`, which includes features.
//!
//! The caller runs `cargo tree` with [`TREE_ARGUMENTS`], and `--package` for one crate.

/// One line per package: name and version, a semicolon, features.
pub const TREE_ARGUMENTS: [&str; 6] =
    ["tree", "--locked", "--edges=normal,build", "--prefix=none", "--no-dedupe", "--format={p};{f}"];

/// The servers, their decisions and their largest dependencies. A client must not compile them. `hyper` is
/// not among them: a client asks etcd for the leader over HTTP.
const SERVER_PARTS: [&str; 8] = [
    "tiffin-core",
    "tiffin-node",
    "tiffin-server",
    "tiffin-embedded",
    "tiffin-ssd",
    "axum",
    "clap",
    "io-uring",
];

/// The feature that compiles mutants into a crate.
const FAULT_FEATURE: &str = "mutants";

/// Server crates that a client links.
#[must_use]
pub fn check_client(tree: &str) -> Vec<String> {
    let is_server = |name: &&str| SERVER_PARTS.contains(name);
    let found = packages(tree).map(|(name, _)| name).filter(is_server);
    unique(found.map(|name| format!("a client links `{name}`")))
}

/// Crates of a release build that contain fault injection.
#[must_use]
pub fn check_release(tree: &str) -> Vec<String> {
    let is_faulty = |features: &str| features.split(',').any(|it| it == FAULT_FEATURE);
    let found = packages(tree).filter(|(_, features)| is_faulty(features));
    unique(found.map(|(name, _)| format!("`{name}` is built with the feature `{FAULT_FEATURE}`")))
}

/// The names of packages, and their features.
fn packages(tree: &str) -> impl Iterator<Item = (&str, &str)> {
    tree.lines().filter_map(|line| {
        let (package, features) = line.split_once(';')?;
        Some((package.split(' ').next()?, features))
    })
}

fn unique(problems: impl Iterator<Item = String>) -> Vec<String> {
    let mut problems: Vec<_> = problems.collect();
    problems.sort();
    problems.dedup();
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_in_a_client_are_named_once() {
        let tree = "tiffin-client v0.1.0 (x);\naxum v0.8.9;http1\nbytes v1.0.0;\naxum v0.8.9;http1\n";
        assert_eq!(check_client(tree), ["a client links `axum`"]);
        assert!(check_client("tiffin-client v0.1.0 (x);\naxum-core v0.8.9;\n").is_empty());
    }

    #[test]
    fn fault_injection_in_a_release_is_named() {
        let tree =
            "tiffin-core v0.1.0 (x);a,mutants\ntiffin-ssd v0.1.0 (x);sim\ntiffin-mutants v0.1.0 (x);\n";
        assert_eq!(check_release(tree), ["`tiffin-core` is built with the feature `mutants`"]);
    }
}
