//! The directory or block device of a log: locked, allocated, and opened for direct I/O.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fcntl_lock};
use rustix::io::Errno;
use thiserror::Error;

use crate::layout::HEAD_BYTES;
use crate::types::OpenFault;

pub(crate) const RECORDS: &str = "records.tiffin";
const LOCK: &str = "lock";

/// Why a log cannot be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The path is a plain file.
    #[error("`{0}` is a file\n\nhint: give a directory on the disk, or a block device")]
    NotADirectory(PathBuf),
    /// Another process, or this one, has it open.
    #[error("`{path}` is in use by {by}\n\nhint: give each node a directory of its own, or stop the other")]
    InUse {
        /// The path.
        path: PathBuf,
        /// The holder: `pid N` if it is known.
        by: String,
    },
    /// The requested size exceeds the free space.
    #[error(
        "{budget_bytes} bytes do not fit `{path}`: {free_bytes} are free, the log holds {held_bytes}\n\n\
         hint: give at most {} bytes", free_bytes + held_bytes
    )]
    TooLarge {
        /// The path.
        path: PathBuf,
        /// The requested size.
        budget_bytes: u64,
        /// The free bytes of the filesystem, or the bytes of the device.
        free_bytes: u64,
        /// The bytes that the log has allocated.
        held_bytes: u64,
    },
    /// Invalid sizes.
    #[error("{0}")]
    Shape(String),
    /// The filesystem does not support direct I/O.
    #[error("`{0}` does not permit direct I/O\n\nhint: use a filesystem on a disk, such as ext4 or xfs")]
    NoDirect(PathBuf),
    /// The requested engine is not available.
    #[error("{0}\n\nhint: request another engine, or none")]
    Engine(String),
    /// A system call failed.
    #[error("`{path}` cannot be {what}: {error}\n\nhint: check that the path exists and is writable")]
    System {
        /// The path.
        path: PathBuf,
        /// What could not be done.
        what: &'static str,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The log cannot be used.
    #[error("`{path}`: {fault}")]
    Fault {
        /// The path.
        path: PathBuf,
        /// Why.
        fault: OpenFault,
    },
}

/// An open directory or device: the file for direct I/O, and its lock.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) file: OwnedFd,
    pub(crate) lock: Lock,
}

impl Place {
    /// Opens and locks a directory or device, and allocates its space.
    pub(crate) fn open(path: &Path, budget_bytes: u64, end: u64) -> Result<Self, OpenError> {
        let system = |what, error| OpenError::System { path: path.to_owned(), what, error };
        match fs::metadata(path) {
            Ok(found) if found.file_type().is_block_device() => return Self::device(path, budget_bytes),
            Ok(found) if !found.is_dir() => return Err(OpenError::NotADirectory(path.to_owned())),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let made = DirBuilder::new().mode(0o700).create(path);
                made.map_err(|error| system("created", error))?;
            }
            Err(error) => return Err(system("inspected", error)),
        }
        let lock = Lock::take(path, &path.join(LOCK), true)?;
        let records = path.join(RECORDS);
        let held_bytes = fs::metadata(&records).map_or(0, |found| found.blocks() * 512);
        let space = rustix::fs::statvfs(path).map_err(|error| system("inspected", error.into()))?;
        let free_bytes = space.f_bavail * space.f_frsize;
        if budget_bytes > free_bytes + held_bytes {
            let path = path.to_owned();
            return Err(OpenError::TooLarge { path, budget_bytes, free_bytes, held_bytes });
        }
        let file = direct(&records, true)?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, end)
            .map_err(|error| system("allocated", error.into()))?;
        file.sync_all().map_err(|error| system("synced", error))?;
        // The directory entry must be as durable as the file.
        File::open(path).and_then(|folder| folder.sync_all()).map_err(|error| system("synced", error))?;
        Ok(Self { file: file.into(), lock })
    }

    fn device(path: &Path, budget_bytes: u64) -> Result<Self, OpenError> {
        let lock = Lock::take(path, path, false)?;
        let mut file = direct(path, false)?;
        let size = file.seek(SeekFrom::End(0)).map_err(|error| OpenError::System {
            path: path.to_owned(),
            what: "measured",
            error,
        })?;
        if budget_bytes > size {
            let path = path.to_owned();
            return Err(OpenError::TooLarge { path, budget_bytes, free_bytes: size, held_bytes: 0 });
        }
        Ok(Self { file: file.into(), lock })
    }

    /// The segment size of an existing log, if its superblock can be read.
    pub(crate) fn segment_bytes(path: &Path) -> Option<u64> {
        let metadata = fs::metadata(path).ok()?;
        let at = if metadata.is_dir() { path.join(RECORDS) } else { path.to_owned() };
        let mut block = vec![0; crate::layout::BLOCK as usize];
        let mut file = File::open(at).ok()?;
        for _ in 0..2 {
            file.read_exact(&mut block).ok()?;
            if let Ok(Some(found)) = crate::layout::Super::decode(&block) {
                return Some(found.segment_bytes);
            }
        }
        None
    }
}

