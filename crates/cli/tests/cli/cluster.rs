//! A master and nodes as separate processes.

use rustix::process::Signal;
use serde_json::{Value, json};

use tempfile::TempDir;

use crate::{Server, ran, tiffin, without_generations};

#[test]
fn copies_are_on_different_nodes_and_survive_one() {
    let master = Server::master(&[]);
    let mut nodes = ["left", "right"].map(|name| Server::node(&master, &["--name", name]));
    assert_eq!(nodes.each_ref().map(|node| node.ready["name"].clone()), ["left", "right"]);
    let put = master.run_with(["put", "k", "--replicas", "2", "--json"], &[7; 1 << 20]).json();
    assert_eq!(put["copies"], 2);
    let mut found = master.run(["stat", "k", "--json"]).json()["nodes"].as_array().unwrap().clone();
    found.sort_by_key(ToString::to_string);
    assert_eq!(found, ["left", "right"]);
    assert!(master.run(["ls", "--json"]).text().contains(r#""replicas":2"#));
    for node in &mut nodes[..1] {
        node.stop(Signal::KILL);
    }
    assert!(master.run(["get", "k"]).ok() == [7; 1 << 20]);
    let lone = master.run(["put", "lone", "--replicas", "2", "--value", "x"]);
    assert_eq!(lone.stderr, "note: 1 of 2 copies were made: no other node has space\n");
    assert_eq!(master.run(["get", "lone"]).text(), "x");
}

#[test]
fn put_warns_of_nodes_that_did_not_confirm() {
    // A dead node may return within the hour, with retires pending.
    let master = Server::master(&["--away", "1h"]);
    // Of a node that it reaches over a network, the master has no proof that it ended.
    let far = |name| Server::node(&master, &["--name", name, "--shared-memory", "off"]);
    let mut nodes = ["left", "right"].map(far);
    for key in ["a", "b"] {
        assert_eq!(master.run(["put", key, "--replicas", "2", "--value", "1", "--json"]).json()["copies"], 2);
    }
    nodes[0].stop(Signal::KILL);
    let put = master.run(["put", "a", "--value", "2"]);
    let warning = "warning: left could not confirm that the older object of this name is retired: until \
                   then, clients that have cached its location may still read it there\n";
    assert_eq!(put.stderr, warning);
    assert_eq!(without_generations(&put.text()), "replaced `a`: 1 B, generation G.0\n");
    let put = master.run(["put", "b", "--value", "2", "--json"]).json();
    assert_eq!((&put["effect"], &put["unconfirmed"]), (&json!("replaced"), &json!(["left"])));
    let kept = master.run(["put", "b", "--value", "3", "--on-exists", "keep", "--json"]).json();
    assert_eq!((&kept["effect"], &kept["unconfirmed"]), (&json!("kept"), &json!([])));
}

#[test]
fn a_node_of_this_host_whose_process_is_killed_is_lost_at_once() {
    let master = Server::master(&["--away", "1h"]);
    let mut node = Server::node(&master, &["--name", "killed"]);
    master.run(["put", "k", "--value", "1", "--pin"]).ok();
    node.stop(Signal::KILL);
    // The kernel tells the master, which may take a moment longer than the end of the connection.
    while !master.run(["stat", "--json"]).json()["nodes"].as_array().unwrap().is_empty() {}
    assert_eq!(master.run(["get", "k", "--json"]).error()["code"], "not_found");
    let text = master.run(["why", "k"]).text();
    assert!(text.contains("was lost with its last node, `killed`"), "{text}");
}

#[test]
fn a_node_that_is_gone_keeps_what_is_pinned_until_it_is_forgotten() {
    let master = Server::master(&["--away", "1ms"]);
    let mut node = Server::node(&master, &["--name", "gone", "--shared-memory", "off"]);
    master.run(["put", "pinned", "--value", "1", "--pin"]).ok();
    master.run(["put", "plain", "--value", "1"]).ok();
    let error = master.run(["node", "forget", "gone", "--json"]).error();
    assert!(error["message"].as_str().unwrap().contains("`gone` is connected"), "{error}");
    node.stop(Signal::KILL);
    while master.run(["get", "plain", "--json"]).error()["code"] != "not_found" {}
    let error = master.run(["get", "pinned", "--json"]).error();
    assert_eq!(error["code"], "node_down", "{error}");
    let text = master.run(["stat"]).text();
    assert!(text.contains("run `tiffin node forget`"), "{text}");
    let forgotten = master.run(["node", "forget", "gone", "--json"]).json();
    assert_eq!(forgotten, json!({ "name": "gone", "members": 1, "objects": 1 }));
    assert_eq!(master.run(["get", "pinned", "--json"]).error()["code"], "not_found");
    let error = master.run(["node", "forget", "gone", "--json"]).error();
    assert!(error["message"].as_str().unwrap().contains("no member of the cluster is called `gone`"));
    assert!(error["hint"].as_str().unwrap().contains("tiffin stat"), "{error}");
}

#[test]
fn stat_shows_how_each_node_is_reached_and_why() {
    let master = Server::master(&[]);
    let nodes = [
        Server::node(&master, &["--name", "shared"]),
        Server::node(&master, &["--name", "unshared", "--shared-memory", "off"]),
    ];
    let ways = |args: &[&str]| -> Vec<(Value, Value, Value)> {
        let stat = master.run(["stat", "--json"].iter().chain(args)).json();
        let mut ways: Vec<_> = stat["nodes"].as_array().unwrap().clone();
        ways.sort_by_key(|node| node["name"].to_string());
        ways.into_iter()
            .map(|node| (node["name"].clone(), node["way"].clone(), node["why"].clone()))
            .collect()
    };
    let unshared = (json!("unshared"), json!("tcp"), json!("the node shares no memory"));
    assert_eq!(ways(&[]), [(json!("shared"), json!("shared memory"), Value::Null), unshared]);
    let off = |name| (json!(name), json!("tcp"), json!("switched off"));
    assert_eq!(ways(&["--shared-memory", "off"]), [off("shared"), off("unshared")]);
    let text = master.run(["stat", "--shared-memory", "off"]).text();
    assert!(text.contains("tcp (not shared memory: switched off)"), "{text}");
    drop(nodes);
}

#[test]
fn token_is_required_of_nodes_and_clients() {
    let master = Server::master(&["--token", "secret"]);
    let node = Server::node(&master, &["--token", "secret"]);
    for (args, outcome) in [
        (&["--token", "secret"][..], None),
        (&["--token", "Secret"], Some("the token is wrong")),
        (&[], Some("the token is missing")),
    ] {
        let ran = master.run(["put", "k", "--value", "v", "--json"].iter().chain(args));
        match outcome {
            None => assert_eq!(ran.json()["effect"], "created"),
            Some(message) => {
                let error = ran.error();
                assert_eq!((&error["code"], &error["message"]), (&json!("unauthenticated"), &json!(message)));
                assert!(error["hint"].as_str().unwrap().contains("token"), "{error}");
            }
        }
    }
    let rejected =
        master.run(["node", "--memory", "1MiB", "--json", "--token", "wrong", "--log-level", "off"]);
    let error = rejected.error();
    assert_eq!(error["code"], "refused");
    assert!(error["message"].as_str().unwrap().contains(master.address()), "{error}");
    drop(node);
}

#[test]
fn settings_file_applies_to_every_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiffin.toml");
    let master = "[master]\nlisten = '127.0.0.1:0'\nhttp = 'off'\n";
    let text = format!("token = 'secret'\n{master}[node]\nmemory = '16MiB'\nname = 'filed'\n");
    std::fs::write(&path, text).unwrap();
    let config = path.to_str().unwrap();
    let master = Server::start(&["master", "--config", config]);
    let node = Server::start(&["node", "--config", config, "--master", master.address(), "--memory", "8MiB"]);
    assert_eq!((&node.ready["name"], &node.ready["memory"]), (&json!("filed"), &json!(8 << 20)));
    let stat = master.run(["stat", "--json", "--config", config]).json();
    assert_eq!(stat["nodes"][0]["usage"]["capacity"], 8 << 20);
}

/// A folder for memory pools, on the tmpfs that every machine has.
fn pools() -> TempDir {
    tempfile::Builder::new().prefix("tiffin-test-").tempdir_in("/dev/shm").unwrap()
}

fn pool(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

#[test]
fn one_of_two_absent_members_of_a_name_is_forgotten_by_its_segment() {
    let folder = pools();
    let master = Server::master(&["--away", "1h"]);
    let start = |pool: &str| Server::node(&master, &["--name", "twin", "--pool", pool]);
    let (first, second) = (pool(&folder, "first"), pool(&folder, "second"));
    let mut node = start(&first);
    master.run(["put", "kept", "--value", "1", "--pin"]).ok();
    node.stop(Signal::KILL);
    let mut node = start(&second);
    master.run(["put", "lost", "--value", "2", "--pin"]).ok();
    node.stop(Signal::KILL);
    let error = master.run(["node", "forget", "twin", "--json"]).error();
    assert!(error["message"].as_str().unwrap().contains("the name of 2 absent members"), "{error}");
    let stat = master.run(["stat", "--json"]).json();
    let is_second = |it: &&Value| it["tcp"] == node.ready["tcp"];
    let member = stat["nodes"].as_array().unwrap().iter().find(is_second).unwrap();
    let segment = member["segment"].as_str().unwrap();
    assert!(error["message"].as_str().unwrap().contains(segment), "{error}");
    let forgotten = master.run(["node", "forget", segment, "--json"]).json();
    assert_eq!(forgotten, json!({ "name": segment, "members": 1, "objects": 1 }));
    assert_eq!(master.run(["get", "lost", "--json"]).error()["code"], "not_found");
    // The other one returns with its object, and the forgotten one without.
    let _first = start(&first);
    assert_eq!(master.run(["get", "kept"]).ok(), b"1");
    let _second = start(&second);
    assert_eq!(master.run(["get", "lost", "--json"]).error()["code"], "not_found");
    assert_eq!(master.run(["get", "kept"]).ok(), b"1");
}

#[test]
fn members_of_another_cluster_join_once_they_are_admitted() {
    let folder = pools();
    let (old, new) = (Server::master(&[]), Server::master(&[]));
    let first = pool(&folder, "first");
    let mut node = Server::node(&old, &["--name", "first", "--pool", &first]);
    old.run(["put", "old", "--value", "1", "--pin"]).ok();
    node.stop(Signal::KILL);
    // A master without its state meets another node first.
    let _other = Server::node(&new, &["--name", "other", "--pool", &pool(&folder, "other")]);
    new.run(["put", "new", "--value", "2", "--pin"]).ok();
    let mut command = tiffin();
    command.args(["node", "--memory", "32MiB", "--name", "first", "--pool", &first, "--json"]);
    command.args(["--log-level", "off", "--master", new.address()]);
    let error = ran(command, b"").error();
    assert_eq!(error["code"], "refused", "{error}");
    let said = error.to_string();
    let (_, rest) = said.split_once("tiffin node admit ").expect(&said);
    let id: String = rest.chars().take_while(char::is_ascii_hexdigit).collect();
    for invalid in ["0", "g", ""] {
        assert_eq!(new.run(["node", "admit", invalid]).status, Some(2), "{invalid}");
    }
    assert_eq!(new.run(["node", "admit", &id, "--json"]).json(), json!({ "cluster": id }));
    assert_eq!(new.run(["node", "admit", &id]).text(), format!("members of cluster {id} may join\n"));
    let _node = Server::node(&new, &["--name", "first", "--pool", &first]);
    assert_eq!(new.run(["get", "old"]).ok(), b"1");
    assert_eq!(new.run(["get", "new"]).ok(), b"2");
}

#[test]
fn an_adopted_pool_reports_its_own_size() {
    let folder = pools();
    let master = Server::master(&[]);
    let path = pool(&folder, "pool");
    let named = ["--name", "node", "--pool", &path];
    let mut node = Server::node(&master, &named);
    assert_eq!(node.ready["memory"], 32 << 20);
    node.stop(Signal::KILL);
    let larger = ["node", "--memory", "64MiB", "--master", master.address()];
    let larger = Server::start(&[&larger[..], &named].concat());
    assert_eq!((&larger.ready["memory"], &larger.ready["pool"]), (&json!(32 << 20), &json!(path)));
    let up = Server::up(&["--pool", &pool(&folder, "up")]);
    assert_eq!((&up.ready["node"]["memory"], up.ready["node"]["pool"].is_string()), (&json!(32 << 20), true));
}

#[test]
fn a_removed_pool_is_served_on_and_its_end_is_known() {
    let folder = pools();
    let master = Server::master(&["--away", "1h"]);
    let path = pool(&folder, "pool");
    let mut node = Server::node(&master, &["--name", "node", "--pool", &path]);
    master.run(["put", "k", "--value", "v", "--pin"]).ok();
    let keeps = || master.run(["stat", "--json"]).json()["nodes"][0]["keeps_memory"].clone();
    assert_eq!(keeps(), true);
    std::fs::remove_dir_all(&path).unwrap();
    while keeps() != false {}
    assert_eq!(master.run(["get", "k"]).ok(), b"v");
    assert!(!std::path::Path::new(&path).exists(), "nothing is made again silently");
    // Its memory is gone with its process, so that nothing waits for it.
    node.stop(Signal::KILL);
    while master.run(["get", "k", "--json"]).error()["code"] != "not_found" {}
    let _next = Server::node(&master, &["--name", "node", "--pool", &path]);
    master.run(["put", "k", "--value", "w"]).ok();
    assert_eq!(master.run(["get", "k"]).ok(), b"w");
}
