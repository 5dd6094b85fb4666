//! The cached locations of a client: a get of such an object does not ask the master.
//!
//! A cached location may be out of date and is read all the same: it names one use of a slot, and the reader
//! finds out after its copy whether that use still counts ([`is_valid_cached`]). This also requires that the
//! node is a member of its cluster, because a node that is not a member may not have received every retire.
//!
//! Cached-location reads hide uses from the master. So every use is noted here, once however often it
//! happens, until it is reported ([`LocationCache::report`]). The same holds for probes that take a lease.
//! The master must not count these as reads, so they are noted separately.
//!
//! **Invariant:** the cache has at most as many objects as its capacity. Those that were not used since the
//! clock hand last passed them are evicted first.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{GetOutcome, GetRequest};
use tiffin_types::{
    Generation, Key, Location, SegmentId,
    message::{CachedReads, ClientToMaster, Exists, Found, ResolveOutcome},
    mutant::{Mutant, is_mutant},
    names::Names,
};

/// The cached locations of one client.
#[derive(Debug)]
pub struct LocationCache {
    places: Names,
    entries: Vec<Entry>,
    /// The clock hand: where the search for an entry to evict continues.
    hand: usize,
    capacity: usize,
    hash_seed: u64,
    mutant: Mutant,
    /// Entries that were used and not reported yet.
    used: Vec<u32>,
    /// The uses are reported with a lease, because one of them took a lease.
    lease: bool,
    /// Entries that were probed with a lease and not reported yet.
    probed: Vec<u32>,
    /// Gets from cached locations that were not reported yet.
    reads: CachedReads,
    /// The newest generation of any object that was removed from the cache.
    evicted: Generation,
}

#[derive(Debug)]
struct Entry {
    key: Key,
    found: Found,
    /// Used since the hand last passed.
    is_recent: bool,
    /// Listed in `used`.
    is_noted: bool,
    /// Listed in `probed`.
    is_probed: bool,
    /// Removed; the entry is free.
    is_free: bool,
}

/// How a client reaches a node at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// There is no open route.
    None,
    /// Through a socket.
    Socket,
    /// Through mapped memory.
    Mapped,
    /// It is a disk. Only the master knows whether its objects are in memory by now, or are being promoted.
    Disk,
}

/// What decides whether a get may use the cache.
#[derive(Clone, Copy, Debug, Default)]
pub struct CachedGet {
    /// The client is connected to the master.
    pub is_connected: bool,
    /// The get takes a lease.
    pub lease: bool,
    /// A lease protects from removal, so the master must grant it before the get returns.
    pub strict_leases: bool,
}

impl CachedGet {
    fn is_allowed(self) -> bool {
        self.is_connected && !(self.lease && self.strict_leases)
    }
}

/// What a reader sees of a slot in mapped memory after its copy, read in this order. A node that was away
/// is a member again only after it has applied its pending retires. So a use of a slot that is still valid
/// after that is not retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The node is a member.
    pub is_member: bool,
    /// The epoch of the master that it is a member of.
    pub epoch: u64,
    /// The state of this use of the slot, if it is still valid.
    pub state: Option<SeenState>,
}

/// The state of a use of a slot, as far as readers distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeenState {
    /// Committed.
    Committed,
    /// Reserved or offered: the node may not have received the settle of a published object.
    Reserved,
}

/// Whether bytes that were copied from a cached location are valid. The object was `named` in that epoch of
/// the master, and the client is connected to a master of `epoch`.
///
/// An object of the current epoch is valid even before its node has received the settle. For an object of
/// an earlier epoch only the node knows.
#[must_use]
pub fn is_valid_cached(seen: Seen, named: u64, epoch: u64) -> bool {
    let is_object = match seen.state {
        Some(SeenState::Committed) => true,
        Some(SeenState::Reserved) => named == epoch,
        None => false,
    };
    seen.is_member && seen.epoch == epoch && is_object
}

impl LocationCache {
    /// An empty cache for at most `capacity` objects. The seed need not be secret: keys come from the
    /// client's own process.
    #[must_use]
    pub fn new(capacity: usize, hash_seed: u64, mutant: Mutant) -> Self {
        Self {
            places: Names::default(),
            entries: Vec::new(),
            hand: 0,
            capacity: capacity.min(u32::MAX as usize),
            hash_seed,
            mutant,
            used: Vec::new(),
            lease: false,
            probed: Vec::new(),
            reads: CachedReads::default(),
            evicted: Generation::default(),
        }
    }

