//! A disk that fails while it is used, for real: what is said, and what is still there.
//!
//! Needs a filesystem of its own, which only root may mount; without, it says so and proves nothing.

#![expect(clippy::unwrap_used, reason = "a failure here is a failed test")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use tiffin_ssd::{
    AppendError, ChangeError, DiskLog, DiskLogConfig, Drive, Event, FaultKind, Generation, Limits, Name,
    Pieces, Record, RecordId, Span, wait,
};

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(60);
const LEN: u64 = 300_000;

struct Mounted {
    folder: PathBuf,
}

impl Mounted {
    fn new(name: &str) -> Option<Self> {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&folder));
        fs::create_dir_all(folder.join("mounted")).unwrap();
        let mounted = Self { folder };
        File::create(mounted.image()).unwrap().set_len(128 * MIB).unwrap();
        let is_made = run(Command::new("mkfs.ext4").arg("-qF").arg(mounted.image())) && mounted.mount();
        if !is_made {
            eprintln!("skipped: no filesystem can be mounted here, which only root may");
        }
        is_made.then_some(mounted)
    }

    fn image(&self) -> PathBuf {
        self.folder.join("image")
    }

    fn path(&self) -> PathBuf {
        self.folder.join("mounted")
    }

    fn mount(&self) -> bool {
        let options = ["-o", "loop,errors=remount-ro"];
        run(Command::new("mount").args(options).arg(self.image()).arg(self.path()))
    }

    fn unmount(&self) -> bool {
        run(Command::new("umount").arg(self.path()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.unmount() {
            run(Command::new("umount").arg("-l").arg(self.path()));
        }
        drop(fs::remove_dir_all(&self.folder));
    }
}

fn run(command: &mut Command) -> bool {
    command.output().is_ok_and(|it| it.status.success())
}

fn append(log: &DiskLog, counter: u64) -> Result<RecordId, AppendError> {
    let record = Record {
        name: Arc::new(Name { namespace: "n".into(), key: counter.to_le_bytes().to_vec() }),
        generation: Generation { epoch: 1, counter },
        attributes: Vec::new(),
        protected: false,
        payload_bytes: LEN,
    };
    let payload = Pieces::copy_of(&vec![counter as u8; LEN as usize]);
    wait(|done| log.append(record, payload, LONG, done))
}

fn is_there(log: &DiskLog, id: RecordId, counter: u64) -> bool {
    let into = Pieces::zeroed(LEN);
    let read = wait(|done| log.read(id, Span { offset: 0, len: LEN }, into.clone(), LONG, done));
    read == Ok(LEN) && into.to_vec() == vec![counter as u8; LEN as usize]
}

#[test]
fn read_only_filesystem_fails_the_log_and_loses_nothing() {
    for (name, drive) in [("auto", Drive::Auto), ("blocking", Drive::Blocking)] {
        let Some(mounted) = Mounted::new(&format!("read-only-{name}")) else { return };
        let config = DiskLogConfig {
            path: mounted.path().join("log"),
            budget_bytes: 34 * MIB,
            segment_bytes: Some(4 * MIB),
            limits: Limits::default(),
            drive,
        };
        let (tell, told) = channel();
        let opened = DiskLog::open(&config, move |event| drop(tell.send(event))).unwrap();
        let ids: Vec<_> = (0..20).map(|counter| append(&opened.log, counter).unwrap()).collect();
        assert!(run(Command::new("mount").args(["-o", "remount,abort"]).arg(mounted.path())));
        let Err(AppendError::Failed(fault)) = append(&opened.log, 20) else {
            panic!("{name}: nothing can be written");
        };
        assert_eq!(fault.kind, FaultKind::ReadOnly, "{name}: {fault}");
        assert!(fault.to_string().contains("Read-only file system"), "{name}: {fault}");
        assert!(fault.to_string().contains("hint:"), "{name}: {fault}");
        let is_failure = |it: &Event| matches!(it, Event::Failed(_));
        assert!(told.iter().any(|it| is_failure(&it)), "{name}: it is said");
        // It promises nothing any more, and still reads.
        let forgotten: Result<u64, ChangeError> = wait(|done| opened.log.forget(vec![ids[0]], LONG, done));
        assert!(matches!(forgotten, Err(ChangeError::Failed(_))), "{name}: {forgotten:?}");
        assert!((1..20).all(|at| is_there(&opened.log, ids[at as usize], at)), "{name}");
        drop(opened);
        assert!(!told.iter().any(|it| is_failure(&it)), "{name}: it is said once");
        let refused = DiskLog::open(&config, |_| {}).err().map(|it| it.to_string()).unwrap();
        assert!(refused.contains("Read-only file system"), "{name}: {refused}");
        // The kernel lets go of a ring's file a moment after the ring is closed.
        while !mounted.unmount() {
            std::thread::yield_now();
        }
        assert!(mounted.mount(), "{name}");
        let opened = DiskLog::open(&config, |_| {}).unwrap();
        assert!((1..20).all(|at| is_there(&opened.log, ids[at as usize], at)), "{name}");
        append(&opened.log, 21).unwrap();
        drop(opened);
    }
}
