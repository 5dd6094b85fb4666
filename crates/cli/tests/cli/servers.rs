//! Start and stop of servers.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::{Ran, Server, tiffin};

/// A control group below ours that limits memory; removed when dropped.
struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// `Err` with the reason if this user cannot create one.
    fn new(bytes: u64) -> Result<Self, String> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let path = |line: &str| Some(line.split_once(":memory:")?.1.trim_start_matches('/').to_owned());
        let (parent, limit) = match groups.lines().find_map(path) {
            Some(path) => (PathBuf::from("/sys/fs/cgroup/memory").join(path), "memory.limit_in_bytes"),
            None => {
                let path = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
                (PathBuf::from("/sys/fs/cgroup").join(path), "memory.max")
            }
        };
        let group = Self(parent.join(format!("tiffin-test-{}", std::process::id())));
        std::fs::create_dir(&group.0).map_err(|error| format!("{}: {error}", group.0.display()))?;
        let limit = group.0.join(limit);
        // In version 2 the file is missing if the parent does not enable the controller.
        let written = std::fs::OpenOptions::new().write(true).open(&limit);
        let written = written.and_then(|mut file| file.write_all(bytes.to_string().as_bytes()));
        written.map_err(|error| format!("{}: {error}", limit.display()))?;
        Ok(group)
    }

    /// Runs a command inside, to its end.
    fn run(&self, args: &[&str]) -> Ran {
        let mut command = Command::new("sh");
        let enter = format!("echo $$ > '{}/cgroup.procs' && exec \"$@\"", self.0.display());
        command.args(["-c", &enter, "sh", env!("CARGO_BIN_EXE_tiffin")]).args(args);
        command.env("HOME", env!("CARGO_TARGET_TMPDIR"));
        crate::ran(command, b"")
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        drop(std::fs::remove_dir(&self.0));
    }
}

#[test]
fn memory_beyond_the_control_group_is_rejected() {
    let group = match MemoryGroup::new(400 << 20) {
        Ok(group) => group,
        Err(why) => return eprintln!("skipped, because no control group can be created: {why}"),
    };
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap().to_string();
    let node = ["node", "--memory", "1GiB", "--master", &address, "--json", "--log-level", "error"];
    let up = ["up", "--listen", "127.0.0.1:0", "--http", "off", "--memory", "1GiB", "--json"];
    for args in [&node[..], &up[..]] {
        let ran = group.run(args);
        let error = ran.error().to_string();
        assert!(error.contains("the control group limits this process to 400.0 MiB"), "{error}");
        assert!(error.contains("raise that limit"), "{error}");
    }
}

#[test]
fn every_server_stops_cleanly_on_a_signal() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut master = Server::master(&[]);
        let mut node = Server::node(&master, &[]);
        let mut up = Server::up(&[]);
        let address = up.address().to_owned();
        up.run(["put", "k", "--value", "v"]).ok();
        for server in [&mut node, &mut master, &mut up] {
            assert_eq!(server.stop(signal).code(), Some(0), "{signal:?}");
        }
        TcpListener::bind(address).expect("the port is free again");
        let gone = up.run(["get", "k", "--json"]).error();
        assert_eq!(gone["code"], "unreachable");
        assert!(gone["message"].as_str().unwrap().contains(up.address()), "{gone}");
    }
}

#[test]
fn servers_survive_a_log_on_a_full_disk() {
    let folder = tempfile::tempdir().unwrap();
    for args in [&["master", "--log-level", "info"][..], &["up", "--memory", "1MiB", "--log-level", "debug"]]
    {
        let mut command = tiffin();
        command.args(args).args(["--listen", "127.0.0.1:0", "--http", "off", "--json"]);
        command.env("XDG_STATE_HOME", folder.path()).stdout(Stdio::piped());
        // Every write to this device fails as on a full disk.
        command.stderr(std::fs::File::options().write(true).open("/dev/full").unwrap());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
        let mut stat = tiffin();
        stat.args(["stat", "--json", "--master", ready["master"].as_str().unwrap()]);
        crate::ran(stat, b"").ok();
        crate::send(&child, Signal::TERM);
        assert_eq!(child.wait().unwrap().code(), Some(0), "{args:?}");
    }
}

