//! Which life of the master this is: a number in a synced file that each start makes larger.
//!
//! **Invariant:** no two lives that share a folder have the same epoch, and a later one has a larger one,
//! because the number is on the disk before anybody hears of it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, flock};
use tokio::time::Instant;

use crate::StartError;

/// The file in the state folder.
const FILE: &str = "epoch";
/// Guards the file while it is changed.
const LOCK: &str = "lock";
/// How long another master that is starting may hold the lock.
const LOCK_TIME_MAX: Duration = Duration::from_secs(5);
/// How often the lock is tried again. The system gives no event for it.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

const HINT_WRITABLE: &str = "choose a folder that this user may write to, with `--state-dir`";
const HINT_DAMAGED: &str = "the file `epoch` in it must hold one number; if it is lost, write \
                            one larger than every epoch in the master's log";
const HINT_LOCKED: &str =
    "another master is starting there and does not get on; stop it, or use another folder";

/// Takes the next epoch from the folder.
pub(super) async fn next(folder: &Path) -> Result<u64, StartError> {
    let fail = |what, hint| move |source| StartError::State { path: folder.to_owned(), what, source, hint };
    std::fs::create_dir_all(folder).map_err(fail("making the folder", HINT_WRITABLE))?;
    let lock = OpenOptions::new().create(true).append(true).open(folder.join(LOCK));
    let lock = lock.map_err(fail("opening the lock", HINT_WRITABLE))?;
    take(&lock).await.map_err(fail("taking the lock", HINT_LOCKED))?;
    let last = read(folder).map_err(fail("reading the epoch", HINT_DAMAGED))?;
    let next = last.saturating_add(1);
    write(folder, next).map_err(fail("writing the epoch", HINT_WRITABLE))?;
    Ok(next)
}

/// An epoch for a master that keeps nothing: later than those of earlier ones as far as the clock is right,
/// and there is nobody left who would know of them.
pub(super) fn drawn() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX).max(1)
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

fn read(folder: &Path) -> io::Result<u64> {
    let mut text = String::new();
    match File::open(folder.join(FILE)) {
        Ok(file) => _ = file.take(64).read_to_string(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error),
    }
    text.trim().parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not a number"))
}

/// Writes beside, syncs, renames, and syncs the folder: after a crash there is the old number or the new one.
fn write(folder: &Path, epoch: u64) -> io::Result<()> {
    let beside = folder.join(format!("{FILE}.new"));
    let mut file = File::create(&beside)?;
    writeln!(file, "{epoch}")?;
    file.sync_all()?;
    std::fs::rename(&beside, folder.join(FILE))?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_life_has_a_larger_epoch() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("made/on/demand");
        assert_eq!(next(&inner).await.unwrap(), 1);
        assert_eq!(next(&inner).await.unwrap(), 2);
        std::fs::write(inner.join(FILE), "41\n").unwrap();
        let (left, right) = tokio::join!(next(&inner), next(&inner));
        let mut both = [left.unwrap(), right.unwrap()];
        both.sort_unstable();
        assert_eq!(both, [42, 43]);
    }

    #[tokio::test]
    async fn a_folder_that_cannot_be_used_is_an_error_with_a_hint() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let message = next(&file).await.unwrap_err().to_string();
        assert!(
            message.contains("making the folder") && message.contains("hint: choose a folder"),
            "{message}"
        );
        std::fs::write(folder.path().join(FILE), "nonsense").unwrap();
        let message = next(folder.path()).await.unwrap_err().to_string();
        assert!(
            message.contains("it is not a number") && message.contains("hint: the file `epoch`"),
            "{message}"
        );
    }
}
