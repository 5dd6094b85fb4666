//! `tiffin certs`, and a store that uses what it makes.

use serde_json::json;

use crate::{Ran, Server, ran, tiffin};

fn certs(args: &[&str]) -> Ran {
    let mut command = tiffin();
    command.arg("certs").args(args);
    ran(command, b"")
}

/// The flags of a server with the certificates of this folder.
fn server_flags(folder: &str) -> [String; 6] {
    let file = |name| format!("{folder}/{name}");
    [
        "--tls-cert".into(),
        file("server.pem"),
        "--tls-key".into(),
        file("server.key"),
        "--tls-ca".into(),
        file("ca.pem"),
    ]
}

#[test]
fn store_with_certificates_of_one_command_speaks_only_tls() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("certs").display().to_string();
    let made = certs(&["create", &path, "--host", "store.example.org", "--json"]).json();
    assert_eq!(made["written"].as_array().unwrap().len(), 6);
    let error = certs(&["create", &path, "--json"]).error();
    assert!(error["message"].as_str().unwrap().ends_with("ca.pem` exists"), "{error}");
    assert!(error["hint"].as_str().unwrap().contains("tiffin certs renew"), "{error}");
    let listed = certs(&["list", &path, "--json"]).text();
    let listed: Vec<serde_json::Value> = listed.lines().map(|it| serde_json::from_str(it).unwrap()).collect();
    assert_eq!(listed[1]["hosts"], json!(["localhost", "127.0.0.1", "::1", "store.example.org"]));
    assert_eq!(listed[1]["expired"], json!(false));

    let flags = server_flags(&path);
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    let client_ca = format!("{path}/ca.pem");
    let command =
        ["master", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--tls-client-ca", &client_ca];
    let master = Server::start(&[&command, &flags[..]].concat());
    let node = Server::node(&master, &[&flags[..], &["--tls-client-ca", &client_ca]].concat());
    let (cert, key) = (format!("{path}/client.pem"), format!("{path}/client.key"));
    let secured = ["--tls-ca", &client_ca, "--tls-cert", &cert, "--tls-key", &key, "--json"];
    let far = ["--shared-memory", "off"];
    let value = "v".repeat(100_000);
    for args in [&["put", "k", "--value", &value][..], &["get", "k"], &["stat"]] {
        master.run([args, &secured, &far].concat()).ok();
    }
    let got = master.run(
        [&["get", "k", "--tls-ca", &client_ca, "--tls-cert", &cert, "--tls-key", &key][..], &far].concat(),
    );
    assert!(got.ok().starts_with(value.as_bytes()));
    master.run([&["why", "k"][..], &secured].concat()).ok();
    pages_are_served_by_https(master.ready["http"].as_str().unwrap(), [&client_ca, &cert, &key]);

    for (args, expected) in [
        (&[][..], "it accepts only TLS"),
        (&["--tls-ca", &client_ca], "it accepts only clients that show a certificate"),
        (&["--tls-ca", &cert, "--tls-cert", &cert, "--tls-key", &key], "is not signed by a CA"),
        (&["--tls-cert", &cert], "tls_cert is set and tls_key is not"),
    ] {
        let error = master.run([&["get", "k", "--json"], args, &far].concat()).error();
        assert!(error["message"].as_str().unwrap().contains(expected), "{error}");
        assert!(!error["hint"].is_null(), "{error}");
    }
    // A node without TLS is not accepted, and says so.
    let mut plain = tiffin();
    plain.args([
        "node",
        "--memory",
        "32MiB",
        "--json",
        "--shared-memory",
        "off",
        "--master",
        master.address(),
    ]);
    let refused = ran(plain, b"");
    // The log is there, too, and may go on after the error.
    let error = refused.stderr.lines().rev().find(|it| it.starts_with('{')).expect("an error in JSON");
    let error: serde_json::Value = serde_json::from_str(error).unwrap();
    let error = &error["error"];
    assert!(error["message"].as_str().unwrap().contains("it accepts only TLS"), "{error}");
    drop((node, master));
}

fn pages_are_served_by_https(http: &str, [ca, cert, key]: [&str; 3]) {
    let get = |more: &[&str]| {
        let mut command = std::process::Command::new("curl");
        command.args(["-sS", "--cacert", ca, "-w", " %{http_code}"]).args(more);
        ran(command, b"").stdout
    };
    if std::process::Command::new("curl").arg("--version").output().is_err() {
        return;
    }
    let url = |path: &str| format!("https://{http}{path}");
    assert!(get(&[&url("/health")]).ends_with(b" 200"));
    assert!(get(&[&url("/metrics")]).ends_with(b" 403"));
    assert!(get(&[&url("/metrics"), "--cert", cert, "--key", key]).ends_with(b" 200"));
    assert!(get(&[&format!("http://{http}/health")]).ends_with(b" 400"));
}

#[test]
fn renewed_certificates_are_used_without_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();
    certs(&["create", &format!("{path}/c")]).ok();
    let path = format!("{path}/c");
    let flags = server_flags(&path);
    let store = Server::up(&flags.iter().map(String::as_str).collect::<Vec<_>>());
    let ca = format!("{path}/ca.pem");
    let far = ["--shared-memory", "off", "--tls-ca", &ca, "--json"];
    store.run([&["put", "k", "--value", "v"][..], &far].concat()).ok();
    // Of another CA: the clients that trust the old one are told.
    let other = format!("{path}/other");
    certs(&["create", &other]).ok();
    for name in ["server.key", "server.pem"] {
        std::fs::copy(format!("{other}/{name}"), format!("{path}/{name}")).unwrap();
    }
    let error = store.run([&["get", "k"][..], &far].concat()).error();
    assert!(error["message"].as_str().unwrap().contains("is not signed by a CA"), "{error}");
    assert!(error["hint"].as_str().unwrap().contains("--tls-ca"), "{error}");
    let ca = format!("{other}/ca.pem");
    store.run(["get", "k", "--shared-memory", "off", "--tls-ca", &ca, "--json"]).ok();
    // With shared memory, no certificate is needed: the Unix socket of the same user is used.
    store.run(["get", "k", "--json"]).ok();
}
