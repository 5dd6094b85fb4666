//! A memory pool: the files of a node's memory in a folder of a tmpfs, where they outlive the node's process.
//!
//! The folder has the files `control`, `data` and `claims`, whose content is that of the memory files of a
//! node without a pool (see `docs/format.md`), `lock`, which the running node has locked, `ledger`, the
//! journal of the ledger, and `stamps`, the secret from which the stamps follow.
//!
//! **Invariant:** one process at a time has a pool: it holds the lock until it ends, however it ends.
//!
//! **Invariant:** a pool that cannot be used is left as it is. Only one whose creation was cut off, so that
//! its header has no magic, is made anew.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock, fstat, fstatfs, fstatvfs};
use tokio::sync::watch;

use crate::Extent;
use crate::journal;
use crate::layout::{self, Geometry, header};

/// The type of a tmpfs, as `statfs` names it.
const TMPFS: u64 = 0x0102_1994;
const CONTROL: &str = "control";
const DATA: &str = "data";
const CLAIMS: &str = "claims";
const LOCK: &str = "lock";
const MASTER: &str = "master";
const STAMP_KEY: &str = "stamps";
/// Bytes of the secret from which the stamps follow.
const STAMP_KEY_BYTES: usize = 16;
/// Bytes that are allocated between two lines of progress.
const ALLOCATE_BYTES: u64 = 8 << 30;
/// The journal of the ledger, see [`journal`]; and its name while it is made.
const JOURNALS: [&str; 2] = ["ledger", "ledger.new"];
/// Bytes of the lock file that are read: it names a process.
const HOLDER_BYTES_MAX: u64 = 32;
/// Bytes of the file with the address of the master that are read.
const MASTER_BYTES_MAX: u64 = 4096;

/// Why a memory pool cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The system refuses.
    #[error("memory pool `{}`: {what} failed: {source}\n\nhint: {hint}", .path.display())]
    System {
        /// The folder.
        path: PathBuf,
        /// The failed step.
        what: &'static str,
        /// The system's error.
        source: io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// The folder is not in memory.
    #[error(
        "memory pool `{}` is not on a tmpfs\n\nhint: use a folder in `/dev/shm` or on another tmpfs, or \
         `--pool off`",
        .path.display()
    )]
    NotMemory {
        /// The folder.
        path: PathBuf,
    },
    /// Other users could read or replace it.
    #[error(
        "memory pool `{}` is not private: {what}\n\nhint: it must belong to the user of the node, with mode \
         0700; remove it or use another folder (`--pool`)",
        .path.display()
    )]
    NotPrivate {
        /// The folder.
        path: PathBuf,
        /// The problem.
        what: String,
    },
    /// Another node runs on it.
    #[error(
        "memory pool `{}` is in use by process {holder}\n\nhint: stop that node, or give this one another \
         name (`--name`) or folder (`--pool`)",
        .path.display()
    )]
    InUse {
        /// The folder.
        path: PathBuf,
        /// The process, as far as it is known.
        holder: String,
    },
    /// The tmpfs is too small.
    #[error("{}", no_space(.path, *.wanted, *.available))]
    NoSpace {
        /// The folder.
        path: PathBuf,
        /// Bytes that the pool still needs.
        wanted: u64,
        /// Bytes that are available there.
        available: u64,
    },
    /// It has another format, or is damaged. It was left as it is.
    #[error(
        "memory pool `{}` cannot be adopted: {what}\n\nhint: nothing was changed; start the version that \
         made it, or move the folder away to start with empty memory",
        .path.display()
    )]
    Invalid {
        /// The folder.
        path: PathBuf,
        /// The problem.
        what: String,
    },
}