    /// Caches the location of the client's own put: its home, the first of its copies, which has the object
    /// under that generation. For the other copies only the master can tell: another epoch may have given
    /// them an older generation, and this epoch learns of that only when their nodes join.
    ///
    /// The reply to a put may arrive long after the master has named something newer. That stays while it
    /// is cached. Once it is evicted, its key is not known, so nothing older is cached any more.
    pub fn learn_put(&mut self, key: &Key, generation: Generation, len: u64, copies: &[Location]) {
        if generation < self.evicted {
            return;
        }
        let replicas = copies.iter().copied().take(1).collect();
        self.learn(key, &Found { generation, len, replicas, ..Found::default() });
    }

    /// Caches locations, unless those of a newer generation are cached.
    fn learn(&mut self, key: &Key, found: &Found) {
        if found.replicas.is_empty() || self.capacity == 0 {
            return;
        }
        if let Some(entry) = self.place(key).and_then(|at| self.entries.get_mut(at)) {
            if entry.found.generation <= found.generation {
                entry.found.clone_from(found);
            }
            return;
        }
        let entry = Entry {
            key: key.clone(),
            found: found.clone(),
            is_recent: false,
            is_noted: false,
            is_probed: false,
            is_free: false,
        };
        let at = if self.entries.len() < self.capacity {
            self.entries.push(entry);
            self.entries.len() - 1
        } else {
            let at = self.evict();
            if let Some(place) = self.entries.get_mut(at) {
                *place = Entry { is_noted: place.is_noted, is_probed: place.is_probed, ..entry };
            }
            at
        };
        self.places.insert(hash(self.hash_seed, key.as_bytes()), at as u32);
    }

    /// The request of a get, with the cached locations that may be read without asking the master, the
    /// closest last. This counts as a use.
    pub fn recall(
        &mut self,
        key: &Key,
        get: CachedGet,
        mut reach: impl FnMut(SegmentId) -> Reach,
    ) -> GetRequest {
        let mut known = self.find(key).filter(|_| get.is_allowed()).cloned();
        if let Some(found) = &mut known {
            found.replicas.retain(|it| matches!(reach(it.segment), Reach::Socket | Reach::Mapped));
            found.replicas.sort_by_key(|it| reach(it.segment));
        }
        let known = known.filter(|it| !it.replicas.is_empty());
        self.lease |= get.lease;
        GetRequest { key: key.clone(), known }
    }

    /// Processes the outcomes of gets. `cached` is the generation whose locations each of them was given.
    /// `asked` says whether the master was asked, which then counts the read.
    pub fn finish(
        &mut self,
        keys: &[Key],
        cached: &[Option<Generation>],
        outcomes: &[GetOutcome],
        asked: &[bool],
    ) {
        let (mut items, mut bytes) = (0, 0_u64);
        for (((key, cached), outcome), is_asked) in keys.iter().zip(cached).zip(outcomes).zip(asked) {
            match (outcome, cached) {
                (GetOutcome::Read(found), _) if !is_asked => {
                    (items, bytes) = (items + 1, bytes.saturating_add(found.len));
                }
                (GetOutcome::Read(_), _) | (_, None) => {}
                (_, Some(generation)) => self.forget(key, *generation),
            }
        }
        match items {
            0 => {}
            // The master counts the call, because it was asked for a part of it.
            items if asked.contains(&true) => self.reads.add_items(items, bytes),
            items => self.reads.add(outcomes.len() > 1, items, bytes),
        }
    }

    /// The next report of uses for the master, with at most `most` keys; `None` if there are fewer than
    /// `enough` uses.
    pub fn report(&mut self, enough: usize, most: usize) -> Option<ClientToMaster> {
        if self.unreported() < enough.max(1) {
            return None;
        }
        if self.used.is_empty() && self.reads.is_empty() {
            let keys = self.take_probed(most).iter().collect();
            return Some(ClientToMaster::Exists(Exists { keys, lease: true, ..Exists::default() }));
        }
        let lease = std::mem::take(&mut self.lease);
        let keys = self.take_used(most).iter().collect();
        let reads = std::mem::take(&mut self.reads).bounded();
        Some(ClientToMaster::Exists(Exists { keys, touch: true, lease, reads, ..Exists::default() }))
    }

    /// Number of uses to report. A get is counted after its use was noted, and may be all that is left.
    #[must_use]
    pub fn unreported(&self) -> usize {
        self.used.len().max(self.probed.len()).max(usize::from(!self.reads.is_empty()))
    }

