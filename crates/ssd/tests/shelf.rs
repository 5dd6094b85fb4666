//! Shelves on a real filesystem with direct I/O: one behaviour, whichever engine drives them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use tiffin_ssd::{
    AppendError, Drive, Generation, Left, Limits, Name, OpenError, Opened, Pieces, ReadError, Record,
    RecordId, SUM_BYTES, Shelf, ShelfConfig, Span, wait,
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

fn config(folder: &Folder, drive: Drive) -> ShelfConfig {
    ShelfConfig {
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
        marks: vec![key as u8; 3],
        protected: false,
        payload_bytes,
    }
}

fn append(shelf: &Shelf, key: u64, counter: u64, len: u64) -> Result<RecordId, AppendError> {
    let payload = Pieces::copy_of(&bytes(counter, len));
    wait(|done| shelf.append(record(key, counter, len), payload, LONG, done))
}

fn read(shelf: &Shelf, id: RecordId, span: Span) -> Result<Vec<u8>, ReadError> {
    let into = Pieces::zeroed(span.len);
    wait(|done| shelf.read(id, span, into.clone(), LONG, done)).map(|_| into.to_vec())
}

fn whole(len: u64) -> Span {
    Span { offset: 0, len }
}

fn engines(check: impl Fn(Drive, &str)) {
    check(Drive::Blocking, "blocking");
    check(Drive::Auto, "auto");
}

#[test]
fn what_is_kept_is_there_after_a_restart_and_what_is_forgotten_is_not() {
    engines(|drive, name| {
        let folder = Folder::new(&format!("restart-{name}"));
        let lens = [0, 1, 4095, 4096, 70_000, SUM_BYTES, SUM_BYTES + 1, 3 * SUM_BYTES - 5];
        let opened = Shelf::open(&config(&folder, drive), |_| {}).unwrap();
        assert_eq!(opened.records, []);
        let mut ids = Vec::new();
        for (key, len) in (0..).zip(lens) {
            ids.push(append(&opened.shelf, key, key + 10, len).unwrap());
        }
        for ((key, len), id) in (0..).zip(lens).zip(&ids) {
            assert!(read(&opened.shelf, *id, whole(len)).unwrap() == bytes(key + 10, len), "{name} {len}");
        }
        assert_eq!(wait(|done| opened.shelf.forget(vec![ids[2], ids[4]], LONG, done)), Ok(2));
        assert_eq!(read(&opened.shelf, ids[2], whole(1)), Err(ReadError::Gone));
        wait(|done| opened.shelf.mark(ids[1], b"pinned".to_vec(), true, LONG, done)).unwrap();
        drop(opened);

        let Opened { shelf, recovery, records, .. } = Shelf::open(&config(&folder, drive), |_| {}).unwrap();
        assert_eq!(recovery.records, 6, "{name}");
        let found: Vec<RecordId> = records.iter().map(|(id, _)| *id).collect();
        assert_eq!(found, [ids[0], ids[1], ids[3], ids[5], ids[6], ids[7]]);
        assert_eq!((records[1].1.marks.as_slice(), records[1].1.protected), (&b"pinned"[..], true));
        for (id, record) in &records {
            let expected = bytes(record.generation.counter, record.payload_bytes);
            assert!(read(&shelf, *id, whole(record.payload_bytes)).unwrap() == expected, "{name} {id}");
        }
        let newer = append(&shelf, 0, 99, 10).unwrap();
        assert!(!ids.contains(&newer), "ids are never used twice");
    });
}

#[test]
fn spans_and_memory_need_not_be_aligned() {
    engines(|drive, name| {
        let folder = Folder::new(&format!("spans-{name}"));
        let opened = Shelf::open(&config(&folder, drive), |_| {}).unwrap();
        let len = 2 * SUM_BYTES + 777;
        let id = append(&opened.shelf, 1, 1, len).unwrap();
        let all = bytes(1, len);
        for (offset, len) in [(0, len), (1, 5), (SUM_BYTES - 1, 2), (SUM_BYTES, SUM_BYTES), (4096, SUM_BYTES)]
        {
            let got = read(&opened.shelf, id, Span { offset, len }).unwrap();
            assert!(got == all[offset as usize..(offset + len) as usize], "{name}: {len} at {offset}");
        }
        // Memory of the caller's that begins anywhere.
        let mut memory = vec![0u8; len as usize + 1];
        let at = std::ptr::NonNull::new(memory[1..].as_mut_ptr()).unwrap();
        support::read_unaligned(&opened.shelf, id, at, len);
        assert!(memory[1..] == all[..], "{name}");
        assert!(matches!(read(&opened.shelf, id, Span { offset: 1, len }), Err(ReadError::OutOfRange(..))));
    });
}

