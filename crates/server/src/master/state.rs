//! The state folder: the durable state of the master in one small synced file, and a lock against a second
//! master.
//!
//! **Invariant:** after a crash the folder contains the old state or the new one, and never a smaller epoch
//! than before. If a member has served a greater epoch, the master takes a greater one, see
//! [`Effect::Restart`](tiffin_core::master::Effect::Restart).

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock, statvfs};
use tiffin_core::master::Saved;
use tiffin_proto::{STATE_BYTES_MAX, decode_state, encode_state};
use tiffin_types::units::Size;
use tokio::time::Instant;

use super::ha::Ha;
use crate::StartError;

/// The file in the state folder.
const FILE: &str = "state";
/// The file of earlier releases, which contains only the epoch, as text.
const OLD_FILE: &str = "epoch";
/// The size in which file systems allocate.
const BLOCK_BYTES: u64 = 4096;
/// The permissions of the files: only their user reads them.
const MODE: u32 = 0o600;
/// Locked while a master runs.
const LOCK: &str = "lock";
/// How long to wait for the lock of a master that is stopping.
const LOCK_TIME_MAX: Duration = Duration::from_secs(5);
/// The pause between attempts to lock. The system sends no event for it.
const LOCK_PAUSE: Duration = Duration::from_millis(20);
/// Epochs are at least the minutes since the start of 2025, so that a master without its state folder does
/// not reuse one. 23 bits last until 2040.
const FIRST_MINUTE: Duration = Duration::from_secs(1_735_689_600);

const HINT_WRITABLE: &str = "choose a folder that this user may write to, with `--state-dir`";
const HINT_FULL: &str = "free that much on its file system, or enlarge it";
const HINT_DAMAGED: &str = "restore the file from a backup, or move it away: then the master starts without \
                            quotas and policies, and does not wait for nodes that have not reported";
const HINT_LOCKED: &str = "another master runs with this folder; stop it, or choose another folder with \
                           `--state-dir`";

/// Where the durable state is.
#[derive(Clone, Debug)]
pub(super) enum Store {
    /// In a folder of this machine.
    Folder(Arc<StateFolder>),
    /// In etcd, with several masters.
    Etcd(Arc<Ha>),
}

impl Store {
    /// For people.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Folder(folder) => format!("the state folder `{}`", folder.folder.display()),
            Self::Etcd(_) => "the state in etcd".to_owned(),
        }
    }

    /// What to do if it cannot be written.
    pub(super) fn hint(&self) -> &'static str {
        match self {
            Self::Folder(_) => {
                "free space on its file system, or make it writable. Nothing that was answered is lost: new \
                 nodes, policies, and deletes of objects on absent nodes wait until it is written"
            }
            Self::Etcd(_) => {
                "check that a majority of etcd's members runs and has space; answers wait for it"
            }
        }
    }

    /// Whether the last write failed: answers that promise what it contains wait.
    pub(super) fn is_failing(&self) -> bool {
        match self {
            Self::Folder(folder) => folder.is_failing(),
            Self::Etcd(ha) => ha.is_failing(),
        }
    }

    /// Writes a version: whether it is there now, which it is not if a later epoch was written. `None` if the
    /// master is about to end.
    pub(super) async fn write(&self, saved: &Arc<Saved>) -> Option<Result<bool, String>> {
        match self {
            Self::Folder(folder) => {
                let (folder, saved) = (Arc::clone(folder), Arc::clone(saved));
                let written = tokio::task::spawn_blocking(move || folder.write(&saved)).await;
                written.ok().map(|it| it.map_err(|error| error.to_string()))
            }
            Self::Etcd(ha) => Some(ha.write(saved).await),
        }
    }
}

/// The folder, locked.
#[derive(Debug)]
pub(super) struct StateFolder {
    folder: PathBuf,
    // The epoch that was written last. The lock is held during a write, so that a smaller epoch never
    // follows a greater one.
    written: Mutex<u64>,
    /// The last write failed, and is retried.
    is_failing: AtomicBool,
    _lock: File,
}