#[test]
fn node_without_a_master_stops_on_a_signal() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap().to_string();
    let mut command = tiffin();
    command.args(["node", "--memory", "1MiB", "--master", &address, "--log-level", "error"]);
    let mut child = command.spawn().unwrap();
    // It installs signal handlers before it connects.
    let silent = nobody.accept().unwrap();
    crate::send(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    drop(silent);
}

#[test]
fn restarted_master_has_a_later_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let state = ["--state-dir", folder.path().to_str().unwrap()];
    let epochs = [1, 2].map(|_| Server::master(&state).ready["epoch"].as_u64().unwrap());
    assert!(epochs[0] < epochs[1], "{epochs:?}");
}

#[test]
fn state_folder_has_one_master_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let mut first = Server::master(&["--state-dir", path]);
    let epoch = first.ready["epoch"].as_u64().unwrap();
    let mut second = tiffin();
    second.args(["master", "--listen", "127.0.0.1:0", "--http", "off", "--state-dir", path]);
    second.args(["--json", "--log-level", "off"]);
    let error = crate::ran(second, b"").error();
    assert_eq!(error["code"], "state", "{error}");
    assert!(error["message"].as_str().unwrap().contains(path), "{error}");
    // The first one is not disturbed, also after it has run for a while.
    assert!(first.run(["stat", "--json"]).json()["nodes"].as_array().unwrap().is_empty());
    // A dead master holds no lock.
    first.stop(Signal::KILL);
    let third = Server::master(&["--state-dir", path]);
    assert!(third.ready["epoch"].as_u64().unwrap() > epoch);
}

#[test]
fn up_shows_warnings_and_stops_without_any() {
    // Direct I/O needs a real disk.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let ssd = format!("path={},size=64MiB", folder.path().join("log").display());
    let mut command = tiffin();
    command.args(["up", "--listen", "127.0.0.1:0", "--http", "off", "--memory", "96MiB", "--ssd", &ssd]);
    let mut child = command
        .arg("--json")
        .env("XDG_STATE_HOME", folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
    // Most of the memory, so that the master demotes it, and more than the disk takes.
    let value = vec![b'x'; 80 << 20];
    let client = |args: &[&str]| {
        let mut command = tiffin();
        command.args(args).env("TIFFIN_MASTER", ready["master"].as_str().unwrap());
        command
    };
    crate::ran(client(&["put", "clé"]), &value).ok();
    while crate::ran(client(&["stat", "--json"]), b"").json()["tier"]["demotions_refused"] == 0 {}
    crate::send(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let log = String::from_utf8(output.stderr).unwrap();
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("WARN")).collect();
    let [warning] = warnings[..] else { panic!("{log}") };
    for part in ["exceeds the size limit of its disk", "key=clé", "hint: "] {
        assert!(warning.contains(part), "{warning}");
    }
}

#[test]
fn commands_shown_by_up_work_in_a_shell() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = tiffin();
    command.args(["up", "--listen", "127.0.0.1:0", "--http", "off", "--memory", "8MiB"]);
    let mut child = command
        .env("XDG_STATE_HOME", folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = Vec::new();
    for line in BufReader::new(child.stdout.as_mut().unwrap()).lines() {
        lines.push(line.unwrap());
        if lines.last().unwrap().starts_with("Ctrl-C") {
            break;
        }
    }
    let program = env!("CARGO_BIN_EXE_tiffin");
    let shown: Vec<_> =
        lines.iter().map(|line| line.trim()).filter(|line| line.starts_with(program)).collect();
    assert_eq!(shown.len(), 3, "{lines:#?}");
    let output = Command::new("sh").arg("-ec").arg(shown.join("\n")).env_clear().output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("created `greeting`: 5 B") && text.contains("hello"), "{text}");
    crate::send(&child, Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(!log.contains('\x1b'), "colours in a pipe: {log}");
}