#[test]
fn records_larger_than_a_segment_are_kept_in_parts() {
    engines(|drive, name| {
        let folder = Folder::new(&format!("parts-{name}"));
        let large = ShelfConfig { budget_bytes: 129 * MIB, ..config(&folder, drive) };
        let opened = Shelf::open(&large, |_| {}).unwrap();
        let len = 9 * MIB + 777;
        let ids: Vec<RecordId> =
            (0..6).map(|key| append(&opened.shelf, key, key + 1, len).unwrap()).collect();
        let all = bytes(3, len);
        // The second part begins somewhere behind the second MiB.
        for (offset, len) in [(0, len), (2 * MIB - 1, 3 * MIB), (3 * MIB - 7, 2 * MIB + 9), (len - 5, 5)] {
            let got = read(&opened.shelf, ids[2], Span { offset, len }).unwrap();
            assert!(got == all[offset as usize..(offset + len) as usize], "{name}: {len} at {offset}");
        }
        let bytes_max = opened.shelf.stats().record_bytes_max;
        assert!(bytes_max > 40 * MIB, "{bytes_max}");
        let refused = append(&opened.shelf, 90, 90, bytes_max + 1);
        assert_eq!(refused, Err(AppendError::TooLarge { bytes: bytes_max + 1, bytes_max }));
        assert_eq!(wait(|done| opened.shelf.forget(vec![ids[1]], LONG, done)), Ok(1));
        drop(opened);
        let opened = Shelf::open(&large, |_| {}).unwrap();
        assert_eq!((opened.recovery.records, opened.recovery.records_bad), (5, 0), "{name}");
        for (id, record) in &opened.records {
            let expected = bytes(record.generation.counter, record.payload_bytes);
            assert!(read(&opened.shelf, *id, whole(record.payload_bytes)).unwrap() == expected, "{name}");
        }
        // As large as can be: others leave for it.
        let id = append(&opened.shelf, 91, 91, bytes_max).unwrap();
        assert!(read(&opened.shelf, id, whole(bytes_max)).unwrap() == bytes(91, bytes_max));
    });
}

#[test]
fn the_oldest_leave_when_the_budget_is_used_up_and_the_protected_stay() {
    engines(|drive, name| {
        let folder = Folder::new(&format!("evict-{name}"));
        let (send, left) = channel();
        let opened = Shelf::open(&config(&folder, drive), move |event| drop(send.send(event))).unwrap();
        let mut kept = record(1000, 1, 300_000);
        kept.protected = true;
        let payload = Pieces::copy_of(&bytes(1, 300_000));
        let kept = wait(|done| opened.shelf.append(kept, payload, LONG, done)).unwrap();
        for key in 0..200 {
            append(&opened.shelf, key, key + 10, 500_000).unwrap();
        }
        let evicted =
            left.try_iter().filter(|event| matches!(event, tiffin_ssd::Event::Left(Left::Evicted, _)));
        assert!(evicted.count() > 3, "{name}");
        assert!(read(&opened.shelf, kept, whole(300_000)).unwrap() == bytes(1, 300_000));
        let stats = opened.shelf.stats();
        assert!(stats.live_bytes <= 34 * MIB && stats.evicted > 100, "{name}: {stats:?}");
        drop(opened);
        let size = std::fs::metadata(folder.0.join("records.tiffin")).unwrap().len();
        assert!(size <= 34 * MIB, "{size} bytes on the disk");
        let opened = Shelf::open(&config(&folder, drive), |_| {}).unwrap();
        for (id, record) in &opened.records {
            let expected = bytes(record.generation.counter, record.payload_bytes);
            assert!(read(&opened.shelf, *id, whole(record.payload_bytes)).unwrap() == expected, "{name}");
        }
        assert!(opened.records.iter().any(|(id, _)| *id == kept));
    });
}