impl PoolError {
    /// Whether this machine has no place for the pool: no tmpfs, or not enough space on it.
    #[must_use]
    pub fn has_no_place(&self) -> bool {
        use io::ErrorKind as Kind;
        match self {
            Self::NoSpace { .. } | Self::NotMemory { .. } => true,
            Self::System { source, .. } => matches!(
                source.kind(),
                Kind::NotFound
                    | Kind::PermissionDenied
                    | Kind::NotADirectory
                    | Kind::ReadOnlyFilesystem
                    | Kind::StorageFull
            ),
            Self::NotPrivate { .. } | Self::InUse { .. } | Self::Invalid { .. } => false,
        }
    }
}

fn no_space(path: &Path, wanted: u64, available: u64) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    format!(
        "memory pool `{}` needs {:.1} MiB, and its tmpfs has {:.1} MiB\n\nhint: enlarge the tmpfs (`mount -o \
         remount,size=…`, `docker run --shm-size=…`), ask for less memory (`--memory`), or use memory that \
         ends with the process (`--pool off`)",
        path.display(),
        mib(wanted),
        mib(available)
    )
}

/// A locked pool.
#[derive(Debug)]
pub struct Pool {
    folder: PathBuf,
    /// The lock ends when this is closed.
    lock: File,
    /// Dropped after every lock: then the pool may be opened again.
    end: watch::Sender<()>,
}

/// Whether a folder is on a tmpfs; `None` if it does not exist.
fn is_on_tmpfs(folder: &Path) -> Option<bool> {
    let kind = fstatfs(File::open(folder).ok()?).ok()?;
    Some(u64::try_from(kind.f_type).ok() == Some(TMPFS))
}

impl Pool {
    /// Whether this folder contains a pool.
    #[must_use]
    pub fn exists(folder: &Path) -> bool {
        folder.join(CONTROL).exists()
    }

    /// Whether a process has the pool in a folder. Another one may take it at any time: only [`Pool::open`]
    /// is certain.
    #[must_use]
    pub fn is_in_use(folder: &Path) -> bool {
        let Ok(lock) = File::open(folder.join(LOCK)) else { return false };
        // The lock ends with the descriptor.
        flock(&lock, FlockOperation::NonBlockingLockShared) == Err(rustix::io::Errno::WOULDBLOCK)
    }

