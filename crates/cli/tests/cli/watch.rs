//! `tiffin top`, `tiffin events` and `tiffin stat --watch`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;

use super::{Server, send, tiffin};

fn pages(server: &Server) -> &str {
    server.ready["http"].as_str().unwrap()
}

/// The lines of JSON that a command writes.
fn json_lines(child: &mut Child) -> impl Iterator<Item = Value> + use<> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap())
}

/// Starts `tiffin top` in a terminal of its own. Returns the other end of the terminal.
fn top(server: &Server) -> (Child, File) {
    in_terminal(server.client(["top", "--http", pages(server)]))
}

fn in_terminal(mut command: Command) -> (Child, File) {
    let near = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&near).unwrap();
    unlockpt(&near).unwrap();
    tcsetwinsize(&near, Winsize { ws_row: 24, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let name = ptsname(&near, Vec::new()).unwrap().into_string().unwrap();
    let far = || File::options().read(true).write(true).open(&name).unwrap();
    let child = command.stdin(far()).stdout(far()).stderr(far()).spawn().unwrap();
    (child, File::from(near))
}

/// Reads what is drawn until a text has appeared.
fn read_until(terminal: &mut File, wanted: &str) {
    let (mut seen, mut buffer) = (String::new(), [0; 4096]);
    while !seen.contains(wanted) {
        let read = terminal.read(&mut buffer).unwrap();
        seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
    }
}

#[test]
fn top_draws_the_store_and_quits() {
    let server = Server::up(&["--name", "here"]);
    server.run(["put", "k", "--value", "v"]).ok();
    for quit in [&b"q"[..], b"\x03"] {
        let (mut child, mut terminal) = top(&server);
        read_until(&mut terminal, "here");
        // The list of namespaces. Only what differs is drawn: the title of its last column does entirely.
        terminal.write_all(b"2").unwrap();
        read_until(&mut terminal, "waiting");
        terminal.write_all(quit).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(0), "{quit:?}");
        // The alternate screen was left.
        read_until(&mut terminal, "\x1b[?1049l");
    }
    let (mut child, mut terminal) = top(&server);
    read_until(&mut terminal, "here");
    send(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    read_until(&mut terminal, "\x1b[?1049l");
}

#[test]
fn top_without_terminal_says_what_to_use() {
    let server = Server::up(&["--name", "here"]);
    let seen = server.run(["top", "--json", "--http", pages(&server)]).json();
    assert_eq!(seen["nodes"][0]["name"], "here");
    let refused = server.run(["top", "--http", pages(&server)]);
    assert_eq!(refused.status, Some(1));
    assert!(refused.stderr.contains("hint: use `tiffin stat --watch`"), "{}", refused.stderr);
}

#[test]
fn client_that_ends_has_reported_its_latencies() {
    let server = Server::up(&["--name", "here"]);
    server.run(["put", "k", "--value", "v"]).ok();
    server.run(["get", "k"]).ok();
    // It finds nothing, and moves nothing.
    assert_eq!(server.run(["get", "absent"]).status, Some(1));
    // A point of the history is taken every two seconds.
    loop {
        let seen = server.run(["top", "--json", "--http", pages(&server)]).json();
        let operations = seen["operations"].as_array().unwrap();
        let has = |name: &str, path: &str| {
            operations.iter().any(|it| {
                it["side"] == "client" && it["operation"] == name && it["path"] == path && it["total"] == 1
            })
        };
        if has("put", "shared_memory") && has("view", "shared_memory") && has("view", "master") {
            break;
        }
    }
}

#[test]
fn events_are_followed() {
    let server = Server::up(&["--name", "here"]);
    let text = server.run(["events", "--no-follow", "--http", pages(&server)]).text();
    assert!(text.contains("info     member_ready      here: is ready"), "{text}");
    let mut command = server.client(["events", "--json", "--http", pages(&server)]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!((&next()["kind"], &next()["kind"]), (&"master_started".into(), &"member_ready".into()));
    // A later one arrives by itself.
    server.run(["quota", "--set", "1KiB"]).ok();
    assert_eq!(server.run(["put", "k", "--value", &"x".repeat(5000)]).status, Some(1));
    let event = next();
    assert_eq!((&event["kind"], &event["subject"]), (&"quota_reached".into(), &"default".into()));
    send(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    // Pages that are not there.
    let failure = server.run(["events", "--json", "--http", "127.0.0.1:1"]).error();
    assert_eq!(failure["code"], "unreachable");
    assert!(failure["hint"].as_str().unwrap().contains("--http"), "{failure}");
}

#[test]
fn stat_is_repeated_until_it_is_interrupted() {
    let server = Server::up(&["--name", "here"]);
    server.run(["put", "k", "--value", "v"]).ok();
    let (store, object) = (&["nodes", "0", "name"][..], &["nodes", "0"][..]);
    for (args, path) in [
        (&["--watch=100ms"][..], store),
        (&["--watch", "100ms"], store),
        (&["--watch", "0.1"], store),
        (&["--watch", "100ms", "k"], object),
        (&["k", "--watch", "0.1"], object),
    ] {
        let mut child =
            server.client(["stat", "--json"].iter().chain(args)).stdout(Stdio::piped()).spawn().unwrap();
        // It ends by itself when its output is closed.
        let mut lines = json_lines(&mut child);
        for seen in lines.by_ref().take(3) {
            let found = seen.pointer(&format!("/{}", path.join("/")));
            assert_eq!(found, Some(&Value::from("here")), "{args:?}: {seen}");
        }
        send(&child, Signal::INT);
        assert_eq!(child.wait().unwrap().code(), Some(130));
    }
    // What is no time is the key.
    let mut child = server.client(["stat", "--json", "--watch", "k"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = json_lines(&mut child);
    assert_eq!(lines.next().unwrap()["key"], "k");
    send(&child, Signal::INT);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    for wrong in [&["--watch", "5x"][..], &["k", "--watch", "soon"], &["--watch=1 elephant"]] {
        let refused = server.run(["stat"].iter().chain(wrong));
        assert_eq!(refused.status, Some(2), "{}", refused.stderr);
        assert!(refused.stderr.starts_with("error: --watch: invalid duration"), "{}", refused.stderr);
        assert!(refused.stderr.contains("\n\nhint: write a number and a unit"), "{}", refused.stderr);
    }
}

#[test]
fn top_quits_while_the_master_does_not_answer() {
    let pages = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = tiffin();
    command.args(["top", "--timeout", "1h", "--http", &pages.local_addr().unwrap().to_string()]);
    let (mut child, mut terminal) = in_terminal(command);
    let (mut first, _) = pages.accept().unwrap();
    let mut head = BufReader::new(first.try_clone().unwrap()).lines();
    while head.next().is_some_and(|it| !it.unwrap().is_empty()) {}
    first.write_all(b"HTTP/1.1 200 OK\r\n\r\n{}").unwrap();
    drop((head, first));
    read_until(&mut terminal, "quit");
    // The next question gets no answer.
    let _unanswered = pages.accept().unwrap();
    terminal.write_all(b"q").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn watchers_go_on_after_a_restart_of_the_master() {
    let mut server = Server::up(&["--name", "here"]);
    let mut events = server.client(["events", "--json", "--http", pages(&server)]);
    let mut events = events.stdout(Stdio::piped()).spawn().unwrap();
    let mut seen = json_lines(&mut events).map(|it| it["kind"].as_str().unwrap().to_owned());
    assert_eq!(
        (seen.next().unwrap(), seen.next().unwrap()),
        ("master_started".into(), "member_ready".into())
    );
    let mut stat = server.client(["stat", "--watch=100ms", "--json"]);
    let mut stat = stat.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut nodes = json_lines(&mut stat).map(|it| it["nodes"][0]["segment"].clone());
    let before = nodes.next().unwrap();
    server.stop(Signal::KILL);
    let again = server.again(&["--name", "here"]);
    // The numbers of events begin again; none is missed.
    assert_eq!(
        (seen.next().unwrap(), seen.next().unwrap()),
        ("master_started".into(), "member_ready".into())
    );
    // The node of the new process is another one.
    assert!(nodes.any(|it| it.is_string() && it != before));
    for (mut child, status) in [(events, 130), (stat, 130)] {
        send(&child, Signal::INT);
        assert_eq!(child.wait().unwrap().code(), Some(status));
    }
    drop(again);
}
