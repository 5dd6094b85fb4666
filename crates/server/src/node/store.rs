//! Commits that carry their bytes (`Store`), which saves a message and a round trip.
//!
//! A few bytes are in the request. They are written like those of the data socket, with the same checks,
//! before the core gets the commit. More bytes come through the data socket first, and the commit follows on
//! the control connection. A commit that is repeated because its answer was lost finds the object prepared,
//! and nothing is written again.

use tiffin_transport::copy;
use tiffin_types::message::{Commit, CommitItem, Reason, Refusal, Store};
use tiffin_types::{ClientId, Extent};

use super::Shared;
use super::records::extent;

/// The maximum number of bytes in one request: other requests to the node wait while they are written.
const STORE_BYTES_MAX: usize = 1 << 20;

impl Shared {
    /// Writes the bytes, and returns the commit.
    pub(super) fn write_down(&self, client: ClientId, store: Store) -> Result<Commit, Refusal> {
        let Store { commit, bytes } = store;
        if let Some(why) = why_not(&commit, &bytes) {
            return Err(Refusal { reason: Reason::Invalid, message: why.to_owned() });
        }
        for (item, bytes) in commit.items.iter().zip(&bytes).filter(|(_, bytes)| !bytes.is_empty()) {
            if !self.write_one(client, item, bytes) {
                // An incomplete object must not be committed.
                tracing::error!(slot_ref = ?item.slot_ref, "extents from the core do not match the object");
                let message = "the node cannot write the bytes".to_owned();
                return Err(Refusal { reason: Reason::Invalid, message });
            }
        }
        Ok(commit)
    }

    /// Returns `false` if the bytes cannot be written. A reservation that the client no longer has is no
    /// error here: the core rejects its commit.
    fn write_one(&self, client: ClientId, item: &CommitItem, bytes: &[u8]) -> bool {
        let begun = self.lock().core.begin_store(client, item.slot_ref, 0, item.len);
        let Some(extents) = begun else { return true };
        let is_whole = self.fill(&extents, bytes);
        self.ended(|state| state.core.end_store(item.slot_ref));
        if is_whole {
            self.counters.served.add_written(item.len);
        }
        is_whole
    }

    fn fill(&self, extents: &[Extent], bytes: &[u8]) -> bool {
        let extents: Vec<_> = extents.iter().copied().map(extent).collect();
        let Some(targets) = self.memory.targets(&extents) else { return false };
        let mut rest = bytes;
        for target in targets {
            let Some((piece, more)) = rest.split_at_checked(target.len()) else { return false };
            copy::copy_in(piece, target);
            rest = more;
        }
        rest.is_empty()
    }
}

fn why_not(commit: &Commit, bytes: &[Vec<u8>]) -> Option<&'static str> {
    let fits = |(item, bytes): (&CommitItem, &Vec<u8>)| bytes.is_empty() || bytes.len() as u64 == item.len;
    if commit.items.len() != bytes.len() || !commit.items.iter().zip(bytes).all(fits) {
        return Some("an item must carry all bytes of its object, or none");
    }
    let is_much = bytes.iter().map(Vec::len).sum::<usize>() > STORE_BYTES_MAX;
    is_much.then_some("the bytes exceed the 1 MiB limit of a request; send them on the data connection")
}

#[cfg(test)]
mod tests {
    use tiffin_types::message::PutOptions;
    use tiffin_types::{Key, SlotId, SlotRef, Stamp};

    use super::*;

    #[test]
    fn item_carries_all_bytes_of_its_object_or_none() {
        let slot_ref = SlotRef { slot: SlotId(1), stamp: Stamp(1) };
        let key = Key::new(b"k").unwrap();
        let item = |len| CommitItem {
            slot_ref,
            key: key.clone(),
            len,
            options: PutOptions::default(),
            others: Vec::new(),
        };
        let commit = Commit { items: vec![item(3), item(2)], wait_ms: 0 };
        for (is_right, bytes) in [
            (true, vec![vec![1; 3], vec![1; 2]]),
            (true, vec![vec![1; 3], vec![]]),
            (true, vec![vec![], vec![]]),
            (false, vec![vec![1; 3], vec![1; 3]]),
            (false, vec![vec![1; 2], vec![1; 2]]),
            (false, vec![vec![1; 3]]),
            (false, vec![vec![1; 3], vec![1; 2], vec![]]),
        ] {
            assert_eq!(why_not(&commit, &bytes).is_none(), is_right, "{bytes:?}");
        }
        let long = Commit { items: vec![item(1 << 20), item(1)], wait_ms: 0 };
        assert_eq!(why_not(&long, &[vec![1; 1 << 20], vec![]]), None);
        assert!(why_not(&long, &[vec![1; 1 << 20], vec![1]]).is_some());
    }
}
