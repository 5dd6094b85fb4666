//! The disk of a store with `enable_ssd_offload`: its size, and the directory of this store.
//!
//! Ranks of one host often get the same path. Each uses the first directory below it that no other rank
//! uses, so that a restarted rank finds the objects that were left there. Objects on a disk belong to the
//! cluster, so that any rank may reopen them.
//!
//! **Invariant:** a directory is claimed by a lock that one store holds while it is open.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FlockOperation, flock, statvfs};
use rustix::io::Errno;
use tiffin_server::config::{Engine, SsdConfig};

use crate::process;

/// The default size of a disk, if it has that much space; Mooncake's default.
const SIZE_DEFAULT: u64 = 2 << 40;
/// The maximum number of stores that share one path.
const RANKS_MAX: u32 = 1024;
/// The settings of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DiskSettings {
    /// The directory that ranks may share.
    pub(crate) path: PathBuf,
    /// The number of bytes that this store may use there, if it is set.
    pub(crate) size: Option<u64>,
    /// The I/O engine.
    pub(crate) engine: Engine,
}

/// A directory that belongs to this store until this is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    lock: File,
    /// A forked child has the same lock, and must not release it.
    process: u32,
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.process == process::current() {
            // Closing alone would not unlock it while a forked child has it open. If unlocking fails, the
            // lock ends with the last process that has it.
            let _unlocked = flock(&self.lock, FlockOperation::Unlock);
        }
    }
}

impl DiskSettings {
    /// Claims a directory. Returns the configuration of the node's disk and warnings for the user, or an
    /// error.
    pub(crate) fn claim(&self) -> Result<(Claim, SsdConfig, Option<String>), String> {
        self.check()?;
        let cannot = |what: &str, path: &Path, error: io::Error| {
            format!("`{}` cannot be {what}: {error}\n\nhint: make it writable", path.display())
        };
        for rank in 0..RANKS_MAX {
            let at = self.path.join(format!("rank-{rank}.lock"));
            let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&at);
            let lock = opened.map_err(|error| cannot("opened", &at, error))?;
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    let claim = Claim { lock, process: process::current() };
                    let path = self.path.join(format!("rank-{rank}"));
                    let (size, warning) = self.size_at(&path)?;
                    return Ok((claim, SsdConfig { path, size, engine: self.engine }, warning));
                }
                Err(Errno::WOULDBLOCK) => {}
                Err(error) => return Err(cannot("locked", &at, error.into())),
            }
        }
        Err(format!("{RANKS_MAX} stores already use `{}`", self.path.display()))
    }

    fn check(&self) -> Result<(), String> {
        let hint = "name a directory on a disk with `ssd_offload_path` or MOONCAKE_OFFLOAD_FILE_STORAGE_PATH";
        let fail =
            |why: &str| Err(format!("the disk's path is `{}`: {why}\n\nhint: {hint}", self.path.display()));
        if !self.path.is_absolute() {
            return fail("it is not absolute");
        }
        if self.path.components().any(|it| it == Component::ParentDir) {
            return fail("it contains `..`");
        }
        match fs::metadata(&self.path) {
            Ok(found) if found.is_dir() => Ok(()),
            Ok(_) => fail("it is not a directory"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => fail("the directory does not exist"),
            Err(error) => fail(&error.to_string()),
        }
    }

    /// The number of bytes to use: the requested size, as far as there is space. Without a request it is
    /// the size of the existing files, or half of the free space, so that the next rank finds some too. All
    /// of it is allocated at once.
    fn size_at(&self, path: &Path) -> Result<(u64, Option<String>), String> {
        let filesystem = statvfs(&self.path).map_err(|error| {
            format!("cannot get the free space of `{}`: {}", self.path.display(), io::Error::from(error))
        })?;
        let free = filesystem.f_bavail.saturating_mul(filesystem.f_frsize);
        let held = held_bytes(path);
        let (size, wanted) = match self.size {
            Some(said) if said <= free.saturating_add(held) => (said, said),
            // Other users of the filesystem need some free space.
            Some(said) => ((free / 10 * 9).saturating_add(held), said),
            None if held > 0 => (held, held),
            None => (SIZE_DEFAULT.min(free / 2), SIZE_DEFAULT),
        };
        let warning = (size < wanted).then(|| {
            format!(
                "the disk at `{}` has {free} bytes free, so {size} are used and not {wanted}; \
                 MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES says how many each store is to take",
                self.path.display()
            )
        });
        Ok((size, warning))
    }
}

/// The allocated size of the files of a directory; 0 if there is no directory.
fn held_bytes(path: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    let files = entries.filter_map(|entry| entry.and_then(|it| it.metadata()).ok());
    files.map(|found| found.blocks().saturating_mul(512)).fold(0, u64::saturating_add)
}
