//! Logs on a real filesystem with direct I/O: all engines behave the same.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use tiffin_ssd::{
    AppendError, DiskLog, DiskLogConfig, Drive, Generation, Left, Limits, Name, OpenError, Opened, Pieces,
    ReadError, Record, RecordId, SUM_BYTES, Span, wait,
};

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

/// A directory on the filesystem of the build, which is never tmpfs; taken away at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn config(folder: &Folder, drive: Drive) -> DiskLogConfig {
    DiskLogConfig {
        path: folder.0.clone(),
        budget_bytes: 34 * MIB,
        segment_bytes: Some(4 * MIB),
        limits: Limits::default(),
        drive,
    }
}

fn bytes(seed: u64, len: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(len as usize).collect()
}

fn record(key: u64, counter: u64, payload_bytes: u64) -> Record {
    Record {
        name: Arc::new(Name { namespace: "n".into(), key: key.to_le_bytes().to_vec() }),
        generation: Generation { epoch: 1, counter },
        attributes: vec![key as u8; 3],
        protected: false,
        payload_bytes,
    }
}

fn append(log: &DiskLog, key: u64, counter: u64, len: u64) -> Result<RecordId, AppendError> {
    let payload = Pieces::copy_of(&bytes(counter, len));
    wait(|done| log.append(record(key, counter, len), payload, LONG, done))
}

fn read(log: &DiskLog, id: RecordId, span: Span) -> Result<Vec<u8>, ReadError> {
    let into = Pieces::zeroed(span.len);
    wait(|done| log.read(id, span, into.clone(), LONG, done)).map(|_| into.to_vec())
}

fn whole(len: u64) -> Span {
    Span { offset: 0, len }
}

fn engines(check: impl Fn(Drive, &str)) {
    check(Drive::Blocking, "blocking");
    check(Drive::Auto, "auto");
}

#[test]
fn records_survive_a_restart_and_deletes_do_too() {
    engines(|drive, name| {
        let folder = Folder::new(&format!("restart-{name}"));
        let lens = [0, 1, 4095, 4096, 70_000, SUM_BYTES, SUM_BYTES + 1, 3 * SUM_BYTES - 5];
        let opened = DiskLog::open(&config(&folder, drive), |_| {}).unwrap();
        assert_eq!(opened.records, []);
        let mut ids = Vec::new();
        for (key, len) in (0..).zip(lens) {
            ids.push(append(&opened.log, key, key + 10, len).unwrap());
        }
        for ((key, len), id) in (0..).zip(lens).zip(&ids) {
            assert!(read(&opened.log, *id, whole(len)).unwrap() == bytes(key + 10, len), "{name} {len}");
        }
        assert_eq!(wait(|done| opened.log.forget(vec![ids[2], ids[4]], LONG, done)), Ok(2));
        assert_eq!(read(&opened.log, ids[2], whole(1)), Err(ReadError::Gone));
        wait(|done| opened.log.set_attributes(ids[1], b"pinned".to_vec(), true, LONG, done)).unwrap();
        drop(opened);

        let Opened { log, recovery, records, .. } = DiskLog::open(&config(&folder, drive), |_| {}).unwrap();
        assert_eq!(recovery.records, 6, "{name}");
        let found: Vec<RecordId> = records.iter().map(|(id, _)| *id).collect();
        assert_eq!(found, [ids[0], ids[1], ids[3], ids[5], ids[6], ids[7]]);
        assert_eq!((records[1].1.attributes.as_slice(), records[1].1.protected), (&b"pinned"[..], true));
        for (id, record) in &records {
            let expected = bytes(record.generation.counter, record.payload_bytes);
            assert!(read(&log, *id, whole(record.payload_bytes)).unwrap() == expected, "{name} {id}");
        }
        let newer = append(&log, 0, 99, 10).unwrap();
        assert!(!ids.contains(&newer), "ids are never used twice");
    });
}

#[test]
fn spans_and_memory_need_not_be_aligned() {
    engines(|drive, name| {
        let folder = Folder::new(&format!("spans-{name}"));
        let opened = DiskLog::open(&config(&folder, drive), |_| {}).unwrap();
        let len = 2 * SUM_BYTES + 777;
        let id = append(&opened.log, 1, 1, len).unwrap();
        let all = bytes(1, len);
        for (offset, len) in [(0, len), (1, 5), (SUM_BYTES - 1, 2), (SUM_BYTES, SUM_BYTES), (4096, SUM_BYTES)]
        {
            let got = read(&opened.log, id, Span { offset, len }).unwrap();
            assert!(got == all[offset as usize..(offset + len) as usize], "{name}: {len} at {offset}");
        }
        // Memory of the caller's that begins anywhere.
        let mut memory = vec![0u8; len as usize + 1];
        let at = std::ptr::NonNull::new(memory[1..].as_mut_ptr()).unwrap();
        support::read_unaligned(&opened.log, id, at, len);
        assert!(memory[1..] == all[..], "{name}");
        assert!(matches!(read(&opened.log, id, Span { offset: 1, len }), Err(ReadError::OutOfRange(..))));
    });
}