#[test]
fn places_that_cannot_be_used_are_refused_with_a_hint() {
    let folder = Folder::new("places");
    let good = config(&folder, Drive::Auto);
    let open = |config: &ShelfConfig| Shelf::open(config, |_| {}).err().map(|error| error.to_string());
    let opened = Shelf::open(&good, |_| {}).unwrap();
    let in_use = open(&good).unwrap();
    assert!(in_use.contains(&format!("in use by pid {}", std::process::id())), "{in_use}");
    drop(opened);

    let huge = ShelfConfig { budget_bytes: 1 << 50, ..good.clone() };
    let text = open(&huge).unwrap();
    assert!(
        text.contains("1125899906842624 bytes do not fit") && text.contains("hint: give at most"),
        "{text}"
    );

    let small = ShelfConfig { budget_bytes: 3 * MIB, segment_bytes: None, ..good.clone() };
    assert!(open(&small).is_some());
    let shrunk = ShelfConfig { budget_bytes: 26 * MIB, ..good.clone() };
    let text = open(&shrunk).unwrap();
    assert!(text.contains("give at least as much as before"), "{text}");

    let file = ShelfConfig { path: folder.0.join("lock"), ..good.clone() };
    assert!(open(&file).unwrap().contains("is a file"));
    let nowhere = ShelfConfig { path: folder.0.join("a/b"), ..good.clone() };
    assert!(matches!(Shelf::open(&nowhere, |_| {}), Err(OpenError::System { .. })));

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
fn a_damaged_record_is_dropped_and_others_are_not() {
    let folder = Folder::new("damage");
    let opened = Shelf::open(&config(&folder, Drive::Auto), |_| {}).unwrap();
    let ids: Vec<RecordId> =
        (0..3).map(|key| append(&opened.shelf, key, key + 1, 100_000).unwrap()).collect();
    drop(opened);
    let records = folder.0.join("records.tiffin");
    let mut image = std::fs::read(&records).unwrap();
    let needle = &bytes(2, 64);
    let at = image.windows(64).position(|window| window == needle).unwrap();
    let opened = Shelf::open(&config(&folder, Drive::Auto), |_| {}).unwrap();
    image[at + 5] ^= 1;
    std::fs::write(&records, &image).unwrap();
    let damaged = read(&opened.shelf, ids[1], whole(100_000)).map(|bytes| bytes.len());
    assert_eq!(damaged, Err(ReadError::Corrupt));
    assert_eq!(read(&opened.shelf, ids[1], whole(100_000)), Err(ReadError::Gone));
    assert!(read(&opened.shelf, ids[0], whole(100_000)).unwrap() == bytes(1, 100_000));
    assert_eq!(opened.shelf.stats().corrupt, 1);
}

#[test]
fn many_readers_of_one_record_share_a_read_and_operations_have_deadlines() {
    let folder = Folder::new("share");
    let opened = Shelf::open(&config(&folder, Drive::Auto), |_| {}).unwrap();
    let id = append(&opened.shelf, 1, 1, 2 * SUM_BYTES).unwrap();
    let (send, answers) = channel();
    let into: Vec<Pieces> = (0..40).map(|_| Pieces::zeroed(2 * SUM_BYTES)).collect();
    for pieces in &into {
        let send = send.clone();
        let done = move |result| drop(send.send(result));
        opened.shelf.read(id, whole(2 * SUM_BYTES), pieces.clone(), LONG, done);
    }
    for _ in &into {
        assert_eq!(answers.recv().unwrap(), Ok(2 * SUM_BYTES));
    }
    assert!(into.iter().all(|pieces| pieces.to_vec() == bytes(1, 2 * SUM_BYTES)));
    let late: Result<(), _> = wait(|done| opened.shelf.flush(Duration::ZERO, done));
    assert!(late.is_ok() || late == Err(tiffin_ssd::ChangeError::TimedOut));
}

mod support {
    //! The one place here that hands memory of its own over.

    use std::ptr::NonNull;
    use std::sync::Arc;

    use tiffin_ssd::{Pieces, RecordId, Shelf, Span, wait};

    pub(super) fn read_unaligned(shelf: &Shelf, id: RecordId, at: NonNull<u8>, len: u64) {
        // SAFETY: the caller's memory outlives this call, which waits for the read, and nobody else uses it.
        let into = unsafe { Pieces::new([(at, len as usize)], Arc::new(())) };
        let span = Span { offset: 0, len };
        let read = wait(|done| shelf.read(id, span, into, std::time::Duration::from_secs(60), done));
        assert_eq!(read, Ok(len));
    }
}

#[test]
fn a_killed_process_leaves_records_with_their_bytes_or_none() {
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
