//! R16: while a member of the roster has not reported, a key that it may hold is neither present nor absent.
//! An answer that says that an object is absent, or deleted, is compared with what such members hold.
//!
//! Exempt: members that a master has declared lost, and all members after the state folder was lost, until
//! they register. A delete is decided for all its names at once, and answered when nodes have confirmed it: a
//! member that registered in between was not known when it was decided.

use std::collections::BTreeSet;

use tiffin_core::{
    ConnId, Generation, RequestId, SegmentId,
    message::{ClientToMaster, DeleteOutcome, Presence, Reply, ResolveOutcome},
    node::SlotState,
};

use crate::{
    coverage::{Coverage, Point},
    memory::Memory,
    names::Name,
    oracle::{Memories, Oracle},
};

/// What a client asked about.
#[derive(Debug)]
pub(crate) struct Asked {
    names: Vec<Name>,
    /// The roster when it was decided, if that is before the answer. Other requests are decided when they are
    /// answered.
    decided: Option<BTreeSet<SegmentId>>,
}

impl Oracle {
    /// A client asks for objects by name.
    pub(crate) fn asks_for(&mut self, conn: ConnId, id: RequestId, request: &ClientToMaster, namespace: u8) {
        let names: Vec<_> = match request {
            ClientToMaster::Resolve(it) => {
                it.keys.iter().filter_map(|key| Name::of(namespace, key)).collect()
            }
            ClientToMaster::Delete(it) => it.keys.iter().filter_map(|key| Name::of(namespace, key)).collect(),
            ClientToMaster::Exists(it) => {
                let keys = it.keys.iter().filter_map(|key| tiffin_core::Key::new(key).ok());
                keys.filter_map(|key| Name::of(namespace, &key)).collect()
            }
            ClientToMaster::Reserve(_)
            | ClientToMaster::Publish(_)
            | ClientToMaster::DeleteMatching(_)
            | ClientToMaster::List(_)
            | ClientToMaster::Stat
            | ClientToMaster::Ping
            | ClientToMaster::Pin(_)
            | ClientToMaster::DropPins(_)
            | ClientToMaster::SetPolicy(_)
            | ClientToMaster::Await(_)
            | ClientToMaster::Why(_)
            | ClientToMaster::Lease(_)
            | ClientToMaster::Release(_)
            | ClientToMaster::KeepLeases(_)
            | ClientToMaster::Ack(_)
            | ClientToMaster::Cancel(_)
            | ClientToMaster::OpenStream(_)
            | ClientToMaster::EndStream(_)
            | ClientToMaster::Pull(_)
            | ClientToMaster::Prefetch(_) => return,
        };
        // One that waits for reports comes here again when it is resumed.
        let decided = matches!(request, ClientToMaster::Delete(_)).then(|| self.roster.clone());
        self.asked_names.insert((conn, id), Asked { names, decided });
    }

    /// A member reports an object: none that is older than what the master took away while it waited for that
    /// report.
    pub(crate) fn left_stays_away(&mut self, segment: SegmentId, name: Name, generation: Generation) {
        let newest = self.left.as_ref().and_then(|it| it.get(&name)).copied();
        if let Some(newest) = newest.filter(|it| *it > generation) {
            self.fail("r16", || {
                format!("{segment} brings back {name:?} {generation}, older than {newest}, which has left")
            });
        }
    }

    /// An answer says that objects are absent, or deleted.
    pub(crate) fn check_absences(
        &mut self,
        to: (ConnId, RequestId),
        reply: &Reply,
        memories: &Memories,
        coverage: &mut Coverage,
    ) {
        let Some(Asked { names, decided }) = self.asked_names.remove(&to) else { return };
        let absent: Vec<bool> = match reply {
            Reply::Resolved(it) => it.items.iter().map(|it| *it == ResolveOutcome::Absent).collect(),
            Reply::Present(items) => items.iter().map(|it| *it == Presence::Absent).collect(),
            Reply::Deleted(outcomes) => {
                let gone = |it: &DeleteOutcome| matches!(it, DeleteOutcome::Absent | DeleteOutcome::Deleted);
                outcomes.iter().map(gone).collect()
            }
            _ => return,
        };
        for (name, _) in names.into_iter().zip(absent).filter(|it| it.1) {
            let unreported = |segment: &SegmentId| {
                self.roster.contains(segment)
                    && decided.as_ref().is_none_or(|it| it.contains(segment))
                    && !self.joined.contains(segment)
                    && !self.lost.contains_key(segment)
            };
            let has_it = |memory: &Memory| {
                let committed = memory.slots().filter(|(_, it)| it.state == SlotState::Committed);
                let mut named = committed.filter_map(|(_, it)| self.lives.get(&it.generation));
                named.any(|it| it.name == name && !it.gone)
            };
            let holder = memories.iter().filter(|(_, it)| it.alive).find(|(segment, memory)| {
                unreported(segment) && {
                    coverage.hit(Point::CheckedUnreported);
                    has_it(memory)
                }
            });
            if let Some((segment, _)) = holder {
                let segment = *segment;
                let what =
                    || format!("{name:?} is said to be gone, but {segment} has it and has not reported");
                return self.fail("r16", what);
            }
        }
    }
}
