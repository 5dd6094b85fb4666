//! A server process one of whose parts panics ends with an error and a failure status.
//!
//! The binary starts itself again as a server: it runs the command line, and panics where its standard input
//! says.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "all of it is a test"
)]

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tiffin_server::supervise::faults::{Point, arm};

/// Every point, and by what it is passed.
const POINTS: [(&str, Point); 5] = [
    ("master-core", Point::MasterCore),
    ("node-core", Point::NodeCore),
    ("connection", Point::Connection),
    ("timer", Point::Timer),
    ("disk-thread", Point::DiskThread),
];

const TESTS: [(&str, fn()); 4] = [
    ("store_ends_when_a_part_of_it_panics", store_ends_when_a_part_of_it_panics),
    ("master_ends_when_its_core_panics", master_ends_when_its_core_panics),
    ("node_ends_when_its_core_panics", node_ends_when_its_core_panics),
    ("failure_is_text_without_json", failure_is_text_without_json),
];

fn main() {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if arguments.get(1).is_some_and(|it| it == "serve") {
        std::thread::spawn(listen_for_points);
        std::process::exit(tiffin_cli::run(arguments.into_iter().skip(1)));
    }
    let rest: Vec<_> = arguments.iter().skip(1).map(|it| it.to_string_lossy()).collect();
    let is_given = |flag: &str| rest.iter().any(|it| it == flag);
    // A runner that lists the tests names a format, which is no filter.
    let filter = rest.iter().find(|it| !it.starts_with('-') && !is_given("--list")).map_or("", |it| it);
    for (name, test) in TESTS.iter().filter(|(name, _)| name.contains(filter)) {
        match (is_given("--list"), is_given("--ignored")) {
            (true, false) => println!("{name}: test"),
            (true, true) => {}
            _ => {
                test();
                println!("test {name} ... ok");
            }
        }
    }
}

fn listen_for_points() {
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (_, point) = POINTS.iter().find(|(name, _)| *name == line).unwrap();
        arm(*point);
        // On standard output, behind the line that says where the server is.
        println!("armed");
    }
}

/// A server that can be made to panic.
struct Server {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    ready: String,
    _folder: tempfile::TempDir,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        // Direct I/O needs a real disk.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let ssd = format!("path={},size=64MiB", folder.path().join("log").display());
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("serve").args(args).args(["--log-level", "off", "--with-parent"]);
        if args.first() != Some(&"master") {
            command.args(["--memory", "96MiB", "--ssd", &ssd]);
        }
        command.env_clear().env("XDG_STATE_HOME", folder.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut ready = String::new();
        output.read_line(&mut ready).unwrap();
        Self { child, output, ready, _folder: folder }
    }

    fn master(&self) -> String {
        let ready: Value = serde_json::from_str(&self.ready).unwrap();
        ready["master"].as_str().unwrap().to_owned()
    }

    fn arm(&mut self, point: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{point}").unwrap();
        let mut line = String::new();
        while line.trim() != "armed" {
            line.clear();
            // A timer may strike before this is said.
            if self.output.read_line(&mut line).unwrap() == 0 {
                return;
            }
        }
    }

    /// Its exit status and the last line of its errors.
    fn end(&mut self) -> (Option<i32>, String) {
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (self.child.wait().unwrap().code(), errors)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// Runs a client, whose own success does not matter here. It ends when its server does.
fn client(master: &str, args: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tiffin"));
    command.args(args).args(["--master", master, "--timeout", "20s"]).env_clear();
    command.stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null());
    command.status().unwrap();
}

fn check_failed((status, errors): (Option<i32>, String), point: &str) {
    assert_eq!(status, Some(1), "{point}: {errors}");
    let line = errors.lines().last().unwrap_or_default();
    let error: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{point}: {errors}"));
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("the server failed at") && message.contains("fault injected"), "{message}");
    assert!(error["error"]["hint"].as_str().unwrap().contains("restart the server"), "{error}");
}

fn store_ends_when_a_part_of_it_panics() {
    for (point, _) in POINTS {
        let mut server = Server::start(&[
            "up",
            "--listen",
            "127.0.0.1:0",
            "--http",
            "off",
            "--demotion",
            "write-through",
            "--json",
        ]);
        let master = server.master();
        server.arm(point);
        // A put passes every point: a connection, both cores, the timer, and the disk that it is written to.
        client(&master, &["put", "k", "--value", "v"]);
        check_failed(server.end(), point);
    }
}

fn master_ends_when_its_core_panics() {
    let mut server = Server::start(&["master", "--listen", "127.0.0.1:0", "--http", "off", "--json"]);
    let master = server.master();
    server.arm("master-core");
    client(&master, &["ls"]);
    check_failed(server.end(), "master-core");
}

fn node_ends_when_its_core_panics() {
    let mut master = Server::start(&["master", "--listen", "127.0.0.1:0", "--http", "off", "--json"]);
    let address = master.master();
    let mut node = Server::start(&["node", "--master", &address, "--json"]);
    // A heartbeat passes it.
    node.arm("node-core");
    check_failed(node.end(), "node-core");
    assert_eq!(master.child.try_wait().unwrap(), None, "the master lives on");
}

fn failure_is_text_without_json() {
    let mut server = Server::start(&["master", "--listen", "127.0.0.1:0", "--http", "off"]);
    server.arm("master-core");
    let address = server.ready.split_whitespace().find(|it| it.starts_with("127.0.0.1:")).unwrap();
    client(address.trim_end_matches(','), &["ls"]);
    let (status, errors) = server.end();
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.contains("error: the server failed at") && errors.contains("\n\nhint: "), "{errors}");
}
