//! Commands about several objects and files at once, and commands that need no store.

use expect_test::expect;

use crate::{Server, ran, tiffin, without_generations};

#[test]
fn several_files_are_put_and_read_back() {
    let store = Server::up(&[]);
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(at("a.bin"), b"first").unwrap();
    std::fs::write(at("b.bin"), b"second").unwrap();
    let put = store.run(["put", "--prefix", "run/", "--files", &at("a.bin"), &at("b.bin")]).text();
    expect![[r"
        created `run/a.bin`: 5 B, generation G.0
        created `run/b.bin`: 6 B, generation G.1
    "]]
    .assert_eq(&without_generations(&put));

    assert_eq!(store.run(["get", "run/b.bin", "run/a.bin"]).ok(), b"secondfirst");
    let out = at("out");
    store.run(["get", "run/a.bin", "run/b.bin", "--output-dir", &out]).ok();
    assert_eq!(std::fs::read(at("out/run/a.bin")).unwrap(), b"first");
    assert_eq!(std::fs::read(at("out/run/b.bin")).unwrap(), b"second");
    let lines = store.run(["get", "run/a.bin", "run/b.bin", "--json"]).text();
    assert_eq!(lines.lines().count(), 2);

    let refused = store.run(["get", "run/a.bin", "run/b.bin", "--output", &at("both")]);
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("--output-dir"), "{}", refused.stderr);
    store.run(["put", "../outside", "--value", "v"]).ok();
    let error = store.run(["get", "../outside", "--output-dir", &out, "--json"]).error();
    assert_eq!(error["code"], "invalid");
    assert!(!folder.path().join("outside").exists());
}

#[test]
fn files_of_one_name_are_refused() {
    let store = Server::up(&[]);
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("in")).unwrap();
    let (one, other) = (folder.path().join("a"), folder.path().join("in/a"));
    std::fs::write(&one, b"1").unwrap();
    std::fs::write(&other, b"2").unwrap();
    let (one, other) = (one.display().to_string(), other.display().to_string());
    let error = store.run(["put", "--json", "--files", &one, &other]).error();
    assert!(error["message"].as_str().unwrap().contains("`a`"), "{error}");
    let error = store.run(["put", "--json", "--files", &one, "/"]).error();
    assert!(error["message"].as_str().unwrap().contains("no file name"), "{error}");
    assert_eq!(store.run(["ls"]).text(), "");
    // One key for several files, or their prefix? The command does not guess.
    let mixed = store.run(["put", "key", "--files", &one]);
    assert_eq!(mixed.status, Some(2), "{}", mixed.stderr);
    let hint = "\n\nhint: put the names of all files after `--files`, and what their keys start with after";
    assert!(mixed.stderr.starts_with("error: `key` is given beside `--files`"), "{}", mixed.stderr);
    assert!(mixed.stderr.contains(hint), "{}", mixed.stderr);
}

#[test]
fn part_of_a_value_is_read() {
    let store = Server::up(&[]);
    store.run(["put", "k", "--value", "0123456789"]).ok();
    assert_eq!(store.run(["get", "k", "--range", "2,3"]).ok(), b"234");
    assert_eq!(store.run(["get", "k", "--range", "10,0"]).ok(), b"");
    assert_eq!(store.run(["get", "k", "--range", "1,2", "--json"]).json()["value"], "12");
    let error = store.run(["get", "k", "--range", "8,3", "--json"]).error();
    assert_eq!(error["code"], "out_of_range");
    assert_eq!(error["hint"], "`tiffin stat 'k'` shows how many bytes it has");
    // A length beyond all memory is an answer, too.
    let error = store.run(["get", "k", "--range", "0,8EiB", "--json"]).error();
    assert_eq!(error["code"], "out_of_range");
    let wrong = store.run(["get", "k", "--range", "8"]);
    assert_eq!(wrong.status, Some(2));
    assert!(wrong.stderr.contains("hint: write offset and length"), "{}", wrong.stderr);
}