#[test]
fn records_larger_than_a_segment_are_stored_in_parts() {
    engines(|drive, name| {
        let folder = Folder::new(&format!("parts-{name}"));
        let large = DiskLogConfig { budget_bytes: 129 * MIB, ..config(&folder, drive) };
        let opened = DiskLog::open(&large, |_| {}).unwrap();
        let len = 9 * MIB + 777;
        let ids: Vec<RecordId> = (0..6).map(|key| append(&opened.log, key, key + 1, len).unwrap()).collect();
        let all = bytes(3, len);
        // The second part begins somewhere behind the second MiB.
        for (offset, len) in [(0, len), (2 * MIB - 1, 3 * MIB), (3 * MIB - 7, 2 * MIB + 9), (len - 5, 5)] {
            let got = read(&opened.log, ids[2], Span { offset, len }).unwrap();
            assert!(got == all[offset as usize..(offset + len) as usize], "{name}: {len} at {offset}");
        }
        let bytes_max = opened.log.stats().record_bytes_max;
        assert!(bytes_max > 40 * MIB, "{bytes_max}");
        let refused = append(&opened.log, 90, 90, bytes_max + 1);
        assert_eq!(refused, Err(AppendError::TooLarge { bytes: bytes_max + 1, bytes_max }));
        assert_eq!(wait(|done| opened.log.forget(vec![ids[1]], LONG, done)), Ok(1));
        drop(opened);
        let opened = DiskLog::open(&large, |_| {}).unwrap();
        assert_eq!((opened.recovery.records, opened.recovery.records_bad), (5, 0), "{name}");
        for (id, record) in &opened.records {
            let expected = bytes(record.generation.counter, record.payload_bytes);
            assert!(read(&opened.log, *id, whole(record.payload_bytes)).unwrap() == expected, "{name}");
        }
        // As large as can be: others leave for it.
        let id = append(&opened.log, 91, 91, bytes_max).unwrap();
        assert!(read(&opened.log, id, whole(bytes_max)).unwrap() == bytes(91, bytes_max));
    });
}

#[test]
fn full_log_evicts_the_oldest_unprotected_records() {
    engines(|drive, name| {
        let folder = Folder::new(&format!("evict-{name}"));
        let (send, left) = channel();
        let opened = DiskLog::open(&config(&folder, drive), move |event| drop(send.send(event))).unwrap();
        let mut kept = record(1000, 1, 300_000);
        kept.protected = true;
        let payload = Pieces::copy_of(&bytes(1, 300_000));
        let kept = wait(|done| opened.log.append(kept, payload, LONG, done)).unwrap();
        for key in 0..200 {
            append(&opened.log, key, key + 10, 500_000).unwrap();
        }
        let evicted =
            left.try_iter().filter(|event| matches!(event, tiffin_ssd::Event::Left(Left::Evicted, _)));
        assert!(evicted.count() > 3, "{name}");
        assert!(read(&opened.log, kept, whole(300_000)).unwrap() == bytes(1, 300_000));
        let stats = opened.log.stats();
        assert!(stats.live_bytes <= 34 * MIB && stats.evicted > 100, "{name}: {stats:?}");
        drop(opened);
        let size = std::fs::metadata(folder.0.join("records.tiffin")).unwrap().len();
        assert!(size <= 34 * MIB, "{size} bytes on the disk");
        let opened = DiskLog::open(&config(&folder, drive), |_| {}).unwrap();
        for (id, record) in &opened.records {
            let expected = bytes(record.generation.counter, record.payload_bytes);
            assert!(read(&opened.log, *id, whole(record.payload_bytes)).unwrap() == expected, "{name}");
        }
        assert!(opened.records.iter().any(|(id, _)| *id == kept));
    });
}