pub(crate) fn direct(path: &Path, create: bool) -> Result<File, OpenError> {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .create(create)
        .truncate(false)
        .mode(0o600)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(path);
    opened.map_err(|error| match error.raw_os_error() {
        Some(code) if code == rustix::io::Errno::INVAL.raw_os_error() => OpenError::NoDirect(path.to_owned()),
        _ => OpenError::System { path: path.to_owned(), what: "opened", error },
    })
}

/// A lock that is held until this is dropped or the process ends.
///
/// It is a record lock, which belongs to the process: a forked child does not keep it as it would keep one of
/// `flock`. Since it does not exclude other users in this process, a list does that.
#[derive(Debug)]
pub(crate) struct Lock {
    file: Option<File>,
    who: Holder,
}

/// A file, and the process that has it locked.
type Holder = ((u64, u64), u32);

/// The locks of this process, and of parents that forked it.
static HELD: Mutex<BTreeSet<Holder>> = Mutex::new(BTreeSet::new());

impl Lock {
    /// Takes the lock, and writes the process id into its file.
    fn take(path: &Path, at: &Path, own: bool) -> Result<Self, OpenError> {
        let system = |what, error| OpenError::System { path: path.to_owned(), what, error };
        let in_use = |by: String| OpenError::InUse { path: path.to_owned(), by };
        let id = |found: &fs::Metadata| (found.dev(), found.ino());
        let (pid, mut held) = (std::process::id(), HELD.lock().unwrap_or_else(PoisonError::into_inner));
        // The file must not be opened again: closing any descriptor of it would release the lock.
        if fs::metadata(at).is_ok_and(|found| held.contains(&(id(&found), pid))) {
            return Err(in_use(format!("pid {pid}, which is this process")));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(own).truncate(false).mode(0o600);
        let mut file = options.open(at).map_err(|error| system("locked", error))?;
        if own {
            // A process that may read it could lock it. Earlier releases made it readable.
            let _old = file.set_permissions(Permissions::from_mode(0o600));
        }
        if let Err(error) = fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            if ![Errno::WOULDBLOCK, Errno::ACCESS].contains(&error) {
                return Err(system("locked", error.into()));
            }
            let mut pid = String::new();
            let known = own && file.read_to_string(&mut pid).is_ok() && !pid.trim().is_empty();
            return Err(in_use(if known { format!("pid {}", pid.trim()) } else { "another process".into() }));
        }
        if own {
            let written = file.set_len(0).and_then(|()| file.write_all(format!("{pid}\n").as_bytes()));
            written.map_err(|error| system("locked", error))?;
        }
        let who = (id(&file.metadata().map_err(|error| system("locked", error))?), pid);
        held.insert(who);
        Ok(Self { file: Some(file), who })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        // Closing the file releases the lock; the list must not say so before.
        drop(self.file.take());
        held.remove(&self.who);
    }
}

/// The end of a log with this many segments.
pub(crate) fn end_of(segment_bytes: u64, segments: u64) -> u64 {
    HEAD_BYTES + segment_bytes * segments
}
