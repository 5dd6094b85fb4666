//! The journal of a node's ledger: a file in the node's memory pool, in which the master records every
//! message of the ledger before it relies on it.
//!
//! A message in the node's socket ends with the node's process. Its record does not: a node that is started
//! again reads the journal and applies what the earlier process has not read. The node makes a new file for
//! each connection to a master, so a master that was replaced writes into a file that nothing reads.
//!
//! The master uses `pwrite` and does not map the file: a store into a truncated mapping would kill it.
//!
//! **Invariant:** a record is overwritten only after the node has applied its message.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use twox_hash::XxHash3_64;

/// The first bytes of a journal.
const MAGIC: u64 = u64::from_le_bytes(*b"TFLEDGER");
const VERSION: u64 = 1;
/// Bytes before the first record: magic, version, id.
const HEADER_BYTES: u64 = 64;
/// Bytes for records. The node is asked to read long before they are full.
const RING_BYTES: u64 = 1 << 20;
/// Records begin at multiples of this.
const ALIGN: u64 = 64;
/// Bytes before the message of a record: checksum, sequence number, length.
const RECORD_HEADER_BYTES: usize = 24;

/// The master's side of a journal.
#[derive(Debug)]
pub struct Journal {
    file: File,
    id: u64,
    /// The number of the next record.
    sequence: u64,
    /// Where the next record begins, in the ring.
    at: u64,
    /// Bytes of records that must not be overwritten.
    used: u64,
    /// These records: the id of the message, and the bytes that it takes.
    unapplied: VecDeque<(u64, u64)>,
}

impl Journal {
    /// Opens the journal that a node on this host has made.
    ///
    /// # Errors
    /// If it cannot be opened, or is not the journal with this id.
    pub fn open(path: &Path, id: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file =
            options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
        if !file.metadata()?.is_file() || read_id(&file)? != id {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not the journal of the node"));
        }
        Ok(Self { file, id, sequence: 0, at: 0, used: 0, unapplied: VecDeque::new() })
    }

    /// Records a message. `false` if there is no space for it: then it must not be relied on. The ids of
    /// messages grow.
    pub fn record(&mut self, message: u64, bytes: &[u8]) -> bool {
        let space = ((RECORD_HEADER_BYTES + bytes.len()) as u64).next_multiple_of(ALIGN);
        let (at, skipped) = match self.at.saturating_add(space) <= RING_BYTES {
            true => (self.at, 0),
            false => (0, RING_BYTES - self.at),
        };
        let taken = skipped.saturating_add(space);
        if self.used.saturating_add(taken) > RING_BYTES {
            return false;
        }
        let mut record = Vec::with_capacity(RECORD_HEADER_BYTES + bytes.len());
        record.extend([0; 8]);
        record.extend(self.sequence.to_le_bytes());
        record.extend((bytes.len() as u64).to_le_bytes());
        record.extend(bytes);
        let (sum, summed) = record.split_at_mut(8);
        sum.copy_from_slice(&XxHash3_64::oneshot_with_seed(self.id, summed).to_le_bytes());
        if self.file.write_all_at(&record, HEADER_BYTES + at).is_err() {
            return false;
        }
        self.sequence += 1;
        self.at = at + space;
        self.used += taken;
        self.unapplied.push_back((message, taken));
        true
    }

    /// The node has applied this message and all messages with smaller ids.
    pub fn applied(&mut self, message: u64) {
        while let Some((_, taken)) = self.unapplied.pop_front_if(|it| it.0 <= message) {
            self.used -= taken;
        }
    }
}

/// Makes an empty journal at this path. Its memory is allocated, so that records cannot fail for want of it.
pub(crate) fn create(path: &Path, id: u64) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
    let file = options.open(&fresh)?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, HEADER_BYTES + RING_BYTES)?;
    let header: Vec<_> = [MAGIC, VERSION, id].iter().flat_map(|it| it.to_le_bytes()).collect();
    file.write_all_at(&header, 0)?;
    std::fs::rename(&fresh, path)
}

/// The messages in the journal at this path, in order. Damaged records are left out: one that was cut off
/// was not relied on.
pub(crate) fn read(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let id = read_id(&file)?;
    let mut ring = vec![0; RING_BYTES as usize];
    file.read_exact_at(&mut ring, HEADER_BYTES)?;
    Ok(messages(&ring, id))
}

/// The messages of the valid records of a ring, in order.
fn messages(ring: &[u8], id: u64) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(rest) = ring.get(at..).filter(|it| !it.is_empty()) {
        let Some((sequence, bytes)) = parse(rest, id) else {
            at += ALIGN as usize;
            continue;
        };
        found.push((sequence, bytes.to_vec()));
        at += (RECORD_HEADER_BYTES + bytes.len()).next_multiple_of(ALIGN as usize);
    }
    found.sort_by_key(|it| it.0);
    found.into_iter().map(|it| it.1).collect()
}