impl StateFolder {
    /// Locks the folder and reads the saved state.
    pub(super) async fn open(folder: &Path) -> Result<(Self, Saved), StartError> {
        let fail =
            |what, hint| move |source| StartError::State { path: folder.to_owned(), what, source, hint };
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(fail("creating the folder", HINT_WRITABLE))?;
        let lock = OpenOptions::new().create(true).append(true).mode(MODE).open(folder.join(LOCK));
        let lock = lock.map_err(fail("opening the lock", HINT_WRITABLE))?;
        // A process that may read it could lock it. Earlier releases made it readable; the file may belong to
        // another user.
        let _old = lock.set_permissions(Permissions::from_mode(MODE));
        take(&lock).await.map_err(fail("taking the lock", HINT_LOCKED))?;
        let saved = read(folder).map_err(fail("reading the state", HINT_DAMAGED))?;
        let written = Mutex::new(saved.epoch);
        let is_failing = AtomicBool::new(false);
        Ok((Self { folder: folder.to_owned(), written, is_failing, _lock: lock }, saved))
    }

    /// Writes a new file, syncs it, renames it, and syncs the folder. Returns `false` if a later epoch was
    /// already written: the file then does not contain this state.
    pub(super) fn write(&self, saved: &Saved) -> io::Result<bool> {
        let written = self.try_write(saved);
        self.is_failing.store(written.is_err(), Ordering::Release);
        written
    }

    /// Whether the last write failed: answers that depend on it wait.
    pub(super) fn is_failing(&self) -> bool {
        self.is_failing.load(Ordering::Acquire)
    }

    fn try_write(&self, saved: &Saved) -> io::Result<bool> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if saved.epoch < *written {
            return Ok(false);
        }
        let bytes = encode_state(saved).map_err(io::Error::other)?;
        let beside = self.folder.join(format!("{FILE}.new"));
        let replaced = write_synced(&beside, &bytes).and_then(|()| {
            std::fs::rename(&beside, self.folder.join(FILE))?;
            File::open(&self.folder)?.sync_all()
        });
        replaced.map_err(|error| {
            // A part of the file would take the space that the next attempt needs.
            let _kept = std::fs::remove_file(&beside);
            self.described(error, bytes.len() as u64)
        })?;
        *written = saved.epoch;
        Ok(true)
    }

    /// The error of a write, with what is missing if there was no space.
    fn described(&self, error: io::Error, needed: u64) -> io::Error {
        if !is_full(&error) {
            return error;
        }
        let free = statvfs(&self.folder).map_or(0, |it| it.f_bavail.saturating_mul(it.f_frsize));
        // A new file has a block of its own, and the folder may need another one.
        let wanted = needed.saturating_add(2 * BLOCK_BYTES);
        let missing = wanted.saturating_sub(free).max(BLOCK_BYTES);
        let what = format!("{error}: it needs {}, and {} more than is free", Size(wanted), Size(missing));
        io::Error::new(error.kind(), what)
    }

    /// The same, with an error of the start.
    pub(super) fn write_first(&self, saved: &Saved) -> Result<(), StartError> {
        let written = self.write(saved).map_err(|source| StartError::State {
            path: self.folder.clone(),
            what: "writing the state",
            hint: if is_full(&source) { HINT_FULL } else { HINT_WRITABLE },
            source,
        })?;
        assert!(written, "epoch {} is not greater than the last one", saved.epoch);
        Ok(())
    }
}

/// Whether there is no space, or the quota of the user is used up.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(MODE).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The epoch after the last known one. The clock matters only if none is known.
pub(super) fn next_epoch(last: u64) -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let minutes = since.saturating_sub(FIRST_MINUTE).as_secs() / 60;
    last.saturating_add(1).max(minutes)
}

