//! The whole tree keeps the rules of this crate. Each rule is tested in its own module, on bad snippets.

use std::{fs, process::Command};

use tiffin_tidy::{circles, documents, licence, linkage, links, manifest, methods, source, tree};

#[track_caller]
fn expect_none(problems: &[String]) {
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn sources_are_tidy() {
    let files = tree::files(&tree::root()).unwrap();
    let problems: Vec<_> = files.iter().flat_map(|file| source::check(&file.path, &file.text)).collect();
    expect_none(&problems);
}

#[test]
fn unsafe_modules_exist_and_contain_unsafe() {
    for module in source::UNSAFE_MODULES {
        let text = fs::read_to_string(tree::root().join(module));
        let needs_it = text.is_ok_and(|text| text.contains("unsafe"));
        assert!(needs_it, "{module} is listed for `unsafe` and has none");
    }
}

#[test]
fn security_document_lists_the_unsafe_modules() {
    let document = fs::read_to_string(tree::root().join("SECURITY.md")).unwrap();
    let table = source::unsafe_table();
    assert!(document.contains(&table), "the table of unsafe modules in SECURITY.md is not this:\n\n{table}");
}

#[test]
fn every_document_is_reachable_from_the_readme() {
    expect_none(&links::check(&tree::files(&tree::root()).unwrap()));
}

#[test]
fn documents_are_within_their_limits() {
    expect_none(&documents::check(&tree::files(&tree::root()).unwrap()));
}

#[test]
fn dependencies_point_down() {
    let files = tree::files(&tree::root()).unwrap();
    // The fuzz targets are a workspace of their own.
    let manifests =
        files.iter().filter(|file| file.path.ends_with("/Cargo.toml") && !file.path.starts_with("fuzz/"));
    let problems: Vec<_> = manifests.flat_map(|file| manifest::check(&file.path, &file.text)).collect();
    expect_none(&problems);
}

#[test]
fn few_files_import_each_other() {
    expect_none(&circles::check(&tree::files(&tree::root()).unwrap(), &circles::LARGER));
}

#[test]
fn no_type_has_too_many_methods() {
    expect_none(&methods::check(&tree::files(&tree::root()).unwrap()));
}

#[test]
fn no_manifest_hides_a_test() {
    let files = tree::files(&tree::root()).unwrap();
    let manifests = files.iter().filter(|file| file.path.ends_with("/Cargo.toml"));
    let problems: Vec<_> =
        manifests.flat_map(|file| manifest::hidden_tests(&file.path, &file.text, &files)).collect();
    expect_none(&problems);
}

#[test]
fn both_wheels_have_one_version() {
    let read = |path| fs::read_to_string(tree::root().join(path)).unwrap();
    let project = "python-mooncake/pyproject.toml";
    expect_none(&manifest::check_versions(&read("Cargo.toml"), project, &read(project)));
}

#[test]
fn every_licence_is_on_the_list() {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version=1", "--locked", "--filter-platform=x86_64-unknown-linux-gnu"])
        .current_dir(tree::root())
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let deny = fs::read_to_string(tree::root().join("deny.toml")).unwrap();
    expect_none(&licence::check(&deny, &String::from_utf8(metadata.stdout).unwrap()));
}

/// Packages that a build links; of all default members if none is named.
fn linked(packages: &[&str]) -> String {
    let tree = Command::new(env!("CARGO"))
        .args(linkage::TREE_ARGUMENTS)
        .args(packages.iter().map(|it| format!("--package={it}")))
        .current_dir(tree::root())
        .output()
        .expect("cargo runs");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).expect("cargo prints text");
    assert!(tree.contains("tiffin-types v"), "{tree}");
    tree
}

#[test]
fn client_links_no_server() {
    expect_none(&linkage::check_client(&linked(&["tiffin-client"])));
}

/// A plain `cargo build --release` builds the default members, with the union of their features.
#[test]
fn release_has_no_fault_injection() {
    expect_none(&linkage::check_release(&linked(&[])));
    expect_none(&linkage::check_release(&linked(&["tiffin-python"])));
    // The simulators have it, which proves that it would be found.
    assert!(!linkage::check_release(&linked(&["tiffin-sim"])).is_empty());
}

#[test]
fn only_simulators_are_not_default_members() {
    let read = |path: &str| fs::read_to_string(tree::root().join(path)).unwrap();
    let folders = fs::read_dir(tree::root().join("crates")).unwrap().map(|it| it.unwrap().file_name());
    let crates: Vec<_> = folders.map(|it| format!("crates/{}", it.to_str().unwrap())).collect();
    let missing = manifest::missing_default_members(&read("Cargo.toml"), crates.iter().map(String::as_str));
    assert_eq!(missing, ["crates/kv-sim", "crates/sim"]);
}