#[test]
fn lists_are_cut_and_continued() {
    let store = Server::up(&[]);
    for key in ["a", "b", "c"] {
        store.run(["put", key, "--value", key]).ok();
    }
    let keys = |text: String| {
        text.lines().skip(1).map(|it| it.rsplit(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let cut = store.run(["ls", "--limit", "2"]);
    assert_eq!(cut.stderr, "there are more, from `--after 'b'` on\n");
    assert_eq!(keys(cut.text()), ["a", "b"]);
    let rest = store.run(["ls", "--limit", "2", "--after", "b"]);
    assert_eq!(rest.stderr, "");
    assert_eq!(keys(rest.text()), ["c"]);
    let exact = store.run(["ls", "--limit", "3"]);
    assert_eq!(exact.stderr, "");
    assert_eq!(keys(exact.text()).len(), 3);
}

#[test]
fn prefix_is_a_flag_or_an_argument_of_ls_only() {
    let store = Server::up(&[]);
    for key in ["a/1", "a/2", "b"] {
        store.run(["put", key, "--value", "v"]).ok();
    }
    let listed = store.run(["ls", "--prefix", "a/"]).text();
    assert_eq!(listed.lines().count(), 3);
    assert_eq!(store.run(["ls", "a/"]).text(), listed);
    assert_eq!(store.run(["ls", "a/", "--prefix", "a/"]).status, Some(2));
    // An argument of `rm` is a key, never a prefix.
    for mode in [&["rm", "a/"][..], &["rm", "a/", "--dry-run"]] {
        let kept = store.run(mode);
        assert!(
            kept.stderr.contains("`a/` is not an object, but keys begin with it: `--prefix 'a/'`"),
            "{}",
            kept.stderr
        );
        kept.ok();
    }
    assert_eq!(store.run(["ls"]).text().lines().count(), 4);
    assert_eq!(store.run(["rm", "c"]).stderr, "");
}

#[test]
fn dry_run_removes_nothing() {
    let store = Server::up(&[]);
    for key in ["a/1", "a/2", "b"] {
        store.run(["put", key, "--value", "12345"]).ok();
    }
    for (args, count) in [(&["--prefix", "a/"][..], 2), (&["--prefix", ""], 3), (&["b", "absent"], 1)] {
        let shown = store.run(["rm", "--dry-run"].iter().chain(args));
        let objects = if count == 1 { "object" } else { "objects" };
        let told = format!("would remove {count} {objects}, {} B; nothing was removed\n", count * 5);
        assert_eq!(shown.stderr, told);
        assert_eq!(shown.text().lines().count(), count + 1);
        assert_eq!(store.run(["rm", "--json", "-n"].iter().chain(args)).text().lines().count(), count);
    }
    assert_eq!(store.run(["ls"]).text().lines().count(), 4);
    assert_eq!(store.run(["rm", "--dry-run", "--yes", "b"]).status, Some(2));
}

#[test]
fn settings_file_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiffin.toml");
    let check = |text: &str, token: Option<&str>, more: &[&str]| {
        std::fs::write(&path, text).unwrap();
        let mut command = tiffin();
        command.args(["config", "check"]).arg(&path).args(more);
        command.envs(token.map(|it| ("TIFFIN_TOKEN", it)));
        ran(command, b"")
    };
    let text = "[master]\nlisten = \"0.0.0.0:7400\"\n[node]\nmemory = \"8GiB\"\n[client]\ntimeout = \"3s\"\n";
    let told = check(text, Some("secret"), &[]).text();
    expect![[r"
        FILE is valid
          token   set
          master  listens on 0.0.0.0:7400, pages 127.0.0.1:7401, state in the folder of its user
          node    8.0 GiB of memory, 0 disks, listens on 127.0.0.1:0, master 127.0.0.1:7400
          client  master 127.0.0.1:7400, namespace `default`, time limit 3 s
    "]]
    .assert_eq(&told.replace(&format!("`{}`", path.display()), "FILE"));
    let told = check(text, Some("secret"), &["--json"]).json();
    assert_eq!((&told["node"]["memory"], &told["token"]), (&(8_u64 << 30).into(), &true.into()));

    let told = check("[master]\nlisten = \"127.0.0.1:0\"\n", None, &[]).text();
    assert!(told.contains("state not kept, because the port is 0"), "{told}");

    // A server that others can reach needs a token, and a wrong key or value is found in every table.
    for (text, word) in [
        (text, "token"),
        ("[master]\nlisten_on = \"x\"\n", "line 2"),
        ("[node]\nmemory = \"lots\"\n", "line 2"),
        ("[node]\nmemory = \"1KiB\"\n", "memory"),
        ("[client]\ntimeout = 3\n", "line 2"),
        ("[master\n", "line 1"),
    ] {
        let error = check(text, None, &["--json"]).error();
        assert_eq!(error["code"], "config", "{text}");
        assert!(error["message"].as_str().unwrap().contains(word), "{error}");
    }
}

#[test]
fn completions_and_manual_are_generated() {
    for (shell, word) in
        [("bash", "complete -F _tiffin"), ("zsh", "#compdef tiffin"), ("fish", "complete -c tiffin")]
    {
        let mut command = tiffin();
        command.args(["completions", shell]);
        let script = ran(command, b"").text();
        assert!(script.contains(word), "{shell}");
        assert!(script.contains("dry-run") && !script.contains("bench-worker"), "{shell}");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = tiffin();
    command.arg("man").arg(folder.path().join("man1"));
    ran(command, b"").ok();
    let page = |name: &str| std::fs::read_to_string(folder.path().join("man1").join(name)).unwrap();
    assert!(page("tiffin.1").contains("tiffin\\-put(1)"));
    assert!(page("tiffin-put.1").contains("on\\-exists"));
    assert!(page("tiffin-config-check.1").contains("settings file"));
    let names = std::fs::read_dir(folder.path().join("man1")).unwrap();
    assert!(names.map(|it| it.unwrap().file_name()).all(|it| !it.to_str().unwrap().contains("worker")));
}

#[test]
fn help_is_shown_without_arguments_and_keeps_options_apart() {
    let bare = ran(tiffin(), b"");
    assert_eq!(bare.stderr, "");
    let bare = bare.text();
    let mut command = tiffin();
    command.arg("-h");
    assert_eq!(bare, ran(command, b"").text());
    let mut command = tiffin();
    command.args(["rm", "-h"]);
    let help = ran(command, b"").text();
    let headings: Vec<_> = help.lines().filter(|it| it.ends_with(':') && !it.starts_with(' ')).collect();
    assert_eq!(headings, ["Arguments:", "Options:", "Connection:", "Options of every command:"]);
    let (own, rest) = help.split_once("Connection:").unwrap();
    assert!(own.contains("--dry-run") && !own.contains("--log-level"), "{help}");
    let (connection, every) = rest.split_once("Options of every command:").unwrap();
    assert!(connection.contains("--master") && !connection.contains("--token"), "{help}");
    assert!(every.contains("--token") && every.contains("--json"), "{help}");
    // What few commands need is in the long help only.
    assert!(!every.contains("--etcd-ca") && !every.contains("--tls-key"), "{help}");
    let mut command = tiffin();
    command.args(["rm", "--help"]);
    let long = ran(command, b"").text();
    assert!(long.contains("--etcd-ca") && long.contains("--tls-key"), "{long}");
}