#[test]
fn unusable_paths_are_refused_with_a_hint() {
    let folder = Folder::new("places");
    let good = config(&folder, Drive::Auto);
    let open = |config: &DiskLogConfig| DiskLog::open(config, |_| {}).err().map(|error| error.to_string());
    let opened = DiskLog::open(&good, |_| {}).unwrap();
    let in_use = open(&good).unwrap();
    assert!(in_use.contains(&format!("in use by pid {}", std::process::id())), "{in_use}");
    drop(opened);

    let huge = DiskLogConfig { budget_bytes: 1 << 50, ..good.clone() };
    let text = open(&huge).unwrap();
    assert!(
        text.contains("1125899906842624 bytes do not fit") && text.contains("hint: give at most"),
        "{text}"
    );

    let small = DiskLogConfig { budget_bytes: 3 * MIB, segment_bytes: None, ..good.clone() };
    assert!(open(&small).is_some());
    let shrunk = DiskLogConfig { budget_bytes: 26 * MIB, ..good.clone() };
    let text = open(&shrunk).unwrap();
    assert!(text.contains("give at least as much as before"), "{text}");

    let file = DiskLogConfig { path: folder.0.join("lock"), ..good.clone() };
    assert!(open(&file).unwrap().contains("is a file"));
    let nowhere = DiskLogConfig { path: folder.0.join("a/b"), ..good.clone() };
    assert!(matches!(DiskLog::open(&nowhere, |_| {}), Err(OpenError::System { .. })));

    let records = folder.0.join("records.tiffin");
    let mut image = std::fs::read(&records).unwrap();
    for at in [8, 4096 + 8] {
        image[at] = 7;
    }
    std::fs::write(&records, &image).unwrap();
    let text = open(&good).unwrap();
    assert!(text.contains("format version 7"), "{text}");
}

#[test]
fn damaged_record_is_dropped_alone() {
    let folder = Folder::new("damage");
    let opened = DiskLog::open(&config(&folder, Drive::Auto), |_| {}).unwrap();
    let ids: Vec<RecordId> = (0..3).map(|key| append(&opened.log, key, key + 1, 100_000).unwrap()).collect();
    drop(opened);
    let records = folder.0.join("records.tiffin");
    let mut image = std::fs::read(&records).unwrap();
    let needle = &bytes(2, 64);
    let at = image.windows(64).position(|window| window == needle).unwrap();
    let opened = DiskLog::open(&config(&folder, Drive::Auto), |_| {}).unwrap();
    image[at + 5] ^= 1;
    std::fs::write(&records, &image).unwrap();
    let damaged = read(&opened.log, ids[1], whole(100_000)).map(|bytes| bytes.len());
    assert_eq!(damaged, Err(ReadError::Corrupt));
    assert_eq!(read(&opened.log, ids[1], whole(100_000)), Err(ReadError::Gone));
    assert!(read(&opened.log, ids[0], whole(100_000)).unwrap() == bytes(1, 100_000));
    assert_eq!(opened.log.stats().corrupt, 1);
}

#[test]
fn concurrent_readers_share_a_read() {
    let folder = Folder::new("share");
    let opened = DiskLog::open(&config(&folder, Drive::Auto), |_| {}).unwrap();
    let id = append(&opened.log, 1, 1, 2 * SUM_BYTES).unwrap();
    let (send, answers) = channel();
    let into: Vec<Pieces> = (0..40).map(|_| Pieces::zeroed(2 * SUM_BYTES)).collect();
    for pieces in &into {
        let send = send.clone();
        let done = move |result| drop(send.send(result));
        opened.log.read(id, whole(2 * SUM_BYTES), pieces.clone(), LONG, done);
    }
    for _ in &into {
        assert_eq!(answers.recv().unwrap(), Ok(2 * SUM_BYTES));
    }
    assert!(into.iter().all(|pieces| pieces.to_vec() == bytes(1, 2 * SUM_BYTES)));
    let late: Result<(), _> = wait(|done| opened.log.flush(Duration::ZERO, done));
    assert!(late.is_ok() || late == Err(tiffin_ssd::ChangeError::TimedOut));
}

mod support {
    //! The one place here that hands memory of its own over.

    use std::ptr::NonNull;
    use std::sync::Arc;

    use tiffin_ssd::{DiskLog, Pieces, RecordId, Span, wait};

    pub(super) fn read_unaligned(log: &DiskLog, id: RecordId, at: NonNull<u8>, len: u64) {
        // SAFETY: the caller's memory outlives this call, which waits for the read, and nobody else uses it.
        let into = unsafe { Pieces::new([(at, len as usize)], Arc::new(())) };
        let span = Span { offset: 0, len };
        let read = wait(|done| log.read(id, span, into, std::time::Duration::from_secs(60), done));
        assert_eq!(read, Ok(len));
    }
}

#[test]
fn killed_process_leaves_complete_records() {
    for (name, flag) in [("auto", None), ("blocking", Some("--blocking"))] {
        let folder = Folder::new(&format!("killed-{name}"));
        let torture = std::process::Command::new(env!("CARGO_BIN_EXE_ssd-torture"))
            .arg("--path")
            .arg(&folder.0)
            .args(["--rounds", "6", "--seed", "11"])
            .args(flag)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&torture.stderr);
        assert!(torture.status.success(), "{name}: {text}");
        assert!(String::from_utf8_lossy(&torture.stdout).contains("\"recovered\""));
    }
}
