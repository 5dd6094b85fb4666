//! `tiffin token`, and what its tokens permit.

use serde_json::json;

use crate::{Ran, Server, ran, tiffin};

fn token(args: &[&str]) -> Ran {
    let mut command = tiffin();
    command.arg("token").args(args);
    ran(command, b"")
}

#[test]
fn created_tokens_permit_what_they_say_until_they_are_revoked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.toml").display().to_string();
    let create = |name: &str, more: &[&str]| {
        let made = token(&[&["create", name, "--json", "--access-file", &path], more].concat()).json();
        let file = folder.path().join(format!("{name}.token"));
        std::fs::write(&file, format!("{}\n", made["token"].as_str().unwrap())).unwrap();
        file.display().to_string()
    };
    let trainer = create("trainer", &["--right", "read", "--right", "write", "--namespace", "team-*"]);
    let reader = create("reader", &["--right", "read", "--expires", "30d"]);
    let store = Server::up(&["--access-file", &path]);
    let as_trainer = |args: &[&str]| store.run([args, &["--json", "--token-file", &trainer]].concat());
    let put = as_trainer(&["put", "k", "--value", "v", "--namespace", "team-a"]).json();
    assert_eq!(put["effect"], "created");
    let error = as_trainer(&["put", "k", "--value", "v"]).error();
    assert!(error["message"].as_str().unwrap().contains("not for this namespace"), "{error}");
    let error = as_trainer(&["quota", "--set", "1MiB", "--namespace", "team-a"]).error();
    assert!(error["message"].as_str().unwrap().contains("lacks the right: admin"), "{error}");
    assert!(error["hint"].as_str().unwrap().contains("tiffin token"), "{error}");
    let as_reader = |args: &[&str]| {
        store.run([args, &["--namespace", "team-a", "--json", "--token-file", &reader]].concat())
    };
    assert_eq!(as_reader(&["get", "k"]).status, Some(0));
    let error = as_reader(&["put", "k", "--value", "w"]).error();
    assert!(error["message"].as_str().unwrap().contains("lacks the right: write"), "{error}");

    let listed = token(&["list", "--json", "--access-file", &path]).text();
    let listed: Vec<serde_json::Value> = listed.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    assert_eq!((&listed[0]["name"], &listed[0]["namespaces"]), (&json!("trainer"), &json!(["team-*"])));
    assert_eq!((&listed[1]["rights"], &listed[1]["expired"]), (&json!(["read"]), &json!(false)));
    assert!(
        token(&["list", "--access-file", &path]).text().contains("reader  read  all namespaces  expires at")
    );

    assert_eq!(token(&["revoke", "reader", "--json", "--access-file", &path]).json()["revoked"], "reader");
    // The store reads the file again in the next second.
    let refused = loop {
        let found = as_reader(&["get", "k"]);
        if found.status != Some(0) {
            break found.error();
        }
    };
    assert_eq!(refused["code"], "unauthenticated");
    let error = token(&["revoke", "reader", "--json", "--access-file", &path]).error();
    assert!(error["message"].as_str().unwrap().contains("no token `reader`"), "{error}");
}

#[test]
fn access_file_and_rights_must_be_given() {
    let error = token(&["list", "--json"]).error();
    assert!(error["hint"].as_str().unwrap().contains("--access-file"), "{error}");
    assert_eq!(token(&["create", "x", "--access-file", "nowhere"]).status, Some(2));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.toml").display().to_string();
    let node = ["create", "n", "--right", "node", "--namespace", "a", "--json", "--access-file", &path];
    let error = token(&node).error();
    assert!(error["message"].as_str().unwrap().contains("all namespaces"), "{error}");
    let mut up = tiffin();
    up.args(["up", "--json", "--access-file", &path]);
    assert!(ran(up, b"").error()["hint"].as_str().unwrap().contains("tiffin token create"));
}

#[test]
fn token_on_the_command_line_is_accepted_with_a_warning() {
    let store = Server::up(&["--token", "secret"]);
    let put = store.run(["put", "k", "--value", "v", "--token", "secret"]);
    assert!(put.stderr.contains("list of processes") && !put.stderr.contains("secret"), "{}", put.stderr);
    put.ok();
    let both = store.run(["get", "k", "--json", "--token", "secret", "--token-file", "/dev/null"]);
    assert!(both.error()["message"].as_str().unwrap().contains("two tokens"));
    let empty = store.run(["get", "k", "--json", "--token-file", "/dev/null"]).error();
    assert!(empty["message"].as_str().unwrap().contains("it is empty"), "{empty}");
}