    /// The locations of an object whose existence is probed. `touch` counts as a use, with a `lease` if
    /// that is set. A `lease` alone counts as a probe. Without both nothing is noted.
    pub fn probe(&mut self, key: &(impl AsRef<[u8]> + ?Sized), touch: bool, lease: bool) -> Option<&Found> {
        self.lease |= touch && lease;
        match (touch, lease) {
            (true, _) => self.find(key),
            (false, true) => self.find_leased(key),
            (false, false) => self.peek(key),
        }
    }

    /// The locations of an object. It counts as used.
    fn find(&mut self, key: &(impl AsRef<[u8]> + ?Sized)) -> Option<&Found> {
        let at = self.place(key)?;
        let entry = self.entries.get_mut(at)?;
        entry.is_recent = true;
        if !std::mem::replace(&mut entry.is_noted, true) {
            self.used.push(at as u32);
        }
        Some(&entry.found)
    }

    /// The locations of an object. It counts as probed with a lease, and not as read.
    fn find_leased(&mut self, key: &(impl AsRef<[u8]> + ?Sized)) -> Option<&Found> {
        let at = self.place(key)?;
        let entry = self.entries.get_mut(at)?;
        entry.is_recent = true;
        if !std::mem::replace(&mut entry.is_probed, true) {
            self.probed.push(at as u32);
        }
        Some(&entry.found)
    }

    /// The locations of an object. It does not count as used.
    #[must_use]
    pub fn peek(&self, key: &(impl AsRef<[u8]> + ?Sized)) -> Option<&Found> {
        Some(&self.entries.get(self.place(key)?)?.found)
    }

    /// This generation of the object is not at its cached locations. Those of a newer generation stay.
    fn forget(&mut self, key: &Key, generation: Generation) {
        let known = self.peek(key).map(|it| it.generation);
        if known.is_some_and(|it| it <= generation) {
            self.remove(key);
        }
    }

    /// Applies what the master says of an object, in any reply. It must be called in the order of the
    /// replies. Nothing older may be read afterwards: a copy whose node has not received its retire would
    /// still pass as valid, and the reader would see the object go back in time.
    pub fn apply(&mut self, key: &Key, outcome: &ResolveOutcome) {
        match outcome {
            _ if is_mutant!(self.mutant, ApplyOnce) && self.peek(key).is_some() => {}
            ResolveOutcome::Found(found) if found.replicas.is_empty() => {
                self.evicted = self.evicted.max(found.generation);
                if self.peek(key).is_some_and(|it| it.generation < found.generation) {
                    self.remove(key);
                }
            }
            ResolveOutcome::Found(found) => self.learn(key, found),
            ResolveOutcome::Absent => self.remove(key),
            ResolveOutcome::Unavailable(_) => {}
        }
    }

    /// Removes the locations of an object, whatever its generation.
    pub fn remove(&mut self, key: &Key) {
        let Some(at) = self.place(key) else { return };
        self.places.remove(hash(self.hash_seed, key.as_bytes()), at as u32);
        if let Some(entry) = self.entries.get_mut(at) {
            (entry.is_free, entry.is_recent) = (true, false);
            self.evicted = self.evicted.max(entry.found.generation);
        }
    }

    /// Removes and returns the keys of uses, oldest first, at most `most` of them.
    fn take_used(&mut self, most: usize) -> Vec<Key> {
        let mut keys = Vec::new();
        for at in self.used.drain(..most.min(self.used.len())) {
            if let Some(entry) = self.entries.get_mut(at as usize) {
                entry.is_noted = false;
                if !entry.is_free {
                    keys.push(entry.key.clone());
                }
            }
        }
        keys
    }

    /// Removes and returns the keys of probes with a lease, oldest first, at most `most` of them.
    fn take_probed(&mut self, most: usize) -> Vec<Key> {
        let mut keys = Vec::new();
        for at in self.probed.drain(..most.min(self.probed.len())) {
            if let Some(entry) = self.entries.get_mut(at as usize) {
                entry.is_probed = false;
                if !entry.is_free {
                    keys.push(entry.key.clone());
                }
            }
        }
        keys
    }

    fn place(&self, key: &(impl AsRef<[u8]> + ?Sized)) -> Option<usize> {
        let key = key.as_ref();
        let is_it = |at: u32| self.entries.get(at as usize).is_some_and(|it| it.key.as_bytes() == key);
        self.places.find(hash(self.hash_seed, key), is_it).map(|at| at as usize)
    }