    /// The address of the master that its node was last started with, as it was given.
    #[must_use]
    pub fn master_in(folder: &Path) -> Option<String> {
        let mut text = String::new();
        let file = File::open(folder.join(MASTER)).ok()?;
        file.take(MASTER_BYTES_MAX).read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// Stores the address of the master, for [`Self::master_in`].
    pub fn set_master(&self, master: &str) -> io::Result<()> {
        let mut file = file_options().create(true).truncate(true).open(self.folder.join(MASTER))?;
        file.write_all(master.as_bytes())
    }

    /// Makes the folder if it does not exist, and locks it.
    pub fn open(folder: &Path) -> Result<Self, PoolError> {
        // Another process is told where it is, and this one may change its working directory.
        let folder = &std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        let path = || folder.to_owned();
        let fail = |what, hint| move |source| PoolError::System { path: path(), what, source, hint };
        let hint = "use a folder that the node may write (`--pool`), or `--pool off`";
        // A folder that is of no use is not made.
        if folder.ancestors().find_map(is_on_tmpfs) == Some(false) {
            return Err(PoolError::NotMemory { path: path() });
        }
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(fail("making the folder", hint))?;
        let opened = File::open(folder).map_err(fail("opening the folder", hint))?;
        let found = opened.metadata().map_err(fail("reading the folder", hint))?;
        let own = rustix::process::getuid().as_raw();
        if found.uid() != own || found.mode() & 0o077 != 0 {
            let what = format!("user {}, mode {:04o}", found.uid(), found.mode() & 0o7777);
            return Err(PoolError::NotPrivate { path: path(), what });
        }
        let lock = file_options().create(true).open(folder.join(LOCK));
        let mut lock = lock.map_err(fail("opening the lock", hint))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                let read = (&lock).take(HOLDER_BYTES_MAX).read_to_string(&mut holder);
                let is_known = read.is_ok() && !holder.trim().is_empty();
                let holder = if is_known { holder.trim().to_owned() } else { "unknown".to_owned() };
                return Err(PoolError::InUse { path: path(), holder });
            }
            Err(error) => return Err(fail("locking", hint)(error.into())),
        }
        let named = lock.set_len(0).and_then(|()| writeln!(lock, "{}", std::process::id()));
        named.map_err(fail("writing the lock", "free some memory on its tmpfs"))?;
        Ok(Self { folder: path(), lock, end: watch::Sender::new(()) })
    }

    /// Waits until the pool is closed and unlocked.
    pub fn end(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut end = self.end.subscribe();
        // Nothing is ever sent: the channel ends with its sender.
        async move { while end.changed().await.is_ok() {} }
    }

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The error of a pool whose content makes no sense.
    #[must_use]
    pub fn invalid(&self, what: impl Into<String>) -> PoolError {
        PoolError::Invalid { path: self.folder.clone(), what: what.into() }
    }

    /// Whether its folder still has it. Another process may have removed it, and a third one may have made
    /// another pool there.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        let there = std::fs::metadata(self.folder.join(LOCK));
        match (self.lock.metadata(), there) {
            (Ok(own), Ok(there)) => (own.dev(), own.ino()) == (there.dev(), there.ino()),
            (_, Err(error)) => error.kind() != io::ErrorKind::NotFound,
            (Err(_), _) => true,
        }
    }

    /// Removes it: the next node starts with empty memory. Processes that map it keep it until they end.
    pub fn discard(&self) -> io::Result<()> {
        if !self.is_in_place() {
            return Ok(());
        }
        self.disown()?;
        let [journal, unfinished] = JOURNALS;
        for name in [DATA, CLAIMS, journal, unfinished, LOCK, MASTER, STAMP_KEY] {
            self.remove(name)?;
        }
        std::fs::remove_dir(&self.folder)
    }

    /// From now on no process can adopt it. Without the control segment there is no pool, whatever happens to
    /// the rest. This process still has the lock.
    pub fn disown(&self) -> io::Result<()> {
        if self.is_in_place() { self.remove(CONTROL) } else { Ok(()) }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match std::fs::remove_file(self.folder.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The secret from which the stamps of the segment follow. A pool without a segment gets the one that is
    /// drawn: it must be stored before the segment is made. No client gets this file.
    pub fn stamp_key(&self, drawn: [u8; STAMP_KEY_BYTES]) -> Result<[u8; STAMP_KEY_BYTES], PoolError> {
        let path = self.folder.join(STAMP_KEY);
        if self.find()?.is_none() {
            let file = file_options().create(true).truncate(true).open(path);
            let stored = file.and_then(|mut it| it.write_all(&drawn));
            return stored.map(|()| drawn).map_err(|error| self.failed("writing `stamps`", error));
        }
        let missing = || self.invalid("`stamps` is missing or damaged, and stamps would be used twice");
        let file = file_options().open(path).map_err(|_| missing())?;
        let mut found = Vec::new();
        let read = file.take(STAMP_KEY_BYTES as u64 + 1).read_to_end(&mut found);
        read.map_err(|error| self.failed("reading `stamps`", error))?;
        found.try_into().map_err(|_| missing())
    }

    /// The sizes of the segment that is there. `None` if there is none, or its creation was cut off.
    pub(crate) fn find(&self) -> Result<Option<Geometry>, PoolError> {
        let control = match file_options().open(self.folder.join(CONTROL)) {
            Ok(control) => control,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.failed("opening `control`", error)),
        };
        let len = control.metadata().map_err(|error| self.failed("reading `control`", error))?.len();
        if len == 0 {
            return Ok(None);
        }
        if len < layout::HEADER_BYTES {
            return Err(self.invalid("`control` is truncated"));
        }
        let word = |at| {
            let mut bytes = [0; 8];
            let read = control.read_exact_at(&mut bytes, at);
            read.map(|()| u64::from_le_bytes(bytes)).map_err(|error| self.failed("reading `control`", error))
        };
        match word(header::MAGIC)? {
            // The magic is written last, so nothing was ever stored there.
            0 => return Ok(None),
            layout::MAGIC => {}
            _ => return Err(self.invalid("`control` is not a control segment")),
        }
        let version = word(header::FORMAT_VERSION)?;
        if version != layout::FORMAT_VERSION {
            let known = layout::FORMAT_VERSION;
            return Err(self.invalid(format!("its format is version {version}, and only {known} is known")));
        }
        let geometry = Geometry {
            segment: word(header::SEGMENT_ID)?,
            data_bytes: word(header::DATA_BYTES)?,
            slot_count: u32::try_from(word(header::SLOT_COUNT)?).unwrap_or(u32::MAX),
            heap_bytes: word(header::HEAP_BYTES)?,
        };
        let is_sane = geometry.is_sane()
            && word(header::SLOT_OFFSET)? == layout::HEADER_BYTES
            && word(header::HEAP_OFFSET)? == geometry.heap_at();
        if !is_sane {
            return Err(self.invalid("the sizes in its header are invalid"));
        }
        for (name, bytes) in sizes(&geometry) {
            let found = std::fs::metadata(self.folder.join(name)).map_or(0, |it| it.len());
            if found != bytes {
                return Err(self.invalid(format!("`{name}` has {found} bytes instead of {bytes}")));
            }
        }
        Ok(Some(geometry))
    }

    /// The files, with these sizes. Those of another size, or of a creation that was cut off, are emptied.
    pub(crate) fn files(&self, geometry: &Geometry) -> Result<[OwnedFd; 3], PoolError> {
        let is_new = self.find()?.is_none();
        let open = |(name, _): (&str, u64)| {
            let file = file_options().create(true).open(self.folder.join(name));
            let file = file.map_err(|error| self.failed("opening a file", error))?;
            if !is_private(&file) {
                let what = format!("`{name}` belongs to another user, or others may use it");
                return Err(PoolError::NotPrivate { path: self.folder.clone(), what });
            }
            Ok(file)
        };
        let [control, data, claims] = sizes(geometry).map(open);
        let files = [control?, data?, claims?];
        // The lock of a running node may have been removed.
        let [control, data, _] = &files;
        if flock(control, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(PoolError::InUse { path: self.folder.clone(), holder: "unknown".to_owned() });
        }
        if is_new {
            for (file, (_, bytes)) in files.iter().zip(sizes(geometry)) {
                let sized = file.set_len(0).and_then(|()| file.set_len(bytes));
                sized.map_err(|error| self.failed("sizing a file", error))?;
            }
            let all = Extent { offset: 0, len: geometry.data_bytes };
            self.allocate(data.as_fd(), all).inspect_err(|_| {
                // Nothing was stored there, and others need the space.
                let _kept = data.set_len(0);
            })?;
        }
        Ok(files.map(OwnedFd::from))
    }

    /// Allocates pages of the data segment: once the tmpfs is full, a store into a page that it does not have
    /// would kill the process that stores, be it the node or a client.
    pub(crate) fn allocate(&self, data: BorrowedFd<'_>, extent: Extent) -> Result<(), PoolError> {
        let (bytes, mut done) = (extent.len, 0);
        while done < bytes {
            let len = ALLOCATE_BYTES.min(bytes - done);
            match fallocate(data, FallocateFlags::KEEP_SIZE, extent.offset + done, len) {
                Ok(()) => done += len,
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::NOSPC) => {
                    self.check_space(bytes - done)?;
                    let what = "allocating `data`";
                    return Err(self.failed(what, io::ErrorKind::StorageFull.into()));
                }
                Err(error) => return Err(self.failed("allocating `data`", error.into())),
            }
            if done < bytes {
                tracing::info!(path = %self.folder.display(), done, of = bytes, "a memory pool is allocated");
            }
        }
        Ok(())
    }

    /// Makes an empty journal of the ledger, with this id, in place of the earlier one. Returns where it is.
    pub fn make_journal(&self, id: u64) -> io::Result<PathBuf> {
        let path = self.folder.join(JOURNALS[0]);
        journal::create(&path, id).map(|()| path)
    }

    /// The messages in the journal of the ledger, in order. There are none if there is no journal.
    pub fn read_journal(&self) -> Result<Vec<Vec<u8>>, PoolError> {
        match journal::read(&self.folder.join(JOURNALS[0])) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            read => read.map_err(|error| self.failed("reading `ledger`", error)),
        }
    }

    /// Bytes of memory that its files have.
    pub(crate) fn present_bytes(&self) -> u64 {
        let present =
            |name: &str| std::fs::metadata(self.folder.join(name)).map_or(0, |it| it.blocks() * 512);
        [CONTROL, DATA, CLAIMS].into_iter().map(present).sum()
    }

    /// Checks that its tmpfs has `wanted` more bytes.
    pub(crate) fn check_space(&self, wanted: u64) -> Result<(), PoolError> {
        let folder = File::open(&self.folder).map_err(|error| self.failed("opening the folder", error))?;
        let found = fstatvfs(&folder).map_err(|error| self.failed("examining the tmpfs", error.into()))?;
        // A tmpfs without a limit has no blocks at all.
        let available = found.f_bavail.saturating_mul(found.f_frsize);
        if found.f_blocks > 0 && available < wanted {
            return Err(PoolError::NoSpace { path: self.folder.clone(), wanted, available });
        }
        Ok(())
    }

    fn failed(&self, what: &'static str, source: io::Error) -> PoolError {
        let hint = "check the folder, or start with `--pool off`";
        PoolError::System { path: self.folder.clone(), what, source, hint }
    }
}