async fn take(lock: &File) -> io::Result<()> {
    let deadline = Instant::now() + LOCK_TIME_MAX;
    loop {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() >= deadline => return Err(error.into()),
            Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {
                tokio::time::sleep(LOCK_PAUSE).await
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn read(folder: &Path) -> io::Result<Saved> {
    let invalid = |error: String| io::Error::new(io::ErrorKind::InvalidData, error);
    if let Some(bytes) = read_at_most(&folder.join(FILE), STATE_BYTES_MAX + 1)? {
        return decode_state(&bytes).map_err(|error| invalid(format!("the file `{FILE}`: {error}")));
    }
    let Some(text) = read_at_most(&folder.join(OLD_FILE), 64)? else { return Ok(Saved::default()) };
    let text = String::from_utf8_lossy(&text);
    let epoch = text.trim().parse();
    let epoch = epoch.map_err(|_| invalid(format!("the file `{OLD_FILE}` does not contain a number")))?;
    Ok(Saved { epoch, ..Saved::default() })
}

/// The start of a file, if it exists.
fn read_at_most(path: &Path, max: usize) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => _ = file.take(max as u64).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use tiffin_types::SegmentId;
    use tiffin_types::saved::SavedMember;

    use super::*;

    fn saved(epoch: u64) -> Saved {
        let member = SavedMember { segment: SegmentId(epoch), ..SavedMember::default() };
        Saved { epoch, members: vec![member], ..Saved::default() }
    }

    #[tokio::test]
    async fn state_survives_and_the_epoch_never_falls() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("made/on/demand");
        let (state, first) = StateFolder::open(&inner).await.unwrap();
        assert_eq!(first, Saved::default());
        assert!(state.write(&saved(7)).unwrap());
        assert!(!state.write(&saved(6)).unwrap(), "a stale state must not count as saved");
        assert!(state.write(&saved(7)).unwrap(), "the same epoch may save again");
        let store = Store::Folder(Arc::new(state));
        assert!(!crate::master::tasks::save(&store, Box::new(saved(6))).await);
        assert!(crate::master::tasks::save(&store, Box::new(saved(7))).await);
        drop(store);
        let (_state, second) = StateFolder::open(&inner).await.unwrap();
        assert_eq!(second, saved(7));
        assert!(next_epoch(0) > 900_000 && next_epoch(0) < 1 << 23);
        assert_eq!(next_epoch(1 << 40), (1 << 40) + 1);
    }

    #[tokio::test]
    async fn full_disk_is_named_and_the_next_write_succeeds() {
        let folder = tempfile::tempdir().unwrap();
        let (state, _) = StateFolder::open(folder.path()).await.unwrap();
        assert!(state.write(&saved(3)).unwrap());
        // Writes to this file find no space.
        let fill = || std::os::unix::fs::symlink("/dev/full", folder.path().join("state.new")).unwrap();
        fill();
        let error = state.write(&saved(4)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().contains("it needs 8.") && error.to_string().contains("more than is free"));
        assert!(state.is_failing() && read(folder.path()).unwrap() == saved(3), "the old state is intact");
        assert!(!folder.path().join("state.new").exists(), "the part is removed");
        fill();
        let message = state.write_first(&saved(4)).unwrap_err().to_string();
        assert!(message.contains(&folder.path().display().to_string()), "{message}");
        assert!(message.contains("hint: free that much on its file system"), "{message}");
        assert!(state.write(&saved(4)).unwrap() && !state.is_failing());
        assert_eq!(read(folder.path()).unwrap(), saved(4));
    }

    #[tokio::test]
    async fn folders_of_earlier_releases_are_read() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(OLD_FILE), "41\n").unwrap();
        let (_state, old) = StateFolder::open(folder.path()).await.unwrap();
        assert_eq!(old, Saved { epoch: 41, ..Saved::default() });
    }

    #[tokio::test(start_paused = true)]
    async fn second_master_is_refused_while_the_first_runs() {
        let folder = tempfile::tempdir().unwrap();
        let (state, _) = StateFolder::open(folder.path()).await.unwrap();
        let message = StateFolder::open(folder.path()).await.unwrap_err().to_string();
        assert!(message.contains("taking the lock"), "{message}");
        assert!(message.contains("hint: another master runs with this folder"), "{message}");
        drop(state);
        StateFolder::open(folder.path()).await.unwrap();
    }

    #[tokio::test]
    async fn unusable_folders_are_errors_with_a_hint() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let message = StateFolder::open(&file).await.unwrap_err().to_string();
        assert!(message.contains("creating the folder"), "{message}");
        assert!(message.contains("hint: choose a folder"), "{message}");
        for (name, what) in [(OLD_FILE, "does not contain a number"), (FILE, "the file `state`: ")] {
            std::fs::write(folder.path().join(name), "nonsense").unwrap();
            let message = StateFolder::open(folder.path()).await.unwrap_err().to_string();
            assert!(message.contains(what) && message.contains("hint: restore the file"), "{message}");
        }
    }
}