    /// A free entry. The hand passes every entry at most twice.
    fn evict(&mut self) -> usize {
        loop {
            let at = self.hand;
            self.hand = (at + 1) % self.entries.len().max(1);
            let Some(entry) = self.entries.get_mut(at) else { return at };
            if entry.is_free {
                return at;
            }
            if !std::mem::take(&mut entry.is_recent) {
                let key = entry.key.clone();
                self.remove(&key);
                return at;
            }
        }
    }
}

fn hash(seed: u64, key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tiffin_types::{SegmentId, SlotId, Stamp};

    fn key(number: u64) -> Key {
        Key::new(format!("key {number}").as_bytes()).unwrap()
    }

    fn found(counter: u64) -> Found {
        let location = Location { segment: SegmentId(1), slot: SlotId(0), stamp: Stamp(counter) };
        let generation = Generation { epoch: 1, counter };
        Found { generation, len: 10, replicas: vec![location], ..Found::default() }
    }

    #[test]
    fn newest_generation_is_cached_in_any_order() {
        let mut known = LocationCache::new(8, 0, Mutant::None);
        assert_eq!(known.find(&key(1)), None);
        for (counter, newest) in [(5, 5), (3, 5), (7, 7), (6, 7)] {
            known.learn(&key(1), &found(counter));
            assert_eq!(known.find(&key(1)), Some(&found(newest)));
        }
        known.forget(&key(1), found(6).generation);
        assert!(known.peek(&key(1)).is_some(), "an older one is removed, which does not affect this one");
        known.forget(&key(1), found(7).generation);
        assert_eq!(known.peek(&key(1)), None);
        known.learn(&key(1), &Found::default());
        assert_eq!(known.peek(&key(1)), None, "without a location there is nothing to cache");
    }

    #[test]
    fn master_reply_updates_the_cache() {
        let mut known = LocationCache::new(8, 0, Mutant::None);
        known.learn(&key(1), &found(5));
        for (outcome, left) in [
            (ResolveOutcome::Unavailable(vec!["n".into()]), true),
            (ResolveOutcome::Found(found(4)), true),
            (ResolveOutcome::Found(Found { replicas: vec![], ..found(5) }), true),
            (ResolveOutcome::Found(Found { replicas: vec![], ..found(6) }), false),
            (ResolveOutcome::Absent, false),
        ] {
            known.learn(&key(1), &found(5));
            known.apply(&key(1), &outcome);
            assert_eq!(known.peek(&key(1)).is_some(), left, "{outcome:?}");
        }
        known.learn(&key(1), &found(5));
        known.apply(&key(1), &ResolveOutcome::Found(found(7)));
        known.apply(&key(1), &ResolveOutcome::Found(found(6)));
        assert_eq!(known.peek(&key(1)), Some(&found(7)));
    }

    #[test]
    fn late_reply_does_not_restore_an_older_generation() {
        let place = &found(5).replicas;
        let newer: [fn(&mut LocationCache); 3] = [
            |known| {
                known.apply(&key(1), &ResolveOutcome::Found(found(6)));
                known.forget(&key(1), found(6).generation);
            },
            |known| {
                known.apply(&key(1), &ResolveOutcome::Found(found(6)));
                known.apply(&key(1), &ResolveOutcome::Absent);
            },
            |known| known.apply(&key(1), &ResolveOutcome::Found(Found { replicas: vec![], ..found(6) })),
        ];
        for hear_and_forget in newer {
            let mut known = LocationCache::new(8, 0, Mutant::None);
            hear_and_forget(&mut known);
            known.learn_put(&key(1), found(5).generation, 10, place);
            assert_eq!(known.peek(&key(1)), None, "older than what was cached");
            known.learn_put(&key(1), found(7).generation, 10, &found(7).replicas);
            assert_eq!(known.peek(&key(1)), Some(&found(7)));
            known.apply(&key(2), &ResolveOutcome::Found(found(4)));
            assert_eq!(known.peek(&key(2)), Some(&found(4)), "a reply of the master is always accepted");
        }
    }

    #[test]
    fn only_the_home_of_an_own_put_is_cached() {
        let mut known = LocationCache::new(8, 0, Mutant::None);
        let copies: Vec<_> = [5, 6].into_iter().flat_map(|counter| found(counter).replicas).collect();
        known.learn_put(&key(1), found(5).generation, 10, &copies);
        assert_eq!(known.peek(&key(1)), Some(&found(5)), "the first copy, and no other");
        let both = Found { replicas: copies.clone(), ..found(5) };
        known.learn(&key(1), &both);
        assert_eq!(known.peek(&key(1)), Some(&both), "the master names both");
    }

    #[test]
    fn unused_entries_are_evicted_first() {
        let mut known = LocationCache::new(4, 0, Mutant::None);
        (0..4).for_each(|number| known.learn(&key(number), &found(number)));
        for new in 4..1000 {
            // The entry that is used repeatedly stays.
            assert!(known.find(&key(0)).is_some(), "before {new}");
            known.learn(&key(new), &found(new));
            assert!(known.peek(&key(new)).is_some());
            assert_eq!((0..=new).filter(|it| known.peek(&key(*it)).is_some()).count(), 4);
        }
    }

    #[test]
    fn uses_are_reported_once_each_in_order() {
        let mut known = LocationCache::new(4, 0, Mutant::None);
        (0..3).for_each(|number| known.learn(&key(number), &found(number)));
        for number in [2, 0, 2, 1, 0] {
            known.find(&key(number));
        }
        known.remove(&key(0));
        assert_eq!((known.used.len(), known.take_used(1)), (3, vec![key(2)]));
        assert_eq!(known.take_used(9), [key(1)], "a removed object is not reported");
        known.find(&key(2));
        assert_eq!(known.take_used(9), [key(2)], "used again");
        assert!(known.peek(&key(1)).is_some());
        assert_eq!(known.used.len(), 0, "a peek is not a use");
    }

    #[test]
    fn probes_are_noted_separately_from_reads() {
        let mut known = LocationCache::new(4, 0, Mutant::None);
        (0..3).for_each(|number| known.learn(&key(number), &found(number)));
        for number in [2, 0, 2, 1] {
            assert_eq!(known.find_leased(&key(number)), Some(&found(number)));
        }
        known.find(&key(1));
        known.remove(&key(0));
        assert_eq!((known.used.len(), known.take_used(9)), (1, vec![key(1)]));
        assert_eq!((known.probed.len(), known.take_probed(1)), (3, vec![key(2)]));
        assert_eq!(known.take_probed(9), [key(1)], "a deleted object takes no lease");
        known.find_leased(&key(2));
        assert_eq!((known.take_probed(9), known.probed.len()), (vec![key(2)], 0), "probed again");
    }

    #[test]
    fn entries_are_reused() {
        let mut known = LocationCache::new(2, 0, Mutant::None);
        for number in 0..100 {
            known.learn(&key(number), &found(number));
            known.find(&key(number));
            known.find_leased(&key(number));
            known.remove(&key(number));
        }
        assert!(known.entries.len() <= 2 && known.used.len() <= 2 && known.probed.len() <= 2);
        assert!((0..100).all(|number| known.peek(&key(number)).is_none()));
        let mut nothing = LocationCache::new(0, 0, Mutant::None);
        nothing.learn(&key(1), &found(1));
        assert_eq!(nothing.peek(&key(1)), None);
    }

    fn cached(count: u64) -> LocationCache {
        let mut cache = LocationCache::new(8, 0, Mutant::None);
        (0..count).for_each(|number| cache.learn(&key(number), &found(number)));
        cache
    }

    const ALLOWED: CachedGet = CachedGet { is_connected: true, lease: false, strict_leases: false };

    #[test]
    fn get_reads_the_closest_memory_without_the_master() {
        let at = |segment| Location { segment: SegmentId(segment), ..Location::default() };
        let reach = |segment: SegmentId| match segment.0 {
            1 => Reach::Mapped,
            2 => Reach::Socket,
            3 => Reach::Disk,
            _ => Reach::None,
        };
        for (replicas, read) in [
            (vec![1, 2], vec![2, 1]),
            (vec![2, 1], vec![2, 1]),
            (vec![4, 2, 3], vec![2]),
            (vec![3], vec![]),
            (vec![4], vec![]),
        ] {
            let mut cache = LocationCache::new(8, 0, Mutant::None);
            let replicas: Vec<_> = replicas.into_iter().map(at).collect();
            cache.learn(&key(1), &Found { replicas, ..found(1) });
            let known = cache.recall(&key(1), ALLOWED, reach).known;
            let found: Vec<_> = known.iter().flat_map(|it| &it.replicas).map(|it| it.segment.0).collect();
            assert_eq!((found, known.is_some()), (read.clone(), !read.is_empty()));
        }
    }

    #[test]
    fn get_asks_the_master_if_only_it_can_answer() {
        let get = |is_connected, lease, strict_leases| CachedGet { is_connected, lease, strict_leases };
        for (get, allowed) in [
            (get(true, false, false), true),
            (get(true, true, false), true),
            (get(true, false, true), true),
            (get(true, true, true), false),
            (get(false, false, false), false),
        ] {
            let known = cached(2).recall(&key(1), get, |_| Reach::Mapped).known;
            assert_eq!(known.is_some(), allowed, "{get:?}");
        }
    }

    #[test]
    fn cached_bytes_are_valid_from_a_member_of_the_epoch() {
        use SeenState::{Committed, Reserved};
        let seen = |is_member, epoch, state| Seen { is_member, epoch, state };
        for (seen, named, valid) in [
            (seen(true, 5, Some(Committed)), 5, true),
            (seen(true, 5, Some(Committed)), 4, true),
            (seen(true, 5, Some(Reserved)), 5, true),
            (seen(true, 5, Some(Reserved)), 4, false),
            (seen(true, 5, None), 5, false),
            (seen(false, 5, Some(Committed)), 5, false),
            (seen(true, 4, Some(Committed)), 4, false),
            (seen(true, 6, Some(Committed)), 5, false),
        ] {
            assert_eq!(is_valid_cached(seen, named, 5), valid, "{seen:?}, named in {named}");
        }
    }

    #[test]
    fn get_is_reported_after_its_key() {
        let mut cache = cached(2);
        assert!(cache.recall(&key(1), ALLOWED, |_| Reach::Mapped).known.is_some());
        assert!(cache.report(1, 9).is_some(), "the key is reported while the get is still reading");
        assert_eq!(cache.report(1, 9), None);
        cache.finish(&[key(1)], &[None], &[GetOutcome::Read(found(1))], &[false]);
        let Some(ClientToMaster::Exists(report)) = cache.report(1, 9) else { panic!("no report of the get") };
        assert_eq!((report.keys.len(), report.reads.singles), (0, 1));
        assert_eq!(cache.report(1, 9), None);
    }

    #[test]
    fn probe_is_reported_as_a_lease_not_as_a_read() {
        let mut cache = cached(2);
        assert!(cache.probe(&key(0), true, false).is_some());
        assert!(cache.probe(&key(1), false, true).is_some());
        let reports = [(); 2].map(|()| match cache.report(1, 9) {
            Some(ClientToMaster::Exists(it)) => (it.keys, it.touch, it.lease),
            other => panic!("{other:?}"),
        });
        let [read, probed] = [0, 1].map(|number| [key(number)].iter().collect());
        assert_eq!(reports, [(read, true, false), (probed, false, true)]);
        assert!(cache.probe(&key(0), false, false).is_some());
        assert_eq!(cache.report(1, 9), None);
    }

    #[test]
    fn objects_that_the_master_was_asked_for_are_not_counted() {
        let read = || GetOutcome::Read(Found { len: 10, ..Found::default() });
        let counted = |outcomes: &[GetOutcome], asked: &[bool]| {
            let mut cache = cached(0);
            let keys: Vec<_> = (0..outcomes.len() as u64).map(key).collect();
            cache.finish(&keys, &vec![None; keys.len()], outcomes, asked);
            let it = cache.reads;
            (it.singles, it.batches, it.items, it.bytes)
        };
        assert_eq!(counted(&[read()], &[false]), (1, 0, 0, 10));
        assert_eq!(counted(&[read()], &[true]), (0, 0, 0, 0), "the cached location was wrong");
        assert_eq!(counted(&[read(), read()], &[false, false]), (0, 1, 2, 20));
        assert_eq!(counted(&[read(), GetOutcome::Absent, read()], &[false, true, true]), (0, 0, 1, 10));
    }

    #[test]
    fn object_not_at_its_cached_location_is_forgotten() {
        let mut cache = cached(3);
        let keys = [key(0), key(1), key(2)];
        let generation = |number| Some(found(number).generation);
        let cached = [generation(0), generation(1), None];
        let outcomes = [GetOutcome::Absent, GetOutcome::Read(found(1)), GetOutcome::Absent];
        cache.finish(&keys, &cached, &outcomes, &[true, false, true]);
        assert_eq!(keys.map(|key| cache.peek(&key).is_some()), [false, true, true]);
    }
}