/// Whether only this user, or root, can have the file open.
pub(crate) fn is_private(file: impl AsFd) -> bool {
    let own = rustix::process::getuid().as_raw();
    fstat(file).is_ok_and(|it| (it.st_uid == own || it.st_uid == 0) && it.st_mode & 0o077 == 0)
}

fn sizes(geometry: &Geometry) -> [(&'static str, u64); 3] {
    [(CONTROL, geometry.control_bytes()), (DATA, geometry.data_bytes), (CLAIMS, geometry.claims_bytes())]
}

fn file_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::control::{SlotRecord, SlotState};
    use crate::map::{Access, Map};
    use crate::segment::{MemoryOptions, NodeMemory, SegmentError};

    const GEOMETRY: Geometry =
        Geometry { segment: 0xbeef, data_bytes: 1 << 20, slot_count: 64, heap_bytes: 1 << 16 };

    /// A folder on the tmpfs that every machine has.
    fn folder(name: &str) -> PathBuf {
        let folder = PathBuf::from(format!("/dev/shm/tiffin-test-{}-{name}", std::process::id()));
        let _absent = std::fs::remove_dir_all(&folder);
        folder
    }

    fn open(folder: &Path) -> Result<(std::sync::Arc<NodeMemory>, crate::control::ControlWriter), String> {
        let pool = Pool::open(folder).map_err(|error| error.to_string())?;
        NodeMemory::open_pool(pool, GEOMETRY, MemoryOptions::default())
            .map_err(|error: SegmentError| error.to_string())
    }

    #[test]
    fn folder_that_is_of_no_use_is_not_made() {
        let there = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let folder = there.path().join("new/pool");
        match Pool::open(&folder) {
            Err(PoolError::NotMemory { path }) => assert_eq!(path, folder),
            // The sources are on a tmpfs here.
            other => return assert!(other.is_ok(), "{other:?}"),
        }
        assert!(!there.path().join("new").exists(), "nothing is left behind");
    }

    #[test]
    fn removed_pool_is_noticed_and_another_one_there_is_spared() {
        let folder = folder("removed");
        let (memory, _writer) = open(&folder).unwrap();
        let pool = memory.pool().unwrap();
        assert!(pool.is_in_place());
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(!pool.is_in_place());
        pool.discard().unwrap();
        let (other, _other_writer) = open(&folder).unwrap();
        assert!(!pool.is_in_place() && other.pool().unwrap().is_in_place());
        pool.discard().unwrap();
        assert!(Pool::exists(&folder), "it belongs to another node");
        other.pool().unwrap().discard().unwrap();
        assert!(!folder.exists());
    }

    /// The records that [`fill`] writes: an object, and a copy of it whose use has ended.
    fn records() -> (SlotRecord, SlotRecord) {
        let record = SlotRecord {
            stamp: 9,
            state: SlotState::Committed,
            len: 5,
            extents: vec![Extent { offset: 4096, len: 5 }],
            key: Extent { offset: 64, len: 3 },
            name_bytes: 10,
            writer: 77,
            ..SlotRecord::default()
        };
        let other = SlotRecord { stamp: 10, writer: 78, ..record.clone() };
        (record, other)
    }

    fn fill(folder: &Path) {
        let (memory, mut writer) = open(folder).unwrap();
        assert_eq!(memory.reader().scan().unwrap(), []);
        let (record, other) = records();
        writer.write_heap(record.key.offset, b"key");
        writer.write_slot(3, &record);
        writer.write_slot(4, &other);
        writer.park(4);
        writer.write_slot(5, &other);
        writer.park(5);
        writer.reclaim(5);
        writer.set_stamp_high_water(11);
        writer.set_epoch(5, 55, 555);
        crate::copy::copy_in(b"bytes", memory.targets(&record.extents).unwrap()[0]);
    }

    /// Another process adopts what [`fill`] has written, and removes it.
    fn adopt(folder: &Path) {
        // It would ask for other sizes: those of the pool count.
        let pool = Pool::open(folder).unwrap();
        let wanted = Geometry { segment: 1, data_bytes: 2 << 20, ..GEOMETRY };
        let (memory, mut writer) = NodeMemory::open_pool(pool, wanted, MemoryOptions::default()).unwrap();
        assert_eq!(memory.geometry(), GEOMETRY);
        let (record, other) = records();
        let found = memory.reader().scan().unwrap();
        assert_eq!(found.iter().map(|it| it.slot).collect::<Vec<_>>(), [3, 4]);
        assert_eq!((&found[0].record, &found[0].key[..]), (&record, &b"key"[..]));
        let retired = SlotRecord { state: SlotState::Retired, writer: 0, ..other };
        assert_eq!(found[1].record, retired, "it has the stamp that it had");
        let reader = memory.reader();
        assert_eq!((reader.stamp_high_water(), reader.epoch(), reader.instance()), (11, 5, 55));
        assert_eq!(reader.cluster(), 555);
        let source = memory.data.source(record.extents[0]).unwrap();
        let mut bytes = [0; 5];
        crate::copy::copy_out(source, &mut bytes);
        assert_eq!(&bytes, b"bytes");
        writer.write_slot(63, &SlotRecord { stamp: 11, ..SlotRecord::default() });
        memory.pool().unwrap().discard().unwrap();
        assert!(!folder.exists());
    }

    #[test]
    fn pool_is_adopted_with_everything_in_it() {
        let folder = folder("adopted");
        fill(&folder);
        adopt(&folder);
    }

    /// `tests/data/pool-1.txt` is a pool that an earlier build wrote with [`fill`] in format version 1: the
    /// name of a file and its length, then positions with the bytes there; all other bytes are zero. A change
    /// of the format keeps this test, and adds a file.
    #[test]
    fn pool_of_an_earlier_build_is_adopted() {
        let folder = folder("kept");
        drop(Pool::open(&folder).unwrap());
        let mut file = None;
        for line in include_str!("../tests/data/pool-1.txt").lines() {
            let (first, second) = line.split_once(' ').unwrap();
            let Ok(at) = first.parse() else {
                let made = file_options().create(true).open(folder.join(first)).unwrap();
                made.set_len(second.parse().unwrap()).unwrap();
                file = Some(made);
                continue;
            };
            let digits: Vec<_> =
                second.bytes().map(|it| char::from(it).to_digit(16).unwrap() as u8).collect();
            let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
            std::os::unix::fs::FileExt::write_all_at(file.as_ref().unwrap(), &bytes, at).unwrap();
        }
        adopt(&folder);
    }

    #[test]
    fn stamp_key_stays_with_its_pool() {
        let folder = folder("stamps");
        let key = |drawn| Pool::open(&folder).unwrap().stamp_key([drawn; STAMP_KEY_BYTES]);
        assert_eq!((key(1).unwrap(), key(2).unwrap()), ([1; 16], [2; 16]), "there is no segment yet");
        drop(open(&folder).unwrap());
        assert_eq!(key(3).unwrap(), [2; 16]);
        let path = folder.join(STAMP_KEY);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        for bytes in [0, 15, 17] {
            std::fs::write(&path, vec![2; bytes]).unwrap();
            assert!(key(4).unwrap_err().to_string().contains("`stamps` is missing or damaged"));
        }
        std::fs::remove_file(&path).unwrap();
        assert!(key(5).unwrap_err().to_string().contains("`stamps` is missing or damaged"));
        Pool::open(&folder).unwrap().discard().unwrap();
        assert!(!folder.exists());
    }

    #[test]
    fn clients_of_an_isolated_pool_get_no_writable_file() {
        let folder = folder("isolated");
        let options = MemoryOptions { is_isolated: true, ..MemoryOptions::default() };
        let pool = Pool::open(&folder).unwrap();
        let (memory, _writer) = NodeMemory::open_pool(pool, GEOMETRY, options).unwrap();
        for file in memory.descriptors(77).unwrap() {
            assert!(Map::new(file.as_fd(), 64, Access::ReadWrite).is_err());
            assert!(Map::new(file.as_fd(), 64, Access::ReadOnly).is_ok());
        }
        let held = memory.descriptors(77).unwrap();
        assert_eq!(memory.mapping_clients().unwrap(), [77], "the kernel knows who maps it");
        drop(held);
        memory.pool().unwrap().discard().unwrap();
    }

    #[test]
    fn second_node_is_refused_and_named() {
        let folder = folder("locked");
        let (memory, _writer) = open(&folder).unwrap();
        let error = Pool::open(&folder).unwrap_err().to_string();
        assert!(error.contains(&format!("in use by process {}\n\nhint: ", std::process::id())), "{error}");
        std::fs::remove_file(folder.join(LOCK)).unwrap();
        assert!(open(&folder).unwrap_err().contains("in use by process unknown\n\nhint: "));
        drop(memory);
        // Without its own lock file, a node removes nothing.
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn unusable_pool_is_left_as_it_is() {
        let folder = folder("unusable");
        drop(open(&folder).unwrap());
        let control = folder.join(CONTROL);
        let good = std::fs::read(&control).unwrap();
        let word = |at: u64, value: u64| {
            let mut bytes = good.clone();
            bytes[at as usize..at as usize + 8].copy_from_slice(&value.to_le_bytes());
            bytes
        };
        for (bytes, expected) in [
            (word(header::MAGIC, 7), "`control` is not a control segment"),
            (word(header::FORMAT_VERSION, 2), "its format is version 2, and only 1 is known"),
            (word(header::DATA_BYTES, 0), "the sizes in its header are invalid"),
            (word(header::HEAP_OFFSET, 1), "the sizes in its header are invalid"),
            (word(header::DATA_BYTES, 4096), "`data` has 1048576 bytes instead of 4096"),
            (good[..100].to_vec(), "`control` is truncated"),
            (good[..8192].to_vec(), "`control` has 8192 bytes instead of "),
        ] {
            std::fs::write(&control, &bytes).unwrap();
            let error = open(&folder).unwrap_err();
            assert!(error.contains(expected) && error.contains("\n\nhint: nothing was changed"), "{error}");
            assert_eq!(std::fs::read(&control).unwrap(), bytes);
        }
        std::fs::write(&control, &good).unwrap();
        std::fs::remove_file(folder.join(DATA)).unwrap();
        assert!(open(&folder).unwrap_err().contains("`data` has 0 bytes instead of 1048576"));
        // A header without its magic was never complete.
        std::fs::write(&control, word(header::MAGIC, 0)).unwrap();
        let (memory, _writer) = open(&folder).unwrap();
        memory.pool().unwrap().discard().unwrap();
    }

    #[test]
    fn unsafe_and_unsuitable_folders_are_refused() {
        let folder = folder("mode");
        DirBuilder::new().mode(0o755).create(&folder).unwrap();
        std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
        let error = Pool::open(&folder).unwrap_err().to_string();
        assert!(error.contains("is not private: user ") && error.contains("mode 0755"), "{error}");
        std::fs::remove_dir(&folder).unwrap();
        std::fs::write(&folder, "").unwrap();
        let error = Pool::open(&folder.join("pool")).unwrap_err().to_string();
        std::fs::remove_file(&folder).unwrap();
        assert!(error.contains("making the folder failed") && error.contains("hint: "), "{error}");
        let error = Pool::open(Path::new("/proc/self")).unwrap_err().to_string();
        assert!(error.contains("is not on a tmpfs\n\nhint: "), "{error}");
    }

    #[test]
    fn pages_of_new_objects_exist_before_the_first_put() {
        let folder = folder("allocated");
        let (memory, _writer) = open(&folder).unwrap();
        let allocated = std::fs::metadata(folder.join(DATA)).unwrap().blocks() * 512;
        assert_eq!(allocated, GEOMETRY.data_bytes);
        memory.pool().unwrap().discard().unwrap();
    }

    #[test]
    fn adopted_pool_has_all_pages_but_those_withheld() {
        let folder = folder("settled");
        let (memory, mut writer) = open(&folder).unwrap();
        let page = rustix::param::page_size() as u64;
        let withheld = Extent { offset: 4 * page, len: 4 * page };
        let returned = Extent { offset: 16 * page, len: 8 * page };
        memory.return_pages(withheld);
        memory.return_pages(returned);
        writer.write_slot(40, &SlotRecord { stamp: 1, ..SlotRecord::default() });
        let data = || std::fs::metadata(folder.join(DATA)).unwrap().blocks() * 512;
        assert_eq!(data(), GEOMETRY.data_bytes - 12 * page);
        memory.settle_pool(&[withheld], &[]).unwrap();
        assert_eq!(data(), GEOMETRY.data_bytes - 4 * page);
        memory.restore_pages(withheld).unwrap();
        assert_eq!(data(), GEOMETRY.data_bytes);
        // No process maps it, so unused records have no page any more: only the header has.
        assert_eq!(std::fs::metadata(folder.join(CONTROL)).unwrap().blocks() * 512, layout::HEADER_BYTES);
        memory.back(Extent { offset: layout::HEADER_BYTES, len: page }).unwrap();
        assert!(std::fs::metadata(folder.join(CONTROL)).unwrap().blocks() * 512 > layout::HEADER_BYTES);
        memory.pool().unwrap().discard().unwrap();
    }

    #[test]
    fn too_small_tmpfs_is_named_with_a_hint() {
        let folder = folder("space");
        let pool = Pool::open(&folder).unwrap();
        let error = pool.check_space(u64::MAX).unwrap_err().to_string();
        assert!(error.contains("and its tmpfs has ") && error.contains("--pool off"), "{error}");
        assert!(pool.check_space(0).is_ok());
        pool.discard().unwrap();
    }
}