fn parse(rest: &[u8], id: u64) -> Option<(u64, &[u8])> {
    let (sum, summed) = rest.split_first_chunk::<8>()?;
    let (sequence, after) = summed.split_first_chunk::<8>()?;
    let (len, after) = after.split_first_chunk::<8>()?;
    let bytes = after.get(..usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
    let summed = summed.get(..RECORD_HEADER_BYTES - 8 + bytes.len())?;
    let is_whole = XxHash3_64::oneshot_with_seed(id, summed) == u64::from_le_bytes(*sum);
    is_whole.then_some((u64::from_le_bytes(*sequence), bytes))
}

/// For the decoders in `fuzz`.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz {
    use super::*;

    const ID: u64 = 7;

    /// Records with the right checksum, so that the other fields are reached.
    pub(crate) fn read(ring: &[u8]) {
        let mut sealed = ring.to_vec();
        if let Some((sum, rest)) = sealed.split_first_chunk_mut::<8>()
            && let Some(len) = rest.get(8..16).and_then(|it| it.first_chunk()).copied()
            && let Some(summed) = usize::try_from(u64::from_le_bytes(len))
                .ok()
                .and_then(|it| rest.get(..(RECORD_HEADER_BYTES - 8).checked_add(it)?))
        {
            *sum = XxHash3_64::oneshot_with_seed(ID, summed).to_le_bytes();
        }
        for ring in [ring, &sealed] {
            assert!(messages(ring, ID).iter().map(Vec::len).sum::<usize>() <= ring.len());
        }
    }

    pub(crate) fn rings() -> Vec<Vec<u8>> {
        let record = |sequence: u64, message: &[u8]| {
            let summed = [&sequence.to_le_bytes(), &(message.len() as u64).to_le_bytes(), message].concat();
            let sum = XxHash3_64::oneshot_with_seed(ID, &summed).to_le_bytes();
            let mut record = [&sum[..], &summed].concat();
            record.resize(record.len().next_multiple_of(ALIGN as usize), 0);
            record
        };
        vec![vec![0; 256], record(1, b""), [record(2, b"message"), record(1, &[9; 200])].concat()]
    }
}

fn read_id(file: &File) -> io::Result<u64> {
    let word = |at| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).map(|()| u64::from_le_bytes(bytes))
    };
    if (word(0)?, word(8)?) != (MAGIC, VERSION) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a journal of this version"));
    }
    word(16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![number as u8; len.max(8)];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes
    }

    #[test]
    fn journal_keeps_what_was_not_applied() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        create(&path, 7).unwrap();
        assert_eq!(read(&path).unwrap(), Vec::<Vec<u8>>::new());
        let mut journal = Journal::open(&path, 7).unwrap();
        let mut oldest = 0;
        for number in 0..20_000 {
            let bytes = message(number, (number as usize * 37) % 3000);
            while !journal.record(number, &bytes) {
                journal.applied(oldest);
                oldest += 1;
            }
            if number % 997 == 0 {
                let kept = read(&path).unwrap();
                let wanted = message(number, bytes.len());
                assert_eq!(kept.last(), Some(&wanted));
                // Applied records that were not overwritten yet may be there, too.
                let numbers = kept.iter().map(|it| u64::from_le_bytes(it[..8].try_into().unwrap()));
                let unapplied = numbers.filter(|it| *it >= oldest).collect::<Vec<_>>();
                assert_eq!(unapplied, (oldest..=number).collect::<Vec<_>>(), "no record is missing");
            }
        }
        assert!(oldest > 10_000, "the ring was never full");
    }

    #[test]
    fn full_journal_refuses_and_a_larger_message_never_fits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        create(&path, 7).unwrap();
        let mut journal = Journal::open(&path, 7).unwrap();
        let largest = RING_BYTES as usize - RECORD_HEADER_BYTES;
        assert!(!journal.record(1, &vec![1; largest + 1]), "beyond the limit");
        assert!(journal.record(2, &vec![2; largest]), "at the limit");
        assert!(!journal.record(3, b"more"));
        journal.applied(1);
        assert!(!journal.record(3, b"more"), "the second is not applied");
        journal.applied(2);
        assert!(journal.record(3, b"more"));
        assert_eq!(read(&path).unwrap(), [b"more"], "a record that was overwritten in part does not count");
    }

    #[test]
    fn only_the_named_journal_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        assert!(Journal::open(&path, 7).is_err());
        std::fs::write(&path, b"something else that is longer than a header").unwrap();
        assert!(Journal::open(&path, 7).is_err() && read(&path).is_err());
        create(&path, 7).unwrap();
        assert!(Journal::open(&path, 8).is_err());
        let mut old = Journal::open(&path, 7).unwrap();
        create(&path, 8).unwrap();
        assert!(old.record(1, b"late"), "a master that was replaced");
        assert_eq!(read(&path).unwrap(), Vec::<Vec<u8>>::new());
    }
}
